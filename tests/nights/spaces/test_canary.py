# tests/nights/spaces: kept rows, embedded again: what they find, and what they say has changed.
from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from contract.errors import NotAsWanted
from contract.rows import RowError
from nights.facts import facts_of_run
from nights.record import CanaryResult
from nights.spaces.canary import (
    CanaryFile,
    CanaryRow,
    Thresholds,
    canary_request,
    compare,
    forget_canary,
    judge_canary,
    keep_canary,
    read_canary,
)
from nights.spaces.update import apply
from pipelines.scratch import scratch_folder
from pipelines.work import Following
from tests.nights.kit import vector_of
from tests.nights.spaces.space_kit import MODEL, SpaceHouse

TEXTS = {f"r{n}": f"text number {n}" for n in range(60)}


@pytest.fixture
def world(tmp_path: Path) -> SpaceHouse:
    return SpaceHouse(tmp_path)


async def first_night(world: SpaceHouse, rows: int = 5) -> CanaryFile:
    with scratch_folder() as folder:
        found = await world.difference(TEXTS, folder)
        finished = await world.compute(found, folder)
        assert finished is not None
        await apply(found.space, found, finished, folder, job="reviews", night="2026-03-01")
        facts = await facts_of_run(world.home.store, finished.plan)
        assert await keep_canary(found.space, found, facts, rows=rows, run=finished.plan.run) == min(rows, 60)
    kept = await read_canary(found.space)
    assert kept is not None
    return kept


async def check(world: SpaceHouse, night: str, thresholds: Thresholds | None = None) -> CanaryResult:
    space = await world.space()
    kept = await read_canary(space)
    assert kept is not None
    with scratch_folder() as folder:
        out = str(folder / "canary.parquet")
        planned = await world.house.plan(canary_request(space, kept, folder, model=MODEL, night=night, out=out))
        finished = await world.house.complete(planned, Following(out=out))
        return await judge_canary(space, kept, finished, thresholds or Thresholds())


async def test_kept_rows_are_the_same_whoever_chooses_them_and_their_vectors_are_the_tables(world: SpaceHouse, tmp_path: Path) -> None:
    kept = await first_night(world)
    (tmp_path / "other").mkdir()
    other = await first_night(SpaceHouse(tmp_path / "other"))
    assert kept.rows == other.rows
    assert len(kept.rows) == 5
    content = world.content()
    for row in kept.rows:
        assert np.allclose(np.frombuffer(base64.b64decode(row.vector), dtype="<f4"), content[row.id])
    assert kept.facts["vllm"] == "0.25.1"
    assert kept.facts["image"].startswith("registry.example/")


async def test_an_engine_that_answers_as_before_passes(world: SpaceHouse) -> None:
    await first_night(world)
    found = await check(world, "2026-03-02")
    assert found.passed
    assert found.cosine == pytest.approx(1.0)
    assert found.norm == pytest.approx(0.0, abs=1e-6)
    assert (found.dimensions, found.kept_dimensions, found.changed) == (8, 8, ())


async def test_each_night_asks_anew_and_the_same_night_pays_once(world: SpaceHouse) -> None:
    await first_night(world)
    before = len(world.house.jobs_run)
    await check(world, "2026-03-02")
    await check(world, "2026-03-02")
    assert len(world.house.jobs_run) == before + 1
    await check(world, "2026-03-03")
    assert len(world.house.jobs_run) == before + 2


async def test_a_drift_is_found_and_says_what_changed(world: SpaceHouse) -> None:
    await first_night(world)
    world.house.embeds = lambda text: (vector_of(text) + 0.2 * vector_of(text + "noise")).astype(np.float32)
    world.house.vllm = "0.26.0"
    found = await check(world, "2026-03-02")
    assert not found.passed
    assert found.cosine is not None
    assert found.cosine < 0.999
    assert found.changed == ("vllm: 0.25.1 -> 0.26.0",)
    assert "vllm: 0.25.1 -> 0.26.0" in found.sentence


async def test_a_change_that_changes_no_vector_passes_and_is_told(world: SpaceHouse) -> None:
    await first_night(world)
    world.house.vllm = "0.26.0"
    found = await check(world, "2026-03-02")
    assert found.passed
    assert "vllm: 0.25.1 -> 0.26.0" in found.sentence


async def test_longer_vectors_and_other_dimensions_are_found(world: SpaceHouse) -> None:
    await first_night(world)
    world.house.embeds = lambda text: (vector_of(text) * 1.5).astype(np.float32)
    found = await check(world, "2026-03-02")
    assert not found.passed
    assert found.cosine == pytest.approx(1.0)
    assert found.norm == pytest.approx(0.5, abs=1e-3)
    world.house.embeds = lambda text: vector_of(text, 16)
    found = await check(world, "2026-03-03")
    assert not found.passed
    assert (found.dimensions, found.kept_dimensions) == (16, 8)
    assert "16 numbers instead of 8" in found.sentence


async def test_kept_rows_that_fail_are_a_drift(world: SpaceHouse) -> None:
    kept = await first_night(world)
    text = TEXTS[kept.rows[0].id]
    world.house.embeds = lambda said: RowError(code="x", message="no") if said == text else vector_of(said)
    found = await check(world, "2026-03-02")
    assert not found.passed
    assert "1 of 5 kept rows failed" in found.sentence


async def test_a_canary_that_was_stopped_is_no_verdict(world: SpaceHouse) -> None:
    await first_night(world)
    world.house.cut = True
    with pytest.raises(NotAsWanted, match="did not come to its end"):
        await check(world, "2026-03-02")


async def test_forgotten_rows_are_replaced_by_rows_of_a_later_run(world: SpaceHouse) -> None:
    """Their vectors are of the run whose facts are kept: those of other rows in the table may be made with something else."""
    await first_night(world)
    space = await world.space()
    await forget_canary(space)
    assert await read_canary(space) is None
    world.house.vllm = "0.26.0"
    few = {**TEXTS, "new": "row"}
    many = {**few, **{f"n{number}": f"later {number}" for number in range(20)}}
    for texts, night, kept in ((few, "2026-03-02", 0), (many, "2026-03-03", 5)):
        with scratch_folder() as folder:
            found = await world.difference(texts, folder)
            finished = await world.compute(found, folder)
            assert finished is not None
            await apply(found.space, found, finished, folder, job="reviews", night=night)
            assert await keep_canary(space, found, await facts_of_run(world.home.store, finished.plan), rows=5) == kept
    again = await read_canary(space)
    assert again is not None
    assert all(row.id.startswith("n") and row.id != "new" for row in again.rows)
    assert again.facts["vllm"] == "0.26.0"
    assert (await check(world, "2026-03-04")).passed


def test_a_vector_that_is_no_number_or_zero_is_judged_and_breaks_nothing() -> None:
    def row(name: str, *numbers: float) -> CanaryRow:
        return CanaryRow(id=name, line="", vector=base64.b64encode(np.array(numbers, dtype="<f4").tobytes()).decode())

    kept = CanaryFile(
        space="0" * 64, rows=(row("a", 1, 0), row("b", 0, 0)), dimensions=2, facts={}, run=None, at="2026-01-01T00:00:00Z"  # type: ignore[arg-type]
    )  # fmt: skip
    same = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 0.0])}
    assert compare("s", kept, same, (), Thresholds()).passed
    assert not compare("s", kept, {**same, "a": np.array([np.nan, 0.0])}, (), Thresholds()).passed
    assert not compare("s", kept, {**same, "b": np.array([1.0, 0.0])}, (), Thresholds()).passed
