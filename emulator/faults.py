"""emulator: the seam for faults. Every message that comes in or goes out passes `Seam.passing` first; without hooks nothing happens.

May touch: the standard library only. A test installs a hook, which looks at a message and says what becomes of it:

    async def lose_first_answer(message: Message) -> Action:
        return DROP if message.kind == "response" and message.operation == "run" else PASS

    with emulator.seam.hook(lose_first_answer): ...

| kind     | what passes                                  | drop                      | answer             | copies               |
|----------|----------------------------------------------|---------------------------|--------------------|----------------------|
| request  | a request, before it is looked at            | never handled, no answer  | answered with this | handled so often     |
| response | an answer, after the request was handled     | handled, no answer        | replaced by this   | -                    |
| delivery | a job on its way to a worker (`job` is set)  | taken, never arrives      | -                  | in a batch so often |
| webhook  | an attempt of a webhook (`job` is set)       | counts as made and failed | as if it had come  | sent so often        |

A delay comes before all of these. REST v2's requests and answers pass as those of the data plane do: `operation` is their method and route
("POST /v2/serverless", "PATCH /v2/serverless/{id}"), `endpoint` the id in it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from emulator.clock import Clock

MessageKind = Literal["request", "response", "delivery", "webhook"]


@dataclass(frozen=True, slots=True)
class Message:
    """What passes. `operation` is the name in the URL (run, status, job-done, …); `status` is set on responses."""

    kind: MessageKind
    endpoint: str
    operation: str
    job: str | None = None
    worker: str | None = None
    attempt: int = 1
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """What becomes of a message. `delay_s` in seconds of the emulator's clock; `answer`: an HTTP status in its place."""

    delay_s: float = 0.0
    drop: bool = False
    answer: int | None = None
    copies: int = 1
    retry_after_s: int | None = None
    """Retry-After of an `answer` of REST v2, in seconds; a 429 there has one in any case."""


PASS: Final = Action()
DROP: Final = Action(drop=True)

Hook = Callable[[Message], Action | Awaitable[Action]]


class Seam:
    """The one place. Hooks are asked in the order in which they were installed; the first that does not say PASS decides."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hooks: list[Hook] = []

    @property
    def active(self) -> bool:
        """False: no hook is installed, and hot paths need not ask."""
        return bool(self._hooks)

    @contextlib.contextmanager
    def hook(self, hook: Hook) -> Iterator[None]:
        """Install `hook` for the length of a with block."""
        self._hooks.append(hook)
        try:
            yield
        finally:
            self._hooks.remove(hook)

    async def passing(self, message: Message) -> Action:
        for hook in tuple(self._hooks):
            said = hook(message)
            action = await said if inspect.isawaitable(said) else said
            if action != PASS:
                if action.delay_s > 0:
                    await self._clock.sleep(action.delay_s)
                return action
        return PASS
