"""tests: inputs of the provider's resources, valid ones, as hypothesis makes them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
NAMES = st.text("abcdefgh-", min_size=1, max_size=8)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)  # no process can be started with a NUL in one
ENV = st.dictionaries(st.text("ABCDEFGH_", min_size=1, max_size=6), VALUES, max_size=3)
CUDA = st.sampled_from(["11.8", "12.1", "12.8", "13.0"])
PORTS = st.lists(st.sampled_from(["80/http", "8000/http", "22/tcp"]), unique=True, max_size=3)
POOLS = ("AMPERE_24", "ADA_24", "ADA_48_PRO", "AMPERE_80")
TYPES = ("NVIDIA L40", "NVIDIA L40S", "NVIDIA L4")
DATA_CENTERS = ("EU-RO-1", "US-TX-3", "US-KS-2")


def some(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(required, optional=optional)


@st.composite
def gpus(draw: st.DrawFn) -> Json:
    gpu = draw(
        some(
            {"pools": st.lists(st.sampled_from(POOLS), min_size=1, max_size=3, unique=True)},
            {"count": st.integers(1, 8), "excludedTypes": st.lists(st.sampled_from(TYPES), unique=True, max_size=2)},
        )
    )
    floor = draw(st.sampled_from(["", "allowed", "min"]))
    if floor == "allowed":
        gpu["allowedCudaVersions"] = draw(st.lists(CUDA, unique=True, max_size=2))
    if floor == "min":
        gpu["minCudaVersion"] = draw(CUDA)
    return gpu


CPUS = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from(["cpu3c", "cpu5c"]), "vcpuCount": st.sampled_from([2, 4, 8])}),
    min_size=1,
    max_size=2,
    unique_by=lambda item: (item["id"], item["vcpuCount"]),
)
DELAY = st.fixed_dictionaries({"type": st.just("QUEUE_DELAY"), "queueDelay": st.sampled_from([0.5, 1, 4, 7.5])})
COUNT = st.fixed_dictionaries({"type": st.just("REQUEST_COUNT"), "requestCount": st.integers(1, 50)})


@st.composite
def endpoints(draw: st.DrawFn, *, kind: str | None = None, family: str | None = None, templated: bool = False) -> Json:
    """An Endpoint's inputs that check lets through."""
    kind = kind or draw(st.sampled_from(["QUEUE", "LOAD_BALANCER"]))
    family = family or draw(st.sampled_from(["gpu", "cpu"]))
    scaling = draw(COUNT if kind == "LOAD_BALANCER" else st.one_of(DELAY, COUNT))
    most = draw(st.integers(0, 10))
    workers: Json = draw(some({}, {"min": st.integers(0, min(most, 3)), "max": st.just(most)}))
    if workers.get("min", 0) > workers.get("max", 3):
        workers["max"] = most
    if not (kind == "QUEUE" and scaling["type"] == "REQUEST_COUNT") and draw(st.booleans()):
        workers["idleTimeout"] = draw(st.integers(1, 3600))
    inputs = draw(
        some(
            {"name": NAMES, "type": st.just(kind), "scaling": st.just(scaling)},
            {
                "args": st.text("abc -", max_size=6),
                "disk": st.integers(1, 200),
                "env": ENV,
                "ports": PORTS,
                "registry": st.sampled_from(["reg1", "reg2"]),
                "workers": st.just(workers),
                "dataCenterIds": st.lists(st.sampled_from(DATA_CENTERS), unique=True, max_size=3),
                "networkVolumes": st.lists(st.sampled_from(["vol1", "vol2"]), unique=True, max_size=2),
                "timeout": st.integers(0, 86_400_000),
                "flashboot": st.sampled_from(["OFF", "FLASHBOOT", "PRIORITY_FLASHBOOT"]),
                "rollout": st.sampled_from(["rolling", "strict"]),
                "drainOnDelete": st.booleans(),
                "drainTimeoutSeconds": st.integers(1, 7200),
            },
        )
    )
    inputs[family] = draw(gpus() if family == "gpu" else CPUS)
    if templated:
        inputs["templateId"] = "tem1"
        inputs["templateHash"] = draw(st.sampled_from(["a", "b"]))
    else:
        inputs["image"] = draw(st.sampled_from(["img@sha256:1", "img@sha256:2"]))
    return inputs


VOLUMES = some(
    {"name": NAMES, "size": st.integers(10, 4096), "dataCenter": st.sampled_from(DATA_CENTERS)},
    {"type": st.sampled_from(["STANDARD", "HIGH_PERFORMANCE"])},
)
TEMPLATES = some(
    {"name": NAMES, "image": st.sampled_from(["img@sha256:1", "img@sha256:2"])},
    {
        "args": st.text("abc -", max_size=6),
        "disk": st.integers(1, 200),
        "env": ENV,
        "ports": PORTS,
        "registry": st.sampled_from(["reg1", "reg2"]),
        "allowedCudaVersions": st.lists(CUDA, unique=True, max_size=2),
        "category": st.sampled_from(["CPU", "NVIDIA", "AMD"]),
        "mounts": some({}, {"persistent": st.fixed_dictionaries({"size": st.integers(10, 99), "path": st.just("/workspace")})}),
        "public": st.booleans(),
        "serverless": st.booleans(),
        "startJupyter": st.booleans(),
        "startSsh": st.booleans(),
    },
)
REGISTRIES = st.fixed_dictionaries({"name": NAMES, "username": NAMES, "password": NAMES})
