"""Pages: sound HTML that loads nothing and runs nothing, whose numbers are those of the report, for every reader and every light."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import msgspec
import pytest

from benchmarks.report import GOAL_BYTES, Shape
from contract.words import counted, duration, usd
from nights.record import NightEvent, NightRecord
from nights.report.build import night_line, night_report, run_line
from nights.report.model import IndexReport, NightReport, RunReport
from nights.report.page import render_index, render_night, render_run, style
from nights.report.text import percent
from tests.nights.report.kit import (
    CLEAN,
    HOSTILE,
    HOSTILE_SHAPE,
    NIGHT,
    SMALL,
    Page,
    evaluation,
    made,
    night,
    report_of,
    space,
    with_summary,
)


@cache
def runs() -> dict[str, RunReport]:
    partial = made(HOSTILE_SHAPE)
    for key in [key for key in partial.store.objects.data if "/starts/" in key or "/ends/" in key]:
        del partial.store.objects.data[key]
    return {
        "small": report_of(with_summary(made(replace(SMALL, budget_usd=0.5)))),
        "planned": report_of(made(replace(CLEAN, done=0))),
        "running": report_of(made(replace(CLEAN, done=8, attempts_for_open=1, job_cause=""))),
        "failed": report_of(made(replace(CLEAN, done=9, attempts_for_open=5, job_cause="error"))),
        "hostile": report_of(made(HOSTILE_SHAPE)),
        "without rows": report_of(made(HOSTILE_SHAPE), rows=False),
        "partial": report_of(partial),
    }


@cache
def nights() -> dict[str, NightReport]:
    hostile = {name: HOSTILE[at] for at, name in enumerate(("image", "model", "dataset", "gpu"))}
    event = NightEvent(kind="failure", key="k", at=NIGHT, sentence=HOSTILE[0])
    before = tuple(night(f"2026-11-{day:02d}", evaluation=evaluation(0.4 + day / 1000)) for day in range(1, 28))
    return {
        "first": night_report(night(space=None), now=NIGHT),
        "space": night_report(night(), now=NIGHT, before=before[:1], runs=(runs()["small"],)),
        "evaluation": night_report(night(kind="eval", space=None, evaluation=evaluation()), now=NIGHT, before=before),
        "hostile": night_report(
            night(
                facts=hostile, sentence=HOSTILE[0], notices=HOSTILE, events=(event,), by=HOSTILE[1], out=HOSTILE[3], state="failed",
                evaluation=evaluation(suite=HOSTILE[0], metric=HOSTILE[2], sentence=HOSTILE[4]), runs=("s3://memory/runs/x",),
                changed=HOSTILE, space=space(space=HOSTILE[0], table=HOSTILE[3], delta=HOSTILE[1]),
            ),
            now=NIGHT, before=before, runs=(runs()["hostile"],) * 5, gaps=HOSTILE,
        ),
        "nothing": night_report(
            NightRecord(job="a", date="2026-11-28", kind="generate", stack="local", state="running", began=NIGHT), now=NIGHT
        ),
    }  # fmt: skip


@cache
def indexes() -> dict[str, IndexReport]:
    lines = tuple(night_line(one.record, page="nights/a/b.html") for one in nights().values())
    every = tuple(run_line(one, page="runs/a.html") for one in runs().values())
    return {
        "whole": IndexReport(made_at=NIGHT, title="Stack prod", nights=lines, runs=every, more_nights=3, more_runs=1),
        "hostile": IndexReport(made_at=NIGHT, title=HOSTILE[0], nights=lines, runs=every, gaps=HOSTILE),
        "empty": IndexReport(made_at=NIGHT, title="Stack prod"),
    }


NAMES = [
    *(f"run {name}" for name in ("small", "planned", "running", "failed", "hostile", "without rows", "partial")),
    *(f"night {name}" for name in ("first", "space", "evaluation", "hostile", "nothing")),
    *(f"index {name}" for name in ("whole", "hostile", "empty")),
]


@cache
def html(name: str) -> str:
    kind, _, which = name.partition(" ")
    if kind == "run":
        return render_run(runs()[which])
    return render_night(nights()[which]) if kind == "night" else render_index(indexes()[which])


@cache
def page(name: str) -> Page:
    return Page(html(name))


# --- safe ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_allows_the_one_style_sheet_and_nothing_else(name: str) -> None:
    found = page(name)
    [policy] = [one.attributes["content"] for one in found.all("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy"]
    [sheet] = found.all("style")
    digest = base64.b64encode(hashlib.sha256(sheet.words.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = html(name).split("<style>")[0]
    assert head.index("Content-Security-Policy") < head.index("<title>")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_page_is_code_or_comes_from_elsewhere(name: str) -> None:
    found = page(name)
    assert not found.all("script", "img", "iframe", "object", "embed", "link", "base", "form", "input", "foreignobject", "image", "use")
    for one in found.every:
        assert not [key for key in one.attributes if key.startswith("on") or key in ("style", "src", "action", "xlink:href")]
        if one.name == "a":
            assert re.fullmatch(r"#[a-z0-9-]+|(runs|nights)/[\w./-]+", one.attributes["href"])
    assert not re.search(r"url\(|@import|https?:", style())


@pytest.mark.parametrize("name", ["run hostile", "night hostile", "index hostile"])
def test_hostile_content_is_text(name: str) -> None:
    found, text = page(name), html(name)
    assert HOSTILE[0] in found.root.words
    assert "\\u202e" in found.root.words
    assert "NUL \\u0000 bell \\u0007 escape \\u001b[31m red" in found.root.words or name == "index hostile"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert not re.search("\u0304\u0305", text)
    assert "w" * 1_000 not in text
    assert "49" not in re.findall(r"line two (\S+)", found.root.words)
    assert "שלום" in text
    text.encode()


def test_a_page_without_row_content_has_none() -> None:
    text = html("run without rows")
    assert "left out" in text
    for one in (*HOSTILE, "row-", "9,214"):
        assert one not in page("run without rows").root.words
    assert "plain" in text  # the code stays


# --- numbers -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "running", "failed", "hostile"])
def test_the_numbers_on_the_page_are_the_reports(name: str) -> None:
    run, found = runs()[name], page(f"run {name}")
    tiles = found.tiles()
    assert tiles["Rows"] == f"{run.ok:,}"
    assert tiles["Cost, estimated"] == usd(run.cost.estimated)
    assert tiles["Time"] == duration(run.seconds)
    assert tiles["Attempts"] == f"{run.attempts:,}"
    money = found.table("Where the money went")
    assert [row[1] for row in money.values()] == [*(usd(one.usd) for one in run.cost.slices), usd(run.cost.estimated)]
    assert run.timeline is not None
    buckets = [one for one in run.timeline.buckets if one.shards or one.lost or one.busy >= 0.005]
    told = next(table for table in found.all("table") if table.all("caption")[0].text.startswith("In each "))
    cells = [[cell.text for cell in row.children] for row in told.all("tbody")[0].all("tr")]
    assert [row[1:4] for row in cells] == [[f"{one.shards:,}", f"{one.rows:,}", f"{one.lost:,}"] for one in buckets]
    workers = found.table("Workers")
    assert {one.worker: f"{one.executions:,}" for one in run.timeline.lanes} == {worker: row[0] for worker, row in workers.items()}
    attempts = found.table("Attempts by what became of them")
    assert {state: row[0] for state, row in attempts.items()} == {state: f"{count:,}" for state, count in run.attempts_by_state.items()}


def test_failures_are_counted_by_code() -> None:
    run = runs()["small"]
    told = page("run small").one("failures").text
    assert f"{counted(run.failed, 'row')} failed ({percent(run.failed, run.rows)} of all)." in told
    for one in run.failures:
        assert f"{one.code} {counted(one.rows, 'row')}" in told


def test_a_night_shows_its_space_its_canaries_and_what_changed() -> None:
    found = page("night space")
    assert found.table("Rows of the space by what this night did to them")["Added"][0] == "1,200"
    assert found.table("Kept rows, embedded again")["Least similarity (cosine)"] == ["0.999970"]
    assert found.table("Numbers beside those of 2026-11-01")["Rows sent"] == ["5,000", "5,000", "same"]
    assert found.tiles()["Space"] == "500,000"
    assert found.one("run1-run").text.startswith(f"Run {runs()['small'].run_id}")


def test_a_night_shows_its_scores_and_their_trend() -> None:
    found = page("night evaluation")
    scores = found.table("Scores")
    assert scores["accuracy"] == ["0.4100", "0.3800", "0.4400"]
    assert scores["Difference (p = 0.031)"] == ["−0.0100", "−0.0400", "+0.0200"]
    assert found.table("Answers by what became of them; all count in the score")["cut"] == ["25", "2.5 %"]
    assert found.one("score-trend-d").text == "accuracy of 28 nights: from 0.4010 to 0.4100; baseline 0.4200."
    nights_ = found.table("Nights of this job")
    assert list(nights_)[:2] == ["2026-11-28", "2026-11-27"]


def test_the_index_leads_to_every_page() -> None:
    found = page("index whole")
    assert sum(one.attributes["href"].startswith("nights/") for one in found.all("a")) == len(nights())
    assert sum(one.attributes["href"].startswith("runs/") for one in found.all("a")) == len(runs())
    assert "3 earlier nights left out" in found.root.text


def test_a_page_of_5000_shards_is_small() -> None:
    report = report_of(made(Shape()))
    text = render_run(report)
    assert len(text.encode()) < GOAL_BYTES
    assert Page(text).tiles()["Shards"] == "5,000"


def test_the_same_report_gives_the_same_page() -> None:
    report = runs()["hostile"]
    assert render_run(report) == render_run(msgspec.json.decode(msgspec.json.encode(report), type=RunReport))


# --- for every reader ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_headings_and_landmarks_lead_through_the_page(name: str) -> None:
    found = page(name)
    levels = [int(one.name[1]) for one in found.all("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert [len(found.all(mark)) for mark in ("header", "main", "footer")] == [1, 1, 1]
    ids = {one.attributes["id"] for one in found.every if "id" in one.attributes}
    for one in found.every:
        for reference in ("aria-labelledby", "aria-describedby"):
            assert set(one.attributes.get(reference, "").split()) <= ids
        if one.attributes.get("href", "").startswith("#"):
            assert one.attributes["href"][1:] in ids
    for section in found.all("section", "nav", "aside"):
        assert "aria-labelledby" in section.attributes or "aria-label" in section.attributes
    assert found.all("html")[0].attributes["lang"] == "en"
    assert found.all("title")[0].text


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_a_caption_and_headers_that_name_something(name: str) -> None:
    for table in page(name).all("table"):
        assert table.children[0].name == "caption"
        assert table.children[0].text
        heads = table.all("thead")[0].all("th")
        assert all(one.attributes["scope"] == "col" and one.text for one in heads)
        for row in [row for part in table.all("tbody", "tfoot") for row in part.all("tr")]:
            assert (row.children[0].name, row.children[0].attributes["scope"]) == ("th", "row")
            assert len(row.children) == len(heads)
            assert all(cell.attributes["role"] in ("rowheader", "cell") for cell in row.children)


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_is_told_in_words_or_hidden_from_those_who_do_not_see_it(name: str) -> None:
    for chart in page(name).all("svg"):
        parent = chart.parent
        assert parent is not None
        if parent.name == "svg" or chart.attributes.get("aria-hidden") == "true":
            continue
        assert chart.attributes["role"] == "img"
        assert [one.name for one in chart.children[:2]] == ["title", "desc"]
        assert all(one.text for one in chart.children[:2])


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    whole = "".join(one * 2 for one in digits) if len(digits) == 3 else digits
    parts = [int(whole[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_marks_stand_out_in_light_and_dark(theme: int) -> None:
    colours = dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{3,6})", re.findall(r":root\{[^}]*\}", style())[theme]))
    for ground in ("bg", "card"):
        for text in ("text", "soft", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for tone in ("good", "warn", "bad", "busy"):
        assert contrast(colours[tone], colours[f"{tone}-bg"]) >= 4.5, tone
        assert contrast(colours["text"], colours[f"{tone}-bg"]) >= 4.5, tone
    for mark in ("loading", "reading", "computing", "writing", "other", "partial", "lost", "unended", "axis"):
        assert contrast(colours[mark], colours["card"]) >= 3, mark
