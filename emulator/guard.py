"""emulator: a guard between the emulator and a process that it starts. Nothing that runs under a guard outlives the emulator.

May touch: the standard library only; it runs as `python -I -S guard.py …`, so that it starts in a few hundredths of a second.

    guard.py LIFELINE_FD GRACE_S [FILE …] -- COMMAND [ARG …]

The lifeline is one end of a socket pair; the emulator holds the other end, and the kernel closes it however the emulator ends. What a
container gives to its first process, the guard gives here:
- the command's pid is written to the lifeline as a line;
- when the lifeline closes, everything is killed at once (SIGKILL);
- SIGTERM or SIGINT to the guard goes to the command alone, which has GRACE_S seconds; then everything is killed;
- when the command ends, whatever it has left behind is killed, and the guard ends with its exit code (128 + signal, like a shell);
- the command's temporary folder (TMPDIR) is its own and goes with it: SeaweedFS's logs, vLLM's sockets, a worker's spools. So do the FILEs:
  what it leaves elsewhere.
"Everything" is the command's process group and, on Linux, every descendant: the guard is their subreaper, so even one that has left the
group or lost its parent is found. If the guard itself is killed, the command gets SIGKILL from the kernel (Linux).
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _descendants(root: int) -> list[int]:
    """Pids below `root`, from /proc; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                # the name, in parentheses, may hold anything; the parent's pid is the second field after it
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it ended while we looked
        children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone, or no longer ours


def _reap(awaited: int) -> int | None:
    """Collect every ended child, orphans included; the exit status of `awaited` if it was among them."""
    status: int | None = None
    while True:
        try:
            pid, found = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == awaited:
            status = found


def _kill_everything(group: int) -> None:
    """SIGKILL to the group and all descendants, again until none is left (at most 5 s)."""
    until = time.monotonic() + 5
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty
        for pid in _descendants(os.getpid()):
            _kill(pid, signal.SIGKILL)
        _reap(group)
        if not _descendants(os.getpid()) or time.monotonic() > until:
            return
        time.sleep(0.01)


def main(arguments: list[str]) -> int:
    """Run the command until it, the lifeline or the grace ends. No FILE is called `--`: they are whole paths."""
    scratch = tempfile.mkdtemp(prefix="nightbatch-")  # short: vLLM makes sockets in it, and a socket's name has at most 107 bytes
    try:
        return _guard(arguments, {**os.environ, "TMPDIR": scratch})
    finally:
        for path in arguments[2 : arguments.index("--")]:
            try:
                os.unlink(path)
            except OSError:
                pass  # it was never made, or is gone already
        shutil.rmtree(scratch, ignore_errors=True)


def _guard(arguments: list[str], env: dict[str, str]) -> int:
    lifeline, grace_s = int(arguments[0]), float(arguments[1])
    command = arguments[arguments.index("--") + 1 :]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, lambda *_: None)

    def in_child() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        # kept, because a Popen that is let go collects its process's exit status, which is waited for below
        started = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=in_child, close_fds=True)
    except OSError as error:
        print(f"{command[0]} could not be started: {error}", file=sys.stderr, flush=True)
        return 127
    child = started.pid
    os.write(lifeline, b"%d\n" % child)

    deadline: float | None = None
    status: int | None = None
    while status is None:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([lifeline, wake_read], [], [], timeout)
        if lifeline in ready and not os.read(lifeline, 4096):
            break
        if wake_read in ready:
            numbers = os.read(wake_read, 4096)
            if deadline is None and (signal.SIGTERM in numbers or signal.SIGINT in numbers):
                deadline = time.monotonic() + grace_s
                _kill(child, signal.SIGTERM)
        status = _reap(child)
        if deadline is not None and time.monotonic() >= deadline:
            break
    _kill_everything(child)
    if status is None:
        return 128 + signal.SIGKILL
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
