"""scripts/bootstrap: whole or nothing, safe when it is interrupted or runs twice at once, instant the second time.

uv is played by a small script, so that nothing is downloaded: what is tested is what we do around it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "bash", "sh", "awk", "cat", "chmod", "cp", "cut", "env", "date", "dirname", "grep", "head",
    "ls", "mkdir", "mv", "printf", "readlink", "rm", "sed", "sha256sum", "tail", "touch", "uname",
)  # fmt: skip

# Says what it was asked to do, waits for a gate where a test has set one, and makes what the real one would.
FAKE_UV = """#!/bin/bash
echo "$1 $2" >> "$FAKE_LOG"
case "$1" in
  --version) echo "uv 0.13.9"; exit 0;;
  venv)
    echo "folders $UV_CACHE_DIR $UV_PYTHON_INSTALL_DIR" >> "$FAKE_LOG"
    for last; do :; done; mkdir -p "$last/bin"; ln -s "{python}" "$last/bin/python";;
  pip)
    echo started >> "$FAKE_LOG"
    if [ -n "$FAKE_GATE" ]; then read -r _ < "$FAKE_GATE"; fi
    if [ -n "$FAKE_FAIL" ]; then echo "no such package" >&2; exit 1; fi
    touch "$VIRTUAL_ENV/installed";;
esac
"""


# Stands for the command line: says where, how and in which environment it was started.
PROGRAM = """
import json, os, sys
environment = sys.executable.split("/")[-3].partition("-")[0]
print(json.dumps([os.getcwd(), sys.argv[1:], os.environ["NIGHTBATCH_PROGRAM"], environment]))
"""


class Clone:
    """A folder with the scripts and a lock file, its own cache and its own uv."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        self.cache = folder / "cache"
        self.log = folder / "uv.log"
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        (self.root / "locks").mkdir()
        self.lock = self.root / "locks" / "client.lock"
        self.lock.write_text("package==1.0 --hash=sha256:00\n")
        (self.root / "locks" / "submit.lock").write_text("few==1.0 --hash=sha256:00\n")
        shutil.copy(ROOT / "nightbatch", self.root / "nightbatch")
        (self.root / "cli").mkdir()
        (self.root / "cli/__main__.py").write_text(PROGRAM)
        uv = folder / "uv"
        uv.write_text(FAKE_UV.replace("{python}", sys.executable))
        uv.chmod(0o755)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "UV": str(uv),
            "NIGHTBATCH_CACHE": str(self.cache),
            "NIGHTBATCH_PYTHON": sys.executable,
            "FAKE_LOG": str(self.log),
        }

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(self.root / "scripts/bootstrap"), *arguments],
            env=self.environment | extra,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def bootstrap(self, *arguments: str, **extra: str) -> tuple[int, str, str]:
        with self.start(*arguments, **extra) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err

    def nightbatch(
        self, *arguments: str, cwd: Path | None = None, program: Path | None = None, **extra: str
    ) -> tuple[int, str, str]:
        done = subprocess.run(
            [program or self.root / "nightbatch", *arguments],
            cwd=cwd or self.root,
            env=self.environment | extra,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    def runs_in(self, named: str = "") -> str:
        """The environment that ./nightbatch takes, with NIGHTBATCH_ENV as `named`: that of `client.lock` or of `submit.lock`."""
        code, out, err = self.nightbatch(NIGHTBATCH_ENV=named)
        assert code == 0, err
        return str(json.loads(out)[3])

    def installs(self) -> int:
        return self.log.read_text().split().count("started") if self.log.exists() else 0

    def left(self) -> list[str]:
        return sorted(path.name for path in self.cache.iterdir())


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def test_it_prints_the_python_of_a_whole_environment(clone: Clone) -> None:
    code, python, _ = clone.bootstrap()
    assert code == 0
    assert (Path(python).parent.parent / "installed").exists()
    assert subprocess.check_output([python, "-c", "print(1)"], text=True) == "1\n"


def test_the_second_time_nothing_is_installed_and_it_is_instant(clone: Clone) -> None:
    first = clone.bootstrap()
    del clone.environment["NIGHTBATCH_PYTHON"]
    assert clone.bootstrap()[0] == 0  # remembers the environment for this clone
    calls = clone.log.read_text() if clone.log.exists() else ""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        again = clone.bootstrap()
        seconds.append(time.perf_counter() - began)
        assert again[0] == 0
    assert clone.log.read_text() == calls
    assert first[0] == 0
    assert min(seconds) < 0.1


def test_two_at_once_are_as_good_as_one(clone: Clone, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    both = [clone.start(FAKE_GATE=str(gate)) for _ in range(2)]
    until(lambda: clone.installs() == 2)  # both are in the middle of it
    with gate.open("w") as opened:
        opened.write("go\ngo\n")
        opened.flush()
        results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert results[0][0] == results[1][0]
    assert len(clone.left()) == 1
    assert (Path(results[0][0].strip()).parent.parent / "installed").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_install_is_never_taken_for_a_whole_one(clone: Clone, tmp_path: Path, number: signal.Signals) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = clone.start(FAKE_GATE=str(gate))
    until(lambda: clone.installs() == 1)
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not [name for name in clone.left() if name.startswith("client-")]
    code, python, _ = clone.bootstrap()
    assert code == 0
    assert (Path(python).parent.parent / "installed").exists()
    assert clone.left() == [Path(python).parent.parent.name]  # what the killed one left is swept


def test_a_failed_install_says_so_and_leaves_nothing(clone: Clone) -> None:
    code, out, err = clone.bootstrap(FAKE_FAIL="1")
    assert code == 3
    assert out == ""
    assert "no such package" in err
    assert "could not be installed" in err
    assert clone.left() == []


def test_a_changed_lock_is_another_environment(clone: Clone) -> None:
    old = clone.bootstrap()[1]
    clone.lock.write_text("package==2.0 --hash=sha256:00\n")
    new = clone.bootstrap()[1]
    assert old != new
    assert Path(old).exists()
    clone.lock.write_text("package==1.0 --hash=sha256:00\n")
    assert clone.bootstrap()[1] == old


def test_a_uv_that_does_not_run_is_named(clone: Clone) -> None:
    code, _, err = clone.bootstrap(UV="/nowhere/uv")
    assert code == 3
    assert "UV=/nowhere/uv does not run" in err


@pytest.mark.parametrize(
    ("python3", "expected"),
    [
        ("#!/bin/bash\nexit 1\n", "sudo apt-get install python3-venv"),
        (None, "sudo apt-get install python3 python3-venv"),
    ],
    ids=["python3 without venv and pip", "no python3"],
)
def test_where_uv_cannot_be_installed_the_missing_package_is_named(
    clone: Clone, tmp_path: Path, python3: str | None, expected: str
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tools / tool).symlink_to(found)
    if python3 is not None:
        (tools / "python3").write_text(python3)
        (tools / "python3").chmod(0o755)
    del clone.environment["UV"]
    code, _, err = clone.bootstrap(PATH=str(tools))
    assert code == 3
    assert expected in err
    assert "UV=/path/to/uv" in err


def test_the_wrapper_works_through_a_link_and_from_anywhere(clone: Clone, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "cli.py").write_text("raise SystemExit('a file of the user was taken for ours')\n")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/nightbatch"
    link.symlink_to("../clone/nightbatch")
    code, out, err = clone.nightbatch("run", "two words", cwd=elsewhere, program=link)
    assert code == 0, err
    assert json.loads(out) == [str(elsewhere), ["run", "two words"], str(link), "client"]


def test_the_wrapper_runs_in_the_submit_environment_where_only_that_was_made(clone: Clone, tmp_path: Path) -> None:
    code, out, err = clone.bootstrap("submit")
    assert code == 0, err
    assert Path(out).parent.parent.name.startswith("submit-")
    assert "next: ./nightbatch runs --stack NAME" in err
    assert clone.runs_in() == "submit"
    assert clone.installs() == 1  # nothing else was installed for it
    (clone.root / "locks/submit.lock").write_text("few==2.0 --hash=sha256:00\n")
    assert clone.runs_in() == "submit"  # after an update, too
    shutil.rmtree(clone.root / ".work")  # another clone on this machine
    assert clone.runs_in() == "submit"
    assert clone.bootstrap()[0] == 0
    assert clone.runs_in() == "client"  # whoever made the whole one wants it
    assert "next: NIGHTBATCH_ENV=submit ./nightbatch" in clone.bootstrap("submit")[2]
    for whole in clone.cache.glob("client-*"):
        shutil.rmtree(whole)
    assert clone.runs_in() == "submit"  # the whole one was deleted
    shutil.rmtree(clone.cache)
    assert clone.runs_in() == "client"  # and now both


def test_the_environment_of_the_wrapper_can_be_named(clone: Clone) -> None:
    assert clone.runs_in() == "client"
    assert clone.runs_in("submit") == "submit"
    assert clone.runs_in("client") == "client"
    code, _, err = clone.nightbatch("version", NIGHTBATCH_ENV="sumbit")
    assert code == 2
    assert "NIGHTBATCH_ENV is 'sumbit'; it must be client or submit" in err
    assert clone.bootstrap("sumbit")[0] == 2


def test_what_uv_keeps_is_in_the_one_cache_folder_unless_its_owner_says_otherwise(clone: Clone) -> None:
    assert clone.bootstrap()[0] == 0
    assert f"folders {clone.cache}/uv-cache {clone.cache}/uv-python" in clone.log.read_text()
    assert clone.bootstrap("submit", UV_CACHE_DIR="/mine", UV_PYTHON_INSTALL_DIR="/pythons")[0] == 0
    assert "folders /mine /pythons" in clone.log.read_text()


def test_cleaning_keeps_the_environment_in_use_and_drops_downloads_and_other_environments(clone: Clone) -> None:
    (clone.root / "scripts/pulumi-cli").write_text('#!/bin/sh\necho "$NIGHTBATCH_CACHE/pulumi-none"\n')
    old = Path(clone.bootstrap()[1]).parent.parent
    clone.lock.write_text("package==2.0 --hash=sha256:00\n")
    new = Path(clone.bootstrap()[1]).parent.parent
    downloads, worker = clone.cache / "uv-cache", clone.cache / "worker-0"
    for folder in (downloads, worker):
        folder.mkdir()
        (folder / "file").touch()
    done = subprocess.run(["bash", clone.root / "scripts/clean"], env=clone.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"removing {downloads}" in done.stderr
    assert [path.exists() for path in (old, downloads, new, worker)] == [False, False, True, True]
