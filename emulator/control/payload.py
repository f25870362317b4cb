"""emulator: the body of an S3 request on its way to the storage: unpacked where it is aws-chunked, and checked as it passes.

May touch: the body that it is given. Nothing is buffered but one piece: the last is held back until all that was said of the body is found
to be true (length, SHA-256, the signatures of chunks, the checksum in the trailer). Storage that has not got a whole body keeps none of it.
Checksums that need a library of their own (CRC32C, CRC64NVME, in a trailer) are passed over.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

import aiohttp

UNSIGNED: Final = "UNSIGNED-PAYLOAD"
CHUNKED: Final = frozenset(
    {"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}
)
"""What x-amz-content-sha256 says of an aws-chunked body."""
PIECE: Final = 1 << 16
TRAILERS_MOST: Final = 16
_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,16}")
_CHUNK_SIGNATURE: Final = re.compile(rb"chunk-signature=([0-9a-f]{64})")
_NOTHING: Final = hashlib.sha256(b"").hexdigest()


class S3Refusal(Exception):
    """Becomes an S3 error in XML."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4)


_CHECKSUMS: Final[dict[str, Callable[[], _Digest]]] = {
    "x-amz-checksum-crc32": _Crc32,
    "x-amz-checksum-sha1": hashlib.sha1,
    "x-amz-checksum-sha256": hashlib.sha256,
}


class ChunkSigner:
    """Signatures of chunks: each holds the one before, the first that of the request (`seed`)."""

    def __init__(self, key: bytes, stamp: str, scope: str, seed: str) -> None:
        self._key = key
        self._where = f"{stamp}\n{scope}"
        self._last = seed

    def chunk(self, given: str, digest: str) -> None:
        """Raises S3Refusal if `given` is not the next chunk's signature."""
        self._next(given, f"AWS4-HMAC-SHA256-PAYLOAD\n{self._where}\n{self._last}\n{_NOTHING}\n{digest}")

    def trailer(self, given: str, lines: bytes) -> None:
        self._next(given, f"AWS4-HMAC-SHA256-TRAILER\n{self._where}\n{self._last}\n{hashlib.sha256(lines).hexdigest()}")

    def _next(self, given: str, text: str) -> None:
        self._last = hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(self._last.encode(), given.encode()):
            raise S3Refusal(403, "SignatureDoesNotMatch", "the signature of a chunk does not match")


class Payload:
    """The bytes of one body, to be iterated over once. `refusal` is why it ended before its end: whoever sends it on sees that as a broken
    connection only."""

    def __init__(self, content: aiohttp.StreamReader, kind: str, length: int, *, signer: ChunkSigner, trailer: str = "") -> None:
        """`kind` and `trailer`: the headers x-amz-content-sha256 and x-amz-trailer. `length`: what the object will have."""
        self.length = length
        self.refusal: S3Refusal | None = None
        self.passed = length == 0
        """All of it is with whoever iterates: what it makes of it can no longer be prevented."""
        self._content = content
        self._kind = kind
        self._signer = signer if "-HMAC-" in kind else None
        self._announced = [name.strip().lower() for name in trailer.split(",") if name.strip()] if kind.endswith("-TRAILER") else []
        self._checks = {name: _CHECKSUMS[name]() for name in self._announced if name in _CHECKSUMS}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._checked():
                yield piece
        except S3Refusal as refusal:
            self.refusal = refusal
            raise

    async def _checked(self) -> AsyncIterator[bytes]:
        whole = hashlib.sha256() if self._kind != UNSIGNED and self._kind not in CHUNKED else None
        held, came = b"", 0
        async for piece in self._chunks() if self._kind in CHUNKED else self._content.iter_chunked(PIECE):
            came += len(piece)
            if came > self.length:
                raise S3Refusal(400, "IncompleteBody", "the body is longer than it was said to be")
            for check in self._checks.values():
                check.update(piece)
            if whole is not None:
                whole.update(piece)
            if held:
                yield held
            held = piece
        if came < self.length:
            raise S3Refusal(400, "IncompleteBody", "the body is shorter than it was said to be")
        if whole is not None and whole.hexdigest() != self._kind:
            raise S3Refusal(400, "XAmzContentSHA256Mismatch", "the body is not what x-amz-content-sha256 says")
        self.passed = True
        if held:
            yield held

    async def _chunks(self) -> AsyncIterator[bytes]:
        size = 1
        while size:
            text, _, extension = (await self._line()).partition(b";")
            if not _SIZE.fullmatch(text):
                raise _malformed("the size of a chunk is not a hexadecimal number")
            size = left = int(text, 16)
            digest = hashlib.sha256()
            while left:
                piece = await self._content.read(min(left, PIECE))
                if not piece:
                    raise _malformed("a chunk is cut off")
                left -= len(piece)
                digest.update(piece)
                yield piece
            if self._signer is not None:
                match = _CHUNK_SIGNATURE.fullmatch(extension.strip())
                if match is None:
                    raise S3Refusal(403, "SignatureDoesNotMatch", "a chunk has no signature")
                self._signer.chunk(match[1].decode(), digest.hexdigest())
            if size and await self._line():
                raise _malformed("a chunk is longer than its size")
        await self._trailer()

    async def _trailer(self) -> None:
        """The lines behind the last chunk, up to an empty one."""
        found: dict[str, str] = {}
        signed = b""
        while line := await self._line(last=True):
            name, colon, value = line.decode("utf-8", "replace").partition(":")
            if not colon or len(found) >= TRAILERS_MOST:
                raise _malformed("the trailer is not made of a few headers")
            found[name.strip().lower()] = value.strip()
            if name.strip().lower() != "x-amz-trailer-signature":
                signed += f"{name.strip().lower()}:{value.strip()}\n".encode()
        if await self._content.read(1):
            raise _malformed("something follows the last chunk")
        if self._signer is not None and self._kind.endswith("-TRAILER"):
            self._signer.trailer(found.get("x-amz-trailer-signature", ""), signed)
        for name in self._announced:
            if name not in found:
                raise S3Refusal(400, "MalformedTrailerError", f"{name} was announced as a trailer and did not come")
        for name, check in self._checks.items():
            if base64.b64encode(check.digest()).decode() != found[name]:
                raise S3Refusal(400, "BadDigest", f"the body is not what {name} says")

    async def _line(self, *, last: bool = False) -> bytes:
        """The next line, without its end. `last`: the body may end instead."""
        try:
            # a request without a body has a stream that knows no lines
            line = b"" if self._content.at_eof() else await self._content.readuntil(b"\r\n")
        except ValueError:  # longer than what is read at once
            raise _malformed("a line is too long") from None
        if not line.endswith(b"\r\n") and not (last and not line):
            raise _malformed("the body is cut off")
        return line.removesuffix(b"\r\n")


def _malformed(what: str) -> S3Refusal:
    return S3Refusal(400, "IncompleteBody", f"the aws-chunked body is malformed: {what}")
