"""nights: the night of an `eval` job: the suite's questions asked, answers scored, compared with the baseline, and the gate."""

from __future__ import annotations

import msgspec

from contract.errors import UsageError
from contract.keys import RunUri
from nights.evals.baseline import Baselines
from nights.evals.evaluate import Asked, evaluate, prepare, preview
from nights.evals.gate import Gate, judge, night_of
from nights.evals.results import Results
from nights.evals.samples import EvalResult
from nights.evals.suite import Suite, load_suite
from nights.night import Tonight, ask, check_rows, finish_well
from pipelines.plan import PlannedRun
from pipelines.summary import read_summary
from pipelines.work import Finished


def suite_of(tonight: Tonight) -> Suite:
    """The job's suite. Raises BadFiles with every mistake of its file."""
    path = tonight.file.suite
    assert path is not None
    return load_suite(path)


def asked_of(tonight: Tonight) -> Asked:
    """Of whom, for which date: each date is an evaluation of its own."""
    job = tonight.job
    return Asked(model=job.model, revision=job.revision, date=tonight.date, pace=job.pace, budget_usd=job.budget_usd)


async def evaluate_suite(tonight: Tonight) -> None:
    """Ask, score, judge, keep; a gate that failed ends the night with 1, and one that cannot be judged with 2."""
    job, runner = tonight.job, tonight.runner
    suite = suite_of(tonight)
    prepared = await prepare(suite, runner)
    await tonight.note_down(rows=len(prepared.questions.all))
    ask(tonight, check_rows(tonight, len(prepared.questions.all)))
    first = True

    async def complete(planned: PlannedRun, out: str) -> Finished:
        nonlocal first
        counted, first = first, False  # the second run is the judge's, whose rows are no questions
        return await tonight.complete(planned, out, counted=counted)

    done = await evaluate(suite, runner, asked_of(tonight), complete=complete, prepared=prepared)
    header = done.result.header
    if first:  # the process that scored it died before its record said so, or does the same night as well
        for run in (header.run, header.judge_run):
            kept = await read_summary(runner.store, RunUri.parse(run).keys) if run else None
            if kept is None:
                continue
            tonight.costs[kept.run] = kept.usd_estimated
            if run == header.run:
                await tonight.note_down(sent=kept.rows, ok=kept.ok, failed=kept.failed)
        await tonight.note_down(usd_estimated=sum(tonight.costs.values()))
    made_with = {name: value for name, value in header.made_with.items() if value}
    await tonight.note_down(
        facts={**tonight.record.facts, **made_with, "suite": header.suite_digest[:16], "dataset": header.dataset_digest[:16]},
        runs=tuple(dict.fromkeys([*tonight.record.runs, *(run for run in (header.run, header.judge_run) if run)])),
    )
    result, gate = with_metric(done.result, job.gate.metric if job.gate is not None else None), gate_of(tonight)
    baseline = None
    if job.baseline is not None:
        pins = Baselines(Results(runner.store, tonight.records.prefix))
        if job.baseline in (await pins.results.names(header.suite)).baselines:
            baseline = with_metric(await pins.load(await pins.get(header.suite, job.baseline)), result.header.headline)
    verdict = judge(result, gate, baseline, name=job.baseline)
    night = night_of(result, verdict)
    if job.baseline is not None and baseline is None:
        pin = f"to pin this result: nightbatch eval baseline set {job.baseline} {header.suite}/latest --stack {tonight.record.stack}"
        await tonight.note_down(notices=(*tonight.record.notices, pin))
    await tonight.note_down(evaluation=night, notices=(*tonight.record.notices, *verdict.notices))
    if verdict.exit_code:
        tonight.happened("gate", verdict.sentence)
    # Questions that failed count as wrong in the score, which the gate judges: they are no failure of the night beside it.
    await finish_well(tonight, verdict.sentence, exit_code=verdict.exit_code, rows_matter=False)


def gate_of(tonight: Tonight) -> Gate:
    """The job's gate; one that asks nothing where it has none."""
    gate = tonight.job.gate
    if gate is None:
        return Gate()
    return Gate(
        min_score=gate.min_score,
        max_regression=gate.max_regression,
        confidence=gate.confidence,
        strict=gate.strict,
        max_failed_percent=gate.max_failed_percent,
    )


def with_metric(result: EvalResult, metric: str | None) -> EvalResult:
    """The same result, judged by another of its metrics. Raises UsageError where it has none of that name."""
    header = result.header
    if metric is None or metric == header.headline:
        return result
    values = [sample.scores.get(metric) for sample in result.samples]
    if any(value is None for value in values):
        have = ", ".join(sorted(result.samples[0].scores))
        raise UsageError(f"suite {header.suite} has no metric {metric} of single questions.", where="gate.metric", fix=f"It has: {have}.")
    binary = header.draws == 1 and all(value in (0, 1) for value in values)
    return EvalResult(msgspec.structs.replace(header, headline=metric, binary=binary), result.samples)


async def preview_suite(tonight: Tonight) -> tuple[int, PlannedRun, tuple[str, ...]]:
    """How many questions there are, what they would cost, and what is not in that; nothing is stored and nothing sent."""
    suite = suite_of(tonight)
    prepared, planned = await preview(suite, tonight.runner, asked_of(tonight))
    judge = suite.keys.judge
    notices = () if judge is None else (f"the run of the judge, {judge.model}, is not in this price: its rows are made of the answers",)
    pins = Baselines(Results(tonight.runner.store, tonight.records.prefix))
    wanted = tonight.job.baseline
    if wanted is not None and wanted not in (await pins.results.names(suite.name)).baselines:
        why = "the gate cannot compare with it (exit code 2), and the score is kept"
        notices = (*notices, f"suite {suite.name} has no baseline {wanted} yet: {why}")
    return len(prepared.questions.all), planned, notices
