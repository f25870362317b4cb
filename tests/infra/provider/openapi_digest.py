"""tests: RunPod's official OpenAPI file boiled down to what the provider must agree with: names, types, enums, bounds, what is required.

    python tests/infra/provider/openapi_digest.py openapi.json > tests/infra/provider/rest_v2.json

The file itself is RunPod's (runpod/docs, api-reference-v2/openapi.json) and not kept here; run this again when it changes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
SCHEMAS = (
    "CreateEndpointRequest",
    "UpdateEndpointRequest",
    "Endpoint",
    "CreateTemplateRequest",
    "UpdateTemplateRequest",
    "Template",
    "CreateNetworkVolumeRequest",
    "UpdateNetworkVolumeRequest",
    "NetworkVolume",
    "CreateRegistryRequest",
    "Registry",
    "GpuType",
    "CpuType",
    "DataCenter",
)
KEPT = ("type", "enum", "minimum", "maximum", "minItems", "uniqueItems", "pattern", "minLength")


def flatten(schema: Json, document: Json) -> Json:
    """References followed, allOf, anyOf and oneOf merged: one object with its properties."""
    if "$ref" in schema:
        target: Any = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return {**flatten(target, document), **{k: v for k, v in schema.items() if k in KEPT}}
    merged: Json = {k: schema[k] for k in KEPT if k in schema}
    properties: Json = {}
    required: set[str] = set(schema.get("required", ()))
    alternatives = schema.get("oneOf", []) + schema.get("anyOf", [])
    parts = [flatten(part, document) for part in schema.get("allOf", []) + alternatives]
    for part in parts:
        for name, value in part.get("properties", {}).items():
            before = properties.get(name, {})
            both = {**before, **value}
            if "enum" in before and "enum" in value:
                both["enum"] = sorted({*before["enum"], *value["enum"]})
            properties[name] = both
        merged.update({k: v for k, v in part.items() if k in KEPT and v != "null"})
        if "items" in part:
            merged["items"] = part["items"]
        if not alternatives:
            required |= set(part.get("required", ()))
    if alternatives and parts:
        required |= set.intersection(*(set(part.get("required", ())) for part in parts))
    for name, value in schema.get("properties", {}).items():
        properties[name] = {**properties.get(name, {}), **flatten(value, document)}
    if "items" in schema:
        merged["items"] = flatten(schema["items"], document)
    if schema.get("additionalProperties") not in (None, False):
        merged["map"] = True
    if isinstance(merged.get("type"), list):
        merged["nullable"] = "null" in merged["type"]
        merged["type"] = next(t for t in merged["type"] if t != "null")
    if properties or required:
        merged["required"] = sorted(required)
        merged["properties"] = dict(sorted(properties.items()))
    return merged


def digest(document: Json) -> Json:
    schemas = document["components"]["schemas"]
    return {"version": document["info"]["version"], "schemas": {name: flatten(schemas[name], document) for name in SCHEMAS}}


if __name__ == "__main__":
    json.dump(digest(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), sys.stdout, indent=1, sort_keys=True)
    print()
