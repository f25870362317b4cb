"""nights/spaces: what a night changed, for those who keep a copy of a space elsewhere. Pure but for its writer and `deltas`.

    spaces/NAME/deltas/DATE/KEY.parquet     one row for each id that changed
    spaces/NAME/deltas/DATE/KEY.json        `DeltaManifest`: from which version to which, how many rows, the file's digest

The Parquet file has `op` (`added`, `changed`, `removed`), `reason` (of a removed row: `left` the dataset, or its new text `failed`), `id`,
`fingerprint` and `embedding` (null where removed). Apply the manifests in the order of `version`: delete the ids of all rows, insert those
that have a vector. Doing so twice changes nothing. The first night of a space has no Parquet file: its version is the whole table.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ContractError
from contract.models import VERSION, Count, Hex64, Instant, Model, Usd, decode
from contract.store import Store

FINGERPRINT: Final = pa.binary(32)


class DeltaFile(Model, frozen=True, kw_only=True):
    """The Parquet file of a delta; `key`: in the stack's bucket."""

    key: str
    size: Count
    sha256: Hex64


class DeltaManifest(Model, frozen=True, kw_only=True):
    """One commit of a night. `removed` counts rows that left the dataset and rows whose new text failed; `rows`: in the table afterwards.

    `key` names what was done, so that the same night finds it again; it is in the commit's own properties too, and the manifest can be
    written again from there.
    """

    version: int = VERSION
    space: str
    key: str
    job: str
    night: str
    run: str | None
    plan: str | None
    version_before: Count | None
    table_version: Count
    rows: Count
    added: Count
    changed: Count
    removed: Count
    unchanged: Count
    failed: Count
    usd: Usd
    bytes_written: Count
    file: DeltaFile | None
    at: Instant


def delta_schema(dimensions: int) -> pa.Schema:
    """Columns of a delta's Parquet file."""
    fields: list[pa.Field[Any]] = [pa.field(name, pa.string()) for name in ("op", "reason", "id")]
    fields += [pa.field("fingerprint", FINGERPRINT), pa.field("embedding", pa.list_(pa.float32(), dimensions))]
    return pa.schema(fields)


class DeltaWriter:
    """Rows of a delta into a local file, in row groups as they come."""

    def __init__(self, path: Path, dimensions: int) -> None:
        self.path = path
        self._schema = delta_schema(dimensions)
        options: dict[str, Any] = {"use_dictionary": ["op", "reason"], "write_statistics": ["op", "id"]}
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", **options)

    def write(self, ops: pa.Array[Any], rows: pa.RecordBatch) -> None:
        """Rows with vectors, as they go into the table."""
        nothing = pa.nulls(rows.num_rows, pa.string())
        columns = [ops, nothing, rows.column("id"), rows.column("fingerprint"), rows.column("embedding")]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def remove(self, ids: list[str], reason: str) -> None:
        """Ids that have no vector any more."""
        count = len(ids)
        if count:
            columns: list[Any] = [pa.array(["removed"] * count), pa.array([reason] * count), pa.array(ids, pa.string())]
            columns += [pa.nulls(count, self._schema.field(name).type) for name in ("fingerprint", "embedding")]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def described(path: Path, key: str) -> DeltaFile:
    """A delta's file as it was written."""
    with path.open("rb") as file:
        return DeltaFile(key=key, size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


async def deltas(store: Store, root: str) -> tuple[DeltaManifest, ...]:
    """Manifests below a space's root (without a slash at its end), in the order in which they apply. One that cannot be read is left
    out: the table does not depend on it."""
    found: list[DeltaManifest] = []
    keys = [info.key async for info in store.list(f"{root}/deltas/") if info.key.endswith(".json")]
    for key in keys:
        try:
            found.append(decode((await store.get(key)).data, DeltaManifest, where=key))
        except ContractError:
            continue
    return tuple(sorted(found, key=lambda one: one.table_version))
