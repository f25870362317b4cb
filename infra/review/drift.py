"""infra/review: what is live on RunPod and not as the program declares it. Reads, changes nothing; the mend is an `up` that refreshes.

One engine run: `pulumi preview --refresh --run-program --expect-no-changes --json`, which looks at every resource of the stack, runs the
program, and compares. Exit code 7 of the engine says that they differ. `differences` is pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from contract.errors import UsageError
from infra.review.changes import ABSENT, Change, Json, changes, hidden
from infra.review.engine import CHANGED, STACK_NOT_FOUND, EngineError, Preview, Project
from infra.review.preview import IDLE, OUTSIDE, consequence_of_up, idle_cut, said, shown, text_of

CHANGED_THERE: Final = "changed on RunPod since the last `up`"
DELETED_THERE: Final = "deleted on RunPod"
NOT_DEPLOYED: Final = "declared, not deployed yet"
UP: Final = "pulumi up --refresh --run-program"
"""Without the refresh, Pulumi compares the program with its state, and sees no drift to mend (measured with 3.276)."""
LOCAL: Final = "local"
NO_LONGER: Final = "still there, no longer declared"
MISTAKES: Final = re.compile(
    r"settings? (?:is|are) not usable:|an API key is needed|the API key holds a character|passphrase must be set|incorrect passphrase"
    r"|PULUMI_ACCESS_TOKEN must be set|pulumi login|invalid YAML file"
)
"""What infra/settings.py, the provider and the engine (3.276) say when the user has something to mend."""


@dataclass(frozen=True)
class Difference:
    """One property (or, with an empty `property`, a whole resource) that is not as declared. `declared` and `live` are None where there is
    nothing; `cause` is how it came about; `mend` what the next `up` does."""

    kind: str
    name: str
    id: str | None
    property: str
    declared: Any
    live: Any
    cause: str
    mend: str


@dataclass(frozen=True)
class Drift:
    """What was found on one stack. `looked_at`: how many resources were compared."""

    stack: str
    differences: tuple[Difference, ...]
    looked_at: int

    @property
    def exit_code(self) -> int:
        return 1 if self.differences else 0


def differences(digest: Json) -> tuple[Difference, ...]:
    """Every difference in a refreshed preview, in the order of the resources' names."""
    return tuple(difference for change in changes(digest) for difference in _of(change))


def _of(change: Change) -> list[Difference]:
    def whole(declared: Any, live: Any, cause: str, mend: str) -> Difference:
        return Difference(change.kind, change.name, change.id, "", declared, live, cause, mend)

    if change.op == "recreate":
        return [whole("there", None, DELETED_THERE, "`up` makes it anew, with a new id")]
    if change.op in ("create", "import"):
        return [whole("there", None, NOT_DEPLOYED, "`up` makes it" if change.op == "create" else "`up` adopts it")]
    if change.op in ("delete", "forget"):
        return [whole(None, "there", NO_LONGER, "`up` deletes it" if change.op == "delete" else "`up` leaves it in place")]
    found = []
    for p in change.properties:
        cause = idle_cut(change, p) or (CHANGED_THERE if p.drifted else NOT_DEPLOYED)
        found.append(
            Difference(
                change.kind, change.name, change.id, p.path, _shown(p.path, p.new), _shown(p.path, p.old), cause, consequence_of_up(change)
            )
        )
    if not found and change.op in ("update", "replace"):
        found.append(whole("there", "there", CHANGED_THERE, consequence_of_up(change)))
    return found


def _shown(path: str, value: Any) -> Any:
    value = shown(path, value)
    return None if value is ABSENT else value


def look(project: Project, stack: str, secrets: Collection[str] = ()) -> Drift:
    """Compare one stack. Raises UsageError for what the user can mend (no such stack, settings, rules, a missing key or passphrase), and
    EngineError when it could not be compared for another reason."""
    preview = project.preview(stack, "--show-sames", "--expect-no-changes", refresh=True)
    if preview.failed or preview.digest is None:
        raise _failed(preview, secrets)
    if preview.odd is not None:
        raise EngineError(hidden(preview.odd, secrets), where=f"stack {stack}", fix="Drift was not looked at.", done=preview.done)
    found = differences(preview.digest)
    if preview.done.returncode == CHANGED and not found:
        counts = ", ".join(f"{count} {op}" for op, count in sorted(preview.changes.items()))
        found = (Difference("stack", stack, None, "", "there", "there", f"Pulumi counts changes: {counts}", "`up` makes them"),)
    return Drift(stack, found, len(changes(preview.digest)))


def _failed(preview: Preview, secrets: Collection[str]) -> UsageError | EngineError:
    """Why there is nothing to compare: with the settings' and the rules' own words where they are not kept."""
    where, not_looked = f"stack {preview.stack}", "Drift was not looked at."
    if preview.done.returncode == STACK_NOT_FOUND:
        make = "nightbatch local up --pulumi" if preview.stack == LOCAL else f"pulumi stack init {preview.stack}"
        fix = f"`pulumi stack ls` lists those there are; {make} makes it. {not_looked}"
        return UsageError("Pulumi knows no stack of this name.", where=where, fix=fix)
    findings, errors, _ = said(preview.digest or {}, preview.errors, secrets)
    broken = [f"{one.rule} ({one.level}): {one.resource}: {one.text}" for one in findings if one.level == "mandatory"]
    words = "; ".join(errors) or "no reason given"
    if broken and not any(map(OUTSIDE.search, errors)):
        return UsageError(f"mandatory rules are not kept: {'; '.join(broken).rstrip('.')}.", where=where, fix=not_looked)
    if MISTAKES.search(words):
        return UsageError(f"{words.rstrip('.')}.", where=where, fix=not_looked)
    return EngineError(f"{words.rstrip('.')}.", where=where, fix=not_looked, done=preview.done)


def lines(drift: Drift) -> list[str]:
    """The differences for a person."""
    if not drift.differences:
        return [f"no drift on {drift.stack}: {drift.looked_at} resources are as declared"]
    count = len(drift.differences)
    told = [f"drift on {drift.stack}: {count} {'difference' if count == 1 else 'differences'}"]
    last: tuple[str, str] | None = None
    for one in drift.differences:
        if (one.kind, one.name) != last:
            last = (one.kind, one.name)
            told.append(f"  {one.kind} {one.name}" + (f" ({one.id})" if one.id else ""))
        if one.property:
            told.append(f"    {one.property}: declared {_text(one.declared)}, live {_text(one.live)}: {one.cause}")
        else:
            told.append(f"    {one.cause}")
    mends = sorted({one.mend for one in drift.differences})
    told.append(f"mend: {UP} --stack {drift.stack} ({'; '.join(mends)})")
    if any(one.cause.startswith(IDLE) for one in drift.differences):
        told.append(f"  or, for what the idle rule cut: nightbatch doctor {drift.stack} --fix")
    if any(one.cause == DELETED_THERE for one in drift.differences):  # 404 is all that RunPod says in both cases
        told.append("  (nobody deleted it? See whether this API key is of the stack's account before `up` makes everything a second time)")
    return told


def _text(value: Any) -> str:
    return "nothing" if value is None else text_of(value)


def record(drift: Drift) -> dict[str, Any]:
    """The drift as one JSON object."""
    return {
        "stack": drift.stack,
        "state": "drifted" if drift.differences else "clean",
        "looked_at": drift.looked_at,
        "differences": [
            {
                "kind": one.kind,
                "name": one.name,
                "id": one.id,
                "property": one.property or None,
                "declared": one.declared,
                "live": one.live,
                "cause": one.cause,
                "mend": one.mend,
            }
            for one in drift.differences
        ],
        "exit_code": drift.exit_code,
    }
