"""emulator: the request bodies of REST v2. Written from the official OpenAPI file, version 2.0.0 (August 2026).

May touch: the standard library only. All bodies are closed. What a schema cannot say (rule conflicts, things that do not exist) is in
account.py. Two of RunPod's own limits that its schema leaves out are checked here as well, because it states them in words: CPU counts are
powers of two, and `idleTimeout` does not go with REQUEST_COUNT on a queue endpoint. So is what no container can have in its environment:
the schema takes any name, a container's start does not.
"""

from __future__ import annotations

from typing import Any, Final

from emulator.control.problem import invalid
from emulator.control.schema import Check, array, closed, either, flag, number, strings, text, whole

CUDA: Final = r"^\d+\.\d+$"
FLASHBOOT: Final = ("OFF", "FLASHBOOT", "PRIORITY_FLASHBOOT")
TYPES: Final = ("QUEUE", "LOAD_BALANCER")
CATEGORIES: Final = ("CPU", "NVIDIA", "AMD")
TIERS: Final = ("STANDARD", "HIGH_PERFORMANCE")
VOLUME_GB: Final = (10, 4096)
IDLE_TIMEOUT_S: Final = (1, 3600)


def _environment(value: Any, path: str, errors: list[str]) -> Any:
    """An object of strings that a process can be started with: a name has at least one character and no `=`, and nothing has NUL. All else
    is allowed, as a container allows it: dots, dashes, a digit first."""
    found = strings(value, path, errors)
    for name, text_of in found.items() if isinstance(found, dict) else ():
        shown = f"{name!a}" if len(name) <= 80 else f"{name[:80]!a}…"
        if not name:
            errors.append(f"{path}: a variable must have a name")
        elif "=" in name or "\0" in name:
            errors.append(f"{path}: {shown} cannot be the name of an environment variable")
        elif isinstance(text_of, str) and "\0" in text_of:
            errors.append(f"{path}: the value of {shown} cannot be that of an environment variable")
    return found


_CONTAINER: Final[dict[str, Check]] = {
    "image": text(),
    "args": text(),
    "disk": whole(1),
    "env": _environment,
    "ports": array(text()),
    "registry": text(nullable=True),
}
_SCALING: Final = either(
    "type",
    {
        "QUEUE_DELAY": closed({"type": text(), "queueDelay": number(0.5)}, required=("type", "queueDelay")),
        "REQUEST_COUNT": closed({"type": text(), "requestCount": whole(1)}, required=("type", "requestCount")),
    },
)
_WORKERS: Final = closed({"min": whole(0), "max": whole(0), "idleTimeout": whole(*IDLE_TIMEOUT_S)})


def _vcpus(value: Any, path: str, errors: list[str]) -> Any:
    value = whole(2)(value, path, errors)
    if isinstance(value, int) and value >= 2 and value & (value - 1):
        errors.append(f"{path}: must be a power of two, got {value}")
    return value


_CPU: Final = array(closed({"id": text(least=1), "vcpuCount": _vcpus}, required=("id", "vcpuCount")), least=1, unique=True)


def _gpu(min_cuda: str, *, needs: dict[str, str], required: tuple[str, ...]) -> Check:
    return closed(
        {
            "pools": array(text(), least=1),
            "excludedTypes": array(text(pattern=r"^\s*[^-\s]"), unique=True),
            "count": whole(1),
            "allowedCudaVersions": array(text(pattern=CUDA)),
            "minCudaVersion": text(pattern=min_cuda),
        },
        required=required,
        needs=needs,
    )


_PLACEMENT: Final[dict[str, Check]] = {
    "cpu": _CPU,
    "dataCenterIds": array(text()),
    "flashboot": text(choices=FLASHBOOT),
    "name": text(least=1),
    "networkVolumes": array(text()),
    "scaling": _SCALING,
    "timeout": whole(0),
    "workers": _WORKERS,
}
_CREATE_ENDPOINT_OWN: Final[dict[str, Check]] = {
    **_PLACEMENT,
    "gpu": _gpu(CUDA, needs={}, required=("pools",)),
    "templateId": text(least=1),
    "type": text(choices=TYPES),
}
_CREATE_ENDPOINT: Final = closed(
    {**_CONTAINER, **_CREATE_ENDPOINT_OWN}, required=("name", "type", "scaling"), branch=tuple(_CREATE_ENDPOINT_OWN)
)
_UPDATE_ENDPOINT: Final = closed(
    {**_CONTAINER, **_PLACEMENT, "gpu": _gpu(r"^$|^\d+\.\d+$", needs={"excludedTypes": "pools"}, required=()), "templateId": text()}
)

_MOUNTS: Final = closed({"persistent": closed({"size": whole(10), "path": text()}, required=("size", "path"))})
_TEMPLATE_OWN: Final[dict[str, Check]] = {
    "allowedCudaVersions": array(text(pattern=CUDA)),
    "category": text(choices=CATEGORIES),
    "mounts": _MOUNTS,
    "name": text(least=1),
    "public": flag,
    "serverless": flag,
    "startJupyter": flag,
    "startSsh": flag,
}
_CREATE_TEMPLATE: Final = closed({**_CONTAINER, **_TEMPLATE_OWN}, required=("name", "image"), branch=tuple(_TEMPLATE_OWN))
_UPDATE_TEMPLATE: Final = closed({**_CONTAINER, **_TEMPLATE_OWN})

_VOLUME_FIELDS: Final[dict[str, Check]] = {"name": text(least=1), "size": whole(*VOLUME_GB)}
_CREATE_VOLUME: Final = closed(
    {**_VOLUME_FIELDS, "dataCenter": text(least=1), "type": text(choices=TIERS)}, required=("name", "size", "dataCenter")
)
_UPDATE_VOLUME: Final = closed(_VOLUME_FIELDS, least=1)
_CREATE_REGISTRY: Final = closed(
    {"name": text(least=1), "username": text(least=1), "password": text(least=1)}, required=("name", "username", "password")
)
_CREATE_DELEGATION: Final = closed({"resource": text(), "name": text(nullable=True)}, required=("resource",))


def create_endpoint(body: Any) -> dict[str, Any]:
    """A valid body of POST /v2/serverless. Raises Problem 422."""
    errors: list[str] = []
    given: dict[str, Any] = _CREATE_ENDPOINT(body, "$", errors)
    if isinstance(given, dict):
        if "templateId" not in given and "image" not in given:
            errors.append("$: missing property 'image'")
        scaling = given.get("scaling")
        if given.get("type") == "LOAD_BALANCER" and isinstance(scaling, dict) and scaling.get("type") == "QUEUE_DELAY":
            errors.append("$.scaling.type: value must be 'REQUEST_COUNT'")
        errors += idle_timeout_errors(given.get("type"), scaling, given.get("workers"))
    return _valid(given, errors)


def update_endpoint(body: Any) -> dict[str, Any]:
    return _valid_of(_UPDATE_ENDPOINT, body)


def create_template(body: Any) -> dict[str, Any]:
    return _valid_of(_CREATE_TEMPLATE, body)


def update_template(body: Any) -> dict[str, Any]:
    return _valid_of(_UPDATE_TEMPLATE, body)


def create_volume(body: Any) -> dict[str, Any]:
    return _valid_of(_CREATE_VOLUME, body)


def update_volume(body: Any) -> dict[str, Any]:
    return _valid_of(_UPDATE_VOLUME, body)


def create_registry(body: Any) -> dict[str, Any]:
    return _valid_of(_CREATE_REGISTRY, body)


def create_delegation(body: Any) -> dict[str, Any]:
    return _valid_of(_CREATE_DELEGATION, body)


def idle_timeout_errors(kind: Any, scaling: Any, workers: Any) -> list[str]:
    """`workers.idleTimeout` is rejected on queue endpoints that scale on the request count."""
    counts = kind == "QUEUE" and isinstance(scaling, dict) and scaling.get("type") == "REQUEST_COUNT"
    if counts and isinstance(workers, dict) and "idleTimeout" in workers:
        return ["$.workers.idleTimeout: not applicable to queue-based endpoints scaling on requestCount"]
    return []


def _valid_of(check: Check, body: Any) -> dict[str, Any]:
    errors: list[str] = []
    return _valid(check(body, "$", errors), errors)


def _valid(given: Any, errors: list[str]) -> dict[str, Any]:
    if errors:
        raise invalid(*errors)
    found: dict[str, Any] = given
    return found
