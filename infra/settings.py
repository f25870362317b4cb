"""infra: a stack's settings, read once into frozen models. Pure: takes the values of a stack file, knows nothing of Pulumi.

Settings speak the user's terms (model, GPU pools in order of preference, peak workers, seconds); what RunPod calls these things is the
business of `infra.components`. Everything that is wrong is listed at once, each with its key (`nightbatch:endpoints[0].gpu.pools`) and the
stack file. docs/infrastructure.md explains every key.

Secrets are never in here. `nightbatch:secrets` is a map of Pulumi secrets; the settings know their names only.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from contract.errors import UsageError
from contract.facts import API_URL
from contract.gpus import PRICES_DATE, usd_per_hour
from contract.models import TaskKind

PROJECT: Final = "nightbatch"
STACKS: Final = "infra/stacks"
"""Where the stack files are (Pulumi.yaml: stackConfigDir)."""
PRODUCTION: Final = "prod"

EndpointType = Literal["QUEUE", "LOAD_BALANCER"]
Scaler = Literal["QUEUE_DELAY", "REQUEST_COUNT"]
Rollout = Literal["rolling", "strict"]
SourceKind = Literal["hub", "volume", "baked", "cached"]
VolumeType = Literal["STANDARD", "HIGH_PERFORMANCE"]
Flashboot = Literal["OFF", "FLASHBOOT", "PRIORITY_FLASHBOOT"]
Level = Literal["mandatory", "advisory", "ignore"]

ENDPOINT_TYPES: Final[tuple[EndpointType, ...]] = ("QUEUE", "LOAD_BALANCER")
SCALERS: Final[tuple[Scaler, ...]] = ("QUEUE_DELAY", "REQUEST_COUNT")
ROLLOUTS: Final[tuple[Rollout, ...]] = ("rolling", "strict")
SOURCES: Final[tuple[SourceKind, ...]] = ("hub", "volume", "baked", "cached")
VOLUME_TYPES: Final[tuple[VolumeType, ...]] = ("STANDARD", "HIGH_PERFORMANCE")
FLASHBOOTS: Final[tuple[Flashboot, ...]] = ("OFF", "FLASHBOOT", "PRIORITY_FLASHBOOT")
LEVELS: Final[tuple[Level, ...]] = ("mandatory", "advisory", "ignore")
TASKS: Final[tuple[TaskKind, ...]] = ("generate", "embed")
RULE_NAMES: Final = (
    "image-digest", "worker-ceiling", "cost-ceiling", "active-workers", "execution-timeout", "gpu-pools", "volume-protection",
)  # fmt: skip

KEYS: Final = ("production", "store", "endpoints", "volumes", "registry", "secrets", "rules", "gpuPrices", "apiUrl")
"""Every key that a stack file may have under `nightbatch:`."""

VOLUME_MOUNT: Final = "/runpod-volume"
"""Where RunPod mounts network volumes and cached models in serverless workers (storage/network-volumes)."""
S3_DATA_CENTERS: Final = frozenset(
    {
        "EU-CZ-1", "EU-RO-1", "EUR-IS-1", "EUR-NO-1", "US-CA-2", "US-GA-2", "US-IL-1", "US-KS-2", "US-MD-1", "US-MO-1", "US-MO-2",
        "US-NC-1", "US-NC-2", "US-NE-1", "US-WA-1",
    }
)  # fmt: skip
"""Data centers whose volumes have an S3 address (storage/s3-api, August 2026)."""

RESERVED_ENV: Final = {
    "NIGHTBATCH_MODEL": "model and modelSource",
    "NIGHTBATCH_SERVED_NAME": "model",
    "NIGHTBATCH_REVISION": "revision",
    "NIGHTBATCH_TASK": "tasks",
    "NIGHTBATCH_CONCURRENCY": "maxConcurrency",
    "NIGHTBATCH_MODEL_SOURCE": "modelSource",
    "NIGHTBATCH_IMAGE": "image",
    "NIGHTBATCH_PULUMI_URN_HASH": "the provider",
    "MAX_NUM_SEQS": "maxNumSeqs",
    "MAX_MODEL_LEN": "maxModelLen",
    "PORT": "health.port",
    "PORT_HEALTH": "health.port",
    "HEALTH_CHECK_PATH": "health.path",
}
"""Variables that the program sets itself, and the setting that each comes from."""

# --- the models ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """What a worker runs on. `pools`: in order of preference; `count`: GPUs of one worker."""

    pools: tuple[str, ...]
    count: int = 1
    excluded_types: tuple[str, ...] = ()
    min_cuda_version: str | None = None
    allowed_cuda_versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelSource:
    """Where the weights come from: the hub at each cold start, a network volume, the image, or RunPod's cached models (set in the console:
    REST v2 has no field for it). `path`: the folder on the volume or in the image."""

    kind: SourceKind = "hub"
    volume: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class Health:
    """Of a load-balancing endpoint: the path that RunPod asks, and the port that the worker listens on."""

    path: str = "/ping"
    port: int = 80


@dataclass(frozen=True)
class EndpointSettings:
    """One endpoint. `workers_peak` is the most that may ever run (RunPod: workers.max). `max_concurrency`: jobs (shards) that one worker
    takes at once; `max_num_seqs`: rows that its engine computes at once: two things."""

    name: str
    type: EndpointType
    image: str
    gpu: Gpu
    workers_peak: int
    workers_min: int = 0
    model: str | None = None
    revision: str | None = None
    tasks: tuple[TaskKind, ...] = ()
    scaler: Scaler = "QUEUE_DELAY"
    scaler_value: float = 4.0
    idle_timeout_s: int = 10
    execution_timeout_s: float | None = None
    max_concurrency: int = 2
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    cold_start_s: float = 60.0
    source: ModelSource = ModelSource()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: tuple[str, ...] = ()
    rollout: Rollout = "rolling"
    data_centers: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    flashboot: Flashboot = "OFF"
    disk_gb: int | None = None
    health: Health | None = None
    protect: bool = False
    drain_on_delete: bool = False

    @property
    def image_digest(self) -> str | None:
        """`sha256:…` where the image is pinned."""
        found = re.search(r"@(sha256:[0-9a-f]{64})$", self.image)
        return found[1] if found else None

    @property
    def image_identity(self) -> str:
        """What plans, workers and commits call the image: its digest, else the reference as it was written."""
        return self.image_digest or self.image


@dataclass(frozen=True)
class VolumeSettings:
    """One network volume; GB. It only grows, and neither moves nor changes its type: those replace it, and its data is lost."""

    name: str
    size_gb: int
    data_center: str
    type: VolumeType | None = None
    protect: bool = False

    @property
    def s3_url(self) -> str | None:
        """The address of its S3 API; None where the data center has none."""
        return f"https://s3api-{self.data_center.lower()}.runpod.io/" if self.data_center in S3_DATA_CENTERS else None


@dataclass(frozen=True)
class RegistrySettings:
    """A private registry's credential: one that exists (`id`), or one to make (`name`, `username`, and the name of the secret)."""

    id: str | None = None
    name: str | None = None
    username: str | None = None
    password_secret: str | None = None


@dataclass(frozen=True)
class StoreSettings:
    """Where runs are kept: a bucket at an S3 address, or one of this stack's volumes."""

    bucket: str | None = None
    endpoint_url: str | None = None
    volume: str | None = None
    prefix: str = ""


@dataclass(frozen=True)
class RuleSettings:
    """Ceilings of the whole stack, and the level of each rule where it is not the stack's default."""

    max_workers: int | None = None
    max_usd_per_hour: float | None = None
    allow_active_workers: bool = False
    levels: Mapping[str, Level] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """A stack. `file`: the stack file, for messages. `secrets`: names only."""

    stack: str
    file: str
    production: bool
    store: StoreSettings
    endpoints: tuple[EndpointSettings, ...]
    volumes: tuple[VolumeSettings, ...] = ()
    registry: RegistrySettings | None = None
    secrets: frozenset[str] = frozenset()
    rules: RuleSettings = RuleSettings()
    gpu_prices: Mapping[str, float] = field(default_factory=dict)
    api_url: str = API_URL

    def volume(self, name: str) -> VolumeSettings:
        """The volume called `name`; settings that were parsed name only volumes that there are."""
        return next(volume for volume in self.volumes if volume.name == name)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a stack file: the key as the file has it, and one clause."""

    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.key}: {self.what}"


class SettingsError(UsageError):
    """A stack file that cannot be used; `problems` are all of them."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{len(problems)} setting{'s are' if len(problems) > 1 else ' is'} not usable:{lines}", where=file)
        self.problems = tuple(problems)


def stack_file(stack: str) -> str:
    """Where the settings of a stack are, from the project's root."""
    return f"{STACKS}/Pulumi.{stack.rpartition('/')[2]}.yaml"


# --- reading -------------------------------------------------------------------------------------------------------------------------

T = TypeVar("T", bound=str)
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_DATA_CENTER: Final = r"[A-Z]{2,3}(-[A-Z]{2})?-[0-9]{1,2}"
_MISSING: Final[Any] = object()
MOST: Final = 2**53
"""No setting is larger: the engine's numbers are doubles, and above this they are no longer what was written."""


class _Reader:
    """A map of the stack file, its path, and the list that problems go to. A getter that finds a problem notes it and returns what keeps
    the reading going."""

    def __init__(self, problems: list[Problem], path: str, value: Any, known: Iterable[str]) -> None:
        self.problems, self.path = problems, path
        self.known = tuple(known)
        self.values: Mapping[str, Any] = {}
        if isinstance(value, Mapping):
            self.values = {str(key): found for key, found in value.items()}
        else:
            self.note("", f"must be a map of {', '.join(self.known)}")
        for key in self.values:
            if key not in self.known:
                close = difflib.get_close_matches(key, self.known, 1, 0.6)
                self.note(key, f"is not a setting{f'; did you mean {close[0]}?' if close else '; there are ' + ', '.join(self.known)}")

    def note(self, key: str, what: str) -> None:
        self.problems.append(Problem(self.at(key), what))

    def at(self, key: str) -> str:
        if not key:
            return self.path
        return f"{self.path}{key}" if self.path.endswith(":") else f"{self.path}.{key}"

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _get(self, key: str, required: bool) -> Any:
        value = self.values.get(key)
        if value is None:
            if required:
                self.note(key, "must be set")
            return _MISSING
        return value

    def text(self, key: str, *, pattern: str | None = None, example: str = "", required: bool = False) -> str | None:
        value = self._get(key, required)
        if value is _MISSING:
            return None
        if not isinstance(value, str) or not value.strip():
            self.note(key, f"must be text{', such as ' + example if example else ''}, not {_shown(value)}")
            return None
        if pattern is not None and not re.fullmatch(pattern, value):
            self.note(key, f"{_shown(value)} does not fit{'; an example: ' + example if example else ''}")
            return None
        return value

    def one_of(self, key: str, choices: Sequence[T], default: T) -> T:
        value = self._get(key, False)
        if value is _MISSING:
            return default
        for choice in choices:
            if value == choice:
                return choice
        self.note(key, f"must be {' or '.join(choices)}, not {_shown(value)}")
        return default

    def whole(self, key: str, *, least: int, most: int | None = None, required: bool = False) -> int | None:
        value = self._get(key, required)
        if value is _MISSING:
            return None
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= (MOST if most is None else most):
            span = f"from {least} to {most}" if most is not None else f"of {least} or more"
            self.note(key, f"must be a whole number {span}, not {_shown(value)}")
            return None
        return number

    def number(self, key: str, *, least: float, most: float = math.inf) -> float | None:
        value = self._get(key, False)
        if value is _MISSING:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= min(most, MOST):
            span = f"from {least:g} to {most:g}" if most != math.inf else f"of {least:g} or more"
            self.note(key, f"must be a number {span}, not {_shown(value)}")
            return None
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, False)
        if value is _MISSING:
            return default
        if not isinstance(value, bool):
            self.note(key, f"must be true or false, not {_shown(value)}")
            return default
        return value

    def texts(self, key: str, *, pattern: str = r"\S(.*\S)?", example: str = "") -> tuple[str, ...]:
        value = self._get(key, False)
        if value is _MISSING:
            return ()
        if not isinstance(value, list | tuple):
            self.note(key, f"must be a list{', such as [' + example + ']' if example else ''}, not {_shown(value)}")
            return ()
        found: list[str] = []
        for number, item in enumerate(value):
            at = f"{key}[{number}]"
            if not isinstance(item, str) or not re.fullmatch(pattern, item):
                self.note(at, f"{_shown(item)} does not fit{'; an example: ' + example if example else ''}")
            elif item in found:
                self.note(at, f"{_shown(item)} is there twice")
            else:
                found.append(item)
        return tuple(found)

    def within(self, key: str, known: Iterable[str]) -> _Reader | None:
        if not self.has(key):
            return None
        return _Reader(self.problems, self.at(key), self.values[key], known)

    def each(self, key: str, known: Sequence[str]) -> list[_Reader]:
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.note(key, "must be a list: each item begins with a dash")
            return []
        return [_Reader(self.problems, f"{self.at(key)}[{number}]", item, known) for number, item in enumerate(value)]


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def parse(
    values: Mapping[str, Any],
    stack: str,
    *,
    secrets: Collection[str] = (),
    environ: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    """The settings of `stack` from the values under `nightbatch:` of its stack file. Raises SettingsError with every problem.

    `values`: key (without the namespace) to value, as text or decoded; Pulumi hands lists and maps over as JSON text. `secrets`: the names
    under `nightbatch:secrets`. `environ`: only for what a stack file may leave out because it differs from machine to machine, the address
    of the store (NIGHTBATCH_S3_BUCKET, NIGHTBATCH_S3_ENDPOINT_URL) and of RunPod (RUNPOD_ENDPOINT_BASE_URL); the file goes before it.
    """
    environ = environ or {}
    short = stack.rpartition("/")[2]
    file = file or stack_file(stack)
    problems: list[Problem] = []
    decoded: dict[str, Any] = {}
    for key, value in values.items():
        decoded[key] = _decoded(key, value, problems)
    top = _Reader(problems, f"{PROJECT}:", decoded, KEYS)
    production = top.flag("production", short == PRODUCTION)
    volumes = tuple(_volume(reader, production) for reader in top.each("volumes", _VOLUME_KEYS))
    _unique(top, "volumes", [volume.name for volume in volumes])
    names = frozenset(secrets)
    endpoints = tuple(_endpoint(reader, production, volumes, names) for reader in top.each("endpoints", _ENDPOINT_KEYS))
    _unique(top, "endpoints", [endpoint.name for endpoint in endpoints])
    if not endpoints and not any(problem.key.startswith(f"{PROJECT}:endpoints") for problem in problems):
        top.note("endpoints", "must have at least one endpoint")
    registry = _registry(top, names)
    store = _store(top, volumes, environ)
    rules = _rules(top)
    gpu_prices = _prices(top)
    api_url = top.text("apiUrl", example=API_URL) or environ.get("RUNPOD_ENDPOINT_BASE_URL") or API_URL
    if not _is_url(api_url):
        top.note("apiUrl", f"{_shown(api_url)} is not an address")
    if problems:
        raise SettingsError(file, sorted(problems, key=lambda problem: problem.key))
    return Settings(
        stack=short,
        file=file,
        production=production,
        store=store,
        endpoints=endpoints,
        volumes=volumes,
        registry=registry,
        secrets=names,
        rules=rules,
        gpu_prices=gpu_prices,
        api_url=api_url.rstrip("/"),
    )


def _decoded(key: str, value: Any, problems: list[Problem]) -> Any:
    """Pulumi gives a program every value as text: lists, maps, numbers and booleans as JSON."""
    if not isinstance(value, str) or key == "apiUrl":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):  # no JSON, or more digits or more levels than any setting has
        if key in KEYS:
            wanted = "true or false" if key == "production" else "a list or a map"
            problems.append(Problem(f"{PROJECT}:{key}", f"must be {wanted}, not text"))
        return None


_VOLUME_KEYS: Final = ("name", "size", "dataCenter", "type", "protect")
_ENDPOINT_KEYS: Final = (
    "name", "type", "model", "revision", "tasks", "image", "gpu", "workers", "scaler", "idleTimeout", "executionTimeout", "maxConcurrency",
    "maxNumSeqs", "maxModelLen", "coldStart", "modelSource", "env", "secretEnv", "rollout", "dataCenters", "volumes", "flashboot", "disk",
    "health", "protect", "drainOnDelete",
)  # fmt: skip


def _volume(reader: _Reader, production: bool) -> VolumeSettings:
    return VolumeSettings(
        name=reader.text("name", pattern=_NAME, example="models", required=True) or "",
        size_gb=reader.whole("size", least=10, most=4096, required=True) or 10,
        data_center=reader.text("dataCenter", pattern=_DATA_CENTER, example="EU-RO-1", required=True) or "",
        type=reader.one_of("type", VOLUME_TYPES, "STANDARD") if reader.has("type") else None,
        protect=reader.flag("protect", production),
    )


def _endpoint(reader: _Reader, production: bool, volumes: Sequence[VolumeSettings], secrets: frozenset[str]) -> EndpointSettings:
    kind = reader.one_of("type", ENDPOINT_TYPES, "QUEUE")
    queue = kind == "QUEUE"
    scaler, scaler_value = _scaler(reader, queue)
    peak, least = _workers(reader)
    if reader.has("idleTimeout") and queue and scaler == "REQUEST_COUNT":
        reader.note("idleTimeout", "RunPod refuses it on a queue endpoint that scales by REQUEST_COUNT: leave it out")
    tasks = tuple(task for task in TASKS if task in reader.texts("tasks", pattern="generate|embed", example="embed"))
    if queue and not reader.has("tasks"):
        reader.note("tasks", "must be set: [generate] or [embed]")
    if queue and len(tasks) > 1:
        reader.note("tasks", "one engine does one of generate and embed: make an endpoint for each")
    source = _source(reader, volumes)
    mounted = reader.texts("volumes", pattern=_NAME, example="models")
    if source.volume is not None and source.volume not in mounted:
        mounted = (*mounted, source.volume)
    data_centers = reader.texts("dataCenters", pattern=_DATA_CENTER, example="EU-RO-1")
    _placement(reader, mounted, data_centers, volumes)
    model = reader.text("model", example="sentence-transformers/all-MiniLM-L6-v2", required=queue)
    execution = reader.number("executionTimeout", least=0, most=604_800)
    if execution is not None and 0 < execution < 5:
        reader.note("executionTimeout", f"RunPod's least is 5 seconds, not {execution:g}")
    return EndpointSettings(
        name=reader.text("name", pattern=_NAME, example="minilm", required=True) or "",
        type=kind,
        image=_image(reader),
        gpu=_gpu(reader),
        workers_peak=peak,
        workers_min=least,
        model=model,
        revision=reader.text("revision", pattern=r"[\w.\-/]+"),
        tasks=tasks,
        scaler=scaler,
        scaler_value=scaler_value,
        idle_timeout_s=reader.whole("idleTimeout", least=1, most=3600) or 10,
        execution_timeout_s=execution or None,
        max_concurrency=reader.whole("maxConcurrency", least=1, most=16) or 2,
        max_num_seqs=reader.whole("maxNumSeqs", least=1),
        max_model_len=reader.whole("maxModelLen", least=1),
        cold_start_s=_or(reader.number("coldStart", least=0, most=3600), 60.0),
        source=source,
        env=_env(reader),
        secret_env=_secret_env(reader, secrets),
        rollout=reader.one_of("rollout", ROLLOUTS, "rolling"),
        data_centers=data_centers,
        volumes=mounted,
        flashboot=reader.one_of("flashboot", FLASHBOOTS, "OFF"),
        disk_gb=reader.whole("disk", least=1),
        health=_health(reader, queue),
        protect=reader.flag("protect", production),
        drain_on_delete=reader.flag("drainOnDelete", production and queue),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _image(reader: _Reader) -> str:
    """A reference as `docker pull` takes it. Whether it is pinned is a rule's business."""
    pattern = r"[a-z0-9][a-zA-Z0-9.\-_/:]*[a-zA-Z0-9](@sha256:[0-9a-f]{64})?"
    return reader.text("image", pattern=pattern, example="registry.example.com/nightbatch-worker@sha256:…", required=True) or ""


def _gpu(reader: _Reader) -> Gpu:
    gpu = reader.within("gpu", ("pools", "count", "excludedTypes", "minCudaVersion", "allowedCudaVersions"))
    if gpu is None:
        reader.note("gpu", "must be set: gpu: {pools: [AMPERE_24, ADA_24]}")
        return Gpu(())
    pools = gpu.texts("pools", pattern=r"[A-Z][A-Z0-9_]*", example="AMPERE_24, ADA_24")
    if not gpu.values.get("pools"):
        gpu.note("pools", "must have at least one pool, the preferred one first, such as [AMPERE_24, ADA_24]")
    floor = gpu.text("minCudaVersion", pattern=r"\d+\.\d+", example='"12.8"')
    allowed = gpu.texts("allowedCudaVersions", pattern=r"\d+\.\d+", example='"12.8"')
    if floor and allowed:
        gpu.note("minCudaVersion", "RunPod takes it or allowedCudaVersions, not both")
    return Gpu(
        pools=pools,
        count=gpu.whole("count", least=1) or 1,
        excluded_types=gpu.texts("excludedTypes", pattern=r"[^-\s].*", example="NVIDIA L40"),
        min_cuda_version=floor,
        allowed_cuda_versions=allowed,
    )


def _workers(reader: _Reader) -> tuple[int, int]:
    workers = reader.within("workers", ("peak", "min"))
    if workers is None:
        reader.note("workers", "must be set: workers: {peak: 3}")
        return 0, 0
    peak = workers.whole("peak", least=0, required=True)
    least = workers.whole("min", least=0) or 0
    if peak is not None and least > peak:
        workers.note("min", f"{least} is above peak ({peak})")
    return peak or 0, least


def _scaler(reader: _Reader, queue: bool) -> tuple[Scaler, float]:
    usual: Scaler = "QUEUE_DELAY" if queue else "REQUEST_COUNT"
    scaler = reader.within("scaler", ("type", "value"))
    if scaler is None:
        return usual, 4.0
    kind = scaler.one_of("type", SCALERS, usual)
    if not queue and kind != "REQUEST_COUNT":
        scaler.note("type", "a load-balancing endpoint scales by REQUEST_COUNT")
    if kind == "REQUEST_COUNT":
        return kind, float(scaler.whole("value", least=1) or 4)
    return kind, _or(scaler.number("value", least=0.5), 4.0)


def _source(reader: _Reader, volumes: Sequence[VolumeSettings]) -> ModelSource:
    source = reader.within("modelSource", ("kind", "volume", "path"))
    if source is None:
        return ModelSource()
    if not source.has("kind"):
        source.note("kind", f"must be {' or '.join(SOURCES)}")
    kind = source.one_of("kind", SOURCES, "hub")
    volume = source.text("volume", pattern=_NAME, example="models")
    path = source.text("path", pattern=r"[^\s~]+", example="/models/minilm")
    if kind == "volume":
        if volume is None:
            source.note("volume", "must name one of the stack's volumes")
        elif all(volume != found.name for found in volumes):
            source.note("volume", f"there is no volume {volume!r} in this stack")
            volume = None
    elif volume is not None:
        source.note("volume", f"only a model from a volume has one, not kind: {kind}")
        volume = None
    if kind == "baked" and (path is None or not path.startswith("/")):
        source.note("path", "must be the model's folder in the image, such as /models/minilm")
    if kind in ("hub", "cached") and path is not None:
        source.note("path", f"a model of kind {kind} has its name only")
    return ModelSource(kind, volume, path)


def _placement(reader: _Reader, mounted: Sequence[str], data_centers: Sequence[str], volumes: Sequence[VolumeSettings]) -> None:
    where = {volume.name: volume.data_center for volume in volumes}
    seen: dict[str, str] = {}
    for name in mounted:
        center = where.get(name)
        if center is None:
            reader.note("volumes", f"there is no volume {name!r} in this stack")
        elif center in seen:
            reader.note("volumes", f"{seen[center]} and {name} are both in {center}: an endpoint may have one volume in each data center")
        else:
            seen[center] = name
            if data_centers and center not in data_centers:
                reader.note("dataCenters", f"volume {name} is in {center}, which is not in the list: no worker could reach it")


def _env(reader: _Reader) -> dict[str, str]:
    value = reader.values.get("env")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        reader.note("env", "must be a map of names to text")
        return {}
    found: dict[str, str] = {}
    for name, text in value.items():
        at = f"env.{name}"
        if not re.fullmatch(_VARIABLE, str(name)):
            reader.note(at, "is not the name of a variable")
        elif str(name) in RESERVED_ENV:
            reader.note(at, f"is set by the program, from {RESERVED_ENV[str(name)]}")
        elif not isinstance(text, str):
            reader.note(at, "must be text: write the value in quotes")
        else:
            found[str(name)] = text
    return found


def _secret_env(reader: _Reader, secrets: frozenset[str]) -> tuple[str, ...]:
    names = reader.texts("secretEnv", pattern=_VARIABLE, example="HF_TOKEN")
    env = reader.values.get("env")
    for name in names:
        if name in RESERVED_ENV:
            reader.note("secretEnv", f"{name} is set by the program, from {RESERVED_ENV[name]}")
        if isinstance(env, Mapping) and name in env:
            reader.note("secretEnv", f"{name} is in env too")
        if name not in secrets:
            reader.note("secretEnv", f"there is no secret {name}: {_how_to_set(name)}")
    return names


def _how_to_set(name: str) -> str:
    return f"pulumi config set --secret --path '{PROJECT}:secrets.{name}'"


def _health(reader: _Reader, queue: bool) -> Health | None:
    health = reader.within("health", ("path", "port"))
    if queue:
        if health is not None:
            reader.note("health", "only a load-balancing endpoint has one")
        return None
    if health is None:
        return Health()
    return Health(
        path=health.text("path", pattern=r"/[^\s?#]*", example="/ping") or "/ping", port=health.whole("port", least=1, most=65535) or 80
    )


def _registry(top: _Reader, secrets: frozenset[str]) -> RegistrySettings | None:
    registry = top.within("registry", ("id", "name", "username", "passwordSecret"))
    if registry is None:
        return None
    made = [key for key in ("name", "username", "passwordSecret") if registry.has(key)]
    if registry.has("id"):
        if made:
            registry.note("id", f"names a credential that exists; {' and '.join(made)} would make another: use one way")
        return RegistrySettings(id=registry.text("id", pattern=r"\S+"))
    secret = registry.text("passwordSecret", pattern=_VARIABLE, example="REGISTRY_PASSWORD", required=True)
    if secret is not None and secret not in secrets:
        registry.note("passwordSecret", f"there is no secret {secret}: {_how_to_set(secret)}")
    return RegistrySettings(
        name=registry.text("name", pattern=r"\S(.*\S)?", example="company", required=True),
        username=registry.text("username", pattern=r"\S+", required=True),
        password_secret=secret,
    )


def _store(top: _Reader, volumes: Sequence[VolumeSettings], environ: Mapping[str, str]) -> StoreSettings:
    given: Any = top.values.get("store")
    store = _Reader(top.problems, top.at("store"), {} if given is None else given, ("bucket", "endpointUrl", "volume", "prefix"))
    prefix = (store.text("prefix", pattern=r"[A-Za-z0-9._/-]+", example="nightbatch") or "").strip("/")
    if "//" in prefix:
        store.note("prefix", "must not have two slashes in a row")
    volume = store.text("volume", pattern=_NAME, example="runs")
    if volume is not None:
        if store.has("bucket") or store.has("endpointUrl"):
            store.note("volume", "a volume is the bucket and has its own address: leave bucket and endpointUrl out")
        found = next((candidate for candidate in volumes if candidate.name == volume), None)
        if found is None:
            store.note("volume", f"there is no volume {volume!r} in this stack")
        elif found.s3_url is None:
            store.note("volume", f"volumes in {found.data_center} have no S3 address; these have: {', '.join(sorted(S3_DATA_CENTERS))}")
        return StoreSettings(volume=volume, prefix=prefix)
    bucket = store.text("bucket", pattern=r"[A-Za-z0-9._-]{1,255}", example="our-batches") or environ.get("NIGHTBATCH_S3_BUCKET")
    url = store.text("endpointUrl", example="https://s3.eu-west-1.amazonaws.com") or environ.get("NIGHTBATCH_S3_ENDPOINT_URL")
    if not store.has("bucket") and not bucket:
        store.note("bucket", "must be set (or NIGHTBATCH_S3_BUCKET in the environment)")
    if not store.has("endpointUrl") and not url:
        store.note("endpointUrl", "must be set (or NIGHTBATCH_S3_ENDPOINT_URL in the environment)")
    if url and not _is_url(url):
        store.note("endpointUrl", f"{_shown(url)} is not an address; it looks like https://s3.eu-west-1.amazonaws.com")
    return StoreSettings(bucket=bucket, endpoint_url=url, prefix=prefix)


def _rules(top: _Reader) -> RuleSettings:
    rules = top.within("rules", ("maxWorkers", "maxUsdPerHour", "allowActiveWorkers", "levels"))
    if rules is None:
        return RuleSettings()
    levels = rules.within("levels", RULE_NAMES)
    usual: Level = "mandatory"
    return RuleSettings(
        max_workers=rules.whole("maxWorkers", least=0),
        max_usd_per_hour=rules.number("maxUsdPerHour", least=0),
        allow_active_workers=rules.flag("allowActiveWorkers", False),
        levels={} if levels is None else {name: levels.one_of(name, LEVELS, usual) for name in RULE_NAMES if levels.has(name)},
    )


def _prices(top: _Reader) -> dict[str, float]:
    value = top.values.get("gpuPrices")
    if value is None:
        return {}
    prices = top.within("gpuPrices", value.keys() if isinstance(value, Mapping) else ("AMPERE_24",))
    assert prices is not None
    found = {pool: prices.number(pool, least=0) for pool in prices.values}
    return {pool: price for pool, price in found.items() if price is not None}


def _unique(top: _Reader, key: str, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if name and name in names[:number]:
            top.note(f"{key}[{number}].name", f"{name!r} is there twice")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and re.fullmatch(r"[!-~]+", text) is not None
    except ValueError:
        return False


# --- prices --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prices:
    """Dollars an hour of one GPU, by pool. `source` says where they come from, for outputs and messages."""

    usd_per_hour: Mapping[str, float]
    source: str

    def of_worker(self, gpu: Gpu) -> float | None:
        """What one worker costs an hour at most: the dearest of its pools, all its GPUs. RunPod takes a later pool when the first has no
        room, and a budget must hold then too. None when a pool's price is not known."""
        known = [self.usd_per_hour.get(pool) for pool in gpu.pools]
        if not known or None in known:
            return None
        return max(price for price in known if price is not None) * gpu.count

    def unknown(self, gpu: Gpu) -> tuple[str, ...]:
        """The pools without a price."""
        return tuple(pool for pool in gpu.pools if pool not in self.usd_per_hour)


def prices(settings: Settings, catalog: Iterable[Mapping[str, Any]] | None = None) -> Prices:
    """Prices as the stack file says them, else as RunPod's catalog does, else as its page did on PRICES_DATE.

    `catalog`: the GPU types of GET /v2/catalog/gpus (`pool`, `price.serverless` in dollars per GPU and hour), where a key was there to ask.
    """
    found = usd_per_hour()
    source = f"RunPod's page of serverless prices, {PRICES_DATE}"
    if catalog is not None:
        live: dict[str, float] = {}
        for card in catalog:
            pool, price = card.get("pool"), (card.get("price") or {}).get("serverless")
            if pool and price:
                live[pool] = max(live.get(pool, 0.0), float(price))
        if live:
            found, source = {**found, **live}, "RunPod's catalog"
    return Prices({**found, **settings.gpu_prices}, source)
