"""contract: the identity of a row, and the digests that prove that none is lost, doubled or altered (PROTOCOL.md, Identities). Pure.

A row travels as one line of JSON: an OpenAI batch line {"custom_id", "method", "url", "body"}. The line's bytes, as they stand in the
input object and without the newline, are the row's canonical bytes: whoever reads a row can recompute its digest from what was read.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, Literal

import msgspec

from contract.models import Hex64, Model

MAX_ROW_BYTES: Final = 8 * 1024 * 1024
"""A longer row is refused by preflight. RunPod's payload limits do not bind (rows travel through S3); a worker's memory does."""
_MASK: Final = (1 << 256) - 1
_HEAD: Final = struct.Struct(">QI").pack

ChatUrl = "/v1/chat/completions"
CompletionUrl = "/v1/completions"
EmbeddingUrl = "/v1/embeddings"
URLS: Final = {"generate": (ChatUrl, CompletionUrl), "embed": (EmbeddingUrl,)}


class BatchLine(Model, frozen=True, kw_only=True):
    """A row's line. `body` stays raw until the worker's task reads it."""

    custom_id: str
    method: Literal["POST"] = "POST"
    url: str
    body: msgspec.Raw


class PartLine(Model, frozen=True, kw_only=True):
    """A line of a generate part or piece. `row`: row digest in hex; `response`: the response body, its exact bytes are digested."""

    index: int
    row: Hex64
    id: str
    response: msgspec.Raw


class RowError(Model, frozen=True, kw_only=True, omit_defaults=True):
    """Why a row failed: `code` for programs, `message` for people, `param` the body field if there is one."""

    code: str
    message: str
    param: str | None = None


class ErrorLine(Model, frozen=True, kw_only=True):
    """A line of an errors object. `error` is raw so that its exact bytes are digested; it holds a RowError."""

    index: int
    row: Hex64
    id: str
    error: msgspec.Raw


def row_digest(index: int, custom_id: str, line: bytes) -> bytes:
    """sha256(index ‖ id ‖ canonical bytes): index as 8 bytes, id with its length before it, so that no two rows share an encoding."""
    ident = custom_id.encode()
    return hashlib.sha256(_HEAD(index, len(ident)) + ident + line).digest()


class InputDigest:
    """sha256 over row digests in index order: what a shard's `source.digest` and the dataset's digest are."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, digest: bytes) -> None:
        self._hash.update(digest)
        self.count += 1

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def outcome_digest(index: int, digest: bytes, ok: bool, output: bytes) -> int:
    """One row's term of the shard digest: sha256(index ‖ row digest ‖ outcome ‖ sha256(output)) as a number.

    `output`: the exact bytes of the response JSON (generate), of the vector as little-endian float32 (embed), or of the error JSON.
    """
    term = hashlib.sha256(index.to_bytes(8, "big") + digest + (b"ok" if ok else b"error") + hashlib.sha256(output).digest()).digest()
    return int.from_bytes(term, "big")


class ShardDigest:
    """Count and sum mod 2^256 of the rows' terms: the order of rows does not matter, so it can be recomputed from any arrangement."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, index: int, digest: bytes, ok: bool, output: bytes) -> None:
        self._sum = (self._sum + outcome_digest(index, digest, ok, output)) & _MASK
        self.count += 1

    def hexdigest(self) -> str:
        return f"{self._sum:064x}"
