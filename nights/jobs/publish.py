"""nights/jobs: the job file's JSON schema for editors, and its reference page: both made from the model.

`python -m nights.jobs.publish` in the clone writes schemas/job.schema.json and the tables of docs/jobs.md (`make docs`); a test keeps both
current.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nights.jobs.model import Job, JobKeys
from nights.published import DIALECT, plain, text_of, with_tables, write

SCHEMA: Final = Path("schemas/job.schema.json")
PAGE: Final = Path("docs/jobs.md")
BEGIN: Final = "<!-- made from nights/jobs/model.py by `make docs`; do not edit -->"
END: Final = "<!-- end -->"
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {"embed": ("dataset",), "generate": ("dataset", "out"), "eval": ("suite",)}


def schema() -> dict[str, Any]:
    """The schema of a job file: the model's, where the name is the file's and what a kind needs is said too."""
    found: dict[str, Any] = {"$schema": DIALECT, **plain(Job.model_json_schema())}
    found["title"] = "Nightbatch job"
    found["required"] = ["version", "kind", "model"]
    found["allOf"] = [
        {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": {"required": list(needs)}}
        for kind, needs in _NEEDS.items()
    ]
    return found


def schema_text() -> str:
    """The file schemas/job.schema.json."""
    return text_of(schema())


# --- the reference page --------------------------------------------------------------------------------------------------------------


def tables() -> str:
    """Every key of a job file, as Markdown tables: of the job, and of each mapping in it."""
    found = schema()
    parts = [_table(None, JobKeys.__doc__ or "", found)]
    names = {"Space": "space", "Truncate": "space.truncate", "Canary": "canary", "Gate": "gate", "Shrink": "shrink", "Schedule": "schedule",
             "Webhook": "notify: webhook", "Slack": "notify: slack", "Email": "notify: email"}  # fmt: skip
    assert set(names) == set(found["$defs"]), "a part of the model has no table"
    parts += [_table(title, found["$defs"][name]["description"], found["$defs"][name]) for name, title in names.items()]
    return "\n\n".join(parts)


def _table(title: str | None, text: str, node: Mapping[str, Any]) -> str:
    required = set(node.get("required", ()))
    rows = [
        f"| `{key}` | {_kind(value)} | {_default(value, key in required)} | {_cell(value.get('description', ''))} |"
        for key, value in node["properties"].items()
    ]
    head = f"### {title}\n\n{' '.join(text.split())}\n\n" if title else ""
    return f"{head}| key | what it is | unless said | what it is for |\n|---|---|---|---|\n" + "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _kind(value: Mapping[str, Any]) -> str:
    if "anyOf" in value or "oneOf" in value:
        kinds = [_kind(one) for one in value.get("anyOf", value.get("oneOf", ())) if one.get("type") != "null"]
        return kinds[0] if len(set(kinds)) == 1 else " or ".join(dict.fromkeys(kinds))
    if "$ref" in value:
        return "a mapping"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return "one of " + ", ".join(f"`{one}`" for one in value["enum"]) if len(value["enum"]) <= 5 else "a word"
    kind = value.get("type")
    if kind == "array":
        return "a list"
    if kind in ("integer", "number"):
        bounds = [(word, value[key]) for word, key in _BOUNDS.items() if key in value]
        return ("a whole number" if kind == "integer" else "a number") + (
            "" if not bounds else ", " + " and ".join(f"{w} {b:,}" for w, b in bounds)
        )
    return {"string": "text", "boolean": "true or false", "object": "a mapping"}.get(str(kind), "a value")


_BOUNDS: Final = {"at least": "minimum", "more than": "exclusiveMinimum", "at most": "maximum", "less than": "exclusiveMaximum"}


def _default(value: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = value.get("default")
    if default is None or default in ([], {}, ""):
        return ""
    if isinstance(default, dict):
        return "its own"
    if isinstance(default, list):
        return "all but `success`"
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def page(text: str) -> str:
    """docs/jobs.md with its tables made anew."""
    return with_tables(text, BEGIN, END, tables())


def main(root: Path = Path()) -> None:
    """Write both files of the clone."""
    write(root, (SCHEMA, schema_text()), (PAGE, page))


if __name__ == "__main__":
    main()
