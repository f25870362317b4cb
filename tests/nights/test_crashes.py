"""A night that breaks off at any of its operations on the store, in any way, and is called again: nothing is paid twice, nobody is told
twice, and what stands at the end is what an undisturbed night leaves.

Every operation number is a case; `sampled` takes some of them, and `SWEEP_ALL=1` all.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from contract.errors import StoreError, StoreUnavailable
from contract.keys import RunUri
from contract.memory import MemoryStore
from nights.jobs.files import JobFile
from nights.jobs.model import Job
from nights.lease import Held
from nights.night import Call, run_night
from nights.notify import Sent
from nights.record import NightRecord
from nights.spaces.table import Home, dataset, find_space
from pipelines.summary import read_summary, write_summary
from tests.nights.kit import NightHouse, vector_of
from tests.nights.test_evaluation import SUITE
from tests.pipelines.planning import write_jsonl

FIRST, SECOND = "2026-03-10", "2026-03-11"
Way = Literal["killed before", "killed after", "cancelled", "lost request", "lost answer"]
WAYS: tuple[Way, ...] = ("killed before", "killed after", "cancelled", "lost request", "lost answer")
Mode = Literal["conditional", "last-writer"]


class Killed(BaseException):
    """The process is gone: nothing that it still tries reaches the store."""


@dataclass
class BreakingHouse(NightHouse):
    """Its `at`-th operation on the store goes wrong in the way that is said."""

    at: int = -1
    way: Way = "killed before"
    count: int = 0
    dead: bool = False
    switch: Callable[[], Awaitable[None]] | None = None

    @property
    def store(self) -> MemoryStore:
        return MemoryStore(self.objects, mode="last-writer", dialect=self.mode, hook=self._before, after=self._after)

    async def _before(self, op: str, key: str) -> None:
        if self.dead:
            raise Killed
        if self.switch is not None:
            await self.switch()
        self.count += 1
        self.objects.advance(0.01)
        if self.count != self.at:
            return
        if self.way == "killed before":
            self.dead = True
            raise Killed
        if self.way == "cancelled":
            raise asyncio.CancelledError
        if self.way == "lost request":
            raise StoreUnavailable("the request was lost.", where=key)

    async def _after(self, op: str, key: str) -> None:
        if self.dead:
            raise Killed
        if self.count != self.at:
            return
        if self.way == "killed after":
            self.dead = True
            raise Killed
        if self.way == "lost answer":
            raise StoreUnavailable("the answer was lost.", where=key)

    def as_new(self) -> None:
        """Another process, after the lease of the last one went stale."""
        self.dead, self.at = False, -1
        self.objects.advance(700)


@dataclass
class World:
    """Nights of one job, and who was told of what."""

    folder: Path
    house: BreakingHouse
    file: JobFile
    home: Home

    async def call(self, date: str) -> NightRecord | None:
        """One call of the night; None where it was broken off."""
        tasks = asyncio.all_tasks()

        async def night() -> NightRecord:
            return (await run_night(self.file, date, self.house, Call(home=self.home, environ={"HOOK": "https://hooks.example/"}))).record

        try:
            return await asyncio.create_task(night())
        except (Killed, asyncio.CancelledError, StoreError, Held):
            return None
        finally:
            left = asyncio.all_tasks() - tasks
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def until_done(self, date: str) -> NightRecord:
        for _ in range(4):
            record = await self.call(date)
            self.house.as_new()
            if record is not None and record.state == "done":
                return await self.call(date) or record
        raise AssertionError(f"the night is not done: {record}")

    async def vectors(self) -> dict[str, Any]:
        table = dataset(await find_space(self.home, "docs"))
        assert table is not None
        found = table.to_table(columns=["id", "embedding"])
        return dict(zip(found["id"].to_pylist(), found["embedding"].to_pylist(), strict=True))


def world_of(folder: Path, kind: str, mode: Mode) -> World:
    folder.mkdir(parents=True)
    (folder / "tables").mkdir()
    house = BreakingHouse(mode=mode)
    settings: dict[str, dict[str, Any]] = {
        "generate": {"dataset": ["rows.jsonl"], "model": "smollm2", "id_column": "id", "column": "text", "out": "out/{date}.jsonl"},
        "embed": {"dataset": ["rows.jsonl"], "model": "minilm", "id_column": "id", "column": "text", "space": {"name": "docs"},
                  "canary": {"rows": 3}},
        "eval": {"suite": "sums.yaml", "model": "smollm2", "gate": {"min_score": 0.5}},
    }  # fmt: skip
    notify = [{"kind": "webhook", "url_env": "HOOK", "on": ["success", "failure", "rows_failed", "gate"]}]
    job = Job.model_validate({"name": "job", "kind": kind, "stack": "test", "notify": notify, **settings[kind]})
    if kind == "eval":
        house.says = lambda text: text[2:] if int(text[2:]) < 8 else "no idea"
        (folder / "sums.yaml").write_text(SUITE)
        write_jsonl(folder / "questions.jsonl", ({"id": f"q{n}", "question": f"n {n}", "answer": str(n)} for n in range(10)))
    world = World(
        folder, house, JobFile(folder / "jobs" / "job.yaml", job, folder), Home(house.store, "", str(folder / "tables"), settle_s=0.0)
    )
    return world


def texts_of(night: int) -> dict[str, str]:
    texts = {f"r{n}": f"text {n}" for n in range(12)}
    if night == 2:
        texts["r1"] = "changed"
        texts["new"] = "a new text"
        del texts["r2"]
    return texts


def write(world: World, texts: dict[str, str]) -> None:
    write_jsonl(world.folder / "rows.jsonl", ({"id": name, "text": text} for name, text in texts.items()))


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nights.lease._SETTLE_S", 0.0)
    monkeypatch.setattr("nights.notify.deliver.SETTLE_S", 0.0)


@pytest.fixture
def hears(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []

    async def send(channel: Any, message: Any, environ: Any, **_: Any) -> Sent:
        told.append(message.id)
        return Sent("sent")

    monkeypatch.setattr("nights.notify.deliver.send", send)
    return told


@dataclass
class Outcome:
    """What stands after the nights of a world, as far as a break must not change it."""

    asked: Counter[str]
    jobs: int
    records: list[dict[str, Any]]
    runs: set[str]
    vectors: dict[str, Any]
    output: list[Any]


def space_facts(record: NightRecord) -> tuple[int | None, ...]:
    one = record.space
    return (one.added, one.changed, one.removed, one.unchanged, one.version, one.rows) if one is not None else ()


def answers_of(path: Path) -> Any:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line.get("custom_id") or line.get("id"), line["response"]["body"].get("choices")) for line in found]


async def costs_what_its_runs_do(world: World, record: NightRecord) -> bool:
    found = [await read_summary(world.house.worker_store, RunUri.parse(run).keys) for run in record.runs]
    return record.usd_estimated == pytest.approx(sum(one.usd_estimated for one in found if one is not None), rel=1e-6)


async def outcome_of(world: World, records: Sequence[NightRecord]) -> Outcome:
    house = world.house
    kept = [
        {
            "state": record.state, "exit_code": record.exit_code, "rows": record.rows, "sent": record.sent, "ok": record.ok,
            "failed": record.failed, "usd": await costs_what_its_runs_do(world, record), "planned": round(record.usd_planned, 9),
            "runs": len(record.runs),
            "space": space_facts(record),
            "score": record.evaluation and (record.evaluation.score, record.evaluation.gate, record.evaluation.rows),
        }
        for record in records
    ]  # fmt: skip
    runs = {key.split("/")[1] for key in house.objects.data if key.startswith("runs/")}
    vectors = await world.vectors() if world.file.job.space is not None else {}
    output = [answers_of(path) for path in sorted((world.folder / "out").glob("????-??-??.jsonl"))]
    return Outcome(Counter(house.asked), len(house.jobs_run), kept, runs, vectors, output)


async def nights(world: World, at: int = -1, way: Way = "killed before", *, broken: int = 2) -> Outcome:
    """Both nights; the `broken` one breaks off at its `at`-th operation, and is called until it is done."""
    records = []
    for number, date in ((1, FIRST), (2, SECOND)):
        if world.file.job.kind != "eval":
            write(world, texts_of(number))
        world.house.count = 0
        if number == broken:
            world.house.at, world.house.way = at, way
        records.append(await world.until_done(date))
        world.house.at = -1
    return await outcome_of(world, records)


# --- breaks --------------------------------------------------------------------------------------------------------------------------

KINDS = ("generate", "embed", "eval")
MODES: tuple[Mode, ...] = ("conditional", "last-writer")
EVERY: dict[str, int] = {"generate": 37, "embed": 53, "eval": 41}
"""Of the operations of a night every so many are broken, from another beginning in each way; `SWEEP_ALL=1`: all of them."""


def places(kind: str, way: Way, mode: Mode, count: int) -> Iterable[int]:
    every = 1 if os.environ.get("SWEEP_ALL") else EVERY[kind]
    offset = 7 * WAYS.index(way) + 17 * MODES.index(mode)
    return range(1 + offset % every, count + 1, every)


def agree(found: Outcome, wanted: Outcome, where: str) -> None:
    assert found.asked == wanted.asked, where
    assert (found.jobs, found.runs) == (wanted.jobs, wanted.runs), where
    assert found.records == wanted.records, where
    assert found.output == wanted.output, where
    assert set(found.vectors) == set(wanted.vectors), where
    for name, vector in wanted.vectors.items():
        assert np.array_equal(found.vectors[name], vector), (where, name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_night_that_breaks_off_anywhere_and_is_called_again_ends_as_an_undisturbed_one(
    tmp_path: Path, kind: str, mode: Mode, hears: list[str]
) -> None:
    world = world_of(tmp_path / "undisturbed", kind, mode)
    wanted = await nights(world)
    told = list(hears)
    assert sorted(told) == [f"job/{FIRST}/success", f"job/{SECOND}/success"]
    if kind == "embed":
        assert set(wanted.vectors) == set(texts_of(2))
        for name, text in texts_of(2).items():
            assert np.allclose(wanted.vectors[name], vector_of(text))
    for way in WAYS:
        for at in places(kind, way, mode, world.house.count):
            hears.clear()
            where = f"{kind}, {mode}: {way} at {at}"
            agree(await nights(world_of(tmp_path / f"{way}-{at}", kind, mode), at, way), wanted, where)
            # Whoever was to be told when it broke is told or not; nobody is told twice.
            assert len(hears) == len(set(hears)), where
            assert set(hears) - set(told) <= {f"job/{SECOND}/failure:infrastructure"}, where


# --- two at once ---------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def no_lease(*_: Any, **__: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
async def test_two_that_do_the_same_night_all_the_same_pay_once_and_tell_once(
    tmp_path: Path, kind: str, mode: Mode, hears: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nights.night.lease", no_lease)  # as if a laptop woke up, or a store without conditions let both have it
    world = world_of(tmp_path / "undisturbed", kind, mode)
    wanted = await nights(world)
    for at in places(kind, "killed before", mode, world.house.count - 12):
        hears.clear()
        where = f"{kind}, {mode}: the second one comes at {at}"
        await agree_of_two(world_of(tmp_path / f"two-{at}", kind, mode), at, wanted, where)
        assert len(hears) == len(set(hears)), where
        assert f"job/{SECOND}/success" in hears, where


async def agree_of_two(world: World, at: int, wanted: Outcome, where: str) -> None:
    """The first one waits at its `at`-th operation until the second one has done the whole night."""
    house = world.house
    if world.file.job.kind != "eval":
        write(world, texts_of(1))
    first_night = await world.until_done(FIRST)
    if world.file.job.kind != "eval":
        write(world, texts_of(2))
    other = World(world.folder, BreakingHouse(objects=house.objects, mode=house.mode, says=house.says), world.file, world.home)
    other.house.jobs_run, other.house.asked = house.jobs_run, house.asked
    house.count = 0
    second: list[NightRecord | None] = []

    async def switch() -> None:
        if house.count + 1 == at and not second:
            second.append(None)
            second[0] = await other.call(SECOND)

    house.switch = switch
    mine = await world.call(SECOND)
    house.switch = None
    assert second, where
    record = await world.until_done(SECOND)
    assert mine is not None, where
    assert mine.state in ("done", "failed"), where
    found = await outcome_of(world, [first_night, record])
    assert found.asked == wanted.asked, where
    assert (found.jobs, found.runs) == (wanted.jobs, wanted.runs), where
    assert found.output == wanted.output, where
    assert {name: tuple(vector) for name, vector in found.vectors.items()} == {n: tuple(v) for n, v in wanted.vectors.items()}, where
    kept = {**found.records[1]}
    assert (kept["state"], kept["exit_code"], kept["usd"]) == ("done", 0, True), (where, kept)
    assert (kept["space"], kept["score"]) == (wanted.records[1]["space"], wanted.records[1]["score"]), where


# --- what a night cost, and who hears of it, over several calls ----------------------------------------------------------------------


def with_job(world: World, **more: Any) -> World:
    """The same world, its job changed."""
    job = world.file.job.model_copy(update=more)
    return replace(world, file=replace(world.file, job=job))


async def test_a_night_that_broke_off_does_not_take_an_earlier_nights_run_for_its_own(tmp_path: Path, hears: list[str]) -> None:
    world = world_of(tmp_path / "w", "generate", "conditional")
    write(world, texts_of(1))
    await world.until_done(FIRST)
    world.house.cut = True
    assert (await world.call(SECOND)) is not None  # its record names the run
    world.house.cut = False
    record = await world.until_done(SECOND)
    assert (record.sent, record.usd_estimated) == (0, 0.0)
    assert "nothing new" in record.sentence


async def test_a_budget_is_a_nights_and_what_an_earlier_night_paid_is_not_counted_again(tmp_path: Path, hears: list[str]) -> None:
    world = with_job(world_of(tmp_path / "w", "generate", "conditional"), budget_usd=1e-6)
    write(world, texts_of(1))
    stopped = await world.call(FIRST)
    assert stopped is not None
    assert (stopped.state, stopped.cause) == ("stopped", "budget")
    keys = RunUri.parse(stopped.runs[0]).keys
    kept = await read_summary(world.house.worker_store, keys)
    assert kept is not None
    await write_summary(world.house.worker_store, keys, msgspec.structs.replace(kept, usd_estimated=4.0))
    seen: list[float | None] = []
    complete = world.house.complete

    async def watched(planned: Any, how: Any, hear: Any = None) -> Any:
        seen.append(how.budget_usd)
        return await complete(planned, how, hear)

    world.house.complete = watched  # type: ignore[method-assign]
    await with_job(world, budget_usd=5.0).call(SECOND)
    assert seen == [9.0]  # the run's limit counts what it ever cost: 4 of the first night, 5 of this one


async def test_a_budget_that_a_job_has_no_more_limits_nothing(tmp_path: Path, hears: list[str]) -> None:
    world = with_job(world_of(tmp_path / "w", "generate", "conditional"), budget_usd=1e-6)
    write(world, texts_of(1))
    stopped = await world.call(FIRST)
    assert stopped is not None
    assert stopped.cause == "budget"
    assert (await with_job(world, budget_usd=None).until_done(FIRST)).exit_code == 0


async def test_a_night_whose_dataset_changed_between_two_calls_has_one_budget(tmp_path: Path, hears: list[str]) -> None:
    world = with_job(world_of(tmp_path / "w", "generate", "conditional"), budget_usd=5.0, deadline="6h")
    write(world, texts_of(1))
    world.house.cut = True
    stopped = await world.call(FIRST)
    assert stopped is not None
    keys = RunUri.parse(stopped.runs[0]).keys
    kept = await read_summary(world.house.worker_store, keys)
    assert kept is not None
    await write_summary(world.house.worker_store, keys, msgspec.structs.replace(kept, usd_estimated=4.0))
    write(world, texts_of(2))
    seen: list[float | None] = []
    complete = world.house.complete

    async def watched(planned: Any, how: Any, hear: Any = None) -> Any:
        seen.append(how.budget_usd)
        return await complete(planned, how, hear)

    world.house.complete = watched  # type: ignore[method-assign]
    world.house.cut = False
    record = await world.call(FIRST)
    assert seen == [1.0]
    assert record is not None
    assert record.usd_estimated > 4.0


async def test_a_night_that_was_done_when_its_process_died_is_told_by_the_next_call_and_not_a_day_later(
    tmp_path: Path, hears: list[str]
) -> None:
    world = world_of(tmp_path / "w", "generate", "conditional")
    write(world, texts_of(1))
    await world.until_done(FIRST)
    claim, page = (next(key for key in world.house.objects.data if part in key) for part in ("_told/", f"{FIRST}.html"))
    for late, told in ((7200, 1), (86_400, 0)):
        hears.clear()
        for key in (claim, page):
            world.house.objects.data.pop(key, None)
        world.house.objects.advance(late)
        await world.call(FIRST)
        assert len(hears) == told
        assert (page in world.house.objects.data) == bool(told)
