# tests/nights/spaces: every program that `nightbatch space query` prints, run as it is, against a real space on a real S3 server.
from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from contract.store import S3Store
from emulator.s3 import KeyPair, SeaweedS3
from nights.spaces.overview import overview, overviews, program_for
from nights.spaces.recipes import READERS, Facts, Reader, recipe
from nights.spaces.table import Home, Moved, compact, home_of
from nights.spaces.update import apply
from pipelines.scratch import scratch_folder
from tests.nights.spaces.space_kit import SpaceHouse, expected, near

TEXTS = {f"r{n}": f"text number {n}" for n in range(300)}
LATER = {**{key: text for key, text in TEXTS.items() if key != "r7"}, "r3": "another text", "new": "a new row"}
BUCKET = "spaces"


@pytest.fixture(scope="module")
def readers_python(repo: Path) -> Path:
    done = subprocess.run([str(repo / "scripts" / "bootstrap"), "readers"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SeaweedS3]:
    client, worker = (KeyPair(secrets.token_hex(8), secrets.token_hex(16)) for _ in range(2))
    server = SeaweedS3(tmp_path / "s3", BUCKET, client, worker)
    (tmp_path / "s3").mkdir()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def home(server: SeaweedS3) -> AsyncIterator[Home]:
    store = S3Store(server.client_config)
    yield home_of(store, "team/a", server.client_config)
    await store.close()


async def run(python: Path, program: str, server: SeaweedS3, **more: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "NIGHTBATCH_S3_ACCESS_KEY_ID": server.client_keys.access,
        "NIGHTBATCH_S3_SECRET_ACCESS_KEY": server.client_keys.secret,
        "AWS_EC2_METADATA_DISABLED": "true",
        **more,
    }
    process = await asyncio.create_subprocess_exec(
        python, "-W", "ignore", "-c", program, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    return out.decode()


@pytest.mark.slow
async def test_a_space_on_s3_is_what_it_is_in_a_folder(tmp_path: Path, home: Home) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    await world.night(TEXTS)
    night = await world.night(LATER)
    assert (night.version, night.added, night.changed, night.removed) == (2, 1, 1, 1)
    assert near(world.content(), expected(LATER))
    assert near(world.content(1), expected(TEXTS))
    done = await compact(await world.space())
    assert done is not None
    assert (done.fragments_before, done.fragments, done.version) == (2, 1, 4)
    found = await overviews(home)
    assert [one.space.name for one in found] == ["reviews"]
    whole = await overview(found[0].space)
    assert [one.table_version for one in whole.nights] == [1, 2]
    assert whole.latest is not None
    assert whole.latest.rows == 300


@pytest.mark.slow
async def test_of_two_commits_on_s3_in_the_same_moment_one_counts(tmp_path: Path, home: Home) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    for before in ({}, TEXTS):
        if before:
            await world.night(before)
        with scratch_folder() as one, scratch_folder() as two:
            first = await world.difference({**before, "x": f"the first {len(before)}"}, one)
            second = await world.difference({**before, "x": f"the second {len(before)}"}, two)
            done, other = await world.compute(first, one), await world.compute(second, two)
            results = await asyncio.gather(
                apply(first.space, first, done, one, job="reviews", night="2026-04-02"),
                apply(second.space, second, other, two, job="others", night="2026-04-02"),
                return_exceptions=True,
            )
        assert sum(isinstance(one, Moved) for one in results) == 1, results
        winner = "the first" if isinstance(results[1], Moved) else "the second"
        assert near(world.content(), expected({**before, "x": f"{winner} {len(before)}"}))


@pytest.mark.readers
@pytest.mark.slow
@pytest.mark.parametrize("reader", ["duckdb", "polars", "pandas", "lancedb"])
async def test_the_printed_program_reads_the_space(
    reader: Reader, tmp_path: Path, home: Home, server: SeaweedS3, readers_python: Path
) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    await world.night(TEXTS)
    await world.night({**LATER, "more": "rows"})
    program = await program_for(await world.space(), reader)
    assert program is not None
    assert server.client_keys.secret not in program
    said = await run(readers_python, program, server)
    assert "301" in said, said
    if reader in ("polars", "pandas"):
        assert "(301, 8)" in said
    else:
        nearest = re.search(r"r\d+|new|more", said)
        assert nearest is not None, said


@pytest.mark.readers
@pytest.mark.slow
@pytest.mark.parametrize("reader", ["duckdb", "polars", "pandas"])
async def test_the_printed_program_reads_an_older_version(
    reader: Reader, tmp_path: Path, home: Home, server: SeaweedS3, readers_python: Path
) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    await world.night(TEXTS)
    await world.night({"r1": TEXTS["r1"]})
    program = await program_for(await world.space(), reader, 1)
    assert program is not None
    assert "300" in await run(readers_python, program, server)


# Runs a program in a process that sees the database of the run before: the client is `:memory:` in the printed program.
QDRANT = """
import os, sys
import qdrant_client
real = qdrant_client.QdrantClient
qdrant_client.QdrantClient = lambda place: real(path=os.environ["TEST_FOLDER"])
exec(compile(os.environ["TEST_PROGRAM"], "program", "exec"), globals())
client.close()
client = real(path=os.environ["TEST_FOLDER"])
import json
points, _ = client.scroll(name, limit=10000, with_vectors=True)
print(json.dumps({p.payload["id"]: p.vector for p in points}))
"""


@pytest.mark.readers
@pytest.mark.slow
async def test_qdrant_follows_the_nights(tmp_path: Path, home: Home, server: SeaweedS3, readers_python: Path) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    await world.night(TEXTS)

    async def follow() -> dict[str, list[float]]:
        program = await program_for(await world.space(), "qdrant")
        assert program is not None
        said = await run(readers_python, QDRANT, server, TEST_PROGRAM=program, TEST_FOLDER=str(tmp_path / "qdrant"))
        found: dict[str, list[float]] = json.loads(said.splitlines()[-1])
        return found

    assert close(await follow(), expected(TEXTS))
    await world.night(LATER)
    await compact(await world.space())
    assert close(await follow(), expected(LATER))
    assert close(await follow(), expected(LATER)), "following twice changes nothing"
    last = {**LATER, "r4": "x"}
    await world.night({**LATER, "r4": "w"})
    await world.night(last)
    space = await world.space()
    first = (await overview(space)).nights
    for one in first[:-1]:  # as `prune` would
        await home.store.delete(f"{space.root}/deltas/{one.night}/{one.key}.json")
    assert close(await follow(), expected(last)), "a copy that is older than the deltas is loaded again"


def close(one: dict[str, list[float]], other: dict[str, list[float]]) -> bool:
    return one.keys() == other.keys() and all(abs(a - b) < 1e-5 for key in one for a, b in zip(one[key], other[key], strict=True))


# Starts Postgres, runs the program, shows the table.
POSTGRES = """
import os, sys
try:
    import pgserver
except ImportError:
    print("no pgserver")
    sys.exit()
server = pgserver.get_server(os.environ["TEST_FOLDER"], cleanup_mode="stop")
try:
    os.environ["DATABASE_URL"] = server.get_uri()
    exec(compile(os.environ["TEST_PROGRAM"], "program", "exec"), globals())
    import json
    with psycopg.connect(server.get_uri()) as connection:
        print(json.dumps({i: json.loads(v) for i, v in connection.execute(f'SELECT id, embedding::text FROM "{table}"')}))
finally:
    server.cleanup()
"""


@pytest.mark.readers
@pytest.mark.slow
async def test_pgvector_follows_the_nights(tmp_path: Path, home: Home, server: SeaweedS3, readers_python: Path, short_folder: Path) -> None:
    world = SpaceHouse(tmp_path, home_=home)
    for texts in (TEXTS, LATER, {"r3": "another text"}):
        await world.night(texts)
        program = await program_for(await world.space(), "pgvector")
        assert program is not None
        said = await run(readers_python, POSTGRES, server, TEST_PROGRAM=program, TEST_FOLDER=str(short_folder))
        if said.startswith("no pgserver"):
            pytest.skip("there is no package pgserver for this machine")
        assert close(json.loads(said.splitlines()[-1]), expected(texts))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose names may not be long; Postgres leaves root's own folders alone."""
    with tempfile.TemporaryDirectory(prefix="nb-", dir="/tmp", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o777)
        yield Path(name) / "data"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("endpoint", [None, "https://s3.example.com"])
def test_a_program_is_python_and_takes_its_keys_from_the_environment(reader: Reader, endpoint: str | None) -> None:
    root = "s3://bucket/a/spaces/re-views" if endpoint else "/data/spaces/re-views"
    text = recipe(reader, Facts(name="re-views", root=root, table="table.lance", dimensions=384, rows=10, endpoint=endpoint))
    compile(text, reader, "exec")
    assert ("NIGHTBATCH_S3_SECRET_ACCESS_KEY" in text) == (endpoint is not None)
