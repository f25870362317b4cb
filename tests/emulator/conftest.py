"""tests of the emulator: none of them leaves a process behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.emulator.kit import processes_of


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Workers and servers have clean environments, so the mark that tests/conftest.py looks for is not on them."""
    yield
    until = time.monotonic() + 10
    while left := processes_of(tmp_path_factory.getbasetemp()):
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.05)
