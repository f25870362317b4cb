"""pipelines/dataset: a file's bytes -> decompressed chunks -> blocks of lines, in bounded memory. Touches files, and S3 through a store.

Synchronous, because it runs in a thread beside the event loop: rows are a matter of CPU. A store's stream is fetched on the loop.
Lines end at b"\\n" alone: U+2028, U+0085, \\v and \\f are text inside a row. A line over the limit is counted and dropped, never held.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeVar, cast

import zstandard

from contract.errors import DatasetError, Interrupted
from pipelines.dataset.files import DataFile

CHUNK: Final = 1 << 18
"""Bytes. A block of lines and what is made of it fit into a core's second cache."""
_ZSTD_FEED: Final = 1024
"""Compressed bytes a step: zstd has no limit of output a call (up to 128 kB for 4 bytes), so that it is fed in small sips."""
_MAX_WINDOW: Final = 1 << 27
T = TypeVar("T")
_READ_AHEAD: Final = 1 << 20
BOM: Final = b"\xef\xbb\xbf"


class DamagedFile(DatasetError):
    """The rest of this file cannot be read: nothing after the line where it stopped is known."""


@dataclass(frozen=True)
class Source:
    """How a thread reads files: `loop` fetches what is in S3, `stop` ends the reading at its next chunk, `read` hears of stored bytes."""

    loop: asyncio.AbstractEventLoop | None = None
    stop: threading.Event | None = None
    read: Callable[[int], None] | None = None

    def chunks(self, file: DataFile) -> Iterator[bytes]:
        """The file's content, decompressed."""
        stored = self._stored(file)
        if file.compression == "gz":
            return _gunzip(stored, file.name)
        if file.compression == "zst":
            return _unzstd(stored, file.name)
        return stored

    @contextlib.contextmanager
    def seekable(self, file: DataFile) -> Iterator[BinaryIO]:
        """The file for readers that jump in it (Parquet); of an object in S3 only the bytes that they want are fetched."""
        if file.path is not None:
            try:
                handle: BinaryIO = file.path.open("rb")
            except OSError as error:
                raise DatasetError(f"cannot be read ({error.strerror}).", where=file.name) from None
        else:
            handle = cast(BinaryIO, io.BufferedReader(_ObjectFile(self, file), _READ_AHEAD))
        with handle:
            yield handle

    def whole(self, file: DataFile) -> Iterator[bytes]:
        """The file's bytes as they are stored, again: they do not count as progress."""
        return dataclasses.replace(self, read=None)._stored(file)

    def _stored(self, file: DataFile) -> Iterator[bytes]:
        for chunk in self._disk(file) if file.path is not None else self._bucket(file):
            self.check()
            if self.read is not None:
                self.read(len(chunk))
            yield chunk

    def check(self) -> None:
        """Raises Interrupted once `stop` is set."""
        if self.stop is not None and self.stop.is_set():
            raise Interrupted("stopped while the dataset was read; nothing was sent.")

    def _disk(self, file: DataFile) -> Iterator[bytes]:
        assert file.path is not None
        try:
            with file.path.open("rb", buffering=0) as handle:
                while chunk := handle.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise DatasetError(f"cannot be read ({error.strerror}).", where=file.name) from None

    def _bucket(self, file: DataFile) -> Iterator[bytes]:
        assert file.store is not None
        assert file.key is not None
        stream = file.store.read(file.key)
        try:
            while (chunk := self.fetch(_following(stream))) is not None:
                yield chunk
        finally:
            self._close(stream)

    def fetch(self, work: Coroutine[Any, Any, T]) -> T:
        """From the thread: run a coroutine on the loop, and wait for it."""
        if self.loop is None:
            work.close()
            raise DatasetError("this reader has no way to objects in S3.")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def _close(self, stream: AsyncIterator[bytes]) -> None:
        """Also where an exception kept this generator alive until the loop's own thread drops it, which must not wait for itself."""
        close = getattr(stream, "aclose", None)
        if close is None or self.loop is None or self.loop.is_closed():
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        closing = asyncio.run_coroutine_threadsafe(close(), self.loop)
        if here is not self.loop:
            closing.result()


class _ObjectFile(io.RawIOBase):
    """An object in S3 as a file that can be read from any place; each read is one request."""

    def __init__(self, source: Source, file: DataFile) -> None:
        self._source = source
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._source.check()
        stop = min(self._file.size, self._at + len(buffer))
        if stop <= self._at:
            return 0
        data = self._source.fetch(self._range(self._at, stop))
        buffer[: len(data)] = data
        self._at += len(data)
        if self._source.read is not None:
            self._source.read(len(data))
        return len(data)

    async def _range(self, start: int, stop: int) -> bytes:
        assert self._file.store is not None
        assert self._file.key is not None
        return b"".join([chunk async for chunk in self._file.store.read(self._file.key, start, stop)])


async def _following(stream: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return None


def _gunzip(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Any number of gzip members, one after the other, as `cat a.gz b.gz` makes them."""
    inflate = zlib.decompressobj(wbits=31)
    fresh = True
    try:
        for chunk in chunks:
            data = chunk
            while data:
                if inflate.eof:
                    data = data.lstrip(b"\0")  # padding that tapes and some tools leave
                    if not data:
                        break
                    inflate, fresh = zlib.decompressobj(wbits=31), True
                out = inflate.decompress(data, CHUNK)
                fresh = False
                data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
                if out:
                    yield out
        while not inflate.eof and (out := inflate.decompress(inflate.unconsumed_tail, CHUNK)):
            yield out
    except zlib.error as error:
        raise DamagedFile(f"the gzip data is damaged ({error}).", where=name) from None
    if not inflate.eof and not fresh:
        raise DamagedFile("the gzip data ends in the middle: the file is cut off.", where=name)


def _unzstd(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Any number of zstd frames, one after the other."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    inflate = decompressor.decompressobj()
    fresh = True
    try:
        for chunk in chunks:
            for at in range(0, len(chunk), _ZSTD_FEED):
                data = chunk[at : at + _ZSTD_FEED]
                while data:
                    if inflate.eof:
                        inflate, fresh = decompressor.decompressobj(), True
                    out = inflate.decompress(data)
                    fresh = False
                    data = inflate.unused_data if inflate.eof else b""
                    if out:
                        yield out
    except zstandard.ZstdError as error:
        raise DamagedFile(f"the zstd data is damaged ({error}).", where=name) from None
    if not inflate.eof and not fresh:
        raise DamagedFile("the zstd data ends in the middle: the file is cut off.", where=name)


@dataclass(frozen=True)
class TooLong:
    """Stands for a line that was dropped; `size` in bytes."""

    size: int


@dataclass(frozen=True)
class Block:
    """Some consecutive lines without their newlines. `number`: of the first, 1-based; `offset`: where it begins, in bytes."""

    number: int
    offset: int
    lines: list[bytes | TooLong]


def line_blocks(chunks: Iterator[bytes], limit: int, *, newline: bool = False) -> Iterator[Block]:
    """Split at b"\\n". A byte order mark at the file's start is dropped (it still counts in offsets). `newline`: keep it on the lines."""
    number, offset = 1, 0
    rest: list[bytes] = []
    held = dropped = 0  # bytes of an unfinished line: kept, and not kept
    first = True
    for chunk in chunks:
        if first:
            # The mark may be cut by a chunk's end only in files shorter than three bytes, which hold no row.
            if chunk.startswith(BOM):
                chunk = chunk[3:]
                offset = 3
            first = False
        head, found, tail = chunk.rpartition(b"\n")
        if not found:
            if dropped or held + len(chunk) > limit:
                dropped, held, rest = dropped + held + len(chunk), 0, []
            else:
                rest.append(chunk)
                held += len(chunk)
            continue
        lines: list[bytes | TooLong] = []
        span = held + dropped + len(head) + 1
        if dropped:
            begin, more, head = head.partition(b"\n")
            lines.append(TooLong(dropped + len(begin)))
            whole = head.split(b"\n") if more else []
        else:
            whole = head.split(b"\n")
            if rest:
                rest.append(whole[0])
                whole[0] = b"".join(rest)
        rest, held, dropped = ([tail], len(tail), 0) if tail else ([], 0, 0)
        if newline:
            lines += [line + b"\n" if len(line) <= limit else TooLong(len(line)) for line in whole]
        elif whole and max(map(len, whole)) > limit:
            lines += [line if len(line) <= limit else TooLong(len(line)) for line in whole]
        else:
            lines += whole
        yield Block(number, offset, lines)
        number += len(lines)
        offset += span
    if dropped:
        yield Block(number, offset, [TooLong(dropped)])
    elif rest:
        last = b"".join(rest)
        yield Block(number, offset, [last if len(last) <= limit else TooLong(len(last))])
