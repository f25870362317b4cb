"""nights/evals: answers -> scores. Pure, but for a scorer of the user's own, whose file is imported, and generated code (`code`).

A scorer has settings (a pydantic model, as a suite file writes them) and gives each answer a `Mark`. What it cannot read is `unparsed` and
scores 0; whether an answer is scored at all is decided before (`evaluate`): one that failed or was cut by length has 0 everywhere. What it
needs of a question (a target that is a number, a choice that exists) is asked of all questions before anything is paid for (`problem`).

Metrics come from libraries where there is a well-kept one: BLEU from sacrebleu, ROUGE from rouge-score, JSON schemas from jsonschema.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import re
import string
import sys
import threading
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from contract.errors import UsageError
from nights.evals.code import Isolation, Limits, Program, Ran, run_programs, take_code
from pipelines.dataset.rows import RowProblem, Template, text_of

METRIC: Final = r"^[A-Za-z][A-Za-z0-9_.@-]{0,39}$"
LETTERS: Final = string.ascii_uppercase
MOST_DIGITS: Final = 400
"""Of a number, and of its exponent's size: longer ones are no answers, and would cost minutes to compare."""
MOST_TEXT: Final = 200_000
"""Characters of an answer that patterns look at."""


# --- what is scored ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """One question as a scorer sees it: `targets` are all right answers, `choices` the texts of the letters A, B, C …"""

    id: str
    question: str
    targets: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    target: Any = None
    """The target column's value as it is in the dataset, for a scorer of the user's own."""


@dataclass(frozen=True)
class Mark:
    """What a scorer says of one answer. `parsed`: what it took as the answer; `unparsed`: it found none, and the score is 0; `error`: the
    scorer itself failed, which is reported apart."""

    score: float
    parsed: str | None = None
    explanation: str | None = None
    unparsed: bool = False
    error: bool = False


def unparsed(why: str, *, error: bool = False) -> Mark:
    return Mark(0.0, None, why, unparsed=True, error=error)


@runtime_checkable
class Scorer(Protocol):
    """One metric. `most`: its best score (BLEU's is 100)."""

    name: str
    binary: bool
    most: float
    described: str
    """What it is, with its version and settings: part of what must be equal for two results to be compared."""

    def problem(self, item: Item) -> str | None:
        """Why this question cannot be scored, as a clause; asked before anything is paid for."""
        ...

    def marks(self, pairs: Sequence[tuple[Item, str]]) -> list[Mark]:
        """Of answers that came whole."""
        ...

    def whole(self, pairs: Sequence[tuple[Item, str]]) -> float | None:
        """The metric over all questions, where it is not the mean of their scores; an answer that does not count is empty text."""
        ...


# --- settings, as a suite file writes them -------------------------------------------------------------------------------------------


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise PydanticCustomError("pattern", "is no regular expression ({why})", {"why": str(error)}) from None
    return value


def _function_name(value: str) -> str:
    file, colon, name = value.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise PydanticCustomError("function", "is no function of a file; write it as scorers.py:similarity")
    return value


def _template(value: str) -> str:
    try:
        columns_of(value)
    except UsageError as error:
        raise PydanticCustomError("template", "{why}", {"why": str(error).rstrip(".")}) from None
    return value


def columns_of(text: str) -> Template | None:
    """A text with columns in braces; None where it has none. Raises UsageError for a brace that is neither a column's nor doubled."""
    return Template(text) if re.search(r"[{}]", text.replace("{{", "").replace("}}", "")) else None


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


Pattern = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_pattern)]
Filled = Annotated[str, Field(min_length=1, max_length=100_000), AfterValidator(_template)]
"""A text with columns in braces."""
Ks = Annotated[
    tuple[Annotated[int, Field(ge=1, le=128)], ...],
    Field(strict=False, max_length=8),
    BeforeValidator(_one_or_many, json_schema_input_type=int | list[int]),
]


class Settings(BaseModel):
    """Base of the settings of scorers: frozen, strict, no key that it does not know."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    name: Annotated[str, Field(pattern=METRIC)] | None = Field(default=None, description="What the metric is called; by default its kind.")


class BinarySettings(Settings):
    """Of scorers that say right or wrong."""

    k: Ks = Field(default=(), description="Also report NAME@K: the chance that one of K draws is right, estimated from all draws.")


class Normal(BinarySettings):
    """How two texts are made alike before they are compared."""

    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_articles: bool = Field(default=False, description="English a, an and the.")
    ignore_space: bool = Field(default=True, description="Runs of white space are one space, and none at either end.")
    ignore_form: bool = Field(default=True, description="Unicode NFKC: a full-width digit is a digit, a ligature its letters.")


class ExactSettings(Normal):
    """Equal to one of the targets."""

    kind: Literal["exact"]
    extract: Pattern | None = Field(default=None, description="The answer is the first group (or all) of the last match; none: unparsed.")


class NumericSettings(BinarySettings):
    """A number equal to the target's, within a tolerance."""

    kind: Literal["numeric"]
    take: Literal["last", "first", "only"] = Field(default="last", description="only: unparsed where two different numbers stand.")
    extract: Pattern | None = Field(default=None, description="Look for numbers in the first group (or all) of the last match alone.")
    absolute: Annotated[float, Field(ge=0, strict=False)] = 0.0
    relative: Annotated[float, Field(ge=0, lt=1, strict=False)] = 0.0
    decimal: Literal[".", ","] = Field(default=".", description="The decimal mark of answers and targets; the other one groups thousands.")
    percent: Literal["number", "fraction"] = Field(default="number", description="Whether 50% is 50 or 0.5.")


class RegexSettings(Normal):
    """A pattern that must be found; with `group`, what it finds must equal a target."""

    kind: Literal["regex"]
    pattern: Pattern
    group: Annotated[int, Field(ge=0, le=99)] | str | None = None
    whole: bool = Field(default=False, description="The pattern must match all of the answer.")
    flags: tuple[Literal["ignore_case", "multiline", "dotall"], ...] = Field(default=(), strict=False)


class ChoiceSettings(BinarySettings):
    """The letter of one of the choices."""

    kind: Literal["choice"]
    extract: Pattern | None = Field(default=None, description="The letter is the first group of the last match; none: unparsed.")
    text: bool = Field(default=True, description="An answer that is a choice's own text counts as its letter.")


class F1Settings(Settings):
    """Overlap of words with the best target, as SQuAD counts it."""

    kind: Literal["f1"]


class RougeSettings(Settings):
    """ROUGE F-measure with the best target (rouge-score)."""

    kind: Literal["rouge"]
    variant: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = "rougeL"
    stem: bool = True


class BleuSettings(Settings):
    """BLEU (sacrebleu), 0 to 100. The metric is that of the whole corpus; a sample's score is its sentence BLEU."""

    kind: Literal["bleu"]
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    ignore_case: bool = False


class SchemaSettings(BinarySettings):
    """JSON that a schema allows."""

    kind: Literal["json_schema"]
    json_schema: dict[str, Any] | str = Field(alias="schema", description="The schema, or the path of its file beside the suite.")
    fenced: bool = Field(default=True, description="JSON inside a ``` block counts, whatever stands around it.")


class CodeSettings(Settings):
    """Generated Python that passes its tests. Runs it: needs `allow_code_execution: true`."""

    kind: Literal["code"]
    k: Ks = Field(default=(1,), description="Report pass@K for these K.")
    code: Filled = Field(default="{answer}", description="The code, of columns and {answer}.")
    tests: Filled = Field(description="What runs after it, of columns; it passes if nothing is raised.")
    fenced: bool = Field(default=True, description="{answer} is the code of its last ``` block, where it has one.")
    seconds: Annotated[int, Field(ge=1, le=600)] = Field(
        default=10, description="Of computing; one that waits is ended after four times that."
    )
    memory_mb: Annotated[int, Field(ge=64, le=16384)] = 512
    output_kb: Annotated[int, Field(ge=1, le=4096)] = 64
    file_mb: Annotated[int, Field(ge=1, le=1024)] = 16
    processes: Annotated[int, Field(ge=1, le=256)] = 16
    isolation: Isolation = "full"


class FunctionSettings(Settings):
    """A Python function of your own: `scorers.py:similarity`, called with (answer, target, record)."""

    kind: Literal["function"]
    function: Annotated[str, AfterValidator(_function_name)] = Field(description="The file beside the suite, and the function in it.")
    binary: bool = Field(default=False, description="It gives 0 or 1 (or true or false) alone.")


class GradedSettings(BinarySettings):
    """The suite's judge says how good it is."""

    kind: Literal["model_graded"]


ScorerSettings = Annotated[
    ExactSettings
    | NumericSettings
    | RegexSettings
    | ChoiceSettings
    | F1Settings
    | RougeSettings
    | BleuSettings
    | SchemaSettings
    | CodeSettings
    | FunctionSettings
    | GradedSettings,
    Field(discriminator="kind"),
]
_NAMES: Final = {"code": "pass"}


def metric_name(settings: Settings) -> str:
    """What its metric is called."""
    if settings.name is not None:
        return settings.name
    if isinstance(settings, RougeSettings):
        return settings.variant
    kind = str(getattr(settings, "kind", ""))
    return _NAMES.get(kind, kind)


def metric_names(settings: Settings) -> tuple[str, ...]:
    """All metrics that it gives, the first of which is the mean over samples."""
    name, ks = metric_name(settings), tuple(getattr(settings, "k", ()))
    if isinstance(settings, CodeSettings):
        return tuple(f"{name}@{k}" for k in dict.fromkeys((1, *ks)))
    return (name, *(f"{name}@{k}" for k in dict.fromkeys(ks)))


def wants_target(settings: Settings) -> bool:
    """Whether it compares with a target."""
    if isinstance(settings, RegexSettings):
        return settings.group is not None
    return isinstance(settings, ExactSettings | NumericSettings | ChoiceSettings | F1Settings | RougeSettings | BleuSettings)


def make_scorer(settings: Settings, folder: Path) -> Scorer:
    """Ready to score. `folder`: of the suite file, where files that it names are. Raises UsageError."""
    if isinstance(settings, ExactSettings):
        return Exact(settings)
    if isinstance(settings, NumericSettings):
        return Numeric(settings)
    if isinstance(settings, RegexSettings):
        return Regex(settings)
    if isinstance(settings, ChoiceSettings):
        return Choice(settings)
    if isinstance(settings, F1Settings):
        return F1(settings)
    if isinstance(settings, RougeSettings):
        return Rouge(settings)
    if isinstance(settings, BleuSettings):
        return Bleu(settings)
    if isinstance(settings, SchemaSettings):
        return JsonSchema(settings, folder)
    if isinstance(settings, CodeSettings):
        return Code(settings)
    if isinstance(settings, FunctionSettings):
        return Function(settings, folder)
    raise UsageError(f"there is no scorer for {type(settings).__name__}.")


def pass_at_k(draws: int, right: int, k: int) -> float:
    """The unbiased estimate of the chance that one of `k` draws is right, of `draws` with `right` right ones (Chen et al. 2021)."""
    if not 0 <= right <= draws or not 1 <= k <= draws:
        raise ValueError(f"pass@{k} of {right} in {draws}")
    return 1.0 - math.comb(draws - right, k) / math.comb(draws, k)


# --- text ----------------------------------------------------------------------------------------------------------------------------

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b", re.IGNORECASE)


def normalized(text: str, settings: Normal) -> str:
    """`text` as it is compared."""
    if settings.ignore_form:
        text = unicodedata.normalize("NFKC", text)
    if settings.ignore_case:
        text = text.casefold()
    if settings.ignore_punctuation:
        text = "".join(c for c in text if not unicodedata.category(c).startswith("P") and c not in string.punctuation)
    if settings.ignore_articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split()) if settings.ignore_space else text


def squad_words(text: str) -> list[str]:
    """As SQuAD's evaluation takes a text: small letters, no ASCII punctuation, no articles, split at white space."""
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def last_match(pattern: re.Pattern[str], text: str, group: int | str | None = None) -> str | None:
    """What the last match finds: its group, by default the first one that it has, else all of it."""
    found: str | None = None
    for match in pattern.finditer(text[-MOST_TEXT:]):
        found = match[group if group is not None else 1 if pattern.groups else 0]
    return found


def _described(settings: Settings, version: str = "1", **more: str) -> str:
    said = settings.model_dump(mode="json", exclude={"name"}, exclude_defaults=True, by_alias=True)
    kind = said.pop("kind", getattr(settings, "kind", ""))
    text = json.dumps({**said, **more}, sort_keys=True, ensure_ascii=False) if said or more else ""
    return f"{kind} {version}{' ' + text if text else ''}"


def _library(name: str) -> str:
    return f"({name} {importlib.metadata.version(name)})"


class _Base:
    """What most scorers have in common: one answer at a time, and a mean over them."""

    binary = False
    most = 1.0

    def __init__(self, settings: Settings, described: str | None = None) -> None:
        self.name = metric_name(settings)
        self.described = described or _described(settings)
        self._targets = wants_target(settings)

    def problem(self, item: Item) -> str | None:
        return "it has no target" if self._targets and not item.targets else None

    def mark(self, item: Item, answer: str) -> Mark:
        raise NotImplementedError

    def marks(self, pairs: Sequence[tuple[Item, str]]) -> list[Mark]:
        return [self.mark(item, answer) for item, answer in pairs]

    def whole(self, pairs: Sequence[tuple[Item, str]]) -> float | None:
        return None


class Exact(_Base):
    """Equal to one of the targets, both normalised."""

    binary = True

    def __init__(self, settings: ExactSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self._extract = re.compile(settings.extract) if settings.extract else None

    def mark(self, item: Item, answer: str) -> Mark:
        taken: str | None = answer
        if self._extract is not None:
            taken = last_match(self._extract, answer)
            if taken is None:
                return unparsed("the pattern of the answer is not in it")
        assert taken is not None
        found = normalized(taken, self._settings)
        if not found.strip():
            return unparsed("it is empty")
        return Mark(float(any(found == normalized(target, self._settings) for target in item.targets)), found)


class Regex(_Base):
    """A pattern that is found, or finds a target."""

    binary = True

    def __init__(self, settings: RegexSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        names = {"ignore_case": re.IGNORECASE, "multiline": re.MULTILINE, "dotall": re.DOTALL}
        flags = re.NOFLAG
        for flag in settings.flags:
            flags |= names[flag]
        self._pattern = re.compile(settings.pattern, flags)
        group = settings.group
        if (isinstance(group, int) and group > self._pattern.groups) or (isinstance(group, str) and group not in self._pattern.groupindex):
            raise UsageError(f"the pattern {settings.pattern!r} has no group {group!r}.", where=f"scorer {self.name}")

    def mark(self, item: Item, answer: str) -> Mark:
        text, group = answer[-MOST_TEXT:], self._settings.group
        if self._settings.whole:
            match = self._pattern.fullmatch(text)
            found = None if match is None else match[group if group is not None else 0]
        else:
            found = last_match(self._pattern, text, group if group is not None else 0)
        if group is None:
            return Mark(float(found is not None), found)
        if found is None:
            return unparsed("the pattern is not in it")
        taken = normalized(found, self._settings)
        return Mark(float(any(taken == normalized(target, self._settings) for target in item.targets)), taken)


# --- numbers -------------------------------------------------------------------------------------------------------------------------

_GROUPING: Final = "\u00a0\u202f\u2009'’_"


def _number_pattern(decimal: str) -> re.Pattern[str]:
    point, comma = re.escape(decimal), "," if decimal == "." else r"\."
    digits = rf"(?:\d{{1,3}}(?:[{comma}{_GROUPING}]\d{{3}})+(?!\d)|\d+)"
    return re.compile(
        rf"""
        (?P<sign>(?<![\w)\]}}])[-+\u2212](?=[$€£¥\d{point}\\]))?
        [$€£¥]?
        (?P<inner>(?<=[$€£¥])[-\u2212])?
        (?:
          \\[dt]?frac\{{\s*(?P<top>-?\d+)\s*\}}\{{\s*(?P<bottom>\d+)\s*\}}
        | (?<![\w{point}])(?P<mixed>\d+)[ ](?P<over>\d+)/(?P<under>\d+)(?![\w/])
        | (?<![\w{point}])(?P<number>{digits}(?:{point}\d+)?|{point}\d+)(?:[eE](?P<exponent>[-+]?\d+))?
          (?:/(?P<divisor>\d+)(?![\w/{point}]))?
        )
        (?P<percent>\s?\\?[%])?""",
        re.VERBOSE,
    )


_PATTERNS: Final = {mark: _number_pattern(mark) for mark in (".", ",")}


_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def _plain_digit(match: re.Match[str]) -> str:
    """Full-width signs as ASCII, and ½ as 1/2. Not all of NFKC, which would make 10² a hundred and two."""
    kind = unicodedata.decomposition(match[0]).partition(" ")[0]
    if kind == "<fraction>":
        return " " + unicodedata.normalize("NFKC", match[0]).replace("\u2044", "/")
    return unicodedata.normalize("NFKC", match[0]) if kind in ("<wide>", "<narrow>") else match[0].replace("\u2044", "/")


@dataclass(frozen=True)
class Number:
    """A number as it stands in a text: its value, exactly."""

    value: Fraction
    text: str


def find_numbers(text: str, *, decimal: str = ".", percent: str = "number", backwards: bool = False) -> Iterator[Number]:
    """All numbers of a text, in order or from its end: `-1,234.5`, `3/4`, `1 1/2`, `\\frac{1}{2}`, `2e3`, `$5`, `50%`. A letter before a
    number, as in x2, makes it part of a word; a minus after one, as in 5-3, is no sign."""
    text = _NOT_ASCII.sub(_plain_digit, text[-MOST_TEXT:]).replace("{,}", ",")
    matches: Iterable[re.Match[str]] = _PATTERNS[decimal].finditer(text)
    for match in reversed(list(matches)) if backwards else matches:
        value = _value(match, decimal)
        if value is not None:
            if match["percent"] and percent == "fraction":
                value /= 100
            yield Number(value, match[0].strip())


def _value(match: re.Match[str], decimal: str) -> Fraction | None:
    if any(len(part) > MOST_DIGITS for part in match.groups() if part):
        return None
    negative = (match["sign"] or match["inner"]) in ("-", "\u2212")
    try:
        if match["top"] is not None:
            value = Fraction(int(match["top"]), int(match["bottom"]))
        elif match["mixed"] is not None:
            value = int(match["mixed"]) + Fraction(int(match["over"]), int(match["under"]))
        else:
            plain = "".join(c for c in match["number"] if c.isdigit() or c == decimal).replace(decimal, ".")
            exponent = int(match["exponent"] or 0)
            if abs(exponent) > MOST_DIGITS:
                return None
            value = Fraction(plain if plain[0] != "." else f"0{plain}") * Fraction(10) ** exponent
            if match["divisor"] is not None:
                value /= int(match["divisor"])
    except ZeroDivisionError:
        return None
    return -value if negative else value


class Numeric(_Base):
    """A number within a tolerance of the target's last one (`#### 42` of GSM8K is 42)."""

    binary = True

    def __init__(self, settings: NumericSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self._extract = re.compile(settings.extract) if settings.extract else None

    def _numbers(self, text: str, *, backwards: bool = False) -> Iterator[Number]:
        return find_numbers(text, decimal=self._settings.decimal, percent=self._settings.percent, backwards=backwards)

    def _last(self, text: str) -> Number | None:
        return next(self._numbers(text, backwards=True), None)

    def problem(self, item: Item) -> str | None:
        if (missing := super().problem(item)) is not None:
            return missing
        bad = next((target for target in item.targets if self._last(target) is None), None)
        return None if bad is None else f"its target {_short(bad)} holds no number"

    def mark(self, item: Item, answer: str) -> Mark:
        text: str | None = answer
        if self._extract is not None:
            text = last_match(self._extract, answer)
            if text is None:
                return unparsed("the pattern of the answer is not in it")
        assert text is not None
        taken = next(self._numbers(text), None) if self._settings.take == "first" else self._last(text)
        if taken is None:
            return unparsed("no number is in it")
        if self._settings.take == "only" and any(number.value != taken.value for number in self._numbers(text)):
            return unparsed("different numbers are in it")
        targets = [self._last(target) for target in item.targets]
        return Mark(float(any(self._near(taken.value, target.value) for target in targets if target is not None)), taken.text)

    def _near(self, value: Fraction, target: Fraction) -> bool:
        # As written, not as binary: 0.1 is within 0.1 of 0.2.
        absolute, relative = Fraction(repr(self._settings.absolute)), Fraction(repr(self._settings.relative))
        return abs(value - target) <= max(absolute, relative * abs(target))


# --- choices -------------------------------------------------------------------------------------------------------------------------


def choice_letter(item: Item, target: str) -> str | None:
    """The letter that a target means: `B`, `(b)`, an index from 0, or a choice's own text."""
    plain = target.strip()
    for place, text in enumerate(item.choices):
        if plain == text.strip():
            return LETTERS[place]
    letter = plain.strip("().: ").upper()
    if len(letter) == 1 and letter in LETTERS[: len(item.choices)]:
        return letter
    if plain.isascii() and plain.isdigit() and int(plain) < len(item.choices):
        return LETTERS[int(plain)]
    return None


def find_choice(text: str, choices: Sequence[str], *, own_text: bool = True) -> str | None:
    """The letter that an answer names; None where it names none, or more than one.

    In this order: `\\boxed{B}`; what follows the last "answer is" or "answer:" (or "correct option is"); an answer that is or begins with a
    letter of its own (`B`, `(B)`, `B. Paris`); a choice's own text; the only letter that stands in brackets or bold, alone on a line, or
    after "option"; the only choice whose text is in it.
    """
    # Runs of white space would make the patterns below slow, and mean nothing.
    text = "\n".join(line for line in (" ".join(line.split()) for line in text[-MOST_TEXT:].splitlines()) if line)
    letters = LETTERS[: len(choices)]
    one, capital = f"[{letters}{letters.lower()}]", f"[{letters}]"
    mark = r"(?:\*\*|__)?\s*"
    for pattern in (
        rf"\\boxed\{{\s*(?:\\(?:text|textbf|mathrm)\{{)?\s*\(?({one})\)?",
        rf"(?i:\b(?:answer|(?:correct|best|right)\s+(?:choice|option))\b){mark}(?:\s*(?i:is|would\s+be|should\s+be)\b\s*:?|\s*[:=])\s*{mark}"
        rf"(?:(?i:option|choice)\s+)?(?:\(({one})\)|({capital})\b(?!['’]))",
    ):
        found = [next(group for group in match.groups() if group) for match in re.finditer(pattern, text)]
        if found:
            return found[-1].upper()
    if match := re.match(rf"{mark}(?:\(({one})\)|({one})(?=[).:]|{mark}(?:\n|$))|({capital})(?=,))", text):
        return next(group for group in match.groups() if group).upper()
    if own_text:
        plain = [_plain(choice) for choice in choices]
        said = _plain(text)
        equal = [place for place, choice in enumerate(plain) if choice and choice == said]
        if len(equal) == 1:
            return LETTERS[equal[0]]
    alone = rf"\(({one})\)|\*\*\(?({capital})[).:]?\*\*|(?m:^({capital})[.)]?$)|\b(?i:option|choice|answer)\s+({capital})\b"
    named = {group.upper() for match in re.finditer(alone, text) for group in match.groups() if group}
    if len(named) == 1:
        return named.pop()
    if own_text and not named:
        inside = [place for place, choice in enumerate(plain) if choice and re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", said)]
        # A choice that is part of a longer one that is there too is not meant.
        inside = [place for place in inside if not any(other != place and plain[place] in plain[other] for other in inside)]
        if len(inside) == 1:
            return LETTERS[inside[0]]
    return None


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .!\"'")


class Choice(_Base):
    """The letter of the right choice."""

    binary = True

    def __init__(self, settings: ChoiceSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self._extract = re.compile(settings.extract) if settings.extract else None

    def problem(self, item: Item) -> str | None:
        if not 2 <= len(item.choices) <= len(LETTERS):
            return f"it has {len(item.choices)} choices"
        if (missing := super().problem(item)) is not None:
            return missing
        bad = next((target for target in item.targets if choice_letter(item, target) is None), None)
        return None if bad is None else f"its target {_short(bad)} is none of its {len(item.choices)} choices"

    def mark(self, item: Item, answer: str) -> Mark:
        if self._extract is not None:
            taken = last_match(self._extract, answer)
            letter = None if taken is None else choice_letter(item, taken)
        else:
            letter = find_choice(answer, item.choices, own_text=self._settings.text)
        if letter is None:
            return unparsed("it names no choice, or more than one")
        return Mark(float(letter in {choice_letter(item, target) for target in item.targets}), letter)


# --- overlap -------------------------------------------------------------------------------------------------------------------------


class F1(_Base):
    """SQuAD's F1: the words that answer and target share; the best target counts."""

    def __init__(self, settings: F1Settings) -> None:
        super().__init__(settings)

    def mark(self, item: Item, answer: str) -> Mark:
        words = squad_words(answer)
        return Mark(max(_f1(words, squad_words(target)) for target in item.targets), " ".join(words))


def _f1(words: list[str], target: list[str]) -> float:
    if not words or not target:
        return float(words == target)
    same = sum((Counter(words) & Counter(target)).values())
    return 2 * same / (len(words) + len(target))


class Rouge(_Base):
    """rouge-score's F-measure; the best target counts."""

    def __init__(self, settings: RougeSettings) -> None:
        super().__init__(settings, _described(settings, _library("rouge-score"), variant=settings.variant))
        self._variant = settings.variant
        self._stem = settings.stem

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer([self._variant], use_stemmer=self._stem)

    def mark(self, item: Item, answer: str) -> Mark:
        return Mark(max(float(self._scorer.score(target, answer)[self._variant].fmeasure) for target in item.targets))


class Bleu(_Base):
    """sacrebleu's. The metric is BLEU over the whole corpus, in which an answer that does not count is an empty line; a sample's score is
    its sentence BLEU with effective order, whose mean is another number (`NAME_sentence`)."""

    most = 100.0

    def __init__(self, settings: BleuSettings) -> None:
        super().__init__(settings, _described(settings, _library("sacrebleu"), tokenize=settings.tokenize))
        self._settings = settings

    def _metric(self, *, sentence: bool) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize=self._settings.tokenize, lowercase=self._settings.ignore_case, effective_order=sentence)

    @cached_property
    def _sentences(self) -> Any:
        return self._metric(sentence=True)

    def mark(self, item: Item, answer: str) -> Mark:
        return Mark(float(self._sentences.sentence_score(answer, list(item.targets)).score))

    def whole(self, pairs: Sequence[tuple[Item, str]]) -> float | None:
        if not pairs:
            return 0.0
        most = max(len(item.targets) for item, _ in pairs)
        # A stream for each place of a target; None where a question has fewer.
        streams = [[item.targets[n] if n < len(item.targets) else None for item, _ in pairs] for n in range(most)]
        return float(self._metric(sentence=False).corpus_score([answer for _, answer in pairs], streams).score)


# --- JSON ----------------------------------------------------------------------------------------------------------------------------


class JsonSchema(_Base):
    """JSON that the schema allows. References are looked up inside the schema alone: nothing is fetched."""

    binary = True

    def __init__(self, settings: SchemaSettings, folder: Path) -> None:
        import jsonschema
        import referencing

        self._fenced = settings.fenced
        schema: Any = settings.json_schema
        where = f"scorer {metric_name(settings)}"
        if isinstance(schema, str):
            path = folder / schema
            where = str(path)
            try:
                schema = json.loads(path.read_bytes())
            except OSError as error:
                raise UsageError(f"the schema cannot be read ({error.strerror}).", where=where) from None
            except (ValueError, RecursionError) as error:
                raise UsageError(f"the schema is not JSON ({error}).", where=where) from None
        try:
            kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            kind.check_schema(schema)
        except (jsonschema.SchemaError, TypeError, RecursionError) as error:
            raise UsageError(f"this is no JSON schema ({getattr(error, 'message', error)}).", where=where) from None
        self._validator = kind(schema, registry=referencing.Registry())
        digest = hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()
        super().__init__(settings, _described(settings.model_copy(update={"json_schema": digest[:16]}), _library("jsonschema")))

    def mark(self, item: Item, answer: str) -> Mark:
        import referencing.exceptions

        text = answer.strip()
        if self._fenced and "```" in text:
            text = take_code(text).strip()
        try:
            value = json.loads(text, parse_constant=_no_constant)
            error = next(iter(sorted(self._validator.iter_errors(value), key=lambda one: list(map(str, one.absolute_path)))), None)
        except (ValueError, RecursionError) as wrong:
            return unparsed(f"it is not JSON ({str(wrong)[:200]})")
        except referencing.exceptions.Unresolvable as wrong:
            return unparsed(f"the schema refers to what is not in it ({wrong})"[:300], error=True)
        if error is None:
            return Mark(1.0, text)
        return Mark(0.0, text, f"{error.json_path}: {error.message}"[:500])


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


# --- code ----------------------------------------------------------------------------------------------------------------------------


class Code(_Base):
    """Generated code that passes its tests; see `code` for what it may do."""

    binary = True

    def __init__(self, settings: CodeSettings) -> None:
        super().__init__(settings, _described(settings, "1"))
        self._settings = settings
        self._code, self._tests = columns_of(settings.code), columns_of(settings.tests)
        self.limits = Limits(
            settings.seconds,
            memory_mb=settings.memory_mb,
            output_kb=settings.output_kb,
            file_mb=settings.file_mb,
            processes=settings.processes,
        )
        self.progress: Callable[[int, int], None] | None = None
        self.stop = threading.Event()
        """Set it to end early: marks() raises Interrupted."""

    @property
    def columns(self) -> tuple[str, ...]:
        """That a question must have."""
        names = [name for template in (self._code, self._tests) if template is not None for name in template.columns if name != "answer"]
        return tuple(dict.fromkeys(names))

    def problem(self, item: Item) -> str | None:
        for name in self.columns:
            if name not in item.record:
                return f"it has no column `{name}`"
        return None

    def ready(self) -> None:
        """Raises InfrastructureError where this machine cannot run code as the suite asks: better before the answers are paid for."""
        run_programs([Program("", "")], self.limits, isolation=self._settings.isolation)

    def program(self, item: Item, answer: str) -> Program:
        """The one program of a question and an answer."""
        taken = take_code(answer) if self._settings.fenced else answer
        record = {**item.record, "answer": taken}
        return Program(_fill(self._settings.code, self._code, record), _fill(self._settings.tests, self._tests, record))

    def marks(self, pairs: Sequence[tuple[Item, str]]) -> list[Mark]:
        programs = [self.program(item, answer) for item, answer in pairs]
        ran = run_programs(programs, self.limits, isolation=self._settings.isolation, progress=self.progress, stop=self.stop)
        return [self._mark(one, program) for one, program in zip(ran, programs, strict=True)]

    def _mark(self, ran: Ran, program: Program) -> Mark:
        return Mark(float(ran.passed), program.code, None if ran.passed else f"{ran.verdict}: {ran.reason}")


def _fill(text: str, template: Template | None, record: dict[str, Any]) -> str:
    if template is None:
        return text.replace("{{", "{").replace("}}", "}")
    try:
        return template.fill(record)
    except RowProblem as problem:
        if problem.code != "empty_text":
            raise UsageError(f"{problem.reason}.") from None
        return ""  # an empty answer is an empty program


# --- of the user's own ---------------------------------------------------------------------------------------------------------------


class Function(_Base):
    """A function of the user's: `score(answer: str, target, record: dict)`, where target is the column's value as it is in the dataset.

    It gives a number from 0 to 1, true or false, None where it finds no answer, or an object with `score` and, if it likes, `parsed` and
    `explanation`. An error in it is that sample's error, counted apart; where every sample has one, there is nothing to report.
    """

    def __init__(self, settings: FunctionSettings, folder: Path) -> None:
        file, _, name = settings.function.rpartition(":")
        path = folder / file
        where = f"{path}:{name}"
        try:
            source = path.read_bytes()
        except OSError as error:
            raise UsageError(f"the scorer cannot be read ({error.strerror}).", where=where) from None
        super().__init__(settings, _described(settings, "1", sha256=hashlib.sha256(source).hexdigest()[:16]))
        self.binary = settings.binary
        self._path = path
        self._where = where
        module = ModuleType(f"nightbatch_scorer_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # where dataclasses look for the names of their fields' types
        try:
            exec(compile(source, str(path), "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            raise UsageError(f"the scorer cannot be imported ({self._told(error)}).", where=where) from error
        function = getattr(module, name, None)
        if not callable(function):
            raise UsageError(f"there is no function {name} in it.", where=str(path), fix=f"Write: def {name}(answer, target, record): …")
        self._function: Callable[..., Any] = function

    def _told(self, error: BaseException) -> str:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self._path)]
        place = f", line {lines[-1]}" if lines else f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        return f"{type(error).__name__}: {str(error)[:200]}{place}"

    def mark(self, item: Item, answer: str) -> Mark:
        try:
            said = self._function(answer, item.target, dict(item.record))
        except (Exception, SystemExit) as error:
            return unparsed(self._told(error), error=True)
        parsed = explanation = None
        if isinstance(said, Mapping):
            parsed, explanation = (None if said.get(name) is None else str(said[name]) for name in ("parsed", "explanation"))
            if "score" not in said:
                return unparsed("it gave an object without `score`", error=True)
            said = said["score"]
        if said is None:
            return unparsed(explanation or "the scorer found no answer")
        if not isinstance(said, int | float) or not math.isfinite(said) or not 0 <= said <= 1:
            return unparsed(f"it gave {_short(said)}, which is no number from 0 to 1", error=True)
        if self.binary and said not in (0, 1):
            return unparsed(f"it gave {_short(said)}, and says of itself that it is binary", error=True)
        return Mark(float(said), parsed, explanation)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def texts_of(value: Any, name: str) -> tuple[str, ...]:
    """A target column's value as the texts that are right: a list has several. Raises RowProblem for what is no text."""
    if value is None:
        return ()
    values: Iterable[Any] = value if isinstance(value, list | tuple) else (value,)
    return tuple(text_of(one, name) for one in values if one is not None)
