"""pipelines: the original columns of a shard's rows as one Parquet file, kept so that a table output can join them later.

Parquet columns keep their Arrow types (dictionaries become their values). CSV columns are text. A JSON column is text, whole numbers,
floats or true/false if it is so in every row of the dataset (null anywhere), else JSON text. All shards have the same schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import DatasetError
from pipelines.dataset.reader import Slot

Kind = Literal["bool", "int", "float", "str", "json"]
FINGERPRINT: Final = b"nightbatch.columns"
"""Key of the file's metadata under which the mark of the whole table stands (preflight's `columns_mark`)."""
RECORD: Final = "record"
"""The only column, when records have too many different fields for a table: the whole record as JSON text."""
_FLUSH_BYTES: Final = 16 << 20
_FLUSH_ROWS: Final = 4096
_TYPES: Final[dict[Kind, pa.DataType]] = {
    "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "str": pa.string(), "json": pa.string()
}  # fmt: skip


def json_schema(kinds: Mapping[str, Kind] | None) -> pa.Schema:
    """The schema of JSON or CSV records; None: too many different fields."""
    if kinds is None:
        return pa.schema([pa.field(RECORD, pa.string())])
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in kinds.items()])


def unify(schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """One schema for several Parquet files (name, schema): columns by name, nulls give way, numbers widen. Raises DatasetError."""
    made = _plain(schemas[0][1])
    for name, schema in schemas[1:]:
        try:
            made = pa.unify_schemas([made, _plain(schema)], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            first = str(error).splitlines()[0]
            raise DatasetError(
                f"its columns do not fit those of {schemas[0][0]} ({first}).", where=name, fix="Run files of different columns apart."
            ) from None
    return made


def _plain(schema: pa.Schema) -> pa.Schema:
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema([f.with_nullable(True).remove_metadata() for f in fields])


class TableWriter:
    """Writes one shard's columns to a file, in bounded memory."""

    def __init__(self, path: Path, schema: pa.Schema, kinds: Mapping[str, Kind] | None, fingerprint: str | None) -> None:
        self.path = path
        self._schema = schema
        self._kinds = kinds
        marked = schema.with_metadata({FINGERPRINT: fingerprint.encode()}) if fingerprint else schema
        self._writer = pq.ParquetWriter(str(path), marked, compression="zstd")
        self._records: list[dict[str, Any]] = []
        self._slots: list[Slot] = []
        self._held = 0

    def add(self, record: Any) -> None:
        """A dict of a JSON or CSV record, or the Slot of a Parquet row."""
        if isinstance(record, Slot):
            if not self._slots or self._slots[-1].batch is not record.batch:
                self._held += record.batch.nbytes
            self._slots.append(record)
            if self._held >= _FLUSH_BYTES:
                self._flush()
        else:
            self._records.append(record)
            if len(self._records) >= _FLUSH_ROWS:
                self._flush()

    def close(self) -> Path:
        """The finished file."""
        self._flush()
        self._writer.close()
        return self.path

    def abandon(self) -> None:
        """Release the file's handle without finishing it."""
        self._records, self._slots = [], []
        self._writer.close()

    def _flush(self) -> None:
        if self._records:
            self._writer.write_table(self._from_records())
            self._records = []
        if self._slots:
            self._writer.write_table(self._from_slots())
            self._slots, self._held = [], 0

    def _from_records(self) -> pa.Table:
        encode = msgspec.json.Encoder().encode
        if self._kinds is None:
            return pa.table({RECORD: pa.array([encode(r).decode() for r in self._records], pa.string())}, schema=self._schema)
        columns: dict[str, Any] = {}
        for name, kind in self._kinds.items():
            values = [record.get(name) for record in self._records]
            if kind == "json":
                values = [None if value is None else encode(value).decode() for value in values]
            elif kind == "float":
                values = [None if value is None else float(value) for value in values]
            columns[name] = pa.array(values, _TYPES[kind])
        return pa.table(columns, schema=self._schema)

    def _from_slots(self) -> pa.Table:
        pieces: list[pa.RecordBatch] = []
        at = 0
        slots = self._slots
        while at < len(slots):
            end = at
            while end < len(slots) and slots[end].batch is slots[at].batch:
                end += 1
            places = [slot.at for slot in slots[at:end]]
            if places[-1] - places[0] + 1 == len(places):
                pieces.append(slots[at].batch.slice(places[0], len(places)))
            else:
                pieces.append(slots[at].batch.take(pa.array(places, pa.int32())))
            at = end
        return pa.concat_tables([self._fit(piece) for piece in pieces])

    def _fit(self, batch: pa.RecordBatch) -> pa.Table:
        names = set(batch.schema.names)
        columns = [
            batch.column(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
            for field in self._schema
        ]
        return pa.table(columns, schema=self._schema)
