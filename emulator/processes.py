"""emulator: starting a process under the guard, and waiting for it without blocking the event loop.

May touch: processes, a log file and one socket pair. See guard.py for what the guard promises.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from contract.errors import EmulatorError

_GUARD = Path(__file__).with_name("guard.py")


class GuardedProcess:
    """A running command. `pid` is the command's own; `wait` gives its exit code (128 + signal if one ended it)."""

    def __init__(self, guard: subprocess.Popen[bytes], lifeline: socket.socket, pid: int | None) -> None:
        self._guard = guard
        self._lifeline = lifeline
        self.pid = pid
        self._ended = asyncio.ensure_future(self._until_end())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        log: Path,
        grace_s: float,
        leaves: Sequence[Path] = (),
    ) -> GuardedProcess:
        """Start `command` with exactly `env`, its output appended to `log`. `grace_s`: real seconds from SIGTERM to SIGKILL. `leaves`:
        files that it does not take away by itself; they go when it has ended, however it and we end."""
        ours, guard = _launch(command, env, cwd, log, grace_s, leaves)
        try:
            line = await asyncio.get_running_loop().sock_recv(ours, 32)
        except BaseException:
            ours.close()  # nobody will hold the handle: then nothing is to run
            guard.wait()
            raise
        return cls(guard, ours, int(line) if line.strip() else None)

    async def _until_end(self) -> int:
        loop = asyncio.get_running_loop()
        try:
            while await loop.sock_recv(self._lifeline, 64):
                pass
        except OSError:
            pass  # a reset is an end, too
        finally:
            self._lifeline.close()
        # the kernel closes the socket a moment before the exit can be collected
        return await asyncio.to_thread(self._guard.wait)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """SIGTERM to the command; SIGKILL to everything after the grace."""
        if not self._ended.done():
            self._guard.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything, now."""
        if not self._ended.done():
            try:
                self._lifeline.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the guard has just ended


def _launch(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, log: Path, grace_s: float, leaves: Sequence[Path]
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the guard; our end of its lifeline, and its process. A fork and an exec: milliseconds, so the event loop may wait for it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-I", "-S", str(_GUARD), str(theirs.fileno()), str(grace_s), *map(str, leaves), "--", *command]
    try:
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
            guard = subprocess.Popen(
                argv,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal is for the emulator, which then ends its workers in order
            )
    except (OSError, ValueError) as error:  # ValueError: a NUL in the environment
        ours.close()
        raise EmulatorError(f"The process {command[0]} could not be started: {error}.", where=str(log)) from error
    finally:
        theirs.close()
    return ours, guard
