"""cli: `nightbatch night` and `nightbatch jobs`: find job files and their stacks, do a night or say how nights stand. Decides nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cli.extras import needs_nights
from cli.output import emit, say
from cli.policy import as_typed, program, session
from cli.progress import Progress, shown
from cli.report import plan_lines, plan_record
from cli.work import Where, find_stack, live_limits, run_async, watch_of
from contract.errors import NightbatchError, UsageError
from contract.words import duration, usd

if TYPE_CHECKING:
    from contract.facts import Stack
    from contract.store import Store
    from nights.agenda import Missed, Standing
    from nights.jobs.files import JobFile
    from nights.night import Call, Ended
    from nights.preview import Preview
    from nights.record import NightRecord, Records
    from nights.runner import Runner


@dataclass(frozen=True)
class NightAsked:
    """What `night` was asked. `where`: a stack instead of the job's own."""

    job: str
    folder: Path
    where: Where
    date: str | None = None
    if_due: bool = False
    dry_run: bool = False


def where_of(file: JobFile, where: Where) -> Where:
    """The job's own stack, unless another one was named."""
    return replace(where, stack=where.stack or file.job.stack)


def records_of(stack: Stack, runner: Runner) -> Records:
    """The stack's records of nights."""
    from nights.record import Records

    return Records(runner.store, stack.facts.store.folder)


@asynccontextmanager
async def runner_for(file: JobFile, where: Where, progress: Progress) -> AsyncIterator[tuple[Stack, Runner]]:
    """The job's stack and its runner while this is open."""
    from nights.runner import runner_of

    stack = await find_stack(where_of(file, where))
    async with runner_of(stack, watch_of(progress), live_limits) as runner:
        yield stack, runner


def call_of(**how: Any) -> Call:
    """How a night is called, as options say it. Raises UsageError where this installation cannot read job files."""
    needs_nights()
    from nights.night import Call

    return Call(**how)


def night(asked: NightAsked, call: Call) -> int:
    """Do one night of a job, go on with it, or say that there is nothing to do."""
    from nights.agenda import date_of, due_of, note_missing, standing
    from nights.jobs.files import find_job
    from nights.lease import Held, given_up
    from nights.night import run_night
    from nights.record import parse_date

    file = find_job(asked.folder, asked.job)
    if asked.date is not None:
        parse_date(asked.date)
        if asked.if_due:
            raise UsageError("a date and --if-due exclude each other.", where="--date", fix="Leave one of them out.")
    session.hide(os.environ[name] for name in file.job.env_names if name in os.environ)

    async def main() -> Ended | str | Preview:
        with shown() as progress:
            async with runner_for(file, asked.where, progress) as (stack, runner):
                records = records_of(stack, runner)
                await runner.store.head(records.key(file.name, "now"))  # so that the store has told its time
                now = runner.now()
                date = asked.date or date_of(file, now)
                _not_ahead(date, now)
                if asked.dry_run:
                    from nights.preview import preview

                    return await preview(file, date, runner, call)
                stands = await standing(file, records, now)
                if asked.if_due:
                    if stands.look is None:
                        raise UsageError("has no schedule, so that it is never due.", where=file.where(), fix="Name the date: --date DATE.")
                    begun = stands.look.state == "held" and await _goes_on(records, file, date)
                    if stands.look.state != "due" and not begun:
                        _say_told(await note_missing(file, records, stands.missing, now, but=None, environ=call.environ), progress)
                        return stands.look.sentence
                _say_told(await note_missing(file, records, stands.missing, now, but=date, environ=call.environ), progress)
                folder = where_of(file, asked.where).options
                session.resume = f"{program()} night {file.name} --date {date}{folder if asked.where.stack or asked.where.facts else ''}"
                tonight = replace(call, due=call.due or due_of(file, date))
                try:
                    return await run_night(file, date, runner, tonight)
                except Held as held:
                    # A scheduler that looks every hour meets its own long night, and one whose runner was killed comes right after it.
                    if not asked.if_due:
                        raise
                    progress.note(f"{held.what} Looking whether it still lives.")
                    if await given_up(runner.store, records.lease(file.name)):
                        return await run_night(file, date, runner, tonight)
                    return held.what

    found = run_async(main)
    if isinstance(found, str):
        if session.json_output:
            emit({"job": file.name, "state": "nothing to do", "sentence": found})
        else:
            print(session.clean(found))
        return 0
    from nights.night import Ended

    if isinstance(found, Ended):
        return say_night(found)
    return say_preview(found)


def _not_ahead(date: str, now: datetime) -> None:
    """Nights that begin by themselves have rising dates: one that was typed wrong would keep all of them waiting until its day comes."""
    if date > (now + timedelta(days=1)).date().isoformat():  # zones are up to 14 hours ahead
        raise UsageError("is later than tomorrow.", where=f"--date {date}", fix="Write the date of a night that is due, as 2026-11-30.")


def _say_told(missing: Missed, progress: Progress) -> None:
    """Nights that did not start, and who could not be told of them."""
    records, told = missing
    for record in records:
        progress.note(record.sentence)
    for one in told:
        if one.notice is not None:
            progress.note(one.notice)


async def _goes_on(records: Records, file: JobFile, date: str) -> bool:
    """A night that was begun and is not over, and that another try may help: one that a person must answer for (a canary, a question), or
    that its budget or deadline stopped, is not taken up by a scheduler that looks every hour."""
    record = await records.get(file.name, date)
    return record is not None and record.state != "done" and record.exit_code not in (1, 4) and record.cause != "not_started"


def say_night(ended: Ended) -> int:
    """Print how a night ended; the exit code is the record's."""
    record = ended.record
    if session.json_output:
        emit({**night_record(record), "repeated": ended.repeated})
        return record.exit_code
    again = " (was done before; nothing was computed)" if ended.repeated else ""
    print(session.clean(f"night {record.job} {record.date} on {record.stack}: {record.state}{again}"))
    for line in night_lines(record):
        print(session.clean(f"  {as_typed(line)}"))
    if record.exit_code and record.sentence:
        say(f"nightbatch: {as_typed(record.sentence)}")
    return record.exit_code


def night_lines(record: NightRecord) -> list[str]:
    """A night for a person, without its first line."""
    lines = []
    if record.sentence:
        lines.append(record.sentence)
    if record.rows or record.sent:
        skipped = f", {record.skipped:,} left out" if record.skipped else ""
        done = f"{record.sent:,} computed: {record.ok:,} ok, {record.failed:,} failed"
        lines.append(f"rows     {record.rows:,} in the dataset{skipped}; {done}")
    if record.space is not None:
        space = record.space
        version = f"version {space.version}" if space.version is not None else "not touched"
        lines.append(
            f"space    {space.space}, {version}: {space.added:,} added, {space.changed:,} changed, {space.removed:,} removed, "
            f"{space.unchanged:,} unchanged, {space.rows:,} rows now"
        )
        if space.canary is not None:
            lines.append(f"canary   {space.canary.sentence}")
        if space.delta is not None:
            lines.append(f"delta    {space.delta}")
    if record.evaluation is not None:
        found = record.evaluation
        lines.append(
            f"score    {found.metric} {found.score:.4g} ({found.low:.4g} to {found.high:.4g} at {found.confidence:.0%}), "
            f"{found.rows:,} questions"
        )
        if found.sentence and found.sentence != record.sentence:
            lines.append(f"gate     {found.sentence}")
    if record.usd_planned or record.usd_estimated:
        lines.append(f"cost     {usd(record.usd_estimated)} estimated, {usd(record.usd_planned)} planned")
    if record.ended is not None:
        lines.append(f"time     {duration(record.seconds)}")
    lines += [f"changed  {line}" for line in record.changed]
    lines += [f"notice   {line}" for line in record.notices]
    lines += [f"output   {record.out}"] if record.out else []
    lines += [f"run      {run}" for run in record.runs]
    return lines


def night_record(record: NightRecord) -> dict[str, Any]:
    """A night for programs: the record as it is kept, without facts that only the next night needs."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(record)
    found["facts"] = {name: value for name, value in record.facts.items() if name != "columns"}
    return found


def say_preview(found: Preview) -> int:
    """Print what a night would do; 1 where it would stop and ask."""
    if session.json_output:
        emit(preview_record(found))
    else:
        for line in preview_lines(found):
            print(session.clean(line))
    return 1 if found.doubts else 0


def preview_record(found: Preview) -> dict[str, Any]:
    """A preview for programs."""
    planned = found.planned
    return {
        "job": found.job,
        "date": found.date,
        "kind": found.kind,
        "state": "asking" if found.doubts else "dry-run",
        "rows": found.rows,
        "added": found.added,
        "changed": found.changed,
        "removed": found.removed,
        "unchanged": found.unchanged,
        "to_compute": planned.plan.dataset.rows if planned is not None else 0,
        "usd_planned": planned.plan.estimate.usd.likely if planned is not None else 0.0,
        "plan": plan_record(planned, stored=False) if planned is not None else None,
        "doubts": [{"accept": doubt.accept, "sentence": doubt.sentence} for doubt in found.doubts],
        "notices": list(found.notices),
        "done": found.existing.state if found.existing is not None else None,
    }


def preview_lines(found: Preview) -> list[str]:
    """A preview for a person."""
    lines = [f"night {found.job} {found.date} (dry run)"]
    if found.existing is not None:
        state = found.existing.state
        lines.append(f"  this night was begun before and is {state}: the command without --dry-run goes on with it or tells it")
    if found.added is not None:
        lines.append(
            f"  rows     {found.rows:,} in the dataset: {found.added:,} new, {found.changed:,} changed, {found.unchanged:,} unchanged, "
            f"{found.removed:,} left it"
        )
    else:
        lines.append(f"  rows     {found.rows:,} in the dataset")
    if found.planned is None:
        lines.append("  nothing would be sent: $0")
    else:
        lines += [line for line in plan_lines(found.planned)[1:] if not line.startswith("  rows")]
        if found.planned.existing:
            lines.append("  these rows were planned before: what is computed of them already is not paid again")
    lines += [f"  notice   {text}" for text in found.notices]
    lines += [f"  it would stop and ask: {doubt.sentence} (--accept {doubt.accept})" for doubt in found.doubts]
    return [*lines, "nothing was stored and nothing was sent"]


# --- jobs ----------------------------------------------------------------------------------------------------------------------------


AT_ONCE: Final = 8
"""Jobs of a stack that are asked for together."""


@dataclass(frozen=True)
class Listed:
    """A job in the list. `problem`: why its nights could not be read."""

    file: JobFile
    standing: Standing | None
    problem: str | None = None


def jobs(folder: Path, where: Where) -> int:
    """List the jobs of a folder with how their last night ended and when the next is due."""
    needs_nights()
    from nights.jobs.files import bad_files, read_jobs

    files, mistakes = read_jobs(folder)
    problem = bad_files(mistakes) if mistakes else None

    async def main() -> list[Listed]:
        return await _listed(files, where)

    found = run_async(main)
    if session.json_output:
        emit({"jobs": [job_record(one) for one in found], "mistakes": [str(mistake) for mistake in mistakes]})
    else:
        if not found and not mistakes:
            print(f"no jobs in {folder}")
        for line in job_lines(found):
            print(session.clean(line))
    if problem is not None:
        if not session.json_output:
            say(f"nightbatch: {problem}")
            for text in problem.problems:
                say(f"  {text}")
        return problem.exit_code
    return 0


async def _listed(files: Sequence[JobFile], where: Where) -> list[Listed]:
    """Stacks are asked beside one another, and each store is waited for once, not once for each of its jobs."""
    stacks: dict[str | None, list[JobFile]] = {}
    for file in files:
        stacks.setdefault(where_of(file, where).stack, []).append(file)
    groups = await asyncio.gather(*(_listed_of(group, replace(where, stack=stack)) for stack, group in stacks.items()))
    found = {one.file.path: one for group in groups for one in group}
    return [found[file.path] for file in files]


async def _listed_of(files: Sequence[JobFile], where: Where) -> list[Listed]:
    """Jobs of one stack. When its store does not answer, the others are not asked for any more."""
    from contract.errors import StoreUnavailable
    from nights.agenda import standing
    from nights.record import Records

    try:
        stack = await find_stack(where)
    except NightbatchError as error:
        return [Listed(file, None, str(error)) for file in files]
    store = reading(stack)
    records = Records(store, stack.facts.store.folder)
    few = asyncio.Semaphore(AT_ONCE)
    away: list[str] = []

    async def one(file: JobFile) -> Listed:
        async with few:
            if away:
                return Listed(file, None, away[0])
            try:
                return Listed(file, await standing(file, records, store.now()))
            except StoreUnavailable as error:
                away.append(str(error))
                return Listed(file, None, str(error))
            except NightbatchError as error:
                return Listed(file, None, str(error))

    try:
        await store.head(records.key(files[0].name, "now"))  # so that the store has told its time
        return list(await asyncio.gather(*(one(file) for file in files)))
    except NightbatchError as error:
        return [Listed(file, None, str(error)) for file in files]
    finally:
        await store.close()


def reading(stack: Stack) -> Store:
    """The stack's bucket for a list that a person waits for: it gives up sooner than a night does."""
    from contract.store import S3Store

    return S3Store(stack.secrets.s3, timeout_s=15.0, max_attempts=2)


def job_record(one: Listed) -> dict[str, Any]:
    """A listed job for programs."""
    job, stands = one.file.job, one.standing
    record: dict[str, Any] = {
        "job": job.name,
        "file": str(one.file.path),
        "kind": job.kind,
        "model": job.model,
        "stack": job.stack,
        "cron": job.schedule.cron if job.schedule is not None else None,
        "timezone": job.schedule.timezone if job.schedule is not None else None,
        "problem": one.problem,
        "last": None,
        "next": None,
        "running": None,
        "missing": [],
    }
    if stands is not None:
        record["problem"] = stands.damage
        record["last"] = night_record(stands.last) if stands.last is not None else None
        record["running"] = {"date": stands.running.date, "by": stands.running.who} if stands.running is not None else None
        record["missing"] = [night.date.isoformat() for night in stands.missing]
        if stands.look is not None and stands.look.next is not None:
            record["next"] = stands.look.next.due.isoformat()
    return record


def job_lines(found: Sequence[Listed]) -> list[str]:
    """The list for a person: two lines a job."""
    from nights.jobs.schedule import spoken

    lines: list[str] = []
    width = max((len(one.file.name) for one in found), default=0)
    for one in found:
        job, stands = one.file.job, one.standing
        schedule = f"{job.schedule.cron} {job.schedule.timezone}" if job.schedule is not None else "no schedule"
        lines.append(f"{job.name:<{width}}  {job.kind} {job.model} on {job.stack}  ({schedule})")
        pad = " " * width
        if stands is None:
            lines.append(f"{pad}  last  not known: {one.problem}")
            continue
        lines.append(f"{pad}  last  {last_line(stands.last) if stands.damage is None else f'not known: {stands.damage}'}")
        if stands.running is not None:
            lines.append(f"{pad}  now   {stands.running.date} is being done by {stands.running.who}")
        if stands.missing:
            lines.append(f"{pad}  NOT STARTED  {', '.join(night.date.isoformat() for night in stands.missing)}")
        if stands.look is not None and stands.look.next is not None:
            lines.append(f"{pad}  next  {spoken(stands.look.next.due, job.zone)}")
    return lines


def last_line(record: NightRecord | None) -> str:
    """`2026-11-29 done, 1,204 rows computed, 12 min, $0.0312`."""
    if record is None:
        return "never"
    parts = [f"{record.date} {record.state}"]
    if record.exit_code:
        parts[0] += f" (exit code {record.exit_code})"
    if record.sent:
        parts.append(f"{record.sent:,} rows computed" + (f", {record.failed:,} failed" if record.failed else ""))
    if record.evaluation is not None:
        parts.append(f"{record.evaluation.metric} {record.evaluation.score:.4g}, gate {record.evaluation.gate}")
    if record.ended is not None and record.cause != "not_started":
        parts.append(duration(record.seconds))
    if record.sent or record.usd_estimated:
        parts.append(usd(record.usd_estimated))
    text = ", ".join(parts)
    return f"{text}: {record.sentence}" if record.exit_code and record.sentence else text
