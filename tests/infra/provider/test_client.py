"""The REST v2 client: what it repeats, how long it waits, what it says, and that the key stays in its header."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from contract.errors import UsageError
from infra.provider.client import (
    Denied,
    NotFound,
    RestClient,
    RestError,
    TooManyRequests,
    Unreachable,
    clean_base_url,
)
from tests.infra.provider.cloud import KEY, Cloud, Fault


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def client_of(cloud: Cloud, time: Time | None = None, *, key: str = KEY, deadline_s: float = 60.0, attempt_s: float = 0.3) -> RestClient:
    if time is None:
        return RestClient(cloud.base_url, key, deadline_s=deadline_s, attempt_s=attempt_s)
    return RestClient(cloud.base_url, key, deadline_s=deadline_s, attempt_s=attempt_s, clock=time.clock, sleep=time.sleep)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://api.runpod.io", "https://api.runpod.io"),
        ("https://api.runpod.io/v2", "https://api.runpod.io"),
        ("https://api.runpod.io/v2/", "https://api.runpod.io"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9"),
        (None, "https://api.runpod.io"),
    ],
)
def test_the_base_url_is_cut_to_its_host(text: str | None, url: str) -> None:
    assert clean_base_url(text, {}) == url


def test_the_base_url_comes_from_the_environment_and_a_bad_one_is_a_usage_error() -> None:
    assert clean_base_url(None, {"RUNPOD_API_BASE_URL": "http://h:1/v2"}) == "http://h:1"
    for bad in ("api.runpod.io", "ftp://x", "https://user:pw@x", "https://x/?key=1"):
        with pytest.raises(UsageError, match="is not the URL of an API"):
            clean_base_url(bad, {})


@pytest.mark.parametrize("text", ["http://[::1", "http://h:port", "http://h:99999", "http://h\x00", "http://\ud800"])
def test_what_is_no_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        clean_base_url(text, {})


async def test_retry_after_is_honoured_by_every_request_of_the_client(cloud: Cloud) -> None:
    time = Time()
    cloud.faults = [Fault("GET", "/v2/templates", status=429, headers={"Retry-After": "20"})]
    async with client_of(cloud, time) as client:
        assert await client.list_templates() == []
        assert 20 <= sum(time.sleeps) <= 21
        assert cloud.counted("GET") == 2
        client._held_until = time.now + 5  # as another request's 429 sets it
        await client.list_registries()
        assert 25 <= sum(time.sleeps) <= 26


async def test_a_post_is_repeated_after_a_429_and_never_after_silence(cloud: Cloud) -> None:
    body = {"name": "r", "username": "u", "password": "p"}
    cloud.faults = [Fault("POST", ".*", status=429, headers={"Retry-After": "1"})]
    async with client_of(cloud, Time()) as client:
        assert (await client.create_registry(body))["name"] == "r"
        for do, status in (("cut", 0), ("hang", 0), ("status", 500)):
            cloud.faults = [Fault("POST", ".*", do=do, status=status or 500)]  # type: ignore[arg-type]
            posts = cloud.counted("POST")
            with pytest.raises(Unreachable) as lost:
                await client.create_registry(body)
            assert lost.value.maybe_done
            assert cloud.counted("POST") == posts + 1


async def test_a_connection_that_never_opened_proves_that_nothing_was_made(cloud: Cloud) -> None:
    await cloud.stop()
    async with client_of(cloud, Time(), deadline_s=5) as client:
        with pytest.raises(Unreachable) as refused:
            await client.create_registry({"name": "r"})
    assert not refused.value.maybe_done
    assert "It was not carried out" in str(refused.value)


async def test_a_wait_longer_than_the_deadline_is_said_at_once(cloud: Cloud) -> None:
    time = Time()
    cloud.faults = [Fault("GET", ".*", status=429, headers={"Retry-After": "3600"})]
    async with client_of(cloud, time) as client:
        with pytest.raises(TooManyRequests):
            await client.list_endpoints()
    assert time.sleeps == []


async def test_repetitions_end_with_the_deadline(cloud: Cloud) -> None:
    time = Time()
    cloud.faults = [Fault("GET", ".*", status=500, times=999)]
    async with client_of(cloud, time, deadline_s=30) as client:
        with pytest.raises(Unreachable, match="status 500"):
            await client.list_endpoints()
    assert time.now <= 30
    assert 4 <= cloud.counted("GET") <= 12
    assert time.sleeps == sorted(time.sleeps, key=lambda s: s > 4)  # they grow until the longest


async def test_a_runpod_that_says_nothing_at_all_is_waited_for_once_and_not_by_every_request() -> None:
    cloud, time = Cloud(), Time()
    await cloud.start()
    await cloud.stop()  # a port where nobody listens
    async with client_of(cloud, time, deadline_s=180) as client:
        messages = set()
        for call in (client.list_endpoints, client.list_templates, client.list_endpoints, client.list_network_volumes):
            with pytest.raises(Unreachable, match=r"no connection .*\. Try again\. Is this machine online") as failed:
                await call()
            messages.add(str(failed.value).split(": ", 1)[1])
        assert len(messages) == 1
        assert 40 <= time.now <= 60
        with pytest.raises(Unreachable) as lost:
            await client.create_registry({"name": "r"})
        assert not lost.value.maybe_done
        assert "It was not carried out" in str(lost.value)


async def test_requests_beside_each_other_give_up_together() -> None:
    cloud, time = Cloud(), Time()
    await cloud.start()
    await cloud.stop()
    async with client_of(cloud, time, deadline_s=180) as client:
        ended = await asyncio.gather(*(client.list_endpoints() for _ in range(9)), return_exceptions=True)
    assert all(isinstance(error, Unreachable) for error in ended)
    assert time.now <= 60 + 9 * 8  # this clock adds up what they sleep beside each other


async def test_a_runpod_that_comes_back_is_found_by_the_next_look(cloud: Cloud) -> None:
    time = Time()
    cloud.faults = [Fault(method, ".*", do="cut", times=999) for method in ("GET", "POST")]
    async with client_of(cloud, time, deadline_s=180) as client:
        with pytest.raises(Unreachable):
            await client.list_endpoints()
        cloud.faults = []
        asked = len(cloud.seen)
        with pytest.raises(Unreachable):
            await client.list_endpoints()
        assert len(cloud.seen) == asked, "nobody asks again at once"
        time.now += 15
        assert await client.list_endpoints() == []
        assert await client.list_templates() == []


async def test_a_runpod_that_has_answered_before_is_waited_for_as_long_as_a_call_may_last(cloud: Cloud) -> None:
    time = Time()
    async with client_of(cloud, time, deadline_s=180) as client:
        await client.list_endpoints()
        cloud.faults = [Fault("GET", ".*", do="cut", times=999)]
        with pytest.raises(Unreachable) as failed:
            await client.list_endpoints()
        assert 160 <= time.now <= 180
        assert "online" not in str(failed.value)
        with pytest.raises(Unreachable):
            await client.list_endpoints()
        assert time.now <= 180


@pytest.mark.parametrize("status", [429, 503])
async def test_a_runpod_that_refuses_is_not_one_that_says_nothing(cloud: Cloud, status: int) -> None:
    time = Time()
    cloud.faults = [Fault("GET", ".*", status=status, headers={"Retry-After": "50"}, times=3)]
    async with client_of(cloud, time, deadline_s=180) as client:
        assert await client.list_endpoints() == []
    assert 150 <= time.now <= 153


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Denied), (403, Denied), (404, NotFound), (400, RestError), (422, RestError), (302, RestError)]
)
async def test_a_refusal_is_one_sentence_with_status_and_reason(cloud: Cloud, status: int, kind: type[RestError]) -> None:
    cloud.faults = [Fault("GET", ".*", status=status, detail=f"because of {KEY}", headers={"Location": "https://elsewhere.example"})]
    async with client_of(cloud) as client:
        with pytest.raises(kind) as refused:
            await client.get_endpoint("ep1")
    assert refused.value.status == status
    assert "GET /v2/serverless/ep1" in str(refused.value)
    assert "because of <hidden>" in str(refused.value)
    assert cloud.counted("GET") == 1


async def test_only_the_cause_of_a_validators_list_is_shown(cloud: Cloud) -> None:
    async def answer(request: web.Request) -> web.Response:
        errors = ["$: missing property 'scaling'", "$: additional properties 'name', 'type' not allowed"]
        document = {"title": "Unprocessable Entity", "status": 422, "detail": "the body is invalid", "errors": errors}
        return web.json_response(document, status=422)

    async with served(answer) as url, RestClient(url, KEY) as client:
        with pytest.raises(RestError) as refused:
            await client.create_endpoint({"name": "x"})
    assert refused.value.errors == ("$: missing property 'scaling'",)
    assert "not allowed" not in str(refused.value)


async def test_without_a_key_nothing_is_sent_and_the_way_out_is_said(cloud: Cloud) -> None:
    for key in ("", "two words", "ключ"):
        async with client_of(cloud, key=key) as client:
            with pytest.raises(UsageError) as missing:
                await client.list_endpoints()
            assert not key or key not in str(missing.value)
    assert cloud.seen == []
    assert KEY not in repr(client_of(cloud))


async def test_a_workers_log_is_read_to_its_tail_though_the_stream_never_ends() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for i in range(int(request.query["tail"])):
            await response.write(f'id: {i}\ndata: {{"source": "container", "line": "line {i}", "ts": "t"}}\n\n'.encode())
        await asyncio.sleep(3600)
        return response

    async with served(stream) as url, RestClient(url, KEY) as client:
        lines = await client.worker_logs("ep1", "w1", tail=3)
    assert [line["line"] for line in lines] == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "null",
        "{}",
        '{"id": "ep2"}',
        '{"id": "ep1", "workers": "many"}',
        '{"id": "ep1", "gpu": [1]}',
        '{"id": "ep1", "timeout": 1e999}',
        '{"id": "ep1", "timeout": NaN}',
    ],
)
async def test_an_answer_about_something_else_is_no_answer(text: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    async with served(answer) as url, RestClient(url, KEY) as client:
        with pytest.raises(Unreachable):
            await client.get_endpoint("ep1")
        with pytest.raises(Unreachable) as changed:
            await client.update_endpoint("ep1", {})
        assert changed.value.maybe_done


@pytest.mark.parametrize("text", ["{}", '{"workers": [], "summary": {}}', '{"workers": [], "summary": {"running": "none"}}'])
async def test_an_answer_that_does_not_say_how_many_workers_run_does_not_say_none(text: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    async with served(answer) as url, RestClient(url, KEY) as client:
        with pytest.raises(Unreachable):
            await client.list_workers("ep1")


@pytest.mark.parametrize("items", ["1, null", '{"id": "ep1", "workers": 3}'])
async def test_a_list_of_anything_else_is_no_list(items: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=f'{{"endpoints": [{items}]}}', content_type="application/json")

    async with served(answer) as url, RestClient(url, KEY) as client:
        with pytest.raises(Unreachable):
            await client.list_endpoints()


async def test_a_log_line_without_end_is_an_unread_log() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + b"x" * (1 << 20))
        return response

    async with served(stream) as url, RestClient(url, KEY) as client:
        with pytest.raises(Unreachable):
            await client.worker_logs("ep1", "w1")


async def test_an_id_cannot_reach_another_path(cloud: Cloud) -> None:
    async with client_of(cloud) as client:
        with pytest.raises(NotFound):
            await client.get_endpoint("../templates")
        with pytest.raises(UsageError):
            await client.delete_endpoint("")
    assert not any(path == "/v2/templates" for _, path, _ in cloud.seen)


class served:
    """One handler on a port of its own."""

    def __init__(self, handler: Callable[[web.Request], Awaitable[Any]]) -> None:
        self._handler = handler

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handler)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
