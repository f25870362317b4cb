"""How the `pulumi` command is run, with a program in its place that does what the test says: fast, and without the engine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.errors import UsageError
from infra.review import engine
from infra.review.engine import Done, EngineError, Preview, Project, pulumi_env, run
from tests.emulator.kit import alive
from tests.infra.engine.kit import eventually

Fake = Callable[[str], dict[str, str]]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """An environment whose `pulumi` is a shell script with this body."""

    def make(body: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "pulumi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}

    return make


def test_a_failure_is_a_result_with_both_outputs(fake: Fake, tmp_path: Path) -> None:
    done = run(["up", "--stack", "dev"], cwd=tmp_path, env=fake('echo "$@"; echo "error: no such stack" >&2; exit 3'))
    assert (done.returncode, done.ok, done.timed_out) == (3, False, False)
    assert done.stdout == "up --stack dev --non-interactive --color never\n"
    assert done.problem == "no such stack"
    with pytest.raises(EngineError, match=r"`pulumi up` failed \(exit code 3\): no such stack") as raised:
        done.expect(where="stack dev")
    assert raised.value.done is done
    assert raised.value.exit_code == 3


def test_a_run_over_its_deadline_is_interrupted_first_and_then_ended_with_its_plugins(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "GRACE_S", 0.5)
    monkeypatch.setattr(engine, "LEFT_S", 0.2)
    plugin = f"{sys.executable} -c 'import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(60)'"
    env = fake(f"trap 'echo interrupted' INT\n{plugin} &\nwhile :; do sleep 0.05; done")
    began = time.monotonic()
    done = run(["up"], cwd=tmp_path, env=env, timeout_s=1.0)
    assert done.timed_out
    assert time.monotonic() - began < 20
    pid = next(int(line) for line in done.stdout.splitlines() if line.isdigit())
    assert "interrupted" in done.stdout
    assert not alive(pid), "a plugin in a process group of its own goes with its engine"
    with pytest.raises(EngineError, match="was stopped after"):
        done.expect()


def test_an_engine_that_saves_its_state_when_interrupted_ends_by_itself(fake: Fake, tmp_path: Path) -> None:
    done = run(["up"], cwd=tmp_path, env=fake("trap 'echo saved; exit 8' INT\nwhile :; do sleep 0.02; done"), timeout_s=0.5)
    assert (done.stdout, done.returncode, done.timed_out) == ("saved\n", 8, True)


def test_a_second_interrupt_does_not_wait_for_an_engine_that_does_not_end(fake: Fake, tmp_path: Path) -> None:
    env = fake(f"trap 'echo 1 >>{tmp_path}/interrupts' INT\necho $$ >{tmp_path}/pid\nwhile :; do sleep 0.02; done")
    program = (
        "import sys; from pathlib import Path; from infra.review.engine import run; run(['up'], cwd=Path('.'), env=dict(PATH=sys.argv[1]))"
    )
    command = [sys.executable, "-P", "-c", program, env["PATH"]]
    caller = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the engine runs")
        caller.send_signal(signal.SIGINT)
        eventually((tmp_path / "interrupts").exists, "the engine was told")
        caller.send_signal(signal.SIGINT)
        assert caller.wait(timeout=engine.GRACE_S / 2) != 0
    finally:
        caller.kill()
        caller.communicate()
    assert not alive(int((tmp_path / "pid").read_text()))


def test_an_interrupt_just_after_the_start_leaves_no_engine(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(env: object) -> None:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the engine runs")
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_hider", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["up"], cwd=tmp_path, env=fake(f"echo $$ >{tmp_path}/pid\nexec sleep 60"))
    assert not alive(int((tmp_path / "pid").read_text()))


def test_what_a_killed_engine_leaves_behind_is_ended(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LEFT_S", 0.2)
    done = run(["up"], cwd=tmp_path, env=fake("sleep 60 & echo $!; kill -9 $$"))
    assert done.returncode == 128 + 9
    assert not alive(int(done.stdout))


def test_secrets_of_the_environment_are_hidden_in_what_is_said(fake: Fake, tmp_path: Path) -> None:
    secrets = {"RUNPOD_API_KEY": "rpa_0123456789", "PULUMI_CONFIG_PASSPHRASE": "a long one", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}
    env = {**fake('echo "$RUNPOD_API_KEY"; echo "error: $PULUMI_CONFIG_PASSPHRASE $AWS_SECRET_ACCESS_KEY" >&2; exit 1'), **secrets}
    lines: list[str] = []
    done = run(["up"], cwd=tmp_path, env=env, on_line=lines.append)
    assert (done.stdout, done.stderr) == ("[hidden]\n", "error: [hidden] [hidden]\n")
    assert sorted(lines) == ["[hidden]", "error: [hidden] [hidden]"]


def test_two_runs_at_once_keep_to_themselves(fake: Fake, tmp_path: Path) -> None:
    env = fake('for n in 1 2 3 4 5; do echo "$1"; done')
    found: dict[str, Done] = {}
    threads = [threading.Thread(target=lambda n=n: found.setdefault(n, run([n], cwd=tmp_path, env=env))) for n in ("dev", "prod")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: done.stdout for n, done in found.items()} == {"dev": "dev\n" * 5, "prod": "prod\n" * 5}


def test_a_machine_without_pulumi_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="scripts/pulumi-cli"):
        run(["up"], cwd=tmp_path, env={"PATH": str(tmp_path)})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NIGHTBATCH_CACHE", str(tmp_path))
    with pytest.raises(EngineError, match="The Pulumi CLI is not on this machine") as raised:
        engine.find_cli()
    assert "scripts/pulumi-cli installs or builds it" in str(raised.value)


def test_a_preview_that_failed_says_why_in_pulumis_own_words(fake: Fake, tmp_path: Path) -> None:
    digest = {
        "diagnostics": [
            {"severity": "error", "message": "error: infra/Pulumi.dev.yaml: workersMax is missing\n"},
            {"severity": "error", "message": "preview failed"},
            {"severity": "warning", "message": "something else"},
        ],
        "changeSummary": {"same": 2, "create": 1},
    }
    (tmp_path / "digest.json").write_text(json.dumps(digest))
    project = Project(tmp_path, fake(f"cat {tmp_path}/digest.json; exit 1"))
    preview = project.preview("dev")
    assert preview.failed
    assert preview.errors == ("infra/Pulumi.dev.yaml: workersMax is missing",)
    assert preview.done.problem == "infra/Pulumi.dev.yaml: workersMax is missing"
    assert preview.changes == {"create": 1}


def test_expected_no_changes_and_met_some_is_no_failure(fake: Fake, tmp_path: Path) -> None:
    preview = Project(tmp_path, fake("echo '{}'; exit 7")).preview("dev", "--expect-no-changes")
    assert preview.done.changed
    assert not preview.failed
    assert preview.errors == ()


def test_a_preview_without_a_digest_has_failed(fake: Fake, tmp_path: Path) -> None:
    preview = Project(tmp_path, fake("echo 'error: could not load plugin' >&2; exit 255")).preview("dev")
    assert preview == Preview("dev", None, preview.done)
    assert preview.errors == ("could not load plugin",)


def test_a_locked_stack_says_how_to_free_it(fake: Fake, tmp_path: Path) -> None:
    words = "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file"
    with pytest.raises(EngineError, match="`pulumi cancel` frees it"):
        Project(tmp_path, fake(f"echo '{words}' >&2; exit 1")).up("dev").expect()


def test_the_environment_puts_this_python_and_the_cli_first_and_asks_the_internet_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "provider_folder", lambda: tmp_path / "provider")
    given = {"PATH": "/usr/bin", "PYTHONPATH": "/mine", "PYTHONHOME": "/elsewhere", "PULUMI_CONFIG_PASSPHRASE_FILE": "/a/file", "A": "1"}
    env = pulumi_env(given, cli=tmp_path / "cli", backend=tmp_path / "state", passphrase="", home=tmp_path / "home", extra={"A": "2"})
    assert env["PATH"].split(os.pathsep) == [
        str(Path(sys.executable).parent),
        str(tmp_path / "provider"),
        str(tmp_path / "cli"),
        "/usr/bin",
    ]
    assert env["PYTHONPATH"].split(os.pathsep) == [str(engine.ROOT), "/mine"]
    assert env["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/state"
    assert (tmp_path / "state").is_dir()
    assert (env["PULUMI_SKIP_UPDATE_CHECK"], env["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"]) == ("1", "1")
    assert (env["PULUMI_CONFIG_PASSPHRASE"], env["PULUMI_HOME"], env["A"]) == ("", str(tmp_path / "home"), "2")
    assert not {"PYTHONHOME", "PULUMI_CONFIG_PASSPHRASE_FILE"} & set(env)
    assert given["PATH"] == "/usr/bin"


def test_a_stack_of_ones_own_keeps_its_backend_and_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "provider_folder", lambda: tmp_path)
    given = {"PATH": "/usr/bin", "PULUMI_BACKEND_URL": "s3://states", "PULUMI_CONFIG_PASSPHRASE_FILE": "/a/file"}
    env = pulumi_env(given, cli=tmp_path)
    assert (env["PULUMI_BACKEND_URL"], env["PULUMI_CONFIG_PASSPHRASE_FILE"]) == ("s3://states", "/a/file")
    assert not {"PULUMI_CONFIG_PASSPHRASE", "PULUMI_HOME"} & set(env)


def test_a_folder_without_a_project_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no Pulumi\.yaml"):
        engine.project_folder({"NIGHTBATCH_PROJECT": str(tmp_path)})
    (tmp_path / "Pulumi.yaml").touch()
    assert engine.project_folder({"NIGHTBATCH_PROJECT": str(tmp_path)}) == tmp_path
