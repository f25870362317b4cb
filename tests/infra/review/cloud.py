"""tests/infra/review: a small RunPod for doctor, stop and status: REST v2 and the data plane as objects whose answers a test writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from contract.errors import InfrastructureError
from contract.facts import EndpointFacts, Stack, StackFacts, StackSecrets, StoreFacts
from contract.models import S3Config
from contract.protocol import Health
from infra.provider.client import NotFound, Unreachable

NOW = datetime(2026, 9, 1, 3, 0, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
IMAGE = f"registry.example.com/nightbatch-worker@{DIGEST}"
S3 = S3Config(accessId="client-access", accessSecret="client-secret", bucketName="batches", endpointUrl="https://s3.example.com")


def declared(name: str = "minilm", **changes: Any) -> EndpointFacts:
    values: dict[str, Any] = {
        "name": name,
        "id": f"ep-{name}",
        "model": name,
        "tasks": ("embed",),
        "gpu": "AMPERE_24",
        "usd_per_second": 0.0002,
        "workers_max": 5,
        "image": DIGEST,
    }
    return EndpointFacts(**{**values, **changes})


def balanced(name: str = "web", **changes: Any) -> EndpointFacts:
    """A load-balancing endpoint, as facts tell of it."""
    return declared(name, **{"tasks": (), "scaler": "REQUEST_COUNT", "scaler_value": 4, "workers_max": 3, **changes})


def live_balanced(name: str = "web", **changes: Any) -> dict[str, Any]:
    """The answer to GET of a load-balancing endpoint that is as `balanced` says."""
    workers = {"max": 3, **changes.pop("workers", {})}
    scaling = {"type": "REQUEST_COUNT", "requestCount": 4}
    return live(name, **{"type": "LOAD_BALANCER", "workers": workers, "scaling": scaling, "timeout": 0, **changes})


def stack(*endpoints: EndpointFacts, name: str = "prod", **changes: Any) -> Stack:
    facts = StackFacts(
        stack=name,
        store=StoreFacts(bucket="batches", endpoint_url="https://s3.example.com", prefix="team"),
        endpoints=endpoints or (declared(),),
        **changes,
    )
    return Stack(facts, StackSecrets("the-api-key", S3, S3))


def live(name: str = "minilm", **changes: Any) -> dict[str, Any]:
    """The answer to GET /v2/serverless/{id} of an endpoint that is as `declared` says."""
    workers = {"min": 0, "max": 5, "idleTimeout": 5, **changes.pop("workers", {})}
    return {
        "id": f"ep-{name}",
        "name": name,
        "type": "QUEUE",
        "image": IMAGE,
        "env": {"NIGHTBATCH_MODEL": name, "HF_TOKEN": "hf_secret_value"},
        "gpu": {"pools": ["AMPERE_24", "ADA_24"], "count": 1},
        "workers": workers,
        "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4},
        "dataCenterIds": [],
        "networkVolumes": [],
        "timeout": 600_000,
        "flashboot": "OFF",
        "createdAt": "2026-08-01T00:00:00Z",
        **changes,
    }


def worker(number: int, status: str = "IDLE", **changes: Any) -> dict[str, Any]:
    values = {"id": f"w{number}", "status": status, "isStale": False, "version": 3, "gpuCount": 1, "image": IMAGE, "uptimeSeconds": 60}
    return {**values, **changes}


@dataclass
class Cloud:
    """REST v2 and the data plane. `down`: names of methods that get no answer, `hang`: of those that never end."""

    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    workers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    healths: dict[str, Health] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    stock: dict[str, str] = field(default_factory=lambda: {"AMPERE_24": "HIGH", "ADA_24": "LOW"})
    rolling: bool = False
    down: set[str] = field(default_factory=set)
    hang: set[str] = field(default_factory=set)
    quota: int | None = None
    asked: list[str] = field(default_factory=list)
    patches: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @classmethod
    def of(cls, *answers: dict[str, Any], **rest: Any) -> Cloud:
        return cls(endpoints={answer["id"]: answer for answer in answers or (live(),)}, **rest)

    async def _asked(self, method: str) -> None:
        self.asked.append(method)
        if method in self.hang:
            await asyncio.Event().wait()
        if method in self.down:
            raise Unreachable("RunPod did not answer as it should: status 502.", maybe_done=False, where=method)

    def _endpoint(self, endpoint_id: str) -> dict[str, Any]:
        if endpoint_id not in self.endpoints:
            raise NotFound("RunPod answered 404.", status=404)
        return self.endpoints[endpoint_id]

    async def list_endpoints(self) -> list[dict[str, Any]]:
        await self._asked("list_endpoints")
        return list(self.endpoints.values())

    async def get_endpoint(self, endpoint_id: str, /) -> dict[str, Any]:
        await self._asked("get_endpoint")
        return self._endpoint(endpoint_id)

    async def update_endpoint(self, endpoint_id: str, body: Mapping[str, Any], /) -> dict[str, Any]:
        await self._asked("update_endpoint")
        self.patches.append((endpoint_id, body))
        found = self._endpoint(endpoint_id)
        found["workers"] = {**found["workers"], **body["workers"]}
        if self.quota is not None:
            found["workers"]["max"] = min(found["workers"]["max"], self.quota)
        return found

    async def list_workers(self, endpoint_id: str, /) -> dict[str, Any]:
        await self._asked("list_workers")
        self._endpoint(endpoint_id)
        return {"endpointVersion": 3, "summary": {}, "workers": self.workers.get(endpoint_id, [])}

    async def list_releases(self, endpoint_id: str, /) -> dict[str, Any]:
        await self._asked("list_releases")
        self._endpoint(endpoint_id)
        return {"endpointVersion": 3, "rollout": {"inProgress": self.rolling}, "releases": []}

    async def worker_logs(self, endpoint_id: str, worker_id: str, /, tail: int) -> list[dict[str, Any]]:
        await self._asked("worker_logs")
        lines = [{"source": "container", "line": line, "ts": ""} for line in self.logs.get(worker_id, [])]
        return lines[-tail:]

    async def list_network_volumes(self) -> list[dict[str, Any]]:
        await self._asked("list_network_volumes")
        return self.volumes

    async def gpus(self, *, include_availability: bool = False) -> list[dict[str, Any]]:
        await self._asked("gpus")
        assert include_availability
        return [{"id": pool, "pool": pool, "availability": level} for pool, level in self.stock.items()]

    async def health(self, endpoint_id: str) -> Health:
        await self._asked("health")
        if endpoint_id not in self.endpoints:
            raise InfrastructureError("RunPod knows no such endpoint (404).")
        return self.healths.get(endpoint_id, Health())

    async def job(self, endpoint_id: str, job_id: str) -> Mapping[str, Any] | None:
        await self._asked("job")
        return self.jobs.get(job_id)
