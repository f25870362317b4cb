# tests/pipelines: a run is followed to its end on the emulator, whatever gets lost on the way.
from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.errors import EndpointAuth, EndpointUnavailable, EndpointUnreachable, InfrastructureError
from contract.keys import RunUri
from contract.memory import MemoryStore, Objects
from contract.models import REFUSAL, JobRequest, PartCommit, decode, encode
from contract.protocol import Health, JobStatus, Tuning, rules_for
from contract.store import S3Store
from emulator import ScriptedWorker
from emulator.s3 import KeyPair, SeaweedS3
from pipelines.follow import MOST_LOOKS, Driver, DriveResult, Ended, Notice, Progress, Sent
from pipelines.ledger import Ledger
from pipelines.runpod import RunPodClient, Timer
from pipelines.runs import RunHandle, list_runs
from pipelines.submit import resume, status
from tests.contract.world import SECRETS, START, make_plan, reference_execution, stack_for, write_plan
from tests.pipelines.night import Night, night

BOUND_S = 40.0


async def bounded(work: Awaitable[DriveResult]) -> DriveResult:
    return await asyncio.wait_for(work, BOUND_S)


def check_complete(found: Night, result: DriveResult) -> None:
    """Every row once, and the numbers agree with the store."""
    assert (result.state, result.cause) == ("complete", "complete")
    assert result.ok + result.failed == result.rows == found.plan.dataset.rows
    commits = [decode(found.objects.data[found.run.keys.commit(s.shard)], PartCommit, where=s.shard) for s in found.plan.shards]
    assert sum(c.ok for c in commits) == result.ok
    assert all(count == 1 for key, count in found.objects.writes.items() if "/parts/" in key or "/commits/" in key)


class Wrapped:
    """A client whose calls a test may break."""

    def __init__(self, inner: RunPodClient) -> None:
        self.inner = inner
        self.calls: list[str] = []

    async def run(self, request: JobRequest) -> str:
        self.calls.append("run")
        return await self.inner.run(request)

    async def status(self, job_id: str) -> JobStatus:
        self.calls.append("status")
        return await self.inner.status(job_id)

    async def cancel(self, job_id: str) -> None:
        self.calls.append("cancel")
        await self.inner.cancel(job_id)

    async def health(self) -> Health:
        return await self.inner.health()

    async def close(self) -> None:
        await self.inner.close()


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
@pytest.mark.parametrize("scaler", ["QUEUE_DELAY", "REQUEST_COUNT"])
async def test_a_run_completes_with_every_row(tmp_path: Path, mode: Any, scaler: str) -> None:
    async with night(tmp_path, mode=mode, scaler=scaler) as found:
        result = await bounded(found.drive())
        check_complete(found, result)
        assert result.attempts == result.executions == 6
        assert sorted(found.computed) == sorted(s.shard for s in found.plan.shards)
        assert 0 < result.usd_estimated < 6 * 0.7
        sent = [e for e in found.events if isinstance(e, Sent)]
        assert sum(e.ordinary + e.low_priority for e in sent) == 6
        assert sum(e.low_priority for e in sent) > 0, "most jobs are lowPriority"
        assert found.launched == 1, "a pace of one worker starts no second one"
        last = [e for e in found.events if isinstance(e, Progress)][-1]
        assert (last.ok, last.failed) == (result.ok, result.failed)
        assert (last.tokens_in, last.tokens_out) == (result.tokens_in, result.tokens_out)
        shares = [e.share for e in found.events if isinstance(e, Progress)]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)
        assert last.usd_so_far == pytest.approx(result.usd_estimated)
        assert last.usd_projected == pytest.approx(result.usd_estimated), "nothing is left to pay"
        foretold = [e.usd_projected for e in found.events if isinstance(e, Progress) and e.usd_projected is not None and 0.3 < e.share < 1]
        assert foretold
        assert all(result.usd_estimated / 3 < usd < result.usd_estimated * 3 for usd in foretold)


@pytest.mark.parametrize("scaler", ["QUEUE_DELAY", "REQUEST_COUNT"])
@pytest.mark.parametrize("overtakes", [True, False])
@pytest.mark.parametrize("counted", [True, False])
async def test_a_run_completes_however_runpod_treats_low_priority_jobs(tmp_path: Path, scaler: str, overtakes: bool, counted: bool) -> None:
    """Whether ordinary jobs overtake and whether REQUEST_COUNT counts lowPriority ones is not documented (PROTOCOL.md, Pace)."""
    switches = {"ordinary_overtakes": overtakes, "count_low_priority": counted}
    async with night(tmp_path, shards=12, pace=2, scaler=scaler, endpoint=switches) as found:
        result = await bounded(found.drive())
        check_complete(found, result)
        assert result.executions == 12, "nothing is computed twice"
        assert found.launched <= found.plan.infra.workers_max


async def test_without_webhooks_the_run_ends_all_the_same(tmp_path: Path) -> None:
    async with night(tmp_path) as found:
        check_complete(found, await bounded(found.drive(webhooks=False)))


async def test_no_status_and_no_webhook_is_needed_when_commits_come(tmp_path: Path) -> None:
    class Mute(Wrapped):
        async def status(self, job_id: str) -> JobStatus:
            raise EndpointUnavailable("no status tonight")

    async with night(tmp_path) as found:
        check_complete(found, await bounded(found.drive(webhooks=False, jobs=Mute(found.jobs()))))


async def test_lost_answers_to_run_lead_to_no_second_computation(tmp_path: Path) -> None:
    """C3 53: the POST was accepted, its answer lost: the shard is not paid twice."""

    class Deaf(Wrapped):
        async def run(self, request: JobRequest) -> str:
            await super().run(request)
            raise EndpointUnavailable("the answer was lost")

    async with night(tmp_path, shards=4) as found:
        api = Deaf(found.jobs())
        result = await bounded(found.drive(jobs=api))
        check_complete(found, result)
        assert api.calls.count("run") == 4
        assert len(found.computed) == 4


async def test_requests_that_never_arrived_are_sent_again_last(tmp_path: Path) -> None:
    class Lossy(Wrapped):
        async def run(self, request: JobRequest) -> str:
            if len(self.calls) < 2:
                self.calls.append("run")
                raise EndpointUnavailable("the request was lost")
            return await super().run(request)

    async with night(tmp_path, shards=4) as found:
        result = await bounded(found.drive(jobs=Lossy(found.jobs())))
        check_complete(found, result)
        assert 6 <= result.attempts <= 7, "the two that were lost, and at most one that wakes a worker"
        assert len(found.computed) == 4
        assert result.elapsed_s < 300, "long before their ttl"


async def test_dying_workers_delay_a_run_and_lose_nothing(tmp_path: Path) -> None:
    """C3 63: a job whose worker dies twice is FAILED by RunPod; its shard gets another attempt."""
    deaths: list[str] = []

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        if job["input"]["shard"] == "00001" and len(deaths) < 2:
            deaths.append(worker.id)
            worker.die()
            await asyncio.Event().wait()
        return await holder[0].work(job, worker)

    holder: list[Night] = []
    async with night(tmp_path, script={"handler": handler}, shards=4) as found:
        holder.append(found)
        result = await bounded(found.drive())
        check_complete(found, result)
        assert len(deaths) == 2
        assert result.attempts >= 5


async def test_a_killed_client_is_succeeded_by_another_from_the_store_alone(tmp_path: Path) -> None:
    async with night(tmp_path, shards=8, work_s=4.0) as found:
        first = asyncio.ensure_future(found.drive())
        await found.until_some_rows_are_done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert 0 < found.committed < 8
        result = await bounded(resume(str(found.run.uri), stack=found.stack, store=found.store(), jobs=found.jobs(), timer=found.timer))
        check_complete(found, result)
        assert len(found.computed) == 8, "no shard is computed twice"


async def test_an_interrupted_client_leaves_its_job_ids_in_the_journal(tmp_path: Path) -> None:
    async with night(tmp_path, shards=8, work_s=30.0) as found:
        task = asyncio.ensure_future(found.drive(tuning=Tuning(note_flush_s=3600.0)))
        await found.until(lambda: any(isinstance(e, Sent) for e in found.events))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert report.outstanding
        assert all(s.attempt.job_id for s in report.outstanding)


async def test_a_wrong_api_key_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    async with night(tmp_path) as found:
        wrong = RunPodClient(api_url=found.emulator.base_url, endpoint_id="ep1", api_key="wrong")
        with pytest.raises(EndpointAuth, match="RUNPOD_API_KEY"):
            await bounded(found.drive(jobs=wrong))
        await wrong.close()
        assert not [key for key in found.objects.data if "/journal/" in key]


async def test_two_clients_share_one_run(tmp_path: Path) -> None:
    for mode in ("conditional", "last-writer"):
        async with night(tmp_path / mode, shards=8, mode=mode) as found:
            results = await asyncio.wait_for(asyncio.gather(found.drive(client="aa"), found.drive(client="bb")), BOUND_S)
            for result in results:
                check_complete(found, result)
            assert len(found.computed) == 8, "no shard is computed twice"


async def test_the_budget_stops_sending_and_is_kept(tmp_path: Path) -> None:
    async with night(tmp_path, shards=6, work_s=30.0, pace=1) as found:
        # one reserve is 0.70 $, one execution of 30 s costs 0.30 $
        result = await bounded(found.drive(budget_usd=0.75))
        assert (result.state, result.cause) == ("stopped", "budget")
        assert 0 < result.shards_done < 6
        assert result.usd_estimated + result.usd_reserved <= 0.75
        again = await bounded(found.drive(budget_usd=50.0))
        check_complete(found, again)


async def test_a_deadline_stops_the_run_and_leaves_it_resumable(tmp_path: Path) -> None:
    async with night(tmp_path, shards=8, work_s=20.0) as found:
        result = await bounded(found.drive(deadline=found.store().now() + timedelta(seconds=40)))
        assert (result.state, result.cause) == ("stopped", "deadline")
        assert result.shards_done < 8
        assert found.launched == 1, "a pace of one worker starts no second one"
        report = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert (report.state, report.epoch, report.outstanding) == ("stopped", 1, ())
        again = await bounded(resume(str(found.run.uri), stack=found.stack, store=found.store(), jobs=found.jobs(), timer=found.timer))
        check_complete(found, again)


async def test_refused_credentials_pause_the_run_and_say_so(tmp_path: Path) -> None:
    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        return {"outcome": "credentials"}

    async with night(tmp_path, script={"handler": handler}) as found:
        result = await bounded(found.drive())
        assert (result.state, result.cause) == ("paused", "credentials")
        assert "s3Config" in result.reason


async def test_a_resumed_run_does_not_pause_for_yesterdays_credentials(tmp_path: Path) -> None:
    broken = [True]
    holder: list[Night] = []

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        return {"outcome": "credentials"} if broken[0] else await holder[0].work(job, worker)

    async with night(tmp_path, script={"handler": handler}) as found:
        holder.append(found)
        assert (await bounded(found.drive())).state == "paused"
        broken[0] = False
        check_complete(found, await bounded(found.drive()))


async def test_a_changed_image_pauses_until_it_is_allowed(tmp_path: Path) -> None:
    async with night(tmp_path, image="worker:1") as found:
        from msgspec.structs import replace

        from contract.facts import Stack

        facts = found.stack.facts
        newer = Stack(replace(facts, endpoints=(replace(facts.endpoints[0], image="worker:2"),)), found.stack.secrets)
        result = await bounded(found.drive(stack=newer))
        assert (result.state, result.cause) == ("paused", "image")
        assert "worker:2" in result.reason
        assert result.attempts == 0
        check_complete(found, await bounded(found.drive(stack=newer, allow_mixed_image=True)))


async def test_an_endpoint_that_allows_no_workers_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    """C3 73: RunPod has cut the endpoint to 0 workers."""
    async with night(tmp_path, workers_max=0) as found:
        result = await bounded(found.drive())
        assert (result.state, result.cause) == ("stalled", "no_workers")
        assert "workers.max" in result.reason
        assert found.emulator.report() is not None
        assert result.attempts == 0


async def test_a_queue_that_does_not_move_is_named_within_minutes(tmp_path: Path) -> None:
    """C3 50: every host is taken."""
    tuning = Tuning(stall_named_s=120.0, stall_ends_s=240.0)
    async with night(tmp_path, endpoint={"hosts": 0}) as found:
        result = await bounded(found.drive(tuning=tuning))
        assert (result.state, result.cause) == ("stalled", "throttled")
        named = [e for e in found.events if isinstance(e, Notice) and e.kind == "stall"]
        assert len(named) == 1
        assert "throttled" in named[0].text


async def test_a_runpod_that_cannot_be_reached_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    class Away(Wrapped):
        async def run(self, request: JobRequest) -> str:
            raise EndpointUnreachable("no connection")

        async def health(self) -> Health:
            raise EndpointUnreachable("no connection")

    async with night(tmp_path) as found:
        result = await bounded(found.drive(jobs=Away(found.jobs()), tuning=Tuning(stall_named_s=120.0, stall_ends_s=240.0)))
        assert (result.state, result.cause) == ("stalled", "unreachable")
        assert "no connection" in result.reason, "the stall says what /health failed with"
        assert result.attempts == 0 or result.usd_estimated == 0
        check_complete(found, await bounded(found.drive()))


async def test_only_low_priority_work_gets_an_ordinary_job_that_wakes_a_worker(tmp_path: Path) -> None:
    """The workers went away and lowPriority jobs alone would wait for ever."""
    holder: list[Night] = []
    died: list[str] = []

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        if not died and job["input"]["shard"] != "00000":
            died.append(worker.id)
            worker.die()
            await asyncio.Event().wait()
        return await holder[0].work(job, worker)

    async with night(tmp_path, shards=4, script={"handler": handler}, shards_per_worker=1, workers_max=1) as found:
        holder.append(found)
        check_complete(found, await bounded(found.drive()))
        assert died


async def test_a_run_that_begins_as_the_last_worker_leaves_says_what_it_waits_for_and_soon_gets_another(tmp_path: Path) -> None:
    """At its first look a worker idles, so the pace asks for none; then that one is gone."""
    async with night(tmp_path, shards=1, pace=1) as found:
        client = found.jobs()
        truly, looks = client.health, 0

        async def health() -> Health:
            nonlocal looks
            looks += 1
            return Health(idle=1) if looks == 1 else await truly()

        client.health = health  # type: ignore[method-assign]
        began = found.clock.time()
        check_complete(found, await bounded(found.drive(jobs=client)))
        sent = [e for e in found.events if isinstance(e, Sent)]
        assert [(e.ordinary, e.low_priority) for e in sent] == [(0, 1), (1, 0)]
        said = [e.text for e in found.events if isinstance(e, Notice) and e.kind == "waiting"]
        assert said == ["no worker lives any more, and 1 job waits with low priority; sent again so that RunPod starts a worker."]
        assert found.clock.time() - began < 60, "half a minute, not a stall"


async def test_a_shard_that_fails_in_every_attempt_ends_the_run_and_is_named(tmp_path: Path) -> None:
    holder: list[Night] = []

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        if job["input"]["shard"] == "00002":
            raise RuntimeError("poison")
        return await holder[0].work(job, worker)

    async with night(tmp_path, shards=4, script={"handler": handler}, max_attempts=2) as found:
        holder.append(found)
        result = await bounded(found.drive())
        assert (result.state, result.cause) == ("failed", "attempts")
        assert result.failed_shards == ("00002",)
        assert result.shards_done == 3, "the others are finished"
        assert "00002" in result.reason
        assert "poison" in result.reason
        assert [shard for shard, said in result.errors if "poison" in said] == ["00002"]
        first = next(e for e in found.events if isinstance(e, Ended))
        assert first.error is not None
        assert "poison" in first.error
        stands = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert stands.state == "failed"
        assert "poison" in stands.errors[0][1], "from storage alone"


async def test_a_job_that_its_worker_refuses_is_sent_once_and_ends_the_run(tmp_path: Path) -> None:
    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        return {"error": f"{REFUSAL}input.task.revision is 'abc'."}

    async with night(tmp_path, shards=5, script={"handler": handler}) as found:
        result = await bounded(found.drive())
        assert (result.state, result.cause) == ("failed", "refused")
        assert "input.task.revision is 'abc'." in result.reason
        assert result.attempts <= 5, "no shard is sent twice"
        stands = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert (stands.state, stands.outstanding, stands.usd_reserved) == ("failed", (), 0)
        assert "input.task.revision" in stands.errors[0][1]


async def test_what_a_worker_says_cannot_carry_the_stacks_secrets_into_the_journal(tmp_path: Path) -> None:
    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        return {"error": f"{REFUSAL}no access with {SECRETS.worker_s3.accessSecret}"}

    async with night(tmp_path, shards=1, script={"handler": handler}) as found:
        result = await bounded(found.drive())
        assert "no access with <hidden>" in result.reason
        assert not [key for key, data in found.objects.data.items() if SECRETS.worker_s3.accessSecret.encode() in data]


async def test_a_shard_that_kills_its_worker_takes_no_other_shard_with_it(tmp_path: Path) -> None:
    holder: list[Night] = []

    async def handler(job: dict[str, Any], worker: ScriptedWorker) -> Any:
        found = holder[0]
        if job["input"]["shard"] != "00000":
            return await found.work(job, worker)
        store = found.store()

        async def reading(op: str, key: str) -> None:
            if "/input/" in key:  # its start marker stands; whoever shares the worker is in the middle of its work
                await found.clock.sleep(10)
                worker.die()
                await asyncio.Event().wait()

        store.hook = reading
        return await reference_execution(job, store, worker.id, secrets.token_hex(8), found.computed.append)

    quickly = {"redeliveries": 0, "lost_after_s": 25.0}
    async with night(tmp_path, shards=2, work_s=30.0, script={"handler": handler}, settings=quickly, max_attempts=2) as found:
        holder.append(found)
        result = await bounded(found.drive())
        assert (result.state, result.cause) == ("failed", "attempts")
        assert result.failed_shards == ("00000",)
        assert result.shards_done == 1, "the other is finished, though it died beside it as often as a shard may"
        assert "1 shard failed in every attempt (00000)" in result.reason
        assert result.attempts <= 8


async def test_statuses_that_expired_overnight_cost_nothing_when_the_commits_are_there(tmp_path: Path) -> None:
    """C3 48: all /status answers are 404 in the morning."""

    class Forgotten(Wrapped):
        async def status(self, job_id: str) -> JobStatus:
            self.calls.append("status")
            return JobStatus(None)

    async with night(tmp_path, shards=4) as found:
        first = await bounded(found.drive(follow=False))
        assert first.state == "sent"
        await found.until(lambda: found.committed >= first.attempts)
        api = Forgotten(found.jobs())
        result = await bounded(found.drive(jobs=api, webhooks=False))
        check_complete(found, result)
        assert len(found.computed) == 4


async def test_a_ledger_that_is_deleted_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    async with night(tmp_path / "night", shards=6) as found:
        ledger = Ledger(tmp_path / "ledger" / "ledger.sqlite3")
        task = asyncio.ensure_future(found.drive(ledger=ledger))
        await found.until_some_rows_are_done()
        for file in (tmp_path / "ledger").iterdir():
            file.unlink()
        check_complete(found, await bounded(task))
        ledger.close()


async def test_a_ledger_that_fails_is_left_out(tmp_path: Path) -> None:
    async with night(tmp_path / "night", shards=2) as found:
        ledger = Ledger(tmp_path / "ledger.sqlite3")
        ledger.close()
        check_complete(found, await bounded(found.drive(ledger=ledger)))
        assert [e.kind for e in found.events if isinstance(e, Notice)] == ["ledger"]


async def test_the_ledger_records_what_was_seen(tmp_path: Path) -> None:
    async with night(tmp_path / "night", shards=4) as found:
        with Ledger(tmp_path / "ledger.sqlite3") as ledger:
            await bounded(found.drive(ledger=ledger))
            uri = str(found.run.uri)
            (run,) = ledger.runs()
            assert (run.uri, run.state, run.ok + run.failed) == (uri, "complete", found.plan.dataset.rows)
            assert {a.state for a in ledger.attempts_of(uri)} == {"won"}
            assert ledger.webhooks_of(uri) > 0


async def test_sending_only_fills_the_window_and_returns(tmp_path: Path) -> None:
    async with night(tmp_path, shards=20, work_s=5.0) as found:
        result = await bounded(found.drive(follow=False))
        assert result.state == "sent"
        assert 0 < result.attempts <= 6, "W = 3 x pace x shards per worker"


async def test_no_secret_is_in_anything_that_a_run_leaves(tmp_path: Path) -> None:
    async with night(tmp_path / "night", shards=3) as found:
        with Ledger(tmp_path / "ledger.sqlite3") as ledger:
            result = await bounded(found.drive(ledger=ledger))
        left = b"".join(found.objects.data.values()) + encode(str(result)) + encode([str(e) for e in found.events])
        left += b"".join(path.read_bytes() for path in tmp_path.glob("ledger*"))
        for secret in found.stack.secrets.values:
            assert secret.encode() not in left


async def test_a_store_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    from contract.errors import StoreUnavailable

    async with night(tmp_path, shards=4) as found:
        store = found.store()
        failures = [6]
        inner: Callable[[str, str], Awaitable[None]] = store.hook

        async def hook(op: str, key: str) -> None:
            if op == "list" and failures[0] > 0:
                failures[0] -= 1
                raise StoreUnavailable("away", where=key)
            await inner(op, key)

        store.hook = hook
        check_complete(found, await bounded(found.drive(store=store)))
        assert any(isinstance(e, Notice) and e.kind == "store" for e in found.events)


async def test_a_run_of_another_stack_is_refused(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from contract.errors import PlanMismatch
    from contract.facts import Stack

    async with night(tmp_path) as found:
        facts = found.stack.facts
        other = Stack(replace(facts, endpoints=(replace(facts.endpoints[0], id="elsewhere"),)), found.stack.secrets)
        with pytest.raises(PlanMismatch, match="elsewhere"):
            await bounded(found.drive(stack=other))


def test_the_ledger_refuses_a_file_from_the_future(tmp_path: Path) -> None:
    import apsw

    path = tmp_path / f"{secrets.token_hex(4)}.sqlite3"
    Ledger(path).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    with pytest.raises(InfrastructureError, match="newer Nightbatch"):
        Ledger(path)


async def test_a_tick_costs_the_same_few_requests_however_many_shards_there_are(tmp_path: Path) -> None:
    counts: list[int] = []
    for shards in (4, 200):
        plan = make_plan(shards=shards, pace=1)
        store = MemoryStore(Objects(instant=START))
        asked: list[str] = []

        class Counted:
            async def run(self, request: JobRequest) -> str:
                return f"job-{request.input.attempt}"

            async def status(self, job_id: str) -> JobStatus:
                return JobStatus("IN_QUEUE")

            async def cancel(self, job_id: str) -> None:
                raise AssertionError("nothing is cancelled")

            async def health(self) -> Health:
                return Health(in_queue=1)

            async def close(self) -> None:
                return None

        async def count(op: str, key: str, asked: list[str] = asked) -> None:
            asked.append(op)

        driver = Driver(
            RunHandle(RunUri.parse(plan.run), plan), stack=stack_for(plan), jobs=Counted(), store=store, rules=rules_for(plan), client="aa"
        )
        for _ in range(3):
            await driver.step()
        store.hook = count
        for _ in range(10):
            await driver.step()
        counts.append(len(asked))
    assert counts[0] == counts[1] <= 10 * 6


async def test_a_tick_asks_for_a_bounded_number_of_statuses_and_the_next_ticks_for_the_others() -> None:
    """Of 5,000 jobs whose status is due, a tick that asked for all would neither send nor hear of a commit for 25 s."""
    plan = make_plan(shards=MOST_LOOKS + 50, pace=300)
    store = MemoryStore(Objects(instant=START))
    asked: list[str] = []

    class Counted:
        async def run(self, request: JobRequest) -> str:
            return f"job-{request.input.attempt}"

        async def status(self, job_id: str) -> JobStatus:
            asked.append(job_id)
            return JobStatus("IN_QUEUE")

        async def cancel(self, job_id: str) -> None:
            raise AssertionError("nothing is cancelled")

        async def health(self) -> Health:
            return Health(in_queue=1)

        async def close(self) -> None:
            return None

    rules = rules_for(plan, workers_max=300, pace=300)
    driver = Driver(RunHandle(RunUri.parse(plan.run), plan), stack=stack_for(plan), jobs=Counted(), store=store, rules=rules, client="aa")
    await driver.step()
    sent = len(driver.state().attempts)
    assert sent > MOST_LOOKS
    store.objects.instant = START + timedelta(seconds=31)
    told = max(driver.state().attempts, key=lambda key: key[1])
    driver.woke(driver.state().attempts[told].intent.shard, told[1])
    await driver.step()
    assert len(asked) == MOST_LOOKS
    assert driver.state().attempts[told].job_id in asked, "what a webhook spoke of is looked at first"
    await driver.step()
    assert len(asked) == len(set(asked)) == sent


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_two_clients_and_workers_over_a_real_s3_server(tmp_path: Path, mode: Any) -> None:
    """Real time, real conditional writes; as last-writer the same server stands in for one that has none."""
    server = SeaweedS3(tmp_path / "s3", "nightbatch", KeyPair("client-id", "client-secret"), KeyPair("worker-id", "worker-secret"))
    await server.start()
    stores: list[S3Store] = []

    def store(keys: Any) -> S3Store:
        stores.append(S3Store(keys, mode=mode))
        return stores[-1]

    try:
        settings: dict[str, Any] = {"run": "s3://nightbatch/runs/test-abababab", "endpoint_url": server.endpoint_url}
        async with night(tmp_path / "night", shards=12, mode=mode, rate=1.0, work_s=0.0, **settings) as found:
            worker_store = store(server.worker_config)

            async def work(job: dict[str, Any], worker: ScriptedWorker) -> Any:
                return await reference_execution(job, worker_store, worker.id, secrets.token_hex(8), found.computed.append)

            found.work = work  # type: ignore[method-assign]
            first = store(server.client_config)
            await write_plan(first, found.plan)
            results = await asyncio.wait_for(
                asyncio.gather(
                    found.drive(store=first, client="aa", timer=Timer()),
                    found.drive(store=store(server.client_config), client="bb", timer=Timer()),
                ),
                100,
            )
            assert {(r.state, r.ok + r.failed) for r in results} == {("complete", 24)}
            assert sorted(found.computed) == [s.shard for s in found.plan.shards], "no shard is computed twice"
            report = await status(found.plan.run, stack=found.stack, store=store(server.client_config))
            assert (report.state, report.shards["done"], report.attempts >= 12) == ("complete", 12, True)
            (listed,) = await list_runs(first)
            assert listed.run_id == found.plan.run_id
    finally:
        for opened in stores:
            await opened.close()
        await server.stop()
