# tests: what every test stands on: a clean environment, the worker's Python, and no process left behind.
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SESSION = "NIGHTBATCH_TEST_SESSION"  # every process that a test starts inherits it, so that leaks can be found
KEPT = {"NIGHTBATCH_CACHE", "NIGHTBATCH_PYTHON", "NIGHTBATCH_TORCH", "NIGHTBATCH_PULUMI", SESSION}
LEAVE_SECONDS = 10.0  # children that watch a pipe end a moment after their parent


def pytest_configure(config: pytest.Config) -> None:
    """No credential, region or setting of the person who runs the tests reaches a test; nor that the tests run in the background, where a
    shell has interrupts ignored, and every process that they start would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith(("RUNPOD_", "AWS_", "NIGHTBATCH_", "PULUMI_")) and name not in KEPT:
            del os.environ[name]
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # boto3 must not look for a cloud machine's credentials
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["PYTHONPATH"] = str(ROOT)  # for the processes that tests start
    os.environ.setdefault(SESSION, f"{os.getpid()}-{time.time_ns()}")


def processes_of_this_session() -> dict[int, str]:
    """Other live processes that inherited this session's mark (Linux only; elsewhere nothing is found)."""
    mark = f"{SESSION}={os.environ[SESSION]}".encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0") and " Z " not in (entry / "stat").read_text():
                found[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:160]
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # only the process that started the others can tell
    deadline = time.monotonic() + LEAVE_SECONDS
    while (left := processes_of_this_session()) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        lines = "\n".join(f"  {pid} {command}" for pid, command in left.items())
        print(f"\nprocesses that the tests left behind:\n{lines}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def repo() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def worker_python() -> Path:
    """The Python of the worker environment, built by scripts/worker-env if it is not there yet."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts/worker-env")], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"the worker environment could not be built:\n{done.stderr[-4000:]}")
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def pulumi_cli() -> Path:
    """The folder of the real Pulumi CLI, installed or built by scripts/pulumi-cli if it is not there yet."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts/pulumi-cli")], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"the Pulumi CLI could not be had:\n{done.stderr[-4000:]}")
    return Path(done.stdout.strip())
