"""The resources' pure parts: what check says, what differs, what is sent, and what is read back; on a model of REST v2."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.provider.resources import KINDS
from infra.provider.resources.endpoint import ENDPOINT, MARKER, marker_of
from infra.provider.resources.fields import UNKNOWN, Kind, has_unknown
from infra.provider.resources.network_volume import NETWORK_VOLUME
from infra.provider.resources.registry_credential import REGISTRY_CREDENTIAL
from infra.provider.resources.template import TEMPLATE, content_hash
from tests.infra.provider import inputs as make
from tests.infra.provider.cloud import create_endpoint, create_template, patch_endpoint

Json = dict[str, Any]
URN = "urn:pulumi:prod::night::nightbatch:infra:QueueEndpoint$runpodv2:index:Endpoint::embed"
GOOD: Json = {
    "name": "embed",
    "type": "QUEUE",
    "image": "img@sha256:1",
    "gpu": {"pools": ["ADA_24", "AMPERE_24"]},
    "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4},
}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=True) | st.text(max_size=5) | st.just(UNKNOWN),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def failures(kind: Kind, values: Json) -> dict[str, str]:
    return {f.property: f.reason for f in kind.check(values)[1]}


# --- check ---------------------------------------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once_under_its_own_name() -> None:
    bad = {
        "name": "",
        "type": "QUEU",
        "gpu": {"pools": [], "count": 0, "minCudaVersion": "12", "cards": 1},
        "scaling": {"type": "QUEUE_DELAY", "requestCount": 2},
        "workers": {"min": 5, "max": 2, "idleTimeout": 9000},
        "timeout": "600",
        "ports": ["80", "99999/http"],
        "env": {"A": 1, "1X": "y"},
        "flashboot": "on",
        "rolout": "strict",
        "disk": 0,
    }
    found = failures(ENDPOINT, bad)
    assert set(found) == {
        "name",
        "type",
        "image",
        "gpu.pools",
        "gpu.count",
        "gpu.minCudaVersion",
        "gpu.cards",
        "scaling.queueDelay",
        "scaling.requestCount",
        "workers.min",
        "workers.idleTimeout",
        "timeout",
        "ports[0]",
        "ports[1]",
        "env.A",
        'env["1X"]',
        "flashboot",
        "rolout",
        "disk",
    }
    assert found["rolout"].endswith("did you mean rollout?")
    assert found["type"] == "type must be QUEUE or LOAD_BALANCER, not 'QUEU'"
    assert found["workers.min"] == "workers.min 5 is above workers.max 2"
    assert found["workers.idleTimeout"] == "workers.idleTimeout must be between 1 and 3600, not 9000"


@pytest.mark.parametrize(
    ("change", "property_", "words"),
    [
        ({"cpu": [{"id": "cpu5c", "vcpuCount": 4}]}, "cpu", "gpu and cpu exclude each other"),
        ({"gpu": None}, "gpu", "gpu or cpu is required"),
        ({"templateId": "t1"}, "image", "image and templateId exclude each other"),
        ({"templateHash": "x"}, "templateHash", "means nothing without templateId"),
        ({"type": "LOAD_BALANCER"}, "scaling.type", "must be REQUEST_COUNT on a LOAD_BALANCER"),
        ({"gpu": {"pools": ["NVIDIA L40"]}}, "gpu.pools[0]", "looks like a GPU type"),
        ({"gpu": {"pools": ["ADA_24", "ADA_24"]}}, "gpu.pools", "names 'ADA_24' twice"),
        ({"gpu": {"pools": ["A"], "allowedCudaVersions": ["12.8"], "minCudaVersion": "12.1"}}, "gpu.minCudaVersion", "exclude each other"),
        ({"gpu": None, "cpu": [{"id": "cpu5c", "vcpuCount": 6}]}, "cpu[0].vcpuCount", "power of two"),
        ({"env": {MARKER: "x"}}, f"env.{MARKER}", "the provider's own"),
        ({"workers": {"min": 4}}, "workers.min", "workers.min 4 is above workers.max 3"),
        ({"rollout": "fast"}, "rollout", "rolling or strict"),
    ],
)
def test_a_rule_between_fields_names_the_field_and_the_reason(change: Json, property_: str, words: str) -> None:
    found = failures(ENDPOINT, {**GOOD, **change})
    assert list(found) == [property_]
    assert words in found[property_]


def test_an_idle_timeout_where_runpod_has_none_is_refused_before_runpod_does() -> None:
    counted = {**GOOD, "scaling": {"type": "REQUEST_COUNT", "requestCount": 1}, "workers": {"idleTimeout": 5}}
    assert list(failures(ENDPOINT, counted)) == ["workers.idleTimeout"]
    assert not failures(ENDPOINT, {**counted, "type": "LOAD_BALANCER"})


def test_what_a_preview_does_not_know_is_no_failure() -> None:
    unknown = {**GOOD, "type": UNKNOWN, "image": UNKNOWN, "gpu": UNKNOWN, "networkVolumes": [UNKNOWN, "v"], "env": {"A": UNKNOWN}}
    assert not failures(ENDPOINT, unknown)
    partly = {"cpu": UNKNOWN, "templateId": UNKNOWN, "scaling": {"type": UNKNOWN}, "workers": {"min": UNKNOWN}}
    assert not failures(ENDPOINT, {**GOOD, **partly})
    assert not failures(NETWORK_VOLUME, {"name": UNKNOWN, "size": UNKNOWN, "dataCenter": UNKNOWN})


def test_a_failure_never_shows_a_value_that_may_be_a_secret() -> None:
    found = failures(ENDPOINT, {**GOOD, "env": {"HF_TOKEN": 12345678}})
    assert found
    assert "12345678" not in str(found)
    assert "xyzzy" not in str(failures(REGISTRY_CREDENTIAL, {"name": "r", "username": "u", "password": ["xyzzy"]}))


MEMBERS = st.sampled_from(["name", "type", "gpu", "cpu", "env", "workers", "scaling", "x"])


@settings(deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.dictionaries(MEMBERS, JUNK))
def test_check_answers_whatever_it_is_given(token: str, values: Json) -> None:
    clean, found = KINDS[token].check(values)
    assert isinstance(clean, dict)
    assert found  # a required field is always missing or wrong: neither image nor size is ever in these values
    assert all(f.reason for f in found)


@pytest.mark.parametrize("junk", [True, 3, "x", ["x"], {"x": "y"}, [{"x": []}]])
def test_a_value_of_the_wrong_kind_is_a_failure_and_not_a_crash(junk: Any) -> None:
    for f in ENDPOINT.inputs:
        _, found = ENDPOINT.check({**GOOD, f.name: junk})
        assert found or f.type in ("boolean", "string", "strings", "map", "integer"), f.name


@settings(deadline=None)
@given(make.endpoints() | make.endpoints(templated=True))
def test_valid_endpoints_pass_unchanged(inputs: Json) -> None:
    clean, found = ENDPOINT.check(inputs)
    assert not found
    assert clean == inputs


# --- diff and bodies, against the model ----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(make.endpoints())
def test_after_a_create_nothing_differs_after_a_refresh_or_an_import(inputs: Json) -> None:
    live = create_endpoint(ENDPOINT.create_body(inputs, "0123"), "ep1")
    assert live["env"][MARKER] == "0123"
    assert not ENDPOINT.diff(ENDPOINT.from_live(live, inputs), inputs)
    imported = ENDPOINT.from_live(live, None)
    provider_only = {"rollout", "drainOnDelete", "drainTimeoutSeconds"}
    assert not {k: v for k, v in ENDPOINT.diff(imported, inputs).items() if k not in provider_only}
    clean, found = ENDPOINT.check(imported)
    assert not found
    assert clean == imported
    assert MARKER not in imported.get("env", {})
    assert MARKER not in ENDPOINT.outputs(live, inputs).get("env", {})


@st.composite
def two_endpoints(draw: st.DrawFn, *, templated: bool = False) -> tuple[Json, Json]:
    kind, family = draw(st.sampled_from(["QUEUE", "LOAD_BALANCER"])), draw(st.sampled_from(["gpu", "cpu"]))
    first = draw(make.endpoints(kind=kind, family=family, templated=templated))
    second = draw(make.endpoints(kind=kind, family=family, templated=templated))
    mixed = {**second, **{k: first[k] for k in draw(st.sets(st.sampled_from(sorted(first))))}}
    return first, mixed if not ENDPOINT.check(mixed)[1] else second


@settings(deadline=None)
@given(two_endpoints())
def test_a_patch_makes_what_is_declared_and_sends_nothing_else(pair: tuple[Json, Json]) -> None:
    old, new = pair
    live = create_endpoint(ENDPOINT.create_body(old, "0123"), "ep1")
    body = ENDPOINT.patch_body(old, new, "0123")
    changes = ENDPOINT.diff(old, new)
    assert not any(change.replace for change in changes.values())
    assert set(body) <= {path.split(".")[0].split("[")[0] for path in changes}
    after = patch_endpoint(live, body) if body else live
    assert not ENDPOINT.diff(ENDPOINT.from_live(after, new), new)
    assert after["env"][MARKER] == "0123"
    assert not ENDPOINT.patch_body(new, new, "0123")


TEMPLATE_LIVE = create_template(
    {"name": "t", "image": "img@sha256:9", "serverless": True, "env": {"FROM": "template", "A": "t"}, "args": "--t", "ports": ["80/http"]},
    "tem1",
)


@settings(deadline=None)
@given(two_endpoints(templated=True))
def test_a_template_is_sent_again_when_it_changed_and_what_is_declared_wins(pair: tuple[Json, Json]) -> None:
    old, new = pair
    live = create_endpoint(ENDPOINT.create_body(old, "0123"), "ep1", TEMPLATE_LIVE)
    assert not ENDPOINT.diff(ENDPOINT.from_live(live, old), old)
    body = ENDPOINT.patch_body(old, new, "0123")
    if old["templateHash"] != new["templateHash"]:
        assert body["templateId"] == "tem1"
    edited = {**TEMPLATE_LIVE, "image": "img@sha256:10", "args": "--edited", "env": {"FROM": "edit"}}
    after = patch_endpoint(live, body, edited if "templateId" in body else None) if body else live
    assert not ENDPOINT.diff(ENDPOINT.from_live(after, new), new)
    assert after["env"][MARKER] == "0123"
    if "templateId" in body:
        assert after["image"] == "img@sha256:10"
        assert after["env"] == {**edited["env"], **new.get("env", {}), MARKER: "0123"}


def test_leaving_a_template_sends_the_whole_container() -> None:
    old = {**{k: v for k, v in GOOD.items() if k != "image"}, "templateId": "tem1"}
    new = {**GOOD, "env": {"A": "1"}}
    live = create_endpoint(ENDPOINT.create_body(old, "0123"), "ep1", TEMPLATE_LIVE)
    after = patch_endpoint(live, ENDPOINT.patch_body(old, new, "0123"))
    assert (after["image"], after["args"], after["ports"], after["env"]) == ("img@sha256:1", "", [], {"A": "1", MARKER: "0123"})


def test_only_the_type_and_the_compute_family_replace_an_endpoint() -> None:
    cpu = {**{k: v for k, v in GOOD.items() if k != "gpu"}, "cpu": [{"id": "cpu5c", "vcpuCount": 4}]}
    assert {k: (c.kind, c.replace) for k, c in ENDPOINT.diff(GOOD, cpu).items()} == {"gpu": ("delete", True), "cpu": ("add", True)}
    balanced = {**GOOD, "type": "LOAD_BALANCER", "scaling": {"type": "REQUEST_COUNT", "requestCount": 4}}
    changes = ENDPOINT.diff(GOOD, balanced)
    assert changes["type"].replace
    assert [path for path, change in changes.items() if change.replace] == ["type"]
    assert ENDPOINT.diff(GOOD, {**GOOD, "type": UNKNOWN})["type"].replace


def test_what_runpod_chose_is_no_difference_and_what_was_set_back_is_reset() -> None:
    rich = {**GOOD, "timeout": 600000, "disk": 50, "flashboot": "FLASHBOOT", "workers": {"max": 9, "idleTimeout": 60}, "env": {"A": "1"}}
    changes = ENDPOINT.diff(rich, GOOD)
    assert {k: c.kind for k, c in changes.items()} == {"flashboot": "delete", "workers.max": "delete", "env.A": "delete"}
    assert ENDPOINT.patch_body(rich, GOOD, "0123") == {"flashboot": "OFF", "workers": {"max": 3}, "env": {MARKER: "0123"}}


def test_the_order_of_data_centers_means_nothing_and_that_of_pools_does() -> None:
    first = {**GOOD, "dataCenterIds": ["EU-RO-1", "US-TX-3"]}
    assert not ENDPOINT.diff(first, {**first, "dataCenterIds": ["US-TX-3", "EU-RO-1"]})
    assert list(ENDPOINT.diff(first, {**first, "gpu": {"pools": ["AMPERE_24", "ADA_24"]}})) == ["gpu.pools"]


def test_exclusions_and_pools_travel_together() -> None:
    old = {**GOOD, "gpu": {"pools": ["ADA_48_PRO"], "excludedTypes": ["NVIDIA L40"]}}
    wider = {**GOOD, "gpu": {"pools": ["ADA_48_PRO", "ADA_24"], "excludedTypes": ["NVIDIA L40"]}}
    assert ENDPOINT.patch_body(old, wider, "m") == {"gpu": {"pools": ["ADA_48_PRO", "ADA_24"], "excludedTypes": ["NVIDIA L40"]}}
    other = {**GOOD, "gpu": {"pools": ["ADA_48_PRO"], "excludedTypes": ["NVIDIA L40S"]}}
    assert ENDPOINT.patch_body(old, other, "m") == {"gpu": {"pools": ["ADA_48_PRO"], "excludedTypes": ["NVIDIA L40S"]}}
    counted = {**GOOD, "gpu": {**old["gpu"], "count": 2}}
    assert ENDPOINT.patch_body(old, counted, "m") == {"gpu": {"count": 2}}


def test_a_console_edit_is_seen_by_a_refresh_also_where_nothing_was_declared() -> None:
    live = create_endpoint(ENDPOINT.create_body(GOOD, "m"), "ep1")
    by_hand = {"workers": {**live["workers"], "max": 0}, "flashboot": "FLASHBOOT", "env": {**live["env"], "BY": "hand"}, "timeout": 9}
    edited = {**live, **by_hand}
    changes = ENDPOINT.diff(ENDPOINT.from_live(edited, GOOD), GOOD)
    assert set(changes) == {"workers.max", "flashboot", "env.BY"}  # the timeout is RunPod's own while nobody declares it
    assert ENDPOINT.patch_body(ENDPOINT.from_live(edited, GOOD), GOOD, "m") == {
        "workers": {"max": 3},
        "flashboot": "OFF",
        "env": {MARKER: "m"},
    }


def test_an_old_endpoint_without_a_type_is_imported_as_what_its_urls_say() -> None:
    live = create_endpoint(ENDPOINT.create_body(GOOD, "m"), "ep1")
    del live["type"]
    assert ENDPOINT.from_live(live, None)["type"] == "QUEUE"
    assert ENDPOINT.from_live({**live, "requestUrls": {"base": "https://x"}}, None)["type"] == "LOAD_BALANCER"


@settings(deadline=None)
@given(make.endpoints() | make.endpoints(templated=True))
def test_a_preview_of_a_create_foretells_every_output(inputs: Json) -> None:
    template = TEMPLATE_LIVE if "templateId" in inputs else None
    foretold = ENDPOINT.preview_outputs(inputs, None, None)
    real = ENDPOINT.outputs(create_endpoint(ENDPOINT.create_body(inputs, "m"), "ep1", template), inputs)
    assert foretold["requestUrls"] is UNKNOWN
    for name, value in real.items():
        assert agrees(foretold.get(name, UNKNOWN), value), name


def agrees(foretold: Any, real: Any) -> bool:
    if foretold is UNKNOWN:
        return True
    if isinstance(real, dict) and isinstance(foretold, dict):
        return all(agrees(foretold.get(k, UNKNOWN), v) for k, v in real.items())
    return bool(foretold == real)


@settings(deadline=None)
@given(two_endpoints())
def test_a_preview_of_an_update_keeps_what_stays(pair: tuple[Json, Json]) -> None:
    old, new = pair
    live = create_endpoint(ENDPOINT.create_body(old, "m"), "ep1")
    before = ENDPOINT.outputs(live, old)
    foretold = ENDPOINT.preview_outputs(new, old, before)
    real = ENDPOINT.outputs(patch_endpoint(live, ENDPOINT.patch_body(old, new, "m")), new)
    assert foretold["requestUrls"] == before["requestUrls"]
    for name, value in real.items():
        assert agrees(foretold.get(name, UNKNOWN), value), name


def test_the_marker_is_the_hash_of_project_stack_and_urn() -> None:
    assert marker_of(URN) == hashlib.sha256(f"night/prod/{URN}".encode()).hexdigest()[:16]


# --- volumes, templates, registries --------------------------------------------------------------------------------------------------


def test_a_volume_grows_in_place_and_is_replaced_by_everything_else() -> None:
    old = {"name": "models", "size": 50, "dataCenter": "EU-RO-1", "type": "STANDARD"}
    for change, replaces in (
        ({"name": "m"}, False),
        ({"size": 60}, False),
        ({"size": 40}, True),
        ({"dataCenter": "US-TX-3"}, True),
        ({"type": "HIGH_PERFORMANCE"}, True),
    ):
        changes = NETWORK_VOLUME.diff(old, {**old, **change})
        assert [c.replace for c in changes.values()] == [replaces], change
    assert NETWORK_VOLUME.patch_body(old, {**old, "size": 60}, "m") == {"size": 60}
    assert not NETWORK_VOLUME.diff(old, {k: v for k, v in old.items() if k != "type"})
    assert failures(NETWORK_VOLUME, {**old, "size": 9})["size"] == "size must be between 10 and 4096, not 9"


@settings(deadline=None)
@given(make.VOLUMES)
def test_a_volume_is_clean_after_import(inputs: Json) -> None:
    live = {"type": "STANDARD", **NETWORK_VOLUME.create_body(inputs, ""), "id": "v1"}
    assert not NETWORK_VOLUME.diff(NETWORK_VOLUME.from_live(live, None), inputs)
    assert not NETWORK_VOLUME.diff(NETWORK_VOLUME.from_live(live, inputs), inputs)


@settings(deadline=None)
@given(make.TEMPLATES, make.TEMPLATES)
def test_a_template_becomes_what_is_declared(old: Json, new: Json) -> None:
    live = create_template(TEMPLATE.create_body(old, ""), "t1")
    assert not TEMPLATE.diff(TEMPLATE.from_live(live, old), old)
    assert not TEMPLATE.diff(TEMPLATE.from_live(live, None), old)
    changes = TEMPLATE.diff(old, new)
    gone = old.get("mounts", {}).get("persistent") is not None and new.get("mounts", {}).get("persistent") is None
    assert any(c.replace for c in changes.values()) == gone
    if not gone:
        after = {**live, **TEMPLATE.patch_body(old, new, "")}
        assert not TEMPLATE.diff(TEMPLATE.from_live(after, new), new)
        assert TEMPLATE.outputs(after, new)["contentHash"] == content_hash(new) == TEMPLATE.preview_outputs(new, old, {})["contentHash"]


def test_the_content_hash_changes_with_what_an_endpoint_copies_and_with_nothing_else() -> None:
    base = {"name": "t", "image": "a@sha256:1", "env": {"A": "1"}}
    assert content_hash(base) == content_hash({**base, "name": "u", "public": True, "ports": []})
    changed: tuple[Json, ...] = ({}, {"image": "b"}, {"env": {}}, {"disk": 5}, {"args": "x"})
    assert len({content_hash({**base, **change}) for change in changed}) == 5
    assert content_hash({**base, "env": {"A": UNKNOWN}}) is UNKNOWN


def test_every_change_of_a_registry_credential_replaces_it_and_it_cannot_be_imported() -> None:
    old = {"name": "r", "username": "u", "password": "p"}
    for name in old:
        assert [c.replace for c in REGISTRY_CREDENTIAL.diff(old, {**old, name: "x"}).values()] == [True]
    assert REGISTRY_CREDENTIAL.from_live({"id": "1", "name": "r"}, old) == old
    assert not REGISTRY_CREDENTIAL.importable


@settings(deadline=None)
@given(st.sampled_from([make.endpoints(), make.VOLUMES, make.TEMPLATES, make.REGISTRIES]).flatmap(lambda s: st.tuples(s, s)))
def test_nothing_differs_from_itself_and_a_body_holds_no_unknown(pair: tuple[Json, Json]) -> None:
    inputs, other = pair
    for kind in KINDS.values():
        if set(inputs) <= {f.name for f in kind.inputs}:
            assert not kind.diff(inputs, inputs)
            assert not has_unknown(kind.create_body(inputs, "m"))
            assert kind.diff(inputs, other).keys() == kind.diff(inputs, dict(other)).keys()


@pytest.mark.parametrize("kind", [ENDPOINT, TEMPLATE])
def test_a_value_with_which_no_process_can_be_started_is_refused_and_not_shown(kind: Kind) -> None:
    good: Json = {"name": "x", "image": "i"} if kind is TEMPLATE else GOOD
    wrong = failures(kind, {**good, "env": {"FINE": "a=b", "C": "secret\0value"}})
    assert {name for name in wrong if name.startswith("env")} == {"env.C"}
    assert "secret" not in str(wrong)
