"""infra/review: previews of several stacks -> one Markdown report for a pull request. Pure: the same previews give the same bytes.

What destroys something comes first, then what failed, then one line a stack, then rules, drift, and each property old -> new. The report is
never longer than a comment may be: the summary is kept, details are cut and counted. No value that looks secret is shown, whether Pulumi
knows it for a secret or not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from contract.gpus import usd_per_hour
from infra.review.changes import (
    ABSENT,
    ENDPOINT,
    REGISTRY,
    SECRET,
    TEMPLATE,
    UNKNOWN,
    VOLUME,
    Change,
    Json,
    Property,
    at,
    blinded,
    changes,
    hidden,
    inputs,
    outputs,
    stack_outputs,
)
from infra.review.digest import decoded, read
from infra.settings import MOST, PROJECT

LIMIT: Final = 65_000
"""Bytes of a report. GitHub takes 65,536 characters in a comment; the rest is for the marker and the link that the comment adds."""
VALUE: Final = 160
MESSAGE: Final = 1_500
REASONS: Final = 2_500
"""Longest value, message, and reasons of one stack, in characters."""
HOURS_OF_DAY: Final = 24
IDLE: Final = "RunPod's idle rule"
NIGHT_HOURS: Final = 4.0
"""Worker-hours of a typical night of an endpoint that RunPod's billing says nothing of: an assumption, and the report calls it one."""
INFRASTRUCTURE_EXITS: Final = frozenset({3, 9, 255})
"""Exit codes of the Pulumi CLI that are not the program's fault: not logged in, timed out, internal (sdk: cmdutil, exit codes)."""
RELEASING: Final = ("image", "env", "args", "disk", "ports", "registry", "templateId", "templateHash", "gpu", "networkVolumes")
"""Properties whose change starts a rolling release (serverless/endpoints/rolling-releases; REST v2's `releases`)."""


@dataclass(frozen=True)
class Finding:
    """What a rule of the program said (infra/rules.py). `level`: mandatory (the preview fails) or advisory."""

    level: str
    rule: str
    resource: str
    text: str


@dataclass(frozen=True)
class Cost:
    """What a stack's endpoints cost, in dollars: an hour with every worker of each running, a day with only the active ones (workers.min),
    a typical night. `unpriced`: endpoints whose price nobody told; they are not in the sums."""

    ceiling_per_hour: float = 0.0
    rest_per_day: float = 0.0
    night: float = 0.0
    unpriced: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackPreview:
    """The preview of one stack as it came from the engine.

    `digest`: the JSON of `pulumi preview --json`, None if it printed none. `errors`: why it failed, empty when it did not. `exit_code`: the
    CLI's. `refreshed`: live state was looked at. `nights`: what a typical night cost lately, in dollars by endpoint id, as RunPod billed;
    endpoints that are not in it are taken to be busy for NIGHT_HOURS."""

    stack: str
    digest: Json | None
    errors: tuple[str, ...] = ()
    exit_code: int = 0
    refreshed: bool = False
    nights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StackReport:
    """One stack's preview, understood."""

    stack: str
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    infrastructure: bool
    refreshed: bool
    before: Cost
    after: Cost
    billed: bool = False

    @property
    def changed(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.op != "same")

    @property
    def destructive(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if destroys(change))

    @property
    def drifted(self) -> tuple[Change, ...]:
        """What was changed or deleted on RunPod by hand, or by RunPod."""
        return tuple(change for change in self.changes if change.op == "recreate" or any(p.drifted for p in change.properties))

    @property
    def vanished(self) -> bool:
        """Everything that the state knows is gone on RunPod, and there were several: more likely the key of another account than that
        many deletions, and then an `up` would make all of it a second time."""
        known = [change for change in self.changes if change.op != "create"]
        return len(known) > 1 and all(change.op == "recreate" for change in known)

    @property
    def broken_rules(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "mandatory")

    @property
    def failed(self) -> bool:
        return bool(self.errors)


def destroys(change: Change) -> bool:
    """Something ends that runs or data depend on. Templates and credentials that are replaced are not among it."""
    return change.destroys and change.type in (ENDPOINT, VOLUME)


def understood(preview: StackPreview, secrets: Collection[str] = ()) -> StackReport:
    """Read one stack's preview, of whatever form it is. `secrets`: strings to be cut wherever they appear."""
    read_as = read(preview.digest)
    digest, problem = read_as.found, read_as.problem
    found = changes(digest)
    findings, errors, warnings = said(digest, preview.errors, secrets)
    if problem is not None:  # what cannot be read may be what destroys something: such a report is not to be believed
        errors = (*errors, short(hidden(problem, secrets)))
    tell = Pricing(prices_of(digest), stack_outputs(digest))
    return StackReport(
        stack=preview.stack,
        changes=found,
        findings=findings,
        errors=errors,
        warnings=warnings,
        infrastructure=bool(errors)
        and (problem is not None or preview.exit_code in INFRASTRUCTURE_EXITS or any(map(OUTSIDE.search, errors))),
        refreshed=preview.refreshed,
        before=cost(found, before, tell, preview.nights),
        after=cost(found, after, tell, preview.nights),
        billed=bool(preview.nights),
    )


def exit_code(reports: Sequence[StackReport], *, allow_destructive: bool = False) -> int:
    """0 nothing that needs a person, 1 findings (a broken rule, a failed program, something destroyed), 3 infrastructure."""
    if any(report.infrastructure for report in reports):
        return 3
    wrong = any(
        report.failed or report.broken_rules or ((report.destructive or report.vanished) and not allow_destructive) for report in reports
    )
    return 1 if wrong else 0


# --- money ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pricing:
    """Where prices come from. `pools`: dollars an hour of one GPU. `outputs`: the stack's, as the last `up` left them: its prices may be
    the catalog's, and hold for endpoints whose GPUs do not change."""

    pools: Mapping[str, float]
    outputs: Json

    def of(self, declared: Json, endpoint_id: str | None) -> float | None:
        """Dollars an hour of one worker: of the dearest pool that it may get, since RunPod takes a later pool when the first is full."""
        gpu = at(declared, ("gpu",))
        if not isinstance(gpu, Mapping):
            return None
        named, count = gpu.get("pools"), _count(at(gpu, ("count",)), 1)
        pools = named if isinstance(named, list) and all(isinstance(pool, str) for pool in named) else []
        if count is None:
            return None
        told = at(self.outputs, ("endpoints",))
        for one in told.values() if isinstance(told, Mapping) else ():
            if isinstance(one, Mapping) and endpoint_id and one.get("id") == endpoint_id:
                price = one.get("usd_per_hour_per_worker")
                if isinstance(price, int | float) and one.get("gpuPools") == pools and _count(at(one, ("gpuCount",)), 1) == count:
                    return float(price)
        known = [self.pools[pool] for pool in pools if pool in self.pools]
        return max(known) * count if known and len(known) == len(pools) else None


def prices_of(digest: Json) -> dict[str, float]:
    """Dollars an hour of one GPU by pool: RunPod's page, and what the stack file says instead."""
    found = usd_per_hour()
    said_so = (digest.get("config") or {}).get(f"{PROJECT}:gpuPrices")
    own = decoded(said_so) if isinstance(said_so, str) else said_so
    if isinstance(own, Mapping):  # what is no price is refused by the settings, and said there
        found |= {str(pool): float(price) for pool, price in own.items() if isinstance(price, int | float) and 0 <= price <= MOST}
    return found


def before(change: Change) -> Json | None:
    """The endpoint as it is, or None."""
    if change.old is None or change.op in ("create", "recreate"):
        return None
    return {**inputs(change.old), **outputs(change.old)}


def after(change: Change) -> Json | None:
    """The endpoint as it would be, or None."""
    if change.op in ("delete", "forget"):
        return None
    return {**outputs(change.new), **inputs(change.new)} if change.new is not None else before(change)


def cost(found: Sequence[Change], state: Callable[[Change], Json | None], tell: Pricing, nights: Mapping[str, float]) -> Cost:
    """The sums over the stack's endpoints in one of their two states. A night that was billed is as many worker-hours at another price."""
    ceiling = rest = night = 0.0
    unpriced: list[str] = []
    for change in found:
        declared = state(change)
        if change.type != ENDPOINT or declared is None:
            continue
        price = tell.of(declared, change.id)
        least, most = _count(at(declared, ("workers", "min")), 0), _count(at(declared, ("workers", "max")), 3)
        if price is None or least is None or most is None:
            unpriced.append(change.name)
            continue
        ceiling += most * price
        rest += least * price * HOURS_OF_DAY
        there = before(change)
        was = tell.of(there, change.id) if there is not None else None
        billed = nights.get(change.id or "")
        night += billed / was * price if billed is not None and was else NIGHT_HOURS * price
    return Cost(round(ceiling, 6), round(rest, 6), round(night, 6), tuple(sorted(unpriced)))


def _count(value: Any, default: int) -> int | None:
    """A count of something; None where what stands there is none, such as what is known only after `up`."""
    if value is ABSENT:
        return default
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


# --- what the program said -----------------------------------------------------------------------------------------------------------

RULE: Final = re.compile(r"(?m)^[ \t]*(?P<rule>[a-z][a-z-]*) \((?P<level>mandatory|advisory)\): (?P<resource>[^:\n]+): (?P<text>.+)$")
"""A finding as infra/rules.py prints it, alone or as a line of a longer message."""
OUTSIDE: Final = re.compile(
    r"RunPod answered \d|RunPod did not answer|RunPod's answer is|rate limit was reached|was stopped after \d+ s|PULUMI_CONFIG_PASSPHRASE"
    r"|incorrect passphrase|PULUMI_ACCESS_TOKEN|\.pulumi/meta\.yaml|unable to open state directory|missing \w+ credentials"
    r"|dial tcp|the stack is currently locked"
)
"""What the provider and the engine (3.276) say when neither the program nor its settings are at fault."""
NOISE: Final = re.compile(
    r"(?i)^(?:an unhandled error occurred: )?(?:(?:update|preview) failed|program exited with non-zero exit code: \d+)$"
)
"""What Pulumi says after every failure, whatever it was."""


def said(digest: Json, errors: Sequence[str], secrets: Collection[str]) -> tuple[tuple[Finding, ...], tuple[str, ...], tuple[str, ...]]:
    """(rule findings, errors, warnings) from the diagnostics; each once, sorted, since the engine's order is not always the same. `errors`:
    why the preview failed, where the diagnostics do not say."""
    findings: set[Finding] = set()
    wrong: set[str] = set()
    warned: set[str] = set()
    for one in digest.get("diagnostics") or ():
        severity = str(one.get("severity", ""))
        text = _tidy(str(one.get("message", "")), secrets) if severity in ("error", "warning") else ""
        if not text or NOISE.search(text):
            continue
        rules = rule_findings(text)
        findings.update(rules)
        if not rules:
            (wrong if severity == "error" else warned).add(short(text))
    if errors and not wrong and not findings:
        for error in errors:
            text = _tidy(error, secrets)
            rules = rule_findings(text)
            findings.update(rules)
            if text and not rules and not NOISE.search(text):
                wrong.add(short(text))
    broken = any(finding.level == "mandatory" for finding in findings)
    if errors and not wrong:
        wrong.add("mandatory rules are not kept, see below." if broken else "the preview failed without a message.")
    return (
        tuple(sorted(findings, key=lambda f: (f.level != "mandatory", f.rule, f.resource, f.text))),
        tuple(sorted(wrong)) if errors else (),
        tuple(sorted(warned | (set() if errors else wrong))),
    )


def rule_findings(text: str) -> tuple[Finding, ...]:
    """The findings in one message of the program; none when it is about something else."""
    return tuple(Finding(m["level"], m["rule"], m["resource"].strip(), short(m["text"].strip())) for m in RULE.finditer(text))


def _tidy(text: str, secrets: Collection[str]) -> str:
    """A message without its prefix, its colours and its secrets; of a traceback the last line."""
    text = re.sub(r"\x1b\[[0-9;]*m|<\{%[^%]*%\}>", "", text).strip()
    text = re.sub(r"^(?:error|warning|info):\s*", "", text)
    if "Traceback (most recent call last)" in text:
        lines = [line for line in text.splitlines() if line.strip()]
        last = next(
            (place for place in range(len(lines) - 1, -1, -1) if re.match(r"[A-Za-z_][\w.]*(?:Error|Exception|Failed)?: ", lines[place])),
            None,
        )
        text = "\n".join(lines[last:]) if last is not None else lines[-1]
    return hidden(text.strip(), secrets)


def short(text: str) -> str:
    """A message that is not too long."""
    return text if len(text) <= MESSAGE else text[:MESSAGE] + " …"


# --- Markdown ------------------------------------------------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    """A value on one line, not too long."""
    if value is ABSENT:
        return ""
    if value == UNKNOWN:
        return "known after up"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False, sort_keys=True)
    text = text if text else '""'
    return text if len(text) <= VALUE else f"{text[:VALUE]}… ({len(text):,} characters)"


def _plain(value: Any) -> Any:
    """Floats that are whole as integers (the engine's numbers are all floats), unknowns in words."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return "known after up" if value == UNKNOWN else value


def code(text: str) -> str:
    """`text` in code marks, whatever it holds: nothing in it becomes Markdown, a mention or a table's border."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", "⏎", text)
    text = re.sub(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]", "�", text)
    text = text.replace("|", "\\|")
    runs = [len(run) for run in re.findall(r"`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(text: str) -> str:
    """`text` as a code block inside a list item."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "�", text)
    fence = "`" * max(3, max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    inside = "\n".join(f"  {line}" for line in text.splitlines())
    return f"  {fence}text\n{inside}\n  {fence}"


def usd(value: float) -> str:
    """Dollars, to the cent; without the sign, of which two on a line can become a formula on GitHub."""
    return f"{value:,.2f}"


def moved(before: float, after: float) -> str:
    """`1.00 → 2.00 (+1.00)`, or the one value."""
    if usd(before) == usd(after):
        return usd(after)
    return f"{usd(before)} → {usd(after)} ({'+' if after > before else '−'}{usd(abs(after - before))})"


VERBS: Final = {
    "create": "created",
    "recreate": "created again",
    "update": "updated",
    "replace": "replaced",
    "delete": "deleted",
    "forget": "no longer managed",
    "import": "imported",
}
ORDER: Final = tuple(VERBS)


def tally(found: Sequence[Change]) -> str:
    """`1 replaced, 2 updated`; empty for nothing."""
    counts = Counter(change.op for change in found)
    ranked = sorted(counts, key=lambda op: (op not in ("replace", "delete"), ORDER.index(op) if op in ORDER else 99, op))
    return ", ".join(f"{counts[op]} {VERBS.get(op, op)}" for op in ranked if op != "same")


def consequence(change: Change) -> str:
    """What a destructive change means for whoever depends on the resource, in a sentence or two."""
    where = f" ({code(change.id)})" if change.id else ""
    why = [p.path for p in change.properties if p.replaces] if change.op == "replace" else []
    because = f" because of {', '.join(code(path) for path in why)}" if why else ""
    head = f"{change.kind} {code(change.name)}{where} is **{VERBS[change.op]}**{because}"
    if change.type == ENDPOINT and change.op == "replace":
        text = (
            f"{head}: the new endpoint has **a new id and URL**. The old one ends with its queue and its running jobs; whoever calls its "
            "URL and every run planned on it must change."
        )
    elif change.type == ENDPOINT:
        text = f"{head}: its URL ends, and its queued and running jobs with it."
    elif change.type == VOLUME:
        size = at(outputs(change.old), ("size",))
        kept = "" if size is ABSENT else f" ({text_of(size)} GB)"
        lost = f"**everything on the volume is lost**{kept}"
        text = f"{head}: {lost}; the new one is empty. Copy what is needed first." if change.op == "replace" else f"{head}: {lost}."
    else:
        text = f"{head}."
    if (change.old or {}).get("retainOnDelete"):
        text += " The old one is left in place (`retainOnDelete`): it costs on until somebody deletes it."
    if change.protected:
        text += " It is protected: `up` refuses this until somebody runs `pulumi state unprotect`."
    return text


def consequence_of_up(change: Change) -> str:
    """What the next `up` does to a resource, in a clause."""
    return "`up` replaces it: a new id" if change.op == "replace" else "`up` sets it back" if change.live else "`up` sets it"


def notes(change: Change) -> tuple[str, ...]:
    """What a change that destroys nothing still means."""
    found: list[str] = []
    if change.type == ENDPOINT and change.op == "update":
        touched = {re.split(r"[.\[]", p.path, maxsplit=1)[0] for p in change.properties}
        if touched & set(RELEASING):
            strict = at(inputs(change.new), ("rollout",)) == "strict"
            found.append(
                "strict release: no worker runs until every job on the old image has ended"
                if strict
                else "rolling release: idle workers are replaced at once, busy ones after their job"
            )
        if "image" in touched:
            found.append("runs in the middle pause at the new image unless `--allow-mixed-image` is given")
        for p in change.properties:
            if p.path == "workers.max" and p.new == 0:
                found.append("`workers.max` 0: no worker starts, queued jobs wait")
    if change.type == ENDPOINT and change.op == "recreate":
        found.append("**a new id and URL**: runs that are planned on the old one must be planned again")
    if change.type == VOLUME and change.op == "recreate":
        found.append("empty: what was on the old one is lost")
    if change.type == VOLUME and change.op == "update" and any(p.path == "size" for p in change.properties):
        found.append("a volume that has grown cannot shrink again")
    if change.type == TEMPLATE and change.op == "update":
        found.append("reaches endpoints only through their own update in the same `up`")
    if change.type == REGISTRY and change.op == "replace":
        found.append("a credential cannot be changed: a new id, and its endpoints are updated")
    return tuple(found)


@dataclass(frozen=True)
class Part:
    """A part of the report whose items may be cut. `noun`: what they are; empty for text that stays. `most`: bytes that the part may take,
    so that what follows has room, too."""

    head: str
    items: tuple[str, ...]
    tail: str = ""
    noun: str = "lines"
    most: int = LIMIT


def render(reports: Sequence[StackReport], *, commit: str | None = None, limit: int = LIMIT) -> str:
    """The report. Stacks that need a look come first, then by name; never longer than `limit` bytes of UTF-8."""
    ranked = sorted(reports, key=lambda r: (not r.destructive, not r.vanished, not r.failed, not r.broken_rules, r.stack))
    share = limit // 6
    parts = [
        Part(_title(ranked, commit), (), noun=""),
        Part(
            "### Destroys something\n\n",
            tuple(f"- **{name(r.stack)}**: {consequence(c)}\n" for r in ranked for c in r.destructive),
            noun="destructive changes",
            most=limit // 3,
        ),
        Part(
            "### Nothing of it is there\n\n",
            tuple(
                f"- **{name(r.stack)}**: all of its resources are gone on RunPod. Is it the right account's key? If not, an `up` would "
                "make everything a second time.\n"
                for r in ranked
                if r.vanished
            ),
            noun="stacks that are gone",
            most=share,
        ),
        Part(
            "### Could not be previewed\n\n",
            tuple(f"- **{name(r.stack)}**\n{block(reasons(r))}\n" for r in ranked if r.failed),
            noun="stacks that failed",
            most=share,
        ),
        Part(_table_head(), tuple(_table_row(r) for r in ranked), noun="stacks", most=share),
        Part(_money_note(ranked), (), noun=""),
        Part(
            "### Rules\n\n",
            tuple(_rule_line(r.stack, f) for r in ranked for f in r.findings),
            noun="rule results",
            most=share,
        ),
        Part(
            "### Drift\n\nLive is not what the last `up` left; `pulumi up --refresh --run-program` mends it.\n\n",
            tuple(line for r in ranked for line in drift_lines(r)),
            noun="differences",
            most=share,
        ),
        *(_details(r) for r in ranked if r.changed or r.warnings),
    ]
    return fit([part for part in parts if part.items or not part.noun], limit)


def reasons(report: StackReport) -> str:
    """Why a stack failed, all of it if it is not too long: at least the beginning has to be in the report."""
    text = "\n".join(report.errors)
    return text if len(text) <= REASONS else text[:REASONS] + "\n… the rest is in the log of the run"


def fit(parts: Sequence[Part], limit: int) -> str:
    """The parts one after another within `limit` bytes; what is cut is counted. The first part is never cut."""
    out: list[str] = []
    room = limit
    left_out = 0
    for place, part in enumerate(parts):
        gap = "\n" if out else ""
        fixed = size(gap + part.head + part.tail)
        cuts = sum(len(p.noun) + 60 for p in parts[place:])  # room for the sentences that say what was cut
        allowed = min(part.most, room - cuts) - fixed
        kept: list[str] = []
        for item in part.items:
            if size(item) > allowed:
                break
            kept.append(item)
            allowed -= size(item)
        missing = len(part.items) - len(kept)
        if missing and not kept:
            left_out += missing
            continue
        more = f"\n*… and {missing:,} more {part.noun}.*\n" if missing else ""
        text = f"{gap}{part.head}{''.join(kept)}{more}{part.tail}"
        out.append(text)
        room -= size(text)
    if left_out:
        out.append(f"\n*{left_out:,} more lines of detail do not fit into a comment; the log of the run has them.*\n")
    return "".join(out)


def size(text: str) -> int:
    """Bytes of UTF-8: never fewer than the characters that a forge counts."""
    return len(text.encode())


def name(stack: str) -> str:
    """A stack's name as Markdown: names are letters, digits, dots, dashes and slashes, all else is dropped."""
    return re.sub(r"[^\w./-]", "", stack).replace("_", "\\_")


def _title(reports: Sequence[StackReport], commit: str | None) -> str:
    of = f" · commit {code(commit)}" if commit else ""
    return f"## Infrastructure preview\n\n**{headline(reports)}**{of}\n"


def headline(reports: Sequence[StackReport]) -> str:
    """The report in one line."""
    everything = [change for report in reports for change in report.changed]
    touched = sum(1 for report in reports if report.changed)
    failed = sum(1 for report in reports if report.failed)
    parts = (
        []
        if failed == len(reports) and not everything
        else [
            f"{tally(everything)} in {touched} of {_stacks(len(reports))}"
            if everything
            else f"no changes in {_stacks(len(reports) - failed)}"
        ]
    )
    if failed:
        parts.append(f"{_stacks(failed)} could not be previewed")
    broken = sum(len(report.broken_rules) for report in reports)
    if broken:
        parts.append(f"{broken} mandatory {'rule' if broken == 1 else 'rules'} broken")
    drifted = sum(1 for report in reports if report.drifted)
    if drifted:
        parts.append(f"{_stacks(drifted)} drifted")
    return "; ".join(parts)


def _stacks(count: int) -> str:
    return f"{count} {'stack' if count == 1 else 'stacks'}"


def _money_note(reports: Sequence[StackReport]) -> str:
    """How the table's dollars were come by."""
    assumed = [report for report in reports if not report.billed]
    text = "At most: every worker of every endpoint running, each in its dearest pool. At rest: active workers (workers.min) alone. "
    if len(assumed) < len(reports):
        text += f"Typical night: the median of the last days that RunPod's billing has{', else ' if assumed else '.'}"
    if assumed:
        text += f"{'' if len(assumed) < len(reports) else 'Typical night: '}{NIGHT_HOURS:g} worker-hours an endpoint, assumed."
    unpriced = sorted({(report.stack, endpoint) for report in reports for endpoint in (*report.before.unpriced, *report.after.unpriced)})
    if unpriced:
        listed = ", ".join(f"{code(endpoint)} of {name(stack)}" for stack, endpoint in unpriced[:10])
        text += f" Without a price, and not in the sums: {listed}{' and others' if len(unpriced) > 10 else ''}."
    return f"*{text}*\n"


def _table_head() -> str:
    return "| stack | changes | USD/hour at most | USD/day at rest | USD a typical night | rules | drift |\n|---|---|---|---|---|---|---|\n"


def _table_row(report: StackReport) -> str:
    stop = bool(report.destructive) or report.vanished
    icon = "❌" if report.failed or report.broken_rules else "🛑" if stop else "🔸" if report.changed else "✅"
    what = tally(report.changed) or ("failed" if report.failed else "no changes")
    if report.failed and report.changed:
        what += ", then failed"
    before, after = report.before, report.after
    if report.failed and not report.changes:
        money = ["–", "–", "–"]
    else:
        least = "≥ " if after.unpriced else ""
        money = [least + moved(before.ceiling_per_hour, after.ceiling_per_hour), least + moved(before.rest_per_day, after.rest_per_day)]
        money.append(moved(before.night, after.night))
    broken, advice = len(report.broken_rules), len(report.findings) - len(report.broken_rules)
    rules = ", ".join(text for count, text in ((broken, f"{broken} broken"), (advice, f"{advice} advice")) if count) or (
        "–" if report.failed else "kept"
    )
    drift = f"{len(report.drifted)} drifted" if report.drifted else "none" if report.refreshed and not report.failed else "not looked at"
    return f"| {icon} {name(report.stack)} | {what} | {' | '.join(money)} | {rules} | {drift} |\n"


def _rule_line(stack: str, finding: Finding) -> str:
    return f"- **{name(stack)}**: {code(finding.rule)} ({finding.level}) {plain(finding.resource)}: {plain(finding.text)}\n"


def plain(text: str) -> str:
    """A sentence as Markdown that is only a sentence."""
    text = re.sub(r"\s+", " ", re.sub(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]", " ", text)).strip()
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", text).replace("\\@", "@\u200b").replace("$", "&#36;")


def drift_lines(report: StackReport) -> list[str]:
    """One line a difference between live and what the last `up` left."""
    lines = []
    for change in report.drifted:
        if change.op == "recreate":
            gone = f" (it was {code(change.id)})" if change.id else ""
            lines.append(f"- **{name(report.stack)}**: {change.kind} {code(change.name)} was deleted on RunPod{gone}; `up` makes it anew\n")
            continue
        for p in change.properties:
            if p.drifted:
                was, live = code(text_of(shown(p.path, p.before)) or "nothing"), code(text_of(shown(p.path, p.old)) or "nothing")
                idle = idle_cut(change, p)
                what = f"{change.kind} {code(change.name)} {code(p.path)}: {was} → {live} live{f' ({idle})' if idle else ''}"
                lines.append(f"- **{name(report.stack)}**: {what}\n")
    return lines


def idle_cut(change: Change, p: Property) -> str | None:
    """The sentence for RunPod's own cut of an endpoint that nobody uses, or None (facts 3.3: 3 days -> 2 workers, 7 days -> 0)."""
    if change.type != ENDPOINT or p.path != "workers.max" or not p.drifted:
        return None
    live, declared = _count(p.old, -1), _count(p.new if p.new is not ABSENT else p.before, -1)
    if live is None or declared is None:
        return None
    if live == 0 and declared > 0:
        return f"{IDLE}: no request for 7 days"
    if live == 2 and declared > 2:
        return f"{IDLE}: no request for 3 days"
    return None


def shown(path: str, value: Any) -> Any:
    """A value with its secrets cut."""
    return blinded(path, value) if value is not ABSENT else ABSENT


def _details(report: StackReport) -> Part:
    rows: list[str] = []
    for change in sorted(report.changed, key=lambda c: (not destroys(c), ORDER.index(c.op), c.type, c.name)):
        title = f"{VERBS[change.op]}: {change.kind} {code(change.name)}"
        said_too = "; ".join(notes(change))
        rows.append(f"| **{title}** | | {said_too} |\n")
        for p in change.properties:
            old, new = shown(p.path, p.old), shown(p.path, p.new)
            if old == new == SECRET:
                before, after = SECRET, f"{SECRET} (another value)"
            else:
                before, after = text_of(old), text_of(new)
            mark = (" ♻" if p.replaces else "") + (" (drift)" if p.drifted else "")
            rows.append(f"| {code(p.path)}{mark} | {code(before) if before else '–'} | {code(after) if after else '–'} |\n")
    head = f"<details><summary>{name(report.stack)}: {tally(report.changed) or 'messages'}</summary>\n\n"
    if rows:
        head += "| property (♻ forces a replacement) | old | new |\n|---|---|---|\n"
    items = [*rows]
    for place, text in enumerate(report.warnings):
        items.append(("\n" if place == 0 and rows else "") + f"- {plain(text)}\n")
    return Part(head, tuple(items), "\n</details>\n", noun="lines")


# --- for programs --------------------------------------------------------------------------------------------------------------------


def record(reports: Sequence[StackReport], *, commit: str | None = None, code: int = 0) -> dict[str, Any]:
    """The report as one JSON object."""
    return {
        "commit": commit,
        "exit_code": code,
        "stacks": [
            {
                "stack": report.stack,
                "failed": report.failed,
                "errors": list(report.errors),
                "changes": [
                    {
                        "op": change.op,
                        "kind": change.kind,
                        "name": change.name,
                        "id": change.id,
                        "destructive": destroys(change),
                        "properties": [
                            {
                                "path": p.path,
                                "old": None if p.old is ABSENT else _plain(shown(p.path, p.old)),
                                "new": None if p.new is ABSENT else _plain(shown(p.path, p.new)),
                                "replaces": p.replaces,
                                "drifted": p.drifted,
                            }
                            for p in change.properties
                        ],
                    }
                    for change in report.changed
                ],
                "rules": [{"rule": f.rule, "level": f.level, "resource": f.resource, "text": f.text} for f in report.findings],
                "drifted": len(report.drifted),
                "drift_looked_at": report.refreshed and not report.failed,
                "usd_per_hour_most": {"before": report.before.ceiling_per_hour, "after": report.after.ceiling_per_hour},
                "usd_per_day_at_rest": {"before": report.before.rest_per_day, "after": report.after.rest_per_day},
                "usd_typical_night": {"before": report.before.night, "after": report.after.night},
                "unpriced": list(report.after.unpriced),
            }
            for report in sorted(reports, key=lambda report: report.stack)
        ],
    }
