"""infra/review: what a preview would do, read from the JSON that `pulumi preview --json` prints. Pure; shared by the report and by drift.

The engine's document (pkg/backend/display/json.go, PreviewDigest): `config`, `steps[{op, urn, oldState, newState, diffReasons,
replaceReasons, detailedDiff}]`, `diagnostics[{urn, message, severity}]`, `changeSummary`. Secrets are blinded by the engine as "[secret]",
values that a preview cannot know are a fixed UUID. With `--refresh`, a resource has a `refresh` step first (the state before), and the old
state of the step after it is what is live.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str | int, ...]
Json = Mapping[str, Any]

PROVIDER: Final = "runpodv2"
ENDPOINT: Final = f"{PROVIDER}:index:Endpoint"
VOLUME: Final = f"{PROVIDER}:index:NetworkVolume"
TEMPLATE: Final = f"{PROVIDER}:index:Template"
REGISTRY: Final = f"{PROVIDER}:index:RegistryCredential"
STACK: Final = "pulumi:pulumi:Stack"
KINDS: Final = {
    ENDPOINT: "endpoint",
    VOLUME: "network volume",
    TEMPLATE: "template",
    REGISTRY: "registry credential",
    f"pulumi:providers:{PROVIDER}": "provider",
}
UNKNOWN: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""What the engine writes for a value that is known only after `up` (sdk/go/common/resource/plugin, UnknownStringValue)."""
SECRET: Final = "[secret]"
REPLACEMENTS: Final = ("replace", "create-replacement", "delete-replaced", "import-replacement", "read-replacement", "discard-replaced")
INTERNAL: Final = frozenset({"__defaults", "__internal", "__provider", "version", "pluginDownloadURL"})
"""Inputs that the engine adds for itself."""

SECRET_NAME: Final = re.compile(
    r"(?i)((api|access|private|secret|signing|encryption|auth)[-_ ]?key(?!s?[-_]?(count|file))|secret|passw(or)?d|passphrase|token(?!s|iz)"
    r"|credential|authorization)"
)
"""Names whose values are not shown, whatever they are: HF_TOKEN is, MAX_TOKENS is not."""
SECRET_VALUE: Final = re.compile(
    r"\b(?:rp[as]_[A-Za-z0-9_]{8,}|hf_[A-Za-z0-9]{8,}|gh[opusr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|pul-[0-9a-f]{20,}"
    r"|sk-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]+|xox[abpr]-[\w-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)
"""Strings that look like keys of RunPod, Hugging Face, GitHub, GitLab, Pulumi, OpenAI, AWS or Slack, JSON web tokens, private keys."""
USER_INFO: Final = re.compile(r"(?<=://)[^/\s@:]*:[^/\s@]+(?=@)")
BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")


class Absent:
    """No value at all (not even null)."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Property:
    """One property that would change. `before`: what the last `up` left, where a refresh told it apart from `old`, what is live."""

    path: str
    old: Any
    new: Any
    replaces: bool = False
    before: Any = ABSENT

    @property
    def drifted(self) -> bool:
        """The live value is not what the last `up` left: somebody or something changed it on RunPod."""
        return self.before is not ABSENT and self.before != self.old


@dataclass(frozen=True)
class Change:
    """What would become of one resource. `op`: create, update, replace, delete, forget (left in place, no longer managed), import, same,
    or recreate (it was deleted by hand). `old` and `new` are the engine's resource states; `live` is True where `old` was refreshed."""

    op: str
    type: str
    name: str
    urn: str
    properties: tuple[Property, ...] = ()
    old: Json | None = None
    new: Json | None = None
    live: bool = False

    @property
    def kind(self) -> str:
        """The resource's kind in plain words."""
        return KINDS.get(self.type, self.type)

    @property
    def id(self) -> str | None:
        """RunPod's id of what is there now."""
        found = (self.old or {}).get("id")
        return found if isinstance(found, str) and found else None

    @property
    def protected(self) -> bool:
        """Pulumi refuses to delete or replace it."""
        return bool((self.old or {}).get("protect"))

    @property
    def destroys(self) -> bool:
        """Something that exists ends, and what depends on it meets that."""
        return self.op in ("replace", "delete")


def changes(digest: Json) -> tuple[Change, ...]:
    """What the preview would do to each resource (components and the stack itself left out), in the order of their names."""
    grouped: dict[str, list[Json]] = {}
    for step in digest.get("steps") or ():
        grouped.setdefault(str(step.get("urn", "")), []).append(step)
    found = [change for urn, steps in grouped.items() if (change := _change(urn, steps)) is not None]
    return tuple(sorted(found, key=lambda change: (change.type, change.name, change.urn)))


def stack_outputs(digest: Json) -> Json:
    """The outputs of the stack as the last `up` left them; empty for a new stack."""
    for step in digest.get("steps") or ():
        if type_of(str(step.get("urn", ""))) == STACK:
            outputs = (step.get("oldState") or {}).get("outputs")
            if isinstance(outputs, Mapping):
                return outputs
    return {}


def type_of(urn: str) -> str:
    """The resource's own type, without those of the components that it is in."""
    parts = urn.split("::")
    return parts[2].rsplit("$", 1)[-1] if len(parts) > 2 else ""


def name_of(urn: str) -> str:
    """The resource's name in the program."""
    parts = urn.split("::", 3)
    return parts[3] if len(parts) > 3 else urn


def _change(urn: str, steps: Sequence[Json]) -> Change | None:
    kind = type_of(urn)
    refreshes = [step for step in steps if step.get("op") == "refresh"]
    others = [step for step in steps if step.get("op") != "refresh"]
    states = [state for step in steps for state in (step.get("oldState"), step.get("newState")) if state]
    if kind == STACK or not any(state.get("custom") for state in states):
        return None  # a component is the sum of its parts
    ops = {str(step.get("op")) for step in others}
    old = _first(others, "oldState", skip="create-replacement")
    new = _last(others, "newState", skip="delete-replaced")
    before = _first(refreshes, "oldState") if refreshes else None
    if ops & set(REPLACEMENTS):
        op = "replace"
    elif "create" in ops:
        op = "recreate" if before is not None else "create"
        old = before
    elif "delete" in ops:
        op = "forget" if (old or {}).get("retainOnDelete") else "delete"
    elif "update" in ops:
        op = "update"
    elif "import" in ops:
        op = "import"
    elif "discard" in ops:
        op = "forget"
    elif not ops and _gone(refreshes):
        op = "delete"  # neither declared nor there any more: only its state goes
        old = before
    else:
        op, old, new = "same", old or before, new or old or before
    properties: tuple[Property, ...] = ()
    if op in ("update", "replace"):
        reasons = [str(key) for step in others for key in step.get("replaceReasons") or ()]
        detailed: dict[str, Json] = {}
        for step in others:
            detailed |= step.get("detailedDiff") or {}
        properties = _properties(detailed, reasons, old or {}, new or {}, before)
    elif op in ("create", "recreate", "import"):
        properties = tuple(Property(path, ABSENT, value) for path, value in leaves(inputs(new)))
    elif op in ("delete", "forget"):
        properties = tuple(Property(path, value, ABSENT) for path, value in leaves(inputs(old)))
    return Change(op, kind, name_of(urn), urn, properties, old, new, live=bool(refreshes))


def _first(steps: Sequence[Json], key: str, skip: str = "") -> Json | None:
    return next((step[key] for step in steps if step.get(key) and step.get("op") != skip), None)


def _last(steps: Sequence[Json], key: str, skip: str = "") -> Json | None:
    return _first(steps[::-1], key, skip)


def _gone(refreshes: Sequence[Json]) -> bool:
    return bool(refreshes) and all(step.get("newState") is None for step in refreshes)


def inputs(state: Json | None) -> Json:
    """The inputs of a resource's state, without what the engine keeps there for itself."""
    found = (state or {}).get("inputs")
    return {key: value for key, value in found.items() if key not in INTERNAL} if isinstance(found, Mapping) else {}


def outputs(state: Json | None) -> Json:
    """The outputs of a resource's state."""
    found = (state or {}).get("outputs")
    return found if isinstance(found, Mapping) else {}


def _properties(detailed: Mapping[str, Json], reasons: Collection[str], old: Json, new: Json, before: Json | None) -> tuple[Property, ...]:
    """The properties of an update or replacement. Lists are shown whole: an element says little without its neighbours."""
    found: dict[str, Property] = {}
    wanted = inputs(new)
    if detailed:
        for text, detail in detailed.items():
            path = whole(parse_path(text))
            kind = str(detail.get("kind", ""))
            first, second = (inputs(old), outputs(old)) if detail.get("inputDiff") else (outputs(old), inputs(old))
            _add(found, path, first, second, wanted, "replace" in kind or _is_reason(path, reasons), before)
    else:
        for path in differing(inputs(old), wanted):
            _add(found, path, inputs(old), outputs(old), wanted, _is_reason(path, reasons), before)
    return tuple(found[path] for path in sorted(found))


def _add(found: dict[str, Property], path: Path, first: Json, second: Json, wanted: Json, replaces: bool, before: Json | None) -> None:
    if path and path[0] in INTERNAL:
        return
    old = _either(first, second, path)
    was = ABSENT if before is None else _either(outputs(before), inputs(before), path)
    text = show_path(path)
    if text in found:  # elements of one list
        replaces = replaces or found[text].replaces
    found[text] = Property(text, old, at(wanted, path), replaces, was)


def _either(first: Json, second: Json, path: Path) -> Any:
    found = at(first, path)
    return at(second, path) if found is ABSENT else found


def _is_reason(path: Path, reasons: Collection[str]) -> bool:
    text = show_path(path)
    return any(text == show_path(whole(parse_path(reason))) or path[:1] == parse_path(reason) for reason in reasons)


# --- paths and values ----------------------------------------------------------------------------------------------------------------


def parse_path(text: str) -> Path:
    """`workers.max`, `gpu.pools[0]` and `env["A.B"]` as the engine writes them."""
    found: list[str | int] = []
    for match in re.finditer(r'\[(\d{1,9})\]|\["((?:[^"\\]|\\.)*)"\]|([^.\[\]]+)', text):
        index, quoted, word = match.groups()
        if index is not None:
            found.append(int(index))
        else:
            found.append(quoted.replace('\\"', '"').replace("\\\\", "\\") if quoted is not None else word)
    return tuple(found)


def show_path(path: Path) -> str:
    """The path as a person writes it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[^.\[\]\"]+", part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def whole(path: Path) -> Path:
    """The path of the list that an element is in, or the path itself."""
    for place, part in enumerate(path):
        if isinstance(part, int):
            return path[:place]
    return path


def at(value: Any, path: Path) -> Any:
    """What is there, or ABSENT. Null counts as absent: the engine and RunPod use either."""
    for part in path:
        if isinstance(part, str) and isinstance(value, Mapping):
            value = value.get(part, ABSENT)
        elif isinstance(part, int) and isinstance(value, list) and part < len(value):
            value = value[part]
        else:
            return SECRET if value == SECRET else UNKNOWN if value == UNKNOWN else ABSENT
    return ABSENT if value is None else value


def differing(old: Any, new: Any, path: Path = ()) -> Iterator[Path]:
    """The paths at which two values differ; lists are compared whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new} - (INTERNAL if not path else frozenset())):
            yield from differing(old.get(key), new.get(key), (*path, key))
    elif old != new:
        yield path


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[str, Any]]:
    """Every property with a value, lists whole, in the order of their paths."""
    if isinstance(value, Mapping) and value:
        for key in sorted(value):
            yield from leaves(value[key], (*path, key))
    elif value is not None and value != {} and path:
        yield show_path(path), value


# --- secrets -------------------------------------------------------------------------------------------------------------------------


def hidden(text: str, secrets: Collection[str] = ()) -> str:
    """`text` without what looks like a secret, and without the `secrets` themselves."""
    for secret in sorted((one for one in secrets if len(one) >= 8), key=len, reverse=True):
        text = text.replace(secret, SECRET)
    return BEARER.sub(rf"\1 {SECRET}", USER_INFO.sub(SECRET, SECRET_VALUE.sub(SECRET, text)))


def blinded(path: str, value: Any) -> Any:
    """`value` with every part cut whose name or look says that it is secret. `path` is the property's own name."""
    if isinstance(value, Mapping):
        return {key: blinded(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [blinded(path, inner) for inner in value]
    if isinstance(value, str):
        last = next((part for part in reversed(parse_path(path)) if isinstance(part, str)), "")
        if value not in (UNKNOWN, SECRET, "") and SECRET_NAME.search(last):
            return SECRET
        return hidden(value)
    return value
