"""pipelines: collect, from the committed parts of a run to output files in input order. May touch contract, the store and files.

It freezes the run first (`pipelines.seal`) and reads through the seal; each object's sha256 is checked before it is used. Leaves are read
one after the other, so that memory is bounded by the largest shard, whatever the run's size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial as partial_of
from pathlib import Path

import msgspec
import pyarrow as pa

from contract.errors import AccessDenied, ContractError, UsageError, VerifyFailed
from contract.keys import RunKeys
from contract.models import Plan, RowRange, decode, encode
from contract.rows import RowError
from contract.store import Store, get_or_none
from contract.tree import Tree, read_tree
from pipelines.outputs import (
    Dtype,
    Layout,
    LineWriter,
    LocalPlace,
    OutputFacts,
    OutputNames,
    Place,
    S3Place,
    TableWriter,
    check_dtype,
    check_folder,
    companion,
    draft_path,
    empty_table,
    error_line,
    file_facts,
    is_s3,
    layout_of,
    output_lines,
    output_names,
    s3_key,
    skipped_line,
    sweep,
    table_of,
)
from pipelines.parts import LeafRows, Leaves, OneThread, coverage, read_skipped, row_error
from pipelines.preflight import SkippedLine
from pipelines.scratch import scratch_folder
from pipelines.seal import freeze, seal_of, seal_problems

Progress = Callable[[int, int], None]
"""Called with rows done and rows in all, after each shard."""
OpenStore = Callable[[str], Store]
"""A store of another bucket, for an output that does not lie in the run's own."""


@dataclass(frozen=True)
class Failure:
    """Failed rows of one code, with one of them as an example."""

    code: str
    rows: int
    example_id: str
    example: str


@dataclass(frozen=True)
class Collected:
    """What collect wrote. `missing`: row indices [start, stop) that a partial output lacks; `failures`: most frequent first;
    `renamed`: original columns whose name a result column has."""

    names: OutputNames
    seal: str | None
    rows: int
    ok: int
    failed: int
    skipped: int
    missing: tuple[RowRange, ...]
    failures: tuple[Failure, ...]
    renamed: dict[str, str]
    seconds: float
    notices: tuple[str, ...] = ()
    """What stood there before, if another run's output was replaced."""

    @property
    def missing_rows(self) -> int:
        return sum(stop - start for start, stop in self.missing)


async def collect(
    store: Store,
    keys: RunKeys,
    plan: Plan,
    out: str | None = None,
    *,
    dtype: Dtype = "float32",
    partial: bool = False,
    open_store: OpenStore | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Write the run's rows to `out` (a path or s3://…, `.jsonl` or `.parquet`; by default the plan's), errors and seal file beside it.

    Raises NotAsWanted while shards are open (not with `partial`, which seals nothing), VerifyFailed when storage is not as the commits
    say, UsageError when `out` cannot be written. Nothing appears under a final name unless it is whole.
    """
    began = time.monotonic()
    names = output_names(out or default_out(plan), partial=partial)
    notices = await check_output(store, keys, plan, names, dtype=dtype, open_store=open_store)
    if partial:
        tree = await read_tree(store, keys, plan)
        seal, digest = seal_of(plan, tree), None
        missing = missing_rows(tree)
        if problems := seal_problems(plan, seal, whole=False):
            raise VerifyFailed(f"the commits do not fit the plan: {problems[0]}.", where=plan.run, findings=problems)
    else:
        sealed = await freeze(store, keys, plan)
        seal, digest, missing = sealed.seal, sealed.digest, ()
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        place = _place(names, store, open_store, scratch)
        skipped = await read_skipped(store, plan, scratch)
        thread = OneThread()
        writer = _Writer(plan, names, place.folder, dtype)
        stack.callback(writer.discard)
        stack.callback(thread.close)  # before the drafts that it may be writing are discarded
        done = 0
        leaves = Leaves(store, plan, scratch, thread, with_columns=names.format == "parquet")
        async with aclosing(leaves.read(seal.nodes)) as each:
            async for rows in each:
                if found := coverage(rows):
                    raise VerifyFailed(f"shard {rows.shard} is not whole: {found[0]}.", where=plan.run, findings=[str(f) for f in found])
                await thread.run(partial_of(writer.write, rows))
                done += rows.source.count
                if progress is not None:
                    progress(done, plan.dataset.rows)
                del rows  # one shard less in memory while the next one is waited for
        facts = OutputFacts(
            run=plan.run,
            plan=plan.plan_id,
            seal=digest,
            partial=partial,
            rows=plan.dataset.rows,
            ok=writer.ok,
            failed=writer.failed,
            skipped=len(skipped),
            missing=missing,
            dtype=dtype if plan.task.kind == "embed" else None,
        )
        facts = await thread.run(partial_of(writer.finish, facts, skipped))
        # The output itself comes last: where it stands, its companions stand too.
        await place.publish(writer.errors_draft, names.errors)
        await place.publish(writer.seal_draft, names.seal)
        await place.publish(writer.out_draft, names.out)
    return Collected(
        names=names,
        seal=digest,
        rows=plan.dataset.rows,
        ok=writer.ok,
        failed=writer.failed,
        skipped=len(skipped),
        missing=missing,
        failures=writer.failures(),
        renamed=facts.renamed,
        seconds=time.monotonic() - began,
        notices=notices,
    )


def default_out(plan: Plan) -> str:
    """Where the output goes unless it is said: as the plan has it, else named after the run in the working folder."""
    return plan.output.path or f"{plan.run_id}.{plan.output.format}"


def check_names(plan: Plan, keys: RunKeys, store: Store, names: OutputNames, dtype: Dtype) -> None:
    """Refuse outputs that would destroy something or cannot be written, before anything is read. Raises UsageError."""
    check_dtype(plan.task.kind, names.format, dtype)
    if is_s3(names.out):
        bucket, key = s3_key(names.out)
        if bucket == store.bucket and f"{key}/".startswith(f"{keys.root}/"):
            raise UsageError(f"'{names.out}' lies inside the run itself.", fix="Name another folder with --out.")
    else:
        check_folder(names.out)
    inputs = {_resolved(file.name) for file in plan.dataset.files}
    for name in (names.out, names.errors, names.seal):
        if _resolved(name) in inputs:
            raise UsageError(f"'{name}' is a file of the dataset, and collect would replace it.", fix="Name another with --out.")


async def check_output(
    store: Store,
    keys: RunKeys,
    plan: Plan,
    names: OutputNames,
    *,
    dtype: Dtype = "float32",
    open_store: OpenStore | None = None,
) -> tuple[str, ...]:
    """Whether a run may be collected there, worth asking before it is paid for; and what of others it would replace, to be said.

    Another run's output under this very name is replaced, and that is said: the name was given. An errors file that belongs to another
    run's output, which keeps standing beside it (`my.parquet` and `my.jsonl` share `my.errors.jsonl`), is not. Raises UsageError.
    """
    check_names(plan, keys, store, names, dtype)
    try:
        beside = await _standing(companion(names), store, open_store)
        if beside is not None and beside.facts is not None and beside.facts.run != plan.run:
            raise UsageError(
                f"'{names.errors}' holds the failed rows of '{companion(names).out}', which is of run {beside.facts.run}.",
                fix=f"Name another file with --out, or remove '{companion(names).out}' first.",
            )
        there = await _standing(names, store, open_store)
    except AccessDenied as error:  # keys that may write outputs and not read them
        return (f"whether '{names.out}' is there already could not be told: {error}",)
    if there is None or (there.facts is not None and there.facts.run == plan.run):
        return ()
    whose = f"the output of run {there.facts.run}" if there.facts is not None else "a file that is no output of a run"
    return (f"'{names.out}' replaces {whose}.",)


@dataclass(frozen=True)
class _Standing:
    """An output that is there. `facts`: of its seal file; None where there is none that can be read."""

    facts: OutputFacts | None


async def _standing(names: OutputNames, store: Store, open_store: OpenStore | None) -> _Standing | None:
    data: bytes | None
    if is_s3(names.out):
        bucket, key = s3_key(names.out)
        place = _bucket(bucket, store, open_store)
        if await place.head(key) is None:
            return None
        blob = await get_or_none(place, s3_key(names.seal)[1])
        data = blob.data if blob is not None else None
    else:
        if not Path(names.out).exists():
            return None
        seal = Path(names.seal)
        data = seal.read_bytes() if seal.is_file() else None
    if data is None:
        return _Standing(None)
    try:
        return _Standing(decode(data, OutputFacts, where=names.seal))
    except ContractError:
        return _Standing(None)


def _resolved(name: str) -> str:
    return name if is_s3(name) else os.path.realpath(name)


def missing_rows(tree: Tree) -> tuple[RowRange, ...]:
    """Row ranges of the open leaves, neighbours joined."""
    found: list[RowRange] = []
    for leaf in tree.open:
        start, stop = leaf.source.rows
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def _place(names: OutputNames, store: Store, open_store: OpenStore | None, scratch: Path) -> Place:
    if not is_s3(names.out):
        return LocalPlace(check_folder(names.out))
    return S3Place(_bucket(s3_key(names.out)[0], store, open_store), scratch)


def _bucket(bucket: str, store: Store, open_store: OpenStore | None) -> Store:
    if bucket == store.bucket:
        return store
    if open_store is None:
        raise UsageError(f"bucket '{bucket}' is not the run's ('{store.bucket}').", fix="Write into the run's bucket, or to a local file.")
    return open_store(bucket)


class _Writer:
    """The drafts of one collect. `write` and `finish` run in a thread, one call after the other."""

    def __init__(self, plan: Plan, names: OutputNames, folder: Path, dtype: Dtype) -> None:
        self._plan, self._names, self._dtype = plan, names, dtype
        for name in (names.out, names.errors, names.seal):
            sweep(folder, name)
        self.out_draft = draft_path(folder, names.out)
        self.errors_draft = draft_path(folder, names.errors)
        self.seal_draft = draft_path(folder, names.seal)
        self.ok = self.failed = 0
        self._failures: dict[str, Failure] = {}
        self._layout: Layout | None = None
        self._columns: pa.Schema | None = None
        self._errors = LineWriter(self.errors_draft)
        self._lines = LineWriter(self.out_draft) if names.format == "jsonl" else None
        self._table = TableWriter(self.out_draft) if names.format == "parquet" else None

    def write(self, rows: LeafRows) -> None:
        if self._lines is not None:
            self._lines.write(output_lines(rows.ok, self._plan.task.model))
        if self._table is not None:
            if self._layout is None:
                self._columns = None if rows.columns is None else rows.columns.schema
                self._layout = layout_for(self._plan, self._columns, self._dtype)
            if (table := table_of(rows, self._layout)) is not None:
                self._table.write(table, shard=rows.shard)
        self._errors.write(error_line(line) for line in rows.failed)
        for line in rows.failed:
            self._count(line.id, row_error(line, where=f"shard {rows.shard}"))
        self.ok += len(rows.ok.indices)
        self.failed += len(rows.failed)

    def _count(self, ident: str, error: RowError) -> None:
        first = self._failures.get(error.code, Failure(error.code, 0, ident, error.message))
        self._failures[error.code] = replace(first, rows=first.rows + 1)

    def finish(self, facts: OutputFacts, skipped: Iterable[SkippedLine]) -> OutputFacts:
        """Complete the drafts; returns the facts as the seal file has them."""
        self._errors.write(skipped_line(number, row) for number, row in enumerate(skipped))
        self._errors.close()
        if self._lines is not None:
            self._lines.close()
        if self._table is not None:
            layout = self._layout or layout_for(self._plan, None, self._dtype)
            facts = replace_facts(facts, renamed=layout.renamed)
            self._table.close(facts, empty_table(layout, self._columns))
        facts = replace_facts(facts, output=file_facts(self.out_draft), errors=file_facts(self.errors_draft))
        self.seal_draft.write_bytes(encode(facts) + b"\n")
        return facts

    def failures(self) -> tuple[Failure, ...]:
        return tuple(sorted(self._failures.values(), key=lambda f: (-f.rows, f.code)))

    def discard(self) -> None:
        """Close what is open and delete the drafts that were not published."""
        self._errors.close()
        if self._lines is not None:
            self._lines.close()
        if self._table is not None:
            self._table.abandon()
        for draft in (self.out_draft, self.errors_draft, self.seal_draft):
            draft.unlink(missing_ok=True)


def layout_for(plan: Plan, columns: pa.Schema | None, dtype: Dtype) -> Layout:
    """The layout of this run's table output."""
    return layout_of(plan.task.kind, [] if columns is None else columns.names, id_column=plan.rows.id_column, dtype=dtype)


def replace_facts(facts: OutputFacts, **changes: object) -> OutputFacts:
    """A copy with some fields changed."""
    return msgspec.structs.replace(facts, **changes)
