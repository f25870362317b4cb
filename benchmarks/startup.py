"""benchmarks: how long `nightbatch --help` takes, and how much of a core the live view of a run takes.

The live view is drawn into a pseudo-terminal of 100 columns by a process of its own, which reports what it used; it is told of a change
20 times a second, more often than a run does.
"""

from __future__ import annotations

import json
import os
import pty
import statistics
import subprocess
import sys
import threading
import time

from benchmarks.harness import ROOT, CannotMeasure, Line, Options, Result, Sample, stopwatch

HELP_REPS = 11
HELP_TARGET_S = 0.3
VIEW_S = 10.0
VIEW_TARGET = 2.0
DRAWS_TARGET = 4.0


def measure(options: Options) -> Result:
    """Medians of both."""
    helps = [_help() for _ in range(3 if options.quick else HELP_REPS)]
    views = [_view(3.0 if options.quick else VIEW_S) for _ in range(options.reps)]
    lines = (
        Line("startup: nightbatch --help", statistics.median(s.seconds for s in helps), "s", "<", HELP_TARGET_S),
        Line("live view: share of a core", 100 * statistics.median(cpu for _, cpu, _ in views), "%", "<", VIEW_TARGET),
        Line("live view: draws", statistics.median(draws for _, _, draws in views), "Hz", "<=", DRAWS_TARGET),
    )
    return Result("startup", lines, {"nightbatch --help": tuple(helps), "live view": tuple(sample for sample, _, _ in views)})


def _help() -> Sample:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with stopwatch() as watch:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cli", "--help"], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=60, check=False,
        )  # fmt: skip
    if done.returncode != 0 or b"nightbatch" not in done.stdout:
        raise CannotMeasure(f"--help ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    return watch.sample(1)


def _view(seconds: float) -> tuple[Sample, float, float]:
    """One showing: the interval, the share of a core that it took, and its draws a second."""
    master, slave = pty.openpty()
    drain = threading.Thread(target=_drain, args=(master,), daemon=True)
    drain.start()
    try:
        with stopwatch() as watch:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "benchmarks.startup", str(seconds)], cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100"},
                stdin=slave, stdout=subprocess.PIPE, stderr=slave, timeout=seconds + 60, check=False,
            )  # fmt: skip
    finally:
        os.close(slave)
        drain.join(timeout=5)
        os.close(master)
    if done.returncode != 0:
        raise CannotMeasure(f"the live view ended with {done.returncode}.")
    said = json.loads(done.stdout)
    return watch.sample(1), said["cpu_share"], said["draws_per_second"]


def _drain(master: int) -> None:
    try:
        while os.read(master, 65536):
            pass
    except OSError:
        return  # the other end is closed: EIO on Linux


def show(seconds: float) -> None:
    """In the child: show a run that goes on for `seconds`; print what it took."""
    from cli.progress import Live, Snapshot

    times: list[float] = []
    view = Live(sys.stderr)
    draw = view._draw

    def timed() -> object:
        times.append(time.perf_counter())
        return draw()

    view._live._get_renderable = timed  # type: ignore[assignment]
    view.update(Snapshot("computing", 0, 100_000))
    time.sleep(0.5)  # the first draws import parts of rich
    times.clear()
    began, used = time.perf_counter(), time.process_time()
    step = 0
    while (passed := time.perf_counter() - began) < seconds:
        step += 1
        details = (
            ("shards", f"{step // 9} of 5,000 done, 4 running, 20 queued, {4_976 - step // 9:,} waiting"),
            ("cost", f"${step / 2000:.4f} so far, about $3.21 in all, $3.05 planned"),
            ("workers", "1 initializing, 2 running, 1 unhealthy"),
            ("failures", ", ".join(f"{step // 40} a_reason_of_some_length_{number}" for number in range(5))),
            ("attempts", f"lost: {step // 50} worker_died"),
        )
        snapshot = Snapshot("computing", step * 50, 100_000, failed=step // 40, details=details, tokens=step * 5_000, share=step / 2_000)
        view.update(snapshot)
        time.sleep(0.05)
    cpu = time.process_time() - used
    drawn = tuple(times)
    view.finish()
    print(json.dumps({"cpu_share": cpu / passed, "draws_per_second": (len(drawn) - 1) / (drawn[-1] - drawn[0])}))


if __name__ == "__main__":
    show(float(sys.argv[1]))
