"""nights/report: HTML of a run, a night and an index. Pure but for its own templates and style, which are read once.

Every value that a template prints is shortened, made visible (`text.visible`) and escaped by Jinja, unless it is markup that `charts` or a
template made: no page can forget to. The policy of a page allows its one style sheet, by its digest, and nothing else: no script, no
picture, no font, no address but its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from contract.words import counted, duration, usd
from nights.record import DEGREES, NightRecord
from nights.report import billing, charts
from nights.report.build import index_sentence, night_sentence, night_tone
from nights.report.model import IndexReport, NightReport, RunReport, Timeline, Tone
from nights.report.text import clock, instant, measure, percent, short, shortened, size, unbroken, visible

HERE: Final = Path(__file__).parent
WHOLE_RUNS: Final = 3
"""Of a night, runs that are shown with all that their own page has."""
MOST_DAYS: Final = 60
"""In the index's calendar."""
SPANS: Final = {
    "won": "executing, counted",
    "running": "executing now",
    "loading": "starting its engine",
    "partial": "cut short, finished rows kept",
    "lost": "executing for nothing",
    "unended": "never ended",
}
WORDS: Final = {"done": "Done", "failed": "Failed", "stopped": "Stopped", "running": "Under way", "asking": "Asks a person"}
CHARTS: Final = (
    "calendar", "cost_chart", "delays_chart", "delays_sentence", "lanes_chart", "night_trend", "rate_chart", "score_trend",
    "spread_rows",
)  # fmt: skip
Cells = tuple[object, ...]


def style() -> str:
    """The one style sheet."""
    return (HERE / "page.css").read_text(encoding="utf-8").strip()


def policy(css: str) -> str:
    """What a browser may load for a page with this style: nothing but it."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _shown(value: object) -> object:
    return _plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _plain(value: str) -> str:
    return visible(shortened(value))


@cache
def environment() -> Environment:
    """Templates with all that they call."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        auto_reload=False,
    )
    css = style()
    made.filters["unbroken"] = unbroken
    made.globals.update(
        style=Markup(css),
        policy=Markup(policy(css)),  # its quotes are single ones
        bdi=_bdi,
        clock=clock,
        counted=counted,
        bill_hours=billing.hour_rows,
        bill_parts=billing.part_rows,
        degrees=DEGREES,
        duration=lambda *values: unbroken(duration(*values)),
        instant=instant,
        lane_kinds=_lane_kinds,
        measure=measure,
        moment=_moment,
        percent=lambda *values: unbroken(percent(*values)),
        run_word=run_word,
        seconds=lambda value: timedelta(seconds=value),
        short=lambda *values: unbroken(short(*values)),
        size=lambda *values: unbroken(size(*values)),
        slices=charts.SLICES,
        usd=usd,
        **{name: getattr(charts, name) for name in CHARTS},
    )
    return made


def _bdi(value: str) -> Markup:
    """Foreign text whose direction harms nothing around it."""
    return Markup("<bdi>{}</bdi>").format(_plain(value))


def _lane_kinds(found: Timeline) -> list[tuple[str, str]]:
    there = {kind for lane in found.lanes for kind, _ in lane.spans}
    return [(f"k-{kind}", name) for kind, name in SPANS.items() if kind in there]


def _moment(found: Timeline, number: int) -> str:
    at = found.began + timedelta(seconds=number * found.step)
    return f"{at:%d %b %H:%M}" if found.seconds > 86400 else f"{at:%H:%M}" if found.step >= 60 else f"{at:%H:%M:%S}"


def run_word(run: RunReport) -> str:
    """The badge."""
    if run.state == "complete":
        return "Not proven" if run.verified is False else "Complete, with failed rows" if run.failed else "Complete"
    return run.state.capitalize()


def page(template: str, **values: object) -> str:
    """Lines without the blanks that templates leave."""
    made = environment().get_template(template).render(**values)
    return "\n".join(line for line in made.splitlines() if line.strip()) + "\n"


# --- a run ---------------------------------------------------------------------------------------------------------------------------


def render_run(run: RunReport) -> str:
    """The page of a run."""
    sections = [("cost", "Cost"), ("time", "Over time"), ("delay", "Delay"), ("failures", "Failures"), ("facts", "Made of")]
    return page("run.html.j2", run=run, word=run_word(run), tiles=run_tiles(run), sections=sections)


def run_tiles(run: RunReport) -> list[tuple[str, str, str]]:
    """The numbers that a reader looks for first."""
    skipped = f"; {run.skipped:,} skipped" if run.skipped else ""
    proof = {True: ("verified", "every row has one result"), False: ("failed", "see verify"), None: ("not yet", "verify has not looked")}
    missing = ("Missing", f"{run.missing:,}", "rows without a result" if run.missing != 1 else "row without a result")
    workers = "not known" if run.cost.none else f"{run.timeline.workers if run.timeline else 0:,}"
    return [
        ("Rows", f"{run.ok:,}", f"ok of {run.rows:,}; {run.failed:,} failed{skipped}"),
        ("Cost, estimated", run.cost.spent, f"{usd(run.cost.planned)} planned{_bill(run)}"),
        ("Time", duration(run.seconds) if run.seconds else "none", f"{duration(run.planned_seconds[1])} planned"),
        ("Proof", *proof[run.verified]) if run.state == "complete" else missing,
        ("Shards", f"{run.shards_by_state.get('done', 0):,}", f"done of {run.shards:,}" + _splits(run)),
        ("Attempts", f"{run.attempts:,}", f"{run.retries:,} beyond the first; {counted(run.executions, 'execution')}"),
        ("Workers", workers, f"{run.workers_planned:,} planned"),
        ("Tokens", f"{run.tokens_in + run.tokens_out:,}", f"{run.tokens_in:,} in, {run.tokens_out:,} out"),
    ]


def _bill(run: RunReport) -> str:
    """What RunPod billed, beside plan and estimate."""
    found = run.billed
    if found is None:
        return ""
    if found.usd_billed is not None:
        return f"; {usd(found.usd_billed)} billed"
    return "; bill not known" if found.at_most is None else f"; at most {usd(found.at_most)} billed"


def _splits(run: RunReport) -> str:
    return f"; {counted(run.splits, 'split')}" if run.splits else ""


# --- a night -------------------------------------------------------------------------------------------------------------------------


def render_night(night: NightReport) -> str:
    """The page of a night."""
    record = night.record
    there = {"space": record.space, "canary": record.space and record.space.canary, "evaluation": record.evaluation}
    sections = [("changed", "What changed")]
    sections += [(name, name.capitalize()) for name, value in there.items() if value]
    sections += [("nights", "Nights before"), ("events", "Events")]
    sections += [(f"run{number}-run", f"Run {number}" if len(night.runs) > 1 else "Run") for number in range(1, len(night.runs) + 1)]
    return page(
        "night.html.j2",
        night=night,
        word=night_word(record),
        tiles=night_tiles(record),
        sections=[*sections, ("facts", "Made with")],
        whole=WHOLE_RUNS,
        night_columns=NIGHT_COLUMNS[1:],
        night_rows=[night_cells(one)[1:] for one in reversed(night.series)],
        **_night_tables(record),
    )


def night_word(record: NightRecord) -> str:
    """The badge."""
    if record.state == "done" and record.evaluation is not None and record.evaluation.gate == "failed":
        return "Gate failed"
    if record.state == "done" and night_tone(record) != "good":
        return "Done, not as wanted"
    return WORDS[record.state]


def night_tiles(record: NightRecord) -> list[tuple[str, str, str]]:
    """The numbers that a reader looks for first."""
    found = [
        ("Rows", f"{record.rows:,}", f"{record.sent:,} sent"),
        ("Results", f"{record.ok:,}", f"{record.failed:,} failed" + (f"; {record.skipped:,} skipped" if record.skipped else "")),
        ("Cost, estimated", usd(record.usd_estimated), f"{usd(record.usd_planned)} planned"),
        ("Time", duration(record.seconds), counted(len(record.runs), "run")),
    ]
    if record.space is not None:
        space = record.space
        found.append(("Space", f"{space.rows:,}", f"rows; +{space.added:,}, {space.changed:,} changed, −{space.removed:,}"))
    if record.evaluation is not None:
        scored = record.evaluation
        found.append((scored.metric.capitalize(), measure(scored.score), f"{measure(scored.low)} to {measure(scored.high)}"))
    return found


def _night_tables(record: NightRecord) -> dict[str, Any]:
    tables: dict[str, Any] = {"space_rows": [], "canary_rows": [], "score_rows": [], "count_rows": []}
    if (space := record.space) is not None:
        every = (("Added", space.added), ("Changed", space.changed), ("Unchanged", space.unchanged), ("Removed", space.removed),
                 ("Failed, not in the space", space.failed))  # fmt: skip
        whole = sum(count for _, count in every)
        tables["space_rows"] = [(name, f"{count:,}", percent(count, whole)) for name, count in every]
        if (canary := space.canary) is not None:
            size_ = f"{canary.dimensions:,}" + ("" if canary.dimensions == canary.kept_dimensions else f", kept {canary.kept_dimensions:,}")
            tables["canary_rows"] = [
                ("Rows", f"{canary.rows:,}"),
                ("Least similarity (cosine)", "not known" if canary.cosine is None else f"{canary.cosine:.6f}"),
                ("Largest change of length", "not known" if canary.norm is None else percent(canary.norm, 1)),
                ("Dimensions", size_),
            ]
    if (found := record.evaluation) is not None:
        rows: list[Cells] = [(found.metric, measure(found.score), measure(found.low), measure(found.high))]
        if found.baseline_score is not None:
            rows.append((f"{found.metric} of the baseline", measure(found.baseline_score), "", ""))
        if found.difference is not None:
            sides = [_signed(side) if side is not None else "" for side in (found.difference_low, found.difference_high)]
            name = "Difference" + (f" (p = {found.p_value:.3g})" if found.p_value is not None else "")
            rows.append((name, _signed(found.difference), *sides))
        rows += [(name, measure(value), "", "") for name, value in found.metrics.items() if name != found.metric]
        tables["score_rows"] = rows
        tables["count_rows"] = [(name, f"{count:,}", percent(count, found.rows)) for name, count in found.counts.items()]
    return tables


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{measure(abs(value))}"


NIGHT_COLUMNS: Final = [
    ("Job", ""), ("Date", ""), ("Outcome", ""), ("Rows", "num"), ("Failed", "num"), ("Cost", "num"), ("Time", "num")
]  # fmt: skip
RUN_COLUMNS: Final = [("Run", ""), ("Planned", ""), ("State", ""), ("Task", ""), ("Rows", "num"), ("Failed", "num"), ("Cost", "num")]


def night_cells(record: NightRecord) -> Cells:
    """A night in a table."""
    return (
        _bdi(record.job), record.date, _badge(night_tone(record), night_word(record)), f"{record.rows:,}", f"{record.failed:,}",
        usd(record.usd_estimated), duration(record.seconds),
    )  # fmt: skip


def _badge(tone: Tone, word: str) -> Markup:
    return Markup('<span class="badge {}">{}</span>').format(tone, _plain(word))


def _link(to: str | None, name: str, date: str = "") -> Markup:
    shown = _bdi(name) + (Markup(' <span class="whole">{}</span>').format(_plain(date)) if date else Markup(""))
    return shown if to is None else Markup('<a href="{}">{}</a>').format(to, shown)


# --- the index -----------------------------------------------------------------------------------------------------------------------


def render_index(index: IndexReport) -> str:
    """The page over runs and nights."""
    latest: dict[str, Tone] = {}
    for one in index.nights:
        latest.setdefault(one.record.job, one.tone)
    tones: Sequence[Tone] = [*latest.values()] or [one.tone for one in index.runs[:1]]
    tone: Tone = next((found for found in ("bad", "warn", "busy") if found in tones), "good")
    word = {"good": "As wanted", "warn": "Look here", "bad": "Look here", "busy": "Under way"}[tone]
    dates = sorted({one.record.date for one in index.nights})[-MOST_DAYS:]
    jobs = sorted({one.record.job for one in index.nights})
    return page(
        "index.html.j2",
        index=index,
        tone=tone,
        word=word,
        sentence=index_sentence(index),
        calendar_jobs=[
            (job, [(one.record.date, one.tone) for one in reversed(index.nights) if one.record.job == job and one.record.date in dates])
            for job in jobs
        ],
        calendar_dates=dates,
        night_columns=[("Night", ""), ("Outcome", ""), ("In one sentence", "prose"), ("Rows", "num"), ("Cost", "num"), ("Time", "num")],
        night_rows=[
            (_link(one.page, one.record.job, one.record.date), _badge(one.tone, night_word(one.record)), _bdi(night_sentence(one.record)),
             f"{one.record.rows:,}", usd(one.record.usd_estimated), duration(one.record.seconds))
            for one in index.nights
        ],
        run_columns=RUN_COLUMNS,
        run_rows=[
            (_link(one.page, one.run_id), instant(one.created_at), _badge(one.tone, one.state), _bdi(f"{one.task}, {one.model}"),
             f"{one.rows:,}", f"{one.failed:,}", one.spent)
            for one in index.runs
        ],
    )  # fmt: skip
