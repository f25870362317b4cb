"""pipelines/dataset: files -> rows with their index, the same ones at every reading. Touches files and S3 through `streams`.

A dataset is read at least twice: once to check every row and to find the shards, once more to send them. Both readings go through
`Reader.rows`, so that what is checked is what is sent.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from contract.errors import DatasetError
from contract.models import RowOptions, TaskKind
from contract.rows import MAX_ROW_BYTES
from pipelines.dataset.files import DataFile
from pipelines.dataset.records import CsvFile, batch_records, open_parquet, parquet_batches, same_columns
from pipelines.dataset.rows import (
    BatchRows,
    RecordRows,
    RowProblem,
    check_columns,
    looks_like_batch_line,
    parse_record,
    resolve_options,
)
from pipelines.dataset.shapes import Shape, Shapes
from pipelines.dataset.streams import DamagedFile, Source, TooLong, line_blocks

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[int, int, int, str, bytes, int, Any, bytes, Shape | None]
"""(file's number, line, byte offset of the line in its file, custom_id, the row's line, most output tokens, its record, what was read, the
record's shape).

A plain tuple, because there are millions. The offset is -1 where the row's line is not the file's line byte for byte. The record is None
for batch lines, a dict for JSONL and CSV, a `Slot` for Parquet; what was read is JSONL's line, and nothing for CSV and Parquet; the shape
is that of JSONL's records.
"""
OnBad = Callable[[int, int, RowProblem], None]
"""Called with file's number, line and problem of each row that is left out."""
JSON_SPACE: Final = b" \t\r\n"
_PEEK: Final = 1000


@dataclass(frozen=True)
class Slot:
    """Where a Parquet row's columns are."""

    batch: pa.RecordBatch
    at: int


@dataclass
class Reader:
    """A dataset that can be read again and again. `options` have their column resolved; `batch` says that rows are batch lines.

    `columns` are the table's, in the first file's order (for JSONL those of the first record: others may have more).
    """

    files: tuple[DataFile, ...]
    task: TaskKind
    models: tuple[str, ...]
    options: RowOptions
    batch: bool
    columns: tuple[str, ...]
    source: Source = field(default_factory=Source)
    other_models: Counter[str] = field(default_factory=Counter, init=False)
    """Models that batch lines name instead of the run's, with how many rows do, as the last reading found them."""
    lines: BatchRows | None = field(default=None, init=False)
    """What the last reading found of batch lines."""
    padded: bool = field(default=False, init=False)
    """Some blank line holds spaces, so that a reader of the file's bytes would take it for a row."""

    @property
    def format(self) -> Literal["jsonl", "csv", "parquet"]:
        return self.files[0].format

    def rows(self, on_bad: OnBad, *, watch: frozenset[int] = frozenset(), records: bool = False) -> Generator[Row, None, None]:
        """Every good row in order. `watch`: hashes of ids that may stand twice; the second row of an id is bad. `records`: with them."""
        if self.batch:
            maker = self.lines = BatchRows(self.task, self.models)
            self.other_models = maker.other_models
            yield from self._watched(self._batch_lines(maker, on_bad), on_bad, watch)
            return
        made = RecordRows(self.task, self.options)
        if self.options.id_column is None:
            watch = frozenset()  # ids that are made from positions are unique
        if self.format == "jsonl":
            rows = self._json_records(made, on_bad, watch)
        elif self.format == "csv":
            rows = self._csv_records(made, on_bad, watch)
        else:
            rows = self._parquet_records(made, on_bad, watch, records)
        yield from rows

    def _watched(self, rows: Iterator[Row], on_bad: OnBad, watch: frozenset[int]) -> Iterator[Row]:
        if not watch:
            yield from rows
            return
        twice = _Twice(self, watch)
        for row in rows:
            problem = twice(row[3], row[0], row[1])
            if problem is None:
                yield row
            else:
                on_bad(row[0], row[1], problem)

    def _batch_lines(self, make: BatchRows, on_bad: OnBad) -> Iterator[Row]:
        for place, file in enumerate(self.files):
            number = 0
            try:
                for block in line_blocks(self.source.chunks(file), MAX_ROW_BYTES):
                    number, offset = block.number, block.offset
                    for raw in block.lines:
                        if isinstance(raw, TooLong):
                            on_bad(place, number, _too_long(raw.size))
                            offset += raw.size + 1
                        else:
                            line = raw.strip(JSON_SPACE)
                            if line:
                                try:
                                    custom_id, made, most = make(line, 0)
                                except RowProblem as problem:
                                    on_bad(place, number, problem)
                                else:
                                    yield place, number, offset if len(line) == len(raw) else -1, custom_id, made, most, None, line, None
                            elif raw:
                                self.padded = True
                            offset += len(raw) + 1
                        number += 1
            except DamagedFile as error:
                on_bad(place, number, RowProblem("damaged", error.what.rstrip(".")))

    def _json_records(self, make: RecordRows, on_bad: OnBad, watch: frozenset[int]) -> Iterator[Row]:
        twice = _Twice(self, watch)
        shapes = Shapes()
        index = 0
        for place, file in enumerate(self.files):
            number = 0
            try:
                for block in line_blocks(self.source.chunks(file), MAX_ROW_BYTES):
                    number = block.number - 1
                    for raw in block.lines:
                        number += 1
                        if isinstance(raw, TooLong):
                            on_bad(place, number, _too_long(raw.size))
                            continue
                        line = raw.strip(JSON_SPACE)
                        if not line:
                            continue
                        try:
                            record, shape = parse_record(line, shapes)
                            custom_id, made, most = make(record, index)
                        except RowProblem as problem:
                            on_bad(place, number, problem)
                            continue
                        if watch and (again := twice(custom_id, place, number)) is not None:
                            on_bad(place, number, again)
                            continue
                        index += 1
                        yield place, number, 0, custom_id, made, most, record, line, shape
            except DamagedFile as error:
                on_bad(place, number, RowProblem("damaged", error.what.rstrip(".")))

    def _csv_records(self, make: RecordRows, on_bad: OnBad, watch: frozenset[int]) -> Iterator[Row]:
        twice = _Twice(self, watch)
        index = 0
        for place, file in enumerate(self.files):
            number = 0
            try:
                table = CsvFile(self.source, file)
                if not table.columns:
                    continue  # an empty file
                same_columns(table.columns, self.columns, file.name, self.files[0].name)
                for number, record in table.records():
                    if isinstance(record, RowProblem):
                        on_bad(place, number, record)
                        continue
                    try:
                        custom_id, made, most = make(record, index)
                    except RowProblem as problem:
                        on_bad(place, number, problem)
                        continue
                    if watch and (again := twice(custom_id, place, number)) is not None:
                        on_bad(place, number, again)
                        continue
                    index += 1
                    yield place, number, 0, custom_id, made, most, record, b"", None
            except DamagedFile as error:
                on_bad(place, number, RowProblem("damaged", error.what.rstrip(".")))

    def _parquet_records(self, make: RecordRows, on_bad: OnBad, watch: frozenset[int], whole: bool) -> Iterator[Row]:
        twice = _Twice(self, watch)
        index = 0
        needed = list(make.columns)
        for place, file in enumerate(self.files):
            with self.source.seekable(file) as handle:
                table = open_parquet(handle, file.name)
                check_columns(self.options, table.schema_arrow.names, file.name)
                for first, batch in parquet_batches(table, None if whole else needed):
                    self.source.check()
                    if isinstance(batch, RowProblem):
                        on_bad(place, first, batch)
                        continue
                    for at, record in enumerate(batch_records(batch.select(needed))):
                        try:
                            if isinstance(record, RowProblem):
                                raise record
                            custom_id, made, most = make(record, index)
                        except RowProblem as problem:
                            on_bad(place, first + at, problem)
                            continue
                        if watch and (again := twice(custom_id, place, first + at)) is not None:
                            on_bad(place, first + at, again)
                            continue
                        index += 1
                        yield place, first + at, 0, custom_id, made, most, Slot(batch, at), b"", None


class _Twice:
    """Remembers where each watched id stood first."""

    def __init__(self, reader: Reader, watch: frozenset[int]) -> None:
        self._reader = reader
        self._watch = watch
        self._first: dict[str, tuple[int, int]] = {}

    def __call__(self, custom_id: str, place: int, line: int) -> RowProblem | None:
        if hash(custom_id) not in self._watch:
            return None
        before = self._first.setdefault(custom_id, (place, line))
        if before == (place, line):
            return None
        shown = custom_id if len(custom_id) <= 60 else custom_id[:57] + "…"
        where = f"line {before[1]}" if before[0] == place else f"{self._reader.files[before[0]].name}:{before[1]}"
        return RowProblem("duplicate_id", f"id {shown!r} is the id of {where} too", custom_id)


def _too_long(size: int) -> RowProblem:
    return RowProblem("too_long", f"{size:,} bytes, and a row may have {MAX_ROW_BYTES:,}")


def open_reader(
    files: Sequence[DataFile], task: TaskKind, options: RowOptions, models: Sequence[str], source: Source | None = None
) -> Reader:
    """Look at the dataset's beginning, and decide how its rows are made. Raises DatasetError. `models`: the run's, then its other names."""
    source = source or Source()
    first = files[0]
    batch = False
    columns: tuple[str, ...] = ()
    where = first.name
    if first.format == "jsonl":
        record, where = _first_record(files, source)
        ways = (options.prompt, options.column, options.messages_column)
        wants = any(way is not None for way in (*ways, options.id_column))
        if record is None:
            # Nothing that could be read: preflight says so line by line, in the shape that was asked for.
            batch = all(way is None for way in ways)
        else:
            batch = looks_like_batch_line(record)
            columns = tuple(record)
            if batch and wants:
                raise DatasetError(
                    "the rows are OpenAI batch lines already; --prompt, --column, --messages-column and --id-column are for other records.",
                    where=where,
                    fix="Leave those options out.",
                )
    elif first.format == "csv":
        for file in files:
            columns = CsvFile(source, file).columns
            where = file.name
            if columns:
                break
    else:
        with source.seekable(first) as handle:
            columns = tuple(open_parquet(handle, first.name).schema_arrow.names)
    if not batch and (columns or first.format == "parquet"):
        options = resolve_options(options, task, columns, where)
        if first.format != "jsonl":
            check_columns(options, columns, where)
    if not batch:
        RecordRows(task, options)  # a template that cannot be read is found before the rows are
    return Reader(tuple(files), task, tuple(models), options, batch, columns, source)


def _first_record(files: Sequence[DataFile], source: Source) -> tuple[dict[str, Any] | None, str]:
    """The first line that is an object, and its file."""
    for file in files:
        try:
            lines = (line for block in line_blocks(source.chunks(file), MAX_ROW_BYTES) for line in block.lines)
            for line in itertools.islice(lines, _PEEK):
                if isinstance(line, bytes) and line.strip(JSON_SPACE):
                    try:
                        return parse_record(line.strip(JSON_SPACE), Shapes())[0], file.name
                    except RowProblem:
                        continue
        except DamagedFile:
            continue
    return None, files[0].name
