"""pipelines: a run as it is found again, from its address alone, and the list of runs that a store holds. Touches the store only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from contract.errors import Damaged, NotFound, PlanMismatch, StoreError, UsageError
from contract.facts import EndpointFacts, StackFacts
from contract.keys import RunKeys, RunUri
from contract.models import Control, Plan, decode_stored
from contract.store import FolderStore, Store, get_or_none

MOST_NEAR: Final = 5


@dataclass(frozen=True)
class RunHandle:
    """A run: its address and its plan. Everything else is in the store."""

    uri: RunUri
    plan: Plan

    @property
    def keys(self) -> RunKeys:
        return self.uri.keys


async def load_run(store: Store, run: str | RunUri) -> RunHandle:
    """The run at this address; `store` takes the mode that its plan has pinned. Raises UsageError when there is none."""
    uri = run if isinstance(run, RunUri) else RunUri.parse(run)
    if uri.bucket != store.bucket:
        raise UsageError(f"the run is in bucket '{uri.bucket}', and the stack's bucket is '{store.bucket}'.", where=str(uri))
    try:
        blob = await store.get(uri.keys.plan())
    except NotFound:
        near = await _near(store, uri)
        fix = f"Did you mean {' or '.join(near)}?" if near else "List them: nightbatch runs"
        raise UsageError("there is no run at this address.", where=str(uri), fix=fix) from None
    plan: Plan = decode_stored(blob.data, Plan, where=f"{uri}/plan.json")
    if plan.run != str(uri):
        raise PlanMismatch(
            f"the plan here is that of {plan.run}.", where=f"{uri}/plan.json", fix="A run cannot be moved to another address."
        )
    store.mode = plan.store.mode
    return RunHandle(uri, plan)


async def _near(store: Store, uri: RunUri) -> list[str]:
    """Ids of runs that may be meant: those that begin so, else those that look like it. None where the store cannot be asked."""
    folders = getattr(store, "folders", None)
    root, _, name = uri.keys.root.rpartition("/")
    if folders is None:
        return []
    try:
        there = [found async for found in folders(f"{root}/")]
    except StoreError:  # the answer is that there is no such run; this is only a hint
        return []
    return [found for found in there if found.startswith(name)][:MOST_NEAR] or get_close_matches(name, there, n=1)


def endpoint_of(plan: Plan, facts: StackFacts) -> EndpointFacts:
    """The endpoint that the run was planned for, as the stack knows it now. Raises PlanMismatch when the stack has it no more."""
    for endpoint in facts.endpoints:
        if endpoint.id == plan.infra.endpoint_id:
            return endpoint
    have = ", ".join(f"{e.name} ({e.id})" for e in facts.endpoints) or "none"
    raise PlanMismatch(
        f"the run was planned for endpoint {plan.infra.endpoint} ({plan.infra.endpoint_id}), and stack '{facts.stack}' does not have it.",
        where=plan.run,
        fix=f"Endpoints there: {have}.",
    )


async def read_control(store: Store, keys: RunKeys, plan: Plan) -> tuple[Control, str | None]:
    """control.json and its etag; while there is none the run is in epoch 0, mode run. One of another plan is ignored."""
    blob = await get_or_none(store, keys.control())
    if blob is not None:
        control: Control = decode_stored(blob.data, Control, where=keys.control())
        if control.plan == plan.plan_id:
            return control, blob.etag
        return Control(plan=plan.plan_id, at=plan.created_at, by="nobody"), blob.etag
    return Control(plan=plan.plan_id, at=plan.created_at, by="nobody"), None


@dataclass(frozen=True)
class RunListing:
    """A run that the store holds, as far as its plan tells."""

    uri: str
    run_id: str
    plan: Plan


async def list_runs(store: FolderStore, prefix: str = "", on_damaged: Callable[[str], None] | None = None) -> tuple[RunListing, ...]:
    """Runs under `prefix/runs/`, the latest first. Reads every plan there and lists nothing below; what has no plan is left out.

    `on_damaged` hears of each plan that cannot be read, so that one does not hide all others; without it Damaged is raised.
    """
    found: list[RunListing] = []
    async for run_id in store.folders(_root(prefix, "")):
        root = _root(prefix, run_id)
        blob = await get_or_none(store, RunKeys(root).plan())
        if blob is None:
            continue
        try:
            plan: Plan = decode_stored(blob.data, Plan, where=f"s3://{store.bucket}/{root}/plan.json")
        except Damaged as error:
            if on_damaged is None:
                raise
            on_damaged(str(error))
            continue
        found.append(RunListing(plan.run, plan.run_id, plan))
    return tuple(sorted(found, key=lambda r: (r.plan.created_at, r.run_id), reverse=True))


def _root(prefix: str, run_id: str) -> str:
    head = prefix.strip("/")
    return f"{head}/runs/{run_id}" if head else f"runs/{run_id}"
