"""The real engine: a stack from its first preview to its end, and what somebody else did to it meanwhile."""

from __future__ import annotations

import pytest

from tests.infra.engine.kit import IMAGE, NEXT_IMAGE, Cloud, Json, Site, endpoint, item, ops_of, step_of, volume

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]

DAY_S = 86_400.0


def stack() -> list[Json]:
    """One of each."""
    return [
        volume("data"),
        item("RegistryCredential", "registry", {"name": "registry", "username": "me", "password": {"$secret": "hunter2-hunter2"}}),
        item("Template", "batch", {"name": "batch", "image": IMAGE, "serverless": True, "env": {"A": "1"}}),
        endpoint(
            "gen",
            networkVolumes=[{"$id": "data"}],
            dataCenterIds=["EU-RO-1"],
            registry={"$id": "registry"},
            workers={"min": 0, "max": 5, "idleTimeout": 5},
            env={"MODEL": "m", "TOKEN": {"$secret": "a secret token"}},
        ),
        endpoint("cpu", drop=("gpu",), cpu=[{"id": "cpu3c", "vcpuCount": 2}]),
        endpoint(
            "chat",
            type="LOAD_BALANCER",
            scaling={"type": "REQUEST_COUNT", "requestCount": 4},
            ports=["8000/http"],
            env={"PORT": "8000", "PORT_HEALTH": "8000"},
        ),
    ]


NAMES = {"data", "registry", "batch", "gen", "cpu", "chat"}


def test_a_stack_from_its_first_preview_to_its_end(site: Site, cloud: Cloud) -> None:
    site.declare(*stack(), gen={"$id": "gen"}, urls={"$out": ["gen", "type"]})
    with cloud.heard() as heard:
        preview = site.preview(key=False)
    assert not preview.failed, preview.errors
    assert ops_of(preview) == {name: {"create"} for name in NAMES}
    assert heard == [], "a preview asks nobody, and needs no key"

    said = site.up().stdout
    assert "a secret token" not in said
    assert cloud.everything() == {
        "serverless": {"gen", "cpu", "chat"}, "templates": {"batch"}, "network-volumes": {"data"}, "registries": {"registry"},
    }  # fmt: skip
    live = cloud.live("serverless")
    assert live["gen"]["networkVolumes"] == [cloud.live("network-volumes")["data"]["id"]]
    assert live["gen"]["env"]["TOKEN"] == "a secret token"
    assert (live["gen"]["timeout"], live["gen"]["workers"]["max"]) == (600_000, 5)
    assert site.project.outputs("dev") == {"gen": live["gen"]["id"], "urls": "QUEUE"}
    site.clean()
    site.clean(refresh=True)

    with cloud.heard() as heard:
        site.destroy()
    assert cloud.everything() == {"serverless": set(), "templates": set(), "network-volumes": set(), "registries": set()}
    assert site.resources == {}


def test_what_somebody_did_by_hand_is_seen_and_mended(site: Site, cloud: Cloud) -> None:
    site.declare(*stack())
    site.up()
    was = cloud.live("serverless")
    gen, chat = was["gen"]["id"], was["chat"]["id"]

    # a console edit, a deletion by hand of one endpoint and of the volume's name
    cloud.rest("PATCH", f"serverless/{gen}", {"image": NEXT_IMAGE, "timeout": 0, "env": {"MODEL": "other"}})
    cloud.rest("PATCH", f"network-volumes/{cloud.live('network-volumes')['data']['id']}", {"name": "renamed"})
    cloud.rest("DELETE", f"serverless/{chat}")

    assert site.preview("--expect-no-changes").done.ok, "without --refresh Pulumi compares with what it remembers"
    assert site.project.drifted("dev").changed
    preview = site.preview("--expect-no-changes", refresh=True)
    assert preview.done.changed
    assert ops_of(preview) == {"gen": {"update"}, "data": {"update"}, "chat": {"create"}}
    assert {key.split("[")[0].split(".")[0] for key in step_of(preview, "gen", "update")["detailedDiff"]} == {"image", "timeout", "env"}
    assert set(step_of(preview, "data", "update")["detailedDiff"]) == {"name"}
    assert "a secret token" not in preview.done.stdout

    site.up("--refresh", "--run-program")
    now = cloud.live("serverless")
    assert (now["gen"]["image"], now["gen"]["timeout"], now["gen"]["env"]) == (IMAGE, 600_000, was["gen"]["env"])
    assert now["gen"]["id"] == gen, "mended in place"
    assert now["chat"]["id"] != chat
    assert set(cloud.live("network-volumes")) == {"data"}
    site.clean(refresh=True)


def test_the_idle_rules_cut_is_seen_and_mended(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen", workers={"min": 0, "max": 5, "idleTimeout": 5}))
    site.up()
    cloud.leap(3 * DAY_S + 60)
    cloud.until_live("gen", lambda live: live["workers"]["max"] == 2, "RunPod's idle rule has cut workers.max")

    preview = site.preview("--expect-no-changes", refresh=True)
    assert preview.done.changed
    assert set(step_of(preview, "gen", "update")["detailedDiff"]) == {"workers.max"}
    site.up("--refresh", "--run-program")
    assert cloud.live("serverless")["gen"]["workers"]["max"] == 5
    site.clean(refresh=True)

    cloud.leap(7 * DAY_S + 60)
    cloud.until_live("gen", lambda live: live["workers"]["max"] == 0, "after a week it is 0")
    assert site.project.drifted("dev").changed
    site.up("--refresh", "--run-program")
    assert cloud.live("serverless")["gen"]["workers"]["max"] == 5


def test_a_plain_refresh_writes_down_what_is_live_and_the_next_up_mends_it(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen"), endpoint("gone"))
    site.up()
    live = cloud.live("serverless")
    cloud.rest("PATCH", f"serverless/{live['gen']['id']}", {"workers": {"max": 0}})
    cloud.rest("DELETE", f"serverless/{live['gone']['id']}")
    assert site.project.refresh("dev").ok
    assert set(site.resources) == {"gen"}
    assert site.resources["gen"]["outputs"]["workers"]["max"] == 0
    preview = site.preview()
    assert ops_of(preview) == {"gen": {"update"}, "gone": {"create"}}
    site.up()
    assert {name: found["workers"]["max"] for name, found in cloud.live("serverless").items()} == {"gen": 1, "gone": 1}
    site.clean(refresh=True)


def test_what_is_declared_wrong_is_told_at_once_in_the_preview_under_the_users_own_names(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen", workers={"min": 3, "max": 1}, flashboot="FAST", timeout=-1, cpu=[{"id": "cpu3c", "vcpuCount": 3}]))
    preview = site.preview(key=False)
    assert preview.failed
    said = "\n".join(preview.errors) + preview.done.stdout + preview.done.stderr
    for words in ("workers", "flashboot", "timeout", "cpu", "vcpuCount"):
        assert words in said, f"{words} is not named:\n{said}"
    assert "Traceback" not in said
    assert cloud.everything()["serverless"] == set()


def test_what_is_protected_stays(site: Site, cloud: Cloud) -> None:
    protected = {"protect": True}
    site.declare(volume("data", opts=protected), endpoint("gen", opts=protected))
    site.up()
    made = {name: site.id(name) for name in ("data", "gen")}
    done = site.project.destroy("dev")
    assert not done.ok
    assert "protect" in (done.stdout + done.stderr).lower()
    site.declare(volume("data", opts=protected, size=10), endpoint("gen", opts=protected))  # a volume that shrinks would be replaced
    assert "protect" in site.failing_up().lower()
    assert {item["id"] for kind in ("serverless", "network-volumes") for item in cloud.live(kind).values()} == set(made.values())

    assert site.project.run("state", "unprotect", "--all", "--yes", "--stack", "dev").ok
    site.destroy()
    assert cloud.everything()["network-volumes"] == set()
