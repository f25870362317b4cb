"""contract: the nodes of a run, from the shards that the plan cut to the leaves that hold its rows. Pure but for `read_tree`.

A node is open until its commit is there: a part closes it, a split hands its rows to its children. Readers walk from the top, one record
a node, and believe a split only when its children partition their parent's rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contract.errors import ContractError
from contract.keys import RunKeys
from contract.models import Commit, PartCommit, Plan, Source, SplitCommit, decode_stored
from contract.store import Store, get_or_none


@dataclass(frozen=True)
class Leaf:
    """A node that holds rows. `commit` is None while it is open."""

    shard: str
    source: Source
    commit: PartCommit | None


@dataclass(frozen=True)
class Tree:
    """Leaves in row order; together they cover every row of the plan. `foreign`: commits that carry another plan id, ignored."""

    leaves: tuple[Leaf, ...]
    foreign: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.commit is None)

    @property
    def closed(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.commit is not None)


def build_tree(plan: Plan, commits: Mapping[str, Commit]) -> Tree:
    """The tree that these commits make of the plan's shards. Raises ContractError where a split does not partition its parent."""
    leaves: list[Leaf] = []
    foreign: list[str] = []
    stack = [(s.shard, s.source) for s in reversed(plan.shards)]
    while stack:
        shard, source = stack.pop()
        commit = commits.get(shard)
        if commit is not None and (commit.plan != plan.plan_id or commit.shard != shard):
            foreign.append(shard)
            commit = None
        if isinstance(commit, SplitCommit):
            check_split(shard, source, commit)
            stack.extend((c.shard, c.source) for c in reversed(commit.children))
        else:
            leaves.append(Leaf(shard, source, commit))
    return Tree(tuple(leaves), tuple(foreign))


def check_split(shard: str, source: Source, split: SplitCommit) -> None:
    """Children are named after their parent, follow each other, and cover exactly its rows."""
    at = source.rows[0]
    for number, child in enumerate(split.children):
        start, stop = child.source.rows
        if child.shard != f"{shard}.{number}" or start != at or stop <= start or child.source.count != stop - start:
            raise ContractError(f"child {child.shard} does not follow its parent's rows.", where=f"commits/{shard}.json")
        at = stop
    if at != source.rows[1]:
        raise ContractError("the children do not cover their parent's rows.", where=f"commits/{shard}.json")


async def read_commits(store: Store, keys: RunKeys, shards: Iterable[str], *, at_once: int = 16) -> dict[str, Commit]:
    """The commits of these nodes that are there. Absent ones are left out."""
    gate = asyncio.Semaphore(at_once)

    async def one(shard: str) -> tuple[str, Commit] | None:
        async with gate:
            blob = await get_or_none(store, keys.commit(shard))
        return None if blob is None else (shard, decode_stored(blob.data, Commit, where=keys.commit(shard)))

    found = await asyncio.gather(*(one(shard) for shard in shards))
    return dict(item for item in found if item is not None)


async def list_commits(store: Store, keys: RunKeys, plan: Plan) -> list[str]:
    """The nodes that have a commit, in key order. What lies there under any other name is nobody's commit, and is left alone."""
    prefix = keys.commits_prefix()
    planned = {shard.shard for shard in plan.shards}
    names = [head.key[len(prefix) : -len(".json")] async for head in store.list(prefix) if head.key.endswith(".json")]
    return [name for name in names if name.split(".")[0] in planned]


async def read_tree(store: Store, keys: RunKeys, plan: Plan, known: Mapping[str, Commit] | None = None) -> Tree:
    """Walk the commits from the top; `known` ones, which never change but by repair, are not read again.

    One listing of commits/ tells which exist, so that a run with many open shards costs no request for each of them. A listing may lag
    behind a write: a node that it misses is open for one more look.
    """
    commits: dict[str, Commit] = dict(known or {})
    listed = await list_commits(store, keys, plan)
    commits.update(await read_commits(store, keys, [shard for shard in listed if shard not in commits]))
    return build_tree(plan, commits)
