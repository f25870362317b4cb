"""benchmarks: the page of a run of 5,000 shards: seconds from what the store holds to the page, and the page's size.

    python -m benchmarks.report [--shards 5000] [--reps 3] [--keep]

Makes a finished run in memory (25 workers, two shards at a time on each, some executions that lost, some that never ended, failed rows),
then reads it and makes its page. The store is memory, so that what is measured is this project: a real one is asked about three times as
many requests as there are shards.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Final

import msgspec

from benchmarks.harness import Line, Options, Result, Sample, median_seconds, say, stopwatch, told
from contract.keys import RunKeys, RunUri, shard_name
from contract.lines import compress
from contract.memory import MemoryStore, Objects
from contract.models import (
    AttemptNote,
    DatasetFacts,
    EndMarker,
    Estimate,
    FileFacts,
    Instant,
    Intent,
    JournalEntry,
    Outcome,
    OutputSpec,
    PartCommit,
    PhaseSeconds,
    PinnedInfra,
    Plan,
    Range3,
    RowOptions,
    ShardPlan,
    Source,
    StartMarker,
    StorePin,
    TaskKind,
    TaskSpec,
    encode,
)
from contract.rows import RowError
from contract.store import put_object

SHARDS: Final = 5_000
GOAL_BYTES: Final = 500_000
GOAL_SECONDS: Final = 2.0
AT: Final = datetime(2026, 11, 29, 21, 0, tzinfo=UTC)
PLAN: Final = "3f" * 32
ROW: Final = "00" * 32
TIMEOUT_S: Final = 600.0
IMAGE: Final = "registry.example/nightbatch/worker@sha256:" + "5e" * 32


@dataclass(frozen=True)
class Shape:
    """What happens to a run. `lost_every`: of so many shards one has an execution that is for nothing first; `dead_every`: one that never
    ends; `failed_every`: one has failed rows, whose messages are these; `done`: how many shards end at all; the
    others have `attempts_for_open` attempts that died of `job_cause`, or are out still where it is empty."""

    shards: int = SHARDS
    rows_per_shard: int = 200
    workers: int = 25
    seconds: float = 24.0
    lost_every: int = 40
    dead_every: int = 900
    failed_every: int = 100
    messages: tuple[str, ...] = ("the prompt has 9,214 tokens, and the model reads 8,192",)
    ids: tuple[str, ...] = ("row-{}",)
    codes: tuple[str, ...] = ("too_long", "no_chat_template")
    job_cause: str = "failed"
    job_error: str = "CUDA out of memory. Tried to allocate 2.10 GiB"
    done: int | None = None
    attempts_for_open: int = 0
    run_id: str = "reviews-3f3f3f3f"
    prefix: str = ""
    kind: TaskKind = "embed"
    at: datetime = AT
    budget_usd: float | None = None
    usd_per_second: float = 0.00031


@dataclass(frozen=True)
class Made:
    """The run, and the store's clock when all of it had happened."""

    store: MemoryStore
    plan: Plan
    keys: RunKeys
    now: datetime


def make_plan(shape: Shape) -> Plan:
    """A plan of that many shards."""
    uri = RunUri.parse(f"s3://memory/{shape.prefix + '/' if shape.prefix else ''}runs/{shape.run_id}")
    rows, each = shape.shards * shape.rows_per_shard, shape.rows_per_shard
    price = shape.usd_per_second
    likely = shape.shards * shape.seconds / 2 + shape.workers * 75
    return Plan(
        plan_id=PLAN,
        run_id=uri.run_id,
        run=str(uri),
        created_at=shape.at - timedelta(minutes=2),
        dataset=DatasetFacts(
            files=(FileFacts(name="data/reviews.parquet", size=rows * 410, rows=rows),), format="parquet", rows=rows, digest=ROW
        ),
        rows=RowOptions(column="text", id_column="id"),
        task=TaskSpec(kind=shape.kind, model="intfloat/e5-small-v2", revision="ffb93f3", params={"normalize": True, "truncate": 512}),
        store=StorePin(bucket="memory", endpoint_url="memory:", mode="conditional"),
        infra=PinnedInfra(
            stack="prod",
            endpoint="embed",
            endpoint_id="ep1",
            api_url="https://api.runpod.ai/v2",
            model="intfloat/e5-small-v2",
            image=IMAGE,
            gpu="ADA_24",
            usd_per_second=price,
            scaler="QUEUE_DELAY",
            scaler_value=4.0,
            shards_per_worker=2,
            workers_max=shape.workers,
            execution_timeout_s=TIMEOUT_S,
            cold_start_s=75.0,
        ),
        shards=tuple(
            ShardPlan(
                shard=shard_name(number),
                source=Source(uri=f"{uri}/input/{shard_name(number)}.jsonl.zst", rows=(number * each, number * each + each), count=each,
                              digest=ROW),
                tokens=each * 90,
                bytes=each * 410,
            )
            for number in range(shape.shards)
        ),
        pace=shape.workers,
        estimate=Estimate(
            workers=shape.workers,
            tokens_in=rows * 90,
            tokens_out=0,
            seconds=Range3(low=likely / shape.workers * 0.7, likely=likely / shape.workers, high=likely / shape.workers * 2),
            usd=Range3(low=likely * 0.6 * price, likely=likely * 1.1 * price, high=likely * 2 * price),
            basis="4 earlier runs of this model on ADA_24",
        ),
        budget_usd=shape.budget_usd,
        output=OutputSpec(path="reviews.parquet", format="parquet"),
    )  # fmt: skip


async def make_run(shape: Shape, store: MemoryStore | None = None) -> Made:
    """The run as clients and workers would have left it."""
    store = store or MemoryStore(Objects(), mode="conditional")
    plan = make_plan(shape)
    keys = RunUri.parse(plan.run).keys
    rng = random.Random(shape.run_id)
    await store.put(keys.plan(), encode(plan))
    queue = _order(shape)
    slots: list[tuple[float, int]] = []
    for worker in range(shape.workers):
        for _ in range(2):
            heappush(slots, (40.0 + worker * 7 % 90 + rng.random() * 20, worker))
    loaded: set[int] = set()
    intents: list[Intent] = []
    notes: list[AttemptNote] = []
    last = shape.at
    window = 3 * shape.workers * 2
    begun: list[float] = []
    for number, (shard, how) in enumerate(queue):
        free, worker = heappop(slots)
        sent = 0.0 if number < window else begun[number - window] + rng.random()
        start = max(free, sent + 0.4) + rng.random() * 0.8
        begun.append(start)
        at = shape.at + timedelta(seconds=start)
        intents.append(
            Intent(attempt=number + 1, shard=shard_name(shard), sent_at=shape.at + timedelta(seconds=sent),
                   start_by=at + timedelta(hours=3), ttl_s=14_400, execution_timeout_s=TIMEOUT_S, reserve_usd=0.2,
                   epoch=0, low_priority=number >= shape.workers)
        )  # fmt: skip
        load = 0.0 if worker in loaded else 38.0 + rng.random() * 9
        loaded.add(worker)
        took = shape.seconds * (0.6 + rng.random() * 0.8) * (1.0 if how != "lost" else 0.5)
        stop = start + took
        execution = f"{number:016x}"
        await store.put(
            keys.start(shard_name(shard), execution),
            encode(StartMarker(plan=PLAN, shard=shard_name(shard), execution=execution, attempt=number + 1, epoch=0, job_id=f"job-{number}",
                               worker_id=f"w{worker:02d}x{worker * 7919 % 99991:05d}", image=IMAGE, load_s=load, at=at)),
        )  # fmt: skip
        over = shape.at + timedelta(seconds=stop)
        last = max(last, over)
        heappush(slots, (stop if how != "dead" else start + 90, worker))
        if how == "dead" and not shape.job_cause:
            continue
        if how == "dead":
            notes.append(
                AttemptNote(attempt=number + 1, client="bench", state="dead", job_id=f"job-{number}", cause=shape.job_cause,
                            error=shape.job_error, at=over)
            )  # fmt: skip
            continue
        await _end(store, keys, shape, shard, number, "won" if how == "won" else "partial", took, over)
        if how == "lost":
            notes.append(
                AttemptNote(attempt=number + 1, client="bench", state="dead", job_id=f"job-{number}", cause="partial", at=over)
            )  # fmt: skip
    for number, at_ in enumerate(range(0, max(len(intents), 1), 100)):
        chosen = tuple(intents[at_ : at_ + 100])
        entry = JournalEntry(plan=PLAN, number=number, client="bench", at=chosen[0].sent_at if chosen else shape.at, intents=chosen,
                             notes=tuple(notes[number::-(-len(intents) // 100) or 1]))  # fmt: skip
        await store.put(keys.journal(number), encode(entry))
    now = last + timedelta(seconds=5)
    store.objects.instant = now
    return Made(store, plan, keys, now)


def _order(shape: Shape) -> list[tuple[int, str]]:
    """Shards in the order in which they are sent, and what becomes of each."""
    found: list[tuple[int, str]] = []
    again: list[tuple[int, str]] = []
    for number in range(shape.shards):
        if shape.done is not None and number >= shape.done:
            found += [(number, "dead")] * shape.attempts_for_open
            continue
        if shape.dead_every and number % shape.dead_every == shape.dead_every - 1:
            found.append((number, "dead"))
            again.append((number, "won"))
        elif shape.lost_every and number % shape.lost_every == shape.lost_every - 1:
            found.append((number, "lost"))
            again.append((number, "won"))
        else:
            found.append((number, "won"))
        if len(again) > 20:
            found.append(again.pop(0))
    return found + again


async def _end(
    store: MemoryStore, keys: RunKeys, shape: Shape, number: int, execution: int, outcome: Outcome, took: float, at: Instant
) -> None:
    """End marker, and for a won one commit and errors object."""
    shard, name, rows = shard_name(number), f"{execution:016x}", shape.rows_per_shard
    phases = PhaseSeconds(reading=took * 0.04, computing=took * 0.88, writing=took * 0.06)
    failed = min(3, rows) if shape.failed_every and number % shape.failed_every == shape.failed_every - 1 else 0
    if outcome == "won":
        errors = None
        if failed:
            lines = b"".join(
                b'{"index":%d,"row":"%s","id":%s,"error":%s}\n'
                % (
                    number * rows + at_,
                    ROW.encode(),
                    msgspec.json.encode(shape.ids[(number + at_) % len(shape.ids)].replace("{}", str(number * rows + at_))),
                    msgspec.json.encode(
                        RowError(code=shape.codes[at_ % len(shape.codes)], message=shape.messages[(number + at_) % len(shape.messages)])
                    ),
                )
                for at_ in range(failed)
            )
            errors = await put_object(store, keys.errors(shard, name), compress(lines))
        commit = PartCommit(plan=PLAN, shard=shard, execution=name, attempt=execution + 1, part=None, errors=errors, ok=rows - failed,
                            failed=failed, tokens_in=rows * 92, tokens_out=0, input_digest=ROW, digest=ROW, image=IMAGE,
                            versions={"vllm": "0.32.0", "nightbatch": "0.1.0"}, at=at)  # fmt: skip
        await store.put(keys.commit(shard), encode(commit))
    end = EndMarker(plan=PLAN, shard=shard, execution=name, attempt=execution + 1, outcome=outcome, wall_s=took, seconds=phases,
                    ok=rows - failed if outcome == "won" else 0, failed=failed, tokens_in=rows * 92, at=at)  # fmt: skip
    await store.put(keys.end(shard, name), encode(end))


def measure(options: Options, *, shards: int | None = None) -> Result:
    """Seconds and bytes; medians."""
    from nights.report.page import render_run
    from nights.report.read import read_run

    shards = shards if shards is not None else SHARDS // 20 if options.quick else SHARDS
    made = asyncio.run(make_run(Shape(shards=shards)))
    samples: list[Sample] = []
    size = 0
    render_run(asyncio.run(read_run(made.store, made.keys, made.plan, now=made.now)))  # templates are read once in a process
    for _ in range(options.reps):
        with stopwatch() as watch:
            page = render_run(asyncio.run(read_run(made.store, made.keys, made.plan, now=made.now)))
        size = len(page.encode())
        samples.append(Sample(watch.seconds, shards, watch.foreign))
        say(f"  report: {watch.seconds:.2f} s, {size:,} bytes")
    lines = (
        Line(f"report over {shards:,} shards", median_seconds(samples), "s", "<", GOAL_SECONDS),
        Line("report: size of the page", size / 1000, "kB", "<", GOAL_BYTES / 1000),
    )
    return Result("report", lines, {"report": tuple(samples)}, {"shards": shards}, ("The store is memory.",))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.report", description="Speed and size of a run's page.")
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--reps", type=int, default=3, help="the median counts")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/report.json")
    asked = parser.parse_args(argv)
    result = measure(Options(reps=asked.reps), shards=asked.shards)
    return told(result, kept=asked.keep)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
