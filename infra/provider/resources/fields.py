"""infra/provider: what every resource is made of: a table of its fields, and pure functions over it. Touches nothing.

Check, diff, request bodies, honest inputs, the schema: all of them read the same table, so that a field cannot be checked and not sent, or
sent and not compared. Values are plain dicts as the engine gave them, without secrets' wrappers; `UNKNOWN` stands where a preview does not
know a value yet. An absent field means its `default`; a field whose default is `RELEASED` has one that RunPod chooses: while it is absent,
the provider neither sends nor compares it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Json = dict[str, Any]
FieldType = Literal["string", "integer", "number", "boolean", "strings", "map", "object", "objects"]


class Unknown:
    """A value that a preview does not know yet."""

    def __repr__(self) -> str:
        return "<unknown>"


class Released:
    """No default of ours: RunPod's own counts while the field is absent."""

    def __repr__(self) -> str:
        return "<released>"


UNKNOWN: Final = Unknown()
RELEASED: Final = Released()
NAMES: Final = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "strings": "a list of strings",
    "map": "a map of strings",
    "object": "an object",
    "objects": "a list of objects",
}


@dataclass(frozen=True)
class Field:
    """One property. `sent`: it is a field of REST v2's bodies; `echoed`: RunPod's answers have it too; `container`: a template can bring
    it, and a change is a new release; `ordered`: the order of a list means something; `replaces`: REST v2 cannot change it; `named`: its
    type's name in the schema, where that is not made of owner and field."""

    name: str
    type: FieldType
    doc: str
    required: bool = False
    default: Any = RELEASED
    enum: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    example: str = ""
    min_items: int = 0
    max_length: int | None = None
    unique: bool = False
    ordered: bool = False
    fields: tuple[Field, ...] = ()
    named: str = ""
    replaces: bool = False
    secret: bool = False
    sent: bool = True
    echoed: bool = True
    container: bool = False


@dataclass(frozen=True)
class Failure:
    """One thing that is wrong with the inputs; `property` in the user's names, with dots."""

    property: str
    reason: str


@dataclass(frozen=True)
class Change:
    """How one property differs: `kind` is add, delete or update."""

    kind: Literal["add", "delete", "update"]
    replace: bool = False




@dataclass(frozen=True)
class Kind:
    """One resource: its token, its tables, and the functions that are its own."""

    token: str
    title: str
    doc: str
    inputs: tuple[Field, ...]
    computed: tuple[Field, ...]
    """Outputs beside the inputs."""
    path: str
    """REST v2's collection, for messages."""
    calls: str
    """The suffix of the client's methods: create_<calls>, get_<calls>, ..."""
    list_call: str
    check: Callable[[Mapping[str, Any]], tuple[Json, list[Failure]]]
    diff: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Change]]
    create_body: Callable[[Mapping[str, Any], str], Json]
    patch_body: Callable[[Mapping[str, Any], Mapping[str, Any], str], Json]
    from_live: Callable[[Mapping[str, Any], Mapping[str, Any] | None], Json]
    outputs: Callable[[Mapping[str, Any], Mapping[str, Any]], Json]
    preview_outputs: Callable[[Mapping[str, Any], Mapping[str, Any] | None, Mapping[str, Any] | None], Json]
    """(new inputs, old inputs, old outputs); the old ones are None for a create."""
    secret_inputs: tuple[str, ...] = ()
    importable: bool = True
    why_not_importable: str = ""


# --- looking at values ---------------------------------------------------------------------------------------------------------------


def has_unknown(value: Any) -> bool:
    """Whether any part of it is not known yet."""
    if isinstance(value, Mapping):
        return any(has_unknown(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(has_unknown(v) for v in value)
    return value is UNKNOWN


def at(values: Mapping[str, Any], *path: str) -> Any:
    """The value at a path; None where there is nothing; UNKNOWN where it, or an object around it, is not known yet."""
    value: Any = values
    for name in path:
        if value is UNKNOWN:
            return UNKNOWN
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def known(value: Any) -> bool:
    """Present and known."""
    return value is not None and value is not UNKNOWN


def join(path: str, name: str) -> str:
    """A property path as Pulumi writes it: dots, and brackets for names that are no identifiers."""
    if not re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]*", name):
        return f'{path}["' + name.replace("\\", "\\\\").replace('"', '\\"') + '"]'
    return f"{path}.{name}" if path else name


# --- check ---------------------------------------------------------------------------------------------------------------------------


def check_fields(fields: Sequence[Field], values: Mapping[str, Any], path: str = "", owner: str = "") -> tuple[Json, list[Failure]]:
    """The inputs without empty members and with whole numbers as such, and everything that is wrong with single fields."""
    failures: list[Failure] = []
    clean: Json = {}
    table = {f.name: f for f in fields}
    for name in values:
        if name not in table and not name.startswith("__"):  # the engine's own members are not the user's
            close = difflib.get_close_matches(name, table, n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(table)}"
            failures.append(Failure(join(path, name), f"{name} is not a property of {owner or 'this object'}{hint}"))
    for f in fields:
        value = values.get(f.name)
        where = join(path, f.name)
        if value is None:
            if f.required:
                failures.append(Failure(where, f"{where} is required"))
            continue
        value, found = _check_value(f, value, where)
        failures += found
        if value is not None:
            clean[f.name] = value
    return clean, failures


def _check_value(f: Field, value: Any, where: str) -> tuple[Any, list[Failure]]:
    if value is UNKNOWN:
        return value, []
    if f.type == "object":
        if not isinstance(value, Mapping):
            return value, [_wrong_type(f, where)]
        return check_fields(f.fields, value, where, where)
    if f.type == "objects":
        return _check_objects(f, value, where)
    if f.type == "map":
        return _check_map(f, value, where)
    if f.type == "strings":
        return _check_strings(f, value, where)
    return _check_scalar(f, value, where)


def _wrong_type(f: Field, where: str) -> Failure:
    return Failure(where, f"{where} must be {NAMES[f.type]}")


def _check_scalar(f: Field, value: Any, where: str) -> tuple[Any, list[Failure]]:
    if f.type == "string":
        if not isinstance(value, str):
            return value, [_wrong_type(f, where)]
        return value, _check_text(f, value, where)
    if f.type == "boolean":
        return value, [] if isinstance(value, bool) else [_wrong_type(f, where)]
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return value, [_wrong_type(f, where)]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if f.type == "integer" and not isinstance(value, int):
        return value, [_wrong_type(f, where)]
    low, high = f.minimum, f.maximum
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"between {low:g} and {high:g}" if low is not None and high is not None else f"{low:g} or more"
        return value, [Failure(where, f"{where} must be {bounds}, not {value:g}")]
    return value, []


def _check_text(f: Field, value: str, where: str) -> list[Failure]:
    shown = "" if f.secret else f", not {value!r}"
    if f.enum and value not in f.enum:
        return [Failure(where, f"{where} must be {' or '.join(f.enum)}{shown}")]
    if f.pattern and not re.fullmatch(f.pattern, value):
        return [Failure(where, f"{where} must be like {f.example}{shown}")]
    if not f.enum and not value and f.min_items:
        return [Failure(where, f"{where} must not be empty")]
    if f.max_length is not None and len(value) > f.max_length:
        return [Failure(where, f"{where} must have at most {f.max_length} characters, not {len(value)}")]
    return []


def _check_strings(f: Field, value: Any, where: str) -> tuple[Any, list[Failure]]:
    if not isinstance(value, list | tuple):
        return value, [_wrong_type(f, where)]
    items, failures = [v.strip() if isinstance(v, str) else v for v in value], []
    for i, item in enumerate(items):
        spot = f"{where}[{i}]"
        if item is UNKNOWN:
            continue
        if not isinstance(item, str):
            failures.append(Failure(spot, f"{spot} must be a string"))
        elif not item:
            failures.append(Failure(spot, f"{spot} must not be empty"))
        else:
            failures += _check_text(f, item, spot)
    if len(items) < f.min_items:
        failures.append(Failure(where, f"{where} needs at least {f.min_items}"))
    if f.unique:
        for item in sorted({v for v in items if isinstance(v, str) and items.count(v) > 1}):
            failures.append(Failure(where, f"{where} names {item!r} twice"))
    return items, failures


def _check_map(f: Field, value: Any, where: str) -> tuple[Any, list[Failure]]:
    if not isinstance(value, Mapping):
        return value, [_wrong_type(f, where)]
    failures = []
    for name, item in value.items():
        spot = join(where, name)
        if f.pattern and not re.fullmatch(f.pattern, name):
            failures.append(Failure(spot, f"{spot}: {name!r} is no name of a variable; an example: {f.example}"))
        if item is not UNKNOWN and item is not None and not isinstance(item, str):  # never show the value: it may be a secret
            failures.append(Failure(spot, f"{spot} must be a string; put numbers and true or false in quotes"))
    return {k: v for k, v in value.items() if v is not None}, failures


def _check_objects(f: Field, value: Any, where: str) -> tuple[Any, list[Failure]]:
    if not isinstance(value, list | tuple):
        return value, [_wrong_type(f, where)]
    items: list[Any] = []
    failures: list[Failure] = []
    for i, item in enumerate(value):
        spot = f"{where}[{i}]"
        if item is UNKNOWN:
            items.append(item)
        elif not isinstance(item, Mapping):
            failures.append(Failure(spot, f"{spot} must be an object"))
        else:
            clean, found = check_fields(f.fields, item, spot, spot)
            items.append(clean)
            failures += found
    if len(value) < f.min_items:
        failures.append(Failure(where, f"{where} needs at least {f.min_items}"))
    if f.unique and any(items.count(item) > 1 for item in items if not has_unknown(item)):
        failures.append(Failure(where, f"{where} has the same entry twice"))
    return items, failures


def shaped(fields: Sequence[Field], values: Mapping[str, Any], path: str = "") -> tuple[Json, list[str]]:
    """Values of a state, with an empty one where a list, a map or an object belongs and something else stands, and the paths of that: only
    a hand can have written it, because what a program declares is checked, and what RunPod answers, too."""
    table = by_name(fields)
    right: Json = {}
    wrong: list[str] = []
    for name, value in values.items():
        f, where = table.get(name), join(path, name)
        kind = None if f is None or value is None or value is UNKNOWN else _CONTAINERS.get(f.type)
        if kind is not None and not isinstance(value, kind):
            right[name] = [] if kind is list else {}
            wrong.append(where)
        elif f is not None and f.type == "object" and isinstance(value, Mapping):
            right[name], inside = shaped(f.fields, value, where)
            wrong += inside
        else:
            right[name] = value
    return right, wrong


_CONTAINERS: Final[Mapping[str, type]] = {"strings": list, "objects": list, "map": Mapping, "object": Mapping}


# --- diff ----------------------------------------------------------------------------------------------------------------------------


def equal(f: Field, a: Any, b: Any) -> bool:
    """Whether two values of a field mean the same: lists without a meaning in their order are sets."""
    if f.type == "strings" and not f.ordered and isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return sorted(map(str, a)) == sorted(map(str, b))
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b)


def diff_fields(
    fields: Sequence[Field], old: Mapping[str, Any], new: Mapping[str, Any], released: frozenset[str] = frozenset(), path: str = ""
) -> dict[str, Change]:
    """Every property that differs, by its path. `released`: paths that, while absent, are somebody else's."""
    changes: dict[str, Change] = {}
    for f in fields:
        where = join(path, f.name)
        was, now = old.get(f.name), new.get(f.name)
        if now is UNKNOWN or (f.type in ("strings", "objects") and has_unknown(now)):
            changes[where] = Change("add" if was is None else "update", f.replaces and was is not None)
        elif f.type == "object":
            changes.update(diff_fields(f.fields, was or {}, now or {}, released, where))
        elif f.type == "map":
            changes.update(_diff_map(f, was or {}, now or {}, where))
        else:
            default = RELEASED if where in released else f.default
            if now is None and default is RELEASED:
                continue
            if was is None and default is RELEASED:
                changes[where] = Change("add", f.replaces)
            elif not equal(f, default if was is None else was, default if now is None else now):
                kind: Literal["add", "delete", "update"] = "add" if was is None else "delete" if now is None else "update"
                changes[where] = Change(kind, f.replaces)
    return changes


def _diff_map(f: Field, old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if was is None and now is not None:
            changes[join(where, name)] = Change("add", f.replaces)
        elif now is None:
            changes[join(where, name)] = Change("delete", f.replaces)
        elif now is UNKNOWN or was != now:
            changes[join(where, name)] = Change("update", f.replaces)
    return changes


def with_chosen(fields: Sequence[Field], old: Mapping[str, Any], old_outputs: Mapping[str, Any]) -> Json:
    """Old inputs, and what RunPod chose where a change could only replace: stating just that is no change."""
    chosen = {f.name: old_outputs[f.name] for f in fields if f.replaces and old.get(f.name) is None and old_outputs.get(f.name) is not None}
    return {**old, **chosen}


def tops(changes: Mapping[str, Change]) -> set[str]:
    """The top-level properties that changed."""
    return {re.split(r"[.\[]", path, maxsplit=1)[0] for path in changes}


# --- from RunPod ---------------------------------------------------------------------------------------------------------------------


def live_value(f: Field, live: Any, like: Any) -> Any:
    """A live value in the words of the inputs: only the table's members, and a list in the order of `like` where order means nothing."""
    if f.type == "object" and isinstance(live, Mapping):
        like = like if isinstance(like, Mapping) else {}
        members = {g.name: live_value(g, live.get(g.name), like.get(g.name)) for g in f.fields}
        return {k: v for k, v in members.items() if v is not None}
    if f.type == "objects" and isinstance(live, list):
        return [{g.name: item[g.name] for g in f.fields if item.get(g.name) is not None} for item in live if isinstance(item, Mapping)]
    if f.type == "strings" and isinstance(live, list):
        return list(like) if isinstance(like, list | tuple) and equal(f, live, like) else list(live)
    if f.type == "map" and isinstance(live, Mapping):
        return dict(live)
    if isinstance(live, float) and live.is_integer():
        return int(live)
    return live


def live_inputs(
    fields: Sequence[Field],
    live: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    released: frozenset[str] = frozenset(),
    path: str = "",
) -> Json:
    """The inputs that would make what is live. `old`: the declared ones, or None for an import.

    What was declared comes back as it is; what was not comes back only where it is not the default, so that a change made by hand is seen
    and RunPod's own choices are not.
    """
    inputs: Json = {}
    for f in fields:
        where = join(path, f.name)
        declared = old is not None and old.get(f.name) is not None
        before = old.get(f.name) if old is not None else None
        if not f.sent or not f.echoed:
            if declared:
                inputs[f.name] = before
            continue
        value = live_value(f, live.get(f.name), before)
        if value is None:
            continue
        if f.type == "object":
            inside = live_inputs(f.fields, value, None if old is None else (before or {}), released, where)
            if inside or declared:
                inputs[f.name] = inside
        elif f.type == "map":
            if where in released:
                value = {k: v for k, v in value.items() if k in (before or {})}
            if value or declared:
                inputs[f.name] = value
        else:
            chosen = f.default is RELEASED or where in released
            if declared or (old is None and f.default is RELEASED and value != "") or (not chosen and not equal(f, value, f.default)):
                inputs[f.name] = value
    return inputs


def known_outputs(fields: Sequence[Field], inputs: Mapping[str, Any], released: frozenset[str] = frozenset(), path: str = "") -> Json:
    """What a preview can tell of the outputs: declared values, our defaults, and UNKNOWN for what RunPod chooses."""
    outputs: Json = {}
    for f in fields:
        where = join(path, f.name)
        value = inputs.get(f.name)
        if f.type == "object" and isinstance(value, Mapping):
            outputs[f.name] = known_outputs(f.fields, value, released, where)
        elif f.type == "map" and where in released:
            outputs[f.name] = UNKNOWN
        elif f.type == "map" and value is None:
            outputs[f.name] = {}
        elif value is not None:
            outputs[f.name] = value
        elif f.sent and f.type != "object":
            if where in released or f.default is RELEASED:
                outputs[f.name] = UNKNOWN
            elif f.default is not None:
                outputs[f.name] = list(f.default) if isinstance(f.default, tuple) else f.default
    return outputs


def body_of(fields: Sequence[Field], values: Mapping[str, Any]) -> Json:
    """The request body of declared values: only fields that REST v2 has."""
    body: Json = {}
    for f in fields:
        value = values.get(f.name)
        if not f.sent or value is None:
            continue
        body[f.name] = body_of(f.fields, value) if f.type == "object" else value
    return body


def by_name(fields: Sequence[Field]) -> dict[str, Field]:
    return {f.name: f for f in fields}
