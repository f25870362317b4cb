"""cli: how a command shows that it works: a live view in a terminal, plain lines in a pipe. Draws, knows nothing of runs.

The live view draws at most four times a second, as many lines as the terminal has room for; plain lines come when something changed, at
most every few seconds, so that a log stays readable. Everything goes to stderr: stdout belongs to results. Texts may come from files,
workers and RunPod: nothing of them reaches a terminal but what it shows.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TextIO

from cli.policy import session
from contract.words import duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

DRAWS_PER_SECOND = 4
LINE_EVERY_S = 5.0
SILENT_MOST_S = 20.0
"""A log that says nothing for longer looks as if nothing happened."""
RECENT_S = 60.0
RECENT_STEPS = 8
"""The speed "now" is that of the last minute, or of the last eight steps where those took longer: rows come in shards."""
STEP_S = 0.25
SOON_S = 3.0
"""A speed that was measured for less is a guess."""
LABEL = 10
STEADY = ("cost",)
"""Details that grow by themselves while a run goes on: no reason for a line in a log."""
MOST_WRAPPED = 2
"""Lines that one thing takes where the terminal is narrow."""
DUMB = ("dumb", "unknown")
"""Terminals, by TERM, that cannot move their cursor."""
BAR = 60


@dataclass(frozen=True)
class Snapshot:
    """One moment of a phase. `total` is None while it is not known; `facts` are shown as they are ("3 of 5 shards")."""

    phase: str
    done: int
    total: int | None
    unit: str = "rows"
    failed: int = 0
    facts: tuple[str, ...] = ()
    planned_s: float | None = None
    """What the whole phase was planned to take: shown while nothing of it is done, since shards come in large pieces."""
    details: tuple[tuple[str, str], ...] = ()
    """What is told beside, each with a word for what it is, the most important first. Where there are some, the speed is told too."""
    tokens: int | None = None
    """Done so far, where tokens are counted."""
    share: float | None = None
    """How much of the work is done, of 1, where `done` of `total` does not tell that well."""
    waiting: bool = False
    """Nobody works on it: while nothing was done before, this time tells nothing of the speed."""

    @property
    def part(self) -> float:
        """How much of the work is done, of 1."""
        return self.share if self.share is not None else self.done / self.total if self.total else 0.0


class Progress(Protocol):
    """What a command reports to."""

    def update(self, snapshot: Snapshot) -> None:
        """A new moment; cheap, may be called thousands of times a second."""

    def note(self, text: str) -> None:
        """One thing that a person should know once, such as why nothing moves."""

    def beat(self) -> None:
        """Time passes: called about once a second, whether anything changed or not."""


def describe(snapshot: Snapshot, elapsed: float, speed: Speed | None = None, now: float = 0.0) -> str:
    """The snapshot as one line of plain text; with a `speed` it says how fast, and what is left of it at `now`."""
    text = f"{snapshot.phase}: {', '.join([*_head(snapshot), *snapshot.facts, *_left(speed, snapshot, now), _took(snapshot, elapsed)])}"
    return "; ".join([text, *(f"{label}: {told}" for label, told in _details(snapshot, speed, now))])


def _head(snapshot: Snapshot) -> list[str]:
    if snapshot.total:
        share = f"{snapshot.done:,} of {snapshot.total:,} {snapshot.unit} ({snapshot.done * 100 // snapshot.total} %)"
    else:
        share = f"{snapshot.done:,} {snapshot.unit}"
    return [share, *([f"{snapshot.failed:,} failed"] if snapshot.failed else [])]


def _took(snapshot: Snapshot, elapsed: float) -> str:
    if _planned(snapshot) is not None:
        return f"{duration(elapsed)} of about {duration(snapshot.planned_s or 0)} planned"
    return duration(elapsed)


def _left(speed: Speed | None, snapshot: Snapshot, now: float) -> list[str]:
    left = None if speed is None else speed.left(snapshot, now)
    return [] if left is None else [f"about {duration(left)} left"]


def _details(snapshot: Snapshot, speed: Speed | None, now: float) -> list[tuple[str, str]]:
    fast = speed.told(snapshot, now) if speed is not None and snapshot.details else None
    return [*snapshot.details, *([("speed", fast)] if fast else [])]


def tidy(text: str) -> str:
    """One line of text, without secrets and without what moves a terminal's cursor."""
    return " ".join(session.clean(text).split())


class Speed:
    """How fast a phase goes: of late, and since it is watched."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int, float]] = deque()
        self._first: tuple[float, int, int, float] | None = None

    def saw(self, snapshot: Snapshot, now: float) -> None:
        """A moment. Cheap: one that brings nothing new is dropped, and what comes at once is one step."""
        point = (now, snapshot.done, snapshot.tokens or 0, snapshot.part)
        if self._first is None or (snapshot.waiting and point[1] == self._first[1]):
            self._first = point
            self._points = deque([point])
        elif point[1:] != self._points[-1][1:]:
            if len(self._points) > 1 and now - self._points[-1][0] < STEP_S:
                self._points[-1] = (self._points[-1][0], *point[1:])
            else:
                self._points.append(point)
        while len(self._points) > RECENT_STEPS + 1 and self._points[1][0] <= now - RECENT_S:
            self._points.popleft()

    def told(self, snapshot: Snapshot, now: float) -> str | None:
        """`12.3 rows/s, 4,560 tokens/s now; 10.1 rows/s, 4,000 tokens/s over all`; None while nothing was done for some seconds."""
        if self._first is None or self._points[-1][1] == self._first[1] or now - self._first[0] < SOON_S:
            return None
        overall = self._rates(self._first, snapshot, now)
        recent = self._rates(self._points[0], snapshot, now)
        return overall if self._points[0] is self._first else f"{recent} now; {overall} over all"

    def left(self, snapshot: Snapshot, now: float) -> float | None:
        """Seconds that are left at the speed of late; None while that would be a guess out of nothing."""
        if self._first is None or not snapshot.total or snapshot.done >= snapshot.total:
            return None
        since = self._points[0]
        made = snapshot.part - since[3]
        if made <= 0 or now - since[0] < SOON_S:
            return None
        return max(0.0, 1 - snapshot.part) * (now - since[0]) / made

    def _rates(self, since: tuple[float, int, int, float], snapshot: Snapshot, now: float) -> str:
        seconds = max(now - since[0], 1e-9)
        text = f"{_rate((snapshot.done - since[1]) / seconds)} {snapshot.unit}/s"
        return text if snapshot.tokens is None else f"{text}, {_rate((snapshot.tokens - since[2]) / seconds)} tokens/s"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 0.95 or value == 0 else f"{value:.2g}"


def _planned(snapshot: Snapshot) -> float | None:
    """The planned time, where it is all that can be said of what is left."""
    return snapshot.planned_s if snapshot.planned_s and snapshot.total and not snapshot.done else None


def filled(snapshot: Snapshot, elapsed: float) -> float:
    """How much of the bar, of `total`: what is done, or while that is nothing the elapsed share of the planned time, never all of it."""
    total = snapshot.total or 0
    planned = _planned(snapshot)
    if planned is not None:
        return total * min(0.95, elapsed / planned)
    return float(min(snapshot.done, total))


def _news(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, details=tuple(one for one in snapshot.details if one[0] not in STEADY))


class Quiet:
    """Shows nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Nothing to draw."""

    def note(self, text: str) -> None:
        """Nothing to say."""

    def beat(self) -> None:
        """Nothing to repeat."""


class Lines:
    """Plain lines: at the start and the end of a phase, and in between every few seconds when something changed."""

    def __init__(self, stream: TextIO, *, every_s: float = LINE_EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._phase = ""
        self._began = self._printed_at = 0.0
        self._printed: Snapshot | None = None
        self._pending: Snapshot | None = None
        self._speed = Speed()

    def update(self, snapshot: Snapshot) -> None:
        now = self._clock()
        if snapshot.phase != self._phase:
            self.finish()
            self._phase, self._began, self._speed = snapshot.phase, now, Speed()
        self._speed.saw(snapshot, now)
        if self._printed is None or snapshot.phase != self._printed.phase:
            self._print(snapshot, now)
        elif snapshot != self._printed:
            self._pending = snapshot
            if not self._moved():
                return
            complete = snapshot.total is not None and snapshot.done >= snapshot.total
            was_complete = self._printed is not None and self._printed.total is not None and self._printed.done >= self._printed.total
            if now - self._printed_at >= self._every_s or (complete and not was_complete):
                self._print(snapshot, now)

    def note(self, text: str) -> None:
        print(session.clean(text), file=self._stream, flush=True)

    def beat(self) -> None:
        now, snapshot = self._clock(), self._pending or self._printed
        if snapshot is not None and now - self._printed_at >= (self._every_s if self._moved() else SILENT_MOST_S):
            self._print(snapshot, now)

    def _moved(self) -> bool:
        """There is news since the last line: more than what only grows with time."""
        return self._pending is not None and (self._printed is None or _news(self._pending) != _news(self._printed))

    def finish(self) -> None:
        """Print the last moment of the phase if it is not out yet."""
        if self._pending is not None:
            self._print(self._pending, self._clock())

    def _print(self, snapshot: Snapshot, now: float) -> None:
        self._printed, self._printed_at, self._pending = snapshot, now, None
        speed = self._speed if snapshot.details else None
        print(tidy(describe(snapshot, now - self._began, speed, now)), file=self._stream, flush=True)


class Live:
    """A few lines and a bar that are drawn in place. `rich` redraws from its own thread; `update` only stores."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(file=stream)
        self._snapshot: Snapshot | None = None
        self._began = time.monotonic()
        self._speed = Speed()
        self._drawn: tuple[int, tuple[int, ...]] = (0, ())
        """The terminal's width at the last draw, and how wide each line was."""
        self._live = RichLive(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=DRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # results go to stdout while the view is on
        )
        self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if self._snapshot is None or snapshot.phase != self._snapshot.phase:
            self._leave_a_line()
            self._began, self._speed = now, Speed()
        self._speed.saw(snapshot, now)
        self._snapshot = snapshot

    def note(self, text: str) -> None:
        self._console.print(session.clean(text), markup=False, highlight=False)

    def beat(self) -> None:
        """The view's own thread draws."""

    def finish(self) -> None:
        """Take the view off the screen and leave one line a phase."""
        self._leave_a_line()
        self._snapshot = None
        self._live.stop()

    def _leave_a_line(self) -> None:
        snapshot, now = self._snapshot, time.monotonic()
        if snapshot is not None:
            self.note(tidy(describe(snapshot, now - self._began, self._speed if snapshot.details else None, now)))

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        console, snapshot, now = self._console, self._snapshot, time.monotonic()
        width, height = console.size
        self._mind_the_width(width)
        if snapshot is None:
            self._drawn = (width, ())
            return Text("")
        room = max(1, height - 1)  # a line for what is noted
        bar = bool(snapshot.total) and room > 1
        elapsed = now - self._began
        lines, first = framed(console, snapshot, elapsed, self._speed, now, width, room - bar)
        self._drawn = (width, (*(line.cell_len for line in lines), *([min(BAR, width)] if bar else [])))
        shown: list[RenderableType] = list(lines)
        if bar:
            line = ProgressBar(total=snapshot.total, completed=filled(snapshot, elapsed), width=min(BAR, width))
            shown.insert(first, Padding(line, 0, expand=False))  # which ends its line
        return Group(*shown)

    def _mind_the_width(self, width: int) -> None:
        """A terminal that became narrower has broken the lines that are there: rich must go up over all of them to draw in their place."""
        before, lines = self._drawn
        if width < before and lines:
            rows = sum(max(1, -(-cells // width)) for cells in lines)
            self._live._live_render._shape = (width, rows)


def framed(console: Console, snapshot: Snapshot, elapsed: float, speed: Speed, now: float, width: int, room: int) -> tuple[list[Text], int]:
    """The lines of the view, at most `room` of at most `width` cells: the most important ones first, what does not fit is left out. And how
    many of them its first sentence takes."""
    from rich.text import Text

    dim = "" if console.no_color else "dim"
    head = [*_head(snapshot), *_left(speed, snapshot, now), _took(snapshot, elapsed)]
    told = [("", f"{snapshot.phase}: {', '.join(head)}")]
    told += [("", ", ".join(snapshot.facts))] if snapshot.facts else []
    told += _details(snapshot, speed, now)
    lines: list[Text] = []
    first = 0
    for number, (label, text) in enumerate(told):
        left = room - len(lines)
        if left <= 0:
            break
        label = f"{label:<{LABEL}}" if label else ""
        whole = Text(label + tidy(text), no_wrap=True, overflow="ellipsis", style=dim if number else "")
        pieces = list(whole.wrap(console, width, no_wrap=False)) if whole.cell_len > width else [whole]
        most = min(left, MOST_WRAPPED)
        if len(pieces) > most:
            rest = Text(" ".join(piece.plain.strip() for piece in pieces[most - 1 :]), no_wrap=True, overflow="ellipsis", style=whole.style)
            pieces = [*pieces[: most - 1], rest]
        for piece in pieces:
            piece.rstrip()
            piece.truncate(width, overflow="ellipsis")
        lines += pieces
        if number == 0:
            first = len(lines)
    return lines, first


@contextmanager
def shown(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """The right progress for where stderr goes."""
    out = sys.stderr if stream is None else stream
    if quiet:
        yield Quiet()
        return
    view: Live | Lines = Live(out) if out.isatty() and os.environ.get("TERM", "").lower() not in DUMB else Lines(out)
    try:
        yield view
    finally:
        view.finish()
