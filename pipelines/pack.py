"""pipelines: rows -> shards. Pure, and in whole numbers: the same rows give the same shards on every machine, whatever history says.

A shard is a run of consecutive rows. Its size follows from the rows alone (their bytes, their output limits, a token ratio from a sample of
them), never from the stack's speed, pace or prices: a second run of the same command must find the first one's shards.

What decides (constants below): a shard is worth at most about two minutes of a mid-range GPU, so that a death costs little and a slower
machine still ends inside RunPod's default execution timeout of 600 s; it holds at most a few thousand rows and 32 MiB, which a worker holds
in memory; and a small dataset is cut into up to 64 shards, as long as each keeps enough rows to fill a batch, so that several workers
share it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from contract.models import TaskKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLE_ROWS: Final = 2000


@dataclass(frozen=True)
class PackRules:
    """Sizes of shards. Costs are microseconds of a reference GPU (24 GB, a model of 8 billion parameters for generate, a small one for
    embed); they only weigh rows against each other and against `most_us`, and are never shown as a prediction."""

    us_per_token_in: int
    us_per_token_out: int
    most_us: int = 120_000_000
    most_rows: int = 2048
    most_bytes: int = 32 << 20
    few_rows: int = 256
    """About how many a shard of a small dataset keeps: vLLM's batch of 256 rows, so that one shard keeps the engine full while the other
    slot waits for work. The runpod SDK takes no more jobs a second than a worker may have at once (measured), so smaller shards starve
    a fast model: 1,024 rows of the tiny Llama took 4.6 to 7.6 s in shards of 128."""
    spread: int = 64
    """Shards that a small dataset is cut into at most on account of sharing it."""


RULES: Final[dict[TaskKind, PackRules]] = {
    "generate": PackRules(us_per_token_in=100, us_per_token_out=1000),
    "embed": PackRules(us_per_token_in=20, us_per_token_out=0, most_rows=8192, few_rows=512),
}
TOKENS_OUT: Final = 256
"""Output tokens of a row that says no limit, neither in its body nor in the task's parameters: for shards, and for the likely price."""
CONTEXT_ASSUMED: Final = 8192
"""Tokens of a row and its answer at most, for the high price of rows that say no limit, where the stack does not say the model's length
(`maxModelLen`): the context that models of the class of Llama 3 (8,192) have. Newer ones can have more."""


@dataclass
class TokenSample:
    """Bytes and estimated tokens of about 2,000 rows, evenly spread: every `stride`-th row, the stride doubling as the dataset grows.

    A tokenizer is not needed on the client, and the estimate is only that: four ASCII characters a token (a little less than the 4.9 that
    MiniLM's tokenizer makes of the English of examples/, because markup and numbers have fewer), 0.7 token for every other character, and
    5 tokens a chat message.
    """

    stride: int = 1
    _kept: list[tuple[int, int]] = field(default_factory=list, repr=False)

    def add(self, line: bytes) -> None:
        """The next row that is a stride away from the one before."""
        self._kept.append((len(line), milli_tokens(line)))
        if len(self._kept) >= 2 * SAMPLE_ROWS:
            self._kept = self._kept[::2]
            self.stride *= 2

    @property
    def rows(self) -> int:
        return len(self._kept)

    @property
    def milli_tokens_per_byte(self) -> int:
        """Thousandths of a token in a byte of a row's line; at least 1."""
        size = sum(length for length, _ in self._kept)
        return max(1, sum(tokens for _, tokens in self._kept) // size) if size else 250


def milli_tokens(line: bytes) -> int:
    """Estimated input tokens of one row's line, in thousandths. The JSON around the text costs none."""
    body: dict[str, Any] = msgspec.json.decode(line).get("body", {})
    total = 0
    todo: list[Any] = []
    messages = body.get("messages")
    if isinstance(messages, list):
        total += 5000 * len(messages)
        todo += [m.get("content") if isinstance(m, dict) else m for m in messages]
    todo += [body.get("prompt"), body.get("input")]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            plain = len(item.encode("ascii", "ignore"))
            total += 250 * plain + 700 * (len(item) - plain)
        elif isinstance(item, int):
            total += 1000  # a prompt of token ids
        elif isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            todo.append(item.get("text"))
    return total


def row_tokens(lengths: array[int], milli_per_byte: int) -> NDArray[np.int64]:
    """Estimated input tokens of each row."""
    import numpy as np

    return np.frombuffer(lengths, dtype=np.uint32).astype(np.int64) * milli_per_byte // 1000


def pack(
    tokens_in: NDArray[np.int64],
    tokens_out: NDArray[np.int64],
    lengths: NDArray[np.uint32],
    rules: PackRules,
    *,
    breaks: Sequence[int] = (),
    rows_per_shard: int | None = None,
) -> tuple[tuple[int, int], ...]:
    """[start, stop) of each shard, in order, covering every row. `breaks`: indices at which a shard must begin (files read in place).

    `rows_per_shard`: the user's own number instead of the rules' (their limits of rows and bytes still hold).
    """
    import numpy as np

    count = len(lengths)
    if count == 0:
        return ()
    if rows_per_shard is not None and rows_per_shard < 1:
        raise ValueError("rows_per_shard must be at least 1")
    cost = np.concatenate(([0], np.cumsum(tokens_in * rules.us_per_token_in + tokens_out * rules.us_per_token_out + 1)))
    size = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    total = int(cost[-1])
    small = max(1, min(rules.spread, (count + rules.few_rows // 2) // rules.few_rows))
    target = max(1, min(rules.most_us, -(-total // small)))
    shards: list[tuple[int, int]] = []
    edges = sorted({0, count, *(b for b in breaks if 0 < b < count)})
    for start, stop in pairwise(edges):
        if rows_per_shard is not None:
            pieces = -(-(stop - start) // rows_per_shard)
            cuts = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
        else:
            pieces = max(1, -(-(int(cost[stop]) - int(cost[start])) // target))
            cuts = _even(cost, start, stop, pieces)
        for piece in pairwise(cuts):
            shards += _within(cost, size, *piece, rules)
    return tuple(shards)


def _even(weight: NDArray[np.int64], start: int, stop: int, pieces: int) -> list[int]:
    """Cut [start, stop) into at most `pieces` runs of about equal weight, none of them empty."""
    import numpy as np

    base, whole = int(weight[start]), int(weight[stop] - weight[start])
    marks = np.array([base + whole * i // pieces for i in range(1, pieces)], dtype=np.int64)
    inner = np.searchsorted(weight, marks, side="left").tolist()
    cuts = [start]
    for cut in inner:
        if cuts[-1] < cut < stop:
            cuts.append(cut)
    return [*cuts, stop]


def _within(cost: NDArray[np.int64], size: NDArray[np.int64], start: int, stop: int, rules: PackRules) -> list[tuple[int, int]]:
    """The run itself, or its parts, each within the limits of rows and bytes (a single row may be as large as rows may be)."""
    rows, held = stop - start, int(size[stop] - size[start])
    if rows == 1 or (rows <= rules.most_rows and held <= rules.most_bytes):
        return [(start, stop)]
    pieces = max(2, -(-rows // rules.most_rows), -(-held // rules.most_bytes))
    cuts = [start + rows * i // min(pieces, rows) for i in range(min(pieces, rows) + 1)]
    return [part for piece in pairwise(cuts) for part in _within(cost, size, *piece, rules)]
