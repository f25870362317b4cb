"""The plugin as a process, as the engine starts it; and the SDK, as a program uses it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pulumi
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime import rpc
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from infra.provider import codec, sdk, sdkgen
from infra.provider.resources import KINDS
from tests.emulator.kit import alive

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def process(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    plugin = subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    try:
        yield plugin
    finally:
        plugin.kill()
        plugin.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_plugin_says_its_port_and_nothing_else_and_answers_there(number: signal.Signals) -> None:
    with process(sys.executable, "-m", "infra.provider", "--logtostderr", "127.0.0.1:1") as plugin:
        assert plugin.stdout is not None
        port = int(plugin.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = provider_pb2_grpc.ResourceProviderStub(channel)
            assert stub.GetPluginInfo(empty_pb2.Empty(), timeout=10).version
            assert stub.Handshake(provider_pb2.ProviderHandshakeRequest(engine_address="x"), timeout=10).accept_secrets
            assert "Endpoint" in stub.GetSchema(provider_pb2.GetSchemaRequest(), timeout=10).schema
        plugin.send_signal(number)  # SIGINT is the engine's; it waits seconds for a plugin that does not obey
        out, err = plugin.communicate(timeout=10)
    assert (out, err, plugin.returncode) == ("", "", 0)


def test_the_plugin_ends_when_its_engine_is_killed() -> None:
    starter = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'infra.provider', 'x']);"
        "print(p.pid, flush=True); p.wait()"
    )
    with process(sys.executable, "-c", starter, env={**os.environ, "PYTHONPATH": str(ROOT)}) as engine:
        assert engine.stdout is not None
        pid = int(engine.stdout.readline())
        assert int(engine.stdout.readline()) > 0  # its port: it serves
        engine.kill()
        engine.wait()
        deadline = time.monotonic() + 20
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(pid)


def test_the_plugin_starts_without_http() -> None:
    """A preview makes no request: what only requests need is loaded by the first."""
    code = "import sys, infra.provider.server; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL).returncode == 0


def test_what_the_plugins_libraries_log_passes_the_filter_too() -> None:
    code = (
        "import asyncio, logging\n"
        "from infra.provider.server import Servicer, log_to_stderr\n"
        "log_to_stderr(Servicer())\n"
        "async def fails(): raise ValueError('of rp-key-never-shown')\n"
        "async def main():\n"
        "    task = asyncio.create_task(fails()); await asyncio.sleep(0); del task\n"
        "asyncio.run(main())\n"
        "logging.getLogger('grpc').error('boom: %s', 'rp-key-never-shown')\n"
    )
    env = {**os.environ, "RUNPOD_API_KEY": "rp-key-never-shown"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0
    assert "ValueError: of [secret]" in done.stderr
    assert "grpc: boom: [secret]" in done.stderr
    assert "never-shown" not in done.stderr


def test_the_signatures_are_pulumis() -> None:
    ours = (codec.SIGNATURE, codec.SECRET, codec.OUTPUT, codec.REFERENCE, codec.UNKNOWN_TEXT)
    theirs = (rpc._special_sig_key, rpc._special_secret_sig, rpc._special_output_value_sig, rpc._special_resource_sig, rpc.UNKNOWN)
    assert ours == theirs


# --- the SDK -------------------------------------------------------------------------------------------------------------------------


def test_the_sdk_is_what_the_tables_say() -> None:
    assert (ROOT / "infra/provider/sdk.py").read_text(encoding="utf-8") == sdkgen.render(), (
        "run: python -m infra.provider.sdkgen > infra/provider/sdk.py"
    )


class Mocks(pulumi.runtime.Mocks):
    def __init__(self) -> None:
        self.made: list[Any] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.made.append(args)
        return f"{args.name}-id", {**args.inputs, "requestUrls": {"run": "https://x/run"}, "createdAt": "now", "contentHash": "h"}

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        gpu = {"id": "g", "name": "g", "pool": "ADA_24", "manufacturer": "NVIDIA", "memory": 24, "secure": True, "community": True}
        return {"gpus": [{**gpu, "price": {"secure": 1, "community": 1, "serverless": 1.5}, "maxCount": {"secure": 1, "community": 1}}]}


@pytest.fixture
def mocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mocks]:
    """With every event loop closed at the end, because Pulumi makes one in each thread and leaves it."""
    mocks = Mocks()
    loops: list[asyncio.AbstractEventLoop] = []
    make = asyncio.new_event_loop

    def kept() -> asyncio.AbstractEventLoop:
        loops.append(make())
        return loops[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", kept)
    asyncio.set_event_loop(kept())
    pulumi.runtime.set_mocks(mocks, project="night", stack="dev", preview=False)
    yield mocks
    pulumi.runtime.settings.reset_options()
    for loop in loops:
        loop.close()
    asyncio.set_event_loop(None)


def test_a_program_speaks_snake_case_and_the_provider_hears_rest_v2(mocks: Mocks) -> None:
    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def program() -> Any:
        endpoint = sdk.Endpoint(
            "embed",
            name="embed",
            type="QUEUE",
            image="img@sha256:1",
            gpu=sdk.EndpointGpuArgs(pools=["ADA_24"], min_cuda_version="12.1"),
            scaling={"type": "QUEUE_DELAY", "queue_delay": 4},
            workers=sdk.EndpointWorkersArgs(max=5, idle_timeout=30),
            data_center_ids=["EU-RO-1"],
            drain_on_delete=True,
        )

        def same(got: Any, wanted: Any) -> None:
            assert got == wanted

        return pulumi.Output.all(
            endpoint.gpu.apply(lambda gpu: same(gpu and (gpu.pools, gpu.min_cuda_version), (["ADA_24"], "12.1"))),
            endpoint.workers.apply(lambda workers: same(workers and (workers.max, workers.idle_timeout), (5, 30))),
            endpoint.request_urls.apply(lambda urls: same(urls, {"run": "https://x/run"})),
            endpoint.data_center_ids.apply(lambda ids: same(ids, ["EU-RO-1"])),
            endpoint.drain_on_delete.apply(lambda drain: same(drain, True)),
        )

    program()
    [made] = mocks.made
    assert made.typ == "runpodv2:index:Endpoint"
    assert made.inputs["gpu"] == {"pools": ["ADA_24"], "minCudaVersion": "12.1"}
    assert made.inputs["scaling"] == {"type": "QUEUE_DELAY", "queueDelay": 4}
    assert made.inputs["workers"] == {"max": 5, "idleTimeout": 30}
    assert made.inputs["drainOnDelete"] is True
    assert "requestUrls" not in made.inputs


def test_a_password_is_a_secret_of_the_program_too(mocks: Mocks) -> None:
    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def program() -> Any:
        credential = sdk.RegistryCredential("hub", name="hub", username="me", password="hush")

        async def secret() -> None:
            assert await credential.password.is_secret()
            assert not await credential.username.is_secret()

        return pulumi.Output.from_input(secret())

    program()
    assert mocks.made[0].typ == "runpodv2:index:RegistryCredential"


def test_the_functions_give_typed_results(mocks: Mocks) -> None:
    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def program() -> Any:
        found = sdk.get_gpus(include_availability=True)
        assert found.gpus[0].price.serverless == 1.5
        assert found.gpus[0].pool == "ADA_24"
        return sdk.get_gpus_output().apply(lambda result: result.gpus[0].memory)

    program()


def test_every_resource_has_its_class_and_every_input_its_argument() -> None:
    for kind in KINDS.values():
        arguments = getattr(sdk, kind.title).__init__.__annotations__
        assert {sdkgen.snake(f.name) for f in kind.inputs} <= set(arguments)
