"""The unmodified runpod 1.12 SDK on both sides of the emulator, in real time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from emulator import Emulator, EmulatorConfig, EndpointConfig, WorkerState
from tests.emulator.kit import HERE, Api, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = (sys.executable, str(HERE / "sdk_worker.py"))
STREAMER = (sys.executable, str(HERE / "sdk_stream_worker.py"))


@dataclass
class House:
    """An emulator in real time with workers on the SDK, and the SDK's client in a process of its own."""

    emulator: Emulator
    session: aiohttp.ClientSession
    client: asyncio.subprocess.Process

    def api(self, endpoint: str) -> Api:
        return Api(self.session, self.emulator, endpoint)

    async def sdk(self, **asked: Any) -> Any:
        """Ask the SDK's client."""
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(json.dumps(asked).encode() + b"\n")
        line = await asyncio.wait_for(self.client.stdout.readline(), 30)
        return json.loads(line)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    config = EmulatorConfig(
        state_dir=str(tmp_path_factory.mktemp("emulator")),
        s3=False,
        ping_interval_ms=1000,
        long_poll_s=3,
        tick_s=0.1,
        endpoints=(
            EndpointConfig(name="two", command=WORKER, env={"TEST_CONCURRENCY": "2"}, workers_min=1, workers_max=1),
            EndpointConfig(name="one", command=WORKER, workers_min=1, workers_max=1, execution_timeout_ms=2000),
            EndpointConfig(name="stream", command=STREAMER, workers_min=1, workers_max=1),
            EndpointConfig(name="cold", command=WORKER, workers_max=1, idle_timeout_s=0.5, scaler_value=0.2),
            EndpointConfig(name="none", workers_max=0),
        ),
    )
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        env = {**os.environ, "RUNPOD_ENDPOINT_BASE_URL": emulator.base_url, "TEST_KEY": emulator.api_key, "HOME": config.state_dir}
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "sdk_client.py"), env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            yield House(emulator, session, client)
        finally:
            assert client.stdin is not None
            client.stdin.close()
            await asyncio.wait_for(client.wait(), 10)


async def test_a_job_goes_from_the_sdk_client_to_the_sdk_worker_and_back(house: House) -> None:
    assert await house.sdk(do="run", endpoint="two", request={"do": "echo", "say": "ü\u2028"}) == {"ok": {"said": "ü\u2028"}}


async def test_run_sync_returns_the_output(house: House) -> None:
    assert await house.sdk(do="run_sync", endpoint="one", request={"do": "echo", "say": "now"}) == {"ok": {"said": "now"}}


async def test_the_asyncio_client_returns_the_output(house: House) -> None:
    assert await house.sdk(do="asyncio", endpoint="two", request={"do": "echo", "say": 1}) == {"ok": {"said": 1}}


async def test_a_generator_streams_each_chunk_once_and_aggregates_them(house: House) -> None:
    chunks = [{"number": number} for number in range(5)]
    assert await house.sdk(do="stream", endpoint="stream", request={"count": 5}) == {"ok": chunks}
    assert await house.sdk(do="run", endpoint="stream", request={"count": 5}) == {"ok": chunks}


async def test_a_generator_that_raises_fails_its_job(house: House) -> None:
    api = house.api("stream")
    failed = await api.until(await api.run({"count": 1, "fail": True}), "FAILED")
    assert failed["error"].startswith("handler: in the middle")


async def test_a_handler_that_raises_fails_its_job_with_the_sdks_report(house: House) -> None:
    api = house.api("one")
    failed = await api.until(await api.run({"do": "raise", "say": "no"}), "FAILED")
    report = json.loads(failed["error"])
    assert report["error_message"] == "no"
    assert report["error_type"] == "<class 'ValueError'>"
    assert report["worker_id"] == failed["workerId"]
    assert report["runpod_version"] == "1.12.0"


async def test_a_returned_error_fails_the_job_and_keeps_the_rest_as_output(house: House) -> None:
    api = house.api("one")
    failed = await api.until(await api.run({"do": "error", "say": "bad row"}), "FAILED")
    assert failed["error"] == "bad row"
    assert failed["output"] == {"kept": 1}


async def test_an_empty_result_completes_without_output(house: House) -> None:
    api = house.api("one")
    done = await api.until(await api.run({"do": "nothing"}), "COMPLETED")
    assert "output" not in done


async def test_the_worker_sees_s3config_and_webhook_beside_its_input_but_not_the_policy(house: House) -> None:
    api = house.api("one")
    keys = {"accessId": "a", "accessSecret": "b", "bucketName": "c", "endpointUrl": "d"}
    job = await api.run({"do": "job"}, s3Config=keys, policy={"lowPriority": True, "ttl": 60000}, webhook="http://127.0.0.1:9/t")
    done = await api.until(job, "COMPLETED")
    assert done["output"]["job"] == {"id": job, "input": {"do": "job"}, "s3Config": keys, "webhook": "http://127.0.0.1:9/t"}


async def test_concurrency_2_runs_two_jobs_at_the_same_time_in_one_worker(house: House, tmp_path: Path) -> None:
    api = house.api("two")
    jobs = [await api.run({"do": "meet", "count": 2, "place": str(tmp_path)}) for _ in range(2)]
    done = [await api.until(job, "COMPLETED", timeout_s=15) for job in jobs]
    assert len({status["workerId"] for status in done}) == 1


async def test_progress_is_the_output_while_the_job_runs(house: House, tmp_path: Path) -> None:
    api = house.api("one")
    job = await api.run({"do": "progress", "go": str(tmp_path / "go")})
    await api.until(job, "IN_PROGRESS")
    for _ in range(500):
        seen = await api.status(job)
        if "output" in seen:
            break
        await asyncio.sleep(0.01)
    assert seen == {**seen, "status": "IN_PROGRESS", "output": {"half": True}}
    (tmp_path / "go").touch()
    assert (await api.until(job, "COMPLETED"))["output"] == {"whole": True}


async def test_a_cancelled_job_is_stopped_in_its_worker_through_job_stop(house: House, tmp_path: Path) -> None:
    api = house.api("two")
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    job = await api.run({"do": "wait", "started": str(started), "cancelled": str(cancelled)})
    await eventually(started.exists)
    assert await api.call("POST", f"cancel/{job}") == (200, {"id": job, "status": "CANCELLED"})
    await eventually(cancelled.exists, what="the handler was not cancelled")
    assert (await api.status(job))["status"] == "CANCELLED"
    # the same worker goes on with other jobs
    assert (await api.until(await api.run({"do": "echo", "say": 1}), "COMPLETED"))["output"] == {"said": 1}


async def test_a_job_that_overruns_its_execution_timeout_times_out_and_is_stopped(house: House, tmp_path: Path) -> None:
    api = house.api("one")
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    job = await api.run({"do": "wait", "started": str(started), "cancelled": str(cancelled)})
    timed_out = await api.until(job, "TIMED_OUT", timeout_s=15)
    assert timed_out["executionTime"] == pytest.approx(2000, abs=1500)
    await eventually(cancelled.exists, what="the handler was not cancelled")


async def test_refresh_worker_ends_the_worker_and_another_takes_its_place(house: House) -> None:
    api = house.api("one")
    first = await api.until(await api.run({"do": "refresh"}), "COMPLETED")
    second = await api.until(await api.run({"do": "pid"}), "COMPLETED", timeout_s=20)
    assert second["output"]["pid"] != first["output"]["pid"]
    assert second["workerId"] != first["workerId"]


async def test_an_output_over_10_mb_completes_without_output(house: House) -> None:
    api = house.api("two")
    done = await api.until(await api.run({"do": "huge", "bytes": 10_000_001}), "COMPLETED")
    assert "output" not in done


async def test_the_worker_is_named_and_busy_while_it_works(house: House, tmp_path: Path) -> None:
    api = house.api("two")
    started = tmp_path / "started"
    job = await api.run({"do": "wait", "started": str(started), "cancelled": str(tmp_path / "cancelled")})
    await eventually(started.exists)
    seen = house.emulator.endpoint("two").workers[0]
    assert (seen.state, seen.jobs) == (WorkerState.RUNNING, (job,))
    assert (await house.sdk(do="health", endpoint="two"))["ok"]["workers"]["running"] == 1
    await api.call("POST", f"cancel/{job}")
    # nothing is posted for a stopped job: the next ping tells that the worker is free
    await eventually(lambda: house.emulator.endpoint("two").workers[0].state is WorkerState.IDLE)


async def test_the_worker_has_runpods_environment_and_nothing_of_ours(house: House) -> None:
    api = house.api("two")
    done = await api.until(await api.run({"do": "pid"}), "COMPLETED")
    names = set(done["output"]["environment"])
    assert {"RUNPOD_POD_ID", "RUNPOD_ENDPOINT_ID", "RUNPOD_WEBHOOK_GET_JOB", "RUNPOD_AI_API_KEY", "TEST_CONCURRENCY"} <= names
    assert not {name for name in names if name.startswith(("NIGHTBATCH", "PYTEST", "AWS"))}


async def test_a_cold_endpoint_starts_a_worker_and_lets_it_leave_in_order_when_idle(house: House) -> None:
    done = await house.api("cold").until(await house.api("cold").run({"do": "echo", "say": 1}), "COMPLETED", timeout_s=20)
    begun = time.monotonic()
    await eventually(lambda: not house.emulator.endpoint("cold").workers)
    assert time.monotonic() - begun < 8  # it left by itself: the grace before SIGKILL is 10 s
    bill = house.emulator.endpoint("cold").bill
    assert bill.startup_s > 0.3
    assert 0.5 <= bill.idle_s < 8
    log = house.emulator.log_path("cold", done["workerId"]).read_text()
    assert "Finished." in log
    assert house.emulator.worker_key not in log


async def test_the_sdk_client_can_cancel_and_purge_what_waits(house: House) -> None:
    assert await house.sdk(do="cancel", endpoint="none", request={"a": 1}) == {"ok": ["IN_QUEUE", "CANCELLED", "CANCELLED"]}
    for _ in range(3):
        await house.api("none").run()
    assert await house.sdk(do="purge", endpoint="none") == {"ok": {"removed": 3, "status": "completed"}}
    assert (await house.sdk(do="health", endpoint="none"))["ok"]["jobs"]["inQueue"] == 0


async def test_the_sdk_client_is_told_of_a_wrong_key(house: House) -> None:
    assert await house.sdk(do="health", endpoint="two", key="wrong") == {"error": "RuntimeError"}
