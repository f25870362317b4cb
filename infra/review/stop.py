"""infra/review: the kill switch and its way back: workers.max of a stack's endpoints to 0, and to what it was. Needs no pulumi.

What an endpoint allowed before is written to a small file before the endpoint is cut, so that a stop that breaks off half-way can still be
undone; where it cannot be written the endpoints are cut all the same. Touches REST v2 and that file. Never a purge: a queue may hold other
people's jobs; a run's own jobs are cancelled by their ids, which is the pipelines' business (the command composes the two).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from contract.errors import InfrastructureError, NightbatchError, UsageError
from infra.review.live import Rest
from infra.review.observed import Stopped, live_endpoint
from infra.settings import PROJECT


class StopFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `start` needs: what each endpoint allowed before the first stop."""

    version: int = 1
    stack: str
    endpoints: tuple[Stopped, ...] = ()


@dataclass(frozen=True)
class Cut:
    """What became of one endpoint. `before`: (workers.min, workers.max); `error`: why it could not be changed."""

    name: str
    id: str
    before: tuple[int, int] | None = None
    after: int | None = None
    error: str | None = None

    @property
    def done(self) -> bool:
        return self.error is None


def stop_path(state: Path, stack: str) -> Path:
    """Where a stack's earlier values are kept while it is stopped."""
    return state / "stopped" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', stack)}.json"


def read_stopped(path: Path) -> tuple[Stopped, ...]:
    """What a stop left behind; nothing where there was none. Raises InfrastructureError where the file is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StopFile).endpoints
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        raise InfrastructureError(
            f"cannot be read ({error}).", where=str(path), fix="Delete it; `pulumi up --refresh` sets workers.max as declared."
        ) from None


def forget(path: Path, stack: str, up: Collection[str]) -> None:
    """Endpoints that somebody has given workers since are stopped no more: a later cut is another one. Raises InfrastructureError."""
    kept = read_stopped(path)
    left = [one for one in kept if one.endpoint_id not in up]
    if len(left) < len(kept):
        _write(path, stack, left)


async def balanced(rest: Rest, stack: str, *, project: str = PROJECT, others: Collection[str] = ()) -> dict[str, str]:
    """Load-balancing endpoints of a stack, id -> name, by the name that the program gives them: facts that an earlier version wrote do not
    tell of them. `others`: further stacks of the project, whose names may begin with this one's."""
    longer = tuple(f"{project}-{other}-" for other in others if other != stack and other.startswith(f"{stack}-"))
    found = {}
    for answer in await rest.list_endpoints():
        name = str(answer.get("name", ""))
        if answer.get("type") == "LOAD_BALANCER" and name.startswith(f"{project}-{stack}-") and not name.startswith(longer):
            found[str(answer["id"])] = name
    return found


async def stop(rest: Rest, stack: str, endpoints: Mapping[str, str], *, path: Path, at: datetime) -> tuple[tuple[Cut, ...], str | None]:
    """workers.min and workers.max of every endpoint (id -> name) to 0, all at once. One that fails hides no other. Also why the earlier
    values could not be kept, if so: stopping does not wait for a full disk, and the cuts tell them."""
    problem: str | None = None
    kept: dict[str, Stopped] = {}
    try:
        kept = {one.endpoint_id: one for one in read_stopped(path)}
    except InfrastructureError as error:
        problem = f"an earlier stop's record {error}"
    seen = await asyncio.gather(*(_look(rest, endpoint, name) for endpoint, name in endpoints.items()))
    for cut, _ in seen:
        if cut.before is not None and (cut.before[1] > 0 or cut.id not in kept):
            kept[cut.id] = Stopped(cut.id, at, *cut.before)
    try:
        _write(path, stack, [one for one in kept.values() if one.workers_max > 0])
    except InfrastructureError as error:
        problem = str(error)
    return tuple(await asyncio.gather(*(_end(rest, cut, workers) for cut, workers in seen))), problem


async def start(rest: Rest, stack: str, endpoints: Mapping[str, str], *, path: Path) -> tuple[Cut, ...]:
    """Give every stopped endpoint of the stack what it had; `endpoints`: their names, by id. Raises UsageError where nothing is stopped."""
    kept = {one.endpoint_id: one for one in read_stopped(path)}
    if not kept:
        raise UsageError(
            f"nothing is known of a stop of stack '{stack}' on this machine.",
            fix=f"nightbatch doctor {stack} --fix raises workers.max to what is declared.",
        )

    async def one(before: Stopped) -> Cut:
        found, workers = await _look(rest, before.endpoint_id, endpoints.get(before.endpoint_id, before.endpoint_id))
        return await _set(rest, found, workers, before.workers_min, before.workers_max)

    done = tuple(await asyncio.gather(*(one(before) for before in kept.values())))
    left = [kept[cut.id] for cut in done if not cut.done]
    _write(path, stack, left)
    return done


async def _look(rest: Rest, endpoint: str, name: str) -> tuple[Cut, Mapping[str, Any]]:
    """What an endpoint allows now, and its `workers` as they were told."""
    found = Cut(name, endpoint)
    try:
        answer = await rest.get_endpoint(found.id)
        live = live_endpoint(answer)
    except (NightbatchError, KeyError, TypeError, ValueError, OverflowError) as error:
        return replace(found, error=str(error)), {}
    return replace(found, before=(live.workers_min, live.workers_max), after=live.workers_max), answer["workers"]


async def _end(rest: Rest, cut: Cut, workers: Mapping[str, Any]) -> Cut:
    """No workers. An endpoint whose settings could not be read is cut all the same: stopping does not wait for what `start` would need."""
    if cut.before is not None:
        return await _set(rest, cut, workers, 0, 0)
    blind = await _set(rest, replace(cut, before=(-1, -1), error=None), {}, 0, 0)
    return replace(blind, before=None, error=cut.error if blind.error is not None else None)


async def _set(rest: Rest, cut: Cut, workers: Mapping[str, Any], least: int, most: int) -> Cut:
    if cut.before is None or cut.before == (least, most):
        return cut
    try:
        # All of `workers`, as it was told: whether RunPod merges a partial object is not documented.
        answer = await rest.update_endpoint(cut.id, {"workers": {**workers, "min": least, "max": most}})
        after = live_endpoint(answer).workers_max
    except (NightbatchError, KeyError, TypeError, ValueError, OverflowError) as error:
        return replace(cut, error=str(error))
    if after != most:
        return replace(cut, after=after, error=f"RunPod was told workers.max {most} and says {after}.")
    return replace(cut, after=after)


def _write(path: Path, stack: str, stopped: Sequence[Stopped]) -> None:
    """The file, whole or not at all; gone where nothing is stopped any more."""
    try:
        if not stopped:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(StopFile(stack=stack, endpoints=tuple(stopped)))))
        fresh.replace(path)
    except OSError as error:
        raise InfrastructureError(
            f"what the endpoints allowed could not be kept ({error.strerror}).",
            where=str(path),
            fix="Note it down; `nightbatch doctor --fix` or `pulumi up --refresh` give what is declared.",
        ) from None
