# tests/worker: the thread that owns an engine core: batching, isolation, aborting, dying. The core here is scripted.
from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from contract.rows import RowError
from worker.engine.base import (
    Batch,
    Choice,
    Embedded,
    EmbedRequest,
    EngineDied,
    EngineInfo,
    EngineRequest,
    EngineResult,
    Generated,
    GenerateRequest,
    Refused,
    Sampling,
    TextPrompt,
)
from worker.engine.thread import SOLO_RETRIES, ThreadedEngine


@dataclass
class ScriptedCore:
    """Finishes `batch_size` rows a step, last first. `gate` holds a step back until a test opens it."""

    batch_size: int = 4
    bad: frozenset[int] = frozenset()
    nan: dict[int, int] = field(default_factory=dict)
    """Row -> how many times its vector is not finite."""
    dies_at: int | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    stepping: threading.Event = field(default_factory=threading.Event)
    threads: set[int] = field(default_factory=set)
    company: list[tuple[int, ...]] = field(default_factory=list)
    """Rows that were in the core at each step."""
    aborted: list[str] = field(default_factory=list)
    closed: bool = False
    info: EngineInfo = field(default_factory=lambda: EngineInfo("generate", "scripted", 64, "float32", 0.0))

    def __post_init__(self) -> None:
        self.flying: dict[str, EngineRequest] = {}
        self.gate.set()
        self.steps = 0

    def add(self, rows: Sequence[tuple[str, EngineRequest]]) -> list[tuple[str, Refused]]:
        self.threads.add(threading.get_ident())
        refused = []
        for key, row in rows:
            assert key not in self.flying, "an internal name is used once"
            if row.index in self.bad:
                refused.append((key, Refused(row.index, RowError(code="context_length_exceeded", message="too long"))))
            else:
                self.flying[key] = row
        return refused

    def step(self) -> list[tuple[str, EngineResult]]:
        self.threads.add(threading.get_ident())
        self.stepping.set()
        assert self.gate.wait(20), "the test never opened the gate"
        self.steps += 1
        if self.steps == self.dies_at:
            raise RuntimeError("CUDA error: device-side assert")
        self.company.append(tuple(row.index for row in self.flying.values()))
        keys = list(self.flying)[: self.batch_size][::-1]
        return [(key, self._result(self.flying.pop(key))) for key in keys]

    def _result(self, row: EngineRequest) -> EngineResult:
        assert isinstance(row.prompt, TextPrompt)
        if isinstance(row, EmbedRequest):
            left = self.nan.get(row.index, 0)
            self.nan[row.index] = left - 1
            return Embedded(row.index, 1, np.array([np.nan if left > 0 else row.index, 1.0], dtype=np.float32))
        return Generated(row.index, 1, (Choice(0, row.prompt.text, 1, "stop"),))

    def abort(self, keys: Sequence[str]) -> None:
        self.threads.add(threading.get_ident())
        self.aborted += keys
        for key in keys:
            del self.flying[key]

    def unfinished(self) -> int:
        return len(self.flying)

    def close(self) -> None:
        self.closed = True


def generate(count: int, label: str = "row") -> list[GenerateRequest | Refused]:
    return [GenerateRequest(n, TextPrompt(f"{label} {n}"), Sampling()) for n in range(count)]


async def collect(batch: Batch) -> list[EngineResult]:
    return [result async for results in batch for result in results]


async def collect_into(found: list[EngineResult], batch: Batch) -> None:
    async for results in batch:
        found += results


@pytest.fixture
async def core() -> ScriptedCore:
    return ScriptedCore()


@pytest.fixture
async def engine(core: ScriptedCore) -> AsyncIterator[ThreadedEngine]:
    made = ThreadedEngine(core)
    yield made
    core.gate.set()
    await asyncio.to_thread(made.close)


async def test_every_row_of_a_batch_comes_back_once(engine: ThreadedEngine) -> None:
    results = await collect(engine.submit(generate(100)))
    assert sorted(result.index for result in results) == list(range(100))
    assert all(isinstance(r, Generated) and r.choices[0].text == f"row {r.index}" for r in results)


async def test_one_thread_alone_touches_the_core(engine: ThreadedEngine, core: ScriptedCore) -> None:
    await asyncio.gather(*(collect(engine.submit(generate(30))) for _ in range(3)))
    assert len(core.threads) == 1
    assert threading.get_ident() not in core.threads


async def test_two_shards_with_the_same_indices_do_not_mix(engine: ThreadedEngine) -> None:
    left, right = await asyncio.gather(collect(engine.submit(generate(50, "left"))), collect(engine.submit(generate(50, "right"))))
    for label, results in (("left", left), ("right", right)):
        assert {r.index: r.choices[0].text for r in results if isinstance(r, Generated)} == {n: f"{label} {n}" for n in range(50)}


async def test_a_bad_row_is_refused_alone_wherever_it_is_found(engine: ThreadedEngine, core: ScriptedCore) -> None:
    core.bad = frozenset({3})
    rows = generate(10)
    rows[5] = Refused(5, RowError(code="empty_prompt", message="empty"))
    results = {result.index: result for result in await collect(engine.submit(rows))}
    assert {n: r.error.code for n, r in results.items() if isinstance(r, Refused)} == {3: "context_length_exceeded", 5: "empty_prompt"}
    assert len(results) == 10


async def test_an_empty_batch_ends_at_once(engine: ThreadedEngine) -> None:
    assert await collect(engine.submit([])) == []


async def test_rows_are_taken_from_the_source_as_the_engine_needs_them(engine: ThreadedEngine, core: ScriptedCore) -> None:
    taken = 0

    def source() -> Iterator[GenerateRequest]:
        nonlocal taken
        for n in range(1000):
            taken += 1
            yield GenerateRequest(n, TextPrompt("x"), Sampling())

    core.gate.clear()
    batch = engine.submit(source())
    await asyncio.to_thread(core.stepping.wait, 10)
    assert 8 <= taken <= 80, "twice the batch size, in chunks of 64"
    core.gate.set()
    assert len(await collect(batch)) == 1000


async def test_an_abort_takes_one_shard_out_between_steps_and_leaves_the_other(engine: ThreadedEngine, core: ScriptedCore) -> None:
    core.gate.clear()
    first, second = engine.submit(generate(40, "first")), engine.submit(generate(40, "second"))
    await asyncio.to_thread(core.stepping.wait, 10)
    first.abort()
    first.abort()
    core.gate.set()
    results, others = await collect(first), await collect(second)
    assert len(results) < 40
    assert len(others) == 40
    assert core.aborted
    assert core.flying == {}


async def test_an_exception_in_a_step_gives_out_what_had_finished_and_then_the_engine_is_dead(
    core: ScriptedCore, engine: ThreadedEngine
) -> None:
    core.dies_at = 3
    batch = engine.submit(generate(40))
    finished: list[EngineResult] = []
    with pytest.raises(EngineDied, match="device-side assert"):
        await collect_into(finished, batch)
    assert len(finished) == 8
    with pytest.raises(EngineDied):
        await collect(engine.submit(generate(1)))
    assert engine.died is not None


async def test_an_exception_in_the_source_of_rows_is_the_end_of_the_engine_not_a_hang(engine: ThreadedEngine) -> None:
    def source() -> Iterator[GenerateRequest]:
        yield GenerateRequest(0, TextPrompt("x"), Sampling())
        raise ZeroDivisionError

    with pytest.raises(EngineDied, match="ZeroDivisionError"):
        await collect(engine.submit(source()))


async def test_a_vector_with_nan_is_computed_once_more_alone(engine: ThreadedEngine, core: ScriptedCore) -> None:
    core.nan = {5: 1}
    results = await collect(engine.submit([EmbedRequest(n, TextPrompt("x")) for n in range(20)]))
    assert sorted(r.index for r in results if isinstance(r, Embedded)) == list(range(20))
    assert core.company[-1] == (5,)


async def test_a_vector_that_stays_nan_fails_its_row_alone(engine: ThreadedEngine, core: ScriptedCore) -> None:
    core.nan = {5: 9}
    results = {r.index: r for r in await collect(engine.submit([EmbedRequest(n, TextPrompt("x")) for n in range(8)]))}
    failed = results[5]
    assert isinstance(failed, Refused)
    assert failed.error.code == "nan_vector"
    assert all(isinstance(results[n], Embedded) for n in range(8) if n != 5)


async def test_a_model_that_gives_only_nan_is_not_computed_alone_row_by_row(engine: ThreadedEngine, core: ScriptedCore) -> None:
    core.nan = dict.fromkeys(range(200), 9)
    results = await collect(engine.submit([EmbedRequest(n, TextPrompt("x")) for n in range(200)]))
    assert all(isinstance(r, Refused) and r.error.code == "nan_vector" for r in results)
    assert len(results) == 200
    assert sum(len(rows) == 1 for rows in core.company) <= SOLO_RETRIES + 1


async def test_a_step_that_hangs_can_be_given_up_from_outside(engine: ThreadedEngine, core: ScriptedCore) -> None:
    core.gate.clear()
    batch = engine.submit(generate(4))
    await asyncio.to_thread(core.stepping.wait, 10)
    assert engine.step_seconds() >= 0.0
    engine.give_up("no step for 600 s")
    with pytest.raises(EngineDied, match="600 s"):
        await collect(batch)


async def test_closing_ends_what_is_in_flight(core: ScriptedCore) -> None:
    engine = ThreadedEngine(core)
    assert len(await collect(engine.submit(generate(3)))) == 3
    await asyncio.to_thread(engine.close)
    assert core.closed
    with pytest.raises(EngineDied, match="closed"):
        await collect(engine.submit(generate(1)))
