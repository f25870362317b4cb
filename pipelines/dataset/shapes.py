"""pipelines/dataset: which columns a JSON record has and of which types, so that what follows from that is worked out once. Pure.

Nearly all records of a dataset look like one before: looking at each value of each of millions of them costs more than reading them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MOST: Final = 1000
"""Shapes that are remembered. Records of more kinds than that are looked at one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What is common to records with the same columns, in the same order, of the same types. Known by identity."""

    nested: tuple[str, ...]
    """Columns that hold an object or a list."""
    numbers: tuple[str, ...]
    """Columns that hold whole numbers."""
    kept: bool
    """The next record like this one has this very object."""


class Shapes:
    """The shapes of one dataset's records."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Shape] = {}

    def of(self, record: dict[str, Any]) -> Shape:
        key = (*record, *map(type, record.values()))
        shape = self._known.get(key)
        if shape is None:
            kept = len(self._known) < MOST
            shape = Shape(
                nested=tuple(name for name, value in record.items() if type(value) is dict or type(value) is list),
                numbers=tuple(name for name, value in record.items() if type(value) is int),
                kept=kept,
            )
            if kept:
                self._known[key] = shape
        return shape
