"""status of all stacks: workers by state, dollars an hour, queue; and that what is not told is said to be unknown."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contract.protocol import Health
from infra.review.fleet import StackNow, fleet_exit_code, fleet_lines, fleet_record, observe_fleet
from tests.infra.review.cloud import NOW, Cloud, balanced, declared, live, live_balanced, worker


def busy() -> Cloud:
    return Cloud.of(
        live(workers={"max": 2}),
        workers={"ep-minilm": [worker(1, "RUNNING"), worker(2), worker(3, "INITIALIZING"), worker(4, "THROTTLED")]},
        healths={"ep-minilm": Health(in_queue=7, in_progress=2, idle=40)},
    )


async def test_only_workers_that_are_up_are_billed() -> None:
    now = await observe_fleet("prod", (declared(),), rest=busy(), plane=busy(), now=NOW, oldest=NOW - timedelta(minutes=12))
    assert now.usd_per_hour == pytest.approx(2 * 0.0002 * 3600)
    (endpoint,) = now.endpoints
    assert endpoint.workers == {"running": 1, "idle": 1, "initializing": 1, "throttled": 1}
    assert (endpoint.queued, endpoint.in_progress) == (7, 2)
    lines = fleet_lines([now])
    assert lines[0] == "prod: $1.44/hour now; oldest job of this machine's runs: 12 min"
    assert "max 2 (declared 5); 7 queued, 2 running" in lines[1]
    assert fleet_exit_code([now]) == 0


@pytest.mark.parametrize(
    ("part", "told"), [("list_workers", "workers unknown"), ("list_endpoints", "max unknown"), ("health", "unknown queued")]
)
async def test_what_cannot_be_read_is_unknown_and_not_zero(part: str, told: str) -> None:
    cloud = busy()
    cloud.down.add(part)
    now = await observe_fleet("prod", (declared(),), rest=cloud, plane=cloud, now=NOW, deadline_s=1.0)
    lines = fleet_lines([now])
    assert told in lines[1]
    assert "unread" in lines[2]
    assert (now.usd_per_hour is None) == (part == "list_workers")
    assert fleet_exit_code([now]) == 3


async def test_a_stack_that_was_never_made_is_unknown_and_no_failure() -> None:
    known = await observe_fleet("prod", (declared(),), rest=busy(), plane=busy(), now=NOW)
    never = StackNow("dev", unknown="nothing is known of stack 'dev'")
    assert fleet_exit_code([known, never]) == 0
    assert fleet_record([known, never])["usd_per_hour"] == pytest.approx(1.44)
    assert fleet_lines([never]) == ["dev: unknown: nothing is known of stack 'dev'"]
    failed = StackNow("staging", error="no login")
    assert fleet_exit_code([known, failed]) == 3
    assert fleet_record([known, failed])["usd_per_hour"] is None


async def test_an_endpoint_that_is_gone_costs_nothing_and_fails_nothing() -> None:
    cloud = busy()
    now = await observe_fleet("prod", (declared(), declared("old")), rest=cloud, plane=cloud, now=NOW)
    assert now.unread == ()
    assert now.usd_per_hour == pytest.approx(1.44)
    assert "RunPod knows no endpoint ep-old" in fleet_lines([now])[2]


async def test_a_fleet_at_rest_costs_nothing() -> None:
    cloud = Cloud.of()
    now = await observe_fleet("prod", (declared(),), rest=cloud, plane=cloud, now=NOW)
    assert now.usd_per_hour == 0
    assert "workers none, max 5" in fleet_lines([now])[1]


async def test_load_balancing_endpoints_cost_too_and_have_no_queue() -> None:
    cloud = busy()
    cloud.endpoints["ep-web"] = live_balanced(workers={"max": 2})
    cloud.workers["ep-web"] = [worker(5, "RUNNING")]
    now = await observe_fleet("prod", (declared(),), rest=cloud, plane=cloud, now=NOW, balanced=(balanced(usd_per_second=0.001),))
    assert now.usd_per_hour == pytest.approx((2 * 0.0002 + 0.001) * 3600)
    assert "web     workers 1 running, max 2 (declared 3); load-balancing; $3.60/hour" in fleet_lines([now])[2]
    assert [one["type"] for one in fleet_record([now])["stacks"][0]["endpoints"]] == ["QUEUE", "LOAD_BALANCER"]
    assert (now.unread, fleet_exit_code([now])) == ((), 0)
