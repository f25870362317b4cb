"""tests of contract.params: a parameter that no worker takes is refused before anything is paid."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from contract.errors import UsageError
from contract.models import TaskKind, TaskSpec
from contract.params import BODIES, PARAMS, ROW_FIELDS, WITHOUT_EFFECT, body_problem, check_params
from contract.rows import ChatUrl, CompletionUrl, EmbeddingUrl
from worker.engine.base import Refused
from worker.rows import ShardRow
from worker.tasks import requests
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


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 16, 99, 129, 1 << 31, 1 << 63, 10**30, 0.0, 0.5, 1.0, 1.5, -3.5, 64.0, "", " ", "x", "none", "left",
    "base64", "low", [], [1], ["a"], ["text"], [""], {}, {"a": 1}, {"5": 3},
)  # fmt: skip
OTHERS = (
    "stream", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "echo", "suffix", "best_of", "priority",
    "modalities", "use_beam_search", "length_penalty", "foo", *WITHOUT_EFFECT,
)  # fmt: skip


def worker_refuses(url: str, body: dict[str, Any]) -> bool:
    row = ShardRow(0, "id", b"", url, msgspec.Raw(msgspec.json.encode(body)))
    (made,) = requests([row], TaskSpec(kind="embed" if url == EmbeddingUrl else "generate", model="m"))
    return isinstance(made, Refused)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (ChatUrl, {"messages": [{"role": "user", "content": "hi"}]}),
        (CompletionUrl, {"prompt": "hi"}),
        (CompletionUrl, {"prompt": [1, 2]}),
        (EmbeddingUrl, {"input": "hi"}),
        (EmbeddingUrl, {"input": [1, 2]}),
    ],
)
def test_what_the_client_refuses_of_a_body_the_worker_refuses_too(url: str, text: dict[str, Any]) -> None:
    names = {name for rules in BODIES.values() for name in rules} - {"messages", "prompt", "input"} | set(OTHERS)
    both = 0
    for name in sorted(names):
        for value in VALUES:
            problem = body_problem(url, name, value)
            if problem is not None:
                assert worker_refuses(url, {**text, name: value}), (name, value, problem)
                assert f"`{name}`" in problem[1]
                both += 1
    assert both > 400


@pytest.mark.parametrize("url", list(BODIES))
def test_what_the_worker_does_not_know_or_cannot_count_with_is_found_by_the_client(url: str) -> None:
    texts: dict[str, dict[str, Any]] = {
        ChatUrl: {"messages": [{"role": "user", "content": "hi"}]}, CompletionUrl: {"prompt": "hi"}, EmbeddingUrl: {"input": "hi"},
    }  # fmt: skip
    text = texts[url]
    looked_closer_at = {name for name, (what, _, _) in BODIES[url].items() if what == "other"} | {"top_logprobs", "continue_final_message"}
    for name in sorted({*BODIES[url], *OTHERS} - looked_closer_at):
        for value in VALUES:
            if value != 10**30 and worker_refuses(url, {**text, name: value}):
                assert body_problem(url, name, value) is not None, (name, value)
