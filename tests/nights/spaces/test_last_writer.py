# tests/nights/spaces: a space on an S3 server that takes If-None-Match and does not heed it, as RunPod's network volumes do.
from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, web
from yarl import URL

from contract.models import encode
from contract.store import S3Store
from emulator.s3 import KeyPair, SeaweedS3, sign_headers
from nights.spaces import table as tables
from nights.spaces.table import ClaimFile, Home, Moved, claimed, home_of
from nights.spaces.update import apply
from pipelines.scratch import scratch_folder
from tests.nights.spaces.space_kit import SpaceHouse, expected, near

pytestmark = pytest.mark.slow
KEPT = ("ETag", "Content-Type", "Content-Range", "Last-Modified", "Date")
TEXTS = {f"r{n}": f"text number {n}" for n in range(50)}


class Heedless:
    """Passes requests on to a real server without their conditions, signed again. `hold_s`: the first manifest waits that long for a second
    one, so that both writers have looked before either has written."""

    hold_s = 0.0

    def __init__(self, server: SeaweedS3) -> None:
        self._manifests = 0
        self._second = asyncio.Event()
        self.server = server
        self._server = server.endpoint_url
        self._keys = server.client_keys

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        if self.hold_s and request.method == "PUT" and request.path.endswith(".manifest"):
            self._manifests += 1
            if self._manifests > 1:
                self._second.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._second.wait(), self.hold_s)
        query = "&".join(sorted(part if "=" in part else f"{part}=" for part in request.rel_url.raw_query_string.split("&") if part))
        names = ("content-type", "content-md5", "range")
        headers = {name: value for name in names if (value := request.headers.get(name)) is not None}
        headers["host"] = self._server.removeprefix("http://")
        signed = sign_headers(
            request.method, request.rel_url.raw_path, query, headers, hashlib.sha256(body).hexdigest(), self._keys, datetime.now(UTC)
        )
        url = URL(f"{self._server}{request.rel_url.raw_path}" + (f"?{query}" if query else ""), encoded=True)
        async with (
            ClientSession(auto_decompress=False) as session,
            session.request(request.method, url, headers=signed, data=body) as answer,
        ):
            data = await answer.read()
            kept = {
                k: v for k, v in answer.headers.items() if k.lower() in ("etag", "content-type", "content-range", "last-modified", "date")
            }
            if request.method == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, body=None if request.method == "HEAD" else data, headers=kept)


@pytest.fixture
async def heedless(tmp_path: Path) -> AsyncIterator[Heedless]:
    client, worker = (KeyPair(secrets.token_hex(8), secrets.token_hex(16)) for _ in range(2))
    (tmp_path / "s3").mkdir()
    server = SeaweedS3(tmp_path / "s3", "spaces", client, worker)
    await server.start()
    yield Heedless(server)
    await server.stop()


@pytest.fixture
async def home(heedless: Heedless) -> AsyncIterator[Home]:
    runner = web.ServerRunner(web.Server(heedless))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = msgspec.structs.replace(heedless.server.client_config, endpointUrl=f"http://127.0.0.1:{port}")
    store = S3Store(config)
    yield replace(home_of(store, "", config), settle_s=0.3)
    await store.close()
    await runner.cleanup()


async def test_nights_follow_each_other(tmp_path: Path, home: Home) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    await world.night(TEXTS)
    assert home.store.mode == "last-writer"
    night = await world.night({**TEXTS, "r1": "other", "x": "y"})
    assert (night.version, night.added, night.changed) == (2, 1, 1)
    assert near(await asyncio.to_thread(world.content), expected({**TEXTS, "r1": "other", "x": "y"}))
    assert near(await asyncio.to_thread(world.content, 1), expected(TEXTS))
    assert [info.key async for info in home.store.list("spaces/reviews/claims/")] == []


@pytest.mark.parametrize("before", [{}, TEXTS], ids=["no table", "many rows"])
async def test_of_two_commits_in_the_same_moment_one_counts(tmp_path: Path, home: Home, heedless: Heedless, before: dict[str, str]) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    if before:
        await world.night(before)
    with scratch_folder() as one, scratch_folder() as two:
        first = await world.difference({**before, "x": "by the first"}, one)
        second = await world.difference({**before, "x": "by the second"}, two)
        done, other = await world.compute(first, one), await world.compute(second, two)
        heedless.hold_s = 3.0
        results = await asyncio.gather(
            apply(first.space, first, done, one, job="reviews", night="2026-04-02"),
            apply(second.space, second, other, two, job="others", night="2026-04-02"),
            return_exceptions=True,
        )
    assert sum(isinstance(one, Moved) for one in results) == 1, results
    winner = "by the first" if isinstance(results[1], Moved) else "by the second"
    assert near(await asyncio.to_thread(world.content), expected({**before, "x": winner}))


async def test_a_claim_that_a_dead_process_left_is_taken_over(tmp_path: Path, home: Home) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    space = await world.space()
    key = f"{space.root}/claims/{1:09d}.json"
    young = ClaimFile(holder="another", at=home.store.now())
    await home.store.put(key, encode(young))
    with pytest.raises(Moved, match="another process writes this version now"):
        async with claimed(space, 1):
            pass
    await home.store.put(key, encode(ClaimFile(holder="another", at=young.at - timedelta(seconds=tables.CLAIM_STALE_S + 1))))
    async with claimed(space, 1) as needed:
        assert needed
