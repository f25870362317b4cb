# tests/pipelines: verify finds every single thing that is not as it should be, and is silent where all is well.
from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from contract.errors import ContractError, UsageError, VerifyFailed
from contract.keys import shard_name
from contract.lines import compress, decompress_lines
from contract.models import Commit, SealPointer, SplitCommit, decode, encode
from pipelines.collect import collect
from pipelines.outputs import OutputFacts, file_facts, output_names
from pipelines.verify import VerifyReport, verify
from tests.pipelines.runs import Row, Run, make_row, make_run, put_leaf, shard_digest

COLUMNS = pa.table({"question": [f"q{i}" for i in range(8)], "score": [float("nan"), *range(7)]})
SKIPPED = [{"file": "rows.jsonl", "line": 9, "code": "not_json", "reason": "not JSON", "id": None}]


async def judged(run: Run, out: Path | None = None, **options: Any) -> VerifyReport:
    return await verify(run.store, run.keys, run.plan, None if out is None else str(out), **options)


async def with_output(folder: Path, kind: Any, suffix: str, **options: Any) -> tuple[Run, Path]:
    run = await make_run(kind, splits=(1,), shuffle=2, columns=COLUMNS, skipped=SKIPPED, **options)
    out = folder / f"rows.{suffix}"
    await collect(run.store, run.keys, run.plan, str(out))
    return run, out


KINDS = [("generate", "jsonl"), ("generate", "parquet"), ("embed", "jsonl"), ("embed", "parquet")]


# --- silence where all is well -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "suffix"), KINDS)
async def test_a_good_run_and_its_output_have_no_findings(kind: str, suffix: str, tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, kind, suffix)
    report = await judged(run, out, inputs=True)
    assert report.findings == ()
    assert report.clean
    assert report.failure() is None
    assert (report.rows, report.ok, report.failed, report.shards) == (8, 6, 2, 4)
    assert len(report.proven) == 6
    assert [line for line in report.not_proven if "model answered well" in line]
    assert len(report.not_proven) == 1


async def test_what_was_not_looked_at_is_not_called_proven() -> None:
    run = await make_run("embed", mode="last-writer")
    report = await judged(run)
    assert report.clean
    text = " | ".join(report.not_proven)
    for words in ("not sealed", "no conditional writes", "input rows", "output file", "model answered well"):
        assert words in text
    assert not [line for line in report.proven if "output" in line and "file" in line]


async def test_shards_that_another_image_computed_are_named_and_no_finding() -> None:
    """Jobs that were out when the stack's image changed are computed by the new one."""
    run = await make_run()
    planned = replace(run.plan, infra=replace(run.plan.infra, image="worker:1"))
    for number, image in enumerate(("worker:1", "worker:2", "worker:2")):
        key = run.keys.commit(shard_name(number))
        commit = decode((await run.store.get(key)).data, Commit, where=key)
        await run.store.put(key, encode(replace(commit, image=image)))
    report = await verify(run.store, run.keys, planned)
    assert report.clean
    assert report.images == "of 3 shards 2 by worker:2, where the plan has worker:1"
    assert any("2 by worker:2" in line for line in report.not_proven)
    assert (await verify(run.store, run.keys, run.plan)).images is None, "a plan that knows no image"


async def test_float16_is_compared_but_its_digest_is_not_called_proven(tmp_path: Path) -> None:
    run = await make_run("embed")
    await collect(run.store, run.keys, run.plan, str(tmp_path / "rows.parquet"), dtype="float16")
    report = await judged(run, tmp_path / "rows.parquet")
    assert report.clean
    assert any("float16" in line for line in report.not_proven)
    assert not any("from the output and errors files alone" in line for line in report.proven)
    change_table(tmp_path / "rows.parquet", lambda t: set_cell(t, "embedding", 1, [0.5, 0.5, 0.5, 0.5]))
    assert any(finding.index == 1 for finding in (await judged(run, tmp_path / "rows.parquet")).findings)


async def test_an_empty_output_of_a_run_that_failed_everywhere_is_as_it_should_be(tmp_path: Path) -> None:
    for kind, suffix in KINDS:
        run = await make_run(kind, [False] * 5, cuts=(2,))  # type: ignore[arg-type]
        out = tmp_path / f"{kind}.{suffix}"
        await collect(run.store, run.keys, run.plan, str(out))
        assert (await judged(run, out)).findings == ()


async def test_verify_writes_nothing(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "embed", "parquet")
    before, files = dict(run.store.objects.data), sorted(tmp_path.iterdir())
    await judged(run, out, inputs=True)
    assert run.store.objects.data == before
    assert sorted(tmp_path.iterdir()) == files


# --- an execution that wrote something else than it should have ----------------------------------------------------------------------


def changed(row: Row, **changes: Any) -> Row:
    values = {name: getattr(row, name) for name in ("index", "id", "line", "ok", "output")}
    return Row(**{**values, **changes})


async def tell(run: Run, rows: Sequence[Row], *, digest: str | None = None, shard: int = 1, **commit: Any) -> None:
    """Shard 00001 again, whole in itself (sha256, sizes and counts fit), with these rows."""
    plan = run.plan.shards[shard]
    made = await put_leaf(run, plan.shard, plan.source, rows, execution="00000000000000ee")
    lie = msgspec.structs.replace(made, digest=digest or made.digest, **commit)
    run.store.objects.data[run.keys.commit(plan.shard)] = encode(lie)


Lie = Callable[[Run, list[Row]], Any]


async def missing_row(run: Run, rows: list[Row]) -> None:
    await tell(run, rows[:-1])


async def missing_row_with_counts_that_fit(run: Run, rows: list[Row]) -> None:
    await tell(run, rows[:-1], ok=3)


async def doubled_row(run: Run, rows: list[Row]) -> None:
    await tell(run, [*rows, rows[0]])


async def doubled_instead_of_another(run: Run, rows: list[Row]) -> None:
    await tell(run, [rows[0], rows[0], rows[2]])


async def in_part_and_errors(run: Run, rows: list[Row]) -> None:
    await tell(run, [*rows, changed(rows[0], ok=False, output=b'{"code":"x","message":"y"}')])


async def altered_row(run: Run, rows: list[Row]) -> None:
    await tell(run, [changed(rows[0], line=b'{"other": 1}'), *rows[1:]])


async def swapped_rows(run: Run, rows: list[Row]) -> None:
    first, second = rows[0], rows[1]
    await tell(run, [changed(second, index=first.index), changed(first, index=second.index), rows[2]])


async def rows_of_another_shard(run: Run, rows: list[Row]) -> None:
    await tell(run, [row for row in run.rows[:3]])


async def altered_output(run: Run, rows: list[Row]) -> None:
    other = changed(rows[0], output=make_row(run.plan.task.kind, 77, True).output)
    await tell(run, [other, *rows[1:]], digest=shard_digest(rows))


async def swapped_outputs(run: Run, rows: list[Row]) -> None:
    first, second = rows[0], rows[1]
    await tell(run, [changed(first, output=second.output), changed(second, output=first.output), rows[2]], digest=shard_digest(rows))


async def outcome_turned_to_failure(run: Run, rows: list[Row]) -> None:
    await tell(run, [changed(rows[0], ok=False, output=b'{"code":"x","message":"y"}'), *rows[1:]], digest=shard_digest(rows))


async def row_of_another_plan(run: Run, rows: list[Row]) -> None:
    await tell(run, [make_row(run.plan.task.kind, row.index, row.ok, prefix="other") for row in rows])


async def wrong_counts(run: Run, rows: list[Row]) -> None:
    await tell(run, rows, ok=2, failed=1)


async def wrong_input_digest(run: Run, rows: list[Row]) -> None:
    await tell(run, rows, input_digest="00" * 32)


async def wrong_shard_digest(run: Run, rows: list[Row]) -> None:
    await tell(run, rows, digest="00" * 32)


async def wrong_plan(run: Run, rows: list[Row]) -> None:
    await tell(run, rows, plan="cd" * 32)


async def commit_of_another_shard(run: Run, rows: list[Row]) -> None:
    run.store.objects.data[run.keys.commit("00001")] = encode(run.commits["00000"])


LIES: list[tuple[Lie, str]] = [
    (missing_row, "row is missing"),
    (missing_row_with_counts_that_fit, "row is missing"),
    (doubled_row, "there 2 times"),
    (doubled_instead_of_another, "there 2 times"),
    (in_part_and_errors, "both in the part and in the errors"),
    (altered_row, "not the plan's"),
    (swapped_rows, "not the plan's"),
    (rows_of_another_shard, "does not belong to the shard"),
    (altered_output, "shard digest is not the commit's"),
    (swapped_outputs, "shard digest is not the commit's"),
    (outcome_turned_to_failure, "shard digest is not the commit's"),
    (row_of_another_plan, "not the plan's"),
    (wrong_counts, "counts"),
    (wrong_input_digest, "other input rows"),
    (wrong_shard_digest, "shard digest is not the commit's"),
    (wrong_plan, "carries plan cdcdcdcd"),
    (commit_of_another_shard, "is that of shard 00000"),
]


@pytest.mark.parametrize("kind", ["generate", "embed"])
@pytest.mark.parametrize(("lie", "words"), LIES, ids=[lie.__name__ for lie, _ in LIES])
async def test_a_result_that_is_whole_in_itself_but_wrong_is_found(lie: Lie, words: str, kind: Any) -> None:
    run = await make_run(kind, [True] * 8)
    assert (await judged(run)).clean
    await lie(run, run.rows[3:6])
    report = await judged(run)
    assert not report.clean
    assert any(words in str(finding) for finding in report.findings), report.lines()
    assert any(finding.shard == "00001" or "00001" in str(finding) for finding in report.findings)
    failure = report.failure()
    assert isinstance(failure, VerifyFailed)
    assert failure.exit_code == 1


@pytest.mark.parametrize("kind", ["generate", "embed"])
async def test_an_id_that_two_rows_have_is_found(kind: Any) -> None:
    def same(kind: Any, index: int, ok: bool, **more: Any) -> Row:
        row = make_row(kind, index, ok, **more)
        return changed(row, id="row-1") if index == 6 else row

    report = await judged(await make_run(kind, row=same))
    assert [(f.what, f.index) for f in report.findings] == [("the row has the id of another row", 6)]


async def test_a_vector_that_is_not_finite_is_found() -> None:
    run = await make_run("embed", [True] * 8)
    rows = run.rows[3:6]
    await tell(run, [changed(rows[0], output=b"\x00\x00\xc0\x7f" * 4), *rows[1:]])
    assert [(f.what, f.index) for f in (await judged(run)).findings] == [("the vector has a number that is not finite", 3)]


# --- storage that changed afterwards ---------------------------------------------------------------------------------------------------


async def test_an_open_shard_is_a_finding_that_names_its_rows() -> None:
    run = await make_run(leave_open=(1,))
    report = await judged(run)
    assert any(f.shard == "00001" and "[3, 6)" in f.what for f in report.findings)
    assert report.seal is None


async def test_a_commit_that_changed_after_the_seal_is_found_and_the_seal_is_what_counts(tmp_path: Path) -> None:
    run = await make_run("embed")
    out = tmp_path / "rows.parquet"
    await collect(run.store, run.keys, run.plan, str(out))
    await put_leaf(run, "00001", run.plan.shards[1].source, run.rows[3:6], execution="00000000000000bb")
    assert [f.what for f in (await judged(run, out)).findings] == ["the commit is no longer the one that was sealed"]


async def test_on_a_last_writer_store_a_commit_may_change_after_the_seal(tmp_path: Path) -> None:
    run = await make_run("embed", mode="last-writer")
    out = tmp_path / "rows.parquet"
    await collect(run.store, run.keys, run.plan, str(out))
    await put_leaf(run, "00001", run.plan.shards[1].source, run.rows[3:6], execution="00000000000000bb")
    assert (await judged(run, out)).clean


async def test_a_plan_that_was_changed_does_not_have_its_id_any_more() -> None:
    run = await make_run()
    plan = run.plan
    first = plan.shards[0]
    replace = msgspec.structs.replace
    cases = {
        "is not that of what the plan says": [
            replace(plan, task=replace(plan.task, model="other")),
            replace(plan, task=replace(plan.task, params={"temperature": 1})),
            replace(plan, dataset=replace(plan.dataset, digest="00" * 32)),
            replace(plan, store=replace(plan.store, mode="last-writer")),
        ],
        "does not follow": [
            replace(plan, shards=plan.shards[1:]),
            replace(plan, shards=(replace(first, source=replace(first.source, rows=(0, 4), count=4)), *plan.shards[1:])),
        ],
        "the shards have 6 rows": [replace(plan, shards=plan.shards[:2])],
    }
    for words, plans in cases.items():
        for changed in plans:
            run.plan = changed
            assert any(words in finding.what for finding in (await judged(run)).findings)


async def test_commits_of_another_plan_or_of_no_shard_are_reported() -> None:
    run = await make_run()
    data = run.store.objects.data
    data[run.keys.commit("00009")] = encode(run.commits["00001"])
    data[run.keys.commit("00008")] = encode(msgspec.structs.replace(run.commits["00001"], plan="cd" * 32))
    data[run.keys.commit("00007")] = encode(msgspec.structs.replace(run.commits["00001"], shard="00007"))
    data[run.keys.commit("00006")] = b"{"
    found = [str(finding) for finding in (await judged(run)).findings]
    assert len(found) == 4
    assert "00006" in found[0]
    assert "of no shard of the plan" in found[1]
    assert "carries plan cdcdcdcd" in found[2]
    assert "is that of shard 00001" in found[3]


async def test_a_split_that_stands_under_its_own_child_is_reported() -> None:
    run = await make_run(splits=(1,))
    data = run.store.objects.data
    data[run.keys.commit("00001.0")] = data[run.keys.commit("00001")]
    found = [str(finding) for finding in (await judged(run)).findings]
    assert any("is that of shard 00001" in text for text in found)
    assert any("no commit: rows [3, 4)" in text for text in found)


async def test_input_rows_that_changed_are_found_when_they_are_read_again() -> None:
    run = await make_run(splits=(1,))
    key = run.keys.input("00001")
    rows = list(run.rows[3:6])
    run.store.objects.data[key] = compress(b"".join(r.line.replace(b"question 4", b"question 5") + b"\n" for r in rows))
    assert (await judged(run)).clean
    assert [f.index for f in (await judged(run, inputs=True)).findings] == [4]
    run.store.objects.data[key] = compress(b"".join(r.line + b"\n" for r in rows[:2]))
    assert any("has 1 rows where the plan has 2" in f.what for f in (await judged(run, inputs=True)).findings)
    del run.store.objects.data[key]
    assert not (await judged(run, inputs=True)).clean


async def test_shards_that_cannot_be_read_do_not_hide_what_is_wrong_elsewhere(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "generate", "jsonl")
    part = run.commits["00000"].part
    assert part is not None
    del run.store.objects.data[part.key]
    lines = out.read_bytes().split(b"\n")
    out.write_bytes(b"\n".join([*lines[:-2], lines[-2].replace(b"answer 7", b"answer 8"), b""]))
    report = await judged(run, out)
    assert any(part.key in str(f) and "gone" in f.what for f in report.findings)
    assert any(f.index == 7 for f in report.findings)
    assert not any(f.index in (0, 1, 2, 3, 4, 5) for f in report.findings)
    assert any("could not be read" in line for line in report.not_proven)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_change_of_any_byte_of_any_object_or_file_is_found(data: st.DataObject) -> None:
    kind, suffix = data.draw(st.sampled_from(KINDS))

    async def check(folder: Path) -> None:
        run, out = await with_output(folder, kind, suffix)
        names = output_names(str(out))
        objects = run.store.objects.data
        # Not these: the instant in seal.json says nothing about the result, and plan.json was read by the caller.
        targets = sorted(key for key in objects if key not in (run.keys.plan(), run.keys.seal()))
        if suffix == "jsonl":
            targets = [key for key in targets if "/columns/" not in key]
        targets += [names.out, names.errors, names.seal]
        target = data.draw(st.sampled_from(targets))
        before = objects[target] if target in objects else Path(target).read_bytes()
        after = data.draw(changes(before, [value for key, value in objects.items() if key != target]))
        if target in objects:
            if after is None:
                del objects[target]
            else:
                objects[target] = after
        elif after is None:
            Path(target).unlink()
        else:
            Path(target).write_bytes(after)
        if after is not None and same_meaning(target, before, after):
            return
        report = await judged(run, out, inputs=True)
        assert not report.clean, (target, before, after)

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(check(Path(name)))


def same_meaning(target: str, before: bytes, after: bytes) -> bool:
    """JSON and zstd may say the same in other bytes (`T` and `t` in an instant, a larger window)."""
    if "/input/" in target:
        try:
            return list(decompress_lines(before, where="")) == list(decompress_lines(after, where=""))
        except ContractError:
            return False
    kind: Any = Commit if "/commits/" in target else OutputFacts if target.endswith(".seal.json") else None
    if kind is None:
        return before == after
    try:
        one, two = decode(before, kind, where=""), decode(after, kind, where="")
        if isinstance(one, SplitCommit) and isinstance(two, SplitCommit):
            two = msgspec.structs.replace(two, at=one.at)  # when a shard was split says nothing about its rows
        return bool(one == two)
    except ContractError:
        return False


@st.composite
def changes(draw: st.DrawFn, before: bytes, others: list[bytes]) -> bytes | None:
    how = draw(st.sampled_from(["flip", "cut", "grow", "gone", "other", "drop"]))
    at = draw(st.integers(0, max(0, len(before) - 1)))
    if how == "gone":
        return None
    if how == "flip" and before:
        return before[:at] + bytes([before[at] ^ draw(st.integers(1, 255))]) + before[at + 1 :]
    if how == "cut" and before:
        return before[:at]
    if how == "drop" and before:
        return before[:at] + before[at + 1 :]
    if how == "other":
        return draw(st.sampled_from(sorted(others)))
    return before + b"x"


async def test_a_seal_pointer_that_names_nothing_is_found() -> None:
    run = await make_run()
    run.store.objects.data[run.keys.seal()] = encode(SealPointer(plan=run.plan.plan_id, seal="00" * 32, at=run.plan.created_at))
    report = await judged(run)
    assert [f.what for f in report.findings] == ["the seal that seal.json names is gone"]


# --- outputs that were edited: found by what they hold, also when the seal file is edited with them -----------------------------------


def reseal(out: Path) -> None:
    """Make the seal file fit the edited files, so that only their contents can tell."""
    names = output_names(str(out))
    facts: OutputFacts = decode(Path(names.seal).read_bytes(), OutputFacts, where="")
    facts = msgspec.structs.replace(facts, output=file_facts(Path(names.out)), errors=file_facts(Path(names.errors)))
    Path(names.seal).write_bytes(encode(facts))


def change_lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def change_table(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    metadata = pq.read_metadata(path).metadata
    assert metadata is not None
    table = change(pq.read_table(path))
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"nightbatch": metadata[b"nightbatch"].decode()})
    reseal(path)


def set_cell(table: pa.Table, column: str, at: int, value: Any) -> pa.Table:
    values = table[column].to_pylist()
    values[at] = value
    return table.set_column(table.schema.get_field_index(column), table.schema.field(column), [pa.array(values, table[column].type)])


def take(*order: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.take(list(order))


# The good rows of the run are 0 1 3 4 5 7.
TABLE_EDITS: list[tuple[str, Callable[[pa.Table], pa.Table], set[int]]] = [
    ("missing row", take(0, 1, 3, 4, 5), {3}),
    ("missing first row", take(1, 2, 3, 4, 5), {0}),
    ("missing last row", take(0, 1, 2, 3, 4), {7}),
    ("doubled row", take(0, 1, 1, 2, 3, 4, 5), {1}),
    ("doubled last row", take(0, 1, 2, 3, 4, 5, 5), {7}),
    ("reordered", take(0, 2, 1, 3, 4, 5), {3}),
    ("reordered far", take(5, 0, 1, 2, 3, 4), {7}),
    ("other id", lambda t: set_cell(t, "id", 2, "x"), {3}),
    ("other column value", lambda t: set_cell(t, "question", 2, "x"), {3}),
    ("other NaN", lambda t: set_cell(t, "score", 0, 1.0), {0}),
    ("other row digest", lambda t: set_cell(t, "row_digest", 4, b"x" * 32), {5}),
    ("row digest lost", lambda t: set_cell(t, "row_digest", 4, None), {5}),
]


@pytest.mark.parametrize("kind", ["generate", "embed"])
@pytest.mark.parametrize(("change", "indices"), [edit[1:] for edit in TABLE_EDITS], ids=[edit[0] for edit in TABLE_EDITS])
async def test_an_edited_table_is_found_row_by_row(
    kind: Any, change: Callable[[pa.Table], pa.Table], indices: set[int], tmp_path: Path
) -> None:
    run, out = await with_output(tmp_path, kind, "parquet")
    change_table(out, lambda table: table)
    assert (await judged(run, out)).findings == ()
    change_table(out, change)
    report = await judged(run, out)
    assert indices <= {f.index for f in report.findings}, report.lines()


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [("embed", "embedding", [0.0, 1.0, 2.0, 3.0]), ("embed", "tokens", 99), ("generate", "response", "{}"), ("generate", "output", "x")],
)
async def test_an_edited_result_in_a_table_is_found(kind: Any, column: str, value: Any, tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, kind, "parquet")
    change_table(out, lambda table: set_cell(table, column, 3, value))
    found = (await judged(run, out)).findings
    assert any(f.index == 4 and column in f.what for f in found)
    if column in ("embedding", "response"):
        assert any("computed from the output" in f.what for f in found)


async def test_a_sign_of_zero_that_changed_in_a_vector_is_found_by_the_digest(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "embed", "parquet")
    first: Any = pq.read_table(out)["embedding"].to_pylist()[0]
    assert first[1] == 0.0
    change_table(out, lambda table: set_cell(table, "embedding", 0, [first[0], -first[1], *first[2:]]))
    assert any("computed from the output" in f.what for f in (await judged(run, out)).findings)


@pytest.mark.parametrize("column", ["id", "question", "row_index", "row_digest"])
async def test_a_column_that_is_gone_is_found(column: str, tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "embed", "parquet")
    change_table(out, lambda table: table.drop_columns([column]))
    assert not (await judged(run, out)).clean


LINE_EDITS: list[tuple[str, Callable[[list[bytes]], list[bytes]], set[int]]] = [
    ("missing row", lambda ls: [*ls[:2], *ls[3:]], {3}),
    ("missing last row", lambda ls: ls[:-1], {7}),
    ("doubled row", lambda ls: [*ls[:2], ls[1], *ls[2:]], {1}),
    ("doubled last row", lambda ls: [*ls, ls[-1]], {7}),
    ("reordered", lambda ls: [ls[0], ls[2], ls[1], *ls[3:]], {3}),
    ("everything twice", lambda ls: ls + ls, {0, 7}),
    ("edited", lambda ls: [*ls[:3], ls[3].replace(b'"custom_id":"row-4"', b'"custom_id":"row-x"'), *ls[4:]], {4}),
    ("not JSON", lambda ls: [*ls[:3], b"{\n", *ls[4:]], {4}),
    ("other id", lambda ls: [*ls[:3], ls[3].replace(b"batch_req_4_", b"batch_req_x_"), *ls[4:]], {4}),
    ("empty line", lambda ls: [*ls[:3], b"\n", *ls[3:]], set()),
    ("last newline gone", lambda ls: [*ls[:-1], ls[-1][:-1]], {7}),
    ("emptied", lambda ls: [], {0, 7}),
]


@pytest.mark.parametrize("kind", ["generate", "embed"])
@pytest.mark.parametrize(("change", "indices"), [edit[1:] for edit in LINE_EDITS], ids=[edit[0] for edit in LINE_EDITS])
async def test_edited_lines_are_found_row_by_row(
    kind: Any, change: Callable[[list[bytes]], list[bytes]], indices: set[int], tmp_path: Path
) -> None:
    run, out = await with_output(tmp_path, kind, "jsonl")
    change_lines(out, change)
    reseal(out)
    report = await judged(run, out)
    assert not report.clean
    assert indices <= {f.index for f in report.findings}, report.lines()


async def test_an_edited_vector_in_lines_is_found_twice(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "embed", "jsonl")
    change_lines(out, lambda ls: [ls[0].replace(b'"embedding":"AACAPw', b'"embedding":"AACAQA'), *ls[1:]])
    reseal(out)
    found = (await judged(run, out)).findings
    assert [f.index for f in found if f.where and f.where.endswith("rows.jsonl")] == [0]
    assert any("computed from the output" in f.what for f in found)


ERROR_EDITS: list[tuple[str, Callable[[list[bytes]], list[bytes]]]] = [
    ("missing", lambda ls: ls[1:]),
    ("doubled", lambda ls: [ls[0], *ls]),
    ("reordered", lambda ls: [ls[1], ls[0], ls[2]]),
    ("edited", lambda ls: [ls[0].replace(b"is bad", b"is good"), *ls[1:]]),
    ("skipped row gone", lambda ls: ls[:2]),
    ("skipped row doubled", lambda ls: [*ls, ls[2]]),
    ("skipped row moved", lambda ls: [ls[2], *ls[:2]]),
    ("skipped row moved and left", lambda ls: [ls[2], *ls]),
    ("skipped row edited", lambda ls: [*ls[:2], ls[2].replace(b"not JSON", b"all well")]),
    ("rubbish", lambda ls: [*ls, b"rubbish\n"]),
    ("emptied", lambda ls: []),
]


@pytest.mark.parametrize("change", [edit[1] for edit in ERROR_EDITS], ids=[edit[0] for edit in ERROR_EDITS])
async def test_an_edited_errors_file_is_found(change: Callable[[list[bytes]], list[bytes]], tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "generate", "jsonl")
    change_lines(tmp_path / "rows.errors.jsonl", change)
    reseal(out)
    report = await judged(run, out)
    assert any("rows.errors.jsonl" in str(f) for f in report.findings), report.lines()


async def test_an_edit_without_a_new_seal_file_is_found_by_its_sha256(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "generate", "jsonl")
    change_lines(out, lambda ls: [ls[0].replace(b"answer 0", b"answer 1"), *ls[1:]])
    assert any("sha256" in f.what for f in (await judged(run, out)).findings)


async def test_outputs_that_lack_something_are_found(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "generate", "jsonl")
    names = output_names(str(out))
    for name in (names.out, names.errors, names.seal):
        kept = Path(name).read_bytes()
        Path(name).unlink()
        assert any("missing" in f.what and f.where == name for f in (await judged(run, out)).findings)
        Path(name).write_bytes(kept)
    assert (await judged(run, out)).clean


async def test_an_output_of_another_run_or_a_partial_one_is_found(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "embed", "parquet")
    other = await make_run("embed", splits=(1,), columns=COLUMNS, skipped=SKIPPED, plan_id="cd" * 32)
    await collect(other.store, other.keys, other.plan, str(out))
    assert any("cdcdcdcd" in f.what for f in (await judged(run, out)).findings)
    await collect(run.store, run.keys, run.plan, str(out), partial=True)
    assert any("partial" in f.what for f in (await judged(run, tmp_path / "rows.partial.parquet")).findings)


async def test_a_file_that_is_not_parquet_is_found(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "embed", "parquet")
    out.write_bytes(b"PAR1 not")
    reseal(out)
    assert any("cannot be read as Parquet" in f.what for f in (await judged(run, out)).findings)


async def test_an_output_in_s3_is_verified_there() -> None:
    run = await make_run("embed")
    out = f"s3://{run.store.bucket}/outputs/rows.parquet"
    await collect(run.store, run.keys, run.plan, out)
    assert (await verify(run.store, run.keys, run.plan, out)).clean
    key = "outputs/rows.errors.jsonl"
    run.store.objects.data[key] += b"{}\n"
    assert not (await verify(run.store, run.keys, run.plan, out)).clean
    with pytest.raises(UsageError, match="is not the run's"):
        await verify(run.store, run.keys, run.plan, "s3://elsewhere/rows.parquet")


async def test_thousands_of_findings_are_counted_and_the_first_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.findings.MAX_FINDINGS", 5)
    run = await make_run("generate", [True] * 30, cuts=range(1, 30), leave_open=range(12))
    report = await judged(run)
    assert len(report.findings) == 5
    assert report.total > 10
    assert any(line.startswith("  and ") for line in report.lines())


async def test_the_report_is_plain_text(tmp_path: Path) -> None:
    run, out = await with_output(tmp_path, "generate", "jsonl")
    lines = (await judged(run, out)).lines()
    assert lines[0].startswith("8 rows: 6 ok, 2 failed, in 4 shards, seal ")
    assert json.dumps(lines)
