"""pipelines: the seal, what collect froze and everything reads through (PROTOCOL.md, Collect and verify). May touch contract.

The seal's object is named after the sha256 of its own bytes; `seal.json` points at one of them and is written by whoever comes first.
A second collector follows the first one's seal, so that on a conditional store all outputs of a run agree.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from contract.errors import ContractError, InfrastructureError, NotAsWanted, NotFound, PlanMismatch, VerifyFailed
from contract.keys import RunKeys
from contract.models import Commit, ObjectRef, Plan, Seal, SealedNode, SealPointer, decode, encode
from contract.store import Store, get_or_none, put_first
from contract.tree import Tree, read_commits, read_tree

NAMED: Final = 10
"""So many shards or objects are named in a message."""
AT_ONCE: Final = 16
LOOKED_AT_AGAIN: Final = 100


@dataclass(frozen=True)
class Sealed:
    """A seal with its name. `digest`: sha256 of the seal object's bytes."""

    digest: str
    seal: Seal


async def freeze(store: Store, keys: RunKeys, plan: Plan) -> Sealed:
    """Seal the run, or follow the seal that is there.

    Raises NotAsWanted while nodes are open, VerifyFailed when an object that a commit names is not there: a seal never names such a one.
    """
    if (standing := await read_seal(store, keys, plan)) is not None:
        return standing
    tree = await _settled_tree(store, keys, plan)
    if tree.open:
        raise still_open(plan, tree)
    seal = seal_of(plan, tree)
    await confirm(store, keys, seal)
    data = encode(seal)
    digest = hashlib.sha256(data).hexdigest()
    # Equal commits give equal bytes, so two collectors may both find their own seal written.
    await put_first(store, keys.seal_object(digest), data)
    await put_first(store, keys.seal(), encode(SealPointer(plan=plan.plan_id, seal=digest, at=store.now())))
    if (standing := await read_seal(store, keys, plan)) is None:
        raise InfrastructureError(
            "the seal was written and is not there.", where=f"s3://{store.bucket}/{keys.seal()}", fix="Run collect again."
        )
    return standing


async def _settled_tree(store: Store, keys: RunKeys, plan: Plan) -> Tree:
    """The tree of commits. A listing may lag behind a commit: before a run is called incomplete, a few open nodes are asked for by name."""
    known: dict[str, Commit] = {}
    while True:
        tree = await read_tree(store, keys, plan, known)
        unseen = [leaf.shard for leaf in tree.open if leaf.shard not in known]
        if not 0 < len(unseen) <= LOOKED_AT_AGAIN:
            return tree
        if not (late := await read_commits(store, keys, unseen)):
            return tree
        known.update(late)


async def read_seal(store: Store, keys: RunKeys, plan: Plan) -> Sealed | None:
    """The run's seal, None where there is none yet. Raises VerifyFailed when it is damaged or of another plan."""
    where = f"s3://{store.bucket}/{keys.seal()}"
    blob = await get_or_none(store, keys.seal())
    if blob is None:
        return None
    try:
        pointer: SealPointer = decode(blob.data, SealPointer, where=where)
        if pointer.plan != plan.plan_id:
            raise PlanMismatch(f"the seal is of plan {pointer.plan[:8]}, and the run's plan is {plan.plan_id[:8]}.", where=where)
        where = f"s3://{store.bucket}/{keys.seal_object(pointer.seal)}"
        data = (await store.get(keys.seal_object(pointer.seal))).data
        if hashlib.sha256(data).hexdigest() != pointer.seal:
            raise VerifyFailed("the seal's bytes are not the ones that it is named after.", where=where)
        seal: Seal = decode(data, Seal, where=where)
        if problems := seal_problems(plan, seal):
            raise VerifyFailed(f"the seal does not fit the plan: {problems[0]}.", where=where, findings=problems)
    except ContractError as error:
        raise VerifyFailed(error.what, where=error.where) from None
    except NotFound:
        raise VerifyFailed("the seal that seal.json names is gone.", where=where) from None
    return Sealed(pointer.seal, seal)


def seal_of(plan: Plan, tree: Tree) -> Seal:
    """The seal over the tree's closed leaves; of an open tree it covers what there is."""
    nodes = tuple(SealedNode(shard=leaf.shard, source=leaf.source, commit=leaf.commit) for leaf in tree.leaves if leaf.commit is not None)
    return Seal(plan=plan.plan_id, rows=plan.dataset.rows, nodes=nodes)


def seal_problems(plan: Plan, seal: Seal, *, whole: bool = True) -> list[str]:
    """What keeps a seal from being one of this plan: leaves must partition 0..N-1 inside the plan's shards, each with its own commit."""
    found: list[str] = []
    if seal.plan != plan.plan_id:
        found.append(f"it carries plan {seal.plan[:8]}, not {plan.plan_id[:8]}")
    if seal.rows != plan.dataset.rows:
        found.append(f"it counts {seal.rows} rows, and the plan {plan.dataset.rows}")
    tops = {shard.shard: shard.source for shard in plan.shards}
    at = 0
    for node in seal.nodes:
        start, stop = node.source.rows
        if start < at or (whole and start != at):
            found.append(
                f"rows [{min(at, start)}, {max(at, start)}) before shard {node.shard} are {'missing' if start > at else 'doubled'}"
            )
        at = stop
        top = tops.get(node.shard.partition(".")[0])
        if top is None or not top.rows[0] <= start < stop <= top.rows[1] or (node.shard in tops and node.source != top):
            found.append(f"shard {node.shard} does not have the rows that the plan gives it")
        if node.source.count != stop - start:
            found.append(f"shard {node.shard} counts {node.source.count} rows for [{start}, {stop})")
        found.extend(f"the commit of shard {node.shard} {problem}" for problem in commit_problems(plan, node))
    if whole and at != plan.dataset.rows:
        found.append(f"rows from {at} on are missing")
    return found


def commit_problems(plan: Plan, node: SealedNode) -> list[str]:
    """What keeps a commit from being its leaf's, as far as the commit alone shows."""
    commit, found = node.commit, []
    if commit.plan != plan.plan_id:
        found.append(f"carries plan {commit.plan[:8]}, not {plan.plan_id[:8]}")
    if commit.shard != node.shard:
        found.append(f"is that of shard {commit.shard}")
    if commit.ok + commit.failed != node.source.count:
        found.append(f"counts {commit.ok} ok and {commit.failed} failed of {node.source.count} rows")
    if commit.input_digest != node.source.digest:
        found.append("was made from other input rows than the plan's")
    if (commit.part is None) != (commit.ok == 0) or (commit.errors is None) != (commit.failed == 0):
        found.append("names a part or an errors object without rows, or none where there are rows")
    return found


def still_open(plan: Plan, tree: Tree) -> NotAsWanted:
    """The refusal to collect a run that is not complete."""
    rows = sum(leaf.source.count for leaf in tree.open)
    foreign = f" Commits of another plan are ignored: {named(tree.foreign)}." if tree.foreign else ""
    return NotAsWanted(
        f"{len(tree.open)} of {len(tree.leaves)} shards are still open ({named(leaf.shard for leaf in tree.open)}): "
        f"{rows} of {plan.dataset.rows} rows are missing.{foreign}",
        where=plan.run,
        fix=f"Finish it with `nightbatch resume {plan.run_id}`, or take what there is with `nightbatch collect {plan.run_id} --partial`.",
    )


async def confirm(store: Store, keys: RunKeys, seal: Seal) -> None:
    """Every object that the seal names is there with the size that it states. Raises VerifyFailed naming those that are not.

    One listing tells most of them in a few requests; whatever it lacks or shows differently is asked for by itself, since a listing lags.
    """
    refs = [ref for node in seal.nodes for ref in (node.commit.part, node.commit.errors) if ref is not None]
    listed: dict[str, int] = {}
    for folder in ("parts", "errors"):
        async for head in store.list(f"{keys.root}/{folder}/"):
            listed[head.key] = head.size
    gate = asyncio.Semaphore(AT_ONCE)

    async def gone(ref: ObjectRef) -> str | None:
        async with gate:
            head = await store.head(ref.key)
        if head is None:
            return f"{ref.key} is gone"
        return None if head.size == ref.size else f"{ref.key} has {head.size} bytes, and its commit says {ref.size}"

    problems = await asyncio.gather(*(gone(ref) for ref in refs if listed.get(ref.key) != ref.size))
    if found := [problem for problem in problems if problem]:
        raise VerifyFailed(
            f"{len(found)} objects that commits name are not as they should be: {named(found)}.",
            findings=found,
            where=f"s3://{store.bucket}/{keys.root}",
            fix="Those shards have to be computed again.",
        )


def named(names: Iterable[str]) -> str:
    """The first few of them, and how many more there are."""
    every: Sequence[str] = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more
