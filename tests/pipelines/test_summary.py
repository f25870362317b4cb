# tests/pipelines: what a run came to, kept beside it.
from __future__ import annotations

from pathlib import Path

from contract.models import PhaseSeconds
from pipelines.collect import collect
from pipelines.follow import DriveResult
from pipelines.summary import FailureCount, RunSummary, read_summary, summarize, write_summary
from tests.pipelines.runs import AT, Run, make_run


def result(run: Run, **changes: object) -> DriveResult:
    values: dict[str, object] = {
        "run": run.plan.run,
        "state": "complete",
        "cause": "complete",
        "reason": "all rows are committed.",
        "seconds": PhaseSeconds(loading=9, reading=2, computing=15, writing=2),
    }
    values |= {"rows": 8, "ok": 3, "failed": 5, "shards": 3, "shards_done": 3, "attempts": 5, "executions": 4}
    values |= {"worker_seconds": 20.0, "usd_estimated": 0.02, "usd_reserved": 0.0, "tokens_in": 24, "tokens_out": 6, "elapsed_s": 12.0}
    return DriveResult(**(values | changes))  # type: ignore[arg-type]


def summary_of(run: Run, **changes: object) -> RunSummary:
    return summarize(run.plan, result(run, **changes), seconds=12.5, at=AT)


async def test_a_summary_says_what_was_planned_and_what_it_came_to() -> None:
    summary = summary_of(await make_run())
    assert (summary.rows, summary.ok, summary.failed, summary.skipped) == (8, 3, 5, 0)
    assert (summary.usd_planned, summary.usd_estimated, summary.worker_seconds) == (0.2, 0.02, 20.0)
    assert (summary.seconds, summary.phases.computing) == (12.5, 15)


async def test_failures_are_summed_by_code_with_an_example(tmp_path: Path) -> None:
    run = await make_run(outcomes=[True, False, False, False, False, True, True, False])
    collected = await collect(run.store, run.keys, run.plan, str(tmp_path / "rows.jsonl"))
    summary = summarize(run.plan, result(run), seconds=12.5, at=AT, collected=collected, verified=True)
    assert summary.failures == (
        FailureCount(code="code_1", rows=3, example_id="row-1", example="row 1 is bad"),
        FailureCount(code="code_0", rows=2, example_id="row-2", example="row 2 is bad"),
    )
    assert summary.errors == str(tmp_path / "rows.errors.jsonl")
    assert summary.seal == collected.seal


async def test_a_kept_summary_is_read_again_and_rubbish_is_none() -> None:
    run = await make_run()
    assert await read_summary(run.store, run.keys) is None
    summary = summary_of(run)
    await write_summary(run.store, run.keys, summary)
    await write_summary(run.store, run.keys, summary)
    assert await read_summary(run.store, run.keys) == summary
    run.store.objects.data[run.keys.summary()] = b"{}"
    assert await read_summary(run.store, run.keys) is None
