"""cli: `nightbatch schedule write|check|next` and `nightbatch schema`: what job files come to outside of a night. Calls nights.jobs.

No stack is asked and no key is needed: the same answer in a pull request as on the machine that runs the nights, but for the clock, which
says which offsets a time zone has this year.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import options as o
from cli.extras import needs_nights
from cli.output import emit, say
from cli.policy import guarded, program, session

if TYPE_CHECKING:
    from nights.jobs.files import JobFile
    from nights.jobs.schedulers import How, Target

app = typer.Typer(name="schedule", help="The files of schedulers, made from job files and checked against them.", **o.PLAIN)

For = Annotated[
    list[str] | None,
    typer.Option("--for", metavar="NAME", help="github, gitlab, systemd or cron; repeatable; else those there are.", show_default=False),
]
Folder = Annotated[
    str | None,
    typer.Option("--folder", metavar="PATH", help="Where the project lies on systemd's or cron's machine.", show_default=False),
]
Count = Annotated[int, typer.Option("--count", min=1, max=366, metavar="N", help="How many nights of each job.")]
JobOrNone = Annotated[str | None, typer.Argument(metavar="[JOB]", help="One job; else all that have a schedule.", show_default=False)]


@dataclass(frozen=True)
class Work:
    """What `write` and `check` go over."""

    root: Path
    jobs: tuple[JobFile, ...]
    how: How
    targets: tuple[Target, ...]


def prepared(folder: Path, names: Sequence[str], place: str | None) -> Work:
    """Read the job files, and find out which schedulers are meant. Raises UsageError, BadFiles."""
    needs_nights()
    from contract.errors import UsageError
    from nights.jobs.files import load_jobs
    from nights.jobs.schedulers import FOLDER, TARGETS, How, folder_of, standing

    if unknown := [name for name in names if name not in TARGETS]:
        raise UsageError("is no scheduler that is known.", where=f"--for {unknown[0]}", fix=f"There are: {', '.join(TARGETS)}.")
    jobs = load_jobs(folder)
    root = folder.resolve().parent
    typed = "./nightbatch" if (root / "nightbatch").is_file() else "nightbatch"
    how = How(program=typed, folder=(place or folder_of(root) or FOLDER).rstrip("/") or "/", today=datetime.now(UTC).date())
    targets = tuple(one for one in TARGETS if (one in names if names else standing(one, root)))
    if not targets:
        raise UsageError(
            "there is no scheduler's file yet.", where=str(root), fix=f"Say which one to make: {program()} schedule write --for github."
        )
    return Work(root, jobs, how, targets)


@app.command("write", short_help="Make or renew a scheduler's files.")
@guarded
def write(schedulers: For = None, jobs: o.JobsFolder = Path("jobs"), folder: Folder = None, json_output: o.Json = False) -> int:
    """Make the files by which a scheduler begins each job's nights, renew those that differ, remove those that no job file makes."""
    work = prepared(jobs, schedulers or [], folder)
    from nights.jobs import schedulers as made_by

    done: list[dict[str, Any]] = []
    notices: list[str] = []
    for target in work.targets:
        made, more = made_by.make(target, work.jobs, work.how)
        notices += more
        done += [{"file": path, "state": what} for path, what in made_by.write(target, made, work.root)]
    _notice(notices)
    if session.json_output:
        emit({"files": done, "notices": list(dict.fromkeys(notices))})
        return 0
    for one in done:
        print(session.clean(f"{one['state']} {one['file']}"))
    if not done:
        why = "no job here is for that scheduler, as was said" if notices else "every file is as the job files say"
        print(f"nothing to do: {why}")
    return 0


@app.command("check", short_help="Are they what the job files say?")
@guarded
def check(schedulers: For = None, jobs: o.JobsFolder = Path("jobs"), folder: Folder = None, json_output: o.Json = False) -> int:
    """Compare schedulers' files with the job files, as a step of a pull request does. Ends with 0 the same, 1 they differ."""
    work = prepared(jobs, schedulers or [], folder)
    from nights.jobs import schedulers as made_by

    found: list[made_by.Difference] = []
    notices: list[str] = []
    count = 0
    for target in work.targets:
        made, more = made_by.make(target, work.jobs, work.how)
        notices += more
        count += len(made)
        found += made_by.differences(target, made, work.root)
    _notice(notices)
    code = 1 if found else 0
    if session.json_output:
        emit({"same": not found, "differences": [asdict(one) for one in found], "notices": list(dict.fromkeys(notices)), "exit_code": code})
        return code
    for one in found:
        if one.diff:
            print(session.clean(one.diff), end="")
        print(session.clean(f"{one.path}: {'is missing' if one.what == 'missing' else one.what}"))
    if found:
        say(f"nightbatch: the schedulers' files are not what the job files say. Run: {program()} schedule write")
    else:
        print(f"{count} file{'' if count == 1 else 's'} as the job files say")
    return code


@app.command("next", short_help="When the next nights are due.")
@guarded
def following(job: JobOrNone = None, jobs: o.JobsFolder = Path("jobs"), count: Count = 5, json_output: o.Json = False) -> int:
    """Say when the next nights of jobs are due, in each job's own time zone and in UTC. Asks no stack what was done."""
    needs_nights()
    from itertools import islice

    from contract.errors import UsageError
    from nights.jobs.files import find_job, load_jobs
    from nights.jobs.schedule import Timing, dues, spoken

    files = [find_job(jobs, job)] if job is not None else [one for one in load_jobs(jobs) if one.job.schedule is not None]
    now = datetime.now(UTC)
    record: list[dict[str, Any]] = []
    for one in files:
        if one.job.schedule is None:
            raise UsageError("has no schedule, so that it is never due.", where=one.where(), fix="docs/jobs.md says how to write one.")
        timing = Timing.of(one.job.schedule)
        nights = list(islice(dues(timing, now), count))
        record.append({"job": one.name, "nights": [{"date": night.date.isoformat(), "due": night.due.isoformat()} for night in nights]})
        if not session.json_output:
            print(f"{one.name}  {one.job.schedule.cron} in {one.job.schedule.timezone}")
            for night in nights:
                print(f"  {night.date.isoformat()}  {spoken(night.due, timing.zone)}  {night.due:%Y-%m-%d %H:%M} UTC")
    if session.json_output:
        emit({"jobs": record})
    elif not files:
        print("no job has a schedule")
    return 0


def schema(out: Path | None) -> int:
    """The JSON schema of job files, to stdout or into a file."""
    needs_nights()
    from contract.errors import UsageError
    from nights.jobs.publish import schema_text

    if session.json_output:
        emit(json.loads(schema_text()))
    elif out is None:
        print(schema_text(), end="")
    if out is not None:
        try:
            out.write_text(schema_text(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the schema cannot be written ({error.strerror}).", where=f"--out {out}") from None
    return 0


def _notice(notices: Sequence[str]) -> None:
    for notice in dict.fromkeys(notices):
        say(f"nightbatch: {notice}")
