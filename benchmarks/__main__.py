"""benchmarks: `make bench`: runs benchmarks one after another, prints one table, keeps results/NAME.json.

    python -m benchmarks                          all of them (about an hour on two busy cores)
    python -m benchmarks generate embed           only these
    python -m benchmarks --quick                  few rows and one sample: whether they run, not how fast; nothing is kept
    python -m benchmarks --show                   the table of the results that are kept

Exit codes: 0 all targets met, 1 a target missed or a benchmark that could not measure, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import RESULTS, CannotMeasure, Line, Options, Result, Sample, keep, machine, say, table

NAMES = ("startup", "planning", "collecting", "submit", "embed", "generate", "one_row_jobs", "infrastructure", "evals", "report", "spaces")


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="make bench", description="Measure Nightbatch against vllm run-batch and its own limits.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--reps", type=int, default=3, help="samples of which the median is taken")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of OMP threads")
    parser.add_argument("--quick", action="store_true", help="few rows, one sample, nothing kept")
    parser.add_argument("--wait-quiet", type=float, default=0.0, metavar="S", help="wait so long for other programs before each sample")
    parser.add_argument("--worker-python", type=Path, help="Python of the worker's environment; default: scripts/worker-env")
    parser.add_argument("--show", action="store_true", help="print the kept results, measure nothing")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown or asked.reps < 1 or any(threads < 1 for threads in asked.threads):
        parser.error(f"there is no benchmark {', '.join(unknown)}" if unknown else "reps and threads are at least 1")
    names = asked.names or NAMES
    if asked.show:
        kept = [read(path) for name in names if (path := RESULTS / f"{name}.json").exists()]
        print(table(kept, {}))
        return 0
    options = Options(asked.reps, asked.quick, asked.wait_quiet, tuple(asked.threads), asked.worker_python)
    if options.quick:
        options = replace(options, reps=1)
    results: list[Result] = []
    failures: dict[str, str] = {}
    facts = machine()
    for name in names:
        say(f"{name} …")
        began = time.monotonic()
        try:
            result: Result = importlib.import_module(f"benchmarks.{name}").measure(options)
        except CannotMeasure as error:
            failures[name] = str(error)
            say(f"{name}: {error}")
            continue
        if not options.quick:
            keep(result, facts)
        results.append(result)
        say(f"{name}: {time.monotonic() - began:.0f} s")
    print(table(results, failures))
    return 1 if failures or any(line.met is False for result in results for line in result.lines) else 0


def read(path: Path) -> Result:
    """A kept result."""
    record = json.loads(path.read_text(encoding="utf-8"))
    lines = tuple(Line(line["name"], line["value"], line["unit"], line["sense"], line["limit"]) for line in record["lines"])
    samples = {
        name: tuple(Sample(s["seconds"], s["amount"], s["foreign_cpu_share"], s["cpu_seconds"]) for s in group)
        for name, group in record["samples"].items()
    }
    return Result(record["benchmark"], lines, samples, record["settings"], tuple(record["notes"]))


if __name__ == "__main__":
    sys.exit(main())
