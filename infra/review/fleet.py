"""infra/review: what every stack is doing and what that costs now. Reads REST v2 and /health; what they do not tell is said to be unknown.

A worker is billed from its start to its full stop: RUNNING, and IDLE while it waits out its idle timeout (serverless/pricing). REST v2's
list leaves out workers that are scaled down, so its IDLE ones are billed; /health's gauge may count scaled-down ones, so dollars come from
the list alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from contract.facts import EndpointFacts
from infra.review.live import DataPlane, Gathering, Rest, listed_endpoints
from infra.review.observed import LiveEndpoint, WorkerSeen, workers_of

BILLED: Final = ("RUNNING", "IDLE")


@dataclass(frozen=True)
class EndpointNow:
    """One endpoint now; None: not told. `usd_per_hour`: of the workers that are up. `balanced`: a load-balancing one, without a queue."""

    name: str
    id: str
    gone: bool = False
    """RunPod has no such endpoint any more."""
    workers: Mapping[str, int] | None = None
    workers_max: int | None = None
    declared_max: int | None = None
    usd_per_hour: float | None = None
    queued: int | None = None
    in_progress: int | None = None
    balanced: bool = False


@dataclass(frozen=True)
class StackNow:
    """One stack now. `oldest_job_s`: how long the oldest outstanding job of this machine's runs has been out; RunPod does not tell it for
    others. `unknown`: why nothing is known (it was never made, or keys are missing); `error`: what failed; `unread`: parts that failed."""

    stack: str
    endpoints: tuple[EndpointNow, ...] = ()
    oldest_job_s: float | None = None
    unknown: str | None = None
    error: str | None = None
    unread: tuple[str, ...] = ()

    @property
    def usd_per_hour(self) -> float | None:
        """Of all endpoints; None as soon as one is not known."""
        known = [one.usd_per_hour for one in self.endpoints]
        return None if self.error or self.unknown or None in known else sum(usd for usd in known if usd is not None)


async def observe_fleet(
    stack: str,
    endpoints: Sequence[EndpointFacts],
    *,
    rest: Rest,
    plane: DataPlane,
    now: datetime,
    balanced: Sequence[EndpointFacts] = (),
    oldest: datetime | None = None,
    deadline_s: float = 15.0,
) -> StackNow:
    """One stack, its queue endpoints and its load-balancing ones. Never raises because RunPod or the network fails."""
    group = Gathering(deadline_s)
    nothing: Mapping[str, LiveEndpoint] | None = None
    listed, found = await asyncio.gather(
        group.part("settings", lambda: listed_endpoints(rest), nothing),
        asyncio.gather(
            *(_endpoint(group, rest, plane, endpoint, now) for endpoint in endpoints),
            *(_endpoint(group, rest, None, endpoint, now) for endpoint in balanced),
        ),
    )
    if listed is not None:
        found = [_placed(one, listed.get(one.id)) for one in found]
    group.unread = [one for one in group.unread if not any(lost.gone and one.what.startswith(f"{lost.name}: ") for lost in found)]
    age = None if oldest is None else max(0.0, (now - oldest).total_seconds())
    unread = tuple(sorted(f"{one.what}: {one.why}" for one in group.unread))
    return StackNow(stack, tuple(found), age, unread=unread)


def _placed(one: EndpointNow, live: LiveEndpoint | None) -> EndpointNow:
    """With what the account's list says of it."""
    return replace(one, gone=True, usd_per_hour=0.0) if live is None else replace(one, workers_max=live.workers_max)


async def _endpoint(group: Gathering, rest: Rest, plane: DataPlane | None, declared: EndpointFacts, now: datetime) -> EndpointNow:
    nobody: tuple[WorkerSeen, ...] | None = None

    async def workers() -> tuple[WorkerSeen, ...] | None:
        return workers_of(await rest.list_workers(declared.id), now)[1]

    async def gauge() -> tuple[int, int] | None:
        if plane is None:
            return None
        health = await plane.health(declared.id)
        return health.in_queue, health.in_progress

    listed, queue = await asyncio.gather(
        group.part(f"{declared.name}: workers", workers, nobody),
        group.part(f"{declared.name}: queue", gauge, None),
    )
    counts: dict[str, int] | None = None
    usd: float | None = None
    if listed is not None:
        counts = {}
        for worker in listed:
            counts[worker.status.lower()] = counts.get(worker.status.lower(), 0) + 1
        usd = declared.usd_per_second * 3600 * sum(worker.status in BILLED for worker in listed)
    return EndpointNow(
        name=declared.name,
        id=declared.id,
        workers=counts,
        declared_max=declared.workers_max,
        usd_per_hour=usd,
        queued=None if queue is None else queue[0],
        in_progress=None if queue is None else queue[1],
        balanced=plane is None,
    )


def fleet_lines(stacks: Sequence[StackNow]) -> list[str]:
    """For a person: a line an endpoint, a sum a stack."""
    lines = []
    for stack in stacks:
        if stack.error or stack.unknown:
            lines.append(f"{stack.stack}: unknown: {stack.error or stack.unknown}")
            continue
        usd = "unknown" if stack.usd_per_hour is None else f"${stack.usd_per_hour:.2f}"
        oldest = "none out" if stack.oldest_job_s is None else _age(stack.oldest_job_s)
        lines.append(f"{stack.stack}: {usd}/hour now; oldest job of this machine's runs: {oldest}")
        width = max((len(one.name) for one in stack.endpoints), default=0)
        for one in stack.endpoints:
            if one.gone:
                lines.append(f"  {one.name:<{width}}  is gone: RunPod knows no endpoint {one.id}")
                continue
            workers = "unknown" if one.workers is None else ", ".join(f"{n} {s}" for s, n in sorted(one.workers.items())) or "none"
            cut = f" (declared {one.declared_max})" if one.workers_max is not None and one.workers_max != one.declared_max else ""
            queue = "load-balancing" if one.balanced else f"{_told(one.queued)} queued, {_told(one.in_progress)} running"
            lines.append(
                f"  {one.name:<{width}}  workers {workers}, max {_told(one.workers_max)}{cut}; {queue}; "
                f"{'unknown' if one.usd_per_hour is None else f'${one.usd_per_hour:.2f}'}/hour"
            )
        lines += [f"  unread: {text}" for text in stack.unread]
    return lines


def fleet_record(stacks: Sequence[StackNow]) -> dict[str, Any]:
    """For a program; null: not told."""
    known = [stack.usd_per_hour for stack in stacks if not stack.unknown]
    return {
        "usd_per_hour": None if None in known else round(sum(usd for usd in known if usd is not None), 6),
        "stacks": [
            {
                "stack": stack.stack,
                "unknown": stack.unknown,
                "error": stack.error,
                "usd_per_hour": stack.usd_per_hour,
                "oldest_job_s": stack.oldest_job_s,
                "unread": list(stack.unread),
                "endpoints": [
                    {
                        "name": one.name,
                        "id": one.id,
                        "type": "LOAD_BALANCER" if one.balanced else "QUEUE",
                        "gone": one.gone,
                        "workers": None if one.workers is None else dict(one.workers),
                        "workers_max": one.workers_max,
                        "workers_max_declared": one.declared_max,
                        "queued": one.queued,
                        "in_progress": one.in_progress,
                        "usd_per_hour": one.usd_per_hour,
                    }
                    for one in stack.endpoints
                ],
            }
            for stack in stacks
        ],
    }


def fleet_exit_code(stacks: Sequence[StackNow]) -> int:
    """3 where something could not be read, else 0: a busy fleet is no error."""
    return 3 if any(stack.error is not None or stack.unread for stack in stacks) else 0


def _told(number: int | None) -> str:
    return "unknown" if number is None else str(number)


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
