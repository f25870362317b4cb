"""A Pulumi program for tests: it declares what declared.json beside it lists, in that order, under the provider's own property names.

An item is {"kind", "name", "props", "opts"}. In props, {"$id": NAME} is the id of an earlier resource, {"$secret": X} a secret, and
{"$out": [NAME, PROPERTY]} an output of an earlier resource. `kind` is a resource of runpodv2, `Provider` for an explicit provider, or a
function (`getGpus`, ...), whose result becomes the stack output NAME. `exports` maps stack outputs to such references.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi

PACKAGE = "runpodv2"
made: dict[str, Any] = {}


def value(given: Any) -> Any:
    if isinstance(given, list):
        return [value(item) for item in given]
    if not isinstance(given, dict):
        return given
    match list(given.items()):
        case [("$id", name)]:
            return made[name].id
        case [("$secret", hidden)]:
            return pulumi.Output.secret(value(hidden))
        case [("$out", [name, key])]:
            return getattr(made[name], key)
    return {key: value(item) for key, item in given.items()}


def options(given: dict[str, Any]) -> pulumi.ResourceOptions:
    settings = dict(given)
    if "provider" in settings:
        settings["provider"] = made[settings["provider"]]
    if "depends_on" in settings:
        settings["depends_on"] = [made[name] for name in settings["depends_on"]]
    return pulumi.ResourceOptions(**settings)


declared = json.loads(Path(__file__).with_name("declared.json").read_text())
for item in declared["items"]:
    kind, name, props, opts = item["kind"], item["name"], value(item.get("props", {})), item.get("opts", {})
    if kind == "Provider":
        made[name] = pulumi.ProviderResource(PACKAGE, name, props)
    elif kind.startswith("get"):
        invoke_options = pulumi.InvokeOptions(provider=made[opts["provider"]] if "provider" in opts else None)
        pulumi.export(name, pulumi.runtime.invoke(f"{PACKAGE}:index:{kind}", props, invoke_options).value)
    else:
        made[name] = pulumi.CustomResource(
            f"{PACKAGE}:index:{kind}", name, {**dict.fromkeys(item.get("outputs", ())), **props}, options(opts)
        )
for key, reference in declared.get("exports", {}).items():
    pulumi.export(key, value(reference))
