"""emulator: RunPod's rate limits of the data plane, per endpoint and operation.

May touch: the standard library only. The table is from send-requests ("Rate limits"); a request over either limit is answered 429. Refused
requests do not count. The window slides (in any 10 s no more than the limit), which is the stricter reading of "10 second window".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Limit:
    """`per_window` requests in any 10 s, `concurrent` at the same time (None: not limited)."""

    per_window: int | None
    concurrent: int | None


RUNPOD_LIMITS: Final[Mapping[str, Limit]] = {
    "run": Limit(1000, 200),
    "runsync": Limit(2000, 400),
    "status": Limit(2000, 400),
    "stream": Limit(2000, 400),
    "cancel": Limit(100, 20),
    "purge-queue": Limit(2, None),
    "requests": Limit(10, 2),
}
"""Operations that are not here have no documented limit: retry, health, and the worker plane."""

NO_LIMITS: Final[Mapping[str, Limit]] = {}


class RateLimiter:
    """Counts the requests of one endpoint. `admit` before, `release` after each admitted request."""

    def __init__(self, limits: Mapping[str, Limit], requests_per_worker: int = 0) -> None:
        self._limits = limits
        self._per_worker = requests_per_worker
        self._recent: dict[str, deque[float]] = {}
        self._open: dict[str, int] = {}

    @property
    def scales_with_workers(self) -> bool:
        """Whether the number of running workers matters."""
        return self._per_worker > 0

    def admit(self, operation: str, now: float, running_workers: int = 0) -> bool:
        """Whether a request may pass now. The window limit is max(base, running workers x requests_per_worker); RunPod does not
        publish the second factor, so it is 0 unless set."""
        limit = self._limits.get(operation)
        if limit is None:
            return True
        open_now = self._open.get(operation, 0)
        if limit.concurrent is not None and open_now >= limit.concurrent:
            return False
        if limit.per_window is not None:
            recent = self._recent.setdefault(operation, deque())
            edge = now - WINDOW_S
            while recent and recent[0] <= edge:
                recent.popleft()
            if len(recent) >= max(limit.per_window, running_workers * self._per_worker):
                return False
            recent.append(now)
        self._open[operation] = open_now + 1
        return True

    def release(self, operation: str) -> None:
        """An admitted request has been answered."""
        if operation in self._open:
            self._open[operation] -= 1
