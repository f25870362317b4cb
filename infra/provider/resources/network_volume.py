"""infra/provider: the network volume, as pure functions over plain dicts. Touches nothing.

Sources: the OpenAPI file's CreateNetworkVolumeRequest, UpdateNetworkVolumeRequest, NetworkVolume. A volume only grows: another data center,
another type or a smaller size is another volume, and what was on the old one is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.provider.resources.fields import (
    UNKNOWN,
    Change,
    Failure,
    Field,
    Json,
    Kind,
    body_of,
    check_fields,
    diff_fields,
    known_outputs,
    live_inputs,
    tops,
)

FIELDS: Final = (
    Field("name", "string", "The volume's name. RunPod does not require it to be unique.", required=True, min_items=1),
    Field(
        "size",
        "integer",
        "GB, 10 to 4096. It can only grow: a smaller size replaces the volume, and its data is lost.",
        required=True,
        minimum=10,
        maximum=4096,
    ),
    Field(
        "dataCenter",
        "string",
        "The data center, such as EU-RO-1. A change replaces the volume, and its data is lost.",
        required=True,
        min_items=1,
        replaces=True,
    ),
    Field(
        "type",
        "string",
        "Storage tier; the data center's own when omitted. A change replaces the volume, and its data is lost.",
        enum=("STANDARD", "HIGH_PERFORMANCE"),
        replaces=True,
    ),
)


def check(values: Mapping[str, Any]) -> tuple[Json, list[Failure]]:
    return check_fields(FIELDS, values, "", "NetworkVolume")


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Change]:
    changes = diff_fields(FIELDS, old, new)
    was, now = old.get("size"), new.get("size")
    if "size" in changes and isinstance(was, int | float) and isinstance(now, int | float) and now < was:
        changes["size"] = Change("update", replace=True)
    return changes


def create_body(inputs: Mapping[str, Any], _marker: str) -> Json:
    return body_of(FIELDS, inputs)


def patch_body(old: Mapping[str, Any], new: Mapping[str, Any], _marker: str) -> Json:
    return {name: new[name] for name in sorted(tops(diff(old, new)) & {"name", "size"})}


def from_live(live: Mapping[str, Any], old: Mapping[str, Any] | None) -> Json:
    return live_inputs(FIELDS, live, old)


def outputs(live: Mapping[str, Any], _inputs: Mapping[str, Any]) -> Json:
    return {f.name: live[f.name] for f in FIELDS if live.get(f.name) is not None}


def preview_outputs(new: Mapping[str, Any], _old: Mapping[str, Any] | None, old_outputs: Mapping[str, Any] | None) -> Json:
    state = known_outputs(FIELDS, new)
    if state.get("type") is UNKNOWN and old_outputs is not None and old_outputs.get("type") is not None:
        state["type"] = old_outputs["type"]
    return state


NETWORK_VOLUME: Final = Kind(
    token="runpodv2:index:NetworkVolume",
    title="NetworkVolume",
    doc="A network volume: storage in one data center that workers mount at /runpod-volume.",
    inputs=FIELDS,
    computed=(),
    path="/v2/network-volumes",
    calls="network_volume",
    list_call="list_network_volumes",
    check=check,
    diff=diff,
    create_body=create_body,
    patch_body=patch_body,
    from_live=from_live,
    outputs=outputs,
    preview_outputs=preview_outputs,
)
