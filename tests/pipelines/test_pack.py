# tests/pipelines: rows -> shards, as laws over any rows.
from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.models import TaskKind, TaskSpec
from pipelines.pack import RULES, PackRules, TokenSample, milli_tokens, pack, row_tokens
from pipelines.plan import Cut, cut_shards
from pipelines.preflight import preflight
from tests.pipelines.planning import chat_line, embed_line, reader_of, write_jsonl

SMALL = PackRules(us_per_token_in=10, us_per_token_out=100, most_us=50_000, most_rows=20, most_bytes=5_000, few_rows=3, spread=8)


def cut(lengths: list[int], out: int = 10, rules: PackRules = SMALL, **more: Any) -> tuple[tuple[int, int], ...]:
    sizes = array("I", lengths)
    tokens = row_tokens(sizes, 250)
    return pack(tokens, np.full(len(lengths), out, np.int64), np.frombuffer(sizes, np.uint32), rules, **more)


def cut_file(path: Path, task: TaskSpec) -> Cut:
    scan, _ = preflight(reader_of(path, task.kind))
    try:
        return cut_shards(scan, task)
    finally:
        scan.close()


LENGTHS = st.lists(st.integers(1, 3000), max_size=200)


@settings(max_examples=300, deadline=None)
@given(LENGTHS, st.lists(st.integers(0, 220), max_size=5), st.none() | st.integers(1, 50), st.integers(0, 2000))
def test_shards_cover_every_row_once_in_order_within_the_limits(lengths: list[int], breaks: list[int], fixed: int | None, out: int) -> None:
    shards = cut(lengths, out, breaks=breaks, rows_per_shard=fixed)
    assert [i for start, stop in shards for i in range(start, stop)] == list(range(len(lengths)))
    for start, stop in shards:
        assert stop > start
        assert stop - start <= SMALL.most_rows
        assert sum(lengths[start:stop]) <= SMALL.most_bytes or stop - start == 1
        if fixed is not None:
            assert stop - start <= fixed
    begins = {start for start, _ in shards}
    assert all(b in begins for b in breaks if 0 < b < len(lengths))


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(0, 500))
def test_the_same_rows_give_the_same_shards(lengths: list[int], out: int) -> None:
    assert cut(lengths, out) == cut(list(lengths), out)


@settings(max_examples=100, deadline=None)
@given(LENGTHS.filter(bool), st.integers(0, 500))
def test_a_shard_costs_at_most_what_one_may_and_one_row_more(lengths: list[int], out: int) -> None:
    def cost(start: int, stop: int) -> int:
        return sum(length * 250 // 1000 * SMALL.us_per_token_in + out * SMALL.us_per_token_out + 1 for length in lengths[start:stop])

    dearest = max(cost(i, i + 1) for i in range(len(lengths)))
    assert all(cost(start, stop) <= SMALL.most_us + dearest for start, stop in cut(lengths, out))


def test_no_rows_are_no_shards() -> None:
    assert cut([]) == ()


def test_shards_of_equal_rows_are_of_equal_size() -> None:
    sizes = [stop - start for start, stop in cut([100] * 160)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("kind", "rows", "least", "most"),
    [
        ("embed", 2400, 5, 5),
        ("generate", 200, 1, 1),
        ("generate", 1200, 5, 5),
        ("generate", 10, 1, 1),
        ("embed", 100, 1, 1),
        ("generate", 50_000, 64, 300),
    ],
)
def test_small_datasets_are_shared_out_and_tiny_ones_are_not(kind: TaskKind, rows: int, least: int, most: int) -> None:
    shards = cut([300] * rows, 24, RULES[kind])
    assert least <= len(shards) <= most


def test_rows_with_long_answers_make_smaller_shards() -> None:
    few = cut([300] * 5000, 4000, RULES["generate"])
    many = cut([300] * 5000, 16, RULES["generate"])
    assert len(few) > 2 * len(many)


def test_a_rows_own_limit_of_output_weighs(tmp_path: Path) -> None:
    rows = [chat_line(f"r{i}", max_tokens=2000 if i < 2000 else 10) for i in range(4000)]
    found = cut_file(write_jsonl(tmp_path / "t.jsonl", rows), TaskSpec(kind="generate", model="m"))
    sizes = [shard.stop - shard.start for shard in found.shards]
    assert sizes[-1] > 10 * max(sizes[:-1])
    assert found.work.out_high == 2000 * 2000 + 2000 * 10


def test_parameters_of_the_task_are_the_limit_of_rows_that_say_none(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [chat_line(f"r{i}") for i in range(10)])
    assert cut_file(path, TaskSpec(kind="generate", model="m", params={"max_tokens": 24})).work.out_high == 240
    embed = write_jsonl(tmp_path / "e.jsonl", [embed_line(f"r{i}") for i in range(10)])
    assert cut_file(embed, TaskSpec(kind="embed", model="m")).work.out_high == 0


def test_the_high_price_of_rows_without_a_limit_is_the_models_context_and_no_boundary_moves(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [chat_line(f"r{i}") for i in range(9)] + [chat_line("own", max_tokens=7)])
    task = TaskSpec(kind="generate", model="m")
    scan, _ = preflight(reader_of(path, "generate"))
    try:
        unsaid, known, small = (cut_shards(scan, task, context=context) for context in (None, 2048, 20))
    finally:
        scan.close()
    per_row = known.work.tokens_in // 10
    assert unsaid.work.out_high == pytest.approx(9 * (8192 - per_row) + 7, abs=20)
    assert known.work.out_high == pytest.approx(9 * (2048 - per_row) + 7, abs=20)
    assert unsaid.work.out_likely == known.work.out_likely == (9 * 256 + 7) * 3 // 5
    assert small.work.out_low <= small.work.out_likely <= small.work.out_high < 200
    assert unsaid.shards == known.shards == small.shards
    assert unsaid.open_rows == 9


def test_completions_that_say_no_limit_have_openais_sixteen_tokens(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"custom_id": f"r{i}", "url": "/v1/completions", "body": {"prompt": "x"}} for i in range(10)])
    scan, _ = preflight(reader_of(path, "generate"))
    try:
        cut = cut_shards(scan, TaskSpec(kind="generate", model="m"), implied=16)
    finally:
        scan.close()
    assert (cut.work.out_high, cut.open_rows) == (160, 0)


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        (chat_line("a", "x" * 400), 105),
        (embed_line("a", "x" * 400), 100),
        (embed_line("a", "日" * 100), 70),
        ({"body": {"prompt": "x" * 40}}, 10),
        ({"body": {"input": ["x" * 40, "y" * 40]}}, 20),
        ({"body": {"prompt": [1, 2, 3]}}, 3),
        ({"body": {"messages": [{"content": [{"type": "text", "text": "x" * 40}]}]}}, 15),
    ],
)
def test_tokens_are_told_from_text(row: dict[str, Any], tokens: int) -> None:
    import msgspec

    assert milli_tokens(msgspec.json.encode(row)) == tokens * 1000


def test_an_empty_sample_still_has_a_ratio() -> None:
    assert TokenSample().milli_tokens_per_byte > 0
