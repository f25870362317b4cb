"""nights/jobs: finds and reads job files: `jobs/NAME.yaml` in the project's folder. Every mistake of every file at once; reads files alone.

The project's folder is the one that holds `jobs/`; relative paths in a job begin there, wherever the command was started. A job file that
lies in a folder of another name has its own folder for it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from contract.errors import BadFiles, UsageError
from nights.jobs.model import NAME_PATTERN, Job, JobKeys, problems_of
from nights.jobs.reader import Document, Mistake, judged, read_yaml, shown

FOLDER: Final = "jobs"
ENDINGS: Final = (".yaml", ".yml")


@dataclass(frozen=True)
class JobFile:
    """A job, and where it was read. `root`: the folder that its relative paths begin at."""

    path: Path
    job: Job
    root: Path
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    def where(self, *at: str | int) -> str:
        """`jobs/reviews.yaml:12`, for messages about a key."""
        while at and at not in self.lines:
            at = at[:-1]
        return f"{self.path}:{self.lines.get(at, 1)}"

    def dataset(self, night: date | str) -> tuple[str, ...]:
        """What the dataset means on this date, as `pipelines` take it."""
        return tuple(self._place(_filled(name, job=self.name, date=str(night))) for name in self.job.dataset)

    def out(self, night: date | str, run: str = "") -> str | None:
        """Where the output goes on this date. `run`: the run's id."""
        return None if self.job.out is None else self._place(_filled(self.job.out, job=self.name, date=str(night), run=run))

    @property
    def suite(self) -> Path | None:
        """The suite's file."""
        return None if self.job.suite is None else Path(self._place(self.job.suite))

    def _place(self, name: str) -> str:
        if name.startswith("s3://") or os.path.isabs(name) or self.root.resolve() == Path.cwd():
            return name  # as it is written, so that the same job names its files alike on every machine
        return os.path.join(self.root, name)


def _filled(text: str, **values: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)


def root_of(path: Path) -> Path:
    """The folder that relative paths of this job file begin at."""
    parent = path.parent
    return parent.parent if parent.resolve().name == FOLDER else parent


def job_paths(folder: Path) -> tuple[Path, ...]:
    """The job files of a folder, by name. Raises UsageError where there is no such folder."""
    try:
        found = [path for path in folder.iterdir() if path.suffix in ENDINGS and not path.name.startswith((".", "_"))]
    except OSError as error:
        raise UsageError(
            f"there are no job files here ({error.strerror}).",
            where=str(folder),
            fix="Go to the folder that holds jobs/, or name the folder with --jobs; docs/jobs.md says what a job file is.",
        ) from None
    return tuple(sorted(found, key=lambda path: os.fsencode(path.name)))


def read_job(path: Path) -> tuple[JobFile | None, tuple[Mistake, ...]]:
    """One file: its job, or all that is wrong with it."""
    document = read_yaml(path)
    data = document.data
    if document.data is not None and isinstance(data, dict):
        _name_it(path, document)
    job = judged(document, JobKeys)
    if isinstance(document.data, dict):
        document.mistakes += _between(document)
    if document.mistakes or job is None:
        return None, tuple(sorted(set(document.mistakes)))
    return JobFile(
        path, Job.model_validate(job.model_dump(mode="python", by_alias=True, exclude_unset=True)), root_of(path), document.lines
    ), ()


def _name_it(path: Path, document: Document) -> None:
    stem = path.stem
    if not re.fullmatch(NAME_PATTERN, stem):
        document.mistakes.append(
            Mistake(
                document.file, 1, "", f"the file's name is the job's, and '{stem}' is none; use up to 40 small letters, digits and hyphens"
            )
        )
        stem = "job"
    given = document.data.get("name")
    if isinstance(given, str) and given != path.stem:
        document.add(("name",), f"is '{given}', and the file is called {path.name}; leave it out, or rename one of them")
    document.data["name"] = stem
    version = document.data.get("version")
    if type(version) is not int:  # to Python, true and 1.0 are 1
        document.add(("version",), "is missing; write `version: 1`" if version is None else f"is {shown(version)}; write `version: 1`")
        document.data["version"] = 1


def _between(document: Document) -> list[Mistake]:
    """What keys need of each other, of those that are well-formed."""
    wrong = {re.split(r"[.\[]", mistake.key)[0] for mistake in document.mistakes}
    given: dict[str, Any] = {key: value for key, value in document.data.items() if key not in wrong and key in JobKeys.model_fields}
    if "notify" in wrong and (well := _well_formed(document, "notify")) is not None:  # one receiver says nothing of the next
        wrong.discard("notify")
        given["notify"] = well
    found = Document(document.file, document.data, document.lines)
    for problem in problems_of(given):
        if not {problem.at[0], *problem.lacks} & wrong & set(document.data):  # what is there, and was said to be wrong, is not missing too
            found.add(problem.at, problem.what)
    return found.mistakes


def _well_formed(document: Document, key: str) -> list[Any] | None:
    """The entries of a list, None for those with a mistake of their own; None where the list is none itself."""
    mistaken = [
        re.fullmatch(rf"{key}\[(\d+)\].*", one.key, re.DOTALL) for one in document.mistakes if re.split(r"[.\[]", one.key)[0] == key
    ]
    entries = document.data.get(key)
    if not isinstance(entries, list) or not all(mistaken):
        return None
    places = {int(one[1]) for one in mistaken if one is not None}
    return [None if place in places else entry for place, entry in enumerate(entries)]


def read_jobs(folder: Path) -> tuple[tuple[JobFile, ...], tuple[Mistake, ...]]:
    """All jobs of a folder that can be read, and all that is wrong with the others and between them. Raises UsageError: no such folder."""
    jobs: list[JobFile] = []
    mistakes: list[Mistake] = []
    for path in job_paths(folder):
        job, wrong = read_job(path)
        mistakes += wrong
        if job is not None:
            jobs.append(job)
    for twice in _twice(jobs):
        mistakes.append(twice)
    return tuple(jobs), tuple(sorted(mistakes))


def _twice(jobs: Sequence[JobFile]) -> list[Mistake]:
    """Two files for one job; two jobs that write one space or one output."""
    found: list[Mistake] = []
    names: dict[str, JobFile] = {}
    spaces: dict[tuple[str, str], JobFile] = {}
    outs: dict[tuple[str, ...], JobFile] = {}
    for one in jobs:
        if (other := names.setdefault(one.name, one)) is not one:
            found.append(Mistake(str(one.path), 1, "", f"is the job `{one.name}`, and so is {other.path}; keep one of them"))
            continue
        space = one.job.space
        if space is not None and (other := spaces.setdefault((one.job.stack, space.name), one)) is not one:
            line = one.lines.get(("space", "name"), 1)
            found.append(Mistake(str(one.path), line, "space.name", f"is the space of {other.path}, too; one job writes to a space"))
        if one.job.out is not None and "{run}" not in one.job.out:
            out = one.out("{date}") or ""
            if (other := outs.setdefault((out,), one)) is not one:
                found.append(
                    Mistake(str(one.path), one.lines.get(("out",), 1), "out", f"is the output of {other.path}, too; put {{job}} into it")
                )
    return found


def load_jobs(folder: Path) -> tuple[JobFile, ...]:
    """All jobs of a folder. Raises BadFiles with all that is wrong, UsageError: no such folder."""
    jobs, mistakes = read_jobs(folder)
    if mistakes:
        raise bad_files(mistakes)
    return jobs


def bad_files(mistakes: Sequence[Mistake]) -> BadFiles:
    """The one exception for all mistakes."""
    files = len({mistake.file for mistake in mistakes})
    return BadFiles(
        f"{len(mistakes)} mistake{'' if len(mistakes) == 1 else 's'} in {files} job file{'' if files == 1 else 's'}, nothing was begun.",
        problems=[str(mistake) for mistake in mistakes],
        fix="docs/jobs.md lists every key.",
    )


def find_job(folder: Path, name: str) -> JobFile:
    """The job of this name, or in this file. Mistakes in other files are no reason not to run it. Raises BadFiles, UsageError."""
    if name.endswith(ENDINGS) or os.sep in name:
        path = Path(name)
        if not path.exists():
            raise UsageError("there is no such job file.", where=name)
    else:
        paths = job_paths(folder)
        fitting = [path for path in paths if path.stem == name]
        if not fitting:
            raise _no_such_job(folder, name, [path.stem for path in paths])
        if len(fitting) > 1:
            raise bad_files([Mistake(str(fitting[1]), 1, "", f"is the job `{name}`, and so is {fitting[0]}; keep one of them")])
        path = fitting[0]
    job, mistakes = read_job(path)
    if job is None:
        raise bad_files(mistakes)
    return job


def _no_such_job(folder: Path, name: str, names: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    if near:
        fix = f"Did you mean {' or '.join(near)}?"
    elif names:
        fix = f"There are: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}."
    else:
        fix = "The folder has no job file; docs/jobs.md says what one is."
    return UsageError(f"there is no job `{name}`.", where=str(folder), fix=fix)
