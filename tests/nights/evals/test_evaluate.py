# tests/nights/evals: a whole evaluation in one process: real planning, worker code, collecting and verifying over a scripted engine.
from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from contract.errors import Damaged, DatasetError, UsageError
from contract.models import StoreMode
from contract.rows import RowError
from nights.evals import evaluate as module
from nights.evals.evaluate import Asked, Evaluated, Unfinished, evaluate, preview
from nights.evals.judge import PREAMBLE
from nights.evals.results import Results
from nights.evals.suite import Suite, load_suite
from pipelines.plan import PlannedRun
from pipelines.work import Finished, Following
from tests.nights.kit import Answer, NightHouse
from tests.pipelines.planning import stack_of

ASKED = Asked(model="smollm2", date="2026-03-10")


def suite_of(folder: Path, rows: list[dict[str, Any]], name: str = "arithmetic", **keys: Any) -> Suite:
    """A suite file and its dataset."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {
        "version": 1,
        "dataset": "rows.jsonl",
        "id_column": "id",
        "prompt": "Q: {question}",
        "target_column": "answer",
        "scorers": [{"kind": "numeric"}],
        **keys,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in made.items() if value is not None}))
    return load_suite(path)


def sums(count: int) -> list[dict[str, Any]]:
    return [{"id": f"q{n}", "question": f"{n}+{n}", "answer": 2 * n, "subject": "even" if n % 2 == 0 else "odd"} for n in range(count)]


def says(answers: dict[str, Answer], otherwise: Answer = "no idea") -> Callable[[str], Answer]:
    """By what is asked."""
    return lambda text: next((answer for part, answer in answers.items() if f"Q: {part}" in text), otherwise)


async def result_of(suite: Suite, house: NightHouse, asked: Asked = ASKED) -> Evaluated:
    return await evaluate(suite, house, asked)


# --- what counts ---------------------------------------------------------------------------------------------------------------------


async def test_every_question_counts_whatever_became_of_it(tmp_path: Path) -> None:
    """Right, wrong, failed, cut with the right answer in it, and unreadable: one in five is right."""
    suite = suite_of(tmp_path, sums(5), group_column="subject")
    house = NightHouse(
        says=says({"0+0": "It is 0.", "1+1": "It is 3.", "2+2": RowError(code="engine", message="no"), "3+3": ("6 and so", "length")})
    )
    found = await result_of(suite, house)
    header, samples = found.result.header, found.result.samples
    assert [sample.outcome for sample in samples] == ["ok", "ok", "failed", "cut", "unparsed"]
    assert header.counts == {"ok": 2, "failed": 1, "cut": 1, "unparsed": 1}
    assert [sample.scores["numeric"] for sample in samples] == [1, 0, 0, 0, 0]
    assert header.metrics == {"numeric": 0.2}
    assert found.score == 0.2
    assert sum(header.counts.values()) == len(samples) == header.details["questions"] == 5
    assert header.details["unparsed"] == {"numeric": 1}
    assert header.details["groups"] == {"even": {"samples": 3, "numeric": 1 / 3}, "odd": {"samples": 2, "numeric": 0.0}}
    assert samples[0].parsed == "0"
    assert samples[2].answer is None
    assert samples[2].error == "engine: no"
    assert samples[3].answer == "6 and so"
    assert samples[4].explanation == "no number is in it"
    assert [sample.id for sample in samples] == [f"q{n}" for n in range(5)]
    assert samples[1].input == "Q: 1+1"
    assert samples[1].target == "2"
    assert (samples[0].tokens_in, samples[0].tokens_out) == (2, 4)
    assert (header.binary, header.draws, header.headline) == (True, 1, "numeric")
    assert header.model == "SmolLM2-135M-Instruct"
    assert json.loads(header.made_with["sampling"]) == {"temperature": 0.0, "max_tokens": 512, "draws": 1}


async def test_all_rows_failed_is_a_score_of_nothing_and_not_an_error(tmp_path: Path) -> None:
    house = NightHouse(says=lambda text: RowError(code="engine", message="no"))
    found = await result_of(suite_of(tmp_path, sums(3)), house)
    assert found.result.header.metrics == {"numeric": 0.0}
    assert found.result.header.counts["failed"] == 3


async def test_the_result_is_kept_where_results_are(tmp_path: Path) -> None:
    for mode in ("conditional", "last-writer"):
        dialect: StoreMode = "conditional" if mode == "conditional" else "last-writer"
        house = NightHouse(says=says({}, "0"), mode=dialect, stack=stack_of(prefix="team"))
        found = await result_of(suite_of(tmp_path, sums(3)), house)
        assert re.fullmatch(r"team/evals/arithmetic/results/\d{8}T\d{6}Z-[0-9a-f]{8}\.jsonl\.zst", found.key)
        assert await Results(house.store, "team").get("arithmetic", found.result.header.result) == found.result


async def test_the_same_evaluation_twice_is_one(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, sums(4))
    house = NightHouse(says=says({}, "4"))
    first = await result_of(suite, house)
    asked, jobs = len(house.asked), len(house.jobs_run)
    house.objects.advance(3600)
    again = await result_of(suite, house)
    assert again.repeated
    assert again.result == first.result
    assert again.runs == ()
    assert (len(house.asked), len(house.jobs_run)) == (asked, jobs), "nothing is sent again"
    other = await result_of(suite, house, replace(ASKED, date="2026-03-11"))
    assert not other.repeated
    assert len(house.asked) == 2 * asked, "another date is another measurement"
    assert other.result.header.result > first.result.header.result, "in order of time"
    assert other.result.header.suite_digest == first.result.header.suite_digest


async def test_another_scorer_over_the_same_answers_pays_nothing(tmp_path: Path) -> None:
    house = NightHouse(says=says({}, "4"))
    first = await result_of(suite_of(tmp_path, sums(4)), house)
    asked = len(house.asked)
    second = await result_of(suite_of(tmp_path, sums(4), scorers=[{"kind": "numeric", "absolute": 2}]), house)
    assert len(house.asked) == asked
    assert first.result.header.run == second.result.header.run
    assert second.key != first.key
    assert second.result.header.suite_digest != first.result.header.suite_digest, "not comparable"
    assert (first.score, second.score) == (0.25, 0.75)


async def test_what_must_be_equal_and_what_may_differ(tmp_path: Path) -> None:
    async def header(house: NightHouse | None = None, rows: list[dict[str, Any]] | None = None, **keys: Any) -> Any:
        found = await result_of(suite_of(tmp_path, rows or sums(3), **keys), house or NightHouse(says=says({}, "4")))
        return found.result.header

    plain = await header()
    warm = await header(sampling={"temperature": 1.0})
    assert warm.suite_digest == plain.suite_digest, "sampling may differ, and is said"
    assert warm.made_with["sampling"] != plain.made_with["sampling"]
    changed = await header(rows=[{**row, "answer": 0} for row in sums(3)])
    assert changed.dataset_digest != plain.dataset_digest
    extra = await header(rows=[{**row, "note": "unused"} for row in sums(3)])
    assert extra.dataset_digest == plain.dataset_digest, "a column that nothing looks at"
    for keys in ({"prompt": "Question: {question}"}, {"scorers": ["exact"]}, {"limit": 2}):
        assert (await header(**keys)).suite_digest != plain.suite_digest, keys


# --- draws ---------------------------------------------------------------------------------------------------------------------------


async def test_draws_give_pass_at_k_by_the_unbiased_estimate(tmp_path: Path) -> None:
    """4 draws a question; q0 has 2 right ones, q1 none, q2 failed. Computed here by enumerating all subsets."""
    from itertools import combinations

    scripts = {"0+0": iter(["0", "1", "0", "x"]), "1+1": iter(["9", "9", "9", "9"])}

    def answer(text: str) -> Answer:
        for part, script in scripts.items():
            if part in text:
                return next(script)
        return RowError(code="engine", message="no")

    keys: dict[str, Any] = {"draws": 4, "sampling": {"temperature": 1.0, "seed": 1}, "scorers": [{"kind": "numeric", "k": [1, 2, 4]}]}
    found = await result_of(suite_of(tmp_path, sums(3), **keys), NightHouse(says=answer))
    header, samples = found.result.header, found.result.samples
    right = [[True, False, True, False], [False] * 4, [False] * 4]
    for k in (1, 2, 4):
        expected = sum(sum(any(draws[n] for n in some) for some in combinations(range(4), k)) / math.comb(4, k) for draws in right) / len(
            right
        )
        assert header.metrics[f"numeric@{k}"] == pytest.approx(expected)
        assert sum(sample.scores[f"numeric@{k}"] for sample in samples) / len(samples) == pytest.approx(expected)
    assert header.metrics["numeric"] == pytest.approx(2 / 12)
    assert [(sample.id, sample.draw) for sample in samples] == [(f"q{n}", draw) for n in range(3) for draw in range(4)]
    assert header.counts == {"ok": 7, "failed": 4, "cut": 0, "unparsed": 1}
    assert header.draws == 4
    assert not header.binary
    assert sum(sample.tokens_out for sample in samples[:4]) == samples[0].tokens_out > 0, "tokens are not counted four times"


# --- other metrics -------------------------------------------------------------------------------------------------------------------


async def test_bleu_is_of_the_corpus_in_which_a_lost_answer_is_an_empty_line(tmp_path: Path) -> None:
    import sacrebleu

    target = "the quick brown fox jumps over the lazy dog"
    rows = [{"id": f"q{n}", "question": f"{n}", "answer": target} for n in range(3)]
    house = NightHouse(says=says({"0": target, "1": "the quick brown fox sleeps"}, RowError(code="engine", message="no")))
    header = (await result_of(suite_of(tmp_path, rows, scorers=["bleu"]), house)).result.header
    expected = sacrebleu.corpus_bleu([target, "the quick brown fox sleeps", ""], [[target] * 3]).score
    assert header.metrics["bleu"] == pytest.approx(expected)
    assert header.metrics["bleu"] < sacrebleu.corpus_bleu([target, "the quick brown fox sleeps"], [[target] * 2]).score
    assert header.metrics["bleu_sentence"] != header.metrics["bleu"]
    assert "sentence" in header.details["corpus"]["bleu"]
    assert not header.binary


async def test_several_metrics_stand_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def length(answer, target, record):\n    return min(1.0, len(answer) / 10)\n")
    keys: dict[str, Any] = {
        "scorers": ["exact", "numeric", "f1", {"kind": "function", "function": "mine.py:length", "name": "length"}],
        "headline": "numeric",
    }
    found = await result_of(suite_of(tmp_path, sums(2), **keys), NightHouse(says=says({"0+0": "It is 0"}, "2")))
    assert found.result.header.metrics == {"exact": 0.5, "numeric": 1.0, "f1": pytest.approx((0.5 + 1) / 2), "length": pytest.approx(0.4)}
    assert found.result.header.headline == "numeric"
    assert set(found.result.header.scorers) == {"exact", "numeric", "f1", "length"}


async def test_a_scorer_that_fails_on_some_answers_says_so_and_on_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(answer, target, record):\n    return 1.0 if answer == '0' else answer.missing\n")
    keys: dict[str, Any] = {"scorers": [{"kind": "function", "function": "mine.py:score"}]}
    found = await result_of(suite_of(tmp_path, sums(3), **keys), NightHouse(says=says({"0+0": "0"}, "1")))
    header = found.result.header
    assert header.metrics["function"] == pytest.approx(1 / 3)
    assert header.counts == {"ok": 1, "failed": 0, "cut": 0, "unparsed": 2}
    assert header.details["scorer_errors"]["function"]["count"] == 2
    assert header.details["scorer_errors"]["function"]["first"] == "AttributeError: 'str' object has no attribute 'missing', line 2"
    house = NightHouse(says=says({}, "1"))
    with pytest.raises(
        UsageError, match=r"scorer function: failed on all 3 answers, first with AttributeError, line 2.*not paid for again"
    ):
        await result_of(suite_of(tmp_path, sums(3), **keys), house)
    assert (await Results(house.store).suites()) == {}, "nothing is kept"


@pytest.mark.slow
async def test_generated_code_is_run_and_scored(tmp_path: Path) -> None:
    rows = [{"id": f"q{n}", "question": f"f{n}", "test": f"assert f({n}) == {n * n}"} for n in range(4)]
    answers: dict[str, Answer] = {
        "f0": "```python\ndef f(x):\n    return x * x\n```",
        "f1": "def f(x):\n    return x * x + 1",
        "f2": "import sys\nsys.exit(0)",
        "f3": ("def f(x):\n    return 9", "length"),
    }
    keys: dict[str, Any] = {
        "scorers": [{"kind": "code", "tests": "{test}\n", "seconds": 5}],
        "target_column": None,
        "allow_code_execution": True,
    }
    found = await result_of(suite_of(tmp_path, rows, **keys), NightHouse(says=says(answers)))
    header, samples = found.result.header, found.result.samples
    assert header.metrics == {"pass@1": 0.25}
    assert header.headline == "pass@1"
    assert header.binary
    assert header.made_with["code_isolation"] == "full"
    assert [sample.outcome for sample in samples] == ["ok", "ok", "ok", "cut"]
    assert samples[1].explanation == "failed: AssertionError (tests.py:1)"
    assert samples[2].explanation == "ended: it ended itself (SystemExit) before its tests had passed"


@pytest.mark.slow
async def test_ctrl_c_while_code_runs_ends_it_and_the_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running_code = asyncio.Event()
    loop, true = asyncio.get_running_loop(), module.score

    def score(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(running_code.set)
        return true(*arguments)

    monkeypatch.setattr(module, "score", score)
    rows = [{"id": f"q{n}", "question": f"f{n}"} for n in range(3)]
    keys: dict[str, Any] = {
        "scorers": [{"kind": "code", "tests": "pass", "seconds": 600}],
        "target_column": None,
        "allow_code_execution": True,
    }
    house = NightHouse(says=says({}, "while True: pass"))
    suite = suite_of(tmp_path, rows, **keys)
    running = asyncio.ensure_future(result_of(suite, house))
    await running_code.wait()
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    house.says = says({}, "x = 1")
    keys["scorers"] = [{"kind": "code", "tests": "pass", "seconds": 1}]
    assert (await result_of(suite_of(tmp_path, rows, **keys), house)).score == 0
    assert len(house.asked) == 3, "nothing is asked again"


# --- the judge -----------------------------------------------------------------------------------------------------------------------


def judged_by(verdicts: Callable[[str], Answer], answers: dict[str, Answer], otherwise: Answer = "no idea") -> Callable[[str], Answer]:
    """An engine that answers, and as a judge grades."""
    ask = says(answers, otherwise)
    return lambda text: verdicts(text) if text.startswith(PREAMBLE) else ask(text)


JUDGED: dict[str, Any] = {"scorers": [{"kind": "model_graded"}], "judge": {"model": "smollm2"}}


async def test_a_judge_grades_by_a_run_of_its_own(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, sums(6), **JUDGED)

    def verdict(text: str) -> Answer:
        known: dict[str, Answer] = {"right": "Fine.\nGRADE: C", "wrong": "No.\nGRADE: I", "vague": "Hm.", "long": ("So", "length")}
        for answer, said in known.items():
            if f"\n{answer}\n</answer-" in text:
                return said
        return RowError(code="engine", message="no")

    answers: dict[str, Answer] = {"0+0": "right", "1+1": "wrong", "2+2": "vague", "3+3": "long", "4+4": "odd", "5+5": ("right", "length")}
    house = NightHouse(says=judged_by(verdict, answers))
    found = await result_of(suite, house)
    header, samples = found.result.header, found.result.samples
    assert [sample.scores["model_graded"] for sample in samples] == [1, 0, 0, 0, 0, 0]
    assert [sample.outcome for sample in samples] == ["ok", "ok", "unparsed", "unparsed", "unparsed", "cut"]
    assert header.details["judge"] == {"ok": 2, "unparsed": 1, "failed": 1, "cut": 1, "empty": 0}
    assert header.metrics["model_graded"] == pytest.approx(1 / 6)
    assert sum(text.startswith(PREAMBLE) for text in house.asked) == 5, "an answer that was cut off is wrong, and is not graded"
    assert len(found.runs) == 2
    assert header.judge_run == found.runs[1].plan.run != header.run
    assert header.made_with["judge_model"] == "SmolLM2-135M-Instruct"
    assert re.fullmatch("[0-9a-f]{16}", header.made_with["judge_prompt"])
    assert header.usd_estimated == pytest.approx(sum(run.result.usd_estimated for run in found.runs))
    assert "GRADE: C" in (samples[0].explanation or "")
    asked = len(house.asked)
    assert (await result_of(suite, house)).repeated
    assert len(house.asked) == asked


async def test_another_judge_or_prompt_is_not_comparable(tmp_path: Path) -> None:
    house = NightHouse(says=judged_by(lambda text: "GRADE: C", {}, "x"))
    first = await result_of(suite_of(tmp_path, sums(2), **JUDGED), house)
    prompt = {"model": "smollm2", "prompt": "Is {answer} well said? GRADE: C or GRADE: I"}
    second = await result_of(suite_of(tmp_path, sums(2), **{**JUDGED, "judge": prompt}), house)
    assert first.result.header.suite_digest != second.result.header.suite_digest
    assert first.result.header.made_with["judge_prompt"] != second.result.header.made_with["judge_prompt"]


async def test_where_no_answer_came_whole_no_judge_is_asked(tmp_path: Path) -> None:
    house = NightHouse(
        says=judged_by(lambda text: "GRADE: C", {"0+0": ("x", "length"), "1+1": "  "}, RowError(code="engine", message="no"))
    )
    found = await result_of(suite_of(tmp_path, sums(3), **JUDGED), house)
    assert len(found.runs) == 1
    assert found.result.header.judge_run is None
    assert found.result.header.counts == {"ok": 0, "failed": 1, "cut": 1, "unparsed": 1}
    assert found.result.header.metrics["model_graded"] == 0


async def test_a_judge_stopped_in_the_middle_goes_on_and_pays_only_for_the_rest(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, sums(3), **JUDGED)
    house = NightHouse(says=judged_by(lambda text: "GRADE: C", {}, "x"))

    def cut_the_judge(planned: PlannedRun) -> None:
        house.cut = "-judge-" in planned.uri.run_id

    house.on_complete = cut_the_judge
    with pytest.raises(Unfinished) as caught:
        await result_of(suite, house)
    assert caught.value.exit_code == 4
    assert len(house.asked) == 3, "the questions, and none of the judge's"
    assert (await Results(house.store).suites()) == {}
    house.on_complete = lambda planned: setattr(house, "cut", False)
    found = await result_of(suite, house)
    assert found.score == 1.0
    assert len(house.asked) == 6


# --- what stops it -------------------------------------------------------------------------------------------------------------------


async def test_a_run_that_is_stopped_gives_no_score_and_goes_on_later(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, sums(4))
    house = NightHouse(says=says({}, "4"), cut=True)
    with pytest.raises(Unfinished, match="deadline") as caught:
        await result_of(suite, house)
    assert caught.value.exit_code == 4
    assert (await Results(house.store).suites()) == {}
    house.cut = False
    assert (await result_of(suite, house)).score == 0.25


async def test_a_caller_can_bring_the_runs_to_their_end_itself(tmp_path: Path) -> None:
    house = NightHouse(says=judged_by(lambda text: "GRADE: C", {}, "x"))
    brought: list[str] = []

    async def complete(planned: PlannedRun, out: str) -> Finished:
        brought.append(planned.uri.run_id)
        return await house.complete(planned, Following(out=out))

    await evaluate(suite_of(tmp_path, sums(2), **JUDGED), house, ASKED, complete=complete)
    assert [re.sub("-[0-9a-f]{8}$", "", run) for run in brought] == [
        "arithmetic-generate-2026-03-10",
        "arithmetic-judge-generate-2026-03-10",
    ]


async def test_budget_and_deadline_are_of_both_runs_together(tmp_path: Path) -> None:
    house = NightHouse(says=judged_by(lambda text: "GRADE: C", {}, "x"))
    seen: list[Following] = []
    true = house.complete

    async def complete(planned: PlannedRun, how: Following) -> Finished:
        seen.append(how)
        house.objects.advance(600)
        finished = await true(planned, how)
        return replace(finished, result=replace(finished.result, usd_estimated=0.4))

    house.complete = complete  # type: ignore[method-assign, assignment]
    await evaluate(suite_of(tmp_path, sums(2), **JUDGED), house, replace(ASKED, budget_usd=1.0, deadline=timedelta(hours=1)))
    assert [how.budget_usd for how in seen] == [1.0, pytest.approx(0.6)]
    first, second = (how.deadline for how in seen)
    assert first is not None
    assert second is not None
    assert first == timedelta(hours=1)
    assert second < timedelta(minutes=51)


async def test_questions_that_cannot_be_scored_are_all_said_before_anything_is_sent(tmp_path: Path) -> None:
    rows = [
        *sums(2),
        {"id": "q2", "question": "x", "answer": "none"},
        {"id": "q3", "question": "y", "answer": None},
        {"id": "q4", "answer": 1},
    ]
    rows.append({"id": "q0", "question": "0+0", "answer": 0})
    house = NightHouse()
    with pytest.raises(DatasetError, match="no question") as caught:
        await result_of(suite_of(tmp_path, rows), house)
    assert [row.line for row in caught.value.bad_rows] == [5, 6], "what is no row comes first"
    assert "is the id of" in caught.value.bad_rows[1].reason
    with pytest.raises(DatasetError, match="2 rows are no questions") as caught:
        await result_of(suite_of(tmp_path, rows[:4]), house)
    assert [(row.line, row.reason) for row in caught.value.bad_rows] == [
        (3, "`numeric` cannot score it: its target 'none' holds no number"),
        (4, "`numeric` cannot score it: it has no target"),
    ]
    assert house.asked == []
    assert house.objects.data == {}, "not even a plan"


async def test_a_preview_stores_nothing(tmp_path: Path) -> None:
    house = NightHouse()
    prepared, planned = await preview(suite_of(tmp_path, sums(7)), house, ASKED)
    assert len(prepared.questions.all) == planned.plan.dataset.rows == 7
    assert planned.plan.estimate.usd.likely > 0
    assert not [key for key in house.objects.data if "/plan.json" in key or key.startswith("evals/")]


async def test_an_output_that_lost_a_row_makes_no_score(tmp_path: Path) -> None:
    house = NightHouse(says=says({}, "4"))

    async def complete(planned: PlannedRun, out: str) -> Finished:
        finished = await house.complete(planned, Following(out=out))
        lines = Path(out).read_bytes().splitlines(keepends=True)
        Path(out).write_bytes(b"".join(lines[:-1]))
        return finished

    with pytest.raises(Damaged, match=r"1 of 4 rows are neither in the output nor among the errors: 'q3'"):
        await evaluate(suite_of(tmp_path, sums(4)), house, ASKED, complete=complete)


async def test_two_at_once_keep_one_result(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, sums(2))
    house = NightHouse(says=says({}, "0"))

    async def complete(planned: PlannedRun, out: str) -> Finished:
        finished = await house.complete(planned, Following(out=out))
        if not house.notes.count("inner"):
            house.notes.append("inner")
            other = await evaluate(suite, house, ASKED)
            header = msgspec.structs.replace(other.result.header, usd_estimated=9.0)
            key = Results(house.store).key("arithmetic", header.result)
            house.objects.data[key] = module_pack(header, other.result.samples)
        return finished

    found = await evaluate(suite, house, ASKED, complete=complete)
    assert found.repeated
    assert found.result.header.usd_estimated == 9.0


def module_pack(header: Any, samples: Any) -> bytes:
    from nights.evals.samples import pack

    return pack(header, samples)


async def test_where_code_cannot_be_shut_in_nothing_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contract.errors import InfrastructureError

    def refuse(*_: Any, **__: Any) -> Any:
        raise InfrastructureError("this machine cannot shut generated code in (no).")

    monkeypatch.setattr("nights.evals.scorers.run_programs", refuse)
    keys: dict[str, Any] = {"scorers": [{"kind": "code", "tests": "pass"}], "target_column": None, "allow_code_execution": True}
    house = NightHouse()
    with pytest.raises(InfrastructureError):
        await result_of(suite_of(tmp_path, sums(2), **keys), house)
    assert house.asked == []
    assert house.objects.data == {}


async def test_a_base_model_gets_the_text_as_it_stands(tmp_path: Path) -> None:
    house = NightHouse(says=lambda text: "4" if text == "Q: 2+2\nA:" else "no")
    found = await result_of(suite_of(tmp_path, sums(3), prompt="Q: {question}\nA:", chat=False), house)
    assert [sample.scores["numeric"] for sample in found.result.samples] == [0, 0, 1]
    assert module.FORMAT == 1
