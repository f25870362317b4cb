# tests/worker: the unmodified runpod SDK with this project's handler, and an engine that echoes a row at a time.
"""SDK_ROW_S: seconds a row takes. SDK_DIES_AFTER: rows after which the engine dies; not set: never.
SDK_ANSWER_S: seconds that a dead engine's process waits for RunPod to take its answers; not set: as in the product."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

import runpod

from worker.__main__ import leave
from worker.engine.fake import FakeEngine
from worker.execution import Identity, PiecePolicy
from worker.handler import ANSWER_S, Worker
from worker.redact import Redactor, install
from worker.settings import Settings


async def pause() -> None:
    await asyncio.sleep(float(os.environ["SDK_ROW_S"]))


if __name__ == "__main__":
    redactor = Redactor()
    install(redactor)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    dies = os.environ.get("SDK_DIES_AFTER")
    engine = FakeEngine(model="fake", group=1, pause=pause, dies_after=int(dies) if dies else None)
    pieces = PiecePolicy(seconds=0.2, share=0.01)
    worker = Worker(
        Settings("fake", "fake", "generate"),
        engine,
        identity=Identity(os.environ["RUNPOD_POD_ID"]),
        redactor=redactor,
        leave=leave,
        pieces=pieces,
        answer_s=float(os.environ.get("SDK_ANSWER_S", ANSWER_S)),
    )

    async def handler(job: dict[str, Any]) -> dict[str, Any]:
        return await worker.handle(job)

    runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda _: 2})
