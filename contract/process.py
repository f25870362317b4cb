"""contract: the one way in which a command is run whose children must not outlive it: `pulumi`, for facts and for everything else.

May touch: processes. A command has no terminal and gets no questions answered. Whatever it started ends with it, plugins included: those
have process groups of their own, but all live in the one session that a run is given. At its deadline, or when the caller is interrupted,
the command is interrupted first, so that it can write down what it has done; after its grace everything is killed. `alive` says whether a
process is still there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

LEFT_S: Final = 5.0
"""How long what a command started may take to end after it has."""

Hide = Callable[[str], str]


@dataclass(frozen=True)
class Ended:
    """What a command came to. `returncode`: its own; 128 + signal if one ended it."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    grace_s: float = 0.0,
    left_s: float = LEFT_S,
    hider: Callable[[], Hide] | None = None,
    on_line: Callable[[str], None] | None = None,
    on_start: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Ended:
    """Run `argv` in `cwd`. `grace_s`: from the interrupt to the end of everything. `hider` makes what hides secrets in each line; `on_line`
    is told every line as it comes, `on_start` the process. May be called from several threads at once. Raises OSError when there is no
    such program."""
    began = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    texts: tuple[list[str], list[str]] = ([], [])
    readers: list[threading.Thread] = []
    timed_out = False
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        hide = hider() if hider is not None else None
        for pipe, lines in zip((process.stdout, process.stderr), texts, strict=True):
            reader = threading.Thread(target=_read, args=(pipe, lines, hide, on_line), daemon=True)
            reader.start()
            readers.append(reader)
        if on_start is not None:
            on_start(process)
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        if process is not None:
            _end(process, grace_s, left_s)  # also on Ctrl-C, from its first moment on: nothing that was started is left behind
            for unread in (process.stdout, process.stderr)[len(readers) :]:
                if unread is not None:
                    unread.close()
        for reader in readers:
            reader.join(timeout=LEFT_S)
    assert process is not None
    code = process.returncode
    return Ended(code if code >= 0 else 128 - code, "".join(texts[0]), "".join(texts[1]), time.monotonic() - began, timed_out)


def _read(pipe: IO[bytes], lines: list[str], hide: Hide | None, on_line: Callable[[str], None] | None) -> None:
    with pipe:
        for raw in pipe:
            line = raw.decode(errors="replace")
            line = line if hide is None else hide(line)
            lines.append(line)
            if on_line is not None:
                on_line(line.rstrip("\n"))


def _end(process: subprocess.Popen[bytes], grace_s: float, left_s: float) -> None:
    """Let the command end by itself, and then everything of its session. Whoever interrupts a second time does not want to wait."""
    again: KeyboardInterrupt | None = None
    if process.poll() is None and grace_s > 0:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            pass
        except KeyboardInterrupt as error:
            again = error
    deadline = time.monotonic() + (left_s if process.poll() is not None else 0.0)
    while left := session_members(process.pid):
        if time.monotonic() >= deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
            process.wait()
        time.sleep(0.02)
    process.wait()
    if again is not None:
        raise again


def session_members(session: int) -> tuple[int, ...]:
    """Live processes of a session: a run's engine, language host, program and providers."""
    return tuple(pid for pid in _processes() if _belongs(pid, session))


def _processes() -> Iterable[int]:
    proc = Path("/proc")
    if (proc / "self").exists():
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def _belongs(pid: int, session: int) -> bool:
    try:
        if os.getsid(pid) != session:
            return False
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or b") Z " not in stat.read_bytes()  # a zombie has ended; whoever started it has not looked yet
    except (OSError, ValueError):
        return False  # it ended while we looked


def alive(pid: int) -> bool:
    """Whether this machine has a process of that number; one that cannot be asked counts as alive."""
    if os.name != "posix":
        return True  # there, signal 0 is not a question
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
