"""The guard: nothing that runs under it outlives it, and a command ends as it would in a container."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.errors import EmulatorError
from emulator.processes import GuardedProcess
from tests.emulator.kit import alive, eventually

# a command with a child of its own session and a grandchild: all write their pid, then sleep
FAMILY = """
import os, subprocess, sys, time
from pathlib import Path
place, depth = Path(sys.argv[1]), int(sys.argv[2])
(place / f"{depth}.pid").write_text(str(os.getpid()))
if depth:
    subprocess.Popen([sys.executable, __file__, str(place), str(depth - 1)], start_new_session=True)
if len(sys.argv) > 3:
    while not (place / "0.pid").exists() or not (place / "0.pid").read_text():
        time.sleep(0.01)
    sys.exit(int(sys.argv[3]))
time.sleep(60)
"""

# an emulator's stand-in: starts the family under a guard, then waits to be killed
PARENT = """
import asyncio, os, sys
from pathlib import Path
from emulator.processes import GuardedProcess
async def main():
    command, log = [sys.executable, *sys.argv[1:]], Path(sys.argv[2]) / "log"
    process = await GuardedProcess.start(command, env=dict(os.environ), cwd=None, log=log, grace_s=5)
    await process.wait()
asyncio.run(main())
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    return script


def family_pids(place: Path, count: int) -> Callable[[], list[int]]:
    """All the pids, once every member has written its own."""

    def found() -> list[int]:
        texts = [path.read_text() for path in place.glob("*.pid")]
        return [int(text) for text in texts] if len(texts) == count and all(texts) else []

    return found


async def start(*command: str, place: Path, grace_s: float = 5) -> GuardedProcess:
    return await GuardedProcess.start(command, env=dict(os.environ), cwd=None, log=place / "log", grace_s=grace_s)


async def test_kill_9_of_the_parent_leaves_no_descendant_even_in_sessions_of_their_own(tmp_path: Path, family: Path) -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(family), str(tmp_path), "2")
    try:
        pids = await eventually(family_pids(tmp_path, 3))
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not any(alive(pid) for pid in pids), what=f"still alive: {[pid for pid in pids if alive(pid)]}")


async def test_when_a_command_ends_what_it_left_behind_is_killed(tmp_path: Path, family: Path) -> None:
    process = await start(sys.executable, str(family), str(tmp_path), "2", "7", place=tmp_path)
    assert await process.wait() == 7
    pids = family_pids(tmp_path, 3)()
    assert len(pids) == 3
    await eventually(lambda: not any(alive(pid) for pid in pids))


async def test_the_temporary_folder_is_the_commands_own_and_goes_with_it_also_after_kill_9_of_the_parent(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    script = tmp_path / "litter.py"
    script.write_text(
        "import sys, tempfile, time\nfrom pathlib import Path\nmade = tempfile.mkdtemp()\n"
        "(Path(sys.argv[1]) / '0.pid').write_text(made)\ntime.sleep(60)\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(script), str(tmp_path), env={**os.environ, "TMPDIR": str(place)}
    )
    try:
        made = await eventually(lambda: (tmp_path / "0.pid").exists() and (tmp_path / "0.pid").read_text())
        assert Path(str(made)).parent.parent == place
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not list(place.iterdir()))


@pytest.mark.parametrize("end", ["command", "parent"])
async def test_files_that_a_command_leaves_behind_go_with_it(tmp_path: Path, end: str) -> None:
    leaves = [tmp_path / "a b.sock", tmp_path / "never made"]
    script = f"import pathlib, time; pathlib.Path({str(leaves[0])!r}).touch(); time.sleep({0 if end == 'command' else 60})"
    process = await GuardedProcess.start(
        (sys.executable, "-c", script), env=dict(os.environ), cwd=None, log=tmp_path / "log", grace_s=5, leaves=leaves
    )
    if end == "parent":
        await eventually(leaves[0].exists)
        process.kill()  # closes the lifeline, as the kernel does for a parent that is gone
    await process.wait()
    assert not leaves[0].exists()


async def test_kill_9_of_the_command_is_seen_and_takes_its_children_along(tmp_path: Path, family: Path) -> None:
    process = await start(sys.executable, str(family), str(tmp_path), "1", place=tmp_path)
    pids = await eventually(family_pids(tmp_path, 2))
    assert process.pid in pids
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == 137
    await eventually(lambda: not any(alive(pid) for pid in pids))


async def test_kill_9_of_the_guard_takes_the_command_along(tmp_path: Path) -> None:
    process = await start(sys.executable, "-c", "import time; time.sleep(60)", place=tmp_path)
    assert process.pid is not None
    if not Path("/proc/self/stat").exists():
        process.kill()
        pytest.skip("only Linux tells a child of its parent's death")
    guard = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    await process.wait()
    await eventually(lambda: not alive(process.pid or 0))


async def test_terminate_goes_to_the_command_which_may_finish(tmp_path: Path) -> None:
    # a handler and a sleep would leave an instant in which the signal has come and the sleep begins nevertheless
    code = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); print('up', flush=True); "
        "signal.sigwait({signal.SIGTERM}); sys.exit(4)"
    )
    process = await start(sys.executable, "-c", code, place=tmp_path)
    await eventually(lambda: (tmp_path / "log").read_text() == "up\n")
    process.terminate()
    assert await process.wait() == 4


async def test_a_command_that_ignores_terminate_is_killed_after_the_grace(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = await start(sys.executable, "-c", code, place=tmp_path, grace_s=0.3)
    await eventually(lambda: (tmp_path / "log").read_text() == "up\n")
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 10) == 137


async def test_a_command_that_cannot_be_started_ends_with_127_and_its_log_says_why(tmp_path: Path) -> None:
    process = await start(str(tmp_path / "missing"), place=tmp_path)
    assert process.pid is None
    assert await process.wait() == 127
    assert "could not be started" in (tmp_path / "log").read_text()


async def test_a_missing_working_directory_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match="could not be started"):
        await GuardedProcess.start(("true",), env={}, cwd=tmp_path / "missing", log=tmp_path / "log", grace_s=1)
