"""infra/provider: the Python SDK of the package runpodv2. Written by sdkgen.py from the resources' tables: change those.

Names are REST v2's in snake_case. What an omitted argument means stands with it; a value that only RunPod knows is an output.
"""

# ruff: noqa: UP007, UP045
from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union, cast

import pulumi
import pulumi.runtime


@pulumi.input_type
class EndpointGpuArgs:
    """GPU workers. Excludes cpu; changing between the two replaces the endpoint."""

    def __init__(
        self,
        *,
        pools: pulumi.Input[Sequence[pulumi.Input[str]]],
        count: Optional[pulumi.Input[int]] = None,
        excluded_types: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        allowed_cuda_versions: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        min_cuda_version: Optional[pulumi.Input[str]] = None,
    ) -> None:
        """
        :param pools: GPU pool ids in order of preference, such as ADA_24 (getGpus lists them). Workers go where there is
            capacity.
        :param count: GPUs per worker. Default: 1.
        :param excluded_types: GPU type ids to leave out of the pools, such as NVIDIA L40.
        :param allowed_cuda_versions: CUDA versions that a host may have, as major.minor. Excludes minCudaVersion.
        :param min_cuda_version: The lowest CUDA version that a host may have, as major.minor. Excludes allowedCudaVersions.
        """
        pulumi.set(self, "pools", pools)
        if count is not None:
            pulumi.set(self, "count", count)
        if excluded_types is not None:
            pulumi.set(self, "excluded_types", excluded_types)
        if allowed_cuda_versions is not None:
            pulumi.set(self, "allowed_cuda_versions", allowed_cuda_versions)
        if min_cuda_version is not None:
            pulumi.set(self, "min_cuda_version", min_cuda_version)

    @builtins.property
    @pulumi.getter(name="pools")
    def pools(self) -> pulumi.Input[Sequence[pulumi.Input[str]]]:
        """GPU pool ids in order of preference, such as ADA_24 (getGpus lists them). Workers go where there is capacity."""
        return pulumi.get(self, "pools")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="count")
    def count(self) -> Optional[pulumi.Input[int]]:
        """GPUs per worker. Default: 1."""
        return pulumi.get(self, "count")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="excludedTypes")
    def excluded_types(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[str]]]]:
        """GPU type ids to leave out of the pools, such as NVIDIA L40."""
        return pulumi.get(self, "excluded_types")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="allowedCudaVersions")
    def allowed_cuda_versions(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[str]]]]:
        """CUDA versions that a host may have, as major.minor. Excludes minCudaVersion."""
        return pulumi.get(self, "allowed_cuda_versions")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="minCudaVersion")
    def min_cuda_version(self) -> Optional[pulumi.Input[str]]:
        """The lowest CUDA version that a host may have, as major.minor. Excludes allowedCudaVersions."""
        return pulumi.get(self, "min_cuda_version")  # type: ignore[no-any-return]


@pulumi.output_type
class EndpointGpu(dict[str, Any]):
    """GPU workers. Excludes cpu; changing between the two replaces the endpoint."""

    def __init__(
        self,
        *,
        pools: Sequence[str],
        count: Optional[int] = None,
        excluded_types: Optional[Sequence[str]] = None,
        allowed_cuda_versions: Optional[Sequence[str]] = None,
        min_cuda_version: Optional[str] = None,
    ) -> None:
        pulumi.set(self, "pools", pools)
        if count is not None:
            pulumi.set(self, "count", count)
        if excluded_types is not None:
            pulumi.set(self, "excluded_types", excluded_types)
        if allowed_cuda_versions is not None:
            pulumi.set(self, "allowed_cuda_versions", allowed_cuda_versions)
        if min_cuda_version is not None:
            pulumi.set(self, "min_cuda_version", min_cuda_version)

    @builtins.property
    @pulumi.getter(name="pools")
    def pools(self) -> Sequence[str]:
        """GPU pool ids in order of preference, such as ADA_24 (getGpus lists them). Workers go where there is capacity."""
        return pulumi.get(self, "pools")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="count")
    def count(self) -> Optional[int]:
        """GPUs per worker. Default: 1."""
        return pulumi.get(self, "count")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="excludedTypes")
    def excluded_types(self) -> Optional[Sequence[str]]:
        """GPU type ids to leave out of the pools, such as NVIDIA L40."""
        return pulumi.get(self, "excluded_types")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="allowedCudaVersions")
    def allowed_cuda_versions(self) -> Optional[Sequence[str]]:
        """CUDA versions that a host may have, as major.minor. Excludes minCudaVersion."""
        return pulumi.get(self, "allowed_cuda_versions")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="minCudaVersion")
    def min_cuda_version(self) -> Optional[str]:
        """The lowest CUDA version that a host may have, as major.minor. Excludes allowedCudaVersions."""
        return pulumi.get(self, "min_cuda_version")  # type: ignore[no-any-return]


@pulumi.input_type
class EndpointCpuArgs:
    """CPU workers: the configurations that a worker may have. Excludes gpu."""

    def __init__(
        self,
        *,
        id: pulumi.Input[str],
        vcpu_count: pulumi.Input[int],
    ) -> None:
        """
        :param id: CPU flavor, such as cpu5c (getCpus lists them).
        :param vcpu_count: vCPUs per worker: 2, 4, 8, ...
        """
        pulumi.set(self, "id", id)
        pulumi.set(self, "vcpu_count", vcpu_count)

    @builtins.property
    @pulumi.getter(name="id")
    def id(self) -> pulumi.Input[str]:
        """CPU flavor, such as cpu5c (getCpus lists them)."""
        return pulumi.get(self, "id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="vcpuCount")
    def vcpu_count(self) -> pulumi.Input[int]:
        """vCPUs per worker: 2, 4, 8, ..."""
        return pulumi.get(self, "vcpu_count")  # type: ignore[no-any-return]


@pulumi.output_type
class EndpointCpu(dict[str, Any]):
    """CPU workers: the configurations that a worker may have. Excludes gpu."""

    def __init__(
        self,
        *,
        id: str,
        vcpu_count: int,
    ) -> None:
        pulumi.set(self, "id", id)
        pulumi.set(self, "vcpu_count", vcpu_count)

    @builtins.property
    @pulumi.getter(name="id")
    def id(self) -> str:
        """CPU flavor, such as cpu5c (getCpus lists them)."""
        return pulumi.get(self, "id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="vcpuCount")
    def vcpu_count(self) -> int:
        """vCPUs per worker: 2, 4, 8, ..."""
        return pulumi.get(self, "vcpu_count")  # type: ignore[no-any-return]


@pulumi.input_type
class EndpointWorkersArgs:
    """How many workers."""

    def __init__(
        self,
        *,
        min: Optional[pulumi.Input[int]] = None,
        max: Optional[pulumi.Input[int]] = None,
        idle_timeout: Optional[pulumi.Input[int]] = None,
    ) -> None:
        """
        :param min: Workers that always run, and are always paid for. Default: 0.
        :param max: The most workers at once. Default: 3.
        :param idle_timeout: Seconds before an idle worker is stopped, 1 to 3600. Not with REQUEST_COUNT on a queue endpoint.
        """
        if min is not None:
            pulumi.set(self, "min", min)
        if max is not None:
            pulumi.set(self, "max", max)
        if idle_timeout is not None:
            pulumi.set(self, "idle_timeout", idle_timeout)

    @builtins.property
    @pulumi.getter(name="min")
    def min(self) -> Optional[pulumi.Input[int]]:
        """Workers that always run, and are always paid for. Default: 0."""
        return pulumi.get(self, "min")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="max")
    def max(self) -> Optional[pulumi.Input[int]]:
        """The most workers at once. Default: 3."""
        return pulumi.get(self, "max")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="idleTimeout")
    def idle_timeout(self) -> Optional[pulumi.Input[int]]:
        """Seconds before an idle worker is stopped, 1 to 3600. Not with REQUEST_COUNT on a queue endpoint."""
        return pulumi.get(self, "idle_timeout")  # type: ignore[no-any-return]


@pulumi.output_type
class EndpointWorkers(dict[str, Any]):
    """How many workers."""

    def __init__(
        self,
        *,
        min: Optional[int] = None,
        max: Optional[int] = None,
        idle_timeout: Optional[int] = None,
    ) -> None:
        if min is not None:
            pulumi.set(self, "min", min)
        if max is not None:
            pulumi.set(self, "max", max)
        if idle_timeout is not None:
            pulumi.set(self, "idle_timeout", idle_timeout)

    @builtins.property
    @pulumi.getter(name="min")
    def min(self) -> Optional[int]:
        """Workers that always run, and are always paid for. Default: 0."""
        return pulumi.get(self, "min")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="max")
    def max(self) -> Optional[int]:
        """The most workers at once. Default: 3."""
        return pulumi.get(self, "max")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="idleTimeout")
    def idle_timeout(self) -> Optional[int]:
        """Seconds before an idle worker is stopped, 1 to 3600. Not with REQUEST_COUNT on a queue endpoint."""
        return pulumi.get(self, "idle_timeout")  # type: ignore[no-any-return]


@pulumi.input_type
class EndpointScalingArgs:
    """When workers are added."""

    def __init__(
        self,
        *,
        type: pulumi.Input[str],
        queue_delay: Optional[pulumi.Input[float]] = None,
        request_count: Optional[pulumi.Input[int]] = None,
    ) -> None:
        """
        :param type: QUEUE_DELAY: a worker is added when a job has waited long enough; REQUEST_COUNT: one worker for so many
            requests.
        :param queue_delay: Seconds that a job may wait; with QUEUE_DELAY only.
        :param request_count: Requests per worker; with REQUEST_COUNT only.
        """
        pulumi.set(self, "type", type)
        if queue_delay is not None:
            pulumi.set(self, "queue_delay", queue_delay)
        if request_count is not None:
            pulumi.set(self, "request_count", request_count)

    @builtins.property
    @pulumi.getter(name="type")
    def type(self) -> pulumi.Input[str]:
        """QUEUE_DELAY: a worker is added when a job has waited long enough; REQUEST_COUNT: one worker for so many requests."""
        return pulumi.get(self, "type")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="queueDelay")
    def queue_delay(self) -> Optional[pulumi.Input[float]]:
        """Seconds that a job may wait; with QUEUE_DELAY only."""
        return pulumi.get(self, "queue_delay")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="requestCount")
    def request_count(self) -> Optional[pulumi.Input[int]]:
        """Requests per worker; with REQUEST_COUNT only."""
        return pulumi.get(self, "request_count")  # type: ignore[no-any-return]


@pulumi.output_type
class EndpointScaling(dict[str, Any]):
    """When workers are added."""

    def __init__(
        self,
        *,
        type: str,
        queue_delay: Optional[float] = None,
        request_count: Optional[int] = None,
    ) -> None:
        pulumi.set(self, "type", type)
        if queue_delay is not None:
            pulumi.set(self, "queue_delay", queue_delay)
        if request_count is not None:
            pulumi.set(self, "request_count", request_count)

    @builtins.property
    @pulumi.getter(name="type")
    def type(self) -> str:
        """QUEUE_DELAY: a worker is added when a job has waited long enough; REQUEST_COUNT: one worker for so many requests."""
        return pulumi.get(self, "type")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="queueDelay")
    def queue_delay(self) -> Optional[float]:
        """Seconds that a job may wait; with QUEUE_DELAY only."""
        return pulumi.get(self, "queue_delay")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="requestCount")
    def request_count(self) -> Optional[int]:
        """Requests per worker; with REQUEST_COUNT only."""
        return pulumi.get(self, "request_count")  # type: ignore[no-any-return]


@pulumi.input_type
class TemplateMountsPersistentArgs:
    """Storage on the pod's host; it does not survive the host."""

    def __init__(
        self,
        *,
        size: pulumi.Input[int],
        path: pulumi.Input[str],
    ) -> None:
        """
        :param size: GB on the host's own disk, 10 or more.
        :param path: Where it is mounted in the container.
        """
        pulumi.set(self, "size", size)
        pulumi.set(self, "path", path)

    @builtins.property
    @pulumi.getter(name="size")
    def size(self) -> pulumi.Input[int]:
        """GB on the host's own disk, 10 or more."""
        return pulumi.get(self, "size")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="path")
    def path(self) -> pulumi.Input[str]:
        """Where it is mounted in the container."""
        return pulumi.get(self, "path")  # type: ignore[no-any-return]


@pulumi.output_type
class TemplateMountsPersistent(dict[str, Any]):
    """Storage on the pod's host; it does not survive the host."""

    def __init__(
        self,
        *,
        size: int,
        path: str,
    ) -> None:
        pulumi.set(self, "size", size)
        pulumi.set(self, "path", path)

    @builtins.property
    @pulumi.getter(name="size")
    def size(self) -> int:
        """GB on the host's own disk, 10 or more."""
        return pulumi.get(self, "size")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="path")
    def path(self) -> str:
        """Where it is mounted in the container."""
        return pulumi.get(self, "path")  # type: ignore[no-any-return]


@pulumi.input_type
class TemplateMountsArgs:
    """Storage for pods. Taking it away replaces the template: REST v2 cannot clear it."""

    def __init__(
        self,
        *,
        persistent: Optional[pulumi.Input[Union[TemplateMountsPersistentArgs, Mapping[str, Any]]]] = None,
    ) -> None:
        """
        :param persistent: Storage on the pod's host; it does not survive the host.
        """
        if persistent is not None:
            pulumi.set(self, "persistent", persistent)

    @builtins.property
    @pulumi.getter(name="persistent")
    def persistent(self) -> Optional[pulumi.Input[Union[TemplateMountsPersistentArgs, Mapping[str, Any]]]]:
        """Storage on the pod's host; it does not survive the host."""
        return pulumi.get(self, "persistent")  # type: ignore[no-any-return]


@pulumi.output_type
class TemplateMounts(dict[str, Any]):
    """Storage for pods. Taking it away replaces the template: REST v2 cannot clear it."""

    def __init__(
        self,
        *,
        persistent: Optional[TemplateMountsPersistent] = None,
    ) -> None:
        if persistent is not None:
            pulumi.set(self, "persistent", persistent)

    @builtins.property
    @pulumi.getter(name="persistent")
    def persistent(self) -> Optional[TemplateMountsPersistent]:
        """Storage on the pod's host; it does not survive the host."""
        return pulumi.get(self, "persistent")  # type: ignore[no-any-return]


@pulumi.output_type
class GpuTypePrice(dict[str, Any]):
    """List price of one GPU in USD per hour."""

    def __init__(
        self,
        *,
        secure: float,
        community: float,
        serverless: Optional[float] = None,
    ) -> None:
        pulumi.set(self, "secure", secure)
        pulumi.set(self, "community", community)
        if serverless is not None:
            pulumi.set(self, "serverless", serverless)

    @builtins.property
    @pulumi.getter(name="secure")
    def secure(self) -> float:
        """A pod on secure cloud."""
        return pulumi.get(self, "secure")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="community")
    def community(self) -> float:
        """A pod on community cloud."""
        return pulumi.get(self, "community")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="serverless")
    def serverless(self) -> Optional[float]:
        """A serverless worker; absent when it is in no pool."""
        return pulumi.get(self, "serverless")  # type: ignore[no-any-return]


@pulumi.output_type
class GpuTypeMaxCount(dict[str, Any]):
    """The most GPUs of one pod."""

    def __init__(
        self,
        *,
        secure: int,
        community: int,
    ) -> None:
        pulumi.set(self, "secure", secure)
        pulumi.set(self, "community", community)

    @builtins.property
    @pulumi.getter(name="secure")
    def secure(self) -> int:
        """On secure cloud."""
        return pulumi.get(self, "secure")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="community")
    def community(self) -> int:
        """On community cloud."""
        return pulumi.get(self, "community")  # type: ignore[no-any-return]


@pulumi.output_type
class Stock(dict[str, Any]):
    """Stock by data center; with includeAvailability."""

    def __init__(
        self,
        *,
        id: str,
        name: str,
        availability: str,
    ) -> None:
        pulumi.set(self, "id", id)
        pulumi.set(self, "name", name)
        pulumi.set(self, "availability", availability)

    @builtins.property
    @pulumi.getter(name="id")
    def id(self) -> str:
        """Identifier."""
        return pulumi.get(self, "id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> str:
        """Name for people."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="availability")
    def availability(self) -> str:
        """Stock. One of NONE, LOW, MEDIUM, HIGH."""
        return pulumi.get(self, "availability")  # type: ignore[no-any-return]


@pulumi.output_type
class CudaVersion(dict[str, Any]):
    """CUDA versions of its hosts; with includeAvailability."""

    def __init__(
        self,
        *,
        version: str,
        available: bool,
    ) -> None:
        pulumi.set(self, "version", version)
        pulumi.set(self, "available", available)

    @builtins.property
    @pulumi.getter(name="version")
    def version(self) -> str:
        """CUDA version, as major.minor."""
        return pulumi.get(self, "version")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="available")
    def available(self) -> bool:
        """Whether a host with it is free now."""
        return pulumi.get(self, "available")  # type: ignore[no-any-return]


@pulumi.output_type
class GpuType(dict[str, Any]):
    """The GPU types."""

    def __init__(
        self,
        *,
        id: str,
        name: str,
        manufacturer: str,
        memory: int,
        secure: bool,
        community: bool,
        price: GpuTypePrice,
        max_count: GpuTypeMaxCount,
        pool: Optional[str] = None,
        availability: Optional[str] = None,
        data_centers: Optional[Sequence[Stock]] = None,
        cuda_versions: Optional[Sequence[CudaVersion]] = None,
    ) -> None:
        pulumi.set(self, "id", id)
        pulumi.set(self, "name", name)
        pulumi.set(self, "manufacturer", manufacturer)
        pulumi.set(self, "memory", memory)
        pulumi.set(self, "secure", secure)
        pulumi.set(self, "community", community)
        pulumi.set(self, "price", price)
        pulumi.set(self, "max_count", max_count)
        if pool is not None:
            pulumi.set(self, "pool", pool)
        if availability is not None:
            pulumi.set(self, "availability", availability)
        if data_centers is not None:
            pulumi.set(self, "data_centers", data_centers)
        if cuda_versions is not None:
            pulumi.set(self, "cuda_versions", cuda_versions)

    @builtins.property
    @pulumi.getter(name="id")
    def id(self) -> str:
        """GPU type id."""
        return pulumi.get(self, "id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> str:
        """Name for people."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="pool")
    def pool(self) -> Optional[str]:
        """Serverless pool id; absent when it is in none."""
        return pulumi.get(self, "pool")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="manufacturer")
    def manufacturer(self) -> str:
        """NVIDIA, AMD or UNKNOWN."""
        return pulumi.get(self, "manufacturer")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="memory")
    def memory(self) -> int:
        """VRAM in GB."""
        return pulumi.get(self, "memory")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="secure")
    def secure(self) -> bool:
        """On secure cloud."""
        return pulumi.get(self, "secure")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="community")
    def community(self) -> bool:
        """On community cloud."""
        return pulumi.get(self, "community")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="price")
    def price(self) -> GpuTypePrice:
        """List price of one GPU in USD per hour."""
        return pulumi.get(self, "price")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="maxCount")
    def max_count(self) -> GpuTypeMaxCount:
        """The most GPUs of one pod."""
        return pulumi.get(self, "max_count")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="availability")
    def availability(self) -> Optional[str]:
        """Stock; with includeAvailability. One of NONE, LOW, MEDIUM, HIGH."""
        return pulumi.get(self, "availability")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="dataCenters")
    def data_centers(self) -> Optional[Sequence[Stock]]:
        """Stock by data center; with includeAvailability."""
        return pulumi.get(self, "data_centers")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="cudaVersions")
    def cuda_versions(self) -> Optional[Sequence[CudaVersion]]:
        """CUDA versions of its hosts; with includeAvailability."""
        return pulumi.get(self, "cuda_versions")  # type: ignore[no-any-return]


@pulumi.output_type
class CpuTypeVcpu(dict[str, Any]):
    """How many vCPUs a worker may have."""

    def __init__(
        self,
        *,
        min: int,
        max: int,
    ) -> None:
        pulumi.set(self, "min", min)
        pulumi.set(self, "max", max)

    @builtins.property
    @pulumi.getter(name="min")
    def min(self) -> int:
        """The least."""
        return pulumi.get(self, "min")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="max")
    def max(self) -> int:
        """The most."""
        return pulumi.get(self, "max")  # type: ignore[no-any-return]


@pulumi.output_type
class CpuTypePrice(dict[str, Any]):
    """List price of one vCPU in USD per hour."""

    def __init__(
        self,
        *,
        secure_per_vcpu: float,
        serverless_per_vcpu: float,
    ) -> None:
        pulumi.set(self, "secure_per_vcpu", secure_per_vcpu)
        pulumi.set(self, "serverless_per_vcpu", serverless_per_vcpu)

    @builtins.property
    @pulumi.getter(name="securePerVcpu")
    def secure_per_vcpu(self) -> float:
        """A pod."""
        return pulumi.get(self, "secure_per_vcpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="serverlessPerVcpu")
    def serverless_per_vcpu(self) -> float:
        """A serverless worker."""
        return pulumi.get(self, "serverless_per_vcpu")  # type: ignore[no-any-return]


@pulumi.output_type
class CpuType(dict[str, Any]):
    """The CPU flavors."""

    def __init__(
        self,
        *,
        id: str,
        name: str,
        group: str,
        vcpu: CpuTypeVcpu,
        ram_gb_per_vcpu: float,
        price: CpuTypePrice,
        availability: Optional[str] = None,
        data_centers: Optional[Sequence[Stock]] = None,
    ) -> None:
        pulumi.set(self, "id", id)
        pulumi.set(self, "name", name)
        pulumi.set(self, "group", group)
        pulumi.set(self, "vcpu", vcpu)
        pulumi.set(self, "ram_gb_per_vcpu", ram_gb_per_vcpu)
        pulumi.set(self, "price", price)
        if availability is not None:
            pulumi.set(self, "availability", availability)
        if data_centers is not None:
            pulumi.set(self, "data_centers", data_centers)

    @builtins.property
    @pulumi.getter(name="id")
    def id(self) -> str:
        """CPU flavor id."""
        return pulumi.get(self, "id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> str:
        """Name for people."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="group")
    def group(self) -> str:
        """Generation."""
        return pulumi.get(self, "group")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="vcpu")
    def vcpu(self) -> CpuTypeVcpu:
        """How many vCPUs a worker may have."""
        return pulumi.get(self, "vcpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="ramGbPerVcpu")
    def ram_gb_per_vcpu(self) -> float:
        """GB of memory for each vCPU."""
        return pulumi.get(self, "ram_gb_per_vcpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="price")
    def price(self) -> CpuTypePrice:
        """List price of one vCPU in USD per hour."""
        return pulumi.get(self, "price")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="availability")
    def availability(self) -> Optional[str]:
        """Stock; with includeAvailability. One of NONE, LOW, MEDIUM, HIGH."""
        return pulumi.get(self, "availability")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="dataCenters")
    def data_centers(self) -> Optional[Sequence[Stock]]:
        """Stock by data center; with includeAvailability."""
        return pulumi.get(self, "data_centers")  # type: ignore[no-any-return]


@pulumi.output_type
class DataCenter(dict[str, Any]):
    """The data centers."""

    def __init__(
        self,
        *,
        id: str,
        name: str,
        region: str,
        global_network: bool,
        network_volume_types: Sequence[str],
        compliance: Sequence[str],
        gpu_availability: Optional[Sequence[Stock]] = None,
        cpu_availability: Optional[Sequence[Stock]] = None,
    ) -> None:
        pulumi.set(self, "id", id)
        pulumi.set(self, "name", name)
        pulumi.set(self, "region", region)
        pulumi.set(self, "global_network", global_network)
        pulumi.set(self, "network_volume_types", network_volume_types)
        pulumi.set(self, "compliance", compliance)
        if gpu_availability is not None:
            pulumi.set(self, "gpu_availability", gpu_availability)
        if cpu_availability is not None:
            pulumi.set(self, "cpu_availability", cpu_availability)

    @builtins.property
    @pulumi.getter(name="id")
    def id(self) -> str:
        """Data center id."""
        return pulumi.get(self, "id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> str:
        """Name for people."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="region")
    def region(self) -> str:
        """Continent."""
        return pulumi.get(self, "region")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="globalNetwork")
    def global_network(self) -> bool:
        """Whether pods of different data centers can have a private network."""
        return pulumi.get(self, "global_network")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="networkVolumeTypes")
    def network_volume_types(self) -> Sequence[str]:
        """Types of network volumes that it has; empty for none."""
        return pulumi.get(self, "network_volume_types")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="compliance")
    def compliance(self) -> Sequence[str]:
        """Certificates."""
        return pulumi.get(self, "compliance")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="gpuAvailability")
    def gpu_availability(self) -> Optional[Sequence[Stock]]:
        """Stock of GPUs; with includeAvailability."""
        return pulumi.get(self, "gpu_availability")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="cpuAvailability")
    def cpu_availability(self) -> Optional[Sequence[Stock]]:
        """Stock of CPUs; with includeAvailability."""
        return pulumi.get(self, "cpu_availability")  # type: ignore[no-any-return]


class Provider(pulumi.ProviderResource):
    """One account. Without one, the default provider is used: configuration runpodv2:apiKey, runpodv2:baseUrl, or the environment."""

    def __init__(
        self,
        resource_name: str,
        opts: Optional[pulumi.ResourceOptions] = None,
        *,
        api_key: Optional[pulumi.Input[str]] = None,
        api_key_env: Optional[pulumi.Input[str]] = None,
        base_url: Optional[pulumi.Input[str]] = None,
    ) -> None:
        """
        :param resource_name: Its name in Pulumi.
        :param opts: Options of the resource.
        :param api_key: RunPod's API key. RUNPOD_API_KEY when omitted; then it is in no state.
        :param api_key_env: Name of the environment variable that holds the API key: for several accounts.
        :param base_url: REST v2's host. RUNPOD_API_BASE_URL, or https://api.runpod.io, when omitted.
        """
        props: dict[str, Any] = {
            "apiKey": None if api_key is None else pulumi.Output.secret(api_key),
            "apiKeyEnv": api_key_env,
            "baseUrl": base_url,
        }
        super().__init__("runpodv2", resource_name, props, opts)


@pulumi.input_type
class EndpointArgs:
    """The arguments of Endpoint."""

    def __init__(
        self,
        *,
        name: pulumi.Input[str],
        type: pulumi.Input[str],
        scaling: pulumi.Input[Union[EndpointScalingArgs, Mapping[str, Any]]],
        image: Optional[pulumi.Input[str]] = None,
        args: Optional[pulumi.Input[str]] = None,
        disk: Optional[pulumi.Input[int]] = None,
        env: Optional[pulumi.Input[Mapping[str, pulumi.Input[str]]]] = None,
        ports: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        registry: Optional[pulumi.Input[str]] = None,
        gpu: Optional[pulumi.Input[Union[EndpointGpuArgs, Mapping[str, Any]]]] = None,
        cpu: Optional[pulumi.Input[Sequence[pulumi.Input[Union[EndpointCpuArgs, Mapping[str, Any]]]]]] = None,
        workers: Optional[pulumi.Input[Union[EndpointWorkersArgs, Mapping[str, Any]]]] = None,
        data_center_ids: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        network_volumes: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        timeout: Optional[pulumi.Input[int]] = None,
        flashboot: Optional[pulumi.Input[str]] = None,
        template_id: Optional[pulumi.Input[str]] = None,
        template_hash: Optional[pulumi.Input[str]] = None,
        rollout: Optional[pulumi.Input[str]] = None,
        drain_on_delete: Optional[pulumi.Input[bool]] = None,
        drain_timeout_seconds: Optional[pulumi.Input[int]] = None,
    ) -> None:
        """
        :param name: The endpoint's name. RunPod does not require it to be unique.
        :param type: QUEUE: jobs through RunPod's queue; LOAD_BALANCER: requests straight to the workers. A change replaces the
            endpoint.
        :param image: The worker's image; pin it by digest. Excludes templateId.
        :param args: Arguments passed to the container's entrypoint, as one string.
        :param disk: Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted.
        :param env: Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
            Output.secret.
        :param ports: Exposed ports, as port/protocol.
        :param registry: Id of the registry credential for a private image.
        :param gpu: GPU workers. Excludes cpu; changing between the two replaces the endpoint.
        :param cpu: CPU workers: the configurations that a worker may have. Excludes gpu.
        :param workers: How many workers.
        :param scaling: When workers are added.
        :param data_center_ids: Data centers that workers may run in; empty for any.
        :param network_volumes: Network volume ids, at most one a data center.
        :param timeout: Milliseconds that one job may run. Set it: RunPod documents 300000 when omitted, and was seen to take 0.
        :param flashboot: Cold-start acceleration. One of OFF, FLASHBOOT, PRIORITY_FLASHBOOT. Default: OFF.
        :param template_id: A serverless template whose container settings are copied once. With its contentHash as templateHash
            an edit reaches it.
        :param template_hash: Any text; when it changes, the template is sent again.
        :param rollout: rolling: old workers finish their job beside new ones; strict: workers.max to 0, running jobs finish, new
            content, workers back. Default: rolling.
        :param drain_on_delete: Let running jobs finish before the endpoint is deleted. Default: false.
        :param drain_timeout_seconds: How long a strict rollout or a delete waits for running jobs. Default: 3600.
        """
        pulumi.set(self, "name", name)
        pulumi.set(self, "type", type)
        pulumi.set(self, "scaling", scaling)
        if image is not None:
            pulumi.set(self, "image", image)
        if args is not None:
            pulumi.set(self, "args", args)
        if disk is not None:
            pulumi.set(self, "disk", disk)
        if env is not None:
            pulumi.set(self, "env", env)
        if ports is not None:
            pulumi.set(self, "ports", ports)
        if registry is not None:
            pulumi.set(self, "registry", registry)
        if gpu is not None:
            pulumi.set(self, "gpu", gpu)
        if cpu is not None:
            pulumi.set(self, "cpu", cpu)
        if workers is not None:
            pulumi.set(self, "workers", workers)
        if data_center_ids is not None:
            pulumi.set(self, "data_center_ids", data_center_ids)
        if network_volumes is not None:
            pulumi.set(self, "network_volumes", network_volumes)
        if timeout is not None:
            pulumi.set(self, "timeout", timeout)
        if flashboot is not None:
            pulumi.set(self, "flashboot", flashboot)
        if template_id is not None:
            pulumi.set(self, "template_id", template_id)
        if template_hash is not None:
            pulumi.set(self, "template_hash", template_hash)
        if rollout is not None:
            pulumi.set(self, "rollout", rollout)
        if drain_on_delete is not None:
            pulumi.set(self, "drain_on_delete", drain_on_delete)
        if drain_timeout_seconds is not None:
            pulumi.set(self, "drain_timeout_seconds", drain_timeout_seconds)

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Input[str]:
        """The endpoint's name. RunPod does not require it to be unique."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="type")
    def type(self) -> pulumi.Input[str]:
        """QUEUE: jobs through RunPod's queue; LOAD_BALANCER: requests straight to the workers. A change replaces the endpoint."""
        return pulumi.get(self, "type")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="image")
    def image(self) -> Optional[pulumi.Input[str]]:
        """The worker's image; pin it by digest. Excludes templateId."""
        return pulumi.get(self, "image")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="args")
    def args(self) -> Optional[pulumi.Input[str]]:
        """Arguments passed to the container's entrypoint, as one string."""
        return pulumi.get(self, "args")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="disk")
    def disk(self) -> Optional[pulumi.Input[int]]:
        """Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted."""
        return pulumi.get(self, "disk")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="env")
    def env(self) -> Optional[pulumi.Input[Mapping[str, pulumi.Input[str]]]]:
        """Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
        Output.secret.
        """
        return pulumi.get(self, "env")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="ports")
    def ports(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[str]]]]:
        """Exposed ports, as port/protocol."""
        return pulumi.get(self, "ports")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="registry")
    def registry(self) -> Optional[pulumi.Input[str]]:
        """Id of the registry credential for a private image."""
        return pulumi.get(self, "registry")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="gpu")
    def gpu(self) -> Optional[pulumi.Input[Union[EndpointGpuArgs, Mapping[str, Any]]]]:
        """GPU workers. Excludes cpu; changing between the two replaces the endpoint."""
        return pulumi.get(self, "gpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="cpu")
    def cpu(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[Union[EndpointCpuArgs, Mapping[str, Any]]]]]]:
        """CPU workers: the configurations that a worker may have. Excludes gpu."""
        return pulumi.get(self, "cpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="workers")
    def workers(self) -> Optional[pulumi.Input[Union[EndpointWorkersArgs, Mapping[str, Any]]]]:
        """How many workers."""
        return pulumi.get(self, "workers")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="scaling")
    def scaling(self) -> pulumi.Input[Union[EndpointScalingArgs, Mapping[str, Any]]]:
        """When workers are added."""
        return pulumi.get(self, "scaling")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="dataCenterIds")
    def data_center_ids(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[str]]]]:
        """Data centers that workers may run in; empty for any."""
        return pulumi.get(self, "data_center_ids")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="networkVolumes")
    def network_volumes(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[str]]]]:
        """Network volume ids, at most one a data center."""
        return pulumi.get(self, "network_volumes")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="timeout")
    def timeout(self) -> Optional[pulumi.Input[int]]:
        """Milliseconds that one job may run. Set it: RunPod documents 300000 when omitted, and was seen to take 0."""
        return pulumi.get(self, "timeout")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="flashboot")
    def flashboot(self) -> Optional[pulumi.Input[str]]:
        """Cold-start acceleration. One of OFF, FLASHBOOT, PRIORITY_FLASHBOOT. Default: OFF."""
        return pulumi.get(self, "flashboot")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="templateId")
    def template_id(self) -> Optional[pulumi.Input[str]]:
        """A serverless template whose container settings are copied once. With its contentHash as templateHash an edit reaches it."""
        return pulumi.get(self, "template_id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="templateHash")
    def template_hash(self) -> Optional[pulumi.Input[str]]:
        """Any text; when it changes, the template is sent again."""
        return pulumi.get(self, "template_hash")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="rollout")
    def rollout(self) -> Optional[pulumi.Input[str]]:
        """rolling: old workers finish their job beside new ones; strict: workers.max to 0, running jobs finish, new content, workers
        back. Default: rolling.
        """
        return pulumi.get(self, "rollout")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="drainOnDelete")
    def drain_on_delete(self) -> Optional[pulumi.Input[bool]]:
        """Let running jobs finish before the endpoint is deleted. Default: false."""
        return pulumi.get(self, "drain_on_delete")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="drainTimeoutSeconds")
    def drain_timeout_seconds(self) -> Optional[pulumi.Input[int]]:
        """How long a strict rollout or a delete waits for running jobs. Default: 3600."""
        return pulumi.get(self, "drain_timeout_seconds")  # type: ignore[no-any-return]


class Endpoint(pulumi.CustomResource):
    """A serverless endpoint: workers of one image that scale with their queue or their requests."""

    def __init__(
        self,
        resource_name: str,
        opts: Optional[pulumi.ResourceOptions] = None,
        *,
        name: pulumi.Input[str],
        type: pulumi.Input[str],
        scaling: pulumi.Input[Union[EndpointScalingArgs, Mapping[str, Any]]],
        image: Optional[pulumi.Input[str]] = None,
        args: Optional[pulumi.Input[str]] = None,
        disk: Optional[pulumi.Input[int]] = None,
        env: Optional[pulumi.Input[Mapping[str, pulumi.Input[str]]]] = None,
        ports: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        registry: Optional[pulumi.Input[str]] = None,
        gpu: Optional[pulumi.Input[Union[EndpointGpuArgs, Mapping[str, Any]]]] = None,
        cpu: Optional[pulumi.Input[Sequence[pulumi.Input[Union[EndpointCpuArgs, Mapping[str, Any]]]]]] = None,
        workers: Optional[pulumi.Input[Union[EndpointWorkersArgs, Mapping[str, Any]]]] = None,
        data_center_ids: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        network_volumes: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        timeout: Optional[pulumi.Input[int]] = None,
        flashboot: Optional[pulumi.Input[str]] = None,
        template_id: Optional[pulumi.Input[str]] = None,
        template_hash: Optional[pulumi.Input[str]] = None,
        rollout: Optional[pulumi.Input[str]] = None,
        drain_on_delete: Optional[pulumi.Input[bool]] = None,
        drain_timeout_seconds: Optional[pulumi.Input[int]] = None,
    ) -> None:
        """
        :param resource_name: Its name in Pulumi.
        :param opts: Options of the resource.
        :param name: The endpoint's name. RunPod does not require it to be unique.
        :param type: QUEUE: jobs through RunPod's queue; LOAD_BALANCER: requests straight to the workers. A change replaces the
            endpoint.
        :param image: The worker's image; pin it by digest. Excludes templateId.
        :param args: Arguments passed to the container's entrypoint, as one string.
        :param disk: Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted.
        :param env: Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
            Output.secret.
        :param ports: Exposed ports, as port/protocol.
        :param registry: Id of the registry credential for a private image.
        :param gpu: GPU workers. Excludes cpu; changing between the two replaces the endpoint.
        :param cpu: CPU workers: the configurations that a worker may have. Excludes gpu.
        :param workers: How many workers.
        :param scaling: When workers are added.
        :param data_center_ids: Data centers that workers may run in; empty for any.
        :param network_volumes: Network volume ids, at most one a data center.
        :param timeout: Milliseconds that one job may run. Set it: RunPod documents 300000 when omitted, and was seen to take 0.
        :param flashboot: Cold-start acceleration. One of OFF, FLASHBOOT, PRIORITY_FLASHBOOT. Default: OFF.
        :param template_id: A serverless template whose container settings are copied once. With its contentHash as templateHash
            an edit reaches it.
        :param template_hash: Any text; when it changes, the template is sent again.
        :param rollout: rolling: old workers finish their job beside new ones; strict: workers.max to 0, running jobs finish, new
            content, workers back. Default: rolling.
        :param drain_on_delete: Let running jobs finish before the endpoint is deleted. Default: false.
        :param drain_timeout_seconds: How long a strict rollout or a delete waits for running jobs. Default: 3600.
        """
        props = EndpointArgs.__new__(EndpointArgs)
        props.__dict__["name"] = name
        props.__dict__["type"] = type
        props.__dict__["image"] = image
        props.__dict__["args"] = args
        props.__dict__["disk"] = disk
        props.__dict__["env"] = env
        props.__dict__["ports"] = ports
        props.__dict__["registry"] = registry
        props.__dict__["gpu"] = gpu
        props.__dict__["cpu"] = cpu
        props.__dict__["workers"] = workers
        props.__dict__["scaling"] = scaling
        props.__dict__["data_center_ids"] = data_center_ids
        props.__dict__["network_volumes"] = network_volumes
        props.__dict__["timeout"] = timeout
        props.__dict__["flashboot"] = flashboot
        props.__dict__["template_id"] = template_id
        props.__dict__["template_hash"] = template_hash
        props.__dict__["rollout"] = rollout
        props.__dict__["drain_on_delete"] = drain_on_delete
        props.__dict__["drain_timeout_seconds"] = drain_timeout_seconds
        props.__dict__["request_urls"] = None
        props.__dict__["created_at"] = None
        super().__init__("runpodv2:index:Endpoint", resource_name, cast("Any", props), opts)

    @staticmethod
    def get(resource_name: str, id: pulumi.Input[str], opts: Optional[pulumi.ResourceOptions] = None) -> Endpoint:
        """One that exists, by its RunPod id; read, never changed."""
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(id=id))
        props = EndpointArgs.__new__(EndpointArgs)
        props.__dict__["name"] = None
        props.__dict__["type"] = None
        props.__dict__["image"] = None
        props.__dict__["args"] = None
        props.__dict__["disk"] = None
        props.__dict__["env"] = None
        props.__dict__["ports"] = None
        props.__dict__["registry"] = None
        props.__dict__["gpu"] = None
        props.__dict__["cpu"] = None
        props.__dict__["workers"] = None
        props.__dict__["scaling"] = None
        props.__dict__["data_center_ids"] = None
        props.__dict__["network_volumes"] = None
        props.__dict__["timeout"] = None
        props.__dict__["flashboot"] = None
        props.__dict__["template_id"] = None
        props.__dict__["template_hash"] = None
        props.__dict__["rollout"] = None
        props.__dict__["drain_on_delete"] = None
        props.__dict__["drain_timeout_seconds"] = None
        props.__dict__["request_urls"] = None
        props.__dict__["created_at"] = None
        found = Endpoint.__new__(Endpoint)
        pulumi.CustomResource.__init__(found, "runpodv2:index:Endpoint", resource_name, cast("Any", props), opts)
        return found

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Output[str]:
        """The endpoint's name. RunPod does not require it to be unique."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="type")
    def type(self) -> pulumi.Output[str]:
        """QUEUE: jobs through RunPod's queue; LOAD_BALANCER: requests straight to the workers. A change replaces the endpoint."""
        return pulumi.get(self, "type")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="image")
    def image(self) -> pulumi.Output[Optional[str]]:
        """The worker's image; pin it by digest. Excludes templateId."""
        return pulumi.get(self, "image")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="args")
    def args(self) -> pulumi.Output[Optional[str]]:
        """Arguments passed to the container's entrypoint, as one string."""
        return pulumi.get(self, "args")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="disk")
    def disk(self) -> pulumi.Output[Optional[int]]:
        """Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted."""
        return pulumi.get(self, "disk")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="env")
    def env(self) -> pulumi.Output[Optional[Mapping[str, str]]]:
        """Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
        Output.secret.
        """
        return pulumi.get(self, "env")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="ports")
    def ports(self) -> pulumi.Output[Optional[Sequence[str]]]:
        """Exposed ports, as port/protocol."""
        return pulumi.get(self, "ports")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="registry")
    def registry(self) -> pulumi.Output[Optional[str]]:
        """Id of the registry credential for a private image."""
        return pulumi.get(self, "registry")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="gpu")
    def gpu(self) -> pulumi.Output[Optional[EndpointGpu]]:
        """GPU workers. Excludes cpu; changing between the two replaces the endpoint."""
        return pulumi.get(self, "gpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="cpu")
    def cpu(self) -> pulumi.Output[Optional[Sequence[EndpointCpu]]]:
        """CPU workers: the configurations that a worker may have. Excludes gpu."""
        return pulumi.get(self, "cpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="workers")
    def workers(self) -> pulumi.Output[Optional[EndpointWorkers]]:
        """How many workers."""
        return pulumi.get(self, "workers")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="scaling")
    def scaling(self) -> pulumi.Output[EndpointScaling]:
        """When workers are added."""
        return pulumi.get(self, "scaling")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="dataCenterIds")
    def data_center_ids(self) -> pulumi.Output[Optional[Sequence[str]]]:
        """Data centers that workers may run in; empty for any."""
        return pulumi.get(self, "data_center_ids")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="networkVolumes")
    def network_volumes(self) -> pulumi.Output[Optional[Sequence[str]]]:
        """Network volume ids, at most one a data center."""
        return pulumi.get(self, "network_volumes")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="timeout")
    def timeout(self) -> pulumi.Output[Optional[int]]:
        """Milliseconds that one job may run. Set it: RunPod documents 300000 when omitted, and was seen to take 0."""
        return pulumi.get(self, "timeout")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="flashboot")
    def flashboot(self) -> pulumi.Output[Optional[str]]:
        """Cold-start acceleration. One of OFF, FLASHBOOT, PRIORITY_FLASHBOOT. Default: OFF."""
        return pulumi.get(self, "flashboot")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="templateId")
    def template_id(self) -> pulumi.Output[Optional[str]]:
        """A serverless template whose container settings are copied once. With its contentHash as templateHash an edit reaches it."""
        return pulumi.get(self, "template_id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="templateHash")
    def template_hash(self) -> pulumi.Output[Optional[str]]:
        """Any text; when it changes, the template is sent again."""
        return pulumi.get(self, "template_hash")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="rollout")
    def rollout(self) -> pulumi.Output[Optional[str]]:
        """rolling: old workers finish their job beside new ones; strict: workers.max to 0, running jobs finish, new content, workers
        back. Default: rolling.
        """
        return pulumi.get(self, "rollout")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="drainOnDelete")
    def drain_on_delete(self) -> pulumi.Output[Optional[bool]]:
        """Let running jobs finish before the endpoint is deleted. Default: false."""
        return pulumi.get(self, "drain_on_delete")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="drainTimeoutSeconds")
    def drain_timeout_seconds(self) -> pulumi.Output[Optional[int]]:
        """How long a strict rollout or a delete waits for running jobs. Default: 3600."""
        return pulumi.get(self, "drain_timeout_seconds")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="requestUrls")
    def request_urls(self) -> pulumi.Output[Mapping[str, str]]:
        """Where to send requests: run, runSync, status, ... of a queue; base and health of a load balancer."""
        return pulumi.get(self, "request_urls")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="createdAt")
    def created_at(self) -> pulumi.Output[str]:
        """When it was made (RFC 3339)."""
        return pulumi.get(self, "created_at")  # type: ignore[no-any-return]


@pulumi.input_type
class NetworkVolumeArgs:
    """The arguments of NetworkVolume."""

    def __init__(
        self,
        *,
        name: pulumi.Input[str],
        size: pulumi.Input[int],
        data_center: pulumi.Input[str],
        type: Optional[pulumi.Input[str]] = None,
    ) -> None:
        """
        :param name: The volume's name. RunPod does not require it to be unique.
        :param size: GB, 10 to 4096. It can only grow: a smaller size replaces the volume, and its data is lost.
        :param data_center: The data center, such as EU-RO-1. A change replaces the volume, and its data is lost.
        :param type: Storage tier; the data center's own when omitted. A change replaces the volume, and its data is lost. One of
            STANDARD, HIGH_PERFORMANCE.
        """
        pulumi.set(self, "name", name)
        pulumi.set(self, "size", size)
        pulumi.set(self, "data_center", data_center)
        if type is not None:
            pulumi.set(self, "type", type)

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Input[str]:
        """The volume's name. RunPod does not require it to be unique."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="size")
    def size(self) -> pulumi.Input[int]:
        """GB, 10 to 4096. It can only grow: a smaller size replaces the volume, and its data is lost."""
        return pulumi.get(self, "size")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="dataCenter")
    def data_center(self) -> pulumi.Input[str]:
        """The data center, such as EU-RO-1. A change replaces the volume, and its data is lost."""
        return pulumi.get(self, "data_center")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="type")
    def type(self) -> Optional[pulumi.Input[str]]:
        """Storage tier; the data center's own when omitted. A change replaces the volume, and its data is lost. One of STANDARD,
        HIGH_PERFORMANCE.
        """
        return pulumi.get(self, "type")  # type: ignore[no-any-return]


class NetworkVolume(pulumi.CustomResource):
    """A network volume: storage in one data center that workers mount at /runpod-volume."""

    def __init__(
        self,
        resource_name: str,
        opts: Optional[pulumi.ResourceOptions] = None,
        *,
        name: pulumi.Input[str],
        size: pulumi.Input[int],
        data_center: pulumi.Input[str],
        type: Optional[pulumi.Input[str]] = None,
    ) -> None:
        """
        :param resource_name: Its name in Pulumi.
        :param opts: Options of the resource.
        :param name: The volume's name. RunPod does not require it to be unique.
        :param size: GB, 10 to 4096. It can only grow: a smaller size replaces the volume, and its data is lost.
        :param data_center: The data center, such as EU-RO-1. A change replaces the volume, and its data is lost.
        :param type: Storage tier; the data center's own when omitted. A change replaces the volume, and its data is lost. One of
            STANDARD, HIGH_PERFORMANCE.
        """
        props = NetworkVolumeArgs.__new__(NetworkVolumeArgs)
        props.__dict__["name"] = name
        props.__dict__["size"] = size
        props.__dict__["data_center"] = data_center
        props.__dict__["type"] = type
        super().__init__("runpodv2:index:NetworkVolume", resource_name, cast("Any", props), opts)

    @staticmethod
    def get(resource_name: str, id: pulumi.Input[str], opts: Optional[pulumi.ResourceOptions] = None) -> NetworkVolume:
        """One that exists, by its RunPod id; read, never changed."""
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(id=id))
        props = NetworkVolumeArgs.__new__(NetworkVolumeArgs)
        props.__dict__["name"] = None
        props.__dict__["size"] = None
        props.__dict__["data_center"] = None
        props.__dict__["type"] = None
        found = NetworkVolume.__new__(NetworkVolume)
        pulumi.CustomResource.__init__(found, "runpodv2:index:NetworkVolume", resource_name, cast("Any", props), opts)
        return found

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Output[str]:
        """The volume's name. RunPod does not require it to be unique."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="size")
    def size(self) -> pulumi.Output[int]:
        """GB, 10 to 4096. It can only grow: a smaller size replaces the volume, and its data is lost."""
        return pulumi.get(self, "size")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="dataCenter")
    def data_center(self) -> pulumi.Output[str]:
        """The data center, such as EU-RO-1. A change replaces the volume, and its data is lost."""
        return pulumi.get(self, "data_center")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="type")
    def type(self) -> pulumi.Output[Optional[str]]:
        """Storage tier; the data center's own when omitted. A change replaces the volume, and its data is lost. One of STANDARD,
        HIGH_PERFORMANCE.
        """
        return pulumi.get(self, "type")  # type: ignore[no-any-return]


@pulumi.input_type
class TemplateArgs:
    """The arguments of Template."""

    def __init__(
        self,
        *,
        name: pulumi.Input[str],
        image: pulumi.Input[str],
        args: Optional[pulumi.Input[str]] = None,
        disk: Optional[pulumi.Input[int]] = None,
        env: Optional[pulumi.Input[Mapping[str, pulumi.Input[str]]]] = None,
        ports: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        registry: Optional[pulumi.Input[str]] = None,
        allowed_cuda_versions: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        category: Optional[pulumi.Input[str]] = None,
        mounts: Optional[pulumi.Input[Union[TemplateMountsArgs, Mapping[str, Any]]]] = None,
        public: Optional[pulumi.Input[bool]] = None,
        serverless: Optional[pulumi.Input[bool]] = None,
        start_jupyter: Optional[pulumi.Input[bool]] = None,
        start_ssh: Optional[pulumi.Input[bool]] = None,
    ) -> None:
        """
        :param name: The template's name.
        :param image: The image; pin it by digest.
        :param args: Arguments passed to the container's entrypoint, as one string.
        :param disk: Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted.
        :param env: Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
            Output.secret.
        :param ports: Exposed ports, as port/protocol.
        :param registry: Id of the registry credential for a private image.
        :param allowed_cuda_versions: CUDA versions that a host may have, as major.minor; empty for any.
        :param category: How the console groups it. One of CPU, NVIDIA, AMD. Default: NVIDIA.
        :param mounts: Storage for pods. Taking it away replaces the template: REST v2 cannot clear it.
        :param public: Whether other RunPod users see it. Default: false.
        :param serverless: For serverless workers (true) or pods (false). An endpoint takes only serverless ones. Default: false.
        :param start_jupyter: Start JupyterLab in pods. Default: true.
        :param start_ssh: Give pods SSH access. Default: true.
        """
        pulumi.set(self, "name", name)
        pulumi.set(self, "image", image)
        if args is not None:
            pulumi.set(self, "args", args)
        if disk is not None:
            pulumi.set(self, "disk", disk)
        if env is not None:
            pulumi.set(self, "env", env)
        if ports is not None:
            pulumi.set(self, "ports", ports)
        if registry is not None:
            pulumi.set(self, "registry", registry)
        if allowed_cuda_versions is not None:
            pulumi.set(self, "allowed_cuda_versions", allowed_cuda_versions)
        if category is not None:
            pulumi.set(self, "category", category)
        if mounts is not None:
            pulumi.set(self, "mounts", mounts)
        if public is not None:
            pulumi.set(self, "public", public)
        if serverless is not None:
            pulumi.set(self, "serverless", serverless)
        if start_jupyter is not None:
            pulumi.set(self, "start_jupyter", start_jupyter)
        if start_ssh is not None:
            pulumi.set(self, "start_ssh", start_ssh)

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Input[str]:
        """The template's name."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="image")
    def image(self) -> pulumi.Input[str]:
        """The image; pin it by digest."""
        return pulumi.get(self, "image")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="args")
    def args(self) -> Optional[pulumi.Input[str]]:
        """Arguments passed to the container's entrypoint, as one string."""
        return pulumi.get(self, "args")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="disk")
    def disk(self) -> Optional[pulumi.Input[int]]:
        """Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted."""
        return pulumi.get(self, "disk")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="env")
    def env(self) -> Optional[pulumi.Input[Mapping[str, pulumi.Input[str]]]]:
        """Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
        Output.secret.
        """
        return pulumi.get(self, "env")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="ports")
    def ports(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[str]]]]:
        """Exposed ports, as port/protocol."""
        return pulumi.get(self, "ports")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="registry")
    def registry(self) -> Optional[pulumi.Input[str]]:
        """Id of the registry credential for a private image."""
        return pulumi.get(self, "registry")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="allowedCudaVersions")
    def allowed_cuda_versions(self) -> Optional[pulumi.Input[Sequence[pulumi.Input[str]]]]:
        """CUDA versions that a host may have, as major.minor; empty for any."""
        return pulumi.get(self, "allowed_cuda_versions")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="category")
    def category(self) -> Optional[pulumi.Input[str]]:
        """How the console groups it. One of CPU, NVIDIA, AMD. Default: NVIDIA."""
        return pulumi.get(self, "category")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="mounts")
    def mounts(self) -> Optional[pulumi.Input[Union[TemplateMountsArgs, Mapping[str, Any]]]]:
        """Storage for pods. Taking it away replaces the template: REST v2 cannot clear it."""
        return pulumi.get(self, "mounts")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="public")
    def public(self) -> Optional[pulumi.Input[bool]]:
        """Whether other RunPod users see it. Default: false."""
        return pulumi.get(self, "public")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="serverless")
    def serverless(self) -> Optional[pulumi.Input[bool]]:
        """For serverless workers (true) or pods (false). An endpoint takes only serverless ones. Default: false."""
        return pulumi.get(self, "serverless")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="startJupyter")
    def start_jupyter(self) -> Optional[pulumi.Input[bool]]:
        """Start JupyterLab in pods. Default: true."""
        return pulumi.get(self, "start_jupyter")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="startSsh")
    def start_ssh(self) -> Optional[pulumi.Input[bool]]:
        """Give pods SSH access. Default: true."""
        return pulumi.get(self, "start_ssh")  # type: ignore[no-any-return]


class Template(pulumi.CustomResource):
    """Container settings that endpoints and pods are made from. An endpoint copies them once."""

    def __init__(
        self,
        resource_name: str,
        opts: Optional[pulumi.ResourceOptions] = None,
        *,
        name: pulumi.Input[str],
        image: pulumi.Input[str],
        args: Optional[pulumi.Input[str]] = None,
        disk: Optional[pulumi.Input[int]] = None,
        env: Optional[pulumi.Input[Mapping[str, pulumi.Input[str]]]] = None,
        ports: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        registry: Optional[pulumi.Input[str]] = None,
        allowed_cuda_versions: Optional[pulumi.Input[Sequence[pulumi.Input[str]]]] = None,
        category: Optional[pulumi.Input[str]] = None,
        mounts: Optional[pulumi.Input[Union[TemplateMountsArgs, Mapping[str, Any]]]] = None,
        public: Optional[pulumi.Input[bool]] = None,
        serverless: Optional[pulumi.Input[bool]] = None,
        start_jupyter: Optional[pulumi.Input[bool]] = None,
        start_ssh: Optional[pulumi.Input[bool]] = None,
    ) -> None:
        """
        :param resource_name: Its name in Pulumi.
        :param opts: Options of the resource.
        :param name: The template's name.
        :param image: The image; pin it by digest.
        :param args: Arguments passed to the container's entrypoint, as one string.
        :param disk: Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted.
        :param env: Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
            Output.secret.
        :param ports: Exposed ports, as port/protocol.
        :param registry: Id of the registry credential for a private image.
        :param allowed_cuda_versions: CUDA versions that a host may have, as major.minor; empty for any.
        :param category: How the console groups it. One of CPU, NVIDIA, AMD. Default: NVIDIA.
        :param mounts: Storage for pods. Taking it away replaces the template: REST v2 cannot clear it.
        :param public: Whether other RunPod users see it. Default: false.
        :param serverless: For serverless workers (true) or pods (false). An endpoint takes only serverless ones. Default: false.
        :param start_jupyter: Start JupyterLab in pods. Default: true.
        :param start_ssh: Give pods SSH access. Default: true.
        """
        props = TemplateArgs.__new__(TemplateArgs)
        props.__dict__["name"] = name
        props.__dict__["image"] = image
        props.__dict__["args"] = args
        props.__dict__["disk"] = disk
        props.__dict__["env"] = env
        props.__dict__["ports"] = ports
        props.__dict__["registry"] = registry
        props.__dict__["allowed_cuda_versions"] = allowed_cuda_versions
        props.__dict__["category"] = category
        props.__dict__["mounts"] = mounts
        props.__dict__["public"] = public
        props.__dict__["serverless"] = serverless
        props.__dict__["start_jupyter"] = start_jupyter
        props.__dict__["start_ssh"] = start_ssh
        props.__dict__["content_hash"] = None
        super().__init__("runpodv2:index:Template", resource_name, cast("Any", props), opts)

    @staticmethod
    def get(resource_name: str, id: pulumi.Input[str], opts: Optional[pulumi.ResourceOptions] = None) -> Template:
        """One that exists, by its RunPod id; read, never changed."""
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(id=id))
        props = TemplateArgs.__new__(TemplateArgs)
        props.__dict__["name"] = None
        props.__dict__["image"] = None
        props.__dict__["args"] = None
        props.__dict__["disk"] = None
        props.__dict__["env"] = None
        props.__dict__["ports"] = None
        props.__dict__["registry"] = None
        props.__dict__["allowed_cuda_versions"] = None
        props.__dict__["category"] = None
        props.__dict__["mounts"] = None
        props.__dict__["public"] = None
        props.__dict__["serverless"] = None
        props.__dict__["start_jupyter"] = None
        props.__dict__["start_ssh"] = None
        props.__dict__["content_hash"] = None
        found = Template.__new__(Template)
        pulumi.CustomResource.__init__(found, "runpodv2:index:Template", resource_name, cast("Any", props), opts)
        return found

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Output[str]:
        """The template's name."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="image")
    def image(self) -> pulumi.Output[str]:
        """The image; pin it by digest."""
        return pulumi.get(self, "image")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="args")
    def args(self) -> pulumi.Output[Optional[str]]:
        """Arguments passed to the container's entrypoint, as one string."""
        return pulumi.get(self, "args")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="disk")
    def disk(self) -> pulumi.Output[Optional[int]]:
        """Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted."""
        return pulumi.get(self, "disk")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="env")
    def env(self) -> pulumi.Output[Optional[Mapping[str, str]]]:
        """Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
        Output.secret.
        """
        return pulumi.get(self, "env")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="ports")
    def ports(self) -> pulumi.Output[Optional[Sequence[str]]]:
        """Exposed ports, as port/protocol."""
        return pulumi.get(self, "ports")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="registry")
    def registry(self) -> pulumi.Output[Optional[str]]:
        """Id of the registry credential for a private image."""
        return pulumi.get(self, "registry")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="allowedCudaVersions")
    def allowed_cuda_versions(self) -> pulumi.Output[Optional[Sequence[str]]]:
        """CUDA versions that a host may have, as major.minor; empty for any."""
        return pulumi.get(self, "allowed_cuda_versions")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="category")
    def category(self) -> pulumi.Output[Optional[str]]:
        """How the console groups it. One of CPU, NVIDIA, AMD. Default: NVIDIA."""
        return pulumi.get(self, "category")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="mounts")
    def mounts(self) -> pulumi.Output[Optional[TemplateMounts]]:
        """Storage for pods. Taking it away replaces the template: REST v2 cannot clear it."""
        return pulumi.get(self, "mounts")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="public")
    def public(self) -> pulumi.Output[Optional[bool]]:
        """Whether other RunPod users see it. Default: false."""
        return pulumi.get(self, "public")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="serverless")
    def serverless(self) -> pulumi.Output[Optional[bool]]:
        """For serverless workers (true) or pods (false). An endpoint takes only serverless ones. Default: false."""
        return pulumi.get(self, "serverless")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="startJupyter")
    def start_jupyter(self) -> pulumi.Output[Optional[bool]]:
        """Start JupyterLab in pods. Default: true."""
        return pulumi.get(self, "start_jupyter")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="startSsh")
    def start_ssh(self) -> pulumi.Output[Optional[bool]]:
        """Give pods SSH access. Default: true."""
        return pulumi.get(self, "start_ssh")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="contentHash")
    def content_hash(self) -> pulumi.Output[str]:
        """Changes with whatever an endpoint copies from the template: pass it as the endpoint's templateHash."""
        return pulumi.get(self, "content_hash")  # type: ignore[no-any-return]


@pulumi.input_type
class RegistryCredentialArgs:
    """The arguments of RegistryCredential."""

    def __init__(
        self,
        *,
        name: pulumi.Input[str],
        username: pulumi.Input[str],
        password: pulumi.Input[str],
    ) -> None:
        """
        :param name: The credential's name.
        :param username: User name at the registry.
        :param password: Password or token at the registry.
        """
        pulumi.set(self, "name", name)
        pulumi.set(self, "username", username)
        pulumi.set(self, "password", password)

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Input[str]:
        """The credential's name."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="username")
    def username(self) -> pulumi.Input[str]:
        """User name at the registry."""
        return pulumi.get(self, "username")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="password")
    def password(self) -> pulumi.Input[str]:
        """Password or token at the registry."""
        return pulumi.get(self, "password")  # type: ignore[no-any-return]


class RegistryCredential(pulumi.CustomResource):
    """User name and password for a private image registry. Every change replaces it; an existing one cannot be imported."""

    def __init__(
        self,
        resource_name: str,
        opts: Optional[pulumi.ResourceOptions] = None,
        *,
        name: pulumi.Input[str],
        username: pulumi.Input[str],
        password: pulumi.Input[str],
    ) -> None:
        """
        :param resource_name: Its name in Pulumi.
        :param opts: Options of the resource.
        :param name: The credential's name.
        :param username: User name at the registry.
        :param password: Password or token at the registry.
        """
        props = RegistryCredentialArgs.__new__(RegistryCredentialArgs)
        props.__dict__["name"] = name
        props.__dict__["username"] = username
        props.__dict__["password"] = pulumi.Output.secret(password)
        secret = pulumi.ResourceOptions(additional_secret_outputs=["password"])
        opts = pulumi.ResourceOptions.merge(secret, opts)
        super().__init__("runpodv2:index:RegistryCredential", resource_name, cast("Any", props), opts)

    @staticmethod
    def get(resource_name: str, id: pulumi.Input[str], opts: Optional[pulumi.ResourceOptions] = None) -> RegistryCredential:
        """One that exists, by its RunPod id; read, never changed."""
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(id=id))
        props = RegistryCredentialArgs.__new__(RegistryCredentialArgs)
        props.__dict__["name"] = None
        props.__dict__["username"] = None
        props.__dict__["password"] = None
        found = RegistryCredential.__new__(RegistryCredential)
        pulumi.CustomResource.__init__(found, "runpodv2:index:RegistryCredential", resource_name, cast("Any", props), opts)
        return found

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> pulumi.Output[str]:
        """The credential's name."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="username")
    def username(self) -> pulumi.Output[str]:
        """User name at the registry."""
        return pulumi.get(self, "username")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="password")
    def password(self) -> pulumi.Output[str]:
        """Password or token at the registry."""
        return pulumi.get(self, "password")  # type: ignore[no-any-return]


@pulumi.output_type
class GetGpusResult(dict[str, Any]):
    """What get_gpus found."""

    def __init__(
        self,
        *,
        gpus: Sequence[GpuType],
    ) -> None:
        pulumi.set(self, "gpus", gpus)

    @builtins.property
    @pulumi.getter(name="gpus")
    def gpus(self) -> Sequence[GpuType]:
        """The GPU types."""
        return pulumi.get(self, "gpus")  # type: ignore[no-any-return]


def get_gpus(
    include_availability: Optional[bool] = None,
    product: Optional[str] = None,
    count: Optional[int] = None,
    opts: Optional[pulumi.InvokeOptions] = None,
) -> GetGpusResult:
    """GPU types with their pool, memory and price; with stock where asked. Needs an API key, in a preview too.

    :param include_availability: Also ask for stock.
    :param product: Whose stock: SERVERLESS unless said otherwise.
    :param count: Stock for so many GPUs a worker.
    """
    args: dict[str, Any] = {
        "includeAvailability": include_availability,
        "product": product,
        "count": count,
    }
    found = pulumi.runtime.invoke("runpodv2:index:getGpus", args, opts=opts, typ=GetGpusResult)
    return cast(GetGpusResult, found.value)


def get_gpus_output(
    include_availability: Optional[pulumi.Input[bool]] = None,
    product: Optional[pulumi.Input[str]] = None,
    count: Optional[pulumi.Input[int]] = None,
    opts: Optional[Union[pulumi.InvokeOptions, pulumi.InvokeOutputOptions]] = None,
) -> pulumi.Output[GetGpusResult]:
    """GPU types with their pool, memory and price; with stock where asked. Needs an API key, in a preview too.

    :param include_availability: Also ask for stock.
    :param product: Whose stock: SERVERLESS unless said otherwise.
    :param count: Stock for so many GPUs a worker.
    """
    args: dict[str, Any] = {
        "includeAvailability": include_availability,
        "product": product,
        "count": count,
    }
    return pulumi.runtime.invoke_output("runpodv2:index:getGpus", args, opts=opts, typ=GetGpusResult)


@pulumi.output_type
class GetCpusResult(dict[str, Any]):
    """What get_cpus found."""

    def __init__(
        self,
        *,
        cpus: Sequence[CpuType],
    ) -> None:
        pulumi.set(self, "cpus", cpus)

    @builtins.property
    @pulumi.getter(name="cpus")
    def cpus(self) -> Sequence[CpuType]:
        """The CPU flavors."""
        return pulumi.get(self, "cpus")  # type: ignore[no-any-return]


def get_cpus(
    include_availability: Optional[bool] = None,
    product: Optional[str] = None,
    vcpu_count: Optional[int] = None,
    opts: Optional[pulumi.InvokeOptions] = None,
) -> GetCpusResult:
    """CPU flavors with their price; with stock where asked. Needs an API key, in a preview too.

    :param include_availability: Also ask for stock.
    :param product: Whose stock: SERVERLESS unless said otherwise.
    :param vcpu_count: Stock for so many vCPUs a worker.
    """
    args: dict[str, Any] = {
        "includeAvailability": include_availability,
        "product": product,
        "vcpuCount": vcpu_count,
    }
    found = pulumi.runtime.invoke("runpodv2:index:getCpus", args, opts=opts, typ=GetCpusResult)
    return cast(GetCpusResult, found.value)


def get_cpus_output(
    include_availability: Optional[pulumi.Input[bool]] = None,
    product: Optional[pulumi.Input[str]] = None,
    vcpu_count: Optional[pulumi.Input[int]] = None,
    opts: Optional[Union[pulumi.InvokeOptions, pulumi.InvokeOutputOptions]] = None,
) -> pulumi.Output[GetCpusResult]:
    """CPU flavors with their price; with stock where asked. Needs an API key, in a preview too.

    :param include_availability: Also ask for stock.
    :param product: Whose stock: SERVERLESS unless said otherwise.
    :param vcpu_count: Stock for so many vCPUs a worker.
    """
    args: dict[str, Any] = {
        "includeAvailability": include_availability,
        "product": product,
        "vcpuCount": vcpu_count,
    }
    return pulumi.runtime.invoke_output("runpodv2:index:getCpus", args, opts=opts, typ=GetCpusResult)


@pulumi.output_type
class GetDataCentersResult(dict[str, Any]):
    """What get_data_centers found."""

    def __init__(
        self,
        *,
        data_centers: Sequence[DataCenter],
    ) -> None:
        pulumi.set(self, "data_centers", data_centers)

    @builtins.property
    @pulumi.getter(name="dataCenters")
    def data_centers(self) -> Sequence[DataCenter]:
        """The data centers."""
        return pulumi.get(self, "data_centers")  # type: ignore[no-any-return]


def get_data_centers(
    include_availability: Optional[bool] = None,
    opts: Optional[pulumi.InvokeOptions] = None,
) -> GetDataCentersResult:
    """Data centers with the volume types that they have; with stock where asked. Needs an API key, in a preview too.

    :param include_availability: Also ask for stock.
    """
    args: dict[str, Any] = {
        "includeAvailability": include_availability,
    }
    found = pulumi.runtime.invoke("runpodv2:index:getDataCenters", args, opts=opts, typ=GetDataCentersResult)
    return cast(GetDataCentersResult, found.value)


def get_data_centers_output(
    include_availability: Optional[pulumi.Input[bool]] = None,
    opts: Optional[Union[pulumi.InvokeOptions, pulumi.InvokeOutputOptions]] = None,
) -> pulumi.Output[GetDataCentersResult]:
    """Data centers with the volume types that they have; with stock where asked. Needs an API key, in a preview too.

    :param include_availability: Also ask for stock.
    """
    args: dict[str, Any] = {
        "includeAvailability": include_availability,
    }
    return pulumi.runtime.invoke_output("runpodv2:index:getDataCenters", args, opts=opts, typ=GetDataCentersResult)


@pulumi.output_type
class GetEndpointResult(dict[str, Any]):
    """What get_endpoint found."""

    def __init__(
        self,
        *,
        id: str,
        name: str,
        type: str,
        scaling: EndpointScaling,
        image: Optional[str] = None,
        args: Optional[str] = None,
        disk: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        ports: Optional[Sequence[str]] = None,
        registry: Optional[str] = None,
        gpu: Optional[EndpointGpu] = None,
        cpu: Optional[Sequence[EndpointCpu]] = None,
        workers: Optional[EndpointWorkers] = None,
        data_center_ids: Optional[Sequence[str]] = None,
        network_volumes: Optional[Sequence[str]] = None,
        timeout: Optional[int] = None,
        flashboot: Optional[str] = None,
        request_urls: Optional[Mapping[str, str]] = None,
        created_at: Optional[str] = None,
    ) -> None:
        pulumi.set(self, "id", id)
        pulumi.set(self, "name", name)
        pulumi.set(self, "type", type)
        pulumi.set(self, "scaling", scaling)
        if image is not None:
            pulumi.set(self, "image", image)
        if args is not None:
            pulumi.set(self, "args", args)
        if disk is not None:
            pulumi.set(self, "disk", disk)
        if env is not None:
            pulumi.set(self, "env", env)
        if ports is not None:
            pulumi.set(self, "ports", ports)
        if registry is not None:
            pulumi.set(self, "registry", registry)
        if gpu is not None:
            pulumi.set(self, "gpu", gpu)
        if cpu is not None:
            pulumi.set(self, "cpu", cpu)
        if workers is not None:
            pulumi.set(self, "workers", workers)
        if data_center_ids is not None:
            pulumi.set(self, "data_center_ids", data_center_ids)
        if network_volumes is not None:
            pulumi.set(self, "network_volumes", network_volumes)
        if timeout is not None:
            pulumi.set(self, "timeout", timeout)
        if flashboot is not None:
            pulumi.set(self, "flashboot", flashboot)
        if request_urls is not None:
            pulumi.set(self, "request_urls", request_urls)
        if created_at is not None:
            pulumi.set(self, "created_at", created_at)

    @builtins.property
    @pulumi.getter(name="id")
    def id(self) -> str:
        """The endpoint's id."""
        return pulumi.get(self, "id")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="name")
    def name(self) -> str:
        """The endpoint's name. RunPod does not require it to be unique."""
        return pulumi.get(self, "name")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="type")
    def type(self) -> str:
        """QUEUE: jobs through RunPod's queue; LOAD_BALANCER: requests straight to the workers. A change replaces the endpoint."""
        return pulumi.get(self, "type")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="image")
    def image(self) -> Optional[str]:
        """The worker's image; pin it by digest. Excludes templateId."""
        return pulumi.get(self, "image")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="args")
    def args(self) -> Optional[str]:
        """Arguments passed to the container's entrypoint, as one string."""
        return pulumi.get(self, "args")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="disk")
    def disk(self) -> Optional[int]:
        """Container disk in GB; wiped when a worker restarts. RunPod chooses when omitted."""
        return pulumi.get(self, "disk")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="env")
    def env(self) -> Optional[Mapping[str, str]]:
        """Environment variables. Values whose name says key, token, secret or password are kept secret; mark others with
        Output.secret.
        """
        return pulumi.get(self, "env")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="ports")
    def ports(self) -> Optional[Sequence[str]]:
        """Exposed ports, as port/protocol."""
        return pulumi.get(self, "ports")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="registry")
    def registry(self) -> Optional[str]:
        """Id of the registry credential for a private image."""
        return pulumi.get(self, "registry")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="gpu")
    def gpu(self) -> Optional[EndpointGpu]:
        """GPU workers. Excludes cpu; changing between the two replaces the endpoint."""
        return pulumi.get(self, "gpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="cpu")
    def cpu(self) -> Optional[Sequence[EndpointCpu]]:
        """CPU workers: the configurations that a worker may have. Excludes gpu."""
        return pulumi.get(self, "cpu")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="workers")
    def workers(self) -> Optional[EndpointWorkers]:
        """How many workers."""
        return pulumi.get(self, "workers")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="scaling")
    def scaling(self) -> EndpointScaling:
        """When workers are added."""
        return pulumi.get(self, "scaling")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="dataCenterIds")
    def data_center_ids(self) -> Optional[Sequence[str]]:
        """Data centers that workers may run in; empty for any."""
        return pulumi.get(self, "data_center_ids")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="networkVolumes")
    def network_volumes(self) -> Optional[Sequence[str]]:
        """Network volume ids, at most one a data center."""
        return pulumi.get(self, "network_volumes")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="timeout")
    def timeout(self) -> Optional[int]:
        """Milliseconds that one job may run. Set it: RunPod documents 300000 when omitted, and was seen to take 0."""
        return pulumi.get(self, "timeout")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="flashboot")
    def flashboot(self) -> Optional[str]:
        """Cold-start acceleration. One of OFF, FLASHBOOT, PRIORITY_FLASHBOOT. Default: OFF."""
        return pulumi.get(self, "flashboot")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="requestUrls")
    def request_urls(self) -> Optional[Mapping[str, str]]:
        """Where to send requests: run, runSync, status, ... of a queue; base and health of a load balancer."""
        return pulumi.get(self, "request_urls")  # type: ignore[no-any-return]

    @builtins.property
    @pulumi.getter(name="createdAt")
    def created_at(self) -> Optional[str]:
        """When it was made (RFC 3339)."""
        return pulumi.get(self, "created_at")  # type: ignore[no-any-return]


def get_endpoint(
    name: str,
    opts: Optional[pulumi.InvokeOptions] = None,
) -> GetEndpointResult:
    """An endpoint by its name. An error when there is none, or several: RunPod does not keep names unique. Needs an API key, in
    a preview too.

    :param name: The endpoint's name.
    """
    args: dict[str, Any] = {
        "name": name,
    }
    found = pulumi.runtime.invoke("runpodv2:index:getEndpoint", args, opts=opts, typ=GetEndpointResult)
    return cast(GetEndpointResult, found.value)


def get_endpoint_output(
    name: pulumi.Input[str],
    opts: Optional[Union[pulumi.InvokeOptions, pulumi.InvokeOutputOptions]] = None,
) -> pulumi.Output[GetEndpointResult]:
    """An endpoint by its name. An error when there is none, or several: RunPod does not keep names unique. Needs an API key, in
    a preview too.

    :param name: The endpoint's name.
    """
    args: dict[str, Any] = {
        "name": name,
    }
    return pulumi.runtime.invoke_output("runpodv2:index:getEndpoint", args, opts=opts, typ=GetEndpointResult)
