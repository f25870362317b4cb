"""The workflows are what docs/review.md says of them, and their steps are scripts that run here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings import PROJECT
from tests.infra.review.digests import ENDPOINT_INPUTS, VOLUME_INPUTS, digest, state, step, urn, with_

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("infra-*.yml"))
STEP = re.compile(r'^scripts/ci/[a-z]+( "\$(STACK|CI_ENVIRONMENT_NAME)")?$')


def read(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def triggers(workflow: dict[Any, Any]) -> Any:
    return workflow[True]  # YAML 1.1 reads the key `on` as true


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            yield path.stem, name, job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for workflow, name, job in jobs():
        for one in job.get("steps", ()):
            yield f"{workflow}.{name}", one


# --- what the workflows are ----------------------------------------------------------------------------------------------------------


def test_there_is_a_workflow_for_review_for_up_and_for_drift() -> None:
    assert {path.stem for path in WORKFLOWS} == {"infra-drift", "infra-preview", "infra-up", "infra-up-stack"}
    assert "pull_request" in triggers(read(ROOT / ".github/workflows/infra-preview.yml"))
    assert "push" in triggers(read(ROOT / ".github/workflows/infra-up.yml"))
    assert "schedule" in triggers(read(ROOT / ".github/workflows/infra-drift.yml"))


def test_every_command_is_a_script_of_the_project_that_can_be_run() -> None:
    commands = [(where, one["run"]) for where, one in steps() if "run" in one]
    gitlab = read(ROOT / ".gitlab-ci.yml")
    commands += [(name, line) for name, job in gitlab.items() if isinstance(job, dict) for line in job.get("script", ())]
    assert len(commands) >= 8
    for where, command in commands:
        assert STEP.match(command), f"{where}: {command}"
        script = ROOT / command.split()[0]
        assert os.access(script, os.X_OK), f"{where}: {script}"


def test_no_workflow_gives_a_pull_requests_code_a_secret_of_the_base_branch() -> None:
    for path in WORKFLOWS:
        assert "pull_request_target" not in path.read_text().split("\njobs:")[1]
        assert "pull_request_target" not in triggers(read(path))
        assert read(path)["permissions"] == {}, path


def test_the_job_that_may_write_runs_the_base_branchs_code_and_has_no_key() -> None:
    writing = [(name, job) for _, name, job in jobs() if "write" in {v for k, v in job["permissions"].items() if k != "id-token"}]
    assert [name for name, _ in writing] == ["comment"]
    job = writing[0][1]
    assert job["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert job["steps"][0]["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert "secrets." not in json.dumps(job)


def test_forks_are_skipped() -> None:
    job = read(ROOT / ".github/workflows/infra-preview.yml")["jobs"]["preview"]
    assert job["if"] == "github.event.pull_request.head.repo.full_name == github.repository"
    gitlab = read(ROOT / ".gitlab-ci.yml")
    for name in ("infra preview", "infra comment"):
        assert "$CI_MERGE_REQUEST_SOURCE_PROJECT_ID == $CI_MERGE_REQUEST_PROJECT_ID" in gitlab[name]["rules"][0]["if"]


def test_previews_and_drift_use_the_key_that_may_only_read() -> None:
    environments = {(workflow, name): job["environment"] for workflow, name, job in jobs() if "environment" in job}
    assert environments == {
        ("infra-preview", "preview"): "preview",
        ("infra-drift", "drift"): "preview",
        ("infra-up-stack", "up"): "${{ inputs.stack }}",
    }
    gitlab = read(ROOT / ".gitlab-ci.yml")
    assert gitlab["infra preview"]["environment"]["name"] == gitlab["infra drift"]["environment"]["name"] == "preview"


def test_stacks_come_up_one_after_another_and_never_twice_at_once() -> None:
    found = read(ROOT / ".github/workflows/infra-up.yml")["jobs"]
    assert [(name, job["with"]["stack"], job.get("needs")) for name, job in found.items()] == [
        ("dev", "dev", None),
        ("staging", "staging", "dev"),
        ("prod", "prod", "staging"),
    ]
    up = read(ROOT / ".github/workflows/infra-up-stack.yml")["jobs"]["up"]
    assert up["concurrency"] == {"group": "infra-up-${{ inputs.stack }}", "cancel-in-progress": False}
    for stack in found:
        assert (ROOT / "infra" / "stacks" / f"Pulumi.{stack}.yaml").exists()


def test_actions_are_pinned_to_a_commit() -> None:
    used = [one["uses"] for _, one in steps() if "uses" in one]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
    for _, _, job in jobs():
        if "uses" in job:
            assert (ROOT / job["uses"]).exists()


def test_no_expression_is_pasted_into_a_command() -> None:
    for where, one in steps():
        assert "${{" not in one.get("run", ""), where


def test_every_job_has_a_deadline() -> None:
    for workflow, name, job in jobs():
        assert "uses" in job or job["timeout-minutes"] <= 180, f"{workflow}.{name}"


def test_every_variable_and_secret_is_explained() -> None:
    told = (ROOT / "docs" / "review.md").read_text()
    for path in [*WORKFLOWS, ROOT / ".gitlab-ci.yml"]:
        for name in re.findall(r"(?:secrets|vars)\.([A-Z_]+)", path.read_text()):
            assert f"`{name}`" in told, name
    for name in ("GITLAB_TOKEN", "AWS_ROLE_ARN", "allow-destructive"):
        assert f"`{name}`" in told, name


# --- the steps ------------------------------------------------------------------------------------------------------------------------

FAKE_UV = """#!/bin/bash
case "$1" in
  --version) echo "uv 0.13.9";;
  venv)
    for last; do :; done; mkdir -p "$last/bin"
    printf '#!/bin/sh\\nexec {python} "$@"\\n' > "$last/bin/python"; chmod +x "$last/bin/python";;
esac
"""
FAKE_PULUMI = """#!/bin/bash
if [ "$1" = version ]; then echo v3.276.0; exit; fi
echo "$@" >> "$FAKE_LOG"
stack=; while [ $# -gt 0 ]; do if [ "$1" = --stack ]; then stack=$2; fi; command=${{command:-$1}}; shift; done
if [ -f "{folder}/$command-$stack.json" ]; then cat "{folder}/$command-$stack.json"; fi
if [ -f "{folder}/$command-$stack.code" ]; then exit "$(cat "{folder}/$command-$stack.code")"; fi
"""


class House:
    """A clone whose environment is this Python, with a `pulumi` that prints what a test lays down."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        self.bin = folder / "bin"
        self.log = folder / "pulumi.log"
        self.summary = folder / "summary.md"
        self.report = self.root / "out" / "review" / "report.md"
        self.bin.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        (self.root / "locks").mkdir()
        for lock in ("client", "infra"):
            (self.root / "locks" / f"{lock}.lock").write_text("package==1.0 --hash=sha256:00\n")
        shutil.copytree(ROOT / "tools", self.root / "tools")
        for room in ("cli", "contract", "infra", "pipelines", "Pulumi.yaml", "pyproject.toml"):
            (self.root / room).symlink_to(ROOT / room)
        programs = {
            "uv": FAKE_UV.replace("{python}", sys.executable),
            "pulumi": FAKE_PULUMI.format(folder=self.bin),
            "pulumi-language-python": "#!/bin/sh\n",
            "pulumi-language-python-exec": "#!/bin/sh\n",
        }
        for name, text in programs.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "UV": str(self.bin / "uv"),
            "NIGHTBATCH_CACHE": str(folder / "cache"),
            "NIGHTBATCH_PYTHON": sys.executable,
            "NIGHTBATCH_PULUMI": "path",
            "FAKE_LOG": str(self.log),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def lay(self, command: str, stack: str, document: Any, code: int = 0) -> None:
        (self.bin / f"{command}-{stack}.json").write_text(json.dumps(document))
        (self.bin / f"{command}-{stack}.code").write_text(str(code))

    def run(self, script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "scripts" / "ci" / script), *args],
            env={**self.env, **env},
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )

    @property
    def asked(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def clean(stack: str) -> dict[str, Any]:
    found = state(ENDPOINT_INPUTS, id="e1")
    return digest(step("same", urn("embed", stack=stack), found, found))


def losing() -> dict[str, Any]:
    return digest(step("delete", urn("models", "NetworkVolume"), state(VOLUME_INPUTS, id="v", kind="NetworkVolume")))


@pytest.mark.slow
def test_the_preview_step_reports_on_all_stacks_and_without_a_key_looks_at_nothing_live(house: House) -> None:
    for stack in ("dev", "staging", "prod"):
        house.lay("preview", stack, clean(stack))
    done = house.run("preview")
    assert done.returncode == 0, done.stderr
    assert house.report.read_text() == house.summary.read_text()
    assert "no changes in 3 stacks" in house.report.read_text()
    assert len(house.asked) == 3
    assert not any("--refresh" in asked for asked in house.asked)


@pytest.mark.slow
def test_the_preview_step_fails_where_something_would_be_destroyed_unless_it_is_allowed(house: House) -> None:
    house.lay("preview", "prod", losing())
    done = house.run("preview", "prod")
    assert done.returncode == 1, done.stderr
    assert "is lost" in house.report.read_text()
    assert house.run("preview", "prod", ALLOW_DESTRUCTIVE="true").returncode == 0


@pytest.mark.slow
def test_the_preview_step_leaves_a_report_even_when_nothing_could_be_asked(house: House) -> None:
    done = house.run("preview", NIGHTBATCH_PROJECT=str(house.bin))
    assert done.returncode == 2
    assert "No stack could be previewed" in house.report.read_text()


@pytest.mark.slow
def test_the_comment_step_skips_a_fork(house: House, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 1, "head": {"repo": None}, "base": {"repo": {"full_name": "a/b"}}}}))
    done = house.run("comment", GITHUB_EVENT_PATH=str(event))
    assert done.returncode == 0, done.stderr
    assert "fork" in done.stdout


@pytest.mark.slow
def test_the_up_step_changes_nothing_when_something_would_be_destroyed(house: House) -> None:
    house.lay("preview", "prod", losing())
    done = house.run("up", "prod")
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert [asked[0] for asked in house.asked] == ["preview"]


@pytest.mark.slow
def test_the_up_step_previews_brings_up_and_compares(house: House) -> None:
    house.lay("preview", "dev", clean("dev"))
    done = house.run("up", "dev")
    assert done.returncode == 0, done.stderr
    assert [asked[0] for asked in house.asked] == ["preview", "up", "preview"]
    assert "--yes" in house.asked[1]
    assert "--refresh" in house.asked[1]
    assert "--expect-no-changes" in house.asked[2]
    assert "no drift on dev" in done.stdout


@pytest.mark.slow
def test_the_up_step_ends_with_pulumis_failure(house: House) -> None:
    house.lay("preview", "dev", clean("dev"))
    house.lay("up", "dev", "error: it broke", code=1)
    done = house.run("up", "dev")
    assert done.returncode == 3
    assert [asked[0] for asked in house.asked] == ["preview", "up"]


@pytest.mark.slow
def test_the_drift_step_ends_with_1_and_shows_what_differs(house: House) -> None:
    live = with_(ENDPOINT_INPUTS, workers__max=2)
    old, now, wanted = state(ENDPOINT_INPUTS, id="e"), state(live, id="e"), state(ENDPOINT_INPUTS, id="e")
    where = urn("embed")
    house.lay("preview", "prod", digest(step("refresh", where, old, old), step("update", where, now, wanted, {"workers.max": "update"})), 7)
    done = house.run("drift", "prod")
    assert done.returncode == 1, done.stderr
    assert "idle rule" in done.stdout
    assert "idle rule" in house.summary.read_text()


def test_the_project_has_the_name_that_its_settings_expect() -> None:
    assert read(ROOT / "Pulumi.yaml")["name"] == PROJECT
