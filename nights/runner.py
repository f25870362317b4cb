"""nights: the seam between a night and its runs: plan a dataset, bring a planned run to its verified output. Pure but for `StackRunner`.

A night is written against `Runner`; `StackRunner` is pipelines on a real stack (RunPod's or the emulator's), and tests have one that
computes in the same process over a bucket in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from contract.facts import Stack
from contract.store import Store
from pipelines.plan import PlannedRun, PlanRequest
from pipelines.work import Finished, Following


class Runner(Protocol):
    """What a night needs of the world. Times are the store's."""

    @property
    def stack(self) -> Stack:
        """Facts and secrets of the stack that the job names."""
        ...

    @property
    def store(self) -> Store:
        """The stack's bucket, with the client's keys."""
        ...

    def bucket(self, name: str) -> Store:
        """Another bucket at the same endpoint, with the same keys; closed with the runner."""
        ...

    def now(self) -> datetime:
        """The store's clock, which all of a run's times are of."""
        ...

    def note(self, text: str) -> None:
        """Tell the person who looks on."""
        ...

    async def plan(self, request: PlanRequest, *, dry_run: bool = False) -> PlannedRun:
        """As `pipelines.plan.plan_run`: the same request over the same rows finds its run again."""
        ...

    async def complete(self, planned: PlannedRun, how: Following) -> Finished:
        """Send, follow, collect and verify; a run that is complete already is only collected and verified again. What stopped it, if it was
        stopped, is in the result: no exception for what a run can come to."""
        ...


Note = Callable[[str], None]
