"""The real engine: every field of every resource changed, in place where RunPod can, by replacement where it cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.infra.engine.kit import IMAGE, NEXT_IMAGE, Cloud, Json, Site, endpoint, item, ops_of, step_of, volume

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]

SCALE_BY_COUNT = {"type": "REQUEST_COUNT", "requestCount": 4}
GPU = {"pools": ["AMPERE_24", "ADA_24"], "count": 1}
CPU = [{"id": "cpu3c", "vcpuCount": 2}]
TEMPLATE = {"image": IMAGE, "serverless": True}


@dataclass(frozen=True)
class Change:
    """One resource, and what is changed of it. `drop`: properties of the usual endpoint that neither has; `drop_after`: the later one."""

    kind: str
    before: Json
    after: Json
    fields: tuple[str, ...]
    """Names (first parts of the diff's paths) that the preview shows as changed."""
    drop: tuple[str, ...] = ()
    drop_after: tuple[str, ...] = ()
    live: Json = field(default_factory=dict)
    """What the cloud shows afterwards where it is not what was declared."""

    def declared(self, name: str, *, later: bool) -> Json:
        props = {**self.before, **(self.after if later else {})}
        if self.kind == "Endpoint":
            return endpoint(name, drop=self.drop + (self.drop_after if later else ()), **props)
        kept = {key: value for key, value in props.items() if not later or key not in self.drop_after}
        if self.kind == "NetworkVolume":
            return volume(name, **kept)
        return item(self.kind, name, {"name": name, **kept})


def gpu(before: Json, after: Json, live: Json | None = None) -> Change:
    return Change("Endpoint", {"gpu": {**GPU, **before}}, {"gpu": {**GPU, **after}}, ("gpu",), live={"gpu": live} if live else {})


def workers(**after: int) -> Change:
    usual = {"min": 0, "max": 1, "idleTimeout": 5}
    return Change("Endpoint", {"workers": usual}, {"workers": {**usual, **after}}, ("workers",))


def endpoint_change(key: str, before: Any, after: Any) -> Change:
    return Change("Endpoint", {} if before is None else {key: before}, {key: after}, (key,))


def template_change(key: str, before: Any, after: Any) -> Change:
    return Change("Template", {**TEMPLATE, **({} if before is None else {key: before})}, {key: after}, (key,))


UPDATES: dict[str, Change] = {
    "name": endpoint_change("name", "name", "another-name"),
    "image": endpoint_change("image", IMAGE, NEXT_IMAGE),
    "args": endpoint_change("args", "--fast", "--slow 'very much'"),
    "disk": endpoint_change("disk", 20, 40),
    "env": endpoint_change("env", {"A": "1", "B": "2"}, {"A": "1", "C": "3"}),
    "env-first": endpoint_change("env", None, {"A": "1"}),
    "ports": endpoint_change("ports", ["8000/http"], ["8000/http", "9000/http"]),
    "registry": endpoint_change("registry", {"$id": "one"}, {"$id": "two"}),
    "gpu-pools": gpu({}, {"pools": ["ADA_24", "AMPERE_24"]}),
    "gpu-count": gpu({}, {"count": 2}),
    "gpu-excluded": gpu({}, {"excludedTypes": ["NVIDIA L4"]}),
    "gpu-included": gpu({"excludedTypes": ["NVIDIA L4"]}, {"excludedTypes": []}),
    "gpu-cuda": gpu({}, {"allowedCudaVersions": ["12.8", "12.9"]}),
    "gpu-min-cuda": gpu({"minCudaVersion": "12.4"}, {"minCudaVersion": "12.8"}),
    "cpu": Change("Endpoint", {"cpu": CPU}, {"cpu": [{"id": "cpu3g", "vcpuCount": 4}]}, ("cpu",), drop=("gpu",)),
    "workers-min": workers(min=1),
    "workers-max": workers(max=3),
    "workers-idle": workers(idleTimeout=60),
    "scaling-value": endpoint_change("scaling", {"type": "QUEUE_DELAY", "queueDelay": 4}, {"type": "QUEUE_DELAY", "queueDelay": 1.5}),
    "scaling-type": Change("Endpoint", {"workers": {"min": 0, "max": 1}}, {"scaling": SCALE_BY_COUNT}, ("scaling",)),
    "places": endpoint_change("dataCenterIds", ["EU-RO-1"], ["EU-RO-1", "US-KS-2"]),
    "volumes": endpoint_change("networkVolumes", [], [{"$id": "drive"}]),
    "timeout": endpoint_change("timeout", 600_000, 900_000),
    "flashboot": endpoint_change("flashboot", "OFF", "FLASHBOOT"),
    "t-name": template_change("name", "t-name", "t-another-name"),
    "t-image": template_change("image", IMAGE, NEXT_IMAGE),
    "t-args": template_change("args", "--fast", "--slow"),
    "t-disk": template_change("disk", 20, 30),
    "t-env": template_change("env", {"A": "1"}, {"A": "2"}),
    "t-ports": template_change("ports", ["8000/http"], ["9000/http"]),
    "t-registry": template_change("registry", {"$id": "one"}, {"$id": "two"}),
    "t-cuda": template_change("allowedCudaVersions", ["12.8"], ["12.9"]),
    "t-category": template_change("category", "NVIDIA", "CPU"),
    "t-mounts": Change(
        "Template",
        {"image": IMAGE, "serverless": False, "mounts": {"persistent": {"size": 20, "path": "/workspace"}}},
        {"mounts": {"persistent": {"size": 40, "path": "/data"}}},
        ("mounts",),
    ),
    "t-public": Change("Template", {"image": IMAGE, "public": False}, {"public": True}, ("public",)),
    "t-serverless": Change("Template", {"image": IMAGE, "serverless": False}, {"serverless": True}, ("serverless",)),
    "t-jupyter": template_change("startJupyter", True, False),
    "t-ssh": template_change("startSsh", True, False),
    "v-name": Change("NetworkVolume", {"name": "v-name"}, {"name": "v-another-name"}, ("name",)),
    "v-size": Change("NetworkVolume", {"size": 20}, {"size": 30}, ("size",)),
}
REPLACES: dict[str, Change] = {
    "type": Change("Endpoint", {"scaling": SCALE_BY_COUNT, "workers": {"min": 0, "max": 1}}, {"type": "LOAD_BALANCER"}, ("type",)),
    "to-cpu": Change("Endpoint", {}, {"cpu": CPU}, ("cpu", "gpu"), drop_after=("gpu",)),
    "to-gpu": Change("Endpoint", {"cpu": CPU, "gpu": None}, {"cpu": None, "gpu": GPU}, ("cpu", "gpu")),
    "v-place": Change("NetworkVolume", {"dataCenter": "EU-RO-1"}, {"dataCenter": "US-KS-2"}, ("dataCenter",)),
    "v-shrinks": Change("NetworkVolume", {"size": 30}, {"size": 20}, ("size",)),
    "r-username": Change("RegistryCredential", {"username": "a", "password": "p"}, {"username": "b"}, ("username",)),
    "r-password": Change("RegistryCredential", {"username": "a", "password": "p"}, {"password": {"$secret": "q"}}, ("password",)),
    "r-name": Change("RegistryCredential", {"username": "a", "password": "p"}, {"name": "r-another-name"}, ("name",)),
}
HELPERS = [
    *(item("RegistryCredential", name, {"name": name, "username": "me", "password": "x"}) for name in ("one", "two")),
    volume("drive"),
]
KINDS = {"Endpoint": "serverless", "Template": "templates", "NetworkVolume": "network-volumes", "RegistryCredential": "registries"}


def first_parts(detailed: Json) -> set[str]:
    return {key.replace("[", ".").split(".")[0] for key in detailed}


def contains(live: Any, wanted: Any) -> bool:
    """Whether `live` shows all that `wanted` says; lists have their length and order."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return all(contains(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(live, list):
        return len(live) == len(wanted) and all(contains(found, value) for found, value in zip(live, wanted, strict=True))
    return bool(live == wanted) or (wanted == [] and live is None)  # excludedTypes is not shown when it is empty


def resolved(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return ids[value["$id"]] if set(value) == {"$id"} else {key: resolved(found, ids) for key, found in value.items()}
    return [resolved(found, ids) for found in value] if isinstance(value, list) else value


def check_live(cloud: Cloud, changes: dict[str, Change], ids: dict[str, str], *, later: bool) -> None:
    live = {found["id"]: found for kind in KINDS.values() for found in cloud.live(kind).values()}
    wrong = []
    for name, change in changes.items():
        wanted = resolved({**change.before, **(change.after if later else {})}, ids)
        if later:
            wanted.update(change.live)
        wanted = {key: value for key, value in wanted.items() if value is not None and key != "password" and key != "username"}
        found = live[ids[name]]
        wrong += [
            f"{name}.{key}: {found.get(key)} is live, not {value}" for key, value in wanted.items() if not contains(found.get(key), value)
        ]
    assert not wrong, "\n".join(wrong)


def test_each_field_that_can_be_updated_is_updated_in_place(site: Site, cloud: Cloud) -> None:
    site.declare(*HELPERS, *(change.declared(name, later=False) for name, change in UPDATES.items()))
    site.up()
    before = {name: found["id"] for name, found in site.resources.items()}
    check_live(cloud, UPDATES, before, later=False)
    site.clean(refresh=True)

    site.declare(*HELPERS, *(change.declared(name, later=True) for name, change in UPDATES.items()))
    preview = site.preview(key=False)
    assert ops_of(preview) == {name: {"update"} for name in UPDATES}
    shown = {name: first_parts(step_of(preview, name)["detailedDiff"]) for name in UPDATES}
    assert shown == {name: set(change.fields) for name, change in UPDATES.items()}
    check_live(cloud, UPDATES, before, later=False)  # a preview changes nothing

    site.up()
    after = {name: found["id"] for name, found in site.resources.items()}
    assert after == before, "nothing was replaced"
    check_live(cloud, UPDATES, after, later=True)
    site.clean(refresh=True)


def test_what_runpod_cannot_update_is_replaced_and_the_preview_says_so(site: Site, cloud: Cloud) -> None:
    site.declare(*(change.declared(name, later=False) for name, change in REPLACES.items()))
    site.up()
    before = {name: found["id"] for name, found in site.resources.items()}
    check_live(cloud, REPLACES, before, later=False)

    site.declare(*(change.declared(name, later=True) for name, change in REPLACES.items()))
    preview = site.preview(key=False)
    operations = ops_of(preview)
    assert set(operations) == set(REPLACES)
    assert all("replace" in ops for ops in operations.values()), operations
    for name, change in REPLACES.items():
        reasons = first_parts(dict.fromkeys(step_of(preview, name, "replace")["replaceReasons"] or ()))
        assert reasons & set(change.fields), f"{name}: {reasons}"

    site.up()
    after = {name: found["id"] for name, found in site.resources.items()}
    assert not {name for name in REPLACES if after[name] == before[name]}
    check_live(cloud, REPLACES, after, later=True)
    live = {found["id"] for kind in KINDS.values() for found in cloud.live(kind).values()}
    assert live == set(after.values()), "the replaced ones are gone"
    site.clean(refresh=True)


def test_a_changed_template_reaches_its_endpoints_in_the_same_up(site: Site, cloud: Cloud) -> None:
    def declared(image: str, value: str) -> list[Json]:
        content = {"image": image, "env": {"A": value}}
        return [
            item("Template", "batch", {"name": "batch", "serverless": True, **content}),
            endpoint("gen", drop=("image",), templateId={"$id": "batch"}, templateHash=f"{image} {value}", env={"MINE": "1"}),
        ]

    site.declare(*declared(IMAGE, "1"))
    site.up()
    assert cloud.live("serverless")["gen"]["image"] == IMAGE
    site.clean(refresh=True)
    site.declare(*declared(NEXT_IMAGE, "2"))
    site.up()
    live = cloud.live("serverless")["gen"]
    assert live["image"] == NEXT_IMAGE
    assert contains(live["env"], {"A": "2", "MINE": "1"})
    site.clean(refresh=True)
    site.destroy()
    assert cloud.everything()["templates"] == set()
