"""cli: `nightbatch eval …`: results of evaluations as a person asks for them. Finds the stack, calls nights.evals, prints one answer.

The commands are a Typer app of their own; nothing heavy is imported before one of them runs.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli import options as o
from cli.extras import needs
from cli.output import emit
from cli.policy import guarded, program, session

if TYPE_CHECKING:
    from cli.work import Where
    from nights.evals.baseline import Baseline, Baselines
    from nights.evals.diff import Change, Diff
    from nights.evals.evaluate import Asked, Prepared
    from nights.evals.gate import Gate, Verdict
    from nights.evals.history import Entry
    from nights.evals.results import Named, Names
    from nights.evals.samples import EvalResult, ResultHeader, Sample
    from nights.evals.stats import Comparison, Interval
    from nights.runner import Runner
    from pipelines.plan import PlannedRun

T = TypeVar("T")
WIDTH = 100
"""Columns where no terminal says how many it has."""

evaluations = typer.Typer(name="eval", help="Evaluations: results, baselines, comparisons, gates.", **o.PLAIN)
baseline = typer.Typer(name="baseline", help="Named, pinned results.", **o.PLAIN)
evaluations.add_typer(baseline)


class Which(StrEnum):
    """Of the questions that changed."""

    worse = "worse"
    better = "better"
    both = "both"


class Format(StrEnum):
    """Of a log."""

    inspect = "inspect"


Result = Annotated[
    str,
    typer.Argument(
        metavar="RESULT", help="[SUITE/]NAME: a result id, latest, previous or a baseline; or a suite alone.", show_default=False
    ),
]
Suite = Annotated[str, typer.Argument(metavar="SUITE", help="The suite.", show_default=False)]
SuiteOrNone = Annotated[str | None, typer.Argument(metavar="[SUITE]", help="Only of this suite.", show_default=False)]
Confidence = Annotated[float, typer.Option("--confidence", metavar="C", help="Of intervals and comparisons, two-sided.")]
Metric = Annotated[str | None, typer.Option("--metric", metavar="NAME", help="Instead of the suite's headline.", show_default=False)]
Against = Annotated[
    str | None, typer.Option("--baseline", metavar="NAME", help="A baseline of its suite, or another result.", show_default=False)
]
MinScore = Annotated[float | None, typer.Option("--min-score", metavar="X", help="Fail below this score.", show_default=False)]
MaxRegression = Annotated[
    float | None,
    typer.Option("--max-regression", min=0.0, metavar="X", help="Fail if surely below the baseline, and by more.", show_default=False),
]
MaxFailed = Annotated[
    float | None, typer.Option("--max-failed-percent", metavar="P", help="Fail if more failed, were cut or unreadable.", show_default=False)
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail unless a regression, or a lower score, is excluded.")]
Last = Annotated[int, typer.Option("--last", min=1, metavar="N", help="The newest N results.")]


# --- commands ------------------------------------------------------------------------------------------------------------------------


@evaluations.command("run", short_help="Ask a suite's questions, score, keep.")
@guarded
def run(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="The suite's file; see docs/evaluations.md.", show_default=False)],
    model: o.Model,
    revision: o.Revision = None,
    against: Against = None,
    min_score: MinScore = None,
    max_regression: MaxRegression = None,
    max_failed: MaxFailed = None,
    confidence: Confidence = 0.95,
    strict: Strict = False,
    budget: o.Budget = None,
    pace: o.Pace = None,
    again: o.Again = None,
    deadline: o.Deadline = None,
    webhook_url: o.WebhookUrl = None,
    allow_mixed_image: o.MixedImage = False,
    dry_run: o.DryRun = False,
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Ask a suite's questions in one run, score the answers, keep the result and show it; judge it where a limit is given.

    The same again finds its result and pays nothing: say --again NAME for another evaluation.
    """
    where = _where(stack, facts)
    gate = _gate(against, min_score, max_regression, max_failed, confidence, strict)
    how = _How(model, revision, against, gate, budget, pace, again, deadline, webhook_url, allow_mixed_image)
    return _previewed(where, suite, how) if dry_run else _evaluated(where, suite, how)


@evaluations.command("list", short_help="Suites, or the results of one.")
@guarded
def list_(suite: SuiteOrNone = None, last: Last = 20, stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """List the suites that have results, or the results of one suite, newest first."""
    where = _where(stack, facts)
    return _suites(where) if suite is None else _results(where, suite, last)


@evaluations.command("show", short_help="One result: scores, intervals, counts.")
@guarded
def show(
    result: Result,
    samples: Annotated[int, typer.Option("--samples", min=0, metavar="N", help="So many samples too, the worst first.")] = 0,
    confidence: Confidence = 0.95,
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Show a result: every metric with its interval, what failed, the groups, and how it was made."""
    import msgspec

    from nights.evals import stats

    stats.check_confidence(confidence, "--confidence")
    found, named, pinned = _run(_where(stack, facts), lambda kept: _one(kept, result))
    lines, record = _result_shown(found, pinned, confidence)
    chosen = _least(found, samples)
    if samples:
        lines = [*lines, *(line for sample in chosen for line in _sample_lines(sample, found.header.headline))]
        record = {**record, "samples": [msgspec.to_builtins(sample) for sample in chosen]}
    return _told({"name": named.name, **record}, lines)


def _least(found: EvalResult, count: int) -> list[Sample]:
    """So many samples, those with the least headline score first; where lower is better, the highest."""
    sign, headline = 1 if found.header.higher_is_better else -1, found.header.headline
    return sorted(found.samples, key=lambda one: (sign * one.scores.get(headline, 0.0), one.index, one.draw))[:count]


def _sample_lines(sample: Sample, headline: str) -> list[str]:
    """A question with its answer, a line for each; what is in them does nothing to a terminal."""
    from nights.evals import diff as diffs

    width = max(40, shutil.get_terminal_size().columns - 10)
    draw = f" draw {sample.draw}" if sample.draw else ""
    target = sample.target if isinstance(sample.target, str) or sample.target is None else " | ".join(sample.target)
    said = {"question": sample.input, "target": target, "answer": sample.answer, "read as": sample.parsed, "error": sample.error}
    score = sample.scores.get(headline)
    head = f"{diffs.one_line(sample.id, width)}{draw}: {sample.outcome}" + ("" if score is None else f", {headline} {score:g}")
    return ["", head, *(f"  {name:<8} {diffs.one_line(text, width)}" for name, text in said.items() if text)]


@evaluations.command("diff", short_help="Which samples got worse, with both answers.")
@guarded
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="Before: [SUITE/]NAME, as for show.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help="After; of A's suite unless it says another.", show_default=False)],
    metric: Metric = None,
    which: Annotated[Which, typer.Option("--which", help="Of the samples that changed.")] = Which.worse,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="Show at most so many samples.")] = 10,
    full: Annotated[bool, typer.Option("--full", help="All of each answer, not its first lines.")] = False,
    common: Annotated[bool, typer.Option("--common", help="Also where suites differ: the questions that both have.")] = False,
    confidence: Confidence = 0.95,
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Compare two results question by question: how much, whether it is chance, and the samples that changed, answers side by side."""
    from nights.evals import stats
    from nights.evals.diff import diff as differing

    stats.check_confidence(confidence, "--confidence")
    before, after = _run(_where(stack, facts), lambda kept: _two(kept, first, second))
    found = differing(before, after, metric=metric, common=common)
    compared = _compared(before, after, metric, confidence)
    return _diff_told(found, compared, _chosen(found, which, limit), names=(first, second), full=full)


@evaluations.command("history", short_help="A suite's results in time, and what changed.")
@guarded
def history(suite: Suite, last: Last = 30, stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Show a suite's results in time: the score, what changed since the one before, and where they stop being comparable."""
    headers, pinned = _run(_where(stack, facts), lambda kept: _headers(kept, suite, last))
    return _history_told(suite, headers, pinned)


@evaluations.command("gate", short_help="Is a result good enough? Ends with 0 or 1.")
@guarded
def gate(
    result: Result,
    against: Against = None,
    min_score: MinScore = None,
    max_regression: MaxRegression = None,
    max_failed: MaxFailed = None,
    confidence: Confidence = 0.95,
    strict: Strict = False,
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Judge a result in one sentence. Ends with 0 passed, 1 failed, 2 where it cannot be judged: no baseline, or none to compare with."""
    from contract.errors import UsageError

    asked = _gate(against, min_score, max_regression, max_failed, confidence, strict)
    if not asked.asks:
        raise UsageError("a gate without a limit passes everything.", fix="Give --min-score, --max-regression or --max-failed-percent.")
    return _gated(_where(stack, facts), result, against, asked)


@evaluations.command("export", short_help="A result as a log for other viewers.")
@guarded
def export(
    result: Result,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .json file, or a folder.", show_default=False)],
    to: Annotated[Format, typer.Option("--to", help="inspect: inspect_ai's log, for `inspect view`.")] = Format.inspect,
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Write a result, with all questions and answers, as a log that inspect_ai's viewer opens."""
    from nights.evals import inspect_log

    found, _, _ = _run(_where(stack, facts), lambda kept: _one(kept, result))
    path = inspect_log.write(found, out)
    record = {"suite": found.header.suite, "result": found.header.result, "format": to.value, "file": str(path)}
    return _told(record, [f"{found.header.suite}/{found.header.result}: {len(found.samples):,} samples in {path}"])


@baseline.command("set", short_help="Pin a result under a name.")
@guarded
def baseline_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the baseline is called.", show_default=False)],
    result: Result,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why this one.", show_default=False)] = "",
    replace: Annotated[bool, typer.Option("--replace", help="The name may have another result until now.")] = False,
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Pin a result under a name, with a copy of its own, so that nothing that prunes results loses it."""

    async def work(kept: Baselines) -> tuple[Baseline, Baseline | None]:
        from contract.store import probe_mode

        named = await kept.results.find(result)
        store = kept.results.store
        store.mode = await probe_mode(store, kept.results.prefix)
        id_ = named.result or (await kept.get(named.suite, named.name)).result
        return await kept.set(name, named.suite, id_, note=note, replace=replace)

    made, former = _run(_where(stack, facts), work)
    was = f" (was {former.result})" if former is not None and former.result != made.result else ""
    record = {**_baseline_record(made), "former": former.result if former else None}
    return _told(record, [f"baseline {made.name} of {made.suite} is {made.result}{was}"])


@baseline.command("list", short_help="What is pinned.")
@guarded
def baseline_list(suite: SuiteOrNone = None, stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """List the baselines of a suite, or of all."""

    async def work(kept: Baselines) -> list[Baseline]:
        suites = [suite] if suite is not None else list(await kept.results.suites())
        return [one for name in suites for one in await kept.list(name)]

    found = _run(_where(stack, facts), work)
    rows = [(f"{one.suite}/{one.name}", one.result, f"{one.headline} {_number(one.score)}", one.model, one.note) for one in found]
    return _told({"baselines": [_baseline_record(one) for one in found]}, _table(rows) or ["no baselines"])


@baseline.command("rm", short_help="Forget a baseline; its result stays.")
@guarded
def baseline_rm(
    name: Annotated[str, typer.Argument(metavar="SUITE/NAME", help="The baseline.", show_default=False)],
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Forget a baseline and its copy. The result stays where it is."""
    from contract.errors import UsageError

    suite, slash, bare = name.rpartition("/")
    if not slash:
        raise UsageError("says no suite.", where=name, fix=f"Write SUITE/NAME; see: {program()} eval baseline list")
    gone = _run(_where(stack, facts), lambda kept: kept.remove(suite, bare))
    return _told(_baseline_record(gone), [f"baseline {gone.name} of {gone.suite} is forgotten; result {gone.result} stays"])


# --- finding -------------------------------------------------------------------------------------------------------------------------


def _where(stack: str | None, facts: Path | None) -> Where:
    from cli.work import Where

    needs("nights", "evaluations need", "scipy")
    return Where(stack, facts)


@asynccontextmanager
async def opened(where: Where) -> AsyncIterator[Baselines]:
    """The stack's results and baselines."""
    from cli.work import find_stack
    from nights.evals.baseline import Baselines
    from nights.evals.results import Results
    from pipelines.work import buckets_of

    stack = await find_stack(where)
    async with buckets_of(stack) as buckets:
        yield Baselines(Results(buckets.main, stack.facts.store.folder))


def _run(where: Where, work: Callable[[Baselines], Awaitable[T]]) -> T:
    """`work(baselines)`, to the end."""
    from cli.work import run_async

    async def main() -> T:
        async with opened(where) as kept:
            return await work(kept)

    return run_async(main)


async def _one(kept: Baselines, text: str) -> tuple[EvalResult, Named, tuple[str, ...]]:
    """A result, how it was named, and the baselines that pin it."""
    named = await kept.results.find(text)
    found = await kept.result(named)
    pinned = [one.name for one in await kept.list(named.suite) if one.result == found.header.result]
    return found, named, tuple(pinned)


async def _two(kept: Baselines, first: str, second: str) -> tuple[EvalResult, EvalResult]:
    before = await kept.results.find(first)
    after = await kept.results.find(second, suite=before.suite)
    return await kept.result(before), await kept.result(after)


async def _headers(kept: Baselines, suite: str, last: int) -> tuple[Sequence[ResultHeader], dict[str, list[str]]]:
    """The newest headers of a suite, oldest first, and which baselines pin a result. Raises UsageError where there is no such suite."""
    from contract.errors import UsageError
    from nights.evals.results import near

    headers = await kept.results.headers(suite, last=last)
    pinned: dict[str, list[str]] = {}
    for one in await kept.list(suite):
        pinned.setdefault(one.result, []).append(one.name)
    if not headers and not pinned:
        suites = await kept.results.suites()
        raise UsageError("there is no suite of that name with results.", where=suite, fix=near(suite, suites, "Suites there"))
    return headers, pinned


# --- evaluating ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _How:
    """How an evaluation is made and judged."""

    model: str
    revision: str | None
    against: str | None
    gate: Gate
    budget_usd: float | None
    pace: int | None
    again: str | None
    deadline: str | None
    webhook_url: str | None
    allow_mixed_image: bool

    def asked(self) -> Asked:
        from cli.work import parse_span
        from nights.evals.evaluate import Asked
        from pipelines.work import Following

        deadline = None if self.deadline is None else parse_span(self.deadline)
        Following(budget_usd=self.budget_usd, webhook_url=self.webhook_url)  # what it refuses is said before anything is planned
        return Asked(
            model=self.model,
            revision=self.revision,
            again=self.again,
            pace=self.pace,
            budget_usd=self.budget_usd,
            deadline=deadline,
            webhook_url=self.webhook_url,
            allow_mixed_image=self.allow_mixed_image,
        )


def _gate(
    against: str | None, min_score: float | None, max_regression: float | None, max_failed: float | None, confidence: float, strict: bool
) -> Gate:
    """Raises UsageError for limits that cannot be judged."""
    from contract.errors import UsageError
    from nights.evals.gate import Gate, check_gate

    made = Gate(min_score=min_score, max_regression=max_regression, confidence=confidence, strict=strict, max_failed_percent=max_failed)
    check_gate(made)
    if max_regression is not None and against is None:
        raise UsageError("a regression is against a baseline.", where="--max-regression", fix="Name it: --baseline NAME.")
    return made


@asynccontextmanager
async def announced(where: Where) -> AsyncIterator[Runner]:
    """The stack's runner, which says what to type to end the jobs of the run that it follows."""
    from cli.progress import shown
    from cli.work import find_stack, live_limits, watch_of
    from nights.runner import StackRunner
    from pipelines.follow import Events, ignore
    from pipelines.work import Finished, Following, buckets_of

    class Announced(StackRunner):
        async def complete(self, planned: PlannedRun, how: Following, hear: Events = ignore) -> Finished:
            session.run = str(planned.uri)
            session.cancel = f"{program()} cancel {planned.plan.run_id} --stop{where.options}"
            self.note(f"run {session.run}")
            return await super().complete(planned, how, hear)

    stack = await find_stack(where)
    with shown() as progress:
        async with buckets_of(stack) as buckets:
            yield Announced(stack, buckets, watch_of(progress), live_limits)


def _previewed(where: Where, path: Path, how: _How) -> int:
    """What the questions would cost; nothing is stored, nothing sent."""
    from cli.report import plan_lines, plan_record
    from cli.work import run_async
    from nights.evals.evaluate import preview
    from nights.evals.suite import load_suite

    suite, asked = load_suite(path), how.asked()

    async def main() -> tuple[int, PlannedRun]:
        async with announced(where) as runner:
            prepared, planned = await preview(suite, runner, asked)
            return len(prepared.questions.all), planned

    questions, planned = run_async(main)
    judge = ["  judge    asks about every answer in a run of its own, which is not in the price"] if suite.keys.judge is not None else []
    record = {"suite": suite.name, "questions": questions, "judged": bool(judge), "plan": plan_record(planned, stored=False)}
    return _told(record, [f"{suite.name}: {questions:,} questions", *plan_lines(planned, how.budget_usd), *judge])


def _evaluated(where: Where, path: Path, how: _How) -> int:
    from cli.work import run_async
    from nights.evals.baseline import Baselines
    from nights.evals.evaluate import Evaluated, evaluate, prepare
    from nights.evals.gate import judge
    from nights.evals.results import Results
    from nights.evals.suite import load_suite

    suite, asked = load_suite(path), how.asked()
    session.resume = f"{program()} {shlex.join(sys.argv[1:])}"

    async def main() -> tuple[Evaluated, EvalResult | None]:
        async with announced(where) as runner:
            base: EvalResult | None = None
            prepared: Prepared | None = None
            if how.against is not None:
                kept = Baselines(Results(runner.store, runner.stack.facts.store.folder))
                base = await kept.result(await kept.results.find(how.against, suite=suite.name))
                if how.gate.max_regression is not None:
                    prepared = await prepare(suite, runner)
                    _same_suite(base.header, prepared, how.against)
            return await evaluate(suite, runner, asked, prepared=prepared), base

    done, base = run_async(main)
    found = done.result
    lines, record = _result_shown(found, (), how.gate.confidence)
    if done.repeated:
        lines.append("It was there already: nothing was asked and nothing paid. For another evaluation say --again NAME.")
    record = {**record, "repeated": done.repeated, "gate": None}
    code = 0
    if how.gate.asks or base is not None:
        verdict = judge(found, how.gate, base, name=how.against)
        record["gate"] = _verdict_record(found, verdict)
        lines += [verdict.sentence, *(f"note: {text}" for text in verdict.notices)]
        code = verdict.exit_code
    return _told(record, lines, code)


def _same_suite(base: ResultHeader, prepared: Prepared, name: str) -> None:
    """Refuse a baseline that no answer could be compared with, before any is paid for. Raises UsageError."""
    from contract.errors import UsageError

    if base.suite_digest == prepared.digest:
        return
    parts = {
        "dataset": base.dataset_digest != prepared.questions.digest,
        "scorers": base.scorers != prepared.described,
        "headline": base.headline != prepared.suite.headline,
        "draws": base.draws != prepared.suite.keys.draws,
        "prompt": base.made_with.get("prompt") != prepared.prompt_digest[:16],
    }
    changed = ", ".join(part for part, other in parts.items() if other) or "its definition"
    raise UsageError(
        f"baseline {name} is of this suite as it was before ({changed} changed): nothing can be compared, and nothing was asked.",
        where="--baseline",
        fix="Leave out --max-regression, and pin a new baseline from the result.",
    )


# --- saying --------------------------------------------------------------------------------------------------------------------------


def _told(record: dict[str, Any], lines: Sequence[str], code: int = 0) -> int:
    if session.json_output:
        emit(record)
    else:
        for line in lines:
            print(session.clean(line))
    return code


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other; what is named in them came from a store, and is shown as what it is."""
    from nights.evals.diff import plain

    shown = [[plain(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max((len(row[column]) for row in shown), default=0) for column in range(len(shown[0]) if shown else 0)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def _number(value: float, *, sign: bool = False) -> str:
    from nights.evals.gate import number

    return number(value, sign=sign)


def _between(found: Interval | Comparison, *, sign: bool = False) -> str:
    from nights.evals.gate import percent, span

    return f"{span(found.low, found.high, sign=sign)} at {percent(found.confidence)}"


def _suites(where: Where) -> int:
    async def work(kept: Baselines) -> list[tuple[Names, ResultHeader | None]]:
        names = (await kept.results.suites()).values()
        return [(one, await kept.results.header(one.suite, one.results[-1]) if one.results else None) for one in names]

    found = _run(where, work)
    rows = [
        (
            names.suite,
            f"{len(names.results):,} {'result' if len(names.results) == 1 else 'results'}",
            f"{header.headline} {_number(header.metrics[header.headline])}" if header else "",
            f"{header.at:%Y-%m-%d %H:%M}" if header else "",
            header.model if header else "",
            f"baselines {', '.join(names.baselines)}" if names.baselines else "",
        )
        for names, header in found
    ]
    record = {
        "suites": [
            {"suite": names.suite, "results": list(names.results), "baselines": list(names.baselines), "latest": _header_record(header)}
            for names, header in found
        ]
    }
    return _told(record, _table(rows) or ["no results of evaluations"])


def _results(where: Where, suite: str, last: int) -> int:
    headers, pinned = _run(where, lambda kept: _headers(kept, suite, last))
    newest = list(reversed(headers))
    rows = [
        (
            one.result,
            f"{one.at:%Y-%m-%d %H:%M}",
            f"{one.headline} {_number(one.metrics[one.headline])}",
            one.model,
            _counts(one.counts),
            f"baseline {', '.join(pinned[one.result])}" if one.result in pinned else "",
        )
        for one in newest
    ]
    records = [{**(_header_record(one) or {}), "baselines": pinned.get(one.result, [])} for one in newest]
    return _told({"suite": suite, "results": records}, _table(rows) or ["no results; only baselines"])


def _header_record(header: ResultHeader | None) -> dict[str, Any] | None:
    if header is None:
        return None
    return {
        "result": header.result,
        "at": header.at.isoformat(),
        "date": header.date,
        "model": header.model,
        "stack": header.stack,
        "metric": header.headline,
        "score": header.metrics[header.headline],
        "metrics": header.metrics,
        "counts": header.counts,
    }


def _counts(counts: dict[str, int]) -> str:
    """`1,312 ok, 4 failed, 3 cut`."""
    names = dict.fromkeys(("ok", "failed", "cut", "unparsed", *counts))
    return ", ".join(f"{counts.get(name, 0):,} {name}" for name in names if counts.get(name, 0) or name == "ok")


def _baseline_record(one: Baseline) -> dict[str, Any]:
    return {
        "suite": one.suite,
        "name": one.name,
        "result": one.result,
        "metric": one.headline,
        "score": one.score,
        "model": one.model,
        "made": one.made.isoformat(),
        "pinned": one.at.isoformat(),
        "note": one.note,
    }


def _result_shown(found: EvalResult, pinned: Sequence[str], confidence: float) -> tuple[list[str], dict[str, Any]]:
    from contract.errors import UsageError
    from nights.evals import stats
    from nights.evals.diff import one_line

    header = found.header
    intervals: dict[str, Interval] = {}
    for metric in dict.fromkeys([header.headline, *header.metrics]):
        try:
            intervals[metric] = stats.score_interval(found, metric, confidence=confidence)
        except UsageError:  # of the whole alone: no sample has it
            continue
    headline = intervals.get(header.headline)
    groups: dict[str, Interval] = {}
    for group in dict.fromkeys(sample.group for sample in found.samples if sample.group is not None):
        questions = stats.questions_of(found, group=group)
        groups[group] = stats.interval(questions, seed=stats.seed_of(header.result, group), confidence=confidence)
    also = f", baseline {', '.join(pinned)}" if pinned else ""
    lines = [f"{header.suite}/{header.result}  {header.at:%Y-%m-%d %H:%M}{also}", f"model    {header.model} on {header.stack}"]
    asked = f"{headline.questions:,} questions" if headline else f"{len(found.samples):,} samples"
    draws = f", {header.draws} draws each" if header.draws > 1 else ""
    lines.append(f"asked    {asked}{draws}: {_counts(header.counts)}")
    rows = []
    for metric in dict.fromkeys([header.headline, *header.metrics]):
        interval, value = intervals.get(metric), header.metrics[metric]
        said = _between(interval) if interval else "no interval: it is of the whole result"
        rows.append((f"  {metric}", _number(value), said, "headline" if metric == header.headline else ""))
    rows += [(f"  {group}", _number(one.value), _between(one), f"group of {one.questions:,}") for group, one in groups.items()]
    lines += ["scores", *_table(rows)]
    if headline is not None and headline.smallest is not None:
        lines.append(f"A difference of {_number(headline.smallest)} or more between two such results would show, four times in five.")
    elif headline is not None:
        lines.append("So few questions would not show any difference between two such results.")
    lines += [f"note     {one}" for one in dict.fromkeys(one.notice for one in intervals.values() if one.notice)]
    lines += ["made with", *(f"  {one_line(f'{name}: {value}', 400)}" for name, value in header.made_with.items())]
    if header.run:
        lines.append(f"run      {header.run}")
    record = {
        "suite": header.suite,
        **(_header_record(header) or {}),
        "baselines": list(pinned),
        "headline": header.headline,
        "higher_is_better": header.higher_is_better,
        "draws": header.draws,
        "questions": headline.questions if headline else None,
        "intervals": {name: asdict(one) for name, one in intervals.items()},
        "groups": {name: asdict(one) for name, one in groups.items()},
        "made_with": header.made_with,
        "scorers": header.scorers,
        "suite_digest": header.suite_digest,
        "dataset_digest": header.dataset_digest,
        "run": header.run,
        "judge_run": header.judge_run,
        "usd_estimated": header.usd_estimated,
    }
    return lines, record


def _compared(before: EvalResult, after: EvalResult, metric: str | None, confidence: float) -> Comparison | None:
    """None where only some questions are common: no number is made of those."""
    from nights.evals.baseline import NotComparable, compare

    try:
        return compare(before, after, metric=metric, confidence=confidence)[0]
    except NotComparable:
        return None


def _chosen(found: Diff, which: Which, limit: int) -> list[Change]:
    """The changes to show: the worse before the better."""
    chosen = [*(found.worse if which is not Which.better else ()), *(found.better if which is not Which.worse else ())]
    return chosen[:limit]


def _diff_told(found: Diff, compared: Comparison | None, chosen: Sequence[Change], *, names: tuple[str, str], full: bool) -> int:
    from nights.evals import diff as diffs
    from nights.evals.gate import p_value

    record: dict[str, Any] = {
        "first": found.first,
        "second": found.second,
        "metric": found.metric,
        "comparison": None if compared is None else asdict(compared),
        "worse": len(found.worse),
        "better": len(found.better),
        "same": found.same,
        "left_out": {"only_first": list(found.only_first), "only_second": list(found.only_second), "rewritten": list(found.rewritten)},
        "changed": list(found.changed),
        "samples": [diffs.record(one) for one in chosen],
    }
    if session.json_output:
        emit(record)
        return 0
    lines = [f"{found.metric}: {found.first} -> {found.second}"]
    if compared is not None:
        real = "not by chance" if compared.significant else "may be chance"
        lines.append(
            f"{_number(compared.first)} -> {_number(compared.second)}, {_number(compared.difference, sign=True)} "
            f"({_between(compared, sign=True)}), p {p_value(compared.p_value)}: {real}"
        )
    lines.append(f"of {found.questions:,} questions {len(found.worse):,} got worse, {len(found.better):,} better, {found.same:,} stayed")
    left = [(found.only_first, "only in the first"), (found.only_second, "only in the second"), (found.rewritten, "changed their text")]
    lines += [f"left out: {len(ids):,} {what}" for ids, what in left if ids]
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    lines += [f"changed: {diffs.plain(text)}" for text in found.changed]
    for one in chosen:
        lines += ["", *diffs.shown(one, found.metric, width=width, lines=None if full else diffs.LINES, names=names)]
    return _told(record, lines)


def _history_told(suite: str, headers: Sequence[ResultHeader], pinned: dict[str, list[str]]) -> int:
    from nights.evals.diff import plain
    from nights.evals.history import history as entries_of
    from nights.evals.history import record as entry_record

    entries = entries_of(headers, pinned=pinned)
    rows = _table([_entry(one) for one in entries])
    lines: list[str] = []
    for place, (one, row) in enumerate(zip(entries, rows, strict=True)):
        if one.breaks:
            again = next((other for other in reversed(entries[:place]) if other.series == one.series), None)
            goes_on = f" (goes on from {again.header.result})" if again else ""
            lines.append(f"--- not comparable with the one above{goes_on}: {plain('; '.join(one.breaks))}")
        lines.append(row)
        lines += [f"    {plain(text)}" for text in one.changed]
    return _told({"suite": suite, "results": [entry_record(one) for one in entries]}, lines or ["no results; only baselines"])


def _entry(one: Entry) -> tuple[str, ...]:
    from nights.evals.gate import span

    return (
        f"{one.header.at:%Y-%m-%d %H:%M}",
        one.header.result,
        f"{one.header.headline} {_number(one.score)}",
        f"({span(one.low, one.high)})" if one.low is not None and one.high is not None else "",
        _number(one.difference, sign=True) if one.difference is not None else "",
        one.header.model,
        f"baseline {', '.join(one.baselines)}" if one.baselines else "",
    )


def _gated(where: Where, result: str, against: str | None, asked: Gate) -> int:
    from nights.evals.gate import judge

    async def work(kept: Baselines) -> tuple[EvalResult, EvalResult | None]:
        named = await kept.results.find(result)
        found = await kept.result(named)
        base = None if against is None else await kept.result(await kept.results.find(against, suite=named.suite))
        return found, base

    found, base = _run(where, work)
    verdict = judge(found, asked, base, name=against)
    lines = [verdict.sentence, *(f"note: {text}" for text in verdict.notices)]
    if verdict.differences is not None:
        lines += [f"changed since the baseline: {text}" for text in verdict.differences.changed]
    return _told(_verdict_record(found, verdict), lines, verdict.exit_code)


def _verdict_record(found: EvalResult, verdict: Verdict) -> dict[str, Any]:
    return {
        "suite": found.header.suite,
        "result": found.header.result,
        "metric": found.header.headline,
        "baseline": verdict.baseline,
        "gate": verdict.state,
        "sentence": verdict.sentence,
        "exit_code": verdict.exit_code,
        "score": asdict(verdict.interval),
        "comparison": None if verdict.comparison is None else asdict(verdict.comparison),
        "failed_percent": verdict.failed_percent,
        "changed": list(verdict.differences.changed) if verdict.differences else [],
        "notices": list(verdict.notices),
    }
