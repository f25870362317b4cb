"""nights/evals: one evaluation: a run asks the questions, scorers and a judge's run grade the answers, the result is kept. Touches a
`Runner`.

What counts: every question, as often as it was drawn. A row that failed, an answer that was cut off by its length, and one in which a
scorer finds no answer score 0, and are counted by their names beside it; nothing is ever left out of a mean. (BLEU over a corpus is no
mean: such answers are empty lines in it.)

The same evaluation twice is one: its runs are found again, its result has an id that follows from them, and a result that stands is
returned as it is, without scoring, judging or paying again. With a `date` each date is an evaluation of its own, because what it measures
(the image, the GPU, vLLM) may have changed where nothing that was asked did.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from contract.errors import BadRow, DatasetError, NightbatchError, UsageError
from contract.models import Plan
from contract.store import get_or_none, probe_mode
from nights.evals.judge import Judge, no_verdict
from nights.evals.results import Results, readable, result_id
from nights.evals.rows import Answer, Question, Questions, bad_questions, batch_lines, read_answers, read_questions, suite_lines
from nights.evals.samples import EvalResult, ResultHeader, Sample, SampleOutcome
from nights.evals.scorers import Code, Item, Mark, Scorer, metric_name, metric_names, pass_at_k, unparsed
from nights.evals.suite import Suite, run_name
from nights.runner import Runner
from pipelines.plan import PlannedRun, PlanRequest
from pipelines.scratch import scratch_folder
from pipelines.work import Finished, Following

FORMAT: Final = 1
"""Of how samples and metrics come of answers. Part of the suite's digest."""
OUTCOMES: Final[tuple[SampleOutcome, ...]] = ("ok", "failed", "cut", "unparsed")
Complete = Callable[[PlannedRun, str], Awaitable[Finished]]
"""Brings a planned run to its end, its output in this file."""
_ERROR: Final = re.compile(r"([A-Za-z_][\w.]*): .*?(, line \d+)?", re.DOTALL)
"""An error as scorers tell it: its kind, what it says, and its line."""


class Unfinished(NightbatchError):
    """A run of the evaluation did not come to its end, and no score is made of a part. `exit_code` is the run's."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(finished.sentence, where=finished.plan.run)
        self.finished = finished
        self.exit_code = finished.exit_code  # type: ignore[misc]


class ScorerFailed(UsageError):
    """A scorer failed on every answer. The message says of which kind the first error was and in which line; `first` says all of it, which
    may quote an answer: it is for whoever looks on, and not for what is kept or told to others."""

    def __init__(self, scorer: str, answers: int, first: str) -> None:
        found = _ERROR.fullmatch(first)
        kind = f", first with {found[1]}{found[2] or ''}" if found is not None else ""
        super().__init__(
            f"failed on all {answers:,} answers{kind}.",
            where=f"scorer {scorer}",
            fix="Nothing is kept. Mend the scorer; the answers are there, and are not paid for again.",
        )
        self.scorer = scorer
        self.first = first


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Of whom, and within which limits. `again`: a name for another evaluation of the same; by default the date."""

    model: str
    revision: str | None = None
    date: str | None = None
    again: str | None = None
    pace: int | None = None
    budget_usd: float | None = None
    deadline: timedelta | None = None
    webhook_url: str | None = None
    allow_mixed_image: bool = False


@dataclass(frozen=True)
class Prepared:
    """A suite whose questions were read and can all be scored."""

    suite: Suite
    questions: Questions
    scorers: tuple[Scorer, ...]
    """Without the judge's."""

    @property
    def prompt_digest(self) -> str:
        keys = self.suite.keys
        messages = [message.model_dump() for message in keys.messages] if keys.messages is not None else None
        return _digest([keys.column, keys.prompt, messages, keys.messages_column, keys.choices_column, keys.chat])

    @property
    def described(self) -> dict[str, str]:
        """Metric -> scorer."""
        by_name = {scorer.name: scorer.described for scorer in self.scorers}
        graded, judge = self.suite.graded, self.suite.keys.judge
        if graded is not None and judge is not None:
            by_name[metric_name(graded)] = judge.described(graded)
        return {name: by_name[metric_name(one)] for one in self.suite.keys.scorers for name in metric_names(one)}

    @property
    def digest(self) -> str:
        """What must be equal for two results to be compared."""
        described = sorted(self.described.items())
        return _digest([FORMAT, self.questions.digest, self.prompt_digest, described, self.suite.headline, self.suite.keys.draws])


@dataclass(frozen=True)
class Evaluated:
    """An evaluation. `repeated`: its result stood already, and nothing was done. `runs`: of this call, in order."""

    result: EvalResult
    key: str
    repeated: bool = False
    runs: tuple[Finished, ...] = ()

    @property
    def score(self) -> float:
        return self.result.header.metrics[self.result.header.headline]


@dataclass
class Verdicts:
    """What the judge said of the draws that it was shown."""

    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    """Question's index and draw -> mark."""
    run: str | None = None
    counts: Counter[str] = field(default_factory=Counter)


# --- the whole of it -----------------------------------------------------------------------------------------------------------------


async def prepare(suite: Suite, runner: Runner) -> Prepared:
    """Read all questions, and ask all scorers whether they can score them: before anything is paid for. Raises DatasetError, UsageError."""
    scorers = await asyncio.to_thread(suite.scorers)
    questions = await read_questions(suite, runner.bucket)
    check(suite, questions, scorers)
    for scorer in scorers:
        if isinstance(scorer, Code):
            await asyncio.to_thread(scorer.ready)
    return Prepared(suite, questions, scorers)


def check(suite: Suite, questions: Questions, scorers: Sequence[Scorer]) -> None:
    """Raises DatasetError with every question that a scorer or the judge could not score."""
    bad: list[BadRow] = []
    for one in questions.all:
        for scorer in scorers:
            if (problem := scorer.problem(one.item)) is not None:
                bad.append(BadRow(one.file, one.line, "cannot_score", f"`{scorer.name}` cannot score it: {problem}"))
        if suite.keys.judge is not None and (problem := suite.keys.judge.problem(one.item)) is not None:
            bad.append(BadRow(one.file, one.line, "cannot_score", f"the judge cannot grade it: {problem}"))
    if bad:
        raise bad_questions(bad, suite.where("dataset"))


async def plan(prepared: Prepared, runner: Runner, asked: Asked, folder: Path, *, dry_run: bool = False) -> PlannedRun:
    """The run that asks the questions. `folder`: a scratch one, for its rows."""
    suite = prepared.suite
    rows = await asyncio.to_thread(suite_lines, suite, prepared.questions)
    return await _plan(runner, asked, asked.model, asked.revision, run_name(suite.name), rows, folder, dry_run=dry_run)


async def preview(suite: Suite, runner: Runner, asked: Asked) -> tuple[Prepared, PlannedRun]:
    """What an evaluation would ask and cost, without its judge; nothing is stored and nothing sent."""
    prepared = await prepare(suite, runner)
    with scratch_folder() as folder:
        return prepared, await plan(prepared, runner, asked, folder, dry_run=True)


async def evaluate(
    suite: Suite, runner: Runner, asked: Asked, *, complete: Complete | None = None, prepared: Prepared | None = None
) -> Evaluated:
    """Ask, score, judge, keep. `complete`: instead of the runner's own, for a caller that counts what runs cost; `prepared`: the suite,
    where its questions were read already.

    Raises DatasetError and UsageError before anything is sent, Unfinished where a run was stopped (the same call goes on with it),
    VerifyFailed and Damaged where an output is not whole.
    """
    prepared = prepared or await prepare(suite, runner)
    results = Results(runner.store, runner.stack.facts.store.folder)
    results.store.mode = await probe_mode(results.store, results.root().rstrip("/"))
    bring = complete if complete is not None else _bring(runner, asked)
    with scratch_folder() as folder:
        planned = await plan(prepared, runner, asked, folder)
        ident = result_id(planned.plan.created_at, f"{planned.plan.run}\n{prepared.digest}")
        key = results.key(suite.name, ident)
        if planned.existing and (standing := await get_or_none(results.store, key)) is not None:
            return Evaluated(readable(standing.data, where=results.where(suite.name, ident)), key, repeated=True)
        finished, answers = await _answers(planned, bring, folder, prepared.questions.ids, suite.keys.draws, "answers")
        runs = [finished]
        verdicts = Verdicts()
        if suite.keys.judge is not None:
            judged = await _judge(prepared, suite.keys.judge, runner, asked, bring, folder, answers, verdicts)
            runs += [judged] if judged is not None else []
        try:
            marks = await _score(prepared.scorers, prepared.questions, answers)
        except ScorerFailed as error:
            runner.note(f"scorer {error.scorer}, on the first answer: {error.first}")
            raise
        result = assemble(prepared, answers, marks, verdicts, planned.plan, asked, ident, runs)
        return await _keep(results, result, runs)


async def _keep(results: Results, result: EvalResult, runs: Sequence[Finished]) -> Evaluated:
    header = result.header
    key = results.key(header.suite, header.result)
    try:
        await results.put(result)
    except UsageError:
        # Somebody else finished the same evaluation at the same time; theirs counts as well, and came first.
        standing = await get_or_none(results.store, key)
        if standing is None:
            raise
        return Evaluated(readable(standing.data, where=results.where(header.suite, header.result)), key, repeated=True, runs=tuple(runs))
    return Evaluated(result, key, runs=tuple(runs))


def _bring(runner: Runner, asked: Asked) -> Complete:
    """Runs within what was asked: the second has what the first left of the budget and of the time."""
    spent = 0.0
    began = runner.now()

    async def complete(planned: PlannedRun, out: str) -> Finished:
        nonlocal spent
        left = None if asked.deadline is None else max(timedelta(seconds=1), asked.deadline - (runner.now() - began))
        how = Following(
            out=out,
            budget_usd=None if asked.budget_usd is None else max(0.0, asked.budget_usd - spent),
            pace=asked.pace,
            deadline=left,
            webhook_url=asked.webhook_url,
            allow_mixed_image=asked.allow_mixed_image,
        )
        finished = await runner.complete(planned, how)
        spent += finished.result.usd_estimated
        if not finished.complete:
            raise Unfinished(finished)
        return finished

    return complete


async def _plan(
    runner: Runner, asked: Asked, model: str, revision: str | None, name: str, rows: bytes, folder: Path, *, dry_run: bool = False
) -> PlannedRun:
    path = folder / f"{name}.jsonl"
    await asyncio.to_thread(path.write_bytes, rows)
    request = PlanRequest(
        dataset=(str(path),),
        task="generate",
        model=model,
        revision=revision,
        output_format="jsonl",
        keep_columns=False,
        pace=asked.pace,
        budget_usd=asked.budget_usd,
        name=name,
        again=asked.again if asked.again is not None else asked.date,
    )
    try:
        return await runner.plan(request, dry_run=dry_run)
    except DatasetError as error:  # it speaks of lines of a file that is gone
        reasons = sorted({row.reason for row in error.bad_rows})
        raise DatasetError(
            f"{error.total:,} questions cannot be sent: {'; '.join(reasons[:3])}." if reasons else error.what, where=name, fix=error.fix
        ) from None


async def _answers(
    planned: PlannedRun, bring: Complete, folder: Path, ids: Sequence[str], draws: int, name: str
) -> tuple[Finished, dict[str, Answer]]:
    finished = await bring(planned, str(folder / f"{name}.jsonl"))
    if not finished.complete or finished.collected is None:
        raise Unfinished(finished)
    if finished.judged is not None and not finished.judged.clean:
        raise finished.judged.failure() or Unfinished(finished)
    names = finished.collected.names
    return finished, await asyncio.to_thread(read_answers, Path(names.out), Path(names.errors), ids, draws)


# --- the judge -----------------------------------------------------------------------------------------------------------------------


async def _judge(
    prepared: Prepared,
    judge: Judge,
    runner: Runner,
    asked: Asked,
    bring: Complete,
    folder: Path,
    answers: Mapping[str, Answer],
    verdicts: Verdicts,
) -> Finished | None:
    """Ask the judge about every answer that came whole; None where there is none. Fills `verdicts`."""
    places = {f"{draw}:{one.id}": (one, draw) for one in prepared.questions.all for draw in range(prepared.suite.keys.draws)}
    shown = {
        ident: (one, text)
        for ident, (one, draw) in places.items()
        if (text := whole_text(answers[one.id], draw)) is not None and text.strip()
    }
    for one, draw in places.values():
        text = whole_text(answers[one.id], draw)
        if text is not None and not text.strip():
            verdicts.marks[one.index, draw] = unparsed("it is empty")
            verdicts.counts["empty"] += 1
    if not shown:
        return None
    rows = await asyncio.to_thread(lambda: batch_lines((ident, judge.ask(one.item, text)) for ident, (one, text) in shown.items()))
    name = f"{run_name(prepared.suite.name)}-judge"
    planned = await _plan(runner, asked, judge.model, judge.revision, name, rows, folder)
    finished, said = await _answers(planned, bring, folder, list(shown), 1, "verdicts")
    verdicts.run = planned.plan.run
    for ident in shown:
        one, draw = places[ident]
        verdict = said[ident]
        if verdict.error is not None:
            mark, what = no_verdict("failed", verdict.error.code), "failed"
        elif verdict.draws[0].cut:
            mark, what = no_verdict("cut"), "cut"
        else:
            mark = judge.read(verdict.draws[0].text)
            what = "unparsed" if mark.unparsed else "ok"
        verdicts.marks[one.index, draw] = mark
        verdicts.counts[what] += 1
    return finished


# --- scores --------------------------------------------------------------------------------------------------------------------------

Marks = dict[tuple[int, int], Mark]
"""Question's index and draw -> what a scorer says of it; only of answers that came whole."""


def whole_text(answer: Answer, draw: int) -> str | None:
    """The text of a draw; None where there is none or it was cut off."""
    if answer.error is not None or answer.draws[draw].cut:
        return None
    return answer.draws[draw].text


async def _score(scorers: Sequence[Scorer], questions: Questions, answers: Mapping[str, Answer]) -> dict[str, Marks]:
    """In a thread, because it computes, or runs code; ended with this task."""
    running = asyncio.ensure_future(asyncio.to_thread(score, scorers, questions, answers))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        for scorer in scorers:
            if isinstance(scorer, Code):
                scorer.stop.set()
        await asyncio.wait([running])
        raise


def score(scorers: Sequence[Scorer], questions: Questions, answers: Mapping[str, Answer]) -> dict[str, Marks]:
    """Metric -> marks. Raises ScorerFailed for a scorer that failed on every answer: its 0 would measure nothing."""
    places = [(one, draw, text) for one in questions.all for draw, text in enumerate(_texts(answers[one.id])) if text is not None]
    found: dict[str, Marks] = {}
    for scorer in scorers:
        marks = scorer.marks([(one.item, text) for one, _, text in places])
        if marks and all(mark.error for mark in marks):
            raise ScorerFailed(scorer.name, len(marks), marks[0].explanation or "")
        found[scorer.name] = {(one.index, draw): mark for (one, draw, _), mark in zip(places, marks, strict=True)}
    return found


def _texts(answer: Answer) -> list[str | None]:
    return [whole_text(answer, draw) for draw in range(len(answer.draws))]


@dataclass(frozen=True)
class _Metric:
    """A metric over samples, and what is made of it. `at`: K -> name of its pass@K."""

    name: str
    binary: bool
    at: Mapping[int, str]
    code: bool
    scorer: Scorer | None


def _metrics(prepared: Prepared) -> list[_Metric]:
    by_name = {scorer.name: scorer for scorer in prepared.scorers}
    found = []
    for settings in prepared.suite.keys.scorers:
        name = metric_name(settings)
        scorer = by_name.get(name)
        code = isinstance(scorer, Code)
        judge = prepared.suite.keys.judge
        binary = scorer.binary if scorer is not None else (judge is not None and judge.binary)
        ks = tuple(getattr(settings, "k", ())) + ((1,) if code else ())
        found.append(_Metric(name, binary, {k: f"{name}@{k}" for k in sorted(set(ks))}, code, scorer))
    return found


def assemble(
    prepared: Prepared,
    answers: Mapping[str, Answer],
    marks: Mapping[str, Marks],
    verdicts: Verdicts,
    made: Plan,
    asked: Asked,
    ident: str,
    runs: Sequence[Finished] = (),
) -> EvalResult:
    """Marks -> samples, metrics and counts. Pure."""
    suite, metrics = prepared.suite, _metrics(prepared)
    graded = suite.graded
    said = {**marks, **({metric_name(graded): verdicts.marks} if graded is not None else {})}
    headline = next(one for one in metrics if suite.headline in (one.name, *one.at.values()))
    samples: list[Sample] = []
    for one in prepared.questions.all:
        samples += _samples(one, answers[one.id], suite, metrics, headline, said)
    draws = suite.keys.draws
    counts = Counter(sample.outcome for sample in samples)
    header = ResultHeader(
        suite=suite.name,
        result=ident,
        suite_digest=prepared.digest,
        dataset_digest=prepared.questions.digest,
        headline=suite.headline,
        binary=headline.binary and draws == 1,
        draws=draws,
        model=made.task.model,
        stack=made.infra.stack,
        run=made.run,
        judge_run=verdicts.run,
        made_with=made_with(prepared, made, runs),
        scorers=prepared.described,
        at=made.created_at,
        date=asked.date,
        usd_estimated=sum(finished.result.usd_estimated for finished in runs),
        metrics=_totals(prepared, samples, metrics, answers),
        counts={outcome: counts[outcome] for outcome in OUTCOMES},
        details=_details(prepared, samples, metrics, said, verdicts),
    )
    return EvalResult(header, tuple(samples))


def _samples(
    one: Question, answer: Answer, suite: Suite, metrics: Sequence[_Metric], headline: _Metric, said: Mapping[str, Marks]
) -> list[Sample]:
    draws = range(suite.keys.draws)
    none = unparsed("")
    marks = {metric.name: [said[metric.name].get((one.index, draw), none) for draw in draws] for metric in metrics}
    at: dict[str, float] = {}
    for metric in metrics:
        right = sum(mark.score == 1 for mark in marks[metric.name])
        for k, name in metric.at.items():
            if not (metric.code and k == 1):
                at[name] = pass_at_k(len(draws), right, k)
    made = []
    for draw in draws:
        scores = {(metric.at[1] if metric.code else metric.name): marks[metric.name][draw].score for metric in metrics}
        mark = marks[headline.name][draw]
        outcome: SampleOutcome = "failed" if answer.error is not None else "cut" if answer.draws[draw].cut else "ok"
        if outcome == "ok" and mark.unparsed:
            outcome = "unparsed"
        explanation = mark.explanation or next((others[draw].explanation for others in marks.values() if others[draw].explanation), None)
        targets = one.item.targets
        made.append(
            Sample(
                id=one.id,
                index=one.index,
                draw=draw,
                input=one.item.question,
                target=None if not targets else targets[0] if len(targets) == 1 else targets,
                answer=None if answer.error is not None else answer.draws[draw].text,
                parsed=mark.parsed,
                outcome=outcome,
                error=None if answer.error is None else f"{answer.error.code}: {answer.error.message}",
                scores={**scores, **at},
                explanation=explanation or None,
                # A response counts the tokens of all its draws together: they stand with the first.
                tokens_in=answer.tokens_in if draw == 0 else 0,
                tokens_out=answer.tokens_out if draw == 0 else 0,
                group=one.group,
            )
        )
    return made


def _totals(prepared: Prepared, samples: Sequence[Sample], metrics: Sequence[_Metric], answers: Mapping[str, Answer]) -> dict[str, float]:
    """Every metric over everything. Draws of a question weigh alike, so that the mean over samples is the mean over questions."""
    found = {name: sum(sample.scores[name] for sample in samples) / len(samples) for name in samples[0].scores}
    for metric in metrics:
        if metric.scorer is None:
            continue
        pairs: list[tuple[Item, str]] = []
        for one in prepared.questions.all:
            answer = answers[one.id]
            pairs += [
                (one.item, (whole_text(answer, draw) if answer.error is None else None) or "") for draw in range(prepared.suite.keys.draws)
            ]
        whole = metric.scorer.whole(pairs)
        if whole is not None:
            found[f"{metric.name}_sentence"] = found[metric.name]
            found[metric.name] = whole
    return found


def _details(
    prepared: Prepared, samples: Sequence[Sample], metrics: Sequence[_Metric], said: Mapping[str, Marks], verdicts: Verdicts
) -> dict[str, Any]:
    found: dict[str, Any] = {"questions": len(prepared.questions.all)}
    missed = {name: sum(mark.unparsed for mark in marks.values()) for name, marks in said.items()}
    if any(missed.values()):
        found["unparsed"] = {name: count for name, count in missed.items() if count}
    for metric in metrics:
        wrong = [mark for mark in said[metric.name].values() if mark.error]
        if wrong and metric.scorer is not None:
            found.setdefault("scorer_errors", {})[metric.name] = {"count": len(wrong), "first": wrong[0].explanation}
        if metric.scorer is not None and metric.scorer.most != 1:
            found.setdefault("corpus", {})[metric.name] = (
                f"over all answers as one corpus, 0 to {metric.scorer.most:g}; samples have their own sentence's score, whose mean is "
                f"{metric.name}_sentence"
            )
    if prepared.suite.keys.judge is not None:
        found["judge"] = {name: verdicts.counts[name] for name in ("ok", "unparsed", "failed", "cut", "empty")}
    if prepared.suite.keys.group_column is not None:
        headline = prepared.suite.headline
        groups: dict[str, list[float]] = {}
        for sample in samples:
            groups.setdefault(sample.group or "", []).append(sample.scores[headline])
        found["groups"] = {
            name: {"samples": len(scores), headline: sum(scores) / len(scores)}
            for name, scores in sorted(groups.items(), key=lambda g: g[0])
        }
    return found


def made_with(prepared: Prepared, made: Plan, runs: Sequence[Finished] = ()) -> dict[str, str]:
    """What may differ between two results that are compared, and is then said."""
    keys, infra = prepared.suite.keys, made.infra
    found: dict[str, str | None] = {
        "model": made.task.model,
        "revision": made.task.revision,
        "image": infra.image,
        "gpu": infra.gpu,
        "endpoint": infra.endpoint,
        "prompt": prepared.prompt_digest[:16],
        "sampling": json.dumps({**keys.sampling.body(), "draws": keys.draws}, sort_keys=True, ensure_ascii=False),
    }
    if keys.judge is not None:
        judge = runs[1].plan if len(runs) > 1 else None
        found |= {
            "judge_model": judge.task.model if judge is not None else keys.judge.model,
            "judge_revision": keys.judge.revision,
            "judge_image": judge.infra.image if judge is not None else None,
            "judge_prompt": keys.judge.prompt_digest[:16],
        }
    code = next((one for one in keys.scorers if one.kind == "code"), None)
    if code is not None:
        found["code_isolation"] = code.isolation
    return {name: value for name, value in found.items() if value is not None}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()
