"""nights/report: how much of what RunPod billed for an endpoint is a run's. Pure: bill and times are brought.

RunPod bills an endpoint by the hour and knows no runs. An hour's dollars are a run's where no other run had jobs out on the endpoint in it
and the run had jobs out all the while; else they only bound the run's own bill. What an endpoint did outside of Nightbatch's storage (jobs
sent by hand, runs of another bucket) is known to nobody here, and a page says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from contract.errors import UsageError
from contract.models import EndMarker, StartMarker
from contract.protocol import Attempt, Key
from contract.words import counted, duration, usd
from nights.report.model import Bill, Billed, BilledHour, BillPart, HourLine, RunReport
from nights.report.spans import Span, joined
from nights.report.text import instant, shortened, signed

HOUR_S: Final = 3600
MOST_HOURS: Final = 31 * 24
"""Of one run, between its first and its last."""
SLACK_S: Final = 1.0
"""An hour that lacks so little is covered: times are of whole requests."""
LAG_S: Final = 2 * HOUR_S
"""So long after its end an hour's bill counts as one that may grow. A guess: RunPod publishes no delay."""
MOST_NAMED: Final = 5


@dataclass(frozen=True)
class Use:
    """When the run had jobs out on its endpoint, with the idle time after them, and when other runs had, by run id; as far as storage
    tells. `unread`: other runs of the endpoint of which that cannot be read. `tail_s`: the endpoint's idle time-out, None where it is not
    known."""

    own: tuple[Span, ...]
    others: Mapping[str, tuple[Span, ...]]
    unread: tuple[str, ...] = ()
    tail_s: float | None = None


def jobs_out(
    attempts: Mapping[Key, Attempt],
    starts: Mapping[str, StartMarker],
    ends: Mapping[str, EndMarker],
    over: Mapping[Key, datetime],
    *,
    now: datetime,
    timeout_s: float,
    tail_s: float = 0.0,
) -> tuple[Span, ...]:
    """When a run had jobs out: each from its sending to the end of its last execution; one that never began to the moment it was said to be
    over (`over`), else to its ttl. Executions whose journal is gone count by themselves. Nothing is later than `now`."""
    present = now.timestamp()
    by_job: dict[tuple[str, int], list[Span]] = {}
    for name, start in starts.items():
        end = ends.get(name)
        stop = end.at.timestamp() if end is not None else start.at.timestamp() + timeout_s
        begin = start.at.timestamp() - start.load_s
        by_job.setdefault((start.shard, start.attempt), []).append((begin, max(begin, stop)))
    spans = [span for there in by_job.values() for span in there]
    for key, attempt in attempts.items():
        if attempt.noted == "rejected":
            continue
        intent = attempt.intent
        sent = intent.sent_at.timestamp()
        executed = by_job.get((intent.shard, intent.attempt))
        if executed is not None:
            spans.append((sent, max(sent, *(stop for _, stop in executed))))
            continue
        last = over.get(key, attempt.expires_at)
        spans.append((sent, max(sent, last.timestamp())))
    return tuple(joined((start, min(stop, present) + tail_s) for start, stop in spans if start <= present))


def window(own: Sequence[Span]) -> tuple[datetime, datetime] | None:
    """From the first to the last moment, None where there is none. Raises UsageError where that is too long to be asked for."""
    if not own:
        return None
    if own[-1][1] - own[0][0] > MOST_HOURS * HOUR_S:
        raise UsageError(f"the run had jobs out over more than the {MOST_HOURS} hours that are asked for.")
    return _at(own[0][0]), _at(own[-1][1])


def with_bill(report: RunReport, bill: Bill, use: Use) -> RunReport:
    """The report with what RunPod billed."""
    return replace(report, billed=_billed(report, bill, use))


def not_billed(report: RunReport, endpoint_id: str, at: datetime, sentence: str) -> RunReport:
    """The report with the sentence why there is no bill."""
    return replace(report, billed=Billed(endpoint_id=endpoint_id, asked_at=at, sentence=sentence, error=sentence))


def _billed(report: RunReport, bill: Bill, use: Use) -> Billed:
    if bill.error is not None:
        said = f"RunPod's bill could not be read: {shortened(bill.error)}"
        return Billed(endpoint_id=bill.endpoint_id, asked_at=bill.asked_at, sentence=said, error=said)
    billed = {int(one.began.timestamp()) // HOUR_S: one for one in bill.hours}
    own = _by_hour(use.own)
    others = {name: hours for name, spans in use.others.items() if (hours := set(_by_hour(spans)) & set(own))}
    lines = tuple(
        HourLine(
            began=_at(hour * HOUR_S),
            usd=billed[hour].usd if hour in billed else None,
            covered_s=min(covered, float(HOUR_S)),
            others=sum(hour in hours for hours in others.values()),
        )
        for hour, covered in sorted(own.items())
    )
    there = [billed[hour] for hour in own if hour in billed]
    total = math.fsum(one.usd for one in there)
    partly = [one for one in lines if one.covered_s < HOUR_S - SLACK_S]
    fresh = [one for one in lines if one.began + timedelta(seconds=HOUR_S + LAG_S) > bill.asked_at]
    tail = (use.tail_s or 0.0) + SLACK_S  # an hour that holds no more of the run than this may well have cost nothing
    silent = [one for one in lines if one.usd is None and one not in fresh and one.covered_s > tail]
    reasons = _reasons(others, use, partly, fresh, silent, bill.asked_at)
    alone, settled = not others and not use.unread, not (fresh or silent or use.tail_s is None)
    mine = total if lines and not reasons else None
    sure = [one.usd or 0.0 for one in lines if one not in partly and not one.others and not use.unread]
    found = Billed(
        endpoint_id=bill.endpoint_id,
        asked_at=bill.asked_at,
        sentence="",
        hours=lines,
        usd_hours=total,
        usd_billed=mine,
        at_least=math.fsum(sure),
        at_most=total if settled else None,
        difference=mine - report.cost.estimated if mine is not None and not _uncertain(report) else None,
        alone=alone,
        whole=not partly,
        settled=settled,
        others=tuple(sorted(others)[:MOST_NAMED]),
        more_others=max(0, len(others) - MOST_NAMED),
        reasons=reasons,
        parts=_parts(report, there, use.tail_s, partly=bool(partly)) if alone and settled and not _uncertain(report) else (),
    )
    return replace(found, sentence=billed_sentence(found))


def billed_sentence(found: Billed) -> str:
    """What was billed, and whose it is."""
    assert found.usd_hours is not None
    hours = f"the {counted(len(found.hours), 'hour')} in which this run had jobs out"
    said = f"RunPod billed {usd(found.usd_hours)} for the endpoint in {hours}"
    if found.usd_billed is not None:
        return f"{said}. The run had it alone, so that this is the run's{_compared(found.difference)}."
    bounds = [f"at least {usd(found.at_least)}"] if found.at_least else []
    bounds += [f"at most {usd(found.at_most)}"] if found.at_most is not None else []
    own = f"The run's own is {' and '.join(bounds)}." if bounds else "What the run's own is, is not known yet."
    return f"{said}. That is not the run's own bill: {'; '.join(found.reasons)}. {own}"


def _compared(off: float | None) -> str:
    if off is None:
        return ""
    return ", as estimated" if abs(off) < 1e-6 else f", {usd(abs(off))} {'more' if off > 0 else 'less'} than estimated"


def _reasons(
    others: Mapping[str, object],
    use: Use,
    partly: Sequence[HourLine],
    fresh: Sequence[HourLine],
    silent: Sequence[HourLine],
    asked_at: datetime,
) -> tuple[str, ...]:
    found: list[str] = []
    if others:
        names = ", ".join(sorted(others)[:MOST_NAMED]) + (" …" if len(others) > MOST_NAMED else "")
        found.append(f"{counted(len(others), 'other run')} had jobs out on the endpoint in these hours ({names})")
    if use.unread:
        names = ", ".join(use.unread[:MOST_NAMED]) + (" …" if len(use.unread) > MOST_NAMED else "")
        found.append(f"whether {counted(len(use.unread), 'other run')} had could not be read ({names})")
    if partly:
        share = f"{duration(sum(one.covered_s for one in partly))} of {duration(len(partly) * HOUR_S)}"
        found.append(f"this run covers {counted(len(partly), 'hour')} only in part, {share}")
    if fresh:
        found.append(f"RunPod bills late, and from {instant(fresh[0].began)} on that was not all when it was asked at {instant(asked_at)}")
    if silent:
        found.append(f"RunPod has no record of {counted(len(silent), 'hour')}, which may have cost nothing")
    if use.tail_s is None:
        found.append("the stack does not know the endpoint, so that its idle time-out after the run may lie in one more hour")
    return tuple(found)


def _uncertain(report: RunReport) -> bool:
    """Whether the estimate lacks executions, so that a difference to it would tell nothing."""
    return report.cost.none or report.cost.unmarked > 0


def _parts(report: RunReport, hours: Sequence[BilledHour], tail_s: float | None, *, partly: bool) -> tuple[BillPart, ...]:
    """From the estimate to the sum of the hours. Idle time at the end is what it may have been at most, and only as much as was billed."""
    cost, total = report.cost, math.fsum(one.usd for one in hours)
    workers = report.timeline.workers if report.timeline is not None else 0
    found = [BillPart(kind="estimated", name="Estimated from markers", usd=cost.estimated)]
    left = total - cost.estimated

    def take(part: BillPart) -> None:
        nonlocal left
        if part.usd > 0:
            found.append(part)
            left -= part.usd

    take(BillPart(kind="disk_fee", name="Disk and fees, as billed", usd=math.fsum(one.disk + one.fee for one in hours)))
    take(BillPart(kind="idle", name="Idle between shards, at most", usd=min(max(0.0, left), cost.idle_usd)))
    end = workers * (tail_s or 0.0) * cost.usd_per_second
    name = f"Idle at the end of {counted(workers, 'worker')}, at most"
    take(BillPart(kind="idle_end", name=name, usd=min(max(0.0, left), end)))
    if left > 0:
        rest = "Rest: start-ups that failed, idle time-outs in between, jobs that no run sent"
        rest += ", and the minutes of these hours that are not the run's" if partly else ""
    elif any(one.kind == "unended" for one in cost.slices):
        rest = "Less: executions that never ended are estimated at their whole time"
    else:
        rest = "Less: a cheaper GPU than planned, or shards that shared a worker"
    if abs(left) >= 1e-9:
        found.append(BillPart(kind="rest", name=rest, usd=left))
    return tuple(found)


def part_rows(found: Billed) -> list[tuple[str, str, str]]:
    """The parts as a page's table has them: name, dollars, and their sum so far."""
    rows: list[tuple[str, str, str]] = []
    so_far = 0.0
    for number, one in enumerate(found.parts):
        so_far += one.usd
        rows.append((one.name, usd(one.usd) if number == 0 else signed(one.usd, usd(abs(one.usd))), usd(max(0.0, so_far))))
    return rows


def hour_rows(found: Billed) -> list[tuple[str, str, str, str]]:
    """The hours as a page's table has them."""
    return [
        (instant(one.began), "no record" if one.usd is None else usd(one.usd), duration(one.covered_s), f"{one.others:,}")
        for one in found.hours
    ]  # fmt: skip


def _by_hour(spans: Iterable[Span]) -> dict[int, float]:
    """Seconds of each hour since the epoch that they cover."""
    found: dict[int, float] = {}
    for start, stop in joined(spans):
        for hour in range(int(start // HOUR_S), int(stop // HOUR_S) + 1):
            covered = min(stop, (hour + 1) * HOUR_S) - max(start, hour * HOUR_S)
            if covered > 0:
                found[hour] = found.get(hour, 0.0) + covered
    return found


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
