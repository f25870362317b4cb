"""tests of infra.components and of the whole program, with Pulumi's mocks: no CLI, no engine, no network."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
from pulumi.runtime.rpc import is_rpc_secret, unwrap_rpc_secret
from pulumi.runtime.settings import SETTINGS
from pulumi.runtime.stack import run_pulumi_func

from contract.facts import StackFacts
from contract.models import convert
from infra.components import BatchPlatform, endpoint_arguments, worker_env
from infra.settings import RESERVED_ENV, Settings, prices
from tests.infra.stacks import DIGEST, IMAGE, balanced, endpoint, stack, values
from worker.settings import Settings as WorkerSettings

VOLUME = {"name": "models", "size": 50, "dataCenter": "EU-RO-1"}
SECRET = "hf_abcdefghijk"
CATALOG = [{"id": "NVIDIA L4", "pool": "AMPERE_24", "price": {"secure": 1, "community": 1, "serverless": 0.9}}]


@dataclass
class Account(pulumi.runtime.Mocks):
    """Stands where the engine stands: gives ids, remembers what was declared, and what was logged."""

    resources: dict[tuple[str, str], pulumi.runtime.MockResourceArgs] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    offline: bool = False

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.resources[args.typ, args.name] = args
        outputs = dict(args.inputs)
        if args.typ == "runpodv2:index:Endpoint":
            lb = args.inputs["type"] == "LOAD_BALANCER"
            base = f"https://{args.name}-id.api.runpod.ai"
            outputs["requestUrls"] = (
                {"base": base, "health": f"{base}/ping"} if lb else {"run": f"https://api.runpod.ai/v2/{args.name}-id/run"}
            )
            outputs["createdAt"] = "2026-08-20T00:00:00Z"
        return f"{args.name}-id", outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        raise AssertionError(f"{args.token} is called")

    def answer(self, token: str) -> dict[str, Any]:
        self.calls.append(token)
        if self.offline:
            raise RuntimeError("no answer")
        return {"gpus": CATALOG}

    def inputs(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.resources[f"runpodv2:index:{kind}", name].inputs
        return found

    @property
    def declared(self) -> set[tuple[str, str]]:
        return {(kind.rpartition(":")[2], name) for kind, name in self.resources if kind.startswith(("runpodv2:", "nightbatch:"))}


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """The account; with every event loop closed at the end, because Pulumi makes one in each thread and leaves it."""
    loops: list[asyncio.AbstractEventLoop] = []
    make = asyncio.new_event_loop

    def kept() -> asyncio.AbstractEventLoop:
        loops.append(make())
        return loops[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", kept)
    found = Account()
    # Pulumi's own synchronous wait enters the running loop again, which Python 3.11's recursion count does not survive
    monkeypatch.setattr(pulumi.runtime, "invoke", lambda token, props: SimpleNamespace(value=found.answer(token)))
    asyncio.set_event_loop(kept())
    yield found
    for loop in loops:
        loop.close()
    asyncio.set_event_loop(None)


def deploy(account: Account, program: Callable[[], Any], stack_name: str, *, preview: bool = False) -> Any:
    """Run a program to its end; what it returns, with outputs resolved."""
    pulumi.runtime.set_mocks(account, "nightbatch", stack_name, preview)
    SETTINGS.rpc_manager.clear()
    SETTINGS.outputs.clear()
    returned: list[pulumi.Output[Any]] = []
    loop = asyncio.get_event_loop()
    loop.run_until_complete(run_pulumi_func(lambda: returned.append(pulumi.Output.from_input(program()))))
    return loop.run_until_complete(returned[0].future())


def platform(account: Account, settings: Settings, **given: Any) -> dict[str, Any]:
    def program() -> dict[str, Any]:
        made = BatchPlatform("nightbatch", settings, prices(settings), **given)
        return {"facts": made.facts, "endpoints": made.endpoint_outputs, "volumes": made.volume_outputs, "limits": made.limits}

    found: dict[str, Any] = deploy(account, program, settings.stack)
    return found


# --- the components ------------------------------------------------------------------------------------------------------------------


def test_a_platform_declares_volumes_credential_and_endpoints_and_its_facts_are_the_contracts(account: Account) -> None:
    settings = stack(
        "prod",
        secrets=("REGISTRY_PASSWORD",),
        volumes=[VOLUME],
        registry={"name": "company", "username": "robot", "passwordSecret": "REGISTRY_PASSWORD"},
        endpoints=[endpoint(volumes=["models"]), balanced()],
    )
    found = platform(account, settings, secrets={"REGISTRY_PASSWORD": pulumi.Output.secret(SECRET)})
    assert account.declared == {
        ("BatchPlatform", "nightbatch"), ("QueueEndpoint", "minilm"), ("LoadBalancedEndpoint", "web"), ("Endpoint", "minilm"),
        ("Endpoint", "web"), ("NetworkVolume", "models"), ("RegistryCredential", "company"),
    }  # fmt: skip
    facts: StackFacts = convert(found["facts"], StackFacts, where="facts")
    assert [(e.name, e.id, e.image, e.workers_max) for e in facts.endpoints] == [("minilm", "minilm-id", DIGEST, 3)]
    assert found["endpoints"]["web"]["url"] == "https://web-id.api.runpod.ai"
    assert found["endpoints"]["minilm"]["url"] == "https://api.runpod.ai/v2/minilm-id"
    assert found["volumes"]["models"]["id"] == "models-id"
    assert SECRET not in json.dumps(found)
    queue = account.inputs("Endpoint", "minilm")
    assert (queue["networkVolumes"], queue["registry"], queue["name"]) == (["models-id"], "company-id", "nightbatch-prod-minilm")
    assert account.inputs("NetworkVolume", "models") == {"name": "nightbatch-prod-models", "size": 50, "dataCenter": "EU-RO-1"}


def test_a_queue_endpoint_is_sent_in_runpods_words(account: Account) -> None:
    settings = stack(
        "prod",
        endpoints=[
            endpoint(
                gpu={"pools": ["ADA_24", "AMPERE_24"], "count": 2, "excludedTypes": ["NVIDIA L4"], "minCudaVersion": "12.8"},
                workers={"peak": 4, "min": 1},
                scaler={"type": "QUEUE_DELAY", "value": 2.5},
                idleTimeout=20,
                rollout="strict",
                dataCenters=["EU-RO-1"],
                flashboot="FLASHBOOT",
                disk=40,
            )
        ],
    )
    platform(account, settings)
    sent = account.inputs("Endpoint", "minilm")
    env = sent.pop("env")
    assert sent == {
        "name": "nightbatch-prod-minilm",
        "type": "QUEUE",
        "image": IMAGE,
        "gpu": {"pools": ["ADA_24", "AMPERE_24"], "count": 2, "excludedTypes": ["NVIDIA L4"], "minCudaVersion": "12.8"},
        "workers": {"min": 1, "max": 4, "idleTimeout": 20},
        "scaling": {"type": "QUEUE_DELAY", "queueDelay": 2.5},
        "timeout": 600_000,
        "flashboot": "FLASHBOOT",
        "rollout": "strict",
        "drainOnDelete": True,
        "drainTimeoutSeconds": 660,
        "dataCenterIds": ["EU-RO-1"],
        "disk": 40,
    }
    assert env["NIGHTBATCH_IMAGE"] == DIGEST


def test_a_load_balancing_endpoint_tells_its_port_and_health_path_in_its_environment(account: Account) -> None:
    platform(account, stack(endpoints=[balanced(env={"MODE": "x"})]))
    sent = account.inputs("Endpoint", "web")
    assert (sent["type"], sent["ports"]) == ("LOAD_BALANCER", ["8000/http"])
    assert sent["scaling"] == {"type": "REQUEST_COUNT", "requestCount": 4}
    assert {name: sent["env"][name] for name in ("PORT", "PORT_HEALTH", "HEALTH_CHECK_PATH", "MODE")} == {
        "PORT": "8000", "PORT_HEALTH": "8000", "HEALTH_CHECK_PATH": "/ok", "MODE": "x",
    }  # fmt: skip
    assert "NIGHTBATCH_CONCURRENCY" not in sent["env"]


def test_an_idle_timeout_is_not_sent_where_runpod_refuses_it() -> None:
    settings = stack(endpoints=[endpoint(scaler={"type": "REQUEST_COUNT", "value": 3})])
    sent = endpoint_arguments(settings, settings.endpoints[0], volume_ids={})
    assert sent["workers"] == {"min": 0, "max": 3}
    assert sent["scaling"] == {"type": "REQUEST_COUNT", "request_count": 3}


def test_protection_follows_the_settings(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, bool] = {}
    from infra.provider import sdk

    for kind in ("Endpoint", "NetworkVolume"):
        original = getattr(sdk, kind).__init__

        def init(self: Any, resource: str, /, *, opts: Any, _original: Any = original, **given: Any) -> None:
            seen[resource] = bool(opts.protect)
            _original(self, resource, opts=opts, **given)

        monkeypatch.setattr(getattr(sdk, kind), "__init__", init)
    volumes = [VOLUME, {**VOLUME, "name": "scratch", "protect": False}]
    platform(account, stack("prod", volumes=volumes))
    assert seen == {"models": True, "scratch": False, "minilm": True}
    seen.clear()
    platform(account, stack("dev", volumes=volumes))
    assert seen == {"models": False, "scratch": False, "minilm": False}


def test_secrets_reach_the_worker_and_stay_secret(account: Account) -> None:
    settings = stack(secrets=("HF_TOKEN",), endpoints=[endpoint(secretEnv=["HF_TOKEN"])])
    secret = pulumi.Output.secret(SECRET)
    arguments = endpoint_arguments(settings, settings.endpoints[0], volume_ids={}, secrets={"HF_TOKEN": secret})
    assert arguments["env"]["HF_TOKEN"] is secret
    found = platform(account, settings, secrets={"HF_TOKEN": secret})
    assert secret_env(account)["HF_TOKEN"] == SECRET
    assert SECRET not in json.dumps(found)


def secret_env(account: Account) -> dict[str, str]:
    """The environment of the endpoint, which must have been sent as a secret."""
    sent = account.inputs("Endpoint", "minilm")["env"]
    assert is_rpc_secret(sent)
    found: dict[str, str] = unwrap_rpc_secret(sent)
    return found


# --- the worker's environment --------------------------------------------------------------------------------------------------------


def env_of(**changes: Any) -> dict[str, str]:
    return worker_env(stack(endpoints=[endpoint(**changes)], volumes=[VOLUME]).endpoints[0])


def test_the_worker_reads_what_the_settings_say() -> None:
    read = WorkerSettings.from_env(env_of(revision="v2", maxConcurrency=3, maxNumSeqs=64, maxModelLen=2048))
    assert (read.model, read.served_name, read.kind, read.revision) == ("org/minilm", "org/minilm", "embed", "v2")
    assert (read.concurrency, read.image) == (3, DIGEST)
    assert (read.engine_args["max_num_seqs"], read.engine_args["max_model_len"]) == (64, 2048)
    assert WorkerSettings.from_env(env_of(tasks=["generate"])).kind == "generate"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"kind": "hub"}, {"NIGHTBATCH_MODEL": "org/minilm"}),
        ({"kind": "baked", "path": "/models/m"}, {"NIGHTBATCH_MODEL": "/models/m", "HF_HUB_OFFLINE": "1"}),
        ({"kind": "volume", "volume": "models"}, {"NIGHTBATCH_MODEL": "org/minilm", "HF_HOME": "/runpod-volume/huggingface"}),
        ({"kind": "volume", "volume": "models", "path": "/a/b/"}, {"NIGHTBATCH_MODEL": "/runpod-volume/a/b", "HF_HUB_OFFLINE": "1"}),
        ({"kind": "cached"}, {"NIGHTBATCH_MODEL": "org/minilm", "HF_HOME": "/runpod-volume/huggingface-cache", "HF_HUB_OFFLINE": "1"}),
    ],
)
def test_wherever_the_model_comes_from_jobs_call_it_by_its_name(source: dict[str, str], expected: dict[str, str]) -> None:
    env = env_of(modelSource=source)
    found = {name: env[name] for name in ("NIGHTBATCH_MODEL", "HF_HOME", "HF_HUB_OFFLINE") if name in env}
    assert found == expected
    assert WorkerSettings.from_env(env).served_name == "org/minilm"
    assert env["NIGHTBATCH_MODEL_SOURCE"].split(":")[0] == source["kind"]


def test_the_users_own_variables_are_added_and_none_is_set_behind_their_back() -> None:
    env = env_of(env={"DTYPE": "bfloat16", "HF_HOME": "/elsewhere"}, modelSource={"kind": "cached"})
    assert (env["DTYPE"], env["HF_HOME"]) == ("bfloat16", "/elsewhere")
    everything = env_of(revision="r", maxNumSeqs=1, maxModelLen=1) | worker_env(stack(endpoints=[balanced()]).endpoints[0])
    assert set(everything) <= set(RESERVED_ENV)


# --- the program ---------------------------------------------------------------------------------------------------------------------


def run_program(
    account: Account,
    monkeypatch: pytest.MonkeyPatch,
    repo: Path,
    config: Mapping[str, Any],
    *,
    stack_name: str = "dev",
    secret_keys: tuple[str, ...] = (),
    preview: bool = False,
) -> dict[str, Any]:
    """Run infra/__main__.py as Pulumi does; its exports."""
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(text))
    pulumi.runtime.set_all_config(text, list(secret_keys))
    exports: dict[str, Any] = {}
    monkeypatch.setattr(pulumi, "export", exports.__setitem__)
    monkeypatch.setattr(pulumi, "get_stack", lambda: stack_name)

    def program() -> dict[str, Any]:
        runpy.run_path(str(repo / "infra" / "__main__.py"), run_name="__main__")
        return exports

    found: dict[str, Any] = deploy(account, program, stack_name, preview=preview)
    return found


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", lambda text, *_args, **_kwargs: found.append(text))
    return found


def config(**changes: Any) -> dict[str, Any]:
    return {f"nightbatch:{key}": value for key, value in values(**changes).items()}


def test_the_program_exports_what_others_read(account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path, warnings: list[str]) -> None:
    found = run_program(account, monkeypatch, repo, config())
    assert set(found) == {"facts", "endpoints", "volumes", "limits"}
    facts: StackFacts = convert(found["facts"], StackFacts, where="facts")
    assert (facts.stack, facts.endpoints[0].usd_per_second) == ("dev", 0.00031)
    assert found["limits"]["usdPerHour"] == 3.348
    assert warnings == []
    assert account.calls == []  # without a key nobody is asked


def test_with_a_key_prices_are_the_catalogs(account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path, warnings: list[str]) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_x")
    given = config(endpoints=[endpoint(gpu={"pools": ["AMPERE_24", "AMPERE_16"]})])
    found = run_program(account, monkeypatch, repo, given)
    assert found["endpoints"]["minilm"]["usd_per_hour_per_worker"] == 0.9
    assert found["limits"]["prices"] == "RunPod's catalog"
    assert account.calls == ["runpodv2:index:getGpus"]


def test_a_catalog_that_does_not_answer_is_a_warning(
    account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path, warnings: list[str]
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_x")
    account.offline = True
    found = run_program(account, monkeypatch, repo, config())
    assert "2026-08-20" in found["limits"]["prices"]
    assert len(warnings) == 1
    assert "catalog could not be read (no answer)" in warnings[0]


def test_a_broken_rule_ends_the_program_with_one_error_before_anything_is_declared(
    account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path
) -> None:
    bad = config(endpoints=[endpoint(image="a:latest", executionTimeout=None)])
    with pytest.raises(pulumi.RunError) as caught:
        run_program(account, monkeypatch, repo, bad, preview=True)
    assert "2 mandatory rules are not kept on stack 'dev'" in str(caught.value)
    assert account.declared == set()


def test_advice_is_a_warning_and_the_stack_is_made(
    account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path, warnings: list[str]
) -> None:
    run_program(account, monkeypatch, repo, config(endpoints=[endpoint(gpu={"pools": ["ADA_24"]})]))
    assert warnings == ["gpu-pools (advisory): endpoint minilm: ADA_24 is its only GPU pool. Add a second choice to gpu.pools."]
    assert ("Endpoint", "minilm") in account.declared


def test_wrong_settings_end_the_program_with_all_of_them(account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path) -> None:
    with pytest.raises(pulumi.RunError, match=r"Pulumi\.dev\.yaml: 2 settings are not usable:"):
        run_program(account, monkeypatch, repo, {**config(store={"bucket": "b"}), "nightbatch:colour": '"red"'})
    assert account.declared == set()


def test_secrets_come_from_their_own_map_which_must_be_encrypted(account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path) -> None:
    given = {**config(endpoints=[endpoint(secretEnv=["HF_TOKEN"])]), "nightbatch:secrets": {"HF_TOKEN": SECRET}}
    with pytest.raises(pulumi.RunError, match="nightbatch:secrets: is in the stack file in clear text") as caught:
        run_program(account, monkeypatch, repo, given)
    assert SECRET not in str(caught.value)
    run_program(account, monkeypatch, repo, given, secret_keys=("nightbatch:secrets",))
    assert secret_env(account)["HF_TOKEN"] == SECRET
    with pytest.raises(pulumi.RunError, match="nightbatch:endpoints: holds a secret"):
        run_program(account, monkeypatch, repo, given, secret_keys=("nightbatch:secrets", "nightbatch:endpoints"))


def test_a_preview_of_a_new_stack_knows_no_ids_and_still_passes(
    account: Account, monkeypatch: pytest.MonkeyPatch, repo: Path, warnings: list[str]
) -> None:
    run_program(account, monkeypatch, repo, config(volumes=[VOLUME], store={"volume": "models"}), preview=True)
    assert ("Endpoint", "minilm") in account.declared
