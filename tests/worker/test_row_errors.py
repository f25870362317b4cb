# tests/worker: what vLLM says of a bad row becomes a code; the texts here are vLLM 0.32's and transformers'.
from __future__ import annotations

import pytest

from worker.engine.vllm_core import row_error


class VLLMValidationError(Exception):
    """Has the shape of vLLM's: a parameter beside the text."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VLLMValidationError("This model's maximum context length is 512 tokens. However, …", "input_text"), "context_length_exceeded"),
        (VLLMValidationError("This model's maximum context length is 512 tokens. However, …", "input_tokens"), "context_length_exceeded"),
        (
            VLLMValidationError("The decoder prompt (length 512) … is longer than the maximum model length of 512."),
            "context_length_exceeded",
        ),
        (VLLMValidationError("The decoder prompt cannot be empty"), "empty_prompt"),
        (
            ValueError("As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template …"),
            "no_chat_template",
        ),
        (ValueError("Cannot use chat template functions because tokenizer.chat_template is not set …"), "no_chat_template"),
        (VLLMValidationError("temperature must be non-negative, got -1.", "temperature"), "invalid_parameter"),
        (VLLMValidationError("Grammar error: …"), "invalid_parameter"),
        (KeyError("role"), "invalid_parameter"),
        (TypeError(), "invalid_parameter"),
    ],
)
def test_each_refusal_has_a_code_and_a_message(error: Exception, code: str) -> None:
    made = row_error(error)
    assert made.code == code
    assert made.message


def test_a_refusal_names_its_field_and_does_not_repeat_a_whole_prompt() -> None:
    made = row_error(VLLMValidationError("x" * 100_000, "temperature"))
    assert made.param == "temperature"
    assert len(made.message) <= 500
