"""What a page says is what the store holds, and where the store holds less, it says that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.report import IMAGE, TIMEOUT_S, Made, Shape, make_run
from contract.models import Child, Control, EndMarker, PartCommit, SplitCommit, StartMarker, StoreMode, decode, encode
from contract.protocol import worker_seconds
from contract.rows import RowError
from nights.night import Call, run_night
from nights.record import Records, differences
from nights.report.build import changes, index_sentence, night_line, night_report, night_tone, run_line
from nights.report.model import IndexReport, RunReport
from nights.report.read import read_night, read_run, read_run_kept
from nights.report.write import write_run_report
from pipelines.markers import read_markers
from pipelines.summary import FailureCount
from tests.nights.kit import NightHouse
from tests.nights.report.kit import CLEAN, HOSTILE_SHAPE, SMALL, evaluation, made, night, report_of, space, verified_run, with_summary
from tests.nights.test_night import DATE, file_of, job_of, rows
from tests.pipelines.night import night as emulated


def drop(run: Made, *folders: str) -> None:
    for key in [key for key in run.store.objects.data if any(f"/{folder}/" in key for folder in folders)]:
        del run.store.objects.data[key]


# --- numbers -------------------------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_commits_and_markers() -> None:
    run = made()
    report = report_of(run)
    objects = run.store.objects.data
    commits = [decode(data, PartCommit, where=key) for key, data in objects.items() if "/commits/" in key]
    assert (report.ok, report.failed) == (sum(one.ok for one in commits), sum(one.failed for one in commits))
    assert report.rows == report.done == 40 * 200
    assert report.missing == 0
    assert report.executions == sum("/starts/" in key for key in objects) == 44
    assert (report.attempts, report.retries) == (44, 4)
    assert report.images == (IMAGE,)
    assert report.versions == ("nightbatch 0.1.0", "vllm 0.32.0")
    assert report.gaps == ()


@pytest.mark.parametrize("shape", [SMALL, HOSTILE_SHAPE, replace(SMALL, dead_every=5), replace(SMALL, done=20, attempts_for_open=2)])
@pytest.mark.parametrize("later", [0.0, TIMEOUT_S * 2])
def test_where_the_money_went_adds_up_to_what_was_spent(shape: Shape, later: float) -> None:
    run = made(shape)
    report = report_of(run, after=timedelta(seconds=later))
    markers = asyncio.run(read_markers(run.store, run.keys, run.plan.plan_id))
    paid = worker_seconds(markers.starts, markers.ends, TIMEOUT_S, run.now + timedelta(seconds=later))
    assert report.cost.worker_seconds == pytest.approx(paid)
    assert report.cost.estimated == pytest.approx(paid * run.plan.infra.usd_per_second)
    assert sum(one.usd for one in report.cost.slices) == pytest.approx(report.cost.estimated)


def test_executions_that_lost_or_never_ended_have_their_own_part_of_the_cost() -> None:
    parts = {one.kind: one.seconds for one in report_of(made(SMALL)).cost.slices}
    assert "partial" in parts
    assert "unended" not in parts
    parts = {one.kind: one.seconds for one in report_of(made(replace(SMALL, dead_every=20)), after=timedelta(hours=1)).cost.slices}
    assert parts["unended"] == 2 * TIMEOUT_S


def test_an_execution_that_another_one_outran_is_lost() -> None:
    run = made(CLEAN)
    key = next(key for key in run.store.objects.data if "/ends/" in key)
    end = decode(run.store.objects.data[key], EndMarker, where=key)
    start_key = key.replace("/ends/", "/starts/")
    start = decode(run.store.objects.data[start_key], StartMarker, where=key)
    other = "f" * 16
    run.store.objects.data[run.keys.end(end.shard, other)] = encode(msgspec.structs.replace(end, execution=other, outcome="lost"))
    run.store.objects.data[run.keys.start(end.shard, other)] = encode(
        msgspec.structs.replace(start, execution=other, worker_id="elsewhere", load_s=3.0)
    )
    report = report_of(run)
    parts = {one.kind: one.seconds for one in report.cost.slices}
    assert parts["lost"] == pytest.approx(end.wall_s)
    assert report.timeline is not None
    assert [lane.won for lane in report.timeline.lanes if lane.worker == "elsewhere"] == [0]
    assert sum(bucket.lost for bucket in report.timeline.buckets) == 1


def test_the_timeline_counts_every_shard_once_and_no_more_workers_than_there_were() -> None:
    report = report_of(made(replace(SMALL, workers=30, shards=200)))
    line = report.timeline
    assert line is not None
    assert sum(one.shards for one in line.buckets) == report.shards == 200
    assert sum(one.rows for one in line.buckets) == report.done
    assert (line.workers, len(line.lanes)) == (30, 24)
    assert max(one.busy for one in line.buckets) <= 30
    assert sum(one.busy * line.step for one in line.buckets) <= report.cost.worker_seconds + line.workers * line.step
    for lane in line.lanes:
        assert all(0 <= start < stop <= 1000 for _, spans in lane.spans for start, stop in spans)


def test_delays_count_each_attempt_that_began_and_executions_each_that_ended() -> None:
    report = report_of(made(replace(SMALL, dead_every=10)))
    found = report.delays
    assert found is not None
    assert found.delay is not None
    assert found.execution is not None
    assert found.delay.count == sum(found.delay.bins) == report.executions
    assert found.execution.count == sum(found.execution.bins) == report.executions - 4
    assert found.execution.median <= found.execution.p90 <= found.execution.p99 <= found.execution.most
    assert found.execution.most < found.edges[-1]


def test_a_report_of_many_shards_stays_small() -> None:
    report = report_of(made(Shape(shards=3_000)))
    assert len(msgspec.json.encode(report)) < 60_000
    assert msgspec.json.decode(msgspec.json.encode(report), type=RunReport) == report


# --- outcomes ------------------------------------------------------------------------------------------------------------------------


def test_the_outcome_is_one_sentence() -> None:
    report = report_of(made(CLEAN))
    assert (report.state, report.tone) == ("complete", "good")
    assert report.sentence.startswith("All 2,400 rows have a result in ")
    assert report.cost.spent in report.sentence
    assert "than planned" in report.sentence


def test_failed_rows_are_in_the_sentence() -> None:
    report = report_of(made(SMALL))
    assert report.tone == "warn"
    assert report.sentence.startswith("7,988 of 8,000 rows succeeded and 12 failed (0.15 %)")


def test_a_run_that_verify_found_wrong_is_bad() -> None:
    report = report_of(with_summary(made(CLEAN), verified=False))
    assert (report.tone, report.verified) == ("bad", False)
    assert "nightbatch verify" in report.sentence


def test_a_planned_run_has_a_page_too() -> None:
    report = report_of(made(replace(CLEAN, done=0)))
    assert (report.state, report.tone, report.timeline, report.delays) == ("planned", "busy", None, None)
    assert report.sentence.startswith("Planned and not begun: 2,400 rows in 12 shards")


def test_a_run_under_way_says_how_far_it_is() -> None:
    report = report_of(made(replace(CLEAN, done=8, attempts_for_open=1, job_cause="")))
    assert (report.state, report.tone, report.ended) == ("running", "busy", None)
    assert report.sentence.startswith(f"Still running: 1,600 of 2,400 rows have a result, {report.cost.spent} so far of about ")
    assert report.cost.reserved > 0
    assert report.timeline is not None
    assert {kind for lane in report.timeline.lanes for kind, _ in lane.spans} == {"won", "running", "loading"}


def test_without_its_journal_a_page_says_so() -> None:
    run = made(CLEAN)
    drop(run, "journal")
    report = report_of(run)
    assert any("journal is gone" in gap for gap in report.gaps)
    assert (report.state, report.attempts) == ("complete", 0)
    assert report.delays is not None
    assert report.delays.delay is None


def test_shards_that_failed_in_every_attempt_make_it_failed() -> None:
    report = report_of(made(replace(CLEAN, done=10, attempts_for_open=5, job_cause="error")))
    assert (report.state, report.tone) == ("failed", "bad")
    assert report.sentence.startswith("Failed: 2 shards failed in each of their attempts; 2,000 of 2,400 rows have a result")
    assert [(one.cause, one.attempts, one.shards) for one in report.job_errors] == [("error", 10, ("00010", "00011"))]


@pytest.mark.parametrize(
    ("reason", "state", "words"),
    [
        ("deadline", "stopped", "Stopped at its deadline;"),
        ("budget: a budget of $1.00 is short.", "stopped", "Stopped by its budget (a budget of $1.00 is short);"),
        ("stalled no_workers: workers.max is 0.", "stalled", "Stalled: the queue did not move (no_workers: workers.max is 0);"),
        ("refused: model <b>x</b> is not served", "failed", "Failed: the workers refuse its jobs (model <b>x</b> is not served);"),
        (None, "cancelled", "Cancelled;"),
    ],
)
def test_why_a_run_was_ended_is_said(reason: str | None, state: str, words: str) -> None:
    run = made(replace(CLEAN, done=6))
    control = Control(plan=run.plan.plan_id, epoch=1, mode="keep", at=run.now, by="client", reason=reason)
    run.store.objects.data[run.keys.control()] = encode(control)
    report = report_of(run)
    assert report.state == state
    assert report.sentence.startswith(words)
    if state == "failed":
        assert "<b>" not in report_of(run, rows=False).sentence


# --- failures ------------------------------------------------------------------------------------------------------------------------


def test_failed_rows_are_counted_by_code_with_examples() -> None:
    report = report_of(made(SMALL))
    assert [(one.code, one.rows) for one in report.failures] == [("too_long", 8), ("no_chat_template", 4)]
    assert report.failures_known == report.failed == 12
    example = report.failures[0].examples[0]
    assert (example.shard, example.row, example.id) == ("00009", 1800, "row-1800")


def test_counts_of_a_collected_run_are_of_all_rows_however_many_errors_objects_there_are() -> None:
    shape = replace(SMALL, shards=100, failed_every=1, lost_every=0)
    report = report_of(made(shape))
    assert report.failures_known < report.failed == 300
    kept = (FailureCount(code="too_long", rows=299, example_id="row-1", example="no"),
            FailureCount(code="rare", rows=1, example_id="row-299", example="only once"))  # fmt: skip
    report = report_of(with_summary(made(shape), failures=kept))
    assert report.failures_known == report.failed
    assert [(one.code, one.rows) for one in report.failures] == [("too_long", 299), ("rare", 1)]
    assert [(one.id, one.message) for one in report.failures[1].examples] == [("row-299", "only once")]


def test_row_content_can_be_left_out_altogether() -> None:
    report = report_of(made(HOSTILE_SHAPE), rows=False)
    assert not report.with_rows
    assert sum(one.rows for one in report.failures) == report.failed
    assert all(one.examples == () for one in report.failures)
    assert all(one.text == "" for one in report.job_errors)
    assert report.job_errors[0].cause == "error"


# --- what is not there any more ------------------------------------------------------------------------------------------------------


def test_without_markers_the_cost_is_not_known_instead_of_nothing() -> None:
    run = with_summary(made(CLEAN))
    told = report_of(run).cost.spent
    drop(run, "starts", "ends")
    report = report_of(run)
    assert report.cost.spent == "not known"
    assert "at a cost that is not known any more" in report.sentence
    assert report.delays is None
    assert report.timeline is not None
    assert report.timeline.lanes == ()
    assert sum(one.shards for one in report.timeline.buckets) == 12
    assert any("markers are gone" in gap and told in gap for gap in report.gaps)


def test_with_some_markers_gone_the_cost_is_at_least() -> None:
    run = made(CLEAN)
    for key in [key for key in run.store.objects.data if "/starts/00003/" in key or "/starts/00004/" in key]:
        del run.store.objects.data[key]
    report = report_of(run)
    assert report.cost.unmarked == 2
    assert report.cost.spent.startswith("at least $")
    assert any("2 results without a start marker" in gap for gap in report.gaps)


def test_a_damaged_commit_is_an_open_shard_and_a_sentence() -> None:
    run = made(CLEAN)
    run.store.objects.data[run.keys.commit("00003")] = b"{broken"
    report = report_of(run)
    assert report.shards_by_state["done"] == 11
    assert report.missing == 200
    assert any("commits are damaged (00003)" in gap for gap in report.gaps)


def test_a_split_that_does_not_partition_its_parent_is_damage() -> None:
    run = made(CLEAN)
    source = run.plan.shards[3].source
    half = msgspec.structs.replace(source, rows=(source.rows[0], source.rows[0] + 100), count=100)
    split = SplitCommit(plan=run.plan.plan_id, shard="00003", at=run.now,
                        children=(Child(shard="00003.0", source=half), Child(shard="00003.1", source=half)))  # fmt: skip
    run.store.objects.data[run.keys.commit("00003")] = encode(split)
    assert any("commits are damaged (00003)" in gap for gap in report_of(run).gaps)


def test_objects_of_another_version_or_plan_are_left_out_and_told() -> None:
    run = made(CLEAN)
    data = run.store.objects.data
    data[run.keys.control()] = b'{"version": 9}'
    data[run.keys.summary()] = b'{"version": 2, "new": true}'
    data[run.keys.journal(1)] = b"[]"
    data[run.keys.start("00000", "f" * 16)] = b"null"
    gaps = report_of(run).gaps
    assert any("control.json could not be read" in gap for gap in gaps)
    assert any("journal entries could not be read" in gap for gap in gaps)
    assert any("start and end markers could not be read" in gap for gap in gaps)


def test_errors_objects_that_are_gone_or_altered_are_told() -> None:
    run = made(SMALL)
    keys = [key for key in run.store.objects.data if "/errors/" in key]
    del run.store.objects.data[keys[0]]
    run.store.objects.data[keys[1]] = b"altered"
    report = report_of(run)
    assert any("2 of the errors objects are gone or damaged" in gap for gap in report.gaps)
    assert report.failures_known == report.failed - 6


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_a_run_of_the_real_worker_reads_as_it_was(tmp_path: Path, mode: StoreMode) -> None:
    house = NightHouse(mode=mode, says=lambda text: RowError(code="too_long", message=f"{text} <i>") if text == "text 3" else "yes")
    rows(tmp_path)
    record = (await run_night(file_of(tmp_path, job_of()), DATE, house, Call())).record
    records = Records(house.store, house.stack.facts.store.prefix)
    found = await read_night(records, record)
    assert [(one.state, one.ok, one.failed, one.verified) for one in found.runs] == [("complete", 11, 1, True)]
    assert found.runs[0].cost.estimated == pytest.approx(record.usd_estimated)
    assert found.runs[0].failures[0].examples[0].message == "text 3 <i>"
    assert found.gaps == found.runs[0].gaps == ()


async def test_a_page_tells_what_the_client_told_that_followed_the_run(tmp_path: Path) -> None:
    async with emulated(tmp_path, shards=8, pace=2, work_s=3.0) as found:
        result = await found.drive()
        report = await read_run(found.store(), found.run.keys, found.plan)
    assert (report.state, report.ok, report.failed) == (result.state, result.ok, result.failed) == ("complete", 12, 4)
    assert (report.attempts, report.executions, report.shards) == (result.attempts, result.executions, result.shards)
    assert report.cost.estimated == pytest.approx(result.usd_estimated)
    assert report.cost.worker_seconds == pytest.approx(result.worker_seconds)
    assert sum(one.usd for one in report.cost.slices) == pytest.approx(result.usd_estimated)
    assert report.timeline is not None
    assert report.timeline.workers == result.workers
    assert report.gaps == ()


# --- nights --------------------------------------------------------------------------------------------------------------------------


async def test_a_run_that_a_night_names_and_that_is_gone_is_a_sentence() -> None:
    run = await make_run(CLEAN)
    records = Records(run.store)
    record = night(runs=(run.plan.run, "s3://memory/runs/gone-00000000", "nonsense"))
    found = await read_night(records, record)
    assert [one.run for one in found.runs] == [run.plan.run]
    assert len(found.gaps) == 2
    assert "gone-00000000" in found.gaps[0]


async def test_an_earlier_record_that_cannot_be_read_is_left_out() -> None:
    run = await make_run(CLEAN)
    records = Records(run.store)
    await records.put(night("2026-11-26"))
    await run.store.put(records.key("reviews", "2026-11-27"), b'{"version": 7}')
    await run.store.put(f"{records.root('reviews')}lease.json", b"{}")
    found = await read_night(records, night("2026-11-28"))
    assert [one.date for one in found.before] == ["2026-11-26"]
    assert "2026-11-27" in found.gaps[0]


def test_what_changed_since_last_night_is_beside_it() -> None:
    before = night("2026-11-27", rows=400_000, failed=3, usd_estimated=0.5, space=space(rows=400_000))
    now = night("2026-11-28", facts={"image": "worker:2", "model": "e5"})
    found = {one.name: (one.before, one.now, one.difference) for one in changes(before, now)}
    assert found["Rows of the dataset"] == ("400,000", "500,000", "+100,000 (25 %)")
    assert found["Rows failed"] == ("3", "0", "−3 (100 %)")
    assert found["Rows sent"] == ("5,000", "5,000", "same")
    assert found["Cost, estimated"] == ("$0.5000", "$0.2100", "−$0.2900")
    report = night_report(now, now=now.began, before=[before])
    assert report.reasons == differences(before.facts, now.facts) == ("image: worker:1 -> worker:2",)


def test_a_night_is_compared_with_the_last_good_one() -> None:
    good = night("2026-11-26", rows=400_000)
    lost = night("2026-11-27", state="failed", exit_code=3, rows=0, facts={})
    report = night_report(night("2026-11-28"), now=good.began, before=[good, lost])
    assert report.last == good
    assert next(one for one in report.changes if one.name == "Rows of the dataset").before == "400,000"
    assert night_report(night("2026-11-28"), now=good.began, before=[lost]).last is None


def test_a_score_is_compared_only_with_its_own_metric() -> None:
    before, now = night(evaluation=evaluation(0.4), kind="eval"), night(evaluation=evaluation(0.45), kind="eval")
    assert "+0.0500" in [one.difference for one in changes(before, now)]
    other = msgspec.structs.replace(before, evaluation=evaluation(0.4, metric="f1"))
    assert not [one for one in changes(other, now) if one.name.startswith("Score")]


@pytest.mark.parametrize(
    ("more", "tone"),
    [
        ({}, "good"),
        ({"failed": 2, "exit_code": 1}, "warn"),
        ({"evaluation": evaluation(gate="failed"), "exit_code": 1}, "warn"),
        ({"state": "stopped"}, "warn"),
        ({"state": "asking"}, "warn"),
        ({"state": "failed", "exit_code": 3}, "bad"),
        ({"state": "running", "ended": None}, "busy"),
    ],
)
def test_how_a_night_went_at_a_glance(more: dict[str, Any], tone: str) -> None:
    assert night_tone(night(**more)) == tone


def test_the_index_says_which_jobs_need_a_person() -> None:
    lines = [night_line(night("2026-11-28", job=job, **more)) for job, more in (("good", {}), ("sad", {"state": "failed"}))]
    lines += [night_line(night("2026-11-27", job=job, state="failed")) for job in ("good", "sad")]
    run = run_line(report_of(made(CLEAN)))
    index = IndexReport(made_at=lines[0].record.began, title="Stack", nights=tuple(lines), runs=(run,))
    assert index_sentence(index) == f"4 nights of 2 jobs: the latest night of sad did not go as wanted; 1 run for {run.spent}."
    assert index_sentence(replace(index, nights=(), runs=())) == "Nothing has run here yet."


# --- reports that are kept -----------------------------------------------------------------------------------------------------------


async def test_a_kept_report_is_used_only_where_nothing_changes_any_more() -> None:
    run = await make_run(CLEAN)
    await write_run_report(run.store, run.keys, run.plan)
    asked: list[str] = []

    async def hook(op: str, key: str) -> None:
        asked.append(key)

    run.store.hook = hook
    await read_run_kept(run.store, run.keys, run.plan)
    assert len(asked) > 12  # complete and not verified: all of it is read
    run = await verified_run()
    kept = await write_run_report(run.store, run.keys, run.plan)
    asked.clear()
    run.store.hook = hook
    assert await read_run_kept(run.store, run.keys, run.plan) == kept
    assert len(asked) == 1
    assert not (await read_run_kept(run.store, run.keys, run.plan, rows=False)).with_rows


@pytest.mark.parametrize("change", [{"version": 9}, {"rows": "many"}, {"plan_id": "00"}, {"timeline": "zero"}, {"delays": "none"}])
async def test_a_kept_report_that_somebody_wrote_by_hand_is_made_again(change: dict[str, object]) -> None:
    run = await verified_run()
    right = await write_run_report(run.store, run.keys, run.plan)
    kept = msgspec.json.decode(run.store.objects.data[f"{run.keys.root}/report.json"])
    if "timeline" in change:
        kept["timeline"] |= {"seconds": 0.0}
    elif "delays" in change:
        kept["delays"]["delay"]["bins"] = []
    else:
        kept |= change
    kept["sentence"] = "planted"
    run.store.objects.data[f"{run.keys.root}/report.json"] = msgspec.json.encode(kept)
    assert (await read_run_kept(run.store, run.keys, run.plan)).sentence == right.sentence


def test_a_moment_that_no_calendar_holds_is_its_last_second() -> None:
    from nights.report.build import _at

    assert _at(1e300).year == 9999
    assert _at(-5.0).year == 1970
