"""nights: the seam between a night and its runs: plan a dataset, bring a planned run to its verified output. Pure but for `StackRunner`.

A night is written against `Runner`; `StackRunner` is pipelines on a real stack (RunPod's or the emulator's), and tests have one that
computes in the same process over a bucket in memory.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Literal, Protocol

from contract.facts import Stack
from contract.models import Plan
from contract.store import Store
from pipelines.follow import Event, Events, ignore
from pipelines.plan import PlanEvent, PlannedRun, PlanRequest
from pipelines.runs import load_run
from pipelines.work import Buckets, Finished, Following, MakeLimits, RowsDone, Watch, buckets_of, finish, plan


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

    async def complete(self, planned: PlannedRun, how: Following, hear: Events = ignore) -> Finished:
        """Send, follow, collect and verify; a run that is complete already is only collected and verified again. `hear` is told what the
        run does, beside whoever looks on. What stopped it, if it was stopped, is in the result: no exception for what a run can come to.
        """
        ...


class StackRunner:
    """Runs on a real stack: RunPod's, or the emulator's. `live_limits`: as `pipelines.work` takes it."""

    def __init__(self, stack: Stack, buckets: Buckets, watch: Watch, live_limits: MakeLimits | None = None) -> None:
        self._stack = stack
        self._buckets = buckets
        self._watch = watch
        self._live_limits = live_limits

    @property
    def stack(self) -> Stack:
        return self._stack

    @property
    def store(self) -> Store:
        return self._buckets.main

    def bucket(self, name: str) -> Store:
        return self._buckets.main if name == self._buckets.main.bucket else self._buckets.other(name)

    def now(self) -> datetime:
        return self._buckets.main.now()

    def note(self, text: str) -> None:
        self._watch.note(text)

    async def plan(self, request: PlanRequest, *, dry_run: bool = False) -> PlannedRun:
        return await plan(self._stack, request, self._watch, dry_run=dry_run)

    async def complete(self, planned: PlannedRun, how: Following, hear: Events = ignore) -> Finished:
        began = time.monotonic()
        run = await load_run(self._buckets.main, planned.uri)
        return await finish(
            self._stack, run, self._buckets, how, _Both(self._watch, hear), began=began, said=planned.notices, live_limits=self._live_limits
        )


class _Both(Watch):
    """A watch, and another ear for what a run does."""

    def __init__(self, watch: Watch, hear: Events) -> None:
        self._watch = watch
        self._hear = hear

    def planning(self, event: PlanEvent) -> None:
        self._watch.planning(event)

    def rows(self, phase: Literal["collecting", "verifying"]) -> RowsDone | None:
        return self._watch.rows(phase)

    def note(self, text: str) -> None:
        self._watch.note(text)

    @asynccontextmanager
    async def _following(self, stack: Stack, plan: Plan) -> AsyncIterator[Events]:
        async with self._watch.following(stack, plan) as events:

            def both(event: Event) -> None:
                events(event)
                self._hear(event)

            yield both

    def following(self, stack: Stack, plan: Plan) -> AbstractAsyncContextManager[Events]:
        return self._following(stack, plan)


@asynccontextmanager
async def runner_of(stack: Stack, watch: Watch, live_limits: MakeLimits | None = None) -> AsyncIterator[Runner]:
    """A stack's runner while this is open."""
    async with buckets_of(stack) as buckets:
        yield StackRunner(stack, buckets, watch, live_limits)
