"""worker: RunPod's job in, summary out. Touches the event loop, signals, a temporary folder, and a Store for each job's credentials.

The handler only waits: an execution runs as its own task, shielded, so that the SDK's cancellation (job-stop) stops it gently, with what
is finished kept as pieces and no half commit. Whatever goes wrong becomes {"error": one sentence}, which fails the job without a retry;
only a dead engine ends the process, after every execution in it has kept its pieces and RunPod has taken the answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from contract.errors import ContractError, NightbatchError, StoreError, UsageError
from contract.keys import RunUri
from contract.models import REFUSAL, Control, JobInput, S3Config, StoreMode, convert, decode
from contract.store import S3Store, Store, get_or_none
from worker.engine.base import Engine, EngineDied
from worker.execution import Clock, Identity, PiecePolicy, PlanMemory, Stop, World, execute
from worker.redact import Redactor
from worker.settings import Settings

log = logging.getLogger("nightbatch.worker")

CONTROL_S: Final = 30.0
"""How often a running execution looks at control.json (PROTOCOL.md, Cancel)."""
GRACE_S: Final = 60.0
"""How long a stopped execution may take to keep its pieces."""
ENGINE_DEAD: Final = 70
"""Exit code of a worker whose engine died."""
ANSWER_S: Final = 10.0
"""How long the process of a dead engine waits for RunPod to take its answers. The SDK's three tries fit into it, if they are answered."""
_LAST_RESORT_S: Final = 5.0
"""So much later a thread ends the process, should the event loop be stuck."""
_STORES: Final = 4


class WatchedEngine(Engine, Protocol):
    """An engine that says how long its current step has taken, and that can be given up from outside."""

    def step_seconds(self) -> float: ...
    def give_up(self, reason: str) -> None: ...


class OwnMode:
    """A store that is shared, with the mode of one run's plan."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.mode: StoreMode = store.mode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Monotonic:
    """This machine's clock, for durations."""

    def monotonic(self) -> float:
        return time.monotonic()


class Worker:
    """All executions of one worker process. `leave` ends the process at once; it does not return. It is called once at most."""

    def __init__(
        self,
        settings: Settings,
        engine: WatchedEngine,
        *,
        identity: Identity,
        redactor: Redactor,
        leave: Callable[[int], Any],
        make_store: Callable[[S3Config], Store] = S3Store,
        clock: Clock | None = None,
        control_s: float = CONTROL_S,
        pieces: PiecePolicy | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._identity = identity
        self._redactor = redactor
        self._leave = leave
        self._make_store = make_store
        self._clock: Clock = clock or Monotonic()
        self._control_s = control_s
        self._pieces = pieces or PiecePolicy()
        self._plans = PlanMemory()
        self._stores: OrderedDict[tuple[str, ...], Store] = OrderedDict()
        self._running: dict[asyncio.Task[dict[str, Any]], Stop] = {}
        self._load_s: float | None = engine.info.load_s
        self._signals = False
        self._ending = False
        self._answer_s = answer_s
        self._callers: set[asyncio.Task[Any]] = set()
        self._dead = False
        self._kept = asyncio.Event()
        self._leaving: asyncio.Task[None] | None = None
        self._left = threading.Lock()

    # --- one job -----------------------------------------------------------------------------------------------------------------

    async def handle(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The runpod SDK's handler. Cancelling it stops the execution and waits until its pieces are kept.

        The task that awaits it is taken to post the answer and then to end, as the SDK's does (rp_scale.handle_job). When the engine has
        died, answers wait for the pieces of the other executions, so that the SDK has no free slot to take another job for.
        """
        self._watch_signals()
        caller = asyncio.current_task()
        assert caller is not None
        if self._dead:
            # Begun here it would be a death of its shard. Without an answer RunPod gives it to another worker when this one is gone.
            log.warning("job %s came to a dead engine; it is left to RunPod to give to another worker", job.get("id"))
            await asyncio.get_running_loop().create_future()
        self._callers.add(caller)
        caller.add_done_callback(self._callers.discard)
        stop = Stop()
        if self._ending:
            stop.set("sigterm")
        task = asyncio.ensure_future(self._answer(job, stop))
        self._running[task] = stop
        task.add_done_callback(self._over)
        try:
            answer = await asyncio.shield(task)
            if self._dead:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._kept.wait(), GRACE_S)
                # The SDK makes it `stopPod`: RunPod sends this worker nothing more and starts a fresh one.
                answer = {**answer, "refresh_worker": True}
            return answer
        except asyncio.CancelledError:
            stop.set("cancelled")
            await asyncio.wait([task], timeout=GRACE_S)
            raise

    async def _answer(self, job: Mapping[str, Any], stop: Stop) -> dict[str, Any]:
        job_id = str(job.get("id", ""))
        try:
            request = self._read(job)
            store = await self._store(request[1])
            with tempfile.TemporaryDirectory(prefix="nightbatch-") as folder:
                world = World(
                    store=cast(Store, OwnMode(store)),
                    engine=self._engine,
                    clock=self._clock,
                    folder=Path(folder),
                    identity=self._identity,
                    take_load_s=self._take_load_s,
                    peak_rss=peak_rss,
                    pieces=self._pieces,
                    plans=self._plans,
                )
                watch = asyncio.ensure_future(self._watch(request[0], store, stop))
                watch.add_done_callback(lambda done: watched(done, stop))
                try:
                    summary = await execute(request[0], job_id, world, stop)
                finally:
                    watch.cancel()
            counts = f"{summary.ok} ok, {summary.failed} failed"
            log.info("shard %s, attempt %d: %s, %s", summary.shard, summary.attempt, summary.outcome, counts)
            return cast("dict[str, Any]", msgspec.to_builtins(summary))
        except EngineDied as error:
            self._dead = True
            log.critical("%s; the process ends when the pieces of its shards are kept and RunPod has the answers", error)
            return {"error": self._redactor.clean(f"{error}; finished rows were kept as pieces.")}
        except UsageError as error:  # the job itself, a ContractError mostly
            return self._failed(f"{REFUSAL}{error}")
        except NightbatchError as error:
            return self._failed(str(error))
        except Exception as error:  # a fault of ours: the log has the traceback, through the redactor; the answer is one sentence
            log.error("an execution failed unexpectedly", exc_info=error)
            return self._failed(f"the worker failed unexpectedly ({type(error).__name__}: {error}).")

    def _failed(self, sentence: str) -> dict[str, Any]:
        clean = self._redactor.clean(sentence)
        log.error("%s", clean)
        return {"error": clean}

    def _read(self, job: Mapping[str, Any]) -> tuple[JobInput, S3Config]:
        """The job, strictly. Raises ContractError with one sentence that names the field."""
        given = job.get("s3Config")
        if isinstance(given, Mapping):
            # Whatever else it holds may be a secret under a name that is not ours.
            self._redactor.add(v for name, v in given.items() if isinstance(v, str) and name not in ("bucketName", "endpointUrl"))
        if "input" not in job:
            raise ContractError("`input` is missing.", where="job")
        made: JobInput = convert(job["input"], JobInput, where="input")
        if given is None:
            raise ContractError(
                "`s3Config` is missing.", where="job", fix="Send {accessId, accessSecret, bucketName, endpointUrl} beside `input`."
            )
        keys: S3Config = convert(given, S3Config, where="s3Config")
        for name in ("accessId", "accessSecret", "bucketName", "endpointUrl"):
            if not getattr(keys, name):
                raise ContractError(f"`{name}` is empty.", where="s3Config")
        if keys.accessId.startswith("ASIA"):
            raise ContractError(
                "`accessId` belongs to temporary keys, and s3Config has no field for their session token.",
                where="s3Config",
                fix="Use permanent keys.",
            )
        if problem := self._settings.serves(made.task.model, made.task.revision):
            raise ContractError(problem, where="job")
        return made, keys

    async def _store(self, keys: S3Config) -> Store:
        """A store for these keys; a few are kept, since making a client takes longer than answering `already`."""
        name = (keys.endpointUrl, keys.bucketName, keys.accessId, keys.accessSecret)
        if name not in self._stores:
            self._stores[name] = self._make_store(keys)
            if len(self._stores) > _STORES and len(self._running) <= 1:
                _, oldest = self._stores.popitem(last=False)
                await oldest.close()
        self._stores.move_to_end(name)
        return self._stores[name]

    def _take_load_s(self) -> float:
        load_s, self._load_s = self._load_s, None
        return load_s or 0.0

    # --- what stops an execution -------------------------------------------------------------------------------------------------

    async def _watch(self, job: JobInput, store: Store, stop: Stop) -> None:
        """The deadline, control.json, and an engine step that never ends."""
        key = RunUri.parse(job.run).keys.control()
        ends = self._clock.monotonic() + job.deadline_s
        looked = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now >= ends:
                stop.set("deadline")
                return
            if self._engine.step_seconds() > self._settings.stall_s:
                # A step that hangs cannot be aborted; what finished before it is kept, and the process goes.
                self._engine.give_up(f"a step has not ended for {self._settings.stall_s:.0f} s")
                return
            if now - looked >= self._control_s:
                looked = now
                if await self._stopped(job, store, key):
                    stop.set("stop")
                    return
            await asyncio.sleep(max(0.01, min(ends - now, self._control_s, 1.0)))

    async def _stopped(self, job: JobInput, store: Store, key: str) -> bool:
        try:
            blob = await get_or_none(store, key)
            if blob is None:
                return False
            control: Control = decode(blob.data, Control, where=key)
        except (StoreError, ContractError) as error:
            log.warning("control.json could not be read (%s); looking again in %.0f s", error, self._control_s)
            return False
        return control.plan == job.plan and control.epoch > job.epoch and control.mode == "stop"

    def _over(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._running.pop(task, None)
        if self._dead and not self._running and self._leaving is None:
            self._leaving = asyncio.ensure_future(self._leave_when_answered(set(self._callers)))

    async def _leave_when_answered(self, callers: set[asyncio.Task[Any]]) -> None:
        """End the process when the SDK has posted the answers, or has not managed to. Also when the SDK's loop ends meanwhile."""
        last_resort = threading.Timer(self._answer_s + _LAST_RESORT_S, self._go)
        last_resort.daemon = True
        last_resort.start()
        self._kept.set()
        try:
            if callers:
                _, unanswered = await asyncio.wait(callers, timeout=self._answer_s)
                if unanswered:
                    log.warning("RunPod did not take %d answers within %.0f s; the process ends without", len(unanswered), self._answer_s)
        finally:
            last_resort.cancel()
            self._go()

    def _go(self) -> None:
        if self._left.acquire(blocking=False):
            self._leave(ENGINE_DEAD)

    def _watch_signals(self) -> None:
        """SIGTERM: stop every execution, then do what the SDK does (finish, answer, exit). Its handler is there once a job has come."""
        if self._signals:
            return
        self._signals = True
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.getsignal(number)

            def handler(signum: int, frame: Any, previous: Any = previous) -> None:
                loop.call_soon_threadsafe(self.stop_all)
                if callable(previous):
                    previous(signum, frame)

            try:
                signal.signal(number, handler)
            except ValueError:
                log.warning("signals cannot be watched outside the main thread; SIGTERM will not keep pieces")
                return

    def stop_all(self) -> None:
        """Keep pieces and answer `partial`, now and for every job that still comes."""
        self._ending = True
        for stop in list(self._running.values()):
            stop.set("sigterm")


def watched(watch: asyncio.Future[None], stop: Stop) -> None:
    """An execution that nobody watches has no deadline and cannot be stopped: it ends here, and its finished rows are kept."""
    if not watch.cancelled() and (error := watch.exception()) is not None:
        log.error("the watch over an execution failed unexpectedly; the execution is stopped", exc_info=error)
        stop.set("unwatched")


def peak_rss() -> int:
    """Bytes: the largest peak among this process and those below it (in multiprocess mode the model is in one of them)."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max([peak, *_peaks_below(os.getpid())])


def _peaks_below(pid: int) -> list[int]:
    """VmHWM of every process below `pid`. Linux only; elsewhere, and where one has just ended, nothing is found."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    found: list[int] = []
    for child in children:
        try:
            status = Path(f"/proc/{child}/status").read_text()
        except OSError:
            continue
        found += [1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
        found += _peaks_below(child)
    return found
