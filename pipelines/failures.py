"""pipelines: why rows fail, counted while a run goes on. Touches the store only, a little at a time.

A commit tells how many rows failed, and its errors object why. A client that follows a run reads those of new commits, each once, the
small ones, a few a tick; what it leaves unread is a number without a reason, never a wait. `collect` reads them all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from contract.errors import ContractError, StoreError
from contract.lines import decompress_lines
from contract.models import ObjectRef, PartCommit
from contract.store import Store

MOST_BYTES: Final = 64 << 10
"""Of an errors object as it is stored; a larger one is left to `collect`."""
MOST_LINES: Final = 20_000
"""Of one object: what is small when it is compressed need not be small."""
A_TICK: Final = 4
"""Objects that are read in one tick."""
IN_ALL: Final = 400
"""Objects that are read of one run."""
MOST_CODES: Final = 50
OTHER: Final = "other"


class _Error(msgspec.Struct, frozen=True):
    code: str


class _Line(msgspec.Struct, frozen=True):
    error: _Error


_decoder: Final = msgspec.json.Decoder(_Line)


class FailureCounts:
    """Failed rows by code, as far as they have been read."""

    def __init__(self) -> None:
        self._codes: Counter[str] = Counter()
        self._waiting: deque[ObjectRef] = deque()
        self._taken = 0

    @property
    def codes(self) -> tuple[tuple[str, int], ...]:
        """The most frequent first."""
        return tuple(sorted(self._codes.items(), key=lambda item: (-item[1], item[0])))

    def saw(self, commits: Iterable[object]) -> None:
        """Commits that are new."""
        for commit in commits:
            ref = commit.errors if isinstance(commit, PartCommit) else None
            if ref is not None and ref.size <= MOST_BYTES and self._taken < IN_ALL:
                self._waiting.append(ref)
                self._taken += 1

    async def read(self, store: Store) -> None:
        """A few of those that wait. An object that cannot be read is left out: nothing is decided by it."""
        for _ in range(min(A_TICK, len(self._waiting))):
            ref = self._waiting.popleft()
            try:
                found = await _codes_of(store, ref)
            except (StoreError, ContractError):
                continue
            for code, rows in found.items():
                self._codes[code if code in self._codes or len(self._codes) < MOST_CODES else OTHER] += rows


async def _codes_of(store: Store, ref: ObjectRef) -> Counter[str]:
    data = b"".join([chunk async for chunk in store.read(ref.key, 0, ref.size)])
    found: Counter[str] = Counter()
    for line in islice(decompress_lines(data, where=ref.key), MOST_LINES):
        try:
            found[_decoder.decode(line).error.code] += 1
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found[OTHER] += 1
    return found
