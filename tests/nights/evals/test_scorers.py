# tests/nights/evals: what each scorer takes for an answer, what it takes for a right one, and what it says it cannot read.
from __future__ import annotations

import math
import threading
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from contract.errors import UsageError
from nights.evals.scorers import (
    Bleu,
    Item,
    Mark,
    Scorer,
    ScorerSettings,
    choice_letter,
    find_choice,
    find_numbers,
    make_scorer,
    metric_names,
    pass_at_k,
)

SETTINGS: TypeAdapter[Any] = TypeAdapter(ScorerSettings)


def scorer(kind: str, folder: Path = Path("."), **settings: Any) -> Scorer:
    return make_scorer(SETTINGS.validate_python({"kind": kind, **settings}), folder)


def marked(kind: str, answer: str, *targets: str, choices: tuple[str, ...] = (), **settings: Any) -> Mark:
    return scorer(kind, **settings).marks([(Item("q", "?", targets, choices), answer)])[0]


def right(kind: str, answer: str, *targets: str, **settings: Any) -> bool:
    mark = marked(kind, answer, *targets, **settings)
    assert mark.score in (0, 1)
    assert not (mark.unparsed and mark.score)
    return mark.score == 1


# --- pass@k --------------------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_subsets_with_a_right_one(drawn: tuple[int, int, int]) -> None:
    n, c, k = drawn
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_equals_the_published_product() -> None:
    """Chen et al. 2021: 1 - prod(1 - k / i for i in n-c+1 … n)."""
    for n, c, k in ((128, 3, 100), (100, 50, 1), (20, 20, 5), (10, 0, 10), (64, 1, 64)):
        product = math.prod(1 - k / i for i in range(n - c + 1, n + 1)) if n - c >= k else 0.0
        assert pass_at_k(n, c, k) == pytest.approx(1 - product, rel=1e-9)
    with pytest.raises(ValueError):
        pass_at_k(4, 1, 5)


# --- exact ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "target", "settings", "expected"),
    [
        ("Paris", "Paris", {}, True),
        ("  Paris\n", "Paris", {}, True),
        ("New\n  York", "New York", {}, True),
        ("New\n  York", "New York", {"ignore_space": False}, False),
        ("paris", "Paris", {}, False),
        ("STRASSE", "straße", {"ignore_case": True}, True),
        ("Paris.", "Paris", {}, False),
        ("«Paris»!", "Paris", {"ignore_punctuation": True}, True),
        ("the Eiffel Tower", "Eiffel Tower", {"ignore_articles": True}, True),
        ("theatre", "atre", {"ignore_articles": True}, False),
        ("４２", "42", {}, True),
        ("４２", "42", {"ignore_form": False}, False),
        ("I think so. Answer: Paris", "Paris", {"extract": r"Answer: (\w+)"}, True),
        ("Answer: London\nAnswer: Paris", "Paris", {"extract": r"Answer: (\w+)"}, True),
    ],
)
def test_exact(answer: str, target: str, settings: dict[str, Any], expected: bool) -> None:
    assert right("exact", answer, target, **settings) is expected


def test_exact_takes_any_of_several_targets() -> None:
    assert right("exact", "NYC", "New York", "NYC")
    assert not right("exact", "LA", "New York", "NYC")


def test_exact_says_what_it_cannot_read() -> None:
    assert marked("exact", "  ", "Paris").unparsed
    assert marked("exact", "London", "Paris", extract="Answer: (.*)").unparsed
    assert not marked("exact", "London", "Paris").unparsed, "wrong, and read"


# --- numbers -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", ["42"]),
        ("It is 42.", ["42"]),
        ("-1,234,567.50", ["-1234567.5"]),
        ("\u2212 5 and \u22125", ["5", "-5"]),
        ("3/4 of 1 1/2", ["3/4", "3/2"]),
        ("½, 1½", ["1/2", "3/2"]),
        (r"\frac{1}{2} \dfrac{-3}{4}", ["1/2", "-3/4"]),
        ("2e3 and 1.5E-2", ["2000", "3/200"]),
        ("$5, -$6, $-7, €1.000,5", ["5", "-6", "-7", "1", "5"]),
        (r"50% or 12.5 % or 7\%", ["50", "12.5", "7"]),
        ("5-3", ["5", "3"]),
        ("10–12", ["10", "12"]),
        ("(-3)", ["-3"]),
        ("1,2,3", ["1", "2", "3"]),
        ("1,2345", ["1", "2345"]),
        ("1\u202f234", ["1234"]),
        ("1 234", ["1", "234"]),
        ("1{,}234", ["1234"]),
        ("1'234", ["1234"]),
        ("x2, H2O and room12", []),
        ("42km, 3rd", ["42", "3"]),
        ("10²", ["10"]),
        ("５", ["5"]),
        ("= .5", ["1/2"]),
        ("1/0", []),
        ("#### 1,000", ["1000"]),
        ("", []),
        ("no number", []),
        (r"\boxed{7}", ["7"]),
        ("- 5 apples", ["5"]),
    ],
)
def test_numbers_of_a_text(text: str, expected: list[str]) -> None:
    assert [number.value for number in find_numbers(text)] == [Fraction(one) for one in expected]


def test_numbers_with_a_decimal_comma() -> None:
    assert [number.value for number in find_numbers("1.234,5 und 3,14", decimal=",")] == [Fraction("1234.5"), Fraction("3.14")]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_a_number_is_found_however_it_is_written(value: Any) -> None:
    for text in (f"{value}", f"{value:,}", f"so {value:,}.", f"= {value} m"):
        assert [number.value for number in find_numbers(text)] == [Fraction(value)], text


def test_numbers_that_would_take_forever_are_none() -> None:
    assert [number.value for number in find_numbers("1e999999999 and 1e-999999999 and " + "9" * 5000 + " and 7")] == [7]
    assert next(find_numbers("1,000" * 40_000 + " 1/" * 40_000 + "-" * 100_000 + "$" * 10_000)).value is not None


@pytest.mark.parametrize(
    ("answer", "target", "settings", "expected"),
    [
        ("First 3, so 42", "42", {}, True),
        ("42, because 6 * 7", "42", {}, False),
        ("42, because 6 * 7", "42", {"take": "first"}, True),
        ("He has 5 + 2 = 7 #### 7", "5 + 2 = <<5+2=7>>7\n#### 7", {}, True),
        ("1,000", "1000.0", {}, True),
        ("0.5", "1/2", {}, True),
        ("50%", "0.5", {}, False),
        ("50%", "0.5", {"percent": "fraction"}, True),
        ("50%", "50", {}, True),
        ("3.14", "3.14159", {}, False),
        ("3.14", "3.14159", {"absolute": 0.01}, True),
        ("99", "100", {"relative": 0.01}, True),
        ("98.9", "100", {"relative": 0.01}, False),
        ("0.3", "0.2", {"absolute": 0.1}, True),
        ("Steps: 3. Answer: 42 (in 5 s)", "42", {"extract": r"Answer: (.*?) \("}, True),
        ("3,5", "3.5", {}, False),
        ("3,5", "3,5", {"decimal": ","}, True),
    ],
)
def test_numeric(answer: str, target: str, settings: dict[str, Any], expected: bool) -> None:
    assert right("numeric", answer, target, **settings) is expected


def test_numeric_says_what_it_cannot_read() -> None:
    assert marked("numeric", "forty-two", "42").unparsed
    assert marked("numeric", "4 or 2", "4", take="only").unparsed
    assert not marked("numeric", "4, that is 4.0", "4", take="only").unparsed
    assert scorer("numeric").problem(Item("q", "?", ("none",))) == "its target 'none' holds no number"
    assert scorer("numeric").problem(Item("q", "?", ())) == "it has no target"


# --- patterns ------------------------------------------------------------------------------------------------------------------------


def test_a_pattern_is_found_or_not() -> None:
    assert right("regex", "the cat sat", pattern=r"\bcat\b")
    assert not right("regex", "the category", pattern=r"\bcat\b")
    assert not right("regex", "the CAT", pattern="cat")
    assert right("regex", "the CAT", pattern="cat", flags=["ignore_case"])
    assert not right("regex", "a cat", pattern="cat", whole=True)
    assert right("regex", "cat", pattern="cat", whole=True)


def test_what_a_pattern_finds_is_compared_with_the_target() -> None:
    settings: dict[str, Any] = {"pattern": r"colou?r is (?P<what>\w+)", "group": "what"}
    assert right("regex", "The color is red. No: the colour is Blue", "blue", ignore_case=True, **settings)
    assert not right("regex", "The color is red", "blue", **settings)
    assert marked("regex", "It is blue", "blue", **settings).unparsed
    with pytest.raises(UsageError, match="no group 2"):
        scorer("regex", pattern="(a)", group=2)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="is no regular expression"):
        SETTINGS.validate_python({"kind": "regex", "pattern": "("})


# --- choices -------------------------------------------------------------------------------------------------------------------------

CITIES = ("Paris", "London", "Rome", "New York")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("B", "B"),
        ("b)", "B"),
        ("(b)", "B"),
        ("B.", "B"),
        ("B: London", "B"),
        ("B, because", "B"),
        ("**B**", "B"),
        ("**B. London**", "B"),
        ("The answer is B.", "B"),
        ("The answer is (B) because (A) is wrong.", "B"),
        ("Answer: **B**", "B"),
        ("**Answer:** B", "B"),
        ("Answer\nis: B", "B"),
        ("The answer is A. No, wait: the answer is B.", "B"),
        ("The correct option is B because option A is wrong", "B"),
        (r"So \boxed{B}", "B"),
        (r"So \boxed{\text{(B)}}", "B"),
        ("London", "B"),
        ("london.", "B"),
        ("I think it is London.", "B"),
        ("The best answer is: New York", "D"),
        ("We conclude:\nB", "B"),
        ("I choose option B", "B"),
        ("A dog barks", None),
        ("Either (A) or (B)", None),
        ("Paris or Rome", None),
        ("E", None),
        ("The answer is not A", None),
        ("The answer is A's", None),
        ("", None),
        ("Parisian", None),
    ],
)
def test_the_letter_of_an_answer(answer: str, expected: str | None) -> None:
    assert find_choice(answer, CITIES) == expected


def test_a_choice_inside_a_longer_one_is_not_meant() -> None:
    assert find_choice("It is New York.", ("York", "New York")) == "B"
    assert find_choice("It is York.", ("York", "New York")) == "A"
    assert find_choice("London", ("London", "london ")) is None, "two choices with the same text"
    assert find_choice("It is London", CITIES, own_text=False) is None


@pytest.mark.parametrize(
    ("target", "expected"), [("B", "B"), ("b", "B"), ("(B)", "B"), ("1", "B"), ("London", "B"), ("E", None), ("7", None), ("Bonn", None)]
)
def test_the_letter_of_a_target(target: str, expected: str | None) -> None:
    assert choice_letter(Item("q", "?", (), CITIES), target) == expected


def test_a_choice_that_is_a_number_is_itself_and_not_an_index() -> None:
    assert choice_letter(Item("q", "?", (), ("3", "1", "2")), "1") == "B"


def test_choice() -> None:
    assert right("choice", "The answer is (C)", "Rome", choices=CITIES)
    assert not right("choice", "The answer is (C)", "A", choices=CITIES)
    assert marked("choice", "Who knows", "A", choices=CITIES).unparsed
    assert right("choice", "A B C => 2", "C", choices=CITIES, extract=r"=> (\d)")
    assert scorer("choice").problem(Item("q", "?", ("E",), CITIES)) == "its target 'E' is none of its 4 choices"
    assert scorer("choice").problem(Item("q", "?", ("A",), ("one",))) == "it has 1 choices"


# --- overlap -------------------------------------------------------------------------------------------------------------------------


def test_f1_is_squads() -> None:
    """Examples by hand: articles and punctuation do not count, words count as often as they stand."""
    assert marked("f1", "The cat.", "cat").score == 1
    assert marked("f1", "a black cat", "cat").score == pytest.approx(2 / 3)
    assert marked("f1", "cat cat cat", "cat cat").score == pytest.approx(4 / 5)
    assert marked("f1", "dog", "cat", "dog").score == 1
    assert marked("f1", "the", "cat").score == 0
    assert marked("f1", "dog", "cat").score == 0
    assert marked("f1", "the", "a").score == 1, "as SQuAD: nothing is nothing"


def test_rouge_is_the_librarys() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    answer, target = "the cats sat on the mat", "a cat was sitting on a mat"
    for variant in ("rouge1", "rouge2", "rougeL"):
        expected = RougeScorer([variant], use_stemmer=True).score(target, answer)[variant].fmeasure
        assert marked("rouge", answer, target, variant=variant).score == pytest.approx(expected)
    assert marked("rouge", answer, "nothing", answer).score == 1
    assert metric_names(SETTINGS.validate_python({"kind": "rouge"})) == ("rougeL",)
    assert "rouge-score 0" in scorer("rouge").described


def test_bleu_over_a_corpus_with_several_targets_is_the_librarys() -> None:
    import sacrebleu

    answers = ["the cat sat on the mat", "hello there my friend", ""]
    targets = [("the cat sat on a mat", "there is a cat on the mat"), ("hello there my old friend",), ("lost",)]
    bleu = scorer("bleu")
    assert isinstance(bleu, Bleu)
    pairs = [(Item(str(n), "?", targets[n]), answers[n]) for n in range(3)]
    references: Any = [[one[0] for one in targets], [one[1] if len(one) > 1 else None for one in targets]]
    assert bleu.whole(pairs) == pytest.approx(sacrebleu.corpus_bleu(answers, references).score)
    assert bleu.marks(pairs)[0].score == pytest.approx(sacrebleu.sentence_bleu(answers[0], list(targets[0])).score)
    assert bleu.marks(pairs)[2].score == 0
    assert bleu.most == 100


# --- JSON ----------------------------------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"name": "Ann", "age": 3}', True),
        ('Here:\n```json\n{"name": "Ann"}\n```\nEnjoy.', True),
        ('{"name": "Ann", "age": -1}', False),
        ('{"age": 3}', False),
        ('{"name": "Ann", "x": 1}', False),
        ("[]", False),
    ],
)
def test_json_that_a_schema_allows(answer: str, expected: bool) -> None:
    assert right("json_schema", answer, schema=SCHEMA) is expected


@pytest.mark.parametrize("answer", ["", "none", '{"name": NaN}', "{'name': 'Ann'}", '{"name": "Ann"} and more', "[" * 100_000])
def test_what_is_no_json_is_unparsed(answer: str) -> None:
    assert marked("json_schema", answer, schema=SCHEMA).unparsed


def test_a_schema_says_what_is_wrong_and_is_checked_itself(tmp_path: Path) -> None:
    assert marked("json_schema", '{"name": 3}', schema=SCHEMA).explanation == "$.name: 3 is not of type 'string'"
    (tmp_path / "schema.json").write_text('{"type": "objekt"}')
    with pytest.raises(UsageError, match="no JSON schema"):
        scorer("json_schema", tmp_path, schema="schema.json")
    with pytest.raises(UsageError, match="cannot be read"):
        scorer("json_schema", tmp_path, schema="other.json")


def test_a_schema_fetches_nothing() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            mark = marked("json_schema", "{}", schema={"$ref": f"http://127.0.0.1:{server.server_port}/schema.json"})
        finally:
            server.shutdown()
            thread.join()
    assert asked == []
    assert mark.error
    assert "refers to what is not in it" in (mark.explanation or "")


# --- of the user's own ---------------------------------------------------------------------------------------------------------------


def function(folder: Path, source: str, **settings: Any) -> Mark:
    (folder / "mine.py").write_text(source)
    made = scorer("function", folder, function="mine.py:score", **settings)
    return made.marks([(Item("q", "?", ("a", "b"), (), {"id": "q", "extra": 7}, ["a", "b"]), "the answer")])[0]


def test_a_function_sees_answer_target_and_record(tmp_path: Path) -> None:
    assert (
        function(
            tmp_path, "def score(answer, target, record):\n    return (answer, target, record['extra']) == ('the answer', ['a', 'b'], 7)\n"
        ).score
        == 1
    )
    mark = function(tmp_path, "def score(a, t, r):\n    return {'score': 0.25, 'parsed': 7, 'explanation': 'so'}\n")
    assert mark == Mark(0.25, "7", "so")
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Box:\n    value: float\n"
        "def score(a, t, r):\n    return Box(0.5).value\n"
    )
    assert function(tmp_path, source).score == 0.5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero, line 2"),
        ("raise SystemExit(0)", "SystemExit: 0, line 2"),
        ("return 2", "it gave 2, which is no number from 0 to 1"),
        ("return float('nan')", "it gave nan, which is no number from 0 to 1"),
        ("return 'yes'", "it gave 'yes', which is no number from 0 to 1"),
        ("return {'points': 1}", "it gave an object without `score`"),
    ],
)
def test_an_error_of_a_function_is_clear_and_counts_as_wrong(tmp_path: Path, body: str, said: str) -> None:
    assert function(tmp_path, f"def score(a, t, r):\n    {body}\n") == Mark(0.0, None, said, unparsed=True, error=True)


def test_a_function_may_find_no_answer(tmp_path: Path) -> None:
    mark = function(tmp_path, "def score(a, t, r):\n    return None\n")
    assert mark.unparsed
    assert not mark.error


def test_a_function_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    for source, said in (("x = 1\n", "no function score"), ("def score(:\n", "SyntaxError"), ("import nothing_of_this_name\n", "line 1")):
        with pytest.raises(UsageError, match=said):
            function(tmp_path, source)
    assert "it gave 0.5" in (function(tmp_path, "def score(a, t, r):\n    return 0.5\n", binary=True).explanation or "")


def test_another_source_is_another_scorer(tmp_path: Path) -> None:
    found = set()
    for value in (0, 1):
        (tmp_path / "mine.py").write_text(f"def score(a, t, r):\n    return {value}\n")
        found.add(scorer("function", tmp_path, function="mine.py:score").described)
    assert len(found) == 2


# --- code ----------------------------------------------------------------------------------------------------------------------------


def test_a_program_is_made_of_columns_and_answer() -> None:
    from nights.evals.scorers import Code

    made = scorer("code", code="{prompt}{answer}", tests="{test}\ncheck({entry})  # {{}}")
    assert isinstance(made, Code)
    item = Item("q", "?", (), (), {"prompt": "def f():\n", "test": "def check(f): pass", "entry": "f"})
    program = made.program(item, "    return {1: 2}\n")
    assert program.code == "def f():\n    return {1: 2}\n", "braces of an answer are text"
    assert program.tests == "def check(f): pass\ncheck(f)  # {}"
    assert made.problem(Item("q", "?")) == "it has no column `prompt`"
    assert made.program(item, "```python\n    pass\n```").code == "def f():\n    pass\n"


def test_settings_say_which_metrics_there_are() -> None:
    def names(**settings: Any) -> tuple[str, ...]:
        return metric_names(SETTINGS.validate_python(settings))

    assert names(kind="exact") == ("exact",)
    assert names(kind="exact", name="em", k=[1, 5]) == ("em", "em@1", "em@5")
    assert names(kind="code", tests="x", k=5) == ("pass@1", "pass@5")


def test_described_differs_by_every_setting() -> None:
    plain = scorer("exact")
    assert plain.described == "exact 1"
    assert scorer("exact", name="other").described == plain.described, "a name is no other metric"
    assert scorer("exact", ignore_case=True).described == 'exact 1 {"ignore_case": true}'


# --- hostile answers -----------------------------------------------------------------------------------------------------------------

HOSTILE = [
    unit * (100_000 // len(unit))
    for unit in (
        " ",
        "\n",
        " \n",
        "answer is ",
        "answer" + " " * 50,
        "-",
        "$",
        "1,",
        "1 ",
        "1/",
        "1.",
        "{",
        "\\frac{",
        "(",
        "**",
        "`",
        "```\n",
        "a",
        "9",
        "A ",
        "\u202f1",
    )
]


@pytest.mark.parametrize("answer", HOSTILE, ids=[repr(text[:8]) for text in HOSTILE])
def test_no_answer_makes_a_scorer_hang(answer: str) -> None:
    """The built-in patterns look at each character a bounded number of times; one that did not would meet the time-out of tests."""
    from nights.evals.code import take_code
    from nights.evals.judge import Judge

    for text in (answer, f"answer is{answer}", f"GRADE:{answer}", f"```python\n{answer}", f"{answer}x"):
        next(find_numbers(text, backwards=True), None)
        next(find_numbers(text, decimal=","), None)
        find_choice(text, CITIES)
        take_code(text)
        Judge(model="judge").read(text)
        marked("exact", text, "x", ignore_case=True, ignore_punctuation=True, ignore_articles=True)
        marked("f1", text, "x")
