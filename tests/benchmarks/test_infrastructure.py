# tests/benchmarks: what the infrastructure's numbers count, without the engine.
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2_grpc

from benchmarks import infrastructure as bench
from benchmarks.harness import ROOT, CannotMeasure
from infra import rules
from infra.settings import parse, prices
from tests.infra.engine.kit import endpoint

PATHS = [["GET", "/v2/catalog/gpus", None], ["GET", "/v2/serverless", None]]
MADE = [["POST", "/v2/serverless", endpoint(f"e{number}")["props"]] for number in range(5)]


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [([], 0), ([(1, 3)], 2), ([(1, 3), (2, 4)], 3), ([(1, 5), (2, 3)], 4), ([(6, 7), (1, 2)], 2), ([(1, 2), (2, 3)], 2)],
)
def test_calls_at_the_same_time_count_once(intervals: list[tuple[float, float]], seconds: float) -> None:
    assert bench.covered(intervals) == seconds


def test_the_script_waits_for_the_reads_and_makes_everything_at_once() -> None:
    assert bench.in_order([*PATHS, *MADE]) == [[PATHS[0]], [PATHS[1]], MADE]


def test_the_benchmarks_stack_breaks_no_rule() -> None:
    values = {key.removeprefix("nightbatch:"): json.dumps(value) for key, value in bench.stack_file()["config"].items()}
    settings = parse(values, "one", environ={})
    assert len({one.name for one in settings.endpoints}) == bench.ENDPOINTS
    assert rules.check(settings, prices(settings)) == ()


@pytest.mark.parametrize(("in_order", "at_once", "answers_between"), [(True, 3, 3), (True, 8, 2), (False, 1, 6)])
def test_the_span_of_a_script_holds_every_answer_that_it_waits_for(
    tmp_path: Path, in_order: bool, at_once: int, answers_between: int
) -> None:
    """In order: two reads after one another, then five creates in as many waves as there is room for."""
    calls = [*PATHS, *MADE]
    with bench.cloud(tmp_path / "cloud", 0.1) as at:
        sample = bench.script(tmp_path / "steps.json", bench.in_order(calls) if in_order else [calls], at_once, at)
    assert sample.amount == 7
    assert sample.seconds >= 0.1 * answers_between


def test_a_script_whose_request_is_refused_gives_no_number(tmp_path: Path) -> None:
    with bench.cloud(tmp_path / "cloud") as at, pytest.raises(CannotMeasure, match="422"):
        bench.script(tmp_path / "steps.json", [[["POST", "/v2/serverless", {"name": "no image"}]], [PATHS[0]]], 8, at)


def test_a_provider_that_says_no_port_gives_no_number(tmp_path: Path) -> None:
    silent = tmp_path / "provider"
    silent.write_text("#!/bin/sh\necho no pulumi here\n")
    silent.chmod(0o755)
    with pytest.raises(CannotMeasure, match="no pulumi here"):
        bench.start(silent, dict(os.environ))


def test_the_watched_provider_notes_calls_and_its_own_time(tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    plugin = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.watched_provider", str(notes), "--logtostderr", "127.0.0.1:1"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert plugin.stdout is not None
        port = int(plugin.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert provider_pb2_grpc.ResourceProviderStub(channel).GetPluginInfo(empty_pb2.Empty(), timeout=10).version
        plugin.send_signal(signal.SIGINT)
        plugin.communicate(timeout=20)
    finally:
        plugin.kill()
    noted = json.loads(notes.read_text())
    ((method, begin, end),) = noted["calls"]
    assert (method, noted["rest"]) == ("GetPluginInfo", [])
    assert 0 <= end - begin < noted["cpu"] < 30
