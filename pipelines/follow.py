"""pipelines: the loop of a client: read the store, decide (contract.protocol), act, wait. Touches the store, RunPod through JobsApi, the
ledger.

`drive` is the same for run, submit, resume and a second client: it starts from the store alone, and what it keeps in memory (job states,
health) is only what it can ask for again. A tick costs a handful of requests, whatever the number of shards: one for control, one for
the journal's next entry, a listing of commits; markers and /health at a slower pace; /status only for jobs that a webhook spoke of or
that are due.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from contract.errors import (
    EndpointAuth,
    EndpointError,
    EndpointMissing,
    EndpointUnavailable,
    EndpointUnreachable,
    InfrastructureError,
    RateLimited,
    Refused,
    StoreError,
    StoreUnavailable,
)
from contract.facts import EndpointFacts, Stack
from contract.models import (
    AttemptNote,
    Commit,
    Control,
    EndMarker,
    Intent,
    JobInput,
    JobRequest,
    JournalEntry,
    PhaseSeconds,
    Policy,
    Source,
)
from contract.net import on_this_machine
from contract.protocol import (
    DEFAULT_TUNING,
    Attempt,
    AttemptState,
    CancelJob,
    Finish,
    FlushNotes,
    Health,
    Key,
    Look,
    LookAtStatus,
    NoteOutcome,
    Pause,
    RaiseEpoch,
    Rules,
    RunState,
    SendAgain,
    SendIntents,
    Stall,
    Survey,
    Tuning,
    Wait,
    budget_needed,
    decide,
    errors_of,
    fold,
    fold_starts,
    look,
    note_for,
    rows_done,
    rules_for,
    settled_usd,
    shard_states,
    survey,
    with_note,
    worker_seconds,
)
from contract.store import Store
from contract.tree import Leaf, list_commits, read_commits
from pipelines.cancel import set_control
from pipelines.failures import FailureCounts
from pipelines.journal import MAX_NOTES, Journal
from pipelines.ledger import Ledger, LedgerAttempt
from pipelines.markers import Markers, read_markers
from pipelines.runpod import JobsApi, Timer
from pipelines.runs import RunHandle, endpoint_of, read_control
from pipelines.webhook import WebhookReceiver

MARKERS_PER_SECOND: Final = 1000
"""Markers are listed anew at most once in (their number / this) seconds, at least every MARKER_EVERY_S."""
MARKER_EVERY_S: Final = 2.0
POLL_GROWS_S: Final = 60.0
GAP_S: Final = 0.2
"""Between two ticks, however many webhooks come."""
HEALTH_OLD_S: Final = 60.0
HEALTH_SOON_S: Final = 2.0
"""A look at /health that is older than the markers would count a job that has begun neither as queued nor as a worker."""
ASLEEP_S: Final = 60.0
"""A longer gap between two ticks says nothing about the queue."""
STORE_PATIENCE_S: Final = 900.0
SETTLE_S: Final = 5.0
"""After the last commit, how long the end markers that follow it are waited for."""
LEAVE_S: Final = 3.0
"""At an interruption, how long the store may take for the last notes."""
MOST_LOOKS: Final = 400
"""At /status in one tick, beside those that webhooks spoke of: RunPod allows 2,000 in 10 s, and a tick that asked for all of 5,000 jobs
would hear of no commit and send nothing for 25 s (measured). The others are due again in the next tick."""
DEADLINE_SHARE: Final = 0.9
"""Of executionTimeout, what an execution may use before it keeps its pieces and answers: RunPod stops the worker at the whole."""


# --- events and results --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """How the run stands; sent when something changed, at most once a tick. Rows count when committed, never before."""

    rows: int
    ok: int
    failed: int
    shards: dict[str, int]
    """By state: done, running, queued, waiting, failed."""
    attempts: int
    workers: Health | None
    worker_seconds: float
    usd_estimated: float
    usd_reserved: float
    elapsed_s: float
    tokens_in: int = 0
    tokens_out: int = 0
    """Of committed shards."""
    share: float = 0.0
    """Of the planned tokens, that of committed shards: shards of one run need not take equally long."""
    usd_so_far: float = 0.0
    """`usd_estimated`, and what executions that still run have cost until now."""
    usd_projected: float | None = None
    """What the whole run will have cost at what a token cost so far; None until there is something to go by."""
    failures: tuple[tuple[str, int], ...] = ()
    """Failed rows by code, the most frequent first, as far as they have been counted (pipelines.failures)."""
    died: tuple[tuple[str, int], ...] = ()
    """Attempts that died or expired, by cause, the most frequent first."""


@dataclass(frozen=True)
class Sent:
    """Jobs that RunPod accepted in this tick."""

    ordinary: int
    low_priority: int


@dataclass(frozen=True)
class Ended:
    """An attempt that died or expired; its shard is not failed for that."""

    shard: str
    attempt: int
    state: Literal["dead", "expired", "rejected"]
    cause: str | None
    error: str | None = None
    """Why its job failed, in the worker's words."""


@dataclass(frozen=True)
class Notice:
    """One thing that a person should know: `stall`, `waiting`, `limits`, `other_client`, `store`, `endpoint`, `ledger`, `foreign`."""

    kind: str
    text: str


Event = Progress | Sent | Ended | Notice
Events = Callable[[Event], None]
LiveLimits = Callable[[str], Awaitable[int]]
"""Endpoint id -> its workers.max as RunPod has it now. Raises InfrastructureError where RunPod does not say. The CLI brings one."""
State = Literal["complete", "paused", "stopped", "stalled", "failed", "sent"]


@dataclass(frozen=True)
class DriveResult:
    """How a drive ended. `cause` is a word for programs, `reason` a sentence. Rows and tokens are those of commits; seconds by phase,
    worker seconds and dollars are those of all executions, losers included."""

    run: str
    state: State
    cause: str
    reason: str
    rows: int
    ok: int
    failed: int
    shards: int
    shards_done: int
    attempts: int
    executions: int
    seconds: PhaseSeconds
    worker_seconds: float
    usd_estimated: float
    usd_reserved: float
    tokens_in: int
    tokens_out: int
    elapsed_s: float
    failed_shards: tuple[str, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    """Shards that are not done with what the last of their jobs said that died."""
    workers: int = 0
    """On which executions have begun."""
    usd_needed: float | None = None
    """After a budget's stop: the least budget with which it could go on."""


def ignore(event: Event) -> None:
    """No progress is wanted."""


# --- one client ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What a tick came to: `done` where the drive is over; else when to look again at the latest. `again`: at once."""

    done: Finish | Pause | Stall | None = None
    until: datetime | None = None
    again: bool = False
    sent: bool = False


class Driver:
    """One client of one run. `step()` is one tick and does not wait; `drive` is the loop around it."""

    def __init__(
        self,
        run: RunHandle,
        *,
        stack: Stack,
        jobs: JobsApi,
        store: Store,
        rules: Rules,
        events: Events = ignore,
        timer: Timer | None = None,
        tuning: Tuning = DEFAULT_TUNING,
        client: str | None = None,
        webhook: WebhookReceiver | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.run = run
        self.stack = stack
        self.jobs = jobs
        self.store = store
        self.rules = rules
        self.events = events
        self.timer = timer or Timer()
        self.tuning = tuning
        self.client = client or secrets.token_hex(4)
        self.webhook = webhook
        self.ledger = ledger
        self.journal = Journal(store, run.keys, run.plan.plan_id, self.client)
        self.wake = asyncio.Event()
        self._began = self.timer.monotonic()
        self._started_at: datetime = store.now()
        self._control: Control = Control(plan=run.plan.plan_id, at=run.plan.created_at, by="nobody")
        self._attempts: dict[Key, Attempt] = {}
        self._sources: dict[str, Source] = {s.shard: s.source for s in run.plan.shards}
        self._row_tokens = {s.shard: s.tokens / s.source.count for s in run.plan.shards}
        self._planned_tokens = sum(s.tokens for s in run.plan.shards)
        self._failures = FailureCounts()
        self._pending: list[AttemptNote] = []
        self._pending_since: datetime | None = None
        self._commits: dict[str, Commit] = {}
        self._commits_at: datetime | None = None
        self._markers = Markers()
        self._markers_at: float | None = None
        self._markers_seen: datetime | None = None
        self._looks: dict[Key, Look] = {}
        self._health: Health | None = None
        self._health_at: datetime | None = None
        self._health_ok: datetime | None = None
        self._health_error: str | None = None
        self._empty_since: datetime | None = None
        self._short_since: datetime | None = None
        self._progress_at: datetime | None = None
        self._ticked_at: datetime | None = None
        self._cleared: set[int] = set()
        self._told: dict[str, str] = {}
        self._woken: set[Key] = set()
        self._cancelled: set[Key] = set()
        self._shown: Progress | None = None
        self._stall_named: str | None = None
        self._others: set[str] = set()
        self._foreign = 0
        self._recorded: dict[Key, tuple[AttemptState, str | None]] = {}

    # -- what a webhook does

    def woke(self, shard: str, attempt: int) -> None:
        """A webhook with the right token came: look at this attempt soon. Nothing else follows from it."""
        key = (self.client, attempt)
        known = self._attempts.get(key)
        if known is not None and known.intent.shard == shard:
            self._woken.add(key)
            self.wake.set()
        if self.ledger is not None:
            self._in_ledger(lambda ledger: ledger.webhook(str(self.run.uri), shard, attempt, self.store.now()))

    # -- one tick

    async def step(self) -> Step:
        """Read, decide, act. Raises AccessDenied and EndpointAuth at once; StoreUnavailable where the store gave no answer: nothing is
        lost by calling `step` again."""
        await self.refresh()
        now = self.store.now()
        if self._ticked_at is None:
            self._started_at = now  # the store has answered: from here on `now` is its time, not this machine's
        elif now > self._ticked_at + timedelta(seconds=ASLEEP_S):
            self._progress_at = now  # this machine slept, or the store was away: nothing is known of the time between
        self._ticked_at = now
        self._drop_uncleared(now)
        state = self.state()
        actions = decide(state, now, self.tuning)
        result = Step(again=True)
        for at, action in enumerate(actions):
            match action:
                case NoteOutcome(notes):
                    self._note(notes)
                case LookAtStatus(keys):
                    await self._look(keys)
                case CancelJob(keys):
                    await self._cancel(keys)
                case RaiseEpoch(mode, reason):
                    self._control = await set_control(
                        self.store, self.run.keys, self.run.plan, mode=mode, by=self.client, reason=reason, raise_epoch=True
                    )
                    break
                case SendAgain(keys):
                    await self._send([self._attempts[key] for key in keys])
                case SendIntents():
                    self._say_if_promoted(action, state)
                    batches = [a for a in actions[at:] if isinstance(a, SendIntents)]
                    if not await self._send_batches(batches):
                        break
                case FlushNotes():
                    await self._flush()
                case Stall() if not action.final:
                    if self._stall_named != action.cause:
                        self._stall_named = action.cause
                        self.events(Notice("stall", action.reason))
                case Finish() | Pause() | Stall():
                    result = Step(done=action)
                case Wait(until):
                    result = Step(until=until)
            if isinstance(action, SendIntents):
                # The remaining batches went with the first one.
                result = Step(until=now + timedelta(seconds=self.tuning.poll_first_s), sent=True)
                break
        self._woken.clear()
        if self.events is not ignore:
            await self._failures.read(self.store)
        self._report()
        return result

    def state(self) -> RunState:
        """What this client knows now."""
        return RunState(
            plan=self.run.plan,
            rules=self.rules,
            client=self.client,
            control=self._control,
            started_at=self._started_at,
            attempts=self._attempts,
            commits=self._commits,
            commits_at=self._commits_at,
            starts=self._markers.starts,
            ends=self._markers.ends,
            markers_at=self._markers_seen,
            looks=self._looks,
            health=self._health,
            health_at=self._health_at,
            health_error=self._health_error,
            empty_since=self._empty_since,
            short_since=self._short_since,
            progress_at=self._progress_at,
            woken=frozenset(self._woken),
            cancelled=frozenset(self._cancelled),
            unflushed_since=self._pending_since,
        )

    # -- reading

    async def refresh(self, *, markers: bool = False) -> None:
        """Bring the state up to the store and to RunPod's gauge."""
        self._learn(await self.journal.refresh())
        self._control, _ = await read_control(self.store, self.run.keys, self.run.plan)
        woken, moved = bool(self._woken), False
        await self._refresh_commits()
        count = len(self._markers.starts) + len(self._markers.ends)
        every = max(MARKER_EVERY_S, count / MARKERS_PER_SECOND)
        since = None if self._markers_at is None else self.timer.monotonic() - self._markers_at
        if markers or since is None or since >= every or (woken and since >= GAP_S):
            seen = self.store.now()
            await read_markers(self.store, self.run.keys, self.run.plan.plan_id, self._markers)
            self._markers_at, self._markers_seen = self.timer.monotonic(), seen
            if len(self._markers.starts) + len(self._markers.ends) > count:
                self._progress_at = self.store.now()
                self._attempts = fold_starts(self._attempts, self._markers.starts.values())
                moved = True
        await self._refresh_health(HEALTH_SOON_S if moved else self.tuning.pace_every_s)
        foreign = len(self.journal.foreign) + len(self._markers.foreign)
        if foreign > self._foreign:
            self._foreign = foreign
            self.events(
                Notice("foreign", f"{foreign} objects under {self.run.uri} belong to another plan or are damaged; they are ignored.")
            )

    def _learn(self, entries: Iterable[JournalEntry]) -> None:
        entries = tuple(entries)
        self._attempts = fold(self._attempts, entries)
        for entry in entries:
            if entry.client != self.client and entry.intents and entry.at > self._started_at and entry.client not in self._others:
                self._others.add(entry.client)
                self.events(Notice("other_client", f"another client ({entry.client}) works on this run too; both share its journal."))

    async def _refresh_commits(self) -> None:
        at = self.store.now()
        fresh = [name for name in await list_commits(self.store, self.run.keys, self.run.plan) if name not in self._commits]
        if fresh:
            found = await read_commits(self.store, self.run.keys, fresh)
            self._commits.update(found)
            self._failures.saw(found.values())
            self._progress_at = self.store.now()
        self._commits_at = at

    async def _refresh_health(self, every_s: float) -> None:
        now = self.store.now()
        if self._health_at is not None and now < self._health_at + timedelta(seconds=every_s):
            return
        self._health_at = now
        try:
            health = await self.jobs.health()
        except (EndpointAuth, EndpointMissing):
            raise
        except EndpointError as error:
            self._empty_since = self._short_since = None
            self._health_error = str(error)
            if self._health_ok is None or now > self._health_ok + timedelta(seconds=HEALTH_OLD_S):
                if self._health is not None or self._health_ok is None:
                    self.tell("endpoint", str(error))
                self._health = None
                self._health_ok = now
            return
        self._health, self._health_ok, self._health_error = health, now, None
        self._empty_since = (self._empty_since or now) if health.empty else None
        self._short_since = (self._short_since or now) if health.live < self.rules.pace else None

    # -- acting

    def _note(self, notes: Iterable[AttemptNote]) -> None:
        for note in notes:
            key = (note.client or self.client, note.attempt)
            known = self._attempts[key]
            self._attempts[key] = with_note(known, note)
            self._pending.append(note)
            if self._pending_since is None:
                self._pending_since = note.at
            if note.state in ("dead", "expired", "rejected") and note.cause not in ("yielded", "not_sent"):
                self.events(Ended(known.intent.shard, note.attempt, note.state, note.cause, note.error))

    async def _send_batches(self, batches: list[SendIntents]) -> bool:
        """Journal each batch, and send it while the next one is journaled. False: the world changed, decide again."""
        repeated = frozenset[str]().union(*(batch.again for batch in batches))
        if repeated:
            found = await read_commits(self.store, self.run.keys, sorted(repeated))
            if found:
                self._commits.update(found)
                return False
        sends: list[asyncio.Task[None]] = []
        try:
            for batch in batches:
                if not await self._append(batch.intents):
                    return False
                attempts = [self._attempts[self.client, intent.attempt] for intent in batch.intents]
                sends.append(asyncio.create_task(self._send(attempts)))
            return True
        finally:
            await asyncio.gather(*sends)

    async def _append(self, intents: tuple[Intent, ...]) -> bool:
        """One journal entry with these intents and the notes that wait. Whether the intents may be sent."""
        notes = tuple(self._pending[:MAX_NOTES])
        number = self.journal.next_number
        stands, entries = await self.journal.append(intents, notes, self.store.now())
        self._learn(entries)
        if stands:
            self._cleared.update(intent.attempt for intent in intents)
        if any(e.client == self.client and e.number == number for e in entries):
            del self._pending[: len(notes)]
            self._pending_since = self._pending[0].at if self._pending else None
            if not stands:
                now = self.store.now()
                mine = (self._attempts[self.client, intent.attempt] for intent in intents)
                self._note(tuple(note_for(attempt, "rejected", now, cause="yielded") for attempt in mine))
        return stands

    def _drop_uncleared(self, now: datetime) -> None:
        """Intents of an entry whose writing failed on the way and that stands all the same: nobody has looked whether another client wrote
        before, so they are not sent."""
        lost = [
            a for key, a in self._attempts.items() if key[0] == self.client and a.noted is None and a.intent.attempt not in self._cleared
        ]
        self._note(note_for(attempt, "rejected", now, cause="not_sent") for attempt in lost)

    async def _flush(self) -> None:
        while self._pending:
            before = len(self._pending)
            await self._append(())
            if len(self._pending) >= before:
                return  # another client wrote first: the next tick tries again

    async def _send(self, attempts: list[Attempt]) -> None:
        await asyncio.gather(*(self._send_one(attempt) for attempt in attempts))
        accepted = [a for a in attempts if self._attempts[a.key].noted == "sent"]
        if accepted:
            low = sum(a.intent.low_priority for a in accepted)
            self.events(Sent(len(accepted) - low, low))

    async def _send_one(self, attempt: Attempt) -> None:
        source = self._source(attempt.intent.shard)
        if source is None:
            return
        try:
            job_id = await self.jobs.run(self.request_for(attempt.intent, source))
        except (RateLimited, EndpointUnreachable):
            return  # certainly not accepted: the intent stays, and is sent again on a later tick
        except EndpointUnavailable as error:
            self._note((note_for(attempt, "unknown", self.store.now(), cause=error.what),))
        except EndpointAuth:
            self._note((note_for(attempt, "rejected", self.store.now(), cause="auth"),))
        except EndpointMissing:
            self._note((note_for(attempt, "rejected", self.store.now(), cause="endpoint"),))
        except Refused as error:
            self._note((note_for(attempt, "rejected", self.store.now(), cause=error.what),))
        else:
            self._note((note_for(attempt, "sent", self.store.now(), job_id=job_id),))

    def _source(self, shard: str) -> Source | None:
        found = self._sources.get(shard)
        if found is None:
            parent = self._commits.get(shard.rpartition(".")[0])
            for child in getattr(parent, "children", ()):
                if child.shard == shard:
                    found = self._sources[shard] = child.source
        return found

    def request_for(self, intent: Intent, source: Source) -> JobRequest:
        """The body of /run for an intent."""
        plan = self.run.plan
        return JobRequest(
            input=JobInput(
                version=plan.version,
                run=plan.run,
                plan=plan.plan_id,
                shard=intent.shard,
                attempt=intent.attempt,
                epoch=intent.epoch,
                source=source,
                start_by=intent.start_by,
                deadline_s=max(1.0, intent.execution_timeout_s * DEADLINE_SHARE),
                task=plan.task,
            ),
            s3Config=self.stack.secrets.worker_s3,
            webhook=self.webhook.url_for(intent.shard, intent.attempt) if self.webhook else None,
            policy=Policy(
                lowPriority=intent.low_priority,
                executionTimeout=max(5_000, round(intent.execution_timeout_s * 1000)),
                ttl=max(10_000, round(intent.ttl_s * 1000)),
            ),
        )

    async def _look(self, keys: tuple[Key, ...]) -> None:
        async def one(key: Key) -> None:
            job_id = self._attempts[key].job_id
            if job_id is None:
                return
            try:
                status = await self.jobs.status(job_id)
            except (EndpointAuth, EndpointMissing):
                raise
            except EndpointError:
                return  # a hint that did not come: the next tick asks again
            if status.error:
                status = replace(status, error=self._clean(status.error))  # the journal keeps it, and a worker may have said anything
            now = self.store.now()
            before = self._looks.get(key)
            self._looks[key] = look(before, status, now)
            if before is None or before.status.status != status.status:
                self._progress_at = now

        told = [key for key in keys if key in self._woken]
        others = [key for key in keys if key not in self._woken]
        await asyncio.gather(*(one(key) for key in [*told, *others[: max(0, MOST_LOOKS - len(told))]]))

    def _clean(self, text: str) -> str:
        for secret in self.stack.secrets.values:
            if secret:
                text = text.replace(secret, "<hidden>")
        return text

    async def _cancel(self, keys: tuple[Key, ...]) -> None:
        async def one(key: Key) -> None:
            job_id = self._attempts[key].job_id
            if job_id is None:
                return
            try:
                await self.jobs.cancel(job_id)
            except EndpointError as error:
                self.tell("endpoint", str(error))
                return
            self._cancelled.add(key)

        await asyncio.gather(*(one(key) for key in keys))

    # -- telling

    def tell(self, kind: str, text: str) -> None:
        """A notice, unless the last one of its kind said the same."""
        if self._told.get(kind) != text:
            self._told[kind] = text
            self.events(Notice(kind, text))

    def _report(self) -> None:
        now = self.store.now()
        state = self.state()
        seen = survey(state, now, self.tuning)
        progress = self.progress(seen, now)
        if self._shown is None or _visible(progress) != _visible(self._shown):
            self._shown = progress
            self.events(progress)
        if self.ledger is not None:
            self._record(seen, progress, now)

    def _say_if_promoted(self, action: SendIntents, state: RunState) -> None:
        """That jobs waited for a worker which has gone: a person would wonder why nothing moves, and why there is one attempt more."""
        low = {a.intent.shard for a in state.attempts.values() if a.intent.low_priority}
        again = [i.shard for i in action.intents if i.shard in action.again and not i.low_priority and i.shard in low]
        if again and state.health is not None and state.health.live == 0:
            jobs = "1 job waits" if len(again) == 1 else f"{len(again)} jobs wait"
            self.tell("waiting", f"no worker lives any more, and {jobs} with low priority; sent again so that RunPod starts a worker.")

    def progress(self, seen: Survey, now: datetime) -> Progress:
        """How the run stands."""
        ok, failed = rows_done(seen.tree.leaves)
        commits = [leaf.commit for leaf in seen.tree.closed if leaf.commit is not None]
        share, so_far = self._share(seen.tree.closed), self._usd_so_far(now)
        return Progress(
            rows=self.run.plan.dataset.rows,
            ok=ok,
            failed=failed,
            shards=shard_states(seen),
            attempts=len(seen.standings),
            workers=self._health,
            worker_seconds=worker_seconds(self._markers.starts, self._markers.ends, self.rules.execution_timeout_s, now),
            usd_estimated=seen.settled_usd,
            usd_reserved=seen.reserved_usd,
            elapsed_s=self.timer.monotonic() - self._began,
            tokens_in=sum(c.tokens_in for c in commits),
            tokens_out=sum(c.tokens_out for c in commits),
            share=share,
            usd_so_far=so_far,
            usd_projected=so_far if seen.tree.closed and not seen.open else self._usd_projected(seen, so_far),
            failures=self._failures.codes,
            died=_died(seen),
        )

    def _share(self, closed: Iterable[Leaf]) -> float:
        if not self._planned_tokens:
            return 0.0
        done = sum(self._row_tokens[leaf.shard.partition(".")[0]] * leaf.source.count for leaf in closed)
        return min(1.0, done / self._planned_tokens)

    def _usd_so_far(self, now: datetime) -> float:
        """What would be settled if the executions that run now ended now."""
        markers, timeout = self._markers, self.rules.execution_timeout_s
        running = {
            execution: EndMarker(
                plan=start.plan,
                shard=start.shard,
                execution=execution,
                attempt=start.attempt,
                outcome="partial",
                wall_s=max(0.0, (now - start.at).total_seconds()),
                seconds=PhaseSeconds(),
                at=now,
            )
            for execution, start in markers.starts.items()
            if execution not in markers.ends and now < start.at + timedelta(seconds=timeout)
        }
        ends = {**markers.ends, **running} if running else markers.ends
        return worker_seconds(markers.starts, ends, timeout, now) * self.rules.usd_per_second

    def _usd_projected(self, seen: Survey, so_far: float) -> float | None:
        """What is settled, and the rest at its price: that of the shards whose executions are known to be over. Engine starts are not
        counted again, since the workers that will go on are there."""
        ends, settled = self._markers.ends, seen.settled_usd
        share = self._share(leaf for leaf in seen.tree.closed if leaf.commit is not None and leaf.commit.execution in ends)
        if share <= 0 or settled <= 0:
            return None
        starts = sum(start.load_s for execution, start in self._markers.starts.items() if execution in ends)
        computing = max(0.0, settled - starts * self.rules.usd_per_second)
        return max(so_far, settled + computing / share * (1 - share))

    def _record(self, seen: Survey, progress: Progress, now: datetime) -> None:
        changed: list[LedgerAttempt] = []
        for key, found in seen.standings.items():
            mark = (found.state, found.attempt.job_id)
            if self._recorded.get(key) != mark:
                self._recorded[key] = mark
                a = found.attempt
                changed.append(
                    LedgerAttempt(
                        a.client,
                        a.intent.attempt,
                        a.intent.shard,
                        found.state.value,
                        found.cause,
                        a.job_id,
                        a.intent.low_priority,
                        a.intent.sent_at,
                    )
                )
        if not changed:
            return
        uri = str(self.run.uri)

        def write(ledger: Ledger) -> None:
            ledger.attempts(uri, changed, now)
            ledger.cost(
                uri,
                worker_seconds=progress.worker_seconds,
                usd_estimated=progress.usd_estimated,
                usd_reserved=progress.usd_reserved,
                at=now,
            )

        self._in_ledger(write)

    def record_run(self, state: str) -> None:
        """The run's line in the ledger."""
        if self.ledger is None:
            return
        ok, failed = rows_done(survey(self.state(), self.store.now(), self.tuning).tree.leaves)
        plan = self.run.plan
        self._in_ledger(
            lambda ledger: ledger.run(
                str(self.run.uri),
                run_id=plan.run_id,
                stack=plan.infra.stack,
                state=state,
                rows=plan.dataset.rows,
                ok=ok,
                failed=failed,
                created_at=plan.created_at,
            )
        )

    def _in_ledger(self, write: Callable[[Ledger], None]) -> None:
        if self.ledger is None:
            return
        try:
            write(self.ledger)
        except InfrastructureError as error:
            self.ledger = None  # a cache: the run goes on without it
            self.events(Notice("ledger", str(error)))

    # -- the end

    async def leave(self) -> None:
        """Interrupted: what is known of the jobs goes into the journal, if the store takes it at once. Without it they count as unknown."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._flush()
        self.record_run("interrupted")

    async def settle(self) -> None:
        """Wait a moment for the end markers that follow the last commits, so that costs are not guessed high."""
        until = self.timer.monotonic() + SETTLE_S
        while self.timer.monotonic() < until:
            await read_markers(self.store, self.run.keys, self.run.plan.plan_id, self._markers)
            won = {c.execution for c in self._commits.values() if hasattr(c, "execution")}
            if won <= self._markers.ends.keys():
                return
            await self.timer.sleep(0.25)

    def result(self, state: State, cause: str, reason: str) -> DriveResult:
        """How things stand, with this end."""
        now = self.store.now()
        current = self.state()
        seen = survey(current, now, self.tuning)
        ok, failed = rows_done(seen.tree.leaves)
        commits = [leaf.commit for leaf in seen.tree.closed if leaf.commit is not None]
        phases = [end.seconds for end in self._markers.ends.values()]
        # Of an execution without end its engine start is all that is known.
        unended = sum(start.load_s for execution, start in self._markers.starts.items() if execution not in self._markers.ends)
        return DriveResult(
            run=str(self.run.uri),
            state=state,
            cause=cause,
            reason=reason,
            rows=self.run.plan.dataset.rows,
            ok=ok,
            failed=failed,
            shards=len(seen.tree.leaves),
            shards_done=len(seen.tree.closed),
            attempts=sum(1 for s in seen.standings.values() if s.state is not AttemptState.REJECTED),
            executions=len(self._markers.starts),
            seconds=PhaseSeconds(
                loading=sum(p.loading for p in phases) + unended,
                reading=sum(p.reading for p in phases),
                computing=sum(p.computing for p in phases),
                writing=sum(p.writing for p in phases),
            ),
            worker_seconds=worker_seconds(self._markers.starts, self._markers.ends, self.rules.execution_timeout_s, now),
            usd_estimated=settled_usd(current, now),
            usd_reserved=seen.reserved_usd,
            tokens_in=sum(c.tokens_in for c in commits),
            tokens_out=sum(c.tokens_out for c in commits),
            elapsed_s=self.timer.monotonic() - self._began,
            failed_shards=seen.exhausted,
            errors=errors_of(seen),
            workers=len({start.worker_id for start in self._markers.starts.values()}),
            usd_needed=budget_needed(self.rules, seen) if cause == "budget" else None,
        )


def _visible(progress: Progress) -> tuple[object, ...]:
    return (
        progress.ok,
        progress.failed,
        tuple(progress.shards.items()),
        progress.attempts,
        progress.workers,
        round(progress.usd_estimated, 4),
        round(progress.usd_so_far, 4),
        progress.failures,
        progress.died,
    )


def _died(seen: Survey) -> tuple[tuple[str, int], ...]:
    """Attempts that died or expired, by cause; those that were cancelled on purpose are none."""
    causes = Counter(s.cause or s.state.value for s in seen.standings.values() if s.state in (AttemptState.DEAD, AttemptState.EXPIRED))
    return tuple(sorted(causes.items(), key=lambda item: (-item[1], item[0])))


# --- the loop ------------------------------------------------------------------------------------------------------------------------


async def drive(
    run: RunHandle,
    *,
    stack: Stack,
    jobs: JobsApi,
    store: Store,
    events: Events = ignore,
    timer: Timer | None = None,
    budget_usd: float | None = None,
    pace: int | None = None,
    deadline: datetime | None = None,
    allow_mixed_image: bool = False,
    follow: bool = True,
    webhooks: bool = True,
    webhook_url: str | None = None,
    webhook_port: int = 0,
    ledger: Ledger | None = None,
    tuning: Tuning = DEFAULT_TUNING,
    client: str | None = None,
    rng: random.Random | None = None,
    live_limits: LiveLimits | None = None,
) -> DriveResult:
    """Send what is open and follow it until the run is complete, or something stops it.

    `follow` False: return (state `sent`) once the window is full and everything sent is answered. Cancelling the task leaves a run that
    can be resumed: jobs that are out stay out, and what is not in the journal by then counts as unknown. `live_limits` is asked once,
    before the first job: an endpoint that RunPod's idle rule has cut stalls the run before anything is sent, or gives it a slower pace.
    Raises AccessDenied and StoreUnavailable (after a quarter of an hour), EndpointAuth, EndpointMissing, PlanMismatch.
    """
    endpoint = endpoint_of(run.plan, stack.facts)
    rules = rules_for(
        run.plan,
        workers_max=await allowed_workers(endpoint, stack.facts.stack, live_limits, events),
        image=endpoint.image,
        pace=pace,
        budget_usd=budget_usd,
        deadline=deadline,
        allow_mixed_image=allow_mixed_image,
    )
    driver = Driver(
        run, stack=stack, jobs=jobs, store=store, rules=rules, events=events, timer=timer, tuning=tuning, client=client, ledger=ledger
    )
    async with AsyncExitStack() as opened:
        if follow and webhooks and (webhook_url is not None or on_this_machine(stack.facts.api_url)):
            receiver = WebhookReceiver(run.uri.run_id, driver.woke, public_url=webhook_url, port=webhook_port)
            driver.webhook = await opened.enter_async_context(receiver)
        try:
            return await _loop(driver, follow=follow, rng=rng or random.Random())
        except BaseException:
            await driver.leave()
            raise


async def allowed_workers(endpoint: EndpointFacts, stack: str, live_limits: LiveLimits | None, events: Events) -> int:
    """workers.max to go by: the lower of RunPod's own and the facts', which are the stack's ceiling; the facts' alone where RunPod does not
    say. What RunPod has cut, or does not say, is a notice."""
    if live_limits is None:
        return endpoint.workers_max
    try:
        now = await live_limits(endpoint.id)
    except InfrastructureError as error:
        events(
            Notice(
                "limits",
                f"how many workers endpoint {endpoint.name} may have now could not be read ({error}); going by the stack's facts: "
                f"{endpoint.workers_max}.",
            )
        )
        return endpoint.workers_max
    if 0 < now < endpoint.workers_max:
        events(
            Notice(
                "limits",
                f"endpoint {endpoint.name} may have {now} workers now, and stack '{stack}' declares {endpoint.workers_max} (RunPod cuts "
                f"idle endpoints to 2 after 3 days and to 0 after 7); going on with {now}. Raise it again: nightbatch doctor {stack} --fix",
            )
        )
    return min(now, endpoint.workers_max)


async def _loop(driver: Driver, *, follow: bool, rng: random.Random) -> DriveResult:
    timer = driver.timer
    failing_since: float | None = None
    conflicts = 0
    driver.record_run("running")
    done: Finish | Pause | Stall | None = None
    while done is None:
        driver.wake.clear()
        began = timer.monotonic()
        try:
            step = await driver.step()
            failing_since = None
        except StoreUnavailable as error:
            failing_since = began if failing_since is None else failing_since
            if began - failing_since > STORE_PATIENCE_S:
                raise
            driver.tell("store", f"{error} Trying again.")
            await timer.sleep(rng.uniform(2.0, 6.0))
            continue
        done = step.done
        if done is None and not follow and _all_sent(driver, step):
            await driver._flush()
            driver.record_run("sent")
            return driver.result("sent", "sent", "the jobs are out; resume follows them.")
        conflicts = conflicts + 1 if step.again else 0
        if done is None and step.again:  # two clients that yield to each other must not do so in step for ever
            await timer.sleep(rng.uniform(0.02, 0.1 * 2 ** min(conflicts, 6)))
        elif done is None:
            await _wait(driver, step, began)
    if isinstance(done, Finish) and done.state == "complete":
        await driver.settle()
    else:
        await driver.refresh(markers=True)
    state: State = done.state if isinstance(done, Finish) else "paused" if isinstance(done, Pause) else "stalled"
    driver.record_run(state)
    driver._report()
    return driver.result(state, done.cause, done.reason)


def _all_sent(driver: Driver, step: Step) -> bool:
    """The last decision sent nothing, though it could have, and nothing of this client's waits to be sent again."""
    seen = survey(driver.state(), driver.store.now(), driver.tuning)
    waits = any(s.state is AttemptState.INTENDED for s in seen.standings.values())
    return not step.sent and not step.again and not waits and bool(seen.outstanding)


async def _wait(driver: Driver, step: Step, began: float) -> None:
    """Until something wakes the client, the poll interval is over, or the decision's own instant has come."""
    timer = driver.timer
    age = timer.monotonic() - driver._began
    seconds = min(driver.tuning.poll_most_s, driver.tuning.poll_first_s + age / POLL_GROWS_S)
    if step.until is not None:
        seconds = min(seconds, max(GAP_S, (step.until - driver.store.now()).total_seconds()))
    gap = GAP_S - (timer.monotonic() - began)
    if gap > 0:
        await timer.sleep(gap)
        seconds -= gap
    if seconds > 0:
        waker = asyncio.ensure_future(driver.wake.wait())
        sleeper = asyncio.ensure_future(timer.sleep(seconds))
        try:
            await asyncio.wait((waker, sleeper), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waker, sleeper):
                task.cancel()
            await asyncio.gather(waker, sleeper, return_exceptions=True)
