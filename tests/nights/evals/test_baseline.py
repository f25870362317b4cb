"""Baselines are pinned and never lost, and only what is comparable is compared."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from contract.errors import Damaged, UsageError
from contract.memory import MemoryStore, Objects
from contract.models import StoreMode
from nights.evals.baseline import Baselines, NotComparable, compare, differences
from nights.evals.results import Results
from nights.evals.samples import EvalResult
from tests.nights.evals.worlds import result_of

ONE, TWO = result_of([1, 0, 1]), result_of([1, 1, 1], night=1)


async def kept(*results: EvalResult, objects: Objects | None = None, mode: StoreMode = "conditional") -> Baselines:
    found = Results(MemoryStore(objects, mode=mode), "team")
    for one in results or (ONE, TWO):
        await found.put(one)
    return Baselines(found)


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_a_baseline_outlives_the_result_that_it_pins(mode: StoreMode) -> None:
    baselines = await kept(mode=mode)
    made, former = await baselines.set("main", "arithmetic", ONE.header.result, note="release 1")
    assert former is None
    assert (made.score, made.note) == (2 / 3, "release 1")
    await baselines.results.store.delete(baselines.results.key("arithmetic", ONE.header.result))
    assert await baselines.load(await baselines.get("arithmetic", "main")) == ONE
    assert await baselines.result(await baselines.results.find("arithmetic/main")) == ONE


async def test_a_baseline_whose_copy_is_gone_or_changed_is_read_from_the_result_itself() -> None:
    objects = Objects()
    baselines = await kept(objects=objects)
    made, _ = await baselines.set("main", "arithmetic", ONE.header.result)
    for spoil in (lambda key: objects.data.update({key: b"x"}), objects.data.pop):
        spoil(baselines.copy(made))
        assert await baselines.load(made) == ONE
    objects.data.pop(baselines.results.key("arithmetic", ONE.header.result))
    with pytest.raises(UsageError, match="that baseline main pins is gone"):
        await baselines.load(made)


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_another_result_takes_a_baselines_place_only_when_that_is_said(mode: StoreMode) -> None:
    objects = Objects()
    baselines = await kept(objects=objects, mode=mode)
    first, _ = await baselines.set("main", "arithmetic", ONE.header.result)
    with pytest.raises(UsageError, match=rf"baseline main of suite arithmetic is pinned to {ONE.header.result}. Add --replace"):
        await baselines.set("main", "arithmetic", TWO.header.result)
    assert await baselines.get("arithmetic", "main") == first
    second, former = await baselines.set("main", "arithmetic", TWO.header.result, replace=True)
    assert (former, second.result) == (first, TWO.header.result)
    assert await baselines.list("arithmetic") == (second,)
    assert baselines.copy(first) not in objects.data


async def test_the_same_baseline_again_changes_nothing() -> None:
    objects = Objects()
    baselines = await kept(objects=objects)
    made, _ = await baselines.set("main", "arithmetic", ONE.header.result)
    writes = dict(objects.writes)
    assert await baselines.set("main", "arithmetic", ONE.header.result) == (made, made)
    assert objects.writes == writes


async def test_of_two_who_pin_at_once_one_is_told() -> None:
    baselines = await kept()
    rival = Baselines(Results(MemoryStore(baselines.results.store.objects), "team"))  # type: ignore[attr-defined]

    async def first(op: str, key: str) -> None:
        if op == "put_if_absent":
            baselines.results.store.hook = nothing  # type: ignore[attr-defined]
            await rival.set("main", "arithmetic", TWO.header.result)

    async def nothing(op: str, key: str) -> None:
        return None

    baselines.results.store.hook = first  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=f"is pinned to {TWO.header.result}"):
        await baselines.set("main", "arithmetic", ONE.header.result)
    assert await rival.load(await rival.get("arithmetic", "main")) == TWO


async def test_a_removed_baseline_leaves_its_result_and_nothing_else() -> None:
    objects = Objects()
    baselines = await kept(objects=objects)
    before = set(objects.data)
    await baselines.set("main", "arithmetic", ONE.header.result)
    assert (await baselines.remove("arithmetic", "main")).result == ONE.header.result
    assert set(objects.data) == before
    with pytest.raises(UsageError, match="has no baseline main"):
        await baselines.remove("arithmetic", "main")
    for suite, name in (("..", "main"), ("arithmetic", "../../runs/x")):
        with pytest.raises(UsageError, match="is no name of a baseline"):
            await baselines.remove(suite, name)


@pytest.mark.parametrize("name", ["latest", "previous", "a/b", "", "20261130", "20261130-x", "Main"])
async def test_a_name_that_would_mean_something_else_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name for a baseline"):
        await (await kept()).set(name, "arithmetic", ONE.header.result)


async def test_a_baseline_that_is_not_there_says_which_are() -> None:
    baselines = await kept()
    await baselines.set("release-1", "arithmetic", ONE.header.result)
    with pytest.raises(UsageError, match=r"has no baseline release-2. Did you mean release-1\?"):
        await baselines.get("arithmetic", "release-2")
    with pytest.raises(UsageError, match=f"has no result {ONE.header.result}x"):
        await baselines.set("main", "arithmetic", f"{ONE.header.result}x")


async def test_a_damaged_baseline_is_named() -> None:
    objects = Objects()
    baselines = await kept(objects=objects)
    objects.data[baselines.key("arithmetic", "main")] = b"{}"
    with pytest.raises(Damaged, match=r"s3://memory/team/evals/arithmetic/baselines/main.json"):
        await baselines.get("arithmetic", "main")


# --- comparable ----------------------------------------------------------------------------------------------------------------------


def changed(**header: Any) -> EvalResult:
    return EvalResult(replace(TWO.header, **header), TWO.samples)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"suite": "code"}, "suite: arithmetic -> code"),
        ({"dataset_digest": "e" * 64}, "dataset: dddddddddddd -> eeeeeeeeeeee"),
        ({"suite_digest": "b" * 64}, "the suite's definition: aaaaaaaaaaaa -> bbbbbbbbbbbb"),
        ({"scorers": {"exact": "exact 2"}}, "scorer exact: exact 1 -> exact 2"),
        ({"scorers": {"exact": "exact 1", "f1": "f1 1"}}, "scorer f1: none -> f1 1"),
        ({"headline": "f1"}, "headline: exact -> f1"),
        ({"draws": 4}, "draws: 1 -> 4"),
        ({"higher_is_better": False}, "higher is better: true -> false"),
    ],
)
def test_what_was_asked_or_judged_otherwise_is_not_comparable(header: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotComparable) as caught:
        compare(ONE, changed(**header))
    assert caught.value.reasons == (reason,)
    assert caught.value.exit_code == 2
    assert ONE.header.result in str(caught.value)


def test_what_may_differ_is_said() -> None:
    made_with = {"model": "qwen", "image": "worker@sha256:1", "sampling": "temperature=1", "judge": "j"}
    found = differences(ONE.header, replace(TWO.header, model="qwen", stack="prod", made_with=made_with))
    assert found.reasons == ()
    assert found.changed == (
        "model: smollm2 -> qwen",
        "stack: local -> prod",
        "sampling: temperature=0 -> temperature=1",
        "judge: none -> j",
    )


def test_another_prompt_is_named_where_it_is_the_suites() -> None:
    prompt = {**TWO.header.made_with, "prompt": "2222"}
    first = replace(ONE.header, made_with={**ONE.header.made_with, "prompt": "1111"})
    assert differences(first, replace(TWO.header, made_with=prompt)).changed == ("prompt: 1111 -> 2222",)
    pinned = differences(first, replace(TWO.header, made_with=prompt, suite_digest="b" * 64))
    assert (pinned.reasons, pinned.changed) == (("prompt: 1111 -> 2222",), ())


def test_questions_that_only_one_of_both_has_are_a_reason_and_are_named() -> None:
    more = result_of([1, 1, 1, 0], night=1)
    with pytest.raises(NotComparable, match=r"1 question is in 20261201T\S+ only\. .* has 'q00003'"):
        compare(ONE, more)
    with pytest.raises(NotComparable, match=r"2 questions are in"):
        compare(more, result_of([1, 1], night=2))


def test_a_comparison_is_the_same_whenever_it_is_made() -> None:
    first, second = result_of([[1, 0], [0, 0], [1, 1]] * 9), result_of([[1, 1], [0, 1], [1, 1]] * 9, night=1)
    assert compare(first, second) == compare(first, second)
    assert compare(first, second)[0].difference == pytest.approx(1 / 3)
