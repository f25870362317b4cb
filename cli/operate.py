"""cli: what the on-call person's commands do: doctor, stop, start, status of all stacks, estimate, image pin. Calls infra and pipelines,
prints.

This is where rooms that do not know each other meet: infra looks at RunPod, pipelines know the runs. None of it needs pulumi; finding a
stack may (contract.facts says how a stack is found).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from cli.output import emit, say
from cli.policy import program, session
from cli.work import LOCAL, Where, find_stack, parse_span, run_async
from contract.errors import ContractError, InfrastructureError, NightbatchError, UsageError
from contract.facts import OUTPUT, Stack, check_url, load_stack, state_dir
from contract.keys import RunUri
from contract.models import JournalEntry, S3Config, decode
from contract.protocol import MAX_TTL_S
from contract.store import S3Store, Store

if TYPE_CHECKING:
    from infra.provider.client import RestClient
    from infra.review.doctor import Report
    from infra.review.fleet import StackNow
    from infra.review.live import HttpDataPlane, JobRef
    from infra.review.stop import Cut
    from pipelines.cancel import CancelResult
    from pipelines.runs import RunListing

PART_S: Final = 20.0
"""How long each part of an observation may take."""
REST_S: Final = 8.0
"""How long one call to REST v2 may take, its repetitions included: within a part, so that it is REST that says what is wrong."""
RUNS_LOOKED_AT: Final = 5
JOBS_LOOKED_AT: Final = 40
"""Of an endpoint's latest own jobs: RunPod keeps a result for 30 minutes, so that older ones have nothing to tell."""
CANCELS_AT_ONCE: Final = 8
S3_KEYS: Final = ("NIGHTBATCH_S3_ACCESS_KEY_ID", "NIGHTBATCH_S3_SECRET_ACCESS_KEY")


@dataclass(frozen=True)
class Looking:
    """What doctor was asked beside the stack."""

    fix: bool = False
    quota: int | None = None
    webhook_url: str | None = None
    night: str | None = None


@asynccontextmanager
async def runpod(stack: Stack, environ: Mapping[str, str] = os.environ) -> AsyncIterator[tuple[RestClient, HttpDataPlane]]:
    """REST v2 and the data plane of a stack's account, with its key."""
    from infra.provider.client import RestClient
    from infra.review.live import HttpDataPlane, rest_base

    base = rest_base(stack.facts.api_url, environ)
    key = stack.secrets.api_key
    async with RestClient(base, key, deadline_s=REST_S) as rest, HttpDataPlane(stack.facts.api_url, key) as plane:
        yield rest, plane


async def stack_without_s3(where: Where, environ: Mapping[str, str] = os.environ) -> tuple[Stack, str | None]:
    """The stack, and which S3 keys are missing to look into its bucket, if so: what is asked of RunPod alone must not wait for them."""
    emulators = where.stack in (None, LOCAL) and where.facts is None and not environ.get("NIGHTBATCH_FACTS")
    missing = [name for name in S3_KEYS if not environ.get(name)]
    if emulators or not missing:
        return await find_stack(where, environ=environ), None
    stack = await find_stack(where, environ={**environ, **dict.fromkeys(missing, "none")})
    return stack, f"{' and '.join(missing)} must be set for that."


# --- doctor --------------------------------------------------------------------------------------------------------------------------


def doctor(where: Where, looking: Looking) -> int:
    """Live against declared, with evidence, cause and mend; --fix does what is safe."""
    from infra.review.doctor import examine, mend, report_lines, report_record
    from infra.review.live import Asked, observe
    from infra.review.observed import Stopped, Unread
    from infra.review.stop import forget, read_stopped, stop_path

    if looking.webhook_url is not None:
        check_url(looking.webhook_url, "--webhook-url")
    night_s = parse_span(looking.night, "--night").total_seconds() if looking.night else None

    async def main() -> Report:
        stack, no_keys = await stack_without_s3(where)
        async with runpod(stack) as (rest, plane), AsyncExitStack() as opened:
            stores: dict[Literal["client", "worker"], Store] = {}
            if no_keys is None:
                stores = {"client": probing(stack.secrets.s3), "worker": probing(stack.secrets.worker_s3)}
            for store in stores.values():
                opened.push_async_callback(store.close)
            unread: tuple[Unread, ...] = () if no_keys is None else (Unread("bucket", no_keys),)
            stopped: tuple[Stopped, ...] = ()
            try:
                stopped = read_stopped(stop_path(state_dir(), stack.facts.stack))
            except InfrastructureError as error:
                unread += (Unread("record of a stop", str(error)),)
            asked = Asked(
                jobs=await own_jobs(stack, stores["client"]) if stores else {},
                unread=unread,
                quota=looking.quota,
                webhook_url=looking.webhook_url,
                night_s=night_s,
                stopped=stopped,
                deadline_s=PART_S,
            )
            seen = await observe(stack, rest=rest, plane=plane, stores=stores, asked=asked)
            if stopped:
                up = {one.declared.id for one in seen.endpoints if one.live is not None and one.live.workers_max > 0}
                forget(stop_path(state_dir(), stack.facts.stack), stack.facts.stack, up)
            report = examine(seen)
            if looking.fix:
                report = replace(report, mended=await mend(rest, report))
            return report

    report = run_async(main)
    if session.json_output:
        emit(report_record(report))
    else:
        for line in report_lines(report):
            print(session.clean(line))
    return report.exit_code


def probing(keys: S3Config) -> S3Store:
    """A store that gives up soon: what is probed is whether it answers."""
    return S3Store(keys, timeout_s=8.0, max_attempts=2, threads=2)


async def own_jobs(stack: Stack, store: Store) -> dict[str, list[JobRef]]:
    """The latest jobs that this machine's ledger knows of the stack, by endpoint; nothing where there is no ledger or no plan."""
    from contract.models import Plan, decode_stored
    from contract.protocol import rules_for
    from infra.review.live import JobRef
    from pipelines.ledger import Ledger

    found: dict[str, list[JobRef]] = {}
    try:
        with Ledger.open() as ledger:
            mine = [run for run in ledger.runs() if run.stack == stack.facts.stack][:RUNS_LOOKED_AT]
            attempts = {run.uri: ledger.attempts_of(run.uri) for run in mine}
    except InfrastructureError as error:
        say(f"nightbatch: jobs of past runs are not looked at: {error}")
        return found
    for run in mine:
        try:
            async with asyncio.timeout(PART_S):
                blob = await store.get(RunUri.parse(run.uri).keys.plan())
            plan: Plan = decode_stored(blob.data, Plan, where=f"{run.uri}/plan.json")
        except (NightbatchError, TimeoutError):
            continue  # of another bucket, deleted, or the store does not answer: its probe says so
        jobs = found.setdefault(plan.infra.endpoint_id, [])
        ttl_s = rules_for(plan).ttl_s
        latest = sorted((a for a in attempts[run.uri] if a.job_id is not None), key=lambda a: a.sent_at, reverse=True)
        jobs += [JobRef(a.job_id, a.sent_at, ttl_s, a.state) for a in latest[: JOBS_LOOKED_AT - len(jobs)] if a.job_id is not None]
    return found


# --- stop and start ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stop:
    """What a stop did: endpoints cut, runs told to stop, and why something was left undone."""

    cuts: tuple[Cut, ...]
    cancelled: tuple[tuple[str, CancelResult], ...]
    problems: tuple[str, ...]


def stop(where: Where) -> int:
    """The kill switch."""
    from infra.review.stop import balanced, stop_path
    from infra.review.stop import stop as cut_all

    async def main() -> tuple[str, Stop]:
        stack, no_keys = await stack_without_s3(where)
        session.resume = f"{program()} stop {stack.facts.stack}"
        facts, path = stack.facts, stop_path(state_dir(), stack.facts.stack)
        problems: list[str] = []
        endpoints = {endpoint.id: endpoint.name for endpoint in facts.everything}
        async with runpod(stack) as (rest, _):
            cuts, unkept = await cut_all(rest, facts.stack, endpoints, path=path, at=datetime.now(UTC))
            try:
                found = await balanced(rest, facts.stack, others=project_stacks())
                more = {one: name for one, name in found.items() if one not in endpoints}
                if more:
                    more_cuts, unkept = await cut_all(rest, facts.stack, more, path=path, at=datetime.now(UTC))
                    cuts += more_cuts
            except NightbatchError as error:
                problems.append(f"load-balancing endpoints could not be looked for: {error}")
        problems += [unkept] if unkept else []
        if no_keys is not None:
            problems.append(f"own runs' jobs are not cancelled, and wait until their ttl ends: {no_keys}")
            return facts.stack, Stop(cuts, (), tuple(problems))
        try:
            cancelled, failed = await cancel_own(stack)
        except NightbatchError as error:  # the endpoints are cut whatever S3 does
            cancelled, failed = (), (f"own runs could not be listed, so their jobs are not cancelled: {error}",)
        return facts.stack, Stop(cuts, cancelled, (*problems, *failed))

    name, done = run_async(main)
    again = f"{program()} start {name}{f' --facts {where.facts}' if where.facts else ''}"
    code = 0 if all(cut.done for cut in done.cuts) and not done.problems else 3
    if session.json_output:
        emit(
            {
                "stack": name,
                "state": "stopped" if code == 0 else "partly stopped",
                "endpoints": [_cut_record(cut) for cut in done.cuts],
                "runs": [
                    {"run": uri, "cancelled": one.cancelled, "unknown": one.unknown, "refused": one.failed, "epoch": one.epoch}
                    for uri, one in done.cancelled
                ],
                "problems": list(done.problems),
                "start_again": again,
            }
        )
        return code
    for cut in done.cuts:
        print(session.clean(_cut_line(cut, "stopped")))
    for uri, one in done.cancelled:
        refused = f", {one.failed} could not be" if one.failed else ""
        unknown = f", {one.unknown} without an answer are fenced" if one.unknown else ""
        print(session.clean(f"run {uri}: {one.cancelled} jobs cancelled{refused}{unknown}; what is finished is kept"))
    if not done.cancelled and not done.problems:
        print("no run of this stack had jobs out")
    for problem in done.problems:
        say(f"nightbatch: {problem}")
    print(f"start again: {again}, then {program()} resume RUN")
    return code


async def cancel_own(stack: Stack) -> tuple[tuple[tuple[str, CancelResult], ...], tuple[str, ...]]:
    """Tell every run of the stack that is not collected to stop, and cancel its jobs by their ids."""
    from pipelines.runs import list_runs
    from pipelines.submit import cancel as cancel_run

    endpoints = {endpoint.id for endpoint in stack.facts.endpoints}
    problems: list[str] = []
    gate = asyncio.Semaphore(CANCELS_AT_ONCE)
    store = S3Store(stack.secrets.s3)
    try:
        listed = await list_runs(store, stack.facts.store.prefix, problems.append)
        mine = [one for one in listed if one.plan.infra.endpoint_id in endpoints]

        async def one(run: RunListing) -> tuple[str, CancelResult] | None:
            async with gate:
                try:
                    if not await may_have_jobs(store, run):
                        return None
                    return run.uri, await cancel_run(run.uri, stack=stack, mode="stop")
                except NightbatchError as error:
                    problems.append(f"run {run.uri} could not be cancelled: {error}")
                    return None

        found = await asyncio.gather(*(one(run) for run in mine))
    finally:
        await store.close()
    busy = tuple(done for done in found if done is not None and (done[1].cancelled or done[1].unknown or done[1].failed))
    return busy, tuple(problems)


async def may_have_jobs(store: Store, run: RunListing) -> bool:
    """Whether a job of the run may still be out: it is not collected, and somebody worked on it within the longest life of a job. Three
    requests, where a cancel reads every commit and marker: a stack has many old runs, and a kill switch no time."""
    keys, now = RunUri.parse(run.uri).keys, store.now()
    if await store.head(keys.seal()) is not None:
        return False  # every shard is done
    last = run.plan.created_at
    entries = [head.key async for head in store.list(keys.journal_prefix())]
    if entries:
        blob = await store.get(max(entries))
        try:
            entry: JournalEntry = decode(blob.data, JournalEntry, where=max(entries))
        except ContractError:
            return True  # somebody damaged it: the cancel looks closer
        last = max(last, entry.at)
    return (now - last).total_seconds() < MAX_TTL_S


def start(where: Where) -> int:
    """Undo a stop."""
    from infra.review.stop import start as give_back
    from infra.review.stop import stop_path

    async def main() -> tuple[str, tuple[Cut, ...]]:
        stack, _ = await stack_without_s3(where)
        session.resume = f"{program()} start {stack.facts.stack}"
        facts = stack.facts
        async with runpod(stack) as (rest, _plane):
            names = {endpoint.id: endpoint.name for endpoint in facts.everything}
            return facts.stack, await give_back(rest, facts.stack, names, path=stop_path(state_dir(), facts.stack))

    name, done = run_async(main)
    code = 0 if all(cut.done for cut in done) else 3
    if session.json_output:
        emit(
            {
                "stack": name,
                "state": "started" if code == 0 else "partly started",
                "endpoints": [_cut_record(cut) for cut in done],
            }
        )
        return code
    for cut in done:
        print(session.clean(_cut_line(cut, "started")))
    print(f"runs go on with: {program()} resume RUN")
    return code


def _cut_line(cut: Cut, word: str) -> str:
    if cut.error is not None:
        return f"endpoint {cut.name} ({cut.id}): NOT {word}: {cut.error}"
    before = f", it was {cut.before[1]}" if cut.before is not None and cut.before[1] != cut.after else ""
    if cut.before is None:
        before = ", what it was could not be read: `doctor --fix` gives what is declared"
    least = f" (workers.min was {cut.before[0]})" if cut.before is not None and cut.before[0] and word == "stopped" else ""
    return f"endpoint {cut.name} ({cut.id}): {word}: workers.max is {cut.after}{before}{least}"


def _cut_record(cut: Cut) -> dict[str, Any]:
    return {
        "name": cut.name,
        "id": cut.id,
        "workers_min_before": None if cut.before is None else cut.before[0],
        "workers_max_before": None if cut.before is None else cut.before[1],
        "workers_max": cut.after,
        "error": cut.error,
    }


# --- every stack ---------------------------------------------------------------------------------------------------------------------


def all_stacks(facts: Path | None = None) -> int:
    """What every stack does now."""
    from infra.review.fleet import fleet_exit_code, fleet_lines, fleet_record

    async def main() -> list[StackNow]:
        oldest = oldest_jobs()
        return list(await asyncio.gather(*(stack_now(name, facts, oldest.get(name)) for name in known_stacks(facts))))

    found = run_async(main)
    if session.json_output:
        emit(fleet_record(found))
    elif not found:
        print(f"no stack is known; start one with: {program()} local up")
    else:
        for line in fleet_lines(found):
            print(session.clean(line))
    return fleet_exit_code(found)


def known_stacks(facts: Path | None = None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Stacks by name: the local one where it runs, the one of the facts file, and those of the Pulumi project's stack files."""
    names: list[str] = []
    file = facts or (Path(environ["NIGHTBATCH_FACTS"]) if environ.get("NIGHTBATCH_FACTS") else None)
    if file is not None:
        try:
            raw = msgspec.json.decode(file.read_bytes())
            names.append(str((raw.get(OUTPUT) or raw)["stack"]))
        except (OSError, msgspec.DecodeError, RecursionError, AttributeError, KeyError, TypeError):
            raise UsageError("is no facts file.", where=str(file), fix="See docs/stacks.md.") from None
        return names
    from emulator import local

    if local.running(local.local_dir(environ)) is not None:
        names.append(LOCAL)
    names += [name for name in project_stacks(environ) if name not in names and name != LOCAL]
    return names


def project_stacks(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The stack files of the Pulumi project, where there is one."""
    from infra.review.engine import project_folder
    from infra.settings import STACKS

    try:
        folder = project_folder(environ)
    except UsageError:
        return []
    return sorted(
        {match[1] for file in (folder / STACKS).glob("Pulumi.*.yaml") if (match := re.fullmatch(r"Pulumi\.(.+)\.yaml", file.name))}
    )


async def stack_now(name: str, facts: Path | None, oldest: datetime | None) -> StackNow:
    """One stack; why nothing is known of it where that is so."""
    from infra.review.fleet import StackNow, observe_fleet

    try:
        environ = {**dict.fromkeys(S3_KEYS, "none"), **os.environ}  # the bucket is not looked at
        stack = await asyncio.to_thread(load_stack, name, environ=environ, facts_file=facts)
        session.hide(stack.secrets.values)
        async with runpod(stack) as (rest, plane):
            known, now = stack.facts, datetime.now(UTC)
            return await observe_fleet(name, known.endpoints, rest=rest, plane=plane, now=now, balanced=known.balanced, oldest=oldest)
    except UsageError as error:
        return StackNow(name, unknown=str(error))
    except NightbatchError as error:
        return StackNow(name, error=str(error))


def oldest_jobs() -> dict[str, datetime]:
    """Stack -> when the oldest job of its runs was sent that this machine's ledger has not seen end."""
    from pipelines.ledger import Ledger

    found: dict[str, datetime] = {}
    try:
        with Ledger.open() as ledger:
            for run in ledger.runs():
                if run.state in ("running", "sent", "interrupted", "stalled", "paused"):
                    for attempt in ledger.attempts_of(run.uri):
                        if attempt.state in ("sent", "unknown"):
                            found[run.stack] = min(found.get(run.stack, attempt.sent_at), attempt.sent_at)
    except InfrastructureError as error:
        say(f"nightbatch: the oldest job is not looked up: {error}")
    return found


# --- before a stack ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """What `estimate` is asked: a load, and what a worker can do with it."""

    requests_per_minute: float
    seconds: float
    peak: float | None = None
    concurrency: int = 1
    usd_per_hour: float | None = None
    pool: str | None = None
    gpus: int = 1


def estimate(load: Load) -> int:
    """How many active workers, which max, and what they cost."""
    from contract.gpus import PRICES_DATE, usd_per_hour
    from infra.estimate import HEADROOM, estimate_workers

    usd, source = load.usd_per_hour, "as given"
    if load.pool is not None:
        if usd is not None:
            raise UsageError("both give a price.", where="--pool and --usd-per-hour", fix="Leave one out.")
        known = usd_per_hour()
        if load.pool not in known:
            mend = f"Known: {', '.join(known)}; else use --usd-per-hour."
            raise UsageError("is no pool with a known price.", where=f"--pool {load.pool}", fix=mend)
        usd, source = known[load.pool] * load.gpus, f"{load.pool}, RunPod's page of {PRICES_DATE}"
    found = estimate_workers(
        load.requests_per_minute,
        load.seconds,
        peak_requests_per_minute=load.peak,
        concurrency=load.concurrency,
        usd_per_hour_per_worker=usd,
    )
    if session.json_output:
        emit({**asdict(found), "usd_per_hour_per_worker": usd})
        return 0
    print(
        f"busy workers     {found.busy:.2f} on average ({load.requests_per_minute:g} requests/min x {load.seconds:g} s / 60 / concurrency)"
    )
    print(f"active workers   {found.active}: workers.min, only if no request may wait for a cold start; 0 costs nothing at rest")
    print(f"most workers     {found.most}: workers.peak, {HEADROOM:.0%} above the {found.peak} busy at peak")
    if usd is not None:
        print(f"price            ${usd:.2f}/hour a worker ({source})")
        print(f"                 ${found.usd_per_hour_busy:.2f}/hour for the load, ${found.usd_per_hour_most:.2f}/hour with all workers up")
        if found.active:
            print(f"                 ${found.usd_per_hour_active:.2f}/hour day and night for {found.active} active workers")
    return 0


def pin_image(where: Where, tag: str | None, endpoint: str | None, environ: Mapping[str, str] = os.environ) -> int:
    """Resolve tags at the registry and write their digests into the stack file."""
    try:
        from infra.images import Pinned, pin
    except ModuleNotFoundError as error:
        raise UsageError(f"`image pin` needs {error.name}, which this installation lacks.", fix="Install nightbatch[infra].") from None
    from infra.review.engine import project_folder
    from infra.settings import stack_file

    stack = where.stack or LOCAL
    file = project_folder(environ) / stack_file(stack)
    if not file.is_file():
        have = ", ".join(project_stacks(environ)) or "none"
        raise UsageError("there is no such stack file.", where=str(file), fix=f"Stack files there: {have}. Name one with --stack.")

    async def main() -> tuple[Pinned, ...]:
        return await pin(file, tag, endpoint=endpoint, environ=environ)

    found = run_async(main)
    if session.json_output:
        emit({"stack": stack, "file": str(file), "pinned": [asdict(one) for one in found]})
        return 0
    for one in found:
        what = "is pinned to" if one.changed else "was pinned already to"
        print(session.clean(f"endpoint {one.endpoint}: {one.tag} {what} {one.after}"))
    if not found:
        print(f"every image in {file} is pinned already; name a TAG to move them")
    elif any(one.changed for one in found):
        print(f"next: review {file}, then pulumi up --stack {stack}")
    return 0
