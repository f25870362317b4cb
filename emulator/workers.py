"""emulator: the workers of one endpoint: started, scaled, stopped, replaced and billed.

May touch: worker processes through a launcher, the clock. Which workers there should be is decided in scaling.py, what they cost in
billing.py; this module carries it out. States are those of serverless/workers/overview: initializing, idle, running, throttled, outdated,
unhealthy. A worker is `initializing` until it first asks for work; it is billed from the start of its process.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from contract.errors import EmulatorError
from emulator.billing import Bill, Meter, Phase
from emulator.broker import Broker
from emulator.clock import Clock
from emulator.config import EndpointConfig
from emulator.scaling import WorkerView, decide

log = logging.getLogger("nightbatch.emulator")

RETRY_WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""How long an unhealthy worker waits before another takes its place; the last for ever after. RunPod retries for up to 7 days and states
no waits."""


EXTERNAL_GONE_S: Final = 120.0
"""A worker from outside that has neither an open poll nor pinged for so long is forgotten."""


class WorkerState(StrEnum):
    INITIALIZING = "initializing"
    IDLE = "idle"
    RUNNING = "running"
    THROTTLED = "throttled"
    OUTDATED = "outdated"
    UNHEALTHY = "unhealthy"


class WorkerHandle(Protocol):
    """A launched worker."""

    pid: int | None

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        ...

    def terminate(self) -> None:
        """Ask it to end; a launcher's grace later it is killed."""
        ...

    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts workers: as processes, or scripted ones inside a test."""

    async def launch(self, endpoint: EndpointConfig, worker: str) -> WorkerHandle: ...


@dataclass
class Worker:
    """One worker, from the decision to start it until its process has ended."""

    id: str
    version: int
    created_at: float
    config: EndpointConfig | None = None
    """The settings that it was started with; None for one from outside."""
    launched_at: float | None = None
    ready_at: float | None = None
    idle_since: float | None = None
    busy: bool = False
    throttled: bool = False
    outdated: bool = False
    leaving: bool = False
    """Gets no further work, and is stopped when it has none left."""
    stopping: bool = False
    unhealthy: str | None = None
    """Why, if it is."""
    external: bool = False
    """Came by itself; the emulator neither starts, stops nor bills it."""
    heard_at: float = 0.0
    """When it last asked for work or pinged."""
    meter: Meter = field(default_factory=Meter)
    accounted_s: float = 0.0
    """Seconds of its meter that hourly billing has counted."""
    accounted_at: float | None = None
    handle: WorkerHandle | None = None
    task: asyncio.Task[None] | None = None
    polls: set[asyncio.Future[None]] = field(default_factory=set)
    """Its open questions for work."""

    @property
    def may_work(self) -> bool:
        return not (self.stopping or self.leaving or self.outdated or self.unhealthy)

    @property
    def usd_per_s(self) -> float:
        """Of the whole worker, all its GPUs."""
        return 0.0 if self.config is None else self.config.usd_per_s * self.config.gpu_count

    def added_to(self, bill: Bill, meter: Meter) -> Bill:
        """A bill with this worker on it, at the price that it was started for."""
        return bill if self.config is None else bill.plus(meter, self.config.usd_per_s, self.config.gpu_count)

    def end_polls(self) -> None:
        for poll in self.polls:
            if not poll.done():
                poll.set_result(None)

    @property
    def state(self) -> WorkerState:
        if self.unhealthy is not None:
            return WorkerState.UNHEALTHY
        if self.throttled:
            return WorkerState.THROTTLED
        if self.outdated:
            return WorkerState.OUTDATED
        if self.ready_at is None:
            return WorkerState.INITIALIZING
        return WorkerState.RUNNING if self.busy else WorkerState.IDLE

    @property
    def starting(self) -> bool:
        return self.ready_at is None


class Fleet:
    """The workers of one endpoint. `reconcile` is called on every tick."""

    def __init__(
        self,
        endpoint: EndpointConfig,
        clock: Clock,
        launcher: Launcher | None,
        on_meter: Callable[[Worker], None],
        earlier: Bill,
        *,
        version: int = 1,
        on_event: Callable[[Worker, str], None] = lambda worker, text: None,
        on_end: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        """`on_event` is told of a worker's life in words, `on_end` of a worker that is no more, with its meter at its end."""
        self.endpoint = endpoint
        self.hosts = endpoint.hosts if endpoint.in_stock else 0
        """How many workers find a host; may be changed at any time."""
        self._clock = clock
        self._launcher = launcher
        self._on_meter = on_meter
        self._on_event = on_event
        self._on_end = on_end
        self.failing_since: float | None = None
        """Since when workers have become unhealthy without any becoming ready."""
        self._closed = earlier
        self._workers: dict[str, Worker] = {}
        self._failures = 0
        self._placements = 0
        self._version = version
        self._closing = False
        self.broker: Broker

    # --- what can be seen -----------------------------------------------------------------------------------------

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    @property
    def version(self) -> int:
        return self._version

    def get(self, worker: str) -> Worker | None:
        return self._workers.get(worker)

    def states(self) -> Counter[WorkerState]:
        """Workers by state. Those that are on their way out count as what they were."""
        return Counter(worker.state for worker in self._workers.values())

    def bill(self) -> Bill:
        """What all workers have cost up to now."""
        now = self._clock.time()
        bill = self._closed
        for worker in self._workers.values():
            bill = worker.added_to(bill, worker.meter.at(now))
        return bill

    # --- what workers do ------------------------------------------------------------------------------------------

    def polled(self, worker_id: str) -> Worker | None:
        """A worker asks for work: the first time makes it ready. None: no such worker here."""
        worker = self._workers.get(worker_id)
        if worker is None:
            if self.endpoint.command or self._launcher is not None or self._closing:
                return None
            worker = Worker(worker_id, self._version, self._clock.time(), external=True)
            self._workers[worker_id] = worker
        worker.heard_at = self._clock.time()
        if worker.ready_at is None and worker.unhealthy is None:
            now = self._clock.time()
            worker.ready_at = worker.idle_since = now
            self._failures = 0
            self.failing_since = None
            self._on_event(worker, "worker is ready")
            self._meter(worker, Phase.IDLE)
        return worker

    def busy_changed(self, worker_id: str, busy: bool) -> None:
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.busy = busy
        worker.idle_since = None if busy else self._clock.time()
        if worker.meter.phase is not Phase.UNBILLED:
            self._meter(worker, Phase.EXECUTION if busy else Phase.IDLE)
        if not busy and (worker.outdated or worker.leaving):
            self._stop(worker)

    def stop_wanted(self, worker_id: str, *, at_once: bool) -> None:
        """No further work; it ends at once, or when it has no jobs left."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.external:
            return
        worker.leaving = True
        if at_once or not worker.busy:
            self._stop(worker)

    def heard(self, worker_id: str) -> None:
        """It pinged."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.heard_at = self._clock.time()

    def fell_ill(self, worker_id: str, reason: str) -> None:
        """It reported `status=unhealthy` (a fitness check failed); it is about to exit."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.unhealthy is None:
            self._is_unhealthy(worker, reason)
            self._meter(worker, Phase.UNBILLED)

    # --- what the emulator does -----------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Start and stop what the autoscaler decides; give up on workers that take too long to start; read meters."""
        if self._closing:
            return
        now = self._clock.time()
        for worker in self.workers:
            if worker.launched_at is None or not worker.starting or worker.unhealthy is not None:
                continue
            if now - worker.launched_at > self.endpoint.init_timeout_s:
                self._is_unhealthy(worker, f"not ready after {self.endpoint.init_timeout_s:g} s")
                self._meter(worker, Phase.UNBILLED)
                if worker.handle is not None:
                    worker.handle.kill()
        for worker in self.workers:
            if worker.external and not worker.polls and now - worker.heard_at > EXTERNAL_GONE_S:
                self._remove(worker)
        if self._launcher is None:
            return
        self._find_hosts()
        queue = self.broker.queue_view(now)
        views = tuple(
            WorkerView(
                id=worker.id,
                starting=worker.starting,
                idle_s=None if worker.idle_since is None or worker.busy else now - worker.idle_since,
                outdated=worker.outdated,
            )
            for worker in self._workers.values()
            if not worker.stopping and not worker.external
        )
        decision = decide(self.endpoint.bounds, queue, views)
        for worker_id in decision.stop:
            self.stop_wanted(worker_id, at_once=False)
        for _ in range(decision.start):
            self._start(now)
        if decision.answered:
            self.broker.scaler_answered()

    def update(self, endpoint: EndpointConfig, version: int | None = None) -> None:
        """New settings. What concerns a worker's container makes a new release: idle workers are stopped at once, busy ones finish.

        `version`: who keeps the endpoint's releases says which this is; a new number is a release, the same is none."""
        before, self.endpoint = self.endpoint, endpoint
        self.hosts = endpoint.hosts if endpoint.in_stock else 0
        if version is not None:
            if version != self._version:
                self._version = version - 1
                self.release()
        elif (before.command, before.env, before.cwd, before.image, before.gpu, before.gpu_count) != (
            endpoint.command, endpoint.env, endpoint.cwd, endpoint.image, endpoint.gpu, endpoint.gpu_count,
        ):  # fmt: skip
            self.release()

    def release(self) -> None:
        """A rolling release."""
        self._version += 1
        for worker in self.workers:
            if worker.external or worker.stopping:
                continue
            if worker.busy:
                worker.outdated = True
                self._on_event(worker, "a newer release is there: worker ends after its jobs")
            else:
                self._stop(worker)

    async def close(self, graceful: bool = True) -> None:
        """Stop every worker and wait until all have ended."""
        self._closing = True
        for worker in self.workers:
            self._stop(worker, kill=not graceful)
        tasks = [worker.task for worker in self.workers if worker.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        worker = Worker(secrets.token_hex(7), self._version, now, self._placed())
        worker.throttled = self.hosts is not None and self._on_hosts() >= self.hosts
        self._workers[worker.id] = worker
        self._on_event(worker, "worker is throttled: no host has room" if worker.throttled else "create container")
        if not worker.throttled:
            self._launch(worker)

    def _placed(self) -> EndpointConfig:
        """The endpoint's settings as the next worker has them: with its data center and the volume there."""
        if not self.endpoint.placements:
            return self.endpoint
        center, volume = self.endpoint.placements[self._placements % len(self.endpoint.placements)]
        self._placements += 1
        return msgspec.structs.replace(self.endpoint, data_center=center, network_volume=volume)

    def _on_hosts(self) -> int:
        return sum(1 for worker in self._workers.values() if not worker.throttled and not worker.external)

    def _find_hosts(self) -> None:
        for worker in self.workers:
            if worker.throttled and (self.hosts is None or self._on_hosts() < self.hosts):
                worker.throttled = False
                worker.config = self._placed()  # now, on what there is now
                self._on_event(worker, "create container")
                self._launch(worker)

    def _launch(self, worker: Worker) -> None:
        worker.task = asyncio.get_running_loop().create_task(self._live(worker), name=f"worker {worker.id}")

    async def _live(self, worker: Worker) -> None:
        """A worker's life: image pull, start, work, end."""
        assert self._launcher is not None
        assert worker.config is not None
        code: int | None = None
        try:
            await self._clock.sleep(worker.config.initialize_s)
            worker.launched_at = self._clock.time()
            self._meter(worker, Phase.STARTUP)
            self._on_event(worker, "start container")
            try:
                worker.handle = await self._launcher.launch(worker.config, worker.id)
            except EmulatorError as error:
                log.error("worker %s of %s: %s", worker.id, self.endpoint.name, error)
                code = 127
            else:
                if worker.stopping:
                    worker.handle.terminate()
                code = await worker.handle.wait()
            self._meter(worker, Phase.UNBILLED)
            self.broker.worker_gone(worker.id)
            self._on_event(worker, f"container ended with exit code {code}")
            if worker.starting and not worker.stopping:
                self._is_unhealthy(worker, worker.unhealthy or f"ended with exit code {code} before it asked for work")
                log.warning("worker %s of %s is unhealthy: %s", worker.id, self.endpoint.name, worker.unhealthy)
                wait_s = RETRY_WAITS_S[min(self._failures, len(RETRY_WAITS_S) - 1)]
                self._failures += 1
                worker.handle = None
                await self._clock.sleep(wait_s)
            elif not worker.stopping and not worker.leaving:
                log.warning("worker %s of %s ended with exit code %s", worker.id, self.endpoint.name, code)
        finally:
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        self._meter(worker, Phase.UNBILLED)
        worker.end_polls()
        if self._workers.pop(worker.id, None) is not None:
            self._closed = worker.added_to(self._closed, worker.meter)
            self._on_event(worker, "worker is removed")
            self._on_end(worker)
        self.broker.worker_gone(worker.id)
        if not self._closing:
            self.broker.ask_again()

    def _stop(self, worker: Worker, *, kill: bool = False) -> None:
        if worker.external:
            self._remove(worker)
            return
        if worker.handle is None:
            # not launched yet (throttled, pulling its image), or ended and waiting to be replaced
            worker.stopping = True
            if worker.task is None:
                self._remove(worker)
            elif worker.launched_at is None or worker.unhealthy is not None:
                worker.task.cancel()
            return
        if not worker.stopping or kill:
            if not worker.stopping:
                self._on_event(worker, "stop container")
            worker.stopping = True
            if kill:
                worker.handle.kill()
            else:
                worker.handle.terminate()
            # only now: a worker that has its signal does not ask again when its poll ends
            worker.end_polls()
            self.broker.release_polls(worker.id)

    def _is_unhealthy(self, worker: Worker, reason: str) -> None:
        if worker.unhealthy is None:
            self._on_event(worker, f"worker is unhealthy: {reason}")
        worker.unhealthy = reason
        if self.failing_since is None:
            self.failing_since = self._clock.time()

    def _meter(self, worker: Worker, phase: Phase) -> None:
        if worker.external:
            return
        worker.meter = worker.meter.switch(phase, self._clock.time())
        self._on_meter(worker)
