"""emulator: errors of REST v2, as application/problem+json (RFC 9457) shows them.

May touch: the standard library only. Titles are those of the official OpenAPI examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

CONTENT_TYPE = "application/problem+json"


class Problem(Exception):
    """Becomes an error answer. `errors` is every failing field of a 422; `headers` go with it (Allow, Retry-After)."""

    def __init__(self, status: int, detail: str, errors: Sequence[str] = (), headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """`title` is that of the HTTP status; 422 keeps the name of the OpenAPI file."""
        title = "Unprocessable Entity" if self.status == 422 else HTTPStatus(self.status).phrase
        body: dict[str, Any] = {"title": title, "status": self.status, "detail": self.detail}
        if self.errors:
            body["errors"] = list(self.errors)
        return body


def conflict(detail: str) -> Problem:
    """400: the request conflicts with a rule."""
    return Problem(400, detail)


def not_found(what: str = "resource not found") -> Problem:
    return Problem(404, what)


def invalid(*errors: str) -> Problem:
    """422: the body is JSON, and not what it must be."""
    return Problem(422, "Request validation failed.", errors)
