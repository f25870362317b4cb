"""emulator: the queue of one endpoint. Holds its jobs, hands them to workers and lets time act on them.

May touch: other modules of this room; no sockets, processes or files. It is synchronous: each call changes the state at one instant `now`
and reports what changed to a `Sink` (which persists and sends webhooks). Nothing here scans all jobs: a heap holds the times at which
something can happen to a job, and only jobs on workers are looked at each tick.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from emulator import jobs
from emulator.jobs import Job, Kind, Status
from emulator.scaling import QueueView

STREAM_CHUNK_LIMIT: Final = 1_000_000
"""Bytes of one streamed chunk; longer text is split (operation-reference: 1 MB)."""


class Sink(Protocol):
    """Whoever must know what happened to a job."""

    def saved(self, job: Job) -> None:
        """The job is new or has changed."""
        ...

    def deleted(self, job: Job) -> None:
        """Nothing of the job is left."""
        ...

    def finished(self, job: Job) -> None:
        """The job has reached a terminal state (its webhook is due)."""
        ...

    def counted(self, endpoint: str, completed: int, failed: int, retried: int) -> None:
        """The endpoint's counters of /health have changed."""
        ...


class WorkerEvents(Protocol):
    """Whoever keeps the workers."""

    def busy_changed(self, worker: str, busy: bool) -> None:
        """The worker got its first job, or has none left."""
        ...

    def stop_wanted(self, worker: str, *, at_once: bool) -> None:
        """The worker's result said `stopPod`: it ends when it has no jobs left. Or it overran an execution timeout and the endpoint
        stops such workers: then at once."""
        ...


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The endpoint's rules. Switches stand for what RunPod does not document."""

    execution_timeout_ms: int = jobs.EXECUTION_TIMEOUT_DEFAULT_MS
    ordinary_overtakes: bool = True
    """Whether ordinary jobs are taken before lowPriority ones that came earlier (older docs said so; current ones are silent)."""
    lost_after_s: float = jobs.LOST_AFTER_S
    redeliveries: int = jobs.REDELIVERIES
    exceeded_status: Status = Status.TIMED_OUT
    """How a job ends that overruns executionTimeout: the docs say both that it fails and that TIMED_OUT is its state."""
    exceeded_stops_worker: bool = False
    """The docs say that the worker is stopped; SDK 1.10+ stops just that job (job-stop)."""


class _Result(msgspec.Struct, frozen=True):
    """The body of job-done."""

    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: Any = None
    status: str | None = None
    stopPod: bool = False


_RESULT: Final = msgspec.json.Decoder(_Result)


class _Chunk(msgspec.Struct, frozen=True):
    output: Any = None
    metrics: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class Broker:
    """All jobs of one endpoint."""

    def __init__(self, endpoint: str, settings: BrokerSettings, sink: Sink, workers: WorkerEvents) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self._sink = sink
        self._workers = workers
        self._jobs: dict[str, Job] = {}
        self._queues: dict[bool, deque[str]] = {False: deque(), True: deque()}
        self._counts: Counter[tuple[Status, bool]] = Counter()
        self._in_progress: dict[str, float] = {}  # job -> when its worker was last heard to have it
        self._held: dict[str, dict[str, float]] = {}  # worker -> jobs it has been given and, as far as we know, still has
        self._timers: list[tuple[float, str]] = []
        self._unanswered: deque[tuple[float, str]] = deque()  # ordinary jobs that have not made the scaler add a worker
        self._streams: dict[str, list[bytes]] = {}
        self._stops: dict[str, list[str]] = {}
        self._takers: deque[asyncio.Future[None]] = deque()
        self._stop_waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._job_waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._seq = 0
        self.completed = 0
        self.failed = 0
        self.retried = 0
        self.last_request_at: float | None = None
        """When the last job came, since this process runs."""

    # --- what can be seen -----------------------------------------------------------------------------------------

    def get(self, job_id: str, now: float) -> Job | None:
        """The job, or None if it is unknown or its time is over (a tick need not have come by)."""
        job = self._jobs.get(job_id)
        if job is not None and now >= job.delete_at:
            self._delete(job)
            return None
        return job

    def jobs(self) -> Iterator[Job]:
        """All jobs that have not been deleted, in no particular order. For reports, not for hot paths."""
        return iter(list(self._jobs.values()))

    def count(self, status: Status) -> int:
        return self._counts[status, False] + self._counts[status, True]

    def queue_view(self, now: float) -> QueueView:
        """What the autoscaler sees."""
        waiting = self._unanswered
        while waiting:
            job = self._jobs.get(waiting[0][1])
            if job is not None and job.status is Status.IN_QUEUE and job.queued_at == waiting[0][0]:
                break
            waiting.popleft()
        return QueueView(
            ordinary_queued=self._counts[Status.IN_QUEUE, False],
            ordinary_in_progress=self._counts[Status.IN_PROGRESS, False],
            low_queued=self._counts[Status.IN_QUEUE, True],
            low_in_progress=self._counts[Status.IN_PROGRESS, True],
            longest_unanswered_wait_s=now - waiting[0][0] if waiting else None,
        )

    def scaler_answered(self) -> None:
        """The autoscaler has added a worker for the request that has waited longest."""
        if self._unanswered:
            self._unanswered.popleft()

    def ask_again(self) -> None:
        """A worker that had been added is gone without having served: every waiting ordinary request asks anew."""
        queued = [job for job in self._jobs.values() if job.status is Status.IN_QUEUE and not job.low_priority]
        self._unanswered = deque((job.queued_at, job.id) for job in sorted(queued, key=lambda job: job.queued_at))

    def held(self, worker: str) -> frozenset[str]:
        """Jobs that the worker has been given and, as far as is known, still has."""
        return frozenset(self._held.get(worker, ()))

    # --- the client's side ----------------------------------------------------------------------------------------

    def restore(self, restored: Iterable[Job], now: float) -> None:
        """Put back the jobs that an earlier process of the emulator had saved. Those on workers count as heard of now: their workers
        died with that process, so they are lost when the usual time has passed."""
        for job in sorted(restored, key=lambda job: job.seq):
            self._seq = max(self._seq, job.seq)
            self._store(job)
            if job.status is Status.IN_QUEUE:
                self._enqueue(job)
            elif job.status is Status.IN_PROGRESS:
                self._in_progress[job.id] = now

    def submit(self, body: bytes, kind: Kind, now: float) -> Job:
        """Accept a job. Raises UsageError (400)."""
        request = jobs.parse_request(body)
        self._seq += 1
        self.last_request_at = now
        job = jobs.submit(
            request,
            body,
            job_id=jobs.new_id(kind),
            endpoint=self.endpoint,
            kind=kind,
            seq=self._seq,
            execution_timeout_ms=self.settings.execution_timeout_ms,
            now=now,
        )
        self._change(None, job)
        self._enqueue(job)
        return job

    def cancel(self, job: Job, now: float) -> Job:
        """Stop a job, queued or running; a finished one stays as it is."""
        if job.status.terminal:
            return job
        return self._finish(job, jobs.cancel(job, now), stop_worker=job.status is Status.IN_PROGRESS)

    def retry(self, job: Job, now: float) -> Job:
        """Raises UsageError (400) if the job's state does not allow it."""
        again = jobs.retry(job, now)
        self._streams.pop(job.id, None)
        self._change(job, again)
        self._enqueue(again)
        return again

    def reset_ttl(self, job: Job, ttl_ms: int, now: float) -> Job:
        changed = jobs.reset_ttl(job, ttl_ms, now)
        self._change(job, changed)
        return changed

    def purge(self, now: float) -> int:
        """Cancel every queued job; how many they were."""
        queued = [job for job in self._jobs.values() if job.status is Status.IN_QUEUE]
        for job in queued:
            self._finish(job, jobs.cancel(job, now), stop_worker=False)
        return len(queued)

    def close(self, now: float) -> None:
        """The endpoint is deleted: what has not ended is cancelled, and nothing of any job is left."""
        for job in list(self._jobs.values()):
            self._delete(self.cancel(job, now))

    def drain_stream(self, job: Job) -> list[bytes]:
        """Chunks since the last call, each as JSON text."""
        return self._streams.pop(job.id, [])

    def job_waiter(self, job_id: str) -> asyncio.Future[None]:
        """Done when the job has finished or is gone."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._job_waiters.setdefault(job_id, []).append(waiter)
        return waiter

    # --- the worker's side ----------------------------------------------------------------------------------------

    def take(self, worker: str, count: int, now: float) -> list[Job]:
        """Hand out up to `count` jobs."""
        taken: list[Job] = []
        while len(taken) < count and (job := self._next_queued(now)) is not None:
            given = jobs.take(job, worker, now)
            self._change(job, given)
            self._in_progress[job.id] = now
            held = self._held.setdefault(worker, {})
            if not held:
                self._workers.busy_changed(worker, True)
            held[job.id] = now
            taken.append(given)
        return taken

    def taker(self) -> asyncio.Future[None]:
        """A worker's place in the line for the next job: done when it is worth calling `take`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(waiter)
        return waiter

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """The worker no longer waits. If it had been called for a job that is still there, the next in the line is called."""
        if waiter.done() and not waiter.cancelled():
            if self.count(Status.IN_QUEUE):
                self._call_taker()
        else:
            waiter.cancel()

    def done(self, worker: str, job_id: str, body: bytes, now: float) -> int:
        """A result or a progress report; the HTTP status of the answer. The first result of a job counts, whoever sends it."""
        job = self.get(job_id, now)
        try:
            body.decode()  # the output is only passed on, and not looked at otherwise
            result = _RESULT.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return 400
        output = None if isinstance(result.output, msgspec.UnsetType) else bytes(result.output)
        if result.status == Status.IN_PROGRESS and result.error is None:
            if job is None:
                return 404
            if job.status is Status.IN_PROGRESS:
                self._heard(worker, job_id, now)
                self._change(job, jobs.report_progress(job, b"null" if output is None else output))
            return 200
        code = 404 if job is None else 200
        if job is not None and not job.status.terminal:
            if len(body) > jobs.PAYLOAD_LIMIT[job.kind]:
                # as reported by users: 400 to the worker, and the job ends COMPLETED without output
                output, code = None, 400
            error = result.error if result.error is None or isinstance(result.error, str) else msgspec.json.encode(result.error).decode()
            self._finish(job, jobs.finish(job, output=output, error=error, now=now), stop_worker=False)
        if result.stopPod:
            self._workers.stop_wanted(worker, at_once=False)
        self._release(worker, job_id)
        return code

    def stream(self, worker: str, job_id: str, body: bytes, now: float) -> int:
        """A chunk of a generator; the HTTP status of the answer."""
        job = self.get(job_id, now)
        if job is None:
            return 404
        try:
            body.decode()
            chunk = _CHUNK.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return 400
        self._heard(worker, job_id, now)
        if not job.status.terminal:
            self._streams.setdefault(job_id, []).extend(_split(chunk))
        return 200

    def ping(self, worker: str, job_ids: Iterable[str], now: float) -> None:
        """The worker says which jobs it has."""
        named = set(job_ids)
        for job_id in named:
            self._heard(worker, job_id, now)
        for job_id in [job_id for job_id in self._held.get(worker, ()) if job_id not in named]:
            job = self._jobs.get(job_id)
            # a live job that a ping does not name may have been handed out while the ping was under way: only time loses it
            if job is None or job.status is not Status.IN_PROGRESS or job.worker != worker:
                self._release(worker, job_id)

    def stops_for(self, worker: str) -> list[str]:
        """Jobs that the worker is to stop, since the last call."""
        return self._stops.pop(worker, [])

    def stop_waiter(self, worker: str) -> asyncio.Future[None]:
        """Done when there is a job for this worker to stop."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop_waiters.setdefault(worker, []).append(waiter)
        return waiter

    def worker_gone(self, worker: str) -> None:
        """The worker's process has ended. Its jobs stay IN_PROGRESS until the time for pings is over, as on the platform."""
        self._held.pop(worker, None)
        self._stops.pop(worker, None)
        self.release_polls(worker)

    def release_polls(self, worker: str) -> None:
        """End the worker's stop poll, so that it can leave."""
        for waiter in self._stop_waiters.pop(worker, []):
            _resolve(waiter)

    # --- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due: ttl and retention, execution timeouts, jobs that their worker no longer names."""
        while self._timers and self._timers[0][0] <= now:
            _, job_id = heapq.heappop(self._timers)
            job = self._jobs.get(job_id)
            if job is None:
                continue
            deadline = job.execution_deadline
            if now >= job.delete_at:
                self._delete(job)
            elif deadline is not None and now >= deadline:
                exceeded = jobs.exceed(job, self.settings.exceeded_status, now)
                self._finish(job, exceeded, stop_worker=True)
                if self.settings.exceeded_stops_worker and job.worker is not None:
                    self._workers.stop_wanted(job.worker, at_once=True)
        patience = self.settings.lost_after_s
        for job_id in [job_id for job_id, heard in self._in_progress.items() if now - heard >= patience]:
            self._lose(self._jobs[job_id], now)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _lose(self, job: Job, now: float) -> None:
        holder = job.worker
        lost = jobs.lose(job, now, self.settings.redeliveries)
        if lost.status is Status.IN_QUEUE:
            self._change(job, lost)
            self.retried += 1
            self._sink.counted(self.endpoint, self.completed, self.failed, self.retried)
            self._enqueue(lost, first=True)
        else:
            self._finish(job, lost, stop_worker=False)
        if holder is not None:
            self._release(holder, job.id)

    def _next_queued(self, now: float) -> Job | None:
        ordinary, low = self._head(False, now), self._head(True, now)
        if ordinary is None or low is None:
            job = ordinary or low
        elif self.settings.ordinary_overtakes:
            job = ordinary
        else:
            job = min(ordinary, low, key=lambda job: job.seq)
        if job is not None:
            self._queues[job.low_priority].popleft()
        return job

    def _head(self, low: bool, now: float) -> Job | None:
        queue = self._queues[low]
        while queue:
            job = self.get(queue[0], now)
            if job is not None and job.status is Status.IN_QUEUE:
                return job
            queue.popleft()
        return None

    def _enqueue(self, job: Job, *, first: bool = False) -> None:
        queue = self._queues[job.low_priority]
        if first:
            queue.appendleft(job.id)
        else:
            queue.append(job.id)
        if not job.low_priority:
            self._unanswered.append((job.queued_at, job.id))
        self._call_taker()

    def _call_taker(self) -> None:
        while self._takers:
            waiter = self._takers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _heard(self, worker: str, job_id: str, now: float) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.worker == worker and job_id in self._in_progress:
            self._in_progress[job_id] = now

    def _release(self, worker: str, job_id: str) -> None:
        held = self._held.get(worker)
        if held is not None and held.pop(job_id, None) is not None and not held:
            self._workers.busy_changed(worker, False)

    def _finish(self, before: Job, after: Job, *, stop_worker: bool) -> Job:
        self._change(before, after)
        if after.status is Status.COMPLETED:
            self.completed += 1
        elif after.status in (Status.FAILED, Status.TIMED_OUT):
            self.failed += 1
        self._sink.counted(self.endpoint, self.completed, self.failed, self.retried)
        if stop_worker and before.worker is not None:
            self._stops.setdefault(before.worker, []).append(before.id)
            for waiter in self._stop_waiters.pop(before.worker, []):
                _resolve(waiter)
        self._sink.finished(after)
        self._wake_job_waiters(after.id)
        return after

    def _change(self, before: Job | None, after: Job) -> None:
        if before is not None:
            self._counts[before.status, before.low_priority] -= 1
        if after.status is not Status.IN_PROGRESS:
            self._in_progress.pop(after.id, None)
        self._store(after, pushed=None if before is None else _due(before))
        self._sink.saved(after)

    def _store(self, job: Job, pushed: float | None = None) -> None:
        self._jobs[job.id] = job
        self._counts[job.status, job.low_priority] += 1
        due = _due(job)
        if due != pushed:
            heapq.heappush(self._timers, (due, job.id))

    def _delete(self, job: Job) -> None:
        del self._jobs[job.id]
        self._counts[job.status, job.low_priority] -= 1
        self._in_progress.pop(job.id, None)
        self._streams.pop(job.id, None)
        self._sink.deleted(job)
        self._wake_job_waiters(job.id)

    def _wake_job_waiters(self, job_id: str) -> None:
        for waiter in self._job_waiters.pop(job_id, []):
            _resolve(waiter)


def _due(job: Job) -> float:
    deadline = job.execution_deadline
    return job.delete_at if deadline is None else min(job.delete_at, deadline)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _split(chunk: _Chunk) -> list[bytes]:
    parts: list[Any] = [chunk.output]
    if isinstance(chunk.output, str) and len(chunk.output) > STREAM_CHUNK_LIMIT:
        parts = [chunk.output[at : at + STREAM_CHUNK_LIMIT] for at in range(0, len(chunk.output), STREAM_CHUNK_LIMIT)]
    entries = []
    for part in parts:
        entry: dict[str, Any] = {"output": part}
        if not isinstance(chunk.metrics, msgspec.UnsetType):
            entry["metrics"] = chunk.metrics
        entries.append(msgspec.json.encode(entry))
    return entries
