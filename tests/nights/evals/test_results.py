"""Where results are, and how a person names one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from contract.errors import Damaged, UsageError
from contract.memory import MemoryStore, Objects
from contract.models import StoreMode
from nights.evals.results import Named, Results, result_id
from nights.evals.samples import EvalResult
from tests.nights.evals.worlds import result_of


async def filled(*results: EvalResult, prefix: str = "") -> Results:
    kept = Results(MemoryStore(), prefix)
    for one in results:
        await kept.put(one)
    return kept


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
@pytest.mark.parametrize("prefix", ["", "team/prod"])
async def test_a_result_comes_back_as_it_was(mode: StoreMode, prefix: str) -> None:
    made = result_of([[1, 0], [0, 0]], outcomes={1: "failed"})
    kept = Results(MemoryStore(mode=mode), prefix)
    key = await kept.put(made)
    assert key == f"{prefix + '/' if prefix else ''}evals/arithmetic/results/{made.header.result}.jsonl.zst"
    assert await kept.get("arithmetic", made.header.result) == made
    assert await kept.header("arithmetic", made.header.result) == made.header


async def test_a_result_is_never_replaced_by_another() -> None:
    made = result_of([1, 0])
    kept = await filled(made, made)
    with pytest.raises(UsageError, match="another result has this id"):
        await kept.put(replace_samples(made, result_of([0, 0])))
    assert await kept.get("arithmetic", made.header.result) == made


def replace_samples(result: EvalResult, other: EvalResult) -> EvalResult:
    return EvalResult(result.header, other.samples)


@pytest.mark.parametrize("result", ["../x", "latest", "20261130", ""])
async def test_an_id_that_would_not_sort_by_time_is_refused(result: str) -> None:
    made = result_of([1, 0])
    with pytest.raises(UsageError, match="is no result id"):
        await filled(EvalResult(replace(made.header, result=result), made.samples))


@pytest.mark.parametrize("suite", ["a/b", "..", "", "A", "x" * 65])
async def test_a_suite_whose_name_is_no_folder_is_refused(suite: str) -> None:
    with pytest.raises(UsageError, match="is no name of a suite"):
        await filled(result_of([1], suite=suite))


async def test_a_result_without_samples_is_refused() -> None:
    with pytest.raises(UsageError, match="has no samples"):
        await filled(result_of([]))


def test_ids_sort_as_their_times_and_are_the_same_for_the_same_run() -> None:
    first, second = datetime(2026, 9, 30, 23, 59, 59, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)
    assert result_id(first, "z") < result_id(second, "a")
    assert result_id(first, "s3://b/runs/r") == result_id(first, "s3://b/runs/r") != result_id(first, "s3://b/runs/s")


async def test_headers_come_in_the_order_of_time_and_fetch_no_more_than_asked() -> None:
    nights = [result_of([1, 0], night=number) for number in (3, 1, 2)]
    kept = await filled(*nights)
    assert [one.at.day for one in await kept.headers("arithmetic")] == [1, 2, 3]
    read: list[str] = []

    async def hook(op: str, key: str) -> None:
        if op in ("read", "get"):
            read.append(key)

    store = kept.store
    assert isinstance(store, MemoryStore)
    store.hook = hook
    assert [one.at.day for one in await kept.headers("arithmetic", last=2)] == [2, 3]
    assert len(read) == 2


async def test_a_result_is_found_by_id_by_its_beginning_by_age_and_with_its_suite() -> None:
    old, new = result_of([1], night=0), result_of([1], night=1)
    other = result_of([1], suite="code", night=5)
    kept = await filled(old, new, other)
    a, b = old.header.result, new.header.result
    assert await kept.find(a) == Named("arithmetic", a, a)
    assert await kept.find(a[:8]) == Named("arithmetic", a[:8], a)
    assert await kept.find("arithmetic") == Named("arithmetic", "latest", b)
    assert await kept.find("arithmetic/latest") == Named("arithmetic", "latest", b)
    assert await kept.find("latest", suite="arithmetic") == Named("arithmetic", "latest", b)
    assert await kept.find("previous") == Named("arithmetic", "previous", a)  # only one suite has two


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("latest", "2 suites have a result that is called so"),
        ("lates", "Did you mean latest"),
        ("arithmatic", "Did you mean arithmetic"),
        ("arithmatic/latest", "Did you mean arithmetic"),
        ("code/previous", "no suite has two results"),
        ("arithmetic/20261130T021500Z-ffffffff", "Did you mean .*20261130T021500Z-"),
        ("arithmetic/2026", "no result or baseline 2026"),
        ("arithmetic/202611", "no result or baseline"),
        ("arithmetic/", "without a name"),
        ("../../x", "there is no suite ../.. with results"),
    ],
)
async def test_a_name_that_means_nothing_says_what_there_is(text: str, said: str) -> None:
    kept = await filled(result_of([1]), result_of([1], night=1), result_of([1], suite="code"))
    with pytest.raises(UsageError, match=said):
        await kept.find(text)


async def test_two_results_that_begin_alike_are_told_apart() -> None:
    one = result_of([1])
    kept = await filled(one, EvalResult(replace(one.header, result="20261130T031500Z-abcd"), one.samples))
    with pytest.raises(UsageError, match="2 results begin so"):
        await kept.find("arithmetic/20261130")


async def test_where_there_are_no_results_that_is_what_is_said() -> None:
    with pytest.raises(UsageError, match="there are no results of evaluations"):
        await Results(MemoryStore()).find("latest")


@pytest.mark.parametrize("cut", [0, 20])
async def test_a_damaged_result_is_the_stores_fault_and_names_the_object(cut: int) -> None:
    made = result_of([1, 0])
    objects = Objects()
    kept = Results(MemoryStore(objects))
    key = await kept.put(made)
    objects.data[key] = objects.data[key][:cut]
    for read in (kept.get, kept.header):
        with pytest.raises(Damaged, match=f"s3://memory/{key}: this result of an evaluation is damaged"):
            await read("arithmetic", made.header.result)


async def test_other_objects_beside_the_results_are_no_results() -> None:
    kept = await filled(result_of([1]))
    for key in ("evals/arithmetic/results/notes.txt", "evals/arithmetic/results/x.jsonl.zst", "evals/README", "evals/a/b/c/d.json"):
        await kept.store.put(key, b"x")
    assert list(await kept.suites()) == ["arithmetic"]
    assert len((await kept.names("arithmetic")).results) == 1
