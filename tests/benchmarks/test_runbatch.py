# tests/benchmarks: the peer's time is read from its own log, as its lines arrive.
from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks import rows, runbatch
from benchmarks.engines import Engine, thread_environment
from benchmarks.harness import CannotMeasure

TALKER = """
import subprocess, sys, time
print("INFO loading", flush=True)
print("INFO Reading batch from in.jsonl...", flush=True)
time.sleep(0.4)
sys.stdout.write("INFO Writing outputs "); sys.stdout.flush()
time.sleep(0.1)
print("to local file", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
"""


def test_marks_are_timed_as_their_lines_arrive_and_no_process_is_left() -> None:
    began = time.perf_counter()
    talker = TALKER.replace("subprocess.Popen", "0 and subprocess.Popen")
    marks, watch, log = runbatch._follow([sys.executable, "-c", talker], dict(os.environ))
    assert 0.4 <= marks[runbatch.ENDS] - marks[runbatch.BEGINS] < 2
    assert watch is not None
    assert watch.seconds == pytest.approx(marks[runbatch.ENDS] - marks[runbatch.BEGINS], abs=0.3)
    assert log[0] == "INFO loading"
    assert time.perf_counter() - began < 30


def test_a_child_that_keeps_the_log_open_does_not_hold_us_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runbatch, "TIMEOUT_S", 2.5)
    with pytest.raises(CannotMeasure, match="did not end"):
        runbatch._follow([sys.executable, "-c", TALKER], dict(os.environ))


def test_both_sides_get_the_same_engine_arguments() -> None:
    engine = Engine("tiny", "generate", max_model_len=512)
    flags = engine.flags()
    for name, value in engine.arguments().items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            assert (f"--{dashed}" if value else f"--no-{dashed}") in flags
        else:
            assert flags[flags.index(f"--{dashed}") + 1] == str(value)
    assert thread_environment(2).items() <= engine.worker_environment(2).items()


def test_rows_are_the_same_every_time_and_of_mixed_lengths(tmp_path: Path) -> None:
    made = rows.chat_rows(120, "smollm2")
    assert made == rows.chat_rows(120, "smollm2")
    assert len({row["custom_id"] for row in made}) == 120
    lengths = [len(row["body"]["messages"][0]["content"]) for row in made]
    assert max(lengths) > 6 * min(lengths)
    assert {row["body"]["max_tokens"] for row in made} == set(rows.MAX_TOKENS)
    path = rows.write(tmp_path / "rows.jsonl", made)
    assert len(path.read_text().splitlines()) == 120


@pytest.mark.engine
def test_embedding_rows_have_at_most_64_tokens(worker_python: Path) -> None:
    import json
    import subprocess

    code = (
        "import json, sys\n"
        "from transformers import AutoTokenizer\n"
        "from worker.models import resolve\n"
        "tokens = AutoTokenizer.from_pretrained(resolve('minilm'))(json.load(sys.stdin))['input_ids']\n"
        "print(max(len(t) for t in tokens))\n"
    )
    texts = [row["body"]["input"] for row in rows.embed_rows(2400, "minilm")]
    done = subprocess.run(
        [str(worker_python), "-c", code], input=json.dumps(texts), capture_output=True, text=True, timeout=300, check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert 16 < int(done.stdout) <= 64
