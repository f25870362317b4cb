"""emulator: what RunPod has: GPU types and pools, CPU flavors, data centers, and what they cost. Pure.

May touch: the standard library and msgspec. Sources (August 2026): serverless prices per second and GPU from the table on
serverless/pricing, pool members and memory from references/gpu-types, CPU flavors from flash/configuration/cpu-types, data centers from the
REST v1 enum and the list of volume data centers on storage/s3-api. Guesses, since no page states them: stock (everything HIGH unless the
emulator's `stock` says otherwise), which data center has which GPU (all have all), pod prices (0: the emulator has no pods), largest
counts, CUDA versions, compliance, CPU prices, the price of ADA_32_PRO, which data centers have HIGH_PERFORMANCE volumes (the API's
sample).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from contract.gpus import usd_per_second
from emulator.control.problem import conflict, invalid, not_found

Stock = Literal["NONE", "LOW", "MEDIUM", "HIGH"]
STOCK_LEVELS: Final[tuple[Stock, ...]] = ("NONE", "LOW", "MEDIUM", "HIGH")
CUDA_VERSIONS: Final = ("12.4", "12.6", "12.8", "12.9", "13.0")
PRODUCTS: Final = ("POD", "CLUSTER", "SERVERLESS")


@dataclass(frozen=True, slots=True)
class GpuType:
    """One GPU type. `pool`: the serverless pool that it belongs to."""

    id: str
    name: str
    memory_gb: int
    pool: str | None = None
    manufacturer: str = "NVIDIA"


@dataclass(frozen=True, slots=True)
class CpuFlavor:
    """One CPU flavor. `usd_per_vcpu_h`: serverless."""

    id: str
    name: str
    group: str
    ram_gb_per_vcpu: float
    usd_per_vcpu_h: float
    vcpus: tuple[int, int] = (2, 32)


@dataclass(frozen=True, slots=True)
class DataCenter:
    """One data center. `tiers`: of network volumes, the default first; empty: none."""

    id: str
    name: str
    region: str
    tiers: tuple[str, ...] = ()

    @property
    def country(self) -> str:
        """ISO 3166-1 alpha-2, as the id tells it."""
        first, second, *_ = self.id.split("-")
        return second if first in ("EU", "EUR", "AP", "OC") else first


@dataclass(frozen=True, slots=True)
class Catalog:
    """All of it. `pool_usd_per_s`: flex price of a pool per second and GPU."""

    pool_usd_per_s: Mapping[str, float]
    gpus: tuple[GpuType, ...]
    cpus: tuple[CpuFlavor, ...]
    data_centers: tuple[DataCenter, ...]

    def gpu(self, type_id: str) -> GpuType | None:
        return next((gpu for gpu in self.gpus if gpu.id == type_id), None)

    def cpu(self, flavor: str) -> CpuFlavor | None:
        return next((cpu for cpu in self.cpus if cpu.id == flavor), None)

    def data_center(self, name: str) -> DataCenter | None:
        return next((found for found in self.data_centers if found.id == name), None)

    def members(self, pool: str) -> tuple[GpuType, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.pool == pool)

    def placement(self, pools: Iterable[str], excluded: Iterable[str], stock: Mapping[str, Stock]) -> tuple[str, GpuType, bool]:
        """Where workers go: pool, GPU type, and whether there is any; the first pool with stock, else the first pool without.

        `stock` names what is not HIGH, by pool or by type."""
        barred = frozenset(excluded)
        fitting = [(pool, gpu) for pool in pools for gpu in self.members(pool) if gpu.id not in barred]
        for pool, gpu in fitting:
            if level(stock, gpu) != "NONE":
                return pool, gpu, True
        return (*fitting[0], False)


def level(stock: Mapping[str, Stock], gpu: GpuType) -> Stock:
    """Availability of a type: its own entry, else its pool's, else HIGH."""
    return stock.get(gpu.id) or (stock.get(gpu.pool) if gpu.pool else None) or "HIGH"


def _pool(pool: str | None, memory_gb: int, *names: str) -> tuple[GpuType, ...]:
    return tuple(GpuType(f"NVIDIA {name}", name.removeprefix("GeForce "), memory_gb, pool) for name in names)


CATALOG: Final = Catalog(
    # What RunPod takes for the RTX 5090 is not on its page: a guess.
    pool_usd_per_s={**usd_per_second(), "ADA_32_PRO": 0.00044},
    gpus=(
        *_pool("AMPERE_16", 16, "RTX A4000"),
        *_pool("AMPERE_16", 20, "RTX A4500", "RTX 4000 Ada Generation"),
        *_pool("AMPERE_16", 16, "RTX 2000 Ada Generation"),
        *_pool("AMPERE_24", 24, "RTX A5000", "L4", "GeForce RTX 3090"),
        *_pool("ADA_24", 24, "GeForce RTX 4090"),
        *_pool("ADA_32_PRO", 32, "GeForce RTX 5090"),
        *_pool("AMPERE_48", 48, "A40", "RTX A6000"),
        *_pool("ADA_48_PRO", 48, "L40", "L40S", "RTX 6000 Ada Generation"),
        *_pool("AMPERE_80", 80, "A100 80GB PCIe", "A100-SXM4-80GB"),
        *_pool("ADA_80_PRO", 80, "H100 PCIe", "H100 80GB HBM3"),
        *_pool("ADA_80_PRO", 94, "H100 NVL"),
        *_pool(
            "BLACKWELL_96",
            96,
            "RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        *_pool("HOPPER_141", 141, "H200"),
        *_pool("BLACKWELL_180", 180, "B200"),
        *_pool(None, 24, "A30", "GeForce RTX 3090 Ti"),
        *_pool(None, 288, "B300 SXM6 AC"),
        GpuType("AMD Instinct MI300X OAM", "MI300X", 192, None, "AMD"),
    ),
    cpus=(
        CpuFlavor("cpu3c", "Compute-Optimized", "Gen 3", 2, 0.03),
        CpuFlavor("cpu3g", "General Purpose", "Gen 3", 4, 0.04),
        CpuFlavor("cpu5c", "Compute-Optimized", "Gen 5", 2, 0.04),
        CpuFlavor("cpu5g", "General Purpose", "Gen 5", 4, 0.05),
    ),
    data_centers=tuple(
        DataCenter(name, label, region, tiers)
        for region, centers in {
            "NORTH_AMERICA": (
                ("US-CA-2", "US California 2", True), ("US-DE-1", "US Delaware 1", False), ("US-GA-1", "US Georgia 1", False),
                ("US-GA-2", "US Georgia 2", True), ("US-IL-1", "US Illinois 1", True), ("US-KS-2", "US Kansas 2", True),
                ("US-KS-3", "US Kansas 3", False), ("US-MD-1", "US Maryland 1", True), ("US-MO-1", "US Missouri 1", True),
                ("US-MO-2", "US Missouri 2", True), ("US-NC-1", "US North Carolina 1", True), ("US-NC-2", "US North Carolina 2", True),
                ("US-NE-1", "US Nebraska 1", True), ("US-TX-1", "US Texas 1", False), ("US-TX-3", "US Texas 3", False),
                ("US-TX-4", "US Texas 4", False), ("US-WA-1", "US Washington 1", True), ("CA-MTL-1", "CA Montreal 1", False),
                ("CA-MTL-2", "CA Montreal 2", False), ("CA-MTL-3", "CA Montreal 3", False),
            ),
            "EUROPE": (
                ("EU-CZ-1", "EU Czechia 1", True), ("EU-FR-1", "EU France 1", False), ("EU-NL-1", "EU Netherlands 1", False),
                ("EU-RO-1", "EU Romania 1", True), ("EU-SE-1", "EU Sweden 1", False), ("EUR-IS-1", "EU Iceland 1", True),
                ("EUR-IS-2", "EU Iceland 2", False), ("EUR-IS-3", "EU Iceland 3", False), ("EUR-NO-1", "EU Norway 1", True),
            ),
            "ASIA": (("AP-JP-1", "Asia Japan 1", False),),
            "OCEANIA": (("OC-AU-1", "Oceania Australia 1", False),),
        }.items()
        for name, label, has_volumes in centers
        for tiers in [(("STANDARD", "HIGH_PERFORMANCE") if name == "US-KS-2" else ("STANDARD",)) if has_volumes else ()]
    ),
)  # fmt: skip


# --- answers of /v2/catalog ---------------------------------------------------------------------------------------

Query = Mapping[str, str]


def gpu_types(catalog: Catalog, stock: Mapping[str, Stock], query: Query) -> dict[str, Any]:
    """GET /v2/catalog/gpus."""
    wanted = _gpu_query(query)
    shown = [_gpu(catalog, stock, gpu, wanted) for gpu in catalog.gpus]
    return {"gpus": [gpu for gpu in shown if not wanted.countries or "dataCenters" in gpu]}


def gpu_type(catalog: Catalog, stock: Mapping[str, Stock], type_id: str, query: Query) -> dict[str, Any]:
    """GET /v2/catalog/gpus/{id}."""
    gpu = catalog.gpu(type_id)
    if gpu is None:
        raise not_found()
    return _gpu(catalog, stock, gpu, _gpu_query(query))


def cpu_types(catalog: Catalog, query: Query) -> dict[str, Any]:
    """GET /v2/catalog/cpus."""
    with_stock = _cpu_query(query)
    return {"cpus": [_cpu(catalog, cpu, with_stock) for cpu in catalog.cpus]}


def cpu_type(catalog: Catalog, flavor: str, query: Query) -> dict[str, Any]:
    """GET /v2/catalog/cpus/{id}."""
    cpu = catalog.cpu(flavor)
    if cpu is None:
        raise not_found()
    return _cpu(catalog, cpu, _cpu_query(query))


def data_centers(catalog: Catalog, stock: Mapping[str, Stock], query: Query) -> dict[str, Any]:
    """GET /v2/catalog/datacenters."""
    regions = ("NORTH_AMERICA", "SOUTH_AMERICA", "EUROPE", "ASIA", "MIDDLE_EAST", "AFRICA", "OCEANIA", "ANTARCTICA", "UNKNOWN")
    wanted_regions = _listed(query, "regions", regions)
    wanted_tiers = _listed(query, "networkVolumeTypes", ("STANDARD", "HIGH_PERFORMANCE"))
    wanted_compliance = _listed(query, "compliance", _COMPLIANCE)
    network = query.get("globalNetwork")
    if network is not None and network not in ("true", "false"):
        raise invalid("globalNetwork: must be true or false")
    include = _data_center_include(query)
    return {
        "dataCenters": [
            _data_center(catalog, stock, found, include)
            for found in catalog.data_centers
            if (not wanted_regions or found.region in wanted_regions)
            and set(wanted_tiers) <= set(found.tiers)
            and not wanted_compliance
            and network != "false"
        ]
    }


def data_center(catalog: Catalog, stock: Mapping[str, Stock], name: str, query: Query) -> dict[str, Any]:
    """GET /v2/catalog/datacenters/{id}."""
    found = catalog.data_center(name)
    if found is None:
        raise not_found()
    return _data_center(catalog, stock, found, _data_center_include(query))


_COMPLIANCE: Final = (
    "GDPR", "ISO_IEC_27001", "ISO_14001", "PCI_DSS", "HITRUST", "SOC_1_TYPE_2", "SOC_2_TYPE_2", "SOC_3_TYPE_2", "ITAR", "FISMA_HIGH",
    "HIPAA", "RENEWABLE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _GpuQuery:
    availability: bool
    count: int = 1
    countries: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    min_cuda: tuple[int, ...] | None = None


def _listed(query: Query, name: str, choices: Iterable[str] = ()) -> tuple[str, ...]:
    """A comma-separated parameter. Raises Problem 422 for what is not among the choices."""
    value = query.get(name)
    if value is None:
        return ()
    found = tuple(value.split(","))
    allowed = tuple(choices)
    wrong = [item for item in found if allowed and item not in allowed]
    if wrong:
        raise invalid(*(f"{name}: {item!r} is not one of {', '.join(allowed)}" for item in wrong))
    return found


def _with_availability(query: Query, products: Iterable[str], dependent: Iterable[str]) -> bool:
    include = _listed(query, "include", ("AVAILABILITY",))
    product = _listed(query, "product", products)
    if include and not product:
        raise conflict("product is required with include=AVAILABILITY")
    if not include:
        for name in ("product", *dependent):
            if name in query:
                raise conflict(f"{name} is valid only with include=AVAILABILITY")
    return bool(include)


def _gpu_query(query: Query) -> _GpuQuery:
    errors: list[str] = []
    cuda, floor = query.get("cudaVersions"), query.get("minCudaVersion")
    count = _whole(query, "count", 1, errors)
    if query.get("cloud", "SECURE") not in ("SECURE", "COMMUNITY"):
        errors.append("cloud: must be SECURE or COMMUNITY")
    countries = tuple(query["countryCodes"].split(",")) if "countryCodes" in query else ()
    errors += [f"countryCodes: {code!r} is not an upper-case ISO 3166-1 alpha-2 code" for code in countries if not _is_country(code)]
    versions = tuple(cuda.split(",")) if cuda is not None else ()
    errors += [f"cudaVersions: {version!r} is not major.minor" for version in versions if len(_version(version)) != 2]
    if floor is not None and len(_version(floor)) not in (1, 2):
        errors.append(f"minCudaVersion: {floor!r} is not major or major.minor")
    if errors:
        raise invalid(*errors)
    availability = _with_availability(query, PRODUCTS, ("count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion"))
    if versions and floor is not None:
        raise conflict("cudaVersions and minCudaVersion are mutually exclusive")
    return _GpuQuery(availability, count, countries, versions, None if floor is None else _version(floor))


def _cpu_query(query: Query) -> bool:
    errors: list[str] = []
    vcpus = _whole(query, "vcpuCount", 2, errors)
    if vcpus & (vcpus - 1):
        errors.append("vcpuCount: must be a power of two")
    if errors:
        raise invalid(*errors)
    return _with_availability(query, ("POD", "SERVERLESS"), ("vcpuCount",))


def _data_center_include(query: Query) -> tuple[str, ...]:
    return _listed(query, "include", ("GPU_AVAILABILITY", "CPU_AVAILABILITY"))


def _whole(query: Query, name: str, least: int, errors: list[str]) -> int:
    text = query.get(name)
    if text is None:
        return least
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        errors.append(f"{name}: must be a whole number from {least} up")
        return least
    return int(text)


def _is_country(code: str) -> bool:
    return len(code) == 2 and code.isascii() and code.isalpha() and code.isupper()


def _version(text: str) -> tuple[int, ...]:
    """`12.8` as numbers, so that 12.11 is above 12.2; empty if it is not one."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isascii() and part.isdigit() for part in parts) else ()


def _gpu(catalog: Catalog, stock: Mapping[str, Stock], gpu: GpuType, wanted: _GpuQuery) -> dict[str, Any]:
    price: dict[str, float] = {"secure": 0.0, "community": 0.0}
    if gpu.pool is not None:
        price["serverless"] = round(catalog.pool_usd_per_s[gpu.pool] * 3600, 6)
    shown: dict[str, Any] = {
        "id": gpu.id,
        "name": gpu.name,
        "pool": gpu.pool,
        "manufacturer": gpu.manufacturer,
        "memory": gpu.memory_gb,
        "secure": True,
        "community": False,
        "price": price,
        "maxCount": {"secure": 8, "community": 0},
    }
    if not wanted.availability:
        return shown
    offered = [
        version
        for version in CUDA_VERSIONS
        if (not wanted.cuda or version in wanted.cuda) and (wanted.min_cuda is None or _version(version) >= wanted.min_cuda)
    ]
    found = level(stock, gpu) if wanted.count <= 8 and (offered or gpu.manufacturer != "NVIDIA") else "NONE"
    centers = [center for center in catalog.data_centers if not wanted.countries or center.country in wanted.countries]
    shown["availability"] = found if centers else "NONE"
    if found != "NONE" and centers:
        shown["dataCenters"] = [{"id": center.id, "name": center.name, "availability": found} for center in centers]
    if gpu.manufacturer == "NVIDIA":
        shown["cudaVersions"] = [{"version": version, "available": found != "NONE"} for version in offered]
    return shown


def _cpu(catalog: Catalog, cpu: CpuFlavor, with_stock: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": cpu.id,
        "name": cpu.name,
        "group": cpu.group,
        "vcpu": {"min": cpu.vcpus[0], "max": cpu.vcpus[1]},
        "ramGbPerVcpu": cpu.ram_gb_per_vcpu,
        "price": {"securePerVcpu": 0.0, "serverlessPerVcpu": cpu.usd_per_vcpu_h},
    }
    if with_stock:
        shown["availability"] = "HIGH"
        shown["dataCenters"] = [{"id": center.id, "name": center.name, "availability": "HIGH"} for center in catalog.data_centers]
    return shown


def _data_center(catalog: Catalog, stock: Mapping[str, Stock], found: DataCenter, include: tuple[str, ...]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": found.id,
        "name": found.name,
        "region": found.region,
        "globalNetwork": True,
        "networkVolumeTypes": list(found.tiers),
        "compliance": [],
    }
    if "GPU_AVAILABILITY" in include:
        shown["gpuAvailability"] = [{"id": gpu.id, "name": gpu.name, "availability": level(stock, gpu)} for gpu in catalog.gpus]
    if "CPU_AVAILABILITY" in include:
        shown["cpuAvailability"] = [{"id": cpu.id, "name": cpu.name, "availability": "HIGH"} for cpu in catalog.cpus]
    return shown
