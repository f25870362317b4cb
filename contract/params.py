"""contract: which fields a row's body may have, and the parameters of a task (`--param`), so that what no worker takes is refused before
anything is paid. Pure.

The worker reads each row's body more closely than this (worker/tasks); what is said here is what can be told of a value by itself. It never
refuses what the worker accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from contract.errors import UsageError
from contract.models import TaskKind
from contract.rows import ChatUrl, CompletionUrl, EmbeddingUrl

Kind = Literal["whole", "number", "flag", "text", "other"]
Rule = tuple[Kind, float | None, float | None]
"""What a value is, and its least and its most, where there are any."""
_MOST: Final = (1 << 31) - 1
_OTHER: Final[Rule] = ("other", None, None)
_FLAG: Final[Rule] = ("flag", None, None)

ROW_FIELDS: Final = frozenset({"messages", "prompt", "input", "model"})
"""Fields of a row's body that are the row's own, and no parameter of all rows."""

PARAMS: Final[Mapping[TaskKind, Mapping[str, Rule]]] = {
    "generate": {
        "n": ("whole", 1, 128),
        "max_tokens": ("whole", 1, _MOST),
        "max_completion_tokens": ("whole", 1, _MOST),
        "min_tokens": ("whole", 0, _MOST),
        "temperature": ("number", 0, None),
        "top_p": ("number", 0, 1),
        "top_k": ("whole", -1, _MOST),
        "min_p": ("number", 0, 1),
        "presence_penalty": ("number", -2, 2),
        "frequency_penalty": ("number", -2, 2),
        "repetition_penalty": ("number", None, None),
        "seed": ("whole", -(1 << 63), (1 << 63) - 1),
        "prompt_logprobs": ("whole", 0, 20),
        "top_logprobs": ("whole", 0, 20),
        "logprobs": _OTHER,
        **dict.fromkeys(
            ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens",
             "add_generation_prompt", "continue_final_message"), _FLAG
        ),
        **dict.fromkeys(
            ("stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words", "response_format", "structured_outputs",
             "truncate_prompt_tokens", "truncation_side", "chat_template_kwargs", "documents", "reasoning_effort"), _OTHER
        ),
    },
    "embed": {
        "dimensions": ("whole", 1, _MOST),
        "encoding_format": _OTHER,
        "truncate_prompt_tokens": _OTHER,
        "truncation_side": _OTHER,
        "add_special_tokens": _FLAG,
    },
}  # fmt: skip

WITHOUT_EFFECT: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Fields of a body that speak to a server about accounts and caches: accepted, because they change no answer."""
_CHAT_ONLY: Final = frozenset(
    {
        "max_completion_tokens", "top_logprobs", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "documents",
        "reasoning_effort",
    }
)  # fmt: skip
_MODEL: Final[Rule] = ("text", None, None)


def _body(kind: TaskKind, own: str, without: frozenset[str] = frozenset(), **instead: Rule) -> Mapping[str, Rule]:
    """A number's upper bound that is only what a machine can count to is none that the worker has for a row."""
    rules = {
        name: (what, least, None if what == "whole" and most == _MOST else most)
        for name, (what, least, most) in PARAMS[kind].items()
        if name not in without
    }
    return {"model": _MODEL, own: _OTHER, **rules, **instead}


BODIES: Final[Mapping[str, Mapping[str, Rule]]] = {
    ChatUrl: _body("generate", "messages", logprobs=_FLAG),
    # Where the text is a list of tokens, the worker does not look at add_special_tokens.
    CompletionUrl: _body("generate", "prompt", _CHAT_ONLY, logprobs=("whole", 0, 20), add_special_tokens=_OTHER),
    EmbeddingUrl: _body("embed", "input", add_special_tokens=_OTHER),
}
"""URL -> the fields that a body for it may have."""
COMPLETION_MAX_TOKENS: Final = 16
"""OpenAI's default for /v1/completions; chat has none but the model's length."""


def asks_nothing(name: str, value: Any) -> bool:
    """Fields that ask for nothing: what a client library writes by default is not held against a row."""
    if name in ("stream", "use_beam_search", "echo", "return_token_ids", "return_tokens_as_token_ids", "logprobs"):
        return value is False
    if name in ("tools", "functions", "stop", "bad_words", "suffix"):
        return value in ([], "")
    if name in ("tool_choice", "function_call"):
        return bool(value == "none")
    if name == "parallel_tool_calls":
        return isinstance(value, bool)  # without tools it says nothing
    if name == "modalities":
        return bool(value == ["text"])
    if name in ("best_of", "length_penalty"):
        return bool(value == 1)
    if name == "priority":
        return bool(value == 0)
    return False


def body_problem(url: str, name: str, value: Any) -> tuple[str, str] | None:
    """Why the worker would refuse a row for this field of its body: its code, and a clause. None where it would not, or where only a
    closer look can tell."""
    if value is None:
        return None
    rules = BODIES[url]
    if name not in rules:
        if name in WITHOUT_EFFECT or asks_nothing(name, value):
            return None
        return "unsupported_field", f"`{name}` is not supported"
    what, least, most = rules[name]
    if what == "other" or (name == "logprobs" and value is False):
        return None
    if what == "flag":
        return None if isinstance(value, bool) else ("wrong_type", f"`{name}` is {_shown(value)}, neither true nor false")
    if what == "text":
        return None if isinstance(value, str) else ("wrong_type", f"`{name}` is {_shown(value)}, not text")
    whole = what == "whole"
    if isinstance(value, bool) or not isinstance(value, int | float) or (whole and isinstance(value, float) and not value.is_integer()):
        return "wrong_type", f"`{name}` is {_shown(value)}, not a {'whole ' if whole else ''}number"
    if (least is not None and value < least) or (most is not None and value > most):
        return "invalid_parameter", f"`{name}` is {_shown(value)}; it must be {_bounds(least, most)}"
    return None


def check_params(kind: TaskKind, params: Mapping[str, Any]) -> None:
    """Raises UsageError for the first parameter that no row could use. None stands for a parameter that is not set."""
    rules = PARAMS[kind]
    for name, value in params.items():
        where = f"--param {name}"
        if name in ROW_FIELDS:
            raise UsageError(f"`{name}` is each row's own, and cannot be set for all of them.", where=where, fix="Leave it out.")
        if name not in rules:
            raise UsageError(f"`{name}` is not a parameter for --task {kind}.", where=where, fix=f"There are: {', '.join(sorted(rules))}.")
        if value is None:
            continue
        what, least, most = rules[name]
        if what == "flag" and not isinstance(value, bool):
            raise UsageError(f"{_shown(value)} is neither true nor false.", where=where)
        if what not in ("whole", "number"):
            continue
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value) or (what == "whole" and not whole):
            raise UsageError(f"{_shown(value)} is not a {'whole ' if what == 'whole' else ''}number.", where=where)
        if (least is not None and value < least) or (most is not None and value > most):
            raise UsageError(f"{_shown(value)} is out of bounds: it must be {_bounds(least, most)}.", where=where)


def _bounds(least: float | None, most: float | None) -> str:
    return " and ".join([*([f"at least {least:g}"] if least is not None else []), *([f"at most {most:,.15g}"] if most is not None else [])])


def _finite(value: float) -> bool:
    return -(1 << 63) <= value < 1 << 63 if isinstance(value, int) else math.isfinite(value)


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number with too many digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
