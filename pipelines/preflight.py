"""pipelines: read the whole dataset before anything is sent, and list every row that cannot be sent. Touches files through the reader.

What one reading leaves: a length, an output limit and a digest for each row (48 bytes a row, 32 of them in a temporary file), so that a
large dataset is planned in little memory. Ids are compared by their 64-bit hashes; only if two hashes meet is the dataset read once more,
to look at those ids themselves.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal
from zlib import crc32

import msgspec
import zstandard

from contract.errors import BadRow, DatasetError
from contract.lines import LEVEL
from contract.rows import row_digest
from pipelines.dataset.reader import Reader, Row
from pipelines.dataset.records import FATAL
from pipelines.dataset.rows import RowProblem
from pipelines.dataset.shapes import Shape, Shapes
from pipelines.pack import TokenSample

SHOWN: Final = 1000
"""Bad rows that an error carries; all of them are in its file."""
COLUMNS: Final = 1000
"""Columns that a table of results has at most."""
_DIGEST: Final = 32
_FLUSH: Final = 4096


class SkippedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `skipped.jsonl.zst`, and of the list of bad rows."""

    file: str
    line: int
    code: str
    reason: str
    id: str | None


class BadRows:
    """Rows that cannot be sent: the first 1,000 in memory, all of them in a compressed temporary file, in the order they were met."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="nightbatch-bad-")  # noqa: SIM115 (closed by close)
        self._packer = zstandard.ZstdCompressor(level=LEVEL).compressobj()
        self._ended = False
        self._kept: int | None = None
        self.shown: list[BadRow] = []
        self.codes: Counter[str] = Counter()
        self.fatal: list[BadRow] = []

    @property
    def total(self) -> int:
        return self.codes.total()

    def add(self, place: int, line: int, problem: RowProblem) -> None:
        """`place`: the file's number."""
        row = BadRow(self._names[place], line, problem.code, problem.reason)
        self.codes[problem.code] += 1
        if len(self.shown) < SHOWN:
            self.shown.append(row)
        if problem.code in FATAL:
            self.fatal.append(row)
        skipped = SkippedLine(file=row.file, line=line, code=row.code, reason=row.reason, id=problem.custom_id)
        self._file.write(self._packer.compress(msgspec.json.encode(skipped) + b"\n"))

    def cut(self) -> int:
        """The dataset goes on after the limit: what is added from here on is not part of `compressed`. How many there are until here."""
        self._file.write(self._packer.flush())
        self._kept = self._file.tell()
        self._packer = zstandard.ZstdCompressor(level=LEVEL).compressobj()
        return self.total

    def compressed(self) -> bytes:
        """Those until the cut, if there was one, as one zstd object of JSON lines; ends the list."""
        self._end()
        return self._file.read() if self._kept is None else self._file.read(self._kept)

    def write_to(self, path: Path) -> None:
        """All of them as plain JSON lines; ends the list."""
        self._end()
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            path.open("wb") as out,
            zstandard.ZstdDecompressor().stream_reader(self._file, read_across_frames=True, closefd=False) as reader,
        ):
            shutil.copyfileobj(reader, out)

    def _end(self) -> None:
        if not self._ended:
            self._file.write(self._packer.flush())
            self._ended = True
        self._file.seek(0)

    def close(self) -> None:
        self._file.close()

    def summary(self) -> str:
        """`2 rows not_json, 1 row duplicate_id`, most frequent first."""
        return ", ".join(f"{count:,} {code}" for code, count in self.codes.most_common())


class ColumnKinds:
    """Which kinds of values each column of JSON records held, over the whole dataset: what a table of them can be."""

    _BITS: Final[dict[type, int]] = {type(None): 0, bool: 1, float: 8, str: 16}
    _OTHER: Final = 32
    _KINDS: Final[dict[int, Literal["bool", "int", "float", "str"]]] = {
        1: "bool", 2: "int", 4: "int", 6: "int", 8: "float", 10: "float", 16: "str"
    }  # fmt: skip

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._shapes = Shapes()
        self._known: set[Shape] = set()

    def add(self, record: dict[str, Any], shape: Shape | None = None) -> None:
        """`shape`: the record's, where its reader knows it; one of the same reader for all records."""
        if shape is None:
            shape = self._shapes.of(record)
        # Of records with a shape that was seen, only whole numbers need a look, at their size.
        if shape in self._known:
            for name in shape.numbers:
                if not -(1 << 53) <= record[name] <= 1 << 53:
                    self._look(record)
                    return
            return
        if shape.kept:
            self._known.add(shape)
        self._look(record)

    def _look(self, record: dict[str, Any]) -> None:
        seen = self._seen
        bits = self._BITS
        for name, value in record.items():
            kind = type(value)
            if kind is int:
                # 2: exact as a float as well, so that whole numbers among floats can be floats; 4: 64 bits; beyond: text.
                bit = 2 if -(1 << 53) <= value <= 1 << 53 else 4 if -(1 << 63) <= value < 1 << 63 else self._OTHER
            else:
                bit = bits.get(kind, self._OTHER)
            old = seen.get(name, -1)
            if old < 0:
                seen[name] = bit
            elif old | bit != old:
                seen[name] = old | bit

    def columns(self) -> dict[str, Literal["bool", "int", "float", "str", "json"]] | None:
        """Column -> kind, in order of first appearance; `json`: its values are kept as JSON text. None: too many for a table."""
        if len(self._seen) > COLUMNS:
            return None
        return {name: "str" if bits == 0 else self._KINDS.get(bits, "json") for name, bits in self._seen.items()}


class Digests:
    """The digests of all rows, in order, in a temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="nightbatch-rows-")  # noqa: SIM115 (closed by close)
        self._held: list[bytes] = []
        self.add = self._held.append

    def flush(self) -> None:
        self._file.write(b"".join(self._held))
        self._held.clear()

    def of(self, start: int, stop: int) -> str:
        """sha256 over the digests of rows [start, stop): a shard's `source.digest`."""
        self.flush()
        self._file.seek(start * _DIGEST)
        digest = hashlib.sha256()
        left = (stop - start) * _DIGEST
        while left:
            data = self._file.read(min(left, 1 << 20))
            assert data
            digest.update(data)
            left -= len(data)
        self._file.seek(0, 2)
        return digest.hexdigest()

    def close(self) -> None:
        self._file.close()


@dataclass
class Scan:
    """What one reading of the dataset found. Arrays hold one number a row, in row order, up to the limit; `rest_*` counts what follows."""

    bad: BadRows
    digests: Digests
    lengths: array[int] = field(default_factory=lambda: array("I"))
    """Bytes of the row's line."""
    most: array[int] = field(default_factory=lambda: array("I"))
    """The most output tokens that the row's body allows; 0: not said."""
    offsets: array[int] | None = None
    """Where the row's line begins in its file, if the dataset can be read in place."""
    hashes: array[int] = field(default_factory=lambda: array("q"))
    sample: TokenSample = field(default_factory=TokenSample)
    kinds: ColumnKinds | None = None
    columns_mark: str | None = None
    """Length and CRC-32 of the whole table: a cheap sign that columns which no row uses have changed, no proof of anything."""
    starts: list[int] = field(default_factory=list)
    """Index of each file's first row."""
    rest_rows: int = 0
    rest_bytes: int = 0
    skipped: int = 0
    """Bad rows before the limit."""
    digest: str = ""

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def suspects(self) -> frozenset[int]:
        """Hashes of ids that more than one row has. Forgets all others."""
        import numpy as np

        if len(self.hashes) < 2:
            return frozenset()
        hashes = np.frombuffer(self.hashes, dtype=np.int64)
        hashes.sort()
        return frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())

    def close(self) -> None:
        self.bad.close()
        self.digests.close()


def scan(
    reader: Reader, *, limit: int | None = None, watch: frozenset[int] = frozenset(), columns: bool = False, in_place: bool = False
) -> Scan:
    """Read every row once. `columns`: also learn what a table of the original columns would be; `in_place`: note where lines begin."""
    names = [file.name for file in reader.files]
    bad = BadRows(names)
    kinds = ColumnKinds() if columns and reader.format != "parquet" else None
    found = Scan(bad, Digests(), offsets=array("Q") if in_place else None, kinds=kinds)
    try:
        with closing(reader.rows(found.bad.add, watch=watch)) as rows:
            _fill(found, reader, rows, limit, watch, columns)
    except BaseException:
        found.close()
        raise
    return found


def _fill(found: Scan, reader: Reader, rows: Iterator[Row], limit: int | None, watch: frozenset[int], columns: bool) -> None:
    table = size = 0
    encode = msgspec.json.Encoder().encode
    watched = not watch and (reader.batch or reader.options.id_column is not None)
    lengths, most_tokens, hashes, offsets = found.lengths.append, found.most.append, found.hashes.append, found.offsets
    add_digest, flush, sample = found.digests.add, found.digests.flush, found.sample
    kinds = found.kinds
    starts = found.starts
    end = limit if limit is not None else 1 << 62
    index = sampled = 0
    file = -1
    flushed = _FLUSH
    for place, _, offset, custom_id, line, most, record, read, shape in rows:
        if watched:
            hashes(hash(custom_id))
        if index >= end:
            if not found.rest_rows:
                found.skipped = found.bad.cut()
            found.rest_rows += 1
            found.rest_bytes += len(line)
            continue
        if place != file:
            starts.extend([index] * (place - file))
            file = place
        add_digest(row_digest(index, custom_id, line))
        lengths(len(line))
        most_tokens(most)
        if offsets is not None:
            if offset < 0:
                offsets = found.offsets = None
            else:
                offsets.append(offset)
        if index == sampled:
            sample.add(line)
            sampled += sample.stride
        if kinds is not None:
            kinds.add(record, shape)
            data = read or encode(record)
            table = crc32(data, table)
            size += len(data)
        index += 1
        if index == flushed:
            flush()
            flushed += _FLUSH
    if not found.rest_rows:
        found.skipped = found.bad.total
    while len(starts) < len(reader.files):
        starts.append(index)
    if found.offsets is not None and (found.bad.total or reader.padded):
        found.offsets = None
    found.digest = found.digests.of(0, index)
    if columns:
        if kinds is None:
            table, size = _crc_of_files(reader)
        found.columns_mark = f"{size}-{table:08x}"


def _crc_of_files(reader: Reader) -> tuple[int, int]:
    """Parquet: the files' bytes stand for their columns, because values have no canonical bytes across Arrow's versions."""
    table = size = 0
    for file in reader.files:
        for chunk in reader.source.whole(file):
            table, size = crc32(chunk, table), size + len(chunk)
    return table, size


def preflight(
    reader: Reader,
    *,
    on_bad_row: Literal["fail", "skip"] = "fail",
    limit: int | None = None,
    columns: bool = False,
    in_place: bool = False,
    list_to: Path | None = None,
    again: Callable[[], None] | None = None,
) -> tuple[Scan, frozenset[int]]:
    """Read everything; the scan, and the hashes of ids to watch when the same rows are read again.

    Raises DatasetError with every bad row (`fail`), with those that cannot be skipped, or because no row is left. `list_to`: where the
    whole list is written when there are more bad rows than an error carries. `again`: told when the dataset must be read a second time.
    """
    found = scan(reader, limit=limit, columns=columns, in_place=in_place)
    watch: frozenset[int] = frozenset()
    try:
        watch = found.suspects()
        if watch:
            found.close()
            if again is not None:
                again()
            found = scan(reader, limit=limit, watch=watch, columns=columns, in_place=in_place)
        found.hashes = array("q")
        _judge(found, reader, on_bad_row, list_to)
    except BaseException:
        found.close()
        raise
    return found, watch


def _judge(found: Scan, reader: Reader, on_bad_row: Literal["fail", "skip"], list_to: Path | None) -> None:
    bad = found.bad
    where = reader.files[0].name if len(reader.files) == 1 else f"{reader.files[0].name} and {len(reader.files) - 1} more"
    total = bad.total
    rows = found.rows + found.rest_rows
    if total and (on_bad_row == "fail" or bad.fatal):
        listed = ""
        if list_to is not None and total > len(bad.shown):
            bad.write_to(list_to)
            listed = f" All of them are listed in {list_to}."
        if on_bad_row == "skip":
            raise DatasetError(
                f"{len(bad.fatal)} of its files cannot be read to the end.",
                bad_rows=bad.fatal,
                where=where,
                fix="Mend or leave out the file; nothing was sent.",
            )
        raise DatasetError(
            f"{total:,} of {rows + total:,} rows cannot be sent ({bad.summary()}).",
            bad_rows=bad.shown,
            total=total,
            where=where,
            fix=f"{_mend(bad, rows)}; nothing was sent.{listed}",
        )
    if not found.rows:
        if total:
            raise DatasetError(f"no row is left: all {total:,} are bad ({bad.summary()}).", bad_rows=bad.shown, total=total, where=where)
        raise DatasetError("the dataset has no rows.", where=where, fix="Nothing was sent.")


def _mend(bad: BadRows, rows: int) -> str:
    """What to do about bad rows: a file that cannot be read to its end is none that can be left out, and of bad rows alone nothing is
    left. `rows`: the good ones."""
    if not rows:
        return "Mend them"
    if not bad.fatal:
        return "Mend them, or leave them out with --on-bad-row skip"
    files = ", ".join(dict.fromkeys(row.file for row in bad.fatal[:3])) + (", …" if len(bad.fatal) > 3 else "")
    return f"Mend or leave out {files}, which cannot be read to the end (--on-bad-row skip cannot help there)"
