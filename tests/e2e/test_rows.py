"""Bad rows, from the file to the errors file: found before anything is sent, or failing alone; with echo workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.house import House, RunObjects, answers, ids

pytestmark = pytest.mark.slow


def test_bad_rows_are_all_listed_before_anything_is_sent_and_skipped_when_told_to(house: House, tmp_path: Path) -> None:
    rows, out = tmp_path / "texts.jsonl", tmp_path / "vectors.parquet"
    lines = [json.dumps({"id": f"t{n}", "text": f"text number {n}", "note": n}) for n in range(20)]
    lines[4] = '{"id": "t4", "text": "   "}'
    lines[9] = "{broken"
    lines[14] = '{"id": "t0", "text": "an id that is there already"}'
    lines[17] = '["no", "object"]'
    rows.write_text("\n".join(lines) + "\n")
    command = ("run", rows, "--task", "embed", "--model", "vec", "--column", "text", "--id-column", "id", "--out", out, "--json")
    said = house.cli(*command)
    assert said.code == 2
    assert [f":{number}" in said.err or f"line {number}" in said.err for number in (5, 10, 15, 18)] == [True] * 4, said.err
    assert len(said.record["details"]) == 4
    assert house.runs() == house.seen
    assert house.gate.came == 0

    said = house.cli(*command, "--on-bad-row", "skip")
    record = said.record
    assert (said.code, record["state"], record["ok"], record["failed"], record["skipped"]) == (0, "complete", 16, 0, 4), said.err
    table = pq.read_table(out)
    assert table["id"].to_pylist() == [f"t{n}" for n in range(20) if n not in (4, 9, 14, 17)]
    skipped = [line["error"] for line in answers(Path(record["errors"]))]
    assert [error["line"] for error in skipped] == [5, 10, 15, 18]
    assert all(error["code"] and error["message"] for error in skipped)


def test_rows_that_the_worker_refuses_fail_alone_and_the_run_exits_1(house: House, tmp_path: Path) -> None:
    """What only the worker looks at: inside messages, and fields with a structure of their own."""
    bad: dict[str, dict[str, Any]] = {
        "no-text": {"messages": [{"role": "user", "content": "x"}], "stop": 5},
        "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}]}]},
        "format": {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}},
    }
    rows, out = tmp_path / "refused.jsonl", tmp_path / "out.jsonl"
    bodies: list[tuple[str, dict[str, Any]]] = [(f"good-{n}", {"messages": [{"role": "user", "content": f"{n}"}]}) for n in range(30)]
    for at, item in zip((3, 11, 30), bad.items(), strict=True):
        bodies.insert(at, item)
    with rows.open("w") as file:
        for ident, body in bodies:
            file.write(json.dumps({"custom_id": ident, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    said = house.cli("run", rows, "--task", "generate", "--model", "echo", "--out", out, "--json")
    assert said.code == 1, said.err
    record = said.record
    assert (record["state"], record["rows"], record["ok"], record["failed"], record["verified"]) == ("complete", 33, 30, 3, True)
    assert ids(out) == [f"good-{n}" for n in range(30)]
    errors = answers(Path(record["errors"]))
    assert [line["custom_id"] for line in errors] == ["no-text", "image", "format"]
    assert [line["error"]["code"] for line in errors] == ["wrong_type", "unsupported_field", "unsupported_field"]
    assert all(line["response"] is None and line["error"]["message"] for line in errors)
    assert set(RunObjects.of(house, record["run"]).executions.values()) == {1}, "no bad row is tried again"
