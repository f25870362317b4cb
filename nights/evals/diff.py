"""nights/evals: which questions two results answer differently, and both answers side by side. Pure.

Answers come from a model and questions from a dataset: whatever is shown of them passes `plain`, which leaves nothing that could move a
terminal's cursor, change its colours or turn the direction of text. Widths count a wide character twice, as a terminal does.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from contract.errors import UsageError
from nights.evals import stats
from nights.evals.baseline import NotComparable, differences, only_in
from nights.evals.gate import number
from nights.evals.samples import EvalResult, Sample

LEAST_COLUMNS: Final = 60
"""Below this width the two answers are under each other."""
LINES: Final = 12
"""Of an answer, unless all of it is asked for."""
MOST: Final = 20_000
"""Characters of one text that are ever laid out on a screen; --json has all of it."""
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


@dataclass(frozen=True)
class Change:
    """One question whose value changed. Of several draws, the two that show it best: the better result's best, the worse one's worst."""

    id: str
    index: int
    before: float
    after: float
    worse: bool
    first: Sample
    second: Sample

    @property
    def size(self) -> float:
        return abs(self.after - self.before)


@dataclass(frozen=True)
class Diff:
    """What changed from the first to the second, the largest change first. `only_first`, `only_second`: ids that were left out, because
    only one of both has them; `rewritten`: because both have them with another question or target."""

    first: str
    second: str
    metric: str
    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    same: int
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def questions(self) -> int:
        return len(self.worse) + len(self.better) + self.same


def diff(first: EvalResult, second: EvalResult, *, metric: str | None = None, common: bool = False) -> Diff:
    """Question by question. `common`: also of results that are not comparable as wholes, over the questions that both have with the same
    text and target. Raises NotComparable, also with `common` where the metric itself differs."""
    metric = first.header.headline if metric is None else metric
    before, after = ({name: value for name, value in pairs_of(one, metric)} for one in (first, second))
    found = differences(first.header, second.header)
    firsts, seconds = by_question(first), by_question(second)
    only = tuple(tuple(name for name in one if name not in other) for one, other in ((before, after), (after, before)))
    where = f"{first.header.suite}/{first.header.result} and {second.header.suite}/{second.header.result}"
    scorers = tuple(one.header.scorers.get(metric) for one in (first, second))
    if scorers[0] != scorers[1]:
        raise NotComparable([f"scorer {metric}: {scorers[0] or 'none'} -> {scorers[1] or 'none'}"], where=where)
    reasons = [*found.reasons, *(only_in(ids, which) for ids, which in zip(only, ("the first", "the second"), strict=True) if ids)]
    if reasons and not common:
        raise NotComparable(reasons, where=where, fix="With --common it shows the questions that both have.")
    both = [name for name in before if name in after]
    rewritten = {name for name in both if _asked(firsts[name][0]) != _asked(seconds[name][0])}
    if not (compared := [name for name in both if name not in rewritten]):
        raise UsageError("the two results have no question in common.", where=where)
    single = stats.single_draw(first, metric)
    up = 1 if first.header.higher_is_better else -1
    made: list[Change] = []
    for name in compared:
        if before[name] != after[name]:
            worse = up * (after[name] - before[name]) < 0
            shown = _shown(firsts[name], seconds[name], single, up if worse else -up)
            made.append(Change(name, shown[0].index, before[name], after[name], worse, *shown))
    made.sort(key=lambda one: (-one.size, one.index))
    return Diff(
        first=first.header.result,
        second=second.header.result,
        metric=metric,
        worse=tuple(one for one in made if one.worse),
        better=tuple(one for one in made if not one.worse),
        same=len(compared) - len(made),
        only_first=only[0],
        only_second=only[1],
        rewritten=tuple(sorted(rewritten)),
        changed=(*found.reasons, *found.changed),
    )


def pairs_of(result: EvalResult, metric: str) -> Iterable[tuple[str, float]]:
    """Question and value."""
    found = stats.questions_of(result, metric)
    return zip(found.ids, found.values.tolist(), strict=True)


def by_question(result: EvalResult) -> dict[str, list[Sample]]:
    """The draws of each question."""
    found: dict[str, list[Sample]] = {}
    for sample in result.samples:
        found.setdefault(sample.id, []).append(sample)
    return found


def _asked(sample: Sample) -> tuple[str, Any]:
    return sample.input, sample.target


def _shown(first: Sequence[Sample], second: Sequence[Sample], metric: str, falling: int) -> tuple[Sample, Sample]:
    """`falling` 1: the highest of the first beside the lowest of the second."""
    return (
        max(first, key=lambda sample: falling * sample.scores[metric]),
        min(second, key=lambda sample: falling * sample.scores[metric]),
    )


# --- on a screen ---------------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text that does nothing to a terminal: line feeds stay, tabs become spaces, all else without a shape of its own is shown escaped."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(_plain(char) for char in text)


def _plain(char: str) -> str:
    if char == "\n" or unicodedata.category(char) not in _ESCAPED:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def folded(text: str, width: int, most: int | None) -> list[str]:
    """Lines of at most `width` cells; `most`: no more than so many, the last of which says how many are left."""
    cut = text[:MOST]
    console = Console(width=max(1, width), file=io.StringIO(), color_system=None, legacy_windows=False)
    lines = [
        part.plain.rstrip()
        for line in plain(cut).split("\n")
        for part in (Text(line).wrap(console, max(1, width), overflow="fold") if line else [Text("")])
    ]
    while lines and not lines[-1]:
        lines.pop()
    if len(text) > MOST:
        lines.append(f"… {len(text) - MOST:,} more characters")
    if most is not None and len(lines) > most:
        lines = [*lines[: most - 1], f"… {len(lines) - most + 1:,} more lines"]
    return lines or ["(nothing)"]


def one_line(text: str, width: int) -> str:
    """As much of a text as one line holds."""
    flat = " ".join(plain(text[:MOST]).split())
    return flat if cell_len(flat) <= width else set_cell_size(flat, max(0, width - 1)).rstrip() + "…"


def shown(
    change: Change, metric: str, *, width: int, lines: int | None = LINES, names: tuple[str, str] = ("before", "after")
) -> Iterator[str]:
    """One change, as lines of at most `width` cells."""
    width = max(20, width)
    head = f"{'worse' if change.worse else 'better'}  {plain(change.id)}  {metric} {number(change.before)} -> {number(change.after)}"
    yield one_line(head, width)
    yield from (f"  {line}" for line in folded(change.second.input, width - 2, None if lines is None else max(2, lines // 2)))
    target = change.second.target
    if target is not None:
        yield "  " + one_line(f"target: {target if isinstance(target, str) else ' | '.join(target)}", width - 2)
    cells = [
        [one_line(f"{name}: {status(sample, metric)}", cell), *folded(answer_of(sample), cell, lines)]
        for name, sample, cell in zip(names, (change.first, change.second), (columns(width),) * 2, strict=True)
    ]
    if width < LEAST_COLUMNS:
        for part in cells:
            yield from (f"  {line}" for line in part)
    else:
        left, right = cells
        for number_, line in enumerate([*left, *[""] * (len(right) - len(left))]):
            other = right[number_] if number_ < len(right) else ""
            yield f"  {set_cell_size(line, columns(width))} │ {other}".rstrip()


def columns(width: int) -> int:
    """Cells of one answer."""
    return width - 2 if width < LEAST_COLUMNS else (width - 5) // 2


def status(sample: Sample, metric: str) -> str:
    """What became of a sample, and what was read in it."""
    parts = (
        [f"{metric} {number(sample.scores[metric])}"]
        if metric in sample.scores
        else [f"{name} {number(score)}" for name, score in list(sample.scores.items())[:1]]
    )
    if sample.outcome != "ok":
        parts.append(sample.outcome)
    if sample.parsed is not None:
        parts.append(f"read as {sample.parsed}")
    return ", ".join(parts)


def answer_of(sample: Sample) -> str:
    """The answer, or why there is none."""
    return sample.answer if sample.answer is not None else f"no answer: {sample.error or sample.outcome}"


# --- for programs --------------------------------------------------------------------------------------------------------------------


def record(change: Change) -> dict[str, Any]:
    """A change with both samples, whole."""
    return {
        "id": change.id,
        "index": change.index,
        "before": change.before,
        "after": change.after,
        "worse": change.worse,
        "input": change.second.input,
        "target": change.second.target,
        "first": _sample(change.first),
        "second": _sample(change.second),
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "draw": sample.draw,
        "answer": sample.answer,
        "parsed": sample.parsed,
        "outcome": sample.outcome,
        "error": sample.error,
        "scores": sample.scores,
        "explanation": sample.explanation,
    }
