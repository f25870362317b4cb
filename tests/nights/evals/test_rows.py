# tests/nights/evals: a dataset of any format becomes questions and rows; an output of a run becomes answers, and none may be lost.
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from contract.errors import Damaged, DatasetError
from contract.memory import MemoryStore, Objects
from nights.evals.rows import Questions, read_answers, read_questions, suite_lines
from nights.evals.suite import load_suite

ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "Where?", "options": ["here", "there"], "answer": "B", "subject": "places"},
    {"id": "b", "question": "When?", "options": ["now", "then"], "answer": ["A", "now"], "subject": "times"},
]


def suite_with(folder: Path, dataset: str, **keys: Any) -> Any:
    made = {
        "version": 1,
        "dataset": dataset,
        "id_column": "id",
        "prompt": "{question}",
        "target_column": "answer",
        "scorers": ["exact"],
        **keys,
    }
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in made.items() if value is not None}))
    return load_suite(path)


async def questions_of(folder: Path, dataset: str, objects: Objects | None = None, **keys: Any) -> Questions:
    return await read_questions(suite_with(folder, dataset, **keys), lambda name: MemoryStore(objects or Objects(), bucket=name))


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


async def test_the_same_questions_come_of_every_format(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(jsonl(ROWS))
    flat = [{**row, "answer": "B", "options": json.dumps(row["options"])} for row in ROWS]
    pq.write_table(pa.Table.from_pylist([{**row, "answer": "B"} for row in ROWS]), tmp_path / "rows.parquet")
    cells = [list(flat[0]), *(list(row.values()) for row in flat)]
    (tmp_path / "rows.tsv").write_text("".join("\t".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in cells))
    keys: dict[str, Any] = {"prompt": "{question}\n{choices}", "choices_column": "options", "group_column": "subject"}
    lines = await questions_of(tmp_path, "rows.jsonl", **keys)
    table = await questions_of(tmp_path, "rows.parquet", **keys)
    text = await questions_of(tmp_path, "rows.tsv", **keys)
    for found in (lines, table, text):
        assert [one.item.question for one in found.all] == ["Where?\nA. here\nB. there", "When?\nA. now\nB. then"]
        assert [one.group for one in found.all] == ["places", "times"]
        assert [one.item.choices for one in found.all] == [("here", "there"), ("now", "then")]
    assert [one.item.targets for one in lines.all] == [("B",), ("A", "now")]
    assert lines.all[1].item.target == ["A", "now"]
    assert [(one.line, one.index) for one in lines.all] == [(1, 0), (2, 1)]


async def test_choices_in_columns_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,question,a,b,c,answer\n1,Where?,here,there,far,B\n2,When?,now,then,,A\n")
    found = await questions_of(tmp_path, "rows.csv", prompt="{question} {choices}", choices_column=["a", "b", "c"])
    assert [one.item.choices for one in found.all] == [("here", "there", "far"), ("now", "then")]


async def test_rows_are_batch_lines_with_sampling_and_draws(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(jsonl(ROWS))
    messages = [{"role": "system", "content": "Be {{brief}}."}, {"role": "user", "content": "{question}"}]
    suite = suite_with(tmp_path, "rows.jsonl", prompt=None, messages=messages, draws=3, sampling={"temperature": 0.5, "seed": 1})
    found = await read_questions(suite, lambda name: MemoryStore())
    first = json.loads(suite_lines(suite, found).splitlines()[0])
    assert first == {
        "custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": {
            "messages": [{"role": "system", "content": "Be {brief}."}, {"role": "user", "content": "Where?"}],
            "temperature": 0.5, "max_tokens": 512, "n": 3, "seed": 1,
        },
    }  # fmt: skip
    assert found.all[0].item.question == "system: Be {brief}.\n\nuser: Where?"


async def test_conversations_that_a_column_holds(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]
    (tmp_path / "rows.jsonl").write_text(jsonl([{"id": "a", "talk": talk, "answer": "x"}]))
    found = await questions_of(tmp_path, "rows.jsonl", prompt=None, messages_column="talk")
    assert found.all[0].body == {"messages": talk}


async def test_a_dataset_in_s3(tmp_path: Path) -> None:
    objects = Objects(data={"evals/rows.jsonl": jsonl(ROWS).encode()})
    found = await questions_of(tmp_path, "s3://memory/evals/rows.jsonl", objects)
    assert found.ids == ["a", "b"]


async def test_every_row_that_is_no_question_is_named(tmp_path: Path) -> None:
    rows = [
        *ROWS,
        {"id": "a", "question": "Again?", "options": ["x", "y"], "answer": "A", "subject": "s"},
        {"id": "c", "question": "No choices?", "options": 7, "answer": "A", "subject": "s"},
        {"id": "d", "question": "No target?", "options": ["x", "y"], "subject": "s"},
        {"id": "e", "question": "No group?", "options": ["x", "y"], "answer": "A"},
        {"id": "f", "options": ["x", "y"], "answer": "A", "subject": "s"},
        {"question": "No id?", "options": ["x", "y"], "answer": "A", "subject": "s"},
    ]
    (tmp_path / "rows.jsonl").write_text(jsonl(rows) + "not json\n")
    with pytest.raises(DatasetError, match="7 rows are no questions of this suite; nothing was sent") as caught:
        await questions_of(tmp_path, "rows.jsonl", choices_column="options", group_column="subject")
    assert [(row.line, row.code) for row in caught.value.bad_rows] == [
        (3, "duplicate_id"), (4, "wrong_type"), (5, "unknown_field"), (6, "unknown_field"), (7, "unknown_field"), (8, "unknown_field"),
        (9, "not_json"),
    ]  # fmt: skip
    assert "rows.jsonl:1 too" in caught.value.bad_rows[0].reason
    assert str(tmp_path / "suite.yaml") in str(caught.value)


async def test_a_dataset_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n")
    with pytest.raises(DatasetError, match="there are no questions"):
        await questions_of(tmp_path, "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text('{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}\n')
    with pytest.raises(DatasetError, match="batch lines"):
        await questions_of(tmp_path, "rows.jsonl")
    with pytest.raises(DatasetError):
        await questions_of(tmp_path, "nowhere.jsonl")


async def test_the_limit_takes_the_first(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(jsonl(ROWS))
    assert (await questions_of(tmp_path, "rows.jsonl", limit=1)).ids == ["a"]


# --- answers -------------------------------------------------------------------------------------------------------------------------


def line(ident: str, *texts: str, finish: str = "stop", reverse: bool = False) -> dict[str, Any]:
    choices = [{"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": finish} for n, text in enumerate(texts)]
    body = {"choices": choices[::-1] if reverse else choices, "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    return {"id": f"x-{ident}", "custom_id": ident, "response": {"status_code": 200, "request_id": "r", "body": body}, "error": None}


def error(ident: str | None) -> dict[str, Any]:
    return {"id": "x", "custom_id": ident, "response": None, "error": {"code": "engine", "message": "no"}}


def answers(folder: Path, out: list[dict[str, Any]], errors: list[dict[str, Any]], ids: list[str], draws: int = 1) -> Any:
    (folder / "out.jsonl").write_text(jsonl(out))
    (folder / "out.errors.jsonl").write_text(jsonl(errors))
    return read_answers(folder / "out.jsonl", folder / "out.errors.jsonl", ids, draws)


def test_answers_are_joined_by_id_whatever_their_order(tmp_path: Path) -> None:
    found = answers(tmp_path, [line("b", "B"), line("a", "A", finish="length")], [error("c")], ["a", "b", "c"])
    assert {ident: [draw.text for draw in one.draws] for ident, one in found.items()} == {"a": ["A"], "b": ["B"], "c": []}
    assert found["a"].draws[0].cut
    assert not found["b"].draws[0].cut
    assert found["c"].error.code == "engine"
    assert (found["b"].tokens_in, found["b"].tokens_out) == (3, 5)
    drawn = answers(tmp_path, [line("a", "0", "1", "2", reverse=True)], [], ["a"], 3)
    assert [draw.text for draw in drawn["a"].draws] == ["0", "1", "2"]


def test_a_base_models_answer_and_an_empty_one(tmp_path: Path) -> None:
    text = line("a", "x")
    text["response"]["body"]["choices"] = [{"index": 0, "text": "plain", "finish_reason": "stop"}]
    none = line("b", "x")
    none["response"]["body"]["choices"][0]["message"]["content"] = None
    found = answers(tmp_path, [text, none], [], ["a", "b"])
    assert (found["a"].draws[0].text, found["b"].draws[0].text) == ("plain", "")


@pytest.mark.parametrize(
    ("out", "errors", "said"),
    [
        ([line("a", "A")], [], r"1 of 2 rows are neither in the output nor among the errors: 'b'"),
        ([], [], r"2 of 2 rows are neither"),
        ([line("a", "A"), line("b", "B"), line("a", "A")], [], "'a' is there twice"),
        ([line("a", "A"), line("b", "B")], [error("a")], "'a' is there twice"),
        ([line("a", "A"), line("b", "B"), line("z", "Z")], [], "'z' is none that was asked"),
        ([line("a", "A"), line("b", "B", "C")], [], "'b' has 2 answers, and 1 were asked for"),
        ([line("a", "A"), line("b")], [], "'b' has 0 answers"),
        ([line("a", "A")], [error(None)], "left out before it was sent"),
        ([line("a", "A"), {"custom_id": "b"}], [], "no line of an output"),
    ],
)
def test_an_output_that_is_not_whole_gives_no_answers(
    tmp_path: Path, out: list[dict[str, Any]], errors: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(Damaged, match=said):
        answers(tmp_path, out, errors, ["a", "b"])


def test_a_lost_file_gives_no_answers(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="cannot be read"):
        read_answers(tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl", ["a"])
