"""nights/report: pages to where they belong: beside the run, beside the night's record, or into files. Touches the store and files.

A page in the store is replaced whole, because a put is; a file is written under another name first. Nothing rests on a page, so that a
night whose report cannot be written has not failed: callers say so and go on.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from contract.errors import ContractError, Damaged, NightbatchError, UsageError
from contract.keys import RunKeys, RunUri
from contract.models import Plan
from contract.store import FolderStore, Store
from nights.record import DATED, NightRecord, Records
from nights.report.build import night_line, run_line
from nights.report.model import IndexReport, NightLine, NightReport, RunLine, RunReport
from nights.report.page import render_index, render_night, render_run
from nights.report.read import MOST_RUNS, data_key, read_kept, read_night, read_record, read_run, read_run_kept, report_key
from pipelines.runs import RunListing, list_runs, load_run

log = logging.getLogger("nightbatch.report")
MOST_LISTED: Final = 200
"""Nights, and runs, that an index has unless it is told otherwise."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Not the fault of the place that was named."""
Note = Callable[[str], None]


async def write_run_report(store: Store, keys: RunKeys, plan: Plan, *, rows: bool = True) -> RunReport:
    """Make the page of a run and keep it beside the run: report.html, and report.json for an index. Raises StoreError."""
    report = await read_run(store, keys, plan, rows=rows)
    await keep_run_report(store, keys, report)
    return report


async def keep_run_report(store: Store, keys: RunKeys, report: RunReport) -> None:
    """Keep a page that is made."""
    await store.put(report_key(keys), render_run(report).encode())
    await store.put(data_key(keys), msgspec.json.encode(report))


def night_key(records: Records, record: NightRecord) -> str:
    """Where a night's page is kept: beside its record."""
    return f"{records.root(record.job)}{record.date}.html"


async def write_night_report(
    records: Records, record: NightRecord, *, rows: bool = True, runs: Sequence[RunReport] | None = None
) -> NightReport:
    """Make the page of a night and keep it beside its record. `runs`: their reports where they are made already. Raises StoreError."""
    report = await read_night(records, record, rows=rows, runs=None if runs is None else tuple(runs))
    await records.store.put(night_key(records, record), render_night(report).encode())
    return report


async def report_night(records: Records, record: NightRecord, *, rows: bool = True, note: Note = lambda text: None) -> NightReport | None:
    """The end of every night: the pages of its runs and its own, kept where they belong. Raises nothing: the night's work is done, and a
    page that cannot be written is a notice (`note`), not a failed night. A run whose page stands already is read in one request."""
    store = records.store
    reports: list[RunReport] = []
    for run in record.runs[:MOST_RUNS]:
        mode = store.mode
        try:
            handle = await load_run(store, RunUri.parse(run))
            kept = await read_kept(store, handle.keys, handle.plan, rows=rows)
            reports.append(kept or await write_run_report(store, handle.keys, handle.plan, rows=rows))
        except Exception as error:
            _could_not(note, f"the report of {run}", error)
        finally:
            store.mode = mode
    try:
        return await write_night_report(records, record, rows=rows, runs=reports if len(reports) == len(record.runs) else None)
    except Exception as error:
        _could_not(note, f"the report of {record.job} on {record.date}", error)
        return None


def _could_not(note: Note, what: str, error: Exception) -> None:
    if not isinstance(error, NightbatchError):
        log.warning("%s could not be made", what, exc_info=error)
    note(f"{what} could not be written: {error if isinstance(error, NightbatchError) else type(error).__name__}")


def write_file(path: Path, text: str) -> None:
    """A whole file or none. Raises UsageError where it cannot be written."""
    if os.path.isdir(path):
        raise UsageError("this is a folder, and the report is a file.", where=str(path), fix="Name a file with --out.")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno in FULL:
            raise
        what = f"no report can be written there ({error.strerror})."
        raise UsageError(what, where=str(path), fix="Name another place with --out.") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


# --- an index ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """What an index came to. `pages`: of nights and runs, beside the index itself."""

    index: IndexReport
    path: Path
    pages: int


async def write_index(
    records: Records,
    store: FolderStore,
    folder: Path,
    *,
    title: str,
    prefix: str = "",
    rows: bool = True,
    most: int = MOST_LISTED,
    note: Note = lambda text: None,
) -> Written:
    """index.html over the latest nights and runs of a stack, with a page for each in nights/ and runs/. A page is written as soon as it is
    made; the index comes last, and names only pages that are there."""
    gaps: list[str] = []
    listed = await list_runs(store, prefix, gaps.append)
    reports: dict[str, RunReport] = {}
    lines: list[RunLine] = []
    for number, listing in enumerate(listed[:most]):
        note(f"run {number + 1} of {min(most, len(listed))}: {listing.run_id}")
        report = await _report_of(store, listing, rows, gaps)
        if report is None:
            continue
        reports[report.run] = report
        page = f"runs/{file_name(report.run_id)}.html"
        write_file(folder / page, render_run(report))
        lines.append(run_line(report, page))
    nights, more = await _nights(records, most, gaps)
    written: list[NightLine] = []
    for record in nights:
        known = tuple(reports[run] for run in record.runs if run in reports)
        whole = len(known) == len(record.runs)
        report_ = await read_night(records, record, rows=rows, runs=known if whole else None)
        page = f"nights/{file_name(record.job)}/{file_name(record.date)}.html"
        write_file(folder / page, render_night(report_))
        written.append(night_line(record, page))
    index = IndexReport(
        made_at=store.now(),
        title=title,
        nights=tuple(written),
        runs=tuple(lines),
        more_nights=more,
        more_runs=max(0, len(listed) - most),
        gaps=tuple(gaps),
    )
    path = folder / "index.html"
    write_file(path, render_index(index))
    return Written(index, path, len(lines) + len(written))


def file_name(name: str) -> str:
    """A name out of a bucket as a file's name that leads nowhere else."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in name)
    return safe.lstrip(".") or "_"


async def _report_of(store: FolderStore, listing: RunListing, rows: bool, gaps: list[str]) -> RunReport | None:
    try:
        keys = RunUri.parse(listing.uri).keys
        return await read_run_kept(store, keys, listing.plan, rows=rows)
    except (ContractError, Damaged, UsageError) as error:
        gaps.append(f"The run {listing.run_id} could not be read: {error}")
        return None


async def _nights(records: Records, most: int, gaps: list[str]) -> tuple[list[NightRecord], int]:
    """Records of all jobs, the latest first, and how many more there are. One listing: names tell job and date."""
    root = records.root()
    names = [info.key.removeprefix(root) async for info in records.store.list(root)]
    found = [
        (night.removesuffix(".json"), job)
        for job, slash, night in (name.partition("/") for name in names)
        if slash and DATED.fullmatch(night) and not job.startswith("_")  # beside them: leases, pages, what was told to whom
    ]
    found.sort(key=lambda one: (one[0], one[1]), reverse=True)
    read = [await read_record(records, job, date, gaps) for date, job in found[:most]]
    return [record for record in read if record is not None], max(0, len(found) - most)
