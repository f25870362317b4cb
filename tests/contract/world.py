"""tests/contract: a small world for the protocol: a bucket, RunPod, workers and clients as coroutines that take turns.

Every call of the store or of RunPod waits for its turn; the one who gives turns decides in which order they come, which requests and which
answers are lost, and which coroutine never gets one again (kill -9). Time passes only when the world says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from contract.errors import EndpointUnavailable, NotAsWanted, RateLimited, StoreUnavailable, VerifyFailed
from contract.facts import EndpointFacts, Stack, StackFacts, StackSecrets, StoreFacts
from contract.keys import RunKeys, RunUri, shard_name
from contract.lines import compress, decompress_lines
from contract.memory import MemoryStore, Objects
from contract.models import (
    DatasetFacts,
    EndMarker,
    Estimate,
    FileFacts,
    JobInput,
    JobRequest,
    JournalEntry,
    OutputSpec,
    PartCommit,
    PhaseSeconds,
    PinnedInfra,
    Plan,
    Range3,
    RowOptions,
    S3Config,
    ShardPlan,
    Source,
    StartMarker,
    StoreMode,
    StorePin,
    TaskSpec,
    convert,
    decode,
    encode,
)
from contract.protocol import Health, JobStatus, Rules, Tuning, live_workers, rules_for, survey
from contract.rows import InputDigest, RowError, ShardDigest, row_digest
from contract.store import Store, get_or_none, put_first, put_object
from pipelines.follow import Driver, Event
from pipelines.runpod import Timer
from pipelines.runs import RunHandle, read_control
from pipelines.seal import Sealed, freeze, seal_problems
from worker import execution as worker_execution
from worker.engine.fake import FakeEngine

START = datetime(2026, 1, 1, tzinfo=UTC)
PLAN_ID = "ab" * 32
SECRETS = StackSecrets(
    api_key="rpa_secret_key",
    s3=S3Config(accessId="client-id", accessSecret="client-secret", bucketName="memory", endpointUrl="memory:"),
    worker_s3=S3Config(accessId="worker-id", accessSecret="worker-secret", bucketName="memory", endpointUrl="memory:"),
)


# --- plans ---------------------------------------------------------------------------------------------------------------------------


def row_line(index: int) -> bytes:
    return msgspec.json.encode(
        {"custom_id": f"row-{index}", "method": "POST", "url": "/v1/completions", "body": {"prompt": f"text {index}"}}
    )


def make_plan(
    *,
    shards: int = 3,
    rows_per_shard: int = 2,
    mode: StoreMode = "conditional",
    pace: int = 1,
    shards_per_worker: int = 2,
    scaler: str = "QUEUE_DELAY",
    workers_max: int = 3,
    execution_timeout_s: float = 60.0,
    cold_start_s: float = 20.0,
    usd_per_second: float = 0.01,
    budget_usd: float | None = None,
    max_attempts: int = 5,
    image: str | None = None,
    run: str = "s3://memory/runs/test-abababab",
    endpoint_id: str = "ep1",
    api_url: str = "http://runpod.invalid/v2",
    endpoint_url: str = "memory:",
) -> Plan:
    """A plan of `shards * rows_per_shard` rows, as pipelines/plan would write it."""
    uri = RunUri.parse(run)
    every = InputDigest()
    cut: list[ShardPlan] = []
    for number in range(shards):
        digest = InputDigest()
        span = (number * rows_per_shard, (number + 1) * rows_per_shard)
        for index in range(*span):
            one = row_digest(index, f"row-{index}", row_line(index))
            digest.add(one)
            every.add(one)
        source = Source(
            uri=f"s3://{uri.bucket}/{uri.keys.input(shard_name(number))}", rows=span, count=rows_per_shard, digest=digest.hexdigest()
        )
        cut.append(ShardPlan(shard=shard_name(number), source=source, tokens=10, bytes=100))
    nothing = Range3(low=0, likely=0, high=0)
    return Plan(
        plan_id=PLAN_ID,
        run_id=uri.run_id,
        run=run,
        created_at=START,
        dataset=DatasetFacts(
            files=(FileFacts(name="rows.jsonl", size=1, rows=every.count),), format="jsonl", rows=every.count, digest=every.hexdigest()
        ),
        rows=RowOptions(),
        task=TaskSpec(kind="generate", model="tiny"),
        store=StorePin(bucket=uri.bucket, endpoint_url=endpoint_url, mode=mode),
        infra=PinnedInfra(
            stack="test",
            endpoint="tiny",
            endpoint_id=endpoint_id,
            api_url=api_url,
            model="tiny",
            image=image,
            gpu="SIM",
            usd_per_second=usd_per_second,
            scaler=scaler,  # type: ignore[arg-type]
            scaler_value=float(shards_per_worker),
            shards_per_worker=shards_per_worker,
            workers_max=workers_max,
            execution_timeout_s=execution_timeout_s,
            cold_start_s=cold_start_s,
        ),
        shards=tuple(cut),
        pace=pace,
        max_attempts=max_attempts,
        estimate=Estimate(workers=pace, tokens_in=0, tokens_out=0, seconds=nothing, usd=nothing, basis="none"),
        budget_usd=budget_usd,
        output=OutputSpec(path=None, format="jsonl"),
    )


def stack_for(plan: Plan, *, workers_max: int | None = None, image: str | None = None, secrets: StackSecrets = SECRETS) -> Stack:
    infra = plan.infra
    endpoint = EndpointFacts(
        name=infra.endpoint,
        id=infra.endpoint_id,
        model=infra.model,
        tasks=("generate",),
        gpu=infra.gpu,
        usd_per_second=infra.usd_per_second,
        workers_max=infra.workers_max if workers_max is None else workers_max,
        scaler=infra.scaler,
        image=image or infra.image,
    )
    store = StoreFacts(bucket=plan.store.bucket, endpoint_url=plan.store.endpoint_url)
    return Stack(StackFacts(stack="test", api_url=infra.api_url, store=store, endpoints=(endpoint,)), secrets)


async def write_plan(store: Any, plan: Plan) -> None:
    """Inputs and plan.json, as the planner writes them."""
    keys = RunUri.parse(plan.run).keys
    for shard in plan.shards:
        lines = b"".join(row_line(index) + b"\n" for index in range(*shard.source.rows))
        await store.put(keys.input(shard.shard), compress(lines))
    await store.put(keys.plan(), encode(plan))


# --- turns ---------------------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Turn:
    actor: str
    op: str
    key: str
    future: asyncio.Future[str]


@dataclass
class Scheduler:
    """Gives turns. An actor in `dead` gets none any more."""

    waiting: list[Turn] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    count: int = 0

    async def turn(self, actor: str, op: str, key: str) -> str:
        """Wait for a turn; how the operation shall go: ok, lost_request, lost_answer."""
        turn = Turn(actor, op, key, asyncio.get_running_loop().create_future())
        self.waiting.append(turn)
        return await turn.future

    async def settle(self) -> None:
        """Let everybody run until each waits for a turn. asyncio has no public word for "nothing is ready": `_ready` is it."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0)

    def alive(self) -> list[Turn]:
        return [turn for turn in self.waiting if turn.actor not in self.dead and not turn.future.done()]

    async def give(self, turn: Turn, outcome: str = "ok") -> None:
        self.waiting.remove(turn)
        self.count += 1
        if not turn.future.done():
            turn.future.set_result(outcome)
        await self.settle()


class TurnStore(MemoryStore):
    """A MemoryStore whose every operation waits for a turn of its actor."""

    def __init__(self, world: World, actor: str) -> None:
        super().__init__(world.objects, mode=world.mode, hook=self._before, after=self._after)
        self._world = world
        self._actor = actor
        self._skew = timedelta(seconds=world.skew(actor))

    def now(self) -> datetime:
        """The Date header carried on by a clock that is a little off."""
        return self.objects.instant + self._skew

    async def _before(self, op: str, key: str) -> None:
        outcome = await self._world.scheduler.turn(self._actor, op, key)
        if outcome == "lost_request":
            raise StoreUnavailable("lost request", where=key)
        if outcome == "lost_answer":
            if op in ("list", "read"):
                raise StoreUnavailable("lost answer", where=key)
            self._lost.add(asyncio.current_task())

    async def _after(self, op: str, key: str) -> None:
        if asyncio.current_task() in self._lost:
            self._lost.discard(asyncio.current_task())
            raise StoreUnavailable("lost answer", where=key)

    @property
    def _lost(self) -> set[Any]:
        found: set[Any] = self.__dict__.setdefault("_lost_tasks", set())
        return found


# --- RunPod --------------------------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    id: str
    request: JobRequest
    submitted_at: datetime
    status: str = "IN_QUEUE"
    output: Any = None
    worker: str | None = None
    error: str | None = None
    redelivered: int = 0
    over_since: datetime | None = None

    @property
    def expires_at(self) -> datetime:
        return self.submitted_at + timedelta(milliseconds=self.request.policy.ttl)


@dataclass
class Platform:
    """RunPod without a network: what its users may rely on, and nothing more."""

    world: World
    jobs: dict[str, Job] = field(default_factory=dict)
    workers: int = 0
    accepted: list[Job] = field(default_factory=list)

    def accept(self, request: JobRequest) -> Job:
        job = Job(f"job-{len(self.jobs)}", request, self.world.objects.instant)
        self.world.check_accept(job)
        self.jobs[job.id] = job
        return job

    def status_of(self, job_id: str) -> JobStatus:
        job = self.jobs.get(job_id)
        now = self.world.objects.instant
        if job is None or now >= job.expires_at:
            return JobStatus(None)
        if job.over_since is not None and now >= job.over_since + timedelta(minutes=30):
            return JobStatus(None)  # the result's retention is over
        outcome = job.output.get("outcome") if isinstance(job.output, dict) else None
        return JobStatus(job.status, outcome, job.error if job.status == "FAILED" else None, job.worker)

    def cancel(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        if job is not None and job.status in ("IN_QUEUE", "IN_PROGRESS"):
            self.finish(job, "CANCELLED")

    def finish(self, job: Job, status: str) -> None:
        job.status = status
        job.over_since = self.world.objects.instant

    def health(self) -> Health:
        live = [j for j in self.jobs.values() if self.world.objects.instant < j.expires_at]
        busy = len({j.worker for j in live if j.status == "IN_PROGRESS"})
        return Health(
            in_queue=sum(j.status == "IN_QUEUE" for j in live),
            in_progress=sum(j.status == "IN_PROGRESS" for j in live),
            running=min(busy, self.workers),
            idle=max(0, self.workers - busy),
        )

    def queued(self) -> list[Job]:
        return [j for j in self.jobs.values() if j.status == "IN_QUEUE" and self.world.objects.instant < j.expires_at]

    def running(self) -> list[Job]:
        return [j for j in self.jobs.values() if j.status == "IN_PROGRESS"]

    def lose(self, job: Job) -> None:
        """Its worker is not heard of any more: delivered again once, then FAILED."""
        if job.redelivered:
            self.finish(job, "FAILED")
        else:
            job.redelivered += 1
            job.status = "IN_QUEUE"


class TurnJobs:
    """One client's way to RunPod; each call waits for a turn."""

    def __init__(self, world: World, actor: str) -> None:
        self._world = world
        self._actor = actor

    async def run(self, request: JobRequest) -> str:
        self._world.check_pace(self._actor, request)
        outcome = await self._world.scheduler.turn(self._actor, "run", request.input.shard)
        if outcome == "lost_request":
            if self._world.rng.random() < 0.5:
                raise RateLimited("429")
            raise EndpointUnavailable("lost request")
        job = self._world.platform.accept(convert(msgspec.json.decode(encode(request)), JobRequest, where="job"))
        if outcome == "lost_answer":
            raise EndpointUnavailable("lost answer")
        return job.id

    async def status(self, job_id: str) -> JobStatus:
        if await self._world.scheduler.turn(self._actor, "status", job_id) != "ok":
            raise EndpointUnavailable("lost")
        return self._world.platform.status_of(job_id)

    async def cancel(self, job_id: str) -> None:
        outcome = await self._world.scheduler.turn(self._actor, "cancel", job_id)
        if outcome == "lost_request":
            raise EndpointUnavailable("lost")
        self._world.platform.cancel(job_id)
        if outcome == "lost_answer":
            raise EndpointUnavailable("lost")

    async def health(self) -> Health:
        if await self._world.scheduler.turn(self._actor, "health", "") != "ok":
            raise EndpointUnavailable("lost")
        return self._world.platform.health()

    async def close(self) -> None:
        return None


# --- a worker ------------------------------------------------------------------------------------------------------------------------

Execute = Callable[[dict[str, Any], MemoryStore, str, str, Callable[[str], None]], Awaitable[dict[str, Any]]]
"""job, store, worker id, execution id, `computing(shard)` called when the engine is reached -> summary"""


async def reference_execution(
    job: dict[str, Any], store: Store, worker_id: str, execution: str, computing: Callable[[str], None], write: Any = put_first
) -> dict[str, Any]:
    """PROTOCOL.md, A worker's execution, as plainly as it can be written. Row 3 of every 4 fails."""
    given: JobInput = convert(job["input"], JobInput, where="job")
    keys = RunUri.parse(given.run).keys
    plan: Plan = decode((await store.get(keys.plan())).data, Plan, where="plan")
    control, _ = await read_control(store, keys, plan)

    def answer(outcome: str, **more: Any) -> dict[str, Any]:
        return {"outcome": outcome, **more}

    if plan.plan_id != given.plan:
        return answer("mismatch")
    if control.epoch > given.epoch:
        return answer("fenced")
    if store.now() > given.start_by:
        return answer("expired")
    standing = await get_or_none(store, keys.commit(given.shard))
    if standing is not None:
        return answer("already")
    began = store.now()
    start = StartMarker(
        plan=given.plan,
        shard=given.shard,
        execution=execution,
        attempt=given.attempt,
        epoch=given.epoch,
        job_id=job["id"],
        worker_id=worker_id,
        at=began,
    )
    await store.put(keys.start(given.shard, execution), encode(start))
    blob = await store.get(given.source.uri.split("/", 3)[3])
    lines = list(decompress_lines(blob.data, where="input"))
    computing(given.shard)
    total, part, errors = ShardDigest(), [], []
    for index, line in zip(range(*given.source.rows), lines, strict=True):
        digest = row_digest(index, f"row-{index}", line)
        if index % 4 == 3:
            output = encode(RowError(code="bad", message="no"))
            errors.append({"index": index, "row": digest.hex(), "id": f"row-{index}", "error": msgspec.Raw(output)})
        else:
            output = msgspec.json.encode({"text": index, "by": execution})
            part.append({"index": index, "row": digest.hex(), "id": f"row-{index}", "response": msgspec.Raw(output)})
        total.add(index, digest, index % 4 != 3, output)

    async def write_lines(key: str, rows: list[dict[str, Any]]) -> Any:
        if not rows:
            return None
        ref = await put_object(store, key, compress(b"".join(msgspec.json.encode(row) + b"\n" for row in rows)))
        assert await store.head(key) is not None
        return ref

    part_ref = await write_lines(keys.part(given.shard, execution, "jsonl.zst"), part)
    errors_ref = await write_lines(keys.errors(given.shard, execution), errors)
    commit = PartCommit(
        plan=given.plan,
        shard=given.shard,
        execution=execution,
        attempt=given.attempt,
        part=part_ref,
        errors=errors_ref,
        ok=len(part),
        failed=len(errors),
        tokens_in=len(part),
        tokens_out=0,
        input_digest=given.source.digest,
        digest=total.hexdigest(),
        at=store.now(),
    )
    stands = decode(await write(store, keys.commit(given.shard), encode(commit)), PartCommit, where="commit")
    outcome = "won" if stands.execution == execution else "lost"
    end = EndMarker(
        plan=given.plan,
        shard=given.shard,
        execution=execution,
        attempt=given.attempt,
        outcome=outcome,  # type: ignore[arg-type]
        wall_s=(store.now() - began).total_seconds(),
        seconds=PhaseSeconds(computing=(store.now() - began).total_seconds()),
        ok=len(part),
        failed=len(errors),
        at=store.now(),
    )
    await store.put(keys.end(given.shard, execution), encode(end))
    return answer(outcome)


async def real_execution(
    job: dict[str, Any], store: MemoryStore, worker_id: str, execution: str, computing: Callable[[str], None]
) -> dict[str, Any]:
    """The worker's own code over an engine without a model."""
    given: JobInput = convert(job["input"], JobInput, where="job")

    class Told(FakeEngine):
        def submit(self, requests: Any) -> Any:
            computing(given.shard)
            return super().submit(requests)

    error = RowError(code="bad", message="no")
    engine = Told(kind="generate", group=1, refuses={index: error for index in range(3, 1000, 4)})
    with tempfile.TemporaryDirectory() as folder:
        around = worker_execution.World(
            store=store,
            engine=engine,
            clock=_StoreTime(store),
            folder=Path(folder),
            identity=worker_execution.Identity(worker_id),
            new_execution=lambda: execution,
        )
        summary = await worker_execution.execute(given, job["id"], around, worker_execution.Stop())
    made: dict[str, Any] = msgspec.json.decode(encode(summary))
    return made


@dataclass
class _StoreTime:
    store: MemoryStore

    def monotonic(self) -> float:
        return self.store.now().timestamp()


# --- the world -----------------------------------------------------------------------------------------------------------------------

TUNING = Tuning()
Freezing = Callable[[Any, RunKeys, Plan], Awaitable[Sealed]]
"""How a collector seals; tests plant bugs here."""


@dataclass
class Client:
    actor: str
    driver: Driver
    task: asyncio.Task[Any]
    events: list[Event] = field(default_factory=list)


class World:
    """One run, its bucket, RunPod, and whoever works on it."""

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        execute: Execute = reference_execution,
        driver: type[Driver] = Driver,
        freezing: Freezing = freeze,
        tuning: Tuning = TUNING,
    ) -> None:
        self.plan = plan
        self.mode: StoreMode = plan.store.mode
        self.rng = random.Random(seed)
        self.objects = Objects(instant=START)
        self.scheduler = Scheduler()
        self.platform = Platform(self)
        self.keys: RunKeys = RunUri.parse(plan.run).keys
        self.execute = execute
        self.driver = driver
        self.freezing = freezing
        self.tuning = tuning
        self.clients: dict[str, Client] = {}
        self.worker_tasks: dict[str, asyncio.Task[Any]] = {}
        self.collectors: dict[str, asyncio.Task[None]] = {}
        self.sealed: list[Sealed] = []
        """What collectors read through, each as it was told."""
        self.executions = 0
        self.computed: list[tuple[str, str]] = []
        self.forbidden: dict[str, str] = {}
        """Executions that must not reach the engine, and why."""
        self.broken: list[str] = []
        """Invariants that were seen broken where no exception would reach the test."""
        self.numbers = 0

    async def open(self) -> None:
        await write_plan(MemoryStore(self.objects, mode=self.mode), self.plan)

    def skew(self, actor: str) -> float:
        """Seconds by which an actor's idea of the store's time is off."""
        return self.rng.uniform(-2.0, 2.0)

    def quiet_store(self) -> MemoryStore:
        """A store without turns: the test's own eyes."""
        return MemoryStore(self.objects, mode=self.mode)

    # -- clients

    def rules(self) -> Rules:
        return rules_for(self.plan)

    async def start_client(self) -> str:
        self.numbers += 1
        actor = f"client-{self.numbers}"
        store = TurnStore(self, actor)
        base = self.objects.instant
        timer = Timer(monotonic=lambda: (self.objects.instant - base).total_seconds(), sleep=self._sleeper(actor))
        events: list[Event] = []
        driver = self.driver(
            RunHandle(RunUri.parse(self.plan.run), self.plan),
            stack=stack_for(self.plan),
            jobs=TurnJobs(self, actor),
            store=store,
            rules=self.rules(),
            events=events.append,
            timer=timer,
            tuning=self.tuning,
            client=f"c{self.numbers}",
        )
        task = asyncio.ensure_future(self._client(actor, driver))
        self.clients[actor] = Client(actor, driver, task, events)
        await self.scheduler.settle()
        return actor

    def _sleeper(self, actor: str) -> Callable[[float], Awaitable[None]]:
        async def sleep(seconds: float) -> None:
            await self.scheduler.turn(actor, "sleep", "")

        return sleep

    async def _client(self, actor: str, driver: Driver) -> Any:
        while True:
            try:
                step = await driver.step()
            except StoreUnavailable:
                step = None
            if step is not None and step.done is not None:
                return step.done
            await self.scheduler.turn(actor, "idle", "")

    def kill(self, actor: str) -> None:
        """kill -9: it never gets a turn again, and no line of its code runs any more."""
        self.scheduler.dead.add(actor)

    def living(self) -> list[Client]:
        return [c for c in self.clients.values() if c.actor not in self.scheduler.dead and not c.task.done()]

    # -- workers

    async def deliver(self, job: Job) -> str:
        """A worker takes the job (again, when it is running already)."""
        self.executions += 1
        execution = f"{self.executions:016x}"
        actor = f"worker-{self.executions}"
        job.status = "IN_PROGRESS"
        job.worker = actor
        self.worker_tasks[actor] = asyncio.ensure_future(self._worker(actor, job, execution))
        await self.scheduler.settle()
        return actor

    async def _worker(self, actor: str, job: Job, execution: str) -> None:
        given = job.request.input
        store = TurnStore(self, actor)
        quiet = self.quiet_store()
        control, _ = await read_control(quiet, self.keys, self.plan)
        if control.epoch > given.epoch:
            self.forbidden[execution] = "fenced"
        if self.objects.instant > given.start_by + timedelta(seconds=2):
            self.forbidden[execution] = "expired"
        if self.keys.commit(given.shard) in self.objects.data:
            self.forbidden[execution] = "already committed"

        def computing(shard: str) -> None:
            self.computed.append((shard, execution))
            if execution in self.forbidden:
                self.broken.append(f"invariant 7: execution {execution} of {shard} was {self.forbidden[execution]} and reached the engine")

        body = {"id": job.id, "input": msgspec.json.decode(encode(given)), "s3Config": msgspec.json.decode(encode(job.request.s3Config))}
        try:
            output = await self.execute(body, store, actor, execution, computing)
        except StoreUnavailable:
            if job.status == "IN_PROGRESS" and job.worker == actor:
                self.platform.finish(job, "FAILED")
            return
        if job.status == "IN_PROGRESS" and job.worker == actor:
            self.platform.finish(job, "COMPLETED")
            job.output = output

    def kill_worker(self, actor: str) -> None:
        self.scheduler.dead.add(actor)

    # -- collectors

    async def collect(self) -> None:
        """Somebody seals the run, whoever else does, and whatever is still going on."""
        self.numbers += 1
        actor = f"collector-{self.numbers}"
        self.collectors[actor] = asyncio.ensure_future(self._collect(actor))
        await self.scheduler.settle()

    async def _collect(self, actor: str) -> None:
        try:
            self.sealed.append(await self.freezing(TurnStore(self, actor), self.keys, self.plan))
        except VerifyFailed as error:
            self.broken.append(f"invariant 2: a collector was told: {error}")
        except (NotAsWanted, StoreUnavailable):
            return  # shards are open, or a request was lost: nothing is sealed by this one

    # -- checks

    def journal(self) -> list[JournalEntry]:
        prefix = self.keys.journal_prefix()
        return [decode(data, JournalEntry, where=key) for key, data in sorted(self.objects.data.items()) if key.startswith(prefix)]

    def check_accept(self, job: Job) -> None:
        """Invariant 5, at the moment when RunPod accepts."""
        given = job.request.input
        intents = [i for entry in self.journal() for i in entry.intents if i.attempt == given.attempt and i.shard == given.shard]
        if not intents:
            self.broken.append(f"invariant 5: {given.shard} attempt {given.attempt} was accepted without an intent")
        for other in self.platform.jobs.values():
            if other.request.input.attempt == given.attempt and (self.mode == "conditional" or other.request.input.shard == given.shard):
                self.broken.append(f"attempt {given.attempt} was accepted twice")
        budget = self.plan.budget_usd
        if budget is not None:
            spent = sum(self._true_cost(other) for other in (*self.platform.jobs.values(), job))
            if spent > budget + 1e-9:
                self.broken.append(f"invariant 5: ${spent:.3f} spent and reserved of a budget of ${budget:.3f}")

    def check_pace(self, actor: str, request: JobRequest) -> None:
        """Invariant 9, by what the client knew when it sent."""
        driver = self.clients[actor].driver
        if request.policy.lowPriority or self.plan.infra.scaler != "QUEUE_DELAY":
            return
        state = driver.state()
        seen = survey(state, driver.store.now(), self.tuning)
        total = live_workers(state, seen) + seen.queued_ordinary
        if total > driver.rules.pace:
            self.broken.append(f"invariant 9: {total} live workers and queued ordinary jobs at a pace of {driver.rules.pace}")

    def _true_cost(self, job: Job) -> float:
        """What a job has cost or may cost by one execution, by RunPod's own view and the markers that stand.

        Executions that a worker began more than a look after their job was over are left out: nobody can reserve for those.
        """
        rules = self.rules()
        now = self.objects.instant
        over = job.over_since or job.request.input.start_by  # a worker begins nothing after that
        starts = [
            decode(data, StartMarker, where=key)
            for key, data in self.objects.data.items()
            if key.startswith(self.keys.starts_prefix(job.request.input.shard))
        ]
        mine = [s for s in starts if s.job_id == job.id and s.at <= over + timedelta(seconds=self.tuning.second_look_s)]
        if not mine:
            return 0.0 if now >= over else rules.reserve_usd
        ended = all(self.keys.end(s.shard, s.execution) in self.objects.data for s in mine)
        return 0.0 if ended else rules.execution_timeout_s * rules.usd_per_second

    def check(self) -> None:
        """Invariants that hold at every moment."""
        assert not self.broken, self.broken
        root = self.keys.root
        for key, count in self.objects.writes.items():
            room = key[len(root) + 1 :].split("/")[0]
            if room in ("parts", "errors", "pieces", "starts", "ends", "input") or (room == "seals" and self.mode == "conditional"):
                assert count <= 1, f"invariant 1: {key} was written {count} times"
            if room in ("commits", "journal", "seal.json") and self.mode == "conditional":
                assert count <= 1, f"invariant 1: {key} was written {count} times"
        for key, data in self.objects.data.items():
            if key.startswith(self.keys.commits_prefix()):
                commit = decode(data, PartCommit, where=key)
                for ref in (commit.part, commit.errors):
                    if ref is not None:
                        assert ref.key in self.objects.data, f"invariant 2: {key} names {ref.key}, which is not there"
                        assert hashlib.sha256(self.objects.data[ref.key]).hexdigest() == ref.sha256, f"invariant 2: {ref.key}"

        for sealed in self.sealed:
            data = self.objects.data[self.keys.seal_object(sealed.digest)]
            assert hashlib.sha256(data).hexdigest() == sealed.digest, "invariant 2: a seal is not the one that it is named after"
            assert not seal_problems(self.plan, sealed.seal), "invariant 3: a seal does not partition the rows"
            for node in sealed.seal.nodes:
                for ref in (node.commit.part, node.commit.errors):
                    assert ref is None or hashlib.sha256(self.objects.data[ref.key]).hexdigest() == ref.sha256, "invariant 2: a seal"
        if self.mode == "conditional":
            assert len({sealed.digest for sealed in self.sealed}) <= 1, "invariant 4: two collectors read through different seals"

    def exhausted(self) -> list[str]:
        """Open shards of which RunPod has had at least as many jobs as the plan allows attempts."""
        had = [job.request.input.shard for job in self.platform.jobs.values()]
        shards = (shard.shard for shard in self.plan.shards)
        return [name for name in shards if self.keys.commit(name) not in self.objects.data and had.count(name) >= self.plan.max_attempts]

    def check_complete(self) -> None:
        """Invariant 3, when every node is closed: each index in exactly one of part and errors, digests recomputed."""
        seen: list[int] = []
        for shard in self.plan.shards:
            commit = decode(self.objects.data[self.keys.commit(shard.shard)], PartCommit, where=shard.shard)
            total = ShardDigest()
            for ref, name in ((commit.part, "response"), (commit.errors, "error")):
                if ref is None:
                    continue
                for line in decompress_lines(self.objects.data[ref.key], where=ref.key):
                    row = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                    index = msgspec.json.decode(row["index"], type=int)
                    seen.append(index)
                    digest = bytes.fromhex(msgspec.json.decode(row["row"], type=str))
                    assert digest == row_digest(index, f"row-{index}", row_line(index)), "invariant 3: another row's answer"
                    total.add(index, digest, name == "response", bytes(row[name]))
            assert total.hexdigest() == commit.digest
            assert commit.ok + commit.failed == shard.source.count
        assert sorted(seen) == list(range(self.plan.dataset.rows)), "invariant 3"

    # -- running it

    async def run_turns(self, count: int, rng: random.Random, fault: float = 0.0) -> None:
        """Give turns in random order."""
        for _ in range(count):
            turns = self.scheduler.alive()
            if not turns:
                return
            outcome = rng.choice(("lost_request", "lost_answer")) if rng.random() < fault else "ok"
            await self.scheduler.give(rng.choice(turns), outcome)

    async def converge(self, rounds: int = 600) -> Any:
        """No more faults: everybody gets turns, workers take jobs, time passes, until a client says that it is over."""
        if not self.living():
            await self.start_client()
        self.platform.workers = max(1, self.platform.workers)
        for _ in range(rounds):
            for _ in range(400):
                busy = [t for t in self.scheduler.alive() if t.op not in ("idle", "sleep")]
                if not busy:
                    break
                await self.scheduler.give(self.rng.choice(busy))
            done = [c for c in self.clients.values() if c.task.done() and c.actor not in self.scheduler.dead]
            if done:
                return done[-1].task.result()
            for job in self.platform.running():
                if job.worker in self.scheduler.dead:
                    self.platform.lose(job)
            for job in self.platform.queued()[: 2 * self.platform.workers]:
                await self.deliver(job)
            self.objects.advance(7.0)
            for turn in [t for t in self.scheduler.alive() if t.op in ("idle", "sleep")]:
                if self.rng.random() < 0.7:  # clients that wait for each other do not wait in step
                    await self.scheduler.give(turn)
        raise AssertionError("invariant 8: the run does not end")

    async def until_quiet(self, most: int = 4000) -> None:
        """No more faults: turns for everybody who is in the middle of something, until nobody is."""
        for _ in range(most):
            busy = [t for t in self.scheduler.alive() if t.op not in ("idle", "sleep")]
            if not busy:
                return
            await self.scheduler.give(self.rng.choice(busy))
        raise AssertionError("somebody never comes to rest")

    async def close(self) -> None:
        """Drop whoever still waits."""
        tasks = [*(c.task for c in self.clients.values()), *self.worker_tasks.values(), *self.collectors.values()]
        for task in tasks:
            task.cancel()
        for turn in self.scheduler.waiting:
            turn.future.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
