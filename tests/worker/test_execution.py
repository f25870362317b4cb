# tests/worker: the seven steps of an execution, over a store in memory and an engine that echoes.
from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.errors import AccessDenied, ContractError, StoreError, StoreUnavailable
from contract.memory import MemoryStore
from contract.models import Child, Control, EndMarker, Model, SplitCommit, StartMarker, decode, encode
from contract.rows import ChatUrl, CompletionUrl, PartLine, RowError
from tests.worker.conftest import KEYS, Rig, lines
from worker.engine.base import EngineDied
from worker.engine.fake import FakeEngine
from worker.execution import PiecePolicy
from worker.sample import SHARD, SampleRow, sample_rows


def end_marker(rig: Rig) -> EndMarker:
    (key,) = rig.keys("ends/")
    marker: EndMarker = decode(rig.objects.data[key], EndMarker, where=key)
    return marker


def with_(job: Model, **changes: object) -> object:
    return type(job)(**{**{name: getattr(job, name) for name in job.__struct_fields__}, **changes})


async def test_a_shard_of_generate_becomes_one_part_one_errors_object_and_one_commit(rig: Rig) -> None:
    job = await rig.job(8)
    summary = await rig.execute(job)
    assert (summary.outcome, summary.ok, summary.failed) == ("won", 7, 1)
    commit = rig.commit()
    assert commit.part is not None
    assert (summary.part, summary.etag) == (commit.part.key, commit.part.etag)
    assert sorted(rig.answers()) == list(range(7))
    body = json.loads(bytes(rig.answers()[3].response))
    assert body["choices"][0]["text"] == "echo this is row number 3"
    assert body["model"] == "fake"
    assert rig.failures()[7].code == "empty_prompt"
    assert commit.digest == rig.recomputed()
    assert commit.input_digest == job.source.digest
    assert (commit.tokens_in, commit.tokens_out) == (summary.tokens_in, summary.tokens_out) == (35, 42)


async def test_a_shard_of_embed_becomes_a_table_of_vectors(rig: Rig) -> None:
    summary = await rig.execute(await rig.job(8, kind="embed"))
    assert (summary.outcome, summary.ok, summary.failed) == ("won", 7, 1)
    part = rig.commit().part
    assert part is not None
    assert part.key.endswith(".parquet")
    path = rig.folder / "part.parquet"
    path.write_bytes(rig.objects.data[part.key])
    table = pq.read_table(path)
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[4]"
    assert table["id"].to_pylist() == [f"row-{n}" for n in range(7)]
    assert table["tokens"].to_pylist() == [5] * 7


async def test_results_are_matched_by_what_was_enqueued_not_by_order_or_id(rig: Rig) -> None:
    rows = [SampleRow("same", CompletionUrl, {"prompt": f"text {n}"}) for n in range(20)]
    rig.engine.reverse = True
    await rig.execute(await rig.job(rows))
    texts = {index: json.loads(bytes(line.response))["choices"][0]["text"] for index, line in rig.answers().items()}
    assert texts == {n: f"echo text {n}" for n in range(20)}


async def test_a_shard_in_which_every_row_fails_commits_errors_and_no_part(rig: Rig) -> None:
    rows = [SampleRow(f"row-{n}", CompletionUrl, {"prompt": ""}) for n in range(5)]
    summary = await rig.execute(await rig.job(rows))
    commit = rig.commit()
    assert (summary.outcome, commit.part, commit.ok, commit.failed) == ("won", None, 0, 5)
    assert rig.engine.submitted == 0


async def test_a_shard_without_a_failed_row_has_no_errors_object(rig: Rig) -> None:
    await rig.execute(await rig.job([SampleRow("a", CompletionUrl, {"prompt": "hello"})]))
    assert rig.commit().errors is None
    assert rig.keys("errors/") == []


async def test_markers_say_who_ran_and_what_it_cost(rig: Rig) -> None:
    async def a_second_passes() -> None:
        rig.clock.at += 1.0

    rig.engine.pause = a_second_passes
    await rig.execute(await rig.job(8))
    (key,) = rig.keys("starts/")
    start: StartMarker = decode(rig.objects.data[key], StartMarker, where=key)
    assert (start.worker_id, start.job_id, start.image) == ("worker-1", "job-1", "image-1")
    end = end_marker(rig)
    assert (end.outcome, end.wall_s, end.seconds.computing) == ("won", 2.0, 2.0)
    assert start.execution == end.execution == rig.commit().execution


# --- what ends before anything is computed ---


async def test_a_second_execution_of_a_committed_shard_answers_already_and_computes_nothing(rig: Rig) -> None:
    job = await rig.job(8)
    await rig.execute(job)
    before, submitted, part = dict(rig.objects.writes), rig.engine.submitted, rig.commit().part
    assert part is not None
    summary = await rig.execute(job)
    assert (summary.outcome, summary.ok, summary.failed, summary.part) == ("already", 7, 1, part.key)
    assert rig.objects.writes == before
    assert rig.engine.submitted == submitted


async def test_already_is_not_said_when_the_committed_part_is_gone(rig: Rig) -> None:
    job = await rig.job(8)
    await rig.execute(job)
    part = rig.commit().part
    assert part is not None
    del rig.objects.data[part.key]
    summary = await rig.execute(job)
    assert summary.outcome == "lost"
    assert "repair" in (summary.detail or "")


async def test_a_split_shard_answers_already(rig: Rig) -> None:
    job = await rig.job(8)
    children = tuple(Child(shard=f"{SHARD}.{n}", source=job.source) for n in range(2))
    split = SplitCommit(plan=job.plan, shard=SHARD, children=children, at=rig.store.now())
    await rig.store.put(KEYS.commit(SHARD), encode(split))
    assert (await rig.execute(job)).outcome == "already"
    assert rig.engine.submitted == 0


@pytest.mark.parametrize(
    ("epoch", "mode", "outcome"), [(1, "run", "fenced"), (1, "stop", "fenced"), (0, "keep", "fenced"), (0, "run", "won")]
)
async def test_an_older_epoch_is_fenced(rig: Rig, epoch: int, mode: str, outcome: str) -> None:
    job = await rig.job(8)
    control = Control(plan=job.plan, epoch=epoch, mode=mode, at=rig.store.now(), by="test")  # type: ignore[arg-type]
    await rig.store.put(KEYS.control(), encode(control))
    assert (await rig.execute(job)).outcome == outcome
    assert bool(rig.engine.submitted) == (outcome == "won")


async def test_a_job_past_its_start_by_is_expired(rig: Rig) -> None:
    job = await rig.job(8)
    rig.objects.advance(3601)
    assert (await rig.execute(job)).outcome == "expired"
    assert (rig.engine.submitted, rig.keys("starts/")) == (0, [])


async def test_another_plan_is_a_mismatch(rig: Rig) -> None:
    job = await rig.job(8)
    other = with_(job, plan="0" * 64)
    assert (await rig.execute(other)).outcome == "mismatch"  # type: ignore[arg-type]
    del rig.objects.data[KEYS.plan()]
    assert (await rig.execute(job)).outcome == "mismatch"
    assert rig.engine.submitted == 0


async def test_another_task_than_the_plans_is_a_mismatch(rig: Rig) -> None:
    job = await rig.job(8)
    changed = with_(job, task=with_(job.task, params={"max_tokens": 5}))
    assert (await rig.execute(changed)).outcome == "mismatch"  # type: ignore[arg-type]


@pytest.mark.parametrize("denied", ["get", "put"])
async def test_keys_that_may_not_write_end_before_anything_is_computed(rig: Rig, denied: str) -> None:
    job = await rig.job(8)

    async def refuse(op: str, key: str) -> None:
        if op == denied:
            raise AccessDenied(f"{op} was refused (AccessDenied).", where=key)

    summary = await rig.execute(job, store=MemoryStore(rig.objects, bucket="bucket", hook=refuse))
    assert summary.outcome == "credentials"
    assert rig.engine.submitted == 0


async def test_an_altered_row_is_input_changed(rig: Rig) -> None:
    job = await rig.job(8)
    rows = sample_rows("generate", 8)
    plan = rig.objects.data[KEYS.plan()]
    await rig.job([*rows[:7], SampleRow("row-7", CompletionUrl, {"prompt": "not what was planned"})])
    rig.objects.data[KEYS.plan()] = plan
    summary = await rig.execute(job)
    assert summary.outcome == "input_changed"
    assert "digest" in (summary.detail or "")
    assert end_marker(rig).outcome == "input_changed"
    assert rig.engine.submitted == 0


@pytest.mark.parametrize("damage", ["gone", "short", "garbage"])
async def test_damaged_input_is_input_changed(rig: Rig, damage: str) -> None:
    job = await rig.job(8)
    key = KEYS.input(SHARD)
    if damage == "gone":
        del rig.objects.data[key]
    else:
        rig.objects.data[key] = b"\0" * 40 if damage == "garbage" else rig.objects.data[key][:-9]
    assert (await rig.execute(job)).outcome == "input_changed"
    assert rig.engine.submitted == 0


async def test_a_parameter_that_no_row_could_use_refuses_the_whole_job(rig: Rig) -> None:
    job = await rig.job(8, params={"max_tokens": 4, "temprature": 1})
    with pytest.raises(ContractError, match="temprature"):
        await rig.execute(job)


async def test_a_task_of_the_other_kind_refuses_the_whole_job(rig: Rig) -> None:
    job = await rig.job(8)
    with pytest.raises(ContractError, match=r"can only embed"):
        await rig.execute(job, engine=FakeEngine("embed"))


# --- what ends in the middle ---


async def test_a_stop_keeps_finished_rows_as_a_piece_and_leaves_no_commit(rig: Rig) -> None:
    seen = 0

    async def stop_at_the_third_step() -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            rig.stop.set("sigterm")

    rig.engine.pause = stop_at_the_third_step
    summary = await rig.execute(await rig.job(20))
    assert (summary.outcome, summary.detail, summary.ok) == ("partial", "sigterm", 8)
    (piece,) = rig.keys("pieces/")
    assert sorted(line.index for line in lines(rig.objects.data[piece], PartLine)) == list(range(8))
    assert (rig.keys("commits/"), rig.keys("parts/"), end_marker(rig).outcome) == ([], [], "partial")


async def test_a_stop_before_the_first_step_computes_nothing(rig: Rig) -> None:
    rig.stop.set("deadline")
    assert (await rig.execute(await rig.job(8))).outcome == "partial"
    assert (rig.engine.submitted, rig.keys("pieces/")) == (0, [])


async def test_a_stop_after_the_last_row_still_commits(rig: Rig) -> None:
    async def stop(op: str, key: str) -> None:
        if op == "put" and "/parts/" in key:
            rig.stop.set("stop")

    store = MemoryStore(rig.objects, bucket="bucket", hook=stop)
    assert (await rig.execute(await rig.job(8), store=store)).outcome == "won"


async def test_a_dead_engine_keeps_what_had_finished_and_says_so(rig: Rig) -> None:
    rig.engine.dies_after = 12
    with pytest.raises(EngineDied):
        await rig.execute(await rig.job(20))
    (piece,) = rig.keys("pieces/")
    assert len(lines(rig.objects.data[piece], PartLine)) == 12
    assert (end_marker(rig).outcome, end_marker(rig).ok, rig.keys("commits/")) == ("partial", 12, [])


@pytest.mark.parametrize("fault", ["loses", "twice"])
async def test_an_engine_that_answers_too_few_or_too_many_rows_is_dead_not_believed(rig: Rig, fault: str) -> None:
    setattr(rig.engine, fault, frozenset({5}))
    with pytest.raises(EngineDied):
        await rig.execute(await rig.job(8))
    assert rig.keys("commits/") == []


async def test_a_long_shard_keeps_pieces_while_it_runs_and_no_more_than_its_share(rig: Rig) -> None:
    async def ten_seconds() -> None:
        rig.clock.at += 10.0

    rig.engine.pause, rig.engine.group = ten_seconds, 1
    rig.pieces = PiecePolicy(seconds=10.0, share=1 / 4)
    summary = await rig.execute(await rig.job(41))
    assert summary.outcome == "won"
    pieces = [lines(rig.objects.data[key], PartLine) for key in rig.keys("pieces/")]
    assert [len(piece) for piece in pieces] == [10, 10, 10, 10]
    assert [key.rsplit("/", 1)[1] for key in rig.keys("pieces/")] == [f"{number:04d}.jsonl.zst" for number in range(4)]


async def test_a_store_that_refuses_pieces_does_not_stop_the_shard(rig: Rig) -> None:
    async def refuse(op: str, key: str) -> None:
        if "/pieces/" in key:
            raise StoreUnavailable("put failed after retries (503).", where=key)

    async def ten_seconds() -> None:
        rig.clock.at += 10.0

    rig.engine.pause = ten_seconds
    summary = await rig.execute(await rig.job(40), store=MemoryStore(rig.objects, bucket="bucket", hook=refuse))
    assert (summary.outcome, summary.ok) == ("won", 39)


# --- the commit ---


async def test_of_two_executions_one_wins_and_the_other_says_lost(rig: Rig) -> None:
    job = await rig.job(8)
    second: list[str] = []

    async def another_comes_first(op: str, key: str) -> None:
        if op == "put_if_absent" and not second:
            second.append("begun")
            second[0] = (await rig.execute(job)).outcome

    first = await rig.execute(job, store=MemoryStore(rig.objects, bucket="bucket", hook=another_comes_first))
    assert (first.outcome, second) == ("lost", ["won"])
    assert rig.commit().execution == f"{2:016x}"
    assert max(count for key, count in rig.objects.writes.items() if "/input/" not in key and "plan.json" not in key) == 1


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_a_lost_answer_to_the_commit_is_found_to_have_won(rig: Rig, mode: str) -> None:
    rig.store.mode = mode  # type: ignore[assignment]
    job = await rig.job(8)
    lost: list[str] = []

    async def lose(op: str, key: str) -> None:
        if op.startswith("put") and "/commits/" in key and not lost:
            lost.append(key)
            raise StoreUnavailable("no answer", where=key)

    store = MemoryStore(rig.objects, bucket="bucket", after=lose, mode=mode, dialect=mode)  # type: ignore[arg-type]
    assert (await rig.execute(job, store=store)).outcome == "won"
    assert lost


async def test_a_part_that_does_not_stand_as_it_was_written_is_never_committed(rig: Rig) -> None:
    job = await rig.job(8)

    async def truncate(op: str, key: str) -> None:
        if op == "put" and "/parts/" in key:
            rig.objects.data[key] = rig.objects.data[key][:-1]

    with pytest.raises(StoreError, match="bytes were written"):
        await rig.execute(job, store=MemoryStore(rig.objects, bucket="bucket", after=truncate))
    assert rig.keys("commits/") == []


async def test_an_end_marker_that_cannot_be_written_changes_no_result(rig: Rig) -> None:
    async def refuse(op: str, key: str) -> None:
        if "/ends/" in key:
            raise StoreUnavailable("no answer", where=key)

    summary = await rig.execute(await rig.job(8), store=MemoryStore(rig.objects, bucket="bucket", hook=refuse))
    assert (summary.outcome, rig.commit().ok) == ("won", 7)


async def test_a_run_in_another_bucket_than_the_keys_is_refused(rig: Rig) -> None:
    job = await rig.job(8)
    with pytest.raises(ContractError, match="bucket"):
        await rig.execute(job, store=MemoryStore(rig.objects, bucket="other"))


class Crash(BaseException):
    """A kill -9 of the worker."""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crash_at=st.integers(0, 30), lose_answer=st.booleans(), last_writer=st.booleans(), reverse=st.booleans())
def test_a_crash_at_any_step_leaves_nothing_that_the_next_execution_cannot_finish(
    tmp_path_factory: pytest.TempPathFactory, crash_at: int, lose_answer: bool, last_writer: bool, reverse: bool
) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path_factory.mktemp("rig"))
        rig.engine.reverse = reverse
        mode = "last-writer" if last_writer else "conditional"
        rig.store.mode = mode  # type: ignore[assignment]
        job = await rig.job(9)
        steps = 0

        async def crash(op: str, key: str) -> None:
            nonlocal steps
            steps += 1
            if steps == crash_at:
                raise Crash

        hooks: dict[str, Callable[[str, str], Awaitable[None]]] = {"after" if lose_answer else "hook": crash}
        store = MemoryStore(rig.objects, bucket="bucket", mode=mode, dialect=mode, **hooks)  # type: ignore[arg-type]
        try:
            first = await rig.execute(job, store=store)
            assert first.outcome == "won"
        except Crash:
            pass
        summary = await rig.execute(job)
        assert summary.outcome in ("won", "already")
        assert (summary.ok, summary.failed) == (8, 1)
        assert sorted(rig.answers()) == list(range(8))
        assert sorted(rig.failures()) == [8]
        assert rig.commit().digest == rig.recomputed()
        data = ("parts/", "errors/", "pieces/", "starts/", "ends/")
        assert all(rig.objects.writes[key] == 1 for prefix in data for key in rig.keys(prefix))

    asyncio.run(scenario())


async def test_a_row_for_the_wrong_url_fails_alone(rig: Rig) -> None:
    rows = [SampleRow("a", CompletionUrl, {"prompt": "hi"}), SampleRow("b", "/v1/embeddings", {"input": "hi"})]
    await rig.execute(await rig.job(rows))
    assert rig.failures()[1] == RowError(
        code="wrong_url", message="this run's task is `generate`, and the row is for /v1/embeddings.", param="url"
    )


async def test_a_lone_surrogate_fails_its_row_alone(rig: Rig) -> None:
    rows = [
        SampleRow("a", CompletionUrl, {"prompt": "hi"}),
        SampleRow("b", CompletionUrl, '{"prompt": "half \\ud800"}'),
        SampleRow("c", ChatUrl, '{"messages": [{"role": "user", "content": "half \\udc00 and more"}]}'),
        SampleRow("d", CompletionUrl, '{"prompt": "whole \\ud83d\\ude00"}'),
    ]
    summary = await rig.execute(await rig.job(rows))
    assert {index: error.code for index, error in rig.failures().items()} == {1: "lone_surrogate", 2: "lone_surrogate"}
    assert (summary.outcome, sorted(rig.answers())) == ("won", [0, 3])
    assert json.loads(bytes(rig.answers()[3].response))["choices"][0]["text"] == "echo whole \U0001f600"


async def test_line_separators_inside_a_row_are_text(rig: Rig) -> None:
    text = "x\u2028y\u0085z\u000b"
    await rig.execute(await rig.job([SampleRow("a", CompletionUrl, json.dumps({"prompt": text}, ensure_ascii=False))]))
    assert json.loads(bytes(rig.answers()[0].response))["choices"][0]["text"] == f"echo {text}"


async def test_start_by_is_the_stores_instant(rig: Rig) -> None:
    job = await rig.job(8)
    rig.objects.instant = job.start_by - timedelta(seconds=1)
    assert (await rig.execute(job)).outcome == "won"
