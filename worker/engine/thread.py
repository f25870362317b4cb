"""worker/engine: one thread that owns an engine core: nobody else adds, steps or aborts. Handlers only await. No vLLM here.

Between two steps the thread tops the core up to twice its batch size, so continuous batching never runs dry while a shard still has
rows, and rendering and tokenizing are paid in chunks. An exception out of a step is the engine's death (in one process vLLM's next
call would hang for ever): batches in flight get what had finished, then EngineDied, and the process is expected to exit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, Protocol

from contract.rows import RowError
from worker.engine.base import Batch, Embedded, EngineDied, EngineInfo, EngineRequest, EngineResult, Refused

log = logging.getLogger("nightbatch.engine")

CHUNK: Final = 64
"""Rows handed to the core at once: large enough that tokenizing is batched, small enough that a chunk takes milliseconds."""
SOLO_RETRIES: Final = 16
"""Rows of one shard whose vector was not finite that are computed again alone; a model that fails more often than that is broken."""


class Core(Protocol):
    """A synchronous engine, used by one thread. Keys are internal request names: one per row in flight, never a custom_id."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def batch_size(self) -> int:
        """Rows that one step can work on."""
        ...

    def add(self, rows: Sequence[tuple[str, EngineRequest]]) -> list[tuple[str, Refused]]:
        """Enqueue rows; those that cannot run come back at once and the rest are in."""
        ...

    def step(self) -> list[tuple[str, EngineResult]]:
        """Advance everything by one step; what finished. Any exception is fatal."""
        ...

    def abort(self, keys: Sequence[str]) -> None: ...

    def unfinished(self) -> int: ...

    def close(self) -> None: ...


class _Batch:
    """One shard: its remaining requests, what is in flight, and the queue to the event loop that submitted it."""

    def __init__(self, owner: ThreadedEngine, number: int, requests: Iterable[EngineRequest | Refused]) -> None:
        self.number = number
        self.source: Iterator[EngineRequest | Refused] = iter(requests)
        self.exhausted = False
        self.aborted = False
        self.flying: dict[str, EngineRequest] = {}
        self.retried: set[int] = set()
        self.solo: deque[EngineRequest] = deque()
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[list[EngineResult] | BaseException | None] = asyncio.Queue()

    # engine thread
    def give(self, results: list[EngineResult]) -> None:
        if results:
            self._post(results)

    def end(self, error: BaseException | None = None) -> None:
        self._post(error)

    def _post(self, item: list[EngineResult] | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:
            # The loop is closed: nobody waits for this batch any more.
            self.aborted = True

    @property
    def finished(self) -> bool:
        return self.exhausted and not self.flying and not self.solo

    # event loop
    def __aiter__(self) -> AsyncIterator[list[EngineResult]]:
        return self._results()

    async def _results(self) -> AsyncIterator[list[EngineResult]]:
        while True:
            item = await self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def abort(self) -> None:
        self._owner.abort(self)


class ThreadedEngine:
    """An Engine over a Core. `start` makes the core inside the thread, so that one thread alone ever touches it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._wake = threading.Condition()
        self._new: list[_Batch] = []
        self._aborting: list[_Batch] = []
        self._stopping = False
        self._numbers = itertools.count()
        self._died: EngineDied | None = None
        self._busy_since: float | None = None
        self._batches: list[_Batch] = []
        self._owners: dict[str, _Batch] = {}
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._core.info

    @property
    def died(self) -> EngineDied | None:
        return self._died

    def step_seconds(self) -> float:
        """How long the step that is running now has been running; 0 between steps. A watchdog reads it."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def submit(self, requests: Iterable[EngineRequest | Refused]) -> Batch:
        batch = _Batch(self, next(self._numbers), requests)
        with self._wake:
            if self._died is not None:
                batch.end(self._died)
            elif self._stopping:
                batch.end(EngineDied("the engine has been closed"))
            else:
                self._new.append(batch)
                self._wake.notify()
        return batch

    def abort(self, batch: _Batch) -> None:
        with self._wake:
            if not batch.aborted:
                batch.aborted = True
                self._aborting.append(batch)
                self._wake.notify()

    def give_up(self, reason: str) -> None:
        """End every batch with EngineDied although the thread hangs in a step; results of that step are dropped."""
        log.error("the engine is given up: %s", reason)
        self._die(EngineDied(f"the engine was given up: {reason}"))

    def close(self, timeout: float = 30.0) -> None:
        """Stop the thread and the core; batches in flight end with EngineDied."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    # --- engine thread -----------------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._collect():
                self._top_up()
                if self._core.unfinished():
                    self._busy_since = time.monotonic()
                    done = self._core.step()
                    self._busy_since = None
                    self._hand_out(done)
                self._retire()
        except BaseException as error:  # whatever came out of the core, it is dead: say so to everybody and let the process end
            log.error("the engine died: %s: %s", type(error).__name__, error)
            self._die(EngineDied(f"the engine died: {type(error).__name__}: {error}"))
        else:
            self._die(EngineDied("the engine has been closed"))
            self._core.close()

    def _die(self, error: EngineDied) -> None:
        with self._wake:
            self._died = self._died or error
            self._busy_since = None
            waiting = self._batches + self._new
            self._batches, self._new = [], []
        for batch in waiting:
            batch.end(error)

    def _collect(self) -> bool:
        """Take in new and aborted batches; sleep while there is nothing to do. False: stop."""
        with self._wake:
            while not (self._new or self._aborting or self._stopping or self._batches):
                self._wake.wait()
            if self._stopping:
                return False
            self._batches += self._new
            aborting, self._new, self._aborting = self._aborting, [], []
        for batch in aborting:
            keys = list(batch.flying)
            if keys:
                self._core.abort(keys)
            for key in keys:
                self._owners.pop(key, None)
            batch.flying.clear()
            batch.solo.clear()
            batch.exhausted = True
        return True

    def _top_up(self) -> None:
        core = self._core
        if any(batch.solo for batch in self._batches):
            # A row whose vector was not finite is computed once more with nothing beside it: let the core run dry first.
            if not core.unfinished():
                batch = next(b for b in self._batches if b.solo)
                self._add(batch, [batch.solo.popleft()])
            return
        target = 2 * core.batch_size
        for batch in self._batches:
            while not batch.exhausted and core.unfinished() < target:
                chunk = list(itertools.islice(batch.source, CHUNK))
                batch.exhausted = len(chunk) < CHUNK
                batch.give([item for item in chunk if isinstance(item, Refused)])
                self._add(batch, [item for item in chunk if not isinstance(item, Refused)])

    def _add(self, batch: _Batch, requests: list[EngineRequest]) -> None:
        if not requests:
            return
        rows = []
        for request in requests:
            key = f"{batch.number}-{request.index}-{1 if request.index in batch.retried else 0}"
            batch.flying[key] = request
            self._owners[key] = batch
            rows.append((key, request))
        refused = self._core.add(rows)
        for key, _ in refused:
            batch.flying.pop(key)
            self._owners.pop(key)
        batch.give([result for _, result in refused])

    def _hand_out(self, done: list[tuple[str, EngineResult]]) -> None:
        given: dict[int, tuple[_Batch, list[EngineResult]]] = {}
        for key, result in done:
            batch = self._owners.pop(key, None)
            if batch is None:
                continue  # aborted in the meantime
            request = batch.flying.pop(key)
            if isinstance(result, Embedded) and not _finite(result):
                if request.index not in batch.retried and len(batch.retried) < SOLO_RETRIES:
                    batch.retried.add(request.index)
                    batch.solo.append(request)
                    continue
                result = Refused(
                    request.index,
                    RowError(code="nan_vector", message="the model gave a vector with NaN or infinity, also when computed alone."),
                    result.prompt_tokens,
                )
            given.setdefault(batch.number, (batch, []))[1].append(result)
        for batch, results in given.values():
            batch.give(results)

    def _retire(self) -> None:
        if any(batch.finished for batch in self._batches):
            for batch in self._batches:
                if batch.finished:
                    batch.end()
            self._batches = [batch for batch in self._batches if not batch.finished]


def _finite(result: Embedded) -> bool:
    import numpy as np

    return bool(np.isfinite(result.vector).all())
