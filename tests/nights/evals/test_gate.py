"""A gate's verdict, its sentence and its exit code."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from contract.errors import UsageError
from nights.evals.gate import Gate, check_gate, judge, night_of, number, p_value
from nights.evals.samples import EvalResult
from nights.record import EvalNight
from tests.nights.evals.worlds import result_of


def of(right: int, n: int = 200, *, night: int = 1, first_wrong: int = 0, **header: Any) -> EvalResult:
    """`right` of `n`, the wrong ones at the end, after `first_wrong` more at the beginning."""
    return result_of([0.0 if index < first_wrong or index >= right + first_wrong else 1.0 for index in range(n)], night=night, **header)


BASE = of(160, night=0)


@pytest.mark.parametrize(
    ("gate", "state", "said"),
    [
        (Gate(), "none", "arithmetic: exact 0.7 (0.6332 to 0.7593 at 95 %)."),
        (Gate(min_score=0.7), "passed", "The gate of arithmetic passed: exact 0.7 (0.6332 to 0.7593 at 95 %)."),
        (Gate(min_score=0.71), "failed", "The gate of arithmetic failed: exact 0.7 is below 0.71."),
        (
            Gate(min_score=0.7, strict=True),
            "failed",
            "The gate of arithmetic failed: exact 0.7 may be below 0.7 (as low as 0.6332 at 95 %).",
        ),
        (Gate(min_score=0.63, strict=True), "passed", "The gate of arithmetic passed: exact 0.7 (0.6332 to 0.7593 at 95 %)."),
    ],
)
def test_a_least_score(gate: Gate, state: str, said: str) -> None:
    verdict = judge(of(140), gate)
    assert (verdict.state, verdict.sentence) == (state, said)
    assert verdict.exit_code == (1 if state == "failed" else 0)


def test_a_regression_that_is_no_chance_and_more_than_allowed_fails_in_one_sentence() -> None:
    verdict = judge(of(140), Gate(max_regression=0.02), BASE, name="main")
    assert verdict.exit_code == 1
    assert verdict.sentence == (
        "The gate of arithmetic failed: exact 0.7 is 0.1 below baseline main (0.8), more than the 0.02 allowed, and not by chance "
        "(p = < 0.001, 200 questions)."
    ).replace("p = <", "p <")


def test_a_regression_that_is_allowed_passes_however_sure_it_is() -> None:
    verdict = judge(of(140), Gate(max_regression=0.1), BASE, name="main")
    assert verdict.comparison is not None
    assert verdict.comparison.significant
    assert verdict.state == "passed"
    assert verdict.sentence == (
        "The gate of arithmetic passed: exact 0.7 (0.6332 to 0.7593 at 95 %), -0.1 against baseline main (-0.1494 to -0.0657, p < 0.001)."
    )


def test_a_fall_that_may_be_chance_passes_unless_the_gate_is_strict() -> None:
    """Five of 200 questions lost: p = 0.06."""
    tonight = of(155)
    verdict = judge(tonight, Gate(max_regression=0.01), BASE, name="main")
    assert verdict.state == "passed"
    assert verdict.notices == ("200 questions do not reliably show a difference below 0.0388, and the gate speaks of 0.01",)
    assert judge(tonight, Gate(max_regression=0.01, confidence=0.9), BASE, name="main").exit_code == 1
    strict = judge(tonight, Gate(max_regression=0.01, strict=True), BASE, name="main")
    assert strict.exit_code == 1
    assert strict.sentence == (
        "The gate of arithmetic failed: exact may have fallen by 0.0572 against baseline main, more than the 0.01 allowed "
        "(95 % interval of the difference -0.0572 to -0.0057, p = 0.062, 200 questions)."
    )


def test_a_strict_gate_passes_an_equal_result_of_enough_questions() -> None:
    same = EvalResult(of(160).header, BASE.samples)
    assert judge(same, Gate(max_regression=0.02, strict=True), BASE).state == "passed"  # nothing changed in 200: within 0.0188
    assert judge(same, Gate(max_regression=0.01, strict=True), BASE).state == "failed"
    assert judge(same, Gate(max_regression=0.0), BASE).state == "passed"


def test_where_lower_is_better_a_rise_is_the_regression() -> None:
    lower = {"higher_is_better": False}
    base, tonight = of(40, night=0, **lower), of(70, **lower)
    verdict = judge(tonight, Gate(max_regression=0.02), base, name="main")
    assert verdict.state == "failed"
    assert "exact 0.35 is 0.15 above baseline main (0.2)" in verdict.sentence
    assert judge(base, Gate(max_regression=0.02), tonight).state == "passed"
    assert judge(tonight, Gate(min_score=0.3)).sentence == "The gate of arithmetic failed: exact 0.35 is above 0.3."
    strict = judge(EvalResult(tonight.header, base.samples), Gate(max_regression=0.001, strict=True), base, name="main")
    assert "may have risen by 0.0188" in strict.sentence


def test_too_many_rows_without_an_answer_fail_whatever_the_score() -> None:
    made = result_of([1.0] * 90 + [0.0] * 10, outcomes={**dict.fromkeys(range(90, 94), "failed"), 95: "cut", 96: "unparsed"})
    verdict = judge(made, Gate(max_failed_percent=5))
    assert verdict.failed_percent == 6
    assert verdict.sentence == (
        "The gate of arithmetic failed: 6 % of the samples failed, were cut or could not be read, more than the 5 % allowed."
    )
    assert judge(made, Gate(max_failed_percent=6)).state == "passed"


def test_every_reason_is_in_the_one_sentence() -> None:
    verdict = judge(of(100), Gate(min_score=0.6, max_regression=0.0), BASE, name="main")
    assert verdict.sentence.count(".") - verdict.sentence.count("0.") == 1
    assert "is below 0.6; exact 0.5 is 0.3 below baseline main (0.8), where none is allowed" in verdict.sentence


def test_a_gate_that_cannot_be_judged_is_not_passed() -> None:
    for baseline, why in (
        (None, "there is no baseline main to compare with"),
        (of(160, night=0, draws=1, suite_digest="b" * 64), "baseline main is not comparable (the suite's definition: bbbb"),
        (of(30, n=40, night=0), "baseline main is not comparable (160 questions are in 2026"),
    ):
        verdict = judge(of(140), Gate(max_regression=0.02), baseline, name="main")
        assert (verdict.state, verdict.exit_code) == ("not comparable", 2)
        assert verdict.sentence.startswith(f"The gate of arithmetic could not be judged: {why}")


def test_a_gate_that_fails_anyhow_fails_also_without_a_baseline() -> None:
    verdict = judge(of(140), Gate(max_regression=0.02, min_score=0.9), None)
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    assert verdict.notices == ("there is no baseline to compare with",)


def test_a_baseline_that_is_not_comparable_is_no_failure_where_only_a_score_is_asked() -> None:
    verdict = judge(of(140), Gate(min_score=0.5), of(140, night=0, suite_digest="b" * 64), name="main")
    assert verdict.state == "passed"
    assert verdict.notices[0].startswith("baseline main is not comparable")


def test_a_score_on_its_limit_keeps_it_whatever_the_last_digit() -> None:
    base, tonight = of(160, night=0), of(154)  # 0.8 - 0.77 is 0.030000000000000027
    assert judge(tonight, Gate(max_regression=0.03), base).state == "passed"
    assert judge(of(154), Gate(min_score=0.77)).state == "passed"


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (Gate(min_score=float("nan")), "gate.min_score nan: is no limit"),
        (Gate(max_regression=-0.1), "gate.max_regression -0.1: is no limit. It is a number from 0"),
        (Gate(max_regression=float("inf")), "is no limit"),
        (Gate(max_failed_percent=101), "It is a number from 0 to 100"),
        (Gate(confidence=95), "gate.confidence 95: is no confidence"),
    ],
)
def test_a_limit_that_is_none_is_refused(gate: Gate, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_gate(gate)


def test_no_sentence_holds_the_content_of_a_row() -> None:
    secret = "my-secret-row"
    tonight = result_of([0.0] * 60, ids=[f"{secret}-{index}" for index in range(60)], answers=[secret] * 60)
    for baseline in (EvalResult(BASE.header, BASE.samples), replace_ids(BASE, secret)):
        verdict = judge(tonight, Gate(min_score=0.5, max_regression=0.1, max_failed_percent=1), baseline, name="main")
        assert secret not in verdict.sentence
        assert not any(secret in text for text in verdict.notices)


def replace_ids(result: EvalResult, text: str) -> EvalResult:
    return EvalResult(result.header, tuple(replace(one, id=f"{text}-{one.index}") for one in result.samples))


def test_a_night_keeps_the_verdict() -> None:
    verdict = judge(of(140), Gate(max_regression=0.02), BASE, name="main")
    night = night_of(of(140), verdict)
    assert isinstance(night, EvalNight)
    assert (night.gate, night.baseline, night.baseline_score, night.score, night.rows) == ("failed", "main", 0.8, 0.7, 200)
    assert verdict.comparison is not None
    assert (night.difference, night.p_value) == (verdict.comparison.difference, verdict.comparison.p_value)
    alone = night_of(of(140), judge(of(140), Gate()))
    assert (alone.gate, alone.baseline, alone.difference) == ("none", None, None)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.41239, "0.4124"), (0.5, "0.5"), (1.0, "1"), (0.0, "0"), (-0.00001, "0"), (37.456, "37.46"), (100.0, "100"), (12345.6, "12346")],
)
def test_numbers_are_said_with_four_digits(value: float, said: str) -> None:
    assert number(value) == said


def test_p_values_are_said() -> None:
    assert [p_value(value) for value in (1.0, 0.0312, 0.00099, 0.0)] == ["= 1", "= 0.031", "< 0.001", "< 0.001"]
