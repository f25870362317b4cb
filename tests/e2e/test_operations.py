"""The on-call person's commands on a living house: an idle cut named before a run and mended, the kill switch in the middle of a run, and
the way back; none of it shows a key."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from contract.facts import DECLARED, write_declared
from tests.e2e.house import PER_SHARD, House, RunObjects, Said, eventually, ids, question_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SHARDS = 6
ROWS = SHARDS * PER_SHARD


@pytest.fixture
def stack(house: House) -> Iterator[House]:
    """The house, whose stack declares what it has now: what is cut from here on is a cut."""
    facts = house.stack.facts
    write_declared(house.state, facts)
    try:
        yield house
    finally:
        (house.state / DECLARED).unlink()
        for endpoint in facts.endpoints:
            patch(house, endpoint.id, min=endpoint.workers_min, max=endpoint.workers_max)


def patch(house: House, endpoint: str, **workers: int) -> Any:
    """What somebody does in the console."""
    found = house.stack
    request = urllib.request.Request(
        f"{found.facts.api_url}/serverless/{endpoint}",
        method="PATCH",
        data=json.dumps({"workers": workers}).encode(),
        headers={"Authorization": f"Bearer {found.secrets.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def no_secret(house: House, said: Said) -> None:
    for secret in house.stack.secrets.values:
        assert secret not in said.out + said.err


def test_a_healthy_house_has_no_findings(stack: House) -> None:
    said = stack.cli("doctor", "--json")
    assert said.code == 0, said.out + said.err
    assert said.record["findings"] == []
    assert said.record["unread"] == []
    no_secret(stack, said)
    text = stack.cli("doctor").out
    assert text.startswith("stack local: nothing found\n")
    assert "conditional writes hold" in text


def test_a_cut_is_named_before_the_first_job_and_mended_by_fix(stack: House, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    question_rows(rows, ROWS, text="Who wakes row {n}?")
    patch(stack, "echo", min=0, max=0)
    said = stack.cli("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--json")
    assert said.code == 3, said.err
    assert (said.record["state"], said.record["cause"], said.record["attempts"]) == ("stalled", "no_workers", 0)
    assert "nightbatch doctor local --fix" in said.err
    assert stack.gate.came == 0

    found = stack.cli("doctor", "--json")
    assert found.code == 1
    assert [finding["code"] for finding in found.record["findings"]] == ["workers_max_cut"]
    fixed = stack.cli("doctor", "local", "--fix", "--json")
    assert fixed.code == 0, fixed.out + fixed.err
    assert [one["done"] for one in fixed.record["mended"]] == [True]
    assert stack.cli("doctor", "--json").record["findings"] == []

    record = stack.ok("resume", said.record["run"], "--out", out)
    assert (record["state"], record["ok"]) == ("complete", ROWS)
    no_secret(stack, found)


def test_the_kill_switch_ends_a_run_and_the_run_goes_on_later(stack: House, rows: Path, tmp_path: Path) -> None:
    out, done = tmp_path / "out.jsonl", 2
    question_rows(rows, ROWS, text="Who stops row {n}?")
    stack.gate.reset(done)
    started = stack.start("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--json")
    eventually(lambda: stack.gate.came >= done + 2, "the first shards have reached the engine")
    run = stack.new_run()
    eventually(lambda: len(stack.committed(run)) >= done, "the first shards are committed")

    fleet = stack.ok("status", "--all-stacks")
    local, *others = fleet["stacks"]
    assert local["stack"] == "local"
    assert all(other["unknown"] for other in others)  # those of infra/stacks, which nobody has made here
    assert local["endpoints"][0]["workers"] == {"running": 1}
    assert fleet["usd_per_hour"] > 0
    assert local["oldest_job_s"] is not None

    said = stack.cli("stop", "local", "--json")
    assert said.code == 0, said.out + said.err
    assert {one["name"]: (one["workers_max_before"], one["workers_max"]) for one in said.record["endpoints"]} == {
        "echo": (1, 0),
        "vec": (1, 0),
    }
    assert [one["run"] for one in said.record["runs"]] == [run]
    assert said.record["runs"][0]["cancelled"] >= 1
    no_secret(stack, said)
    stack.gate.open()
    ended = started.said()
    assert (ended.code, ended.record["state"]) == (1, "stopped"), ended.err
    assert ended.record["ok"] < ROWS

    found = stack.cli("doctor", "--json")
    assert {finding["code"] for finding in found.record["findings"]} == {"stopped"}
    again = stack.cli("start", "local", "--json")
    assert again.code == 0, again.out + again.err
    assert stack.cli("doctor", "--json").code == 0
    record = stack.ok("resume", run, "--out", out, timeout_s=150)
    assert (record["state"], record["ok"], record["verified"]) == ("complete", ROWS, True)
    assert ids(out) == [f"row-{n}" for n in range(ROWS)]
    assert len(RunObjects.of(stack, run).committed) >= SHARDS


def test_another_persons_jobs_are_left_in_the_queue(stack: House) -> None:
    """A purge would remove them."""
    found = stack.stack
    patch(stack, "echo", min=0, max=0)
    request = urllib.request.Request(
        f"{found.facts.api_url}/echo/run",
        data=json.dumps({"input": {"somebody": "else"}}).encode(),
        headers={"Authorization": f"Bearer {found.secrets.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        job = json.load(answer)["id"]
    said = stack.cli("stop", "local")
    assert said.code == 0, said.err
    assert "start again: " in said.out
    health = urllib.request.Request(
        f"{found.facts.api_url}/echo/status/{job}", headers={"Authorization": f"Bearer {found.secrets.api_key}"}
    )
    with urllib.request.urlopen(health, timeout=10) as answer:
        assert json.load(answer)["status"] == "IN_QUEUE"
    assert stack.cli("start", "local").code == 0


def test_a_second_person_sees_the_facts_that_were_declared(stack: House) -> None:
    patch(stack, "echo", max=1)
    declared = replace(stack.stack.facts.endpoints[0], workers_max=4)
    write_declared(stack.state, replace(stack.stack.facts, endpoints=(declared, stack.stack.facts.endpoints[1])))
    said = stack.cli("doctor", "--json")
    assert [finding["code"] for finding in said.record["findings"]] == ["workers_max_cut"]
    assert "by hand" in said.record["findings"][0]["cause"]
