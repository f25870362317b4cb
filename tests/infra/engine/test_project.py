"""The project itself through the real engine: Pulumi.yaml, its stack files and its program, with the whole house below it: the emulator as
RunPod, its S3 server, workers on the unmodified SDK, and the command line reading the stack's outputs."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.facts import StackFacts
from contract.keys import RunUri
from contract.models import convert
from emulator import EmulatorConfig, ImageConfig
from emulator.faults import PASS, Action, Message
from infra.review.engine import Project, pulumi_env
from tests.e2e.house import PER_SHARD, ROOT, Gate, WatchedHouse, config_of, eventually, ids, question_rows, standing
from tests.infra.engine.kit import PASSPHRASE, ops_of

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(420)]

STACK = "night"
NEXT_IMAGE = "registry.example.com/nightbatch-worker@sha256:" + "b" * 64
ENDPOINT: dict[str, Any] = {
    "name": "echo",
    "model": "echo",
    "tasks": ["generate"],
    "image": "registry.example.com/nightbatch-worker@sha256:" + "a" * 64,
    "gpu": {"pools": ["AMPERE_24", "ADA_24"]},
    "workers": {"peak": 1},
    "scaler": {"type": "QUEUE_DELAY", "value": 0.5},
    "idleTimeout": 30,
    "executionTimeout": 60,
    "maxConcurrency": 2,
    "coldStart": 2,
}


class Estate(WatchedHouse):
    """A house whose endpoints are made by `pulumi up`, from a copy of the project in which the stack file is the test's."""

    def __init__(self, home: Path, config: EmulatorConfig, gate: Gate, cli: Path) -> None:
        super().__init__(home, config, gate)
        self.folder, self.pulumi = home / "project", cli
        (self.folder / "infra").mkdir(parents=True)
        shutil.copy(ROOT / "Pulumi.yaml", self.folder)
        for path in (ROOT / "infra").iterdir():
            if path.name == "stacks":
                shutil.copytree(path, self.folder / "infra" / "stacks")
            elif path.name != "__pycache__":
                (self.folder / "infra" / path.name).symlink_to(path)

    @property
    def secrets(self) -> dict[str, str]:
        stack = self.stack
        return {
            "RUNPOD_API_KEY": stack.secrets.api_key,
            "NIGHTBATCH_S3_ACCESS_KEY_ID": stack.secrets.s3.accessId,
            "NIGHTBATCH_S3_SECRET_ACCESS_KEY": stack.secrets.s3.accessSecret,
            "NIGHTBATCH_WORKER_S3_ACCESS_KEY_ID": stack.secrets.worker_s3.accessId,
            "NIGHTBATCH_WORKER_S3_SECRET_ACCESS_KEY": stack.secrets.worker_s3.accessSecret,
        }

    def environment(self, **more: str) -> dict[str, str]:
        """Of the command line and of the engine: a person who has keys, the project and a state backend."""
        base = super().environment()
        extra = {
            "RUNPOD_API_BASE_URL": self.emulator.base_url,  # with its /v2: both ways are known
            "RUNPOD_ENDPOINT_BASE_URL": self.emulator.base_url,
            "NIGHTBATCH_S3_BUCKET": self.stack.facts.store.bucket,
            "NIGHTBATCH_S3_ENDPOINT_URL": self.stack.facts.store.endpoint_url,
            "NIGHTBATCH_PROJECT": str(self.folder),
            **self.secrets,
            **more,
        }
        return pulumi_env(
            base, cli=self.pulumi, backend=self.home / "states", passphrase=PASSPHRASE, home=self.home / "pulumi-home", extra=extra
        )

    def project(self, *, key: bool = True) -> Project:
        env = self.environment()
        if not key:
            env = {name: value for name, value in env.items() if name not in self.secrets}
        return Project(self.folder, env)

    def declare(self, **changes: Any) -> None:
        """Write the stack file."""
        facts = self.stack.facts
        config = {
            "nightbatch:store": {"bucket": facts.store.bucket, "endpointUrl": facts.store.endpoint_url},
            "nightbatch:endpoints": [{**ENDPOINT, **changes}],
            "nightbatch:rules": {"maxWorkers": 5, "maxUsdPerHour": 10},
        }
        file = self.folder / "infra" / "stacks" / f"Pulumi.{STACK}.yaml"
        salt = [line for line in file.read_text().splitlines() if line.startswith("encryptionsalt:")] if file.exists() else []
        file.write_text("\n".join([*salt, "config: " + json.dumps(config)]) + "\n")

    def live(self) -> dict[str, Any]:
        (found,) = self.rest("serverless")["endpoints"]
        return dict(found)

    def rest(self, path: str, method: str = "GET", body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.emulator.base_url}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.emulator.api_key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


@pytest.fixture(scope="module")
def estate(tmp_path_factory: pytest.TempPathFactory, pulumi_cli: Path) -> Iterator[Estate]:
    home = tmp_path_factory.mktemp("estate")
    gate = Gate(home / "gate")
    worker = ImageConfig(
        command=(sys.executable, "-P", "-m", "tests.e2e.echo_worker"), env={"PYTHONPATH": str(ROOT), "E2E_GATE": str(gate.folder)}
    )
    config = config_of(home, images={"*": worker}, rate_limits=False)
    with standing(Estate(home, config, gate, pulumi_cli)) as house:
        assert isinstance(house, Estate)
        house.declare()
        house.project().ensure_stack(STACK)
        yield house


@pytest.mark.parametrize("stack", ["local", "dev", "staging", "prod"])
def test_each_stack_file_is_previewed_without_a_key_or_the_internet(estate: Estate, stack: str) -> None:
    project = estate.project(key=False)
    project.ensure_stack(stack)
    heard: list[Message] = []

    def listen(message: Message) -> Action:
        heard.append(message)
        return PASS

    with estate.emulator.seam.hook(listen):
        preview = project.preview(stack)
    assert not preview.failed, preview.errors
    assert any("minilm" in name for name in ops_of(preview))
    assert all(ops == {"create"} for ops in ops_of(preview).values())
    assert heard == []


def test_a_run_that_was_submitted_before_an_up_is_finished_after_it(estate: Estate, tmp_path: Path) -> None:
    project = estate.project()
    estate.declare()
    done = project.up(STACK)
    assert done.ok, done.stdout + done.stderr
    outputs = project.outputs(STACK)
    facts: StackFacts = convert(outputs["facts"], StackFacts, where="the output facts")
    live = estate.live()
    (described,) = facts.endpoints
    assert (facts.stack, described.id, described.name, described.workers_max) == (STACK, live["id"], "echo", 1)
    assert described.image == ENDPOINT["image"].split("@")[1]
    assert outputs["endpoints"]["echo"]["id"] == live["id"]
    assert outputs["limits"]["workers"] == 1

    estate.gate.reset(0)
    rows = question_rows(tmp_path / "rows.jsonl", 3 * PER_SHARD)
    out = tmp_path / "out.jsonl"
    run = estate.start("run", rows, "--task", "generate", "--model", "echo", "--stack", STACK, "--out", out, "--json")
    found = estate.new_run()
    estate.gate.allow(1)
    eventually(lambda: estate.committed(found), "a shard is committed")

    # nothing that decides about results: more workers, other times, another scaler value
    estate.declare(workers={"peak": 2}, executionTimeout=120, idleTimeout=20, scaler={"type": "QUEUE_DELAY", "value": 1})
    preview = project.preview(STACK)
    assert [ops for name, ops in ops_of(preview).items() if "echo" in name and ops - {"same"}] == [{"update"}], ops_of(preview)
    done = project.up(STACK)
    assert done.ok, done.stdout + done.stderr
    after = estate.live()
    assert (after["id"], after["workers"]["max"], after["timeout"]) == (live["id"], 2, 120_000)
    assert run.process.poll() is None, "the run goes on meanwhile"

    estate.gate.open()
    said = run.said(120)
    assert said.code == 0, said.err[-3000:]
    assert (said.record["state"], said.record["ok"], said.record["verified"]) == ("complete", 3 * PER_SHARD, True)
    assert ids(out) == [f"row-{n}" for n in range(3 * PER_SHARD)]
    assert project.preview(STACK, "--expect-no-changes", refresh=True).done.ok


def test_an_image_that_an_up_changed_half_way_pauses_the_run_until_it_is_allowed(estate: Estate, tmp_path: Path) -> None:
    project = estate.project()
    estate.declare()
    assert project.up(STACK).ok
    estate.seen = estate.runs()
    estate.gate.reset(0)
    rows = question_rows(tmp_path / "rows.jsonl", 4 * PER_SHARD, start=10_000)
    out = tmp_path / "out.jsonl"
    run = estate.start("run", rows, "--task", "generate", "--model", "echo", "--stack", STACK, "--out", out, "--json")
    found = estate.new_run()
    estate.gate.allow(1)
    eventually(lambda: estate.committed(found), "a shard is committed")
    estate.declare(image=NEXT_IMAGE)
    try:
        assert project.up(STACK).ok
        estate.gate.allow(3)  # what the old worker has; the new one's first shard begins, and waits
        said = run.said(150)
        assert (said.code, said.record["state"]) == (3, "paused"), said.out + said.err[-3000:]
        again = estate.cli("resume", found, "--stack", STACK, "--json", timeout_s=120)
        assert (again.code, again.record["state"]) == (3, "paused"), "it is still another image"
        estate.gate.open()
        assert NEXT_IMAGE.split("@")[1] in said.out + said.err
        assert "--allow-mixed-image" in said.out + said.err
        record = estate.ok("resume", found, "--stack", STACK, "--allow-mixed-image", timeout_s=120)
        assert (record["state"], record["verified"]) == ("complete", True)
        commits = [json.loads(data) for data in estate.objects(RunUri.parse(found).keys.commits_prefix()).values()]
        assert {commit["image"] for commit in commits} == {image.split("@")[1] for image in (ENDPOINT["image"], NEXT_IMAGE)}
    finally:
        estate.declare()


def test_drift_is_told_by_the_command_line_and_mended_by_up(estate: Estate) -> None:
    project = estate.project()
    estate.declare()
    assert project.up(STACK).ok
    same = estate.cli("drift", STACK)
    assert same.code == 0, same.out + same.err
    live = estate.live()
    estate.rest(f"serverless/{live['id']}", "PATCH", {"workers": {"max": 0}, "timeout": 1000})
    said = estate.cli("drift", STACK)
    assert said.code == 1, said.out + said.err
    assert "workers.max" in said.out
    assert "timeout" in said.out
    assert project.up(STACK, "--refresh", "--run-program").ok
    assert (estate.live()["workers"]["max"], estate.live()["timeout"]) == (1, 60_000)
    assert estate.cli("drift", STACK).code == 0


def test_a_broken_stack_file_lists_every_mistake_and_no_traceback(estate: Estate) -> None:
    estate.declare(workers={"peek": 2}, gpu={"pools": []}, idleTimeout="soon")
    try:
        preview = estate.project(key=False).preview(STACK)
    finally:
        estate.declare()
    assert preview.failed
    said = "\n".join(preview.errors)
    for words in ("peek", "pools", "idleTimeout", f"Pulumi.{STACK}.yaml"):
        assert words in said, f"{words} is not named: {said}"
    assert "Traceback" not in said + preview.done.stdout + preview.done.stderr


def test_a_broken_rule_stops_the_preview_with_the_value_and_the_mend(estate: Estate) -> None:
    estate.declare(image="registry.example.com/nightbatch-worker:latest", workers={"peak": 50})
    try:
        preview = estate.project(key=False).preview(STACK)
    finally:
        estate.declare()
    assert preview.failed
    said = "\n".join(preview.errors)
    assert "latest" in said
    assert "50" in said
    assert "Traceback" not in said + preview.done.stdout + preview.done.stderr


def test_the_report_of_a_preview_holds_no_secret(estate: Estate, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    said = estate.cli("preview", STACK, "--out", report, timeout_s=120)
    assert said.code in (0, 1), said.out + said.err
    text = report.read_text() + said.out + said.err
    assert STACK in text
    assert [secret for secret in [*estate.secrets.values(), PASSPHRASE] if secret in text] == []
