"""Nights that evaluate: scored, compared with a pinned baseline, gated, and never paid twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract.rows import RowError
from nights.evals.baseline import Baselines
from nights.evals.results import Results
from nights.jobs.files import JobFile
from nights.jobs.model import Job
from nights.night import Call, run_night
from nights.preview import preview
from nights.record import EvalNight, NightRecord
from tests.nights.kit import NightHouse
from tests.pipelines.planning import write_jsonl

FIRST, SECOND = "2026-03-10", "2026-03-11"
SUITE = """\
version: 1
dataset: questions.jsonl
id_column: id
column: question
target_column: answer
scorers:
  - kind: exact
sampling:
  max_tokens: 8
"""


class Nights:
    """An eval job over ten questions of which the model knows `knows`."""

    def __init__(self, folder: Path, knows: int = 8, **job: Any) -> None:
        self.folder, self.settings = folder, job
        self.house = NightHouse()
        self.know(knows)
        (folder / "suites").mkdir()
        (folder / "suites" / "sums.yaml").write_text(SUITE)
        write_jsonl(folder / "suites" / "questions.jsonl", ({"id": f"q{n}", "question": f"n {n}", "answer": str(n)} for n in range(10)))

    def know(self, count: int) -> None:
        self.house.says = lambda text: text[2:] if int(text[2:]) < count else "no idea"

    def file(self, **more: Any) -> JobFile:
        given: dict[str, Any] = {
            "name": "sums", "kind": "eval", "suite": "suites/sums.yaml", "model": "smollm2", "stack": "test", **self.settings, **more
        }  # fmt: skip
        return JobFile(self.folder / "jobs" / "sums.yaml", Job.model_validate(given), self.folder)

    async def night(self, date: str = FIRST, **more: Any) -> NightRecord:
        return (await run_night(self.file(**more), date, self.house)).record

    async def pin(self, record: NightRecord, name: str = "good") -> None:
        await Baselines(Results(self.house.store)).set(name, "sums", evaluation(record).result)


def evaluation(record: NightRecord) -> EvalNight:
    assert record.evaluation is not None, record.sentence
    return record.evaluation


async def test_a_night_is_scored_and_keeps_its_result(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    record = await nights.night()
    assert (record.state, record.exit_code, record.rows) == ("done", 0, 10)
    found = evaluation(record)
    assert (found.score, found.gate) == (0.8, "none")
    kept = await Results(nights.house.store).get("sums", found.result)
    assert len(kept.samples) == 10


async def test_the_same_night_again_asks_nobody_and_each_date_asks_anew(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    await nights.night()
    asked = len(nights.house.asked)
    nights.house.objects.data.pop(f"nights/sums/{FIRST}.json")
    again = await nights.night()
    assert len(nights.house.asked) == asked
    assert evaluation(again).score == 0.8
    await nights.night(SECOND)
    assert len(nights.house.asked) == 2 * asked


async def test_a_score_below_the_gate_ends_the_night_with_1_and_one_sentence(tmp_path: Path) -> None:
    nights = Nights(tmp_path, gate={"min_score": 0.9})
    record = await nights.night()
    assert (record.state, record.exit_code, evaluation(record).gate) == ("done", 1, "failed")
    assert [event.kind for event in record.events] == ["gate"]
    assert record.sentence.count(". ") == 0
    assert "0.8" in record.sentence
    assert "0.9" in record.sentence


async def test_a_regression_against_the_pinned_baseline_fails_the_gate(tmp_path: Path) -> None:
    nights = Nights(tmp_path, knows=10)
    await nights.pin(await nights.night())
    nights.know(2)
    gate: dict[str, Any] = {"baseline": "good", "gate": {"max_regression": 0.1}}
    record = await nights.night(SECOND, **gate)
    found = evaluation(record)
    assert (record.exit_code, found.gate, found.baseline, found.baseline_score) == (1, "failed", "good", 1.0)
    assert found.difference == pytest.approx(-0.8)


async def test_a_baseline_that_is_not_there_yet_keeps_the_score_and_ends_with_2(tmp_path: Path) -> None:
    nights = Nights(tmp_path, baseline="good", gate={"max_regression": 0.1})
    looked = await preview(nights.file(), FIRST, nights.house, Call())
    assert any("has no baseline good yet" in notice for notice in looked.notices)
    record = await nights.night()
    assert (record.state, record.exit_code, evaluation(record).gate) == ("done", 2, "not comparable")
    assert evaluation(record).score == 0.8
    assert [event.kind for event in record.events] == ["gate"]
    assert any("nightbatch eval baseline set good sums/latest" in notice for notice in record.notices)


async def test_a_failed_question_counts_as_wrong_and_is_no_failure_of_the_night(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    known = nights.house.says
    nights.house.says = lambda text: RowError(code="bad", message="no") if text == "n 0" else known(text)
    record = await nights.night()
    assert (record.state, record.exit_code, record.failed) == ("done", 0, 1)
    assert evaluation(record).score == pytest.approx(0.7)
    assert evaluation(record).counts["failed"] == 1


async def test_a_suite_that_lost_questions_is_asked_about(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    await nights.night()
    write_jsonl(tmp_path / "suites" / "questions.jsonl", ({"id": f"q{n}", "question": f"n {n}", "answer": str(n)} for n in range(5)))
    record = await nights.night(SECOND)
    assert record.state == "asking"
    assert "5 rows, 50.0 % fewer than the 10" in record.sentence


async def test_what_a_scorer_quotes_of_answers_is_told_to_who_looks_on_and_to_nobody_else(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    (tmp_path / "suites" / "mine.py").write_text("def score(answer, target, record):\n    raise ValueError(answer)\n")
    (tmp_path / "suites" / "sums.yaml").write_text(SUITE.replace("kind: exact", "{kind: function, function: mine.py:score}"))
    nights.house.says = lambda text: "a secret of row content"
    record = await nights.night()
    assert (record.state, record.exit_code) == ("failed", 2)
    assert "failed on all 10 answers, first with ValueError, line 2" in record.sentence
    assert "secret of row" not in msgspec.json.encode(record).decode()
    assert "scorer function, on the first answer: ValueError: a secret of row content, line 2" in nights.house.notes


async def test_no_object_that_is_kept_names_a_folder_that_is_gone(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    assert (await nights.night()).state == "done"
    assert not [key for key, data in nights.house.objects.data.items() if b"nightbatch-scratch" in data]


async def test_a_preview_of_a_suite_that_lost_questions_says_that_it_would_ask(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    await nights.night()
    write_jsonl(tmp_path / "suites" / "questions.jsonl", ({"id": f"q{n}", "question": f"n {n}", "answer": str(n)} for n in range(5)))
    found = await preview(nights.file(), SECOND, nights.house, Call())
    assert (found.rows, [doubt.accept for doubt in found.doubts]) == (5, ["shrink"])


async def test_a_suite_with_mistakes_says_them_with_their_lines(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    (tmp_path / "suites" / "sums.yaml").write_text(SUITE.replace("exact", "exakt"))
    record = await nights.night()
    assert (record.state, record.exit_code) == ("failed", 2)
    assert "in this suite; nothing was sent" in record.sentence
    assert any("sums.yaml:" in notice and "exakt" in notice for notice in record.notices), record.notices
    assert record.notices[0] in nights.house.notes


async def test_a_preview_prices_the_questions_and_stores_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    found = await preview(nights.file(), FIRST, nights.house, Call())
    assert found.planned is not None
    assert found.planned.plan.dataset.rows == 10
    assert not [key for key in nights.house.objects.data if "probe" not in key]
