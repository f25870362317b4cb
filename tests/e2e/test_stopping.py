"""What stops a run, and what it ends with: budget, deadline, cancel, Ctrl-C; each exit code of DESIGN.md's law 8; and that all of them can
be resumed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.house import House, RunObjects, Started, eventually, ids, question_rows

pytestmark = pytest.mark.slow

ROWS = 768
SHARDS = 6
RESERVE = (60 + 2 / 2) * 0.001
"""Dollars that one job may cost on the echo endpoint: its executionTimeout and its share of a cold start, at its price."""


def begin(house: House, rows: Path, out: Path, *more: str, done: int = 2) -> tuple[Started, str]:
    """A run in its middle: `done` shards are committed, and two more stand in the engine."""
    question_rows(rows, ROWS)
    house.gate.reset(done)
    started = house.start("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--json", *more)
    eventually(lambda: house.gate.came >= done + 2, "the first shards have reached the engine")
    run = house.new_run()
    eventually(lambda: len(house.committed(run)) >= done, "the first shards are committed")
    return started, run


def finish(house: House, run: str, out: Path, *more: str) -> RunObjects:
    """Resume it to its end."""
    house.gate.open()
    record = house.ok("resume", run, "--out", out, *more, timeout_s=110)
    assert (record["state"], record["ok"], record["verified"]) == ("complete", ROWS, True)
    assert ids(out) == [f"row-{n}" for n in range(ROWS)]
    return RunObjects.of(house, run)


def test_a_budget_too_small_for_one_job_sends_nothing_and_exits_4(house: House, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    question_rows(rows, ROWS, text="Too dear: row {n}?")
    said = house.cli("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--budget", str(RESERVE * 0.9), "--json")
    assert said.code == 4, said.err
    record = said.record
    assert (record["state"], record["cause"], record["attempts"], record["usd_estimated"]) == ("stopped", "budget", 0, 0)
    assert "nightbatch: stopped: " in said.err
    assert not out.exists()
    assert house.gate.came == 0
    finish(house, record["run"], out, "--budget", "100")


def test_a_budget_stops_the_run_in_its_middle_and_more_budget_finishes_it(house: House, tmp_path: Path) -> None:
    """The two that are sent first wait in the engine until they have cost so much that a third would be too much."""
    out = tmp_path / "out.jsonl"
    budget = 2 * RESERVE + 0.0001
    rows = question_rows(tmp_path / "budget.jsonl", ROWS)
    house.gate.reset(0)
    started = house.start("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--budget", str(budget), "--json")
    eventually(lambda: house.gate.came >= 2, "two shards have reached the engine")
    run = house.new_run()
    assert len(RunObjects.of(house, run).intents) == 2, "the budget holds two reserves"
    house.gate.open()
    said = started.said(110)
    record = said.record
    if said.code == 4:
        assert (record["state"], record["cause"]) == ("stopped", "budget")
        assert 2 <= record["shards_done"] < SHARDS
    assert said.code == 4, f"all was done within the budget: {record}"
    assert record["usd_estimated"] <= budget
    found = finish(house, run, out, "--budget", "100")
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}


def test_a_deadline_stops_the_run_with_exit_4_and_it_is_resumed(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "deadline.jsonl", out, "--deadline", "6s")
    house.gate.open()
    said = started.said(110)
    if said.code == 0:
        pytest.fail("the run was over before its deadline")
    assert said.code == 4, said.err
    assert (said.record["state"], said.record["cause"]) == ("stopped", "deadline")
    finish(house, run, out)


def test_ctrl_c_exits_130_says_how_to_go_on_and_the_run_is_resumed(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "interrupted.jsonl", out)
    started.interrupt()
    said = started.said(20)
    assert said.code == 130, said.err
    last = said.err.splitlines()[-1]
    assert last.startswith("nightbatch: interrupted. Nothing is lost. Go on with: ")
    assert f"resume {run.rsplit('/', 1)[-1]}" in last
    assert said.record["exit_code"] == 130
    assert said.record["run"] == run
    command = last.partition("Go on with: ")[2].split()[1:]
    house.gate.open()
    record = house.ok(*command, "--out", out, timeout_s=110)
    assert record["verified"] is True
    found = RunObjects.of(house, run)
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_a_closed_terminal_are_as_ctrl_c(house: House, tmp_path: Path, number: signal.Signals) -> None:
    started, _ = begin(house, tmp_path / f"signal-{number}.jsonl", tmp_path / "out.jsonl", done=0)
    started.process.send_signal(number)
    assert started.said(20).code == 130


def test_cancel_keep_lets_running_shards_finish_and_sends_no_more(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "keep.jsonl", out)
    record = house.ok("cancel", run)
    assert (record["state"], record["running"]) == ("keep", 2)
    house.gate.open()
    said = started.said(110)
    assert said.code == 1, said.err
    assert (said.record["state"], said.record["cause"]) == ("stopped", "cancelled")
    assert house.ok("status", run)["state"] == "keep"
    found = RunObjects.of(house, run)
    assert len(found.committed) == 4, "two were done, two ran and were let finish"
    assert set(found.executions) == found.committed
    found = finish(house, run, out)
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}


def test_cancel_stop_ends_running_shards_at_once_and_they_are_done_again(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "stop.jsonl", out)
    had = set(RunObjects.of(house, run).executions) - house.committed(run)
    assert house.ok("cancel", run, "--stop")["state"] == "stop"
    said = started.said(60)
    assert said.code == 1, said.err

    def ended() -> bool:
        return {shard for shard, outcomes in RunObjects.of(house, run).outcomes().items() if "partial" in outcomes} == had

    eventually(ended, "the running executions have ended with the gate closed")
    assert len(house.committed(run)) == 2
    found = finish(house, run, out)
    assert {shard for shard, count in found.executions.items() if count > 1} == had


def test_partial_output_of_a_cancelled_run_is_marked_and_not_the_final_name(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "partial.jsonl", out)
    house.ok("cancel", run, "--stop")
    assert started.said(60).code == 1
    said = house.cli("collect", run, "--out", out, "--partial", "--json")
    assert said.code == 1
    assert said.record["state"] == "partial"
    assert said.record["ok"] + said.record["missing"] == ROWS
    assert not out.exists()
    assert len(ids(Path(said.record["out"]))) == said.record["ok"] == ROWS // 3
    assert house.cli("collect", run, "--out", out, "--json").code != 0, "without --partial an open run has no output"
    assert not out.exists()


def test_a_mistake_of_the_user_exits_2_before_anything_is_sent(house: House, rows: Path, tmp_path: Path) -> None:
    question_rows(rows, 3)
    with rows.open("a") as file:
        file.write("{not json\n")
    said = house.cli("run", rows, "--task", "generate", "--model", "echo", "--out", tmp_path / "out.jsonl", "--json")
    assert said.code == 2
    assert f"{rows}:4" in said.err or "line 4" in said.err
    assert said.record["exit_code"] == 2
    assert house.runs() == house.seen
    assert house.gate.came == 0


def test_a_stack_without_workers_exits_3(house: House, rows: Path, tmp_path: Path) -> None:
    question_rows(rows, 40, text="Nobody answers row {n}?")
    facts = json.loads((house.state / "facts.json").read_text())
    facts["facts"]["endpoints"][0]["workers_max"] = 0
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "local").mkdir(parents=True)
    (elsewhere / "local" / "facts.json").write_text(json.dumps(facts))
    env = house.environment(NIGHTBATCH_HOME=str(elsewhere))
    said = house.cli("run", rows, "--task", "generate", "--model", "echo", "--out", tmp_path / "out.jsonl", "--json", env=env)
    assert said.code == 3, said.err
    assert (said.record["state"], said.record["cause"]) == ("stalled", "no_workers")
    assert "workers.max" in said.err
