"""nights/evals: what a score is worth: intervals, paired comparison, the smallest difference that a suite can see. Pure: numpy and scipy.

The unit is the question. Draws of one question are not independent, so a question counts once, with the mean of its draws, and resampling
takes whole questions. Equal results give equal numbers: what is drawn at random is seeded from the result ids.

- A score of zeros and ones: Wilson's interval (scipy). Others, and several draws: the bootstrap, BCa, its quantiles widened for few
  questions (Hesterberg 2015: by Student's t and the variance's n/(n-1)).
- Two results over the same questions: zeros and ones by McNemar's exact test (scipy's binomial test of the questions that changed) with
  Tango's score interval (1998); others by the paired bootstrap of the questions' differences, p being the level at which the interval
  just touches 0.
- Where nothing varies a bootstrap claims to know everything. Then a question counts as if it could have been wrong altogether: Wilson's
  and Tango's intervals, scaled to the metric.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import binomtest, norm
from scipy.stats import t as student

from contract.errors import UsageError
from nights.evals.samples import EvalResult

CONFIDENCE: Final = 0.95
POWER: Final = 0.8
RESAMPLES: Final = 2000
FEW: Final = 30
"""Questions below which every interval is rough."""
LARGEST: Final = 1e100
"""Past this a score is no number that could be squared."""
_CHUNK: Final = 1 << 20
"""Numbers that the bootstrap holds at once."""
PERCENT_METRICS: Final = ("bleu", "chrf", "ter")
"""Metrics that run from 0 to 100 (sacrebleu's); all others from 0 to 1, unless a score is larger."""

Numbers = npt.NDArray[np.float64]
Method = Literal["wilson", "bootstrap", "mcnemar"]


@dataclass(frozen=True)
class Questions:
    """One metric of one result: a value a question, the mean of its draws. `ceiling`: the most that the metric gives."""

    ids: tuple[str, ...]
    values: Numbers
    draws: int = 1
    ceiling: float = 1.0

    @property
    def binary(self) -> bool:
        """Every value is 0 or 1: a question was right or wrong."""
        return self.draws == 1 and self.ceiling == 1.0 and bool(np.isin(self.values, (0.0, 1.0)).all())


@dataclass(frozen=True)
class Interval:
    """A mean and where the true one is, at `confidence`, two-sided. `smallest`: the difference from such a result that another one over
    the same questions shows with 80 % power, if the two answer independently; None: no difference at all would do."""

    value: float
    low: float
    high: float
    confidence: float
    method: Method
    questions: int
    smallest: float | None = None
    notice: str | None = None


@dataclass(frozen=True)
class Comparison:
    """`second` against `first` over the same questions: `difference` is second minus first. `up`, `down`, `same`: questions by what became
    of their value. `p_value`: two-sided, of no difference. `smallest`: the difference that these two could show with 80 % power."""

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    confidence: float
    method: Method
    questions: int
    up: int
    down: int
    same: int
    smallest: float | None = None
    notice: str | None = None

    @property
    def significant(self) -> bool:
        """There is a difference, at the confidence."""
        return self.p_value <= 1 - self.confidence


# --- what is compared ----------------------------------------------------------------------------------------------------------------


def questions_of(result: EvalResult, metric: str | None = None, *, group: str | None = None) -> Questions:
    """The values of a metric (the headline unless said), of one group where said. `NAME@K` is estimated for each question from how many of
    its draws are right, as pass@k is. Raises UsageError where there is none to speak of."""
    header = result.header
    metric = header.headline if metric is None else metric
    where = f"{header.suite}/{header.result}"
    own, k = score_of(result, metric)
    draws: dict[str, list[float]] = {}
    drawn: set[tuple[str, int]] = set()
    for sample in result.samples:
        if group is not None and sample.group != group:
            continue
        score = sample.scores.get(own)
        if score is None:
            known = ", ".join(sorted(sample.scores)) or "none"
            raise UsageError(f"sample {sample.id!r} has no score `{own}`.", where=where, fix=f"It has: {known}.")
        if not abs(score) <= LARGEST:
            raise UsageError(f"the score `{own}` of sample {sample.id!r} is not a number.", where=where, fix="Mend its scorer.")
        if (sample.id, sample.draw) in drawn:
            raise UsageError(f"sample {sample.id!r} is there twice.", where=where, fix="A question needs an id of its own.")
        drawn.add((sample.id, sample.draw))
        draws.setdefault(sample.id, []).append(score)
    if not draws:
        raise UsageError("has no samples: there is nothing to count.", where=where if group is None else f"{where}, group {group}")
    short = next((name for name, scores in draws.items() if len(scores) != header.draws), None)
    if short is not None:
        raise UsageError(
            f"question {short!r} has {len(draws[short])} draws and the result says {header.draws}.",
            where=where,
            fix="A draw that failed is a sample, too.",
        )
    if k is not None and all(score in (0.0, 1.0) for scores in draws.values() for score in scores):
        values = np.array([at_k(len(scores), int(sum(scores)), k) for scores in draws.values()], dtype=np.float64)
    else:
        values = np.array([math.fsum(scores) / len(scores) for scores in draws.values()], dtype=np.float64)
    kind = header.scorers.get(metric, metric).lower()
    ceiling = 100.0 if kind.startswith(PERCENT_METRICS) else 1.0
    return Questions(tuple(draws), values, header.draws, max(ceiling, float(np.abs(values).max())))


def score_of(result: EvalResult, metric: str) -> tuple[str, int | None]:
    """Under which name samples have a metric, and K where it is `NAME@K` of several draws: the score of a sample is then that of one."""
    name, at, k = metric.rpartition("@")
    if not (at and k.isdigit() and 1 < int(k) <= result.header.draws):
        return metric, None
    have: Collection[str] = result.samples[0].scores if result.samples else ()
    return next((one for one in (metric, name, f"{name}@1") if one in have), metric), int(k)


def single_draw(result: EvalResult, metric: str) -> str:
    """The metric that tells the draws of a question apart: that of one draw, where `metric` is `NAME@K`."""
    name, at, k = metric.rpartition("@")
    have: Collection[str] = result.samples[0].scores if result.samples else ()
    return next((one for one in (name, f"{name}@1") if at and k.isdigit() and one in have), metric)


def at_k(draws: int, right: int, k: int) -> float:
    """Chance that one of `k` of the draws is right (Chen et al. 2021)."""
    return 1.0 - math.comb(draws - right, k) / math.comb(draws, k)


def seed_of(*ids: str) -> int:
    """The same ids, the same draws."""
    return int.from_bytes(hashlib.sha256("\0".join(ids).encode()).digest()[:16], "big")


# --- one result ----------------------------------------------------------------------------------------------------------------------


def interval(questions: Questions, *, seed: int, confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> Interval:
    """The mean of the questions and its interval."""
    _check(questions.values, confidence)
    n, value = len(questions.values), float(questions.values.mean())
    method: Method = "bootstrap"
    if questions.binary:
        low, high = wilson(value * n, n, confidence)
        method = "wilson"
    elif _constant(questions.values):
        share = min(max(value / questions.ceiling, 0.0), 1.0)
        low, high = (bound * questions.ceiling for bound in wilson(share * n, n, confidence))
        low, high = min(low, value), max(high, value)
    else:
        low, high = Bootstrap(questions.values, seed, resamples).interval(confidence)
    return Interval(value, low, high, confidence, method, n, smallest_alone(questions, confidence), notice_of(n))


def score_interval(
    result: EvalResult, metric: str | None = None, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> Interval:
    """The metric as the result's header says it. One of the whole corpus (BLEU) is not the mean of its samples' scores: their interval is
    moved to it, and that is said."""
    metric = result.header.headline if metric is None else metric
    questions = questions_of(result, metric)
    found = interval(questions, seed=seed_of(result.header.result), confidence=confidence, resamples=resamples)
    told = result.header.metrics.get(metric, found.value)
    if abs(told - found.value) <= 1e-6 * max(1.0, abs(told)):
        return found
    notice = f"{metric} is of the whole corpus: the interval is that of the mean of its samples' scores, {found.value:.4g}, moved to it"
    return replace(
        found,
        value=told,
        low=min(told, max(told + found.low - found.value, 0.0)),
        high=max(told, min(told + found.high - found.value, questions.ceiling)),
        notice="; ".join(one for one in (found.notice, notice) if one),
    )


def wilson(successes: float, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share. `successes` may be a sum of shares: no scores from 0 to 1 vary more than zeros and ones do."""
    if float(successes).is_integer():
        found = binomtest(int(successes), n).proportion_ci(confidence, method="wilson")
        return float(found.low), float(found.high)
    z = _z(confidence)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


# --- two results ---------------------------------------------------------------------------------------------------------------------


def compare(first: Questions, second: Questions, *, seed: int, confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> Comparison:
    """The second against the first, question by question. Raises UsageError where they are not of the same questions."""
    if set(first.ids) != set(second.ids):
        alone = sorted(set(first.ids) ^ set(second.ids))
        raise UsageError(f"{len(alone):,} questions are in one of both results only, such as {alone[0]!r}.")
    _check(first.values, confidence)
    place = {name: index for index, name in enumerate(second.ids)}
    after = second.values[[place[name] for name in first.ids]]
    changes = after - first.values
    n = len(changes)
    up, down = int((changes > 0).sum()), int((changes < 0).sum())
    ceiling = max(first.ceiling, second.ceiling)
    paired = Questions(first.ids, changes, max(first.draws, second.draws), ceiling)
    difference = float(changes.mean())
    method: Method = "bootstrap"
    if first.binary and second.binary:
        method = "mcnemar"
        p_value = mcnemar(up, down)
        low, high = tango(up, down, n, confidence)
    elif _constant(changes):
        p_value = mcnemar(up, down)
        half = tango(0, 0, n, confidence)[1] * ceiling
        low, high = max(difference - half, -ceiling), min(difference + half, ceiling)
    else:
        drawn = Bootstrap(changes, seed, resamples)
        p_value = drawn.p_value()
        low, high = drawn.interval(confidence)
    return Comparison(
        first=float(first.values.mean()),
        second=float(after.mean()),
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        confidence=confidence,
        method=method,
        questions=n,
        up=up,
        down=down,
        same=n - up - down,
        smallest=smallest_paired(paired, up + down if method == "mcnemar" else None, confidence),
        notice=notice_of(n),
    )


def mcnemar(up: int, down: int) -> float:
    """McNemar's exact test, two-sided: of the questions that changed, as many should go up as down."""
    return float(binomtest(up, up + down).pvalue) if up + down else 1.0


def tango(up: int, down: int, n: int, confidence: float) -> tuple[float, float]:
    """Tango's score interval of the difference (up - down) / n of paired shares: the differences that a score test does not reject."""
    z, estimate = _z(confidence), (up - down) / n

    def statistic(delta: float) -> float:
        linear = -up - down + (2 * n - up + down) * delta
        constant = -down * delta * (1 - delta)
        share = (math.sqrt(max(0.0, linear * linear - 8 * n * constant)) - linear) / (4 * n)
        variance = n * (2 * share + delta * (1 - delta))
        distance = up - down - n * delta
        return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0

    def bound(end: float, target: float) -> float:
        def height(delta: float) -> float:
            return max(-1e9, min(1e9, statistic(delta) - target))

        inner = estimate + (end - estimate) * 1e-12
        outer = end * (1 - 1e-12)
        if height(inner) * height(outer) >= 0:
            return end  # the estimate is at the end, or so near that nothing is rejected before it
        return float(brentq(height, min(inner, outer), max(inner, outer), xtol=1e-12))

    return bound(-1.0, z) if estimate > -1 else -1.0, bound(1.0, -z) if estimate < 1 else 1.0


# --- the bootstrap -------------------------------------------------------------------------------------------------------------------


class Bootstrap:
    """The mean of resampled values: bias-corrected and accelerated (Efron 1987)."""

    def __init__(self, values: Numbers, seed: int, resamples: int = RESAMPLES) -> None:
        self._n = len(values)
        self._mean = float(values.mean())
        self._means = np.sort(resampled_means(values, np.random.default_rng(seed), resamples))
        below = float(np.searchsorted(self._means, self._mean, "left") + np.searchsorted(self._means, self._mean, "right"))
        self._bias = float(norm.ppf(self._inside(below / (2 * resamples))))
        deviations = values - self._mean
        spread = float((deviations**2).sum())
        self._acceleration = float((deviations**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0

    def _inside(self, share: float) -> float:
        """A share of resamples, never quite none nor all."""
        least = 1 / (len(self._means) + 1)
        return min(max(share, least), 1 - least)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Two-sided."""
        low, high = (float(np.quantile(self._means, self._level(side * widened(confidence, self._n)))) for side in (-1, 1))
        return low, high

    def _level(self, z: float) -> float:
        shifted = self._bias + z
        slope = 1 - self._acceleration * shifted
        if slope <= 0:  # so skewed, and so far out, that the correction turns round: the end of what was drawn
            return 1.0 if shifted > 0 else 0.0
        return float(norm.cdf(self._bias + shifted / slope))

    def p_value(self, null: float = 0.0) -> float:
        """Two-sided: the level at which the interval just touches `null`."""
        share = float(np.searchsorted(self._means, null, "left") + np.searchsorted(self._means, null, "right")) / (2 * len(self._means))
        shifted = float(norm.ppf(self._inside(share))) - self._bias
        slope = 1 + self._acceleration * shifted
        if slope <= 0:
            return 1 / (len(self._means) + 1)
        z = shifted / slope - self._bias
        return min(1.0, 2 * float(student.sf(abs(z) * math.sqrt((self._n - 1) / self._n), self._n - 1)))


def resampled_means(values: Numbers, rng: np.random.Generator, resamples: int) -> Numbers:
    """Means of samples with replacement, drawn as scipy.stats.bootstrap draws them, but never many at once."""
    n = len(values)
    found = np.empty(resamples, dtype=np.float64)
    rows = max(1, _CHUNK // n)
    for start in range(0, resamples, rows):
        stop = min(resamples, start + rows)
        found[start:stop] = values[rng.integers(0, n, (stop - start, n))].mean(axis=1)
    return found


def widened(confidence: float, n: int) -> float:
    """The normal quantile for a bootstrap of n values, which is too narrow by n/(n-1) in variance, and knows of no t distribution."""
    return float(student.ppf((1 + confidence) / 2, n - 1)) * math.sqrt(n / (n - 1))


# --- the smallest difference that can be seen ----------------------------------------------------------------------------------------


def smallest_alone(questions: Questions, confidence: float = CONFIDENCE, power: float = POWER) -> float | None:
    """As if another result over the same questions were as good, as variable, and independent of this one: the worst case for a pair."""
    n = len(questions.values)
    if questions.binary or _constant(questions.values):
        share = (min(max(float(questions.values.mean()) / questions.ceiling, 0.0), 1.0) * n + 1) / (n + 2)
        found = _smallest_binary(2 * share * (1 - share), n, confidence, power)
        return None if found is None else found * questions.ceiling
    return _smallest(math.sqrt(2) * float(questions.values.std(ddof=1)), questions.ceiling, n, confidence, power)


def smallest_paired(changes: Questions, changed: int | None, confidence: float = CONFIDENCE, power: float = POWER) -> float | None:
    """Of two results that differ as these do. `changed`: questions, where right became wrong or the other way round; None: by variance."""
    n = len(changes.values)
    if changed is not None or _constant(changes.values):
        found = _smallest_binary(((changed or 0) + 1) / (n + 2), n, confidence, power)
        return None if found is None else found * changes.ceiling
    return _smallest(float(changes.values.std(ddof=1)), changes.ceiling, n, confidence, power)


def _smallest(spread: float, ceiling: float, n: int, confidence: float, power: float) -> float | None:
    """(z of the confidence, two-sided, + z of the power) x standard deviation of a question's difference / sqrt(questions)."""
    found = (widened(confidence, n) + float(norm.ppf(power))) * spread / math.sqrt(n)
    return found if found <= ceiling else None


def _smallest_binary(changing: float, n: int, confidence: float, power: float) -> float | None:
    """The d with d sqrt(n) = z_confidence sqrt(c) + z_power sqrt(c - d^2) (Connor 1987), where c is the share of questions that change; at
    least so many questions that McNemar's exact test can reject at all."""
    z, reach = _z(confidence), float(norm.ppf(power))

    def lack(delta: float, share: float) -> float:
        return delta * math.sqrt(n) - z * math.sqrt(share) - reach * math.sqrt(max(0.0, share - delta * delta))

    if lack(changing, changing) >= 0:
        found = float(brentq(lack, 0.0, changing, args=(changing,), xtol=1e-12))
    elif lack(1.0, 1.0) >= 0:  # so few change that all of those, one way, would not do: then more must change
        found = float(brentq(lambda delta: lack(delta, delta), changing, 1.0, xtol=1e-12))
    else:
        return None
    fewest = math.ceil(1 - math.log2(1 - confidence))
    return max(found, fewest / n) if fewest <= n else None


# --- small things --------------------------------------------------------------------------------------------------------------------


def notice_of(questions: int) -> str | None:
    """What must be said about so few questions."""
    if questions >= FEW:
        return None
    return f"only {'1 question' if questions == 1 else f'{questions} questions'}: the interval is rough"


def check_confidence(confidence: float, where: str = "confidence") -> None:
    """Raises UsageError."""
    if not 0.5 <= confidence < 1:
        raise UsageError("is no confidence.", where=f"{where} {confidence}", fix="It is at least 0.5 and below 1, such as 0.95.")


def _check(values: Sequence[float] | Numbers, confidence: float) -> None:
    check_confidence(confidence)
    if len(values) == 0:
        raise UsageError("there are no questions: there is nothing to count.")


def _constant(values: Numbers) -> bool:
    """Nothing varies, but for the last digits."""
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))


def _z(confidence: float) -> float:
    return float(norm.ppf((1 + confidence) / 2))
