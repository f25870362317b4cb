"""The queue of an endpoint under any order of events: nothing is lost, doubled or forgotten, and what is saved is what is."""

from __future__ import annotations

import json
import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from emulator.broker import Broker, BrokerSettings
from emulator.jobs import Job, Status
from emulator.limits import RUNPOD_LIMITS, RateLimiter

WORKERS = ("w1", "w2")


class Books:
    """Keeps what the broker reports, as the state file and the fleet would."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.finishes: list[Job] = []
        self.busy: dict[str, bool] = dict.fromkeys(WORKERS, False)
        self.counters = (0, 0, 0)

    def saved(self, job: Job) -> None:
        self.jobs[job.id] = job

    def deleted(self, job: Job) -> None:
        del self.jobs[job.id]

    def finished(self, job: Job) -> None:
        self.finishes.append(job)

    def counted(self, endpoint: str, completed: int, failed: int, retried: int) -> None:
        self.counters = (completed, failed, retried)

    def busy_changed(self, worker: str, busy: bool) -> None:
        assert self.busy[worker] is not busy
        self.busy[worker] = busy

    def stop_wanted(self, worker: str, *, at_once: bool) -> None:
        raise AssertionError("nobody asked for it")


class AnyOrder(RuleBasedStateMachine):
    """Clients, workers, pings, deaths, restarts and time, in any order."""

    job_ids = Bundle("job_ids")

    @initialize(overtakes=st.booleans())
    def begin(self, overtakes: bool) -> None:
        self.now = 1_000_000.0
        self.books = Books()
        self.settings = BrokerSettings(ordinary_overtakes=overtakes)
        self.broker = Broker("e", self.settings, self.books, self.books)
        self.accepted: set[str] = set()
        self.results: dict[str, int] = {}  # job -> accepted results since it was last queued by hand
        self.doing: dict[str, set[str]] = {worker: set() for worker in WORKERS}

    @rule(target=job_ids, low=st.booleans(), ttl=st.sampled_from([None, 30_000, 3_600_000]), kind=st.sampled_from(["run", "sync"]))
    def submit(self, low: bool, ttl: int | None, kind: str) -> str:
        policy = {"lowPriority": low, "executionTimeout": 100_000} | ({} if ttl is None else {"ttl": ttl})
        job = self.broker.submit(json.dumps({"input": 1, "policy": policy}).encode(), kind, self.now)  # type: ignore[arg-type]
        assert job.id not in self.accepted
        self.accepted.add(job.id)
        return job.id

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 3))
    def take(self, worker: str, count: int) -> None:
        queued = [job for job in self.books.jobs.values() if job.status is Status.IN_QUEUE and self.now < job.delete_at]
        taken = self.broker.take(worker, count, self.now)
        assert len(taken) == min(count, len(queued))
        if self.settings.ordinary_overtakes and any(job.low_priority for job in taken):
            assert sum(not job.low_priority for job in taken) == sum(not job.low_priority for job in queued)
        for job in taken:
            assert job.id in {job.id for job in queued}
            self.doing[worker].add(job.id)

    @rule(job_id=job_ids, worker=st.sampled_from(WORKERS), failed=st.booleans())
    def post(self, job_id: str, worker: str, failed: bool) -> None:
        before = self.broker.get(job_id, self.now)
        body = {"error": "no"} if failed else {"output": {"n": 1}}
        code = self.broker.done(worker, job_id, json.dumps(body).encode(), self.now)
        self.doing[worker].discard(job_id)
        if before is None:
            assert code == 404
        else:
            assert code == 200
            after = self.broker.get(job_id, self.now)
            if before.status.terminal:
                assert after == before
            elif after is not None:
                assert after.status is (Status.FAILED if failed else Status.COMPLETED)

    @rule(worker=st.sampled_from(WORKERS), forgets=st.booleans())
    def ping(self, worker: str, forgets: bool) -> None:
        named = set() if forgets else self.doing[worker]
        self.broker.ping(worker, named, self.now)

    @rule(job_id=job_ids)
    def cancel(self, job_id: str) -> None:
        job = self.broker.get(job_id, self.now)
        if job is not None:
            after = self.broker.cancel(job, self.now)
            assert after.status.terminal

    @rule(job_id=job_ids)
    def retry(self, job_id: str) -> None:
        job = self.broker.get(job_id, self.now)
        if job is not None and job.status in (Status.FAILED, Status.TIMED_OUT):
            assert self.broker.retry(job, self.now).status is Status.IN_QUEUE

    @rule(job_id=job_ids)
    def reset_ttl(self, job_id: str) -> None:
        job = self.broker.get(job_id, self.now)
        if job is not None:
            self.broker.reset_ttl(job, 20_000, self.now)

    @rule()
    def purge(self) -> None:
        self.broker.tick(self.now)
        waiting = self.broker.count(Status.IN_QUEUE)
        assert self.broker.purge(self.now) == waiting
        assert self.broker.count(Status.IN_QUEUE) == 0

    @rule(worker=st.sampled_from(WORKERS))
    def worker_dies(self, worker: str) -> None:
        self.broker.worker_gone(worker)
        self.doing[worker].clear()
        self.books.busy[worker] = False

    @rule(seconds=st.sampled_from([0.5, 15.0, 45.0, 120.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.broker.tick(self.now)
        for job in self.broker.jobs():
            assert self.now < job.delete_at
            assert job.execution_deadline is None or self.now < job.execution_deadline

    @rule()
    def restart(self) -> None:
        saved = list(self.books.jobs.values())
        counters = (self.broker.completed, self.broker.failed, self.broker.retried)
        self.broker = Broker("e", self.settings, self.books, self.books)
        self.broker.completed, self.broker.failed, self.broker.retried = counters
        self.broker.restore(saved, self.now)
        for worker in WORKERS:
            self.doing[worker].clear()
            self.books.busy[worker] = False

    @invariant()
    def what_is_saved_is_what_is(self) -> None:
        assert {job.id: job for job in self.broker.jobs()} == self.books.jobs
        assert set(self.books.jobs) <= self.accepted

    @invariant()
    def counts_are_right(self) -> None:
        for status in Status:
            assert self.broker.count(status) == sum(job.status is status for job in self.books.jobs.values())
        view = self.broker.queue_view(self.now)
        assert view.ordinary_queued + view.low_queued == self.broker.count(Status.IN_QUEUE)
        assert view.ordinary_in_progress + view.low_in_progress == self.broker.count(Status.IN_PROGRESS)
        assert self.books.counters in ((0, 0, 0), (self.broker.completed, self.broker.failed, self.broker.retried))

    @invariant()
    def a_running_job_has_one_worker_and_a_queued_one_none(self) -> None:
        for job in self.books.jobs.values():
            assert (job.worker is None) <= (job.status is not Status.IN_PROGRESS)
            assert job.retries <= 1
            assert (job.finished_at is not None) == job.status.terminal

    @invariant()
    def a_worker_is_busy_if_and_only_if_it_holds_jobs(self) -> None:
        for worker in WORKERS:
            assert self.books.busy[worker] == bool(self.broker.held(worker))

    def teardown(self) -> None:
        """Whatever happened: in the end nothing is left, and no job has finished that was not accepted."""
        if hasattr(self, "broker"):
            self.broker.tick(self.now + 10 * 86_400)
            assert self.books.jobs == {}
            assert {job.id for job in self.books.finishes} <= self.accepted


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestAnyOrder = AnyOrder.TestCase


def test_hot_paths_do_not_look_at_every_job() -> None:
    """20,000 queued jobs, as after a night's submission: bounds are 20 times what was measured on a slow machine."""
    broker = Broker("e", BrokerSettings(), Books(), Books())
    body = json.dumps({"input": "x" * 600, "policy": {"lowPriority": True}}).encode()
    for number in range(20_000):
        broker.submit(body, "run", float(number) / 100)
    limiter = RateLimiter(RUNPOD_LIMITS)
    begun = time.process_time()
    for step in range(200):
        now = 200 + step * 0.01
        broker.tick(now)
        broker.queue_view(now)
        (job,) = broker.take("w1", 1, now)
        broker.done("w1", job.id, b'{"output":1}', now)
        broker.submit(body, "run", now)
        limiter.admit("run", now)
        limiter.release("run")
    assert (time.process_time() - begun) / 200 < 0.01
