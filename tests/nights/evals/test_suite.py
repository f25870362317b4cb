# tests/nights/evals: suite files: what they mean, and that every mistake is told at once, with its line.
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.errors import BadFiles
from nights.evals.suite import Suite, SuiteKeys, find_suites, load_suite, run_name

GOOD = """\
version: 1
dataset: questions.jsonl
id_column: id
prompt: "Q: {question}"
target_column: answer
scorers:
  - exact
"""
ROOT = Path(__file__).resolve().parents[3]


def load(folder: Path, text: str, name: str = "sums.yaml") -> Suite:
    path = folder / name
    path.write_text(text)
    return load_suite(path)


def mistakes(folder: Path, text: str, name: str = "sums.yaml") -> list[str]:
    with pytest.raises(BadFiles) as caught:
        load(folder, text, name)
    assert caught.value.exit_code == 2
    start = f"{folder / name}:"
    assert all(problem.startswith(start) for problem in caught.value.problems)
    return [problem.removeprefix(start) for problem in caught.value.problems]


def test_a_small_suite_has_sensible_rest(tmp_path: Path) -> None:
    suite = load(tmp_path, GOOD)
    assert suite.name == "sums"
    assert suite.headline == "exact"
    assert suite.dataset == (str(tmp_path / "questions.jsonl"),), "paths begin at the suite's folder"
    assert not suite.keys.allow_code_execution
    assert suite.keys.draws == 1
    assert suite.keys.sampling.body() == {"temperature": 0.0, "max_tokens": 512}
    assert [scorer.described for scorer in suite.scorers()] == ["exact 1"]


def test_everything_that_a_suite_can_say(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(answer, target, record):\n    return 1\n")
    (tmp_path / "schema.json").write_text("{}")
    text = """\
version: 1
name: all_of_it
description: Everything.
dataset: [a.jsonl, s3://bucket/b/]
limit: 100
id_column: id
messages:
  - {role: system, content: Be brief.}
  - role: user
    content: |
      {question}
      {choices}
target_column: answer
choices_column: [a, b, c]
group_column: subject
sampling: {temperature: 0.8, max_tokens: 64, seed: 7, stop: "\\n\\n", top_p: 0.9, more: {top_k: 5}}
draws: 4
scorers:
  - {kind: choice, k: [1, 4]}
  - {kind: numeric, relative: 0.01}
  - {kind: regex, pattern: '^(\\d+)$', group: 1, flags: [multiline]}
  - {kind: f1}
  - {kind: rouge, variant: rouge2}
  - {kind: bleu, tokenize: zh}
  - {kind: json_schema, schema: schema.json, name: valid}
  - {kind: code, tests: "{test}", k: 2}
  - {kind: function, function: mine.py:score}
  - {kind: model_graded}
headline: choice@4
judge: {model: judge, revision: abc, grades: {yes: 1, no: 0}}
allow_code_execution: true
"""
    suite = load(tmp_path, text)
    assert suite.name == "all_of_it"
    assert suite.headline == "choice@4"
    assert suite.dataset == (str(tmp_path / "a.jsonl"), "s3://bucket/b/")
    assert suite.keys.sampling.body(4) == {
        "temperature": 0.8, "max_tokens": 64, "n": 4, "seed": 7, "top_p": 0.9, "stop": ["\n\n"], "top_k": 5,
    }  # fmt: skip
    assert [scorer.name for scorer in suite.scorers()] == [
        "choice", "numeric", "regex", "f1", "rouge2", "bleu", "valid", "pass", "function",
    ]  # fmt: skip
    assert suite.keys.judge is not None
    assert suite.keys.judge.scores == {"yes": 1.0, "no": 0.0}, "`yes` is text, as editors read it"


def test_every_mistake_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
version: 1
datset: questions.jsonl
prompt: "Q: {question"
column: question
draws: 0
sampling:
  temperature: hot
scorers:
  - exakt
  - {kind: numeric, absolute: -1}
  - {kind: regex, pattern: "("}
"""
    assert mistakes(tmp_path, text) == [
        "1: dataset: is missing: the questions: a file, folder, glob or s3:// address, or several",
        "2: datset: there is no such key; did you mean `dataset`?",
        "3: prompt: only one of `column`, `prompt`, `messages` or `messages_column` can be the question; there is `column` and `prompt`",
        "3: prompt: the prompt 'Q: {question' has a brace without a column name. Write {column}, or {{ and }} for braces",
        "5: draws: is 0; it must be at least 1",
        "7: sampling.temperature: is 'hot', which is text; it must be a number",
        "9: scorers[0]: has the kind 'exakt'; it must be exact, numeric, regex, choice, f1, rouge, bleu, json_schema, code, function or "
        "model_graded (did you mean exact?)",
        "10: scorers[1].absolute: is -1; it must be at least 0",
        "11: scorers[2].pattern: is no regular expression (missing ), unterminated subpattern at position 0)",
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": None}, ["version: is missing; write `version: 1`"]),
        ({"version": "2"}, ["version: is 2; it must be 1"]),
        ({"version": "true"}, ["version: is true; write `version: 1`"]),
        ({"prompt": None}, ["one of `column`, `prompt`, `messages` or `messages_column` says what the question is"]),
        ({"target_column": None}, ["scorers[0]: `exact` compares with a target, and there is no `target_column`"]),
        ({"headline": "bleu"}, ["headline: is 'bleu', which no scorer gives; there is `exact`"]),
        ({"scorers": "[exact, exact]"}, ["scorers[1]: gives the metric `exact`, and so does scorer 1; give one of them a `name`"]),
        ({"scorers": "[]"}, ["scorers: is empty"]),
        ({"scorers": "[{kind: exact, k: 2}]"}, ["scorers[0].k: asks for @2 of 1 draw; raise `draws`"]),
        ({"draws": "3"}, ["draws: are 3, and with a temperature of 0 they would all be the same; raise `sampling.temperature`"]),
        ({"prompt": '"{question} {choices}"'}, ["prompt: shows {choices}, and there is no `choices_column` that says what they are"]),
        ({"scorers": "[choice]"}, ["scorers[0]: `choice` looks for a choice, and there is no `choices_column`"]),
        ({"scorers": "[model_graded]"}, ["scorers[0]: asks a judge, and there is no `judge`"]),
        ({"judge": "{model: m}"}, ["judge: grades nothing; add a scorer of `kind: model_graded`, or leave the judge out"]),
        (
            {"scorers": "[model_graded, {kind: model_graded, name: again}]", "judge": "{model: m}"},
            ["scorers[1]: asks the judge once more; one scorer of `kind: model_graded` is enough"],
        ),
        (
            {"scorers": "[model_graded]", "judge": "{model: m, prompt: Grade}"},
            ["judge: has a `prompt` without {answer}, so it would not see what it grades"],
        ),
        (
            {"scorers": "[{kind: code, tests: '{test}'}]"},
            ["scorers[0]: `pass` runs code that the model wrote; say `allow_code_execution: true` if that may run here"],
        ),
        (
            {"scorers": "[{kind: code, code: x, tests: '{answer}'}]", "allow_code_execution": "true"},
            [
                "scorers[0].code: does not hold {answer}, so every answer would score the same",
                "scorers[0].tests: holds {answer}, which belongs into `code`: tests that the answer wrote prove nothing",
            ],
        ),
        ({"allow_code_execution": "yes"}, ["allow_code_execution: is 'yes', which is text; it must be true or false"]),
        (
            {"scorers": "[{kind: function, function: 'score'}]"},
            ["scorers[0].function: is no function of a file; write it as scorers.py:similarity"],
        ),
        ({"scorers": "[{kind: function, function: 'no.py:f'}]"}, ["scorers[0].function: no.py cannot be read (No such file or directory)"]),
        (
            {"scorers": "[{kind: json_schema, schema: no.json}]"},
            ["scorers[0].schema: the schema cannot be read (No such file or directory)"],
        ),
        (
            {"scorers": "[{kind: json_schema, schema: {type: objekt}}]"},
            ["scorers[0].schema: this is no JSON schema ('objekt' is not valid under any of the given schemas)"],
        ),
        ({"scorers": "[{kind: regex, pattern: a, group: 1}]"}, ["scorers[0]: the pattern 'a' has no group 1"]),
        ({"sampling": "{more: {n: 3}}"}, ["sampling.more.n: is what `draws` says"]),
        ({"sampling": "{more: {seed: 3}}"}, ["sampling.more.seed: has a place of its own; write it there"]),
        ({"sampling": "{more: {top_k: many}}"}, ["sampling.more.top_k: 'many' is not a whole number"]),
        (
            {"chat": "false", "prompt": None, "messages_column": "m"},
            ["chat: is false, and a conversation needs a chat template; give a `prompt` or a `column`"],
        ),
        ({"name": "Not a name"}, ["name: the suite is called 'Not a name', which is no name; use up to 64 of a-z, 0-9, - and _"]),
    ],
)
def test_what_keys_need_of_each_other(tmp_path: Path, change: dict[str, Any], expected: list[str]) -> None:
    lines = dict(line.split(": ", 1) for line in GOOD.replace("scorers:\n  - exact", "scorers: [exact]").splitlines())
    lines.update(change)
    text = "".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None)
    assert [one.partition(": ")[2] for one in mistakes(tmp_path, text)] == expected


def test_a_file_that_is_no_suite(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "") == ["1: the file is empty"]
    assert mistakes(tmp_path, "- a\n") == ["1: must be a mapping of keys, such as `kind: embed`"]
    assert mistakes(tmp_path, "version: 1\n\tdataset: x\n") == ["2: is indented with a tab; YAML is indented with spaces"]
    assert mistakes(tmp_path, GOOD, "Not OK.yaml")[0].startswith("1: name: the suite is called 'Not OK'")
    with pytest.raises(BadFiles):
        load_suite(tmp_path / "nowhere.yaml")


def test_the_users_function_is_not_run_to_check_a_file(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"import os\nos.mkdir({str(mark)!r})\ndef score(answer, target, record):\n    return 1\n")
    text = GOOD.replace("  - exact\n", "  - {kind: function, function: mine.py:score}\n")
    suite = load(tmp_path, text)
    assert not mark.exists()
    suite.scorers()
    assert mark.exists()
    assert mistakes(tmp_path, text.replace(":score", ":other")) == [
        "7: scorers[0].function: mine.py has no function `other`; write: def other(answer, target, record)"
    ]


def test_names_of_runs_fit_what_a_run_may_be_called() -> None:
    assert run_name("sums") == "sums"
    assert run_name("all_of_it") == "all-of-it"
    assert len(run_name("x" * 64) + "-judge") <= 40
    assert run_name("a" * 33 + "-b") == "a" * 33


def test_the_schema_for_editors_can_be_made() -> None:
    schema = SuiteKeys.model_json_schema()
    assert schema["additionalProperties"] is False
    assert "model_graded" in json.dumps(schema)


def test_suites_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "_c.yaml", ".d.yaml", "e.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_suites(tmp_path)] == ["a.yml", "b.yaml"]
