# tests/pipelines: a webhook wakes a look, and a forged, doubled or damaged one does nothing more than that.
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from contract.errors import InfrastructureError
from contract.protocol import Tuning
from pipelines.webhook import WebhookReceiver, token_for
from tests.pipelines.night import night

RUN = "night-abababab"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def post(session: aiohttp.ClientSession, url: str, body: bytes = b"{}") -> int:
    async with session.post(url, data=body) as answer:
        return answer.status


async def test_the_right_token_wakes_each_time(session: aiohttp.ClientSession) -> None:
    woken: list[tuple[str, int]] = []
    async with WebhookReceiver(RUN, lambda shard, attempt: woken.append((shard, attempt))) as receiver:
        url = receiver.url_for("00042.1", 7)
        assert url is not None
        assert url.startswith("http://127.0.0.1:")
        assert [await post(session, url) for _ in range(2)] == [200, 200]
        assert await post(session, url, b"\xff not json" * 1000) == 200
    assert woken == [("00042.1", 7)] * 3


async def test_anything_else_is_not_found_and_wakes_nothing(session: aiohttp.ClientSession) -> None:
    woken: list[tuple[str, int]] = []
    async with WebhookReceiver(RUN, lambda shard, attempt: woken.append((shard, attempt))) as receiver:
        url = receiver.url_for("00000", 1)
        assert url is not None
        base, token = url.rsplit("/", 1)
        foreign = token_for(b"another secret", RUN, "00000", 1)
        forged = [
            f"{base}/{token[:-1]}{'0' if token[-1] != '0' else '1'}",
            f"{base}/{foreign}",
            url.replace("/00000/", "/00001/"),
            url.replace("/1/", "/2/"),
            url.replace("/1/", "/x/"),
            url.replace(RUN, "other"),
            url.replace("/hook/", "/"),
            f"{base}/%C3%A9",
        ]
        assert [await post(session, one) for one in forged] == [404] * len(forged)
        async with session.get(url) as answer:
            assert answer.status == 405
    assert woken == []


async def test_a_public_url_is_used_as_it_is_given() -> None:
    async with WebhookReceiver(RUN, lambda shard, attempt: None, public_url="https://example.org/base/") as receiver:
        assert str(receiver.url_for("00000", 1)).startswith(f"https://example.org/base/hook/{RUN}/00000/1/")
    assert receiver.url_for("00000", 1) is None


async def test_every_receiver_has_its_own_secret() -> None:
    first, second = WebhookReceiver(RUN, lambda s, a: None), WebhookReceiver(RUN, lambda s, a: None)
    assert token_for(first.secret, RUN, "00000", 1) != token_for(second.secret, RUN, "00000", 1)
    assert repr(first.secret) not in repr(first)


async def test_a_port_that_is_taken_is_named() -> None:
    async with WebhookReceiver(RUN, lambda shard, attempt: None) as receiver:
        url = receiver.url_for("00000", 1)
        assert url is not None
        port = int(url.split("/")[2].split(":")[1])
        with pytest.raises(InfrastructureError, match=str(port)):
            async with WebhookReceiver(RUN, lambda shard, attempt: None, port=port):
                pass


async def test_webhooks_wake_the_client_before_its_next_poll(tmp_path: Path) -> None:
    """Without them the same run ends with the same rows, only later."""
    elapsed: dict[bool, float] = {}
    tuning = Tuning(poll_first_s=40.0, poll_most_s=40.0, note_flush_s=60.0, pace_every_s=60.0)
    for webhooks in (True, False):
        async with night(tmp_path / str(webhooks), shards=4, work_s=0.5) as found:
            result = await asyncio.wait_for(found.drive(webhooks=webhooks, tuning=tuning), 30)
            assert (result.state, result.ok + result.failed) == ("complete", 8)
            elapsed[webhooks] = result.elapsed_s
    assert elapsed[True] < 40 <= elapsed[False]
