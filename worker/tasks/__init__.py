"""worker/tasks: OpenAI bodies -> engine requests, field by field, and engine results -> OpenAI bodies. Pure; no vLLM.

A field is honoured, or it is a row error that names it: nothing is dropped in silence. Null means "not given", as at OpenAI.
Accepted without any effect on the answer, because they speak to a server about accounts and caches: user, metadata, store,
service_tier, safety_identifier, prompt_cache_key, prompt_cache_retention. A body's `model` may be any name (files made for hosted services
name theirs): the plan says which model runs, and the answer's `model` says which one ran.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from contract.models import TaskSpec
from contract.rows import URLS, ChatUrl, CompletionUrl, EmbeddingUrl, RowError
from worker.engine.base import EngineRequest, Refused
from worker.rows import ShardRow
from worker.tasks.embed import EMBED_FIELDS, embed_request
from worker.tasks.fields import Body, RowProblem, parse_body
from worker.tasks.generate import CHAT_FIELDS, COMPLETION_FIELDS, chat_request, completion_request

log = logging.getLogger("nightbatch.worker")

Translate = Callable[[int, Body], EngineRequest]
_URLS: Final[Mapping[str, tuple[frozenset[str], Translate]]] = {
    ChatUrl: (CHAT_FIELDS, chat_request),
    CompletionUrl: (COMPLETION_FIELDS, completion_request),
    EmbeddingUrl: (EMBED_FIELDS, embed_request),
}


def unknown_params(task: TaskSpec) -> list[str]:
    """Parameters of the task that no row of its kind could use: the whole job is refused for them, before any row is."""
    usable = frozenset().union(*(_URLS[url][0] for url in URLS[task.kind]))
    return sorted(name for name in task.params if name not in usable)


def requests(rows: Iterable[ShardRow], task: TaskSpec) -> Iterator[EngineRequest | Refused]:
    """Each row's request, or why it has none. The task's parameters fill in what a body does not say, where its URL knows the field."""
    dimensions = _Dimensions()
    for row in rows:
        try:
            request = _request(row, task)
            yield dimensions.check(request)
        except RowProblem as problem:
            yield Refused(row.index, problem.error)
        except Exception as error:  # a fault of ours in reading one row must not end the engine thread, and with it every other row
            log.error("row %d could not be read", row.index, exc_info=error)
            yield Refused(
                row.index, RowError(code="internal_error", message=f"the worker could not read this row ({type(error).__name__}).")
            )


def _request(row: ShardRow, task: TaskSpec) -> EngineRequest:
    if row.url not in URLS[task.kind]:
        raise RowProblem("wrong_url", f"this run's task is `{task.kind}`, and the row is for {row.url}.", "url")
    fields, translate = _URLS[row.url]
    given = parse_body(row.take_body())
    defaults = {name: value for name, value in task.params.items() if name in fields and given.get(name) is None}
    # One limit replaces the other: a row that says max_tokens is not bound by the task's max_completion_tokens.
    if given.get("max_tokens") is not None or given.get("max_completion_tokens") is not None:
        defaults.pop("max_tokens", None)
        defaults.pop("max_completion_tokens", None)
    return translate(row.index, Body({**given, **defaults}, fields))


class _Dimensions:
    """Vectors of one part have one length: the first row of the shard decides it, and a row that asks for another fails."""

    def __init__(self) -> None:
        self._first: tuple[int | None] | None = None

    def check(self, request: EngineRequest) -> EngineRequest:
        dimensions = getattr(request, "dimensions", None)
        if self._first is None:
            self._first = (dimensions,)
        elif dimensions != self._first[0]:
            raise RowProblem(
                "invalid_parameter",
                f"{dimensions or 'the full number of'} dimensions were asked for, and the first row of the shard has "
                f"{self._first[0] or 'the full number'}; vectors of a run have one length.",
                "dimensions",
            )
        return request


__all__ = ["RowProblem", "requests", "unknown_params"]
