"""Spans of time: what is shared, joined and counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.protocol import union_length
from nights.report.spans import STEPS, fill, joined, length, quantile, shares, step, waits

spans = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)).map(lambda one: (float(one[0]), float(one[0] + one[1]))), max_size=30)


@given(spans)
def test_shares_add_up_to_the_time_that_is_paid_for(found: list[tuple[float, float]]) -> None:
    assert sum(shares(found)) == pytest.approx(union_length(found))
    assert all(0 <= share <= stop - start + 1e-9 for share, (start, stop) in zip(shares(found), found, strict=True))


@given(spans)
def test_buckets_hold_all_the_time_that_was_covered(found: list[tuple[float, float]]) -> None:
    buckets = [0.0] * 60
    fill(buckets, joined(found), 0.0, 5.0)
    assert sum(buckets) == pytest.approx(length(joined(found)))


def test_those_who_work_at_once_share_evenly() -> None:
    assert shares([(0, 10), (5, 15), (20, 21)]) == [7.5, 7.5, 1.0]


def test_an_empty_span_takes_nothing_and_ends() -> None:
    assert shares([(3, 3), (0, 10)]) == [0.0, 10.0]


def test_spans_that_are_near_become_one() -> None:
    assert joined([(5, 6), (0, 2), (2.5, 4)], 0.5) == [(0, 4), (5, 6)]


def test_a_gap_that_ends_with_a_new_process_is_no_waiting() -> None:
    busy = [(0.0, 10.0), (14.0, 20.0), (50.0, 60.0)]
    assert waits(busy, [0.0, 50.0]) == 4.0


def test_a_step_is_one_that_people_count_in() -> None:
    assert (step(30, 60), step(3600, 60), step(3601, 60), step(86400 * 400, 10)) == (1.0, 60.0, 120.0, 604800.0 * 6)
    assert all(step(seconds, 50) * 50 >= seconds for seconds in range(1, 10**6, 9973))
    assert list(STEPS) == sorted(STEPS)


def test_quantiles_are_values_that_were_there() -> None:
    values = [float(one) for one in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.9), quantile(values, 0.99), quantile([7.0], 0.99)) == (50.0, 90.0, 99.0, 7.0)
