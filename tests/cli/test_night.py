"""`nightbatch night` and `jobs` over a stack in memory: what a scheduler's call does, what a person reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import cli.night
from cli.app import app
from cli.night import job_lines
from contract.errors import StoreUnavailable
from contract.memory import MemoryStore
from nights.agenda import standing
from nights.jobs.files import find_job
from nights.lease import LeaseFile
from nights.record import NightRecord, Records
from tests.nights.kit import START, NightHouse
from tests.pipelines.planning import write_jsonl

JOB: dict[str, Any] = {
    "version": 1, "kind": "generate", "dataset": "rows.jsonl", "model": "smollm2", "stack": "test", "id_column": "id", "column": "text",
    "out": "out-{date}.jsonl", "schedule": {"cron": "0 1 * * *", "timezone": "UTC"},
}  # fmt: skip


class Desk:
    """A project, a stack in memory whose time a test sets, and the command line."""

    def __init__(self, folder: Path, house: NightHouse) -> None:
        self.folder, self.house = folder, house
        (folder / "jobs").mkdir()
        write_jsonl(folder / "rows.jsonl", ({"id": f"r{n}", "text": f"text {n}"} for n in range(3)))
        self.job()

    def job(self, **more: Any) -> None:
        (self.folder / "jobs" / "answers.yaml").write_text(json.dumps({**JOB, **more}))

    def at(self, text: str) -> None:
        self.house.objects.instant = datetime.fromisoformat(text).replace(tzinfo=UTC)

    def type(self, *words: str, code: int = 0) -> str:
        found = CliRunner().invoke(app, [*words, "--jobs", str(self.folder / "jobs")])
        assert found.exit_code == code, found.output
        return found.output

    @property
    def dates(self) -> list[str]:
        names = (key.removeprefix("nights/answers/") for key in self.house.objects.data if key.startswith("nights/answers/20"))
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    house = NightHouse()

    @asynccontextmanager
    async def here(*_: Any) -> AsyncIterator[Any]:
        yield house.stack, house

    monkeypatch.setattr(cli.night, "runner_for", here)
    return Desk(tmp_path, house)


def test_a_scheduler_that_calls_every_hour_does_a_night_once(desk: Desk) -> None:
    desk.at("2026-03-10T01:30")
    assert "done" in desk.type("night", "answers", "--if-due")
    jobs = len(desk.house.jobs_run)
    assert "was begun already" in desk.type("night", "answers", "--if-due")
    assert len(desk.house.jobs_run) == jobs
    assert desk.dates == ["2026-03-10"]


def test_before_its_time_nothing_is_begun(desk: Desk) -> None:
    desk.job(schedule={**JOB["schedule"], "max_delay": "2h"})
    desk.at("2026-03-10T00:30")
    assert "was missed" in desk.type("night", "answers", "--if-due")
    assert desk.dates == []


def test_a_failed_night_is_tried_again_by_the_next_call_and_one_that_asks_is_not(desk: Desk) -> None:
    desk.at("2026-03-10T01:30")
    (desk.folder / "rows.jsonl").rename(desk.folder / "away.jsonl")
    desk.type("night", "answers", "--if-due", code=2)
    (desk.folder / "away.jsonl").rename(desk.folder / "rows.jsonl")
    assert "done" in desk.type("night", "answers", "--if-due")
    write_jsonl(desk.folder / "rows.jsonl", [{"id": "r1", "text": "one"}])
    desk.at("2026-03-11T01:30")
    assert "--accept shrink" in desk.type("night", "answers", "--if-due", code=1)
    assert "was begun already" in desk.type("night", "answers", "--if-due")


def test_a_scheduler_that_meets_its_own_long_night_leaves_it_and_takes_over_a_dead_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.at("2026-03-10T01:30")
    now = desk.house.now()
    lease = LeaseFile(job="answers", date="2026-03-10", holder="x", who="another machine", since=now, beat=now)
    desk.house.objects.write("nights/answers/lease.json", msgspec.json.encode(lease))
    lives = True

    async def looked(*_: Any) -> bool:
        if not lives:
            desk.house.objects.data.pop("nights/answers/lease.json")
        return not lives

    monkeypatch.setattr("nights.lease.given_up", looked)
    assert "is being done by another machine" in desk.type("night", "answers", "--if-due")
    assert "is being done by another machine" in desk.type("night", "answers", code=3)
    lives = False
    assert "done" in desk.type("night", "answers", "--if-due")


def test_nights_that_did_not_start_are_noted_by_the_next_call(desk: Desk) -> None:
    desk.at("2026-03-10T01:30")
    desk.type("night", "answers", "--if-due")
    desk.at("2026-03-13T01:30")
    desk.type("night", "answers", "--if-due")
    assert desk.dates == ["2026-03-10", "2026-03-11", "2026-03-12", "2026-03-13"]
    record = json.loads(desk.house.objects.data["nights/answers/2026-03-11.json"])
    assert (record["cause"], record["events"][0]["kind"]) == ("not_started", "not_started")
    assert "the night of 2026-03-11 did not start; it was due 2026-03-11 01:00 UTC." in record["sentence"]


def test_a_look_that_begins_nothing_says_what_did_not_start_and_whom_it_could_not_tell(desk: Desk) -> None:
    notify = [{"kind": "webhook", "url_env": "HOOK_OF_NOBODY", "on": ["not_started"]}]
    desk.job(schedule={**JOB["schedule"], "missed": "skip"}, notify=notify)
    desk.at("2026-03-10T01:30")
    desk.type("night", "answers", "--if-due")
    desk.at("2026-03-11T06:00")
    said = desk.type("night", "answers", "--if-due")
    assert "the night of 2026-03-11 did not start" in said
    assert "webhook ($HOOK_OF_NOBODY) could not be told of not_started: the variable HOOK_OF_NOBODY is not set" in said


def test_a_damaged_record_of_an_earlier_night_stops_no_night(desk: Desk) -> None:
    desk.at("2026-03-10T01:30")
    desk.type("night", "answers", "--if-due")
    desk.house.objects.data["nights/answers/2026-03-10.json"] = b"[]"
    desk.at("2026-03-11T01:30")
    assert "done" in desk.type("night", "answers", "--if-due")


def test_a_date_that_is_none_and_a_job_that_is_not_there(desk: Desk) -> None:
    assert "is not a date" in desk.type("night", "answers", "--date", "2026-3-1", code=2)
    desk.at("2026-03-10T01:30")
    assert "is later than tomorrow" in desk.type("night", "answers", "--date", "2027-03-10", code=2)
    assert desk.dates == []
    assert "Did you mean answers?" in desk.type("night", "answer", code=2)
    assert "exclude each other" in desk.type("night", "answers", "--date", "2026-03-10", "--if-due", code=2)


def test_a_dry_run_says_what_it_would_cost_and_does_nothing(desk: Desk) -> None:
    desk.at("2026-03-10T01:30")
    said = desk.type("night", "answers", "--dry-run")
    assert "3 in the dataset" in said
    assert "cost " in said
    assert said.rstrip().endswith("nothing was stored and nothing was sent")
    assert desk.dates == []
    record = json.loads(desk.type("night", "answers", "--dry-run", "--json"))
    assert (record["state"], record["rows"], record["to_compute"]) == ("dry-run", 3, 3)


def test_a_dry_run_says_that_the_night_would_ask(desk: Desk) -> None:
    desk.at("2026-03-10T01:30")
    desk.type("night", "answers")
    write_jsonl(desk.folder / "rows.jsonl", [{"id": "r1", "text": "one"}])
    desk.at("2026-03-11T01:30")
    assert "it would stop and ask: the dataset has 1 row," in desk.type("night", "answers", "--dry-run", code=1)
    assert "would stop" not in desk.type("night", "answers", "--dry-run", "--accept", "shrink")


def test_a_night_is_one_json_object(desk: Desk) -> None:
    desk.at("2026-03-10T01:30")
    record = json.loads(desk.type("night", "answers", "--json"))
    assert (record["state"], record["exit_code"], record["rows"], record["repeated"]) == ("done", 0, 3, False)
    assert "columns" not in record["facts"]
    assert json.loads(desk.type("night", "answers", "--json"))["repeated"]


async def test_the_list_says_how_each_job_stands(desk: Desk) -> None:
    desk.at("2026-03-12T12:00")
    records = Records(desk.house.store)
    began = START
    record = NightRecord(
        job="answers", date="2026-03-10", kind="generate", stack="test", state="done", exit_code=1, sentence="2 of 3 rows failed",
        began=began, ended=began + timedelta(minutes=3), seconds=180, sent=3, ok=1, failed=2, usd_estimated=0.25,
    )  # fmt: skip
    await records.put(record)
    file = find_job(desk.folder / "jobs", "answers")
    lines = job_lines([cli.night.Listed(file, await standing(file, records, desk.house.now()))])
    assert lines[1].endswith("2026-03-10 done (exit code 1), 3 rows computed, 2 failed, 3 min 00 s, $0.2500: 2 of 3 rows failed")
    assert lines[2].endswith("NOT STARTED  2026-03-11, 2026-03-12")
    assert lines[3].endswith("2026-03-13 01:00 UTC")
    desk.house.objects.data[records.key("answers", "2026-03-10")] = b"{}"
    damaged = job_lines([cli.night.Listed(file, await standing(file, records, desk.house.now()))])
    assert "last  not known: s3://" in damaged[1]


# --- many jobs, and stores that do not answer ----------------------------------------------------------------------------------------


def many(desk: Desk, monkeypatch: pytest.MonkeyPatch, store: MemoryStore, count: int = 500) -> list[dict[str, Any]]:
    """`jobs --json` over that many job files."""
    for number in range(count - 1):
        (desk.folder / "jobs" / f"job-{number}.yaml").write_text(json.dumps({**JOB, "out": f"out-{number}-{{date}}.jsonl"}))

    async def stack(*_: Any) -> Any:
        return desk.house.stack

    monkeypatch.setattr(cli.night, "find_stack", stack)
    monkeypatch.setattr(cli.night, "reading", lambda stack: store)
    found: list[dict[str, Any]] = json.loads(desk.type("jobs", "--json"))["jobs"]
    return found


def test_a_store_that_does_not_answer_is_waited_for_once_and_not_for_each_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def away(op: str, key: str) -> None:
        asked.append(key)
        raise StoreUnavailable("the store does not answer.", where="s3://memory")

    found = many(desk, monkeypatch, MemoryStore(desk.house.objects, hook=away))
    assert len(asked) == 1
    assert len(found) == 500
    assert all("does not answer" in one["problem"] for one in found)


def test_a_store_that_goes_away_in_the_middle_is_not_asked_for_the_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def away(op: str, key: str) -> None:
        asked.append(key)
        if len(asked) > 1:
            raise StoreUnavailable("the store does not answer.", where="s3://memory")

    found = many(desk, monkeypatch, MemoryStore(desk.house.objects, hook=away))
    assert len(asked) <= 1 + cli.night.AT_ONCE
    assert all(one["problem"] for one in found)


def test_one_damaged_record_hides_no_other_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.at("2026-03-10T01:30")
    desk.type("night", "answers")
    desk.house.objects.data["nights/job-1/2026-03-10.json"] = b"damaged"
    found = {one["job"]: one for one in many(desk, monkeypatch, desk.house.store, 5)}
    assert "damaged" in found["job-1"]["problem"]
    assert found["answers"]["last"]["state"] == "done"
    assert [one["problem"] for name, one in found.items() if name != "job-1"] == [None] * 4


async def test_the_next_night_is_the_first_that_nobody_did_ahead_of_its_time(desk: Desk) -> None:
    desk.at("2026-03-12T12:00")
    records = Records(desk.house.store)
    await records.put(NightRecord(job="answers", date="2026-03-13", kind="generate", stack="test", state="done", began=START))
    stands = await standing(find_job(desk.folder / "jobs", "answers"), records, desk.house.now())
    assert stands.look is not None
    assert stands.look.next is not None
    assert stands.look.next.date.isoformat() == "2026-03-14"
