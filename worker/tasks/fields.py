"""worker/tasks: typed reading of a body's fields; every problem is a row error that names the field. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from contract.params import WITHOUT_EFFECT, asks_nothing
from contract.rows import RowError

_INT64: Final = 2**63


class RowProblem(Exception):
    """This row cannot be run; the others can."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = RowError(code=code, message=message, param=param)


def parse_body(raw: bytes) -> dict[str, Any]:
    """A row's body as a dict. Raises RowProblem: invalid_json, wrong_type, lone_surrogate."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(raw, error) from None
    if not isinstance(value, dict):
        raise RowProblem("wrong_type", "the body must be an object.", "body")
    return value


def _not_json(raw: bytes, error: Exception) -> RowProblem:
    # msgspec refuses half a surrogate pair in an escape as if it were bad JSON; Python's parser lets it through, which tells them apart.
    try:
        value = json.loads(raw)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return RowProblem("lone_surrogate", "the body holds half of a surrogate pair, which is no character.", "body")
    except (ValueError, RecursionError):
        pass
    return RowProblem("invalid_json", f"the body is not JSON: {error}.", "body")


def named(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {bool: "a boolean", int: "a whole number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


class Body:
    """Fields of one body. Whatever was given and is not in `known` and not without effect is refused when the body is made."""

    def __init__(self, fields: Mapping[str, Any], known: frozenset[str]) -> None:
        self._fields = {name: value for name, value in fields.items() if value is not None}
        for name, value in self._fields.items():
            if name not in known and name not in WITHOUT_EFFECT and not asks_nothing(name, value):
                raise RowProblem("unsupported_field", f"`{name}` is not supported.", name)

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def whole(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "a whole number")
        if (least is not None and value < least) or (most is not None and value > most):
            raise RowProblem("invalid_parameter", f"`{name}` is {value}; it must be {_bounds(least, most)}.", name)
        return value

    def seed(self) -> int | None:
        return self.whole("seed", -_INT64, _INT64 - 1)

    def number(self, name: str, least: float | None = None, most: float | None = None) -> float | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.wrong(name, "a number")
        if (least is not None and value < least) or (most is not None and value > most):
            raise RowProblem("invalid_parameter", f"`{name}` is {value}; it must be {_bounds(least, most)}.", name)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of strings")
        return tuple(value)

    def tokens(self, name: str) -> tuple[int, ...] | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not token_list(value):
            raise self.wrong(name, "a list of token ids")
        return tuple(value)

    def choice(self, name: str, *allowed: str) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            raise RowProblem("invalid_parameter", f"`{name}` is {value!r}; it must be {' or '.join(allowed)}.", name)
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return value

    def wrong(self, name: str, wanted: str) -> RowProblem:
        return RowProblem("wrong_type", f"`{name}` is {named(self._fields.get(name))}; it must be {wanted}.", name)


def token_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _INT64 for item in value)


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f"from {least} to {most}"
    return f"at least {least}" if least is not None else f"at most {most}"
