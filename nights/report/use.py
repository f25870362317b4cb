"""nights/report: when runs had jobs out on an endpoint, from what a store holds of them. Touches the store only.

A run without jobs in the journal before the hours that matter is left out after one small read; markers are read only of runs that may
have been at work then. What cannot be read is named, so that nobody is said to have been alone who may not have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from contract.errors import AccessDenied, ContractError, NightbatchError
from contract.keys import RunKeys, RunUri
from contract.models import JournalEntry, Plan
from contract.protocol import Key, fold
from contract.store import FolderStore, Store
from nights.report.billing import HOUR_S, MOST_HOURS, Use, jobs_out
from nights.report.read import read_kept
from nights.report.spans import Span
from pipelines.journal import Journal
from pipelines.markers import read_markers
from pipelines.runs import RunListing, list_runs

MOST_READ: Final = 20
"""Other runs whose markers are read; of more it is not known whether they were at work."""
ENDED: Final = frozenset({"rejected", "won", "lost", "dead", "expired"})


async def read_runs(store: FolderStore, keys: RunKeys) -> tuple[tuple[RunListing, ...], int]:
    """All runs that lie beside this one, and how many plans there cannot be read."""
    damaged: list[str] = []
    return await list_runs(store, keys.root.rpartition("/runs/")[0], damaged.append), len(damaged)


async def read_use(
    store: Store, plan: Plan, runs: Sequence[RunListing], *, damaged: int = 0, tail_s: float | None = None, now: datetime | None = None
) -> Use:
    """When `plan`'s run had jobs out, and which of the other `runs` of its endpoint had in the same hours."""
    now = now or store.now()
    own = await _jobs_out(store, plan, now, tail_s or 0.0)
    if not own or own[-1][1] - own[0][0] > MOST_HOURS * HOUR_S:
        return Use(own, {}, tail_s=tail_s)
    first, last = own[0][0] // HOUR_S * HOUR_S, (own[-1][1] // HOUR_S + 1) * HOUR_S
    others: dict[str, tuple[Span, ...]] = {}
    unread = ["one whose plan is damaged"] * damaged
    read = 0
    for one in runs:
        same = one.plan.infra.endpoint_id == plan.infra.endpoint_id and one.uri != plan.run
        if not same or one.plan.created_at.timestamp() >= last:
            continue
        try:
            rough = await _rough(store, one.plan, now, tail_s or 0.0)
            if not _meets(rough, first, last):
                continue
            read += 1
            if read > MOST_READ:
                unread.append(one.run_id)
                continue
            spans = await _jobs_out(store, one.plan, now, tail_s or 0.0)
            if met := tuple((max(start, first), min(stop, last)) for start, stop in spans if _meets([(start, stop)], first, last)):
                others[one.run_id] = met
        except AccessDenied:
            raise
        except (NightbatchError, ValueError, OverflowError):
            unread.append(one.run_id)
    return Use(own, others, tuple(unread), tail_s)


def _meets(spans: Sequence[Span], first: float, last: float) -> bool:
    return any(start < last and stop > first for start, stop in spans)


async def _rough(store: Store, plan: Plan, now: datetime, tail_s: float) -> tuple[Span, ...]:
    """At least all of the time in which the run had jobs out, from a few small objects. Without a journal: any time since its plan."""
    keys = RunUri.parse(plan.run).keys
    kept = await read_kept(store, keys, plan) or await read_kept(store, keys, plan, rows=False)
    if kept is not None and kept.began is not None and kept.ended is not None:
        return ((kept.began.timestamp(), kept.ended.timestamp() + tail_s),)
    entries, _, whole = await _journal(store, plan)
    if not entries or not whole:
        return ((plan.created_at.timestamp(), now.timestamp() + tail_s),)
    attempts = fold({}, entries).values()
    return tuple((one.intent.sent_at.timestamp(), one.expires_at.timestamp() + tail_s) for one in attempts)


async def _jobs_out(store: Store, plan: Plan, now: datetime, tail_s: float) -> tuple[Span, ...]:
    """Raises ContractError where neither the journal nor the markers of a run that has results are left."""
    keys = RunUri.parse(plan.run).keys
    entries, over, _ = await _journal(store, plan)
    mode, store.mode = store.mode, plan.store.mode
    try:
        markers = await read_markers(store, keys, plan.plan_id)
    finally:
        store.mode = mode
    if not markers.starts and [head async for head in store.list(keys.commits_prefix())]:
        raise ContractError("its start and end markers are gone, so that nothing tells when it was at work.", where=plan.run)
    return jobs_out(
        fold({}, entries), markers.starts, markers.ends, over, now=now, timeout_s=plan.infra.execution_timeout_s, tail_s=tail_s
    )  # fmt: skip


async def _journal(store: Store, plan: Plan) -> tuple[tuple[JournalEntry, ...], dict[Key, datetime], bool]:
    """Its entries, when each attempt was last said to be over, and whether every entry could be read."""
    mode, store.mode = store.mode, plan.store.mode
    try:
        journal = Journal(store, RunUri.parse(plan.run).keys, plan.plan_id, "report")
        entries = await journal.refresh()
    finally:
        store.mode = mode
    over: dict[Key, datetime] = {}
    for entry in entries:
        for note in entry.notes:
            if note.state in ENDED:
                over[(note.client or entry.client, note.attempt)] = note.at
    return entries, over, not journal.foreign
