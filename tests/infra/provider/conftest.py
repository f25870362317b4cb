# tests: one account of RunPod, started and stopped for a test.
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.infra.provider.cloud import Cloud


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    account = Cloud()
    await account.start()
    yield account
    await account.stop()
