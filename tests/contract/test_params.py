"""tests of contract.params: a parameter that no worker takes is refused before anything is paid."""

from __future__ import annotations

import math
from typing import Any

import pytest

from contract.errors import UsageError
from contract.models import TaskKind
from contract.params import PARAMS, ROW_FIELDS, check_params
from worker.tasks.embed import EMBED_FIELDS
from worker.tasks.generate import CHAT_FIELDS, COMPLETION_FIELDS


def test_the_parameters_are_those_that_the_worker_reads() -> None:
    assert set(PARAMS["generate"]) == (CHAT_FIELDS | COMPLETION_FIELDS) - ROW_FIELDS
    assert set(PARAMS["embed"]) == EMBED_FIELDS - ROW_FIELDS


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("generate", {"max_tokens": 24, "temperature": 0, "top_p": 0.9, "seed": -1, "stop": ["a"], "logprobs": True, "n": 2.0}),
        ("generate", {"max_tokens": None, "ignore_eos": True, "response_format": {"type": "json_object"}}),
        ("embed", {"dimensions": 64}),
        ("embed", {}),
    ],
)
def test_what_a_row_can_use_passes(kind: TaskKind, params: dict[str, Any]) -> None:
    check_params(kind, params)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("generate", "max_tokens", "abc"), ("generate", "max_tokens", 0), ("generate", "max_tokens", 1.5), ("generate", "max_tokens", True),
        ("generate", "max_tokens", 10**20), ("generate", "max_tokens", 1 << 20_000), ("generate", "n", 1000),
        ("generate", "temperature", 1 << 20_000), ("generate", "top_p", 5),
        ("generate", "temperature", -1), ("generate", "temperature", math.inf), ("generate", "temperature", math.nan),
        ("generate", "seed", 1e30), ("generate", "ignore_eos", "yes"), ("generate", "nonsense", 1), ("generate", "stream", True),
        ("generate", "messages", 1), ("generate", "model", "x"), ("embed", "input", "x"), ("embed", "temperature", 1),
        ("embed", "dimensions", -1),
    ],
    ids=lambda value: str(value)[:20] if not isinstance(value, int) else f"{value.bit_length()} bits",
)  # fmt: skip
def test_what_no_row_can_use_is_refused_by_name(kind: TaskKind, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        check_params(kind, {name: value})
