"""pipelines: tokens -> workers, seconds and dollars: low, likely, high. Pure.

Where the numbers come from:
- Dollars a second: the stack's facts (RunPod's price of the endpoint's GPU, all GPUs of a worker).
- What is billed: a worker from its start to its full stop, rounded up to seconds, idle time-out included (RunPod docs:
  serverless/pricing); a cold start is counted in full, because only the image's download is free.
- Tokens a second: runs of the past that this machine's ledger knows, where there are some (`observed`). Else a reference of which nothing
  here was measured on a GPU: 2 floating-point operations a parameter and token, at 40 % of the GPU's dense 16-bit tensor peak for input and
  10 % for output (usual for continuous batching), peaks from NVIDIA's data sheets. It can be wrong by a factor of 2.5 either way, and the
  range says so. For the emulator, two CPU cores as measured with vLLM 0.32 on CPU: MiniLM 2,500 to 5,600 tokens/s, SmolLM2-135M 70 to 570
  tokens/s out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Final

from contract.facts import EndpointFacts
from contract.models import Estimate, Range3, TaskKind

TERAFLOPS: Final = {
    "A4000": 77, "A4500": 95, "RTX 4000 Ada": 105, "RTX 2000 Ada": 48, "A5000": 111, "L4": 121, "3090": 71, "4090": 165, "5090": 210,
    "A40": 150, "A6000": 155, "L40S": 362, "L40": 181, "RTX 6000 Ada": 364, "A100": 312, "H100": 800, "RTX PRO 6000": 500, "H200": 989,
    "B200": 2250,
    "AMPERE_16": 48, "AMPERE_24": 71, "ADA_24": 165, "ADA_32_PRO": 210, "AMPERE_48": 150, "ADA_48_PRO": 181, "AMPERE_80": 312,
    "ADA_80_PRO": 800, "BLACKWELL_96": 500, "HOPPER_141": 989, "BLACKWELL_180": 2250,
}  # fmt: skip
"""Dense FP16/BF16 tensor peak, NVIDIA data sheets, rounded; the longest name that is part of the GPU's is taken. A pool, as stacks have it,
counts with the slowest of its cards (references/gpu-types)."""
UNKNOWN_TERAFLOPS: Final = 110
CPU_TERAFLOPS: Final = 0.4
"""Two cores under the emulator: reproduces the measurements above within their spread."""
CPU_OVERHEAD_S: Final = 0.3
SHARD_OVERHEAD_S: Final = 1.0
"""Reading a shard from S3 and writing its part; a worker overlaps it with the computing of its other shard."""
MOST_IN: Final = 100_000.0
MOST_OUT: Final = 20_000.0
"""Tokens a second past which tokenizing and scheduling bind, not the GPU."""
_NAMED: Final = {"minilm": 0.022, "smollm2": 0.135, "bge-small": 0.033, "bge-base": 0.11, "bge-large": 0.335, "e5-small": 0.033}
_DEFAULT_BILLIONS: Final[dict[TaskKind, float]] = {"generate": 8.0, "embed": 0.3}
IN_OUT: Final = 4.0
"""Input tokens cost a fourth of output tokens (40 % against 10 % of peak)."""


@dataclass(frozen=True)
class Throughput:
    """One worker's tokens a second, and how far off that may be: the truth lies between `slow` x and `fast` x."""

    tokens_in_per_s: float
    tokens_out_per_s: float
    slow: float
    fast: float
    basis: str


def billions(model: str, task: TaskKind) -> tuple[float, bool]:
    """Parameters of a model in billions, from its name (`Qwen3-4B`, `SmolLM2-135M`); False where it is only a default."""
    name = model.rstrip("/").rsplit("/", 1)[-1].lower()
    if match := re.search(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", name):
        return float(match[1]) / (1 if match[2] == "b" else 1000), True
    for known, size in _NAMED.items():
        if known in name:
            return size, True
    return _DEFAULT_BILLIONS[task], False


def reference(endpoint: EndpointFacts, task: TaskKind, *, emulated: bool) -> Throughput:
    """The default, when no run of the past says better."""
    size, known = billions(endpoint.model, task)
    if emulated:
        flops, on = CPU_TERAFLOPS * 1e12, "two CPU cores under the emulator"
    else:
        fitting = [name for name in TERAFLOPS if name.lower() in endpoint.gpu.lower()]
        peak = TERAFLOPS[max(fitting, key=len)] if fitting else UNKNOWN_TERAFLOPS
        flops, on = peak * 1e12 * endpoint.gpu_count, f"{endpoint.gpu_count} x {endpoint.gpu}"
    per_token = 2 * size * 1e9
    guess = "" if known else ", its size guessed"
    return Throughput(
        tokens_in_per_s=min(MOST_IN, 0.4 * flops / per_token),
        tokens_out_per_s=min(MOST_OUT, 0.1 * flops / per_token),
        slow=0.4,
        fast=2.5,
        basis=f"reference for {size:g}B parameters{guess} on {on}, not measured",
    )


@dataclass(frozen=True)
class Past:
    """A complete run of the same endpoint, task and model: tokens of its commits, and the computing seconds of all its executions, losers
    included: what it took, not what it could have taken."""

    executions: int
    tokens_in: int
    tokens_out: int
    computing_s: float


def observed(past: Iterable[Past], shards_per_worker: int) -> Throughput | None:
    """What runs of the past show. None where there are too few tokens to tell (under 10,000)."""
    runs = [run for run in past if run.tokens_in and run.computing_s > 0]
    tokens_in, tokens_out = sum(run.tokens_in for run in runs), sum(run.tokens_out for run in runs)
    if tokens_in + tokens_out < 10_000:
        return None
    # Executions of one worker overlap: each sees its own seconds while sharing the engine.
    rate = (tokens_in / IN_OUT + tokens_out) / (sum(run.computing_s for run in runs) / shards_per_worker)
    executions = sum(run.executions for run in runs)
    spread = 0.7 if executions >= 5 else 0.5
    named = (
        f"{len(runs)} past run{'s' if len(runs) > 1 else ''} of this machine ({executions} executions, {tokens_in + tokens_out:,} tokens)"
    )
    return Throughput(rate * IN_OUT, rate, spread, 1 / spread, named)


@dataclass(frozen=True)
class Work:
    """What is to be done. `out_*`: output tokens if answers are short, usual, or as long as they may be."""

    shards: int
    rows: int
    tokens_in: int
    out_low: int
    out_likely: int
    out_high: int


def output_tokens(limits: int) -> tuple[int, int, int]:
    """Low, likely and high output tokens of rows whose output limits add up to `limits`: a quarter, 60 % and all of them."""
    return limits // 4, limits * 3 // 5, limits


def worker_seconds(work: Work, speed: Throughput, endpoint: EndpointFacts, *, emulated: bool = False) -> Range3:
    """Seconds of one worker for all of the work, engine start left out."""
    overhead = work.shards * (CPU_OVERHEAD_S if emulated else SHARD_OVERHEAD_S) / endpoint.shards_per_worker

    def seconds(out: int, factor: float) -> float:
        return (work.tokens_in / speed.tokens_in_per_s + out / speed.tokens_out_per_s) / factor + overhead

    return Range3(low=seconds(work.out_low, speed.fast), likely=seconds(work.out_likely, 1.0), high=seconds(work.out_high, speed.slow))


def choose_pace(work: Work, busy_s: float, endpoint: EndpointFacts) -> int:
    """Workers to want: as many as have five cold starts' worth of work each (at least a minute), shards to take, and the endpoint's leave.

    More workers cost nothing but their cold starts; this keeps those under about a fifth of the bill.
    """
    worth = max(60.0, 5 * endpoint.cold_start_s)
    return max(1, min(endpoint.workers_max, ceil(work.shards / endpoint.shards_per_worker), ceil(busy_s / worth)))


def estimate(work: Work, speed: Throughput, endpoint: EndpointFacts, pace: int, *, emulated: bool = False) -> Estimate:
    """Workers, seconds from the first `/run` to the last commit, and dollars."""
    busy = worker_seconds(work, speed, endpoint, emulated=emulated)
    workers = max(1, min(pace, ceil(work.shards / endpoint.shards_per_worker)))
    waves = work.shards / (workers * endpoint.shards_per_worker)
    # The last shards leave some workers with nothing to do: half a shard's time on average.
    tail = 1 + (0.5 / waves if workers > 1 else 0)

    def wall(seconds: float, cold: float) -> float:
        return round(cold + seconds / workers * tail, 1)

    def usd(seconds: float, cold: float) -> float:
        return round((seconds + workers * (cold + endpoint.idle_timeout_s)) * endpoint.usd_per_second, 6)

    cold = endpoint.cold_start_s
    colds = (0.0 if endpoint.workers_min >= workers else cold * 0.5, cold, cold * 2)
    return Estimate(
        workers=workers,
        tokens_in=work.tokens_in,
        tokens_out=work.out_likely,
        seconds=Range3(low=wall(busy.low, colds[0]), likely=wall(busy.likely, colds[1]), high=wall(busy.high, colds[2])),
        usd=Range3(low=usd(busy.low, colds[0]), likely=usd(busy.likely, colds[1]), high=usd(busy.high, colds[2])),
        basis=(
            f"{speed.basis}: {speed.tokens_in_per_s:,.0f} tokens/s in, {speed.tokens_out_per_s:,.0f} out a worker; "
            f"${endpoint.usd_per_second:g}/s a worker; cold start {cold:g} s; tokens counted from a sample's bytes"
        ),
    )
