# tests/pipelines: a dataset becomes a run: identities, uploads, reading in place, a second run of the same command.
from __future__ import annotations

import asyncio
import csv
import datetime
import gc
import gzip
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contract.errors import AccessDenied, DatasetError, PlanMismatch, StoreUnavailable, UsageError
from contract.lines import decompress_lines
from contract.memory import MemoryStore, Objects
from contract.models import Plan, RowOptions, StoreMode, decode
from contract.store import Store
from pipelines.plan import PlanEvent, PlannedRun, PlanRequest, compare, plan_run
from pipelines.prices import Past, observed
from tests.pipelines.planning import EMBED, GENERATE, House, chat_line, embed_line, stack_of, write_jsonl, zstd


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "reviews.jsonl", [embed_line(f"r{i}", f"Review number {i}.") for i in range(1000)])


async def test_every_row_of_the_file_is_in_an_input_object_byte_for_byte(house: House, batch: Path) -> None:
    planned = await house.plan(batch)
    assert house.lines(planned.plan) == batch.read_bytes().splitlines()
    assert planned.plan.dataset.rows == 1000
    assert len(planned.plan.shards) > 1


async def test_the_plan_is_stored_once_and_last(house: House, batch: Path) -> None:
    order: list[str] = []

    async def saw(op: str, key: str) -> None:
        if op.startswith("put") and "/probe/" not in key:
            order.append(key)

    store = house.store()
    store.after = saw
    request = PlanRequest(dataset=(str(batch),), task="embed", model="minilm")
    planned = await plan_run(request, house.stack, store, house.store())
    assert order[-1] == planned.uri.keys.plan()
    assert order.count(planned.uri.keys.plan()) == 1
    assert decode(house.objects.data[planned.uri.keys.plan()], Plan, where="plan") == planned.plan


async def test_the_same_command_finds_its_run_and_sends_nothing_again(house: House, batch: Path) -> None:
    first = await house.plan(batch)
    writes = dict(house.objects.writes)
    second = await house.plan(batch)
    assert second.existing
    assert not first.existing
    assert second.plan == first.plan
    assert {k: v for k, v in house.objects.writes.items() if "/probe/" not in k} == {k: v for k, v in writes.items() if "/probe/" not in k}


async def test_the_run_id_says_what_it_is_and_ends_in_the_plan_id(house: House, batch: Path) -> None:
    planned = await house.plan(batch)
    assert planned.plan.run_id == f"reviews-embed-{planned.plan.plan_id[:8]}"
    assert str(planned.uri) == planned.plan.run == f"s3://memory/runs/{planned.plan.run_id}"


async def test_again_makes_another_run_of_the_same_plan(house: House, batch: Path) -> None:
    first = await house.plan(batch)
    second = await house.plan(batch, again="tuesday")
    assert not second.existing
    assert second.plan.plan_id == first.plan.plan_id
    assert second.plan.run_id == f"reviews-embed-tuesday-{first.plan.plan_id[:8]}"


async def test_pace_prices_and_history_change_no_identity(house: House, batch: Path) -> None:
    base = (await house.plan(batch, dry_run=True)).plan
    dear = msgspec.structs.replace(EMBED, usd_per_second=1.0, workers_max=60, cold_start_s=5.0, execution_timeout_s=3600.0)
    house.stack = stack_of(dear)
    speed = observed([Past(1, 5_000_000, 0, 1.0)], 2)
    other = (await house.plan(batch, dry_run=True, pace=7, budget_usd=3.0, throughput=speed, out="x.jsonl")).plan
    assert other.plan_id == base.plan_id
    assert [s.source for s in other.shards] == [s.source for s in base.shards]
    assert other.estimate != base.estimate


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"dimensions": 5}},
        {"revision": "abc"},
        {"rows": RowOptions(limit=100)},
        {"rows_per_shard": 50},
    ],
)
async def test_another_task_or_another_cut_is_another_plan(house: House, batch: Path, change: dict[str, Any]) -> None:
    base = await house.plan(batch, dry_run=True)
    other = await house.plan(batch, dry_run=True, **change)
    assert other.plan.plan_id != base.plan.plan_id
    assert compare(base.plan, other.plan)


async def test_one_altered_row_is_another_plan_and_compare_says_so(house: House, batch: Path) -> None:
    base = (await house.plan(batch, dry_run=True)).plan
    batch.write_bytes(batch.read_bytes().replace(b"number 7.", b"number 8."))
    other = (await house.plan(batch, dry_run=True)).plan
    assert compare(base, other) == ("The dataset's 1,000 rows are not the same ones as in the plan.",)


async def test_compare_names_what_changed(house: House, batch: Path) -> None:
    base = (await house.plan(batch, dry_run=True)).plan
    other = (await house.plan(batch, dry_run=True, params={"dimensions": 64}, revision="v2", rows=RowOptions(limit=10))).plan
    text = " ".join(compare(base, other))
    assert "1,000 rows in the plan, and has 10 now" in text
    assert "--limit was None in the plan, and is 10 now" in text
    assert "Parameter `dimensions`" in text
    assert "revision" in text
    assert compare(base, base) == ()


async def test_a_dry_run_sends_nothing(house: House, batch: Path) -> None:
    planned = await house.plan(batch, dry_run=True)
    assert [key for key in house.keys("") if "/probe/" not in key] == []
    assert not planned.existing
    stored = await house.plan(batch)
    assert stored.plan.plan_id == planned.plan.plan_id


async def test_a_plan_of_another_run_under_the_same_key_is_reported(house: House, batch: Path) -> None:
    first = await house.plan(batch)
    other = msgspec.structs.replace(first.plan, plan_id="f" * 64)
    house.objects.data[first.uri.keys.plan()] = msgspec.json.encode(other)
    with pytest.raises(PlanMismatch, match="has another plan"):
        await house.plan(batch)


async def test_two_clients_that_plan_at_once_end_with_one_plan(house: House, batch: Path) -> None:
    rival = await House().plan(batch)

    async def before(op: str, key: str) -> None:
        if op == "put_if_absent" and key == rival.uri.keys.plan():
            house.objects.data[key] = msgspec.json.encode(rival.plan)

    store = house.store()
    store.hook = before
    planned = await plan_run(PlanRequest(dataset=(str(batch),), task="embed", model="minilm"), house.stack, store, house.store())
    assert planned.plan.created_at == rival.plan.created_at
    assert planned.plan.plan_id == rival.plan.plan_id


@pytest.mark.parametrize("dialect", ["conditional", "last-writer"])
async def test_the_stores_kind_is_proven_and_pinned(batch: Path, dialect: StoreMode) -> None:
    house = House(dialect=dialect)
    planned = await house.plan(batch)
    assert planned.plan.store.mode == dialect


async def test_the_stores_kind_is_proven_with_the_workers_credentials(house: House, batch: Path) -> None:
    async def refuse(op: str, key: str) -> None:
        raise AccessDenied("refused")

    worker = house.store()
    worker.hook = refuse
    with pytest.raises(AccessDenied):
        await plan_run(PlanRequest(dataset=(str(batch),), task="embed", model="minilm"), house.stack, house.store(), worker)


async def test_a_file_that_changes_between_the_two_readings_is_refused(house: House, batch: Path) -> None:
    def change(event: PlanEvent) -> None:
        if event.step == "upload" and event.done == 0:
            batch.write_bytes(batch.read_bytes().replace(b"number 7.", b"number 8."))

    with pytest.raises(DatasetError, match="changed while it was planned"):
        await house.plan(batch, events=change)
    assert not any(key.endswith("plan.json") for key in house.objects.data)


async def test_a_file_that_shrinks_between_the_two_readings_is_refused(house: House, batch: Path) -> None:
    def cut(event: PlanEvent) -> None:
        if event.step == "upload" and event.done == 0:
            batch.write_bytes(b"\n".join(batch.read_bytes().splitlines()[:3]))

    with pytest.raises(DatasetError, match="changed while it was planned"):
        await house.plan(batch, events=cut)


async def test_a_store_that_fails_ends_the_planning_without_a_plan(house: House, batch: Path) -> None:
    async def fail(op: str, key: str) -> None:
        if op == "put" and "/input/00003" in key:
            raise StoreUnavailable("gone")

    store = house.store()
    store.hook = fail
    with pytest.raises(StoreUnavailable):
        await plan_run(
            PlanRequest(dataset=(str(batch),), task="embed", model="minilm", rows_per_shard=20), house.stack, store, house.store()
        )
    assert not any(key.endswith("plan.json") for key in house.objects.data)
    assert (await house.plan(batch)).plan.dataset.rows == 1000


# --- in place ------------------------------------------------------------------------------------------------------------------------


async def test_plain_batch_lines_in_the_stacks_bucket_are_read_in_place(house: House, batch: Path) -> None:
    house.objects.data["data/reviews.jsonl"] = batch.read_bytes()
    planned = await house.plan("s3://memory/data/reviews.jsonl")
    assert all(s.source.uri == "s3://memory/data/reviews.jsonl" for s in planned.plan.shards)
    assert house.keys(f"runs/{planned.plan.run_id}/") == [planned.uri.keys.plan()]
    assert house.lines(planned.plan) == batch.read_bytes().splitlines()


async def test_in_place_and_copied_rows_are_the_same_plan(house: House, batch: Path) -> None:
    house.objects.data["data/reviews.jsonl"] = batch.read_bytes()
    assert (await house.plan("s3://memory/data/reviews.jsonl")).plan.plan_id == (await House().plan(batch)).plan.plan_id


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("crlf", lambda d: d.replace(b"\n", b"\r\n")),
        ("spaces around a row", lambda d: d.replace(b"\n", b" \n", 1)),
        ("a line of spaces", lambda d: d.replace(b"\n", b"\n  \n", 1)),
    ],
)
async def test_lines_that_the_worker_would_read_otherwise_are_copied(house: House, batch: Path, name: str, damage: Any) -> None:
    house.objects.data["data/reviews.jsonl"] = damage(batch.read_bytes())
    planned = await house.plan("s3://memory/data/reviews.jsonl")
    assert all("/input/" in s.source.uri for s in planned.plan.shards), name
    assert len(house.lines(planned.plan)) == 1000


async def test_a_mark_blank_lines_and_a_missing_last_newline_do_not_hinder_reading_in_place(house: House, batch: Path) -> None:
    house.objects.data["data/reviews.jsonl"] = b"\xef\xbb\xbf" + batch.read_bytes().replace(b"\n", b"\n\n", 5).rstrip(b"\n")
    planned = await house.plan("s3://memory/data/reviews.jsonl")
    assert planned.plan.shards[0].source.bytes is not None
    assert house.lines(planned.plan) == batch.read_bytes().splitlines()


async def test_shards_read_in_place_never_span_two_files(house: House) -> None:
    files = {f"data/{n}.jsonl": [embed_line(f"{n}-{i}") for i in range(300)] for n in "abc"}
    for key, rows in files.items():
        house.objects.data[key] = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    planned = await house.plan("s3://memory/data/")
    assert {s.source.uri for s in planned.plan.shards} == {f"s3://memory/{key}" for key in files}
    assert [json.loads(line)["custom_id"] for line in house.lines(planned.plan)] == [
        r["custom_id"] for rows in files.values() for r in rows
    ]


@pytest.mark.parametrize("key", ["data/a b.jsonl", "data/a+b#1.jsonl", "data/é.jsonl", "data/50%.jsonl"])
async def test_a_key_that_readers_may_read_differently_is_copied(house: House, batch: Path, key: str) -> None:
    house.objects.data[key] = batch.read_bytes()
    planned = await house.plan(f"s3://memory/{key}")
    assert "/input/" in planned.plan.shards[0].source.uri
    assert len(house.lines(planned.plan)) == 1000


async def test_a_dataset_in_another_bucket_is_copied(house: House, batch: Path) -> None:
    house.buckets["elsewhere"] = Objects({"x/reviews.jsonl": batch.read_bytes()})
    planned = await house.plan("s3://elsewhere/x/reviews.jsonl")
    assert "/input/" in planned.plan.shards[0].source.uri
    assert house.lines(planned.plan) == batch.read_bytes().splitlines()


async def test_tables_in_a_bucket_are_read_where_they_are(house: House, tmp_path: Path) -> None:
    table = pa.table({"text": [f"text {i}" for i in range(5000)], "n": range(5000)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
    house.objects.data["data/t.parquet"] = (tmp_path / "t.parquet").read_bytes()
    planned = await house.plan("s3://memory/data/t.parquet")
    assert columns_of(house, planned).equals(table)
    assert planned.plan.plan_id == (await House().plan(tmp_path / "t.parquet")).plan.plan_id


async def test_a_stream_that_an_error_leaves_open_blocks_nobody(house: House) -> None:
    house.objects.data["data/t.csv"] = b"id,id\na,b\n" * 200_000
    for _ in range(3):
        with pytest.raises(DatasetError, match="called `id`") as caught:
            await asyncio.wait_for(house.plan("s3://memory/data/t.csv"), 30)
        del caught
        gc.collect()  # drops the stream on the loop's own thread


async def test_a_bucket_that_fails_in_the_middle_of_a_file_ends_the_planning(house: House, batch: Path) -> None:
    class Failing(MemoryStore):
        async def read(self, key: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
            async for chunk in super().read(key, start, stop):
                yield chunk[:1000]
                if stop is None:
                    raise StoreUnavailable("broke off")

    house.buckets["elsewhere"] = Objects({"t.jsonl": batch.read_bytes()})
    request = PlanRequest(dataset=("s3://elsewhere/t.jsonl",), task="embed", model="minilm")
    with pytest.raises(StoreUnavailable):
        await plan_run(
            request, house.stack, house.store(), house.store(), open_bucket=lambda name: Failing(house.buckets[name], bucket=name)
        )
    assert house.objects.data == {}


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
async def test_compressed_objects_are_copied(house: House, batch: Path, name: str) -> None:
    data = batch.read_bytes()
    house.objects.data[f"data/{name}"] = gzip.compress(data) if name.endswith("gz") else zstd(data)
    planned = await house.plan(f"s3://memory/data/{name}")
    assert "/input/" in planned.plan.shards[0].source.uri
    assert house.lines(planned.plan) == data.splitlines()


# --- tables --------------------------------------------------------------------------------------------------------------------------


def columns_of(house: House, planned: PlannedRun) -> pa.Table:
    """The stored columns of all shards, proven to belong to them."""
    tables = []
    for shard in planned.plan.shards:
        assert shard.columns is not None
        data = house.objects.data[shard.columns.key]
        assert len(data) == shard.columns.size
        table = pq.read_table(io.BytesIO(data))
        assert table.num_rows == shard.source.count
        tables.append(table.replace_schema_metadata())
    return pa.concat_tables(tables)


async def test_json_columns_are_kept_as_a_table(house: House, tmp_path: Path) -> None:
    rows = [
        {"text": f"t{i}", "n": i, "score": i if i % 2 else i + 0.5, "ok": i % 3 == 0, "none": None, "mixed": i if i else "a",
         "deep": {"a": [i]}, "late": None if i < 390 else "x", "big": i << 60}
        for i in range(400)
    ]  # fmt: skip
    planned = await house.plan(write_jsonl(tmp_path / "t.jsonl", rows))
    table: Any = columns_of(house, planned)
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types == {
        "text": "string", "n": "int64", "score": "double", "ok": "bool", "none": "string", "mixed": "string", "deep": "string",
        "late": "string", "big": "string",
    }  # fmt: skip
    assert table["n"].to_pylist() == list(range(400))
    assert table["score"].to_pylist() == [row["score"] for row in rows]
    assert [json.loads(v) for v in table["deep"].to_pylist()] == [row["deep"] for row in rows]
    assert [json.loads(v) for v in table["mixed"].to_pylist()] == [row["mixed"] for row in rows]
    assert [json.loads(v) for v in table["big"].to_pylist()] == [row["big"] for row in rows]
    assert table["late"].to_pylist()[385:395] == [None] * 5 + ["x"] * 5


async def test_parquet_columns_keep_their_types(house: House, tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array([f"text {i}" for i in range(300)], pa.large_string()),
            "kind": pa.array(["a", "b", None] * 100).dictionary_encode(),
            "when": pa.array([datetime.datetime(2026, 1, 1)] * 300, pa.timestamp("ns")),
            "parts": pa.array([[{"x": 1, "y": "z"}]] * 300, pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]))),
            "empty": pa.nulls(300),
            "raw": pa.array([b"\x00\xff"] * 300),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=70)
    planned = await house.plan(tmp_path / "t.parquet")
    kept = columns_of(house, planned)
    assert kept.schema.field("kind").type == pa.string()
    assert kept["kind"].to_pylist() == table["kind"].to_pylist()
    assert kept.drop(["kind"]).equals(table.drop(["kind"]))
    assert [json.loads(line)["body"] for line in house.lines(planned.plan)] == [{"input": f"text {i}"} for i in range(300)]


async def test_parquet_files_with_another_order_of_columns_are_one_table(house: House, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "n": pa.array([1], pa.int32())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": pa.array([2], pa.int64()), "more": ["m"], "text": ["b"]}), tmp_path / "2.parquet")
    planned = await house.plan(tmp_path)
    assert columns_of(house, planned).to_pylist() == [{"text": "a", "n": 1, "more": None}, {"text": "b", "n": 2, "more": "m"}]


async def test_skipped_parquet_rows_are_not_in_the_columns(house: House, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "c", " ", "e"], "n": [0, 1, 2, 3, 4]}), tmp_path / "t.parquet")
    planned = await house.plan(tmp_path / "t.parquet", rows=RowOptions(on_bad_row="skip"))
    assert columns_of(house, planned)["n"].to_pylist() == [0, 2, 4]
    assert planned.plan.dataset.skipped == 2


async def test_csv_columns_are_text(house: House, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "stars"])
        writer.writerows([[f"r{i}", f"line one\nline {i}", i] for i in range(10)])
    planned = await house.plan(path, rows=RowOptions(id_column="id"))
    assert columns_of(house, planned).to_pylist()[3] == {"id": "r3", "text": "line one\nline 3", "stars": "3"}


async def test_records_with_too_many_fields_are_kept_as_json(house: House, tmp_path: Path) -> None:
    rows = [{"text": "t", f"f{i}": i} for i in range(1500)]
    planned = await house.plan(write_jsonl(tmp_path / "t.jsonl", rows))
    table: Any = columns_of(house, planned)
    assert table.column_names == ["record"]
    assert [json.loads(v) for v in table["record"].to_pylist()] == rows


async def test_batch_lines_have_no_columns(house: House, batch: Path) -> None:
    planned = await house.plan(batch)
    assert all(s.columns is None for s in planned.plan.shards)
    assert house.keys(f"runs/{planned.plan.run_id}/columns") == []


async def test_changed_columns_that_rows_do_not_use_are_found_at_the_second_run(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"id": "a", "text": "x", "stars": 1}])
    await house.plan(path, rows=RowOptions(id_column="id"))
    assert (await house.plan(path, rows=RowOptions(id_column="id"))).existing
    write_jsonl(path, [{"id": "a", "text": "x", "stars": 2}])
    with pytest.raises(PlanMismatch, match="other columns"):
        await house.plan(path, rows=RowOptions(id_column="id"))
    assert not (await house.plan(path, rows=RowOptions(id_column="id"), again="two")).existing


async def test_a_run_that_kept_no_columns_cannot_become_a_table(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"text": "x"}])
    await house.plan(path, keep_columns=False, out="o.jsonl")
    assert (await house.plan(path, out="o.jsonl")).existing
    with pytest.raises(PlanMismatch, match="without keeping the original columns"):
        await house.plan(path, out="o.parquet")


# --- bad rows, limit, notices --------------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_when_a_row_is_bad(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line("a"), {"custom_id": "b"}, embed_line("c", " ")])
    with pytest.raises(DatasetError) as caught:
        await house.plan(path)
    assert [(row.line, row.code) for row in caught.value.bad_rows] == [(2, "missing_body"), (3, "empty_text")]
    assert house.objects.data == {}


async def test_skipped_rows_are_an_object_of_the_run(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line("a"), {"custom_id": "b"}, embed_line("c"), embed_line("a"), [1]])
    planned = await house.plan(path, rows=RowOptions(on_bad_row="skip"))
    assert (planned.plan.dataset.rows, planned.plan.dataset.skipped) == (2, 3)
    reference = planned.plan.dataset.skipped_object
    assert reference is not None
    lines = [json.loads(line) for line in decompress_lines(house.objects.data[reference.key], where="skipped")]
    assert [(line["line"], line["code"], line["id"]) for line in lines] == [
        (2, "missing_body", "b"), (4, "duplicate_id", "a"), (5, "not_object", None)
    ]  # fmt: skip
    assert [json.loads(line)["custom_id"] for line in house.lines(planned.plan)] == ["a", "c"]
    assert any("3 bad rows are left out" in notice for notice in planned.notices)


async def test_a_limit_plans_the_first_rows_and_prices_them_all(house: House, batch: Path) -> None:
    planned = await house.plan(batch, rows=RowOptions(limit=50))
    assert house.lines(planned.plan) == batch.read_bytes().splitlines()[:50]
    assert planned.rest_rows == 950
    assert planned.whole is not None
    assert planned.whole.tokens_in == pytest.approx(20 * planned.plan.estimate.tokens_in, rel=0.05)
    assert any("trial of 50 rows of 1,000" in notice for notice in planned.notices)


async def test_a_trial_lists_only_its_own_skipped_rows(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line("a"), [1], embed_line("b"), embed_line("c"), [2], [3]])
    planned = await house.plan(path, rows=RowOptions(limit=2, on_bad_row="skip"))
    reference = planned.plan.dataset.skipped_object
    assert reference is not None
    lines = [json.loads(line) for line in decompress_lines(house.objects.data[reference.key], where="skipped")]
    assert [line["line"] for line in lines] == [2]
    assert planned.plan.dataset.skipped == 1
    assert any("2 more bad rows follow" in notice for notice in planned.notices)


async def test_a_bad_row_after_the_limit_is_found_before_the_trial_is_paid(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line("a"), embed_line("b"), {"custom_id": "c"}])
    with pytest.raises(DatasetError):
        await house.plan(path, rows=RowOptions(limit=1))


async def test_a_limit_larger_than_the_dataset_is_no_trial(house: House, batch: Path) -> None:
    planned = await house.plan(batch, rows=RowOptions(limit=5000))
    assert (planned.whole, planned.rest_rows, planned.plan.dataset.rows) == (None, 0, 1000)


async def test_the_name_of_a_hosted_model_travels_along_and_the_plan_says_which_model_answers(house: House, tmp_path: Path) -> None:
    rows = [chat_line(f"r{i}", model="gpt-4o-mini", max_tokens=9) for i in range(3)] + [chat_line("own", model="SmolLM2-135M-Instruct")]
    planned = await house.plan(write_jsonl(tmp_path / "t.jsonl", rows), task="generate")
    assert any("'gpt-4o-mini' (3)" in notice for notice in planned.notices)
    assert [json.loads(line) for line in house.lines(planned.plan)] == rows
    assert planned.plan.task.model == "SmolLM2-135M-Instruct"


async def test_rows_without_an_output_limit_are_counted_and_said(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [chat_line("a"), chat_line("b"), chat_line("c", max_tokens=9)])
    open_ended = await house.plan(path, task="generate", dry_run=True)
    assert [n for n in open_ended.notices if "set no output limit" in n and n.startswith("2 rows") and "--max-tokens" in n]
    limited = await house.plan(path, task="generate", params={"max_tokens": 64}, dry_run=True)
    assert not [n for n in limited.notices if "set no output limit" in n]
    assert open_ended.plan.estimate.usd.high > limited.plan.estimate.usd.high


async def test_parameters_that_rows_set_themselves_are_said_to_change_nothing(house: House, tmp_path: Path) -> None:
    rows = [chat_line(f"r{i}", max_completion_tokens=9, temperature=None) for i in range(3)] + [chat_line("own")]
    params = {"max_tokens": 8, "temperature": 0, "top_p": 0.5}
    planned = await house.plan(write_jsonl(tmp_path / "t.jsonl", rows), task="generate", params=params, dry_run=True)
    said = [notice for notice in planned.notices if "themselves" in notice]
    assert said == ["3 rows set max_completion_tokens themselves; max_tokens=8 of this command does not change them."]


async def test_a_column_that_a_result_column_pushes_aside_is_said_before_it_is_paid(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"id": "a", "text": "x", "tokens": 3}])
    planned = await house.plan(path, dry_run=True)
    said = [notice for notice in planned.notices if "in the output" in notice]
    assert [notice[: notice.index(",")] for notice in said] == [
        "column `id` will be `input_id` in the output", "column `tokens` will be `input_tokens` in the output"
    ]  # fmt: skip
    kept = await house.plan(path, rows=RowOptions(id_column="id"), dry_run=True)
    assert len([notice for notice in kept.notices if "in the output" in notice]) == 1
    lines = await house.plan(path, out="o.jsonl", dry_run=True)
    assert not [notice for notice in lines.notices if "in the output" in notice]


async def test_the_plan_names_the_model_that_the_endpoint_serves(house: House, batch: Path) -> None:
    planned = await house.plan(batch, model="minilm")
    assert planned.plan.task.model == EMBED.model
    assert planned.plan.infra.endpoint == "minilm"


async def test_an_unknown_model_lists_what_there_is(house: House, batch: Path) -> None:
    with pytest.raises(UsageError, match="smollm2"):
        await house.plan(batch, model="bert")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"again": "Not A Name"}, "not a name"),
        ({"rows": RowOptions(limit=0)}, "--limit"),
        ({"pace": 0}, "--pace"),
        ({"out": "x.txt"}, ".jsonl or .parquet"),
        ({"params": {"encoding_format": object()}}, "JSON"),
        ({"params": {"nonsense": 1}}, "not a parameter"),
        ({"params": {"dimensions": "abc"}}, "whole number"),
    ],
)
async def test_a_request_that_makes_no_sense_gets_one_sentence(house: House, batch: Path, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        await house.plan(batch, **more)


async def test_the_prefix_of_the_store_is_kept(batch: Path) -> None:
    house = House(stack=stack_of(prefix="team/nightly"))
    planned = await house.plan(batch)
    assert planned.plan.run.startswith("s3://memory/team/nightly/runs/reviews-embed-")


@pytest.mark.parametrize(
    ("name", "slug"),
    [("a+b = c#1%/é.jsonl", "dataset"), ("My Reviews (2).jsonl.gz", "my-reviews-2"), ("x.y.z.csv", "x-y-z"), ("é" * 90 + "z.jsonl", "z")],
)
async def test_run_ids_hold_small_letters_digits_and_hyphens(house: House, tmp_path: Path, name: str, slug: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    data = b"id,text\na,hello\n" if name.endswith("csv") else json.dumps(embed_line("a")).encode()
    path.write_bytes(data)
    planned = await house.plan(path)
    assert planned.plan.run_id == f"{slug}-embed-{planned.plan.plan_id[:8]}"


async def test_progress_is_told_from_start_to_end(house: House, batch: Path) -> None:
    events: list[PlanEvent] = []
    planned = await house.plan(batch, events=events.append)
    assert events[0] == PlanEvent("check", 0, batch.stat().st_size)
    assert events[-1] == PlanEvent("upload", len(planned.plan.shards), len(planned.plan.shards))


async def test_a_plan_holds_no_secret(house: House, batch: Path) -> None:
    planned = await house.plan(batch)
    data = house.objects.data[planned.uri.keys.plan()].decode()
    assert not [secret for secret in house.stack.secrets.values if secret in data]


async def test_a_cancelled_planning_stops_its_thread(house: House, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [embed_line(f"r{i}") for i in range(2000)])
    begun = asyncio.Event()
    release = asyncio.Event()

    async def hold(op: str, key: str) -> None:
        if op == "put" and "/input/" in key:
            begun.set()
            await release.wait()

    store: Store = house.store()
    store.hook = hold  # type: ignore[attr-defined]
    request = PlanRequest(dataset=(str(path),), task="embed", model="minilm", rows_per_shard=10)
    task = asyncio.ensure_future(plan_run(request, house.stack, store, house.store()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(key.endswith("plan.json") for key in house.objects.data)
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 10)  # joins the reading thread


def test_generate_and_embed_endpoints_are_told_apart() -> None:
    assert stack_of().facts.endpoint_for("smollm2", "generate") == GENERATE


@pytest.mark.parametrize("out", ["reviews.jsonl", "./sub/../reviews.jsonl", "link.jsonl", "s3://memory/data/a.jsonl"])
async def test_an_output_over_the_dataset_is_refused_before_anything_is_paid(
    house: House, batch: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(batch.parent)
    Path("sub").mkdir()
    Path("link.jsonl").symlink_to(batch)
    before = batch.read_bytes()
    await house.store().put("data/a.jsonl", before)
    with pytest.raises(UsageError, match="would be replaced"):
        await house.plan(batch if not out.startswith("s3") else "s3://memory/data/a.jsonl", out=out)
    assert batch.read_bytes() == before
    assert not [key for key in house.objects.data if key.startswith("runs/")]


async def test_an_output_in_the_datasets_own_folder_is_refused(house: House, batch: Path) -> None:
    folder = batch.parent / "rows"
    folder.mkdir()
    batch.rename(folder / "a.jsonl")
    with pytest.raises(UsageError, match="read as data the next time"):
        await house.plan(folder, out=str(folder / "answers.jsonl"))
    assert (await house.plan(folder, out=str(batch.parent / "answers.jsonl"))).plan.dataset.rows
