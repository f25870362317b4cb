"""`nightbatch logs`: readable for a person, one object for a program, and nothing in either that should not be there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from typer.testing import CliRunner

from cli.app import app
from contract.errors import StoreUnavailable
from contract.facts import Stack, StackFacts, StackSecrets, StoreFacts
from contract.models import S3Config
from contract.rows import RowError
from tests.pipelines.runs import Row, Run, make_row, make_run
from tests.pipelines.test_logs import put_end, put_start

KEYS = S3Config(accessId="access", accessSecret="sesame-open-now", bucketName="memory", endpointUrl="memory:")
T = TypeVar("T")
Logs = Callable[..., Any]


def stack(name: str = "prod") -> Stack:
    store = StoreFacts(bucket="memory", endpoint_url="memory:")
    return Stack(StackFacts(stack=name, store=store, endpoints=()), StackSecrets("key-of-the-api", KEYS, KEYS))


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Run], Logs]:
    """`nightbatch logs` of a run in memory."""
    monkeypatch.setenv("NIGHTBATCH_HOME", str(tmp_path / "home"))

    def make(run: Run, name: str = "prod") -> Logs:
        class Opened:
            main = run.store

            def other(self, bucket: str) -> Any:
                raise AssertionError(bucket)

        @asynccontextmanager
        async def opened(found: Stack) -> AsyncIterator[Opened]:
            yield Opened()

        def loaded(*_: object, **__: object) -> Stack:
            return stack(name)

        monkeypatch.setattr("cli.work.load_stack", loaded)
        monkeypatch.setattr("pipelines.work.buckets_of", opened)
        return lambda *options: CliRunner().invoke(app, ["logs", run.plan.run_id, *options])

    return make


async def some_run() -> Run:
    run = await make_run()
    await put_start(run, "00000", "00000000000000aa", 1, -10)
    await put_end(run, "00000", "00000000000000aa", 1, 1)
    return run


def made(makes: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(makes)


def test_a_person_reads_lines_and_a_program_one_object(of: Callable[[Run], Logs]) -> None:
    run = made(some_run())
    logs = of(run)
    found = logs()
    assert found.exit_code == 0
    assert "2026-01-02 03:03:55Z  worker w-1              00000    begins attempt 1, engine started in 2.0 s" in found.stdout
    record = json.loads(logs("--json").stdout)
    assert record["run"] == run.plan.run
    assert record["count"] == len(record["lines"]) == len(found.stdout.splitlines())
    assert record["damaged"] == []
    assert {line["kind"] for line in record["lines"]} == {"planned", "begins", "ends", "commit"}
    one = json.loads(logs("--json", "--id", "row-2").stdout)
    assert one["row"] == {
        "id": "row-2", "index": 2, "shards": ["00000"], "error": {"code": "code_0", "message": "row 2 is bad", "param": None}
    }  # fmt: skip


def test_a_row_or_shard_that_is_not_there_is_a_usage_error(of: Callable[[Run], Logs]) -> None:
    logs = of(made(some_run()))
    for options, near in (("--id", "rov-2"), "row-2"), (("--shard", "0"), "00000"):
        found = logs(*options)
        assert found.exit_code == 2
        assert f"Did you mean {near}" in found.stderr
        assert found.stdout == ""
        record = json.loads(logs(*options, "--json").stdout)
        assert (record["state"], record["exit_code"]) == ("error", 2)


def test_a_run_that_is_not_there_is_a_usage_error(of: Callable[[Run], Logs]) -> None:
    run = made(some_run())
    of(run)
    found = CliRunner().invoke(app, ["logs", run.plan.run_id + "x"])
    assert found.exit_code == 2
    assert "there is no run at this address" in found.stderr


def hostile(kind: Any, index: int, ok: bool, *, prefix: str = "row") -> Row:
    row = make_row(kind, index, ok, prefix=prefix)
    error = RowError(code="\x1b[2Jcode", message=f"\x1b]0;title\x07line one\nline two, sesame-open-now {'x' * 5000}")
    return row if ok else Row(row.index, row.id, row.line, False, msgspec.json.encode(error))


def test_no_secret_and_no_control_character_is_printed_and_a_line_is_a_line(of: Callable[[Run], Logs]) -> None:
    logs = of(made(make_run(row=hostile)))
    found = logs("--errors")
    assert found.exit_code == 0
    rows = [line for line in found.stdout.splitlines() if "row-2" in line]
    assert len(rows) == 1
    assert "line one line two, <hidden>" in rows[0]
    assert "--json has all of it" in rows[0]
    told = logs("--errors", "--json").stdout
    assert "sesame" not in found.stdout + told
    assert "\x1b" not in found.stdout + told
    assert "x" * 5000 in json.dumps(json.loads(told))


def test_damage_is_named_and_has_its_exit_code(of: Callable[[Run], Logs]) -> None:
    run = made(some_run())
    made(run.store.put(run.keys.commit("00001"), b"{"))
    found = of(run)()
    assert found.exit_code == 1
    assert "1 object of the run could not be read: runs/" in found.stderr
    assert "begins attempt 1" in found.stdout


def test_a_store_that_goes_away_on_the_way_leaves_an_object_that_can_be_read(of: Callable[[Run], Logs]) -> None:
    run = made(some_run())

    async def gone(op: str, key: str) -> None:
        if op == "read":
            raise StoreUnavailable("the store gave no answer.", where=key)

    run.store.hook = gone
    found = of(run)("--errors", "--json")
    assert found.exit_code == 3
    record = json.loads(found.stdout)
    assert record["state"] == "error"
    assert record["error"] == "the store gave no answer."
    assert "the store gave no answer" in found.stderr


def test_nothing_wrong_is_said_as_that(of: Callable[[Run], Logs]) -> None:
    found = of(made(make_run(outcomes=[True] * 8)))("--errors")
    assert (found.exit_code, found.stdout) == (0, "")
    assert "nothing went wrong" in found.stderr


def test_on_the_local_stack_the_workers_own_lines_are_told(
    of: Callable[..., Logs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(some_run())
    folder = tmp_path / "home" / "local" / "logs" / run.plan.infra.endpoint
    folder.mkdir(parents=True)
    (folder / "w-1.log").write_text('{"requestId": "job-1", "message": "Started."}\nWARNING vllm: slow, key sesame-open-now\n')
    found = of(run, "local")()
    assert "log: WARNING vllm: slow, key <hidden>" in found.stdout
    assert "log:" not in of(run, "prod")().stdout


def test_a_worker_cannot_name_a_file_of_this_machine(of: Callable[..., Logs], tmp_path: Path) -> None:
    run = made(some_run())
    start = made(put_start(run, "00000", "00000000000000aa", 1, -10))
    made(
        run.store.put(
            run.keys.start("00000", "00000000000000aa"), msgspec.json.encode(msgspec.structs.replace(start, worker_id="../../../x"))
        )
    )
    (tmp_path / "home" / "local" / "logs" / run.plan.infra.endpoint).mkdir(parents=True)
    (tmp_path / "home" / "x.log").write_text('{"requestId": "job-1", "message": "Started."}\nWARNING private\n')
    found = of(run, "local")()
    assert found.exit_code == 0
    assert "private" not in found.stdout
