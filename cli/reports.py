"""cli: `nightbatch report`: finds what was named, has its page made, writes it. Decides nothing about what a page says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cli.extras import needs
from cli.output import emit, say
from cli.policy import program, session

if TYPE_CHECKING:
    from cli.work import Where
    from contract.facts import Stack
    from contract.models import Plan
    from contract.store import FolderStore, Store
    from nights.record import Records
    from nights.report.model import Bill, RunReport
    from pipelines.runs import RunListing
    from pipelines.work import Buckets



@dataclass(frozen=True)
class Reporting:
    """What was asked for. `name`: a run's id or address, or a job; None with `index`."""

    name: str | None
    date: str | None = None
    out: Path | None = None
    rows: bool = True
    store: bool = False
    billed: bool = False
    index: bool = False
    last: int | None = None


@dataclass(frozen=True)
class Made:
    """A page, and what it is of."""

    kind: Literal["run", "night"]
    name: str
    file: str
    state: str
    sentence: str
    html: str
    stored: str | None
    gaps: tuple[str, ...]
    billed: tuple[RunReport, ...] = ()
    """Runs of which RunPod was asked."""


def report(where: Where, asked: Reporting) -> int:
    """Write the page of a run or of a night, or an index over all of them."""
    from contract.errors import UsageError

    needs("nights", "reports need", "jinja2")
    if asked.index:
        wrong = {"RUN": asked.name, "--date": asked.date, "--store": asked.store, "--billed": asked.billed}
        if given := [option for option, value in wrong.items() if value]:
            raise UsageError(f"an index is of all runs and nights: {given[0]} does not go with it.", where="--index")
        if asked.out is None:
            raise UsageError("an index is a folder of pages.", where="--index", fix="Name the folder: --out FOLDER.")
        return _index(where, asked, asked.out)
    if asked.name is None:
        raise UsageError("Name a run or a job, or say --index.", fix=f"See: {program()} report -h")
    if asked.last is not None:
        raise UsageError("counts what an index has.", where="--last", fix="Leave it out, or say --index.")
    return _page(where, asked, asked.name)


def _page(where: Where, asked: Reporting, name: str) -> int:
    from cli import work
    from nights.record import Records
    from nights.report.write import write_file
    from pipelines.work import buckets_of

    async def main() -> Made:
        run = name if name.startswith("s3://") else None
        stack = await work.find_stack(where, run)
        async with buckets_of(stack) as buckets:
            records = Records(buckets.main, stack.facts.store.folder)
            uri = work.address(stack, name) if run or not asked.date else None
            if uri is not None and (run or await _is_run(buckets, uri)):
                return await _run(stack, buckets, uri, asked)
            return await _night(stack, buckets, records, name, asked)

    made = work.run_async(main)
    path = asked.out or Path(made.file)
    write_file(path, made.html)
    for gap in made.gaps:
        say(gap)
    if session.json_output:
        emit(
            {
                "kind": made.kind,
                made.kind: made.name,
                "state": made.state,
                "sentence": made.sentence,
                "report": str(path),
                "stored": made.stored,
                "bytes": len(made.html.encode()),
                "rows": asked.rows,
                "gaps": list(made.gaps),
            }
            | ({"billed": [_bill_record(one) for one in made.billed]} if asked.billed else {})
        )
        return 0
    print(session.clean(f"{made.kind} {made.name}: {made.sentence}"))
    for one in made.billed:
        print(session.clean((f"{one.run_id}: " if made.kind == "night" else "") + (one.billed.sentence if one.billed else "")))
    print(session.clean(f"wrote {path}" + (f", and {made.stored}" if made.stored else "")))
    return 0


async def _is_run(buckets: Buckets, uri: str) -> bool:
    from contract.keys import RunUri

    return await buckets.main.head(RunUri.parse(uri).keys.plan()) is not None


def _bill_record(run: RunReport) -> dict[str, Any]:
    """The numbers of the page's section on RunPod's bill, for programs."""
    import msgspec

    assert run.billed is not None
    known = run.cost.estimated if not run.cost.none else None
    mine = {"run": run.run, "usd_planned": run.cost.planned, "usd_estimated": known}
    return mine | dict(msgspec.to_builtins(run.billed))


async def _with_bills(stack: Stack, store: FolderStore, runs: Sequence[RunReport]) -> tuple[RunReport, ...]:
    """The reports with what RunPod billed in their hours. Why there is no bill is a sentence: a page is wanted all the same."""
    from contract.errors import AccessDenied, NightbatchError
    from contract.keys import RunUri
    from nights.report.billing import not_billed
    from nights.report.use import read_runs
    from pipelines.runs import load_run

    found: list[RunReport] = []
    beside: dict[str, tuple[tuple[RunListing, ...], int]] = {}
    for run in runs:
        mode = store.mode
        endpoint = run.endpoint
        try:
            handle = await load_run(store, RunUri.parse(run.run))
            endpoint = handle.plan.infra.endpoint_id
            place = handle.keys.root.rpartition("/")[0]
            if place not in beside:
                beside[place] = await read_runs(store, handle.keys)
            found.append(await _with_bill(stack, store, handle.plan, run, *beside[place]))
        except AccessDenied:
            raise
        except (NightbatchError, ValueError) as error:
            found.append(not_billed(run, endpoint, store.now(), f"What RunPod billed was not asked: {error}"))
        finally:
            store.mode = mode
    return tuple(found)


async def _with_bill(
    stack: Stack, store: Store, plan: Plan, run: RunReport, beside: Sequence[RunListing], damaged: int
) -> RunReport:  # fmt: skip
    from nights.report.billing import not_billed, window, with_bill
    from nights.report.use import read_use

    tail = next((one.idle_timeout_s for one in stack.facts.endpoints if one.id == plan.infra.endpoint_id), None)
    use = await read_use(store, plan, beside, damaged=damaged, tail_s=tail)
    limits = window(use.own)
    if limits is None:
        said = "RunPod was not asked what it billed: this run has sent no job."
        return not_billed(run, plan.infra.endpoint_id, store.now(), said)
    return with_bill(run, await ask_bill(stack, plan.infra.endpoint_id, limits, store.now()), use)


async def ask_bill(
    stack: Stack, endpoint_id: str, limits: tuple[datetime, datetime], now: datetime, environ: Mapping[str, str] = os.environ
) -> Bill:
    """What RunPod's REST v2 says of these hours, or why it does not."""
    from contract.errors import NightbatchError
    from infra.provider.client import RestClient
    from infra.review.billing import BILLING_DEADLINE_S, billed_hours
    from infra.review.live import rest_base
    from nights.report.model import Bill, BilledHour

    try:
        base = rest_base(stack.facts.api_url, environ)
        async with RestClient(base, stack.secrets.api_key, deadline_s=BILLING_DEADLINE_S, attempt_s=BILLING_DEADLINE_S) as rest:
            hours = await billed_hours(rest, endpoint_id, *limits)
    except NightbatchError as error:
        return Bill(endpoint_id=endpoint_id, asked_at=now, error=str(error))
    lines = tuple(BilledHour(began=one.began, usd=one.usd, gpu=one.gpu, cpu=one.cpu, disk=one.disk, fee=one.fee) for one in hours)
    return Bill(endpoint_id=endpoint_id, asked_at=now, hours=lines)


async def _run(stack: Stack, buckets: Buckets, uri: str, asked: Reporting) -> Made:
    from contract.errors import UsageError
    from nights.report.page import render_run
    from nights.report.read import read_run, report_key
    from nights.report.write import keep_run_report
    from pipelines.runs import load_run

    if asked.date:
        raise UsageError("a run has no date.", where=f"--date {asked.date}", fix="Leave it out, or name a job.")
    handle = await load_run(buckets.main, uri)
    session.run = uri
    found = await read_run(buckets.main, handle.keys, handle.plan, rows=asked.rows)
    if asked.billed:
        (found,) = await _with_bills(stack, buckets.main, [found])
    stored = None
    if asked.store:
        await keep_run_report(buckets.main, handle.keys, found)
        stored = f"s3://{buckets.main.bucket}/{report_key(handle.keys)}"
    html, billed = render_run(found), (found,) if asked.billed else ()
    return Made("run", uri, f"{found.run_id}.html", found.state, found.sentence, html, stored, found.gaps, billed)


async def _night(stack: Stack, buckets: Buckets, records: Records, job: str, asked: Reporting) -> Made:
    from difflib import get_close_matches

    from contract.errors import UsageError
    from nights.record import DATED, parse_date
    from nights.report.page import render_night
    from nights.report.read import read_night
    from nights.report.write import night_key

    if asked.date is not None:
        parse_date(asked.date)
    dates = await records.dates(job)
    if not dates:
        root = records.root()
        names = [info.key.removeprefix(root).partition("/") async for info in records.store.list(root)]
        jobs = sorted({job for job, _, night in names if DATED.fullmatch(night)})
        near = get_close_matches(job, jobs, n=3)
        fix = f"Did you mean {' or '.join(near)}?" if near else "List them: nightbatch runs, or nightbatch jobs."
        raise UsageError("there is neither a run nor a night of a job by this name.", where=job, fix=fix)
    date = asked.date or dates[-1]
    record = await records.get(job, date) if date in dates else None
    if record is None:
        raise UsageError(f"there is no night of {job} on this date.", where=f"--date {date}", fix=f"The latest: {', '.join(dates[-5:])}.")
    found = await read_night(records, record, rows=asked.rows)
    if asked.billed:
        found = replace(found, runs=await _with_bills(stack, buckets.main, found.runs))
    html = render_night(found)
    stored = None
    if asked.store:
        await records.store.put(night_key(records, record), html.encode())
        stored = f"s3://{records.store.bucket}/{night_key(records, record)}"
    billed = found.runs if asked.billed else ()
    return Made("night", f"{job} {date}", f"{job}-{date}.html", record.state, found.sentence, html, stored, found.gaps, billed)


def _index(where: Where, asked: Reporting, folder: Path) -> int:
    from cli import work
    from cli.progress import shown
    from nights.record import Records
    from nights.report.write import MOST_LISTED, Written, write_index
    from pipelines.work import buckets_of

    async def main() -> Written:
        stack = await work.find_stack(where)
        prefix = stack.facts.store.folder
        async with buckets_of(stack) as buckets:
            with shown() as progress:
                return await write_index(
                    Records(buckets.main, prefix),
                    buckets.main,
                    folder,
                    title=f"Stack {stack.facts.stack}",
                    prefix=prefix,
                    rows=asked.rows,
                    most=asked.last or MOST_LISTED,
                    note=progress.note,
                )

    made = work.run_async(main)
    record: dict[str, Any] = {
        "kind": "index",
        "report": str(made.path),
        "nights": len(made.index.nights),
        "runs": len(made.index.runs),
        "pages": made.pages,
        "rows": asked.rows,
        "gaps": list(made.index.gaps),
    }
    for gap in made.index.gaps:
        say(gap)
    if session.json_output:
        emit(record)
    else:
        print(session.clean(f"wrote {made.path}, with {record['nights']:,} nights and {record['runs']:,} runs"))
    return 0
