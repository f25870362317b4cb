"""Webhooks are hints: lost, doubled, late, out of order or forged, they change no result. The emulator's seam does it."""

from __future__ import annotations

import http.client
import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from emulator import DROP, PASS, Action, Message
from tests.e2e.house import (
    PER_SHARD,
    Gate,
    RunObjects,
    WatchedHouse,
    answers,
    config_of,
    echo_endpoint,
    eventually,
    question_rows,
    standing,
)

pytestmark = pytest.mark.slow

SHARDS = 4
ROWS = SHARDS * PER_SHARD


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedHouse]:
    home = tmp_path_factory.mktemp("watched")
    gate = Gate(home / "gate")
    with standing(WatchedHouse(home, config_of(home, echo_endpoint("echo", "generate", gate.folder)), gate)) as house:
        assert isinstance(house, WatchedHouse)
        yield house


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return question_rows(tmp_path_factory.mktemp("dataset") / "webhooks.jsonl", ROWS)


def lost(message: Message) -> Action:
    return DROP if message.kind == "webhook" else PASS


def doubled(message: Message) -> Action:
    return Action(copies=3) if message.kind == "webhook" else PASS


def late(message: Message) -> Action:
    """So late that most come when the run is over and nobody listens any more."""
    return Action(delay_s=4.0) if message.kind == "webhook" else PASS


def out_of_order(message: Message) -> Action:
    """Each by another time, which has nothing to do with when its job ended."""
    return Action(delay_s=0.1 + zlib.crc32((message.job or "").encode()) % 20 / 10) if message.kind == "webhook" else PASS


def refused(message: Message) -> Action:
    """As if the receiver were broken: RunPod tries again, and gives up."""
    return Action(answer=500) if message.kind == "webhook" else PASS


def results(path: Path) -> list[tuple[str, Any, Any]]:
    """What the model said to each row, in the order of the file; answers carry the time at which they were made."""
    return [(line["custom_id"], line["response"]["body"]["choices"], line["response"]["body"]["usage"]) for line in answers(path)]


@pytest.fixture(scope="module")
def quiet(watched: WatchedHouse, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any, Any]]:
    """The results of a run whose webhooks all came once."""
    out = tmp_path_factory.mktemp("quiet") / "out.jsonl"
    record = watched.ok("run", dataset, "--task", "generate", "--model", "echo", "--out", out, "--again", "quiet")
    assert (record["ok"], record["verified"], record["executions"]) == (ROWS, True, SHARDS)
    found = results(out)
    assert [ident for ident, _, _ in found] == [f"row-{n}" for n in range(ROWS)]
    return found


@pytest.mark.parametrize("fault", [lost, doubled, late, out_of_order, refused], ids=lambda fault: str(fault.__name__).replace("_", "-"))
def test_webhooks_that_go_wrong_change_nothing(
    watched: WatchedHouse, dataset: Path, quiet: list[tuple[str, Any, Any]], fault: Any, tmp_path: Path
) -> None:
    out, met = tmp_path / "out.jsonl", []
    watched.gate.reset()

    def hook(message: Message) -> Action:
        action: Action = fault(message)
        if action != PASS:
            met.append(message.job)
        return action

    with ExitStack() as stack:
        stack.enter_context(watched.emulator.seam.hook(hook))
        again = str(fault.__name__).replace("_", "-")
        record = watched.ok("run", dataset, "--task", "generate", "--model", "echo", "--out", out, "--again", again)
        mine = {job["id"] for job in watched.gate.jobs}
        eventually(lambda: mine <= set(met), "every webhook has met its fault")
    assert results(out) == quiet
    assert (record["verified"], record["attempts"], record["executions"]) == (True, SHARDS, SHARDS)


def post(url: str, body: bytes) -> int:
    """The status that the receiver answers."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        connection.request("POST", parts.path, body=body, headers={"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_forged_webhooks_change_nothing(watched: WatchedHouse, dataset: Path, quiet: list[tuple[str, Any, Any]], tmp_path: Path) -> None:
    """While its jobs wait in the engine: words of success and failure with no token, a wrong one, another shard's, and the right one."""
    out = tmp_path / "out.jsonl"
    watched.gate.reset(0)
    started = watched.start("run", dataset, "--task", "generate", "--model", "echo", "--out", out, "--again", "forged", "--json")
    eventually(lambda: watched.gate.came >= 2, "two shards have reached the engine")
    first, second = watched.gate.jobs[:2]
    base, _, token = first["webhook"].rpartition("/")
    other = second["webhook"].rpartition("/")[2]
    assert token != other
    for state in ("COMPLETED", "FAILED", "CANCELLED"):
        body = json.dumps({"id": first["id"], "status": state, "output": {"outcome": "won", "ok": 5, "part": "parts/none"}}).encode()
        for forged in ("", "0" * 64, other, token[:-1], token.upper() if token.upper() != token else "A" * 64):
            assert post(f"{base}/{forged}", body) in (404, 405)
        assert post(first["webhook"].replace(f"/{first['shard']}/", "/00999/"), body) == 404
        assert post(first["webhook"].replace("/1/", "/-1/"), body) == 404
        assert post(first["webhook"], body) == 200, "the right token, and still nothing but a hint"
        assert post(first["webhook"], b"\xff not JSON") == 200
    assert watched.committed(watched.new_run_named("forged")) == set()
    watched.gate.open()
    said = started.said()
    assert said.code == 0, said.err
    assert results(out) == quiet
    found = RunObjects.of(watched, said.record["run"])
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}
    assert said.record["attempts"] == SHARDS
