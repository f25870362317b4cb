"""Nights over what lies about: outputs among inputs, folders that are files, records of no date, clocks far off."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from contract.errors import UsageError
from nights.agenda import date_of, due_of, standing
from nights.guard import check_out
from nights.jobs.schedule import Timing, next_due, night_on, unstarted
from nights.night import Call
from nights.preview import preview
from nights.record import Records
from tests.nights.kit import START, NightHouse
from tests.nights.test_embedding import Nights
from tests.nights.test_night import DATE, NEXT, file_of, job_of, night, rows
from tests.pipelines.planning import write_jsonl


@pytest.mark.parametrize(
    ("dataset", "out"),
    [
        ("data", "data/out.jsonl"),
        ("data", "data/deep/out.parquet"),
        ("data/", "other/../data/out.jsonl"),
        ("data/*.jsonl", "data/out.jsonl"),
        ("data/*.jsonl", "data/out.parquet"),  # its errors go into out.errors.jsonl
        ("data/**/*.parquet", "data/a/b/out.parquet"),
        ("s3://b/data/", "s3://b/data/out.jsonl"),
        ("s3://b/data", "s3://b/data/x/out.jsonl"),
        ("s3://b/*/part-?.jsonl", "s3://b/data/part-1.jsonl"),
    ],
)
def test_an_output_that_the_next_night_would_take_for_rows_is_refused(tmp_path: Path, dataset: str, out: str) -> None:
    here = [name if name.startswith("s3://") else str(tmp_path / name) for name in (dataset, out)]
    with pytest.raises(UsageError, match="the next night would take"):
        check_out([here[0]], here[1])


@pytest.mark.parametrize(
    ("dataset", "out"),
    [
        ("data", "data2/out.jsonl"),
        ("data", "data/_out/out.jsonl"),
        ("data/in.jsonl", "data/out.jsonl"),
        ("data/*.csv", "data/out.jsonl"),
        ("data/*.jsonl", "data/out/x.jsonl"),
        ("s3://b/data/", "s3://b/data2/out.jsonl"),
        ("s3://b/data/", "s3://c/data/out.jsonl"),
        ("s3://b/data/", "data/out.jsonl"),
    ],
)
def test_an_output_beside_the_dataset_is_none_of_it(tmp_path: Path, dataset: str, out: str) -> None:
    check_out(
        [name if name.startswith("s3://") else str(tmp_path / name) for name in (dataset,)], str(tmp_path / out) if ":" not in out else out
    )
    check_out([dataset], None)


async def test_a_night_that_would_write_into_its_dataset_sends_nothing(tmp_path: Path) -> None:
    house = NightHouse()
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "a.jsonl", [{"id": "1", "text": "x"}])
    os.symlink(tmp_path / "data", tmp_path / "link")
    for out in ("data/{date}.jsonl", "link/{date}.jsonl"):
        job = job_of(dataset=["data"], out=out)
        record = (await night(house, tmp_path, job)).record
        assert (record.state, record.exit_code, record.cause) == ("failed", 2, "input")
        assert "would take" in record.sentence
        with pytest.raises(UsageError, match="would take"):
            await preview(file_of(tmp_path, job), DATE, house)
    assert not house.jobs_run


@pytest.mark.parametrize("out", ["rows.jsonl/{date}.jsonl", "{date}" * 40 + "/o.jsonl", "/proc/nothing/o.jsonl"])
async def test_an_output_that_can_have_no_folder_is_an_input_error_that_names_it(tmp_path: Path, out: str) -> None:
    house = NightHouse()
    rows(tmp_path)
    record = (await night(house, tmp_path, job_of(out=out))).record
    assert (record.state, record.exit_code) == ("failed", 2)
    assert "output cannot be made" in record.sentence
    assert not house.jobs_run


# --- dates and clocks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin"])
def test_dates_at_the_ends_of_the_calendar_are_dates(tmp_path: Path, zone: str) -> None:
    file = file_of(tmp_path, job_of(schedule={"cron": "30 2 * * *", "timezone": zone}))
    timing = Timing("30 2 * * *", ZoneInfo(zone))
    for day in ("0001-01-01", "0001-01-02", "9999-12-30", "9999-12-31"):
        assert due_of(file, day) is None
        assert len(unstarted(timing, START, [day])) <= 31
    first = datetime(1, 1, 1, tzinfo=UTC)
    assert next_due(timing, first) is not None
    assert night_on(timing, datetime(2026, 3, 10).date()) is not None
    for now in (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)):
        assert date_of(file, now)


async def test_objects_beside_the_records_that_name_no_date_are_no_records(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    for name in ("2026-02-31.json", "2026-13-01.json", "0000-00-00.json", "9999-99-99.json", "2026-03-10.json.bak"):
        await house.store.put(f"nights/answers/{name}", b"not a record")
    file = file_of(tmp_path, job_of(schedule={"cron": "30 2 * * *"}))
    records = Records(house.store)
    assert await records.dates("answers") == ()
    assert (await standing(file, records, house.now())).last is None
    assert (await night(house, tmp_path)).record.state == "done"


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400), timedelta(seconds=-30)])
async def test_a_store_whose_clock_jumps_between_two_calls_costs_nothing_twice(tmp_path: Path, jump: timedelta) -> None:
    house = NightHouse(cut=True)
    rows(tmp_path)
    job = job_of(deadline="6h")
    assert (await night(house, tmp_path, job)).record.state == "stopped"
    house.cut = False
    house.objects.instant += jump
    record = (await night(house, tmp_path, job, no_deadline=True)).record
    assert (record.state, record.seconds >= 0) == ("done", True)
    again = (await night(house, tmp_path, job, date=NEXT)).record
    assert (again.state, again.sent) == ("done", 0)
    assert len(house.jobs_run) == 1


async def test_a_store_whose_clock_jumps_while_a_night_is_done_loses_no_lease_and_no_row(tmp_path: Path) -> None:
    house = NightHouse()
    rows(tmp_path)
    jumps = iter([timedelta(days=3), timedelta(days=-6), timedelta(hours=1)])
    plan = house.plan

    async def jumping(request: object, *, dry_run: bool = False) -> object:
        house.objects.instant += next(jumps)
        found = await plan(request, dry_run=dry_run)  # type: ignore[arg-type]
        house.objects.instant += next(jumps)
        return found

    house.plan = jumping  # type: ignore[assignment,method-assign]
    record = (await night(house, tmp_path)).record
    assert (record.state, record.ok, record.seconds) == ("done", 12, 0.0)
    house.plan = plan  # type: ignore[method-assign]
    assert (await night(house, tmp_path, date=NEXT)).record.state == "done"


# --- two repositories ----------------------------------------------------------------------------------------------------------------


async def test_a_job_of_another_repository_does_not_empty_a_space_unless_somebody_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    mine = Nights(tmp_path / "mine", canary={"rows": 0})
    await mine.night()
    theirs = Nights(tmp_path / "theirs", canary={"rows": 0}, name="others")
    theirs.house, theirs.home = mine.house, mine.home
    theirs.texts = {f"z{n}": f"other {n}" for n in range(38)}
    jobs = len(mine.house.jobs_run)
    record = await theirs.night()
    assert (record.state, record.exit_code) == ("asking", 1)
    assert "kept by another job, docs, which wrote its version 1 on 2026-03-10" in record.sentence
    assert "remove 40" in record.sentence
    assert "--accept writer" in record.sentence
    assert [doubt.accept for doubt in (await preview(theirs.file(), DATE, theirs.house, Call(home=theirs.home))).doubts] == ["writer"]
    assert len(mine.house.jobs_run) == jobs
    await mine.is_whole()
    assert (await theirs.night(call={"accept": frozenset({"writer"})})).state == "done"
    await theirs.is_whole()
    assert (await mine.night(NEXT)).state == "asking"


# --- datasets ------------------------------------------------------------------------------------------------------------------------

ODD = ("a\nb", "a\0b", "\U0001f600" * 200, "x" * 50_000, " ", "\u2028", "../..", "a'b\"", "\u00e9", "e\u0301")


async def test_a_space_keeps_ids_apart_however_odd_they_are(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 2})
    nights.texts = {name: f"text {number}" for number, name in enumerate(ODD)} | {"long": "word " * 200_000}
    assert (await nights.night()).exit_code == 0
    await nights.is_whole()
    nights.texts["a\nb"] = "changed"
    del nights.texts["a\0b"]
    second = await nights.night(NEXT)
    assert second.space is not None
    assert (second.space.changed, second.space.removed, second.space.unchanged) == (1, 1, 9)
    await nights.is_whole()


@pytest.mark.parametrize("out", ["out/{date}.jsonl", "out/{date}.parquet"])
async def test_a_dataset_that_changes_once_it_is_planned_changes_nothing_of_the_night(tmp_path: Path, out: str) -> None:
    house = NightHouse()
    rows(tmp_path, stars=1)
    house.on_complete = lambda planned: void(rows(tmp_path, 3, text="another {n}", stars=2))
    record = (await night(house, tmp_path, job_of(out=out))).record
    assert (record.state, record.rows, record.ok) == ("done", 12, 12)
    assert sorted(house.asked) == sorted(f"text {n}" for n in range(12))


async def test_a_space_whose_dataset_changes_while_it_is_computed_has_the_rows_that_were_compared(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 0})
    nights.house.on_complete = lambda planned: void(write_jsonl(tmp_path / "rows.jsonl", [{"id": "other", "text": "other"}]))
    assert (await nights.night()).state == "done"
    await nights.is_whole()


def void(_: object) -> None:
    return None
