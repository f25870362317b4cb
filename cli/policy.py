"""cli: what a person sees when something goes wrong, and the exit code (DESIGN.md, law 8). The only place that decides either.

0 all well, 1 it finished and something is not as wanted, 2 usage or input error, 3 infrastructure error or stall, 4 stopped by budget or
deadline, 130 interrupted (and resumable). A mistake of the user ends in one sentence; an error that nobody expected says where the log is.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TextIO, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTED = 130
INFRASTRUCTURE = 3
MOST_ROWS = 50  # bad rows that are listed on a screen; the errors file and --json have all that were kept
SECRET_VARIABLES = re.compile(r"(API_KEY|SECRET|TOKEN|PASSWORD|ACCESS_KEY_ID)")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
HIDDEN = "<hidden>"
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (but newline and tab), those that turn the direction of text, and bytes that were no text: shown escaped."""

COMMAND = re.compile(
    r"(?<![\w./-])nightbatch "
    r"(?=(?:run|plan|submit|resume|status|collect|verify|cancel|runs|logs|doctor|stop|start|local|image|preview|drift|report|eval)\b)"
)


@dataclass
class Session:
    """One invocation: what it works on, and what must never be printed."""

    json_output: bool = False
    run: str | None = None
    resume: str | None = None
    cancel: str | None = None
    """What to type to end the run's jobs."""
    jobs_out: int = 0
    """Jobs of the run that RunPod has, as far as this command knows: they go on, and cost, when it ends."""
    secrets: set[str] = field(default_factory=set)

    def hide(self, values: Iterable[str]) -> None:
        """These strings will be cut out of whatever this invocation prints or logs (shorter ones would cut innocent text)."""
        self.secrets.update(value for value in values if len(value) >= 8)

    def clean(self, text: str) -> str:
        """`text` without secrets, and such that a terminal shows it: names and ids come from files, and may hold what moves its cursor."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # which JSON reads, too


session = Session()


def begin(*, json_output: bool) -> Session:
    """Start over: a new invocation in this process (tests make many)."""
    session.json_output = json_output
    session.run = session.resume = session.cancel = None
    session.jobs_out = 0
    session.secrets.clear()
    session.hide(value for name, value in os.environ.items() if SECRET_VARIABLES.search(name))
    return session


class _Cleaned(logging.Formatter):
    """A formatter that no secret passes, whoever logged it."""

    def format(self, record: logging.LogRecord) -> str:
        return session.clean(super().format(record))


class _ToStderr(logging.StreamHandler[TextIO]):
    """To whatever sys.stderr is at that moment: the live view puts itself in its place to draw below the logs."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Cleaned("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class OutputLost(Exception):
    """Standard output takes no more: the disk is full, or nobody reads on."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror)
        self.cause = cause


class _Stream:
    """A standard stream that says which one failed (stdout), or that fails silently (stderr: a terminal that went away ends no run)."""

    def __init__(self, stream: TextIO, *, silent: bool) -> None:
        self._stream = stream
        self._silent = silent

    def write(self, text: str) -> int:
        return self._tried(lambda: self._stream.write(text)) or len(text)

    def flush(self) -> None:
        self._tried(self._stream.flush)

    def _tried(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except OSError as error:
            if not self._silent:
                raise OutputLost(error) from None
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def ended(program: Callable[[], object]) -> int | str | None:
    """Run the program in this process with standard streams that can be relied on; what to exit with."""
    for number in (0, 1, 2):  # a closed one would become the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    out, err = (sys.stdout or open(1, "w", closefd=False), sys.stderr or open(2, "w", closefd=False))  # noqa: SIM115 (as long as we live)
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no text
    sys.stdout, sys.stderr = cast(TextIO, _Stream(out, silent=False)), cast(TextIO, _Stream(err, silent=True))
    try:
        program()
        code: int | str | None = 0
    except SystemExit as end:
        code = end.code
    except OutputLost as lost:  # the help, which no command prints
        code = _say_lost(lost)
    try:
        sys.stdout.flush()
    except OutputLost as lost:
        code = _say_lost(lost)
    return code


def _say_lost(lost: OutputLost) -> int:
    """`nightbatch … | head`: nobody reads on, and that is no error. A full disk is one."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(lost.cause, BrokenPipeError):
        return 0
    fix = f"What was done stands; go on with: {session.resume}" if session.resume else "Make room, or send it elsewhere."
    print(session.clean(f"nightbatch: standard output: the result could not be written ({lost}). {fix}"), file=sys.stderr)
    return INFRASTRUCTURE


def set_up_logging(level: int = logging.WARNING) -> None:
    """Logs go to stderr, one line each."""
    root = logging.getLogger()
    if not any(isinstance(handler, _ToStderr) for handler in root.handlers):
        root.addHandler(_ToStderr())
    root.setLevel(level)


def program() -> str:
    """What a person types for this program: the wrapper of a clone says how it was called."""
    return os.environ.get("NIGHTBATCH_PROGRAM", "nightbatch")


def as_typed(text: str) -> str:
    """Commands in a hint as they are typed here: other rooms know the program by its name alone."""
    return COMMAND.sub(lambda _: f"{program()} ", text)


def log_folder() -> Path:
    """Where the details of unexpected errors go."""
    from contract.facts import state_dir

    return state_dir() / "logs"


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: tidily, and resumable."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM] + ([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])
    try:
        old = [(number, signal.signal(number, interrupt)) for number in numbers]
    except ValueError:  # not in the main thread, as in some tests
        yield
        return
    try:
        yield
    finally:
        for number, handler in old:
            signal.signal(number, handler)


def guarded(function: Callable[P, int | None]) -> Callable[P, None]:
    """Wrap a command: run it under the policy and end with its exit code."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        import typer

        begin(json_output=bool(kwargs.get("json_output")))
        set_up_logging()
        try:
            try:
                with termination_as_interrupt():
                    code = function(*args, **kwargs) or 0
                sys.stdout.flush()
            except (typer.Exit, typer.BadParameter, typer.Abort, OutputLost):
                raise
            except KeyboardInterrupt:
                code = say_interrupted()
            except Exception as error:
                code = explain(error)
        except OutputLost as lost:
            code = _say_lost(lost)
        raise typer.Exit(code)

    return command


def say_interrupted() -> int:
    """Nothing is lost by an interruption: say how to go on, and that jobs which are out cost on."""
    fix = f"Nothing is lost. Go on with: {session.resume}" if session.resume else "Nothing was sent."
    if session.jobs_out and session.cancel:
        jobs = "1 job is" if session.jobs_out == 1 else f"{session.jobs_out:,} jobs are"
        print(session.clean(f"{jobs} still with RunPod and will be paid for. To end them: {session.cancel}"), file=sys.stderr)
    _report(INTERRUPTED, "interrupted.", fix=fix)
    return INTERRUPTED


def explain(error: Exception) -> int:
    """Tell the person what happened, in one sentence where it is foreseen, and return the exit code."""
    from contract.errors import BadFiles, DatasetError, Interrupted, NightbatchError, VerifyFailed

    if isinstance(error, ExceptionGroup):
        known = [one for one in _leaves(error) if isinstance(one, NightbatchError)]
        if known and len(known) == len(list(_leaves(error))):
            error = known[0]
    if isinstance(error, Interrupted):
        return say_interrupted()
    if isinstance(error, OSError) and error.errno in FULL:
        return _say_full(error)
    if not isinstance(error, NightbatchError):
        return _unexpected(error)
    details: list[str] = []
    more = 0
    if isinstance(error, DatasetError):
        details = [str(row) for row in error.bad_rows]
        more = error.total - min(len(details), MOST_ROWS)
    elif isinstance(error, VerifyFailed):
        details = list(error.findings)
        more = len(details) - min(len(details), MOST_ROWS)
    elif isinstance(error, BadFiles):
        details = list(error.problems)
        more = len(details) - min(len(details), MOST_ROWS)
    for line in details[:MOST_ROWS]:
        print(session.clean(line), file=sys.stderr)
    if details and more > 0:
        print(f"... and {more:,} more", file=sys.stderr)
    _report(error.exit_code, error.what, where=error.where, fix=error.fix, details=details)
    return error.exit_code


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


def _say_full(error: OSError) -> int:
    """No room: on whichever disk, since the error does not always name the file."""
    assert error.errno is not None
    fix = "Make room where --out, NIGHTBATCH_HOME and TMPDIR are."
    if session.resume:
        fix = f"{fix} What is computed is kept; then go on with: {session.resume}"
    where = str(error.filename) if error.filename else None
    _report(INFRASTRUCTURE, f"a file could not be written ({os.strerror(error.errno)}).", where=where, fix=fix)
    return INFRASTRUCTURE


def _unexpected(error: Exception) -> int:
    """An error that nobody foresaw: the traceback goes to a file, the sentence to the person."""
    text = session.clean("".join(traceback.format_exception(error)))
    summary = session.clean(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}")
    try:
        folder = log_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        path.write_text(f"{' '.join(sys.argv)}\n{session.clean(text)}", encoding="utf-8", errors="backslashreplace")
        fix = f"The details are in {path}."
    except OSError as failed:
        print(text, file=sys.stderr)
        fix = f"(No log could be written: {failed}.)"
    if session.resume:
        fix = f"{fix} The run can be resumed: {session.resume}"
    _report(INFRASTRUCTURE, f"unexpected error, {summary}.", fix=fix)
    return INFRASTRUCTURE


def _report(code: int, what: str, *, where: str | None = None, fix: str | None = None, details: Iterable[str] = ()) -> None:
    fix = as_typed(fix) if fix else fix
    sentence = " ".join(part for part in (f"{where}: {what}" if where else what, fix) if part)
    print(session.clean(f"nightbatch: {sentence}"), file=sys.stderr)
    if session.json_output:
        record: dict[str, Any] = {
            "run": session.run,
            "state": "interrupted" if code == INTERRUPTED else "error",
            "error": what,
            "where": where,
            "fix": fix,
            "exit_code": code,
        }
        if code == INTERRUPTED and session.run is not None:
            record["jobs_out"] = session.jobs_out
        if details:
            record["details"] = list(details)
        print(session.clean(json.dumps(record)))
