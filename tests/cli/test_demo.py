"""`make demo`: what it shows, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.local import running

ROOT = Path(__file__).resolve().parents[2]


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come to this: {what}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_demonstration_that_is_ended_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    worker = tmp_path / "python"  # has every model, and waits for ever where a worker would work
    worker.write_text('#!/bin/sh\n[ "$2" = worker ] && exec sleep 600\nexit 0\n')
    worker.chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "NIGHTBATCH_WORKER_PYTHON": str(worker)}
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "scripts/demo.py"), "--quick"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(lambda: "workers: " in output.read_text(), "jobs wait for a worker")
        (state,) = tmp_path.glob("nightbatch-demo-*/local")
        assert running(state) is not None
        if number is signal.SIGKILL:
            process.kill()  # the script alone: what it started has to notice
        else:
            os.killpg(process.pid, number)  # as a terminal or `timeout` does
        process.wait(timeout=60)
        until(lambda: running(state) is None, "the emulator is gone")
        assert process.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 130), output.read_text()
    finally:
        process.kill()
        process.wait(timeout=10)


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_the_demonstration_embeds_generates_verifies_and_says_what_it_took(tmp_path: Path, worker_python: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "scripts/demo.py"), "--quick"],
        env={**os.environ, "NIGHTBATCH_WORKER_PYTHON": str(worker_python), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = {line[:20].strip(): line[20:].split() for line in done.stdout.partition("== Summary")[2].splitlines()}
    assert summary["rows"] == ["200", "20"]
    assert summary["ok"] == ["200", "20"]
    assert summary["failed"] == ["0", "0"]
    assert int(summary["tokens out"][1]) > 20
    assert all(float(dollars) > 0 for dollars in summary["dollars, estimated"])
    assert all(float(seconds) > 0 for seconds in summary["worker seconds"])
    assert done.stdout.count(": complete, verified\n") == 2  # each command's own summary is shown
    assert done.stdout.count(": verified\n") == 2
    cli = subprocess.run([sys.executable, str(ROOT / "scripts/pulumi-cli"), "--check"], capture_output=True).returncode == 0
    assert ("a real `pulumi up`" in done.stdout) == ("local up --pulumi" in done.stdout) == cli
    assert "Type next:" in done.stdout
    assert "computing: " in done.stderr
    answers = [json.loads(line) for line in (ROOT / "out/demo/answers.jsonl").read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"python-{number:03}" for number in range(1, 21)]
    assert all(answer["response"]["body"]["choices"][0]["message"]["content"].strip() for answer in answers)
    assert list(tmp_path.glob("nightbatch*")) == []
