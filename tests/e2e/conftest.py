# tests/e2e: houses. One with echo workers for each module that wants one; tests begin with an open gate and leave no command behind.
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.house import Gate, House, config_of, echo_endpoint, standing


@pytest.fixture(scope="module")
def echo_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """An emulator with two endpoints of echo workers, `echo` (generate) and `vec` (embed), for all tests of a module."""
    home = tmp_path_factory.mktemp("home")
    gate = Gate(home / "gate")
    endpoints = (echo_endpoint("echo", "generate", gate.folder), echo_endpoint("vec", "embed", gate.folder))
    with standing(House(home, config_of(home, *endpoints), gate)) as house:
        yield house


@pytest.fixture
def house(echo_house: House) -> Iterator[House]:
    """The module's house, as this test finds it."""
    echo_house.gate.reset()
    echo_house.seen = echo_house.runs()
    try:
        yield echo_house
    finally:
        echo_house.gate.open()
        echo_house.end_commands()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Where a test puts its dataset."""
    return tmp_path / "rows.jsonl"
