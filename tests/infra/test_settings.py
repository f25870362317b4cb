"""tests of infra.settings: what a stack file may say, and how everything that is wrong with it is named at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contract.facts import API_URL
from contract.gpus import POOLS
from infra import settings as settings_module
from infra.settings import KEYS, RULE_NAMES, Gpu, Health, ModelSource, Prices, Problem, SettingsError, parse, prices, stack_file
from tests.infra.stacks import DIGEST, IMAGE, balanced, endpoint, stack, values

VOLUME = {"name": "models", "size": 50, "dataCenter": "EU-RO-1"}


def problems(name: str = "dev", secrets: tuple[str, ...] = (), **changes: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(values(**changes), name, secrets=secrets)
    return [str(problem) for problem in caught.value.problems]


def problems_of(**changes: Any) -> list[str]:
    """Of one endpoint."""
    return [text.removeprefix("nightbatch:endpoints[0].") for text in problems(endpoints=[endpoint(**changes)], volumes=[VOLUME])]


def test_a_small_stack_file_is_read_with_defaults() -> None:
    settings = stack()
    found = settings.endpoints[0]
    assert (settings.stack, settings.production, settings.api_url) == ("dev", False, API_URL)
    assert (found.type, found.tasks, found.gpu) == ("QUEUE", ("embed",), Gpu(("AMPERE_24", "ADA_24")))
    assert (found.workers_peak, found.workers_min, found.scaler, found.scaler_value) == (3, 0, "QUEUE_DELAY", 4.0)
    assert (found.execution_timeout_s, found.max_concurrency, found.max_num_seqs) == (600, 2, None)
    assert (found.image_digest, found.image_identity) == (DIGEST, DIGEST)
    assert not found.protect
    assert settings.store.bucket == "batches"


def test_everything_that_can_be_said_is_read() -> None:
    full = endpoint(
        revision="main",
        gpu={"pools": ["ADA_24"], "count": 2, "excludedTypes": ["NVIDIA L40"], "minCudaVersion": "12.8"},
        workers={"peak": 4, "min": 1},
        scaler={"type": "QUEUE_DELAY", "value": 0.5},
        idleTimeout=30,
        maxConcurrency=3,
        maxNumSeqs=256,
        maxModelLen=4096,
        coldStart=90,
        modelSource={"kind": "volume", "volume": "models", "path": "/minilm"},
        env={"VLLM_EXTRA": "{}"},
        secretEnv=["HF_TOKEN"],
        rollout="strict",
        dataCenters=["EU-RO-1", "US-KS-2"],
        flashboot="FLASHBOOT",
        disk=40,
        protect=True,
        drainOnDelete=True,
    )
    registry = {"name": "company", "username": "robot", "passwordSecret": "REGISTRY_PASSWORD"}
    settings = stack(
        secrets=("HF_TOKEN", "REGISTRY_PASSWORD"), endpoints=[full], volumes=[VOLUME], registry=registry, gpuPrices={"NEW_1": 3}
    )
    found = settings.endpoints[0]
    assert found.source == ModelSource("volume", "models", "/minilm")
    assert found.volumes == ("models",)
    assert found.gpu == Gpu(("ADA_24",), 2, ("NVIDIA L40",), "12.8")
    assert (found.rollout, found.disk_gb, found.env, found.secret_env) == ("strict", 40, {"VLLM_EXTRA": "{}"}, ("HF_TOKEN",))
    assert settings.registry is not None
    assert (settings.registry.username, settings.registry.password_secret) == ("robot", "REGISTRY_PASSWORD")
    assert settings.volume("models").s3_url == "https://s3api-eu-ro-1.runpod.io/"
    assert settings.gpu_prices == {"NEW_1": 3.0}


def test_values_may_be_json_text_as_pulumi_hands_them_over() -> None:
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values(production=True).items()}
    assert parse(text, "dev") == parse(values(production=True), "dev")
    with pytest.raises(SettingsError, match="nightbatch:endpoints: must be a list or a map, not text"):
        parse({**text, "endpoints": "minilm"}, "dev")


def test_every_problem_is_named_at_once_with_its_key_and_the_stack_file() -> None:
    wrong = endpoint(name="not a name", gpu={"pools": []}, workers={"peak": 2, "min": 3}, idleTimeout=0, env={"A": 1}, colour="red")
    with pytest.raises(SettingsError) as caught:
        parse(values(endpoints=[wrong], store={"bucket": "b"}, rules={"maxWorker": 3}), "org/nightbatch/dev")
    message = str(caught.value)
    assert message.startswith("infra/stacks/Pulumi.dev.yaml: 8 settings are not usable:")
    for expected in (
        "nightbatch:endpoints[0].name: 'not a name' does not fit; an example: minilm",
        "nightbatch:endpoints[0].gpu.pools: must have at least one pool",
        "nightbatch:endpoints[0].workers.min: 3 is above peak (2)",
        "nightbatch:endpoints[0].idleTimeout: must be a whole number from 1 to 3600, not 0",
        "nightbatch:endpoints[0].env.A: must be text",
        "nightbatch:endpoints[0].colour: is not a setting",
        "nightbatch:store.endpointUrl: must be set",
        "nightbatch:rules.maxWorker: is not a setting; did you mean maxWorkers?",
    ):
        assert expected in message, message


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": None}, "name: must be set"),
        ({"model": None}, "model: must be set"),
        ({"model": 7}, "model: must be text"),
        ({"tasks": None}, "tasks: must be set"),
        ({"tasks": ["dance"]}, "tasks[0]: 'dance' does not fit"),
        ({"tasks": ["embed", "embed"]}, "tasks[1]: 'embed' is there twice"),
        ({"tasks": ["embed", "generate"]}, "tasks: one engine does one of generate and embed"),
        ({"tasks": "embed"}, "tasks: must be a list"),
        ({"image": "has a space"}, "image: 'has a space' does not fit"),
        ({"image": None}, "image: must be set"),
        ({"type": "BATCH"}, "type: must be QUEUE or LOAD_BALANCER, not 'BATCH'"),
        ({"gpu": None}, "gpu: must be set"),
        ({"gpu": "ADA_24"}, "gpu: must be a map of pools"),
        ({"gpu": {"pools": ["ada"]}}, "gpu.pools[0]: 'ada' does not fit"),
        ({"gpu": {"pools": ["ADA_24"], "count": 0}}, "gpu.count: must be a whole number of 1 or more, not 0"),
        ({"gpu": {"pools": ["ADA_24"], "minCudaVersion": 12.8}}, "gpu.minCudaVersion: must be text"),
        ({"gpu": {"pools": ["ADA_24"], "minCudaVersion": "12.8", "allowedCudaVersions": ["12.9"]}}, "gpu.minCudaVersion: RunPod takes"),
        ({"workers": None}, "workers: must be set"),
        ({"workers": {"peak": 2.5}}, "workers.peak: must be a whole number of 0 or more, not 2.5"),
        ({"workers": {"peak": True}}, "workers.peak: must be a whole number"),
        ({"workers": {"max": 3}}, "workers.max: is not a setting"),
        ({"scaler": {"type": "MAGIC"}}, "scaler.type: must be QUEUE_DELAY or REQUEST_COUNT"),
        ({"scaler": {"value": 0.1}}, "scaler.value: must be a number of 0.5 or more"),
        ({"scaler": {"type": "REQUEST_COUNT", "value": 1.5}}, "scaler.value: must be a whole number of 1 or more"),
        ({"scaler": {"type": "REQUEST_COUNT"}, "idleTimeout": 5}, "idleTimeout: RunPod refuses it"),
        ({"executionTimeout": 2}, "executionTimeout: RunPod's least is 5 seconds"),
        ({"executionTimeout": "10m"}, "executionTimeout: must be a number"),
        ({"maxConcurrency": 17}, "maxConcurrency: must be a whole number from 1 to 16"),
        ({"modelSource": {"kind": "magic"}}, "modelSource.kind: must be hub or volume or baked or cached"),
        ({"modelSource": {}}, "modelSource.kind: must be hub"),
        ({"modelSource": {"kind": "volume"}}, "modelSource.volume: must name one"),
        ({"modelSource": {"kind": "volume", "volume": "none"}}, "modelSource.volume: there is no volume 'none'"),
        ({"modelSource": {"kind": "hub", "volume": "models"}}, "modelSource.volume: only a model from a volume"),
        ({"modelSource": {"kind": "baked"}}, "modelSource.path: must be the model's folder"),
        ({"modelSource": {"kind": "cached", "path": "/x"}}, "modelSource.path: a model of kind cached has its name only"),
        ({"volumes": ["none"]}, "volumes: there is no volume 'none'"),
        ({"volumes": ["models"], "dataCenters": ["US-KS-2"]}, "dataCenters: volume models is in EU-RO-1, which is not in the list"),
        ({"env": {"NIGHTBATCH_MODEL": "x"}}, "env.NIGHTBATCH_MODEL: is set by the program, from model and modelSource"),
        ({"env": {"1A": "x"}}, "env.1A: is not the name of a variable"),
        ({"env": ["A"]}, "env: must be a map"),
        ({"secretEnv": ["HF_TOKEN"]}, "secretEnv: there is no secret HF_TOKEN: pulumi config set --secret --path 'nightbatch:"),
        ({"health": {"port": 1}}, "health: only a load-balancing endpoint has one"),
        ({"rollout": "fast"}, "rollout: must be rolling or strict"),
        ({"protect": "yes"}, "protect: must be true or false, not 'yes'"),
        ({"flashboot": True}, "flashboot: must be OFF or FLASHBOOT or PRIORITY_FLASHBOOT, not true"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(changes: dict[str, Any], problem: str) -> None:
    found = problems_of(**changes)
    assert any(text.startswith(problem) for text in found), found


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"endpoints": []}, "nightbatch:endpoints: must have at least one endpoint"),
        ({"endpoints": {"name": "x"}}, "nightbatch:endpoints: must be a list"),
        ({"endpoints": [endpoint(), endpoint()]}, "nightbatch:endpoints[1].name: 'minilm' is there twice"),
        ({"volumes": [{**VOLUME, "size": 5}]}, "nightbatch:volumes[0].size: must be a whole number from 10 to 4096, not 5"),
        ({"volumes": [{**VOLUME, "dataCenter": "Paris"}]}, "nightbatch:volumes[0].dataCenter: 'Paris' does not fit"),
        ({"store": {"volume": "none"}}, "nightbatch:store.volume: there is no volume 'none'"),
        ({"store": {"bucket": "b", "endpointUrl": "nowhere"}}, "nightbatch:store.endpointUrl: 'nowhere' is not an address"),
        ({"store": {"bucket": "a/b", "endpointUrl": "https://s3"}}, "nightbatch:store.bucket: 'a/b' does not fit"),
        ({"store": {"volume": "models"}, "volumes": [{**VOLUME, "dataCenter": "OC-AU-1"}]}, "nightbatch:store.volume: volumes in OC-AU-1"),
        ({"store": {"volume": "models", "bucket": "b"}, "volumes": [VOLUME]}, "nightbatch:store.volume: a volume is the bucket"),
        ({"rules": {"levels": {"image-digest": "strict"}}}, "nightbatch:rules.levels.image-digest: must be mandatory or"),
        ({"rules": {"levels": {"image": "ignore"}}}, "nightbatch:rules.levels.image: is not a setting"),
        ({"registry": {"id": "r", "name": "n"}}, "nightbatch:registry.id: names a credential that exists"),
        ({"registry": {"name": "n", "username": "u", "passwordSecret": "P"}}, "nightbatch:registry.passwordSecret: there is no secret P"),
        ({"gpuPrices": {"ADA_24": "cheap"}}, "nightbatch:gpuPrices.ADA_24: must be a number"),
        ({"apiUrl": "nowhere"}, "nightbatch:apiUrl: 'nowhere' is not an address"),
        ({"production": "maybe"}, "nightbatch:production: must be true or false"),
        ({"endpoint": []}, "nightbatch:endpoint: is not a setting; did you mean endpoints?"),
    ],
)  # fmt: skip
def test_a_wrong_stack_is_named(changes: dict[str, Any], problem: str) -> None:
    found = problems(**changes)
    assert any(text.startswith(problem) for text in found), found


def test_two_volumes_of_one_data_center_cannot_be_mounted_together() -> None:
    two = [VOLUME, {**VOLUME, "name": "more"}]
    assert "both in EU-RO-1" in problems(endpoints=[endpoint(volumes=["models", "more"])], volumes=two)[0]
    apart = [VOLUME, {**VOLUME, "name": "more", "dataCenter": "US-KS-2"}]
    assert stack(endpoints=[endpoint(volumes=["models", "more"])], volumes=apart).endpoints[0].volumes == ("models", "more")


def test_a_load_balancing_endpoint_has_a_health_check_and_counts_requests() -> None:
    found = stack(endpoints=[balanced()]).endpoints[0]
    assert (found.type, found.health, found.scaler, found.scaler_value) == ("LOAD_BALANCER", Health("/ok", 8000), "REQUEST_COUNT", 4.0)
    assert stack(endpoints=[balanced(health=None)]).endpoints[0].health == Health("/ping", 80)
    wrong = problems(endpoints=[balanced(scaler={"type": "QUEUE_DELAY", "value": 4}, health={"path": "ok", "port": 0})])
    assert any("scales by REQUEST_COUNT" in text for text in wrong)
    assert any("health.path: 'ok' does not fit" in text for text in wrong)
    assert any("health.port: must be a whole number from 1 to 65535, not 0" in text for text in wrong)


def test_production_protects_unless_told_otherwise() -> None:
    given: dict[str, Any] = {"volumes": [VOLUME, {**VOLUME, "name": "scratch", "protect": False}]}
    prod = stack("prod", **given)
    assert prod.production
    assert [volume.protect for volume in prod.volumes] == [True, False]
    assert (prod.endpoints[0].protect, prod.endpoints[0].drain_on_delete) == (True, True)
    dev = stack("dev", **given)
    assert [volume.protect for volume in dev.volumes] == [False, False]
    assert stack("eu", production=True, **given).production
    assert not stack("prod", production=False, **given).production


def test_what_differs_between_machines_may_come_from_the_environment_and_the_file_goes_before_it() -> None:
    environ = {
        "NIGHTBATCH_S3_BUCKET": "here",
        "NIGHTBATCH_S3_ENDPOINT_URL": "http://127.0.0.1:9",
        "RUNPOD_ENDPOINT_BASE_URL": "http://127.0.0.1:8/v2/",
    }
    found = parse(values(store=None), "local", environ=environ)
    assert (found.store.bucket, found.store.endpoint_url, found.api_url) == ("here", "http://127.0.0.1:9", "http://127.0.0.1:8/v2")
    assert parse(values(), "local", environ=environ).store.bucket == "batches"
    with pytest.raises(SettingsError, match="NIGHTBATCH_S3_BUCKET in the environment"):
        parse(values(store=None), "local")


def test_messages_show_no_value_of_the_environment() -> None:
    secret = "hf_abcdefgh"
    for env in ({"HF TOKEN": secret}, {"NIGHTBATCH_MODEL": secret}, {"OK": ["x", secret]}):
        assert secret not in "".join(problems(endpoints=[endpoint(env=env)]))


@pytest.mark.parametrize("name", ["local", "dev", "staging", "prod"])
def test_the_stack_files_of_the_project_can_be_used(name: str, repo: Path) -> None:
    config = yaml.safe_load((repo / stack_file(name)).read_text())["config"]
    assert all(key.startswith("nightbatch:") for key in config)
    environ = {"NIGHTBATCH_S3_BUCKET": "b", "NIGHTBATCH_S3_ENDPOINT_URL": "http://127.0.0.1:9"} if name == "local" else {}
    settings = parse({key.removeprefix("nightbatch:"): value for key, value in config.items()}, name, environ=environ)
    assert settings.endpoints
    assert settings.file == stack_file(name)


def test_every_setting_is_in_the_documentation(repo: Path) -> None:
    text = (repo / "docs/infrastructure.md").read_text()
    keys = {*KEYS, *settings_module._ENDPOINT_KEYS, *settings_module._VOLUME_KEYS, *RULE_NAMES}
    assert not [key for key in keys if f"`{key}" not in text and f".{key}`" not in text]


LEAF = st.none() | st.booleans() | st.integers(-5, 5000) | st.floats(allow_nan=False) | st.text(max_size=8)
JSON = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6)


def found_in(given: dict[str, Any]) -> tuple[Problem, ...]:
    """The problems, none where it can be used. Any other exception fails the test."""
    try:
        parse(given, "dev")
    except SettingsError as error:
        return error.problems
    return ()


@given(st.sampled_from(KEYS), JSON)
def test_no_value_of_a_key_breaks_the_reading(key: str, value: Any) -> None:
    for problem in found_in({**values(), key: value}):
        assert problem.key.startswith("nightbatch:")
        assert problem.what


@given(st.sampled_from(settings_module._ENDPOINT_KEYS), JSON)
def test_no_value_of_an_endpoints_key_breaks_the_reading(key: str, value: Any) -> None:
    for problem in found_in(values(endpoints=[{**endpoint(), key: value}])):
        assert problem.key.startswith("nightbatch:endpoints[0]")


# --- prices --------------------------------------------------------------------------------------------------------------------------


def test_prices_come_from_the_file_then_the_catalog_then_the_table() -> None:
    known = prices(stack())
    assert known.usd_per_hour["AMPERE_24"] == pytest.approx(0.684)
    assert "2026-08-20" in known.source
    assert "ADA_32_PRO" not in known.usd_per_hour
    catalog: list[dict[str, Any]] = [
        {"id": "a", "pool": "AMPERE_24", "price": {"secure": 1, "community": 1, "serverless": 0.7}},
        {"id": "b", "pool": "AMPERE_24", "price": {"secure": 1, "community": 1, "serverless": 0.75}},
        {"id": "c", "pool": "NEW_1", "price": {"serverless": 2.0}},
        {"id": "d", "pool": None, "price": {"serverless": 9.0}},
        {"id": "e", "pool": "NEW_2", "price": {}},
    ]
    live = prices(stack(gpuPrices={"NEW_1": 1.5}), catalog)
    assert (live.usd_per_hour["AMPERE_24"], live.usd_per_hour["NEW_1"], live.source) == (0.75, 1.5, "RunPod's catalog")
    assert live.usd_per_hour["ADA_24"] == pytest.approx(1.116)
    assert "NEW_2" not in live.usd_per_hour
    assert prices(stack(), []).source == known.source


def test_a_worker_costs_what_the_dearest_of_its_pools_costs() -> None:
    table = Prices({"A": 1.0, "B": 2.5}, "here")
    assert table.of_worker(Gpu(("A", "B"), 2)) == 5.0
    assert table.of_worker(Gpu(("A", "C"))) is None
    assert table.unknown(Gpu(("A", "C"))) == ("C",)


def test_the_table_agrees_with_runpods_prices_an_hour() -> None:
    per_hour = {name: round(pool.usd_per_second * 3600, 2) for name, pool in POOLS.items() if pool.usd_per_second}
    assert per_hour == {
        "AMPERE_16": 0.58, "AMPERE_24": 0.68, "ADA_24": 1.12, "AMPERE_48": 1.22, "ADA_48_PRO": 1.91, "AMPERE_80": 2.74,
        "ADA_80_PRO": 4.18, "BLACKWELL_96": 4.0, "HOPPER_141": 5.58, "BLACKWELL_180": 8.64,
    }  # fmt: skip


def test_the_image_identity_of_an_unpinned_image_is_its_name() -> None:
    found = stack(endpoints=[endpoint(image="team/worker:v1")]).endpoints[0]
    assert (found.image_digest, found.image_identity) == (None, "team/worker:v1")
    assert IMAGE.endswith(DIGEST)


def test_plans_know_the_speed_of_every_pool_that_is_known() -> None:
    from pipelines.prices import TERAFLOPS

    assert set(POOLS) <= set(TERAFLOPS)


def test_numbers_and_nesting_beyond_all_measure_are_said_to_be_wrong() -> None:
    huge = 10**400
    assert problems(rules={"maxUsdPerHour": huge, "maxWorkers": huge})[0].startswith("nightbatch:rules.maxUsdPerHour: must be a number")
    assert problems(gpuPrices={"ADA_24": huge})[0].startswith("nightbatch:gpuPrices.ADA_24: must be")
    assert [text.split(":")[0] for text in problems_of(workers={"peak": huge})] == ["workers.peak"]
    assert problems_of(scaler={"type": "REQUEST_COUNT", "value": huge})[0].startswith("scaler.value: must be a whole number")
    for text in ("[" * 100_000, f'{{"maxWorkers": {"1" * 5000}}}'):
        assert problems(rules=text) == ["nightbatch:rules: must be a list or a map, not text"]
