"""Why rows fail, as it is told while a run goes on: cheap, bounded, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.models import ObjectRef, RowOptions
from contract.rows import RowError
from pipelines import failures
from pipelines.failures import FailureCounts
from pipelines.follow import Event, Progress
from pipelines.plan import PlanRequest
from pipelines.work import Following
from tests.nights.kit import NightHouse
from tests.pipelines.runs import Run, make_run


async def counted(run: Run, *, ticks: int = 20) -> FailureCounts:
    found = FailureCounts()
    found.saw(run.commits.values())
    for _ in range(ticks):
        await found.read(run.store)
    return found


async def test_failed_rows_are_counted_by_code_the_most_frequent_first() -> None:
    run = await make_run(outcomes=[False, True, False, False, True, True, False, True, True], cuts=(3, 6))
    assert (await counted(run)).codes == (("code_0", 3), ("code_1", 1))


async def test_a_tick_reads_a_few_objects_and_none_twice() -> None:
    run = await make_run(outcomes=[False] * 20, cuts=range(1, 20))
    reads: list[str] = []

    async def hook(op: str, key: str) -> None:
        if op == "read":
            reads.append(key)

    run.store.hook = hook
    found = FailureCounts()
    found.saw(run.commits.values())
    await found.read(run.store)
    assert len(reads) == failures.A_TICK
    for _ in range(20):
        await found.read(run.store)
    assert len(reads) == len(set(reads)) == 20


async def test_large_objects_and_those_past_a_number_are_left_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    run = await make_run(outcomes=[False] * 20, cuts=range(1, 20))
    monkeypatch.setattr(failures, "IN_ALL", 7)
    assert sum(rows for _, rows in (await counted(run)).codes) == 7
    monkeypatch.setattr(failures, "MOST_BYTES", 10)
    assert (await counted(run)).codes == ()


@pytest.mark.parametrize("damage", [None, b"no zstd at all"], ids=["gone", "damaged"])
async def test_an_object_that_cannot_be_read_changes_nothing(damage: bytes | None) -> None:
    run = await make_run(outcomes=[False] * 4, cuts=(2,))
    ref = run.commits["00000"].errors
    assert isinstance(ref, ObjectRef)
    if damage is None:
        await run.store.delete(ref.key)
    else:
        await run.store.put(ref.key, damage)
    assert (await counted(run)).codes == (("code_0", 1), ("code_1", 1))


async def test_codes_that_a_worker_makes_up_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST_CODES", 1)
    run = await make_run(outcomes=[False] * 4, cuts=(2,))
    assert dict((await counted(run)).codes) == {"code_0": 2, failures.OTHER: 2}


async def test_who_follows_a_run_hears_why_rows_failed(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": f"r{n}", "text": f"row {n}"}) + "\n" for n in range(10)))
    house = NightHouse(says=lambda text: RowError(code="too_odd", message="no") if int(text.split()[-1]) % 2 else "yes")
    request = PlanRequest(dataset=(str(rows),), task="generate", model="smollm2", rows=RowOptions(column="text", id_column="id"))
    heard: list[Event] = []
    planned = await house.plan(request)
    finished = await house.complete(planned, Following(out=str(tmp_path / "out.jsonl")), heard.append)
    assert finished.result.failed == 5
    assert [e for e in heard if isinstance(e, Progress)][-1].failures == (("too_odd", 5),)
