"""Webhooks as RunPod sends them, and the seam for faults."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from emulator import DROP, PASS, Action, EndpointConfig, Message, Script
from tests.emulator.kit import Receiver, echo, emulated, eventually

ONE = EndpointConfig(name="e", workers_min=1, workers_max=1)
NONE = EndpointConfig(name="e", workers_max=0)


async def test_a_webhook_is_the_whole_job_with_its_input(tmp_path: Path) -> None:
    async with Receiver().listening() as receiver, emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api):
        job = await api.run({"a": 1}, webhook=receiver.url, s3Config={"accessSecret": "hidden"})
        done = await api.until(job, "COMPLETED")
        await emulator.webhooks.drained()
        ((body, headers),) = receiver.got
        assert body == {**done, "input": {"a": 1}, "webhook": receiver.url}
        assert headers["content-type"] == "application/json"
        assert headers["user-agent"] == "Go-http-client/2.0"
        assert "traceparent" in headers


async def test_a_refused_webhook_is_sent_twice_more_10_s_apart_and_then_given_up(tmp_path: Path) -> None:
    async with (
        Receiver(500, 404, 302, 200).listening() as receiver,
        emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api),
    ):
        begun = emulator.clock.time()
        job = await api.run(webhook=receiver.url)
        await api.until(job, "COMPLETED")
        await emulator.webhooks.drained()
        assert len(receiver.got) == 3
        assert emulator.clock.time() - begun >= 20
        assert emulator.webhooks.given_up == 1
        assert (await api.status(job))["status"] == "COMPLETED"


async def test_a_receiver_that_is_away_gets_the_webhook_when_it_is_back(tmp_path: Path) -> None:
    async with Receiver(503).listening() as receiver, emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api):
        await api.until(await api.run(webhook=receiver.url), "COMPLETED")
        await emulator.webhooks.drained()
        assert len(receiver.got) == 2
        assert emulator.webhooks.delivered == 1


async def test_failed_cancelled_and_timed_out_jobs_fire_too_unless_told_otherwise(tmp_path: Path) -> None:
    async def fails(job: dict[str, object], worker: object) -> object:
        raise RuntimeError("no")

    async with Receiver().listening() as receiver, emulated(tmp_path, ONE, scripts={"e": Script(fails)}) as (emulator, api):
        await api.until(await api.run(webhook=receiver.url), "FAILED")
        await emulator.webhooks.drained()
        assert receiver.got[0][0]["status"] == "FAILED"
        assert "no" in receiver.got[0][0]["error"]
        emulator.configure("e", workers_min=0, workers_max=0)
        await eventually(lambda: not emulator.endpoint("e").workers)
        await api.call("POST", f"cancel/{await api.run(webhook=receiver.url)}")
        await emulator.webhooks.drained()
        assert receiver.got[1][0]["status"] == "CANCELLED"
    async with emulated(tmp_path / "b", NONE, webhook_states=("COMPLETED",)) as (emulator, api):
        await api.call("POST", f"cancel/{await api.run(webhook=receiver.url)}")
        await emulator.webhooks.drained()
    assert len(receiver.got) == 2


async def test_a_webhook_inside_input_never_fires(tmp_path: Path) -> None:
    async with Receiver().listening() as receiver, emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api):
        await api.until(await api.run({"webhook": receiver.url}), "COMPLETED")
        await emulator.webhooks.drained()
        assert receiver.got == []


async def test_a_webhook_url_that_is_none_changes_nothing(tmp_path: Path) -> None:
    async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}, webhook_retries_s=()) as (emulator, api):
        assert (await api.until(await api.run(webhook="not a url"), "COMPLETED"))["output"] == {"said": "x"}
        await emulator.webhooks.drained()
        assert emulator.webhooks.given_up == 1


# --- the seam ---------------------------------------------------------------------------------------------------------


async def test_a_lost_answer_of_run_leaves_a_job_that_the_client_does_not_know(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        lost = emulator.seam.hook(lambda m: DROP if (m.kind, m.operation) == ("response", "run") else PASS)
        with lost, pytest.raises(aiohttp.ClientError):
            await api.run()
        assert emulator.endpoint("e").queued == 1


async def test_a_lost_request_makes_no_job(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        lost = emulator.seam.hook(lambda m: DROP if (m.kind, m.operation) == ("request", "run") else PASS)
        with lost, pytest.raises(aiohttp.ClientError):
            await api.run()
        assert emulator.endpoint("e").queued == 0


async def test_an_answer_can_be_replaced_before_and_after_the_request_is_handled(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        with emulator.seam.hook(lambda m: Action(answer=429) if m.kind == "request" else PASS):
            assert (await api.call("POST", "run", {"input": 1}))[0] == 429
        assert emulator.endpoint("e").queued == 0
        with emulator.seam.hook(lambda m: Action(answer=502) if m.kind == "response" else PASS):
            assert (await api.call("POST", "run", {"input": 1}))[0] == 502
        assert emulator.endpoint("e").queued == 1


async def test_a_request_can_be_handled_twice(tmp_path: Path) -> None:
    async with emulated(tmp_path, NONE) as (emulator, api):
        with emulator.seam.hook(lambda m: Action(copies=2) if m.kind == "request" else PASS):
            await api.run()
        assert emulator.endpoint("e").queued == 2


@pytest.mark.parametrize(("action", "came"), [(DROP, 0), (Action(copies=2), 2), (Action(answer=500), 0), (Action(answer=200), 0)])
async def test_a_webhook_can_be_lost_doubled_or_answered_for(tmp_path: Path, action: Action, came: int) -> None:
    async def only_first(message: Message) -> Action:
        return action if message.kind == "webhook" and message.attempt == 1 else PASS

    retried = 1 if action.drop or action.answer == 500 else 0
    async with Receiver().listening() as receiver, emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api):
        with emulator.seam.hook(only_first):
            await api.until(await api.run(webhook=receiver.url), "COMPLETED")
            await emulator.webhooks.drained()
        assert len(receiver.got) == came + retried


async def test_a_webhook_can_be_late(tmp_path: Path) -> None:
    async with Receiver().listening() as receiver, emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api):
        with emulator.seam.hook(lambda m: Action(delay_s=60) if m.kind == "webhook" else PASS):
            begun = emulator.clock.time()
            await api.until(await api.run(webhook=receiver.url), "COMPLETED")
            await emulator.webhooks.drained()
        assert emulator.clock.time() - begun >= 60
        assert len(receiver.got) == 1


async def test_a_lost_delivery_is_made_again_when_no_ping_names_the_job(tmp_path: Path) -> None:
    lost: list[str | None] = []

    def lose_first(message: Message) -> Action:
        if message.kind == "delivery" and not lost:
            lost.append(message.job)
            return DROP
        return PASS

    async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api):
        with emulator.seam.hook(lose_first):
            job = await api.run()
            done = await api.until(job, "COMPLETED")
        assert lost == [job]
        assert done["retries"] == 1


async def test_a_doubled_delivery_runs_the_job_twice_and_counts_once(tmp_path: Path) -> None:
    seen: list[object] = []

    async def count(job: dict[str, object], worker: object) -> object:
        seen.append(job["id"])
        return len(seen)

    async with emulated(tmp_path, ONE, scripts={"e": Script(count, concurrency=2)}) as (emulator, api):
        with emulator.seam.hook(lambda m: Action(copies=2) if m.kind == "delivery" else PASS):
            job = await api.run()
            await api.until(job, "COMPLETED")
            await eventually(lambda: seen == [job, job])
        assert emulator.endpoint("e").completed == 1


async def test_hooks_see_who_and_what(tmp_path: Path) -> None:
    seen: list[Message] = []

    def look(message: Message) -> Action:
        seen.append(message)
        return PASS

    async with emulated(tmp_path, ONE, scripts={"e": Script(echo)}) as (emulator, api):
        with emulator.seam.hook(look):
            job = await api.run()
            done = await api.until(job, "COMPLETED")
        worker = done["workerId"]
        assert Message("request", "e", "run") in seen
        assert Message("response", "e", "run", status=200) in seen
        assert any(m.kind == "delivery" and (m.job, m.worker) == (job, worker) for m in seen)
        assert Message("request", "e", "job-done", job=job, worker=worker) in seen
        assert Message("response", "e", "status", job=job, status=200) in seen
