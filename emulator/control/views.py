"""emulator: how records look in answers of REST v2. Pure.

May touch: the standard library only. Shapes are those of the official OpenAPI file; keys that it says are always there always are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from emulator.control.catalog import Catalog
from emulator.control.records import (
    DelegationRecord,
    EndpointRecord,
    RegistryRecord,
    Release,
    Scaling,
    TemplateRecord,
    VolumeRecord,
    rfc3339,
)
from emulator.workers import Fleet, Worker, WorkerState

_STATUS = {
    WorkerState.INITIALIZING: "INITIALIZING",
    WorkerState.IDLE: "IDLE",
    WorkerState.RUNNING: "RUNNING",
    WorkerState.THROTTLED: "THROTTLED",
    WorkerState.OUTDATED: "RUNNING",
    WorkerState.UNHEALTHY: "UNHEALTHY",
}
"""REST v2 has no `outdated`: such a worker still does its job, and `isStale` says the rest."""


def endpoint(record: EndpointRecord, root: str, catalog: Catalog) -> dict[str, Any]:
    """An Endpoint. `root`: the emulator's own URL, without /v2."""
    workers: dict[str, int] = {"min": record.workers_min, "max": record.workers_max}
    if not record.hides_idle_timeout:
        workers["idleTimeout"] = record.idle_timeout
    shown: dict[str, Any] = {
        "id": record.id,
        "name": record.name,
        "type": record.type,
        "requestUrls": _request_urls(record, root),
        "args": record.args,
        "disk": record.disk,
        "ports": list(record.ports),
        "env": dict(record.env),
        "registry": record.registry,
        "workers": workers,
        "scaling": scaling(record.scaling),
        "dataCenterIds": list(record.data_center_ids),
        "networkVolumes": list(record.network_volumes),
        "timeout": record.timeout,
        "flashboot": record.flashboot,
        "createdAt": rfc3339(record.created_at),
    }
    if record.image is not None:
        shown["image"] = record.image
    if record.gpu is not None:
        shown["gpu"] = {
            "pools": list(record.gpu.pools),
            "count": record.gpu.count,
            "allowedCudaVersions": list(record.gpu.allowed_cuda),
            "minCudaVersion": record.gpu.min_cuda,
        }
        if record.gpu.excluded:
            shown["gpu"]["excludedTypes"] = list(record.gpu.excluded)
    if record.cpu:
        shown["cpu"] = [{"id": cpu.id, "vcpuCount": cpu.vcpus, "memory": memory_gb(catalog, cpu.id, cpu.vcpus)} for cpu in record.cpu]
    return shown


def memory_gb(catalog: Catalog, flavor: str, vcpus: int) -> int:
    found = catalog.cpu(flavor)
    return max(1, int(vcpus * (found.ram_gb_per_vcpu if found is not None else 1)))


def scaling(found: Scaling) -> dict[str, Any]:
    if found.type == "QUEUE_DELAY":
        return {"type": "QUEUE_DELAY", "queueDelay": found.value}
    return {"type": "REQUEST_COUNT", "requestCount": int(found.value)}


def _request_urls(record: EndpointRecord, root: str) -> dict[str, str]:
    if record.type == "LOAD_BALANCER":
        base = f"{root}/lb/{record.id}"
        path = record.env.get("HEALTH_CHECK_PATH", "/ping")
        return {"base": base, "health": f"{base}/{path.lstrip('/')}"}
    base = f"{root}/v2/{record.id}"
    return {
        "run": f"{base}/run",
        "runSync": f"{base}/runsync",
        "status": f"{base}/status/{{job_id}}",
        "stream": f"{base}/stream/{{job_id}}",
        "cancel": f"{base}/cancel/{{job_id}}",
        "retry": f"{base}/retry/{{job_id}}",
        "purgeQueue": f"{base}/purge-queue",
        "health": f"{base}/health",
    }


def template(record: TemplateRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "image": record.image,
        "args": record.args,
        "disk": record.disk,
        "env": dict(record.env),
        "ports": list(record.ports),
        "registry": record.registry,
        "mounts": dict(record.mounts),
        "serverless": record.serverless,
        "public": record.public,
        "category": record.category,
        "startSsh": record.start_ssh,
        "startJupyter": record.start_jupyter,
        "allowedCudaVersions": list(record.allowed_cuda),
    }


def volume(record: VolumeRecord) -> dict[str, Any]:
    return {"id": record.id, "name": record.name, "size": record.size, "dataCenter": record.data_center, "type": record.type}


def registry(record: RegistryRecord) -> dict[str, Any]:
    return {"id": record.id, "name": record.name}


def delegation(record: DelegationRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "delegatorUserId": "user_emulated",
        "awsUser": record.aws_user,
        "repository": record.repository,
        "tag": "latest",
        "awsRegion": record.aws_region,
        "dockerRegistryUri": f"{record.aws_user}.dkr.ecr.{record.aws_region}.amazonaws.com",
        "createdAt": rfc3339(record.created_at),
    }


def workers(record: EndpointRecord, fleet: Fleet | None, now: float) -> dict[str, Any]:
    """ListEndpointWorkersResponse: active workers only."""
    shown = [_worker(record, worker, now) for worker in _active(fleet)]
    counts = {status.lower(): sum(1 for worker in shown if worker["status"] == status) for status in dict.fromkeys(_STATUS.values())}
    return {"endpointVersion": record.version, "summary": {**counts, "total": len(shown)}, "workers": shown}


def _active(fleet: Fleet | None) -> list[Worker]:
    return [] if fleet is None else [worker for worker in fleet.workers if not worker.stopping]


def _worker(record: EndpointRecord, worker: Worker, now: float) -> dict[str, Any]:
    placed = not worker.throttled and not worker.external
    started = worker.launched_at
    config = worker.config
    return {
        "id": worker.id,
        "status": _STATUS[worker.state],
        "isStale": worker.version != record.version,
        "version": worker.version,
        "gpuCount": 0 if config is None or config.compute == "CPU" else config.gpu_count,
        "image": None if config is None else config.image,
        "uptimeSeconds": None if started is None else max(0, int(now - started)),
        "gpuTypeId": config.gpu if config is not None and placed and config.compute == "GPU" else None,
        "dataCenterId": config.data_center if config is not None and placed else None,
        "startedAt": None if started is None else rfc3339(started),
    }


def releases(record: EndpointRecord, fleet: Fleet | None) -> dict[str, Any]:
    """ListEndpointReleasesResponse, newest first."""
    active = _active(fleet)
    latest = sum(1 for worker in active if worker.version == record.version)
    return {
        "endpointVersion": record.version,
        "rollout": {
            "inProgress": latest < len(active),
            "workersOnLatest": latest,
            "workersTotal": len(active),
            "percentOnLatest": round(100 * latest / len(active)) if active else 0,
        },
        "releases": [_release(found, active) for found in reversed(record.releases)],
    }


def _release(found: Release, active: Iterable[Worker]) -> dict[str, Any]:
    return {
        "id": found.id,
        "version": found.version,
        "source": "MANUAL",
        "buildId": None,
        "createdByUserId": None,
        "workerCount": sum(1 for worker in active if worker.version == found.version),
        "createdAt": rfc3339(found.created_at),
        "diff": [{"field": change.field, "old": change.old, "new": change.new} for change in found.diff],
    }
