"""emulator: what a request makes of an endpoint, as pure functions from one frozen record to the next.

May touch: the standard library only. Raises Problem: 422 for what is wrong in itself (an image that is not on its registry, a template that
is not serverless), 400 for what conflicts with a rule. Rules are those of the OpenAPI file and of RunPod's migration notes; guesses are
marked.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from emulator.config import EndpointConfig, ImageConfig
from emulator.control import views
from emulator.control.bodies import idle_timeout_errors
from emulator.control.catalog import Catalog, Stock
from emulator.control.problem import conflict, invalid
from emulator.control.records import (
    DISK_DEFAULT_GB,
    IDLE_TIMEOUT_DEFAULT_S,
    Change,
    Cpu,
    EndpointRecord,
    Gpu,
    Release,
    Scaling,
    TemplateRecord,
    VolumeRecord,
    new_id,
)

ANYWHERE: Final = "US-KS-2"
"""The data center of workers that may be anywhere."""


@dataclass(frozen=True, slots=True)
class References:
    """What of the account and the catalog an endpoint may refer to. `image_exists`: whether a reference is found on its registry."""

    catalog: Catalog
    volumes: Mapping[str, VolumeRecord]
    registries: Collection[str]
    image_exists: Callable[[str], bool]


# --- create and patch ---------------------------------------------------------------------------------------------


def created(body: Mapping[str, Any], template: TemplateRecord | None, account: References, endpoint_id: str, now: float) -> EndpointRecord:
    """The endpoint that a valid body of POST asks for."""
    if ("gpu" in body) == ("cpu" in body):
        raise conflict("exactly one of gpu or cpu must be given" + (", not both" if "gpu" in body else ""))
    container = _container(body, template)
    workers = body.get("workers", {})
    record = EndpointRecord(
        id=endpoint_id,
        name=body["name"],
        type=body["type"],
        image=container["image"],
        args=container.get("args", ""),
        disk=container.get("disk", DISK_DEFAULT_GB),
        env=container.get("env", {}),
        ports=tuple(container.get("ports", ())),
        registry=container.get("registry"),
        gpu=_new_gpu(body["gpu"], template) if "gpu" in body else None,
        cpu=_cpus(body.get("cpu", ())),
        workers_min=workers.get("min", 0),
        workers_max=workers.get("max", 3),
        idle_timeout=workers.get("idleTimeout", IDLE_TIMEOUT_DEFAULT_S),
        scaling=_scaling(body["scaling"]),
        data_center_ids=tuple(body.get("dataCenterIds", ())),
        network_volumes=tuple(body.get("networkVolumes", ())),
        timeout=body.get("timeout", 0),
        flashboot=body.get("flashboot", "OFF"),
        created_at=now,
        awake_at=now,
        releases=(Release(new_id(), 1, now),),
    )
    _check(record, account)
    return record


def patched(
    record: EndpointRecord, body: Mapping[str, Any], template: TemplateRecord | None, account: References, now: float
) -> EndpointRecord:
    """The endpoint after a valid body of PATCH: only what is in it changes. A change of the container's side makes a release."""
    for given, other, name in ((record.gpu is not None, "cpu", "GPU"), (record.gpu is None, "gpu", "CPU")):
        if given and other in body:
            raise conflict(f"{other} cannot be set on a {name} endpoint: the compute family is immutable")
    container = _container(body, template)
    changes: dict[str, Any] = {name: container[name] for name in ("image", "args", "disk", "env", "registry") if name in container}
    if "ports" in container:
        changes["ports"] = tuple(container["ports"])
    if "gpu" in body:
        changes["gpu"] = _changed_gpu(record.gpu or Gpu(()), body["gpu"])
    if "cpu" in body:
        changes["cpu"] = _cpus(body["cpu"])
    workers = body.get("workers", {})
    for name, field in (("min", "workers_min"), ("max", "workers_max"), ("idleTimeout", "idle_timeout")):
        if name in workers:
            changes[field] = workers[name]
    if workers:
        changes["awake_at"] = now
    if "scaling" in body:
        changes["scaling"] = _scaling(body["scaling"])
    for name, field in (("dataCenterIds", "data_center_ids"), ("networkVolumes", "network_volumes")):
        if name in body:
            changes[field] = tuple(body[name])
    for name in ("name", "timeout", "flashboot"):
        if name in body:
            changes[name] = body[name]
    after = msgspec.structs.replace(record, **changes)
    errors = idle_timeout_errors(after.type, views.scaling(after.scaling), body.get("workers"))
    if errors:
        raise invalid(*errors)
    if after.type == "LOAD_BALANCER" and after.scaling.type == "QUEUE_DELAY":
        raise conflict("load-balancing endpoints scale on REQUEST_COUNT only")
    _check(after, account, record)
    return released(record, after, now)


def released(before: EndpointRecord, after: EndpointRecord, now: float) -> EndpointRecord:
    """`after` with a new release, if what changed concerns a worker's container."""
    changes = diff(before, after)
    if not any(change.field.startswith(_RELEASING) for change in changes):
        return after
    version = before.version + 1
    return msgspec.structs.replace(after, version=version, releases=(*before.releases, Release(new_id(), version, now, changes)))


# --- what changed -------------------------------------------------------------------------------------------------

_RELEASING: Final = ("template.", "gpu", "instanceIds", "allowedCuda", "minCuda", "locations", "networkVolumeIds")
"""Fields whose change needs new workers. That placement (locations, volumes) does is a guess: a running worker cannot move."""


def diff(before: EndpointRecord, after: EndpointRecord) -> tuple[Change, ...]:
    """What changed, under the names of RunPod's releases."""
    old, new = _release_fields(before), _release_fields(after)
    return tuple(Change(name, old[name], new[name]) for name in old if old[name] != new[name])


def _release_fields(record: EndpointRecord) -> dict[str, Any]:
    gpu = record.gpu
    return {
        "name": record.name,
        "template.imageName": record.image,
        "template.dockerArgs": record.args,
        "template.containerDiskInGb": record.disk,
        "template.env": dict(record.env),
        "template.ports": list(record.ports),
        "template.containerRegistryAuthId": record.registry,
        "gpuIds": None if gpu is None else ",".join((*gpu.pools, *(f"-{name}" for name in gpu.excluded))),
        "gpuCount": None if gpu is None else gpu.count,
        "allowedCudaVersions": None if gpu is None else list(gpu.allowed_cuda),
        "minCudaVersion": None if gpu is None else gpu.min_cuda,
        "instanceIds": [f"{cpu.id}-{cpu.vcpus}" for cpu in record.cpu] or None,
        "locations": list(record.data_center_ids),
        "networkVolumeIds": list(record.network_volumes),
        "workers.min": record.workers_min,
        "workers.max": record.workers_max,
        "workers.idleTimeout": record.idle_timeout,
        "scaling": views.scaling(record.scaling),
        "timeout": record.timeout,
        "flashboot": record.flashboot,
    }


# --- rules --------------------------------------------------------------------------------------------------------


def _check(record: EndpointRecord, account: References, before: EndpointRecord | None = None) -> None:
    """Everything that a schema cannot say. Statuses for ids that do not exist (400) and for min above max (400) are guesses."""
    changed = before is None or record.image != before.image
    if changed and record.image is not None and not account.image_exists(record.image):
        raise invalid(f"$.image: image {record.image!r} was not found on its registry")
    if record.workers_min > record.workers_max:
        raise conflict(f"workers.min ({record.workers_min}) must not be above workers.max ({record.workers_max})")
    if record.gpu is not None:
        _check_gpu(record.gpu, account.catalog)
    for cpu in record.cpu:
        flavor = account.catalog.cpu(cpu.id)
        if flavor is None:
            raise conflict(f"unknown CPU flavor {cpu.id!r}; there are: {', '.join(found.id for found in account.catalog.cpus)}")
        if not flavor.vcpus[0] <= cpu.vcpus <= flavor.vcpus[1]:
            raise conflict(f"{cpu.id} takes {flavor.vcpus[0]} to {flavor.vcpus[1]} vCPUs, not {cpu.vcpus}")
    for center in record.data_center_ids:
        if account.catalog.data_center(center) is None:
            raise conflict(f"no capacity: unknown data center {center!r}")
    if record.registry is not None and record.registry not in account.registries:
        raise conflict(f"registry {record.registry!r} does not exist")
    taken: dict[str, str] = {}
    for volume_id in record.network_volumes:
        volume = account.volumes.get(volume_id)
        if volume is None:
            raise conflict(f"network volume {volume_id!r} does not exist")
        if volume.data_center in taken:
            raise conflict(f"network volumes {taken[volume.data_center]!r} and {volume_id!r} are both in {volume.data_center}: one at most")
        taken[volume.data_center] = volume_id


def _check_gpu(gpu: Gpu, catalog: Catalog) -> None:
    if gpu.allowed_cuda and gpu.min_cuda is not None:
        raise conflict("gpu.minCudaVersion and a non-empty gpu.allowedCudaVersions are mutually exclusive")
    for pool in gpu.pools:
        if pool not in catalog.pool_usd_per_s:
            raise conflict(f"unknown GPU pool {pool!r}; see GET /v2/catalog/gpus for pools")
    members = {member.id for pool in gpu.pools for member in catalog.members(pool)}
    for excluded in gpu.excluded:
        if excluded not in members:
            raise conflict(f"gpu.excludedTypes: {excluded!r} is not a GPU type in one of the selected pools")
    if members <= set(gpu.excluded):
        raise conflict("gpu.excludedTypes leaves no GPU type of the selected pools")


# --- parts of a body ----------------------------------------------------------------------------------------------


def _container(body: Mapping[str, Any], template: TemplateRecord | None) -> dict[str, Any]:
    """Container settings: the template's, once, and over them the body's; `env` per key."""
    own = {name: body[name] for name in ("image", "args", "disk", "env", "ports", "registry") if name in body}
    if template is None:
        return own
    if not template.serverless:
        raise invalid(f"$.templateId: template {template.id!r} is not a serverless template")
    base = {
        "image": template.image,
        "args": template.args,
        "disk": template.disk,
        "ports": template.ports,
        "registry": template.registry,
    }
    return {**base, **own, "env": {**template.env, **own.get("env", {})}}


def _new_gpu(body: Mapping[str, Any], template: TemplateRecord | None) -> Gpu:
    allowed = tuple(body.get("allowedCudaVersions", ()))
    if "allowedCudaVersions" not in body and "minCudaVersion" not in body and template is not None:
        allowed = template.allowed_cuda
    return Gpu(
        pools=tuple(body["pools"]),
        excluded=_trimmed(body.get("excludedTypes", ())),
        count=body.get("count", 1),
        allowed_cuda=allowed,
        min_cuda=body.get("minCudaVersion"),
    )


def _changed_gpu(gpu: Gpu, body: Mapping[str, Any]) -> Gpu:
    """`pools` replaces the selection with its exclusions; `[]` and `""` clear the CUDA constraints."""
    changes: dict[str, Any] = {}
    if "pools" in body:
        changes |= {"pools": tuple(body["pools"]), "excluded": _trimmed(body.get("excludedTypes", ()))}
    if "count" in body:
        changes["count"] = body["count"]
    if "allowedCudaVersions" in body:
        changes["allowed_cuda"] = tuple(body["allowedCudaVersions"])
    if "minCudaVersion" in body:
        changes["min_cuda"] = body["minCudaVersion"] or None
    return msgspec.structs.replace(gpu, **changes)


def _trimmed(names: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in names))


def _cpus(body: Collection[Mapping[str, Any]]) -> tuple[Cpu, ...]:
    return tuple(Cpu(cpu["id"], cpu["vcpuCount"]) for cpu in body)


def _scaling(body: Mapping[str, Any]) -> Scaling:
    return Scaling(body["type"], float(body["queueDelay" if body["type"] == "QUEUE_DELAY" else "requestCount"]))


# --- the data plane's side ----------------------------------------------------------------------------------------


def config_of(
    record: EndpointRecord,
    base: EndpointConfig | None,
    image: ImageConfig | None,
    catalog: Catalog,
    volumes: Mapping[str, VolumeRecord],
    stock: Mapping[str, Stock],
) -> EndpointConfig:
    """The settings by which the data plane serves an endpoint. `base`: those that it has now; what REST does not know of stays.

    Price: of the first pool that has stock. With none in stock workers find no host and are throttled."""
    found: dict[str, Any] = {
        "workers_min": min(record.workers_min, record.workers_max),
        "workers_max": record.workers_max,
        "idle_timeout_s": float(record.idle_timeout),
        "scaler": record.scaling.type,
        "scaler_value": record.scaling.value,
        "execution_timeout_ms": record.timeout,
    }
    if record.declared:
        found["env"] = dict(record.env)
        found["image"] = record.image
    else:
        arguments = _arguments(record.args)
        command = () if image is None or not image.command else (*image.command, *arguments)
        found |= {
            "title": record.name,
            "image": record.image,
            "command": command,
            "cwd": None if image is None else image.cwd,
            "env": {**({} if image is None else image.env), **record.env},
            "model": record.env.get("NIGHTBATCH_SERVED_NAME") or record.env.get("NIGHTBATCH_MODEL") or record.name,
            "tasks": tuple(task for task in ("generate", "embed") if task == record.env.get("NIGHTBATCH_TASK")),
            "concurrency": _concurrency(record.env),
        }
    unchanged = base is not None and record.declared and (record.gpu is None or _same_gpu(base, record.gpu))
    if record.gpu is not None and not unchanged:
        pool, gpu, in_stock = catalog.placement(record.gpu.pools, record.gpu.excluded, stock)
        found |= {
            "compute": "GPU",
            "gpu": gpu.id,
            "gpu_pool": pool,
            "gpu_count": record.gpu.count,
            "usd_per_s": catalog.pool_usd_per_s[pool],
            "in_stock": in_stock,
        }
    elif record.cpu:
        cpu = record.cpu[0]
        flavor = catalog.cpu(cpu.id)
        assert flavor is not None
        found |= {
            "compute": "CPU",
            "gpu": f"{cpu.id}-{cpu.vcpus}-{views.memory_gb(catalog, cpu.id, cpu.vcpus)}",
            "gpu_pool": cpu.id,
            "gpu_count": 1,
            "usd_per_s": flavor.usd_per_vcpu_h * cpu.vcpus / 3600,
        }
    attached = [volumes[volume_id] for volume_id in record.network_volumes if volume_id in volumes]
    if attached:
        found["placements"] = tuple((volume.data_center, volume.id) for volume in attached)
    elif record.data_center_ids or not record.declared:
        found["placements"] = tuple((center, None) for center in record.data_center_ids or (ANYWHERE,))
    else:
        found["placements"] = ()
    if base is None:
        return EndpointConfig(name=record.id, **found)
    return msgspec.structs.replace(base, **found)


def _same_gpu(base: EndpointConfig, gpu: Gpu) -> bool:
    return (base.gpu_pool, base.gpu_count) == (gpu.pools[0], gpu.count)


SHELL_WORDS: Final = 20_000
"""Characters of `args` that are taken apart as a shell does: Python's way of that takes minutes for one word of a million."""


def _arguments(args: str) -> tuple[str, ...]:
    if len(args) > SHELL_WORDS:
        return tuple(args.split())
    try:
        return tuple(shlex.split(args))
    except ValueError:  # an odd quote: Docker would take it apart somehow; so do we
        return tuple(args.split())


def _concurrency(env: Mapping[str, str]) -> int:
    """Jobs at once in one worker, for plans."""
    for name in ("NIGHTBATCH_CONCURRENCY", "MAX_CONCURRENCY"):
        text = env.get(name, "")
        if text.isascii() and text.isdigit() and 1 <= len(text) < 6 and int(text) >= 1:
            return int(text)
    return 2


def declared_record(config: EndpointConfig, stored: EndpointRecord | None, now: float) -> EndpointRecord:
    """How REST shows an endpoint of the emulator's configuration: its settings are the configuration's, its history is what was kept."""
    base = stored or EndpointRecord(
        id=config.endpoint_id,
        name=config.name,
        scaling=Scaling(config.scaler, config.scaler_value),
        created_at=now,
        awake_at=now,
        releases=(Release(new_id(), 1, now),),
        declared=True,
    )
    return msgspec.structs.replace(absorbed(base, config), name=config.name, env=dict(config.env), image=config.image, declared=True)


def absorbed(record: EndpointRecord, config: EndpointConfig) -> EndpointRecord:
    """The record after the data plane's settings were changed by the emulator's own side (`Emulator.configure`)."""
    gpu = record.gpu or (Gpu((config.gpu_pool,)) if not record.cpu else None)
    if gpu is not None and config.compute == "GPU":
        pools = gpu.pools if config.gpu_pool in gpu.pools else (config.gpu_pool,)
        gpu = msgspec.structs.replace(gpu, pools=pools, count=config.gpu_count)
    changes: dict[str, Any] = {
        "gpu": gpu,
        "workers_max": config.workers_max,
        "idle_timeout": max(1, round(config.idle_timeout_s)),
        "scaling": Scaling(config.scaler, config.scaler_value),
        "timeout": config.execution_timeout_ms,
    }
    if config.workers_min != min(record.workers_min, record.workers_max):
        changes["workers_min"] = config.workers_min
    if record.declared:
        changes |= {"env": dict(config.env), "image": config.image}
    return msgspec.structs.replace(record, **changes)
