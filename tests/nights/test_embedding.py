"""Nights that keep a space: only what is new is computed, readers see whole versions, and a drift stops a night before it is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.errors import NightbatchError
from contract.rows import RowError
from nights.jobs.files import JobFile
from nights.jobs.model import Job
from nights.night import Call, Ended, run_night
from nights.preview import preview
from nights.record import NightRecord, SpaceNight
from nights.spaces.table import Home, dataset, find_space
from tests.nights.kit import NightHouse, vector_of
from tests.pipelines.planning import write_jsonl

FIRST, SECOND, THIRD = "2026-03-10", "2026-03-11", "2026-03-12"


class Nights:
    """One job's nights over a dataset that a test changes."""

    def __init__(self, folder: Path, mode: Any = "conditional", **job: Any) -> None:
        self.folder = folder
        self.house = NightHouse(mode=mode)
        self.home = Home(self.house.store, "", str(folder / "tables"), settle_s=0.01)
        self.texts: dict[str, str] = {f"r{n:03d}": f"text {n}" for n in range(40)}
        self.settings = job
        (folder / "tables").mkdir()

    def job(self, **more: Any) -> Job:
        given: dict[str, Any] = {
            "name": "docs", "kind": "embed", "dataset": ["rows.jsonl"], "model": "minilm", "stack": "test", "id_column": "id",
            "column": "text", "space": {"name": "docs"}, **self.settings, **more,
        }  # fmt: skip
        return Job.model_validate(given)

    def file(self, **more: Any) -> JobFile:
        write_jsonl(self.folder / "rows.jsonl", ({"id": name, "text": text} for name, text in self.texts.items()))
        return JobFile(self.folder / "jobs" / "docs.yaml", self.job(**more), self.folder)

    async def night(self, date: str = FIRST, *, call: dict[str, Any] | None = None, **more: Any) -> NightRecord:
        return (await self.ended(date, call=call, **more)).record

    async def ended(self, date: str, *, call: dict[str, Any] | None = None, **more: Any) -> Ended:
        return await run_night(self.file(**more), date, self.house, Call(home=self.home, **(call or {})))

    def asked(self) -> list[str]:
        """Texts that were computed since the last look."""
        found = list(self.house.asked)
        self.house.asked.clear()
        return found

    async def vectors(self, version: int | None = None) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        table = dataset(await find_space(self.home, "docs"), version)
        assert table is not None
        found = table.to_table(columns=["id", "embedding"])
        pairs = zip(found["id"].to_pylist(), found["embedding"].to_pylist(), strict=True)
        return {name: np.asarray(vector, np.float32) for name, vector in pairs}

    async def is_whole(self) -> None:
        """The current version has exactly the dataset's rows, each with the vector of its text."""
        found = await self.vectors()
        assert set(found) == set(self.texts)
        for name, text in self.texts.items():
            assert np.allclose(found[name], vector_of(text))


def space_of(record: NightRecord) -> SpaceNight:
    assert record.space is not None
    return record.space


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_only_rows_that_are_new_or_changed_are_computed(tmp_path: Path, mode: Any) -> None:
    nights = Nights(tmp_path, mode, canary={"rows": 0})
    first = await nights.night()
    assert (first.state, first.exit_code, first.sent, space_of(first).added) == ("done", 0, 40, 40)
    await nights.is_whole()
    nights.asked()
    nights.texts["r001"] = "changed"
    nights.texts["new"] = "a new text"
    del nights.texts["r002"]
    second = await nights.night(SECOND)
    space = space_of(second)
    assert (space.added, space.changed, space.removed, space.unchanged) == (1, 1, 1, 38)
    assert sorted(nights.asked()) == ["a new text", "changed"]
    assert second.sent == 2
    await nights.is_whole()


async def test_a_night_with_nothing_new_sends_no_job_and_costs_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    first = await nights.night()
    jobs = len(nights.house.jobs_run)
    second = await nights.night(SECOND)
    assert (second.state, second.exit_code, second.sent, second.usd_estimated) == ("done", 0, 0, 0.0)
    assert len(nights.house.jobs_run) == jobs
    assert space_of(second).version == space_of(first).version
    assert "nothing new" in second.sentence


async def test_rows_that_left_are_gone_now_and_stay_in_older_versions(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    first = await nights.night()
    del nights.texts["r005"]
    second = await nights.night(SECOND)
    assert second.sent == 0
    assert "r005" not in await nights.vectors()
    assert "r005" in await nights.vectors(space_of(first).version)


async def test_a_night_that_failed_leaves_the_last_good_version(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 0})
    await nights.night()
    before = await nights.vectors()
    nights.texts["r001"] = "changed"
    nights.house.cut = True
    stopped = await nights.night(SECOND, deadline="6h")
    assert stopped.state == "stopped"
    assert space_of(stopped).version is None
    after = await nights.vectors()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    nights.house.cut = False
    assert (await nights.night(SECOND, deadline="6h")).state == "done"
    await nights.is_whole()


async def test_the_same_night_again_after_a_kill_before_its_record_pays_nothing_and_changes_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    done = await nights.night()
    running = {**nights.house.objects.data}
    nights.house.objects.data.pop(f"nights/docs/{FIRST}.json")  # as if the process was killed after the commit
    jobs = len(nights.house.jobs_run)
    again = await nights.night()
    assert again.state == "done"
    assert space_of(again).version == space_of(done).version
    assert len(nights.house.jobs_run) == jobs
    assert set(nights.house.objects.data) >= {key for key in running if not key.startswith("nights/")}


async def test_after_a_kill_between_commit_and_canary_it_is_said_that_there_is_none(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 5})
    await nights.night()
    for key in (f"nights/docs/{FIRST}.json", "spaces/docs/canary.json"):
        nights.house.objects.data.pop(key)
    again = await nights.night()
    assert again.state == "done"
    assert any("keeps no canary yet" in notice for notice in again.notices)


async def test_a_row_that_failed_has_no_vector_and_is_tried_again_the_next_night(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 0})
    nights.house.embeds = lambda text: RowError(code="too_long", message="no") if text == "text 3" else vector_of(text)
    first = await nights.night()
    assert (first.state, first.exit_code, first.failed, space_of(first).rows) == ("done", 1, 1, 39)
    assert "rows_failed" in [event.kind for event in first.events]
    nights.house.embeds = vector_of
    nights.asked()
    second = await nights.night(SECOND)
    assert nights.asked() == ["text 3"]
    assert second.exit_code == 0
    await nights.is_whole()


async def test_rows_that_failed_are_tried_again_every_night_and_not_twice_on_one(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 0})
    nights.house.embeds = lambda text: RowError(code="internal", message="no") if text == "text 3" else vector_of(text)
    await nights.night()
    await nights.night(SECOND)
    nights.asked()
    assert (await nights.night(THIRD)).failed == 1
    assert nights.asked() == ["text 3"]
    nights.house.objects.data.pop(f"nights/docs/{THIRD}.json")  # called again after a kill
    await nights.night(THIRD)
    assert nights.asked() == []
    nights.house.embeds = vector_of
    assert (await preview(nights.file(), "2026-03-13", nights.house, Call(home=nights.home))).added == 1
    assert (await nights.night("2026-03-13")).exit_code == 0
    assert nights.asked() == ["text 3"]
    await nights.is_whole()


async def test_no_object_that_is_kept_names_a_folder_that_is_gone(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    await nights.night()
    nights.texts["r001"] = "changed"
    await nights.night(SECOND)
    assert not [key for key, data in nights.house.objects.data.items() if b"nightbatch-scratch" in data]
    assert any(b"new-rows.jsonl.zst" in data for key, data in nights.house.objects.data.items() if key.endswith("/plan.json"))


async def test_another_vllm_than_on_the_last_night_is_said(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 0})
    await nights.night()
    nights.house.vllm = "0.26.0"
    nights.texts["r001"] = "changed"
    assert "vllm: 0.25.1 -> 0.26.0" in (await nights.night(SECOND)).changed


async def test_rows_that_failed_are_told_also_when_the_process_died_before_its_record(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 0})
    nights.house.embeds = lambda text: RowError(code="too_long", message="no") if text == "text 3" else vector_of(text)
    await nights.night()
    nights.house.objects.data.pop(f"nights/docs/{FIRST}.json")
    again = await nights.night()
    assert (again.state, again.exit_code, again.sent, again.ok, again.failed) == ("done", 1, 40, 39, 1)
    assert [event.kind for event in again.events] == ["rows_failed"]


async def test_another_model_or_other_parameters_are_refused_by_name(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    await nights.night()
    jobs = len(nights.house.jobs_run)
    record = await nights.night(SECOND, space={"name": "docs", "dimensions": 4, "normalize": True})
    assert (record.state, record.exit_code) == ("failed", 2)
    assert "dimensions was not set, and is 4 now" in record.sentence
    assert len(nights.house.jobs_run) == jobs


async def test_a_dataset_that_shrank_removes_nothing_until_somebody_says_so(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    await nights.night()
    for number in range(20):
        del nights.texts[f"r{number:03d}"]
    record = await nights.night(SECOND)
    assert (record.state, record.exit_code) == ("asking", 1)
    assert "20 rows, 50.0 % fewer than the 40" in record.sentence
    assert len(await nights.vectors()) == 40
    assert (await nights.night(SECOND, call={"accept": frozenset({"shrink"})})).state == "done"
    await nights.is_whole()


async def test_a_preview_asks_what_the_night_would_ask_and_not_what_was_accepted(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    await nights.night()
    nights.house.objects.data.pop(f"nights/docs/{FIRST}.json")  # a space that is older than its records
    for number in range(20):
        del nights.texts[f"r{number:03d}"]
    found = await preview(nights.file(), SECOND, nights.house, Call(home=nights.home))
    assert [doubt.accept for doubt in found.doubts] == ["shrink"]
    assert (await nights.night(SECOND)).state == "asking"
    accepted = await preview(nights.file(), SECOND, nights.house, Call(home=nights.home, accept=frozenset({"shrink"})))
    assert accepted.doubts == ()


async def test_rows_that_were_left_out_are_named(tmp_path: Path) -> None:
    nights = Nights(tmp_path, on_bad_row="skip")
    nights.texts["r007"] = ""
    record = await nights.night()
    assert (record.state, record.skipped) == ("done", 1)
    assert any(notice.endswith("rows.jsonl:8: empty_text") for notice in record.notices), record.notices


# --- canaries ------------------------------------------------------------------------------------------------------------------------


async def test_kept_rows_come_out_as_before_and_the_night_goes_on(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 5})
    assert space_of(await nights.night()).canary is None
    nights.asked()
    nights.texts["new"] = "a new text"
    second = await nights.night(SECOND)
    canary = space_of(second).canary
    assert canary is not None
    assert (canary.passed, canary.rows) == (True, 5)
    assert len(nights.asked()) == 6
    assert second.sent == 1  # a canary's rows are none of the night's


async def test_a_drift_stops_the_night_before_anything_new_is_computed(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 5})
    await nights.night()
    before = await nights.vectors()
    nights.asked()
    nights.texts["new"] = "a new text"
    nights.house.embeds = lambda text: -vector_of(text)
    nights.house.image = "worker@sha256:" + "b" * 64
    nights.house.vllm = "0.26.0"
    record = await nights.night(SECOND)
    assert (record.state, record.exit_code, record.cause) == ("failed", 1, "canary")
    assert [event.kind for event in record.events] == ["canary"]
    canary = space_of(record).canary
    assert canary is not None
    assert not canary.passed
    assert any(line.startswith("image: ") for line in canary.changed)
    assert any(line.startswith("vllm: 0.25.1 -> 0.26.0") for line in canary.changed)
    assert "a new text" not in nights.asked()
    after = await nights.vectors()
    assert set(after) == set(before)
    assert "the space was not touched" in record.sentence


async def test_a_night_with_nothing_new_has_its_canary_only_where_asked(tmp_path: Path) -> None:
    nights = Nights(tmp_path, canary={"rows": 5})
    await nights.night()
    nights.asked()
    assert space_of(await nights.night(SECOND)).canary is None
    assert nights.asked() == []
    third = await nights.night(THIRD, call={"canary_always": True})
    assert space_of(third).canary is not None
    assert len(nights.asked()) == 5
    assert (third.sent, third.usd_estimated > 0) == (0, True)


# --- looking first -------------------------------------------------------------------------------------------------------------------


async def test_a_preview_counts_what_would_be_computed_and_stores_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    before = set(nights.house.objects.data)
    empty = await preview(nights.file(), FIRST, nights.house, Call(home=nights.home))
    assert (empty.rows, empty.added) == (40, 40)
    assert empty.planned is not None
    assert empty.planned.plan.estimate.usd.likely > 0
    assert {key for key in nights.house.objects.data if "probe" not in key} == before
    await nights.night()
    nights.texts["r001"] = "changed"
    found = await preview(nights.file(), SECOND, nights.house, Call(home=nights.home))
    assert (found.added, found.changed, found.removed, found.unchanged) == (0, 1, 0, 39)
    assert found.planned is not None
    assert found.planned.plan.dataset.rows == 1
    assert any("canary of up to 16 rows comes first" in notice for notice in found.notices)
    assert not empty.notices
    with pytest.raises(NightbatchError, match="dimensions was not set"):
        await preview(nights.file(space={"name": "docs", "dimensions": 4}), SECOND, nights.house, Call(home=nights.home))


async def test_a_space_and_an_output_file_of_the_nights_new_rows(tmp_path: Path) -> None:
    nights = Nights(tmp_path, out="out/{date}.parquet")
    record = await nights.night()
    assert record.out == str(tmp_path / "out" / f"{FIRST}.parquet")
    assert (tmp_path / "out" / f"{FIRST}.parquet").exists()
