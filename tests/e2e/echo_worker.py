"""A worker for the tests of the whole house: the unmodified runpod SDK, this project's own handler, and an engine that echoes.

It needs no model and starts in a second. In the folder $E2E_GATE a test sees and steers what it does: every group of rows that reaches the
engine draws a ticket (`ticket-1`, `ticket-2`, ...) and waits until the number in `allow` is at least as high; every job that is taken
writes its webhook's address and its shard to `jobs`. Tickets are counted over all workers that share the folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import runpod

from worker.__main__ import leave
from worker.engine.base import Batch, EngineRequest, EngineResult, Refused
from worker.engine.fake import FakeEngine
from worker.execution import Identity, PiecePolicy
from worker.handler import Worker
from worker.redact import Redactor, install
from worker.settings import Settings

GATE = Path(os.environ["E2E_GATE"])
LONGEST_S = 120.0


class GatedBatch:
    """A batch whose groups wait for the gate, and that an abort ends while they wait."""

    def __init__(self, engine: FakeEngine, requests: Iterable[EngineRequest | Refused]) -> None:
        self._aborted = asyncio.Event()
        self._inner = engine.submit(requests)
        engine.pause = self._pause

    def abort(self) -> None:
        self._aborted.set()
        self._inner.abort()

    def __aiter__(self) -> AsyncIterator[list[EngineResult]]:
        return aiter(self._inner)

    async def _pause(self) -> None:
        ticket = draw()
        until = asyncio.get_running_loop().time() + LONGEST_S
        while ticket > allowed() and not self._aborted.is_set() and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # what is waited for is a file that the test writes


class GatedEngine(FakeEngine):
    """Echoes, one ticket a group."""

    def submit(self, requests: Iterable[EngineRequest | Refused]) -> Batch:
        return GatedBatch(FakeEngine(kind=self.kind, model=self.model, group=self.group), list(requests))


def draw() -> int:
    number = len(list(GATE.glob("ticket-*"))) + 1
    while True:
        try:
            os.close(os.open(GATE / f"ticket-{number}", os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            number += 1


def allowed() -> int:
    try:
        return int((GATE / "allow").read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def main() -> None:
    redactor = Redactor()
    install(redactor)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    settings = Settings.from_env(os.environ)
    engine = GatedEngine(kind=settings.kind, model=settings.served_name, group=int(os.environ.get("E2E_GROUP", "100000")))
    identity = Identity(worker_id=os.environ["RUNPOD_POD_ID"], image=settings.image, versions={"echo": "1"})
    worker = Worker(
        settings, engine, identity=identity, redactor=redactor, leave=leave, control_s=0.5, pieces=PiecePolicy(seconds=0.2, share=0.01)
    )

    async def handler(job: dict[str, Any]) -> dict[str, Any]:
        with (GATE / "jobs").open("a") as file:
            file.write(json.dumps({"shard": job["input"]["shard"], "webhook": job.get("webhook"), "id": job["id"]}) + "\n")
        return await worker.handle(job)

    runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda _: settings.concurrency})


if __name__ == "__main__":
    main()
