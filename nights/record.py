"""nights: what became of one job on one date, as one frozen object in the stack's bucket. Pure but for `Records`, which touches a store.

`nights/JOB/DATE.json` under the stack's prefix. A record is a report of what is true elsewhere (runs, the space's table, results of
evaluations): a record that is lost costs nobody a row or a dollar, because the same night finds the same runs again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Final, Literal

import msgspec

from contract.errors import ContractError, Damaged, UsageError
from contract.models import VERSION, Count, Instant, Model, Seconds, Usd, decode, encode
from contract.store import Store, get_or_none

JobKind = Literal["embed", "generate", "eval"]
JobName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$")]
NightState = Literal["running", "done", "failed", "stopped", "asking"]
"""`running`: begun and not known to be over; `done`: all of it, a gate that failed included; `failed`: an error of input or of
infrastructure, a canary; `stopped`: by budget, deadline or a person, and resumable; `asking`: a person must say whether it goes on."""
EventKind = Literal[
    "success", "failure", "deadline_near", "deadline_missed", "budget", "gate", "canary", "asking", "not_started", "rows_failed"
]
DATED: Final = re.compile(r"(\d{4}-\d{2}-\d{2})\.json")
"""Names of records; beside them lie a job's lease, pages of nights and what was told to whom."""
NOT_STARTED: Final = "not_started"
"""Cause and event of a night that nobody began."""
LOOKED_BACK: Final = 30
"""Records in which the last good night is looked for."""
DEGREES: Final[dict[str, int]] = {"success": 0, "rows_failed": 1, "deadline_near": 1}
"""How bad an event is; 2 where it is not named."""


class NightEvent(Model, frozen=True, kw_only=True):
    """Something that a person may want to be told. `sentence` holds no row content. `key`: the same event of the same night has the same
    key, so that it is told once."""

    kind: EventKind
    key: str
    at: Instant
    sentence: str


class CanaryResult(Model, frozen=True, kw_only=True):
    """Kept rows embedded again: the worst of each measure, and whether all are within the job's thresholds.

    `cosine`: least similarity to the kept vectors; `norm`: largest relative change of length; `changed`: what differs from when they were
    kept (`image: a -> b`, `gpu: …`), known or not to be the cause.
    """

    rows: Count
    passed: bool
    cosine: float | None
    norm: float | None
    dimensions: Count
    kept_dimensions: Count
    changed: tuple[str, ...] = ()
    sentence: str


class SpaceNight(Model, frozen=True, kw_only=True):
    """What a night did to an embedding space. `version`: None where the table was not touched."""

    space: str
    table: str
    version_before: Count | None
    version: Count | None
    rows: Count
    added: Count
    changed: Count
    removed: Count
    unchanged: Count
    failed: Count = 0
    delta: str | None = None
    bytes_written: Count = 0
    canary: CanaryResult | None = None


class EvalNight(Model, frozen=True, kw_only=True):
    """What an evaluation came to. `low`, `high`: the interval at `confidence`; `counts`: rows ok, failed, cut, unparsed and so on."""

    suite: str
    result: str
    metric: str
    score: float
    low: float
    high: float
    confidence: float
    rows: Count
    counts: dict[str, Count] = msgspec.field(default_factory=dict)
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    baseline: str | None = None
    baseline_score: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None
    gate: Literal["passed", "failed", "none", "not comparable"] = "none"
    sentence: str = ""


class Brought(Model, frozen=True, kw_only=True):
    """What a run of another night had done and cost when this one went on with it."""

    rows: Count
    usd: Usd


class NightRecord(Model, frozen=True, kw_only=True):
    """One job on one date. `sentence`: the outcome for a person. `runs`: addresses, in the order they were begun.

    `facts`: what this night was made with (image, model, revision, gpu, dataset digest, rows …), so that the next one can say what changed.
    """

    version: int = VERSION
    job: JobName
    date: str
    kind: JobKind
    stack: str
    state: NightState
    exit_code: Count = 0
    sentence: str = ""
    cause: str = ""
    began: Instant
    ended: Instant | None = None
    by: str = ""
    due: Instant | None = None
    deadline: Instant | None = None
    seconds: Seconds = 0.0
    rows: Count = 0
    sent: Count = 0
    ok: Count = 0
    failed: Count = 0
    skipped: Count = 0
    usd_planned: Usd = 0.0
    usd_estimated: Usd = 0.0
    runs: tuple[str, ...] = ()
    brought: dict[str, Brought] = msgspec.field(default_factory=dict)
    """Of those of `runs` that were another night's: kept, so that a night that breaks off and goes on does not take them for its own."""
    out: str | None = None
    space: SpaceNight | None = None
    evaluation: EvalNight | None = None
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    changed: tuple[str, ...] = ()
    events: tuple[NightEvent, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")


def _is_date(text: str) -> bool:
    """Not so of `2026-02-31`, which somebody left in the bucket."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def parse_date(text: str) -> date:
    """`2026-11-30`. Raises UsageError."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.isoformat() != text:
        raise UsageError("is not a date.", where=f"--date {text}", fix="Write it as 2026-11-30.")
    return found


def differences(before: dict[str, str], now: dict[str, str]) -> tuple[str, ...]:
    """What of the facts changed since, as `image: a -> b`; facts that one of both does not know are left out."""
    return tuple(f"{name}: {before[name]} -> {value}" for name, value in now.items() if name in before and before[name] != value)


@dataclass(frozen=True)
class Records:
    """The records of a stack's nights."""

    store: Store
    prefix: str = ""
    """The stack's own prefix in its bucket, without a slash at its end."""

    def key(self, job: str, night: str) -> str:
        """Where one record is."""
        return f"{self.root(job)}{night}.json"

    def root(self, job: str | None = None) -> str:
        """Where all records are, or those of a job; ends with a slash."""
        base = f"{self.prefix}/nights/" if self.prefix else "nights/"
        return f"{base}{job}/" if job is not None else base

    def lease(self, job: str) -> str:
        """Where the lease of a job is (nights/lease)."""
        return f"{self.root(job)}lease.json"

    async def get(self, job: str, night: str) -> NightRecord | None:
        """None where there is none. Raises Damaged for one that cannot be read."""
        key = self.key(job, night)
        blob = await get_or_none(self.store, key)
        if blob is None:
            return None
        try:
            found: NightRecord = decode(blob.data, NightRecord, where=key)
        except ContractError as error:
            fix = error.fix or "Delete it: the same night then finds its runs again and pays for nothing twice."
            raise Damaged(f"this record of a night is damaged: {error.what}", where=f"s3://{self.store.bucket}/{key}", fix=fix) from None
        return found

    async def put(self, record: NightRecord) -> None:
        """Keep it, replacing the one of this job and date."""
        await self.store.put(self.key(record.job, record.date), encode(record))

    async def dates(self, job: str) -> tuple[str, ...]:
        """Dates of a job's records, oldest first."""
        root = self.root(job)
        names = [info.key.removeprefix(root) async for info in self.store.list(root)]
        return tuple(sorted(found[1] for name in names if (found := DATED.fullmatch(name)) and _is_date(found[1])))

    async def good(self, job: str, *, before: str) -> NightRecord | None:
        """The last night of an earlier date that is done: what tonight is compared with. One that cannot be read is none: tonight does not
        rest on it."""
        for night in reversed([night for night in await self.dates(job) if night < before][-LOOKED_BACK:]):
            try:
                record = await self.get(job, night)
            except Damaged:
                continue
            if record is not None and record.state == "done":
                return record
        return None
