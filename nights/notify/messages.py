"""nights/notify: an event of a night -> what is told, as fields, as a text and in the shapes that receivers take. Pure.

Sentences of events hold no row content (nights/record). Examples of failed rows are the one thing that does; they come only where the job
says `include_rows`, and as plain text: no receiver is given markup that a row could have written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from contract.words import usd
from nights.record import DEGREES, EventKind, NightEvent, NightRecord

TITLES: Final[dict[EventKind, str]] = {
    "success": "done",
    "failure": "FAILED",
    "deadline_near": "may miss its deadline",
    "deadline_missed": "MISSED ITS DEADLINE",
    "budget": "stopped by its budget",
    "gate": "FAILED ITS GATE",
    "canary": "STOPPED BY ITS CANARY",
    "asking": "waits for an answer",
    "not_started": "DID NOT START",
    "rows_failed": "done, and rows failed",
}
MOST_EXAMPLE: Final = 300
"""Characters of an example."""
MOST_EXAMPLES: Final = 5
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


@dataclass(frozen=True)
class Failures:
    """Failed rows of one code. `example`: row content, told only where that is asked for."""

    code: str
    rows: int
    example: str


@dataclass(frozen=True)
class Message:
    """What is told of one event. `id`: the same for every delivery of it, so that a receiver can tell a repetition."""

    id: str
    kind: EventKind
    at: datetime
    title: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    failures: tuple[Failures, ...]
    with_rows: bool
    job: str
    date: str
    stack: str
    state: str
    exit_code: int
    numbers: dict[str, float]
    runs: tuple[str, ...]

    @property
    def bad(self) -> bool:
        return DEGREES.get(self.kind, 2) > 1

    @property
    def text(self) -> str:
        """For people: the title, the sentence, and a few facts, one a line."""
        lines = [self.title, "", self.sentence, "", *(f"{name}: {value}" for name, value in self.facts)]
        if self.failures:
            lines += ["", "failed rows:", *(f"  {line}" for line in self.failure_lines)]
        return "\n".join(lines) + "\n"

    @property
    def failure_lines(self) -> tuple[str, ...]:
        return tuple(
            f"{one.rows:,} x {plain(one.code)}" + (f", such as {plain(one.example)}" if self.with_rows and one.example else "")
            for one in self.failures[:MOST_EXAMPLES]
        )


def plain(text: str, most: int = MOST_EXAMPLE) -> str:
    """One line without control characters, cut where it is long."""
    text = _CONTROL.sub(" ", text)
    return text if len(text) <= most else text[: most - 1] + "…"


def message_of(record: NightRecord, event: NightEvent, failures: Sequence[Failures] = (), *, include_rows: bool = False) -> Message:
    """What is told of this event of this night."""
    facts = [("stack", record.stack)]
    if record.rows:
        facts.append(("rows", f"{record.rows:,} in the dataset, {record.sent:,} sent, {record.ok:,} ok, {record.failed:,} failed"))
    if record.usd_planned or record.usd_estimated:
        facts.append(("cost", f"{usd(record.usd_estimated)} estimated, {usd(record.usd_planned)} planned"))
    if record.ended is not None:
        facts.append(("ended", f"{record.ended:%Y-%m-%d %H:%M} UTC, {record.seconds / 60:.0f} min after it began"))
    if record.space is not None and record.space.version is not None:
        space = record.space
        facts.append(
            ("space", f"{space.space}: {space.added:,} added, {space.changed:,} changed, {space.removed:,} removed, {space.rows:,} in all")
        )
    if record.evaluation is not None:
        found = record.evaluation
        facts.append((found.metric, f"{found.score:.4g} ({found.low:.4g} to {found.high:.4g}), gate: {found.gate}"))
    facts += [("changed", plain(line)) for line in record.changed[:10]]
    facts += [("run", run) for run in record.runs]
    return Message(
        id=f"{record.job}/{record.date}/{event.key}",
        kind=event.kind,
        at=event.at,
        title=f"{record.job} {record.date}: {TITLES[event.kind]}",
        sentence=plain(event.sentence, 2000),
        facts=tuple(facts),
        failures=tuple(failures),
        with_rows=include_rows,
        job=record.job,
        date=record.date,
        stack=record.stack,
        state=record.state,
        exit_code=record.exit_code,
        numbers={
            "rows": record.rows,
            "sent": record.sent,
            "ok": record.ok,
            "failed": record.failed,
            "seconds": record.seconds,
            "usd_planned": record.usd_planned,
            "usd_estimated": record.usd_estimated,
        },
        runs=record.runs,
    )


def json_body(message: Message) -> dict[str, Any]:
    """The webhook's body."""
    return {
        "version": 1,
        "id": message.id,
        "event": message.kind,
        "at": message.at.isoformat(),
        "job": message.job,
        "date": message.date,
        "stack": message.stack,
        "state": message.state,
        "exit_code": message.exit_code,
        "title": message.title,
        "sentence": message.sentence,
        "numbers": message.numbers,
        "runs": list(message.runs),
        "failures": [_failure(one, with_rows=message.with_rows) for one in message.failures],
    }


def _failure(one: Failures, *, with_rows: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"code": one.code, "rows": one.rows}
    if with_rows:
        found["example"] = plain(one.example)
    return found


def slack_body(message: Message) -> dict[str, Any]:
    """The body that Slack's incoming webhooks take. Texts are `plain_text`, in which nothing is markup, no link and no mention."""
    mark = ":red_circle:" if message.bad else ":white_check_mark:" if message.kind == "success" else ":large_yellow_circle:"
    lines = [f"{name}: {value}" for name, value in message.facts] + [f"failed rows: {line}" for line in message.failure_lines]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": plain(f"{mark} {message.title}", 150), "emoji": True}},
        {"type": "section", "text": {"type": "plain_text", "text": plain(message.sentence, 2900), "emoji": False}},
    ]
    if lines:
        text = "\n".join(lines)
        blocks.append({"type": "context", "elements": [{"type": "plain_text", "text": text[:2900], "emoji": False}]})
    return {"text": slack_escaped(f"{message.title}: {message.sentence}"), "blocks": blocks}


def slack_escaped(text: str) -> str:
    """Slack reads <…> and & as markup in `text`, which notifications show."""
    return plain(text, 2900).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
