"""tests of the emulator: a small client, a webhook receiver, and waiting for a condition with a bound."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from emulator import Emulator, EmulatorConfig, EndpointConfig, FastClock, Script, ScriptedWorker
from emulator.clock import Clock
from emulator.scripted import ScriptedHandler

HERE = Path(__file__).parent


async def eventually(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "") -> Any:
    """The condition's first true value; AssertionError when it does not come in time (real seconds)."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, what or "it did not come to be in time"
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and is not collected yet does not. It may end at any moment of the question."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc").is_dir()  # gone meanwhile; elsewhere than on Linux nothing more can be asked


def processes_of(directory: Path) -> dict[int, str]:
    """Live processes that name the directory in their command or environment: an emulator's workers, guards and servers do, although they
    inherit nothing of the test's environment. Linux only; elsewhere nothing is found."""
    mark = str(directory).encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            named = mark in command or mark in (entry / "environ").read_bytes()
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
        if named and state != "Z" and int(entry.name) != os.getpid():
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


class Api:
    """A client of one endpoint."""

    def __init__(self, session: aiohttp.ClientSession, emulator: Emulator, endpoint: str) -> None:
        self._session = session
        self._base = f"{emulator.base_url}/{endpoint}"
        self._headers = {"Authorization": f"Bearer {emulator.api_key}"}

    async def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and decoded body."""
        data = None if body is None else io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self._session.request(method, f"{self._base}/{path}", data=data, headers=headers or self._headers) as answer:
            text = await answer.read()
            return answer.status, json.loads(text) if text else None

    async def run(self, given: Any = "x", **more: Any) -> str:
        """Submit; the job's id."""
        status, answer = await self.call("POST", "run", {"input": given, **more})
        assert status == 200, answer
        assert answer["status"] == "IN_QUEUE"
        return str(answer["id"])

    async def status(self, job: str) -> Any:
        """The body of /status; None for 404."""
        status, answer = await self.call("GET", f"status/{job}")
        assert status in (200, 404), answer
        return answer if status == 200 else None

    async def until(self, job: str, *wanted: str, timeout_s: float = 10.0) -> Any:
        """Wait for a state (GONE: 404); the body of /status."""
        until = time.monotonic() + timeout_s
        while True:
            found = await self.status(job)
            state = "GONE" if found is None else found["status"]
            if state in wanted:
                return found
            assert time.monotonic() < until, f"{state}, not {wanted}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def emulated(
    state_dir: Path, *endpoints: EndpointConfig, scripts: dict[str, Script] | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[Emulator, Api]]:
    """A running emulator without S3 and a client of its first endpoint. A time that runs 100 times faster unless a clock is given."""
    config = EmulatorConfig(state_dir=str(state_dir), endpoints=endpoints, **{"s3": False, **settings})
    async with (
        Emulator(config, scripted=scripts, clock=clock or FastClock(100)) as emulator,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield emulator, Api(session, emulator, endpoints[0].endpoint_id)


async def echo(job: dict[str, Any], worker: ScriptedWorker) -> Any:
    return {"said": job["input"]}


def working(seconds: float) -> ScriptedHandler:
    """A handler that takes so long, in the emulator's seconds."""

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        await worker.clock.sleep(seconds)
        return {"said": job["input"]}

    return handler


class Gate:
    """A handler that waits until the test opens the gate."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered: list[str] = []

    async def handler(self, job: dict[str, Any], worker: ScriptedWorker) -> Any:
        self.entered.append(job["id"])
        await self.open.wait()
        return {"said": job["input"]}


class Receiver:
    """A webhook receiver: answers with the statuses it is given (then 200) and keeps what came."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.got: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.router.add_post("/hook", self._take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.got.append((await request.json(), {name.lower(): value for name, value in request.headers.items()}))
        return web.Response(status=self._statuses.pop(0) if self._statuses else 200)
