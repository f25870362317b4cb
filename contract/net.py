"""contract: what addresses and HTTP headers say, read in one way by everybody. Pure."""

from __future__ import annotations

import email.utils
import time
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts that are this machine."""


def on_this_machine(url: str) -> bool:
    """Whether the address is one of this machine: RunPod is the emulator then, and what it calls may be on loopback."""
    return urlsplit(url).hostname in LOOPBACK


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
