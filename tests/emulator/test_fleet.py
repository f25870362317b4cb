"""A fleet in a time that stands still between steps: states and bills to the second, without HTTP or processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest_asyncio

from contract.errors import EmulatorError
from emulator import EndpointConfig, ManualClock, WorkerState
from emulator.billing import Bill
from emulator.broker import Broker, BrokerSettings
from emulator.jobs import Job
from emulator.workers import Fleet, Worker


class Handle:
    """A worker that lives until it is told to end."""

    pid: int | None = 1

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await self.ended

    def terminate(self) -> None:
        if not self.ended.done():
            self.ended.set_result(0)

    kill = terminate


@dataclass
class Launches:
    """A launcher that only counts."""

    handles: dict[str, Handle] = field(default_factory=dict)
    fails: bool = False

    async def launch(self, endpoint: EndpointConfig, worker: str) -> Handle:
        if self.fails:
            raise EmulatorError("no such program")
        self.handles[worker] = Handle()
        return self.handles[worker]


class Nobody:
    """Takes no notice of jobs."""

    def saved(self, job: Job) -> None: ...
    def deleted(self, job: Job) -> None: ...
    def finished(self, job: Job) -> None: ...
    def counted(self, endpoint: str, completed: int, failed: int, retried: int) -> None: ...


@dataclass
class Site:
    clock: ManualClock
    fleet: Fleet
    broker: Broker
    launches: Launches
    meters: list[Worker]

    async def passes(self, seconds: int) -> None:
        """Time, in ticks of a second."""
        for _ in range(seconds):
            await self.clock.advance(1)
            self.broker.tick(self.clock.time())
            self.fleet.reconcile()

    def submit(self, **policy: object) -> Job:
        return self.broker.submit(json.dumps({"input": 1, "policy": policy}).encode(), "run", self.clock.time())

    @property
    def worker(self) -> Worker:
        (worker,) = self.fleet.workers
        return worker

    def count(self) -> int:
        return len(self.fleet.workers)

    def state(self) -> WorkerState:
        return self.worker.state


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    endpoint = EndpointConfig(name="e", workers_max=2, idle_timeout_s=5, scaler_value=4, initialize_s=60, usd_per_s=0.001, gpu_count=2)
    clock, launches, meters = ManualClock(), Launches(), list[Worker]()
    fleet = Fleet(endpoint, clock, launches, meters.append, Bill())
    fleet.broker = Broker("e", BrokerSettings(), Nobody(), fleet)
    try:
        yield Site(clock, fleet, fleet.broker, launches, meters)
    finally:
        await fleet.close(graceful=False)


async def test_a_life_of_a_worker_is_billed_to_the_second(site: Site) -> None:
    site.submit()
    await site.passes(4)
    assert site.count() == 0  # it has waited 4 s, not longer
    await site.passes(1)
    assert site.state() is WorkerState.INITIALIZING
    await site.passes(59)
    assert site.launches.handles == {}
    assert site.fleet.bill() == Bill()
    await site.passes(31)  # the image is there after 60 s, then the container starts: 30 s of start-up
    worker = site.worker
    assert list(site.launches.handles) == [worker.id]
    site.fleet.polled(worker.id)
    (job,) = site.broker.take(worker.id, 1, site.clock.time())
    assert site.state() is WorkerState.RUNNING
    await site.passes(12)
    await site.clock.advance(0.5)
    site.broker.done(worker.id, job.id, b"{}", site.clock.time())
    assert site.state() is WorkerState.IDLE
    await site.passes(5)
    assert site.count() == 1  # told to leave, but not yet gone
    await site.clock.advance(0)
    assert site.count() == 0
    assert site.fleet.bill() == Bill(workers=1, startup_s=30.0, execution_s=12.5, idle_s=5.0, billed_s=48, usd=48 * 0.001 * 2)


async def test_each_waiting_request_asks_for_one_worker_and_low_priority_ones_for_none(site: Site) -> None:
    site.broker.settings = BrokerSettings(ordinary_overtakes=False)
    for _ in range(5):
        site.submit(lowPriority=True)
    site.submit()
    await site.passes(200)
    assert site.count() == 1
    site.fleet.polled(site.worker.id)
    assert site.broker.take(site.worker.id, 1, site.clock.time())[0].low_priority
    await site.passes(30)
    assert site.count() == 1  # the one ordinary request has had its worker, although it still waits
    site.submit()
    await site.passes(6)
    assert site.count() == 2


async def test_when_its_worker_ends_a_request_that_still_waits_asks_again(site: Site) -> None:
    site.submit()
    await site.passes(70)
    first = site.worker.id
    site.fleet.polled(first)
    site.launches.handles[first].ended.set_result(1)
    await site.passes(70)
    assert site.worker.id != first


async def test_a_program_that_cannot_be_started_makes_the_worker_unhealthy(site: Site) -> None:
    site.launches.fails = True
    site.submit()
    await site.passes(65)
    assert site.state() is WorkerState.UNHEALTHY
    assert site.fleet.bill().billed_s == 0


async def test_a_worker_that_takes_longer_than_seven_minutes_to_start_is_unhealthy(site: Site) -> None:
    site.submit()
    await site.passes(65 + 420)
    assert site.state() is WorkerState.INITIALIZING
    await site.passes(1)
    assert site.worker.unhealthy == "not ready after 420 s"
