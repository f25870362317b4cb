"""nights: pages and JSON schemas that are made from models, as jobs and suites publish them. Touches files of the clone when it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def plain(node: Any) -> Any:
    """A model's schema without pydantic's titles, which are the keys once more, and with each description on one line."""
    if isinstance(node, dict):
        keep = {key: value for key, value in node.items() if not (key == "title" and isinstance(value, str))}
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else plain(value) for key, value in keep.items()
        }
    return [plain(one) for one in node] if isinstance(node, list) else node


def text_of(schema: Mapping[str, Any]) -> str:
    """The schema's file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def with_tables(text: str, begin: str, end: str, tables: str) -> str:
    """A page with the tables between two marks made anew."""
    assert text.count(begin) == text.count(end) == 1, "the page must hold one place for the tables"
    return re.sub(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: f"{begin}\n\n{tables}\n\n{end}", text, flags=re.DOTALL)


def write(root: Path, schema: tuple[Path, str], page: tuple[Path, Callable[[str], str]]) -> None:
    """Write both files of the clone."""
    (root / schema[0]).parent.mkdir(exist_ok=True)
    (root / schema[0]).write_text(schema[1], encoding="utf-8")
    (root / page[0]).write_text(page[1]((root / page[0]).read_text(encoding="utf-8")), encoding="utf-8")
