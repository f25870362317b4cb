# tests/nights/spaces: nights of a space: what is sent, what the table holds before and after, and what happens when things go wrong.
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from contract.errors import DatasetError, NotAsWanted, PlanMismatch, UsageError
from contract.models import RowOptions
from contract.rows import RowError
from nights.spaces import table as tables
from nights.spaces.delta import deltas
from nights.spaces.fingerprint import OtherParameters, Parameters
from nights.spaces.table import Moved, compact, prune
from nights.spaces.update import applied, apply, difference
from pipelines.dataset import find_files, open_reader
from pipelines.dataset.streams import Source
from pipelines.scratch import scratch_folder
from tests.nights.kit import vector_of
from tests.nights.spaces.space_kit import PARAMETERS, SpaceHouse, expected, near

TEXTS = {f"r{n}": f"text number {n}" for n in range(40)}


@pytest.fixture
def world(tmp_path: Path) -> SpaceHouse:
    return SpaceHouse(tmp_path)


async def test_the_first_night_computes_every_row(world: SpaceHouse) -> None:
    night = await world.night(TEXTS)
    assert (night.added, night.changed, night.removed, night.unchanged, night.rows) == (40, 0, 0, 0, 40)
    assert (night.version_before, night.version, night.delta) == (None, 1, None)
    assert near(world.content(), expected(TEXTS))


async def test_the_next_night_computes_only_rows_that_are_new_or_changed(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    asked = len(world.house.asked)
    later = {**TEXTS, "r3": "another text", "new": "a new row"}
    del later["r7"]
    night = await world.night(later)
    assert sorted(world.house.asked[asked:]) == ["a new row", "another text"]
    assert (night.added, night.changed, night.removed, night.unchanged, night.rows) == (1, 1, 1, 38, 40)
    assert near(world.content(), expected(later))
    assert near(world.content(1), expected(TEXTS)), "the version before is still what it was"


async def test_a_night_with_nothing_new_sends_no_job_and_makes_no_version(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    jobs = len(world.house.jobs_run)
    night = await world.night(TEXTS)
    assert (night.version_before, night.version, night.unchanged, night.rows) == (1, 1, 40, 40)
    assert len(world.house.jobs_run) == jobs


async def test_a_night_that_only_removes_rows_needs_no_run(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    left = dict(list(TEXTS.items())[:10])
    night = await world.night(left)
    assert (night.removed, night.rows, night.version) == (30, 10, 2)
    assert near(world.content(), expected(left))


async def test_rows_that_come_back_are_computed_again(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    await world.night({key: text for key, text in TEXTS.items() if key != "r5"})
    night = await world.night(TEXTS)
    assert (night.added, night.unchanged) == (1, 39)
    assert near(world.content(), expected(TEXTS))


async def test_a_table_that_lost_every_row_takes_new_ones(world: SpaceHouse) -> None:
    await world.night({"a": "one", "b": "two"})
    world.house.embeds = lambda text: RowError(code="too_long", message="too long") if text == "changed" else vector_of(text)
    emptied = await world.night({"a": "changed"})
    assert (emptied.rows, emptied.failed, emptied.removed) == (0, 1, 2)
    night = await world.night({"c": "three"})
    assert (night.rows, night.version) == (1, 3)
    assert near(world.content(), expected({"c": "three"}))


async def test_a_row_whose_new_text_failed_has_no_vector_any_more(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    world.house.embeds = lambda text: RowError(code="too_long", message="too long") if text == "bad" else vector_of(text)
    night = await world.night({**TEXTS, "r1": "bad", "r2": "good", "new": "bad"})
    assert (night.failed, night.changed, night.added, night.removed, night.rows) == (2, 1, 0, 1, 39)
    assert "r1" not in world.content()
    space = await world.space()
    manifest = (await deltas(world.home.store, space.root))[-1]
    assert manifest.file is not None
    path = world.folder / "delta.parquet"
    path.write_bytes((await world.home.store.get(manifest.file.key)).data)
    rows = {row["id"]: row for row in pq.read_table(path).to_pylist()}
    assert {key: (row["op"], row["reason"]) for key, row in rows.items()} == {"r2": ("changed", None), "r1": ("removed", "failed")}
    assert rows["r1"]["embedding"] is None
    assert len(rows["r2"]["fingerprint"]) == 32
    again = await world.night({**TEXTS, "r1": "bad", "r2": "good", "new": "bad"})
    assert (again.failed, again.version) == (2, 3), "rows that failed are tried again the next night"


async def test_a_night_that_is_called_again_finds_what_it_did(world: SpaceHouse) -> None:
    first = await world.night(TEXTS, "2026-03-01")
    second = await world.night({**TEXTS, "x": "y"}, "2026-03-02")
    space = await world.space()
    assert await applied(space, "reviews", "2026-03-01") == first
    assert await applied(space, "reviews", "2026-03-02") == second
    assert await applied(space, "reviews", "2026-03-03") is None
    assert await applied(space, "others", "2026-03-02") is None


async def test_the_same_difference_applied_twice_is_one_version(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    with scratch_folder() as folder:
        found = await world.difference({**TEXTS, "x": "y"}, folder)
        finished = await world.compute(found, folder)
        first = await apply(found.space, found, finished, folder, job="reviews", night="2026-03-02")
        again = await apply(found.space, found, finished, folder, job="reviews", night="2026-03-02")
    assert first == again
    assert first.version == 2
    assert near(world.content(), expected({**TEXTS, "x": "y"}))


async def test_a_manifest_that_was_not_written_is_written_by_the_next_look(world: SpaceHouse) -> None:
    await world.night(TEXTS, "2026-03-01")
    await world.night({**TEXTS, "x": "y"}, "2026-03-02")
    space = await world.space()
    before = await deltas(world.home.store, space.root)
    for one in before:
        await world.home.store.delete(f"{space.root}/deltas/{one.night}/{one.key}.json")
    assert await deltas(world.home.store, space.root) == ()
    await applied(space, "reviews", "2026-03-02")
    assert await deltas(world.home.store, space.root) == before[1:]


async def test_of_two_nights_at_once_the_later_one_stops_and_changes_nothing(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    with scratch_folder() as one, scratch_folder() as two:
        first = await world.difference({**TEXTS, "x": "by the first"}, one)
        second = await world.difference({**TEXTS, "x": "by the second"}, two)
        done, other = await world.compute(first, one), await world.compute(second, two)
        await apply(first.space, first, done, one, job="reviews", night="2026-03-02")
        with pytest.raises(Moved, match=r"version 2 was written by somebody else.*not paid twice"):
            await apply(second.space, second, other, two, job="others", night="2026-03-02")
    assert near(world.content(), expected({**TEXTS, "x": "by the first"}))


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
@pytest.mark.parametrize("before", [{}, {"a": "one"}, TEXTS], ids=["no table", "one row", "many rows"])
async def test_of_two_commits_in_the_same_moment_one_counts(world: SpaceHouse, mode: str, before: dict[str, str]) -> None:
    world.house.mode = mode  # type: ignore[assignment]
    if before:
        await world.night(before)
    with scratch_folder() as one, scratch_folder() as two:
        first = await world.difference({**before, "x": "by the first"}, one)
        second = await world.difference({**before, "x": "by the second"}, two)
        done, other = await world.compute(first, one), await world.compute(second, two)
        results = await asyncio.gather(
            apply(first.space, first, done, one, job="reviews", night="2026-03-02"),
            apply(second.space, second, other, two, job="others", night="2026-03-02"),
            return_exceptions=True,
        )
    assert sum(isinstance(one, Moved) for one in results) == 1, results
    winner = "by the first" if isinstance(results[1], Moved) else "by the second"
    assert near(world.content(), expected({**before, "x": winner}))


async def test_compaction_between_difference_and_apply_disturbs_nobody(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    await world.night({**TEXTS, "r1": "other"})
    later = {**TEXTS, "r1": "other", "r2": "other too", "x": "y"}
    del later["r9"]
    with scratch_folder() as folder:
        found = await world.difference(later, folder)
        finished = await world.compute(found, folder)
        done = await compact(found.space)
        assert done is not None
        assert done.fragments == 1
        night = await apply(found.space, found, finished, folder, job="reviews", night="2026-03-09")
    assert night.rows == 40
    assert near(world.content(), expected(later))


async def test_a_process_that_dies_before_the_commit_leaves_the_last_good_version(
    world: SpaceHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.night(TEXTS)
    later = {**TEXTS, "x": "y"}

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lance.LanceDataset.commit", die)
        with pytest.raises(KeyboardInterrupt):
            await world.night(later, "2026-03-02")
    assert near(world.content(), expected(TEXTS))
    jobs = len(world.house.jobs_run)
    night = await world.night(later, "2026-03-02")
    assert (night.version, night.added) == (2, 1)
    assert len(world.house.jobs_run) == jobs, "what was computed is found again"
    assert near(world.content(), expected(later))


async def test_a_commit_whose_answer_was_lost_counts_once(world: SpaceHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    import lance

    await world.night(TEXTS)
    real = lance.LanceDataset.commit

    def lost(*args: object, **how: object) -> None:
        real(*args, **how)
        raise Moved("the answer was lost.")

    with monkeypatch.context() as patch:
        patch.setattr("lance.LanceDataset.commit", lost)
        night = await world.night({**TEXTS, "x": "y"})
    assert night.version == 2
    assert near(world.content(), expected({**TEXTS, "x": "y"}))


async def test_a_delta_brings_a_copy_from_one_version_to_the_next(world: SpaceHouse) -> None:
    nights: list[dict[str, str]] = [TEXTS, {**TEXTS, "r1": "b", "x": "1"}, {"r1": "b", "x": "2", "y": "3"}]
    copy: dict[str, list[float]] = {}
    for number, texts in enumerate(nights):
        await world.night(texts)
        if number == 0:
            copy = world.content()
    space = await world.space()
    manifests = await deltas(world.home.store, space.root)
    assert [one.table_version for one in manifests] == [1, 2, 3]
    assert [one.version_before for one in manifests] == [None, 1, 2]
    for manifest in manifests[1:]:
        assert manifest.file is not None
        path = world.folder / "delta.parquet"
        path.write_bytes((await world.home.store.get(manifest.file.key)).data)
        for _ in range(2):  # twice is once
            for row in pq.read_table(path).to_pylist():
                copy.pop(row["id"], None)
                if row["embedding"] is not None:
                    copy[row["id"]] = row["embedding"]
    assert near(copy, expected(nights[-1]))


async def test_other_parameters_are_another_space(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    other = Parameters(model="minilm", revision="r2", prefix="query: ", truncate_tokens=128)
    with pytest.raises(OtherParameters) as caught:
        await world.space(other)
    said = str(caught.value)
    assert "the model's revision was 'r1', and is 'r2' now" in said
    assert "the prefix before each text was not set, and is 'query: ' now" in said
    assert "the tokens that a long text keeps was not set, and is 128 now" in said
    assert (await world.space(other, "reviews-2")).name == "reviews-2"


async def test_ids_that_stand_twice_are_told_with_both_places(world: SpaceHouse) -> None:
    one, two = world.write({"a": "1", "b": "2"}, "one.jsonl"), world.write({"c": "3", "a": "4"}, "two.jsonl")
    with scratch_folder() as folder, pytest.raises(DatasetError, match="an id that another row has too") as caught:
        await difference(await world.space(), await world.reader(one, two), folder)
    assert len(caught.value.bad_rows) == 1
    assert str(caught.value.bad_rows[0]).endswith(f"id 'a' is the id of {one}:1 too")
    assert "two.jsonl:2" in str(caught.value.bad_rows[0])


async def test_rows_without_ids_of_their_own_are_refused(world: SpaceHouse) -> None:
    reader = await world.reader(world.write(TEXTS), rows=RowOptions(column="text"))
    with scratch_folder() as folder, pytest.raises(UsageError, match="need ids that stay the same"):
        await difference(await world.space(), reader, folder)


async def test_an_empty_dataset_empties_no_space(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    path = world.folder / "empty.csv"
    path.write_text("id,text\n")
    with scratch_folder() as folder, pytest.raises(DatasetError, match="has no rows"):
        await difference(await world.space(), await world.reader(path), folder)


@pytest.mark.parametrize("on_bad_row", ["fail", "skip"])
async def test_bad_rows_stop_the_night_or_lose_their_vector(world: SpaceHouse, on_bad_row: str) -> None:
    await world.night({"a": "one", "b": "two"})
    path = world.write({"a": "one", "b": "  "})
    reader = await world.reader(path, rows=RowOptions(column="text", id_column="id", on_bad_row=on_bad_row))  # type: ignore[arg-type]
    with scratch_folder() as folder:
        if on_bad_row == "fail":
            with pytest.raises(DatasetError, match="1 rows cannot be sent"):
                await difference(await world.space(), reader, folder)
        else:
            found = await difference(await world.space(), reader, folder)
            assert (found.skipped, found.removed, found.unchanged) == (1, 1, 1)


async def test_the_output_of_another_run_is_refused(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    with scratch_folder() as one, scratch_folder() as two:
        first = await world.difference({**TEXTS, "x": "y"}, one)
        other = await world.difference({**TEXTS, "z": "w"}, two)
        finished = await world.compute(other, two)
        with pytest.raises(PlanMismatch, match="not over the rows that are new"):
            await apply(first.space, first, finished, one, job="reviews", night="2026-03-02")
        with pytest.raises(UsageError, match="1 rows have no vector yet"):
            await apply(first.space, first, None, one, job="reviews", night="2026-03-02")


async def test_vectors_of_another_length_are_refused(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    world.house.embeds = lambda text: vector_of(text, 16)
    with pytest.raises(NotAsWanted, match="the new vectors have 16 numbers, and the space's have 8"):
        await world.night({**TEXTS, "x": "y"})
    assert near(world.content(), expected(TEXTS))


async def test_normalised_vectors_have_length_one(world: SpaceHouse) -> None:
    world.house.embeds = lambda text: vector_of(text) * 5
    parameters = Parameters(model="minilm", revision="r1", normalize=True)
    await world.night({"a": "one", "b": "two"}, parameters=parameters)
    assert near(world.content(), expected({"a": "one", "b": "two"}))


async def test_old_versions_are_pruned_and_the_latest_stays(world: SpaceHouse) -> None:
    from datetime import timedelta

    for number in range(3):
        await world.night({**TEXTS, "x": str(number)})
    space = await world.space()
    assert [one.version for one in tables.snapshots(space)] == [3, 2, 1]
    assert [one.night for one in tables.snapshots(space)] == ["2026-03-03", "2026-03-02", "2026-03-01"]
    done = prune(space, timedelta(0))
    assert done is not None
    assert done.versions == 2
    assert near(world.content(), expected({**TEXTS, "x": "2"}))
    with pytest.raises(UsageError, match="there is no version 1"):
        world.content(1)


async def test_a_dataset_in_s3_is_read_where_it_is(world: SpaceHouse) -> None:
    await world.night(TEXTS)
    store = world.house.store
    await store.put("data/today.jsonl", world.write({**TEXTS, "x": "y"}).read_bytes())
    files = await find_files([f"s3://{store.bucket}/data/"], world.house.bucket)
    source = Source(asyncio.get_running_loop())
    rows = RowOptions(column="text", id_column="id")
    reader = await asyncio.to_thread(open_reader, files, "embed", rows, (), source)
    with scratch_folder() as folder:
        found = await difference(await world.space(), reader, folder)
    assert (found.added, found.unchanged) == (1, 40)


async def test_an_interrupted_night_does_not_read_to_the_end(world: SpaceHouse) -> None:
    store = world.house.store
    await store.put("data/today.jsonl", world.write({f"r{n}": "text " * 200 for n in range(20_000)}).read_bytes())
    files = await find_files([f"s3://{store.bucket}/data/"], world.house.bucket)
    chunks, begun = 0, asyncio.Event()
    real = store.read

    async def slow(key: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        nonlocal chunks
        async for chunk in real(key, start, stop):
            for at in range(0, len(chunk), 1 << 16):
                chunks += 1
                if chunks > 20:
                    begun.set()
                await asyncio.sleep(0.01)
                yield chunk[at : at + (1 << 16)]

    object.__setattr__(files[0].store, "read", slow)
    source = Source(asyncio.get_running_loop())
    reader = await asyncio.to_thread(open_reader, files, "embed", RowOptions(column="text", id_column="id"), (), source)
    with scratch_folder() as folder:
        reading = asyncio.create_task(difference(await world.space(), reader, folder))
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert chunks < 100


async def test_ids_may_hold_anything(world: SpaceHouse) -> None:
    texts = {"it's": "one", 'a "quote"': "two", "ü/\\;--": "three", "x" * 500: "four", " ": "five"}
    await world.night(texts)
    await world.night({**texts, "it's": "other"})
    assert near(world.content(), expected({**texts, "it's": "other"}))


def test_the_digest_of_parameters_says_every_one_of_them() -> None:
    others = [
        Parameters(model="b"),
        Parameters(model="minilm"),
        Parameters(model="minilm", revision="r1", pooling="cls"),
        Parameters(model="minilm", revision="r1", normalize=True),
        Parameters(model="minilm", revision="r1", dimensions=8),
        Parameters(model="minilm", revision="r1", prefix="a"),
        Parameters(model="minilm", revision="r1", truncate_tokens=-1),
        Parameters(model="minilm", revision="r1", truncate_side="left"),
        Parameters(model="minilm", revision="r1", params={"add_special_tokens": False}),
    ]
    assert len({one.digest for one in [PARAMETERS, *others]}) == len(others) + 1
