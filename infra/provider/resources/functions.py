"""infra/provider: the functions (data sources): their arguments and results as tables. Touches nothing.

Sources: the OpenAPI file's GpuType, CpuType, DataCenter. Prices are USD per hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.provider.resources import endpoint
from infra.provider.resources.fields import Failure, Field, Json, check_fields, live_value

LEVELS: Final = ("NONE", "LOW", "MEDIUM", "HIGH")
STOCK: Final = (
    Field("id", "string", "Identifier.", required=True),
    Field("name", "string", "Name for people.", required=True),
    Field("availability", "string", "Stock.", required=True, enum=LEVELS),
)
CUDA: Final = (
    Field("version", "string", "CUDA version, as major.minor.", required=True),
    Field("available", "boolean", "Whether a host with it is free now.", required=True),
)
GPU: Final = (
    Field("id", "string", "GPU type id.", required=True),
    Field("name", "string", "Name for people.", required=True),
    Field("pool", "string", "Serverless pool id; absent when it is in none."),
    Field("manufacturer", "string", "NVIDIA, AMD or UNKNOWN.", required=True),
    Field("memory", "integer", "VRAM in GB.", required=True),
    Field("secure", "boolean", "On secure cloud.", required=True),
    Field("community", "boolean", "On community cloud.", required=True),
    Field(
        "price",
        "object",
        "List price of one GPU in USD per hour.",
        required=True,
        fields=(
            Field("secure", "number", "A pod on secure cloud.", required=True),
            Field("community", "number", "A pod on community cloud.", required=True),
            Field("serverless", "number", "A serverless worker; absent when it is in no pool."),
        ),
    ),
    Field(
        "maxCount",
        "object",
        "The most GPUs of one pod.",
        required=True,
        fields=(
            Field("secure", "integer", "On secure cloud.", required=True),
            Field("community", "integer", "On community cloud.", required=True),
        ),
    ),
    Field("availability", "string", "Stock; with includeAvailability.", enum=LEVELS),
    Field("dataCenters", "objects", "Stock by data center; with includeAvailability.", fields=STOCK, named="Stock"),
    Field("cudaVersions", "objects", "CUDA versions of its hosts; with includeAvailability.", fields=CUDA, named="CudaVersion"),
)
CPU: Final = (
    Field("id", "string", "CPU flavor id.", required=True),
    Field("name", "string", "Name for people.", required=True),
    Field("group", "string", "Generation.", required=True),
    Field(
        "vcpu",
        "object",
        "How many vCPUs a worker may have.",
        required=True,
        fields=(
            Field("min", "integer", "The least.", required=True),
            Field("max", "integer", "The most.", required=True),
        ),
    ),
    Field("ramGbPerVcpu", "number", "GB of memory for each vCPU.", required=True),
    Field(
        "price",
        "object",
        "List price of one vCPU in USD per hour.",
        required=True,
        fields=(
            Field("securePerVcpu", "number", "A pod.", required=True),
            Field("serverlessPerVcpu", "number", "A serverless worker.", required=True),
        ),
    ),
    Field("availability", "string", "Stock; with includeAvailability.", enum=LEVELS),
    Field("dataCenters", "objects", "Stock by data center; with includeAvailability.", fields=STOCK, named="Stock"),
)
DATA_CENTER: Final = (
    Field("id", "string", "Data center id.", required=True),
    Field("name", "string", "Name for people.", required=True),
    Field("region", "string", "Continent.", required=True),
    Field("globalNetwork", "boolean", "Whether pods of different data centers can have a private network.", required=True),
    Field("networkVolumeTypes", "strings", "Types of network volumes that it has; empty for none.", required=True),
    Field("compliance", "strings", "Certificates.", required=True),
    Field("gpuAvailability", "objects", "Stock of GPUs; with includeAvailability.", fields=STOCK, named="Stock"),
    Field("cpuAvailability", "objects", "Stock of CPUs; with includeAvailability.", fields=STOCK, named="Stock"),
)
AVAILABILITY: Final = Field("includeAvailability", "boolean", "Also ask for stock.")
PRODUCT: Final = Field("product", "string", "Whose stock: SERVERLESS unless said otherwise.", enum=("POD", "CLUSTER", "SERVERLESS"))


@dataclass(frozen=True)
class Function:
    """One data source."""

    token: str
    doc: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]

    def check(self, args: Mapping[str, Any]) -> tuple[Json, list[Failure]]:
        return check_fields(self.inputs, args, "", self.token.rsplit(":", 1)[-1])


_ENDPOINT_OUTPUTS: Final = (
    Field("id", "string", "The endpoint's id.", required=True),
    *(f for f in endpoint.FIELDS if f.sent and f.echoed),
    *endpoint.COMPUTED,
)
FUNCTIONS: Final[Mapping[str, Function]] = {
    f.token: f
    for f in (
        Function(
            "runpodv2:index:getGpus",
            "GPU types with their pool, memory and price; with stock where asked.",
            (AVAILABILITY, PRODUCT, Field("count", "integer", "Stock for so many GPUs a worker.", minimum=1)),
            (Field("gpus", "objects", "The GPU types.", required=True, fields=GPU, named="GpuType"),),
        ),
        Function(
            "runpodv2:index:getCpus",
            "CPU flavors with their price; with stock where asked.",
            (
                AVAILABILITY,
                Field("product", "string", "Whose stock: SERVERLESS unless said otherwise.", enum=("POD", "SERVERLESS")),
                Field("vcpuCount", "integer", "Stock for so many vCPUs a worker.", minimum=2),
            ),
            (Field("cpus", "objects", "The CPU flavors.", required=True, fields=CPU, named="CpuType"),),
        ),
        Function(
            "runpodv2:index:getDataCenters",
            "Data centers with the volume types that they have; with stock where asked.",
            (AVAILABILITY,),
            (Field("dataCenters", "objects", "The data centers.", required=True, fields=DATA_CENTER, named="DataCenter"),),
        ),
        Function(
            "runpodv2:index:getEndpoint",
            "An endpoint by its name. An error when there is none, or several: RunPod does not keep names unique.",
            (Field("name", "string", "The endpoint's name.", required=True, min_items=1),),
            _ENDPOINT_OUTPUTS,
        ),
    )
}


def shape(fields: Sequence[Field], values: Mapping[str, Any]) -> Json:
    """Only what the tables have, at every depth."""
    result = {}
    for f in fields:
        value = _shape(f, values.get(f.name))
        if value is not None:
            result[f.name] = value
    return result


def _shape(f: Field, value: Any) -> Any:
    if f.type == "object" and isinstance(value, Mapping):
        return shape(f.fields, value)
    if f.type == "objects" and isinstance(value, list):
        return [shape(f.fields, item) for item in value if isinstance(item, Mapping)]
    return live_value(f, value, None)
