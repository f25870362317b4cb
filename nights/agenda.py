"""nights: which night a job is at: what is due, what was held, what did not start. Touches the store.

A night that did not start at all leaves nothing, so that whoever looks next has to notice: each call of `night` notes those that are
missing as records of their own (`not_started`), which tells the job's notifiers once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from contract.errors import Damaged
from nights.jobs.files import JobFile
from nights.jobs.schedule import Look, Night, Timing, look, next_due, night_on, spoken, unstarted
from nights.lease import LeaseFile, holder, who_am_i
from nights.notify import Delivery, tell
from nights.record import NOT_STARTED, NightEvent, NightRecord, Records


@dataclass(frozen=True)
class Standing:
    """How a job stands. `last`: its latest record; `running`: the process that does one now; `missing`: nights that did not start;
    `damage`: why the latest record cannot be read."""

    file: JobFile
    look: Look | None
    last: NightRecord | None
    running: LeaseFile | None
    missing: tuple[Night, ...]
    damage: str | None = None


def date_of(file: JobFile, now: datetime) -> str:
    """The date of a night that is called for without one: of the latest that is due, else today's in the job's time zone."""
    schedule = file.job.schedule
    if schedule is not None:
        seen = look(Timing.of(schedule), now, ())
        if seen.night is not None:
            return seen.night.date.isoformat()
    return now.astimezone(file.job.zone).date().isoformat()


def due_of(file: JobFile, date: str) -> datetime | None:
    """When the schedule wanted the night of this date to begin."""
    schedule = file.job.schedule
    if schedule is None:
        return None
    night = night_on(Timing.of(schedule), datetime.fromisoformat(date).date())
    return None if night is None else night.due


async def standing(file: JobFile, records: Records, now: datetime) -> Standing:
    """Read how a job stands."""
    dates = await records.dates(file.name)
    last, damage = None, None
    if dates:
        try:
            last = await records.get(file.name, dates[-1])
        except Damaged as error:  # tonight does not rest on it
            damage = str(error)
    running = await holder(records.store, records.lease(file.name))
    schedule = file.job.schedule
    seen: Look | None = None
    missing: tuple[Night, ...] = ()
    if schedule is not None:
        timing = Timing.of(schedule)
        seen, missing = _after_held(look(timing, now, dates), timing, dates), unstarted(timing, now, dates)
    return Standing(file, seen, last, running, missing, damage)


def _after_held(seen: Look, timing: Timing, dates: Sequence[str]) -> Look:
    """A date has one night: the next one is the first that nobody has begun before its time."""
    following = seen.next
    for _ in dates:
        if following is None or following.date.isoformat() not in dates:
            break
        following = next_due(timing, following.due)
    return seen if following is seen.next else replace(seen, next=following)


Missed = tuple[tuple[NightRecord, ...], tuple[Delivery, ...]]
"""Records of nights that did not start, and what became of telling it."""


async def note_missing(
    file: JobFile, records: Records, missing: Sequence[Night], now: datetime, *, but: str | None, environ: Mapping[str, str]
) -> Missed:
    """Leave a record of each night that did not start, and tell of it. `but`: the date that is begun now."""
    made: list[NightRecord] = []
    told: list[Delivery] = []
    for night in missing:
        date = night.date.isoformat()
        if date == but:
            continue
        sentence = f"the night of {date} did not start; it was due {spoken(night.due, file.job.zone)}."
        event = NightEvent(kind=NOT_STARTED, key=NOT_STARTED, at=now, sentence=sentence)
        record = NightRecord(
            job=file.name,
            date=date,
            kind=file.job.kind,
            stack=file.job.stack,
            state="failed",
            exit_code=3,
            sentence=sentence,
            cause=NOT_STARTED,
            began=night.due.astimezone(UTC),
            ended=now,
            due=night.due,
            by=who_am_i(),
            events=(event,),
        )
        # Told first: a process that is killed between the two is followed by one that finds no record, and no claim or its own.
        told += await tell(record, file.job.notify, records.store, prefix=records.prefix, environ=environ)
        await records.put(record)
        made.append(record)
    return tuple(made), tuple(told)
