"""A generator worker on the unmodified runpod SDK, for the emulator's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import runpod


async def handler(job: dict[str, Any]) -> AsyncIterator[Any]:
    for number in range(job["input"]["count"]):
        yield {"number": number}
    if job["input"].get("fail"):
        raise RuntimeError("in the middle")


if __name__ == "__main__":
    runpod.serverless.start({"handler": handler, "return_aggregate_stream": True})
