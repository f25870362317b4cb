# tests/infra/engine: one cloud for all tests of a process, and a site of its own for each test; none leaves anything in the cloud.
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.infra.engine.kit import Cloud, Site, cloud_of


@pytest.fixture(scope="session")
def whole_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    cloud = cloud_of(tmp_path_factory.mktemp("cloud"))
    try:
        yield cloud
    finally:
        cloud.close()


@pytest.fixture
def cloud(whole_cloud: Cloud) -> Iterator[Cloud]:
    """The cloud, empty."""
    try:
        yield whole_cloud
    finally:
        whole_cloud.gate.open()
        whole_cloud.clear()


@pytest.fixture
def sites(cloud: Cloud, pulumi_cli: Path, tmp_path: Path) -> Callable[..., Site]:
    """Makes sites: `sites("dev")` in a folder of the name."""

    def make(name: str, **settings: object) -> Site:
        return Site(tmp_path / name, cloud, pulumi_cli, **settings)  # type: ignore[arg-type]

    return make


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    """One site."""
    return sites("site")
