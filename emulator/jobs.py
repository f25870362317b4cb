"""emulator: a job, and everything that can happen to it, as pure functions from one frozen job to the next.

May touch: the standard library and msgspec. No clock, no I/O: `now` is an argument, in seconds since the epoch; durations that RunPod
states in milliseconds stay in milliseconds and say so (`_ms`). Numbers come from RunPod's pages operation-reference, send-requests,
job-states and endpoint-configurations (August 2026) and, where marked "observed", from live observations that RunPod published.
"""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec

from contract.errors import UsageError

DAY_MS: Final = 86_400_000
EXECUTION_TIMEOUT_DEFAULT_MS: Final = 600_000
"""10 minutes (endpoint-configurations)."""
EXECUTION_TIMEOUT_RANGE_MS: Final = (5_000, 7 * DAY_MS)
TTL_DEFAULT_MS: Final = DAY_MS
"""24 hours, from the submission, queue and execution together (send-requests)."""
TTL_RANGE_MS: Final = (10_000, 7 * DAY_MS)
RETENTION_S: Final[dict[str, float]] = {"run": 30 * 60.0, "sync": 60.0}
"""How long a result can be read: 30 minutes after /run, 1 minute after /runsync; fixed, independent of ttl (send-requests)."""
PAYLOAD_LIMIT: Final[dict[str, int]] = {"run": 10_000_000, "sync": 20_000_000}
"""Bytes of a request and of a result: 10 MB for /run, 20 MB for /runsync (operation-reference); decimal, the stricter reading."""
LOST_AFTER_S: Final = 40.0
"""A taken job that no ping names for this long is lost. Observed: re-dispatched 40 to 46 s after pickup; not documented."""
REDELIVERIES: Final = 1
"""A lost job is delivered once more, then it fails with LOST_ERROR (observed; not documented)."""
LOST_ERROR: Final = "job timed out after {retries} retries"

Kind = Literal["run", "sync"]


class Status(StrEnum):
    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT})


class Policy(msgspec.Struct, frozen=True):
    """`policy` of a job request. Unknown fields are ignored, as RunPod's schema does not close the object."""

    executionTimeout: int | None = None
    ttl: int | None = None
    lowPriority: bool = False


class Request(msgspec.Struct, frozen=True):
    """The body of /run and /runsync: what the platform reads of it. Everything else is not looked at."""

    input: msgspec.Raw
    webhook: str | None = None
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `body` is the request as it came; `output` and `progress` are JSON text as they came."""

    id: str
    endpoint: str
    kind: Kind
    seq: int
    body: bytes
    webhook: str | None
    low_priority: bool
    execution_timeout_ms: int
    """0: no limit."""
    submitted_at: float
    expires_at: float
    queued_at: float
    """When the job last entered the queue."""
    status: Status = Status.IN_QUEUE
    taken_at: float | None = None
    worker: str | None = None
    finished_at: float | None = None
    output: bytes | None = None
    progress: bytes | None = None
    error: str | None = None
    retries: int = 0
    """Redeliveries by the platform."""

    @property
    def delay_ms(self) -> int | None:
        """From the submission to the latest pickup, cold start included; recomputed when the platform delivers again (observed)."""
        return None if self.taken_at is None else max(0, round((self.taken_at - self.submitted_at) * 1000))

    @property
    def execution_ms(self) -> int | None:
        """On the worker, in the latest delivery."""
        if self.taken_at is None or self.finished_at is None:
            return None
        return max(0, round((self.finished_at - self.taken_at) * 1000))

    @property
    def delete_at(self) -> float:
        """When nothing of the job is left: its ttl, or the end of its retention if that is sooner."""
        if self.finished_at is None:
            return self.expires_at
        return min(self.expires_at, self.finished_at + RETENTION_S[self.kind])

    @property
    def execution_deadline(self) -> float | None:
        if self.status is not Status.IN_PROGRESS or self.taken_at is None or self.execution_timeout_ms <= 0:
            return None
        return self.taken_at + self.execution_timeout_ms / 1000


_REQUEST: Final = msgspec.json.Decoder(Request)


def parse_request(body: bytes) -> Request:
    """Read a /run or /runsync body. Raises UsageError (the server answers 400) naming the field."""
    try:
        body.decode()  # parts that are only passed on are not looked at otherwise
        request = _REQUEST.decode(body)
    except msgspec.ValidationError as error:
        raise UsageError(f"The job request is not valid: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"The job request is not JSON: {error}.") from None
    policy = request.policy
    if policy is not None:
        _in_range("policy.executionTimeout", policy.executionTimeout, EXECUTION_TIMEOUT_RANGE_MS)
        _in_range("policy.ttl", policy.ttl, TTL_RANGE_MS)
    return request


def _in_range(name: str, value: int | None, limits: tuple[int, int]) -> None:
    low, high = limits
    if value is not None and not low <= value <= high:
        raise UsageError(f"{name} must be from {low} to {high} milliseconds, not {value}.")


def new_id(kind: Kind) -> str:
    """`<uuid>-u1` for /run, `sync-<uuid>-u1` for /runsync (the suffix is the region's)."""
    return f"{'sync-' if kind == 'sync' else ''}{uuid.uuid4()}-u1"


def submit(
    request: Request, body: bytes, *, job_id: str, endpoint: str, kind: Kind, seq: int, execution_timeout_ms: int, now: float
) -> Job:
    """A new job in the queue. `execution_timeout_ms` is the endpoint's; the request's policy goes before it."""
    policy = request.policy or Policy()
    ttl_ms = TTL_DEFAULT_MS if policy.ttl is None else policy.ttl
    return Job(
        id=job_id,
        endpoint=endpoint,
        kind=kind,
        seq=seq,
        body=body,
        webhook=request.webhook or None,
        low_priority=policy.lowPriority,
        execution_timeout_ms=execution_timeout_ms if policy.executionTimeout is None else policy.executionTimeout,
        submitted_at=now,
        expires_at=now + ttl_ms / 1000,
        queued_at=now,
    )


def take(job: Job, worker: str, now: float) -> Job:
    return dataclasses.replace(job, status=Status.IN_PROGRESS, worker=worker, taken_at=now, progress=None)


def report_progress(job: Job, output: bytes) -> Job:
    """`progress_update`: shown as `output` while the job runs."""
    return dataclasses.replace(job, progress=output)


def finish(job: Job, *, output: bytes | None, error: str | None, now: float) -> Job:
    """The worker's result: an error makes it FAILED, whatever else it carries."""
    status = Status.COMPLETED if error is None else Status.FAILED
    return dataclasses.replace(job, status=status, output=output, error=error, finished_at=now, progress=None)


def cancel(job: Job, now: float) -> Job:
    return dataclasses.replace(job, status=Status.CANCELLED, finished_at=now, progress=None)


def exceed(job: Job, status: Status, now: float) -> Job:
    """The execution took longer than executionTimeout."""
    error = f"job exceeded its execution timeout of {job.execution_timeout_ms} ms"
    return dataclasses.replace(job, status=status, error=error, finished_at=now, progress=None)


def lose(job: Job, now: float, redeliveries: int = REDELIVERIES) -> Job:
    """Its worker no longer knows of it: back to the queue, or FAILED when it has been delivered again often enough."""
    if job.retries < redeliveries:
        return dataclasses.replace(job, status=Status.IN_QUEUE, retries=job.retries + 1, worker=None, progress=None, queued_at=now)
    error = LOST_ERROR.format(retries=job.retries)
    return dataclasses.replace(job, status=Status.FAILED, error=error, finished_at=now, progress=None)


def retry(job: Job, now: float) -> Job:
    """`/retry`: the same id and input again; the old result is dropped."""
    if job.status not in (Status.FAILED, Status.TIMED_OUT):
        raise UsageError(f"Only a FAILED or TIMED_OUT job can be retried; this one is {job.status}.")
    return dataclasses.replace(
        job, status=Status.IN_QUEUE, worker=None, taken_at=None, finished_at=None, output=None, error=None, retries=0, queued_at=now
    )


def reset_ttl(job: Job, ttl_ms: int, now: float) -> Job:
    """`/status/{id}?ttl=`: the ttl counts anew from now."""
    return dataclasses.replace(job, expires_at=now + ttl_ms / 1000)


def status_view(job: Job) -> dict[str, object]:
    """The body of /status, ready to be encoded."""
    view: dict[str, object] = {"id": job.id, "status": job.status.value}
    if (delay := job.delay_ms) is not None:
        view["delayTime"] = delay
    if (execution := job.execution_ms) is not None:
        view["executionTime"] = execution
    if job.worker is not None:
        view["workerId"] = job.worker
    if job.status is Status.IN_PROGRESS:
        if job.progress is not None:
            view["output"] = msgspec.Raw(job.progress)
    elif job.output is not None:
        view["output"] = msgspec.Raw(job.output)
    if job.error is not None:
        view["error"] = job.error
    if job.retries:
        view["retries"] = job.retries
    return view


def webhook_body(job: Job) -> bytes:
    """The whole job: what /status says, the input as it was sent, and the webhook itself."""
    view = status_view(job)
    view["input"] = parse_request(job.body).input
    view["webhook"] = job.webhook
    return msgspec.json.encode(view)


def delivery(job: Job, forwarded: tuple[str, ...]) -> dict[str, object]:
    """What job-take hands to the worker: the id and the forwarded fields of the request.

    An empty `input` object arrives without `input` (observed): the SDK then drops the job, which ends as lost.
    """
    fields = msgspec.json.decode(job.body, type=dict[str, msgspec.Raw])
    given: dict[str, object] = {"id": job.id}
    for name in forwarded:
        value = fields.get(name)
        if value is not None and not (name == "input" and bytes(value).translate(None, b" \t\r\n") == b"{}"):
            given[name] = value
    return given
