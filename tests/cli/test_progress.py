"""Progress: readable in a log, calm in a terminal, nothing on stdout."""

from __future__ import annotations

import io
import os
import pty
import resource
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from cli.progress import Lines, Quiet, Snapshot, describe, duration, filled, remaining, shown


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_on_change_every_few_seconds_and_at_both_ends_of_a_phase() -> None:
    out, clock = io.StringIO(), Clock()
    lines = Lines(out, every_s=5, clock=clock)
    for second in range(13):
        clock.now = 100 + second
        lines.update(Snapshot("computing", second * 100, 2000, facts=(f"{second} of 20 shards",)))
    lines.update(Snapshot("collecting", 0, 2000))
    lines.finish()
    assert out.getvalue().splitlines() == [
        "computing: 0 of 2,000 rows (0 %), 0 of 20 shards, 0.0 s",
        "computing: 500 of 2,000 rows (25 %), 5 of 20 shards, 5.0 s",
        "computing: 1,000 of 2,000 rows (50 %), 10 of 20 shards, 10 s",
        "computing: 1,200 of 2,000 rows (60 %), 12 of 20 shards, 12 s",
        "collecting: 0 of 2,000 rows (0 %), 0.0 s",
    ]


def test_while_no_shard_is_done_the_elapsed_share_of_the_planned_time_is_shown() -> None:
    """A small dataset is one shard: its rows come all at once, at the end."""
    waits = Snapshot("computing", 0, 208, planned_s=80.0)
    assert describe(waits, 45.0) == "computing: 0 of 208 rows (0 %), 45 s of about 1 min 20 s planned"
    assert filled(waits, 40.0) == 104
    assert filled(waits, 800.0) < 208, "late, but not done"
    some = Snapshot("computing", 52, 208, planned_s=80.0)
    assert describe(some, 45.0) == "computing: 52 of 208 rows (25 %), 45 s"
    assert filled(some, 45.0) == 52


def test_where_nothing_changes_nothing_is_printed() -> None:
    out, clock = io.StringIO(), Clock()
    lines = Lines(out, clock=clock)
    for _ in range(100):
        clock.now += 60
        lines.update(Snapshot("computing", 1, 2))
    assert len(out.getvalue().splitlines()) == 1


def test_a_log_never_falls_silent_for_long() -> None:
    out, clock = io.StringIO(), Clock()
    lines = Lines(out, every_s=5, clock=clock)
    lines.update(Snapshot("computing", 0, 2))
    for _ in range(60):
        clock.now += 1
        lines.beat()
    assert [line.rpartition(", ")[2] for line in out.getvalue().splitlines()] == ["0.0 s", "20 s", "40 s", "1 min 00 s"]


def test_a_change_that_came_too_soon_to_be_printed_is_not_forgotten() -> None:
    out, clock = io.StringIO(), Clock()
    lines = Lines(out, every_s=5, clock=clock)
    lines.update(Snapshot("computing", 0, 2))
    clock.now += 1
    lines.update(Snapshot("computing", 1, 2))
    assert len(out.getvalue().splitlines()) == 1
    clock.now += 4
    lines.beat()
    assert out.getvalue().splitlines()[1] == "computing: 1 of 2 rows (50 %), 5.0 s"


def test_the_end_of_a_phase_is_said_at_once_and_only_once() -> None:
    out, clock = io.StringIO(), Clock()
    lines = Lines(out, clock=clock)
    lines.update(Snapshot("computing", 0, 2))
    lines.update(Snapshot("computing", 2, 2))
    lines.update(Snapshot("computing", 2, 2))
    lines.finish()
    assert out.getvalue().splitlines()[1:] == ["computing: 2 of 2 rows (100 %), 0.0 s"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3600, "1 h 00 min"), (7500, "2 h 05 min")],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_is_left_is_not_guessed_out_of_nothing() -> None:
    assert remaining(Snapshot("x", 500, 1000), 1.0, 0) is None
    assert remaining(Snapshot("x", 500, 1000), 10.0, 500) is None  # nothing made since a resume
    assert remaining(Snapshot("x", 500, 1000), 10.0, 0) == 10.0
    assert remaining(Snapshot("x", 1000, 1000), 10.0, 0) is None


def test_a_pipe_gets_plain_lines_and_quiet_gets_none() -> None:
    out = io.StringIO()
    with shown(stream=out) as progress:
        assert isinstance(progress, Lines)
        progress.update(Snapshot("computing", 1, 2))
        progress.note("no workers are allowed on the endpoint.")
    assert "\x1b" not in out.getvalue()
    assert "no workers are allowed" in out.getvalue()
    with shown(quiet=True, stream=out) as progress:
        assert isinstance(progress, Quiet)


LIVE = """
import sys, time, resource
from cli.progress import Snapshot, shown
with shown() as progress:
    progress.update(Snapshot("computing", 0, 1000))
    time.sleep(0.5)                      # imports and the first frame
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < 4:
        progress.update(Snapshot("computing", int((time.monotonic() - began) * 100), 1000, facts=("3 of 5 shards", "2 workers")))
        time.sleep(0.1)
    print((time.process_time() - used) / (time.monotonic() - began))
"""


def test_the_live_view_draws_at_most_four_times_a_second_and_costs_next_to_nothing() -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", LIVE], stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(follower)
        seen = bytearray()
        times: list[float] = []
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            seen += data
            if b"computing" in data:
                times.append(time.monotonic())
        assert process.stdout is not None
        share = float(process.stdout.read())
    os.close(leader)
    assert process.returncode == 0
    assert b"3 of 5 shards" in seen
    assert 8 <= len(times) <= 4 * 5 + 4
    assert sum(later - sooner < 0.1 for sooner, later in pairwise(times)) <= 2  # the last frame and the line that stays
    assert share < 0.02
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
