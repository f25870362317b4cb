"""nights/evals: a suite's results in time, what changed between one night and the next, and where the series breaks. Pure.

Results that are comparable with each other are one series, also when another suite stood between them: a suite that is changed and
changed back goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nights.evals import stats
from nights.evals.baseline import differences
from nights.evals.samples import ResultHeader


@dataclass(frozen=True)
class Entry:
    """One night of a suite. `series`: results with the same number are comparable; `breaks`: why this one is not comparable with the one
    before it; `changed`: what else differs from it. `difference`: from the latest earlier one of the series. `low`, `high`: the interval,
    where the header alone tells it (shares)."""

    header: ResultHeader
    series: int
    score: float
    low: float | None
    high: float | None
    difference: float | None
    breaks: tuple[str, ...]
    changed: tuple[str, ...]
    baselines: tuple[str, ...] = ()


def history(
    headers: Sequence[ResultHeader], *, pinned: Mapping[str, Sequence[str]] | None = None, confidence: float = stats.CONFIDENCE
) -> tuple[Entry, ...]:
    """Headers of one suite, oldest first. `pinned`: names of the baselines of a result."""
    entries: list[Entry] = []
    last_of: list[Entry] = []
    """The latest entry of each series."""
    for header in headers:
        score = header.metrics[header.headline]
        found = differences(entries[-1].header, header) if entries else None
        series = next((number for number, one in enumerate(last_of) if not differences(one.header, header).reasons), len(last_of))
        low, high = bounds(header, confidence)
        entry = Entry(
            header=header,
            series=series + 1,
            score=score,
            low=low,
            high=high,
            difference=score - last_of[series].score if series < len(last_of) else None,
            breaks=found.reasons if found else (),
            changed=found.changed if found else (),
            baselines=tuple((pinned or {}).get(header.result, ())),
        )
        entries.append(entry)
        last_of[series : series + 1] = [entry]
    return tuple(entries)


def bounds(header: ResultHeader, confidence: float) -> tuple[float | None, float | None]:
    """Wilson's interval, where the score is a share of the questions."""
    n = sum(header.counts.values())
    if not header.binary or header.draws != 1 or not n:
        return None, None
    return stats.wilson(min(max(header.metrics[header.headline], 0.0), 1.0) * n, n, confidence)


def record(entry: Entry) -> dict[str, Any]:
    """For programs."""
    header = entry.header
    return {
        "result": header.result,
        "at": header.at.isoformat(),
        "date": header.date,
        "model": header.model,
        "metric": header.headline,
        "score": entry.score,
        "low": entry.low,
        "high": entry.high,
        "difference": entry.difference,
        "series": entry.series,
        "breaks": list(entry.breaks),
        "changed": list(entry.changed),
        "baselines": list(entry.baselines),
        "counts": header.counts,
        "usd_estimated": header.usd_estimated,
    }
