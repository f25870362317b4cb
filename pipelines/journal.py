"""pipelines: the journal of a run: intents before jobs, and what became of them (PROTOCOL.md, A client). Touches the store only.

On a conditional store entries 0, 1, 2, … are one total order: whoever loses the race for a number reads what won and decides again.

On a last-writer store the writer's name is part of the key, so that no entry overwrites another, and the order is made by looking: an
entry counts for sending only if a listing made after its write shows no entry that its writer had not read before deciding. Of two
writers at least one sees the other; whoever sees another yields and marks its own intents `yielded` (docs/protocol-notes.md has the
argument).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from contract.errors import ContractError
from contract.keys import RunKeys
from contract.models import AttemptNote, Instant, Intent, JournalEntry, decode, encode
from contract.protocol import MAX_INTENTS
from contract.store import Store, get_or_none, put_first

READS_AT_ONCE: Final = 16
MAX_NOTES: Final = 400
"""In one entry: it stays a small object."""


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
    _read: list[JournalEntry] = field(default_factory=list)

    async def refresh(self) -> tuple[JournalEntry, ...]:
        """Entries that were not handed out before, in order. Raises StoreError: what was read by then is handed out the next time."""
        if self.store.mode == "conditional" and self.next_number > 0:
            await self._read_on()
        else:
            await self._list()
        return self._take()

    async def append(
        self, intents: tuple[Intent, ...], notes: tuple[AttemptNote, ...], at: Instant
    ) -> tuple[bool, tuple[JournalEntry, ...]]:
        """Write one entry after everything that was read. Returns whether its intents may be sent, and the entries that are new to the
        reader, its own among them where it stands in the journal.

        False: another client wrote first; read, decide again. Raises StoreError: whether the entry stands is not known, `refresh` tells.
        """
        if len(intents) > MAX_INTENTS:
            raise ValueError(f"{len(intents)} intents in one entry")
        number = self.next_number
        entry = JournalEntry(plan=self.plan_id, number=number, client=self.client, at=at, intents=intents, notes=notes)
        data = encode(entry)
        if self.store.mode == "conditional":
            standing = await put_first(self.store, self.keys.journal(number), data)
            self.next_number = number + 1
            self._keep(standing, self.keys.journal(number))
            if standing == data:
                return True, self._take()
            await self._read_on()
            return False, self._take()
        key = self.keys.journal(number, self.client)
        standing = await put_first(self.store, key, data)
        self.next_number = number + 1
        self._keep(standing, key)
        await self._list()
        fresh = self._take()
        return standing == data and all(e.client == self.client for e in fresh), fresh

    async def _read_on(self) -> None:
        """Conditional store: numbers follow each other without gaps, so the first absent one is the end."""
        while (blob := await get_or_none(self.store, self.keys.journal(self.next_number))) is not None:
            self._keep(blob.data, self.keys.journal(self.next_number))
            self.next_number += 1

    async def _list(self) -> None:
        """Entries by listing: all of them at first, and on a last-writer store always."""
        prefix = self.keys.journal_prefix()
        listed = {head.key async for head in self.store.list(prefix) if head.key.endswith(".json")}
        numbers = [number for key in listed if (number := _number(key[len(prefix) :])) is not None]
        top = max(numbers, default=-1) + 1
        if self.store.mode == "conditional":  # without gaps: what a lagging listing leaves out below the top is there all the same
            listed = {self.keys.journal(number) for number in range(top)}
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def read(key: str) -> None:
            async with gate:
                blob = await get_or_none(self.store, key)
            if blob is not None:  # else listed and not yet readable: the next look reads it
                self._keep(blob.data, key)

        await asyncio.gather(*(read(key) for key in sorted(listed - self._seen)))
        self.next_number = max(self.next_number, top)
        if self.store.mode == "conditional":
            await self._read_on()

    def _keep(self, data: bytes, key: str) -> None:
        """An entry that was read waits here until it is handed out, so that a failure on the way loses none."""
        if key in self._seen:
            return
        self._seen.add(key)
        entry = self._read_entry(data, key)
        if entry is not None:
            self._read.append(entry)

    def _take(self) -> tuple[JournalEntry, ...]:
        entries = tuple(sorted(self._read, key=lambda e: (e.number, e.client)))
        self._read.clear()
        return entries

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
