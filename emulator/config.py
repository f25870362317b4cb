"""emulator: its settings. Frozen, and readable from a JSON file (`python -m emulator --config`).

May touch: the standard library and msgspec. Defaults are RunPod's where a page states one (endpoint-configurations, pricing); each switch
stands for something that RunPod does not document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from contract.errors import UsageError
from contract.models import TaskKind
from emulator import jobs
from emulator.broker import BrokerSettings
from emulator.jobs import Status
from emulator.limits import NO_LIMITS, RUNPOD_LIMITS, Limit
from emulator.scaling import Bounds, ScalerType

AMPERE_24_FLEX_USD_PER_S: Final = 0.00019
"""Flex price per second and GPU of the pool AMPERE_24: A5000, L4, RTX 3090 (serverless price table, August 2026)."""
RESERVED: Final = frozenset({"serverless", "templates", "network-volumes", "registries", "catalog", "billing"})
"""First segments of REST v2's paths."""
REST_QUOTAS: Final[Mapping[Literal["minute", "hour", "day"], int]] = {"minute": 180, "hour": 3000, "day": 50_000}
INIT_TIMEOUT_S: Final = 420.0
"""A worker that is not ready after 7 minutes is unhealthy; RUNPOD_INIT_TIMEOUT in its environment changes it (optimization)."""


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One queue endpoint. Seconds and milliseconds as RunPod's own settings have them."""

    name: str
    id: str = ""
    """The id in URLs; the name if empty."""
    model: str = ""
    """What its workers serve; for people and plans, the emulator does not look at it."""
    title: str = ""
    """What people call it; the name if empty. Endpoints made through REST have their id for a name: theirs need not be unique."""
    tasks: tuple[TaskKind, ...] = ()
    """Task kinds that its workers do."""
    command: tuple[str, ...] = ()
    """argv of a worker process. Empty: workers are scripted, given to `Emulator(scripted=…)`, or come from outside."""
    cwd: str | None = None
    env: Mapping[str, str] = {}
    workers_min: int = 0
    workers_max: int = 3
    idle_timeout_s: float = 5.0
    scaler: ScalerType = "QUEUE_DELAY"
    scaler_value: float = 4.0
    execution_timeout_ms: int = jobs.EXECUTION_TIMEOUT_DEFAULT_MS
    """0: no limit."""
    usd_per_s: float = AMPERE_24_FLEX_USD_PER_S
    gpu: str = "NVIDIA RTX A5000"
    gpu_pool: str = "AMPERE_24"
    gpu_count: int = 1
    compute: Literal["GPU", "CPU"] = "GPU"
    """CPU: `gpu` is then the instance, such as cpu3g-4-16, and `usd_per_s` the price of all of it."""
    placements: tuple[tuple[str, str | None], ...] = ()
    """Data centers, each with the network volume there, over which workers are spread in turn."""
    data_center: str | None = None
    network_volume: str | None = None
    """Of one worker, which is told of both as RunPod's pods are (RUNPOD_DC_ID, RUNPOD_VOLUME_ID)."""
    concurrency: int = 1
    """Jobs at once in one worker, for plans; the worker itself decides how many it asks for."""
    cold_start_s: float = 60.0
    """From the start of a worker's process to its first question for work, as plans may expect it; nothing waits for it."""
    max_model_len: int | None = None
    image: str | None = None
    initialize_s: float = 0.0
    """Unbilled time before a worker's process starts: pulling the image, downloading a cached model."""
    hosts: int | None = None
    """How many workers find a host; further ones are throttled. None: no shortage."""
    in_stock: bool = True
    """False: no GPU of its pools is free anywhere, so no worker finds a host."""
    ordinary_overtakes: bool = True
    count_low_priority: bool = False
    """Whether REQUEST_COUNT counts lowPriority jobs."""
    exceeded_status: Literal["TIMED_OUT", "FAILED"] = "TIMED_OUT"
    exceeded_stops_worker: bool = False

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("id", self.endpoint_id)):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
                raise UsageError(f"An endpoint's {field} is letters, digits, _ and -, at most 64, not {value!r}.")
        checks = (
            (self.workers_min >= 0, "workers_min must be at least 0"),
            (self.workers_min <= self.workers_max, f"workers_min ({self.workers_min}) is above workers_max ({self.workers_max})"),
            (self.idle_timeout_s > 0, "idle_timeout_s must be above 0"),
            (self.scaler_value > 0, "scaler_value must be above 0"),
            (self.execution_timeout_ms >= 0, "execution_timeout_ms must be at least 0"),
            (self.gpu_count >= 1, "gpu_count must be at least 1"),
            (self.concurrency >= 1, "concurrency must be at least 1"),
        )
        for ok, message in checks:
            if not ok:
                raise UsageError(f"{message}.", where=f"endpoint {self.name}")

    @property
    def endpoint_id(self) -> str:
        return self.id or self.name

    @property
    def bounds(self) -> Bounds:
        return Bounds(
            workers_min=self.workers_min,
            workers_max=self.workers_max,
            idle_timeout_s=self.idle_timeout_s,
            scaler=self.scaler,
            value=self.scaler_value,
            count_low_priority=self.count_low_priority,
        )

    @property
    def shown_name(self) -> str:
        return self.title or self.name

    @property
    def init_timeout_s(self) -> float:
        """What is not a positive number counts as not set: env can be anything, and no mistake in it may stop the emulator."""
        try:
            seconds = float(self.env.get("RUNPOD_INIT_TIMEOUT", INIT_TIMEOUT_S))
        except ValueError:
            return INIT_TIMEOUT_S
        return seconds if 0 < seconds < float("inf") else INIT_TIMEOUT_S


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an image is on this machine: how a container of it starts. An endpoint's `args` go behind `command`, its `env` over `env`."""

    command: tuple[str, ...] = ()
    """argv. Empty: workers are scripted, or come from outside."""
    cwd: str | None = None
    env: Mapping[str, str] = {}


class EmulatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole emulator. `state_dir` holds everything that it writes."""

    state_dir: str
    endpoints: tuple[EndpointConfig, ...]
    stack: str = "local"
    host: str = "127.0.0.1"
    port: int = 0
    """0: the port that this state directory had before if it is free, else a free one."""
    api_key: str | None = None
    """Of the client; None: made at random and kept in the state directory."""
    s3: bool = True
    bucket: str = "nightbatch"
    rate_limits: bool = True
    requests_per_worker: int = 0
    """Second factor of the rate limits; RunPod does not publish it."""
    tick_s: float = 0.5
    """How often the autoscaler looks, and time acts on jobs."""
    long_poll_s: float = 15.0
    """How long job-take, job-take-batch and job-stop wait before they answer 204 (SDK workers end a poll after 90 s)."""
    ping_interval_ms: int = 10_000
    """At least a second: the SDK counts whole seconds, and with none its pings fail."""
    lost_after_s: float = jobs.LOST_AFTER_S
    redeliveries: int = jobs.REDELIVERIES
    webhook_retries_s: tuple[float, ...] = (10.0, 10.0)
    """Waits before further attempts (send-requests: two more, 10 s apart; observed gaps were 5 s and 15 s)."""
    webhook_states: tuple[str, ...] = ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT")
    """States that fire a webhook; for the last two RunPod says nothing."""
    edge_timeout_s: float = 100.0
    """A /runsync answer that takes longer is cut with 524 at RunPod's edge (observed)."""
    forwarded_fields: tuple[str, ...] = ("input", "s3Config", "webhook")
    """Fields of a request that a worker sees. `input` and `s3Config` are certain, `webhook` is likely, `policy` is not known."""
    stop_grace_s: float = 10.0
    """Real seconds from SIGTERM to SIGKILL for a worker."""
    control: bool = True
    """Whether REST v2 answers."""
    images: Mapping[str, ImageConfig] = {}
    """What images are on this machine, by reference; "*" stands for all others. An endpoint with another image is refused (422)."""
    read_only_api_key: str | None = None
    """A second key, which may read REST v2 and nothing else."""
    rest_quotas: Mapping[Literal["minute", "hour", "day"], int] = msgspec.field(default_factory=lambda: dict(REST_QUOTAS))
    """Requests to REST v2 (control/quota.py says whence); none with `rate_limits` off."""
    worker_quota: int = 60
    """The account's workers, as a sum over workers.max: RunPod grants 5 to 60 by balance, and its API does not tell."""
    idle_rule: bool = True
    """Whether endpoints without requests are cut (control/rules.py)."""
    unhealthy_scale_down_s: float = 7 * 86_400.0
    """After how long without a worker that became ready an endpoint of unhealthy workers is scaled down."""
    bind_templates: bool = False
    """Whether an endpoint made with templateId binds that template, as the APIs before v2 did: it cannot be deleted then, and goes with
    the endpoint. REST v2's own text says that no link is kept."""
    stock: Mapping[str, Literal["NONE", "LOW", "MEDIUM", "HIGH"]] = {}
    """What of the catalog is not in full stock, by GPU pool or type. An endpoint is placed in, and priced as, its first pool with stock."""

    def __post_init__(self) -> None:
        if self.ping_interval_ms < 1000:
            raise UsageError(f"ping_interval_ms must be at least 1000, not {self.ping_interval_ms}.", fix="The SDK counts whole seconds.")
        names = [endpoint.name for endpoint in self.endpoints] + [
            endpoint.id for endpoint in self.endpoints if endpoint.id and endpoint.id != endpoint.name
        ]
        if len(set(names)) != len(names):
            raise UsageError("Two endpoints have the same name or id.")
        if taken := sorted(set(names) & RESERVED):
            raise UsageError(f"An endpoint cannot be called {taken[0]}: that is a path of REST v2.")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", self.bucket):
            raise UsageError(f"{self.bucket!r} is not a bucket name: 3 to 63 lower-case letters, digits, dots and hyphens.")

    def broker_settings(self, endpoint: EndpointConfig) -> BrokerSettings:
        return BrokerSettings(
            execution_timeout_ms=endpoint.execution_timeout_ms,
            ordinary_overtakes=endpoint.ordinary_overtakes,
            lost_after_s=self.lost_after_s,
            redeliveries=self.redeliveries,
            exceeded_status=Status(endpoint.exceeded_status),
            exceeded_stops_worker=endpoint.exceeded_stops_worker,
        )

    @property
    def quotas(self) -> Mapping[str, int]:
        return {window: quota for window, quota in self.rest_quotas.items()} if self.rate_limits else {}

    @property
    def limits(self) -> Mapping[str, Limit]:
        return RUNPOD_LIMITS if self.rate_limits else NO_LIMITS


def read_config(text: bytes, where: str) -> EmulatorConfig:
    """Read a JSON configuration. Raises UsageError naming the field."""
    try:
        return msgspec.json.decode(text, type=EmulatorConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"The emulator's configuration is not valid: {error}.", where=where) from None
    except msgspec.DecodeError as error:
        raise UsageError(f"The emulator's configuration is not JSON: {error}.", where=where) from None
