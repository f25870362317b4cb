"""worker/tasks: engine results -> OpenAI response bodies as JSON bytes, as vLLM's own server writes them. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from contract.rows import ChatUrl, RowError
from worker.engine.base import Choice, Generated, StepLogprobs, TokenLogprob

_encoder: Final = msgspec.json.Encoder()


def answer(url: str, result: Generated, *, ident: str, created: int, model: str) -> bytes:
    """The response body of one row. `ident` makes the answer's id; `created` is unix seconds."""
    chat = url == ChatUrl
    completion_tokens = sum(choice.tokens for choice in result.choices)
    body: dict[str, Any] = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{ident}",
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [_chat_choice(choice) if chat else _completion_choice(choice) for choice in result.choices],
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "total_tokens": result.prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        },
    }
    if result.prompt_logprobs is not None:
        body["prompt_logprobs"] = [
            None if step is None else {str(one.token_id): {"logprob": one.logprob, "decoded_token": one.decoded} for one in step.top}
            for step in result.prompt_logprobs
        ]
    return _encoder.encode(body)


def incomplete(result: Generated) -> RowError | None:
    """A constraint on the text is not kept by an answer that was cut off: such a row failed, and says where to look."""
    cut = next((choice for choice in result.choices if choice.finish_reason == "length"), None)
    if cut is None:
        return None
    return RowError(
        code="schema_incomplete",
        message=f"the answer was cut off after {cut.tokens} tokens, so it does not keep its format: raise the limit. "
        f"It began: {cut.text[:200]}",
        param="max_tokens",
    )


def _chat_choice(choice: Choice) -> dict[str, Any]:
    steps = choice.logprobs
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if steps is None else {"content": [_chat_logprob(step) for step in steps]},
        "finish_reason": choice.finish_reason or "stop",
        "stop_reason": choice.stop_reason,
    }


def _chat_logprob(step: StepLogprobs) -> dict[str, Any]:
    return {**_chat_token(step.chosen), "top_logprobs": [_chat_token(one) for one in step.top]}


def _chat_token(one: TokenLogprob) -> dict[str, Any]:
    return {"token": one.token, "logprob": _finite(one.logprob), "bytes": list(one.token.encode("utf-8", "replace"))}


def _completion_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if choice.logprobs is None else _completion_logprobs(choice.logprobs),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }


def _completion_logprobs(steps: tuple[StepLogprobs, ...]) -> dict[str, Any]:
    offsets, at = [], 0
    for step in steps:
        offsets.append(at)
        at += len(step.chosen.token)
    return {
        "text_offset": offsets,
        "token_logprobs": [step.chosen.logprob for step in steps],
        "tokens": [step.chosen.token for step in steps],
        "top_logprobs": [_by_text(step.top) for step in steps],
    }


def _by_text(top: tuple[TokenLogprob, ...]) -> dict[str, float] | None:
    """Two tokens may have the same text (halves of a character do): the first, which is the chosen or the likelier one, keeps it."""
    found: dict[str, float] = {}
    for one in top:
        found.setdefault(one.token, _finite(one.logprob))
    return found or None


def _finite(logprob: float | None) -> float:
    return -9999.0 if logprob is None else logprob
