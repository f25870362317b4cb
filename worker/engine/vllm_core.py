"""worker/engine: the Core over vLLM's LLMEngine. The only module of Nightbatch that imports vLLM.

What a row may ask for follows vLLM's own OpenAI server (entrypoints/openai of vLLM 0.32): the same defaults from the model's
generation_config, the same tokenizing rules, the same limits, so that results equal `vllm run-batch` row by row.
Works with the engine in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0) and in its own (=1, what the image uses).
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from contract.rows import RowError
from worker.engine.base import (
    ChatPrompt,
    Choice,
    Embedded,
    EmbedRequest,
    EngineInfo,
    EngineKind,
    EngineRequest,
    EngineResult,
    Generated,
    GenerateRequest,
    Refused,
    Sampling,
    StepLogprobs,
    TextPrompt,
    TokenLogprob,
    TokensPrompt,
    Truncation,
)

log = logging.getLogger("nightbatch.engine")

_TOO_LONG = frozenset({"input_text", "input_tokens", "prompt_token_ids"})
_NO_TEMPLATE = re.compile(r"chat.template.*(not define|no longer allowed|not set|not have)|no chat.template", re.DOTALL)
_LEAST_LOGPROB = -9999.0
"""What vLLM's server writes for minus infinity, which JSON cannot say."""


class VllmCore:
    """One model in vLLM, loaded by the constructor, which takes seconds to minutes.

    `engine_args`: keyword arguments of vllm.EngineArgs. `started`: when loading began, by time.monotonic(); importing vLLM counts.
    """

    def __init__(self, kind: EngineKind, engine_args: dict[str, Any], served_name: str, started: float) -> None:
        import torch
        import vllm
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = {"disable_log_stats": True, **engine_args}
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(runner="pooling" if kind == "embed" else "generate", **arguments),
            usage_context=UsageContext.LLM_CLASS,
        )
        config = self._engine.vllm_config
        self._model_config = config.model_config
        self._renderer = self._engine.renderer
        self._defaults: dict[str, Any] = dict(self._model_config.get_diff_sampling_param())
        self._override_max_tokens: int | None = (
            self._defaults.get("max_tokens")
            if self._model_config.generation_config not in ("auto", "vllm")
            else (getattr(self._model_config, "override_generation_config", None) or {}).get("max_new_tokens")
        )
        self._batch_size = int(config.scheduler_config.max_num_seqs)
        self._kind = kind
        self._flying: dict[str, EngineRequest] = {}
        self._info = EngineInfo(
            kind=kind,
            model=served_name,
            max_model_len=int(self._model_config.max_model_len),
            dtype=str(self._model_config.dtype).removeprefix("torch."),
            load_s=time.monotonic() - started,
            versions={"vllm": str(vllm.__version__), "torch": str(torch.__version__)},
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def batch_size(self) -> int:
        return self._batch_size

    def unfinished(self) -> int:
        return len(self._flying)

    def abort(self, keys: Sequence[str]) -> None:
        self._engine.abort_request(list(keys))
        for key in keys:
            self._flying.pop(key, None)

    def close(self) -> None:
        self._engine.renderer.shutdown()
        self._engine.engine_core.shutdown()

    # --- adding ------------------------------------------------------------------------------------------------------------------

    def add(self, rows: Sequence[tuple[str, EngineRequest]]) -> list[tuple[str, Refused]]:
        refused: list[tuple[str, Refused]] = []
        embeds = [(key, row) for key, row in rows if isinstance(row, EmbedRequest)]
        ready = self._tokenized(embeds, refused)
        for key, row in rows:
            try:
                if isinstance(row, GenerateRequest):
                    if self._kind != "generate":
                        raise _Wrong("wrong_task", "the loaded model gives vectors and cannot generate.")
                    prompt, params = self._generate(row)
                elif key in ready:
                    prompt, params = ready[key]
                else:
                    continue  # already refused
                self._engine.add_request(key, prompt, params)
            except Exception as error:  # vLLM raises many types for a bad row, and it never reaches the engine
                refused.append((key, Refused(row.index, row_error(error))))
            else:
                self._flying[key] = row
        return refused

    def _generate(self, row: GenerateRequest) -> tuple[Any, Any]:
        from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
        from vllm.inputs import TextPrompt as VllmText
        from vllm.inputs import TokensPrompt as VllmTokens
        from vllm.renderers import ChatParams

        sampling, prompt = row.sampling, row.prompt
        specials = prompt.add_special_tokens if not isinstance(prompt, TokensPrompt) else False
        tokenize = self._tokenize_params(sampling.max_tokens or 0, row.truncation, specials, row.tokens_field)
        if isinstance(prompt, ChatPrompt):
            kwargs = {
                **prompt.template_kwargs,
                "add_generation_prompt": prompt.add_generation_prompt,
                "continue_final_message": prompt.continue_final_message,
                "tools": None,
                "tokenize": False,
            }
            kwargs = {name: value for name, value in kwargs.items() if value is not None}
            messages: Any = [dict(message) for message in prompt.messages]
            _, (ready,) = self._renderer.render_chat([messages], ChatParams(chat_template_kwargs=kwargs), tokenize)
        elif isinstance(prompt, TokensPrompt):
            (ready,) = self._renderer.render_cmpl([VllmTokens(prompt_token_ids=list(prompt.tokens))], tokenize)
        else:
            (ready,) = self._renderer.render_cmpl([VllmText(prompt=prompt.text)], tokenize)
        length = len(ready["prompt_token_ids"])
        limit = self._info.max_model_len
        if length >= limit:
            raise _Wrong(
                "context_length_exceeded",
                f"the prompt has {length} tokens and the model's context is {limit}, which leaves no room for an answer.",
            )
        most = get_max_tokens(
            limit,
            sampling.max_tokens,
            length,
            self._defaults,
            self._override_max_tokens,
            truncate_prompt_tokens=row.truncation.tokens if row.truncation else None,
        )
        return ready, self._sampling(sampling, most)

    def _tokenize_params(self, max_tokens: int, truncation: Truncation | None, specials: bool, field: str) -> Any:
        from vllm.renderers import TokenizeParams

        return TokenizeParams(
            max_total_tokens=self._info.max_model_len,
            max_output_tokens=max_tokens,
            truncate_prompt_tokens=truncation.tokens if truncation else None,
            truncation_side=truncation.side if truncation else None,
            add_special_tokens=specials,
            max_total_tokens_param="max_model_len",
            max_output_tokens_param=field,
        )

    def _sampling(self, want: Sampling, max_tokens: int) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        def default(name: str, otherwise: float) -> Any:
            value = getattr(want, name)
            return value if value is not None else self._defaults.get(name, otherwise)

        stop_ids = list(dict.fromkeys([*want.stop_token_ids, *(self._defaults.get("stop_token_ids") or ())]))
        structured = None
        if want.structured is not None:
            structured = StructuredOutputsParams(**{want.structured.kind: want.structured.value})
        return SamplingParams.from_optional(
            n=want.n,
            temperature=default("temperature", 1.0),
            top_p=default("top_p", 1.0),
            top_k=default("top_k", 0),
            min_p=default("min_p", 0.0),
            presence_penalty=default("presence_penalty", 0.0),
            frequency_penalty=default("frequency_penalty", 0.0),
            repetition_penalty=default("repetition_penalty", 1.0),
            seed=want.seed,
            stop=list(want.stop),
            stop_token_ids=stop_ids,
            include_stop_str_in_output=want.include_stop_str_in_output,
            ignore_eos=want.ignore_eos,
            max_tokens=max_tokens,
            min_tokens=want.min_tokens,
            logprobs=want.logprobs,
            prompt_logprobs=want.prompt_logprobs,
            skip_special_tokens=want.skip_special_tokens,
            spaces_between_special_tokens=want.spaces_between_special_tokens,
            logit_bias=want.logit_bias,
            allowed_token_ids=list(want.allowed_token_ids) if want.allowed_token_ids is not None else None,
            bad_words=list(want.bad_words),
            structured_outputs=structured,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )

    def _tokenized(self, rows: Sequence[tuple[str, EmbedRequest]], refused: list[tuple[str, Refused]]) -> dict[str, tuple[Any, Any]]:
        """Texts to tokens, many at once: the fast tokenizer uses all cores then. A chunk that fails as a whole is done row by row."""
        if not rows:
            return {}
        from vllm import PoolingParams
        from vllm.inputs import TokensPrompt as VllmTokens

        if self._kind != "embed":
            refused += [
                (key, Refused(row.index, RowError(code="wrong_task", message="the loaded model generates text and gives no vectors.")))
                for key, row in rows
            ]
            return {}
        arrival = time.time()
        groups: dict[tuple[Truncation | None, bool], list[tuple[str, EmbedRequest]]] = defaultdict(list)
        ready: dict[str, tuple[Any, Any]] = {}
        for key, row in rows:
            specials = row.prompt.add_special_tokens if isinstance(row.prompt, TextPrompt) else False
            groups[row.truncation, specials].append((key, row))
        for (truncation, specials), group in groups.items():
            tokenize = self._embed_tokenize_params(truncation, specials)
            tokens = self._encode(tokenize, group, refused)
            for key, row in group:
                if key not in tokens:
                    continue
                try:
                    if not tokens[key]:
                        raise _Wrong("empty_prompt", "the input has no tokens.")
                    prompt = tokenize.apply_post_tokenization(self._renderer.tokenizer, VllmTokens(prompt_token_ids=tokens[key]))
                    params = PoolingParams(task="embed", dimensions=row.dimensions)
                    ready[key] = self._renderer.process_for_engine(prompt, arrival, tok_params=tokenize), params
                except Exception as error:  # a bad row, as in `add`
                    refused.append((key, Refused(row.index, row_error(error))))
        return ready

    def _embed_tokenize_params(self, truncation: Truncation | None, specials: bool) -> Any:
        from vllm.renderers import TokenizeParams

        pooler, encoder = self._model_config.pooler_config, self._model_config.encoder_config or {}
        longest = (pooler.max_embed_len if pooler is not None else None) or self._info.max_model_len
        return TokenizeParams(
            max_total_tokens=longest,
            max_output_tokens=0,
            truncate_prompt_tokens=truncation.tokens if truncation else None,
            truncation_side=truncation.side if truncation else None,
            do_lower_case=encoder.get("do_lower_case", False),
            add_special_tokens=specials,
            max_total_tokens_param="max_model_len",
        )

    def _encode(self, tokenize: Any, group: list[tuple[str, EmbedRequest]], refused: list[tuple[str, Refused]]) -> dict[str, list[int]]:
        tokenizer: Any = self._renderer.get_tokenizer()
        done: dict[str, list[int]] = {}
        keys: list[str] = []
        texts: list[str] = []
        for key, row in group:
            if isinstance(row.prompt, TokensPrompt):
                done[key] = list(row.prompt.tokens)
                continue
            try:
                texts.append(tokenize.apply_pre_tokenization(tokenizer, {"prompt": row.prompt.text})["prompt"])
                keys.append(key)
            except Exception as error:  # a bad row, as in `add`
                refused.append((key, Refused(row.index, row_error(error))))
        if not texts:
            return done
        options = tokenize.get_encode_kwargs()
        try:
            done.update(zip(keys, tokenizer(texts, **options)["input_ids"], strict=True))
        except Exception:
            index = {key: row.index for key, row in group}
            for key, text in zip(keys, texts, strict=True):
                try:
                    done[key] = tokenizer(text, **options)["input_ids"]
                except Exception as error:  # now the bad one alone
                    refused.append((key, Refused(index[key], row_error(error))))
        return done

    # --- stepping ----------------------------------------------------------------------------------------------------------------

    def step(self) -> list[tuple[str, EngineResult]]:
        done: list[tuple[str, EngineResult]] = []
        for output in self._engine.step():
            if not output.finished:
                continue
            key = output.request_id
            row = self._flying.pop(key, None)
            if row is not None:
                done.append((key, self._result(row, output)))
        return done

    def _result(self, row: EngineRequest, output: Any) -> EngineResult:
        prompt_tokens = len(output.prompt_token_ids or ())
        if isinstance(row, EmbedRequest):
            failure = getattr(output, "error", None)
            if failure is not None:
                return Refused(row.index, RowError(code="engine_error", message=f"vLLM: {failure.message}"), prompt_tokens)
            vector = output.outputs.data.detach().to("cpu").float().numpy()
            return Embedded(row.index, prompt_tokens, np.ascontiguousarray(vector.reshape(-1), dtype=np.float32))
        if not output.outputs:
            return Refused(row.index, RowError(code="no_output", message="the engine ended this row without any output."), prompt_tokens)
        most = row.sampling.logprobs
        if most is not None and not isinstance(row.prompt, ChatPrompt):
            most += 1  # vLLM's server gives completions the chosen token beside the alternatives, chat within them
        choices = []
        for one in sorted(output.outputs, key=lambda item: item.index):
            if one.finish_reason in ("abort", "error"):
                why = f"the engine ended this row early ({one.finish_reason})."
                return Refused(row.index, RowError(code="engine_error", message=why), prompt_tokens)
            if not one.token_ids:
                return Refused(row.index, RowError(code="no_output", message="the engine ended this row without any token."), prompt_tokens)
            steps = None
            if most is not None and one.logprobs is not None:
                steps = tuple(self._step(token, position, most) for token, position in zip(one.token_ids, one.logprobs, strict=True))
            choices.append(Choice(one.index, one.text, len(one.token_ids), one.finish_reason, one.stop_reason, steps))
        prompt_logprobs = None
        if row.sampling.prompt_logprobs is not None and output.prompt_logprobs is not None:
            prompt_logprobs = tuple(
                None if position is None else self._step(token, position)
                for token, position in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
            )
        return Generated(row.index, prompt_tokens, tuple(choices), prompt_logprobs, row.sampling.structured is not None)

    def _step(self, token_id: int, position: Any, most: int | None = None) -> StepLogprobs:
        tokenizer: Any = self._renderer.get_tokenizer()

        def one(number: int, value: Any) -> TokenLogprob:
            text = value.decoded_token if value.decoded_token is not None else tokenizer.decode([number])
            return TokenLogprob(int(number), text, max(float(value.logprob), _LEAST_LOGPROB), value.decoded_token)

        top = tuple(one(number, value) for number, value in (position or {}).items())
        chosen = next((item for item in top if item.token_id == token_id), None)
        return StepLogprobs(chosen or TokenLogprob(int(token_id), tokenizer.decode([token_id]), None, None), top[:most])


class _Wrong(Exception):
    """A row that this module refuses itself."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def row_error(error: Exception) -> RowError:
    """Name what vLLM refused. The texts are vLLM's own; only the code is ours."""
    if isinstance(error, _Wrong):
        return RowError(code=error.code, message=str(error))
    parameter = getattr(error, "parameter", None)
    # VLLMValidationError repeats parameter and value at the end of its text; the value may be the whole prompt.
    message = str(error.args[0]) if error.args else str(error)
    message = message[:1].lower() + message[1:] if message else type(error).__name__
    lowered = message.lower()
    if parameter in _TOO_LONG or "maximum context length" in lowered or "longer than the maximum model length" in lowered:
        code = "context_length_exceeded"
    elif "cannot be empty" in lowered:
        code = "empty_prompt"
    elif _NO_TEMPLATE.search(lowered):
        code = "no_chat_template"
    elif isinstance(error, UnicodeError):
        code = "lone_surrogate"
    else:
        code = "invalid_parameter"
    if isinstance(error, KeyError):
        message = f"a field is missing: {message}"
    return RowError(code=code, message=message[:500], param=parameter if isinstance(parameter, str) else None)


def on_cpu() -> bool:
    """Whether vLLM runs on this machine's processor, for want of an accelerator or of a build for one."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
