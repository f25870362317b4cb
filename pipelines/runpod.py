"""pipelines: RunPod's data plane, as far as a run needs it: run, status, cancel, health. Touches the network through `Transport` only.

Facts: docs/serverless/endpoints/operation-reference and send-requests (paths, bodies, rate limits), workers/overview (health). The limits
are per user, endpoint and operation, in windows of 10 s: the client keeps below them by itself, because a 429 storm delays everybody.

What an answer proves decides about retries: 429, another 4xx and a connection that never opened are certain (the job was not accepted);
no answer and 5xx are not. `run` is repeated only after certain ones, because RunPod has no idempotency key: a repeated POST may be a second
paid job.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import aiohttp
import msgspec

from contract.errors import EndpointAuth, EndpointError, EndpointMissing, EndpointUnavailable, EndpointUnreachable, RateLimited, Refused
from contract.models import JobRequest, encode
from contract.net import retry_after
from contract.protocol import Health, JobStatus

WINDOW_S: Final = 10.0
WINDOW_MARGIN_S: Final = 0.2
"""Requests arrive at RunPod later than they were sent, and not in equal steps."""
TIMEOUT_S: Final = 30.0
MOST_TOLD_S: Final = 120.0
"""The longest wait that an answer can ask for."""
MAX_ERROR_TEXT: Final = 200
MAX_ANSWER: Final = 64 << 20
"""Bytes. A job's output has at most 20 MB (send-requests.mdx); what is longer is not RunPod's."""
REDACTED: Final = "<hidden>"


@dataclass(frozen=True)
class Limit:
    """`per_window` requests in any 10 s, `concurrent` at once."""

    per_window: int
    concurrent: int


LIMITS: Final[Mapping[str, Limit]] = {
    "run": Limit(1000, 200),
    "status": Limit(2000, 400),
    "cancel": Limit(100, 20),
    "health": Limit(20, 2),
}
"""send-requests.mdx, Rate limits. /health has no documented limit; ours is modest."""


# --- transport -----------------------------------------------------------------------------------------------------------------------


class NotSent(Exception):
    """The request certainly did not leave this machine: no connection was made."""


class NoAnswer(Exception):
    """The request may have arrived; no whole answer came back."""


@dataclass(frozen=True)
class Response:
    """An HTTP answer. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """One HTTP exchange. Raises NotSent or NoAnswer."""

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Response: ...

    async def close(self) -> None: ...


class AiohttpTransport:
    """aiohttp with kept-alive connections; the session opens with the first request, in the loop that makes it."""

    def __init__(self, *, connections: int = 256) -> None:
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Response:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=15.0)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(10.0, timeout_s))
        try:
            async with self._session.request(method, url, headers=headers, data=body, timeout=timeout, allow_redirects=False) as answer:
                data = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise NoAnswer(f"more than {MAX_ANSWER >> 20} MB")
                return Response(answer.status, {k.lower(): v for k, v in answer.headers.items()}, bytes(data))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSent(type(error).__name__) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoAnswer(type(error).__name__) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


# --- rate --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timer:
    """This machine's time, as the client uses it; tests bring their own."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Pacer:
    """At most `limit.per_window` requests in any window of 10 s and `limit.concurrent` at once.

    A log of the last requests, not a bucket: buckets let burst and refill together pass a windowed limit (measured in
    docs/protocol-notes.md). A request counts from its start until 10 s after its answer: RunPod counts it at some moment between the two,
    and on a busy machine that moment may be seconds after the start (measured: 0.6 % answered 429 when starts were counted).
    """

    def __init__(self, limit: Limit, timer: Timer) -> None:
        self._limit = limit
        self._timer = timer
        self._expiring: deque[float] = deque()
        """Until when each answered request counts."""
        self._open = 0
        self._held_until = 0.0
        self._gate = asyncio.Semaphore(limit.concurrent)
        self._turn = asyncio.Lock()

    def hold(self, seconds: float) -> None:
        """RunPod said 429: nobody starts before then."""
        self._held_until = max(self._held_until, self._timer.monotonic() + seconds)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a turn, in order of arrival; the body of the context is the request."""
        async with self._gate:
            async with self._turn:
                while (wait := self._wait()) > 0:
                    await self._timer.sleep(wait)
                self._open += 1
            try:
                yield
            finally:
                self._open -= 1
                self._expiring.append(self._timer.monotonic() + WINDOW_S + WINDOW_MARGIN_S)

    def _wait(self) -> float:
        now = self._timer.monotonic()
        wait = self._held_until - now
        while self._expiring and self._expiring[0] <= now:
            self._expiring.popleft()
        if len(self._expiring) + self._open >= self._limit.per_window:
            wait = max(wait, self._expiring[0] - now if self._expiring else WINDOW_MARGIN_S)
        return wait


# --- the client ----------------------------------------------------------------------------------------------------------------------


class JobsApi(Protocol):
    """What following a run needs of RunPod. `pipelines.runpod.RunPodClient` is it over HTTP; tests bring others."""

    async def run(self, request: JobRequest) -> str:
        """Submit; the job's id. Raises Refused, RateLimited, EndpointAuth, EndpointMissing, EndpointUnreachable (certainly not
        accepted), or EndpointUnavailable (not known)."""

    async def status(self, job_id: str) -> JobStatus:
        """Raises EndpointError where RunPod does not say."""

    async def cancel(self, job_id: str) -> None:
        """Idempotent; a job that RunPod no longer knows is cancelled enough."""

    async def health(self) -> Health:
        """Raises EndpointError where RunPod does not say."""

    async def close(self) -> None: ...


@dataclass
class Counters:
    """What the client did, for benchmarks and the report: answers by operation and status."""

    answers: dict[tuple[str, int], int] = field(default_factory=dict)

    def count(self, operation: str, status: int) -> None:
        self.answers[operation, status] = self.answers.get((operation, status), 0) + 1

    def share(self, operation: str, status: int) -> float:
        every = sum(n for (name, _), n in self.answers.items() if name == operation)
        return self.answers.get((operation, status), 0) / every if every else 0.0


class _JobAnswer(msgspec.Struct, frozen=True):
    id: str


class _StatusAnswer(msgspec.Struct, frozen=True):
    status: str
    output: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None
    workerId: str | None = None


class _JobGauges(msgspec.Struct, frozen=True):
    inQueue: int = 0
    inProgress: int = 0


class _WorkerGauges(msgspec.Struct, frozen=True):
    idle: int = 0
    initializing: int = 0
    ready: int = 0
    running: int = 0
    throttled: int = 0
    unhealthy: int = 0


class _HealthAnswer(msgspec.Struct, frozen=True):
    jobs: _JobGauges = _JobGauges()
    workers: _WorkerGauges = _WorkerGauges()


class _Raised(msgspec.Struct, frozen=True):
    error_message: str | None = None


class _Outcome(msgspec.Struct, frozen=True):
    outcome: str | None = None


class RunPodClient:
    """The data plane of one endpoint."""

    def __init__(
        self,
        *,
        api_url: str,
        endpoint_id: str,
        api_key: str,
        transport: Transport | None = None,
        limits: Mapping[str, Limit] = LIMITS,
        timer: Timer | None = None,
        rng: random.Random | None = None,
        tries: int = 6,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._base = f"{api_url.rstrip('/')}/{endpoint_id}"
        self._endpoint = endpoint_id
        self._key = api_key
        self._transport: Transport = transport or AiohttpTransport()
        self._timer = timer or Timer()
        self._rng = rng or random.Random()
        self._tries = tries
        self._timeout_s = timeout_s
        self._pacers = {name: Pacer(limit, self._timer) for name, limit in limits.items()}
        self.counters = Counters()

    def __repr__(self) -> str:
        return f"RunPodClient({self._base})"

    async def run(self, request: JobRequest) -> str:
        """POST /run. Repeated only after 429 and after connections that never opened."""
        hidden = (request.s3Config.accessSecret, request.s3Config.accessId)
        answer = await self._call("run", "POST", "/run", encode(request), repeat_unknown=False, hidden=hidden)
        if answer.status >= 300:
            raise self._refusal("run", answer, hidden)
        try:
            return msgspec.json.decode(answer.body, type=_JobAnswer).id
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise EndpointUnavailable("RunPod accepted a job and did not say its id.", where=f"{self._base}/run") from None

    async def status(self, job_id: str) -> JobStatus:
        """GET /status/{id}. 404: the job is unknown, expired or deleted at its ttl."""
        answer = await self._call("status", "GET", f"/status/{job_id}", None)
        if answer.status == 404:
            return JobStatus(None)
        if answer.status >= 300:
            raise self._refusal("status", answer)
        try:
            found = msgspec.json.decode(answer.body, type=_StatusAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise EndpointUnavailable("RunPod's answer is not a job's status.", where=f"{self._base}/status") from None
        return JobStatus(found.status, _outcome(found.output), self._text(_sentence(found.error)), found.workerId)

    async def cancel(self, job_id: str) -> None:
        """POST /cancel/{id}."""
        answer = await self._call("cancel", "POST", f"/cancel/{job_id}", b"")
        if answer.status >= 300 and answer.status not in (400, 404):  # 400: it is over already
            raise self._refusal("cancel", answer)

    async def health(self) -> Health:
        """GET /health."""
        answer = await self._call("health", "GET", "/health", None)
        if answer.status >= 300:
            raise self._refusal("health", answer)
        try:
            found = msgspec.json.decode(answer.body, type=_HealthAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise EndpointUnavailable("RunPod's answer is not an endpoint's health.", where=f"{self._base}/health") from None
        w = found.workers
        return Health(
            in_queue=found.jobs.inQueue,
            in_progress=found.jobs.inProgress,
            idle=w.idle,
            initializing=w.initializing,
            ready=w.ready,
            running=w.running,
            throttled=w.throttled,
            unhealthy=w.unhealthy,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _call(
        self, operation: str, method: str, path: str, body: bytes | None, *, repeat_unknown: bool = True, hidden: tuple[str, ...] = ()
    ) -> Response:
        """One operation with its retries. Returns any answer but 429 and 5xx; those become errors when the tries are used up."""
        headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        pacer = self._pacers[operation]
        url = self._base + path
        failure: EndpointError = EndpointUnavailable("RunPod was not asked.", where=url)
        for attempt in range(self._tries):
            try:
                async with pacer.slot():
                    answer = await self._transport.request(method, url, headers, body, self._timeout_s)
            except NotSent as error:
                failure = EndpointUnreachable(f"no connection to RunPod ({error}).", where=url, fix="Is the network up?")
                await self._pause(attempt)
                continue
            except NoAnswer as error:
                failure = EndpointUnavailable(
                    f"RunPod did not answer ({error}); the request may have been accepted.", where=url, fix="Nothing is lost: resume later."
                )
                if not repeat_unknown:
                    raise failure from None
                await self._pause(attempt)
                continue
            self.counters.count(operation, answer.status)
            if answer.status == 429:
                # RunPod documents none; proxies before it may send it.
                told = retry_after(answer.headers.get("retry-after"))
                told = None if told is None else min(told, MOST_TOLD_S)
                failure = RateLimited(f"RunPod limits the rate of /{operation}.", retry_after_s=told, where=url)
                pacer.hold(told if told is not None else self._backoff(attempt))
                continue
            if answer.status >= 500:
                failure = EndpointUnavailable(f"RunPod answered {answer.status}.", where=url)
                if not repeat_unknown:
                    raise failure
                await self._pause(attempt)
                continue
            return answer
        raise failure

    async def _pause(self, attempt: int) -> None:
        await self._timer.sleep(self._backoff(attempt))

    def _backoff(self, attempt: int) -> float:
        """0.5 s, doubling, at most 15 s, with full jitter above a fifth of it."""
        most = min(15.0, 0.5 * 2**attempt)
        jittered: float = most * self._rng.uniform(0.2, 1.0)
        return jittered

    def _refusal(self, operation: str, answer: Response, hidden: tuple[str, ...] = ()) -> EndpointError:
        where = f"{self._base}/{operation}"
        if answer.status in (401, 403):
            return EndpointAuth(
                f"RunPod refuses the API key ({answer.status}).", where=where, fix="Check RUNPOD_API_KEY and its permissions."
            )
        if answer.status == 404:
            return EndpointMissing(f"RunPod knows no endpoint {self._endpoint}.", where=where, fix="Check the stack's endpoint id.")
        if answer.status < 400:
            return Refused(
                f"RunPod's address answers {answer.status}: it sends to another address, where the API key is not sent.",
                where=where,
                fix="Check the stack's api_url; is a proxy or a login page in between?",
            )
        said = self._text(answer.body.decode("utf-8", "replace"), hidden) or "no reason given"
        return Refused(f"RunPod refused /{operation} ({answer.status}): {said}", where=where)

    def _text(self, value: Any, hidden: tuple[str, ...] = ()) -> str | None:
        """RunPod's words, short and without secrets: an error may echo what was sent."""
        if value is None:
            return None
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for secret in (self._key, *hidden):
            if secret:
                text = text.replace(secret, REDACTED)
        return " ".join(text.split())[:MAX_ERROR_TEXT]


def _outcome(output: msgspec.Raw) -> str | None:
    """The outcome in a worker's summary; None where the output is anything else."""
    try:
        return msgspec.json.decode(output, type=_Outcome).outcome
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _sentence(error: Any) -> Any:
    """What a person needs of a job's error: of an exception that the SDK caught it is JSON with a traceback, and the message is enough."""
    if not isinstance(error, str) or not error.startswith("{"):
        return error
    try:
        return msgspec.json.decode(error, type=_Raised).error_message or error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return error
