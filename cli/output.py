"""cli: what goes to stdout: one JSON object with --json, else a few lines for a person. Progress and messages go to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from cli.policy import session


def emit(record: dict[str, Any]) -> None:
    """The one JSON object of an invocation."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    print(session.clean(json.dumps(record, ensure_ascii=ascii_only)))


def say(text: str) -> None:
    """One line for the person who waits."""
    print(session.clean(text), file=sys.stderr, flush=True)
