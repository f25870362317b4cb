"""The real engine: taking over what was made in the console."""

from __future__ import annotations

import json

import pytest

from infra.review.engine import Done
from tests.infra.engine.kit import IMAGE, Cloud, Json, Site, endpoint, item, volume

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]

GPU = {"pools": ["AMPERE_24"]}
DELAY = {"type": "QUEUE_DELAY", "queueDelay": 4}
COUNT = {"type": "REQUEST_COUNT", "requestCount": 4}
IN_THE_CONSOLE: dict[str, Json] = {
    "minimal": {"type": "QUEUE", "image": IMAGE, "gpu": GPU, "scaling": DELAY},
    "by-count": {"type": "QUEUE", "image": IMAGE, "gpu": GPU, "scaling": COUNT, "workers": {"max": 2}},
    "full": {
        "type": "QUEUE", "image": IMAGE, "args": "--x 1", "disk": 30, "env": {"A": "1"}, "ports": ["8000/http"], "scaling": DELAY,
        "gpu": {"pools": ["AMPERE_24", "ADA_24"], "count": 2, "excludedTypes": ["NVIDIA L4"], "minCudaVersion": "12.4"},
        "workers": {"min": 0, "max": 4, "idleTimeout": 30}, "timeout": 900_000, "flashboot": "FLASHBOOT", "dataCenterIds": ["EU-RO-1"],
    },
    "on-cpu": {"type": "QUEUE", "image": IMAGE, "cpu": [{"id": "cpu3c", "vcpuCount": 2}], "scaling": DELAY},
    "balanced": {"type": "LOAD_BALANCER", "image": IMAGE, "gpu": GPU, "scaling": COUNT, "ports": ["8000/http"]},
}  # fmt: skip


def imported(site: Site, *resources: tuple[str, str, str]) -> Done:
    """`pulumi import` of (kind, name, id). Without code: the language host that is built here cannot write it."""
    listed = [{"type": f"runpodv2:index:{kind}", "name": name, "id": found} for kind, name, found in resources]
    file = site.folder / "import.json"
    file.write_text(json.dumps({"resources": listed}))
    return site.project.run(
        "import", "--file", str(file), "--generate-code=false", "--protect=false", "--yes", "--skip-preview", "--stack", site.stack
    )


def test_what_was_made_in_the_console_is_imported_by_id_and_the_preview_after_it_is_clean(site: Site, cloud: Cloud) -> None:
    found = {name: cloud.rest("POST", "serverless", {"name": name, **body})["id"] for name, body in IN_THE_CONSOLE.items()}
    template = cloud.rest("POST", "templates", {"name": "batch", "image": IMAGE, "serverless": True})["id"]
    disk = cloud.rest("POST", "network-volumes", {"name": "disk", "size": 50, "dataCenter": "EU-RO-1"})["id"]
    before = {kind: cloud.live(kind) for kind in cloud.LISTS}

    done = imported(
        site, *(("Endpoint", name, endpoint_id) for name, endpoint_id in found.items()), ("Template", "batch", template),
        ("NetworkVolume", "disk", disk),
    )  # fmt: skip
    assert done.ok, done.stdout + done.stderr
    site.declare(
        *(item("Endpoint", name, {"name": name, **body}) for name, body in IN_THE_CONSOLE.items()),
        item("Template", "batch", {"name": "batch", "image": IMAGE, "serverless": True}),
        volume("disk", size=50),
    )
    site.clean()
    site.clean(refresh=True)
    site.up()
    assert {kind: cloud.live(kind) for kind in cloud.LISTS} == before, "taking over changed nothing"

    changed = {**IN_THE_CONSOLE["minimal"], "workers": {"max": 7}}
    site.declare(
        *(item("Endpoint", name, {"name": name, **(changed if name == "minimal" else body)}) for name, body in IN_THE_CONSOLE.items()),
        item("Template", "batch", {"name": "batch", "image": IMAGE, "serverless": True}),
        volume("disk", size=50),
    )
    site.up()
    live = cloud.live("serverless")
    assert (live["minimal"]["id"], live["minimal"]["workers"]["max"]) == (found["minimal"], 7)
    site.destroy()
    assert cloud.everything()["serverless"] == set()


def test_a_registry_credential_cannot_be_imported_and_that_is_said(site: Site, cloud: Cloud) -> None:
    found = cloud.rest("POST", "registries", {"name": "mine", "username": "me", "password": "p"})["id"]
    done = imported(site, ("RegistryCredential", "mine", found))
    assert not done.ok
    said = done.stdout + done.stderr
    assert "password" in said or "cannot be imported" in said, said
    assert "Traceback" not in said
    assert set(cloud.live("registries")) == {"mine"}


def test_an_id_that_does_not_exist_is_named(site: Site) -> None:
    done = imported(site, ("Endpoint", "gen", "nosuchid"))
    assert not done.ok
    said = done.stdout + done.stderr
    assert "gen" in said
    assert "Traceback" not in said
    assert site.resources == {}


def test_an_endpoint_of_the_console_is_found_by_name(site: Site, cloud: Cloud) -> None:
    made = cloud.rest("POST", "serverless", {"name": "shared", **IN_THE_CONSOLE["minimal"]})["id"]
    site.declare(
        item("getEndpoint", "found", {"name": "shared"}), item("getGpus", "gpus", {}), item("getDataCenters", "places", {}), endpoint("gen")
    )
    site.up()
    outputs = site.project.outputs("dev")
    assert outputs["found"]["id"] == made
    assert "AMPERE_24" in json.dumps(outputs["gpus"])
    assert "EU-RO-1" in json.dumps(outputs["places"])
    site.destroy()
    assert set(cloud.live("serverless")) == {"shared"}, "what was only looked up stays"
