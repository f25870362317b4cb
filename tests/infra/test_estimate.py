"""tests of infra.estimate: RunPod's rule for active and most workers."""

from __future__ import annotations

import pytest

from contract.errors import UsageError
from infra.estimate import WorkersEstimate, estimate_workers


def test_active_workers_are_requests_a_minute_times_seconds_over_60() -> None:
    assert estimate_workers(60, 5, usd_per_hour_per_worker=2.0) == WorkersEstimate(
        busy=5.0, active=5, peak=5, most=6, usd_per_hour_busy=10.0, usd_per_hour_active=10.0, usd_per_hour_most=12.0
    )


def test_the_most_is_20_percent_above_peak_rounded_up() -> None:
    found = estimate_workers(10, 30, peak_requests_per_minute=22)
    assert (found.busy, found.active, found.peak, found.most) == (5.0, 5, 11, 14)
    assert (found.usd_per_hour_busy, found.usd_per_hour_most) == (None, None)


def test_a_little_load_needs_a_whole_worker_and_none_needs_none() -> None:
    assert (estimate_workers(1, 1).active, estimate_workers(1, 1).most) == (1, 1)
    assert (estimate_workers(0, 10).active, estimate_workers(0, 10).most) == (0, 0)


def test_a_worker_that_does_several_at_once_needs_fewer_workers() -> None:
    assert estimate_workers(60, 20, concurrency=4).active == 5
    assert estimate_workers(100, 3, headroom=0.0).most == 5


@pytest.mark.parametrize(
    "given",
    [
        {"requests_per_minute": -1}, {"seconds_per_request": float("nan")}, {"concurrency": 0}, {"headroom": -0.1},
        {"peak_requests_per_minute": 1}, {"requests_per_minute": float("inf")}, {"usd_per_hour_per_worker": -2},
    ],
)  # fmt: skip
def test_what_cannot_be_a_load_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"or more, not"):
        estimate_workers(**{"requests_per_minute": 10.0, "seconds_per_request": 2.0, **given})  # type: ignore[arg-type]
