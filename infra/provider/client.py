"""infra/provider: RunPod's REST v2 over HTTP. Needs aiohttp only: no pulumi, so that doctor, drift and stop work without it.

Facts: the official OpenAPI file (paths, bodies, problem+json, lists wrapped and without pages) and docs/protocol-notes.md. What decides
about repeating a request is what is known of it, not its status alone: a connection that never opened and a 429 prove that nothing
happened; a cut connection, a timeout and a 5xx do not. GET, PATCH (absolute values) and DELETE may be repeated anyway; a POST may not: REST
v2 has no idempotency key, and a repeated create is a second paid resource. Then `Unreachable.maybe_done` tells the caller to look first.

The API key goes into one header and nowhere else: not into a message, not into a URL.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import aiohttp
from aiohttp.http import HttpProcessingError

from contract.errors import UsageError
from contract.net import retry_after
from infra.provider.errors import Denied, NotFound, RestError, TooManyRequests, Unreachable
from infra.provider.hide import CUT, hider, one_line

API_BASE_URL: Final = "https://api.runpod.io"
"""REST v2's host (OpenAPI `servers`); the job data plane is another host, api.runpod.ai."""
BASE_URL_ENV: Final = "RUNPOD_API_BASE_URL"
API_KEY_ENV: Final = "RUNPOD_API_KEY"
ATTEMPT_S: Final = 30.0
"""Seconds for one request, connecting included."""
CONNECT_S: Final = 10.0
SILENCE_S: Final = 60.0
"""How long RunPod may say nothing at all, in all requests of a client together, before it counts as out of reach: a wrong address or a
cable that is not plugged in does not mend itself while somebody waits. Once it has answered, a whole deadline is waited."""
PROBES: Final = 4
"""So often in that time it is then tried again: every 15 seconds."""
FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 8.0
MAX_ANSWER: Final = 16 << 20
"""Bytes. A list of every endpoint of an account is far below; what is longer is not RunPod's."""
MAX_TEXT: Final = 600
"""Characters of an answer's own words in a message."""
LOG_QUIET_S: Final = 2.0
"""A worker's log is an endless stream: so long without a line, and what there was has been read."""
LOG_TOTAL_S: Final = 15.0
HIDDEN: Final = "<hidden>"

Json = dict[str, Any]

__all__ = ["Denied", "NotFound", "RestClient", "RestError", "TooManyRequests", "Unreachable", "clean_base_url"]


def clean_base_url(text: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """REST v2's base without `/v2` and without a closing slash: `text`, else RUNPOD_API_BASE_URL, else RunPod's own host."""
    environ = os.environ if environ is None else environ
    url = (text or environ.get(BASE_URL_ENV) or API_BASE_URL).strip().rstrip("/").removesuffix("/v2").rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # half an IPv6 address, a port that is none
        usable = False
    if not usable or parts.username or parts.query or parts.fragment:
        raise UsageError(
            "is not the URL of an API.", where=f"{BASE_URL_ENV}, or baseUrl of the provider", fix=f"An example: {API_BASE_URL}"
        )
    return url


def loads(data: bytes | str) -> Any:
    """Somebody else's JSON. Raises ValueError, and nothing else: also for numbers that are none (NaN, 1e999), and nesting without end."""
    try:
        return jsonlib.loads(data, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


class RestClient:
    """One account's REST v2. An async context manager; safe for many requests at once in one event loop.

    `deadline_s`: for one call with all its repetitions. `session`: an aiohttp session to use and leave open. `clock` and `sleep`: time, as
    tests bring it. A 429 makes every request of this client wait, because the limit is the account's. A RunPod that says nothing at all is
    waited for once, not by each request: when that time is over, every further one fails at once, and one in 15 s looks again.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        session: aiohttp.ClientSession | None = None,
        deadline_s: float = 60.0,
        attempt_s: float = ATTEMPT_S,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.base_url = clean_base_url(base_url)
        self._key = (api_key or "").strip()
        self._session = session
        self._own = session is None
        self._deadline_s = deadline_s
        self._attempt_s = attempt_s
        self._silence_s = min(silence_s, deadline_s)
        self._probe_s = self._silence_s / PROBES
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._held_until = 0.0
        self._answered_at: float | None = None
        """When RunPod said anything, whatever it was."""
        self._silent_since: float | None = None
        """Since when it has not, as far as this client has asked."""
        self._tried_at = 0.0
        self._given_up = ""
        """Why nobody waits any more; empty while somebody does."""
        self._hidden = hider([self._key], HIDDEN)

    def __repr__(self) -> str:
        return f"RestClient({self.base_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a session that was brought stays open."""
        if self._own and self._session is not None:
            await self._session.close()
            self._session = None

    # --- one call ------------------------------------------------------------------------------------------------------------------

    async def request(self, method: str, path: str, *, json: Any = None, query: Mapping[str, Any] | None = None, retry: bool) -> Any:
        """The parsed answer (None for an empty one). `retry`: may be repeated after an attempt whose effect is not known.

        Raises NotFound, Denied, TooManyRequests, Unreachable, and RestError for every other refusal; UsageError without a key.
        """
        where = f"{method} {path}"
        headers = self._headers(where)
        body = None if json is None else jsonlib.dumps(json, separators=(",", ":")).encode()
        end = self._clock() + self._deadline_s
        pause, uncertain, refused = FIRST_PAUSE_S, False, b""
        probe = self._given_up != ""
        if probe and self._clock() - self._tried_at < self._probe_s:
            raise self._out_of_reach(where)
        while True:
            await self._wait_for_turn(end, where, uncertain, refused)
            began = self._tried_at = self._clock()
            left = CONNECT_S if probe else self._patience_ends(end) - began
            try:
                status, answered, data = await self._once(method, path, headers, body, query, min(self._attempt_s, max(left, 0.05)))
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                cause, wait, done = f"no connection ({type(error).__name__})", self._jitter(pause), False
                self._heard_nothing(began)
            except (aiohttp.ClientError, TimeoutError, OSError, _TooLong) as error:
                cause, wait, done = f"no whole answer ({type(error).__name__})", self._jitter(pause), True
                self._heard_nothing(began)
            else:
                self._answered_at, self._silent_since, self._given_up, probe = self._clock(), None, "", False
                if status < 300:
                    return self._parse(data, where)
                asked = retry_after(answered.get("Retry-After"))
                if status == 429:
                    wait = (1.0 if asked is None else asked) + self._rng.uniform(0.0, 0.5)
                    self._held_until = max(self._held_until, self._clock() + wait)
                    refused = data
                    continue
                if status < 500:
                    raise self._refusal(status, data, where)
                cause, done = f"status {status}", True
                wait = self._jitter(pause) if asked is None else asked + self._rng.uniform(0.0, 0.5)
            uncertain = uncertain or done
            if self._clock() + wait > self._patience_ends(math.inf):
                self._given_up = cause
            if (done and not retry) or self._given_up or self._clock() + wait > end:
                raise self._unanswered(cause, where, uncertain)
            await self._sleep(wait)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    def _heard_nothing(self, began: float) -> None:
        """An attempt ended without an answer. Another request may have had one meanwhile."""
        if self._silent_since is None:
            self._silent_since = began if self._answered_at is None else max(began, self._answered_at)

    def _patience_ends(self, end: float) -> float:
        """When waiting ends: with the call's own deadline, or earlier with the patience for a RunPod that says nothing."""
        if self._silent_since is None:
            return end
        return min(end, self._silent_since + (self._silence_s if self._answered_at is None else self._deadline_s))

    def _unanswered(self, cause: str, where: str, uncertain: bool) -> Unreachable:
        if where.startswith("GET "):
            fix = "Try again."
        elif uncertain:
            fix = "Whether it was carried out is not known."
        else:
            fix = "It was not carried out. Try again."
        if self._given_up and self._answered_at is None:
            fix += f" Is this machine online, and {self.base_url} the right address ({BASE_URL_ENV})?"
        return Unreachable(f"RunPod did not answer as it should: {cause}.", maybe_done=uncertain, where=where, fix=fix)

    def _out_of_reach(self, where: str) -> Unreachable:
        """For a request that is not even sent."""
        return self._unanswered(self._given_up, where, uncertain=False)

    async def _wait_for_turn(self, end: float, where: str, uncertain: bool, refused: bytes) -> None:
        """Until RunPod's Retry-After is over, for whichever request of this client it was said; an error where that is too late."""
        while (held := self._held_until - self._clock()) > 0:
            if self._held_until > end:
                if uncertain:
                    raise Unreachable("RunPod's rate limit was reached before an answer came.", maybe_done=True, where=where)
                raise self._too_many(where, refused)
            await self._sleep(held)

    async def _once(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, query: Mapping[str, Any] | None, timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(CONNECT_S, timeout_s))
        session = self._open()
        url = self.base_url + path
        async with session.request(
            method, url, headers=headers, data=body, params=_query(query), timeout=timeout, allow_redirects=False
        ) as answer:
            data = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > MAX_ANSWER:
                    raise _TooLong
            return answer.status, answer.headers, bytes(data)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=32, keepalive_timeout=15.0)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    def _headers(self, where: str) -> dict[str, str]:
        if not self._key:
            raise UsageError("an API key is needed.", where=where, fix=f"Set {API_KEY_ENV}, or apiKey of the provider.")
        if not self._key.isascii() or not self._key.isprintable() or " " in self._key:
            raise UsageError("the API key holds a character that no key has.", where=where, fix="Was it copied whole, and no more?")
        return {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", "Accept": "application/json"}

    def _jitter(self, pause: float) -> float:
        return pause * self._rng.uniform(0.5, 1.0)

    def _parse(self, data: bytes, where: str) -> Any:
        if not data.strip():
            return None
        try:
            return loads(data)
        except ValueError:
            raise Unreachable("RunPod's answer is not JSON.", maybe_done=True, where=where) from None

    def _hide(self, text: str) -> str:
        return self._hidden(one_line(text, MAX_TEXT))

    def _refusal(self, status: int, data: bytes, where: str) -> RestError:
        title, detail, errors = self._problem(data)
        said = "; ".join(part for part in (detail or title, *errors) if part)
        what = f"RunPod answered {status}" + (f": {said}" if said else "")
        what = what if what.endswith((".", "!", "?", CUT)) else f"{what}."
        kind = {401: Denied, 403: Denied, 404: NotFound}.get(status, RestError)
        fix = {401: f"Check the API key ({API_KEY_ENV}).", 403: "This API key has no permission for it."}.get(status)
        return kind(what, status=status, title=title, detail=detail, errors=errors, where=where, fix=fix)

    def _too_many(self, where: str, data: bytes) -> TooManyRequests:
        title, detail, errors = self._problem(data)
        what = "RunPod answered 429: too many requests in its time window, and the deadline comes before the next."
        return TooManyRequests(what, status=429, title=title, detail=detail, errors=errors, where=where, fix="Try again in a minute.")

    def _problem(self, data: bytes) -> tuple[str, str, tuple[str, ...]]:
        """title, detail and errors of an RFC 9457 answer; whatever else it was, shortened and without the key."""
        try:
            problem = loads(data)
        except ValueError:
            beginning = data[: MAX_TEXT * 4].decode(errors="replace")
            return "", self._hide(beginning.rstrip("\ufffd") + CUT if len(data) > MAX_TEXT * 4 else beginning), ()
        if not isinstance(problem, dict):
            return "", self._hide(str(problem)), ()
        errors = problem.get("errors")
        sentences = [self._hide(str(e)) for e in errors] if isinstance(errors, list) else []
        # The validator also reports every valid field as "not allowed" once a required one is missing; only the cause helps.
        missing = [s for s in sentences if "missing propert" in s]
        title = problem.get("title") or ""
        detail = problem.get("detail") or problem.get("message") or problem.get("error") or ""
        return self._hide(str(title)), self._hide(str(detail)), tuple(missing or sentences)

    async def _list(self, path: str, key: str, query: Mapping[str, Any] | None = None) -> list[Json]:
        found = _member(await self.request("GET", path, query=query, retry=True), key, list, f"GET {path}")
        for one in found:
            _check_shape(one, f"GET {path}", maybe_done=False)
        return list(found)

    async def _object(self, method: str, path: str, *, json: Any = None, retry: bool = True) -> Json:
        answer = await self.request(method, path, json=json, retry=retry)
        _check_shape(answer, f"{method} {path}", maybe_done=method != "GET")
        return dict(answer)

    async def _known(self, method: str, path: str, resource_id: str, *, json: Any = None) -> Json:
        """The resource of this id: an answer about nothing, or about another, would be taken for drift."""
        answer = await self._object(method, path, json=json)
        if answer.get("id") != resource_id:
            raise Unreachable(f"RunPod's answer is not about {resource_id}.", maybe_done=method != "GET", where=f"{method} {path}")
        return answer

    # --- serverless endpoints ------------------------------------------------------------------------------------------------------

    async def list_endpoints(self) -> list[Json]:
        """Every endpoint of the account (REST v2 has no pages and no filter)."""
        return await self._list("/v2/serverless", "endpoints")

    async def get_endpoint(self, endpoint_id: str) -> Json:
        return await self._known("GET", f"/v2/serverless/{_id(endpoint_id)}", endpoint_id)

    async def create_endpoint(self, body: Mapping[str, Any]) -> Json:
        """Unreachable.maybe_done: look for it before making another."""
        return await self._object("POST", "/v2/serverless", json=body, retry=False)

    async def update_endpoint(self, endpoint_id: str, body: Mapping[str, Any]) -> Json:
        """Only the fields of `body` change; `env` is replaced whole. The endpoint as it then is."""
        return await self._known("PATCH", f"/v2/serverless/{_id(endpoint_id)}", endpoint_id, json=body)

    async def delete_endpoint(self, endpoint_id: str) -> None:
        """Also deletes the template that is bound to it, ends its workers and cancels its jobs (OpenAPI, deleteEndpoint)."""
        await self.request("DELETE", f"/v2/serverless/{_id(endpoint_id)}", retry=True)

    async def list_workers(self, endpoint_id: str) -> Json:
        """{workers, summary, endpointVersion}; workers that were scaled down are not in it."""
        where = f"/v2/serverless/{_id(endpoint_id)}/workers"
        answer = await self.request("GET", where, retry=True)
        summary = _member(answer, "summary", dict, f"GET {where}")
        _member(answer, "workers", list, f"GET {where}")
        if not all(isinstance(count, int) for count in summary.values()) or "running" not in summary:
            raise Unreachable("RunPod's answer does not say how many workers run.", maybe_done=False, where=f"GET {where}")
        return dict(answer)

    async def list_releases(self, endpoint_id: str) -> Json:
        """{releases, rollout, endpointVersion}, newest first."""
        return await self._object("GET", f"/v2/serverless/{_id(endpoint_id)}/releases")

    async def worker_logs(self, endpoint_id: str, worker_id: str, tail: int = 100) -> list[Json]:
        """The last `tail` lines, each {source, line, ts}. RunPod streams for ever: reading ends with the lines, or with 2 s of silence."""
        path = f"/v2/serverless/{_id(endpoint_id)}/workers/{_id(worker_id)}/logs"
        where = f"GET {path}"
        headers = {**self._headers(where), "Accept": "text/event-stream"}
        timeout = aiohttp.ClientTimeout(total=LOG_TOTAL_S, connect=CONNECT_S)
        lines: list[Json] = []
        try:
            async with self._open().get(
                self.base_url + path, headers=headers, params=_query({"tail": tail}), timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status >= 300:
                    raise self._refusal(answer.status, await answer.content.read(MAX_TEXT * 8), where)
                while len(lines) < tail:
                    try:
                        raw = await asyncio.wait_for(answer.content.readline(), LOG_QUIET_S)
                    except TimeoutError:
                        break
                    if not raw:
                        break
                    if raw.startswith(b"data:"):
                        lines.append(_log_line(raw[5:].decode(errors="replace").strip()))
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError) as error:
            if not lines:
                raise Unreachable(f"the worker's log could not be read ({type(error).__name__}).", maybe_done=False, where=where) from None
        return lines

    # --- templates, network volumes, registry credentials --------------------------------------------------------------------------

    async def list_templates(self) -> list[Json]:
        return await self._list("/v2/templates", "templates")

    async def get_template(self, template_id: str) -> Json:
        return await self._known("GET", f"/v2/templates/{_id(template_id)}", template_id)

    async def create_template(self, body: Mapping[str, Any]) -> Json:
        return await self._object("POST", "/v2/templates", json=body, retry=False)

    async def update_template(self, template_id: str, body: Mapping[str, Any]) -> Json:
        """Reaches no endpoint that was made from it: an endpoint takes a template's content once."""
        return await self._known("PATCH", f"/v2/templates/{_id(template_id)}", template_id, json=body)

    async def delete_template(self, template_id: str) -> None:
        """400 while an endpoint or a pod is bound to it."""
        await self.request("DELETE", f"/v2/templates/{_id(template_id)}", retry=True)

    async def list_network_volumes(self) -> list[Json]:
        return await self._list("/v2/network-volumes", "networkVolumes")

    async def get_network_volume(self, volume_id: str) -> Json:
        return await self._known("GET", f"/v2/network-volumes/{_id(volume_id)}", volume_id)

    async def create_network_volume(self, body: Mapping[str, Any]) -> Json:
        return await self._object("POST", "/v2/network-volumes", json=body, retry=False)

    async def update_network_volume(self, volume_id: str, body: Mapping[str, Any]) -> Json:
        return await self._known("PATCH", f"/v2/network-volumes/{_id(volume_id)}", volume_id, json=body)

    async def delete_network_volume(self, volume_id: str) -> None:
        await self.request("DELETE", f"/v2/network-volumes/{_id(volume_id)}", retry=True)

    async def list_registries(self) -> list[Json]:
        return await self._list("/v2/registries", "registries")

    async def get_registry(self, registry_id: str) -> Json:
        """{id, name}: user name and password are never returned."""
        return await self._known("GET", f"/v2/registries/{_id(registry_id)}", registry_id)

    async def create_registry(self, body: Mapping[str, Any]) -> Json:
        return await self._object("POST", "/v2/registries", json=body, retry=False)

    async def delete_registry(self, registry_id: str) -> None:
        await self.request("DELETE", f"/v2/registries/{_id(registry_id)}", retry=True)

    # --- catalog and billing -------------------------------------------------------------------------------------------------------

    async def gpus(self, *, include_availability: bool = False, product: str = "SERVERLESS", count: int | None = None) -> list[Json]:
        """GPU types: `pool`, `memory` GB, `price.serverless` USD per GPU and hour; stock for `count` GPUs a worker where asked."""
        query = {"count": count, **({"include": "AVAILABILITY", "product": product} if include_availability else {})}
        return await self._list("/v2/catalog/gpus", "gpus", query)

    async def cpus(self, *, include_availability: bool = False, product: str = "SERVERLESS", vcpu_count: int | None = None) -> list[Json]:
        """CPU flavors: `price.serverlessPerVcpu` USD per vCPU and hour, `ramGbPerVcpu`."""
        query = {"vcpuCount": vcpu_count, **({"include": "AVAILABILITY", "product": product} if include_availability else {})}
        return await self._list("/v2/catalog/cpus", "cpus", query)

    async def datacenters(self, *, include_availability: bool = False) -> list[Json]:
        """Data centers with the volume types that they have; stock of GPUs and CPUs where asked."""
        query = {"include": "GPU_AVAILABILITY,CPU_AVAILABILITY"} if include_availability else None
        return await self._list("/v2/catalog/datacenters", "dataCenters", query)

    async def billing_serverless(
        self,
        *,
        endpoint_id: str | None = None,
        start: str | None = None,
        end: str | None = None,
        bucket_size: str | None = None,
        last_n: int | None = None,
    ) -> Json:
        """{records, metadata}: USD per endpoint and time bucket. `start`, `end`: RFC 3339; `bucket_size`: hour, day, week, month, year."""
        query = {"serverlessId": endpoint_id, "startTime": start, "endTime": end, "bucketSize": bucket_size, "lastN": last_n}
        path = "/v2/billing/serverless"
        answer = await self.request("GET", path, query=query, retry=True)
        _member(answer, "records", list, f"GET {path}")
        return dict(answer)


class _TooLong(Exception):
    """An answer longer than any of RunPod's."""


def _query(query: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (query or {}).items() if value is not None}


def _id(text: str) -> str:
    if not text:
        raise UsageError("an empty id names nothing.")
    return quote(text, safe="")


def _member(answer: Any, key: str, kind: type, where: str) -> Any:
    value = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise Unreachable(f"RunPod's answer has no {'list' if kind is list else 'object'} '{key}'.", maybe_done=False, where=where)
    return value


_PARTS: Final[Mapping[str, type]] = {
    "env": dict,
    "workers": dict,
    "scaling": dict,
    "gpu": dict,
    "cpu": list,
    "ports": list,
    "dataCenterIds": list,
    "networkVolumes": list,
}


def _check_shape(answer: Any, where: str, *, maybe_done: bool) -> None:
    """An object, whose parts are what the OpenAPI file says, or null. Else Unreachable: it says nothing of what is live."""
    if not isinstance(answer, dict):
        raise Unreachable("RunPod's answer is not an object.", maybe_done=maybe_done, where=where)
    for name, kind in _PARTS.items():
        if not isinstance(answer.get(name), kind | None):
            raise Unreachable(f"RunPod's answer has '{name}' in another shape than documented.", maybe_done=maybe_done, where=where)


def _log_line(text: str) -> Json:
    try:
        line = loads(text)
    except ValueError:
        line = None
    return line if isinstance(line, dict) else {"source": "", "line": text, "ts": ""}
