"""cli: `nightbatch logs`: what the workers and the client said of a run. Calls pipelines.logs; reads workers' own logs of the local stack.

Lines are printed as they come: a log of a million failed rows needs no more memory than a short one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cli.output import say
from cli.policy import session
from cli.progress import tidy
from cli.work import LOCAL, Where, address, find_stack, run_async
from contract.errors import InfrastructureError, NightbatchError
from contract.facts import Stack, state_dir
from contract.words import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from contract.models import StartMarker
    from pipelines.ledger import LedgerNote
    from pipelines.logs import Line, Log, Said

WORKER = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""A worker's name, which comes out of a bucket, as part of a file's name."""
LONGEST = 600
MOST_DAMAGED = 5


def logs(where: Where, run: str, *, shard: str | None, row_id: str | None, errors: bool) -> int:
    """Print it. Exit code 0 whatever it tells; 1 where objects of the run could not be read."""

    async def main() -> int:
        async with read(where, run, shard=shard, row_id=row_id, errors=errors) as log:
            await (print_json(log, shard) if session.json_output else print_lines(log))
        if log.damaged:
            more = f" and {len(log.damaged) - MOST_DAMAGED:,} more" if len(log.damaged) > MOST_DAMAGED else ""
            which = "; ".join(log.damaged[:MOST_DAMAGED])
            say(f"nightbatch: {counted(len(log.damaged), 'object')} of the run could not be read: {which}{more}")
        return 1 if log.damaged else 0

    return run_async(main)


@asynccontextmanager
async def read(where: Where, run: str, *, shard: str | None, row_id: str | None, errors: bool) -> AsyncIterator[Log]:
    """The log of a run, and its bucket open for as long as lines are taken from it."""
    from pipelines.logs import read_log
    from pipelines.runs import load_run
    from pipelines.work import buckets_of

    stack = await find_stack(where, run)
    uri = address(stack, run)
    session.run = uri
    async with buckets_of(stack) as buckets:
        handle = await load_run(buckets.main, uri)
        yield await read_log(
            buckets.main,
            handle,
            shard=shard,
            row_id=row_id,
            errors=errors,
            ledger=ledger_notes(uri),
            worker_lines=worker_lines(stack, handle.plan.infra.endpoint),
            open_store=buckets.other,
        )


def ledger_notes(uri: str) -> tuple[LedgerNote, ...]:
    """What this machine's ledger knows, if it has one: reading makes none."""
    from pipelines.ledger import Ledger

    if not (state_dir() / "ledger.sqlite3").exists():
        return ()
    try:
        with Ledger.open() as ledger:
            return ledger.notes_of(uri)
    except InfrastructureError as error:
        say(f"going on without the ledger: {error}")
        return ()


def worker_lines(stack: Stack, endpoint: str) -> Callable[[Sequence[StartMarker]], Iterator[Said]] | None:
    """What workers of the local stack wrote of these executions: elsewhere RunPod's console has it."""
    if stack.facts.stack != LOCAL:
        return None
    from emulator import local

    folder = local.local_dir() / local.LOGS / endpoint

    def said(starts: Sequence[StartMarker]) -> Iterator[Said]:
        from pipelines.logs import job_lines

        by_worker: dict[str, list[StartMarker]] = {}
        for start in starts:
            by_worker.setdefault(start.worker_id, []).append(start)
        for worker, mine in by_worker.items():
            path: Path = folder / f"{worker}.log"
            if WORKER.fullmatch(worker) and path.is_file():
                with path.open(encoding="utf-8", errors="replace") as lines:
                    yield from job_lines(lines, mine)

    return said


async def print_lines(log: Log) -> None:
    """For a person: instant, who, shard, what."""
    count = 0
    async with aclosing(cast("AsyncGenerator[Line]", log.lines())) as lines:
        async for line in lines:
            count += 1
            print(shown(line))
    if not count:
        say("nothing went wrong, as far as storage knows" if log.errors else "nothing was said yet")


def shown(line: Line) -> str:
    """A line of text, whatever it holds."""
    text = f"log: {tidy(line.text)}" if line.kind == "log" else tidy(line.text)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}… (--json has all of it)"
    return f"{line.at:%Y-%m-%d %H:%M:%SZ}  {tidy(line.who)[:24]:<22}  {tidy(line.shard or '-'):<7}  {text}"


async def print_json(log: Log, shard: str | None) -> None:
    """One object, written as it comes. An error on the way ends it as an object, too, with the error in it."""
    row: dict[str, Any] | None = None
    if log.row is not None:
        row = {"id": log.row.id, "index": log.row.index, "shards": list(log.row.nodes), "error": None}
        if log.row.error is not None:
            row["error"] = {"code": log.row.error.code, "message": log.row.error.message, "param": log.row.error.param}
    write(f'{{"run": {text_of(log.run.plan.run)}, "shard": {text_of(shard)}, "row": {text_of(row)}, "lines": [')
    count, failed = 0, None
    try:
        async with aclosing(cast("AsyncGenerator[Line]", log.lines())) as lines:
            async for line in lines:
                write(f"{',' if count else ''}\n{text_of(line.record())}")
                count += 1
    except NightbatchError as error:
        failed = error
    end: dict[str, Any] = {"count": count, "damaged": log.damaged}
    if failed is not None:
        end |= {"state": "error", "error": failed.what, "where": failed.where, "fix": failed.fix, "exit_code": failed.exit_code}
    write(f"\n], {text_of(end)[1:]}\n")
    if failed is not None:
        session.json_output = False  # its object is written: only the sentence is left to say
        raise failed


def text_of(value: Any) -> str:
    """As cli.output.emit does it: without secrets, and only what the stream can take."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return session.clean(json.dumps(value, ensure_ascii=ascii_only))


def write(text: str) -> None:
    sys.stdout.write(text)
