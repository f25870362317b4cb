# tests/pipelines: what a run came to, from storage alone.
from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from contract.models import Commit, EndMarker, PhaseSeconds, StartMarker
from contract.tree import read_commits
from pipelines.collect import collect
from pipelines.summary import FailureCount, RunSummary, read_summary, summarize, summary_lines, write_summary
from tests.pipelines.runs import AT, Run, make_run


def start(execution: str, worker: str, *, load_s: float = 0.0) -> StartMarker:
    return StartMarker(
        plan="ab" * 32, shard="00000", execution=execution, attempt=1, epoch=0, job_id="j", worker_id=worker, load_s=load_s, at=AT
    )


def end(execution: str, **seconds: float) -> EndMarker:
    return EndMarker(
        plan="ab" * 32, shard="00000", execution=execution, attempt=1, outcome="won", wall_s=9, seconds=PhaseSeconds(**seconds), at=AT
    )


STARTS = {name: start(name, worker, load_s=load) for name, worker, load in (("a" * 16, "w1", 5), ("b" * 16, "w1", 0), ("c" * 16, "w2", 4))}
ENDS = {"a" * 16: end("a" * 16, loading=5, reading=1, computing=7, writing=2), "b" * 16: end("b" * 16, reading=1, computing=8)}


async def summary_of(run: Run, **options: Any) -> RunSummary:
    names = ["00000", "00001", "00001.0", "00001.1", "00002"]
    commits: dict[str, Commit] = await read_commits(run.store, run.keys, names)
    return summarize(run.plan, commits, STARTS, ENDS, attempts=5, seconds=12.5, worker_seconds=20.0, usd_estimated=0.02, at=AT, **options)


async def test_rows_and_tokens_come_from_commits_and_executions_from_markers() -> None:
    summary = await summary_of(await make_run(splits=(1,)))
    assert (summary.state, summary.rows, summary.ok, summary.failed) == ("complete", 8, 6, 2)
    assert (summary.shards, summary.shards_done, summary.tokens_in, summary.tokens_out) == (4, 4, 24, 6)
    assert (summary.executions, summary.workers, summary.attempts) == (3, 2, 5)
    assert (summary.worker_seconds, summary.usd_planned, summary.usd_estimated) == (20.0, 0.2, 0.02)


async def test_an_execution_without_end_counts_its_engine_start() -> None:
    assert (await summary_of(await make_run())).phases == PhaseSeconds(loading=9, reading=2, computing=15, writing=2)


async def test_a_run_with_open_shards_says_so() -> None:
    summary = await summary_of(await make_run(leave_open=(2,)))
    assert (summary.state, summary.shards_done, summary.shards) == ("open", 2, 3)
    assert summary.ok + summary.failed == 6
    assert (await summary_of(await make_run(leave_open=(2,)), state="stopped")).state == "stopped"


async def test_failures_are_summed_by_code_with_an_example(tmp_path: Path) -> None:
    run = await make_run(outcomes=[True, False, False, False, False, True, True, False])
    collected = await collect(run.store, run.keys, run.plan, str(tmp_path / "rows.jsonl"))
    summary = await summary_of(run, collected=collected, verified=True)
    assert summary.failures == (
        FailureCount(code="code_1", rows=3, example_id="row-1", example="row 1 is bad"),
        FailureCount(code="code_0", rows=2, example_id="row-2", example="row 2 is bad"),
    )
    text = "\n".join(summary_lines(summary))
    assert ": complete, verified" in text
    assert "3 x code_1, such as row-1: row 1 is bad" in text
    assert str(tmp_path / "rows.errors.jsonl") in text


async def test_lines_say_what_is_wrong_and_cap_the_codes() -> None:
    codes = tuple(FailureCount(code=f"c{i}", rows=9 - i, example_id="x", example="y") for i in range(7))
    lines = summary_lines(msgspec.structs.replace(await summary_of(await make_run()), verified=False, failures=codes))
    assert "NOT as it should be" in lines[0]
    assert lines[-1].endswith("and 2 more codes")


async def test_a_kept_summary_is_read_again_and_rubbish_is_none() -> None:
    run = await make_run()
    assert await read_summary(run.store, run.keys) is None
    summary = await summary_of(run)
    await write_summary(run.store, run.keys, summary)
    await write_summary(run.store, run.keys, summary)
    assert await read_summary(run.store, run.keys) == summary
    run.store.objects.data[run.keys.summary()] = b"{}"
    assert await read_summary(run.store, run.keys) is None
