"""RunPod's bill on a report: whose the hours are, what is known of them, and what is said where nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from benchmarks.report import AT, PLAN, Made, make_run
from contract.errors import UsageError
from contract.keys import RunUri
from contract.memory import MemoryStore
from contract.models import EndMarker, Intent, PhaseSeconds, StartMarker, encode
from contract.protocol import Attempt, Key
from nights.record import Records
from nights.report.billing import HOUR_S, Use, jobs_out, not_billed, window, with_bill
from nights.report.model import Bill, Billed, BilledHour, RunReport
from nights.report.page import render_night, render_run, run_tiles
from nights.report.read import data_key, read_kept, read_night, read_run
from nights.report.spans import Span
from nights.report.use import MOST_READ, read_runs, read_use
from nights.report.write import keep_run_report
from tests.nights.report.kit import CLEAN, HOSTILE, Page, made, night, report_of, verified_run

HOUR: Final = timedelta(hours=1)
LATER: Final = AT + timedelta(days=2)
START: Final = AT.timestamp()


def hour(number: int, usd: float, **more: float) -> BilledHour:
    return BilledHour(began=AT + number * HOUR, usd=usd, gpu=usd, **more)


def bill(*usd: float | None, at: datetime = LATER) -> Bill:
    """Of the hours from 21:00 on; None: no record."""
    return Bill(endpoint_id="ep1", asked_at=at, hours=tuple(hour(at_, one) for at_, one in enumerate(usd) if one is not None))


def use(own: float = 2 * HOUR_S, others: Mapping[str, tuple[Span, ...]] | None = None, **more: Any) -> Use:
    """The run was at work from 21:00 on, for so long."""
    return Use(own=((START, START + own),), others=others or {}, tail_s=5.0, **more)


def billed(found: Bill, used: Use, report: RunReport | None = None) -> Billed:
    made_ = with_bill(report or report_of(made(CLEAN)), found, used).billed
    assert made_ is not None
    return made_


def cost_tile(report: RunReport) -> str:
    return next(more for name, _, more in run_tiles(report) if name == "Cost, estimated")


def test_whole_hours_that_the_run_had_alone_are_its_own_bill() -> None:
    report = report_of(made(CLEAN))
    found = billed(bill(0.5, 0.25, 7.0), use(), report)
    assert (found.usd_billed, found.usd_hours, found.at_least, found.at_most) == (0.75, 0.75, 0.75, 0.75)
    assert (found.alone, found.whole, found.settled, found.reasons) == (True, True, True, ())
    assert found.difference == pytest.approx(0.75 - report.cost.estimated)
    assert "this is the run's, $0.6" in found.sentence
    assert "more than estimated" in found.sentence


def test_the_likely_parts_add_up_to_what_was_billed() -> None:
    report = report_of(made(CLEAN))
    report = replace(report, cost=replace(report.cost, idle_usd=0.01))
    hours = Bill(endpoint_id="ep1", asked_at=LATER, hours=(hour(0, 0.5, disk=0.02, fee=0.01), hour(1, 0.25)))
    parts = {one.kind: one.usd for one in billed(hours, use(), report).parts}
    assert parts["estimated"] == report.cost.estimated
    assert parts["disk_fee"] == pytest.approx(0.03)
    assert parts["idle"] == 0.01
    assert parts["idle_end"] == pytest.approx(2 * 5.0 * report.cost.usd_per_second)
    assert sum(parts.values()) == pytest.approx(0.75)
    assert parts["rest"] > 0


def test_a_bill_below_the_estimate_has_no_idle_time_in_it() -> None:
    report = report_of(made(CLEAN))
    found = billed(bill(0.01, 0.0), use(), report)
    assert [one.kind for one in found.parts] == ["estimated", "rest"]
    assert sum(one.usd for one in found.parts) == pytest.approx(0.01)
    assert "less than estimated" in found.sentence


def test_hours_that_are_covered_in_part_are_not_the_runs_bill_and_bound_it() -> None:
    found = billed(bill(0.5, 0.25), use(1.5 * HOUR_S))
    assert found.usd_billed is None
    assert (found.alone, found.whole, found.difference) == (True, False, None)
    assert (found.usd_hours, found.at_least, found.at_most) == (0.75, 0.5, 0.75)
    assert found.reasons == ("this run covers 1 hour only in part, 30 min 00 s of 1 h 00 min",)
    assert "at least $0.5000 and at most $0.7500" in found.sentence


def test_an_hour_with_another_run_is_nobodys() -> None:
    found = billed(bill(0.5, 0.25), use(others={"other-1": ((START + HOUR_S + 60, START + HOUR_S + 90),)}))
    assert found.usd_billed is None
    assert (found.alone, found.whole, found.others) == (False, True, ("other-1",))
    assert (found.at_least, found.at_most) == (0.5, 0.75)
    assert [one.others for one in found.hours] == [0, 1]
    assert found.parts == ()
    assert "1 other run had jobs out on the endpoint in these hours (other-1)" in found.sentence


def test_another_run_in_another_hour_takes_nothing_away() -> None:
    before_and_after = ((START - 90, START - 1), (START + 2 * HOUR_S, START + 3 * HOUR_S))
    assert billed(bill(0.5, 0.25), use(others={"other-1": before_and_after})).usd_billed == 0.75


def test_a_run_that_cannot_be_read_may_have_been_there() -> None:
    found = billed(bill(0.5, 0.25), use(unread=("other-1",)))
    assert (found.usd_billed, found.alone, found.at_least, found.at_most) == (None, False, 0.0, 0.75)
    assert "could not be read (other-1)" in found.sentence


def test_a_fresh_hour_may_grow_so_that_nothing_is_at_most() -> None:
    found = billed(bill(0.5, 0.25, at=AT + 2 * HOUR + timedelta(minutes=5)), use())
    assert (found.usd_billed, found.settled, found.at_least, found.at_most) == (None, False, 0.75, None)
    assert "RunPod bills late" in found.sentence
    assert cost_tile(replace(report_of(made(CLEAN)), billed=found)).endswith("planned; bill not known")


def test_an_hour_without_a_record_is_said() -> None:
    found = billed(bill(0.5, None), use())
    assert (found.usd_billed, found.settled, found.at_most) == (None, False, None)
    assert found.hours[1].usd is None
    assert "no record of 1 hour" in found.sentence


def test_an_hour_that_holds_an_idle_time_out_alone_may_have_none() -> None:
    found = billed(bill(0.5, None), use(HOUR_S + 5.0))
    assert (found.usd_billed, found.whole, found.settled, found.at_least, found.at_most) == (None, False, True, 0.5, 0.5)


def test_an_endpoint_that_the_stack_does_not_know_proves_no_more_than_a_least() -> None:
    found = billed(bill(0.5, 0.25), replace(use(), tail_s=None))
    assert (found.usd_billed, found.settled, found.at_least, found.at_most) == (None, False, 0.75, None)
    assert "does not know the endpoint" in found.sentence


def test_an_estimate_that_lacks_executions_is_compared_with_nothing() -> None:
    report = report_of(made(CLEAN))
    for cost in (replace(report.cost, none=True), replace(report.cost, unmarked=2)):
        found = billed(bill(0.5, 0.25), use(), replace(report, cost=cost))
        assert (found.usd_billed, found.difference, found.parts) == (0.75, None, ())


def test_hours_in_which_the_run_rested_are_not_its_own() -> None:
    rested = Use(own=((START, START + HOUR_S), (START + 5 * HOUR_S, START + 6 * HOUR_S)), others={}, tail_s=5.0)
    found = billed(bill(0.5, 9.0, 9.0, 9.0, 9.0, 0.25), rested)
    assert (found.usd_billed, len(found.hours)) == (0.75, 2)


# --- when jobs were out ----------------------------------------------------------------------------------------------------------------


def attempt(number: int, sent: float, *, ttl: float = 600.0, noted: str | None = None) -> tuple[Key, Attempt]:
    intent = Intent(attempt=number, shard="00000", sent_at=AT + timedelta(seconds=sent), start_by=AT + HOUR, ttl_s=ttl, reserve_usd=0.1,
                    execution_timeout_s=100.0, epoch=0, low_priority=True)  # fmt: skip
    return ("c", number), Attempt("c", intent, noted)


def start(number: int, at: float, load: float = 0.0) -> StartMarker:
    return StartMarker(plan=PLAN, shard="00000", execution=f"{number:016x}", attempt=number, epoch=0, job_id="j", worker_id="w",
                       load_s=load, at=AT + timedelta(seconds=at))  # fmt: skip


def end(number: int, at: float) -> EndMarker:
    return EndMarker(plan=PLAN, shard="00000", execution=f"{number:016x}", attempt=number, outcome="won", wall_s=1.0,
                     seconds=PhaseSeconds(), at=AT + timedelta(seconds=at))  # fmt: skip


def out(
    attempts: Mapping[Key, Attempt], starts: tuple[StartMarker, ...] = (), ends: tuple[EndMarker, ...] = (), **more: Any
) -> list[tuple[float, float]]:
    given: dict[str, Any] = {"over": {}, "now": AT + 3 * HOUR, "timeout_s": 100.0, **more}
    found = jobs_out(attempts, {one.execution: one for one in starts}, {one.execution: one for one in ends}, **given)
    return [(begin - START, stop - START) for begin, stop in found]


def test_a_job_is_out_from_its_sending_to_its_last_end_and_its_worker_a_little_longer() -> None:
    assert out(dict([attempt(1, 0)]), (start(1, 50),), (end(1, 80),), tail_s=5.0) == [(0, 85)]


def test_a_job_that_never_began_is_out_until_its_end_is_known_or_its_ttl() -> None:
    assert out(dict([attempt(1, 0)])) == [(0, 600)]
    assert out(dict([attempt(1, 0)]), over={("c", 1): AT + timedelta(seconds=90)}) == [(0, 90)]
    assert out(dict([attempt(1, 0, noted="rejected")])) == []


def test_an_execution_that_never_ended_is_charged_its_time_and_nothing_is_later_than_now() -> None:
    assert out({}, (start(1, 50, load=20),)) == [(30, 150)]
    assert out({}, (start(1, 50, load=20),), now=AT + timedelta(seconds=60)) == [(30, 60)]
    assert out({}, (start(1, 50),), (end(1, 9e9),)) == [(50, 3 * HOUR_S)]
    assert out({}, (start(1, 9e9),)) == []


# --- from storage --------------------------------------------------------------------------------------------------------------------


def used(run: Made, **more: Any) -> Use:
    async def read() -> Use:
        runs, damaged = await read_runs(run.store, run.keys)
        return await read_use(run.store, run.plan, runs, damaged=damaged, now=LATER, **more)

    return asyncio.run(read())


def beside(run: Made, name: str, after: timedelta, **more: Any) -> Made:
    """Another run in the same bucket."""
    return asyncio.run(make_run(replace(CLEAN, run_id=name, at=AT + after, **more), run.store))


def test_runs_of_the_endpoint_in_the_same_hours_are_found_and_no_others() -> None:
    run = made(CLEAN)
    beside(run, "same-hour", timedelta(minutes=30))
    beside(run, "hours-later", 3 * HOUR)
    beside(run, "hours-before", -9 * HOUR)
    far = beside(run, "another-endpoint", timedelta(minutes=1))
    infra = msgspec.structs.replace(far.plan.infra, endpoint_id="ep2")
    run.store.objects.data[far.keys.plan()] = encode(msgspec.structs.replace(far.plan, infra=infra))
    found = used(run, tail_s=5.0)
    assert (set(found.others), found.unread, found.tail_s) == ({"same-hour"}, (), 5.0)
    limits = window(found.own)
    assert limits is not None
    assert limits[0] == AT
    report = report_of(run)
    assert report.ended is not None
    assert limits[1] == pytest.approx(report.ended + timedelta(seconds=5), abs=timedelta(seconds=1))


def test_a_run_that_is_kept_is_read_in_one_request() -> None:
    async def read() -> tuple[Use, list[str]]:
        run = await verified_run()
        late = await make_run(replace(CLEAN, run_id="late", at=AT + 5 * HOUR), run.store)
        await keep_run_report(run.store, run.keys, await read_run(run.store, run.keys, run.plan, now=run.now))
        runs, _ = await read_runs(run.store, late.keys)
        asked: list[str] = []

        async def hook(what: str, key: str) -> None:
            asked.append(key)

        seen = MemoryStore(run.store.objects, mode="conditional", hook=hook)
        return await read_use(seen, late.plan, runs, now=LATER), [key for key in asked if key.startswith(run.keys.root + "/")]

    found, asked = asyncio.run(read())
    assert found.others == {}
    assert asked == [data_key(RunUri.parse("s3://memory/runs/reviews-3f3f3f3f").keys)]


def test_what_cannot_be_read_is_named_and_hides_nothing() -> None:
    run = made(CLEAN)
    gone = beside(run, "no-markers", timedelta(minutes=1))
    for key in [key for key in run.store.objects.data if key.startswith((gone.keys.starts_prefix(), gone.keys.ends_prefix()))]:
        del run.store.objects.data[key]
    run.store.objects.data["runs/damaged/plan.json"] = b"{"
    beside(run, "same-hour", timedelta(minutes=30))
    found = used(run)
    assert set(found.others) == {"same-hour"}
    assert set(found.unread) == {"no-markers", "one whose plan is damaged"}


def test_markers_of_many_runs_are_not_all_read() -> None:
    run = made(CLEAN)
    for number in range(MOST_READ + 2):
        beside(run, f"other-{number:02}", timedelta(minutes=1), shards=1)
    found = used(run)
    assert (len(found.others), len(found.unread)) == (MOST_READ, 2)


def test_a_hostile_marker_makes_no_endless_work() -> None:
    run = made(CLEAN)
    odd = beside(run, "odd", timedelta(minutes=1), shards=1)
    far = StartMarker(plan=PLAN, shard="00000", execution="f" * 16, attempt=1, epoch=0, job_id="j", worker_id="w", load_s=1e300, at=AT)
    run.store.objects.data[odd.keys.start("00000", "f" * 16)] = encode(far)
    found = used(run)
    assert set(found.others) == {"odd"}
    (line,) = billed(bill(0.5), found, report_of(run)).hours
    assert line.others == 1
    run.store.objects.data[run.keys.start("00000", "f" * 16)] = encode(far)
    found = used(run)
    assert found.others == {}
    with pytest.raises(UsageError, match="744 hours"):
        window(found.own)
    assert window(()) is None


# --- the page ------------------------------------------------------------------------------------------------------------------------


def test_the_page_shows_planned_estimated_and_billed_beside_each_other() -> None:
    report = with_bill(report_of(made(CLEAN)), bill(0.5, 0.25), use())
    page = Page(render_run(report))
    table = page.table("Planned, estimated and billed")
    assert list(table) == ["Planned", "Estimated", "Billed in these hours", "Billed, the run’s own"]
    assert table["Billed, the run’s own"] == ["$0.7500"]
    assert cost_tile(report).endswith("planned; $0.7500 billed")
    parts = page.table("Likely parts of what was billed")
    assert list(parts.values())[-1][1] == "$0.7500"
    assert page.table("Hours in which this run had jobs out")["2026-11-29 21:00:00 UTC"] == ["$0.5000", "1 h 00 min", "0"]
    assert "--billed" not in page.one("cost").text


def test_the_page_says_the_bounds_where_the_hours_are_shared() -> None:
    report = with_bill(report_of(made(CLEAN)), bill(0.5), use(120.0, {HOSTILE[0]: ((START, START + 9),)}))
    page = Page(render_run(report))
    assert page.table("Planned, estimated and billed")["The run’s own, at most"] == ["$0.5000"]
    assert "The run’s own, at least" not in page.table("Planned, estimated and billed")
    assert cost_tile(report).endswith("planned; at most $0.5000 billed")
    assert not page.all("script", "img")


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bill_that_could_not_be_read_is_a_sentence(words: str) -> None:
    failed = Bill(endpoint_id="ep1", asked_at=LATER, error=words)
    report = with_bill(report_of(made(CLEAN)), failed, use())
    page = Page(render_run(report))
    assert "RunPod's bill could not be read" in page.one("cost").text
    assert cost_tile(report).endswith("planned; bill not known")
    assert not page.all("script", "img")
    assert report.sentence == report_of(made(CLEAN)).sentence


def test_a_page_that_was_not_billed_says_how() -> None:
    assert "nightbatch report reviews-3f3f3f3f --billed" in Page(render_run(report_of(made(CLEAN)))).one("cost").text
    page = Page(render_run(not_billed(report_of(made(CLEAN)), "ep1", LATER, "It has sent no job.")))
    assert "It has sent no job." in page.one("cost").text


def test_a_bill_is_kept_with_the_report_and_a_broken_one_is_not_believed() -> None:
    async def check() -> None:
        run = await verified_run()
        report = with_bill(await read_run(run.store, run.keys, run.plan, now=run.now), bill(0.5, 0.25), use())
        await keep_run_report(run.store, run.keys, report)
        kept = await read_kept(run.store, run.keys, run.plan)
        assert kept == report
        assert kept.billed is not None
        records = Records(run.store, "")
        page = Page(render_night(await read_night(records, night(runs=(run.plan.run,)))))
        assert page.table("Planned, estimated and billed")["Billed, the run’s own"] == ["$0.7500"]
        for broken in (replace(kept.billed, usd_hours=None), replace(kept.billed, hours=kept.billed.hours * 400)):
            await run.store.put(data_key(run.keys), msgspec.json.encode(replace(kept, billed=broken)))
            assert await read_kept(run.store, run.keys, run.plan) is None

    asyncio.run(check())
