"""infra/provider: the plugin: Pulumi's provider protocol over gRPC. The only module of it that imports pulumi.

It implements the protocol's service itself, over the message classes of the pulumi package (pinned in locks/infra.lock), instead of
`pulumi.provider.experimental.Provider`: that one drops the old inputs of a diff and an update, shows errors as tracebacks, and has no way
to say that a resource exists although its create failed. Everything that decides stands in driver.py and resources/, without gRPC.

Stdout belongs to the engine: one line, the port. A preview calls Check, Diff and Create or Update with `preview`: none of them connects.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from contract.errors import InfrastructureError, UsageError
from infra.provider import codec
from infra.provider.driver import Driver, PartlyDone, Patience, Severity, Sleep, described
from infra.provider.hide import hider
from infra.provider.resources import KINDS, VERSION
from infra.provider.resources.fields import UNKNOWN, Change, Failure, Json, Kind, shaped, tops, with_chosen
from infra.provider.resources.functions import FUNCTIONS
from infra.provider.schema import CONFIG, schema_json

MAX_MESSAGE: Final = 400 << 20
"""Bytes, as Pulumi's own plugins have it."""
PARENT_S: Final = 1.0
"""How often the plugin looks whether the engine still lives: a killed engine kills nobody."""
DEADLINE_S: Final = 180.0
"""For one REST call with its repetitions: above the longest Retry-After that was seen (60 s)."""
SENSITIVE: Final = re.compile(r"(^|_)(KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|$)", re.IGNORECASE)
REFERENCE: Final = re.compile(r"\s*\{\{\s*RUNPOD_SECRET_\w+\s*\}\}\s*")
"""RunPod fills in its own secret: the text is no secret."""
API_KEY_ENV: Final = "RUNPOD_API_KEY"
ID: Final = "__id"
"""Of a state, beside the outputs: the id once more. The engine hands over whatever id the state says, and a delete would follow it: an id
that a hand has written there is told by this one. Pulumi shows no names that begin so."""
ClientFactory = Callable[[Mapping[str, Any], Sleep], Any]
"""From the provider's configuration, and how to wait."""
Call = Callable[[Any, Any, Any], Awaitable[Any]]
_hide: ContextVar[Callable[[str], str]] = ContextVar("_hide")
"""Of the call that is being answered: keeps secrets out of a text."""


def told(call: Call) -> Call:
    """A call of the engine. Whatever error ends it, the engine is told in a sentence, without a secret in it and without a traceback."""

    @functools.wraps(call)
    async def answered(self: Servicer, request: Any, context: Any) -> Any:
        _hide.set(hider(self._own_secrets()))
        try:
            _hide.set(self.hider_for(request))
            return await call(self, request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except PartlyDone as error:
            message = _hide.get()(str(error))
            failed = provider_pb2.ErrorResourceInitFailed(id=error.id, properties=_partly(request, error), reasons=[message])
            status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=message)
            status.details.add().Pack(failed)
            metadata = (("grpc-status-details-bin", status.SerializeToString()),)
            await context.abort(grpc.StatusCode.UNKNOWN, message, trailing_metadata=metadata)
        except Exception as error:
            await context.abort(grpc.StatusCode.UNKNOWN, _hide.get()(described(error)))

    return answered


def make_client(config: Mapping[str, Any], sleep: Sleep) -> Any:
    """The REST client of a configured provider; the key is read now, not before: a preview needs none."""
    from infra.provider.client import RestClient, clean_base_url

    variable = config.get("apiKeyEnv") or API_KEY_ENV
    key = config.get("apiKey") or os.environ.get(variable) or ""
    if not key:
        raise UsageError("an API key is needed.", where="runpodv2 provider", fix=f"Set {variable}, or apiKey of the provider.")
    return RestClient(clean_base_url(config.get("baseUrl")), key, deadline_s=DEADLINE_S, sleep=sleep)


class Servicer(provider_pb2_grpc.ResourceProviderServicer):
    """One configured provider: one account."""

    def __init__(self, engine_address: str = "", *, client: ClientFactory = make_client, patience: Patience | None = None) -> None:
        self._engine_address = engine_address
        self._engine: Any = None
        self._config: dict[str, Any] = {}
        self._unknown: tuple[str, ...] = ("the configuration",)
        """What of the configuration is not known, as in the preview of a stack that makes the account's key itself. Never guessed: the
        environment's key may be of another account."""
        self._declared: set[str] = set()
        """Secrets of the program, as far as it has declared anything. An error about one resource may quote another's."""
        self._driver = Driver(lambda sleep: client(self._known_config(), sleep), log=self.log, patience=patience)

    async def close(self) -> None:
        """Connections, to RunPod and to the engine."""
        await self._driver.close()
        if self._engine is not None:
            await self._engine[0].close()

    async def log(self, severity: Severity, message: str, urn: str) -> None:
        """A line beside the resource in the CLI. That it cannot be shown stops nothing."""
        message = self.clean(message)
        if not self._engine_address:
            return
        if self._engine is None:
            channel = grpc.aio.insecure_channel(self._engine_address)
            self._engine = (channel, engine_pb2_grpc.EngineStub(channel))
        level = {"info": engine_pb2.INFO, "warning": engine_pb2.WARNING}[severity]
        try:
            await self._engine[1].Log(engine_pb2.LogRequest(severity=level, message=message, urn=urn), timeout=5.0)
        except grpc.RpcError as error:
            print(f"runpodv2: {message} (the engine did not take it: {error.code()})", file=sys.stderr)

    def hider_for(self, request: Any) -> Callable[[str], str]:
        """Hides the secrets that stand in a request, the program's other ones, and the account's key."""
        texts = {text for name, text in getattr(request, "variables", {}).items() if SENSITIVE.search(_snake(name))}
        for values, paths in structs_of(request):
            texts |= codec.secret_texts(values, paths)
        return hider(texts | self._own_secrets())

    def clean(self, text: str) -> str:
        """A text that leaves the provider, in a call or beside one."""
        return _hide.get(hider(self._own_secrets()))(text)

    def _own_secrets(self) -> set[str]:
        key = os.environ.get(self._config.get("apiKeyEnv") or API_KEY_ENV, "")
        return {str(self._config.get("apiKey") or ""), key.strip(), *self._declared}

    def _known_config(self) -> Mapping[str, Any]:
        if self._unknown:
            raise UsageError(
                f"{' and '.join(self._unknown)} of the provider cannot be known yet, so RunPod was not asked.",
                where="runpodv2 provider",
                fix="It is when `pulumi up` has made what it comes from.",
            )
        return self._config

    # --- the plugin ----------------------------------------------------------------------------------------------------------------

    async def Handshake(self, request: Any, context: Any) -> Any:
        self._engine_address = request.engine_address or self._engine_address
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True, accept_resources=True, accept_outputs=False)

    async def Attach(self, request: Any, context: Any) -> Any:
        self._engine_address = request.address
        return empty_pb2.Empty()

    async def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    async def GetSchema(self, request: Any, context: Any) -> Any:
        return provider_pb2.GetSchemaResponse(schema=schema_json())

    async def GetMapping(self, request: Any, context: Any) -> Any:
        return provider_pb2.GetMappingResponse()

    async def Cancel(self, request: Any, context: Any) -> Any:
        self._driver.cancel()
        return empty_pb2.Empty()

    # --- configuration -------------------------------------------------------------------------------------------------------------

    @told
    async def CheckConfig(self, request: Any, context: Any) -> Any:
        values, secrets = codec.decode(request.news)
        failures = check_config(values)
        return _checked(values, secrets | {("apiKey",)} if "apiKey" in values else secrets, failures)

    @told
    async def DiffConfig(self, request: Any, context: Any) -> Any:
        """Another key or URL replaces nothing: the endpoints stay where they are."""
        old, _ = codec.decode(request.old_inputs if request.HasField("old_inputs") else request.olds)
        new, _ = codec.decode(request.news)
        changed = [f.name for f in CONFIG if old.get(f.name) != new.get(f.name)]
        return _diffed({name: Change("update") for name in changed})

    @told
    async def Configure(self, request: Any, context: Any) -> Any:
        values, _ = codec.decode(request.args)
        for name, text in request.variables.items():
            values.setdefault(name.rsplit(":", 1)[-1], UNKNOWN if text == codec.UNKNOWN_TEXT else text)
        self._unknown = tuple(f.name for f in CONFIG if values.get(f.name) is UNKNOWN)
        self._config = {f.name: values[f.name] for f in CONFIG if isinstance(values.get(f.name), str) and values[f.name]}
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True, acceptResources=True, acceptOutputs=False)

    # --- resources -----------------------------------------------------------------------------------------------------------------

    @told
    async def Check(self, request: Any, context: Any) -> Any:
        kind = _kind(request)
        values, secrets = codec.decode(request.news)
        if request.olds.fields:
            self._driver.in_state(request.urn)
        clean, failures = kind.check(values)
        paths = secret_paths(kind, clean, secrets)
        self._declared |= codec.secret_texts(values, secret_paths(kind, values, secrets))
        return _checked(clean, paths, [_shown(kind, f, secrets) for f in failures])

    @told
    async def Diff(self, request: Any, context: Any) -> Any:
        kind = _kind(request)
        self._driver.in_state(request.urn, request.id)
        outputs, _ = codec.decode(request.olds)
        old, old_secrets = codec.decode(request.old_inputs) if request.HasField("old_inputs") else (outputs, codec.NONE)
        not_edited(kind, request, outputs, old)
        new, new_secrets = codec.decode(request.news)
        new = shaped(kind.inputs, new)[0]  # after a refresh the engine asks with old and new exchanged
        changes = dict(kind.diff(with_chosen(kind.inputs, old, outputs), new))
        for path in new_secrets - old_secrets:  # now a secret: the state must not go on holding it in clear
            if not codec.covers(old_secrets, path) and _get(old, path) is not None:
                changes.setdefault(_text(path), Change("update"))
        return _diffed(changes)

    @told
    async def Create(self, request: Any, context: Any) -> Any:
        kind = _kind(request)
        inputs, secrets = codec.decode(request.properties)
        if request.preview:
            outputs = kind.preview_outputs(inputs, None, None)
            return provider_pb2.CreateResponse(id="", properties=codec.encode(outputs, secret_paths(kind, outputs, secrets, inputs)))
        resource_id, outputs = await _in_time(self._driver.create(kind, request.urn, inputs), request.timeout)
        properties = codec.encode({**outputs, ID: resource_id}, secret_paths(kind, outputs, secrets, inputs))
        return provider_pb2.CreateResponse(id=resource_id, properties=properties)

    @told
    async def Read(self, request: Any, context: Any) -> Any:
        kind = _kind(request)
        old, secrets = codec.decode(request.inputs)
        state, state_secrets = codec.decode(request.properties)
        importing = not old and not state
        own_id(request, state)
        old, state = shaped(kind.inputs, old)[0], shaped(kind.inputs, state)[0]
        resource_id, outputs, inputs = await self._driver.read(kind, request.urn, request.id, None if importing else (old or state))
        secrets = secrets | state_secrets
        if not resource_id:
            return provider_pb2.ReadResponse(id="")
        self._driver.in_state(request.urn, resource_id)
        return provider_pb2.ReadResponse(
            id=resource_id,
            properties=codec.encode({**outputs, ID: resource_id}, secret_paths(kind, outputs, secrets, old)),
            inputs=codec.encode(inputs, secret_paths(kind, inputs, secrets, old)),
        )

    @told
    async def Update(self, request: Any, context: Any) -> Any:
        kind = _kind(request)
        state, _ = codec.decode(request.olds)
        old = codec.decode(request.old_inputs)[0] if request.HasField("old_inputs") else state
        new, secrets = codec.decode(request.news)
        not_edited(kind, request, state, old)
        if request.preview:
            outputs = kind.preview_outputs(new, old, state)
            properties = codec.encode({**outputs, ID: request.id}, secret_paths(kind, outputs, secrets, new))
            return provider_pb2.UpdateResponse(properties=properties)
        updating = self._driver.update(kind, request.urn, request.id, old, new, old_outputs=state, timeout_s=request.timeout)
        outputs = await _in_time(updating, request.timeout)
        properties = codec.encode({**outputs, ID: request.id}, secret_paths(kind, outputs, secrets, new))
        return provider_pb2.UpdateResponse(properties=properties)

    @told
    async def Delete(self, request: Any, context: Any) -> Any:
        kind = _kind(request)
        state, _ = codec.decode(request.properties)
        own_id(request, state)
        old = codec.decode(request.old_inputs)[0] if request.HasField("old_inputs") else state
        await _in_time(self._driver.delete(kind, request.urn, request.id, old, timeout_s=request.timeout), request.timeout)
        return empty_pb2.Empty()

    @told
    async def Invoke(self, request: Any, context: Any) -> Any:
        args, _ = codec.decode(request.args)
        function = FUNCTIONS.get(request.tok)
        if function is None:
            raise UsageError(f"{request.tok} is no function of runpodv2; there are {', '.join(FUNCTIONS)}.")
        clean, failures = function.check(args)
        if failures:
            return provider_pb2.InvokeResponse(failures=[_failure(f) for f in failures])
        if self._unknown:
            return provider_pb2.InvokeResponse(**{"return": codec.encode({f.name: UNKNOWN for f in function.outputs})})
        result = await self._driver.invoke(request.tok, clean)
        secrets = {("env",)} if "env" in result else set()
        return provider_pb2.InvokeResponse(**{"return": codec.encode(result, secrets)})


# --- pure parts ----------------------------------------------------------------------------------------------------------------------


def check_config(values: Mapping[str, Any]) -> list[Failure]:
    """What is wrong with the provider's own configuration. The engine adds members of its own (version, ...): they are let through."""
    failures = []
    for f in CONFIG:
        value = values.get(f.name)
        if value is None or value is UNKNOWN:
            continue
        if not isinstance(value, str) or not value:
            failures.append(Failure("", f"{f.name} must be a string that is not empty"))
        elif f.name == "baseUrl":
            from infra.provider.client import clean_base_url

            try:
                clean_base_url(value)
            except UsageError:
                failures.append(Failure("baseUrl", "baseUrl must be a URL like https://api.runpod.io"))
    if values.get("apiKey") is not None and values.get("apiKeyEnv") is not None:
        failures.append(Failure("apiKeyEnv", "apiKey and apiKeyEnv exclude each other"))
    return failures


def secret_paths(
    kind: Kind, values: Mapping[str, Any], secrets: codec.Paths, declared: Mapping[str, Any] | None = None
) -> codec.Paths:
    """Where secrets stand in `values`: where they stood in what came in; what the table says; env by name, and, where `declared` inputs are
    given, every variable that they do not have: it came from a template or a console, and nobody said that it is none."""
    paths = {path for path in secrets if _get(values, path) is not None}
    paths |= {(name,) for name in kind.secret_inputs if values.get(name) is not None}
    env = values.get("env")
    if isinstance(env, Mapping):
        ours = (declared or {}).get("env") or {}
        for name, value in env.items():
            foreign = declared is not None and name not in ours
            if foreign or (SENSITIVE.search(name) and not (isinstance(value, str) and REFERENCE.fullmatch(value))):
                paths.add(("env", name))
    if "contentHash" in values and any(path[0] == "env" for path in paths):
        paths.add(("contentHash",))
    return frozenset(paths)


def _get(values: Any, path: codec.Path) -> Any:
    for step in path:
        if isinstance(values, Mapping):
            values = values.get(step)
        elif isinstance(values, list) and isinstance(step, int) and step < len(values):
            values = values[step]
        else:
            return None
    return values


def _text(path: codec.Path) -> str:
    """A path as Pulumi writes it."""
    from infra.provider.resources.fields import join

    text = ""
    for step in path:
        text = f"{text}[{step}]" if isinstance(step, int) else join(text, step)
    return text


def _shown(kind: Kind, failure: Failure, secrets: codec.Paths) -> Failure:
    """The engine prints the value of a top-level property beside the reason: not of one that may hold a secret."""
    secret = {*kind.secret_inputs, "env", *(path[0] for path in secrets)}
    return Failure("", failure.reason) if failure.property in secret else failure


def _failure(failure: Failure) -> Any:
    hide = _hide.get()
    return provider_pb2.CheckFailure(property=hide(failure.property), reason=hide(failure.reason))


def _checked(values: Mapping[str, Any], secrets: codec.Paths, failures: list[Failure]) -> Any:
    return provider_pb2.CheckResponse(inputs=codec.encode(values, secrets), failures=[_failure(f) for f in failures])


def _diffed(changes: Mapping[str, Change]) -> Any:
    detailed = {}
    for path, change in changes.items():
        kind = f"{change.kind.upper()}{'_REPLACE' if change.replace else ''}"
        detailed[path] = provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.Kind.Value(kind), inputDiff=True)
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME if changes else provider_pb2.DiffResponse.DIFF_NONE,
        diffs=sorted(tops(changes)),
        replaces=sorted(tops({path: change for path, change in changes.items() if change.replace})),
        detailedDiff=detailed,
        hasDetailedDiff=True,
    )


def _token(request: Any) -> str:
    """The type of a resource inside of a component carries its parents' types before it."""
    parts = request.urn.split("::")
    return str(request.type or (parts[2] if len(parts) > 2 else "")).rsplit("$", 1)[-1]


def _kind(request: Any) -> Kind:
    """The resource's table."""
    token = _token(request)
    if token not in KINDS:
        raise UsageError(f"{token or request.urn} is no resource of runpodv2; there are {', '.join(KINDS)}.")
    return KINDS[token]


def own_id(request: Any, state: Mapping[str, Any]) -> None:
    """Raises UsageError where the state's id is not the one that RunPod gave: whatever has that id is somebody else's."""
    given = state.get(ID)
    if isinstance(given, str) and given != request.id:
        raise UsageError(
            f"the state says that its id is {request.id}, but {given} is what it was made or imported with. RunPod was asked nothing.",
            where=_name(request),
            fix=f"Put {given} back into the state (`pulumi stack export`, then `pulumi stack import`), or take the resource out of it "
            f"(`pulumi state delete`) and import the right one (`pulumi import`).",
        )


def not_edited(kind: Kind, request: Any, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Raises UsageError for a state that only a hand can have written."""
    own_id(request, outputs)
    wrong = sorted({*shaped(kind.inputs, inputs)[1], *shaped(kind.inputs, outputs)[1]})
    if wrong:
        raise UsageError(
            f"the state holds {', '.join(wrong)} in a form that it cannot have.",
            where=_name(request),
            fix="`pulumi refresh` writes down what is live; then go on.",
        )


def _name(request: Any) -> str:
    return str(request.urn).rsplit("::", 1)[-1]


def structs_of(request: Any) -> Iterator[tuple[Json, codec.Paths]]:
    """Every set of values that a request brings, and where secrets stand in it: where they are marked, and where a name says so."""
    kind = KINDS.get(_token(request)) if hasattr(request, "urn") else None
    for _, struct in request.ListFields():
        if isinstance(struct, struct_pb2.Struct):
            values, secrets = codec.decode(struct)
            named = {(name,) for name in values if SENSITIVE.search(_snake(name))}
            yield values, (secret_paths(kind, values, secrets) if kind is not None else secrets) | named


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rsplit(":", 1)[-1])


def _partly(request: Any, error: PartlyDone) -> Any:
    """The state of what is not yet what was asked for, with its secrets as such."""
    kind = _kind(request)
    declared, _ = codec.decode(request.news if isinstance(request, provider_pb2.UpdateRequest) else request.properties)
    secrets = codec.NONE.union(*(paths for _, paths in structs_of(request)))
    return codec.encode({**error.outputs, ID: error.id}, secret_paths(kind, error.outputs, secrets, declared))


async def _in_time(work: Awaitable[Any], seconds: float) -> Any:
    """`work` within customTimeouts, where they are set."""
    try:
        return await asyncio.wait_for(work, seconds if seconds > 0 else None)
    except TimeoutError:
        raise InfrastructureError("it took longer than the resource's customTimeouts allow.") from None


# --- the process ---------------------------------------------------------------------------------------------------------------------


class Filtered(logging.Formatter):
    """Of the log of the plugin's libraries, which the engine shows: what grpc and asyncio say of an error quotes it."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        super().__init__("%(name)s: %(message)s")
        self._clean = clean

    def format(self, record: logging.LogRecord) -> str:
        return self._clean(super().format(record))


def log_to_stderr(servicer: Servicer) -> None:
    """Warnings and worse, without secrets."""
    handler = logging.StreamHandler()
    handler.setFormatter(Filtered(servicer.clean))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


async def serve(engine_address: str, *, parent: int | None = None) -> None:
    """Serve on a free port, say it on stdout, and end with the engine."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE)])
    servicer = Servicer(engine_address)
    log_to_stderr(servicer)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is how the engine ends a plugin, which has a process group of its own
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sys.stdout.write(f"{port}\n")  # from now on it may be ended
    sys.stdout.flush()
    try:
        while not stop.is_set() and (parent is None or os.getppid() == parent):
            try:
                await asyncio.wait_for(stop.wait(), PARENT_S)
            except TimeoutError:
                continue
    finally:
        await server.stop(0.5)
        await servicer.close()


def main(args: list[str] | None = None) -> None:
    """`pulumi-resource-runpodv2 [flags] ENGINE_ADDRESS`, as the engine starts it."""
    args = sys.argv[1:] if args is None else args
    address = next((arg for arg in args if not arg.startswith("-")), "")
    asyncio.run(serve(address, parent=os.getppid()))


