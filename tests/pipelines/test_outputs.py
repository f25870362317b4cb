# tests/pipelines: what a row looks like in an output, and how a file comes to its name.
from __future__ import annotations

import base64
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import UsageError, VerifyFailed
from contract.memory import MemoryStore
from contract.models import decode
from contract.rows import ErrorLine
from pipelines.outputs import (
    RESULTS,
    LocalPlace,
    OutputFacts,
    OutputLine,
    OutputResponse,
    S3Place,
    TableWriter,
    check_folder,
    draft_path,
    embedding_body,
    empty_table,
    error_line,
    file_facts,
    layout_of,
    line_id,
    output_names,
    read_answer,
    read_line_id,
    response_line,
    s3_key,
    skipped_line,
    sweep,
    vector_of_body,
)
from pipelines.preflight import SkippedLine

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
HEX = "ab" * 32


@pytest.mark.parametrize(
    ("out", "names"),
    [
        ("a.jsonl", ("a.jsonl", "a.errors.jsonl", "a.jsonl.seal.json", "jsonl")),
        ("x/a.b.parquet", ("x/a.b.parquet", "x/a.b.errors.jsonl", "x/a.b.parquet.seal.json", "parquet")),
        ("s3://b/k/a.jsonl", ("s3://b/k/a.jsonl", "s3://b/k/a.errors.jsonl", "s3://b/k/a.jsonl.seal.json", "jsonl")),
    ],
)
def test_files_stand_beside_each_other(out: str, names: tuple[str, ...]) -> None:
    made = output_names(out)
    assert (made.out, made.errors, made.seal, made.format) == names
    partial = output_names(out, partial=True)
    assert {partial.out, partial.errors, partial.seal}.isdisjoint({made.out, made.errors, made.seal})
    assert ".partial." in partial.out


@pytest.mark.parametrize("name", ["s3://", "s3://b", "s3://b/", "s3:///k", "s3://b/a//k.jsonl", "s3://b/a\\k", "s3://b/k/"])
def test_an_address_that_no_store_keeps_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="s3://bucket/folder"):
        s3_key(name)


# --- lines -----------------------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**15), st.binary(min_size=32, max_size=32))
def test_a_lines_id_gives_index_and_digest_again(index: int, digest: bytes) -> None:
    assert read_line_id(line_id(index, digest.hex())) == (index, digest)


@pytest.mark.parametrize(
    "ident", ["", "x", f"batch_req_01_{HEX}", f"batch_req_-1_{HEX}", f"batch_req_1_{HEX[:-1]}", f"batch_req_1_{HEX}\n", "skipped_0"]
)
def test_other_ids_are_none_of_ours(ident: str) -> None:
    assert read_line_id(ident) is None


@given(
    st.integers(0, 10**9), TEXTS, st.recursive(st.none() | st.booleans() | st.integers(-5, 5) | TEXTS, lambda v: st.lists(v, max_size=3))
)
def test_a_line_is_json_whose_body_has_the_same_bytes(index: int, ident: str, value: Any) -> None:
    body = json.dumps({"x": value}, ensure_ascii=bool(index % 2)).encode()
    line = response_line(index, HEX, ident, body)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    read = msgspec.json.decode(line, type=OutputLine)
    assert read.response is not None
    assert bytes(read.response.body) == body
    assert (read.custom_id, read.response.status_code, bytes(read.error)) == (ident, 200, b"null")
    error = ErrorLine(index=index, row=HEX, id=ident, error=msgspec.Raw(body))
    failed = msgspec.json.decode(error_line(error), type=OutputLine)
    assert (failed.custom_id, failed.response, bytes(failed.error)) == (ident, None, body)


def test_a_skipped_row_says_where_it_stands() -> None:
    line = json.loads(skipped_line(3, SkippedLine(file="a.csv", line=9, code="csv", reason='two "fields"', id="é")))
    assert line["id"] == "skipped_3"
    assert line["custom_id"] == "é"
    assert line["error"] == {"code": "csv", "message": 'two "fields"', "file": "a.csv", "line": 9}


@given(st.lists(st.floats(width=32), min_size=1, max_size=6))
def test_a_vector_goes_through_base64_bit_by_bit(values: list[float]) -> None:
    vector = np.asarray(values, dtype="<f4").tobytes()
    body = embedding_body(vector, 'a "model"', 5)
    assert vector_of_body(body) == vector
    read = json.loads(body)
    assert base64.b64decode(read["data"][0]["embedding"]) == vector
    assert (read["model"], read["usage"]["total_tokens"]) == ('a "model"', 5)


@pytest.mark.parametrize("body", [b"{}", b'{"data":[]}', b'{"data":[{"embedding":[1.0]}]}', b'{"data":[{"embedding":"*"}]}', b"x"])
def test_a_body_without_one_base64_vector_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, msgspec.DecodeError)):
        vector_of_body(body)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (
            {
                "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2},
            },
            ("a", "stop", 1, 2),
        ),
        ({"choices": [{"text": "b", "finish_reason": "length"}]}, ("b", "length", None, None)),
        ({"choices": [{"text": "first"}, {"text": "second"}]}, ("first", None, None, None)),
        ({"choices": [{"message": {"content": None, "tool_calls": []}, "finish_reason": "tool_calls"}]}, (None, "tool_calls", None, None)),
        ({"choices": []}, (None, None, None, None)),
        ({"choices": "x", "usage": "y"}, (None, None, None, None)),
        ({"usage": {"prompt_tokens": True, "completion_tokens": 1 << 70}}, (None, None, None, None)),
        ([], (None, None, None, None)),
    ],
)
def test_text_and_counts_are_taken_from_a_response_where_it_has_them(body: Any, answer: tuple[Any, ...]) -> None:
    found = read_answer(json.dumps(body).encode())
    assert (found.text, found.finish_reason, found.prompt_tokens, found.completion_tokens) == answer


@pytest.mark.parametrize("body", [b"", b"{", b'{"a":"\xff"}'])
def test_a_response_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_answer(body)


# --- tables ----------------------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.sampled_from(["id", "text", "embedding", "input_id", "input_id_2", "input_embedding", "response", "row_index"]), unique=True
    ),
    st.sampled_from(["embed", "generate"]),
    st.sampled_from([None, "id", "text"]),
)
def test_no_two_columns_of_a_table_share_a_name(columns: list[str], kind: Any, id_column: str | None) -> None:
    layout = layout_of(kind, columns, id_column=id_column)
    ours = [name for name in RESULTS[kind] if name != "id" or layout.own_id]
    names = [*ours, *layout.originals.values()]
    assert len(set(names)) == len(names)
    assert "id" in names
    assert list(layout.originals) == columns
    for old, new in layout.originals.items():
        assert new == old or (new.startswith(f"input_{old}") and old in RESULTS[kind])
    assert layout.renamed == {old: new for old, new in layout.originals.items() if old != new}


def test_a_column_keeps_its_name_when_another_is_renamed_into_its_way() -> None:
    assert layout_of("embed", ["input_id", "id"]).originals == {"input_id": "input_id", "id": "input_id_2"}
    assert layout_of("embed", ["id", "input_id"]).originals == {"id": "input_id_2", "input_id": "input_id"}


def facts() -> OutputFacts:
    return OutputFacts(run="s3://b/r", plan=HEX, seal=HEX, partial=False, rows=1, ok=1, failed=0, skipped=0)


def test_a_later_shard_of_another_type_is_cast_or_refused_by_name(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "a.parquet")
    writer.write(pa.table({"id": ["a"], "n": pa.array([1], pa.int64())}), shard="00000")
    writer.write(pa.table({"id": ["b"], "n": pa.array([2], pa.int8())}), shard="00001")
    with pytest.raises(VerifyFailed, match=r"shard 00002: column `n` is string here and int64"):
        writer.write(pa.table({"id": ["c"], "n": ["x"]}), shard="00002")
    writer.close(facts(), pa.table({}))
    table = pq.read_table(tmp_path / "a.parquet")
    assert (table["n"].to_pylist(), table.schema.field("n").type) == ([1, 2], pa.int64())
    metadata = pq.read_metadata(tmp_path / "a.parquet").metadata
    assert metadata is not None
    assert decode(metadata[b"nightbatch"], OutputFacts, where="x") == facts()


@pytest.mark.parametrize("kind", ["embed", "generate"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_table_without_rows_has_the_columns_of_one_with_rows(kind: Any, dtype: Any, tmp_path: Path) -> None:
    layout = layout_of(kind, ["text"], dtype=dtype)
    writer = TableWriter(tmp_path / "a.parquet")
    writer.close(facts(), empty_table(layout, pa.schema([("text", pa.string())])))
    assert pq.read_table(tmp_path / "a.parquet").column_names == ["id", "text", *RESULTS[layout.kind][1:]]


# --- from draft to name ----------------------------------------------------------------------------------------------------------------


async def test_a_draft_replaces_what_stood_under_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"old")
    draft = draft_path(tmp_path, str(tmp_path / "a.jsonl"))
    draft.write_bytes(b"new")
    assert (tmp_path / "a.jsonl").read_bytes() == b"old"
    await LocalPlace(tmp_path).publish(draft, str(tmp_path / "a.jsonl"))
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
    assert (tmp_path / "a.jsonl").read_bytes() == b"new"


async def test_a_draft_for_s3_is_uploaded_and_deleted(tmp_path: Path) -> None:
    store = MemoryStore()
    draft = draft_path(tmp_path, "s3://memory/x/a.jsonl")
    draft.write_bytes(b"new")
    await S3Place(store, tmp_path).publish(draft, "s3://memory/x/a.jsonl")
    assert store.objects.data == {"x/a.jsonl": b"new"}
    assert list(tmp_path.iterdir()) == []


def test_only_drafts_of_dead_processes_of_this_machine_are_swept(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    pid, host = int(dead.stdout), platform.node()
    gone = tmp_path / f".a.jsonl.{host}-{pid}-00.tmp"
    kept = [
        draft_path(tmp_path, "a.jsonl"),
        tmp_path / f".a.jsonl.{host}-{os.getppid()}-00.tmp",
        tmp_path / f".a.jsonl.elsewhere-{pid}-00.tmp",
        tmp_path / f".b.jsonl.{host}-{pid}-00.tmp",
        tmp_path / f".a.jsonl.{host}-x-00.tmp",
        tmp_path / "a.jsonl",
    ]
    for path in (gone, *kept):
        path.write_bytes(b"")
    sweep(tmp_path, "a.jsonl")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    assert check_folder(str(tmp_path / "a.jsonl")) == tmp_path
    (tmp_path / "file").write_bytes(b"")
    for name, words in ((tmp_path / "none/a.jsonl", "no folder"), (tmp_path / "file/a.jsonl", "no folder"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=words):
            check_folder(str(name))


def test_a_files_facts_are_its_size_and_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    found = file_facts(tmp_path / "a")
    assert (found.size, found.sha256[:8]) == (3, "ba7816bf")


def test_the_documentation_names_every_column_and_every_field_of_the_seal_file() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/outputs.md").read_text()
    named = {name for columns in RESULTS.values() for name in columns} | set(OutputFacts.__struct_fields__)
    assert not [name for name in sorted(named) if f"`{name}`" not in page]
    for other in ({"code", "message", "param", "file", "line"}, OutputLine.__struct_fields__, OutputResponse.__struct_fields__):
        assert not [name for name in other if f"`{name}`" not in page]
