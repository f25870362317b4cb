"""tests/nights: an HTTP receiver on this machine that answers as it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Receiver:
    """An HTTP receiver that answers as it is told, in order, then with 200."""

    url: str = ""
    answers: list[int | Callable[[web.Request], Any]] = field(default_factory=list)
    heard: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    retry_after: str | None = None

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.heard]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.heard.append((dict(request.headers), await request.read()))
        answer = self.answers.pop(0) if self.answers else 200
        if callable(answer):
            answer(request)
            return web.Response(status=200)
        headers = {"Retry-After": self.retry_after} if self.retry_after else {}
        if answer in (301, 302, 307):
            headers["Location"] = self.url + "/elsewhere"
        return web.Response(status=answer, headers=headers)


@asynccontextmanager
async def receiver(*answers: int | Callable[[web.Request], Any]) -> AsyncIterator[Receiver]:
    found = Receiver(answers=list(answers))
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    try:
        yield found
    finally:
        await runner.cleanup()
