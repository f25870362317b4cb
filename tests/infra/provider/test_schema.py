"""The schema, as Pulumi's own binder reads it: what generators of SDKs in other languages start from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from infra.provider.schema import schema_json
from infra.review.engine import PLUGIN, provider_folder, pulumi_env


@pytest.mark.pulumi
def test_pulumi_reads_the_schema_from_the_plugin_and_finds_nothing_wrong(pulumi_cli: Path, tmp_path: Path) -> None:
    env = pulumi_env(cli=pulumi_cli, backend=tmp_path / "state", passphrase="x", home=tmp_path / "home")

    def pulumi(*args: str) -> str:
        done = subprocess.run(
            ["pulumi", *args], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    served = tmp_path / "schema.json"
    served.write_text(pulumi("package", "get-schema", str(provider_folder() / PLUGIN)), encoding="utf-8")
    assert len(served.read_bytes()) > len(schema_json()) // 2
    pulumi("schema", "check", str(served))
