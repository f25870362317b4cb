"""The emulator's pure rules: jobs, rate limits, scaling, billing, clocks."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from contract.errors import UsageError
from emulator import jobs
from emulator.billing import Bill, Meter, Phase
from emulator.clock import FastClock, ManualClock, RealClock
from emulator.config import EmulatorConfig, EndpointConfig, read_config
from emulator.jobs import Job, Status
from emulator.limits import RUNPOD_LIMITS, RateLimiter
from emulator.scaling import Bounds, Decision, QueueView, WorkerView, decide

NOW = 1_000_000.0
FORWARDED = ("input", "s3Config", "webhook")


def job(body: dict[str, object] | None = None, kind: jobs.Kind = "run", **policy: object) -> Job:
    text = json.dumps({"input": {"a": 1}, **(body or {}), **({"policy": policy} if policy else {})}).encode()
    return jobs.submit(
        jobs.parse_request(text), text, job_id=jobs.new_id(kind), endpoint="e", kind=kind, seq=1, execution_timeout_ms=600_000, now=NOW
    )


def test_ids_are_as_runpods() -> None:
    assert jobs.new_id("run").endswith("-u1")
    assert len(jobs.new_id("run")) == 39
    assert jobs.new_id("sync").startswith("sync-")


def test_a_fresh_job_has_neither_delay_nor_execution_time() -> None:
    fresh = job()
    assert jobs.status_view(fresh) == {"id": fresh.id, "status": "IN_QUEUE"}


def test_delay_counts_to_the_pickup_and_execution_to_the_end() -> None:
    done = jobs.finish(jobs.take(job(), "w", NOW + 2.5), output=b'{"x":1}', error=None, now=NOW + 4)
    view = jobs.status_view(done)
    assert (view["status"], view["delayTime"], view["executionTime"], view["workerId"]) == ("COMPLETED", 2500, 1500, "w")
    assert msgspec.json.decode(msgspec.json.encode(view["output"])) == {"x": 1}


def test_a_result_is_kept_30_minutes_after_run_and_one_after_runsync() -> None:
    assert jobs.finish(jobs.take(job(), "w", NOW), output=None, error=None, now=NOW + 5).delete_at == NOW + 5 + 1800
    assert jobs.finish(jobs.take(job(kind="sync"), "w", NOW), output=None, error=None, now=NOW + 5).delete_at == NOW + 5 + 60


def test_the_ttl_ends_a_job_before_its_retention_does() -> None:
    assert jobs.finish(jobs.take(job(ttl=60_000), "w", NOW), output=None, error=None, now=NOW + 5).delete_at == NOW + 60


def test_a_ttl_is_a_day_unless_said_and_can_be_reset() -> None:
    assert job().expires_at == NOW + 86_400
    assert jobs.reset_ttl(job(), 6000, NOW + 10).expires_at == NOW + 16


def test_the_requests_execution_timeout_goes_before_the_endpoints() -> None:
    assert jobs.take(job(), "w", NOW).execution_deadline == NOW + 600
    assert jobs.take(job(executionTimeout=5000), "w", NOW + 1).execution_deadline == NOW + 6


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "JSON"),
        (b"[]", "object"),
        (b"{}", "input"),
        (b'{"input": 1, "policy": {"ttl": 9999}}', "policy.ttl"),
        (b'{"input": 1, "policy": {"ttl": 604800001}}', "policy.ttl"),
        (b'{"input": 1, "policy": {"executionTimeout": 4999}}', "policy.executionTimeout"),
        (b'{"input": 1, "policy": {"lowPriority": "yes"}}', "lowPriority"),
        (b'{"input": 1, "webhook": 5}', "webhook"),
        (b'{"input": "\xff"}', "utf-8"),
    ],
)
def test_a_bad_request_is_refused_by_naming_the_field(body: bytes, named: str) -> None:
    with pytest.raises(UsageError, match="(?i)" + named):
        jobs.parse_request(body)


def test_a_lost_job_is_delivered_once_more_and_then_fails() -> None:
    again = jobs.lose(jobs.take(job(), "w1", NOW), NOW + 40)
    assert (again.status, again.retries, again.worker) == (Status.IN_QUEUE, 1, None)
    failed = jobs.lose(jobs.take(again, "w2", NOW + 50), NOW + 90)
    view = jobs.status_view(failed)
    assert (view["status"], view["error"], view["retries"]) == ("FAILED", "job timed out after 1 retries", 1)
    assert view["delayTime"] == 50_000  # recomputed for the second pickup


def test_only_what_failed_can_be_retried_and_loses_its_old_result() -> None:
    failed = jobs.finish(jobs.take(job(), "w", NOW), output=b"1", error="no", now=NOW + 1)
    assert jobs.status_view(jobs.retry(failed, NOW + 2)) == {"id": failed.id, "status": "IN_QUEUE"}
    with pytest.raises(UsageError, match="COMPLETED"):
        jobs.retry(jobs.finish(jobs.take(job(), "w", NOW), output=b"1", error=None, now=NOW + 1), NOW + 2)


@pytest.mark.parametrize("empty", ["{}", " { } "])
def test_an_empty_input_is_delivered_without_input(empty: str) -> None:
    text = f'{{"input":{empty},"s3Config":{{"a":"b"}}}}'.encode()
    body = jobs.parse_request(text)
    made = jobs.submit(body, text, job_id="i", endpoint="e", kind="run", seq=1, execution_timeout_ms=0, now=NOW)
    assert set(jobs.delivery(made, FORWARDED)) == {"id", "s3Config"}


def test_the_webhook_body_is_the_whole_job() -> None:
    done = jobs.finish(jobs.take(job({"webhook": "http://h/t"}), "w", NOW + 1), output=b'{"x":1}', error=None, now=NOW + 2)
    assert json.loads(jobs.webhook_body(done)) == {
        "id": done.id,
        "status": "COMPLETED",
        "delayTime": 1000,
        "executionTime": 1000,
        "workerId": "w",
        "input": {"a": 1},
        "output": {"x": 1},
        "webhook": "http://h/t",
    }


# --- rate limits ------------------------------------------------------------------------------------------------------


def test_in_any_ten_seconds_no_more_than_the_limit_passes() -> None:
    limiter = RateLimiter(RUNPOD_LIMITS)
    passed = []
    for step in range(2500):  # 100 tries a second for 25 s against 10 in 10 s
        now = step / 100
        if limiter.admit("requests", now):
            passed.append(now)
            limiter.release("requests")
    assert len(passed) == 30
    assert all(later - earlier >= 10 for earlier, later in zip(passed, passed[10:], strict=False))


def test_concurrent_requests_are_limited_until_one_is_answered() -> None:
    limiter = RateLimiter(RUNPOD_LIMITS)
    assert [limiter.admit("cancel", 0.0) for _ in range(21)] == [True] * 20 + [False]
    limiter.release("cancel")
    assert limiter.admit("cancel", 0.0)


def test_operations_without_a_documented_limit_pass() -> None:
    limiter = RateLimiter(RUNPOD_LIMITS)
    assert all(limiter.admit("health", 0.0) for _ in range(10_000))


def test_running_workers_raise_the_limit_if_a_factor_is_set() -> None:
    limiter = RateLimiter(RUNPOD_LIMITS, requests_per_worker=3)
    assert [limiter.admit("purge-queue", 0.0, running_workers=1) for _ in range(4)] == [True] * 3 + [False]


# --- scaling ----------------------------------------------------------------------------------------------------------

LAZY = Bounds(workers_min=0, workers_max=3, idle_timeout_s=5, scaler="QUEUE_DELAY", value=4)
EAGER = Bounds(workers_min=0, workers_max=3, idle_timeout_s=5, scaler="REQUEST_COUNT", value=2)


def queue(ordinary: int = 0, running: int = 0, low: int = 0, low_running: int = 0, waited: float | None = None) -> QueueView:
    return QueueView(ordinary, running, low, low_running, waited)


def idle(name: str, seconds: float) -> WorkerView:
    return WorkerView(name, starting=False, idle_s=seconds)


def busy(name: str) -> WorkerView:
    return WorkerView(name, starting=False, idle_s=None)


def starting(name: str) -> WorkerView:
    return WorkerView(name, starting=True, idle_s=None)


def test_queue_delay_adds_one_worker_when_a_request_has_waited_longer_than_the_value() -> None:
    assert decide(LAZY, queue(ordinary=9, waited=4.0), ()) == Decision()
    assert decide(LAZY, queue(ordinary=9, waited=4.1), ()) == Decision(start=1, answered=True)


def test_queue_delay_adds_none_while_another_is_starting_or_at_the_maximum() -> None:
    assert decide(LAZY, queue(ordinary=9, waited=99), (starting("a"),)) == Decision()
    assert decide(LAZY, queue(ordinary=9, waited=99), (busy("a"),)).start == 1
    assert decide(LAZY, queue(ordinary=9, waited=99), (busy("a"), busy("b"), busy("c"))) == Decision()


def test_request_count_divides_requests_by_the_value() -> None:
    assert decide(EAGER, queue(ordinary=1), ()).start == 1
    assert decide(EAGER, queue(ordinary=3, running=2), (busy("a"),)).start == 2
    assert decide(EAGER, queue(ordinary=100), (busy("a"),)).start == 2


@pytest.mark.parametrize("bounds", [LAZY, EAGER])
def test_low_priority_jobs_never_add_a_worker(bounds: Bounds) -> None:
    assert decide(bounds, queue(low=500), ()) == Decision()
    assert decide(bounds, queue(low=500, low_running=2), (busy("a"),)) == Decision()


def test_request_count_counts_low_priority_jobs_if_the_switch_says_so() -> None:
    counting = Bounds(workers_min=0, workers_max=3, idle_timeout_s=5, scaler="REQUEST_COUNT", value=2, count_low_priority=True)
    assert decide(counting, queue(low=4), ()).start == 2


def test_the_minimum_is_kept_without_any_job() -> None:
    bounds = Bounds(workers_min=2, workers_max=3, idle_timeout_s=5, scaler="QUEUE_DELAY", value=4)
    assert decide(bounds, queue(), ()).start == 2
    assert decide(bounds, queue(), (idle("a", 99), idle("b", 99), idle("c", 50))).stop == ("a",)


def test_the_idle_timeout_stops_who_has_had_no_work_for_so_long() -> None:
    assert decide(LAZY, queue(), (idle("a", 4.9), idle("b", 5.0), busy("c"))).stop == ("b",)


def test_a_lower_maximum_stops_idle_workers_and_lets_busy_ones_finish() -> None:
    bounds = Bounds(workers_min=0, workers_max=0, idle_timeout_s=5, scaler="QUEUE_DELAY", value=4)
    # The fleet lets a busy one finish what it has; it takes nothing more, however long the queue is.
    assert decide(bounds, queue(ordinary=5, waited=99), (busy("a"), idle("b", 0.1))) == Decision(stop=("b", "a"))


def test_outdated_workers_are_not_capacity() -> None:
    bounds = Bounds(workers_min=1, workers_max=1, idle_timeout_s=5, scaler="QUEUE_DELAY", value=4)
    assert decide(bounds, queue(), (WorkerView("old", starting=False, idle_s=None, outdated=True),)).start == 1


# --- billing ----------------------------------------------------------------------------------------------------------


def test_seconds_are_billed_from_start_to_stop_rounded_up_and_initialising_is_free() -> None:
    meter = Meter(since=0.0).switch(Phase.STARTUP, 30.0)  # 30 s of image pull
    meter = meter.switch(Phase.IDLE, 40.0).switch(Phase.EXECUTION, 41.0).switch(Phase.IDLE, 43.5).switch(Phase.UNBILLED, 48.6)
    meter = meter.at(1000.0)
    assert (meter.startup_s, meter.execution_s) == (10.0, 2.5)
    assert meter.idle_s == pytest.approx(6.1)
    assert meter.billed_s == 19
    bill = Bill().plus(meter, usd_per_s=0.00019, gpus=2).plus(Meter(), 1.0, 1)
    assert (bill.workers, bill.billed_s) == (1, 19)
    assert bill.usd == pytest.approx(19 * 0.00019 * 2)


def test_whole_seconds_are_not_rounded_up_by_floating_point() -> None:
    assert Meter(startup_s=0.1, execution_s=0.2, idle_s=0.7).billed_s == 1


# --- clocks -----------------------------------------------------------------------------------------------------------


async def test_a_manual_clock_wakes_sleepers_in_order_and_each_at_its_time() -> None:
    clock = ManualClock(start=0.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.time()))
        await clock.sleep(1)
        woken.append((name, clock.time()))

    tasks = [asyncio.create_task(sleeper("b", 5)), asyncio.create_task(sleeper("a", 2))]
    await clock.advance(5.5)
    assert woken == [("a", 2.0), ("a", 3.0), ("b", 5.0)]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert clock.time() == 6.5


async def test_a_fast_clock_passes_seconds_in_milliseconds() -> None:
    clock, real = FastClock(1000), RealClock()
    begun, really = clock.time(), real.time()
    await clock.sleep(20)
    assert clock.time() - begun >= 20
    assert real.time() - really < 5


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"state_dir": "d", "endpoints": [{"name": "a", "worker_max": 1}]}', "worker_max"),
        ('{"state_dir": "d", "endpoints": [{"name": "a", "workers_min": 2, "workers_max": 1}]}', "workers_min"),
        ('{"state_dir": "d", "endpoints": [{"name": "a/b"}]}', "a/b"),
        ('{"state_dir": "d", "endpoints": [{"name": "a"}, {"name": "b", "id": "a"}]}', "same name"),
        ('{"state_dir": "d", "endpoints": [], "bucket": "Big"}', "Big"),
        ('{"state_dir": "d", "endpoints": [], "ping_interval_ms": 500}', "ping_interval_ms"),
        ("{", "JSON"),
    ],
)
def test_a_bad_configuration_is_refused_by_naming_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read_config(text.encode(), "emulator.json")


def test_a_configuration_survives_json() -> None:
    config = EmulatorConfig(state_dir="d", endpoints=(EndpointConfig(name="a", command=("x",), env={"A": "1"}, tasks=("embed",)),))
    assert read_config(msgspec.json.encode(config), "emulator.json") == config
