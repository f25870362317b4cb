"""worker/engine: what the rest of the worker knows of an engine: requests, results, and the Engine protocol. Pure; no vLLM here.

A request carries the row's index and nothing else of its identity: results are matched to rows by what was enqueued, never by order
of arrival or by custom_id (two rows, or two shards in flight, may share one).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from contract.rows import RowError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float32]

EngineKind = Literal["generate", "embed"]


class EngineDied(Exception):
    """An engine step raised, or the engine process is gone. Nothing more can be computed here: keep what is finished and exit."""


@dataclass(frozen=True)
class EngineInfo:
    """What a loaded engine is. `load_s`: seconds from the start of loading until the first request could be taken."""

    kind: EngineKind
    model: str
    max_model_len: int
    dtype: str
    load_s: float
    versions: dict[str, str] = field(default_factory=dict)


# --- requests ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextPrompt:
    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True)
class TokensPrompt:
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ChatPrompt:
    """Messages for the model's own chat template. `template_kwargs` reach the template as they are."""

    messages: tuple[dict[str, Any], ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Truncation:
    """Cut a prompt to `tokens` (-1: to the model's length); `side`: the end that is cut off, None: the tokenizer's default."""

    tokens: int
    side: Literal["left", "right"] | None = None


@dataclass(frozen=True)
class Structured:
    """One constraint on the text. `value`: a schema (json), a pattern (regex), a list (choice), a grammar, or True (json_object)."""

    kind: Literal["json", "json_object", "regex", "choice", "grammar"]
    value: Any


@dataclass(frozen=True)
class Sampling:
    """How to sample. None means: the model's own default (generation_config.json), else vLLM's."""

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    structured: Structured | None = None


@dataclass(frozen=True)
class GenerateRequest:
    """`index`: of the row in the dataset. `tokens_field`: the body field that set max_tokens, for messages."""

    index: int
    prompt: ChatPrompt | TextPrompt | TokensPrompt
    sampling: Sampling
    truncation: Truncation | None = None
    tokens_field: str = "max_tokens"


@dataclass(frozen=True)
class EmbedRequest:
    index: int
    prompt: TextPrompt | TokensPrompt
    dimensions: int | None = None
    truncation: Truncation | None = None


EngineRequest = GenerateRequest | EmbedRequest


# --- results -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenLogprob:
    """A token and its natural-log probability. `decoded` is None where the tokenizer gave no text for it alone."""

    token_id: int
    token: str
    logprob: float | None
    decoded: str | None


@dataclass(frozen=True)
class StepLogprobs:
    """The token that was chosen at one position, and the alternatives that were asked for (the chosen one first), best first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Choice:
    index: int
    text: str
    tokens: int
    finish_reason: str | None
    stop_reason: int | str | None = None
    logprobs: tuple[StepLogprobs, ...] | None = None


@dataclass(frozen=True)
class Generated:
    index: int
    prompt_tokens: int
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[StepLogprobs | None, ...] | None = None
    structured: bool = False
    """Whether the row asked for a format that the text has to keep."""


@dataclass(frozen=True)
class Embedded:
    index: int
    prompt_tokens: int
    vector: Vector


@dataclass(frozen=True)
class Refused:
    """This row alone failed; the others go on."""

    index: int
    error: RowError
    prompt_tokens: int = 0


EngineResult = Generated | Embedded | Refused


# --- the protocols -------------------------------------------------------------------------------------------------------------------


class Batch(Protocol):
    """One shard in the engine."""

    def __aiter__(self) -> AsyncIterator[list[EngineResult]]:
        """Results as rows finish, in any order, each row once. Raises EngineDied after everything that finished was given out."""
        ...

    def abort(self) -> None:
        """Take unfinished rows out between two steps; the iteration ends after what had finished. Idempotent."""
        ...


class Engine(Protocol):
    """A loaded model. Several batches may be in flight; rows of all of them share the continuous batch."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, requests: Iterable[EngineRequest | Refused]) -> Batch:
        """Start a shard. `requests` is consumed lazily, in chunks, by the engine's own thread; a Refused goes straight to the results."""
        ...
