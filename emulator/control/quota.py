"""emulator: the rate limits of REST v2, per account: windows of a minute, an hour and a day, told in every answer.

May touch: the standard library only. Headers as the OpenAPI file shows them (IETF draft ratelimit-headers). Quotas there are an example
(60, 3000, 50000); a live answer had 176 left of a minute, so the emulator's minute is 180. That windows are aligned to the clock is a
guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

WINDOWS_S: Final = {"minute": 60, "hour": 3600, "day": 86_400}


class Quota:
    """Counts the requests of the account. `quotas`: by window name; a window that is not in it has no limit."""

    def __init__(self, quotas: Mapping[str, int]) -> None:
        self._quotas = dict(quotas)
        self._counted: dict[str, tuple[int, int]] = {}

    def admit(self, now: float) -> tuple[str, int] | None:
        """Count one request; or the window that is used up and the whole seconds until it ends. Refused requests do not count."""
        for window, quota in self._quotas.items():
            if self._used(window, now) >= quota:
                return window, self._left_s(window, now)
        for window in self._quotas:
            self._counted[window] = (self._number(window, now), self._used(window, now) + 1)
        return None

    def headers(self, now: float) -> dict[str, str]:
        """RateLimit and RateLimit-Policy; nothing without quotas."""
        if not self._quotas:
            return {}
        state = (
            f'"{window}";r={max(0, quota - self._used(window, now))};t={self._left_s(window, now)}'
            for window, quota in self._quotas.items()
        )
        policy = (f'"{window}";q={quota};w={WINDOWS_S[window]}' for window, quota in self._quotas.items())
        return {"RateLimit": ", ".join(state), "RateLimit-Policy": ", ".join(policy)}

    def _number(self, window: str, now: float) -> int:
        return int(now // WINDOWS_S[window])

    def _used(self, window: str, now: float) -> int:
        number, used = self._counted.get(window, (-1, 0))
        return used if number == self._number(window, now) else 0

    def _left_s(self, window: str, now: float) -> int:
        return max(1, math.ceil(WINDOWS_S[window] - now % WINDOWS_S[window]))
