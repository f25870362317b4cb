"""pipelines: the readers of what executions wrote: parts, pieces and errors objects. May touch contract, pyarrow and temporary files.

An object is fetched to a temporary file, its size and sha256 are compared with what its commit says, and only then is it read. Rows stand
in any order inside a part; they come out of here in index order, one shard at a time, so that memory is bounded by the shard.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ContractError, NotFound, StoreUnavailable, VerifyFailed
from contract.lines import file_lines
from contract.models import ObjectRef, PartCommit, Plan, SealedNode, ShardPlan, Source, TaskKind, decode
from contract.rows import ErrorLine, InputDigest, PartLine, RowError, ShardDigest
from contract.store import Store
from pipelines.findings import Finding
from pipelines.preflight import SkippedLine

T = TypeVar("T")
Indices = npt.NDArray[np.int64]
Column = Any
"""A pyarrow Array or ChunkedArray of any type: its stubs know too few of their methods."""
FETCH_TRIES: Final = 3
"""A download that breaks off in the middle is begun again: the S3 client repeats requests, not bodies."""
REPAIR: Final = "That shard has to be computed again."
ROW: Final = pa.binary(32)


# --- fetching ------------------------------------------------------------------------------------------------------------------------


async def fetch(store: Store, ref: ObjectRef, folder: Path) -> Path:
    """Download an object into `folder` and check its size and sha256. Raises VerifyFailed when it is gone or is not what `ref` says."""
    for tries_left in reversed(range(FETCH_TRIES)):
        try:
            return await _fetch(store, ref, folder)
        except StoreUnavailable:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


async def _fetch(store: Store, ref: ObjectRef, folder: Path) -> Path:
    where = f"s3://{store.bucket}/{ref.key}"
    digest, size = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile(dir=folder, prefix="part-", delete=False) as file:
        path = Path(file.name)
        try:
            async for chunk in store.read(ref.key):
                size += len(chunk)
                if size > ref.size:
                    raise VerifyFailed(f"the object is longer than the {ref.size} bytes that its commit says.", where=where, fix=REPAIR)
                digest.update(chunk)
                file.write(chunk)
            if size != ref.size:
                raise VerifyFailed(f"the object has {size} bytes, and its commit says {ref.size}.", where=where, fix=REPAIR)
            if digest.hexdigest() != ref.sha256:
                raise VerifyFailed("the object's sha256 is not the one that its commit says.", where=where, fix=REPAIR)
        except NotFound:
            path.unlink()
            raise VerifyFailed("the object is gone.", where=where, fix=REPAIR) from None
        except BaseException:
            path.unlink()
            raise
    return path


# --- rows of a part ------------------------------------------------------------------------------------------------------------------


class Rows(Protocol):
    """The successful rows of one shard in index order, whatever the task."""

    @property
    def indices(self) -> Indices: ...
    def digests(self) -> Sequence[bytes]:
        """Row digests, 32 bytes each."""

    def ids(self) -> Sequence[str]: ...
    def outputs(self) -> Iterator[bytes]:
        """What the shard digest is made of: response bytes, or the vector as little-endian float32."""


@dataclass(frozen=True)
class GenerateRows:
    """Lines of a generate part; `response` keeps the exact bytes that were digested."""

    lines: tuple[PartLine, ...] = ()

    @property
    def indices(self) -> Indices:
        return np.fromiter((line.index for line in self.lines), dtype=np.int64, count=len(self.lines))

    def digests(self) -> Sequence[bytes]:
        return [bytes.fromhex(line.row) for line in self.lines]

    def ids(self) -> Sequence[str]:
        return [line.id for line in self.lines]

    def outputs(self) -> Iterator[bytes]:
        return (bytes(line.response) for line in self.lines)


@dataclass(frozen=True)
class EmbedRows:
    """An embed part as a table: index, row, id, embedding, tokens. None where the shard has no successful row."""

    table: pa.Table | None = None

    @property
    def indices(self) -> Indices:
        if self.table is None:
            return np.empty(0, dtype=np.int64)
        return np.asarray(self.table["index"].to_numpy(), dtype=np.int64)

    def digests(self) -> Sequence[bytes]:
        return [] if self.table is None else cast("list[bytes]", self.table["row"].to_pylist())

    def ids(self) -> Sequence[str]:
        return [] if self.table is None else cast("list[str]", self.table["id"].to_pylist())

    def outputs(self) -> Iterator[bytes]:
        return (vector.tobytes() for vector in self.vectors())

    def vectors(self) -> npt.NDArray[np.float32]:
        """Rows x dimensions, little-endian."""
        return np.empty((0, 0), dtype="<f4") if self.table is None else vectors_of(self.table["embedding"])


def vectors_of(column: Column) -> npt.NDArray[np.float32]:
    """The numbers of a fixed-size list column, without a copy where it is one chunk."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    size = array.type.list_size
    return np.ascontiguousarray(array.flatten().to_numpy(zero_copy_only=False), dtype="<f4").reshape(-1, size)


def read_part(path: Path, kind: TaskKind, *, where: str) -> Rows:
    """A part or a piece that was fetched, in index order. Raises VerifyFailed when it is damaged."""
    return _read_embed(path, where) if kind == "embed" else _read_generate(path, where)


def no_rows(kind: TaskKind) -> Rows:
    """What a shard without a part has."""
    return EmbedRows() if kind == "embed" else GenerateRows()


def _read_generate(path: Path, where: str) -> GenerateRows:
    try:
        lines = [decode(line, PartLine, where=where) for line in file_lines(path, where=where)]
    except ContractError as error:
        raise VerifyFailed(error.what, where=where, fix=REPAIR) from None
    lines.sort(key=lambda line: line.index)
    return GenerateRows(tuple(lines))


def _read_embed(path: Path, where: str) -> EmbedRows:
    try:
        # Not memory-mapped: the file is deleted as soon as it is read, and pages of a mapping would count as this process's memory.
        table = pq.read_table(path, use_threads=False, pre_buffer=False, memory_map=False)
    except (pa.ArrowException, OSError) as error:
        raise VerifyFailed(f"the part cannot be read as Parquet ({_first_line(error)}).", where=where, fix=REPAIR) from None
    if problem := _embed_problem(table):
        raise VerifyFailed(f"the part {problem}.", where=where, fix=REPAIR)
    index = np.asarray(table["index"].to_numpy())
    if len(index) > 1 and not bool(np.all(index[1:] > index[:-1])):
        table = table.take(np.argsort(index, kind="stable"))
    return EmbedRows(table.combine_chunks())


def _embed_problem(table: pa.Table) -> str | None:
    wanted: dict[str, Callable[[pa.DataType], bool]] = {
        "index": lambda t: bool(t == pa.int64()),
        "row": lambda t: bool(t == ROW),
        "id": lambda t: bool(pa.types.is_string(t) or pa.types.is_large_string(t)),
        "embedding": lambda t: bool(pa.types.is_fixed_size_list(t) and t.value_type == pa.float32()),
        "tokens": lambda t: bool(t == pa.int32()),
    }
    if sorted(table.column_names) != sorted(wanted):
        return f"has the columns {', '.join(table.column_names)}; wanted are {', '.join(wanted)}"
    for name, fits in wanted.items():
        column: Column = table[name]
        if not fits(column.type):
            return f"has the type {column.type} in column `{name}`"
        if column.null_count or (name == "embedding" and any(chunk.flatten().null_count for chunk in column.chunks)):
            return f"has a null in column `{name}`"
    return None


def read_errors(path: Path, *, where: str) -> tuple[ErrorLine, ...]:
    """The failed rows of an errors object that was fetched, in index order. Raises VerifyFailed when it is damaged."""
    try:
        lines = [decode(line, ErrorLine, where=where) for line in file_lines(path, where=where)]
        for line in lines:
            row_error(line, where=where)
    except ContractError as error:
        raise VerifyFailed(error.what, where=where, fix=REPAIR) from None
    return tuple(sorted(lines, key=lambda line: line.index))


def row_error(line: ErrorLine, *, where: str) -> RowError:
    """The error that a line carries as raw bytes."""
    found: RowError = decode(bytes(line.error), RowError, where=where)
    return found


# --- one leaf ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeafRows:
    """Everything that storage holds of one leaf's rows. `columns`: the original columns of all its rows in row order, if there are any."""

    node: SealedNode
    ok: Rows
    failed: tuple[ErrorLine, ...]
    columns: pa.Table | None = None

    @property
    def shard(self) -> str:
        return self.node.shard

    @property
    def source(self) -> Source:
        return self.node.source


class OneThread:
    """Runs blocking work, one piece after the other, in one thread: Arrow's allocator keeps for each thread what that thread has freed, so
    that several threads would hold the memory of several shards (measured: 410 MB with two, 310 MB with one)."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows")

    async def run(self, work: Callable[[], T]) -> T:
        """When cancelled, it waits for the work to end before going on, since what that writes to is closed next."""
        task = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def close(self) -> None:
        """Wait for what is running and end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass
class Leaves:
    """Reads leaves in row order, the next one while this one is being used. `folder` holds what was fetched, for as long as it is read."""

    store: Store
    plan: Plan
    folder: Path
    thread: OneThread
    with_columns: bool

    def __post_init__(self) -> None:
        self._tops = {shard.shard: shard for shard in self.plan.shards}
        self._columns: dict[str, asyncio.Task[pa.Table]] = {}

    async def load(self, node: SealedNode) -> LeafRows:
        """One leaf. Raises VerifyFailed where an object is gone, altered or damaged."""
        kind, commit = self.plan.task.kind, node.commit
        pa.default_memory_pool().release_unused()
        columns = self._begin_columns(self._tops[node.shard.partition(".")[0]]) if self.with_columns else None
        ok, failed = await gather(
            self._read(commit.part, lambda path, where: read_part(path, kind, where=where), no_rows(kind)),
            self._read(commit.errors, lambda path, where: read_errors(path, where=where), ()),
        )
        if columns is None:
            return LeafRows(node, ok, failed)
        top, task = columns
        table = await asyncio.shield(task)
        return LeafRows(node, ok, failed, table.slice(node.source.rows[0] - top.source.rows[0], node.source.count))

    async def read(self, nodes: Iterable[SealedNode]) -> AsyncGenerator[LeafRows, None]:
        """Leaves one by one, one loaded ahead. To be closed (`aclosing`) when it is left early."""
        try:
            async with aclosing(ahead(nodes, self.load)) as loaded:
                async for rows in loaded:
                    yield rows
        finally:
            await self.close()

    async def close(self) -> None:
        """Leave nothing running."""
        tasks = list(self._columns.values())
        self._columns.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, ref: ObjectRef | None, read: Callable[[Path, str], T], nothing: T) -> T:
        return nothing if ref is None else await self._read_object(ref, read)

    async def _read_object(self, ref: ObjectRef, read: Callable[[Path, str], T]) -> T:
        path = await fetch(self.store, ref, self.folder)
        try:
            return await self.thread.run(lambda: read(path, f"s3://{self.store.bucket}/{ref.key}"))
        finally:
            path.unlink()

    def _begin_columns(self, top: ShardPlan) -> tuple[ShardPlan, asyncio.Task[pa.Table]] | None:
        """The columns of the shard that the plan cut, fetched once for all children that it was split into."""
        if top.columns is None:
            return None
        if top.shard not in self._columns:
            task = asyncio.ensure_future(self._read_object(top.columns, lambda path, where: _read_columns(path, top, where)))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # a leaf that fails first leaves it unawaited
            self._columns[top.shard] = task
            if len(self._columns) > 2:
                self._columns.pop(next(iter(self._columns)))
        return top, self._columns[top.shard]


def _read_columns(path: Path, top: ShardPlan, where: str) -> pa.Table:
    try:
        table = pq.read_table(path, use_threads=False, pre_buffer=False, memory_map=False)
    except (pa.ArrowException, OSError) as error:
        raise VerifyFailed(f"the columns cannot be read as Parquet ({_first_line(error)}).", where=where) from None
    if table.num_rows != top.source.count:
        raise VerifyFailed(f"has {table.num_rows} rows of columns, and its shard has {top.source.count}.", where=where)
    return table


async def gather(first: Awaitable[Any], second: Awaitable[Any]) -> tuple[Any, Any]:
    """Both, and neither is left running when one fails."""
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        return await tasks[0], await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


S = TypeVar("S")


async def ahead(items: Iterable[S], work: Callable[[S], Awaitable[T]]) -> AsyncGenerator[T, None]:
    """`work` of each item in order, that of the next one begun before this one is handed out. Nothing is left running at the end."""
    waiting: list[asyncio.Future[T]] = []
    rest = iter(items)
    try:
        while True:
            while len(waiting) < 2 and (item := next(rest, None)) is not None:
                waiting.append(asyncio.ensure_future(work(item)))
            if not waiting:
                return
            yield await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]


# --- checks (pure) -------------------------------------------------------------------------------------------------------------------


def coverage(rows: LeafRows) -> list[Finding]:
    """Each index of the leaf in exactly one of part and errors, and as many as the commit counts."""
    start, stop = rows.source.rows
    ok, failed = rows.ok.indices, np.fromiter((line.index for line in rows.failed), dtype=np.int64, count=len(rows.failed))
    commit: PartCommit = rows.node.commit
    found: list[Finding] = []
    for name, indices, said in (("part", ok, commit.ok), ("errors object", failed, commit.failed)):
        if len(indices) != said:
            found.append(Finding(f"the {name} has {len(indices)} rows, and the commit counts {said}", rows.shard))
    every = np.concatenate([ok, failed])
    outside = every[(every < start) | (every >= stop)]
    found.extend(Finding(f"the row does not belong to the shard, which has [{start}, {stop})", rows.shard, int(i)) for i in outside[:100])
    inside = every[(every >= start) & (every < stop)] - start
    counts = np.bincount(inside, minlength=stop - start)
    for offset in np.flatnonzero(counts == 0)[:100]:
        found.append(Finding("the row is missing: neither in the part nor in the errors object", rows.shard, start + int(offset)))
    both = set(ok.tolist()) & set(failed.tolist())
    for offset in np.flatnonzero(counts > 1)[:100]:
        index = start + int(offset)
        what = "the row is both in the part and in the errors object" if index in both else f"the row is there {counts[offset]} times"
        found.append(Finding(what, rows.shard, index))
    return found


@dataclass(frozen=True)
class LeafDigests:
    """What was recomputed from storage: `rows` in index order, `input` over them, `shard` over rows, outcomes and outputs."""

    rows: tuple[tuple[int, bytes, str], ...]
    input: str
    shard: str


def digests(rows: LeafRows) -> LeafDigests:
    """Recompute the leaf's digests from its part and errors object."""
    shard = ShardDigest()
    merged: list[tuple[int, bytes, str]] = []
    for index, digest, ident, output in zip(rows.ok.indices.tolist(), rows.ok.digests(), rows.ok.ids(), rows.ok.outputs(), strict=True):
        shard.add(index, digest, True, output)
        merged.append((index, digest, ident))
    for line in rows.failed:
        digest = bytes.fromhex(line.row)
        shard.add(line.index, digest, False, bytes(line.error))
        merged.append((line.index, digest, line.id))
    merged.sort()
    whole = InputDigest()
    for _, digest, _ in merged:
        whole.add(digest)
    return LeafDigests(tuple(merged), whole.hexdigest(), shard.hexdigest())


async def read_skipped(store: Store, plan: Plan, folder: Path) -> tuple[SkippedLine, ...]:
    """Rows that preflight left out, in dataset order. Raises VerifyFailed where the object is gone or altered.

    The object lists every bad row of the dataset; with `--limit` only those before the limit were left out, and come first.
    """
    ref = plan.dataset.skipped_object
    if ref is None:
        return ()
    where = f"s3://{store.bucket}/{ref.key}"
    path = await fetch(store, ref, folder)
    try:
        every = (decode(line, SkippedLine, where=where) for line in file_lines(path, where=where))
        return tuple(islice(every, plan.dataset.skipped))
    except ContractError as error:
        raise VerifyFailed(error.what, where=where) from None
    finally:
        path.unlink()
