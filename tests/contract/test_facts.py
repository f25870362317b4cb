"""tests of contract.facts: what a run knows of its stack, from the emulator's file or from a file and the environment."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import contract.facts
from contract.errors import ContractError, EmulatorError, InfrastructureError, UsageError
from contract.facts import (
    API_URL,
    EndpointFacts,
    LocalFile,
    Ran,
    StackFacts,
    StoreFacts,
    api_key_env,
    load_emulator,
    load_pulumi,
    load_stack,
    local_facts_path,
    pulumi_project,
    run_command,
    secrets_from,
    state_dir,
    write_declared,
)
from contract.models import S3Config, encode

CLIENT = S3Config(accessId="client-id", accessSecret="client-secret", bucketName="b", endpointUrl="http://127.0.0.1:1")
WORKER = S3Config(accessId="worker-id", accessSecret="worker-secret", bucketName="b", endpointUrl="http://127.0.0.1:1")


def endpoint(name: str = "mini", **changes: Any) -> EndpointFacts:
    given: dict[str, Any] = {
        "name": name, "id": f"id-{name}", "model": f"hub/{name}", "tasks": ("embed",), "gpu": "A40",
        "usd_per_second": 0.0003, "workers_max": 3,
    }  # fmt: skip
    return EndpointFacts(**{**given, **changes})


FACTS = StackFacts(
    stack="prod", store=StoreFacts(bucket="b", endpoint_url="https://s3"), endpoints=(endpoint(), endpoint("llm", tasks=("generate",)))
)
ENVIRONMENT = {
    "RUNPOD_API_KEY": "rp-secret",
    "NIGHTBATCH_S3_ACCESS_KEY_ID": "id",
    "NIGHTBATCH_S3_SECRET_ACCESS_KEY": "s3-secret",
}


def facts_file(folder: Path, facts: Any = FACTS) -> Path:
    path = folder / "facts.json"
    path.write_bytes(encode(facts))
    return path


def test_a_file_and_the_environment_make_a_stack(tmp_path: Path) -> None:
    stack = load_stack("prod", environ=ENVIRONMENT, facts_file=facts_file(tmp_path))
    assert stack.facts == FACTS
    assert stack.facts.api_url == API_URL
    assert (stack.secrets.s3.bucketName, stack.secrets.s3.endpointUrl) == ("b", "https://s3")
    assert stack.secrets.worker_s3 == stack.secrets.s3
    assert load_stack("prod", environ={**ENVIRONMENT, "NIGHTBATCH_FACTS": str(tmp_path / "facts.json")}) == stack


def test_the_environment_goes_before_the_file_and_workers_may_have_keys_of_their_own(tmp_path: Path) -> None:
    environment = {
        **ENVIRONMENT,
        "RUNPOD_ENDPOINT_BASE_URL": "http://127.0.0.1:8/v2",
        "NIGHTBATCH_S3_BUCKET": "other",
        "NIGHTBATCH_S3_ENDPOINT_URL": "http://127.0.0.1:9",
        "NIGHTBATCH_WORKER_S3_ACCESS_KEY_ID": "w",
        "NIGHTBATCH_WORKER_S3_SECRET_ACCESS_KEY": "w-secret",
    }
    stack = load_stack("prod", environ=environment, facts_file=facts_file(tmp_path))
    assert stack.facts.api_url == "http://127.0.0.1:8/v2"
    assert stack.facts.store == StoreFacts(bucket="other", endpoint_url="http://127.0.0.1:9")
    assert (stack.secrets.worker_s3.accessId, stack.secrets.worker_s3.accessSecret, stack.secrets.s3.accessId) == ("w", "w-secret", "id")
    assert stack.secrets.worker_s3.bucketName == "other"


def test_the_environment_can_be_all_that_is_said_of_the_store(tmp_path: Path) -> None:
    facts = json.loads(encode(FACTS))
    del facts["store"]
    environment = {**ENVIRONMENT, "NIGHTBATCH_S3_BUCKET": "e", "NIGHTBATCH_S3_ENDPOINT_URL": "http://e"}
    assert load_stack("prod", environ=environment, facts_file=facts_file(tmp_path, facts)).facts.store.bucket == "e"
    with pytest.raises(ContractError, match=r"store"):
        load_stack("prod", environ=ENVIRONMENT, facts_file=facts_file(tmp_path, facts))


def test_every_missing_secret_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_stack("prod", environ={"RUNPOD_API_KEY": ""}, facts_file=facts_file(tmp_path))
    assert all(name in str(caught.value) for name in ENVIRONMENT)


@pytest.mark.parametrize("more", [{"NIGHTBATCH_S3_SESSION_TOKEN": "t"}, {"NIGHTBATCH_S3_ACCESS_KEY_ID": "ASIA123"}])
def test_temporary_keys_are_refused_with_the_reason(more: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="session token"):
        load_stack("prod", environ={**ENVIRONMENT, **more}, facts_file=facts_file(tmp_path))


def test_a_file_that_is_missing_damaged_or_of_another_stack_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract.facts, "CLONE", tmp_path)  # no Pulumi.yaml there
    with pytest.raises(UsageError, match="cannot be read"):
        load_stack("prod", environ=ENVIRONMENT, facts_file=tmp_path / "none.json")
    with pytest.raises(UsageError, match="of stack 'prod', not of 'dev'"):
        load_stack("dev", environ=ENVIRONMENT, facts_file=facts_file(tmp_path))
    (tmp_path / "facts.json").write_text("{")
    with pytest.raises(UsageError, match=r"facts\.json: not JSON"):
        load_stack("prod", environ=ENVIRONMENT, facts_file=tmp_path / "facts.json")
    with pytest.raises(UsageError, match="nothing is known of stack 'prod'"):
        load_stack("prod", environ=ENVIRONMENT)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"workers_max": -1}, "workers_max"), ({"usd_per_second": "cheap"}, "usd_per_second"), ({"shards_per_worker": 0}, "shards_per_worker"),
     ({"scaler": "MAGIC"}, "scaler"), ({"colour": 1}, "colour")],
)  # fmt: skip
def test_a_wrong_field_in_the_file_is_named(change: dict[str, Any], field: str, tmp_path: Path) -> None:
    facts = json.loads(encode(FACTS))
    facts["endpoints"][0].update(change)
    with pytest.raises(ContractError, match=field):
        load_stack("prod", environ=ENVIRONMENT, facts_file=facts_file(tmp_path, facts))


def test_the_emulators_stack_is_found_where_it_wrote_it(tmp_path: Path) -> None:
    environment = {"NIGHTBATCH_HOME": str(tmp_path)}
    with pytest.raises(EmulatorError, match="nightbatch local up"):
        load_stack("local", environ=environment)
    path = local_facts_path(environment)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(LocalFile(facts=FACTS, api_key="k", s3=CLIENT, worker_s3=WORKER, pid=1)))
    stack = load_stack("local", environ=environment)
    assert (stack.facts, stack.secrets.api_key, stack.secrets.worker_s3) == (FACTS, "k", WORKER)


def test_state_lies_where_the_user_or_the_system_says() -> None:
    assert state_dir({"NIGHTBATCH_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert state_dir({"XDG_STATE_HOME": "/b"}) == Path("/b/nightbatch")
    assert state_dir({}) == Path.home() / ".local/state/nightbatch"


def test_an_endpoint_is_found_by_its_name_or_model_and_its_task() -> None:
    assert FACTS.endpoint_for("mini", "embed").id == "id-mini"
    assert FACTS.endpoint_for("hub/llm", "generate").id == "id-llm"
    with pytest.raises(UsageError, match=r"no endpoint serves model 'mini' for task 'generate'.*mini \(hub/mini: embed\), llm"):
        FACTS.endpoint_for("mini", "generate")
    twice = StackFacts(stack="x", store=FACTS.store, endpoints=(endpoint("a", model="m"), endpoint("b", model="m")))
    with pytest.raises(UsageError, match="more than one endpoint"):
        twice.endpoint_for("m", "embed")
    with pytest.raises(UsageError, match="none"):
        StackFacts(stack="x", store=FACTS.store, endpoints=()).endpoint_for("m", "embed")


def test_secrets_are_never_printed_and_facts_hold_none(tmp_path: Path) -> None:
    stack = load_stack("prod", environ=ENVIRONMENT, facts_file=facts_file(tmp_path))
    assert set(stack.secrets.values) == {"rp-secret", "s3-secret", "id"}
    for text in (repr(stack), str(stack), repr(stack.secrets), f"{stack.secrets}"):
        assert not any(secret in text for secret in ("rp-secret", "s3-secret"))
    assert b"secret" not in encode(stack.facts)


@pytest.mark.parametrize("key", ["key\n", "two words", "ke\ty", "schl\u00fcssel", "a\r\nX-Header: b"])
def test_a_key_that_cannot_be_one_is_refused_without_being_shown(key: str) -> None:
    store = StoreFacts(bucket="b", endpoint_url="http://127.0.0.1:1")
    good = {"RUNPOD_API_KEY": "k", "NIGHTBATCH_S3_ACCESS_KEY_ID": "i", "NIGHTBATCH_S3_SECRET_ACCESS_KEY": "s/+="}
    assert secrets_from(good, store).api_key == "k"
    for name in (*good, "NIGHTBATCH_WORKER_S3_SECRET_ACCESS_KEY"):
        with pytest.raises(UsageError, match=name) as caught:
            secrets_from({**good, name: key}, store)
        assert key not in str(caught.value)


@pytest.mark.parametrize("url", ["nourl", "http://", "ftp://host", "http://host:99999999", "http://[::1", "http://a b", ""])
def test_an_address_that_is_none_is_refused_where_it_was_said(url: str, tmp_path: Path) -> None:
    facts = StackFacts(stack="dev", store=StoreFacts(bucket="b", endpoint_url="http://127.0.0.1:1"), endpoints=(endpoint(),))
    path = tmp_path / "dev.json"
    path.write_bytes(encode(facts))
    keys = {"RUNPOD_API_KEY": "k", "NIGHTBATCH_S3_ACCESS_KEY_ID": "i", "NIGHTBATCH_S3_SECRET_ACCESS_KEY": "s"}
    assert load_stack("dev", environ=keys, facts_file=path).facts == facts
    for variable in ("NIGHTBATCH_S3_ENDPOINT_URL", "RUNPOD_ENDPOINT_BASE_URL"):
        if url:
            with pytest.raises(UsageError, match="not an address"):
                load_stack("dev", environ={**keys, variable: url}, facts_file=path)
    with pytest.raises(UsageError, match="not an address"):
        secrets_from(keys, StoreFacts(bucket="b", endpoint_url=url))


@pytest.mark.parametrize("bucket", ["a b", "a/b", "", "x" * 300, "b\u00fc"])
def test_a_bucket_that_no_store_has_is_refused(bucket: str) -> None:
    keys = {"RUNPOD_API_KEY": "k", "NIGHTBATCH_S3_ACCESS_KEY_ID": "i", "NIGHTBATCH_S3_SECRET_ACCESS_KEY": "s"}
    with pytest.raises(UsageError, match="not the name of a bucket"):
        secrets_from(keys, StoreFacts(bucket=bucket, endpoint_url="http://127.0.0.1:1"))


# --- Pulumi's outputs ----------------------------------------------------------------------------------------------------------------


DEV = StackFacts(stack="dev", store=FACTS.store, endpoints=())


class Pulumi:
    """Stands where the `pulumi` command stands, and remembers how it was called."""

    def __init__(self, stdout: str = "", *, stderr: str = "", returncode: int | None = 0) -> None:
        self.answer = Ran(returncode, stdout, stderr)
        self.calls: list[tuple[Sequence[str], Path, Mapping[str, str]]] = []

    def __call__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> Ran:
        self.calls.append((argv, cwd, env))
        return self.answer


def with_pulumi(folder: Path) -> dict[str, str]:
    """An environment whose PATH has a `pulumi` that is never run."""
    program = folder / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 99\n")
    program.chmod(0o755)
    return {**ENVIRONMENT, "PATH": str(program.parent)}


def test_the_output_facts_of_a_pulumi_stack_makes_a_stack(tmp_path: Path) -> None:
    environ = with_pulumi(tmp_path)
    pulumi = Pulumi(encode(FACTS).decode())
    stack = load_pulumi("prod", tmp_path, environ, run=pulumi)
    assert stack.facts == FACTS
    assert stack.secrets.api_key == "rp-secret"
    ((argv, cwd, env),) = pulumi.calls
    assert argv[1:7] == ("stack", "output", "facts", "--json", "--stack", "prod")
    assert "--non-interactive" in argv
    assert (cwd, env["PULUMI_SKIP_UPDATE_CHECK"], env["PATH"]) == (tmp_path, "1", environ["PATH"])
    assert "--show-secrets" not in argv


def test_a_stacks_full_name_is_passed_to_pulumi_and_its_facts_have_the_short_one(tmp_path: Path) -> None:
    pulumi = Pulumi(encode(FACTS).decode())
    assert load_pulumi("company/nightbatch/prod", tmp_path, with_pulumi(tmp_path), run=pulumi).facts == FACTS
    assert pulumi.calls[0][0][6] == "company/nightbatch/prod"
    with pytest.raises(UsageError, match="of stack 'prod', not of 'prod/dev'"):
        load_stack("prod/dev", environ=ENVIRONMENT, facts_file=facts_file(tmp_path))


def test_the_environment_goes_before_pulumis_outputs_too(tmp_path: Path) -> None:
    environ = {**with_pulumi(tmp_path), "NIGHTBATCH_S3_BUCKET": "other", "RUNPOD_ENDPOINT_BASE_URL": "http://127.0.0.1:8/v2"}
    stack = load_pulumi("prod", tmp_path, environ, run=Pulumi(encode(FACTS).decode()))
    assert (stack.facts.store.bucket, stack.facts.api_url) == ("other", "http://127.0.0.1:8/v2")


def test_a_file_with_all_outputs_of_a_pulumi_stack_is_a_facts_file(tmp_path: Path) -> None:
    exported = {"facts": json.loads(encode(FACTS)), "endpoints": {}, "limits": {"workers": 3}}
    path = tmp_path / "outputs.json"
    path.write_text(json.dumps(exported))
    assert load_stack("prod", environ=ENVIRONMENT, facts_file=path).facts == FACTS


@pytest.mark.parametrize(
    ("ran", "kind", "says"),
    [
        (Ran(255, "", "error: no stack named 'prod' found"), UsageError, "nothing is known of stack 'prod'.*pulumi stack ls"),
        (Ran(255, "", "error: current stack does not have output property 'facts'"), UsageError, "it has no facts yet.*up --stack prod"),
        (Ran(255, "", "error: passphrase must be set with PULUMI_CONFIG_PASSPHRASE\n"), UsageError, "Set PULUMI_CONFIG_PASSPHRASE"),
        (Ran(255, "", "error: PULUMI_ACCESS_TOKEN must be set for login\n"), UsageError, "PULUMI_BACKEND_URL"),
        (Ran(1, "", "error: the backend fell over\n"), InfrastructureError, "exit code 1.*the backend fell over"),
        (Ran(None, "", ""), InfrastructureError, "did not end within 60 s"),
        (Ran(0, "not json", ""), InfrastructureError, "did not print JSON"),
        (Ran(0, encode(DEV).decode(), ""), UsageError, "of stack 'dev', not of 'prod'"),
        (Ran(0, '{"stack": "prod"}', ""), ContractError, "output `facts`"),
    ],
)  # fmt: skip
def test_what_pulumi_cannot_tell_is_said_with_what_to_do(ran: Ran, kind: type[Exception], says: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=says):
        load_pulumi("prod", tmp_path, with_pulumi(tmp_path), run=Pulumi(ran.stdout, stderr=ran.stderr, returncode=ran.returncode))


def test_without_the_command_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract.facts, "CLONE", tmp_path)
    with pytest.raises(UsageError, match=r"nothing is known of stack 'prod'.*not on PATH.*NIGHTBATCH_FACTS"):
        load_pulumi("prod", tmp_path, {**ENVIRONMENT, "PATH": str(tmp_path)})


def test_a_command_that_the_project_has_got_before_is_found_without_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = with_pulumi(tmp_path)
    folder = environ.pop("PATH")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "pulumi-cli").touch()
    monkeypatch.setattr(contract.facts, "CLONE", tmp_path)
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> Ran:
        calls.append(argv)
        return Ran(0, f"{folder}\n" if argv[-1] == "--check" else encode(FACTS).decode(), "")

    assert load_pulumi("prod", tmp_path, environ, run=run).facts == FACTS
    assert [argv[0] for argv in calls] == [sys.executable, f"{folder}/pulumi"]


def test_the_project_is_the_named_folder_or_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract.facts, "CLONE", tmp_path)
    assert pulumi_project({}) is None
    with pytest.raises(UsageError, match=r"NIGHTBATCH_PROJECT=.*holds no Pulumi.yaml"):
        pulumi_project({"NIGHTBATCH_PROJECT": str(tmp_path)})
    (tmp_path / "Pulumi.yaml").touch()
    assert pulumi_project({"NIGHTBATCH_PROJECT": str(tmp_path)}) == pulumi_project({}) == tmp_path


def test_a_stack_is_looked_for_in_its_file_first_and_in_pulumi_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract.facts, "CLONE", tmp_path)
    (tmp_path / "Pulumi.yaml").touch()
    environ = with_pulumi(tmp_path)
    pulumi = Pulumi(encode(FACTS).decode())
    monkeypatch.setattr(contract.facts, "run_command", pulumi)
    assert load_stack("prod", environ=environ).facts == FACTS
    assert len(pulumi.calls) == 1
    assert load_stack("prod", environ={**environ, "NIGHTBATCH_FACTS": str(facts_file(tmp_path))}).facts == FACTS
    with pytest.raises(EmulatorError):
        load_stack("local", environ={**environ, "NIGHTBATCH_HOME": str(tmp_path)})
    assert len(pulumi.calls) == 1


@pytest.mark.parametrize(
    ("stack", "variable"),
    [("prod", "RUNPOD_API_KEY_PROD"), ("eu-west.2", "RUNPOD_API_KEY_EU_WEST_2"), ("company/nightbatch/prod", "RUNPOD_API_KEY_PROD")],
)
def test_a_stack_of_another_account_has_a_key_of_its_own(stack: str, variable: str) -> None:
    assert api_key_env(stack, {"RUNPOD_API_KEY": "k", variable: "own"}) == variable
    assert api_key_env(stack, {"RUNPOD_API_KEY": "k", variable: ""}) == "RUNPOD_API_KEY"
    assert api_key_env(stack, {"RUNPOD_API_KEY": "k", f"{variable}_2": "other"}) == "RUNPOD_API_KEY"
    assert api_key_env("staging", {"RUNPOD_API_KEY": "k", variable: "own"}) == "RUNPOD_API_KEY"


def test_a_stack_is_read_with_its_own_key_wherever_its_facts_are(tmp_path: Path) -> None:
    environ = {**with_pulumi(tmp_path), "RUNPOD_API_KEY_PROD": "rp-of-prod"}
    assert load_pulumi("prod", tmp_path, environ, run=Pulumi(encode(FACTS).decode())).secrets.api_key == "rp-of-prod"
    assert load_stack("prod", environ=environ, facts_file=facts_file(tmp_path)).secrets.api_key == "rp-of-prod"
    del environ["RUNPOD_API_KEY"]
    assert load_stack("prod", environ=environ, facts_file=facts_file(tmp_path)).secrets.api_key == "rp-of-prod"
    with pytest.raises(UsageError, match="RUNPOD_API_KEY_PROD holds a space") as caught:
        load_stack("prod", environ={**environ, "RUNPOD_API_KEY_PROD": "rp of prod"}, facts_file=facts_file(tmp_path))
    assert "rp of prod" not in str(caught.value)


def test_a_command_is_run_without_a_terminal_and_killed_with_its_children_at_the_deadline(tmp_path: Path) -> None:
    env = dict(os.environ)
    ran = run_command((sys.executable, "-c", "import sys; print(sys.stdin.read(), 'out'); sys.exit(3)"), tmp_path, env, 30.0)
    assert (ran.returncode, ran.stdout) == (3, " out\n")
    # whoever holds the FIFO open is alive: its end is read when nothing of the command is left
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run_command(("/bin/sh", "-c", "exec 9>alive; sleep 300 & wait"), tmp_path, env, 1.0) == Ran(None, "", "")
        assert select.select([reader], [], [], 10.0)[0]
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_the_local_stack_is_as_pulumi_declares_it_where_pulumi_made_it(tmp_path: Path) -> None:
    """The emulator's own facts tell what is live: an idle cut would look as if it had been declared."""
    cut = StackFacts(stack="local", store=FACTS.store, endpoints=(endpoint(workers_max=2), endpoint("by-hand")))
    path = tmp_path / "facts.json"
    path.write_bytes(encode(LocalFile(facts=cut, api_key="k", s3=CLIENT, worker_s3=WORKER, pid=1)))
    assert load_emulator(path).facts == cut
    write_declared(tmp_path, FACTS)
    found = load_emulator(path).facts
    assert found.endpoints == (endpoint(), endpoint("by-hand"))
    assert found.stack == "local"
