"""When a night is due: across changes of the clock, leap days, and clocks that jump."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nights.jobs.model import Schedule
from nights.jobs.schedule import (
    Night,
    Timing,
    deadline_at,
    due_between,
    dues,
    last_due,
    lasting,
    look,
    next_due,
    night_on,
    unstarted,
)

BERLIN, NEW_YORK, KOLKATA, APIA, LORD_HOWE = (
    ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe")
)


def timing(cron: str = "30 2 * * *", zone: ZoneInfo = BERLIN, **more: object) -> Timing:
    return Timing(cron, zone, **more)  # type: ignore[arg-type]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- the nights of a schedule --------------------------------------------------------------------------------------------------------


def test_a_night_is_due_at_its_local_time_and_has_its_local_date() -> None:
    assert next_due(timing(), at("2026-01-10 12:00")) == Night(at("2026-01-11 01:30"), date(2026, 1, 11))
    assert next_due(timing(), at("2026-07-10 12:00")) == Night(at("2026-07-11 00:30"), date(2026, 7, 11))
    assert next_due(timing("30 22 * * *", NEW_YORK), at("2026-01-10 12:00")) == Night(at("2026-01-11 03:30"), date(2026, 1, 10))
    assert next_due(timing("0 2 * * *", KOLKATA), at("2026-01-10 12:00")) == Night(at("2026-01-10 20:30"), date(2026, 1, 11))


def test_the_moment_that_it_is_due_belongs_to_the_night_and_the_next_one_is_later() -> None:
    moment = at("2026-01-11 01:30")
    assert last_due(timing(), moment) == Night(moment, date(2026, 1, 11))
    assert last_due(timing(), moment - timedelta(microseconds=1)) == Night(at("2026-01-10 01:30"), date(2026, 1, 10))
    assert next_due(timing(), moment) == Night(at("2026-01-12 01:30"), date(2026, 1, 12))


def test_a_time_that_the_clock_leaves_out_is_made_up_for_the_same_night() -> None:
    """On 29 March 2026 Berlin goes from 02:00 to 03:00."""
    found = due_between(timing(), at("2026-03-28 00:00"), at("2026-03-31 00:00"))
    assert found == (
        Night(at("2026-03-28 01:30"), date(2026, 3, 28)),
        Night(at("2026-03-29 01:00"), date(2026, 3, 29)),
        Night(at("2026-03-30 00:30"), date(2026, 3, 30)),
    )


def test_a_time_that_comes_twice_counts_once_and_the_first_time() -> None:
    """On 25 October 2026 Berlin has 02:30 twice: at 00:30 and at 01:30 UTC."""
    first, second = at("2026-10-25 00:30"), at("2026-10-25 01:30")
    assert [night.due for night in due_between(timing(), at("2026-10-25 00:00"), at("2026-10-25 12:00"))] == [first]
    between = first + timedelta(minutes=50)
    assert last_due(timing(), between) == Night(first, date(2026, 10, 25))
    assert next_due(timing(), between) == Night(at("2026-10-26 01:30"), date(2026, 10, 26))
    assert last_due(timing(), second + timedelta(minutes=1)) == Night(first, date(2026, 10, 25))


def test_a_day_that_a_zone_left_out_has_no_night_and_the_next_day_has_one() -> None:
    """Apia went from 29 to 31 December 2011."""
    found = due_between(timing(zone=APIA), at("2011-12-29 00:00"), at("2012-01-01 01:00"))
    assert [night.date.isoformat() for night in found] == ["2011-12-29", "2011-12-31", "2012-01-01"]
    assert night_on(timing(zone=APIA), date(2011, 12, 30)) is None


def test_leap_days_are_found_in_both_directions_however_far_away() -> None:
    leap = timing("0 2 29 2 *", ZoneInfo("UTC"))
    assert next_due(leap, at("2024-03-01 00:00")) == Night(at("2028-02-29 02:00"), date(2028, 2, 29))
    assert last_due(leap, at("2028-02-29 01:59")) == Night(at("2024-02-29 02:00"), date(2024, 2, 29))
    assert last_due(leap, at("2104-02-29 01:59")) == Night(at("2096-02-29 02:00"), date(2096, 2, 29))


def test_days_of_week_and_of_month_are_those_of_the_zone() -> None:
    monday = timing("30 0 * * 1", BERLIN)  # 23:30 UTC on Sunday
    assert next_due(monday, at("2026-01-04 12:00")) == Night(at("2026-01-04 23:30"), date(2026, 1, 5))
    either = timing("0 2 1 * 1", ZoneInfo("UTC"))  # the first of the month, and Mondays, as every cron has it
    dates = [night.date.day for night in due_between(either, at("2026-09-01 00:00"), at("2026-09-15 00:00"))]
    assert dates == [1, 7, 14]


def test_night_on_says_what_a_date_has() -> None:
    assert night_on(timing(), date(2026, 3, 29)) == Night(at("2026-03-29 01:00"), date(2026, 3, 29))
    assert night_on(timing("0 2 * * 1"), date(2026, 1, 6)) is None


def test_only_the_latest_nights_are_kept_of_a_long_time() -> None:
    found = due_between(timing(), at("2020-01-01 00:00"), at("2026-01-01 00:00"), most=3)
    assert [night.date.isoformat() for night in found] == ["2025-12-29", "2025-12-30", "2025-12-31"]


ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca",
     "America/Sao_Paulo", "Asia/Beirut", "Pacific/Kiritimati", "Etc/GMT+12", "Antarctica/Troll", "Africa/Cairo", "America/Havana"]
)  # fmt: skip
CRONS = st.builds(
    "{} {} {} * {}".format,
    st.integers(0, 59), st.integers(0, 23),
    st.sampled_from(["*", "*", "1", "29,30,31", "*/2", "L"]), st.sampled_from(["*", "*", "1-5", "7", "MON#2"]),
)  # fmt: skip
MOMENTS = st.datetimes(datetime(2005, 1, 1), datetime(2060, 1, 1)).map(lambda one: one.replace(tzinfo=UTC))


@settings(max_examples=150, deadline=None)
@given(cron=CRONS, zone=ZONES, now=MOMENTS)
def test_nights_rise_have_one_date_each_and_the_last_and_the_next_are_neighbours(cron: str, zone: str, now: datetime) -> None:
    plan = timing(cron, ZoneInfo(zone))
    last, following = last_due(plan, now), next_due(plan, now)
    assert last is not None
    assert following is not None
    assert last.due <= now < following.due
    assert next_due(plan, last.due) == following
    assert last_due(plan, following.due - timedelta(microseconds=1)) == last
    assert last_due(plan, following.due) == following
    stream = dues(plan, now)
    several = [next(stream) for _ in range(12)]
    assert all(one.due < two.due and one.date < two.date for one, two in pairwise(several))
    for night in several:
        assert night.date == night.due.astimezone(plan.zone).date()
        assert night_on(plan, night.date) == night


@settings(max_examples=100, deadline=None)
@given(zone=ZONES, hour=st.integers(0, 23), minute=st.integers(0, 59), now=MOMENTS)
def test_a_daily_schedule_has_a_night_on_every_date_that_the_zone_has(zone: str, hour: int, minute: int, now: datetime) -> None:
    plan = timing(f"{minute} {hour} * * *", ZoneInfo(zone))
    found = due_between(plan, now, now + timedelta(days=20), most=100)
    dates = [night.date for night in found]
    gaps = {one + timedelta(days=1) for one, two in pairwise(dates) if two - one != timedelta(days=1)}
    assert gaps <= {date(2011, 12, 30)}
    assert 19 <= len(found) <= 21


@settings(max_examples=150, deadline=None)
@given(
    zone=ZONES, cron=CRONS, start=MOMENTS, steps=st.lists(st.integers(-3 * 86400, 3 * 86400), min_size=1, max_size=25), skip=st.booleans()
)
def test_whatever_the_clock_does_a_night_begins_once_and_dates_rise(
    zone: str, cron: str, start: datetime, steps: list[int], skip: bool
) -> None:
    plan = timing(cron, ZoneInfo(zone), missed="skip" if skip else "run")
    held: list[str] = []
    now = start
    for step in steps:
        now += timedelta(seconds=step)
        seen = look(plan, now, held)
        if seen.state == "due":
            assert seen.night is not None
            assert seen.night.due <= now
            held.append(seen.night.date.isoformat())
    assert held == sorted(set(held))


# --- what is to be done now ----------------------------------------------------------------------------------------------------------


def test_a_night_is_begun_once_it_is_due_and_only_once() -> None:
    seen = look(timing(), at("2026-01-11 01:31"), ["2026-01-10"])
    assert (seen.state, seen.night) == ("due", Night(at("2026-01-11 01:30"), date(2026, 1, 11)))
    assert look(timing(), at("2026-01-11 01:31"), ["2026-01-10", "2026-01-11"]).state == "held"
    early = look(timing(), at("2026-01-11 01:29"), ["2026-01-10"])
    assert early.state == "held"
    assert early.sentence == "The night of 2026-01-10 was begun already. The next one is due 2026-01-11 02:30 CET."


def test_a_missed_night_is_made_up_for_or_left_out_as_the_job_says() -> None:
    late = at("2026-01-11 13:00")
    assert look(timing(), late, []).state == "due"
    skipped = look(timing(missed="skip"), late, [])
    assert skipped.state == "missed"
    assert skipped.sentence == (
        "The night of 2026-01-11 was missed: it was due 2026-01-11 02:30 CET, 11 hours ago. To do it all the same: --date 2026-01-11. "
        "The next one is due 2026-01-12 02:30 CET."
    )
    assert look(timing(missed="skip"), at("2026-01-11 03:29"), []).state == "due"
    assert look(timing(max_delay=timedelta(hours=3)), late, []).state == "missed"
    assert look(timing(missed="skip", max_delay=timedelta(hours=12)), late, []).state == "due"


def test_of_several_missed_nights_only_the_latest_is_made_up_for() -> None:
    seen = look(timing(), at("2026-01-20 12:00"), ["2026-01-10"])
    assert seen.night is not None
    assert seen.night.date == date(2026, 1, 20)


def test_a_clock_that_went_back_begins_no_older_night() -> None:
    seen = look(timing(), at("2026-01-09 12:00"), ["2026-01-11"])
    assert seen.state == "overtaken"
    assert "a clock went back" in seen.sentence


def test_a_clock_at_the_beginning_of_time_begins_nothing() -> None:
    seen = look(timing(), datetime(2, 1, 1, tzinfo=UTC), [])
    assert (seen.state, seen.night) == ("not yet", None)
    assert look(timing(), datetime(1970, 1, 1, tzinfo=UTC), ["2026-01-11"]).state == "overtaken"


def test_nights_that_nobody_began_are_named_after_a_while() -> None:
    held = ["2026-01-05", "2026-01-08"]
    found = unstarted(timing(), at("2026-01-11 01:45"), held)
    assert [night.date.isoformat() for night in found] == ["2026-01-09", "2026-01-10"]
    found = unstarted(timing(), at("2026-01-11 03:00"), held)
    assert [night.date.isoformat() for night in found] == ["2026-01-09", "2026-01-10", "2026-01-11"]


def test_no_night_is_called_missed_where_none_was_ever_held_nor_by_one_from_the_future() -> None:
    assert unstarted(timing(), at("2026-01-11 12:00"), []) == ()
    assert unstarted(timing(), at("2026-01-11 12:00"), ["2031-01-01"]) == ()
    assert len(unstarted(timing(), at("2026-12-11 12:00"), ["2026-01-01"])) == 31


# --- deadlines -----------------------------------------------------------------------------------------------------------------------


def test_a_span_is_counted_from_the_beginning_of_the_night() -> None:
    assert deadline_at("6h", at("2026-03-29 00:00"), BERLIN) == at("2026-03-29 06:00")
    assert deadline_at(None, at("2026-03-29 00:00"), BERLIN) is None


@pytest.mark.parametrize(
    ("began", "end"),
    [
        ("2026-01-11 01:30", "2026-01-11 05:30"),
        ("2026-01-11 05:30", "2026-01-12 05:30"),  # at that very moment: the next day's
        ("2026-01-10 22:00", "2026-01-11 05:30"),
        ("2026-03-28 20:00", "2026-03-29 04:30"),  # summer time has begun in between
    ],
)
def test_a_time_of_day_is_the_first_one_after_the_beginning(began: str, end: str) -> None:
    assert deadline_at("06:30", at(began), BERLIN) == at(end)


@settings(max_examples=100, deadline=None)
@given(zone=ZONES, began=MOMENTS, hour=st.integers(0, 23), minute=st.integers(0, 59))
def test_a_deadline_lies_ahead_and_within_about_a_day(zone: str, began: datetime, hour: int, minute: int) -> None:
    end = deadline_at(f"{hour:02}:{minute:02}", began, ZoneInfo(zone))
    assert end is not None
    assert timedelta(0) < end - began <= timedelta(hours=26)


def test_a_timing_is_what_the_job_file_says() -> None:
    found = Timing.of(Schedule(cron="30  2 * * *", timezone="Europe/Berlin", missed="skip", max_delay="90m"))
    assert found == Timing("30 2 * * *", BERLIN, "skip", timedelta(minutes=90))
    assert Timing.of(Schedule(cron="30 2 * * *")).patience is None


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=59), "0 minutes"), (timedelta(minutes=1), "1 minute"), (timedelta(minutes=119), "119 minutes"),
        (timedelta(hours=2), "2 hours"), (timedelta(hours=47), "47 hours"), (timedelta(days=2), "2 days"),
        (timedelta(days=4000), "4,000 days"),
    ],
)  # fmt: skip
def test_spans_are_told_as_people_do(span: timedelta, text: str) -> None:
    assert lasting(span) == text
