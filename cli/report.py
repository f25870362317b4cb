"""cli: a plan and the end of a run as lines for a person and as one JSON object for a program. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.policy import program
from contract.words import counted, duration, usd

if TYPE_CHECKING:
    from contract.models import Plan, Range3
    from pipelines.collect import Collected
    from pipelines.follow import DriveResult
    from pipelines.plan import PlannedRun
    from pipelines.verify import VerifyReport
    from pipelines.work import Finished

MOST_ERRORS = 20
"""Shards whose jobs' errors are told: with more, the first ones say it all."""


def span(found: Range3, show: Any) -> str:
    """`likely (low to high)`."""
    return f"{show(found.likely)} ({show(found.low)} to {show(found.high)})"


def budget_lines(plan: Plan, asked: float | None) -> list[str]:
    """The budget in force, and whether it can start a job at all. `asked`: this command's own, which goes before the stored one."""
    from contract.protocol import budget_needed, rules_for

    budget = plan.budget_usd if asked is None else asked
    if budget is None:
        return []
    stored = f" (of this command; the plan keeps {usd(plan.budget_usd)})" if plan.budget_usd not in (None, budget) else ""
    rules = rules_for(plan)
    lines = [f"  budget   {usd(budget)}{stored}"]
    if budget < rules.reserve_usd:
        lines.append(
            f"           cannot start one job: each reserves up to {usd(rules.reserve_usd)}, the price of its whole executionTimeout; "
            f"give at least {usd(budget_needed(rules))}"
        )
    return lines


def plan_lines(planned: PlannedRun, budget: float | None = None) -> list[str]:
    """What a run would do and cost. `budget`: this command's."""
    plan = planned.plan
    estimate = plan.estimate
    files = plan.dataset.files
    named = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more files"
    skipped = f", {plan.dataset.skipped:,} skipped" if plan.dataset.skipped else ""
    lines = [
        f"run {plan.run}" + (" (planned before: going on with it)" if planned.existing else ""),
        f"  rows     {plan.dataset.rows:,} from {named}{skipped}",
        f"  task     {plan.task.kind} with {plan.task.model} on endpoint {plan.infra.endpoint} of stack {plan.infra.stack}",
        f"  shards   {len(plan.shards):,}, about {estimate.tokens_in:,} tokens in, {estimate.tokens_out:,} out",
        f"  workers  {estimate.workers} x {plan.infra.gpu_count} {plan.infra.gpu} at ${plan.infra.usd_per_second:g} a second",
        f"  time     {span(estimate.seconds, duration)}",
        f"  cost     {span(estimate.usd, usd)}",
        f"  basis    {estimate.basis}",
    ]
    return lines + budget_lines(plan, budget)


def plan_record(planned: PlannedRun, *, stored: bool, budget: float | None = None) -> dict[str, Any]:
    """The plan for programs. `budget`: this command's."""
    from contract.protocol import rules_for

    plan = planned.plan
    estimate = plan.estimate

    def three(found: Range3) -> dict[str, float]:
        return {"low": found.low, "likely": found.likely, "high": found.high}

    record: dict[str, Any] = {
        "run": plan.run,
        "state": "planned" if stored or planned.existing else "dry-run",
        "plan_id": plan.plan_id,
        "rows": plan.dataset.rows,
        "skipped": plan.dataset.skipped,
        "rows_after_limit": planned.rest_rows,
        "shards": len(plan.shards),
        "tokens_in": estimate.tokens_in,
        "tokens_out": estimate.tokens_out,
        "workers": estimate.workers,
        "seconds": three(estimate.seconds),
        "usd": three(estimate.usd),
        "usd_planned": estimate.usd.likely,
        "budget_usd": plan.budget_usd if budget is None else budget,
        "usd_reserved_per_job": rules_for(plan).reserve_usd,
        "notices": list(planned.notices),
    }
    if planned.whole is not None:
        record["whole"] = {"usd": three(planned.whole.usd), "seconds": three(planned.whole.seconds)}
    return record


def renames(found: Collected) -> list[str]:
    """Columns of the dataset that the output calls otherwise."""
    return [f"column `{old}` is `{new}` in {found.names.out}: a result column is called `{old}`." for old, new in found.renamed.items()]


@dataclass(frozen=True)
class Report:
    """The end of `run`, `resume` or `submit`. `rest_rows`: rows after --limit, which this run priced by doing the others."""

    finished: Finished
    rest_rows: int = 0
    idle_timeout_s: float | None = None
    """Of the endpoint: how long a worker waits for more before it stops, and costs."""

    @property
    def plan(self) -> Plan:
        return self.finished.plan

    @property
    def result(self) -> DriveResult:
        return self.finished.result

    @property
    def collected(self) -> Collected | None:
        return self.finished.collected

    @property
    def judged(self) -> VerifyReport | None:
        return self.finished.judged

    @property
    def seconds(self) -> float:
        return self.finished.seconds

    @property
    def idle_usd(self) -> float | None:
        """What the workers' last idle times may add to the estimate, which rests on executions alone."""
        if self.idle_timeout_s is None or not self.result.workers:
            return None
        return self.result.workers * self.idle_timeout_s * self.plan.infra.usd_per_second

    @property
    def state(self) -> str:
        """complete, or why it is not."""
        return self.result.state

    @property
    def exit_code(self) -> int:
        """DESIGN.md, law 8."""
        return self.finished.exit_code

    @property
    def sentence(self) -> str:
        """Why the exit code is not 0."""
        return self.finished.sentence

    @property
    def whole(self) -> tuple[int, float, float] | None:
        """What all rows would take at this run's measured speed: rows, worker seconds, dollars. One engine start is counted once."""
        made = self.result.ok + self.result.failed
        if not self.rest_rows or self.result.state != "complete" or not made:
            return None
        busy = max(0.0, self.result.worker_seconds - self.result.seconds.loading)
        seconds = self.result.seconds.loading + busy * (made + self.rest_rows) / made
        return made + self.rest_rows, seconds, seconds * self.plan.infra.usd_per_second


def report_record(report: Report) -> dict[str, Any]:
    """The one JSON object."""
    plan, result, collected = report.plan, report.result, report.collected
    phases = result.seconds
    record: dict[str, Any] = {
        "run": plan.run,
        "state": report.state,
        "rows": result.rows,
        "ok": result.ok,
        "failed": result.failed,
        "skipped": plan.dataset.skipped,
        "shards": result.shards,
        "attempts": result.attempts,
        "executions": result.executions,
        "out": collected.names.out if collected else None,
        "errors": collected.names.errors if collected else None,
        "seal": collected.seal if collected else None,
        "verified": report.judged.clean if report.judged else None,
        "tokens_in": result.tokens_in,
        "tokens_out": result.tokens_out,
        "seconds": round(report.seconds, 3),
        "phases": {
            "loading": round(phases.loading, 3),
            "reading": round(phases.reading, 3),
            "computing": round(phases.computing, 3),
            "writing": round(phases.writing, 3),
        },
        "worker_seconds": round(result.worker_seconds, 3),
        "usd_planned": plan.estimate.usd.likely,
        "usd_estimated": result.usd_estimated,
    }
    if report.state != "complete":
        record |= {
            "cause": result.cause,
            "reason": result.reason,
            "shards_done": result.shards_done,
            "failed_shards": list(result.failed_shards),
            "job_errors": dict(result.errors[:MOST_ERRORS]),
            "usd_reserved": result.usd_reserved,
        }
        if result.usd_needed is not None:
            record["usd_needed"] = result.usd_needed
    if report.idle_usd is not None:
        record["usd_idle"] = report.idle_usd
    if collected is not None and collected.missing_rows:
        record["missing"] = collected.missing_rows
    if collected is not None and collected.renamed:
        record["renamed"] = collected.renamed
    if report.judged is not None and not report.judged.clean:
        record["findings"] = [str(finding) for finding in report.judged.findings]
    if (whole := report.whole) is not None:
        record["whole"] = {"rows": whole[0], "worker_seconds": round(whole[1], 1), "usd": whole[2]}
    return record


def report_lines(report: Report, options: str = "") -> list[str]:
    """The summary for a person."""
    plan, result, collected = report.plan, report.result, report.collected
    phases = result.seconds
    estimate = plan.estimate
    lines = [
        f"run {plan.run}: {report.state}" + (", verified" if report.judged is not None and report.judged.clean else ""),
        f"  rows     {result.rows:,}: {result.ok:,} ok, {result.failed:,} failed"
        + (f"; {plan.dataset.skipped:,} skipped" if plan.dataset.skipped else ""),
        f"  tokens   {result.tokens_in:,} in, {result.tokens_out:,} out",
        f"  shards   {result.shards_done:,} of {result.shards:,} done in {counted(result.attempts, 'attempt')}",
        f"  time     {duration(report.seconds)}; on workers: loading {duration(phases.loading)}, reading {duration(phases.reading)}, "
        f"computing {duration(phases.computing)}, writing {duration(phases.writing)}",
        f"  cost     {cost_text(report)}; planned {span(estimate.usd, usd)}",
    ]
    if collected is not None:
        lines.append(f"  output   {collected.names.out} ({counted(collected.ok, 'row')})")
        lines.append(f"  errors   {collected.names.errors} ({counted(collected.failed + collected.skipped, 'row')})")
        lines += [f"           {one.rows:,} x {one.code}, such as {one.example_id}: {one.example}" for one in collected.failures[:5]]
        if collected.missing_rows:
            lines.append(f"  missing  {counted(collected.missing_rows, 'row')}, because their shards are not done")
    if report.judged is not None and report.judged.images is not None:
        lines.append(f"  images   {report.judged.images}")
    if (whole := report.whole) is not None:
        lines.append(f"  all rows {whole[0]:,} at this speed: {whole[1]:,.0f} worker seconds, {usd(whole[2])}")
    said: list[str] = []
    for shard, text in result.errors[:MOST_ERRORS]:
        if text not in said:
            lines.append(f"  error    shard {shard}: {text}")
            said.append(text)
    if (next_ := next_line(report, options)) is not None:
        lines.append(next_)
    return lines


def cost_text(report: Report) -> str:
    """What it cost as far as is known, and what is not in that number."""
    result = report.result
    least = "at least " if result.usd_reserved > 0 else ""
    text = f"{least}{usd(result.usd_estimated)} estimated from {result.worker_seconds:,.1f} worker seconds"
    if result.usd_reserved > 0:
        text += f", up to {usd(result.usd_reserved)} more for jobs that are not known to be over"
    if report.idle_usd is not None:
        workers = "1 worker" if result.workers == 1 else f"{result.workers:,} workers"
        waited = duration(report.idle_timeout_s or 0)
        text += f" (without idle time: {usd(report.idle_usd)} more where {workers} waited {waited} at the end)"
    return text


def next_line(report: Report, options: str) -> str | None:
    """What to type next, where that leads on."""
    plan, result = report.plan, report.result
    if report.state == "complete":
        return f"next: {program()} collect {plan.run_id}{options}" if report.collected is None else None
    if report.state == "failed" and result.cause == "refused":
        return f"next: put that right and run it anew; where the endpoint was wrong: {program()} resume {plan.run_id}{options}"
    if report.state == "failed":
        if report.collected is not None or not result.shards_done:
            return None
        return f"next: {program()} collect {plan.run_id} --partial{options}, for the shards that are done"
    if result.usd_needed is not None:
        return f"next: {program()} resume {plan.run_id}{options} --budget {result.usd_needed:.2f}, or more"
    return f"next: {program()} resume {plan.run_id}{options}"
