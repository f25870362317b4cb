"""infra/review: runs the previews of several stacks, at most two at once, and asks RunPod's billing what a night costs. Changes nothing.

Touches: processes (through infra.review.engine), and with a key REST v2's billing. Without a key no request is made.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from contract.errors import NightbatchError, UsageError
from infra.review.changes import ENDPOINT, at, changes
from infra.review.digest import decoded, read
from infra.review.engine import CHANGED, GRACE_S, PREVIEW_S, STACK_NOT_FOUND, Done, EngineError, Project, run
from infra.review.preview import StackPreview
from infra.settings import MOST, STACKS

AT_ONCE: Final = 2
"""Each preview is an engine, a language host, the program and the provider: two keep two cores busy."""
LOCAL: Final = "local"
NIGHTS: Final = 14
"""Days of billing that a typical night is taken from: the median of those that cost something."""


@dataclass(frozen=True)
class Asked:
    """What to preview. `refresh`: look at live state, which needs a key and shows drift; of these stacks, where it is a set of them."""

    stacks: tuple[str, ...]
    refresh: bool | frozenset[str] = False

    def looks_at(self, stack: str) -> bool:
        return self.refresh if isinstance(self.refresh, bool) else stack in self.refresh


def declared_stacks(folder: Path) -> tuple[str, ...]:
    """The stacks that have a stack file, by name. Raises UsageError when there is none."""
    named = re.search(r"(?m)^stackConfigDir:\s*[\"']?([^\s\"']+)", (folder / "Pulumi.yaml").read_text(encoding="utf-8"))
    where = folder / (named[1] if named else STACKS)
    files = sorted(where.glob("Pulumi.*.yaml")) or sorted(folder.glob("Pulumi.*.yaml"))
    found = tuple(file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files)
    if not found:
        raise UsageError("there are no stack files.", where=str(where), fix="A stack file is called Pulumi.NAME.yaml.")
    return found


def default_stacks(folder: Path) -> tuple[str, ...]:
    """All declared stacks but `local`, which lives on one machine."""
    found = declared_stacks(folder)
    return tuple(stack for stack in found if stack != LOCAL) or found


def preview_all(
    project: Project | Callable[[str], Project],
    asked: Asked,
    *,
    at_once: int = AT_ONCE,
    timeout_s: float = PREVIEW_S,
    grace_s: float = GRACE_S,
    on_done: Callable[[str], None] | None = None,
) -> list[StackPreview]:
    """The previews in the order of `asked.stacks`. One that fails is a result, too, and stops no other. An interrupt ends all. `project`:
    the one that all stacks are of, or what tells each stack's own, whose environment may hold another account's key."""
    running: list[subprocess.Popen[bytes]] = []
    stopping = threading.Event()

    def started(process: subprocess.Popen[bytes]) -> None:
        running.append(process)
        if stopping.is_set():  # it began beside the interrupt, which knew nothing of it: `run` ends it
            raise EngineError("the previews were stopped.")

    def one(stack: str) -> StackPreview:
        refreshed = asked.looks_at(stack)
        args = ["preview", "--json", "--show-sames", "--stack", stack, *(("--refresh", "--run-program") if refreshed else ())]
        of = project if isinstance(project, Project) else project(stack)
        done = run(args, cwd=of.folder, env=of.env, timeout_s=timeout_s, on_start=started)
        if on_done is not None:
            on_done(stack)
        return stack_preview(stack, done, refreshed=refreshed)

    pool = ThreadPoolExecutor(max_workers=at_once)
    try:
        futures = [pool.submit(one, stack) for stack in asked.stacks]
        return [future.result() for future in futures]
    except BaseException:
        stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        end(tuple(running), grace_s)
        raise
    finally:
        pool.shutdown()


def end(processes: Iterable[subprocess.Popen[bytes]], grace_s: float) -> None:
    """Interrupt the engines, and kill what is left of them after the grace. Whoever started them waits for them."""
    live = [process for process in processes if process.poll() is None]
    for process in live:
        process.send_signal(signal.SIGINT)
    until = time.monotonic() + grace_s
    for process in live:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def stack_preview(stack: str, done: Done, *, refreshed: bool) -> StackPreview:
    """What one run of `pulumi preview --json` came to."""
    digest = decoded(done.stdout)
    digest = digest if isinstance(digest, dict) else None
    errors: list[str] = []
    if done.timed_out:
        errors.append(f"`pulumi preview` was stopped after {done.seconds:.0f} s.")
    elif done.returncode == STACK_NOT_FOUND:
        errors.append(f"the state backend does not know this stack. Make it once: pulumi stack init {stack}")
    elif done.returncode not in (0, CHANGED) or digest is None:
        errors.append(done.problem or "the preview failed without a message.")
    return StackPreview(stack, digest, tuple(errors), done.returncode, refreshed)


def with_nights(previews: Sequence[StackPreview], nights: Mapping[str, float]) -> list[StackPreview]:
    """The previews with what the billing says of their endpoints."""
    found = []
    for preview in previews:
        mine = {change.id for change in changes(read(preview.digest).found) if change.type == ENDPOINT}
        found.append(replace(preview, nights={known: usd for known, usd in nights.items() if known in mine}))
    return found


async def billed_nights(base_url: str | None, key: str, *, deadline_s: float = 20.0) -> dict[str, float]:
    """Dollars of a typical night by endpoint id. Empty where the key may not see the bill: the report then says that it assumes."""
    from infra.provider.client import RestClient, clean_base_url

    try:
        async with RestClient(clean_base_url(base_url), key, deadline_s=deadline_s) as client:
            answer = await client.billing_serverless(bucket_size="day", last_n=NIGHTS + 1)
    except NightbatchError:
        return {}
    told = at(answer, ("metadata", "query", "endTime"))
    records = [record for record in answer["records"] if isinstance(record, Mapping)]
    return typical_nights(record for record in records if record.get("endTime") != told)  # today is not over


def typical_nights(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The median of an endpoint's days that cost something, by endpoint id."""
    days: dict[str, dict[str, float]] = {}
    for record in records:
        endpoint, amount = record.get("serverlessId"), record.get("totalAmount")
        if isinstance(endpoint, str) and isinstance(amount, int | float) and 0 < amount <= MOST:
            of = days.setdefault(endpoint, {})
            day = str(record.get("startTime", ""))[:10]
            of[day] = of.get(day, 0.0) + float(amount)
    return {endpoint: round(statistics.median(amounts.values()), 6) for endpoint, amounts in days.items()}


def commit_of(folder: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """The commit that is checked out, with `-changed` where files of it are not as committed; None where there is no git."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=20, check=True
        )
        status = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], cwd=folder, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("-changed" if status.stdout.strip() else "")
