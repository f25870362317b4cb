# tests/infra: a small stack file as the program gets it, to change one thing at a time.
from __future__ import annotations

import copy
from typing import Any

from infra.settings import Settings, parse

DIGEST = "sha256:" + "ab" * 32
IMAGE = f"registry.example.com/team/worker@{DIGEST}"


def endpoint(**changes: Any) -> dict[str, Any]:
    """A queue endpoint that keeps every rule."""
    given: dict[str, Any] = {
        "name": "minilm",
        "model": "org/minilm",
        "tasks": ["embed"],
        "image": IMAGE,
        "gpu": {"pools": ["AMPERE_24", "ADA_24"]},
        "workers": {"peak": 3},
        "executionTimeout": 600,
    }
    return {key: value for key, value in {**given, **changes}.items() if value is not None}


def balanced(**changes: Any) -> dict[str, Any]:
    """A load-balancing endpoint."""
    given: dict[str, Any] = {"name": "web", "type": "LOAD_BALANCER", "health": {"path": "/ok", "port": 8000}}
    given |= dict.fromkeys(("tasks", "model", "executionTimeout"))
    return endpoint(**{**given, **changes})


def values(**changes: Any) -> dict[str, Any]:
    """The values under `nightbatch:` of a stack file that keeps every rule."""
    given: dict[str, Any] = {
        "store": {"bucket": "batches", "endpointUrl": "https://s3.example.com", "prefix": "nb"},
        "endpoints": [endpoint()],
        "rules": {"maxWorkers": 10, "maxUsdPerHour": 20},
    }
    return copy.deepcopy({key: value for key, value in {**given, **changes}.items() if value is not None})


def stack(name: str = "dev", *, secrets: tuple[str, ...] = (), **changes: Any) -> Settings:
    """Those values, read."""
    return parse(values(**changes), name, secrets=secrets)
