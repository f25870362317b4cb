"""contract: the decisions of a client (PROTOCOL.md, A client), over frozen data that is rebuilt from S3. Pure: no I/O, no clock.

`RunState` is everything that a client knows: the plan, the journal, commits, markers, control, what RunPod said. `decide(state, now)` says
what to do next. Following, resuming, cancelling, a lost ledger and a second client are this one function over differently filled states.

Instants are the store's; durations are seconds; money is US dollars. Where PROTOCOL.md leaves a number open it is in `Tuning`, and the
reasons are in docs/protocol-notes.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, Literal

from contract.models import (
    REFUSAL,
    AttemptNote,
    Commit,
    Control,
    EndMarker,
    Intent,
    JournalEntry,
    PartCommit,
    Plan,
    RunMode,
    StartMarker,
)
from contract.tree import Leaf, Tree, build_tree

MAX_INTENTS: Final = 100
"""Intents in one journal entry (PROTOCOL.md, Journal first)."""
MAX_TTL_S: Final = 7 * 86400.0
"""RunPod's longest ttl and executionTimeout (send-requests.mdx, Execution policies)."""
MIN_TTL_S: Final = 10.0
WINDOW_FACTOR: Final = 3

TERMINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})
"""Job states after which RunPod does nothing more with a job (job-states.mdx)."""
HARMLESS: Final = frozenset({"fenced", "expired", "credentials", "already", "cancelled", "yielded", "not_sent", "refused"})
"""Causes of death that say nothing against the shard: they do not count towards its limit of attempts."""
PAUSING: Final = {
    "credentials": "the workers may not read and write the run with the keys in s3Config: give them keys that may, then resume.",
    "input_changed": "rows in the store are not the rows that were planned: put the dataset back as it was and resume, or plan a new run.",
    "mismatch": "the workers see another plan at the run's address: is their bucket the stack's?",
}
"""Causes of death that sending again cannot cure."""
UNSPENT: Final = frozenset({"completed", "cancelled", "fenced", "expired", "credentials", "already", "mismatch", "refused"})
"""Causes of death that prove, without a start marker, that nothing was computed: the reserve is free before its ttl."""
ENGINE_DEATHS: Final = frozenset({"failed", "timed_out"})
"""Causes of death in which the engine may have died. In the others the worker lived to answer, and its word is about this shard."""
SURVIVED: Final = frozenset({"won", "lost", "input_changed"})
"""Outcomes of end markers that show that an execution was over before its engine died, if that died. `partial` does not: a worker whose
engine dies keeps pieces too."""
SUSPECT_AFTER: Final = 2
"""Shared deaths from which on a shard is sent only alone. Not 1: when a store or a region goes away, everything that runs dies in company
once, and all of it would wait in one line."""
SHARED_FACTOR: Final = 3
"""A shard is given up after so many times the plan's limit of attempts have died in company, though it was never alone."""


class AttemptState(Enum):
    """Where an attempt stands. The first four may still become something; WON to EXPIRED are ends, but a late commit still wins."""

    INTENDED = "intended"
    SENT = "sent"
    UNKNOWN = "unknown"
    REJECTED = "rejected"
    WON = "won"
    LOST = "lost"
    DEAD = "dead"
    EXPIRED = "expired"


STALLED: Final = "stalled"
"""How the reason in control.json begins when a client gave up on a queue: jobs that wait there would begin, unwatched, when it moves."""
BUDGET: Final = "budget"
"""How it begins when the budget ended a run while jobs without an answer may still wait at RunPod."""
REFUSED: Final = "refused"
"""How it begins when a worker refused a job: every job of the run carries the same task, so the others wait for the same answer."""
OUTSTANDING: Final = frozenset({AttemptState.INTENDED, AttemptState.SENT, AttemptState.UNKNOWN})
Key = tuple[str, int]
"""(client, attempt): on a conditional store the attempt alone is unique; on a last-writer store two clients may draw one number."""


@dataclass(frozen=True)
class Tuning:
    """Numbers that PROTOCOL.md names or leaves open, in seconds. Tests shorten them; users do not see them."""

    second_look_s: float = 30.0
    """Between a terminal status without a commit and the look that makes the attempt DEAD."""
    look_every_s: float = 30.0
    """Between looks at /status of one attempt, when no webhook asks for one."""
    pace_every_s: float = 10.0
    """Between looks at /health, which pace decisions rest on."""
    poll_first_s: float = 1.0
    """Between two ticks that nothing wakes, at first…"""
    poll_most_s: float = 5.0
    """…and later: it grows by a second for each minute."""
    note_flush_s: float = 5.0
    """A job id waits at most so long for a journal entry that carries it."""
    fresh_s: float = 60.0
    """An intent that RunPod did not take is sent again under its own number so long; then it gets a new one, with a new ttl."""
    promote_after_s: float = 30.0
    """With fewer workers than wanted and only lowPriority work queued for so long, a queued shard is sent again as an ordinary job."""
    stall_named_s: float = 150.0
    """No sign of progress for so long: the cause is named."""
    stall_ends_s: float = 1800.0
    """…and for so long: the client gives up (cold starts of 7 minutes and image pulls of 20 are known: optimization.mdx)."""
    promote_empty_s: float = 10.0
    """…or for so long where no worker lives at all: none can come for it then."""
    keep_waits_s: float = 60.0
    """Beyond executionTimeout, how long `keep` waits for executions that it lets finish."""
    cancel_waits_s: float = 10.0
    """How long a client that winds down looks for what became of the jobs that it cancelled, so that nobody has to wait for it later."""


DEFAULT_TUNING: Final = Tuning()


# --- what RunPod said ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Health:
    """GET /health: a gauge of the endpoint, all users' jobs included."""

    in_queue: int = 0
    in_progress: int = 0
    idle: int = 0
    initializing: int = 0
    ready: int = 0
    running: int = 0
    throttled: int = 0
    unhealthy: int = 0

    @property
    def live(self) -> int:
        """Workers that exist or are about to: `ready` overlaps `idle`, `unhealthy` ones will be replaced."""
        return self.idle + self.initializing + self.running + self.throttled

    @property
    def empty(self) -> bool:
        return self.in_queue == 0 and self.in_progress == 0


@dataclass(frozen=True)
class JobStatus:
    """GET /status/{job}; `status` is None where RunPod answered 404. `outcome` is the worker's word, where it gave one."""

    status: str | None
    outcome: str | None = None
    error: str | None = None
    worker_id: str | None = None

    @property
    def cause(self) -> str:
        """Of death, if there is no commit."""
        if self.status is None:
            return "missing"
        if self.refused:
            return REFUSED
        return self.outcome if self.status == "COMPLETED" and self.outcome else self.status.lower()


    @property
    def refused(self) -> bool:
        """Whether the worker's word is that it will never take such a job."""
        return self.status == "FAILED" and (self.error or "").startswith(REFUSAL)

    @property
    def said(self) -> str | None:
        """Why the job failed, in the worker's or RunPod's words."""
        if self.status not in ("FAILED", "TIMED_OUT") or not self.error:
            return None
        return self.error.removeprefix(REFUSAL)

    @property
    def never_delivered(self) -> bool:
        """RunPod cancelled the job, and no worker had picked it up: from then on it names one (docs: `workerId`, after pickup)."""
        return self.status == "CANCELLED" and self.worker_id is None


@dataclass(frozen=True)
class Look:
    """What looking at one attempt's job has shown: when last, what, and since when it has been terminal or missing."""

    at: datetime
    status: JobStatus
    since: datetime | None = None


def look(before: Look | None, status: JobStatus, now: datetime) -> Look:
    """Fold one answer of /status into what was known."""
    if status.status is not None and status.status not in TERMINAL:
        return Look(now, status, None)
    ended = before is not None and before.since is not None and (before.status.status is None) == (status.status is None)
    return Look(now, status, before.since if ended and before is not None else now)


# --- the run's facts -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """What the plan and the user's flags fix for one client."""

    pace: int
    shards_per_worker: int
    scaler: Literal["QUEUE_DELAY", "REQUEST_COUNT"]
    scaler_value: float
    execution_timeout_s: float
    cold_start_s: float
    usd_per_second: float
    max_attempts: int
    workers_max: int
    image: str | None = None
    """Of the endpoint now; compared with the plan's."""
    budget_usd: float | None = None
    deadline: datetime | None = None
    allow_mixed_image: bool = False

    @property
    def window(self) -> int:
        return window_for(self.pace, self.shards_per_worker)

    @property
    def ttl_s(self) -> float:
        return ttl_for(self.window, self.execution_timeout_s, self.cold_start_s)

    @property
    def reserve_usd(self) -> float:
        return reserve_for(self.execution_timeout_s, self.cold_start_s, self.shards_per_worker, self.usd_per_second)


def rules_for(
    plan: Plan,
    *,
    workers_max: int | None = None,
    image: str | None = None,
    pace: int | None = None,
    budget_usd: float | None = None,
    deadline: datetime | None = None,
    allow_mixed_image: bool = False,
) -> Rules:
    """The plan's pinned facts, with what is known of the endpoint now. `pace` is capped by workers.max, the only hard cap there is."""
    infra = plan.infra
    allowed = infra.workers_max if workers_max is None else workers_max
    return Rules(
        pace=max(1, min(pace or plan.pace, max(allowed, 1))),
        shards_per_worker=infra.shards_per_worker,
        scaler=infra.scaler,
        scaler_value=infra.scaler_value,
        execution_timeout_s=infra.execution_timeout_s,
        cold_start_s=infra.cold_start_s,
        usd_per_second=infra.usd_per_second,
        max_attempts=plan.max_attempts,
        workers_max=allowed,
        image=image,
        budget_usd=plan.budget_usd if budget_usd is None else budget_usd,
        deadline=deadline,
        allow_mixed_image=allow_mixed_image,
    )


def window_for(pace: int, shards_per_worker: int) -> int:
    """W: shards that may be outstanding at once."""
    return WINDOW_FACTOR * pace * shards_per_worker


def ttl_for(window: int, execution_timeout_s: float, cold_start_s: float) -> float:
    """The wait behind W and the execution itself, in whole seconds and within RunPod's limits."""
    wait = 3 * math.ceil(window / 2) * execution_timeout_s + cold_start_s
    return float(min(MAX_TTL_S, max(MIN_TTL_S, 2 * execution_timeout_s, math.ceil(wait))))


def start_by_for(sent_at: datetime, ttl_s: float, execution_timeout_s: float) -> datetime:
    """An execution that starts by then ends before RunPod deletes its job."""
    return sent_at + timedelta(seconds=ttl_s - execution_timeout_s)


def reserve_for(execution_timeout_s: float, cold_start_s: float, shards_per_worker: int, usd_per_second: float) -> float:
    """The most that one execution may cost: its whole executionTimeout, alone on its worker, and its share of one cold start."""
    return (execution_timeout_s + cold_start_s / shards_per_worker) * usd_per_second


# --- the state -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One intent of the journal and what the journal says became of it. `noted` None: nothing was said."""

    client: str
    intent: Intent
    noted: str | None = None
    job_id: str | None = None
    cause: str | None = None
    error: str | None = None
    """Why its job failed, in the worker's words."""

    @property
    def key(self) -> Key:
        return (self.client, self.intent.attempt)

    @property
    def expires_at(self) -> datetime:
        return self.intent.sent_at + timedelta(seconds=self.intent.ttl_s)


_RANK: Final = {None: 0, "unknown": 1, "sent": 2, "expired": 3, "dead": 4, "lost": 5, "won": 5, "rejected": 6}


def fold(attempts: Mapping[Key, Attempt], entries: Iterable[JournalEntry]) -> dict[Key, Attempt]:
    """What the journal says of each attempt. The order of notes does not matter: a note never takes back a stronger one."""
    found = dict(attempts)
    late: list[tuple[str, AttemptNote]] = []
    for entry in entries:
        for intent in entry.intents:
            found.setdefault((entry.client, intent.attempt), Attempt(entry.client, intent))
        late.extend((entry.client, note) for note in entry.notes)
    for writer, note in late:
        key = (note.client or writer, note.attempt)
        known = found.get(key)
        if known is not None:
            found[key] = with_note(known, note)
    return found


def fold_starts(attempts: Mapping[Key, Attempt], starts: Iterable[StartMarker]) -> dict[Key, Attempt]:
    """A start marker says which job carried its attempt: one without an answer has a job id from then on."""
    jobs = {(start.shard, start.attempt): start.job_id for start in starts}
    found = dict(attempts)
    for key, attempt in attempts.items():
        job_id = jobs.get((attempt.intent.shard, attempt.intent.attempt))
        if job_id is not None and attempt.job_id is None and attempt.noted != "rejected":
            found[key] = replace(attempt, job_id=job_id)
    return found


def with_note(attempt: Attempt, note: AttemptNote) -> Attempt:
    """The attempt as it stands after one more note."""
    stronger = _RANK[note.state] > _RANK[attempt.noted]
    return Attempt(
        attempt.client,
        attempt.intent,
        note.state if stronger else attempt.noted,
        attempt.job_id or note.job_id,
        note.cause if stronger and note.cause else attempt.cause,
        note.error or attempt.error,
    )


def note_for(attempt: Attempt, state: Literal["sent", "rejected", "unknown", "dead", "expired"], at: datetime, *,
             job_id: str | None = None, cause: str | None = None, error: str | None = None) -> AttemptNote:  # fmt: skip
    """A note that names its attempt fully."""
    return AttemptNote(
        attempt=attempt.intent.attempt, client=attempt.client, state=state, job_id=job_id, cause=cause, error=error, at=at
    )  # fmt: skip


@dataclass(frozen=True)
class RunState:
    """All that one client knows. Everything but `looks`, `health` and the last four fields is S3's, and can be read again by anybody."""

    plan: Plan
    rules: Rules
    client: str
    control: Control
    started_at: datetime
    """When this client began: deaths before it do not pause it again."""
    attempts: Mapping[Key, Attempt] = field(default_factory=dict)
    """Journal and pending notes, folded."""
    commits: Mapping[str, Commit] = field(default_factory=dict)
    commits_at: datetime | None = None
    """When the look at commits/ began that `commits` rests on."""
    starts: Mapping[str, StartMarker] = field(default_factory=dict)
    ends: Mapping[str, EndMarker] = field(default_factory=dict)
    markers_at: datetime | None = None
    """When the look began that `starts` and `ends` rest on; None: now."""
    looks: Mapping[Key, Look] = field(default_factory=dict)
    health: Health | None = None
    health_at: datetime | None = None
    health_error: str | None = None
    """What the last look at /health failed with, where it did."""
    empty_since: datetime | None = None
    """Since when every look at /health has shown no job at all."""
    short_since: datetime | None = None
    """Since when every look at /health has shown fewer workers than the pace."""
    progress_at: datetime | None = None
    """When something last moved: a marker, a commit, a job state."""
    woken: frozenset[Key] = frozenset()
    """Attempts that a webhook spoke of since the last look."""
    cancelled: frozenset[Key] = frozenset()
    """Attempts whose job /cancel was told of."""
    unflushed_since: datetime | None = None
    """Since when notes wait for a journal entry."""

    @property
    def next_attempt(self) -> int:
        return 1 + max((number for _, number in self.attempts), default=0)


# --- money and time ------------------------------------------------------------------------------------------------------------------


def worker_seconds(starts: Mapping[str, StartMarker], ends: Mapping[str, EndMarker], execution_timeout_s: float, now: datetime) -> float:
    """Worker time of the executions that are over.

    Executions overlap on a worker that runs several at once, so ended ones count as the union of their intervals on each worker: from
    `at - wall_s` of the end marker, less `load_s` of the start marker, to `at`. An execution without end marker counts executionTimeout on
    its own once that time is past: nothing tells when its worker went.
    """
    spans: dict[str, list[tuple[float, float]]] = {}
    unended = 0.0
    for execution, start in starts.items():
        end = ends.get(execution)
        if end is not None:
            stop = end.at.timestamp()
            spans.setdefault(start.worker_id, []).append((stop - end.wall_s - start.load_s, stop))
        elif now >= start.at + timedelta(seconds=execution_timeout_s):
            unended += execution_timeout_s + start.load_s
    return unended + sum(union_length(intervals) for intervals in spans.values())


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """How much of the line these intervals cover together."""
    total, reach = 0.0, -math.inf
    for start, stop in sorted(intervals):
        if stop > reach:
            total += stop - max(start, reach)
            reach = stop
    return total


def settled_usd(state: RunState, now: datetime) -> float:
    """What executions that are over have cost: an estimate from markers and the price, won or lost."""
    rules = state.rules
    return worker_seconds(state.starts, state.ends, rules.execution_timeout_s, now) * rules.usd_per_second


def reserved_usd(state: RunState, now: datetime) -> float:
    """What may still be spent on attempts that were sent.

    An attempt without a start marker holds its reserve until its ttl, unless its end proves that nothing was computed; each execution
    without end marker holds one more until executionTimeout is past, when it becomes settled.
    """
    rules = state.rules
    running = [s for e, s in state.starts.items() if e not in state.ends and now < s.at + timedelta(seconds=rules.execution_timeout_s)]
    total = len(running) * rules.reserve_usd + sum(s.load_s for s in running) * rules.usd_per_second
    started = {(s.shard, s.attempt) for s in state.starts.values()}
    for attempt in state.attempts.values():
        if (attempt.intent.shard, attempt.intent.attempt) not in started and holds_reserve(state, attempt, now):
            total += attempt.intent.reserve_usd
    return total


def holds_reserve(state: RunState, attempt: Attempt, now: datetime) -> bool:
    """Whether an attempt without a start marker may still cost something. Only markers that were looked for after its time was over tell
    that it never began: a client may have slept since it looked."""
    looked = _markers_at(state, now)
    if attempt.noted == "rejected" or looked >= attempt.expires_at:
        return False
    if attempt.noted == "dead" and attempt.cause in UNSPENT:
        return False
    seen = state.looks.get(attempt.key)
    proven = seen is not None and seen.since is not None and seen.status.status is not None and seen.status.cause in UNSPENT
    if attempt.intent.epoch < state.control.epoch and _stopped(state, (), seen, now, DEFAULT_TUNING):
        return False
    return not (proven and seen is not None and seen.since is not None and _passed(seen.since, DEFAULT_TUNING.second_look_s, looked))


def _markers_at(state: RunState, now: datetime) -> datetime:
    """The instant up to which the markers are known."""
    return now if state.markers_at is None else min(now, state.markers_at)


def _passed(since: datetime, seconds: float, now: datetime) -> bool:
    return now >= since + timedelta(seconds=seconds)


# --- the survey: what the state means now ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """One attempt as it stands now."""

    attempt: Attempt
    state: AttemptState
    cause: str | None = None
    started: bool = False
    """A start marker shows that it has begun, and RunPod has not said since that it waits again (its worker died)."""
    error: str | None = None
    """Of a dead one: why, in the worker's words."""


Executions = Mapping[tuple[str, int], Sequence[StartMarker]]
"""Start markers by shard and attempt, the latest last."""


def standing(state: RunState, attempt: Attempt, started: Executions, now: datetime, tuning: Tuning = DEFAULT_TUNING) -> Standing:
    """The attempt's state (PROTOCOL.md, Attempt), from the commit first, then the journal, then what RunPod said."""
    intent = attempt.intent
    mark = (intent.shard, intent.attempt)
    begun = mark in started
    commit = state.commits.get(intent.shard)
    if commit is not None and commit.plan == state.plan.plan_id:
        won = isinstance(commit, PartCommit) and commit.attempt == intent.attempt and attempt.noted != "rejected"
        return Standing(attempt, AttemptState.WON if won else AttemptState.LOST, started=begun)
    if attempt.noted == "rejected":
        return Standing(attempt, AttemptState.REJECTED, attempt.cause)
    if attempt.noted == "dead":
        return Standing(attempt, AttemptState.DEAD, attempt.cause, begun, attempt.error)
    if attempt.noted == "expired":
        return Standing(attempt, AttemptState.EXPIRED, attempt.cause, begun)
    if now >= attempt.expires_at:
        return Standing(attempt, AttemptState.EXPIRED, "ttl", begun)
    seen = state.looks.get(attempt.key)
    if seen is not None and seen.since is not None:
        second = seen.since + timedelta(seconds=tuning.second_look_s)
        looked_at_commit = state.commits_at is not None and state.commits_at >= second
        if looked_at_commit and seen.status.status is not None:
            return Standing(attempt, AttemptState.DEAD, seen.status.cause, begun, seen.status.said)
        if looked_at_commit and seen.at >= second:
            return Standing(attempt, AttemptState.EXPIRED, "missing", begun)
    if intent.epoch < state.control.epoch and _stopped(state, started.get(mark, ()), seen, now, tuning):
        return Standing(attempt, AttemptState.DEAD, "cancelled", begun)
    if attempt.job_id is not None or begun:
        again = seen is not None and seen.status.status == "IN_QUEUE" and begun and seen.at > started[mark][-1].at
        return Standing(attempt, AttemptState.SENT, started=begun and not again)
    if attempt.noted is None and attempt.client == state.client:
        return Standing(attempt, AttemptState.INTENDED)
    if _absent(state, attempt, tuning):
        return Standing(attempt, AttemptState.EXPIRED, "absent")
    return Standing(attempt, AttemptState.UNKNOWN)


def _stopped(state: RunState, executions: Sequence[StartMarker], seen: Look | None, now: datetime, tuning: Tuning) -> bool:
    """Evidence that a fenced attempt is over without a second look: whoever takes its job now answers `fenced`, so only what had begun
    before could still commit. Either RunPod cancelled the job before any worker had it, or each of its executions has ended without a
    commit, or has had more than executionTimeout."""
    looked = _markers_at(state, now)
    if not executions:
        return seen is not None and seen.since is not None and seen.status.never_delivered and looked >= seen.since
    most = state.rules.execution_timeout_s + tuning.second_look_s
    ends = [state.ends.get(start.execution) for start in executions]
    return all(
        _passed(start.at, most, looked) if end is None else end.outcome not in ("won", "lost")
        for start, end in zip(executions, ends, strict=True)
    )


def _absent(state: RunState, attempt: Attempt, tuning: Tuning) -> bool:
    """Evidence that an attempt without an answer was never accepted, or is over: twice, 30 s apart, the endpoint had no job at all."""
    if state.empty_since is None or state.health_at is None or state.commits_at is None:
        return False
    since = max(state.empty_since, attempt.intent.sent_at + timedelta(seconds=tuning.second_look_s))
    return min(state.health_at, state.commits_at) >= since + timedelta(seconds=tuning.second_look_s)


@dataclass(frozen=True)
class Survey:
    """One pass over the state: what is open, outstanding, queued, spent."""

    tree: Tree
    standings: Mapping[Key, Standing]
    by_shard: Mapping[str, tuple[Standing, ...]]
    open: tuple[Leaf, ...]
    outstanding: tuple[str, ...]
    """Open shards with an attempt that may still commit."""
    queued: tuple[Standing, ...]
    """Outstanding attempts that no start marker shows to have begun."""
    running: tuple[Standing, ...]
    """Outstanding attempts that have begun."""
    exhausted: tuple[str, ...]
    """Open shards with nothing outstanding and no attempt left."""
    suspects: tuple[str, ...]
    """Open shards with nothing outstanding that died in company too often to be sent among others; fewest deaths of their own first."""
    queued_ordinary: int
    """Of `queued`, those that ask RunPod for a worker. One without an answer counts only for a while: if RunPod had it, a worker would
    be on its way, and then it counts as that."""
    settled_usd: float
    reserved_usd: float

    @property
    def queued_low(self) -> int:
        return sum(1 for s in self.queued if s.attempt.intent.low_priority)


def survey(state: RunState, now: datetime, tuning: Tuning = DEFAULT_TUNING) -> Survey:
    """What the state means now."""
    tree = build_tree(state.plan, state.commits)
    started: dict[tuple[str, int], list[StartMarker]] = {}
    for start in state.starts.values():
        started.setdefault((start.shard, start.attempt), []).append(start)
    for executions in started.values():
        executions.sort(key=lambda start: start.at)
    standings = {key: standing(state, attempt, started, now, tuning) for key, attempt in state.attempts.items()}
    grouped: dict[str, list[Standing]] = {}
    for found in standings.values():
        grouped.setdefault(found.attempt.intent.shard, []).append(found)
    by_shard = {shard: tuple(found) for shard, found in grouped.items()}
    outstanding: list[str] = []
    queued: list[Standing] = []
    running: list[Standing] = []
    exhausted: list[str] = []
    suspects: list[tuple[int, str]] = []
    limit = state.rules.max_attempts
    waiting = [found for leaf in tree.open for found in by_shard.get(leaf.shard, ()) if found.state not in OUTSTANDING]
    shared = died_together(state, {_mark(found) for found in waiting if engine_may_have_died(found)})
    for leaf in tree.open:
        mine = by_shard.get(leaf.shard, ())
        alive = [s for s in mine if s.state in OUTSTANDING]
        if alive:
            outstanding.append(leaf.shard)
            for found in alive:
                (running if found.started else queued).append(found)
            continue
        own, company = blamed(mine, shared)
        if own >= limit or company >= SHARED_FACTOR * limit:
            exhausted.append(leaf.shard)
        elif company >= min(SUSPECT_AFTER, limit):
            suspects.append((own, leaf.shard))
    return Survey(
        tree=tree,
        standings=standings,
        by_shard=by_shard,
        open=tree.open,
        outstanding=tuple(outstanding),
        queued=tuple(queued),
        running=tuple(running),
        exhausted=tuple(exhausted),
        suspects=tuple(shard for _, shard in sorted(suspects)),
        queued_ordinary=sum(1 for found in queued if asks_for_worker(found, now, tuning)),
        settled_usd=settled_usd(state, now),
        reserved_usd=reserved_usd(state, now),
    )


def asks_for_worker(found: Standing, now: datetime, tuning: Tuning) -> bool:
    """Whether a queued attempt is, as far as is known, an ordinary job in RunPod's queue."""
    intent = found.attempt.intent
    doubtful = found.state is AttemptState.UNKNOWN and _passed(intent.sent_at, tuning.promote_after_s, now)
    return not intent.low_priority and not doubtful


def blamed(attempts: Iterable[Standing], shared: Set[tuple[str, int]] = frozenset()) -> tuple[int, int]:
    """Attempts that count towards a shard's limit: deaths that may be its fault, refusals, and expiries of what had begun. Those that
    shared a dying engine with another shard (`shared`, by shard and attempt) are counted apart, second: PROTOCOL.md, Node."""
    own = company = 0
    for found in attempts:
        if found.state in (AttemptState.DEAD, AttemptState.REJECTED):
            counts = found.cause not in HARMLESS
        else:
            counts = found.state is AttemptState.EXPIRED and found.started
        if counts and _mark(found) in shared and engine_may_have_died(found):
            company += 1
        else:
            own += counts
    return own, company


def engine_may_have_died(found: Standing) -> bool:
    """Whether this attempt had begun, and its end may have been its engine's."""
    if found.state is AttemptState.DEAD:
        return found.started and found.cause in ENGINE_DEATHS
    return found.started and found.state is AttemptState.EXPIRED


def _mark(found: Standing) -> tuple[str, int]:
    return found.attempt.intent.shard, found.attempt.intent.attempt


def died_together(state: RunState, dead: Set[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    """Those of `dead` (shard, attempt) whose last execution was not alone in its engine: one of another shard, which no end marker shows
    to have survived, was in the same process of the same worker at the same time.

    An execution without end marker may have run until executionTimeout, but not into a later process: the first start marker of a process
    carries `load_s`, so that what began before `at - load_s` on its worker was in an earlier one.
    """
    if not dead:
        return frozenset()
    last: dict[tuple[str, int], StartMarker] = {}
    for start in state.starts.values():
        mark = (start.shard, start.attempt)
        if mark in dead and (mark not in last or start.at > last[mark].at):
            last[mark] = start
    workers: dict[str, list[StartMarker]] = {start.worker_id: [] for start in last.values()}
    for start in state.starts.values():
        if start.worker_id in workers:
            workers[start.worker_id].append(start)
    together: set[str] = set()
    for there in workers.values():
        together.update(_in_company(there, state.ends, state.rules.execution_timeout_s))
    return frozenset(mark for mark, start in last.items() if start.execution in together)


def _in_company(starts: Sequence[StartMarker], ends: Mapping[str, EndMarker], execution_timeout_s: float) -> Iterable[str]:
    """Executions of one worker that did not survive, in groups of more than one shard whose times hang together in one process."""
    began = sorted(start.at.timestamp() - start.load_s for start in starts if start.load_s > 0)
    spans: list[tuple[int, float, float, StartMarker]] = []
    for start in starts:
        end = ends.get(start.execution)
        if end is None or end.outcome not in SURVIVED:
            at = start.at.timestamp()
            stop = at + execution_timeout_s if end is None else end.at.timestamp()
            spans.append((bisect_right(began, at), at, stop, start))
    group: list[StartMarker] = []
    process, reach = -1, -math.inf
    for of, at, stop, start in sorted(spans, key=lambda span: span[:3]):
        if of != process or at > reach:
            yield from _if_company(group)
            group, process, reach = [], of, -math.inf
        group.append(start)
        reach = max(reach, stop)
    yield from _if_company(group)


def _if_company(group: Sequence[StartMarker]) -> Iterable[str]:
    return (start.execution for start in group) if len({start.shard for start in group}) > 1 else ()


# --- actions -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendIntents:
    """Write these intents as one journal entry (notes ride along), then call /run for each. `again`: check its shard's commit first."""

    intents: tuple[Intent, ...]
    again: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SendAgain:
    """Call /run for this client's intents that RunPod certainly does not have."""

    keys: tuple[Key, ...]


@dataclass(frozen=True)
class LookAtStatus:
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class CancelJob:
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class NoteOutcome:
    """Into the journal: at once where an entry is written anyway, else when they have waited long enough."""

    notes: tuple[AttemptNote, ...]


@dataclass(frozen=True)
class FlushNotes:
    """Write the notes that wait, without intents."""


@dataclass(frozen=True)
class RaiseEpoch:
    """Fence what has not started (keep) or stop everything (stop), before any /cancel."""

    mode: RunMode
    reason: str


@dataclass(frozen=True)
class Pause:
    """Nothing more is sent until the user has put something right."""

    cause: str
    reason: str


@dataclass(frozen=True)
class Stall:
    """The queue does not move. `final`: give up."""

    cause: str
    reason: str
    final: bool = False


FinishState = Literal["complete", "stopped", "failed"]


@dataclass(frozen=True)
class Finish:
    state: FinishState
    cause: str
    reason: str


@dataclass(frozen=True)
class Wait:
    """Nothing else will change by itself before then."""

    until: datetime


Action = SendIntents | SendAgain | LookAtStatus | CancelJob | NoteOutcome | FlushNotes | RaiseEpoch | Pause | Stall | Finish | Wait


# --- the decision --------------------------------------------------------------------------------------------------------------------


def decide(state: RunState, now: datetime, tuning: Tuning = DEFAULT_TUNING) -> tuple[Action, ...]:
    """What to do now, in this order. The last action is a Wait, a Pause, a final Stall or a Finish."""
    seen = survey(state, now, tuning)
    notes = ends_to_note(state, seen, now)
    first: tuple[Action, ...] = (NoteOutcome(notes),) if notes else ()
    cancels = jobs_to_cancel(state, seen)
    if cancels:
        first += (CancelJob(cancels),)
    if not seen.open:
        return (*first, *_flush(state, bool(notes), now, tuning, at_once=True), Finish("complete", "complete", "every shard is committed."))
    if state.control.mode != "run":
        return (*first, *_wind_down(state, seen, bool(notes), now, tuning))
    if pause := pause_for(state, seen):
        return (*first, *_flush(state, bool(notes), now, tuning, at_once=True), pause)
    if (said := refusal(state, seen)) is not None:
        if seen.outstanding:  # they would be refused too: fenced and cancelled, so that no worker starts for them
            return (*first, RaiseEpoch("keep", f"{REFUSED}: {said}"))
        return (*first, *_flush(state, bool(notes), now, tuning, at_once=True), Finish("failed", REFUSED, said))
    if state.rules.deadline is not None and now >= state.rules.deadline:
        return (*first, RaiseEpoch("keep", "deadline"))
    looks = jobs_to_look_at(state, seen, now, tuning)
    if looks:
        first += (LookAtStatus(looks),)
    sends, refused = sends_for(state, seen, now, tuning)
    stall = None if any(isinstance(a, SendIntents) for a in sends) else stall_for(state, seen, now, tuning)
    if stall is not None and stall.final:
        if any(s.attempt.job_id is not None for s in seen.queued):
            return (*first, RaiseEpoch("keep", f"{STALLED} {stall.cause}: {stall.reason}"))
        return (*first, *_flush(state, bool(notes), now, tuning, at_once=True), stall)
    if not sends and not refused and not seen.outstanding:
        reason = exhaustion(seen)
        return (*first, *_flush(state, bool(notes), now, tuning, at_once=True), Finish("failed", "attempts", reason))
    if refused and not sends and not _may_free_budget(state, seen, now, tuning):
        reason = shortage(state.rules, seen)
        if seen.outstanding:  # jobs without an answer: fenced, so that none begins after the client has left
            return (*first, RaiseEpoch("keep", f"{BUDGET}: {reason}"))
        return (*first, *_flush(state, bool(notes), now, tuning, at_once=True), Finish("stopped", "budget", reason))
    flush = () if any(isinstance(a, SendIntents) for a in sends) else _flush(state, bool(notes), now, tuning)
    return (*first, *sends, *flush, *((stall,) if stall else ()), Wait(next_instant(state, seen, now, tuning)))


def refusal(state: RunState, seen: Survey) -> str | None:
    """What a worker said that refused a job of this client, if one did. Sending it again cannot help: the plan's task stays as it is. What
    was refused before this client began does not count, because the endpoint may have been put right since."""
    for found in seen.standings.values():
        if found.state is AttemptState.DEAD and found.cause == REFUSED and found.attempt.intent.sent_at >= state.started_at:
            return f"the workers refuse the run's jobs: {found.error or 'no reason given.'}"
    return None


def exhaustion(seen: Survey) -> str:
    """Which shards failed in every attempt, and why, in the words of the last job that said so."""
    count = len(seen.exhausted)
    shards = ", ".join(seen.exhausted[:5]) + (" …" if count > 5 else "")
    causes = sorted({s.cause or s.state.value for shard in seen.exhausted for s in seen.by_shard.get(shard, ())})
    said = [text for _, text in errors_of(seen)]
    why = f" The last job said: {said[0]}" if said else ""
    return f"{count} {'shard' if count == 1 else 'shards'} failed in every attempt ({shards}): {', '.join(causes)}.{why}"


def errors_of(seen: Survey) -> tuple[tuple[str, str], ...]:
    """Open shards with what the last of their dead jobs said, where it said something."""
    found: list[tuple[str, str]] = []
    for leaf in seen.open:
        dead = [s for s in seen.by_shard.get(leaf.shard, ()) if s.state is AttemptState.DEAD and s.error]
        if dead:
            found.append((leaf.shard, max(dead, key=lambda s: s.attempt.intent.attempt).error or ""))
    return tuple(found)


def shortage(rules: Rules, seen: Survey) -> str:
    """Why the budget allows no job, and what it must be for one more."""
    budget, needed = dollars(rules.budget_usd or 0.0), dollars(budget_needed(rules, seen))
    if seen.settled_usd + seen.reserved_usd == 0:
        return (
            f"a budget of {budget} cannot start one job: each reserves up to {dollars(rules.reserve_usd)}, the price of its whole "
            f"executionTimeout. Give at least {needed}."
        )
    return (
        f"the next job could pass the budget of {budget}: {dollars(seen.settled_usd)} spent, {dollars(seen.reserved_usd)} reserved for "
        f"jobs that may still cost, {dollars(rules.reserve_usd)} for one more. Give at least {needed}."
    )


def budget_needed(rules: Rules, seen: Survey | None = None) -> float:
    """The least budget with which one more job can be sent, rounded up to a cent."""
    spent = seen.settled_usd + seen.reserved_usd if seen is not None else 0.0
    least = spent + rules.reserve_usd
    cents = math.ceil(round(least * 100, 6)) / 100
    return cents if cents >= least else cents + 0.01


def dollars(value: float) -> str:
    """With as many digits as tell something."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}" if value >= 0.001 or value == 0 else f"${value:.6f}"


RunWord = Literal["complete", "planned", "running", "interrupted", "cancelled", "stopped", "stalled", "failed"]


def run_word(state: RunState, seen: Survey) -> RunWord:
    """How a run stands, in a word, from what the store holds. `running`: jobs are out, whether a client follows them or not;
    `interrupted`: none is, and nobody ended the run."""
    if not seen.open:
        return "complete"
    reason = state.control.reason or ""
    if state.control.mode != "run":
        if reason.startswith(f"{REFUSED}: "):
            return "failed"
        if reason.startswith(f"{STALLED} "):
            return "stalled"
        return "stopped" if reason == "deadline" or reason.startswith(f"{BUDGET}: ") else "cancelled"
    if seen.outstanding:
        return "running"
    if not seen.standings:
        return "planned"
    last = [max(seen.by_shard[leaf.shard], key=lambda s: s.attempt.intent.attempt) for leaf in seen.open if leaf.shard in seen.by_shard]
    refused = any(s.state is AttemptState.DEAD and s.cause == REFUSED for s in last)
    given_up = len(seen.exhausted) == len(seen.open) or _mostly_failing(seen)
    return "failed" if refused or given_up else "interrupted"


def _flush(state: RunState, fresh: bool, now: datetime, tuning: Tuning, *, at_once: bool = False) -> tuple[Action, ...]:
    waiting = state.unflushed_since
    due = waiting is not None and (at_once or _passed(waiting, tuning.note_flush_s, now))
    return (FlushNotes(),) if due or (at_once and fresh) else ()


def ends_to_note(state: RunState, seen: Survey, now: datetime) -> tuple[AttemptNote, ...]:
    """Deaths and expiries that the journal does not have yet. Won and lost need no note: commits say them."""
    notes: list[AttemptNote] = []
    for found in seen.standings.values():
        attempt = found.attempt
        if found.state is AttemptState.DEAD and attempt.noted != "dead":
            notes.append(note_for(attempt, "dead", now, cause=found.cause, error=found.error))
        elif found.state is AttemptState.EXPIRED and attempt.noted != "expired" and found.cause != "ttl":
            notes.append(note_for(attempt, "expired", now, cause=found.cause))
    return tuple(notes)


def jobs_to_cancel(state: RunState, seen: Survey) -> tuple[Key, ...]:
    """Losers that RunPod may still run; and under `keep` what has not begun, under `stop` everything."""
    keys: list[Key] = []
    for key, found in seen.standings.items():
        attempt = found.attempt
        if attempt.job_id is None or key in state.cancelled or _over(state, key):
            continue
        if found.state is AttemptState.LOST:
            ended = any(
                s.attempt == attempt.intent.attempt and s.shard == attempt.intent.shard and e in state.ends for e, s in state.starts.items()
            )
            if not ended and attempt.noted not in ("dead", "expired"):
                keys.append(key)
        elif found.state is AttemptState.SENT:
            fenced = attempt.intent.epoch < state.control.epoch
            if fenced and (state.control.mode == "stop" or (state.control.mode == "keep" and not found.started)):
                keys.append(key)
    return tuple(keys) + tuple(promoted(state, seen))


def promoted(state: RunState, seen: Survey) -> Iterable[Key]:
    """Queued lowPriority attempts of a shard that a later ordinary attempt of it has replaced."""
    for found in seen.queued:
        attempt = found.attempt
        if attempt.job_id is None or not attempt.intent.low_priority or attempt.key in state.cancelled or _over(state, attempt.key):
            continue
        if state.control.mode != "run" or attempt.intent.epoch < state.control.epoch:
            continue
        later = (
            s
            for s in seen.by_shard[attempt.intent.shard]
            if s.state is AttemptState.SENT and not s.attempt.intent.low_priority and s.attempt.intent.sent_at > attempt.intent.sent_at
        )
        if any(later):
            yield attempt.key


def _over(state: RunState, key: Key) -> bool:
    seen = state.looks.get(key)
    return seen is not None and seen.since is not None


def pause_for(state: RunState, seen: Survey) -> Pause | None:
    """What only the user can put right."""
    planned = state.plan.infra.image
    if planned is not None and not state.rules.allow_mixed_image:
        images = {s.image for s in state.starts.values() if s.image is not None and s.at >= state.started_at} | {state.rules.image}
        others = sorted(image for image in images if image not in (None, planned))
        if others:
            return Pause(
                "image",
                f"the endpoint runs image {others[0]}, and the run was planned on {planned}. "
                "`resume --allow-mixed-image` goes on with both.",
            )
    for found in seen.standings.values():
        if found.state is AttemptState.DEAD and found.cause in PAUSING and found.attempt.intent.sent_at >= state.started_at:
            return Pause(found.cause, PAUSING[found.cause])
        if (
            found.state is AttemptState.REJECTED
            and found.cause in ("auth", "endpoint")
            and found.attempt.intent.sent_at >= state.started_at
        ):
            said = {"auth": "RunPod refuses the API key.", "endpoint": f"RunPod knows no endpoint {state.plan.infra.endpoint_id}."}
            return Pause(found.cause, said[found.cause])
    return None


def jobs_to_look_at(state: RunState, seen: Survey, now: datetime, tuning: Tuning) -> tuple[Key, ...]:
    """Outstanding attempts that a webhook spoke of, or that nobody has looked at for a while."""
    keys: list[Key] = []
    for key, found in seen.standings.items():
        if found.state is not AttemptState.SENT or found.attempt.job_id is None:
            continue
        known = state.looks.get(key)
        if known is None:
            due = found.attempt.intent.sent_at + timedelta(seconds=tuning.look_every_s)
        elif known.since is not None and known.status.status is not None:
            continue  # terminal: only the commit matters now
        else:
            due = known.at + timedelta(seconds=min(tuning.look_every_s, tuning.second_look_s))
        if key in state.woken or now >= due:
            keys.append(key)
    return tuple(keys)


def _wind_down(state: RunState, seen: Survey, noted: bool, now: datetime, tuning: Tuning) -> tuple[Action, ...]:
    """The run was told to keep or stop: nothing is sent; under `keep` executions that have begun may finish."""
    if state.control.mode == "keep":
        limit = tuning.keep_waits_s + state.rules.execution_timeout_s
        running = [s for s in seen.running if not _over(state, s.attempt.key)]
        alive = any(s.attempt.intent.epoch <= state.control.epoch for s in running)
        if alive and not _passed(state.control.at, limit, now):
            return (*_flush(state, noted, now, tuning), Wait(next_instant(state, seen, now, tuning)))
    fenced = [s for s in seen.standings.values() if s.state is AttemptState.SENT and s.attempt.intent.epoch < state.control.epoch]
    unsure = [s for s in fenced if _soon_known(state, s.attempt, now, tuning)]
    if unsure:
        looks = tuple(s.attempt.key for s in unsure if not _over(state, s.attempt.key))
        wait = Wait(now + timedelta(seconds=tuning.poll_first_s))
        return (*_flush(state, noted, now, tuning), *((LookAtStatus(looks),) if looks else ()), wait)
    reason = state.control.reason or "cancelled"
    if reason.startswith(f"{REFUSED}: "):
        refused = Finish("failed", REFUSED, reason.removeprefix(f"{REFUSED}: "))
        return (*_flush(state, noted, now, tuning, at_once=True), refused)
    if reason.startswith(f"{STALLED} "):
        cause, _, why = reason.removeprefix(f"{STALLED} ").partition(": ")
        return (*_flush(state, noted, now, tuning, at_once=True), Stall(cause, why, final=True))
    if reason.startswith(f"{BUDGET}: "):
        stopped = Finish("stopped", "budget", reason.removeprefix(f"{BUDGET}: "))
        return (*_flush(state, noted, now, tuning, at_once=True), stopped)
    said = "the deadline has passed." if reason == "deadline" else f"the run was told to {state.control.mode} ({reason})."
    flush = _flush(state, noted, now, tuning, at_once=True)
    return (*flush, Finish("stopped", "deadline" if reason == "deadline" else "cancelled", said))


def _soon_known(state: RunState, attempt: Attempt, now: datetime, tuning: Tuning) -> bool:
    """Whether waiting a little can show what became of a cancelled job, so that whoever resumes need not: RunPod has not been heard of it
    yet, or the second look is near."""
    seen = state.looks.get(attempt.key)
    if attempt.job_id is None:
        return False
    if seen is None or seen.since is None:
        return not _passed(state.control.at, tuning.cancel_waits_s, now)
    return seen.status.status is not None and not _passed(seen.since, tuning.second_look_s + tuning.poll_first_s, now)


# --- sending -------------------------------------------------------------------------------------------------------------------------


@dataclass
class _Room:
    """What may still be sent in this decision; each send takes its part."""

    window: int
    ordinary: int
    low: int
    usd: float

    def take(self, reserve: float) -> bool | None:
        """Whether the next job is lowPriority; None when there is no room for it."""
        if self.ordinary > 0:
            self.ordinary -= 1
            low = False
        elif self.low > 0:
            low = True
        else:
            return None
        self.low -= 1
        self.window -= 1
        self.usd -= reserve
        return low


def live_workers(state: RunState, seen: Survey) -> int:
    """Workers that exist: by /health, or those that running executions were seen on if they are more (a look at /health grows old)."""
    running = {(s.attempt.intent.shard, s.attempt.intent.attempt) for s in seen.running}
    on = {m.worker_id for e, m in state.starts.items() if e not in state.ends and (m.shard, m.attempt) in running}
    return max(len(on), state.health.live if state.health is not None else 0)


def pace_room(state: RunState, seen: Survey) -> tuple[int, int]:
    """How many more ordinary jobs, and how many more jobs in all, the pace allows to be queued (PROTOCOL.md, Pace)."""
    rules = state.rules
    if rules.scaler == "REQUEST_COUNT":
        most = rules.pace * max(1, math.floor(rules.scaler_value))
        every = (*seen.queued, *seen.running)
        ordinary = most - sum(1 for s in every if not s.attempt.intent.low_priority)
        low = most - sum(1 for s in every if s.attempt.intent.low_priority)
        return max(0, ordinary), max(0, ordinary) + max(0, low)
    ordinary = rules.pace - live_workers(state, seen) - seen.queued_ordinary
    return max(0, ordinary), max(0, 2 * rules.pace * rules.shards_per_worker - len(seen.queued))


def sends_for(state: RunState, seen: Survey, now: datetime, tuning: Tuning = DEFAULT_TUNING) -> tuple[tuple[Action, ...], bool]:
    """What to send now, and whether only the budget keeps something from being sent."""
    rules = state.rules
    actions: list[Action] = []
    stale: list[AttemptNote] = []
    again: list[Key] = []
    too_many = rules.scaler == "QUEUE_DELAY" and live_workers(state, seen) + seen.queued_ordinary > rules.pace
    for found in seen.queued:
        if found.state is AttemptState.INTENDED and found.attempt.client == state.client:
            wanted = found.attempt.intent
            fresh = not _passed(wanted.sent_at, tuning.fresh_s, now) and wanted.epoch == state.control.epoch
            if fresh and (wanted.low_priority or not too_many):
                again.append(found.attempt.key)
            else:
                stale.append(note_for(found.attempt, "rejected", now, cause="not_sent"))
    if stale:
        return ((NoteOutcome(tuple(stale)),), False)
    if again:
        actions.append(SendAgain(tuple(again)))
    if rules.workers_max < 1 or _mostly_failing(seen):
        return tuple(actions), False
    ordinary, queue = pace_room(state, seen)
    budget = math.inf if rules.budget_usd is None else rules.budget_usd - seen.settled_usd - seen.reserved_usd
    room = _Room(window=rules.window - len(seen.outstanding), ordinary=ordinary, low=queue, usd=budget)
    number = state.next_attempt
    intents: list[Intent] = []
    repeated: set[str] = set()
    refused = False
    for shard, kind in candidates(state, seen, now, tuning):
        extra = kind != "open"  # such a shard is outstanding already: it takes no room of the window
        if room.window <= 0 and not extra:
            continue
        if room.usd < rules.reserve_usd:
            refused = True
            break
        if kind == "promote" and room.ordinary <= 0:
            continue
        if extra:
            room.window += 1
            room.low = max(room.low, 1)
        low = room.take(rules.reserve_usd)
        if low is None:
            break
        intents.append(
            Intent(
                attempt=number,
                shard=shard,
                sent_at=now,
                start_by=start_by_for(now, rules.ttl_s, rules.execution_timeout_s),
                ttl_s=rules.ttl_s,
                execution_timeout_s=rules.execution_timeout_s,
                reserve_usd=rules.reserve_usd,
                epoch=state.control.epoch,
                low_priority=low,
            )
        )
        if shard in seen.by_shard:
            repeated.add(shard)
        number += 1
    for at in range(0, len(intents), MAX_INTENTS):
        batch = tuple(intents[at : at + MAX_INTENTS])
        actions.append(SendIntents(batch, frozenset(i.shard for i in batch if i.shard in repeated)))
    return tuple(actions), refused


def _mostly_failing(seen: Survey) -> bool:
    """More shards have failed in every attempt than have succeeded: sending the rest would only spend."""
    return len(seen.exhausted) >= 3 and len(seen.exhausted) > len(seen.tree.closed)


def candidates(state: RunState, seen: Survey, now: datetime, tuning: Tuning) -> Iterable[tuple[str, Literal["open", "promote", "unknown"]]]:
    """Shards to send, in order: never sent; then those whose attempts all ended; then, with nothing else left to send, queued lowPriority
    ones that no worker comes for, and those whose attempt has no answer. With nothing else outstanding at last one that shared its deaths
    with others, so that it dies, or does not, alone."""
    outstanding = set(seen.outstanding)
    held = {*seen.exhausted, *seen.suspects}
    waiting = [leaf.shard for leaf in seen.open if leaf.shard not in outstanding and leaf.shard not in held]
    never = [shard for shard in waiting if shard not in seen.by_shard]
    for shard in (*never, *(shard for shard in waiting if shard in seen.by_shard)):
        yield shard, "open"
    if waiting:
        return
    if not outstanding:
        yield from ((shard, "open") for shard in seen.suspects[:1])
        return
    if needs_promotion(state, seen, now, tuning):
        for shard in seen.outstanding:
            alive = [s for s in seen.by_shard[shard] if s.state in OUTSTANDING]
            if all(s.state is AttemptState.SENT and not s.started and s.attempt.intent.low_priority for s in alive):
                yield shard, "promote"
    grace = state.rules.execution_timeout_s + state.rules.cold_start_s
    for shard in seen.outstanding:
        alive = [s for s in seen.by_shard[shard] if s.state in OUTSTANDING]
        if all(s.state is AttemptState.UNKNOWN and _passed(s.attempt.intent.sent_at, grace, now) for s in alive):
            yield shard, "unknown"


def needs_promotion(state: RunState, seen: Survey, now: datetime, tuning: Tuning) -> bool:
    """lowPriority work waits, fewer workers live than are wanted, and no ordinary job asks for more (QUEUE_DELAY and REQUEST_COUNT)."""
    live = live_workers(state, seen)
    after = tuning.promote_after_s if live else tuning.promote_empty_s
    if seen.queued_low == 0 or state.short_since is None or not _passed(state.short_since, after, now):
        return False
    return live * state.rules.shards_per_worker < len(seen.queued) + len(seen.running) and live + seen.queued_ordinary < state.rules.pace


def _may_free_budget(state: RunState, seen: Survey, now: datetime, tuning: Tuning) -> bool:
    """Whether waiting a while can make room in the budget: something runs, or may be about to."""
    grace = state.rules.execution_timeout_s + state.rules.cold_start_s
    for found in (*seen.queued, *seen.running):
        if found.state is not AttemptState.UNKNOWN or not _passed(found.attempt.intent.sent_at, grace, now):
            return True
    looked = _markers_at(state, now)  # the next look at the markers may tell more
    if any(looked < attempt.expires_at <= now for attempt in state.attempts.values()):
        return True
    second = timedelta(seconds=tuning.second_look_s)
    return any(look_.since is not None and looked < look_.since + second for look_ in state.looks.values())


# --- a queue that does not move ------------------------------------------------------------------------------------------------------


def stall_for(state: RunState, seen: Survey, now: datetime, tuning: Tuning = DEFAULT_TUNING) -> Stall | None:
    """Why nothing moves, if nothing has for a while."""
    rules = state.rules
    if rules.workers_max < 1:
        return Stall(
            "no_workers",
            f"endpoint {state.plan.infra.endpoint} allows no workers (RunPod cuts idle endpoints to 2 after 3 days and to 0 after 7): "
            f"raise its workers.max again, with `nightbatch doctor {state.plan.infra.stack} --fix`.",
            final=True,
        )
    if seen.running or not seen.queued:
        return None
    # An intent that RunPod does not take gets a new number and a new instant; its shard has waited since the first of them.
    waiting = {s.attempt.intent.shard for s in seen.queued}
    first = min(s.attempt.intent.sent_at for shard in waiting for s in seen.by_shard[shard])
    since = max(state.progress_at or state.started_at, state.started_at, first)
    if not _passed(since, tuning.stall_named_s, now):
        return None
    waited = (now - since).total_seconds()
    cause, why = stall_cause(state, seen)
    final = waited >= tuning.stall_ends_s and cause != "busy"
    return Stall(cause, f"{len(seen.queued)} jobs have waited {waited / 60:.0f} min: {why}", final=final)


def stall_cause(state: RunState, seen: Survey) -> tuple[str, str]:
    """The cause, for programs and for people, from the last look at /health."""
    health = state.health
    if health is None:
        said = f" {state.health_error}" if state.health_error else ""
        return "unreachable", f"RunPod does not say how the endpoint is.{said}"
    able = health.idle + health.running
    if able == 0 and health.throttled > 0:
        return (
            "throttled",
            f"all {health.throttled} workers are throttled, RunPod has no such GPU free. Allow more GPU types or data centres.",
        )
    if able == 0 and health.unhealthy > 0:
        return "unhealthy", f"{health.unhealthy} workers are unhealthy: the image does not start. Look at the worker's logs."
    if able == 0 and health.initializing > 0:
        return "initializing", f"{health.initializing} workers are starting and none has become ready."
    if able == 0 and seen.queued_ordinary == 0:
        return "only_low_priority", "no worker lives, and lowPriority jobs do not make RunPod start one."
    if able == 0:
        return (
            "no_worker_starts",
            "no worker lives, and RunPod starts none for ordinary jobs either. Look at the endpoint's workers.max "
            "(RunPod cuts idle endpoints to 2 after 3 days and to 0 after 7) and at the account's balance and quota.",
        )
    return "busy", f"{able} workers live and take none of this run's jobs: other work may be before them."


def next_instant(state: RunState, seen: Survey, now: datetime, tuning: Tuning) -> datetime:
    """When to decide again if nothing wakes the client before."""
    due = now + timedelta(seconds=tuning.pace_every_s)
    if state.unflushed_since is not None:
        due = min(due, state.unflushed_since + timedelta(seconds=tuning.note_flush_s))
    for known in state.looks.values():
        if known.since is not None:
            second = known.since + timedelta(seconds=tuning.second_look_s)
            if second > now:
                due = min(due, second)
    if state.rules.deadline is not None:
        due = min(due, state.rules.deadline)
    return max(due, now)


def shard_states(seen: Survey) -> dict[str, int]:
    """Shards by what a person wants to know of them: done, running, queued, waiting, failed."""
    running = {s.attempt.intent.shard for s in seen.running}
    outstanding = set(seen.outstanding)
    failed = len(seen.exhausted)
    return {
        "done": len(seen.tree.closed),
        "running": len(running),
        "queued": len(outstanding - running),
        "waiting": len(seen.open) - len(outstanding) - failed,
        "failed": failed,
    }


def rows_done(commits: Sequence[Leaf]) -> tuple[int, int]:
    """Rows ok and failed in committed leaves."""
    closed = [leaf.commit for leaf in commits if leaf.commit is not None]
    return sum(c.ok for c in closed), sum(c.failed for c in closed)
