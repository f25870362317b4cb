# tests/nights/spaces: `nightbatch space` over a stack with a real S3 server.
from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.app import app
from contract.facts import StackFacts, StoreFacts
from contract.models import encode
from contract.store import S3Store
from emulator.s3 import KeyPair, SeaweedS3
from nights.spaces.canary import keep_canary
from nights.spaces.table import home_of
from nights.spaces.update import apply
from pipelines.scratch import scratch_folder
from tests.nights.spaces.space_kit import SpaceHouse
from tests.pipelines.planning import EMBED

pytestmark = pytest.mark.slow
TEXTS = {f"r{n}": f"text number {n}" for n in range(20)}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A stack with a space of three nights; what a command needs in its environment."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "s3").mkdir()
    client, worker = (KeyPair(secrets.token_hex(8), secrets.token_hex(16)) for _ in range(2))
    server = SeaweedS3(folder / "s3", "stack", client, worker)
    with asyncio.Runner() as loop:
        loop.run(server.start())
        loop.run(_three_nights(folder, server))
        facts = StackFacts(
            stack="dev", store=StoreFacts(bucket="stack", endpoint_url=server.endpoint_url, prefix="team"), endpoints=(EMBED,)
        )
        (folder / "facts.json").write_bytes(encode(facts))
        yield {
            "NIGHTBATCH_STACK": "dev",
            "NIGHTBATCH_FACTS": str(folder / "facts.json"),
            "RUNPOD_API_KEY": "a-key",
            "NIGHTBATCH_S3_ACCESS_KEY_ID": client.access,
            "NIGHTBATCH_S3_SECRET_ACCESS_KEY": client.secret,
        }
        loop.run(server.stop())


async def _three_nights(folder: Path, server: SeaweedS3) -> None:
    store = S3Store(server.client_config)
    world = SpaceHouse(folder, home_=home_of(store, "team", server.client_config))
    await world.night(TEXTS)
    await world.night({**TEXTS, "r3": "another text"})
    later = {**TEXTS, "r3": "another text", "a": "1", "b": "2", "c": "3"}
    with scratch_folder() as scratch:
        found = await world.difference(later, scratch)
        finished = await world.compute(found, scratch)
        await apply(found.space, found, finished, scratch, job="reviews", night="2026-03-03")
        await keep_canary(found.space, found, {"vllm": "0.25.1"}, rows=3)
    await store.close()


def run(stack: dict[str, str], *words: str, code: int = 0) -> Any:
    found = CliRunner().invoke(app, ["space", *words], env=stack)
    assert found.exit_code == code, found.output
    assert stack["NIGHTBATCH_S3_SECRET_ACCESS_KEY"] not in found.output
    return json.loads(found.stdout) if "--json" in words else found.stdout


def test_list_tells_what_there_is(stack: dict[str, str]) -> None:
    said = run(stack, "list")
    assert said.startswith("reviews: version 3 of ")
    assert "23 rows x 8" in said
    assert "3 nights for $0.00" in said
    assert "3 nights for $0.00 " not in said  # less than a cent is told, not rounded away
    assert " kB in " in said
    [one] = run(stack, "list", "--json")["spaces"]
    assert (one["space"], one["version"], one["rows"], one["dimensions"], one["nights"]) == ("reviews", 3, 23, 8, 3)
    assert one["usd_estimated"] > 0


def test_show_tells_each_night(stack: dict[str, str]) -> None:
    said = run(stack, "show", "reviews")
    assert "version 2" in said
    assert "2026-03-02: 0 added, 1 changed, 0 removed, 0 failed" in said
    assert "canary: 3 rows" in said
    found = run(stack, "show", "reviews", "--json")
    assert found["parameters"]["model"] == "minilm"
    assert [one["table_version"] for one in found["deltas"]] == [1, 2, 3]
    assert found["canary"]["facts"] == {"vllm": "0.25.1"}


def test_query_prints_a_program(stack: dict[str, str]) -> None:
    said = run(stack, "query", "reviews", "--with", "duckdb")
    compile(said, "program", "exec")
    assert "s3://stack/team/spaces/reviews/table.lance" in said
    found = run(stack, "query", "reviews", "--with", "polars", "--version", "1", "--json")
    assert "version=1" in found["program"]
    assert found["install"] == "pip install pylance polars"


def test_a_name_or_a_version_that_is_not_there_is_said(stack: dict[str, str]) -> None:
    found = CliRunner().invoke(app, ["space", "show", "review"], env=stack)
    assert found.exit_code == 2
    assert "there is no space of this name. There are: reviews." in found.output
    found = CliRunner().invoke(app, ["space", "query", "reviews", "--with", "pandas", "--version", "77"], env=stack)
    assert found.exit_code == 2
    assert "there is no version 77" in found.output
    assert "nightbatch space show reviews" in found.output


def test_canaries_are_told_and_forgotten_when_that_is_asked(stack: dict[str, str]) -> None:
    rows = run(stack, "canary", "reviews", "--json")["canary"]["rows"]
    assert len(rows) == 3
    assert rows[0] in run(stack, "canary", "reviews")
    assert run(stack, "canary", "reviews", "--renew", "--json")["forgotten"] is True
    assert "no canary is kept" in run(stack, "canary", "reviews")


def test_compact_and_prune_keep_the_latest_version(stack: dict[str, str]) -> None:
    done = run(stack, "compact", "reviews", "--json")
    assert (done["files_before"], done["files"]) == (3, 1)
    assert "nothing to do" in run(stack, "compact", "reviews")
    assert run(stack, "prune", "reviews", "--older-than", "1d", "--json")["versions"] == 0
    gone = run(stack, "prune", "reviews", "--older-than", "1s", "--json")
    assert gone["versions"] >= 2
    assert run(stack, "list", "--json")["spaces"][0]["rows"] == 23
