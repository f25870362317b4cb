"""emulator: the same emulator in the background, for `nightbatch local up | down | status`.

May touch: one background process (`python -m emulator`), the state directory `$NIGHTBATCH_HOME/local` (contract.facts.state_dir), and HTTP
to what it has started. All functions may be called again at any time: `up` twice finds the one that runs, `down` twice finds nothing. Which
process is meant is told by a lock that the kernel gives back however the process ends, so a stale pid never misleads.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from contract.errors import EmulatorError
from contract.facts import LocalFile, Stack, load_emulator, state_dir
from emulator.config import EmulatorConfig, EndpointConfig, ImageConfig
from emulator.files import write_private

UP_TIMEOUT_S: Final = 60.0
DOWN_TIMEOUT_S: Final = 30.0
"""A worker gets 10 s to finish, S3 8 s."""

CONFIG: Final = "config.json"
LOCK: Final = "emulator.lock"
LOG: Final = "emulator.log"
LOGS: Final = "logs"
"""Folder of the workers' own: `logs/ENDPOINT/WORKER.log`."""
PROGRESS: Final = "progress: "
"""Lines of the log that begin so are for the person who waits."""

LocalState = Literal["stopped", "starting", "running"]

_held: Final[list[BinaryIO]] = []
_LOCK_PATIENCE_S: Final = 1.0
"""Whoever asks `running` holds the lock for an instant, too: that is not another emulator."""


@dataclass(frozen=True)
class EndpointStatus:
    """One endpoint of the local emulator. `workers`: how many in each state; `usd` since the state directory was made."""

    name: str
    id: str
    workers: Mapping[str, int]
    queued: int
    in_progress: int
    completed: int
    failed: int
    billed_s: int
    usd: float


@dataclass(frozen=True)
class LocalStatus:
    """What `nightbatch local status` says. Holds no secret."""

    state: LocalState
    directory: str
    log: str
    pid: int | None = None
    api_url: str | None = None
    s3_url: str | None = None
    bucket: str | None = None
    endpoints: tuple[EndpointStatus, ...] = ()


def local_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the background emulator keeps its state."""
    return state_dir(environ) / "local"


def default_config(
    directory: Path,
    *,
    worker_python: Path | str,
    code: Path | str,
    minilm: str = "minilm",
    smollm2: str = "smollm2",
    worker_env: Mapping[str, str] | None = None,
    workers_max: int = 1,
    idle_timeout_s: float = 60.0,
) -> EmulatorConfig:
    """Endpoints `minilm` (embed) and `smollm2` (generate), whose workers are this project's own (`-m worker`).

    `worker_python`: of the environment that has vLLM. `code`: the folder that holds contract/ and worker/. `minilm`, `smollm2`: model
    names or folders as the worker understands NIGHTBATCH_MODEL. `worker_env`: added to both. One worker each at most: this machine has
    no GPUs to spread over. An idle worker stays a minute, since a cold start costs more than that on a CPU; its seconds are billed as
    they would be. Workers share the user's cache ($NIGHTBATCH_CACHE), although their home is in the state directory.

    Endpoints made through REST run the same worker, whatever image they name: what it serves is in their env (NIGHTBATCH_MODEL,
    NIGHTBATCH_TASK). The idle rule is off: on this machine nobody pays for an endpoint that rests for a week.
    """
    cache = os.environ.get("NIGHTBATCH_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "nightbatch"
    )
    env = {"PYTHONPATH": str(code), "NIGHTBATCH_CACHE": cache, **(worker_env or {})}
    command = (str(worker_python), "-m", "worker")

    def endpoint(name: str, model: str, task: Literal["embed", "generate"]) -> EndpointConfig:
        return EndpointConfig(
            name=name,
            model=model,
            tasks=(task,),
            command=command,
            env={**env, "NIGHTBATCH_MODEL": model, "NIGHTBATCH_TASK": task},
            workers_max=workers_max,
            idle_timeout_s=idle_timeout_s,
            scaler_value=1.0,
            concurrency=2,
            execution_timeout_ms=600_000,
            cold_start_s=60.0,
        )

    return EmulatorConfig(
        state_dir=str(directory),
        endpoints=(endpoint("minilm", minilm, "embed"), endpoint("smollm2", smollm2, "generate")),
        images={"*": ImageConfig(command=command, env=env)},
        idle_rule=False,
    )


def up(
    config: EmulatorConfig,
    *,
    on_progress: Callable[[str], None] = lambda text: None,
    timeout_s: float = UP_TIMEOUT_S,
    python: Sequence[str] = (sys.executable,),
) -> LocalStatus:
    """Start the emulator in the background and wait until it answers; if it runs already, say so. Raises EmulatorError with the end of
    its log if it does not come up."""
    directory = Path(config.state_dir)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EmulatorError(
            f"the state folder cannot be made ({error.strerror}).", where=str(directory), fix="Name another in NIGHTBATCH_HOME."
        ) from None
    if running(directory):
        on_progress("the emulator is running already")
        return _wait_until_up(directory, None, on_progress, timeout_s)
    # a facts.json that is left over from a crash must not be taken for the new one's
    (directory / "facts.json").unlink(missing_ok=True)
    config_path = directory / CONFIG
    write_private(config_path, msgspec.json.format(msgspec.json.encode(config), indent=2))
    log = directory / LOG
    begins_at = log.stat().st_size if log.exists() else 0
    rooms = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": rooms if not inherited else os.pathsep.join((rooms, inherited))}
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
        process = subprocess.Popen(
            [*python, "-m", "emulator", "--config", str(config_path)],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # whoever called may live on for long: then its end is collected when it comes
    threading.Thread(target=process.wait, name="emulator's end", daemon=True).start()
    return _wait_until_up(directory, process, on_progress, timeout_s, begins_at)


def down(directory: Path, *, on_progress: Callable[[str], None] = lambda text: None, timeout_s: float = DOWN_TIMEOUT_S) -> bool:
    """Stop the background emulator and wait until nothing of it is left; whether there was one. After `timeout_s` it is killed, and its
    children with it."""
    pid = running(directory)
    if pid is None:
        return False
    on_progress("stopping workers and S3")
    _signal(pid, signal.SIGTERM)
    if not _until(lambda: running(directory) is None, timeout_s):
        on_progress("it does not stop by itself and is killed")
        _signal(pid, signal.SIGKILL)
        if not _until(lambda: running(directory) is None, 10.0):
            raise EmulatorError(f"Process {pid} could not be stopped.", where=str(directory))
    return True


def status(directory: Path, *, timeout_s: float = 5.0) -> LocalStatus:
    """What the background emulator is doing. Never raises because it is not there."""
    log = str(directory / LOG)
    pid = running(directory)
    if pid is None:
        return LocalStatus("stopped", str(directory), log)
    local = _facts(directory)
    if local is None or local.pid != pid:
        return LocalStatus("starting", str(directory), log, pid=pid)
    root = local.facts.api_url.removesuffix("/v2")
    request = urllib.request.Request(f"{root}/_emulator/state", headers={"Authorization": f"Bearer {local.api_key}"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            report: dict[str, Any] = msgspec.json.decode(answer.read())
    except (urllib.error.URLError, TimeoutError, OSError, msgspec.DecodeError):
        return LocalStatus("starting" if running(directory) else "stopped", str(directory), log, pid=pid)
    endpoints = []
    for found in report["endpoints"]:
        workers: dict[str, int] = {}
        for worker in found["workers"]:
            workers[worker["state"]] = workers.get(worker["state"], 0) + 1
        endpoints.append(
            EndpointStatus(
                name=found["name"],
                id=found["id"],
                workers=workers,
                queued=found["queued"],
                in_progress=found["in_progress"],
                completed=found["completed"],
                failed=found["failed"],
                billed_s=found["bill"]["billed_s"],
                usd=found["bill"]["usd"],
            )
        )
    return LocalStatus(
        "running",
        str(directory),
        log,
        pid=pid,
        api_url=local.facts.api_url,
        s3_url=local.facts.store.endpoint_url,
        bucket=local.facts.store.bucket,
        endpoints=tuple(endpoints),
    )


def stack(directory: Path) -> Stack:
    """Facts and secrets of the background emulator. Raises EmulatorError if none runs."""
    if running(directory) is None:
        raise EmulatorError("the local emulator is not running.", fix="Start it: nightbatch local up")
    return load_emulator(directory / "facts.json")


def running(directory: Path) -> int | None:
    """The pid of the emulator that holds this directory's lock; None if no process holds it."""
    try:
        with open(directory / LOCK, "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = lock.read().strip()
                return int(text) if text.isdigit() else None
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EmulatorError(
            f"the state folder cannot be read ({error.strerror}).", where=str(directory), fix="Name another in NIGHTBATCH_HOME."
        ) from None


def hold(directory: Path) -> None:
    """Take the directory's lock for the life of this process. Raises EmulatorError if another holds it."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = open(os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+b")  # noqa: SIM115 - held until the process ends
    if not _until(lambda: _locked(lock), _LOCK_PATIENCE_S):
        lock.close()
        raise EmulatorError("Another emulator runs in this state directory.", where=str(directory), fix="nightbatch local down")
    lock.truncate(0)
    lock.write(b"%d\n" % os.getpid())
    lock.flush()
    _held.append(lock)  # never closed: the kernel gives the lock back when nothing of this process is left


def _locked(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_until_up(
    directory: Path,
    process: subprocess.Popen[bytes] | None,
    on_progress: Callable[[str], None],
    timeout_s: float,
    begins_at: int = 0,
) -> LocalStatus:
    """`begins_at`: where in the log this start's lines begin."""
    seen = 0
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        told = _progress_lines(directory / LOG, begins_at) if process is not None else []
        for line in told[seen:]:
            on_progress(line)
        seen = len(told)
        now = status(directory)
        if now.state == "running":
            return now
        if process is not None and process.poll() is not None:
            if running(directory):  # two `up` at once: the other one's emulator is as good
                return _wait_until_up(directory, None, on_progress, until - time.monotonic())
            break
        if process is None and now.state == "stopped":
            break
        time.sleep(0.05)
    if process is not None and process.poll() is None:
        process.terminate()
    raise EmulatorError(f"The emulator did not come up. The end of its log: {_tail(directory / LOG)}", where=str(directory / LOG))


def _facts(directory: Path) -> LocalFile | None:
    try:
        return msgspec.json.decode((directory / "facts.json").read_bytes(), type=LocalFile)
    except (OSError, msgspec.DecodeError):
        return None


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has just ended


def _progress_lines(log: Path, begins_at: int) -> list[str]:
    try:
        lines = log.read_bytes()[begins_at:].decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.removeprefix(PROGRESS) for line in lines if line.startswith(PROGRESS)]


def _tail(log: Path, lines: int = 6) -> str:
    try:
        return " | ".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(empty)"
    except OSError:
        return "(none)"
