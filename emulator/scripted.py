"""emulator: scripted workers. They speak the worker plane over HTTP as the SDK does, but run an async function of a test, in the
emulator's clock: with a fast clock whole nights pass in seconds. They can be told to die silently, go slow or post twice.

May touch: HTTP to the emulator.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from emulator.clock import Clock
from emulator.config import EndpointConfig
from emulator.workers import WorkerHandle

PING_S: Final = 10.0
GRACE_S: Final = 10.0
"""From being told to leave to being killed, in seconds of the emulator's clock."""

ScriptedHandler = Callable[[dict[str, Any], "ScriptedWorker"], Awaitable[Any]]


@dataclass(frozen=True)
class Script:
    """What a scripted worker does. `handler` gets the job as job-take gave it, and its worker; what it returns is the output, or the job's
    error where it returns {"error": …} as the SDK's handlers do; what it raises becomes one. Seconds are of the emulator's clock."""

    handler: ScriptedHandler
    concurrency: int = 1
    start_s: float = 0.0
    """From its start to its first question for work."""
    slow_s: float = 0.0
    """Added to each job."""
    posts: int = 1
    """How often each result is posted."""
    pings: bool = True
    exit_code: int | None = None
    """Ends with this code instead of asking for work."""
    says: tuple[str, ...] = ()
    """Lines of its log, at its start; a handler says more with `worker.say`."""


class ScriptedWorker:
    """One worker of a script, and the handle by which the fleet holds it."""

    pid: int | None = None

    def __init__(
        self, script: Script, worker: str, plane_url: str, key: str, clock: Clock, endpoint: EndpointConfig, say: Callable[[str], None]
    ) -> None:
        self.id = worker
        self.clock = clock
        self.endpoint = endpoint
        """The settings that it was started with: its env, its image."""
        self.say = say
        """Print a line into its log."""
        self._script = script
        self._plane = plane_url
        self._headers = {"Authorization": key}
        self._leaving = asyncio.Event()
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[int] = asyncio.get_running_loop().create_task(self._run())

    # --- as the fleet's handle ------------------------------------------------------------------------------------

    async def wait(self) -> int:
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._task.done():
                return 137
            raise

    def terminate(self) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            asyncio.get_running_loop().call_later(self.clock.real_seconds(GRACE_S), self.kill)

    def kill(self) -> None:
        """End at once: nothing more is posted, its connections close."""
        self._task.cancel()

    die = kill
    """The same, for a handler that lets its worker die silently."""

    # --- its life -------------------------------------------------------------------------------------------------

    async def _run(self) -> int:
        for line in self._script.says:
            self.say(line)
        await self.clock.sleep(self._script.start_s)
        if self._script.exit_code is not None:
            return self._script.exit_code
        async with aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout(total=None)) as session:
            self._session = session
            helpers = [asyncio.create_task(self._obey())]
            if self._script.pings:
                helpers.append(asyncio.create_task(self._ping()))
            try:
                await self._take()
                await asyncio.gather(*self._jobs.values(), return_exceptions=True)
            finally:
                everything = [*helpers, *self._jobs.values()]
                for task in everything:
                    task.cancel()
                await asyncio.gather(*everything, return_exceptions=True)
        return 0

    async def _take(self) -> None:
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            while not self._leaving.is_set():
                free = asyncio.create_task(self._free())
                await asyncio.wait({free, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not free.done():
                    free.cancel()
                    break
                count = self._script.concurrency - len(self._jobs)
                url = f"{self._plane}/job-take-batch/{self.id}?gpu=SIM&batch_size={count}&job_in_progress={int(bool(self._jobs))}"
                poll = asyncio.create_task(self._get(url))
                await asyncio.wait({poll, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not poll.done():
                    poll.cancel()
                    await asyncio.gather(poll, return_exceptions=True)
                    break
                for job in poll.result() or []:
                    task = self._jobs[job["id"]] = asyncio.create_task(self._do(job))
                    # Not in the task itself: one that is stopped before its first step runs no `finally`.
                    task.add_done_callback(functools.partial(self._over, job["id"]))
        finally:
            leaving.cancel()

    async def _free(self) -> None:
        while len(self._jobs) >= self._script.concurrency:
            await asyncio.wait(set(self._jobs.values()), return_when=asyncio.FIRST_COMPLETED)

    def _over(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._jobs.pop(job_id, None)

    async def _do(self, job: dict[str, Any]) -> None:
        await self.clock.sleep(self._script.slow_s)
        try:
            made = await self._script.handler(job, self)
            failed = isinstance(made, dict) and set(made) == {"error"}
            body: dict[str, Any] = made if failed else {"output": made}
        except Exception as error:
            body = {"error": json.dumps({"error_type": str(type(error)), "error_message": str(error)})}
        for _ in range(self._script.posts):
            await self.post(job["id"], body)

    async def post(self, job_id: str, body: dict[str, Any], *, stream: bool = False) -> int:
        """Post a result (or a chunk) by hand; the status of the answer."""
        operation = "job-stream" if stream else "job-done"
        url = f"{self._plane}/{operation}/{self.id}/{job_id}?gpu=SIM&isStream=false"
        async with self._session.post(url, data=io.BytesIO(json.dumps(body).encode())) as answer:
            return answer.status

    async def _obey(self) -> None:
        while True:
            stops = await self._get(f"{self._plane}/job-stop/{self.id}?gpu=SIM")
            for job_id in (stops or {}).get("jobsToStop", []):
                if job_id in self._jobs:
                    self._jobs[job_id].cancel()

    async def _ping(self) -> None:
        while True:
            await self._get(f"{self._plane}/ping/{self.id}?gpu=SIM&job_id={','.join(self._jobs)}")
            await self.clock.sleep(PING_S)

    async def _get(self, url: str) -> Any:
        try:
            async with self._session.get(url) as answer:
                if answer.status != 200:
                    await answer.read()
                    if answer.status >= 400:
                        await self.clock.sleep(1)
                    return None
                return await answer.json()
        except aiohttp.ClientError:
            # the emulator is gone, or a fault took the answer: as the SDK, ask again
            await self.clock.sleep(1)
            return None


class ScriptedLauncher:
    """Launches workers of one script. `workers`: all that it has launched, by id."""

    def __init__(
        self, script: Script, base_url: str, key: str, clock: Clock, say: Callable[[str, str], None] = lambda worker, line: None
    ) -> None:
        self.script = script
        self._say = say
        self._base_url = base_url
        self._key = key
        self._clock = clock
        self.workers: dict[str, ScriptedWorker] = {}

    async def launch(self, endpoint: EndpointConfig, worker: str) -> WorkerHandle:
        plane = f"{self._base_url}/{endpoint.endpoint_id}"
        launched = ScriptedWorker(self.script, worker, plane, self._key, self._clock, endpoint, lambda line: self._say(worker, line))
        self.workers[worker] = launched
        return launched
