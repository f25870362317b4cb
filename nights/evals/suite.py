"""nights/evals: what a suite file may say, and every mistake in it at once, each with its line. Reads the file and those that it names.

A suite is a set of questions with right answers, how they are put to a model, and how its answers are scored. It names no model and no
stack: the same suite judges many. Relative paths (dataset, schema, function) begin at the suite file's own folder.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from contract.errors import BadFiles, UsageError
from contract.params import check_params
from nights.evals.judge import Judge
from nights.evals.results import SUITE_NAME
from nights.evals.scorers import (
    ChoiceSettings,
    CodeSettings,
    Filled,
    FunctionSettings,
    GradedSettings,
    SchemaSettings,
    Scorer,
    ScorerSettings,
    Settings,
    columns_of,
    make_scorer,
    metric_name,
    metric_names,
    wants_target,
)
from nights.jobs.reader import Document, judged, read_yaml, shown

ENDINGS: Final = (".yaml", ".yml")
Text = Annotated[str, Field(min_length=1, max_length=1000)]


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _some(value)


def _some(value: Any) -> Any:
    """Asked of what stands there, not of what is left when bad items are gone."""
    if isinstance(value, list) and not value:
        raise PydanticCustomError("empty", "is empty")
    return value


Texts = Annotated[
    tuple[Text, ...],
    Field(strict=False, max_length=100),
    BeforeValidator(_one_or_many, json_schema_input_type=Text | list[Text]),
]
At = tuple[str | int, ...]


class Part(BaseModel):
    """Base of every model here: frozen, strict, no key that it does not know."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Message(Part):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Filled = Field(description="The text, of columns and {choices}.")


class Sampling(Part):
    """How answers are drawn. Equal for all questions."""

    temperature: Annotated[float, Field(ge=0, le=10, strict=False)] = Field(
        default=0.0, description="0 takes the likeliest word each time."
    )
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=512, description="The longest answer. One that is cut off by it counts as wrong: leave room."
    )
    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1)] | None = Field(
        default=None, description="The same draws again, as far as the engine can."
    )
    stop: Texts | None = Field(default=None, description="Texts that end the answer.")
    top_p: Annotated[float, Field(gt=0, le=1, strict=False)] | None = None
    more: dict[str, Any] = Field(default_factory=dict, description="Other parameters of an answer, as `--param` takes them.")

    def body(self, draws: int = 1) -> dict[str, Any]:
        """As fields of a row's body."""
        found: dict[str, Any] = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        if draws > 1:
            found["n"] = draws
        for name in ("seed", "top_p"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.stop is not None:
            found["stop"] = list(self.stop)
        return {**found, **self.more}


class SuiteKeys(Part):
    """A suite file."""

    version: Literal[1] = Field(description="Of this format: 1.")
    name: str | None = Field(default=None, description="The suite's name; by default the file's, without its ending.")
    description: str | None = Field(default=None, max_length=4000)
    dataset: Texts = Field(description="The questions: a file, folder, glob or s3:// address, or several.")
    limit: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Only the first so many questions.")
    id_column: Text | None = Field(default=None, description="The questions' ids; by default made from their place and text.")
    column: Text | None = Field(default=None, description="The column that is the whole question.")
    prompt: Filled | None = Field(default=None, description="The question, of columns: `Answer briefly: {question}`.")
    messages: Annotated[tuple[Message, ...], Field(strict=False, max_length=100), BeforeValidator(_some)] | None = Field(
        default=None, description="A conversation, of columns."
    )
    messages_column: Text | None = Field(default=None, description="The column that holds a conversation.")
    chat: bool = Field(default=True, description="false: the text goes to the model as it stands, without its chat template (base models).")
    target_column: Text | None = Field(default=None, description="The right answer; a list holds several right ones.")
    choices_column: Texts | None = Field(default=None, description="The choices: a column with a list, or a column for each.")
    group_column: Text | None = Field(default=None, description="Questions that are reported apart: a subject, a language.")
    sampling: Sampling = Field(default_factory=Sampling)
    draws: Annotated[int, Field(ge=1, le=128)] = Field(default=1, description="Answers to each question.")
    scorers: Annotated[tuple[ScorerSettings, ...], Field(strict=False, max_length=20), BeforeValidator(_some)] = Field(
        description="How answers are scored; each gives a metric."
    )
    headline: str | None = Field(default=None, description="The metric that gates; by default the first.")
    judge: Judge | None = Field(default=None, description="The model that grades, for `kind: model_graded`.")
    allow_code_execution: bool = Field(default=False, description="Whether code that the model wrote may run on this machine.")


_WAYS: Final = ("column", "prompt", "messages", "messages_column")
CHOICES: Final = "choices"
"""In a prompt, {choices} is the choices with their letters, a line each."""


@dataclass(frozen=True)
class Suite:
    """A suite that can be used. `folder`: where relative paths begin."""

    name: str
    keys: SuiteKeys
    path: Path
    lines: Mapping[At, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def headline(self) -> str:
        return self.keys.headline or metric_names(self.keys.scorers[0])[0]

    @property
    def graded(self) -> GradedSettings | None:
        """The scorer that asks the judge."""
        return next((one for one in self.keys.scorers if isinstance(one, GradedSettings)), None)

    @property
    def dataset(self) -> tuple[str, ...]:
        """As pipelines take it: relative names begin at the suite's folder."""
        return tuple(name if name.startswith("s3://") else os.path.join(self.folder, name) for name in self.keys.dataset)

    @property
    def templates(self) -> tuple[str, ...]:
        """All texts with columns in them that make the question."""
        if self.keys.messages is not None:
            return tuple(message.content for message in self.keys.messages)
        return (self.keys.prompt,) if self.keys.prompt is not None else ()

    def scorers(self) -> tuple[Scorer, ...]:
        """Ready to score, but for the judge's. Files of the user's own are imported here. Raises UsageError."""
        return tuple(make_scorer(one, self.folder) for one in self.keys.scorers if not isinstance(one, GradedSettings))

    def where(self, *at: str | int) -> str:
        """`suites/arithmetic.yaml:12`, for messages about a key."""
        while at and at not in self.lines:
            at = at[:-1]
        return f"{self.path}:{self.lines.get(at, 1)}"


def load_suite(path: Path) -> Suite:
    """Read and check one file. Raises BadFiles with every mistake that it has."""
    document = read_yaml(path)
    keys: SuiteKeys | None = None
    name = path.stem
    if isinstance(document.data, dict):
        _version(document)
        given = document.data.get("name")
        name = given if isinstance(given, str) else name
        if not SUITE_NAME.fullmatch(name):
            document.add(("name",), f"the suite is called {shown(name)}, which is no name; use up to 64 of a-z, 0-9, - and _")
        _kinds(document)
    keys = judged(document, SuiteKeys)
    if isinstance(document.data, dict):
        _between(document, keys, path.parent)
    if document.mistakes or keys is None:
        mistakes = sorted(set(document.mistakes))
        raise BadFiles(
            f"{len(mistakes)} mistake{'' if len(mistakes) == 1 else 's'} in this suite; nothing was sent.",
            problems=[str(mistake) for mistake in mistakes],
            where=str(path),
            fix="docs/evaluations.md lists every key.",
        )
    return Suite(name, keys, path, document.lines)


def find_suites(folder: Path) -> tuple[Path, ...]:
    """The suite files of a folder, by name. Raises UsageError where there is no such folder."""
    try:
        found = [path for path in folder.iterdir() if path.suffix in ENDINGS and not path.name.startswith((".", "_"))]
    except OSError as error:
        raise UsageError(f"there are no suites here ({error.strerror}).", where=str(folder)) from None
    return tuple(sorted(found, key=lambda one: os.fsencode(one.name)))


def _version(document: Document) -> None:
    version = document.data.get("version")
    if type(version) is not int:  # to Python, true and 1.0 are 1
        document.add(("version",), "is missing; write `version: 1`" if version is None else f"is {shown(version)}; write `version: 1`")
        document.data["version"] = 1


def _kinds(document: Document) -> None:
    """`- exact` is short for `- kind: exact`."""
    scorers = document.data.get("scorers")
    if isinstance(scorers, list):
        document.data["scorers"] = [{"kind": one} if isinstance(one, str) else one for one in scorers]


def _between(document: Document, keys: SuiteKeys | None, folder: Path) -> None:
    """What keys need of each other, and of files. Of a file with other mistakes, what can be told all the same."""
    data: dict[str, Any] = document.data
    ways = [way for way in _WAYS if data.get(way) is not None]
    if len(ways) != 1:
        names = "`column`, `prompt`, `messages` or `messages_column`"
        said = (
            f"one of {names} says what the question is" if not ways else f"only one of {names} can be the question; there is {_and(ways)}"
        )
        document.add((ways[-1],) if ways else (), said)
    if data.get("chat") is False and (data.get("messages") is not None or data.get("messages_column") is not None):
        document.add(("chat",), "is false, and a conversation needs a chat template; give a `prompt` or a `column`")
    if keys is not None:
        for at, what in problems_of(keys, folder):
            document.add(at, what)


def problems_of(keys: SuiteKeys, folder: Path) -> Iterator[tuple[At, str]]:
    """What the keys of a well-formed suite need of each other."""
    yield from _metrics(keys)
    yield from _sampling(keys)
    if keys.choices_column is None:
        for at, text in _texts(keys):
            template = columns_of(text)
            if template is not None and CHOICES in template.columns:
                yield at, "shows {choices}, and there is no `choices_column` that says what they are"
    graded = [place for place, one in enumerate(keys.scorers) if isinstance(one, GradedSettings)]
    if graded and keys.judge is None:
        yield ("scorers", graded[0]), "asks a judge, and there is no `judge`"
    if keys.judge is not None and not graded:
        yield ("judge",), "grades nothing; add a scorer of `kind: model_graded`, or leave the judge out"
    if len(graded) > 1:
        yield ("scorers", graded[1]), "asks the judge once more; one scorer of `kind: model_graded` is enough"
    for place, one in enumerate(keys.scorers):
        for key, what in _needs(one, keys, folder):
            yield ("scorers", place, *((key,) if key else ())), what


def _texts(keys: SuiteKeys) -> Iterator[tuple[At, str]]:
    if keys.prompt is not None:
        yield ("prompt",), keys.prompt
    for place, message in enumerate(keys.messages or ()):
        yield ("messages", place, "content"), message.content


def _metrics(keys: SuiteKeys) -> Iterator[tuple[At, str]]:
    names: dict[str, int] = {}
    for place, one in enumerate(keys.scorers):
        for name in metric_names(one):
            if name in names and names[name] != place:
                yield ("scorers", place), f"gives the metric `{name}`, and so does scorer {names[name] + 1}; give one of them a `name`"
            names.setdefault(name, place)
        for k in getattr(one, "k", ()):
            if k > keys.draws:
                yield ("scorers", place, "k"), f"asks for @{k} of {keys.draws} draw{'' if keys.draws == 1 else 's'}; raise `draws`"
    if keys.headline is not None and keys.headline not in names:
        yield ("headline",), f"is {shown(keys.headline)}, which no scorer gives; there is {_and(list(names))}"


def _sampling(keys: SuiteKeys) -> Iterator[tuple[At, str]]:
    if keys.draws > 1 and keys.sampling.temperature == 0:
        yield ("draws",), f"are {keys.draws}, and with a temperature of 0 they would all be the same; raise `sampling.temperature`"
    own = {*Sampling.model_fields, "n", "max_completion_tokens"}
    for name, value in keys.sampling.more.items():
        if name in own:
            yield ("sampling", "more", name), "has a place of its own; write it there" if name != "n" else "is what `draws` says"
            continue
        try:
            check_params("generate", {name: value})
        except UsageError as error:
            yield ("sampling", "more", name), f"{error.what.rstrip('.')}{'; ' + error.fix.rstrip('.') if error.fix else ''}"


def _needs(one: Settings, keys: SuiteKeys, folder: Path) -> Iterator[tuple[str | None, str]]:
    if wants_target(one) and keys.target_column is None:
        yield None, f"`{metric_name(one)}` compares with a target, and there is no `target_column`"
    if isinstance(one, ChoiceSettings) and keys.choices_column is None:
        yield None, f"`{metric_name(one)}` looks for a choice, and there is no `choices_column`"
    if isinstance(one, CodeSettings):
        if not keys.allow_code_execution:
            yield None, f"`{metric_name(one)}` runs code that the model wrote; say `allow_code_execution: true` if that may run here"
        template = columns_of(one.code)
        if template is None or "answer" not in template.columns:
            yield "code", "does not hold {answer}, so every answer would score the same"
        template = columns_of(one.tests)
        if template is not None and "answer" in template.columns:
            yield "tests", "holds {answer}, which belongs into `code`: tests that the answer wrote prove nothing"
    elif isinstance(one, FunctionSettings):
        file, _, name = one.function.rpartition(":")
        try:
            tree = ast.parse((folder / file).read_bytes(), filename=file)
        except OSError as error:
            yield "function", f"{file} cannot be read ({error.strerror})"
        except (SyntaxError, ValueError, RecursionError) as error:
            yield "function", f"{file} is not Python ({error})"
        else:
            if not any(_defines(node, name) for node in tree.body):
                yield "function", f"{file} has no function `{name}`; write: def {name}(answer, target, record)"
    elif not isinstance(one, GradedSettings):
        try:
            make_scorer(one, folder)
        except UsageError as error:
            yield "schema" if isinstance(one, SchemaSettings) else None, f"{error.what.rstrip('.')}"


def _defines(node: ast.stmt, name: str) -> bool:
    """A `def`, an assignment or an import of this name. What it really is shows when it is imported."""
    if isinstance(node, ast.FunctionDef):
        return node.name == name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Name) and target.id == name for target in targets)
    return isinstance(node, ast.Import | ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names)


def _and(words: list[str]) -> str:
    named = [f"`{word}`" for word in words]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def run_name(suite: str) -> str:
    """What a suite's runs begin with: a run's id has small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", suite)[:34].strip("-") or "suite"
