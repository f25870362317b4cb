"""worker/engine: an engine without a model, for tests: answers from a script, on the event loop, and fails where it is told to."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from contract.rows import RowError
from worker.engine.base import (
    Batch,
    ChatPrompt,
    Choice,
    Embedded,
    EmbedRequest,
    EngineDied,
    EngineInfo,
    EngineKind,
    EngineRequest,
    EngineResult,
    Generated,
    Refused,
    TextPrompt,
)

Pause = Callable[[], Awaitable[None]]


async def _at_once() -> None:
    return None


@dataclass
class FakeEngine:
    """Answers every row with text or numbers that follow from its prompt alone.

    `group`: rows a step finishes. `reverse`: give them in reverse order. `dies_after`: rows after which the engine dies. `loses`: rows that
    never get a result. `twice`: rows that get two. `refuses`: row -> error. `pause` is awaited before each step: a test's place to wait, to
    stop, or to let others run. `submitted` counts requests that reached the engine: an execution that must not compute leaves it at 0.
    """

    kind: EngineKind = "generate"
    model: str = "fake"
    dimensions: int = 4
    group: int = 4
    reverse: bool = False
    dies_after: int | None = None
    loses: frozenset[int] = frozenset()
    twice: frozenset[int] = frozenset()
    refuses: dict[int, RowError] = field(default_factory=dict)
    pause: Pause = _at_once
    load_s: float = 0.0
    submitted: int = 0
    step_s: float = 0.0
    given_up: str | None = None

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(self.kind, self.model, 512, "float32", self.load_s, {"fake": "1"})

    def step_seconds(self) -> float:
        return self.step_s

    def give_up(self, reason: str) -> None:
        self.given_up = reason

    def submit(self, requests: Iterable[EngineRequest | Refused]) -> Batch:
        return _FakeBatch(self, requests)

    def result(self, request: EngineRequest) -> EngineResult:
        """What a row's answer is."""
        if request.index in self.refuses:
            return Refused(request.index, self.refuses[request.index])
        prompt = request.prompt
        text = prompt.text if isinstance(prompt, TextPrompt) else repr(prompt.messages if isinstance(prompt, ChatPrompt) else prompt.tokens)
        digest = hashlib.sha256(text.encode()).digest()
        if isinstance(request, EmbedRequest):
            import numpy as np

            size = request.dimensions or self.dimensions
            vector = np.frombuffer((digest * (size // 8 + 1))[: 4 * size], dtype="<u4").astype(np.float32) / np.float32(2**32)
            return Embedded(request.index, len(text.split()), vector)
        choices = tuple(Choice(n, f"echo {text}", len(text.split()) + 1, "stop") for n in range(request.sampling.n))
        return Generated(request.index, len(text.split()), choices, structured=request.sampling.structured is not None)


class _FakeBatch:
    def __init__(self, engine: FakeEngine, requests: Iterable[EngineRequest | Refused]) -> None:
        self._engine = engine
        self._requests = requests
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True

    async def __aiter__(self) -> AsyncIterator[list[EngineResult]]:
        engine = self._engine
        todo: list[Any] = list(self._requests)
        engine.submitted += sum(not isinstance(item, Refused) for item in todo)
        if engine.reverse:
            todo.reverse()
        answered = 0
        while todo:
            await engine.pause()
            if self._aborted:
                return
            room = engine.group if engine.dies_after is None else min(engine.group, engine.dies_after - answered)
            group, todo = todo[:room], todo[room:]
            results: list[EngineResult] = []
            for item in group:
                result = item if isinstance(item, Refused) else engine.result(item)
                if result.index not in engine.loses:
                    results += [result, result] if result.index in engine.twice else [result]
            answered += len(group)
            if results:
                yield results
            if engine.dies_after is not None and answered >= engine.dies_after:
                raise EngineDied("the engine died as it was told to")
