"""tests of infra.rules: what each rule finds, at which level, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from infra.rules import RULES, Finding, RulesBroken, advisory, check, enforce, level_of
from infra.settings import RULE_NAMES, Settings, prices
from tests.infra.stacks import balanced, endpoint, stack

VOLUME = {"name": "models", "size": 50, "dataCenter": "EU-RO-1"}
CEILINGS = {"maxWorkers": 10, "maxUsdPerHour": 20}


def found(settings: Settings) -> tuple[Finding, ...]:
    return check(settings, prices(settings))


def names(settings: Settings) -> list[str]:
    return [finding.rule for finding in found(settings)]


def test_a_stack_that_keeps_every_rule_has_no_findings() -> None:
    for name in ("dev", "prod"):
        settings = stack(name, volumes=[VOLUME], endpoints=[endpoint(), balanced(workers={"peak": 1})])
        assert found(settings) == ()
        enforce(settings, found(settings))


def test_every_rule_has_a_name_in_the_settings_and_says_what_it_asks_for() -> None:
    assert tuple(rule.name for rule in RULES) == RULE_NAMES
    assert all(rule.about and rule.faults.__doc__ for rule in RULES)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("team/worker:latest", "image is team/worker:latest, which names another image every day"),
        ("team/worker", "image is team/worker (latest), which names another image every day"),
        ("localhost:5000/worker", "image is localhost:5000/worker (latest)"),
        ("team/worker:v1", "image is team/worker:v1, a tag, which can be moved"),
    ],
)
def test_an_image_is_pinned_by_digest(image: str, says: str) -> None:
    (finding,) = found(stack(endpoints=[endpoint(image=image)]))
    assert (finding.rule, finding.level, finding.resource) == ("image-digest", "mandatory", "endpoint minilm")
    assert finding.value.startswith(says)
    assert finding.mend == f"Pin it: nightbatch image pin {image} --stack dev --endpoint minilm"


def test_the_workers_of_all_endpoints_together_keep_the_ceiling() -> None:
    two = [endpoint(workers={"peak": 6}), endpoint(name="b", workers={"peak": 5})]
    (finding,) = found(stack(endpoints=two, rules={**CEILINGS, "maxUsdPerHour": 99}))
    assert finding.rule == "worker-ceiling"
    assert finding.value == "11 workers at most (minilm 6 + b 5), over rules.maxWorkers = 10"
    assert found(stack(endpoints=two, rules={"maxWorkers": 11, "maxUsdPerHour": 99})) == ()


def test_dollars_an_hour_keep_the_ceiling_whichever_pool_runpod_gives() -> None:
    # 3 workers on ADA_24, the dearer of the two pools: 3 x 1.116
    assert found(stack(rules={"maxWorkers": 10, "maxUsdPerHour": 3.35})) == ()
    (finding,) = found(stack(rules={"maxWorkers": 10, "maxUsdPerHour": 3.3}))
    assert (finding.rule, finding.resource) == ("cost-ceiling", "the stack")
    assert finding.value.startswith("$3.35 an hour with all workers running, over rules.maxUsdPerHour = 3.3")
    assert "minilm: 3 workers at $1.12" in finding.mend


def test_a_ceiling_of_exactly_what_the_workers_cost_is_kept() -> None:
    rules = {"maxWorkers": 10, "maxUsdPerHour": 11.7}
    two = [
        endpoint(gpu={"pools": ["AMPERE_24", "ADA_24"]}, workers={"peak": 5}),
        endpoint(name="b", gpu={"pools": ["ADA_24", "AMPERE_48"]}, workers={"peak": 5}),
    ]
    assert found(stack(endpoints=two, rules=rules)) == ()
    assert names(stack(endpoints=two, rules={**rules, "maxUsdPerHour": 11.69})) == ["cost-ceiling"]


def test_ceilings_have_to_be_set() -> None:
    both = found(stack(rules={}))
    assert [finding.value for finding in both] == ["rules.maxWorkers is not set", "rules.maxUsdPerHour is not set"]
    assert "3 together" in both[0].mend
    assert "$3.35 an hour" in both[1].mend


def test_a_pool_without_a_price_cannot_keep_a_ceiling() -> None:
    given: dict[str, Any] = {"endpoints": [endpoint(gpu={"pools": ["ADA_24", "ADA_32_PRO"]})]}
    (finding,) = found(stack(**given))
    assert (finding.rule, finding.resource) == ("cost-ceiling", "endpoint minilm")
    assert "ADA_32_PRO" in finding.value
    assert found(stack(gpuPrices={"ADA_32_PRO": 1.6}, **given)) == ()


def test_workers_that_are_always_on_are_for_production_unless_allowed() -> None:
    always = [endpoint(workers={"peak": 3, "min": 2})]
    (finding,) = found(stack("staging", endpoints=always))
    assert (finding.rule, finding.value) == ("active-workers", "workers.min is 2: on day and night, $53.57 a day")
    assert found(stack("staging", endpoints=always, rules={**CEILINGS, "allowActiveWorkers": True})) == ()
    assert found(stack("prod", endpoints=always)) == ()


@pytest.mark.parametrize("timeout", [None, 0])
def test_a_queue_endpoint_has_an_execution_timeout(timeout: int | None) -> None:
    (finding,) = found(stack(endpoints=[endpoint(executionTimeout=timeout)]))
    assert finding.rule == "execution-timeout"
    assert found(stack(endpoints=[balanced()])) == ()


def test_a_second_gpu_pool_is_advised_and_in_production_demanded() -> None:
    one = [endpoint(gpu={"pools": ["ADA_24"]})]
    (dev,) = found(stack("dev", endpoints=one))
    (prod,) = found(stack("prod", endpoints=one))
    assert (dev.rule, dev.level, prod.level) == ("gpu-pools", "advisory", "mandatory")
    assert dev.value == "ADA_24 is its only GPU pool"


def test_production_volumes_are_protected() -> None:
    bare = [{**VOLUME, "protect": False}]
    (finding,) = found(stack("prod", volumes=bare))
    assert (finding.rule, finding.resource) == ("volume-protection", "volume models")
    assert found(stack("dev", volumes=bare)) == ()


def test_levels_are_the_stacks_own_and_everything_is_advisory_on_local() -> None:
    bad: dict[str, Any] = {"endpoints": [endpoint(image="a:latest", executionTimeout=None)]}
    assert {finding.level for finding in found(stack("local", **bad))} == {"advisory"}
    levels = {"image-digest": "advisory", "execution-timeout": "ignore"}
    settings = stack("prod", rules={**CEILINGS, "levels": levels}, **bad)
    assert [(finding.rule, finding.level) for finding in found(settings)] == [("image-digest", "advisory")]
    enforce(settings, found(settings))
    assert level_of("image-digest", stack("local", rules={**CEILINGS, "levels": {"image-digest": "mandatory"}})) == "mandatory"


def test_one_error_lists_every_mandatory_finding_and_leaves_advice_out() -> None:
    settings = stack("dev", endpoints=[endpoint(image="a:latest", executionTimeout=None, gpu={"pools": ["ADA_24"]})])
    findings = found(settings)
    assert [finding.rule for finding in findings] == ["image-digest", "execution-timeout", "gpu-pools"]
    assert [finding.rule for finding in advisory(findings)] == ["gpu-pools"]
    with pytest.raises(RulesBroken) as caught:
        enforce(settings, findings)
    message = str(caught.value)
    assert message.startswith("infra/stacks/Pulumi.dev.yaml: 2 mandatory rules are not kept on stack 'dev':\n")
    assert "\n  image-digest (mandatory): endpoint minilm: image is a:latest" in message
    assert "\n  execution-timeout (mandatory): endpoint minilm: executionTimeout is not set" in message
    assert "gpu-pools" not in message
    assert caught.value.exit_code == 2


def test_every_finding_names_resource_value_and_mend() -> None:
    worst = stack(
        "staging",
        endpoints=[endpoint(image="team/worker", executionTimeout=None, gpu={"pools": ["NEW_1"]}, workers={"peak": 9, "min": 1})],
        rules={"maxWorkers": 1, "maxUsdPerHour": 1},
    )
    for finding in found(worst):
        assert all((finding.resource, finding.value, finding.mend))
        assert str(finding) == f"{finding.rule} ({finding.level}): {finding.resource}: {finding.value}. {finding.mend}"
    assert set(names(worst)) == {"image-digest", "worker-ceiling", "cost-ceiling", "active-workers", "execution-timeout", "gpu-pools"}
