"""Progress: readable in a log, calm in a terminal, nothing on stdout."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import resource
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from cli import work
from cli.policy import session
from cli.progress import Lines, Quiet, Snapshot, Speed, describe, filled, framed, shown
from contract.protocol import Health
from contract.words import duration
from pipelines.follow import Ended
from pipelines.follow import Progress as FollowProgress
from tests.cli.screen import Screen
from tests.cli.test_work import plan


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


def speed_of(*moments: tuple[float, Snapshot]) -> Speed:
    speed = Speed()
    for now, snapshot in moments:
        speed.saw(snapshot, now)
    return speed


def test_what_is_left_is_not_guessed_out_of_nothing() -> None:
    begin, half, end = (Snapshot("x", done, 1000) for done in (0, 500, 1000))
    assert Speed().left(half, 1.0) is None
    assert speed_of((0, begin), (1, half)).left(half, 1.0) is None, "too soon"
    assert speed_of((0, half), (5, half)).left(half, 10.0) is None, "nothing made since a resume"
    assert speed_of((0, begin), (9, half)).left(half, 10.0) == pytest.approx(10.0)
    assert speed_of((0, begin), (9, end)).left(end, 10.0) is None
    assert speed_of((0, begin), (9, Snapshot("x", 5, None))).left(Snapshot("x", 5, None), 10.0) is None


def test_what_is_left_goes_by_the_share_of_the_work_and_by_the_last_steps() -> None:
    """Long shards come last here: half of the rows are a fifth of the work."""
    moments = [(float(at), Snapshot("x", at * 50, 1000, share=at * 0.02)) for at in range(11)]
    assert speed_of(*moments).left(moments[-1][1], 10.0) == pytest.approx(40.0)
    slow = [(100.0 * at, Snapshot("x", 500 + at, 1000, share=0.2 + at * 0.01)) for at in range(1, 12)]
    left = speed_of(*moments, *slow).left(slow[-1][1], 1100.0)
    assert left is not None
    assert left == pytest.approx((1 - 0.31) * 10_000, rel=0.3), "the fast beginning is long ago"


def test_speed_is_told_of_late_and_over_all() -> None:
    moments = [(float(at), Snapshot("x", min(at, 60) * 10, 9000, tokens=min(at, 60) * 1000, share=0.1)) for at in range(180)]
    speed = speed_of(*moments)
    assert speed.told(moments[179][1], 119.0) == "1.2 rows/s, 119 tokens/s now; 5.0 rows/s, 504 tokens/s over all"
    short = speed_of(*moments[:30])
    assert short.told(moments[29][1], 30.0) == "9.7 rows/s, 967 tokens/s"
    assert speed_of((0, moments[0][1])).told(moments[0][1], 60.0) is None, "0 rows/s would be no news"


def test_the_wait_for_the_first_worker_is_no_measure_of_speed() -> None:
    moments = [(float(at), Snapshot("x", max(0, at - 60) * 10, 1000, waiting=at < 60)) for at in range(71)]
    speed = speed_of(*moments)
    assert speed.left(moments[70][1], 70.0) == pytest.approx(90.0, rel=0.2)
    pause = replace(moments[70][1], waiting=True)
    assert speed_of(*moments, (170.0, pause)).left(pause, 170.0) > 500, "a later wait is one"  # type: ignore[operator]


def test_a_speed_keeps_little_however_often_it_is_told() -> None:
    speed = Speed()
    for number in range(100_000):
        speed.saw(Snapshot("x", number, 100_000), number / 1000)
    assert len(speed._points) < 1000


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


def moment(**more: Any) -> FollowProgress:
    found = FollowProgress(
        rows=1000,
        ok=390,
        failed=10,
        shards={"done": 4, "running": 2, "queued": 3, "waiting": 1, "failed": 0},
        attempts=9,
        workers=Health(running=2, initializing=1),
        worker_seconds=60.0,
        usd_estimated=0.25,
        usd_reserved=0.1,
        elapsed_s=60.0,
        tokens_in=4000,
        tokens_out=0,
        share=0.4,
        usd_so_far=0.3,
        usd_projected=0.7,
        failures=(("too_long", 7), ("bad", 2)),
        died=(("worker_died", 3),),
    )
    return replace(found, **more)


def shown_of(*events: Any) -> list[str]:
    out, clock = io.StringIO(), Clock()
    lines = Lines(out, every_s=0, clock=clock)
    show = work.on_follow(lines, plan(1000))
    for event in events:
        show(event)
        clock.now += 10
    lines.finish()
    return out.getvalue().splitlines()


def test_a_run_is_told_by_shards_workers_dollars_failures_and_speed() -> None:
    first, last = shown_of(moment(ok=0, failed=0, share=0.0, tokens_in=0, failures=(), died=(), usd_projected=None), moment())
    assert first == (
        "computing: 0 of 1,000 rows (0 %), 0.0 s of about 20 s planned; shards: 4 of 10 done, 2 running, 3 queued, 1 waiting; "
        "cost: $0.3000 so far, $0.0042 planned; workers: 1 initializing, 2 running"
    )
    assert last == (
        "computing: 400 of 1,000 rows (40 %), 10 failed, about 15 s left, 10 s; shards: 4 of 10 done, 2 running, 3 queued, 1 waiting; "
        "cost: $0.3000 so far, about $0.7000 in all, $0.0042 planned; workers: 1 initializing, 2 running; "
        "failures: 7 too_long, 2 bad, 1 other; attempts: lost: 3 worker_died; speed: 40.0 rows/s, 400 tokens/s"
    )


def test_in_a_log_dollars_alone_are_no_news() -> None:
    out, clock = io.StringIO(), Clock()
    lines = Lines(out, every_s=5, clock=clock)
    show = work.on_follow(lines, plan(1000))
    for number in range(60):
        show(moment(usd_so_far=number / 100))
        lines.beat()
        clock.now += 1
    said = out.getvalue().splitlines()
    assert [line.partition("cost: ")[2].partition(" so far")[0] for line in said] == ["$0.0000", "$0.2000", "$0.4000"]


def test_failures_whose_reasons_were_not_read_are_told_as_that() -> None:
    assert "failures: not looked at yet" in shown_of(moment(failures=()))[0]


def test_of_a_thousand_attempts_that_die_of_the_same_twenty_are_named() -> None:
    said = shown_of(*(Ended(f"{number:05}", 1, "dead", "worker_died") for number in range(1000)), Ended("00001", 2, "expired", None))
    assert len(said) == work.MOST_ENDED + 2
    assert said[work.MOST_ENDED].endswith("logs rows-embed-00000000 --errors names them")
    assert "expired" in said[-1]


HOSTILE = "\x1b[2J\x1b]0;title\x07evil\nnext\tline \u202e" + "x" * 500


def test_what_a_worker_calls_a_failure_reaches_no_terminal_as_it_is() -> None:
    session.hide(["sesame-open-now"])
    said = shown_of(moment(failures=((HOSTILE, 5), ("key sesame-open-now", 1)), died=((HOSTILE, 1),)))
    session.secrets.clear()
    assert len(said) == 1
    assert "\x1b" not in said[0]
    assert "\u202e" not in said[0]
    assert "sesame" not in said[0]
    assert len(said[0]) < 600


@pytest.mark.parametrize(("width", "room"), [(100, 20), (40, 20), (40, 4), (100, 4), (15, 2), (10, 1), (1, 1)])
def test_the_view_never_takes_more_room_than_there_is(width: int, room: int) -> None:
    show: list[Snapshot] = []

    class Keeps(Quiet):
        def update(self, snapshot: Snapshot) -> None:
            show.append(snapshot)

    work.on_follow(Keeps(), plan(1000))(moment(failures=((HOSTILE, 5), ("\u5bbd" * 80, 4))))
    lines, first = framed(Console(width=width), show[0], 10.0, Speed(), 10.0, width, room)
    assert 1 <= first <= len(lines) <= room
    assert all(line.cell_len <= width for line in lines)
    assert str(lines[0]).startswith("computing:"[: width - 1])
    if width == 100 and room == 4:
        assert [str(line)[:6] for line in lines] == ["comput", "shards", "cost  ", "worker"]


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


RUN = """
import sys, time
from cli.progress import shown
from cli.work import on_follow
from pipelines.follow import Ended
from tests.cli.test_progress import HOSTILE, moment
from tests.cli.test_work import plan
with shown() as progress:
    show = on_follow(progress, plan(1_000_000))
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 4:
        done = int(passed * 1000)
        shards = {"done": done, "running": 4, "queued": 20, "waiting": 4976 - done, "failed": 0}
        show(moment(rows=1_000_000, ok=done * 199, failed=done, shards=shards, share=done / 5000, failures=((HOSTILE, done),)))
        show(Ended("00001", 1, "dead", HOSTILE, HOSTILE))
        time.sleep(0.05)
"""


def in_terminal(width: int, height: int, *, resize_to: int | None = None, **environ: str) -> tuple[Screen, list[str]]:
    """What a terminal of this size shows of a run of 5,000 shards in the middle, and at the end; `resize_to`: its width from there on."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    screen, middle, began = Screen(width), [], time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=follower, stdout=follower, stderr=follower, env={**env, "TERM": "xterm", **environ}
    ) as process:
        while process.poll() is None or select.select([leader], [], [], 0.1)[0]:
            if select.select([leader], [], [], 0.1)[0]:
                screen.feed(os.read(leader, 65536).decode(errors="replace").replace("\r\n", "\n"))
            if resize_to is not None and screen.width != resize_to and time.monotonic() - began > 2.5:
                fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, resize_to, 0, 0))
                screen.resize(resize_to)
            ends = any("; " in f"{line} " for line in screen.text)  # the line that stays has come
            if any(line.startswith("shards ") for line in screen.text) and not ends:
                middle = list(screen.text)
    os.close(follower)
    os.close(leader)
    assert process.returncode == 0, screen.text
    assert screen.unknown == [], "nothing but what draws the view"
    return screen, middle


@pytest.mark.parametrize(("width", "height"), [(100, 30), (40, 30), (40, 5)])
def test_in_a_terminal_of_any_size_the_view_is_drawn_in_one_place(width: int, height: int) -> None:
    screen, middle = in_terminal(width, height)
    assert sum(line.startswith("computing:") for line in middle) == 1, "drawn again and again in its place"
    assert sum(line.startswith("shards ") for line in middle) == 1
    frame = middle[next(n for n, line in enumerate(middle) if line.startswith("computing:")) :]
    assert len(frame) <= height - 1
    assert sum(line.startswith("computing:") for line in screen.text) == 1, "and one line stays"
    assert not any(line.startswith("shards ") for line in screen.text)


def test_a_terminal_that_becomes_narrower_keeps_one_view() -> None:
    _, middle = in_terminal(120, 30, resize_to=50)
    assert sum(line.startswith("computing:") for line in middle) == 1
    assert sum(line.startswith("shards ") for line in middle) == 1


def test_without_colour_the_view_has_none() -> None:
    screen, middle = in_terminal(100, 30, NO_COLOR="1")
    assert any(line.startswith("shards ") for line in middle)
    assert screen.styles == []


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines() -> None:
    screen, _ = in_terminal(100, 30, TERM="dumb")
    assert screen.styles == []
    assert any(line.startswith("computing: 0 of 1,000,000 rows") for line in screen.text)
    assert not any(line.startswith("shards ") for line in screen.text)
