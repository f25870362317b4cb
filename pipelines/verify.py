"""pipelines: verify, from storage alone: is every row of the dataset answered exactly once, and is the output what was answered?

May touch contract, the store and files. It writes nothing. It judges by the seal (PROTOCOL.md, Collect and verify), reads every object that
the seal names, computes every digest again, and reads the output file beside what storage says it should be. What it cannot prove it says.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from contract.errors import ContractError, NightbatchError, NotFound, PlanMismatch, VerifyFailed
from contract.keys import RunKeys, shard_name
from contract.lines import read_lines
from contract.models import Commit, PartCommit, Plan, SealedNode, SplitCommit, decode
from contract.rows import InputDigest, row_digest
from contract.store import Store
from contract.tree import build_tree
from pipelines.collect import OpenStore, Progress
from pipelines.compare import OutputCheck
from pipelines.findings import Finding, Notes
from pipelines.outputs import s3_key
from pipelines.parts import EmbedRows, LeafRows, Leaves, OneThread, ahead, coverage, digests, read_skipped
from pipelines.plan import plan_id_of
from pipelines.preflight import SkippedLine
from pipelines.scratch import scratch_folder
from pipelines.seal import Sealed, read_seal, seal_of, seal_problems

READ_AT_ONCE: Final = 16

MODEL_UNPROVEN: Final = (
    "that the model answered well, or would answer the same again: each row has the stored answer of one execution, no more"
)


@dataclass(frozen=True)
class VerifyReport:
    """What verify found. `findings`: at most MAX_FINDINGS of `total`; `proven` and `not_proven` are clauses that follow "that"-less
    headings; `seal`: None where the run is not sealed yet and was judged by its commits."""

    run: str
    plan: str
    seal: str | None
    rows: int
    ok: int
    failed: int
    shards: int
    output: str | None
    findings: tuple[Finding, ...]
    total: int
    proven: tuple[str, ...]
    not_proven: tuple[str, ...]
    seconds: float
    images: str | None = None
    """One clause, where not all shards were computed by the planned image."""

    @property
    def clean(self) -> bool:
        return self.total == 0

    def failure(self) -> VerifyFailed | None:
        """The exception that the findings deserve, None where there are none."""
        if self.clean:
            return None
        return VerifyFailed(
            f"{'1 thing is' if self.total == 1 else f'{self.total} things are'} not as {'it' if self.total == 1 else 'they'} should be; "
            f"the first: {self.findings[0]}.",
            findings=[str(finding) for finding in self.findings],
            where=self.run,
        )

    def lines(self) -> list[str]:
        """The report as text."""
        head = f"{self.rows} rows: {self.ok} ok, {self.failed} failed, in {self.shards} shard{'s' if self.shards != 1 else ''}" + (
            f", seal {self.seal[:12]}" if self.seal else ", not sealed"
        )
        found = [f"  WRONG: {finding}" for finding in self.findings]
        if self.total > len(self.findings):
            found.append(f"  and {self.total - len(self.findings)} more")
        return [head, *found, *(f"  proven: {line}" for line in self.proven), *(f"  not proven: {line}" for line in self.not_proven)]


async def verify(
    store: Store,
    keys: RunKeys,
    plan: Plan,
    out: str | None = None,
    *,
    inputs: bool = False,
    open_store: OpenStore | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Judge the run, and the output `out` where one is named. `inputs`: read the input rows again too.

    Findings are results, not exceptions: it raises only where it cannot judge at all (StoreError, UsageError).
    """
    began = time.monotonic()
    notes = Notes()
    notes.extend(Finding(problem, where=f"{plan.run}/plan.json") for problem in plan_problems(plan))
    commits = await _read_commits(store, keys, notes)
    sealed, nodes = await _what_is_judged(store, keys, plan, commits, notes)
    _check_commits(plan, store, keys, commits, nodes, sealed, notes)
    with scratch_folder() as scratch:
        output = None if out is None else await OutputCheck.open(store, plan, out, sealed, nodes, scratch, open_store, notes)
        skipped = await _skipped(store, plan, scratch, notes)
        judge = _Judge(plan, notes, output)
        again = _Inputs(store, plan, open_store) if inputs else None
        thread = OneThread()
        leaves = Leaves(store, plan, scratch, thread, with_columns=output is not None and output.needs_columns)

        async def load(node: SealedNode) -> tuple[SealedNode, LeafRows | NightbatchError, Sequence[tuple[bytes, str]] | None]:
            try:
                rows: LeafRows | NightbatchError = await leaves.load(node)
            except VerifyFailed as error:
                rows = error
            return node, rows, None if again is None else await again.of(node, notes)

        done = 0
        try:
            async with aclosing(ahead(nodes, load)) as each:
                async for node, rows, input_rows in each:
                    await thread.run(partial(judge.leaf, node, rows, input_rows))
                    done += node.source.count
                    if progress is not None:
                        progress(done, plan.dataset.rows)
                    del rows  # one shard less in memory while the next one is waited for
            await thread.run(partial(judge.end, skipped))
        finally:
            await leaves.close()
            thread.close()
            if output is not None:
                output.close()
    images = other_images(plan, commits)
    proven, not_proven = _sentences(plan, store, sealed, judge, output, inputs, notes, images)
    return VerifyReport(
        run=plan.run,
        plan=plan.plan_id,
        seal=sealed.digest if sealed else None,
        rows=plan.dataset.rows,
        ok=judge.ok,
        failed=judge.failed,
        shards=len(nodes),
        output=out,
        findings=tuple(notes.findings),
        total=notes.total,
        proven=proven,
        not_proven=not_proven,
        seconds=time.monotonic() - began,
        images=images,
    )


# --- plan, seal and commits --------------------------------------------------------------------------------------------------------------


def plan_problems(plan: Plan) -> list[str]:
    """What shows, from the plan alone, that it is not the one that its id names: shards that do not partition the rows, another id."""
    found: list[str] = []
    at = 0
    for number, shard in enumerate(plan.shards):
        start, stop = shard.source.rows
        if shard.shard != shard_name(number) or start != at or stop <= start or shard.source.count != stop - start:
            found.append(f"shard {shard.shard} does not follow the one before it")
        at = stop
    if at != plan.dataset.rows:
        found.append(f"the shards have {at} rows, and the dataset {plan.dataset.rows}")
    boundaries = [shard.source.rows for shard in plan.shards]
    if plan_id_of(plan.dataset.digest, plan.task, boundaries, plan.store.mode) != plan.plan_id:
        found.append("the plan id is not that of what the plan says: rows, task, model, boundaries or the store's mode changed")
    return found


def other_images(plan: Plan, commits: Mapping[str, Commit]) -> str | None:
    """Which images computed what the planned one should have: jobs that were out when a stack's image changed are computed by the new
    one, although the run pauses. None where there is nothing to say."""
    if plan.infra.image is None:
        return None
    parts = [commit for commit in commits.values() if isinstance(commit, PartCommit)]
    others = Counter(commit.image for commit in parts if commit.image not in (None, plan.infra.image))
    if not others:
        return None
    said = ", ".join(f"{count} by {image}" for image, count in sorted(others.items(), key=lambda item: str(item[0])))
    return f"of {len(parts)} shards {said}, where the plan has {plan.infra.image}"


async def _read_commits(store: Store, keys: RunKeys, notes: Notes) -> dict[str, Commit]:
    """Every commit that is there, by the shard that its key names; those that cannot be read are findings."""
    prefix = keys.commits_prefix()
    names = [head.key async for head in store.list(prefix)]
    gate = asyncio.Semaphore(READ_AT_ONCE)

    async def one(key: str) -> tuple[str, Commit] | None:
        try:
            async with gate:
                blob = await store.get(key)
            return key[len(prefix) :].removesuffix(".json"), decode(blob.data, Commit, where=key)
        except (ContractError, NotFound) as error:
            notes.error(error)
            return None

    found = await asyncio.gather(*(one(key) for key in names))
    return dict(item for item in found if item is not None)


async def _what_is_judged(
    store: Store, keys: RunKeys, plan: Plan, commits: Mapping[str, Commit], notes: Notes
) -> tuple[Sealed | None, Sequence[SealedNode]]:
    try:
        sealed = await read_seal(store, keys, plan)
    except (VerifyFailed, PlanMismatch) as error:
        notes.error(error)
        notes.extend(Finding(problem) for problem in getattr(error, "findings", ())[1:])
        sealed = None
    if sealed is not None:
        return sealed, sealed.seal.nodes
    try:
        tree = build_tree(plan, commits)
    except ContractError as error:
        notes.error(error)
        return None, ()
    for leaf in tree.open:
        start, stop = leaf.source.rows
        notes.add(f"no commit: rows [{start}, {stop}) have no result", shard=leaf.shard)
    seal = seal_of(plan, tree)
    notes.extend(Finding(problem) for problem in seal_problems(plan, seal, whole=False))
    return None, seal.nodes


def _check_commits(
    plan: Plan,
    store: Store,
    keys: RunKeys,
    commits: Mapping[str, Commit],
    nodes: Sequence[SealedNode],
    sealed: Sealed | None,
    notes: Notes,
) -> None:
    """Commits of another plan or of no shard, and commits that are no longer what was sealed."""
    sealed_leaves = {node.shard: node.source for node in nodes}
    known = {shard.shard for shard in plan.shards}
    waiting = sorted(known)
    while waiting:
        shard = waiting.pop()
        commit = commits.get(shard)
        if isinstance(commit, SplitCommit) and commit.plan == plan.plan_id and commit.shard == shard:
            fresh = {child.shard for child in commit.children} - known  # a damaged split may name itself
            known |= fresh
            waiting.extend(sorted(fresh))
    for shard, found in sorted(commits.items()):
        where = f"s3://{store.bucket}/{keys.commit(shard)}"
        if found.plan != plan.plan_id:
            notes.add(f"the commit carries plan {found.plan[:8]}, and the run's is {plan.plan_id[:8]}", shard=shard, where=where)
        elif found.shard != shard:
            notes.add(f"the commit is that of shard {found.shard}", shard=shard, where=where)
        elif shard not in known:
            notes.add("the commit is of no shard of the plan", shard=shard, where=where)
    if sealed is None or plan.store.mode != "conditional":
        return  # without conditional writes a commit may be replaced, and the seal is what makes that harmless
    try:
        leaves = [(leaf.shard, leaf.source) for leaf in build_tree(plan, commits).leaves]
        for shard, source in leaves:
            if sealed_leaves.get(shard) != source:
                notes.add("the commits no longer make the shards that were sealed", shard=shard)
    except ContractError as error:
        notes.error(error)
    for node in nodes:
        now = commits.get(node.shard)
        where = f"s3://{store.bucket}/{keys.commit(node.shard)}"
        if now is None:
            notes.add("the commit that was sealed cannot be read any more", shard=node.shard, where=where)
        elif now != node.commit and now.plan == plan.plan_id:
            notes.add("the commit is no longer the one that was sealed", shard=node.shard, where=where)


async def _skipped(store: Store, plan: Plan, scratch: Path, notes: Notes) -> Sequence[SkippedLine] | None:
    try:
        found = await read_skipped(store, plan, scratch)
    except VerifyFailed as error:
        notes.error(error)
        return None
    if len(found) != plan.dataset.skipped:
        notes.add(f"{len(found)} skipped rows are recorded, and the plan counts {plan.dataset.skipped}")
    return found


# --- leaves --------------------------------------------------------------------------------------------------------------------------


class _Judge:
    """Judges one leaf after the other; holds of each row only what the whole needs: its digest's effect and a hash of its id."""

    def __init__(self, plan: Plan, notes: Notes, output: OutputCheck | None) -> None:
        self._plan, self._notes, self._output = plan, notes, output
        self._dataset = InputDigest()
        self._id_hashes = bytearray()
        self.ok = self.failed = 0
        self.unread = 0
        self.whole = True

    def leaf(self, node: SealedNode, rows: LeafRows | NightbatchError, inputs: Sequence[tuple[bytes, str]] | None) -> None:
        notes, commit, shard = self._notes, node.commit, node.shard
        if isinstance(rows, NightbatchError):
            notes.error(rows, shard=shard)
            self.unread += 1
            self.whole = False
            if self._output is not None:
                self._output.skip(node)
            return
        notes.extend(coverage(rows))
        if isinstance(rows.ok, EmbedRows) and rows.ok.table is not None:
            for offset in np.flatnonzero(~np.isfinite(rows.ok.vectors()).all(axis=1))[:100]:
                notes.add("the vector has a number that is not finite", shard=shard, index=int(rows.ok.indices[offset]))
        again = digests(rows)
        if again.input != node.source.digest:
            notes.add("the rows' digests are not the plan's: a row is missing, doubled, swapped or altered", shard=shard)
        if again.shard != commit.digest:
            notes.add("the shard digest is not the commit's: an output, outcome or row was altered", shard=shard)
        for _, digest, ident in again.rows:
            self._dataset.add(digest)
            self._id_hashes += hashlib.blake2b(ident.encode(), digest_size=16).digest()
        if inputs is not None:
            self._compare_inputs(node, again.rows, inputs)
        self.ok += len(rows.ok.indices)
        self.failed += len(rows.failed)
        if self._output is not None:
            self._output.leaf(rows)

    def _compare_inputs(self, node: SealedNode, stored: Sequence[tuple[int, bytes, str]], inputs: Sequence[tuple[bytes, str]]) -> None:
        start, stop = node.source.rows
        if len(inputs) != stop - start:
            self._notes.add(f"the input has {len(inputs)} rows where the plan has {stop - start}", shard=node.shard)
            return
        for index, digest, ident in stored:
            if start <= index < stop and (digest, ident) != inputs[index - start]:
                self._notes.add(f"the row is not the input's row '{inputs[index - start][1]}'", shard=node.shard, index=index)

    def end(self, skipped: Sequence[SkippedLine] | None) -> None:
        rows = self._plan.dataset.rows
        if self.whole and self._dataset.count != rows:
            self._notes.add(f"{self._dataset.count} rows are stored, and the plan has {rows}")
        elif self.whole and self._dataset.hexdigest() != self._plan.dataset.digest:
            self._notes.add("the rows' digests do not make the dataset's digest")
        for ident_at in _doubled(self._id_hashes):
            self._notes.add("the row has the id of another row", index=ident_at if self.whole else None)
        if self._output is not None:
            self._output.end(skipped)


def _doubled(hashes: bytearray) -> list[int]:
    """Positions of 16-byte values that stood before, at most 100."""
    halves = np.frombuffer(hashes, dtype="<u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    ordered = halves[order]
    same = np.flatnonzero((ordered[1:] == ordered[:-1]).all(axis=1))
    return sorted(int(order[at + 1]) for at in same[:100])


@dataclass
class _Inputs:
    """Reads the input rows again, a shard that the plan cut at a time."""

    store: Store
    plan: Plan
    open_store: OpenStore | None

    def __post_init__(self) -> None:
        self._tops = {shard.shard: shard for shard in self.plan.shards}
        self._held: dict[str, asyncio.Future[list[tuple[bytes, str]]]] = {}

    async def of(self, node: SealedNode, notes: Notes) -> Sequence[tuple[bytes, str]] | None:
        """Digest and id of each input row of this leaf; None, with a finding, where they cannot be read."""
        top = self._tops[node.shard.partition(".")[0]]
        if top.shard not in self._held:
            while len(self._held) > 1:
                self._held.pop(next(iter(self._held)))
            self._held[top.shard] = asyncio.ensure_future(self._read(top.source.uri, top.source.bytes, top.source.rows[0]))
        try:
            rows = await self._held[top.shard]
        except (ContractError, NotFound, VerifyFailed) as error:
            notes.error(error, shard=node.shard)
            return None
        start, stop = node.source.rows
        return rows[start - top.source.rows[0] : stop - top.source.rows[0]]

    async def _read(self, uri: str, span: tuple[int, int] | None, first: int) -> list[tuple[bytes, str]]:
        bucket, key = s3_key(uri)
        store = self.store
        if bucket != store.bucket:
            if self.open_store is None:
                raise VerifyFailed("the input lies in another bucket and cannot be read.", where=uri)
            store = self.open_store(bucket)
        chunks = store.read(key, *span) if span is not None else store.read(key)
        found: list[tuple[bytes, str]] = []
        async for line in read_lines(chunks, where=uri, compressed=key.endswith(".zst")):
            ident = _custom_id(line, uri)
            found.append((row_digest(first + len(found), ident, line), ident))
        return found


class _CustomId(msgspec.Struct, frozen=True):
    custom_id: str


def _custom_id(line: bytes, where: str) -> str:
    try:
        return msgspec.json.decode(line, type=_CustomId).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:  # half a surrogate pair in the body is a fault of that row alone, and no reason not to know its id
        ident = json.loads(line)["custom_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        ident = None
    if not isinstance(ident, str):
        raise ContractError("a line has no custom_id.", where=where)
    return ident


# --- what was proven -----------------------------------------------------------------------------------------------------------------


def _sentences(
    plan: Plan,
    store: Store,
    sealed: Sealed | None,
    judge: _Judge,
    output: OutputCheck | None,
    inputs: bool,
    notes: Notes,
    images: str | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    proven: list[str] = []
    unproven: list[str] = []
    clean = notes.total == 0
    if clean:
        proven.append(
            f"each of the {plan.dataset.rows} rows is in exactly one part or errors object, {judge.ok} ok and {judge.failed} failed"
        )
        proven.append("each stored object has the size and sha256 that its commit states, and each shard digest comes out the same again")
        proven.append("the rows' digests are the plan's, in the dataset's order, and no two rows share an id")
        if inputs:
            proven.append("the input rows, read again, are the rows that were planned and answered")
        if output is not None and output.compared:
            proven.append("the output and errors files hold what storage holds, row by row in input order, nothing more and nothing less")
            if output.provable:
                proven.append("the shard digests come out the same from the output and errors files alone")
    else:
        unproven.append(f"anything about what the {'finding touches' if notes.total == 1 else f'{notes.total} findings touch'}")
    if judge.unread:
        unproven.append(f"what is in {judge.unread} shard{'s' if judge.unread != 1 else ''} whose objects could not be read")
    if sealed is None:
        unproven.append("that the result stays as it is: the run is not sealed (collect seals it), so this was judged by its commits")
    if plan.store.mode == "last-writer":
        unproven.append(
            "that no other output of this run exists: its store has no conditional writes, so two collectors could have sealed twice"
        )
    if not inputs:
        unproven.append("that the input rows are still what was planned: they were not read again (--inputs reads them)")
    if output is None:
        unproven.append("anything about an output file: none was named")
    elif output.provable is False:
        unproven.append("the shard digests from the file alone: it holds float16, which was compared with the stored vectors instead")
    if images is not None:
        unproven.append(f"that the same row would have got the same answer in every shard: {images}")
    unproven.append(MODEL_UNPROVEN)
    return tuple(proven), tuple(unproven)
