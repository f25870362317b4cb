"""infra/review: reading what is live: REST v2, the data plane's /health and /status, the bucket, a webhook's address. Changes nothing but
small objects in the bucket, `probe/doctor-*` and `probe/if-none-match`, which every probe writes anew. Needs no pulumi.

All parts are read at the same time, each with its own deadline. One that fails is named in `Observed.unread` and hides no other.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp

from contract.errors import AccessDenied, AlreadyExists, InfrastructureError, NightbatchError, StoreError
from contract.facts import EndpointFacts, Stack
from contract.net import on_this_machine
from contract.protocol import Health
from contract.store import Store, probe_mode
from infra.provider.client import API_BASE_URL, BASE_URL_ENV, NotFound, clean_base_url, loads
from infra.review.observed import (
    AccountSeen,
    EndpointSeen,
    JobSeen,
    LiveEndpoint,
    Observed,
    Stopped,
    StoreSeen,
    Unread,
    VolumeSeen,
    WebhookSeen,
    WorkerSeen,
    health_of,
    job_of,
    live_endpoint,
    stock_of,
    workers_of,
)

T = TypeVar("T")
DEADLINE_S: Final = 20.0
"""Of each part of an observation."""
LIMITS_DEADLINE_S: Final = 5.0
"""Before a run: a REST API that does not answer keeps no night waiting."""
LOG_TAIL: Final = 5
LOGS_OF: Final = 3
"""Workers of an endpoint whose log lines are read: those that are in trouble, a few of them."""
MOST_LISTED: Final = 20_000
"""Objects of a volume that are counted: RunPod's listings are slow beyond some ten thousand (storage/s3-api)."""
MAX_ANSWER: Final = 8 << 20


class Rest(Protocol):
    """What doctor, stop and status need of REST v2. `infra.provider.client.RestClient` is it; tests bring others."""

    async def list_endpoints(self) -> list[dict[str, Any]]: ...

    async def get_endpoint(self, endpoint_id: str, /) -> dict[str, Any]: ...

    async def update_endpoint(self, endpoint_id: str, body: Mapping[str, Any], /) -> dict[str, Any]: ...

    async def list_workers(self, endpoint_id: str, /) -> dict[str, Any]: ...

    async def list_releases(self, endpoint_id: str, /) -> dict[str, Any]: ...

    async def worker_logs(self, endpoint_id: str, worker_id: str, /, tail: int) -> list[dict[str, Any]]: ...

    async def list_network_volumes(self) -> list[dict[str, Any]]: ...

    async def gpus(self, *, include_availability: bool = False) -> list[dict[str, Any]]: ...


class DataPlane(Protocol):
    """What is asked of the data plane."""

    async def health(self, endpoint_id: str) -> Health:
        """Raises InfrastructureError where RunPod does not say."""

    async def job(self, endpoint_id: str, job_id: str) -> Mapping[str, Any] | None:
        """`/status/{job}`; None: 404."""


@dataclass(frozen=True)
class JobRef:
    """One of the stack's own jobs, as the client remembers it."""

    id: str
    sent_at: datetime | None = None
    ttl_s: float | None = None
    known: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person, or the client's own records, add to what can be read."""

    jobs: Mapping[str, Sequence[JobRef]] = field(default_factory=dict)
    """Endpoint id -> recent own jobs."""
    quota: int | None = None
    webhook_url: str | None = None
    night_s: float | None = None
    stopped: tuple[Stopped, ...] = ()
    unread: tuple[Unread, ...] = ()
    """What could not even be asked, such as a bucket without keys."""
    deadline_s: float = DEADLINE_S


def rest_base(api_url: str, environ: Mapping[str, str]) -> str:
    """Where REST v2 is for a stack whose data plane is at `api_url`: RUNPOD_API_BASE_URL, else the emulator's own server where the data
    plane is on this machine, else RunPod itself. Raises UsageError where the variable is no address."""
    return clean_base_url(environ.get(BASE_URL_ENV) or (api_url if on_this_machine(api_url) else API_BASE_URL), environ)


# --- the data plane ------------------------------------------------------------------------------------------------------------------


class HttpDataPlane:
    """The data plane over HTTP, two idempotent reads. An async context manager."""

    def __init__(self, api_url: str, api_key: str, *, timeout_s: float = 10.0) -> None:
        self._base = api_url.rstrip("/")
        self._key = api_key
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"HttpDataPlane({self._base})"

    async def __aenter__(self) -> HttpDataPlane:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, connect=min(5.0, self._timeout_s))
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def health(self, endpoint_id: str) -> Health:
        answer = await self._get(f"/{endpoint_id}/health")
        if answer is None:
            raise InfrastructureError("RunPod knows no such endpoint (404).", where=f"{self._base}/{endpoint_id}/health")
        return health_of(answer)

    async def job(self, endpoint_id: str, job_id: str) -> Mapping[str, Any] | None:
        return await self._get(f"/{endpoint_id}/status/{job_id}")

    async def _get(self, path: str) -> Mapping[str, Any] | None:
        url = self._base + path
        assert self._session is not None, "use it as a context manager"
        try:
            headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json"}
            async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
                if answer.status == 404:
                    return None
                if answer.status != 200:
                    raise InfrastructureError(f"RunPod answered {answer.status}.", where=url, fix=_fix(answer.status))
                data = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):  # read() gives what has come so far
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise InfrastructureError("RunPod's answer is longer than any of its own.", where=url)
                found = loads(bytes(data))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"RunPod did not answer ({type(error).__name__}).", where=url, fix="Is the network up?") from None
        except ValueError:
            raise InfrastructureError("RunPod's answer is not JSON.", where=url) from None
        if not isinstance(found, dict):
            raise InfrastructureError("RunPod's answer is not an object.", where=url)
        return found


def _fix(status: int) -> str | None:
    return "Check RUNPOD_API_KEY." if status in (401, 403) else None


# --- everything at once --------------------------------------------------------------------------------------------------------------


class Gathering:
    """Parts that are read side by side; what fails is remembered, not raised."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.unread: list[Unread] = []

    async def part(self, what: str, work: Callable[[], Awaitable[T]], default: T) -> T:
        """What `work` gives within the deadline, else `default` and a line on why."""
        try:
            async with asyncio.timeout(self.deadline_s):
                return await work()
        except TimeoutError:
            self.unread.append(Unread(what, f"no answer within {self.deadline_s:.0f} s."))
        except NightbatchError as error:
            self.unread.append(Unread(what, str(error)))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self.unread.append(Unread(what, f"the answer has another shape than documented ({type(error).__name__}: {error})."))
        return default


async def observe(
    stack: Stack,
    *,
    rest: Rest,
    plane: DataPlane,
    stores: Mapping[Literal["client", "worker"], Store],
    asked: Asked,
    at: datetime | None = None,
) -> Observed:
    """Everything that can be read of a stack. Never raises because RunPod, S3 or the network fails."""
    facts, now = stack.facts, at or datetime.now(UTC)
    no_volumes: tuple[VolumeSeen, ...] = ()
    group = Gathering(asked.deadline_s)
    prefix = facts.store.prefix
    nobody: Mapping[str, LiveEndpoint] | None = None
    listing = asyncio.create_task(group.part("account", lambda: listed_endpoints(rest), nobody))
    try:
        listed, endpoints, stock, probes, volumes, webhook = await asyncio.gather(
            listing,
            asyncio.gather(
                *(observe_endpoint(group, rest, plane, one, asked.jobs.get(one.id, ()), now, listing) for one in facts.endpoints),
                *(observe_endpoint(group, rest, None, one, (), now, listing) for one in facts.balanced),
            ),
            group.part("catalog", lambda: _stock(rest), None),
            asyncio.gather(*(_probed(group, keys, store, prefix) for keys, store in stores.items())),
            group.part("network volumes", lambda: _volumes(rest, facts.store.bucket), no_volumes),
            _webhook(asked.webhook_url, remote=not on_this_machine(facts.api_url)),
        )
    finally:
        listing.cancel()
    account = None if listed is None else AccountSeen(tuple((one.name, one.id, one.workers_max) for one in listed.values()), asked.quota)
    attached = {volume for one in endpoints if one.live is not None for volume in one.live.volumes}
    own = [volume for volume in volumes if volume.bucket or volume.id in attached]
    client = stores.get("client")
    if client is not None:
        own = list(await asyncio.gather(*(_fill(group, volume, client) for volume in own)))
    return Observed(
        facts=facts,
        at=now,
        endpoints=tuple(endpoints),
        stock=stock,
        account=account,
        stores=tuple(probes),
        volumes=tuple(own),
        webhook=webhook,
        stopped=asked.stopped,
        night_s=asked.night_s,
        unread=tuple(sorted((*group.unread, *asked.unread), key=lambda one: one.what)),
    )


async def observe_endpoint(
    group: Gathering,
    rest: Rest,
    plane: DataPlane | None,
    declared: EndpointFacts,
    jobs: Sequence[JobRef],
    now: datetime,
    listing: asyncio.Task[Mapping[str, LiveEndpoint] | None],
) -> EndpointSeen:
    """One endpoint from all sides; its settings are those of the account's list, or asked for where that could not be read. `plane` None:
    it is a load-balancing one, of which the data plane knows no queue."""
    where, none = f"endpoint {declared.name}", EndpointSeen(declared, balanced=plane is None)

    async def ask() -> tuple[bool, LiveEndpoint | None]:
        try:
            return False, live_endpoint(await rest.get_endpoint(declared.id))
        except NotFound:
            return True, None

    async def settings() -> tuple[bool, LiveEndpoint | None]:
        everything = await asyncio.shield(listing)  # has a deadline of its own
        if everything is not None:
            return declared.id not in everything, everything.get(declared.id)
        return await group.part(f"{where}: settings", ask, unknown)

    async def workers() -> tuple[int | None, tuple[WorkerSeen, ...] | None]:
        try:
            return workers_of(await rest.list_workers(declared.id), now)
        except NotFound:
            return None, None  # said once, by the endpoint itself

    async def rolling() -> bool:
        try:
            return bool((await rest.list_releases(declared.id))["rollout"]["inProgress"])
        except NotFound:
            return False

    async def job(ref: JobRef) -> JobSeen:
        assert plane is not None
        known: dict[str, Any] = {"sent_at": ref.sent_at, "ttl_s": ref.ttl_s, "known": ref.known}
        return job_of(ref.id, await plane.job(declared.id, ref.id), **known)

    async def every_job() -> tuple[JobSeen, ...]:
        return tuple(await asyncio.gather(*(job(ref) for ref in jobs)))

    nobody: tuple[int | None, tuple[WorkerSeen, ...] | None] = (None, None)
    unknown: tuple[bool, LiveEndpoint | None] = (False, None)
    no_health: Health | None = None
    no_jobs: tuple[JobSeen, ...] = ()

    async def health() -> Health | None:
        return None if plane is None else await plane.health(declared.id)

    (gone, found), (version, listed), gauge, seen_jobs = await asyncio.gather(
        settings(),
        group.part(f"{where}: workers", workers, nobody),
        group.part(f"{where}: health", health, no_health),
        group.part(f"{where}: jobs", every_job, no_jobs),
    )
    if gone:  # which says it all
        group.unread = [one for one in group.unread if not one.what.startswith(f"{where}: ")]
    is_rolling = False
    if listed:
        listed = await _with_logs(group, rest, declared, listed)
        if any(worker.stale for worker in listed):
            is_rolling = await group.part(f"{where}: releases", rolling, False)
    return replace(none, gone=gone, live=found, version=version, workers=listed, rolling=is_rolling, health=gauge, jobs=seen_jobs)


async def _with_logs(group: Gathering, rest: Rest, declared: EndpointFacts, workers: tuple[WorkerSeen, ...]) -> tuple[WorkerSeen, ...]:
    """The last lines of the workers that are in trouble."""
    wanted = [one for one in workers if one.status in ("UNHEALTHY", "INITIALIZING")]
    wanted.sort(key=lambda one: one.status != "UNHEALTHY")
    chosen = {one.id for one in wanted[:LOGS_OF]}

    async def one(worker: WorkerSeen) -> WorkerSeen:
        if worker.id not in chosen:
            return worker

        async def read() -> tuple[str, ...]:
            return log_lines(await rest.worker_logs(declared.id, worker.id, tail=LOG_TAIL))

        return replace(worker, log=await group.part(f"endpoint {declared.name}: log of worker {worker.id}", read, ()))

    return tuple(await asyncio.gather(*(one(worker) for worker in workers)))


def log_lines(events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The text of log events, `{"source", "line", "ts"}` each; long lines are cut."""
    return tuple(" ".join(str(event.get("line", "")).split())[:300] for event in events)[-LOG_TAIL:]


async def _stock(rest: Rest) -> Mapping[str, str] | None:
    return stock_of(await rest.gpus(include_availability=True))


async def listed_endpoints(rest: Rest) -> Mapping[str, LiveEndpoint] | None:
    """All endpoints of the account, by id: one request, where asking for each would use up RunPod's 60 requests a minute."""
    found = [live_endpoint(one) for one in await rest.list_endpoints()]
    return {one.id: one for one in found}


async def _volumes(rest: Rest, bucket: str) -> tuple[VolumeSeen, ...]:
    found = await rest.list_network_volumes()
    return tuple(VolumeSeen(str(one["id"]), str(one["name"]), int(one["size"]), bucket=one["id"] == bucket) for one in found)


async def _fill(group: Gathering, volume: VolumeSeen, store: Store) -> VolumeSeen:
    """How much of the stack's own bucket is used, where that bucket is a volume: REST v2 does not tell, a bounded listing does."""
    if not volume.bucket:
        return volume

    async def count() -> VolumeSeen:
        used = listed = 0
        async for head in store.list(""):
            used, listed = used + head.size, listed + 1
            if listed >= MOST_LISTED:
                return replace(volume, used_bytes=used, complete=False)
        return replace(volume, used_bytes=used)

    return await group.part(f"volume {volume.name}: space", count, volume)


# --- the bucket ----------------------------------------------------------------------------------------------------------------------


async def probe_store(keys: Literal["client", "worker"], store: Store, prefix: str) -> StoreSeen:
    """Write, read, compare, and a conditional write, as a run does them. What fails is the answer, not an exception."""
    root = prefix.strip("/")
    key = f"{root}/probe/doctor-{keys}".lstrip("/")
    data = secrets.token_hex(16).encode()
    began = time.monotonic()
    step: Literal["write", "read", "compare", "conditional write"] = "write"

    def ended(error: str | None, *, denied: bool = False) -> StoreSeen:
        return StoreSeen(keys, step, error, denied, None, time.monotonic() - began)

    try:
        await store.put(key, data)
        step = "read"
        found = (await store.get(key)).data
        step = "compare"
        if found != data and (await store.get(key)).data != data:  # another doctor may have written in between, not twice
            return ended("what was read is not what was written.")
        step = "conditional write"
        mode = await probe_mode(store, prefix)
    except AccessDenied as error:
        return ended(str(error), denied=True)
    except (AlreadyExists, StoreError) as error:
        return ended(str(error))
    return StoreSeen(keys, mode=mode, seconds=time.monotonic() - began)


async def _probed(group: Gathering, keys: Literal["client", "worker"], store: Store, prefix: str) -> StoreSeen:
    late = StoreSeen(keys, "write", f"no answer within {group.deadline_s:.0f} s.")
    try:
        async with asyncio.timeout(group.deadline_s):
            return await probe_store(keys, store, prefix)
    except TimeoutError:
        return late


# --- a webhook's address -------------------------------------------------------------------------------------------------------------


async def _webhook(url: str | None, *, remote: bool, timeout_s: float = 10.0) -> WebhookSeen | None:
    """What answers at the webhook's address, asked without a body: any answer means that the way is open."""
    if url is None:
        return None
    seen = WebhookSeen(url, loopback=_private(url), remote=remote)
    timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(5.0, timeout_s))
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            return replace(seen, status=answer.status)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        said = str(error).strip() or "no answer in time"
        return replace(seen, error=f"{type(error).__name__}, {said}"[:200])


def _private(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local", ".internal"))
    return not address.is_global


# --- before a run --------------------------------------------------------------------------------------------------------------------


async def live_workers_max(rest: Rest, endpoint_id: str) -> int:
    """workers.max of an endpoint as RunPod has it now. Raises InfrastructureError where RunPod does not say."""
    try:
        return live_endpoint(await rest.get_endpoint(endpoint_id)).workers_max
    except (KeyError, TypeError, ValueError) as error:
        raise InfrastructureError(f"REST v2 answered something unexpected ({type(error).__name__}: {error}).") from None
