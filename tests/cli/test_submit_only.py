"""An installation that only submits (locks/submit.lock): what it cannot do ends at once, before anything is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from cli import infra, local
from cli.app import app
from contract.errors import EmulatorError, UsageError


def missing(*_: Any, **__: Any) -> NoReturn:
    raise EmulatorError("no weed")


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gigabytes would be installed here."""

    def built() -> NoReturn:
        raise AssertionError("the worker's environment was asked for")

    monkeypatch.setattr(local, "worker_python", built)
    monkeypatch.setenv("NIGHTBATCH_HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTBATCH_PROGRAM", "./nightbatch")


@pytest.mark.parametrize("by_pulumi", [False, True])
@pytest.mark.usefixtures("no_worker")
def test_a_local_stack_is_refused_where_there_is_no_s3_server(monkeypatch: pytest.MonkeyPatch, by_pulumi: bool) -> None:
    monkeypatch.setattr("emulator.s3.find_weed", missing)
    with pytest.raises(UsageError, match="only submits") as refused:
        local.up(pulumi=by_pulumi)
    assert "NIGHTBATCH_ENV=client ./nightbatch local up" in str(refused.value)


@pytest.mark.usefixtures("no_worker")
def test_what_runs_the_pulumi_program_is_refused_where_its_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pulumi", None)
    monkeypatch.setattr("emulator.s3.find_weed", lambda: Path("weed"))
    with pytest.raises(UsageError, match="no Python package `pulumi`"):
        infra.preview(["dev"])
    with pytest.raises(UsageError, match="no Python package `pulumi`"):
        infra.drift("dev")
    with pytest.raises(UsageError, match="no Python package `pulumi`"):
        local.up(pulumi=True)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("yaml", ("jobs",)),
        ("cronsim", ("night", "answers")),
        ("yaml", ("schedule", "check")),
        ("jinja2", ("report", "answers")),
        ("scipy", ("eval", "list")),
        ("lance", ("space", "list")),
    ],
)
def test_what_nights_need_is_named_first(monkeypatch: pytest.MonkeyPatch, module: str, words: tuple[str, ...]) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    ended = CliRunner().invoke(app, list(words))
    assert ended.exit_code == 2
    assert f"no Python package `{'pylance' if module == 'lance' else module}`" in ended.stderr
    assert "pip install 'nightbatch[nights]'" in ended.stderr
