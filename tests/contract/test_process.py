"""Commands whose children must not outlive them: what they said, and how they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from contract import process
from tests.emulator.kit import alive

ENV = dict(os.environ)


def test_a_command_is_told_with_both_outputs_and_gets_no_input(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), repr(sys.stdin.read())); sys.stderr.buffer.write(b'odd \\xff\\n'); sys.exit(3)"
    lines: list[str] = []
    done = process.run((sys.executable, "-c", code), cwd=tmp_path, env=ENV, timeout_s=30.0, on_line=lines.append)
    assert (done.returncode, done.stdout, done.stderr, done.timed_out) == (3, f"{tmp_path} ''\n", "odd \ufffd\n", False)
    assert sorted(lines) == sorted([f"{tmp_path} ''", "odd \ufffd"])


@pytest.mark.parametrize(("grace_s", "said"), [(0.0, ""), (5.0, "saved\n")])
def test_only_with_a_grace_is_a_command_asked_before_it_is_killed(tmp_path: Path, grace_s: float, said: str) -> None:
    body = "trap 'echo saved; exit 8' INT; sleep 300 & while :; do sleep 0.02; done"
    done = process.run(("/bin/sh", "-c", body), cwd=tmp_path, env=ENV, timeout_s=0.5, grace_s=grace_s, left_s=0.1)
    assert done.timed_out
    assert (done.stdout, done.returncode) == (said, 8 if said else 128 + 9)


def test_what_a_command_leaves_behind_is_ended_also_in_a_group_of_its_own(tmp_path: Path) -> None:
    child = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(300)"
    code = f"import subprocess as s, sys; print(s.Popen([sys.executable, '-c', {child!r}], stdout=s.PIPE).stdout.readline())"
    done = process.run((sys.executable, "-c", code), cwd=tmp_path, env=ENV, timeout_s=30.0, left_s=0.1)
    pid = int("".join(letter for letter in done.stdout if letter.isdigit()))
    assert (done.returncode, alive(pid)) == (0, False)


def test_a_program_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        process.run((str(tmp_path / "none"),), cwd=tmp_path, env=ENV, timeout_s=1.0)
