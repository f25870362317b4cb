"""benchmarks: the whole house on this machine: emulator, S3 server, one worker process with real vLLM, and a client. Starts processes.

Times come from the emulator, which sees every message: from the arrival of the first /run to the arrival of the last job-done, which a
worker posts after its commit and its end marker are in S3. So an interval is a little longer than "first /run to last commit".
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.engines import Engine, model_folder, thread_environment
from benchmarks.harness import ROOT, CannotMeasure, Sample, stopwatch
from contract.models import TaskKind
from contract.store import S3Store
from emulator.config import EmulatorConfig, EndpointConfig
from emulator.emulator import Emulator
from emulator.faults import PASS, Action, Message
from emulator.workers import WorkerState
from pipelines.follow import DriveResult, drive
from pipelines.plan import PlanRequest, plan_run
from pipelines.runs import RunHandle
from pipelines.submit import open_jobs

NAME: Final = "bench"
READY_S: Final = 420.0
RUN_S: Final = 1200.0
NEVER_S: Final = 86_400.0


@dataclass
class Traffic:
    """What passed the emulator since the last `clear`: first and last arrivals by operation, answers by operation and status."""

    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)

    def clear(self) -> None:
        self.first.clear()
        self.last.clear()
        self.answers.clear()

    def hook(self, message: Message) -> Action:
        """For the emulator's seam: looks, changes nothing."""
        if message.kind == "request":
            now = time.perf_counter()
            self.first.setdefault(message.operation, now)
            self.last[message.operation] = now
        elif message.kind == "response" and message.status is not None:
            self.answers[message.operation, message.status] += 1
        return PASS

    @property
    def seconds(self) -> float:
        """From the first /run to the last job-done."""
        return self.last["job-done"] - self.first["run"]


@dataclass(frozen=True)
class House:
    """A running emulator with one endpoint called `bench`."""

    emulator: Emulator
    traffic: Traffic

    async def ready(self, most_s: float = READY_S) -> None:
        """Wait until the worker has loaded its model and asks for work. Raises CannotMeasure with the end of its log."""
        until = time.monotonic() + most_s
        while not (view := self.emulator.endpoint(NAME)).count(WorkerState.IDLE):
            ill = [worker for worker in view.workers if worker.unhealthy]
            if ill or time.monotonic() > until:
                logs = [self.emulator.log_path(NAME, worker.id) for worker in view.workers]
                ends = [log.read_text(errors="replace").splitlines()[-5:] for log in logs if log.exists()]
                raise CannotMeasure(f"the worker is not ready: {ill[0].unhealthy if ill else 'time is up'}; its log ends: {ends}")
            await asyncio.sleep(0.2)


@dataclass(frozen=True)
class WholeRun:
    """One run of the whole pipeline: the interval, what `drive` said, and the names of its shards."""

    sample: Sample
    result: DriveResult
    shards: int


@asynccontextmanager
async def house(endpoint: EndpointConfig, *, s3: bool = True, rate_limits: bool = True) -> AsyncIterator[House]:
    """Start everything, and stop all of it."""
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as scratch:
        config = EmulatorConfig(state_dir=str(Path(scratch) / "local"), endpoints=(endpoint,), s3=s3, rate_limits=rate_limits)
        traffic = Traffic()
        async with Emulator(config) as emulator:
            with emulator.seam.hook(traffic.hook):
                yield House(emulator, traffic)


def own_worker(python: Path, engine: Engine, task: TaskKind, threads: int) -> EndpointConfig:
    """An endpoint whose one worker is this project's own, with the settings of `nightbatch local`, and is never stopped."""
    model_folder(python, engine.model)
    return _endpoint((str(python), "-m", "worker"), engine.worker_environment(threads), engine.model, (task,), 2)


def peer_worker(python: Path, engine: Engine, threads: int, in_flight: int) -> EndpointConfig:
    """An endpoint whose one worker takes one row a job (benchmarks/peers/one_request_per_job.py)."""
    environment = {
        **thread_environment(threads),
        "PEER_MODEL": str(model_folder(python, engine.model)),
        "PEER_ENGINE_ARGS": json.dumps(engine.arguments()),
        "MAX_CONCURRENCY": str(in_flight),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    script = ROOT / "benchmarks" / "peers" / "one_request_per_job.py"
    return _endpoint((str(python), str(script)), environment, engine.model, ("generate",), in_flight)


def _endpoint(
    command: tuple[str, ...], environment: Mapping[str, str], model: str, tasks: tuple[TaskKind, ...], concurrency: int
) -> EndpointConfig:
    return EndpointConfig(
        name=NAME,
        model=model,
        tasks=tasks,
        command=command,
        cwd=str(ROOT),
        env=environment,
        workers_min=1,
        workers_max=1,
        idle_timeout_s=NEVER_S,
        concurrency=concurrency,
        execution_timeout_ms=1_200_000,
    )


async def whole_run(at: House, rows: Path, task: TaskKind, model: str, *, again: str) -> WholeRun:
    """Plan the file, send it, follow it to its end; only from the first /run on it is timed. Raises CannotMeasure if a row fails."""
    stack = at.emulator.stack()
    store, worker_store = S3Store(stack.secrets.s3), S3Store(stack.secrets.worker_s3)
    try:
        planned = await plan_run(PlanRequest(dataset=(str(rows),), task=task, model=model, again=again, pace=1), stack, store, worker_store)
        run = RunHandle(planned.uri, planned.plan)
        jobs = open_jobs(stack, planned.plan.infra.endpoint_id)
        at.traffic.clear()
        try:
            with stopwatch() as watch:
                result = await asyncio.wait_for(drive(run, stack=stack, jobs=jobs, store=store, pace=1), RUN_S)
        finally:
            await jobs.close()
    finally:
        await store.close()
        await worker_store.close()
    if result.state != "complete" or result.failed:
        raise CannotMeasure(f"the run is {result.state} ({result.reason}), {result.ok} rows ok, {result.failed} failed.")
    return WholeRun(watch.sample(result.rows, at.traffic.seconds), result, result.shards)


async def one_row_jobs(at: House, rows: Sequence[dict[str, Any]]) -> tuple[Sample, int]:
    """Send each row as a job of its own, wait until all are done; the interval and the number of new tokens.

    All jobs are queued as fast as they are taken, and results are fetched only afterwards, so neither slows the worker.
    """
    url = f"{at.emulator.base_url}/{NAME}"
    at.traffic.clear()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {at.emulator.api_key}"}) as session:
        gate = asyncio.Semaphore(50)

        async def post(row: dict[str, Any]) -> str:
            body = row["body"]
            wanted = {name: body[name] for name in ("messages", "prompt") if name in body}
            sampling = {name: value for name, value in body.items() if name not in ("model", "messages", "prompt")}
            async with gate, session.post(f"{url}/run", json={"input": {**wanted, "sampling_params": sampling}}) as answer:
                answer.raise_for_status()
                return str((await answer.json())["id"])

        done_before = at.emulator.endpoint(NAME).completed
        with stopwatch() as watch:
            ids = await asyncio.gather(*(post(row) for row in rows))
            await _until(lambda: at.emulator.endpoint(NAME).completed + at.emulator.endpoint(NAME).failed >= done_before + len(rows))
        seconds = at.traffic.seconds

        async def tokens(job: str) -> int:
            async with gate, session.get(f"{url}/status/{job}") as answer:
                found = await answer.json()
                if found["status"] != "COMPLETED":
                    raise CannotMeasure(f"a one-row job ended {found['status']}: {str(found)[:300]}")
                return int(found["output"][0]["usage"]["output"])

        return watch.sample(len(rows), seconds), sum(await asyncio.gather(*(tokens(job) for job in ids)))


async def _until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + RUN_S
    while not true():
        if time.monotonic() > until:
            raise CannotMeasure(f"the jobs were not done within {RUN_S:.0f} s.")
        await asyncio.sleep(0.05)
