"""emulator: RunPod's HTTP, both planes, and an admin side of its own under /_emulator/.

May touch: sockets. Data plane for clients: `/v2/{endpoint}/run, runsync, status, stream, cancel, retry, purge-queue, health, requests`.
Worker plane for the SDK: `job-take, job-take-batch, job-stop, job-done, job-stream, ping`. Every message passes the seam (faults.py).
What RunPod does not document is a guess and says so where it stands: the body of errors, the shape of /requests.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from contract.errors import UsageError
from emulator import jobs
from emulator.broker import Broker
from emulator.clock import Clock
from emulator.faults import PASS, Message, Seam
from emulator.jobs import Job, Kind, Status
from emulator.limits import RateLimiter
from emulator.state import State
from emulator.workers import Fleet, Worker, WorkerState

SYNC_WAIT_MS: Final = 90_000
SYNC_WAIT_RANGE_MS: Final = (1_000, 300_000)
"""/runsync?wait (operation-reference); what is outside is brought to the nearest end, which is a guess."""
_STRANGER_HOLD_S: Final = 1.0
"""Real seconds before a worker that is not known, or that is to leave, gets its answer: the SDK asks again at once."""
_BODY_LIMIT: Final = 1 << 30
"""Of what is read at all; results over RunPod's limit must be read to be refused as RunPod does."""

Handler = Callable[["Call"], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Endpoint:
    """One endpoint and all that belongs to it."""

    broker: Broker
    fleet: Fleet
    limiter: RateLimiter


@dataclass(frozen=True, slots=True)
class Call:
    """One request, past authentication."""

    request: web.Request
    endpoint: Endpoint
    operation: str
    path: tuple[str, ...]
    """What stands in the URL after the operation."""
    body: bytes

    @property
    def endpoint_id(self) -> str:
        return self.endpoint.broker.endpoint


class Refusal(Exception):
    """Becomes an error answer. Data-plane errors have no documented shape; clients must treat the body as opaque."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error


class Server:
    """The HTTP surface over the endpoints."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        clock: Clock,
        seam: Seam,
        state: State,
        api_key: str,
        worker_key: str,
        long_poll_s: float,
        edge_timeout_s: float,
        forwarded: tuple[str, ...],
        admin: Callable[[], dict[str, Any]],
        reconfigure: Callable[[str, dict[str, Any]], None],
        first_routes: Callable[[web.UrlDispatcher], None] = lambda router: None,
    ) -> None:
        """`endpoints` by id, as they are at each request. `first_routes` come before those here."""
        self._endpoints = endpoints
        self._clock = clock
        self._seam = seam
        self._state = state
        self._api_key = api_key.encode()
        self._worker_key = worker_key.encode()
        self._long_poll_s = long_poll_s
        self._edge_timeout_s = edge_timeout_s
        self._forwarded = forwarded
        self._admin = admin
        self._reconfigure = reconfigure
        self._first_routes = first_routes
        self._data: dict[str, tuple[str, int, Handler]] = {
            "run": ("POST", 0, self._run),
            "runsync": ("POST", 0, self._runsync),
            "status": ("GET", 1, self._status),
            "stream": ("GET", 1, self._stream),
            "cancel": ("POST", 1, self._cancel),
            "retry": ("POST", 1, self._retry),
            "purge-queue": ("POST", 0, self._purge),
            "health": ("GET", 0, self._health),
            "requests": ("GET", 0, self._requests),
        }
        self._worker: dict[str, tuple[str, int, Handler]] = {
            "job-take": ("GET", 1, self._job_take),
            "job-take-batch": ("GET", 1, self._job_take),
            "job-stop": ("GET", 1, self._job_stop),
            "job-done": ("POST", 2, self._job_done),
            "job-stream": ("POST", 2, self._job_stream),
            "ping": ("GET", 1, self._ping),
        }
        self.requests = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_LIMIT)
        self._first_routes(app.router)
        app.router.add_route("*", "/v2/{endpoint}/{operation}", self._entry)
        app.router.add_route("*", "/v2/{endpoint}/{operation}/{rest:.+}", self._entry)
        app.router.add_get("/_emulator/health", self._admin_health)
        app.router.add_get("/_emulator/state", self._admin_state)
        app.router.add_patch("/_emulator/endpoints/{endpoint}", self._admin_patch)
        return app

    # --- the way of every request ---------------------------------------------------------------------------------

    async def _entry(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        operation = request.match_info["operation"]
        endpoint_id = request.match_info["endpoint"]
        rest = request.match_info.get("rest", "")
        path = tuple(rest.split("/")) if rest else ()
        if not self._seam.active:
            return await self._answer(request, endpoint_id, operation, path)

        on_worker_plane = operation in self._worker
        about = Message(
            "request",
            endpoint_id,
            operation,
            job=path[-1] if path and (not on_worker_plane or len(path) == 2) else None,
            worker=path[0] if path and on_worker_plane else None,
        )
        action = await self._seam.passing(about)
        if action.drop:
            return hang_up(request)
        if action.answer is not None:
            return _error(action.answer, "made by a fault")
        response = await self._answer(request, endpoint_id, operation, path)
        for _ in range(action.copies - 1):
            response = await self._answer(request, endpoint_id, operation, path)
        after = await self._seam.passing(
            Message("response", endpoint_id, operation, job=about.job, worker=about.worker, status=response.status)
        )
        if after.drop:
            return hang_up(request)
        return response if after.answer is None else _error(after.answer, "made by a fault")

    async def _answer(self, request: web.Request, endpoint_id: str, operation: str, path: tuple[str, ...]) -> web.StreamResponse:
        try:
            return await self._handle(request, endpoint_id, operation, path)
        except Refusal as refusal:
            return _error(refusal.status, refusal.error)
        except UsageError as error:
            return _error(400, str(error))

    async def _handle(self, request: web.Request, endpoint_id: str, operation: str, path: tuple[str, ...]) -> web.StreamResponse:
        on_worker_plane = operation in self._worker
        self._authorize(request, on_worker_plane)
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None:
            raise Refusal(404, "no such endpoint")
        found = (self._worker if on_worker_plane else self._data).get(operation)
        if found is None or len(path) != found[1]:
            raise Refusal(404, "no such operation")
        method, _, handler = found
        if request.method != method:
            response = _error(405, f"{operation} is {method}")
            response.headers["Allow"] = method
            return response
        if on_worker_plane:
            return await handler(Call(request, endpoint, operation, path, await request.read()))

        running = endpoint.fleet.states()[WorkerState.RUNNING] if endpoint.limiter.scales_with_workers else 0
        if not endpoint.limiter.admit(operation, self._clock.time(), running):
            return _error(429, "too many requests")
        try:
            return await handler(Call(request, endpoint, operation, path, await request.read()))
        finally:
            endpoint.limiter.release(operation)

    def _authorize(self, request: web.Request, on_worker_plane: bool) -> None:
        """The key, with or without `Bearer`. A worker's key opens the worker plane only."""
        given = request.headers.get("Authorization", "")
        if given[:7].lower() == "bearer ":
            given = given[7:]
        key = given.strip().encode("utf-8", "surrogateescape")
        if hmac.compare_digest(key, self._api_key) or (on_worker_plane and hmac.compare_digest(key, self._worker_key)):
            return
        raise Refusal(401, "unauthorized")

    def _job(self, call: Call) -> Job:
        job = call.endpoint.broker.get(call.path[-1], self._clock.time())
        if job is None:
            raise Refusal(404, "no such job")
        return job

    async def _written(self, status: int, value: Any) -> web.Response:
        """Answer when what was changed is on disk."""
        await self._state.durable()
        return _json(status, value)

    # --- data plane -----------------------------------------------------------------------------------------------

    def _submit(self, call: Call, kind: Kind) -> Job:
        if len(call.body) > jobs.PAYLOAD_LIMIT[kind]:
            raise Refusal(400, f"the request has {len(call.body)} bytes, {jobs.PAYLOAD_LIMIT[kind]} are allowed")
        return call.endpoint.broker.submit(call.body, kind, self._clock.time())

    async def _run(self, call: Call) -> web.Response:
        job = self._submit(call, "run")
        return await self._written(200, {"id": job.id, "status": job.status.value})

    async def _runsync(self, call: Call) -> web.Response:
        low, high = SYNC_WAIT_RANGE_MS
        wait_s = min(max(_integer(call.request, "wait", SYNC_WAIT_MS), low), high) / 1000
        job = self._submit(call, "sync")
        waiter = call.endpoint.broker.job_waiter(job.id)
        cut = wait_s > self._edge_timeout_s
        await asyncio.wait({waiter}, timeout=self._clock.real_seconds(min(wait_s, self._edge_timeout_s)))
        if not waiter.done():
            waiter.cancel()
            if cut:
                raise Refusal(524, "a timeout occurred")
        now = call.endpoint.broker.get(job.id, self._clock.time()) or job
        if not now.status.terminal:
            return await self._written(200, {"id": now.id, "status": now.status.value})
        return await self._written(200, jobs.status_view(now))

    async def _status(self, call: Call) -> web.Response:
        job = self._job(call)
        ttl_ms = _integer(call.request, "ttl", 0)
        if ttl_ms > 0:
            job = call.endpoint.broker.reset_ttl(job, ttl_ms, self._clock.time())
            return await self._written(200, jobs.status_view(job))
        return _json(200, jobs.status_view(job))

    async def _stream(self, call: Call) -> web.Response:
        job = self._job(call)
        chunks = call.endpoint.broker.drain_stream(job)
        return _json(200, {"status": job.status.value, "stream": [msgspec.Raw(chunk) for chunk in chunks]})

    async def _cancel(self, call: Call) -> web.Response:
        job = call.endpoint.broker.cancel(self._job(call), self._clock.time())
        return await self._written(200, {"id": job.id, "status": job.status.value})

    async def _retry(self, call: Call) -> web.Response:
        job = call.endpoint.broker.retry(self._job(call), self._clock.time())
        return await self._written(200, {"id": job.id, "status": job.status.value})

    async def _purge(self, call: Call) -> web.Response:
        removed = call.endpoint.broker.purge(self._clock.time())
        return await self._written(200, {"removed": removed, "status": "completed"})

    async def _health(self, call: Call) -> web.Response:
        return _json(200, health(call.endpoint))

    async def _requests(self, call: Call) -> web.Response:
        """RunPod names /requests only in its table of rate limits; this shape is a guess."""
        listed = sorted(call.endpoint.broker.jobs(), key=lambda job: job.seq)
        return _json(200, {"requests": [{"id": job.id, "status": job.status.value} for job in listed if not job.status.terminal]})

    # --- worker plane ---------------------------------------------------------------------------------------------

    async def _job_take(self, call: Call) -> web.StreamResponse:
        """job-take (one job, an object) and job-take-batch (up to batch_size, an array): a long poll, 204 when there was nothing."""
        single = call.operation == "job-take"
        wanted = 1 if single else max(1, _integer(call.request, "batch_size", 1))
        worker = await self._known_worker(call)
        broker = call.endpoint.broker
        until = self._clock.time() + self._long_poll_s
        while not worker.stopping:
            taken = broker.take(worker.id, wanted, self._clock.time()) if worker.may_work else []
            if taken:
                return await self._deliver(call, taken, single)
            left_s = until - self._clock.time()
            if left_s <= 0:
                break
            poll = broker.taker() if worker.may_work else asyncio.get_running_loop().create_future()
            worker.polls.add(poll)
            try:
                await asyncio.wait({poll}, timeout=self._clock.real_seconds(left_s))
            except asyncio.CancelledError:
                # the worker hung up: a job that it had been called for goes to the next in the line
                worker.polls.discard(poll)
                broker.leave(poll)
                raise
            worker.polls.discard(poll)
            if not poll.done() or not worker.may_work:
                broker.leave(poll)
        return web.Response(status=204)

    async def _known_worker(self, call: Call) -> Worker:
        worker = call.endpoint.fleet.polled(call.path[0])
        if worker is None or worker.stopping:
            await asyncio.sleep(_STRANGER_HOLD_S)
            raise Refusal(404 if worker is None else 400, "not a worker of this endpoint")
        return worker

    async def _deliver(self, call: Call, taken: list[Job], single: bool) -> web.StreamResponse:
        await self._state.durable()
        given: list[dict[str, object]] = []
        for job in taken:
            action = PASS
            if self._seam.active:
                action = await self._seam.passing(Message("delivery", call.endpoint_id, call.operation, job=job.id, worker=call.path[0]))
            given += [jobs.delivery(job, self._forwarded)] * (0 if action.drop else action.copies)
        if not given:
            return hang_up(call.request)
        return _json(200, given[0] if single else given)

    async def _job_stop(self, call: Call) -> web.Response:
        worker = await self._known_worker(call)
        broker = call.endpoint.broker
        stops = broker.stops_for(worker.id)
        if not stops:
            waiter = broker.stop_waiter(worker.id)
            await asyncio.wait({waiter}, timeout=self._clock.real_seconds(self._long_poll_s))
            waiter.cancel()
            stops = broker.stops_for(worker.id)
        return _json(200, {"jobsToStop": stops}) if stops else web.Response(status=204)

    async def _job_done(self, call: Call) -> web.Response:
        worker, job_id = call.path
        status = call.endpoint.broker.done(worker, job_id, call.body, self._clock.time())
        return await self._written(status, {})

    async def _job_stream(self, call: Call) -> web.Response:
        worker, job_id = call.path
        return _json(call.endpoint.broker.stream(worker, job_id, call.body, self._clock.time()), {})

    async def _ping(self, call: Call) -> web.Response:
        query = call.request.query
        worker = call.path[0]
        if query.get("status") == "unhealthy":
            call.endpoint.fleet.fell_ill(worker, f"{query.get('check', 'check')}: {query.get('reason', '')}")
        else:
            named = query.get("job_id", "")
            call.endpoint.fleet.heard(worker)
            call.endpoint.broker.ping(worker, named.split(",") if named else (), self._clock.time())
        return _json(200, {})

    # --- the emulator's own side ----------------------------------------------------------------------------------

    async def _admin_health(self, request: web.Request) -> web.Response:
        return _json(200, {"ok": True})

    async def _admin_state(self, request: web.Request) -> web.Response:
        try:
            self._authorize(request, False)
        except Refusal as refusal:
            return _error(refusal.status, refusal.error)
        return _json(200, self._admin())

    async def _admin_patch(self, request: web.Request) -> web.Response:
        """Change an endpoint's settings: a JSON object with fields of EndpointConfig."""
        try:
            self._authorize(request, False)
            changes = msgspec.json.decode(await request.read(), type=dict[str, Any])
            self._reconfigure(request.match_info["endpoint"], changes)
        except Refusal as refusal:
            return _error(refusal.status, refusal.error)
        except (UsageError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _error(400, str(error))
        return _json(200, {"ok": True})


def health(endpoint: Endpoint) -> dict[str, dict[str, int]]:
    """The body of /health, with the six worker counters that were observed; `ready` are those that wait for work, as `idle` are."""
    broker, states = endpoint.broker, endpoint.fleet.states()
    return {
        "jobs": {
            "completed": broker.completed,
            "failed": broker.failed,
            "inProgress": broker.count(Status.IN_PROGRESS),
            "inQueue": broker.count(Status.IN_QUEUE),
            "retried": broker.retried,
        },
        "workers": {
            "idle": states[WorkerState.IDLE],
            "initializing": states[WorkerState.INITIALIZING],
            "ready": states[WorkerState.IDLE],
            "running": states[WorkerState.RUNNING] + states[WorkerState.OUTDATED],
            "throttled": states[WorkerState.THROTTLED],
            "unhealthy": states[WorkerState.UNHEALTHY],
        },
    }


def _integer(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise Refusal(400, f"{name} must be a whole number") from None


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return _json(status, {"error": text})


def hang_up(request: web.Request) -> web.StreamResponse:
    """End the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
