"""infra: what the program gets from Pulumi: the values of the stack file, its secrets, and the catalog's prices. Imports pulumi."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pulumi

from infra.settings import PROJECT, Problem, SettingsError, stack_file

SECRETS: Final = f"{PROJECT}:secrets"
API_KEY: Final = "RUNPOD_API_KEY"


def config_values(stack: str) -> dict[str, Any]:
    """Everything under `nightbatch:` but the secrets, so that a misspelt key is found, too. Values are the text that Pulumi hands over.

    Raises SettingsError when a secret stands elsewhere than under `secrets`: only those stay secret in the state.
    """
    config: Mapping[str, Any] = pulumi.runtime.get_config_env()
    own = {key: value for key, value in config.items() if key.startswith(f"{PROJECT}:") and key != SECRETS}
    if hidden := [key for key in own if pulumi.runtime.is_config_secret(key)]:
        what = "holds a secret: keep it under nightbatch:secrets, and name it in secretEnv or passwordSecret"
        raise SettingsError(stack_file(stack), [Problem(key, what) for key in hidden])
    return {key.removeprefix(f"{PROJECT}:"): value for key, value in own.items()}


def secret_values(stack: str) -> dict[str, pulumi.Output[str]]:
    """`nightbatch:secrets` by name, each a secret of Pulumi. Raises SettingsError when it is no map of text, or is stored in clear."""
    text = pulumi.runtime.get_config_env().get(SECRETS)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) and value for value in found.values()):
        raise SettingsError(stack_file(stack), [Problem(SECRETS, "must be a map of names to text")])
    if not pulumi.runtime.is_config_secret(SECRETS):
        how = f"delete it there and use: pulumi config set --secret --path '{SECRETS}.NAME'"
        raise SettingsError(stack_file(stack), [Problem(SECRETS, f"is in the stack file in clear text: {how}")])
    return {name: pulumi.Output.secret(value) for name, value in found.items()}


def catalog(environ: Mapping[str, str] = os.environ) -> Iterable[Mapping[str, Any]] | None:
    """RunPod's GPU types with their prices, where there is a key to ask with; None where there is none, or no answer (with a warning: a
    preview must not fail because a price list cannot be read)."""
    if not environ.get(API_KEY) and not pulumi.Config("runpodv2").get("apiKey"):
        return None
    try:
        answer = pulumi.runtime.invoke("runpodv2:index:getGpus", {})
        found = (answer.value or {}).get("gpus")
    except Exception as error:
        reason = str(error).strip().splitlines()
        pulumi.log.warn(
            f"RunPod's catalog could not be read ({reason[-1] if reason else type(error).__name__}); prices are those of the page."
        )
        return None
    return found if isinstance(found, list) else None
