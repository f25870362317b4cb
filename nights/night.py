"""nights: one job, for one date: looked at, planned, sent, followed, put where it belongs, and told. Touches the store through a `Runner`.

The same night called again goes on with the same runs, because the same rows and task are the same run: a night that is over is only
told again, one that failed or was stopped is taken up where it stands, and nothing is paid twice. Two callers at once: one does it
(`lease`), the other says who. What happened is kept as the night's record after every step, so that a night whose process was killed says
how far it came.

What each kind of job does is in `embedding` and `evaluation`; `generate` is here, because it is a run and nothing more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from contract.errors import BadFiles, DatasetError, InfrastructureError, NightbatchError, PlanMismatch, StoreError, UsageError
from contract.keys import RunUri
from contract.models import Plan, RowOptions, TaskKind
from contract.store import probe_mode
from contract.words import counted, usd
from nights.facts import facts_of, facts_of_run
from nights.guard import Accept, Doubt, check_out, keep_columns, kept_columns, look, schema_changed, shrunk
from nights.jobs.files import JobFile
from nights.jobs.model import Job
from nights.jobs.schedule import deadline_at
from nights.lease import lease, who_am_i
from nights.notify import Failures, ping, tell
from nights.record import NOT_STARTED, Brought, CanaryResult, EventKind, NightEvent, NightRecord, NightState, Records, differences
from nights.report.write import FULL, night_key, report_night
from nights.runner import Runner
from pipelines.follow import Event, Events, Progress
from pipelines.outputs import Dtype
from pipelines.plan import PlannedRun, PlanRequest
from pipelines.summary import read_summary
from pipelines.work import Finished, Following

if TYPE_CHECKING:
    from nights.spaces.table import Home

TOLD_APART: Final = ("columns",)
"""Facts whose change is told in words of its own, not as `a -> b`."""


class Asking(NightbatchError):
    """The night stopped before it computed anything, and a person must say whether it goes on."""

    exit_code = 1

    def __init__(self, job: str, date: str, doubts: Collection[Doubt]) -> None:
        sentence = "; ".join(doubt.sentence for doubt in doubts)
        accept = " ".join(f"--accept {doubt.accept}" for doubt in doubts)
        super().__init__(
            f"{sentence}; nothing was sent and nothing was changed.", fix=f"If that is right: nightbatch night {job} --date {date} {accept}"
        )
        self.doubts = tuple(doubts)


class Stopped(NightbatchError):
    """A run of the night did not come to its end. `exit_code` is the run's."""

    def __init__(self, job: str, date: str, finished: Finished) -> None:
        cause = finished.result.cause if finished.result.state == "stopped" else ""
        more = {"deadline": " --no-deadline", "budget": " --budget USD, with more than that"}.get(cause, "")
        super().__init__(finished.sentence, fix=f"To go on where it stands: nightbatch night {job} --date {date}{more}")
        self.finished = finished
        self.exit_code = finished.exit_code  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class Call:
    """How a night is called, beyond what its file says. `due`: when its schedule wanted it to begin."""

    accept: frozenset[Accept] = frozenset()
    no_deadline: bool = False
    redo: bool = False
    """Do a night that is done once more, because its dataset or its job was mended: only what changed is computed and paid."""
    due: datetime | None = None
    canary_always: bool = False
    pace: int | None = None
    budget_usd: float | None = None
    webhook_url: str | None = None
    allow_mixed_image: bool = False
    home: Home | None = None
    """Where spaces are; else in the stack's bucket."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Where notifiers' addresses and passwords are."""


@dataclass
class Tonight:
    """A night while it is done: what it is about, and its record as it stands. Steps change the record through `note_down`."""

    file: JobFile
    date: str
    call: Call
    runner: Runner
    records: Records
    record: NightRecord
    before: NightRecord | None
    """The last good night of an earlier date."""
    events: list[NightEvent] = field(default_factory=list)
    telling: set[asyncio.Task[None]] = field(default_factory=set)
    costs: dict[str, float] = field(default_factory=dict)
    """Run -> what it cost on this night, also where an earlier call of the night sent it."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed rows of this night by code."""
    started: datetime | None = None
    """When this call took the night up."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def job(self) -> Job:
        return self.file.job

    async def note_down(self, **changes: Any) -> None:
        """Change the record and keep it. One write after the other, because those who are told while a run goes on write as well, and an
        older record must not come to lie over a newer one."""
        self.record = msgspec.structs.replace(self.record, events=tuple(self.events), **changes)
        async with self.writing:
            await self.records.put(self.record)

    def happened(self, kind: EventKind, sentence: str, cause: str = "") -> None:
        """An event; the same kind and cause is one event a night. `sentence` holds no row content."""
        key = f"{kind}:{cause}" if cause else kind
        self.events = [event for event in self.events if event.key != key]
        self.events.append(NightEvent(kind=kind, key=key, at=self.runner.now(), sentence=sentence))

    def left(self) -> timedelta | None:
        """Time until the deadline; None without one. Raises Stopped's kin where it has passed."""
        deadline = self.record.deadline
        if deadline is None:
            return None
        left = deadline - self.runner.now()
        if left <= timedelta(0):
            raise DeadlinePassed(self.job.name, self.date, deadline)
        return left

    def _budget_of(self, plan: Plan) -> float | None:
        """A run's budget counts all that it ever cost. A night's counts what all its runs cost tonight: what an earlier night paid for this
        run comes on top, what other runs cost tonight goes off. None where there is no limit and the plan keeps none either."""
        budget = self.call.budget_usd if self.call.budget_usd is not None else self.job.budget_usd
        if budget is None:
            return None if plan.budget_usd is None else NO_LIMIT_USD
        others = sum(usd for run, usd in self.costs.items() if run != plan.run)
        brought = self.record.brought.get(plan.run)
        return max(0.0, budget - others) + (brought.usd if brought is not None else 0.0)

    def following(self, plan: Plan, out: str | None) -> Following:
        """How a run of this night is followed."""
        return Following(
            out=out,
            budget_usd=self._budget_of(plan),
            pace=self.call.pace if self.call.pace is not None else self.job.pace,
            deadline=self.left(),
            webhook_url=self.call.webhook_url,
            dtype=self.job.dtype,
            allow_mixed_image=self.call.allow_mixed_image,
        )

    def rows(self) -> RowOptions:
        """How rows are made of records."""
        job = self.job
        return RowOptions(
            prompt=job.row_prompt,
            column=job.row_column,
            messages_column=job.messages_column,
            id_column=job.id_column,
            on_bad_row=job.on_bad_row,
            limit=job.limit,
        )

    def _hear(self, left: timedelta | None) -> Events:
        """What listens to a run whose time is limited: a deadline that will be missed is told while there is something to do about it."""

        brought: int | None = None

        def hear(event: Event) -> None:
            nonlocal brought
            if left is None or not isinstance(event, Progress) or any(one.kind == "deadline_near" for one in self.events):
                return
            if brought is None:  # what an earlier call computed is no measure of this one's speed
                brought = event.ok + event.failed if event.elapsed_s < FIRST_LOOK_S else 0
            needed = time_needed(event, brought)
            if needed is not None and event.elapsed_s + needed > left.total_seconds():
                self.happened(
                    "deadline_near",
                    f"{event.ok + event.failed:,} of {event.rows:,} rows are done after {event.elapsed_s / 60:.0f} min; "
                    f"the others need about {needed / 60:.0f} min more, and the deadline is in {left.total_seconds() / 60:.0f} min",
                )
                task = asyncio.ensure_future(tell_now(self))
                self.telling.add(task)
                task.add_done_callback(self.telling.discard)

        return hear

    async def complete(self, planned: PlannedRun, out: str | None, *, counted: bool = True, dtype: Dtype | None = None) -> Finished:
        """Bring a run to its end, and add it to the record. Raises Stopped where it did not come to one.

        `counted` False: its rows are none of the night's, as a canary's are; what it cost is. `dtype`: else the job's.
        """
        plan = planned.plan
        brought = self.record.brought
        # Another night's, which paid for what it computed. One that was planned since this night began is of another process that does this
        # very night as well, or of a call of it whose record was lost.
        known = self.before is not None and plan.run in self.before.runs
        if planned.existing and plan.run not in self.record.runs and (known or plan.created_at <= self.record.began):
            earlier = await read_summary(self.runner.store, planned.uri.keys)
            if earlier is not None:
                rows = earlier.rows if earlier.state == "complete" else earlier.ok + earlier.failed
                brought = {**brought, plan.run: Brought(rows=rows, usd=earlier.usd_estimated)}
                self.record = msgspec.structs.replace(self.record, brought=brought)
        following = self.following(plan, out)
        if dtype is not None:
            following = replace_field(following, dtype=dtype)
        likely = plan.estimate.seconds.likely
        if following.deadline is not None and not planned.existing and likely > following.deadline.total_seconds():
            self.happened(
                "deadline_near",
                f"the run will likely take {likely / 3600:.1f} h and the deadline is in {following.deadline.total_seconds() / 3600:.1f} h",
            )
        await self.note_down(
            runs=(*(run for run in self.record.runs if run != plan.run), plan.run),
            usd_planned=self.record.usd_planned + (plan.estimate.usd.likely if plan.run not in self.record.runs else 0.0),
            facts={**self.record.facts, **(facts_of(plan) if counted else {})},  # a judge's model is not the night's
        )
        finished = await self.runner.complete(planned, following, self._hear(following.deadline))
        result = finished.result
        before = brought.get(plan.run) or Brought(rows=0, usd=0.0)
        self.costs[plan.run] = max(0.0, result.usd_estimated - before.usd)
        await self.note_down(
            sent=self.record.sent + max(0, result.rows - before.rows) * counted,
            ok=self.record.ok + result.ok * counted,
            failed=self.record.failed + result.failed * counted,
            usd_estimated=sum(self.costs.values()),
        )
        if not finished.complete:
            raise Stopped(self.job.name, self.date, finished)
        if counted and finished.collected is not None:
            self.failures.update({failure.code: failure.rows for failure in finished.collected.failures})
        return finished


class Drift(NightbatchError):
    """Kept rows came out otherwise than they did; the space was not touched."""

    exit_code = 1

    def __init__(self, job: str, date: str, result: CanaryResult, space: str) -> None:
        super().__init__(
            result.sentence.rstrip(".") + "; the space was not touched.",
            fix=f"Find out why. If the new vectors are right, they belong in a space of another name; if the difference does not matter: "
            f"nightbatch space canary {space} --renew, then nightbatch night {job} --date {date}",
        )
        self.result = result


class DeadlinePassed(NightbatchError):
    """The deadline was before there was anything to send."""

    exit_code = 4

    def __init__(self, job: str, date: str, deadline: datetime) -> None:
        super().__init__(
            f"the deadline of this night was {deadline:%Y-%m-%d %H:%M} UTC.",
            fix=f"To go on: nightbatch night {job} --date {date} --no-deadline",
        )


Do = Callable[[Tonight], Awaitable[None]]
MOST_MISTAKES: Final = 20
THIS_MACHINE: Final = "this machine: {}. When that is mended, the same command goes on."
LASTING: Final = frozenset({"success", "rows_failed", "gate", "not_started"})
"""Events of a night that is done that are still true then."""
NEWS: Final = timedelta(days=1)
"""After it, what could not be told of a night that is done is not told any more."""
NO_LIMIT_USD: Final = 1e12
"""More than any night costs: for a run that was planned with a budget by a job that has none any more."""
FIRST_LOOK_S: Final = 5.0
"""Rows that are done so soon are an earlier call's."""
EARLY: Final = 0.1
"""Share of the rows that must be done before it is foretold when all will be."""


# --- pure pieces ---------------------------------------------------------------------------------------------------------------------


def time_needed(progress: Progress, brought: int = 0) -> float | None:
    """Seconds until all rows are done, at the speed so far; None while it is too early to tell. `brought`: rows that were done before."""
    done = progress.ok + progress.failed - brought
    left = progress.rows - brought
    if done < EARLY * left or done <= 0 or progress.elapsed_s <= 0:
        return None
    return (left - done) * progress.elapsed_s / done


def outcome(error: BaseException) -> tuple[NightState, str, EventKind]:
    """State, cause and event of a night that ended with this error."""
    if isinstance(error, Asking):
        return "asking", "asking", "asking"
    if isinstance(error, DeadlinePassed):
        return "stopped", "deadline", "deadline_missed"
    if isinstance(error, Stopped):
        result = error.finished.result
        if result.state == "stopped" and result.cause == "deadline":
            return "stopped", "deadline", "deadline_missed"
        if result.state == "stopped" and result.cause == "budget":
            return "stopped", "budget", "budget"
        return "stopped", result.cause, "failure"
    if isinstance(error, UsageError):
        return "failed", "input", "failure"
    if isinstance(error, Drift):
        return "failed", "canary", "canary"
    return "failed", "infrastructure" if isinstance(error, InfrastructureError) else "error", "failure"


def exit_code_of(error: BaseException) -> int:
    """Law 8."""
    return error.exit_code if isinstance(error, NightbatchError) else 3


# --- a night -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a call ended. `repeated`: the night was over before, and nothing was done."""

    record: NightRecord
    repeated: bool = False


async def run_night(file: JobFile, date: str, runner: Runner, call: Call = Call()) -> Ended:
    """Do the night, or go on with it, or say how it ended; errors of the night are its record, not exceptions.

    Raises lease.Held while another process does it, StoreError where the store cannot even tell how it stands, and whatever interrupts it.
    """
    job, store = file.job, runner.store
    prefix = runner.stack.facts.store.folder
    records = Records(store, prefix)
    there = await records.get(job.name, date)
    if there is not None and there.state == "done" and not call.redo:
        return Ended(await _tell_rest(Tonight(file, date, call, runner, records, there, None, list(there.events))), repeated=True)
    store.mode = await probe_mode(store, records.root())
    async with lease(store, records.lease(job.name), job.name, date):
        there = await records.get(job.name, date)
        if there is not None and there.state == "done" and not call.redo:
            return Ended(there, repeated=True)
        tonight = await _begin(file, date, runner, call, records, there)
        try:
            await _do(tonight)
        finally:
            await after(tonight)
    return Ended(tonight.record)


async def _begin(file: JobFile, date: str, runner: Runner, call: Call, records: Records, there: NightRecord | None) -> Tonight:
    job, now = file.job, runner.now()
    # One that did not start has a record that says so, and begins now.
    began = there.began if there is not None and there.cause != NOT_STARTED else now
    record = NightRecord(
        job=job.name,
        date=date,
        kind=job.kind,
        stack=runner.stack.facts.stack,
        state="running",
        began=began,
        due=call.due if call.due is not None else (there.due if there is not None else None),
        deadline=None if call.no_deadline else deadline_at(job.deadline, began, job.zone),
        by=who_am_i(),
        runs=there.runs if there is not None else (),
        brought=there.brought if there is not None else {},
        usd_planned=there.usd_planned if there is not None else 0.0,
    )
    tonight = Tonight(file, date, call, runner, records, record, await records.good(job.name, before=date), started=now)
    if there is not None:
        tonight.events = list(there.events)
        tonight.costs = await _costs(there, runner)
    await tonight.note_down(usd_estimated=sum(tonight.costs.values()))
    return tonight


async def _costs(there: NightRecord, runner: Runner) -> dict[str, float]:
    """What the runs that earlier calls of this night sent have cost on it, as far as those calls came to say so."""
    found = {}
    for run in there.runs:
        kept = await read_summary(runner.store, RunUri.parse(run).keys)
        if kept is not None:
            before = there.brought.get(run)
            found[run] = max(0.0, kept.usd_estimated - (before.usd if before is not None else 0.0))
    return found


async def _do(tonight: Tonight) -> None:
    from nights.embedding import embed
    from nights.evaluation import evaluate_suite

    kinds: Mapping[str, Do] = {"embed": embed, "generate": generate, "eval": evaluate_suite}
    try:
        await kinds[tonight.job.kind](tonight)
    except (NightbatchError, OSError) as error:
        state, cause, kind = outcome(error)
        sentence = str(error) if isinstance(error, NightbatchError) else THIS_MACHINE.format(error.strerror or type(error).__name__)
        tonight.happened(kind, sentence, cause)
        await _say_mistakes(tonight, error)
        await _end(tonight, state, sentence, exit_code_of(error), cause)
    except (asyncio.CancelledError, KeyboardInterrupt):
        await asyncio.shield(_end(tonight, "stopped", "interrupted; the same command goes on.", 130, "interrupted"))
        raise
    except BaseException as error:
        sentence = f"a fault of Nightbatch itself ({type(error).__name__}); the same command goes on, and its log says where it was."
        tonight.happened("failure", sentence, "fault")
        await _end(tonight, "failed", sentence, 3, "fault")
        raise


async def _say_mistakes(tonight: Tonight, error: BaseException) -> None:
    """Each mistake of a file or row: to whoever looks on as it is, and into the record without what a row holds."""
    if isinstance(error, BadFiles):
        shown = kept = list(error.problems[:MOST_MISTAKES])
        more = len(error.problems) - len(shown)
    elif isinstance(error, DatasetError):
        rows = error.bad_rows[:MOST_MISTAKES]
        shown, kept = [str(row) for row in rows], [f"{row.file}:{row.line}: {row.code}" for row in rows]
        more = error.total - len(rows)
    else:
        return
    for text in shown:
        tonight.runner.note(text)
    kept += [f"and {more:,} more"] if more > 0 and kept else []
    await tonight.note_down(notices=(*tonight.record.notices, *kept))


async def _end(tonight: Tonight, state: NightState, sentence: str, exit_code: int, cause: str = "") -> None:
    record = tonight.record
    now = tonight.runner.now()
    before = tonight.before.facts if tonight.before is not None else {}
    facts = {name: value for name, value in record.facts.items() if name not in TOLD_APART}
    await tonight.note_down(
        state=state,
        sentence=sentence,
        exit_code=exit_code,
        cause=cause,
        ended=now,
        seconds=max(0.0, (now - (tonight.started or record.began)).total_seconds()),
        changed=differences(before, facts),
    )


async def after(tonight: Tonight) -> None:
    """The night's page, and those who want to hear of it. Nothing here can fail a night; what went wrong is a notice."""
    await asyncio.gather(*tonight.telling, return_exceptions=True)
    notices: list[str] = []
    await report_night(tonight.records, tonight.record, note=notices.append)
    await tell_now(tonight)
    if tonight.record.state == "done" and (why := await _ping(tonight)) is not None:
        notices.append(why)
    for notice in notices:
        tonight.runner.note(notice)
    if notices:
        with suppress(StoreError):
            await tonight.note_down(notices=(*tonight.record.notices, *notices))


async def _tell_rest(tonight: Tonight) -> NightRecord:
    """Of a night that is done: its page and its messages, where the process that did it came to neither. Messages that are older than a day
    are news to nobody: a receiver that was added since is not told of them."""
    record, store = tonight.record, tonight.records.store
    if record.ended is not None and abs(tonight.runner.now() - record.ended) < NEWS:
        with suppress(StoreError):
            store.mode = await probe_mode(store, tonight.records.root())
            if await store.head(night_key(tonight.records, record)) is None:
                await report_night(tonight.records, record, note=tonight.runner.note)
            await tell_now(tonight)
    return tonight.record


async def tell_now(tonight: Tonight) -> None:
    """Tell whoever wants it of what happened so far; what could not be told is a notice of the record."""
    job, runner = tonight.job, tonight.runner
    if not job.notify or not tonight.events:
        return
    failures: list[Failures] = []
    # Once a night is done, nobody is helped by hearing what an earlier call of it met and could not tell.
    current = [event for event in tonight.events if tonight.record.state != "done" or event.kind in LASTING]
    record = msgspec.structs.replace(tonight.record, events=tuple(current))
    with suppress(NightbatchError):
        for run in record.runs[-1:]:
            kept = await read_summary(runner.store, RunUri.parse(run).keys)
            failures = [Failures(one.code, one.rows, one.example) for one in kept.failures] if kept is not None else []
    kept_in = tonight.records
    found = await tell(record, job.notify, kept_in.store, prefix=kept_in.prefix, environ=tonight.call.environ, failures=failures)
    heard = {(one.channel, one.event.kind) for one in found}

    def stale(text: str) -> bool:
        return any(text.startswith(f"{who} ") and f"told of {kind}" in text for who, kind in heard)

    kept_notices = [text for text in record.notices if not stale(text)]
    notices = [one.notice for one in found if one.notice is not None]
    for notice in notices:
        if notice not in record.notices:
            runner.note(notice)
    if tuple(now := (*kept_notices, *notices)) != record.notices:
        with suppress(StoreError):
            await tonight.note_down(notices=now)


async def _ping(tonight: Tonight) -> str | None:
    schedule = tonight.job.schedule
    if schedule is None or schedule.ping_url_env is None:
        return None
    url = tonight.call.environ.get(schedule.ping_url_env, "").strip()
    if not url:
        return f"the dead man's switch was not told: the variable {schedule.ping_url_env} is not set"
    why = await ping(url)
    return None if why is None else f"the dead man's switch was not told: {why}"


async def finish_well(tonight: Tonight, sentence: str, *, exit_code: int = 0, rows_matter: bool = True) -> None:
    """The night is over: all of it is done. `exit_code`: not 0 where something is not as wanted. `rows_matter`: a failed row is that."""
    failed = tonight.record.failed if rows_matter else 0
    if failed:
        codes = ", ".join(f"{rows:,} x {code}" for code, rows in tonight.failures.most_common(5))
        why = f" ({codes})" if codes else ""
        logs = f"; nightbatch logs {tonight.record.runs[-1].rsplit('/', 1)[-1]} --errors tells each" if tonight.record.runs else ""
        tonight.happened("rows_failed", f"{counted(failed, 'row')} failed{why}")
        sentence = f"{counted(failed, 'row')} failed{why}{logs}; {sentence}"
        exit_code = exit_code or 1
    if not exit_code:
        tonight.happened("success", sentence)
    await _end(tonight, "done", sentence, exit_code)


async def check_dataset(tonight: Tonight, task: TaskKind) -> tuple[tuple[str, ...], list[Doubt]]:
    """Tonight's dataset as planning takes it, and what a person must say about its columns. Facts and notices go into the record."""
    job = tonight.job
    dataset = tonight.file.dataset(tonight.date)
    check_out(dataset, tonight.file.out(tonight.date, "RUN"))
    seen = await look(tonight.runner, dataset, task, tonight.rows())
    doubts: list[Doubt] = []
    notices: tuple[str, ...] = ()
    if tonight.before is not None:
        kept = kept_columns(tonight.before.facts.get("columns"))
        doubt, notices = schema_changed(seen.columns, kept, tonight.before.date)
        if doubt is not None and job.on_schema_change == "allow":
            notices = (*notices, doubt.sentence)
        elif doubt is not None:
            doubts.append(doubt)
    facts = {**tonight.record.facts, "columns": keep_columns(seen.columns)}
    await tonight.note_down(facts=facts, notices=(*tonight.record.notices, *notices))
    return dataset, doubts


def check_rows(tonight: Tonight, rows: int) -> list[Doubt]:
    """What a person must say about the number of rows."""
    if tonight.before is None:
        return []
    doubt = shrunk(rows, tonight.before.rows, tonight.job.shrink.max_percent, tonight.before.date)
    return [doubt] if doubt is not None else []


def ask(tonight: Tonight, doubts: Collection[Doubt]) -> None:
    """Raises Asking for what the caller has not accepted."""
    open_ = [doubt for doubt in doubts if doubt.accept not in tonight.call.accept]
    if open_:
        raise Asking(tonight.job.name, tonight.date, open_)


def plan_request(tonight: Tonight, dataset: tuple[str, ...], task: TaskKind) -> PlanRequest:
    """The run of a job that is a run and nothing more. Its id begins with the job's name."""
    from pipelines.outputs import output_names

    job = tonight.job
    assert job.out is not None
    format_ = output_names(job.out).format
    return PlanRequest(
        dataset=dataset,
        task=task,
        model=job.model,
        revision=job.revision,
        params=job.body_params,
        rows=tonight.rows(),
        output_format=format_,
        keep_columns=format_ == "parquet",
        pace=job.pace,
        budget_usd=job.budget_usd,
        name=job.name,
    )


async def generate(tonight: Tonight) -> None:
    """A run over the whole dataset: of `generate`, and of `embed` without a space. Rows and a task that were computed on another night
    are the same run: they are collected again, and not paid again."""
    job = tonight.job
    task: TaskKind = "embed" if job.kind == "embed" else "generate"
    dataset, doubts = await check_dataset(tonight, task)
    ask(tonight, doubts)
    planned = await plan_again_if_columns_changed(tonight, plan_request(tonight, dataset, task))
    rows = planned.plan.dataset.rows
    await tonight.note_down(
        rows=rows, skipped=planned.plan.dataset.skipped, facts={**tonight.record.facts, "dataset": planned.plan.dataset.digest[:16]}
    )
    ask(tonight, check_rows(tonight, rows))
    out = tonight.file.out(tonight.date, planned.uri.run_id)
    assert out is not None
    make_folder(out)
    finished = await tonight.complete(planned, out)
    made_with = {**await facts_of_run(tonight.runner.store, finished.plan), "text": text_fact(tonight.rows())}
    await tonight.note_down(out=out, facts={**tonight.record.facts, **made_with})
    if finished.judged is not None and not finished.judged.clean:
        sentence = str(finished.judged.failure())
        tonight.happened("failure", sentence, "verify")
        await _end(tonight, "failed", sentence, 1, "verify")
        return
    cost = usd(tonight.record.usd_estimated) if tonight.record.sent else "nothing new to compute, $0"
    await finish_well(tonight, f"{finished.result.ok:,} of {finished.result.rows:,} rows done ({cost}), in {out}")


def text_fact(rows: RowOptions) -> str:
    """What makes a row's text, so that another prompt is a change that is told; a prompt itself is too long for that."""
    if rows.prompt is not None:
        return f"prompt {hashlib.sha256(rows.prompt.encode()).hexdigest()[:12]}"
    if rows.column is not None:
        return f"column {rows.column}"
    return f"messages {rows.messages_column}" if rows.messages_column is not None else "as it is"


async def plan_again_if_columns_changed(tonight: Tonight, request: PlanRequest) -> PlannedRun:
    """A table's output joins columns that no row uses. Where only those changed, the old run would join the old ones: it is another run."""
    try:
        return await tonight.runner.plan(request)
    except PlanMismatch as error:
        if not request.keep_columns:
            raise
        planned = await tonight.runner.plan(replace_field(request, again=tonight.date))
        why = error.what.rstrip(".")
        text = f"rows that were computed before are computed again, because the output joins columns that changed ({why})"
        await tonight.note_down(notices=(*tonight.record.notices, text))
        return planned


def make_folder(out: str) -> None:
    """A night's output often has its date in a folder's name, which nobody made. Raises UsageError where there can be none; OSError where
    the disk is full."""
    if out.startswith("s3://"):
        return
    folder = Path(out).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise
        why = f"this folder of the job's output cannot be made ({error.strerror})."
        raise UsageError(why, where=str(folder), fix="Name another place in `out`.") from None
