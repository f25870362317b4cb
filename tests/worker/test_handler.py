# tests/worker: RunPod's job in, summary out: refusals, cancelling, SIGTERM, control.json, a dead engine, and no secret anywhere.
from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from contract.errors import AccessDenied, StoreUnavailable
from contract.memory import MemoryStore, Objects
from contract.models import Control, JobInput, S3Config, TaskSpec, encode
from tests.worker.conftest import KEYS, ManualClock
from worker.engine.fake import FakeEngine
from worker.execution import Identity
from worker.handler import ENGINE_DEAD, OwnMode, Worker, peak_rss
from worker.redact import CleanStream, Redactor
from worker.sample import as_input, sample_job, sample_rows
from worker.settings import Settings

SECRETS = {"accessId": "AKIAEXAMPLEKEYID", "accessSecret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
S3 = {**SECRETS, "bucketName": "bucket", "endpointUrl": "http://store.example"}


@dataclass
class House:
    """A worker with one run in a store in memory."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    objects: Objects = field(default_factory=Objects)
    clock: ManualClock = field(default_factory=ManualClock)
    redactor: Redactor = field(default_factory=Redactor)
    left: list[int] = field(default_factory=list)
    made: list[S3Config] = field(default_factory=list)
    answer_s: float = 20.0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    settings: Settings = field(default_factory=lambda: Settings("fake", "fake", "generate"))

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.objects, bucket="bucket")
        self.worker = Worker(
            self.settings,
            self.engine,
            identity=Identity("w-1"),
            redactor=self.redactor,
            leave=self.leave,
            make_store=self.make_store,
            clock=self.clock,
            control_s=0.01,
            answer_s=self.answer_s,
        )

    def leave(self, code: int) -> None:
        self.left.append(code)
        self.gone.set()

    async def until_left(self) -> None:
        await asyncio.wait_for(self.gone.wait(), 10)

    def make_store(self, keys: S3Config) -> MemoryStore:
        self.made.append(keys)
        return self.store

    async def job(self, rows: int = 8, **changes: Any) -> dict[str, Any]:
        made = await sample_job(self.store, TaskSpec(kind=self.engine.kind, model="fake"), sample_rows(self.engine.kind, rows))
        return {"id": "job-1", "input": {**as_input(made), **changes}, "s3Config": dict(S3), "webhook": "http://hook.example/token"}

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.objects.data if key.startswith(f"{KEYS.root}/{prefix}")]


@pytest.fixture
def house() -> House:
    return House()


def held(engine: FakeEngine, at_step: int) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold the engine from a step on: (it has come there, let it go on)."""
    here, go_on = asyncio.Event(), asyncio.Event()
    steps = 0

    async def pause() -> None:
        nonlocal steps
        steps += 1
        if steps >= at_step:
            here.set()
            await go_on.wait()

    engine.pause = pause
    return here, go_on


async def test_the_answer_is_the_summary_and_nothing_else(house: House) -> None:
    answer = await house.worker.handle(await house.job())
    assert (answer["outcome"], answer["ok"], answer["failed"]) == ("won", 7, 1)
    assert len(json.dumps(answer)) < 2000
    assert "echo" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("change", "field_"),
    [
        (lambda job: job.pop("s3Config"), "`s3Config` is missing"),
        (lambda job: job.pop("input"), "`input` is missing"),
        (lambda job: job["s3Config"].pop("accessSecret"), "accessSecret"),
        (lambda job: job["s3Config"].update(sessionToken="FwoGZXIvYXdzEXAMPLETOKEN"), "sessionToken"),
        (lambda job: job["s3Config"].update(accessId="ASIATEMPORARYKEY"), "temporary"),
        (lambda job: job["s3Config"].update(bucketName=""), "bucketName"),
        (lambda job: job["input"].update(version=2), "version"),
        (lambda job: job["input"].update(colour="red"), "colour"),
        (lambda job: job["input"].update(shard=7), "shard"),
        (lambda job: job["input"].pop("plan"), "plan"),
        (lambda job: job["input"]["task"].update(kind="paint"), "task.kind"),
        (lambda job: job["input"]["task"].update(model="other"), "input.task.model"),
        (lambda job: job["input"]["task"].update(revision="abc"), "input.task.revision"),
        (lambda job: job["input"].update(run="not-a-uri"), "not-a-uri"),
        (lambda job: job["input"].update(start_by="soon"), "start_by"),
    ],
)
async def test_a_job_that_breaks_the_contract_fails_with_one_sentence_that_names_the_field(
    house: House, change: Callable[[dict[str, Any]], Any], field_: str
) -> None:
    job = await house.job()
    change(job)
    answer = await house.worker.handle(job)
    assert set(answer) == {"error"}
    assert answer["error"].startswith("refused: "), "by which a client knows that sending it again is in vain"
    assert field_ in answer["error"]
    assert "\n" not in answer["error"]
    assert not any(secret in answer["error"] for secret in [*SECRETS.values(), "FwoGZXIvYXdzEXAMPLETOKEN"])
    assert (house.engine.submitted, house.keys("starts/")) == (0, [])


async def test_cancelling_keeps_finished_rows_and_leaves_no_commit(house: House) -> None:
    here, go_on = held(house.engine, 3)
    task = asyncio.ensure_future(house.worker.handle(await house.job(20)))
    await here.wait()
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(house.keys("pieces/")) == 1
    assert len(house.keys("ends/")) == 1
    assert house.keys("commits/") == []


async def test_cancelling_while_the_commit_is_written_leaves_it_whole(house: House) -> None:
    here, go_on = asyncio.Event(), asyncio.Event()

    async def hold(op: str, key: str) -> None:
        if "/commits/" in key and op == "put_if_absent":
            here.set()
            await go_on.wait()

    house.store.hook = hold
    task = asyncio.ensure_future(house.worker.handle(await house.job()))
    await here.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(house.keys("commits/")) == 1


async def test_sigterm_keeps_the_pieces_of_every_shard_and_answers_partial(house: House) -> None:
    here, go_on = held(house.engine, 5)
    job = await house.job(40)
    tasks = [asyncio.ensure_future(house.worker.handle(job)) for _ in range(2)]
    await here.wait()
    house.worker.stop_all()
    go_on.set()
    answers = await asyncio.gather(*tasks)
    assert [(a["outcome"], a["detail"]) for a in answers] == [("partial", "sigterm")] * 2
    assert (len(house.keys("ends/")), house.keys("commits/")) == (2, [])
    assert len(house.keys("pieces/")) == 1, "the second had not finished a row yet"


async def test_a_job_that_comes_after_sigterm_computes_nothing(house: House) -> None:
    house.worker.stop_all()
    assert (await house.worker.handle(await house.job()))["outcome"] == "partial"
    assert house.engine.submitted == 0


async def test_the_deadline_ends_an_execution(house: House) -> None:
    here, go_on = held(house.engine, 2)
    task = asyncio.ensure_future(house.worker.handle(await house.job(20, deadline_s=30.0)))
    await here.wait()
    house.clock.at += 31
    await asyncio.sleep(0.05)
    go_on.set()
    answer = await task
    assert (answer["outcome"], answer["detail"]) == ("partial", "deadline")


@pytest.mark.parametrize(("mode", "outcome"), [("stop", "partial"), ("keep", "won")])
async def test_control_json_ends_a_running_execution_only_with_stop(house: House, mode: str, outcome: str) -> None:
    here, go_on = held(house.engine, 2)
    job = await house.job(20)
    looked = asyncio.Event()

    async def look(op: str, key: str) -> None:
        if key == KEYS.control() and here.is_set():
            looked.set()

    house.store.after = look
    task = asyncio.ensure_future(house.worker.handle(job))
    await here.wait()
    control = Control(plan=job["input"]["plan"], epoch=1, mode=mode, at=house.store.now(), by="test")  # type: ignore[arg-type]
    await house.store.put(KEYS.control(), encode(control))
    looked.clear()
    house.clock.at += 1
    await asyncio.wait_for(looked.wait(), 10)
    await asyncio.sleep(0)
    go_on.set()
    assert (await task)["outcome"] == outcome


class Sdk:
    """Does with an answer what the SDK does: posts it in the task that awaited the handler, and the post takes until `taken`."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.posted: list[dict[str, Any]] = []
        self.seen: list[tuple[int, int, list[int]]] = []
        self.post, self.both = asyncio.Event(), asyncio.Event()
        self.taken = asyncio.Event()

    async def work(self, job: dict[str, Any]) -> None:
        self.posted.append(await self.house.worker.handle(job))
        self.seen.append((len(self.house.keys("pieces/")), len(self.house.keys("ends/")), list(self.house.left)))
        (self.both if self.post.is_set() else self.post).set()
        await self.taken.wait()


async def test_a_dead_engines_process_ends_when_runpod_has_taken_every_answer_and_not_before(house: House) -> None:
    house.engine.dies_after = 8
    sdk, job = Sdk(house), await house.job(20)
    tasks = [asyncio.ensure_future(sdk.work(job)) for _ in range(2)]
    await asyncio.wait_for(sdk.both.wait(), 10)
    assert house.left == []
    sdk.taken.set()
    await asyncio.gather(*tasks)
    await house.until_left()
    sentence = "the engine died as it was told to; finished rows were kept as pieces."
    assert sdk.posted == [{"error": sentence, "refresh_worker": True}] * 2
    assert sdk.seen == [(2, 2, [])] * 2, "both shards had kept their pieces before either answered"
    await asyncio.sleep(0.05)
    assert house.left == [ENGINE_DEAD], "once"


async def test_an_answer_of_a_dead_engine_waits_for_the_pieces_of_the_other_shard(house: House) -> None:
    house.engine.dies_after = 8
    sdk, job = Sdk(house), await house.job(20)
    sdk.taken.set()
    here, go_on = asyncio.Event(), asyncio.Event()
    ended = asyncio.Event()

    async def hold(op: str, key: str) -> None:
        if "/pieces/" in key and op.startswith("put") and not here.is_set():
            here.set()
            await go_on.wait()

    async def note(op: str, key: str) -> None:
        if "/ends/" in key:
            ended.set()

    house.store.hook, house.store.after = hold, note
    tasks = [asyncio.ensure_future(sdk.work(job)) for _ in range(2)]
    async with asyncio.timeout(10):
        await here.wait()
        await ended.wait()
    await asyncio.sleep(0.05)
    assert (sdk.posted, house.left) == ([], []), "one has died and is ready to answer; the other still writes"
    go_on.set()
    await asyncio.gather(*tasks)
    await house.until_left()
    assert sdk.seen == [(2, 2, [])] * 2
    assert house.left == [ENGINE_DEAD]


async def test_a_runpod_that_takes_no_answer_holds_a_dead_engines_process_only_for_some_time(caplog: pytest.LogCaptureFixture) -> None:
    house = House(answer_s=0.1)
    house.engine.dies_after = 8
    sdk = Sdk(house)
    task = asyncio.ensure_future(sdk.work(await house.job(20)))
    await house.until_left()
    assert (len(sdk.posted), task.done(), house.left) == (1, False, [ENGINE_DEAD])
    assert "did not take 1 answers" in caplog.text
    sdk.taken.set()
    await task
    assert house.left == [ENGINE_DEAD]


async def test_a_job_that_comes_to_a_dead_engine_is_not_begun(house: House) -> None:
    house.engine.dies_after = 8
    sdk, job = Sdk(house), await house.job(20)
    first = asyncio.ensure_future(sdk.work(job))
    await asyncio.wait_for(sdk.post.wait(), 10)
    late = asyncio.ensure_future(house.worker.handle({**job, "id": "job-2"}))
    sdk.taken.set()
    await first
    await house.until_left()
    assert not late.done(), "RunPod gives it to another worker"
    assert len(house.keys("starts/")) == 1
    late.cancel()
    await asyncio.wait([late])


async def test_a_dead_engines_process_ends_although_the_sdks_loop_ends_first(house: House) -> None:
    house.engine.dies_after = 8
    sdk = Sdk(house)
    task = asyncio.ensure_future(sdk.work(await house.job(20)))
    await asyncio.wait_for(sdk.post.wait(), 10)
    # What asyncio.run does with whatever still runs.
    for other in asyncio.all_tasks() - {asyncio.current_task()}:
        other.cancel()
    await asyncio.wait([task])
    await house.until_left()
    assert house.left == [ENGINE_DEAD]


async def test_a_watch_that_fails_is_said_and_stops_its_execution(house: House, caplog: pytest.LogCaptureFixture) -> None:
    here, go_on = held(house.engine, 3)
    job = await house.job(20)

    async def fail(op: str, key: str) -> None:
        if key == KEYS.control() and here.is_set():
            failed.set()
            raise RuntimeError("a fault in the watch")

    failed = asyncio.Event()
    house.store.hook = fail
    task = asyncio.ensure_future(house.worker.handle(job))
    await here.wait()
    house.clock.at += 1
    await asyncio.wait_for(failed.wait(), 10)
    await asyncio.sleep(0.01)
    go_on.set()
    answer = await task
    assert (answer["outcome"], answer["detail"]) == ("partial", "unwatched")
    assert len(house.keys("pieces/")) == 1
    assert "RuntimeError: a fault in the watch" in caplog.text


async def test_a_step_that_never_ends_gives_the_engine_up(house: House) -> None:
    here, go_on = held(house.engine, 1)
    task = asyncio.ensure_future(house.worker.handle(await house.job()))
    await here.wait()
    house.engine.step_s = house.settings.stall_s + 1
    await asyncio.sleep(0.05)
    assert house.engine.given_up is not None
    go_on.set()
    await task


async def test_loading_is_counted_by_the_first_execution_only(house: House) -> None:
    house.engine.load_s = 12.5
    house.__post_init__()
    job = await house.job()
    first = await house.worker.handle(job)
    del house.objects.data[KEYS.commit("00000")]
    second = await house.worker.handle(job)
    assert (first["seconds"]["loading"], second["seconds"]["loading"]) == (12.5, 0.0)


async def test_a_store_is_made_once_for_the_same_keys(house: House) -> None:
    job = await house.job()
    await house.worker.handle(job)
    await house.worker.handle(job)
    assert len(house.made) == 1


async def test_a_plan_is_read_once_by_a_process_and_never_taken_for_another(house: House) -> None:
    job = await house.job()
    await house.worker.handle(job)
    reads: list[str] = []

    async def note(op: str, key: str) -> None:
        if key == KEYS.plan():
            reads.append(op)

    house.store.hook = note
    assert (await house.worker.handle(job))["outcome"] == "already"
    assert reads == []
    other = {**job, "input": {**job["input"], "plan": "f" * 64}}
    assert (await house.worker.handle(other))["outcome"] == "mismatch"
    assert reads == ["get"]


async def test_refused_keys_are_the_outcome_credentials(house: House) -> None:
    job = await house.job()

    async def refuse(op: str, key: str) -> None:
        raise AccessDenied("get was refused (InvalidAccessKeyId).", where=key)

    house.store.hook = refuse
    assert (await house.worker.handle(job))["outcome"] == "credentials"


async def test_a_store_without_an_answer_is_a_failed_job_with_one_sentence(house: House) -> None:
    job = await house.job()

    async def fail(op: str, key: str) -> None:
        raise StoreUnavailable(f"{op} got no answer.", where=key)

    house.store.hook = fail
    answer = await house.worker.handle(job)
    assert set(answer) == {"error"}
    assert "got no answer" in answer["error"]
    assert not answer["error"].startswith("refused"), "that may go better the next time"


async def test_a_fault_of_ours_never_shows_a_secret(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    job = await house.job()

    async def fail(op: str, key: str) -> None:
        raise RuntimeError(f"signing with {SECRETS['accessSecret']} for {SECRETS['accessId']}")

    house.store.hook = fail
    log, stream = logging.getLogger("nightbatch.worker"), io.StringIO()
    handler = logging.StreamHandler(CleanStream(stream, house.redactor))
    log.addHandler(handler)
    try:
        answer = await house.worker.handle(job)
    finally:
        log.removeHandler(handler)
    assert "RuntimeError" in answer["error"]
    printed = answer["error"] + stream.getvalue()
    assert "<hidden>" in printed
    assert not any(secret in printed for secret in SECRETS.values())


async def test_nothing_that_a_run_stores_holds_a_key(house: House) -> None:
    await house.worker.handle(await house.job())
    stored = b"\n".join([*house.objects.data.values(), *(key.encode() for key in house.objects.data)])
    assert not any(secret.encode() in stored for secret in SECRETS.values())


async def test_each_execution_sees_its_own_plans_mode_on_a_shared_store(house: House) -> None:
    one, two = OwnMode(house.store), OwnMode(house.store)
    one.mode = "last-writer"
    assert (one.mode, two.mode, house.store.mode) == ("last-writer", "conditional", "conditional")


def test_a_job_input_survives_the_sdks_json(house: House) -> None:
    job = asyncio.run(house.job())
    assert msgspec.convert(json.loads(json.dumps(job["input"])), JobInput, strict=True).shard == "00000"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_sees_the_process_that_holds_the_model() -> None:
    size = 3 * peak_rss()
    child = subprocess.Popen(
        [sys.executable, "-c", f"x = bytearray({size}); print('ready', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert peak_rss() >= size
    finally:
        child.communicate(b"\n", timeout=20)
