"""infra/provider: the template, as pure functions over plain dicts. Touches nothing.

Sources: the OpenAPI file's CreateTemplateRequest, UpdateTemplateRequest, Template. An edit of a template reaches no endpoint by itself:
`contentHash` changes with whatever an endpoint would copy, and is made to be passed as an endpoint's templateHash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from infra.provider.resources.endpoint import CONTAINER, CUDA, environment
from infra.provider.resources.fields import (
    UNKNOWN,
    Change,
    Failure,
    Field,
    Json,
    Kind,
    at,
    body_of,
    by_name,
    check_fields,
    diff_fields,
    has_unknown,
    known_outputs,
    live_inputs,
    live_value,
    tops,
)

PERSISTENT: Final = (
    Field("size", "integer", "GB on the host's own disk, 10 or more.", required=True, minimum=10),
    Field("path", "string", "Where it is mounted in the container.", required=True, min_items=1),
)
MOUNTS: Final = (
    Field("persistent", "object", "Storage on the pod's host; it does not survive the host.", fields=PERSISTENT),
)
FIELDS: Final = (
    Field("name", "string", "The template's name.", required=True, min_items=1),
    Field("image", "string", "The image; pin it by digest.", required=True, min_items=1),
    *CONTAINER,
    Field(
        "allowedCudaVersions",
        "strings",
        "CUDA versions that a host may have, as major.minor; empty for any.",
        default=(),
        pattern=CUDA,
        example="12.8",
        unique=True,
    ),
    Field("category", "string", "How the console groups it.", enum=("CPU", "NVIDIA", "AMD"), default="NVIDIA"),
    Field("mounts", "object", "Storage for pods. Taking it away replaces the template: REST v2 cannot clear it.", fields=MOUNTS),
    Field("public", "boolean", "Whether other RunPod users see it.", default=False),
    Field("serverless", "boolean", "For serverless workers (true) or pods (false). An endpoint takes only serverless ones.", default=False),
    Field("startJupyter", "boolean", "Start JupyterLab in pods.", default=True),
    Field("startSsh", "boolean", "Give pods SSH access.", default=True),
)
COMPUTED: Final = (
    Field("contentHash", "string", "Changes with whatever an endpoint copies from the template: pass it as the endpoint's templateHash."),
)
COPIED: Final = ("image", *(f.name for f in CONTAINER), "allowedCudaVersions")
"""What an endpoint made from the template takes over (OpenAPI, CreateEndpointRequest.templateId)."""


def content_hash(inputs: Mapping[str, Any]) -> Any:
    """16 hex digits over the declared content; UNKNOWN while part of it is."""
    table = by_name(FIELDS)
    content = {name: inputs[name] if inputs.get(name) is not None else None for name in COPIED}
    if has_unknown(content):
        return UNKNOWN
    for name, value in content.items():
        f = table[name]
        if value is None:
            content[name] = {} if f.type == "map" else f.default if isinstance(f.default, str | tuple) else None
        if f.type == "strings":
            content[name] = sorted(content[name] or ())
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def check(values: Mapping[str, Any]) -> tuple[Json, list[Failure]]:
    clean, failures = check_fields(FIELDS, values, "", "Template")
    failures += [failure for failure in environment(clean) if failure.property not in {f.property for f in failures}]
    ports = clean.get("ports")
    for i, port in enumerate(ports if isinstance(ports, list) else ()):
        number = port.split("/")[0] if isinstance(port, str) else ""
        if number.isdigit() and not 1 <= int(number) <= 65535:
            failures.append(Failure(f"ports[{i}]", f"ports[{i}]: there is no port {number}"))
    return clean, failures


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Change]:
    changes = diff_fields(FIELDS, old, new)
    if at(old, "mounts", "persistent") is not None and at(new, "mounts", "persistent") is None:
        changes = {path: change for path, change in changes.items() if not path.startswith("mounts")}
        changes["mounts"] = Change("delete", replace=True)
    return changes


def create_body(inputs: Mapping[str, Any], _marker: str) -> Json:
    return body_of(FIELDS, inputs)


def patch_body(old: Mapping[str, Any], new: Mapping[str, Any], _marker: str) -> Json:
    """The least. A cleared registry is null; a mount is always sent whole."""
    table = by_name(FIELDS)
    body: Json = {}
    for name in sorted(tops(diff(old, new))):
        f, value = table[name], new.get(name)
        if value is not None:
            body[name] = body_of(f.fields, value) if f.type == "object" else value
        elif f.type == "map":
            body[name] = {}
        else:
            body[name] = list(f.default) if isinstance(f.default, tuple) else f.default
    return body


def from_live(live: Mapping[str, Any], old: Mapping[str, Any] | None) -> Json:
    return live_inputs(FIELDS, live, old)


def outputs(live: Mapping[str, Any], inputs: Mapping[str, Any]) -> Json:
    state = {}
    for f in FIELDS:
        value = live_value(f, live.get(f.name), inputs.get(f.name))
        if value is not None:
            state[f.name] = value
    return {**state, "contentHash": content_hash(from_live(live, inputs))}


def preview_outputs(new: Mapping[str, Any], _old: Mapping[str, Any] | None, old_outputs: Mapping[str, Any] | None) -> Json:
    state = known_outputs(FIELDS, new)
    if old_outputs is not None:
        state = {k: old_outputs.get(k, v) if v is UNKNOWN and new.get(k) is None else v for k, v in state.items()}
    return {**state, "contentHash": content_hash(new)}


TEMPLATE: Final = Kind(
    token="runpodv2:index:Template",
    title="Template",
    doc="Container settings that endpoints and pods are made from. An endpoint copies them once.",
    inputs=FIELDS,
    computed=COMPUTED,
    path="/v2/templates",
    calls="template",
    list_call="list_templates",
    check=check,
    diff=diff,
    create_body=create_body,
    patch_body=patch_body,
    from_live=from_live,
    outputs=outputs,
    preview_outputs=preview_outputs,
)
