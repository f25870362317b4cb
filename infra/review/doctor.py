"""infra/review: what is wrong with a stack, why, and what to do: checks over a snapshot, and the one mend that is safe. Needs no pulumi.

`examine` is pure: a frozen `Observed` in, findings out, the gravest first. `mend` is the only part that changes anything, and only raises
workers.max back to what the stack declares. Reading is infra/review/live.py. Numbers: runpod-facts of the endpoint-configurations, workers
and send-requests pages, named where they are used.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from contract.errors import NightbatchError
from contract.net import on_this_machine
from contract.protocol import MAX_TTL_S, ttl_for, window_for
from infra.review.live import Rest
from infra.review.observed import INIT_TIMEOUT, MODEL_SOURCE, EndpointSeen, JobSeen, Observed, WorkerSeen

Severity = Literal["error", "warning", "advice"]
ORDER: Final = ("error", "warning", "advice")
IDLE_CUT: Final = {2: 3, 0: 7}
"""workers.max -> days without a request after which RunPod cuts it to that (endpoint-configurations, 24 June 2026) and leaves it."""
SPACE_SHARE: Final = 0.9
"""Of a volume: writes fail when it is full, and UploadPart does not look first (storage/s3-api)."""
NEAR_LIMIT: Final = 0.95
"""An execution that took this share of executionTimeout was ended by it."""
LONG_SHARE: Final = 0.8
SLOW_DELAY_S: Final = 60.0
WAIT_S: Final = 300.0
FEW: Final = 3
"""Jobs without which nothing is said of their times."""
LOST_JOB: Final = "job timed out after"
"""RunPod's words for a job whose worker stopped reporting (observed 6 August 2026: "job timed out after 1 retries")."""
LOG_LINES: Final = 5


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be. `resource`: what it is about; `evidence`: what was seen; `mend`: what to do; `fixable`: --fix
    does it."""

    code: str
    severity: Severity
    resource: str
    evidence: str
    cause: str
    mend: str
    fixable: bool = False


@dataclass(frozen=True)
class Mended:
    """What --fix did, or why it could not."""

    resource: str
    text: str
    done: bool


@dataclass(frozen=True)
class Report:
    """All of it: findings, plain facts worth knowing, and what could not be looked at."""

    observed: Observed
    findings: tuple[Finding, ...]
    facts: tuple[str, ...] = ()
    mended: tuple[Mended, ...] = ()

    @property
    def open(self) -> tuple[Finding, ...]:
        """Findings that --fix has not mended."""
        done = {one.resource for one in self.mended if one.done}
        return tuple(f for f in self.findings if not (f.fixable and f.resource in done))

    @property
    def exit_code(self) -> int:
        """0 nothing found, 1 findings, 3 nothing found, but not everything could be looked at (DESIGN.md, law 8)."""
        return 1 if self.open else 3 if self.observed.unread or any(not one.done for one in self.mended) else 0


def examine(seen: Observed) -> Report:
    """Every check over every part that was read. Pure, and the same for the same snapshot."""
    found: list[Finding] = []
    for endpoint in seen.endpoints:
        for check in BALANCED_CHECKS if endpoint.balanced else ENDPOINT_CHECKS:
            found += check(seen, endpoint)
    for stack_check in STACK_CHECKS:
        found += stack_check(seen)
    found.sort(key=lambda finding: ORDER.index(finding.severity))
    return Report(seen, tuple(found), tuple(_facts(seen)))


# --- one endpoint --------------------------------------------------------------------------------------------------------------------


def check_there(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """The endpoint exists."""
    if at.gone:
        yield Finding(
            "endpoint_missing",
            "error",
            _named(at),
            f"RunPod knows no endpoint {at.declared.id}.",
            "It was deleted by hand, or this API key belongs to another account.",
            f"pulumi up --stack {seen.facts.stack} --refresh makes it again, with a new id"
            + (" and URL." if at.balanced else "; runs planned for the old id stay with it."),
        )


def check_workers_max(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """workers.max is what the stack declares, and workers.min costs nothing that nobody declared."""
    if at.live is None:
        return
    now, declared = at.live.workers_max, at.declared.workers_max
    stopped = next((one for one in seen.stopped if one.endpoint_id == at.declared.id), None)
    stack, unhealthy = seen.facts.stack, _count(at, "UNHEALTHY") > 0
    if now < declared:
        evidence = f"workers.max is {now}, and {declared} is declared."
        if stopped is not None and now == 0:
            yield Finding(
                "stopped",
                "warning",
                _named(at),
                evidence,
                f"`nightbatch stop {stack}` cut it at {stopped.at:%Y-%m-%d %H:%M} UTC.",
                f"nightbatch start {stack} sets workers.max to {stopped.workers_max} again.",
            )
            return
        if now in IDLE_CUT:
            cause = f"RunPod cuts an endpoint that has had no request for {IDLE_CUT[now]} days to {now} workers, and never restores it"
            cause += "; it also cuts one whose workers stay unhealthy." if unhealthy else ", or it was set by hand."
        else:
            cause = "Somebody set it by hand: RunPod's idle rule cuts to 2 or 0."
        yield Finding(
            "workers_max_cut",
            "error" if now == 0 else "warning",
            _named(at),
            evidence,
            cause,
            f"nightbatch doctor {stack} --fix raises it to {declared} again, as does pulumi up --refresh."
            if not unhealthy
            else f"Mend what makes workers unhealthy first; then nightbatch doctor {stack} --fix raises it to {declared} again.",
            fixable=not unhealthy,
        )
    elif now > declared:
        yield Finding(
            "workers_max_raised",
            "warning",
            _named(at),
            f"workers.max is {now}, and {declared} is declared.",
            "Somebody raised it by hand; the stack's ceiling on $/hour no longer holds.",
            f"Declare {now}, or let pulumi up --stack {stack} --refresh set {declared} again.",
        )
    extra = at.live.workers_min - at.declared.workers_min
    if extra > 0:
        usd = extra * at.declared.usd_per_second * 86_400
        yield Finding(
            "workers_min_raised",
            "warning",
            _named(at),
            f"workers.min is {at.live.workers_min}, and {at.declared.workers_min} is declared: about ${usd:.2f} a day for waiting workers.",
            "Somebody set it by hand; such workers are billed day and night.",
            f"pulumi up --stack {stack} --refresh sets {at.declared.workers_min} again.",
        )


def check_throttled(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Workers that RunPod has no host for."""
    count = _count(at, "THROTTLED")
    if not count:
        return
    able = (at.health.idle + at.health.running) if at.health else len(at.by_status("IDLE")) + len(at.by_status("RUNNING"))
    yield Finding(
        "throttled",
        "warning" if able else "error",
        _named(at),
        f"{_workers(count)} throttled and {able} able to work{_stock_text(seen, at)}.",
        f"RunPod has no free host for {_pools(at)}{_where(at)}.",
        "Name more GPU pools, or leave the data centres open; a network volume ties workers to its data centre.",
    )


def check_unhealthy(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Workers that do not come up, with their last words."""
    count = _count(at, "UNHEALTHY")
    if not count:
        return
    listed = at.by_status("UNHEALTHY")
    yield Finding(
        "unhealthy",
        "error",
        _named(at),
        f"{_workers(count)} unhealthy.{_logs(listed)}",
        "The container ends or does not become ready: a wrong variable, a model that does not fit, or an image that the host cannot run.",
        "Read the lines above; mend the image or its environment and run pulumi up. RunPod tries such workers for up to 7 days and scales "
        "the endpoint down if they stay so.",
    )


def check_outdated(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Workers of a version before."""
    stale = [worker for worker in at.workers or () if worker.stale]
    if not stale:
        return
    busy = sum(worker.status == "RUNNING" for worker in stale)
    versions = ", ".join(sorted({str(worker.version) for worker in stale if worker.version is not None}))
    of = f" (version {versions}, the endpoint is at {at.version})" if versions and at.version is not None else ""
    only_busy = busy == len(stale)
    yield Finding(
        "outdated",
        "advice" if only_busy or at.rolling else "warning",
        _named(at),
        f"{_workers(len(stale))} of an earlier release{of}; {busy} busy.",
        "After a change RunPod replaces idle workers at once and busy ones when their job ends; until then two images answer."
        if only_busy or at.rolling
        else "RunPod should have replaced them when the endpoint was changed.",
        "Wait until their work is done; a run that meets two images pauses and says so. For a clean cut set the endpoint's rollout to "
        "strict.",
    )


def check_one_worker(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """All jobs go to one worker while others wait: the SDK's job list on a shared volume."""
    if at.live is None or not at.live.volumes or at.workers is None:
        return
    running, idle = at.by_status("RUNNING"), at.by_status("IDLE")
    queued = at.health.in_queue if at.health else 0
    taken = [job.worker_id for job in at.jobs if job.worker_id and job.status in ("IN_PROGRESS", "COMPLETED")]
    funnel = len(taken) >= 2 * FEW and len(set(taken)) == 1 and len(running) + len(idle) >= 2
    waits = len(running) == 1 and len(idle) >= 1 and queued > at.declared.shards_per_worker
    if not (funnel or waits):
        return
    seen_text = f"{len(running)} of {len(running) + len(idle)} workers busy, {queued} jobs queued"
    if funnel:
        seen_text += f"; the last {len(taken)} jobs all went to worker {taken[0]}"
    yield Finding(
        "one_worker",
        "error",
        _named(at),
        f"{seen_text}; a network volume is attached.",
        "runpod SDK 1.7.11 to 1.10.0 keep their list of jobs in a file in the working folder: on a shared volume all workers read one list "
        "(serverless/troubleshooting).",
        "Use an image with runpod 1.10.1 or newer, or a working folder that is not on the volume.",
    )


def check_init(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Starting workers that are near, or over, the time that RunPod gives them."""
    if at.live is None:
        return
    limit = at.live.init_timeout_s
    slow = [worker for worker in at.by_status("INITIALIZING") if worker.up_s is not None and worker.up_s >= LONG_SHARE * limit]
    if slow:
        longest = max(worker.up_s or 0.0 for worker in slow)
        yield Finding(
            "init_slow",
            "error" if longest >= limit else "warning",
            _named(at),
            f"{_workers(len(slow))} initializing for up to {span(longest)}; the limit is {span(limit)}.{_logs(slow)}",
            "Pulling the image, fetching the model or loading it takes too long; past the limit a worker counts as unhealthy.",
            f"Set {INIT_TIMEOUT} (seconds) in the endpoint's environment, bake the model into the image, or keep it on a volume.",
        )
    elif at.declared.cold_start_s > limit:
        yield Finding(
            "init_limit",
            "warning",
            _named(at),
            f"A cold start is declared as {span(at.declared.cold_start_s)}, and RunPod gives a worker {span(limit)}.",
            "A worker that is not ready by then counts as unhealthy and is started again.",
            f"Set {INIT_TIMEOUT} (seconds) in the endpoint's environment above the cold start.",
        )


def check_waiting(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Own jobs wait while workers start and none becomes ready, such as workers that end at once and are started again and again."""
    waits = [(seen.at - job.sent_at).total_seconds() for job in at.jobs if job.status == "IN_QUEUE" and job.sent_at is not None]
    starting = at.by_status("INITIALIZING")
    if not waits or not starting or at.by_status("IDLE") or at.by_status("RUNNING"):
        return
    if max(waits) < max(WAIT_S, 2 * at.declared.cold_start_s):
        return
    yield Finding(
        "not_ready",
        "warning",
        _named(at),
        f"An own job has waited {span(max(waits))}; {_workers(len(starting))} starting, and none is ready.{_logs(starting)}",
        "Workers take long to load, or end before they are ready and are started again.",
        "Read the lines above and the worker's log in the console; then the image, the model's name and its environment.",
    )


def check_image(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """The image is pinned by its digest."""
    image = (at.live.image if at.live else None) or (at.declared.image if at.live is None else None)
    if not image or re.search("(^|@)sha256:", image) or on_this_machine(seen.facts.api_url):
        return  # on this machine an image is a name for a command: it has no digest
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    floating = tag in ("", "latest")
    yield Finding(
        "image_unpinned",
        "error" if floating else "warning",
        _named(at),
        f"The image is {image}.",
        "Hosts keep an image that they have pulled once: workers of one endpoint may run different builds of `latest`."
        if floating
        else "A tag can be moved to another build, and hosts that have the old one keep it.",
        f"nightbatch image pin {tag or 'TAG'} --stack {seen.facts.stack} writes the digest into the stack file; then pulumi up.",
    )


def check_timeout(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """executionTimeout is there, and long enough for what plans count on."""
    if at.live is None:
        return
    live, declared = at.live.timeout_ms / 1000, at.declared.execution_timeout_s
    if live <= 0:
        yield Finding(
            "timeout_none",
            "error",
            _named(at),
            "executionTimeout is 0: no limit.",
            "REST v2 sets 0 where `timeout` is left out. A job that hangs is then billed until somebody sees it.",
            f"Declare executionTimeout ({span(declared)} is what plans count on) and run pulumi up.",
        )
    elif live < declared:
        yield Finding(
            "timeout_short",
            "warning",
            _named(at),
            f"executionTimeout is {span(live)}, and plans count on {span(declared)}.",
            "Jobs carry their own limit, but others on this endpoint, and retries by hand, are ended at the shorter one.",
            f"pulumi up --stack {seen.facts.stack} --refresh sets it again.",
        )


def check_settings(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Scaler, idle timeout, image and scale are those that plans count on."""
    if at.live is None:
        return
    live, want = at.live, at.declared
    differ = []
    if live.type != (kind := "LOAD_BALANCER" if at.balanced else "QUEUE"):
        differ.append(f"type is {live.type}, declared {kind}")
    if live.scaler and live.scaler != want.scaler:
        differ.append(f"scaler is {live.scaler}, declared {want.scaler}")
    elif live.scaler_value is not None and abs(live.scaler_value - want.scaler_value) > 1e-9:
        differ.append(f"the scaler's value is {live.scaler_value:g}, declared {want.scaler_value:g}")
    if live.idle_timeout_s is not None and abs(live.idle_timeout_s - want.idle_timeout_s) > 1e-9:
        differ.append(f"idleTimeout is {live.idle_timeout_s:g} s, declared {want.idle_timeout_s:g} s")
    if want.image and live.image and _digest(want.image) != _digest(live.image):
        differ.append(f"the image is {live.image}, declared {want.image}")
    if live.pools and live.gpu_count != want.gpu_count:
        differ.append(f"gpu.count is {live.gpu_count}, declared {want.gpu_count}")
    if live.pools and want.gpu not in live.pools:
        differ.append(f"GPU pools are {', '.join(live.pools)}, and prices are those of {want.gpu}")
    if differ:
        yield Finding(
            "drift",
            "warning",
            _named(at),
            f"{'; '.join(differ)}.",
            "It was changed by hand since the last `pulumi up`, or the facts file is old.",
            f"nightbatch drift {seen.facts.stack} shows all of it; pulumi up --refresh mends it.",
        )


def check_stock(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Somewhere there is a GPU for the next worker."""
    if seen.stock is None or at.live is None or not at.live.pools or _count(at, "THROTTLED"):
        return
    levels = {pool: seen.stock[pool] for pool in at.live.pools if pool in seen.stock}
    if levels and all(level == "NONE" for level in levels.values()) and at.live.workers_max > 0:
        yield Finding(
            "no_stock",
            "warning",
            _named(at),
            f"RunPod's catalog has no free serverless GPU of {', '.join(levels)} now.",
            "The next worker would be throttled.",
            "Name more GPU pools, or start later.",
        )


def check_queue(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """A queue that no worker comes for."""
    h = at.health
    if h is None or not h.in_queue or h.idle or h.running or h.initializing or h.throttled or h.unhealthy:
        return
    if at.live is not None and at.live.workers_max < 1:
        cause, fix = "The endpoint allows no worker.", "See the finding on workers.max."
    else:
        cause = "lowPriority jobs alone do not make RunPod start a worker; else the account's balance or worker quota is used up."
        fix = "A run that is followed promotes its jobs by itself (nightbatch resume RUN); look at balance and quota in the console."
    yield Finding("queue_stuck", "warning", _named(at), f"{h.in_queue} jobs are queued, and no worker lives or starts.", cause, fix)


def check_ttl(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Jobs live long enough for the night: for their wait in the queue and their execution."""
    want = at.declared
    pace = max(1, want.workers_max)
    gone = [job for job in at.jobs if _expired(job)]
    if gone:
        ages = [span(job.ttl_s) for job in gone if job.ttl_s is not None]
        yield Finding(
            "ttl_passed",
            "warning",
            _named(at),
            f"{len(gone)} of the last {len(at.jobs)} jobs were deleted at their ttl ({ages[0] if ages else 'unknown'}) before they ended.",
            "RunPod deletes a job at its ttl, waiting or running; the ttl counts from the submission.",
            "They are sent again by `nightbatch resume RUN`. If workers.max was cut, raise it: the ttl is planned for the planned pace.",
        )
    ttl = ttl_for(window_for(pace, want.shards_per_worker), want.execution_timeout_s, want.cold_start_s)
    done = [job.execution_s for job in at.jobs if job.status == "COMPLETED" and job.execution_s]
    each = statistics.median(done) if len(done) >= FEW else want.execution_timeout_s
    queued = at.health.in_queue if at.health else 0
    slots = max(1, at.live.workers_max if at.live else want.workers_max) * want.shards_per_worker
    wait = queued / slots * each
    if queued and wait > ttl:
        yield Finding(
            "ttl_short",
            "warning",
            _named(at),
            f"{queued} queued jobs take {slots} at once about {span(wait)} at {span(each)} each; a job of this endpoint lives {span(ttl)}.",
            "The last ones are deleted before a worker takes them.",
            "Raise workers.max, or end other work on this endpoint first.",
        )
    elif seen.night_s is not None and ttl < seen.night_s:
        most = " (RunPod's most)" if ttl >= MAX_TTL_S else ""
        yield Finding(
            "ttl_short",
            "warning",
            _named(at),
            f"A job of this endpoint lives {span(ttl)}{most}, and the night is {span(seen.night_s)}.",
            "The ttl covers the wait behind the run's own window; behind other work on the same endpoint a job may wait longer than that.",
            "Give nightly runs an endpoint of their own, or raise execution_timeout_s: the ttl grows with it.",
        )


def check_times(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Whether jobs are slow because they wait or because they compute."""
    delay, execution = _medians(at.jobs)
    if delay is None or execution is None:
        return
    limit = at.declared.execution_timeout_s
    if delay > max(SLOW_DELAY_S, 2 * at.declared.cold_start_s, execution):
        if _count(at, "THROTTLED"):
            cause = "Workers are throttled: RunPod has no free host."
        elif at.live is not None and at.live.workers_max < at.declared.workers_max:
            cause = f"workers.max is {at.live.workers_max} instead of {at.declared.workers_max}."
        elif _count(at, "UNHEALTHY"):
            cause = "Workers do not come up."
        else:
            cause = "More jobs are sent than workers can take, or each cold start is paid anew."
        yield Finding(
            "slow_queue",
            "warning",
            _named(at),
            f"Queue delay is the cause of slowness: jobs waited {span(delay)} and computed {span(execution)} (medians).",
            cause,
            "Raise workers.max, name more GPU pools, or raise idleTimeout so that a warm worker takes the next job.",
        )
    elif execution > LONG_SHARE * limit:
        yield Finding(
            "slow_execution",
            "warning",
            _named(at),
            f"Execution time is the cause of slowness: jobs computed {span(execution)} of the allowed {span(limit)} (median), "
            f"and waited {span(delay)}.",
            "Rows are longer, or the GPU slower, than the plan's prices assumed; some executions keep their pieces and are sent again.",
            "Use a faster GPU pool or more max_num_seqs, or raise execution_timeout_s.",
        )


def check_timed_out(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """Which kind of TIMED_OUT: ended by executionTimeout, never taken, or lost with its worker."""
    kinds: dict[str, list[JobSeen]] = {}
    for job in at.jobs:
        if found := timed_out_kind(job, at.declared.execution_timeout_s):
            kinds.setdefault(found, []).append(job)
    for kind, jobs in sorted(kinds.items()):
        evidence, cause, fix = {
            "execution": (
                f"{_jobs(len(jobs))} ran into executionTimeout (the longest computed {span(max(j.execution_s or 0 for j in jobs))}).",
                "The work does not fit into the time; RunPod stops the worker, and what it had not kept is lost.",
                "Raise execution_timeout_s, or use a faster GPU. Nightbatch's own workers keep finished rows before that.",
            ),
            "unclaimed": (
                f"{_jobs(len(jobs))} passed their ttl before a worker took them.",
                "No worker was free or allowed in time.",
                "Look at workers.max, throttled workers and other work on this endpoint.",
            ),
            "lost": (
                f"{_jobs(len(jobs))} lost with their worker: it stopped reporting before its time was over.",
                "The worker's process ended or hung: out of memory, a kill by the host, or an engine that crashed.",
                "Read the worker's log; fewer max_num_seqs or a smaller max_model_len helps against memory.",
            ),
        }[kind]
        ids = ", ".join(job.id for job in jobs[:FEW]) + (", …" if len(jobs) > FEW else "")
        yield Finding(f"timed_out_{kind}", "warning", _named(at), f"{evidence} Jobs: {ids}.", cause, fix)


def check_cached_model(seen: Observed, at: EndpointSeen) -> Iterator[Finding]:
    """RunPod's cached model is recorded by the program, and no field of REST v2 sets it."""
    if at.live is None or at.live.env.get(MODEL_SOURCE, "").split(":")[0] != "cached":
        return
    words = ("not found in", "no such file", "cannot find", "is not cached", "not in the cache", "localentrynotfound", "offline mode")
    lines = [line for worker in at.workers or () for line in worker.log if any(word in line.lower() for word in words)]
    if not lines and not at.by_status("UNHEALTHY"):
        return
    model = at.live.env.get("NIGHTBATCH_MODEL") or at.declared.model
    yield Finding(
        "cached_model_unset",
        "error",
        _named(at),
        f"The stack records {model} as one of RunPod's cached models, and workers do not come up{': ' + lines[-1][:200] if lines else ''}.",
        "No field of REST v2 sets a cached model, so pulumi up cannot; it was probably never set in the console.",
        f"Console: the endpoint's settings, Model: {model}. Or take the model from a volume or bake it into the image.",
    )


def timed_out_kind(job: JobSeen, limit_s: float) -> Literal["execution", "unclaimed", "lost"] | None:
    """What TIMED_OUT (or RunPod's failure for a lost worker) means for this job. None: it is neither."""
    lost = job.error is not None and LOST_JOB in job.error
    if job.status != "TIMED_OUT" and not (job.status == "FAILED" and lost):
        return None
    if job.execution_s is not None and job.execution_s >= NEAR_LIMIT * limit_s:
        return "execution"
    if job.worker_id is None and not job.execution_s and not lost:
        return "unclaimed"
    return "lost"


ENDPOINT_CHECKS: Final[tuple[Callable[[Observed, EndpointSeen], Iterable[Finding]], ...]] = (
    check_there,
    check_workers_max,
    check_unhealthy,
    check_throttled,
    check_stock,
    check_init,
    check_waiting,
    check_outdated,
    check_one_worker,
    check_queue,
    check_image,
    check_timeout,
    check_settings,
    check_ttl,
    check_times,
    check_timed_out,
    check_cached_model,
)
BALANCED_CHECKS: Final = (
    check_there,
    check_workers_max,
    check_unhealthy,
    check_throttled,
    check_stock,
    check_init,
    check_outdated,
    check_image,
    check_settings,
    check_cached_model,
)
"""Of a load-balancing endpoint: it has no queue, and no jobs with times and timeouts."""


# --- the whole stack -----------------------------------------------------------------------------------------------------------------


def check_quota(seen: Observed) -> Iterator[Finding]:
    """All endpoints of the account together fit into its worker quota, where somebody told it: no API does."""
    account = seen.account
    if account is None or account.quota is None:
        return
    total = sum(most for _, _, most in account.endpoints)
    if total > account.quota:
        largest = sorted(account.endpoints, key=lambda one: -one[2])[:5]
        yield Finding(
            "quota",
            "warning",
            f"stack {seen.facts.stack}",
            f"workers.max of all {len(account.endpoints)} endpoints is {total}, and the account's quota is {account.quota}: "
            + ", ".join(f"{name} {most}" for name, _, most in largest)
            + ("." if len(account.endpoints) <= 5 else ", …"),
            "Endpoints share the account's quota: whoever comes last gets no workers.",
            "Lower workers.max of idle endpoints, or raise the quota (it grows with the balance: $100 for 10, $200 for 20).",
        )


def check_store(seen: Observed) -> Iterator[Finding]:
    """Both key pairs can write and read, and the store keeps its promise about conditional writes."""
    where = f"s3://{seen.facts.store.bucket}"
    for probe in seen.stores:
        if probe.step is None:
            if probe.mode == "last-writer" and not _on_volume(seen):
                yield Finding(
                    "s3_last_writer",
                    "advice",
                    where,
                    f"Of two writes with If-None-Match the second did not fail ({probe.keys}'s keys).",
                    "The store accepts the header and ignores it, or a proxy removes it.",
                    "Runs stay right, because readers go through a seal; with a store that has conditional writes two clients cannot "
                    "even pay twice (docs/protocol-notes.md).",
                )
            continue
        denied = probe.denied
        yield Finding(
            "s3_denied" if denied else "s3_failed",
            "error",
            where,
            f"A {probe.step} with the {probe.keys}'s keys failed: {probe.error or 'no reason given'}",
            "The keys may not do this in this bucket." if denied else "The store does not answer as it should.",
            f"Check the {probe.keys}'s S3 keys (docs/stacks.md): they must be able to read, write and list in the bucket."
            if denied
            else "Check NIGHTBATCH_S3_ENDPOINT_URL, the bucket's name and the store itself.",
        )
    modes = {probe.mode for probe in seen.stores if probe.mode is not None}
    if len(modes) > 1:
        yield Finding(
            "s3_modes_differ",
            "warning",
            where,
            "Conditional writes hold with one pair of keys and not with the other.",
            "The two pairs reach the bucket in different ways, or a policy forbids one of them.",
            "Give client and worker keys of the same store and kind.",
        )


def check_volumes(seen: Observed) -> Iterator[Finding]:
    """Volumes have room."""
    for volume in seen.volumes:
        size = volume.size_gb * 10**9
        if volume.used_bytes is None or volume.used_bytes < SPACE_SHARE * size:
            continue
        least = "" if volume.complete else "at least "
        yield Finding(
            "volume_full",
            "error" if volume.used_bytes >= size else "warning",
            f"volume {volume.name} ({volume.id})",
            f"{least}{volume.used_bytes / 1e9:.1f} of {volume.size_gb} GB are used.",
            "Runs stay on the volume until they are deleted.",
            f"Raise its size in the stack (it can only grow) and run pulumi up --stack {seen.facts.stack}; or delete old runs.",
        )


def check_webhook(seen: Observed) -> Iterator[Finding]:
    """The webhook's address answers."""
    hook = seen.webhook
    if hook is None:
        return
    if hook.loopback and hook.remote:
        yield Finding(
            "webhook_private",
            "warning",
            hook.url,
            "It is an address of this machine or this network.",
            "RunPod cannot reach it.",
            "Name a public address that forwards to the receiver, or none: runs end the same by polling.",
        )
    elif hook.status is None:
        yield Finding(
            "webhook_unreachable",
            "warning",
            hook.url,
            f"No answer: {hook.error or 'unknown'}.",
            "The name does not resolve, nothing listens, or its certificate is not valid.",
            "Start the tunnel or leave --webhook-url out: webhooks only wake a run earlier, and none is needed.",
        )


STACK_CHECKS: Final[tuple[Callable[[Observed], Iterable[Finding]], ...]] = (check_quota, check_store, check_volumes, check_webhook)


# --- mending -------------------------------------------------------------------------------------------------------------------------


async def mend(rest: Rest, report: Report) -> tuple[Mended, ...]:
    """Do what is safe: raise a cut workers.max back to the declared value. Each endpoint by itself: one that fails hides no other."""
    done = []
    fixable = {finding.resource for finding in report.findings if finding.fixable}
    for at in report.observed.endpoints:
        if _named(at) not in fixable or at.live is None:
            continue
        before, want = at.live.workers_max, at.declared.workers_max
        try:
            answer = await rest.get_endpoint(at.declared.id)
            # All of `workers`, as it is told: whether RunPod merges a partial object is not documented.
            workers = {**answer["workers"], "max": want}
            await rest.update_endpoint(at.declared.id, {"workers": workers})
            now = int((await rest.get_endpoint(at.declared.id))["workers"]["max"])
        except NightbatchError as error:
            done.append(Mended(_named(at), f"workers.max could not be raised to {want}: {error}", False))
            continue
        if now == want:
            done.append(Mended(_named(at), f"workers.max raised from {before} to {want}, as declared.", True))
        else:
            text = f"workers.max was set to {want}, and RunPod says {now}: is the account's worker quota used up?"
            done.append(Mended(_named(at), text, False))
    return tuple(done)


# --- telling -------------------------------------------------------------------------------------------------------------------------


def report_lines(report: Report) -> list[str]:
    """For a person: what was found, each with evidence, cause and mend; then what is worth knowing; then what could not be seen."""
    seen, lines = report.observed, []
    count = len(report.findings)
    lines.append(f"stack {seen.facts.stack}: {'nothing found' if not count else '1 finding' if count == 1 else f'{count} findings'}")
    for finding in report.findings:
        lines.append(f"{finding.severity.upper():<8} {finding.resource}  [{finding.code}]")
        lines += [f"  seen   {line}" if at == 0 else f"         {line}" for at, line in enumerate(finding.evidence.split("\n"))]
        lines.append(f"  cause  {finding.cause}")
        lines.append(f"  mend   {finding.mend}")
    lines += [f"fixed    {one.resource}: {one.text}" if one.done else f"NOT FIXED {one.resource}: {one.text}" for one in report.mended]
    lines += [f"fact     {text}" for text in report.facts]
    lines += [f"unread   {one.what}: {one.why}" for one in seen.unread]
    return lines


def report_record(report: Report) -> dict[str, Any]:
    """For a program."""
    seen = report.observed
    return {
        "stack": seen.facts.stack,
        "at": seen.at.isoformat(),
        "findings": [
            {
                "code": f.code,
                "severity": f.severity,
                "resource": f.resource,
                "evidence": f.evidence,
                "cause": f.cause,
                "mend": f.mend,
                "fixable": f.fixable,
            }
            for f in report.findings
        ],
        "mended": [{"resource": one.resource, "text": one.text, "done": one.done} for one in report.mended],
        "facts": list(report.facts),
        "unread": [{"what": one.what, "why": one.why} for one in seen.unread],
        "exit_code": report.exit_code,
    }


def span(seconds: float | None) -> str:
    """A duration as people say it."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.1f} days"


def _facts(seen: Observed) -> Iterator[str]:
    for at in seen.endpoints:
        parts = []
        if at.live is not None:
            parts.append(f"workers.max {at.live.workers_max}")
        if at.workers is not None:
            counts: dict[str, int] = {}
            for worker in at.workers:
                counts[worker.status.lower()] = counts.get(worker.status.lower(), 0) + 1
            parts.append("workers " + (", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "none"))
        if at.health is not None:
            parts.append(f"{at.health.in_queue} jobs queued, {at.health.in_progress} running")
        delay, execution = _medians(at.jobs)
        if delay is not None and execution is not None:
            parts.append(f"jobs wait {span(delay)} and compute {span(execution)} (medians of {len(at.jobs)})")
        if parts:
            yield f"{_named(at)}: {'; '.join(parts)}"
        if at.live is not None and at.live.env.get(MODEL_SOURCE, "").split(":")[0] == "cached":
            yield f"{_named(at)}: its model is one of RunPod's cached models; no API tells whether it is set in the console"
    for probe in seen.stores:
        if probe.step is None:
            kind = {"conditional": "conditional writes hold", "last-writer": "no conditional writes"}.get(probe.mode or "", "mode unknown")
            yield f"s3://{seen.facts.store.bucket} with the {probe.keys}'s keys: written and read in {probe.seconds:.1f} s; {kind}"
    for volume in seen.volumes:
        if volume.used_bytes is None:
            yield f"volume {volume.name} ({volume.id}): {volume.size_gb} GB; no API tells how much of it is used"
        else:
            least = "" if volume.complete else "at least "
            yield f"volume {volume.name} ({volume.id}): {least}{volume.used_bytes / 1e9:.1f} of {volume.size_gb} GB used"
    if seen.account is not None and seen.account.quota is None:
        total = sum(most for _, _, most in seen.account.endpoints)
        yield f"account: workers.max of all {len(seen.account.endpoints)} endpoints is {total}; no API tells its quota (--quota N)"
    if seen.webhook is not None and seen.webhook.status is not None:
        yield f"webhook {seen.webhook.url}: answers ({seen.webhook.status}); only a run's own receiver answers 200"


# --- parts of sentences --------------------------------------------------------------------------------------------------------------


def _named(at: EndpointSeen) -> str:
    return f"{'load-balancing ' if at.balanced else ''}endpoint {at.declared.name} ({at.declared.id})"


def _workers(count: int) -> str:
    return "1 worker is" if count == 1 else f"{count} workers are"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _count(at: EndpointSeen, status: Literal["THROTTLED", "UNHEALTHY"]) -> int:
    """By REST v2's list or /health's gauge: the two can disagree for a while, and either is a sign."""
    gauge = 0 if at.health is None else at.health.throttled if status == "THROTTLED" else at.health.unhealthy
    return max(len(at.by_status(status)), gauge)


def _pools(at: EndpointSeen) -> str:
    return " or ".join(at.live.pools) if at.live and at.live.pools else at.declared.gpu


def _where(at: EndpointSeen) -> str:
    return " in the data centre of its volume" if at.live and at.live.volumes else ""


def _stock_text(seen: Observed, at: EndpointSeen) -> str:
    if seen.stock is None or at.live is None:
        return ""
    levels = [f"{pool} {seen.stock[pool].lower()}" for pool in at.live.pools if pool in seen.stock]
    return f"; stock now: {', '.join(levels)}" if levels else ""


def _logs(workers: Sequence[WorkerSeen]) -> str:
    """The last lines of the workers that have some, three workers at most."""
    told = [worker for worker in workers if worker.log][:3]
    return "".join(f"\n{worker.id}: {line}" for worker in told for line in worker.log[-LOG_LINES:])


def _digest(image: str) -> str:
    return image.rpartition("@")[2]


def _medians(jobs: Sequence[JobSeen]) -> tuple[float | None, float | None]:
    """Of waiting and computing, over jobs that ended; None where they are too few to say."""
    ended = [job for job in jobs if job.delay_s is not None and job.execution_s]
    if len(ended) < FEW:
        return None, None
    return statistics.median(job.delay_s or 0.0 for job in ended), statistics.median(job.execution_s or 0.0 for job in ended)


def _expired(job: JobSeen) -> bool:
    """RunPod knows the job no more, and the client gave it up without a result. A 404 alone says nothing: results are kept for 30 min."""
    return job.status is None and job.known == "expired"


def _on_volume(seen: Observed) -> bool:
    return any(volume.bucket for volume in seen.volumes) or ".runpod.io" in seen.facts.store.endpoint_url
