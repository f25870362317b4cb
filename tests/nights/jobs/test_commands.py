"""`nightbatch schedule` and `nightbatch schema`, as they are typed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.app import app

JOB = """\
version: 1
kind: generate
dataset: s3://d/a.csv
model: m
stack: prod
prompt: "{q}"
out: "s3://d/{job}-{date}.jsonl"
schedule: {cron: "30 2 * * *", timezone: Europe/Berlin}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with one job."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/answers.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NIGHTBATCH_JOBS", raising=False)
    monkeypatch.delenv("NIGHTBATCH_PROGRAM", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_write_makes_what_check_then_finds_to_be_right(project: Path) -> None:
    done = run("schedule", "write", "--for", "github", "--for", "cron")
    assert (done.exit_code, done.stdout) == (0, "wrote .github/workflows/night-answers.yml\nwrote deploy/cron/nights.crontab\n")
    done = run("schedule", "check")
    assert (done.exit_code, done.stdout) == (0, "2 files as the job files say\n")
    done = run("schedule", "write")
    assert (done.exit_code, done.stdout) == (0, "nothing to do: every file is as the job files say\n")


def test_check_ends_with_one_and_a_diff_where_they_differ(project: Path) -> None:
    run("schedule", "write", "--for", "github")
    (project / "jobs/answers.yaml").write_text(JOB.replace("30 2", "45 3"))
    done = run("schedule", "check")
    assert done.exit_code == 1
    assert '-    - cron: "30 0 * * *" # 02:30 at UTC+02:00\n' in done.stdout
    assert '+    - cron: "45 1 * * *" # 03:45 at UTC+02:00\n' in done.stdout
    assert done.stdout.endswith(".github/workflows/night-answers.yml: differs\n")
    assert done.stderr == "nightbatch: the schedulers' files are not what the job files say. Run: nightbatch schedule write\n"
    record = json.loads(run("schedule", "check", "--json").stdout)
    assert (record["same"], record["exit_code"], record["differences"][0]["what"]) == (False, 1, "differs")
    assert run("schedule", "write").exit_code == 0
    assert run("schedule", "check").exit_code == 0


def test_a_file_that_is_missing_or_too_many_differs_too(project: Path) -> None:
    done = run("schedule", "check", "--for", "systemd")
    assert done.exit_code == 1
    assert "deploy/systemd/night-answers.timer: is missing" in done.stdout
    run("schedule", "write", "--for", "github")
    os.rename("jobs/answers.yaml", "jobs/replies.yaml")
    done = run("schedule", "check")
    assert ".github/workflows/night-answers.yml: nothing makes it" in done.stdout
    assert run("schedule", "write").stdout.splitlines() == [
        "removed .github/workflows/night-answers.yml", "wrote .github/workflows/night-replies.yml"
    ]  # fmt: skip


def test_a_folder_is_said_once(project: Path) -> None:
    assert run("schedule", "write", "--for", "systemd", "--folder", "/srv/nights").exit_code == 0
    assert run("schedule", "check").exit_code == 0
    assert "WorkingDirectory=/srv/nights\n" in Path("deploy/systemd/night-answers.service").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["write"], "there is no scheduler's file yet. Say which one to make: nightbatch schedule write --for github."),
        (
            ["write", "--for", "jenkins"],
            "nightbatch: --for jenkins: is no scheduler that is known. There are: github, gitlab, systemd, cron.\n",
        ),
        (["check", "--for", "github", "--jobs", "nowhere"], "nightbatch: nowhere: there are no job files here"),
        (["write", "--for", "cron", "--folder", "x y"], "nightbatch: --folder x y: is not the full path of a folder"),
        (["next", "anwsers"], "there is no job `anwsers`. Did you mean answers?"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_two(arguments: list[str], said: str) -> None:
    done = run("schedule", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_mistakes_of_all_job_files_are_told_before_anything_is_written(project: Path) -> None:
    (project / "jobs/bad.yaml").write_text("version: 1\nkind: eval\n")
    done = run("schedule", "write", "--for", "github")
    assert done.exit_code == 2
    assert done.stderr == (
        "jobs/bad.yaml:1: model: is missing: the endpoint's name on the stack, or the model that it serves\n"
        "jobs/bad.yaml:1: suite: is missing; kind eval needs the path of a suite's file\n"
        "nightbatch: 2 mistakes in 1 job file, nothing was begun. docs/jobs.md lists every key.\n"
    )
    assert not Path(".github").exists()
    record = json.loads(run("schedule", "write", "--for", "github", "--json").stdout)
    assert len(record["details"]) == 2


def test_next_says_when_nights_are_due_in_both_clocks() -> None:
    done = run("schedule", "next", "answers", "--count", "3")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "answers  30 2 * * * in Europe/Berlin"
    assert len(lines) == 4
    assert all(re.fullmatch(r"  (\S+)  \1 02:30 CES?T  \S+ 0[01]:30 UTC", line) for line in lines[1:] if "03:00" not in line)
    record = json.loads(run("schedule", "next", "--json", "--count", "2").stdout)
    assert [len(one["nights"]) for one in record["jobs"]] == [2]


def test_a_job_without_a_schedule_is_never_due(project: Path) -> None:
    (project / "jobs/answers.yaml").write_text(JOB[: JOB.index("schedule")])
    done = run("schedule", "next", "answers")
    assert done.exit_code == 2
    assert "has no schedule, so that it is never due" in done.stderr
    assert run("schedule", "next").stdout == "no job has a schedule\n"


def test_the_schema_is_printed_or_written(tmp_path: Path) -> None:
    text = run("schema").stdout
    assert json.loads(text)["title"] == "Nightbatch job"
    assert run("schema", "--out", "s.json").stdout == ""
    assert Path("s.json").read_text() == text
    assert json.loads(run("schema", "--json").stdout) == json.loads(text)
    done = run("schema", "--out", str(tmp_path / "no/s.json"))
    assert (done.exit_code, "the schema cannot be written (No such file or directory)" in done.stderr) == (2, True)


def test_an_installation_that_only_submits_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run("schedule", "check")
    assert done.exit_code == 2
    assert "this installation only submits: it has no Python package `pydantic`" in done.stderr
    assert run("schema").exit_code == 2
