"""tests of contract.errors: one tree, and the exit codes of DESIGN.md, law 8."""

from __future__ import annotations

import inspect

import pytest

from contract import errors
from contract.errors import (
    BadRow,
    DatasetError,
    EndpointAuth,
    Interrupted,
    NightbatchError,
    NotAsWanted,
    NotFound,
    PlanMismatch,
    RateLimited,
    StoreUnavailable,
    UsageError,
    VerifyFailed,
)


def test_every_error_of_the_project_is_in_the_tree() -> None:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert len(found) > 20
    assert all(issubclass(value, NightbatchError) for value in found)
    for value in found:
        assert value.__doc__, value


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (NotAsWanted, 1), (VerifyFailed, 1), (UsageError, 2), (DatasetError, 2), (PlanMismatch, 2), (NotFound, 3), (StoreUnavailable, 3),
        (EndpointAuth, 3), (Interrupted, 130),
    ],
)  # fmt: skip
def test_each_branch_has_its_exit_code(kind: type[NightbatchError], code: int) -> None:
    assert kind("x").exit_code == code


@pytest.mark.parametrize(
    ("where", "fix", "text"),
    [
        (None, None, "it broke."),
        ("plan.json", None, "plan.json: it broke."),
        (None, "Mend it.", "it broke. Mend it."),
        ("plan.json", "Mend it.", "plan.json: it broke. Mend it."),
    ],
)
def test_a_message_says_what_where_and_what_to_do(where: str | None, fix: str | None, text: str) -> None:
    assert str(NightbatchError("it broke.", where=where, fix=fix)) == text


def test_errors_carry_what_programs_need() -> None:
    row = BadRow("rows.jsonl", 7, "not_json", "not JSON")
    error = DatasetError("1 bad row.", bad_rows=[row])
    assert (error.total, error.bad_rows, str(row)) == (1, (row,), "rows.jsonl:7: not JSON")
    assert DatasetError("many.", bad_rows=[row], total=5000).total == 5000
    assert VerifyFailed("x", findings=["a", "b"]).findings == ("a", "b")
    assert RateLimited("x", retry_after_s=2.5).retry_after_s == 2.5
