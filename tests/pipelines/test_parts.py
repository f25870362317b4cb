# tests/pipelines: reading what executions wrote, and refusing what they could not have written.
from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import StoreUnavailable, VerifyFailed
from contract.lines import compress
from contract.memory import MemoryStore
from contract.models import ObjectRef, SealedNode
from contract.rows import ErrorLine, PartLine
from contract.store import put_object
from pipelines.parts import (
    FETCH_TRIES,
    EmbedRows,
    GenerateRows,
    LeafRows,
    Leaves,
    OneThread,
    ahead,
    coverage,
    digests,
    fetch,
    no_rows,
    read_errors,
    read_part,
    row_error,
)
from pipelines.seal import freeze
from tests.pipelines.runs import Run, errors_bytes, make_row, make_run, parquet_bytes, part_bytes


def written(folder: Path, data: bytes) -> Path:
    path = folder / "object"
    path.write_bytes(data)
    return path


# --- fetching ------------------------------------------------------------------------------------------------------------------------


async def test_a_fetched_object_is_a_file_with_its_bytes(tmp_path: Path) -> None:
    store = MemoryStore()
    ref = await put_object(store, "k", b"x" * (3 << 20))
    path = await fetch(store, ref, tmp_path)
    assert path.read_bytes() == b"x" * (3 << 20)
    assert path.parent == tmp_path


async def test_a_download_that_breaks_off_is_begun_again_and_leaves_one_file(tmp_path: Path) -> None:
    class Breaking(MemoryStore):
        broken = 0

        async def read(self, key: str, start: int = 0, stop: int | None = None) -> Any:
            async for chunk in super().read(key, start, stop):
                yield chunk[:10] if self.broken < FETCH_TRIES - 1 else chunk
                if self.broken < FETCH_TRIES - 1:
                    self.broken += 1
                    raise StoreUnavailable("broke off")

    store = Breaking()
    ref = await put_object(store, "k", b"0123456789abcdef")
    assert (await fetch(store, ref, tmp_path)).read_bytes() == b"0123456789abcdef"
    assert len(list(tmp_path.iterdir())) == 1
    store.broken = -10
    with pytest.raises(StoreUnavailable):
        await fetch(store, ref, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("ref", [{"size": 2}, {"size": 4}, {"sha256": "00" * 32}, {"key": "other"}])
async def test_an_object_that_is_not_what_was_written_is_not_used(ref: dict[str, Any], tmp_path: Path) -> None:
    store = MemoryStore()
    made: ObjectRef = msgspec.structs.replace(await put_object(store, "k", b"abc"), **ref)
    with pytest.raises(VerifyFailed, match="s3://memory/"):
        await fetch(store, made, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- parts -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["generate", "embed"])
def test_rows_come_out_in_index_order_with_the_bytes_that_were_digested(kind: Any, tmp_path: Path) -> None:
    rows = [make_row(kind, index, True) for index in (7, 3, 5, 4)]
    read = read_part(written(tmp_path, part_bytes(kind, rows)), kind, where="x")
    ordered = sorted(rows, key=lambda row: row.index)
    assert read.indices.tolist() == [3, 4, 5, 7]
    assert list(read.ids()) == [row.id for row in ordered]
    assert list(read.digests()) == [row.digest for row in ordered]
    assert list(read.outputs()) == [row.output for row in ordered]


@given(st.permutations(list(range(8))), st.integers(1, 5))
def test_vectors_survive_any_order_and_any_length(order: list[int], dimensions: int) -> None:
    vectors = np.arange(8 * dimensions, dtype="<f4").reshape(8, dimensions) / 7
    table = pa.table(
        {
            "index": pa.array(order, pa.int64()),
            "row": pa.array([bytes([i]) * 32 for i in order], pa.binary(32)),
            "id": [str(i) for i in order],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors[order].reshape(-1)), dimensions),
            "tokens": pa.array(order, pa.int32()),
        }
    )
    with TemporaryDirectory() as folder:
        read = read_part(written(Path(folder), parquet_bytes(table)), "embed", where="x")
    assert isinstance(read, EmbedRows)
    assert np.array_equal(read.vectors(), vectors)


@pytest.mark.parametrize("kind", ["generate", "embed"])
def test_a_shard_without_a_part_has_no_rows(kind: Any) -> None:
    rows = no_rows(kind)
    assert len(rows.indices) == len(rows.ids()) == len(rows.digests()) == len(list(rows.outputs())) == 0


def embed_table() -> pa.Table:
    import pyarrow.parquet as pq

    table: pa.Table = pq.read_table(pa.BufferReader(part_bytes("embed", [make_row("embed", i, True) for i in range(3)])))
    return table


def with_column(name: str, values: Any) -> pa.Table:
    table = embed_table()
    return table.set_column(table.schema.get_field_index(name), name, values)


BAD_TABLES = {
    "a column too few": lambda: embed_table().drop_columns(["tokens"]),
    "a column too many": lambda: embed_table().append_column("more", pa.array([1, 2, 3])),
    "no digests": lambda: with_column("row", pa.array(["a", "b", "c"])),
    "short digests": lambda: with_column("row", pa.array([b"a" * 31] * 3, pa.binary(31))),
    "a null id": lambda: with_column("id", pa.array(["a", None, "c"])),
    "a null vector": lambda: with_column("embedding", pa.array([[1.0], None, [2.0]], pa.list_(pa.float32(), 1))),
    "a null in a vector": lambda: with_column("embedding", pa.array([[1.0], [None], [2.0]], pa.list_(pa.float32(), 1))),
    "doubles": lambda: with_column("embedding", pa.array([[1.0]] * 3, pa.list_(pa.float64(), 1))),
    "vectors of many lengths": lambda: with_column("embedding", pa.array([[1.0], [1.0, 2.0], []], pa.list_(pa.float32()))),
    "an index of text": lambda: with_column("index", pa.array(["0", "1", "2"])),
}


@pytest.mark.parametrize("name", list(BAD_TABLES))
def test_a_table_that_is_no_embed_part_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(VerifyFailed, match="the part has"):
        read_part(written(tmp_path, parquet_bytes(BAD_TABLES[name]())), "embed", where="x")


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"{}",
        b'{"index":"1"}',
        b'{"index":1,"row":"ab","id":"a","response":{}}',
        b'{"index":1.5,"row":"%s","id":"a","response":{}}' % (b"ab" * 32),
    ],
)
def test_a_line_that_is_no_part_line_is_refused(line: bytes, tmp_path: Path) -> None:
    with pytest.raises(VerifyFailed, match=r"^x: "):
        read_part(written(tmp_path, compress(line + b"\n")), "generate", where="x")
    with pytest.raises(VerifyFailed, match=r"^x: "):
        read_errors(written(tmp_path, compress(line + b"\n")), where="x")


@pytest.mark.parametrize("kind", ["generate", "embed"])
def test_a_damaged_part_is_refused(kind: Any, tmp_path: Path) -> None:
    data = part_bytes(kind, [make_row(kind, 0, True)])
    for damaged in (b"", data[:-4], b"rubbish"):
        if kind == "generate" and not damaged:
            continue  # no lines is no damage: the commit's count tells
        with pytest.raises(VerifyFailed):
            read_part(written(tmp_path, damaged), kind, where="x")


def test_errors_are_read_with_their_exact_bytes(tmp_path: Path) -> None:
    rows = [make_row("embed", index, False) for index in (2, 0)]
    read = read_errors(written(tmp_path, errors_bytes(rows)), where="x")
    assert [(line.index, line.id, bytes(line.error)) for line in read] == [(r.index, r.id, r.output) for r in reversed(rows)]
    assert row_error(read[0], where="x").code == "code_0"


def test_an_error_without_code_is_refused(tmp_path: Path) -> None:
    line = b'{"index":1,"row":"%s","id":"a","error":{"message":"m"}}\n' % (b"ab" * 32)
    with pytest.raises(VerifyFailed, match="code"):
        read_errors(written(tmp_path, compress(line)), where="x")


# --- leaves --------------------------------------------------------------------------------------------------------------------------


async def loaded(run: Run, tmp_path: Path, **options: Any) -> list[LeafRows]:
    nodes = (await freeze(run.store, run.keys, run.plan)).seal.nodes
    thread = OneThread()
    try:
        leaves = Leaves(run.store, run.plan, tmp_path, thread, with_columns=True)
        return [rows async for rows in leaves.read(nodes)]
    finally:
        thread.close()


async def test_leaves_of_one_split_share_the_columns_that_are_fetched_once(tmp_path: Path) -> None:
    run = await make_run("embed", splits=(0, 1, 2), columns=pa.table({"n": list(range(8))}))
    fetched: list[str] = []

    async def note(op: str, key: str) -> None:
        if "/columns/" in key:
            fetched.append(key)

    run.store.hook = note
    leaves = await loaded(run, tmp_path)
    assert len(leaves) == 6
    assert len(fetched) == len(set(fetched)) == 3
    columns = [rows.columns for rows in leaves]
    assert [n for table in columns if table is not None for n in table["n"].to_pylist()] == list(range(8))
    assert list(tmp_path.iterdir()) == []


async def test_digests_are_those_of_commit_and_plan(tmp_path: Path) -> None:
    run = await make_run("generate", shuffle=3, splits=(1,))
    for rows in await loaded(run, tmp_path):
        again = digests(rows)
        assert again.input == rows.source.digest
        assert again.shard == rows.node.commit.digest
        assert coverage(rows) == []


async def leaf(ok: list[int], failed: list[int], *, counts: tuple[int, int] | None = None) -> LeafRows:
    """A leaf that ought to have rows 3, 4 and 5."""
    run = await make_run("generate", [True] * 8)
    source = run.plan.shards[1].source
    said = counts or (len(ok), len(failed))
    commit = msgspec.structs.replace(run.commits["00001"], ok=said[0], failed=said[1])
    lines = [ErrorLine(index=index, row="ab" * 32, id=str(index), error=msgspec.Raw(b"{}")) for index in sorted(failed)]
    parts = [PartLine(index=index, row="ab" * 32, id=str(index), response=msgspec.Raw(b"{}")) for index in sorted(ok)]
    return LeafRows(SealedNode(shard="00001", source=source, commit=commit), GenerateRows(tuple(parts)), tuple(lines))


@pytest.mark.parametrize(
    ("ok", "failed", "wanted"),
    [
        ([3, 4, 5], [], []),
        ([], [3, 4, 5], []),
        ([3, 5], [4], []),
        ([3, 4], [], [(5, "missing")]),
        ([3, 3, 4, 5], [], [(3, "2 times")]),
        ([3, 4, 5], [4], [(4, "both")]),
        ([3, 4], [5, 5], [(5, "2 times")]),
        ([2, 3, 4, 5, 6], [], [(2, "does not belong"), (6, "does not belong")]),
        ([3, 4, 9], [], [(9, "does not belong"), (5, "missing")]),
    ],
)
async def test_each_index_has_to_be_there_exactly_once(ok: list[int], failed: list[int], wanted: list[tuple[int, str]]) -> None:
    found = coverage(await leaf(ok, failed))
    assert [finding.index for finding in found] == [index for index, _ in wanted]
    assert all(words in finding.what for finding, (_, words) in zip(found, wanted, strict=True))


async def test_counts_have_to_be_the_commits() -> None:
    found = coverage(await leaf([3, 4, 5], [], counts=(2, 1)))
    assert [finding.what for finding in found] == [
        "the part has 3 rows, and the commit counts 2",
        "the errors object has 0 rows, and the commit counts 1",
    ]


# --- one ahead -----------------------------------------------------------------------------------------------------------------------


async def test_the_next_one_is_begun_before_this_one_is_handed_out() -> None:
    begun: list[int] = []

    async def work(item: int) -> int:
        begun.append(item)
        await asyncio.sleep(0)
        return item * 10

    seen: list[tuple[int, int]] = []
    async for made in ahead(range(4), work):
        await asyncio.sleep(0)  # whoever uses a shard waits for something, and meanwhile the next one is loaded
        seen.append((made, len(begun)))
    assert [made for made, _ in seen] == [0, 10, 20, 30]
    assert [count for _, count in seen] == [2, 3, 4, 4]


async def test_one_that_fails_ends_the_others() -> None:
    async def work(item: int) -> int:
        if item == 1:
            raise VerifyFailed("x")
        await asyncio.sleep(0 if item == 0 else 3600)
        return item

    with pytest.raises(VerifyFailed):
        async for _ in ahead(range(5), work):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}
