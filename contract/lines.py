"""contract: zstd-compressed lines, read and written as a stream in bounded memory. Pure but for the bytes that it is handed.

Lines are split at b"\\n" only: U+2028, U+0085 and their kin are text inside a row, not ends of rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import zstandard

from contract.errors import ContractError

LEVEL: Final = 3
MAX_LINE: Final = 64 << 20
"""Bytes. A response may be longer than its row; past this an object is taken to be damaged."""
_CHUNK: Final = 1 << 18


def compress(data: bytes) -> bytes:
    """One zstd frame."""
    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(data)


def decompress_lines(data: bytes, *, where: str) -> Iterator[bytes]:
    """Lines of a small whole object."""
    splitter = _Lines(where)
    yield from splitter.feed(data)
    yield from splitter.end()


def file_lines(path: Path, *, where: str, compressed: bool = True) -> Iterator[bytes]:
    """As `read_lines`, from a file on this machine; `where` is what an error names. Raises ContractError where it is damaged."""
    splitter = _Lines(where, compressed=compressed)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield from splitter.feed(chunk)
    yield from splitter.end()


async def read_lines(chunks: AsyncIterator[bytes], *, where: str, compressed: bool = True) -> AsyncIterator[bytes]:
    """Lines of a streamed object, without their newline, empty ones left out. Raises ContractError where the object is damaged."""
    splitter = _Lines(where, compressed=compressed)
    async for chunk in chunks:
        for line in splitter.feed(chunk):
            yield line
    for line in splitter.end():
        yield line


class _Lines:
    def __init__(self, where: str, *, compressed: bool = True) -> None:
        self._where = where
        self._inflate = zstandard.ZstdDecompressor().decompressobj() if compressed else None
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._seen = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        self._seen = self._seen or bool(chunk)
        if self._inflate is not None:
            try:
                chunk = self._inflate.decompress(chunk)
            except zstandard.ZstdError as error:
                raise ContractError(f"damaged: {error}.", where=self._where) from None
            if self._inflate.unused_data:
                raise ContractError("damaged: something follows its end.", where=self._where)
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._keep(chunk)
            return
        lines = (b"".join(self._rest) + head).split(b"\n")
        self._rest, self._rest_size = [], 0
        self._keep(tail)
        for line in lines:
            if line:
                yield line

    def end(self) -> Iterator[bytes]:
        if self._inflate is not None and self._seen and not self._inflate.eof:
            raise ContractError("damaged: it ends in the middle.", where=self._where)
        line = b"".join(self._rest)
        if line:
            yield line

    def _keep(self, data: bytes) -> None:
        if data:
            self._rest.append(data)
            self._rest_size += len(data)
            if self._rest_size > MAX_LINE:
                raise ContractError(f"damaged: a line is longer than {MAX_LINE} bytes.", where=self._where)
