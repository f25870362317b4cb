# tests/pipelines: the client keeps below RunPod's rate limits, however late its requests arrive there.
from __future__ import annotations

import asyncio
import random

from pipelines.runpod import WINDOW_S, Limit, Pacer, Timer


class Clock:
    """Time that jumps to the next sleeper whenever everybody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        self._sleepers.append((self.now + max(0.0, seconds), self._order, waiter))
        await waiter

    async def until_done(self, work: asyncio.Future[object]) -> None:
        while not work.done():
            for _ in range(50):
                await asyncio.sleep(0)
            if self._sleepers and not work.done():
                self._sleepers.sort(key=lambda sleeper: sleeper[:2])
                due, _, waiter = self._sleepers.pop(0)
                self.now = max(self.now, due)
                waiter.set_result(None)


async def arrivals(limit: Limit, requests: int, latency: float, seed: int) -> list[float]:
    """When each request arrives at the server: at any moment between its start and its answer."""
    clock, rng = Clock(), random.Random(seed)
    pacer = Pacer(limit, Timer(monotonic=lambda: clock.now, sleep=clock.sleep))
    found: list[float] = []

    async def one() -> None:
        async with pacer.slot():
            takes = rng.uniform(0, latency)
            before = rng.uniform(0, takes)
            await clock.sleep(before)
            found.append(clock.now)
            await clock.sleep(takes - before)

    work = asyncio.gather(*(one() for _ in range(requests)))
    await clock.until_done(work)  # type: ignore[arg-type]
    return sorted(found)


async def test_no_window_of_ten_seconds_sees_more_requests_than_allowed_even_when_they_arrive_late() -> None:
    limit = Limit(20, 5)
    for seed, latency in enumerate((0.01, 0.5, 3.0, 12.0)):
        times = await arrivals(limit, 90, latency, seed)
        worst = max(sum(1 for other in times if at - WINDOW_S < other <= at) for at in times)
        assert worst <= limit.per_window, (latency, worst)


async def test_the_limit_is_nearly_used_up_when_answers_are_quick() -> None:
    times = await arrivals(Limit(20, 5), 100, 0.02, 1)
    assert times[-1] < 4 * (WINDOW_S + 0.3) + 1, "100 requests at 20 in 10 s need 40 s"
