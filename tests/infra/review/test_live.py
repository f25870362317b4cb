"""What is live, read over HTTP: answers that come in pieces, and answers that are none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from contract.errors import InfrastructureError
from infra.review.live import HttpDataPlane

HEALTH = json.dumps({"jobs": {"inQueue": 1}, "workers": {"idle": 2}, "more": "x" * 300_000}).encode()


@asynccontextmanager
async def plane_that_answers(*pieces: bytes) -> AsyncIterator[HttpDataPlane]:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(sum(map(len, pieces)))})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response

    app = web.Application()
    app.router.add_get("/{rest:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with HttpDataPlane(f"http://{host}:{port}/v2", "key") as plane:
            yield plane
    finally:
        await runner.cleanup()


async def test_an_answer_in_pieces_is_read_to_its_end() -> None:
    async with plane_that_answers(HEALTH[:10], HEALTH[10:]) as plane:
        health = await plane.health("ep")
        assert (health.in_queue, health.idle) == (1, 2)


@pytest.mark.parametrize("text", [b"<html>", b"[" * 100_000, b'{"jobs": 1e999}', b"[]", b"{" + b" " * (9 << 20) + b"}"])
async def test_what_is_no_answer_is_said_and_raises_nothing_else(text: bytes) -> None:
    async with plane_that_answers(text) as plane:
        with pytest.raises(InfrastructureError):
            await plane.job("ep", "job")
