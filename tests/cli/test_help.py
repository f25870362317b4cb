"""The command line's surface: quick, plain, and documented as it is."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "aiohttp",
    "apsw",
    "boto3",
    "botocore",
    "numpy",
    "pyarrow",
    "rich",
    "zstandard",
    "msgspec",
    "runpod",
    "pipelines",
    "emulator",
    "contract",
}
COMMANDS = (
    "run", "plan", "submit", "resume", "status", "collect", "verify", "cancel", "runs", "version", "doctor", "stop", "start", "estimate"
)  # fmt: skip


def nightbatch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_takes_less_than_three_tenths_of_a_second() -> None:
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert nightbatch("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Of a core, not of a clock: the machine that runs the tests has more to do.
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.3


def test_help_imports_nothing_heavy_and_no_other_room() -> None:
    code = "import sys\nimport cli.app\nprint(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    loaded = subprocess.check_output([sys.executable, "-P", "-c", code], text=True).split()
    assert not HEAVY & set(loaded)


@pytest.mark.parametrize("command", [*COMMANDS, "local up", "local down", "local status", "image pin"])
def test_every_command_explains_itself_in_plain_text(command: str) -> None:
    done = nightbatch(*command.split(), "--help", COLUMNS="80")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: nightbatch {command} ")
    assert done.stdout.isascii()  # no boxes, no colours
    assert "--json" in done.stdout


def test_the_documentation_is_what_help_says() -> None:
    from cli.docs import page

    assert (ROOT / "docs/cli.md").read_text() == page(), "run make docs"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("frobnicate", "no such command 'frobnicate'. See: nightbatch -h"),
        ("run", "missing argument 'DATASET'. See: nightbatch run -h"),
        ("run x.jsonl --model m", "missing option '--task'. Choose from: generate, embed. See: nightbatch run -h"),
        ("run x.jsonl --task dance --model m", "--task: 'dance' is not one of 'generate', 'embed'. See: nightbatch run -h"),
        ("run x.jsonl --nonsense", "no such option: --nonsense. See: nightbatch run -h"),
        ("run x.jsonl --task embed --model m --limit 0", "--limit: it must be at least 1. See: nightbatch run -h"),
        ("status", "RUN: name one run, or say --all-stacks. See: nightbatch status -h"),
    ],
)
def test_wrong_usage_ends_with_two_and_a_sentence_in_the_same_voice_as_all_others(arguments: str, sentence: str) -> None:
    done = nightbatch(*arguments.split())
    assert done.returncode == 2
    assert done.stderr == f"nightbatch: {sentence}\n"
    assert done.stdout == ""


def test_wrong_usage_is_one_json_object_where_that_was_asked_for() -> None:
    done = nightbatch("run", "x.jsonl", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2


def test_a_program_that_is_named_alone_shows_its_help() -> None:
    done = nightbatch()
    assert "Commands:" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
