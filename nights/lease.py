"""nights: one process at a time does a job's night. Touches the store alone.

A lease is an object that its holder writes again every 20 seconds, `nights/JOB/lease.json`. Another process that finds it young leaves the
night to its holder and says so; one that finds it old takes it over: the holder was killed, or its machine sleeps. Ages are told by the
store's clock on both sides, so that a clock that jumps on one machine changes nothing. A holder on this very machine whose process is gone
is taken over at once.

It is politeness, not proof. On a store without conditional writes two processes that begin in the same second may both hold it, and so may
a holder that slept and its successor; nothing is paid twice for it, because the same night plans the same run, a run takes several
clients, a space takes the same night once, and an event is told once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from contract.errors import AlreadyExists, ContractError, InfrastructureError, NotFound, StoreError
from contract.models import VERSION, Instant, Model, decode, encode
from contract.process import alive
from contract.store import Store, get_or_none

BEAT_S: Final = 20.0
STALE_S: Final = 90.0
"""Without a beat; four of them may be lost."""
_SETTLE_S: Final = 0.5


class LeaseFile(Model, frozen=True, kw_only=True):
    """Who does which night, and when it was last heard of. `holder`: a random name; `who`: for people."""

    version: int = VERSION
    job: str
    date: str
    holder: str
    who: str
    machine: str = ""
    """Host name and boot: a process number means something only there."""
    pid: int = 0
    since: Instant
    beat: Instant
    over: bool = False


class Held(InfrastructureError):
    """Another process does this job's night. `lease` says which one and who."""

    def __init__(self, lease: LeaseFile, *, where: str) -> None:
        super().__init__(
            f"the night of {lease.date} is being done by {lease.who} since {lease.since:%Y-%m-%d %H:%M} UTC.",
            where=where,
            fix=f"It was heard of at {lease.beat:%H:%M:%S}; wait for it, or end it there: a dead one is taken over after {STALE_S:.0f} s.",
        )
        self.lease = lease


def this_machine() -> str:
    """This machine since its last start; empty where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return f"{socket.gethostname()} {boot}"


def _gone(there: LeaseFile) -> bool:
    """Its process was on this machine, and is no more."""
    return bool(there.machine) and there.machine == this_machine() and not alive(there.pid)


def who_am_i() -> str:
    """This process, for people."""
    return f"{socket.gethostname()} (process {os.getpid()})"


@asynccontextmanager
async def lease(store: Store, key: str, job: str, date: str, *, beat_s: float = BEAT_S) -> AsyncIterator[LeaseFile]:
    """Hold a job's lease while this is open. Raises Held; StoreError where the store does not do its part at the beginning."""
    mine = await _take(store, key, job, date)
    beating = asyncio.create_task(_beat(store, key, mine, beat_s))
    try:
        yield mine
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with suppress(StoreError):  # it will be found stale
            there = await _read(store, key)
            if there is not None and there.holder == mine.holder:
                await store.put(key, encode(_at(mine, store.now(), over=True)))


async def holder(store: Store, key: str) -> LeaseFile | None:
    """Who holds the lease now; None where nobody does."""
    there = await _read(store, key)
    return there if there is not None and _alive(there, store.now()) else None


async def given_up(store: Store, key: str, *, look_s: float = 5.0, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> bool:
    """Whether whoever holds the lease has left it: looks until a beat proves that it has not (at most BEAT_S where it lives), or until the
    lease is over or old. For a scheduler's next runner, which comes seconds after the one before it was killed."""
    first = await holder(store, key)
    there = first
    while there is not None and first is not None:
        if (there.holder, there.beat) != (first.holder, first.beat):
            return False
        await sleep(look_s)
        there = await holder(store, key)
    return True


def _alive(there: LeaseFile, now: datetime) -> bool:
    # A beat from the future is of a clock that was set back since: it is as good as no beat.
    return not there.over and timedelta(seconds=-STALE_S) <= now - there.beat <= timedelta(seconds=STALE_S) and not _gone(there)


def _at(mine: LeaseFile, now: datetime, *, over: bool = False) -> LeaseFile:
    return msgspec.structs.replace(mine, beat=now, over=over)


async def _read(store: Store, key: str) -> LeaseFile | None:
    blob = await get_or_none(store, key)
    if blob is None:
        return None
    try:
        found: LeaseFile = decode(blob.data, LeaseFile, where=key)
    except ContractError:
        return None  # of another version, or damaged: it holds nobody
    return found


async def _take(store: Store, key: str, job: str, date: str) -> LeaseFile:
    now = store.now()
    mine = LeaseFile(
        job=job, date=date, holder=secrets.token_hex(8), who=who_am_i(), machine=this_machine(), pid=os.getpid(), since=now, beat=now
    )
    blob = await get_or_none(store, key)
    there = await _read(store, key)
    if there is not None and _alive(there, store.now()):
        raise Held(there, where=f"job {job}")
    if store.mode == "conditional":
        with suppress(AlreadyExists, NotFound):  # somebody was quicker; the next look says who
            if blob is None:
                await store.put_if_absent(key, encode(mine))
            else:
                await store.put_if_match(key, encode(mine), blob.etag)
    else:
        await store.put(key, encode(mine))
        await asyncio.sleep(_SETTLE_S)  # of two that wrote at once both see the later one
    there = await _read(store, key)
    if there is not None and there.holder != mine.holder and _alive(there, store.now()):
        raise Held(there, where=f"job {job}")
    return mine


async def _beat(store: Store, key: str, mine: LeaseFile, beat_s: float) -> None:
    while True:
        await asyncio.sleep(beat_s)
        with suppress(StoreError):  # the next beat may come through; the run itself says what is wrong with the store
            await store.put(key, encode(_at(mine, store.now())))
