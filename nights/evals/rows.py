"""nights/evals: a suite's dataset -> questions -> the rows of a run; a run's output -> answers, joined by id. Touches files and S3.

No question is ever dropped: what cannot be read or scored is said before anything is paid for, all of it at once, and an output that lacks
a question, has one twice or has one that nobody asked is an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from contract.errors import BadRow, ContractError, Damaged, DatasetError
from contract.lines import file_lines
from contract.models import RowOptions
from contract.rows import ChatUrl, CompletionUrl, RowError
from contract.store import Store
from nights.evals.scorers import LETTERS, FunctionSettings, Item, columns_of, texts_of
from nights.evals.suite import CHOICES, Suite
from pipelines.dataset import Reader, RowProblem, find_files, open_reader
from pipelines.dataset.reader import Slot
from pipelines.dataset.rows import text_of
from pipelines.dataset.streams import Source
from pipelines.outputs import OutputLine

MOST_LISTED: Final = 200
Record = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One row of the suite's dataset. `body`: its own part of the row's body; `file`, `line`: where it stands."""

    index: int
    id: str
    body: dict[str, Any]
    item: Item
    group: str | None
    file: str
    line: int


@dataclass(frozen=True)
class Questions:
    """All of them, in the dataset's order. `digest`: of what of them matters to the suite."""

    all: tuple[Question, ...]
    digest: str

    @property
    def ids(self) -> list[str]:
        return [question.id for question in self.all]


# --- reading the dataset -------------------------------------------------------------------------------------------------------------


async def read_questions(suite: Suite, bucket: Callable[[str], Store]) -> Questions:
    """Raises DatasetError with every row that is no question."""
    files = await find_files(suite.dataset, bucket)
    stop = threading.Event()
    source = Source(asyncio.get_running_loop(), stop)
    reading = asyncio.ensure_future(asyncio.to_thread(_read, suite, open_options(suite), files, source))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([reading])
        raise


def open_options(suite: Suite) -> RowOptions:
    """How the pipeline's reader checks the rows: their ids, and that the columns of the question are there."""
    keys = suite.keys
    named = [name for text in suite.templates for name in _names(text)]
    choices = keys.choices_column or ()
    shown = list(dict.fromkeys(name for one in named for name in (choices if one == CHOICES else (one,))))
    prompt = "".join(f"{{{name}}}" for name in shown) if suite.templates else None
    return RowOptions(prompt=prompt, column=keys.column, messages_column=keys.messages_column, id_column=keys.id_column)


def _names(text: str) -> tuple[str, ...]:
    template = columns_of(text)
    return template.columns if template is not None else ()


def _read(suite: Suite, options: RowOptions, files: Sequence[Any], source: Source) -> Questions:
    where = suite.where("dataset")
    if suite.templates and not options.prompt:
        raise DatasetError("the prompt names no column, so that every question would be the same.", where=suite.where("prompt"))
    reader: Reader = open_reader(files, "generate", options, (), source)
    if reader.batch:
        raise DatasetError("the rows are OpenAI batch lines, which have no targets.", where=where, fix="Give records with columns.")
    bad: list[BadRow] = []
    questions: list[Question] = []
    first: dict[str, Question] = {}
    digest = hashlib.sha256()
    whole = any(isinstance(one, FunctionSettings) for one in suite.keys.scorers)
    used = _used(suite)

    def on_bad(place: int, line: int, problem: RowProblem) -> None:
        bad.append(BadRow(files[place].name, line, problem.code, problem.reason))

    for place, line, _, ident, made, _, held, _, _ in reader.rows(on_bad, records=True):
        if suite.keys.limit is not None and len(questions) == suite.keys.limit:
            break
        record = _record(held)
        try:
            question = _question(suite, len(questions), ident, record, made, files[place].name, line)
        except RowProblem as problem:
            on_bad(place, line, problem)
            continue
        there = first.setdefault(ident, question)
        if there is not question:
            on_bad(place, line, RowProblem("duplicate_id", f"id {ident!r} is the id of {there.file}:{there.line} too"))
            continue
        questions.append(question)
        kept = record if whole else {name: record.get(name) for name in used}
        digest.update(json.dumps([ident, kept], sort_keys=True, default=str, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    if bad:
        raise bad_questions(bad, where)
    if not questions:
        raise DatasetError("there are no questions in it.", where=where)
    return Questions(tuple(questions), digest.hexdigest())


def bad_questions(bad: Sequence[BadRow], where: str) -> DatasetError:
    """All rows that cannot be asked or scored."""
    many = f"{len(bad):,} rows are no questions" if len(bad) > 1 else "1 row is no question"
    return DatasetError(f"{many} of this suite; nothing was sent.", bad_rows=bad[:MOST_LISTED], total=len(bad), where=where)


def _used(suite: Suite) -> list[str]:
    """Columns that the question, its target and its scorers look at."""
    keys = suite.keys
    named = [name for text in suite.templates for name in _names(text) if not (name == CHOICES and keys.choices_column)]
    for one in keys.scorers:
        named += [name for text in (getattr(one, "code", ""), getattr(one, "tests", "")) for name in _names(text) if name != "answer"]
    if keys.judge is not None:
        named += keys.judge.columns
    more = (keys.column, keys.messages_column, keys.target_column, keys.group_column, *(keys.choices_column or ()))
    return sorted({*named, *(name for name in more if name is not None)})


def _record(held: Any) -> Record:
    if isinstance(held, Slot):
        found: Record = held.batch.slice(held.at, 1).to_pylist()[0]
        return found
    return dict(held)


def _question(suite: Suite, index: int, ident: str, record: Record, made: bytes, file: str, line: int) -> Question:
    """Raises RowProblem."""
    keys = suite.keys
    choices = _choices(keys.choices_column, record)
    shown: Record = record
    if choices:
        shown = {**record, CHOICES: "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=False))}
    if keys.messages is not None:
        messages = [{"role": message.role, "content": _fill(message.content, shown)} for message in keys.messages]
    elif keys.prompt is not None:
        messages = [{"role": "user", "content": _fill(keys.prompt, shown)}]
    else:  # the reader has made them
        messages = msgspec.json.decode(made)["body"]["messages"]
    text = _shown(messages)
    body: dict[str, Any] = {"messages": messages} if keys.chat else {"prompt": messages[0]["content"]}
    target = None
    if keys.target_column is not None:
        if keys.target_column not in record:
            raise RowProblem("unknown_field", f"no column `{keys.target_column}`, which is the target")
        target = record[keys.target_column]
    group = None
    if keys.group_column is not None:
        if keys.group_column not in record:
            raise RowProblem("unknown_field", f"no column `{keys.group_column}`, which is the group")
        group = text_of(record[keys.group_column], keys.group_column)
    targets = texts_of(target, keys.target_column or "")
    return Question(index, ident, body, Item(ident, text, targets, choices, record, target), group, file, line)


def _fill(text: str, record: Record) -> str:
    template = columns_of(text)
    return template.fill(record) if template is not None else text.replace("{{", "{").replace("}}", "}")


def _choices(columns: tuple[str, ...] | None, record: Record) -> tuple[str, ...]:
    if columns is None:
        return ()
    for name in columns:
        if name not in record:
            raise RowProblem("unknown_field", f"no column `{name}`, which is a choice")
    if len(columns) > 1:
        found: Iterable[str] = (text_of(record[name], name) for name in columns)
        return tuple(text for text in found if text)  # a question with fewer choices leaves the last ones empty
    value = record[columns[0]]
    if isinstance(value, str):  # a table without lists
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            pass
    if not isinstance(value, list | tuple) or len(value) > len(LETTERS):
        raise RowProblem("wrong_type", f"`{columns[0]}` is no list of at most {len(LETTERS)} choices")
    return texts_of(value, columns[0])


def _shown(messages: Any) -> str:
    """The question as people read it: the user's text, or all of a conversation."""
    if len(messages) == 1 and isinstance(messages[0].get("content"), str):
        return str(messages[0]["content"])
    return "\n\n".join(
        f"{one.get('role')}: {one.get('content') if isinstance(one.get('content'), str) else json.dumps(one.get('content'))}"
        for one in messages
    )


# --- the rows of a run ---------------------------------------------------------------------------------------------------------------


def batch_lines(rows: Iterable[tuple[str, Mapping[str, Any]]], *, chat: bool = True) -> bytes:
    """Ids and bodies -> OpenAI batch lines."""
    url = ChatUrl if chat else CompletionUrl
    lines = (msgspec.json.encode({"custom_id": ident, "method": "POST", "url": url, "body": body}) for ident, body in rows)
    return b"".join(line + b"\n" for line in lines)


def suite_lines(suite: Suite, questions: Questions) -> bytes:
    """A row for each question. Draws are the row's `n`, so that its text is read once; sampling stands in each row, so that the price
    knows it."""
    body = suite.keys.sampling.body(suite.keys.draws)
    return batch_lines(((one.id, {**one.body, **body}) for one in questions.all), chat=suite.keys.chat)


# --- its answers ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """One choice of a response."""

    text: str
    finish_reason: str | None

    @property
    def cut(self) -> bool:
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Answer:
    """What came back for one row: its draws, or why there are none. Tokens are of all draws together."""

    id: str
    draws: tuple[Draw, ...] = ()
    error: RowError | None = None
    tokens_in: int = 0
    tokens_out: int = 0


def read_answers(out: Path, errors: Path, ids: Sequence[str], draws: int = 1) -> dict[str, Answer]:
    """Both files of a collected run, joined by id. Raises Damaged where a row is missing, there twice, or nobody's."""
    found: dict[str, Answer] = {}
    asked = set(ids)
    for path in (out, errors):
        try:
            for number, raw in enumerate(file_lines(path, where=str(path), compressed=False), 1):
                answer = _answer(raw, draws, f"{path}:{number}")
                if answer.id not in asked:
                    raise Damaged(f"the row {answer.id!r} is none that was asked.", where=f"{path}:{number}")
                if answer.id in found:
                    raise Damaged(f"the row {answer.id!r} is there twice.", where=f"{path}:{number}")
                found[answer.id] = answer
        except ContractError as error:
            raise Damaged(error.what, where=error.where) from None
        except OSError as error:
            raise Damaged(f"the run's output cannot be read ({error.strerror}).", where=str(path)) from None
    missing = [ident for ident in ids if ident not in found]
    if missing:
        names = ", ".join(repr(one) for one in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise Damaged(
            f"{len(missing):,} of {len(ids):,} rows are neither in the output nor among the errors: {names}.",
            where=str(out),
            fix="No score is made of a part of the answers.",
        )
    return found


def _answer(raw: bytes, draws: int, where: str) -> Answer:
    try:
        line = msgspec.json.decode(raw, type=OutputLine)
        if line.custom_id is None:
            raise Damaged("a row was left out before it was sent.", where=where)
        if line.response is None:
            error = msgspec.json.decode(line.error, type=_Error)
            return Answer(line.custom_id, error=RowError(code=error.code, message=error.message, param=error.param))
        body = msgspec.json.decode(line.response.body, type=_Body)
    except msgspec.MsgspecError as error:
        raise Damaged(f"this is no line of an output ({error}).", where=where) from None
    choices = sorted(body.choices, key=lambda one: one.index)
    if len(choices) != draws:
        raise Damaged(f"the row {line.custom_id!r} has {len(choices)} answers, and {draws} were asked for.", where=where)
    made = tuple(Draw((one.message.content if one.message is not None else one.text) or "", one.finish_reason) for one in choices)
    return Answer(line.custom_id, made, None, body.usage.prompt_tokens, body.usage.completion_tokens)


class _Error(msgspec.Struct):
    code: str
    message: str
    param: str | None = None


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Body(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage = msgspec.field(default_factory=_Usage)
