# tests/worker: the handler inside the unmodified SDK, against the emulator and a real S3 server: SIGTERM, job-stop, a dead engine.
from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from contract.models import EndMarker, TaskSpec, decode
from contract.rows import CompletionUrl, PartLine
from contract.store import S3Store
from emulator import Emulator, EmulatorConfig, EndpointConfig
from emulator.faults import DROP, PASS, Action, Message
from emulator.processes import GuardedProcess
from tests.worker.conftest import KEYS, lines
from worker.handler import ENGINE_DEAD
from worker.sample import SampleRow, sample_job

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
ROWS = 400


async def eventually(look: Callable[[], Awaitable[Any]], what: str, timeout_s: float = 60.0) -> Any:
    """The first true value of `look`, within real seconds."""
    until = time.monotonic() + timeout_s
    while not (value := await look()):
        assert time.monotonic() < until, f"{what} did not come to be"
        await asyncio.sleep(0.05)
    return value


def running(directory: Path) -> set[int]:
    """Worker processes (and what they forked) that have not ended."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if b"sdk_worker" in command and str(directory).encode() in environ and not zombie:
            found.add(int(entry.name))
    return found


@dataclass
class House:
    emulator: Emulator
    session: aiohttp.ClientSession
    store: S3Store
    job: str
    directory: Path
    body: dict[str, Any]

    async def send(self) -> str:
        async with self.session.post(f"{self.emulator.base_url}/fake/run", json=self.body) as answer:
            return str((await answer.json())["id"])

    async def call(self, operation: str, job: str | None = None) -> dict[str, Any]:
        method = "post" if operation == "cancel" else "get"
        async with getattr(self.session, method)(f"{self.emulator.base_url}/fake/{operation}/{job or self.job}") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def keys(self, prefix: str) -> list[str]:
        return [head.key async for head in self.store.list(f"{KEYS.root}/{prefix}")]

    async def ended(self) -> EndMarker:
        async def look() -> list[str]:
            return await self.keys("ends/")

        (key, *_) = await eventually(look, "an end marker")
        marker: EndMarker = decode((await self.store.get(key)).data, EndMarker, where=key)
        return marker

    async def pieces(self) -> list[str]:
        async def look() -> list[str]:
            return await self.keys("pieces/")

        found: list[str] = await eventually(look, "a piece")
        return found

    def pid(self) -> int:
        (worker,) = self.emulator.endpoint("fake").workers
        assert worker.pid is not None
        return worker.pid


@asynccontextmanager
async def house(directory: Path, repo: Path, **environ: str) -> AsyncIterator[House]:
    """One shard of 400 rows, on its way through one worker."""
    endpoint = EndpointConfig(
        name="fake",
        model="fake",
        tasks=("generate",),
        command=(sys.executable, "-m", "tests.worker.sdk_worker"),
        cwd=str(repo),
        env={"PYTHONPATH": str(repo), "SDK_ROW_S": "0.02", **environ},
        workers_max=1,
        idle_timeout_s=30.0,
    )
    async with Emulator(EmulatorConfig(state_dir=str(directory), endpoints=(endpoint,))) as emulator:
        keys = emulator.stack().secrets.worker_s3
        store = S3Store(keys, mode="conditional")
        try:
            rows = [SampleRow(f"row-{n}", CompletionUrl, {"prompt": f"text {n}"}) for n in range(ROWS)]
            made = await sample_job(store, TaskSpec(kind="generate", model="fake"), rows)
            body = {"input": msgspec.to_builtins(made), "s3Config": msgspec.to_builtins(keys)}
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {emulator.api_key}"}) as session:
                stage = House(emulator, session, store, "", directory, body)
                stage.job = await stage.send()
                yield stage
        finally:
            await store.close()


async def test_sigterm_keeps_pieces_answers_partial_and_leaves_no_commit(tmp_path: Path, repo: Path) -> None:
    async with house(tmp_path, repo) as stage:
        await stage.pieces()
        os.kill(stage.pid(), signal.SIGTERM)
        end = await stage.ended()

        async def answered() -> bool:
            return bool((await stage.call("status"))["status"] == "COMPLETED")

        await eventually(answered, "the answer")
        output = (await stage.call("status"))["output"]
        assert (output["outcome"], output["detail"], end.outcome) == ("partial", "sigterm", "partial")
        kept = [line.index for key in await stage.pieces() for line in lines((await stage.store.get(key)).data, PartLine)]
        assert 0 < end.ok < ROWS
        assert sorted(kept) == list(range(end.ok)), "every finished row is in one piece"
        assert await stage.keys("commits/") == []


async def test_a_cancelled_job_keeps_pieces_and_the_worker_goes_on(tmp_path: Path, repo: Path) -> None:
    async with house(tmp_path, repo) as stage:
        await stage.pieces()
        pid = stage.pid()
        assert (await stage.call("cancel"))["status"] == "CANCELLED"
        end = await stage.ended()
        assert end.outcome == "partial"
        assert (await stage.keys("commits/"), await stage.keys("parts/")) == ([], [])
        assert stage.pid() == pid
        assert pid in running(stage.directory)


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """Exit codes of workers, as they end."""
    found: asyncio.Queue[int] = asyncio.Queue()
    wait = GuardedProcess.wait

    async def noted(process: GuardedProcess) -> int:
        code = await wait(process)
        found.put_nowait(code)
        return code

    monkeypatch.setattr(GuardedProcess, "wait", noted)
    return found


async def test_a_dead_engine_keeps_pieces_answers_and_takes_its_process_and_its_pings_with_it(
    tmp_path: Path, repo: Path, codes: asyncio.Queue[int]
) -> None:
    async with house(tmp_path, repo, SDK_DIES_AFTER="60") as stage:
        jobs = [stage.job, await stage.send()]
        await stage.pieces()
        first = running(stage.directory)
        assert len(first) >= 3, "the worker, its pings, and the emulator's guard of both"
        assert await asyncio.wait_for(codes.get(), 60) == ENGINE_DEAD
        for job in jobs:
            status = await stage.call("status", job)
            assert status["status"] == "FAILED", "the answer was there before the process ended"
            assert status["error"] == "the engine died as it was told to; finished rows were kept as pieces."
            assert "retries" not in status, "it was not found lost and given to a second worker"

        async def gone() -> bool:
            return not first & running(stage.directory)

        await eventually(gone, "the end of the worker and of everything it had started", 20.0)
        ends = [decode((await stage.store.get(key)).data, EndMarker, where=key) for key in await stage.keys("ends/")]
        assert [(end.outcome, end.ok) for end in ends] == [("partial", 60)] * 2
        assert await stage.keys("commits/") == []
        assert len(await stage.keys("starts/")) == 2


async def test_a_dead_engines_process_ends_although_runpod_takes_no_answer(tmp_path: Path, repo: Path, codes: asyncio.Queue[int]) -> None:
    async with house(tmp_path, repo, SDK_DIES_AFTER="60", SDK_ANSWER_S="2") as stage:
        held = asyncio.Event()

        async def hold(message: Message) -> Action:
            if (message.kind, message.operation) == ("request", "job-done"):
                held.set()
                await codes_seen.wait()
                return DROP
            return PASS

        codes_seen = asyncio.Event()
        with stage.emulator.seam.hook(hold):
            await asyncio.wait_for(held.wait(), 60)
            code = await asyncio.wait_for(codes.get(), 20)
            codes_seen.set()
        assert code == ENGINE_DEAD
        assert (await stage.call("status"))["status"] == "IN_PROGRESS", "RunPod finds it lost later"
        assert (await stage.ended()).outcome == "partial"
