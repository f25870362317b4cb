"""benchmarks: planning a 1 GB JSONL file of about 500 bytes a row, without compression and upload: MB/s of one core, and memory.

    python -m benchmarks.planning [--size 1000] [--reps 3] [--keep]

For OpenAI batch lines, for records with --column, and for records with --column and --id-column, each time in a fresh process: plain
msgspec decoding of every line (the yardstick: no planner can read JSON faster than that), and what `nightbatch plan` does before anything
is compressed or sent: read and check every row, find the shards, make every digest. Rates count processor seconds, because the goal is
one core's and other programs run beside; wall seconds are kept with the samples.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import ROOT, CannotMeasure, Line, Options, Result, Sample, say, stopwatch, told

SIZE_MB: Final = 1000
GOAL_MB_S: Final = 60
GOAL_RSS_MB: Final = 250
KINDS: Final = {"batch lines": "batch", "--column": "records", "--column --id-column": "records"}
"""What is planned -> the file that it is planned from."""
WORDS: Final = (  # noqa: SIM905 (a list of them is sixty lines long)
    "the a of to and in that it was he for is with as his on be at by had not are but from or have an they which one you were her all she "
    "there would their we him been has when who will more no if out so said what up its about into than them can only other new some time"
).split(" ")


def text_of(rng: random.Random, length: int) -> str:
    """Common English words, about `length` characters."""
    out: list[str] = []
    size = 0
    while size < length:
        word = rng.choice(WORDS)
        out.append(word)
        size += len(word) + 1
    return " ".join(out)


def rows(kind: str) -> Iterator[bytes]:
    """Rows for ever; texts repeat after 5,000 rows, ids do not."""
    rng = random.Random(7)
    texts = [text_of(rng, rng.randint(200, 540) if kind == "batch" else rng.randint(250, 590)) for _ in range(5000)]
    number = 0
    while True:
        text = texts[number % len(texts)]
        row: dict[str, Any]
        if kind == "batch":
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0.0}
            row = {"custom_id": f"request-{number:08d}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        else:
            row = {"id": f"request-{number:08d}", "text": text, "stars": number % 5, "price": 9.5, "tags": ["a", "b"], "sold": True}
        yield json.dumps(row).encode() + b"\n"
        number += 1


def make_file(path: Path, kind: str, megabytes: int) -> None:
    """A file of that size."""
    left = megabytes * 1_000_000
    source = rows(kind)
    with path.open("wb", buffering=1 << 20) as file:
        while left > 0:
            line = next(source)
            file.write(line)
            left -= len(line)


def decode_only(path: Path) -> int:
    """The yardstick; the number of rows."""
    import msgspec

    decode = msgspec.json.Decoder().decode
    count = 0
    with path.open("rb") as file:
        for line in file:
            decode(line)
            count += 1
    return count


def plan_only(path: Path, what: str) -> tuple[int, int]:
    """As `plan_run` does it before it sends anything; rows and shards."""
    from contract.memory import MemoryStore
    from contract.models import RowOptions, TaskSpec
    from pipelines.dataset import find_files, open_reader
    from pipelines.plan import cut_shards
    from pipelines.preflight import preflight

    files = asyncio.run(find_files([str(path)], lambda bucket: MemoryStore(bucket=bucket)))
    batch = what == "batch lines"
    task = TaskSpec(kind="generate" if batch else "embed", model="m")
    options = RowOptions() if batch else RowOptions(column="text", id_column="id" if "--id-column" in what else None)
    reader = open_reader(files, task.kind, options, ("m",))
    scan, _ = preflight(reader, columns=not batch)
    cut = cut_shards(scan, task)
    digests = [scan.digests.of(shard.start, shard.stop) for shard in cut.shards]
    scan.close()
    return scan.rows, len(digests)


def peak_rss_mb() -> float:
    """The most memory that this process had, in MB. Not ru_maxrss where there is better: on Linux it starts with the parent's."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


def child(what: str, path: Path) -> dict[str, float]:
    """In a process of its own. Imports of the planner count, as they do for a user."""
    wall, cpu = time.perf_counter(), time.process_time()
    count, shards = (decode_only(path), 0) if what == "decode" else plan_only(path, what)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "rss": peak_rss_mb(), "rows": count, "shards": shards}


def measure(options: Options, *, size_mb: int | None = None) -> Result:
    """MB/s, the ratio to plain decoding, and memory; medians."""
    size_mb = size_mb if size_mb is not None else 20 if options.quick else SIZE_MB
    samples: dict[str, list[Sample]] = {}
    found: dict[str, list[dict[str, float]]] = {}
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as folder:
        for kind in dict.fromkeys(KINDS.values()):
            path = Path(folder) / f"{kind}.jsonl"
            say(f"  writing {size_mb} MB of {kind}")
            make_file(path, kind, size_mb)
            size = path.stat().st_size / 1e6
            steps = {f"decode {kind}": "decode", **{f"plan {what}": what for what, of in KINDS.items() if of == kind}}
            for _ in range(options.reps):
                for name, what in steps.items():
                    sample, numbers = _run(what, path, size)
                    samples.setdefault(name, []).append(sample)
                    found.setdefault(name, []).append(numbers)
                    say(f"  {name}: {size / numbers['cpu']:.0f} MB/s, {numbers['rss']:.0f} MB of memory")
            path.unlink()
            plain = statistics.median(n["cpu"] for n in found[f"decode {kind}"])
            for name in list(steps)[1:]:
                cpu = statistics.median(n["cpu"] for n in found[name])
                rows_, shards = int(found[name][0]["rows"]), int(found[name][0]["shards"])
                lines.append(Line(f"{name} ({rows_:,} rows, {shards} shards)", size / cpu, "MB/s", ">=", GOAL_MB_S))
                lines.append(Line(f"{name}: share of plain msgspec decoding", plain / cpu, "x"))
                lines.append(Line(f"{name}: memory", statistics.median(n["rss"] for n in found[name]), "MB", "<", GOAL_RSS_MB))
    return Result(
        "planning",
        tuple(lines),
        {name: tuple(group) for name, group in samples.items()},
        {"size_mb": size_mb, "processes": found},
        ("Samples count processor seconds; settings.processes has wall seconds too.",),
    )


def _run(what: str, path: Path, size: float) -> tuple[Sample, dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.planning", "--child", what, str(path)]
    with stopwatch() as watch:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode != 0:
        raise CannotMeasure(f"planning {what} failed; the message is above.")
    numbers: dict[str, float] = json.loads(done.stdout)
    return Sample(numbers["cpu"], size, watch.foreign), numbers


def main(argv: list[str]) -> int:
    if argv[:1] == ["--child"]:
        print(json.dumps(child(argv[1], Path(argv[2]))))
        return 0
    parser = argparse.ArgumentParser(prog="benchmarks.planning", description="Speed and memory of planning a large JSONL file.")
    parser.add_argument("--size", type=int, default=SIZE_MB, metavar="MB", help="size of the file")
    parser.add_argument("--reps", type=int, default=3, help="the median counts")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/planning.json")
    asked = parser.parse_args(argv)
    result = measure(Options(reps=asked.reps), size_mb=asked.size)
    return told(result, kept=asked.keep)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
