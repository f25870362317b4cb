"""contract: the one exception tree, and the exit code that each branch ends with (DESIGN.md, law 8).

    NightbatchError
    ├── UsageError (2)               the user's input or arguments
    │   ├── DatasetError             rows that cannot be sent, all of them at once
    │   ├── BadFiles                 files of the project that are not what they must be, every mistake at once
    │   ├── ContractError            a job that breaks the job contract, field named
    │   └── PlanMismatch             dataset, task, model or boundaries differ from the run's plan
    ├── InfrastructureError (3)      RunPod, S3 or this machine
    │   ├── StoreError               S3
    │   │   ├── NotFound
    │   │   ├── NoSuchBucket
    │   │   ├── AlreadyExists        a conditional write met an object (412, 409)
    │   │   ├── AccessDenied
    │   │   ├── Damaged              an object of a run is not what it should be
    │   │   └── StoreUnavailable     no answer, or 5xx: what happened is not known
    │   ├── EndpointError            RunPod's data plane
    │   │   ├── EndpointAuth         401, 403
    │   │   ├── EndpointMissing      404 for the endpoint itself
    │   │   ├── RateLimited          429
    │   │   ├── Refused              other 4xx: certainly not accepted
    │   │   └── EndpointUnavailable  no answer, or 5xx: what happened is not known
    │   └── EmulatorError
    ├── NotAsWanted (1)              it finished, and something is not as wanted
    │   └── VerifyFailed
    └── Interrupted (130)            by the user; resumable

How a run ends that nothing went wrong with (complete, stopped by budget or deadline, stalled) is a result, not an exception: `DriveResult`.

A message is one sentence that says what is wrong; `where` names the file, line, key or URL; `fix` says what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class NightbatchError(Exception):
    """The root: catch this one. `exit_code` is what the CLI ends with."""

    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} {self.fix}" if self.fix else text


class UsageError(NightbatchError):
    """The user's input or arguments cannot be used as they are."""

    exit_code = 2


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be sent: `file` as the user named it, `line` 1-based (a row number for Parquet), `reason` one clause."""

    file: str
    line: int
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class DatasetError(UsageError):
    """Rows that cannot be sent, all of them at once (`bad_rows` may be capped; `total` is not)."""

    def __init__(
        self,
        what: str,
        *,
        bad_rows: Sequence[BadRow] = (),
        total: int | None = None,
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.bad_rows = tuple(bad_rows)
        self.total = len(self.bad_rows) if total is None else total


class BadFiles(UsageError):
    """Files of the project (jobs, suites) that cannot be used; `problems`: each mistake, as `file:line: key: what is wrong`."""

    def __init__(self, what: str, *, problems: Sequence[str] = (), where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, where=where, fix=fix)
        self.problems = tuple(problems)


class ContractError(UsageError):
    """A job that breaks the contract; the message names the field."""


class PlanMismatch(UsageError):
    """What was asked is not what the run's plan says."""


class InfrastructureError(NightbatchError):
    """RunPod, S3 or this machine did not do its part."""


class StoreError(InfrastructureError):
    """S3."""


class NotFound(StoreError):
    """No such object."""


class NoSuchBucket(StoreError):
    """The bucket itself is not there."""


class AlreadyExists(StoreError):
    """A conditional write met an object (412 or 409)."""


class AccessDenied(StoreError):
    """The store refused these credentials."""


class Damaged(StoreError):
    """An object of a run is not what it should be: somebody or something changed it."""


class StoreUnavailable(StoreError):
    """No answer, or 5xx after the retries: what happened is not known."""


class EndpointError(InfrastructureError):
    """RunPod's data plane."""


class EndpointAuth(EndpointError):
    """401 or 403."""


class EndpointMissing(EndpointError):
    """404 for the endpoint itself."""


class RateLimited(EndpointError):
    """429; `retry_after_s` where the answer said it."""

    def __init__(self, what: str, *, retry_after_s: float | None = None, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, where=where, fix=fix)
        self.retry_after_s = retry_after_s


class Refused(EndpointError):
    """Another 4xx: certainly not accepted."""


class EndpointUnreachable(EndpointError):
    """No connection was made: certainly not accepted."""


class EndpointUnavailable(EndpointError):
    """No answer, or 5xx: what happened is not known."""


class EmulatorError(InfrastructureError):
    """The emulator on this machine could not start, or is not running."""


class NotAsWanted(NightbatchError):
    """It finished, and something is not as wanted."""

    exit_code = 1


class VerifyFailed(NotAsWanted):
    """Storage does not prove what it should; `findings` says what is wrong where."""

    def __init__(self, what: str, *, findings: Sequence[str] = (), where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, where=where, fix=fix)
        self.findings = tuple(findings)


class Interrupted(NightbatchError):
    """By the user; the run can be resumed."""

    exit_code = 130
