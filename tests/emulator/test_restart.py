"""State that survives the emulator's own restart, and kill -9 of it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sqlite3
import stat
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from contract.errors import EmulatorError
from contract.facts import LocalFile, load_emulator
from emulator import EmulatorConfig, EndpointConfig, FastClock, Script, WorkerState, local
from emulator.broker import Broker
from emulator.emulator import Emulator
from tests.emulator.kit import HERE, Api, Gate, Receiver, echo, emulated, eventually, processes_of, working

ONE = EndpointConfig(name="e", workers_min=1, workers_max=1)
NONE = EndpointConfig(name="e", workers_max=0)
WORKER = (sys.executable, str(HERE / "sdk_worker.py"))


async def test_after_a_restart_everything_is_as_it_was(tmp_path: Path) -> None:
    gate, clock = Gate(), FastClock(100)
    async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}, clock=clock) as (emulator, api):
        done = await api.until(await api.run("done"), "COMPLETED")
        emulator.configure("e", workers_min=0, workers_max=0)
        await eventually(lambda: not emulator.endpoint("e").workers)
        queued = [await api.run(number) for number in range(3)]
        await api.call("POST", f"cancel/{queued[1]}")
        before, url, key = emulator.endpoint("e"), emulator.base_url, emulator.api_key
    async with emulated(tmp_path, ONE, scripts={"e": Script(gate.handler)}, clock=clock) as (emulator, api):
        assert (emulator.base_url, emulator.api_key) == (url, key)
        assert await api.status(done["id"]) == done
        assert (await api.status(queued[1]))["status"] == "CANCELLED"
        after = emulator.endpoint("e")
        assert (after.queued, after.completed) == (2, 1)
        assert after.bill.workers >= before.bill.workers == 1
        assert after.bill.usd >= before.bill.usd > 0
        gate.open.set()
        for number in (0, 2):
            assert (await api.until(queued[number], "COMPLETED"))["output"] == {"said": number}
        assert gate.entered == [queued[0], queued[2]]


async def test_a_running_job_of_an_emulator_that_died_is_delivered_again_when_its_time_is_over(tmp_path: Path) -> None:
    clock = FastClock(100)
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(ONE,), s3=False)
    async with aiohttp.ClientSession() as session:
        dying = Emulator(config, scripted={"e": Script(working(10_000))}, clock=clock)
        await dying.start()
        api = Api(session, dying, "e")
        job = await api.run()
        await api.until(job, "IN_PROGRESS")
        await dying.stop(graceful=False)  # its workers die with it, and nothing is posted
    begun = clock.time()
    async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}, clock=clock) as (emulator, api):
        assert (await api.status(job))["status"] == "IN_PROGRESS"
        done = await api.until(job, "COMPLETED")
        assert done["retries"] == 1
        assert emulator.clock.time() - begun >= 40


async def test_deleted_jobs_leave_nothing_in_the_file(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (_, api):
        job = await api.run("a secret", policy={"ttl": 10_000})
        await api.until(job, "GONE")
    assert stat.S_IMODE((tmp_path / "state.sqlite").stat().st_mode) == 0o600
    assert b"a secret" not in (tmp_path / "state.sqlite").read_bytes()
    with sqlite3.connect(tmp_path / "state.sqlite") as file:
        assert [file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("jobs", "bodies")] == [0, 0]


async def test_a_webhook_that_is_pending_is_sent_after_the_restart(tmp_path: Path) -> None:
    clock = FastClock(10)
    async with Receiver(500).listening() as receiver:
        async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}, clock=clock) as (emulator, api):
            await api.run(webhook=receiver.url)
            await eventually(lambda: receiver.got)
        async with emulated(tmp_path, NONE, clock=clock) as (emulator, api):
            await emulator.webhooks.drained()
        assert len(receiver.got) == 2
        async with emulated(tmp_path, NONE, clock=clock) as (emulator, api):
            await emulator.webhooks.drained()
        assert len(receiver.got) == 2


async def test_two_emulators_cannot_share_a_state_directory(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (_, api):
        facts = tmp_path / "facts.json"
        facts.write_text("of the first")
        with pytest.raises(EmulatorError, match="Another emulator"):
            async with emulated(tmp_path, NONE):
                pass
        assert facts.exists()
        await api.run()


async def test_a_port_that_is_taken_meanwhile_is_replaced_by_another(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (first, _):
        url = first.base_url
    port = int(url.split(":")[2].split("/")[0])
    async with emulated(tmp_path / "other", NONE, port=port), emulated(tmp_path, NONE) as (second, _):
        assert second.base_url != url


async def test_a_fixed_port_that_is_taken_is_one_clear_sentence(tmp_path: Path) -> None:
    async with emulated(tmp_path / "a", NONE) as (first, _):
        with pytest.raises(EmulatorError, match="Choose another"):
            async with emulated(tmp_path / "b", NONE, port=int(first.base_url.split(":")[2].split("/")[0])):
                pass


async def test_a_state_of_another_format_is_refused(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE):
        pass
    with sqlite3.connect(tmp_path / "state.sqlite") as file:
        file.execute("UPDATE meta SET value = '999' WHERE key = 'format'")
    with pytest.raises(EmulatorError, match="format 999"):
        async with emulated(tmp_path, NONE):
            pass


async def test_when_its_own_loop_breaks_the_emulator_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(broker: Broker, now: float) -> None:
        raise ZeroDivisionError

    async with emulated(tmp_path, NONE) as (emulator, _):
        monkeypatch.setattr(Broker, "tick", breaks)
        with pytest.raises(EmulatorError, match="ZeroDivisionError"):
            await asyncio.wait_for(emulator.failed, 10)


# --- in the background, in real time ----------------------------------------------------------------------------------


def background(tmp_path: Path, **endpoint: Any) -> EmulatorConfig:
    return EmulatorConfig(
        state_dir=str(tmp_path / "local"),
        endpoints=(EndpointConfig(**{"name": "e", "command": WORKER, "tasks": ("embed",), **endpoint}),),
        ping_interval_ms=1000,
        lost_after_s=2,
        tick_s=0.1,
        long_poll_s=2,
    )


async def call(directory: Path, method: str, path: str, body: Any = None) -> Any:
    stack = load_emulator(directory / "facts.json")
    async with (
        aiohttp.ClientSession(headers={"Authorization": stack.secrets.api_key}) as session,
        session.request(method, f"{stack.facts.api_url}/e/{path}", json=body) as answer,
    ):
        return await answer.json()


async def until_status(directory: Path, job: str, wanted: str) -> Any:
    for _ in range(600):
        found = await call(directory, "GET", f"status/{job}")
        if found.get("status") == wanted:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(found)


def sockets_of(directory: Path) -> list[Path]:
    """The socket files of the S3 server: below the directory, and where it puts those of its gRPC ports."""
    ports = msgspec.json.decode((directory / "identity.json").read_bytes())["s3_ports"]
    grpc = [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + 10_000}.sock")]
    return [*(path for path in directory.rglob("*") if path.is_socket()), *grpc]


async def test_local_up_status_down(tmp_path: Path) -> None:
    config, told = background(tmp_path, workers_max=1), list[str]()
    directory = Path(config.state_dir)
    assert local.status(directory).state == "stopped"
    assert await asyncio.to_thread(local.down, directory) is False
    up = await asyncio.to_thread(lambda: local.up(config, on_progress=told.append))
    try:
        assert (up.state, up.bucket, up.endpoints[0].name) == ("running", "nightbatch", "e")
        assert told == ["starting the S3 server", "ready"]
        again = await asyncio.to_thread(local.up, config)
        assert (again.pid, again.api_url) == (up.pid, up.api_url)
        facts = directory / "facts.json"
        assert stat.S_IMODE(facts.stat().st_mode) == 0o600
        assert msgspec.json.decode(facts.read_bytes(), type=LocalFile).pid == up.pid
        stack = local.stack(directory)
        assert stack.facts.endpoint_for("e", "embed").usd_per_second == 0.00019
        secrets = stack.secrets.values
        for path in (path for path in directory.rglob("*") if path.is_file()):
            if any(secret.encode() in path.read_bytes() for secret in secrets):
                assert path.name in ("facts.json", "identity.json", "identities.json")
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not [secret for secret in secrets if secret in repr(local.status(directory))]
    finally:
        assert await asyncio.to_thread(local.down, directory) is True
    assert local.status(directory).state == "stopped"
    assert not facts.exists()
    await eventually(lambda: processes_of(directory) == {})
    with pytest.raises(EmulatorError, match="nightbatch local up"):
        local.stack(directory)


async def test_kill_9_leaves_nothing_behind_and_the_next_up_goes_on(tmp_path: Path) -> None:
    config = background(tmp_path, workers_min=1, workers_max=1)
    directory = Path(config.state_dir)
    up = await asyncio.to_thread(local.up, config)
    try:
        started = tmp_path / "started"
        done = (await call(directory, "POST", "run", {"input": {"do": "echo", "say": 1}}))["id"]
        await until_status(directory, done, "COMPLETED")
        running = (
            await call(directory, "POST", "run", {"input": {"do": "wait", "started": str(started), "cancelled": str(tmp_path / "c")}})
        )["id"]
        await eventually(started.exists)
        queued = (await call(directory, "POST", "run", {"input": {"do": "echo", "say": 2}}))["id"]
        assert len(processes_of(directory)) >= 4  # itself, weed, the worker and their guards
        assert up.pid is not None
        sockets = sockets_of(directory)
        assert len(sockets) > 2  # what is looked for below is where it is looked for
        os.kill(up.pid, signal.SIGKILL)
        await eventually(lambda: processes_of(directory) == {}, what=f"left behind: {processes_of(directory)}")
        await eventually(lambda: not any(path.exists() for path in sockets), what=f"left behind: {sockets}")
        assert local.status(directory).state == "stopped"
        started.unlink()
        (directory / "identity.json.123.new").write_text("half a file")

        again = await asyncio.to_thread(local.up, config)
        assert (again.api_url, again.s3_url) == (up.api_url, up.s3_url)
        assert not list(directory.glob("*.new"))
        assert (await call(directory, "GET", f"status/{done}"))["status"] == "COMPLETED"
        await eventually(started.exists, timeout_s=20, what="the job that was running is not with a worker again")
        assert (await call(directory, "GET", f"status/{running}"))["retries"] == 1
        await call(directory, "POST", f"cancel/{running}")
        assert (await until_status(directory, queued, "COMPLETED"))["output"] == {"said": 2}
    finally:
        await asyncio.to_thread(local.down, directory)
    await eventually(lambda: processes_of(directory) == {})
    assert sockets_of(directory) == []


IN_A_LIBRARY = """
import asyncio, sys
from pathlib import Path
from emulator import Emulator
from emulator.config import read_config
async def main():
    async with Emulator(read_config(Path(sys.argv[1]).read_bytes(), "")):
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize(("command", "code"), [(("-m", "emulator", "--config"), 0), (("-c", IN_A_LIBRARY), -signal.SIGINT)])
async def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    idler = (sys.executable, "-c", "import time; time.sleep(60)")
    config = EmulatorConfig(
        state_dir=str(tmp_path), endpoints=(EndpointConfig(name="e", command=idler, workers_min=2, workers_max=2),), s3=False
    )
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, str(tmp_path / "config.json"), start_new_session=True)
    try:
        await eventually(lambda: sum("time.sleep(60)" in text for text in processes_of(tmp_path).values()) >= 4)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody in the foreground
        assert await asyncio.wait_for(process.wait(), 20) == code
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await eventually(lambda: processes_of(tmp_path) == {})


async def test_kill_9_of_a_worker_has_its_job_delivered_again(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="e", command=WORKER, workers_min=1, workers_max=1)
    settings = {"ping_interval_ms": 1000, "lost_after_s": 2, "tick_s": 0.1, "long_poll_s": 2}
    async with emulated(tmp_path, endpoint, clock=FastClock(1), **settings) as (emulator, api):  # type: ignore[arg-type]
        started = tmp_path / "started"
        job = await api.run({"do": "wait", "started": str(started), "cancelled": str(tmp_path / "c")})
        await eventually(started.exists)
        worker = emulator.endpoint("e").workers[0]
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        started.unlink()
        await eventually(lambda: [w for w in emulator.endpoint("e").workers if w.id != worker.id], what="it was not replaced")
        await eventually(started.exists)
        again = await api.status(job)
        assert (again["status"], again["retries"]) == ("IN_PROGRESS", 1)
        assert again["workerId"] != worker.id
        await api.call("POST", f"cancel/{job}")
        await eventually(lambda: emulator.endpoint("e").count(WorkerState.IDLE))


async def test_an_emulator_that_cannot_start_says_why(tmp_path: Path) -> None:
    config = background(tmp_path)
    directory = Path(config.state_dir)
    directory.mkdir()
    (directory / "state.sqlite").write_text("this is no database, but it is long enough to be taken for one" * 100)
    with pytest.raises(EmulatorError, match="not a SQLite file"):
        await asyncio.to_thread(local.up, config)
    assert local.status(directory).state == "stopped"


async def test_asking_whether_it_runs_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    asked = os.open(tmp_path / "emulator.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(asked, fcntl.LOCK_SH)  # as `running` does, for an instant
    starting = asyncio.create_task(asyncio.to_thread(local.hold, tmp_path))
    await asyncio.sleep(0.1)
    assert not starting.done()
    os.close(asked)
    await starting
    assert local.running(tmp_path) == os.getpid()
    with pytest.raises(EmulatorError, match="nightbatch local down"):
        await asyncio.to_thread(local.hold, tmp_path)
    local._held.pop().close()
    assert local.running(tmp_path) is None


async def test_a_stale_lock_file_of_a_dead_process_does_not_mislead(tmp_path: Path) -> None:
    (tmp_path / "emulator.lock").write_text(f"{os.getpid()}\n")
    (tmp_path / "facts.json").write_text("{}")
    assert local.running(tmp_path) is None
    assert local.status(tmp_path).state == "stopped"
    assert local.down(tmp_path) is False
