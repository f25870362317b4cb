"""A suite's results in time: what changed, and where they stop being comparable."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nights.evals import stats
from nights.evals.history import history, record
from nights.evals.samples import ResultHeader
from tests.nights.evals.worlds import result_of


def header(night: int, right: int = 3, n: int = 10, **changes: object) -> ResultHeader:
    made = result_of([1.0] * right + [0.0] * (n - right), night=night).header
    return replace(made, **changes)


def test_each_night_says_what_changed_since_the_one_before() -> None:
    image = {"model": "smollm2", "image": "worker@sha256:2", "sampling": "temperature=0"}
    found = history([header(0), header(1, 5, made_with=image), header(2, 4, made_with=image)])
    assert [one.changed for one in found] == [(), ("image: worker@sha256:1 -> worker@sha256:2",), ()]
    assert [one.difference for one in found] == [None, pytest.approx(0.2), pytest.approx(-0.1)]
    assert [one.series for one in found] == [1, 1, 1]


def test_a_suite_that_changed_breaks_the_series_and_goes_on_when_it_is_changed_back() -> None:
    found = history([header(0), header(1, 5, dataset_digest="e" * 64), header(2, 6, dataset_digest="e" * 64), header(3, 4)])
    assert [one.series for one in found] == [1, 2, 2, 1]
    assert [bool(one.breaks) for one in found] == [False, True, False, True]
    assert found[1].breaks == ("dataset: dddddddddddd -> eeeeeeeeeeee",)
    assert [one.difference for one in found] == [None, None, pytest.approx(0.1), pytest.approx(0.1)]


def test_shares_have_their_interval_and_means_of_draws_have_none_that_a_header_could_tell() -> None:
    share, mean = history([header(0)])[0], history([header(0, binary=False)])[0]
    assert (share.low, share.high) == pytest.approx(stats.wilson(3, 10, 0.95))
    assert (mean.low, mean.high) == (None, None)


def test_pinned_results_carry_their_names() -> None:
    one = header(0)
    found = history([one, header(1)], pinned={one.result: ["main", "release-1"]})
    assert [entry.baselines for entry in found] == [("main", "release-1"), ()]
    assert record(found[0])["baselines"] == ["main", "release-1"]


def test_no_results_are_no_history() -> None:
    assert history([]) == ()
