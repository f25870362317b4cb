"""The unmodified runpod SDK as a client: does what a line of JSON on stdin asks, answers with a line of JSON. RUNPOD_ENDPOINT_BASE_URL
and the key come from the environment, as a user would set them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import aiohttp
import runpod

KEY = os.environ["TEST_KEY"]


def do(asked: dict[str, Any]) -> Any:
    endpoint = runpod.Endpoint(asked["endpoint"], api_key=asked.get("key", KEY))
    match asked["do"]:
        case "run":
            return endpoint.run(asked["request"]).output(timeout=20)
        case "run_sync":
            return endpoint.run_sync(asked["request"], timeout=20)
        case "stream":
            return list(endpoint.run(asked["request"]).stream())
        case "cancel":
            job = endpoint.run(asked["request"])
            before = job.status()
            return [before, job.cancel()["status"], job.status()]
        case "health":
            return endpoint.health()
        case "purge":
            return endpoint.purge_queue()
        case "asyncio":
            return asyncio.run(over_asyncio(asked))
    raise ValueError(asked["do"])


async def over_asyncio(asked: dict[str, Any]) -> Any:
    async with aiohttp.ClientSession() as session:
        job = await runpod.AsyncioEndpoint(asked["endpoint"], session, api_key=KEY).run(asked["request"])
        return await job.output(timeout=20)


for line in sys.stdin:
    try:
        answer = {"ok": do(json.loads(line))}
    except Exception as error:  # the test reads what it was
        answer = {"error": type(error).__name__}
    print(json.dumps(answer), flush=True)
