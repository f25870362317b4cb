"""worker: a run of one shard in an empty store, and the job for it: for `--check` and for the tests. Touches the store it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from contract.keys import RunKeys
from contract.lines import compress
from contract.models import (
    DatasetFacts,
    Estimate,
    JobInput,
    OutputSpec,
    PinnedInfra,
    Plan,
    Range3,
    RowOptions,
    ShardPlan,
    Source,
    StorePin,
    TaskKind,
    TaskSpec,
    encode,
)
from contract.rows import URLS, InputDigest, row_digest
from contract.store import Store

SHARD = "00000"


@dataclass(frozen=True)
class SampleRow:
    """`body` as an object, or as the exact JSON text of one."""

    id: str
    url: str
    body: dict[str, Any] | str

    def line(self) -> bytes:
        body = self.body.encode() if isinstance(self.body, str) else encode(self.body)
        return b'{"custom_id":%s,"method":"POST","url":%s,"body":%s}' % (encode(self.id), encode(self.url), body)


def sample_rows(kind: TaskKind, count: int) -> list[SampleRow]:
    """Rows of plain text; the last one is empty, so that one row fails."""
    field = "input" if kind == "embed" else "prompt"
    texts = [f"this is row number {number}" for number in range(count - 1)] + [""]
    return [SampleRow(f"row-{number}", URLS[kind][-1], {field: text}) for number, text in enumerate(texts)]


async def sample_job(store: Store, task: TaskSpec, rows: Sequence[SampleRow], *, first: int = 0, deadline_s: float = 600.0) -> JobInput:
    """Write plan.json and one input object; the job of the first attempt. `first`: the index of the first row."""
    keys, digest, lines = RunKeys("runs/sample"), InputDigest(), [row.line() for row in rows]
    for number, (row, line) in enumerate(zip(rows, lines, strict=True)):
        digest.add(row_digest(first + number, row.id, line))
    await store.put(keys.input(SHARD), compress(b"\n".join(lines) + b"\n"))
    source = Source(
        uri=f"s3://{store.bucket}/{keys.input(SHARD)}", rows=(first, first + len(rows)), count=len(rows), digest=digest.hexdigest()
    )
    nothing = Range3(low=0.0, likely=0.0, high=0.0)
    plan = Plan(
        plan_id=digest.hexdigest(),
        run_id="sample",
        run=f"s3://{store.bucket}/{keys.root}",
        created_at=store.now(),
        dataset=DatasetFacts(files=(), format="jsonl", rows=len(rows), digest=digest.hexdigest()),
        rows=RowOptions(),
        task=task,
        store=StorePin(bucket=store.bucket, endpoint_url=store.endpoint_url, mode=store.mode),
        infra=PinnedInfra(
            stack="sample",
            endpoint="sample",
            endpoint_id="sample",
            api_url="none:",
            model=task.model,
            gpu="none",
            usd_per_second=0.0,
            scaler="QUEUE_DELAY",
            scaler_value=1.0,
            shards_per_worker=1,
            workers_max=1,
            execution_timeout_s=deadline_s,
            cold_start_s=0.0,
        ),
        shards=(ShardPlan(shard=SHARD, source=source, tokens=0, bytes=sum(map(len, lines))),),
        pace=1,
        estimate=Estimate(workers=1, tokens_in=0, tokens_out=0, seconds=nothing, usd=nothing, basis="none"),
        output=OutputSpec(path=None, format="jsonl"),
    )
    await store.put(keys.plan(), encode(plan))
    return JobInput(
        version=1,
        run=plan.run,
        plan=plan.plan_id,
        shard=SHARD,
        attempt=1,
        epoch=0,
        source=source,
        start_by=store.now() + timedelta(hours=1),
        deadline_s=deadline_s,
        task=task,
    )


def as_input(job: JobInput) -> dict[str, Any]:
    """The job as the runpod SDK hands it to a handler."""
    return dict(msgspec.to_builtins(job))
