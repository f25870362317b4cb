"""RunPod's data plane over HTTP: what a client sees. Scripted workers, and a time that runs faster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from emulator import EndpointConfig, FastClock, Script
from tests.emulator.kit import Api, Gate, echo, emulated, eventually, working

ONE = EndpointConfig(name="e", workers_min=1, workers_max=1)
NONE = EndpointConfig(name="e", workers_max=0)


@pytest.mark.parametrize("shape", ["Bearer {}", "bearer {}", "{}"])
async def test_the_key_is_taken_with_and_without_bearer(tmp_path: Path, shape: str) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        assert (await api.call("GET", "health", headers={"Authorization": shape.format(emulator.api_key)}))[0] == 200


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer nonsense"}, {"Authorization": "\xff"}])
@pytest.mark.parametrize("path", ["health", "job-take/w?gpu=x", "nonsense"])
async def test_no_key_or_a_wrong_one_is_401(tmp_path: Path, header: dict[str, str], path: str) -> None:
    async with emulated(tmp_path, NONE) as (_, api):
        assert (await api.call("GET", path, headers={"x": "y", **header}))[0] == 401


async def test_a_workers_key_opens_the_worker_plane_only(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        key = {"Authorization": emulator.worker_key}
        assert (await api.call("GET", "ping/w?gpu=x", headers=key))[0] == 200
        assert (await api.call("GET", "health", headers=key))[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "status/unknown", 404),
        ("POST", "cancel/unknown", 404),
        ("POST", "retry/unknown", 404),
        ("GET", "stream/unknown", 404),
        ("GET", "nonsense", 404),
        ("GET", "status", 404),
        ("GET", "run", 405),
        ("POST", "health", 405),
    ],
)
async def test_what_does_not_exist_is_404_and_a_wrong_method_405(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with emulated(tmp_path, NONE) as (_, api):
        assert (await api.call(method, path))[0] == status


async def test_an_unknown_endpoint_is_404(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, _), aiohttp.ClientSession() as session:
        assert (await Api(session, emulator, "other").call("POST", "run", {"input": 1}))[0] == 404


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"{}", b'{"input":1,"policy":{"ttl":1}}'])
async def test_a_malformed_request_is_400_and_makes_no_job(tmp_path: Path, body: bytes) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        assert (await api.call("POST", "run", body))[0] == 400
        assert emulator.endpoint("e").queued == 0


async def test_payloads_over_the_limit_are_refused(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (_, api):
        big = b'{"input":"' + b"x" * 10_000_000 + b'"}'
        assert (await api.call("POST", "run", big))[0] == 400
        assert (await api.call("POST", "runsync?wait=1000", big))[0] == 200
        assert (await api.call("POST", "runsync", b'{"input":"' + b"x" * 20_000_000 + b'"}'))[0] == 400


async def test_answers_carry_a_date(tmp_path: Path) -> None:
    async with (
        emulated(tmp_path, NONE) as (emulator, _),
        aiohttp.ClientSession(headers={"Authorization": emulator.api_key}) as session,
        session.get(f"{emulator.base_url}/e/health") as answer,
    ):
        assert answer.headers["Date"].endswith("GMT")


async def test_runsync_answers_with_the_result(tmp_path: Path) -> None:
    async with emulated(tmp_path, ONE, scripts={"e": Script(working(2))}) as (_, api):
        status, answer = await api.call("POST", "runsync", {"input": "x"})
        assert (status, answer["status"], answer["output"]) == (200, "COMPLETED", {"said": "x"})
        assert answer["id"].startswith("sync-")
        assert answer["executionTime"] >= 2000


async def test_runsync_that_waits_in_vain_says_so_with_200(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (_, api):
        status, answer = await api.call("POST", "runsync?wait=1000", {"input": "x"})
        assert (status, answer["status"]) == (200, "IN_QUEUE")


async def test_runsync_longer_than_the_edge_allows_is_cut_with_524(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE, clock=FastClock(500)) as (emulator, api):
        assert (await api.call("POST", "runsync?wait=300000", {"input": "x"}))[0] == 524
        assert emulator.endpoint("e").queued == 1


async def test_a_sync_result_is_gone_after_a_minute_and_an_async_one_after_thirty(tmp_path: Path) -> None:
    async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}, clock=FastClock(1000)) as (emulator, api):
        job = await api.run()
        begun = emulator.clock.time()
        _, answer = await api.call("POST", "runsync", {"input": "x"})
        await api.until(answer["id"], "GONE")
        assert emulator.clock.time() - begun >= 60
        assert (await api.status(job))["status"] == "COMPLETED"
        await api.until(job, "GONE")
        assert emulator.clock.time() - begun >= 1800


async def test_a_ttl_deletes_a_queued_job(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        job = await api.run(policy={"ttl": 10_000})
        await api.until(job, "GONE")
        assert emulator.endpoint("e").queued == 0


async def test_a_ttl_deletes_a_running_job_whose_result_is_then_refused_with_404(tmp_path: Path) -> None:
    gate = Gate()
    statuses: list[int] = []
    async with emulated(tmp_path, ONE, scripts={"e": Script(gate.handler)}) as (emulator, api):
        job = await api.run(policy={"ttl": 60_000})
        await api.until(job, "IN_PROGRESS")
        await api.until(job, "GONE")
        # the worker knows nothing of it: it works on, and is billed
        worker = next(iter(emulator.scripted("e").workers.values()))
        assert emulator.endpoint("e").workers[0].jobs == (job,)
        statuses.append(await worker.post(job, {"output": 1}))
        assert statuses == [404]
        assert await api.status(job) is None
        gate.open.set()
        await eventually(lambda: emulator.endpoint("e").workers[0].jobs == ())


async def test_status_can_reset_the_ttl(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        job = await api.run()
        assert (await api.call("GET", f"status/{job}?ttl=6000"))[1]["status"] == "IN_QUEUE"
        await api.until(job, "GONE")
        begun = emulator.clock.time()
        kept = await api.run(policy={"ttl": 60_000})
        await api.call("GET", f"status/{kept}?ttl=1000000")
        await eventually(lambda: emulator.clock.time() - begun > 100)
        assert (await api.status(kept))["status"] == "IN_QUEUE"


async def test_a_cancelled_queued_job_never_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with emulated(tmp_path, ONE, scripts={"e": Script(gate.handler)}) as (_, api):
        first, second, third = [await api.run(number) for number in range(3)]
        assert (await api.call("POST", f"cancel/{second}"))[1] == {"id": second, "status": "CANCELLED"}
        gate.open.set()
        await api.until(third, "COMPLETED")
        assert gate.entered == [first, third]
        assert await api.status(second) == {"id": second, "status": "CANCELLED"}


async def test_cancelling_what_is_finished_changes_nothing(tmp_path: Path) -> None:
    async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (_, api):
        job = await api.run()
        done = await api.until(job, "COMPLETED")
        assert (await api.call("POST", f"cancel/{job}"))[1] == {"id": job, "status": "COMPLETED"}
        assert await api.status(job) == done


async def test_retry_runs_a_failed_job_again_under_the_same_id(tmp_path: Path) -> None:
    seen: list[object] = []

    async def fails_once(job: dict[str, object], worker: object) -> object:
        seen.append(job["input"])
        if len(seen) == 1:
            raise RuntimeError("no")
        return "well"

    async with emulated(tmp_path, ONE, scripts={"e": Script(fails_once)}) as (_, api):
        job = await api.run({"a": 1})
        await api.until(job, "FAILED")
        assert (await api.call("POST", f"retry/{job}"))[1] == {"id": job, "status": "IN_QUEUE"}
        done = await api.until(job, "COMPLETED")
        assert (done["output"], seen) == ("well", [{"a": 1}, {"a": 1}])
        assert "error" not in done
        assert (await api.call("POST", f"retry/{job}"))[0] == 400


async def test_purge_cancels_what_waits_and_leaves_what_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with emulated(tmp_path, ONE, scripts={"e": Script(gate.handler)}) as (_, api):
        running = await api.run()
        await api.until(running, "IN_PROGRESS")
        waiting = [await api.run() for _ in range(3)]
        assert (await api.call("POST", "purge-queue"))[1] == {"removed": 3, "status": "completed"}
        gate.open.set()
        assert (await api.until(running, "COMPLETED"))["output"] == {"said": "x"}
        assert [(await api.status(job))["status"] for job in waiting] == ["CANCELLED"] * 3


async def test_health_counts_jobs_and_workers(tmp_path: Path) -> None:
    gate = Gate()
    async with emulated(tmp_path, ONE, scripts={"e": Script(gate.handler)}) as (_, api):
        first = await api.run()
        await api.run()
        await api.until(first, "IN_PROGRESS")
        assert (await api.call("GET", "health"))[1] == {
            "jobs": {"completed": 0, "failed": 0, "inProgress": 1, "inQueue": 1, "retried": 0},
            "workers": {"idle": 0, "initializing": 0, "ready": 0, "running": 1, "throttled": 0, "unhealthy": 0},
        }
        gate.open.set()
        await api.until(first, "COMPLETED")


async def test_requests_lists_what_is_not_finished(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (_, api):
        jobs = [await api.run(number) for number in range(3)]
        await api.call("POST", f"cancel/{jobs[1]}")
        listed = (await api.call("GET", "requests"))[1]["requests"]
        assert listed == [{"id": job, "status": "IN_QUEUE"} for job in (jobs[0], jobs[2])]


async def test_a_stream_is_drained_once_and_a_long_chunk_is_split(tmp_path: Path) -> None:
    gate = Gate()
    async with emulated(tmp_path, ONE, scripts={"e": Script(gate.handler)}) as (emulator, api):
        job = await api.run()
        await api.until(job, "IN_PROGRESS")
        worker = next(iter(emulator.scripted("e").workers.values()))
        for chunk in ({"output": {"n": 1}}, {"output": "two", "metrics": {"t": 2}}, {"output": "x" * 2_500_000}):
            assert await worker.post(job, chunk, stream=True) == 200
        _, answer = await api.call("GET", f"stream/{job}")
        assert answer["status"] == "IN_PROGRESS"
        assert answer["stream"][:2] == [{"output": {"n": 1}}, {"output": "two", "metrics": {"t": 2}}]
        assert [len(chunk["output"]) for chunk in answer["stream"][2:]] == [1_000_000, 1_000_000, 500_000]
        assert (await api.call("GET", f"stream/{job}"))[1] == {"status": "IN_PROGRESS", "stream": []}
        gate.open.set()
        await api.until(job, "COMPLETED")


async def test_a_result_posted_twice_counts_once(tmp_path: Path) -> None:
    async with emulated(tmp_path, ONE, scripts={"e": Script(echo, posts=2)}) as (emulator, api):
        done = await api.until(await api.run("a"), "COMPLETED")
        assert (await api.until(await api.run("b"), "COMPLETED"))["output"] == {"said": "b"}
        assert await api.status(done["id"]) == done
        assert emulator.endpoint("e").completed == 2


async def test_too_many_requests_in_ten_seconds_are_429_until_the_window_has_passed(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE, clock=FastClock(10)) as (emulator, api):
        begun = emulator.clock.time()
        assert [(await api.call("POST", "purge-queue"))[0] for _ in range(3)] == [200, 200, 429]
        while (await api.call("POST", "purge-queue"))[0] == 429:
            assert emulator.clock.time() - begun < 100
            await asyncio.sleep(0.005)
        assert emulator.clock.time() - begun >= 10


async def test_too_many_requests_at_once_are_429(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE, clock=FastClock(1)) as (emulator, api):
        waiting = [asyncio.create_task(api.call("POST", "runsync?wait=90000", {"input": 1})) for _ in range(400)]
        await eventually(lambda: emulator.endpoint("e").queued == 400)
        assert (await api.call("POST", "runsync", {"input": 1}))[0] == 429
        await api.call("POST", "purge-queue")  # ends the waiting
        assert {status for status, _ in await asyncio.gather(*waiting)} == {200}


# --- the emulator's own side ------------------------------------------------------------------------------------------


async def test_the_admin_side_needs_the_key_and_tells_no_secret(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api), aiohttp.ClientSession() as session:
        root = emulator.base_url.removesuffix("/v2")
        await api.run()
        async with session.get(f"{root}/_emulator/health") as answer:
            assert answer.status == 200
        for headers, status in (({}, 401), ({"Authorization": emulator.worker_key}, 401), ({"Authorization": emulator.api_key}, 200)):
            async with session.get(f"{root}/_emulator/state", headers=headers) as answer:
                assert answer.status == status
                text = await answer.text()
        assert '"queued":1' in text
        assert emulator.api_key not in text
        assert emulator.worker_key not in text


async def test_settings_can_be_changed_over_the_admin_side(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE, scripts={"e": Script(echo)}) as (emulator, api), aiohttp.ClientSession() as session:
        url = f"{emulator.base_url.removesuffix('/v2')}/_emulator/endpoints/e"
        job = await api.run()
        headers = {"Authorization": emulator.api_key}
        for body, status in ((b'{"worker_max": 1}', 400), (b'{"id": "f"}', 400), (b"x", 400), (b'{"workers_max": 1}', 200)):
            async with session.patch(url, data=body, headers=headers) as answer:
                assert answer.status == status
        assert (await api.until(job, "COMPLETED"))["output"] == {"said": "x"}
        async with session.patch(url, data=b"{}") as answer:
            assert answer.status == 401
