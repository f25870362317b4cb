"""contract: a store in memory, of both kinds, that fails on script: the property tests and the fast tests run on it. No I/O.

Its primitives behave as S3's do, and each passes `hook(op, key)` before it takes effect and `after(op, key)` when it has: a hook that
raises before is a lost request, one that raises after is a lost answer, one that awaits is where a scheduler switches tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from contract.errors import AlreadyExists, NotFound
from contract.models import StoreMode
from contract.store import CHUNK, Blob, Head

Hook = Callable[[str, str], Awaitable[None]]


async def _nothing(op: str, key: str) -> None:
    return None


@dataclass
class Objects:
    """The bucket itself, shared by every client of it. `writes` counts the writes of each key, for the invariants."""

    data: dict[str, bytes] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    instant: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def advance(self, seconds: float) -> None:
        self.instant += timedelta(seconds=seconds)

    def write(self, key: str, data: bytes) -> str:
        self.data[key] = data
        self.writes[key] = self.writes.get(key, 0) + 1
        return etag(data)


def etag(data: bytes) -> str:
    """As S3 makes it for a single put."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class MemoryStore:
    """One client's view of `Objects`. On a `last-writer` store If-None-Match and If-Match are accepted and ignored, as real ones do."""

    def __init__(
        self,
        objects: Objects | None = None,
        *,
        mode: StoreMode = "conditional",
        dialect: StoreMode | None = None,
        hook: Hook = _nothing,
        after: Hook = _nothing,
        bucket: str = "memory",
    ) -> None:
        self.objects = objects if objects is not None else Objects()
        self.mode: StoreMode = mode
        self.dialect: StoreMode = dialect or mode
        self.hook = hook
        self.after = after
        self.bucket = bucket
        self.endpoint_url = "memory:"

    async def get(self, key: str) -> Blob:
        await self.hook("get", key)
        data = self._read(key)
        await self.after("get", key)
        return Blob(data, etag(data))

    async def head(self, key: str) -> Head | None:
        await self.hook("head", key)
        data = self.objects.data.get(key)
        await self.after("head", key)
        return None if data is None else Head(key, len(data), etag(data))

    async def put(self, key: str, data: bytes | Path) -> str:
        await self.hook("put", key)
        made = self.objects.write(key, data.read_bytes() if isinstance(data, Path) else bytes(data))
        await self.after("put", key)
        return made

    async def put_if_absent(self, key: str, data: bytes) -> str:
        await self.hook("put_if_absent", key)
        if self.dialect == "conditional" and key in self.objects.data:
            raise AlreadyExists("the object is there already (412).", where=key)
        made = self.objects.write(key, bytes(data))
        await self.after("put_if_absent", key)
        return made

    async def put_if_match(self, key: str, data: bytes, etag_: str) -> str:
        await self.hook("put_if_match", key)
        if self.dialect == "conditional" and etag(self._read(key)) != etag_:
            raise AlreadyExists("the object is another one by now (412).", where=key)
        made = self.objects.write(key, bytes(data))
        await self.after("put_if_match", key)
        return made

    async def read(self, key: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        await self.hook("read", key)
        data = self._read(key)[start:stop]
        for at in range(0, len(data), CHUNK):
            yield data[at : at + CHUNK]

    async def list(self, prefix: str) -> AsyncIterator[Head]:
        await self.hook("list", prefix)
        for key in sorted(self.objects.data):
            if key.startswith(prefix):
                data = self.objects.data[key]
                yield Head(key, len(data), etag(data))

    async def folders(self, prefix: str) -> AsyncIterator[str]:
        await self.hook("folders", prefix)
        below = {key[len(prefix) :] for key in self.objects.data if key.startswith(prefix)}
        for name in sorted({rest.split("/")[0] for rest in below if "/" in rest}):
            yield name

    async def delete(self, key: str) -> None:
        await self.hook("delete", key)
        self.objects.data.pop(key, None)
        await self.after("delete", key)

    def now(self) -> datetime:
        return self.objects.instant

    async def close(self) -> None:
        return None

    def _read(self, key: str) -> bytes:
        try:
            return self.objects.data[key]
        except KeyError:
            raise NotFound("there is no such object.", where=key) from None
