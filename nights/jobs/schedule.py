"""nights/jobs: when a night is due, which date it has, and which ones did not happen. Pure: the clock and what was held are arguments.

A night's date is the local date, in the schedule's time zone, of the moment that it is due. Minute and hour of a schedule are one number
each, so there is at most one night a date, also when clocks change: a time of day that is left out that day is made up for at the first
minute that exists, one that comes twice counts the first time, and a day that a zone left out has no night. Nights that begin by themselves
have rising dates: whatever a clock does, none is begun once a later one was held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim

from nights.jobs.model import WALL_CLOCK, Schedule, parse_span

SKIP_AFTER: Final = timedelta(hours=2)
"""How late a night of a schedule with `missed: skip` may begin, where it says no `max_delay`: hosted schedulers are often an hour late."""
GRACE: Final = timedelta(hours=1)
"""How long after it was due a night that nobody began is not spoken of."""
MOST_MISSED: Final = 31
FIRST_DAY: Final = datetime(2, 1, 1, tzinfo=UTC)
"""Before it, and in the calendar's last year, there is no room for zones and days around it: no schedule has a night then."""
_WINDOWS: Final = (timedelta(days=2), timedelta(days=9), timedelta(days=64), timedelta(days=800), timedelta(days=366 * 51))
"""How far back is looked for the last night: a 29 February can be eight years ago."""


@dataclass(frozen=True)
class Timing:
    """A schedule as this module reckons with it."""

    cron: str
    zone: ZoneInfo
    missed: Literal["run", "skip"] = "run"
    max_delay: timedelta | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Timing:
        """What a job file says."""
        delay = parse_span(schedule.max_delay) if schedule.max_delay is not None else None
        return cls(schedule.cron, ZoneInfo(schedule.timezone), schedule.missed, delay)

    @property
    def patience(self) -> timedelta | None:
        """How late a night may begin; None: until the next one is due."""
        return self.max_delay if self.max_delay is not None or self.missed == "run" else SKIP_AFTER


@dataclass(frozen=True, order=True)
class Night:
    """One night of a schedule. `due`: in UTC."""

    due: datetime
    date: date


# --- the nights of a schedule --------------------------------------------------------------------------------------------------------


def dues(timing: Timing, after: datetime) -> Iterator[Night]:
    """Nights that are due later than `after`, in order; ends where the schedule never comes again."""
    after = max(after, FIRST_DAY)
    local = (after - timedelta(days=1)).astimezone(timing.zone)  # a whole day, so that no change of the clock is begun in its middle
    ticks = CronSim(timing.cron, local.replace(microsecond=0))
    minute, hour = (int(part) for part in timing.cron.split()[:2])
    last = after
    while True:
        try:
            tick = next(ticks)
        except (StopIteration, OverflowError, ValueError):  # 50 years without one; the calendar's end
            return
        if (tick.hour, tick.minute) < (hour, minute):
            continue  # put off to the next day, because the zone left out its own
        due = tick.astimezone(UTC)
        if due > last:
            last = due
            yield Night(due, tick.date())


def next_due(timing: Timing, after: datetime) -> Night | None:
    """The first night that is due later than `after`."""
    return next(dues(timing, after), None)


def last_due(timing: Timing, now: datetime) -> Night | None:
    """The latest night that is due by `now`."""
    longest = now - FIRST_DAY
    for window in (window for window in _WINDOWS if window < longest):
        found = None
        for night in dues(timing, now - window):
            if night.due > now:
                break
            found = night
        if found is not None:
            return found
    return None


def due_between(timing: Timing, after: datetime, until: datetime, most: int = MOST_MISSED) -> tuple[Night, ...]:
    """Nights that are due later than `after` and not later than `until`: the latest `most` of them, oldest first."""
    found: list[Night] = []
    for night in dues(timing, after):
        if night.due > until:
            break
        found.append(night)
        if len(found) > most:
            found.pop(0)
    return tuple(found)


def night_on(timing: Timing, day: date) -> Night | None:
    """The night of this date; None where the schedule has none then."""
    if not FIRST_DAY.year < day.year < date.max.year:
        return None
    begin = datetime.combine(day, time(), UTC) - timedelta(days=2)  # zones are up to 14 hours away
    return next((night for night in due_between(timing, begin, begin + timedelta(days=4)) if night.date == day), None)


# --- what is to be done now ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What a schedule says at one moment. `night`: the latest that is due; `sentence` is for a person.

    `due`: begin it. `held`: it was begun; if it is not over, going on is right. `missed`: it was not begun, and it is too late for it.
    `overtaken`: a later one was held already, so the clock was ahead then or is behind now. `not yet`: there was none so far.
    """

    state: Literal["due", "held", "missed", "overtaken", "not yet"]
    night: Night | None
    next: Night | None
    sentence: str


def look(timing: Timing, now: datetime, held: Collection[str]) -> Look:
    """Whether a night is to begin now. `held`: dates that have a record, whatever became of them."""
    last, following = last_due(timing, now), next_due(timing, now)
    then = "" if following is None else f" The next one is due {spoken(following.due, timing.zone)}."
    if last is None:
        return Look("not yet", None, following, f"No night is due yet.{then}")
    day, late = last.date.isoformat(), now - last.due
    anyway = f" To do it all the same: --date {day}."
    if day in held:
        return Look("held", last, following, f"The night of {day} was begun already.{then}")
    if later := max((one for one in held if one > day), default=None):
        why = f"The night of {day} is not begun, because that of {later} was held: a clock went back, or was ahead.{anyway}{then}"
        return Look("overtaken", last, following, why)
    if timing.patience is not None and late > timing.patience:
        return Look(
            "missed",
            last,
            following,
            f"The night of {day} was missed: it was due {spoken(last.due, timing.zone)}, {lasting(late)} ago.{anyway}{then}",
        )
    return Look("due", last, following, f"The night of {day} is due since {spoken(last.due, timing.zone)}.")


def unstarted(timing: Timing, now: datetime, held: Collection[str], grace: timedelta = GRACE) -> tuple[Night, ...]:
    """Nights after the latest one held that should have begun, more than `grace` ago: the latest `MOST_MISSED`, oldest first. Where none
    was ever held none is missed, because nobody knows since when there is a schedule."""
    past = [day for day in held if day <= (now + timedelta(days=1)).date().isoformat()]
    if not past:
        return ()
    latest = datetime.combine(date.fromisoformat(max(past)), time(), UTC)
    since = max(latest, now - _WINDOWS[-1]) - timedelta(days=2)  # zones are up to 14 hours away; a night of the year 1 is not counted from
    return tuple(night for night in due_between(timing, since, now - grace, MOST_MISSED + 4) if night.date.isoformat() > max(past))[
        -MOST_MISSED:
    ]


def deadline_at(deadline: str | None, began: datetime, zone: ZoneInfo) -> datetime | None:
    """When a night must end that began then, in UTC: a span after its beginning, or the first such time of day after it."""
    if deadline is None:
        return None
    if (span := parse_span(deadline)) is not None:
        return began.astimezone(UTC) + span
    found = WALL_CLOCK.fullmatch(deadline)
    assert found is not None  # the model has seen to it
    clock = time(int(found[1]), int(found[2]))
    first = began.astimezone(zone).date() - timedelta(days=1)
    days = (datetime.combine(first + timedelta(days=more), clock, zone) for more in range(5))
    return next(end for day in days if (end := day.astimezone(UTC)) > began)


# --- words ---------------------------------------------------------------------------------------------------------------------------


def spoken(moment: datetime, zone: ZoneInfo) -> str:
    """`2026-11-30 02:30 CET`."""
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z")


def lasting(span: timedelta) -> str:
    """`3 days`, `5 hours`, `12 minutes`."""
    minutes = int(span.total_seconds() // 60)
    count, unit = (minutes, "minute") if minutes < 120 else (minutes // 60, "hour") if minutes < 2880 else (minutes // 1440, "day")
    return f"{count:,} {unit}{'' if count == 1 else 's'}"
