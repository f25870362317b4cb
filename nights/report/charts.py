"""nights/report: charts as SVG inside a page: functions from frozen values to markup. Pure.

A chart is as wide as its page and its text keeps its size: positions of text are percentages, and marks lie in an inner picture that is
stretched. Colours are classes of page.css, because a strict policy allows no style of an element's own, and so that light and dark both
work. Every chart has a title and a description, and the page has its numbers as a table beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from markupsafe import Markup

from contract.words import counted, duration, usd
from nights.record import NightRecord
from nights.report.model import Cost, Delays, Spread, Timeline, Tone
from nights.report.spans import step
from nights.report.text import clock, measure, percent, short, visible

WIDTH: Final = 1000
"""Of the inner picture: thousandths."""
LANE: Final = 18
TONES: Final[dict[Tone, str]] = {"good": "as wanted", "warn": "not as wanted", "bad": "failed", "busy": "under way"}
SLICES: Final = {
    "loading": "Starting engines",
    "reading": "Reading rows",
    "computing": "Computing",
    "writing": "Writing results",
    "other": "Other steps of executions",
    "partial": "Cut short, finished rows kept",
    "lost": "Retries and losing executions",
    "unended": "Executions that never ended",
}
"""What a part of the cost is called."""


def text(x: float, y: float, said: str, kind: str = "tick", anchor: str = "start") -> Markup:
    """`x` in thousandths of the width, `y` in pixels."""
    return Markup('<text x="{}%" y="{}" class="{}" text-anchor="{}">{}</text>').format(f"{x / 10:g}", f"{y:g}", kind, anchor, visible(said))


def boxes(kind: str, found: Iterable[tuple[float, float, float, float]]) -> Markup:
    """Boxes (x, y, width, height) of one colour as one path of the inner picture."""
    path = "".join(f"M{x:g} {y:g}h{w:g}v{h:g}h{-w:g}z" for x, y, w, h in found if w > 0 and h > 0)
    return Markup('<path class="{}" d="{}"/>').format(kind, path) if path else Markup("")


def line(kind: str, points: Iterable[tuple[float, float]]) -> Markup:
    """A line of the inner picture, of which a stretch does not change the width."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return Markup('<path class="line {}" d="M{}"/>').format(kind, path) if path else Markup("")


def picture(ident: str, title: str, told: str, height: float, marks: Iterable[Markup], words: Iterable[Markup] = ()) -> Markup:
    """The whole chart. `marks` are stretched, `words` are not."""
    inner = Markup('<svg width="100%" height="{}" viewBox="0 0 1000 {}" preserveAspectRatio="none">{}</svg>').format(
        f"{height:g}", f"{height:g}", Markup("").join(marks)
    )
    return Markup(
        '<svg class="chart" role="img" aria-labelledby="{0}-t {0}-d" width="100%" height="{1}">'
        '<title id="{0}-t">{2}</title><desc id="{0}-d">{3}</desc>{4}{5}</svg>'
    ).format(ident, f"{height:g}", visible(title), visible(told), inner, Markup("").join(words))


def beside(labels: Sequence[tuple[float, str]], height: float, chart: Markup) -> Markup:
    """A chart with names to the left of it, which a reader of its description or its table does not need."""
    names = Markup("").join(
        Markup('<text x="100%" y="{}" class="tick" text-anchor="end">{}</text>').format(f"{y:g}", visible(said)) for y, said in labels
    )
    return Markup('<div class="plot"><svg class="gutter" aria-hidden="true" height="{}">{}</svg>{}</div>').format(
        f"{height:g}", names, chart
    )


# --- money ---------------------------------------------------------------------------------------------------------------------------


def cost_chart(cost: Cost, ident: str) -> Markup:
    """What was estimated, by where it went, above the plan's range and the budget."""
    top = max(cost.high, cost.planned, cost.estimated + cost.reserved)
    if cost.budget is not None and cost.budget <= 2 * top:
        top = max(top, cost.budget)
    if top <= 0:
        return Markup("")
    scale = WIDTH / (top * 1.02)
    marks: list[Markup] = [boxes("track", [(0, 6, WIDTH, 26)])]
    at = 0.0
    for one in cost.slices:
        marks.append(boxes(f"k-{one.kind}", [(at, 6, one.usd * scale, 26)]))
        at += one.usd * scale
    if cost.reserved > 0:
        marks.append(boxes("k-reserved", [(at, 6, cost.reserved * scale, 26)]))
    words: list[Markup] = []
    if cost.high > 0:
        marks.append(boxes("band", [(cost.low * scale, 48, max(2.0, (cost.high - cost.low) * scale), 10)]))
        marks.append(line("plan", [(cost.planned * scale, 42), (cost.planned * scale, 64)]))
        words.append(_mark(cost.planned * scale, 80, f"likely {usd(cost.planned)}"))
    if cost.budget is not None and cost.budget <= top:
        marks.append(line("limit", [(cost.budget * scale, 0), (cost.budget * scale, 64)]))
        words.append(_mark(cost.budget * scale, 95, f"budget {usd(cost.budget)}"))
    height = 100 if cost.budget is not None and cost.budget <= top else 86
    told = f"Estimated {usd(cost.estimated)}, planned {usd(cost.planned)} (from {usd(cost.low)} to {usd(cost.high)})."
    parts = "; ".join(f"{SLICES[one.kind].lower()} {percent(one.usd, cost.estimated)}" for one in cost.slices)
    chart = picture(ident, "Where the money went, and what was planned", f"{told} {parts}.", height, marks, words)
    return beside([(24, "estimated"), (57, "planned")], height, chart)


def _mark(x: float, y: float, said: str) -> Markup:
    """A word below a mark, kept inside the picture."""
    return text(min(max(x, 0), WIDTH), y, said, "tick", "start" if x < 220 else "end" if x > 780 else "middle")


# --- time ----------------------------------------------------------------------------------------------------------------------------


def time_axis(found: Timeline, y: float) -> tuple[list[Markup], list[Markup]]:
    """Grid lines down to `y` and their words: the clock, or seconds since the beginning where the run was short."""
    days = found.seconds > 86400
    width = step(found.seconds, 4 if days else 5)
    lines: list[Markup] = []
    words: list[Markup] = []
    if width >= 60:
        midnight = found.began.replace(hour=0, minute=0, second=0, microsecond=0)
        offset = (found.began - midnight).total_seconds()
        at = -(offset % width) % width
    else:
        offset, at = 0.0, 0.0
    while at <= found.seconds:
        x = at / found.seconds * WIDTH
        lines.append(line("grid", [(x, 0), (x, y)]))
        when = found.began + timedelta(seconds=at)
        said = f"{at:g} s" if width < 60 else f"{when:%d %b}" if width >= 86400 else f"{when:%a %H:%M}" if days else clock(when)
        words.append(text(x, y + 14, said, "tick", "start" if x < 30 else "end" if x > 960 else "middle"))
        at += width
    return lines, words


def lanes_chart(found: Timeline, ident: str) -> Markup:
    """One line for each worker: starting its engine, executing what counted, executing for nothing."""
    if not found.lanes:
        return Markup("")
    height = len(found.lanes) * LANE + 4
    grid, words = time_axis(found, height)
    marks = list(grid)
    labels: list[tuple[float, str]] = []
    paths: dict[str, list[tuple[float, float, float, float]]] = {}
    for number, lane in enumerate(found.lanes):
        top = number * LANE + 4
        labels.append((top + 10, lane.worker if len(lane.worker) <= 13 else f"…{lane.worker[-12:]}"))
        marks.append(boxes("track", [(0, top, WIDTH, LANE - 6)]))
        for kind, spans in lane.spans:
            slim = kind in ("lost", "partial", "unended")
            paths.setdefault(kind, []).extend(
                (start, top + (LANE - 6) / 2 if slim else top, stop - start, (LANE - 6) / 2 if slim else LANE - 6) for start, stop in spans
            )
    for kind in ("won", "running", "loading", "partial", "lost", "unended"):
        marks.append(boxes(f"k-{kind}", paths.get(kind, [])))
    told = f"{counted(found.workers, 'worker')} over {duration(found.seconds)} from {clock(found.began)} UTC; the table below has each."
    return beside(labels, height + 20, picture(ident, "Workers over time", told, height + 20, marks, words))


def rate_chart(found: Timeline, ident: str) -> Markup:
    """Shards committed in each step of time, those that were for nothing below them, and how many workers were busy."""
    tall, low = 88, 34
    most = max([one.shards + one.lost for one in found.buckets] + [1])
    busiest = max([one.busy for one in found.buckets] + [0.01])
    width = found.step / found.seconds * WIDTH
    gap = min(1.0, width * 0.15)
    bars: list[tuple[float, float, float, float]] = []
    lost: list[tuple[float, float, float, float]] = []
    busy: list[tuple[float, float, float, float]] = []
    for number, one in enumerate(found.buckets):
        x = number * width
        wide = max(0.5, min(width, WIDTH - x) - gap)
        high = one.shards / most * tall
        bars.append((x, 4 + tall - high, wide, high))
        if one.lost:
            more = one.lost / most * tall
            lost.append((x, 4 + tall - high - more, wide, more))
        high = one.busy / busiest * low
        busy.append((x, tall + 14 + low - high, wide, high))
    base = tall + 14 + low
    grid, words = time_axis(found, base)
    marks = [*grid, line("axis", [(0, 4 + tall), (WIDTH, 4 + tall)]), boxes("k-won", bars), boxes("k-lost", lost), boxes("k-busy", busy),
             line("axis", [(0, base), (WIDTH, base)])]  # fmt: skip
    at = max(range(len(found.buckets)), key=lambda number: found.buckets[number].shards)
    when = clock(found.began + timedelta(seconds=at * found.step))
    told = (
        f"{counted(sum(one.shards for one in found.buckets), 'shard')} in steps of {short(found.step)}; most, "
        f"{found.buckets[at].shards:,}, from {when} UTC; at most {busiest:.1f} workers busy on average of a step."
    )
    workers = f"{busiest:.3g}" if busiest > 0.01 else ""
    labels = [(14.0, f"{most:,}"), (4.0 + tall, "shards"), (tall + 24.0, workers), (float(base), "busy")]
    title = f"Shards committed in each {short(found.step)}, and busy workers"
    return beside(labels, base + 20, picture(ident, title, told, base + 20, marks, words))


def delays_chart(found: Delays, ident: str) -> Markup:
    """How long shards waited (above) and how long they took (below), over the same durations."""
    tall, middle = 56, 20
    bins = len(found.edges)
    width = WIDTH / bins
    most = max([*(found.delay.bins if found.delay else ()), *(found.execution.bins if found.execution else ()), 1])
    above, below = [], []
    for number in range(bins):
        x, wide = number * width + width * 0.08, width * 0.84
        if found.delay:
            high = found.delay.bins[number] / most * tall
            above.append((x, 4 + tall - high, wide, high))
        if found.execution:
            below.append((x, 4.0 + tall + middle, wide, found.execution.bins[number] / most * tall))
    each = max(1, -(-bins // 8))
    words = [
        text(number * width + 2, 4 + tall + 14, short(edge) if number else "0", "tick", "start")
        for number, edge in enumerate(found.edges)
        if number % each == 0
    ]
    height = 2 * tall + middle + 8
    marks = [boxes("k-delay", above), boxes("k-execution", below), line("axis", [(0, 4 + tall), (WIDTH, 4 + tall)]),
             line("axis", [(0, 4 + tall + middle), (WIDTH, 4 + tall + middle)])]  # fmt: skip
    told = " ".join(
        f"{name}: half took at most {duration(spread.median)}, 9 of 10 at most {duration(spread.p90)}, the longest {duration(spread.most)}."
        for name, spread in (("Waiting", found.delay), ("Executing", found.execution))
        if spread
    )
    chart = picture(ident, "How long shards waited and how long they took", told, height, marks, words)
    return beside([(tall, "waiting"), (tall + middle + 18.0, "executing")], height, chart)


def delays_sentence(found: Delays) -> str:
    """Delay against execution."""
    if not found.delay or not found.execution:
        return ""
    wait, work = found.delay, found.execution
    return (
        f"Half of the shards waited at most {duration(wait.median)} for a worker, cold starts included, and half took at most "
        f"{duration(work.median)} there; the longest waited {duration(wait.most)} and took {duration(work.most)}."
    )


def spread_rows(found: Delays) -> list[tuple[str, Spread]]:
    """For a table."""
    return [(name, spread) for name, spread in (("Waiting", found.delay), ("Executing", found.execution)) if spread]


# --- nights --------------------------------------------------------------------------------------------------------------------------


def _days(series: Sequence[NightRecord], y: float) -> list[Markup]:
    """The first, the middle and the last date below a trend."""
    width = WIDTH / len(series)
    chosen = sorted({0, (len(series) - 1) // 2, len(series) - 1}) if len(series) > 2 else list(range(len(series)))
    found: list[Markup] = []
    for number in chosen:
        x = (number + 0.5) * width
        anchor = "start" if number == 0 and len(series) > 1 else "end" if number == len(series) - 1 and len(series) > 1 else "middle"
        x = 0 if anchor == "start" else WIDTH if anchor == "end" else x
        found.append(text(x, y, series[number].date[5:], "tick", anchor))
    return found


def score_trend(series: Sequence[NightRecord], ident: str) -> Markup:
    """The score of each night with its interval, and the baseline."""
    scored = [one for one in series if one.evaluation is not None]
    if len(scored) < 2:
        return Markup("")
    found = [one.evaluation for one in scored if one.evaluation is not None]
    lowest, highest = min(one.low for one in found), max(one.high for one in found)
    baseline = found[-1].baseline_score
    if baseline is not None:
        lowest, highest = min(lowest, baseline), max(highest, baseline)
    room = max(highest - lowest, 1e-9) * 0.08
    lowest, highest = lowest - room, highest + room
    tall, width = 120.0, WIDTH / len(found)

    def y(value: float) -> float:
        return round(4 + (highest - value) / (highest - lowest) * tall, 2)

    marks = [line("axis", [(0, 4 + tall), (WIDTH, 4 + tall)])]
    if baseline is not None:
        marks.append(line("plan dash", [(0, y(baseline)), (WIDTH, y(baseline))]))
    bar = min(10.0, width * 0.3)
    marks.append(boxes("band", [((n + 0.5) * width - bar / 2, y(one.high), bar, max(1.0, y(one.low) - y(one.high)))
                                for n, one in enumerate(found)]))  # fmt: skip
    marks.append(line("score", [((n + 0.5) * width, y(one.score)) for n, one in enumerate(found)]))
    for kind, failed in (("k-won", False), ("k-lost", True)):
        dots = [((n + 0.5) * width - bar / 2, y(one.score) - 3, bar, 6) for n, one in enumerate(found) if (one.gate == "failed") is failed]
        marks.append(boxes(kind, dots))
    told = f"{found[-1].metric} of {counted(len(found), 'night')}: from {measure(found[0].score)} to {measure(found[-1].score)}" + (
        f"; baseline {measure(baseline)}." if baseline is not None else "."
    )
    labels = [(y(highest) + 8, measure(highest)), (4 + tall, measure(lowest))]
    if baseline is not None and y(highest) + 20 < y(baseline) < tall - 12:
        labels.append((y(baseline) + 4, "baseline"))
    height = tall + 22
    return beside(labels, height, picture(ident, f"{found[-1].metric} over nights", told, height, marks, _days(scored, tall + 18)))


def night_trend(series: Sequence[NightRecord], ident: str) -> Markup:
    """Dollars of each night beside what was planned, and how each went."""
    if len(series) < 2:
        return Markup("")
    most = max([one.usd_estimated for one in series] + [one.usd_planned for one in series])
    if most <= 0:
        return Markup("")
    tall, width = 80.0, WIDTH / len(series)
    wide = min(width * 0.7, 60.0)
    by_kind: dict[str, list[tuple[float, float, float, float]]] = {}
    plans: list[Markup] = []
    for number, one in enumerate(series):
        x = (number + 0.5) * width - wide / 2
        high = max(one.usd_estimated / most * tall, 1.0)
        kind = "k-unended" if one.state == "failed" else "k-lost" if one.exit_code or one.state in ("stopped", "asking") else "k-won"
        by_kind.setdefault(kind, []).append((x, 4 + tall - high, wide, high))
        if one.usd_planned > 0:
            y = 4 + tall - one.usd_planned / most * tall
            plans.append(line("plan", [(x - 2, y), (x + wide + 2, y)]))
    marks = [*(boxes(kind, found) for kind, found in by_kind.items()), *plans, line("axis", [(0, 4 + tall), (WIDTH, 4 + tall)])]
    whole = usd(sum(one.usd_estimated for one in series))
    told = f"{counted(len(series), 'night')}, {whole} in all; the last one {usd(series[-1].usd_estimated)}."
    chart = picture(ident, "Cost of each night, with a line where it was planned", told, tall + 22, marks, _days(series, tall + 18))
    return beside([(12, usd(most)), (4 + tall, "$0")], tall + 22, chart)


def calendar(jobs: Sequence[tuple[str, Sequence[tuple[str, Tone]]]], dates: Sequence[str], ident: str) -> Markup:
    """One line for each job, one cell for each date: how the night went."""
    if not jobs or not dates:
        return Markup("")
    row, width = 22, WIDTH / len(dates)
    place = {date: number for number, date in enumerate(dates)}
    paths: dict[str, list[tuple[float, float, float, float]]] = {}
    labels: list[tuple[float, str]] = []
    for number, (job, nights) in enumerate(jobs):
        labels.append((number * row + 15, job if len(job) <= 13 else f"{job[:12]}…"))
        known = dict(nights)
        for date, at in place.items():
            tone = known.get(date)
            high = {"good": 8, "warn": 12, "bad": 16, "busy": 5}.get(tone or "", 2)  # told apart without colours, too
            paths.setdefault(f"t-{tone}" if tone else "track", []).append(
                (at * width + width * 0.06, number * row + 2 + (16 - high) / 2, width * 0.88, high)
            )
    height = len(jobs) * row + 18
    words = [text(0, height - 3, dates[0][5:]), text(WIDTH, height - 3, dates[-1][5:], "tick", "end")] if len(dates) > 1 else []
    told = "; ".join(f"{job}: {', '.join(f'{date} {TONES[tone]}' for date, tone in nights[-3:])}" for job, nights in jobs)
    marks = [boxes(kind, found) for kind, found in paths.items()]
    return beside(labels, height, picture(ident, "Jobs by night", f"The latest: {told}.", height, marks, words))
