"""worker: one delivery of a job, from the first look at the store to the answer: PROTOCOL.md, "A worker's execution", step by step.

`execute` is one coroutine over a Store, an Engine and a clock. It starts no task, thread or timer: whoever runs it decides when it is
stopped, by `Stop`, so that a property test can drive it one await at a time. It is never cancelled to be stopped gently (the handler
shields it); a cancellation is a crash, and must be safe anywhere.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from contract.errors import AccessDenied, ContractError, NotFound, StoreError
from contract.keys import RunKeys, RunUri
from contract.models import (
    Commit,
    Control,
    EndMarker,
    JobInput,
    ObjectRef,
    Outcome,
    PartCommit,
    PhaseSeconds,
    Plan,
    StartMarker,
    StoreMode,
    Summary,
    TaskSpec,
    decode,
    encode,
)
from contract.rows import RowError, ShardDigest
from contract.store import Store, get_or_none, put_first, put_object
from worker.engine.base import Embedded, Engine, EngineDied, EngineResult, Generated, Refused
from worker.parts import SUFFIX, DoneRow, ErrorsWriter, part_writer
from worker.rows import InputChanged, ShardRow, read_rows
from worker.tasks import requests, unknown_params
from worker.tasks.answers import answer, incomplete

log = logging.getLogger("nightbatch.worker")

SMALL: Final = 8 << 20
"""Bytes. Objects up to this size are sent from memory; larger ones are streamed from their file."""
PIECE_BYTES: Final = 8 << 20
"""Finished rows are kept as a piece at the latest when they are so many bytes, which bounds what waits in memory."""
StopReason = Literal["deadline", "stop", "sigterm", "cancelled", "unwatched"]
"""`unwatched`: a fault of the worker's own in what looks for the first two."""


class Stop:
    """Why an execution should end early. Set once, from anywhere on the event loop; the first reason stays."""

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self._calls: list[Callable[[], None]] = []

    def set(self, reason: StopReason) -> None:
        if self.reason is None:
            self.reason = reason
            for call in self._calls:
                call()

    def attach(self, call: Callable[[], None]) -> None:
        """Call when set; at once if it is set already."""
        self._calls.append(call)
        if self.reason is not None:
            call()


class Clock(Protocol):
    """Durations are the worker's own; instants are the store's."""

    def monotonic(self) -> float: ...


@dataclass(frozen=True)
class PiecePolicy:
    """When finished rows are kept while others still run: after `seconds`, if there are `share` of the shard's rows or more.

    Pieces are insurance for shards that take long, at most 1/share of them an execution: object count stays O(shards).
    """

    seconds: float = 10.0
    share: float = 1 / 16


@dataclass(frozen=True)
class Identity:
    """Who executes: written into markers, commits and answers."""

    worker_id: str
    image: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanPin:
    """What an execution needs of a plan."""

    task: TaskSpec
    mode: StoreMode


class PlanMemory:
    """Plans that this process has read, by where they are and their id. A plan is immutable, and of a large run it is megabytes."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._pins: dict[tuple[str, str, str], PlanPin] = {}

    def get(self, place: tuple[str, str, str]) -> PlanPin | None:
        return self._pins.get(place)

    def keep(self, place: tuple[str, str, str], pin: PlanPin) -> None:
        if len(self._pins) >= self._most:
            self._pins.pop(next(iter(self._pins)))
        self._pins[place] = pin


@dataclass(frozen=True)
class World:
    """What an execution stands in. `folder`: an empty one, for spools; whoever made it deletes it."""

    store: Store
    engine: Engine
    clock: Clock
    folder: Path
    identity: Identity
    new_execution: Callable[[], str] = lambda: secrets.token_hex(8)
    take_load_s: Callable[[], float] = lambda: 0.0
    """The engine's loading time, for the first execution of a process; 0 for the others."""
    peak_rss: Callable[[], int] = lambda: 0
    pieces: PiecePolicy = PiecePolicy()
    plans: PlanMemory | None = None
    """None: the plan is read each time."""


async def execute(job: JobInput, job_id: str, world: World, stop: Stop) -> Summary:
    """Run one delivery of a job and say how it ended.

    Raises EngineDied after pieces and the end marker are kept (the process must exit then); ContractError for a job that breaks the
    contract; StoreError where the store failed so that not even a marker can say how it ended.
    """
    return await _Execution(job, job_id, world, stop).run()


class _Execution:
    def __init__(self, job: JobInput, job_id: str, world: World, stop: Stop) -> None:
        self.job = job
        self.job_id = job_id
        self.world = world
        self.stop = stop
        self.store = world.store
        self.uri = RunUri.parse(job.run)
        self.keys: RunKeys = self.uri.keys
        self.execution = world.new_execution()
        self.began = world.clock.monotonic()
        self.seconds = PhaseSeconds()
        self.ok = self.failed = self.tokens_in = self.tokens_out = 0

    # --- the seven steps -----------------------------------------------------------------------------------------------------------

    async def run(self) -> Summary:
        job = self.job
        if self.uri.bucket != self.store.bucket:
            raise ContractError(f"`run` is in bucket {self.uri.bucket!r} and `s3Config` names {self.store.bucket!r}.", where="input")
        if problem := unknown_params(job.task):
            raise ContractError(f"`task.params` has fields that no row of `{job.task.kind}` can use: {', '.join(problem)}.", where="input")
        if job.task.kind != self.world.engine.info.kind:
            raise ContractError(
                f"`task.kind` is {job.task.kind!r}, and the model of this worker can only {self.world.engine.info.kind}.", where="input"
            )
        try:
            early = await self._look()
            if early is not None:
                return early
            await self._start()
        except AccessDenied as error:
            return self._summary("credentials", detail=str(error))
        reading = self._timer()
        try:
            rows = await read_rows(self.store, job.source)
        except InputChanged as error:
            self.seconds = replace_seconds(self.seconds, reading=reading())
            return await self._end("input_changed", detail=str(error))
        self.seconds = replace_seconds(self.seconds, reading=reading())
        shard = _Shard(self, rows)
        try:
            finished = await self._compute(shard)
            if not finished:
                return await self._end("partial", detail=self.stop.reason)
            return await self._publish(shard)
        finally:
            shard.discard()

    async def _look(self) -> Summary | None:
        """Step 1: read control, plan and commit; a summary if there is nothing to do."""
        job, store = self.job, self.store
        control = await get_or_none(store, self.keys.control())
        if control is not None:
            said: Control = decode(control.data, Control, where=self.where(self.keys.control()))
            if said.plan != job.plan:
                return self._summary("mismatch", detail="control.json belongs to another plan")
            if said.epoch > job.epoch or (said.epoch == job.epoch and said.mode != "run"):
                return self._summary("fenced", detail=f"epoch {job.epoch} of the job, epoch {said.epoch} ({said.mode}) of the run")
        pin = await self._plan()
        if isinstance(pin, Summary):
            return pin
        if pin.task != job.task:
            return self._summary("mismatch", detail="the job's task is not the plan's")
        # Whether first-write-wins can be had was proven when the run was planned; the plan says it, and it is not found out again here.
        store.mode = pin.mode
        standing = await get_or_none(store, self.keys.commit(job.shard))
        if standing is not None:
            return await self._closed(decode(standing.data, Commit, where=self.where(self.keys.commit(job.shard))))
        if store.now() > job.start_by:
            return self._summary("expired", detail=f"it could start until {job.start_by.isoformat()}")
        return None

    async def _plan(self) -> PlanPin | Summary:
        """What the plan says, or the summary of a job that belongs to another one."""
        store, key, memory = self.store, self.keys.plan(), self.world.plans
        place = (store.endpoint_url, self.job.run, self.job.plan)
        known = memory.get(place) if memory else None
        if known is not None:
            return known
        try:
            blob = await store.get(key)
        except NotFound:
            return self._summary("mismatch", detail="there is no plan at the run's address")
        plan: Plan = decode(blob.data, Plan, where=self.where(key))
        if plan.plan_id != self.job.plan:
            return self._summary("mismatch", detail="plan.json is another plan")
        pin = PlanPin(plan.task, plan.store.mode)
        if memory:
            memory.keep(place, pin)
        return pin

    async def _closed(self, commit: Commit) -> Summary:
        if commit.plan != self.job.plan:
            return self._summary("mismatch", detail="the shard's commit belongs to another plan")
        if isinstance(commit, PartCommit):
            for ref in (commit.part, commit.errors):
                if ref is not None and not await self._stands(ref):
                    return self._summary("lost", detail=f"{ref.key}, which the shard's commit names, is not as it was; resume --repair")
            self.ok, self.failed = commit.ok, commit.failed
            return self._summary("already", part=commit.part)
        return self._summary("already", detail="the shard was split")

    async def _start(self) -> None:
        """Step 2: say that this execution costs. A store that refuses it would refuse the results."""
        load_s = self.world.take_load_s()
        self.seconds = replace_seconds(self.seconds, loading=load_s)
        marker = StartMarker(
            plan=self.job.plan,
            shard=self.job.shard,
            execution=self.execution,
            attempt=self.job.attempt,
            epoch=self.job.epoch,
            job_id=self.job_id,
            worker_id=self.world.identity.worker_id,
            image=self.world.identity.image,
            load_s=load_s,
            at=self.store.now(),
        )
        await self.store.put(self.keys.start(self.job.shard, self.execution), encode(marker))

    async def _compute(self, shard: _Shard) -> bool:
        """Step 4: every row through the engine; True when each has its result. Raises EngineDied."""
        if self.stop.reason is not None:
            return False
        computing = self._timer()
        try:
            batch = self.world.engine.submit(requests(shard.source, self.job.task))
            self.stop.attach(batch.abort)
            async for results in batch:
                for result in results:
                    shard.take(result)
                await shard.keep_if_due()
            if shard.remaining and self.stop.reason is None:
                raise EngineDied(f"the engine ended the shard with {len(shard.remaining)} of {self.job.source.count} rows unanswered")
        except EngineDied:
            self.seconds = replace_seconds(self.seconds, computing=computing())
            await shard.keep()
            await self._end("partial", detail="the engine died")
            raise
        if shard.remaining:
            await shard.keep()
        self.seconds = replace_seconds(self.seconds, computing=computing())
        return not shard.remaining

    async def _publish(self, shard: _Shard) -> Summary:
        """Steps 5 to 7: part and errors, the commit, the end marker."""
        writing = self._timer()
        part, errors = await shard.put()
        commit = PartCommit(
            plan=self.job.plan,
            shard=self.job.shard,
            execution=self.execution,
            attempt=self.job.attempt,
            part=part,
            errors=errors,
            ok=self.ok,
            failed=self.failed,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            input_digest=self.job.source.digest,
            digest=shard.digest.hexdigest(),
            image=self.world.identity.image,
            versions=dict(self.world.identity.versions),
            at=self.store.now(),
        )
        data = encode(commit)
        standing = await put_first(self.store, self.keys.commit(self.job.shard), data)
        self.seconds = replace_seconds(self.seconds, writing=writing())
        return await self._end("won" if standing == data else "lost", part=part)

    # --- answers -------------------------------------------------------------------------------------------------------------------

    async def _end(self, outcome: Outcome, *, part: ObjectRef | None = None, detail: str | None = None) -> Summary:
        """Step 7. The marker is what the execution is charged by; the commit does not wait for it, so its failure is only said."""
        summary = self._summary(outcome, part=part, detail=detail)
        marker = EndMarker(
            plan=self.job.plan,
            shard=self.job.shard,
            execution=self.execution,
            attempt=self.job.attempt,
            outcome=outcome,
            wall_s=max(0.0, self.world.clock.monotonic() - self.began),
            seconds=summary.seconds,
            ok=summary.ok,
            failed=summary.failed,
            tokens_in=summary.tokens_in,
            tokens_out=summary.tokens_out,
            peak_rss_bytes=summary.peak_rss_bytes,
            at=self.store.now(),
        )
        try:
            await self.store.put(self.keys.end(self.job.shard, self.execution), encode(marker))
        except StoreError as error:
            log.warning("shard %s: the end marker could not be written (%s); the answer says the same", self.job.shard, error)
        return summary

    def _summary(self, outcome: Outcome, *, part: ObjectRef | None = None, detail: str | None = None) -> Summary:
        return Summary(
            outcome=outcome,
            plan=self.job.plan,
            shard=self.job.shard,
            attempt=self.job.attempt,
            execution=self.execution,
            ok=self.ok,
            failed=self.failed,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            seconds=self.seconds,
            peak_rss_bytes=self.world.peak_rss(),
            part=part.key if part else None,
            etag=part.etag if part else None,
            versions=dict(self.world.identity.versions),
            detail=detail,
        )

    # --- small helpers -------------------------------------------------------------------------------------------------------------

    def _timer(self) -> Callable[[], float]:
        started = self.world.clock.monotonic()
        return lambda: max(0.0, self.world.clock.monotonic() - started)

    def where(self, key: str) -> str:
        return f"s3://{self.store.bucket}/{key}"

    async def _stands(self, ref: ObjectRef) -> bool:
        head = await self.store.head(ref.key)
        return head is not None and head.size == ref.size and head.etag == ref.etag


class _Shard:
    """The rows of one execution: which still run, and the files into which the finished ones go."""

    def __init__(self, owner: _Execution, rows: list[ShardRow]) -> None:
        self._owner = owner
        self._world = owner.world
        self._kind = owner.job.task.kind
        self.source = rows
        self.remaining = {row.index: row for row in rows}
        self.digest = ShardDigest()
        self._part = part_writer(self._kind, self._world.folder / f"part.{SUFFIX[self._kind]}")
        self._errors = ErrorsWriter(self._world.folder / "errors.jsonl.zst")
        self._waiting: list[DoneRow] = []
        self._waiting_bytes = 0
        self._pieces = 0
        self._kept_at = self._world.clock.monotonic()
        self._created = int(owner.store.now().timestamp())
        self._least = max(1, int(len(rows) * self._world.pieces.share))

    def take(self, result: EngineResult) -> None:
        """One row's result, into the part or the errors. Raises EngineDied for an answer that nobody waits for."""
        row = self.remaining.pop(result.index, None)
        if row is None:
            raise EngineDied(f"the engine answered row {result.index}, which was not waiting for an answer")
        owner = self._owner
        if isinstance(result, Refused):
            owner.tokens_in += result.prompt_tokens
            self._fail(row, result.error)
            return
        owner.tokens_in += result.prompt_tokens
        if isinstance(result, Generated):
            tokens = sum(choice.tokens for choice in result.choices)
            owner.tokens_out += tokens
            if result.structured and (error := incomplete(result)) is not None:
                self._fail(row, error)
                return
            ident = f"{owner.execution}-{row.index}"
            output = answer(row.url, result, ident=ident, created=self._created, model=self._world.engine.info.model)
        else:
            tokens = result.prompt_tokens
            output = vector_bytes(result)
        done = DoneRow(row.index, row.digest, row.id, output, tokens)
        self._part.add(done)
        self.digest.add(row.index, row.digest, True, output)
        owner.ok += 1
        self._waiting.append(done)
        self._waiting_bytes += len(output)

    def _fail(self, row: ShardRow, error: RowError) -> None:
        raw = self._errors.add(row.index, row.digest, row.id, error)
        self.digest.add(row.index, row.digest, False, raw)
        self._owner.failed += 1

    async def keep_if_due(self) -> None:
        policy = self._world.pieces
        if not self.remaining:
            return  # the part itself comes next
        due = len(self._waiting) >= self._least and self._world.clock.monotonic() - self._kept_at >= policy.seconds
        if due or self._waiting_bytes >= PIECE_BYTES:
            await self.keep()

    async def keep(self) -> None:
        """Write finished rows that no piece holds yet as one. A piece is insurance: if the store refuses it, the shard still goes on."""
        rows, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._kept_at = self._world.clock.monotonic()
        if not rows:
            return
        owner, suffix = self._owner, SUFFIX[self._kind]
        number, self._pieces = self._pieces, self._pieces + 1
        writer = part_writer(self._kind, self._world.folder / f"piece.{suffix}")
        try:
            for row in rows:
                writer.add(row)
            path = writer.finish()
            key = owner.keys.piece(owner.job.shard, owner.execution, number, suffix)
            await owner.store.put(key, _payload(path))
        except StoreError as error:
            log.warning("shard %s: a piece of %d rows could not be kept (%s)", owner.job.shard, len(rows), error)
        finally:
            writer.discard()

    async def put(self) -> tuple[ObjectRef | None, ObjectRef | None]:
        """Part and errors, each confirmed by HEAD; None for one without rows."""
        owner, shard = self._owner, self._owner.job.shard
        part = await self._put(self._part, owner.keys.part(shard, owner.execution, SUFFIX[self._kind]))
        errors = await self._put(self._errors, owner.keys.errors(shard, owner.execution))
        return part, errors

    async def _put(self, writer: _Finishing, key: str) -> ObjectRef | None:
        if not writer.rows:
            return None
        ref = await put_object(self._owner.store, key, _payload(writer.finish()))
        head = await self._owner.store.head(key)
        if head is None or head.size != ref.size:
            found = "nothing" if head is None else f"{head.size} bytes"
            raise StoreError(f"{ref.size} bytes were written, and {found} stand there.", where=self._owner.where(key))
        return ref

    def discard(self) -> None:
        self._part.discard()
        self._errors.discard()


class _Finishing(Protocol):
    rows: int

    def finish(self) -> Path: ...


def _payload(path: Path) -> bytes | Path:
    return path.read_bytes() if path.stat().st_size <= SMALL else path


def vector_bytes(result: Embedded) -> bytes:
    """Little-endian float32: what the part holds and the shard digest covers."""
    return result.vector.astype("<f4", copy=False).tobytes()


def replace_seconds(seconds: PhaseSeconds, **changes: float) -> PhaseSeconds:
    """The same phases with some of them set."""
    return PhaseSeconds(**{**{name: getattr(seconds, name) for name in seconds.__struct_fields__}, **changes})
