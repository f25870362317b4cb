"""`nightbatch report --billed`: RunPod's bill beside plan and estimate, with the emulator's control plane, and without an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from benchmarks.report import Made, make_run
from cli import reports, work
from cli.app import app
from contract.facts import EndpointFacts, Stack, StackFacts, StackSecrets, StoreFacts
from contract.models import S3Config
from emulator import EndpointConfig, FastClock, Script
from nights.record import Records
from nights.report.model import Bill, BilledHour
from nights.report.read import read_run
from tests.emulator.control_kit import controlled
from tests.emulator.kit import eventually, working
from tests.nights.report.kit import CLEAN, Page, night

AT: Final = datetime(2026, 11, 29, 21, tzinfo=UTC)
S3: Final = S3Config(accessId="client-access", accessSecret="client-secret", bucketName="memory", endpointUrl="https://s3.example.com")
NOWHERE: Final = "http://127.0.0.1:9/v2"


def stack(api_url: str = NOWHERE, api_key: str = "rp-secret-key") -> Stack:
    endpoint = EndpointFacts(name="embed", id="ep1", model="e5", tasks=("embed",), gpu="ADA_24", usd_per_second=0.00031, workers_max=2)
    store = StoreFacts(bucket="memory", endpoint_url=S3.endpointUrl)
    return Stack(
        StackFacts(stack="prod", api_url=api_url, store=store, endpoints=(endpoint,)), StackSecrets(api_key, S3, S3)
    )  # fmt: skip


def a_day_later(run: Made) -> Made:
    run.store.objects.instant += timedelta(days=1)
    return run


async def test_the_emulators_bill_is_on_the_report(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="embed", id="ep1", workers_max=1, usd_per_s=0.00031)
    clock = FastClock(100, start=AT.timestamp() + 60)
    async with controlled(tmp_path, endpoints=(endpoint,), script=Script(working(60)), clock=clock) as (emulator, rest):
        await rest.run("ep1")
        await eventually(lambda: emulator.endpoint("ep1").completed == 1 and not emulator.endpoint("ep1").workers)
        run = a_day_later(await make_run(CLEAN))
        report = await read_run(run.store, run.keys, run.plan, now=run.now)
        (found,) = await reports._with_bills(stack(emulator.base_url, emulator.api_key), run.store, [report])
        bill = found.billed
        assert bill is not None
        assert bill.usd_hours == pytest.approx(emulator.endpoint("ep1").bill.usd, rel=1e-6)
        assert (bill.endpoint_id, bill.alone, bill.whole, bill.settled, bill.usd_billed) == ("ep1", True, False, True, None)
        assert bill.at_most == bill.usd_hours
        assert replace(found, billed=None) == report
        (refused,) = await reports._with_bills(stack(emulator.base_url, "a-wrong-key"), run.store, [report])
        assert refused.billed is not None
        assert "401" in str(refused.billed.error)
        assert "a-wrong-key" not in str(refused.billed.error)


async def test_a_run_that_was_never_sent_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "ask_bill", None)
    run = await make_run(replace(CLEAN, done=0, attempts_for_open=0))
    report = await read_run(run.store, run.keys, run.plan, now=run.now)
    (found,) = await reports._with_bills(stack(), run.store, [report])
    assert found.billed is not None
    assert "has sent no job" in found.billed.sentence


# --- the command ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Made:
    """A run in the stack's bucket, which is memory."""
    made = a_day_later(asyncio.run(make_run(CLEAN)))

    @asynccontextmanager
    async def buckets_of(_: Stack) -> AsyncIterator[Any]:
        yield SimpleNamespace(main=made.store)

    async def find_stack(*_: object) -> Stack:
        return stack()

    monkeypatch.setattr(work, "find_stack", find_stack)
    monkeypatch.setattr("pipelines.work.buckets_of", buckets_of)
    monkeypatch.setattr("infra.review.billing.BILLING_DEADLINE_S", 0.2)
    monkeypatch.chdir(tmp_path)
    return made


def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_bill(_: Stack, endpoint_id: str, __: object, now: datetime) -> Bill:
        return Bill(endpoint_id=endpoint_id, asked_at=now, hours=(BilledHour(began=AT, usd=0.25, gpu=0.25),))

    monkeypatch.setattr(reports, "ask_bill", ask_bill)


def test_a_runpod_that_does_not_answer_is_a_sentence_and_the_page_is_made(run: Made) -> None:
    found = CliRunner().invoke(app, ["report", run.plan.run_id, "--billed", "--json"])
    assert found.exit_code == 0, found.output
    (bill,) = json.loads(found.stdout)["billed"]
    assert "RunPod's bill could not be read" in bill["sentence"]
    assert bill["usd_billed"] is bill["usd_hours"] is None
    assert "could not be read" in Page(Path(f"{run.plan.run_id}.html").read_text()).one("cost").text
    assert "rp-secret-key" not in found.output


def test_the_numbers_of_the_page_are_in_the_json(run: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch)
    found = CliRunner().invoke(app, ["report", run.plan.run_id, "--billed", "--json"])
    assert found.exit_code == 0, found.output
    (bill,) = json.loads(found.stdout)["billed"]
    assert bill["run"] == run.plan.run
    assert bill["usd_planned"] == run.plan.estimate.usd.likely
    assert 0 < bill["usd_estimated"] < 0.25
    assert (bill["usd_hours"], bill["usd_billed"], bill["at_least"], bill["at_most"]) == (0.25, None, 0.0, 0.25)
    assert [(one["began"], one["usd"]) for one in bill["hours"]] == [("2026-11-29T21:00:00Z", 0.25)]
    assert sum(one["usd"] for one in bill["parts"]) == pytest.approx(0.25)
    page = Page(Path(f"{run.plan.run_id}.html").read_text())
    assert bill["sentence"] in page.one("cost").text
    said = CliRunner().invoke(app, ["report", run.plan.run_id, "--billed"])
    assert bill["sentence"] in said.stdout


def test_without_the_option_runpod_is_not_asked(run: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "ask_bill", None)
    found = CliRunner().invoke(app, ["report", run.plan.run_id, "--json"])
    assert found.exit_code == 0, found.output
    assert "billed" not in json.loads(found.stdout)


def test_a_nights_runs_are_billed_each(run: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch)
    asyncio.run(Records(run.store, "").put(night("2026-11-29", runs=(run.plan.run,))))
    found = CliRunner().invoke(app, ["report", "reviews", "--billed", "--json"])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert [(one["run"], one["usd_hours"]) for one in record["billed"]] == [(run.plan.run, 0.25)]
    assert Page(Path(record["report"]).read_text()).table("Planned, estimated and billed")["Billed in these hours"] == ["$0.2500"]


def test_an_index_is_not_billed(run: Made) -> None:
    found = CliRunner().invoke(app, ["report", "--index", "--out", "site", "--billed"])
    assert found.exit_code == 2
    assert "--billed does not go with it" in found.stderr
