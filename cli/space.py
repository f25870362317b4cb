"""cli: `nightbatch space`: embedding spaces: what there is, how others read it, keeping it small. Calls nights.spaces.

Help must be quick, so nothing here imports another room until a command runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli import options as o
from cli.extras import needs
from cli.output import emit, say
from cli.policy import guarded, session

if TYPE_CHECKING:
    from cli.work import Where
    from nights.spaces.canary import CanaryFile
    from nights.spaces.overview import Overview
    from nights.spaces.table import Home

T = TypeVar("T")
app = typer.Typer(name="space", help="Embedding spaces: what there is, how others read it, keeping it small.", **o.PLAIN)


class With(StrEnum):
    """Who reads."""

    duckdb = "duckdb"
    polars = "polars"
    pandas = "pandas"
    pgvector = "pgvector"
    lancedb = "lancedb"
    qdrant = "qdrant"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The space's name.", show_default=False)]
OlderThan = Annotated[str, typer.Option("--older-than", metavar="TIME", help="What is older goes, as 30d or 12h.")]
WithOption = Annotated[With, typer.Option("--with", help="The program that reads it.", show_default=False)]
Renew = Annotated[bool, typer.Option("--renew", help="Forget them.")]
Version = Annotated[int | None, typer.Option("--version", metavar="N", help="A version; the latest unless said.", show_default=False)]


@app.command("list", short_help="Spaces of a stack: versions, rows, sizes, costs.")
@guarded
def list_(stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """List the embedding spaces of a stack."""
    from cli.work import Where
    from contract.words import counted, usd

    async def main(home: Home) -> tuple[Overview, ...]:
        from nights.spaces.overview import overviews

        return await overviews(home)

    found = _with_home(Where(stack, facts), main)
    if session.json_output:
        emit({"spaces": [_record(one) for one in found]})
        return 0
    if not found:
        say("there is no space; a job with `space:` makes one.")
    for one in found:
        latest = one.latest
        if latest is None:
            print(session.clean(f"{one.space.name}: no version yet ({one.space.parameters.model})"))
            continue
        print(
            session.clean(
                f"{one.space.name}: version {latest.version} of {latest.at:%Y-%m-%d %H:%M} UTC, {latest.rows:,} rows x {one.dimensions}, "
                f"{_size(latest.bytes)} in {counted(latest.fragments, 'file')}, {counted(len(one.nights), 'night')} for {usd(one.usd)} "
                f"({one.space.parameters.model})"
            )
        )
    return 0


@app.command("show", short_help="One space: parameters, versions, nights, canary.")
@guarded
def show(name: Name, stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Say what a space is made of: its parameters, its versions and what each night changed, its kept rows."""
    from cli.work import Where
    from contract.words import usd

    async def main(home: Home) -> Overview:
        from nights.spaces.overview import overview
        from nights.spaces.table import find_space

        return await overview(await find_space(home, name))

    found = _with_home(Where(stack, facts), main)
    if session.json_output:
        emit({**_record(found), **_details(found)})
        return 0
    lines = [f"{found.space.name}: {found.space.uri}"]
    lines += [f"  {key}: {value}" for key, value in _parameters(found).items()]
    if found.canary is not None:
        made = ", ".join(f"{key} {value}" for key, value in found.canary.facts.items())
        lines.append(f"  canary: {len(found.canary.rows)} rows, kept {found.canary.at:%Y-%m-%d}{f' ({made})' if made else ''}")
    nights = {night.table_version: night for night in found.nights}
    for one in found.snapshots:
        night = nights.get(one.version)
        what = (
            f"{night.night}: {night.added:,} added, {night.changed:,} changed, {night.removed:,} removed, {night.failed:,} failed, "
            f"{usd(night.usd)}"
            if night
            else one.night or "compaction or settings"
        )
        lines.append(f"  version {one.version}, {one.at:%Y-%m-%d %H:%M} UTC: {one.rows:,} rows, {_size(one.bytes)}; {what}")
    print(session.clean("\n".join(lines)))
    return 0


@app.command("query", short_help="The code by which DuckDB, Polars, pandas and others read it.")
@guarded
def query(
    name: Name,
    with_: WithOption,
    version: Version = None,
    stack: o.Stack = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Print a Python program that reads the space, or keeps a copy of it up to date. It holds no key: those come from the environment."""
    from cli.work import Where

    async def main(home: Home) -> str | None:
        from nights.spaces.overview import program_for
        from nights.spaces.table import find_space

        return await program_for(await find_space(home, name), with_.value, version)

    text = _with_home(Where(stack, facts), main)
    from nights.spaces.recipes import NEEDS

    if text is None:
        from contract.errors import UsageError

        raise UsageError("it has no version yet.", where=f"space {name}", fix="Its first night makes one.")
    needs = f"pip install {NEEDS[with_.value]}"
    if session.json_output:
        emit({"space": name, "with": with_.value, "version": version, "install": needs, "program": text})
        return 0
    from contract.facts import local_facts_path

    local = f", of the local stack `s3` in {local_facts_path()}" if (stack or "local") == "local" and facts is None else ""
    say(f"# {needs}; keys: NIGHTBATCH_S3_ACCESS_KEY_ID, NIGHTBATCH_S3_SECRET_ACCESS_KEY{local}")
    print(session.clean(text), end="")
    return 0


@app.command("canary", short_help="The rows that are embedded again each night; keep new ones.")
@guarded
def canary(name: Name, renew: Renew = False, stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Say which rows are kept as canaries and what their vectors were made with. After a change that is meant, `--renew` forgets them, and
    the next night that computes something keeps new vectors."""
    from cli.work import Where

    async def main(home: Home) -> CanaryFile | None:
        from nights.spaces.canary import forget_canary, read_canary
        from nights.spaces.table import find_space

        space = await find_space(home, name)
        kept = await read_canary(space)
        if renew and kept is not None:
            await forget_canary(space)
        return kept

    kept = _with_home(Where(stack, facts), main)
    if session.json_output:
        found = None if kept is None else {"rows": [row.id for row in kept.rows], "at": kept.at.isoformat(), "facts": kept.facts}
        emit({"space": name, "canary": found, "forgotten": renew and kept is not None})
    elif kept is None:
        print(session.clean(f"{name}: no canary is kept; the next night that computes something keeps one"))
    else:
        made = ", ".join(f"{key} {value}" for key, value in kept.facts.items()) or "nothing is known of how"
        print(
            session.clean(f"{name}: {len(kept.rows)} rows, kept {kept.at:%Y-%m-%d %H:%M} UTC ({made}){'; forgotten now' if renew else ''}")
        )
        print(session.clean("".join(f"  {row.id}\n" for row in kept.rows)), end="")
    return 0


@app.command("prune", short_help="Forget old versions and deltas.")
@guarded
def prune(name: Name, older_than: OlderThan = "30d", stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Forget versions that are older, and the files and deltas that only they need. The latest version stays."""
    from cli.work import Where, parse_span

    span = parse_span(older_than, "--older-than")

    async def main(home: Home) -> Any:
        from nights.spaces.overview import forget
        from nights.spaces.table import find_space

        space = await find_space(home, name)
        await home.store.head(f"{space.root}/space.json")
        return await forget(space, span, home.store.now())

    done = _with_home(Where(stack, facts), main)
    versions, size, count = (done.table.versions, done.table.bytes, done.deltas) if done is not None else (0, 0, 0)
    if session.json_output:
        emit({"space": name, "versions": versions, "bytes": size, "deltas": count})
    else:
        print(session.clean(f"{name}: {versions} versions ({_size(size)}) and {count} deltas are gone"))
    return 0


@app.command("compact", short_help="Join small files, drop deleted rows.")
@guarded
def compact(name: Name, stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Join the table's small files and drop rows that were deleted, as one version more. Readers and nights are not disturbed."""
    from cli.work import Where

    async def main(home: Home) -> Any:
        from nights.spaces.table import compact, find_space

        return await compact(await find_space(home, name))

    done = _with_home(Where(stack, facts), main)
    if session.json_output:
        known = (done.version_before, done.version, done.fragments_before, done.fragments) if done is not None else (None, None, 0, 0)
        emit(dict(zip(("space", "version_before", "version", "files_before", "files"), (name, *known), strict=True)))
    elif done is None:
        print(session.clean(f"{name}: no version yet"))
    elif done.version == done.version_before:
        print(session.clean(f"{name}: nothing to do; {done.fragments} files"))
    else:
        print(session.clean(f"{name}: {done.fragments_before} files became {done.fragments}, version {done.version}"))
    return 0


def _with_home(where: Where, main: Callable[[Home], Awaitable[T]]) -> T:
    from cli import work

    needs("nights", "spaces need", "lance=pylance")

    async def body() -> T:
        from nights.spaces.table import home_of
        from pipelines.work import buckets_of

        stack = await work.find_stack(where)
        async with buckets_of(stack) as buckets:
            return await main(home_of(buckets.main, stack.facts.store.prefix, stack.secrets.s3))

    return work.run_async(body)


def _size(count: int) -> str:
    from nights.report.text import size

    return size(count)


def _record(one: Overview) -> dict[str, Any]:
    latest = one.latest
    return {
        "space": one.space.name,
        "table": one.space.uri,
        "model": one.space.parameters.model,
        "dimensions": one.dimensions,
        "version": latest.version if latest else None,
        "at": latest.at.isoformat() if latest else None,
        "rows": latest.rows if latest else 0,
        "bytes": latest.bytes if latest else 0,
        "files": latest.fragments if latest else 0,
        "nights": len(one.nights),
        "usd_estimated": one.usd,
        "bytes_written": one.bytes_written,
    }


def _details(one: Overview) -> dict[str, Any]:
    import msgspec

    canary = one.canary
    return {
        "parameters": msgspec.to_builtins(one.space.parameters),
        "digest": one.space.file.digest,
        "versions": [
            {
                "version": v.version,
                "at": v.at.isoformat(),
                "rows": v.rows,
                "bytes": v.bytes,
                "files": v.fragments,
                "night": v.night,
                "job": v.job,
            }
            for v in one.snapshots
        ],
        "deltas": [msgspec.to_builtins(night) for night in one.nights],
        "canary": None if canary is None else {"rows": len(canary.rows), "at": canary.at.isoformat(), "facts": canary.facts},
    }


def _parameters(one: Overview) -> dict[str, Any]:
    import msgspec

    named = {**msgspec.to_builtins(one.space.parameters)}
    named.pop("version")
    return {key: value for key, value in named.items() if value not in (None, "", {})}
