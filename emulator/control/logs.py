"""emulator: the logs of workers, as REST v2 streams them: server-sent events with a time on each line.

May touch: log files of workers (read only). `container` lines are what a worker's process prints; `system` lines are the emulator's own
(created, started, ready, ended). A process writes its file directly, so a line's time is that of the first tick at which the file held it.
"""

from __future__ import annotations

import bisect
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Source = Literal["container", "system"]
READ_LIMIT: Final = 8_000_000
"""Bytes of a log's end that are looked at."""
_MARKS: Final = 20_000
_WORKERS: Final = 500
"""Ended workers whose logs can still be read."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One line. `ts`: seconds since the epoch, in whole microseconds as ids show them, different for each line of a worker and source."""

    ts: float
    source: Source
    text: str


@dataclass(slots=True)
class _Log:
    path: Path | None
    lines: list[Line] = field(default_factory=list)
    """Of the system, and of workers that have no file."""
    marks: list[tuple[int, float]] = field(default_factory=list)
    """Sizes of the file, and when it was seen to have them."""
    ended: bool = False


class WorkerLogs:
    """The logs of all workers that this process has had."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._logs: dict[tuple[str, str], _Log] = {}

    def opened(self, endpoint: str, worker: str, path: Path | None) -> None:
        """A worker is there. `path`: what its process prints into; None: it says its lines through `say`."""
        self._logs[endpoint, worker] = _Log(path)
        ended = [key for key, found in self._logs.items() if found.ended]
        for key in ended[:-_WORKERS]:
            del self._logs[key]

    def say(self, endpoint: str, worker: str, text: str, source: Source = "system") -> None:
        found = self._logs.get((endpoint, worker))
        if found is not None:
            last = found.lines[-1].ts if found.lines else 0.0
            found.lines.append(Line(_after(last, self._time()), source, text))

    def ended(self, endpoint: str, worker: str) -> None:
        found = self._logs.get((endpoint, worker))
        if found is not None:
            self._mark(found)
            found.ended = True

    def is_live(self, endpoint: str, worker: str) -> bool | None:
        """Whether more can come; None: no such worker."""
        found = self._logs.get((endpoint, worker))
        return None if found is None else not found.ended

    def forget(self, endpoint: str) -> None:
        for key in [key for key in self._logs if key[0] == endpoint]:
            del self._logs[key]

    def tick(self) -> None:
        """Note how far files have grown."""
        for found in self._logs.values():
            if not found.ended:
                self._mark(found)

    def lines(self, endpoint: str, worker: str, source: Source | None = None) -> list[Line]:
        """Everything up to now, in order."""
        found = self._logs.get((endpoint, worker))
        if found is None:
            return []
        self._mark(found)
        every = [*found.lines, *_file_lines(found)]
        return sorted(line for line in every if source in (None, line.source))

    def _mark(self, found: _Log) -> None:
        if found.path is None:
            return
        try:
            size = os.stat(found.path).st_size
        except OSError:
            return  # nothing printed yet
        if size > (found.marks[-1][0] if found.marks else 0):
            found.marks.append((size, self._time()))
            if len(found.marks) > _MARKS:
                del found.marks[: _MARKS // 2]


def _after(last: float, now: float) -> float:
    """Now, or the microsecond after the last line."""
    return round(max(now, last + 1e-6), 6)


def _file_lines(found: _Log) -> list[Line]:
    if found.path is None or not found.marks:
        return []
    size = found.marks[-1][0]
    try:
        with open(found.path, "rb") as file:
            file.seek(max(0, size - READ_LIMIT))
            offset = file.tell()
            data = file.read(size - offset)
    except OSError:
        return []
    sizes = [mark for mark, _ in found.marks]
    lines: list[Line] = []
    last = 0.0
    for part in io.BytesIO(data):
        offset += len(part)
        if not part.endswith(b"\n") and not found.ended:
            break  # the rest of it is still to come
        at = found.marks[min(bisect.bisect_left(sizes, offset), len(sizes) - 1)][1]
        last = _after(last, at)
        lines.append(Line(last, "container", part.rstrip(b"\r\n").decode(errors="replace")))
    return lines
