"""nights/report: what a page says, as frozen values: a run, a night, an index. Pure: `build` makes them, `page` shows them.

A `RunReport` is small whatever the run's size (spans are merged, counts are in buckets), and is kept as report.json beside the run, so that
an index over many runs reads one object for each that is complete. Times of a timeline are seconds since it began; positions of spans are
thousandths of its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from contract.words import usd
from nights.record import NightRecord

REPORT_VERSION: Final = 1
Tone = Literal["good", "warn", "bad", "busy"]
"""As wanted; finished or stopped and not as wanted; failed; under way."""
SpanKind = Literal["loading", "won", "partial", "lost", "unended", "running"]
SliceKind = Literal["loading", "reading", "computing", "writing", "other", "partial", "lost", "unended"]


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A part of what a run cost: worker seconds and their price."""

    kind: SliceKind
    seconds: float
    usd: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Planned and estimated. The slices' sums are `worker_seconds` and `estimated`. `idle`: what warm workers waited between executions
    of this run, which no marker bills and RunPod does; not in `estimated`. `reserved`: for jobs that may still cost. `unmarked`: results
    whose executions left no start marker that can be read, so that `estimated` lacks them; `none`: so are all of them."""

    low: float
    planned: float
    high: float
    estimated: float
    reserved: float
    budget: float | None
    usd_per_second: float
    worker_seconds: float
    slices: tuple[Slice, ...]
    idle_seconds: float
    idle_usd: float
    unmarked: int = 0
    none: bool = False

    @property
    def spent(self) -> str:
        """What is known to have been spent, as a page says it."""
        return "not known" if self.none else f"{'at least ' if self.unmarked else ''}{usd(self.estimated)}"


@dataclass(frozen=True, kw_only=True)
class BilledHour:
    """What RunPod billed for an endpoint in the hour that began then."""

    began: datetime
    usd: float
    gpu: float = 0.0
    cpu: float = 0.0
    disk: float = 0.0
    fee: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Bill:
    """RunPod's answer for one endpoint, brought by whoever may ask for it. `error`: why there is none."""

    endpoint_id: str
    asked_at: datetime
    hours: tuple[BilledHour, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class HourLine:
    """One hour in which the run had jobs out. `usd` None: RunPod has no record of it; `covered_s`: how much of it is the run's; `others`:
    other runs that had jobs out on the endpoint in it."""

    began: datetime
    usd: float | None
    covered_s: float
    others: int = 0


BillKind = Literal["estimated", "idle", "idle_end", "disk_fee", "rest"]


@dataclass(frozen=True, kw_only=True)
class BillPart:
    """A likely part of what was billed. The parts add up to `Billed.usd_hours`; `rest` may be negative."""

    kind: BillKind
    name: str
    usd: float


@dataclass(frozen=True, kw_only=True)
class Billed:
    """What RunPod billed in the hours of a run, and how much of it is the run's.

    `usd_hours`: the sum of `hours`. `usd_billed`: the same where it is the run's own, because the run had the endpoint alone (`alone`), its
    hours are covered whole (`whole`) and the bill is not to grow (`settled`); None else, and `reasons` say why. `at_least`, `at_most`: the
    bounds of the run's own bill that these hours prove, None where they prove none. `difference`: to the estimate, of `usd_billed`."""

    endpoint_id: str
    asked_at: datetime
    sentence: str
    hours: tuple[HourLine, ...] = ()
    usd_hours: float | None = None
    usd_billed: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    difference: float | None = None
    alone: bool = False
    whole: bool = False
    settled: bool = False
    others: tuple[str, ...] = ()
    more_others: int = 0
    reasons: tuple[str, ...] = ()
    parts: tuple[BillPart, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One worker's time. `spans`: by kind, [start, stop) in thousandths of the timeline, neighbours merged."""

    worker: str
    executions: int
    won: int
    starts: int
    busy_s: float
    spans: tuple[tuple[SpanKind, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One step of the timeline: shards and rows committed in it, executions that ended in it for nothing, workers busy on average."""

    shards: int
    rows: int
    lost: int
    busy: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """When what happened. `workers`: all that executed; `lanes`: the busiest of them, in the order in which they came."""

    began: datetime
    seconds: float
    step: float
    buckets: tuple[Bucket, ...]
    workers: int
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a duration is spread. `bins`: how many lie between two neighbours of `Delays.edges`, the last one open."""

    count: int
    median: float
    p90: float
    p99: float
    most: float
    total: float
    bins: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Delays:
    """`delay`: from the moment a job was sent to its execution's start, cold starts included; `execution`: from there to its end."""

    edges: tuple[float, ...]
    delay: Spread | None
    execution: Spread | None


@dataclass(frozen=True, kw_only=True)
class Example:
    """A failed row. `id` and `message` are row content."""

    shard: str
    row: int | None
    id: str
    message: str


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failed rows of one code."""

    code: str
    rows: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True)
class JobError:
    """What workers said of jobs that died. `text` may hold row content."""

    cause: str
    attempts: int
    shards: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class FileLine:
    """A file of the dataset."""

    name: str
    size: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """All that the page of a run says. `with_rows`: whether ids and messages of failed rows, and what workers said, are in it;
    `gaps`: what could not be read, so that something of the page is missing."""

    version: int = REPORT_VERSION
    made_at: datetime
    run: str
    run_id: str
    plan_id: str
    state: str
    tone: Tone
    sentence: str
    task: str
    model: str
    revision: str | None
    params: dict[str, str]
    stack: str
    endpoint: str
    gpu: str
    images: tuple[str, ...]
    planned_image: str | None
    versions: tuple[str, ...]
    created_at: datetime
    began: datetime | None
    ended: datetime | None
    seconds: float
    planned_seconds: tuple[float, float, float]
    basis: str
    files: tuple[FileLine, ...]
    more_files: int
    rows: int
    ok: int
    failed: int
    skipped: int
    tokens_in: int
    tokens_out: int
    shards_planned: int
    shards: int
    shards_by_state: dict[str, int]
    splits: int
    attempts: int
    attempts_by_state: dict[str, int]
    executions: int
    pace: int
    workers_planned: int
    verified: bool | None
    seal: str | None
    out: str | None
    errors: str | None
    cost: Cost
    timeline: Timeline | None
    delays: Delays | None
    failures: tuple[FailureGroup, ...]
    failures_known: int
    """Failed rows that `failures` counts; fewer than `failed` where not every errors object was read."""
    job_errors: tuple[JobError, ...]
    with_rows: bool
    gaps: tuple[str, ...] = ()
    billed: Billed | None = None
    """None: RunPod was not asked."""

    @property
    def done(self) -> int:
        return self.ok + self.failed

    @property
    def missing(self) -> int:
        return self.rows - self.done

    @property
    def retries(self) -> int:
        """Attempts beyond one for each shard."""
        return max(0, self.attempts - self.shards)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One number of two nights."""

    name: str
    before: str
    now: str
    difference: str


def last_good(before: Sequence[NightRecord]) -> NightRecord | None:
    """Of earlier nights, oldest first."""
    return next((one for one in reversed(before) if one.state == "done"), None)


@dataclass(frozen=True, kw_only=True)
class NightReport:
    """All that the page of a night says. `before`: earlier nights, oldest first; `runs`: those of this night that could be read."""

    made_at: datetime
    record: NightRecord
    tone: Tone
    sentence: str
    before: tuple[NightRecord, ...] = ()
    runs: tuple[RunReport, ...] = ()
    changes: tuple[Change, ...] = ()
    reasons: tuple[str, ...] = ()
    """What was made otherwise than on the last good night: image, model, dataset …"""
    gaps: tuple[str, ...] = ()

    @property
    def last(self) -> NightRecord | None:
        """The last good night, which this one is compared with: one that failed has no numbers to stand beside."""
        return last_good(self.before)

    @property
    def series(self) -> tuple[NightRecord, ...]:
        """With this night, oldest first."""
        return (*self.before, self.record)


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """A run in the index. `page`: where its own page is, from the index; None where there is none."""

    run: str
    run_id: str
    created_at: datetime
    state: str
    tone: Tone
    task: str
    model: str
    rows: int
    ok: int
    failed: int
    usd_planned: float
    usd_estimated: float
    spent: str
    page: str | None = None


@dataclass(frozen=True, kw_only=True)
class NightLine:
    """A night in the index."""

    record: NightRecord
    tone: Tone
    sentence: str
    page: str | None = None


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """All that the index says, newest first."""

    made_at: datetime
    title: str
    nights: tuple[NightLine, ...] = ()
    runs: tuple[RunLine, ...] = ()
    more_nights: int = 0
    more_runs: int = 0
    gaps: tuple[str, ...] = field(default=())
