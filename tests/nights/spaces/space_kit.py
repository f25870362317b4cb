"""tests/nights/spaces: one night of a space, as nights/embedding does it, over the house in memory and a table in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from contract.models import RowOptions
from nights.record import SpaceNight
from nights.spaces import table as tables
from nights.spaces.fingerprint import Parameters
from nights.spaces.table import Home, Space, open_space
from nights.spaces.update import Difference, apply, difference
from pipelines.dataset import Reader, find_files, open_reader
from pipelines.plan import PlanRequest
from pipelines.scratch import scratch_folder
from pipelines.work import Finished, Following
from tests.nights.kit import NightHouse, vector_of

MODEL = "minilm"
PARAMETERS = Parameters(model=MODEL, revision="r1")


def records(texts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"id": ident, "text": text} for ident, text in texts.items()]


@dataclass
class SpaceHouse:
    """A stack, and a folder for datasets, tables and outputs."""

    folder: Path
    house: NightHouse = field(default_factory=NightHouse)
    home_: Home | None = None
    night_number: int = 0

    @property
    def home(self) -> Home:
        if self.home_ is None:
            self.home_ = Home(self.house.store, "", str(self.folder / "tables"), settle_s=0.0)
        return self.home_

    def write(self, texts: Mapping[str, str], name: str = "data.jsonl") -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(one) + "\n" for one in records(texts)))
        return path

    async def reader(self, *paths: Path, rows: RowOptions | None = None) -> Reader:
        files = await find_files([str(path) for path in paths], self.house.bucket)
        return open_reader(files, "embed", rows or RowOptions(column="text", id_column="id"), (MODEL,))

    async def space(self, parameters: Parameters = PARAMETERS, name: str = "reviews") -> Space:
        return await open_space(self.home, name, parameters)

    async def difference(self, texts: Mapping[str, str], folder: Path, parameters: Parameters = PARAMETERS) -> Difference:
        return await difference(await self.space(parameters), await self.reader(self.write(texts)), folder)

    async def compute(self, found: Difference, folder: Path) -> Finished | None:
        """The run over the new rows."""
        if found.path is None:
            return None
        request = PlanRequest(
            dataset=(str(found.path),), task="embed", model=MODEL, revision="r1", out=str(folder / "out.parquet"), name="reviews"
        )
        planned = await self.house.plan(request)
        return await self.house.complete(planned, Following(out=str(folder / "out.parquet")))

    async def night(self, texts: Mapping[str, str], date: str | None = None, parameters: Parameters = PARAMETERS) -> SpaceNight:
        """All of it."""
        self.night_number += 1
        date = date or f"2026-03-{self.night_number:02d}"
        with scratch_folder() as folder:
            found = await self.difference(texts, folder, parameters)
            finished = await self.compute(found, folder)
            return await apply(found.space, found, finished, folder, job="reviews", night=date)

    def content(self, version: int | None = None, name: str = "reviews") -> dict[str, list[float]]:
        """id -> vector, as a reader of the table sees it."""
        space = Space(self.home, tables.SpaceFile(name=name, parameters=PARAMETERS, digest=PARAMETERS.digest, created_at=self.house.now()))
        table = tables.dataset(space, version)
        assert table is not None
        found = table.to_table()
        ids: list[str] = found["id"].to_pylist()
        assert len(set(ids)) == len(ids)
        return dict(zip(ids, found["embedding"].to_pylist(), strict=True))


def expected(texts: Mapping[str, str]) -> dict[str, list[float]]:
    return {ident: vector_of(text).tolist() for ident, text in texts.items()}


def near(one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]) -> bool:
    return one.keys() == other.keys() and all(np.allclose(one[key], other[key], atol=1e-7) for key in one)
