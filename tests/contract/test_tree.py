"""tests of contract.tree: leaves that partition the rows whatever was split, and splits that are believed only when they do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ContractError, Damaged, StoreUnavailable
from contract.keys import child_names
from contract.memory import MemoryStore
from contract.models import Child, Commit, PartCommit, Plan, Source, SplitCommit, encode
from contract.tree import build_tree, read_commits, read_tree
from tests.pipelines.runs import AT, make_run

HEX = "ab" * 32


def source(start: int, stop: int) -> Source:
    return Source(uri="s3://b/k", rows=(start, stop), count=stop - start, digest=HEX)


def part(shard: str, rows: int, *, plan: str = HEX) -> PartCommit:
    return PartCommit(
        plan=plan, shard=shard, execution="0" * 16, attempt=1, part=None, errors=None, ok=0, failed=rows, tokens_in=0, tokens_out=0,
        input_digest=HEX, digest=HEX, at=AT,
    )  # fmt: skip


def split(shard: str, *ranges: tuple[int, int], names: tuple[str, ...] = ()) -> SplitCommit:
    names = names or child_names(shard, len(ranges))
    return SplitCommit(
        plan=HEX, shard=shard, children=tuple(Child(shard=n, source=source(*r)) for n, r in zip(names, ranges, strict=True)), at=AT
    )


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, dict[str, Commit], list[tuple[str, int, int, bool]]]:
    """Rows, commits, and the leaves that they make: name, start, stop, closed."""
    edges = sorted(draw(st.sets(st.integers(1, 19), max_size=3)) | {0, 20})
    commits: dict[str, Commit] = {}
    leaves: list[tuple[str, int, int, bool]] = []

    def grow(shard: str, start: int, stop: int, depth: int) -> None:
        what = draw(st.sampled_from(["open", "part", "split"]))
        if what == "split" and stop - start > 1 and depth < 4:
            cuts = sorted(draw(st.sets(st.integers(start + 1, stop - 1), min_size=1, max_size=3)))
            ranges = list(zip([start, *cuts], [*cuts, stop], strict=True))
            commits[shard] = split(shard, *ranges)
            for number, (a, b) in enumerate(ranges):
                grow(f"{shard}.{number}", a, b, depth + 1)
            return
        if what == "part":
            commits[shard] = part(shard, stop - start)
        leaves.append((shard, start, stop, what == "part"))

    for number, (start, stop) in enumerate(pairwise(edges)):
        grow(f"{number:05d}", start, stop, 0)
    return len(edges) - 1, commits, leaves


def plan_with(ranges: list[tuple[int, int]]) -> Plan:
    made = asyncio.run(make_run(outcomes=[True] * ranges[-1][1], cuts=[stop for _, stop in ranges[:-1]])).plan
    shards = tuple(msgspec.structs.replace(s, source=source(*r)) for s, r in zip(made.shards, ranges, strict=True))
    return msgspec.structs.replace(made, shards=shards, plan_id=HEX)


@given(trees())
def test_the_leaves_of_any_tree_partition_the_rows(drawn: tuple[int, Mapping[str, Commit], list[tuple[str, int, int, bool]]]) -> None:
    _, commits, wanted = drawn
    ranges: dict[str, list[int]] = {}
    for name, start, stop, _ in wanted:
        ranges.setdefault(name.partition(".")[0], []).extend((start, stop))
    tree = build_tree(plan_with([(min(r), max(r)) for _, r in sorted(ranges.items())]), commits)
    assert [(leaf.shard, *leaf.source.rows, leaf.commit is not None) for leaf in tree.leaves] == wanted
    assert len(tree.open) + len(tree.closed) == len(tree.leaves)
    at = 0
    for leaf in tree.leaves:
        assert leaf.source.rows[0] == at
        at = leaf.source.rows[1]
    assert at == 20


ONE = [(0, 4)]


@pytest.mark.parametrize(
    "bad",
    [
        split("00000", (0, 2), (3, 4)),
        split("00000", (0, 2), (1, 4)),
        split("00000", (0, 2), (2, 3)),
        split("00000", (0, 2), (2, 5)),
        split("00000", (1, 2), (2, 4)),
        split("00000", (0, 2), (2, 2), (2, 4)),
        split("00000", (0, 2), (2, 4), names=("00000.1", "00000.0")),
        split("00000", (0, 2), (2, 4), names=("00000.0", "00001.1")),
        split("00000", (0, 2), (2, 4), names=("00000.0", "00000.0")),
    ],
)
def test_a_split_that_does_not_partition_its_parent_is_refused_by_name(bad: SplitCommit) -> None:
    with pytest.raises(ContractError, match=r"commits/00000\.json"):
        build_tree(plan_with(ONE), {"00000": bad})


def test_a_child_that_counts_other_rows_than_it_spans_is_refused() -> None:
    good = split("00000", (0, 2), (2, 4))
    bad = Child(shard="00000.0", source=msgspec.structs.replace(good.children[0].source, count=1))
    with pytest.raises(ContractError):
        build_tree(plan_with(ONE), {"00000": msgspec.structs.replace(good, children=(bad, good.children[1]))})


def test_commits_of_another_plan_or_shard_are_named_and_ignored() -> None:
    plan = plan_with([(0, 4), (4, 8)])
    tree = build_tree(plan, {"00000": part("00000", 4, plan="cd" * 32), "00001": part("00000", 4)})
    assert tree.foreign == ("00000", "00001")
    assert [leaf.shard for leaf in tree.open] == ["00000", "00001"]


def test_a_commit_below_a_node_that_was_not_split_is_not_looked_at() -> None:
    tree = build_tree(plan_with(ONE), {"00000": part("00000", 4), "00000.0": part("00000.0", 2)})
    assert [leaf.shard for leaf in tree.leaves] == ["00000"]


async def test_a_tree_is_read_in_one_listing_and_one_read_a_commit() -> None:
    run = await make_run(splits=(1,), leave_open=(2,))
    asked: list[tuple[str, str]] = []

    async def note(op: str, key: str) -> None:
        asked.append((op, key.removeprefix(run.keys.root)))

    tree = await read_tree(MemoryStore(run.store.objects, hook=note), run.keys, run.plan)
    assert [leaf.shard for leaf in tree.leaves] == ["00000", "00001.0", "00001.1", "00002"]
    assert [leaf.shard for leaf in tree.open] == ["00002"]
    assert sorted(asked) == [
        ("get", "/commits/00000.json"),
        ("get", "/commits/00001.0.json"),
        ("get", "/commits/00001.1.json"),
        ("get", "/commits/00001.json"),
        ("list", "/commits/"),
    ]


async def test_commits_that_are_known_are_not_read_again_even_when_the_listing_lags() -> None:
    run = await make_run()

    class Lagging(MemoryStore):
        async def list(self, prefix: str) -> Any:
            async for head in super().list(prefix):
                if "00001" not in head.key:
                    yield head

    async def fail(op: str, key: str) -> None:
        if op == "get":
            raise AssertionError(key)

    lagging = await read_tree(Lagging(run.store.objects), run.keys, run.plan)
    assert [leaf.shard for leaf in lagging.open] == ["00001"]
    tree = await read_tree(Lagging(run.store.objects, hook=fail), run.keys, run.plan, known=run.commits)
    assert tree.open == ()


async def test_a_commit_that_is_not_there_is_left_out_and_a_store_that_is_away_is_said() -> None:
    run = await make_run(leave_open=(1,))
    found = await read_commits(run.store, run.keys, ["00000", "00001"])
    assert found == {"00000": run.commits["00000"]}

    async def away(op: str, key: str) -> None:
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        await read_commits(MemoryStore(run.store.objects, hook=away), run.keys, ["00000"])


async def test_a_damaged_commit_names_its_object() -> None:
    run = await make_run()
    await run.store.put(run.keys.commit("00001"), encode(run.commits["00001"])[:-1])
    with pytest.raises(Damaged, match=r"commits/00001\.json"):
        await read_tree(run.store, run.keys, run.plan)


async def test_an_object_that_is_no_nodes_commit_stops_nobody() -> None:
    run = await make_run()
    for name in ("99999.json", "99999.0.json", "notes.txt", "x.json"):
        await run.store.put(run.keys.commits_prefix() + name, b"garbage")
    assert not (await read_tree(run.store, run.keys, run.plan)).open
