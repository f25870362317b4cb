"""infra: how many workers an endpoint needs, and what they cost. Pure arithmetic.

RunPod's own rule (serverless/endpoints/endpoint-configurations): active workers = requests a minute x seconds a request / 60, and the
maximum 20 % above what is expected at peak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from contract.errors import UsageError

HEADROOM: Final = 0.2


@dataclass(frozen=True)
class WorkersEstimate:
    """What to write into a stack file, and what it costs in dollars an hour (None: no price was given).

    `busy`: workers that the average load keeps busy, not rounded; `active`: that many whole workers (workers.min, if cold starts are not
    wanted at all); `peak`: whole workers busy at the busiest; `most`: 20 % above (workers.peak of the stack file).
    """

    busy: float
    active: int
    peak: int
    most: int
    usd_per_hour_busy: float | None
    usd_per_hour_active: float | None
    usd_per_hour_most: float | None


def estimate_workers(
    requests_per_minute: float,
    seconds_per_request: float,
    *,
    peak_requests_per_minute: float | None = None,
    concurrency: int = 1,
    headroom: float = HEADROOM,
    usd_per_hour_per_worker: float | None = None,
) -> WorkersEstimate:
    """How many active workers, and which max. `concurrency`: requests that one worker computes at once (MAX_CONCURRENCY), where that many
    do not slow each other down; `seconds_per_request` is then the time of one among them. Raises UsageError for what cannot be a load."""
    peak_rate = requests_per_minute if peak_requests_per_minute is None else peak_requests_per_minute
    for name, value, least in (
        ("requests per minute", requests_per_minute, 0.0),
        ("seconds per request", seconds_per_request, 0.0),
        ("peak requests per minute", peak_rate, requests_per_minute),
        ("concurrency", concurrency, 1),
        ("headroom", headroom, 0.0),
        ("dollars per hour", usd_per_hour_per_worker or 0.0, 0.0),
    ):
        if not math.isfinite(value) or value < least:
            raise UsageError(f"{name} must be {least:g} or more, not {value:g}.")

    def busy_at(rate: float) -> float:
        return rate * seconds_per_request / 60 / concurrency

    busy, peak = busy_at(requests_per_minute), busy_at(peak_rate)
    most = _whole(peak * (1 + headroom))
    active = _whole(busy)

    def cost(workers: float) -> float | None:
        return None if usd_per_hour_per_worker is None else workers * usd_per_hour_per_worker

    return WorkersEstimate(
        busy=busy,
        active=active,
        peak=_whole(peak),
        most=most,
        usd_per_hour_busy=cost(busy),
        usd_per_hour_active=cost(active),
        usd_per_hour_most=cost(most),
    )


def _whole(workers: float) -> int:
    """Rounded up; 1.2 x 5 is 6, whatever binary fractions say."""
    return math.ceil(round(workers, 9))
