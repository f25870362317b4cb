"""The one error policy: exit codes, sentences, and no secret in either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from cli import policy
from contract import errors


def end_of(function: Callable[..., int | None], **kwargs: object) -> int:
    """The exit code that the guarded command ends with."""

    def command(json_output: bool = False) -> int | None:
        return function()

    with pytest.raises(typer.Exit) as caught:
        policy.guarded(command)(**kwargs)  # type: ignore[arg-type]
    return int(caught.value.exit_code)


def failing(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("no."), 2),
        (errors.DatasetError("no."), 2),
        (errors.PlanMismatch("no."), 2),
        (errors.StoreUnavailable("no."), 3),
        (errors.EndpointAuth("no."), 3),
        (errors.EmulatorError("no."), 3),
        (errors.VerifyFailed("no."), 1),
        (errors.Interrupted("no."), 130),
        (KeyboardInterrupt(), 130),
        (ValueError("what?"), 3),
        (ExceptionGroup("tasks", [errors.UsageError("no.")]), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_branch_of_the_error_tree_has_its_exit_code(
    error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTBATCH_HOME", str(tmp_path))
    assert end_of(failing(error)) == code


def test_success_is_zero_and_a_command_can_say_otherwise() -> None:
    assert end_of(lambda: None) == 0
    assert end_of(lambda: 1) == 1


def test_a_mistake_of_the_user_is_one_sentence_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.UsageError("is not a number.", where="--param top_p=x", fix="Give a number.")
    assert end_of(failing(error)) == 2
    captured = capsys.readouterr()
    assert captured.err == "nightbatch: --param top_p=x: is not a number. Give a number.\n"
    assert captured.out == ""


def test_every_bad_row_is_listed_and_the_rest_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [errors.BadRow("in.jsonl", line, "not_json", "not JSON") for line in range(1, 71)]
    assert end_of(failing(errors.DatasetError("1,000 rows cannot be sent.", bad_rows=rows, total=1000))) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "in.jsonl:1: not JSON"
    assert lines[49] == "in.jsonl:50: not JSON"
    assert lines[50] == "... and 950 more"
    assert lines[51] == "nightbatch: 1,000 rows cannot be sent."


def test_with_json_an_error_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [errors.BadRow("in.jsonl", 3, "duplicate_id", "the id 'a' is also on line 1")]
    assert end_of(failing(errors.DatasetError("1 row cannot be sent.", bad_rows=rows)), json_output=True) == 2
    record = json.loads(capsys.readouterr().out)
    assert record["state"] == "error"
    assert record["exit_code"] == 2
    assert record["error"] == "1 row cannot be sent."
    assert record["details"] == ["in.jsonl:3: the id 'a' is also on line 1"]


def test_an_unexpected_error_names_its_log_and_hides_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTBATCH_HOME", str(tmp_path))
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_ABCDEFGH12345678")
    assert end_of(failing(KeyError("Authorization: Bearer rpa_ABCDEFGH12345678"))) == 3
    message = capsys.readouterr().err
    (log,) = (tmp_path / "logs").iterdir()
    assert str(log) in message
    assert "Traceback" not in message
    assert "Traceback" in log.read_text()
    assert "rpa_ABCDEFGH12345678" not in message + log.read_text()


def test_an_interruption_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        policy.session.run = "r1"
        policy.session.resume = "nightbatch resume r1"
        raise KeyboardInterrupt

    assert end_of(command) == 130
    assert "nightbatch resume r1" in capsys.readouterr().err


@pytest.mark.parametrize(("jobs", "said"), [(1, "1 job is still"), (12, "12 jobs are still"), (0, None)])
def test_an_interruption_says_that_jobs_go_on_and_how_to_end_them(jobs: int, said: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        policy.session.resume, policy.session.cancel = "nightbatch resume r1", "nightbatch cancel r1 --stop"
        policy.session.jobs_out = jobs
        raise KeyboardInterrupt

    assert end_of(command) == 130
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith("Go on with: nightbatch resume r1"), "a command that can be copied as it stands"
    told = [line for line in lines if line.endswith("will be paid for. To end them: nightbatch cancel r1 --stop")]
    assert [line.startswith(said or "") for line in told] == [True] * bool(jobs)


def test_sigterm_ends_a_command_as_an_interruption() -> None:
    code = (
        "import os, signal, time\nfrom cli.policy import guarded\nimport typer\n"
        "@guarded\ndef command(): print('ready', flush=True); signal.pause(); return 0\n"
        "try: command()\nexcept typer.Exit as e: raise SystemExit(e.exit_code)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import sys, typer\nfrom cli.policy import ended, guarded\n"
        "@guarded\ndef command():\n    for i in range(100000): print('x' * 80)\n    return 0\n"
        "def program():\n    try: command()\n    except typer.Exit as e: raise SystemExit(e.exit_code)\n"
        "sys.exit(ended(program))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=30) == 0
    assert err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("arguments", [["version"], ["version", "--json"], ["--help"], ["status", "a-b", "--json"]])
def test_a_result_that_cannot_be_written_is_an_error_with_one_sentence(arguments: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "NIGHTBATCH_HOME": str(tmp_path)}
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "cli", *arguments], env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("nightbatch: standard output: the result could not be written (No space left on device)")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_closed_stream_or_a_terminal_that_went_away_ends_no_command(closed: str, tmp_path: Path) -> None:
    env = {**os.environ, "NIGHTBATCH_HOME": str(tmp_path)}
    shell = f"{sys.executable} -m cli version {closed}; echo $? >&3; {sys.executable} -m cli status a-b {closed}; echo $? >&3"
    done = subprocess.run(["bash", "-c", f"exec 3>codes; {shell}"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "codes").read_text() == "0\n3\n"
    assert "Traceback" not in done.stdout + done.stderr
    assert "not running" not in done.stdout


def test_names_that_would_move_the_cursor_or_are_no_text_are_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [errors.BadRow("a\x1b[2Jb\udcff.jsonl", 1, "bad_id", "\u202eid\x9b")]
    assert end_of(failing(errors.DatasetError("no.", bad_rows=rows)), json_output=True) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == "a\\u001b[2Jb\\udcff.jsonl:1: \\u202eid\\u009b"
    assert json.loads(captured.out)["details"] == [str(rows[0])]


def test_arguments_that_are_no_text_end_in_a_sentence(tmp_path: Path) -> None:
    env = {**os.environ, "NIGHTBATCH_HOME": str(tmp_path), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "cli", "run", os.fsdecode(b"\xf0\x9f\xff.jsonl"), "--task", "embed", "--model", "m"]
    command += ["--facts", os.fsdecode(b"\xff")]
    done = subprocess.run(command, env=env, capture_output=True)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_an_interrupt_while_the_program_is_loaded_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import signal\nprint('loading', flush=True)\nsignal.pause()\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "cli"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGINT, "")


def test_a_full_disk_is_foreseen_and_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        policy.session.resume = "nightbatch resume a-b"
        with open("/dev/full", "wb") as file:
            file.write(b"x")
        return 0

    assert end_of(command) == 3
    err = capsys.readouterr().err
    assert "unexpected" not in err
    assert "No space left on device" in err
    assert "nightbatch resume a-b" in err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Start it: nightbatch local up", "Start it: ./nightbatch local up"),
        ("`nightbatch resume R`, or `nightbatch collect R`", "`./nightbatch resume R`, or `./nightbatch collect R`"),
        ("./nightbatch local down; /opt/nightbatch local up", "./nightbatch local down; /opt/nightbatch local up"),
        ("pip install nightbatch in a folder", "pip install nightbatch in a folder"),
    ],
)  # fmt: skip
def test_a_hint_names_the_program_as_it_was_called(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTBATCH_PROGRAM", "./nightbatch")
    assert policy.as_typed(text) == shown
    monkeypatch.delenv("NIGHTBATCH_PROGRAM")
    assert policy.as_typed(text) == text


def test_what_to_do_next_is_shown_as_it_is_typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NIGHTBATCH_PROGRAM", "./nightbatch")
    policy.begin(json_output=True)
    policy.explain(errors.UsageError("no.", fix="Try: nightbatch runs"))
    shown = capsys.readouterr()
    assert shown.err == "nightbatch: no. Try: ./nightbatch runs\n"
    assert json.loads(shown.out)["fix"] == "Try: ./nightbatch runs"
