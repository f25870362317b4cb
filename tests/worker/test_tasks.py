# tests/worker: OpenAI bodies become requests field by field, and what cannot be honoured is a row error that names the field.
from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import worker.tasks
from contract.models import TaskKind, TaskSpec
from contract.rows import ChatUrl, CompletionUrl, EmbeddingUrl, RowError
from worker.engine.base import (
    ChatPrompt,
    Choice,
    EmbedRequest,
    EngineRequest,
    Generated,
    GenerateRequest,
    Refused,
    Sampling,
    StepLogprobs,
    Structured,
    TextPrompt,
    TokenLogprob,
    TokensPrompt,
    Truncation,
)
from worker.rows import ShardRow
from worker.tasks import requests, unknown_params
from worker.tasks.answers import answer, incomplete
from worker.tasks.fields import Body
from worker.tasks.generate import CHAT_FIELDS, chat_request

HELLO = [{"role": "user", "content": "hello"}]


def translate(url: str, *bodies: dict[str, Any] | str, kind: TaskKind | None = None, params: dict[str, Any] | None = None) -> list[Any]:
    rows = [
        ShardRow(number, "id", b"", url, msgspec.Raw(body.encode() if isinstance(body, str) else json.dumps(body).encode()))
        for number, body in enumerate(bodies)
    ]
    return list(requests(rows, TaskSpec(kind=kind or ("embed" if url == EmbeddingUrl else "generate"), model="m", params=params or {})))


def request(url: str, body: dict[str, Any] | str, **options: Any) -> EngineRequest:
    (made,) = translate(url, body, **options)
    assert not isinstance(made, Refused), made
    return made  # type: ignore[no-any-return]


def refused(url: str, body: dict[str, Any] | str, **options: Any) -> RowError:
    (made,) = translate(url, body, **options)
    assert isinstance(made, Refused), made
    return made.error


def sampling(url: str, **fields: Any) -> Sampling:
    body = {"messages": HELLO} if url == ChatUrl else {"prompt": "hello"}
    made = request(url, {**body, **fields})
    assert isinstance(made, GenerateRequest)
    return made.sampling


SAMPLING = {
    "n": (3, 3),
    "max_tokens": (7, 7),
    "min_tokens": (2, 2),
    "temperature": (0, 0.0),
    "top_p": (0.5, 0.5),
    "top_k": (4, 4),
    "min_p": (0.1, 0.1),
    "presence_penalty": (-1.5, -1.5),
    "frequency_penalty": (2, 2.0),
    "repetition_penalty": (1.2, 1.2),
    "seed": (42, 42),
    "stop": (["\n", "END"], ("\n", "END")),
    "stop_token_ids": ([5, 6], (5, 6)),
    "include_stop_str_in_output": (True, True),
    "ignore_eos": (True, True),
    "skip_special_tokens": (False, False),
    "spaces_between_special_tokens": (False, False),
    "prompt_logprobs": (2, 2),
    "logit_bias": ({"50": -100}, {"50": -100}),
    "allowed_token_ids": ([1, 2], (1, 2)),
    "bad_words": (["no"], ("no",)),
}


@pytest.mark.parametrize("url", [ChatUrl, CompletionUrl])
@pytest.mark.parametrize("name", SAMPLING)
def test_every_sampling_field_reaches_the_engine(url: str, name: str) -> None:
    given, expected = SAMPLING[name]
    assert getattr(sampling(url, **{name: given}), name) == expected
    assert getattr(sampling(url, **{name: given}), name) != getattr(Sampling(max_tokens=16), name)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert sampling(ChatUrl, stop="###").stop == ("###",)


def test_max_completion_tokens_wins_over_max_tokens_as_at_openai() -> None:
    made = request(ChatUrl, {"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 9})
    assert isinstance(made, GenerateRequest)
    assert (made.sampling.max_tokens, made.tokens_field) == (9, "max_completion_tokens")


def test_a_limit_that_is_not_given_is_openais_default() -> None:
    assert sampling(CompletionUrl).max_tokens == 16
    assert sampling(ChatUrl).max_tokens is None


def test_logprobs_of_both_urls() -> None:
    assert sampling(ChatUrl, logprobs=True, top_logprobs=3).logprobs == 3
    assert sampling(ChatUrl, logprobs=True).logprobs == 0
    assert sampling(ChatUrl, logprobs=False).logprobs is None
    assert sampling(CompletionUrl, logprobs=2).logprobs == 2
    assert refused(ChatUrl, {"messages": HELLO, "top_logprobs": 2}).param == "top_logprobs"


def test_response_formats_become_constraints() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert sampling(ChatUrl, response_format=wanted).structured == Structured("json", schema)
    assert sampling(ChatUrl, response_format={"type": "json_object"}).structured == Structured("json_object", True)
    assert sampling(ChatUrl, response_format={"type": "text"}).structured is None
    assert sampling(CompletionUrl, structured_outputs={"regex": "[ab]+"}).structured == Structured("regex", "[ab]+")
    assert refused(ChatUrl, {"messages": HELLO, "response_format": {"type": "json_schema"}}).param == "response_format"
    assert refused(ChatUrl, {"messages": HELLO, "response_format": {"type": "grammar"}}).code == "unsupported_field"


def test_chat_messages_and_template_fields_reach_the_engine() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "hi", "name": "ann"},
    ]
    made = request(ChatUrl, {"messages": messages, "reasoning_effort": "low", "chat_template_kwargs": {"x": 1}})
    assert isinstance(made, GenerateRequest)
    assert made.prompt == ChatPrompt(tuple(messages), template_kwargs={"x": 1, "reasoning_effort": "low", "enable_thinking": True})
    carry_on = request(ChatUrl, {"messages": messages, "continue_final_message": True})
    assert isinstance(carry_on, GenerateRequest)
    assert isinstance(carry_on.prompt, ChatPrompt)
    assert (carry_on.prompt.continue_final_message, carry_on.prompt.add_generation_prompt) == (True, False)


def test_prompts_may_be_text_or_tokens_alone_or_in_a_list_of_one() -> None:
    for given, expected in [
        ("hi", TextPrompt("hi")),
        (["hi"], TextPrompt("hi")),
        ([1, 2], TokensPrompt((1, 2))),
        ([[1, 2]], TokensPrompt((1, 2))),
    ]:
        made = request(CompletionUrl, {"prompt": given})
        assert made.prompt == expected
        assert request(EmbeddingUrl, {"input": given}).prompt == expected
    assert refused(CompletionUrl, {"prompt": ["a", "b"]}).code == "many_inputs"
    assert "one row of each" in refused(EmbeddingUrl, {"input": ["a", "b"]}).message


def test_embedding_fields_reach_the_engine() -> None:
    made = request(EmbeddingUrl, {"input": "x", "dimensions": 64, "truncate_prompt_tokens": -1, "truncation_side": "left"})
    assert made == EmbedRequest(0, TextPrompt("x"), 64, Truncation(-1, "left"))
    assert isinstance(request(EmbeddingUrl, {"input": "x", "encoding_format": "base64"}), EmbedRequest)
    assert refused(EmbeddingUrl, {"input": "x", "encoding_format": "int8"}).param == "encoding_format"


def test_vectors_of_a_shard_have_one_length() -> None:
    first, second, third = translate(EmbeddingUrl, {"input": "a", "dimensions": 8}, {"input": "b"}, {"input": "c", "dimensions": 8})
    assert isinstance(first, EmbedRequest)
    assert isinstance(third, EmbedRequest)
    assert (second.error.code, second.error.param) == ("invalid_parameter", "dimensions")


@pytest.mark.parametrize(
    "field",
    [
        {"stream": True},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"functions": [{}]},
        {"audio": {"voice": "x"}},
        {"modalities": ["audio"]},
        {"use_beam_search": True},
        {"best_of": 2},
        {"echo": True},
        {"suffix": "end"},
        {"priority": 3},
        {"prediction": {}},
        {"web_search_options": {}},
        {"chat_template": "{{ x }}"},
        {"temprature": 0.5},
    ],
)
def test_a_field_that_is_not_supported_is_a_row_error_that_names_it(field: dict[str, Any]) -> None:
    (name,) = field
    for url, body in ((ChatUrl, {"messages": HELLO}), (CompletionUrl, {"prompt": "x"})):
        error = refused(url, {**body, **field})
        assert (error.code, error.param) == ("unsupported_field", name)
        assert f"`{name}`" in error.message


def test_what_asks_for_nothing_is_not_held_against_a_row() -> None:
    nothing = {
        "stream": False, "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "modalities": ["text"], "user": "u", "stop": [],
        "metadata": {"a": "b"}, "store": False, "service_tier": "flex", "n": None, "seed": None, "best_of": 1, "logit_bias": {},
        "model": "gpt-4o-mini", "safety_identifier": "s", "prompt_cache_key": "k", "stream_options": None, "priority": 0,
    }  # fmt: skip
    assert sampling(ChatUrl, **nothing) == Sampling()


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_field", "messages"),
        ({"messages": []}, "empty_prompt", "messages"),
        ({"messages": "hi"}, "wrong_type", "messages"),
        ({"messages": ["hi"]}, "wrong_type", "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "missing_field", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_field", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "wrong_type", "messages[0].content"),
        ({"messages": [{"role": "user", "content": ""}]}, "empty_prompt", "messages"),
        ({"messages": [{"role": "user", "content": "x", "audio": {}}]}, "unsupported_field", "messages[0].audio"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "unsupported_field",
            "messages[0].content[0].type",
        ),
        ({"messages": HELLO, "temperature": "hot"}, "wrong_type", "temperature"),
        ({"messages": HELLO, "temperature": -1}, "invalid_parameter", "temperature"),
        ({"messages": HELLO, "temperature": True}, "wrong_type", "temperature"),
        ({"messages": HELLO, "max_tokens": 0}, "invalid_parameter", "max_tokens"),
        ({"messages": HELLO, "max_tokens": 2.5}, "wrong_type", "max_tokens"),
        ({"messages": HELLO, "n": 1000}, "invalid_parameter", "n"),
        ({"messages": HELLO, "stop": ""}, "invalid_parameter", "stop"),
        ({"messages": HELLO, "stop": ["a", ""]}, "invalid_parameter", "stop"),
        ({"messages": HELLO, "seed": 2**70}, "invalid_parameter", "seed"),
        ({"messages": HELLO, "logit_bias": {"word": 1}}, "wrong_type", "logit_bias"),
        ({"messages": HELLO, "logit_bias": {"5": 101}}, "invalid_parameter", "logit_bias"),
        ({"messages": HELLO, "user": "u", "chat_template_kwargs": {"tools": []}}, "unsupported_field", "chat_template_kwargs"),
        ("[1]", "wrong_type", "body"),
        ('"text"', "wrong_type", "body"),
        ("null", "wrong_type", "body"),
        ('{"messages": NaN}', "invalid_json", "body"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "lone_surrogate", "body"),
    ],
)
def test_a_bad_chat_body_is_a_row_error_with_code_and_field(body: dict[str, Any] | str, code: str, param: str) -> None:
    error = refused(ChatUrl, body)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "missing_field"),
        ("", "empty_prompt"),
        ("  \n", "empty_prompt"),
        ([], "empty_prompt"),
        (7, "wrong_type"),
        ({"a": 1}, "wrong_type"),
        ([1, -2], "wrong_type"),
        ([1.5], "wrong_type"),
        (["a", 3], "wrong_type"),
        ([True], "wrong_type"),
    ],
)
def test_a_bad_prompt_or_input_is_a_row_error(value: Any, code: str) -> None:
    assert refused(CompletionUrl, {"prompt": value}).code == code
    assert refused(EmbeddingUrl, {"input": value}).code == code


def test_a_bad_row_leaves_its_neighbours_alone() -> None:
    made = translate(ChatUrl, {"messages": HELLO}, {"messages": 1}, {"messages": HELLO})
    assert [isinstance(item, Refused) for item in made] == [False, True, False]
    assert [item.index for item in made] == [0, 1, 2]


def test_a_fault_of_ours_in_one_row_is_that_rows_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def faulty(index: int, body: Body) -> EngineRequest:
        if index == 1:
            raise ZeroDivisionError
        return chat_request(index, body)

    monkeypatch.setitem(worker.tasks._URLS, ChatUrl, (CHAT_FIELDS, faulty))
    made = translate(ChatUrl, *[{"messages": HELLO}] * 3)
    assert [isinstance(item, Refused) for item in made] == [False, True, False]
    assert made[1].error.code == "internal_error"
    assert "row 1 could not be read" in caplog.text


def test_the_tasks_parameters_fill_in_what_a_body_does_not_say() -> None:
    params = {"max_tokens": 24, "temperature": 0.0}
    one = request(ChatUrl, {"messages": HELLO, "temperature": 0.7}, params=params)
    assert isinstance(one, GenerateRequest)
    assert (one.sampling.max_tokens, one.sampling.temperature) == (24, 0.7)
    own_limit = request(ChatUrl, {"messages": HELLO, "max_tokens": 5}, params={"max_completion_tokens": 99})
    assert isinstance(own_limit, GenerateRequest)
    assert own_limit.sampling.max_tokens == 5


def test_parameters_that_no_row_could_use_are_named() -> None:
    assert unknown_params(TaskSpec(kind="generate", model="m", params={"max_completion_tokens": 1, "input": "x", "temp": 1})) == [
        "input",
        "temp",
    ]
    assert unknown_params(TaskSpec(kind="embed", model="m", params={"dimensions": 8})) == []


# --- answers ---


def step(token: str, logprob: float, *others: tuple[str, float]) -> StepLogprobs:
    chosen = TokenLogprob(7, token, logprob, token)
    return StepLogprobs(chosen, (chosen, *(TokenLogprob(8, other, value, other) for other, value in others)))


def test_a_chat_answer_has_openais_shape() -> None:
    choice = Choice(0, "Paris.", 3, "stop", None, (step("Par", -0.5, ("Lon", -2.0)),))
    body = json.loads(answer(ChatUrl, Generated(4, 11, (choice,)), ident="e-4", created=1700000000, model="m"))
    assert body == {
        "id": "chatcmpl-e-4",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris.", "refusal": None},
                "logprobs": {
                    "content": [
                        {
                            "token": "Par",
                            "logprob": -0.5,
                            "bytes": [80, 97, 114],
                            "top_logprobs": [
                                {"token": "Par", "logprob": -0.5, "bytes": [80, 97, 114]},
                                {"token": "Lon", "logprob": -2.0, "bytes": [76, 111, 110]},
                            ],
                        }
                    ]
                },
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 11, "total_tokens": 14, "completion_tokens": 3},
    }


def test_a_completion_answer_has_openais_shape() -> None:
    choices = (Choice(0, " a b", 2, "length", None, (step(" a", -1.0), step(" b", -2.0, (" c", -2.5)))), Choice(1, " c", 1, "stop", "END"))
    body = json.loads(answer(CompletionUrl, Generated(0, 5, choices), ident="x", created=1, model="m"))
    assert (body["id"], body["object"], body["usage"]["completion_tokens"]) == ("cmpl-x", "text_completion", 3)
    assert body["choices"][0]["logprobs"] == {
        "text_offset": [0, 2],
        "token_logprobs": [-1.0, -2.0],
        "tokens": [" a", " b"],
        "top_logprobs": [{" a": -1.0}, {" b": -2.0, " c": -2.5}],
    }
    assert (body["choices"][1]["finish_reason"], body["choices"][1]["stop_reason"]) == ("stop", "END")


def test_of_two_tokens_with_the_same_text_the_likelier_one_keeps_its_logprob() -> None:
    choice = Choice(0, "\ufffd", 1, "length", None, (step("\ufffd", -0.5, ("\ufffd", -3.0)),))
    body = json.loads(answer(CompletionUrl, Generated(0, 1, (choice,)), ident="x", created=1, model="m"))
    assert body["choices"][0]["logprobs"]["top_logprobs"] == [{"\ufffd": -0.5}]


def test_a_structured_answer_that_was_cut_off_is_a_failed_row_that_says_how_it_began() -> None:
    error = incomplete(Generated(0, 5, (Choice(0, '{"a": 1', 4, "length"),), structured=True))
    assert error is not None
    assert (error.code, error.param) == ("schema_incomplete", "max_tokens")
    assert '{"a": 1' in error.message
    assert incomplete(Generated(0, 5, (Choice(0, "{}", 2, "stop"),), structured=True)) is None
