# tests/pipelines: freezing a run, and following the seal that somebody else made.
from __future__ import annotations

import asyncio
import hashlib

import msgspec
import pytest

from contract.errors import NotAsWanted, PlanMismatch, StoreUnavailable, VerifyFailed
from contract.memory import MemoryStore, Objects
from contract.models import Seal, SealPointer, decode, encode
from pipelines.seal import freeze, read_seal, seal_problems
from tests.pipelines.runs import AT, make_run, put_leaf


async def test_a_seal_is_named_after_its_bytes_and_pointed_at() -> None:
    run = await make_run(splits=(1,))
    sealed = await freeze(run.store, run.keys, run.plan)
    data = run.store.objects.data[run.keys.seal_object(sealed.digest)]
    assert hashlib.sha256(data).hexdigest() == sealed.digest
    assert decode(data, Seal, where="") == sealed.seal
    assert [node.shard for node in sealed.seal.nodes] == ["00000", "00001.0", "00001.1", "00002"]
    assert decode(run.store.objects.data[run.keys.seal()], SealPointer, where="").seal == sealed.digest
    assert seal_problems(run.plan, sealed.seal) == []


async def test_an_open_run_is_not_sealed_and_the_refusal_says_what_to_do() -> None:
    run = await make_run(leave_open=(0, 2))
    with pytest.raises(NotAsWanted) as caught:
        await freeze(run.store, run.keys, run.plan)
    text = str(caught.value)
    assert "2 of 3 shards are still open (00000, 00002): 5 of 8 rows are missing" in text
    assert f"nightbatch resume {run.plan.run_id}" in text
    assert "--partial" in text
    assert run.keys.seal() not in run.store.objects.data


async def test_many_open_shards_are_counted_and_the_first_named() -> None:
    run = await make_run(outcomes=[True] * 30, cuts=range(1, 30), leave_open=range(30))
    with pytest.raises(NotAsWanted, match=r"30 of 30 .*00009 and 20 more"):
        await freeze(run.store, run.keys, run.plan)


async def test_a_commit_of_another_plan_leaves_its_shard_open_and_is_named() -> None:
    run = await make_run()
    key = run.keys.commit("00001")
    run.store.objects.data[key] = encode(msgspec.structs.replace(run.commits["00001"], plan="cd" * 32))
    with pytest.raises(NotAsWanted, match=r"1 of 3 .*another plan are ignored: 00001"):
        await freeze(run.store, run.keys, run.plan)


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_a_second_collector_follows_the_first_ones_seal(mode: str) -> None:
    run = await make_run(mode=mode)
    first = await freeze(run.store, run.keys, run.plan)
    # On a store without conditional writes a late execution can still replace a commit: the seal is what holds.
    await put_leaf(run, "00001", run.plan.shards[1].source, run.rows[3:6], execution="00000000000000bb")
    second = await freeze(MemoryStore(run.store.objects, mode=run.store.mode), run.keys, run.plan)
    assert second == first


async def test_two_collectors_at_once_agree_although_they_saw_different_commits() -> None:
    run = await make_run(mode="conditional")
    objects: Objects = run.store.objects
    reached, changed = asyncio.Event(), asyncio.Event()

    async def hold(op: str, key: str) -> None:
        if op == "put_if_absent" and key == run.keys.seal():
            reached.set()
            await changed.wait()

    slow = MemoryStore(objects, hook=hold)
    one = asyncio.create_task(freeze(slow, run.keys, run.plan))
    await reached.wait()
    await put_leaf(run, "00001", run.plan.shards[1].source, run.rows[3:6], execution="00000000000000bb")
    two = await freeze(run.store, run.keys, run.plan)
    changed.set()
    assert await one == two
    assert two.seal.nodes[1].commit.execution == "00000000000000bb"
    assert objects.writes[run.keys.seal()] == 1


async def test_collectors_of_equal_commits_never_write_a_seal_object_twice() -> None:
    run = await make_run()
    await asyncio.gather(*(freeze(MemoryStore(run.store.objects), run.keys, run.plan) for _ in range(4)))
    assert {key: count for key, count in run.store.objects.writes.items() if "seal" in key and count > 1} == {}


async def test_a_lost_answer_while_sealing_changes_nothing() -> None:
    run = await make_run()
    lost: list[str] = []

    async def lose(op: str, key: str) -> None:
        if op == "put_if_absent" and key not in lost:
            lost.append(key)
            raise StoreUnavailable("no answer")

    sealed = await freeze(MemoryStore(run.store.objects, after=lose), run.keys, run.plan)
    assert len(lost) == 2
    assert await read_seal(run.store, run.keys, run.plan) == sealed


async def test_nothing_is_sealed_while_an_object_that_a_commit_names_is_gone_or_short() -> None:
    run = await make_run()
    first, second = run.commits["00000"].part, run.commits["00001"].part
    assert first is not None
    assert second is not None
    del run.store.objects.data[first.key]
    run.store.objects.data[second.key] = run.store.objects.data[second.key][:-1]
    with pytest.raises(VerifyFailed) as caught:
        await freeze(run.store, run.keys, run.plan)
    assert [first.key in caught.value.findings[0], second.key in caught.value.findings[1]] == [True, True]
    assert run.keys.seal() not in run.store.objects.data


@pytest.mark.parametrize("hidden", ["/parts/00000/", "/errors/", "/commits/00001", "/commits/00001.1"])
async def test_an_object_that_the_listing_does_not_show_yet_is_asked_for(hidden: str) -> None:
    run = await make_run(splits=(1,))

    class Lagging(MemoryStore):
        async def list(self, prefix: str):  # type: ignore[no-untyped-def]
            async for head in super().list(prefix):
                if hidden not in head.key:
                    yield head

    assert len((await freeze(Lagging(run.store.objects), run.keys, run.plan)).seal.nodes) == 4


async def test_a_damaged_seal_is_refused() -> None:
    run = await make_run()
    sealed = await freeze(run.store, run.keys, run.plan)
    key = run.keys.seal_object(sealed.digest)
    good = run.store.objects.data[key]
    run.store.objects.data[key] = good.replace(b'"rows":8', b'"rows":7')
    with pytest.raises(VerifyFailed, match="not the ones that it is named after"):
        await read_seal(run.store, run.keys, run.plan)
    del run.store.objects.data[key]
    with pytest.raises(VerifyFailed, match=r"seal\.json names is gone"):
        await read_seal(run.store, run.keys, run.plan)


async def test_a_seal_of_another_plan_is_refused() -> None:
    run = await make_run()
    await freeze(run.store, run.keys, run.plan)
    run.store.objects.data[run.keys.seal()] = encode(SealPointer(plan="cd" * 32, seal="00" * 32, at=AT))
    with pytest.raises(PlanMismatch, match="cdcdcdcd"):
        await freeze(run.store, run.keys, run.plan)


async def test_a_seal_that_does_not_partition_the_rows_says_which() -> None:
    run = await make_run()
    seal = (await freeze(run.store, run.keys, run.plan)).seal
    lacking = msgspec.structs.replace(seal, nodes=(seal.nodes[0], seal.nodes[2]))
    assert seal_problems(run.plan, lacking) == ["rows [3, 6) before shard 00002 are missing"]
    doubled = msgspec.structs.replace(seal, nodes=(seal.nodes[0], seal.nodes[0], *seal.nodes[1:]))
    assert any("doubled" in problem for problem in seal_problems(run.plan, doubled))
    short = msgspec.structs.replace(seal, nodes=seal.nodes[:2])
    assert seal_problems(run.plan, short) == ["rows from 6 on are missing"]
    swapped = msgspec.structs.replace(seal.nodes[0], commit=seal.nodes[1].commit)
    problems = seal_problems(run.plan, msgspec.structs.replace(seal, nodes=(swapped, *seal.nodes[1:])))
    assert "the commit of shard 00000 is that of shard 00001" in problems
    assert "the commit of shard 00000 was made from other input rows than the plan's" in problems
