"""RunPod's bill of an endpoint by the hour: the emulator's control plane, and answers that are none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from contract.errors import InfrastructureError, UsageError
from emulator import Script
from infra.provider.client import RestClient
from infra.review.billing import HOUR, MOST_HOURS, HourBilled, billed_hours
from tests.emulator.control_kit import controlled, endpoint
from tests.emulator.kit import eventually, working

AT = datetime(2026, 11, 29, 21, tzinfo=UTC)
AMOUNTS = {"totalAmount": 1.5, "gpuAmount": 1.0, "cpuAmount": 0.25, "diskAmount": 0.15, "feeAmount": 0.1}


def record(at: datetime = AT, length: timedelta = HOUR, **more: Any) -> dict[str, Any]:
    found = {"startTime": at.isoformat(), "endTime": (at + length).isoformat(), "serverlessId": "ep1", **AMOUNTS, **more}
    return {name: value for name, value in found.items() if value is not ...}


class Says:
    """REST v2 that gives one answer, and keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: Mapping[str, Any] = {}

    async def billing_serverless(self, **asked: Any) -> dict[str, Any]:
        self.asked = asked
        return dict(self.answer)


async def test_the_emulators_bill_is_read_hour_by_hour(tmp_path: Path) -> None:
    async with controlled(tmp_path, script=Script(working(30))) as (emulator, raw), RestClient(emulator.root_url, emulator.api_key) as rest:
        made = await raw.post("/serverless", endpoint(workers={"min": 0, "max": 1, "idleTimeout": 5}))
        began = datetime.fromtimestamp(emulator.clock.time(), UTC)
        assert await billed_hours(rest, made["id"], began, began + HOUR) == ()
        await raw.run(made["id"])
        await eventually(lambda: emulator.endpoint(made["id"]).completed == 1 and not emulator.endpoint(made["id"]).workers)
        ended = datetime.fromtimestamp(emulator.clock.time(), UTC)
        hours = await billed_hours(rest, made["id"], began, ended)
        assert sum(one.usd for one in hours) == pytest.approx(emulator.endpoint(made["id"]).bill.usd, rel=1e-6)
        assert {one.began.minute for one in hours} == {0}
        assert await billed_hours(rest, "another", began, ended) == ()


async def test_whole_hours_are_asked_for_and_come_back_in_order() -> None:
    rest = Says({"records": [record(AT + HOUR, totalAmount=2), record()]})
    hours = await billed_hours(rest, "ep1", AT + timedelta(minutes=13), AT + timedelta(minutes=61))
    assert rest.asked == {
        "endpoint_id": "ep1", "start": "2026-11-29T21:00:00Z", "end": "2026-11-29T23:00:00Z", "bucket_size": "hour"
    }  # fmt: skip
    assert hours == (HourBilled(AT, 1.5, 1.0, 0.25, 0.15, 0.1), HourBilled(AT + HOUR, 2.0, 1.0, 0.25, 0.15, 0.1))


@pytest.mark.parametrize(
    "records",
    [
        None,
        {},
        [1],
        [None],
        [record(serverlessId="ep2")],
        [record(serverlessId=...)],
        [record(length=timedelta(days=1))],
        [record(AT + timedelta(minutes=30))],
        [record(AT - HOUR)],
        [record(AT + 5 * HOUR)],
        [record(), record()],
        [record(AT + at * HOUR) for at in range(9)],
        [record(startTime=7)],
        [record(startTime="yesterday")],
        [record(startTime="2026-11-29T21:00:00")],
        [record(startTime="0001-01-01T00:00:00+14:00")],
        [record(totalAmount=...)],
        [record(totalAmount="1.5")],
        [record(totalAmount=True)],
        [record(totalAmount=-1)],
        [record(totalAmount=float("nan"))],
        [record(totalAmount=float("inf"))],
        [record(totalAmount=10**400)],
        [record(feeAmount=None)],
        [record(gpuAmount=[])],
    ],
)
async def test_an_answer_that_is_none_is_said_and_raises_nothing_else(records: Any) -> None:
    with pytest.raises(InfrastructureError, match="unexpected"):
        await billed_hours(Says({"records": records}), "ep1", AT, AT + 2 * HOUR)


async def test_more_than_a_month_is_not_asked_for() -> None:
    rest = Says({"records": []})
    with pytest.raises(UsageError, match="745 hours"):
        await billed_hours(rest, "ep1", AT, AT + MOST_HOURS * HOUR)
    assert not rest.asked


@asynccontextmanager
async def rest_that_answers(body: bytes, status: int = 200) -> AsyncIterator[RestClient]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_get("/v2/billing/serverless", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with RestClient(f"http://{host}:{port}", "a-key", deadline_s=0.3) as rest:
            yield rest
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<html>", 200),
        (b"[]", 200),
        (b'{"records": 7}', 200),
        (b"[" * 100_000, 200),
        (b'{"records": [' + b" " * (17 << 20) + b"]}", 200),
        (json.dumps({"records": [record()]}).replace("1.5", "1e999").encode(), 200),
        (b'{"title": "Forbidden", "detail": "a-key may not"}', 403),
        (b"", 404),
        (b"oops", 500),
    ],
    ids=["html", "list", "number", "deep", "endless", "infinite", "forbidden", "gone", "broken"],
)
async def test_over_http_too(body: bytes, status: int) -> None:
    async with rest_that_answers(body, status) as rest:
        with pytest.raises(InfrastructureError) as caught:
            await billed_hours(rest, "ep1", AT, AT)
        assert "a-key" not in str(caught.value)
