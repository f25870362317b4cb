"""infra/review: the engine's JSON brought into the one form that everybody here reads, and what of it was not of that form. Pure.

What a preview holds comes from the engine, but also from RunPod's answers and from whoever can write there. So nothing of it is believed:
parts of another shape than documented are left out and named, and values that would break a reader (nesting without end, numbers that are
none, halves of characters) are replaced by words. The form itself is described in infra/review/changes.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DEEPEST: Final = 64
"""Levels of a value that are kept: an endpoint's properties have four."""
LONGEST: Final = 20_000
"""Characters of a text that are kept, and of a name a twentieth: what is shown is far shorter."""
LARGEST: Final = 10**15
"""Beyond it a number is told as text: sums with it would mean nothing, and floats end somewhere."""
NAMED: Final = 3
"""Odd parts that are named; the others are counted."""
DEEP: Final = "[nested too deep]"
_HALF: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Digest:
    """A preview in the form that is read here. `odd`: what was left out, in clauses; empty when the engine wrote what it always writes."""

    found: Mapping[str, Any]
    odd: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """One sentence on what was left out, or None."""
        if not self.odd:
            return None
        more = f" and {len(self.odd) - NAMED} more" if len(self.odd) > NAMED else ""
        return f"the preview is not of Pulumi's own form, and what is not was left out: {'; '.join(self.odd[:NAMED])}{more}."


def decoded(text: str | bytes) -> Any:
    """JSON as Python has it, or None where it is none (a document of nothing but `null` is none, too)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # ValueError: no JSON, or an integer of thousands of digits
        return None


def read(document: Any) -> Digest:
    """The digest in `document`, which may be anything; None is a digest with nothing in it. Never raises."""
    if document is None:
        return Digest({})
    if not isinstance(document, Mapping):
        return Digest({}, ("it is no object",))
    odd: list[str] = []
    steps = [_step(one, f"steps[{n}]", odd) for n, one in enumerate(_list(document.get("steps"), "steps", odd))]
    diagnostics = [
        _texts(one, ("urn", "message", "severity"), f"diagnostics[{n}]", odd)
        for n, one in enumerate(_list(document.get("diagnostics"), "diagnostics", odd))
    ]
    counts = _object(document.get("changeSummary"), "changeSummary", odd)
    found = {
        "config": _object(document.get("config"), "config", odd),
        "steps": [one for one in steps if one is not None],
        "diagnostics": [one for one in diagnostics if one is not None],
        "changeSummary": {op: count for op, count in counts.items() if isinstance(count, int)},
    }
    return Digest(found, tuple(odd))


def _step(one: Any, where: str, odd: list[str]) -> dict[str, Any] | None:
    found = _texts(one, ("op", "urn"), where, odd)
    if found is None:
        return None
    if not found.get("op") or not found.get("urn"):
        odd.append(f"{where} has no `op` or no `urn`")
        return None
    for side in ("oldState", "newState"):
        if (given := one.get(side)) is not None:
            found[side] = _state(given, f"{where}.{side}", odd)
    if (reasons := one.get("replaceReasons")) is not None:
        found["replaceReasons"] = _named(reasons, f"{where}.replaceReasons", odd)
    if (detailed := one.get("detailedDiff")) is not None:
        found["detailedDiff"] = {
            path: {"kind": detail["kind"], "inputDiff": detail.get("inputDiff") is True}
            for path, detail in _object(detailed, f"{where}.detailedDiff", odd).items()
            if _is(
                isinstance(detail, dict) and isinstance(detail.get("kind"), str), f"{where}.detailedDiff[{path!r:.60}] has no `kind`", odd
            )
        }
    return found


def _state(given: Any, where: str, odd: list[str]) -> dict[str, Any]:
    """A resource's state. One that cannot be read is one with nothing in it: that there was one is known."""
    found = _object(given, where, odd)
    for part in ("inputs", "outputs"):
        if found.get(part) is not None and not isinstance(found[part], dict):
            odd.append(f"{where}.{part} is no object")
            del found[part]
    return found


def _texts(one: Any, names: tuple[str, ...], where: str, odd: list[str]) -> dict[str, Any] | None:
    """Of an object those names, all of them texts; None where it is no object, or one of them is something else."""
    if not _is(isinstance(one, Mapping), f"{where} is no object", odd):
        return None
    found = {}
    for name in names:
        value = one.get(name)
        if not _is(value is None or isinstance(value, str), f"{where}.{name} is no text", odd):
            return None
        found[name] = _text(value or "")
    return found


def _list(value: Any, where: str, odd: list[str]) -> list[Any]:
    if isinstance(value, list):
        return value
    _is(value is None, f"{where} is no list", odd)
    return []


def _named(value: Any, where: str, odd: list[str]) -> list[str]:
    return [_text(one) for one in _list(value, where, odd) if _is(isinstance(one, str), f"{where} holds what is no text", odd)]


def _object(value: Any, where: str, odd: list[str]) -> dict[str, Any]:
    if not _is(value is None or isinstance(value, Mapping), f"{where} is no object", odd) or value is None:
        return {}
    found = clean(value)
    assert isinstance(found, dict)
    return found


def _is(good: bool, otherwise: str, odd: list[str]) -> bool:
    if not good:
        odd.append(otherwise)
    return good


# --- values --------------------------------------------------------------------------------------------------------------------------


def clean(value: Any, level: int = 0) -> Any:
    """A value such that it can be walked, compared, summed, printed and written in UTF-8."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if abs(value) <= LARGEST:  # which NaN is not
            return value
        return f"{value}" if isinstance(value, float) or value.bit_length() < 1_000 else f"[a number of {value.bit_length():,} bits]"
    if level >= DEEPEST:
        return DEEP
    if isinstance(value, Mapping):
        return {_text(str(key), LONGEST // 20): clean(inner, level + 1) for key, inner in value.items()}
    return [clean(inner, level + 1) for inner in value] if isinstance(value, list) else _text(str(value))


def _text(text: str, most: int = LONGEST) -> str:
    """A text without halves of characters, which no UTF-8 has, and not longer than `most`; what was cut is counted."""
    text = _HALF.sub("\ufffd", text)
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
