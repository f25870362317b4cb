"""The real engine, when something goes wrong between it and RunPod: whatever it is, nothing is made twice, and the next `up` mends it."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable

import pytest

from emulator.faults import DROP, PASS, Action, Message
from infra.provider.resources.endpoint import MARKER, marker_of
from infra.review import engine
from tests.infra.engine.kit import IMAGE, NEXT_IMAGE, Cloud, Json, Site, endpoint, item, kill, volume

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]

Fault = Callable[[Message], Action]


class Once:
    """A fault that happens to the first so many messages of one kind that make an endpoint (or do what `operation` says), and how often it
    did."""

    def __init__(self, kind: str, action: Action, times: int = 1, operation: str = "POST /v2/serverless") -> None:
        self.kind, self.action, self.left, self.happened, self.operation = kind, action, times, 0, operation

    def __call__(self, message: Message) -> Action:
        if self.left and message.kind == self.kind and message.operation == self.operation:
            self.left -= 1
            self.happened += 1
            return self.action
        return PASS


def creates(message: Message) -> bool:
    """Whether it is a POST of an endpoint, or its answer."""
    return message.operation == "POST /v2/serverless"


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        pytest.param(Once("request", Action(answer=429), times=2), "a rate limit is waited for", id="429"),
        pytest.param(Once("response", Action(answer=500)), "a 500 after it was made: it is found", id="500-made"),
        pytest.param(Once("request", Action(answer=500)), "a 500 before anything was made", id="500-not-made"),
        pytest.param(Once("response", DROP), "a connection cut after it was made: it is found", id="cut-made"),
        pytest.param(Once("request", DROP), "a connection cut before anything was made", id="cut-not-made"),
    ],
)
def test_a_create_that_met_trouble_makes_one_endpoint(site: Site, cloud: Cloud, fault: Once, what: str) -> None:
    site.declare(endpoint("gen"), endpoint("other", opts={"depends_on": ["gen"]}))
    with cloud.hooked(fault):
        site.up()
    assert fault.happened >= 1, what
    assert fault.left == 0, "the fault did happen"
    assert set(cloud.live("serverless")) == {"gen", "other"}
    assert site.id("gen") == cloud.live("serverless")["gen"]["id"]
    site.clean(refresh=True)


def test_an_answer_that_does_not_come_in_time_makes_one_endpoint(site: Site, cloud: Cloud) -> None:
    fault = Once("response", Action(delay_s=40.0, drop=True))  # the client gives an attempt 30 s
    site.declare(endpoint("gen"))
    with cloud.hooked(fault):
        site.up()
    assert fault.left == 0
    assert site.id("gen") == cloud.live("serverless")["gen"]["id"]
    site.clean(refresh=True)


def test_a_runpod_that_is_down_fails_the_up_in_one_sentence_and_the_next_one_goes_on(site: Site, cloud: Cloud) -> None:
    def down(message: Message) -> Action:
        return Action(answer=503) if creates(message) and message.kind == "request" else PASS

    site.declare(volume("data"), endpoint("gen"))
    with cloud.hooked(down):
        said = site.failing_up()
    assert "503" in said
    assert "Traceback" not in said
    assert cloud.key not in said
    assert cloud.everything()["serverless"] == set()
    site.up()
    assert set(cloud.live("serverless")) == {"gen"}
    site.clean(refresh=True)


def others() -> list[Json]:
    """One of each that is no endpoint."""
    return [
        volume("data"),
        item("RegistryCredential", "hub", {"name": "hub", "username": "me", "password": {"$secret": "hunter2-hunter2"}}),
        item("Template", "batch", {"name": "batch", "image": IMAGE, "serverless": True, "env": {"A": "1"}}),
    ]


OTHERS = {"network-volumes": "data", "registries": "hub", "templates": "batch"}


def all_of(faults: list[Once]) -> Fault:
    def hook(message: Message) -> Action:
        return next((action for fault in faults if (action := fault(message)) != PASS), PASS)

    return hook


@pytest.mark.parametrize(
    ("kind", "action", "times"),
    [
        pytest.param("request", Action(answer=429, retry_after_s=2), 2, id="429"),
        pytest.param("response", Action(answer=500), 1, id="500-made"),
        pytest.param("request", Action(answer=500), 1, id="500-not-made"),
        pytest.param("response", DROP, 1, id="cut-made"),
        pytest.param("request", DROP, 1, id="cut-not-made"),
    ],
)
def test_trouble_makes_no_second_volume_template_or_registry_credential(
    site: Site, cloud: Cloud, kind: str, action: Action, times: int
) -> None:
    site.declare(*others())
    faults = [Once(kind, action, times, f"POST /v2/{path}") for path in OTHERS]
    with cloud.hooked(all_of(faults)):
        site.up()
    assert [fault.left for fault in faults] == [0, 0, 0], "every one of them met it"
    for path, name in OTHERS.items():
        assert set(cloud.live(path)) == {name}  # fails if it is there twice
        assert site.id(name) == cloud.live(path)[name]["id"]
    site.clean(refresh=True)

    looks = [Once("request", action, times, f"GET /v2/{path}/{{id}}") for path in OTHERS]
    with cloud.hooked(all_of(looks)):
        site.clean(refresh=True)
    assert [look.left for look in looks] == [0, 0, 0]

    site.declare(volume("data", size=30), *others()[1:2], item("Template", "batch", {**others()[2]["props"], "image": NEXT_IMAGE}))
    changes = [Once(kind, action, times, f"PATCH /v2/{path}/{{id}}") for path in ("network-volumes", "templates")]
    with cloud.hooked(all_of(changes)):
        site.up()
    assert [change.left for change in changes] == [0, 0]
    assert cloud.live("network-volumes")["data"]["size"] == 30
    assert cloud.live("templates")["batch"]["image"] == NEXT_IMAGE
    site.clean(refresh=True)

    ends = [Once(kind, action, times, f"DELETE /v2/{path}/{{id}}") for path in OTHERS]
    with cloud.hooked(all_of(ends)):
        site.destroy()
    assert [end.left for end in ends] == [0, 0, 0]
    assert {name: found for name, found in cloud.everything().items() if found} == {}
    assert site.resources == {}


def test_a_runpod_that_makes_nothing_fails_the_up_and_the_next_one_makes_each_once(site: Site, cloud: Cloud) -> None:
    def down(message: Message) -> Action:
        made = message.kind == "request" and message.operation.startswith("POST /v2/")
        return Action(answer=503) if made else PASS

    site.declare(*others())
    with cloud.hooked(down):
        said = site.failing_up()
    assert "503" in said
    for secret in ("Traceback", cloud.key, "hunter2-hunter2"):
        assert secret not in said
    assert {name: found for name, found in cloud.everything().items() if found} == {}
    assert site.resources == {}
    site.up()
    assert {path: set(cloud.live(path)) for path in OTHERS} == {path: {name} for path, name in OTHERS.items()}
    site.clean(refresh=True)


def test_answers_without_an_id_are_looked_up(site: Site, cloud: Cloud) -> None:
    site.declare(*others(), endpoint("gen"))
    made = {**OTHERS, "serverless": "gen"}
    faults = [Once("response", Action(answer=200), 1, f"POST /v2/{path}") for path in made]
    with cloud.hooked(all_of(faults)):
        site.up()
    assert [fault.left for fault in faults] == [0, 0, 0, 0]
    assert {path: set(cloud.live(path)) for path in made} == {path: {name} for path, name in made.items()}
    assert {name: site.id(name) for name in made.values()} == {name: cloud.live(path)[name]["id"] for path, name in made.items()}
    site.clean(refresh=True)


def half_made(cloud: Cloud) -> str:
    """What a killed `up` leaves behind: an endpoint with the resource's marker, and not yet as it is declared now."""
    urn = "urn:pulumi:dev::declared::runpodv2:index:Endpoint::gen"
    props = endpoint("gen", workers={"min": 0, "max": 2, "idleTimeout": 5})["props"]
    return str(cloud.rest("POST", "serverless", {**props, "env": {MARKER: marker_of(urn)}})["id"])


@pytest.mark.parametrize("again", [False, True], ids=["next-up-works", "next-up-fails-too"])
def test_a_create_that_half_succeeded_keeps_its_id_and_the_next_up_completes_it(site: Site, cloud: Cloud, again: bool) -> None:
    orphan = half_made(cloud)
    site.declare(endpoint("gen", image=NEXT_IMAGE), endpoint("after", opts={"depends_on": ["gen"]}))

    def refuse(message: Message) -> Action:
        return Action(answer=422) if message.kind == "request" and message.operation.startswith("PATCH /v2/serverless") else PASS

    with cloud.hooked(refuse):
        said = site.failing_up()
        assert f"{orphan} was found again, but could not be updated" in said
        assert "The next `pulumi up` goes on from here." in said
        assert site.id("gen") == orphan
        assert site.resources["gen"]["initErrors"]
        assert set(cloud.live("serverless")) == {"gen"}
        if again:
            assert "422" in site.failing_up()
            assert site.id("gen") == orphan
    site.up()
    live = cloud.live("serverless")
    assert (live["gen"]["id"], live["gen"]["image"], live["gen"]["workers"]["max"]) == (orphan, NEXT_IMAGE, 1)
    assert set(live) == {"gen", "after"}
    assert "initErrors" not in site.resources["gen"]
    site.clean(refresh=True)


def test_a_half_made_endpoint_can_be_destroyed(site: Site, cloud: Cloud) -> None:
    half_made(cloud)
    site.declare(endpoint("gen"))

    def refuse(message: Message) -> Action:
        return Action(answer=422) if message.kind == "request" and message.operation.startswith("PATCH /v2/serverless") else PASS

    with cloud.hooked(refuse):
        site.failing_up()
        site.destroy()
    assert cloud.everything()["serverless"] == set()


class Killer:
    """Kills the engine's process (or all that it has started, too) when a message passes that `when` names, and drops that message."""

    def __init__(self, when: Fault, *, everything: bool = False) -> None:
        self.when = when
        self.everything = everything
        self.process: subprocess.Popen[bytes] | None = None
        self.killed = threading.Event()

    def started(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def __call__(self, message: Message) -> Action:
        if not self.killed.is_set() and self.when(message) != PASS and self.process is not None:
            self.killed.set()
            kill(*(engine.session_members(self.process.pid) if self.everything else (self.process.pid,)))
            return DROP
        return PASS


def killed_up(site: Site, cloud: Cloud, when: Fault, *, everything: bool) -> engine.Done:
    """An `up` whose engine (and program and provider) is killed at a message."""
    killer = Killer(when, everything=everything)
    arguments = ["up", "--yes", "--skip-preview", "--stack", site.stack]
    with cloud.hooked(killer):
        done = engine.run(arguments, cwd=site.folder, env=site.env(), timeout_s=120, on_start=killer.started)
    assert killer.killed.is_set()
    assert done.returncode == 128 + signal.SIGKILL
    return done


def chain() -> list[Json]:
    return [
        volume("data"),
        endpoint("a", opts={"depends_on": ["data"]}),
        endpoint("b", opts={"depends_on": ["a"]}),
        endpoint("c", opts={"depends_on": ["b"]}),
    ]


def answer_number(number: int, kind: str = "response") -> Fault:
    """Names the answer to (or the request of) the so-manieth create."""
    seen = 0

    def when(message: Message) -> Action:
        nonlocal seen
        if message.kind == kind and creates(message):
            seen += 1
            return DROP if seen == number else PASS
        return PASS

    return when


@pytest.mark.parametrize("everything", [pytest.param(False, id="engine"), pytest.param(True, id="everything")])
def test_an_up_that_was_killed_half_way_is_completed_by_the_next_and_nothing_is_made_twice(
    site: Site, cloud: Cloud, everything: bool
) -> None:
    site.declare(*chain())
    killed_up(site, cloud, answer_number(2), everything=everything)
    assert set(cloud.live("serverless")) == {"a", "b"}, "b was made, and nobody was told"

    blocked = site.project.up("dev")
    assert not blocked.ok
    with pytest.raises(engine.EngineError, match="`pulumi cancel` frees it"):
        blocked.expect()
    assert site.project.cancel("dev").ok
    orphan = cloud.live("serverless")["b"]["id"]
    site.up()
    live = cloud.live("serverless")  # fails if a name is there twice
    assert set(live) == {"a", "b", "c"}
    assert live["b"]["id"] == orphan == site.id("b")
    site.clean(refresh=True)
    site.destroy()
    assert cloud.everything()["serverless"] == set()


def test_a_destroy_that_was_killed_half_way_is_completed_by_the_next(site: Site, cloud: Cloud) -> None:
    site.declare(*chain())
    site.up()

    def when(message: Message) -> Action:
        return DROP if message.kind == "response" and message.operation.startswith("DELETE /v2/serverless") else PASS

    killer = Killer(when)
    with cloud.hooked(killer):
        done = engine.run(
            ["destroy", "--yes", "--skip-preview", "--stack", "dev"],
            cwd=site.folder,
            env=site.env(),
            timeout_s=120,
            on_start=killer.started,
        )
    assert done.returncode == 128 + signal.SIGKILL
    assert set(cloud.live("serverless")) == {"a", "b"}
    assert site.project.cancel("dev").ok
    site.destroy()
    assert cloud.everything() == {"serverless": set(), "templates": set(), "network-volumes": set(), "registries": set()}


def test_an_interrupted_up_writes_down_what_it_has_done(site: Site, cloud: Cloud) -> None:
    """Ctrl-C once: the engine finishes what it is at, records it, and needs no `cancel`."""
    site.declare(*chain())
    processes: list[subprocess.Popen[bytes]] = []
    when = answer_number(1)

    def interrupt(message: Message) -> Action:
        if when(message) != PASS:
            processes[0].send_signal(signal.SIGINT)
        return PASS

    with cloud.hooked(interrupt):
        done = engine.run(
            ["up", "--yes", "--skip-preview", "--stack", "dev"], cwd=site.folder, env=site.env(), timeout_s=120, on_start=processes.append
        )
    assert not done.ok
    assert not done.timed_out
    assert site.id("a") == cloud.live("serverless")["a"]["id"]
    site.up()
    assert set(cloud.live("serverless")) == {"a", "b", "c"}


def test_an_update_that_met_a_cut_connection_is_done_once_and_whole(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen"))
    site.up()
    site.declare(endpoint("gen", image=NEXT_IMAGE, timeout=900_000))
    cut: list[Message] = []

    def fault(message: Message) -> Action:
        if message.kind == "response" and message.operation.startswith("PATCH /v2/serverless") and not cut:
            cut.append(message)
            return DROP
        return PASS

    with cloud.hooked(fault):
        site.up()
    assert cut
    live = cloud.live("serverless")["gen"]
    assert (live["image"], live["timeout"]) == (NEXT_IMAGE, 900_000)
    assert len(cloud.rest("GET", f"serverless/{live['id']}/releases")["releases"]) <= 2
    assert live["image"] != IMAGE
    site.clean(refresh=True)
