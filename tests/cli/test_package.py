"""The package: what `pip install .` brings, and that the command line works without the clone."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_has_every_room() -> None:
    packaged = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "examples", "scripts"}
    assert rooms <= packaged


@pytest.mark.slow
def test_an_installed_nightbatch_runs_without_the_clone(tmp_path: Path) -> None:
    """Built in isolation and installed beside the packages of this environment, so that only the build backend is fetched."""
    uv = ["bash", str(ROOT / "scripts/uv")]
    site = tmp_path / "site"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    installed = subprocess.run(
        [*uv, "pip", "install", "--quiet", "--no-config", "--no-deps", "--python", sys.executable, "--target", str(site), str(ROOT)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert installed.returncode == 0, installed.stderr
    script = site / "bin/nightbatch"
    assert script.exists()
    environment |= {"PYTHONPATH": str(site), "NIGHTBATCH_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script), "version"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"nightbatch {PROJECT['project']['version']},")
    up = subprocess.run(
        [sys.executable, str(script), "local", "up"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert up.returncode == 2
    assert "Use a clone of the project" in up.stderr
