"""doctor: what is found, with evidence, cause and mend; what is not found on a healthy stack; and that a part that fails hides no other."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from contract.errors import AccessDenied, StoreUnavailable
from contract.facts import Stack
from contract.memory import MemoryStore
from contract.protocol import Health
from contract.store import Store
from infra.review.doctor import Finding, Report, examine, mend, report_lines, report_record, timed_out_kind
from infra.review.live import Asked, JobRef, live_workers_max, observe, probe_store, rest_base
from infra.review.observed import EndpointSeen, JobSeen, Observed, Stopped, WebhookSeen
from tests.infra.review.cloud import IMAGE, NOW, Cloud, balanced, declared, live, live_balanced, stack, worker


async def report_on(cloud: Cloud, *, found: Any = None, stores: Any = None, **asked: Any) -> Report:
    """What doctor says of this cloud."""
    given = found or stack()
    stores = {"client": MemoryStore(bucket="batches"), "worker": MemoryStore(bucket="batches")} if stores is None else stores
    seen = await observe(given, rest=cloud, plane=cloud, stores=stores, asked=Asked(deadline_s=1.0, **asked), at=NOW)
    return examine(seen)


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def only(report: Report, code: str) -> Finding:
    """The one finding, which must be the only one."""
    assert codes(report) == [code], report_lines(report)
    return report.findings[0]


async def test_a_healthy_stack_has_no_findings_and_says_what_was_looked_at() -> None:
    cloud = Cloud.of(workers={"ep-minilm": [worker(1, "RUNNING"), worker(2)]}, healths={"ep-minilm": Health(in_queue=3, running=1, idle=1)})
    report = await report_on(cloud)
    assert codes(report) == []
    assert report.observed.unread == ()
    assert report.exit_code == 0
    text = "\n".join(report_lines(report))
    assert "nothing found" in text
    assert "workers.max 5; workers 1 idle, 1 running; 3 jobs queued" in text
    assert "conditional writes hold" in text
    assert "hf_secret_value" not in text + json.dumps(report_record(report)) + repr(report)


# --- workers.max ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "days", "severity"), [(2, 3, "warning"), (0, 7, "error")])
async def test_the_idle_rules_cut_is_recognised_and_mended(now: int, days: int, severity: str) -> None:
    cloud = Cloud.of(live(workers={"max": now, "min": 0, "idleTimeout": 5}))
    report = await report_on(cloud)
    finding = only(report, "workers_max_cut")
    assert finding.severity == severity
    assert f"workers.max is {now}, and 5 is declared" in finding.evidence
    assert f"no request for {days} days" in finding.cause
    assert "--fix" in finding.mend
    assert report.exit_code == 1
    (mended,) = await mend(cloud, report)
    assert mended.done
    assert f"raised from {now} to 5" in mended.text
    # all of `workers`, so that nothing is lost whether RunPod merges or replaces
    assert cloud.patches == [("ep-minilm", {"workers": {"min": 0, "max": 5, "idleTimeout": 5}})]
    fixed = Report(report.observed, report.findings, report.facts, (mended,))
    assert fixed.exit_code == 0
    assert any(line.startswith("fixed") for line in report_lines(fixed))
    assert codes(await report_on(cloud)) == []


async def test_a_cut_to_another_number_was_made_by_hand() -> None:
    finding = only(await report_on(Cloud.of(live(workers={"max": 3}))), "workers_max_cut")
    assert "by hand" in finding.cause


async def test_the_kill_switch_is_not_undone_by_fix() -> None:
    cloud = Cloud.of(live(workers={"max": 0}))
    report = await report_on(cloud, stopped=(Stopped("ep-minilm", NOW, 0, 5),))
    finding = only(report, "stopped")
    assert "nightbatch start prod" in finding.mend
    assert await mend(cloud, report) == ()
    assert cloud.patches == []


async def test_a_cut_with_unhealthy_workers_is_not_raised_by_fix() -> None:
    cloud = Cloud.of(live(workers={"max": 2}), workers={"ep-minilm": [worker(1, "UNHEALTHY")]})
    report = await report_on(cloud)
    assert sorted(codes(report)) == ["unhealthy", "workers_max_cut"]
    assert await mend(cloud, report) == ()


async def test_a_fix_that_runpod_does_not_take_is_said_and_stays_a_finding() -> None:
    cloud = Cloud.of(live(workers={"max": 0}), quota=3)
    report = await report_on(cloud)
    (mended,) = await mend(cloud, report)
    assert not mended.done
    assert "RunPod says 3" in mended.text
    cloud.down.add("update_endpoint")
    (failed,) = await mend(cloud, report)
    assert not failed.done
    assert Report(report.observed, report.findings, (), (failed,)).exit_code == 1


async def test_a_raised_workers_max_and_active_workers_nobody_declared_cost_money() -> None:
    report = await report_on(Cloud.of(live(workers={"max": 9, "min": 2})))
    assert codes(report) == ["workers_max_raised", "workers_min_raised"]
    assert "$34.56 a day" in report.findings[1].evidence  # 2 x 0.0002 x 86,400


# --- workers -------------------------------------------------------------------------------------------------------------------------


async def test_unhealthy_workers_are_shown_with_their_last_lines() -> None:
    cloud = Cloud.of(
        workers={"ep-minilm": [worker(1, "UNHEALTHY"), worker(2, "RUNNING")]},
        logs={"w1": [f"line {n}" for n in range(20)] + ["OSError: model not found"]},
    )
    finding = only(await report_on(cloud), "unhealthy")
    assert "w1: OSError: model not found" in finding.evidence
    assert "line 3\n" not in finding.evidence


async def test_throttled_workers_are_told_with_the_stock() -> None:
    cloud = Cloud.of(workers={"ep-minilm": [worker(1, "THROTTLED")]}, stock={"AMPERE_24": "NONE", "ADA_24": "LOW"})
    finding = only(await report_on(cloud), "throttled")
    assert finding.severity == "error"
    assert "AMPERE_24 none, ADA_24 low" in finding.evidence


async def test_the_gauge_counts_where_the_list_does_not() -> None:
    cloud = Cloud.of(healths={"ep-minilm": Health(throttled=2, running=1)})
    assert only(await report_on(cloud), "throttled").severity == "warning"


async def test_no_stock_in_any_pool_is_a_finding_before_anything_is_throttled() -> None:
    finding = only(await report_on(Cloud.of(stock={"AMPERE_24": "NONE", "ADA_24": "NONE"})), "no_stock")
    assert "AMPERE_24, ADA_24" in finding.evidence


@pytest.mark.parametrize(
    ("status", "rolling", "severity"), [("RUNNING", False, "advice"), ("IDLE", True, "advice"), ("IDLE", False, "warning")]
)
async def test_outdated_workers(status: str, rolling: bool, severity: str) -> None:
    cloud = Cloud.of(workers={"ep-minilm": [worker(1, status, isStale=True, version=2), worker(2)]}, rolling=rolling)
    finding = only(await report_on(cloud), "outdated")
    assert finding.severity == severity
    assert "version 2, the endpoint is at 3" in finding.evidence


async def test_all_jobs_on_one_worker_of_an_endpoint_with_a_volume() -> None:
    cloud = Cloud.of(
        live(networkVolumes=["vol1"]),
        workers={"ep-minilm": [worker(1, "RUNNING"), worker(2), worker(3)]},
        healths={"ep-minilm": Health(in_queue=12, running=1, idle=2)},
    )
    finding = only(await report_on(cloud), "one_worker")
    assert "1 of 3 workers busy, 12 jobs queued" in finding.evidence
    assert "1.10.1" in finding.mend
    cloud.endpoints["ep-minilm"]["networkVolumes"] = []
    assert codes(await report_on(cloud)) == []


async def test_jobs_that_all_went_to_one_worker_are_evidence_too() -> None:
    cloud = Cloud.of(live(networkVolumes=["vol1"]), workers={"ep-minilm": [worker(1, "RUNNING"), worker(2, "RUNNING")]})
    cloud.jobs = {f"j{n}": {"status": "COMPLETED", "delayTime": 10, "executionTime": 1000, "workerId": "w1"} for n in range(8)}
    finding = only(await report_on(cloud, jobs={"ep-minilm": [JobRef(f"j{n}") for n in range(8)]}), "one_worker")
    assert "the last 8 jobs all went to worker w1" in finding.evidence


@pytest.mark.parametrize(
    ("up", "env", "severity"), [(350, {}, "warning"), (500, {}, "error"), (500, {"RUNPOD_INIT_TIMEOUT": "1200"}, None)]
)
async def test_workers_that_start_for_too_long(up: int, env: dict[str, str], severity: str | None) -> None:
    cloud = Cloud.of(live(env=env), workers={"ep-minilm": [worker(1, "INITIALIZING", uptimeSeconds=up)]}, logs={"w1": ["pulling 12 GB"]})
    report = await report_on(cloud)
    if severity is None:
        assert codes(report) == []
        return
    finding = only(report, "init_slow")
    assert finding.severity == severity
    assert "pulling 12 GB" in finding.evidence
    assert "RUNPOD_INIT_TIMEOUT" in finding.mend


async def test_a_cold_start_that_is_declared_longer_than_runpod_waits() -> None:
    given = stack(declared(cold_start_s=900.0))
    assert only(await report_on(Cloud.of(), found=given), "init_limit")
    assert codes(await report_on(Cloud.of(live(env={"RUNPOD_INIT_TIMEOUT": "1000"})), found=given)) == []


@pytest.mark.parametrize(
    ("waited_s", "status", "found"), [(900, "INITIALIZING", True), (60, "INITIALIZING", False), (900, "RUNNING", False)]
)
async def test_own_jobs_that_wait_for_workers_that_never_become_ready(waited_s: int, status: str, found: bool) -> None:
    cloud = Cloud.of(workers={"ep-minilm": [worker(1, status)]}, logs={"w1": ["ModuleNotFoundError: No module named 'x'"]})
    cloud.jobs = {"j": {"status": "IN_QUEUE"}}
    report = await report_on(cloud, jobs={"ep-minilm": [JobRef("j", NOW - timedelta(seconds=waited_s), 7200.0, "sent")]})
    assert codes(report) == (["not_ready"] if found else [])
    if found:
        assert "waited 15 min" in report.findings[0].evidence
        assert "ModuleNotFoundError" in report.findings[0].evidence


async def test_a_queue_that_no_worker_comes_for() -> None:
    assert only(await report_on(Cloud.of(healths={"ep-minilm": Health(in_queue=4)})), "queue_stuck")


# --- settings ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "severity"),
    [("org/worker", "error"), ("org/worker:latest", "error"), ("localhost:5000/worker", "error"), ("org/worker:v1", "warning")],
)
async def test_an_image_without_a_digest(image: str, severity: str) -> None:
    given = stack(declared(image=image))
    finding = only(await report_on(Cloud.of(live(image=image)), found=given), "image_unpinned")
    assert finding.severity == severity
    assert "nightbatch image pin" in finding.mend


async def test_settings_that_differ_from_the_declared_ones_are_one_finding() -> None:
    other = IMAGE.replace("a" * 64, "b" * 64)
    changed = live(image=other, scaling={"type": "REQUEST_COUNT", "requestCount": 2}, workers={"idleTimeout": 60})
    finding = only(await report_on(Cloud.of(changed)), "drift")
    for word in ("REQUEST_COUNT", "idleTimeout is 60 s", "b" * 64):
        assert word in finding.evidence


@pytest.mark.parametrize(("milliseconds", "code"), [(0, "timeout_none"), (300_000, "timeout_short")])
async def test_execution_timeouts(milliseconds: int, code: str) -> None:
    assert only(await report_on(Cloud.of(live(timeout=milliseconds))), code)


async def test_an_endpoint_that_is_gone() -> None:
    cloud = Cloud.of(live("other"))
    report = await report_on(cloud)
    assert codes(report) == ["endpoint_missing"]
    assert report.observed.unread == ()
    assert report.exit_code == 1


async def test_the_quota_counts_every_endpoint_of_the_account_where_it_is_told() -> None:
    cloud = Cloud.of(live(), live("other", workers={"max": 8}))
    finding = only(await report_on(cloud, quota=10), "quota")
    assert "is 13, and the account's quota is 10" in finding.evidence
    assert codes(await report_on(cloud, quota=13)) == []
    untold = await report_on(cloud)
    assert codes(untold) == []
    assert any("no API tells its quota" in fact for fact in untold.facts)


# --- time ----------------------------------------------------------------------------------------------------------------------------


def some_jobs(cloud: Cloud, count: int, **answer: Any) -> dict[str, list[JobRef]]:
    refs = [JobRef(f"job-{n}", NOW - timedelta(minutes=5), 3600.0, "sent") for n in range(count)]
    cloud.jobs |= {ref.id: {"status": "COMPLETED", "workerId": "w1", **answer} for ref in refs}
    return {"ep-minilm": refs}


async def test_queue_delay_as_the_cause_of_slowness() -> None:
    cloud = Cloud.of()
    jobs = some_jobs(cloud, 4, delayTime=400_000, executionTime=30_000)
    finding = only(await report_on(cloud, jobs=jobs), "slow_queue")
    assert "waited 7 min and computed 30 s" in finding.evidence


async def test_execution_time_as_the_cause_of_slowness() -> None:
    cloud = Cloud.of()
    jobs = some_jobs(cloud, 4, delayTime=4_000, executionTime=550_000)
    finding = only(await report_on(cloud, jobs=jobs), "slow_execution")
    assert "computed 9 min of the allowed 10 min" in finding.evidence


async def test_quick_jobs_are_a_fact_and_no_finding() -> None:
    cloud = Cloud.of()
    report = await report_on(cloud, jobs=some_jobs(cloud, 4, delayTime=4_000, executionTime=50_000))
    assert codes(report) == []
    assert any("jobs wait 4 s and compute 50 s" in fact for fact in report.facts)


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (JobSeen("a", "TIMED_OUT", delay_s=5, execution_s=600.2, worker_id="w1"), "execution"),
        (JobSeen("a", "TIMED_OUT", delay_s=3600), "unclaimed"),
        (JobSeen("a", "TIMED_OUT", execution_s=42.0, worker_id="w1"), "lost"),
        (JobSeen("a", "FAILED", execution_s=42.0, worker_id="w1", error="job timed out after 1 retries", retries=1), "lost"),
        (JobSeen("a", "FAILED", execution_s=42.0, worker_id="w1", error="ValueError"), None),
        (JobSeen("a", "COMPLETED", execution_s=600.0, worker_id="w1"), None),
    ],
)
def test_which_kind_of_timed_out(job: JobSeen, kind: str | None) -> None:
    assert timed_out_kind(job, 600.0) == kind


async def test_timed_out_jobs_are_named_by_kind() -> None:
    cloud = Cloud.of()
    jobs = some_jobs(cloud, 2, status="TIMED_OUT", executionTime=600_000)
    finding = only(await report_on(cloud, jobs=jobs), "timed_out_execution")
    assert "2 jobs ran into executionTimeout" in finding.evidence
    assert "job-0" in finding.evidence


async def test_jobs_that_were_deleted_at_their_ttl() -> None:
    sent = NOW - timedelta(hours=2)
    # one that is only not known any more may have ended well: RunPod keeps results for 30 minutes
    refs = [JobRef("old", sent, 3600.0, "expired"), JobRef("done", sent, 3600.0, "won"), JobRef("unknown", sent, 3600.0, "sent")]
    finding = only(await report_on(Cloud.of(), jobs={"ep-minilm": refs}), "ttl_passed")
    assert finding.evidence.startswith("1 of the last 3 jobs")


async def test_a_queue_longer_than_a_jobs_life() -> None:
    cloud = Cloud.of(healths={"ep-minilm": Health(in_queue=100_000, running=5)})
    finding = only(await report_on(cloud), "ttl_short")
    assert "100000 queued jobs" in finding.evidence


async def test_a_night_longer_than_a_jobs_life() -> None:
    assert only(await report_on(Cloud.of(), night_s=12 * 3600.0), "ttl_short")
    assert codes(await report_on(Cloud.of(), night_s=3600.0)) == []


# --- cached models -------------------------------------------------------------------------------------------------------------------


async def test_a_cached_model_that_is_recorded_and_not_set() -> None:
    env = {"NIGHTBATCH_MODEL_SOURCE": "cached:org/model", "NIGHTBATCH_MODEL": "org/model"}
    cloud = Cloud.of(live(env=env))
    healthy = await report_on(cloud)
    assert codes(healthy) == []
    assert any("cached models" in fact for fact in healthy.facts)
    cloud.workers = {"ep-minilm": [worker(1, "UNHEALTHY")]}
    cloud.logs = {"w1": ["OSError: org/model is not cached"]}
    report = await report_on(cloud)
    assert sorted(codes(report)) == ["cached_model_unset", "unhealthy"]


# --- the bucket, volumes, the webhook ------------------------------------------------------------------------------------------------


class Broken(MemoryStore):
    """A bucket that fails in one way."""

    def __init__(self, failure: Exception, *, on: str) -> None:
        super().__init__(bucket="batches")
        self._failure = failure
        self._on = on

    async def put(self, key: str, data: Any) -> str:
        if self._on == "put":
            raise self._failure
        return await super().put(key, data)

    async def get(self, key: str) -> Any:
        if self._on == "get":
            raise self._failure
        return await super().get(key)


class Forgetful(MemoryStore):
    """A bucket that gives back something else than was written."""

    async def get(self, key: str) -> Any:
        found = await super().get(key)
        return type(found)(b"other", found.etag)


async def test_keys_that_may_not_write_are_told_apart_from_a_store_that_is_down() -> None:
    denied = Broken(AccessDenied("put was refused (403)."), on="put")
    down = Broken(StoreUnavailable("get got no answer."), on="get")
    report = await report_on(Cloud.of(), stores={"client": down, "worker": denied})
    assert sorted(codes(report)) == ["s3_denied", "s3_failed"]
    by_code = {finding.code: finding for finding in report.findings}
    assert "A write with the worker's keys failed" in by_code["s3_denied"].evidence
    assert "A read with the client's keys failed" in by_code["s3_failed"].evidence


async def test_a_store_that_gives_back_something_else() -> None:
    report = await report_on(Cloud.of(), stores={"client": Forgetful(bucket="batches")})
    assert "compare" in only(report, "s3_failed").evidence


async def test_a_store_without_conditional_writes_is_advice_but_not_on_a_volume() -> None:
    stores = {"client": MemoryStore(bucket="batches", dialect="last-writer")}
    finding = only(await report_on(Cloud.of(), stores=stores), "s3_last_writer")
    assert finding.severity == "advice"
    cloud = Cloud.of(volumes=[{"id": "batches", "name": "runs", "size": 10}])
    report = await report_on(cloud, stores=stores)
    assert codes(report) == []
    assert any("no conditional writes" in fact for fact in report.facts)


async def test_the_probe_leaves_one_object_however_often_it_runs() -> None:
    store = MemoryStore(bucket="batches")
    for _ in range(3):
        assert (await probe_store("client", store, "team/a")).step is None
    keys = [head.key async for head in store.list("")]
    assert [key for key in keys if "doctor" in key] == ["team/a/probe/doctor-client"]
    assert len(keys) == 2


async def test_a_full_volume_that_is_the_stacks_bucket() -> None:
    store = MemoryStore(bucket="batches")
    cloud = Cloud.of(volumes=[{"id": "batches", "name": "runs", "size": 10}, {"id": "other", "name": "else", "size": 10}])
    report = await report_on(cloud, stores={"client": store})
    assert [volume.id for volume in report.observed.volumes] == ["batches"]
    assert codes(report) == []
    observed = report.observed
    full = replace(observed, volumes=(replace(observed.volumes[0], used_bytes=9_500_000_000),))
    finding = only(examine(full), "volume_full")
    assert "9.5 of 10 GB" in finding.evidence


def test_a_webhook_on_this_machine_is_none_for_runpod() -> None:
    def seen(hook: WebhookSeen) -> list[str]:
        return codes(examine(Observed(stack().facts, NOW, (), webhook=hook)))

    assert seen(WebhookSeen("http://127.0.0.1:9", status=404, loopback=True, remote=True)) == ["webhook_private"]
    assert seen(WebhookSeen("http://127.0.0.1:9", status=404, loopback=True, remote=False)) == []
    assert seen(WebhookSeen("https://hook.example.com", error="name does not resolve")) == ["webhook_unreachable"]
    assert seen(WebhookSeen("https://hook.example.com", status=502)) == []


async def test_a_webhook_that_nothing_listens_at_is_found_by_asking() -> None:
    report = await report_on(Cloud.of(), found=stack(api_url="http://127.0.0.1:1/v2"), webhook_url="http://127.0.0.1:1/hook")
    assert "webhook_unreachable" in codes(report)


# --- parts that fail -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["list_endpoints", "list_workers", "list_releases", "list_network_volumes", "gpus", "health"])
@pytest.mark.parametrize("way", ["down", "hang"])
async def test_one_part_that_fails_hides_no_other(part: str, way: str) -> None:
    workers = [worker(1, "THROTTLED"), worker(2, isStale=True, version=2)]
    cloud = Cloud.of(live(workers={"max": 2}), workers={"ep-minilm": workers})
    getattr(cloud, way).add(part)
    stores: dict[Any, Store] = {"client": MemoryStore(bucket="batches")}
    seen = await observe(stack(), rest=cloud, plane=cloud, stores=stores, asked=Asked(deadline_s=0.05), at=NOW)
    report = examine(seen)
    assert len(seen.unread) == 1
    assert "workers_max_cut" in codes(report)
    assert ("throttled" in codes(report)) == (part != "list_workers")
    assert report.exit_code == 1
    assert any(line.startswith("unread") for line in report_lines(report))


async def test_without_the_accounts_list_each_endpoint_is_asked_for() -> None:
    cloud = Cloud.of(live(workers={"max": 2}))
    assert codes(await report_on(cloud)) == ["workers_max_cut"]
    assert "get_endpoint" not in cloud.asked  # one request for all
    cloud.down = {"list_endpoints"}
    report = await report_on(cloud)
    assert codes(report) == ["workers_max_cut"]
    assert [one.what for one in report.observed.unread] == ["account"]
    cloud.down = {"list_endpoints", "get_endpoint"}
    assert codes(await report_on(cloud)) == []
    cloud.down, cloud.endpoints = {"list_endpoints"}, {}
    assert codes(await report_on(cloud)) == ["endpoint_missing"]


async def test_nothing_found_but_not_everything_seen_ends_with_3() -> None:
    report = await report_on(Cloud.of(down={"health"}))
    assert codes(report) == []
    assert report.exit_code == 3


async def test_an_answer_of_another_shape_is_unread_and_no_crash() -> None:
    report = await report_on(Cloud.of({"id": "ep-minilm", "name": "minilm"}))
    assert report.exit_code == 3
    assert any("another shape" in one.why for one in report.observed.unread)


# --- before a run --------------------------------------------------------------------------------------------------------------------


async def test_live_workers_max_is_what_rest_says() -> None:
    assert await live_workers_max(Cloud.of(live(workers={"max": 2})), "ep-minilm") == 2


@pytest.mark.parametrize(
    ("api_url", "environ", "base"),
    [
        ("https://api.runpod.ai/v2", {}, "https://api.runpod.io"),
        ("http://127.0.0.1:8000/v2", {}, "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v2", {"RUNPOD_API_BASE_URL": "https://rest.example.com/v2/"}, "https://rest.example.com"),
        ("https://proxy.example.com/v2", {}, "https://api.runpod.io"),
    ],
)
def test_where_rest_is(api_url: str, environ: dict[str, str], base: str) -> None:
    assert rest_base(api_url, environ) == base


def test_checks_are_pure() -> None:
    """The same snapshot gives the same report, whatever came before."""
    seen = Observed(stack().facts, NOW, (EndpointSeen(declared(), gone=True),), webhook=WebhookSeen("https://hook.example.com", error="no"))
    first = examine(seen)
    assert report_record(examine(seen)) == report_record(first)
    assert [finding.severity for finding in first.findings] == ["error", "warning"]
    assert all(finding.evidence and finding.cause and finding.mend and finding.resource for finding in first.findings)


# --- load-balancing endpoints --------------------------------------------------------------------------------------------------------


def web_stack(**changes: Any) -> Stack:
    return stack(declared(), balanced=(balanced(**changes),))


async def test_a_load_balancing_endpoint_is_looked_at_too_and_asked_for_no_queue() -> None:
    cloud = Cloud.of(live(), live_balanced(), workers={"ep-web": [worker(1, "RUNNING")]})
    report = await report_on(cloud, found=web_stack())
    assert codes(report) == [], report_lines(report)
    assert report.observed.unread == ()
    assert cloud.asked.count("health") == 1
    text = "\n".join(report_lines(report))
    assert "load-balancing endpoint web (ep-web): workers.max 3; workers 1 running" in text
    assert "queued" not in next(line for line in text.splitlines() if "web" in line)


@pytest.mark.parametrize(
    ("live_as", "code"),
    [
        ({"workers": {"max": 0}}, "workers_max_cut"),
        ({"workers": {"max": 2}}, "workers_max_cut"),
        ({"workers": {"max": 9}}, "workers_max_raised"),
        ({"workers": {"min": 1}}, "workers_min_raised"),
        ({"image": "registry.example.com/web:latest"}, "image_unpinned"),
        ({"scaling": {"type": "REQUEST_COUNT", "requestCount": 9}}, "drift"),
        ({"type": "QUEUE"}, "drift"),
    ],
)
async def test_what_is_wrong_with_a_load_balancing_endpoint_is_found(live_as: dict[str, Any], code: str) -> None:
    report = await report_on(Cloud.of(live(), live_balanced(**live_as)), found=web_stack(image=None))
    finding = only(report, code)
    assert finding.resource == "load-balancing endpoint web (ep-web)"


async def test_a_load_balancing_endpoints_workers_that_do_not_come_up_are_found_without_a_queue() -> None:
    cloud = Cloud.of(live(), live_balanced(), workers={"ep-web": [worker(1, "UNHEALTHY"), worker(2, "THROTTLED")]}, logs={"w1": ["boom"]})
    report = await report_on(cloud, found=web_stack())
    assert sorted(codes(report)) == ["throttled", "unhealthy"]
    assert any("boom" in finding.evidence for finding in report.findings)


async def test_the_idle_rules_cut_of_a_load_balancing_endpoint_is_mended() -> None:
    cloud = Cloud.of(live(), live_balanced(workers={"max": 0}))
    (mended,) = await mend(cloud, await report_on(cloud, found=web_stack()))
    assert mended.done, mended.text
    assert cloud.endpoints["ep-web"]["workers"]["max"] == 3
    assert codes(await report_on(cloud, found=web_stack())) == []


async def test_a_load_balancing_endpoint_that_is_gone_or_was_stopped_is_said() -> None:
    finding = only(await report_on(Cloud.of(live()), found=web_stack()), "endpoint_missing")
    assert "a new id and URL" in finding.mend
    cloud = Cloud.of(live(), live_balanced(workers={"max": 0}))
    only(await report_on(cloud, found=web_stack(), stopped=(Stopped("ep-web", NOW, 0, 3),)), "stopped")
