"""pipelines: a run from its address: submit, resume, cancel, status. Each is `drive` or the state it rests on; nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from contract.errors import ContractError, Damaged
from contract.facts import Stack
from contract.keys import RunUri
from contract.models import RunMode
from contract.protocol import DEFAULT_TUNING, RunWord, Standing, Tuning, errors_of, rows_done, run_word, shard_states, survey
from contract.store import S3Store, Store, get_or_none
from pipelines.cancel import CancelResult, set_control, state_of
from pipelines.cancel import cancel as cancel_run
from pipelines.follow import DriveResult, Events, LiveLimits, drive, ignore
from pipelines.ledger import Ledger
from pipelines.runpod import JobsApi, RunPodClient, Timer
from pipelines.runs import RunHandle, RunListing, endpoint_of, load_run, read_control


def open_store(stack: Stack) -> S3Store:
    """The stack's bucket with the client's keys. Close it."""
    return S3Store(stack.secrets.s3)


def open_jobs(stack: Stack, endpoint_id: str) -> RunPodClient:
    """The data plane of one endpoint of the stack. Close it."""
    return RunPodClient(api_url=stack.facts.api_url, endpoint_id=endpoint_id, api_key=stack.secrets.api_key)


async def submit(
    run: RunHandle,
    *,
    stack: Stack,
    store: Store,
    jobs: JobsApi,
    events: Events = ignore,
    budget_usd: float | None = None,
    pace: int | None = None,
    ledger: Ledger | None = None,
    timer: Timer | None = None,
    tuning: Tuning = DEFAULT_TUNING,
    live_limits: LiveLimits | None = None,
) -> DriveResult:
    """Send as much as the window allows, and return. `resume` follows and sends the rest."""
    return await drive(
        run,
        stack=stack,
        jobs=jobs,
        store=store,
        events=events,
        budget_usd=budget_usd,
        pace=pace,
        follow=False,
        ledger=ledger,
        timer=timer,
        tuning=tuning,
        live_limits=live_limits,
    )


async def resume(
    run_uri: str,
    *,
    stack: Stack,
    store: Store | None = None,
    jobs: JobsApi | None = None,
    events: Events = ignore,
    budget_usd: float | None = None,
    pace: int | None = None,
    deadline: datetime | None = None,
    allow_mixed_image: bool = False,
    webhook_url: str | None = None,
    webhook_port: int = 0,
    ledger: Ledger | None = None,
    timer: Timer | None = None,
    tuning: Tuning = DEFAULT_TUNING,
    live_limits: LiveLimits | None = None,
) -> DriveResult:
    """Go on with a run, from any machine, from its address alone: a cancelled run is told to run again, then it is driven like any
    other."""
    store_, jobs_ = store or open_store(stack), jobs
    try:
        run = await load_run(store_, run_uri)
        endpoint = endpoint_of(run.plan, stack.facts)
        jobs_ = jobs_ or open_jobs(stack, endpoint.id)
        await set_running(run, store_)
        return await drive(
            run,
            stack=stack,
            jobs=jobs_,
            store=store_,
            events=events,
            budget_usd=budget_usd,
            pace=pace,
            deadline=deadline,
            allow_mixed_image=allow_mixed_image,
            webhook_url=webhook_url,
            webhook_port=webhook_port,
            ledger=ledger,
            timer=timer,
            tuning=tuning,
            live_limits=live_limits,
        )
    finally:
        if jobs is None and jobs_ is not None:
            await jobs_.close()
        if store is None:
            await store_.close()


async def set_running(run: RunHandle, store: Store) -> None:
    """A run that was told to keep or stop goes on, in the epoch that its cancel raised: jobs sent before stay fenced."""
    control, _ = await read_control(store, run.keys, run.plan)
    if control.mode != "run":
        await set_control(store, run.keys, run.plan, mode="run", by="resume", reason=None, raise_epoch=False)


async def cancel(
    run_uri: str, *, stack: Stack, mode: RunMode = "keep", store: Store | None = None, jobs: JobsApi | None = None
) -> CancelResult:
    """End a run, from any machine, from its address alone."""
    store_, jobs_ = store or open_store(stack), jobs
    try:
        run = await load_run(store_, run_uri)
        jobs_ = jobs_ or open_jobs(stack, run.plan.infra.endpoint_id)
        return await cancel_run(run, store=store_, jobs=jobs_, mode=mode)
    finally:
        if jobs is None and jobs_ is not None:
            await jobs_.close()
        if store is None:
            await store_.close()


@dataclass(frozen=True)
class RunStatus:
    """How a run stands, from the store alone."""

    run: RunHandle
    state: RunWord
    epoch: int
    rows: int
    ok: int
    failed: int
    shards: dict[str, int]
    attempts: int
    executions: int
    usd_estimated: float
    usd_reserved: float
    outstanding: tuple[Standing, ...]
    """Attempts that may still commit."""
    failed_shards: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]
    """Shards that are not done with what the last of their jobs said that died."""


async def status(run_uri: str, *, stack: Stack, store: Store | None = None) -> RunStatus:
    """How a run stands, from any machine, from its address alone. Asks RunPod nothing and changes nothing."""
    store_ = store or open_store(stack)
    try:
        run = await load_run(store_, run_uri)
        return await status_of(run, store_)
    finally:
        if store is None:
            await store_.close()


async def status_of(run: RunHandle, store: Store) -> RunStatus:
    """The same of a run that is loaded."""
    state = await state_of(run, store=store)
    seen = survey(state, store.now())
    ok, failed = rows_done(seen.tree.leaves)
    return RunStatus(
        run=run,
        state=run_word(state, seen),
        epoch=state.control.epoch,
        rows=run.plan.dataset.rows,
        ok=ok,
        failed=failed,
        shards=shard_states(seen),
        attempts=len(seen.standings),
        executions=len(state.starts),
        usd_estimated=seen.settled_usd,
        usd_reserved=seen.reserved_usd,
        outstanding=(*seen.running, *seen.queued),
        failed_shards=seen.exhausted,
        errors=errors_of(seen),
    )


@dataclass(frozen=True)
class RunOverview:
    """A line of the list of runs. `state`: a RunWord, or `damaged`."""

    listing: RunListing
    state: str
    ok: int = 0
    failed: int = 0
    usd_estimated: float = 0.0


class _Kept(msgspec.Struct, frozen=True):
    """Of summary.json, what a list shows; whatever else a later version keeps there."""

    plan: str
    state: str
    ok: int
    failed: int
    usd_estimated: float


async def overview(listing: RunListing, store: Store, on_damaged: Callable[[str], None]) -> RunOverview:
    """How a listed run stands. A complete one is taken from its kept summary in one request: nothing changes it any more; of the others
    everything is read. `on_damaged` hears of objects that cannot be read."""
    run = RunHandle(RunUri.parse(listing.uri), listing.plan)
    blob = await get_or_none(store, run.keys.summary())
    if blob is not None:
        try:
            kept = msgspec.json.decode(blob.data, type=_Kept)
        except (msgspec.DecodeError, UnicodeDecodeError):
            kept = None  # a report, and nothing rests on it
        if kept is not None and kept.state == "complete" and kept.plan == listing.plan.plan_id:
            return RunOverview(listing, kept.state, kept.ok, kept.failed, kept.usd_estimated)
    store.mode = listing.plan.store.mode
    try:
        found = await status_of(run, store)
    except (Damaged, ContractError) as error:
        on_damaged(str(error))
        return RunOverview(listing, "damaged")
    return RunOverview(listing, found.state, found.ok, found.failed, found.usd_estimated)


async def overviews(listings: Sequence[RunListing], store: Store, on_damaged: Callable[[str], None]) -> tuple[RunOverview, ...]:
    """All of them, one after the other: each brings its own store mode."""
    return tuple([await overview(listing, store, on_damaged) for listing in listings])
