"""A worker on the unmodified runpod SDK, for the emulator's tests: the input's `do` says what its handler does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runpod


async def until(condition: Callable[[], bool]) -> None:
    """The test tells through files."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def handler(job: dict[str, Any]) -> Any:
    asked = job["input"]
    match asked["do"]:
        case "echo":
            return {"said": asked["say"]}
        case "job":
            return {"job": job}
        case "raise":
            raise ValueError(asked["say"])
        case "error":
            return {"error": asked["say"], "kept": 1}
        case "nothing":
            return {}
        case "meet":
            # returns only when as many jobs as `count` are in handlers at the same time
            place = Path(asked["place"])
            (place / job["id"]).touch()
            await until(lambda: len(list(place.iterdir())) >= asked["count"])
            return {"met": asked["count"]}
        case "wait":
            Path(asked["started"]).touch()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                Path(asked["cancelled"]).touch()
                raise
        case "progress":
            runpod.serverless.progress_update(job, {"half": True})
            await until(Path(asked["go"]).exists)
            return {"whole": True}
        case "refresh":
            return {"refresh_worker": True, "pid": os.getpid()}
        case "pid":
            return {"pid": os.getpid(), "environment": sorted(os.environ)}
        case "huge":
            return {"text": "x" * asked["bytes"]}
    return None


if __name__ == "__main__":
    concurrency = int(os.environ.get("TEST_CONCURRENCY", "1"))
    runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda _: concurrency})
