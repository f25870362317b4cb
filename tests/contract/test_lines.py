"""tests of contract.lines: every line comes out as it went in, however the bytes are cut, and damage is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import lines as lines_module
from contract.errors import ContractError
from contract.lines import compress, decompress_lines, file_lines, read_lines

LINES = st.lists(st.binary(min_size=1, max_size=30).filter(lambda line: b"\n" not in line), max_size=20)


async def chunks(data: bytes, sizes: list[int]) -> AsyncIterator[bytes]:
    at = 0
    while at < len(data):
        size = sizes.pop(0) if sizes else 7
        yield data[at : at + size]
        at += size


def streamed(data: bytes, sizes: list[int], *, compressed: bool = True) -> list[bytes]:
    async def read() -> list[bytes]:
        return [line async for line in read_lines(chunks(data, list(sizes)), where="x", compressed=compressed)]

    return asyncio.run(read())


def from_file(data: bytes, *, compressed: bool = True) -> list[bytes]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        return list(file_lines(path, where="x", compressed=compressed))


@given(LINES, st.lists(st.integers(1, 20), max_size=30), st.booleans(), st.booleans())
def test_lines_come_out_as_they_went_in(lines: list[bytes], sizes: list[int], last_newline: bool, compressed: bool) -> None:
    plain = b"\n".join(lines) + (b"\n" if last_newline and lines else b"")
    data = compress(plain) if compressed else plain
    assert streamed(data, sizes, compressed=compressed) == lines
    assert from_file(data, compressed=compressed) == lines
    if compressed:
        assert list(decompress_lines(data, where="x")) == lines


def test_only_newlines_end_a_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh".encode()
    assert streamed(compress(text + b"\nnext"), [3]) == [text, b"next"]


def test_empty_lines_are_left_out() -> None:
    assert streamed(compress(b"\n\na\n\n\nb\n\n"), [1]) == [b"a", b"b"]


def test_nothing_is_no_lines() -> None:
    assert streamed(b"", []) == streamed(compress(b""), [1]) == []


READERS: list[Callable[[bytes], list[bytes]]] = [
    lambda data: streamed(data, [5]),
    from_file,
    lambda data: list(decompress_lines(data, where="x")),
]


@pytest.mark.parametrize("read", READERS, ids=["stream", "file", "whole"])
def test_every_cut_and_every_addition_is_damage(read: Callable[[bytes], list[bytes]]) -> None:
    data = compress(b"".join(b"line %d\n" % number for number in range(50)))
    assert len(read(data)) == 50
    for size in range(1, len(data)):
        with pytest.raises(ContractError, match="damaged"):
            read(data[:size])
    for more in (b"x", data, bytes(3)):
        with pytest.raises(ContractError, match="damaged"):
            read(data + more)
    with pytest.raises(ContractError, match="damaged"):
        read(b"this is not zstd")


def test_a_line_without_end_is_damage_and_not_a_full_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE", 1000)
    assert streamed(b"x" * 1000 + b"\n", [64], compressed=False) == [b"x" * 1000]
    with pytest.raises(ContractError, match="longer than 1000 bytes"):
        streamed(b"x" * 2000 + b"\n", [64], compressed=False)
    with pytest.raises(ContractError, match="longer than 1000 bytes"):
        from_file(compress(b"x" * 5000))


def test_a_long_line_in_many_chunks_takes_no_quadratic_time() -> None:
    data = b"x" * (4 << 20)
    assert [len(line) for line in streamed(data + b"\ny", [1000] * 5000, compressed=False)] == [4 << 20, 1]
