"""scripts/check's infrastructure step: the CLI is there first, and a test of the engine that is skipped is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.engine.test_pulumi_cli import Machine

TESTS = """\
import pytest

@pytest.mark.pulumi
def test_of_the_engine():
    {}

def test_of_something_else():
    raise AssertionError("it is not selected")
"""


def check(tmp_path: Path, repo: Path, body: str) -> tuple[int, str]:
    machine = Machine(tmp_path, repo)
    machine.pulumi("v3.276.0")
    file = tmp_path / "test_it.py"
    file.write_text(TESTS.format(body))
    elsewhere = tmp_path / "test_elsewhere.py"
    elsewhere.write_text("import pytest\npytest.skip('what it reads is not here', allow_module_level=True)\n")
    env = {**os.environ, "PATH": f"{machine.bin}{os.pathsep}{os.environ['PATH']}"}
    env.pop("NIGHTBATCH_PULUMI", None)
    command = [
        sys.executable,
        str(repo / "scripts/check.py"),
        "--only",
        "infrastructure",
        str(file),
        str(elsewhere),
        "-c",
        str(repo / "pyproject.toml"),
        "-n",
        "0",
    ]
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("pass", 0, "1 passed, 0 failed, 0 skipped"),
        ("pytest.skip('no CLI here')", 1, "a test of the real Pulumi engine was skipped; none may be"),
    ],
)
def test_a_skipped_test_of_the_engine_fails_the_check(tmp_path: Path, repo: Path, body: str, code: int, words: str) -> None:
    returned, said = check(tmp_path, repo, body)
    assert words in said
    assert returned == code, said
