"""pipelines: what the workers and the client said of a run, in order of time, from its store. Touches the store; changes nothing.

Objects of a run that say something: the journal (who sent what, when, what became of it), start and end markers, commits, control.json,
the seal, the summary, and the errors objects with a line a failed row. The small ones are read first and put in order: memory grows with
the number of attempts. Rows are streamed from their errors object when its commit's turn comes. Instants are the store's; what a ledger
and a worker's own log add has the instants of what it is about.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from typing import Any, Final, TypeVar

import msgspec

from contract.errors import ContractError, Damaged, NotFound, UsageError
from contract.lines import read_lines
from contract.models import (
    AttemptNote,
    Commit,
    Control,
    EndMarker,
    Intent,
    ObjectRef,
    PartCommit,
    Plan,
    SealPointer,
    ShardPlan,
    Source,
    SplitCommit,
    StartMarker,
    decode,
)
from contract.rows import ErrorLine, RowError
from contract.store import Store, get_or_none
from pipelines.journal import Journal
from pipelines.ledger import LedgerNote
from pipelines.outputs import s3_key
from pipelines.preflight import SkippedLine
from pipelines.runs import RunHandle, read_control
from pipelines.summary import RunSummary, read_summary

T = TypeVar("T")
AT_ONCE: Final = 16
STREAMS: Final = 4
"""Objects of rows that are read at once, a chunk of each in memory."""
MOST_SAID: Final = 200
"""Lines of a worker's own log for one job."""
NEAR: Final = 3
QUIET_CAUSES: Final = ("yielded", "not_sent")
"""Of a rejected attempt: another client was first, and nothing was sent."""
WELL: Final = ("won", "already", "lost")
"""Outcomes of an execution that are in order: of two executions of one shard, one loses."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was said. `wrong`: it is not as wanted. `row`, `id`, `code`, `message`: of one row."""

    at: datetime
    who: str
    kind: str
    text: str
    wrong: bool = False
    shard: str | None = None
    attempt: int | None = None
    execution: str | None = None
    job: str | None = None
    row: int | None = None
    id: str | None = None
    code: str | None = None

    def record(self) -> dict[str, Any]:
        """For programs; what does not apply is left out."""
        told = {name: getattr(self, name) for name in ("shard", "attempt", "execution", "job", "row", "id", "code")}
        said = {"at": self.at.isoformat(), "who": self.who, "kind": self.kind, "text": self.text, "wrong": self.wrong}
        return {**said, **{name: value for name, value in told.items() if value is not None}}


@dataclass(frozen=True)
class Said:
    """A line of a worker's own log that is about one job. `ends`: it tells of the job's end."""

    start: StartMarker
    text: str
    ends: bool


@dataclass(frozen=True)
class Row:
    """Where a row is. `nodes`: the shards that held it, the last one holds it now; `skipped`: it was left out and is in none."""

    id: str
    index: int | None = None
    nodes: tuple[str, ...] = ()
    error: RowError | None = None
    skipped: SkippedLine | None = None


WorkerLines = Callable[[Sequence[StartMarker]], Iterable[Said]]
OpenStore = Callable[[str], Store]


@dataclass
class Log:
    """A run's log. `row`: the one that was asked for; `damaged`: objects that could not be read, all of them known when all lines came."""

    run: RunHandle
    store: Store
    row: Row | None = None
    errors: bool = False
    damaged: list[str] = field(default_factory=list)
    _events: list[tuple[float, int, int, Callable[[], Line], ObjectRef | None]] = field(default_factory=list)

    def add(self, at: datetime, rank: int, make: Callable[..., Line], *args: Any, errors: ObjectRef | None = None) -> None:
        """A line that is made when its turn comes. `rank`: which comes first of one instant, and 0 first of all: the store's dates have
        whole seconds, and one client's clock may be that much behind another's. `errors`: the rows that are told after it."""
        self._events.append((at.timestamp() if rank else 0.0, rank, len(self._events), partial(make, *args), errors))

    async def lines(self) -> AsyncIterator[Line]:
        """All of it, in order of time; with `errors` only what is wrong, and each failed row by itself."""
        self._events.sort(key=lambda event: event[:3])
        for _, _, _, make, errors in self._events:
            line = make()
            if line.wrong or not self.errors:
                yield line
            if errors is not None and self.errors and self.row is None:
                async for failed in self._rows(line, errors):
                    yield failed

    async def _rows(self, commit: Line, ref: ObjectRef) -> AsyncIterator[Line]:
        try:
            async for found, error in error_lines(self.store, ref):
                yield failed_row(commit.at, commit.shard, commit.execution, found.index, found.id, error)
        except (NotFound, ContractError) as error:
            self.damaged.append(f"{ref.key}: {error.what}")


async def error_lines(store: Store, ref: ObjectRef) -> AsyncIterator[tuple[ErrorLine, RowError]]:
    """Failed rows of an errors object, as they come. Raises NotFound, ContractError where it is damaged."""
    async for line in read_lines(store.read(ref.key), where=ref.key):
        found: ErrorLine = decode(line, ErrorLine, where=ref.key)
        yield found, decode(bytes(found.error), RowError, where=ref.key)


# --- one run -------------------------------------------------------------------------------------------------------------------------


async def read_log(
    store: Store,
    run: RunHandle,
    *,
    shard: str | None = None,
    row_id: str | None = None,
    errors: bool = False,
    ledger: Iterable[LedgerNote] = (),
    worker_lines: WorkerLines | None = None,
    open_store: OpenStore | None = None,
) -> Log:
    """Read what there is of a run, or of one shard and its children, or of the shards that held one row.

    Raises UsageError where there is no such shard or row: with those that are called nearly so.
    """
    log = Log(run, store, errors=errors)
    top = None if shard is None else shard.partition(".")[0]
    commits = await _commits(log, top)
    wanted: Callable[[str], bool] = _any
    if shard is not None:
        check_shard(run.plan, commits, shard)
        wanted = partial(_within, shard)
    if row_id is not None:
        log.row = await find_row(log, commits, row_id, shard, open_store)
        wanted = frozenset(log.row.nodes).__contains__
        top = log.row.nodes[0] if log.row.nodes else None
    await _journal(log, wanted)
    skipped = log.row is not None and log.row.skipped is not None
    starts = [] if skipped else await _markers(log, StartMarker, run.keys.starts_prefix(), top, wanted)
    ends = [] if skipped else await _markers(log, EndMarker, run.keys.ends_prefix(), top, wanted)
    ended, begun = {end.execution: end for end in ends}, {start.execution: start for start in starts}
    now = store.now()
    for start in starts:
        late = now >= start.at + timedelta(seconds=run.plan.infra.execution_timeout_s)
        log.add(start.at, 3, _start, start, start.execution in ended, late)
    for end in ends:
        log.add(end.at, 5, _end, end, begun.get(end.execution))
    for name, commit in commits.items():
        if wanted(name):
            if isinstance(commit, PartCommit):
                log.add(commit.at, 4, _part, commit, begun.get(commit.execution), errors=commit.errors)
            else:
                log.add(commit.at, 3, _split, commit)  # before what its children came to
    for seen in ledger:
        if wanted(seen.shard):
            log.add(seen.at, 7, _ledger, seen)
    for said in worker_lines(starts) if worker_lines is not None else ():
        over = ended.get(said.start.execution)
        at = over.at if said.ends and over is not None else said.start.at
        log.add(at, 5 if said.ends else 3, _said, at, said)
    if shard is None and row_id is None:
        await _whole_run(log)
    if log.row is not None:
        _tell_row(log, log.row, commits)
    return log


async def _journal(log: Log, wanted: Callable[[str], bool]) -> None:
    journal = Journal(log.store, log.run.keys, log.run.plan.plan_id, "reader")
    entries = await journal.refresh()
    intents = {(entry.client, intent.attempt): intent for entry in entries for intent in entry.intents}
    for (client, _), intent in intents.items():
        if wanted(intent.shard):
            log.add(intent.sent_at, 1, _intent, client, intent)
    for entry in entries:
        for note in entry.notes:
            of = intents.get((note.client or entry.client, note.attempt))
            if of is not None and wanted(of.shard):
                log.add(note.at, 2 if note.state == "sent" else 6, _note, entry.client, note, of)
    log.damaged += [f"{key}: not an entry of this run's journal" for key in journal.foreign]


async def _commits(log: Log, top: str | None) -> dict[str, Commit]:
    """Commits of the plan's shards and their children; of one shard and its children where `top` names one."""
    keys, found = log.run.keys, dict[str, Commit]()
    planned = {shard.shard for shard in log.run.plan.shards} if top is None else {top}
    async for key, data in _read_all(log.store, keys.commits_prefix() + (top or ""), lambda key: _stem(key).partition(".")[0] in planned):
        try:
            commit: Commit = decode(data, Commit, where=key)
        except ContractError as error:
            log.damaged.append(f"{key}: {error.what}")
            continue
        if commit.plan == log.run.plan.plan_id and commit.shard == _stem(key):
            found[commit.shard] = commit
        else:
            log.damaged.append(f"{key}: of another plan or shard")
    return found


M = TypeVar("M", StartMarker, EndMarker)


async def _markers(log: Log, kind: type[M], prefix: str, top: str | None, wanted: Callable[[str], bool]) -> list[M]:
    found: list[M] = []
    async for key, data in _read_all(log.store, prefix + (top or ""), lambda key: wanted(key.split("/")[-2])):
        try:
            marker: M = decode(data, kind, where=key)
        except ContractError as error:
            log.damaged.append(f"{key}: {error.what}")
            continue
        if marker.plan == log.run.plan.plan_id:
            found.append(marker)
        else:
            log.damaged.append(f"{key}: of another plan")
    return found


def _stem(key: str) -> str:
    return key.rsplit("/", 1)[-1].removesuffix(".json")


async def _read_all(store: Store, prefix: str, wanted: Callable[[str], bool]) -> AsyncIterator[tuple[str, bytes]]:
    """Small objects below a prefix, some at once."""
    keys = [head.key async for head in store.list(prefix) if head.key.endswith(".json") and wanted(head.key)]
    for at in range(0, len(keys), AT_ONCE):
        batch = keys[at : at + AT_ONCE]
        for key, blob in zip(batch, await asyncio.gather(*(get_or_none(store, key) for key in batch)), strict=True):
            if blob is not None:
                yield key, blob.data


async def _whole_run(log: Log) -> None:
    """What is said of the run as a whole: it was planned, told to stop, sealed, summed up."""
    run, store = log.run, log.store
    log.add(run.plan.created_at, 0, _planned, run.plan)
    try:
        control, etag = await read_control(store, run.keys, run.plan)
        if etag is not None:
            log.add(control.at, 2, _control, control)
        seal = await get_or_none(store, run.keys.seal())
        if seal is not None:
            pointer: SealPointer = decode(seal.data, SealPointer, where=run.keys.seal())
            log.add(pointer.at, 8, _sealed, pointer)
    except (ContractError, Damaged) as error:
        log.damaged.append(str(error))
    summary = await read_summary(store, run.keys)
    if summary is not None:
        log.add(summary.at, 9, _summary, summary)


def _any(shard: str) -> bool:
    return True


def _within(top: str, shard: str) -> bool:
    return shard == top or shard.startswith(f"{top}.")


# --- one shard, one row --------------------------------------------------------------------------------------------------------------


def check_shard(plan: Plan, commits: Mapping[str, Commit], shard: str) -> None:
    """Raises UsageError where the run has no such shard."""
    names = [planned.shard for planned in plan.shards]
    names += [child.shard for commit in commits.values() if isinstance(commit, SplitCommit) for child in commit.children]
    if shard in names:
        return
    padded = f"{shard:0>{len(names[0])}}" if names else shard
    near = [padded] if padded in names else get_close_matches(shard, names, NEAR)
    fix = f"Did you mean {' or '.join(near)}?" if near else f"Its shards are {names[0]} to {plan.shards[-1].shard}."
    raise UsageError(f"the run has no shard '{shard[:80]}'.", where=plan.run, fix=fix)


async def find_row(log: Log, commits: Mapping[str, Commit], ident: str, shard: str | None, open_store: OpenStore | None) -> Row:
    """The row with this id: among those that failed, those that preflight left out, and then in the input, a few shards at a time.

    Raises UsageError where there is none.
    """
    parts = [
        c for c in commits.values() if isinstance(c, PartCommit) and c.errors is not None and (shard is None or _within(shard, c.shard))
    ]

    async def failed(commit: PartCommit) -> Row | None:
        assert commit.errors is not None
        try:
            async for line, error in error_lines(log.store, commit.errors):
                if line.id == ident:
                    return Row(ident, line.index, nodes_of(commits, commit.shard.partition(".")[0], line.index), error)
        except (NotFound, ContractError) as error:
            log.damaged.append(f"{commit.errors.key}: {error.what}")
        return None

    found = await _first(parts, failed)
    skipped = log.run.plan.dataset.skipped_object
    if found is None and skipped is not None and shard is None:
        async for line in read_lines(log.store.read(skipped.key), where=skipped.key):
            left_out: SkippedLine = decode(line, SkippedLine, where=skipped.key)
            if left_out.id == ident:
                return Row(ident, skipped=left_out)
    near = Near(ident)

    async def given(planned: ShardPlan) -> Row | None:
        source = planned.source
        try:
            async for index, name in row_ids(log.store, source, open_store):
                near.saw(name)
                if name == ident:
                    return Row(ident, index, nodes_of(commits, planned.shard, index))
        except (NotFound, ContractError) as error:
            log.damaged.append(f"{source.uri}: {error.what}")
        return None

    if found is None:
        planned = [one for one in log.run.plan.shards if shard is None or _within(one.shard, shard)]
        found = await _first(planned, given)
        if found is not None and shard is not None and not any(_within(shard, node) for node in found.nodes):
            found = None
    if found is not None:
        return found
    close = near.best()
    where = log.run.plan.run if shard is None else f"{log.run.plan.run}, shard {shard}"
    unread = f" ({len(log.damaged):,} objects could not be read: {log.damaged[0]})" if log.damaged else ""
    fix = f"Did you mean {' or '.join(close)}?" if close else "Ids are those of the dataset: its custom_id, or its --id-column."
    raise UsageError(f"there is no row '{ident[:200]}'{unread}.", where=where, fix=fix)


def nodes_of(commits: Mapping[str, Commit], top: str, index: int) -> tuple[str, ...]:
    """The shards that held a row, from the one that the plan cut to the one that holds it now."""
    nodes = [top]
    while isinstance(commit := commits.get(nodes[-1]), SplitCommit):
        child = next((c.shard for c in commit.children if c.source.rows[0] <= index < c.source.rows[1]), None)
        if child is None or child in nodes:
            break
        nodes.append(child)
    return tuple(nodes)


class _CustomId(msgspec.Struct, frozen=True):
    custom_id: str


_decoder: Final = msgspec.json.Decoder(_CustomId)


async def row_ids(store: Store, source: Source, open_store: OpenStore | None) -> AsyncIterator[tuple[int, str]]:
    """Index and id of a shard's rows, where they can be read."""
    bucket, key = s3_key(source.uri)
    if bucket != store.bucket:
        if open_store is None:
            raise ContractError("the input lies in another bucket and cannot be read.", where=source.uri)
        store = open_store(bucket)
    chunks = store.read(key) if source.bytes is None else store.read(key, *source.bytes)
    index = source.rows[0]
    async for line in read_lines(chunks, where=source.uri, compressed=key.endswith(".zst")):
        try:
            yield index, _decoder.decode(line).custom_id
        except (msgspec.MsgspecError, UnicodeDecodeError):  # half a surrogate pair in the body is a fault of that row alone
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                yield index, str(json.loads(line)["custom_id"])
        index += 1


class Near:
    """Of ids that pass by, the few that are most like one that is looked for. Cheap for each: millions may."""

    def __init__(self, ident: str) -> None:
        self._ident, self._folded = ident, ident.casefold().strip()
        self._kept: list[tuple[int, str]] = []

    def saw(self, other: str) -> None:
        ident = self._ident
        if abs(len(other) - len(ident)) > 2:
            return
        if other.casefold().strip() == self._folded:
            score = 1_000_000
        else:
            score = _alike(ident, other) + _alike(reversed(ident), reversed(other))
            if score * 2 < len(ident):
                return
        if len(self._kept) < 20 * NEAR:
            heapq.heappush(self._kept, (score, other))
        elif (score, other) > self._kept[0]:
            heapq.heapreplace(self._kept, (score, other))

    def best(self) -> list[str]:
        names = [name for score, name in self._kept if score == 1_000_000]
        return names[:NEAR] or get_close_matches(self._ident, [name for _, name in self._kept], NEAR)


def _alike(one: Iterable[str], other: Iterable[str]) -> int:
    """How many characters are the same until one is not."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


async def _first(items: Iterable[T], look: Callable[[T], Awaitable[Row | None]]) -> Row | None:
    """The first that is found, some looked at together; nothing is left running."""
    rest = iter(items)
    running: set[asyncio.Future[Row | None]] = set()
    try:
        while True:
            while len(running) < STREAMS and (item := next(rest, None)) is not None:
                running.add(asyncio.ensure_future(look(item)))
            if not running:
                return None
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                if (found := one.result()) is not None:
                    return found
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _tell_row(log: Log, row: Row, commits: Mapping[str, Commit]) -> None:
    """Where a row is, and what became of it."""
    created = log.run.plan.created_at
    if row.skipped is not None:
        reason = (
            f"row {row.id} was left out before the run: {row.skipped.file}:{row.skipped.line}: {row.skipped.code}: {row.skipped.reason}"
        )
        log.add(created, 0, Line, created, "row", "row", reason, True)
        return
    node = row.nodes[-1]
    commit = commits.get(node)
    told = f"row {row.id} is row {row.index:,} of the dataset, in shard {' and then '.join(row.nodes)}"
    log.add(created, 0, partial(Line, created, "row", "row", told, shard=node, row=row.index, id=row.id))
    if not isinstance(commit, PartCommit):
        now = log.store.now()
        log.add(now, 9, partial(Line, now, "row", "row", f"row {row.id} has no result yet", True, node, row=row.index, id=row.id))
    elif row.error is not None and row.index is not None:
        log.add(commit.at, 4, failed_row, commit.at, node, commit.execution, row.index, row.id, row.error)
    else:
        well = f"row {row.id} has its answer: {commit.part.key if commit.part is not None else 'in no part'}"
        log.add(
            commit.at, 4, partial(Line, commit.at, "row", "row", well, False, node, execution=commit.execution, row=row.index, id=row.id)
        )


# --- a worker's own log --------------------------------------------------------------------------------------------------------------

OVER: Final = ("Finished", "Job stopped")
"""How the SDK's last line of a job begins."""
_ABOUT: Final = re.compile(r"\bshard ([0-9.]+), attempt ([0-9]+): ")


def job_lines(lines: Iterable[str], starts: Iterable[StartMarker]) -> Iterator[Said]:
    """Of a worker's log, what is about these executions: lines that name the job, and what else the worker says while that is its only one.

    The SDK writes a line of JSON with the job's id when a job begins and when it is over; other lines bear neither id nor time.
    """
    mine = {start.job_id: start for start in starts}
    active: list[str] = []
    told: Counter[str] = Counter()
    for raw in lines:
        text = raw.strip()
        job, message, level = _sdk_line(text)
        if message is not None:
            if job is None:
                continue  # how many jobs it has: of none of them
            if message.startswith("Started") and job not in active:
                active.append(job)
            text = f"{level} {message}" if level in ("ERROR", "WARN") else message
        elif (about := _ABOUT.search(text)) is not None:
            job = next((one for one in active if one in mine and (mine[one].shard, str(mine[one].attempt)) == about.groups()), None)
        elif len(active) == 1:
            job = active[0]
        if job in mine and text and told[job] < MOST_SAID:
            told[job] += 1
            yield Said(mine[job], text, ends=_ABOUT.search(text) is not None or bool(message and not message.startswith("Started")))
        if message is not None and message.startswith(OVER) and job in active:
            active.remove(job)


def _sdk_line(text: str) -> tuple[str | None, str | None, str]:
    """Job id, message and level of the SDK's lines; no message where it is none of those."""
    if not text.startswith('{"requestId"'):
        return None, None, ""
    try:
        found = json.loads(text)
        job, message, level = found["requestId"], str(found.get("message", "")), str(found.get("level", ""))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, None, ""
    return (None if job is None else str(job)), message, level


# --- how each thing is said ----------------------------------------------------------------------------------------------------------


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _planned(plan: Plan) -> Line:
    usd = plan.estimate.usd
    text = (
        f"plans {_many(plan.dataset.rows, 'row')} in {_many(len(plan.shards), 'shard')} for {plan.task.kind} with {plan.task.model}, "
        f"on {plan.infra.endpoint}, about ${usd.likely:.4f} (${usd.low:.4f} to ${usd.high:.4f})"
    )
    return Line(plan.created_at, "client", "planned", text)


def _intent(client: str, intent: Intent) -> Line:
    low = "low priority, " if intent.low_priority else ""
    text = f"sends attempt {intent.attempt}, {low}at most ${intent.reserve_usd:.4f}"
    return Line(intent.sent_at, f"client {client}", "sends", text, shard=intent.shard, attempt=intent.attempt)


def _note(client: str, note: AttemptNote, of: Intent) -> Line:
    states = {"sent": "was accepted", "unknown": "got no answer: whether RunPod has it is not known"}
    told = states.get(note.state, f"is {note.state}")
    cause = f" ({note.cause})" if note.cause else ""
    error = f": {note.error}" if note.error else ""
    job = f", job {note.job_id}" if note.job_id and note.state == "sent" else ""
    wrong = note.state in ("dead", "expired", "unknown") or (note.state == "rejected" and note.cause not in QUIET_CAUSES)
    return Line(
        note.at, f"client {client}", note.state, f"attempt {note.attempt} {told}{job}{cause}{error}", wrong, of.shard,
        attempt=note.attempt, job=note.job_id,
    )  # fmt: skip


def _start(start: StartMarker, ended: bool, late: bool) -> Line:
    loaded = f", engine started in {start.load_s:.1f} s" if start.load_s else ""
    lost = "" if ended else ", and never said how it ended" if late else ", not over as far as is known"
    image = f", image {start.image}" if start.image else ""
    return Line(
        start.at, f"worker {start.worker_id}", "begins", f"begins attempt {start.attempt}{loaded}{image}{lost}", late and not ended,
        start.shard, start.attempt, start.execution, start.job_id,
    )  # fmt: skip


def _end(end: EndMarker, start: StartMarker | None) -> Line:
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in msgspec.structs.asdict(end.seconds).items() if seconds)
    rows = f"{end.ok:,} rows ok, {end.failed:,} failed, tokens {end.tokens_in:,} in and {end.tokens_out:,} out"
    text = f"ends attempt {end.attempt}: {end.outcome} after {end.wall_s:.1f} s ({phases or 'nothing computed'}); {rows}"
    memory = f"; {end.peak_rss_bytes / 1e6:,.0f} MB" if end.peak_rss_bytes else ""
    who = f"worker {start.worker_id}" if start is not None else "worker"
    job = start.job_id if start is not None else None
    return Line(end.at, who, "ends", text + memory, end.outcome not in WELL, end.shard, end.attempt, end.execution, job)


def _split(commit: SplitCommit) -> Line:
    children = ", ".join(child.shard for child in commit.children[:5]) + (" …" if len(commit.children) > 5 else "")
    return Line(commit.at, "client", "split", f"splits it into {children}", True, commit.shard)


def _part(commit: PartCommit, start: StartMarker | None) -> Line:
    size = f", {commit.part.size:,} bytes" if commit.part is not None else ""
    text = f"attempt {commit.attempt} is its result: {commit.ok:,} rows ok, {commit.failed:,} failed{size}"
    who = f"worker {start.worker_id}" if start is not None else "worker"
    return Line(commit.at, who, "commit", text, commit.failed > 0, commit.shard, commit.attempt, commit.execution)


def _control(control: Control) -> Line:
    modes = {"run": "go on", "keep": "start nothing new", "stop": "end at once"}
    reason = f": {control.reason}" if control.reason else ""
    text = f"tells the run to {modes[control.mode]} (epoch {control.epoch}){reason}"
    return Line(control.at, f"client {control.by}", "control", text, control.mode != "run")


def _sealed(pointer: SealPointer) -> Line:
    return Line(pointer.at, "client", "sealed", f"collects: seal {pointer.seal[:16]}…")


def _summary(summary: RunSummary) -> Line:
    checked = {True: ", verified", False: ", not as it should be", None: ""}[summary.verified]
    text = f"{summary.state}: {summary.ok:,} of {summary.rows:,} rows ok, {summary.failed:,} failed, ${summary.usd_estimated:.4f}{checked}"
    return Line(summary.at, "client", "summary", text, summary.state != "complete" or summary.verified is False)


def _ledger(seen: LedgerNote) -> Line:
    if seen.state is not None:
        text = f"attempt {seen.attempt} is {seen.state}" + (f" ({seen.cause})" if seen.cause else "") + ", as this machine saw it last"
        return Line(seen.at, "ledger", "ledger", text, shard=seen.shard, attempt=seen.attempt, job=seen.job_id)
    often = "" if seen.times == 1 else f" ({seen.times:,} times)"
    return Line(seen.at, "ledger", "webhook", f"a webhook of attempt {seen.attempt} came{often}", shard=seen.shard, attempt=seen.attempt)


def _said(at: datetime, said: Said) -> Line:
    start = said.start
    wrong = said.text.startswith(("ERROR", "CRITICAL", "WARN")) or "Traceback" in said.text
    return Line(at, f"worker {start.worker_id}", "log", said.text, wrong, start.shard, start.attempt, start.execution, start.job_id)


def failed_row(at: datetime, shard: str | None, execution: str | None, index: int, ident: str, error: RowError) -> Line:
    """A row's error, as it is told."""
    param = f" (`{error.param}`)" if error.param else ""
    text = f"row {ident} failed: {error.code}{param}: {error.message}"
    return Line(at, "row", "row", text, True, shard, execution=execution, row=index, id=ident, code=error.code)
