"""pipelines/dataset: CSV and Parquet -> records with the line (CSV) or row (Parquet) that they stand at. Touches files through `streams`.

CSV: RFC 4180 with strict quotes (a quote that never closes is an error of the file, not one huge field), delimiter told from the header
(comma, else semicolon, tab or bar; tab for .tsv), every value text. Parquet: read by row group, in batches of about 8 MB.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from contract.errors import DatasetError
from contract.rows import MAX_ROW_BYTES
from pipelines.dataset.files import DataFile
from pipelines.dataset.rows import RowProblem
from pipelines.dataset.streams import Source, TooLong, line_blocks

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_BYTES: Final = 8 << 20
BATCH_ROWS: Final = 4096
FATAL: Final = frozenset({"damaged", "unclosed_quote"})
"""Codes after which the rest of a file is unknown: no option skips them."""


class CsvFile:
    """One CSV file: its header, then its records."""

    def __init__(self, source: Source, file: DataFile) -> None:
        self._file = file
        self._bad_lines: set[int] = set()
        self._line = 0
        texts = self._texts(source)
        try:
            first = next((text for text in texts if text.strip()), "")
        except _Overlong as error:
            raise self._overlong_header(error) from None
        self._before = self._line - 1  # blank lines above the header
        delimiter = _delimiter(file.name, first)
        # csv's own limit is 128 kB a field, and it is the process's: one that only rises disturbs nobody.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
        self._reader = csv.reader(itertools.chain([first] if first else [], texts), delimiter=delimiter, strict=True)
        self.columns = self._header()

    def _header(self) -> tuple[str, ...]:
        try:
            names = tuple(name.strip() for name in next(self._reader, []))
        except _Overlong as error:
            raise self._overlong_header(error) from None
        except csv.Error as error:
            why, fix = str(error), "Is it a CSV file?"
            if "new-line character" in why:
                why, fix = "a carriage return without a newline", "Convert the lines' ends: tr '\\r' '\\n' < FILE > NEW.csv"
            elif "unexpected end of data" in why:
                why, fix = "a quote opens and never closes", "Close it, or write the quote twice."
            raise DatasetError(f"the header cannot be read ({why}).", where=f"{self._file.name}:1", fix=fix) from None
        if self._bad_lines:
            where = f"{self._file.name}:{min(self._bad_lines)}"
            raise DatasetError("the header is not UTF-8.", where=where, fix="Convert the file to UTF-8.")
        for place, name in enumerate(names):
            if not name and len(names) > 1:
                raise DatasetError(f"column {place + 1} has no name.", where=f"{self._file.name}:1", fix="Give every column a name.")
            if name in names[:place]:
                raise DatasetError(f"two columns are called `{name}`.", where=f"{self._file.name}:1", fix="Give every column its own name.")
        return names

    def _overlong_header(self, error: _Overlong) -> DatasetError:
        return DatasetError(
            f"the header cannot be read (a line of {error.size:,} bytes; one may have {MAX_ROW_BYTES:,}).",
            where=f"{self._file.name}:{self._line}",
            fix="Is it a CSV file?",
        )

    def _texts(self, source: Source) -> Iterator[str]:
        for block in line_blocks(source.chunks(self._file), MAX_ROW_BYTES, newline=True):
            for line in block.lines:
                self._line += 1
                if isinstance(line, TooLong):
                    raise _Overlong(line.size)
                try:
                    yield line.decode()
                except UnicodeDecodeError:
                    self._bad_lines.add(self._line)
                    yield line.decode(errors="replace")

    def records(self) -> Iterator[tuple[int, dict[str, str] | RowProblem]]:
        """(line that the record begins at, the record or what is wrong with it). Ends at a fatal problem."""
        columns = self.columns
        reader = self._reader
        while True:
            start = self._before + reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except _Overlong as error:
                yield start, RowProblem("unclosed_quote", f"a line of {error.size:,} bytes; a row may have {MAX_ROW_BYTES:,}")
                return
            except csv.Error as error:
                text = str(error)
                if "unexpected end of data" in text or "field larger" in text:
                    yield start, RowProblem("unclosed_quote", "a quote opens here and never closes")
                    return
                yield start, RowProblem("csv", f"not CSV: {text}")
                continue
            if not fields or (len(fields) == 1 and len(columns) > 1 and not fields[0].strip()):
                continue
            end = self._before + reader.line_num
            if self._bad_lines and any(line in self._bad_lines for line in range(start, end + 1)):
                yield start, RowProblem("bad_utf8", "not UTF-8")
            elif len(fields) != len(columns):
                yield start, RowProblem("csv", f"{len(fields)} fields, and the header has {len(columns)}")
            else:
                yield start, dict(zip(columns, fields, strict=True))


class _Overlong(Exception):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def _delimiter(name: str, header: str) -> str:
    if ".tsv" in name.lower().rsplit("/", 1)[-1]:
        return "\t"
    if "," in header:
        return ","
    counts = {mark: header.count(mark) for mark in ";\t|"}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else ","


def same_columns(columns: Sequence[str], first: Sequence[str], name: str, first_name: str) -> None:
    """Files of one dataset have the same columns, in any order. Raises DatasetError."""
    if set(columns) == set(first):
        return
    missing = [c for c in first if c not in columns]
    more = [c for c in columns if c not in first]
    text = " and ".join([*([f"lacks {', '.join(missing)}"] if missing else []), *([f"has {', '.join(more)} besides"] if more else [])])
    raise DatasetError(f"its columns are not those of {first_name}: it {text}.", where=name, fix="Run files of different columns apart.")


def open_parquet(file: BinaryIO, name: str) -> pq.ParquetFile:
    """Raises DatasetError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file, pre_buffer=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DatasetError(f"cannot be read as Parquet ({_first_line(error)}).", where=name) from None
    names = table.schema_arrow.names
    twice = [column for place, column in enumerate(names) if column in names[:place]]
    if twice:
        raise DatasetError(f"two columns are called `{twice[0]}`.", where=name, fix="Give every column its own name.")
    return table


def parquet_batches(file: pq.ParquetFile, columns: Sequence[str] | None) -> Iterator[tuple[int, pa.RecordBatch | RowProblem]]:
    """(number of the batch's first row, the batch). `columns` None: all. Ends at a fatal problem."""
    import pyarrow as pa

    number = 1
    for group in range(file.num_row_groups):
        facts = file.metadata.row_group(group)
        size = max(1, facts.total_byte_size // max(1, facts.num_rows))
        rows = int(max(1, min(BATCH_ROWS, BATCH_BYTES // size)))
        try:
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=None if columns is None else list(columns)):
                yield number, batch
                number += batch.num_rows
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            yield number, RowProblem("damaged", f"the Parquet data is damaged from here on ({_first_line(error)})")
            return


def batch_records(batch: pa.RecordBatch) -> list[dict[str, Any] | RowProblem]:
    """The batch's rows as dicts; a row that Python cannot hold is a RowProblem."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):  # UnicodeDecodeError is one; so are timestamps that datetime cannot hold
        return [_one(batch, at) for at in range(batch.num_rows)]


def _one(batch: pa.RecordBatch, at: int) -> dict[str, Any] | RowProblem:
    try:
        row: dict[str, Any] = batch.slice(at, 1).to_pylist()[0]
        return row
    except UnicodeDecodeError:
        return RowProblem("bad_utf8", "not UTF-8")
    except (ValueError, OverflowError) as error:
        return RowProblem("wrong_type", f"a value that cannot be read ({_first_line(error)})")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
