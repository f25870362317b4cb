"""tests of the emulator's control plane: a small client of REST v2, and an emulator with nothing in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import boto3
from botocore.config import Config

from emulator import Emulator, EmulatorConfig, EndpointConfig, FastClock, ImageConfig, Script
from emulator.clock import Clock
from tests.emulator.kit import echo

GPU: dict[str, Any] = {"pools": ["ADA_24"], "count": 1}
DELAY: dict[str, Any] = {"type": "QUEUE_DELAY", "queueDelay": 1}
COUNT: dict[str, Any] = {"type": "REQUEST_COUNT", "requestCount": 1}


def endpoint(**fields: Any) -> dict[str, Any]:
    """A valid body of POST /v2/serverless; None takes a field away."""
    body = {"name": "night", "type": "QUEUE", "image": "me/worker:1", "scaling": DELAY, "gpu": GPU, **fields}
    return {name: value for name, value in body.items() if value is not None}


def settings(emulator: Emulator, endpoint_id: str) -> EndpointConfig:
    """By which the data plane serves an endpoint."""
    fleet = emulator.fleet(endpoint_id)
    assert fleet is not None
    return fleet.endpoint


def volumes_client(emulator: Emulator, **settings: Any) -> Any:
    """boto3 for the emulator's network volumes, which tries once."""
    keys = emulator.s3
    assert keys is not None
    config = Config(signature_version="s3v4", retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **settings)
    return boto3.client(
        "s3",
        endpoint_url=emulator.volumes_url,
        aws_access_key_id=keys.worker_config.accessId,
        aws_secret_access_key=keys.worker_config.accessSecret,
        region_name="EU-RO-1",
        config=config,
    )


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def errors(self) -> list[str]:
        return list(self.body.get("errors", ()))


class Rest:
    """A client of REST v2."""

    def __init__(self, session: aiohttp.ClientSession, emulator: Emulator) -> None:
        self.session = session
        self.emulator = emulator

    async def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None, raw: bytes | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {self.emulator.api_key if key is None else key}"}
        data = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        async with self.session.request(method, f"{self.emulator.root_url}/v2{path}", data=data, headers=headers) as answer:
            text = await answer.read()
            return Answer(answer.status, json.loads(text) if text else None, answer.headers)

    async def get(self, path: str, status: int = 200) -> Any:
        return await self._expect("GET", path, None, status)

    async def post(self, path: str, body: Any, status: int = 201) -> Any:
        return await self._expect("POST", path, body, status)

    async def patch(self, path: str, body: Any, status: int = 200) -> Any:
        return await self._expect("PATCH", path, body, status)

    async def delete(self, path: str, status: int = 204) -> Any:
        return await self._expect("DELETE", path, None, status)

    async def _expect(self, method: str, path: str, body: Any, status: int) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status == status, answer.body
        return answer.body

    async def run(self, endpoint_id: str, given: Any = "x", **more: Any) -> str:
        """Submit a job on the data plane; its id."""
        return str((await self.post(f"/{endpoint_id}/run", {"input": given, **more}, 200))["id"])


@asynccontextmanager
async def controlled(
    state_dir: Path, *, script: Script | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[Emulator, Rest]]:
    """A running emulator with no endpoint, where every image exists and every worker does what the script says."""
    given = {"endpoints": (), "images": {"*": ImageConfig()}, "s3": False, "rate_limits": False, "tick_s": 0.5, **settings}
    config = EmulatorConfig(state_dir=str(state_dir), **given)
    scripted = {"*": Script(echo) if script is None else script}
    async with (
        Emulator(config, scripted=scripted, clock=clock or FastClock(100)) as emulator,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield emulator, Rest(session, emulator)
