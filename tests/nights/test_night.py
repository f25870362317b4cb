"""One job for one date, in one process: what is paid once, what is told, and what stops a night."""

from __future__ import annotations

import asyncio
import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract.errors import Damaged, StoreUnavailable
from contract.memory import MemoryStore
from contract.rows import RowError
from nights.agenda import note_missing
from nights.jobs.files import JobFile
from nights.jobs.model import Job
from nights.jobs.schedule import Night
from nights.lease import Held, LeaseFile, given_up, holder, this_machine
from nights.night import Call, Ended, Tonight, run_night, time_needed
from nights.record import NightRecord, Records
from pipelines.follow import Progress
from tests.nights.kit import START, NightHouse
from tests.nights.receivers import receiver
from tests.pipelines.planning import write_jsonl

DATE = "2026-03-10"
NEXT = "2026-03-11"


def job_of(**more: Any) -> Job:
    given: dict[str, Any] = {
        "name": "answers", "kind": "generate", "dataset": ["rows.jsonl"], "model": "smollm2", "stack": "test", "id_column": "id",
        "column": "text", "out": "out/{job}-{date}.jsonl", **more,
    }  # fmt: skip
    return Job.model_validate(given)


def file_of(folder: Path, job: Job) -> JobFile:
    return JobFile(folder / "jobs" / f"{job.name}.yaml", job, folder)


def rows(folder: Path, count: int = 12, *, text: str = "text {n}", **more: Any) -> Path:
    return write_jsonl(folder / "rows.jsonl", ({"id": f"r{n}", "text": text.format(n=n), **more} for n in range(count)))


async def night(house: NightHouse, folder: Path, job: Job | None = None, date: str = DATE, **call: Any) -> Ended:
    return await run_night(file_of(folder, job or job_of()), date, house, Call(**call))


async def test_a_night_leaves_its_output_and_its_record(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    ended = await night(house, tmp_path)
    record = ended.record
    assert (record.state, record.exit_code, record.rows, record.sent, record.ok, record.failed) == ("done", 0, 12, 12, 12, 0)
    assert (tmp_path / "out" / f"answers-{DATE}.jsonl").exists()
    assert [event.kind for event in record.events] == ["success"]
    assert await Records(house.store).get("answers", DATE) == record


async def test_the_same_night_again_is_told_and_not_done(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    first = await night(house, tmp_path)
    jobs = len(house.jobs_run)
    again = await night(house, tmp_path)
    assert again.repeated
    assert again.record == first.record
    assert len(house.jobs_run) == jobs


async def test_a_night_that_is_done_is_done_once_more_where_that_is_said_and_pays_only_for_what_was_mended(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    await night(house, tmp_path)
    jobs = len(house.jobs_run)
    again = (await night(house, tmp_path, redo=True)).record
    assert (again.state, again.sent, len(house.jobs_run)) == ("done", again.sent, jobs)
    rows(tmp_path, text="mended {n}")
    assert (await night(house, tmp_path)).repeated
    mended = (await night(house, tmp_path, redo=True)).record
    assert mended.state == "done"
    assert "mended 1" in (tmp_path / "out" / f"answers-{DATE}.jsonl").read_text()


async def test_the_time_of_a_night_is_this_calls_and_not_the_hours_that_people_needed(tmp_path: Path) -> None:
    house = NightHouse()
    await night(house, tmp_path)
    house.objects.advance(7200)
    rows(tmp_path)
    assert (await night(house, tmp_path)).record.seconds < 600


async def test_what_an_earlier_call_could_not_tell_is_not_told_once_the_night_is_done(tmp_path: Path) -> None:
    house = NightHouse()
    async with receiver(404, 404, 404) as there:
        job = job_of(notify=[{"kind": "webhook", "url_env": "HOOK", "on": ["failure", "success"]}])
        failed = (await night(house, tmp_path, job, environ={"HOOK": there.url})).record
        assert any("could not be told of failure" in notice for notice in failed.notices)
        there.answers.clear()
        rows(tmp_path)
        done = (await night(house, tmp_path, job, environ={"HOOK": there.url})).record
    assert [body["event"] for body in there.bodies] == ["failure", "success"]
    assert not any("could not be told" in notice for notice in done.notices)


async def test_the_same_rows_on_another_night_cost_nothing(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    await night(house, tmp_path)
    jobs = len(house.jobs_run)
    record = (await night(house, tmp_path, date=NEXT)).record
    assert record.state == "done"
    assert (record.sent, record.usd_estimated) == (0, 0.0)
    assert len(house.jobs_run) == jobs
    assert (tmp_path / "out" / f"answers-{NEXT}.jsonl").read_bytes() == (tmp_path / "out" / f"answers-{DATE}.jsonl").read_bytes()
    assert "nothing new" in record.sentence


async def test_failed_rows_end_a_night_with_1_and_an_event(tmp_path: Path) -> None:
    house = NightHouse(says=lambda text: RowError(code="too_long", message="no") if text == "text 3" else "yes")
    rows(tmp_path)
    record = (await night(house, tmp_path)).record
    assert (record.state, record.exit_code, record.failed) == ("done", 1, 1)
    assert [event.kind for event in record.events] == ["rows_failed"]
    assert record.sentence.startswith("1 row failed (1 x too_long); nightbatch logs answers-generate-")
    assert "text 3" not in msgspec.json.encode(record).decode()


async def test_a_dataset_that_vanished_fails_the_night_with_its_name(tmp_path: Path) -> None:
    house = NightHouse()
    record = (await night(house, tmp_path)).record
    assert (record.state, record.exit_code, record.cause) == ("failed", 2, "input")
    assert "rows.jsonl" in record.sentence
    assert "no such file" in record.sentence
    assert [event.kind for event in record.events] == ["failure"]


async def test_a_failed_night_is_done_when_it_is_called_again(tmp_path: Path) -> None:
    house = NightHouse()
    await night(house, tmp_path)
    rows(tmp_path)
    record = (await night(house, tmp_path)).record
    assert (record.state, record.exit_code) == ("done", 0)
    assert [event.kind for event in record.events] == ["failure", "success"]


async def test_a_dataset_that_shrank_stops_the_night_until_somebody_says_so(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path, 100)
    await night(house, tmp_path)
    jobs = len(house.jobs_run)
    rows(tmp_path, 79)
    record = (await night(house, tmp_path, date=NEXT)).record
    assert (record.state, record.exit_code) == ("asking", 1)
    assert "79 rows, 21.0 % fewer than the 100 of 2026-03-10" in record.sentence
    assert f"nightbatch night answers --date {NEXT} --accept shrink" in record.sentence
    assert len(house.jobs_run) == jobs
    accepted = (await night(house, tmp_path, date=NEXT, accept=frozenset({"shrink"}))).record
    assert (accepted.state, accepted.rows) == ("done", 79)


async def test_a_dataset_that_shrank_within_its_threshold_is_computed(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path, 100)
    await night(house, tmp_path)
    rows(tmp_path, 80)
    assert (await night(house, tmp_path, date=NEXT)).record.state == "done"


async def test_after_a_night_that_asked_the_last_good_one_is_compared_with(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path, 100)
    await night(house, tmp_path)
    rows(tmp_path, 10)
    await night(house, tmp_path, date=NEXT)
    rows(tmp_path, 9)
    record = (await night(house, tmp_path, date="2026-03-12")).record
    assert record.state == "asking"
    assert "the 100 of 2026-03-10" in record.sentence


async def test_a_column_that_changed_its_type_stops_the_night_and_a_new_one_does_not(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path, stars=5)
    await night(house, tmp_path)
    rows(tmp_path, stars="five", more=1)
    record = (await night(house, tmp_path, date=NEXT)).record
    assert record.state == "asking"
    assert "stars (number -> text)" in record.sentence
    assert "new columns since 2026-03-10: more" in record.notices
    accepted = (await night(house, tmp_path, date=NEXT, accept=frozenset({"schema"}))).record
    assert accepted.state == "done"


async def test_a_column_that_is_gone_is_named_and_a_job_may_allow_it(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path, stars=5)
    await night(house, tmp_path)
    rows(tmp_path)
    assert "lacks column stars" in (await night(house, tmp_path, date=NEXT)).record.sentence
    allowed = (await night(house, tmp_path, job_of(on_schema_change="allow"), date=NEXT)).record
    assert allowed.state == "done"
    assert any("lacks column stars" in notice for notice in allowed.notices)


async def test_other_columns_that_changed_in_a_table_are_another_run_and_it_is_said(tmp_path: Path) -> None:
    house = NightHouse()
    job = job_of(out="out/{date}.parquet")
    rows(tmp_path, stars=5)
    await night(house, tmp_path, job)
    rows(tmp_path, stars=4)
    record = (await night(house, tmp_path, job, date=NEXT)).record
    assert (record.state, record.sent) == ("done", 12)
    assert any("computed again" in notice for notice in record.notices)


async def test_doubled_ids_between_files_fail_the_night_before_anything_is_sent(tmp_path: Path) -> None:
    house = NightHouse()
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name, [{"id": "same", "text": name}])
    record = (await night(house, tmp_path, job_of(dataset=["a.jsonl", "b.jsonl"]))).record
    assert (record.state, record.exit_code) == ("failed", 2)
    assert "duplicate_id" in record.sentence
    assert any(notice.endswith("b.jsonl:1: duplicate_id") for notice in record.notices)
    assert any("is the id of" in note for note in house.notes)
    assert not house.jobs_run


async def test_a_night_stopped_by_its_deadline_goes_on_where_it_stood(tmp_path: Path) -> None:
    house = NightHouse(cut=True)
    rows(tmp_path)
    record = (await night(house, tmp_path, job_of(deadline="1h"))).record
    assert (record.state, record.exit_code, record.cause) == ("stopped", 4, "deadline")
    assert "deadline_missed" in [event.kind for event in record.events]
    house.cut = False
    assert (await night(house, tmp_path, job_of(deadline="1h"))).record.state == "done"


async def test_a_deadline_that_has_passed_sends_nothing_unless_told(tmp_path: Path) -> None:
    house = NightHouse(cut=True)
    rows(tmp_path)
    await night(house, tmp_path, job_of(deadline="1h"))
    house.cut = False
    house.objects.advance(7200)
    jobs = len(house.jobs_run)
    record = (await night(house, tmp_path, job_of(deadline="1h"))).record
    assert (record.state, record.exit_code) == ("stopped", 4)
    assert "--no-deadline" in record.sentence
    assert len(house.jobs_run) == jobs
    assert (await night(house, tmp_path, job_of(deadline="1h"), no_deadline=True)).record.state == "done"


async def test_a_budget_that_allows_no_job_stops_the_night_with_4(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    record = (await night(house, tmp_path, job_of(budget_usd=0.000001))).record
    assert (record.state, record.exit_code, record.cause) == ("stopped", 4, "budget")
    assert [event.kind for event in record.events] == ["budget"]
    assert not house.jobs_run


async def test_a_night_that_was_stopped_says_what_to_type(tmp_path: Path) -> None:
    house = NightHouse(cut=True)
    rows(tmp_path)
    stopped = (await night(house, tmp_path, job_of(deadline="1h"))).record
    assert stopped.sentence.endswith(f"nightbatch night answers --date {DATE} --no-deadline")
    poor = (await night(NightHouse(), tmp_path, job_of(budget_usd=0.000001))).record
    assert f"nightbatch night answers --date {DATE} --budget USD" in poor.sentence


async def test_a_night_that_did_not_start_has_its_whole_time_when_it_is_called_later(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    job = job_of(deadline="1h", schedule={"cron": "0 1 * * *"})
    due = Night(START, START.date())
    await note_missing(file_of(tmp_path, job), Records(house.store), [due], house.now(), but=None, environ={})
    house.objects.advance(8 * 3600)
    record = (await night(house, tmp_path, job)).record
    assert (record.state, record.began) == ("done", START + timedelta(hours=8))
    assert [event.kind for event in record.events] == ["not_started", "success"]


async def test_a_record_that_was_damaged_is_no_night_to_compare_with(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path, 100)
    await night(house, tmp_path)
    await night(house, tmp_path, date=NEXT)
    house.objects.data[f"nights/answers/{NEXT}.json"] = b"{"
    rows(tmp_path, 10)
    record = (await night(house, tmp_path, date="2026-03-12")).record
    assert record.state == "asking"
    assert f"of {DATE}" in record.sentence
    with pytest.raises(Damaged, match="Delete it: the same night then finds its runs again"):
        await night(house, tmp_path, date=NEXT)


async def test_a_fault_of_the_program_is_told_as_well(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)

    def wrong(planned: Any) -> None:
        raise KeyError("text 3")

    house.on_complete = wrong
    async with receiver() as there:
        job = job_of(notify=[{"kind": "webhook", "url_env": "HOOK", "on": ["failure"]}])
        with pytest.raises(KeyError):
            await night(house, tmp_path, job, environ={"HOOK": there.url})
    record = await Records(house.store).get("answers", DATE)
    assert record is not None
    assert (record.state, record.exit_code, record.cause) == ("failed", 3, "fault")
    assert [body["event"] for body in there.bodies] == ["failure"]
    assert "KeyError" in there.bodies[0]["sentence"]
    assert "text 3" not in str(there.bodies)


async def test_an_older_record_never_comes_to_lie_over_a_newer_one(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    slow = True

    async def before(op: str, key: str) -> None:
        nonlocal slow
        if slow and op == "put" and key.endswith(f"/{DATE}.json"):
            slow = False
            await asyncio.sleep(0.05)  # the first write takes longer than the second

    store = MemoryStore(house.objects, mode="last-writer", dialect="conditional", hook=before)
    record = NightRecord(job="answers", date=DATE, kind="generate", stack="test", state="running", began=START)
    tonight = Tonight(file_of(tmp_path, job_of()), DATE, Call(), house, Records(store), record, None)
    await asyncio.gather(tonight.note_down(notices=("told nobody",)), tonight.note_down(state="done"))
    assert await Records(house.store).get("answers", DATE) == tonight.record
    assert (tonight.record.state, tonight.record.notices) == ("done", ("told nobody",))


async def test_a_run_that_is_too_long_for_its_deadline_is_told_at_once(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    record = (await night(house, tmp_path, job_of(deadline="1s"))).record
    assert "deadline_near" in [event.kind for event in record.events]


async def test_the_same_event_of_a_night_stands_once_however_often_it_is_called(tmp_path: Path) -> None:
    house = NightHouse()
    for _ in range(3):
        record = (await night(house, tmp_path)).record
    assert [event.key for event in record.events] == ["failure:input"]


async def test_a_second_scheduler_leaves_the_night_to_the_first_and_says_who_does_it(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    inside = asyncio.Event()
    go_on = asyncio.Event()
    plan = house.plan

    async def slow(request: Any, *, dry_run: bool = False) -> Any:
        inside.set()
        await go_on.wait()
        return await plan(request, dry_run=dry_run)

    house.plan = slow  # type: ignore[method-assign]
    first = asyncio.create_task(night(house, tmp_path))
    await inside.wait()
    with pytest.raises(Held, match=r"the night of 2026-03-10 is being done by .* since 2026-03-10 01:30 UTC"):
        await night(house, tmp_path)
    with pytest.raises(Held, match=r"the night of 2026-03-10 is being done"):
        await night(house, tmp_path, date=NEXT)
    go_on.set()
    assert (await first).record.state == "done"
    assert len(house.jobs_run) == 1
    assert await holder(house.store, "nights/answers/lease.json") is None


async def test_two_that_begin_at_once_on_any_store_pay_once(tmp_path: Path) -> None:
    for mode in ("conditional", "last-writer"):
        house = NightHouse(mode=mode)
        rows(tmp_path)
        done = await asyncio.gather(night(house, tmp_path), night(house, tmp_path), return_exceptions=True)
        assert sum(isinstance(one, Held) for one in done) <= 1
        assert any(isinstance(one, Ended) and one.record.state == "done" for one in done)
        assert len(house.jobs_run) == 1


async def test_the_lease_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    old = START - timedelta(seconds=91)
    dead = LeaseFile(job="answers", date=DATE, holder="x", who="another machine", since=old, beat=old)
    await house.store.put("nights/answers/lease.json", msgspec.json.encode(dead))
    assert (await night(house, tmp_path)).record.state == "done"


def a_dead_process() -> int:
    gone = subprocess.Popen(["true"])
    gone.wait()
    return gone.pid


async def test_the_lease_of_a_process_of_this_machine_that_is_gone_is_taken_over_at_once(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    young = LeaseFile(job="answers", date=DATE, holder="x", who="me", machine=this_machine(), pid=a_dead_process(), since=START, beat=START)
    await house.store.put("nights/answers/lease.json", msgspec.json.encode(young))
    assert (await night(house, tmp_path)).record.state == "done"
    living = msgspec.structs.replace(young, pid=os.getpid())
    await house.store.put("nights/answers/lease.json", msgspec.json.encode(living))
    with pytest.raises(Held):
        await night(house, tmp_path, date=NEXT)
    odd = msgspec.structs.replace(young, pid=1 << 62)  # no number of a process: whoever wrote it is not known to be gone
    await house.store.put("nights/answers/lease.json", msgspec.json.encode(odd))
    with pytest.raises(Held):
        await night(house, tmp_path, date=NEXT)


async def test_a_holder_that_beats_is_alive_and_one_that_is_silent_has_given_up() -> None:
    house = NightHouse()
    store = house.store
    young = LeaseFile(job="answers", date=DATE, holder="x", who="another machine", since=START, beat=START)

    async def looking(seconds: float) -> None:
        house.objects.advance(seconds)

    async def beating(seconds: float) -> None:
        house.objects.advance(seconds)
        await store.put("lease.json", msgspec.json.encode(msgspec.structs.replace(young, beat=house.now())))

    assert await given_up(store, "lease.json", sleep=looking)  # nobody holds it
    await store.put("lease.json", msgspec.json.encode(young))
    assert not await given_up(store, "lease.json", sleep=beating)
    assert await given_up(store, "lease.json", sleep=looking)
    assert house.now() - START > timedelta(seconds=90)


async def test_a_lease_from_the_future_of_a_clock_that_was_set_back_holds_nobody(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    ahead = START + timedelta(days=1)
    odd = LeaseFile(job="answers", date=DATE, holder="x", who="another machine", since=ahead, beat=ahead)
    await house.store.put("nights/answers/lease.json", msgspec.json.encode(odd))
    assert (await night(house, tmp_path)).record.state == "done"


async def test_an_interrupted_night_says_so_and_goes_on(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    plan = house.plan

    async def never(request: Any, *, dry_run: bool = False) -> Any:
        await asyncio.Event().wait()

    house.plan = never  # type: ignore[method-assign]
    task = asyncio.create_task(night(house, tmp_path))
    while (await Records(house.store).get("answers", DATE)) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await Records(house.store).get("answers", DATE)
    assert record is not None
    assert (record.state, record.exit_code, record.cause) == ("stopped", 130, "interrupted")
    house.plan = plan  # type: ignore[method-assign]
    assert (await night(house, tmp_path)).record.state == "done"


async def test_a_full_disk_is_one_sentence_and_the_night_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = NightHouse()
    rows(tmp_path)

    def full(out: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nights.night.make_folder", full)
    record = (await night(house, tmp_path)).record
    assert (record.state, record.exit_code) == ("failed", 3)
    assert record.sentence == "this machine: No space left on device. When that is mended, the same command goes on."
    monkeypatch.undo()
    assert (await night(house, tmp_path)).record.state == "done"


async def test_a_store_that_is_away_is_an_error_and_no_record(tmp_path: Path) -> None:
    house = NightHouse()

    class Away:
        def __getattr__(self, name: str) -> Any:
            raise StoreUnavailable("the store does not answer.", where="s3://memory")

    with pytest.raises(StoreUnavailable):
        await run_night(file_of(tmp_path, job_of()), DATE, _With(house, Away()))


class _With:
    def __init__(self, house: NightHouse, store: Any) -> None:
        self._house, self.store = house, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house, name)


async def test_what_changed_since_the_last_good_night_is_said(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    await night(house, tmp_path)
    cheaper = msgspec.structs.replace(house.stack.facts.endpoints[1], image="worker@sha256:" + "b" * 64, usd_per_second=0.0001)
    facts = msgspec.structs.replace(house.stack.facts, endpoints=(house.stack.facts.endpoints[0], cheaper))
    house.stack = type(house.stack)(facts, house.stack.secrets)
    rows(tmp_path, text="another {n}")
    house.vllm = "0.26.0"
    changed = job_of(column=None, prompt="Say {text}.", params={"max_tokens": 5})
    record = (await night(house, tmp_path, changed, date=NEXT)).record
    assert "vllm: 0.25.1 -> 0.26.0" in record.changed
    assert any(line.startswith("text: column text -> prompt ") for line in record.changed)
    assert "usd_per_second: 0.00019 -> 0.0001" in record.changed
    assert any(line.startswith("dataset: ") for line in record.changed)


# --- what follows a night ------------------------------------------------------------------------------------------------------------


async def test_a_night_leaves_its_page_and_tells_who_wants_to_hear(tmp_path: Path) -> None:
    house = NightHouse(says=lambda text: RowError(code="too_long", message="no") if text == "text 3" else "yes")
    rows(tmp_path)
    async with receiver() as there:
        job = job_of(notify=[{"kind": "webhook", "url_env": "HOOK", "on": ["rows_failed"]}])
        record = (await night(house, tmp_path, job, environ={"HOOK": there.url})).record
        await night(house, tmp_path, job, environ={"HOOK": there.url})
    assert record.state == "done"
    assert [body["event"] for body in there.bodies] == ["rows_failed"]
    assert there.bodies[0]["failures"] == [{"code": "too_long", "rows": 1}]
    page = (await house.store.get(f"nights/answers/{DATE}.html")).data.decode()
    assert page.startswith(("<!DOCTYPE html>", "<!doctype html>"))


async def test_an_unreachable_notifier_fails_no_night_and_the_record_says_so(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    job = job_of(notify=[{"kind": "webhook", "url_env": "HOOK", "on": ["success"]}], schedule={"cron": "0 2 * * *", "ping_url_env": "PING"})
    record = (await night(house, tmp_path, job, environ={})).record
    assert (record.state, record.exit_code) == ("done", 0)
    assert "webhook ($HOOK) could not be told of success: the variable HOOK is not set" in record.notices
    assert "the dead man's switch was not told: the variable PING is not set" in record.notices


async def test_a_night_that_is_done_is_told_to_the_dead_mans_switch_and_one_that_failed_is_not(tmp_path: Path) -> None:
    house = NightHouse()
    job = job_of(schedule={"cron": "0 2 * * *", "ping_url_env": "PING"})
    async with receiver() as there:
        await night(house, tmp_path, job, environ={"PING": there.url})
        assert not there.heard
        rows(tmp_path)
        await night(house, tmp_path, job, environ={"PING": there.url})
    assert len(there.heard) == 1


def progress(done: int, elapsed_s: float, rows: int = 100) -> Progress:
    return Progress(
        rows=rows, ok=done, failed=0, shards={}, attempts=1, workers=None, worker_seconds=1.0, usd_estimated=0.0, usd_reserved=0.0,
        elapsed_s=elapsed_s,
    )  # fmt: skip


def test_when_all_rows_will_be_done_is_foretold_from_the_speed_so_far() -> None:
    assert time_needed(progress(5, 60)) is None
    assert time_needed(progress(25, 60)) == pytest.approx(180)
    assert time_needed(progress(100, 60)) == 0
    assert time_needed(progress(0, 60, rows=0)) is None
    assert time_needed(progress(75, 60), brought=50) == pytest.approx(60)
    assert time_needed(progress(50, 60), brought=50) is None


async def test_what_an_earlier_call_computed_is_no_measure_of_speed(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    complete = house.complete

    async def resumed(planned: Any, how: Any, hear: Any = None) -> Any:
        hear(progress(80, 1))  # 80 rows are there from before
        hear(progress(82, 900))  # 15 minutes for 2 rows; the deadline is in 30, and 18 are left
        hear(progress(83, 1200))
        return await complete(planned, how, hear)

    house.complete = resumed  # type: ignore[method-assign]
    record = (await night(house, tmp_path, job_of(deadline="30m"))).record
    assert "deadline_near" in [event.kind for event in record.events]


async def test_a_deadline_that_will_be_missed_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    async with receiver() as there:
        told_early: list[int] = []
        complete = house.complete

        async def slow(planned: Any, how: Any, hear: Any = None) -> Any:
            hear(progress(20, 600))  # 40 minutes more, and the deadline is in 30
            while not there.heard:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            told_early.append(len(there.heard))
            hear(progress(30, 900))
            return await complete(planned, how, hear)

        house.complete = slow  # type: ignore[method-assign]
        job = job_of(deadline="30m", notify=[{"kind": "webhook", "url_env": "HOOK", "on": ["deadline_near"]}])
        record = (await night(house, tmp_path, job, environ={"HOOK": there.url})).record
    assert told_early == [1]
    assert len(there.heard) == 1
    assert record.state == "done"
    assert "20 of 100 rows are done after 10 min; the others need about 40 min more" in there.bodies[0]["sentence"]
