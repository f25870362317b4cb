"""nights/evals: named, pinned results, and whether two results may be compared at all. Pure but for `Baselines`, which touches a store.

A baseline keeps a copy of its result beside itself: whatever prunes results (a lifecycle rule of the bucket, a person) never loses it.
Two results are comparable when the same questions were asked and judged in the same way. What may differ is what an evaluation is for:
the model, its image, the prompt where the suite does not pin it, the sampling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from contract.errors import AlreadyExists, NotFound, UsageError
from contract.models import VERSION, Count, Hex64, Instant, Model, decode_stored, encode
from contract.store import get_or_none, put_first
from nights.evals import stats
from nights.evals.results import BASELINE_NAME, ENDING, LATEST, PREVIOUS, SUITE_NAME, Named, Names, Results, near, readable
from nights.evals.samples import EvalResult, ResultHeader

PINNED: Final = frozenset({"prompt", "judge_prompt"})
"""Of what a result was made with, what a suite may pin: with another digest of the suite it is a reason, else it may differ."""
_NAMES: Final = frozenset({LATEST, PREVIOUS})


class NotComparable(UsageError):
    """Two results that no number may be made of; `reasons` name what differs."""

    def __init__(self, reasons: Sequence[str], *, where: str, fix: str | None = None) -> None:
        super().__init__(f"the two results are not comparable: {'; '.join(reasons)}.", where=where, fix=fix)
        self.reasons = tuple(reasons)


class Baseline(Model, frozen=True, kw_only=True):
    """baselines/NAME.json: a pinned result. `sha256`, `size`: of the copy, which is the result's object byte for byte."""

    version: int = VERSION
    suite: str
    name: Annotated[str, msgspec.Meta(pattern=rf"^{BASELINE_NAME.pattern}$")]
    result: str
    sha256: Hex64
    size: Count
    headline: str
    score: float
    model: str
    made: Instant
    """When the result was made."""
    at: Instant
    """When it was pinned."""
    note: str = ""


@dataclass(frozen=True)
class Baselines:
    """The baselines of a stack's suites."""

    results: Results

    def key(self, suite: str, name: str) -> str:
        """Where a baseline is."""
        return f"{self.results.root(suite)}baselines/{name}.json"

    def copy(self, baseline: Baseline) -> str:
        """Where its own copy of the result is."""
        return f"{self.results.root(baseline.suite)}baselines/{baseline.name}.{baseline.result}{ENDING}"

    def where(self, suite: str, name: str) -> str:
        """As messages name it."""
        return f"s3://{self.results.store.bucket}/{self.key(suite, name)}"

    async def set(self, name: str, suite: str, result: str, *, note: str = "", replace: bool = False) -> tuple[Baseline, Baseline | None]:
        """Pin a result under a name; the baseline, and the one that stood there. Raises UsageError where another result stands there and
        `replace` was not said."""
        if not BASELINE_NAME.fullmatch(name) or name in _NAMES or name[:8].isdigit():
            raise UsageError(
                "is no name for a baseline.", where=name, fix="Use at most 40 of a-z, 0-9, - and _; not latest, previous or a date."
            )
        store = self.results.store
        blob = await get_or_none(store, self.results.key(suite, result))
        if blob is None:
            await self.results.get(suite, result)  # says what there is not
            raise AssertionError("unreachable")
        header = readable(blob.data, where=self.results.where(suite, result)).header
        made = Baseline(
            suite=suite,
            name=name,
            result=result,
            sha256=hashlib.sha256(blob.data).hexdigest(),
            size=len(blob.data),
            headline=header.headline,
            score=header.metrics[header.headline],
            model=header.model,
            made=header.at,
            at=store.now(),
            note=note,
        )
        standing = await get_or_none(store, self.key(suite, name))
        former = None if standing is None else self._read(suite, name, standing.data)
        if former is not None and former.result == result and note in ("", former.note) and await store.head(self.copy(former)) is not None:
            return former, former
        if former is not None and former.result != result and not replace:
            raise self._taken(former)
        await store.put(self.copy(made), blob.data)  # first: a baseline never points at nothing
        if standing is None:
            there = self._read(suite, name, await put_first(store, self.key(suite, name), encode(made)))
            if there.result != result:
                await self._forget(made)
                raise self._taken(there)
        elif store.mode == "conditional":
            try:
                await store.put_if_match(self.key(suite, name), encode(made), standing.etag)
            except AlreadyExists:
                raise UsageError(
                    "somebody changed this baseline just now.", where=self.where(suite, name), fix="Look, and say it again."
                ) from None
        else:
            await store.put(self.key(suite, name), encode(made))
        if former is not None and former.result != result:
            await self._forget(former)
        return made, former

    def _taken(self, there: Baseline) -> UsageError:
        return UsageError(
            f"baseline {there.name} of suite {there.suite} is pinned to {there.result}.",
            where=self.where(there.suite, there.name),
            fix="Add --replace to pin another result, or choose another name.",
        )

    async def get(self, suite: str, name: str) -> Baseline:
        """Raises UsageError where there is none."""
        if not SUITE_NAME.fullmatch(suite) or not BASELINE_NAME.fullmatch(name):
            raise UsageError("is no name of a baseline.", where=f"{suite}/{name}", fix="See: nightbatch eval baseline list")
        blob = await get_or_none(self.results.store, self.key(suite, name))
        if blob is None:
            known = {one: Names(suite) for one in (await self.results.names(suite)).baselines}
            raise UsageError(
                f"suite {suite} has no baseline {name}.",
                where=self.where(suite, name),
                fix=f"{near(name, known, 'Baselines there')} Pin one: nightbatch eval baseline set {name} {suite}/{LATEST}",
            )
        return self._read(suite, name, blob.data)

    def _read(self, suite: str, name: str, data: bytes) -> Baseline:
        found: Baseline = decode_stored(data, Baseline, where=self.where(suite, name))
        return found

    async def load(self, baseline: Baseline) -> EvalResult:
        """Its result: the copy, or the result itself where somebody removed or changed the copy. Raises Damaged, UsageError."""
        where = f"s3://{self.results.store.bucket}/{self.copy(baseline)}"
        for key in (self.copy(baseline), self.results.key(baseline.suite, baseline.result)):
            blob = await get_or_none(self.results.store, key)
            if blob is not None and hashlib.sha256(blob.data).hexdigest() == baseline.sha256:
                return readable(blob.data, where=where)
        raise UsageError(
            f"the result that baseline {baseline.name} pins is gone, or is not what was pinned.",
            where=where,
            fix=f"Pin another: nightbatch eval baseline set {baseline.name} {baseline.suite}/{LATEST} --replace",
        )

    async def list(self, suite: str) -> tuple[Baseline, ...]:
        """Of a suite, by name."""
        return tuple([await self.get(suite, name) for name in (await self.results.names(suite)).baselines])

    async def remove(self, suite: str, name: str) -> Baseline:
        """Forget a baseline and its copy; the result itself stays. Raises UsageError where there is none."""
        found = await self.get(suite, name)
        await self.results.store.delete(self.key(suite, name))
        await self._forget(found)
        return found

    async def _forget(self, baseline: Baseline) -> None:
        """Remove its copy, unless somebody pinned the same result under the same name meanwhile."""
        blob = await get_or_none(self.results.store, self.key(baseline.suite, baseline.name))
        if blob is not None and self._read(baseline.suite, baseline.name, blob.data).result == baseline.result:
            return
        try:
            await self.results.store.delete(self.copy(baseline))
        except NotFound:
            pass

    async def result(self, named: Named) -> EvalResult:
        """The result that a name means."""
        if named.result is not None:
            return await self.results.get(named.suite, named.result)
        return await self.load(await self.get(named.suite, named.name))


# --- what may be compared ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Differences:
    """Between two results. `reasons`: why they are not comparable; `changed`: what differs and may (`image: a -> b`)."""

    reasons: tuple[str, ...]
    changed: tuple[str, ...]


def differences(first: ResultHeader, second: ResultHeader) -> Differences:
    """What differs, from the first to the second."""
    reasons: list[str] = []
    for name, before, after in (
        ("suite", first.suite, second.suite),
        ("headline", first.headline, second.headline),
        ("draws", str(first.draws), str(second.draws)),
        ("dataset", short(first.dataset_digest), short(second.dataset_digest)),
        ("higher is better", str(first.higher_is_better).lower(), str(second.higher_is_better).lower()),
    ):
        if before != after:
            reasons.append(f"{name}: {before} -> {after}")
    reasons += changes(first.scorers, second.scorers, "scorer ")
    known = {"model": first.model, "stack": first.stack, **first.made_with}
    changed = changes(known, {"model": second.model, "stack": second.stack, **second.made_with})
    if first.suite_digest != second.suite_digest:
        # What the digest is made of and the header tells apart: who reads it wants to know which.
        prompts = [one for one in changed if one.split(":")[0] in PINNED]
        reasons += prompts
        changed = tuple(one for one in changed if one not in prompts)
        if not reasons:
            reasons.append(f"the suite's definition: {short(first.suite_digest)} -> {short(second.suite_digest)}")
    return Differences(tuple(reasons), changed)


def changes(before: Mapping[str, str], after: Mapping[str, str], what: str = "") -> tuple[str, ...]:
    """`name: a -> b` for each that differs; what one of both does not have is `none`."""
    names = dict.fromkeys((*before, *after))
    return tuple(
        f"{what}{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names if before.get(name) != after.get(name)
    )


def only_in(ids: Sequence[str], which: str) -> str:
    """`3 questions are in the first only`. Not which: the id of a row may be its content, and reasons are told to others."""
    return f"{len(ids):,} {'question is' if len(ids) == 1 else 'questions are'} in {which} only"


def short(digest: str) -> str:
    """As people read a digest."""
    return digest[:12]


def require_comparable(first: ResultHeader, second: ResultHeader) -> Differences:
    """What differs, where they may be compared. Raises NotComparable."""
    found = differences(first, second)
    if found.reasons:
        raise NotComparable(
            found.reasons,
            where=f"{first.suite}/{first.result} and {second.suite}/{second.result}",
            fix=f"Pin a new baseline from a result of the suite as it is now, such as {second.suite}/{second.result}.",
        )
    return found


def compare(
    first: EvalResult, second: EvalResult, *, metric: str | None = None, confidence: float = stats.CONFIDENCE
) -> tuple[stats.Comparison, Differences]:
    """The second against the first. Questions that only one of both has make them not comparable: a score over the common ones would be
    of another suite than either. Raises NotComparable."""
    found = require_comparable(first.header, second.header)
    before, after = stats.questions_of(first, metric), stats.questions_of(second, metric)
    alone = [sorted(set(one.ids) - set(other.ids)) for one, other in ((before, after), (after, before))]
    if any(alone):
        reasons = [only_in(ids, which) for ids, which in zip(alone, (first.header.result, second.header.result), strict=True) if ids]
        raise NotComparable(
            reasons,
            where=f"{first.header.suite}/{first.header.result} and {second.header.result}",
            fix=f"`nightbatch eval diff --common` shows the questions that both have; only one has {(alone[0] or alone[1])[0]!r}.",
        )
    seed = stats.seed_of(first.header.result, second.header.result)
    return stats.compare(before, after, seed=seed, confidence=confidence), found
