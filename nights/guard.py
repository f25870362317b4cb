"""nights: whether tonight's dataset is what it was on the last good night: not shrunk, its columns as they were. Pure but for `look`.

A dataset that vanished is an error of planning and needs no guard. What a guard finds stops the night before anything is computed or
removed: a person looks, and says `--accept shrink` or `--accept schema` if it is right.

Columns of CSV and Parquet are those of the table. Of JSON records they are what all of the first 1,000 have, so that a column that some
rows lack is none that can be missed; new columns are told and stop nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal

from contract.errors import UsageError
from contract.models import RowOptions, TaskKind
from nights.runner import Runner
from pipelines.dataset import find_files, open_reader
from pipelines.dataset.reader import Reader
from pipelines.dataset.streams import Source
from pipelines.outputs import output_names

LOOKED_AT: Final = 1000
"""Records of a JSON dataset."""
Accept = Literal["shrink", "schema", "writer"]
_WILD: Final = re.compile(r"[*?\[]")
_PARTS: Final = re.compile(r"(\*\*/|\*\*|\*|\?)")
_GLOB: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_KINDS: Final[Mapping[type, str]] = {bool: "bool", int: "number", float: "number", str: "text", list: "list", dict: "object"}


@dataclass(frozen=True)
class Look:
    """Tonight's dataset as a quick look finds it. `columns`: name -> kind; None where rows are batch lines, which have none."""

    files: int
    bytes: int
    columns: Mapping[str, str] | None


@dataclass(frozen=True)
class Doubt:
    """Why a person must say whether the night goes on. `accept`: what to say then."""

    accept: Accept
    sentence: str


async def look(runner: Runner, dataset: Sequence[str], task: TaskKind, rows: RowOptions) -> Look:
    """Which files there are, and the columns of their beginning. Raises DatasetError where planning would, and as it would."""
    files = await find_files(dataset, runner.bucket)
    source = Source(asyncio.get_running_loop())

    def columns() -> Mapping[str, str] | None:
        reader = open_reader(files, task, rows, (), source)
        return None if reader.batch else columns_of(reader)

    return Look(len(files), sum(file.size for file in files), await asyncio.to_thread(columns))


def columns_of(reader: Reader) -> Mapping[str, str]:
    """Column -> kind: `text`, `number`, `bool`, `list`, `object`, `null`, or Parquet's own type."""
    if reader.format == "csv":
        return dict.fromkeys(reader.columns, "text")
    if reader.format == "parquet":
        from pipelines.dataset.records import open_parquet

        with reader.source.seekable(reader.files[0]) as handle:
            return {field.name: str(field.type) for field in open_parquet(handle, reader.files[0].name).schema_arrow}
    found: dict[str, str] | None = None
    with closing(reader.rows(lambda *_: None)) as rows:
        for row in itertools.islice(rows, LOOKED_AT):
            record = row[6]
            kinds = {name: "null" if value is None else _KINDS.get(type(value), "text") for name, value in record.items()}
            found = kinds if found is None else _both(found, kinds)
    return found or {}


def _both(known: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Columns that both have. One that is null in one of them is what the other says; one of two kinds is `mixed`."""
    both: dict[str, str] = {}
    for name, kind in known.items():
        if name in other:
            kinds = {kind, other[name]} - {"null"}
            both[name] = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "null"
    return both


def check_out(dataset: Sequence[str], out: str | None) -> None:
    """Refuse an output that the dataset takes in: the next night would send last night's answers as rows, and each night more of them.
    Raises UsageError."""
    if out is None:
        return
    names = output_names(out)
    for named in dataset:
        for made in (names.out, names.errors, names.seal):
            if _takes_in(named, made):
                raise UsageError(
                    f"the output lies in the dataset {named}, so that the next night would take {made.rpartition('/')[2]} for rows.",
                    where="out",
                    fix="Write it to a folder that the dataset does not name.",
                )


def _takes_in(named: str, made: str) -> bool:
    """Whether a file of this name is one that `find_files` finds there. Folders leave out what begins with `_` or `.`."""
    if named.startswith("s3://") != made.startswith("s3://"):
        return False
    if not named.startswith("s3://"):
        named, made = os.path.realpath(named), os.path.join(os.path.realpath(os.path.dirname(made)), os.path.basename(made))
    if wild := _WILD.search(named):
        begin = named.rfind("/", 0, wild.start()) + 1
        taken = re.fullmatch("".join(_GLOB.get(part, re.escape(part)) for part in _PARTS.split(named)), made) is not None
    elif os.path.isfile(named):
        return False
    else:
        begin = len(named.rstrip("/")) + 1
        taken = made.startswith(named.rstrip("/") + "/")
    return taken and not any(part.startswith(("_", ".")) for part in made[begin:].split("/"))


def shrunk(rows: int, before: int, most_percent: float, since: str) -> Doubt | None:
    """`before`: rows of the last good night, of `since`."""
    if rows >= before or before == 0:
        return None
    percent = 100 * (before - rows) / before
    if percent <= most_percent:
        return None
    return Doubt(
        "shrink",
        f"the dataset has {rows:,} row{'' if rows == 1 else 's'}, {percent:.1f} % fewer than the {before:,} of {since} "
        f"(shrink.max_percent is {most_percent:g})",
    )


def schema_changed(now: Mapping[str, str] | None, before: Mapping[str, str] | None, since: str) -> tuple[Doubt | None, tuple[str, ...]]:
    """What a person must say, if anything, and what is only worth telling."""
    if now is None or before is None:
        if (now is None) == (before is None):
            return None, ()
        kinds = ("batch lines", "records") if now is None else ("records", "batch lines")
        return Doubt("schema", f"the dataset holds {kinds[0]}, and on {since} it held {kinds[1]}"), ()
    gone = [name for name in before if name not in now]
    other = [f"{name} ({kind} -> {now[name]})" for name, kind in before.items() if name in now and _differs(kind, now[name])]
    added = [name for name in now if name not in before]
    notices = (f"new columns since {since}: {', '.join(added[:20])}",) if added else ()
    parts = []
    if gone:
        parts.append(f"lacks {'column' if len(gone) == 1 else 'columns'} {', '.join(gone[:20])}")
    if other:
        parts.append(f"has other types in {', '.join(other[:20])}")
    return (Doubt("schema", f"the dataset {' and '.join(parts)}, compared with {since}") if parts else None), notices


def _differs(before: str, now: str) -> bool:
    return before != now and not {before, now} & {"null", "mixed"}


def keep_columns(columns: Mapping[str, str] | None) -> str:
    """As a record's fact: `id:text,price:number`; empty for batch lines."""
    return "" if columns is None else "\n".join(f"{name}\t{kind}" for name, kind in columns.items())


def kept_columns(text: str | None) -> Mapping[str, str] | None:
    """Back from a fact."""
    if not text:
        return None
    return dict(line.rsplit("\t", 1) for line in text.split("\n") if "\t" in line)
