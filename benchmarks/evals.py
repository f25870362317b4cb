"""benchmarks: statistics of an evaluation of 10,000 rows with 2,000 bootstrap draws: seconds, beside scipy.stats.bootstrap in the same run.

    python -m benchmarks evals

What is measured is what `nightbatch eval gate` does once both results are read: from 10,000 samples of each to the interval of the score,
the paired comparison with a baseline, and the verdict. Scores are shares of four draws and means that are no shares, so that nothing is
computed by formula. The yardstick is scipy.stats.bootstrap of the same 10,000 numbers (BCa, vectorised, in batches of 100): the interval
alone, without a comparison. Both sides draw the same resamples; that they find the same interval is checked, or there is no result.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from benchmarks.harness import CannotMeasure, Line, Options, Result, Sample, median_seconds, say, stopwatch

ROWS: Final = 10_000
RESAMPLES: Final = 2_000
GOAL_S: Final = 5.0


def measure(options: Options) -> Result:
    """Seconds, and the ratio to scipy; medians."""
    rows = 500 if options.quick else ROWS
    try:
        import numpy as np
        import scipy.stats

        from nights.evals import stats
        from nights.evals.gate import Gate, judge
        from nights.evals.samples import EvalResult, ResultHeader
        from nights.evals.samples import Sample as Asked
    except ImportError as missing:
        raise CannotMeasure(f"this Python has no {missing.name}: install the extra `nights`.") from None

    def made(name: str, seed: int) -> EvalResult:
        rng = np.random.default_rng(seed)
        scores = np.clip(rng.beta(2, 3, rows) + rng.normal(0, 0.02, rows), 0, 1)
        samples = tuple(
            Asked(id=f"q{index}", index=index, input="?", answer="!", outcome="ok", scores={"rougeL": float(score)})
            for index, score in enumerate(scores)
        )
        header = ResultHeader(
            suite="bench", result=name, suite_digest="0" * 64, dataset_digest="0" * 64, headline="rougeL", binary=False, model="m",
            stack="local", made_with={}, scorers={"rougeL": "rouge"}, at=datetime(2026, 1, 1, tzinfo=UTC),
            metrics={"rougeL": float(scores.mean())}, counts={"ok": rows},
        )  # fmt: skip
        return EvalResult(header, samples)

    first, second = made("first", 1), made("second", 2)
    values = stats.questions_of(second).values
    seed = stats.seed_of("second")
    level = 2 * float(scipy.stats.norm.cdf(stats.widened(stats.CONFIDENCE, rows))) - 1
    samples: dict[str, list[Sample]] = {"gate": [], "interval": [], "scipy": []}
    for _ in range(options.reps):
        with stopwatch() as watch:
            judge(second, Gate(max_regression=0.01), first, name="first")
        samples["gate"].append(watch.sample(rows))
        with stopwatch() as watch:
            ours = stats.Bootstrap(values, seed, RESAMPLES).interval(stats.CONFIDENCE)
        samples["interval"].append(watch.sample(rows))
        with stopwatch() as watch:
            theirs = scipy.stats.bootstrap(
                (values,), np.mean, n_resamples=RESAMPLES, method="BCa", confidence_level=level, batch=100, vectorized=True,
                rng=np.random.default_rng(seed),
            ).confidence_interval  # fmt: skip
        samples["scipy"].append(watch.sample(rows))
        say(f"  gate {samples['gate'][-1].seconds:.2f} s, interval {samples['interval'][-1].seconds:.2f} s, scipy {watch.seconds:.2f} s")
        if not np.allclose(ours, (theirs.low, theirs.high), rtol=1e-6):
            raise CannotMeasure(f"the two intervals differ: {ours} and {tuple(theirs)}.")
    if stats.RESAMPLES != RESAMPLES:
        raise CannotMeasure(f"the gate draws {stats.RESAMPLES:,} times, not {RESAMPLES:,}.")
    seconds = {name: median_seconds(group) for name, group in samples.items()}
    lines = (
        Line(f"evals: gate of {rows:,} rows, {RESAMPLES:,} bootstrap draws", seconds["gate"], "s", "<", GOAL_S),
        Line("evals: its interval alone", seconds["interval"], "s"),
        Line("evals: the interval, times scipy.stats.bootstrap's seconds", seconds["interval"] / seconds["scipy"], "x"),
    )
    settings = {"rows": rows, "resamples": RESAMPLES, "scipy": scipy.__version__, "numpy": np.__version__}
    return Result("evals", lines, {name: tuple(group) for name, group in samples.items()}, settings)
