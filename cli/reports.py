"""cli: `nightbatch report`: finds what was named, has its page made, writes it. Decides nothing about what a page says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cli.output import emit, say
from cli.policy import program, session

if TYPE_CHECKING:
    from cli.work import Where
    from nights.record import Records
    from pipelines.work import Buckets

MISSING = "this installation has no Python package `{}`, which reports need."


@dataclass(frozen=True)
class Reporting:
    """What was asked for. `name`: a run's id or address, or a job; None with `index`."""

    name: str | None
    date: str | None = None
    out: Path | None = None
    rows: bool = True
    store: bool = False
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


def report(where: Where, asked: Reporting) -> int:
    """Write the page of a run or of a night, or an index over all of them."""
    from contract.errors import UsageError

    needs_jinja()
    if asked.index:
        wrong = {"RUN": asked.name, "--date": asked.date, "--store": asked.store}
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


def needs_jinja() -> None:
    """Refuse in one sentence where this Python has no Jinja: it only submits."""
    import importlib.util

    from contract.errors import UsageError

    if importlib.util.find_spec("jinja2") is None:
        raise UsageError(MISSING.format("jinja2"), fix="pip install 'nightbatch[nights]'.")


def _page(where: Where, asked: Reporting, name: str) -> int:
    from cli import work
    from nights.record import Records
    from nights.report.write import write_file
    from pipelines.work import buckets_of

    async def main() -> Made:
        run = name if name.startswith("s3://") else None
        stack = await work.find_stack(where, run)
        async with buckets_of(stack) as buckets:
            records = Records(buckets.main, stack.facts.store.prefix.strip("/"))
            uri = work.address(stack, name) if run or not asked.date else None
            if uri is not None and (run or await _is_run(buckets, uri)):
                return await _run(buckets, uri, asked)
            return await _night(records, name, asked)

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
        )
        return 0
    print(session.clean(f"{made.kind} {made.name}: {made.sentence}"))
    print(session.clean(f"wrote {path}" + (f", and {made.stored}" if made.stored else "")))
    return 0


async def _is_run(buckets: Buckets, uri: str) -> bool:
    from contract.keys import RunUri

    return await buckets.main.head(RunUri.parse(uri).keys.plan()) is not None


async def _run(buckets: Buckets, uri: str, asked: Reporting) -> Made:
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
    stored = None
    if asked.store:
        await keep_run_report(buckets.main, handle.keys, found)
        stored = f"s3://{buckets.main.bucket}/{report_key(handle.keys)}"
    return Made("run", uri, f"{found.run_id}.html", found.state, found.sentence, render_run(found), stored, found.gaps)


async def _night(records: Records, job: str, asked: Reporting) -> Made:
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
    html = render_night(found)
    stored = None
    if asked.store:
        await records.store.put(night_key(records, record), html.encode())
        stored = f"s3://{records.store.bucket}/{night_key(records, record)}"
    return Made("night", f"{job} {date}", f"{job}-{date}.html", record.state, found.sentence, html, stored, found.gaps)


def _index(where: Where, asked: Reporting, folder: Path) -> int:
    from cli import work
    from cli.progress import shown
    from nights.record import Records
    from nights.report.write import MOST_LISTED, Written, write_index
    from pipelines.work import buckets_of

    async def main() -> Written:
        stack = await work.find_stack(where)
        prefix = stack.facts.store.prefix.strip("/")
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
