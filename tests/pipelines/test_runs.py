# tests/pipelines: a run is found again from its address alone.
from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from contract.errors import Damaged, PlanMismatch, UsageError
from contract.keys import RunUri
from contract.memory import MemoryStore, Objects
from contract.models import encode
from pipelines.runs import endpoint_of, list_runs, load_run, read_control
from pipelines.submit import overviews
from tests.contract.world import PLAN_ID, START, make_plan, stack_for, write_plan


async def test_a_run_is_loaded_with_the_mode_that_was_proven_when_it_was_planned() -> None:
    objects = Objects(instant=START)
    await write_plan(MemoryStore(objects), make_plan(mode="last-writer"))
    store = MemoryStore(objects, mode="conditional")
    run = await load_run(store, "s3://memory/runs/test-abababab/")
    assert run.plan == make_plan(mode="last-writer")
    assert store.mode == "last-writer"
    assert run.keys == RunUri.parse(run.plan.run).keys


async def test_what_is_not_a_run_is_named() -> None:
    store = MemoryStore(Objects(instant=START))
    with pytest.raises(UsageError, match="no run at this address"):
        await load_run(store, "s3://memory/runs/none")
    with pytest.raises(UsageError, match="bucket is 'memory'"):
        await load_run(store, "s3://elsewhere/runs/none")
    with pytest.raises(UsageError, match="not the address"):
        await load_run(store, "runs/none")


async def test_the_beginning_of_a_run_id_or_a_slip_in_it_is_answered_with_the_run() -> None:
    store = MemoryStore(Objects(instant=START))
    await write_plan(store, make_plan())
    for name in ("test", "test-abababax"):
        with pytest.raises(UsageError, match=r"no run at this address. Did you mean test-abababab\?"):
            await load_run(store, f"s3://memory/runs/{name}")
    with pytest.raises(UsageError, match=r"List them: nightbatch runs"):
        await load_run(store, "s3://memory/runs/quite-another")


async def test_a_run_that_was_copied_elsewhere_is_refused() -> None:
    store = MemoryStore(Objects(instant=START))
    store.objects.data["runs/copy/plan.json"] = encode(make_plan())
    with pytest.raises(PlanMismatch, match="cannot be moved"):
        await load_run(store, "s3://memory/runs/copy")


async def test_runs_are_listed_the_latest_first_and_under_their_prefix() -> None:
    store = MemoryStore(Objects(instant=START))
    for number, prefix in enumerate(("", "team", "team")):
        root = f"{prefix}/runs/r{number}-abababab".lstrip("/")
        plan = replace(make_plan(), run=f"s3://memory/{root}", run_id=f"r{number}-abababab", created_at=START + timedelta(minutes=number))
        store.objects.data[f"{root}/plan.json"] = encode(plan)
        store.objects.data[f"{root}/commits/00000.json"] = b"{}"
    store.objects.data["team/runs/half/input/00000.jsonl.zst"] = b""
    assert [r.run_id for r in await list_runs(store)] == ["r0-abababab"]
    assert [r.run_id for r in await list_runs(store, "team/")] == ["r2-abababab", "r1-abababab"]


async def test_the_list_of_runs_says_how_each_stands() -> None:
    store = MemoryStore(Objects(instant=START))
    for name in ("planned", "done", "torn"):
        root = f"runs/{name}-abababab"
        await write_plan(store, replace(make_plan(), run=f"s3://memory/{root}", run_id=f"{name}-abababab"))
    kept = {"plan": PLAN_ID, "state": "complete", "ok": 5, "failed": 1, "usd_estimated": 0.25, "of_a_later_version": True}
    store.objects.data["runs/done-abababab/summary.json"] = msgspec.json.encode(kept)
    store.objects.data["runs/planned-abababab/summary.json"] = b"{torn"
    store.objects.data["runs/torn-abababab/control.json"] = b"{torn"
    said: list[str] = []
    found = {one.listing.run_id[:-9]: one for one in await overviews(await list_runs(store), store, said.append)}
    assert (found["done"].state, found["done"].ok, found["done"].failed, found["done"].usd_estimated) == ("complete", 5, 1, 0.25)
    assert (found["planned"].state, found["planned"].ok) == ("planned", 0)
    assert found["torn"].state == "damaged"
    assert len(said) == 1, "one damaged run hides no other"


def test_the_endpoint_is_found_by_its_id() -> None:
    plan = make_plan()
    assert endpoint_of(plan, stack_for(plan, workers_max=7).facts).workers_max == 7
    with pytest.raises(PlanMismatch, match=r"tiny \(ep1\)"):
        endpoint_of(make_plan(endpoint_id="gone"), stack_for(plan).facts)


async def test_a_damaged_plan_hides_no_other_run() -> None:
    store = MemoryStore(Objects(instant=START))
    await write_plan(store, make_plan())
    store.objects.data["runs/a-broken/plan.json"] = b"junk"
    said: list[str] = []
    assert [run.run_id for run in await list_runs(store, on_damaged=said.append)] == [make_plan().run_id]
    assert len(said) == 1
    assert "runs/a-broken/plan.json" in said[0]
    with pytest.raises(Damaged, match="a-broken"):
        await list_runs(store)


async def test_a_damaged_object_of_a_run_is_nobodys_usage_error() -> None:
    plan = make_plan()
    store = MemoryStore(Objects(instant=START))
    await write_plan(store, plan)
    keys = RunUri.parse(plan.run).keys
    store.objects.data[keys.control()] = b"garbage"
    with pytest.raises(Damaged, match=r"control\.json.*damaged.*verify") as control:
        await read_control(store, keys, plan)
    assert control.value.exit_code == 3
    store.objects.data[keys.plan()] = b"garbage"
    with pytest.raises(Damaged, match=r"plan\.json.*damaged"):
        await load_run(store, plan.run)
