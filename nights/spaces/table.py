"""nights/spaces: spaces in a stack's bucket, and their tables, through Lance. Touches the store, and S3 or a folder through Lance.

    spaces/NAME/space.json     the descriptor: parameters, written once
    spaces/NAME/table.lance    the table: id, fingerprint, embedding; versions, deletion files, compaction and pruning are Lance's
    spaces/NAME/canary.json    kept rows (`canary`)
    spaces/NAME/deltas/        what each night changed (`delta`)
    spaces/NAME/claims/        on a last-writer store: who may write which version

A night is one commit of the table: new data files, deletion files over rows that changed or left, and one manifest that names both, so that
a reader has the version before or the version after. The commit is strict: it is made only on the version that it was staged on. Lance by
itself lets two commits that add rows stand side by side; a night's names every fragment that was there as updated, so that any two collide.
On a store with conditional writes the manifest itself decides who was first. On a last-writer store a claim does (`_claim`).

`lance` is imported when a table is touched: it takes half a second, and a night with a broken job file must not wait for it.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import mmap
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contract.errors import AlreadyExists, Damaged, InfrastructureError, NightbatchError, StoreError, UsageError
from contract.models import VERSION, Hex64, Instant, Model, S3Config, decode_stored, encode
from contract.store import FolderStore, Store, get_or_none, probe_mode, put_first, region_of
from nights.record import JobName
from nights.spaces.fingerprint import OtherParameters, Parameters, changes

if TYPE_CHECKING:
    from nights.runner import Runner

TABLE: Final = "table.lance"
FILE_ROWS: Final = 1 << 18
"""Rows of a data file at most, also after compaction: 400 MB at 384 floats."""
READ_ROWS: Final = 8192
OWN: Final = "nightbatch."
"""What this program's properties of a commit begin with."""
_HARMLESS: Final = frozenset({"Rewrite", "CreateIndex", "UpdateConfig", "BaseOperation"})
"""Commits that change no row: compaction and what it reserves, an index that somebody made, settings."""
_IO: Final[dict[str, Any]] = {"batch_readahead": 2, "fragment_readahead": 1, "io_buffer_size": 8 << 20, "scan_in_order": True}
"""Without them Lance reads gigabytes ahead, which is fast and not what a client's memory is for."""
_CACHE: Final = 16 << 20
"""Bytes that Lance may keep of a table's metadata, and of an index; its own defaults are gigabytes."""
_WRITE_CACHE: Final = 6 << 20
"""Bytes that Lance gathers before it writes a page, of all columns together; its own 8 MB a column took 30 MB more."""
CLAIM_STALE_S: Final = 600.0
"""A commit takes seconds; a claim that is older is of a process that died with it."""
CLAIM_SETTLE_S: Final = 2.0


class Moved(InfrastructureError):
    """The table has another night's commit since the difference was computed."""


class SpaceFile(Model, frozen=True, kw_only=True):
    """The descriptor. `digest`: of the parameters, which are never changed: they are what all of the space's vectors have in common."""

    version: int = VERSION
    name: JobName
    parameters: Parameters
    digest: Hex64
    table: str = TABLE
    by: str = ""
    created_at: Instant


@dataclass(frozen=True)
class Home:
    """Where a stack's spaces are. `folder`: where their tables are, `s3://bucket/prefix` or a folder of this machine; `options`: Lance's
    storage options, which hold the keys; `settle_s`: how long a write to a last-writer store may take to be seen."""

    store: Store
    prefix: str
    folder: str
    options: Mapping[str, str] | None = None
    settle_s: float = CLAIM_SETTLE_S

    def __repr__(self) -> str:
        return f"Home({self.folder!r})"

    def root(self, name: str | None = None) -> str:
        """A space's key prefix in the bucket, or that of all; without a slash at its end."""
        base = f"{self.prefix}/spaces" if self.prefix else "spaces"
        return f"{base}/{name}" if name is not None else base

    def uri(self, name: str, table: str = TABLE) -> str:
        """Where a space's table is, for any reader."""
        return f"{self.folder}/spaces/{name}/{table}"


def home_of(store: Store, prefix: str, s3: S3Config) -> Home:
    """Of a stack's bucket, with these keys."""
    prefix = prefix.strip("/")
    options = {
        "aws_endpoint": s3.endpointUrl,
        "aws_access_key_id": s3.accessId,
        "aws_secret_access_key": s3.accessSecret,
        "aws_region": region_of(s3.endpointUrl),
        "aws_virtual_hosted_style_request": "false",
        "allow_http": "true" if s3.endpointUrl.startswith("http://") else "false",
        "connect_timeout": "10s",
        "timeout": "300s",
    }
    return Home(store, prefix, f"s3://{s3.bucketName}/{prefix}" if prefix else f"s3://{s3.bucketName}", options)


def home_of_runner(runner: Runner) -> Home:
    """Of the stack that a night runs on."""
    return home_of(runner.store, runner.stack.facts.store.prefix, runner.stack.secrets.s3)


@dataclass(frozen=True)
class Space:
    """A space that is there, perhaps without a table yet."""

    home: Home
    file: SpaceFile

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def parameters(self) -> Parameters:
        return self.file.parameters

    @property
    def root(self) -> str:
        return self.home.root(self.name)

    @property
    def uri(self) -> str:
        return self.home.uri(self.name, self.file.table)


@dataclass(frozen=True)
class Snapshot:
    """One version of a table."""

    version: int
    at: datetime
    rows: int
    fragments: int
    bytes: int
    """Of the data files that it refers to; deleted rows count until compaction."""
    night: str | None = None
    job: str | None = None


# --- descriptors ---------------------------------------------------------------------------------------------------------------------


async def open_space(home: Home, name: str, parameters: Parameters, *, by: str = "") -> Space:
    """The space of this name, made if there is none. Raises OtherParameters where it was made with other parameters."""
    key = _descriptor(home, name)
    blob = await get_or_none(home.store, key)
    if blob is None:
        await prove(home)
        made = SpaceFile(name=name, parameters=parameters, digest=parameters.digest, by=by, created_at=home.store.now())
        data = await put_first(home.store, key, encode(made))
    else:
        data = blob.data
    return _fitting(_read_file(data, key, home), parameters, home)


async def peek_space(home: Home, name: str, parameters: Parameters) -> Space:
    """As `open_space`, and nothing is made: where there is none, it is one without a table. Raises OtherParameters."""
    key = _descriptor(home, name)
    blob = await get_or_none(home.store, key)
    if blob is None:
        return Space(home, SpaceFile(name=name, parameters=parameters, digest=parameters.digest, created_at=home.store.now()))
    return _fitting(_read_file(blob.data, key, home), parameters, home)


async def find_space(home: Home, name: str) -> Space:
    """A space that is there. Raises UsageError, with names that may be meant."""
    key = _descriptor(home, name)
    blob = await get_or_none(home.store, key)
    if blob is None:
        there = await space_names(home)
        near = difflib.get_close_matches(name, there, n=3) or list(there[:3])
        fix = f"There are: {', '.join(near)}." if near else "A job with `space:` makes one: nightbatch night JOB"
        raise UsageError("there is no space of this name.", where=f"space {name}", fix=fix)
    return Space(home, _read_file(blob.data, key, home))


def _descriptor(home: Home, name: str) -> str:
    return f"{home.root(name)}/space.json"


def _fitting(file: SpaceFile, parameters: Parameters, home: Home) -> Space:
    """Raises OtherParameters where the space was made with others."""
    if file.digest != parameters.digest:
        found = changes(file.parameters, parameters) or ("the way in which fingerprints are made was another, and is not now",)
        raise OtherParameters(file.name, found)
    return Space(home, file)


def _read_file(data: bytes, key: str, home: Home) -> SpaceFile:
    file: SpaceFile = decode_stored(data, SpaceFile, where=f"s3://{home.store.bucket}/{key}")
    if file.digest != file.parameters.digest:
        raise Damaged("the space's parameters are not those that its digest is of.", where=f"s3://{home.store.bucket}/{key}")
    return file


async def space_names(home: Home) -> tuple[str, ...]:
    """Names of the stack's spaces: folders that have a descriptor."""
    store: FolderStore = home.store  # type: ignore[assignment]
    names = sorted([name async for name in store.folders(f"{home.root()}/")])
    return tuple([name for name in names if await store.head(f"{home.root(name)}/space.json") is not None])


async def prove(home: Home) -> None:
    """Which kind of store it is, once for each process."""
    if home.store.mode != "conditional":
        home.store.mode = await probe_mode(home.store, f"{home.prefix}/runs" if home.prefix else "runs")  # where planning probes it too


# --- reading -------------------------------------------------------------------------------------------------------------------------


@contextmanager
def asked(what: str, where: str) -> Iterator[None]:
    """Lance's errors as ours: it raises OSError, ValueError and RuntimeError with sentences that end in places of its source."""
    try:
        yield
    except NightbatchError:
        raise
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        said = str(error).partition(", /")[0].partition(", rust/")[0].splitlines()
        raise StoreError(f"{what} failed ({said[0][:300] if said else type(error).__name__}).", where=where, fix="Try again.") from error


def dataset(space: Space, version: int | None = None) -> Any | None:
    """The table at a version, by default the latest; None where there is none yet. Raises UsageError for a version that is not there."""
    import lance

    try:
        return lance.dataset(space.uri, version=version, storage_options=_options(space.home), session=_session())
    except (OSError, ValueError) as error:
        if "was not found" not in str(error):
            with asked("reading the table", space.uri):
                raise
        if version is None:
            return None
        raise UsageError(
            f"there is no version {version} of it (any more).", where=f"space {space.name}", fix=f"See: nightbatch space show {space.name}"
        ) from None


@functools.cache
def _session() -> Any:
    os.environ.setdefault("LANCE_UPLOAD_CONCURRENCY", "2")  # its 10 parts at once took 100 MB more and were no faster
    os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(16 << 20))  # of compaction, which takes no such option: 150 MB less
    import lance

    return lance.Session(index_cache_size_bytes=_CACHE, metadata_cache_size_bytes=_CACHE)


def _options(home: Home) -> dict[str, str] | None:
    return dict(home.options) if home.options is not None else None


def snapshots(space: Space, most: int = 1000) -> tuple[Snapshot, ...]:
    """Versions that are there, the latest first."""
    table = dataset(space)
    if table is None:
        return ()
    with asked("reading the table's versions", space.uri):
        versions = sorted(table.versions(), key=lambda one: int(one["version"]), reverse=True)[:most]
        return tuple(_snapshot(table, one) for one in versions)


def _snapshot(table: Any, one: Mapping[str, Any]) -> Snapshot:
    facts: Mapping[str, str] = one["metadata"]
    version = int(one["version"])
    own = properties(table, version)
    rows = int(facts.get("total_rows", 0))
    return Snapshot(
        version=version,
        at=one["timestamp"].astimezone(UTC),
        rows=rows,
        fragments=int(facts.get("total_fragments", 0)),
        bytes=int(facts.get("total_files_size", 0)),
        night=own.get(f"{OWN}night"),
        job=own.get(f"{OWN}job"),
    )


def properties(table: Any, version: int) -> Mapping[str, str]:
    """What the commit of a version says of itself; nothing where its transaction is not there."""
    try:
        transaction = table.read_transaction(version)
    except (OSError, ValueError):
        return {}
    return {} if transaction is None else dict(transaction.transaction_properties)


Half = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Marks:
    """What a table holds, 32 bytes a row: a digest of each id and half of its fingerprint, sorted by the digest."""

    ids: Half
    """Two numbers a row."""
    prints: Half

    @property
    def rows(self) -> int:
        return len(self.ids)

    def find(self, ids: Half) -> npt.NDArray[np.int64]:
        """Place of each id in these marks; -1 where it is not there."""
        return find(self.ids, ids)


def find(sorted_ids: Half, ids: Half) -> npt.NDArray[np.int64]:
    """Place of each id digest in others that are sorted; -1 where it is not there."""
    if not len(sorted_ids) or not len(ids):
        return np.full(len(ids), -1, dtype=np.int64)
    first = sorted_ids[:, 0]
    place = np.searchsorted(first, ids[:, 0])
    found = np.full(len(ids), -1, dtype=np.int64)
    open_ = np.ones(len(ids), dtype=bool)
    while open_.any():  # ids whose first halves are equal stand beside each other: one step more for each such neighbour
        open_ &= place < len(first)
        at = np.minimum(place, len(first) - 1)
        open_ &= first[at] == ids[:, 0]
        hit = open_ & (sorted_ids[at, 1] == ids[:, 1])
        found[hit] = place[hit]
        open_ &= ~hit
        place = place + 1
    return found


def halves(digests: Sequence[bytes]) -> Half:
    """Digests of which the first 16 bytes count, as two numbers each."""
    size = len(digests[0]) if digests else 16
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, size // 8)[:, :2]


def sorted_marks(ids: Half) -> npt.NDArray[np.int64]:
    """The order that sorts id digests by their first halves, which is all that `find` needs."""
    return np.argsort(ids[:, 0])


def batches(table: Any, columns: Sequence[str], *, addresses: bool = False) -> Iterator[pa.RecordBatch]:
    """A table's rows in bounded memory, always in the same order."""
    yield from table.scanner(columns=list(columns), batch_size=READ_ROWS, with_row_address=addresses, **_IO).to_batches()


def read_marks(table: Any | None, id_digest: Callable[[str], bytes]) -> Marks:
    """Ids and fingerprints of a version; of no table none."""
    rows = int(table.count_rows()) if table is not None else 0
    ids, prints = room(rows), room(rows)
    at = 0
    if table is not None:
        for batch in batches(table, ("id", "fingerprint")):
            stop = at + batch.num_rows
            if batch.num_rows:
                ids[at:stop] = halves([id_digest(one) for one in cast("list[str]", batch.column("id").to_pylist())])
                column: Any = batch.column("fingerprint")
                prints[at:stop] = _first_halves(column)
            at = stop
    order = sorted_marks(ids)
    return Marks(_in_order(ids, order), _in_order(prints, order))


def room(rows: int) -> Half:
    """Two numbers a row, in memory that goes back to the system when it is dropped: at a million rows the heap would keep such gaps."""
    if not rows:
        return np.empty((0, 2), dtype=np.uint64)
    return np.frombuffer(mmap.mmap(-1, 16 * rows), dtype=np.uint64).reshape(rows, 2)


def _in_order(values: Half, order: npt.NDArray[np.int64]) -> Half:
    out = room(len(values))
    for start in range(0, len(values), READ_ROWS):
        np.take(values, order[start : start + READ_ROWS], axis=0, out=out[start : start + READ_ROWS])
    return out


def _first_halves(column: pa.FixedSizeBinaryArray) -> Half:
    width = column.type.byte_width
    data: Any = column.buffers()[1]
    raw = np.frombuffer(data, dtype=np.uint8)[column.offset * width : (column.offset + len(column)) * width]
    first: Half = raw.reshape(-1, width)[:, :16].copy().view(np.uint64)
    return first


# --- writing -------------------------------------------------------------------------------------------------------------------------


def schema_of(dimensions: int) -> pa.Schema:
    """Of the table."""
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.string()),
        pa.field("fingerprint", pa.binary(32)),
        pa.field("embedding", pa.list_(pa.float32(), dimensions)),
    ]
    return pa.schema(fields)


def dimensions_of(table: Any) -> int:
    """Numbers of its vectors."""
    size: int = table.schema.field("embedding").type.list_size
    return size


def write_rows(space: Space, table: Any | None, rows: pa.RecordBatchReader) -> list[Any]:
    """Data files that no version refers to yet. Raises Moved where there was no table and there is one now."""
    from lance.fragment import write_fragments

    try:
        with asked("writing vectors", space.uri):
            written: list[Any] = write_fragments(
                rows,
                table if table is not None else space.uri,
                schema=rows.schema,
                mode="append" if table is not None else "create",
                max_rows_per_file=FILE_ROWS,
                data_cache_bytes=_WRITE_CACHE,
                storage_options=_options(space.home),
            )
    except StoreError:
        if table is None and dataset(space) is not None:
            raise Moved("another process made the table first.", where=space.uri) from None
        raise
    return written


def foreign(table: Any, since: int) -> tuple[int, ...]:
    """Versions after `since` that changed rows: nights', or somebody else's commits."""
    found = []
    for version in range(since + 1, int(table.version) + 1):
        try:
            transaction = table.read_transaction(version)
        except (OSError, ValueError):
            transaction = None  # pruned
        if transaction is None or type(transaction.operation).__name__ not in _HARMLESS:
            found.append(version)
    return tuple(found)


def commit(
    space: Space,
    table: Any | None,
    schema: pa.Schema,
    gone: Mapping[int, Sequence[int]],
    new: Sequence[Any],
    facts: Mapping[str, str],
    *,
    locked: bool,
) -> Any:
    """One new version: `gone` (fragment -> offsets in it) without a vector from now on, `new` with theirs. The table as it is then.

    Raises Moved where the table is not any more at the version that this was staged on. `locked`: the caller holds the claim, and the
    store cannot refuse a second manifest by itself.
    """
    import lance
    from lance.commit import CommitConflictError

    operation: Any
    keep: list[Any] = []
    empty: list[int] = []
    if table is not None:
        for fragment in table.get_fragments():
            offsets = gone.get(fragment.fragment_id)
            if not offsets:
                keep.append(fragment.metadata)
                continue
            with asked("marking rows as deleted", space.uri):
                left = fragment.delete_rows(offsets)
            if left is None:
                empty.append(fragment.fragment_id)
            else:
                keep.append(left)
    if table is None:
        operation, base = lance.LanceOperation.Overwrite(schema, list(new)), 0
    elif keep or empty:
        operation = lance.LanceOperation.Update(removed_fragment_ids=empty, updated_fragments=keep, new_fragments=list(new))
        base = int(table.version)
    else:  # a table without rows: there is no fragment that two commits could collide over, and Merge collides with everything
        operation, base = lance.LanceOperation.Merge(list(new), table.lance_schema), int(table.version)
    own = {f"{OWN}{name}": value for name, value in facts.items()}
    transaction = lance.Transaction(base, operation, transaction_properties=own)
    moved = Moved("another commit came first.", where=space.uri)
    lock: Callable[[int], AbstractContextManager[None]] | None = (lambda _: nullcontext()) if locked else None
    try:
        return lance.LanceDataset.commit(
            table if table is not None else space.uri,
            transaction,
            commit_lock=lock,
            max_retries=0,
            storage_options=_options(space.home),
        )
    except CommitConflictError:
        raise moved from None
    except OSError:
        if table is None and dataset(space) is not None:
            raise moved from None  # somebody made the table meanwhile: Lance then asks for the version before the first
        with asked("the commit", space.uri):
            raise


class ClaimFile(Model, frozen=True, kw_only=True):
    """Who writes a version, on a store that would let the last writer win."""

    version: int = VERSION
    holder: str
    at: Instant


@asynccontextmanager
async def claimed(space: Space, version: int, *, settle_s: float | None = None) -> AsyncIterator[bool]:
    """Hold the right to write `version`; yields whether the store needs it. Raises Moved where somebody else holds it.

    Of two that write their claims at once both read the later one after a moment. A holder that sleeps between that look and its commit
    for longer than a claim lives could still write over its successor: no lock on a store without conditional writes is safer than that.
    """
    store = space.home.store
    await prove(space.home)
    if store.mode == "conditional":
        yield False
        return
    key = f"{space.root}/claims/{version:09d}.json"
    mine = ClaimFile(holder=secrets.token_hex(8), at=store.now())
    standing = await get_or_none(store, key)
    if standing is not None:
        theirs: ClaimFile = decode_stored(standing.data, ClaimFile, where=key)
        if abs((store.now() - theirs.at).total_seconds()) < CLAIM_STALE_S:
            raise Moved("another process writes this version now.", where=f"space {space.name}")
    await store.put(key, encode(mine))
    await asyncio.sleep(space.home.settle_s if settle_s is None else settle_s)
    if (await store.get(key)).data != encode(mine):
        raise Moved("another process writes this version now.", where=f"space {space.name}")
    try:
        yield True
    finally:
        try:
            await store.delete(key)
        except (StoreError, AlreadyExists):
            pass  # it will be found stale


# --- keeping it small ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compacted:
    """What compaction did."""

    version_before: int
    version: int
    fragments_before: int
    fragments: int


async def compact(space: Space) -> Compacted | None:
    """Join small data files and drop deleted rows from those that have many, as one version more. None where there is no table."""
    table = await asyncio.to_thread(dataset, space)
    if table is None:
        return None
    async with claimed(space, int(table.version) + 1):
        return await asyncio.to_thread(_compact, space)


def _compact(space: Space) -> Compacted:
    table = dataset(space)
    assert table is not None
    before, fragments = int(table.version), len(table.get_fragments())
    with asked("compaction", space.uri):
        table.optimize.compact_files(target_rows_per_fragment=FILE_ROWS, num_threads=1, batch_size=1024)
    after = dataset(space)
    assert after is not None
    return Compacted(before, int(after.version), fragments, len(after.get_fragments()))


@dataclass(frozen=True)
class Pruned:
    """What pruning removed."""

    versions: int
    bytes: int


def prune(space: Space, older_than: timedelta) -> Pruned | None:
    """Forget versions that are older, and files that only they refer to. The latest version stays, and so do tagged ones; what a night
    is writing now stays too (Lance lets files without a version be for a week)."""
    table = dataset(space)
    if table is None:
        return None
    with asked("pruning", space.uri):
        stats = table.cleanup_old_versions(older_than=older_than, error_if_tagged_old_versions=False)
    return Pruned(int(stats.old_versions), int(stats.bytes_removed))
