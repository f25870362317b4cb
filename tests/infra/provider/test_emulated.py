"""The provider against the emulator's REST v2, which refuses what RunPod's OpenAPI file refuses: every field, imports, templates, and a
strict rollout with a job running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator import Script, ScriptedWorker
from infra.provider.resources.endpoint import MARKER
from tests.emulator.control_kit import Rest, controlled
from tests.emulator.kit import eventually
from tests.infra.provider import inputs as make
from tests.infra.provider.cloud import Cloud
from tests.infra.provider.plugin import Engine, Json, plain, plugged
from tests.infra.provider.test_server import CHANGED, ENDPOINT, GOOD, INPUTS, PATHS, REGISTRY, TEMPLATE, VOLUME, made


@asynccontextmanager
async def night(folder: Path, **given: Any) -> AsyncIterator[tuple[Engine, Rest]]:
    """A plugin on an emulator that has nothing yet, and a client of the same account."""
    async with (
        controlled(folder, **given) as (emulator, rest),
        plugged(Cloud(base_url=emulator.root_url), key=emulator.api_key, attempt_s=5) as engine,
    ):
        yield engine, rest


async def lives(engine: Engine, token: str, name: str, inputs: Json) -> tuple[str, Any, Any]:
    """Create, and nothing differs after a refresh."""
    resource_id, checked, state = await made(engine, token, inputs, name)
    await clean(engine, token, name, resource_id, checked, state)
    return resource_id, checked, state


async def clean(engine: Engine, token: str, name: str, resource_id: str, checked: Any, state: Any) -> None:
    _, read_state, read_inputs = await engine.read(token, name, resource_id, checked, state)
    diff = await engine.diff(token, name, resource_id, read_inputs, read_state, checked)
    assert list(diff.detailedDiff) == []


@pytest.mark.parametrize("token", list(INPUTS))
async def test_a_resource_lives_on_the_emulator(tmp_path: Path, token: str) -> None:
    async with night(tmp_path) as (engine, rest):
        resource_id, checked, state = await lives(engine, token, "embed", INPUTS[token])
        if token in CHANGED:
            new, failures = await engine.check(token, "embed", CHANGED[token], plain(checked))
            assert not failures
            state = await engine.update(token, "embed", resource_id, checked, state, new)
            await clean(engine, token, "embed", resource_id, new, state)
        await engine.delete(token, "embed", resource_id, checked, state)
        assert (await rest.ask("GET", f"/{PATHS[token]}/{resource_id}")).status == 404


async def test_every_field_of_an_endpoint_is_updated_in_place(tmp_path: Path) -> None:
    async with night(tmp_path) as (engine, _):
        volume, _, _ = await made(engine, VOLUME, name="v")
        registry, _, _ = await made(engine, REGISTRY, name="r")
        changes: list[Json] = [
            {"name": "renamed"},
            {"image": "img@sha256:2"},
            {"args": "--x 'y z'"},
            {"disk": 40},
            {"env": {"A": "1"}},
            {"env": {"A": "2", "B": ""}},
            {"ports": ["8000/http"]},
            {"registry": registry},
            {"gpu": {"pools": ["AMPERE_24"]}},
            {"gpu": {"pools": ["ADA_24", "AMPERE_24"], "count": 2}},
            {"gpu": {"pools": ["ADA_48_PRO"], "excludedTypes": ["NVIDIA L40"]}},
            {"gpu": {"pools": ["ADA_48_PRO", "ADA_24"], "excludedTypes": ["NVIDIA L40"]}},
            {"gpu": {"pools": ["ADA_24"], "allowedCudaVersions": ["12.8"]}},
            {"gpu": {"pools": ["ADA_24"], "minCudaVersion": "12.1"}},
            {"workers": {"min": 1, "max": 4, "idleTimeout": 60}},
            {"workers": {"max": 5}, "scaling": {"type": "REQUEST_COUNT", "requestCount": 2}},
            {"scaling": {"type": "QUEUE_DELAY", "queueDelay": 7.5}},
            {"dataCenterIds": ["EU-RO-1"]},
            {"networkVolumes": [volume]},
            {"timeout": 700000},
            {"flashboot": "FLASHBOOT"},
            {},
        ]
        resource_id, checked, state = await lives(engine, ENDPOINT, "embed", GOOD)
        for change in changes:
            new, failures = await engine.check(ENDPOINT, "embed", {**GOOD, **change}, plain(checked))
            assert not failures, change
            diff = await engine.diff(ENDPOINT, "embed", resource_id, checked, state, new)
            assert not diff.replaces, change
            if diff.changes == diff.DIFF_SOME:
                state = await engine.update(ENDPOINT, "embed", resource_id, checked, state, new)
            checked = new
            await clean(engine, ENDPOINT, "embed", resource_id, checked, state)


async def test_an_endpoint_made_by_hand_is_imported_and_its_preview_is_clean(tmp_path: Path) -> None:
    async with night(tmp_path) as (engine, rest):
        by_hand = {**GOOD, "env": {"HF_TOKEN": "hush"}, "flashboot": "PRIORITY_FLASHBOOT"}
        endpoint_id = (await rest.post("/serverless", by_hand))["id"]
        _, state, inputs = await engine.read(ENDPOINT, "embed", endpoint_id)
        assert list((await engine.diff(ENDPOINT, "embed", endpoint_id, inputs, state, by_hand)).detailedDiff) == []
        _, failures = await engine.check(ENDPOINT, "embed", plain(inputs))
        assert not failures


async def test_a_template_and_its_endpoints_change_together(tmp_path: Path) -> None:
    async with night(tmp_path) as (engine, rest):
        first = {**INPUTS[TEMPLATE], "env": {"FROM": "template"}}
        template_id, template, template_state = await lives(engine, TEMPLATE, "t", first)
        made_from = {k: v for k, v in GOOD.items() if k != "image"}
        declared = {**made_from, "templateId": template_id, "templateHash": plain(template_state)["contentHash"], "env": {"OWN": "1"}}
        endpoint_id, checked, state = await lives(engine, ENDPOINT, "embed", declared)
        second = {**first, "image": "img@sha256:2", "env": {"FROM": "edit"}}
        after = await engine.update(TEMPLATE, "t", template_id, template, template_state, second)
        new = {**declared, "templateHash": plain(after)["contentHash"]}
        state = await engine.update(ENDPOINT, "embed", endpoint_id, checked, state, new)
        live = await rest.get(f"/serverless/{endpoint_id}")
        assert live["image"] == "img@sha256:2"
        assert {k: v for k, v in live["env"].items() if k != MARKER} == {"FROM": "edit", "OWN": "1"}
        await clean(engine, ENDPOINT, "embed", endpoint_id, new, state)
        await engine.delete(ENDPOINT, "embed", endpoint_id, new, state)
        await engine.delete(TEMPLATE, "t", template_id, second, after)


async def test_a_strict_rollout_never_runs_old_and_new_side_by_side(tmp_path: Path) -> None:
    hold = asyncio.Event()
    ran: list[str] = []
    at_once: list[set[str]] = []
    running: list[str] = []

    async def work(job: dict[str, Any], worker: ScriptedWorker) -> str:
        image = str(worker.endpoint.image)
        running.append(image)
        at_once.append(set(running))
        ran.append(image)
        if image.endswith("1"):
            await hold.wait()
        running.remove(image)
        return image

    script = Script(work)
    async with night(tmp_path, script=script) as (engine, rest):
        declared = {**GOOD, "rollout": "strict", "workers": {"max": 2}, "scaling": {"type": "QUEUE_DELAY", "queueDelay": 0.5}}
        endpoint_id, checked, state = await made(engine, ENDPOINT, declared)
        await rest.run(endpoint_id)
        await eventually(lambda: running, what="the first job never ran")
        new = {**declared, "image": "img@sha256:2"}
        update = asyncio.create_task(engine.update(ENDPOINT, "embed", endpoint_id, checked, state, new))
        await eventually(lambda: engine.logs, what="the rollout never waited")
        second = await rest.run(endpoint_id)
        assert (await rest.get(f"/serverless/{endpoint_id}"))["workers"]["max"] == 0
        assert not update.done()
        hold.set()
        state = await update
        assert plain(state)["workers"]["max"] == 2
        await eventually(lambda: len(ran) == 2, what=f"the second job never ran: {second}")
        assert ran == ["img@sha256:1", "img@sha256:2"]
        assert all(len(images) == 1 for images in at_once)
        assert "waiting for 1 running worker to finish" in [message for _, message in engine.logs]


async def test_what_check_lets_through_is_accepted_and_read_back(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with night(tmp_path, worker_quota=1000) as (engine, _):
        registry, _, _ = await made(engine, REGISTRY, name="r")

        async def lives_and_dies(first: Json, second: Json) -> None:
            resource_id, checked, state = await lives(engine, ENDPOINT, "x", real(first))
            new, failures = await engine.check(ENDPOINT, "x", real(second), plain(checked))
            assert not failures
            diff = await engine.diff(ENDPOINT, "x", resource_id, checked, state, new)
            if not diff.replaces:
                state = await engine.update(ENDPOINT, "x", resource_id, checked, state, new)
                await clean(engine, ENDPOINT, "x", resource_id, new, state)
            await engine.delete(ENDPOINT, "x", resource_id, new, state)

        def real(inputs: Json) -> Json:
            """With ids that exist, and without a strict rollout's waiting."""
            inputs = {k: v for k, v in inputs.items() if k not in ("networkVolumes", "rollout")}
            if "registry" in inputs:
                inputs["registry"] = registry
            if "gpu" in inputs:
                inputs["gpu"] = {k: v for k, v in inputs["gpu"].items() if k != "excludedTypes"}
            return inputs

        kinds = st.sampled_from(["QUEUE", "LOAD_BALANCER"])

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(kinds.flatmap(lambda kind: st.tuples(make.endpoints(kind=kind), make.endpoints(kind=kind))))
        def holds(pair: tuple[Json, Json]) -> None:
            asyncio.run_coroutine_threadsafe(lives_and_dies(*pair), loop).result(60)

        await asyncio.to_thread(holds)
