"""pipelines: telling a run to stop, and to go on. Touches control.json, and RunPod through JobsApi.

The epoch is raised first: from then on no worker begins a job that was sent before, whatever becomes of the /cancel calls. A queue is never
purged, because it may hold other runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, replace
from typing import Final

from contract.errors import AlreadyExists, EndpointError, StoreUnavailable
from contract.keys import RunKeys
from contract.models import Control, Plan, RunMode, encode
from contract.protocol import OUTSTANDING, Key, Look, RunState, Standing, ends_to_note, fold, fold_starts, look, rules_for, survey
from contract.store import Store
from contract.tree import list_commits, read_commits
from pipelines.journal import MAX_NOTES, Journal
from pipelines.markers import read_markers
from pipelines.runpod import JobsApi
from pipelines.runs import RunHandle, read_control

TRIES: Final = 8
MOST_LOOKS: Final = 1000
"""At /status after a cancel: RunPod allows 2,000 in 10 s. Of the other jobs whoever resumes asks."""


@dataclass(frozen=True)
class CancelResult:
    """What `cancel` did: `cancelled` jobs were told to RunPod, `running` were left to finish (keep), `unknown` have no job id.

    `over`: of the cancelled, those that had not begun and are known to be over; the others may still cost a little. `complete`: every row
    has its result, so there was nothing to stop but jobs that would only find that out."""

    epoch: int
    mode: RunMode
    cancelled: int
    running: int
    unknown: int
    failed: int
    over: int = 0
    complete: bool = False


async def set_control(store: Store, keys: RunKeys, plan: Plan, *, mode: RunMode, by: str, reason: str | None, raise_epoch: bool) -> Control:
    """Write control.json: the next epoch, or the same one with another mode. Nobody's higher epoch is ever taken back; without
    `raise_epoch` a cancel that comes in between stands, and is returned."""
    last: Exception | None = None
    first: int | None = None
    for _ in range(TRIES):
        standing, etag = await read_control(store, keys, plan)
        first = standing.epoch if first is None else first
        if not raise_epoch and standing.epoch > first:
            return standing
        wanted = Control(
            plan=plan.plan_id, epoch=standing.epoch + (1 if raise_epoch else 0), mode=mode, at=store.now(), by=by, reason=reason
        )
        data = encode(wanted)
        try:
            if store.mode != "conditional":
                await store.put(keys.control(), data)
            elif etag is None:
                await store.put_if_absent(keys.control(), data)
            else:
                await store.put_if_match(keys.control(), data, etag)
        except (AlreadyExists, StoreUnavailable) as error:
            last = error
        now, _ = await read_control(store, keys, plan)
        if now == wanted or (now.epoch >= wanted.epoch and now.mode == wanted.mode):
            return now
    raise last or StoreUnavailable("control.json changes all the time.", where=f"s3://{store.bucket}/{keys.control()}")


async def cancel(
    run: RunHandle, *, store: Store, jobs: JobsApi, mode: RunMode = "keep", by: str = "cancel", reason: str | None = None
) -> CancelResult:
    """End a run: `keep` lets running executions finish, `stop` ends them too (they keep their pieces). What is committed stays; the run can
    be resumed. Works from the store alone, also while another client follows the run: that one sees the epoch and stops sending."""
    if mode == "run":
        raise ValueError("cancel is keep or stop")
    if await _has_every_commit(run, store):
        control, _ = await read_control(store, run.keys, run.plan)
    else:
        control = await set_control(store, run.keys, run.plan, mode=mode, by=by, reason=reason or "cancelled", raise_epoch=True)
    state = await state_of(run, store=store, client=by, control=control)
    seen = survey(state, store.now())
    alive = [s for s in seen.standings.values() if s.state in OUTSTANDING]
    chosen = [s for s in alive if s.attempt.job_id is not None and (mode == "stop" or not s.started)]

    async def tell(job_id: str) -> bool:
        try:
            await jobs.cancel(job_id)
        except EndpointError:
            return False
        return True

    told = await asyncio.gather(*(tell(s.attempt.job_id) for s in chosen if s.attempt.job_id is not None))
    waited = [s for s, done in zip(chosen, told, strict=True) if done and not s.started]
    over = await _note_what_never_began(run, store, jobs, control, waited) if waited else 0
    return CancelResult(
        epoch=control.epoch,
        mode=mode,
        cancelled=sum(told),
        running=sum(1 for s in alive if s.started) if mode == "keep" else 0,
        unknown=sum(1 for s in alive if s.attempt.job_id is None),
        failed=len(told) - sum(told),
        over=over,
        complete=not seen.open,
    )


async def _note_what_never_began(run: RunHandle, store: Store, jobs: JobsApi, control: Control, waited: list[Standing]) -> int:
    """Ask RunPod what became of cancelled jobs that had not begun, and note in the journal which are certainly over: their reserves are
    free, and a `resume` need not wait for them. How many are. A hint for whoever reads the run: what cannot be asked or written now is
    found out then."""
    looks: dict[Key, Look] = {}

    async def see(found: Standing) -> None:
        assert found.attempt.job_id is not None
        with contextlib.suppress(EndpointError):
            looks[found.attempt.key] = look(None, await jobs.status(found.attempt.job_id), store.now())

    await asyncio.gather(*(see(found) for found in waited[:MOST_LOOKS]))
    over = 0
    with contextlib.suppress(StoreUnavailable):
        for _ in range(TRIES):
            client = secrets.token_hex(4)
            journal = Journal(store, run.keys, run.plan.plan_id, client)
            state = replace(await state_of(run, store=store, client=client, control=control, journal=journal), looks=looks)
            now = store.now()
            seen = survey(state, now)
            over = sum(1 for found in waited if seen.standings[found.attempt.key].state not in OUTSTANDING)
            notes = ends_to_note(state, seen, now)
            if not notes:
                break
            stands, _ = await journal.append((), notes[:MAX_NOTES], now)
            if stands and len(notes) <= MAX_NOTES:
                break
    return over


async def _has_every_commit(run: RunHandle, store: Store) -> bool:
    """Whether each shard of the plan has its commit: one listing, so that a cancel is not kept waiting. A split one may still have open
    children: then the epoch is raised for nothing, which harms nobody."""
    names = set(await list_commits(store, run.keys, run.plan))
    return names.issuperset(shard.shard for shard in run.plan.shards) and not any("." in name for name in names)


async def state_of(
    run: RunHandle, *, store: Store, client: str = "", control: Control | None = None, journal: Journal | None = None
) -> RunState:
    """The run's state from the store alone, as somebody sees it who has never worked on it. `journal`: a fresh one, to write on."""
    if control is None:
        control, _ = await read_control(store, run.keys, run.plan)
    journal = journal or Journal(store, run.keys, run.plan.plan_id, client)
    entries = await journal.refresh()
    at = store.now()
    commits = await read_commits(store, run.keys, await list_commits(store, run.keys, run.plan))
    markers = await read_markers(store, run.keys, run.plan.plan_id)
    return RunState(
        plan=run.plan,
        rules=rules_for(run.plan),
        client=client,
        control=control,
        started_at=at,
        attempts=fold_starts(fold({}, entries), markers.starts.values()),
        commits=commits,
        commits_at=at,
        starts=markers.starts,
        ends=markers.ends,
    )
