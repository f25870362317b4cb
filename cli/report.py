"""cli: a plan and the end of a run as lines for a person and as one JSON object for a program. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.policy import program
from cli.progress import duration

if TYPE_CHECKING:
    from contract.models import Plan, Range3
    from pipelines.collect import Collected
    from pipelines.follow import DriveResult
    from pipelines.plan import PlannedRun
    from pipelines.verify import VerifyReport

FINISHED_WRONG, INFRASTRUCTURE, STOPPED = 1, 3, 4


def usd(value: float) -> str:
    """Dollars with as many digits as tell something: $12.34, $0.0042."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}" if value >= 0.001 or value == 0 else f"${value:.6f}"


def span(found: Range3, show: Any) -> str:
    """`likely (low to high)`."""
    return f"{show(found.likely)} ({show(found.low)} to {show(found.high)})"


def plan_lines(planned: PlannedRun) -> list[str]:
    """What a run would do and cost."""
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
        f"  workers  {estimate.workers} x {plan.infra.gpu_count} {plan.infra.gpu} at {usd(plan.infra.usd_per_second)} a second",
        f"  time     {span(estimate.seconds, duration)}",
        f"  cost     {span(estimate.usd, usd)}",
        f"  basis    {estimate.basis}",
    ]
    if plan.budget_usd is not None:
        lines.append(f"  budget   {usd(plan.budget_usd)}")
    return lines


def plan_record(planned: PlannedRun, *, stored: bool) -> dict[str, Any]:
    """The plan for programs."""
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
        "budget_usd": plan.budget_usd,
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

    plan: Plan
    result: DriveResult
    collected: Collected | None
    judged: VerifyReport | None
    seconds: float
    rest_rows: int = 0

    @property
    def state(self) -> str:
        """complete, or why it is not."""
        return self.result.state

    @property
    def exit_code(self) -> int:
        """DESIGN.md, law 8."""
        if self.result.state == "complete":
            failed = self.collected.failed if self.collected else self.result.failed
            return FINISHED_WRONG if failed or (self.judged is not None and not self.judged.clean) else 0
        if self.result.state == "stopped":
            return STOPPED if self.result.cause in ("budget", "deadline") else FINISHED_WRONG
        return INFRASTRUCTURE

    @property
    def sentence(self) -> str:
        """Why the exit code is not 0."""
        if self.result.state != "complete":
            return f"{self.result.state}: {self.result.reason}"
        if self.judged is not None and not self.judged.clean:
            return str(self.judged.failure())
        failed = self.collected.failed if self.collected else self.result.failed
        return f"{failed:,} of {self.result.rows:,} rows failed; see the errors file." if failed else ""

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
        record |= {"cause": result.cause, "reason": result.reason, "shards_done": result.shards_done, "usd_reserved": result.usd_reserved}
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
        f"  shards   {result.shards_done:,} of {result.shards:,} done in {result.attempts:,} attempts",
        f"  time     {duration(report.seconds)}; on workers: loading {duration(phases.loading)}, reading {duration(phases.reading)}, "
        f"computing {duration(phases.computing)}, writing {duration(phases.writing)}",
        f"  cost     {usd(result.usd_estimated)} estimated from {result.worker_seconds:,.1f} worker seconds; "
        f"planned {span(estimate.usd, usd)}",
    ]
    if collected is not None:
        lines.append(f"  output   {collected.names.out} ({collected.ok:,} rows)")
        lines.append(f"  errors   {collected.names.errors} ({collected.failed + collected.skipped:,} rows)")
        lines += [f"           {one.rows:,} x {one.code}, such as {one.example_id}: {one.example}" for one in collected.failures[:5]]
        if collected.missing_rows:
            lines.append(f"  missing  {collected.missing_rows:,} rows, because their shards are not done")
    if report.judged is not None and report.judged.images is not None:
        lines.append(f"  images   {report.judged.images}")
    if (whole := report.whole) is not None:
        lines.append(f"  all rows {whole[0]:,} at this speed: {whole[1]:,.0f} worker seconds, {usd(whole[2])}")
    if report.state != "complete":
        lines.append(f"next: {program()} resume {plan.run_id}{options}")
    elif collected is None:
        lines.append(f"next: {program()} collect {plan.run_id}{options}")
    return lines
