"""nights/spaces: what a row's vector depends on, as one digest. Pure.

A vector is that of a row's exact line (id and body, as the worker reads it) under the parameters of its space: model and revision,
pooling, normalisation, dimensions, the prefix before each text, what becomes of a text that is too long, and every other parameter of the
task. A row whose fingerprint is in the table is not computed again. Parameters are the space's, not a row's: other parameters are another
space, because vectors of two models or of two ways to cut a text must never be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from contract.errors import UsageError
from contract.models import VERSION, Model, encode

SCHEME: Final = "nightbatch space 1"
"""Part of every digest, so that another way to make fingerprints would be another space."""
_NAMES: Final = {
    "model": "the model",
    "revision": "the model's revision",
    "pooling": "pooling",
    "normalize": "normalisation",
    "dimensions": "dimensions",
    "prefix": "the prefix before each text",
    "truncate_tokens": "the tokens that a long text keeps",
    "truncate_side": "the side that is cut off a long text",
}


class Parameters(Model, frozen=True, kw_only=True):
    """What all vectors of a space have in common. `pooling` is said, not ordered: a worker pools as the model's files or its endpoint's
    settings say. `params`: what the task has besides (`add_special_tokens` …)."""

    version: int = VERSION
    model: Annotated[str, msgspec.Meta(min_length=1)]
    revision: str | None = None
    pooling: str = "model"
    normalize: bool = False
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prefix: str = ""
    truncate_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    truncate_side: Literal["left", "right"] | None = None
    params: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Equal for equal parameters, and for nothing else."""
        return hashlib.sha256(encode([SCHEME, self])).hexdigest()

    def task_params(self) -> dict[str, Any]:
        """The task's parameters by which a worker embeds so. Prefix and normalisation are this side's: in the rows, and in `apply`."""
        own: dict[str, Any] = {}
        if self.dimensions is not None:
            own["dimensions"] = self.dimensions
        if self.truncate_tokens is not None:
            own["truncate_prompt_tokens"] = self.truncate_tokens
        if self.truncate_side is not None:
            own["truncation_side"] = self.truncate_side
        return {**self.params, **own}


class OtherParameters(UsageError):
    """The space was made with other parameters. `changes`: each as `the model was a, and is b now`."""

    def __init__(self, space: str, changes: tuple[str, ...]) -> None:
        super().__init__(
            f"{'; '.join(changes)}: its vectors and new ones must not be compared.",
            where=f"space {space}",
            fix="Give the job another space.name: a new space is computed in full, and the old one stays; or put it back as it was.",
        )
        self.changes = changes


def changes(kept: Parameters, asked: Parameters) -> tuple[str, ...]:
    """What differs, one clause each."""
    found: list[str] = []

    def differ(what: str, was: Any, now: Any) -> None:
        if was != now:
            found.append(f"{what} was {_shown(was)}, and is {_shown(now)} now")

    for name, what in _NAMES.items():
        differ(what, getattr(kept, name), getattr(asked, name))
    for name in sorted({*kept.params, *asked.params}):
        differ(f"parameter `{name}`", kept.params.get(name), asked.params.get(name))
    return tuple(found)


def _shown(value: Any) -> str:
    return "not set" if value is None or value == "" else repr(value) if isinstance(value, str) else str(value)


def fingerprints(parameters: Parameters) -> Callable[[bytes], bytes]:
    """A row's line -> its fingerprint, 32 bytes."""
    seed = hashlib.sha256(bytes.fromhex(parameters.digest))

    def of(line: bytes) -> bytes:
        digest = seed.copy()
        digest.update(line)
        return digest.digest()

    return of
