"""benchmarks: planning a large JSONL file, without compression and upload: MB/s of one core, and the memory of the process that plans.

    python benchmarks/planning.py [--size 1000] [--repeats 3] [--json FILE]

Writes a file of about 500 bytes a row into a temporary folder (OpenAI batch lines, then plain records for `--column`), and for each kind
measures, every time in a fresh process: plain msgspec decoding of every line (the yardstick: no planner can read JSON faster than that), and
the planner's first reading with the cut into shards, which is what `nightbatch plan` does before anything is compressed or sent. Medians of
the repeats. MB/s count CPU seconds of the process, so that other work on the machine does not change what one core can do; wall time is
printed beside it. Also prints `second`: the same rows read again and compressed, as an upload would (not part of the goal).
"""

from __future__ import annotations

import argparse
import asyncio
import json
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

ROOT: Final = Path(__file__).resolve().parent.parent
GOAL_MB_S: Final = 60
GOAL_RSS_MB: Final = 250
WORDS: Final = [
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "that",
    "it",
    "was",
    "he",
    "for",
    "is",
    "with",
    "as",
    "his",
    "on",
    "be",
    "at",
    "by",
    "had",
    "not",
    "are",
    "but",
    "from",
    "or",
    "have",
    "an",
    "they",
    "which",
    "one",
    "you",
    "were",
    "her",
    "all",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "more",
    "no",
    "if",
    "out",
    "so",
    "said",
    "what",
    "up",
    "its",
    "about",
    "into",
    "than",
    "them",
    "can",
    "only",
    "other",
    "new",
    "some",
    "time",
]


def text_of(rng: random.Random, length: int) -> str:
    out: list[str] = []
    size = 0
    while size < length:
        word = rng.choice(WORDS)
        out.append(word)
        size += len(word) + 1
    return " ".join(out)


def rows(kind: str) -> Iterator[bytes]:
    """Rows of about 500 bytes for ever; texts repeat after 5,000 rows, ids do not."""
    rng = random.Random(7)
    texts = [text_of(rng, rng.randint(150, 550)) for _ in range(5000)]
    number = 0
    while True:
        text = texts[number % len(texts)]
        if kind == "batch":
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0.0}
            row: dict[str, Any] = {"custom_id": f"request-{number:08d}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        else:
            row = {
                "id": f"request-{number:08d}",
                "text": text,
                "stars": number % 5,
                "price": 9.5 + number,
                "tags": ["a", "b"],
                "sold": True,
            }
        yield json.dumps(row).encode() + b"\n"
        number += 1


def make_file(path: Path, kind: str, megabytes: int) -> None:
    left = megabytes * 1_000_000
    source = rows(kind)
    with path.open("wb", buffering=1 << 20) as file:
        while left > 0:
            line = next(source)
            file.write(line)
            left -= len(line)


def decode_only(path: Path) -> None:
    import msgspec

    decode = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        for line in file:
            decode(line)


def plan_only(path: Path, kind: str, *, second: bool) -> dict[str, float]:
    """As `plan_run` does it, up to the plan; `second`: then compress every row again, as the upload does."""
    import zstandard

    from contract.memory import MemoryStore
    from contract.models import RowOptions, TaskSpec
    from pipelines.dataset import find_files, open_reader
    from pipelines.plan import cut_shards
    from pipelines.preflight import preflight

    files = asyncio.run(find_files([str(path)], lambda bucket: MemoryStore(bucket=bucket)))
    generate = kind == "batch"
    task = TaskSpec(kind="generate" if generate else "embed", model="m")
    options = RowOptions() if generate else RowOptions(column="text", id_column="id" if kind == "records with ids" else None)
    reader = open_reader(files, task.kind, options, ("m",))
    scan, watch = preflight(reader, columns=not generate)
    cut = cut_shards(scan, task)
    digests = [scan.digests.of(s.start, s.stop) for s in cut.shards]
    found = {"rows": scan.rows, "shards": len(digests), "cpu": time.process_time(), "rss": rss_mb()}
    if second:
        packer = zstandard.ZstdCompressor(level=3).compressobj()
        for row in reader.rows(lambda *_: None, watch=watch):
            packer.compress(row[4] + b"\n")
        packer.flush()
        found["cpu_second"] = time.process_time() - found["cpu"]
    scan.close()
    return found


def rss_mb() -> float:
    """The most memory that this process had, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)


def child(what: str, path: Path, kind: str) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    if what == "decode":
        decode_only(path)
        found: dict[str, float] = {"cpu": time.process_time() - cpu, "rss": rss_mb()}
    else:
        found = plan_only(path, kind, second=what == "second")
        found["cpu"] -= cpu  # imports are part of planning
    found["wall"] = time.perf_counter() - wall
    print(json.dumps(found))


def measure(what: str, path: Path, kind: str, repeats: int) -> dict[str, float]:
    runs = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, __file__, "--child", what, str(path), kind], check=True, capture_output=True, text=True, env=environment()
        )
        runs.append(json.loads(done.stdout))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def main(argv: list[str]) -> int:
    if argv[:1] == ["--child"]:
        child(argv[1], Path(argv[2]), argv[3])
        return 0
    parser = argparse.ArgumentParser(description="MB/s and memory of planning a large JSONL file.")
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="size of the file in MB (default 1000)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each measurement (default 3); the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    asked = parser.parse_args(argv)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as folder:
        for kind, options in (("batch", ("batch",)), ("records", ("records", "records with ids"))):
            path = Path(folder) / f"{kind}.jsonl"
            print(f"writing {asked.size} MB of {kind} …", file=sys.stderr)
            make_file(path, kind, asked.size)
            size = path.stat().st_size / 1e6
            plain = measure("decode", path, kind, asked.repeats)
            for option in options:
                planned = measure("plan", path, option, asked.repeats)
                results.append(
                    {
                        "rows are": option,
                        "rows": int(planned["rows"]),
                        "shards": int(planned["shards"]),
                        "decode_mb_s": round(size / plain["cpu"], 1),
                        "plan_mb_s": round(size / planned["cpu"], 1),
                        "plan_mb_s_wall": round(size / planned["wall"], 1),
                        "ratio": round(plain["cpu"] / planned["cpu"], 3),
                        "rss_mb": round(planned["rss"], 1),
                        "second_mb_s": round(size / measure("second", path, option, 1)["cpu_second"], 1),
                        "ok": size / planned["cpu"] >= GOAL_MB_S and planned["rss"] < GOAL_RSS_MB,
                    }
                )
            path.unlink()
    names = list(results[0])
    widths = [max(len(name), *(len(str(r[name])) for r in results)) for name in names]
    print("  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)))
    for result in results:
        print("  ".join(str(result[name]).ljust(width) for name, width in zip(names, widths, strict=True)))
    print(f"goal: at least {GOAL_MB_S} MB/s on one core, less than {GOAL_RSS_MB} MB of memory")
    if asked.json:
        asked.json.write_text(json.dumps({"benchmark": "planning", "size_mb": asked.size, "results": results}, indent=2) + "\n")
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
