"""contract: the parameters that a task may have (`--param`), so that one that no worker takes is refused before anything is paid. Pure.

The worker reads each row's body more closely than this (worker/tasks); what is said here is what can be told of a value by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from contract.errors import UsageError
from contract.models import TaskKind

Kind = Literal["whole", "number", "flag", "other"]
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
            bounds = " and ".join(
                [*([f"at least {least:g}"] if least is not None else []), *([f"at most {most:,.15g}"] if most is not None else [])]
            )
            raise UsageError(f"{_shown(value)} is out of bounds: it must be {bounds}.", where=where)


def _finite(value: float) -> bool:
    return -(1 << 63) <= value < 1 << 63 if isinstance(value, int) else math.isfinite(value)


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number with too many digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
