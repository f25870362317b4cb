# tests/pipelines: the data plane client: what an answer proves, what is repeated, what is never said.
from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.errors import (
    EndpointAuth,
    EndpointMissing,
    EndpointUnavailable,
    EndpointUnreachable,
    NightbatchError,
    RateLimited,
    Refused,
)
from contract.models import JobInput, JobRequest, Policy, decode
from contract.protocol import JobStatus
from emulator.faults import Action, Message
from pipelines.runpod import AiohttpTransport, NoAnswer, NotSent, Response, RunPodClient, Timer
from tests.contract.world import SECRETS, START, make_plan
from tests.pipelines.night import night

PLAN = make_plan()


def request() -> JobRequest:
    shard = PLAN.shards[0]
    return JobRequest(
        input=JobInput(
            version=1,
            run=PLAN.run,
            plan=PLAN.plan_id,
            shard=shard.shard,
            attempt=1,
            epoch=0,
            source=shard.source,
            start_by=START + timedelta(hours=1),
            deadline_s=54.0,
            task=PLAN.task,
        ),
        s3Config=SECRETS.worker_s3,
        policy=Policy(lowPriority=True, executionTimeout=60_000, ttl=600_000),
    )


@dataclass
class Script:
    """A transport that answers from a list; time passes only by sleeping."""

    answers: list[Response | Exception]
    now: float = 0.0
    sent: list[tuple[str, str, bytes | None]] = field(default_factory=list)
    sleeps: list[float] = field(default_factory=list)
    closed: bool = False

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Response:
        self.sent.append((method, url, body))
        assert headers["Authorization"] == f"Bearer {SECRETS.api_key}"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def client(*answers: Response | Exception) -> tuple[RunPodClient, Script]:
    script = Script(list(answers))
    timer = Timer(monotonic=lambda: script.now, sleep=script.sleep)
    made = RunPodClient(
        api_url="http://runpod.invalid/v2", endpoint_id="ep1", api_key=SECRETS.api_key, transport=script, timer=timer, rng=random.Random(1)
    )
    return made, script


def answer(status: int, body: Any = None, **headers: str) -> Response:
    return Response(status, {k.replace("_", "-"): v for k, v in headers.items()}, json.dumps(body).encode())


ACCEPTED = answer(200, {"id": "job-1", "status": "IN_QUEUE"})


async def test_a_job_is_posted_with_its_policy_and_credentials_only_in_s3config() -> None:
    api, script = client(ACCEPTED)
    assert await api.run(request()) == "job-1"
    ((method, url, body),) = script.sent
    assert (method, url) == ("POST", "http://runpod.invalid/v2/ep1/run")
    assert body is not None
    assert decode(body, JobRequest, where="body") == request()
    assert "worker-secret" not in json.dumps(json.loads(body)["input"])


async def test_run_is_repeated_after_429_and_waits_as_long_as_it_was_told() -> None:
    """C3 52: 429 twice, then 200: one job."""
    api, script = client(answer(429, retry_after="7"), answer(429), ACCEPTED)
    assert await api.run(request()) == "job-1"
    assert len(script.sent) == 3
    assert script.sleeps[0] == pytest.approx(7)
    assert script.sleeps[1] > 0
    assert api.counters.share("run", 429) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("told", "waited"), [("99999", 120.0), ("1e999", 120.0), ("-5", 0.0)])
async def test_an_answer_cannot_ask_for_a_wait_without_end(told: str, waited: float) -> None:
    api, script = client(answer(429, retry_after=told), ACCEPTED)
    assert await api.run(request()) == "job-1"
    assert sum(script.sleeps) == pytest.approx(waited)


async def test_a_wait_that_is_no_number_is_not_waited_for() -> None:
    """NaN is a float, and slept for ever or not at all."""
    api, script = client(answer(429, retry_after="nan"), ACCEPTED)
    assert await api.run(request()) == "job-1"
    assert all(0 < pause < 120 for pause in script.sleeps)


async def test_run_is_repeated_when_no_connection_was_made() -> None:
    api, script = client(NotSent("refused"), ACCEPTED)
    assert await api.run(request()) == "job-1"
    assert len(script.sent) == 2


@pytest.mark.parametrize("unknown", [NoAnswer("timeout"), answer(500), answer(502), answer(524)])
async def test_run_is_never_repeated_when_it_may_have_been_accepted(unknown: Response | Exception) -> None:
    """C3 53: a repeated POST may be a second paid job."""
    api, script = client(unknown, ACCEPTED)
    with pytest.raises(EndpointUnavailable):
        await api.run(request())
    assert len(script.sent) == 1


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([answer(401)], EndpointAuth),
        ([answer(403)], EndpointAuth),
        ([answer(404)], EndpointMissing),
        ([answer(400, {"error": "bad"})], Refused),
        ([answer(413)], Refused),
        ([answer(429)] * 6, RateLimited),
        ([NotSent("dns")] * 6, EndpointUnreachable),
        ([answer(200, {"unexpected": 1})], EndpointUnavailable),
    ],
)
async def test_errors_say_what_is_known(answers: list[Response | Exception], error: type[Exception]) -> None:
    api, script = client(*answers)
    with pytest.raises(error):
        await api.run(request())
    assert not script.answers, "every answer was used"


async def test_status_and_cancel_are_repeated_after_anything() -> None:
    api, _ = client(
        NoAnswer("reset"), answer(503), answer(429), answer(200, {"id": "j", "status": "COMPLETED", "output": {"outcome": "won"}})
    )
    assert await api.status("j") == JobStatus("COMPLETED", "won")
    api, script = client(NoAnswer("reset"), answer(200, {"id": "j", "status": "CANCELLED"}))
    await api.cancel("j")
    assert script.sent[-1][:2] == ("POST", "http://runpod.invalid/v2/ep1/cancel/j")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "j", "status": "IN_QUEUE"}, JobStatus("IN_QUEUE")),
        ({"id": "j", "status": "IN_PROGRESS", "workerId": "w", "output": "progress"}, JobStatus("IN_PROGRESS", None, None, "w")),
        ({"id": "j", "status": "COMPLETED"}, JobStatus("COMPLETED")),  # C3 47: an output over the limit is dropped
        ({"id": "j", "status": "COMPLETED", "output": [1, 2]}, JobStatus("COMPLETED")),
        ({"id": "j", "status": "FAILED", "error": {"error_type": "X"}}, JobStatus("FAILED", None, '{"error_type":"X"}')),
    ],
)
async def test_status_is_read_whatever_the_output_is(body: Any, status: JobStatus) -> None:
    api, _ = client(answer(200, body))
    assert await api.status("j") == status


async def test_an_unknown_job_has_no_status_and_can_be_cancelled() -> None:
    api, _ = client(answer(404), answer(404), answer(400))
    assert (await api.status("j")).status is None
    await api.cancel("j")
    await api.cancel("j")


async def test_health_reads_all_six_gauges() -> None:
    workers = {"idle": 1, "initializing": 2, "ready": 1, "running": 3, "throttled": 4, "unhealthy": 5}
    api, _ = client(answer(200, {"jobs": {"completed": 9, "inQueue": 6, "inProgress": 7}, "workers": workers}), answer(200, {"jobs": {}}))
    health = await api.health()
    assert (health.in_queue, health.in_progress, health.live, health.unhealthy) == (6, 7, 10, 5)
    assert (await api.health()).empty


async def test_errors_carry_no_secret_even_when_runpod_echoes_the_request() -> None:
    api, _ = client(answer(400, {"echo": f"{SECRETS.api_key} worker-secret worker-id " + "x" * 1000}))
    with pytest.raises(Refused) as caught:
        await api.run(request())
    said = str(caught.value) + repr(api)
    assert not [secret for secret in SECRETS.values if secret in said]
    assert len(said) < 500


async def test_closing_closes_the_connections() -> None:
    api, script = client()
    await api.close()
    assert script.closed


async def test_nobody_listens_is_certain_and_says_so(unused_tcp_port: int) -> None:
    transport = AiohttpTransport()
    try:
        with pytest.raises(NotSent):
            await transport.request("GET", f"http://127.0.0.1:{unused_tcp_port}/", {}, None, 5.0)
    finally:
        await transport.close()


async def test_against_the_emulator_a_dropped_answer_is_unknown_and_the_job_is_there(tmp_path: Path) -> None:
    async def drop(message: Message) -> Action:
        return Action(drop=message.kind == "response" and message.operation == "run")

    async with night(tmp_path, rate=1.0, workers_max=1) as found:
        api = found.jobs(timeout_s=5.0)
        before = await api.health()
        with found.emulator.seam.hook(drop), pytest.raises(EndpointUnavailable):
            await api.run(request())
        after = await api.health()
        assert after.in_queue + after.in_progress == before.in_queue + before.in_progress + 1


async def test_against_the_emulator_errors_are_ours(tmp_path: Path) -> None:
    async with night(tmp_path, rate=1.0) as found:
        wrong = RunPodClient(api_url=found.emulator.base_url, endpoint_id="nope", api_key=found.emulator.api_key)
        refused = RunPodClient(api_url=found.emulator.base_url, endpoint_id="ep1", api_key="wrong")
        try:
            with pytest.raises(EndpointMissing):
                await wrong.run(request())
            with pytest.raises(EndpointAuth):
                await refused.run(request())
            assert (await found.jobs().status("no-such-job")).status is None
        finally:
            await wrong.close()
            await refused.close()
    assert issubclass(EndpointAuth, NightbatchError)


@asynccontextmanager
async def answering(*pieces: bytes, close: bool = True) -> AsyncIterator[tuple[RunPodClient, list[bytes]]]:
    """A client of a server that answers every request with these bytes; what the server was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            heard.append(head)
            if b"Content-Length: " in head:
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if not close:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has had enough
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v2"
    made = RunPodClient(api_url=url, endpoint_id="ep", api_key="the-api-key", tries=1, timeout_s=20.0)
    try:
        yield made, heard
    finally:
        await made.close()
        server.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<html></html>\r\n",),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"id":',),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00[",),
        (b"\x16\x03\x01 this is not HTTP",),
        (b"",),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\n\r\n", *[b"[" * (1 << 20)] * 65),
    ],
    ids=["html", "half", "not-gzip", "length", "not-utf8", "tls", "nothing", "500", "endless"],
)
async def test_an_answer_that_is_none_of_runpods_leaves_it_unknown_whether_the_job_was_accepted(pieces: tuple[bytes, ...]) -> None:
    async with answering(*pieces) as (api, _):
        for call in (api.run(request()), api.status("job"), api.health()):
            with pytest.raises(EndpointUnavailable):
                await call


async def test_a_redirect_is_refused_and_the_key_goes_nowhere_else() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (other, stolen):
        to = repr(other).removeprefix("RunPodClient(").removesuffix(")")
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {to}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
        async with answering(moved) as (api, _):
            for call in (api.run(request()), api.status("job"), api.cancel("job"), api.health()):
                with pytest.raises(Refused, match="another address"):
                    await call
        assert stolen == []
