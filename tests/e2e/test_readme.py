"""The README's examples run as they are written: every block that follows `<!-- runs -->`, in order, in a fresh copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.house import CACHE, ROOT, answers, eventually
from tests.emulator.kit import processes_of

BLOCK = re.compile(r"^<!-- runs -->\s*\n```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """What stands after `$ ` in those blocks; a line that ends with a backslash goes on."""
    found = []
    for block in BLOCK.findall(text):
        lines = block.replace("\\\n", " ").splitlines()
        found += [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return found


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """What a person has who cloned the project, with caches and without anything that runs."""
    copy, home = tmp_path / "nightbatch", tmp_path / "home"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():  # one that is deleted and not committed yet is not there to be copied
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"NIGHTBATCH_HOME": str(home), "NIGHTBATCH_CACHE": str(CACHE)}
    try:
        yield copy, env
    finally:
        subprocess.run(["./nightbatch", "local", "down"], cwd=copy, env=env, capture_output=True, timeout=60)
        eventually(lambda: not processes_of(home), "no process is left", 20)


def test_a_block_is_found_with_its_commands() -> None:
    text = "# A\n```console\n$ not this\n```\n<!-- runs -->\n```console\n$ first \\\n    --goes on\nits output\n$ second\n```\n"
    assert commands(text) == ["first      --goes on", "second"]


@pytest.mark.e2e
@pytest.mark.timeout(420)
def test_the_examples_of_the_readme_run_as_they_are_written(clone: tuple[Path, dict[str, str]], worker_python: Path) -> None:
    copy, env = clone
    written = commands((copy / "README.md").read_text())
    assert any(command.startswith("./nightbatch local up") for command in written)
    assert any(command.startswith("./nightbatch run ") for command in written)
    for command in written:
        done = subprocess.run(["bash", "-c", command], cwd=copy, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"$ {command}\n{done.stdout[-1500:]}\n{done.stderr[-2500:]}"
        if " run " in command:
            assert "complete, verified" in done.stdout
            (out,) = re.findall(r"--out (\S+)", command)
            assert (copy / out).stat().st_size > 0
            assert answers((copy / out).with_suffix(".errors.jsonl")) == []
        if command.startswith("./nightbatch runs"):
            assert len(done.stdout.splitlines()) == sum(" run " in one for one in written)
        if command.startswith("./nightbatch local down"):
            eventually(lambda: not processes_of(Path(env["NIGHTBATCH_HOME"])), "nothing is left after `local down`", 20)
