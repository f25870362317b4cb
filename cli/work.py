"""cli: what the commands do: find the stack, call the pipelines, show progress, print one result. Decides nothing about a run."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shlex
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from cli.output import emit, say
from cli.policy import program, session
from cli.progress import Progress, Snapshot, shown, tidy
from cli.report import MOST_ERRORS, Report, plan_lines, plan_record, renames, report_lines, report_record
from contract.errors import NotFound, UsageError
from contract.facts import (
    API_KEY_ENV,
    API_URL,
    EndpointFacts,
    Stack,
    StackFacts,
    StoreFacts,
    load_stack,
    secrets_from,
    state_dir,
)
from contract.keys import RunUri
from contract.models import Plan, RowOptions, TaskKind, decode_stored
from contract.net import on_this_machine
from contract.store import S3Store
from contract.words import usd

if TYPE_CHECKING:
    from pipelines.collect import Collected
    from pipelines.follow import Event
    from pipelines.follow import Progress as FollowProgress
    from pipelines.plan import PlanEvent, PlannedRun, PlanRequest
    from pipelines.runs import RunHandle
    from pipelines.submit import RunOverview, RunStatus
    from pipelines.verify import VerifyReport
    from pipelines.work import Buckets, Following, Watch

T = TypeVar("T")
LOCAL = "local"
SAY_AGAIN_S = 60.0
"""A notice that comes again and again, such as a store that does not answer, is said once a minute."""
MOST_ENDED = 20
"""Attempts that are named when they died of the same."""
MOST_REASONS = 5
LONGEST_REASON = 48


# --- what was asked ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `run` and `plan` were told about the rows and the task."""

    paths: tuple[str, ...]
    task: TaskKind
    model: str
    revision: str | None = None
    out: str | None = None
    prompt: str | None = None
    column: str | None = None
    messages_column: str | None = None
    id_column: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    budget_usd: float | None = None
    on_bad_row: Literal["fail", "skip"] = "fail"
    pace: int | None = None
    again: str | None = None
    name: str | None = None


def following(*, deadline: str | None = None, **how: Any) -> Following:
    """How a run is followed and collected, as options say it: all of it is judged before anything is planned or sent. Raises UsageError."""
    from pipelines.work import Following

    return Following(deadline=parse_span(deadline) if deadline is not None else None, **how)


@dataclass(frozen=True)
class Where:
    """The stack as the user named it; None: the one in the run's address, else local."""

    stack: str | None = None
    facts: Path | None = None

    @property
    def options(self) -> str:
        """What to type again in a command that goes on."""
        return (f" --stack {shlex.quote(self.stack)}" if self.stack else "") + (
            f" --facts {shlex.quote(str(self.facts))}" if self.facts else ""
        )


def parse_params(texts: Sequence[str], *, max_tokens: int | None = None, temperature: float | None = None) -> dict[str, Any]:
    """`--param KEY=VALUE`, where VALUE is JSON or else text, and the two options that are short for one. Raises UsageError."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError("is not KEY=VALUE.", where=f"--param {text}", fix="For example: --param top_p=0.9")
        if key.strip() in found:
            raise UsageError(f"`{key.strip()}` is given twice.", where="--param")
        found[key.strip()] = _value(value, text)
    for name, option in (("max_tokens", max_tokens), ("temperature", temperature)):
        if option is not None:
            if name in found:
                raise UsageError(f"`{name}` is given twice.", where=f"--{name.replace('_', '-')}", fix=f"Leave out --param {name}=….")
            found[name] = option
    return found


def _value(value: str, text: str) -> Any:
    try:
        parsed = json.loads(value)
    except ValueError as error:
        if value.lstrip()[:1] in ("[", "{", '"'):
            raise UsageError(
                f"begins as JSON and is none ({error}).", where=f"--param {text}", fix="Text that begins so is written as JSON, in quotes."
            ) from None
        return value
    except RecursionError:
        raise UsageError("is nested too deep.", where=f"--param {text[:40]}…") from None
    if isinstance(parsed, float) and not math.isfinite(parsed):
        raise UsageError("is not a number that JSON knows.", where=f"--param {text}")
    return parsed


def parse_span(text: str, option: str = "--deadline") -> timedelta:
    """`90s`, `45m`, `6h`, `2d`. Raises UsageError."""
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    try:
        span = timedelta(**{units[text[-1:]]: float(text[:-1])})
    except (KeyError, ValueError, OverflowError):
        span = timedelta(0)
    if span <= timedelta(0):
        raise UsageError("is not a time span.", where=f"{option} {text}", fix=f"For example: {option} 6h.")
    return span


# --- the stack -----------------------------------------------------------------------------------------------------------------------


async def find_stack(where: Where, run: str | None = None, environ: Mapping[str, str] = os.environ) -> Stack:
    """The stack that the user named, or the one that the run's own plan tells of. Its secrets are cut out of all output from here on."""
    unnamed = where.stack is None and where.facts is None and not environ.get("NIGHTBATCH_FACTS")
    if unnamed and run is not None and run.startswith("s3://") and environ.get("NIGHTBATCH_S3_ACCESS_KEY_ID"):
        stack = await stack_of_run(RunUri.parse(run), environ)
    else:
        stack = load_stack(where.stack or LOCAL, environ=environ, facts_file=where.facts)
    session.hide(stack.secrets.values)
    return stack


async def stack_of_run(uri: RunUri, environ: Mapping[str, str]) -> Stack:
    """From the run's address, S3 keys and a RunPod key alone: what else there is to know is pinned in the plan.

    The plan comes out of a bucket, so it may send the RunPod key only to RunPod itself or to this machine.
    """
    endpoint_url = environ.get("NIGHTBATCH_S3_ENDPOINT_URL")
    if not endpoint_url:
        raise UsageError(
            "NIGHTBATCH_S3_ENDPOINT_URL must be set in the environment.", fix="It says where the bucket is; see docs/stacks.md."
        )
    at = StoreFacts(bucket=uri.bucket, endpoint_url=endpoint_url)
    secrets = secrets_from({API_KEY_ENV: "which-the-plan-says", **environ}, at)
    session.hide(secrets.values)
    store = S3Store(secrets.s3)
    try:
        blob = await store.get(uri.keys.plan())
    except NotFound:
        raise UsageError("there is no run at this address.", where=str(uri)) from None
    finally:
        await store.close()
    plan: Plan = decode_stored(blob.data, Plan, where=f"{uri}/plan.json")
    pinned = plan.infra
    api_url = environ.get("RUNPOD_ENDPOINT_BASE_URL") or pinned.api_url
    if api_url != API_URL and api_url == pinned.api_url and not on_this_machine(api_url):
        raise UsageError(
            f"the plan names {api_url} as RunPod's address.", where=str(uri), fix="If it is right, set RUNPOD_ENDPOINT_BASE_URL to it."
        )
    endpoint = EndpointFacts(
        name=pinned.endpoint,
        id=pinned.endpoint_id,
        model=pinned.model,
        tasks=(plan.task.kind,),
        gpu=pinned.gpu,
        gpu_count=pinned.gpu_count,
        usd_per_second=pinned.usd_per_second,
        workers_max=pinned.workers_max,
        scaler=pinned.scaler,
        scaler_value=pinned.scaler_value,
        shards_per_worker=pinned.shards_per_worker,
        execution_timeout_s=pinned.execution_timeout_s,
        cold_start_s=pinned.cold_start_s,
        image=pinned.image,
    )
    facts = StackFacts(stack=pinned.stack, api_url=api_url, store=at, endpoints=(endpoint,))
    return Stack(facts, secrets_from(environ, at, pinned.stack))


def address(stack: Stack, run: str) -> str:
    """A run id or an address -> the address."""
    if run.startswith("s3://"):
        return str(RunUri.parse(run))
    prefix = stack.facts.store.folder
    return str(RunUri.parse(f"s3://{stack.facts.store.bucket}/{prefix + '/' if prefix else ''}runs/{run}"))


# --- running asynchronous work -------------------------------------------------------------------------------------------------------


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run to the end. The first Ctrl-C, SIGTERM or SIGHUP cancels the work, which tidies up; a second one does not wait for that."""

    async def body() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

        def interrupt() -> None:
            for number in numbers:
                loop.remove_signal_handler(number)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            task.cancel()

        try:
            for number in numbers:
                loop.add_signal_handler(number, interrupt)
        except (ValueError, RuntimeError):  # not in the main thread, as in some tests
            pass
        return await main()

    try:
        return asyncio.run(body())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@asynccontextmanager
async def beating(progress: Progress) -> AsyncIterator[None]:
    """While this is open the progress hears that time passes."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(1.0)
            progress.beat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- progress ------------------------------------------------------------------------------------------------------------------------


def watch_of(progress: Progress) -> Watch:
    """A run's steps, as they are shown."""
    from pipelines.work import Watch

    class Shown(Watch):
        def planning(self, event: PlanEvent) -> None:
            show_planning(event)

        def following(self, stack: Stack, plan: Plan) -> AbstractAsyncContextManager[Callable[[Event], None]]:
            return follow_shown(stack, plan)

        def rows(self, phase: Literal["collecting", "verifying"]) -> Callable[[int, int], None]:
            return on_rows(progress, phase)

        def note(self, text: str) -> None:
            progress.note(text)

    show_planning = on_plan(progress)

    @asynccontextmanager
    async def follow_shown(stack: Stack, plan: Plan) -> AsyncIterator[Callable[[Event], None]]:
        async with beating(progress):
            yield on_dying_workers(stack, plan.infra.endpoint, progress, on_follow(progress, plan))

    return Shown()


def on_plan(progress: Progress) -> Callable[[PlanEvent], None]:
    """Planning, as it is shown."""
    names = {"check": "checking rows", "again": "checking ids again", "upload": "sending rows to S3"}

    def show(event: PlanEvent) -> None:
        if event.step == "upload":
            progress.update(Snapshot(names[event.step], event.done, event.total, "shards"))
        else:
            progress.update(Snapshot(names[event.step], math.ceil(event.done / 1000), math.ceil(event.total / 1000), "kB"))

    return show


def on_follow(progress: Progress, plan: Plan) -> Callable[[Event], None]:
    """Following, as it is shown."""
    from pipelines import follow

    said: dict[str, float] = {}
    told: set[str | None] = set()
    ended: Counter[tuple[str, str | None]] = Counter()

    def note(text: str) -> None:
        now = time.monotonic()
        if now - said.get(text, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            said[text] = now
            progress.note(text)

    def show(event: Event) -> None:
        if isinstance(event, follow.Progress):
            session.jobs_out = event.shards.get("running", 0) + event.shards.get("queued", 0)
            progress.update(
                Snapshot(
                    "computing",
                    event.ok + event.failed,
                    event.rows,
                    failed=event.failed,
                    planned_s=plan.estimate.seconds.likely,
                    details=details_of(event, plan),
                    tokens=event.tokens_in + event.tokens_out,
                    share=event.share if event.share else None,
                    waiting=not event.shards.get("running"),
                )
            )
        elif isinstance(event, follow.Sent):
            session.jobs_out += event.ordinary + event.low_priority
        elif isinstance(event, follow.Ended):
            kind = (event.state, event.cause)
            ended[kind] += 1
            if ended[kind] > MOST_ENDED:
                return
            why = "" if event.error is None or event.error in told else f": {event.error}"
            told.add(event.error)
            note(f"shard {event.shard}: attempt {event.attempt} is {event.state} ({event.cause or 'no cause given'}){why}")
            if ended[kind] == MOST_ENDED:
                note(f"more that end like this are counted and not named here; {program()} logs {plan.run_id} --errors names them")
        elif isinstance(event, follow.Notice):
            note(f"{event.kind.replace('_', ' ')}: {event.text}")

    return show


def on_dying_workers(stack: Stack, endpoint: str, progress: Progress, then: Callable[[Event], None]) -> Callable[[Event], None]:
    """On this machine a worker that cannot start can be asked why: its log is here. Says each reason once."""
    if stack.facts.stack != LOCAL:
        return then
    from cli.local import last_words

    said: set[str] = set()

    def show(event: Event) -> None:
        then(event)
        workers = getattr(event, "workers", None)
        if workers is not None and workers.unhealthy and (found := last_words(endpoint)) is not None and found[0] not in said:
            said.add(found[0])
            progress.note(f"a worker of {endpoint} ended before it was ready; the last line of its log ({found[1]}): {found[0]}")

    return show


def details_of(event: FollowProgress, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Shards, dollars, workers and failures of a moment."""
    shards = event.shards
    states = [f"{shards.get('done', 0):,} of {sum(shards.values()):,} done"]
    states += [f"{shards[key]:,} {key}" for key in ("running", "queued", "waiting", "failed") if shards.get(key)]
    projected = f", about {usd(event.usd_projected)} in all" if event.usd_projected is not None else ""
    details = [
        ("shards", ", ".join(states)),
        ("cost", f"{usd(round(event.usd_so_far, 4))} so far{projected}, {usd(plan.estimate.usd.likely)} planned"),
    ]
    if event.workers is not None:
        workers = [f"{getattr(event.workers, key):,} {key}" for key in ("initializing", "idle", "running", "throttled", "unhealthy")]
        told = ", ".join(text for text in workers if not text.startswith("0 ")) or "none"
        if shards.get("queued") and not shards.get("running"):
            told += "; jobs wait for one" + (" to start" if not event.workers.live or event.workers.initializing else "")
        details.append(("workers", told))
    if event.failed:
        details.append(("failures", reasons_of(event.failures, event.failed) or "not looked at yet"))
    if event.died:
        details.append(("attempts", f"lost: {reasons_of(event.died, sum(count for _, count in event.died))}"))
    return tuple(details)


def reasons_of(counts: Sequence[tuple[str, int]], of: int) -> str:
    """The most frequent reasons, of so many things; empty where none is known."""
    shown = counts[:MOST_REASONS]
    rest = of - sum(count for _, count in shown)
    told = [f"{count:,} {shorten(reason)}" for reason, count in shown]
    return ", ".join([*told, *([f"{rest:,} {'other' if rest == 1 else 'others'}"] if told and rest > 0 else [])])


def shorten(text: str) -> str:
    """A reason, which a worker may have made up: a few words of one line."""
    text = tidy(text)
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"


def on_rows(progress: Progress, phase: str) -> Callable[[int, int], None]:
    """Collecting and verifying, as they are shown."""
    return lambda done, total: progress.update(Snapshot(phase, done, total))


# --- steps ---------------------------------------------------------------------------------------------------------------------------


def check_options(asked: Asked, dtype: Literal["float32", "float16"] = "float32") -> PlanRequest:
    """What was asked, as planning takes it: all options are judged here, the same ones in every mode, before anything is read or asked."""
    from pipelines.plan import PlanRequest, check_request
    from pipelines.work import check_out

    request = PlanRequest(
        dataset=asked.paths,
        task=asked.task,
        model=asked.model,
        revision=asked.revision,
        params=dict(asked.params),
        rows=RowOptions(
            prompt=asked.prompt,
            column=asked.column,
            messages_column=asked.messages_column,
            id_column=asked.id_column,
            on_bad_row=asked.on_bad_row,
            limit=asked.limit,
        ),
        out=asked.out,
        pace=asked.pace,
        budget_usd=asked.budget_usd,
        again=asked.again,
        name=asked.name,
        list_bad_rows_to=state_dir() / "bad-rows.jsonl",
    )
    check_request(request, dtype=dtype)
    if asked.out is not None:
        check_out(asked.out)
    return request


async def make_plan(stack: Stack, asked: Asked, progress: Progress, *, dry_run: bool) -> PlannedRun:
    """Plan, and say what is worth saying."""

    from pipelines import work

    request = replace_field(check_options(asked), model=served_model(stack, asked))
    return await work.plan(stack, request, watch_of(progress), dry_run=dry_run)


def served_model(stack: Stack, asked: Asked) -> str:
    """The model as the stack names it: a folder may be named relative to here. The local stack can be told to serve another one."""
    served = [name for endpoint in stack.facts.endpoints for name in (endpoint.name, endpoint.model)]
    folder = Path(asked.model).expanduser()
    if asked.model not in served and folder.is_dir() and str(folder.resolve()) in served:
        return str(folder.resolve())
    if asked.model not in served and stack.facts.stack == LOCAL:
        kind = f"{asked.task}:{asked.model}"
        there = ", ".join(f"{e.name} ({e.model}: {', '.join(e.tasks)})" for e in stack.facts.endpoints) or "none"
        near = get_close_matches(asked.model, served, n=1)
        start = f"{program()} local down; {program()} local up --model"
        other = f"For another model: {start} TASK:NAME" if near else f"To start it with that model: {start} {shlex.quote(kind)}"
        raise UsageError(
            f"the local stack does not serve model '{asked.model}'.",
            fix=f"{f'Did you mean {near[0]}? ' if near else ''}It serves {there}. {other}",
        )
    return asked.model


def live_limits(stack: Stack, environ: Mapping[str, str] = os.environ) -> Callable[[str], Awaitable[int]]:
    """What tells a run, before its first job, how many workers its endpoint may have now: RunPod's REST v2."""
    from infra.provider.client import RestClient
    from infra.review.live import LIMITS_DEADLINE_S, live_workers_max, rest_base

    base = rest_base(stack.facts.api_url, environ)

    async def ask(endpoint_id: str) -> int:
        async with RestClient(base, stack.secrets.api_key, deadline_s=LIMITS_DEADLINE_S, attempt_s=LIMITS_DEADLINE_S) as rest:
            return await live_workers_max(rest, endpoint_id)

    return ask


async def finish(
    stack: Stack,
    run: RunHandle,
    buckets: Buckets,
    how: Following,
    progress: Progress,
    *,
    began: float,
    rest_rows: int = 0,
    said: Sequence[str] = (),
) -> Report:
    """Follow, collect and verify; what became of it, whatever stopped it. `said`: notices that were shown already."""
    from pipelines import work

    finished = await work.finish(stack, run, buckets, how, watch_of(progress), began=began, said=said, live_limits=live_limits)
    return Report(finished, rest_rows=rest_rows, idle_timeout_s=idle_timeout(stack, run.plan))


def idle_timeout(stack: Stack, plan: Plan) -> float:
    """Of the run's endpoint, in seconds."""
    from pipelines.runs import endpoint_of

    return endpoint_of(plan, stack.facts).idle_timeout_s


def say_report(report: Report, where: Where) -> int:
    """Print the result, and return the exit code that it deserves."""
    if session.json_output:
        emit(report_record(report))
    else:
        for line in report_lines(report, where.options):
            print(session.clean(line))
    if report.exit_code and report.sentence:
        say(f"nightbatch: {report.sentence}")
    return report.exit_code


def begin_run(run: str, where: Where) -> None:
    """From here on an interruption can say how to go on."""
    session.run = run
    session.resume = f"{program()} resume {run.rsplit('/', 1)[-1]}{where.options}"
    session.cancel = f"{program()} cancel {run.rsplit('/', 1)[-1]} --stop{where.options}"


# --- commands ------------------------------------------------------------------------------------------------------------------------


def show_plan(where: Where, asked: Asked, how: Following | None = None, *, store: bool) -> int:
    """Plan and price; stored for `submit`, or not. `how`: what the same command without --dry-run would go on with."""
    check_options(asked, how.dtype if how else "float32")

    async def main() -> PlannedRun:
        stack = await find_stack(where)
        with shown() as progress:
            return await make_plan(stack, asked, progress, dry_run=not store)

    planned = run_async(main)
    if session.json_output:
        emit(plan_record(planned, stored=store, budget=asked.budget_usd))
    else:
        for line in plan_lines(planned, asked.budget_usd):
            print(session.clean(line))
        if store:
            print(f"next: {program()} submit {planned.plan.run_id}{where.options}, or resume, which collects as well")
        else:
            print("no plan was stored and nothing was sent")
    return 0


def run(where: Where, asked: Asked, how: Following) -> int:
    """All steps in order."""
    from pipelines.runs import load_run
    from pipelines.work import buckets_of

    began = time.monotonic()
    check_options(asked, how.dtype)

    async def main() -> Report:
        stack = await find_stack(where)
        with shown() as progress:
            planned = await make_plan(stack, asked, progress, dry_run=False)
            begin_run(str(planned.uri), where)
            for line in plan_lines(planned, how.budget_usd):
                progress.note(line)
            async with buckets_of(stack) as buckets:
                handle = await load_run(buckets.main, planned.uri)
                return await finish(stack, handle, buckets, how, progress, began=began, rest_rows=planned.rest_rows, said=planned.notices)

    return say_report(run_async(main), where)


def resume(where: Where, run: str, how: Following) -> int:
    """Go on with a run from its address."""
    from pipelines.runs import load_run
    from pipelines.work import buckets_of

    began = time.monotonic()

    async def main() -> Report:
        stack = await find_stack(where, run)
        uri = address(stack, run)
        begin_run(uri, where)
        async with buckets_of(stack) as buckets:
            handle = await load_run(buckets.main, uri)
            with shown() as progress:
                return await finish(stack, handle, buckets, how, progress, began=began)

    return say_report(run_async(main), where)


def submit(where: Where, run: str, how: Following) -> int:
    """Send and follow, without collecting."""
    from pipelines import work
    from pipelines.runs import load_run
    from pipelines.work import buckets_of

    began = time.monotonic()

    async def main() -> Report:
        stack = await find_stack(where, run)
        uri = address(stack, run)
        begin_run(uri, where)
        async with buckets_of(stack) as buckets:
            handle = await load_run(buckets.main, uri)
            with shown() as progress:
                result = await work.follow(stack, handle, buckets.main, how, watch_of(progress), live_limits)
            finished = work.Finished(handle.plan, result, None, None, time.monotonic() - began)
            return Report(finished, idle_timeout_s=idle_timeout(stack, handle.plan))

    return say_report(run_async(main), where)


def status(where: Where, run: str) -> int:
    """How a run stands, from storage alone. Exit code 0 whatever it is: the state is the answer."""
    from pipelines.submit import status as status_of

    async def main() -> RunStatus:
        stack = await find_stack(where, run)
        return await status_of(address(stack, run), stack=stack)

    found = run_async(main)
    plan = found.run.plan
    if session.json_output:
        emit(
            {
                "run": plan.run,
                "state": found.state,
                "rows": found.rows,
                "ok": found.ok,
                "failed": found.failed,
                "shards": sum(found.shards.values()),
                "shards_by_state": found.shards,
                "attempts": found.attempts,
                "executions": found.executions,
                "outstanding": len(found.outstanding),
                "failed_shards": list(found.failed_shards),
                "job_errors": dict(found.errors[:MOST_ERRORS]),
                "epoch": found.epoch,
                "usd_planned": plan.estimate.usd.likely,
                "usd_estimated": found.usd_estimated,
                "usd_reserved": found.usd_reserved,
            }
        )
        return 0
    print(f"run {plan.run}: {found.state}")
    print(f"  rows     {found.ok + found.failed:,} of {found.rows:,} done: {found.ok:,} ok, {found.failed:,} failed")
    print(f"  shards   {', '.join(f'{count:,} {name}' for name, count in found.shards.items() if count)}")
    for line in status_lines(found):
        print(session.clean(line))
    if found.state == "complete":
        print(f"next: {program()} collect {plan.run_id}{where.options}")
    elif found.state != "failed":
        print(f"next: {program()} resume {plan.run_id}{where.options}")
    elif found.ok + found.failed:
        print(f"next: {program()} collect {plan.run_id} --partial{where.options}, for the shards that are done")
    return 0


def status_lines(found: RunStatus) -> list[str]:
    """Jobs, cost and errors of a run's status, for a person."""
    told = found.state in ("cancelled", "stopped", "stalled", "failed")
    come = f"{len(found.outstanding):,} {'not known to be over, told to end' if told else 'may still come'}"
    attempts = "1 attempt" if found.attempts == 1 else f"{found.attempts:,} attempts"
    executions = "1 execution" if found.executions == 1 else f"{found.executions:,} executions"
    least = "at least " if found.usd_reserved > 0 and told else ""
    reserved = f", ${found.usd_reserved:.4f} reserved for jobs that may still cost" if found.usd_reserved else ""
    lines = [
        f"  jobs     {attempts}, {executions}" + (f", {come}" if found.outstanding else ""),
        f"  cost     {least}${found.usd_estimated:.4f} so far{reserved}, ${found.run.plan.estimate.usd.likely:.4f} planned",
    ]
    if found.failed_shards:
        lines.append(f"  failed   {', '.join(found.failed_shards[:20])}")
    said: list[str] = []
    for shard, text in found.errors[:MOST_ERRORS]:
        if text not in said:
            lines.append(f"  error    shard {shard}: {text}")
            said.append(text)
    return lines


def collect(where: Where, run: str, how: Following) -> int:
    """Write the output of a run."""
    from pipelines.collect import collect as collect_run
    from pipelines.runs import load_run
    from pipelines.work import buckets_of

    async def main() -> tuple[Plan, Collected]:
        stack = await find_stack(where, run)
        uri = address(stack, run)
        session.run = uri
        async with buckets_of(stack) as buckets:
            handle = await load_run(buckets.main, uri)
            with shown() as progress:
                return handle.plan, await collect_run(
                    buckets.main,
                    handle.keys,
                    handle.plan,
                    how.out,
                    dtype=how.dtype,
                    partial=how.partial,
                    open_store=buckets.other,
                    progress=on_rows(progress, "collecting"),
                )

    plan, found = run_async(main)
    missing = found.missing_rows
    for notice in (*found.notices, *renames(found)):
        say(notice)
    if session.json_output:
        emit(
            {
                "run": plan.run,
                "state": "partial" if missing else "complete",
                "rows": plan.dataset.rows,
                "ok": found.ok,
                "failed": found.failed,
                "skipped": found.skipped,
                "missing": missing,
                "out": found.names.out,
                "errors": found.names.errors,
                "seal": found.seal,
                "renamed": found.renamed,
                "notices": list(found.notices),
                "seconds": round(found.seconds, 3),
            }
        )
    else:
        print(f"wrote {found.names.out}: {found.ok:,} rows")
        print(f"      {found.names.errors}: {found.failed + found.skipped:,} rows")
        for failure in found.failures[:10]:
            print(f"      {failure.rows:,} x {failure.code}, such as {failure.example_id}: {failure.example}")
        if missing:
            print(f"{missing:,} of {plan.dataset.rows:,} rows are missing, because their shards are not done")
    return 1 if missing or found.failed else 0


def verify(where: Where, run: str, out: str | None, *, inputs: bool) -> int:
    """Judge a run from storage."""
    from pipelines.outputs import is_s3
    from pipelines.runs import load_run
    from pipelines.verify import verify as verify_run
    from pipelines.work import buckets_of

    async def main() -> VerifyReport:
        stack = await find_stack(where, run)
        uri = address(stack, run)
        session.run = uri
        async with buckets_of(stack) as buckets:
            store = buckets.main
            handle = await load_run(store, uri)
            path = out or handle.plan.output.path
            if out is None and path is not None and not is_s3(path) and not Path(path).exists():
                path = None  # it was written on another machine, or not yet: storage is judged alone
            with shown() as progress:
                said = on_rows(progress, "verifying")
                return await verify_run(store, handle.keys, handle.plan, path, inputs=inputs, open_store=buckets.other, progress=said)

    found = run_async(main)
    if session.json_output:
        emit(
            {
                "run": found.run,
                "state": "verified" if found.clean else "wrong",
                "rows": found.rows,
                "ok": found.ok,
                "failed": found.failed,
                "shards": found.shards,
                "seal": found.seal,
                "out": found.output,
                "findings": [str(finding) for finding in found.findings],
                "findings_total": found.total,
                "proven": list(found.proven),
                "not_proven": list(found.not_proven),
                "seconds": round(found.seconds, 3),
            }
        )
    else:
        print(f"run {found.run}: {'verified' if found.clean else 'NOT as it should be'}")
        for line in found.lines():
            print(line)
    if failure := found.failure():
        say(f"nightbatch: {failure}")
        if found.output is not None:
            name = found.run.rsplit("/", 1)[-1]
            again = f"{program()} collect {name}{where.options} --out {shlex.quote(found.output)}"
            say(f"next: if only the output file is at fault, this writes it again from storage: {again}")
        return failure.exit_code
    return 0


def cancel(where: Where, run: str, *, stop: bool) -> int:
    """Stop a run."""
    from pipelines.submit import cancel as cancel_run

    mode: Literal["keep", "stop"] = "stop" if stop else "keep"

    async def main() -> tuple[str, Any]:
        stack = await find_stack(where, run)
        uri = address(stack, run)
        session.run = uri
        return uri, await cancel_run(uri, stack=stack, mode=mode)

    uri, found = run_async(main)
    if session.json_output:
        emit(
            {
                "run": uri,
                "state": "complete" if found.complete else "cancelled",
                "mode": mode,
                "epoch": found.epoch,
                "cancelled": found.cancelled,
                "over": found.over,
                "running": found.running,
                "unknown": found.unknown,
                "refused": found.failed,
            }
        )
    elif found.complete:
        print(f"run {uri} is complete: nothing was there to stop")
        print(f"next: {program()} collect {uri.rsplit('/', 1)[-1]}{where.options}")
    else:
        jobs = "1 job" if found.cancelled == 1 else f"{found.cancelled:,} jobs"
        rest = "" if stop else f", {found.running:,} left to finish"
        print(f"run {uri} is told to {'end at once' if stop else 'start nothing new'}: {jobs} cancelled{rest}; finished shards are kept")
        print(f"next: {program()} resume {uri.rsplit('/', 1)[-1]}{where.options}, to go on, or collect --partial")
    return 0


def runs(where: Where) -> int:
    """List runs."""
    from pipelines.runs import list_runs
    from pipelines.submit import overviews
    from pipelines.work import buckets_of

    damaged: list[str] = []

    async def main() -> tuple[RunOverview, ...]:
        stack = await find_stack(where)
        async with buckets_of(stack) as buckets:
            listed = await list_runs(buckets.main, stack.facts.store.prefix, damaged.append)
            return await overviews(listed, buckets.main, damaged.append)

    found = run_async(main)
    for text in damaged:
        say(f"nightbatch: {text}")
    code = 1 if damaged else 0
    if session.json_output:
        emit({"damaged": damaged, "runs": [overview_record(one) for one in found]})
        return code
    if not found:
        print("no runs")
    width = max((len(one.listing.run_id) for one in found), default=0)
    for one in found:
        plan, done = one.listing.plan, one.ok + one.failed
        failed = f" ({one.failed:,} failed)" if one.failed else ""
        print(
            session.clean(
                f"{one.listing.run_id:<{width}}  {plan.created_at:%Y-%m-%d %H:%M}  {one.state:<11}  {plan.task.kind} {plan.task.model}  "
                f"{done:,} of {plan.dataset.rows:,} rows{failed}, ${one.usd_estimated:.4f} of ${plan.estimate.usd.likely:.4f} planned"
            )
        )
    return code


def overview_record(one: RunOverview) -> dict[str, Any]:
    """A listed run for programs."""
    plan = one.listing.plan
    return {
        "run": one.listing.uri,
        "state": one.state,
        "created_at": plan.created_at.isoformat(),
        "task": plan.task.kind,
        "model": plan.task.model,
        "rows": plan.dataset.rows,
        "ok": one.ok,
        "failed": one.failed,
        "shards": len(plan.shards),
        "usd_planned": plan.estimate.usd.likely,
        "usd_estimated": one.usd_estimated,
    }


def version() -> int:
    """Which Nightbatch, which Python."""
    import platform
    import tomllib
    from importlib import metadata

    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.exists():
        number = cast(str, tomllib.loads(project.read_text())["project"]["version"])
    else:
        number = metadata.version("nightbatch")
    if session.json_output:
        emit({"nightbatch": number, "python": platform.python_version(), "platform": platform.platform()})
    else:
        print(f"nightbatch {number}, Python {platform.python_version()} on {platform.platform()}")
    return 0
