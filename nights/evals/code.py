"""nights/evals: runs generated code, each program shut in by itself (`jail.py`), and says what became of it. Touches processes.

Only where a suite says `allow_code_execution: true`. What is kept from a program, by `isolation`:

    full      new namespaces: no network, no file of this machine but the interpreter and the system's libraries (read-only), no other
              process, no environment; /tmp in memory. Needs Linux with user namespaces, or root
    network   no socket, no new process, no signal to others (a filter of system calls). It can read and write what this user can
    limits    rlimits, an empty environment, a folder of its own, and no more

`full` is the default, and where it cannot be had the evaluation is refused: nothing weaker is used unless the suite says so. In all of them
time, memory, output, file size and processes are bounded, and the whole group is killed at the end.

A program has passed when its tests ran to their end: only then it writes a word that was drawn for it, and that it is given after its own
code was loaded. Text that it prints, its exit status and what it does to files mean nothing. But the tests run in the same interpreter as
the code: code that was written against this very harness, or whose values claim to be equal to everything, can pass. pass@k is a measure
of models that try, not a wall against one that cheats; the isolation does not rest on it.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

from contract.errors import InfrastructureError, Interrupted
from nights.evals import jail as jail_module

Isolation = Literal["full", "network", "limits"]
Verdict = Literal["passed", "failed", "error", "ended", "timeout", "output", "killed"]
"""`failed`: a test did not hold; `error`: the code could not be loaded; `ended`: it ended before its tests had; `output`: it wrote too
much; `killed`: by a signal, such as that of a limit."""
JAIL: Final = Path(jail_module.__file__)
GRACE_S: Final = 2.0
TICK_S: Final = 0.05
MOST_SAID: Final = 4096
_PLACE: Final = re.compile(r"(code|tests)\.py:[0-9]{1,9}")
_FENCE: Final = re.compile(
    r"^[ \t]*(?:```|~~~)[ \t]*([A-Za-z0-9_+-]*)[^\n]*\n(.*?)(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Limits:
    """Of one program. Seconds of CPU, memory and file size are each process's; `/tmp` holds as much as one file may have.

    A program that computes too long is told by its CPU time, so that a busy machine makes no right program a wrong one; one that waits is
    ended by the clock, after `wall_s` (by default four times as long).
    """

    seconds: float = 10.0
    wall_s: float | None = None
    memory_mb: int = 512
    output_kb: int = 64
    file_mb: int = 16
    processes: int = 16

    @property
    def cpu_s(self) -> int:
        return max(1, math.ceil(self.seconds))

    @property
    def clock_s(self) -> float:
        return self.wall_s if self.wall_s is not None else 4 * self.cpu_s


@dataclass(frozen=True)
class Program:
    """`code` runs first, `tests` after it in the same interpreter and names."""

    code: str
    tests: str


@dataclass(frozen=True)
class Ran:
    """What became of a program. `reason`: for people; in `full`, where there is nothing that it could tell, with its error's own text."""

    verdict: Verdict
    reason: str = ""
    output: str = field(default="", repr=False)
    """The beginning of what it printed."""
    isolation: Isolation | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"


def take_code(answer: str) -> str:
    """The code of an answer: its last fenced block that says python, else its last block, else all of it."""
    blocks = [(found[1].lower(), found[2]) for found in _FENCE.finditer(answer)]
    if not blocks:
        return answer
    named = [text for language, text in blocks if language in ("python", "python3", "py")]
    return named[-1] if named else blocks[-1][1]


def run_program(
    program: Program, limits: Limits | None = None, *, isolation: Isolation = "full", stop: threading.Event | None = None
) -> Ran:
    """Run one program and wait for its end. Raises InfrastructureError where this machine cannot shut it in as asked, Interrupted once
    `stop` is set."""
    limits = limits or Limits()
    with _folder() as folder:
        return _Execution(program, limits, isolation, folder, stop).run()


def run_programs(
    programs: Sequence[Program],
    limits: Limits | None = None,
    *,
    isolation: Isolation = "full",
    at_once: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> list[Ran]:
    """Run many, `at_once` beside each other (by default one for each core), results in order. Set `stop` to end early: Interrupted."""
    done = 0
    lock = threading.Lock()

    def one(program: Program) -> Ran:
        nonlocal done
        ran = run_program(program, limits, isolation=isolation, stop=stop)
        with lock:
            done += 1
            if progress is not None:
                progress(done, len(programs))
        return ran

    if programs:
        one_first = run_program(Program("", ""), limits, isolation=isolation)  # says once, and not 500 times, that it cannot be done
        if not one_first.passed:
            raise InfrastructureError(
                f"not even an empty program can run under these limits ({one_first.verdict}: {one_first.reason}).",
                where="code execution",
                fix="Raise the limits of the suite's code scorer.",
            )
    with ThreadPoolExecutor(at_once or max(1, os.cpu_count() or 1), thread_name_prefix="code") as pool:
        futures = [pool.submit(one, program) for program in programs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def base_python() -> tuple[str, tuple[str, ...]]:
    """The interpreter under this environment, which has no packages, and the folders that it needs."""
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    return executable, tuple(dict.fromkeys((os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix))))


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder of the program's own, gone with it, whatever it did to it."""
    made = tempfile.mkdtemp(prefix="nightbatch-code-")
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            os.chmod(made, 0o700)
        shutil.rmtree(made, ignore_errors=True)


class _Execution:
    """One program: its process, its pipes and its clock."""

    def __init__(self, program: Program, limits: Limits, isolation: Isolation, folder: str, stop: threading.Event | None) -> None:
        self._limits = limits
        self._stop = stop
        self._isolation: Isolation = isolation
        self._folder = folder
        self._word = secrets.token_hex(16).encode()
        self._job = b"".join(len(part).to_bytes(8, "big") + part for part in (_bytes(program.code), _bytes(program.tests), self._word))
        python, show = base_python()
        self._python = python
        self._setup = {
            "isolation": isolation,
            "root": folder,
            "show": show,
            "python": python,
            # No other process has this user: a limit of processes counts them by user.
            "uid": 1_800_000_000 + secrets.randbelow(100_000_000),
            "limits": {
                "cpu_s": limits.cpu_s,
                "memory": limits.memory_mb << 20,
                "file": limits.file_mb << 20,
                "processes": limits.processes,
            },
        }

    def run(self) -> Ran:
        ends: list[int] = []

        def pipe() -> tuple[int, int]:
            made = os.pipe()
            ends.extend(made)
            return made

        try:
            setup, job, verdict, status = pipe(), pipe(), pipe(), pipe()
            theirs = (setup[0], job[0], verdict[1], status[1])
            command = [self._python, "-I", "-S", "-B", str(JAIL), *map(str, theirs)]
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={},
                    cwd="/",
                    pass_fds=theirs,
                    start_new_session=True,
                )
            except OSError as error:
                raise InfrastructureError(f"generated code cannot be run: {error.strerror}.", where=self._python) from None
            for handle in theirs:
                os.close(handle)
                ends.remove(handle)
            try:
                return self._follow(process, setup[1], job[1], verdict[0], status[0], ends)
            finally:
                _kill(process)
                assert process.stdout is not None
                process.stdout.close()
        finally:
            for handle in ends:
                os.close(handle)

    def _follow(self, process: subprocess.Popen[bytes], setup: int, job: int, verdict: int, status: int, ends: list[int]) -> Ran:
        began = time.monotonic()
        until = began + self._limits.clock_s
        most = self._limits.output_kb << 10
        stdout: IO[bytes] | None = process.stdout
        assert stdout is not None
        feeds = {setup: json.dumps(self._setup).encode(), job: self._job}
        heard: dict[int, bytearray] = {stdout.fileno(): bytearray(), verdict: bytearray(), status: bytearray()}
        bounds = {stdout.fileno(): most, verdict: MOST_SAID, status: MOST_SAID}
        stopped: Verdict | None = None
        with selectors.DefaultSelector() as selector:
            for handle in feeds:
                os.set_blocking(handle, False)
                selector.register(handle, selectors.EVENT_WRITE)
            for handle in heard:
                os.set_blocking(handle, False)
                selector.register(handle, selectors.EVENT_READ)

            def turn(wait_s: float) -> bool:
                """Whether something moved."""
                moved = False
                for key, _ in selector.select(wait_s):
                    handle = key.fd
                    if handle in feeds:
                        moved = True
                        try:
                            feeds[handle] = feeds[handle][os.write(handle, feeds[handle][:65536]) :]
                        except BlockingIOError:
                            continue
                        except OSError:  # it reads no more
                            feeds[handle] = b""
                        if not feeds[handle]:
                            selector.unregister(handle)
                            os.close(handle)
                            ends.remove(handle)
                    else:
                        try:
                            piece = os.read(handle, 65536)
                        except BlockingIOError:
                            continue
                        if not piece:
                            selector.unregister(handle)
                            continue
                        moved = True
                        heard[handle] += piece
                return moved

            while process.poll() is None:
                if self._stop is not None and self._stop.is_set():
                    raise Interrupted("stopped while generated code was run.")
                turn(TICK_S)
                over = [handle for handle, data in heard.items() if len(data) > bounds[handle]]
                if over:
                    stopped = "output"
                elif time.monotonic() > until and (bytes(heard[status]) or time.monotonic() > until + GRACE_S):
                    stopped = "timeout"
                if stopped:
                    break
            _kill(process)
            for _ in range(64):  # what was in the pipes when it ended
                if not selector.get_map() or not turn(0):
                    break
        told = _statuses(bytes(heard[status]))
        shown = bytes(heard[stdout.fileno()][:most]).decode(errors="replace")
        seconds = time.monotonic() - began
        if refused := told.get("refused"):
            self._refuse(str(refused))
        level = told.get("isolation")
        if level != self._isolation:
            raise InfrastructureError(
                f"the process that was to run generated code did not come to it: {shown[-300:] or process.returncode}.", where=self._python
            )
        ran = self._judge(bytes(heard[verdict]), process.returncode, stopped)
        return Ran(ran.verdict, ran.reason, shown, self._isolation, seconds)

    def _judge(self, said: bytes, code: int, stopped: Verdict | None) -> Ran:
        limits = self._limits
        if stopped == "timeout":
            return Ran("timeout", f"it did not end in {limits.clock_s:g} s, and was killed")
        if stopped == "output":
            return Ran("output", f"it wrote more than {limits.output_kb} kB and was killed")
        if said == self._word and code == 0:
            return Ran("passed")
        if code > 128 or code < 0:
            number = code - 128 if code > 128 else -code
            if number == signal.SIGXCPU:
                return Ran("timeout", f"it computed for {limits.cpu_s} s, and was killed")
            name = signal.Signals(number).name if number in {one.value for one in signal.Signals} else str(number)
            why = {"SIGKILL": " (a limit of CPU time, or of the machine's memory)", "SIGXFSZ": " (a file too large)"}
            return Ran("killed", f"it was ended by {name}{why.get(name, '')}")
        stage, kind, place, text = (*said.decode(errors="replace").split("\n", 3), "", "", "", "")[:4]
        if stage in ("code", "tests") and code == 1 and kind.isidentifier():
            if kind == "SystemExit":
                return Ran("ended", "it ended itself (SystemExit) before its tests had passed")
            if self._isolation != "full":
                # It could read what this user can, and this text is kept with the result.
                kind, text = (kind if isinstance(getattr(builtins, kind, None), type) else "an exception of its own"), ""
            where = f" ({place})" if _PLACE.fullmatch(place) else ""
            return Ran("failed" if stage == "tests" else "error", f"{kind}{': ' if text else ''}{text[:500]}{where}")
        return Ran("ended", f"it ended with status {code} before its tests had passed")

    def _refuse(self, why: str) -> None:
        weaker = {"full": "`isolation: network` or `isolation: limits`", "network": "`isolation: limits`"}.get(self._isolation)
        raise InfrastructureError(
            f"this machine cannot shut generated code in ({why}).",
            where=f"isolation: {self._isolation}",
            fix=f"Run it on Linux with user namespaces, or write {weaker} in the suite if you trust the model that far."
            if weaker
            else "Nothing weaker is left.",
        )


def _bytes(text: str) -> bytes:
    """Half a surrogate pair, as a model can write it, is no reason to fail: Python says what is wrong with the program."""
    return text.encode("utf-8", "replace")


def _statuses(data: bytes) -> dict[str, Any]:
    """Of the launcher: it is written before any hostile code runs, and the descriptor is closed to that."""
    told: dict[str, Any] = {}
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            told.update(json.loads(line))
    return told


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole group, and with it the process namespace."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
