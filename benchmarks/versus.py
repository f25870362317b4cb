"""benchmarks: the whole pipeline against `vllm run-batch` on the same file, with the same engine arguments and OMP threads.

The worker is started once and warmed with a few rows, as run-batch's engine warms itself; then the two sides take turns, so that a
machine that becomes slower or busier does so for both. While one side works, the other has nothing to do.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engines import Engine
from benchmarks.harness import CannotMeasure, Line, Options, Result, Sample, median_rate, say, versions, wait_for_quiet
from benchmarks.house import house, own_worker, whole_run
from benchmarks.rows import write
from benchmarks.runbatch import run_batch
from contract.models import TaskKind

WARM_ROWS = 8


@dataclass(frozen=True)
class Duel:
    """What is compared. `targets`: the least ratio by OMP threads; other numbers of threads are only printed."""

    name: str
    task: TaskKind
    engine: Engine
    rows: Callable[[int, str], list[dict[str, Any]]]
    count: int
    quick_count: int
    targets: dict[int, float]


def fight(duel: Duel, options: Options) -> Result:
    """Rows a second of both sides, by OMP threads, and their ratio."""
    return asyncio.run(_fight(duel, options))


async def _fight(duel: Duel, options: Options) -> Result:
    python, count, model = options.python(), duel.quick_count if options.quick else duel.count, duel.engine.model
    samples: dict[str, tuple[Sample, ...]] = {}
    lines: list[Line] = []
    settings: dict[str, Any] = {"rows": count, "model": model, "engine": duel.engine.arguments(), "versions": versions(python)}
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as scratch:
        file = write(Path(scratch) / "rows.jsonl", duel.rows(count, model))
        few = write(Path(scratch) / "few.jsonl", duel.rows(WARM_ROWS, model))
        for threads in options.threads:
            ours: list[Sample] = []
            theirs: list[Sample] = []
            async with house(own_worker(python, duel.engine, duel.task, threads)) as at:
                await at.ready()
                await whole_run(at, few, duel.task, model, again="warm")
                for rep in range(options.reps):
                    await asyncio.to_thread(wait_for_quiet, options.wait_quiet_s)
                    peer = await asyncio.to_thread(run_batch, python, duel.engine, file, threads)
                    say(f"  run-batch, {threads} threads: {_told(peer.sample)}")
                    await asyncio.to_thread(wait_for_quiet, options.wait_quiet_s)
                    run = await whole_run(at, file, duel.task, model, again=f"rep-{rep}")
                    say(f"  Nightbatch, {threads} threads: {_told(run.sample)}, {run.shards} shards")
                    settings |= {"shards": run.shards, **_same_work(peer.bodies, run.result.tokens_in, run.result.tokens_out)}
                    theirs.append(peer.sample)
                    ours.append(run.sample)
            samples |= {f"run-batch, {threads} threads": tuple(theirs), f"Nightbatch, {threads} threads": tuple(ours)}
            target = duel.targets.get(threads)
            lines += [
                Line(f"{duel.name}, {threads} threads: run-batch", median_rate(theirs), "rows/s"),
                Line(f"{duel.name}, {threads} threads: Nightbatch", median_rate(ours), "rows/s"),
                Line(
                    f"{duel.name}, {threads} threads: Nightbatch / run-batch",
                    median_rate(ours) / median_rate(theirs),
                    "x",
                    ">=" if target is not None else None,
                    target,
                ),
            ]
    return Result(duel.name, tuple(lines), samples, settings)


def _same_work(bodies: dict[str, dict[str, Any]], tokens_in: int, tokens_out: int) -> dict[str, int]:
    """The tokens of both sides. Raises CannotMeasure where they differ: rates of different work say nothing."""
    usages = [body["usage"] for body in bodies.values()]
    peer = sum(u["prompt_tokens"] for u in usages), sum(u.get("completion_tokens") or 0 for u in usages)
    if peer != (tokens_in, tokens_out):
        raise CannotMeasure(f"run-batch counted {peer[0]} tokens in and {peer[1]} out, Nightbatch {tokens_in} and {tokens_out}.")
    return {"tokens_in": tokens_in, "tokens_out": tokens_out}


def _told(sample: Sample) -> str:
    cpu = "" if sample.cpu is None else f", {sample.cpu:.1f} s of processors"
    return f"{sample.rate:.2f} rows/s ({sample.seconds:.1f} s{cpu}, others {sample.foreign or 0:.0%})"
