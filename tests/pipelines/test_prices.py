# tests/pipelines: what a run is expected to take, and how that follows from prices, speeds and history.
from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prices import Past, Throughput, Work, billions, choose_pace, estimate, observed, output_tokens, reference, worker_seconds
from tests.pipelines.planning import EMBED, GENERATE

SPEED = Throughput(1000.0, 250.0, 0.5, 2.0, "test")
WORK = Work(shards=100, rows=10_000, tokens_in=1_000_000, out_low=100_000, out_likely=250_000, out_high=400_000)


def past(executions: int = 1, tokens_in: int = 40_000, tokens_out: int = 10_000, computing_s: float = 40.0) -> Past:
    return Past(executions, tokens_in, tokens_out, computing_s)


def test_dollars_are_billed_seconds_times_the_price() -> None:
    found = estimate(WORK, SPEED, GENERATE, 2)
    busy = 1_000_000 / 1000 + 250_000 / 250 + 100 * 1.0 / 2
    assert found.usd.likely == pytest.approx((busy + 2 * (60 + 5)) * 0.00019, rel=1e-6)
    assert found.workers == 2
    assert found.seconds.likely == pytest.approx(60 + busy / 2, rel=0.02)


@given(
    st.integers(1, 500),
    st.integers(0, 10**8),
    st.integers(0, 10**7),
    st.integers(1, 60),
    st.floats(1, 1e5),
    st.floats(1, 1e5),
    st.booleans(),
)
def test_low_is_never_more_than_likely_nor_likely_more_than_high(
    shards: int, tokens_in: int, limits: int, pace: int, speed_in: float, speed_out: float, emulated: bool
) -> None:
    work = Work(shards, shards, tokens_in, *output_tokens(limits))
    found = estimate(work, Throughput(speed_in, speed_out, 0.4, 2.5, "any"), GENERATE, pace, emulated=emulated)
    for span in (found.seconds, found.usd):
        assert 0 <= span.low <= span.likely <= span.high
    assert 1 <= found.workers <= pace


def test_more_workers_are_faster_and_cost_their_cold_starts() -> None:
    one, four = estimate(WORK, SPEED, GENERATE, 1), estimate(WORK, SPEED, GENERATE, 4)
    assert four.seconds.likely < one.seconds.likely / 3
    assert four.usd.likely - one.usd.likely == pytest.approx(3 * 65 * 0.00019, rel=1e-3)


def test_no_more_workers_are_counted_than_shards_can_occupy() -> None:
    assert estimate(Work(3, 3, 10, 0, 0, 0), SPEED, GENERATE, 50).workers == 2


@pytest.mark.parametrize(
    ("busy", "workers_max", "shards", "pace"),
    [(10.0, 5, 100, 1), (3000.0, 5, 100, 5), (900.0, 5, 100, 3), (9000.0, 60, 4, 2), (9000.0, 0, 9, 1)],
)
def test_the_pace_follows_the_work_the_shards_and_the_endpoint(busy: float, workers_max: int, shards: int, pace: int) -> None:
    endpoint = msgspec.structs.replace(GENERATE, workers_max=workers_max)
    assert choose_pace(Work(shards, 1, 1, 0, 0, 0), busy, endpoint) == pace


@pytest.mark.parametrize(
    ("model", "size", "known"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.135, True),
        ("Qwen/Qwen3-4B-Instruct-2507", 4, True),
        ("meta-llama/Llama-3.3-70B-Instruct", 70, True),
        ("Qwen2.5-0.5B", 0.5, True),
        ("/models/all-minilm-l6-v2", 0.022, True),
        ("smollm2", 0.135, True),
        ("gpt-oss", 8, False),
        ("model2b3", 8, False),
    ],
)
def test_a_models_size_is_told_from_its_name(model: str, size: float, known: bool) -> None:
    assert billions(model, "generate") == (size, known)


def test_the_reference_scales_with_the_gpu_and_says_that_it_is_one() -> None:
    small = msgspec.structs.replace(GENERATE, model="x-7B", gpu="NVIDIA L4")
    large = msgspec.structs.replace(small, gpu="NVIDIA H100 80GB HBM3", gpu_count=2)
    one, two = reference(small, "generate", emulated=False), reference(large, "generate", emulated=False)
    assert two.tokens_out_per_s == pytest.approx(one.tokens_out_per_s * 2 * 800 / 121)
    assert "not measured" in one.basis
    assert "NVIDIA L4" in one.basis
    assert reference(msgspec.structs.replace(small, gpu="NVIDIA L40S"), "generate", emulated=False).tokens_in_per_s > one.tokens_in_per_s


def test_an_unknown_gpu_still_has_a_reference() -> None:
    assert reference(msgspec.structs.replace(GENERATE, gpu="Something New"), "generate", emulated=False).tokens_in_per_s > 0


def test_the_emulators_reference_is_within_what_was_measured_on_cpu() -> None:
    embed = reference(EMBED, "embed", emulated=True)
    assert 2500 * embed.slow <= embed.tokens_in_per_s <= 5600 * embed.fast
    assert "emulator" in embed.basis
    generate = reference(GENERATE, "generate", emulated=True)
    assert 70 <= generate.tokens_out_per_s <= 570


def test_history_replaces_the_reference() -> None:
    speed = observed([past(executions=3), past(executions=3)], 2)
    assert speed is not None
    # Two runs with 20,000 tokens' worth of output each, in 20 seconds of a worker each (two executions share it).
    assert speed.tokens_out_per_s == pytest.approx(1000)
    assert speed.tokens_in_per_s == pytest.approx(4000)
    assert "2 past runs" in speed.basis
    assert "6 executions" in speed.basis
    assert speed.slow > 0.5


@pytest.mark.parametrize("runs", [[], [past(tokens_in=10, tokens_out=1)], [past(computing_s=0.0)]])
def test_history_without_enough_in_it_says_nothing(runs: list[Past]) -> None:
    assert observed(runs, 2) is None


def test_seconds_of_one_worker_do_not_depend_on_the_price() -> None:
    dear = msgspec.structs.replace(GENERATE, usd_per_second=9.0)
    assert worker_seconds(WORK, SPEED, dear) == worker_seconds(WORK, SPEED, GENERATE)
