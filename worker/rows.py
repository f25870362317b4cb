"""worker: a shard's rows, read from S3 as a stream and checked against what the job says of them. Touches the store only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import msgspec

from contract.errors import ContractError, NotFound
from contract.lines import read_lines
from contract.models import Source
from contract.rows import BatchLine, InputDigest, row_digest
from contract.store import Store

_decoder: Final = msgspec.json.Decoder(BatchLine)


class InputChanged(Exception):
    """What stands in the store is not what was planned; nothing of it is computed."""


@dataclass(slots=True)
class ShardRow:
    """One row. Its body is kept only until it is taken: afterwards the engine holds what it needs of it."""

    index: int
    id: str
    digest: bytes
    url: str
    body: msgspec.Raw | None

    def take_body(self) -> bytes:
        body, self.body = self.body, None
        assert body is not None, "a row's body is taken once"
        return bytes(body)


async def read_rows(store: Store, source: Source) -> list[ShardRow]:
    """Every row of the shard in index order. Raises InputChanged; and ContractError when the address is not in the store's bucket."""
    prefix = f"s3://{store.bucket}/"
    if not source.uri.startswith(prefix):
        raise ContractError(f"`source.uri` is {source.uri!r}, which is not in bucket {store.bucket!r}.", where="input")
    key = source.uri[len(prefix) :]
    start, stop = source.rows
    if stop - start != source.count:
        raise ContractError(f"`source.rows` spans {stop - start} rows and `source.count` is {source.count}.", where="input")
    chunks = store.read(key) if source.bytes is None else store.read(key, *source.bytes)
    rows: list[ShardRow] = []
    digest = InputDigest()
    try:
        async for line in read_lines(chunks, where=source.uri, compressed=key.endswith(".zst")):
            index = start + len(rows)
            if index == stop:
                raise InputChanged(f"{source.uri} has more than the {source.count} rows that were planned.")
            parsed = _parse(line, index, source.uri)
            identity = row_digest(index, parsed.custom_id, line)
            digest.add(identity)
            rows.append(ShardRow(index, parsed.custom_id, identity, parsed.url, parsed.body))
    except NotFound:
        raise InputChanged(f"{source.uri} is gone.") from None
    except ContractError as error:
        raise InputChanged(str(error)) from None
    if len(rows) != source.count:
        raise InputChanged(f"{source.uri} has {len(rows)} rows, and {source.count} were planned.")
    if digest.hexdigest() != source.digest:
        raise InputChanged(f"the rows in {source.uri} are not the ones that were planned (their digest differs).")
    return rows


def _parse(line: bytes, index: int, uri: str) -> BatchLine:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = error
    # msgspec refuses the whole line for half a surrogate pair inside the body, which is the fault of that row alone: a line that Python
    # reads is a row, and its body is refused later, by name.
    try:
        value = json.loads(line)
        body = json.dumps(value.pop("body")).encode()
        return msgspec.convert({**value, "body": msgspec.Raw(body)}, BatchLine, strict=True)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, msgspec.MsgspecError):
        raise InputChanged(f"row {index} in {uri} is not a batch line: {problem}.") from None
