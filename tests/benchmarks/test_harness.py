# tests/benchmarks: what a number of `make bench` means, and that a number is never made up.
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.harness import (
    CannotMeasure,
    Line,
    Result,
    Sample,
    keep,
    machine,
    median_rate,
    median_seconds,
    number,
    stopwatch,
    table,
    tree_cpu_seconds,
)

SPIN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"


def test_the_median_of_rates_is_not_moved_by_one_bad_sample() -> None:
    samples = [Sample(2.0, 100), Sample(2.0, 100), Sample(200.0, 100)]
    assert median_rate(samples) == 50
    assert median_seconds(samples) == 2.0


@pytest.mark.parametrize(
    ("sense", "limit", "value", "met"),
    [
        (">=", 0.9, 0.9, True),
        (">=", 0.9, 0.89, False),
        ("<=", 48, 48, True),
        ("<=", 48, 48.1, False),
        ("<", 1, 1, False),
        (None, None, 1, None),
    ],
)
def test_a_target_is_met_or_missed_as_it_was_asked_for(sense: object, limit: float | None, value: float, met: bool | None) -> None:
    assert Line("x", value, "x", sense, limit).met is met  # type: ignore[arg-type]


def test_the_table_names_what_was_missed_disturbed_and_not_measured() -> None:
    busy = Result("a", (Line("a: ratio", 0.5, "x", ">=", 0.9),), {"s": (Sample(1, 1, 0.5),)})
    calm = Result("b", (Line("b: rate", 1234.5, "rows/s"), Line("b: ratio", 2.0, "x", ">=", 1.2)), {"s": (Sample(1, 1, 0.01),)})
    lines = table([busy, calm], {"c": "no S3 server."}).splitlines()
    assert lines[1].split() == ["a:", "ratio", "0.5", "x", ">=", "0.9", "x", "MISSED,", "disturbed"]
    assert lines[2].split() == ["b:", "rate", "1,234", "rows/s"]
    assert lines[3].endswith("met")
    assert "not measured: no S3 server." in lines[4]
    assert lines[5].startswith("disturbed:")


@pytest.mark.parametrize(("value", "text"), [(0.8714, "0.871"), (23.456, "23.5"), (145.6, "146"), (5000.0, "5,000")])
def test_numbers_are_shown_with_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_what_is_kept_is_read_back_and_names_no_machine(tmp_path: Path) -> None:
    samples: dict[str, tuple[Sample, ...]] = {"s": (Sample(1.5, 3, 0.02), Sample(1.6, 3, None))}
    result = Result("a", (Line("a: ratio", 0.95, "x", ">=", 0.9),), samples, {"rows": 3}, ("n",))
    path = keep(result, machine(), tmp_path)
    assert bench.read(path) == result
    record = json.loads(path.read_text())
    assert record["lines"][0]["met"] is True
    assert record["machine"]["cores"] >= 1
    text = path.read_text()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text
    assert "/" not in json.dumps(record["machine"])


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="/proc says what other programs take")
def test_the_processor_time_of_children_is_counted_as_our_own() -> None:
    before = tree_cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", SPIN.format(seconds=0.3)], check=True)
    assert tree_cpu_seconds(os.getpid()) - before >= 0.25


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="/proc says what other programs take")
def test_a_stopwatch_tells_its_own_work_from_that_of_others() -> None:
    with stopwatch() as watch:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
    assert watch.seconds >= 0.5
    assert watch.foreign is not None
    # Our own half second must not be in it: where others take nothing, it is nothing; it never passes what is left for others.
    cores = len(os.sched_getaffinity(0))
    assert watch.foreign <= 1 - 0.45 / (watch.seconds * cores)


def test_a_benchmark_that_cannot_measure_gives_no_number_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import startup

    def refuse(options: object) -> Result:
        raise CannotMeasure("no terminal here.")

    monkeypatch.setattr(startup, "measure", refuse)
    assert bench.main(["startup", "--quick"]) == 1
    assert "startup" in (out := capsys.readouterr().out)
    assert "not measured: no terminal here." in out


def test_an_unknown_benchmark_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["nonsense"])
    assert ended.value.code == 2
