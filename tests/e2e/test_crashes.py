"""kill -9 of the client, of a worker, of the emulator in the middle of a run, and two clients at once: the run finishes, nothing is lost or
doubled, and nothing is computed again but shards that were in flight. Real processes and a real S3 server; workers that echo."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from contract.keys import RunUri
from tests.e2e.house import PER_SHARD, House, RunObjects, Started, answers, eventually, ids, question_rows
from tests.emulator.kit import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARDS = 10
ROWS = SHARDS * PER_SHARD
SLOTS = 2
"""Shards that run at once: one worker, two jobs."""
LONG_S = 150.0
"""A client that is killed between an intent and its job leaves an attempt that counts as out for 62 s: executionTimeout and cold start."""


def begin(house: House, rows: Path, out: Path, *, done: int, more: tuple[str, ...] = ()) -> tuple[Started, str]:
    """A run in its middle: `done` shards are committed, and two more stand in the engine."""
    question_rows(rows, ROWS)
    house.gate.reset(done)
    started = house.start("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--json", *more)
    eventually(lambda: house.gate.came >= done + SLOTS, f"{done + SLOTS} shards have reached the engine; {started.err}")
    run = house.new_run()
    eventually(lambda: len(house.committed(run)) >= done, f"{done} shards are committed")
    return started, run


def check(house: House, run: str, out: Path, *, again: set[str] = frozenset()) -> RunObjects:  # type: ignore[assignment]
    """Every row is there once and in order, and only the shards in `again` were executed more than once."""
    assert ids(out) == [f"row-{n}" for n in range(ROWS)]
    for n, line in enumerate(answers(out)):
        assert f"row {n} about" in line["response"]["body"]["choices"][0]["message"]["content"]
    found = RunObjects.of(house, run)
    assert found.committed == {f"{n:05d}" for n in range(SHARDS)}
    assert {shard for shard, count in found.executions.items() if count > 1} <= again
    assert all(outcomes.count("won") == 1 for outcomes in found.outcomes().values())
    numbers = [intent.attempt for intent in found.intents]
    assert len(set(numbers)) == len(numbers)
    return found


def in_flight(house: House, run: str) -> set[str]:
    """Shards that have begun and are not committed."""
    found = RunObjects.of(house, run)
    return set(found.executions) - found.committed


@pytest.mark.parametrize("lost", ["nothing", "the ledger", "the machine"])
def test_a_killed_client_is_resumed_and_nothing_is_computed_again(house: House, rows: Path, tmp_path: Path, lost: str) -> None:
    question = {"nothing": "What is row {n} about?", "the ledger": "Say what row {n} about.", "the machine": "Tell, is row {n} about it?"}
    out, resumed = tmp_path / "out.jsonl", tmp_path / "resumed.jsonl"
    question_rows(rows, ROWS, text=question[lost])
    house.gate.reset(4)
    started = house.start("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--json")
    eventually(lambda: house.gate.came >= 6, "six shards have reached the engine")
    run = house.new_run()
    eventually(lambda: len(house.committed(run)) >= 4, "four shards are committed")
    started.kill()
    assert not out.exists()
    env = None
    if lost == "the ledger":
        (house.home / "ledger.sqlite3").unlink()
    elif lost == "the machine":
        env = house.elsewhere(tmp_path / "elsewhere")
    house.gate.open()
    record = house.ok("resume", run, "--out", resumed, env=env, timeout_s=LONG_S)
    assert (record["state"], record["rows"], record["ok"], record["verified"]) == ("complete", ROWS, ROWS, True)
    assert house.ok("verify", run, "--out", resumed, "--inputs", env=env)["state"] == "verified"
    found = check(house, run, resumed)
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}
    assert not out.exists()


def test_a_client_killed_before_it_sent_anything_is_resumed(house: House, rows: Path, tmp_path: Path) -> None:
    """Between the plan and the first job, and with a journal whose jobs may or may not have been sent."""
    question_rows(rows, ROWS, text="Before: is row {n} about this?")
    record = house.ok("plan", rows, "--task", "generate", "--model", "echo")
    house.gate.reset(0)
    started = house.start("submit", record["run"])
    eventually(lambda: house.keys(RunUri.parse(record["run"]).keys.journal_prefix()), "the first intents are in the journal")
    started.kill()
    house.gate.open()
    out = tmp_path / "out.jsonl"
    assert house.ok("resume", record["run"], "--out", out, timeout_s=LONG_S)["ok"] == ROWS
    check(house, record["run"], out)


def test_a_killed_worker_costs_only_the_shards_that_it_had(house: House, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, rows, out, done=3)
    had = in_flight(house, run)
    assert len(had) == SLOTS
    for pid in house.worker_pids():
        os.kill(pid, signal.SIGKILL)
    house.gate.open()
    said = started.said(LONG_S)
    assert said.code == 0, said.err
    assert said.record["verified"] is True
    found = check(house, run, out, again=had)
    assert all(found.executions[shard] == 2 for shard in had)


def test_a_killed_emulator_that_comes_back_costs_only_the_shards_in_flight(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "emulator.jsonl", out, done=3)
    had = in_flight(house, run)
    house.kill()
    eventually(lambda: not processes_of(house.state), "workers and S3 have ended with the emulator", 15)
    assert house.ok("local", "status")["state"] == "stopped"
    house.gate.open()
    house.up()
    said = started.said(LONG_S)
    assert said.code == 0, said.err
    assert said.record["verified"] is True
    check(house, run, out, again=had)


def test_a_killed_s3_server_comes_back_and_the_run_goes_on(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "s3.jsonl", out, done=3)
    had = in_flight(house, run)
    (server,) = (pid for pid, command in processes_of(house.state).items() if " mini " in command and "guard.py" not in command)
    os.kill(server, signal.SIGKILL)
    house.gate.open()
    said = started.said(LONG_S)
    assert said.code == 0, said.err
    assert said.record["verified"] is True
    done = {f"{n:05d}" for n in range(3)}
    found = check(house, run, out, again={f"{n:05d}" for n in range(SHARDS)} - done)
    assert had <= found.committed


def test_everything_killed_at_once_and_the_run_is_resumed(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    started, run = begin(house, tmp_path / "everything.jsonl", out, done=3)
    had = in_flight(house, run)
    started.kill()
    house.kill()
    eventually(lambda: not processes_of(house.state), "workers and S3 have ended with the emulator", 15)
    house.gate.open()
    house.up()
    assert house.ok("resume", run, "--out", out, timeout_s=LONG_S)["verified"] is True
    check(house, run, out, again=had)


def test_two_clients_resume_the_same_run_at_once(house: House, tmp_path: Path) -> None:
    budget = 1.0
    started, run = begin(house, tmp_path / "two.jsonl", tmp_path / "never.jsonl", done=2, more=("--budget", str(budget)))
    started.kill()
    outs = [tmp_path / "one.jsonl", tmp_path / "two-out.jsonl"]
    both = [house.start("resume", run, "--out", out, "--json") for out in outs]
    for client in both:
        eventually(lambda client=client: "computing" in client.err, "both clients follow the run")  # type: ignore[misc]
    house.gate.open()
    saids = [client.said(LONG_S) for client in both]
    assert [said.code for said in saids] == [0, 0], [said.err for said in saids]
    assert outs[0].read_bytes() == outs[1].read_bytes()
    found = check(house, run, outs[0])
    assert sorted(intent.shard for intent in found.intents) == sorted(found.committed), "each shard was sent once"
    assert all(said.record["usd_estimated"] <= budget for said in saids)
    assert len({said.record["seal"] for said in saids}) == 1


def test_the_same_command_twice_at_once_and_once_more_is_one_run(house: House, rows: Path, tmp_path: Path) -> None:
    question_rows(rows, ROWS, text="Twice: is row {n} about it?")
    outs = [tmp_path / name for name in ("one.jsonl", "two.jsonl", "three.jsonl")]
    both = [house.start("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--json") for out in outs[:2]]
    saids = [client.said(LONG_S) for client in both]
    assert [said.code for said in saids] == [0, 0], [said.err for said in saids]
    assert saids[0].record["run"] == saids[1].record["run"] == house.new_run()
    began = time.monotonic()
    record = house.ok("run", rows, "--task", "generate", "--model", "echo", "--out", outs[2], timeout_s=LONG_S)
    assert time.monotonic() - began < 30, "a run that is complete is only collected again"
    assert len({out.read_bytes() for out in outs}) == 1
    found = check(house, record["run"], outs[0])
    assert sorted(intent.shard for intent in found.intents) == sorted(found.committed), "each shard was sent once"
    assert sum(found.executions.values()) == SHARDS
