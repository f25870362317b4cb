"""benchmarks: submitting 5,000 shards to an endpoint with RunPod's documented rate limits, when nobody works on them.

RunPod allows 1,000 /run requests in any 10 s and 200 at once (send-requests, Rate limits). The first 1,000 may go at once and the window
frees as they grow older than 10 s, so 5,000 need at least 40 s. Measured is the whole of `submit` on a run that is planned: reading the
store, the journal entries before the calls, the calls, and their answers. The rows are read in place, so that nothing is uploaded.
"""

from __future__ import annotations

import asyncio
import json
import statistics

from benchmarks.harness import CannotMeasure, Line, Options, Result, Sample, say, stopwatch
from benchmarks.house import NAME, House, house
from benchmarks.rows import embed_rows
from contract.store import S3Store
from emulator.config import EndpointConfig
from emulator.limits import RUNPOD_LIMITS, WINDOW_S
from pipelines.plan import PlanRequest, plan_run
from pipelines.runs import RunHandle
from pipelines.submit import open_jobs, submit

SHARDS = 5000
QUICK_SHARDS = 1200
WORKERS = 1300
"""So many workers are allowed (none comes) that the window of a run lets 5,000 shards out: 2 x pace x 2 shards a worker."""
TARGET_S = 48.0
TARGET_REFUSED = 0.01


def measure(options: Options) -> Result:
    """Seconds of `submit`, seconds from the first to the last /run, and the share that was answered 429."""
    return asyncio.run(_measure(options))


async def _measure(options: Options) -> Result:
    shards = QUICK_SHARDS if options.quick else SHARDS
    whole: list[Sample] = []
    calls: list[Sample] = []
    refused: list[float] = []
    for rep in range(options.reps):
        # A fresh emulator each time: its window of 10 s is empty.
        async with house(EndpointConfig(name=NAME, model="minilm", tasks=("embed",), workers_max=WORKERS, concurrency=2)) as at:
            sample, span, share = await _once(at, shards)
        say(f"  submit, {shards} shards: {sample.seconds:.1f} s, {share:.2%} answered 429")
        whole.append(sample)
        calls.append(Sample(span, shards, sample.foreign))
        refused.append(share)
        if rep == 0 and sample.seconds > 3 * TARGET_S:
            break
    limit = RUNPOD_LIMITS["run"].per_window
    assert limit is not None
    least = (-(-shards // limit) - 1) * WINDOW_S
    wanted = TARGET_S if not options.quick else None
    lines = (
        Line(f"submit, {shards} shards: what the limit of {limit} in {WINDOW_S:.0f} s allows", least, "s"),
        Line(f"submit, {shards} shards: first to last /run", statistics.median(s.seconds for s in calls), "s"),
        Line(f"submit, {shards} shards: all of submit", statistics.median(s.seconds for s in whole), "s", "<=" if wanted else None, wanted),
        Line(f"submit, {shards} shards: answered 429", 100 * statistics.median(refused), "%", "<", 100 * TARGET_REFUSED),
    )
    return Result("submit", lines, {"all of submit": tuple(whole), "first to last /run": tuple(calls)}, {"shards": shards, "workers": 0})


async def _once(at: House, shards: int) -> tuple[Sample, float, float]:
    stack = at.emulator.stack()
    store, worker_store = S3Store(stack.secrets.s3), S3Store(stack.secrets.worker_s3)
    try:
        text = "".join(json.dumps(row) + "\n" for row in embed_rows(shards, "minilm"))
        await store.put("data/rows.jsonl", text.encode())
        request = PlanRequest(
            dataset=(f"s3://{store.bucket}/data/rows.jsonl",), task="embed", model="minilm", pace=WORKERS, rows_per_shard=1
        )
        planned = await plan_run(request, stack, store, worker_store)
        if len(planned.plan.shards) != shards:
            raise CannotMeasure(f"the plan has {len(planned.plan.shards)} shards instead of {shards}.")
        jobs = open_jobs(stack, planned.plan.infra.endpoint_id)
        at.traffic.clear()
        try:
            with stopwatch() as watch:
                result = await submit(RunHandle(planned.uri, planned.plan), stack=stack, store=store, jobs=jobs, pace=WORKERS)
        finally:
            await jobs.close()
    finally:
        await store.close()
        await worker_store.close()
    taken = at.traffic.answers["run", 200]
    answered = sum(count for (operation, _), count in at.traffic.answers.items() if operation == "run")
    if taken != shards:
        raise CannotMeasure(f"{taken} of {shards} jobs were taken; submit says {result.state}: {result.reason}")
    span = at.traffic.last["run"] - at.traffic.first["run"]
    return watch.sample(shards), span, at.traffic.answers["run", 429] / answered
