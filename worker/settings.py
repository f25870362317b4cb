"""worker: what the environment says, read once and checked as a whole. Pure over a mapping.

NIGHTBATCH_MODEL          minilm, smollm2, tiny, a hub name, or a folder (required)
NIGHTBATCH_SERVED_NAME    the name that jobs and answers use; default: NIGHTBATCH_MODEL
NIGHTBATCH_REVISION       the hub revision to load; a job that asks for another is refused
NIGHTBATCH_TASK           generate or embed; default: what the named model does, else generate
NIGHTBATCH_CONCURRENCY    shards at once, 1 to 16; default 2 (at 1 the runpod SDK idles up to a second between shards)
NIGHTBATCH_STALL_S        seconds that one engine step may take before the worker gives the engine up; default 600
NIGHTBATCH_IMAGE          the image's digest, written into markers and commits
MAX_MODEL_LEN, DTYPE, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, GPU_MEMORY_UTILIZATION    vLLM's, under the stock worker's names
VLLM_EXTRA                a JSON object of further vllm.EngineArgs; wins over all of the above
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from contract.errors import UsageError
from worker.engine.base import EngineKind
from worker.models import NAMED

T = TypeVar("T")
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Settings:
    """A worker's settings. `engine_args`: for vllm.EngineArgs, without the defaults that depend on the device."""

    model: str
    served_name: str
    kind: EngineKind
    revision: str | None = None
    concurrency: int = 2
    stall_s: float = 600.0
    image: str | None = None
    engine_args: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the variables above. Raises UsageError that lists everything that is wrong, not only the first."""
        problems: list[str] = []

        def read(name: str, parse: Callable[[str], T], default: T) -> T:
            text = environ.get(name, "").strip()
            if not text:
                return default
            try:
                return parse(text)
            except ValueError as error:
                problems.append(f"{name}={text!r}: {error}")
                return default

        model = environ.get("NIGHTBATCH_MODEL", "").strip()
        if not model:
            problems.append("NIGHTBATCH_MODEL is not set: name a model, a hub name or a folder")
        named = NAMED.get(model)
        kind = read("NIGHTBATCH_TASK", _kind, named.kind if named else "generate")
        arguments: dict[str, Any] = {}
        for name, argument, parse in (
            ("MAX_MODEL_LEN", "max_model_len", _whole(1)),
            ("DTYPE", "dtype", _one_of(*DTYPES)),
            ("MAX_NUM_SEQS", "max_num_seqs", _whole(1)),
            ("MAX_NUM_BATCHED_TOKENS", "max_num_batched_tokens", _whole(1)),
            ("GPU_MEMORY_UTILIZATION", "gpu_memory_utilization", _share),
            ("NIGHTBATCH_REVISION", "revision", str),
        ):
            value: Any = read(name, parse, None)
            if value is not None:
                arguments[argument] = value
        if "revision" in arguments:
            arguments["tokenizer_revision"] = arguments["revision"]
        nothing: dict[str, Any] = {}
        arguments |= read("VLLM_EXTRA", _object, nothing)
        settings = cls(
            model=model,
            served_name=environ.get("NIGHTBATCH_SERVED_NAME", "").strip() or model,
            kind=kind,
            revision=environ.get("NIGHTBATCH_REVISION", "").strip() or None,
            concurrency=read("NIGHTBATCH_CONCURRENCY", _whole(1, 16), 2),
            stall_s=read("NIGHTBATCH_STALL_S", _positive, 600.0),
            image=environ.get("NIGHTBATCH_IMAGE", "").strip() or None,
            engine_args=arguments,
        )
        if problems:
            raise UsageError("the worker's environment is not usable: " + "; ".join(problems) + ".", fix="See worker/settings.py.")
        return settings

    def serves(self, model: str, revision: str | None) -> str | None:
        """None if a job may ask for this model, else the sentence that says why not."""
        if model not in (self.served_name, self.model):
            return f"`input.task.model` is {model!r}, and this worker serves {self.served_name!r}."
        if revision is not None and revision != self.revision:
            return f"`input.task.revision` is {revision!r}, and this worker loaded {self.revision or 'the default revision'}."
        return None


def _kind(text: str) -> EngineKind:
    if text == "generate":
        return "generate"
    if text == "embed":
        return "embed"
    raise ValueError("must be generate or embed")


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        wrong = f"must be a whole number from {least}" + (f" to {most}" if most is not None else " up")
        try:
            value = int(text)
        except ValueError:
            raise ValueError(wrong) from None
        if value < least or (most is not None and value > most):
            raise ValueError(wrong)
        return value

    return parse


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0 or math.isinf(value):
        raise ValueError("must be a number above 0")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise ValueError("must be a number above 0 and at most 1")
    return value


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return parse


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"must be a JSON object ({error.msg})") from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value
