"""`/run` calls that go wrong on the way: the answer is lost, RunPod says 429 or 500, the request never arrives. No job is paid twice where
it may have been accepted, and every row comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator import DROP, PASS, Action, Message
from tests.e2e.house import PER_SHARD, Gate, RunObjects, WatchedHouse, config_of, echo_endpoint, ids, question_rows, standing

pytestmark = pytest.mark.slow

SHARDS = 4


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedHouse]:
    """Its jobs may take 8 s, so that an unknown one is given up after 9 s."""
    home = tmp_path_factory.mktemp("watched")
    gate = Gate(home / "gate")
    endpoint = echo_endpoint("echo", "generate", gate.folder, execution_timeout_ms=8000, cold_start_s=1.0)
    with standing(WatchedHouse(home, config_of(home, endpoint), gate)) as house:
        assert isinstance(house, WatchedHouse)
        yield house


@pytest.mark.parametrize(
    ("kind", "action", "times", "again"),
    [
        ("response", DROP, 3, 0),  # accepted, and the client does not know
        ("response", Action(answer=500), 3, 0),
        ("request", Action(answer=429), 6, 0),  # certainly not accepted: sent again under the same number
        ("request", DROP, 2, 2),  # not accepted, and the client does not know: sent again when no answer can come any more
    ],
    ids=["the-answer-is-lost", "500-after-it-was-accepted", "429", "the-request-never-arrives"],
)
def test_a_run_call_that_goes_wrong_is_paid_once(
    watched: WatchedHouse, tmp_path: Path, kind: str, action: Action, times: int, again: int, request: pytest.FixtureRequest
) -> None:
    rows, out = tmp_path / f"{request.node.callspec.id}.jsonl", tmp_path / "out.jsonl"
    question_rows(rows, SHARDS * PER_SHARD)
    watched.gate.reset()
    met: list[Message] = []

    def hook(message: Message) -> Action:
        if (message.kind, message.operation) == (kind, "run") and len(met) < times:
            met.append(message)
            return action
        return PASS

    with watched.emulator.seam.hook(hook):
        record = watched.ok("run", rows, "--task", "generate", "--model", "echo", "--out", out, timeout_s=110)
    assert len(met) == times
    assert record["verified"] is True
    assert ids(out) == [f"row-{n}" for n in range(SHARDS * PER_SHARD)]
    found = RunObjects.of(watched, record["run"])
    assert len(found.intents) == SHARDS + again
    assert found.executions == {f"{n:05d}": 1 for n in range(SHARDS)}
