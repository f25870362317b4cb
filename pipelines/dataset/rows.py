"""pipelines/dataset: a line or a record -> one OpenAI batch line, or the reason why not. Pure.

An OpenAI batch line travels as it stands, byte for byte. A row whose body names another model than the run's (files made for a hosted
service name the hosted model) is counted, so that the plan can say that the run's model answers it; the worker reads no model from rows.
Records become chat messages for `generate`, because instruct models answer gibberish to bare text, and `{"input": …}` for `embed`.

What is checked here is what can be told without the model: everything else (too long for the model, a parameter that it does not have) is a
row error of the worker. JSON is read by msgspec: strict, exact integers of any size, no NaN. Keys that stand twice are found by counting
(each key is followed by `":`), and looked at closely only where the count differs from what was read. A line that puts a space before
some colons and not before others can hide one; no usual writer of JSON does that.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import msgspec

from contract.errors import DatasetError, UsageError
from contract.models import RowOptions, TaskKind
from contract.params import BODIES, WITHOUT_EFFECT, body_problem
from contract.rows import MAX_ROW_BYTES, URLS, ChatUrl, CompletionUrl, EmbeddingUrl
from pipelines.dataset.shapes import MOST, Shape, Shapes

MAX_DEPTH: Final = 100
"""Levels of a row's JSON. Deeper ones would meet the recursion limit of whoever reads them next."""
TEXT_COLUMNS: Final = {"generate": ("prompt", "question"), "embed": ("text", "input", "content")}
"""Columns that are taken without being named, when a record has exactly one of them (`generate` takes `messages` too)."""
MESSAGES_COLUMN: Final = "messages"
_MISSING: Final = object()

Made = tuple[str, bytes, int]
"""custom_id, the row's line, and the most output tokens that its body allows (0: not said)."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class RowProblem(Exception):
    """One row that cannot be sent. `code` for programs; `reason` one clause for people; `custom_id` where it is known."""

    def __init__(self, code: str, reason: str, custom_id: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.custom_id = custom_id


# --- JSON ----------------------------------------------------------------------------------------------------------------------------


class _NotFinite(ValueError):
    pass


class _Twice(ValueError):
    pass


def _constant(text: str) -> Any:
    raise _NotFinite(text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Twice(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return made


def diagnose(line: bytes, error: Exception) -> RowProblem:
    """Why msgspec could not read this line: slow, and only for lines that are bad already."""
    try:
        text = line.decode()
    except UnicodeDecodeError as wrong:
        return RowProblem("bad_utf8", f"not UTF-8: byte {wrong.start + 1} of the line is 0x{line[wrong.start]:02x}")
    if text.startswith("\ufeff"):
        return RowProblem("bom", "a byte order mark in the middle of the file, as joined files leave it; remove it")
    if isinstance(error, RecursionError):
        return RowProblem("too_deep", f"nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(text, parse_constant=_constant)
    except _NotFinite as wrong:
        return RowProblem("not_finite", f"{wrong} is not a JSON number; use null or leave the field out")
    except RecursionError:
        return RowProblem("too_deep", f"nested deeper than {MAX_DEPTH} levels")
    except json.JSONDecodeError as wrong:
        if wrong.msg == "Extra data":
            return RowProblem("not_json", f"more than one JSON value on the line (the second at character {wrong.pos + 1})")
        return RowProblem("not_json", f"not JSON: {wrong.msg[:1].lower()}{wrong.msg[1:]} at character {wrong.pos + 1}")
    except ValueError:
        return RowProblem("number_out_of_range", "a number with too many digits")
    if _has_surrogate(value):
        return RowProblem("lone_surrogate", "half of a surrogate pair (\\ud800 to \\udfff) is not text")
    if "range" in str(error):
        return RowProblem("number_out_of_range", "a number too large for any reader (such as 1e400)")
    return RowProblem("not_json", f"not JSON: {error}")


def _has_surrogate(value: Any) -> bool:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if any("\ud800" <= c <= "\udfff" for c in item):
                return True
        elif isinstance(item, dict):
            todo += item
            todo += item.values()
        elif isinstance(item, list):
            todo += item
    return False


def count_keys(value: dict[str, Any] | list[Any], depth: int = 1) -> int:
    """Keys of all objects in `value`. Raises RowProblem where it is nested too deep."""
    if depth > MAX_DEPTH:
        raise RowProblem("too_deep", f"nested deeper than {MAX_DEPTH} levels")
    if type(value) is dict:
        count = len(value)
        items: Iterable[Any] = value.values()
    else:
        count = 0
        items = value
    for item in items:
        kind = type(item)
        if kind is dict or kind is list:
            count += count_keys(item, depth + 1)
    return count


def check_twice(line: bytes, keys: int) -> None:
    """Raises RowProblem if a key stands twice in one object of `line`, of which `keys` distinct ones were read."""
    if line.count(b'":') == keys or line.count(b'":') - line.count(b'\\":') == keys:
        return
    try:
        json.loads(line, object_pairs_hook=_pairs)
    except _Twice as wrong:
        raise RowProblem("duplicate_key", f"the key `{wrong}` stands twice in one object") from None
    except (ValueError, RecursionError):
        return  # msgspec read it: the one who is stricter has judged already


def parse_record(line: bytes, shapes: Shapes) -> tuple[dict[str, Any], Shape]:
    """A line of JSON that must be an object, and its shape. Raises RowProblem."""
    try:
        value = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise diagnose(line, error) from None
    if type(value) is not dict:
        raise RowProblem("not_object", f"{_kind(value)}, not a JSON object")
    shape = shapes.of(value)
    keys = len(value)
    for name in shape.nested:
        keys += count_keys(value[name], 2)
    if line.count(b'":') != keys:
        check_twice(line, keys)
    return value, shape


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


# --- OpenAI batch lines --------------------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = ""


_decode_line = msgspec.json.Decoder(_Line).decode
MOST_VALUES: Final = 10_000
"""Combinations of body values that are remembered: rows that each have another seed are looked at one by one."""
_OWN: Final = frozenset({"messages", "prompt", "input"})
_LINE_KEYS: Final = ("custom_id", "method", "url", "body")
_TEXT_FIELDS: Final[dict[str, str | None]] = {ChatUrl: None, CompletionUrl: "prompt", EmbeddingUrl: "input"}
"""Where a body's text is; None: in its messages."""


def looks_like_batch_line(record: dict[str, Any]) -> bool:
    """An object that means to be a batch line, if perhaps a bad one."""
    return "body" in record and any(key in record for key in ("custom_id", "url", "method"))


class _BodyShape:
    """What is common to bodies with the same fields, in the same order, of the same types. `seen`: values of `picked` that were looked at
    -> the most output tokens that they allow; `rows`: how many had this shape."""

    __slots__ = ("named", "nested", "picked", "rows", "said", "seen")

    def __init__(self, body: dict[str, Any]) -> None:
        self.said = tuple(name for name, value in body.items() if value is not None)
        self.nested = tuple(name for name in self.said if type(body[name]) is dict or type(body[name]) is list)
        # A row's own text, and what has no effect, is another one in each row.
        flat = [name for name in self.said if name not in self.nested and name not in _OWN and name not in WITHOUT_EFFECT]
        self.picked: Callable[[dict[str, Any]], Any] = itemgetter(*flat) if flat else _nothing
        self.named = "model" in flat
        self.seen: dict[Any, int] = {}
        self.rows = 0


def _nothing(body: dict[str, Any]) -> Any:
    return ()


class BatchRows:
    """Batch lines as they are. One instance reads one dataset once: it remembers the first row's url, and counts other models' names.

    Nearly all bodies look like one before, with the same numbers in them: what each field may be is looked at once a shape and once a
    combination of values, because a look at every field of every row would cost more than reading it.
    """

    def __init__(self, task: TaskKind, models: Sequence[str]) -> None:
        self._task = task
        self._urls = URLS[task]
        self._known = frozenset(models)
        self._url: str | None = None
        self._text: str | None = None
        self._shapes: dict[tuple[Any, ...], _BodyShape] = {}
        self._values = 0
        self._others: Counter[str] = Counter()
        """Fields of shapes that were forgotten."""
        self.other_models: Counter[str] = Counter()

    @property
    def url(self) -> str | None:
        """Of the rows; None while there was none."""
        return self._url

    @property
    def fields(self) -> Counter[str]:
        """Fields of bodies, and how many rows gave each a value."""
        found = self._others.copy()
        for shape in self._shapes.values():
            for name in shape.said:
                found[name] += shape.rows
        return found

    def __call__(self, line: bytes, index: int) -> Made:
        """Raises RowProblem."""
        try:
            row = _decode_line(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._explain(line, error) from None
        # Functions are called only where there is something to say: a call costs as much as reading fifty bytes.
        body = row.body
        custom_id = row.custom_id
        keys = len(body) + (4 if row.method else 3)
        try:
            shape = self._shapes.get((*body, *map(type, body.values())))
            if shape is None:
                shape = self._shape(body)
            for name in shape.nested:
                keys += count_keys(body[name], 3)
            if line.count(b'":') != keys:
                check_twice(line, keys)
            if row.url != self._url or row.method != "POST" or not custom_id:
                self._check_line(row)
            if self._text is None:
                messages = body.get("messages", _MISSING)
                # Nearly always the first message has text, which is seen here without a call.
                first = messages[0] if type(messages) is list and messages else None
                text = first.get("content") if type(first) is dict else None
                if type(text) is not str or not text or text.isspace():
                    _check_messages(messages)
            else:
                text = body.get(self._text, _MISSING)
                if type(text) is not str or not text or text.isspace():
                    _check_text(text, self._text)
            most = shape.seen.get(shape.picked(body))
            if most is None:
                most = self._look(row.url, body, shape)
        except RowProblem as problem:
            problem.custom_id = custom_id
            raise
        self._url = row.url
        shape.rows += 1
        if shape.named and (named := body["model"]) not in self._known:
            self.other_models[named] += 1
        return custom_id, line, most

    def _shape(self, body: dict[str, Any]) -> _BodyShape:
        """The shape of a body that is unlike those before it."""
        if len(self._shapes) >= MOST:
            self._others = self.fields
            self._shapes.clear()
        shape = self._shapes[(*body, *map(type, body.values()))] = _BodyShape(body)
        return shape

    def _look(self, url: str, body: dict[str, Any], shape: _BodyShape) -> int:
        """The most output tokens that a body allows (0: not said), each of its fields looked at. Raises RowProblem."""
        for name in shape.said:
            if (problem := body_problem(url, name, body[name])) is not None:
                raise RowProblem(*problem)
        most = _most_tokens(body)
        rules = BODIES[url]
        # Whether an unknown list or object is refused depends on what is in it: `tools` may be empty.
        if all(name in rules or name in WITHOUT_EFFECT for name in shape.nested):
            if self._values >= MOST_VALUES:
                for other in self._shapes.values():
                    other.seen.clear()
                self._values = 0
            self._values += 1
            shape.seen[shape.picked(body)] = most
        return most

    def _check_line(self, row: _Line) -> None:
        url = row.url
        if url != self._url:
            if url not in self._urls:
                fitting = next((kind for kind, urls in URLS.items() if url in urls), None)
                hint = f"it belongs to --task {fitting}" if fitting else f"use {' or '.join(self._urls)}"
                raise RowProblem("wrong_url", f"url {url!r} does not fit task {self._task}: {hint}")
            if self._url is not None:
                raise RowProblem("mixed_urls", f"url {url!r}, where the rows before have {self._url!r}; one run has one url")
            self._text = _TEXT_FIELDS[url]
        if row.method not in ("", "POST"):
            raise RowProblem("wrong_method", f"method {row.method!r}, not POST")
        if not row.custom_id:
            raise RowProblem("missing_id", "`custom_id` is empty")

    def _explain(self, line: bytes, error: Exception) -> RowProblem:
        """The line is no JSON, or JSON of another shape."""
        try:
            value = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            return diagnose(line, wrong)
        if type(value) is not dict:
            return RowProblem("not_object", f"{_kind(value)}, not a JSON object")
        custom_id = value.get("custom_id")
        known = custom_id if isinstance(custom_id, str) else None
        if custom_id is None:
            return RowProblem("missing_id", "no `custom_id`")
        if known is None:
            return RowProblem("bad_id", f"`custom_id` is {_kind(custom_id)}, not text")
        if "body" not in value:
            return RowProblem("missing_body", "no `body`", known)
        if type(value["body"]) is not dict:
            return RowProblem("body_not_object", f"`body` is {_kind(value['body'])}, not an object", known)
        if type(value.get("url")) is not str:
            return RowProblem("wrong_url", f"`url` is {_kind(value.get('url'))}, not text", known)
        for key in value:
            if key not in _LINE_KEYS:
                return RowProblem("unknown_key", f"`{key}` is not a field of a batch line ({', '.join(_LINE_KEYS)})", known)
        return RowProblem("wrong_method", f"method {value.get('method')!r}, not POST", known)


def _most_tokens(body: dict[str, Any]) -> int:
    most = body.get("max_completion_tokens")
    if most is None:
        most = body.get("max_tokens")
    if type(most) is float:
        most = int(most)  # a whole one, as the worker takes it
    if type(most) is not int or most < 1:
        return 0
    several = body.get("n")
    if type(several) is int and several > 1:
        most *= several
    return most if most < 1 << 31 else (1 << 31) - 1


def _check_text(text: Any, name: str) -> None:
    if text is _MISSING or text is None:
        raise RowProblem("missing_text", f"`body` has no `{name}`")
    if text == [] or (type(text) is str and (not text or text.isspace())):
        raise RowProblem("empty_text", f"`{name}` is empty")


def _check_messages(messages: Any) -> None:
    if messages is _MISSING or messages is None:
        raise RowProblem("missing_text", "`body` has no `messages`")
    if type(messages) is not list:
        return  # the worker names the field and its type
    for message in messages:
        if type(message) is not dict:
            return
        content = message.get("content")
        if type(content) is str:
            if content and not content.isspace():
                return
        elif content:
            return
    raise RowProblem("empty_text", "`messages` holds no text")


# --- records -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """`"Answer briefly: {question}"`: text with the names of columns in braces. `{{` and `}}` are braces; there is nothing else to it."""

    text: str
    parts: tuple[tuple[str, str | None], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts: list[tuple[str, str | None]] = []
        before = ""
        for piece in re.findall(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+", self.text):
            if piece in ("{{", "}}"):
                before += piece[0]
            elif piece in ("{", "}") or piece == "{}":
                raise UsageError(
                    f"the prompt {self.text!r} has a brace without a column name.", fix="Write {column}, or {{ and }} for braces."
                )
            elif piece.startswith("{"):
                parts.append((before, piece[1:-1]))
                before = ""
            else:
                before += piece
        parts.append((before, None))
        object.__setattr__(self, "parts", tuple(parts))
        if not self.columns:
            raise UsageError(f"the prompt {self.text!r} names no column, so every row would be the same.", fix="Write {column} in it.")

    @property
    def columns(self) -> tuple[str, ...]:
        """In order of appearance, each once."""
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    def fill(self, record: dict[str, Any]) -> str:
        """Null becomes nothing; a row in which every column is null or blank is a RowProblem, and so is a column that is not there."""
        out: list[str] = []
        some = False
        for before, name in self.parts:
            out.append(before)
            if name is not None:
                value = record.get(name, _MISSING)
                if value is _MISSING:
                    raise unknown_column(name, record)
                text = value if type(value) is str else text_of(value, name)
                some = some or bool(text and not text.isspace())
                out.append(text)
        if not some:
            names = ", ".join(f"`{name}`" for name in self.columns)
            raise RowProblem("empty_text", f"{names} {'is' if len(self.columns) == 1 else 'are'} empty")
        return "".join(out)


def unknown_column(name: str, record: dict[str, Any]) -> RowProblem:
    """A record without the column that an option names."""
    have = ", ".join(list(record)[:12]) or "none"
    return RowProblem("unknown_field", f"no column `{name}` (there is: {have})")


def text_of(value: Any, name: str) -> str:
    """A value of a table as text: JSON's spelling for what JSON has, else str(). Raises RowProblem for NaN and infinity."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RowProblem("not_finite", f"`{name}` is {value}")
        return repr(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return _strict(value, name).decode()
    if isinstance(value, bytes):
        raise RowProblem("wrong_type", f"`{name}` is binary, not text")
    return str(value)


def _strict(value: Any, name: str) -> bytes:
    """JSON of a nested value, NaN refused (msgspec would write null)."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise RowProblem("not_finite", f"`{name}` holds {item}")
        if isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list):
            todo += item
    return _encode(value)


class RecordRows:
    """Records -> batch lines, by options that name what they hold (as `resolve_options` returns them).

    A made id is the row's index and a CRC-32 of its body: it says where a row stood and shows that another text is another row.
    """

    def __init__(self, task: TaskKind, options: RowOptions) -> None:
        self._template = Template(options.prompt) if options.prompt is not None else None
        self._column = options.column
        self._key: Any = options.column  # None finds nothing
        self._messages = options.messages_column
        self._id = options.id_column
        url = EmbeddingUrl if task == "embed" else ChatUrl
        self._line = b'{"custom_id":%%b,"method":"POST","url":"%b","body":%%b}' % url.encode()
        self._before, self._after = (b'{"input":', b"}") if task == "embed" else (b'{"messages":[{"role":"user","content":', b"}]}")
        self._begun = zlib.crc32(self._before)
        self._whole = self._line.replace(b"%b}", self._before + b"%b" + self._after + b"}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that make the row: a reader of columns needs no others."""
        text = self._template.columns if self._template else ()
        return tuple(dict.fromkeys([*text, *(name for name in (self._column, self._messages, self._id) if name is not None)]))

    def __call__(self, record: dict[str, Any], index: int) -> Made:
        """Raises RowProblem."""
        custom_id = None
        if self._id is not None:
            custom_id = record.get(self._id)
            if type(custom_id) is not str or not custom_id:
                custom_id = self._named(record)
        try:
            text = record.get(self._key)
            if type(text) is str and text and not text.isspace():
                # Nearly every row of a column of text: without a copy of its body, and an id of digits needs no look by an encoder.
                said = _encode(text)
                if custom_id is None:
                    custom_id = f"row-{index}-{zlib.crc32(self._after, zlib.crc32(said, self._begun)):08x}"
                    line = self._whole % (b'"%b"' % custom_id.encode(), said)
                else:
                    line = self._whole % (_encode(custom_id), said)
            else:
                body = self._body(record)
                if custom_id is None:
                    custom_id = f"row-{index}-{zlib.crc32(body):08x}"
                line = self._line % (_encode(custom_id), body)
        except RowProblem as problem:
            problem.custom_id = custom_id
            raise
        except UnicodeEncodeError:
            raise RowProblem("lone_surrogate", "half of a surrogate pair is not text", None) from None
        if len(line) > MAX_ROW_BYTES:
            raise RowProblem("too_long", f"{len(line):,} bytes, and a row may have {MAX_ROW_BYTES:,}", custom_id)
        return custom_id, line, 0

    def _body(self, record: dict[str, Any]) -> bytes:
        if self._messages is not None:
            return _encode({"messages": _messages_of(record, self._messages)})
        if self._template is not None:
            text = self._template.fill(record)
        else:
            assert self._column is not None
            value = record.get(self._column, _MISSING)
            if value is _MISSING:
                raise unknown_column(self._column, record)
            if isinstance(value, dict | list):
                raise RowProblem("wrong_type", f"`{self._column}` is {_kind(value)}, not text")
            text = value if type(value) is str else text_of(value, self._column)
            if not text or text.isspace():
                raise RowProblem("empty_text", f"`{self._column}` is {'null' if value is None else 'empty'}")
        return self._before + _encode(text) + self._after

    def _named(self, record: dict[str, Any]) -> str:
        assert self._id is not None
        value = record.get(self._id, _MISSING)
        if value is _MISSING:
            raise unknown_column(self._id, record)
        if value is None or value == "":
            raise RowProblem("missing_id", f"`{self._id}` is {'null' if value is None else 'empty'}")
        if isinstance(value, dict | list | bytes):
            raise RowProblem("bad_id", f"`{self._id}` is {_kind(value)}, not an id")
        return text_of(value, self._id)


def _messages_of(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = record.get(name, _MISSING)
    if value is _MISSING:
        raise unknown_column(name, record)
    if isinstance(value, str):
        if not value or value.isspace():
            raise RowProblem("empty_text", f"`{name}` is empty")
        try:
            value = _decode(value.encode())
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            raise RowProblem("wrong_type", f"`{name}` is text that is not JSON; it must be a list of messages") from None
    if value is None or value == []:
        raise RowProblem("empty_text", f"`{name}` is {'null' if value is None else 'empty'}")
    if not isinstance(value, list) or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value):
        raise RowProblem("wrong_type", f'`{name}` is not a list of messages like {{"role": "user", "content": "…"}}')
    # Parquet fills the fields that one message lacks with null.
    messages = [{key: item for key, item in message.items() if item is not None} for message in value]
    _strict(messages, name)
    _check_messages(messages)
    return messages


def check_ways(options: RowOptions, task: TaskKind) -> list[str]:
    """The ways to the text that the options name: one at most, and a template that can be read. Raises UsageError."""
    ways = [way for way in (options.prompt, options.column, options.messages_column) if way is not None]
    if len(ways) > 1:
        raise UsageError("--prompt, --column and --messages-column exclude each other.", fix="Use one of them.")
    if options.messages_column is not None and task == "embed":
        raise UsageError("--messages-column is for --task generate; embeddings are made of text.", fix="Use --column or --prompt.")
    if options.prompt is not None:
        Template(options.prompt)
    return ways


def resolve_options(options: RowOptions, task: TaskKind, columns: Sequence[str], where: str) -> RowOptions:
    """Options with the text column found, if none was named. Raises DatasetError: one sentence that lists the columns."""
    ways = check_ways(options, task)
    have = ", ".join(columns[:20]) + (", …" if len(columns) > 20 else "") or "none"
    if not ways:
        fitting = [name for name in TEXT_COLUMNS[task] if name in columns]
        if task == "generate" and MESSAGES_COLUMN in columns:
            fitting.append(MESSAGES_COLUMN)
        if len(fitting) == 1:
            name = fitting[0]
            return msgspec.structs.replace(options, **{"messages_column" if name == MESSAGES_COLUMN else "column": name})
        example = fitting[0] if fitting else next((c for c in columns if c != options.id_column and c not in ("id", "custom_id")), "text")
        other = "" if task == "embed" else f' or --prompt "… {{{example}}} …"'
        problem = f"it could be {' or '.join(fitting)}" if fitting else "nothing says which"
        raise DatasetError(
            f"the rows are not batch lines, and a column must hold the text: {problem}.",
            where=where,
            fix=f"Columns: {have}. Say for example --column {example}{other}.",
        )
    return options


def check_columns(options: RowOptions, columns: Sequence[str], where: str) -> None:
    """For tables, whose columns are known before their rows: every column that an option names is there. Raises DatasetError."""
    template = Template(options.prompt).columns if options.prompt is not None else ()
    named = (*template, *(n for n in (options.column, options.messages_column, options.id_column) if n is not None))
    missing = [name for name in dict.fromkeys(named) if name not in columns]
    if missing:
        raise DatasetError(f"no column {', '.join(missing)}.", where=where, fix=f"Its columns: {', '.join(columns[:20]) or 'none'}.")
