"""contract: what HTTP headers say, read in one way by every client. Pure."""

from __future__ import annotations

import email.utils
import time


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or an HTTP date. None when there is none, or it says nothing. Not bounded:
    how long it waits is its caller's business. `now`: seconds since 1970, the clock's unless given."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None
