"""nights/evals: what an evaluation leaves: one `Sample` a question and draw, and a header that says how it was made. Pure.

A sample counts in every score whatever became of it: one that failed, was cut by length or could not be parsed has 0 and says so in
`outcome`. Kept as `evals/SUITE/results/RESULT.jsonl.zst`: the header on the first line, then the samples in dataset order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from contract.errors import ContractError
from contract.lines import compress, decompress_lines
from contract.models import VERSION, Count, Instant, Model, Usd, decode, encode

SampleOutcome = Literal["ok", "failed", "cut", "unparsed"]
"""`ok`: an answer that the scorer could read, right or wrong; `failed`: the row has an error and no answer; `cut`: it ended by length;
`unparsed`: the scorer (or the judge) found no answer in it."""


class Sample(Model, frozen=True, kw_only=True):
    """One question's one draw. `scores`: by metric, each from 0 to 1 (or the metric's own scale, such as BLEU's); the suite's headline
    metric is always there. `NAME@K` is the question's estimate, the same in each of its draws. `draw`: which of n. `parsed`: what the
    scorer took as the answer. `explanation`: of the scorer or the judge. Tokens are those of all draws together, with the first of them."""

    id: str
    index: Count
    draw: Count = 0
    input: str
    target: str | tuple[str, ...] | None = None
    answer: str | None = None
    parsed: str | None = None
    outcome: SampleOutcome
    error: str | None = None
    scores: dict[str, float]
    explanation: str | None = None
    tokens_in: Count = 0
    tokens_out: Count = 0
    group: str | None = None
    """A subset that is reported apart (a subject, a language)."""


class ResultHeader(Model, frozen=True, kw_only=True):
    """How a result was made: what must be equal for two of them to be compared, and what may differ and is then said.

    `suite_digest`: of dataset digest, scorers and their versions, prompt: unequal ones are not comparable. `made_with`: model, revision,
    image, sampling, prompt digest, judge … by name.
    """

    version: int = VERSION
    suite: str
    result: str
    suite_digest: str
    dataset_digest: str
    headline: str
    """The metric that gates; a mean over samples (or over questions, where draws are many)."""
    higher_is_better: bool = True
    binary: bool
    """Every headline score is 0 or 1: McNemar's test fits."""
    draws: Annotated[int, msgspec.Meta(ge=1)] = 1
    model: str
    stack: str
    run: str | None = None
    judge_run: str | None = None
    made_with: dict[str, str]
    scorers: dict[str, str]
    """Metric -> scorer with its version and settings, for people."""
    at: Instant
    date: str | None = None
    usd_estimated: Usd = 0.0
    metrics: dict[str, float]
    """Means over all questions, failed ones included; `pass@k` where asked. A metric named in `details["corpus"]` (BLEU) is of the whole
    corpus, and the mean of its samples' scores is `NAME_sentence`."""
    counts: dict[str, Count]
    """Samples by outcome."""
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class EvalResult(msgspec.Struct, frozen=True):
    """A header and its samples, in dataset order, draws of a question side by side."""

    header: ResultHeader
    samples: tuple[Sample, ...]


def pack(header: ResultHeader, samples: Iterable[Sample]) -> bytes:
    """As it is kept."""
    return compress(b"\n".join([encode(header), *(encode(sample) for sample in samples)]) + b"\n")


def unpack(data: bytes, *, where: str) -> EvalResult:
    """Raises ContractError where it is damaged."""
    lines: Iterator[bytes] = decompress_lines(data, where=where)
    first = next(lines, None)
    if first is None:
        raise ContractError("damaged: it is empty.", where=where)
    header: ResultHeader = decode(first, ResultHeader, where=where)
    samples: Sequence[Sample] = [decode(line, Sample, where=where) for line in lines]
    return EvalResult(header, tuple(samples))
