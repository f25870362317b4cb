"""Results of evaluations as tests need them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from nights.evals.results import result_id
from nights.evals.samples import EvalResult, ResultHeader, Sample

AT = datetime(2026, 11, 30, 2, 15, tzinfo=UTC)


def result_of(
    scores: Sequence[float] | Sequence[Sequence[float]],
    *,
    suite: str = "arithmetic",
    night: int = 0,
    metric: str = "exact",
    binary: bool | None = None,
    ids: Sequence[str] | None = None,
    answers: Sequence[str] | None = None,
    outcomes: dict[int, str] | None = None,
    **header: Any,
) -> EvalResult:
    """A result with these scores, a list of them for each question where draws are many."""
    rows: list[list[float]] = [[float(x) for x in one] if isinstance(one, Sequence) else [float(one)] for one in scores]
    samples = []
    for index, row in enumerate(rows):
        for draw, score in enumerate(row):
            outcome = (outcomes or {}).get(index, "ok")
            samples.append(
                Sample(
                    id=ids[index] if ids else f"q{index:05d}",
                    index=index,
                    draw=draw,
                    input=f"question {index}?",
                    target=str(index),
                    answer=None if outcome == "failed" else (answers[index] if answers else f"answer {index}.{draw}"),
                    parsed=str(index),
                    outcome=outcome,  # type: ignore[arg-type]
                    error="engine error" if outcome == "failed" else None,
                    scores={metric: float(score)},
                    tokens_in=7,
                    tokens_out=3,
                )
            )
    flat = [score for row in rows for score in row]
    at = AT + timedelta(days=night)
    made = ResultHeader(
        suite=suite,
        result=result_id(at, f"{suite}-{night}"),
        suite_digest="a" * 64,
        dataset_digest="d" * 64,
        headline=metric,
        binary=all(score in (0, 1) for score in flat) if binary is None else binary,
        draws=max((len(row) for row in rows), default=1),
        model="smollm2",
        stack="local",
        made_with={"model": "smollm2", "image": "worker@sha256:1", "sampling": "temperature=0"},
        scorers={metric: f"{metric} 1"},
        at=at,
        metrics={metric: sum(flat) / len(flat) if flat else 0.0},
        counts={one: sum(sample.outcome == one for sample in samples) for one in ("ok", "failed", "cut", "unparsed")},
    )
    return EvalResult(replace(made, **header), tuple(samples))
