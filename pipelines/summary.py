"""pipelines: the end of a run in one frozen object, kept as summary.json beside the run. Pure but for `write_summary` and `read_summary`.

It is made from the plan, the commits and the markers alone, so that anybody with the run's address can make it again. What was spent is
given (`contract.protocol` does the accounting); what was collected and verified is added where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from contract.errors import ContractError
from contract.keys import RunKeys
from contract.models import (
    VERSION,
    Commit,
    Count,
    EndMarker,
    Hex64,
    Instant,
    Model,
    PhaseSeconds,
    Plan,
    Seconds,
    StartMarker,
    Usd,
    decode,
    encode,
)
from contract.store import Store, get_or_none
from contract.tree import build_tree
from pipelines.collect import Collected

SHOWN_FAILURES: Final = 5


class FailureCount(Model, frozen=True, kw_only=True):
    """Failed rows of one code, with one of them as an example."""

    code: str
    rows: Count
    example_id: str
    example: str


class RunSummary(Model, frozen=True, kw_only=True):
    """summary.json. Field names are those of the CLI's JSON object.

    `seconds`: from the first `/run` to the end, as the client saw it; `phases`: of all executions, losers included; `worker_seconds` and
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
    workers: Count
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
    commits: Mapping[str, Commit],
    starts: Mapping[str, StartMarker],
    ends: Mapping[str, EndMarker],
    *,
    attempts: int,
    seconds: float,
    worker_seconds: float,
    usd_estimated: float,
    at: datetime,
    state: str | None = None,
    collected: Collected | None = None,
    verified: bool | None = None,
) -> RunSummary:
    """The summary of a run as it stands. `state`: complete or open, unless the caller knows better. Rows and tokens are those of commits;
    executions of markers. Raises ContractError where a split does not partition its parent."""
    tree = build_tree(plan, commits)
    closed = [leaf.commit for leaf in tree.closed if leaf.commit is not None]
    return RunSummary(
        run=plan.run,
        plan=plan.plan_id,
        state=state or ("open" if tree.open else "complete"),
        rows=plan.dataset.rows,
        ok=sum(commit.ok for commit in closed),
        failed=sum(commit.failed for commit in closed),
        skipped=plan.dataset.skipped,
        shards=len(tree.leaves),
        shards_done=len(closed),
        attempts=attempts,
        executions=len(starts),
        workers=len({start.worker_id for start in starts.values()}),
        tokens_in=sum(commit.tokens_in for commit in closed),
        tokens_out=sum(commit.tokens_out for commit in closed),
        out=collected.names.out if collected else None,
        errors=collected.names.errors if collected else None,
        seal=collected.seal if collected else None,
        verified=verified,
        seconds=seconds,
        phases=phases(starts, ends),
        worker_seconds=worker_seconds,
        usd_planned=plan.estimate.usd.likely,
        usd_estimated=usd_estimated,
        failures=tuple(
            FailureCount(code=one.code, rows=one.rows, example_id=one.example_id, example=one.example)
            for one in (collected.failures if collected else ())
        ),
        at=at,
    )


def phases(starts: Mapping[str, StartMarker], ends: Mapping[str, EndMarker]) -> PhaseSeconds:
    """Seconds by phase over all executions. One without an end marker counts its engine start, which is all that is known of it."""
    ended = [end.seconds for end in ends.values()]
    unended = sum(start.load_s for execution, start in starts.items() if execution not in ends)
    return PhaseSeconds(
        loading=sum(one.loading for one in ended) + unended,
        reading=sum(one.reading for one in ended),
        computing=sum(one.computing for one in ended),
        writing=sum(one.writing for one in ended),
    )


def summary_lines(summary: RunSummary) -> list[str]:
    """The summary as text."""
    phase = summary.phases
    lines = [
        f"run {summary.run}: {summary.state}" + {None: "", True: ", verified", False: ", NOT as it should be"}[summary.verified],
        f"  rows     {summary.rows:,}: {summary.ok:,} ok, {summary.failed:,} failed"
        + (f"; {summary.skipped:,} skipped" if summary.skipped else ""),
        f"  tokens   {summary.tokens_in:,} in, {summary.tokens_out:,} out",
        f"  shards   {summary.shards_done:,} of {summary.shards:,} done, {summary.attempts:,} attempts, {summary.executions:,} executions "
        f"on {summary.workers:,} workers",
        f"  seconds  {summary.seconds:,.1f}; on workers loading {phase.loading:,.1f}, reading {phase.reading:,.1f}, "
        f"computing {phase.computing:,.1f}, writing {phase.writing:,.1f}",
        f"  cost     ${summary.usd_estimated:,.4f} estimated from {summary.worker_seconds:,.1f} worker seconds; "
        f"${summary.usd_planned:,.4f} planned",
    ]
    if summary.out is not None:
        lines.append(f"  output   {summary.out}")
        lines.append(f"  errors   {summary.errors}")
    for one in summary.failures[:SHOWN_FAILURES]:
        lines.append(f"           {one.rows:,} x {one.code}, such as {one.example_id}: {one.example}")
    if len(summary.failures) > SHOWN_FAILURES:
        lines.append(f"           and {len(summary.failures) - SHOWN_FAILURES} more codes")
    return lines


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
