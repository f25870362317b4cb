"""emulator: what a worker costs. Pure.

May touch: the standard library only. Rules from serverless/pricing and workers/overview: billed per second from the worker's start to its
full stop, rounded up; start-up (container start and model load), execution and the idle-timeout tail are billed; initialising (image
pull), throttled and unhealthy time is not.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a worker's time is spent on."""

    UNBILLED = "unbilled"
    STARTUP = "startup"
    EXECUTION = "execution"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Meter:
    """Seconds by phase up to `since`; from then on time goes to `phase`."""

    phase: Phase = Phase.UNBILLED
    since: float = 0.0
    startup_s: float = 0.0
    execution_s: float = 0.0
    idle_s: float = 0.0

    def at(self, now: float) -> Meter:
        """The same meter read at `now`."""
        passed = max(0.0, now - self.since)
        return dataclasses.replace(
            self,
            since=now,
            startup_s=self.startup_s + (passed if self.phase is Phase.STARTUP else 0.0),
            execution_s=self.execution_s + (passed if self.phase is Phase.EXECUTION else 0.0),
            idle_s=self.idle_s + (passed if self.phase is Phase.IDLE else 0.0),
        )

    def switch(self, phase: Phase, now: float) -> Meter:
        return dataclasses.replace(self.at(now), phase=phase)

    @property
    def billed_s(self) -> int:
        """Whole seconds, rounded up over the worker's life."""
        return math.ceil(round(self.startup_s + self.execution_s + self.idle_s, 6))


@dataclass(frozen=True, slots=True)
class Bill:
    """What an endpoint's workers have cost: one worker is billed `seconds` x GPUs x price."""

    workers: int = 0
    startup_s: float = 0.0
    execution_s: float = 0.0
    idle_s: float = 0.0
    billed_s: int = 0
    usd: float = 0.0

    def plus(self, meter: Meter, usd_per_s: float, gpus: int) -> Bill:
        if meter.billed_s == 0:
            return self
        return Bill(
            workers=self.workers + 1,
            startup_s=self.startup_s + meter.startup_s,
            execution_s=self.execution_s + meter.execution_s,
            idle_s=self.idle_s + meter.idle_s,
            billed_s=self.billed_s + meter.billed_s,
            usd=self.usd + meter.billed_s * usd_per_s * gpus,
        )
