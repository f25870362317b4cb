"""An evaluation's own result through all that is done with results: statistics, gate, diff, history, log."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.rows import RowError
from nights.evals import inspect_log, stats
from nights.evals.baseline import Baselines, compare
from nights.evals.diff import diff
from nights.evals.evaluate import Asked, Evaluated, evaluate
from nights.evals.gate import Gate, judge, night_of
from nights.evals.history import history
from nights.evals.results import Results
from nights.evals.suite import Suite, load_suite
from tests.nights.kit import Answer, NightHouse

QUESTIONS = 24


def suite_of(folder: Path, **keys: Any) -> Suite:
    rows = [
        {"id": f"q{n}", "question": f"{n}+{n}", "answer": str(2 * n), "half": "first" if n < 12 else "second"} for n in range(QUESTIONS)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {
        "version": 1,
        "dataset": "rows.jsonl",
        "id_column": "id",
        "prompt": "{question}",
        "target_column": "answer",
        "group_column": "half",
        "scorers": [{"kind": "numeric", "k": [1, 2]}, {"kind": "f1"}, {"kind": "bleu"}],
        "sampling": {"temperature": 1.0},
        "draws": 4,
        **keys,
    }
    (folder / "sums.yaml").write_text(yaml.safe_dump(made))
    return load_suite(folder / "sums.yaml")


async def evaluated(suite: Suite, house: NightHouse, again: str, step: int) -> Evaluated:
    """Every `step`th answer is wrong, one question fails and one is cut."""
    count = itertools.count()

    def says(text: str) -> Answer:
        left = int(text.split("+")[0])
        if left == 3:
            return RowError(code="engine", message="no")
        if left == 5:
            return "10 and so", "length"
        return f"It is {2 * left + (next(count) % step == 0)}."

    house.says = says
    return await evaluate(suite, house, Asked(model="smollm2", again=again))


async def test_what_is_said_of_a_result_is_what_its_header_says(tmp_path: Path) -> None:
    found = (await evaluated(suite_of(tmp_path), NightHouse(), "a", 3)).result
    header = found.header
    assert {"numeric", "numeric@2", "f1", "bleu", "bleu_sentence"} <= set(header.metrics)
    for metric in ("numeric", "numeric@1", "numeric@2", "f1"):
        interval = stats.score_interval(found, metric)
        assert interval.value == pytest.approx(header.metrics[metric])
        assert interval.low < interval.value < interval.high
        assert interval.questions == QUESTIONS
        assert "corpus" not in (interval.notice or "")
    bleu = stats.score_interval(found, "bleu")
    assert bleu.value == pytest.approx(header.metrics["bleu"])
    assert "of the whole corpus" in (bleu.notice or "")
    assert stats.questions_of(found, "bleu").values.mean() == pytest.approx(header.metrics["bleu_sentence"])
    groups = [stats.questions_of(found, group=group).values.mean() for group in ("first", "second")]
    assert groups == pytest.approx([header.details["groups"][group]["numeric"] for group in ("first", "second")])


async def test_two_evaluations_are_compared_gated_and_kept_as_a_history(tmp_path: Path) -> None:
    house, suite = NightHouse(), suite_of(tmp_path)
    first = (await evaluated(suite, house, "a", 5)).result
    house.objects.advance(86_400)
    house.image = house.image.replace("a" * 64, "b" * 64) if house.image else None
    second = (await evaluated(suite, house, "b", 2)).result
    kept = Baselines(Results(house.store))
    await kept.set("main", "sums", first.header.result)
    base = await kept.load(await kept.get("sums", "main"))
    comparison, _ = compare(base, second)
    assert comparison.difference == pytest.approx(second.header.metrics["numeric"] - first.header.metrics["numeric"])
    verdict = judge(second, Gate(max_regression=0.05, max_failed_percent=5), base, name="main")
    assert verdict.state == "failed"
    assert verdict.failed_percent == pytest.approx(100 * 2 / QUESTIONS)
    night = night_of(second, verdict)
    assert night.rows == QUESTIONS
    assert night.score == pytest.approx(second.header.metrics["numeric"])
    found = diff(first, second)
    assert found.questions == QUESTIONS
    assert sum(one.after - one.before for one in (*found.worse, *found.better)) / QUESTIONS == pytest.approx(comparison.difference)
    assert all(one.first.scores["numeric"] >= one.second.scores["numeric"] for one in found.worse)
    at_two = diff(first, second, metric="numeric@2")
    assert all(one.first.scores["numeric"] > one.second.scores["numeric"] for one in at_two.worse)
    entries = history(await kept.results.headers("sums"))
    assert [one.series for one in entries] == [1, 1]
    assert entries[1].difference == pytest.approx(comparison.difference)


async def test_the_same_suite_with_another_prompt_is_another_one(tmp_path: Path) -> None:
    house = NightHouse()
    first = (await evaluated(suite_of(tmp_path), house, "a", 5)).result
    house.objects.advance(60)
    second = (await evaluated(suite_of(tmp_path, prompt="{question} ="), house, "a", 5)).result
    verdict = judge(second, Gate(max_regression=0.5), first, name="main")
    assert verdict.state == "not comparable"
    assert "prompt: " in verdict.sentence
    entries = history([first.header, second.header])
    assert entries[1].breaks[0].startswith("prompt: ")


async def test_its_log_has_every_draw_and_its_means(tmp_path: Path) -> None:
    found = (await evaluated(suite_of(tmp_path), NightHouse(), "a", 3)).result
    log = inspect_log.eval_log(found)
    assert len(log["samples"]) == QUESTIONS * 4
    means = {one["name"]: one["metrics"]["mean"]["value"] for one in log["results"]["scores"]}
    assert next(iter(means)) == "numeric"
    for metric in ("numeric", "numeric@2", "f1"):
        assert means[metric] == pytest.approx(found.header.metrics[metric])
        assert means[metric] == pytest.approx(math.fsum(one["scores"][metric]["value"] for one in log["samples"]) / len(log["samples"]))
    assert sum(one.get("error") is not None for one in log["samples"]) == 4
