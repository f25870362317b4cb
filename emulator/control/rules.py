"""emulator: what RunPod does to endpoints by itself. Pure.

May touch: the standard library only. Rules from endpoint-configurations (June 2026) and workers/overview: an endpoint without a request for
3 days is cut to 2 workers, for 7 days to 0, and neither is ever taken back; an endpoint whose workers stay unhealthy (they are retried for
up to 7 days) is scaled down. RunPod writes an e-mail each time.
"""

from __future__ import annotations

from typing import Final

DAY_S: Final = 86_400.0
IDLE_CUTS: Final = ((7 * DAY_S, 0), (3 * DAY_S, 2))
"""Seconds without a request, and the workers.max that is left. Which requests count is not stated: here /run and /runsync, and setting
`workers` by hand starts the time anew."""
UNHEALTHY_S: Final = 7 * DAY_S
"""How long no worker may become ready before the endpoint is scaled down (to 0; the page says no number)."""


def idle_cut(workers_max: int, idle_s: float) -> int | None:
    """The workers.max that the idle rule leaves; None if it changes nothing."""
    for after_s, left in IDLE_CUTS:
        if idle_s >= after_s:
            return left if workers_max > left else None
    return None


def unhealthy_cut(workers_max: int, failing_since: float | None, now: float, patience_s: float = UNHEALTHY_S) -> bool:
    """Whether an endpoint whose workers have failed since then is scaled down."""
    return workers_max > 0 and failing_since is not None and now - failing_since >= patience_s
