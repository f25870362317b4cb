"""The real engine against people: two at once on one stack, a stack on two backends, a state that was edited by hand, a wrong account."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from emulator.faults import PASS, Action, Message
from infra.review import engine
from infra.review.engine import Done
from tests.infra.engine.kit import Cloud, Json, Site, endpoint, eventually, item, ops_of, volume

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]

REGISTRY = item("RegistryCredential", "hub", {"name": "hub", "username": "me", "password": {"$secret": "hunter2-hunter2"}})
TEMPLATE = item("Template", "batch", {"name": "batch", "image": "img@sha256:1", "serverless": True})


class Held:
    """Holds the first creation of an endpoint until it is let go."""

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()

    async def __call__(self, message: Message) -> Action:
        if message.kind == "request" and message.operation == "POST /v2/serverless":
            self.there.set()
            while not self.go.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # it is let go in another thread
        return PASS


@contextmanager
def going_up(site: Site) -> Iterator[tuple[Held, list[Done]]]:
    """An `up` that has begun and is held in the middle; its end is in the list after the block."""
    held, ended = Held(), list[Done]()
    thread = threading.Thread(target=lambda: ended.append(site.project.up(site.stack)))
    with site.cloud.hooked(held):  # type: ignore[arg-type]
        thread.start()
        try:
            assert held.there.wait(60)
            yield held, ended
        finally:
            held.go.set()
            thread.join(120)
    assert ended


def test_two_ups_at_once_on_one_stack_are_one_and_a_clear_refusal(site: Site, cloud: Cloud) -> None:
    site.declare(volume("data"), endpoint("gen"))
    with going_up(site) as (_, ended):
        eventually(lambda: cloud.live("network-volumes"), "the first up has made the volume")
        for second in (site.project.up("dev"), site.project.destroy("dev"), site.project.refresh("dev")):
            assert not second.ok
            assert "the stack is currently locked by 1 lock(s)" in second.stdout + second.stderr
            assert "Traceback" not in second.stdout + second.stderr
            with pytest.raises(engine.EngineError, match="Nobody else is at work on it"):
                second.expect()
    assert ended[0].ok, ended[0].stdout
    assert set(cloud.live("serverless")) == {"gen"}
    assert set(cloud.live("network-volumes")) == {"data"}
    assert site.id("gen") == cloud.live("serverless")["gen"]["id"]
    site.clean(refresh=True)


def test_two_ups_that_begin_in_one_moment_make_nothing_twice(site: Site, cloud: Cloud) -> None:
    site.declare(volume("data"), endpoint("gen"))
    ended: list[Done] = []
    threads = [threading.Thread(target=lambda: ended.append(site.project.up("dev"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ended) == 2
    for done in ended:
        assert done.ok or "currently locked" in done.stdout + done.stderr, done.stdout + done.stderr
    site.up()  # both may have met the other's lock
    assert {name: set(found) for name, found in cloud.everything().items() if found} == {"serverless": {"gen"}, "network-volumes": {"data"}}
    site.clean(refresh=True)


def test_a_second_backend_of_the_same_stack_takes_the_endpoint_over_and_says_so(sites: Callable[..., Site], cloud: Cloud) -> None:
    mine, theirs = sites("mine"), sites("theirs")
    for site in (mine, theirs):
        site.declare(endpoint("gen"))
    mine.up()
    said = theirs.up().stdout
    assert "was taken over" in said
    assert "kept in another state backend: then both have it now" in said
    assert mine.id("gen") == theirs.id("gen") == cloud.live("serverless")["gen"]["id"]
    theirs.destroy()
    assert cloud.live("serverless") == {}
    mine.up("--refresh", "--run-program")  # the refresh sees that it is gone
    assert mine.id("gen") == cloud.live("serverless")["gen"]["id"]
    said = theirs.project.up("dev").stdout
    assert "was taken over" in said
    assert len(cloud.live("serverless")) == 1


# --- a state that was edited by hand -------------------------------------------------------------------------------------------------


def edit(site: Site, name: str, change: Callable[[Json], object]) -> None:
    """As `pulumi stack export`, an editor and `pulumi stack import` do it."""
    state = site.project.state(site.stack)
    [found] = [r for r in state["deployment"]["resources"] if r["urn"].endswith(f"::{name}")]
    change(found)
    path = site.folder / "edited.json"
    path.write_text(json.dumps(state))
    assert site.project.run("stack", "import", "--stack", site.stack, "--file", str(path)).ok


def with_id(resource_id: str) -> Callable[[Json], object]:
    return lambda found: found.update(id=resource_id)


def by_hand(cloud: Cloud, kind: str, body: Json) -> str:
    return str(cloud.rest("POST", kind, body)["id"])


FOREIGN: dict[str, tuple[str, Json, Json]] = {
    "gen": ("serverless", endpoint("gen"), endpoint("foreign")["props"]),
    "data": ("network-volumes", volume("data"), volume("foreign")["props"]),
    "batch": ("templates", TEMPLATE, {**TEMPLATE["props"], "name": "foreign"}),
    "hub": ("registries", REGISTRY, {"name": "foreign", "username": "u", "password": "p"}),
}


def test_the_id_of_somebody_elses_resource_in_the_state_touches_nothing_of_theirs(site: Site, cloud: Cloud) -> None:
    site.declare(*(declared for _, declared, _ in FOREIGN.values()))
    site.up()
    own = {name: site.id(name) for name in FOREIGN}
    for name, (kind, _, body) in FOREIGN.items():
        foreign = by_hand(cloud, kind, body)
        edit(site, name, with_id(foreign))
    before = {kind: cloud.live(kind) for kind in cloud.LISTS}

    with cloud.heard() as heard:
        for done in (
            site.project.up("dev"),
            site.project.up("dev", "--refresh", "--run-program"),
            site.project.refresh("dev"),
            site.project.destroy("dev"),
        ):
            said = done.stdout + done.stderr
            assert not done.ok, said
            assert "is what it was made or imported with. RunPod was asked nothing." in said
            assert "Traceback" not in said
            assert "a bug" not in said
    assert [message.operation for message in heard] == []
    assert {kind: cloud.live(kind) for kind in cloud.LISTS} == before

    for name, resource_id in own.items():  # as the message says
        edit(site, name, with_id(resource_id))
    site.clean(refresh=True)
    site.destroy()
    assert {name for found in cloud.everything().values() for name in found} == {"foreign"}


def test_an_id_that_does_not_exist_loses_no_endpoint(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen"))
    site.up()
    own = site.id("gen")
    edit(site, "gen", with_id("nobody"))
    assert f"{own} is what it was made or imported with" in site.failing_up()
    assert not site.project.destroy("dev").ok, "it would say that it is deleted, and the endpoint would go on"
    assert set(cloud.live("serverless")) == {"gen"}

    def drop(found: Json) -> None:
        found.update(id="nobody")
        found["outputs"].pop("__id", None)  # a state of before this note was kept

    edit(site, "gen", drop)
    site.declare(endpoint("gen", timeout=900_000))
    said = site.failing_up()
    assert "nobody does not exist any more, or belongs to another account" in said
    assert "pulumi up --refresh" in said
    site.up("--refresh", "--run-program")
    assert site.id("gen") == own, "the marker told whose it is"
    assert cloud.live("serverless")["gen"]["timeout"] == 900_000
    site.clean(refresh=True)


def test_a_state_of_before_the_id_was_kept_twice_is_no_difference(site: Site) -> None:
    site.declare(endpoint("gen"), volume("data"))
    site.up()
    for name in ("gen", "data"):
        edit(site, name, lambda found: found["outputs"].pop("__id"))
    site.clean()
    site.clean(refresh=True)
    assert site.project.drifted("dev").ok
    assert site.project.refresh("dev").ok
    assert site.resources["gen"]["outputs"]["__id"] == site.id("gen")


def test_altered_inputs_in_the_state_are_set_right(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen"), volume("data"))
    site.up()

    def alter(found: Json) -> None:
        found["inputs"]["image"] = "somebody/else:latest"
        found["inputs"]["workers"]["max"] = 99
        found["inputs"]["unheardOf"] = {"a": [1]}
        found["outputs"]["timeout"] = 1

    edit(site, "gen", alter)
    edit(site, "data", lambda found: found["inputs"].update(size="big"))
    live = cloud.live("serverless")["gen"]
    assert ops_of(site.preview()) == {"gen": {"update"}, "data": {"update"}}
    site.up()
    assert cloud.live("serverless")["gen"] == live
    assert site.resources["gen"]["outputs"]["timeout"] == 600_000
    site.clean(refresh=True)


@pytest.mark.parametrize(
    ("name", "odd"),
    [("workers", "many"), ("gpu", ["ADA_24"]), ("gpu", {"pools": "ADA_24"}), ("env", "A=1"), ("dataCenterIds", {"EU-RO-1": True})],
    ids=["workers", "gpu", "pools", "env", "data-centers"],
)
def test_a_property_of_another_form_in_the_state_is_named_and_mended_by_a_refresh(site: Site, cloud: Cloud, name: str, odd: Any) -> None:
    site.declare(endpoint("gen", env={"A": "1"}))
    site.up()
    live = cloud.live("serverless")["gen"]

    def alter(found: Json) -> None:
        found["inputs"][name] = odd
        found["outputs"][name] = odd

    edit(site, "gen", alter)
    said = site.failing_up()
    assert f"gen: the state holds {name}" in said
    assert "`pulumi refresh` writes down what is live" in said
    assert "Traceback" not in said
    refreshed = site.project.refresh("dev")
    assert refreshed.ok, refreshed.stdout + refreshed.stderr
    site.up()
    assert cloud.live("serverless")["gen"] == live
    site.clean(refresh=True)


# --- the account ---------------------------------------------------------------------------------------------------------------------


def test_an_account_whose_key_is_not_known_yet_is_not_taken_from_the_environment(site: Site, cloud: Cloud) -> None:
    account = item("Provider", "other", {"apiKey": {"$id": "data"}})  # an id is known after the up, as a key from a vault may be
    site.declare(volume("data"), account, item("getGpus", "gpus", {}, provider="other"), endpoint("gen", opts={"provider": "other"}))
    with cloud.heard() as heard:
        preview = site.preview()
    assert not preview.failed, preview.errors
    assert ops_of(preview) == {"data": {"create"}, "gen": {"create"}}
    assert heard == []
    site.declare(volume("data"), account, endpoint("gen", opts={"provider": "other"}))
    said = site.failing_up()
    assert "RunPod answered 401" in said  # it was asked with the key that was given, which is none
    assert cloud.everything()["serverless"] == set()


def test_a_destroy_that_finds_no_endpoint_asks_whose_key_it_has(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen"))
    site.up()
    cloud.rest("DELETE", f"serverless/{site.id('gen')}")
    said = site.project.destroy("dev")
    assert said.ok
    assert "was not there any more. If nobody deleted it: is this API key of the account that has it?" in said.stdout
