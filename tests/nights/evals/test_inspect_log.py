"""Results in inspect_ai's log format: what the file says, and what the real package reads in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from contract.errors import UsageError
from nights.evals import inspect_log
from nights.evals.samples import EvalResult
from tests.nights.evals.worlds import result_of

READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
from inspect_ai.log._headline import resolve_headline_metric
from inspect_ai.scorer import SampleScore, mean, mean_score
path, folder = sys.argv[1:]
log = read_eval_log(path)
resolved = resolve_headline_metric(log.results, log.eval.headline_metric)
reduced = {}
for sample in log.samples:
    reduced.setdefault(sample.id, []).append(sample.scores[log.eval.headline_metric.score])
print(json.dumps({
    "status": log.status,
    "task": log.eval.task,
    "model": log.eval.model,
    "epochs": log.eval.config.epochs,
    "dataset": [log.eval.dataset.samples, log.eval.dataset.sample_ids],
    "counted": [log.results.total_samples, log.results.completed_samples],
    "headline": [resolved.score.name, resolved.metric.value],
    "reduced": mean()([SampleScore(score=mean_score()(scores)) for scores in reduced.values()]),
    "scores": {score.name: score.metrics["mean"].value for score in log.results.scores},
    "samples": [
        {
            "id": sample.id, "epoch": sample.epoch, "input": sample.input, "target": sample.target,
            "completion": sample.output.completion, "stop": str(sample.output.stop_reason) if sample.output.choices else None,
            "scores": {name: score.as_float() for name, score in sample.scores.items()},
            "answers": [score.answer for score in sample.scores.values()],
            "error": sample.error.message if sample.error else None, "tokens": sample.output.usage.total_tokens,
            "messages": [message.role for message in sample.messages],
        }
        for sample in log.samples
    ],
    "listed": [[info.task, info.task_id, info.suffix] for info in list_eval_logs(folder)],
    "header": read_eval_log(path, header_only=True).eval.task,
    "again": log.model_dump(mode="json", exclude_none=True)["samples"][0]["id"],
}))
"""


def hostile() -> EvalResult:
    """Draws, failures, cuts, several metrics, targets of both kinds, and text that breaks careless writers."""
    made = result_of([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0]], binary=False, outcomes={2: "failed", 3: "cut"})
    samples = [
        replace(
            sample,
            scores={**sample.scores, "rouge": 0.25},
            target=("a", "b") if sample.index == 1 else None if sample.index == 3 else sample.target,
            input="</script><b>\u2028\x1b[31m 日本 \U0001f600" if sample.index == 0 else sample.input,
            explanation="judge said so" if sample.index == 1 else None,
            group="hard",
        )
        for sample in made.samples
    ]
    return EvalResult(
        replace(made.header, scorers={"exact": "exact 1", "rouge": "rouge-score 0.1.2"}, details={"k": [1, 2]}), tuple(samples)
    )


def test_every_sample_is_there_and_the_headline_comes_first() -> None:
    log = inspect_log.eval_log(hostile())
    assert [(one["id"], one["epoch"]) for one in log["samples"]][:3] == [("q00000", 1), ("q00000", 2), ("q00001", 1)]
    assert [one["name"] for one in log["results"]["scores"]] == ["exact", "rouge"]
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == pytest.approx(hostile().header.metrics["exact"])
    assert (log["results"]["total_samples"], log["results"]["completed_samples"]) == (8, 6)


def test_the_log_is_written_whole_and_under_the_name_that_a_folder_asks_for(tmp_path: Path) -> None:
    made = hostile()
    path = inspect_log.write(made, tmp_path)
    assert path.name == f"2026-11-30T02-15-00+00-00_arithmetic_{made.header.result.replace('-', '')}.json"
    assert inspect_log.write(made, tmp_path / "log.json") == tmp_path / "log.json"
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([path.name, "log.json"])
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(inspect_log.eval_log(made)))


@pytest.mark.parametrize(
    ("out", "said"), [("log.eval", "Name a file that ends in .json"), ("no/folder/log.json", "in a folder that exists")]
)
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, out: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        inspect_log.write(hostile(), tmp_path / out)


def test_a_lone_surrogate_is_replaced_and_not_the_end_of_the_log(tmp_path: Path) -> None:
    path = inspect_log.write(result_of([1], answers=["half \ud800 of one"]), tmp_path / "log.json")
    assert json.loads(path.read_bytes())["samples"][0]["output"]["completion"] == "half \ufffd of one"


@pytest.mark.readers
@pytest.mark.slow
def test_the_real_package_reads_the_same_scores_and_samples(tmp_path: Path, repo: Path) -> None:
    made = hostile()
    path = inspect_log.write(made, tmp_path)
    python = subprocess.run([str(repo / "scripts/bootstrap"), "readers"], capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run([python, "-c", READ, str(path), str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    read: dict[str, Any] = json.loads(done.stdout)
    header = made.header
    assert (read["status"], read["task"], read["model"], read["epochs"]) == ("success", "arithmetic", "smollm2", 2)
    assert read["dataset"] == [4, ["q00000", "q00001", "q00002", "q00003"]]
    assert read["counted"] == [8, 6]
    assert read["headline"] == ["exact", pytest.approx(header.metrics["exact"])]
    assert read["reduced"] == pytest.approx(header.metrics["exact"])
    assert read["scores"] == {"exact": pytest.approx(header.metrics["exact"]), "rouge": 0.25}
    assert read["listed"] == [["arithmetic", header.result.replace("-", ""), None]]
    assert read["header"] == "arithmetic"
    assert len(read["samples"]) == len(made.samples)
    for theirs, ours in zip(read["samples"], made.samples, strict=True):
        assert (theirs["id"], theirs["epoch"], theirs["input"]) == (ours.id, ours.draw + 1, ours.input)
        assert theirs["scores"] == ours.scores
        assert theirs["completion"] == (ours.answer or "")
        assert theirs["target"] == (list(ours.target) if isinstance(ours.target, tuple) else ours.target or "")
        assert theirs["error"] == ours.error
        assert theirs["answers"] == [ours.parsed] * 2
        assert theirs["tokens"] == ours.tokens_in + ours.tokens_out
        assert theirs["stop"] == {"cut": "max_tokens", "failed": None}.get(ours.outcome, "stop")
        assert theirs["messages"] == (["user", "assistant"] if ours.answer is not None else ["user"])
