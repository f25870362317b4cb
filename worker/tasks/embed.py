"""worker/tasks: /v1/embeddings bodies. One row is one input is one vector, because the part is a Parquet table of rows. Pure.

`encoding_format` may be float or base64 and changes nothing: vectors never travel as JSON.
"""

from __future__ import annotations

from typing import Final

from contract.params import BODIES
from contract.rows import EmbeddingUrl
from worker.engine.base import EmbedRequest, TextPrompt, TokensPrompt, Truncation
from worker.tasks.fields import Body, RowProblem, token_list

EMBED_FIELDS: Final = frozenset(BODIES[EmbeddingUrl])


def embed_request(index: int, body: Body) -> EmbedRequest:
    """Raises RowProblem."""
    body.text("model")
    body.choice("encoding_format", "float", "base64")
    return EmbedRequest(
        index=index,
        prompt=_input(body),
        dimensions=body.whole("dimensions", 1),
        truncation=truncation(body),
    )


def _input(body: Body) -> TextPrompt | TokensPrompt:
    value = body.get("input")
    if value is None:
        raise RowProblem("missing_field", "`input` is missing.", "input")
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], int):
        value = value[0]  # a list of one input, as many client libraries write it
    if isinstance(value, str):
        if not value.strip():
            raise RowProblem("empty_prompt", "`input` has no text.", "input")
        return TextPrompt(value, body.flag("add_special_tokens", True))
    if value == []:
        raise RowProblem("empty_prompt", "`input` is empty.", "input")
    if token_list(value):
        return TokensPrompt(tuple(value))
    if isinstance(value, list) and all(isinstance(item, str) or token_list(item) for item in value):
        raise RowProblem("many_inputs", f"`input` has {len(value)} inputs; make one row of each, since a row has one vector.", "input")
    raise body.wrong("input", "a string or a list of token ids")


def truncation(body: Body) -> Truncation | None:
    """`truncate_prompt_tokens` and `truncation_side`, for prompts of all kinds. Raises RowProblem."""
    tokens = body.whole("truncate_prompt_tokens", -1)
    side = body.choice("truncation_side", "left", "right")
    if tokens is None:
        return None
    if tokens == 0:
        raise RowProblem("invalid_parameter", "`truncate_prompt_tokens` is 0, which leaves no prompt.", "truncate_prompt_tokens")
    return Truncation(tokens, "left" if side == "left" else "right" if side == "right" else None)
