"""nights/spaces: what there is to say of a space at a glance, and forgetting what is old. Touches the store and the table."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from nights.spaces import table as tables
from nights.spaces.canary import CanaryFile, read_canary
from nights.spaces.delta import DeltaManifest, deltas
from nights.spaces.recipes import Facts, Reader, recipe
from nights.spaces.table import Home, Pruned, Snapshot, Space, find_space, space_names


@dataclass(frozen=True)
class Overview:
    """A space. `snapshots`: versions that are kept, the latest first; `nights`: manifests that are kept, in order."""

    space: Space
    dimensions: int | None
    snapshots: tuple[Snapshot, ...]
    nights: tuple[DeltaManifest, ...]
    canary: CanaryFile | None

    @property
    def latest(self) -> Snapshot | None:
        return self.snapshots[0] if self.snapshots else None

    @property
    def usd(self) -> float:
        """What the kept nights' runs cost, as estimated."""
        return sum(night.usd for night in self.nights)

    @property
    def bytes_written(self) -> int:
        return sum(night.bytes_written for night in self.nights)


async def overview(space: Space, *, most: int = 1000) -> Overview:
    """Read it; `most` versions."""

    def look() -> tuple[int | None, tuple[Snapshot, ...]]:
        table = tables.dataset(space)
        return (None, ()) if table is None else (tables.dimensions_of(table), tables.snapshots(space, most))

    dimensions, snapshots = await asyncio.to_thread(look)
    return Overview(space, dimensions, snapshots, await deltas(space.home.store, space.root), await read_canary(space))


async def overviews(home: Home) -> tuple[Overview, ...]:
    """All spaces of a stack, by name."""
    return tuple([await overview(await find_space(home, name), most=1) for name in await space_names(home)])


async def program_for(space: Space, reader: Reader, version: int | None = None) -> str | None:
    """The code by which that program reads the space; None where it has no table yet. Raises UsageError for a version that is not there."""
    table = await asyncio.to_thread(tables.dataset, space, version)
    if table is None:
        return None
    options = space.home.options or {}
    facts = Facts(
        name=space.name, root=space.uri.rpartition("/")[0], table=space.file.table, dimensions=tables.dimensions_of(table),
        rows=await asyncio.to_thread(table.count_rows), version=version, endpoint=options.get("aws_endpoint"),
        region=options.get("aws_region", "us-east-1"),
    )  # fmt: skip
    return recipe(reader, facts)


@dataclass(frozen=True)
class Forgotten:
    """What `forget` removed."""

    table: Pruned
    deltas: int


async def forget(space: Space, older_than: timedelta, now: datetime) -> Forgotten | None:
    """Versions and deltas that are older; the latest version stays. A copy that is older than the oldest delta must be loaded again."""
    done = await asyncio.to_thread(tables.prune, space, older_than)
    if done is None:
        return None
    count = 0
    for night in await deltas(space.home.store, space.root):
        if now - night.at > older_than:
            if night.file is not None:
                await space.home.store.delete(night.file.key)
            await space.home.store.delete(f"{space.root}/deltas/{night.night}/{night.key}.json")
            count += 1
    return Forgotten(done, count)
