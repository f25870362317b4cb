"""The log of a run: everything that storage knows of who said what, in order of time, of the whole, of a shard, of a row."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.errors import UsageError
from contract.keys import RunUri
from contract.memory import MemoryStore
from contract.models import (
    AttemptNote,
    Control,
    EndMarker,
    Intent,
    JournalEntry,
    PartCommit,
    PhaseSeconds,
    RowOptions,
    StartMarker,
    encode,
)
from contract.rows import RowError
from contract.store import CHUNK
from pipelines.ledger import Ledger, LedgerAttempt
from pipelines.logs import MOST_SAID, Line, Near, job_lines, read_log
from pipelines.plan import PlanRequest
from pipelines.runs import RunHandle, load_run
from pipelines.work import Following
from tests.nights.kit import NightHouse
from tests.pipelines.planning import write_jsonl
from tests.pipelines.runs import AT, Run, make_run


def second(number: float) -> Any:
    return AT + timedelta(seconds=number)


def intent(attempt: int, shard: str, at: float) -> Intent:
    return Intent(
        attempt=attempt, shard=shard, sent_at=second(at), start_by=second(at + 60), ttl_s=600, execution_timeout_s=600, reserve_usd=0.5,
        epoch=0, low_priority=attempt > 1,
    )  # fmt: skip


async def put_journal(
    run: Run, number: int, client: str, at: float, intents: Sequence[Intent] = (), notes: Sequence[AttemptNote] = ()
) -> None:
    entry = JournalEntry(plan=run.plan.plan_id, number=number, client=client, at=second(at), intents=tuple(intents), notes=tuple(notes))
    await run.store.put(run.keys.journal(number), encode(entry))


async def put_start(run: Run, shard: str, execution: str, attempt: int, at: float) -> StartMarker:
    marker = StartMarker(
        plan=run.plan.plan_id, shard=shard, execution=execution, attempt=attempt, epoch=0, job_id=f"job-{attempt}", worker_id="w-1",
        image="image@sha256:1", load_s=2.0, at=second(at),
    )  # fmt: skip
    await run.store.put(run.keys.start(shard, execution), encode(marker))
    return marker


async def put_end(run: Run, shard: str, execution: str, attempt: int, at: float, outcome: Any = "won") -> None:
    marker = EndMarker(
        plan=run.plan.plan_id, shard=shard, execution=execution, attempt=attempt, outcome=outcome, wall_s=3.0,
        seconds=PhaseSeconds(computing=2.5), ok=2, failed=1, tokens_in=9, tokens_out=2, at=second(at),
    )  # fmt: skip
    await run.store.put(run.keys.end(shard, execution), encode(marker))


async def told(run: Run, **how: Any) -> tuple[list[Line], list[str]]:
    run.store.objects.instant = second(60)
    log = await read_log(run.store, handle_of(run), **how)
    return [line async for line in log.lines()], log.damaged


def handle_of(run: Run) -> RunHandle:
    return RunHandle(RunUri.parse(run.plan.run), run.plan)


def texts(lines: Sequence[Line]) -> list[str]:
    return [line.text for line in lines]


async def eventful() -> Run:
    """Shard 00000 died once and won then; 00001 was split; 00002 is open and runs. Instants: commits are all at second 0."""
    run = await make_run(splits=(1,), leave_open=(2,))
    dead = AttemptNote(client="aaaa", attempt=1, state="dead", cause="worker_died", error="out of memory", at=second(-30))
    sent = AttemptNote(client="aaaa", attempt=1, state="sent", job_id="job-1", at=second(-49))
    refused = AttemptNote(client="aaaa", attempt=3, state="rejected", cause="yielded", at=second(-48))
    await put_journal(run, 0, "aaaa", -50, [intent(1, "00000", -50), intent(3, "00001", -50)])
    await put_journal(run, 1, "bbbb", -29, [intent(2, "00000", -29), intent(4, "00002", -20)], [sent, dead, refused])
    await put_start(run, "00000", "00000000000000dd", 1, -700)
    await put_start(run, "00000", "00000000000000aa", 2, -10)
    await put_end(run, "00000", "00000000000000aa", 2, 1)
    await put_start(run, "00002", "00000000000000cc", 4, 5)
    await run.store.put(
        run.keys.control(),
        encode(Control(plan=run.plan.plan_id, epoch=1, mode="keep", at=second(9), by="cccc", reason="enough for tonight")),
    )
    return run


async def test_everything_that_was_said_comes_in_order_of_time() -> None:
    run = await eventful()
    lines, damaged = await told(run)
    assert damaged == []
    assert lines[0].kind == "planned"
    assert [line.at for line in lines[1:]] == sorted(line.at for line in lines[1:])
    whole = "\n".join(texts(lines))
    for part in (
        "plans 8 rows in 3 shards",
        "sends attempt 1, at most $0.5000",
        "sends attempt 2, low priority",
        "attempt 1 was accepted, job job-1",
        "begins attempt 2, engine started in 2.0 s, image image@sha256:1",
        "ends attempt 2: won after 3.0 s (computing 2.5 s); 2 rows ok, 1 failed, tokens 9 in and 2 out",
        "attempt 1 is its result: 2 rows ok, 1 failed",
        "splits it into 00001.0, 00001.1",
        "tells the run to start nothing new (epoch 1): enough for tonight",
        "begins attempt 4, engine started in 2.0 s, image image@sha256:1, not over as far as is known",
    ):
        assert part in whole
    assert {line.who for line in lines if line.kind == "sends"} == {"client aaaa", "client bbbb"}
    assert next(line for line in lines if line.kind == "ends").who == "worker w-1"


async def test_with_errors_only_what_went_wrong_is_told_and_each_failed_row() -> None:
    run = await make_run(splits=(1,), leave_open=(2,))
    dead = AttemptNote(attempt=1, state="dead", cause="worker_died", error="out of memory", at=second(-30))
    yielded = AttemptNote(attempt=3, state="rejected", cause="yielded", at=second(-48))
    await put_journal(run, 0, "aaaa", -50, [intent(1, "00000", -50), intent(3, "00001", -50)], [dead, yielded])
    await put_start(run, "00000", "00000000000000dd", 1, -700)
    await put_end(run, "00000", "00000000000000aa", 2, 1, outcome="partial")
    lines, _ = await told(run, errors=True)
    assert [line.kind for line in lines] == ["begins", "dead", "split", "commit", "row", "ends"]
    assert texts(lines)[0].endswith("never said how it ended")
    assert texts(lines)[1] == "attempt 1 is dead (worker_died): out of memory"
    row = lines[4]
    assert (row.id, row.row, row.code, row.shard) == ("row-2", 2, "code_0", "00000")
    assert row.text == "row row-2 failed: code_0: row 2 is bad"


async def test_a_shard_is_told_with_its_children_and_reads_little_else() -> None:
    run = await eventful()
    reads: list[str] = []

    async def hook(op: str, key: str) -> None:
        reads.append(key)

    run.store.hook = hook
    lines, _ = await told(run, shard="00001")
    assert {line.shard for line in lines} == {"00001", "00001.0", "00001.1"}
    assert not any("/00000" in key.split("/journal/")[0] for key in reads)
    child, _ = await told(run, shard="00001.1")
    assert {line.shard for line in child} == {"00001.1"}


@pytest.mark.parametrize(
    ("shard", "fix"),
    [
        ("1", "Did you mean 00001?"),
        ("00009", "Did you mean 0000"),
        ("00001.7", "Did you mean 00001.1"),
        ("../x", "00000 to 00002"),
        ("", ""),
    ],
)
async def test_a_shard_that_is_not_there_is_named_with_one_that_is(shard: str, fix: str) -> None:
    run = await make_run(splits=(1,))
    with pytest.raises(UsageError, match="has no shard") as refused:
        await told(run, shard=shard)
    assert fix in str(refused.value)


async def test_a_row_is_told_with_its_shards_and_its_error() -> None:
    run = await make_run(outcomes=[True, True, True, True, False, True, True, True], splits=(1,))
    lines, _ = await told(run, row_id="row-4")
    assert texts(lines)[0] == "row row-4 is row 4 of the dataset, in shard 00001 and then 00001.1"
    assert [line.kind for line in lines] == ["row", "split", "commit", "row"]
    assert lines[-1].text == "row row-4 failed: code_0: row 4 is bad"
    assert {line.shard for line in lines} == {"00001", "00001.1"}


async def test_a_row_that_is_well_or_open_is_found_in_the_input() -> None:
    run = await make_run(leave_open=(2,))
    well, _ = await told(run, row_id="row-3")
    assert well[-1].text.startswith("row row-3 has its answer: runs/")
    waits, _ = await told(run, row_id="row-7")
    assert waits[-1].text == "row row-7 has no result yet"
    within, _ = await told(run, row_id="row-3", shard="00001")
    assert texts(within) == texts(well)
    with pytest.raises(UsageError, match=r"shard 00000: there is no row 'row-3'"):
        await told(run, row_id="row-3", shard="00000")


async def test_a_row_that_was_left_out_before_the_run_is_told_as_that() -> None:
    bad = {"file": "rows.jsonl", "line": 7, "code": "no_text", "reason": "has no text", "id": "odd"}
    run = await make_run(skipped=[bad])
    lines, _ = await told(run, row_id="odd")
    assert texts(lines) == ["row odd was left out before the run: rows.jsonl:7: no_text: has no text"]


@pytest.mark.parametrize(
    ("ident", "fix"),
    [
        ("Row-3", "Did you mean row-3?"),
        ("row-33", "Did you mean row-3"),
        ("rw-3", "row-3"),
        ("zzz", "Ids are those of the dataset"),
        ("", "Ids"),
    ],
)
async def test_a_row_that_is_not_there_is_named_with_ones_that_are(ident: str, fix: str) -> None:
    run = await make_run()
    with pytest.raises(UsageError, match="there is no row") as refused:
        await told(run, row_id=ident)
    assert fix in str(refused.value)


def test_near_ids_are_kept_few_however_many_pass_by() -> None:
    near = Near("doc-123456")
    for number in range(100_000, 130_000):
        near.saw(f"doc-{number}")
    assert len(near._kept) <= 60
    assert near.best()[0] == "doc-123456"


async def test_failed_rows_are_streamed() -> None:
    """The first one comes before the rest of the object is read."""
    chunks: list[int] = []

    class Counts(MemoryStore):
        async def read(self, key: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
            async for chunk in super().read(key, start, stop):
                for at in range(0, len(chunk), 1000):
                    chunks.append(at)
                    yield chunk[at : at + 1000]

    run = await make_run(outcomes=[False] * 20_000, cuts=(1,), store=Counts())
    errors = run.commits["00001"].errors
    assert errors is not None
    assert errors.size > 100_000
    log = await read_log(run.store, handle_of(run), errors=True)
    chunks.clear()
    rows = 0
    async for line in log.lines():
        rows += line.kind == "row"
        if rows == 2:
            break
    assert len(chunks) < errors.size / 1000 / 2
    assert CHUNK > 1000


async def test_what_is_damaged_or_of_another_plan_is_named_and_the_rest_is_told() -> None:
    run = await eventful()
    await run.store.put(run.keys.commit("00002"), b"{")
    await run.store.put(run.keys.start("00000", "00000000000000ee"), b"[]")
    await run.store.put(run.keys.journal(2), b"no journal")
    await run.store.put(run.keys.control(), b"x")
    ref = run.commits["00000"].errors
    assert ref is not None
    await run.store.delete(ref.key)
    lines, damaged = await told(run, errors=True)
    assert len(damaged) == 5
    assert all(run.keys.root in one for one in damaged)
    assert "attempt 1 is dead (worker_died): out of memory" in texts(lines)


async def test_what_this_machine_saw_is_told_too(tmp_path: Path) -> None:
    run = await make_run()
    uri = run.plan.run
    with Ledger(tmp_path / "ledger.sqlite3") as ledger:
        ledger.attempts(uri, [LedgerAttempt("aaaa", 1, "00000", "won", None, "job-1", False, second(-5))], second(3))
        ledger.webhook(uri, "00001", 2, second(4))
        ledger.webhook(uri, "00001", 2, second(5))
        notes = ledger.notes_of(uri)
    lines, _ = await told(run, ledger=notes)
    said = [(line.kind, line.text) for line in lines if line.who == "ledger"]
    assert said == [("ledger", "attempt 1 is won, as this machine saw it last"), ("webhook", "a webhook of attempt 2 came (2 times)")]
    only, _ = await told(run, ledger=notes, shard="00001")
    assert [line.kind for line in only if line.who == "ledger"] == ["webhook"]


def sdk(job: str | None, message: str) -> str:
    return json.dumps({"requestId": job, "message": message, "level": "INFO"}) + "\n"


async def test_of_a_workers_log_only_what_is_about_the_runs_jobs_is_told() -> None:
    run = await make_run()
    mine = [await put_start(run, "00000", "00000000000000aa", 1, -9), await put_start(run, "00001", "00000000000000ab", 2, -8)]
    log = [
        "INFO nightbatch.worker: loading tiny\n",
        sdk("other", "Started."),
        "INFO nightbatch.worker: shard 00000, attempt 1: won, 9 ok, 0 failed\n",
        "WARNING of the other\n",
        sdk("other", "Finished."),
        sdk(None, "Jobs in queue: 1"),
        sdk("job-1", "Started."),
        "WARNING vllm: slow\n",
        sdk("job-2", "Started."),
        "WARNING of either\n",
        "INFO nightbatch.worker: shard 00001, attempt 2: won, 3 ok, 0 failed\n",
        sdk("job-2", "Finished."),
        "INFO nightbatch.worker: shard 00000, attempt 1: won, 3 ok, 0 failed\n",
        sdk("job-1", "Job stopped."),
        "INFO idle\n",
        '{"requestId": broken\n',
    ]
    said = [(one.start.job_id, one.text, one.ends) for one in job_lines(log, mine)]
    assert said == [
        ("job-1", "Started.", False),
        ("job-1", "WARNING vllm: slow", False),
        ("job-2", "Started.", False),
        ("job-2", "INFO nightbatch.worker: shard 00001, attempt 2: won, 3 ok, 0 failed", True),
        ("job-2", "Finished.", True),
        ("job-1", "INFO nightbatch.worker: shard 00000, attempt 1: won, 3 ok, 0 failed", True),
        ("job-1", "Job stopped.", True),
    ]
    lines, _ = await told(run, worker_lines=lambda starts: job_lines(log, starts))
    assert [line.text for line in lines if line.kind == "log"] == [one[1] for one in sorted(said, key=lambda one: (one[0], one[2]))]
    noisy = [sdk("job-1", "Started."), *("again\n" for _ in range(10_000))]
    assert len(list(job_lines(noisy, mine))) == MOST_SAID


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_a_real_run_tells_its_whole_way(tmp_path: Path, mode: Any) -> None:
    house = NightHouse(says=lambda text: RowError(code="bad", message="no seven") if "7" in text else f"said {text}", mode=mode)
    data = write_jsonl(tmp_path / "rows.jsonl", ({"id": f"r{n}", "text": f"text {n}"} for n in range(20)))
    request = PlanRequest(dataset=(str(data),), task="generate", model="smollm2", rows=RowOptions(column="text", id_column="id"))
    planned = await house.plan(request)
    await house.complete(planned, Following(out=str(tmp_path / "out.jsonl")))
    store = house.store
    run = await load_run(store, planned.uri)
    log = await read_log(store, run)
    kinds = [line.kind async for line in log.lines()]
    assert set(kinds) >= {"planned", "sends", "sent", "begins", "commit", "ends", "sealed", "summary"}
    assert log.damaged == []
    failed = [line async for line in (await read_log(store, run, errors=True)).lines() if line.kind == "row"]
    assert [(line.id, line.code) for line in failed] == [("r7", "bad"), ("r17", "bad")]
    one = [line.text async for line in (await read_log(store, run, row_id="r17")).lines()]
    assert "row r17 failed: bad: no seven" in one


async def test_an_id_of_a_row_with_half_a_surrogate_pair_is_found() -> None:
    run = await make_run()
    planned = run.plan.shards[0]
    from contract.lines import compress

    line = b'{"custom_id": "odd", "method": "POST", "url": "/v1/chat/completions", "body": {"x": "\\ud800"}}\n'
    await run.store.put(run.keys.input(planned.shard), compress(line * 3))
    lines, _ = await told(run, row_id="odd")
    assert lines[0].row == 0
    assert isinstance(run.commits["00000"], PartCommit)
