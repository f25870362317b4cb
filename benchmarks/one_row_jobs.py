"""benchmarks: the same rows as one-row jobs with 30 in flight, the way RunPod's stock vLLM worker is used.

Both sides: the unmodified runpod SDK in one worker process, the same engine arguments and OMP threads, the same emulator. The peer is
benchmarks/peers/one_request_per_job.py; its rows travel in the job and its results in the job's output, and nothing of it is written to S3.
With SmolLM2 the model is the work; with the tiny random Llama nearly all is the way of a row, so the difference is as large as it gets.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.engines import Engine
from benchmarks.generate import ENGINE as SMOLLM2
from benchmarks.harness import CannotMeasure, Line, Options, Result, Sample, median_rate, say, versions, wait_for_quiet
from benchmarks.house import house, one_row_jobs, own_worker, peer_worker, whole_run
from benchmarks.rows import chat_rows, short_rows, write

IN_FLIGHT = 30
THREADS = 2
TINY = Engine("tiny", "generate", max_model_len=512)
SMOLLM2_TARGET = 1.2
TINY_TARGET = 8.0


def measure(options: Options) -> Result:
    """Rows a second of both ways and their ratio, for both models, with 2 OMP threads."""
    return asyncio.run(_measure(options))


async def _measure(options: Options) -> Result:
    samples: dict[str, tuple[Sample, ...]] = {}
    settings: dict[str, Any] = {"in_flight": IN_FLIGHT, "threads": THREADS, "versions": versions(options.python())}
    lines: list[Line] = []
    for engine, make, count, target in (
        (SMOLLM2, chat_rows, 24 if options.quick else 96, SMOLLM2_TARGET),
        (TINY, short_rows, 256 if options.quick else 1024, TINY_TARGET),
    ):
        ours, theirs = await _both(options, engine, make(count, engine.model))
        samples |= {f"Nightbatch, {engine.model}": tuple(ours), f"one-row jobs, {engine.model}": tuple(theirs)}
        settings[engine.model] = {"rows": count, "engine": engine.arguments()}
        name, ratio = f"one-row jobs, {engine.model}", median_rate(ours) / median_rate(theirs)
        lines += [
            Line(f"{name}: {IN_FLIGHT} in flight", median_rate(theirs), "rows/s"),
            Line(f"{name}: Nightbatch", median_rate(ours), "rows/s"),
            Line(f"{name}: Nightbatch / {IN_FLIGHT} in flight", ratio, "x", ">=", target),
        ]
    return Result("one_row_jobs", tuple(lines), samples, settings)


async def _both(options: Options, engine: Engine, rows: list[dict[str, Any]]) -> tuple[list[Sample], list[Sample]]:
    """All samples of ours and of theirs, in turn. Both workers are loaded before the first, and rest while the other works."""
    python = options.python()
    ours: list[Sample] = []
    theirs: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as scratch:
        file = write(Path(scratch) / "rows.jsonl", rows)
        async with house(own_worker(python, engine, "generate", THREADS)) as own:
            await own.ready()
            # No rate limits for the peer: a client that is refused nothing sends its rows as fast as it can.
            async with house(peer_worker(python, engine, THREADS, IN_FLIGHT), s3=False, rate_limits=False) as peer:
                await peer.ready()
                # Both sides compute all of it once before anything counts: the first batches of a shape are slow for either.
                await whole_run(own, file, "generate", engine.model, again="warm")
                await one_row_jobs(peer, rows)
                for rep in range(options.reps):
                    await asyncio.to_thread(wait_for_quiet, options.wait_quiet_s)
                    sample, tokens = await one_row_jobs(peer, rows)
                    say(f"  one-row jobs, {engine.model}: {sample.rate:.2f} rows/s ({sample.seconds:.1f} s)")
                    await asyncio.to_thread(wait_for_quiet, options.wait_quiet_s)
                    run = await whole_run(own, file, "generate", engine.model, again=f"rep-{rep}")
                    say(f"  Nightbatch, {engine.model}: {run.sample.rate:.2f} rows/s ({run.sample.seconds:.1f} s, {run.shards} shards)")
                    if abs(tokens - run.result.tokens_out) > 0.01 * tokens:
                        raise CannotMeasure(f"one-row jobs made {tokens} tokens and Nightbatch {run.result.tokens_out}: not the same work.")
                    theirs.append(sample)
                    ours.append(run.sample)
    return ours, theirs
