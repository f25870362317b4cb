"""Where pages go: beside runs and records, and into folders, whole or not at all; and the command."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cli.work
import pipelines.work
from benchmarks.report import Made, make_run
from cli.app import app
from contract.errors import AccessDenied, UsageError
from contract.facts import Stack, StackFacts, StackSecrets, StoreFacts
from contract.memory import MemoryStore
from contract.models import S3Config
from nights.record import Records
from nights.report.read import read_run
from nights.report.write import file_name, report_night, write_file, write_index, write_night_report, write_run_report
from tests.nights.report.kit import CLEAN, HOSTILE, SMALL, Page, night, verified_run

S3 = S3Config(accessId="access", accessSecret="secret", bucketName="memory", endpointUrl="memory:")
FACTS = StackFacts(stack="prod", store=StoreFacts(bucket="memory", endpoint_url="memory:"), endpoints=())
STACK = Stack(FACTS, StackSecrets("api-key", S3, S3))


async def test_a_runs_page_is_kept_beside_the_run() -> None:
    run = await make_run(SMALL)
    before = set(run.store.objects.data)
    report = await write_run_report(run.store, run.keys, run.plan)
    assert set(run.store.objects.data) - before == {f"{run.keys.root}/report.html", f"{run.keys.root}/report.json"}
    assert report.sentence.split(",")[0] in Page(run.store.objects.data[f"{run.keys.root}/report.html"].decode()).root.text


async def test_a_nights_page_is_kept_beside_its_record_and_is_no_night() -> None:
    run = await make_run(CLEAN)
    records = Records(run.store, "team/a")
    record = night(runs=(run.plan.run,))
    await records.put(record)
    report = await write_night_report(records, record)
    assert [one.run for one in report.runs] == [run.plan.run]
    assert Page(run.store.objects.data["team/a/nights/reviews/2026-11-28.html"].decode()).tiles()["Rows"] == "500,000"
    assert await records.dates("reviews") == ("2026-11-28",)


async def test_a_night_whose_runs_are_known_reads_none_again() -> None:
    run = await make_run(CLEAN)
    known = await read_run(run.store, run.keys, run.plan, now=run.now)
    asked: list[str] = []

    async def hook(op: str, key: str) -> None:
        asked.append(key)

    run.store.hook = hook
    await write_night_report(Records(run.store), night(runs=(run.plan.run,)), runs=[known])
    assert not [key for key in asked if "/runs/" in key or key.startswith("runs/")]


async def test_the_end_of_a_night_writes_all_its_pages_and_the_next_one_reads_each_run_once() -> None:
    run = await verified_run(CLEAN)
    records = Records(run.store)
    asked: list[str] = []

    async def hook(op: str, key: str) -> None:
        asked.append(f"{op} {key}")

    notes: list[str] = []
    found = await report_night(records, night(runs=(run.plan.run,)), note=notes.append)
    assert found is not None
    assert {f"{run.keys.root}/report.html", "nights/reviews/2026-11-28.html"} <= set(run.store.objects.data)
    run.store.hook = hook
    again = await report_night(records, night("2026-11-29", runs=(run.plan.run,)), note=notes.append)
    assert again is not None
    assert again.runs == found.runs
    assert [one for one in asked if "runs/" in one] == [f"get {run.keys.plan()}", f"get {run.keys.root}/report.json"]
    assert notes == []


async def test_a_page_that_cannot_be_written_fails_no_night() -> None:
    run = await make_run(CLEAN)

    async def hook(op: str, key: str) -> None:
        if op == "put":
            raise AccessDenied("put was refused (403).", where=key)

    run.store.hook = hook
    notes: list[str] = []
    assert await report_night(Records(run.store), night(runs=(run.plan.run, "nonsense")), note=notes.append) is None
    assert len(notes) == 3
    assert "report.html: put was refused" in notes[0]


# --- files ---------------------------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_file(path, "first")
    write_file(path, "second \u2028")
    assert path.read_text(encoding="utf-8") == "second \u2028"
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_made_leaves_the_one_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write_file(path, "first")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nights.report.write.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(path, "second")
    assert path.read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("place", "words"), [("folder", "this is a folder"), ("file/below", "no report can be"), ("n" * 300, "too long")])
def test_a_place_that_takes_no_file_is_a_sentence(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=words):
        write_file(tmp_path / place, "text")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(("name", "safe"), [("a-1.b_c", "a-1.b_c"), ("../../etc", "_.._etc"), ("", "_"), ("a/\x00ü", "a___"), ("..", "_")])
def test_a_name_out_of_a_bucket_leads_nowhere(name: str, safe: str) -> None:
    assert file_name(name) == safe


# --- the index -----------------------------------------------------------------------------------------------------------------------


async def a_stack(store: MemoryStore | None = None) -> Made:
    run = await verified_run(CLEAN) if store is None else await make_run(CLEAN, store)
    records = Records(run.store)
    await records.put(night("2026-11-27", sentence=HOSTILE[0]))
    await records.put(night("2026-11-28", runs=(run.plan.run,)))
    await run.store.put(f"{records.root('reviews')}lease.json", b"{}")
    await run.store.put(f"{records.root()}_told/reviews/2026-11-28/success.json", b"{}")
    return run


async def test_an_index_has_a_page_for_each_night_and_run(tmp_path: Path) -> None:
    run = await a_stack()
    found = await write_index(Records(run.store), run.store, tmp_path, title="Stack prod")
    index = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    links = [one.attributes["href"] for one in index.all("a") if not one.attributes["href"].startswith("#")]
    assert sorted(links) == ["nights/reviews/2026-11-27.html", "nights/reviews/2026-11-28.html", f"runs/{run.plan.run_id}.html"]
    assert all((tmp_path / link).is_file() for link in links)
    assert found.pages == 3
    assert found.index.gaps == ()


async def test_an_index_of_few_says_how_many_there_are(tmp_path: Path) -> None:
    run = await a_stack()
    found = await write_index(Records(run.store), run.store, tmp_path, title="Stack prod", most=1)
    assert (len(found.index.nights), found.index.more_nights) == (1, 1)
    assert found.index.nights[0].record.date == "2026-11-28"


async def test_one_damaged_run_or_record_hides_no_other(tmp_path: Path) -> None:
    run = await a_stack()
    await run.store.put("runs/broken-00000000/plan.json", b"{broken")
    await run.store.put("nights/reviews/2026-11-26.json", b'{"version": 9}')
    found = await write_index(Records(run.store), run.store, tmp_path, title="Stack prod")
    assert (len(found.index.nights), len(found.index.runs)) == (2, 1)
    assert len(found.index.gaps) == 2
    assert "broken-00000000" in (tmp_path / "index.html").read_text(encoding="utf-8")


# --- the command ---------------------------------------------------------------------------------------------------------------------


class FakeBuckets:
    def __init__(self, store: MemoryStore) -> None:
        self.main = store


@pytest.fixture
async def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Made:
    """A stack in memory, and the working folder is an empty one."""
    run = await a_stack()

    async def find(where: object, run: str | None = None) -> Stack:
        return STACK

    @asynccontextmanager
    async def buckets(found: Stack) -> AsyncIterator[FakeBuckets]:
        yield FakeBuckets(run.store)

    monkeypatch.setattr(cli.work, "find_stack", find)
    monkeypatch.setattr(pipelines.work, "buckets_of", buckets)
    monkeypatch.chdir(tmp_path)
    return run


def call(*arguments: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, ["report", *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_a_run_is_reported_by_its_id_or_its_address(stack: Made, tmp_path: Path) -> None:
    code, told = call(stack.plan.run_id)
    assert (code, told["kind"], told["run"], told["state"]) == (0, "run", stack.plan.run, "complete")
    text = (tmp_path / f"{stack.plan.run_id}.html").read_bytes()
    assert told["bytes"] == len(text)
    assert call(stack.plan.run, "--out", "other.html")[1]["report"] == "other.html"
    assert (tmp_path / "other.html").read_bytes() == text
    assert f"{stack.keys.root}/report.html" not in stack.store.objects.data


def test_a_job_is_reported_by_its_latest_night_or_by_date(stack: Made, tmp_path: Path) -> None:
    code, told = call("reviews")
    assert (code, told["kind"], told["night"]) == (0, "night", "reviews 2026-11-28")
    assert (tmp_path / "reviews-2026-11-28.html").is_file()
    assert call("reviews", "--date", "2026-11-27")[1]["night"] == "reviews 2026-11-27"


def test_store_keeps_the_page_beside_what_it_is_of(stack: Made) -> None:
    assert call(stack.plan.run_id, "--store")[1]["stored"] == f"{stack.plan.run}/report.html"
    assert call("reviews", "--store")[1]["stored"] == "s3://memory/nights/reviews/2026-11-28.html"
    assert f"{stack.keys.root}/report.json" in stack.store.objects.data
    assert "nights/reviews/2026-11-28.html" in stack.store.objects.data


def test_an_index_is_a_folder(stack: Made, tmp_path: Path) -> None:
    code, told = call("--index", "--out", "site", "--no-rows")
    assert (code, told["nights"], told["runs"], told["rows"]) == (0, 2, 1, False)
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Name a run or a job"),
        (("review",), "neither a run nor a night"),
        (("reviews", "--date", "2026-11-01"), "no night of reviews on this date"),
        (("reviews", "--date", "yesterday"), "is not a date"),
        (("s3://memory/runs/reviews-3f3f3f3f", "--date", "2026-11-28"), "a run has no date"),
        (("s3://memory/runs/nothing-00000000",), "there is no run at this address"),
        (("--index",), "an index is a folder of pages"),
        (("reviews", "--index", "--out", "x"), "RUN does not go with it"),
        (("reviews", "--last", "3"), "counts what an index has"),
        (("reviews", "--out", "."), "this is a folder"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(stack: Made, arguments: tuple[str, ...], words: str) -> None:
    code, told = call(*arguments)
    assert code == 2
    assert words in told["error"]


def test_a_report_says_what_was_missing_and_is_written_all_the_same(stack: Made, tmp_path: Path) -> None:
    stack.store.objects.data[stack.keys.commit("00000")] = b"{"
    code, told = call(stack.plan.run_id)
    assert code == 0
    assert "damaged" in told["gaps"][0]
