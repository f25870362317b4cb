"""Evaluations by the command line through the whole house: emulator, unmodified SDK workers that echo, real S3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.house import PER_SHARD, House, RunObjects, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUESTIONS = 3 * PER_SHARD
LONG_S = 150.0


def suite_file(folder: Path, right: int) -> Path:
    """Questions to which an echo is the right answer for the first `right` of them."""
    rows = ({"id": f"q{n}", "text": f"{n} is {n}", "answer": n if n < right else -1} for n in range(QUESTIONS))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"version": 1, "dataset": "rows.jsonl", "id_column": "id", "column": "text", "target_column": "answer"}
    path = folder / "echoes.yaml"
    path.write_text(json.dumps({**keys, "scorers": [{"kind": "numeric"}]}))
    return path


def test_an_evaluation_that_is_interrupted_goes_on_and_pays_nothing_twice(house: House, tmp_path: Path) -> None:
    suite, right = suite_file(tmp_path, QUESTIONS // 3), QUESTIONS // 3
    command = ("eval", "run", suite, "--model", "echo", "--json")
    house.gate.reset(1)
    started = house.start(*command)
    eventually(lambda: house.gate.came >= 2, "the first questions have reached the engine")
    started.interrupt()
    said = started.said(LONG_S)
    assert said.code == 130, said.err
    assert f"Go on with: nightbatch eval run {suite} --model echo --json" in said.err
    assert "nightbatch cancel " in said.err
    run = said.record["run"]

    house.gate.open()
    record = house.ok(*command, timeout_s=LONG_S)
    assert (record["run"], record["repeated"], record["questions"]) == (run, False, QUESTIONS)
    assert record["score"] == right / QUESTIONS
    assert record["counts"] == {"ok": QUESTIONS, "failed": 0, "cut": 0, "unparsed": 0}
    came, attempts = house.gate.came, len(RunObjects.of(house, run).intents)
    again = house.ok(*command)
    assert (again["repeated"], again["result"], house.gate.came) == (True, record["result"], came)
    assert len(RunObjects.of(house, run).intents) == attempts


def test_results_are_pinned_compared_and_gated_from_the_command_line(house: House, tmp_path: Path) -> None:
    suite = suite_file(tmp_path, QUESTIONS)
    first = house.ok("eval", "run", suite, "--model", "echo", "--again", "first", "--json", timeout_s=LONG_S)
    assert first["score"] == 1.0
    house.ok("eval", "baseline", "set", "perfect", f"echoes/{first['result']}", "--json")
    limits = ("--baseline", "perfect", "--max-regression", "0.02", "--json")
    second = house.ok("eval", "run", suite, "--model", "echo", "--again", "second", *limits, timeout_s=LONG_S)
    assert (second["gate"]["gate"], second["gate"]["comparison"]["p_value"]) == ("passed", 1.0)
    compared = house.ok("eval", "diff", "echoes/perfect", second["result"], "--json")
    assert (compared["worse"], compared["better"], compared["same"]) == (0, 0, QUESTIONS)
    assert [one["difference"] for one in house.ok("eval", "history", "echoes", "--last", "2", "--json")["results"]] == [None, 0.0]
    log = house.ok("eval", "export", "echoes/perfect", "--out", tmp_path, "--json")
    assert len(json.loads(Path(log["file"]).read_text())["samples"]) == QUESTIONS

    other = suite_file(tmp_path, 0)
    came = house.gate.came
    refused = house.cli("eval", "run", other, "--model", "echo", *limits)
    assert (refused.code, house.gate.came) == (2, came)
    assert "(dataset changed)" in refused.err
    failed = house.cli("eval", "run", other, "--model", "echo", "--min-score", "0.5", "--json", timeout_s=LONG_S)
    assert (failed.code, failed.record["gate"]["sentence"]) == (1, "The gate of echoes failed: numeric 0 is below 0.5.")
