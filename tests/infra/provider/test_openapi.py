"""The resources' tables against RunPod's official OpenAPI file (kept boiled down in rest_v2.json, see openapi_digest.py): no field is
missing, none is invented, and bounds, enums and requiredness are RunPod's. Where the
file itself is at hand, every body that the provider makes is held to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.provider.resources import KINDS, functions
from infra.provider.resources.endpoint import ENDPOINT
from infra.provider.resources.fields import Field, Kind
from infra.provider.resources.network_volume import NETWORK_VOLUME
from infra.provider.resources.registry_credential import REGISTRY_CREDENTIAL
from infra.provider.resources.template import TEMPLATE
from tests.infra.provider import inputs as make
from tests.infra.provider.openapi_digest import digest

Json = dict[str, Any]
REST: Json = json.loads(Path(__file__).with_name("rest_v2.json").read_text(encoding="utf-8"))["schemas"]
NAMES = {"Endpoint": "Endpoint", "Template": "Template", "NetworkVolume": "NetworkVolume", "RegistryCredential": "Registry"}
SCALING: Json = {"type": "QUEUE_DELAY", "queueDelay": 4}
ONLY_OURS = {"templateHash", "rollout", "drainOnDelete", "drainTimeoutSeconds"}
TYPES = {"strings": "array", "objects": "array", "map": "object", "object": "object"}


def pairs(fields: Sequence[Field], schema: Json, path: str) -> Iterator[tuple[str, Field, Json, bool]]:
    """Every field beside its schema, at every depth; the last says whether the schema requires it."""
    assert {f.name for f in fields} == set(schema["properties"]), path
    for f in fields:
        inner = schema["properties"][f.name]
        yield f"{path}.{f.name}", f, inner, f.name in schema["required"]
        if f.fields:
            yield from pairs(f.fields, inner["items"] if f.type == "objects" else inner, f"{path}.{f.name}")


def sent(kind: Kind) -> tuple[Field, ...]:
    return tuple(f for f in kind.inputs if f.sent)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: str(kind.title))
def test_inputs_are_the_create_bodys_fields(kind: Kind) -> None:
    assert {f.name for f in kind.inputs if not f.sent} == (ONLY_OURS if kind.title == "Endpoint" else set())
    for path, f, schema, required in pairs(sent(kind), REST[f"Create{NAMES[kind.title]}Request"], kind.title):
        assert TYPES.get(f.type, f.type) == schema["type"], path
        assert sorted(f.enum) == sorted(schema.get("enum", ())), path
        if f.type in ("integer", "number"):
            assert (f.minimum, f.maximum) == (schema.get("minimum", f.minimum), schema.get("maximum", f.maximum)), path
        if f.type in ("strings", "objects"):
            assert f.min_items == schema.get("minItems", 0), path
            assert not schema.get("uniqueItems") or f.unique, path
        assert f.required == required, path


@pytest.mark.parametrize("kind", [k for k in KINDS.values() if k.title != "RegistryCredential"], ids=lambda kind: str(kind.title))
def test_what_the_patch_body_lacks_replaces_and_nothing_else_does(kind: Kind) -> None:
    patch = REST[f"Update{NAMES[kind.title]}Request"]["properties"]
    for f in sent(kind):
        assert f.replaces == (f.name not in patch), f.name
    assert set(patch) <= {f.name for f in sent(kind)}


def test_a_registry_has_no_patch_and_says_neither_user_nor_password() -> None:
    kind = KINDS["runpodv2:index:RegistryCredential"]
    assert all(f.replaces for f in kind.inputs)
    assert {f.name for f in kind.inputs if f.echoed} == set(REST["Registry"]["properties"]) - {"id"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: str(kind.title))
def test_outputs_are_what_runpod_answers(kind: Kind) -> None:
    answered = set(REST[NAMES[kind.title]]["properties"]) - {"id"}
    ours = {f.name for f in kind.inputs if f.sent and f.echoed} | {f.name for f in kind.computed if f.name != "contentHash"}
    assert ours == answered


@pytest.mark.parametrize(
    ("fields", "name"),
    [(functions.GPU, "GpuType"), (functions.CPU, "CpuType"), (functions.DATA_CENTER, "DataCenter")],
    ids=["gpu", "cpu", "data-center"],
)
def test_functions_return_the_catalogs_fields(fields: Sequence[Field], name: str) -> None:
    for path, f, schema, required in pairs(fields, REST[name], name):
        assert TYPES.get(f.type, f.type) == schema.get("type", "string"), path
        assert f.required == (required and not schema.get("nullable")), path


OFFICIAL = Path(os.environ.get("REST_V2_OPENAPI") or Path(__file__).parents[4] / "shared" / "reference" / "runpod-rest-v2.openapi.json")
official = pytest.mark.skipif(not OFFICIAL.exists(), reason="the official OpenAPI file is not here; REST_V2_OPENAPI names it")


def validator(name: str) -> Any:
    """Of one body, with its references and its closedness (unevaluatedProperties)."""
    document = json.loads(OFFICIAL.read_text(encoding="utf-8"))
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document["components"]})


@official
def test_the_kept_digest_is_that_of_the_official_file() -> None:
    assert digest(json.loads(OFFICIAL.read_text(encoding="utf-8")))["schemas"] == REST


@official
@pytest.mark.parametrize(
    ("kind", "inputs", "name"),
    [
        (ENDPOINT, make.endpoints() | make.endpoints(templated=True), "Endpoint"),
        (TEMPLATE, make.TEMPLATES, "Template"),
        (NETWORK_VOLUME, make.VOLUMES, "NetworkVolume"),
        (REGISTRY_CREDENTIAL, make.REGISTRIES, "Registry"),
    ],
    ids=["endpoint", "template", "volume", "registry"],
)
def test_every_body_is_one_that_the_official_file_allows(kind: Kind, inputs: st.SearchStrategy[Json], name: str) -> None:
    create = validator(f"Create{name}Request")
    patch = None if kind is REGISTRY_CREDENTIAL else validator(f"Update{name}Request")

    @settings(deadline=None)
    @given(inputs, inputs)
    def holds(old: Json, new: Json) -> None:
        create.validate(kind.create_body(new, "0123456789abcdef"))
        if patch is not None and not any(change.replace for change in kind.diff(old, new).values()):
            body = kind.patch_body(old, new, "0123456789abcdef")
            if body:
                patch.validate(body)

    holds()


@official
def test_the_validator_refuses_what_runpod_refuses() -> None:
    good = ENDPOINT.create_body({"name": "x", "type": "QUEUE", "image": "i", "gpu": {"pools": ["A"]}, "scaling": SCALING}, "m")
    assert validator("CreateEndpointRequest").is_valid(good)
    assert not validator("CreateEndpointRequest").is_valid({**good, "templateHash": "x"})
    assert not validator("UpdateEndpointRequest").is_valid({"type": "QUEUE"})
