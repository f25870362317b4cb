"""worker: parts, pieces and errors objects, written as rows finish, in bounded memory. Touches one temporary folder.

    generate part   zstd lines {"id", "index", "response", "row"}      embed part   Parquet: index, row, id, embedding, tokens
    errors          zstd lines {"error", "id", "index", "row"}         a piece      the same as a part, with some of its rows

`row` is the row digest, so that a reader can prove which row an answer belongs to. Rows stand in the order in which they finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import msgspec
import zstandard

from contract.lines import LEVEL
from contract.models import TaskKind, encode
from contract.rows import ErrorLine, PartLine, RowError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SUFFIX: Final[dict[TaskKind, str]] = {"generate": "jsonl.zst", "embed": "parquet"}
GROUP_ROWS: Final = 4096
"""Rows of a Parquet row group: what an embed part holds in memory while it is written (6 MB at 384 numbers a vector)."""


@dataclass(frozen=True)
class DoneRow:
    """A row that succeeded. `output`: the response's JSON bytes, or the vector as little-endian float32: what the shard digest covers."""

    index: int
    digest: bytes
    id: str
    output: bytes
    tokens: int


class PartWriter(Protocol):
    """A file that grows row by row. Nothing is at `path` that a reader could use before `finish`."""

    path: Path
    rows: int

    def add(self, row: DoneRow) -> None: ...
    def finish(self) -> Path: ...
    def discard(self) -> None: ...


def part_writer(kind: TaskKind, path: Path) -> PartWriter:
    return EmbedWriter(path) if kind == "embed" else GenerateWriter(path)


class LinesWriter:
    """zstd-compressed lines in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._file: BinaryIO | None = None
        self._stream: Any = None

    def line(self, line: bytes) -> None:
        if self._stream is None:
            self._file = self.path.open("wb")
            self._stream = zstandard.ZstdCompressor(level=LEVEL).stream_writer(self._file, closefd=False)
        self._stream.write(line + b"\n")
        self.rows += 1

    def finish(self) -> Path:
        self._close()
        return self.path

    def discard(self) -> None:
        self._close()
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._file is not None:
            self._file.close()
            self._file = None


class GenerateWriter(LinesWriter):
    def add(self, row: DoneRow) -> None:
        self.line(encode(PartLine(index=row.index, row=row.digest.hex(), id=row.id, response=msgspec.Raw(row.output))))


class ErrorsWriter(LinesWriter):
    """Returns the exact bytes of the error, which the shard digest covers."""

    def add(self, index: int, digest: bytes, ident: str, error: RowError) -> bytes:
        raw = encode(error)
        self.line(encode(ErrorLine(index=index, row=digest.hex(), id=ident, error=msgspec.Raw(raw))))
        return raw


class EmbedWriter:
    """A Parquet file of vectors. All vectors have the length of the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._waiting: list[DoneRow] = []
        self._bytes = 0

    def add(self, row: DoneRow) -> None:
        if not self._bytes:
            self._bytes = len(row.output)
        elif len(row.output) != self._bytes:
            raise ValueError(f"row {row.index} has a vector of {len(row.output) // 4} numbers, the others have {self._bytes // 4}")
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) >= GROUP_ROWS:
            self._flush()

    def finish(self) -> Path:
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        return self.path

    def discard(self) -> None:
        self._waiting = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._waiting:
            return
        import pyarrow.parquet as pq

        table = embed_table(self._waiting)
        if self._writer is None:
            # Vectors do not compress; the other columns do.
            compression: Any = {"index": "zstd", "row": "zstd", "id": "zstd", "tokens": "zstd", "embedding.list.element": "none"}
            self._writer = pq.ParquetWriter(
                self.path, table.schema, compression=compression, use_dictionary=False, write_statistics=["index"]
            )
        self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self._waiting = []


def embed_table(rows: Sequence[DoneRow]) -> pa.Table:
    """The columns of an embed part."""
    import pyarrow as pa

    size = len(rows[0].output) // 4
    numbers = pa.Array.from_buffers(pa.float32(), size * len(rows), [None, pa.py_buffer(b"".join(row.output for row in rows))])
    columns: dict[str, Any] = {
        "index": pa.array([row.index for row in rows], pa.int64()),
        "row": pa.array([row.digest for row in rows], pa.binary(32)),
        "id": pa.array([row.id for row in rows], pa.string()),
        "embedding": pa.FixedSizeListArray.from_arrays(numbers, size),
        "tokens": pa.array([row.tokens for row in rows], pa.int32()),
    }
    return pa.table(columns)
