"""infra/provider: what REST v2 refuses, as exceptions. Apart from the client, because the plugin needs them before it needs HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from contract.errors import InfrastructureError


class RestError(InfrastructureError):
    """REST v2 refused, or did not answer. `status` is 0 where there was no answer; `errors` are the validator's own sentences."""

    def __init__(
        self,
        what: str,
        *,
        status: int = 0,
        title: str = "",
        detail: str = "",
        errors: Sequence[str] = (),
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.status = status
        self.title = title
        self.detail = detail
        self.errors = tuple(errors)


class NotFound(RestError):
    """404: there is no such resource (any more)."""


class Denied(RestError):
    """401 or 403: no key, a wrong key, or a key without this permission."""


class TooManyRequests(RestError):
    """429, and the deadline came before RunPod's Retry-After. Certainly nothing happened."""


class Unreachable(RestError):
    """No usable answer within the deadline. `maybe_done`: the request may have been executed all the same."""

    def __init__(self, what: str, *, maybe_done: bool, status: int = 0, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, status=status, where=where, fix=fix)
        self.maybe_done = maybe_done
