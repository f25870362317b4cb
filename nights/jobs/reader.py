"""nights/jobs: a YAML file -> plain data that knows its lines, and a pydantic model's objections to it in sentences. Reads one file.

YAML is read by its 1.2 core rules, as editors do: only `true` and `false` are switches, so that `on:`, `no` and `06:30` are the text that
they look like. What makes a small file mean a large or a surprising thing is refused: aliases, tags, two values for one key, several
documents. Every mistake that can be told apart from the others is a `Mistake` with its line; nothing is raised for what a file holds.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

LARGEST: Final = 256 * 1024
"""Bytes: a job or a suite is a page or two; its rows are elsewhere."""
DEEPEST: Final = 30
MOST_SHOWN: Final = 60
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,9})?")
_SWITCHES: Final = frozenset({"yes", "no", "on", "off", "y", "n"})

At = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, order=True)
class Mistake:
    """One thing that is wrong in one file: `file:line: key: what is wrong; what is allowed`."""

    file: str
    line: int
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.key}: {self.what}" if self.key else f"{self.file}:{self.line}: {self.what}"


@dataclass
class Document:
    """What a file holds. `data`: None where it could not be read at all, as `mistakes` then say."""

    file: str
    data: Any = None
    lines: dict[At, int] = field(default_factory=dict)
    """Path of keys and indices -> its line, of the key where it has one."""
    mistakes: list[Mistake] = field(default_factory=list)

    def line(self, at: At) -> int:
        """Of this path, or of the nearest one above it that is in the file."""
        while at and at not in self.lines:
            at = at[:-1]
        return self.lines.get(at, 1)

    def add(self, at: At, what: str) -> None:
        """One more mistake, at its line."""
        self.mistakes.append(Mistake(self.file, self.line(at), spelled(at), what))


def spelled(at: At) -> str:
    """`notify[0].url`."""
    text = ""
    for step in at:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else str(step))
    return text


# --- reading -------------------------------------------------------------------------------------------------------------------------


def read_yaml(path: Path, shown: str | None = None) -> Document:
    """Read one file. `shown`: what messages call it."""
    found = Document(shown or str(path))
    text = _text_of(path, found)
    if text is None:
        return found
    composer = _Composer(text, found)
    try:
        node = composer.get_single_node()
        if node is None:
            found.add((), "the file is empty")
        else:
            found.data = _built(node, (), found)
    except _Refused as refused:
        found.mistakes.append(Mistake(found.file, refused.line, "", refused.what))
    except yaml.YAMLError as error:
        found.mistakes.append(_not_yaml(error, text, found.file))
    except RecursionError:
        found.add((), "is nested too deep")
    finally:
        composer.dispose()
    return found


def _text_of(path: Path, found: Document) -> str | None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # a pipe would be waited for
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                found.add((), "is not a regular file")
                return None
            raw = file.read(LARGEST + 1)
    except OSError as error:
        found.add((), f"cannot be read ({error.strerror})")
        return None
    if len(raw) > LARGEST:
        found.add((), f"is larger than {LARGEST // 1024} kB; rows belong into a dataset")
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        found.mistakes.append(Mistake(found.file, line, "", "is not UTF-8; save the file in that encoding"))
        return None


class _Refused(Exception):
    def __init__(self, mark: Any, what: str) -> None:
        super().__init__(what)
        self.line = mark.line + 1 if mark is not None else 1
        self.what = what


class _Composer(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser, yaml.composer.Composer, yaml.resolver.BaseResolver):
    """PyYAML up to its nodes: nothing is constructed, so that no tag can ask for an object."""

    def __init__(self, text: str, found: Document) -> None:
        try:
            yaml.reader.Reader.__init__(self, text)
        except yaml.YAMLError as error:
            self._broken: yaml.YAMLError | None = error
        else:
            self._broken = None
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)
        yaml.composer.Composer.__init__(self)
        yaml.resolver.BaseResolver.__init__(self)
        self._depth = 0

    def get_single_node(self) -> Node | None:
        if self._broken is not None:
            raise self._broken
        found: Node | None = super().get_single_node()
        return found

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(
                event.start_mark,
                "holds an alias (*name), which is not supported; write the value out, or put text that begins with * in quotes",
            )
        if event.anchor is not None:
            raise _Refused(event.start_mark, "holds an anchor (&name), which is not supported; put text that begins with & in quotes")
        if event.tag is not None:
            raise _Refused(event.start_mark, "holds a tag (!name), which is not supported; put text that begins with ! in quotes")
        self._depth += 1
        if self._depth > DEEPEST:
            raise _Refused(event.start_mark, f"is nested deeper than {DEEPEST} levels")
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _not_yaml(error: yaml.YAMLError, text: str, file: str) -> Mistake:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return Mistake(file, line, "", "holds a control character, which YAML does not allow")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else 1
    problem = str(getattr(error, "problem", None) or "it cannot be read").replace("\n", " ")
    lines = text.split("\n")
    here = lines[line - 1] if line <= len(lines) else ""
    if "'\\t'" in problem or (here.strip() and "\t" in here[: len(here) - len(here.lstrip())]):
        return Mistake(file, line, "", "is indented with a tab; YAML is indented with spaces")
    if "expected a single document" in str(error.args) or "single document" in str(getattr(error, "context", "")):
        return Mistake(file, line, "", "holds a second document (---); one file is one document")
    hint = ""
    if "mapping values are not allowed" in problem:
        hint = "; put text that holds a colon and a space in quotes"
    elif "could not find expected ':'" in problem:
        hint = "; a key is followed by a colon and a space"
    elif "expected ',' or" in problem:
        hint = "; put text that holds a brace, a bracket or a comma in quotes"
    elif "cannot start any token" in problem:
        hint = "; put the text in quotes"
    elif "alphabetic or numeric character" in problem:  # `* * * * *`
        problem, hint = "a value begins with * or &", "; put it in quotes"
    return Mistake(file, line, "", f"is not YAML ({problem}){hint}")


def _built(node: Node, at: At, found: Document) -> Any:
    found.lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, ScalarNode):
        return _scalar(node, at, found)
    if isinstance(node, SequenceNode):
        return [_built(item, (*at, index), found) for index, item in enumerate(node.value)]
    assert isinstance(node, MappingNode)
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            found.mistakes.append(Mistake(found.file, line, spelled(at), "has a key that is not a word"))
            continue
        key = str(key_node.value)
        if key in data:
            first = found.lines[(*at, key)]
            found.mistakes.append(Mistake(found.file, line, spelled((*at, key)), f"is there twice, first on line {first}; keep one"))
            continue
        found.lines[(*at, key)] = line
        data[key] = _built(value_node, (*at, key), found)
    return data


def _scalar(node: ScalarNode, at: At, found: Document) -> Any:
    text: str = node.value
    if node.style is not None:  # in quotes, or a block
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            found.add(at, "is a number that is too large to be kept")
            return 0.0
        return number
    return text


# --- judging -------------------------------------------------------------------------------------------------------------------------


def judged(document: Document, model: type[M]) -> M | None:
    """The model that the document is, or None, with what is wrong added to the document's mistakes: all of it at once."""
    if not isinstance(document.data, dict):
        if document.data is not None or not document.mistakes:
            document.add((), "must be a mapping of keys, such as `kind: embed`")
        return None
    try:
        return model.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        told = {(mistake.line, mistake.key) for mistake in document.mistakes}
        for one in error.errors():
            at = placed(one["loc"], document.data)
            if (document.line(at), spelled(at)) not in told:  # reading it has said something already
                document.add(at, clause(one, at, model))
        return None


def placed(loc: Iterable[str | int], data: Any) -> At:
    """pydantic's place of an error -> the path in the file: without the tags of unions, which are in no file."""
    at: list[str | int] = []
    steps = list(loc)
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        inside = isinstance(data, dict) and (step in data or last)
        if inside or (isinstance(data, list) and isinstance(step, int) and step < len(data)):
            at.append(step)
            data = data.get(step) if isinstance(data, dict) else data[step]
        elif isinstance(data, dict):
            continue  # the tag
        else:
            break
    return tuple(at)


def clause(error: ErrorDetails, at: At, model: type[BaseModel]) -> str:
    """One objection of pydantic in our words: what is wrong, what is allowed. Never the value of a key that may hold a secret."""
    kind, context = error["type"], error.get("ctx", {})
    value = shown(error["input"], at)
    if kind == "missing":
        return f"is missing{_described(model, at)}"
    if kind == "extra_forbidden":
        return unknown(str(at[-1]) if at else "", keys_at(model, error["loc"][:-1]))
    if kind in ("literal_error", "enum"):
        allowed = re.findall(r"'((?:[^'\\]|\\.)*)'", str(context["expected"])) or [str(context["expected"])]
        return f"is {value}; it must be {_or(allowed)}{_near(error['input'], allowed)}"
    if kind == "union_tag_invalid":
        allowed = re.findall(r"'([^']*)'", str(context["expected_tags"]))
        return f"has the kind {shown(context['tag'])}; it must be {_or(allowed)}{_near(context['tag'], allowed)}"
    if kind == "union_tag_not_found":
        return "has no `kind`, which says what it is"
    if kind in _TYPES:
        wanted = _TYPES[kind]
        return (
            f"is empty; it must be {wanted}" if error["input"] is None else f"is {value}{_which(error['input'], kind)}; it must be {wanted}"
        )
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        bound = float(context[name])
        return f"is {value}; it must be {word} {f'{int(bound):,}' if bound.is_integer() else f'{bound:g}'}"
    if kind == "string_pattern_mismatch":
        return f"{'is not one' if _secret(at) else f'is {value}'}; {_PATTERNS[_pattern_kind(at)]}"
    if kind == "string_too_short":
        return "is empty" if context["min_length"] == 1 else f"is {value}, which is too short"
    if kind == "string_too_long":
        return f"is longer than {context['max_length']:,} characters"
    if kind == "finite_number":
        return "is not a number"
    message = error["msg"][:1].lower() + error["msg"][1:]
    return message if kind not in ("span", "deadline", "time_zone", "cron", "url") or kind == "cron" else f"{value} {message}"


_TYPES: Final = {
    "string_type": "text", "tuple_type": "a list", "list_type": "a list",
    "int_type": "a whole number", "int_from_float": "a whole number", "int_parsing": "a whole number", "int_parsing_size": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "bool_type": "true or false", "bool_parsing": "true or false",
    "dict_type": "a mapping of keys", "model_type": "a mapping of keys", "model_attributes_type": "a mapping of keys",
}  # fmt: skip
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"), "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"), "less_than": ("less than", "lt"),
}  # fmt: skip
_PATTERNS: Final = {
    "env": "write the name of an environment variable, such as SLACK_WEBHOOK_URL, never the secret itself",
    "name": "use up to 40 small letters, digits and hyphens",
    "stack": "use letters, digits, dots, hyphens and underscores",
}


def _pattern_kind(at: At) -> str:
    key = str(at[-1]) if at else ""
    return "env" if key.endswith("_env") else "stack" if key == "stack" else "name"


def _secret(at: At) -> bool:
    key = str(at[-1]) if at else ""
    return key.endswith("_env") or key in ("url", "password", "secret", "token", "api_key")


def shown(value: Any, at: At = ()) -> str:
    """A value as a message shows it: short, and not at all where it may be a secret."""
    if _secret(at):
        return "a value that is not shown here"
    if isinstance(value, dict):
        return "a mapping of keys"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        text = f"'{value}'"
    else:
        text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"


def _which(value: Any, kind: str) -> str:
    if isinstance(value, str) and kind.startswith("bool") and value.lower() in _SWITCHES:
        return ", which is text"
    if isinstance(value, str) and not kind.startswith("string"):
        return ", which is text"
    if isinstance(value, bool) and kind == "string_type":
        return " (put it in quotes if it is meant as text)"
    if isinstance(value, int | float) and kind == "string_type":
        return ", a number (put it in quotes if it is meant as text)"
    return ""


def unknown(key: str, known: Sequence[str]) -> str:
    """There is no such key: which one may be meant, or which there are."""
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    return f"there is no such key; {f'did you mean `{near[0]}`?' if near else 'there are: ' + ', '.join(known)}"


def keys_at(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[str, ...]:
    """The keys that a mapping at this place may have."""
    kinds: list[Any] = [model]
    for step in loc:
        if isinstance(step, int):
            continue
        deeper = [child for kind in kinds for name, child in _children(kind) if name == step]
        tagged = [kind for kind in kinds if _tag(kind) == step]
        kinds = tagged or deeper or kinds
    return tuple(dict.fromkeys(name for kind in kinds for name, _ in _children(kind)))


def _children(kind: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    return [(info.alias or name, one) for name, info in kind.model_fields.items() for one in (list(_models(info.annotation)) or [_Leaf])]


class _Leaf(BaseModel):
    """Stands for what has no keys of its own."""


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _tag(kind: Any) -> str | None:
    info = kind.model_fields.get("kind")
    allowed = get_args(info.annotation) if info is not None else ()
    return str(allowed[0]) if len(allowed) == 1 else None


def _described(model: type[BaseModel], at: At) -> str:
    """The first sentence of what a key is for, as the end of a clause."""
    name = str(at[-1]) if at else ""
    for kind in _all_models(model):
        info = kind.model_fields.get(name) or next((one for one in kind.model_fields.values() if one.alias == name), None)
        if info is not None and info.description and (len(at) == 1) == (kind is model):
            words = " ".join(info.description.split())
            return f": {words[:1].lower()}{words[1:].split('. ')[0].rstrip('.')}"
    return ""


def _all_models(model: type[BaseModel]) -> Iterable[type[BaseModel]]:
    yield model
    for info in model.model_fields.values():
        yield from (one for one in _models(info.annotation))


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _near(value: Any, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(value.lower(), allowed, n=1, cutoff=0.6) if isinstance(value, str) else []
    return f" (did you mean {near[0]}?)" if near else ""
