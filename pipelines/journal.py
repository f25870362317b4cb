"""pipelines: the journal of a run: intents before jobs, and what became of them (PROTOCOL.md, A client). Touches the store only.

On a conditional store entries 0, 1, 2, … are one total order: whoever loses the race for a number reads what won and decides again.

On a last-writer store the writer's name is part of the key, so that no entry overwrites another, and the order is made by looking: an
entry counts for sending only if a listing made after its write shows no entry that its writer had not read before deciding. Of two
writers at least one sees the other; whoever sees another yields and marks its own intents `yielded` (docs/protocol-notes.md has the
argument).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from contract.errors import ContractError
from contract.keys import RunKeys
from contract.models import AttemptNote, Instant, Intent, JournalEntry, decode, encode
from contract.protocol import MAX_INTENTS
from contract.store import Store, get_or_none, put_first

READS_AT_ONCE: Final = 16


@dataclass
class Journal:
    """One client's view of the journal. Not for use by two tasks at once."""

    store: Store
    keys: RunKeys
    plan_id: str
    client: str
    next_number: int = 0
    foreign: list[str] = field(default_factory=list)
    """Keys of entries that carry another plan id, or that cannot be read; reported and ignored."""
    _seen: set[str] = field(default_factory=set)

    async def refresh(self) -> tuple[JournalEntry, ...]:
        """Entries that were not read before, in order."""
        if self.store.mode == "conditional" and self.next_number > 0:
            return await self._read_on()
        return await self._list()

    async def append(
        self, intents: tuple[Intent, ...], notes: tuple[AttemptNote, ...], at: Instant
    ) -> tuple[bool, tuple[JournalEntry, ...]]:
        """Write one entry after everything that was read. Returns whether its intents may be sent, and the entries that are new to the
        reader, its own among them where it stands in the journal.

        False: another client wrote first; read, decide again. Raises StoreError: whether the entry stands is not known, `refresh` will
        tell.
        """
        if len(intents) > MAX_INTENTS:
            raise ValueError(f"{len(intents)} intents in one entry")
        number = self.next_number
        entry = JournalEntry(plan=self.plan_id, number=number, client=self.client, at=at, intents=intents, notes=notes)
        data = encode(entry)
        if self.store.mode == "conditional":
            standing = await put_first(self.store, self.keys.journal(number), data)
            self.next_number = number + 1
            if standing == data:
                return True, (entry,)
            found = self._read_entry(standing, self.keys.journal(number))
            return False, (*((found,) if found else ()), *await self._read_on())
        key = self.keys.journal(number, self.client)
        standing = await put_first(self.store, key, data)
        self._seen.add(key)
        self.next_number = number + 1
        mine = (entry,) if standing == data else tuple(e for e in (self._read_entry(standing, key),) if e)
        others = await self._list()
        return standing == data and not intents_of(others), (*mine, *others)

    async def _read_on(self) -> tuple[JournalEntry, ...]:
        """Conditional store: numbers follow each other without gaps, so the first absent one is the end."""
        found: list[JournalEntry] = []
        while (blob := await get_or_none(self.store, self.keys.journal(self.next_number))) is not None:
            entry = self._read_entry(blob.data, self.keys.journal(self.next_number))
            if entry is not None:
                found.append(entry)
            self.next_number += 1
        return tuple(found)

    async def _list(self) -> tuple[JournalEntry, ...]:
        """Entries by listing: all of them at first, and on a last-writer store always."""
        prefix = self.keys.journal_prefix()
        listed = {head.key async for head in self.store.list(prefix) if head.key.endswith(".json")}
        numbers = [number for key in listed if (number := _number(key[len(prefix) :])) is not None]
        top = max(numbers, default=-1) + 1
        if self.store.mode == "conditional":  # without gaps: what a lagging listing leaves out below the top is there all the same
            listed = {self.keys.journal(number) for number in range(top)}
        fresh = sorted(listed - self._seen)
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def read(key: str) -> tuple[str, bytes | None]:
            async with gate:
                blob = await get_or_none(self.store, key)
            return key, None if blob is None else blob.data

        found: list[JournalEntry] = []
        for key, data in await asyncio.gather(*(read(key) for key in fresh)):
            if data is None:
                continue  # listed and not yet readable: the next look reads it
            self._seen.add(key)
            entry = self._read_entry(data, key)
            if entry is not None:
                found.append(entry)
        self.next_number = max(self.next_number, top)
        if self.store.mode == "conditional":
            found.extend(await self._read_on())
        return tuple(sorted(found, key=lambda e: (e.number, e.client)))

    def _read_entry(self, data: bytes, key: str) -> JournalEntry | None:
        try:
            entry: JournalEntry = decode(data, JournalEntry, where=key)
        except ContractError:
            self.foreign.append(key)
            return None
        if entry.plan != self.plan_id:
            self.foreign.append(key)
            return None
        return entry


def _number(name: str) -> int | None:
    """`000017-ab12.json` -> 17."""
    digits = name[: -len(".json")].partition("-")[0]
    return int(digits) if digits.isdigit() else None


def intents_of(entries: Iterable[JournalEntry]) -> tuple[Intent, ...]:
    """All intents of these entries, in order."""
    return tuple(intent for entry in entries for intent in entry.intents)
