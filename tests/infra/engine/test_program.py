"""The real engine over the project's own program: the third loader, secrets in the state, endpoints taken over from the console."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.errors import UsageError
from contract.facts import load_pulumi, load_stack
from infra.review.engine import Project, pulumi_env
from infra.settings import STACKS
from tests.infra.engine.kit import KEPT_ENV, PASSPHRASE, Cloud, ops_of
from tests.infra.stacks import DIGEST, balanced, endpoint, values

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
SECRET = "hf_SecretThatNobodyMayRead1"
S3_KEYS = {"NIGHTBATCH_S3_ACCESS_KEY_ID": "AKIDEXAMPLE", "NIGHTBATCH_S3_SECRET_ACCESS_KEY": "s3-secret"}
VOLUME = {"name": "models", "size": 20, "dataCenter": "EU-RO-1"}


@dataclass
class Clone:
    """A copy of the project whose stack files are the test's; its rooms are this clone's."""

    folder: Path
    cloud: Cloud
    cli: Path

    def __post_init__(self) -> None:
        (self.folder / STACKS).mkdir(parents=True)
        shutil.copy(ROOT / "Pulumi.yaml", self.folder)
        for path in (ROOT / "infra").iterdir():
            if path.name not in ("stacks", "__pycache__"):
                (self.folder / "infra" / path.name).symlink_to(path)

    def env(self) -> dict[str, str]:
        base = {name: value for name, value in os.environ.items() if name in KEPT_ENV}
        extra = {"RUNPOD_API_BASE_URL": self.cloud.url, "RUNPOD_API_KEY": self.cloud.key, **S3_KEYS}
        home = self.folder.parent / "pulumi-home"
        return pulumi_env(base, cli=self.cli, backend=self.folder.parent / "state", passphrase=PASSPHRASE, home=home, extra=extra)

    @property
    def project(self) -> Project:
        return Project(self.folder, self.env())

    def declare(self, stack: str, **changes: Any) -> None:
        """Write the stack file; what Pulumi itself keeps in it stays."""
        file = self.folder / STACKS / f"Pulumi.{stack}.yaml"
        lines = file.read_text().splitlines() if file.exists() else []
        salt = [line for line in lines if line.startswith("encryptionsalt:")]
        config = {f"nightbatch:{key}": value for key, value in values(**changes).items()}
        file.write_text("\n".join([*salt, "config: " + json.dumps(config)]) + "\n")

    def up(self, stack: str, *args: str) -> str:
        done = self.project.up(stack, *args)
        assert done.ok, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path, cloud: Cloud, pulumi_cli: Path) -> Clone:
    """A new one; its cloud is emptied afterwards."""
    return Clone(tmp_path / "clone", cloud, pulumi_cli)


def test_facts_are_read_through_the_command_and_from_an_exported_file(clone: Clone, cloud: Cloud, tmp_path: Path) -> None:
    env = clone.env()
    with pytest.raises(UsageError, match=r"nothing is known of stack 'dev': Pulumi has no stack"):
        load_pulumi("dev", clone.folder, env)
    clone.project.ensure_stack("dev")
    with pytest.raises(UsageError, match=r"nothing is known of stack 'dev': it has no facts yet.*pulumi up --stack dev"):
        load_pulumi("dev", clone.folder, env)

    clone.declare("dev", endpoints=[endpoint(), balanced()], volumes=[VOLUME], store={"volume": "models", "prefix": "nb"})
    clone.up("dev")
    stack = load_stack("dev", environ={**env, "NIGHTBATCH_PROJECT": str(clone.folder)})
    live = cloud.live("serverless")
    disk = cloud.live("network-volumes")["nightbatch-dev-models"]
    (found,) = stack.facts.endpoints
    assert (found.name, found.id, found.image) == ("minilm", live["nightbatch-dev-minilm"]["id"], DIGEST)
    assert (stack.facts.store.bucket, stack.facts.store.endpoint_url) == (disk["id"], "https://s3api-eu-ro-1.runpod.io/")
    assert stack.secrets.api_key == cloud.key
    assert live["nightbatch-dev-minilm"]["env"]["NIGHTBATCH_IMAGE"] == DIGEST
    assert live["nightbatch-dev-web"]["env"]["HEALTH_CHECK_PATH"] == "/ok"

    exported = tmp_path / "outputs.json"
    outputs = clone.project.outputs("dev")
    exported.write_text(json.dumps(outputs))
    assert load_stack("dev", environ={**env, "PATH": ""}, facts_file=exported) == stack
    assert outputs["limits"]["prices"] == "RunPod's catalog"
    assert outputs["volumes"]["models"]["id"] == disk["id"]


def test_secrets_of_the_stack_file_reach_the_endpoint_and_are_in_no_state_log_or_output(clone: Clone, cloud: Cloud) -> None:
    clone.project.ensure_stack("dev")
    clone.declare("dev", endpoints=[endpoint(secretEnv=["HF_TOKEN"])])
    done = clone.project.run("config", "set", "--stack", "dev", "--path", "nightbatch:secrets.HF_TOKEN", SECRET)
    assert done.ok, done.stderr
    preview = clone.project.preview("dev")
    assert preview.failed
    assert "is in the stack file in clear text" in " ".join(preview.errors)
    assert SECRET not in " ".join(preview.errors)

    assert clone.project.run("config", "rm", "--stack", "dev", "nightbatch:secrets").ok
    done = clone.project.run("config", "set", "--secret", "--stack", "dev", "--path", "nightbatch:secrets.HF_TOKEN", SECRET)
    assert done.ok, done.stderr
    said = clone.up("dev")
    assert cloud.live("serverless")["nightbatch-dev-minilm"]["env"]["HF_TOKEN"] == SECRET
    state = clone.project.state("dev")
    shown = clone.project.preview("dev", refresh=True)
    assert shown.changes == {}, shown.done.stdout
    everywhere = (said, json.dumps(state), shown.done.stdout + shown.done.stderr, json.dumps(clone.project.outputs("dev")))
    file = (clone.folder / STACKS / "Pulumi.dev.yaml").read_text()
    assert [text[:80] for text in (*everywhere, file) if SECRET in text or cloud.key in text] == []


def test_endpoints_of_the_console_are_taken_over_as_the_documentation_says(clone: Clone, cloud: Cloud) -> None:
    made = cloud.rest(
        "POST",
        "serverless",
        {
            "name": "old name", "type": "QUEUE", "image": "team/worker:v1", "gpu": {"pools": ["AMPERE_24"]},
            "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4}, "workers": {"max": 2}, "env": {"A": "1"},
        },
    )  # fmt: skip
    disk = cloud.rest("POST", "network-volumes", {"name": "old disk", "size": 20, "dataCenter": "EU-RO-1"})
    clone.project.ensure_stack("prod")
    clone.declare("prod", endpoints=[endpoint(volumes=["models"])], volumes=[VOLUME])
    file = clone.folder.parent / "import.json"
    file.write_text(
        json.dumps(
            {
                "resources": [
                    {"type": "nightbatch:index:BatchPlatform", "name": "platform", "logicalName": "nightbatch", "component": True},
                    {
                        "type": "nightbatch:index:QueueEndpoint", "name": "minilm-component", "logicalName": "minilm", "component": True,
                        "parent": "platform",
                    },
                    {"type": "runpodv2:index:Endpoint", "name": "minilm", "id": made["id"], "parent": "minilm-component"},
                    {"type": "runpodv2:index:NetworkVolume", "name": "models", "id": disk["id"], "parent": "platform"},
                ]
            }
        )
    )  # fmt: skip
    done = clone.project.run("import", "--file", str(file), "--stack", "prod", "--generate-code=false", "--yes", "--skip-preview")
    assert done.ok, done.stdout + done.stderr
    preview = clone.project.preview("prod")
    assert not preview.failed, preview.errors
    assert {name: ops for name, ops in ops_of(preview).items() if name in ("minilm", "models")} == {
        "minilm": {"update"},
        "models": {"update"},
    }
    clone.up("prod")
    (live,) = cloud.live("serverless").values()
    assert (live["id"], live["name"], live["workers"]["max"]) == (made["id"], "nightbatch-prod-minilm", 3)
    assert live["networkVolumes"] == [disk["id"]]
    assert clone.project.preview("prod", "--expect-no-changes", refresh=True).done.ok

    # production protects what it has: neither can be destroyed by mistake
    refused = clone.project.destroy("prod")
    assert not refused.ok
    assert "protect" in refused.stdout + refused.stderr
    assert len(cloud.live("serverless")) == len(cloud.live("network-volumes")) == 1
