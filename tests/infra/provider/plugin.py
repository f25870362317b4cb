"""tests: the engine's side of the provider protocol, as small as it can be: plain dicts in, plain dicts out, over real gRPC."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from pulumi.runtime.proto import engine_pb2_grpc, provider_pb2, provider_pb2_grpc, status_pb2

from infra.provider import codec
from infra.provider.client import RestClient
from infra.provider.driver import Patience, Sleep
from infra.provider.server import ClientFactory, Servicer
from tests.infra.provider.cloud import KEY, Cloud

Json = dict[str, Any]
QUICK = Patience(looks=(0.0, 0.05), refused=0.3, poll=0.02, poll_slow=0.1, settled=0.1, back=(0.0, 0.2, 0.4))


def urn_of(token: str, name: str, stack: str = "dev") -> str:
    return f"urn:pulumi:{stack}::night::nightbatch:infra:Platform${token}::{name}"


class Least(random.Random):
    """The shortest of all jitters."""

    def uniform(self, a: float, b: float) -> float:
        return a


@dataclass(frozen=True)
class Secret:
    """A value that the program marked."""

    value: Any


class Failed(Exception):
    """An error as the engine gets it: message, and what exists all the same."""

    def __init__(self, message: str, id: str = "", properties: Json | None = None) -> None:
        super().__init__(message)
        self.id = id
        self.properties = properties or {}


def pack(values: Mapping[str, Any]) -> Any:
    """A struct, with `Secret` wrapped as the engine does."""
    plain: Json = {}
    secrets: set[codec.Path] = set()

    def walk(value: Any, path: codec.Path) -> Any:
        if isinstance(value, Secret):
            secrets.add(path)
            return walk(value.value, path)
        if isinstance(value, Mapping):
            return {k: walk(v, (*path, k)) for k, v in value.items()}
        return value

    plain = {k: walk(v, (k,)) for k, v in values.items()}
    return codec.encode(plain, secrets)


@dataclass
class Engine:
    """Calls of the engine on one plugin."""

    stub: Any
    logs: list[tuple[str, str]] = field(default_factory=list)

    async def _call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self.stub, method)(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            for name, value in error.trailing_metadata() or ():
                if name == "grpc-status-details-bin":
                    status = status_pb2.Status.FromString(value)
                    failed = provider_pb2.ErrorResourceInitFailed()
                    if status.details and status.details[0].Unpack(failed):
                        raise Failed(str(error.details()), failed.id, codec.decode(failed.properties)[0]) from None
            raise Failed(str(error.details())) from None

    async def configure(self, **config: Any) -> Any:
        return await self._call("Configure", provider_pb2.ConfigureRequest(args=pack(config), acceptSecrets=True, acceptResources=True))

    async def configure_variables(self, variables: Mapping[str, str]) -> Any:
        """As engines before provider configuration had types."""
        return await self._call("Configure", provider_pb2.ConfigureRequest(variables=variables, acceptSecrets=True))

    async def schema(self) -> Json:
        answer = await self._call("GetSchema", provider_pb2.GetSchemaRequest(version=0))
        result: Json = json.loads(answer.schema)
        return result

    async def check(self, token: str, name: str, news: Mapping[str, Any], olds: Json | None = None) -> tuple[Any, dict[str, str]]:
        """The struct of checked inputs, and failures."""
        request = provider_pb2.CheckRequest(urn=urn_of(token, name), news=pack(news), olds=pack(olds or {}))
        answer = await self._call("Check", request)
        return answer.inputs, {f.property: f.reason for f in answer.failures}

    async def diff(self, token: str, name: str, id: str, old: Any, state: Any, new: Any) -> Any:
        request = provider_pb2.DiffRequest(urn=urn_of(token, name), id=id, olds=_struct(state), old_inputs=_struct(old), news=_struct(new))
        return await self._call("Diff", request)

    async def create(self, token: str, name: str, inputs: Any, *, preview: bool = False, seconds: float = 0) -> tuple[str, Any]:
        request = provider_pb2.CreateRequest(urn=urn_of(token, name), properties=_struct(inputs), preview=preview, timeout=seconds)
        answer = await self._call("Create", request)
        return answer.id, answer.properties

    async def read(self, token: str, name: str, id: str, inputs: Any = None, state: Any = None) -> tuple[str, Any, Any]:
        """Id, state, inputs."""
        request = provider_pb2.ReadRequest(urn=urn_of(token, name), id=id, inputs=_struct(inputs or {}), properties=_struct(state or {}))
        answer = await self._call("Read", request)
        return answer.id, answer.properties, answer.inputs

    async def update(self, token: str, name: str, id: str, old: Any, state: Any, new: Any, *, preview: bool = False) -> Any:
        request = provider_pb2.UpdateRequest(
            urn=urn_of(token, name), id=id, olds=_struct(state), old_inputs=_struct(old), news=_struct(new), preview=preview
        )
        return (await self._call("Update", request)).properties

    async def delete(self, token: str, name: str, id: str, inputs: Any, state: Any) -> None:
        request = provider_pb2.DeleteRequest(urn=urn_of(token, name), id=id, properties=_struct(state), old_inputs=_struct(inputs))
        await self._call("Delete", request)

    async def invoke(self, token: str, **args: Any) -> tuple[Json, dict[str, str], codec.Paths]:
        answer = await self._call("Invoke", provider_pb2.InvokeRequest(tok=token, args=pack(args)))
        result, secrets = codec.decode(getattr(answer, "return"))
        return result, {f.property: f.reason for f in answer.failures}, secrets

    async def cancel(self) -> None:
        await self._call("Cancel", empty_pb2.Empty())


def _struct(values: Any) -> Any:
    return pack(values) if isinstance(values, Mapping) and not hasattr(values, "fields") else values


def plain(struct: Any) -> Json:
    return codec.decode(struct)[0]


def secrets_of(struct: Any) -> codec.Paths:
    return codec.decode(struct)[1]


class _Log(engine_pb2_grpc.EngineServicer):
    """The engine's own service, as far as a provider uses it."""

    def __init__(self, logs: list[tuple[str, str]]) -> None:
        self._logs = logs

    async def Log(self, request: Any, context: Any) -> Any:
        self._logs.append((request.urn, request.message))
        return empty_pb2.Empty()


@asynccontextmanager
async def plugged(
    cloud: Cloud,
    *,
    deadline_s: float = 4.0,
    attempt_s: float | None = None,
    key: str | None = KEY,
    client: ClientFactory | None = None,
    configured: bool = True,
) -> AsyncIterator[Engine]:
    """A configured plugin in this process, and the engine's logs. Each is a new process as far as the provider can tell."""
    # Long enough for an answer on a busy machine, where a request that is sent twice would be counted.
    attempt = attempt_s if attempt_s is not None else 0.6 if deadline_s >= 1 else 0.15

    def connected(config: Mapping[str, Any], sleep: Sleep) -> RestClient:
        url, own = config.get("baseUrl") or cloud.base_url, config.get("apiKey") or key
        return RestClient(url, own, deadline_s=deadline_s, attempt_s=attempt, rng=Least(), sleep=sleep)

    logs: list[tuple[str, str]] = []
    engine_server, server = grpc.aio.server(), grpc.aio.server()
    engine_pb2_grpc.add_EngineServicer_to_server(_Log(logs), engine_server)
    engine_port = engine_server.add_insecure_port("127.0.0.1:0")
    await engine_server.start()
    servicer = Servicer(f"127.0.0.1:{engine_port}", client=client or connected, patience=QUICK)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    try:
        engine = Engine(provider_pb2_grpc.ResourceProviderStub(channel), logs)
        if configured:
            await engine.configure()
        yield engine
    finally:
        await channel.close()
        await server.stop(None)
        await servicer.close()
        await engine_server.stop(None)
        await asyncio.sleep(0)
