"""nights/evals: where results and baselines are in the stack's bucket, and how one of them is named. Touches a store.

    evals/SUITE/results/RESULT.jsonl.zst           one result (nights/evals/samples.py); never changed
    evals/SUITE/baselines/NAME.json                a baseline: which result is pinned, and its sha256
    evals/SUITE/baselines/NAME.RESULT.jsonl.zst    the baseline's own copy of it: whatever prunes results/ never loses it

A result id begins with its time, so that key order is the order in time and the latest is found by one listing.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, cast

from contract.errors import ContractError, Damaged, UsageError
from contract.lines import read_lines
from contract.models import decode
from contract.store import Store, get_or_none, put_first
from nights.evals.samples import EvalResult, ResultHeader, pack, unpack

SUITE_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
RESULT_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[a-z0-9]{4,32}")
BASELINE_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")
LATEST: Final = "latest"
PREVIOUS: Final = "previous"
ENDING: Final = ".jsonl.zst"
AT_ONCE: Final = 8
"""Headers that are read beside each other."""
_ID_HELP: Final = "A result id is made by `result_id`: 20261130T021500Z-1a2b3c4d."


def result_id(at: datetime, unique: str) -> str:
    """`20261130T021500Z-1a2b3c4d`: the instant, and eight letters of what makes it this result (a run's address, say). Equal arguments give
    equal ids."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{hashlib.sha256(unique.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Names:
    """What there is of one suite. `results`: oldest first."""

    suite: str
    results: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Named:
    """One result, as somebody named it: `name` is the id, a baseline's name, `latest` or `previous`."""

    suite: str
    name: str
    result: str | None
    """The id; None for a baseline, which knows it itself."""

    @property
    def baseline(self) -> str | None:
        return self.name if self.result is None else None


@dataclass(frozen=True)
class Results:
    """The results of a stack's evaluations."""

    store: Store
    prefix: str = ""
    """The stack's own prefix in its bucket, without a slash at its end."""
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), repr=False, compare=False)

    def root(self, suite: str | None = None) -> str:
        """Where all suites are, or one of them; ends with a slash."""
        base = f"{self.prefix}/evals/" if self.prefix else "evals/"
        return base if suite is None else f"{base}{suite}/"

    def key(self, suite: str, result: str) -> str:
        """Where one result is."""
        return f"{self.root(suite)}results/{result}{ENDING}"

    def where(self, suite: str, result: str) -> str:
        """As messages name it."""
        return f"s3://{self.store.bucket}/{self.key(suite, result)}"

    async def put(self, result: EvalResult) -> str:
        """Keep a result; its key. The same one again is no error; another under its id is. Raises UsageError."""
        header = result.header
        if not SUITE_NAME.fullmatch(header.suite):
            raise UsageError("is no name of a suite.", where=header.suite, fix="Use at most 64 of a-z, 0-9, - and _.")
        if not RESULT_ID.fullmatch(header.result):
            raise UsageError("is no result id.", where=header.result, fix=_ID_HELP)
        with_headline(header, f"{header.suite}/{header.result}")
        if not result.samples:
            raise UsageError("has no samples: there is nothing to keep.", where=f"{header.suite}/{header.result}")
        key, data = self.key(header.suite, header.result), pack(header, result.samples)
        standing = await put_first(self.store, key, data)
        # Another release may compress the same lines into other bytes.
        if standing != data and readable(standing, where=self.where(header.suite, header.result)) != result:
            raise UsageError("another result has this id.", where=self.where(header.suite, header.result), fix="Give it an id of its own.")
        return key

    async def get(self, suite: str, result: str) -> EvalResult:
        """A result with its samples. Raises UsageError where there is none, Damaged where it cannot be read."""
        blob = await get_or_none(self.store, self.key(suite, result))
        if blob is None:
            raise UsageError(f"suite {suite} has no result {result}.", where=self.where(suite, result), fix="See: nightbatch eval list")
        return readable(blob.data, where=self.where(suite, result))

    async def header(self, suite: str, result: str) -> ResultHeader:
        """Its first line alone: the samples are not fetched."""
        where = self.where(suite, result)
        async with self._reading, aclosing(cast(AsyncGenerator[bytes, None], self.store.read(self.key(suite, result)))) as chunks:
            try:
                first = await anext(read_lines(cast(AsyncIterator[bytes], chunks), where=where), b"")
                found: ResultHeader = with_headline(decode(first, ResultHeader, where=where), where)
            except ContractError as error:
                raise damaged(error, where) from None
        return found

    async def headers(self, suite: str, *, last: int | None = None) -> Sequence[ResultHeader]:
        """Of a suite's results, oldest first; `last`: only so many of the newest."""
        found = (await self.names(suite)).results
        return await asyncio.gather(*(self.header(suite, name) for name in (found if last is None else found[-last:])))

    async def names(self, suite: str) -> Names:
        """What there is of one suite; empty where nothing is."""
        if not SUITE_NAME.fullmatch(suite):
            return Names(suite)
        return (await self._listed(self.root(suite))).get(suite, Names(suite))

    async def suites(self) -> dict[str, Names]:
        """What there is of every suite, by its name."""
        return await self._listed(self.root())

    async def _listed(self, prefix: str) -> dict[str, Names]:
        results: dict[str, list[str]] = {}
        baselines: dict[str, list[str]] = {}
        async for info in self.store.list(prefix):
            suite, _, rest = info.key.removeprefix(self.root()).partition("/")
            kind, _, name = rest.partition("/")
            if kind == "results" and name.endswith(ENDING) and RESULT_ID.fullmatch(name.removesuffix(ENDING)):
                results.setdefault(suite, []).append(name.removesuffix(ENDING))
            elif kind == "baselines" and name.endswith(".json") and BASELINE_NAME.fullmatch(name.removesuffix(".json")):
                baselines.setdefault(suite, []).append(name.removesuffix(".json"))
        return {
            suite: Names(suite, tuple(sorted(results.get(suite, ()))), tuple(sorted(baselines.get(suite, ()))))
            for suite in sorted({*results, *baselines})
        }

    async def find(self, text: str, *, suite: str | None = None) -> Named:
        """`[SUITE/]NAME`, where NAME is a result id (or how one begins), a baseline, `latest` or `previous`; or a suite alone, which is its
        latest. Raises UsageError."""
        given, slash, name = text.rpartition("/")
        asked = given if slash else suite
        everything = await self.suites() if asked is None else {asked: await self.names(asked)}
        if asked is None and name in everything and everything[name].results:
            name, everything = LATEST, {name: everything[name]}
        everything = {name: names for name, names in everything.items() if names.results or names.baselines}
        if not everything:
            if asked is None:
                raise UsageError("there are no results of evaluations.", where=f"s3://{self.store.bucket}/{self.root()}")
            raise UsageError(f"there is no suite {asked} with results.", where=text, fix=near(asked, await self.suites(), "Suites there"))
        return resolve(name, everything, text=text)


def resolve(name: str, everything: dict[str, Names], *, text: str) -> Named:
    """Which result of which suite a name means. Raises UsageError that says what there is."""
    found = [one for one in (_in_suite(name, names, text) for names in everything.values()) if one is not None]
    if len(found) == 1:
        return found[0]
    if found:
        choices = ", ".join(f"{one.suite}/{name}" for one in found[:8])
        raise UsageError(f"{len(found)} suites have a result that is called so.", where=text, fix=f"Say which: {choices}.")
    if name == PREVIOUS:
        raise UsageError("no suite has two results.", where=text, fix="See: nightbatch eval list")
    known = [f"{suite}/{one}" for suite, names in everything.items() for one in (*names.baselines, *reversed(names.results))]
    bare = {**{one: one for one in (LATEST, PREVIOUS, *everything)}, **{one.rpartition("/")[2]: one for one in reversed(known)}}
    close = [bare[one] for one in get_close_matches(name, bare, n=3, cutoff=0.5)]
    raise UsageError(
        f"there is no result or baseline {name or 'without a name'}.",
        where=text,
        fix=f"Did you mean {' or '.join(close)}?" if close else f"There are, among others: {', '.join([*known[:4], LATEST])}.",
    )


def _in_suite(name: str, names: Names, text: str) -> Named | None:
    if name in names.baselines:
        return Named(names.suite, name, None)
    if name in names.results:
        return Named(names.suite, name, name)
    if name == LATEST:
        return Named(names.suite, name, names.results[-1]) if names.results else None
    if name == PREVIOUS:
        return Named(names.suite, name, names.results[-2]) if len(names.results) > 1 else None
    begins = [one for one in names.results if name and one.startswith(name)] if re.fullmatch(r"[0-9]{8}.*", name) else []
    if len(begins) > 1:
        raise UsageError(f"{len(begins)} results begin so.", where=text, fix=f"Say which: {', '.join(begins[-5:])}.")
    return Named(names.suite, name, begins[0]) if begins else None


def near(name: str, known: dict[str, Names], what: str) -> str:
    """`Did you mean …?`, or what there is."""
    close = get_close_matches(name, known, n=2, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"{what}: {', '.join(list(known)[:8]) or 'none'}."


def readable(data: bytes, *, where: str) -> EvalResult:
    """A kept result. Raises Damaged: it is nobody's input."""
    try:
        found = unpack(data, where=where)
        with_headline(found.header, where)
    except ContractError as error:
        raise damaged(error, where) from None
    return found


def with_headline(header: ResultHeader, where: str) -> ResultHeader:
    """The header, which has a number for its headline. Raises ContractError."""
    if header.headline not in header.metrics:
        raise ContractError(f"`metrics` has no headline `{header.headline}`.", where=where)
    return header


def damaged(error: ContractError, where: str) -> Damaged:
    """What cannot be read of what was kept."""
    return Damaged(
        f"this result of an evaluation is damaged: {error.what}",
        where=where,
        fix=error.fix or "Put the object back, or remove it: the same evaluation makes it again from its run.",
    )
