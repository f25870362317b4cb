"""Preview, drift and the workflows' steps with the real engine: the project itself, its provider, and the emulator as RunPod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.review.preview import render, understood
from infra.review.previews import stack_preview
from tests.infra.engine.kit import KEPT_ENV, PASSPHRASE, Cloud, cloud_of
from tests.infra.review.record import BASE, CASES, COMMIT, DATA, DAY_S, ROOT, VOLUME, Estate, endpoint
from tests.infra.review.test_workflows import House

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(420)]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """RunPod, with its idle rule."""
    found = cloud_of(tmp_path / "cloud", idle_rule=True)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def home(tmp_path: Path, cloud: Cloud, pulumi_cli: Path) -> Estate:
    return Estate(tmp_path, cloud, pulumi_cli)


def environment(home: Estate, *, key: bool) -> dict[str, str]:
    """Of a runner: the project, the state, and a key or none."""
    base = {name: value for name, value in os.environ.items() if name in KEPT_ENV}
    return {
        **base,
        "PATH": f"{home.cli}:{base['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NIGHTBATCH_PROJECT": str(home.folder),
        "NIGHTBATCH_HOME": str(home.home / "nightbatch"),
        "RUNPOD_API_BASE_URL": home.cloud.url,
        "PULUMI_BACKEND_URL": f"file://{home.home / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_HOME": str(home.home / "pulumi-home"),
        **({"RUNPOD_API_KEY": home.cloud.key} if key else {}),
    }


def nightbatch(home: Estate, *args: str, key: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a runner calls it."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli", *args],
        env={**environment(home, key=key), **env},
        cwd=home.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def state_of(home: Estate) -> dict[str, bytes]:
    """Every file of the state backend."""
    folder = home.home / "state"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def differences(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str | None], dict[str, Any]]:
    """What `drift --json` found, by resource and property."""
    return {(one["name"], one["property"]): one for one in json.loads(done.stdout)["differences"]}


def test_drift_is_named_with_its_cause_and_the_next_up_mends_it(home: Estate) -> None:
    stack = {**BASE, "endpoints": [endpoint("minilm"), endpoint("qwen"), endpoint("judge")]}
    home.write("dev", **stack)
    home.up("dev")
    clean = nightbatch(home, "drift", "dev")
    assert clean.returncode == 0, clean.stdout + clean.stderr
    assert "no drift on dev" in clean.stdout

    home.cloud.rest("PATCH", f"serverless/{home.endpoint('qwen')['id']}", {"timeout": 1000})
    home.cloud.rest("DELETE", f"serverless/{home.endpoint('judge')['id']}")
    home.cloud.leap(3.5 * DAY_S)
    home.cloud.until_live(home.endpoint("minilm")["name"], lambda one: one["workers"]["max"] == 2, "the idle rule")
    done = nightbatch(home, "drift", "dev", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = differences(done)
    assert found["minilm", "workers.max"]["cause"] == "RunPod's idle rule: no request for 3 days"
    assert (found["minilm", "workers.max"]["declared"], found["minilm", "workers.max"]["live"]) == (5, 2)
    assert (found["qwen", "timeout"]["declared"], found["qwen", "timeout"]["live"]) == (600000, 1000)
    assert found["qwen", "timeout"]["cause"] == "changed on RunPod since the last `up`"
    assert found["judge", None]["cause"] == "deleted on RunPod"
    assert home.cloud.key not in done.stdout + done.stderr

    home.project().up("dev", "--refresh", "--run-program").expect()
    after = nightbatch(home, "drift", "dev")
    assert after.returncode == 0, after.stdout + after.stderr


def test_a_preview_of_all_stacks_without_a_key_reports_and_asks_runpod_nothing(home: Estate) -> None:
    for stack in ("dev", "prod"):
        home.write(stack, **BASE)
        home.up(stack)
    home.write("dev", **{**BASE, "endpoints": [endpoint("minilm", workers={"peak": 7})]})
    out = home.home / "report.md"
    state = state_of(home)
    with home.cloud.heard() as heard:
        done = nightbatch(home, "preview", "--out", str(out), "--commit", COMMIT, key=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert heard == []
    text = out.read_text()
    assert "1 updated in 1 of 2 stacks" in text
    assert "| `workers.max` | `5` | `7` |" in text
    assert "not looked at" in text
    told = json.loads(nightbatch(home, "preview", "dev", "--json", key=False).stdout)
    (only,) = told["stacks"]
    (change,) = only["changes"]
    assert [(p["path"], p["old"], p["new"]) for p in change["properties"]] == [("workers.max", 5, 7)]
    assert only["usd_per_hour_most"]["after"] > only["usd_per_hour_most"]["before"] > 0
    again = nightbatch(home, "preview", "--out", str(out), "--commit", COMMIT, key=False)
    assert again.returncode == 0
    assert out.read_text() == text
    nightbatch(home, "preview", "--out", str(out), key=True)
    nightbatch(home, "drift", "dev", key=True)
    assert state_of(home) == state  # so that a role that may only read the state is enough


def test_a_key_that_runpod_does_not_know_is_no_drift(home: Estate) -> None:
    home.write("dev", **BASE)
    home.up("dev")
    wrong = "rpa_" + "W" * 40
    done = nightbatch(home, "drift", "dev", RUNPOD_API_KEY=wrong)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "RunPod answered 401" in done.stderr
    assert wrong not in done.stdout + done.stderr
    report = nightbatch(home, "preview", "dev", RUNPOD_API_KEY=wrong)
    assert report.returncode == 3, report.stdout + report.stderr
    assert "could not be previewed" in report.stdout
    assert wrong not in report.stdout + report.stderr


def test_a_drift_that_the_user_can_mend_ends_with_2_and_says_what(home: Estate) -> None:
    home.write("dev", **BASE)
    home.up("dev")
    file = home.folder / "infra" / "stacks" / "Pulumi.dev.yaml"
    good = file.read_text()

    def said(*, stack: str = "dev", key: bool = True, **env: str) -> str:
        done = nightbatch(home, "drift", stack, key=key, **env)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "Pulumi knows no stack of this name" in said(stack="moon")
    assert "an API key is needed" in said(key=False)
    assert "passphrase" in said(PULUMI_CONFIG_PASSPHRASE="another one")
    home.write("dev", **{**BASE, "endpoints": [endpoint("minilm", workers={"peak": "many"}, timeout=5)]})
    told = said()
    assert "2 settings are not usable" in told
    assert "endpoints[0].workers.peak" in told
    home.write("dev", **{**BASE, "endpoints": [endpoint("minilm", image="registry.example.com/worker:latest")]})
    assert "image-digest (mandatory): endpoint minilm" in said()
    file.write_text(good + "  : [broken\n")
    assert "invalid YAML file: yaml: line" in said()
    file.write_text(good)
    assert nightbatch(home, "drift", "dev").returncode == 0
    # a stack of another account: its own key goes before the one that is of no use here
    wrong = "rpa_" + "W" * 40
    assert nightbatch(home, "drift", "dev", RUNPOD_API_KEY=wrong, RUNPOD_API_KEY_DEV=home.cloud.key).returncode == 0


def test_the_workflows_steps_bring_a_stack_up_see_its_drift_mend_it_and_stop_before_a_loss(home: Estate, tmp_path: Path) -> None:
    runner = House(tmp_path / "runner")
    for name in ("pulumi", "pulumi-language-python", "pulumi-language-python-exec"):
        (runner.bin / name).unlink()
    runner.env |= environment(home, key=True) | {
        "PATH": f"{runner.bin}:{home.cli}:/usr/bin:/bin",
        "NIGHTBATCH_CACHE": runner.env["NIGHTBATCH_CACHE"],
        "PYTHONPATH": "",
    }
    volumes = {"volumes": [VOLUME], "rules": {"maxWorkers": 20, "maxUsdPerHour": 40}}
    home.write("dev", **{**BASE, **volumes})
    home.project().ensure_stack("dev")
    up = runner.run("up", "dev")
    assert up.returncode == 0, up.stdout + up.stderr
    assert "no drift on dev" in up.stdout
    assert set(home.cloud.live("serverless")) == {"nightbatch-dev-minilm"}

    home.cloud.leap(7.5 * DAY_S)
    home.cloud.until_live("nightbatch-dev-minilm", lambda one: one["workers"]["max"] == 0, "the idle rule")
    drift = runner.run("drift", "dev")
    assert drift.returncode == 1, drift.stdout + drift.stderr
    assert "RunPod's idle rule: no request for 7 days" in drift.stdout
    mended = runner.run("up", "dev")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert home.endpoint("minilm")["workers"]["max"] == 5

    home.write("dev", **{**BASE, **volumes, "volumes": [{**VOLUME, "dataCenter": "US-KS-2"}]})
    stopped = runner.run("up", "dev")
    assert stopped.returncode == 1, stopped.stdout + stopped.stderr
    assert "is lost" in runner.report.read_text()
    assert home.cloud.live("network-volumes")["nightbatch-dev-models"]["dataCenter"] == "EU-RO-1"
    for done in (up, drift, mended, stopped):
        assert home.cloud.key not in done.stdout + done.stderr


@pytest.mark.parametrize("case", ["fresh", "broken"])
def test_the_engine_still_says_what_is_kept(case: str, home: Estate) -> None:
    """The cases that hold no id of the emulator's making give the very same report when they are made anew."""
    stacks, refresh = CASES[case](home)
    project = home.project(key=refresh)
    reports = []
    for stack in stacks:
        done = project.run("preview", "--json", "--show-sames", "--stack", stack)
        reports.append(understood(stack_preview(stack, done, refreshed=refresh)))
    text = render(reports, commit=COMMIT).replace(str(home.folder.resolve()), "/project/project")
    assert text == (DATA / case / "report.md").read_text()
