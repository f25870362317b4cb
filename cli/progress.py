"""cli: how a command shows that it works: a live view in a terminal, plain lines in a pipe. Draws, knows nothing of runs.

The live view draws at most four times a second; plain lines come when something changed, at most every few seconds, so that a log stays
readable. Everything goes to stderr: stdout belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TextIO

from cli.policy import session

if TYPE_CHECKING:
    from rich.console import RenderableType

DRAWS_PER_SECOND = 4
LINE_EVERY_S = 5.0
SILENT_MOST_S = 20.0
"""A log that says nothing for longer looks as if nothing happened."""


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


class Progress(Protocol):
    """What a command reports to."""

    def update(self, snapshot: Snapshot) -> None:
        """A new moment; cheap, may be called thousands of times a second."""

    def note(self, text: str) -> None:
        """One thing that a person should know once, such as why nothing moves."""

    def beat(self) -> None:
        """Time passes: called about once a second, whether anything changed or not."""


def duration(seconds: float) -> str:
    """1.2 s, 45 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def describe(snapshot: Snapshot, elapsed: float) -> str:
    """The snapshot as one line of plain text."""
    if snapshot.total:
        share = f"{snapshot.done:,} of {snapshot.total:,} {snapshot.unit} ({snapshot.done * 100 // snapshot.total} %)"
    else:
        share = f"{snapshot.done:,} {snapshot.unit}"
    took = duration(elapsed)
    if _planned(snapshot) is not None:
        took = f"{took} of about {duration(snapshot.planned_s or 0)} planned"
    parts = [share, *([f"{snapshot.failed:,} failed"] if snapshot.failed else []), *snapshot.facts, took]
    return f"{snapshot.phase}: {', '.join(parts)}"


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

    def update(self, snapshot: Snapshot) -> None:
        now = self._clock()
        if snapshot.phase != self._phase:
            self.finish()
            self._phase, self._began = snapshot.phase, now
            self._print(snapshot, now)
        elif snapshot != self._printed:
            self._pending = snapshot
            complete = snapshot.total is not None and snapshot.done >= snapshot.total
            was_complete = self._printed is not None and self._printed.total is not None and self._printed.done >= self._printed.total
            if now - self._printed_at >= self._every_s or (complete and not was_complete):
                self._print(snapshot, now)

    def note(self, text: str) -> None:
        print(session.clean(text), file=self._stream, flush=True)

    def beat(self) -> None:
        now, snapshot = self._clock(), self._pending or self._printed
        if snapshot is not None and now - self._printed_at >= (self._every_s if self._pending else SILENT_MOST_S):
            self._print(snapshot, now)

    def finish(self) -> None:
        """Print the last moment of the phase if it is not out yet."""
        if self._pending is not None:
            self._print(self._pending, self._clock())

    def _print(self, snapshot: Snapshot, now: float) -> None:
        self._printed, self._printed_at, self._pending = snapshot, now, None
        print(describe(snapshot, now - self._began), file=self._stream, flush=True)


class Live:
    """A bar and a line of facts that are drawn in place. `rich` redraws from its own thread; `update` only stores."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._snapshot: Snapshot | None = None
        self._began = time.monotonic()
        self._first = 0
        self._live = RichLive(
            get_renderable=self._draw,
            console=Console(file=stream),
            refresh_per_second=DRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # results go to stdout while the view is on
        )
        self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        if self._snapshot is None or snapshot.phase != self._snapshot.phase:
            self._leave_a_line()
            self._began, self._first = time.monotonic(), snapshot.done
        self._snapshot = snapshot

    def note(self, text: str) -> None:
        self._live.console.print(session.clean(text), markup=False, highlight=False)

    def beat(self) -> None:
        """The view's own thread draws."""

    def finish(self) -> None:
        """Take the view off the screen and leave one line a phase."""
        self._leave_a_line()
        self._snapshot = None
        self._live.stop()

    def _leave_a_line(self) -> None:
        if self._snapshot is not None:
            self.note(describe(self._snapshot, time.monotonic() - self._began))

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        snapshot, elapsed = self._snapshot, time.monotonic() - self._began
        if snapshot is None:
            return Text("")
        left = remaining(snapshot, elapsed, self._first)
        first = describe(replace(snapshot, facts=()), elapsed) + (f", about {duration(left)} left" if left is not None else "")
        lines: list[RenderableType] = [Text(first, no_wrap=True, overflow="ellipsis")]
        if snapshot.facts:
            lines.append(Text(", ".join(snapshot.facts), no_wrap=True, overflow="ellipsis", style="dim"))
        if snapshot.total:
            lines.append(ProgressBar(total=snapshot.total, completed=filled(snapshot, elapsed), width=60))
        return Group(*lines)


def remaining(snapshot: Snapshot, elapsed: float, first: int) -> float | None:
    """Seconds that are left at the speed so far; None while that would be a guess out of nothing."""
    made = snapshot.done - first
    if not snapshot.total or made <= 0 or elapsed < 3 or snapshot.done >= snapshot.total:
        return None
    return (snapshot.total - snapshot.done) * elapsed / made


@contextmanager
def shown(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """The right progress for where stderr goes."""
    out = sys.stderr if stream is None else stream
    if quiet:
        yield Quiet()
        return
    view: Live | Lines = Live(out) if out.isatty() else Lines(out)
    try:
        yield view
    finally:
        view.finish()
