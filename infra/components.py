"""infra: the components: from settings to RunPod's resources. Imports pulumi; the arguments of each endpoint are made by a pure function.

BatchPlatform          everything of a stack: volumes, the registry's credential, the endpoints; its outputs are the stack's
QueueEndpoint          one queue endpoint: the worker's environment (the content of a template, kept in the endpoint itself, because
                       RunPod copies templates once and forgets them), scaling, placement, protection
LoadBalancedEndpoint   the same for a load-balancing endpoint
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pulumi

from infra import outputs
from infra.outputs import Made
from infra.provider import sdk as runpodv2
from infra.settings import PROJECT, VOLUME_MOUNT, EndpointSettings, Prices, RegistrySettings, Settings

PLATFORM_TYPE: Final = f"{PROJECT}:index:BatchPlatform"
QUEUE_TYPE: Final = f"{PROJECT}:index:QueueEndpoint"
BALANCED_TYPE: Final = f"{PROJECT}:index:LoadBalancedEndpoint"
DRAIN_GRACE_S: Final = 60
"""Beyond the execution timeout, for a worker to hand in its result."""
DRAIN_WITHOUT_TIMEOUT_S: Final = 3600


def worker_env(endpoint: EndpointSettings) -> dict[str, str]:
    """The environment that the worker reads (worker/settings.py): what the settings say, then the user's own variables. No secrets."""
    env: dict[str, str] = {"NIGHTBATCH_IMAGE": endpoint.image_identity}
    if endpoint.model is not None:
        env |= _model_env(endpoint, endpoint.model)
    if endpoint.tasks:
        env["NIGHTBATCH_TASK"] = endpoint.tasks[0]
    if endpoint.revision is not None:
        env["NIGHTBATCH_REVISION"] = endpoint.revision
    if endpoint.max_num_seqs is not None:
        env["MAX_NUM_SEQS"] = str(endpoint.max_num_seqs)
    if endpoint.max_model_len is not None:
        env["MAX_MODEL_LEN"] = str(endpoint.max_model_len)
    if endpoint.type == "QUEUE":
        env["NIGHTBATCH_CONCURRENCY"] = str(endpoint.max_concurrency)
    if endpoint.health is not None:
        port = str(endpoint.health.port)
        env |= {"PORT": port, "PORT_HEALTH": port, "HEALTH_CHECK_PATH": endpoint.health.path}
    return {**env, **endpoint.env}


def _model_env(endpoint: EndpointSettings, model: str) -> dict[str, str]:
    """Which name or folder the worker loads, and where the hub's library keeps and looks for files.

    NIGHTBATCH_MODEL_SOURCE is for people and for doctor: REST v2 cannot say that an endpoint has a cached model.
    """
    source = endpoint.source
    env = {"NIGHTBATCH_SERVED_NAME": model, "NIGHTBATCH_MODEL_SOURCE": outputs.source(endpoint)}
    if source.kind == "baked":
        return env | {"NIGHTBATCH_MODEL": source.path or model, "HF_HUB_OFFLINE": "1"}
    if source.kind == "cached":  # RunPod puts them at huggingface-cache/hub/models--org--name (endpoints/model-caching)
        return env | {"NIGHTBATCH_MODEL": model, "HF_HOME": f"{VOLUME_MOUNT}/huggingface-cache", "HF_HUB_OFFLINE": "1"}
    if source.kind == "volume" and source.path is not None:
        return env | {"NIGHTBATCH_MODEL": f"{VOLUME_MOUNT}/{source.path.strip('/')}", "HF_HUB_OFFLINE": "1"}
    if source.kind == "volume":  # the first worker downloads it onto the volume, later ones find it there
        return env | {"NIGHTBATCH_MODEL": model, "HF_HOME": f"{VOLUME_MOUNT}/huggingface"}
    return env | {"NIGHTBATCH_MODEL": model}


def endpoint_arguments(
    settings: Settings,
    endpoint: EndpointSettings,
    *,
    volume_ids: Mapping[str, Any],
    registry_id: Any = None,
    secrets: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The inputs of `runpodv2.Endpoint` for these settings. Values that RunPod makes (ids) and secrets may be outputs of Pulumi: they are
    passed on and not looked at."""
    queue = endpoint.type == "QUEUE"
    env: dict[str, Any] = {**worker_env(endpoint), **{name: (secrets or {})[name] for name in endpoint.secret_env}}
    gpu: dict[str, Any] = {"pools": list(endpoint.gpu.pools), "count": endpoint.gpu.count}
    if endpoint.gpu.excluded_types:
        gpu["excluded_types"] = list(endpoint.gpu.excluded_types)
    if endpoint.gpu.min_cuda_version is not None:
        gpu["min_cuda_version"] = endpoint.gpu.min_cuda_version
    if endpoint.gpu.allowed_cuda_versions:
        gpu["allowed_cuda_versions"] = list(endpoint.gpu.allowed_cuda_versions)
    workers: dict[str, Any] = {"min": endpoint.workers_min, "max": endpoint.workers_peak}
    if endpoint.scaler == "QUEUE_DELAY" or not queue:  # RunPod refuses it on a queue that scales by request count
        workers["idle_timeout"] = endpoint.idle_timeout_s
    scaling: dict[str, Any] = (
        {"type": "QUEUE_DELAY", "queue_delay": endpoint.scaler_value}
        if endpoint.scaler == "QUEUE_DELAY"
        else {"type": "REQUEST_COUNT", "request_count": int(endpoint.scaler_value)}
    )
    timeout_s = endpoint.execution_timeout_s
    found: dict[str, Any] = {
        "name": physical_name(settings, endpoint.name),
        "type": endpoint.type,
        "image": endpoint.image,
        "env": env,
        "gpu": gpu,
        "workers": workers,
        "scaling": scaling,
        "timeout": round((timeout_s or 0) * 1000),  # always sent: left out, RunPod takes 0, no limit
        "flashboot": endpoint.flashboot,
        "rollout": endpoint.rollout,
        "drain_on_delete": endpoint.drain_on_delete,
        "drain_timeout_seconds": round(timeout_s) + DRAIN_GRACE_S if timeout_s else DRAIN_WITHOUT_TIMEOUT_S,
    }
    if endpoint.data_centers:
        found["data_center_ids"] = list(endpoint.data_centers)
    if endpoint.volumes:
        found["network_volumes"] = [volume_ids[name] for name in endpoint.volumes]
    if endpoint.disk_gb is not None:
        found["disk"] = endpoint.disk_gb
    if endpoint.health is not None:
        found["ports"] = [f"{endpoint.health.port}/http"]
    if registry_id is not None:
        found["registry"] = registry_id
    return found


def physical_name(settings: Settings, name: str) -> str:
    """What RunPod's console shows: project, stack and the name in the stack file."""
    return f"{PROJECT}-{settings.stack}-{name}"


class _EndpointComponent(pulumi.ComponentResource):
    """One endpoint and its protection. `id` and `base_url` are outputs; the latter is a load-balancing endpoint's own address."""

    id: pulumi.Output[str]
    base_url: pulumi.Output[str | None]

    def __init__(
        self,
        kind: str,
        name: str,
        settings: Settings,
        endpoint: EndpointSettings,
        *,
        volume_ids: Mapping[str, pulumi.Input[str]] | None = None,
        registry_id: pulumi.Input[str] | None = None,
        secrets: Mapping[str, pulumi.Input[str]] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(kind, name, None, opts)
        given = endpoint_arguments(settings, endpoint, volume_ids=volume_ids or {}, registry_id=registry_id, secrets=secrets)
        typed: dict[str, Any] = {
            "gpu": runpodv2.EndpointGpuArgs(**given.pop("gpu")),
            "workers": runpodv2.EndpointWorkersArgs(**given.pop("workers")),
            "scaling": runpodv2.EndpointScalingArgs(**given.pop("scaling")),
        }
        self.endpoint = runpodv2.Endpoint(name, **typed, **given, opts=pulumi.ResourceOptions(parent=self, protect=endpoint.protect))
        self.id = self.endpoint.id
        self.base_url = self.endpoint.request_urls.apply(lambda urls: (urls or {}).get("base"))
        self.register_outputs({"id": self.id, "image": endpoint.image, "modelSource": outputs.source(endpoint)})


class QueueEndpoint(_EndpointComponent):
    """A queue endpoint that does one task with one model, in batches."""

    def __init__(self, name: str, settings: Settings, endpoint: EndpointSettings, **given: Any) -> None:
        super().__init__(QUEUE_TYPE, name, settings, endpoint, **given)


class LoadBalancedEndpoint(_EndpointComponent):
    """A load-balancing endpoint: requests go straight to the workers' own HTTP server. Runs of Nightbatch do not use it."""

    def __init__(self, name: str, settings: Settings, endpoint: EndpointSettings, **given: Any) -> None:
        super().__init__(BALANCED_TYPE, name, settings, endpoint, **given)


class BatchPlatform(pulumi.ComponentResource):
    """A whole stack. `facts`, `endpoint_outputs`, `volume_outputs` and `limits` are what the program exports."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        prices: Prices,
        *,
        secrets: Mapping[str, pulumi.Input[str]] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(PLATFORM_TYPE, name, None, opts)
        given = secrets or {}
        self.volumes = {
            volume.name: runpodv2.NetworkVolume(
                volume.name,
                name=physical_name(settings, volume.name),
                size=volume.size_gb,
                data_center=volume.data_center,
                **({} if volume.type is None else {"type": volume.type}),
                opts=pulumi.ResourceOptions(parent=self, protect=volume.protect),
            )
            for volume in settings.volumes
        }
        registry_id = self._registry(settings.registry, given)
        volume_ids = {key: volume.id for key, volume in self.volumes.items()}
        self.endpoints: dict[str, _EndpointComponent] = {}
        for endpoint in settings.endpoints:
            kind = QueueEndpoint if endpoint.type == "QUEUE" else LoadBalancedEndpoint
            self.endpoints[endpoint.name] = kind(
                endpoint.name,
                settings,
                endpoint,
                volume_ids=volume_ids,
                registry_id=registry_id,
                secrets=given,
                opts=pulumi.ResourceOptions(parent=self),
            )
        made = pulumi.Output.all(
            endpoints={key: {"id": found.id, "base_url": found.base_url} for key, found in self.endpoints.items()}, volumes=volume_ids
        )
        self.facts = made.apply(lambda ids: outputs.facts(settings, prices, _made(ids), ids["volumes"]))
        self.endpoint_outputs = made.apply(
            lambda ids: {e.name: outputs.endpoint(settings, e, prices, _made(ids)[e.name]) for e in settings.endpoints}
        )
        self.volume_outputs = made.apply(lambda ids: {key: outputs.volume(settings, key, found) for key, found in ids["volumes"].items()})
        self.limits = outputs.limits(settings, prices)
        self.register_outputs({})

    def _registry(self, registry: RegistrySettings | None, secrets: Mapping[str, pulumi.Input[str]]) -> pulumi.Input[str] | None:
        if registry is None or registry.id is not None:
            return None if registry is None else registry.id
        assert registry.name is not None
        assert registry.username is not None
        assert registry.password_secret is not None
        made = runpodv2.RegistryCredential(
            registry.name,
            name=registry.name,
            username=registry.username,
            password=secrets[registry.password_secret],
            opts=pulumi.ResourceOptions(parent=self),
        )
        found: pulumi.Output[str] = made.id
        return found


def _made(ids: Mapping[str, Any]) -> dict[str, Made]:
    return {name: Made(found["id"], found["base_url"]) for name, found in ids["endpoints"].items()}
