"""emulator: REST v2 over HTTP, on the same server as the data plane: keys, rate limits, faults, routes.

May touch: sockets. Keys: `Bearer` only (REST v2 takes no bare key): 401 without, 403 for a worker's key and for writing with the read-only
one. Every message passes the seam; `Message.operation` is the method and the route ("PATCH /v2/serverless/{id}"), `endpoint` the id in it.
"""

from __future__ import annotations

import asyncio
import hmac
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from aiohttp import web

from emulator.clock import Clock
from emulator.control import catalog
from emulator.control.account import Account
from emulator.control.logs import Line, Source, WorkerLogs
from emulator.control.problem import CONTENT_TYPE, Problem, invalid, not_found
from emulator.control.quota import Quota
from emulator.control.records import rfc3339
from emulator.control.usage import Usage, parse_rfc3339
from emulator.faults import Action, Message, Seam
from emulator.server import hang_up
from emulator.state import State

WORDS: Final = ("serverless", "templates", "network-volumes", "registries", "catalog", "billing")
"""First segments of REST v2's paths; no endpoint of the data plane can have such an id."""
BODY_LIMIT: Final = 4 << 20
"""Bytes; what RunPod's limit is, it does not say."""
LOG_LOOK_S: Final = 0.2
"""Real seconds between two looks at a log that is followed."""
LOG_COMMENT_S: Final = 15.0
TAIL_DEFAULT: Final = 100
TAIL_MOST: Final = 5000

Handler = Callable[["Call"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request, past its key and quota."""

    request: web.Request
    ids: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.ids[0]

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query

    async def json(self) -> Any:
        """The decoded body. Raises Problem 400 if it is not JSON."""
        too_large = Problem(413, f"request body is larger than {BODY_LIMIT} bytes")
        if (self.request.content_length or 0) > BODY_LIMIT:
            raise too_large
        body = await self.request.read()
        if len(body) > BODY_LIMIT:
            raise too_large
        try:
            body.decode()
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Problem(400, "request body is not valid JSON" if body else "request body is missing") from None


class ControlServer:
    """The routes of REST v2 over an account."""

    def __init__(
        self,
        account: Account,
        *,
        clock: Clock,
        seam: Seam,
        state: State,
        usage: Usage,
        logs: WorkerLogs,
        api_key: str,
        worker_key: str,
        read_only_key: str | None,
        quotas: Mapping[str, int],
    ) -> None:
        self._account = account
        self._clock = clock
        self._seam = seam
        self._state = state
        self._usage = usage
        self._logs = logs
        self._api_key = api_key.encode()
        self._worker_key = worker_key.encode()
        self._read_only_key = None if read_only_key is None else read_only_key.encode()
        self._quota = Quota(quotas)
        self.requests = 0
        made = account
        self._routes: dict[tuple[str, ...], dict[str, Handler]] = {
            ("serverless",): {"GET": _read(made.list_endpoints), "POST": self._create(made.create_endpoint)},
            ("serverless", "{id}"): {
                "GET": _read_one(made.get_endpoint),
                "PATCH": self._update(made.update_endpoint),
                "DELETE": self._delete(made.delete_endpoint),
            },
            ("serverless", "{id}", "workers"): {"GET": _read_one(made.workers)},
            ("serverless", "{id}", "releases"): {"GET": _read_one(made.releases)},
            ("serverless", "{id}", "workers", "{workerId}", "logs"): {"GET": self._worker_logs},
            ("templates",): {"GET": _read(made.list_templates), "POST": self._create(made.create_template)},
            ("templates", "{id}"): {
                "GET": _read_one(made.get_template),
                "PATCH": self._update(made.update_template),
                "DELETE": self._delete(made.delete_template),
            },
            ("network-volumes",): {"GET": _read(made.list_volumes), "POST": self._create_volume},
            ("network-volumes", "{id}"): {
                "GET": _read_one(made.get_volume),
                "PATCH": self._update(made.update_volume),
                "DELETE": self._delete_volume,
            },
            ("registries",): {"GET": _read(made.list_registries), "POST": self._create(made.create_registry)},
            ("registries", "delegations"): {"GET": _read(made.list_delegations), "POST": self._create(made.create_delegation)},
            ("registries", "delegations", "{id}"): {"DELETE": self._delete(made.delete_delegation)},
            ("registries", "{id}"): {"GET": _read_one(made.get_registry), "DELETE": self._delete(made.delete_registry)},
            ("catalog", "gpus"): {"GET": _answer(lambda call: catalog.gpu_types(made.catalog, made.stock, call.query))},
            ("catalog", "gpus", "{id}"): {"GET": _answer(lambda call: catalog.gpu_type(made.catalog, made.stock, call.id, call.query))},
            ("catalog", "cpus"): {"GET": _answer(lambda call: catalog.cpu_types(made.catalog, call.query))},
            ("catalog", "cpus", "{id}"): {"GET": _answer(lambda call: catalog.cpu_type(made.catalog, call.id, call.query))},
            ("catalog", "datacenters"): {"GET": _answer(lambda call: catalog.data_centers(made.catalog, made.stock, call.query))},
            ("catalog", "datacenters", "{id}"): {
                "GET": _answer(lambda call: catalog.data_center(made.catalog, made.stock, call.id, call.query))
            },
            ("catalog", "templates"): {"GET": _answer(lambda call: made.public_templates(call.query.get("source")))},
            ("billing", "serverless"): {"GET": _answer(lambda call: usage.serverless(call.query, clock.time()))},
        }

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Before those of the data plane, whose first segment is any word."""
        for word in WORDS:
            router.add_route("*", f"/v2/{word}", self._entry)
            router.add_route("*", f"/v2/{word}/{{rest:[\\s\\S]*}}", self._entry)  # also a line feed: none of it is the data plane's

    # --- the way of every request ---------------------------------------------------------------------------------

    async def _entry(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        route, ids = self._match(request)
        if not self._seam.active:
            return await self._answer(request, route, ids)
        operation = f"{request.method} /v2/{'/'.join(route)}" if route else f"{request.method} {request.path}"
        about = ids[0] if ids else ""
        action = await self._seam.passing(Message("request", about, operation, worker=ids[1] if len(ids) > 1 else None))
        if action.drop:
            return hang_up(request)
        if action.answer is not None:
            return self._fault(action)
        response = await self._answer(request, route, ids)
        for _ in range(action.copies - 1):
            response = await self._answer(request, route, ids)
        if response.prepared:
            return response  # a stream is under way
        after = await self._seam.passing(Message("response", about, operation, status=response.status))
        if after.drop:
            return hang_up(request)
        return response if after.answer is None else self._fault(after)

    def _match(self, request: web.Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The route that a path fits (empty: none), and the ids in it."""
        segments = tuple(unquote(part) for part in request.rel_url.raw_path.split("/")[2:])
        for route in self._routes:
            if len(route) == len(segments) and all(
                (part.startswith("{") and segment) or part == segment for part, segment in zip(route, segments, strict=True)
            ):
                return route, tuple(segment for part, segment in zip(route, segments, strict=True) if part.startswith("{"))
        return (), ()

    async def _answer(self, request: web.Request, route: tuple[str, ...], ids: tuple[str, ...]) -> web.StreamResponse:
        authenticated = False
        try:
            try:
                self._authorize(request)
                authenticated = True
                response = await self._handle(request, route, ids)
            except Problem as problem:
                response = _problem(problem)
        except Exception as error:
            # a mistake of the emulator's own: RunPod, too, answers 500 rather than to hang up
            response = _problem(Problem(500, f"the emulator failed: {error!r}"))
        if not response.prepared:
            response.headers.update(self._headers(authenticated))
        return response

    async def _handle(self, request: web.Request, route: tuple[str, ...], ids: tuple[str, ...]) -> web.StreamResponse:
        refused = self._quota.admit(self._clock.time())
        if refused is not None:
            window, seconds = refused
            raise Problem(429, f"rate limit exceeded for the {window} window", headers={"Retry-After": str(seconds)})
        if not route:
            raise not_found("no such path")
        methods = self._routes[route]
        handler = methods.get(request.method)
        if handler is None:
            raise Problem(405, "The requested method is not allowed for this path.", headers={"Allow": ", ".join(methods)})
        if request.method != "GET" and self._is(request, self._read_only_key):
            raise Problem(403, "access denied: this key may only read")
        return await handler(Call(request, ids))

    def _authorize(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "")
        if given[:7].lower() != "bearer " or not given[7:].strip():
            raise Problem(401, "missing bearer token")
        if self._is(request, self._worker_key):
            raise Problem(403, "access denied")
        if not (self._is(request, self._api_key) or self._is(request, self._read_only_key)):
            raise Problem(401, "invalid bearer token")

    def _is(self, request: web.Request, key: bytes | None) -> bool:
        given = request.headers.get("Authorization", "")[7:].strip().encode("utf-8", "surrogateescape")
        return key is not None and hmac.compare_digest(given, key)

    def _headers(self, authenticated: bool) -> dict[str, str]:
        limits = self._quota.headers(self._clock.time()) if authenticated else {}
        return {"x-request-id": str(uuid.uuid4()), **limits}

    def _fault(self, action: Action) -> web.Response:
        assert action.answer is not None
        headers = {}
        if action.answer == 429 or action.retry_after_s is not None:
            headers["Retry-After"] = str(1 if action.retry_after_s is None else action.retry_after_s)
        response = _problem(Problem(action.answer, "made by a fault", headers=headers))
        response.headers.update(self._headers(True))
        return response

    # --- operations that change something -------------------------------------------------------------------------

    def _create(self, make: Callable[[Any], dict[str, Any]]) -> Handler:
        async def handler(call: Call) -> web.Response:
            return await self._written(201, make(await call.json()))

        return handler

    def _update(self, change: Callable[[str, Any], dict[str, Any]]) -> Handler:
        async def handler(call: Call) -> web.Response:
            return await self._written(200, change(call.id, await call.json()))

        return handler

    def _delete(self, drop: Callable[[str], None]) -> Handler:
        async def handler(call: Call) -> web.Response:
            drop(call.id)
            return await self._written(204, None)

        return handler

    async def _create_volume(self, call: Call) -> web.Response:
        return await self._written(201, await self._account.create_volume(await call.json()))

    async def _delete_volume(self, call: Call) -> web.Response:
        await self._account.delete_volume(call.id)
        return await self._written(204, None)

    async def _written(self, status: int, value: Any) -> web.Response:
        """Answer when what was changed is on disk."""
        await self._state.durable()
        return web.Response(status=204) if status == 204 else _json(status, value)

    # --- logs -----------------------------------------------------------------------------------------------------

    async def _worker_logs(self, call: Call) -> web.StreamResponse:
        """Server-sent events until the worker has ended or the client hangs up."""
        endpoint, worker = call.ids
        if self._logs.is_live(endpoint, worker) is None:
            self._account.get_endpoint(endpoint)  # 404 for either
            raise not_found()
        source, tail, after = _log_query(call)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "Connection": "keep-alive",
                "X-Accel-Buffering": "no",
                **self._headers(True),
            }
        )
        await response.prepare(call.request)
        lines = self._logs.lines(endpoint, worker, source)
        if after is None:
            lines = lines[-tail:] if tail else []
        else:
            lines = [line for line in lines if line.ts > after]
        shown = after if after is not None else 0.0
        if not lines and after is None:
            shown = self._clock.time()
        idle_s = 0.0
        while True:
            live = self._logs.is_live(endpoint, worker)
            if lines:
                await response.write(b"".join(_event(line) for line in lines))
                shown, idle_s = lines[-1].ts, 0.0
            elif idle_s >= LOG_COMMENT_S:
                await response.write(b": still here\n\n")
                idle_s = 0.0
            if not live:
                break
            await asyncio.sleep(LOG_LOOK_S)
            idle_s += LOG_LOOK_S
            lines = [line for line in self._logs.lines(endpoint, worker, source) if line.ts > shown]
        await response.write_eof()
        return response


def _log_query(call: Call) -> tuple[Source | None, int, float | None]:
    """Source, tail, and the instant after which lines are shown. `Last-Event-ID` goes before `since`, and that before `tail`."""
    errors: list[str] = []
    source: Source | None = None
    match call.query.get("source"):
        case None:
            pass
        case "container":
            source = "container"
        case "system":
            source = "system"
        case _:
            errors.append("source: must be container or system")
    text = call.query.get("tail", str(TAIL_DEFAULT))
    tail = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else -1
    if not 0 <= tail <= TAIL_MOST:
        errors.append(f"tail: must be a whole number from 0 to {TAIL_MOST}")
    after: float | None = None
    last, since = call.request.headers.get("Last-Event-ID"), call.query.get("since")
    for name, value, inclusive in (("Last-Event-ID", last, False), ("since", since if last is None else None, True)):
        if value is None:
            continue
        try:
            # an id may carry a counter behind a slash, as in the OpenAPI file's example
            instant = parse_rfc3339(value.partition("/")[0])
        except ValueError:
            errors.append(f"{name}: must be an RFC 3339 time")
        else:
            after = instant.timestamp() + (-0.5e-6 if inclusive else 0.5e-6)  # lines have whole microseconds
    if errors:
        raise invalid(*errors)
    return source, tail, after


def _event(line: Line) -> bytes:
    ts = rfc3339(line.ts, fraction=True)
    data = msgspec.json.encode({"source": line.source, "line": line.text, "ts": ts})
    return b"id: " + ts.encode() + b"\ndata: " + data + b"\n\n"


def _read(find: Callable[[], dict[str, Any]]) -> Handler:
    return _answer(lambda call: find())


def _read_one(find: Callable[[str], dict[str, Any]]) -> Handler:
    return _answer(lambda call: find(call.id))


def _answer(find: Callable[[Call], dict[str, Any]]) -> Handler:
    async def handler(call: Call) -> web.Response:
        return _json(200, find(call))

    return handler


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _problem(problem: Problem) -> web.Response:
    return web.Response(status=problem.status, body=msgspec.json.encode(problem.body()), content_type=CONTENT_TYPE, headers=problem.headers)
