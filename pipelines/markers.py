"""pipelines: the start and end markers of executions, read once each. Touches the store only.

Markers say what was spent and which jobs have begun. They decide no result: where one cannot be read it is left out, and costs count high.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

from contract.errors import ContractError
from contract.keys import RunKeys
from contract.models import EndMarker, StartMarker, decode
from contract.store import Store, get_or_none

READS_AT_ONCE = 16
M = TypeVar("M", StartMarker, EndMarker)


@dataclass
class Markers:
    """By execution id. `foreign`: keys that hold something else, reported and ignored."""

    starts: dict[str, StartMarker] = field(default_factory=dict)
    ends: dict[str, EndMarker] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)


async def read_markers(store: Store, keys: RunKeys, plan_id: str, known: Markers | None = None) -> Markers:
    """Two listings, and one read for each marker that is new. Adds to `known` in place."""
    markers = known or Markers()
    await _read(store, keys.starts_prefix(), plan_id, StartMarker, markers.starts, markers.foreign)
    await _read(store, keys.ends_prefix(), plan_id, EndMarker, markers.ends, markers.foreign)
    return markers


async def _read(store: Store, prefix: str, plan_id: str, kind: type[M], into: dict[str, M], foreign: set[str]) -> None:
    def execution_of(key: str) -> str:
        return key.rsplit("/", 1)[-1].removesuffix(".json")

    fresh = [
        head.key
        async for head in store.list(prefix)
        if head.key.endswith(".json") and execution_of(head.key) not in into and head.key not in foreign
    ]
    gate = asyncio.Semaphore(READS_AT_ONCE)

    async def read(key: str) -> tuple[str, bytes | None]:
        async with gate:
            blob = await get_or_none(store, key)
        return key, None if blob is None else blob.data

    for key, data in await asyncio.gather(*(read(key) for key in fresh)):
        if data is None:
            continue
        try:
            marker = decode(data, kind, where=key)
        except ContractError:
            foreign.add(key)
            continue
        if marker.plan != plan_id:
            foreign.add(key)
            continue
        into[execution_of(key)] = marker
