"""benchmarks: collecting and verifying 1,000,000 embedding rows of 384 numbers: rows per second and the memory of the process.

    python -m benchmarks.collecting [--rows 1000000] [--shard 10000] [--reps 3] [--keep]

Makes a finished run in a temporary folder (parts in another order than the input, one row in 1,000 failed, two original columns), and then,
each time in a fresh process, collects it into a Parquet file and verifies run and file. The store is a folder, so that what is measured is
this project and not a network. The goal is memory: less than 400 MB for the whole process, Python and pyarrow included.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import ROOT, CannotMeasure, Line, Options, Result, Sample, say, stopwatch, told
from contract.errors import AlreadyExists, NotFound
from contract.keys import RunKeys, shard_name
from contract.lines import compress
from contract.models import (
    DatasetFacts,
    Estimate,
    FileFacts,
    OutputSpec,
    PartCommit,
    PinnedInfra,
    Plan,
    Range3,
    RowOptions,
    ShardPlan,
    Source,
    StoreMode,
    StorePin,
    TaskSpec,
    decode,
    encode,
)
from contract.rows import InputDigest, RowError, ShardDigest, row_digest
from contract.store import CHUNK, Blob, Head, put_object
from pipelines.collect import collect
from pipelines.plan import plan_id_of
from pipelines.verify import verify

ROWS: Final = 1_000_000
SHARD: Final = 10_000
DIMENSIONS: Final = 384
GOAL_RSS_MB: Final = 400
FAILED_EVERY: Final = 1000
NO_PLAN: Final = "00" * 32
"""Until all rows are made."""
AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class DirectoryStore:
    """A bucket as a folder, for one process at a time."""

    root: Path
    bucket: str = "folder"
    endpoint_url: str = "directory:"
    mode: StoreMode = "conditional"

    def _at(self, key: str) -> Path:
        return self.root / key

    async def get(self, key: str) -> Blob:
        try:
            data = self._at(key).read_bytes()
        except FileNotFoundError:
            raise NotFound("there is no such object.", where=key) from None
        return Blob(data, hashlib.md5(data, usedforsecurity=False).hexdigest())

    async def head(self, key: str) -> Head | None:
        path = self._at(key)
        return Head(key, path.stat().st_size, "") if path.is_file() else None

    async def put(self, key: str, data: bytes | Path) -> str:
        path = self._at(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, Path):
            shutil.copyfile(data, path)
        else:
            path.write_bytes(data)
        return ""

    async def put_if_absent(self, key: str, data: bytes) -> str:
        if self._at(key).exists():
            raise AlreadyExists("the object is there already.", where=key)
        return await self.put(key, data)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        if (await self.get(key)).etag != etag:
            raise AlreadyExists("the object is another one by now.", where=key)
        return await self.put(key, data)

    async def read(self, key: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        try:
            file = self._at(key).open("rb")
        except FileNotFoundError:
            raise NotFound("there is no such object.", where=key) from None
        with file:
            file.seek(start)
            left = (stop if stop is not None else self._at(key).stat().st_size) - start
            while left > 0 and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk

    async def list(self, prefix: str) -> AsyncIterator[Head]:
        for path in sorted(self._at(prefix).rglob("*")):
            if path.is_file():
                yield Head(path.relative_to(self.root).as_posix(), path.stat().st_size, "")

    async def delete(self, key: str) -> None:
        self._at(key).unlink(missing_ok=True)

    def now(self) -> datetime:
        return AT

    async def close(self) -> None:
        return None


async def make_run(folder: Path, rows: int, shard_rows: int) -> None:
    """A finished run of `rows` rows, as workers would have left it, with its plan in the folder."""
    store, keys = DirectoryStore(folder), RunKeys("runs/bench")
    whole = InputDigest()
    shards: list[ShardPlan] = []
    commits: list[PartCommit] = []
    for number, start in enumerate(range(0, rows, shard_rows)):
        shard, commit = await make_shard(store, keys, shard_name(number), start, min(rows, start + shard_rows), whole)
        shards.append(shard)
        commits.append(commit)
    infra = PinnedInfra(
        stack="local", endpoint="e", endpoint_id="e", api_url="http://127.0.0.1/v2", model="m", gpu="cpu", usd_per_second=0.001,
        scaler="QUEUE_DELAY", scaler_value=4, shards_per_worker=2, workers_max=2, execution_timeout_s=600, cold_start_s=10,
    )  # fmt: skip
    task = TaskSpec(kind="embed", model="m")
    plan_id = plan_id_of(whole.hexdigest(), task, [shard.source.rows for shard in shards], store.mode)
    for commit in commits:
        await store.put(keys.commit(commit.shard), encode(msgspec.structs.replace(commit, plan=plan_id)))
    none = Range3(low=0, likely=0, high=0)
    plan = Plan(
        plan_id=plan_id,
        run_id="bench",
        run=f"s3://{store.bucket}/{keys.root}",
        created_at=AT,
        dataset=DatasetFacts(files=(FileFacts(name="rows", size=0, rows=rows),), format="parquet", rows=rows, digest=whole.hexdigest()),
        rows=RowOptions(column="text"),
        task=task,
        store=StorePin(bucket=store.bucket, endpoint_url=store.endpoint_url, mode=store.mode),
        infra=infra,
        shards=tuple(shards),
        pace=1,
        estimate=Estimate(workers=1, tokens_in=0, tokens_out=0, seconds=none, usd=none, basis="none"),
        output=OutputSpec(path=None, format="parquet"),
    )
    await store.put(keys.plan(), encode(plan))


async def make_shard(
    store: DirectoryStore, keys: RunKeys, name: str, start: int, stop: int, whole: InputDigest
) -> tuple[ShardPlan, PartCommit]:
    rng = np.random.default_rng(start)
    vectors = rng.standard_normal((stop - start, DIMENSIONS), dtype=np.float32)
    mine, shard = InputDigest(), ShardDigest()
    digests = [row_digest(index, f"row-{index}", b'{"input":"text %d"}' % index) for index in range(start, stop)]
    error = msgspec.json.encode(RowError(code="too_long", message="the row is too long"))
    errors: list[bytes] = []
    for index, digest in zip(range(start, stop), digests, strict=True):
        mine.add(digest)
        whole.add(digest)
        failed = index % FAILED_EVERY == FAILED_EVERY - 1
        shard.add(index, digest, not failed, error if failed else vectors[index - start].tobytes())
        if failed:
            errors.append(b'{"index":%d,"row":"%s","id":"row-%d","error":%s}\n' % (index, digest.hex().encode(), index, error))

    def parquet(content: pa.Table) -> bytes:
        sink = io.BytesIO()
        pq.write_table(content, sink, use_dictionary=False, row_group_size=2048)
        return sink.getvalue()

    order = rng.permutation([i for i in range(start, stop) if i % FAILED_EVERY != FAILED_EVERY - 1])
    part = pa.table(
        {
            "index": pa.array(order, pa.int64()),
            "row": pa.array([digests[i - start] for i in order], pa.binary(32)),
            "id": pa.array([f"row-{i}" for i in order], pa.string()),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors[order - start].reshape(-1)), DIMENSIONS),
            "tokens": pa.array(order % 60, pa.int32()),
        }
    )
    columns = pa.table({"text": [f"the text of row number {i}" for i in range(start, stop)], "stars": [i % 5 for i in range(start, stop)]})
    refs = [
        await put_object(store, keys.part(name, "0" * 16, "parquet"), parquet(part)),
        await put_object(store, keys.columns(name), parquet(columns)),
    ]
    failed_ref = await put_object(store, keys.errors(name, "0" * 16), compress(b"".join(errors))) if errors else None
    source = Source(uri=f"s3://{store.bucket}/{keys.input(name)}", rows=(start, stop), count=stop - start, digest=mine.hexdigest())
    commit = PartCommit(
        plan=NO_PLAN, shard=name, execution="0" * 16, attempt=1, part=refs[0], errors=failed_ref, ok=len(order), failed=len(errors),
        tokens_in=0, tokens_out=0, input_digest=source.digest, digest=shard.hexdigest(), at=AT,
    )  # fmt: skip
    return ShardPlan(shard=name, source=source, tokens=0, bytes=0, columns=refs[1]), commit


def peak_rss_mb() -> float:
    """The most memory that this process had, in MB. Not ru_maxrss where there is better: on Linux it starts with the parent's."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


async def child(what: str, folder: Path, out: Path) -> dict[str, Any]:
    """In a process of its own: collect or verify, and how it went."""
    store, keys = DirectoryStore(folder), RunKeys("runs/bench")
    plan: Plan = decode((await store.get(keys.plan())).data, Plan, where="plan.json")
    began, cpu = time.perf_counter(), time.process_time()
    if what == "collect":
        collected = await collect(store, keys, plan, str(out))
        rows = collected.ok + collected.failed
    else:
        report = await verify(store, keys, plan, str(out))
        if not report.clean:
            raise CannotMeasure(str(report.failure()))
        rows = report.rows
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "rss": peak_rss_mb(), "rows": rows}


def measure(options: Options, *, rows: int | None = None, shard_rows: int = SHARD) -> Result:
    """Rows per second and memory of collect and verify; medians."""
    rows = rows if rows is not None else ROWS // 20 if options.quick else ROWS
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    samples: dict[str, list[Sample]] = {"collect": [], "verify": []}
    memory: dict[str, list[float]] = {"collect": [], "verify": []}
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as name:
        folder = Path(name) / "bucket"
        say(f"  making a run of {rows:,} rows of {DIMENSIONS} numbers")
        made = subprocess.run([sys.executable, "-m", "benchmarks.collecting", "--make", str(folder), str(rows), str(shard_rows)],
                              cwd=ROOT, env=environment, check=False)  # fmt: skip
        if made.returncode != 0:
            raise CannotMeasure("the run could not be made; the message is above.")
        for _ in range(options.reps):
            for what in ("collect", "verify"):
                command = [sys.executable, "-m", "benchmarks.collecting", "--child", what, str(folder), str(Path(name) / "rows.parquet")]
                with stopwatch() as watch:
                    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
                if done.returncode != 0:
                    raise CannotMeasure(f"{what} failed; the message is above.")
                found = json.loads(done.stdout)
                samples[what].append(Sample(found["seconds"], found["rows"], watch.foreign))
                memory[what].append(found["rss"])
                say(f"  {what}: {found['seconds']:.1f} s ({found['cpu']:.1f} s of processor), {found['rss']:.0f} MB")
    lines: list[Line] = []
    for what in ("collect", "verify"):
        lines.append(Line(f"{what} {rows:,} embeddings", statistics.median(s.rate for s in samples[what]), "rows/s"))
        lines.append(Line(f"{what}: memory of the process", statistics.median(memory[what]), "MB", "<", GOAL_RSS_MB))
    return Result(
        "collecting",
        tuple(lines),
        {what: tuple(group) for what, group in samples.items()},
        {"rows": rows, "rows_per_shard": shard_rows, "dimensions": DIMENSIONS, "rss_mb": memory},
        ("The store is a folder of this machine.",),
    )


def main(argv: list[str]) -> int:
    if argv[:1] == ["--make"]:
        asyncio.run(make_run(Path(argv[1]), int(argv[2]), int(argv[3])))
        return 0
    if argv[:1] == ["--child"]:
        print(json.dumps(asyncio.run(child(argv[1], Path(argv[2]), Path(argv[3])))))
        return 0
    parser = argparse.ArgumentParser(prog="benchmarks.collecting", description="Speed and memory of collect and verify.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--shard", type=int, default=SHARD, help="rows of a shard")
    parser.add_argument("--reps", type=int, default=3, help="the median counts")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/collecting.json")
    asked = parser.parse_args(argv)
    result = measure(Options(reps=asked.reps), rows=asked.rows, shard_rows=asked.shard)
    return told(result, kept=asked.keep)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
