"""infra/provider: the package's schema, made from the resources' tables. Touches nothing.

`pulumi package get-schema` and SDK generators of other languages read it; the Python SDK (sdk.py) is written by hand and compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Final

from infra.provider.resources import KINDS, PACKAGE, VERSION
from infra.provider.resources.fields import RELEASED, Field, Json
from infra.provider.resources.functions import FUNCTIONS

CONFIG: Final = (
    Field("apiKey", "string", "RunPod's API key. RUNPOD_API_KEY when omitted; then it is in no state.", secret=True),
    Field("apiKeyEnv", "string", "Name of the environment variable that holds the API key: for several accounts."),
    Field("baseUrl", "string", "REST v2's host. RUNPOD_API_BASE_URL, or https://api.runpod.io, when omitted."),
)
"""What a provider is configured with."""
SCALARS: Final = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}


def schema() -> Json:
    """Pulumi's package schema."""
    types: Json = {}
    config = {f.name: _property(f, "Provider", types, plain=True) for f in CONFIG}
    resources = {}
    for token, kind in KINDS.items():
        inputs = {f.name: _property(f, kind.title, types) for f in kind.inputs}
        outputs = {**inputs, **{f.name: _property(f, kind.title, types) for f in kind.computed}}
        resources[token] = {
            "description": kind.doc,
            "inputProperties": inputs,
            "requiredInputs": [f.name for f in kind.inputs if f.required],
            "properties": outputs,
            "required": [f.name for f in (*kind.inputs, *kind.computed) if f.required or f in kind.computed],
        }
    functions = {}
    for token, function in FUNCTIONS.items():
        title = token.rsplit(":", 1)[-1].removeprefix("get")
        functions[token] = {
            "description": function.doc,
            "inputs": {
                "type": "object",
                "properties": {f.name: _property(f, f"Get{title}", types) for f in function.inputs},
                "required": [f.name for f in function.inputs if f.required],
            },
            "outputs": {
                "type": "object",
                "properties": {f.name: _property(f, title, types) for f in function.outputs},
                "required": [f.name for f in function.outputs if f.required],
            },
        }
    return {
        "name": PACKAGE,
        "version": VERSION,
        "displayName": "RunPod (REST v2)",
        "description": "RunPod Serverless on REST v2: endpoints, network volumes, templates, registry credentials.",
        "keywords": ["runpod", "category/cloud", "kind/native"],
        "license": "Apache-2.0",
        "config": {"variables": config},
        "provider": {"inputProperties": config},
        "types": types,
        "resources": resources,
        "functions": functions,
    }


@cache
def schema_json() -> str:
    """The schema as the engine wants it."""
    return json.dumps(schema(), separators=(",", ":"))


def _property(f: Field, owner: str, types: Json, *, plain: bool = False) -> Json:
    text: Json = {**_type(f, owner, types), "description": describe(f)}
    if f.secret:
        text["secret"] = True
    if f.replaces and not plain:
        text["willReplaceOnChanges"] = True
    return text


def _type(f: Field, owner: str, types: Json) -> Json:
    if f.type in SCALARS:
        return {"type": SCALARS[f.type]}
    if f.type == "strings":
        return {"type": "array", "items": {"type": "string"}}
    if f.type == "map":
        return {"type": "object", "additionalProperties": {"type": "string"}}
    reference = _declare(f.fields, f.named or owner + f.name[0].upper() + f.name[1:], types)
    return {"type": "array", "items": reference} if f.type == "objects" else reference


def _declare(fields: Sequence[Field], name: str, types: Json) -> Json:
    token = f"{PACKAGE}:index:{name}"
    types[token] = {
        "type": "object",
        "properties": {f.name: _property(f, name, types) for f in fields},
        "required": [f.name for f in fields if f.required],
    }
    return {"$ref": f"#/types/{token}"}


def describe(f: Field) -> str:
    """A field's words: what it is, what it may be, what it is when omitted."""
    parts = [f.doc]
    if f.enum and not any(value in f.doc for value in f.enum):
        parts.append(f"One of {', '.join(f.enum)}.")
    if f.default is not RELEASED and f.default not in (None, (), ""):
        parts.append(f"Default: {str(f.default).lower() if isinstance(f.default, bool) else f.default}.")
    return " ".join(parts)
