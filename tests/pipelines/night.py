"""tests/pipelines: a run on the emulator with scripted workers, in the emulator's fast time, over a bucket in memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from contract.facts import Stack, StackSecrets
from contract.keys import RunUri
from contract.memory import MemoryStore, Objects
from contract.models import Plan, StoreMode
from emulator import Emulator, EmulatorConfig, EndpointConfig, FastClock, Script, ScriptedWorker
from pipelines.follow import DriveResult, Event, Progress, drive
from pipelines.runpod import LIMITS, RunPodClient, Timer
from pipelines.runs import RunHandle
from tests.contract.world import SECRETS, START, make_plan, reference_execution, stack_for, write_plan

RATE = 50.0


class FastStore(MemoryStore):
    """A bucket in memory whose instants run with the emulator's clock."""

    def __init__(self, objects: Objects, clock: FastClock, mode: StoreMode) -> None:
        super().__init__(objects, mode=mode)
        self._clock = clock

    def now(self) -> datetime:
        return START + timedelta(seconds=self._clock.time())


@dataclass
class Night:
    """An emulator, a planned run, and what happened."""

    emulator: Emulator
    clock: FastClock
    plan: Plan
    objects: Objects
    work_s: float
    events: list[Event] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    clients: list[RunPodClient] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def saw(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it, looking whenever a client tells something or a worker finishes."""
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    @property
    def committed(self) -> int:
        return sum("/commits/" in key for key in self.objects.data)

    async def until_some_rows_are_done(self) -> None:
        await self.until(lambda: any(isinstance(e, Progress) and e.ok for e in self.events))

    @property
    def run(self) -> RunHandle:
        return RunHandle(RunUri.parse(self.plan.run), self.plan)

    @property
    def launched(self) -> int:
        """Workers that the emulator has started by now."""
        return len(self.emulator.scripted(self.plan.infra.endpoint).workers)

    @property
    def timer(self) -> Timer:
        return Timer(monotonic=self.clock.time, sleep=self.clock.sleep)

    @property
    def stack(self) -> Stack:
        found = stack_for(self.plan, secrets=StackSecrets(self.emulator.api_key, SECRETS.s3, SECRETS.worker_s3))
        from msgspec.structs import replace

        return Stack(replace(found.facts, stack="local", api_url=self.emulator.base_url), found.secrets)

    def store(self) -> FastStore:
        return FastStore(self.objects, self.clock, self.plan.store.mode)

    def jobs(self, **more: Any) -> RunPodClient:
        client = RunPodClient(
            api_url=self.emulator.base_url,
            endpoint_id=self.plan.infra.endpoint_id,
            api_key=self.emulator.api_key,
            timer=self.timer,
            limits=LIMITS,
            **more,
        )
        self.clients.append(client)
        return client

    async def drive(self, **more: Any) -> DriveResult:
        settings: dict[str, Any] = {
            "stack": self.stack, "jobs": self.jobs(), "store": self.store(), "events": self.saw, "timer": self.timer, **more
        }  # fmt: skip
        return await drive(self.run, **settings)

    async def work(self, job: dict[str, Any], worker: ScriptedWorker) -> Any:
        """What a scripted worker does with a job: it takes `work_s` between its start marker and its end."""

        async def reading(op: str, key: str) -> None:
            if "/input/" in key:
                await self.clock.sleep(self.work_s)

        store = self.store()
        store.hook = reading
        try:
            return await reference_execution(job, store, worker.id, secrets.token_hex(8), self.computed.append)
        finally:
            self.changed.set()


@asynccontextmanager
async def night(
    folder: Path, *, shards: int = 6, mode: StoreMode = "conditional", work_s: float = 2.0, script: dict[str, Any] | None = None,
    endpoint: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, rate: float = RATE, **plan: Any
) -> AsyncIterator[Night]:  # fmt: skip
    """A planned run and a running emulator that has one endpoint for it."""
    clock = FastClock(rate)
    made = make_plan(shards=shards, mode=mode, **plan)
    infra = made.infra
    config = EmulatorConfig(
        state_dir=str(folder),
        s3=False,
        endpoints=(
            EndpointConfig(
                name=infra.endpoint,
                id=infra.endpoint_id,
                model="tiny",
                tasks=("embed",),
                workers_max=infra.workers_max,
                scaler=infra.scaler,
                scaler_value=infra.scaler_value,
                execution_timeout_ms=round(infra.execution_timeout_s * 1000),
                **(endpoint or {}),
            ),
        ),
        **(settings or {}),
    )
    holder: list[Night] = []

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        return await holder[0].work(job, worker)

    scripts = {infra.endpoint: Script(**{"handler": handler, "concurrency": infra.shards_per_worker, **(script or {})})}
    async with Emulator(config, scripted=scripts, clock=clock) as emulator:
        found = Night(emulator, clock, made, Objects(instant=START), work_s)
        holder.append(found)
        await write_plan(found.store(), made)
        try:
            yield found
        finally:
            for client in found.clients:
                await client.close()
