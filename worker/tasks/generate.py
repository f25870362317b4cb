"""worker/tasks: /v1/chat/completions and /v1/completions bodies -> requests. Pure.

Names and meanings are OpenAI's; the ones that OpenAI does not have (top_k, min_p, min_tokens, structured_outputs …) are vLLM's.
"""

from __future__ import annotations

from typing import Any, Final

from contract.params import BODIES, COMPLETION_MAX_TOKENS
from contract.rows import ChatUrl, CompletionUrl
from worker.engine.base import ChatPrompt, GenerateRequest, Sampling, Structured, TextPrompt, TokensPrompt
from worker.tasks.embed import truncation
from worker.tasks.fields import Body, RowProblem, named, token_list

CHAT_FIELDS: Final = frozenset(BODIES[ChatUrl])
COMPLETION_FIELDS: Final = frozenset(BODIES[CompletionUrl])
_MESSAGE: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal"})
_STRUCTURED: Final = ("json", "json_object", "regex", "choice", "grammar")
_MOST_LOGPROBS: Final = 20
"""vLLM's max_logprobs, and OpenAI's limit for top_logprobs."""


def chat_request(index: int, body: Body) -> GenerateRequest:
    """Raises RowProblem."""
    limit, field = body.whole("max_completion_tokens", 1), "max_completion_tokens"
    if limit is None:
        limit, field = body.whole("max_tokens", 1), "max_tokens"
    else:
        body.whole("max_tokens", 1)
    wanted = body.flag("logprobs", False)
    top = body.whole("top_logprobs", 0, _MOST_LOGPROBS)
    if top and not wanted:
        raise RowProblem("invalid_parameter", "`top_logprobs` needs `logprobs`: true.", "top_logprobs")
    add, carry_on = body.flag("add_generation_prompt", True), body.flag("continue_final_message", False)
    if carry_on and body.get("add_generation_prompt") is True:
        raise RowProblem(
            "invalid_parameter", "`continue_final_message` and `add_generation_prompt` cannot both be true.", "continue_final_message"
        )
    kwargs = dict(body.object("chat_template_kwargs") or {})
    for reserved in ("tools", "tokenize", "chat_template", "return_dict"):
        if reserved in kwargs:
            raise RowProblem("unsupported_field", f"`chat_template_kwargs.{reserved}` is not supported.", "chat_template_kwargs")
    effort = body.choice("reasoning_effort", "none", "minimal", "low", "medium", "high", "xhigh", "max")
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
        kwargs.setdefault("enable_thinking", effort != "none")
    documents = body.get("documents")
    if documents is not None:
        if not isinstance(documents, list) or not all(isinstance(item, dict) for item in documents):
            raise body.wrong("documents", "a list of objects")
        kwargs.setdefault("documents", documents)
    prompt = ChatPrompt(
        messages=_messages(body),
        add_generation_prompt=add and not carry_on,
        continue_final_message=carry_on,
        add_special_tokens=body.flag("add_special_tokens", False),
        template_kwargs=kwargs,
    )
    return GenerateRequest(index, prompt, _sampling(body, limit, (top or 0) if wanted else None), truncation(body), field)


def completion_request(index: int, body: Body) -> GenerateRequest:
    """Raises RowProblem."""
    limit = body.whole("max_tokens", 1)
    logprobs = None if body.get("logprobs") is False else body.whole("logprobs", 0, _MOST_LOGPROBS)
    sampling = _sampling(body, COMPLETION_MAX_TOKENS if limit is None else limit, logprobs)
    return GenerateRequest(index, _prompt(body), sampling, truncation(body))


def _prompt(body: Body) -> TextPrompt | TokensPrompt:
    value = body.get("prompt")
    if value is None:
        raise RowProblem("missing_field", "`prompt` is missing.", "prompt")
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], int):
        value = value[0]  # a list of one prompt
    if isinstance(value, str):
        if not value.strip():
            raise RowProblem("empty_prompt", "`prompt` has no text.", "prompt")
        return TextPrompt(value, body.flag("add_special_tokens", True))
    if value == []:
        raise RowProblem("empty_prompt", "`prompt` is empty.", "prompt")
    if token_list(value):
        return TokensPrompt(tuple(value))
    if isinstance(value, list) and all(isinstance(item, str) or token_list(item) for item in value):
        raise RowProblem("many_inputs", f"`prompt` has {len(value)} prompts; make one row of each.", "prompt")
    raise body.wrong("prompt", "a string or a list of token ids")


def _messages(body: Body) -> tuple[dict[str, Any], ...]:
    value = body.get("messages")
    if value is None:
        raise RowProblem("missing_field", "`messages` is missing.", "messages")
    if not isinstance(value, list):
        raise body.wrong("messages", "a list of messages")
    if not value:
        raise RowProblem("empty_prompt", "`messages` is empty.", "messages")
    messages = tuple(_message(f"messages[{number}]", item) for number, item in enumerate(value))
    if not any(message.get("content") or message.get("tool_calls") for message in messages):
        raise RowProblem("empty_prompt", "no message has any content.", "messages")
    return messages


def _message(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowProblem("wrong_type", f"`{where}` is {named(value)}; it must be an object.", where)
    message = {name: item for name, item in value.items() if item is not None}
    for name in message:
        if name not in _MESSAGE:
            raise RowProblem("unsupported_field", f"`{where}.{name}` is not supported.", f"{where}.{name}")
    if "role" not in message:
        raise RowProblem("missing_field", f"`{where}.role` is missing.", f"{where}.role")
    for name in ("role", "name", "tool_call_id", "refusal"):
        if name in message and not isinstance(message[name], str):
            raise RowProblem("wrong_type", f"`{where}.{name}` is {named(message[name])}; it must be a string.", f"{where}.{name}")
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            raise RowProblem("missing_field", f"`{where}.content` is missing.", f"{where}.content")
    elif isinstance(content, list):
        for number, part in enumerate(content):
            _part(f"{where}.content[{number}]", part)
    elif not isinstance(content, str):
        raise RowProblem("wrong_type", f"`{where}.content` is {named(content)}; it must be a string or text parts.", f"{where}.content")
    return message


def _part(where: str, part: Any) -> None:
    if not isinstance(part, dict):
        raise RowProblem("wrong_type", f"`{where}` is {named(part)}; it must be an object.", where)
    kind = part.get("type")
    if kind != "text":
        raise RowProblem("unsupported_field", f"`{where}.type` is {kind!r}; only text parts are supported.", f"{where}.type")
    if not isinstance(part.get("text"), str):
        raise RowProblem("wrong_type", f"`{where}.text` is {named(part.get('text'))}; it must be a string.", f"{where}.text")


def _sampling(body: Body, max_tokens: int | None, logprobs: int | None) -> Sampling:
    body.text("model")
    return Sampling(
        n=body.whole("n", 1, 128) or 1,
        max_tokens=max_tokens,
        min_tokens=body.whole("min_tokens", 0) or 0,
        temperature=body.number("temperature", 0.0),
        top_p=body.number("top_p", 0.0, 1.0),
        top_k=body.whole("top_k", -1),
        min_p=body.number("min_p", 0.0, 1.0),
        presence_penalty=body.number("presence_penalty", -2.0, 2.0),
        frequency_penalty=body.number("frequency_penalty", -2.0, 2.0),
        repetition_penalty=body.number("repetition_penalty"),
        seed=body.seed(),
        stop=_stop(body),
        stop_token_ids=body.tokens("stop_token_ids") or (),
        include_stop_str_in_output=body.flag("include_stop_str_in_output", False),
        ignore_eos=body.flag("ignore_eos", False),
        skip_special_tokens=body.flag("skip_special_tokens", True),
        spaces_between_special_tokens=body.flag("spaces_between_special_tokens", True),
        logprobs=logprobs,
        prompt_logprobs=body.whole("prompt_logprobs", 0, _MOST_LOGPROBS),
        logit_bias=_logit_bias(body),
        allowed_token_ids=body.tokens("allowed_token_ids"),
        bad_words=body.texts("bad_words"),
        structured=_structured(body),
    )


def _stop(body: Body) -> tuple[str, ...]:
    value = body.get("stop")
    stops = (value,) if isinstance(value, str) else body.texts("stop")
    if any(not stop for stop in stops):
        raise RowProblem("invalid_parameter", "`stop` holds an empty string, which would end every answer before it begins.", "stop")
    return tuple(stops)


def _logit_bias(body: Body) -> dict[str, float] | None:
    value = body.object("logit_bias")
    for token, bias in (value or {}).items():
        if not (token.isascii() and token.isdigit()) or isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise RowProblem("wrong_type", "`logit_bias` must map token ids to numbers.", "logit_bias")
        if not -100 <= bias <= 100:
            raise RowProblem("invalid_parameter", f"`logit_bias` of token {token} is {bias}; it must be from -100 to 100.", "logit_bias")
    return value or None


def _structured(body: Body) -> Structured | None:
    wanted: Structured | None = None
    response = body.object("response_format")
    if response is not None:
        kind = response.get("type")
        if kind == "json_object":
            wanted = Structured("json_object", True)
        elif kind == "json_schema":
            holder = response.get("json_schema")
            schema = holder.get("schema") if isinstance(holder, dict) else None
            if not isinstance(schema, dict):
                raise RowProblem("wrong_type", "`response_format.json_schema.schema` must be an object.", "response_format")
            wanted = Structured("json", schema)
        elif kind != "text":
            raise RowProblem(
                "unsupported_field",
                f"`response_format.type` is {kind!r}; text, json_object and json_schema are supported.",
                "response_format",
            )
    given = {name: item for name, item in (body.object("structured_outputs") or {}).items() if item is not None}
    if not given:
        return wanted
    if wanted is not None or len(given) > 1:
        raise RowProblem("invalid_parameter", "only one constraint can be put on the text.", "structured_outputs")
    ((name, value),) = given.items()
    if name not in _STRUCTURED:
        raise RowProblem("unsupported_field", f"`structured_outputs.{name}` is not supported.", "structured_outputs")
    fits = {
        "json": isinstance(value, (str, dict)),
        "json_object": value is True,
        "regex": isinstance(value, str),
        "grammar": isinstance(value, str),
        "choice": isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value),
    }
    if not fits[name]:
        raise RowProblem("wrong_type", f"`structured_outputs.{name}` has the wrong type.", "structured_outputs")
    return Structured(name, value)  # type: ignore[arg-type]
