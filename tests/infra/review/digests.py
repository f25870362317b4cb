"""tests of infra/review: documents in the shape of `pulumi preview --json`, made by hand for what a real engine rarely does."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from infra.review.changes import STACK

ENDPOINT_INPUTS: dict[str, Any] = {
    "name": "nightbatch-prod-embed",
    "type": "QUEUE",
    "image": "ghcr.io/acme/worker@sha256:" + "a" * 64,
    "gpu": {"pools": ["AMPERE_24", "ADA_24"], "count": 1},
    "workers": {"min": 0, "max": 8, "idleTimeout": 10},
    "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4},
    "timeout": 600000,
    "env": {"NIGHTBATCH_MODEL": "minilm", "HF_TOKEN": "[secret]"},
}
VOLUME_INPUTS: dict[str, Any] = {"name": "nightbatch-prod-models", "size": 100, "dataCenter": "EU-RO-1"}


def urn(name: str, kind: str = "Endpoint", stack: str = "prod", parent: str = "nightbatch:infra:QueueEndpoint") -> str:
    """A URN of a resource inside a component."""
    return f"urn:pulumi:{stack}::nightbatch::{parent}$runpodv2:index:{kind}::{name}"


def state(
    inputs: Mapping[str, Any] | None,
    *,
    id: str | None = None,
    outputs: Mapping[str, Any] | None = None,
    kind: str = "Endpoint",
    protect: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A resource's state. Outputs are the inputs and the id, unless said."""
    known = dict(inputs or {})
    found: dict[str, Any] = {
        "type": f"runpodv2:index:{kind}",
        "custom": True,
        "inputs": known,
        "outputs": dict(outputs) if outputs is not None else dict(known),
        **more,
    }
    if id is not None:
        found["id"] = id
    if protect:
        found["protect"] = True
    return found


def with_(inputs: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The inputs with other values; `a__b` is the key b of the map a, None takes it out."""
    found = copy.deepcopy(dict(inputs))
    for path, value in changes.items():
        *folders, last = path.split("__")
        at = found
        for folder in folders:
            at = at[folder]
        if value is None:
            at.pop(last, None)
        else:
            at[last] = value
    return found


def step(
    op: str, urn_: str, old: Any = None, new: Any = None, diff: Mapping[str, str] | None = None, reasons: Any = None
) -> dict[str, Any]:
    """One step; `diff`: path -> kind."""
    found: dict[str, Any] = {"op": op, "urn": urn_, "detailedDiff": None}
    if old is not None:
        found["oldState"] = old
    if new is not None:
        found["newState"] = new
    if diff is not None:
        found["detailedDiff"] = {path: {"kind": kind, "inputDiff": False} for path, kind in diff.items()}
        found["diffReasons"] = sorted({path.split(".")[0].split("[")[0] for path in diff})
    if reasons is not None:
        found["replaceReasons"] = list(reasons)
    return found


def stack_step(outputs: Mapping[str, Any] | None = None, stack: str = "prod") -> dict[str, Any]:
    """The step of the stack itself, which the engine always lists."""
    urn_ = f"urn:pulumi:{stack}::nightbatch::{STACK}::nightbatch-{stack}"
    found = {"type": STACK, "custom": False, "outputs": dict(outputs or {})}
    return {"op": "same", "urn": urn_, "oldState": found, "newState": {"type": STACK, "custom": False}, "detailedDiff": None}


def digest(*steps: dict[str, Any], diagnostics: Any = (), config: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A whole document."""
    counts: dict[str, int] = {}
    for one in steps:
        counts[one["op"]] = counts.get(one["op"], 0) + 1
    return {
        "config": dict(config or {}),
        "steps": list(steps),
        "diagnostics": [{"urn": "", "message": message, "severity": severity} for severity, message in diagnostics],
        "duration": 1_234_567_890,
        "changeSummary": counts,
    }
