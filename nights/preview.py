"""nights: what a night would compute and cost, without doing it. Touches the dataset and the store, to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.models import TaskKind
from contract.words import counted
from nights.guard import Doubt, check_out, kept_columns, look, schema_changed
from nights.jobs.files import JobFile
from nights.night import Call, Tonight, check_rows, plan_request
from nights.record import NightRecord, Records
from nights.runner import Runner
from pipelines.plan import PlannedRun
from pipelines.scratch import scratch_folder

if TYPE_CHECKING:
    from nights.spaces.update import Difference


@dataclass(frozen=True)
class Preview:
    """What a night would do. `planned`: None where it would send nothing; `added` and so on: of a job with a space; `doubts`: why it
    would ask."""

    job: str
    date: str
    kind: str
    rows: int
    planned: PlannedRun | None
    added: int | None = None
    changed: int | None = None
    removed: int | None = None
    unchanged: int | None = None
    doubts: tuple[Doubt, ...] = ()
    notices: tuple[str, ...] = ()
    existing: NightRecord | None = None


async def preview(file: JobFile, date: str, runner: Runner, call: Call = Call()) -> Preview:  # noqa: B008 (frozen)
    """Raises what the night would end with: DatasetError, OtherParameters, UsageError, StoreError."""
    job = file.job
    records = Records(runner.store, runner.stack.facts.store.folder)
    good = await records.good(job.name, before=date)
    record = NightRecord(job=job.name, date=date, kind=job.kind, stack=runner.stack.facts.stack, state="running", began=runner.now())
    tonight = Tonight(file, date, call, runner, records, record, good)
    existing = await records.get(job.name, date)
    unset = [name for name in job.env_names if not call.environ.get(name, "").strip()]
    silent = (f"nobody will hear through what these variables hold, which are not set: {', '.join(unset)}",) if unset else ()
    if job.kind == "eval":
        from nights.evaluation import preview_suite

        questions, planned, notices = await preview_suite(tonight)
        asked = _open(tonight, check_rows(tonight, questions))
        return Preview(job.name, date, job.kind, questions, planned, doubts=asked, notices=(*notices, *silent), existing=existing)
    task: TaskKind = "embed" if job.kind == "embed" else "generate"
    doubts, notices = await _columns(tonight, task)
    notices = (*notices, *silent)
    if job.space is None:
        planned = await runner.plan(plan_request(tonight, file.dataset(date), task), dry_run=True)
        rows = planned.plan.dataset.rows
        doubts += check_rows(tonight, rows)
        return Preview(job.name, date, job.kind, rows, planned, doubts=_open(tonight, doubts), notices=notices, existing=existing)
    from nights.embedding import check_space, plan_rows, preview_space

    with scratch_folder() as folder:
        found: Difference = await preview_space(tonight, call.home, folder)
        new = await plan_rows(tonight, found.path, dry_run=True) if found.path is not None else None
    doubts += await check_space(tonight, found)
    if found.version is not None and job.canary.rows and (new is not None or job.canary.always or call.canary_always):
        notices = (*notices, f"a canary of up to {counted(job.canary.rows, 'row')} comes first, and is not in this price")
    return Preview(
        job.name,
        date,
        job.kind,
        found.rows,
        new,
        added=found.added,
        changed=found.changed,
        removed=found.removed,
        unchanged=found.unchanged,
        doubts=_open(tonight, doubts),
        notices=notices,
        existing=existing,
    )


def _open(tonight: Tonight, doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
    """What the night would still ask: what the caller has accepted it would not."""
    return tuple(doubt for doubt in doubts if doubt.accept not in tonight.call.accept)


async def _columns(tonight: Tonight, task: TaskKind) -> tuple[list[Doubt], tuple[str, ...]]:
    dataset = tonight.file.dataset(tonight.date)
    check_out(dataset, tonight.file.out(tonight.date, "RUN"))
    seen = await look(tonight.runner, dataset, task, tonight.rows())
    if tonight.before is None:
        return [], ()
    doubt, notices = schema_changed(seen.columns, kept_columns(tonight.before.facts.get("columns")), tonight.before.date)
    if doubt is not None and tonight.job.on_schema_change == "allow":
        return [], (*notices, doubt.sentence)
    return [doubt] if doubt is not None else [], notices
