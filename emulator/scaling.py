"""emulator: how many workers there should be. Pure decisions over what is seen of the queue and the workers.

May touch: the standard library only. Rules from endpoint-configurations ("Auto-scaling type", "Idle timeout", "Active/Max workers"):

- QUEUE_DELAY: a worker is added when a request has waited longer than the value (seconds). Read literally, each request asks for at most
  one worker. None is added while another is still starting: a guess that makes it as lazy as it was described (an observation of six
  jobs of 8 s on a cold endpoint that stayed at two workers is lazier still; what RunPod does beyond the stated rule is not known).
- REQUEST_COUNT: workers = ceil((in queue + in progress) / value).
- lowPriority jobs never add a worker. Whether REQUEST_COUNT counts them is not documented: a switch of the endpoint, off by default.
- A worker without work for the idle timeout stops, down to the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScalerType = Literal["QUEUE_DELAY", "REQUEST_COUNT"]


@dataclass(frozen=True, slots=True)
class QueueView:
    """What the scaler sees of an endpoint's jobs. `ordinary` leaves lowPriority jobs out."""

    ordinary_queued: int
    ordinary_in_progress: int
    low_queued: int
    low_in_progress: int
    longest_unanswered_wait_s: float | None
    """Of ordinary queued jobs that have not yet made the scaler add a worker; None if there is none."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One live worker: neither stopped nor stopping."""

    id: str
    starting: bool
    """Not yet asked for work, throttled and unhealthy ones included."""
    idle_s: float | None
    """Since when it has had no work; None while it has some, and before it first asked."""
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    workers_min: int
    workers_max: int
    idle_timeout_s: float
    scaler: ScalerType
    value: float
    count_low_priority: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`start` new workers; `stop` these: a busy one finishes its jobs and takes no more. `answered`: the oldest waiting request has got its
    worker (QUEUE_DELAY)."""

    start: int = 0
    stop: tuple[str, ...] = ()
    answered: bool = False


def decide(bounds: Bounds, queue: QueueView, workers: tuple[WorkerView, ...]) -> Decision:
    """What to do now. Outdated workers count until they are gone only against the maximum, never as capacity."""
    current = [worker for worker in workers if not worker.outdated]
    floor = min(bounds.workers_min, bounds.workers_max)
    live = len(current)
    wanted = max(live, floor)
    answered = False
    if bounds.scaler == "REQUEST_COUNT":
        requests = queue.ordinary_queued + queue.ordinary_in_progress
        if bounds.count_low_priority:
            requests += queue.low_queued + queue.low_in_progress
        wanted = max(wanted, math.ceil(requests / bounds.value))
    elif (queue.longest_unanswered_wait_s or 0.0) > bounds.value and live < bounds.workers_max:
        answered = not any(worker.starting for worker in current)
        wanted = max(wanted, live + answered)
    wanted = min(wanted, bounds.workers_max)

    stop: list[str] = []
    if live > bounds.workers_max:
        idle_first = sorted(current, key=lambda worker: (worker.idle_s is None, not worker.starting))
        stop = [worker.id for worker in idle_first[: live - bounds.workers_max]]
    elif live > floor:
        idle = [worker for worker in current if worker.idle_s is not None and worker.idle_s >= bounds.idle_timeout_s]
        idle.sort(key=lambda worker: -(worker.idle_s or 0.0))
        stop = [worker.id for worker in idle[: live - floor]]
    return Decision(start=max(0, wanted - live), stop=tuple(stop), answered=answered)
