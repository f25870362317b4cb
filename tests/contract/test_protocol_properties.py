# tests/contract: hypothesis drives the real client (and a worker) through crashes, lost answers, doubled deliveries and two clients,
# over stores of both kinds, and looks at PROTOCOL.md's invariants after every move.
from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from contract.keys import RunUri
from contract.models import REFUSAL, JournalEntry, StoreMode, encode
from contract.protocol import Attempt, Finish, JobStatus, Pause, Stall
from contract.store import put_first
from contract.tree import read_tree
from pipelines.cancel import cancel, set_control
from pipelines.follow import Driver
from pipelines.runs import RunHandle
from pipelines.seal import Sealed, freeze, seal_of
from tests.contract.world import Execute, Freezing, World, make_plan, real_execution, reference_execution

COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
QUICK = settings(COMMON, max_examples=120, stateful_step_count=18, derandomize=True)
LONG = settings(COMMON, max_examples=400, stateful_step_count=40, print_blob=True)


class Protocol(RuleBasedStateMachine):
    """One run, worked on by up to two clients at once, on a bad night."""

    driver: type[Driver] = Driver
    execute: Execute = staticmethod(real_execution)
    freezing: Freezing = staticmethod(freeze)
    modes: tuple[StoreMode, ...] = ("conditional", "last-writer")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stopped = False

    def do(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    @initialize(
        data=st.data(),
        shards=st.integers(1, 4),
        pace=st.integers(1, 2),
        scaler=st.sampled_from(["QUEUE_DELAY", "REQUEST_COUNT"]),
        budget=st.sampled_from([None, None, 1.5, 4.0]),
        seed=st.integers(0, 1 << 20),
    )
    def begin(self, data: st.DataObject, shards: int, pace: int, scaler: str, budget: float | None, seed: int) -> None:
        mode = data.draw(st.sampled_from(self.modes))
        plan = make_plan(shards=shards, mode=mode, pace=pace, scaler=scaler, budget_usd=budget)
        self.world = World(plan, seed=seed, driver=self.driver, execute=self.execute, freezing=self.freezing)
        self.do(self.world.open())

    # -- the night

    @precondition(lambda self: len(self.world.living()) < 2)
    @rule()
    def a_client_starts(self) -> None:
        self.do(self.world.start_client())

    @precondition(lambda self: self.world.living())
    @rule(which=st.integers(0, 1))
    def a_client_is_killed(self, which: int) -> None:
        living = self.world.living()
        self.world.kill(living[which % len(living)].actor)

    @rule(turns=st.integers(1, 40), seed=st.integers(0, 1 << 20))
    def they_go_on(self, turns: int, seed: int) -> None:
        self.do(self.world.run_turns(turns, random.Random(seed)))

    @rule(turns=st.integers(1, 20), seed=st.integers(0, 1 << 20))
    def requests_and_answers_are_lost(self, turns: int, seed: int) -> None:
        self.do(self.world.run_turns(turns, random.Random(seed), fault=0.4))

    @rule(seconds=st.sampled_from([1.0, 11.0, 31.0, 61.0, 500.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.objects.advance(seconds)

    @rule(workers=st.integers(0, 3))
    def runpod_scales(self, workers: int) -> None:
        self.world.platform.workers = workers

    @precondition(lambda self: self.world.platform.queued())
    @rule(which=st.integers(0, 5))
    def a_worker_takes_a_job(self, which: int) -> None:
        queued = self.world.platform.queued()
        self.world.platform.workers = max(1, self.world.platform.workers)
        self.do(self.world.deliver(queued[which % len(queued)]))

    @precondition(lambda self: self.world.platform.jobs)
    @rule(which=st.integers(0, 9))
    def a_job_is_delivered_whatever_its_state(self, which: int) -> None:
        jobs = list(self.world.platform.jobs.values())
        job = jobs[which % len(jobs)]
        before = job.status
        self.do(self.world.deliver(job))
        if before in ("CANCELLED", "FAILED", "COMPLETED"):
            job.status = before

    @precondition(lambda self: self.world.platform.running())
    @rule(which=st.integers(0, 5))
    def a_worker_dies(self, which: int) -> None:
        running = self.world.platform.running()
        job = running[which % len(running)]
        assert job.worker is not None
        self.world.kill_worker(job.worker)
        self.world.platform.lose(job)

    @precondition(lambda self: self.world.platform.queued())
    @rule(which=st.integers(0, 5))
    def a_worker_refuses_a_job(self, which: int) -> None:
        """One of another release, say: it never begins, and its answer is its last word."""
        queued = self.world.platform.queued()
        job = queued[which % len(queued)]
        job.worker, job.error = "worker-old", f"{REFUSAL}input.task.revision is not here."
        self.world.platform.finish(job, "FAILED")

    @precondition(lambda self: self.world.platform.jobs and self.world.living())
    @rule(which=st.integers(0, 9), forged=st.booleans(), times=st.integers(1, 2))
    def a_webhook_comes(self, which: int, forged: bool, times: int) -> None:
        """The receiver lets no forged one through; even if it did, nothing may follow."""
        jobs = list(self.world.platform.jobs.values())
        given = jobs[which % len(jobs)].request.input
        for client in self.world.living():
            for _ in range(times):
                client.driver.woke(given.shard, given.attempt + (1 if forged else 0))

    @precondition(lambda self: sum(not task.done() for task in self.world.collectors.values()) < 2)
    @rule()
    def somebody_collects(self) -> None:
        self.do(self.world.collect())

    @precondition(lambda self: not self.stopped)
    @rule(mode=st.sampled_from(["keep", "stop"]))
    def the_user_cancels(self, mode: str) -> None:
        run = RunHandle(RunUri.parse(self.world.plan.run), self.world.plan)
        self.do(cancel(run, store=self.world.quiet_store(), jobs=_AtOnce(self.world), mode=mode))  # type: ignore[arg-type]
        self.stopped = True

    @precondition(lambda self: self.stopped)
    @rule()
    def the_user_resumes(self) -> None:
        self._run_again()

    def _run_again(self) -> None:
        world = self.world
        self.do(set_control(world.quiet_store(), world.keys, world.plan, mode="run", by="resume", reason=None, raise_epoch=False))
        self.stopped = False

    @invariant()
    def what_must_always_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    # -- the morning

    def teardown(self) -> None:
        try:
            if hasattr(self, "world") and not self.world.broken:
                self._morning()
        finally:
            if hasattr(self, "world"):
                self.do(self.world.close())
            self.loop.close()

    def _morning(self) -> None:
        world = self.world
        if self.stopped:
            self._run_again()
        done = self.do(world.converge())
        for _ in range(4):
            if isinstance(done, Finish) and done.cause in ("cancelled", "refused"):
                for client in list(world.clients):
                    world.kill(client)  # it ended before the run was told to go on, or before its endpoint was put right
                self._run_again()
                done = self.do(world.converge())
        world.check()
        if isinstance(done, Finish) and done.cause == "budget":
            assert world.plan.budget_usd is not None
            return
        if isinstance(done, Finish) and done.cause == "attempts":
            assert world.exhausted(), "invariant 8: no open shard has used up its attempts"
            return
        assert not isinstance(done, Pause | Stall), done
        assert done.state == "complete", done
        world.check_complete()
        self._collect()

    def _collect(self) -> None:
        """Two collectors at once lose requests and answers; a third has a quiet morning."""
        world = self.world
        for _ in range(2):
            self.do(world.collect())
        self.do(world.run_turns(60, random.Random(len(world.sealed)), fault=0.2))
        self.do(world.collect())
        self.do(world.until_quiet())
        world.check()
        assert world.sealed, "a complete run can be sealed"


class _AtOnce:
    """RunPod for the one who cancels: answers at once."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def cancel(self, job_id: str) -> None:
        self._world.platform.cancel(job_id)

    async def status(self, job_id: str) -> JobStatus:
        return self._world.platform.status_of(job_id)


def test_no_night_is_bad_enough() -> None:
    run_state_machine_as_test(Protocol, settings=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_long_night_is_bad_enough() -> None:
    run_state_machine_as_test(Protocol, settings=LONG)


# --- planted bugs: the machine must find them ------------------------------------------------------------------------------------------


async def put_and_believe(store: Any, key: str, data: bytes) -> bytes:
    """A commit that is simply written."""
    await store.put(key, data)
    return data


async def careless_worker(job: Any, store: Any, worker_id: str, execution: str, computing: Any) -> Any:
    return await reference_execution(job, store, worker_id, execution, computing, write=put_and_believe)


class CommitsOverwrite(Protocol):
    """Workers put their commits instead of putting them first."""

    execute = staticmethod(careless_worker)
    modes = ("conditional",)


class ForgetfulDriver(Driver):
    """Sends before the journal knows."""

    async def _append(self, intents: Any) -> bool:
        entry = JournalEntry(plan=self.run.plan.plan_id, number=0, client=self.client, at=self.store.now(), intents=intents)
        self._learn((entry,))
        return True


class SendsWithoutJournal(Protocol):
    driver = ForgetfulDriver


class SpendthriftDriver(Driver):
    """Looks at the budget only when it begins."""

    def state(self) -> Any:
        return replace(super().state(), rules=replace(self.rules, budget_usd=1e9))


class IgnoresTheBudget(Protocol):
    driver = SpendthriftDriver


class RestlessDriver(Driver):
    """Decides as if no worker lived and nothing were queued."""

    async def step(self) -> Any:
        self.deciding = True
        try:
            return await super().step()
        finally:
            self.deciding = False

    def state(self) -> Any:
        found = super().state()
        return replace(found, rules=replace(self.rules, pace=self.rules.pace + 2)) if getattr(self, "deciding", False) else found


class IgnoresThePace(Protocol):
    driver = RestlessDriver


async def deaf_worker(job: Any, store: Any, worker_id: str, execution: str, computing: Any) -> Any:
    """Reaches the engine before it has looked at control and commit."""
    computing(job["input"]["shard"])
    return await reference_execution(job, store, worker_id, execution, lambda shard: None)


class ComputesFirst(Protocol):
    execute = staticmethod(deaf_worker)


class ImpatientDriver(Driver):
    """Takes a conflict in the journal for a success."""

    async def _append(self, intents: Any) -> bool:
        await super()._append(intents)
        for intent in intents:
            self._attempts.setdefault((self.client, intent.attempt), _attempt(self.client, intent))
        return True


def _attempt(client: str, intent: Any) -> Any:
    return Attempt(client, intent)


class IgnoresTheOtherClient(Protocol):
    driver = ImpatientDriver


async def seal_what_is_there(store: Any, keys: Any, plan: Any) -> Sealed:
    """Does not wait until every shard is closed."""
    seal = seal_of(plan, await read_tree(store, keys, plan))
    data = encode(seal)
    digest = hashlib.sha256(data).hexdigest()
    await put_first(store, keys.seal_object(digest), data)
    return Sealed(digest, seal)


class SealsAnOpenRun(Protocol):
    freezing = staticmethod(seal_what_is_there)


async def go_by_ones_own_seal(store: Any, keys: Any, plan: Any) -> Sealed:
    """Does not look at seal.json, and makes a seal that is nobody else's."""
    found = await freeze(store, keys, plan)
    data = encode(found.seal) + b" " * sum("/seals/" in key for key in store.objects.data)
    digest = hashlib.sha256(data).hexdigest()
    await put_first(store, keys.seal_object(digest), data)
    return Sealed(digest, found.seal)


class IgnoresTheOthersSeal(Protocol):
    freezing = staticmethod(go_by_ones_own_seal)
    modes = ("conditional",)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (CommitsOverwrite, "invariant 1: .*commits/"),
        (SendsWithoutJournal, "invariant 5: .* without an intent"),
        (IgnoresTheBudget, "invariant 5: .* of a budget"),
        (ComputesFirst, "invariant 7: "),
        (IgnoresThePace, "invariant 9: "),
        (IgnoresTheOtherClient, "accepted twice|of a budget"),
        (SealsAnOpenRun, "invariant 3: a seal"),
        (IgnoresTheOthersSeal, "invariant 4: "),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_a_planted_bug_is_found(broken: type[Protocol], said: str) -> None:
    hunting = settings(QUICK, max_examples=400, stateful_step_count=25, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=said):
        run_state_machine_as_test(broken, settings=hunting)


def test_the_world_itself_is_deterministic() -> None:
    """The same seed gives the same bytes: a failure that hypothesis prints can be run again."""

    async def night(seed: int) -> bytes:
        world = World(make_plan(shards=3), seed=seed)
        await world.open()
        await world.start_client()
        await world.run_turns(200, random.Random(seed), fault=0.2)
        await world.close()
        return b"".join(key.encode() + data for key, data in sorted(world.objects.data.items()))

    assert asyncio.run(night(3)) == asyncio.run(night(3))
