"""The on-call commands, as a person meets them: what they need, what they print, and how they end."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli import operate
from cli.infra import project_of
from cli.policy import begin
from cli.work import Where
from contract.errors import InfrastructureError, UsageError
from contract.keys import RunUri
from contract.memory import MemoryStore
from contract.models import JournalEntry, encode
from infra.review import engine
from pipelines.runs import RunListing
from tests.contract.world import make_plan

ROOT = Path(__file__).resolve().parents[2]


def nightbatch(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments],
        env={**os.environ, "NIGHTBATCH_HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def facts_file(folder: Path, **changes: Any) -> Path:
    """A stack whose RunPod and S3 are ports that nobody listens on."""
    endpoint = {
        "name": "minilm", "id": "ep1", "model": "minilm", "tasks": ["embed"], "gpu": "AMPERE_24", "usd_per_second": 0.0002, "workers_max": 3
    }  # fmt: skip
    facts = {
        "version": 1,
        "stack": "prod",
        "api_url": "http://127.0.0.1:9/v2",
        "store": {"bucket": "batches", "endpoint_url": "http://127.0.0.1:9"},
        "endpoints": [endpoint],
        **changes,
    }
    path = folder / "facts.json"
    path.write_text(json.dumps(facts))
    return path


KEYS = {
    "RUNPOD_API_KEY": "rpa_the_key_of_the_account",
    "NIGHTBATCH_S3_ACCESS_KEY_ID": "the-access-key",
    "NIGHTBATCH_S3_SECRET_ACCESS_KEY": "the-secret-key",
}


# --- usage ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("status", "a-run", "--all-stacks"),
        ("stop",),
        ("start",),
        ("estimate",),
        ("image", "pin", "--stack"),
        ("image", "frob"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = nightbatch(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("nightbatch: ")
    assert ". See: nightbatch " in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("doctor",), ("stop", "local"), ("start", "local")])
def test_a_local_stack_that_does_not_run_is_said_with_the_way_to_start_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = nightbatch(tmp_path, *command)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "nightbatch: the local emulator is not running. Start it: nightbatch local up"


def test_a_night_that_is_no_time_span(tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "doctor", "--night", "long")
    assert done.returncode == 2
    assert "--night long: is not a time span. For example: --night 6h." in done.stderr


# --- nobody answers ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_doctor_that_reaches_nothing_says_so_part_by_part_and_prints_no_key(tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "doctor", "prod", "--json", NIGHTBATCH_FACTS=str(facts_file(tmp_path)), **KEYS)
    record = json.loads(done.stdout)
    assert done.returncode == record["exit_code"] == 1  # the bucket's failure is a finding
    assert {finding["code"] for finding in record["findings"]} == {"s3_failed"}
    assert {part["what"] for part in record["unread"]} >= {"endpoint minilm: settings", "endpoint minilm: health", "catalog"}
    for secret in KEYS.values():
        assert secret not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_stop_that_reaches_nothing_ends_with_3_and_keeps_no_record(tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "stop", "prod", "--json", NIGHTBATCH_FACTS=str(facts_file(tmp_path)), RUNPOD_API_KEY="rpa_the_key")
    assert done.returncode == 3, done.stderr
    record = json.loads(done.stdout)
    assert record["state"] == "partly stopped"
    assert record["endpoints"][0]["error"]
    assert any("NIGHTBATCH_S3_ACCESS_KEY_ID" in problem for problem in record["problems"])
    assert not (tmp_path / "stopped").exists()


async def test_what_asks_runpod_alone_needs_no_s3_keys(tmp_path: Path) -> None:
    begin(json_output=False)
    environ = {"NIGHTBATCH_FACTS": str(facts_file(tmp_path)), "RUNPOD_API_KEY": "rpa_the_key"}
    stack, problem = await operate.stack_without_s3(Where("prod"), environ)
    assert stack.secrets.api_key == "rpa_the_key"
    assert problem == "NIGHTBATCH_S3_ACCESS_KEY_ID and NIGHTBATCH_S3_SECRET_ACCESS_KEY must be set for that."
    whole, nothing = await operate.stack_without_s3(Where("prod"), {**environ, **KEYS})
    assert nothing is None
    assert whole.secrets.s3.accessId == "the-access-key"


async def test_a_stack_of_another_account_is_asked_with_its_own_key(tmp_path: Path) -> None:
    begin(json_output=False)
    environ = {"NIGHTBATCH_FACTS": str(facts_file(tmp_path)), "RUNPOD_API_KEY": "rpa_the_key", "RUNPOD_API_KEY_PROD": "rpa_of_prod"}
    stack, _ = await operate.stack_without_s3(Where("prod"), environ)
    assert stack.secrets.api_key == "rpa_of_prod"


def test_the_program_of_a_stack_of_another_account_gets_that_accounts_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "pulumi_env", lambda environ: dict(environ))
    (tmp_path / "Pulumi.yaml").write_text("name: nightbatch\n")
    environ = {"NIGHTBATCH_PROJECT": str(tmp_path), "NIGHTBATCH_HOME": str(tmp_path), "RUNPOD_API_KEY": "one", "RUNPOD_API_KEY_PROD": "two"}
    assert {stack: project_of(stack, environ).env["RUNPOD_API_KEY"] for stack in ("dev", "prod", "local")} == {
        "dev": "one", "prod": "two", "local": "one"
    }  # fmt: skip
    del environ["RUNPOD_API_KEY"]
    assert "RUNPOD_API_KEY" not in project_of("dev", environ).env
    # a local stack that Pulumi made is found beside its state, whatever the environment says
    (tmp_path / "local/pulumi").mkdir(parents=True)
    monkeypatch.setattr(engine, "find_cli", lambda environ: tmp_path)
    with pytest.raises(InfrastructureError, match="the local emulator is not running"):
        project_of("local", environ)


# --- stacks --------------------------------------------------------------------------------------------------------------------------


def test_known_stacks_are_those_of_the_stack_files_unless_a_facts_file_is_named(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "infra/stacks").mkdir(parents=True)
    (project / "Pulumi.yaml").write_text("name: nightbatch\n")
    for name in ("prod", "dev", "local"):
        (project / f"infra/stacks/Pulumi.{name}.yaml").write_text("config: {}\n")
    environ = {"NIGHTBATCH_PROJECT": str(project), "NIGHTBATCH_HOME": str(tmp_path)}
    assert operate.known_stacks(environ=environ) == ["dev", "prod"]  # the local one is not up
    assert operate.known_stacks(facts_file(tmp_path), environ) == ["prod"]
    exported = tmp_path / "outputs.json"
    exported.write_text(json.dumps({"facts": json.loads(facts_file(tmp_path).read_text()), "endpoints": {}}))
    assert operate.known_stacks(exported, environ) == ["prod"]
    for text in ("name: nightbatch", "[]", "5", "{}", '{"facts": 5}', "[" * 100_000):
        (tmp_path / "odd").write_text(text)
        with pytest.raises(UsageError, match="no facts file"):
            operate.known_stacks(tmp_path / "odd", environ)


@pytest.mark.slow
def test_the_fleet_of_a_stack_that_nobody_answers_for_is_unknown_and_never_zero(tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "status", "--all-stacks", NIGHTBATCH_FACTS=str(facts_file(tmp_path)), **KEYS)
    assert done.returncode == 3
    assert done.stdout.startswith("prod: unknown/hour now")
    assert "workers unknown, max unknown" in done.stdout


def test_stacks_without_keys_are_unknown_and_no_failure(tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "status", "--all-stacks", NIGHTBATCH_FACTS=str(facts_file(tmp_path)))
    assert done.returncode == 0
    assert done.stdout.startswith("prod: unknown: RUNPOD_API_KEY")


# --- estimate and image pin ----------------------------------------------------------------------------------------------------------


def test_an_estimate_for_a_load_and_a_pool(tmp_path: Path) -> None:
    asked = ("estimate", "--requests-per-minute", "30", "--seconds", "8", "--peak", "60", "--pool", "AMPERE_24")
    done = nightbatch(tmp_path, *asked, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["busy"], record["active"], record["peak"], record["most"]) == (4.0, 4, 8, 10)
    assert record["usd_per_hour_per_worker"] == pytest.approx(0.684)
    assert record["usd_per_hour_most"] == pytest.approx(6.84)
    text = nightbatch(tmp_path, *asked).stdout
    assert "most workers     10: workers.peak, 20% above the 8 busy at peak" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pool", "NOPE"), "--pool NOPE: is no pool with a known price."),
        (("--pool", "AMPERE_24", "--usd-per-hour", "1"), "both give a price"),
        (("--peak", "1"), "peak requests per minute must be 30 or more"),
    ],
)
def test_an_estimate_of_what_cannot_be(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = nightbatch(tmp_path, "estimate", "-r", "30", "-s", "8", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("place", ["", "missing/report.md"])
def test_a_report_that_cannot_be_written_is_said_before_anything_is_previewed(place: str, tmp_path: Path) -> None:
    done = nightbatch(tmp_path, "preview", "dev", "--out", str(tmp_path / place))
    assert done.returncode == 2
    assert "no report can be written there" in done.stderr
    assert "previewed" not in done.stderr


def test_pinning_an_image_of_a_stack_that_has_no_file(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: nightbatch\n")
    done = nightbatch(tmp_path, "image", "pin", "v1", "--stack", "moon", NIGHTBATCH_PROJECT=str(tmp_path))
    assert done.returncode == 2
    assert "there is no such stack file" in done.stderr


def test_an_image_that_is_pinned_already_needs_no_registry(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: nightbatch\n")
    file = tmp_path / "infra/stacks/Pulumi.dev.yaml"
    file.parent.mkdir(parents=True)
    image = "registry.example.com/worker@sha256:" + "a" * 64
    file.write_text(f"config:\n  nightbatch:endpoints:\n    - name: minilm\n      image: {image}\n")
    done = nightbatch(tmp_path, "image", "pin", "--stack", "dev", "--json", NIGHTBATCH_PROJECT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"stack": "dev", "file": str(file), "pinned": []}


class Registry(http.server.BaseHTTPRequestHandler):
    """Knows one image."""

    def do_HEAD(self) -> None:
        known = self.path == "/v2/team/worker/manifests/v1"
        self.send_response(200 if known else 404)
        if known:
            self.send_header("Docker-Content-Digest", "sha256:" + "c" * 64)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_tag_is_pinned_in_the_stack_file(tmp_path: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        (tmp_path / "Pulumi.yaml").write_text("name: nightbatch\n")
        file = tmp_path / "infra/stacks/Pulumi.dev.yaml"
        file.parent.mkdir(parents=True)
        image = f"127.0.0.1:{server.server_address[1]}/team/worker"
        file.write_text(f"config:\n  nightbatch:endpoints:\n    - name: minilm\n      image: {image}:old\n")
        done = nightbatch(tmp_path, "image", "pin", "v1", "--stack", "dev", NIGHTBATCH_PROJECT=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert f"endpoint minilm: v1 is pinned to {image}@sha256:{'c' * 64}" in done.stdout
        assert "pulumi up --stack dev" in done.stdout
        assert f"image: {image}@sha256:{'c' * 64}" in file.read_text()
        wrong = nightbatch(tmp_path, "image", "pin", "v9", "--stack", "dev", NIGHTBATCH_PROJECT=str(tmp_path))
        assert wrong.returncode == 2
        assert "the registry has no image" in wrong.stderr
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- which runs a stop looks at closer -------------------------------------------------------------------------------------------------


async def test_only_runs_that_may_have_jobs_out_are_looked_at_closer() -> None:
    """A stack has many old runs, and a cancel reads every commit and marker of one."""
    plan = make_plan(shards=2)
    run = RunListing(plan.run, plan.run_id, plan)
    keys = RunUri.parse(plan.run).keys
    store = MemoryStore()
    store.objects.instant = plan.created_at + timedelta(days=1)
    assert await operate.may_have_jobs(store, run)  # just planned: its client may be about to send
    store.objects.instant = plan.created_at + timedelta(days=8)
    assert not await operate.may_have_jobs(store, run)
    at = plan.created_at + timedelta(days=5)
    for number in (0, 1):
        entry = JournalEntry(plan=plan.plan_id, number=number, client="abcd", at=at)
        await store.put(keys.journal(number), encode(entry))
    assert await operate.may_have_jobs(store, run)  # somebody resumed it three days ago
    await store.put(keys.journal(1), b"{")
    assert await operate.may_have_jobs(store, run)
    await store.put(keys.seal(), b"{}")
    assert not await operate.may_have_jobs(store, run)
