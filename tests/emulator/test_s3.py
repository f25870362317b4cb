"""The emulator's S3: a real SeaweedFS, with the flags that make it safe and the identities that keep a worker in its bucket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import boto3
import botocore.config
import botocore.exceptions
import pytest
import pytest_asyncio

from contract.errors import EmulatorError
from contract.models import S3Config
from emulator import s3
from emulator.s3 import KeyPair, SeaweedS3

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENT = KeyPair("client-id", "client-secret")
WORKER = KeyPair("worker-id", "worker-secret")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SeaweedS3]:
    server = SeaweedS3(tmp_path_factory.mktemp("s3"), "nightbatch", CLIENT, WORKER)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def boto(config: S3Config, secret: str | None = None) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=config.endpointUrl,
        aws_access_key_id=config.accessId,
        aws_secret_access_key=secret or config.accessSecret,
        region_name="us-east-1",
        config=botocore.config.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 2}),
    )


async def code_of(call: Any, **given: Any) -> str:
    """ "ok", or the code with which S3 refused."""

    def work() -> str:
        try:
            call(**given)
        except botocore.exceptions.ClientError as error:
            return str(error.response["Error"]["Code"])
        return "ok"

    return await asyncio.to_thread(work)


async def test_the_second_conditional_put_of_a_key_fails_with_412_for_both_identities(store: SeaweedS3) -> None:
    for config in (store.client_config, store.worker_config):
        client, key = boto(config), f"once/{config.accessId}"
        given = {"Bucket": "nightbatch", "Key": key, "IfNoneMatch": "*"}
        assert await code_of(client.put_object, Body=b"first", **given) == "ok"
        assert await code_of(client.put_object, Body=b"second", **given) == "PreconditionFailed"
        body = (await asyncio.to_thread(client.get_object, Bucket="nightbatch", Key=key))["Body"].read()
        assert body == b"first"


async def test_of_eight_conditional_puts_at_once_one_wins(store: SeaweedS3) -> None:
    client = boto(store.worker_config)
    put = client.put_object
    codes = await asyncio.gather(*(code_of(put, Bucket="nightbatch", Key="race", Body=bytes([n]), IfNoneMatch="*") for n in range(8)))
    assert sorted(codes) == ["PreconditionFailed"] * 7 + ["ok"]


async def test_a_worker_may_not_leave_its_bucket(store: SeaweedS3) -> None:
    admin, worker = boto(store.client_config), boto(store.worker_config)
    assert await code_of(admin.create_bucket, Bucket="other") == "ok"
    assert await code_of(worker.put_object, Bucket="other", Key="a", Body=b"") == "AccessDenied"
    assert await code_of(worker.create_bucket, Bucket="third") == "AccessDenied"
    assert await code_of(worker.list_objects_v2, Bucket="nightbatch") == "ok"


async def test_defaults_that_deviate_from_s3_are_off(store: SeaweedS3) -> None:
    admin = boto(store.client_config)
    assert await code_of(admin.put_object, Bucket="never-made", Key="a", Body=b"") == "NoSuchBucket"
    assert await code_of(admin.put_object, Bucket="nightbatch", Key="a", Body=b"") == "ok"
    assert await code_of(admin.delete_bucket, Bucket="nightbatch") == "BucketNotEmpty"
    assert await code_of(boto(store.client_config, secret="wrong").list_buckets) == "SignatureDoesNotMatch"


async def test_it_listens_on_loopback_only(store: SeaweedS3) -> None:
    listening = {
        line.split()[1].split(":")[0]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].split(":")[1], 16) in {*store.ports, *(port + 10_000 for port in store.ports)}
    }
    assert listening == {"0100007F"}


async def test_there_is_no_way_around_the_keys_through_its_inner_servers(store: SeaweedS3) -> None:
    """Its filer would read and write for anybody on this machine, and for any web page in a browser here."""
    assert await code_of(boto(store.client_config).put_object, Bucket="nightbatch", Key="inner", Body=b"another's") == "ok"
    async with aiohttp.ClientSession() as session:
        for port in store.ports:
            for method, path in (
                ("GET", "/buckets/nightbatch/inner"),
                ("POST", "/buckets/nightbatch/evil"),
                ("DELETE", "/buckets/nightbatch/inner"),
            ):
                async with session.request(method, f"http://127.0.0.1:{port}{path}", data=b"x" if method == "POST" else None) as answer:
                    assert answer.status >= 400
            async with session.get(f"http://127.0.0.1:{port}/buckets/?pretty=y") as answer:
                assert b"nightbatch" not in await answer.read()
    found = await asyncio.to_thread(boto(store.client_config).list_objects_v2, Bucket="nightbatch", Prefix="inner")
    assert [entry["Size"] for entry in found["Contents"]] == [9]


async def test_objects_survive_kill_9_of_the_server(tmp_path: Path) -> None:
    server = SeaweedS3(tmp_path, "nightbatch", CLIENT, WORKER)
    await server.start()
    try:
        client = boto(server.client_config)
        assert await code_of(client.put_object, Bucket="nightbatch", Key="kept", Body=b"x") == "ok"
        url = server.endpoint_url
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.stop()
        again = SeaweedS3(tmp_path, "nightbatch", CLIENT, WORKER, server.ports)
        await again.start()
        try:
            assert again.endpoint_url == url
            assert await code_of(boto(again.client_config).get_object, Bucket="nightbatch", Key="kept") == "ok"
        finally:
            await again.stop()
    finally:
        await server.stop()


async def test_without_the_binary_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorError, match=r"nightbatch\[emulator\]"):
        s3.find_weed()


async def test_a_server_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "weed"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho disk on fire\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(s3, "find_weed", lambda: fake)
    with pytest.raises(EmulatorError, match="disk on fire"):
        await SeaweedS3(tmp_path / "s3", "nightbatch", CLIENT, WORKER).start()


async def test_ports_that_are_taken_are_not_preferred() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert port not in s3.free_ports(3, (port,))


async def test_a_key_pairs_secret_is_not_in_its_repr() -> None:
    assert "client-secret" not in repr(CLIENT)
