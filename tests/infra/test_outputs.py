"""tests of infra.outputs: what the pipeline, the review and people read of a stack."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from contract.facts import API_URL, StackFacts
from infra import outputs
from infra.outputs import Made
from infra.settings import prices
from tests.infra.stacks import DIGEST, IMAGE, balanced, endpoint, stack

VOLUME = {"name": "models", "size": 50, "dataCenter": "EU-RO-1"}
MADE = {"minilm": Made("ep1"), "web": Made("ep2", "https://ep2.api.runpod.ai")}


def test_facts_are_exactly_the_contracts() -> None:
    settings = stack(
        "prod",
        endpoints=[endpoint(maxConcurrency=3, maxModelLen=512, coldStart=90, workers={"peak": 4, "min": 1}, idleTimeout=20), balanced()],
    )
    built = outputs.facts(settings, prices(settings), MADE, {})
    facts = msgspec.json.decode(json.dumps(built), type=StackFacts)
    assert (facts.stack, facts.api_url, facts.store.bucket, facts.store.prefix) == ("prod", API_URL, "batches", "nb")
    (found,), (web,) = facts.endpoints, facts.balanced  # a load-balancing endpoint takes no jobs
    assert (web.name, web.id, web.tasks, web.scaler) == ("web", "ep2", (), "REQUEST_COUNT")
    assert web.workers_max == settings.endpoints[1].workers_peak
    assert [one.name for one in facts.everything] == ["minilm", "web"]
    assert (found.name, found.id, found.model, found.tasks, found.image) == ("minilm", "ep1", "org/minilm", ("embed",), DIGEST)
    assert (found.workers_min, found.workers_max, found.shards_per_worker, found.max_model_len) == (1, 4, 3, 512)
    assert (found.execution_timeout_s, found.cold_start_s, found.idle_timeout_s) == (600, 90, 20)
    assert (found.scaler, found.scaler_value) == ("QUEUE_DELAY", 4)


def test_facts_of_a_stack_without_load_balancing_are_read_by_versions_that_know_of_none() -> None:
    settings = stack(endpoints=[endpoint()])
    assert "balanced" not in outputs.facts(settings, prices(settings), MADE, {})


def test_plans_count_on_the_dearest_pool_and_all_gpus_of_a_worker() -> None:
    settings = stack(endpoints=[endpoint(gpu={"pools": ["AMPERE_24", "ADA_24"], "count": 2})])
    found = outputs.endpoint_facts(settings.endpoints[0], prices(settings), "ep1")
    assert (found.gpu, found.gpu_count, found.usd_per_second) == ("ADA_24", 2, 0.00062)


def test_an_endpoint_without_a_timeout_is_planned_with_runpods_longest() -> None:
    settings = stack(endpoints=[endpoint(executionTimeout=None, image="a:v1")])
    found = outputs.endpoint_facts(settings.endpoints[0], prices(settings), "ep1")
    assert (found.execution_timeout_s, found.image) == (7 * 24 * 3600, "a:v1")


def test_a_store_on_a_volume_is_the_volumes_bucket_at_its_own_address() -> None:
    settings = stack(volumes=[VOLUME], store={"volume": "models", "prefix": "/runs/nb/"})
    at = outputs.store(settings, {"models": "vol123"})
    assert (at.bucket, at.endpoint_url, at.prefix) == ("vol123", "https://s3api-eu-ro-1.runpod.io/", "runs/nb")


def test_endpoints_say_where_they_are_what_they_cost_and_which_image_they_run() -> None:
    settings = stack(endpoints=[endpoint(modelSource={"kind": "cached"}), balanced()])
    table = prices(settings)
    queue, web = (outputs.endpoint(settings, found, table, MADE[found.name]) for found in settings.endpoints)
    assert queue == {
        "id": "ep1", "url": f"{API_URL}/ep1", "type": "QUEUE", "model": "org/minilm", "modelSource": "cached:org/minilm",
        "gpuPools": ["AMPERE_24", "ADA_24"], "gpuCount": 1, "usd_per_hour_per_worker": 1.116, "workersMax": 3, "image": IMAGE,
        "imageDigest": DIGEST,
    }  # fmt: skip
    assert (web["url"], web["type"], web["model"]) == ("https://ep2.api.runpod.ai", "LOAD_BALANCER", None)


def test_a_models_source_is_recorded_in_a_word() -> None:
    def of(**source: Any) -> str:
        return outputs.source(stack(endpoints=[endpoint(modelSource=source)], volumes=[VOLUME]).endpoints[0])

    assert of(kind="hub") == "hub"
    assert of(kind="baked", path="/models/x") == "baked:/models/x"
    assert of(kind="volume", volume="models") == "volume:models"
    assert of(kind="cached") == "cached:org/minilm"


def test_volumes_have_their_s3_address_where_there_is_one() -> None:
    settings = stack(volumes=[VOLUME, {**VOLUME, "name": "far", "dataCenter": "OC-AU-1"}])
    assert outputs.volume(settings, "models", "v1") == {
        "id": "v1", "dataCenter": "EU-RO-1", "s3Url": "https://s3api-eu-ro-1.runpod.io/", "sizeGb": 50,
    }  # fmt: skip
    assert outputs.volume(settings, "far", "v2")["s3Url"] is None


def test_limits_add_up_every_worker_of_every_endpoint() -> None:
    settings = stack("prod", endpoints=[endpoint(workers={"peak": 3, "min": 1}), balanced(workers={"peak": 2})])
    found = outputs.limits(settings, prices(settings))
    assert (found["workers"], found["usdPerHour"], found["usdPerHourAtRest"]) == (5, 5.58, 1.116)
    assert found["ceilings"] == {"workers": 10, "usdPerHour": 20.0}
    assert "2026-08-20" in found["prices"]


def test_no_output_holds_a_secret() -> None:
    settings = stack(secrets=("HF_TOKEN",), endpoints=[endpoint(secretEnv=["HF_TOKEN"], env={"A": "plain-value"})])
    table = prices(settings)
    everything = json.dumps(
        [outputs.facts(settings, table, MADE, {}), outputs.endpoint(settings, settings.endpoints[0], table, MADE["minilm"])]
    )
    assert "HF_TOKEN" not in everything
    assert "plain-value" not in everything
