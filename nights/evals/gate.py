"""nights/evals: whether a result is good enough to go on with: limits in, a verdict, one sentence and an exit code out. Pure.

`min_score`            fails when the score is below it
`max_regression`       fails when the score is further below the baseline's than this, and the difference is no chance at `confidence`
`strict`               turns the burden round: fails unless the intervals exclude that the score is below `min_score`, and that it is
                       further below the baseline than `max_regression`
`max_failed_percent`   fails when more samples than this failed, were cut by length or could not be read

Where lower is better, `below` is `above`. A gate that cannot be judged (no baseline, or one that is not comparable) is not passed: exit 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from contract.errors import UsageError
from contract.models import Model
from nights.evals import stats
from nights.evals.baseline import Differences, NotComparable, compare
from nights.evals.samples import EvalResult, ResultHeader
from nights.record import EvalNight

State = Literal["passed", "failed", "none", "not comparable"]
EXIT_CODES: Final[dict[State, int]] = {"passed": 0, "none": 0, "failed": 1, "not comparable": 2}
ROUNDING: Final = 1e-9
"""A score that is a limit, but for the last digits, keeps it."""


class Gate(Model, frozen=True, kw_only=True):
    """What is asked of a result; None: nothing. `max_regression` is in the metric's own unit: 0.02 is two points of a hundred."""

    min_score: float | None = None
    max_regression: float | None = None
    confidence: float = stats.CONFIDENCE
    strict: bool = False
    max_failed_percent: float | None = None

    @property
    def asks(self) -> bool:
        return any(limit is not None for limit in (self.min_score, self.max_regression, self.max_failed_percent))


@dataclass(frozen=True)
class Verdict:
    """What a gate came to. `sentence` holds no content of a row."""

    state: State
    sentence: str
    interval: stats.Interval
    failed_percent: float
    baseline: str | None = None
    comparison: stats.Comparison | None = None
    differences: Differences | None = None
    notices: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]


def check_gate(gate: Gate, where: str = "gate") -> None:
    """Raises UsageError for a limit that is none."""
    stats.check_confidence(gate.confidence, f"{where}.confidence")
    for name, most in (("min_score", math.inf), ("max_regression", math.inf), ("max_failed_percent", 100.0)):
        value: float | None = getattr(gate, name)
        if value is not None and not (math.isfinite(value) and (name == "min_score" or 0 <= value <= most)):
            raise UsageError(
                "is no limit.", where=f"{where}.{name} {value}", fix=f"It is a number{'' if name == 'min_score' else ' from 0'}{_to(most)}."
            )


def _to(most: float) -> str:
    return f" to {most:g}" if math.isfinite(most) else ""


def judge(result: EvalResult, gate: Gate, baseline: EvalResult | None = None, *, name: str | None = None) -> Verdict:
    """Judge a result; `baseline`, `name`: what it is compared with, where there is one. A gate that asks nothing has state `none`."""
    check_gate(gate)
    header = result.header
    found = stats.score_interval(result, confidence=gate.confidence)
    failed = sum(sample.outcome != "ok" for sample in result.samples)
    failed_percent = 100 * failed / len(result.samples)
    comparison: stats.Comparison | None = None
    differing: Differences | None = None
    unjudged = ""
    if baseline is not None:
        try:
            comparison, differing = compare(baseline, result, confidence=gate.confidence)
        except NotComparable as error:
            unjudged = f"baseline {name or baseline.header.result} is not comparable ({'; '.join(error.reasons)})"
    elif gate.max_regression is not None:
        unjudged = f"there is no baseline{f' {name}' if name else ''} to compare with"
    reasons = list(_reasons(header, gate, found, comparison, name or "", failed_percent))
    state: State = "passed" if gate.asks else "none"
    if reasons:
        state = "failed"
    elif unjudged and gate.max_regression is not None:
        state = "not comparable"
    notices = [text for text in (unjudged if state != "not comparable" else "", found.notice or "") if text]
    if comparison is not None and gate.max_regression is not None and blind(comparison, gate.max_regression):
        smallest = "any difference" if comparison.smallest is None else f"a difference below {number(comparison.smallest)}"
        asked = "1 question does" if comparison.questions == 1 else f"{comparison.questions:,} questions do"
        notices.append(f"{asked} not reliably show {smallest}, and the gate speaks of {number(gate.max_regression)}")
    sentence = _sentence(state, reasons, unjudged, header, found, comparison, name)
    return Verdict(state, sentence, found, failed_percent, name, comparison, differing, tuple(notices))


def blind(comparison: stats.Comparison, limit: float) -> bool:
    """The suite cannot be relied on to see a regression of that size."""
    return comparison.smallest is None or comparison.smallest > limit + ROUNDING


def _reasons(
    header: ResultHeader, gate: Gate, found: stats.Interval, comparison: stats.Comparison | None, name: str, failed_percent: float
) -> list[str]:
    """Why the gate fails; none if it does not."""
    reasons: list[str] = []
    sign = 1 if header.higher_is_better else -1
    below = "below" if header.higher_is_better else "above"
    fallen = "fallen" if header.higher_is_better else "risen"
    metric = header.headline
    if gate.min_score is not None:
        worst = found.low if header.higher_is_better else found.high
        if sign * (found.value - gate.min_score) < -ROUNDING:
            reasons.append(f"{metric} {number(found.value)} is {below} {number(gate.min_score)}")
        elif gate.strict and sign * (worst - gate.min_score) < -ROUNDING:
            reasons.append(
                f"{metric} {number(found.value)} may be {below} {number(gate.min_score)} "
                f"(as {'low' if header.higher_is_better else 'high'} as {number(worst)} at {percent(gate.confidence)})"
            )
    if gate.max_regression is not None and comparison is not None:
        lost = -sign * comparison.difference
        most = -comparison.low if header.higher_is_better else comparison.high
        against = f"{metric} {number(comparison.second)} is {number(abs(lost))} {below} baseline {name} ({number(comparison.first)})"
        allowed = f"more than the {number(gate.max_regression)} allowed" if gate.max_regression else "where none is allowed"
        chance = f"p {p_value(comparison.p_value)}, {comparison.questions:,} questions"
        if lost > gate.max_regression + ROUNDING and comparison.significant:
            reasons.append(f"{against}, {allowed}, and not by chance ({chance})")
        elif gate.strict and most > gate.max_regression + ROUNDING:
            reasons.append(
                f"{metric} may have {fallen} by {number(most)} against baseline {name}, {allowed} "
                f"({percent(gate.confidence)} interval of the difference {span(comparison.low, comparison.high, sign=True)}, {chance})"
            )
    if gate.max_failed_percent is not None and failed_percent > gate.max_failed_percent + ROUNDING:
        reasons.append(
            f"{number(failed_percent)} % of the samples failed, were cut or could not be read, "
            f"more than the {number(gate.max_failed_percent)} % allowed"
        )
    return reasons


def _sentence(
    state: State,
    reasons: list[str],
    unjudged: str,
    header: ResultHeader,
    found: stats.Interval,
    comparison: stats.Comparison | None,
    name: str | None,
) -> str:
    if state == "failed":
        return f"The gate of {header.suite} failed: {'; '.join(reasons)}."
    if state == "not comparable":
        return f"The gate of {header.suite} could not be judged: {unjudged}."
    score = f"{header.headline} {number(found.value)} ({span(found.low, found.high)} at {percent(found.confidence)})"
    if comparison is not None:
        score += (
            f", {number(comparison.difference, sign=True)} against baseline {name or ''} "
            f"({span(comparison.low, comparison.high, sign=True)}, p {p_value(comparison.p_value)})"
        )
    return f"The gate of {header.suite} passed: {score}." if state == "passed" else f"{header.suite}: {score}."


def night_of(result: EvalResult, verdict: Verdict) -> EvalNight:
    """The verdict as a night's record keeps it."""
    header, found, comparison = result.header, verdict.interval, verdict.comparison
    return EvalNight(
        suite=header.suite,
        result=header.result,
        metric=header.headline,
        score=found.value,
        low=found.low,
        high=found.high,
        confidence=found.confidence,
        rows=found.questions,
        counts=header.counts,
        metrics=header.metrics,
        baseline=verdict.baseline,
        baseline_score=None if comparison is None else comparison.first,
        difference=None if comparison is None else comparison.difference,
        difference_low=None if comparison is None else comparison.low,
        difference_high=None if comparison is None else comparison.high,
        p_value=None if comparison is None else comparison.p_value,
        gate=verdict.state,
        sentence=verdict.sentence,
    )


# --- how numbers are said ------------------------------------------------------------------------------------------------------------


def number(value: float, *, sign: bool = False) -> str:
    """`0.4123`, `37.5`, `+0.021`: four digits, no exponent."""
    if abs(value) < 0.00005:
        return "0"
    digits = 4 if abs(value) < 1 else max(0, 3 - int(math.log10(abs(value))))
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def span(low: float, high: float, *, sign: bool = False) -> str:
    """`0.38 to 0.44`."""
    return f"{number(low, sign=sign)} to {number(high, sign=sign)}"


def percent(share: float) -> str:
    """`95 %`."""
    return f"{100 * share:.4g} %"


def p_value(value: float) -> str:
    """`= 0.031`, `< 0.001`."""
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"
