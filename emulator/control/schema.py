"""emulator: small validators of JSON values. Each finds everything that is wrong, under its path, in the words of RunPod's own validator.

May touch: the standard library only. A check takes a decoded value, its path (`$.workers.max`) and the list of errors so far, and gives the
value back, with whole floats made integers (JSON Schema counts 2.0 as an integer). Messages follow the observed form of a 422:
`$: additional properties 'x' not allowed`, `$: missing property 'name'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

Check = Callable[[Any, str, list[str]], Any]
_INT64 = 2**63 - 1
"""What a server can hold; also what the emulator can store."""


def kind(value: Any) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _wrong(path: str, value: Any, wanted: str, errors: list[str]) -> None:
    errors.append(f"{path}: got {kind(value)}, want {wanted}")


def text(*, least: int = 0, pattern: str | None = None, choices: Collection[str] = (), nullable: bool = False) -> Check:
    """A string; `pattern` is searched, as JSON Schema does."""
    expression = None if pattern is None else re.compile(pattern, re.ASCII)

    def check(value: Any, path: str, errors: list[str]) -> Any:
        if value is None and nullable:
            return None
        if not isinstance(value, str):
            _wrong(path, value, "null or string" if nullable else "string", errors)
        elif choices and value not in choices:
            errors.append(f"{path}: value must be one of {_quoted(choices)}")
        elif len(value) < least:
            errors.append(f"{path}: minLength: got {len(value)}, want {least}")
        elif expression is not None and not expression.search(value):
            errors.append(f"{path}: {value!r} does not match pattern {pattern!r}")
        return value

    return check


def whole(least: int | None = None, most: int | None = None) -> Check:
    def check(value: Any, path: str, errors: list[str]) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _INT64:
            _wrong(path, value, "integer", errors)
        elif least is not None and value < least:
            errors.append(f"{path}: minimum: got {value}, want {least}")
        elif most is not None and value > most:
            errors.append(f"{path}: maximum: got {value}, want {most}")
        return value

    return check


def number(least: float) -> Check:
    def check(value: Any, path: str, errors: list[str]) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _INT64:
            _wrong(path, value, "number", errors)
        elif value < least:
            errors.append(f"{path}: minimum: got {value}, want {least}")
        return value

    return check


def flag(value: Any, path: str, errors: list[str]) -> Any:
    """A boolean."""
    if not isinstance(value, bool):
        _wrong(path, value, "boolean", errors)
    return value


def array(item: Check, *, least: int = 0, unique: bool = False) -> Check:
    def check(value: Any, path: str, errors: list[str]) -> Any:
        if not isinstance(value, list):
            _wrong(path, value, "array", errors)
            return value
        if len(value) < least:
            errors.append(f"{path}: minItems: got {len(value)}, want {least}")
        items = [item(entry, f"{path}[{at}]", errors) for at, entry in enumerate(value)]
        if unique:
            for at, entry in enumerate(items):
                if entry in items[:at]:
                    errors.append(f"{path}: items at {items.index(entry)} and {at} are equal")
                    break
        return items

    return check


def strings(value: Any, path: str, errors: list[str]) -> Any:
    """An object whose values are all strings."""
    if not isinstance(value, dict):
        _wrong(path, value, "object", errors)
        return value
    check = text()
    return {name: check(entry, f"{path}.{name}", errors) for name, entry in value.items()}


def closed(
    fields: Mapping[str, Check],
    *,
    required: Collection[str] = (),
    least: int = 0,
    needs: Mapping[str, str] | None = None,
    branch: Collection[str] = (),
) -> Check:
    """An object that may hold `fields` and nothing else. `needs`: a field that may only stand beside another.

    `branch`: fields that RunPod's validator then also reports as not allowed when a required one is missing, although nothing is wrong with
    them (observed: read only the `missing property` line). Its schema is composed, and what a failing part allows is not counted.
    """

    def check(value: Any, path: str, errors: list[str]) -> Any:
        if not isinstance(value, dict):
            _wrong(path, value, "object", errors)
            return value
        if len(value) < least:
            errors.append(f"{path}: minProperties: got {len(value)}, want {least}")
        missing = [name for name in required if name not in value]
        if missing:
            errors.append(f"{path}: missing propert{'y' if len(missing) == 1 else 'ies'} {_quoted(missing)}")
        unknown = [name for name in value if name not in fields or (missing and name in branch)]
        if unknown:
            errors.append(f"{path}: additional properties {_quoted(unknown)} not allowed")
        for name, other in (needs or {}).items():
            if name in value and other not in value:
                errors.append(f"{path}: properties {_quoted([other])} required, if '{name}' exists")
        return {name: fields[name](entry, f"{path}.{name}", errors) if name in fields else entry for name, entry in value.items()}

    return check


def either(name: str, variants: Mapping[str, Check]) -> Check:
    """An object of one of several forms, told apart by the field `name`."""

    def check(value: Any, path: str, errors: list[str]) -> Any:
        if not isinstance(value, dict):
            _wrong(path, value, "object", errors)
            return value
        chosen = value.get(name)
        variant = variants.get(chosen) if isinstance(chosen, str) else None
        if variant is None:
            problem = "missing property 'type'" if name not in value else f"value must be one of {_quoted(variants)}"
            errors.append(f"{path}{'' if name not in value else '.' + name}: {problem}")
            return value
        return variant(value, path, errors)

    return check


def _quoted(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
