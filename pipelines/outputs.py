"""pipelines: the writers of output files, and what a row looks like in them. May touch contract, pyarrow and files.

Four files come out of `collect reviews.parquet`, each written under a temporary name in the same folder and renamed when whole:

    reviews.parquet            the rows that succeeded, in input order (or reviews.jsonl: OpenAI batch output lines)
    reviews.errors.jsonl       the rows that failed, and after them those that preflight left out; empty when there are none
    reviews.parquet.seal.json  which run, plan and seal the two come from, their sizes and sha256 (`OutputFacts`)

The same facts, but for the sizes, stand in the Parquet file's metadata under `nightbatch`. A partial output is called
`reviews.partial.parquet` and says so in both places.

From an output alone the shard digests can be computed again: a line's `id` is `batch_req_INDEX_ROWDIGEST` and its body holds the
response's exact bytes; a table has `row_index` and `row_digest`, vectors are the stored float32 (not with `--dtype float16`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import platform
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import NotAsWanted, UsageError, VerifyFailed
from contract.models import VERSION, Count, Hex64, Model, RowRange, TaskKind, encode
from contract.process import alive
from contract.rows import ErrorLine
from contract.store import Store
from pipelines.parts import Column, EmbedRows, GenerateRows, LeafRows, Rows
from pipelines.preflight import SkippedLine

Format = Literal["jsonl", "parquet"]
Dtype = Literal["float32", "float16"]
METADATA_KEY: Final = b"nightbatch"
GROUP_ROWS: Final = 16_384
GROUP_BYTES: Final = 16 << 20
"""A row group is written once one of these is reached: small shards do not make small groups, and memory stays bounded."""
RESULTS: Final[dict[TaskKind, tuple[str, ...]]] = {
    "embed": ("id", "embedding", "tokens", "row_index", "row_digest"),
    "generate": (
        "id",
        "output",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "response",
        "row_index",
        "row_digest",
    ),
}
"""The columns that are ours. Original columns stand between `id` and the others."""


# --- names and places ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputNames:
    """Where the files go: paths, or s3:// addresses."""

    out: str
    errors: str
    seal: str
    format: Format


def output_names(out: str, *, partial: bool = False) -> OutputNames:
    """`answers.jsonl` -> its errors and seal files beside it. Raises UsageError when the ending is not one of ours."""
    folder, slash, name = out.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not dot or not stem or suffix not in ("jsonl", "parquet"):
        raise UsageError(f"'{out}' does not say which kind of file to write.", fix="End its name with .jsonl or .parquet.")
    base = f"{folder}{slash}{stem}{'.partial' if partial else ''}"
    whole = f"{base}.{suffix}"
    return OutputNames(whole, f"{base}.errors.jsonl", f"{whole}.seal.json", "jsonl" if suffix == "jsonl" else "parquet")


def companion(names: OutputNames) -> OutputNames:
    """The output of the other format that shares the errors file: `my.jsonl` of `my.parquet`."""
    suffix = "jsonl" if names.format == "parquet" else "parquet"
    out = f"{names.out.removesuffix('.' + names.format)}.{suffix}"
    return OutputNames(out, names.errors, f"{out}.seal.json", "jsonl" if suffix == "jsonl" else "parquet")


def check_dtype(kind: TaskKind, format_: Format, dtype: Dtype) -> None:
    """Raises UsageError where there are no numbers to write in fewer bits."""
    if dtype == "float16" and kind != "embed":
        raise UsageError("--dtype is for embeddings, and this run generates.", fix="Leave it out.")
    if dtype == "float16" and format_ == "jsonl":
        raise UsageError("OpenAI's embeddings format has no float16.", fix="Write a .parquet file, or leave out --dtype float16.")


class Place(Protocol):
    """Where drafts become outputs."""

    @property
    def folder(self) -> Path:
        """Drafts are written here."""

    async def publish(self, draft: Path, name: str) -> None:
        """The whole draft appears under `name` at once, replacing what stood there; the draft is gone afterwards."""


@dataclass(frozen=True)
class LocalPlace:
    """A folder of this machine: drafts are written beside the outputs, so that a rename is enough."""

    folder: Path

    async def publish(self, draft: Path, name: str) -> None:
        await asyncio.to_thread(self._publish, draft, name)

    def _publish(self, draft: Path, name: str) -> None:
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, name)
        handle = os.open(self.folder, os.O_RDONLY)  # the rename itself has to survive a power cut too
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@dataclass(frozen=True)
class S3Place:
    """A bucket: an upload appears under its key when it is whole."""

    store: Store
    folder: Path

    async def publish(self, draft: Path, name: str) -> None:
        await self.store.put(s3_key(name)[1], draft)
        draft.unlink()


def is_s3(name: str) -> bool:
    return name.startswith("s3://")


def s3_key(name: str) -> tuple[str, str]:
    """`s3://bucket/key` -> bucket, key. Raises UsageError."""
    bucket, slash, key = name.removeprefix("s3://").partition("/")
    if not bucket or not slash or not key or "//" in key or "\\" in key or key.endswith("/"):
        raise UsageError(f"'{name}' is not the address of an object.", fix="It looks like s3://bucket/folder/name.jsonl.")
    return bucket, key


def check_folder(name: str) -> Path:
    """The folder of a local output. Raises UsageError when it cannot be written into."""
    folder = Path(name).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder} to write into.", fix="Create it, or name another with --out.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {folder} cannot be written into.", fix="Name another with --out.")
    if Path(name).is_dir():
        raise UsageError(f"'{name}' is a folder.", fix="Name a file with --out.")
    return folder


def draft_path(folder: Path, name: str) -> Path:
    """A temporary name: hidden, never one that a reader would look for. Carries who writes it, so that what a killed process left can be
    told from what another one is writing."""
    return folder / f".{PurePosixPath(name).name}.{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def sweep(folder: Path, name: str) -> None:
    """Delete the drafts of `name` that processes of this machine left when they were killed."""
    mark = f".{PurePosixPath(name).name}.{platform.node()}-"
    for path in folder.glob("*.tmp"):
        if path.name.startswith(mark):
            pid = path.name[len(mark) :].partition("-")[0]
            if pid.isdigit() and not alive(int(pid)):
                path.unlink(missing_ok=True)


# --- facts ---------------------------------------------------------------------------------------------------------------------------


class OutputFile(Model, frozen=True, kw_only=True):
    """One file as it was written. Its name is not kept: a file that was moved with its companions is still the same."""

    size: Count
    sha256: Hex64


class OutputFacts(Model, frozen=True, kw_only=True):
    """What an output comes from. `seal` is None for a partial output; `missing`: row indices [start, stop) that are not there yet."""

    version: int = VERSION
    run: str
    plan: Hex64
    seal: Hex64 | None
    partial: bool
    rows: Count
    ok: Count
    failed: Count
    skipped: Count
    missing: tuple[RowRange, ...] = ()
    dtype: Dtype | None = None
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    output: OutputFile | None = None
    errors: OutputFile | None = None


def file_facts(path: Path) -> OutputFile:
    """Size and sha256 of a file that is whole."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return OutputFile(size=path.stat().st_size, sha256=digest)


# --- lines ---------------------------------------------------------------------------------------------------------------------------

_ID: Final = re.compile(r"batch_req_(0|[1-9][0-9]{0,17})_([0-9a-f]{64})\Z")


class OutputResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class OutputLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of an output or errors file: OpenAI's batch output format."""

    id: str
    custom_id: str | None
    response: OutputResponse | None
    error: msgspec.Raw


def line_id(index: int, digest: str) -> str:
    """Carries the row's index and digest, so that the file proves itself."""
    return f"batch_req_{index}_{digest}"


def read_line_id(ident: str) -> tuple[int, bytes] | None:
    """Index and row digest, None where it is not one of our ids."""
    match = _ID.match(ident)
    return (int(match[1]), bytes.fromhex(match[2])) if match else None


def response_line(index: int, digest: str, custom_id: str, body: bytes) -> bytes:
    """A successful row. `body` is copied byte by byte."""
    return b'{"id":"%s","custom_id":%s,"response":{"status_code":200,"request_id":"row_%d","body":%s},"error":null}\n' % (
        line_id(index, digest).encode(),
        msgspec.json.encode(custom_id),
        index,
        body,
    )


def error_line(line: ErrorLine) -> bytes:
    """A failed row. The error's bytes are copied."""
    return b'{"id":"%s","custom_id":%s,"response":null,"error":%s}\n' % (
        line_id(line.index, line.row).encode(),
        msgspec.json.encode(line.id),
        bytes(line.error),
    )


def skipped_line(number: int, row: SkippedLine) -> bytes:
    """A row that preflight left out: it was never sent, so it has no index."""
    error = {"code": row.code, "message": row.reason, "file": row.file, "line": row.line}
    return b'{"id":"skipped_%d","custom_id":%s,"response":null,"error":%s}\n' % (
        number,
        msgspec.json.encode(row.id),
        msgspec.json.encode(error),
    )


def embedding_body(vector: bytes, model: str, tokens: int) -> bytes:
    """OpenAI's embeddings response with the vector as base64 of little-endian float32: what `encoding_format: base64` gives."""
    return (
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":"%s"}],"model":%s,'
        b'"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (base64.b64encode(vector), msgspec.json.encode(model), tokens, tokens)
    )


class _Embedding(msgspec.Struct, frozen=True):
    embedding: str


class _EmbeddingBody(msgspec.Struct, frozen=True):
    data: tuple[_Embedding, ...]


def vector_of_body(body: bytes) -> bytes:
    """The float32 bytes of an embeddings response. Raises ValueError."""
    data = msgspec.json.decode(body, type=_EmbeddingBody).data
    if len(data) != 1:
        raise ValueError("not one embedding")
    try:
        return base64.b64decode(data[0].embedding, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def output_lines(rows: Rows, model: str) -> Iterator[bytes]:
    """A shard's lines of a JSONL output."""
    if isinstance(rows, GenerateRows):
        for line in rows.lines:
            yield response_line(line.index, line.row, line.id, bytes(line.response))
    elif isinstance(rows, EmbedRows) and rows.table is not None:
        tokens = cast("list[int]", rows.table["tokens"].to_pylist())
        for index, digest, ident, vector, count in zip(
            rows.indices.tolist(), rows.digests(), rows.ids(), rows.outputs(), tokens, strict=True
        ):
            yield response_line(index, digest.hex(), ident, embedding_body(vector, model, count))


# --- tables --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Names of a table output. `originals`: original column -> its name there; `own_id`: whether our own `id` column is written."""

    kind: TaskKind
    dtype: Dtype
    originals: dict[str, str]
    own_id: bool

    @property
    def renamed(self) -> dict[str, str]:
        return {old: new for old, new in self.originals.items() if old != new}


def layout_of(kind: TaskKind, columns: Sequence[str], *, id_column: str | None = None, dtype: Dtype = "float32") -> Layout:
    """Original columns keep their names. One that is called as a result column is becomes `input_NAME`, so that a result is always found
    under the same name; but a column `id` that the row ids were taken from stays as it is, and no second `id` is written."""
    kept_id = id_column == "id" and "id" in columns
    taken = set(RESULTS[kind]) - ({"id"} if kept_id else set())
    originals: dict[str, str] = {}
    for name in columns:
        new, number = name, 1
        while new in taken or new in originals.values() or (new != name and new in columns):
            new = f"input_{name}" if number == 1 else f"input_{name}_{number}"
            number += 1
        originals[name] = new
    return Layout(kind, dtype, originals, own_id=not kept_id)


def table_of(rows: LeafRows, layout: Layout) -> pa.Table | None:
    """A shard's rows of a table output; None when no row succeeded. Raises VerifyFailed where a response cannot be read."""
    ok = rows.ok
    indices = ok.indices
    if len(indices) == 0:
        return None
    fields: list[tuple[str, Column]] = []
    if layout.own_id:
        fields.append(("id", pa.array(ok.ids(), type=pa.string())))
    if rows.columns is not None:
        picked = rows.columns
        if len(indices) != picked.num_rows:
            picked = picked.take(indices - rows.source.rows[0])
        if picked.column_names != list(layout.originals):
            raise VerifyFailed(
                f"the shard has the columns {', '.join(picked.column_names)}, and others have {', '.join(layout.originals)}.",
                where=f"shard {rows.shard}",
            )
        fields.extend((layout.originals[name], picked[name]) for name in picked.column_names)
    elif layout.originals:
        raise VerifyFailed("the shard has no original columns, and others have.", where=f"shard {rows.shard}")
    fields.extend(_results(ok, layout, rows.shard))
    fields.append(("row_index", pa.array(indices, type=pa.int64())))
    fields.append(("row_digest", pa.array(ok.digests(), type=pa.binary(32))))
    return pa.table([values for _, values in fields], names=[name for name, _ in fields])


def empty_table(layout: Layout, columns: pa.Schema | None) -> pa.Table:
    """A table without rows: what is written when no row succeeded. The vectors' length is not known then: they are variable lists."""
    found: list[pa.Field[Any]] = [pa.field("id", pa.string())] if layout.own_id else []
    if columns is not None:
        found.extend(pa.field(layout.originals[f.name], f.type) for f in columns)
    if layout.kind == "embed":
        found.append(pa.field("embedding", pa.list_(pa.float16() if layout.dtype == "float16" else pa.float32())))
        found.append(pa.field("tokens", pa.int32()))
    else:
        found.extend(pa.field(name, pa.string()) for name in ("output", "finish_reason"))
        found.extend(pa.field(name, pa.int64()) for name in ("prompt_tokens", "completion_tokens"))
        found.append(pa.field("response", pa.string()))
    found.extend([pa.field("row_index", pa.int64()), pa.field("row_digest", pa.binary(32))])
    return pa.schema(found).empty_table()


def _results(ok: Rows, layout: Layout, shard: str) -> list[tuple[str, Column]]:
    if isinstance(ok, EmbedRows) and ok.table is not None:
        embedding: Column = ok.table["embedding"]
        if layout.dtype == "float16":
            embedding = _halves(ok.vectors(), shard)
        return [("embedding", embedding), ("tokens", ok.table["tokens"])]
    if isinstance(ok, GenerateRows):
        bodies = [bytes(line.response) for line in ok.lines]
        try:
            answers = [read_answer(body) for body in bodies]
            responses = pa.array([body.decode() for body in bodies], type=pa.string())
        except ValueError as error:
            raise VerifyFailed(f"a response is not JSON in UTF-8 ({error}).", where=f"shard {shard}") from None
        return [
            ("output", pa.array([a.text for a in answers], type=pa.string())),
            ("finish_reason", pa.array([a.finish_reason for a in answers], type=pa.string())),
            ("prompt_tokens", pa.array([a.prompt_tokens for a in answers], type=pa.int64())),
            ("completion_tokens", pa.array([a.completion_tokens for a in answers], type=pa.int64())),
            ("response", responses),
        ]
    raise AssertionError("unreachable")


def _halves(vectors: npt.NDArray[np.float32], shard: str) -> Column:
    with np.errstate(over="ignore"):
        halves = vectors.astype("<f2")
    if not bool(np.all(np.isfinite(halves) | ~np.isfinite(vectors))):
        raise NotAsWanted(
            "a vector has numbers beyond float16's 65504.", where=f"shard {shard}", fix="Collect again without --dtype float16."
        )
    return pa.FixedSizeListArray.from_arrays(pa.array(halves.reshape(-1)), vectors.shape[1])


@dataclass(frozen=True)
class Answer:
    """What a table shows of a generate response: of the first choice where there are several; None where it does not say."""

    text: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


def read_answer(body: bytes) -> Answer:
    """Of /v1/chat/completions and /v1/completions bodies. Raises ValueError where it is not JSON."""
    try:
        value: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    value = value if isinstance(value, dict) else {}
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    reason = choice.get("finish_reason")
    usage = value.get("usage") if isinstance(value.get("usage"), dict) else {}

    def count(name: str) -> int | None:
        number = usage.get(name)
        return number if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 63 else None

    return Answer(
        text if isinstance(text, str) else None,
        reason if isinstance(reason, str) else None,
        count("prompt_tokens"),
        count("completion_tokens"),
    )


# --- writers -------------------------------------------------------------------------------------------------------------------------


@dataclass
class LineWriter:
    """Lines into a draft."""

    path: Path
    rows: int = 0

    def __post_init__(self) -> None:
        self._file = self.path.open("wb", buffering=1 << 20)

    def write(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._file.write(line)
            self.rows += 1

    def close(self) -> None:
        self._file.close()


@dataclass
class TableWriter:
    """Tables into a Parquet draft, in row groups that do not depend on the shards' sizes.

    The schema is that of the first table with rows; a later one that cannot be cast to it is refused, naming the shard.
    """

    path: Path
    rows: int = 0
    _writer: pq.ParquetWriter | None = field(default=None, init=False)
    _schema: pa.Schema | None = field(default=None, init=False)
    _waiting: list[pa.Table] = field(default_factory=list, init=False)
    _waiting_rows: int = field(default=0, init=False)
    _waiting_bytes: int = field(default=0, init=False)

    def write(self, table: pa.Table, *, shard: str) -> None:
        table = table.replace_schema_metadata(None)
        if self._schema is None:
            self._begin(table.schema)
        elif table.schema != self._schema:
            table = self._cast(table, shard)
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        self.rows += table.num_rows
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush(everything=False)

    def _begin(self, schema: pa.Schema) -> None:
        self._schema = schema
        # Dictionaries help columns of few values; for ids, texts and vectors the writer would build them only to drop them.
        few = [f.name for f in schema if pa.types.is_string(f.type) and f.name not in ("id", "output", "response")]
        bounded = [f.name for f in schema if f.name not in ("embedding", "output", "response")]
        options: dict[str, Any] = {"use_dictionary": few, "write_statistics": bounded}  # the stubs know them as bool alone
        self._writer = pq.ParquetWriter(self.path, schema, compression="zstd", **options)

    def _cast(self, table: pa.Table, shard: str) -> pa.Table:
        assert self._schema is not None
        for column, wanted in zip(table.schema, self._schema, strict=True):
            if column.type != wanted.type:
                try:
                    table[column.name].cast(wanted.type)
                except pa.ArrowException:
                    raise VerifyFailed(
                        f"column `{column.name}` is {column.type} here and {wanted.type} in earlier shards.", where=f"shard {shard}"
                    ) from None
        return table.cast(self._schema)

    def _flush(self, *, everything: bool) -> None:
        if not self._waiting or self._writer is None:
            return
        table = pa.concat_tables(self._waiting)
        per_row = max(1, self._waiting_bytes // max(1, self._waiting_rows))
        group = max(1, min(GROUP_ROWS, GROUP_BYTES // per_row))
        whole = table.num_rows if everything else table.num_rows // group * group
        if whole:
            self._writer.write_table(table.slice(0, whole), row_group_size=group)
        rest = table.slice(whole)
        self._waiting = [rest] if rest.num_rows else []
        self._waiting_rows, self._waiting_bytes = rest.num_rows, rest.num_rows * per_row

    def close(self, facts: OutputFacts, empty: pa.Table) -> None:
        """Write what waits and the metadata. `empty` gives the schema when no row came."""
        if self._writer is None:
            self._begin(empty.schema)
        self._flush(everything=True)
        assert self._writer is not None
        self._writer.add_key_value_metadata({METADATA_KEY.decode(): encode(facts).decode()})
        self._writer.close()

    def abandon(self) -> None:
        """Release the file without finishing it."""
        if self._writer is not None:
            self._writer.close()
