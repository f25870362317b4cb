"""nights/spaces: tonight's dataset against a space's table, and a run's output into it. Touches the dataset, the store, the table, and
files in folders that the caller gives.

`difference` reads the dataset once and writes the lines that must be computed into a file, which `pipelines.plan` plans as any dataset.
`apply` takes the run's Parquet output and makes one commit: vectors of added and changed rows in, rows that changed or left out. A row
whose new text failed has no vector afterwards, also where it had one for its old text: a search must not find what is not there any more.

Each step can be repeated: the same dataset against the same version gives the same file, so the same run; a commit says in its own
properties which run's it is, so that a process that died after it finds it. What is written before the commit (data files, the delta) is
referred to by nothing if the commit does not come, and pruned later.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from heapq import heappush, heappushpop
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from contract.errors import BadRow, ContractError, DatasetError, NightbatchError, NotAsWanted, PlanMismatch, StoreError, UsageError
from contract.models import Plan, decode, encode
from contract.rows import InputDigest, row_digest
from contract.store import Store
from nights.record import SpaceNight
from nights.spaces import table as tables
from nights.spaces.delta import DeltaManifest, DeltaWriter, described
from nights.spaces.fingerprint import fingerprints
from nights.spaces.table import OWN, Half, Moved, Space, find, halves
from pipelines.dataset import Reader, RowProblem
from pipelines.dataset.streams import Source
from pipelines.outputs import is_s3, s3_key
from pipelines.work import Finished

SHOWN: Final = 1000
"""Bad rows that an error carries."""
LOOKED_BACK: Final = 64
"""Versions in which a night that was applied is looked for."""
TRIES: Final = 4
"""Commits that compaction came before."""
CANDIDATES: Final = 2000
"""Rows whose lines are remembered as possible canaries."""
LONGEST_CANDIDATE: Final = 8192
_BATCH: Final = 8192
_ADDED, _CHANGED = 0, 1
NEW_ROWS: Final = "new-rows.jsonl.zst"


def id_digest(custom_id: str) -> bytes:
    """16 bytes that stand for an id: two of a billion ids are equal in them with a chance of 1 in 10^20."""
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Candidate:
    """A row that may be kept as a canary: of those that are computed tonight the ones with the least digests, so that every client would
    choose the same, and all of them are made with the same things."""

    mark: bytes
    id: str
    line: bytes
    fingerprint: bytes


@dataclass(frozen=True)
class Difference:
    """What a night has to do. `path`: the lines to compute, in the dataset's order, None where there are none; `digest`: as the plan of a
    run over them has it. Arrays have one row for each of these lines."""

    space: Space
    version: int | None
    """Of the table that it was computed against; None where there was none."""
    table_rows: int
    rows: int
    """In the dataset tonight."""
    added: int
    changed: int
    removed: int
    unchanged: int
    skipped: int
    """Bad rows that were left out (`on_bad_row: skip`); where one had a vector, it counts as removed."""
    path: Path | None
    digest: str
    ids: Half = field(repr=False)
    prints: npt.NDArray[np.uint8] = field(repr=False)
    kinds: npt.NDArray[np.uint8] = field(repr=False)
    left: Half = field(repr=False)
    """Id digests of rows that left, sorted."""
    candidates: tuple[Candidate, ...] = field(repr=False, default=())
    bad: tuple[BadRow, ...] = field(repr=False, default=())

    @property
    def to_compute(self) -> int:
        """Rows that a run must be paid for."""
        return self.added + self.changed

    @property
    def empty(self) -> bool:
        """Nothing to compute and nothing to remove."""
        return not (self.added or self.changed or self.removed)


# --- difference ----------------------------------------------------------------------------------------------------------------------


async def difference(space: Space, reader: Reader, folder: Path, *, limit: int | None = None) -> Difference:
    """Compare the dataset with the latest version. `folder`: empty, where the file of new rows goes, kept until `apply` is over.

    Raises DatasetError: bad rows (unless they are to be skipped), ids that stand twice, no rows; UsageError where rows have no ids.
    """
    if not reader.batch and reader.options.id_column is None:
        raise UsageError(
            "rows of a space need ids that stay the same from night to night, and none were named.",
            where=f"space {space.name}",
            fix="Say which column has them (id_column), or use OpenAI batch lines with a custom_id.",
        )
    stop = threading.Event()
    reader = replace(reader, source=Source(asyncio.get_running_loop(), stop))
    reading = asyncio.get_running_loop().run_in_executor(None, _difference, space, reader, folder, limit)
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:  # whoever waits for Ctrl-C does not wait for a million rows
        stop.set()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.exception()
        raise


def _difference(space: Space, reader: Reader, folder: Path, limit: int | None) -> Difference:
    table = tables.dataset(space)
    with tables.asked("reading the table", space.uri):
        marks = tables.read_marks(table, id_digest)
    scan = _Scan(space, marks, folder / NEW_ROWS)
    bad: list[BadRow] = []
    codes: Counter[str] = Counter()
    names = [file.name for file in reader.files]

    def on_bad(place: int, line: int, problem: RowProblem) -> None:
        codes[problem.code] += 1
        if len(bad) < SHOWN:
            bad.append(BadRow(names[place], line, problem.code, problem.reason))

    try:
        with closing(reader.rows(on_bad)) as rows:
            taken = rows if limit is None else itertools.islice(rows, limit)
            while chunk := list(itertools.islice(taken, _BATCH)):
                scan.take([(row[3], row[4]) for row in chunk])
    finally:
        scan.close()
    total = codes.total()
    where = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    if total and (reader.options.on_bad_row == "fail" or "damaged" in codes):
        said = ", ".join(f"{count:,} {code}" for code, count in codes.most_common())
        raise DatasetError(
            f"{total:,} rows cannot be sent ({said}).",
            bad_rows=bad,
            total=total,
            where=where,
            fix="Mend them; nothing was sent or changed.",
        )
    if not scan.rows:
        raise DatasetError(
            "the dataset has no rows, and an empty space is none that a night makes.", where=where, fix="Nothing was changed."
        )
    _check_ids(reader, scan, limit, where)
    left = marks.ids[~scan.seen]
    made = scan.rows_to_compute()
    pa.default_memory_pool().release_unused()
    return Difference(
        space=space,
        version=None if table is None else int(table.version),
        table_rows=marks.rows,
        rows=scan.rows,
        added=int((made[2] == _ADDED).sum()),
        changed=int((made[2] == _CHANGED).sum()),
        removed=len(left),
        unchanged=scan.unchanged,
        skipped=total,
        path=scan.path if len(made[0]) else None,
        digest=scan.digest.hexdigest(),
        ids=made[0],
        prints=made[1],
        kinds=made[2],
        left=left,
        candidates=tuple(sorted(scan.candidates, key=lambda one: one.mark)),
        bad=tuple(bad),
    )


class _Scan:
    """The dataset as it goes by."""

    def __init__(self, space: Space, marks: tables.Marks, path: Path) -> None:
        self.path = path
        self.rows = self.unchanged = 0
        self.seen = np.zeros(marks.rows, dtype=bool)
        self.digest = InputDigest()
        self.hashes: list[npt.NDArray[np.int64]] = []
        self._marks = marks
        self._print = fingerprints(space.parameters)
        self._ids: list[Half] = []
        self._prints: list[npt.NDArray[np.uint8]] = []
        self._kinds: list[npt.NDArray[np.uint8]] = []
        self._heap: list[tuple[int, int, Candidate]] = []
        self._file = path.open("wb", buffering=1 << 20)
        self._packer = zstandard.ZstdCompressor(level=1).compressobj()

    def take(self, rows: Sequence[tuple[str, bytes]]) -> None:
        """The next rows: id and line."""
        digests = [id_digest(ident) for ident, _ in rows]
        prints = [self._print(line) for _, line in rows]
        ids = halves(digests)
        place = self._marks.find(ids)
        there = place >= 0
        same = there.copy()
        same[there] = (self._marks.prints[place[there]] == halves(prints)[there]).all(axis=1)
        self.seen[place[there]] = True
        self.unchanged += int(same.sum())
        self.hashes.append(np.fromiter((hash(ident) for ident, _ in rows), dtype=np.int64, count=len(rows)))
        new = np.flatnonzero(~same)
        if len(new):
            index = self.digest.count
            lines = []
            for number in new.tolist():
                ident, line = rows[number]
                lines.append(line)
                self.digest.add(row_digest(index, ident, line))
                index += 1
            lines.append(b"")
            self._file.write(self._packer.compress(b"\n".join(lines)))
            self._ids.append(ids[new].copy())
            self._prints.append(np.frombuffer(b"".join(prints[n] for n in new.tolist()), dtype=np.uint8).reshape(-1, 32))
            self._kinds.append(np.where(there[new], _CHANGED, _ADDED).astype(np.uint8))
            self._remember(new.tolist(), rows, digests, prints)
        self.rows += len(rows)

    def _remember(self, new: Sequence[int], rows: Sequence[tuple[str, bytes]], digests: Sequence[bytes], prints: Sequence[bytes]) -> None:
        most = -self._heap[0][0] if len(self._heap) >= CANDIDATES else None
        for number in new:
            digest = digests[number]
            order = int.from_bytes(digest)
            if (most is not None and order >= most) or len(rows[number][1]) > LONGEST_CANDIDATE:
                continue
            one = (-order, self.rows + number, Candidate(digest, rows[number][0], rows[number][1], prints[number]))
            if len(self._heap) < CANDIDATES:
                heappush(self._heap, one)
            else:
                heappushpop(self._heap, one)
                most = -self._heap[0][0]

    @property
    def candidates(self) -> list[Candidate]:
        return [one for _, _, one in self._heap]

    def rows_to_compute(self) -> tuple[Half, npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        if not self._ids:
            return np.empty((0, 2), dtype=np.uint64), np.empty((0, 32), dtype=np.uint8), np.empty(0, dtype=np.uint8)
        ids = np.concatenate(self._ids)
        self._ids.clear()
        prints = np.concatenate(self._prints)
        self._prints.clear()
        return ids, prints, np.concatenate(self._kinds)

    def close(self) -> None:
        self._file.write(self._packer.flush())
        self._file.close()


def _check_ids(reader: Reader, scan: _Scan, limit: int | None, where: str) -> None:
    """Raises DatasetError for ids that stand twice, each with both places; reads the dataset again to find them."""
    hashes = np.concatenate(scan.hashes)
    scan.hashes.clear()
    hashes.sort()
    watch = frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not watch:
        return
    bad: list[BadRow] = []
    count = 0

    def on_bad(place: int, line: int, problem: RowProblem) -> None:
        nonlocal count
        if problem.code == "duplicate_id":
            count += 1
            if len(bad) < SHOWN:
                bad.append(BadRow(reader.files[place].name, line, problem.code, problem.reason))

    with closing(reader.rows(on_bad, watch=watch)) as rows:
        for _ in rows if limit is None else itertools.islice(rows, limit):
            pass
    if count:
        raise DatasetError(
            f"{count:,} rows have an id that another row has too, and a space has one vector for each id.",
            bad_rows=bad,
            total=count,
            where=where,
            fix="Make ids unique over all files; nothing was sent or changed.",
        )


# --- applying ------------------------------------------------------------------------------------------------------------------------


async def applied(space: Space, job: str, night: str) -> SpaceNight | None:
    """What this night did to the space already, if it did: told by the table's own commits. Ask before `difference`, so that a night that
    is called again does not pay again for rows that failed."""
    found = await asyncio.to_thread(_own_commit, space, lambda one: one.get("job") == job and one.get("night") == night)
    if found is None:
        return None
    await _keep_manifest(space, found)
    return _space_night(space, found)


async def apply(space: Space, difference: Difference, finished: Finished | None, folder: Path, *, job: str, night: str) -> SpaceNight:
    """Bring the table to tonight's dataset, in one commit. `finished`: the run over `difference.path`, complete, with a Parquet output;
    None where there was nothing to compute. `folder`: for the delta's file while it is made.

    Raises Moved where another night changed the table since the difference was computed (do it again: what was computed is found again and
    not paid twice), PlanMismatch where the run is over other rows, NotAsWanted where vectors are not those that the space can take.
    """
    run, plan, usd = _check_run(space, difference, finished)
    if difference.empty:
        return SpaceNight(
            space=space.name, table=space.uri, version_before=difference.version, version=difference.version, rows=difference.table_rows,
            added=0, changed=0, removed=0, unchanged=difference.unchanged,
        )  # fmt: skip
    key = _key(difference, night, run)
    output = await _local_output(space.home.store, finished, folder) if finished is not None else None
    store = space.home.store
    work = _Work(space, difference, output, folder)
    try:
        for _ in range(TRIES):
            done = await asyncio.to_thread(_own_commit, space, lambda one: one.get("key") == key, difference.version or 0)
            if done is not None:
                break
            await asyncio.to_thread(work.stage)
            file = None
            if work.delta is not None and difference.version is not None:
                file = described(work.delta, f"{space.root}/deltas/{night}/{key}.parquet")
                await store.put(file.key, work.delta)
            manifest = DeltaManifest(
                space=space.name, key=key, job=job, night=night, run=run, plan=plan.plan_id if plan else None,
                version_before=work.version, table_version=(work.version or 0) + 1, rows=work.rows_after,
                added=work.added, changed=work.changed, removed=work.removed, unchanged=difference.unchanged, failed=work.failed, usd=usd,
                bytes_written=work.bytes + (file.size if file else 0), file=file, at=store.now(),
            )  # fmt: skip
            try:
                async with tables.claimed(space, manifest.table_version) as locked:
                    await asyncio.to_thread(work.commit, manifest, locked)
            except MovedOn:
                raise
            except Moved:
                continue  # compaction, or a commit of ours whose answer was lost: the next look tells; anything else ends it
            done = manifest
            break
        else:
            raise Moved(f"it changed under {TRIES} attempts to write it.", where=f"space {space.name}", fix="Run the night again.")
    finally:
        work.close()
    await _keep_manifest(space, done)
    return _space_night(space, done)


def _check_run(space: Space, difference: Difference, finished: Finished | None) -> tuple[str | None, Plan | None, float]:
    where = f"space {space.name}"
    if finished is None:
        if difference.to_compute:
            raise UsageError(f"{difference.to_compute:,} rows have no vector yet.", where=where, fix="Compute them first.")
        return None, None, 0.0
    plan = finished.plan
    if plan.dataset.digest != difference.digest or plan.dataset.rows != difference.to_compute:
        raise PlanMismatch("the run is not over the rows that are new here.", where=plan.run, fix="Compute the difference again.")
    if plan.task.model != space.parameters.model and space.parameters.model not in (plan.infra.endpoint, plan.infra.model):
        raise PlanMismatch(f"the run's model is {plan.task.model}, and the space's {space.parameters.model}.", where=plan.run)
    if not finished.complete or finished.collected is None:
        raise NotAsWanted(
            "the run is not complete, and a space takes whole nights only.", where=plan.run, fix=f"nightbatch resume {plan.run}"
        )
    if finished.judged is not None and not finished.judged.clean:
        raise NotAsWanted("the run's output is not what storage proves, so the space was left as it is.", where=plan.run)
    return plan.run, plan, finished.result.usd_estimated


def _key(difference: Difference, night: str, run: str | None) -> str:
    """Names what is done to which table: the same for the same night, run and rows."""
    left = hashlib.sha256(difference.left.tobytes()).hexdigest()
    return hashlib.sha256(encode([night, run, difference.version, difference.digest, left])).hexdigest()[:12]


async def _local_output(store: Store, finished: Finished, folder: Path) -> Path:
    assert finished.collected is not None
    out = finished.collected.names.out
    if finished.collected.names.format != "parquet":
        raise UsageError("a space takes the Parquet output of a run.", where=out, fix="Give the run an output that ends with .parquet.")
    if not is_s3(out):
        return Path(out)
    bucket, key = s3_key(out)
    if bucket != store.bucket:
        raise UsageError("the run's output is in another bucket than the space.", where=out, fix="Write it to the stack's, or to a file.")
    path = folder / "run.parquet"
    with path.open("wb") as file:
        async for chunk in store.read(key):
            await asyncio.to_thread(file.write, chunk)
    return path


def _own_commit(space: Space, wanted: Any, since: int = 0) -> DeltaManifest | None:
    """The latest commit of a night that `wanted` takes by its properties, among the last versions after `since`. Raises Moved when `since`
    is a version after which somebody else changed rows."""
    table = tables.dataset(space)
    if table is None:
        return None
    latest = int(table.version)
    for version in range(latest, max(since, latest - LOOKED_BACK), -1):
        own = {name.removeprefix(OWN): value for name, value in tables.properties(table, version).items() if name.startswith(OWN)}
        if own and wanted(own):
            try:
                found: DeltaManifest = decode(own["manifest"].encode(), DeltaManifest, where=f"{space.uri}, version {version}")
            except (ContractError, KeyError):
                continue
            return found
    return None


async def _keep_manifest(space: Space, manifest: DeltaManifest) -> None:
    """The same bytes wherever they come from: the commit's properties hold them."""
    key = f"{space.root}/deltas/{manifest.night}/{manifest.key}.json"
    if await space.home.store.head(key) is None:
        await space.home.store.put(key, encode(manifest))


def _space_night(space: Space, done: DeltaManifest) -> SpaceNight:
    return SpaceNight(
        space=space.name, table=space.uri, version_before=done.version_before, version=done.table_version, rows=done.rows,
        added=done.added, changed=done.changed, removed=done.removed, unchanged=done.unchanged, failed=done.failed,
        delta=done.file.key if done.file else None, bytes_written=done.bytes_written,
    )  # fmt: skip


class _Work:
    """One night's commit while it is made. New data files and the delta are written once, whatever comes before the commit; what is to be
    deleted is looked for in the version that the commit is made on."""

    def __init__(self, space: Space, difference: Difference, output: Path | None, folder: Path) -> None:
        self.space = space
        self.difference = difference
        self.version: int | None = None
        self.added = self.changed = self.removed = self.failed = self.bytes = self.rows_after = 0
        self.delta: Path | None = None
        self._output = output
        self._folder = folder
        self._table: Any | None = None
        self._new: list[Any] | None = None
        self._gone: dict[int, list[int]] = {}
        self._got = np.zeros(difference.to_compute, dtype=bool)
        self._dimensions = 0
        self._writer: DeltaWriter | None = None
        self._error: NightbatchError | None = None

    def stage(self) -> None:
        """Write what a commit on the latest version needs. Raises Moved where another night changed rows since the difference."""
        self._table = table = tables.dataset(self.space)
        if table is None and self.difference.version is not None:
            raise Moved("the table is gone.", where=self.space.uri)
        self.version = None if table is None else int(table.version)
        others = tables.foreign(table, self.difference.version or 0) if table is not None else ()
        if others:
            raise MovedOn(self.space.name, others[-1])
        with tables.asked("reading the run's output", str(self._output)):
            parquet = pq.ParquetFile(self._output, pre_buffer=False) if self._output is not None else None
        try:
            self._shape(parquet)
            if self._new is None:
                self._write(parquet)
            if table is not None:
                with tables.asked("reading the table", self.space.uri):
                    self._find_gone(table)
        finally:
            if parquet is not None:
                parquet.close()
        missed = np.flatnonzero(~self._got)
        self.failed = len(missed)
        self.rows_after = self.difference.unchanged + self.added + self.changed

    def _shape(self, parquet: pq.ParquetFile | None) -> None:
        """How many numbers a vector has, of the run's and of the table's. Raises NotAsWanted where they differ."""
        kept = tables.dimensions_of(self._table) if self._table is not None else None
        found = None
        if parquet is not None and parquet.metadata.num_rows:
            kind = parquet.schema_arrow.field("embedding").type
            found = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        if kept is not None and found is not None and kept != found:
            raise NotAsWanted(
                f"the new vectors have {found} numbers, and the space's have {kept}.",
                where=f"space {self.space.name}",
                fix="Is it another model under the same name? Give the job another space.name.",
            )
        if kept is None and found is None:
            raise NotAsWanted("not one row succeeded, so there is nothing to make a space of.", where=f"space {self.space.name}")
        self._dimensions = kept or found or 0

    def _write(self, parquet: pq.ParquetFile | None) -> None:
        schema = tables.schema_of(self._dimensions)
        self.delta = self._folder / "delta.parquet"
        self._writer = DeltaWriter(self.delta, self._dimensions) if self.difference.version is not None else None
        if parquet is None or not parquet.metadata.num_rows:
            self._new = []
            return
        rows = pa.RecordBatchReader.from_batches(schema, self._minding(self._vectors(parquet, schema)))
        try:
            self._new = tables.write_rows(self.space, self._table, rows)
        except Moved:
            raise MovedOn(self.space.name, 1) from None
        except StoreError:
            if self._error is not None:
                raise self._error from None
            raise
        self.bytes = sum(file.file_size_bytes or 0 for fragment in self._new for file in fragment.files)

    def _minding(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Errors of ours pass through Lance as its own."""
        try:
            yield from rows
        except NightbatchError as error:
            self._error = error
            raise

    def _vectors(self, parquet: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows of the run's output with their fingerprints, as they go into the table."""
        difference = self.difference
        for batch in _batches(parquet, ["id", "embedding", "row_index"]):
            index = batch.column("row_index").to_numpy()
            names = cast("list[str]", batch.column("id").to_pylist())
            if len(index) and (
                index.min() < 0 or index.max() >= len(self._got) or (difference.ids[index] != halves([id_digest(n) for n in names])).any()
            ):
                raise PlanMismatch("the run's output has rows that are not new here.", where=str(self._output))
            embedding: Any = batch.column("embedding")
            vectors = np.ascontiguousarray(embedding.flatten().to_numpy(zero_copy_only=False), dtype="<f4").reshape(len(names), -1)
            if self.space.parameters.normalize:
                norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
                with np.errstate(divide="ignore", invalid="ignore"):
                    vectors = (vectors / norms).astype("<f4")
            good = np.isfinite(vectors).all(axis=1)  # what is not a number cannot be searched: such a row failed
            kinds = difference.kinds[index]
            self._got[index[good]] = True
            self.added += int((kinds[good] == _ADDED).sum())
            self.changed += int((kinds[good] == _CHANGED).sum())
            flat = pa.array(vectors[good].reshape(-1))
            prints = pa.py_buffer(difference.prints[index[good]].tobytes())
            columns: list[Any] = [
                pa.array(names, pa.string()).filter(pa.array(good)),
                pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), int(good.sum()), [None, prints]),
                pa.FixedSizeListArray.from_arrays(flat, self._dimensions),
            ]
            made = pa.RecordBatch.from_arrays(columns, schema=schema)
            if self._writer is not None:
                self._writer.write(pa.array(np.where(kinds[good] == _ADDED, "added", "changed").tolist(), pa.string()), made)
            yield made

    def _find_gone(self, table: Any) -> None:
        """Where the rows are that changed or left. Their ids go into the delta, once."""
        difference = self.difference
        order = tables.sorted_marks(difference.ids)
        sorted_ids = difference.ids[order]
        self._gone = {}
        left: list[str] = []
        failed: list[str] = []
        for batch in tables.batches(table, ("id",), addresses=True):
            names = cast("list[str]", batch.column("id").to_pylist())
            ids = halves([id_digest(name) for name in names])
            if not len(ids):
                continue
            at = find(sorted_ids, ids)
            changed, leaves = at >= 0, find(difference.left, ids) >= 0
            which = np.flatnonzero(changed | leaves)
            if not len(which):
                continue
            addresses = batch.column("_rowaddr").to_numpy()[which]
            for number, address in zip(which.tolist(), addresses.tolist(), strict=True):
                self._gone.setdefault(address >> 32, []).append(address & 0xFFFFFFFF)
                if leaves[number]:
                    left.append(names[number])
                elif not self._got[order[at[number]]]:
                    failed.append(names[number])
        self.removed = len(left) + len(failed)
        if self._writer is not None:
            self._writer.remove(left, "left")
            self._writer.remove(failed, "failed")
            self._writer.close()
            self._writer = None

    def commit(self, manifest: DeltaManifest, locked: bool) -> None:
        """Make the version."""
        facts = {"job": manifest.job, "night": manifest.night, "key": manifest.key, "manifest": encode(manifest).decode()}
        tables.commit(self.space, self._table, tables.schema_of(self._dimensions), self._gone, self._new or (), facts, locked=locked)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _batches(parquet: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """One row group after the other: asked for all of them, Arrow keeps what it has read until the end."""
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(batch_size=1024, row_groups=[group], columns=columns, use_threads=False)


class MovedOn(Moved):
    """As Moved, and no look will change it."""

    def __init__(self, space: str, version: int) -> None:
        super().__init__(
            f"version {version} was written by somebody else since tonight's rows were compared, so this night stopped before it wrote.",
            where=f"space {space}",
            fix="Run the night again: what it computed is found again, and not paid twice.",
        )
