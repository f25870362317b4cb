"""pipelines: what is wrong where, as verify and collect say it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from contract.errors import NightbatchError

MAX_FINDINGS: Final = 1000
"""So many are kept; all are counted."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `what` in one clause, and where, as far as it applies: shard, row index, object key or file."""

    what: str
    shard: str | None = None
    index: int | None = None
    where: str | None = None

    def __str__(self) -> str:
        places = [self.where, f"shard {self.shard}" if self.shard else None, f"row {self.index}" if self.index is not None else None]
        place = ", ".join(p for p in places if p)
        return f"{place}: {self.what}" if place else self.what


@dataclass
class Notes:
    """Findings as they come."""

    findings: list[Finding] = field(default_factory=list)
    total: int = 0

    def add(self, what: str, *, shard: str | None = None, index: int | None = None, where: str | None = None) -> None:
        self.extend([Finding(what, shard, index, where)])

    def extend(self, found: Iterable[Finding]) -> None:
        for finding in found:
            self.total += 1
            if len(self.findings) < MAX_FINDINGS:
                self.findings.append(finding)

    def error(self, error: NightbatchError, *, shard: str | None = None) -> None:
        self.add(error.what.rstrip("."), shard=shard, where=error.where)
