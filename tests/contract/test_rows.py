"""tests of contract.rows: digests that tell every two arrangements of rows apart, and do not care for order where they must not."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contract.errors import ContractError
from contract.models import decode, encode
from contract.rows import URLS, BatchLine, ErrorLine, InputDigest, PartLine, RowError, ShardDigest, outcome_digest, row_digest

INDICES = st.integers(0, (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROWS = st.tuples(INDICES, TEXTS, st.binary(max_size=40))
OUTCOMES = st.tuples(INDICES, st.binary(min_size=32, max_size=32), st.booleans(), st.binary(max_size=20))


@given(ROWS, ROWS)
def test_two_rows_share_a_digest_only_when_they_are_the_same(one: tuple[int, str, bytes], two: tuple[int, str, bytes]) -> None:
    assert (row_digest(*one) == row_digest(*two)) == (one == two)


@pytest.mark.parametrize(("one", "two"), [(("a", b"bc"), ("ab", b"c")), (("", b"x"), ("x", b"")), (("é", b""), ("e", b"\xcc\x81"))])
def test_id_and_line_do_not_run_into_each_other(one: tuple[str, bytes], two: tuple[str, bytes]) -> None:
    assert row_digest(1, *one) != row_digest(1, *two)


def test_the_row_digest_is_as_documented() -> None:
    wanted = hashlib.sha256((7).to_bytes(8, "big") + (2).to_bytes(4, "big") + "é".encode() + b"{}").digest()
    assert row_digest(7, "é", b"{}") == wanted


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.lists(st.binary(min_size=32, max_size=32), max_size=5))
def test_the_input_digest_tells_every_two_lists_apart(one: list[bytes], two: list[bytes]) -> None:
    def of(digests: list[bytes]) -> tuple[int, str]:
        made = InputDigest()
        for digest in digests:
            made.add(digest)
        return made.count, made.hexdigest()

    assert (of(one) == of(two)) == (one == two)


def shard_digest(rows: list[Any]) -> tuple[int, str]:
    made = ShardDigest()
    for row in rows:
        made.add(*row)
    return made.count, made.hexdigest()


@given(st.lists(OUTCOMES, max_size=8), st.randoms())
def test_the_shard_digest_does_not_care_for_order(rows: list[Any], random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert shard_digest(rows) == shard_digest(shuffled)
    assert len(shard_digest(rows)[1]) == 64


@given(st.lists(OUTCOMES, min_size=1, max_size=6), st.data())
def test_the_shard_digest_sees_each_single_change(rows: list[Any], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    index, digest, ok, output = rows[at]
    other = data.draw(OUTCOMES)
    assume(other != rows[at])
    before = shard_digest(rows)
    for changed in (
        [*rows[:at], other, *rows[at + 1 :]],
        [*rows[:at], (index, digest, not ok, output), *rows[at + 1 :]],
        [*rows[:at], (index, digest, ok, output + b"x"), *rows[at + 1 :]],
        [*rows[:at], (index + 1, digest, ok, output), *rows[at + 1 :]],
        [*rows[:at], *rows[at + 1 :]],
        [*rows, rows[at]],
    ):
        assert shard_digest(changed) != before


def test_outputs_of_two_rows_that_were_exchanged_change_the_digest() -> None:
    one, two = bytes(32), bytes([1] * 32)
    assert shard_digest([(0, one, True, b"a"), (1, two, True, b"b")]) != shard_digest([(0, one, True, b"b"), (1, two, True, b"a")])


def test_the_sum_wraps_at_256_bits() -> None:
    terms = [outcome_digest(index, bytes(32), True, b"") for index in range(50)]
    assert sum(terms) > 1 << 256
    assert shard_digest([(index, bytes(32), True, b"") for index in range(50)])[1] == f"{sum(terms) % (1 << 256):064x}"


def test_part_and_error_lines_keep_the_exact_bytes() -> None:
    line = b'{"index":3,"row":"%s","id":"\\u00e9","response":{"b": 1.50,  "a":"\\u2028"}}' % (b"ab" * 32)
    part: PartLine = decode(line, PartLine, where="x")
    assert (part.index, part.id, bytes(part.response)) == (3, "é", b'{"b": 1.50,  "a":"\\u2028"}')
    error: ErrorLine = decode(line.replace(b'"response"', b'"error"'), ErrorLine, where="x")
    assert bytes(error.error) == bytes(part.response)


def test_batch_lines_leave_the_body_to_the_task_and_refuse_other_fields() -> None:
    line: BatchLine = decode(b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"x"}}', BatchLine, where="x")
    assert bytes(line.body) == b'{"input":"x"}'
    for bad in (
        b'{"custom_id":1,"url":"/","body":{}}',
        b'{"custom_id":"a","method":"GET","url":"/","body":{}}',
        b'{"custom_id":"a","url":"/"}',
    ):
        with pytest.raises(ContractError):
            decode(bad, BatchLine, where="x")


def test_a_row_error_without_a_field_does_not_mention_one() -> None:
    assert encode(RowError(code="c", message="m")) == b'{"code":"c","message":"m"}'
    assert b'"param":"top_k"' in encode(RowError(code="c", message="m", param="top_k"))


def test_every_task_knows_its_urls() -> None:
    assert URLS == {"generate": ("/v1/chat/completions", "/v1/completions"), "embed": ("/v1/embeddings",)}
