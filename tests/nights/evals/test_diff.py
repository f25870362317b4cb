"""Which questions got worse, and how both answers are shown on a terminal that they may not touch."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from contract.errors import UsageError
from nights.evals.baseline import NotComparable
from nights.evals.diff import diff, folded, one_line, plain, record, shown
from nights.evals.samples import EvalResult
from tests.nights.evals.worlds import result_of

FIRST = result_of([1, 1, 0, 0, 1])
SECOND = result_of([1, 0, 1, 0, 0], night=1)
HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \r gone \u202eesrever\u202c \u200b\u2028 \x00 \ud800"


def test_what_got_worse_and_what_got_better() -> None:
    found = diff(FIRST, SECOND)
    assert [one.id for one in found.worse] == ["q00001", "q00004"]
    assert [one.id for one in found.better] == ["q00002"]
    assert (found.same, found.questions) == (2, 5)
    assert found.worse[0].first.answer == found.worse[0].second.answer == "answer 1.0"


def test_where_lower_is_better_a_rise_got_worse() -> None:
    first, second = (EvalResult(replace(one.header, higher_is_better=False), one.samples) for one in (FIRST, SECOND))
    assert [one.id for one in diff(first, second).worse] == ["q00002"]


def test_the_largest_change_is_first_and_of_many_draws_the_two_that_show_it() -> None:
    first = result_of([[1, 0, 1], [1, 1, 1], [0, 0, 0]])
    second = result_of([[1, 0, 0], [0, 0, 0], [0, 1, 0]], night=1)
    found = diff(first, second)
    assert [one.id for one in found.worse] == ["q00001", "q00000"]
    assert (found.worse[1].first.draw, found.worse[1].second.draw) == (0, 1)
    assert (found.better[0].first.draw, found.better[0].second.draw) == (0, 1)


def test_other_questions_are_refused_and_with_common_left_out_and_named() -> None:
    second = result_of([1, 0, 1, 0, 0, 1], night=1, dataset_digest="e" * 64, suite_digest="b" * 64)
    samples = tuple(replace(one, input="another question") if one.index == 1 else one for one in second.samples)
    second = EvalResult(second.header, samples)
    with pytest.raises(NotComparable, match=r"dataset: dddddddddddd -> eeeeeeeeeeee; 1 question is in the second only"):
        diff(FIRST, second)
    found = diff(FIRST, second, common=True)
    assert (found.only_first, found.only_second, found.rewritten) == ((), ("q00005",), ("q00001",))
    assert [one.id for one in found.worse] == ["q00004"]
    assert found.questions == 4


def test_what_was_scored_otherwise_is_never_shown_as_a_change() -> None:
    second = EvalResult(replace(SECOND.header, scorers={"exact": "exact 2"}), SECOND.samples)
    for common in (False, True):
        with pytest.raises(NotComparable, match="scorer exact: exact 1 -> exact 2"):
            diff(FIRST, second, common=common)


def test_results_without_a_common_question_are_refused() -> None:
    with pytest.raises(UsageError, match="no question in common"):
        diff(result_of([1], ids=["a"]), result_of([1], ids=["b"], night=1), common=True)


def test_hostile_answers_do_nothing_to_a_terminal() -> None:
    first = result_of([1], ids=[HOSTILE], answers=[HOSTILE * 30])
    second = result_of([0], ids=[HOSTILE], answers=[HOSTILE], night=1)
    samples = tuple(replace(one, input=HOSTILE, target=(HOSTILE, HOSTILE), parsed=HOSTILE) for one in second.samples)
    first = EvalResult(first.header, tuple(replace(one, input=HOSTILE, target=(HOSTILE, HOSTILE)) for one in first.samples))
    change = diff(first, EvalResult(second.header, samples)).worse[0]
    for width in (20, 80, 200):
        for line in shown(change, "exact", width=width):
            assert not re.search("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", line)
            assert cell_len(line) <= width
    assert r"\x1b[31mred\x1b[0m" in plain(HOSTILE)


@pytest.mark.parametrize("width", [20, 40, 59, 60, 61, 100, 237])
@pytest.mark.parametrize("answer", ["日本語の答え" * 40, "word " * 200, "x" * 999, "👩‍👩‍👧" * 50, "a\tb\n\n\nc", "", "e\u0301" * 80])
def test_no_line_is_wider_than_the_terminal(width: int, answer: str) -> None:
    change = diff(result_of([1], answers=["yes"]), result_of([0], answers=[answer], night=1)).worse[0]
    lines = list(shown(change, "exact", width=width))
    assert max(cell_len(line) for line in lines) <= width
    assert any(" │ " in line for line in lines) == (width >= 60)


def test_both_answers_stand_side_by_side_with_what_was_read_in_them() -> None:
    first = result_of([1], answers=["The answer is 4."])
    second = result_of([0], answers=["The answer is 5.\nI am sure."], outcomes={0: "cut"}, night=1)
    assert list(shown(diff(first, second).worse[0], "exact", width=80, names=("main", "tonight"))) == [
        "worse q00000 exact 1 -> 0",
        "  question 0?",
        "  target: 0",
        "  main: exact 1, read as 0              │ tonight: exact 0, cut, read as 0",
        "  The answer is 4.                      │ The answer is 5.",
        "                                        │ I am sure.",
    ]


def test_an_answer_that_is_not_there_says_why() -> None:
    change = diff(result_of([1]), result_of([0], outcomes={0: "failed"}, night=1)).worse[0]
    assert any("no answer: engine error" in line for line in shown(change, "exact", width=80))


def test_long_answers_are_cut_and_say_by_how_much() -> None:
    lines = folded("\n".join(str(number) for number in range(100)), 40, 5)
    assert lines == ["0", "1", "2", "3", "… 96 more lines"]
    assert len(folded("\n".join(map(str, range(100))), 40, None)) == 100
    huge = folded("y" * 1_000_000, 80, None)
    assert huge[-1] == "… 980,000 more characters"
    assert one_line("a b" * 100, 10) == "a ba ba b…"


def test_a_record_for_programs_holds_everything_as_it_is() -> None:
    made = record(diff(result_of([1], answers=[HOSTILE]), result_of([0], answers=["no"], night=1)).worse[0])
    assert made["first"]["answer"] == HOSTILE
    assert (made["before"], made["after"], made["worse"]) == (1.0, 0.0, True)
