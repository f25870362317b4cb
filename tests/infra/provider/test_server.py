"""The plugin over gRPC, without the CLI: what the engine asks and gets, against a REST v2 that can be cut, delayed and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from infra.provider.driver import LEFT_BEHIND
from infra.provider.resources import KINDS
from infra.provider.resources.endpoint import MARKER, marker_of
from infra.provider.resources.fields import UNKNOWN
from infra.provider.schema import schema
from tests.infra.provider.cloud import KEY, Cloud, Fault, create_endpoint
from tests.infra.provider.plugin import Engine, Failed, Json, Secret, plain, plugged, secrets_of, urn_of

ENDPOINT, VOLUME = "runpodv2:index:Endpoint", "runpodv2:index:NetworkVolume"
TEMPLATE, REGISTRY = "runpodv2:index:Template", "runpodv2:index:RegistryCredential"
GOOD: Json = {
    "name": "embed",
    "type": "QUEUE",
    "image": "img@sha256:1",
    "gpu": {"pools": ["ADA_24", "AMPERE_24"]},
    "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4},
    "workers": {"max": 5},
    "timeout": 600000,
}
INPUTS: dict[str, Json] = {
    ENDPOINT: GOOD,
    VOLUME: {"name": "models", "size": 50, "dataCenter": "EU-RO-1"},
    TEMPLATE: {"name": "t", "image": "img@sha256:1", "serverless": True},
    REGISTRY: {"name": "hub", "username": "me", "password": "p4ss-never-shown"},
}
CHANGED: dict[str, Json] = {
    ENDPOINT: {**GOOD, "workers": {"max": 6}},
    VOLUME: {**INPUTS[VOLUME], "size": 60},
    TEMPLATE: {**INPUTS[TEMPLATE], "image": "img@sha256:2"},
}
PATHS = {ENDPOINT: "serverless", VOLUME: "network-volumes", TEMPLATE: "templates", REGISTRY: "registries"}
MARK = marker_of(urn_of(ENDPOINT, "embed"))


async def made(engine: Engine, token: str = ENDPOINT, inputs: Json | None = None, name: str = "embed") -> tuple[str, Any, Any]:
    """Check and Create as the engine does them: id, checked inputs, state."""
    checked, failures = await engine.check(token, name, inputs or INPUTS[token])
    assert not failures
    resource_id, state = await engine.create(token, name, checked)
    return resource_id, checked, state


# --- schema, configuration, previews -------------------------------------------------------------------------------------------------


async def test_the_schema_is_served_and_its_references_lead_somewhere(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        served = await engine.schema()
    assert served == schema()
    assert set(served["resources"]) == set(KINDS)
    text = str(served)
    for name in served["types"]:
        assert f"#/types/{name}" in text
    assert served["resources"][REGISTRY]["inputProperties"]["password"]["secret"] is True
    assert served["config"]["variables"]["apiKey"]["secret"] is True


async def test_check_shows_every_failure_and_hides_what_may_be_secret(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        _, failures = await engine.check(ENDPOINT, "embed", {"name": "x", "workers": {"max": -1}, "env": "HF_TOKEN=hush"})
        assert {"type", "image", "gpu", "scaling", "workers.max"} <= set(failures)
        assert failures[""] == "env must be a map of strings"  # a named property would be printed with its value
        _, failures = await engine.check(REGISTRY, "r", {"name": "r", "username": "u", "password": 1234})
        assert list(failures) == [""]


async def test_a_preview_needs_no_key_and_asks_runpod_nothing(cloud: Cloud) -> None:
    async with plugged(cloud, key=None) as engine:
        inputs = {**GOOD, "networkVolumes": [UNKNOWN]}
        checked, failures = await engine.check(ENDPOINT, "embed", inputs)
        assert not failures
        resource_id, state = await engine.create(ENDPOINT, "embed", checked, preview=True)
        assert resource_id == ""
        foretold = plain(state)
        assert foretold["requestUrls"] is UNKNOWN
        assert foretold["networkVolumes"] == [UNKNOWN]
        assert foretold["workers"]["min"] == 0
        old = {**GOOD, "networkVolumes": ["v1"]}
        before = {**old, "requestUrls": {"run": "https://x"}, "createdAt": "then"}
        diff = await engine.diff(ENDPOINT, "embed", "ep1", old, before, checked)
        assert list(diff.detailedDiff) == ["networkVolumes"]
        after = plain(await engine.update(ENDPOINT, "embed", "ep1", old, before, checked, preview=True))
        assert after["requestUrls"] == {"run": "https://x"}
        assert cloud.seen == []
        with pytest.raises(Failed, match="an API key is needed"):
            await engine.create(ENDPOINT, "embed", GOOD)


async def test_several_accounts_are_several_plugins(cloud: Cloud) -> None:
    other = Cloud()
    await other.start()
    try:
        async with plugged(cloud) as first, plugged(cloud) as second:
            await second.configure(apiKey=Secret(KEY), baseUrl=other.base_url)
            await made(first)
            await made(second)
        assert len(cloud.endpoints) == len(other.endpoints) == 1
    finally:
        await other.stop()


# --- create, read, update, delete ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", list(INPUTS))
async def test_a_resource_lives_through_create_refresh_update_and_delete(cloud: Cloud, token: str) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, token)
        assert cloud.things[PATHS[token]][resource_id]
        same = await engine.diff(token, "embed", resource_id, checked, state, checked)
        assert same.changes == same.DIFF_NONE
        read_id, read_state, read_inputs = await engine.read(token, "embed", resource_id, checked, state)
        assert (read_id, plain(read_inputs), plain(read_state)) == (resource_id, plain(checked), plain(state))
        if token in CHANGED:
            new, failures = await engine.check(token, "embed", CHANGED[token], plain(checked))
            assert not failures
            diff = await engine.diff(token, "embed", resource_id, checked, state, new)
            assert diff.changes == diff.DIFF_SOME
            assert not diff.replaces
            cloud.seen.clear()
            state = await engine.update(token, "embed", resource_id, checked, state, new)
            assert [m for m, _, _ in cloud.seen] == ["PATCH"]
            checked = new
        await engine.delete(token, "embed", resource_id, checked, state)
        await engine.delete(token, "embed", resource_id, checked, state)  # gone is done
        assert (await engine.read(token, "embed", resource_id, checked, state))[0] == ""


async def test_create_and_update_send_the_least(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine)
        assert cloud.bodies("POST") == [{**GOOD, "env": {MARKER: MARK}}]
        await engine.update(ENDPOINT, "embed", resource_id, checked, state, {**GOOD, "workers": {"max": 7}})
        assert cloud.bodies("PATCH") == [{"workers": {"max": 7}}]


async def test_an_import_is_whole_and_the_preview_after_it_is_clean(cloud: Cloud) -> None:
    by_hand = {**GOOD, "env": {"A": "1", "HF_TOKEN": "hush"}, "dataCenterIds": ["EU-RO-1"], "flashboot": "FLASHBOOT"}
    cloud.endpoints["console1"] = create_endpoint(by_hand, "console1")
    async with plugged(cloud) as engine:
        resource_id, state, inputs = await engine.read(ENDPOINT, "embed", "console1")
        assert resource_id == "console1"
        assert {("env", "A"), ("env", "HF_TOKEN")} <= secrets_of(inputs) & secrets_of(state)  # nobody said that they are none
        diff = await engine.diff(ENDPOINT, "embed", resource_id, inputs, state, by_hand)
        assert diff.changes == diff.DIFF_NONE
        _, failures = await engine.check(ENDPOINT, "embed", plain(inputs))
        assert not failures
        with pytest.raises(Failed, match="cannot be imported: RunPod never returns"):
            await engine.read(REGISTRY, "hub", "reg1")


async def test_a_refresh_shows_what_was_done_by_hand_and_an_update_mends_it(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine)
        cloud.endpoints[resource_id]["workers"]["max"] = 0
        cloud.endpoints[resource_id]["env"]["BY"] = "hand"
        _, read_state, read_inputs = await engine.read(ENDPOINT, "embed", resource_id, checked, state)
        diff = await engine.diff(ENDPOINT, "embed", resource_id, read_inputs, read_state, checked)
        assert sorted(diff.detailedDiff) == ["env.BY", "workers.max"]
        assert ("env", "BY") in secrets_of(read_inputs) & secrets_of(read_state)
        await engine.update(ENDPOINT, "embed", resource_id, read_inputs, read_state, checked)
        assert cloud.endpoints[resource_id]["workers"]["max"] == 5
        assert cloud.endpoints[resource_id]["env"] == {MARKER: MARK}


async def test_a_changed_template_reaches_its_endpoint_in_the_same_up(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        template_id, template, template_state = await made(engine, TEMPLATE, name="t")
        made_from = {k: v for k, v in GOOD.items() if k != "image"}
        first = {**made_from, "templateId": template_id, "templateHash": plain(template_state)["contentHash"]}
        resource_id, checked, state = await made(engine, ENDPOINT, first)
        assert cloud.endpoints[resource_id]["image"] == "img@sha256:1"
        edited = {**plain(template), "image": "img@sha256:2"}
        foretold = await engine.update(TEMPLATE, "t", template_id, template, template_state, edited, preview=True)
        after = await engine.update(TEMPLATE, "t", template_id, template, template_state, edited)
        assert plain(foretold)["contentHash"] == plain(after)["contentHash"] != plain(template_state)["contentHash"]
        second = {**first, "templateHash": plain(after)["contentHash"]}
        diff = await engine.diff(ENDPOINT, "embed", resource_id, checked, state, second)
        assert list(diff.detailedDiff) == ["templateHash"]
        shown = plain(await engine.update(ENDPOINT, "embed", resource_id, checked, state, second, preview=True))
        assert shown["image"] is UNKNOWN
        state = await engine.update(ENDPOINT, "embed", resource_id, checked, state, second)
        assert plain(state)["image"] == cloud.endpoints[resource_id]["image"] == "img@sha256:2"
        assert cloud.bodies("PATCH")[-1] == {"templateId": template_id, "env": {MARKER: MARK}}


async def test_stating_what_runpod_chose_is_no_change_and_stating_another_replaces(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        volume_id, checked, state = await made(engine, VOLUME)
        assert "type" not in plain(checked)
        same = await engine.diff(VOLUME, "embed", volume_id, checked, state, {**plain(checked), "type": "STANDARD"})
        assert same.changes == same.DIFF_NONE
        other = await engine.diff(VOLUME, "embed", volume_id, checked, state, {**plain(checked), "type": "HIGH_PERFORMANCE"})
        assert list(other.replaces) == ["type"]


async def test_a_timeout_of_the_resource_ends_a_call(cloud: Cloud) -> None:
    cloud.faults = [Fault("GET", "/v2/serverless", do="hang", times=99)]
    async with plugged(cloud, deadline_s=30) as engine:
        with pytest.raises(Failed, match="longer than the resource's customTimeouts allow"):
            await engine.create(ENDPOINT, "embed", GOOD, seconds=0.2)


async def test_a_bound_template_is_deleted_when_its_endpoint_is(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        template_id, checked, state = await made(engine, TEMPLATE)
        cloud.bound[template_id] = 1
        await engine.delete(TEMPLATE, "embed", template_id, checked, state)
        assert cloud.counted("DELETE") == 2
        template_id, checked, state = await made(engine, TEMPLATE, name="other")
        cloud.bound[template_id] = 99
        with pytest.raises(Failed, match="template is in use"):
            await engine.delete(TEMPLATE, "other", template_id, checked, state)


async def test_the_functions_answer_with_prices_and_find_an_endpoint_by_name(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        gpus, _, _ = await engine.invoke("runpodv2:index:getGpus", includeAvailability=True)
        assert gpus["gpus"][0]["price"]["serverless"] == 1.12
        assert "newerThanTheProvider" not in gpus["gpus"][0]
        assert (await engine.invoke("runpodv2:index:getCpus"))[0]["cpus"][0]["id"] == "cpu5c"
        assert (await engine.invoke("runpodv2:index:getDataCenters"))[0]["dataCenters"][0]["id"] == "EU-RO-1"
        resource_id, _, _ = await made(engine, ENDPOINT, {**GOOD, "env": {"HF_TOKEN": "hush"}})
        found, _, secrets = await engine.invoke("runpodv2:index:getEndpoint", name="embed")
        assert found["id"] == resource_id
        assert ("env",) in secrets
        assert MARKER not in found["env"]
        with pytest.raises(Failed, match="there is no endpoint named 'nobody'"):
            await engine.invoke("runpodv2:index:getEndpoint", name="nobody")
        cloud.endpoints["twin"] = {**cloud.endpoints[resource_id], "id": "twin"}
        with pytest.raises(Failed, match="several endpoints are named 'embed'"):
            await engine.invoke("runpodv2:index:getEndpoint", name="embed")
        assert (await engine.invoke("runpodv2:index:getEndpoint"))[1] == {"name": "name is required"}


# --- secrets -------------------------------------------------------------------------------------------------------------------------


async def test_secrets_stay_secret_in_state_and_in_messages(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        env = {"HF_TOKEN": "by-its-name", "PLAIN": "seen", "MINE": Secret("because-marked"), "MY_KEY": "{{ RUNPOD_SECRET_x }}"}
        inputs = {**GOOD, "env": env}
        checked, failures = await engine.check(ENDPOINT, "embed", inputs)
        assert not failures
        assert secrets_of(checked) == {("env", "HF_TOKEN"), ("env", "MINE")}
        resource_id, state = await engine.create(ENDPOINT, "embed", checked)
        assert secrets_of(state) == {("env", "HF_TOKEN"), ("env", "MINE")}
        _, read_state, read_inputs = await engine.read(ENDPOINT, "embed", resource_id, checked, state)
        assert secrets_of(read_state) == secrets_of(read_inputs) == {("env", "HF_TOKEN"), ("env", "MINE")}
        cloud.faults.append(Fault("PATCH", ".*", status=422, detail="env.MINE: because-marked is odd"))
        changed = {**plain(checked), "env": {"MINE": Secret("because-marked")}}
        with pytest.raises(Failed) as failed:
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, changed)
        assert "because-marked" not in str(failed.value)
        assert "[secret] is odd" in str(failed.value)
        resource_id, _, state = await made(engine, REGISTRY, name="hub")
        assert secrets_of(state) == {("password",)}


async def test_marking_a_value_later_rewrites_the_state(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, {**GOOD, "env": {"A": "1"}})
        marked = {**GOOD, "env": {"A": Secret("1")}}
        diff = await engine.diff(ENDPOINT, "embed", resource_id, checked, state, marked)
        assert list(diff.detailedDiff) == ["env.A"]
        state = await engine.update(ENDPOINT, "embed", resource_id, checked, state, marked)
        assert secrets_of(state) == {("env", "A")}


async def test_what_a_template_brings_is_secret(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        template_id, _, template_state = await made(engine, TEMPLATE, {**INPUTS[TEMPLATE], "env": {"PWD": Secret("x")}}, name="t")
        assert ("contentHash",) in secrets_of(template_state)
        made_from = {k: v for k, v in GOOD.items() if k != "image"}
        _, _, state = await made(engine, ENDPOINT, {**made_from, "templateId": template_id, "env": {"OWN": "1"}})
        assert plain(state)["env"] == {"PWD": "x", "OWN": "1"}
        assert secrets_of(state) == {("env", "PWD")}


# --- faults --------------------------------------------------------------------------------------------------------------------------

KINDS_OF_FAULT: dict[str, Callable[[str, str], Fault]] = {
    "429": lambda method, path: Fault(method, path, status=429, headers={"Retry-After": "0"}, times=2),
    "500": lambda method, path: Fault(method, path, status=500),
    "503-after": lambda method, path: Fault(method, path, status=503, when="after"),
    "cut-before": lambda method, path: Fault(method, path, do="cut"),
    "cut-after": lambda method, path: Fault(method, path, do="cut", when="after"),
    "timeout-before": lambda method, path: Fault(method, path, do="hang"),
    "timeout-after": lambda method, path: Fault(method, path, do="hang", when="after"),
}


@pytest.mark.parametrize("fault", list(KINDS_OF_FAULT))
@pytest.mark.parametrize("token", list(INPUTS))
async def test_every_call_outlives_one_fault_and_nothing_is_made_twice(cloud: Cloud, token: str, fault: str) -> None:
    make, collection = KINDS_OF_FAULT[fault], f"/v2/{PATHS[token]}"
    async with plugged(cloud) as engine:
        cloud.faults = [make("GET", collection), make("POST", collection)]
        resource_id, checked, state = await made(engine, token)
        assert list(cloud.things[PATHS[token]]) == [resource_id]
        assert plain(state)["name"] == INPUTS[token]["name"]
        cloud.faults = [make("GET", f"{collection}/.*")]
        assert (await engine.read(token, "embed", resource_id, checked, state))[0] == resource_id
        if token in CHANGED:
            cloud.faults = [make("PATCH", f"{collection}/.*")]
            state = await engine.update(token, "embed", resource_id, checked, state, CHANGED[token])
            diff = await engine.diff(token, "embed", resource_id, CHANGED[token], state, CHANGED[token])
            assert diff.changes == diff.DIFF_NONE
            checked = CHANGED[token]
        cloud.faults = [make("DELETE", f"{collection}/.*")]
        await engine.delete(token, "embed", resource_id, checked, state)
        assert not cloud.things[PATHS[token]]


@pytest.mark.parametrize("fault", ["500", "cut-before", "timeout-before"])
async def test_functions_outlive_a_fault(cloud: Cloud, fault: str) -> None:
    cloud.faults = [KINDS_OF_FAULT[fault]("GET", "/v2/catalog/gpus")]
    async with plugged(cloud) as engine:
        assert (await engine.invoke("runpodv2:index:getGpus"))[0]["gpus"]


@pytest.mark.parametrize("do", ["status", "cut", "hang"])
async def test_a_runpod_that_never_answers_ends_in_one_clear_sentence(cloud: Cloud, do: Any) -> None:
    cloud.faults = [Fault(method, ".*", do=do, times=999) for method in ("GET", "POST", "PATCH", "DELETE")]
    async with plugged(cloud, deadline_s=0.4, attempt_s=0.1) as engine:
        for call in (
            engine.create(ENDPOINT, "embed", GOOD),
            engine.read(ENDPOINT, "embed", "ep1", GOOD, GOOD),
            engine.update(ENDPOINT, "embed", "ep1", GOOD, GOOD, {**GOOD, "timeout": 1}),
            engine.delete(ENDPOINT, "embed", "ep1", GOOD, GOOD),
        ):
            with pytest.raises(Failed, match=r"/v2/serverless.*RunPod did not answer as it should") as failed:
                await call
            assert "Traceback" not in str(failed.value)
            assert KEY not in str(failed.value)
    assert cloud.counted("POST") == 0  # without the list before it, a lost create could not be told from an old one


async def test_a_create_that_never_answers_is_posted_at_most_twice_with_a_look_between(cloud: Cloud) -> None:
    cloud.faults = [Fault("POST", ".*", do="cut", times=999)]
    async with plugged(cloud) as engine:
        with pytest.raises(Failed, match="was looked for afterwards and was not there"):
            await made(engine)
    assert cloud.counted("POST") == 2
    methods = [m for m, _, _ in cloud.seen]
    first, second = [i for i, m in enumerate(methods) if m == "POST"]
    assert "GET" in methods[first:second]


# --- adoption ------------------------------------------------------------------------------------------------------------------------


async def test_an_up_that_was_killed_after_its_post_finds_its_endpoint_in_the_next(cloud: Cloud) -> None:
    cloud.endpoints["orphan"] = create_endpoint({**GOOD, "workers": {"max": 2}, "env": {MARKER: MARK}}, "orphan")
    cloud.endpoints["other"] = create_endpoint({**GOOD, "env": {MARKER: "0" * 16}}, "other")
    async with plugged(cloud) as engine:
        resource_id, _, state = await made(engine)
        assert resource_id == "orphan"
        assert cloud.counted("POST") == 0
        assert cloud.bodies("PATCH") == [{"workers": {"max": 5}}]
        assert plain(state)["workers"]["max"] == 5
        assert [message for _, message in engine.logs] == [f"orphan was taken over: {LEFT_BEHIND}."]


async def test_a_template_that_changed_since_a_killed_up_reaches_the_endpoint_that_is_taken_over(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        template_id, _, _ = await made(engine, TEMPLATE, name="t")
        declared = {k: v for k, v in GOOD.items() if k != "image"} | {"templateId": template_id, "templateHash": "new"}
        body = {**{k: v for k, v in declared.items() if k != "templateHash"}, "env": {MARKER: MARK}}
        cloud.endpoints["orphan"] = create_endpoint(body, "orphan", cloud.things["templates"][template_id])
        cloud.things["templates"][template_id]["image"] = "img@sha256:2"
        resource_id, _, state = await made(engine, ENDPOINT, declared)
        assert resource_id == "orphan"
        assert plain(state)["image"] == cloud.endpoints["orphan"]["image"] == "img@sha256:2"


async def test_several_with_the_marker_are_an_error_that_names_them(cloud: Cloud) -> None:
    for name in ("one", "two"):
        cloud.endpoints[name] = create_endpoint({**GOOD, "env": {MARKER: MARK}}, name)
    async with plugged(cloud) as engine:
        with pytest.raises(Failed, match="one, two"):
            await made(engine)
    assert cloud.counted("POST") == 0


async def test_a_forced_replacement_that_adopts_its_predecessor_does_not_delete_it(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        old_id, checked, state = await made(engine)
    async with plugged(cloud) as engine:  # as `pulumi up --target-replace` asks: neither Diff nor old inputs, and the old id at the end
        new_id, _, _ = await made(engine)
        await engine.delete(ENDPOINT, "embed", old_id, checked, state)
        assert list(cloud.endpoints) == [old_id] == [new_id]
        assert "its own replacement has just taken it over" in engine.logs[-1][1]


async def test_a_replacement_never_adopts_what_it_replaces(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        old_id, _, _ = await made(engine)
    async with plugged(cloud) as engine:
        checked, _ = await engine.check(ENDPOINT, "embed", GOOD, GOOD)
        checked, _ = await engine.check(ENDPOINT, "embed", GOOD)
        cloud.faults = [Fault("POST", "/v2/serverless", do="cut", when="after")]
        new_id, _ = await engine.create(ENDPOINT, "embed", checked)
    assert new_id != old_id
    assert set(cloud.endpoints) == {old_id, new_id}


async def test_twins_whose_answer_was_lost_are_an_error_and_not_a_guess(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        checked, _ = await engine.check(VOLUME, "v", INPUTS[VOLUME])

        def also_by_somebody_else(method: str, path: str, body: Any) -> None:
            if method == "POST":
                cloud.things["network-volumes"]["foreign"] = {"type": "STANDARD", **body, "id": "foreign"}

        cloud.on_request = also_by_somebody_else
        cloud.faults = [Fault("POST", ".*", do="cut", when="after")]
        with pytest.raises(Failed, match="more than one resource could be it"):
            await engine.create(VOLUME, "v", checked)


async def test_a_create_that_half_succeeded_keeps_its_id(cloud: Cloud) -> None:
    cloud.endpoints["orphan"] = create_endpoint({**GOOD, "workers": {"max": 2}, "env": {MARKER: MARK}}, "orphan")
    cloud.faults = [Fault("PATCH", ".*", status=500, times=999)]
    async with plugged(cloud, deadline_s=0.4) as engine:
        with pytest.raises(Failed, match="could not be updated") as failed:
            await made(engine)
        assert failed.value.id == "orphan"
        assert failed.value.properties["workers"]["max"] == 2
        cloud.faults = []
        state = await engine.update(ENDPOINT, "embed", "orphan", GOOD, failed.value.properties, GOOD)  # as the engine's next up does
        assert plain(state)["workers"]["max"] == cloud.endpoints["orphan"]["workers"]["max"] == 5


async def test_a_create_that_was_carried_out_later_than_anybody_looked_is_named(cloud: Cloud) -> None:
    def late(method: str, path: str, body: Any) -> None:
        if cloud.counted("POST") == 2 and "late" not in cloud.endpoints:
            cloud.endpoints["late"] = create_endpoint(body, "late")

    cloud.on_request = late
    cloud.faults = [Fault("POST", ".*", do="cut")]
    async with plugged(cloud) as engine:
        resource_id, _, _ = await made(engine)
        assert resource_id != "late"
        assert engine.logs[-1][1].endswith(f"delete late; {resource_id} is kept.")


async def test_an_answer_without_an_id_is_a_lost_answer(cloud: Cloud) -> None:
    cloud.faults = [Fault("POST", ".*", status=200, when="after")]
    async with plugged(cloud) as engine:
        resource_id, _, _ = await made(engine)
    assert list(cloud.endpoints) == [resource_id]


# --- strict rollouts and drained deletes ---------------------------------------------------------------------------------------------

STRICT = {**GOOD, "rollout": "strict"}
NEW_IMAGE = {**STRICT, "image": "img@sha256:2"}


def finish_after(cloud: Cloud, endpoint_id: str, looks: int) -> None:
    """The endpoint's jobs end after so many looks at its workers."""
    left = looks

    def look(method: str, path: str, body: Any) -> None:
        nonlocal left
        if path.endswith("/workers"):
            left -= 1
            if left <= 0:
                cloud.running[endpoint_id] = 0

    cloud.on_request = look


async def test_a_strict_rollout_lets_jobs_finish_before_the_new_image_comes(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        cloud.running[resource_id] = 2
        finish_after(cloud, resource_id, 3)
        cloud.seen.clear()
        state = await engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE)
        patches = [body for m, _, body in cloud.seen if m == "PATCH"]
        assert patches == [{"workers": {"min": 0, "max": 0}}, {"image": "img@sha256:2"}, {"workers": {"min": 0, "max": 5}}]
        assert sum(path.endswith("/workers") for _, path, _ in cloud.seen) == 3
        assert plain(state)["workers"] == {"min": 0, "max": 5, "idleTimeout": 10}
        assert engine.logs[0][1] == "waiting for 2 running workers to finish"


@pytest.mark.parametrize("fault", list(KINDS_OF_FAULT))
@pytest.mark.parametrize("call", [("GET", "/v2/serverless/ser1"), ("GET", ".*/workers"), ("PATCH", ".*")], ids=["read", "workers", "patch"])
async def test_a_strict_rollout_outlives_a_fault_of_any_of_its_calls(cloud: Cloud, call: tuple[str, str], fault: str) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        cloud.faults = [KINDS_OF_FAULT[fault](*call)]
        state = await engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE)
        live = cloud.endpoints[resource_id]
        assert (live["image"], live["workers"]["max"]) == ("img@sha256:2", 5)


async def test_a_strict_endpoint_changes_its_scaling_in_one_patch(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        await engine.update(ENDPOINT, "embed", resource_id, checked, state, {**STRICT, "workers": {"max": 9}})
        assert cloud.bodies("PATCH") == [{"workers": {"max": 9}}]


@pytest.mark.parametrize("point", [1, 2, 3])
async def test_a_strict_rollout_killed_at_any_point_is_completed_by_the_next_up(cloud: Cloud, point: int) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
    live = cloud.endpoints[resource_id]
    steps: list[Json] = [{"workers": {"min": 0, "max": 0}}, {"image": "img@sha256:2"}, {"workers": {"min": 0, "max": 5}}]
    for step in steps[:point]:
        live = cloud.carry_out("PATCH", f"/v2/serverless/{resource_id}", step)[1]
    async with plugged(cloud) as engine:  # the state still holds the old inputs: the killed process told nobody
        await engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE)
    live = cloud.endpoints[resource_id]
    assert (live["image"], live["workers"]["max"]) == ("img@sha256:2", 5)


async def test_a_strict_rollout_that_fails_brings_the_old_workers_back(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        refused = Fault("PATCH", ".*", status=422, detail="the image does not exist", times=0)
        cloud.faults = [refused]

        def refuse_the_image(method: str, path: str, body: Any) -> None:
            refused.times = 1 if method == "PATCH" and "image" in body else 0

        cloud.on_request = refuse_the_image
        with pytest.raises(Failed, match="the image does not exist") as failed:
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE)
        assert not failed.value.id  # nothing changed: the state keeps what it had
        assert cloud.endpoints[resource_id]["workers"]["max"] == 5


async def test_workers_that_a_killed_rollout_left_at_zero_come_back_though_the_next_one_fails(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        cloud.carry_out("PATCH", f"/v2/serverless/{resource_id}", {"workers": {"min": 0, "max": 0}})
        cloud.faults = [Fault("PATCH", ".*", status=422, detail="the image does not exist")]
        with pytest.raises(Failed, match="the image does not exist"):
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE)
        assert cloud.endpoints[resource_id]["workers"]["max"] == 5


async def test_a_template_that_a_strict_rollout_could_not_send_is_sent_by_the_next_up(cloud: Cloud) -> None:
    async with plugged(cloud, deadline_s=0.3) as engine:
        template_id, _, _ = await made(engine, TEMPLATE, name="t")
        declared = {k: v for k, v in STRICT.items() if k != "image"} | {"templateId": template_id, "templateHash": "old"}
        resource_id, checked, state = await made(engine, ENDPOINT, declared)
        cloud.things["templates"][template_id]["image"] = "img@sha256:9"
        cloud.on_request = lambda method, path, body: cloud.faults.extend(
            [Fault("PATCH", ".*", status=500, times=999)] if path.endswith("/workers") and not cloud.faults else []
        )
        new = {**declared, "templateHash": "new"}
        with pytest.raises(Failed, match=r"workers\.max is still 0") as failed:
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, new)
        cloud.on_request, cloud.faults = None, []
        await engine.update(ENDPOINT, "embed", resource_id, new, failed.value.properties, new)  # the engine keeps the new inputs
        live = cloud.endpoints[resource_id]
        assert (live["image"], live["workers"]["max"]) == ("img@sha256:9", 5)


async def test_jobs_that_do_not_end_end_the_strict_rollout(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        inputs = {**STRICT, "drainTimeoutSeconds": 1}
        resource_id, checked, state = await made(engine, ENDPOINT, inputs)
        cloud.running[resource_id] = 1
        with pytest.raises(Failed, match="1 workers were still running after 1 s"):
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, {**inputs, "image": "img@sha256:2"})
        assert cloud.endpoints[resource_id]["workers"]["max"] == 5
        assert cloud.endpoints[resource_id]["image"] == "img@sha256:1"


async def test_long_jobs_are_not_asked_after_all_the_time(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, {**STRICT, "drainTimeoutSeconds": 2})
        cloud.running[resource_id] = 1
        cloud.seen.clear()
        with pytest.raises(Failed, match="still running after 2 s"):
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, {**NEW_IMAGE, "drainTimeoutSeconds": 2})
        assert sum(path.endswith("/workers") for _, path, _ in cloud.seen) <= 27  # at 0.02 s each it would be a hundred


async def test_a_strict_rollout_is_stopped_by_the_engine_and_gives_the_workers_back(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        cloud.running[resource_id] = 1
        waiting = asyncio.Event()
        cloud.on_request = lambda method, path, body: waiting.set() if path.endswith("/workers") else None
        update = asyncio.create_task(engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE))
        await asyncio.wait_for(waiting.wait(), 5)
        await engine.cancel()
        with pytest.raises(Failed, match="stopped while waiting"):
            await update
        assert cloud.endpoints[resource_id]["workers"]["max"] == 5


async def test_ctrl_c_does_not_sit_out_a_retry_after(cloud: Cloud) -> None:
    cloud.faults = [Fault("GET", ".*", status=429, headers={"Retry-After": "20"})]
    async with plugged(cloud, deadline_s=60) as engine:
        asked = asyncio.Event()
        cloud.on_request = lambda method, path, body: asked.set()
        read = asyncio.create_task(engine.read(ENDPOINT, "embed", "ep1", GOOD, GOOD))
        await asyncio.wait_for(asked.wait(), 5)
        await engine.cancel()
        with pytest.raises(Failed, match="stopped while waiting"):
            await asyncio.wait_for(read, 5)


async def test_workers_that_cannot_be_brought_back_are_kept_in_the_state_and_by_the_next_up(cloud: Cloud) -> None:
    async with plugged(cloud, deadline_s=0.3) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        broken = Fault("PATCH", ".*", status=500, times=0)
        cloud.faults = [broken]

        def break_after_the_first(method: str, path: str, body: Any) -> None:
            broken.times = 1 if method == "PATCH" and body != {"workers": {"min": 0, "max": 0}} else 0

        cloud.on_request = break_after_the_first
        with pytest.raises(Failed, match=r"workers\.max is still 0") as failed:
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE)
        assert failed.value.id == resource_id
        assert failed.value.properties["workers"]["max"] == 0
        cloud.on_request, cloud.faults = None, []
        after = await engine.update(ENDPOINT, "embed", resource_id, NEW_IMAGE, failed.value.properties, NEW_IMAGE)
        assert plain(after)["workers"]["max"] == cloud.endpoints[resource_id]["workers"]["max"] == 5
        assert cloud.endpoints[resource_id]["image"] == "img@sha256:2"


async def test_workers_are_brought_back_after_an_outage_that_outlasts_a_call(cloud: Cloud) -> None:
    async with plugged(cloud, deadline_s=0.4) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, STRICT)
        ended = asyncio.Event()

        def go_silent(method: str, path: str, body: Any) -> None:
            if path.endswith("/workers") and not cloud.faults:
                cloud.faults = [Fault(m, ".*", do="cut", times=999) for m in ("GET", "PATCH")]
                asyncio.get_running_loop().call_later(0.5, ended.set)
            if ended.is_set():
                cloud.faults = [Fault("POST", "nowhere")]

        cloud.on_request = go_silent
        with pytest.raises(Failed, match="RunPod did not answer as it should: no whole answer") as failed:
            await engine.update(ENDPOINT, "embed", resource_id, checked, state, NEW_IMAGE)
        assert not failed.value.id  # nothing changed: the state keeps what it had
        live = cloud.endpoints[resource_id]
        assert (live["workers"]["max"], live["image"]) == (5, "img@sha256:1")


async def test_a_delete_drains_where_asked(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, {**GOOD, "drainOnDelete": True})
        cloud.running[resource_id] = 1
        finish_after(cloud, resource_id, 2)
        await engine.delete(ENDPOINT, "embed", resource_id, checked, state)
        assert cloud.bodies("PATCH") == [{"workers": {"min": 0, "max": 0}}]
        assert not cloud.endpoints


async def test_an_endpoint_that_is_gone_is_said_so_by_an_update(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        for inputs in (GOOD, STRICT):
            with pytest.raises(Failed, match="does not exist any more, or belongs to another account"):
                await engine.update(ENDPOINT, "embed", "nobody", inputs, inputs, {**inputs, "timeout": 1, "image": "img@sha256:2"})
