# tests/pipelines: everything is read before anything is sent, and every bad row is listed at once.
from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import DatasetError
from contract.lines import decompress_lines
from contract.rows import InputDigest, row_digest
from pipelines.dataset import reader as reader_module
from pipelines.dataset.reader import Reader
from pipelines.preflight import SHOWN, ColumnKinds, Scan, preflight
from tests.pipelines.planning import chat_line, codes, embed_line, reader_of, write_jsonl

opened: list[Scan] = []


@pytest.fixture(autouse=True)
def _close_scans() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


def check(reader: Reader, on_bad_row: Literal["fail", "skip"] = "fail", **more: Any) -> tuple[Scan, frozenset[int]]:
    scan, watch = preflight(reader, on_bad_row=on_bad_row, **more)
    opened.append(scan)
    return scan, watch


def refused(reader: Reader, **more: Any) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        check(reader, **more)
    return caught.value


def test_every_bad_row_of_every_file_is_listed_at_once(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [embed_line("a"), [1], embed_line("b", "")])
    write_jsonl(tmp_path / "b.jsonl", [embed_line("c", x=float("nan")), embed_line("d"), embed_line("a")])
    error = refused(reader_of(tmp_path))
    assert [(Path(row.file).name, row.line, row.code) for row in error.bad_rows] == [
        ("a.jsonl", 2, "not_object"), ("a.jsonl", 3, "empty_text"), ("b.jsonl", 1, "not_finite"), ("b.jsonl", 3, "duplicate_id")
    ]  # fmt: skip
    assert error.total == 4
    assert "4 of 6 rows cannot be sent" in str(error)
    assert "--on-bad-row skip" in str(error)
    assert error.exit_code == 2


def test_a_duplicate_names_both_lines_and_their_files(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [embed_line("x"), embed_line("twice"), embed_line("twice")])
    write_jsonl(tmp_path / "b.jsonl", [embed_line("y"), embed_line("twice")])
    error = refused(reader_of(tmp_path))
    assert codes(error) == [(3, "duplicate_id"), (2, "duplicate_id")]
    assert "line 2" in error.bad_rows[0].reason
    assert f"{tmp_path / 'a.jsonl'}:2" in error.bad_rows[1].reason


def test_duplicates_in_an_id_column_are_found_too(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"id": 1, "text": "x"}, {"id": "1", "text": "y"}, {"id": 2, "text": "z"}])
    assert codes(refused(reader_of(path, id_column="id"))) == [(2, "duplicate_id")]


def test_equal_hashes_of_different_ids_are_no_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines import preflight as module

    monkeypatch.setattr(module, "hash", lambda text: 7, raising=False)
    monkeypatch.setattr(reader_module, "hash", lambda text: 7, raising=False)
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line("a"), embed_line("b"), embed_line("c")])
    scan, watch = check(reader_of(path))
    assert (scan.rows, watch) == (3, frozenset({7}))
    write_jsonl(path, [embed_line("a"), embed_line("b"), embed_line("a")])
    assert codes(refused(reader_of(path))) == [(3, "duplicate_id")]


def test_made_ids_need_no_look_for_duplicates(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"text": "same"}] * 5)
    scan, watch = check(reader_of(path))
    assert (scan.rows, watch) == (5, frozenset())


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_dataset_is_a_usage_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    error = refused(reader_of(path))
    assert "no rows" in str(error)
    assert error.exit_code == 2


def test_an_empty_csv_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for data in (b"", b"id,text\n"):
        path.write_bytes(data)
        assert "no rows" in str(refused(reader_of(path)))


def test_when_all_rows_are_bad_none_is_left_to_skip_to(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [[1], [2], [3]])
    assert "all 3 are bad (3 not_object)" in str(refused(reader_of(path), on_bad_row="skip"))
    assert "--on-bad-row skip" not in str(refused(reader_of(path)))


def test_skipping_keeps_the_rows_that_are_good_and_lists_the_others(tmp_path: Path) -> None:
    rows = [embed_line("a"), embed_line("b", " "), "x", embed_line("a"), embed_line("c")]
    scan, watch = check(reader_of(write_jsonl(tmp_path / "t.jsonl", rows)), "skip")
    assert (scan.rows, scan.skipped, len(watch)) == (2, 3, 1)
    lines = [json.loads(line) for line in decompress_lines(scan.bad.compressed(), where="x")]
    assert [(line["line"], line["code"], line["id"]) for line in lines] == [
        (2, "empty_text", "b"), (3, "not_object", None), (4, "duplicate_id", "a")
    ]  # fmt: skip


def test_the_rest_of_a_damaged_file_is_never_skipped(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(json.dumps(embed_line(f"r{i}")).encode() + b"\n" for i in range(9000)))
    (tmp_path / "a.jsonl.gz").write_bytes(data[:-100])
    write_jsonl(tmp_path / "b.jsonl", [embed_line("z")])
    error = refused(reader_of(tmp_path), on_bad_row="skip")
    assert [row.code for row in error.bad_rows] == ["damaged"]
    assert "cannot be read to the end" in str(error)


def test_nobody_is_told_to_skip_the_rest_of_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(embed_line("r")).encode() + b"\n") + b"garbage")
    error = refused(reader_of(path), on_bad_row="fail")
    assert "cannot help" in str(error)
    assert "or leave them out with" not in str(error)


def test_a_long_list_of_bad_rows_is_capped_counted_and_written_whole(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line("good"), *([[1]] * (SHOWN + 500))])
    error = refused(reader_of(path), list_to=tmp_path / "bad.jsonl")
    assert len(error.bad_rows) == SHOWN
    assert error.total == SHOWN + 500
    assert str(tmp_path / "bad.jsonl") in str(error)
    lines = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert len(lines) == SHOWN + 500
    assert json.loads(lines[-1]) == {
        "file": str(path), "line": SHOWN + 501, "code": "not_object", "reason": "a list, not a JSON object", "id": None
    }  # fmt: skip


def test_a_limit_counts_good_rows_and_the_rest_is_counted(tmp_path: Path) -> None:
    rows = [embed_line("a"), [1], embed_line("b"), embed_line("c"), [2], embed_line("d")]
    scan, _ = check(reader_of(write_jsonl(tmp_path / "t.jsonl", rows)), "skip", limit=2)
    assert (scan.rows, scan.skipped, scan.rest_rows, scan.bad.total) == (2, 1, 2, 2)
    assert scan.rest_bytes == sum(len(json.dumps(row)) for row in (rows[3], rows[5]))


def test_a_duplicate_beyond_the_limit_is_found(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line("a"), embed_line("b"), embed_line("a")])
    assert codes(refused(reader_of(path), limit=1)) == [(3, "duplicate_id")]


def test_digests_are_those_of_the_contract_for_any_range(tmp_path: Path) -> None:
    rows = [embed_line(f"r{i}", f"text {i}") for i in range(10_000)]
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    scan, _ = check(reader_of(path))
    digests = [row_digest(i, f"r{i}", line) for i, line in enumerate(path.read_bytes().splitlines())]
    for start, stop in ((0, 10_000), (0, 1), (9_999, 10_000), (4095, 4097), (17, 9000)):
        wanted = InputDigest()
        for digest in digests[start:stop]:
            wanted.add(digest)
        assert scan.digests.of(start, stop) == wanted.hexdigest()
    assert scan.digest == scan.digests.of(0, 10_000)


def test_files_without_good_rows_have_no_rows_of_their_own(tmp_path: Path) -> None:
    for name, rows in (("a", []), ("b", [embed_line("b1"), embed_line("b2")]), ("c", [[1]]), ("d", [embed_line("d1")]), ("e", [])):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    scan, _ = check(reader_of(tmp_path), "skip")
    assert scan.starts == [0, 0, 2, 2, 3]


def test_the_sample_of_tokens_is_bounded_and_spread(tmp_path: Path) -> None:
    rows = [chat_line(f"r{i}", "x" * (400 if i < 5000 else 4000)) for i in range(10_000)]
    scan, _ = check(reader_of(write_jsonl(tmp_path / "t.jsonl", rows), "generate"))
    assert 2000 <= scan.sample.rows < 4000
    size = sum(len(json.dumps(row)) for row in rows)
    assert scan.sample.milli_tokens_per_byte == pytest.approx(1000 * (5000 * 105 + 5000 * 1005) / size, rel=0.02)


VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([1])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, None, False], "bool"),
        ([1, None, 2], "int"),
        ([1, 2.5], "float"),
        ([1, 2**60], "int"),
        ([1.5, 2**60], "json"),
        ([2**64], "json"),
        ([1, True], "json"),
        ([1, "1"], "json"),
        (["a", None], "str"),
        ([None, None], "str"),
        ([{"a": 1}], "json"),
        ([[1], None], "json"),
        ([1] * 50 + [2**64], "json"),
        ([1] * 50 + [2**54, 1.5], "json"),
    ],
)
def test_a_column_is_a_type_only_if_all_its_values_are(values: list[Any], kind: str) -> None:
    kinds = ColumnKinds()
    for value in values:
        kinds.add({"c": value})
    assert kinds.columns() == {"c": kind}


@settings(max_examples=200)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUE)))
def test_kinds_do_not_depend_on_the_order_of_rows(records: list[dict[str, Any]]) -> None:
    there, back = ColumnKinds(), ColumnKinds()
    for record in records:
        there.add(record)
    for record in reversed(records):
        back.add(dict(reversed(record.items())))
    assert there.columns() == back.columns()


def test_columns_that_no_row_uses_change_the_mark_and_nothing_else(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"text": "x", "n": 1}])
    one, _ = check(reader_of(path), columns=True)
    write_jsonl(path, [{"text": "x", "n": 2}])
    two, _ = check(reader_of(path), columns=True)
    assert one.digest == two.digest
    assert one.columns_mark != two.columns_mark
