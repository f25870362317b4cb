"""nights: the night of an `embed` job: its space brought up to date, or a run over the whole dataset where it keeps none.

Readers of a space see the old version until the new one is whole: the table is touched once, by one commit, after everything is computed,
collected and verified. Whatever ends a night before that leaves the last good version, and the next call goes on with the same run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from contract.words import usd
from nights.facts import facts_of, facts_of_run
from nights.guard import Doubt, shrunk
from nights.jobs.model import Job
from nights.night import MOST_MISTAKES, Drift, Tonight, ask, check_dataset, check_rows, finish_well, generate, make_folder
from nights.record import CanaryResult, SpaceNight
from nights.runner import Runner
from nights.spaces.canary import Thresholds, canary_request, judge_canary, keep_canary, read_canary
from nights.spaces.fingerprint import Parameters
from nights.spaces.table import Home, Space, home_of_runner, open_space, peek_space, snapshots
from nights.spaces.update import Difference, applied, apply, difference
from pipelines.dataset import find_files, open_reader
from pipelines.dataset.reader import Reader
from pipelines.dataset.streams import Source
from pipelines.plan import PlannedRun, PlanRequest
from pipelines.scratch import scratch_folder
from pipelines.summary import read_summary
from pipelines.work import Finished

LOOKED_BACK: Final = 16
"""Versions in which the last one of a night is looked for; compactions make the others."""


def parameters_of(job: Job, runner: Runner) -> Parameters:
    """What all vectors of the job's space have in common."""
    space = job.space
    assert space is not None
    endpoint = runner.stack.facts.endpoint_for(job.model, "embed")
    return Parameters(
        model=endpoint.model,
        revision=job.revision,
        pooling=space.pooling,
        normalize=space.normalize,
        dimensions=space.dimensions,
        prefix=space.prefix,
        truncate_tokens=space.truncate.tokens if space.truncate is not None else None,
        truncate_side=space.truncate.side if space.truncate is not None else None,
        params=dict(job.params),
    )


async def embed(tonight: Tonight) -> None:
    """Compute rows that are new or changed, and make one commit of them and of those that left."""
    job, runner = tonight.job, tonight.runner
    if job.space is None:
        await generate(tonight)
        return
    dataset, doubts = await check_dataset(tonight, "embed")
    ask(tonight, doubts)
    home = tonight.call.home or home_of_runner(runner)
    space = await open_space(home, job.space.name, parameters_of(job, runner), by=f"job {job.name}")
    if not tonight.call.redo and (before := await applied(space, job.name, tonight.date)) is not None:
        got = before.added + before.changed  # the process that did it died before its record said so
        await tonight.note_down(sent=got + before.failed, ok=got, failed=before.failed)
        if job.canary.rows and before.version is not None and await read_canary(space) is None:
            text = "the space keeps no canary yet, because the process that wrote it ended before; a night with enough new rows keeps one"
            await tonight.note_down(notices=(*tonight.record.notices, text))
        await _done(tonight, before)
        return
    with scratch_folder() as folder:
        found = await difference(space, await _reader(tonight, dataset), folder, limit=job.limit)
        await tonight.note_down(
            rows=found.rows, skipped=found.skipped, space=_planned(space, found), facts={**tonight.record.facts, **_known(tonight)}
        )
        await _say_skipped(tonight, found)
        ask(tonight, await check_space(tonight, found))
        canary = await _canary(tonight, space, found, folder)
        finished = await _compute(tonight, found, folder)
        night = await apply(space, found, finished, folder, job=job.name, night=tonight.date)
        if finished is not None:
            facts = await facts_of_run(runner.store, finished.plan)
            if "vllm" in facts:
                await tonight.note_down(facts={**tonight.record.facts, "vllm": facts["vllm"]})
            await keep_canary(space, found, facts, rows=job.canary.rows, run=finished.plan.run)
        await _done(tonight, night, canary)


async def _say_skipped(tonight: Tonight, found: Difference) -> None:
    """A space has no errors file: rows that were left out are told, and stand in the record by file, line and code."""
    for row in found.bad[:MOST_MISTAKES]:
        tonight.runner.note(f"left out: {row}")
    kept = [f"left out: {row.file}:{row.line}: {row.code}" for row in found.bad[:MOST_MISTAKES]]
    kept += [f"left out: and {found.skipped - len(kept):,} more"] if found.skipped > len(kept) else []
    if kept:
        await tonight.note_down(notices=(*tonight.record.notices, *kept))


async def _reader(tonight: Tonight, dataset: tuple[str, ...]) -> Reader:
    files = await find_files(dataset, tonight.runner.bucket)
    source = Source(asyncio.get_running_loop())
    return await asyncio.to_thread(lambda: open_reader(files, "embed", tonight.rows(), (), source))


def _known(tonight: Tonight) -> dict[str, str]:
    """Of a night that may send nothing: what it would be made with."""
    endpoint = tonight.runner.stack.facts.endpoint_for(tonight.job.model, "embed")
    found = {"model": endpoint.model, "revision": tonight.job.revision, "image": endpoint.image, "gpu": endpoint.gpu}
    return {name: value for name, value in found.items() if value is not None}


def _planned(space: Space, found: Difference) -> SpaceNight:
    """What the night is going to do to the space, while it has done nothing yet."""
    return SpaceNight(
        space=space.name,
        table=space.uri,
        version_before=found.version,
        version=None,
        rows=found.table_rows,
        added=found.added,
        changed=found.changed,
        removed=found.removed,
        unchanged=found.unchanged,
    )


async def check_space(tonight: Tonight, found: Difference) -> list[Doubt]:
    """What a person must say before the space is touched: whose it is, and how many rows it would have."""
    doubts = check_rows_of_space(tonight, found)
    if found.version is None or found.empty:
        return doubts
    versions = await asyncio.to_thread(snapshots, found.space, LOOKED_BACK)
    last = next((one for one in versions if one.job is not None), None)
    if last is not None and last.job != tonight.job.name:
        doubts.append(
            Doubt(
                "writer",
                f"space {found.space.name} is kept by another job, {last.job}, which wrote its version {last.version} on {last.night}; "
                f"this one would change {found.changed:,} of its rows and remove {found.removed:,}",
            )
        )
    return doubts


def check_rows_of_space(tonight: Tonight, found: Difference) -> list[Doubt]:
    """What a person must say about the number of rows: against the last good night; where there is none, against the table, because a
    space may be older than its records."""
    if tonight.before is not None:
        return check_rows(tonight, found.rows)
    since = f"version {found.version} of the space"
    doubt = shrunk(found.rows, found.table_rows, tonight.job.shrink.max_percent, since)
    return [doubt] if doubt is not None else []


async def _canary(tonight: Tonight, space: Space, found: Difference, folder: Path) -> CanaryResult | None:
    """Embed the kept rows again, before anything new is. Raises Drift."""
    job = tonight.job
    if not job.canary.rows or not (found.to_compute or job.canary.always or tonight.call.canary_always):
        return None
    kept = await read_canary(space)
    if kept is None:
        return None
    out = str(folder / "canary.parquet")
    planned = await tonight.runner.plan(canary_request(space, kept, folder, model=job.model, night=tonight.date, out=out))
    finished = await tonight.complete(planned, out, counted=False)
    thresholds = Thresholds(cosine_min=job.canary.cosine_min, norm_tolerance=job.canary.norm_tolerance)
    result = await judge_canary(space, kept, finished, thresholds)
    assert tonight.record.space is not None
    await tonight.note_down(space=msgspec.structs.replace(tonight.record.space, canary=result))
    if not result.passed:
        raise Drift(job.name, tonight.date, result, space.name)
    return result


async def _compute(tonight: Tonight, found: Difference, folder: Path) -> Finished | None:
    """The run over the new rows; None where there are none."""
    if found.path is None:
        return None
    job = tonight.job
    planned = await plan_rows(tonight, found.path)
    await tonight.note_down(facts={**tonight.record.facts, **facts_of(planned.plan)})
    out = tonight.file.out(tonight.date, planned.uri.run_id)
    if out is None or not out.endswith(".parquet") or job.dtype != "float32":
        out = str(folder / "vectors.parquet")
    else:
        make_folder(out)
        await tonight.note_down(out=out)
    return await tonight.complete(planned, out, dtype="float32")


async def plan_rows(tonight: Tonight, path: Path, *, dry_run: bool = False) -> PlannedRun:
    """The run over the lines that `difference` wrote. One of an earlier night over the same lines is taken up, so that nothing is paid
    twice; but where all of its rows failed there is nothing to take up, and it would fail every night: those are tried again."""
    request = request_of(tonight, path)
    planned = await tonight.runner.plan(request, dry_run=dry_run)
    if planned.existing and planned.plan.run not in tonight.record.runs:
        kept = await read_summary(tonight.runner.store, planned.uri.keys)
        if kept is not None and kept.state == "complete" and kept.failed and not kept.ok:
            return await tonight.runner.plan(replace(request, again=tonight.date), dry_run=dry_run)
    return planned


def request_of(tonight: Tonight, path: Path) -> PlanRequest:
    """A run over the lines that `difference` wrote."""
    job = tonight.job
    return PlanRequest(
        dataset=(str(path),),
        task="embed",
        model=job.model,
        revision=job.revision,
        params=parameters_of(job, tonight.runner).task_params(),
        output_format="parquet",
        pace=job.pace,
        budget_usd=job.budget_usd,
        name=job.name,
    )


async def _done(tonight: Tonight, night: SpaceNight, canary: CanaryResult | None = None) -> None:
    if canary is not None:
        night = msgspec.structs.replace(night, canary=canary)
    rows = tonight.record.rows or night.rows + night.failed
    await tonight.note_down(space=night, rows=rows)
    cost = usd(tonight.record.usd_estimated)
    if night.version == night.version_before or night.version is None:
        sentence = f"nothing new: space {night.space} stays at version {night.version}, {night.rows:,} rows; {cost}"
    else:
        sentence = (
            f"space {night.space} is at version {night.version}: {night.added:,} added, {night.changed:,} changed, "
            f"{night.removed:,} removed, {night.unchanged:,} unchanged; {cost}"
        )
    await finish_well(tonight, sentence)


async def preview_space(tonight: Tonight, home: Home | None, folder: Path) -> Difference:
    """What the night would compute and remove; nothing is stored. Raises OtherParameters as the night would."""
    job, runner = tonight.job, tonight.runner
    assert job.space is not None
    space = await peek_space(home or home_of_runner(runner), job.space.name, parameters_of(job, runner))
    return await difference(space, await _reader(tonight, tonight.file.dataset(tonight.date)), folder, limit=job.limit)
