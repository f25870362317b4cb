# tests/pipelines: from committed parts to output files.
from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import NotAsWanted, UsageError, VerifyFailed
from contract.memory import MemoryStore
from contract.models import decode, encode
from contract.rows import ShardDigest
from pipelines.collect import collect
from pipelines.outputs import METADATA_KEY, OutputFacts, read_line_id
from tests.pipelines.runs import Row, Run, make_row, make_run, put_leaf

COLUMNS = pa.table({"question": [f"q{i}" for i in range(8)], "score": [float("nan"), *range(7)], "tags": [[i] for i in range(8)]})
SKIPPED = [{"file": "rows.jsonl", "line": 9, "code": "not_json", "reason": "not JSON", "id": None}]


async def collected(run: Run, out: Path, **options: Any) -> Any:
    return await collect(run.store, run.keys, run.plan, str(out), **options)


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


async def test_generate_comes_out_as_openai_batch_lines_in_input_order(tmp_path: Path) -> None:
    run = await make_run("generate", shuffle=5, splits=(0,), skipped=SKIPPED)
    result = await collected(run, tmp_path / "answers.jsonl")
    lines = json_lines(tmp_path / "answers.jsonl")
    good = [row for row in run.rows if row.ok]
    assert [line["custom_id"] for line in lines] == [row.id for row in good]
    assert all(set(line) == {"id", "custom_id", "response", "error"} and line["error"] is None for line in lines)
    assert [line["response"]["body"] for line in lines] == [json.loads(row.output) for row in good]
    assert {line["response"]["status_code"] for line in lines} == {200}
    errors = json_lines(tmp_path / "answers.errors.jsonl")
    assert [line["custom_id"] for line in errors] == ["row-2", "row-6", None]
    assert errors[0]["response"] is None
    assert errors[0]["error"] == {"code": "code_0", "message": "row 2 is bad"}
    assert errors[2]["error"] == {"code": "not_json", "message": "not JSON", "file": "rows.jsonl", "line": 9}
    assert (result.ok, result.failed, result.skipped, result.rows) == (6, 2, 1, 8)
    assert [(f.code, f.rows, f.example_id) for f in result.failures] == [("code_0", 2, "row-2")]


async def test_the_shard_digest_comes_out_of_the_files_alone(tmp_path: Path) -> None:
    run = await make_run("generate", cuts=())
    await collected(run, tmp_path / "answers.jsonl")
    digest = ShardDigest()
    for name, field in (("answers.jsonl", b'"body":'), ("answers.errors.jsonl", b'"error":')):
        for line in (tmp_path / name).read_bytes().split(b"\n")[:-1]:
            known = read_line_id(json.loads(line)["id"])
            assert known is not None
            if field == b'"body":':
                digest.add(*known, True, line.split(field, 1)[1].removesuffix(b'},"error":null}'))
            else:
                digest.add(*known, False, line.split(field, 1)[1].removesuffix(b"}"))
    assert digest.hexdigest() == run.commits["00000"].digest


async def test_embeddings_come_out_as_a_table_with_the_original_columns(tmp_path: Path) -> None:
    run = await make_run("embed", shuffle=1, splits=(1,), columns=COLUMNS)
    await collected(run, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    good = [row for row in run.rows if row.ok]
    assert table.column_names == ["id", "question", "score", "tags", "embedding", "tokens", "row_index", "row_digest"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 4)
    assert table["id"].to_pylist() == [row.id for row in good]
    assert table["question"].to_pylist() == [f"q{row.index}" for row in good]
    assert table["tags"].to_pylist() == [[row.index] for row in good]
    assert [np.asarray(v, dtype="<f4").tobytes() for v in table["embedding"].to_pylist()] == [row.output for row in good]
    assert table["row_digest"].to_pylist() == [row.digest for row in good]


async def test_generate_comes_out_as_a_table_with_text_and_exact_response(tmp_path: Path) -> None:
    run = await make_run("generate", columns=COLUMNS)
    await collected(run, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    good = [row for row in run.rows if row.ok]
    assert table["output"].to_pylist() == [f"answer {row.index} \u2028 é\n" for row in good]
    assert table["response"].to_pylist() == [row.output.decode() for row in good]
    assert table["finish_reason"].to_pylist() == ["stop"] * 6
    assert table["completion_tokens"].to_pylist() == [row.index for row in good]
    assert table["prompt_tokens"].to_pylist() == [3] * 6


async def test_embeddings_in_jsonl_are_base64_and_never_numbers(tmp_path: Path) -> None:
    run = await make_run("embed")
    await collected(run, tmp_path / "rows.jsonl")
    lines = json_lines(tmp_path / "rows.jsonl")
    data = [line["response"]["body"]["data"][0] for line in lines]
    assert [base64.b64decode(item["embedding"]) for item in data] == [row.output for row in run.rows if row.ok]
    assert lines[1]["response"]["body"]["usage"] == {"prompt_tokens": 1, "total_tokens": 1}
    assert lines[1]["response"]["body"]["model"] == "tiny"


async def test_float16_halves_the_vectors_and_refuses_numbers_that_do_not_fit(tmp_path: Path) -> None:
    run = await make_run("embed")
    await collected(run, tmp_path / "rows.parquet", dtype="float16")
    column = pq.read_table(tmp_path / "rows.parquet")["embedding"]
    assert column.type == pa.list_(pa.float16(), 4)
    expected = [np.frombuffer(row.output, dtype="<f4").astype("<f2").tolist() for row in run.rows if row.ok]
    assert column.to_pylist() == expected

    def huge(kind: Any, index: int, ok: bool, **more: Any) -> Row:
        row = make_row(kind, index, ok, **more)
        return with_output(row, np.asarray([1e30, 0, 0, 0], dtype="<f4").tobytes()) if ok else row

    with pytest.raises(NotAsWanted, match="beyond float16"):
        await collected(await make_run("embed", row=huge), tmp_path / "huge.parquet", dtype="float16")
    assert not (tmp_path / "huge.parquet").exists()


def with_output(row: Row, output: bytes) -> Row:
    return Row(row.index, row.id, row.line, row.ok, output)


async def test_original_columns_that_clash_are_renamed_and_said(tmp_path: Path) -> None:
    columns = pa.table({"id": list(range(8)), "embedding": ["x"] * 8, "input_id": ["y"] * 8})
    run = await make_run("embed", columns=columns)
    result = await collected(run, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert result.renamed == {"id": "input_id_2", "embedding": "input_embedding"}
    assert table.column_names[:4] == ["id", "input_id_2", "input_embedding", "input_id"]
    assert table["input_id"].to_pylist() == ["y"] * 6
    assert table["input_id_2"].to_pylist() == [0, 1, 3, 4, 5, 7]
    assert table["id"].to_pylist()[0] == "row-0"


async def test_an_id_column_called_id_stays_as_it_is(tmp_path: Path) -> None:
    run = await make_run("embed", columns=pa.table({"id": list(range(8))}), id_column="id")
    result = await collected(run, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert result.renamed == {}
    assert table.column_names == ["id", "embedding", "tokens", "row_index", "row_digest"]
    assert table["id"].to_pylist() == [0, 1, 3, 4, 5, 7]


@pytest.mark.parametrize("kind", ["generate", "embed"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
async def test_a_run_where_no_row_succeeded_gives_an_empty_output_with_a_schema(kind: Any, suffix: str, tmp_path: Path) -> None:
    run = await make_run(kind, [False] * 4, cuts=(2,), columns=COLUMNS.slice(0, 4))
    result = await collected(run, tmp_path / f"rows.{suffix}")
    assert (result.ok, result.failed) == (0, 4)
    if suffix == "jsonl":
        assert (tmp_path / "rows.jsonl").read_bytes() == b""
    else:
        table = pq.read_table(tmp_path / "rows.parquet")
        assert table.num_rows == 0
        assert {"id", "question", "row_index"} <= set(table.column_names)
    assert len(json_lines(tmp_path / "rows.errors.jsonl")) == 4


def facts_inside(path: Path) -> OutputFacts:
    metadata = pq.read_metadata(path).metadata
    assert metadata is not None
    facts: OutputFacts = decode(metadata[METADATA_KEY], OutputFacts, where="")
    return facts


async def test_outputs_name_their_seal(tmp_path: Path) -> None:
    run = await make_run("embed", columns=COLUMNS)
    result = await collected(run, tmp_path / "rows.parquet")
    beside: OutputFacts = decode((tmp_path / "rows.parquet.seal.json").read_bytes(), OutputFacts, where="")
    inside = facts_inside(tmp_path / "rows.parquet")
    assert beside.seal == inside.seal == result.seal
    assert beside.output is not None
    assert beside.output.size == (tmp_path / "rows.parquet").stat().st_size
    assert (inside.ok, inside.failed, inside.partial, inside.dtype) == (6, 2, False, "float32")


async def test_a_partial_output_cannot_be_taken_for_the_whole(tmp_path: Path) -> None:
    run = await make_run("embed", splits=(2,), leave_open=(1,))
    with pytest.raises(NotAsWanted, match="still open"):
        await collected(run, tmp_path / "rows.parquet")
    assert list(tmp_path.iterdir()) == []
    result = await collected(run, tmp_path / "rows.parquet", partial=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "rows.partial.errors.jsonl",
        "rows.partial.parquet",
        "rows.partial.parquet.seal.json",
    ]
    assert (result.missing, result.missing_rows, result.seal) == (((3, 6),), 3, None)
    inside = facts_inside(tmp_path / "rows.partial.parquet")
    assert (inside.partial, inside.seal, inside.missing) == (True, None, ((3, 6),))
    assert run.keys.seal() not in run.store.objects.data
    assert not any(key.startswith(f"{run.keys.root}/seals/") for key in run.store.objects.data)


async def test_a_partial_output_of_nothing_is_empty_and_says_that_all_is_missing(tmp_path: Path) -> None:
    run = await make_run("embed", leave_open=(0, 1, 2))
    result = await collected(run, tmp_path / "rows.parquet", partial=True)
    assert result.missing == ((0, 8),)
    assert pq.read_table(tmp_path / "rows.partial.parquet").num_rows == 0


# --- one file, however it was computed ---------------------------------------------------------------------------------------------------


@st.composite
def arrangements(draw: st.DrawFn) -> dict[str, Any]:
    outcomes = draw(st.lists(st.booleans(), min_size=1, max_size=14))
    cuts = sorted(draw(st.sets(st.integers(1, len(outcomes) - 1), max_size=6))) if len(outcomes) > 1 else []
    splits = draw(st.sets(st.integers(0, len(cuts)), max_size=3))
    return {"outcomes": outcomes, "cuts": cuts, "splits": tuple(splits), "shuffle": draw(st.integers(0, 1 << 16))}


@settings(max_examples=20, deadline=None)
@given(arrangements(), st.sampled_from(["generate", "embed"]))
def test_any_partition_and_any_order_inside_the_parts_collects_to_the_same_file(arrangement: dict[str, Any], kind: Any) -> None:
    async def both() -> None:
        count = len(arrangement["outcomes"])
        columns = pa.table({"n": list(range(count))})
        whole = await make_run(kind, arrangement["outcomes"], cuts=(), columns=columns)
        pieces = await make_run(kind, columns=columns, **arrangement)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for label, run in (("whole", whole), ("pieces", pieces)):
                await collected(run, folder / f"{label}.jsonl")
                await collected(run, folder / f"{label}.parquet")
            assert (folder / "whole.jsonl").read_bytes() == (folder / "pieces.jsonl").read_bytes()
            assert (folder / "whole.errors.jsonl").read_bytes() == (folder / "pieces.errors.jsonl").read_bytes()
            assert pq.read_table(folder / "whole.parquet").equals(pq.read_table(folder / "pieces.parquet"))

    asyncio.run(both())


async def test_collecting_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    run = await make_run("embed", columns=COLUMNS)
    for name in ("a", "b"):
        await collected(run, tmp_path / f"{name}.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


async def test_two_collectors_into_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    run = await make_run("embed")
    results = await asyncio.gather(*(collected(run, tmp_path / "rows.parquet") for _ in range(3)))
    assert len({result.seal for result in results}) == 1
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == 6
    assert len(list(tmp_path.iterdir())) == 3


# --- what is refused ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda data, key: data.pop(key), "is gone"),
        (lambda data, key: data.__setitem__(key, data[key][:-1]), "its commit says"),
        (lambda data, key: data.__setitem__(key, data[key] + b"x"), "longer than"),
        (lambda data, key: data.__setitem__(key, bytes([data[key][0] ^ 1]) + data[key][1:]), "sha256"),
    ],
)
async def test_an_object_that_is_not_what_was_committed_stops_collect_and_leaves_no_file(
    break_it: Any, message: str, tmp_path: Path
) -> None:
    run = await make_run("generate")
    await collected(run, tmp_path / "before.jsonl")  # sealed, so that only reading finds it
    part = run.commits["00001"].part
    assert part is not None
    break_it(run.store.objects.data, part.key)
    with pytest.raises(VerifyFailed, match=message) as caught:
        await collected(run, tmp_path / "rows.jsonl")
    assert part.key in str(caught.value)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not [p for p in tmp_path.iterdir() if "rows" in p.name]


async def test_a_part_that_lacks_a_row_stops_collect(tmp_path: Path) -> None:
    run = await make_run("embed")
    commit = await put_leaf(run, "00001", run.plan.shards[1].source, run.rows[3:5], execution="00000000000000cc")
    lie = msgspec.structs.replace(commit, ok=3)
    run.store.objects.data[run.keys.commit("00001")] = encode(lie)
    with pytest.raises(VerifyFailed, match="shard 00001 is not whole"):
        await collected(run, tmp_path / "rows.parquet")
    assert list(tmp_path.iterdir()) == []


async def test_columns_of_another_length_stop_collect(tmp_path: Path) -> None:
    run = await make_run("embed", columns=COLUMNS)
    other = await make_run("embed", columns=COLUMNS.slice(1), cuts=(2, 5), outcomes=[True] * 7)
    shards = tuple(msgspec.structs.replace(a, columns=b.columns) for a, b in zip(run.plan.shards, other.plan.shards, strict=True))
    run.plan = msgspec.structs.replace(run.plan, shards=shards)
    run.store.objects.data.update({k: v for k, v in other.store.objects.data.items() if "/columns/" in k})
    with pytest.raises(VerifyFailed, match="rows of columns"):
        await collected(run, tmp_path / "rows.parquet")


@pytest.mark.parametrize("out", ["answers", "answers.csv", ".jsonl", "folder/"])
async def test_an_output_of_an_unknown_kind_is_refused_before_anything_is_read(out: str) -> None:
    async def fail(op: str, key: str) -> None:
        raise AssertionError(f"{op} {key}")

    run = await make_run()
    run.store.hook = fail
    with pytest.raises(UsageError, match=r"\.jsonl or \.parquet"):
        await collect(run.store, run.keys, run.plan, out)


async def test_an_output_that_cannot_be_written_is_refused_before_anything_is_sealed(tmp_path: Path) -> None:
    run = await make_run("embed", files=(str(tmp_path / "rows.jsonl"),))
    (tmp_path / "folder.jsonl").mkdir()
    cases = [
        (str(tmp_path / "nowhere/rows.jsonl"), {}, "no folder"),
        (str(tmp_path / "rows.jsonl"), {}, "file of the dataset"),
        (str(tmp_path / "folder.jsonl"), {}, "is a folder"),
        (f"{run.plan.run}/rows.jsonl", {}, "inside the run"),
        ("s3://elsewhere/rows.jsonl", {}, "is not the run's"),
        ("s3://elsewhere", {}, r"\.jsonl or \.parquet"),
        (str(tmp_path / "half.jsonl"), {"dtype": "float16"}, "no float16"),
    ]
    for out, options, message in cases:
        with pytest.raises(UsageError, match=message):
            await collect(run.store, run.keys, run.plan, out, **options)  # type: ignore[arg-type]
    generate = await make_run("generate")
    with pytest.raises(UsageError, match="for embeddings"):
        await collect(generate.store, generate.keys, generate.plan, str(tmp_path / "x.parquet"), dtype="float16")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.jsonl"]


async def test_an_output_can_lie_in_s3() -> None:
    run = await make_run("embed")
    await collect(run.store, run.keys, run.plan, f"s3://{run.store.bucket}/outputs/rows.parquet")
    elsewhere = MemoryStore(bucket="elsewhere")
    await collect(run.store, run.keys, run.plan, "s3://elsewhere/a/rows.parquet", open_store=lambda bucket: elsewhere)
    there = run.store.objects.data
    assert pq.read_table(pa.BufferReader(there["outputs/rows.parquet"])).num_rows == 6
    assert {key for key in there if key.startswith("outputs/")} == {
        "outputs/rows.parquet",
        "outputs/rows.errors.jsonl",
        "outputs/rows.parquet.seal.json",
    }
    assert elsewhere.objects.data["a/rows.parquet"] == there["outputs/rows.parquet"]


# --- interrupted -------------------------------------------------------------------------------------------------------------------------


async def test_cancelled_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    run = await make_run("generate")
    reached = asyncio.Event()

    async def hold(op: str, key: str) -> None:
        if op == "read" and "/parts/00002/" in key:
            reached.set()
            await asyncio.Event().wait()

    run.store.hook = hold
    task = asyncio.create_task(collected(run, tmp_path / "rows.jsonl"))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(tmp_path.iterdir()) == []


CHILD = """
import asyncio, sys
from pathlib import Path
from pipelines.collect import collect
from tests.pipelines.runs import make_run

async def main():
    run = await make_run("generate", outcomes=[True] * 40, cuts=range(1, 40))
    async def hold(op, key):
        if op == "read" and "/parts/00030/" in key:
            print("reached", flush=True)
            await asyncio.Event().wait()
    if sys.argv[2] == "hold":
        run.store.hook = hold
    await collect(run.store, run.keys, run.plan, sys.argv[1])

asyncio.run(main())
"""


def test_killed_in_the_middle_it_leaves_no_half_file_and_the_next_one_tidies_up(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, repo: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    env = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("scratch"))}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(out), "hold"], cwd=repo, env=env, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reached\n"
        os.kill(child.pid, signal.SIGKILL)
    left = [p.name for p in tmp_path.iterdir()]
    assert left
    assert all(name.startswith(".") and name.endswith(".tmp") for name in left)
    subprocess.run([sys.executable, "-c", CHILD, str(out), "go on"], cwd=repo, env=env, check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.errors.jsonl", "rows.jsonl", "rows.jsonl.seal.json"]
    assert len(json_lines(out)) == 40


async def test_progress_counts_rows(tmp_path: Path) -> None:
    run = await make_run("generate", splits=(0,))
    seen: list[tuple[int, int]] = []
    await collected(run, tmp_path / "rows.jsonl", progress=lambda done, all_: seen.append((done, all_)))
    assert seen == [(1, 8), (3, 8), (6, 8), (8, 8)]


async def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    run = await make_run("embed", columns=COLUMNS, splits=(0, 1, 2))
    await collected(run, tmp_path / "rows.parquet")
    assert list(scratch.iterdir()) == []


async def test_rows_of_many_shards_make_row_groups_of_a_useful_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.outputs.GROUP_ROWS", 10)
    run = await make_run("embed", [True] * 35, cuts=range(3, 35, 3))
    await collected(run, tmp_path / "rows.parquet")
    metadata = pq.read_metadata(tmp_path / "rows.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10, 10, 10, 5]
    assert pq.read_table(tmp_path / "rows.parquet")["row_index"].to_pylist() == list(range(35))


# --- what other runs left there ------------------------------------------------------------------------------------------------------


async def test_an_output_of_another_run_is_replaced_and_that_is_said(tmp_path: Path) -> None:
    run = await make_run("embed")
    assert (await collected(run, tmp_path / "rows.parquet")).notices == ()
    assert (await collected(run, tmp_path / "rows.parquet")).notices == (), "its own output"
    seal = tmp_path / "rows.parquet.seal.json"
    seal.write_text(seal.read_text().replace(run.plan.run, "s3://memory/runs/other"))
    (said,) = (await collected(run, tmp_path / "rows.parquet")).notices
    assert said.endswith("replaces the output of run s3://memory/runs/other.")
    (tmp_path / "mine.jsonl").write_text("by hand\n")
    (said,) = (await collected(run, tmp_path / "mine.jsonl")).notices
    assert said.endswith("replaces a file that is no output of a run.")


async def test_the_errors_file_of_another_runs_output_that_still_stands_is_not_replaced(tmp_path: Path) -> None:
    run = await make_run("embed")
    await collected(run, tmp_path / "my.parquet")
    await collected(run, tmp_path / "my.jsonl")  # the same run's errors are the same
    for suffix in ("parquet", "jsonl"):
        seal = tmp_path / f"my.{suffix}.seal.json"
        seal.write_text(seal.read_text().replace(run.plan.run, "s3://memory/runs/other"))
    errors = (tmp_path / "my.errors.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"my.errors.jsonl.*failed rows of .*my.parquet.*runs/other.*remove"):
        await collected(run, tmp_path / "my.jsonl")
    assert (tmp_path / "my.errors.jsonl").read_bytes() == errors
    (tmp_path / "my.parquet").unlink()
    assert len((await collected(run, tmp_path / "my.jsonl")).notices) == 1


async def test_what_stands_in_s3_is_looked_at_too() -> None:
    run = await make_run("embed")
    out = f"s3://{run.store.bucket}/outputs/rows.parquet"
    assert (await collect(run.store, run.keys, run.plan, out)).notices == ()
    assert (await collect(run.store, run.keys, run.plan, out)).notices == ()
    await run.store.put("outputs/rows.parquet.seal.json", b"{}")
    assert len((await collect(run.store, run.keys, run.plan, out)).notices) == 1
