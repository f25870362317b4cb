"""pipelines: an output beside what storage says it should be, row by row. May touch contract, pyarrow, the store and files.

Two comparisons that do not depend on each other: every row of the files equals the row that collect would write from storage, and the
shard digests computed from the files alone are the sealed ones.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ContractError, NightbatchError, NotFound, StoreUnavailable, UsageError
from contract.models import Plan, SealedNode, decode
from contract.rows import ShardDigest
from contract.store import Store
from pipelines.collect import OpenStore, layout_for
from pipelines.findings import Notes
from pipelines.outputs import (
    METADATA_KEY,
    Dtype,
    Layout,
    OutputFacts,
    OutputFile,
    OutputLine,
    OutputNames,
    error_line,
    file_facts,
    is_s3,
    output_lines,
    output_names,
    read_line_id,
    s3_key,
    skipped_line,
    table_of,
    vector_of_body,
)
from pipelines.parts import Column, Indices, LeafRows, vectors_of
from pipelines.preflight import SkippedLine
from pipelines.seal import Sealed

BATCH_ROWS: Final = 4096
BATCH_BYTES: Final = 8 << 20
NO_INDEX: Final = -1

# --- the output ----------------------------------------------------------------------------------------------------------------------


class Cursor(Protocol):
    """The rows of an output file, from its beginning on."""

    name: str

    def indices(self) -> Indices:
        """Row indices of the next rows, as many as are at hand; NO_INDEX for a row that cannot be read; empty at the end."""

    def differing(self, expected: Any, at: int, count: int) -> Iterator[tuple[int, str]]:
        """Offset of each of the next `count` rows that is not what stands at `at` in `expected`, with what differs."""

    def proofs(self, count: int) -> Iterator[tuple[int, bytes, bool, bytes]]:
        """Index, row digest, whether it succeeded, and output of each of the next `count` rows, from the file alone."""

    def advance(self, count: int) -> None: ...


class LineCursor:
    """A JSONL output or errors file."""

    def __init__(self, file: BinaryIO, name: str, *, embed: bool, notes: Notes) -> None:
        self._file, self.name, self._embed, self._notes = file, name, embed, notes
        self._lines: list[bytes] = []
        self._read: list[tuple[int, bytes, bool, bytes] | None] = []

    def indices(self) -> Indices:
        if not self._lines:
            self._fill()
        return np.fromiter((NO_INDEX if row is None else row[0] for row in self._read), dtype=np.int64, count=len(self._read))

    def _fill(self) -> None:
        size = 0
        while len(self._lines) < BATCH_ROWS and size < BATCH_BYTES and (line := self._file.readline()):
            size += len(line)
            self._lines.append(line)
            self._read.append(self._parse(line))

    def _parse(self, line: bytes) -> tuple[int, bytes, bool, bytes] | None:
        try:
            value = msgspec.json.decode(line, type=OutputLine)
            known = read_line_id(value.id)
            if known is None:
                return None
            if value.response is None:
                return (*known, False, bytes(value.error))
            body = bytes(value.response.body)
            return (*known, True, vector_of_body(body) if self._embed else body)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            return None

    def differing(self, expected: Sequence[bytes], at: int, count: int) -> Iterator[tuple[int, str]]:
        for offset in range(count):
            if self._lines[offset] != expected[at + offset]:
                yield offset, "the line is not what storage holds"

    def proofs(self, count: int) -> Iterator[tuple[int, bytes, bool, bytes]]:
        return (row for row in self._read[:count] if row is not None)

    def advance(self, count: int) -> None:
        del self._lines[:count]
        del self._read[:count]

    def rest(self) -> Iterator[bytes]:
        """The lines from here on that are not rows of the plan."""
        while len(self.indices()):
            for line, row in zip(self._lines, self._read, strict=True):
                if row is None:
                    yield line
                else:
                    self._notes.add("the row does not belong here", index=row[0], where=self.name)
            self.advance(len(self._lines))


class TableCursor:
    """A Parquet output."""

    def __init__(self, file: pq.ParquetFile, name: str, *, prove: Callable[[pa.Table], Iterator[bytes]] | None) -> None:
        self.name, self._prove = name, prove
        self.schema: pa.Schema = file.schema_arrow.remove_metadata()
        self._batches = file.iter_batches(batch_size=BATCH_ROWS, use_threads=False)
        self._table: pa.Table | None = None

    def indices(self) -> Indices:
        while self._table is None or self._table.num_rows == 0:
            batch = next(self._batches, None)
            if batch is None:
                return np.empty(0, dtype=np.int64)
            self._table = pa.Table.from_batches([batch])
        column: Column = self._table["row_index"]
        return np.asarray(column.fill_null(NO_INDEX).to_numpy(), dtype=np.int64)

    def differing(self, expected: pa.Table, at: int, count: int) -> Iterator[tuple[int, str]]:
        assert self._table is not None
        for column in expected.column_names:
            wanted, found = expected[column].slice(at, count), self._table[column].slice(0, count)
            if wanted.equals(found):
                continue
            for offset in range(count):  # NaN is not equal to itself, so what differs is compared as it prints
                if repr(wanted[offset].as_py()) != repr(found[offset].as_py()):
                    yield offset, f"column `{column}` is not what storage holds"

    def proofs(self, count: int) -> Iterator[tuple[int, bytes, bool, bytes]]:
        assert self._table is not None
        table = self._table.slice(0, count)
        if self._prove is None or table["row_digest"].null_count:
            return
        indices, digests = cast("list[int]", table["row_index"].to_pylist()), cast("list[bytes]", table["row_digest"].to_pylist())
        for index, digest, output in zip(indices, digests, self._prove(table), strict=True):
            yield index, digest, True, output

    def advance(self, count: int) -> None:
        assert self._table is not None
        self._table = self._table.slice(count)


@dataclass
class Follow:
    """Follows a cursor beside what is expected; both are ordered by index, so that a row too many or too few does not spoil the rest."""

    cursor: Cursor
    notes: Notes
    proof: Callable[[int, bytes, bool, bytes], None]
    past: int = 0
    rows: int = 0

    def leaf(self, shard: str, expected: Any, indices: Indices) -> None:
        at = 0
        while at < len(indices):
            have = self.cursor.indices()
            if len(have) == 0:
                for index in indices[at:]:
                    self._finding("the row is missing", shard, int(index))
                break
            count = min(len(indices) - at, len(have))
            equal = indices[at : at + count] == have[:count]
            run = count if bool(equal.all()) else int(np.argmin(equal))
            if run:
                for offset, what in self.cursor.differing(expected, at, run):
                    self._finding(what, shard, int(have[offset]))
                self._pass(run)
                at += run
            elif have[0] == NO_INDEX:
                self._finding("there is something that is no row of the plan", shard, None)
                self.cursor.advance(1)
            elif have[0] > indices[at] and not (len(have) > 1 and have[1] == indices[at]):
                self._finding("the row is missing", shard, int(indices[at]))
                at += 1
            else:
                self._finding("the row stands in the wrong place, is doubled or does not belong there", None, int(have[0]))
                self._pass(1)
        if len(indices):
            self.past = int(indices[-1]) + 1

    def skip(self, stop: int) -> None:
        """Rows below `stop` cannot be judged, since their shard cannot be read."""
        while len(have := self.cursor.indices()):
            below = int(np.argmin(have < stop)) if not bool((have < stop).all()) else len(have)
            if below == 0:
                break
            self.cursor.advance(below)
            self.rows += below

    def end(self) -> None:
        while len(have := self.cursor.indices()):
            for index in have:
                self._finding("the row does not belong there, or is doubled", None, int(index) if index != NO_INDEX else None)
            self._pass(len(have))

    def _pass(self, count: int) -> None:
        for proof in self.cursor.proofs(count):
            self.proof(*proof)
        self.cursor.advance(count)
        self.rows += count

    def _finding(self, what: str, shard: str | None, index: int | None) -> None:
        self.notes.add(what, shard=shard, index=index, where=self.cursor.name)


class OutputCheck:
    """An output with its errors file, compared with storage row by row, and its shard digests computed from the files alone."""

    def __init__(self, plan: Plan, names: OutputNames, nodes: Sequence[SealedNode], notes: Notes) -> None:
        self._plan, self._names, self._nodes, self._notes = plan, names, nodes, notes
        self._starts = [node.source.rows[0] for node in nodes]
        self._proofs = [ShardDigest() for _ in nodes]
        self._unread: set[str] = set()
        self._files: list[Any] = []
        self._rows: Follow | None = None
        self._errors: Follow | None = None
        self._error_lines: LineCursor | None = None
        self._table: TableCursor | None = None
        self._layout: Layout | None = None
        self._dtype: Dtype = "float32"
        self.facts: OutputFacts | None = None
        self._inside: OutputFacts | None = None
        self.provable = True
        """Whether the file alone gives the shard digests."""

    @property
    def needs_columns(self) -> bool:
        return self._names.format == "parquet"

    @property
    def compared(self) -> bool:
        """Whether both files could be read and were compared."""
        return self._rows is not None and self._errors is not None and not self._unread

    @classmethod
    async def open(
        cls,
        store: Store,
        plan: Plan,
        out: str,
        sealed: Sealed | None,
        nodes: Sequence[SealedNode],
        scratch: Path,
        open_store: OpenStore | None,
        notes: Notes,
    ) -> OutputCheck:
        names = output_names(out)
        made = cls(plan, names, nodes, notes)
        paths = {name: await _local(name, store, scratch, open_store) for name in (names.out, names.errors, names.seal)}
        await asyncio.to_thread(made._begin, paths[names.out], paths[names.errors], paths[names.seal], sealed)
        return made

    def _begin(self, out: Path | None, errors: Path | None, seal: Path | None, sealed: Sealed | None) -> None:
        names, notes = self._names, self._notes
        if seal is None:
            notes.add("the output's seal file is missing", where=names.seal)
        else:
            self._read_facts(seal.read_bytes(), names.seal, sealed)
        for path, name, said in (
            (out, names.out, self.facts.output if self.facts else None),
            (errors, names.errors, self.facts.errors if self.facts else None),
        ):
            if path is None:
                notes.add("the file is missing", where=name)
            elif self.facts is not None and said is None:
                notes.add("the seal file does not say what the file should be", where=name)
            elif said is not None:
                self._compare_file(said, file_facts(path), name)
        if out is not None:
            self._open_rows(out, sealed)
        if errors is not None:
            self._error_lines = LineCursor(self._opened(errors.open("rb")), names.errors, embed=False, notes=notes)
            self._errors = Follow(self._error_lines, notes, self._prove)

    def _opened(self, file: Any) -> Any:
        self._files.append(file)
        return file

    def _read_facts(self, data: bytes, where: str, sealed: Sealed | None) -> None:
        try:
            facts: OutputFacts = decode(data, OutputFacts, where=where)
        except ContractError as error:
            self._notes.error(error)
            return
        self.facts = facts
        self._compare_facts(facts, where, sealed)

    def _compare_facts(self, facts: OutputFacts, where: str, sealed: Sealed | None) -> None:
        plan, notes = self._plan, self._notes
        if facts.plan != plan.plan_id or facts.run != plan.run:
            notes.add(f"the output is of run {facts.run}, plan {facts.plan[:8]}, not of {plan.run}, plan {plan.plan_id[:8]}", where=where)
        if facts.partial or facts.seal is None:
            notes.add("it is a partial output", where=where)
        elif sealed is None or facts.seal != sealed.digest:
            notes.add(f"the output was made through seal {facts.seal[:12]}, which is not the run's", where=where)
        wanted = (plan.dataset.rows, sum(n.commit.ok for n in self._nodes), sum(n.commit.failed for n in self._nodes), plan.dataset.skipped)
        if (facts.rows, facts.ok, facts.failed, facts.skipped) != wanted or facts.missing:
            notes.add("the counts of rows, ok, failed, skipped and missing are not the run's", where=where)

    def _compare_options(self, facts: OutputFacts, where: str) -> None:
        """The rest of the facts, once the layout is known."""
        embed = self._plan.task.kind == "embed"
        renamed = self._layout.renamed if self._layout is not None else {}
        if facts.dtype != (self._dtype if embed else None) or facts.renamed != renamed:
            self._notes.add("dtype or renamed columns are not those of the file", where=where)

    def _compare_file(self, said: OutputFile, found: OutputFile, where: str) -> None:
        if said.size != found.size:
            self._notes.add(f"the file has {found.size} bytes, and its seal file says {said.size}", where=where)
        elif said.sha256 != found.sha256:
            self._notes.add("the file was changed: its sha256 is not the one in its seal file", where=where)

    def _open_rows(self, path: Path, sealed: Sealed | None) -> None:
        names, notes, embed = self._names, self._notes, self._plan.task.kind == "embed"
        if names.format == "jsonl":
            cursor: Cursor = LineCursor(self._opened(path.open("rb")), names.out, embed=embed, notes=notes)
        else:
            try:
                file = self._opened(pq.ParquetFile(path, pre_buffer=False))
                schema = file.schema_arrow
            except (pa.ArrowException, OSError) as error:
                notes.add(f"it cannot be read as Parquet ({str(error).splitlines()[0][:200]})", where=names.out)
                return
            metadata = (file.metadata.metadata or {}).get(METADATA_KEY)
            if metadata is None:
                notes.add("the Parquet metadata do not name a seal", where=names.out)
            else:
                try:
                    inside: OutputFacts = decode(metadata, OutputFacts, where=names.out)
                    self._compare_facts(inside, names.out, sealed)
                    self._inside = inside
                except ContractError as error:
                    notes.error(error)
            if "row_index" not in schema.names or "row_digest" not in schema.names:
                notes.add("the columns row_index and row_digest are missing", where=names.out)
                return
            if embed and "embedding" in schema.names and schema.field("embedding").type.value_type == pa.float16():
                self._dtype, self.provable = "float16", False
            prove = (_prove_vectors if embed else _prove_responses) if self.provable else None
            cursor = self._table = TableCursor(file, names.out, prove=prove)
        self._rows = Follow(cursor, notes, self._prove)

    def _prove(self, index: int, digest: bytes, ok: bool, output: bytes) -> None:
        at = bisect_right(self._starts, index) - 1
        if at >= 0:
            self._proofs[at].add(index, digest, ok, output)

    def leaf(self, rows: LeafRows) -> None:
        if self._rows is not None:
            try:
                self._compare_rows(self._rows, rows)
            except (pa.ArrowException, OSError) as error:
                self._unreadable(error)
        if self._errors is not None:
            indices = np.fromiter((line.index for line in rows.failed), dtype=np.int64, count=len(rows.failed))
            self._errors.leaf(rows.shard, [error_line(line) for line in rows.failed], indices)

    def _unreadable(self, error: Exception) -> None:
        self._notes.add(f"it cannot be read to its end ({str(error).splitlines()[0][:200]})", where=self._names.out)
        self._rows = None

    def _compare_rows(self, follow: Follow, rows: LeafRows) -> None:
        if self._table is None:
            follow.leaf(rows.shard, list(output_lines(rows.ok, self._plan.task.model)), rows.ok.indices)
            return
        try:
            if self._layout is None:
                self._layout = layout_for(self._plan, None if rows.columns is None else rows.columns.schema, self._dtype)
            expected = table_of(rows, self._layout)
        except NightbatchError as error:
            self._notes.error(error, shard=rows.shard)
            return
        if expected is None:
            return
        expected = expected.replace_schema_metadata(None)
        if expected.schema != self._table.schema:
            try:
                expected = expected.cast(self._table.schema)
            except (pa.ArrowException, ValueError):
                self._notes.add("the columns are not those that collect writes", where=self._names.out)
                self._rows = None
                return
        follow.leaf(rows.shard, expected, rows.ok.indices)

    def skip(self, node: SealedNode) -> None:
        self._unread.add(node.shard)
        for follow in (self._rows, self._errors):
            if follow is not None:
                follow.skip(node.source.rows[1])

    def end(self, skipped: Sequence[SkippedLine] | None) -> None:
        if self._rows is not None:
            try:
                self._rows.end()
            except (pa.ArrowException, OSError) as error:
                self._unreadable(error)
        if self._errors is not None and self._error_lines is not None:
            wanted = None if skipped is None else [skipped_line(number, row) for number, row in enumerate(skipped)]
            found = list(self._error_lines.rest())
            if wanted is not None and found != wanted:
                self._notes.add("the skipped rows at its end are not those that the plan recorded", where=self._names.errors)
        for facts, where in ((self.facts, self._names.seal), (self._inside, self._names.out)):
            if facts is not None and self._rows is not None:
                self._compare_options(facts, where)
        if not self.compared or not self.provable:
            return
        for node, proof in zip(self._nodes, self._proofs, strict=True):
            if proof.count != node.source.count or proof.hexdigest() != node.commit.digest:
                self._notes.add("the shard digest computed from the output and errors files is not the sealed one", shard=node.shard)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _prove_vectors(table: pa.Table) -> Iterator[bytes]:
    if pa.types.is_fixed_size_list(table["embedding"].type):
        return (vector.tobytes() for vector in vectors_of(table["embedding"]))
    return iter(())  # a table without rows has variable lists


def _prove_responses(table: pa.Table) -> Iterator[bytes]:
    return ((text or "").encode() for text in table["response"].to_pylist())


async def _local(name: str, store: Store, scratch: Path, open_store: OpenStore | None) -> Path | None:
    """The file on this machine, downloaded where it is an object; None where there is none."""
    if not is_s3(name):
        path = Path(name)
        return path if path.is_file() else None
    bucket, key = s3_key(name)
    source = store
    if bucket != store.bucket:
        if open_store is None:
            raise UsageError(f"bucket '{bucket}' is not the run's ('{store.bucket}').", fix="Download the output and name the file.")
        source = open_store(bucket)
    path = scratch / hashlib.sha256(name.encode()).hexdigest()
    try:
        with path.open("wb") as file:
            async for chunk in source.read(key):
                file.write(chunk)
    except NotFound:
        return None
    except StoreUnavailable as error:
        raise StoreUnavailable(error.what, where=name, fix="Run verify again.") from None
    return path
