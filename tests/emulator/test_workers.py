"""Workers: scaled, stopped, replaced and billed. Scripted workers, and a time that runs faster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import pytest

from emulator import Emulator, EndpointConfig, FastClock, Script, WorkerState
from tests.emulator.kit import Api, Gate, echo, emulated, eventually, working

LAZY = EndpointConfig(name="e", workers_max=3, idle_timeout_s=5, scaler_value=4)
EAGER = EndpointConfig(name="e", workers_max=3, idle_timeout_s=5, scaler="REQUEST_COUNT", scaler_value=1)
LOW = {"lowPriority": True}


async def test_a_cold_endpoint_starts_a_worker_when_a_job_has_waited_and_stops_it_when_idle(tmp_path: Path) -> None:
    async with emulated(tmp_path, LAZY, scripts={"e": Script(echo)}) as (emulator, api):
        done = await api.until(await api.run(), "COMPLETED")
        assert done["delayTime"] >= 4000
        await eventually(lambda: not emulator.endpoint("e").workers)
        assert emulator.endpoint("e").bill.idle_s >= 5


async def test_delay_includes_the_cold_start(tmp_path: Path) -> None:
    async with emulated(tmp_path, LAZY, scripts={"e": Script(echo, start_s=30)}) as (_, api):
        assert (await api.until(await api.run(), "COMPLETED"))["delayTime"] >= 34_000


async def test_queue_delay_starts_one_worker_at_a_time_and_request_count_all_at_once(tmp_path: Path) -> None:
    for endpoint, at_once in ((LAZY, 1), (EAGER, 3)):
        scripts = {"e": Script(working(60), start_s=10)}
        async with emulated(tmp_path / endpoint.scaler, endpoint, scripts=scripts) as (emulator, api):
            jobs = [await api.run() for _ in range(6)]
            seen: list[int] = []

            def all_there(emulator: Emulator = emulator, seen: list[int] = seen) -> bool:
                seen.append(emulator.endpoint("e").count(WorkerState.INITIALIZING))
                return len(emulator.scripted("e").workers) == 3

            await eventually(all_there)
            assert max(seen) == at_once
            await api.until(jobs[0], "IN_PROGRESS")


async def test_request_count_scales_to_the_maximum_at_once(tmp_path: Path) -> None:
    # none may stop meanwhile, however slow the machine is: another would take its place
    staying = msgspec.structs.replace(EAGER, idle_timeout_s=600)
    async with emulated(tmp_path, staying, scripts={"e": Script(working(8))}) as (emulator, api):
        jobs = [await api.run() for _ in range(6)]
        for job in jobs:
            await api.until(job, "COMPLETED")
        assert len(emulator.scripted("e").workers) == 3


@pytest.mark.parametrize("endpoint", [LAZY, EAGER])
async def test_low_priority_jobs_alone_wait_for_ever(tmp_path: Path, endpoint: EndpointConfig) -> None:
    endpoint = msgspec.structs.replace(endpoint, idle_timeout_s=60)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo)}, clock=FastClock(500)) as (emulator, api):
        jobs = [await api.run(policy=LOW) for _ in range(3)]
        begun = emulator.clock.time()
        await eventually(lambda: emulator.clock.time() - begun > 300)
        assert not emulator.scripted("e").workers
        # one ordinary job brings a worker, and that does the others as well
        await api.run()
        for job in jobs:
            await api.until(job, "COMPLETED")
        assert len(emulator.scripted("e").workers) == 1


async def test_request_count_counts_low_priority_jobs_if_the_switch_says_so(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", scaler="REQUEST_COUNT", scaler_value=1, count_low_priority=True)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo)}) as (_, api):
        await api.until(await api.run(policy=LOW), "COMPLETED")


@pytest.mark.parametrize(("overtakes", "order"), [(True, ["ordinary", "low 1", "low 2"]), (False, ["low 1", "low 2", "ordinary"])])
async def test_whether_ordinary_jobs_overtake_is_a_switch(tmp_path: Path, overtakes: bool, order: list[str]) -> None:
    gate = Gate()
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1, ordinary_overtakes=overtakes)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(gate.handler)}) as (_, api):
        first = await api.run("first")
        await api.until(first, "IN_PROGRESS")
        names = {first: "first"}
        for name, policy in (("low 1", LOW), ("low 2", LOW), ("ordinary", {})):
            names[await api.run(name, policy=policy)] = name
        gate.open.set()
        for job in names:
            await api.until(job, "COMPLETED")
        assert [names[job] for job in gate.entered] == ["first", *order]


async def test_a_worker_passes_through_the_documented_states_and_its_bill_leaves_the_image_pull_out(tmp_path: Path) -> None:
    gate = Gate()
    endpoint = EndpointConfig(name="e", workers_max=1, idle_timeout_s=20, initialize_s=60, scaler_value=1, usd_per_s=0.001)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(gate.handler, start_s=30)}) as (emulator, api):
        job = await api.run()
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.INITIALIZING))
        assert emulator.endpoint("e").bill.billed_s == 0
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.RUNNING))
        begun = emulator.clock.time()
        bill = emulator.endpoint("e").bill
        assert bill.startup_s >= 30
        await eventually(lambda: emulator.clock.time() - begun > 40)
        gate.open.set()
        done = await api.until(job, "COMPLETED")
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.IDLE))
        await eventually(lambda: not emulator.endpoint("e").workers)
        bill = emulator.endpoint("e").bill
        assert bill.execution_s == pytest.approx(done["executionTime"] / 1000, abs=10)
        assert bill.idle_s >= 20
        assert bill.billed_s == -int(-(bill.startup_s + bill.execution_s + bill.idle_s) // 1)
        assert bill.usd == pytest.approx(bill.billed_s * 0.001)


async def test_active_workers_are_there_without_jobs_and_billed(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_min=2, workers_max=2, idle_timeout_s=1)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo)}) as (emulator, _):
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.IDLE) == 2)
        await eventually(lambda: emulator.endpoint("e").bill.billed_s > 40)
        assert len(emulator.scripted("e").workers) == 2


async def test_without_a_free_host_a_worker_is_throttled_and_not_billed(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_max=1, hosts=0, scaler_value=1)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo)}) as (emulator, api):
        job = await api.run()
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.THROTTLED))
        assert (await api.call("GET", "health"))[1]["workers"]["throttled"] == 1
        assert not emulator.scripted("e").workers
        emulator.configure("e", hosts=1)
        await api.until(job, "COMPLETED")


async def test_a_worker_that_is_not_ready_in_time_is_unhealthy_and_replaced(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1, env={"RUNPOD_INIT_TIMEOUT": "20"})
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo, start_s=1000)}) as (emulator, _):
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.UNHEALTHY))
        assert emulator.endpoint("e").workers[0].unhealthy == "not ready after 20 s"
        assert emulator.endpoint("e").bill.startup_s < 200
        await eventually(lambda: len(emulator.scripted("e").workers) >= 2)


async def test_a_worker_that_ends_before_it_asks_for_work_is_unhealthy_and_tried_again_less_and_less_often(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_max=1, scaler_value=1)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo, exit_code=3)}) as (emulator, api):
        job = await api.run()
        begun = emulator.clock.time()
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.UNHEALTHY))
        assert "exit code 3" in str(emulator.endpoint("e").workers[0].unhealthy)
        await eventually(lambda: len(emulator.scripted("e").workers) >= 5)
        assert emulator.clock.time() - begun >= 15  # 1 + 2 + 4 + 8
        assert (await api.status(job))["status"] == "IN_QUEUE"


async def test_a_failed_fitness_check_makes_a_worker_unhealthy(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo)}) as (emulator, api):
        worker = (await eventually(lambda: emulator.endpoint("e").workers))[0].id
        await api.call("GET", f"ping/{worker}?gpu=x&status=unhealthy&check=gpu&reason=no+GPU")
        assert emulator.endpoint("e").workers[0].unhealthy == "gpu: no GPU"


async def test_a_new_release_stops_idle_workers_at_once_and_lets_busy_ones_finish(tmp_path: Path) -> None:
    gate = Gate()
    endpoint = EndpointConfig(name="e", workers_min=2, workers_max=2)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(gate.handler)}) as (emulator, api):
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.IDLE) == 2)
        job = await api.run()
        await api.until(job, "IN_PROGRESS")
        before = {worker.id: worker for worker in emulator.endpoint("e").workers}
        emulator.configure("e", env={"NEW": "1"})
        await eventually(lambda: len(set(before) & {worker.id for worker in emulator.endpoint("e").workers}) == 1)
        assert emulator.endpoint("e").count(WorkerState.OUTDATED) == 1
        second = await api.run()  # goes to a new worker, never to the outdated one
        gate.open.set()
        assert (await api.until(job, "COMPLETED"))["workerId"] in before
        assert (await api.until(second, "COMPLETED"))["workerId"] not in before
        await eventually(lambda: {worker.version for worker in emulator.endpoint("e").workers} == {2})


async def test_a_worker_that_was_called_for_a_job_and_may_not_take_it_leaves_it_to_the_next(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_min=2, workers_max=2)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo)}, clock=FastClock(1), tick_s=60) as (emulator, api):
        await eventually(lambda: emulator.open_polls("e") == 2)
        fleet = emulator._endpoints["e"].fleet
        job = fleet.broker.submit(b'{"input":1}', "run", emulator.clock.time())  # calls the one that has waited longest,
        called = next(worker for worker in fleet.workers if any(poll.done() for poll in worker.polls))
        called.outdated = True  # which at the same moment becomes one that may not work
        done = await api.until(job.id, "COMPLETED", timeout_s=5)
        assert done["workerId"] != called.id


async def test_a_stopping_worker_is_given_nothing(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(echo)}) as (emulator, api):
        first = (await api.until(await api.run(), "COMPLETED"))["workerId"]
        emulator.configure("e", workers_min=0, workers_max=0)
        await eventually(lambda: not emulator.endpoint("e").workers)
        job = await api.run()
        await asyncio.sleep(0.05)
        assert (await api.status(job))["status"] == "IN_QUEUE"
        emulator.configure("e", workers_max=1)
        assert (await api.until(job, "COMPLETED"))["workerId"] != first


async def test_a_worker_that_wants_to_be_refreshed_finishes_its_other_jobs_first(tmp_path: Path) -> None:
    gate = Gate()
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(gate.handler, concurrency=2)}) as (emulator, api):
        first, second = await api.run(1), await api.run(2)
        await api.until(first, "IN_PROGRESS")
        worker = emulator.scripted("e").workers[(await api.until(second, "IN_PROGRESS"))["workerId"]]
        assert await worker.post(first, {"output": "early", "stopPod": True}) == 200
        third = await api.run(3)
        await asyncio.sleep(0.05)
        assert (await api.status(third))["status"] == "IN_QUEUE"
        gate.open.set()
        assert (await api.until(second, "COMPLETED"))["output"] == {"said": 2}
        assert (await api.until(third, "COMPLETED"))["workerId"] != worker.id
        assert (await api.status(first))["output"] == "early"


async def test_a_worker_from_outside_is_served_and_forgotten_when_it_is_gone(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_max=1)
    async with emulated(tmp_path, endpoint, clock=FastClock(500)) as (emulator, api):
        job = await api.run("by hand")
        key = {"Authorization": emulator.worker_key}
        status, given = await api.call("GET", "job-take/mine?gpu=x", headers=key)
        assert (status, given) == (200, {"id": job, "input": "by hand"})
        assert (await api.call("POST", f"job-done/mine/{job}?gpu=x", {"output": 5}, headers=key))[0] == 200
        assert (await api.status(job))["output"] == 5
        assert [worker.id for worker in emulator.endpoint("e").workers] == ["mine"]
        assert emulator.endpoint("e").bill.billed_s == 0
        await eventually(lambda: not emulator.endpoint("e").workers)


async def test_a_poll_without_work_is_answered_204_and_that_of_a_stranger_refused(tmp_path: Path) -> None:
    outside, inside = EndpointConfig(name="e", workers_max=1), EndpointConfig(name="own", workers_max=1)
    async with emulated(tmp_path, outside, inside, scripts={"own": Script(echo)}) as (emulator, api):
        begun = emulator.clock.time()
        assert (await api.call("GET", "job-take/mine?gpu=x"))[0] == 204
        assert (await api.call("GET", "job-take-batch/mine?gpu=x&batch_size=4"))[0] == 204
        assert (await api.call("GET", "job-stop/mine?gpu=x"))[0] == 204
        assert emulator.clock.time() - begun >= 30  # long polls of 15 s
        async with aiohttp.ClientSession() as session:
            assert (await Api(session, emulator, "own").call("GET", "job-take/stranger?gpu=x"))[0] == 404


async def test_a_job_is_not_handed_to_a_worker_that_has_hung_up(tmp_path: Path) -> None:
    async with emulated(tmp_path, EndpointConfig(name="e", workers_max=1), clock=FastClock(1)) as (emulator, api):
        poll = asyncio.create_task(api.call("GET", "job-take/mine?gpu=x"))
        await eventually(lambda: emulator.endpoint("e").workers)
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        fleet_worker = await eventually(lambda: emulator.endpoint("e").workers)
        assert fleet_worker[0].state is WorkerState.IDLE
        await eventually(lambda: emulator.open_polls("e") == 0)
        job = await api.run()
        assert (await api.status(job))["status"] == "IN_QUEUE"


# --- redelivery -------------------------------------------------------------------------------------------------------


async def test_a_job_whose_worker_died_is_delivered_once_more_after_40_s(tmp_path: Path) -> None:
    taken: list[str] = []

    async def dies_first(job: dict[str, object], worker: object) -> object:
        taken.append(worker.id)  # type: ignore[attr-defined]
        if len(taken) == 1:
            worker.die()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        return "well"

    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(dies_first)}) as (_, api):
        job = await api.run()
        done = await api.until(job, "COMPLETED")
        assert (done["output"], done["retries"], done["workerId"]) == ("well", 1, taken[1])
        assert taken[0] != taken[1]
        assert done["delayTime"] >= 40_000
        assert (await api.call("GET", "health"))[1]["jobs"]["retried"] == 1


async def test_a_job_that_kills_every_worker_fails_after_one_redelivery(tmp_path: Path) -> None:
    async def dies(job: dict[str, object], worker: object) -> object:
        worker.die()  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        return None

    async with emulated(tmp_path, LAZY, scripts={"e": Script(dies)}) as (emulator, api):
        failed = await api.until(await api.run(), "FAILED")
        assert failed["error"] == "job timed out after 1 retries"
        assert failed["retries"] == 1
        assert failed["executionTime"] >= 40_000
        assert len(emulator.scripted("e").workers) == 2


async def test_an_empty_input_is_lost_by_the_worker_and_fails(tmp_path: Path) -> None:
    seen: list[object] = []

    async def rejects(job: dict[str, object], worker: object) -> object:
        seen.append(job)
        await worker.clock.sleep(10_000)  # type: ignore[attr-defined]
        return None

    async with emulated(tmp_path, LAZY, scripts={"e": Script(rejects, pings=False)}) as (_, api):
        job = await api.run({})
        assert (await api.until(job, "FAILED"))["error"] == "job timed out after 1 retries"
        assert seen == [{"id": job}] * len(seen)


async def test_pings_keep_a_long_job_alive(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1, execution_timeout_ms=0)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(working(200))}) as (_, api):
        done = await api.until(await api.run(), "COMPLETED")
        assert "retries" not in done
        assert done["executionTime"] >= 200_000


async def test_a_late_result_of_the_first_worker_counts(tmp_path: Path) -> None:
    """A worker that could not ping, but works: its result comes while the job waits to be delivered again."""
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1, execution_timeout_ms=0)
    async with emulated(tmp_path, endpoint, scripts={"e": Script(working(60), pings=False)}) as (emulator, api):
        job = await api.run()
        done = await api.until(job, "COMPLETED")
        assert done["retries"] == 1
        assert emulator.endpoint("e").completed == 1


@pytest.mark.parametrize("status", ["TIMED_OUT", "FAILED"])
async def test_how_an_overrun_execution_ends_is_a_switch(tmp_path: Path, status: str) -> None:
    endpoint = EndpointConfig(name="e", workers_min=1, workers_max=1, exceeded_status=status, exceeded_stops_worker=True)  # type: ignore[arg-type]
    async with emulated(tmp_path, endpoint, scripts={"e": Script(working(10_000))}) as (emulator, api):
        ended = await api.until(await api.run(policy={"executionTimeout": 5000}), status)
        assert "5000 ms" in ended["error"]
        await eventually(lambda: ended["workerId"] not in {worker.id for worker in emulator.endpoint("e").workers})
