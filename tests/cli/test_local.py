"""`nightbatch local`: what it tells the emulator, and that up, status and down do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import local
from contract.errors import UsageError
from emulator.local import default_config, running


def nightbatch(home: Path, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    worker = home / "python"  # has every model, and is never started as a worker here
    worker.write_text("#!/bin/sh\nexit 0\n")
    worker.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments],
        env={**os.environ, "NIGHTBATCH_HOME": str(home), "NIGHTBATCH_WORKER_PYTHON": str(worker)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("minilm", ("minilm", "embed")),
        ("smollm2", ("smollm2", "generate")),
        ("org/chat-model", ("org/chat-model", "generate")),
        ("embed:org/e5", ("org/e5", "embed")),
        ("generate:/models/x", ("/models/x", "generate")),
        ("c:/models/x", ("c:/models/x", "generate")),
    ],
)
def test_a_model_may_say_its_task(text: str, expected: tuple[str, str]) -> None:
    assert local.parse_model(text) == expected


def test_further_models_become_endpoints_with_names_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "My Model!"
    folder.mkdir()
    config = default_config(tmp_path, worker_python="python", code=tmp_path)
    config = local.with_models(config, ["embed:org/e5-small", "other/E5-Small", str(folder), "minilm"])
    made = {endpoint.name: endpoint for endpoint in config.endpoints[2:]}
    assert list(made) == ["e5-small", "e5-small-2", "my-model"]
    assert made["e5-small"].tasks == ("embed",)
    assert made["e5-small"].env["NIGHTBATCH_MODEL"] == "org/e5-small"
    assert made["e5-small"].env["NIGHTBATCH_TASK"] == "embed"
    assert made["my-model"].model == str(folder)


def test_the_last_words_of_a_worker_that_could_not_start_are_found(tmp_path: Path) -> None:
    assert local.last_words("tiny", tmp_path) is None
    (tmp_path / "emulator.log").write_text(
        "10:00 WARNING worker aa of tiny is unhealthy: ended with exit code 1 before it asked for work\n"
        "10:01 WARNING worker bb of tiny is unhealthy: ended with exit code 1 before it asked for work\n"
        "10:02 WARNING worker cc of tiny-2 is unhealthy: ended with exit code 3 before it asked for work\n"
    )
    assert local.last_words("tiny", tmp_path) is None, "its log is gone"
    log = tmp_path / "logs" / "tiny" / "bb.log"
    log.parent.mkdir(parents=True)
    log.write_text("loading\nworker: the model has no config.json.\n\n")
    assert local.last_words("tiny", tmp_path) == ("worker: the model has no config.json.", log)
    log.write_text("")
    assert local.last_words("tiny", tmp_path) == ("ended with exit code 1 before it asked for work", log)


def test_a_worker_python_that_is_none_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="NIGHTBATCH_WORKER_PYTHON=/nowhere: is not a program"):
        local.worker_python({"NIGHTBATCH_WORKER_PYTHON": "/nowhere"})


def test_status_and_down_say_so_where_nothing_runs(tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "local", "status", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["state"] == "stopped"
    done = nightbatch(tmp_path, "local", "down")
    assert done.returncode == 0
    assert done.stdout == "the local stack was not running\n"


def test_a_run_on_a_stopped_local_stack_says_how_to_start_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "text": "one"}\n')
    done = nightbatch(
        tmp_path, "run", str(rows), "--task", "embed", "--model", "minilm", "--column", "text", "--out", str(tmp_path / "o.parquet")
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "nightbatch: the local emulator is not running. Start it: nightbatch local up"
    assert not (tmp_path / "o.parquet").exists()


@pytest.mark.slow
def test_up_status_down(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    try:
        done = nightbatch(tmp_path, "local", "up", "--json", "--model", str(folder))
        assert done.returncode == 0, done.stderr
        up = json.loads(done.stdout)
        assert up["state"] == "running"
        assert [endpoint["name"] for endpoint in up["endpoints"]] == ["minilm", "model", "smollm2"]  # by name
        assert all(endpoint["usd_per_second"] > 0 for endpoint in up["endpoints"])
        again = nightbatch(tmp_path, "local", "up", "--json")
        assert json.loads(again.stdout)["pid"] == up["pid"]
        other = nightbatch(tmp_path, "local", "up", "--model", "org/else")
        assert other.returncode == 2
        assert "without org/else" in other.stderr
        shown = nightbatch(tmp_path, "local", "status")
        assert "the local stack is running" in shown.stdout
        secrets = json.loads((tmp_path / "local/facts.json").read_text())
        for secret in (secrets["api_key"], secrets["s3"]["accessSecret"], secrets["worker_s3"]["accessSecret"]):
            assert secret not in done.stdout + done.stderr + shown.stdout + shown.stderr
    finally:
        down = nightbatch(tmp_path, "local", "down", "--json")
    assert json.loads(down.stdout) == {"state": "stopped", "was_running": True}
    assert running(tmp_path / "local") is None


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_a_state_folder_that_cannot_be_is_one_sentence(command: str) -> None:
    env = {**os.environ, "NIGHTBATCH_HOME": os.devnull, "NIGHTBATCH_WORKER_PYTHON": "/bin/true"}
    done = subprocess.run([sys.executable, "-m", "cli", "local", command], env=env, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    assert done.returncode == (3 if command == "up" else 0)


# --- by pulumi -----------------------------------------------------------------------------------------------------------------------


def test_the_models_of_a_stack_by_pulumi_are_those_of_its_file(tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "local", "up", "--pulumi", "--model", "org/else")
    assert done.returncode == 2
    assert "infra/stacks/Pulumi.local.yaml" in done.stderr
    assert running(tmp_path / "local") is None


def test_a_clone_stays_as_it_is_and_pulumis_salt_is_kept(tmp_path: Path) -> None:
    folder = local.copy_project(local.ROOT, tmp_path / "project")
    file = folder / local.STACK_FILE
    assert file.read_text() == (local.ROOT / local.STACK_FILE).read_text()
    file.write_text(f"{file.read_text()}encryptionsalt: v1:abc\n")
    assert local.copy_project(local.ROOT, folder) == folder
    assert file.read_text() == f"{(local.ROOT / local.STACK_FILE).read_text()}encryptionsalt: v1:abc\n"
    assert (folder / "infra/__main__.py").resolve() == local.ROOT / "infra/__main__.py"
    assert (folder / "infra/provider/bin").exists()


def a_project(folder: Path) -> Path:
    """A small project with a program, a folder in it, and the stack file of `local`."""
    for name, text in {
        "Pulumi.yaml": "name: x\n",
        "infra/__main__.py": "",
        "infra/review/a.py": "",
        local.STACK_FILE: "config: {}\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("link", "to", "says"),
    [
        ("infra/secrets", "../../outside", "out of the project"),
        ("infra/review/deep", "../../../outside", "out of the project"),
        ("infra/review/absolute", "/etc", "out of the project"),
        ("infra/stacks/Pulumi.dev.yaml", "../../../outside/file", "out of the project"),
        ("infra/loop", "loop", "leads nowhere"),
        ("infra/review/a_loop", "b_loop", "leads nowhere"),
        ("infra/gone", "nothing-there", "leads nowhere"),
        ("infra/self", ".", "a folder that it is in itself"),
        ("infra/review/up", "../..", "a folder that it is in itself"),
    ],
)
def test_a_project_whose_links_lead_out_or_around_is_refused(tmp_path: Path, link: str, to: str, says: str) -> None:
    source = a_project(tmp_path / "clone")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("config: {}\n")
    (source / link).symlink_to(to)
    if link == "infra/review/a_loop":
        (source / "infra/review/b_loop").symlink_to("a_loop")
    with pytest.raises(UsageError, match=says) as caught:
        local.copy_project(source, tmp_path / "project")
    assert link in str(caught.value)
    assert not (tmp_path / "project").exists()


@pytest.mark.parametrize("name", ["Pulumi.yaml", "infra", local.STACK_FILE])
def test_a_project_whose_own_files_are_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    source = a_project(tmp_path / "clone")
    (source / name).rename(tmp_path / "moved")
    (source / name).symlink_to(tmp_path / "moved")
    with pytest.raises(UsageError, match="out of the project"):
        local.copy_project(source, tmp_path / "project")


def test_links_within_a_project_and_to_a_project_are_followed(tmp_path: Path) -> None:
    source = a_project(tmp_path / "clone")
    (source / "infra" / "again.py").symlink_to("review/a.py")
    (tmp_path / "linked").symlink_to(source)
    folder = local.copy_project(tmp_path / "linked", tmp_path / "project")
    assert (folder / "infra" / "again.py").resolve() == source / "infra/review/a.py"
    assert (folder / "infra" / "review").resolve() == source / "infra/review"


def test_nothing_is_written_through_a_link_that_is_in_the_way(tmp_path: Path) -> None:
    source, folder = a_project(tmp_path / "clone"), tmp_path / "project"
    precious = tmp_path / "precious"
    (precious / "stacks").mkdir(parents=True)
    for name in ("file", "stacks/Pulumi.local.yaml"):
        (precious / name).write_text("precious\n")
    for infra in (True, False):
        folder.mkdir(exist_ok=True)
        (folder / "Pulumi.yaml").unlink(missing_ok=True)
        (folder / "Pulumi.yaml").symlink_to(precious / "file")
        if infra:
            (folder / "infra").symlink_to(precious)
        else:
            (folder / local.STACK_FILE).unlink()
            (folder / local.STACK_FILE).symlink_to(precious / "file")
        local.copy_project(source, folder)
        assert (folder / local.STACK_FILE).read_text() == "config: {}\n"
        assert not (folder / "Pulumi.yaml").is_symlink()
    assert {path.name for path in precious.iterdir()} == {"file", "stacks"}
    assert (precious / "file").read_text() == (precious / "stacks/Pulumi.local.yaml").read_text() == "precious\n"


def test_another_clones_program_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    folder = local.copy_project(a_project(tmp_path / "first"), tmp_path / "project")
    (tmp_path / "first" / "infra" / "old.py").touch()
    local.copy_project(tmp_path / "first", folder)
    local.copy_project(a_project(tmp_path / "second"), folder)
    assert (folder / "infra/__main__.py").resolve() == tmp_path / "second/infra/__main__.py"
    assert sorted(path.name for path in (folder / "infra").iterdir()) == ["__main__.py", "review", "stacks"]
    (folder / "infra" / "review").unlink()
    (folder / "infra" / "review").mkdir()
    with pytest.raises(UsageError, match="is in the way"):
        local.copy_project(tmp_path / "second", folder)


@pytest.mark.pulumi
@pytest.mark.timeout(420)
def test_up_by_pulumi_makes_the_endpoints_and_a_cut_of_one_is_a_finding(tmp_path: Path) -> None:
    try:
        done = nightbatch(tmp_path, "local", "up", "--pulumi", "--json", timeout_s=240)
        assert done.returncode == 0, done.stderr
        up = json.loads(done.stdout)
        assert up["made_by"] == "pulumi"
        assert [(endpoint["name"], endpoint["model"], endpoint["tasks"]) for endpoint in up["endpoints"]] == [
            ("minilm", "minilm", ["embed"]),
            ("smollm2", "smollm2", ["generate"]),
        ]
        found = json.loads(nightbatch(tmp_path, "doctor", "--json").stdout)
        assert (found["findings"], found["unread"]) == ([], [])
        drift = nightbatch(tmp_path, "drift", "local", "--json", timeout_s=120)
        assert (drift.returncode, json.loads(drift.stdout)["state"]) == (0, "clean"), drift.stderr
        # the emulator alone brings Pulumi's endpoints back
        assert nightbatch(tmp_path, "local", "down").returncode == 0
        again = nightbatch(tmp_path, "local", "up", "--json")
        assert {endpoint["id"] for endpoint in json.loads(again.stdout)["endpoints"]} == {endpoint["id"] for endpoint in up["endpoints"]}
        assert nightbatch(tmp_path, "stop", "local").returncode == 0
        stopped = json.loads(nightbatch(tmp_path, "doctor", "--json").stdout)
        assert [finding["code"] for finding in stopped["findings"]] == ["stopped", "stopped"]
        assert nightbatch(tmp_path, "drift", "local", timeout_s=120).returncode == 1
        # what the stack declares comes back with the next up
        assert nightbatch(tmp_path, "local", "up", "--pulumi", timeout_s=240).returncode == 0
        assert json.loads(nightbatch(tmp_path, "doctor", "--json").stdout)["findings"] == []
        state = (tmp_path / "local").rglob("*.json")
        secrets = json.loads((tmp_path / "local/facts.json").read_text())
        kept = [path for path in state if path.name not in ("facts.json", "identity.json", "identities.json")]
        assert all(secrets["api_key"] not in path.read_text(errors="replace") for path in kept)
        assert secrets["api_key"] not in done.stdout + done.stderr
    finally:
        nightbatch(tmp_path, "local", "down")
