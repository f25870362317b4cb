# tests/nights/evals: the published schema and the page of keys are those of the models; the example suites are what they say.
from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from contract.memory import MemoryStore
from nights.evals.evaluate import check
from nights.evals.publish import PAGE, SCHEMA, page, schema, schema_text
from nights.evals.rows import read_questions
from nights.evals.scorers import Code, find_numbers
from nights.evals.suite import find_suites, load_suite

ROOT = Path(__file__).resolve().parents[3]
SUITES = ROOT / "examples" / "suites"


def test_the_published_schema_and_the_tables_of_keys_are_current() -> None:
    assert (ROOT / SCHEMA).read_text() == schema_text(), "run scripts/docs"
    text = (ROOT / PAGE).read_text()
    assert page(text) == text, "run scripts/docs"


def test_the_schema_takes_what_a_suite_may_be_and_refuses_what_it_may_not() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    good: dict[str, Any] = {"version": 1, "dataset": "a.jsonl", "prompt": "{q}", "scorers": ["exact", {"kind": "numeric", "absolute": 1}]}
    validator.validate(good)
    for change in ({"version": 2}, {"datset": "x"}, {"scorers": ["exakt"]}, {"scorers": [{"kind": "numeric", "abs": 1}]}, {"column": "q"}):
        assert not validator.is_valid({**good, **change}), change


@pytest.mark.parametrize("path", find_suites(SUITES), ids=lambda path: path.stem)
async def test_an_example_suite_can_be_asked_and_scored(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), schema(), cls=jsonschema.Draft202012Validator)
    suite = load_suite(path)
    questions = await read_questions(suite, lambda name: MemoryStore())
    check(suite, questions, suite.scorers())
    assert len(questions.all) >= 100


def test_the_questions_are_those_whose_provenance_is_told() -> None:
    said = dict(re.findall(r"`(data/[^`]+)` \| \d+ \| `([0-9a-f]{64})`", (SUITES / "PROVENANCE.md").read_text()))
    there = {f"data/{path.name}": sha256(path.read_bytes()).hexdigest() for path in (SUITES / "data").iterdir() if ".jsonl" in path.name}
    assert said == there
    for row in map(json.loads, (SUITES / "data" / "gsm8k.jsonl").read_text().splitlines()):
        assert list(find_numbers(row["solution"]))[-1].value == next(find_numbers(row["answer"])).value, "both ways to the answer agree"


@pytest.mark.slow
async def test_every_published_solution_passes_its_tests_and_an_empty_one_none() -> None:
    """HumanEval with its own solutions: the harness loses no right program, shut in as it is, and passes no wrong one."""
    suite = load_suite(SUITES / "code.yaml")
    questions = await read_questions(suite, lambda name: MemoryStore())
    (scorer,) = suite.scorers()
    assert isinstance(scorer, Code)
    rows = [json.loads(line) for line in gzip.decompress((SUITES / "data" / "humaneval.jsonl.gz").read_bytes()).splitlines()]
    assert [one.id for one in questions.all] == [row["task_id"] for row in rows]
    answers = [f"Here it is.\n```python\n{row['prompt']}{row['canonical_solution']}```\n" for row in rows]
    marks = scorer.marks([(one.item, answer) for one, answer in zip(questions.all, answers, strict=True)])
    assert [(one.id, mark.explanation) for one, mark in zip(questions.all, marks, strict=True) if mark.score != 1] == []
    empty = scorer.marks([(one.item, f"def {row['entry_point']}(*_): ...") for one, row in zip(questions.all[:30], rows, strict=False)])
    assert [mark.score for mark in empty] == [0.0] * 30
