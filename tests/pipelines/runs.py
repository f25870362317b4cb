# tests/pipelines: a whole run in a store, made without RunPod, worker or model: what collect and verify are tested on.
from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contract.keys import RunKeys, child_names, shard_name
from contract.lines import compress
from contract.memory import MemoryStore
from contract.models import (
    Child,
    DatasetFacts,
    Estimate,
    FileFacts,
    ObjectRef,
    OutputSpec,
    PartCommit,
    PinnedInfra,
    Plan,
    Range3,
    RowOptions,
    ShardPlan,
    Source,
    SplitCommit,
    StorePin,
    TaskKind,
    TaskSpec,
    encode,
)
from contract.rows import InputDigest, RowError, ShardDigest, row_digest
from contract.store import Store, put_object
from pipelines.plan import plan_id_of

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIMENSIONS = 4


@dataclass(frozen=True)
class Row:
    """A row with its answer: `output` is the response JSON, the vector's bytes or the error JSON."""

    index: int
    id: str
    line: bytes
    ok: bool
    output: bytes

    @property
    def digest(self) -> bytes:
        return row_digest(self.index, self.id, self.line)


def make_row(kind: TaskKind, index: int, ok: bool, *, prefix: str = "row") -> Row:
    ident = f"{prefix}-{index}"
    if kind == "embed":
        body: dict[str, Any] = {"input": f"text {index} \u2028 é"}
        output = np.asarray([index + 1, -index, index / 7, 0.1], dtype="<f4").tobytes()
    else:
        body = {"messages": [{"role": "user", "content": f"question {index} \u2028 é"}]}
        # Spaces and the float are there on purpose: only bytes that are kept as they are give the digest again.
        text = f"answer {index} \u2028 \\u00e9\\n"
        output = (
            f'{{"id": "cmpl-{index}", "choices": [{{"index":0, "message": {{"role":"assistant","content":"{text}"}},'
            f'"finish_reason": "stop"}}], "x": 1.50, "usage": {{"prompt_tokens": 3, "completion_tokens": {index}}}}}'
        ).encode()
    url = "/v1/embeddings" if kind == "embed" else "/v1/chat/completions"
    line = msgspec.json.encode({"custom_id": ident, "method": "POST", "url": url, "body": body})
    if not ok:
        output = msgspec.json.encode(RowError(code=f"code_{index % 2}", message=f"row {index} is bad"))
    return Row(index, ident, line, ok, output)


@dataclass
class Run:
    """A run as its worker left it. `seed` orders the rows inside the parts."""

    store: Any
    keys: RunKeys
    plan: Plan
    rows: list[Row]
    columns: pa.Table | None = None
    commits: dict[str, PartCommit] = field(default_factory=dict)


def input_digest(rows: Sequence[Row]) -> str:
    digest = InputDigest()
    for row in rows:
        digest.add(row.digest)
    return digest.hexdigest()


def part_bytes(kind: TaskKind, rows: Sequence[Row], *, dimensions: int = DIMENSIONS) -> bytes:
    if kind == "generate":
        return compress(
            b"".join(
                b'{"index":%d,"row":"%s","id":%s,"response":%s}\n'
                % (row.index, row.digest.hex().encode(), msgspec.json.encode(row.id), row.output)
                for row in rows
            )
        )
    vectors = np.frombuffer(b"".join(row.output for row in rows), dtype="<f4")
    table = pa.table(
        {
            "index": pa.array([row.index for row in rows], type=pa.int64()),
            "row": pa.array([row.digest for row in rows], type=pa.binary(32)),
            "id": pa.array([row.id for row in rows], type=pa.string()),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors), dimensions),
            "tokens": pa.array([row.index % 50 for row in rows], type=pa.int32()),
        }
    )
    return parquet_bytes(table)


def parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def errors_bytes(rows: Sequence[Row]) -> bytes:
    return compress(
        b"".join(
            b'{"index":%d,"row":"%s","id":%s,"error":%s}\n'
            % (row.index, row.digest.hex().encode(), msgspec.json.encode(row.id), row.output)
            for row in rows
        )
    )


def shard_digest(rows: Sequence[Row]) -> str:
    digest = ShardDigest()
    for row in rows:
        digest.add(row.index, row.digest, row.ok, row.output)
    return digest.hexdigest()


async def put_leaf(
    run: Run, shard: str, source: Source, rows: Sequence[Row], *, execution: str = "00000000000000aa", shuffle: int | None = None
) -> PartCommit:
    """What a worker writes for a leaf: part, errors, commit."""
    kind, store, keys = run.plan.task.kind, run.store, run.keys
    arranged = list(rows)
    if shuffle is not None:
        random.Random(shuffle).shuffle(arranged)
    ok, failed = [row for row in arranged if row.ok], [row for row in arranged if not row.ok]
    suffix = "parquet" if kind == "embed" else "jsonl.zst"
    part = await put_object(store, keys.part(shard, execution, suffix), part_bytes(kind, ok)) if ok else None
    errors = await put_object(store, keys.errors(shard, execution), errors_bytes(failed)) if failed else None
    commit = PartCommit(
        plan=run.plan.plan_id,
        shard=shard,
        execution=execution,
        attempt=1,
        part=part,
        errors=errors,
        ok=len(ok),
        failed=len(failed),
        tokens_in=3 * len(rows),
        tokens_out=len(ok),
        input_digest=source.digest,
        digest=shard_digest(rows),
        at=AT,
    )
    await store.put(keys.commit(shard), encode(commit))
    run.commits[shard] = commit
    return commit


def source_of(rows: Sequence[Row], uri: str) -> Source:
    return Source(uri=uri, rows=(rows[0].index, rows[-1].index + 1), count=len(rows), digest=input_digest(rows))


async def make_run(
    kind: TaskKind = "generate",
    outcomes: Sequence[bool] = (True, True, False, True, True, True, False, True),
    *,
    cuts: Sequence[int] = (3, 6),
    splits: Sequence[int] = (),
    shuffle: int | None = None,
    columns: pa.Table | None = None,
    id_column: str | None = None,
    skipped: Sequence[dict[str, Any]] = (),
    store: Store | None = None,
    mode: Any = "conditional",
    leave_open: Sequence[int] = (),
    plan_id: str | None = None,
    prefix: str = "row",
    row: Callable[..., Row] = make_row,
    files: Sequence[str] = ("rows.jsonl",),
) -> Run:
    """`cuts`: row indices where a new shard begins; `splits`: numbers of shards whose rows two children hold; `leave_open`: shards
    without a commit."""
    store = store if store is not None else MemoryStore(mode=mode)
    rows = [row(kind, index, ok, prefix=prefix) for index, ok in enumerate(outcomes)]
    edges = [0, *cuts, len(rows)]
    task = TaskSpec(kind=kind, model="tiny")
    plan_id = plan_id or plan_id_of(input_digest(rows), task, list(pairwise(edges)), store.mode)
    run_id = f"test-{plan_id[:8]}"
    root = f"runs/{run_id}"
    keys = RunKeys(root)
    shards: list[ShardPlan] = []
    for number, (start, stop) in enumerate(pairwise(edges)):
        name = shard_name(number)
        mine = rows[start:stop]
        await store.put(keys.input(name), compress(b"".join(r.line + b"\n" for r in mine)))
        held: ObjectRef | None = None
        if columns is not None:
            held = await put_object(store, keys.columns(name), parquet_bytes(columns.slice(start, stop - start)))
        source = source_of(mine, f"s3://{store.bucket}/{keys.input(name)}")
        shards.append(ShardPlan(shard=name, source=source, tokens=10, bytes=100, columns=held))
    skipped_ref = None
    if skipped:
        skipped_ref = await put_object(store, keys.skipped(), compress(b"".join(msgspec.json.encode(s) + b"\n" for s in skipped)))
    plan = Plan(
        plan_id=plan_id,
        run_id=run_id,
        run=f"s3://{store.bucket}/{root}",
        created_at=AT,
        dataset=DatasetFacts(
            files=tuple(FileFacts(name=name, size=1, rows=len(rows)) for name in files),
            format="jsonl",
            rows=len(rows),
            skipped=len(skipped),
            skipped_object=skipped_ref,
            digest=input_digest(rows),
        ),
        rows=RowOptions(id_column=id_column),
        task=task,
        store=StorePin(bucket=store.bucket, endpoint_url=store.endpoint_url, mode=store.mode),
        infra=PinnedInfra(
            stack="local",
            endpoint="tiny",
            endpoint_id="e1",
            api_url="http://127.0.0.1/v2",
            model="tiny",
            gpu="cpu",
            usd_per_second=0.001,
            scaler="QUEUE_DELAY",
            scaler_value=4,
            shards_per_worker=2,
            workers_max=2,
            execution_timeout_s=600,
            cold_start_s=10,
        ),
        shards=tuple(shards),
        pace=1,
        estimate=Estimate(
            workers=1,
            tokens_in=100,
            tokens_out=50,
            seconds=Range3(low=1, likely=2, high=3),
            usd=Range3(low=0.1, likely=0.2, high=0.3),
            basis="made up",
        ),
        output=OutputSpec(path=None, format="jsonl" if kind == "generate" else "parquet"),
    )
    await store.put(keys.plan(), encode(plan))
    run = Run(store, keys, plan, rows, columns)
    for number, shard in enumerate(shards):
        if number in leave_open:
            continue
        start, stop = shard.source.rows
        if number in splits and stop - start > 1:
            middle = (start + stop) // 2
            names = child_names(shard.shard, 2)
            children = tuple(
                Child(shard=name, source=source_of(rows[a:b], shard.source.uri))
                for name, (a, b) in zip(names, ((start, middle), (middle, stop)), strict=True)
            )
            await store.put(keys.commit(shard.shard), encode(SplitCommit(plan=plan_id, shard=shard.shard, children=children, at=AT)))
            for child in children:
                await put_leaf(run, child.shard, child.source, rows[slice(*child.source.rows)], shuffle=shuffle)
        else:
            await put_leaf(run, shard.shard, shard.source, rows[start:stop], shuffle=shuffle)
    return run
