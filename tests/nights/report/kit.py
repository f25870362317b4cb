"""tests/nights/report: pages to look at: runs as workers would have left them, records of nights, and a reader of HTML that is strict."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any, Final

from benchmarks.report import Made, Shape, make_run
from contract.models import PhaseSeconds, encode
from nights.record import CanaryResult, EvalNight, NightEvent, NightRecord, SpaceNight
from nights.report.model import RunReport
from nights.report.read import read_run
from pipelines.summary import FailureCount, RunSummary

EMPTY: Final = frozenset({"meta", "rect", "path", "br", "img", "input", "link", "hr"})
HOSTILE: Final = (
    "<script>parent.fired = 1</script><img src=x onerror='parent.fired = 1'> ]]> <!-- </style></title>",
    "\u202egnp.exe\u202c שלום עולם مرحبا بالعالم and back",
    "Z" + "\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u0309" * 3 + "algo",
    "w" * 10_000,
    "NUL \x00 bell \x07 escape \x1b[31m red",
    "emoji \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f389",
    "line one\nline two {{ 7 * 7 }} {% raw %} \" onmouseover='parent.fired = 1' x=\"",
)
SMALL: Final = Shape(shards=40, workers=3, seconds=20.0, lost_every=9, dead_every=0, failed_every=10)
CLEAN: Final = Shape(shards=12, workers=2, seconds=20.0, lost_every=0, dead_every=0, failed_every=0)
HOSTILE_SHAPE: Final = Shape(
    shards=40, workers=3, lost_every=7, failed_every=2, dead_every=20, messages=HOSTILE, ids=HOSTILE,
    codes=(HOSTILE[0], "plain", HOSTILE[2]), job_cause="error", job_error=HOSTILE[0],
)  # fmt: skip
NIGHT: Final = datetime(2026, 11, 28, 21, tzinfo=UTC)


def made(shape: Shape = SMALL) -> Made:
    return asyncio.run(make_run(shape))


def report_of(run: Made, *, rows: bool = True, after: timedelta = timedelta(0)) -> RunReport:
    return asyncio.run(read_run(run.store, run.keys, run.plan, rows=rows, now=run.now + after))


def summary_of(run: Made, report: RunReport, *, verified: bool | None = True, failures: tuple[FailureCount, ...] = ()) -> RunSummary:
    return RunSummary(
        run=report.run, plan=report.plan_id, state="complete", rows=report.rows, ok=report.ok, failed=report.failed, skipped=0,
        shards=report.shards, shards_done=report.shards, attempts=report.attempts, executions=report.executions, tokens_in=report.tokens_in,
        tokens_out=0, out="reviews.parquet", errors="reviews.errors.jsonl", seal="ab" * 32, verified=verified, seconds=report.seconds,
        phases=PhaseSeconds(), worker_seconds=report.cost.worker_seconds, usd_planned=report.cost.planned,
        usd_estimated=report.cost.estimated, failures=failures, at=run.now,
    )  # fmt: skip


def with_summary(run: Made, **more: Any) -> Made:
    """The same run after collect and verify."""
    run.store.objects.data[run.keys.summary()] = encode(summary_of(run, report_of(run), **more))
    return run


def night(date: str = "2026-11-28", **more: Any) -> NightRecord:
    began = datetime.fromisoformat(f"{date}T21:00:00+00:00")
    given: dict[str, Any] = {
        "job": "reviews", "date": date, "kind": "embed", "stack": "prod", "state": "done", "began": began,
        "ended": began + timedelta(minutes=12), "seconds": 720.0, "rows": 500_000, "sent": 5_000, "ok": 5_000, "usd_planned": 0.22,
        "usd_estimated": 0.21, "sentence": "5,000 of 500,000 rows were new and are computed.", "space": space(),
        "facts": {"image": "worker:1", "model": "e5"},
        "events": (NightEvent(kind="success", key="s", at=began, sentence="All as wanted."),), **more,
    }  # fmt: skip
    return NightRecord(**given)


def space(**more: Any) -> SpaceNight:
    canary = CanaryResult(rows=32, passed=True, cosine=0.99997, norm=0.0001, dimensions=384, kept_dimensions=384, sentence="As kept.")
    given: dict[str, Any] = {
        "space": "reviews-e5", "table": "s3://memory/spaces/reviews-e5/table", "version_before": 27, "version": 28, "rows": 500_000,
        "added": 1_200, "changed": 3_800, "removed": 41, "unchanged": 495_000, "bytes_written": 9_300_000, "canary": canary, **more,
    }  # fmt: skip
    return SpaceNight(**given)


def evaluation(score: float = 0.41, **more: Any) -> EvalNight:
    given: dict[str, Any] = {
        "suite": "gsm-mini", "result": "r-1", "metric": "accuracy", "score": score, "low": score - 0.03, "high": score + 0.03,
        "confidence": 0.95, "rows": 1_000, "counts": {"ok": 960, "cut": 25, "unparsed": 15}, "metrics": {"accuracy": score, "f1": 0.5},
        "baseline": "main", "baseline_score": 0.42, "difference": score - 0.42, "difference_low": -0.04, "difference_high": 0.02,
        "p_value": 0.031, "gate": "passed", "sentence": "accuracy is as it was.", **more,
    }  # fmt: skip
    return EvalNight(**given)


async def verified_run(shape: Shape = CLEAN) -> Made:
    """A run that was collected and verified."""
    run = await make_run(shape)
    report = await read_run(run.store, run.keys, run.plan, now=run.now)
    await run.store.put(run.keys.summary(), encode(summary_of(run, report)))
    return run


# --- a strict reader -----------------------------------------------------------------------------------------------------------------


@dataclass
class Element:
    """One element of a page. `words`: all text inside it."""

    name: str
    attributes: dict[str, str]
    parent: Element | None
    children: list[Element] = field(default_factory=list)
    words: str = ""

    def all(self, *names: str) -> list[Element]:
        found = [self] if self.name in names else []
        return found + [one for child in self.children for one in child.all(*names)]

    @property
    def text(self) -> str:
        return " ".join(self.words.replace("\u00a0", " ").split())


class Page(HTMLParser):
    """Reads a page and refuses what a browser would have to guess: tags that do not close, ids that are there twice."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.root = Element("", {}, None)
        self._open = [self.root]
        self.feed(html)
        self.close()
        assert self._open == [self.root], f"not closed: {[one.name for one in self._open]}"
        ids = [one.attributes["id"] for one in self.every if "id" in one.attributes]
        assert len(ids) == len(set(ids)), "an id is there twice"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        made_ = Element(tag, {name: value or "" for name, value in attrs}, self._open[-1])
        self._open[-1].children.append(made_)
        if tag not in EMPTY:
            self._open.append(made_)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for one in self._open:
            one.words += data

    @property
    def every(self) -> list[Element]:
        def walk(element: Element) -> list[Element]:
            return [element, *(one for child in element.children for one in walk(child))]

        return walk(self.root)[1:]

    def all(self, *names: str) -> list[Element]:
        return self.root.all(*names)

    def one(self, ident: str) -> Element:
        return next(one for one in self.every if one.attributes.get("id") == ident)

    def table(self, caption: str) -> dict[str, list[str]]:
        """A table's rows by their first cell."""
        table = next(one for one in self.all("table") if one.all("caption")[0].text == caption)
        rows = [row for part in table.all("tbody", "tfoot") for row in part.all("tr")]
        return {row.children[0].text: [cell.text for cell in row.children[1:]] for row in rows}

    def tiles(self) -> dict[str, str]:
        """The large numbers by their names."""
        tiles = [one for one in self.all("div") if one.attributes.get("class") == "tile"]
        return {tile.all("dt")[0].text: tile.all("dd")[0].text for tile in tiles}
