"""benchmarks: the provider as the engine starts it, watched: how long its calls last, what it sends to REST v2, its processor time.

    python -m benchmarks.watched_provider NOTES ENGINE_ADDRESS

Nothing of the provider is changed: a gRPC interceptor stands before its calls, and RestClient.request is wrapped. NOTES becomes a JSON
document when the engine ends the plugin: `calls` [[method, begin, end], ...] in seconds of one clock, `rest` [[method, path, body], ...],
`cpu` in seconds of this process from its start to that moment.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from infra.provider import client, server


class Watch(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Times every call, from the decoded request to the answer that is not yet encoded."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, float]] = []

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        method = details.method.rpartition("/")[2]

        async def timed(request: Any, context: Any) -> Any:
            began = time.perf_counter()
            try:
                return await handler.unary_unary(request, context)
            finally:
                self.calls.append((method, began, time.perf_counter()))

        return grpc.unary_unary_rpc_method_handler(timed, handler.request_deserializer, handler.response_serializer)


def main(notes: Path, address: str) -> None:
    """Serve until the engine ends it, then write the notes."""
    watch = Watch()
    sent: list[tuple[str, str, Any]] = []
    request = client.RestClient.request

    async def noted(self: Any, method: str, path: str, *, json: Any = None, query: Any = None, retry: bool) -> Any:
        sent.append((method, path, json))
        return await request(self, method, path, json=json, query=query, retry=retry)

    client.RestClient.request = noted  # type: ignore[method-assign]
    grpc.aio.server = functools.partial(grpc.aio.server, interceptors=[watch])
    asyncio.run(server.serve(address, parent=os.getppid()))
    notes.write_text(json.dumps({"calls": watch.calls, "rest": sent, "cpu": time.process_time()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), next((arg for arg in sys.argv[2:] if not arg.startswith("-")), ""))
