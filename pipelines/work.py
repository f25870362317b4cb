"""pipelines: a run in one call: planned at the price of past runs, sent, followed, collected, verified. Touches what those steps touch.

`nightbatch run` and a night are this, shown in two ways (`Watch`). Nothing is decided here: each step decides in the module of its name.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from contract.errors import InfrastructureError, UsageError
from contract.facts import Stack, check_url
from contract.models import Plan, TaskKind
from contract.store import S3Store, Store
from pipelines.collect import Collected, check_output, collect, default_out
from pipelines.follow import DriveResult, Events, LiveLimits, drive, ignore
from pipelines.ledger import Ledger
from pipelines.outputs import Dtype, check_folder, is_s3, output_names
from pipelines.plan import PlanEvent, PlannedRun, PlanRequest, plan_run
from pipelines.prices import Past, Throughput, observed
from pipelines.runs import RunHandle, endpoint_of
from pipelines.submit import open_jobs, set_running
from pipelines.summary import summarize, write_summary
from pipelines.verify import VerifyReport, verify

FINISHED_WRONG, INFRASTRUCTURE, STOPPED = 1, 3, 4
RowsDone = Callable[[int, int], None]
MakeLimits = Callable[[Stack], LiveLimits]
"""What can ask, before the first job of a run, how many workers its endpoint may have now."""


class Watch:
    """Who looks on. This one says nothing; others say what they care for."""

    def planning(self, event: PlanEvent) -> None:
        """Rows are read, shards are sent to S3."""

    def following(self, stack: Stack, plan: Plan) -> AbstractAsyncContextManager[Events]:
        """What hears of a run's jobs while it is followed."""
        return _nobody()

    def rows(self, phase: Literal["collecting", "verifying"]) -> RowsDone | None:
        """What hears of rows collected or verified: done, and in all."""
        return None

    def note(self, text: str) -> None:
        """One thing that a person should know once."""


@asynccontextmanager
async def _nobody() -> AsyncIterator[Events]:
    yield ignore


@dataclass(frozen=True, kw_only=True)
class Following:
    """How a run is followed and collected. `deadline`: from the call on. Raises UsageError for what can be told to be wrong by itself."""

    out: str | None = None
    budget_usd: float | None = None
    pace: int | None = None
    deadline: timedelta | None = None
    webhook_url: str | None = None
    partial: bool = False
    dtype: Dtype = "float32"
    allow_mixed_image: bool = False

    def __post_init__(self) -> None:
        if self.webhook_url is not None:
            check_url(self.webhook_url, "--webhook-url")
        if self.budget_usd is not None and not math.isfinite(self.budget_usd):
            raise UsageError("is not a sum in dollars.", where=f"--budget {self.budget_usd}")
        if self.out is not None:
            check_out(self.out)


@dataclass(frozen=True)
class Finished:
    """The end of a run, or of one call for it. `collected`, `judged`: None where it did not come to that; `seconds`: of this call."""

    plan: Plan
    result: DriveResult
    collected: Collected | None
    judged: VerifyReport | None
    seconds: float

    @property
    def complete(self) -> bool:
        return self.result.state == "complete"

    @property
    def exit_code(self) -> int:
        """0: all rows are there and well; 1: rows failed or verify found something; 3, 4: as the run ended."""
        if self.complete:
            failed = self.collected.failed if self.collected else self.result.failed
            return FINISHED_WRONG if failed or (self.judged is not None and not self.judged.clean) else 0
        if self.result.state == "stopped":
            return STOPPED if self.result.cause in ("budget", "deadline") else FINISHED_WRONG
        return INFRASTRUCTURE

    @property
    def sentence(self) -> str:
        """Why the exit code is not 0."""
        if not self.complete:
            return f"{self.result.state}: {self.result.reason}"
        if self.judged is not None and not self.judged.clean:
            return str(self.judged.failure())
        failed = self.collected.failed if self.collected else self.result.failed
        if not failed:
            return ""
        see = "see the errors file." if self.collected else "`collect` writes them to an errors file."
        return f"{failed:,} of {self.result.rows:,} rows failed; {see}"


def check_out(out: str) -> None:
    """Refuse an output that could not be written, before anything is paid for. Raises UsageError."""
    names = output_names(out)
    if not is_s3(names.out):
        check_folder(names.out)


# --- stores and the ledger -----------------------------------------------------------------------------------------------------------


class Buckets:
    """The stack's bucket, and others that an `s3://` output names, with the client's keys. Close it."""

    def __init__(self, stack: Stack) -> None:
        self._keys = stack.secrets.s3
        self.main = S3Store(self._keys)
        self._others: dict[str, S3Store] = {}

    def other(self, bucket: str) -> S3Store:
        """The store of another bucket at the same endpoint."""
        if bucket not in self._others:
            self._others[bucket] = S3Store(msgspec.structs.replace(self._keys, bucketName=bucket))
        return self._others[bucket]

    async def close(self) -> None:
        """Release connections and threads."""
        for store in (self.main, *self._others.values()):
            await store.close()


@asynccontextmanager
async def buckets_of(stack: Stack) -> AsyncIterator[Buckets]:
    """The stack's buckets while this is open."""
    buckets = Buckets(stack)
    try:
        yield buckets
    finally:
        await buckets.close()


def open_ledger(watch: Watch) -> Ledger | None:
    """The ledger, or a note that it cannot be used: it is a cache, and no run stops for it."""
    try:
        return Ledger.open()
    except InfrastructureError as error:
        watch.note(f"going on without the ledger: {error}")
        return None


def past_throughput(stack: Stack, model: str, task: TaskKind, watch: Watch) -> Throughput | None:
    """What past runs of the endpoint took, where this machine's ledger knows some."""
    endpoint = stack.facts.endpoint_for(model, task)
    ledger = open_ledger(watch)
    if ledger is None:
        return None
    try:
        return observed(ledger.past(endpoint.id, task, endpoint.model), endpoint.shards_per_worker)
    except InfrastructureError as error:
        watch.note(f"pricing without past runs: {error}")
        return None
    finally:
        ledger.close()


def keep_speed(plan: Plan, result: DriveResult, at: datetime, watch: Watch) -> None:
    """Tell the ledger what a complete run took, for the price of the next one."""
    ledger = open_ledger(watch)
    if ledger is None:
        return
    past = Past(result.executions, result.tokens_in, result.tokens_out, result.seconds.computing)
    try:
        ledger.speed(plan.run, past, endpoint_id=plan.infra.endpoint_id, task=plan.task.kind, model=plan.infra.model, at=at)
    except InfrastructureError as error:
        watch.note(f"going on without the ledger: {error}")
    finally:
        ledger.close()


# --- steps ---------------------------------------------------------------------------------------------------------------------------


async def plan(stack: Stack, request: PlanRequest, watch: Watch, *, dry_run: bool = False) -> PlannedRun:
    """Plan at the price of past runs, and say what is worth saying. Raises as `plan_run` does."""
    throughput = past_throughput(stack, request.model, request.task, watch)
    store, worker_store = S3Store(stack.secrets.s3), S3Store(stack.secrets.worker_s3)
    try:
        planned = await plan_run(request, stack, store, worker_store, watch.planning, throughput=throughput, dry_run=dry_run)
    finally:
        await store.close()
        await worker_store.close()
    for notice in planned.notices:
        watch.note(notice)
    return planned


async def follow(
    stack: Stack, run: RunHandle, store: Store, how: Following, watch: Watch, live_limits: MakeLimits | None = None
) -> DriveResult:
    """Send and follow until the run is complete, or something stops it."""
    await set_running(run, store)
    jobs = open_jobs(stack, endpoint_of(run.plan, stack.facts).id)
    ledger = open_ledger(watch)
    try:
        async with watch.following(stack, run.plan) as events:
            return await drive(
                run,
                stack=stack,
                jobs=jobs,
                store=store,
                events=events,
                budget_usd=how.budget_usd,
                pace=how.pace,
                deadline=store.now() + how.deadline if how.deadline else None,
                allow_mixed_image=how.allow_mixed_image,
                webhook_url=how.webhook_url,
                ledger=ledger,
                live_limits=live_limits(stack) if live_limits is not None else None,
            )
    finally:
        await jobs.close()
        if ledger is not None:
            ledger.close()


async def finish(
    stack: Stack,
    run: RunHandle,
    buckets: Buckets,
    how: Following,
    watch: Watch,
    *,
    began: float,
    said: Sequence[str] = (),
    live_limits: MakeLimits | None = None,
) -> Finished:
    """Follow, collect and verify; what became of it, whatever stopped it. `began`: of this call, by the monotonic clock; `said`: notices
    that were shown already.

    Whether the output can be written is asked before anything is paid for.
    """
    store = buckets.main
    names = output_names(how.out or default_out(run.plan))
    for notice in await check_output(store, run.keys, run.plan, names, dtype=how.dtype, open_store=buckets.other):
        if notice not in said:
            watch.note(notice)
    result = await follow(stack, run, store, how, watch, live_limits)
    finished = await collect_and_verify(run, buckets, how, watch, result, began=began)
    if finished.complete:
        keep_speed(run.plan, result, store.now(), watch)
    return finished


async def collect_and_verify(
    run: RunHandle, buckets: Buckets, how: Following, watch: Watch, result: DriveResult, *, began: float
) -> Finished:
    """After a run was followed: its output, where it is complete or a part was asked for, and its summary."""
    store = buckets.main
    collected: Collected | None = None
    judged: VerifyReport | None = None
    if result.state == "complete" or how.partial:
        partial = result.state != "complete"
        collected = await collect(
            store,
            run.keys,
            run.plan,
            how.out,
            dtype=how.dtype,
            partial=partial,
            open_store=buckets.other,
            progress=watch.rows("collecting"),
        )
        if not partial:
            out, shown = collected.names.out, watch.rows("verifying")
            judged = await verify(store, run.keys, run.plan, out, open_store=buckets.other, progress=shown)
    finished = Finished(run.plan, result, collected, judged, time.monotonic() - began)
    verified = judged.clean if judged is not None else None
    summary = summarize(run.plan, result, seconds=finished.seconds, at=store.now(), collected=collected, verified=verified)
    await write_summary(store, run.keys, summary)
    return finished
