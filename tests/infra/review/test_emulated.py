"""doctor, stop and the fleet against the emulator's REST v2 and data plane: what they find is there, and what they change takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from contract.facts import EndpointFacts, Stack, StackFacts, StackSecrets, StoreFacts
from contract.memory import MemoryStore
from contract.store import S3Store, Store
from emulator import Emulator, EmulatorConfig, FastClock, ImageConfig, Script
from infra.provider.client import RestClient
from infra.review.doctor import Report, examine, mend
from infra.review.fleet import observe_fleet
from infra.review.live import Asked, HttpDataPlane, JobRef, live_workers_max, observe, rest_base
from infra.review.stop import start, stop, stop_path
from tests.emulator.control_kit import COUNT, Rest, controlled, endpoint, settings
from tests.emulator.kit import Gate, echo, eventually
from tests.infra.review.cloud import DIGEST, IMAGE, S3


@dataclass(frozen=True)
class Site:
    """An emulator with one endpoint, and the clients of doctor and its kin."""

    emulator: Emulator
    raw: Rest
    rest: RestClient
    plane: HttpDataPlane
    stack: Stack

    @property
    def id(self) -> str:
        return self.stack.facts.endpoints[0].id

    def declaring(self, **changes: Any) -> Stack:
        """The stack, with other facts of its endpoint."""
        return Stack(replace(self.stack.facts, endpoints=(replace(self.stack.facts.endpoints[0], **changes),)), self.stack.secrets)

    async def report(self, stack: Stack | None = None, **asked: Any) -> Report:
        stores: Mapping[Any, Store] = {"client": MemoryStore(bucket="batches")}
        asks = Asked(**asked)
        return examine(await observe(stack or self.stack, rest=self.rest, plane=self.plane, stores=stores, asked=asks))


@asynccontextmanager
async def site(folder: Path, *, script: Script | None = None, body: Mapping[str, Any] | None = None, **more: Any) -> AsyncIterator[Site]:
    """The endpoint is as its facts say, whatever else `body` makes of it."""
    async with controlled(folder, script=script, **more) as (emulator, raw):
        fields = {"image": IMAGE, "workers": {"min": 0, "max": 5, "idleTimeout": 5}, "timeout": 600_000, **(body or {})}
        made = await raw.post("/serverless", endpoint(**fields))
        scaling = fields.get("scaling", {"type": "QUEUE_DELAY", "queueDelay": 1})
        declared = EndpointFacts(
            name="night",
            id=made["id"],
            model="minilm",
            tasks=("embed",),
            gpu="ADA_24",
            usd_per_second=0.00031,
            workers_max=5,
            scaler=scaling["type"],
            scaler_value=scaling.get("queueDelay") or scaling["requestCount"],
            image=DIGEST,
        )
        store = StoreFacts(bucket="batches", endpoint_url=S3.endpointUrl)
        facts = StackFacts(stack="prod", api_url=emulator.base_url, store=store, endpoints=(declared,))
        stack = Stack(facts, StackSecrets(emulator.api_key, S3, S3))
        base = rest_base(facts.api_url, {})
        async with RestClient(base, emulator.api_key, deadline_s=10.0) as rest, HttpDataPlane(facts.api_url, emulator.api_key) as plane:
            yield Site(emulator, raw, rest, plane, stack)


def codes(report: Report) -> Sequence[str]:
    return [finding.code for finding in report.findings]


async def test_a_fresh_endpoint_is_healthy_and_every_part_is_read(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        report = await at.report()
        assert codes(report) == []
        assert report.observed.unread == ()
        assert report.exit_code == 0
        assert report.observed.stock is not None
        assert report.observed.stock["ADA_24"] != "NONE"
        assert await live_workers_max(at.rest, at.id) == 5


async def test_the_idle_rules_cut_is_found_mended_and_stays_mended(tmp_path: Path) -> None:
    clock = FastClock(200_000, stall_s=0.05)
    async with site(tmp_path, clock=clock, tick_s=600) as at:
        await eventually(lambda: settings(at.emulator, at.id).workers_max == 2)
        clock.rate = 1.0
        report = await at.report()
        assert codes(report) == ["workers_max_cut"]
        assert "3 days" in report.findings[0].cause
        assert await live_workers_max(at.rest, at.id) == 2
        (mended,) = await mend(at.rest, report)
        assert mended.done, mended.text
        assert settings(at.emulator, at.id).workers_max == 5
        assert settings(at.emulator, at.id).idle_timeout_s == 5
        assert codes(await at.report()) == []


async def test_unhealthy_workers_are_shown_with_what_they_said(tmp_path: Path) -> None:
    script = Script(echo, exit_code=3, says=("loading the model", "OSError: no such model"))
    async with site(tmp_path, script=script, clock=FastClock(20), body={"workers": {"min": 1, "max": 5, "idleTimeout": 5}}) as at:
        async with asyncio.timeout(20):
            while not codes(report := await at.report(at.declaring(workers_min=1))):  # noqa: ASYNC110 (it is in a server)
                await asyncio.sleep(0.01)  # RunPod tries such a worker again, and it is starting then
        assert codes(report) == ["unhealthy"]
        assert "OSError: no such model" in report.findings[0].evidence


async def test_a_release_with_a_job_running_shows_an_outdated_worker_and_drift(tmp_path: Path) -> None:
    gate = Gate()
    async with site(tmp_path, script=Script(gate.handler), body={"scaling": COUNT, "workers": {"min": 0, "max": 5}}) as at:
        job = await at.raw.run(at.id)
        await eventually(lambda: gate.entered)
        await at.raw.patch(f"/serverless/{at.id}", {"image": IMAGE.replace("a" * 64, "b" * 64)})
        report = await at.report(jobs={at.id: [JobRef(job)]})
        assert sorted(codes(report)) == ["drift", "outdated"]
        assert next(finding for finding in report.findings if finding.code == "outdated").severity == "advice"
        gate.open.set()


async def test_jobs_that_ran_into_their_timeout_are_told_from_those_that_nobody_took(tmp_path: Path) -> None:
    gate = Gate()
    body = {"scaling": COUNT, "workers": {"min": 0, "max": 1}, "timeout": 600_000}
    async with site(tmp_path, script=Script(gate.handler), body=body) as at:
        stack = at.declaring(workers_max=1, execution_timeout_s=20.0)
        running = await at.raw.run(at.id, policy={"executionTimeout": 20_000})
        await eventually(lambda: gate.entered)

        async with asyncio.timeout(20):
            while (await at.raw.get(f"/{at.id}/status/{running}"))["status"] != "TIMED_OUT":  # noqa: ASYNC110 (the same)
                await asyncio.sleep(0.01)
        report = await at.report(stack, jobs={at.id: [JobRef(running)]})
        assert "timed_out_execution" in codes(report)


async def test_stop_ends_spending_and_start_gives_back(tmp_path: Path) -> None:
    path = stop_path(tmp_path, "prod")
    async with site(tmp_path / "emulator", body={"workers": {"min": 2, "max": 5, "idleTimeout": 5}}) as at:
        names = {at.id: "night"}
        await eventually(lambda: len(at.emulator.endpoint(at.id).workers) == 2)
        cuts, problem = await stop(at.rest, "prod", names, path=path, at=datetime.now(UTC))
        assert problem is None
        assert [(cut.before, cut.after, cut.error) for cut in cuts] == [((2, 5), 0, None)]
        await eventually(lambda: not at.emulator.endpoint(at.id).workers)
        job = await at.raw.run(at.id)
        now = await observe_fleet("prod", at.stack.facts.endpoints, rest=at.rest, plane=at.plane, now=datetime.now(UTC))
        assert (now.usd_per_hour, now.endpoints[0].queued, now.endpoints[0].workers_max) == (0, 1, 0)
        (given,) = await start(at.rest, "prod", names, path=path)
        assert given.done
        assert settings(at.emulator, at.id).workers_min == 2
        await eventually(lambda: at.emulator.endpoint(at.id).completed == 1)
        assert (await at.raw.get(f"/{at.id}/status/{job}"))["status"] == "COMPLETED"


async def test_the_fleet_counts_workers_that_are_up(tmp_path: Path) -> None:
    gate = Gate()
    async with site(tmp_path, script=Script(gate.handler), body={"scaling": COUNT, "workers": {"min": 0, "max": 5}}) as at:
        for _ in range(2):
            await at.raw.run(at.id)
        await eventually(lambda: len(gate.entered) == 2)
        now = await observe_fleet("prod", at.stack.facts.endpoints, rest=at.rest, plane=at.plane, now=datetime.now(UTC))
        assert now.unread == ()
        assert now.endpoints[0].workers == {"running": 2}
        assert now.usd_per_hour == 2 * 0.00031 * 3600
        assert now.endpoints[0].in_progress == 2
        gate.open.set()


async def test_an_endpoint_deleted_by_hand_is_said_once(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        await at.raw.delete(f"/serverless/{at.id}")
        report = await at.report()
        assert codes(report) == ["endpoint_missing"]
        assert report.exit_code == 1


async def test_a_load_balancing_endpoint_is_looked_at_cut_and_given_back(tmp_path: Path) -> None:
    path = stop_path(tmp_path, "prod")
    async with site(tmp_path / "emulator") as at:
        fields = {"name": "nightbatch-prod-web", "type": "LOAD_BALANCER", "image": IMAGE, "scaling": COUNT, "timeout": 0}
        made = await at.raw.post("/serverless", endpoint(**fields, workers={"min": 0, "max": 3, "idleTimeout": 5}, ports=["80/http"]))
        web = replace(
            at.stack.facts.endpoints[0], name="web", id=made["id"], tasks=(), workers_max=3, scaler="REQUEST_COUNT", scaler_value=1.0
        )
        stack = Stack(replace(at.stack.facts, balanced=(web,)), at.stack.secrets)
        report = await at.report(stack)
        assert (codes(report), report.observed.unread) == ([], ())
        await at.raw.patch(f"/serverless/{web.id}", {"workers": {"min": 0, "max": 2}})
        cut = await at.report(stack)
        assert [(finding.code, finding.resource.split()[0]) for finding in cut.findings] == [("workers_max_cut", "load-balancing")]
        (mended,) = await mend(at.rest, cut)
        assert mended.done, mended.text
        names = {one.id: one.name for one in stack.facts.everything}
        cuts, _ = await stop(at.rest, "prod", names, path=path, at=datetime.now(UTC))
        assert [(one.name, one.after) for one in cuts] == [("night", 0), ("web", 0)]
        now = await observe_fleet(
            "prod", stack.facts.endpoints, rest=at.rest, plane=at.plane, now=datetime.now(UTC), balanced=stack.facts.balanced
        )
        assert [(one.workers_max, one.usd_per_hour) for one in now.endpoints] == [(0, 0), (0, 0)]
        assert now.unread == ()
        assert all(one.done for one in await start(at.rest, "prod", names, path=path))
        assert codes(await at.report(stack)) == []


@pytest.mark.slow
async def test_a_volume_as_bucket_over_runpods_own_s3_dialect(tmp_path: Path) -> None:
    """Written, read, and known to have no conditional writes; how full it is comes from a listing, because REST v2 does not tell."""
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(), images={"*": ImageConfig()})
    async with Emulator(config) as emulator:
        key = emulator.api_key
        async with RestClient(emulator.root_url, key, deadline_s=10.0) as rest, HttpDataPlane(emulator.base_url, key) as plane:
            volume = await rest.create_network_volume({"name": "runs", "size": 10, "dataCenter": "EU-RO-1"})
            server = emulator.s3
            assert server is not None
            url = emulator.volumes_url
            assert url is not None
            keys = replace(server.worker_config, bucketName=volume["id"], endpointUrl=url)
            wrong = replace(keys, accessSecret="not-the-secret-of-this-key")
            store, stranger = S3Store(keys, max_attempts=1), S3Store(wrong, max_attempts=1)
            try:
                await store.put("runs/a/plan.json", b"x" * 100_000)
                facts = StackFacts(
                    stack="prod",
                    api_url=emulator.base_url,
                    store=StoreFacts(bucket=volume["id"], endpoint_url=url),
                    endpoints=(),
                )
                stack = Stack(facts, StackSecrets(key, keys, keys))
                stores: Mapping[Any, Store] = {"client": store, "worker": stranger}
                report = examine(await observe(stack, rest=rest, plane=plane, stores=stores, asked=Asked()))
            finally:
                await store.close()
                await stranger.close()
    assert codes(report) == ["s3_denied"]
    assert "write with the worker's keys" in report.findings[0].evidence
    (probe, _), (seen,) = report.observed.stores, report.observed.volumes
    assert (probe.step, probe.mode) == (None, "last-writer")
    assert seen.used_bytes is not None
    assert seen.used_bytes >= 100_000
    assert any("no conditional writes" in fact for fact in report.facts)
