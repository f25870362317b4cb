"""The plugin over gRPC, where something is not as anybody foresaw: a bug, an account that is not known yet, a state that a hand edited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from infra.provider.resources import KINDS
from infra.provider.resources.fields import UNKNOWN, Kind, shaped
from tests.infra.provider.cloud import KEY, Cloud, Fault, create_endpoint
from tests.infra.provider.plugin import Failed, Json, Secret, plain, plugged
from tests.infra.provider.test_server import ENDPOINT, GOOD, INPUTS, REGISTRY, TEMPLATE, VOLUME, made

HUSH = "hush-hush never 'shown'\nnor this line"


class Broken:
    """A client with a bug in every call, whose exception quotes what it was given."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            raise ValueError(f"{name} of {self._text!r} and {KEY}: {self._text}")

        return call


def hidden(text: str) -> bool:
    return not any(part in text for part in ("hush-hush", "nor this line", KEY))


@pytest.mark.parametrize("call", ["create", "read", "update", "delete", "invoke"])
async def test_a_bug_is_told_in_one_sentence_without_the_secrets_that_it_quotes(
    cloud: Cloud, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", KEY)
    inputs = {**GOOD, "env": {"MINE": Secret(HUSH)}}
    async with plugged(cloud, client=lambda config, sleep: Broken(HUSH)) as engine:
        await engine.check(ENDPOINT, "embed", inputs)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "create": lambda: engine.create(ENDPOINT, "embed", inputs),
            "read": lambda: engine.read(ENDPOINT, "embed", "ep1", inputs, inputs),
            "update": lambda: engine.update(ENDPOINT, "embed", "ep1", inputs, inputs, {**inputs, "timeout": 1}),
            "delete": lambda: engine.delete(ENDPOINT, "embed", "ep1", inputs, inputs),
            "invoke": lambda: engine.invoke("runpodv2:index:getEndpoint", name="embed"),
        }
        with pytest.raises(Failed, match=r"ValueError at test_edges\.py:.*This is a bug of the provider: please report it") as failed:
            await calls[call]()
    assert hidden(str(failed.value))
    assert "[secret]" in str(failed.value)
    assert "Traceback" not in str(failed.value)


@contextmanager
def replaced(kind: Kind, name: str, function: Any) -> Iterator[None]:
    """One of a resource's functions, with a bug."""
    own = getattr(kind, name)
    object.__setattr__(kind, name, function)
    try:
        yield
    finally:
        object.__setattr__(kind, name, own)


async def test_a_bug_in_a_pure_call_is_told_without_a_secret_too(cloud: Cloud) -> None:
    def broken(*values: Mapping[str, Any]) -> Any:
        raise RuntimeError(f"odd: {values}")

    inputs = {**INPUTS[REGISTRY], "password": HUSH}
    async with plugged(cloud) as engine:
        with replaced(KINDS[REGISTRY], "diff", broken), pytest.raises(Failed, match=r"RuntimeError at test_edges\.py") as differed:
            await engine.diff(REGISTRY, "hub", "r1", inputs, inputs, inputs)
        with replaced(KINDS[REGISTRY], "check", broken), pytest.raises(Failed, match=r"RuntimeError at test_edges\.py") as checked:
            await engine.check(REGISTRY, "hub", inputs)
    assert hidden(str(differed.value))
    assert hidden(str(checked.value))


async def test_a_secret_of_another_resource_is_hidden_too(cloud: Cloud) -> None:
    cloud.faults = [Fault("POST", "/v2/serverless", status=422, detail=f"the template's env: {HUSH}")]
    async with plugged(cloud) as engine:
        await engine.check(TEMPLATE, "t", {**INPUTS[TEMPLATE], "env": {"MINE": Secret(HUSH)}})
        with pytest.raises(Failed, match=r"the template's env: \[secret\]") as failed:
            await engine.create(ENDPOINT, "embed", GOOD)
    assert hidden(str(failed.value))


async def test_a_warning_and_a_failed_check_show_no_secret(cloud: Cloud) -> None:
    cloud.faults = [Fault("DELETE", ".*", status=409, detail=f"bound: {HUSH}")]
    inputs = {**GOOD, "env": {"MINE": Secret(HUSH)}}
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, ENDPOINT, inputs)
        await engine.delete(ENDPOINT, "embed", resource_id, checked, state)
        assert engine.logs[-1][1].startswith("RunPod still refuses to delete it (bound: [secret])")
        _, failures = await engine.check(ENDPOINT, "embed", {**GOOD, "type": Secret("hush-hush")})
        assert failures == {"": "type must be QUEUE or LOAD_BALANCER, not '[secret]'"}  # a named property is printed with its value


async def test_whatever_fails_after_a_create_the_id_reaches_the_state(cloud: Cloud) -> None:
    def broken(live: Json, _inputs: Json) -> Json:
        found: Json = live["nothing"]
        return found

    async with plugged(cloud) as engine:
        checked, _ = await engine.check(VOLUME, "v", INPUTS[VOLUME])
        with (
            replaced(KINDS[VOLUME], "outputs", broken),
            pytest.raises(Failed, match=r"net1 was made, and then something went wrong: KeyError at .*'nothing'") as failed,
        ):
            await engine.create(VOLUME, "v", checked)
        assert failed.value.id == "net1"
        state = await engine.update(VOLUME, "v", "net1", checked, failed.value.properties, checked)  # as the engine's next up does
        assert plain(state)["size"] == 50
    assert list(cloud.things["network-volumes"]) == ["net1"]


# --- an account that is not known yet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["apiKey", "apiKeyEnv", "baseUrl"])
async def test_an_account_that_a_preview_does_not_know_yet_is_not_guessed(cloud: Cloud, name: str) -> None:
    async with plugged(cloud) as engine:  # with a key in the environment, of whichever account
        await engine.configure(**{name: UNKNOWN})
        checked, failures = await engine.check(ENDPOINT, "embed", GOOD)
        assert not failures
        await engine.create(ENDPOINT, "embed", checked, preview=True)
        await engine.diff(ENDPOINT, "embed", "ep1", GOOD, GOOD, {**GOOD, "timeout": 1})
        await engine.update(ENDPOINT, "embed", "ep1", GOOD, GOOD, {**GOOD, "timeout": 1}, preview=True)
        assert (await engine.invoke("runpodv2:index:getGpus"))[0] == {"gpus": UNKNOWN}
        for call in (
            engine.create(ENDPOINT, "embed", GOOD),
            engine.read(ENDPOINT, "embed", "ep1", GOOD, GOOD),
            engine.update(ENDPOINT, "embed", "ep1", GOOD, GOOD, {**GOOD, "timeout": 1}),
            engine.delete(ENDPOINT, "embed", "ep1", GOOD, GOOD),
        ):
            with pytest.raises(Failed, match=f"{name} of the provider cannot be known yet, so RunPod was not asked"):
                await call
        assert cloud.seen == []
        await engine.configure(apiKey=Secret(KEY))
        await made(engine)


async def test_a_key_that_is_unknown_in_the_old_way_of_configuring_is_unknown(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        await engine.configure_variables({"runpodv2:config:apiKey": "04da6b54-80e4-46f7-96ec-b56ff0331ba9"})
        with pytest.raises(Failed, match="apiKey of the provider cannot be known yet"):
            await engine.create(ENDPOINT, "embed", GOOD)


async def test_a_plugin_that_was_never_configured_asks_nothing(cloud: Cloud) -> None:
    async with plugged(cloud, configured=False) as engine:
        assert (await engine.invoke("runpodv2:index:getGpus"))[0] == {"gpus": UNKNOWN}
        with pytest.raises(Failed, match="cannot be known yet"):
            await engine.create(ENDPOINT, "embed", GOOD)
    assert cloud.seen == []


# --- a state that a hand has edited --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", list(INPUTS))
async def test_another_id_in_the_state_touches_nobody(cloud: Cloud, token: str) -> None:
    async with plugged(cloud) as engine:
        own, checked, state = await made(engine, token)
        other, _, _ = await made(engine, token, name="other")
        cloud.seen.clear()
        for wrong in (other, "nobody"):
            for call in (
                engine.diff(token, "embed", wrong, checked, state, checked),
                engine.read(token, "embed", wrong, checked, state),
                engine.update(token, "embed", wrong, checked, state, checked),
                engine.update(token, "embed", wrong, checked, state, checked, preview=True),
                engine.delete(token, "embed", wrong, checked, state),
            ):
                with pytest.raises(Failed, match=f"its id is {wrong}, but {own} is what it was made or imported with"):
                    await call
        assert cloud.seen == []


async def test_an_imported_resource_and_one_that_half_succeeded_know_their_id(cloud: Cloud) -> None:
    cloud.endpoints["console1"] = create_endpoint(GOOD, "console1")
    async with plugged(cloud, deadline_s=0.4) as engine:
        _, state, inputs = await engine.read(ENDPOINT, "embed", "console1")
        with pytest.raises(Failed, match="console1 is what it was made or imported with"):
            await engine.delete(ENDPOINT, "embed", "other", inputs, state)
        state = await engine.update(ENDPOINT, "embed", "console1", inputs, state, {**plain(inputs), "timeout": 1})
        with pytest.raises(Failed, match="console1 is what it was made or imported with"):
            await engine.delete(ENDPOINT, "embed", "other", inputs, state)
    assert set(cloud.endpoints) == {"console1"}


@pytest.mark.parametrize(
    ("token", "edit"),
    [
        (ENDPOINT, {"env": "HF_TOKEN=x"}),
        (ENDPOINT, {"workers": [1, 2]}),
        (ENDPOINT, {"gpu": {"pools": "ADA_24"}}),
        (ENDPOINT, {"networkVolumes": "v1"}),
        (TEMPLATE, {"ports": {"a": "b"}}),
    ],
)
async def test_a_state_of_another_form_is_named_and_mended_by_a_refresh(cloud: Cloud, token: str, edit: Json) -> None:
    [name] = edit
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, token)
        odd_inputs, odd_state = {**plain(checked), **edit}, {**plain(state), **edit}
        for call in (
            engine.diff(token, "embed", resource_id, odd_inputs, odd_state, checked),
            engine.update(token, "embed", resource_id, odd_inputs, odd_state, checked),
        ):
            with pytest.raises(Failed, match=rf"embed: the state holds {name}\S* in a form that it cannot have\. `pulumi refresh`"):
                await call
        _, read_state, read_inputs = await engine.read(token, "embed", resource_id, odd_inputs, odd_state)
        refreshed = await engine.diff(token, "embed", resource_id, read_inputs, read_state, odd_inputs)  # as the engine's refresh asks
        assert list(refreshed.diffs) in ([name], [])
        diff = await engine.diff(token, "embed", resource_id, read_inputs, read_state, checked)
        assert diff.changes == diff.DIFF_NONE
        await engine.delete(token, "embed", resource_id, odd_inputs, odd_state)
        assert resource_id not in cloud.endpoints


@pytest.mark.parametrize("odd", [5, "fifty", True, [50]])
@pytest.mark.parametrize("token", [ENDPOINT, VOLUME, TEMPLATE])
async def test_a_number_or_text_of_another_type_in_the_state_is_a_difference(cloud: Cloud, token: str, odd: Any) -> None:
    name = {ENDPOINT: "timeout", VOLUME: "size", TEMPLATE: "disk"}[token]
    async with plugged(cloud) as engine:
        resource_id, checked, state = await made(engine, token, {**INPUTS[token], name: 60})
        edited = {**plain(checked), name: odd}
        diff = await engine.diff(token, "embed", resource_id, edited, state, checked)
        assert list(diff.detailedDiff) == [name]
        assert not diff.replaces
        state = await engine.update(token, "embed", resource_id, edited, state, checked)
        assert plain(state)[name] == 60


async def test_a_delete_that_found_nothing_asks_whose_account_it_is(cloud: Cloud) -> None:
    async with plugged(cloud) as engine:
        await engine.delete(ENDPOINT, "embed", "ep1", GOOD, GOOD)
        assert engine.logs[-1][1] == ("ep1 was not there any more. If nobody deleted it: is this API key of the account that has it?")


def test_what_a_program_declares_has_its_form() -> None:
    for token, inputs in INPUTS.items():
        assert shaped(KINDS[token].inputs, inputs) == (inputs, [])
