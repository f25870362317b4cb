"""nights/report: arithmetic on spans of time: unions, shares of those who work at once, buckets, quantiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

Span = tuple[float, float]
"""[start, stop) in seconds."""
STEPS: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800
)  # fmt: skip
"""Seconds that people count in."""


def step(seconds: float, most: int) -> float:
    """The shortest usual step of which `most` cover so many seconds."""
    for found in STEPS:
        if seconds <= found * most:
            return float(found)
    return float(STEPS[-1] * -(-seconds // (STEPS[-1] * most)))


def joined(spans: Iterable[Span], gap: float = 0.0) -> list[Span]:
    """Their union, in order; those not further apart than `gap` become one."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1] + gap:
            if stop > found[-1][1]:
                found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def length(spans: Iterable[Span]) -> float:
    """How long they are together; they must not overlap."""
    return sum(stop - start for start, stop in spans)


def shares(spans: Sequence[Span]) -> list[float]:
    """Of the time that these spans cover together, what falls to each: those that overlap share it evenly. The sum is the union's length,
    so that money which is paid once is not told twice."""
    there = [(at, start, stop) for at, (start, stop) in enumerate(spans) if stop > start]
    events = sorted([(start, 1, at) for at, start, _ in there] + [(stop, 0, at) for at, _, stop in there])
    found = [0.0] * len(spans)
    active: set[int] = set()
    before = 0.0
    for when, begins, at in events:
        if active and when > before:
            each = (when - before) / len(active)
            for one in active:
                found[one] += each
        before = when
        if begins:
            active.add(at)
        else:
            active.discard(at)
    return found


def waits(busy: Sequence[Span], fresh: Iterable[float]) -> float:
    """The time between spans that nothing filled, where the worker lived on: a gap that ends with the start of a new process (`fresh`) is
    left out, because the worker may have been away, and then costs nothing."""
    starts = set(fresh)
    return sum(after[0] - before[1] for before, after in pairwise(busy) if after[0] > before[1] and after[0] not in starts)


def fill(into: list[float], spans: Iterable[Span], origin: float, width: float) -> None:
    """Add to each bucket how much of it the spans cover."""
    for start, stop in spans:
        at = max(0, int((start - origin) // width))
        while at < len(into):
            left, right = origin + at * width, origin + (at + 1) * width
            if left >= stop:
                break
            into[at] += max(0.0, min(stop, right) - max(start, left))
            at += 1


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of them do not pass; they must be in order, and there must be one."""
    return ordered[min(len(ordered), max(1, math.ceil(round(share * len(ordered), 9)))) - 1]
