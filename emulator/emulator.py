"""emulator: the whole of it, as a library: `async with Emulator(config) as emulator: ...`.

May touch: everything in this room. Wires the pieces together, keeps the one loop that lets time pass, and writes facts.json for clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from aiohttp import web

from contract.errors import EmulatorError, UsageError
from contract.facts import EndpointFacts, LocalFile, Stack, StackFacts, StackSecrets, StoreFacts
from emulator.billing import Bill, Meter
from emulator.broker import Broker
from emulator.clock import Clock, RealClock
from emulator.config import EmulatorConfig, EndpointConfig
from emulator.control.account import Account
from emulator.control.logs import WorkerLogs
from emulator.control.records import KINDS, Record
from emulator.control.server import ControlServer
from emulator.control.usage import HourCost, Usage
from emulator.control.volumes import VolumeProxy
from emulator.faults import Seam
from emulator.files import remove_drafts, write_private
from emulator.jobs import EXECUTION_TIMEOUT_DEFAULT_MS, Job, Status
from emulator.launch import ProcessLauncher
from emulator.limits import RateLimiter
from emulator.s3 import KeyPair, SeaweedS3, find_weed
from emulator.scripted import Script, ScriptedLauncher
from emulator.server import Endpoint, Server
from emulator.state import State, WorkerBill
from emulator.webhooks import WebhookSender
from emulator.workers import Fleet, Launcher, Worker, WorkerState

log = logging.getLogger("nightbatch.emulator")

FACTS: Final = "facts.json"
IDENTITY: Final = "identity.json"
METER_SAVE_S: Final = 2.0
"""How often running meters are saved, in seconds of the clock: what kill -9 can lose of a bill."""

Progress = Callable[[str], None]


class Identity(msgspec.Struct, frozen=True):
    """What a state directory keeps of itself, so that URLs and keys stay the same over restarts (identity.json, mode 0600)."""

    api_key: str
    worker_key: str
    s3_access: str
    s3_secret: str
    worker_s3_access: str
    worker_s3_secret: str
    port: int = 0
    volumes_port: int = 0
    s3_ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as it is now."""

    id: str
    state: WorkerState
    version: int
    pid: int | None
    jobs: tuple[str, ...]
    billed_s: int
    unhealthy: str | None


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One endpoint, as it is now. `bill` counts all workers since the state directory was made."""

    name: str
    id: str
    workers: tuple[WorkerView, ...]
    queued: int
    in_progress: int
    completed: int
    failed: int
    retried: int
    bill: Bill

    def count(self, state: WorkerState) -> int:
        return sum(1 for worker in self.workers if worker.state is state)


class Emulator:
    """RunPod and S3 on this machine.

    `scripted`: scripts of workers, by endpoint name ("*": of all others), in place of a command; also of endpoints that are made through
    REST later. `clock`: real time unless given. `progress` is told what is being waited for. After `start`, `base_url`, `root_url`,
    `api_key`, `s3`, `seam`, `account`, `endpoint(name)` and `stack()` are what a client needs.
    """

    def __init__(
        self,
        config: EmulatorConfig,
        *,
        scripted: Mapping[str, Script] | None = None,
        clock: Clock | None = None,
        progress: Progress = lambda text: None,
    ) -> None:
        self.config = config
        self.clock: Clock = clock if clock is not None else RealClock()
        self.seam = Seam(self.clock)
        self.s3: SeaweedS3 | None = None
        self.server: Server
        self.webhooks: WebhookSender
        self.account: Account
        self.control: ControlServer | None = None
        self.logs = WorkerLogs(self.clock.time)
        self._scripted = dict(scripted or {})
        self._progress = progress
        self._directory = Path(config.state_dir)
        self._endpoints: dict[str, Endpoint] = {}
        self._by_id: dict[str, Endpoint] = {}
        self._restored: dict[str, list[Job]] = {}
        self._earlier: dict[str, list[WorkerBill]] = {}
        self._counters: dict[str, tuple[int, int, int]] = {}
        self._ending: dict[asyncio.Task[None], Fleet] = {}
        self._usage = Usage()
        self._launchers: dict[str, ScriptedLauncher] = {}
        self._runner: web.AppRunner | None = None
        self._state: State | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._s3_keeper: asyncio.Task[None] | None = None
        self._port = 0
        self._volumes_port = 0
        self._volumes_runner: web.AppRunner | None = None
        self._volume_proxy: VolumeProxy | None = None
        self._identity: Identity
        self._meters_saved = 0.0
        self.failed: asyncio.Future[None]
        """Gets an exception if the emulator's own loop breaks; never a result."""
        unknown = set(self._scripted) - {endpoint.name for endpoint in config.endpoints} - {"*"}
        if unknown and not (config.control and config.images):
            raise UsageError(f"There is a script for {', '.join(sorted(unknown))}, but no such endpoint.")

    # --- what a client needs --------------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """The data plane: `…/v2`, as RUNPOD_ENDPOINT_BASE_URL has it."""
        return f"http://{self.config.host}:{self._port}/v2"

    @property
    def root_url(self) -> str:
        """REST v2's base, as RUNPOD_API_BASE_URL has it; its paths begin with /v2."""
        return f"http://{self.config.host}:{self._port}"

    @property
    def volumes_url(self) -> str | None:
        """Where network volumes answer as RunPod's S3 API for volumes does (bucket = volume id); None without S3."""
        return None if self._volumes_port == 0 else f"http://127.0.0.1:{self._volumes_port}"

    @property
    def api_key(self) -> str:
        return self._identity.api_key

    @property
    def worker_key(self) -> str:
        """Opens the worker plane only."""
        return self._identity.worker_key

    def endpoint(self, name: str) -> EndpointView:
        """What an endpoint (by name or id) is doing now."""
        endpoint = self._find(name)
        broker, fleet = endpoint.broker, endpoint.fleet
        now = self.clock.time()
        return EndpointView(
            name=fleet.endpoint.shown_name,
            id=broker.endpoint,
            workers=tuple(
                WorkerView(
                    id=worker.id,
                    state=worker.state,
                    version=worker.version,
                    pid=None if worker.handle is None else worker.handle.pid,
                    jobs=tuple(sorted(broker.held(worker.id))),
                    billed_s=worker.meter.at(now).billed_s,
                    unhealthy=worker.unhealthy,
                )
                for worker in fleet.workers
            ),
            queued=broker.count(Status.IN_QUEUE),
            in_progress=broker.count(Status.IN_PROGRESS),
            completed=broker.completed,
            failed=broker.failed,
            retried=broker.retried,
            bill=fleet.bill(),
        )

    def open_polls(self, name: str) -> int:
        """How many workers of an endpoint wait for work at this moment."""
        return sum(len(worker.polls) for worker in self._find(name).fleet.workers)

    def scripted(self, name: str) -> ScriptedLauncher:
        """The scripted workers of an endpoint."""
        return self._launchers[self._find(name).fleet.endpoint.name]

    def log_path(self, endpoint: str, worker: str) -> Path:
        """The log of a worker process."""
        return self._log_path(self._find(endpoint).fleet.endpoint.name, worker)

    def facts(self) -> StackFacts:
        """What the pipeline needs to know. Raises EmulatorError without S3."""
        if self.s3 is None:
            raise EmulatorError("This emulator runs without S3, so it is not a stack.", fix="Set s3 in its configuration.")
        return StackFacts(
            stack=self.config.stack,
            api_url=self.base_url,
            store=StoreFacts(bucket=self.config.bucket, endpoint_url=self.s3.endpoint_url),
            endpoints=tuple(_endpoint_facts(endpoint.fleet.endpoint) for endpoint in self._endpoints.values()),
        )

    def stack(self) -> Stack:
        """Facts and secrets together."""
        facts = self.facts()
        assert self.s3 is not None
        return Stack(facts, StackSecrets(self.api_key, self.s3.client_config, self.s3.worker_config))

    def configure(self, name: str, **changes: Any) -> None:
        """Change settings of an endpoint while it runs. Raises UsageError naming the field."""
        fleet = self._find(name).fleet
        values = {**msgspec.structs.asdict(fleet.endpoint), **changes}
        try:
            changed = msgspec.convert(values, EndpointConfig)
        except msgspec.ValidationError as error:
            raise UsageError(f"The settings cannot be changed so: {error}.", where=f"endpoint {name}") from None
        if (changed.name, changed.id) != (fleet.endpoint.name, fleet.endpoint.id):
            raise UsageError("An endpoint's name and id stay as they are.", where=f"endpoint {name}")
        fleet.update(changed)
        self._find(name).broker.settings = self.config.broker_settings(changed)
        self.account.configured(changed, fleet.version)
        self._write_facts()

    # --- start and stop -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything and return when it answers. What was running in this state directory goes on."""
        if self.config.s3:
            find_weed()
        try:
            await self._start()
        except BaseException:
            await self.stop(graceful=False)
            raise

    async def _start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.failed = asyncio.get_running_loop().create_future()
        self.failed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._state = State(self._directory / "state.sqlite")
        (self._directory / FACTS).unlink(missing_ok=True)
        for name in (FACTS, IDENTITY):
            remove_drafts(self._directory / name)
        self._identity = self._read_identity()
        if self.config.api_key is not None:
            self._identity = msgspec.structs.replace(self._identity, api_key=self.config.api_key)
        self.webhooks = WebhookSender(self._state, self.clock, self.seam, self.config.webhook_retries_s, self.config.webhook_states)
        listener = _listen(self.config.host, self.config.port or self._identity.port, fixed=self.config.port != 0)
        self._port = listener.getsockname()[1]
        self._open_account(self._state)
        self.server = Server(
            self._by_id,
            clock=self.clock,
            seam=self.seam,
            state=self._state,
            api_key=self.api_key,
            worker_key=self.worker_key,
            long_poll_s=self.config.long_poll_s,
            edge_timeout_s=self.config.edge_timeout_s,
            forwarded=self.config.forwarded_fields,
            admin=self.report,
            reconfigure=lambda name, changes: self.configure(name, **changes),
            **({} if self.control is None else {"first_routes": self.control.add_routes}),
        )
        self._runner = _runner(self.server.app())
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=512).start()
        await self.webhooks.start()
        if self.config.s3:
            await self._start_s3()
        self._write_identity()
        self._write_facts()
        self._ticker = asyncio.create_task(self._tick(), name="emulator ticks")
        self._ticker.add_done_callback(self._loop_ended)
        if self.s3 is not None:
            self._s3_keeper = asyncio.create_task(self._keep_s3(self.s3), name="emulator keeps S3")
            self._s3_keeper.add_done_callback(self._loop_ended)
        self._progress("ready")

    async def stop(self, graceful: bool = True) -> None:
        """Stop everything: workers first, who may still post what they have, then the server, S3 and the state."""
        loops = [task for task in (self._ticker, self._s3_keeper) if task is not None]
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if self._state is not None:  # else the directory is another emulator's
            (self._directory / FACTS).unlink(missing_ok=True)
        fleets = [*(endpoint.fleet for endpoint in self._endpoints.values()), *self._ending.values()]
        await asyncio.gather(*(fleet.close(graceful) for fleet in fleets), *self._ending)
        for runner in (self._volumes_runner, self._runner):
            if runner is not None:
                await runner.cleanup()
        if hasattr(self, "account"):
            await self.account.close()
        if hasattr(self, "webhooks"):
            await self.webhooks.close()
        if self.s3 is not None:
            await self.s3.stop()
        if self._state is not None:
            self._state.close()
            self._state = None

    def report(self) -> dict[str, Any]:
        """Everything that `nightbatch local status` shows, as plain data, without secrets."""
        return {
            "stack": self.config.stack,
            "pid": os.getpid(),
            "base_url": self.base_url,
            "s3": None if self.s3 is None else {"endpoint_url": self.s3.endpoint_url, "bucket": self.s3.bucket},
            "webhooks": {"delivered": self.webhooks.delivered, "given_up": self.webhooks.given_up},
            "endpoints": [msgspec.to_builtins(self.endpoint(name)) for name in self._endpoints],
            "volumes": [
                {
                    "id": volume.id,
                    "name": volume.name,
                    "data_center": volume.data_center,
                    "size_gb": volume.size,
                    "s3_url": self.volumes_url,
                }
                for volume in self.account.volumes.values()
            ],
            "notices": [msgspec.to_builtins(notice) for notice in self.account.notices],
        }

    # --- inside: what the broker and the fleet tell ---------------------------------------------------------------

    def saved(self, job: Job) -> None:
        if self._state is not None:
            self._state.job_saved(job)

    def deleted(self, job: Job) -> None:
        if self._state is not None:
            self._state.job_deleted(job.id)

    def finished(self, job: Job) -> None:
        self.webhooks.job_finished(job)

    def counted(self, endpoint: str, completed: int, failed: int, retried: int) -> None:
        if self._state is not None:
            self._state.counters_saved(endpoint, completed, failed, retried)

    def _metered(self, endpoint: str, worker: Worker, meter: Meter) -> None:
        """`meter` is read at this moment."""
        if self._state is None or worker.config is None:
            return
        price, gpus = worker.config.usd_per_s, worker.config.gpu_count
        self._state.worker_saved(WorkerBill(worker.id, endpoint, meter.startup_s, meter.execution_s, meter.idle_s, price, gpus))
        seconds = meter.startup_s + meter.execution_s + meter.idle_s
        self._account_for(worker, seconds, meter.since)

    def _account_for(self, worker: Worker, seconds: float, now: float) -> None:
        """Put what a worker has cost since the last time into its hours."""
        spent_s, worker.accounted_s = seconds - worker.accounted_s, seconds
        begin, worker.accounted_at = max(worker.accounted_at or 0.0, now - max(spent_s, 0.0)), now
        if self._state is None or worker.config is None or spent_s <= 0:
            return
        usd = spent_s * worker.usd_per_s
        for row in self._usage.spent(worker.config.endpoint_id, worker.config.compute, begin, now, usd):
            self._state.hour_saved(row.key, msgspec.msgpack.encode(row))

    def _worker_event(self, config: EndpointConfig, worker: Worker, text: str) -> None:
        endpoint = config.endpoint_id
        if self.logs.is_live(endpoint, worker.id) is None:
            self.logs.opened(endpoint, worker.id, None if config.name in self._launchers else self._log_path(config.name, worker.id))
        self.logs.say(endpoint, worker.id, text)

    def _worker_ended(self, endpoint: str, worker: Worker) -> None:
        # a worker's life is billed in whole seconds
        self._account_for(worker, float(worker.meter.billed_s), self.clock.time())
        self.logs.ended(endpoint, worker.id)

    # --- inside: what the control plane asks for ------------------------------------------------------------------

    def record_saved(self, record: Record) -> None:
        if self._state is not None:
            self._state.record_saved(KINDS[type(record)], record.id, msgspec.msgpack.encode(record))

    def record_deleted(self, record: Record) -> None:
        if self._state is not None:
            self._state.record_deleted(KINDS[type(record)], record.id)

    def fleet(self, endpoint: str) -> Fleet | None:
        found = self._by_id.get(endpoint)
        return None if found is None else found.fleet

    def last_request(self, endpoint: str) -> float | None:
        found = self._by_id.get(endpoint)
        return None if found is None else found.broker.last_request_at

    def change_endpoint(self, config: EndpointConfig, version: int) -> None:
        endpoint = self._by_id[config.endpoint_id]
        endpoint.fleet.update(config, version)
        endpoint.broker.settings = self.config.broker_settings(config)
        endpoint.fleet.reconcile()
        self._write_facts()

    def close_endpoint(self, endpoint: str) -> None:
        found = self._by_id.pop(endpoint, None)
        if found is None:
            return
        del self._endpoints[found.fleet.endpoint.name]
        found.broker.close(self.clock.time())
        ending = asyncio.get_running_loop().create_task(self._end_fleet(found.fleet), name=f"end of {endpoint}")
        self._ending[ending] = found.fleet
        ending.add_done_callback(lambda ended: self._ending.pop(ended, None))
        self._write_facts()

    async def _end_fleet(self, fleet: Fleet) -> None:
        await fleet.close()
        self._launchers.pop(fleet.endpoint.name, None)
        self.logs.forget(fleet.endpoint.endpoint_id)

    async def make_bucket(self, volume: str) -> None:
        if self.s3 is not None:
            await self.s3.make_bucket(volume)

    async def drop_bucket(self, volume: str) -> None:
        if self.s3 is not None:
            if self._volume_proxy is not None:
                await self._volume_proxy.close(volume)
            await self.s3.drop_bucket(volume)

    # --- inside: the parts ----------------------------------------------------------------------------------------

    def _find(self, name: str) -> Endpoint:
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            found = [e for e in self._endpoints.values() if e.broker.endpoint == name]
            found = found or [e for e in self._endpoints.values() if e.fleet.endpoint.shown_name == name]
            if len(found) != 1:
                if found:
                    raise UsageError(f"There are {len(found)} endpoints named {name}.", fix="Ask by id.")
                raise UsageError(f"There is no endpoint {name}.", fix=f"There are: {', '.join(self._endpoints) or 'none'}.")
            endpoint = found[0]
        return endpoint

    def _open_account(self, state: State) -> None:
        for bill in state.workers():
            self._earlier.setdefault(bill.endpoint, []).append(bill)
        for job in state.jobs():
            self._restored.setdefault(job.endpoint, []).append(job)
        self._counters = state.counters()
        self._usage = Usage(msgspec.msgpack.decode(row, type=HourCost) for row in state.hours())
        self.account = Account(self.config, self, self, self.clock, root=lambda: self.root_url)
        if self.config.control:
            self.control = ControlServer(
                self.account,
                clock=self.clock,
                seam=self.seam,
                state=state,
                usage=self._usage,
                logs=self.logs,
                api_key=self.api_key,
                worker_key=self.worker_key,
                read_only_key=self.config.read_only_api_key,
                quotas=self.config.quotas,
            )
        types = {kind: record for record, kind in KINDS.items()}
        self.account.start(msgspec.msgpack.decode(record, type=types[kind]) for kind, record in state.records())

    def open_endpoint(self, config: EndpointConfig, version: int) -> None:
        """Serve an endpoint, with the jobs and bills that an earlier process of the emulator had of it."""
        name = config.name
        launcher = self._launcher(config)
        fleet = Fleet(
            config,
            self.clock,
            launcher,
            lambda worker: self._metered(name, worker, worker.meter),
            self._earlier_bill(config),
            version=version,
            on_event=lambda worker, text: self._worker_event(config, worker, text),
            on_end=lambda worker: self._worker_ended(config.endpoint_id, worker),
        )
        broker = Broker(config.endpoint_id, self.config.broker_settings(config), self, fleet)
        broker.completed, broker.failed, broker.retried = self._counters.pop(broker.endpoint, (0, 0, 0))
        broker.restore(self._restored.pop(broker.endpoint, ()), self.clock.time())
        fleet.broker = broker
        self._endpoints[name] = self._by_id[config.endpoint_id] = Endpoint(
            broker, fleet, RateLimiter(self.config.limits, self.config.requests_per_worker)
        )
        if self._ticker is not None:  # else all endpoints are still being opened
            fleet.reconcile()
            self._write_facts()

    def _earlier_bill(self, config: EndpointConfig) -> Bill:
        bill = Bill()
        for earlier in self._earlier.pop(config.name, ()):
            meter = Meter(startup_s=earlier.startup_s, execution_s=earlier.execution_s, idle_s=earlier.idle_s)
            price = config.usd_per_s if earlier.usd_per_s is None else earlier.usd_per_s
            bill = bill.plus(meter, price, config.gpu_count if earlier.gpus is None else earlier.gpus)
        return bill

    def _log_path(self, endpoint: str, worker: str) -> Path:
        return self._directory / "logs" / endpoint / f"{worker}.log"

    def _launcher(self, endpoint: EndpointConfig) -> Launcher | None:
        script = self._scripted.get(endpoint.shown_name) or self._scripted.get(endpoint.name) or self._scripted.get("*")
        if script is not None:
            launcher = ScriptedLauncher(
                script,
                self.base_url,
                self.worker_key,
                self.clock,
                lambda worker, line: self.logs.say(endpoint.endpoint_id, worker, line, "container"),
            )
            self._launchers[endpoint.name] = launcher
            return launcher
        if not endpoint.command:
            return None
        return ProcessLauncher(
            self._directory,
            self.base_url,
            self.worker_key,
            ping_interval_ms=self.config.ping_interval_ms,
            grace_s=self.config.stop_grace_s,
        )

    async def _start_s3(self) -> None:
        self._progress("starting the S3 server")
        identity = self._identity
        self.s3 = SeaweedS3(
            self._directory / "s3",
            self.config.bucket,
            KeyPair(identity.s3_access, identity.s3_secret),
            KeyPair(identity.worker_s3_access, identity.worker_s3_secret),
            identity.s3_ports,
        )
        await self.s3.start()
        for volume in self.account.volumes:
            await self.s3.make_bucket(volume)
        if self.config.control:
            await self._start_volumes(self.s3, identity)

    async def _start_volumes(self, s3: SeaweedS3, identity: Identity) -> None:
        self._volume_proxy = proxy = VolumeProxy(
            lambda: self.account.volumes,
            upstream=lambda: s3.endpoint_url,
            own=s3.client_keys,
            keys=(s3.client_keys, s3.worker_keys),
            seam=self.seam,
        )
        listener = _listen("127.0.0.1", identity.volumes_port, fixed=False)
        self._volumes_runner = _runner(proxy.app())
        await self._volumes_runner.setup()
        await web.SockSite(self._volumes_runner, listener).start()
        self._volumes_port = listener.getsockname()[1]

    async def _tick(self) -> None:
        while True:
            now = self.clock.time()
            for endpoint in list(self._endpoints.values()):
                endpoint.broker.tick(now)
                endpoint.fleet.reconcile()
            self.account.tick(now)
            self.logs.tick()
            if now - self._meters_saved >= METER_SAVE_S:
                self._meters_saved = now
                for name, endpoint in self._endpoints.items():
                    for worker in endpoint.fleet.workers:
                        if not worker.external:
                            self._metered(name, worker, worker.meter.at(now))
            await self.clock.sleep(self.config.tick_s)

    async def _keep_s3(self, s3: SeaweedS3) -> None:
        """A server that ends by itself is started again over the same data, at the same address if that is free: an outage passes."""
        while True:
            code = await s3.ended()
            log.error("the S3 server has ended (exit code %d) and is started again", code)
            await s3.start()
            self._write_identity()
            self._write_facts()

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            log.critical("the emulator's loop broke: %r", error)
            self.failed.set_exception(EmulatorError(f"The emulator's own loop broke: {error!r}."))

    # --- inside: files --------------------------------------------------------------------------------------------

    def _read_identity(self) -> Identity:
        path = self._directory / IDENTITY
        try:
            return msgspec.json.decode(path.read_bytes(), type=Identity)
        except FileNotFoundError:
            pass
        except msgspec.DecodeError as error:
            raise EmulatorError(f"not readable ({error}).", where=str(path), fix="Delete it to begin anew.") from None
        return Identity(
            api_key=f"rpa_{secrets.token_hex(20).upper()}",
            worker_key=f"wrk_{secrets.token_hex(20).upper()}",
            s3_access=f"user_{secrets.token_hex(10)}",
            s3_secret=f"rps_{secrets.token_hex(24)}",
            worker_s3_access=f"user_{secrets.token_hex(10)}",
            worker_s3_secret=f"rps_{secrets.token_hex(24)}",
        )

    def _write_identity(self) -> None:
        ports = self._identity.s3_ports if self.s3 is None else self.s3.ports
        self._identity = msgspec.structs.replace(self._identity, port=self._port, s3_ports=ports, volumes_port=self._volumes_port)
        write_private(self._directory / IDENTITY, msgspec.json.encode(self._identity))

    def _write_facts(self) -> None:
        if self.s3 is None:
            return
        stack = self.stack()
        local = LocalFile(
            facts=stack.facts, api_key=stack.secrets.api_key, s3=stack.secrets.s3, worker_s3=stack.secrets.worker_s3, pid=os.getpid()
        )
        write_private(self._directory / FACTS, msgspec.json.format(msgspec.json.encode(local), indent=2) + b"\n")


def _runner(app: web.Application) -> web.AppRunner:
    # A worker that hangs up while it waits must not be handed a job: its poll ends with its connection. Bodies are taken as they come: an
    # object that is stored with `Content-Encoding: gzip` is to be kept so, and no job unpacks to what fills the memory.
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0, auto_decompress=False)


def _endpoint_facts(endpoint: EndpointConfig) -> EndpointFacts:
    return EndpointFacts(
        name=endpoint.shown_name,
        id=endpoint.endpoint_id,
        model=endpoint.model or endpoint.name,
        tasks=endpoint.tasks,
        gpu=endpoint.gpu_pool,
        gpu_count=endpoint.gpu_count,
        usd_per_second=endpoint.usd_per_s * endpoint.gpu_count,
        workers_min=endpoint.workers_min,
        workers_max=endpoint.workers_max,
        scaler=endpoint.scaler,
        scaler_value=endpoint.scaler_value,
        shards_per_worker=endpoint.concurrency,
        idle_timeout_s=endpoint.idle_timeout_s,
        execution_timeout_s=(endpoint.execution_timeout_ms or EXECUTION_TIMEOUT_DEFAULT_MS) / 1000,  # plans need some limit
        cold_start_s=endpoint.cold_start_s,
        max_model_len=endpoint.max_model_len,
        image=endpoint.image,
    )


def _listen(host: str, port: int, *, fixed: bool) -> socket.socket:
    """A listening address: `port` if it can be had, else (unless it is fixed) any."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        if fixed:
            listener.close()
            what = f"Port {port} cannot be used: {error.strerror}."
            raise EmulatorError(what, where=host, fix="Choose another, or 0 for any.") from error
        listener.bind((host, 0))
    return listener
