"""The real engine: new images while jobs run."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from infra.review import engine
from infra.review.engine import Done
from tests.infra.engine.kit import IMAGE, NEXT_IMAGE, Cloud, Json, Site, endpoint, eventually, kill

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]


def declared(rollout: str, image: str = IMAGE) -> Json:
    return endpoint(
        "gen",
        image=image,
        rollout=rollout,
        workers={"min": 0, "max": 2, "idleTimeout": 30},
        scaling={"type": "QUEUE_DELAY", "queueDelay": 0.5},
    )


def running_job(cloud: Cloud, endpoint_id: str) -> str:
    """A job that a worker has, and that stays until the gate opens."""
    cloud.gate.close()
    job = str(cloud.rest("POST", f"{endpoint_id}/run", {"input": {"n": 1}})["id"])
    eventually(lambda: status(cloud, endpoint_id, job)["status"] == "IN_PROGRESS", "a worker has the job")
    return job


def status(cloud: Cloud, endpoint_id: str, job: str) -> Json:
    found: Json = cloud.rest("GET", f"{endpoint_id}/status/{job}")
    return found


@contextmanager
def going_up(site: Site) -> Iterator[list[Done]]:
    """An `up` that runs beside; its end is in the list after the block."""
    ended: list[Done] = []
    thread = threading.Thread(target=lambda: ended.append(site.project.up(site.stack)))
    thread.start()
    try:
        yield ended
    finally:
        site.cloud.gate.open()
        thread.join(120)
    assert ended


def test_a_strict_rollout_waits_for_the_running_job_and_then_gives_the_workers_back(site: Site, cloud: Cloud) -> None:
    site.declare(declared("strict"))
    site.up()
    gen = site.id("gen")
    job = running_job(cloud, gen)
    worker = status(cloud, gen, job)["workerId"]
    site.declare(declared("strict", NEXT_IMAGE))
    with going_up(site) as ended:
        live = cloud.until_live("gen", lambda found: found["workers"]["max"] == 0, "no new worker may start")
        assert live["image"] == IMAGE, "the new image waits for the job"
        assert status(cloud, gen, job)["status"] == "IN_PROGRESS"
        assert ended == []
        cloud.gate.open()
    assert ended[0].ok, ended[0].stdout + ended[0].stderr
    live = cloud.live("serverless")["gen"]
    assert (live["id"], live["image"], live["workers"]["max"]) == (gen, NEXT_IMAGE, 2)
    done = status(cloud, gen, job)
    assert (done["status"], done["workerId"], done.get("retries", 0)) == ("COMPLETED", worker, 0)
    site.clean(refresh=True)


@pytest.mark.parametrize(
    ("everything", "workers"),
    [
        pytest.param(True, 0, id="everything"),  # kill -9 of all, as when a machine goes down
        pytest.param(False, 2, id="engine"),  # a provider that loses its engine gives the workers back before it leaves
    ],
)
def test_a_strict_rollout_that_was_killed_is_completed_by_the_next_up(site: Site, cloud: Cloud, everything: bool, workers: int) -> None:
    site.declare(declared("strict"))
    site.up()
    gen = site.id("gen")
    job = running_job(cloud, gen)
    site.declare(declared("strict", NEXT_IMAGE))
    processes: list[subprocess.Popen[bytes]] = []
    ended: list[Done] = []
    arguments = ["up", "--yes", "--skip-preview", "--stack", "dev"]
    thread = threading.Thread(
        target=lambda: ended.append(engine.run(arguments, cwd=site.folder, env=site.env(), timeout_s=120, on_start=processes.append))
    )
    thread.start()
    cloud.until_live("gen", lambda found: found["workers"]["max"] == 0, "the rollout has begun")
    killed = engine.session_members(processes[0].pid)
    assert len(killed) >= 3, "engine, language host, provider"
    kill(*(killed if everything else ()))
    processes[0].send_signal(signal.SIGKILL)
    thread.join(60)
    assert ended[0].returncode == 128 + signal.SIGKILL
    live = cloud.live("serverless")["gen"]
    assert (live["workers"]["max"], live["image"]) == (workers, IMAGE)

    cloud.gate.open()
    eventually(lambda: status(cloud, gen, job)["status"] == "COMPLETED", "the job ends all the same")
    assert site.project.cancel("dev").ok
    site.up()
    live = cloud.live("serverless")["gen"]
    assert (live["id"], live["image"], live["workers"]["max"]) == (gen, NEXT_IMAGE, 2)
    site.clean(refresh=True)


def test_a_rolling_update_lets_the_running_job_finish_on_its_worker(site: Site, cloud: Cloud) -> None:
    site.declare(declared("rolling"))
    site.up()
    gen = site.id("gen")
    job = running_job(cloud, gen)
    worker = status(cloud, gen, job)["workerId"]
    site.declare(declared("rolling", NEXT_IMAGE))
    site.up()
    assert cloud.live("serverless")["gen"]["image"] == NEXT_IMAGE
    assert status(cloud, gen, job)["status"] == "IN_PROGRESS", "an up does not stop what runs"
    cloud.gate.open()
    eventually(lambda: status(cloud, gen, job)["status"] == "COMPLETED", "the job ends")
    assert (status(cloud, gen, job)["workerId"], status(cloud, gen, job).get("retries", 0)) == (worker, 0)
    releases = cloud.rest("GET", f"serverless/{gen}/releases")
    assert [entry["field"] for entry in releases["releases"][0]["diff"]] == ["template.imageName"]
    site.clean(refresh=True)


def test_a_destroy_that_drains_waits_for_the_running_job(site: Site, cloud: Cloud) -> None:
    drained = declared("rolling")
    drained["props"].update(drainOnDelete=True, drainTimeoutSeconds=60)
    site.declare(drained)
    site.up()
    gen = site.id("gen")
    job = running_job(cloud, gen)
    ended: list[Done] = []
    thread = threading.Thread(target=lambda: ended.append(site.project.destroy("dev")))
    thread.start()
    cloud.until_live("gen", lambda found: found["workers"]["max"] == 0, "no new worker may start")
    assert status(cloud, gen, job)["status"] == "IN_PROGRESS"
    assert ended == []
    cloud.gate.open()
    thread.join(120)
    assert ended[0].ok, ended[0].stdout + ended[0].stderr
    assert cloud.everything()["serverless"] == set()
