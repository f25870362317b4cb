"""emulator: what the control plane keeps, as frozen records. They survive its restart (state.py).

May touch: the standard library and msgspec.
"""

from __future__ import annotations

import datetime
import secrets
import string
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from emulator.scaling import ScalerType

ENDPOINT_ID_LENGTH: Final = 14
"""Endpoint ids are 14 lower-case letters and digits (ids in RunPod's own examples, such as jpnw0v75y3qoql)."""
SHORT_ID_LENGTH: Final = 10
"""Of templates, volumes, registry credentials and releases."""
DISK_DEFAULT_GB: Final = 20
"""Of an endpoint whose `disk` is omitted: the value in RunPod's samples; no page states the default."""
TEMPLATE_DISK_DEFAULT_GB: Final = 50
"""REST v1's default; v2 states none."""
IDLE_TIMEOUT_DEFAULT_S: Final = 10


class Gpu(msgspec.Struct, frozen=True):
    pools: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    count: int = 1
    allowed_cuda: tuple[str, ...] = ()
    min_cuda: str | None = None


class Cpu(msgspec.Struct, frozen=True):
    id: str
    vcpus: int


class Scaling(msgspec.Struct, frozen=True):
    type: ScalerType
    value: float


class Change(msgspec.Struct, frozen=True):
    """One field of a release's diff, under the names that RunPod uses there (`template.imageName`, `gpuCount`)."""

    field: str
    old: Any
    new: Any


class Release(msgspec.Struct, frozen=True):
    id: str
    version: int
    created_at: float
    diff: tuple[Change, ...] = ()


class EndpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. `declared`: it comes from the emulator's configuration, which is its truth at the next start."""

    id: str
    name: str
    type: Literal["QUEUE", "LOAD_BALANCER"] = "QUEUE"
    image: str | None = None
    args: str = ""
    disk: int = DISK_DEFAULT_GB
    env: Mapping[str, str] = {}
    ports: tuple[str, ...] = ()
    registry: str | None = None
    gpu: Gpu | None = None
    cpu: tuple[Cpu, ...] = ()
    workers_min: int = 0
    workers_max: int = 3
    idle_timeout: int = IDLE_TIMEOUT_DEFAULT_S
    scaling: Scaling
    data_center_ids: tuple[str, ...] = ()
    network_volumes: tuple[str, ...] = ()
    timeout: int = 0
    """Milliseconds; 0: no limit. RunPod's schema says that omitted means 300000; observed is 0."""
    flashboot: str = "OFF"
    created_at: float
    version: int = 1
    releases: tuple[Release, ...] = ()
    """Oldest first."""
    template: str | None = None
    """The template that is bound to it and goes with it."""
    declared: bool = False
    awake_at: float = 0.0
    """When it was last used or its workers were last set by hand: what the idle rule counts from."""

    @property
    def hides_idle_timeout(self) -> bool:
        """Queue endpoints that scale on the request count neither take nor show `workers.idleTimeout`."""
        return self.type == "QUEUE" and self.scaling.type == "REQUEST_COUNT"


class TemplateRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    image: str
    args: str = ""
    disk: int = TEMPLATE_DISK_DEFAULT_GB
    env: Mapping[str, str] = {}
    ports: tuple[str, ...] = ()
    registry: str | None = None
    mounts: Mapping[str, Any] = {}
    serverless: bool = False
    public: bool = False
    category: str = "NVIDIA"
    start_ssh: bool = True
    start_jupyter: bool = True
    allowed_cuda: tuple[str, ...] = ()


class VolumeRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    size: int
    data_center: str
    type: str
    created_at: float = 0.0
    """0: it was made by an earlier version."""


class RegistryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A registry credential: its name only. It can never be read back, so the emulator does not keep it."""

    id: str
    name: str


class DelegationRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str | None
    aws_user: str
    repository: str
    aws_region: str
    created_at: float


Record = EndpointRecord | TemplateRecord | VolumeRecord | RegistryRecord | DelegationRecord
KINDS: Final[dict[type[Record], str]] = {
    EndpointRecord: "endpoint",
    TemplateRecord: "template",
    VolumeRecord: "volume",
    RegistryRecord: "registry",
    DelegationRecord: "delegation",
}


def new_id(length: int = SHORT_ID_LENGTH) -> str:
    """Lower-case letters and digits, a letter first."""
    return secrets.choice(string.ascii_lowercase) + "".join(
        secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length - 1)
    )


def rfc3339(seconds: float, *, fraction: bool = False) -> str:
    """An instant, in UTC with `Z`."""
    instant = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return instant.isoformat(timespec="microseconds" if fraction else "seconds").replace("+00:00", "Z")
