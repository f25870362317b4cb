"""workers.max as RunPod has it now, asked once before the first job: an idle cut is named before anything is sent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from contract.errors import InfrastructureError
from pipelines.follow import DriveResult, Notice, drive
from tests.pipelines.night import Night, night


def said(found: Night) -> list[str]:
    return [event.text for event in found.events if isinstance(event, Notice) and event.kind == "limits"]


def telling(number: int | None, asked: list[str]) -> Callable[[str], Awaitable[int]]:
    async def tell(endpoint_id: str) -> int:
        asked.append(endpoint_id)
        if number is None:
            raise InfrastructureError("REST v2 did not answer.")
        return number

    return tell


async def driven(found: Night, number: int | None, asked: list[str]) -> DriveResult:
    async with asyncio.timeout(60):
        return await found.drive(live_limits=telling(number, asked))


async def test_an_endpoint_cut_to_nothing_is_named_before_the_first_job(tmp_path: Path) -> None:
    """C3 73: live workers.max 0, the stack says 3."""
    asked: list[str] = []
    async with night(tmp_path, workers_max=3) as found:
        result = await driven(found, 0, asked)
        assert (result.state, result.cause, result.attempts) == ("stalled", "no_workers", 0)
        assert f"nightbatch doctor {found.plan.infra.stack} --fix" in result.reason
        assert asked == [found.plan.infra.endpoint_id]
        assert found.launched == 0
        assert not any("/journal/" in key for key in found.objects.data)


async def test_a_smaller_cut_is_a_notice_and_the_run_goes_on_at_that_pace(tmp_path: Path) -> None:
    asked: list[str] = []
    async with night(tmp_path, shards=8, workers_max=4, pace=4) as found:
        result = await driven(found, 1, asked)
        assert result.state == "complete"
        assert found.launched == 1
        (text,) = said(found)
        assert "may have 1 workers now" in text
        assert "--fix" in text
        assert asked == [found.plan.infra.endpoint_id]


async def test_without_an_answer_the_facts_are_gone_by_and_that_is_said(tmp_path: Path) -> None:
    async with night(tmp_path, workers_max=2) as found:
        result = await driven(found, None, [])
        assert result.state == "complete"
        (text,) = said(found)
        assert "REST v2 did not answer" in text
        assert text.endswith("going by the stack's facts: 2.")


@pytest.mark.parametrize("number", [2, 9])
async def test_what_is_as_declared_or_more_says_nothing(tmp_path: Path, number: int) -> None:
    async with night(tmp_path, workers_max=2) as found:
        result = await driven(found, number, [])
        assert result.state == "complete"
        assert said(found) == []
        assert found.launched <= 2


async def test_the_facts_are_a_ceiling_even_where_runpod_allows_more(tmp_path: Path) -> None:
    async with night(tmp_path, workers_max=0) as found:
        result = await driven(found, 5, [])
        assert (result.state, result.cause) == ("stalled", "no_workers")


def test_nobody_has_to_ask() -> None:
    """A client that has no REST v2, such as a test or a library's user, goes by the facts alone."""
    assert inspect.signature(drive).parameters["live_limits"].default is None
