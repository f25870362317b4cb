"""nights/report: from what a store holds of a run or of nights to what their pages say. Pure: no store, no clock, no HTML."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final

import msgspec

from contract.models import Commit, Control, EndMarker, PartCommit, Plan, SplitCommit, StartMarker
from contract.protocol import (
    BUDGET,
    REFUSED,
    STALLED,
    Attempt,
    AttemptState,
    Key,
    RunState,
    Survey,
    rules_for,
    run_word,
    shard_states,
    survey,
)
from contract.words import counted, duration, usd
from nights.record import NightRecord, differences
from nights.report.model import (
    Bucket,
    Change,
    Cost,
    Delays,
    Example,
    FailureGroup,
    FileLine,
    IndexReport,
    JobError,
    Lane,
    NightLine,
    NightReport,
    RunLine,
    RunReport,
    Slice,
    SliceKind,
    SpanKind,
    Spread,
    Timeline,
    Tone,
    last_good,
)
from nights.report.spans import Span, fill, joined, length, quantile, shares, step, waits
from nights.report.text import instant, measure, percent, shortened, signed
from pipelines.summary import RunSummary

MOST_LANES: Final = 24
"""Workers that have a line of their own; the histogram below counts all."""
MOST_BUCKETS: Final = 120
LEAST_BUCKETS: Final = 24
"""Of a run of few shards: more would be a comb."""
CELLS: Final = 1000
"""A timeline's width. Spans of one kind that are nearer than `JOIN` of it are drawn as one."""
JOIN: Final = 3
MOST_FILES: Final = 12
LEAST_SLICE_S: Final = 0.01
MOST_EXAMPLES: Final = 3
MOST_ERRORS: Final = 12
EDGES: Final = (0.0, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
"""Bins of durations, in seconds."""


@dataclass(frozen=True)
class FailedRow:
    """A row of an errors object."""

    shard: str
    row: int
    id: str
    code: str
    message: str


@dataclass(frozen=True)
class RunFacts:
    """What a store holds of a run, as far as it could be read. `failed_rows`: those of the errors objects that were read;
    `gaps`: a sentence for each thing that could not be read."""

    plan: Plan
    control: Control
    now: datetime
    attempts: Mapping[Key, Attempt] = field(default_factory=dict)
    starts: Mapping[str, StartMarker] = field(default_factory=dict)
    ends: Mapping[str, EndMarker] = field(default_factory=dict)
    commits: Mapping[str, Commit] = field(default_factory=dict)
    summary: RunSummary | None = None
    failed_rows: tuple[FailedRow, ...] = ()
    gaps: tuple[str, ...] = ()


# --- a run ---------------------------------------------------------------------------------------------------------------------------


def run_report(facts: RunFacts, *, rows: bool = True) -> RunReport:
    """The page of a run. `rows`: with ids and messages of failed rows, and what workers said of jobs that died."""
    plan, estimate = facts.plan, facts.plan.estimate
    state = RunState(
        plan=plan,
        rules=rules_for(plan),
        client="",
        control=facts.control,
        started_at=facts.now,
        attempts=facts.attempts,
        commits=facts.commits,
        commits_at=facts.now,
        starts=facts.starts,
        ends=facts.ends,
    )
    seen = survey(state, facts.now)
    word = run_word(state, seen)
    parts = [leaf.commit for leaf in seen.tree.closed if leaf.commit is not None]
    ok, failed = sum(part.ok for part in parts), sum(part.failed for part in parts)
    executions = _executions(facts, parts)
    cost = _cost(facts, seen, parts, executions)
    began, ended = _limits(facts, parts, executions, under_way=word == "running")
    verified = facts.summary.verified if facts.summary is not None and word == "complete" else None
    failures, known = _failures(facts, failed, rows=rows)
    seconds = (ended - began).total_seconds() if began is not None and ended is not None else 0.0
    cause, reason = _reason(facts.control, rows=rows)
    report = RunReport(
        made_at=facts.now,
        run=plan.run,
        run_id=plan.run_id,
        plan_id=plan.plan_id,
        state=word,
        tone=_tone(word, failed, verified),
        sentence="",
        task=plan.task.kind,
        model=plan.task.model,
        revision=plan.task.revision,
        params={name: shortened(_text(value), 200) for name, value in sorted(plan.task.params.items())},
        stack=plan.infra.stack,
        endpoint=plan.infra.endpoint,
        gpu=f"{plan.infra.gpu_count} x {plan.infra.gpu}",
        images=_named(Counter(part.image for part in parts if part.image)),
        planned_image=plan.infra.image,
        versions=_named(Counter(f"{name} {value}" for part in parts for name, value in part.versions.items()), bare=len(parts)),
        created_at=plan.created_at,
        began=began,
        ended=None if word == "running" else ended,
        seconds=seconds,
        planned_seconds=(estimate.seconds.low, estimate.seconds.likely, estimate.seconds.high),
        basis=estimate.basis,
        files=tuple(FileLine(name=one.name, size=one.size, rows=one.rows) for one in plan.dataset.files[:MOST_FILES]),
        more_files=max(0, len(plan.dataset.files) - MOST_FILES),
        rows=plan.dataset.rows,
        ok=ok,
        failed=failed,
        skipped=plan.dataset.skipped,
        tokens_in=sum(part.tokens_in for part in parts),
        tokens_out=sum(part.tokens_out for part in parts),
        shards_planned=len(plan.shards),
        shards=len(seen.tree.leaves),
        shards_by_state={name: count for name, count in shard_states(seen).items() if count},
        splits=sum(isinstance(commit, SplitCommit) for commit in facts.commits.values()),
        attempts=len(seen.standings),
        attempts_by_state=_attempt_states(seen),
        executions=len(facts.starts),
        pace=plan.pace,
        workers_planned=estimate.workers,
        verified=verified,
        seal=facts.summary.seal if facts.summary is not None else None,
        out=facts.summary.out if facts.summary is not None else None,
        errors=facts.summary.errors if facts.summary is not None else None,
        cost=cost,
        timeline=_timeline(parts, executions, began, ended),
        delays=_delays(facts, executions),
        failures=failures,
        failures_known=known,
        job_errors=_job_errors(seen, rows=rows),
        with_rows=rows,
        gaps=(*facts.gaps, *_gaps(facts, parts, seen)),
    )
    return replace(report, sentence=run_sentence(report, cause=cause, reason=reason, exhausted=len(seen.exhausted)))


def run_sentence(report: RunReport, *, cause: str = "", reason: str = "", exhausted: int = 0) -> str:
    """The outcome. `cause` and `reason`: why it was ended, as control.json says."""
    rows, spent = counted(report.rows, "row"), _against_plan(report.cost)
    in_time = f" in {duration(report.seconds)}" if report.seconds else ""
    cost = "what it cost is not known" if report.cost.none else f"{report.cost.spent} so far"
    so_far = f"{report.done:,} of {rows} have a result, {cost}"
    if report.state == "complete":
        if report.verified is False:
            return f"Every shard is done, but what is stored does not prove every row: run `nightbatch verify {report.run_id}`."
        if report.failed:
            whole = "None of the" if not report.ok else f"{report.ok:,} of"
            return f"{whole} {rows} succeeded and {report.failed:,} failed ({percent(report.failed, report.rows)}){in_time}, {spent}."
        return f"{'The' if report.rows == 1 else 'All'} {rows} {'has its' if report.rows == 1 else 'have a'} result{in_time}, {spent}."
    if report.state == "planned":
        return f"Planned and not begun: {rows} in {counted(report.shards_planned, 'shard')}, about {usd(report.cost.planned)}."
    if report.state == "running":
        return f"Still running: {so_far} of about {usd(report.cost.planned)}."
    why = f" ({reason})" if reason else ""
    if report.state == "failed" and exhausted:
        given = "1 shard failed in each of its attempts" if exhausted == 1 else f"{exhausted:,} shards failed in each of their attempts"
        return f"Failed: {given}; {so_far}."
    words = {
        "failed": "Failed: the workers refuse its jobs" if cause == REFUSED else "Failed",
        "stalled": "Stalled: the queue did not move",
        "stopped": "Stopped at its deadline" if cause == "deadline" else "Stopped by its budget",
        "cancelled": "Cancelled",
        "interrupted": "Interrupted, and nobody follows it now",
    }
    return f"{words.get(report.state, report.state.capitalize())}{why}; {so_far}."


def _against_plan(cost: Cost) -> str:
    """`for $3.21, 12 % less than planned`."""
    if cost.none:
        return "at a cost that is not known any more"
    text = f"for {cost.spent}"
    if cost.planned <= 0 or cost.estimated <= 0 or cost.unmarked:
        return text
    off = cost.estimated / cost.planned - 1
    if abs(off) < 0.01:
        return f"{text}, as planned"
    if off > 1:
        return f"{text}, {off + 1:.1f} times the plan"
    return f"{text}, {abs(off) * 100:.0f} % {'more' if off > 0 else 'less'} than planned"


def _tone(word: str, failed: int, verified: bool | None) -> Tone:
    if word == "complete":
        return "bad" if verified is False else "warn" if failed else "good"
    if word in ("running", "planned"):
        return "busy"
    return "bad" if word in ("failed", "stalled") else "warn"


def _reason(control: Control, *, rows: bool) -> tuple[str, str]:
    """Cause and reason of control.json. A refusal's reason is what a worker said."""
    text = control.reason or ""
    if control.mode == "run" or not text:
        return "", ""
    for cause in (BUDGET, REFUSED):
        if text.startswith(f"{cause}: "):
            return cause, "" if cause == REFUSED and not rows else shortened(text.removeprefix(f"{cause}: ").rstrip("."), 400)
    if text.startswith(f"{STALLED} "):
        return STALLED, shortened(text.removeprefix(f"{STALLED} ").rstrip("."), 400)
    return text if text == "deadline" else "", ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _named(counts: Counter[str], bare: int | None = None) -> tuple[str, ...]:
    """The names, most frequent first, with how many shards have each where there are several. `bare`: a name that all have stands alone."""
    several = len(counts) > 1
    return tuple(
        f"{name} ({counted(count, 'shard')})" if several and count != bare else name for name, count in counts.most_common()
    )  # fmt: skip


def _attempt_states(seen: Survey) -> dict[str, int]:
    """Attempts by how they stand; deaths with their cause."""
    counts: Counter[str] = Counter()
    for found in seen.standings.values():
        dead = found.state in (AttemptState.DEAD, AttemptState.EXPIRED) and found.cause
        counts[f"{found.state.value}: {found.cause}" if dead else found.state.value] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _gaps(facts: RunFacts, parts: Sequence[PartCommit], seen: Survey) -> tuple[str, ...]:
    """What a whole run would have and this one has not."""
    found: list[str] = []
    without = {part.execution for part in parts} - set(facts.starts)
    if parts and not facts.starts:
        told = f" Its summary of {instant(facts.summary.at)} says {usd(facts.summary.usd_estimated)}." if facts.summary is not None else ""
        found.append(f"The start and end markers are gone: what the run cost, its workers and its delays are not known any more.{told}")
    elif without:
        found.append(f"{counted(len(without), 'result')} without a start marker: cost and timeline leave those executions out.")
    if parts and not facts.attempts:
        found.append("The journal is gone: when jobs were sent, and how often, is not known any more.")
    if seen.tree.foreign:
        found.append(f"{counted(len(seen.tree.foreign), 'commit')} of another plan lie in this run's folder and are ignored.")
    return tuple(found)


# --- executions, money, time ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Execution:
    """One execution in the store's seconds. `load` and `work`: its engine's start and its own time; `charged`: it has no end marker and is
    past its time, so that all of it counts, as in contract.protocol.worker_seconds."""

    start: StartMarker
    end: EndMarker | None
    kind: SpanKind
    load: Span
    work: Span
    charged: bool = False


def _executions(facts: RunFacts, parts: Sequence[PartCommit]) -> list[_Execution]:
    """All executions, by their beginning."""
    committed = {(part.shard, part.execution): part for part in parts}
    by_shard = {part.shard for part in parts}
    timeout = facts.plan.infra.execution_timeout_s
    found: list[_Execution] = []
    for name, start in facts.starts.items():
        end = facts.ends.get(name)
        at = start.at.timestamp()
        if end is None:
            over = facts.now >= start.at + timedelta(seconds=timeout)
            part = committed.get((start.shard, name))
            stop = part.at.timestamp() if part is not None else at + timeout if over else facts.now.timestamp()
            silent: SpanKind = "won" if part is not None else "unended" if over else "running"
            found.append(_Execution(start, None, silent, (at - start.load_s, at), (at, max(at, stop)), charged=over))
            continue
        stop = end.at.timestamp()
        # A won end marker of a shard without a commit that can be read: nothing says that another execution took its place.
        won = (start.shard, name) in committed or (end.outcome == "won" and start.shard not in by_shard)
        kind: SpanKind = "won" if won else "partial" if end.outcome == "partial" else "lost"
        found.append(_Execution(start, end, kind, (stop - end.wall_s - start.load_s, stop - end.wall_s), (stop - end.wall_s, stop)))
    return sorted(found, key=lambda one: (one.load[0], one.start.execution))


def _by_worker(executions: Iterable[_Execution]) -> dict[str, list[_Execution]]:
    found: dict[str, list[_Execution]] = {}
    for one in executions:
        found.setdefault(one.start.worker_id, []).append(one)
    return found


def _cost(facts: RunFacts, seen: Survey, parts: Sequence[PartCommit], executions: Sequence[_Execution]) -> Cost:
    """Where the money went: each worker's paid time, shared among what ran on it at that time, then by phase."""
    price, estimate = facts.plan.infra.usd_per_second, facts.plan.estimate.usd
    none = bool(parts) and not facts.starts
    order: tuple[SliceKind, ...] = ("loading", "reading", "computing", "writing", "other", "partial", "lost", "unended")
    seconds: dict[SliceKind, float] = dict.fromkeys(order, 0.0)
    idle = 0.0
    for there in _by_worker(executions).values():
        ended = [one for one in there if one.end is not None]
        spans = [span for one in ended for span in (one.load, one.work)]
        each = shares(spans)
        for at, one in enumerate(ended):
            seconds["loading"] += each[2 * at]
            for kind, share in _phases(one, each[2 * at + 1]):
                seconds[kind] += share
        for one in there:
            if one.charged:
                seconds["loading"] += one.start.load_s
                seconds["unended"] += facts.plan.infra.execution_timeout_s
        idle += waits(joined(span for span in spans if span[1] > span[0]), [one.load[0] for one in ended if one.start.load_s > 0])
    largest = max(order, key=lambda kind: seconds[kind])
    for kind in order:
        if kind != largest and seconds[kind] < LEAST_SLICE_S:  # what clocks that differ by a hair leave over
            seconds[largest] += seconds[kind]
            seconds[kind] = 0.0
    return Cost(
        low=estimate.low,
        planned=estimate.likely,
        high=estimate.high,
        estimated=seen.settled_usd,
        reserved=0.0 if none else seen.reserved_usd,  # without any marker every attempt would seem to be out still
        budget=facts.plan.budget_usd,
        usd_per_second=price,
        worker_seconds=sum(seconds.values()),
        slices=tuple(Slice(kind=kind, seconds=seconds[kind], usd=seconds[kind] * price) for kind in order if seconds[kind] > 0),
        idle_seconds=idle,
        idle_usd=idle * price,
        unmarked=sum(part.execution not in facts.starts for part in parts),
        none=none,
    )


def _phases(one: _Execution, share: float) -> list[tuple[SliceKind, float]]:
    """An execution's share of its worker's time, by phase; all of it under one name where its work was for nothing."""
    if one.kind == "lost":
        return [("lost", share)]
    if one.kind == "partial":
        return [("partial", share)]
    assert one.end is not None
    phases = one.end.seconds
    told = phases.reading + phases.computing + phases.writing
    scale = share / max(told, one.end.wall_s) if max(told, one.end.wall_s) > 0 else 0.0
    found: list[tuple[SliceKind, float]] = [
        ("reading", phases.reading * scale), ("computing", phases.computing * scale), ("writing", phases.writing * scale)
    ]  # fmt: skip
    return [*found, ("other", max(0.0, share - sum(part for _, part in found)))]


def _limits(
    facts: RunFacts, parts: Sequence[PartCommit], executions: Sequence[_Execution], *, under_way: bool
) -> tuple[datetime | None, datetime | None]:
    """When the run's work began and ended."""
    first = [attempt.intent.sent_at for attempt in facts.attempts.values()] + [_at(one.load[0]) for one in executions]
    if not first:
        first = [part.at for part in parts]
    last = [part.at for part in parts] + [end.at for end in facts.ends.values()] + [start.at for start in facts.starts.values()]
    if not first:
        return None, None
    if under_way:
        last.append(facts.now)
    return min(first), max([*last, *first])


def _at(seconds: float) -> datetime:
    """A marker may say anything: what no calendar holds is its last second."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_S), UTC)


_LAST_S: Final = 253_402_300_799.0
"""9999-12-31 23:59:59."""


def _timeline(
    parts: Sequence[PartCommit], executions: Sequence[_Execution], began: datetime | None, ended: datetime | None
) -> Timeline | None:
    if began is None or ended is None or not (parts or executions):
        return None
    origin = began.timestamp()
    seconds = max(1.0, ended.timestamp() - origin)
    width = step(seconds, min(MOST_BUCKETS, max(LEAST_BUCKETS, len(parts))))
    count = max(1, ceil(round(seconds / width, 6)))
    shards, rows, lost, busy = [0] * count, [0] * count, [0] * count, [0.0] * count

    def place(at: float) -> int:
        return min(count - 1, max(0, int((at - origin) // width)))

    for part in parts:
        at = place(part.at.timestamp())
        shards[at] += 1
        rows[at] += part.ok + part.failed
    workers = _by_worker(executions)
    lanes: list[tuple[float, Lane]] = []
    for worker, there in workers.items():
        for one in there:
            if one.end is not None and one.kind in ("lost", "partial"):
                lost[place(one.work[1])] += 1
        union = joined(span for one in there for span in (one.load, one.work) if span[1] > span[0])
        fill(busy, ((start, min(stop, origin + seconds)) for start, stop in union), origin, width)
        lanes.append((there[0].load[0], _lane(worker, there, length(union), origin, seconds)))
    most = sorted(lanes, key=lambda lane: (-lane[1].busy_s, lane[1].worker))[:MOST_LANES]
    return Timeline(
        began=began,
        seconds=seconds,
        step=width,
        buckets=tuple(
            Bucket(shards=shards[at], rows=rows[at], lost=lost[at], busy=busy[at] / min(width, seconds - at * width))
            for at in range(count)
        ),
        workers=len(workers),
        lanes=tuple(lane for _, lane in sorted(most, key=lambda lane: (lane[0], lane[1].worker))),
    )


def _lane(worker: str, there: Sequence[_Execution], busy: float, origin: float, seconds: float) -> Lane:
    def cells(span: Span) -> tuple[int, int]:
        start, stop = (min(CELLS, max(0, round((at - origin) / seconds * CELLS))) for at in span)
        return (start, max(stop, start + 1)) if start < CELLS else (CELLS - 1, CELLS)

    by_kind: dict[SpanKind, list[Span]] = {}
    for one in there:
        if one.load[1] > one.load[0]:
            by_kind.setdefault("loading", []).append(cells(one.load))
        by_kind.setdefault(one.kind, []).append(cells(one.work))
    order: tuple[SpanKind, ...] = ("won", "running", "partial", "lost", "unended", "loading")
    return Lane(
        worker=worker,
        executions=len(there),
        won=sum(one.kind == "won" for one in there),
        starts=sum(one.start.load_s > 0 for one in there),
        busy_s=busy,
        spans=tuple(
            (kind, tuple((int(start), int(stop)) for start, stop in joined(by_kind[kind], JOIN))) for kind in order if kind in by_kind
        ),
    )


def _delays(facts: RunFacts, executions: Sequence[_Execution]) -> Delays | None:
    """From the first start marker of each attempt, and from every end marker."""
    sent: dict[tuple[str, int], float] = {}
    for attempt in facts.attempts.values():
        mark = (attempt.intent.shard, attempt.intent.attempt)
        at = attempt.intent.sent_at.timestamp()
        sent[mark] = min(at, sent.get(mark, at))
    first: dict[tuple[str, int], float] = {}
    for one in executions:
        mark = (one.start.shard, one.start.attempt)
        at = one.start.at.timestamp()
        first[mark] = min(at, first.get(mark, at))
    waited = sorted(max(0.0, at - sent[mark]) for mark, at in first.items() if mark in sent)
    worked = sorted(one.end.wall_s for one in executions if one.end is not None)
    if not waited and not worked:
        return None
    most = max([*waited[-1:], *worked[-1:]])
    edges = EDGES[: max(4, bisect_right(EDGES, most) + 1)]
    return Delays(edges=edges, delay=_spread(waited, edges), execution=_spread(worked, edges))


def _spread(ordered: Sequence[float], edges: Sequence[float]) -> Spread | None:
    if not ordered:
        return None
    bins = [0] * len(edges)
    for value in ordered:
        bins[bisect_right(edges, value) - 1] += 1
    return Spread(
        count=len(ordered),
        median=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p99=quantile(ordered, 0.99),
        most=ordered[-1],
        total=sum(ordered),
        bins=tuple(bins),
    )


# --- failures ------------------------------------------------------------------------------------------------------------------------


def _failures(facts: RunFacts, failed: int, *, rows: bool) -> tuple[tuple[FailureGroup, ...], int]:
    """Failed rows by code, and how many of them are counted. The summary's counts are taken where they are of all rows that failed."""
    counts = Counter(row.code for row in facts.failed_rows)
    examples: dict[str, list[Example]] = {}
    for row in facts.failed_rows:
        there = examples.setdefault(row.code, [])
        if len(there) < MOST_EXAMPLES and all(one.message != shortened(row.message) for one in there):
            there.append(Example(shard=row.shard, row=row.row, id=shortened(row.id, 120), message=shortened(row.message)))
    kept = facts.summary.failures if facts.summary is not None else ()
    if sum(one.rows for one in kept) == failed and sum(counts.values()) < failed:
        counts = Counter({one.code: one.rows for one in kept})
        for one in kept:
            if one.code not in examples:
                examples[one.code] = [Example(shard="", row=None, id=shortened(one.example_id, 120), message=shortened(one.example))]
    groups = tuple(
        FailureGroup(code=shortened(code, 80), rows=count, examples=tuple(examples.get(code, ())) if rows else ())
        for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
    return groups, sum(counts.values())


def _job_errors(seen: Survey, *, rows: bool) -> tuple[JobError, ...]:
    """What was said of attempts that died, the same words once."""
    groups: dict[tuple[str, str], list[str]] = {}
    for found in seen.standings.values():
        error = found.error or found.attempt.error
        if error or found.state is AttemptState.REJECTED:
            cause = found.cause or found.attempt.cause or found.state.value
            groups.setdefault((cause, shortened(error or "")), []).append(found.attempt.intent.shard)
    if not rows:
        bare: dict[tuple[str, str], list[str]] = {}
        for (cause, _), shards in groups.items():
            bare.setdefault((cause, ""), []).extend(shards)
        groups = bare
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_ERRORS]
    return tuple(
        JobError(cause=cause, attempts=len(shards), shards=tuple(sorted(set(shards))[:5]), text=text) for (cause, text), shards in ordered
    )


# --- nights --------------------------------------------------------------------------------------------------------------------------


def night_tone(record: NightRecord) -> Tone:
    """How a night went, at a glance."""
    if record.state == "running":
        return "busy"
    if record.state == "failed":
        return "bad"
    gate = record.evaluation is not None and record.evaluation.gate == "failed"
    if gate or record.state in ("stopped", "asking") or record.failed or record.exit_code:
        return "warn"
    return "good"


def night_sentence(record: NightRecord) -> str:
    """The record's own, or one made of its numbers."""
    if record.sentence:
        return record.sentence
    words = {"running": "Begun and not known to be over", "done": "Done", "failed": "Failed", "stopped": "Stopped", "asking": "It asks"}
    return f"{words[record.state]}: {record.ok:,} of {counted(record.rows, 'row')} ok, {record.failed:,} failed."


def night_report(
    record: NightRecord,
    *,
    now: datetime,
    before: Sequence[NightRecord] = (),
    runs: Sequence[RunReport] = (),
    gaps: Sequence[str] = (),
) -> NightReport:
    """The page of a night. `before`: earlier nights of the job, oldest first."""
    last = last_good(before)
    return NightReport(
        made_at=now,
        record=record,
        tone=night_tone(record),
        sentence=night_sentence(record),
        before=tuple(before),
        runs=tuple(runs),
        changes=() if last is None else changes(last, record),
        reasons=record.changed or (() if last is None else differences(last.facts, record.facts)),
        gaps=tuple(gaps),
    )


def changes(before: NightRecord, now: NightRecord) -> tuple[Change, ...]:
    """The numbers of two nights beside each other; what neither of both has is left out."""
    found: list[Change] = []

    def whole(name: str, a: int, b: int) -> None:
        if a or b:
            share = f" ({percent(abs(b - a), a)})" if a else ""
            off = "same" if a == b else signed(b - a, f"{abs(b - a):,}") + share
            found.append(Change(name=name, before=f"{a:,}", now=f"{b:,}", difference=off))

    whole("Rows of the dataset", before.rows, now.rows)
    whole("Rows sent", before.sent, now.sent)
    whole("Rows failed", before.failed, now.failed)
    whole("Rows skipped", before.skipped, now.skipped)
    if before.space and now.space and before.space.space == now.space.space:
        whole("Rows of the space", before.space.rows, now.space.rows)
    if before.usd_estimated or now.usd_estimated:
        off = now.usd_estimated - before.usd_estimated
        found.append(Change(name="Cost, estimated", before=usd(before.usd_estimated), now=usd(now.usd_estimated),
                            difference=signed(off, usd(abs(off))) if off else "same"))  # fmt: skip
    if before.ended and now.ended:
        off = now.seconds - before.seconds
        found.append(Change(name="Duration", before=duration(before.seconds), now=duration(now.seconds),
                            difference=signed(off, duration(abs(off))) if abs(off) >= 0.05 else "same"))  # fmt: skip
    if before.evaluation and now.evaluation and before.evaluation.metric == now.evaluation.metric:
        off = now.evaluation.score - before.evaluation.score
        found.append(Change(name=f"Score ({now.evaluation.metric})", before=measure(before.evaluation.score),
                            now=measure(now.evaluation.score), difference=signed(off, measure(abs(off))) if off else "same"))  # fmt: skip
    return tuple(found)


# --- the index -----------------------------------------------------------------------------------------------------------------------


def run_line(report: RunReport, page: str | None = None) -> RunLine:
    """A run's line of the index."""
    return RunLine(
        run=report.run,
        run_id=report.run_id,
        created_at=report.created_at,
        state=report.state,
        tone=report.tone,
        task=report.task,
        model=report.model,
        rows=report.rows,
        ok=report.ok,
        failed=report.failed,
        usd_planned=report.cost.planned,
        usd_estimated=report.cost.estimated,
        spent=report.cost.spent,
        page=page,
    )


def night_line(record: NightRecord, page: str | None = None) -> NightLine:
    """A night's line of the index."""
    return NightLine(record=record, tone=night_tone(record), sentence=night_sentence(record), page=page)


def index_sentence(report: IndexReport) -> str:
    """What there is, and whether a person is needed."""
    if not report.nights and not report.runs:
        return "Nothing has run here yet."
    parts: list[str] = []
    if report.nights:
        jobs = len({one.record.job for one in report.nights})
        latest = {one.record.job: one for one in reversed(report.nights)}
        wrong = sorted(job for job, one in latest.items() if one.tone in ("bad", "warn"))
        parts.append(f"{counted(len(report.nights), 'night')} of {counted(jobs, 'job')}: " + (
            "the latest of each went as wanted" if not wrong
            else f"the latest {'night' if len(wrong) == 1 else 'nights'} of {', '.join(wrong)} did not go as wanted"))  # fmt: skip
    if report.runs:
        parts.append(f"{counted(len(report.runs), 'run')} for {usd(sum(one.usd_estimated for one in report.runs))}")
    return "; ".join(parts) + "."
