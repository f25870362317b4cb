"""Network volumes by S3: RunPod's dialect over a real S3 server."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import boto3
import pytest
import pytest_asyncio
from botocore.config import Config
from botocore.exceptions import ClientError

from emulator import Action, Emulator, EmulatorConfig, ImageConfig
from emulator.s3 import sign_headers
from tests.emulator.control_kit import Rest
from tests.emulator.control_kit import volumes_client as client

LIMIT = 500_000_000
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Emulator, Rest]]:
    config = EmulatorConfig(state_dir=str(tmp_path_factory.mktemp("volumes")), endpoints=(), images={"*": ImageConfig()})
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        yield emulator, Rest(session, emulator)


@pytest_asyncio.fixture(loop_scope="module")
async def house(running: tuple[Emulator, Rest]) -> AsyncIterator[tuple[Emulator, Rest, str]]:
    """An emulator with S3 and one volume."""
    emulator, rest = running
    volume = await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-RO-1"})
    yield emulator, rest, volume["id"]
    await rest.ask("DELETE", f"/network-volumes/{volume['id']}")


async def refused(call: Any, code: str, **arguments: Any) -> None:
    with pytest.raises(ClientError) as caught:
        await asyncio.to_thread(call, **arguments)
    assert caught.value.response["Error"]["Code"] == code


async def test_a_volume_is_a_bucket_that_knows_no_conditions(house: tuple[Emulator, Rest, str]) -> None:
    emulator, rest, volume = house
    s3 = client(emulator)
    assert emulator.report()["volumes"] == [
        {"id": volume, "name": "v", "data_center": "EU-RO-1", "size_gb": 10, "s3_url": emulator.volumes_url}
    ]
    key = "runs/a b/ü+1#.json"
    for body in (b"first", b"second"):
        await asyncio.to_thread(s3.put_object, Bucket=volume, Key=key, Body=body, IfNoneMatch="*", Metadata={"a": "b"})
    found = await asyncio.to_thread(s3.get_object, Bucket=volume, Key=key, IfMatch='"nothing"')
    assert await asyncio.to_thread(found["Body"].read) == b"second"
    assert found["Metadata"] == {"a": "b"}
    part = await asyncio.to_thread(s3.get_object, Bucket=volume, Key=key, Range="bytes=1-2")
    assert await asyncio.to_thread(part["Body"].read) == b"ec"
    head = await asyncio.to_thread(s3.head_object, Bucket=volume, Key=key)
    assert head["ContentLength"] == 6
    listed = await asyncio.to_thread(s3.list_objects_v2, Bucket=volume, Prefix="runs/a b/", Delimiter="/")
    assert [entry["Key"] for entry in listed["Contents"]] == [key]
    assert [bucket["Name"] for bucket in (await asyncio.to_thread(s3.list_buckets))["Buckets"]] == [volume]
    await asyncio.to_thread(s3.copy_object, Bucket=volume, Key="copy", CopySource={"Bucket": volume, "Key": key})
    await asyncio.to_thread(s3.delete_object, Bucket=volume, Key=key)
    await refused(s3.head_object, "404", Bucket=volume, Key=key)
    await rest.delete(f"/network-volumes/{volume}")
    await refused(s3.get_object, "NoSuchBucket", Bucket=volume, Key="copy")


async def test_large_objects_go_in_parts(house: tuple[Emulator, Rest, str]) -> None:
    emulator, _, volume = house
    s3 = client(emulator)
    upload = (await asyncio.to_thread(s3.create_multipart_upload, Bucket=volume, Key="big"))["UploadId"]
    parts = []
    for number, body in enumerate((b"a" * 5_242_880, b"b"), 1):
        made = await asyncio.to_thread(s3.upload_part, Bucket=volume, Key="big", UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": made["ETag"]})
    await asyncio.to_thread(s3.complete_multipart_upload, Bucket=volume, Key="big", UploadId=upload, MultipartUpload={"Parts": parts})
    assert (await asyncio.to_thread(s3.head_object, Bucket=volume, Key="big"))["ContentLength"] == 5_242_881


async def test_what_the_dialect_lacks_is_refused(house: tuple[Emulator, Rest, str]) -> None:
    emulator, rest, volume = house
    s3 = client(emulator)
    await asyncio.to_thread(s3.put_object, Bucket=volume, Key="k", Body=b"x")
    await refused(s3.delete_objects, "NotImplemented", Bucket=volume, Delete={"Objects": [{"Key": "k"}]})
    await refused(s3.create_bucket, "NotImplemented", Bucket="another-bucket")
    await refused(s3.put_object_tagging, "NotImplemented", Bucket=volume, Key="k", Tagging={"TagSet": []})
    await refused(s3.get_bucket_location, "NotImplemented", Bucket=volume)
    assert emulator.s3 is not None
    await refused(s3.list_objects_v2, "NoSuchBucket", Bucket=emulator.s3.bucket)
    await refused(s3.copy_object, "NoSuchBucket", Bucket=volume, Key="c", CopySource={"Bucket": emulator.s3.bucket, "Key": "probe/ready"})
    url = s3.generate_presigned_url("get_object", Params={"Bucket": volume, "Key": "k"})
    async with rest.session.get(url) as answer:
        assert answer.status == 403
        assert "presigned" in await answer.text()
    async with rest.session.get(f"{emulator.volumes_url}/{volume}/k") as answer:
        assert answer.status == 403


@pytest.mark.parametrize(("size", "allowed"), [(LIMIT, False), (LIMIT - 1, True)])
async def test_a_single_put_of_500_mb_is_refused_before_it_is_sent(house: tuple[Emulator, Rest, str], size: int, allowed: bool) -> None:
    emulator, _, volume = house
    assert emulator.volumes_url is not None
    host, _, port = emulator.volumes_url.partition("://")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"PUT /{volume}/big HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {size}\r\nExpect: 100-continue\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.readline(), 10)).decode()
    assert answer.split()[1] == ("100" if allowed else "400")
    writer.close()
    await writer.wait_closed()


async def test_empty_objects_are_objects(house: tuple[Emulator, Rest, str]) -> None:
    emulator, _, volume = house
    await asyncio.to_thread(client(emulator).put_object, Bucket=volume, Key="empty", Body=b"")
    assert (await asyncio.to_thread(client(emulator).head_object, Bucket=volume, Key="empty"))["ContentLength"] == 0


async def test_an_old_signature_is_refused(house: tuple[Emulator, Rest, str]) -> None:
    emulator, rest, volume = house
    assert emulator.s3 is not None
    for hours, status in ((0.9, 404), (1.1, 403), (-1.1, 403)):
        signed_at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours)
        headers = {"host": str(emulator.volumes_url).partition("://")[2]}
        signed = sign_headers("GET", f"/{volume}/nothing", "", headers, "UNSIGNED-PAYLOAD", emulator.s3.client_keys, signed_at)
        async with rest.session.get(f"{emulator.volumes_url}/{volume}/nothing", headers=signed) as answer:
            assert answer.status == status


@pytest.mark.parametrize("change", ["secret", "access", "region"])
async def test_signatures_are_verified(house: tuple[Emulator, Rest, str], change: str) -> None:
    emulator, _, volume = house
    assert emulator.s3 is not None
    keys = emulator.s3.client_config
    s3 = boto3.client(
        "s3",
        endpoint_url=emulator.volumes_url,
        aws_access_key_id="user_nobody" if change == "access" else keys.accessId,
        aws_secret_access_key="wrong" if change == "secret" else keys.accessSecret,
        region_name="US-KS-2",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    if change == "region":  # any is taken
        await asyncio.to_thread(s3.put_object, Bucket=volume, Key="k", Body=b"x")
    else:
        code = {"secret": "SignatureDoesNotMatch", "access": "InvalidAccessKeyId"}[change]
        await refused(s3.put_object, code, Bucket=volume, Key="k", Body=b"x")


async def test_a_storage_fault_reaches_the_client(house: tuple[Emulator, Rest, str]) -> None:
    emulator, _, volume = house
    with emulator.seam.hook(lambda message: Action(answer=503)):
        await refused(client(emulator).put_object, "SlowDown", Bucket=volume, Key="k", Body=b"x")


async def test_a_volume_whose_deletion_was_cut_short_can_be_deleted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(), images={"*": ImageConfig()})
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        rest, begun = Rest(session, emulator), asyncio.Event()
        volume = (await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-RO-1"}))["id"]

        async def forever(name: str) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(emulator.s3, "drop_bucket", forever)
        deleting = asyncio.create_task(rest.ask("DELETE", f"/network-volumes/{volume}"))
        await begun.wait()
        assert (await rest.ask("DELETE", f"/network-volumes/{volume}")).status == 404
        await refused(client(emulator).put_object, "NoSuchBucket", Bucket=volume, Key="k", Body=b"x")
        deleting.cancel()  # the client hangs up, and nobody waits for the end of it
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        rest = Rest(session, emulator)
        assert [found["id"] for found in (await rest.get("/network-volumes"))["networkVolumes"]] == [volume]
        await rest.delete(f"/network-volumes/{volume}")
        assert emulator.s3 is not None
        listed = await emulator.s3._call("GET", "/")
        assert listed is not None
        assert volume.encode() not in listed[1]


async def test_volumes_and_their_address_survive_a_restart(tmp_path: Path) -> None:
    config = EmulatorConfig(state_dir=str(tmp_path), endpoints=(), images={"*": ImageConfig()})
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        rest = Rest(session, emulator)
        volume = (await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-RO-1"}))["id"]
        url = emulator.volumes_url
        await asyncio.to_thread(client(emulator).put_object, Bucket=volume, Key="k", Body=b"kept")
    async with Emulator(config) as emulator:
        assert emulator.volumes_url == url
        found = await asyncio.to_thread(client(emulator).get_object, Bucket=volume, Key="k")
        assert await asyncio.to_thread(found["Body"].read) == b"kept"
