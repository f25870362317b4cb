"""tests/nights: a night's world in one process: real planning, following, collecting, verifying, and this project's worker code over an
engine that answers from a function, all on a bucket in memory and a clock that jumps. No server, no process, no waiting.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from contract.errors import EndpointUnavailable
from contract.facts import Stack
from contract.memory import MemoryStore, Objects
from contract.models import JobRequest, StoreMode
from contract.protocol import Health, JobStatus
from contract.rows import RowError
from pipelines.follow import Events, drive, ignore
from pipelines.plan import PlannedRun, PlanRequest, plan_run
from pipelines.runpod import Timer
from pipelines.runs import load_run
from pipelines.submit import set_running
from pipelines.work import Buckets, Finished, Following, Watch, collect_and_verify
from tests.pipelines.planning import stack_of
from worker.engine.base import ChatPrompt, Choice, Embedded, EmbedRequest, EngineRequest, EngineResult, Generated, Refused, TextPrompt
from worker.engine.fake import FakeEngine
from worker.execution import Identity, Stop, World, execute
from worker.handler import Monotonic

START = datetime(2026, 3, 10, 1, 30, tzinfo=UTC)
IMAGE = "registry.example/nightbatch-worker@sha256:" + "a" * 64
Answer = str | RowError | tuple[str, str]
"""A text; an error; or a text and its finish reason."""


def vector_of(text: str, size: int = 8) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """A unit vector that follows from the text alone."""
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
    vector = rng.standard_normal(size).astype(np.float32)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@dataclass
class ScriptedEngine(FakeEngine):
    """Answers from functions: `says(prompt)` for generate, `embeds(text)` for embed."""

    says: Callable[[str], Answer] = lambda text: f"echo {text}"
    embeds: Callable[[str], np.ndarray[tuple[int], np.dtype[np.float32]] | RowError] = vector_of
    asked: list[str] = field(default_factory=list)

    def result(self, request: EngineRequest) -> EngineResult:
        prompt = request.prompt
        if isinstance(prompt, TextPrompt):
            text = prompt.text
        elif isinstance(prompt, ChatPrompt):
            text = str(prompt.messages[-1]["content"])
        else:
            text = repr(prompt.tokens)
        self.asked.append(text)
        if isinstance(request, EmbedRequest):
            found = self.embeds(text)
            return Refused(request.index, found) if isinstance(found, RowError) else Embedded(request.index, len(text.split()), found)
        choices = []
        for draw in range(request.sampling.n):
            said = self.says(text)
            if isinstance(said, RowError):
                return Refused(request.index, said)
            words, reason = said if isinstance(said, tuple) else (said, "stop")
            choices.append(Choice(draw, words, len(words.split()) + 1, reason))
        return Generated(request.index, len(text.split()), tuple(choices))


@dataclass
class InProcessJobs:
    """RunPod, as far as a client sees it: a job is done before its number is told. `unavailable`: /run answers that many times with 500."""

    house: NightHouse
    engine: ScriptedEngine
    done: dict[str, JobStatus] = field(default_factory=dict)
    unavailable: int = 0

    async def run(self, request: JobRequest) -> str:
        if self.unavailable:
            self.unavailable -= 1
            raise EndpointUnavailable("RunPod answered 500.", where="/run")
        name = f"job-{len(self.house.jobs_run) + 1}"
        self.house.jobs_run.append(name)
        with tempfile.TemporaryDirectory() as folder:
            identity = Identity(worker_id="worker-1", image=self.house.image, versions={"vllm": self.house.vllm})
            world = World(self.house.worker_store, self.engine, Monotonic(), Path(folder), identity)
            summary = await execute(request.input, name, world, Stop())
        self.done[name] = JobStatus("COMPLETED", outcome=summary.outcome, worker_id="worker-1")
        return name

    async def status(self, job_id: str) -> JobStatus:
        return self.done[job_id]

    async def cancel(self, job_id: str) -> None:
        return None

    async def health(self) -> Health:
        return Health(idle=1, ready=1)

    async def close(self) -> None:
        return None


@dataclass
class NightHouse:
    """A stack in memory with its bucket and its engines; it is a `Runner` (nights/runner.py)."""

    objects: Objects = field(default_factory=lambda: Objects(instant=START))
    mode: StoreMode = "conditional"
    stack: Stack = field(default_factory=stack_of)
    says: Callable[[str], Answer] = lambda text: f"echo {text}"
    embeds: Callable[[str], np.ndarray[tuple[int], np.dtype[np.float32]] | RowError] = vector_of
    image: str | None = IMAGE
    vllm: str = "0.25.1"
    notes: list[str] = field(default_factory=list)
    jobs_run: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Every text that reached an engine, in order."""
    on_complete: Callable[[PlannedRun], None] = lambda planned: None
    """Called before a run is sent: where a test makes things go wrong."""
    cut: bool = False
    """Runs are stopped by their deadline at once."""

    @property
    def store(self) -> MemoryStore:
        return MemoryStore(self.objects, mode="last-writer", dialect=self.mode)

    @property
    def worker_store(self) -> MemoryStore:
        """The bucket as workers see it: what goes wrong on a client's way to it is not theirs."""
        return MemoryStore(self.objects, mode="last-writer", dialect=self.mode)

    def bucket(self, name: str) -> MemoryStore:
        return self.store

    def now(self) -> datetime:
        return self.objects.instant

    def note(self, text: str) -> None:
        self.notes.append(text)

    async def plan(self, request: PlanRequest, *, dry_run: bool = False) -> PlannedRun:
        store = self.store
        planned = await plan_run(request, self.stack, store, self.store, open_bucket=self.bucket, dry_run=dry_run)
        self.notes += planned.notices
        return planned

    async def complete(self, planned: PlannedRun, how: Following, hear: Events = ignore) -> Finished:
        self.on_complete(planned)
        began = time.monotonic()
        store = self.store
        handle = await load_run(store, planned.uri)
        engine = ScriptedEngine(
            kind=planned.plan.task.kind, model=planned.plan.task.model, says=self.says, embeds=self.embeds, asked=self.asked
        )
        await set_running(handle, store)
        deadline = how.deadline if not self.cut else timedelta(seconds=-1)
        result = await drive(
            handle,
            stack=self.stack,
            jobs=InProcessJobs(self, engine),
            store=store,
            timer=Timer(lambda: self.objects.instant.timestamp(), self._sleep),
            budget_usd=how.budget_usd,
            pace=how.pace,
            deadline=store.now() + deadline if deadline else None,
            allow_mixed_image=how.allow_mixed_image,
            events=hear,
            webhooks=False,
        )
        buckets = Buckets(self.stack)
        buckets.main = store  # type: ignore[assignment]
        buckets.other = self.bucket  # type: ignore[method-assign, assignment]
        return await collect_and_verify(handle, buckets, how, Watch(), result, began=began)

    async def _sleep(self, seconds: float) -> None:
        self.objects.advance(seconds)
        await asyncio.sleep(0)
