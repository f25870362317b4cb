"""infra/review: what was seen of a stack at one moment, as frozen data. Pure: reads the bodies that others fetched.

Field names of RunPod's answers are those of REST v2 (`Endpoint`, `Worker`, `NetworkVolume`, `GpuType`) and of the data plane's `/health`
and `/status`. Answers may grow: what is not named here is left out, above all the values of an endpoint's environment, which hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from contract.facts import EndpointFacts, StackFacts
from contract.models import StoreMode
from contract.protocol import Health

INIT_TIMEOUT_S: Final = 420.0
"""A worker that is not ready after 7 minutes is unhealthy, unless RUNPOD_INIT_TIMEOUT says otherwise (development/optimization)."""
INIT_TIMEOUT: Final = "RUNPOD_INIT_TIMEOUT"
MODEL_SOURCE: Final = "NIGHTBATCH_MODEL_SOURCE"
"""Where the stack's program records that the model comes from a volume, the image or RunPod's cached models."""
ENV_SHOWN: Final = (INIT_TIMEOUT, MODEL_SOURCE, "NIGHTBATCH_MODEL", "NIGHTBATCH_CONCURRENCY", "MAX_CONCURRENCY")
"""Variables whose values may be looked at and printed; no other value leaves the answer that held it."""

WorkerState = Literal["RUNNING", "IDLE", "INITIALIZING", "THROTTLED", "UNHEALTHY"]


@dataclass(frozen=True)
class LiveEndpoint:
    """An endpoint as REST v2 tells of it now. `timeout_ms` 0: no limit. `env`: the shown variables alone."""

    id: str
    name: str
    type: str
    image: str | None
    workers_min: int
    workers_max: int
    idle_timeout_s: float | None
    scaler: str
    scaler_value: float | None
    timeout_ms: int
    pools: tuple[str, ...] = ()
    gpu_count: int = 1
    volumes: tuple[str, ...] = ()
    flashboot: str = "OFF"
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def init_timeout_s(self) -> float:
        """How long a worker may take to become ready."""
        try:
            told = float(self.env.get(INIT_TIMEOUT, ""))
        except ValueError:
            return INIT_TIMEOUT_S
        return told if told > 0 else INIT_TIMEOUT_S


@dataclass(frozen=True)
class WorkerSeen:
    """One worker of an endpoint; scaled-down ones are not told. `log`: its last lines, where somebody asked for them."""

    id: str
    status: str
    stale: bool = False
    version: int | None = None
    image: str | None = None
    gpu: str | None = None
    data_center: str | None = None
    up_s: float | None = None
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobSeen:
    """One of the stack's own jobs, as `/status` tells of it. `status` None: RunPod answered 404. `known`: how the ledger last saw it;
    `sent_at` and `ttl_s` are the client's."""

    id: str
    status: str | None
    delay_s: float | None = None
    execution_s: float | None = None
    worker_id: str | None = None
    error: str | None = None
    retries: int = 0
    sent_at: datetime | None = None
    ttl_s: float | None = None
    known: str | None = None


@dataclass(frozen=True)
class EndpointSeen:
    """One endpoint of the stack: what was declared, and what is. None: it was not told; `observed.unread` says why. `balanced`: it is a
    load-balancing one, which has no queue and no jobs."""

    declared: EndpointFacts
    balanced: bool = False
    gone: bool = False
    live: LiveEndpoint | None = None
    version: int | None = None
    workers: tuple[WorkerSeen, ...] | None = None
    rolling: bool = False
    """A rollout is under way: workers of the version before are about to be replaced."""
    health: Health | None = None
    jobs: tuple[JobSeen, ...] = ()

    @property
    def name(self) -> str:
        return self.declared.name

    def by_status(self, status: WorkerState) -> tuple[WorkerSeen, ...]:
        """Workers that REST v2 lists in this state."""
        return tuple(worker for worker in self.workers or () if worker.status == status)


@dataclass(frozen=True)
class StoreSeen:
    """What a pair of S3 keys could do with the stack's bucket. `step`: where it ended, None if it went through; `mode`: what was proven."""

    keys: Literal["client", "worker"]
    step: Literal["write", "read", "compare", "conditional write"] | None = None
    error: str | None = None
    denied: bool = False
    mode: StoreMode | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class VolumeSeen:
    """A network volume. `used_bytes` None: nobody can tell (REST v2 does not); `complete` False: at least that much."""

    id: str
    name: str
    size_gb: int
    used_bytes: int | None = None
    complete: bool = True
    bucket: bool = False
    """It is the stack's own bucket."""


@dataclass(frozen=True)
class WebhookSeen:
    """What a request to the webhook's address came to from this machine. `status` None: no HTTP answer."""

    url: str
    status: int | None = None
    error: str | None = None
    loopback: bool = False
    """Only this machine, or this network, can reach such an address."""
    remote: bool = True
    """RunPod is not on this machine."""


@dataclass(frozen=True)
class AccountSeen:
    """All endpoints that the key can see: (name, id, workers.max). `quota`: the account's worker quota, where a person told it."""

    endpoints: tuple[tuple[str, str, int], ...]
    quota: int | None = None


@dataclass(frozen=True)
class Stopped:
    """`nightbatch stop` has cut this endpoint, and what it allowed before."""

    endpoint_id: str
    at: datetime
    workers_min: int
    workers_max: int


@dataclass(frozen=True)
class Unread:
    """A part that could not be read, and why. What could be read is judged all the same."""

    what: str
    why: str


@dataclass(frozen=True)
class Observed:
    """A stack at one moment. `night_s`: how long a night's jobs must be able to live, where a person told it."""

    facts: StackFacts
    at: datetime
    endpoints: tuple[EndpointSeen, ...]
    stock: Mapping[str, str] | None = None
    """GPU pool -> NONE, LOW, MEDIUM or HIGH: the best of its types, for serverless."""
    account: AccountSeen | None = None
    stores: tuple[StoreSeen, ...] = ()
    volumes: tuple[VolumeSeen, ...] = ()
    webhook: WebhookSeen | None = None
    stopped: tuple[Stopped, ...] = ()
    night_s: float | None = None
    unread: tuple[Unread, ...] = ()


# --- RunPod's answers ----------------------------------------------------------------------------------------------------------------


def live_endpoint(answer: Mapping[str, Any]) -> LiveEndpoint:
    """`GET /v2/serverless/{id}`. Raises ValueError where it is no such answer."""
    workers, scaling = _object(answer, "workers"), _object(answer, "scaling")
    gpu = answer.get("gpu")
    env = answer.get("env")
    kind = str(scaling.get("type", ""))
    value = scaling.get("queueDelay" if kind == "QUEUE_DELAY" else "requestCount")
    idle = workers.get("idleTimeout")
    return LiveEndpoint(
        id=str(answer["id"]) if "id" in answer else "",
        name=str(answer.get("name", "")),
        type=str(answer.get("type") or "QUEUE"),
        image=answer.get("image"),
        workers_min=int(workers.get("min", 0)),
        workers_max=int(workers.get("max", 0)),
        idle_timeout_s=None if idle is None else float(idle),
        scaler=kind,
        scaler_value=None if value is None else float(value),
        timeout_ms=int(answer.get("timeout") or 0),
        pools=tuple(gpu.get("pools") or ()) if isinstance(gpu, Mapping) else (),
        gpu_count=int(gpu.get("count") or 1) if isinstance(gpu, Mapping) else 1,
        volumes=tuple(answer.get("networkVolumes") or ()),
        flashboot=str(answer.get("flashboot") or "OFF"),
        env={name: str(env[name]) for name in ENV_SHOWN if name in env} if isinstance(env, Mapping) else {},
    )


def workers_of(answer: Mapping[str, Any], at: datetime) -> tuple[int | None, tuple[WorkerSeen, ...]]:
    """`GET /v2/serverless/{id}/workers`: the endpoint's version and its workers. Raises ValueError where it is no such answer."""
    found = []
    for worker in _list(answer, "workers"):
        up = worker.get("uptimeSeconds")
        started = _instant(worker.get("startedAt"))
        if up is None and started is not None:
            up = max(0.0, (at - started).total_seconds())
        found.append(
            WorkerSeen(
                id=str(worker.get("id", "?")),
                status=str(worker.get("status", "?")),
                stale=bool(worker.get("isStale")),
                version=worker.get("version"),
                image=worker.get("image"),
                gpu=worker.get("gpuTypeId"),
                data_center=worker.get("dataCenterId"),
                up_s=None if up is None else float(up),
            )
        )
    version = answer.get("endpointVersion")
    return (version if isinstance(version, int) else None), tuple(found)


def stock_of(gpus: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The GPU types of `GET /v2/catalog/gpus?include=AVAILABILITY&product=SERVERLESS`: the best level of each pool."""
    order = ("NONE", "LOW", "MEDIUM", "HIGH")
    best: dict[str, str] = {}
    for gpu in gpus:
        pool, level = gpu.get("pool"), str(gpu.get("availability", ""))
        if isinstance(pool, str) and level in order:
            best[pool] = max(best.get(pool, "NONE"), level, key=order.index)
    return best


def health_of(answer: Mapping[str, Any]) -> Health:
    """The data plane's `/health`: six worker counters were observed, where the documentation has two."""
    jobs, workers = _object(answer, "jobs"), _object(answer, "workers")

    def count(of: Mapping[str, Any], name: str) -> int:
        return int(of.get(name) or 0)

    return Health(
        in_queue=count(jobs, "inQueue"),
        in_progress=count(jobs, "inProgress"),
        idle=count(workers, "idle"),
        initializing=count(workers, "initializing"),
        ready=count(workers, "ready"),
        running=count(workers, "running"),
        throttled=count(workers, "throttled"),
        unhealthy=count(workers, "unhealthy"),
    )


def job_of(job_id: str, answer: Mapping[str, Any] | None, **known: Any) -> JobSeen:
    """`GET /status/{job}`; None: 404. `known`: what the client's own record says of it."""
    if answer is None:
        return JobSeen(job_id, None, **known)
    delay, execution = answer.get("delayTime"), answer.get("executionTime")
    error = answer.get("error")
    return JobSeen(
        job_id,
        str(answer.get("status", "?")),
        delay_s=None if delay is None else float(delay) / 1000,
        execution_s=None if execution is None else float(execution) / 1000,
        worker_id=answer.get("workerId"),
        error=None if error is None else " ".join(str(error).split())[:200],
        retries=int(answer.get("retries") or 0),
        **known,
    )


def _object(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = answer.get(name)
    if not isinstance(found, Mapping):
        raise ValueError(f"`{name}` is no object")
    return found


def _list(answer: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = answer.get(name)
    if not isinstance(found, list):
        raise ValueError(f"`{name}` is no list")
    return [one for one in found if isinstance(one, Mapping)]


def _instant(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
