"""nights/evals: the suite file's JSON schema for editors, and the tables of keys in docs/evaluations.md: both made from the models.

`python -m nights.evals.publish` in the clone writes schemas/suite.schema.json and the tables (`make docs`); a test keeps both current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from nights.evals import scorers
from nights.evals.judge import Judge
from nights.evals.suite import Message, Sampling, SuiteKeys
from nights.published import DIALECT, plain, text_of, with_tables, write

SCHEMA: Final = Path("schemas/suite.schema.json")
PAGE: Final = Path("docs/evaluations.md")
BEGIN: Final = "<!-- made from nights/evals/suite.py by `make docs`; do not edit -->"
END: Final = "<!-- end of what is made -->"
SCORERS: Final[tuple[type[scorers.Settings], ...]] = (
    scorers.ExactSettings,
    scorers.NumericSettings,
    scorers.RegexSettings,
    scorers.ChoiceSettings,
    scorers.F1Settings,
    scorers.RougeSettings,
    scorers.BleuSettings,
    scorers.SchemaSettings,
    scorers.CodeSettings,
    scorers.FunctionSettings,
    scorers.GradedSettings,
)
SHORT: Final = ("exact", "numeric", "choice", "f1", "rouge", "bleu", "model_graded")
"""Kinds that need no settings: `- exact`."""


def schema() -> dict[str, Any]:
    """The schema of a suite file, with what `load_suite` takes besides: a scorer that is only its kind."""
    found: dict[str, Any] = {"$schema": DIALECT, **plain(SuiteKeys.model_json_schema())}
    found["title"] = "Nightbatch suite"
    items = found["properties"]["scorers"]
    items["items"] = {"anyOf": [{"enum": list(SHORT)}, items["items"]]}
    found["oneOf"] = [{"required": [way]} for way in ("column", "prompt", "messages", "messages_column")]
    return found


def schema_text() -> str:
    """The file schemas/suite.schema.json."""
    return text_of(schema())


def tables() -> str:
    """Every key of a suite file, as Markdown tables."""
    parts = [_table(SuiteKeys), _titled("messages: each", Message), _titled("sampling", Sampling), _titled("judge", Judge)]
    parts += [_titled(f"scorer `{_kind(one)}`", one) for one in SCORERS]
    return "\n\n".join(parts)


def _kind(model: type[BaseModel]) -> str:
    return str(model.model_fields["kind"].annotation.__args__[0])  # type: ignore[union-attr]


def _titled(title: str, model: type[BaseModel]) -> str:
    text = " ".join((model.__doc__ or "").split())
    rows = _table(model)
    return f"#### {title}\n{text}" + (f"\n\n{rows}" if rows else "")


COMMON: Final = frozenset({"kind", "name", "k"})
"""Keys of scorers that the page explains once."""


def _table(model: type[BaseModel]) -> str:
    rows = []
    common = COMMON if issubclass(model, scorers.Settings) and model is not scorers.CodeSettings else COMMON - {"k", "name"}
    for name, info in model.model_fields.items():
        if issubclass(model, scorers.Settings) and name in (common | {"name"}):
            continue
        default = info.get_default(call_default_factory=True, validated_data={})
        rows.append(f"| `{info.alias or name}` | {_default(default)} | {_cell(info.description or '')} |")
    return "\n".join(["| key | unless said | what it is |", "|---|---|---|", *rows]) if rows else ""


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or isinstance(value, BaseModel) or value in ((), {}):
        return ""
    if isinstance(value, str) and len(value) > 40:
        return "see below"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def page(text: str) -> str:
    """docs/evaluations.md with its tables made anew."""
    return with_tables(text, BEGIN, END, tables())


def main(root: Path = Path()) -> None:
    """Write both files of the clone."""
    write(root, (SCHEMA, schema_text()), (PAGE, page))


if __name__ == "__main__":
    main()
