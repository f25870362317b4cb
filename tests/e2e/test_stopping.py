"""What stops a run, and what it ends with: budget, deadline, cancel, Ctrl-C; each exit code of DESIGN.md's law 8; and that all of them can
be resumed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from contract.keys import RunUri
from tests.e2e.house import PER_SHARD, House, RunObjects, Started, eventually, ids, question_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARDS = 6
ROWS = SHARDS * PER_SHARD
LONG_S = 150.0
"""An attempt that was cancelled is dead after a second look 30 s later; one whose answer was lost when its client was killed counts as out
for 62 s."""
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
    record = house.ok("resume", run, "--out", out, *more, timeout_s=LONG_S)
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
    """It holds the reserve of one job and a little; that one job costs more than the little, so there is no room for a second."""
    out, little = tmp_path / "out.jsonl", 0.001
    rows = question_rows(tmp_path / "budget.jsonl", ROWS)
    house.gate.reset(0)
    command = ("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--budget", str(RESERVE + little), "--json")
    started = house.start(*command)
    eventually(lambda: house.gate.came >= 1, "a shard has reached the engine")
    time.sleep(2 * little / 0.001)  # what it costs is its time
    house.gate.open()
    said = started.said(LONG_S)
    assert said.code == 4, said.err
    record = said.record
    assert (record["state"], record["cause"], record["shards_done"], record["attempts"]) == ("stopped", "budget", 1, 1)
    assert little < record["usd_estimated"] <= RESERVE + little
    found = finish(house, record["run"], out, "--budget", "100")
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}


def test_a_deadline_stops_the_run_with_exit_4_and_lets_running_shards_finish(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "deadline.jsonl", out, "--deadline", "12s", done=0)
    control = RunUri.parse(run).keys.control()
    eventually(lambda: control in house.keys(control), "the deadline has come")
    house.gate.open()
    said = started.said(LONG_S)
    assert said.code == 4, said.err
    assert (said.record["state"], said.record["cause"]) == ("stopped", "deadline")
    assert len(house.committed(run)) == 2
    assert not out.exists()


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
    assert said.record["jobs_out"] > 0
    assert f"cancel {run.rsplit('/', 1)[-1]} --stop" in said.err.splitlines()[-2], "jobs go on, and cost"
    command = last.partition("Go on with: ")[2].split()[1:]
    house.gate.open()
    record = house.ok(*command, timeout_s=LONG_S)
    assert (record["verified"], record["out"]) == (True, str(out)), "where to write to stands in the plan"
    assert ids(out) == [f"row-{n}" for n in range(ROWS)]
    found = RunObjects.of(house, run)
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_a_closed_terminal_are_as_ctrl_c(house: House, tmp_path: Path, number: signal.Signals) -> None:
    started, _ = begin(house, tmp_path / f"signal-{number}.jsonl", tmp_path / "out.jsonl", done=0)
    started.process.send_signal(number)
    assert started.said(20).code == 130


def test_cancel_keep_lets_running_shards_finish_and_a_partial_output_says_what_it_is(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "keep.jsonl", out)
    record = house.ok("cancel", run)
    assert (record["state"], record["mode"], record["running"]) == ("cancelled", "keep", 2)
    house.gate.open()
    said = started.said(LONG_S)
    assert said.code == 1, said.err
    assert (said.record["state"], said.record["cause"]) == ("stopped", "cancelled")
    stands = house.ok("status", run)
    assert (stands["state"], stands["outstanding"], stands["usd_reserved"]) == ("cancelled", 0, 0), "what waited is known to be over"
    found = RunObjects.of(house, run)
    assert len(found.committed) == 4, "two were done, two ran and were let finish"
    assert set(found.executions) == found.committed
    said = house.cli("collect", run, "--out", out, "--partial", "--json")
    assert said.code == 1
    assert (said.record["state"], said.record["ok"], said.record["missing"]) == ("partial", ROWS * 4 // 6, ROWS * 2 // 6)
    assert Path(said.record["out"]).name == "out.partial.jsonl"
    assert len(ids(Path(said.record["out"]))) == said.record["ok"]
    assert house.cli("collect", run, "--out", out, "--json").code == 1, "without --partial an open run has no output"
    assert not out.exists()


def test_cancel_stop_ends_running_shards_at_once_and_they_are_done_again(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "stop.jsonl", out)
    had = set(RunObjects.of(house, run).executions) - house.committed(run)
    assert house.ok("cancel", run, "--stop")["mode"] == "stop"
    said = started.said(60)
    assert said.code == 1, said.err
    assert said.record["usd_estimated"] > 0, "who follows it waits for the ends of what ran"

    def ended() -> bool:
        return {shard for shard, outcomes in RunObjects.of(house, run).outcomes().items() if "partial" in outcomes} == had

    eventually(ended, "the running executions have ended with the gate closed")
    assert len(house.committed(run)) == 2
    stands = house.ok("status", run)
    assert (stands["state"], stands["outstanding"]) == ("cancelled", 0)
    found = finish(house, run, out)
    assert {shard for shard, count in found.executions.items() if count > 1} == had


def test_a_job_that_the_workers_refuse_is_not_repeated_and_its_reason_is_shown(house: House, rows: Path, tmp_path: Path) -> None:
    """The revision is part of every job, and no worker has it: five attempts would be five refusals."""
    question_rows(rows, ROWS, text="Of another revision: row {n}?")
    out = tmp_path / "out.jsonl"
    said = house.cli(
        "run", rows, "--task", "generate", "--model", "echo", "--revision", "abc", "--out", out, "--json", timeout_s=LONG_S
    )  # fmt: skip
    assert said.code == 3, said.err
    record = said.record
    assert (record["state"], record["cause"], record["executions"]) == ("failed", "refused", 0)
    assert record["attempts"] <= SHARDS
    assert "`input.task.revision` is 'abc'" in record["reason"]
    assert "`input.task.revision` is 'abc'" in said.err
    stands = house.ok("status", record["run"])
    assert (stands["state"], stands["outstanding"], stands["usd_reserved"]) == ("failed", 0, 0)
    assert any("input.task.revision" in text for text in stands["job_errors"].values())
    listed = {one["run"]: one["state"] for one in house.ok("runs")["runs"]}
    assert listed[record["run"]] == "failed"


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
