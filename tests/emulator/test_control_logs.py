"""Worker logs as REST v2 streams them."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from emulator import Emulator, EmulatorConfig, EndpointConfig, ImageConfig, Script, ScriptedWorker
from emulator.control.logs import WorkerLogs
from emulator.control.records import rfc3339
from emulator.control.usage import parse_rfc3339
from tests.emulator.control_kit import COUNT, Rest, controlled, endpoint
from tests.emulator.kit import echo, eventually


async def events(rest: Rest, path: str, count: int, **headers: str) -> list[tuple[str, dict[str, Any]]]:
    """The first events of a stream: ids and data."""
    key = {"Authorization": f"Bearer {rest.emulator.api_key}", **headers}
    found: list[tuple[str, dict[str, Any]]] = []
    async with asyncio.timeout(10), rest.session.get(f"{rest.emulator.root_url}/v2{path}", headers=key) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-cache"
        event_id = ""
        while len(found) < count:
            line = (await answer.content.readline()).decode()
            if line.startswith("id: "):
                event_id = line[4:].strip()
            elif line.startswith("data: "):
                found.append((event_id, json.loads(line[6:])))
            elif not line:
                break
    return found


async def test_logs_are_events_with_a_tail_a_source_and_a_place_to_go_on(tmp_path: Path) -> None:
    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        worker.say(f"job {job['input']}")

    script = Script(handler, says=("loading", "loaded"))
    async with controlled(tmp_path, script=script) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(scaling=COUNT, workers={"min": 1, "max": 1}))
        await eventually(lambda: emulator.open_polls(made["id"]))
        (worker,) = emulator.endpoint(made["id"]).workers
        path = f"/serverless/{made['id']}/workers/{worker.id}/logs"
        whole = await events(rest, path, 5)
        assert [(data["source"], data["line"]) for _, data in whole] == [
            ("system", "create container"),
            ("system", "start container"),
            ("container", "loading"),
            ("container", "loaded"),
            ("system", "worker is ready"),
        ]
        assert all(event_id == data["ts"] for event_id, data in whole)
        assert [data["line"] for _, data in await events(rest, f"{path}?source=container&tail=1", 1)] == ["loaded"]
        following = asyncio.create_task(events(rest, f"{path}?tail=0&source=container", 1))
        going_on = asyncio.create_task(events(rest, f"{path}?tail=0", 2, **{"Last-Event-ID": whole[3][0]}))
        await asyncio.sleep(0)
        await rest.run(made["id"], 1)
        assert [data["line"] for _, data in await following] == ["job 1"]
        assert [data["line"] for _, data in await going_on] == ["worker is ready", "job 1"]
        since = whole[4][1]["ts"].replace("+", "%2B")
        assert [data["line"] for _, data in await events(rest, f"{path}?since={since}", 2)] == ["worker is ready", "job 1"]
        for query in ("tail=5001", "tail=-1", "source=gpu", "since=today"):
            assert (await rest.ask("GET", f"{path}?{query}")).status == 422, query
        for wrong in (f"/serverless/{made['id']}/workers/nobody/logs", f"/serverless/nothing/workers/{worker.id}/logs"):
            assert (await rest.ask("GET", wrong)).status == 404


async def test_the_stream_ends_with_its_worker_and_the_log_can_still_be_read(tmp_path: Path) -> None:
    async with controlled(tmp_path, script=Script(echo, exit_code=3, says=("no such model",))) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(workers={"min": 1, "max": 1}))
        await eventually(lambda: emulator.endpoint(made["id"]).workers and emulator.endpoint(made["id"]).workers[0].unhealthy)
        (worker,) = emulator.endpoint(made["id"]).workers
        path = f"/serverless/{made['id']}/workers/{worker.id}/logs"
        lines = [data["line"] for _, data in await events(rest, path, 100)]
        assert lines[2:5] == [
            "no such model",
            "container ended with exit code 3",
            "worker is unhealthy: ended with exit code 3 before it asked for work",
        ]
        assert [data["line"] for _, data in await events(rest, path, 100)] == lines


async def test_what_a_process_prints_is_its_container_log(tmp_path: Path) -> None:
    image = ImageConfig(command=(sys.executable, "-c", "print('one\\ntwo', flush=True); import time; time.sleep(60)"))
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(), images={"*": image}, s3=False)
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        rest = Rest(session, emulator)
        made = await rest.post("/serverless", endpoint(workers={"min": 1, "max": 1}))
        (worker,) = emulator.endpoint(made["id"]).workers
        found = await events(rest, f"/serverless/{made['id']}/workers/{worker.id}/logs?source=container", 2)
        assert [data["line"] for _, data in found] == ["one", "two"]
        times = [datetime.datetime.fromisoformat(data["ts"]) for _, data in found]
        assert times[0] < times[1]


@pytest.mark.parametrize("ended", [False, True])
def test_a_line_has_the_time_at_which_the_file_first_held_it(tmp_path: Path, ended: bool) -> None:
    now = [100.0]
    logs = WorkerLogs(lambda: now[0])
    file = tmp_path / "w.log"
    logs.opened("e", "w", file)
    logs.tick()  # there is no file yet
    file.write_bytes(b"a\nb\n")
    logs.tick()
    now[0] = 200.0
    file.write_bytes(b"a\nb\nc\npart")
    if ended:
        logs.ended("e", "w")
    lines = logs.lines("e", "w")
    now[0] = 300.0
    assert logs.lines("e", "w") == lines
    assert [(line.text, int(line.ts)) for line in lines] == [("a", 100), ("b", 100), ("c", 200), *([("part", 200)] if ended else [])]
    assert len({line.ts for line in lines}) == len(lines)


async def test_workers_of_the_configurations_endpoints_have_logs_by_the_endpoints_id(tmp_path: Path) -> None:
    declared = EndpointConfig(name="a", id="a-id", workers_min=1)
    async with controlled(tmp_path, endpoints=(declared,), script=Script(echo, says=("hello",))) as (emulator, rest):
        await eventually(lambda: emulator.open_polls("a"))
        (worker,) = emulator.endpoint("a").workers
        found = await events(rest, f"/serverless/a-id/workers/{worker.id}/logs?source=container", 1)
        assert found[0][1]["line"] == "hello"


def test_the_time_of_a_line_is_the_one_that_its_id_shows() -> None:
    """Whatever fraction of a microsecond the clock has: ids have none."""
    at = 1_795_996_800.0
    for step in range(40):
        at += 0.123_456_7
        logs = WorkerLogs(lambda now=at: now)  # type: ignore[misc]
        logs.opened("e", "w", None)
        logs.say("e", "w", "first")
        logs.say("e", "w", "second")
        first, second = logs.lines("e", "w")
        shown = parse_rfc3339(rfc3339(first.ts, fraction=True)).timestamp()
        assert first.ts == shown, step
        assert second.ts - first.ts == pytest.approx(1e-6, abs=3e-7)
