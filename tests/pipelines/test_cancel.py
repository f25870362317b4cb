# tests/pipelines: cancelling raises the epoch first; what runs may finish (keep) or not (stop); nothing that is committed is lost.
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from contract.errors import EndpointUnavailable, StoreUnavailable
from contract.keys import RunUri
from contract.memory import MemoryStore, Objects
from contract.models import Control, EndMarker, PhaseSeconds, StartMarker, StoreMode, decode, encode
from contract.protocol import Health, JobStatus
from pipelines.cancel import cancel, set_control
from pipelines.runs import RunHandle, read_control
from pipelines.submit import resume, status
from tests.contract.world import START, make_plan, write_plan
from tests.pipelines.night import night

PLAN = make_plan()
KEYS = RunUri.parse(PLAN.run).keys


class NoJobs:
    """RunPod that is never reached."""

    async def run(self, request: Any) -> str:
        raise AssertionError("nothing is sent")

    async def status(self, job_id: str) -> JobStatus:
        raise EndpointUnavailable("away")

    async def cancel(self, job_id: str) -> None:
        raise EndpointUnavailable("away")

    async def health(self) -> Health:
        raise EndpointUnavailable("away")

    async def close(self) -> None:
        return None


@pytest.fixture(params=["conditional", "last-writer"])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    mode: StoreMode = request.param
    return MemoryStore(Objects(instant=START), mode=mode)


async def raised(store: MemoryStore, by: str) -> Control:
    return await set_control(store, KEYS, PLAN, mode="stop", by=by, reason=None, raise_epoch=True)


async def test_each_cancel_raises_the_epoch(store: MemoryStore) -> None:
    assert (await raised(store, "a")).epoch == 1
    assert (await raised(store, "b")).epoch == 2
    control, _ = await read_control(store, KEYS, PLAN)
    assert (control.epoch, control.mode, control.by) == (2, "stop", "b")


async def test_going_on_keeps_the_epoch_so_that_old_jobs_stay_fenced(store: MemoryStore) -> None:
    await raised(store, "a")
    control = await set_control(store, KEYS, PLAN, mode="run", by="resume", reason=None, raise_epoch=False)
    assert (control.epoch, control.mode) == (1, "run")


async def test_two_at_once_never_take_an_epoch_back() -> None:
    store = MemoryStore(Objects(instant=START), mode="conditional")
    results = await asyncio.gather(*(raised(store, f"c{n}") for n in range(5)))
    control, _ = await read_control(store, KEYS, PLAN)
    assert max(r.epoch for r in results) == control.epoch
    assert control.epoch >= 1


async def test_a_cancel_that_comes_while_a_run_is_resumed_stands() -> None:
    store = MemoryStore(Objects(instant=START), mode="conditional")
    await raised(store, "a")
    late = MemoryStore(store.objects, mode="conditional")

    async def cancel_in_between(op: str, key: str) -> None:
        if op == "put_if_match":
            late.hook = quiet
            await raised(store, "b")

    async def quiet(op: str, key: str) -> None:
        return None

    late.hook = cancel_in_between
    control = await set_control(late, KEYS, PLAN, mode="run", by="resume", reason=None, raise_epoch=False)
    assert (control.epoch, control.mode, control.by) == (2, "stop", "b")
    assert (await read_control(store, KEYS, PLAN))[0] == control


async def test_a_lost_answer_is_looked_up(store: MemoryStore) -> None:
    failures = [1]

    async def lose(op: str, key: str) -> None:
        if op.startswith("put") and failures[0]:
            failures[0] -= 1
            raise StoreUnavailable("lost answer", where=key)

    store.after = lose
    assert (await raised(store, "a")).epoch == 1


async def test_another_plans_control_is_ignored(store: MemoryStore) -> None:
    foreign = Control(plan="cd" * 32, epoch=9, mode="stop", at=START, by="x")
    store.objects.data[KEYS.control()] = encode(foreign)
    control, _ = await read_control(store, KEYS, PLAN)
    assert (control.epoch, control.mode) == (0, "run")
    assert (await raised(store, "a")).epoch == 1


async def test_a_run_can_be_cancelled_while_runpod_is_away(store: MemoryStore) -> None:
    await write_plan(store, PLAN)
    run = RunHandle(RunUri.parse(PLAN.run), PLAN)
    result = await cancel(run, store=store, jobs=NoJobs(), mode="stop")
    assert (result.epoch, result.cancelled, result.failed) == (1, 0, 0)
    assert decode(store.objects.data[KEYS.control()], Control, where="control").mode == "stop"


@pytest.mark.parametrize("mode", ["keep", "stop"])
async def test_cancel_ends_the_run_of_a_client_that_follows_it(tmp_path: Path, mode: Any) -> None:
    """C3 55, 60: queued jobs are cancelled; what is committed stays; the run can be resumed and completed."""
    async with night(tmp_path, shards=10, work_s=10.0) as found:
        following = asyncio.ensure_future(found.drive())
        await found.until_some_rows_are_done()
        told = await cancel(found.run, store=found.store(), jobs=found.jobs(), mode=mode)
        assert told.cancelled > 0
        result = await asyncio.wait_for(following, 30)
        assert (result.state, result.cause) == ("stopped", "cancelled")
        assert 0 < result.shards_done < 10
        report = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert (report.state, report.epoch, report.ok) == ("cancelled", 1, result.ok)
        if mode == "keep":
            assert not report.outstanding, "what ran was let finish, and what waited is known to be over"
        before = found.committed
        again = await asyncio.wait_for(
            resume(str(found.run.uri), stack=found.stack, store=found.store(), jobs=found.jobs(), timer=found.timer), 30
        )
        assert again.state == "complete"
        assert before >= result.shards_done
        assert all(n == 1 for key, n in found.objects.writes.items() if "/commits/" in key)

        done = await cancel(found.run, store=found.store(), jobs=found.jobs(), mode=mode)
        assert done.complete
        assert (done.epoch, done.cancelled) == (1, 0), "a complete run is not told to stop"


async def test_cancelling_with_no_client_left_fences_what_is_queued(tmp_path: Path) -> None:
    async with night(tmp_path, shards=6, script={"start_s": 600.0}) as found:
        sent = await found.drive(follow=False)
        assert sent.state == "sent"
        told = await cancel(found.run, store=found.store(), jobs=found.jobs(), mode="stop")
        assert told.cancelled == sent.attempts
        assert (await found.jobs().health()).in_queue == 0


async def test_jobs_that_were_cancelled_in_the_queue_are_over_at_once_and_hold_nothing(tmp_path: Path) -> None:
    """No worker had them, so nothing waits for a second look: neither `status` nor the resume that follows."""
    async with night(tmp_path, shards=6, script={"start_s": 600.0}) as found:
        sent = await found.drive(follow=False)
        told = await cancel(found.run, store=found.store(), jobs=found.jobs(), mode="keep")
        assert told.over == told.cancelled == sent.attempts
        stands = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert (stands.state, stands.outstanding, stands.usd_reserved) == ("cancelled", (), 0)


async def test_a_stopped_job_is_over_when_its_worker_has_written_the_end(tmp_path: Path) -> None:
    async with night(tmp_path, shards=1, work_s=600.0) as found:
        following = asyncio.ensure_future(found.drive())
        await found.until(lambda: any("/starts/" in key for key in found.objects.data))
        key = next(key for key in found.objects.data if "/starts/" in key)
        await cancel(found.run, store=found.store(), jobs=found.jobs(), mode="stop")
        begun = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert len(begun.outstanding) == 1, "its worker has not said that it ended"
        marker: StartMarker = decode(found.objects.data[key], StartMarker, where=key)
        end = EndMarker(
            plan=marker.plan, shard=marker.shard, execution=marker.execution, attempt=marker.attempt, outcome="partial", wall_s=3.0,
            seconds=PhaseSeconds(computing=3.0), at=found.store().now(),
        )  # fmt: skip
        await found.store().put(found.run.keys.end(marker.shard, marker.execution), encode(end))
        stands = await status(str(found.run.uri), stack=found.stack, store=found.store())
        assert (stands.state, stands.outstanding, stands.usd_reserved) == ("cancelled", (), 0)
        assert stands.usd_estimated > 0
        result = await asyncio.wait_for(following, 30)
        assert result.usd_estimated > 0, "who follows it waits a moment for the end, so that the cost is no guess"
