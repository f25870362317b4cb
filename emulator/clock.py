"""emulator: time. Every delay, ttl, retention, autoscaling tick, long poll and billed second of the emulator reads this clock.

May touch: the standard library only. Three clocks: real time, time that runs faster (for tests over HTTP), and time that stands still
until a test moves it (for tests without HTTP).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, and a sleep in the same seconds."""

    def time(self) -> float:
        """Now, in seconds since the epoch; never goes back while the process lives."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` of this clock have passed."""
        ...

    def real_seconds(self, seconds: float) -> float:
        """How long `seconds` of this clock are in real seconds: for time-outs on sockets and processes."""
        ...


class RealClock:
    """Rate 1. Wall-clock time at the start, counted on monotonically: a shifted system clock changes no job."""

    def __init__(self) -> None:
        self._epoch = time.time()
        self._zero = time.monotonic()

    def time(self) -> float:
        return self._epoch + (time.monotonic() - self._zero)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def real_seconds(self, seconds: float) -> float:
        return seconds


class FastClock:
    """`rate` seconds pass in each real second. Unmodified SDK workers sleep in real time and need rate 1; scripted workers do not.

    On a busy machine the process may not run for a while; at most `stall_s` real seconds of such a while are counted, so that time does
    not run away from those who live in it. Time then passes more slowly, but everything still happens in its order.
    """

    def __init__(self, rate: float = 100.0, start: float | None = None, stall_s: float = 0.05) -> None:
        if rate <= 0:
            raise ValueError(f"rate must be above 0, not {rate}")
        self.rate = rate
        self._stall_s = stall_s
        self._now = time.time() if start is None else start
        self._read_at = time.monotonic()

    def time(self) -> float:
        real = time.monotonic()
        self._now += min(real - self._read_at, self._stall_s) * self.rate
        self._read_at = real
        return self._now

    async def sleep(self, seconds: float) -> None:
        due = self.time() + seconds
        left = seconds
        while True:
            await asyncio.sleep(min(max(0.0, left) / self.rate, self._stall_s / 2))
            left = due - self.time()
            if left <= 0:
                return

    def real_seconds(self, seconds: float) -> float:
        return seconds / self.rate


class ManualClock:
    """Time that moves only by `advance`. Sleepers wake in the order of their times, each at its own time."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), waiter))
        await waiter

    def real_seconds(self, seconds: float) -> float:
        return 0.0 if seconds <= 0 else 0.01

    async def advance(self, seconds: float) -> None:
        """Move time on by `seconds`, waking each sleeper at its time and letting it run before time moves further."""
        end = self._now + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, waiter = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not waiter.done():
                waiter.set_result(None)
            await _settle()
        self._now = end


async def _settle() -> None:
    """Let everything that is ready run. Ten rounds are enough for chains of a few awaits without I/O."""
    for _ in range(10):
        await asyncio.sleep(0)
