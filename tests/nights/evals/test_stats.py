"""Intervals, comparisons and the smallest difference that can be seen: against scipy, published values, and counting all cases."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats as reference

from contract.errors import UsageError
from nights.evals import stats
from nights.evals.samples import EvalResult
from nights.evals.stats import Bootstrap, Numbers, Questions, compare, interval, mcnemar, questions_of, seed_of, tango, wilson
from tests.nights.evals.worlds import result_of


def questions(values: list[float] | Numbers, draws: int = 1, ceiling: float = 1.0) -> Questions:
    return Questions(tuple(f"q{index}" for index in range(len(values))), np.array(values, dtype=np.float64), draws, ceiling)


# --- what is counted -----------------------------------------------------------------------------------------------------------------


def test_a_question_counts_once_with_the_mean_of_its_draws_and_failed_draws_count_as_wrong() -> None:
    found = questions_of(result_of([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], outcomes={2: "failed"}))
    assert found.ids == ("q00000", "q00001", "q00002")
    assert found.values.tolist() == [0.5, 1.0, 0.0]
    assert not found.binary


def test_a_question_whose_draw_is_missing_is_refused() -> None:
    made = result_of([[1, 0], [1, 0]])
    with pytest.raises(UsageError, match=r"question 'q00001' has 1 draws and the result says 2"):
        questions_of(EvalResult(made.header, made.samples[:-1]))


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1e300])
def test_a_score_that_is_no_number_is_refused_and_named(score: float) -> None:
    with pytest.raises(UsageError, match=r"arithmetic/.*: the score `exact` of sample 'q00001' is not a number"):
        questions_of(result_of([1.0, score]))


def test_a_metric_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"has no score `rouge`. It has: exact"):
        questions_of(result_of([1.0]), "rouge")


def test_two_samples_of_one_id_and_draw_are_refused() -> None:
    with pytest.raises(UsageError, match="'a' is there twice"):
        questions_of(result_of([1, 0], ids=["a", "a"]))


def test_pass_at_k_is_estimated_question_by_question_from_the_draws() -> None:
    """By counting which two of four draws are right; and the values are the same where each draw carries its question's."""
    made = result_of([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], metric="pass@1")
    pairs = list(itertools.combinations(range(4), 2))
    by_hand = [sum(any(row[one] for one in pair) for pair in pairs) / len(pairs) for row in ([1, 0, 0, 0], [1, 1, 0, 0], [0] * 4, [1] * 4)]
    assert questions_of(made, "pass@2").values.tolist() == pytest.approx(by_hand)
    assert questions_of(made).values.tolist() == [0.25, 0.5, 0, 1]
    assert stats.single_draw(made, "pass@2") == "pass@1"
    carried = result_of([[value] * 4 for value in by_hand], metric="pass@2")
    assert questions_of(carried).values.tolist() == pytest.approx(by_hand)


def test_a_metric_of_the_whole_corpus_keeps_its_value_and_says_whose_interval_it_has() -> None:
    made = result_of([10.0, 30.0, 50.0, 20.0] * 10, metric="bleu", metrics={"bleu": 21.5}, scorers={"bleu": "bleu 1 (sacrebleu 2.5.1)"})
    found = stats.score_interval(made)
    assert found.value == 21.5
    assert found.low < 21.5 < found.high
    assert "bleu is of the whole corpus" in (found.notice or "")
    assert stats.score_interval(result_of([1, 0] * 20)).notice is None


def test_no_samples_are_no_score() -> None:
    with pytest.raises(UsageError, match="has no samples"):
        questions_of(result_of([]))
    with pytest.raises(UsageError, match="there are no questions"):
        interval(questions([]), seed=1)


@pytest.mark.parametrize("confidence", [0, 0.3, 1, 95, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(UsageError, match="is no confidence"):
        interval(questions([1, 0]), seed=1, confidence=confidence)


# --- the interval of a score ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_a_share_has_wilsons_interval_as_newcombe_published_it(right: int, n: int, low: float, high: float) -> None:
    """Newcombe (1998), Statistics in Medicine 17, 857-872, table I, method 3."""
    found = interval(questions([1.0] * right + [0.0] * (n - right)), seed=1)
    assert (round(found.low, 4), round(found.high, 4), found.method) == (low, high, "wilson")


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 50), (50, 50), (3, 7)])
def test_a_share_of_whole_questions_has_the_same_interval_by_formula_and_by_scipy(right: int, n: int) -> None:
    assert wilson(right, n, 0.9) == pytest.approx(wilson(right + 1e-12, n, 0.9), abs=1e-6)
    assert 0 <= wilson(right, n, 0.9)[0] <= right / n <= wilson(right, n, 0.9)[1] <= 1


def test_the_bootstrap_is_scipys_bca_at_the_widened_level() -> None:
    values = np.random.default_rng(3).exponential(1.0, 40)
    level = 2 * float(reference.norm.cdf(stats.widened(0.95, 40))) - 1
    theirs = reference.bootstrap(
        (values,), np.mean, n_resamples=2000, method="BCa", confidence_level=level, rng=np.random.default_rng(7)
    ).confidence_interval
    assert Bootstrap(values, 7).interval(0.95) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


def test_the_mean_of_resamples_is_what_all_cases_give() -> None:
    values = np.array([0.0, 0.25, 1.0, 0.5])
    every = [sum(case) / 4 for case in itertools.product(values, repeat=4)]
    drawn = stats.resampled_means(values, np.random.default_rng(1), 40_000)
    for level in (0.05, 0.3, 0.5, 0.9):
        cut = float(np.quantile(every, level)) + 1e-9
        assert (drawn <= cut).mean() == pytest.approx(np.mean(np.array(every) <= cut), abs=0.01)


def test_resamples_are_the_same_however_many_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).random(100)
    whole = stats.resampled_means(values, np.random.default_rng(5), 300)
    monkeypatch.setattr(stats, "_CHUNK", 700)
    assert stats.resampled_means(values, np.random.default_rng(5), 300).tolist() == whole.tolist()


def test_draws_of_one_question_are_no_questions_of_their_own() -> None:
    """Ten draws that always agree tell as much as one: the interval is that of the questions."""
    rng = np.random.default_rng(0)
    right = (rng.random(60) < 0.5).astype(float)
    once = interval(questions_of(result_of(right.tolist())), seed=1)
    often = interval(questions_of(result_of([[value] * 10 for value in right])), seed=1)
    as_if_apart = wilson(float(right.sum()) * 10, 600, 0.95)
    assert often.value == once.value
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.1)
    assert often.high - often.low > 2.5 * (as_if_apart[1] - as_if_apart[0])


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 2, 200])
def test_where_nothing_varies_the_interval_is_still_one(value: float, n: int) -> None:
    found = interval(questions([value] * n, draws=2), seed=1)
    assert found.low <= value <= found.high
    assert found.high - found.low > 1 / (n + 4)
    assert 0 <= found.low < found.high <= 1


def test_a_metric_of_another_scale_has_an_interval_on_that_scale() -> None:
    nothing = interval(questions_of(result_of([0.0] * 20, metric="bleu", binary=False)), seed=1)
    assert (nothing.low, round(nothing.high, 1)) == (0.0, 16.1)


@pytest.mark.parametrize("n", [1, 29, 30])
def test_few_questions_are_said(n: int) -> None:
    assert (interval(questions([1.0] * n), seed=1).notice is None) == (n == 30)


def test_equal_results_give_equal_numbers_and_other_ids_other_draws() -> None:
    values = np.random.default_rng(3).random(50)
    seed = seed_of("a", "b")
    assert interval(questions(values), seed=seed) == interval(questions(values), seed=seed_of("a", "b"))
    assert len({seed, seed_of("ab", ""), seed_of("b", "a"), seed_of("a")}) == 4
    assert interval(questions(values), seed=seed).low != interval(questions(values), seed=seed_of("b", "a")).low


@pytest.mark.parametrize(
    ("name", "n", "least", "truth", "draw"),
    [
        ("skewed", 40, 0.91, 1.0, lambda rng, n: rng.exponential(1.0, n)),
        ("shares", 40, 0.92, 0.5, lambda rng, n: rng.binomial(4, 0.5, n) / 4),
        ("mostly nothing", 100, 0.91, 0.05, lambda rng, n: np.where(rng.random(n) < 0.1, rng.random(n), 0.0)),
    ],
)
def test_the_interval_covers_the_truth_as_often_as_it_says(
    name: str, n: int, least: float, truth: float, draw: Callable[[np.random.Generator, int], Numbers]
) -> None:
    rng = np.random.default_rng(11)
    rounds = 300
    covered = rejected = 0
    for seed in range(rounds):
        found = Bootstrap(draw(rng, n), seed, 400)
        low, high = found.interval(0.95)
        covered += low <= truth <= high
        rejected += found.p_value(truth) <= 0.05
    assert least <= covered / rounds <= 0.985, name
    assert rejected / rounds <= 1 - least, name


# --- two results ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("up", "down"), [(1, 7), (7, 1), (0, 6), (0, 5), (12, 2), (3, 3), (0, 0), (0, 1)])
def test_mcnemars_test_counts_all_cases(up: int, down: int) -> None:
    n = up + down
    cases = [math.comb(n, heads) / 2**n for heads in range(n + 1)]
    as_odd = sum(chance for chance in cases if chance <= cases[up] * (1 + 1e-9))
    assert mcnemar(up, down) == pytest.approx(min(1.0, as_odd))


def test_a_published_pair_of_shares() -> None:
    """Fagerland, Lydersen and Laake (2014), Statistics in Medicine 33, 2850-2875: airway hyper-responsiveness, 1 and 7 of 21 changed."""
    assert round(mcnemar(1, 7), 3) == 0.070
    assert tuple(round(bound, 3) for bound in tango(1, 7, 21, 0.95)) == (-0.517, -0.026)


@pytest.mark.parametrize(
    ("up", "down", "n"), [(1, 7, 21), (0, 0, 10), (10, 0, 10), (0, 10, 10), (1, 0, 1), (0, 1, 1), (3, 3, 6), (900, 1, 1000)]
)
def test_tangos_interval_is_what_a_score_test_does_not_reject(up: int, down: int, n: int) -> None:
    """By looking at every difference, with the restricted maximum of the likelihood found by search."""
    low, high = tango(up, down, n, 0.95)
    kept = []
    for delta in np.linspace(-1, 1, 401)[1:-1]:
        falls = np.linspace(max(0.0, -delta), (1 - delta) / 2, 4001)[1:-1]
        rises = falls + delta
        with np.errstate(divide="ignore"):
            likelihood = up * np.log(rises) + down * np.log(falls) + (n - up - down) * np.log(np.maximum(1 - rises - falls, 1e-300))
        best = falls[int(np.argmax(likelihood))]
        z = (up - down - n * delta) / math.sqrt(n * (2 * best + delta - delta**2))
        if abs(z) <= 1.959964:
            kept.append(float(delta))
    assert low == pytest.approx(min([*kept, (up - down) / n]), abs=0.01)
    assert high == pytest.approx(max([*kept, (up - down) / n]), abs=0.01)
    assert low <= (up - down) / n <= high
    assert tango(down, up, n, 0.95) == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize(("n", "up", "down"), [(20, 0.2, 0.1), (30, 0.3, 0.05), (20, 0.05, 0.05)])
def test_tangos_interval_covers_the_truth_counted_over_all_tables(n: int, up: float, down: float) -> None:
    covered = 0.0
    for ups in range(n + 1):
        for downs in range(n + 1 - ups):
            chance = float(reference.multinomial.pmf([ups, downs, n - ups - downs], n, [up, down, 1 - up - down]))
            if chance > 1e-7:
                low, high = tango(ups, downs, n, 0.95)
                covered += chance * (low <= up - down <= high)
    assert covered >= 0.94


def test_two_results_are_compared_question_by_question_whatever_their_order() -> None:
    first, second = questions([1, 1, 0, 0, 1]), questions([1, 0, 0, 1, 1])
    turned = Questions(second.ids[::-1], second.values[::-1].copy())
    found = compare(first, turned, seed=1)
    assert (found.up, found.down, found.same, found.method) == (1, 1, 3, "mcnemar")
    assert found == compare(first, second, seed=1)


def test_questions_in_one_result_only_are_never_dropped() -> None:
    with pytest.raises(UsageError, match=r"1 questions are in one of both results only, such as 'q2'"):
        compare(questions([1, 0]), questions([1, 0, 1]), seed=1)


def test_several_draws_are_compared_by_their_question() -> None:
    first, second = result_of([[1, 0]] * 20 + [[0, 0]] * 20), result_of([[1, 1]] * 20 + [[0, 0]] * 20)
    found = compare(questions_of(first), questions_of(second), seed=1)
    assert (found.method, found.up, found.down, found.same) == ("bootstrap", 20, 0, 20)
    assert found.difference == pytest.approx(0.25)
    assert found.significant
    assert 0.1 < found.low < 0.25 < found.high < 0.4


def test_the_p_value_of_a_bootstrap_is_where_its_interval_touches_nothing() -> None:
    rng = np.random.default_rng(5)
    for shift in (0.05, 0.1, 0.15):
        drawn = Bootstrap(rng.normal(shift, 0.5, 60), 3)
        low, high = drawn.interval(1 - drawn.p_value())
        assert min(abs(low), abs(high)) == pytest.approx(0.0, abs=0.01)


def test_two_equal_results_differ_by_nothing_and_the_suites_blindness_is_kept() -> None:
    for values, draws in (([1.0, 0.0] * 25, 1), ([0.5, 0.25] * 25, 4)):
        found = compare(questions(values, draws), questions(values, draws), seed=1)
        assert (found.difference, found.p_value, found.up, found.down) == (0.0, 1.0, 0, 0)
        assert found.low == pytest.approx(-found.high)
        assert 0.05 < found.high < 0.1


def test_one_question_proves_nothing() -> None:
    for first, second in ((0.0, 1.0), (0.3, 0.7)):
        found = compare(questions([first]), questions([second]), seed=1)
        assert found.p_value == 1.0
        assert found.low < 0 < found.high
        assert found.smallest is None
        assert found.notice == "only 1 question: the interval is rough"


def test_all_questions_change_by_the_same_and_that_is_significant_but_not_certain() -> None:
    found = compare(questions([0.5] * 40, 2), questions([0.25] * 40, 2), seed=1)
    assert found.significant
    assert found.low < -0.25 < found.high < 0


# --- the smallest difference that can be seen ----------------------------------------------------------------------------------------


def power_of(difference: float, changing: float, n: int) -> float:
    """Of McNemar's exact test, counted over all numbers of changed questions."""
    up = (changing + difference) / (2 * changing)
    total = 0.0
    for changed in range(n + 1):
        ups = np.arange(changed + 1)
        rejected = 2 * reference.binom.cdf(np.minimum(ups, changed - ups), changed, 0.5) <= 0.05
        total += float(reference.binom.pmf(changed, n, changing) * reference.binom.pmf(ups, changed, up)[rejected].sum())
    return total


@pytest.mark.parametrize(("changed", "n"), [(40, 200), (12, 150)])
def test_the_smallest_difference_is_seen_four_times_in_five(changed: int, n: int) -> None:
    changing = (changed + 1) / (n + 2)
    found = stats.smallest_paired(questions([1.0] * changed + [0.0] * (n - changed)), changed)
    assert found is not None
    assert 0.75 <= power_of(found, changing, n) <= 0.83


def test_the_smallest_difference_of_means_is_the_textbooks() -> None:
    """(1.96 + 0.8416) x standard deviation / sqrt(n), for many questions."""
    values = np.random.default_rng(1).normal(0.0, 0.2, 4000)
    found = stats.smallest_paired(questions(values, draws=2), None)
    assert found == pytest.approx((1.959964 + 0.841621) * values.std(ddof=1) / math.sqrt(4000), rel=2e-3)
    alone = interval(questions(np.abs(values), draws=2), seed=1)
    assert alone.smallest == pytest.approx((1.959964 + 0.841621) * math.sqrt(2) * np.abs(values).std(ddof=1) / math.sqrt(4000), rel=2e-3)


@pytest.mark.parametrize(("n", "seen"), [(1, False), (5, False), (6, True), (40, True), (1000, True)])
def test_a_suite_of_few_questions_sees_nothing_and_says_so(n: int, seen: bool) -> None:
    found = interval(questions([1.0, 0.0] * (n // 2) + [1.0] * (n % 2)), seed=1).smallest
    assert (found is not None) == seen
    assert found is None or 0 < found <= 1


def test_more_questions_see_smaller_differences() -> None:
    found = [interval(questions([1.0, 0.0] * half), seed=1).smallest for half in (20, 100, 500, 5000)]
    assert all(one is not None for one in found)
    assert found == sorted(found, key=lambda one: -(one or 0))


def test_the_exact_tests_own_limit_is_kept() -> None:
    """Six questions that all change one way are the fewest that McNemar's exact test calls a difference at 95 %."""
    assert mcnemar(0, 5) > 0.05 >= mcnemar(0, 6)
    found = interval(questions([0.0] * 10_000), seed=1).smallest
    assert found is not None
    assert found >= 6 / 10_000


def test_no_input_makes_a_warning_or_a_number_that_is_none() -> None:
    rng = np.random.default_rng(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 2, 3, 7):
            for values in itertools.product((0.0, 0.5, 1.0), repeat=min(n, 3)):
                first = questions([*values, *rng.random(n - len(values))], draws=2)
                second = questions(list(reversed(first.values)), draws=2)
                found, paired = interval(first, seed=1, resamples=50), compare(first, second, seed=1, resamples=50)
                numbers = (found.low, found.value, found.high, paired.low, paired.difference, paired.high, paired.p_value)
                assert all(math.isfinite(number) for number in numbers), values
                assert found.low <= found.high
                assert 0 <= paired.p_value <= 1
