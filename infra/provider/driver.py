"""infra/provider: create, read, update and delete on REST v2, without pulumi: what the gRPC adapter calls. Touches RunPod by RestClient.

The rules that cost money when they are broken:

- A create is never repeated blindly. Before the first create of a process the account is listed once; after an answer that was lost it is
  listed again, and what is new and carries this resource's marker is it. Exactly one match is adopted; several are an error.
- An endpoint that an earlier, killed `up` made and Pulumi never heard of carries the marker too: the next create adopts it. Not when the
  resource exists in the state (a replacement), because then the match is the one that is to be replaced. `--target-replace` and taints
  show a provider nothing of the state before the old one is deleted (seen with 3.276): so what this process adopted, it does not delete.
- A strict rollout keeps its only note in the cloud: what is live. Every step compares live and wanted, so that whatever was interrupted is
  completed by the next `up`; and a failed one brings the workers back before it says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from contract.errors import InfrastructureError, NightbatchError, UsageError
from infra.provider.errors import NotFound, RestError, Unreachable
from infra.provider.hide import one_line
from infra.provider.resources import KINDS
from infra.provider.resources import endpoint as endpoints
from infra.provider.resources.endpoint import ENDPOINT, marked, marker_of
from infra.provider.resources.fields import Json, Kind, by_name, equal, live_value
from infra.provider.resources.functions import FUNCTIONS, shape

if TYPE_CHECKING:
    from infra.provider.client import RestClient

Severity = Literal["info", "warning"]
Sleep = Callable[[float], Awaitable[None]]
Log = Callable[[Severity, str, str], Awaitable[None]]
"""severity, message, URN: shown by the CLI beside the resource."""
LEFT_BEHIND: Final = (
    "it carries this resource's marker, as what an interrupted `pulumi up` made does, or what a stack of the same name has that is kept in "
    "another state backend: then both have it now, and either can delete it"
)
MAX_TEXT: Final = 600
"""Characters of an unforeseen error's own words in a message."""
BUSY: Final = ("running", "idle", "initializing")


@dataclass(frozen=True)
class Patience:
    """Seconds. `looks`: pauses before looking again for what a lost answer may have made; `refused`: how long a delete is repeated while
    RunPod says that something is bound to it; `poll`: between two looks at draining workers at first, growing to `poll_slow`, because the
    account's 60 requests a minute and 3000 an hour (the OpenAPI file's example) are for many endpoints that drain for an hour; `settled`:
    how long no worker may have been running before idle ones, which RunPod has yet to stop, count as stopped; `back`: pauses before trying
    to bring workers back, while RunPod says nothing at all: an endpoint at zero is worth more patience than a call has."""

    looks: tuple[float, ...] = (0.0, 1.0, 4.0, 10.0)
    refused: float = 60.0
    poll: float = 2.0
    poll_slow: float = 15.0
    settled: float = 10.0
    back: tuple[float, ...] = (0.0, 20.0, 40.0, 60.0)


class PartlyDone(InfrastructureError):
    """It exists (`id`), and is not yet what was asked for; `outputs` is what it is now. Pulumi keeps it, and the next up goes on."""

    def __init__(self, what: str, *, id: str, outputs: Json) -> None:
        super().__init__(what, fix="The next `pulumi up` goes on from here.")
        self.id = id
        self.outputs = outputs


class Stopped(InfrastructureError):
    """The engine asked to stop."""


def described(error: BaseException) -> str:
    """An error in one sentence, also one that nobody foresaw: what it was, and where, as its reporter needs it."""
    if isinstance(error, NightbatchError):
        return str(error)
    if isinstance(error, asyncio.CancelledError):
        return "it was given up"
    places = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(places[-1].filename)}:{places[-1].lineno}" if places else ""
    return f"{type(error).__name__}{place}: {one_line(str(error), MAX_TEXT)} This is a bug of the provider: please report it."


async def no_log(_severity: Severity, _message: str, _urn: str) -> None:
    """For callers without an engine."""


class Driver:
    """One account, for one run of the engine."""

    def __init__(
        self,
        client: Callable[[Sleep], RestClient],
        *,
        log: Log = no_log,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = client
        self._client: RestClient | None = None
        self._log = log
        self._patience = patience or Patience()
        self._clock = clock
        self._listed: dict[str, asyncio.Task[list[Json]]] = {}
        self._known: set[str] = set()
        """Ids that the state has, as far as this process has seen it."""
        self._existing: set[str] = set()
        """URNs that the state has."""
        self._adopted: set[str] = set()
        """Ids that were there before this process, and that it took over."""
        self._making: list[tuple[str, str]] = []
        """Creates on their way: token and body."""
        self._stop = asyncio.Event()

    # --- what the engine's other calls tell ----------------------------------------------------------------------------------------

    def in_state(self, urn: str, resource_id: str | None = None) -> None:
        """The state has this resource: a create of it is a replacement, and its id is nobody's to adopt."""
        self._existing.add(urn)
        if resource_id:
            self._known.add(resource_id)

    def cancel(self) -> None:
        """Stop waiting, for workers and for others."""
        self._stop.set()

    async def close(self) -> None:
        """End what nobody waits for any more, and the connections."""
        for task in self._listed.values():
            task.cancel()
        await asyncio.gather(*self._listed.values(), return_exceptions=True)
        if self._client is not None:
            await self._client.close()
            self._client = None

    @property
    def client(self) -> RestClient:
        if self._client is None:
            self._client = self._connect(self.pause)
        return self._client

    # --- create --------------------------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind, urn: str, inputs: Mapping[str, Any]) -> tuple[str, Json]:
        """Id and outputs. Raises PartlyDone where it exists and is not right."""
        marker = marker_of(urn)
        before = await self._before(kind)
        seen = {str(live.get("id")) for live in before}
        if kind is ENDPOINT and urn not in self._existing:
            orphans = [live for live in before if marked(live, marker) and live.get("id") not in self._known]
            adopted = await self._adopt_one(kind, urn, inputs, marker, orphans, LEFT_BEHIND)
            if adopted is not None:
                self._adopted.add(adopted[0])
                return adopted
        body = kind.create_body(inputs, marker)
        mark = (kind.token, json.dumps(body, sort_keys=True))
        self._making.append(mark)
        try:
            live, lost, repeated = await self._post(kind, body, marker, seen, mark)
            if lost:
                adopted = await self._adopt_one(kind, urn, inputs, marker, [live], "the answer to its create was lost")
                if adopted is not None:
                    return adopted
                raise InfrastructureError("was made, and was gone before it could be read.", where=kind.path)
            self._known.add(str(live["id"]))
        finally:
            self._making.remove(mark)
        try:
            await self._warn_of_difference(kind, urn, live, inputs)
            if repeated:
                await self._warn_of_twins(kind, urn, live, marker, seen)
            return str(live["id"]), kind.outputs(live, inputs)
        except Exception as error:  # whatever it was: it exists, and its id must reach the state
            what = f"{live['id']} was made, and then something went wrong: {described(error)}"
            raise PartlyDone(what, id=str(live["id"]), outputs=dict(inputs)) from error

    async def _before(self, kind: Kind) -> list[Json]:
        """What the account had before this process made anything of this kind: one request, shared by all creates."""
        task = self._listed.get(kind.token)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._listed[kind.token] = asyncio.ensure_future(self._list(kind))
        return await asyncio.shield(task)

    async def _list(self, kind: Kind) -> list[Json]:
        found: list[Json] = await getattr(self.client, kind.list_call)()
        return found

    async def _post(self, kind: Kind, body: Json, marker: str, seen: set[str], mark: tuple[str, str]) -> tuple[Json, bool, bool]:
        """What was made, whether it was found again instead of answered, and whether it was asked for twice. At most two POSTs, and never
        the second without a look."""
        lost: Unreachable | None = None
        for _ in range(2):
            try:
                live: Json = await getattr(self.client, f"create_{kind.calls}")(body)
                if live.get("id"):
                    return live, False, lost is not None
                lost = Unreachable("RunPod's answer has no id.", maybe_done=True, where=f"POST {kind.path}")
            except Unreachable as error:
                if not error.maybe_done:
                    raise
                lost = error
            found = await self._look_for(kind, body, marker, seen)
            if len(found) == 1 and (kind is ENDPOINT or self._making.count(mark) == 1):
                return found[0], True, False
            if found:
                ids = ", ".join(sorted(str(live.get("id")) for live in found))
                raise InfrastructureError(
                    f"the answer to a create was lost, and more than one resource could be it: {ids}.",
                    where=f"POST {kind.path}",
                    fix="Delete those that are not wanted, or import the right one (`pulumi import`), then run `pulumi up` again.",
                ) from lost
        assert lost is not None
        raise Unreachable(
            f"{lost.what} It was looked for afterwards and was not there.",
            maybe_done=True,
            status=lost.status,
            where=lost.where,
            fix="Run `pulumi up` again when RunPod answers.",
        )

    async def _look_for(self, kind: Kind, body: Json, marker: str, seen: set[str]) -> list[Json]:
        """What is there now, was not before, and is what was asked for. Looks more than once: a slow create may still be on its way."""
        for pause in self._patience.looks:
            await self.pause(pause)
            there = [live for live in await self._list(kind) if str(live.get("id")) not in seen | self._known]
            if found := [live for live in there if (marked(live, marker) if kind is ENDPOINT else _same(kind, live, body))]:
                return found
        return []

    async def _adopt_one(
        self, kind: Kind, urn: str, inputs: Mapping[str, Any], marker: str, found: Sequence[Json], why: str
    ) -> tuple[str, Json] | None:
        """Take over the one that was found, and make it what is wanted. None when there is none, or it is gone meanwhile."""
        if not found:
            return None
        ids = ", ".join(sorted(str(live.get("id")) for live in found))
        if len(found) > 1:
            raise InfrastructureError(
                f"several endpoints carry the marker of {urn.rsplit('::', 1)[-1]}: {ids}.",
                where=kind.path,
                fix="Delete those that are not wanted, or import the right one (`pulumi import`), then run `pulumi up` again.",
            )
        live = found[0]
        old = kind.from_live(live, inputs)
        if why == LEFT_BEHIND:  # by an earlier process: whether its template is today's is written nowhere, so it is sent again
            old = {name: value for name, value in old.items() if name not in ("templateId", "templateHash")}
        if any(change.replace for change in kind.diff(old, inputs).values()):
            raise InfrastructureError(
                f"{ids} carries the marker of {urn.rsplit('::', 1)[-1]}, and cannot become what is declared.",
                where=kind.path,
                fix="Delete it, then run `pulumi up` again.",
            )
        self._known.add(str(live["id"]))
        await self._log("warning", f"{live['id']} was taken over: {why}.", urn)
        patch = kind.patch_body(old, inputs, marker)
        if patch:
            try:
                live = await getattr(self.client, f"update_{kind.calls}")(live["id"], patch)
            except NotFound:
                return None
            except NightbatchError as error:
                what = f"{live['id']} was found again, but could not be updated: {error}"
                raise PartlyDone(what, id=str(live["id"]), outputs=kind.outputs(live, inputs)) from error
        return str(live["id"]), kind.outputs(live, inputs)

    async def _warn_of_difference(self, kind: Kind, urn: str, live: Json, inputs: Mapping[str, Any]) -> None:
        differing = sorted(kind.diff(kind.from_live(live, inputs), inputs))
        if differing:
            await self._log("warning", f"RunPod made {live['id']} otherwise than declared: {', '.join(differing)}.", urn)

    async def _warn_of_twins(self, kind: Kind, urn: str, live: Json, marker: str, seen: set[str]) -> None:
        """A create that was given up may have been carried out after all, later than anybody looked."""
        if kind is not ENDPOINT:
            return
        try:
            there = await self._list(kind)
        except NightbatchError as error:  # it exists, and its id must reach the state
            await self._log("warning", f"whether {live['id']} was made twice could not be looked up: {error}", urn)
            return
        others = [str(e["id"]) for e in there if marked(e, marker) and str(e["id"]) not in seen | self._known]
        if others:
            what = f"RunPod also carried out the create whose answer was lost: delete {', '.join(sorted(others))}; {live['id']} is kept."
            await self._log("warning", what, urn)

    # --- read ----------------------------------------------------------------------------------------------------------------------

    async def read(self, kind: Kind, urn: str, resource_id: str, old_inputs: Mapping[str, Any] | None) -> tuple[str, Json, Json]:
        """Id, outputs, inputs as they are; an empty id when it is gone. `old_inputs` None: an import."""
        if old_inputs is None and not kind.importable:
            raise UsageError(kind.why_not_importable)
        try:
            live: Json = await getattr(self.client, f"get_{kind.calls}")(resource_id)
        except NotFound:
            return "", {}, {}
        self._known.add(resource_id)
        inputs = kind.from_live(live, old_inputs)
        return resource_id, kind.outputs(live, inputs), inputs

    # --- update --------------------------------------------------------------------------------------------------------------------

    async def update(
        self,
        kind: Kind,
        urn: str,
        resource_id: str,
        old: Mapping[str, Any],
        new: Mapping[str, Any],
        *,
        old_outputs: Mapping[str, Any] | None = None,
        timeout_s: float = 0.0,
    ) -> Json:
        """Outputs. One PATCH with what changed; or, when nothing did or the rollout is strict, what live lacks."""
        self.in_state(urn, resource_id)
        marker = marker_of(urn)
        try:
            strict = kind is ENDPOINT and new.get("rollout") == "strict"
            patch = {} if strict else kind.patch_body(old, new, marker)
            if patch:
                return kind.outputs(await self._patch(kind, resource_id, patch), new)
            live: Json = await getattr(self.client, f"get_{kind.calls}")(resource_id)
            base = kind.from_live(live, new)
            base = {**base, **_sent_template(old if old_outputs is None else old_outputs)}
            base = {k: v for k, v in base.items() if v is not None}
            patch = kind.patch_body(base, new, marker)
            if strict and endpoints.restarts_workers(base, new):
                return await self._strict(urn, resource_id, live, base, new, patch, timeout_s)
            if patch:
                live = await self._patch(kind, resource_id, patch)
            return kind.outputs(live, new)
        except NotFound as error:
            raise RestError(
                f"{resource_id} does not exist any more, or belongs to another account than this API key.",
                status=404,
                where=error.where,
                fix="If it was deleted, `pulumi up --refresh` makes it again.",
            ) from error

    async def _patch(self, kind: Kind, resource_id: str, body: Json) -> Json:
        live: Json = await getattr(self.client, f"update_{kind.calls}")(resource_id, body)
        return live

    async def _strict(
        self, urn: str, endpoint_id: str, live: Json, base: Json, new: Mapping[str, Any], patch: Json, timeout_s: float
    ) -> Json:
        """No worker of the old content beside one of the new: workers to 0, running jobs finish, content, workers back."""
        now = {name: int((live.get("workers") or {}).get(name) or 0) for name in ("min", "max")}
        wanted = _workers(new)
        back = now if now["max"] else wanted
        """Where to return when it fails. Zero is what an interrupted rollout left behind."""
        content = {name: value for name, value in patch.items() if name != "workers"}
        try:
            if now["max"] or now["min"]:
                live = await self._patch(ENDPOINT, endpoint_id, {"workers": {"min": 0, "max": 0}})
            await self._drained(urn, endpoint_id, _limit(new, timeout_s))
            live = await self._patch(ENDPOINT, endpoint_id, content)
        except NotFound:
            raise
        except (Exception, asyncio.CancelledError) as error:  # whatever it was: no endpoint is left without workers
            try:
                await asyncio.shield(self._bring_back(endpoint_id, back))
            except NightbatchError as second:
                live = {**live, "workers": {**(live.get("workers") or {}), "min": 0, "max": 0}}
                raise PartlyDone(
                    f"the strict rollout stopped ({described(error)}), and workers.max is still 0 ({second}).",
                    id=endpoint_id,
                    outputs=ENDPOINT.outputs(live, {**new, **_sent_template(base)}),
                ) from error
            raise
        try:
            live = await self._patch(ENDPOINT, endpoint_id, {"workers": {**patch.get("workers", {}), **wanted}})
        except NightbatchError as error:
            raise PartlyDone(
                f"the new content is in place, but workers.max is still 0: {error}", id=endpoint_id, outputs=ENDPOINT.outputs(live, new)
            ) from error
        return ENDPOINT.outputs(live, new)

    async def _bring_back(self, endpoint_id: str, workers: Mapping[str, int]) -> None:
        for i, pause in enumerate(self._patience.back):
            if pause > 0:  # the first is also tried when the engine has asked to stop
                await self.pause(pause)
            try:
                await self._patch(ENDPOINT, endpoint_id, {"workers": dict(workers)})
                return
            except Unreachable as error:
                if error.status or i + 1 == len(self._patience.back):
                    raise

    async def _drained(self, urn: str, endpoint_id: str, limit_s: float) -> None:
        """Until no worker runs a job and none can take one."""
        end = self._clock() + limit_s
        quiet_since: float | None = None
        told = -1
        poll = self._patience.poll
        while True:
            summary = (await self.client.list_workers(endpoint_id)).get("summary") or {}
            counts = {name: int(summary.get(name) or 0) for name in BUSY}
            now = self._clock()
            if not any(counts.values()):
                return
            if counts["running"]:
                quiet_since = None
                if counts["running"] != told:
                    told = counts["running"]
                    await self._log("info", f"waiting for {told} running worker{'s' * (told != 1)} to finish", urn)
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since >= self._patience.settled:
                return
            if now >= end:
                raise InfrastructureError(
                    f"{counts['running']} workers were still running after {limit_s:g} s.",
                    where=f"endpoint {endpoint_id}",
                    fix="Raise drainTimeoutSeconds, or cancel the jobs.",
                )
            await self.pause(min(poll, max(0.0, end - now)))
            poll = min(self._patience.poll_slow, poll * 1.5)

    async def pause(self, seconds: float) -> None:
        """Wait, unless the engine asks to stop: Ctrl-C does not sit out a Retry-After."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds) if seconds > 0 else await asyncio.sleep(0)
        except TimeoutError:
            return
        if self._stop.is_set():
            raise Stopped("stopped while waiting, as asked.", fix="The next `pulumi up` goes on from here.")

    # --- delete --------------------------------------------------------------------------------------------------------------------

    async def delete(self, kind: Kind, urn: str, resource_id: str, old_inputs: Mapping[str, Any], *, timeout_s: float = 0.0) -> None:
        """Gone is done. Repeated for a minute while RunPod says that something is bound to it: bindings end a moment after their owner."""
        self.in_state(urn, resource_id)
        if resource_id in self._adopted:
            what = f"{resource_id} stays: its own replacement has just taken it over."
            await self._log("warning", f"{what} For a new one, set delete_before_replace, or destroy it first.", urn)
            return
        try:
            if kind is ENDPOINT and old_inputs.get("drainOnDelete") is True:
                await self._patch(ENDPOINT, resource_id, {"workers": {"min": 0, "max": 0}})
                await self._drained(urn, resource_id, _limit(old_inputs, timeout_s))
            await self._delete_unbound(kind, urn, resource_id)
        except NotFound:
            what = f"{resource_id} was not there any more. If nobody deleted it: is this API key of the account that has it?"
            await self._log("warning", what, urn)

    async def _delete_unbound(self, kind: Kind, urn: str, resource_id: str) -> None:
        end = self._clock() + self._patience.refused
        pause = min(1.0, self._patience.refused / 10)
        told = False
        while True:
            try:
                await getattr(self.client, f"delete_{kind.calls}")(resource_id)
                return
            except RestError as error:
                if error.status not in (400, 409) or self._clock() + pause > end:
                    raise
                if not told:
                    await self._log("info", f"RunPod still refuses to delete it ({error.detail or error.status}); trying again", urn)
                    told = True
            await self.pause(pause)
            pause = min(8.0, pause * 2)

    # --- functions -----------------------------------------------------------------------------------------------------------------

    async def invoke(self, token: str, args: Mapping[str, Any]) -> Json:
        """The function's result. Reads only; needs a key."""
        if token == "runpodv2:index:getGpus":
            product, count = args.get("product") or "SERVERLESS", args.get("count")
            found: Any = await self.client.gpus(include_availability=bool(args.get("includeAvailability")), product=product, count=count)
            result = {"gpus": found}
        elif token == "runpodv2:index:getCpus":
            product, vcpus = args.get("product") or "SERVERLESS", args.get("vcpuCount")
            found = await self.client.cpus(include_availability=bool(args.get("includeAvailability")), product=product, vcpu_count=vcpus)
            result = {"cpus": found}
        elif token == "runpodv2:index:getDataCenters":
            found = await self.client.datacenters(include_availability=bool(args.get("includeAvailability")))
            result = {"dataCenters": found}
        elif token == "runpodv2:index:getEndpoint":
            result = await self._endpoint_named(str(args.get("name")))
        else:
            raise UsageError(f"{token} is no function of this provider.", fix=f"There are {', '.join(FUNCTIONS)}.")
        return shape(FUNCTIONS[token].outputs, result)

    async def _endpoint_named(self, name: str) -> Json:
        found = [live for live in await self.client.list_endpoints() if live.get("name") == name]
        if len(found) == 1:
            live = found[0]
            return {**ENDPOINT.outputs(live, {}), "id": live["id"]}
        if not found:
            raise UsageError(f"there is no endpoint named {name!r}.", where="getEndpoint")
        ids = ", ".join(sorted(str(live.get("id")) for live in found))
        raise UsageError(f"several endpoints are named {name!r}: {ids}.", where="getEndpoint", fix="Use Endpoint.get with the right id.")


def _same(kind: Kind, live: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether a live resource is what the body asked for, in every field that an answer has."""
    table = by_name(kind.inputs)
    return all(
        equal(table[name], live_value(table[name], live.get(name), value), value) for name, value in body.items() if table[name].echoed
    )


def _sent_template(values: Mapping[str, Any]) -> Json:
    """Which template was sent last: RunPod keeps no note of it, the state's outputs do."""
    return {name: values.get(name) for name in ("templateId", "templateHash")}


def _workers(inputs: Mapping[str, Any]) -> dict[str, int]:
    declared = inputs.get("workers") or {}
    return {"min": int(declared.get("min") or 0), "max": int(declared.get("max", endpoints.DEFAULT_WORKERS_MAX))}


def _limit(inputs: Mapping[str, Any], timeout_s: float) -> float:
    declared = inputs.get("drainTimeoutSeconds")
    limit = float(declared) if isinstance(declared, int | float) and declared > 0 else 3600.0
    return min(limit, timeout_s) if timeout_s > 0 else limit


__all__ = ["KINDS", "Driver", "Log", "PartlyDone", "Patience", "Stopped", "no_log"]
