"""benchmarks/peers: the script that `pulumi up` is compared with: REST v2's calls from a file, so many at once, with aiohttp alone.

    python rest_calls.py STEPS AT_ONCE

STEPS holds [[[method, path, body], ...], ...]: a step begins when all calls of the one before are answered. Everything is loaded before the
line `ready` is printed, and the first call is sent when a line arrives on stdin. Environment: RUNPOD_API_BASE_URL, RUNPOD_API_KEY.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp

Call = tuple[str, str, Any]


async def main(steps: list[list[Call]], at_once: int) -> None:
    """Send them all. Raises for an answer that is an error."""
    base, key = os.environ["RUNPOD_API_BASE_URL"], os.environ["RUNPOD_API_KEY"]
    room = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:

        async def send(method: str, path: str, body: Any) -> None:
            async with room, session.request(method, base + path, json=body) as answer:
                answer.raise_for_status()
                await answer.read()

        print("ready", flush=True)
        sys.stdin.readline()
        for step in steps:
            await asyncio.gather(*(send(*call) for call in step))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])))
