"""What is made through REST is what the data plane serves: jobs, workers, releases, prices, and what RunPod does by itself."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from emulator import Emulator, EmulatorConfig, FastClock, ImageConfig, Script, ScriptedWorker, local
from emulator.control import rules
from emulator.local import default_config
from tests.emulator.control_kit import COUNT, DELAY, Rest, controlled, endpoint, settings
from tests.emulator.kit import HERE, Gate, Receiver, echo, eventually

DAY = rules.DAY_S
GREEDY = endpoint(scaling=COUNT)


async def seen(job: dict[str, Any], worker: ScriptedWorker) -> Any:
    """What a worker was started with."""
    worker.say(f"job {job['input']}")
    return {"env": dict(worker.endpoint.env), "image": worker.endpoint.image, "gpu": worker.endpoint.gpu}


async def finished(rest: Rest, endpoint_id: str, job: str, status: str = "COMPLETED") -> Any:
    """The body of /status when the job is in that state."""
    for _ in range(2000):
        answer = await rest.ask("GET", f"/{endpoint_id}/status/{job}")
        if answer.status == 200 and answer.body["status"] == status:
            return answer.body
        await asyncio.sleep(0.005)
    raise AssertionError(f"{answer.body}, not {status}")


async def test_a_new_endpoint_serves_jobs_at_once_with_its_env_and_image(tmp_path: Path) -> None:
    async with controlled(tmp_path, script=Script(seen)) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(env={"A": "1"}))
        done = await finished(rest, made["id"], await rest.run(made["id"]))
        assert done["output"] == {"env": {"A": "1"}, "image": "me/worker:1", "gpu": "NVIDIA GeForce RTX 4090"}
        assert emulator.endpoint("night").id == made["id"]
        assert emulator.endpoint(made["id"]).completed == 1


async def test_limits_take_effect_promptly_and_without_a_release(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, script=Script(gate.handler)) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(scaling=COUNT, workers={"max": 1}))
        path = f"/serverless/{made['id']}"
        for _ in range(3):
            await rest.run(made["id"])
        await eventually(lambda: len(gate.entered) == 1)
        after = await rest.patch(path, {"workers": {"max": 3}, "timeout": 60_000})
        assert after["workers"] == {"min": 0, "max": 3}
        await eventually(lambda: len(gate.entered) == 3)
        releases = await rest.get(f"{path}/releases")
        assert (releases["endpointVersion"], len(releases["releases"])) == (1, 1)
        assert emulator.endpoint("night").in_progress == 3
        await rest.patch(path, {"workers": {"min": 2}})
        gate.open.set()
        await eventually(lambda: emulator.endpoint("night").completed == 3)
        await eventually(lambda: len(emulator.endpoint("night").workers) == 2)


async def test_the_timeout_of_an_endpoint_is_that_of_its_later_jobs(tmp_path: Path) -> None:
    async with controlled(tmp_path, script=Script(Gate().handler)) as (_, rest):
        made = await rest.post("/serverless", endpoint())
        await rest.patch(f"/serverless/{made['id']}", {"timeout": 5_000})
        await finished(rest, made["id"], await rest.run(made["id"]), "TIMED_OUT")


async def test_a_release_replaces_idle_workers_at_once_and_busy_ones_after_their_job(tmp_path: Path) -> None:
    gate = Gate()

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        if job["input"] == "wait":
            await gate.handler(job, worker)
        return worker.endpoint.image

    async with controlled(tmp_path, script=Script(handler)) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(scaling=COUNT, workers={"min": 2, "max": 3}))
        path = f"/serverless/{made['id']}"
        await eventually(lambda: emulator.open_polls(made["id"]) == 2)
        waiting = await rest.run(made["id"], "wait")
        await eventually(lambda: gate.entered)
        first = {worker.id for worker in emulator.endpoint(made["id"]).workers}
        await rest.patch(path, {"image": "me/worker:2", "workers": {"max": 4}})
        view = await rest.get(f"{path}/workers")
        stale = [worker for worker in view["workers"] if worker["isStale"]]
        assert view["endpointVersion"] == 2
        assert [(worker["status"], worker["version"], worker["image"]) for worker in stale] == [("RUNNING", 1, "me/worker:1")]
        rollout = await rest.get(f"{path}/releases")
        assert rollout["rollout"]["inProgress"] is True
        assert [release["version"] for release in rollout["releases"]] == [2, 1]
        assert rollout["releases"][0]["diff"] == [
            {"field": "template.imageName", "old": "me/worker:1", "new": "me/worker:2"},
            {"field": "workers.max", "old": 3, "new": 4},
        ]
        assert (await finished(rest, made["id"], await rest.run(made["id"], "now")))["output"] == "me/worker:2"
        gate.open.set()
        assert (await finished(rest, made["id"], waiting))["output"] == "me/worker:1"
        await eventually(lambda: not first & {worker.id for worker in emulator.endpoint(made["id"]).workers})
        for _ in range(500):
            rollout = (await rest.get(f"{path}/releases"))["rollout"]
            if rollout["workersTotal"] == rollout["workersOnLatest"] == 2:
                break
            await asyncio.sleep(0.01)
        assert rollout == {"inProgress": False, "workersOnLatest": 2, "workersTotal": 2, "percentOnLatest": 100}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"image": "b"}, "template.imageName"),
        ({"env": {"A": "2"}}, "template.env"),
        ({"args": "--x"}, "template.dockerArgs"),
        ({"disk": 99}, "template.containerDiskInGb"),
        ({"gpu": {"count": 2}}, "gpuCount"),
        ({"gpu": {"pools": ["AMPERE_24"]}}, "gpuIds"),
    ],
)
async def test_what_concerns_the_container_makes_a_release(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/serverless", endpoint(env={"A": "1"}))
        await rest.patch(f"/serverless/{made['id']}", {**change, "timeout": 9_000})
        latest = (await rest.get(f"/serverless/{made['id']}/releases"))["releases"][0]
        assert (latest["version"], latest["source"]) == (2, "MANUAL")
        assert {entry["field"] for entry in latest["diff"]} == {field, "timeout"}
        await rest.patch(f"/serverless/{made['id']}", change)  # the same again is no change
        assert len((await rest.get(f"/serverless/{made['id']}/releases"))["releases"]) == 2


async def test_a_deleted_endpoint_takes_its_jobs_and_workers_with_it(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, script=Script(gate.handler)) as (emulator, rest), Receiver().listening() as receiver:
        made = await rest.post("/serverless", endpoint(scaling=COUNT, workers={"max": 1}))
        for _ in range(2):
            await rest.run(made["id"], webhook=receiver.url)
        await eventually(lambda: gate.entered)
        workers = list(emulator.scripted("night").workers.values())
        await rest.delete(f"/serverless/{made['id']}")
        await rest.get(f"/serverless/{made['id']}", 404)
        assert (await rest.ask("GET", f"/{made['id']}/status/{gate.entered[0]}")).status == 404
        await eventually(lambda: len(receiver.got) == 2)
        assert {body["status"] for body, _ in receiver.got} == {"CANCELLED"}
        for worker in workers:
            await asyncio.wait_for(worker.wait(), 5)
        assert emulator.report()["endpoints"] == []


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        volume = await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-RO-1"})
        template = await rest.post("/templates", {"name": "t", "image": "x", "mounts": {"persistent": {"size": 10, "path": "/w"}}})
        registry = await rest.post("/registries", {"name": "r", "username": "u", "password": "p"})
        gpu = {"pools": ["AMPERE_24", "ADA_24"], "excludedTypes": ["NVIDIA L4"], "minCudaVersion": "12.4"}
        made = await rest.post("/serverless", endpoint(gpu=gpu, networkVolumes=[volume["id"]], registry=registry["id"]))
        made = await rest.patch(f"/serverless/{made['id']}", {"env": {"A": "1"}, "workers": {"max": 1}})
        cpu = await rest.post("/serverless", endpoint(name="cpu", gpu=None, cpu=[{"id": "cpu5c", "vcpuCount": 4}]))
        releases = await rest.get(f"/serverless/{made['id']}/releases")
        await finished(rest, made["id"], await rest.run(made["id"]))
        low = await rest.run(cpu["id"], policy={"lowPriority": True})
    async with controlled(tmp_path) as (emulator, rest):
        urls = {"requestUrls": made["requestUrls"]}
        found = {shown["id"]: {**shown, **urls} for shown in (await rest.get("/serverless"))["endpoints"]}
        assert found == {made["id"]: made, cpu["id"]: {**cpu, **urls}}
        assert await rest.get("/templates") == {"templates": [template]}
        assert await rest.get("/network-volumes") == {"networkVolumes": [volume]}
        assert await rest.get("/registries") == {"registries": [registry]}
        assert await rest.get(f"/serverless/{made['id']}/releases") == releases
        assert emulator.endpoint(made["id"]).completed == 1
        assert (await rest.get(f"/{cpu['id']}/status/{low}"))["status"] == "IN_QUEUE"
        billed = (await rest.get("/billing/serverless"))["metadata"]["totals"]["totalAmount"]
        assert billed == pytest.approx(emulator.endpoint(made["id"]).bill.usd, rel=1e-6)
        assert (await rest.patch(f"/serverless/{made['id']}", {"env": {"A": "2"}}))["env"] == {"A": "2"}
        await finished(rest, made["id"], await rest.run(made["id"]))


async def test_price_and_gpu_are_of_the_first_pool_that_has_stock(tmp_path: Path) -> None:
    gpu = {"pools": ["ADA_24", "AMPERE_24"], "excludedTypes": ["NVIDIA RTX A5000"], "count": 2}
    async with controlled(tmp_path, stock={"ADA_24": "NONE"}, script=Script(seen)) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(gpu=gpu, workers={"max": 1}))
        found = settings(emulator, made["id"])
        assert (found.gpu, found.gpu_pool, found.gpu_count, found.usd_per_s) == ("NVIDIA L4", "AMPERE_24", 2, 0.00019)
        await finished(rest, made["id"], await rest.run(made["id"]))
        await eventually(lambda: not emulator.endpoint(made["id"]).workers)
        bill = emulator.endpoint(made["id"]).bill
        assert bill.usd == pytest.approx(bill.billed_s * 0.00019 * 2)
        totals = (await rest.get(f"/billing/serverless?serverlessId={made['id']}"))["metadata"]["totals"]
        assert totals["gpuAmount"] == pytest.approx(bill.usd, rel=1e-6)
        emulator.account.set_stock("AMPERE_24", "NONE")
        await rest.run(made["id"])
        await eventually(lambda: emulator.endpoint(made["id"]).workers)
        (worker,) = (await rest.get(f"/serverless/{made['id']}/workers"))["workers"]
        assert (worker["status"], worker["gpuTypeId"], worker["startedAt"]) == ("THROTTLED", None, None)
        emulator.account.set_stock("ADA_24", "HIGH")
        assert settings(emulator, made["id"]).usd_per_s == 0.00031
        await eventually(lambda: emulator.endpoint(made["id"]).completed == 2)
        (worker,) = (await rest.get(f"/serverless/{made['id']}/workers"))["workers"]
        assert worker["gpuTypeId"] == "NVIDIA GeForce RTX 4090"


async def test_a_cpu_endpoint_is_billed_by_its_vcpus(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(gpu=None, cpu=[{"id": "cpu3g", "vcpuCount": 4}]))
        assert made["cpu"] == [{"id": "cpu3g", "vcpuCount": 4, "memory": 16}]
        assert "gpu" not in made
        await finished(rest, made["id"], await rest.run(made["id"]))
        (worker,) = (await rest.get(f"/serverless/{made['id']}/workers"))["workers"]
        assert (worker["gpuCount"], worker["gpuTypeId"]) == (0, None)
        await eventually(lambda: not emulator.endpoint(made["id"]).workers)
        totals = (await rest.get("/billing/serverless?bucketSize=hour"))["metadata"]["totals"]
        assert totals["gpuAmount"] == 0
        assert totals["cpuAmount"] == pytest.approx(emulator.endpoint(made["id"]).bill.billed_s * 4 * 0.04 / 3600, rel=1e-6)


def test_the_idle_rule_cuts_to_two_after_three_days_and_to_none_after_seven() -> None:
    cut = [rules.idle_cut(5, days * DAY) for days in (2.99, 3, 6.99, 7, 30)]
    assert cut == [None, 2, 2, 0, 0]
    assert rules.idle_cut(2, 4 * DAY) is None
    assert rules.idle_cut(0, 9 * DAY) is None


async def test_an_endpoint_that_nobody_asks_is_cut_and_not_restored(tmp_path: Path) -> None:
    async with controlled(tmp_path, clock=FastClock(200_000, stall_s=0.05), tick_s=600) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(workers={"min": 0, "max": 5}))
        begun = datetime.datetime.fromisoformat(made["createdAt"]).timestamp()
        await eventually(lambda: settings(emulator, made["id"]).workers_max == 2)
        assert 3 * DAY <= emulator.clock.time() - begun < 5 * DAY
        await eventually(lambda: settings(emulator, made["id"]).workers_max == 0)
        assert (await rest.get(f"/serverless/{made['id']}"))["workers"]["max"] == 0
        assert [notice["text"].partition(":")[2] for notice in emulator.report()["notices"]] == [
            " workers.max is 2 now",
            " workers.max is 0 now",
        ]
        job = await rest.run(made["id"])
        assert (await rest.get(f"/{made['id']}/status/{job}"))["status"] == "IN_QUEUE"
        assert settings(emulator, made["id"]).workers_max == 0


async def test_requests_keep_an_endpoint_awake_also_over_a_restart(tmp_path: Path) -> None:
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(), images={"*": ImageConfig()}, s3=False, rate_limits=False)
    now = 1_700_000_000.0
    made: Any = None
    for days, wanted in ((0.0, 5), (2.9, 5), (5.7, 5), (8.8, 2)):
        clock = FastClock(1, start=now + days * DAY)
        async with Emulator(config, scripted={"*": Script(echo)}, clock=clock) as emulator, aiohttp.ClientSession() as session:
            rest = Rest(session, emulator)
            if made is None:
                made = await rest.post("/serverless", endpoint(workers={"max": 5}))
            begun = emulator.clock.time()
            await eventually(lambda begun=begun, clock=clock: clock.time() - begun > 0.6)  # type: ignore[misc]
            assert settings(emulator, made["id"]).workers_max == wanted
            if days:
                await rest.run(made["id"])
            await eventually(lambda begun=begun, clock=clock: clock.time() - begun > 1.3)  # type: ignore[misc]


async def test_an_endpoint_of_unhealthy_workers_is_scaled_down(tmp_path: Path) -> None:
    script = Script(echo, exit_code=3, says=("loading", "no such model"))
    async with controlled(tmp_path, script=script, clock=FastClock(500), unhealthy_scale_down_s=600.0) as (emulator, rest):
        made = await rest.post("/serverless", endpoint(workers={"min": 1, "max": 2}))
        await eventually(lambda: emulator.endpoint(made["id"]).workers and emulator.endpoint(made["id"]).workers[0].unhealthy)
        (worker,) = (await rest.get(f"/serverless/{made['id']}/workers"))["workers"]
        assert worker["status"] == "UNHEALTHY"
        begun = emulator.clock.time()
        await eventually(lambda: settings(emulator, made["id"]).workers_max == 0, 20)
        assert emulator.clock.time() - begun > 500
        shown = await rest.get(f"/serverless/{made['id']}")
        assert shown["workers"] == {"min": 0, "max": 0, "idleTimeout": 10}


async def test_workers_of_an_image_are_processes_with_its_command_args_and_env(tmp_path: Path) -> None:
    show = "import json,os,sys,time; print(json.dumps([sys.argv[1:], dict(os.environ)]), flush=True); time.sleep(60)"
    image = ImageConfig(command=(sys.executable, "-c", show), env={"A": "image", "B": "image"})
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(), images={"me/worker:1": image}, s3=False)
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        rest = Rest(session, emulator)
        volume = await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-CZ-1"})
        body = endpoint(args="--one 'two words'", env={"B": "endpoint"}, workers={"min": 1, "max": 1}, networkVolumes=[volume["id"]])
        made = await rest.post("/serverless", body)
        (worker,) = emulator.endpoint(made["id"]).workers
        log = emulator.log_path(made["id"], worker.id)
        await eventually(lambda: log.exists() and log.read_text().endswith("\n"))
        arguments, env = json.loads(log.read_text())
        assert arguments == ["--one", "two words"]
        assert (env["A"], env["B"]) == ("image", "endpoint")
        assert (env["RUNPOD_ENDPOINT_ID"], env["RUNPOD_DC_ID"], env["RUNPOD_VOLUME_ID"]) == (made["id"], "EU-CZ-1", volume["id"])
        (shown,) = (await rest.get(f"/serverless/{made['id']}/workers"))["workers"]
        assert (shown["status"], shown["dataCenterId"], shown["image"]) == ("INITIALIZING", "EU-CZ-1", "me/worker:1")


async def test_the_unmodified_sdk_works_for_an_endpoint_that_was_made_through_rest(tmp_path: Path) -> None:
    image = ImageConfig(command=(sys.executable, str(HERE / "sdk_worker.py")))
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(), images={"*": image}, s3=False, tick_s=0.1, stop_grace_s=2)
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        rest = Rest(session, emulator)
        made = await rest.post("/serverless", endpoint(scaling=COUNT, workers={"max": 1}))
        job = await rest.run(made["id"], {"do": "echo", "say": 7})
        await eventually(lambda: emulator.endpoint(made["id"]).completed, 30)
        assert (await rest.get(f"/{made['id']}/status/{job}"))["output"] == {"said": 7}
        (worker,) = (await rest.get(f"/serverless/{made['id']}/workers"))["workers"]
        assert worker["status"] in ("IDLE", "RUNNING")


def test_the_local_stack_runs_the_projects_worker_for_any_image(tmp_path: Path) -> None:
    config = default_config(tmp_path, worker_python="python", code=tmp_path, worker_env={"X": "1"})
    image = config.images["*"]
    assert image.command == ("python", "-m", "worker")
    assert (image.env["X"], image.env["PYTHONPATH"]) == ("1", str(tmp_path))
    assert not config.idle_rule


@pytest.mark.parametrize("scaling", [DELAY, COUNT])
async def test_endpoints_of_the_same_name_are_told_apart_by_id(tmp_path: Path, scaling: dict[str, Any]) -> None:
    async with controlled(tmp_path) as (emulator, rest):
        first, second = [await rest.post("/serverless", endpoint(scaling=scaling)) for _ in range(2)]
        await finished(rest, second["id"], await rest.run(second["id"]))
        assert (emulator.endpoint(first["id"]).completed, emulator.endpoint(second["id"]).completed) == (0, 1)
        with pytest.raises(Exception, match="2 endpoints named night"):
            emulator.endpoint("night")


async def test_load_balancing_endpoints_are_declared_and_have_no_queue(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/serverless", endpoint(type="LOAD_BALANCER", scaling=COUNT, workers={"min": 1, "max": 1}))
        assert (await rest.get(f"/serverless/{made['id']}/workers"))["workers"] == []
        assert (await rest.ask("POST", f"/{made['id']}/run", {"input": 1})).status == 404
        assert (await rest.patch(f"/serverless/{made['id']}", {"timeout": 1}))["timeout"] == 1
        await rest.delete(f"/serverless/{made['id']}")


async def test_what_was_answered_is_there_after_kill_9(tmp_path: Path) -> None:
    config = EmulatorConfig(state_dir=str(tmp_path / "local"), endpoints=(), images={"*": ImageConfig()}, api_key="key")
    pid = (await asyncio.to_thread(local.up, config)).pid
    try:
        root = local.stack(tmp_path / "local").facts.api_url
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer key"}) as session:
            async with session.post(f"{root}/serverless", json=endpoint()) as answer:
                made = await answer.json()
            async with session.patch(f"{root}/serverless/{made['id']}", json={"env": {"A": "1"}}) as answer:
                changed = await answer.json()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: local.running(tmp_path / "local") is None)
            await asyncio.to_thread(local.up, config)
            async with session.get(f"{root}/serverless") as answer:
                assert await answer.json() == {"endpoints": [changed]}
    finally:
        await asyncio.to_thread(local.down, tmp_path / "local")


async def test_load_balancing_endpoints_are_not_cut_for_requests_that_nobody_counts(tmp_path: Path) -> None:
    async with controlled(tmp_path, clock=FastClock(200_000, stall_s=0.05), tick_s=600) as (emulator, rest):
        balanced = await rest.post("/serverless", endpoint(name="lb", type="LOAD_BALANCER", scaling=COUNT))
        queue = await rest.post("/serverless", endpoint())
        await eventually(lambda: settings(emulator, queue["id"]).workers_max == 0)
        assert (await rest.get(f"/serverless/{balanced['id']}"))["workers"]["max"] == 3


async def test_workers_are_spread_over_the_volumes_and_see_one_each(tmp_path: Path) -> None:
    async def placed(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        return [worker.endpoint.data_center, worker.endpoint.network_volume]

    async with controlled(tmp_path, script=Script(placed)) as (emulator, rest):
        bodies = [{"name": "v", "size": 10, "dataCenter": center} for center in ("EU-RO-1", "US-KS-2")]
        volumes = [(await rest.post("/network-volumes", body))["id"] for body in bodies]
        made = await rest.post("/serverless", endpoint(workers={"min": 2, "max": 2}, networkVolumes=volumes))
        await eventually(lambda: emulator.open_polls(made["id"]) == 2)
        shown = (await rest.get(f"/serverless/{made['id']}/workers"))["workers"]
        assert sorted(worker["dataCenterId"] for worker in shown) == ["EU-RO-1", "US-KS-2"]
        found = (await finished(rest, made["id"], await rest.run(made["id"])))["output"]
        assert found in [["EU-RO-1", volumes[0]], ["US-KS-2", volumes[1]]]
        await rest.patch(f"/serverless/{made['id']}", {"networkVolumes": []})
        await eventually(lambda: emulator.open_polls(made["id"]) == 2)
        assert (await finished(rest, made["id"], await rest.run(made["id"])))["output"] == ["US-KS-2", None]
