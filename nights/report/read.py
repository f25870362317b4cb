"""nights/report: what a store holds of a run, as far as it can be read. Touches the store, and a scratch folder for errors objects.

A report is wanted most when something is broken, so that nothing here ends in an error but a store that does not answer and a run without a
plan: what is gone, damaged or of another version becomes a sentence on the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from contract.errors import AccessDenied, ContractError, Damaged, NightbatchError, NotFound, VerifyFailed
from contract.keys import RunKeys, RunUri
from contract.models import Commit, Control, ObjectRef, PartCommit, Plan, SplitCommit, decode
from contract.protocol import fold, fold_starts
from contract.store import Store, get_or_none
from contract.tree import build_tree, list_commits
from nights.record import NightRecord, Records
from nights.report.billing import MOST_HOURS
from nights.report.build import EDGES, MOST_BUCKETS, FailedRow, RunFacts, night_report, run_report
from nights.report.model import REPORT_VERSION, NightReport, RunReport
from pipelines.journal import Journal
from pipelines.markers import read_markers
from pipelines.parts import fetch, read_errors, row_error
from pipelines.runs import load_run, read_control
from pipelines.scratch import scratch_folder
from pipelines.summary import read_summary

AT_ONCE: Final = 16
MOST_ERROR_OBJECTS: Final = 40
"""That are read for examples, the smallest first; the summary of a collected run has the counts of all."""
MOST_ERROR_BYTES: Final = 32 << 20
MOST_NIGHTS: Final = 30
"""In trends."""
MOST_RUNS: Final = 20
"""Of one night."""
T = TypeVar("T")


def report_key(keys: RunKeys) -> str:
    """Where a run's page is kept."""
    return f"{keys.root}/report.html"


def data_key(keys: RunKeys) -> str:
    """Where what the page says is kept, for an index over many runs."""
    return f"{keys.root}/report.json"


async def read_facts(store: Store, keys: RunKeys, plan: Plan, now: datetime | None = None) -> RunFacts:
    """Everything that the page of a run rests on."""
    mode, store.mode = store.mode, plan.store.mode
    try:
        return await _read_facts(store, keys, plan, now)
    finally:
        store.mode = mode


async def _read_facts(store: Store, keys: RunKeys, plan: Plan, now: datetime | None) -> RunFacts:
    gaps: list[str] = []
    control = await _or(_control(store, keys, plan), Control(plan=plan.plan_id, at=plan.created_at, by="nobody"), "control.json", gaps)
    journal = Journal(store, keys, plan.plan_id, "report")
    entries = await _or(journal.refresh(), (), "The journal", gaps)
    markers = await read_markers(store, keys, plan.plan_id)
    commits = await _commits(store, keys, plan, gaps)
    for count, what in ((len(journal.foreign), "journal entries"), (len(markers.foreign), "start and end markers")):
        if count:
            gaps.append(f"{count:,} {what} could not be read, or are of another plan, and are left out.")
    summary = await read_summary(store, keys)
    if summary is not None and summary.plan != plan.plan_id:
        gaps.append("summary.json is of another plan and is left out.")
        summary = None
    parts = [leaf.commit for leaf in build_tree(plan, commits).closed if leaf.commit is not None]
    failed = await _failed_rows(store, parts, gaps)
    return RunFacts(
        plan=plan,
        control=control,
        now=now or store.now(),
        attempts=fold_starts(fold({}, entries), markers.starts.values()),
        starts=markers.starts,
        ends=markers.ends,
        commits=commits,
        summary=summary,
        failed_rows=failed,
        gaps=tuple(gaps),
    )


async def read_run(store: Store, keys: RunKeys, plan: Plan, *, rows: bool = True, now: datetime | None = None) -> RunReport:
    """What the page of a run says. `rows`: with ids and messages of failed rows."""
    return run_report(await read_facts(store, keys, plan, now), rows=rows)


async def read_run_kept(store: Store, keys: RunKeys, plan: Plan, *, rows: bool = True) -> RunReport:
    """As `read_run`, from the report that is kept beside the run where that stands."""
    return await read_kept(store, keys, plan, rows=rows) or await read_run(store, keys, plan, rows=rows)


async def read_kept(store: Store, keys: RunKeys, plan: Plan, *, rows: bool = True) -> RunReport | None:
    """The report that is kept beside the run, where it is of the complete and verified run: nothing changes it any more."""
    blob = await get_or_none(store, data_key(keys))
    if blob is None:
        return None
    try:
        kept = msgspec.json.decode(blob.data, type=RunReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # of another version, say: it can be made again
    return kept if _stands(kept, plan, rows) else None


def _stands(kept: RunReport, plan: Plan, rows: bool) -> bool:
    same = (kept.version, kept.plan_id, kept.run) == (REPORT_VERSION, plan.plan_id, plan.run)
    return same and kept.state == "complete" and bool(kept.verified) and not kept.gaps and kept.with_rows == rows and _drawable(kept)


def _drawable(kept: RunReport) -> bool:
    """Whether a report that came out of a bucket can be drawn at all: somebody may have written it by hand."""
    line, delays = kept.timeline, kept.delays
    bill = kept.billed
    if bill is not None and not bill.error and (len(bill.hours) > MOST_HOURS or None in (bill.usd_hours, bill.at_least)):
        return False
    if line is not None and not (line.seconds >= 1 and line.step >= 1 and line.seconds / line.step <= len(line.buckets) <= MOST_BUCKETS):
        return False
    if delays is not None:
        spreads = [spread for spread in (delays.delay, delays.execution) if spread is not None]
        return all(0 < len(spread.bins) == len(delays.edges) <= len(EDGES) for spread in spreads)
    return True


async def read_night(
    records: Records, record: NightRecord, *, rows: bool = True, runs: tuple[RunReport, ...] | None = None, nights: int = MOST_NIGHTS
) -> NightReport:
    """What the page of a night says. `runs`: their reports, where they are known already; `nights`: how many the trends show."""
    gaps: list[str] = []
    before = await read_before(records, record, gaps, nights)
    if runs is None:
        runs = tuple([found for run in record.runs[:MOST_RUNS] if (found := await _run_of_night(records.store, run, rows, gaps))])
        if len(record.runs) > MOST_RUNS:
            gaps.append(f"{len(record.runs) - MOST_RUNS:,} more runs are not on this page.")
    return night_report(record, now=records.store.now(), before=before, runs=runs, gaps=gaps)


async def read_before(records: Records, record: NightRecord, gaps: list[str], nights: int = MOST_NIGHTS) -> tuple[NightRecord, ...]:
    """Earlier nights of the job, oldest first. One that cannot be read is left out, and said."""
    dates = [date for date in await records.dates(record.job) if date < record.date][-nights:] if nights > 0 else []
    found = await asyncio.gather(*(read_record(records, record.job, date, gaps) for date in dates))
    return tuple(one for one in found if one is not None)


async def read_record(records: Records, job: str, date: str, gaps: list[str]) -> NightRecord | None:
    """One night's record; None where there is none, or none that can be read, which is said."""
    try:
        return await records.get(job, date)
    except (ContractError, Damaged) as error:
        gaps.append(f"The record of {job} on {date} could not be read: {error.what}")
        return None


async def _run_of_night(store: Store, run: str, rows: bool, gaps: list[str]) -> RunReport | None:
    mode = store.mode
    try:
        handle = await load_run(store, RunUri.parse(run))
        return await read_run_kept(store, handle.keys, handle.plan, rows=rows)
    except (NightbatchError, ValueError) as error:
        if isinstance(error, AccessDenied):
            raise
        gaps.append(f"The run {run} could not be read: {error}")
        return None
    finally:
        store.mode = mode


async def _or(reading: Awaitable[T], otherwise: T, what: str, gaps: list[str]) -> T:
    """What was read, or `otherwise` and a sentence."""
    try:
        return await reading
    except (ContractError, Damaged) as error:
        gaps.append(f"{what} could not be read: {error.what}")
        return otherwise


async def _control(store: Store, keys: RunKeys, plan: Plan) -> Control:
    return (await read_control(store, keys, plan))[0]


async def _commits(store: Store, keys: RunKeys, plan: Plan, gaps: list[str]) -> dict[str, Commit]:
    """Commits that can be read, and of the splits only those that partition their parents' rows."""
    gate = asyncio.Semaphore(AT_ONCE)
    found: dict[str, Commit] = {}
    damaged: list[str] = []

    async def read(shard: str) -> None:
        async with gate:
            blob = await get_or_none(store, keys.commit(shard))
        if blob is None:
            return
        try:
            found[shard] = decode(blob.data, Commit, where=keys.commit(shard))
        except ContractError:
            damaged.append(shard)

    await asyncio.gather(*(read(shard) for shard in await list_commits(store, keys, plan)))
    while True:
        try:
            build_tree(plan, found)
            break
        except ContractError as error:
            wrong = (error.where or "").removeprefix("commits/").removesuffix(".json")
            if not isinstance(found.pop(wrong, None), SplitCommit):
                raise
            damaged.append(wrong)
    if damaged:
        names = ", ".join(sorted(damaged)[:5]) + (" …" if len(damaged) > 5 else "")
        gaps.append(f"{len(damaged):,} of the commits are damaged ({names}): their shards count as open here. See `nightbatch verify`.")
    return found


async def _failed_rows(store: Store, parts: list[PartCommit], gaps: list[str]) -> tuple[FailedRow, ...]:
    """Failed rows of the smallest errors objects."""
    budget = MOST_ERROR_BYTES
    chosen: list[tuple[str, ObjectRef]] = []
    with_errors = ((part.shard, part.errors) for part in parts if part.errors is not None)
    for shard, ref in sorted(with_errors, key=lambda one: (one[1].size, one[0]))[:MOST_ERROR_OBJECTS]:
        budget -= ref.size
        if budget >= 0:
            chosen.append((shard, ref))
    found: list[FailedRow] = []
    unread = 0
    if chosen:
        with scratch_folder() as folder:
            for shard, ref in chosen:
                try:
                    path = await fetch(store, ref, folder)
                    lines = await asyncio.to_thread(read_errors, path, where=ref.key)
                except (VerifyFailed, NotFound):
                    unread += 1
                    continue
                path.unlink(missing_ok=True)
                for line in lines:
                    error = row_error(line, where=ref.key)
                    found.append(FailedRow(shard=shard, row=line.index, id=line.id, code=error.code, message=error.message))
    if unread:
        gaps.append(f"{unread:,} of the errors objects are gone or damaged. See `nightbatch verify`.")
    return tuple(found)
