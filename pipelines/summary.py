"""pipelines: the end of a run in one frozen object, kept as summary.json beside it. Pure but for `write_summary` and `read_summary`."""

from __future__ import annotations

from datetime import datetime

from contract.errors import ContractError
from contract.keys import RunKeys
from contract.models import VERSION, Count, Hex64, Instant, Model, PhaseSeconds, Plan, Seconds, Usd, decode, encode
from contract.store import Store, get_or_none
from pipelines.collect import Collected
from pipelines.follow import DriveResult
from pipelines.scratch import is_scratch


class FailureCount(Model, frozen=True, kw_only=True):
    """Failed rows of one code, with one of them as an example."""

    code: str
    rows: Count
    example_id: str
    example: str


class RunSummary(Model, frozen=True, kw_only=True):
    """summary.json. Field names are those of the CLI's JSON object.

    `seconds`: from the command's start to its end; `phases`: of all executions, losers included; `worker_seconds` and
    `usd_estimated`: from the executions' markers at the plan's price; `usd_planned`: the plan's likely cost; `verified`: None where verify
    has not looked.
    """

    version: int = VERSION
    run: str
    plan: Hex64
    state: str
    rows: Count
    ok: Count
    failed: Count
    skipped: Count
    shards: Count
    shards_done: Count
    attempts: Count
    executions: Count
    tokens_in: Count
    tokens_out: Count
    out: str | None
    errors: str | None
    seal: Hex64 | None
    verified: bool | None
    seconds: Seconds
    phases: PhaseSeconds
    worker_seconds: Seconds
    usd_planned: Usd
    usd_estimated: Usd
    failures: tuple[FailureCount, ...] = ()
    at: Instant


def summarize(
    plan: Plan,
    result: DriveResult,
    *,
    seconds: float,
    at: datetime,
    collected: Collected | None = None,
    verified: bool | None = None,
) -> RunSummary:
    """What a run came to when it was followed, and collected and verified where that was done. `seconds`: all of it, for the user."""
    names = collected.names if collected is not None and not is_scratch(collected.names.out) else None
    return RunSummary(
        run=plan.run,
        plan=plan.plan_id,
        state=result.state,
        rows=result.rows,
        ok=result.ok,
        failed=result.failed,
        skipped=plan.dataset.skipped,
        shards=result.shards,
        shards_done=result.shards_done,
        attempts=result.attempts,
        executions=result.executions,
        tokens_in=result.tokens_in,
        tokens_out=result.tokens_out,
        out=names.out if names is not None else None,
        errors=names.errors if names is not None else None,
        seal=collected.seal if collected else None,
        verified=verified,
        seconds=seconds,
        phases=result.seconds,
        worker_seconds=result.worker_seconds,
        usd_planned=plan.estimate.usd.likely,
        usd_estimated=result.usd_estimated,
        failures=tuple(
            FailureCount(code=one.code, rows=one.rows, example_id=one.example_id, example=one.example)
            for one in (collected.failures if collected else ())
        ),
        at=at,
    )


async def write_summary(store: Store, keys: RunKeys, summary: RunSummary) -> None:
    """Keep it beside the run, replacing an earlier one: it is a report, and nothing is decided by it."""
    await store.put(keys.summary(), encode(summary))


async def read_summary(store: Store, keys: RunKeys) -> RunSummary | None:
    """The summary that was kept last; None where there is none, or one that this version cannot read."""
    blob = await get_or_none(store, keys.summary())
    if blob is None:
        return None
    try:
        found: RunSummary = decode(blob.data, RunSummary, where=keys.summary())
    except ContractError:
        return None
    return found
