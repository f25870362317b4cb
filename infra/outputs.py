"""infra: what a stack tells those who use it. Pure: from settings, prices and the ids that RunPod gave, to plain JSON values.

`facts`      contract.facts.StackFacts, exactly: what `nightbatch … --stack NAME` reads and pins in a run's plan
`endpoints`  by name: id, URL, type, GPU pools and their price, image and digest, where the model comes from
`volumes`    by name: id, data center, address of its S3 API
`limits`     what all workers together can be and cost at most, and the stack's ceilings

No secret is in any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from contract.facts import EndpointFacts, StackFacts, StoreFacts
from infra.settings import ENDPOINT_TYPES, EndpointSettings, Prices, Settings

NO_TIMEOUT_S = 604_800.0
"""What plans count on where an endpoint has no execution timeout: RunPod's longest, 7 days."""


@dataclass(frozen=True)
class Made:
    """What RunPod answered for one endpoint: its id, and for a load-balancing endpoint its own address."""

    id: str
    base_url: str | None = None


def facts(settings: Settings, prices: Prices, endpoints: Mapping[str, Made], volume_ids: Mapping[str, str]) -> dict[str, Any]:
    """StackFacts, as JSON values. `endpoints`, `volume_ids`: by name. Endpoints whose price is not known are priced 0 (a rule refuses them
    unless the stack's levels say otherwise)."""
    of = {kind: tuple(one for one in settings.endpoints if one.type == kind) for kind in ENDPOINT_TYPES}
    found = StackFacts(
        stack=settings.stack,
        api_url=settings.api_url,
        store=store(settings, volume_ids),
        endpoints=tuple(endpoint_facts(one, prices, endpoints[one.name].id) for one in of["QUEUE"]),
        balanced=tuple(endpoint_facts(one, prices, endpoints[one.name].id) for one in of["LOAD_BALANCER"]),
    )
    built: dict[str, Any] = msgspec.to_builtins(found)
    if not found.balanced:
        del built["balanced"]  # who reads facts with an earlier version does not know the field
    return built


def endpoint_facts(endpoint: EndpointSettings, prices: Prices, endpoint_id: str) -> EndpointFacts:
    """One endpoint as plans, and those who look after it, see it. Its price and pool are those of the dearest of its pools, because a
    budget must hold whichever card RunPod gives."""
    price = prices.of_worker(endpoint.gpu) or 0.0
    return EndpointFacts(
        name=endpoint.name,
        id=endpoint_id,
        model=endpoint.model or endpoint.name,
        tasks=endpoint.tasks if endpoint.type == "QUEUE" else (),
        gpu=max(endpoint.gpu.pools, key=lambda pool: prices.usd_per_hour.get(pool, 0.0)),
        gpu_count=endpoint.gpu.count,
        usd_per_second=round(price / 3600, 9),
        workers_min=endpoint.workers_min,
        workers_max=endpoint.workers_peak,
        scaler=endpoint.scaler,
        scaler_value=endpoint.scaler_value,
        shards_per_worker=endpoint.max_concurrency,
        idle_timeout_s=float(endpoint.idle_timeout_s),
        execution_timeout_s=endpoint.execution_timeout_s or NO_TIMEOUT_S,
        cold_start_s=endpoint.cold_start_s,
        max_model_len=endpoint.max_model_len,
        image=endpoint.image_identity,
    )


def store(settings: Settings, volume_ids: Mapping[str, str]) -> StoreFacts:
    """Where runs are kept. A volume's bucket is its id."""
    at = settings.store
    if at.volume is not None:
        return StoreFacts(bucket=volume_ids[at.volume], endpoint_url=settings.volume(at.volume).s3_url or "", prefix=at.prefix)
    return StoreFacts(bucket=at.bucket or "", endpoint_url=at.endpoint_url or "", prefix=at.prefix)


def endpoint(settings: Settings, endpoint: EndpointSettings, prices: Prices, made: Made) -> dict[str, Any]:
    """One endpoint of the output `endpoints`."""
    return {
        "id": made.id,
        "url": f"{settings.api_url}/{made.id}" if endpoint.type == "QUEUE" else made.base_url,
        "type": endpoint.type,
        "model": endpoint.model,
        "modelSource": source(endpoint),
        "gpuPools": list(endpoint.gpu.pools),
        "gpuCount": endpoint.gpu.count,
        "usd_per_hour_per_worker": _cents(prices.of_worker(endpoint.gpu)),
        "workersMax": endpoint.workers_peak,
        "image": endpoint.image,
        "imageDigest": endpoint.image_digest,
    }


def volume(settings: Settings, name: str, volume_id: str) -> dict[str, Any]:
    """One volume of the output `volumes`."""
    declared = settings.volume(name)
    return {"id": volume_id, "dataCenter": declared.data_center, "s3Url": declared.s3_url, "sizeGb": declared.size_gb}


def limits(settings: Settings, prices: Prices) -> dict[str, Any]:
    """The most that the stack can run and cost at once, with every worker of every endpoint up; known before anything is made. Prices are
    dollars an hour; `ceilings` are those of the stack file."""
    workers = sum(endpoint.workers_peak for endpoint in settings.endpoints)
    usd = sum((prices.of_worker(endpoint.gpu) or 0.0) * endpoint.workers_peak for endpoint in settings.endpoints)
    at_rest = sum((prices.of_worker(endpoint.gpu) or 0.0) * endpoint.workers_min for endpoint in settings.endpoints)
    return {
        "workers": workers,
        "usdPerHour": _cents(usd),
        "usdPerHourAtRest": _cents(at_rest),
        "prices": prices.source,
        "ceilings": {"workers": settings.rules.max_workers, "usdPerHour": settings.rules.max_usd_per_hour},
    }


def source(endpoint: EndpointSettings) -> str:
    """Where the model comes from, in one word or two: `hub`, `baked:/models/x`, `volume:models`, `cached:org/name`. What is `cached` is set
    in RunPod's console; REST v2 has no field for it, so it is recorded here and in the worker's environment, and doctor looks."""
    found = endpoint.source
    detail = {"volume": found.volume, "baked": found.path, "cached": endpoint.model, "hub": None}[found.kind]
    return found.kind if detail is None else f"{found.kind}:{detail}"


def _cents(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)
