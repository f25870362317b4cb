"""infra/provider: the serverless endpoint, as pure functions over plain dicts. Touches nothing.

Sources: the OpenAPI file's CreateEndpointRequest, UpdateEndpointRequest and Endpoint; what the file does not say (an omitted timeout comes
back as 0, a PATCH of env replaces the whole map, pools without excludedTypes clear them) from RunPod's own migration notes.

`templateId` is a snapshot: RunPod copies the template's container settings once and forgets it. So a changed `templateHash` sends the
template again, and whatever a template can bring is not compared while the program does not declare it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from contract.errors import UsageError
from infra.provider.resources.fields import (
    UNKNOWN,
    Change,
    Failure,
    Field,
    Json,
    Kind,
    at,
    body_of,
    by_name,
    check_fields,
    diff_fields,
    has_unknown,
    known,
    known_outputs,
    live_inputs,
    live_value,
    tops,
)

MARKER: Final = "NIGHTBATCH_PULUMI_URN_HASH"
"""A variable in the endpoint's env, never shown as one: names are not unique and REST v2 has no idempotency key, so this is how a create
whose answer was lost finds its endpoint again."""
DEFAULT_WORKERS_MAX: Final = 3
CUDA: Final = r"\d+\.\d+"
ENV_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.\-]*"
PORT: Final = r"\d{1,5}/(http|tcp)"

CONTAINER: Final = (
    Field(
        "args",
        "string",
        "Arguments passed to the container's entrypoint, as one string.",
        default="",
        container=True,
    ),
    Field("disk", "integer", "Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted.", minimum=1, container=True),
    Field(
        "env",
        "map",
        "Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with Output.secret.",
        pattern=ENV_NAME,
        example="MAX_CONCURRENCY",
        container=True,
    ),
    Field(
        "ports",
        "strings",
        "Exposed ports, as port/protocol.",
        default=(),
        pattern=PORT,
        example="8000/http",
        unique=True,
        container=True,
    ),
    Field("registry", "string", "Id of the registry credential for a private image.", min_items=1, default=None, container=True),
)
"""Container settings beside the image, as endpoints and templates share them."""

GPU: Final = (
    Field(
        "pools",
        "strings",
        "GPU pool ids in order of preference, such as ADA_24 (getGpus lists them). Workers go where there is capacity.",
        required=True,
        min_items=1,
        unique=True,
        ordered=True,
    ),
    Field("count", "integer", "GPUs per worker.", minimum=1, default=1),
    Field(
        "excludedTypes",
        "strings",
        "GPU type ids to leave out of the pools, such as NVIDIA L40.",
        default=(),
        pattern=r"[^-\s].*",
        example="NVIDIA L40",
        unique=True,
    ),
    Field(
        "allowedCudaVersions",
        "strings",
        "CUDA versions that a host may have, as major.minor. Excludes minCudaVersion.",
        default=(),
        pattern=CUDA,
        example="12.8",
        container=True,
    ),
    Field(
        "minCudaVersion",
        "string",
        "The lowest CUDA version that a host may have, as major.minor. Excludes allowedCudaVersions.",
        default="",
        pattern=CUDA,
        example="12.1",
    ),
)
CPU: Final = (
    Field("id", "string", "CPU flavor, such as cpu5c (getCpus lists them).", required=True, min_items=1),
    Field("vcpuCount", "integer", "vCPUs per worker: 2, 4, 8, ...", required=True, minimum=2),
)
WORKERS: Final = (
    Field("min", "integer", "Workers that always run, and are always paid for.", minimum=0, default=0),
    Field("max", "integer", "The most workers at once.", minimum=0, default=DEFAULT_WORKERS_MAX),
    Field(
        "idleTimeout",
        "integer",
        "Seconds before an idle worker is stopped, 1 to 3600. Not with REQUEST_COUNT on a queue endpoint.",
        minimum=1,
        maximum=3600,
    ),
)
SCALING: Final = (
    Field(
        "type",
        "string",
        "QUEUE_DELAY: a worker is added when a job has waited long enough; REQUEST_COUNT: one worker for so many requests.",
        required=True,
        enum=("QUEUE_DELAY", "REQUEST_COUNT"),
    ),
    Field("queueDelay", "number", "Seconds that a job may wait; with QUEUE_DELAY only.", minimum=0.5),
    Field("requestCount", "integer", "Requests per worker; with REQUEST_COUNT only.", minimum=1),
)
FIELDS: Final = (
    Field("name", "string", "The endpoint's name. RunPod does not require it to be unique.", required=True, min_items=1),
    Field(
        "type",
        "string",
        "QUEUE: jobs through RunPod's queue; LOAD_BALANCER: requests straight to the workers. A change replaces the endpoint.",
        required=True,
        enum=("QUEUE", "LOAD_BALANCER"),
        replaces=True,
    ),
    Field("image", "string", "The worker's image; pin it by digest. Excludes templateId.", min_items=1, container=True),
    *CONTAINER,
    Field("gpu", "object", "GPU workers. Excludes cpu; changing between the two replaces the endpoint.", fields=GPU),
    Field(
        "cpu",
        "objects",
        "CPU workers: the configurations that a worker may have. Excludes gpu.",
        fields=CPU,
        min_items=1,
        unique=True,
        ordered=True,
    ),
    Field("workers", "object", "How many workers.", fields=WORKERS),
    Field("scaling", "object", "When workers are added.", required=True, fields=SCALING),
    Field("dataCenterIds", "strings", "Data centers that workers may run in; empty for any.", default=(), unique=True),
    Field("networkVolumes", "strings", "Network volume ids, at most one a data center.", default=(), unique=True),
    Field(
        "timeout",
        "integer",
        "Milliseconds that one job may run. Set it: RunPod documents 300000 when omitted, and was seen to take 0.",
        minimum=0,
    ),
    Field("flashboot", "string", "Cold-start acceleration.", enum=("OFF", "FLASHBOOT", "PRIORITY_FLASHBOOT"), default="OFF"),
    Field(
        "templateId",
        "string",
        "A serverless template whose container settings are copied once. With its contentHash as templateHash an edit reaches it.",
        min_items=1,
        echoed=False,
        container=True,
    ),
    Field(
        "templateHash",
        "string",
        "Any text; when it changes, the template is sent again.",
        sent=False,
        container=True,
    ),
    Field(
        "rollout",
        "string",
        "rolling: old workers finish their job beside new ones; strict: workers.max to 0, running jobs finish, new content, workers back.",
        enum=("rolling", "strict"),
        default="rolling",
        sent=False,
    ),
    Field("drainOnDelete", "boolean", "Let running jobs finish before the endpoint is deleted.", default=False, sent=False),
    Field(
        "drainTimeoutSeconds",
        "integer",
        "How long a strict rollout or a delete waits for running jobs.",
        minimum=1,
        default=3600,
        sent=False,
    ),
)
COMPUTED: Final = (
    Field("requestUrls", "map", "Where to send requests: run, runSync, status, ... of a queue; base and health of a load balancer."),
    Field("createdAt", "string", "When it was made (RFC 3339)."),
)
NEW_RELEASE: Final = frozenset({f.name for f in FIELDS if f.container})
"""A change of one of them ends old workers: what a strict rollout is for."""
FROM_TEMPLATE: Final = frozenset({"image", "args", "disk", "env", "ports", "registry", "gpu.allowedCudaVersions"})
RESETS: Final[Mapping[str, Any]] = {"registry": None, "args": "", "ports": [], "env": {}}


def marker_of(urn: str) -> str:
    """The first 16 hex digits of sha256(project/stack/URN); both names stand in the URN."""
    parts = urn.split("::")
    if len(parts) < 4 or not parts[0].startswith("urn:pulumi:"):
        raise UsageError(f"{urn!r} is no URN of Pulumi.")
    stack, project = parts[0].removeprefix("urn:pulumi:"), parts[1]
    return hashlib.sha256(f"{project}/{stack}/{urn}".encode()).hexdigest()[:16]


def marked(live: Mapping[str, Any], marker: str) -> bool:
    """Whether a live endpoint carries this marker."""
    env = live.get("env")
    return isinstance(env, Mapping) and env.get(MARKER) == marker


def without_marker(live: Mapping[str, Any]) -> Json:
    env = live.get("env")
    if not isinstance(env, Mapping) or MARKER not in env:
        return dict(live)
    return {**live, "env": {k: v for k, v in env.items() if k != MARKER}}


def released(inputs: Mapping[str, Any] | None) -> frozenset[str]:
    """What the template decides while the program does not say it. RunPod takes no CUDA versions of a template beside a declared floor."""
    if inputs is None or inputs.get("templateId") is None:
        return frozenset()
    return FROM_TEMPLATE - {"gpu.allowedCudaVersions"} if at(inputs, "gpu", "minCudaVersion") is not None else FROM_TEMPLATE


# --- check ---------------------------------------------------------------------------------------------------------------------------


def check(values: Mapping[str, Any]) -> tuple[Json, list[Failure]]:
    """Everything that RunPod would refuse, and what it would silently misread; all of it at once."""
    gpu = values.get("gpu")
    if isinstance(gpu, Mapping) and gpu.get("minCudaVersion") == "":  # clears a floor in a PATCH; here its absence does
        values = {**values, "gpu": {k: v for k, v in gpu.items() if k != "minCudaVersion"}}
    clean, failures = check_fields(FIELDS, values, "", "Endpoint")
    broken = {f.property for f in failures}
    for rule in (_source, _compute, _cuda, _scaling, _workers, _cpu_sizes, _ports, _pools, _env):
        failures += [f for f in rule(clean) if f.property not in broken]
    return clean, failures


def _source(v: Json) -> list[Failure]:
    image, template = v.get("image"), v.get("templateId")
    if image is None and template is None:
        return [Failure("image", "image or templateId is required")]
    if known(image) and known(template):
        return [Failure("image", "image and templateId exclude each other: a template brings its image")]
    if template is None and v.get("templateHash") is not None:
        return [Failure("templateHash", "templateHash means nothing without templateId")]
    return []


def _compute(v: Json) -> list[Failure]:
    if v.get("gpu") is None and v.get("cpu") is None:
        return [Failure("gpu", "gpu or cpu is required")]
    if known(v.get("gpu")) and known(v.get("cpu")):
        return [Failure("cpu", "gpu and cpu exclude each other")]
    return []


def _cuda(v: Json) -> list[Failure]:
    allowed, lowest = at(v, "gpu", "allowedCudaVersions"), at(v, "gpu", "minCudaVersion")
    if known(allowed) and allowed and known(lowest):
        return [Failure("gpu.minCudaVersion", "gpu.minCudaVersion and gpu.allowedCudaVersions exclude each other")]
    return []


def _scaling(v: Json) -> list[Failure]:
    failures = []
    kind, scaler = v.get("type"), at(v, "scaling", "type")
    for name, belongs in (("queueDelay", "QUEUE_DELAY"), ("requestCount", "REQUEST_COUNT")):
        value = at(v, "scaling", name)
        if scaler == belongs and value is None:
            failures.append(Failure(f"scaling.{name}", f"scaling.{name} is required with {belongs}"))
        if known(scaler) and scaler != belongs and value is not None:
            failures.append(Failure(f"scaling.{name}", f"scaling.{name} belongs to {belongs}, not to {scaler}"))
    if kind == "LOAD_BALANCER" and scaler == "QUEUE_DELAY":
        failures.append(Failure("scaling.type", "scaling.type must be REQUEST_COUNT on a LOAD_BALANCER endpoint: it has no queue"))
    if kind == "QUEUE" and scaler == "REQUEST_COUNT" and at(v, "workers", "idleTimeout") is not None:
        reason = "workers.idleTimeout cannot be set on a QUEUE endpoint with REQUEST_COUNT: leave it out, or use QUEUE_DELAY"
        failures.append(Failure("workers.idleTimeout", reason))
    return failures


def _workers(v: Json) -> list[Failure]:
    least, most = at(v, "workers", "min"), at(v, "workers", "max")
    most = DEFAULT_WORKERS_MAX if most is None else most
    if isinstance(least, int) and isinstance(most, int) and least > most:
        return [Failure("workers.min", f"workers.min {least} is above workers.max {most}")]
    return []


def _cpu_sizes(v: Json) -> list[Failure]:
    failures = []
    cpu = v.get("cpu")
    for i, item in enumerate(cpu if isinstance(cpu, list) else ()):
        count = at(item, "vcpuCount") if isinstance(item, Mapping) else None
        if isinstance(count, int) and count >= 2 and count & (count - 1):
            failures.append(Failure(f"cpu[{i}].vcpuCount", f"cpu[{i}].vcpuCount must be a power of two, not {count}"))
    return failures


def _ports(v: Json) -> list[Failure]:
    ports = v.get("ports")
    failures = []
    for i, port in enumerate(ports if isinstance(ports, list) else ()):
        number = port.split("/")[0] if isinstance(port, str) else ""
        if number.isdigit() and not 1 <= int(number) <= 65535:
            failures.append(Failure(f"ports[{i}]", f"ports[{i}]: there is no port {number}"))
    return failures


def _pools(v: Json) -> list[Failure]:
    pools = at(v, "gpu", "pools")
    return [
        Failure(f"gpu.pools[{i}]", f"gpu.pools[{i}]: {pool!r} looks like a GPU type; a pool is like ADA_24 (getGpus lists both)")
        for i, pool in enumerate(pools if isinstance(pools, list) else ())
        if isinstance(pool, str) and " " in pool
    ]


def _env(v: Json) -> list[Failure]:
    failures = environment(v)
    env = v.get("env")
    if isinstance(env, Mapping) and MARKER in env:
        failures.append(Failure(f"env.{MARKER}", f"env.{MARKER} is the provider's own"))
    return failures


def environment(v: Json) -> list[Failure]:
    """Values of `env` with which no process can be started (names have a pattern). A value is never shown."""
    env = v.get("env")
    found = [name for name, value in env.items() if isinstance(value, str) and "\0" in value] if isinstance(env, Mapping) else []
    return [Failure(f"env.{name}", f"env.{name} holds NUL, which the value of an environment variable cannot") for name in found]


# --- diff ----------------------------------------------------------------------------------------------------------------------------


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Change]:
    """What differs between old and new inputs; only `type` and the compute family replace."""
    changes = diff_fields(FIELDS, old, new, released(new))
    for name, other in (("gpu", "cpu"), ("cpu", "gpu")):
        if old.get(name) is not None and new.get(name) is None and new.get(other) is not None:
            changes = {path: change for path, change in changes.items() if path.split(".")[0] not in ("gpu", "cpu")}
            changes[name] = Change("delete", replace=True)
            changes[other] = Change("add", replace=True)
    return changes


# --- bodies --------------------------------------------------------------------------------------------------------------------------


def env_of(inputs: Mapping[str, Any], marker: str) -> Json:
    return {**(inputs.get("env") or {}), MARKER: marker}


def create_body(inputs: Mapping[str, Any], marker: str) -> Json:
    return {**body_of(FIELDS, inputs), "env": env_of(inputs, marker)}


def patch_body(old: Mapping[str, Any], new: Mapping[str, Any], marker: str) -> Json:
    """The least that makes the endpoint what `new` says; empty when RunPod has nothing to do."""
    changes = diff(old, new)
    changed = tops(changes)
    table = by_name(FIELDS)
    body: Json = {}
    for name in sorted(changed):
        f = table[name]
        if not f.sent or name == "templateId":
            continue
        value = new.get(name)
        if name == "gpu":
            body["gpu"] = _gpu_patch(changes, new.get("gpu") or {})
        elif name == "workers":
            members = by_name(WORKERS)
            parts = [path.removeprefix("workers.") for path in changes if path.startswith("workers.")]
            body["workers"] = {p: (value or {}).get(p, members[p].default) for p in parts}
        elif name == "env":
            body["env"] = env_of(new, marker)
        elif value is not None:
            body[name] = body_of(f.fields, value) if f.type == "object" else value
        else:
            body[name] = RESETS.get(name, list(f.default) if isinstance(f.default, tuple) else f.default)
    template, was = new.get("templateId"), old.get("templateId")
    if template is not None and changed & NEW_RELEASE:
        # The template's settings come again with what the program declares on top: without it the PATCH would undo the one or the other.
        declared = body_of([f for f in FIELDS if f.container and f.name in FROM_TEMPLATE], new)
        body = {**{k: v for k, v in body.items() if k not in FROM_TEMPLATE}, **declared, "env": env_of(new, marker), "templateId": template}
    elif template is None and was is not None:
        body = {**RESETS, **body_of([f for f in FIELDS if f.name in FROM_TEMPLATE], new), **body, "env": env_of(new, marker)}
    return body


def _gpu_patch(changes: Mapping[str, Change], gpu: Mapping[str, Any]) -> Json:
    table = by_name(GPU)
    parts = {path.removeprefix("gpu.").split("[")[0] for path in changes if path.startswith("gpu.")}
    if parts & {"pools", "excludedTypes"}:  # one selection: pools alone would clear the exclusions, exclusions alone are refused
        parts |= {"pools"} | ({"excludedTypes"} if gpu.get("excludedTypes") or "excludedTypes" in parts else set())
    body = {}
    for part in sorted(parts):
        default = table[part].default
        body[part] = gpu[part] if gpu.get(part) is not None else list(default) if isinstance(default, tuple) else default
    return body


def restarts_workers(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the change makes a new release, so that a strict rollout has something to be strict about."""
    return bool(tops(diff(old, new)) & NEW_RELEASE)


# --- from RunPod ---------------------------------------------------------------------------------------------------------------------


def _typed(live: Mapping[str, Any]) -> Json:
    """The live endpoint without our marker, and with a type: RunPod's schema allows an old endpoint to have none."""
    live = without_marker(live)
    if live.get("type") is None:
        live["type"] = "LOAD_BALANCER" if at(live, "requestUrls", "base") else "QUEUE"
    if live.get("gpu") and live.get("cpu"):
        live.pop("cpu")
    return live


def from_live(live: Mapping[str, Any], old: Mapping[str, Any] | None) -> Json:
    """Honest inputs: declared fields as they are now, others where they are not the default; for an import (`old` None) all of them."""
    return live_inputs(FIELDS, _typed(live), old, released(old))


def outputs(live: Mapping[str, Any], inputs: Mapping[str, Any]) -> Json:
    """The state: every field as RunPod has it, and the provider's own inputs."""
    live = _typed(live)
    state: Json = {}
    for f in FIELDS:
        value = live_value(f, live.get(f.name), inputs.get(f.name)) if f.sent and f.echoed else inputs.get(f.name)
        if value is not None:
            state[f.name] = value
    for f in COMPUTED:
        if live.get(f.name) is not None:
            state[f.name] = live[f.name]
    return state


def preview_outputs(new: Mapping[str, Any], old: Mapping[str, Any] | None, old_outputs: Mapping[str, Any] | None) -> Json:
    """What a preview knows of the endpoint after the change; its URLs stay what they are in an update."""
    family = {"gpu", "cpu"} - {name for name in ("gpu", "cpu") if new.get(name) is not None}
    fields = [f for f in FIELDS if f.name not in family and f.name != "templateId"]
    state = known_outputs(fields, new, released(new))
    if new.get("templateId") is not None:
        state["templateId"] = new["templateId"]
    if old is None or old_outputs is None:
        return {**state, **{f.name: UNKNOWN for f in COMPUTED}}
    changed = tops(diff(old, new))
    from_template = new.get("templateId") is not None and bool(changed & NEW_RELEASE)
    kept = {
        name: value
        for name, value in old_outputs.items()
        if name in by_name(FIELDS) and (state.get(name) is UNKNOWN) and not (from_template and name in FROM_TEMPLATE)
    }
    merged = {**state, **kept}
    for name in ("workers", "scaling", "gpu"):
        if isinstance(merged.get(name), Mapping) and isinstance(old_outputs.get(name), Mapping) and not has_unknown(new.get(name)):
            before = old_outputs[name]
            merged[name] = {k: before.get(k, v) if v is UNKNOWN else v for k, v in merged[name].items()}
    return {**merged, **{f.name: old_outputs.get(f.name, UNKNOWN) for f in COMPUTED}}


ENDPOINT: Final = Kind(
    token="runpodv2:index:Endpoint",
    title="Endpoint",
    doc="A serverless endpoint: workers of one image that scale with their queue or their requests.",
    inputs=FIELDS,
    computed=COMPUTED,
    path="/v2/serverless",
    calls="endpoint",
    list_call="list_endpoints",
    check=check,
    diff=diff,
    create_body=create_body,
    patch_body=patch_body,
    from_live=from_live,
    outputs=outputs,
    preview_outputs=preview_outputs,
)
