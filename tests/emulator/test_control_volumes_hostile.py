"""Network volumes by S3, for those who mean no good: nothing leads out of a volume, and nothing that is refused leaves a trace."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import hashlib
import io
import logging
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import aiohttp
import boto3
import pytest
import pytest_asyncio
from botocore.config import Config
from botocore.exceptions import ClientError

from contract.errors import EmulatorError
from emulator import Emulator, EmulatorConfig, ImageConfig
from emulator.control import server
from emulator.s3 import KeyPair, sign_headers
from tests.emulator.control_kit import Rest, endpoint
from tests.emulator.control_kit import volumes_client as client
from tests.emulator.kit import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SECRET = b"another's"


class Attacker:
    """Raw requests to the volumes, signed as well as can be."""

    def __init__(self, emulator: Emulator, volume: str) -> None:
        assert emulator.s3 is not None
        assert emulator.volumes_url is not None
        self.emulator = emulator
        self.volume = volume
        self.bucket = emulator.s3.bucket
        self.keys = emulator.s3.worker_keys
        self.host = emulator.volumes_url.partition("://")[2]

    def head(
        self,
        method: str,
        target: str,
        *,
        payload: str = "UNSIGNED-PAYLOAD",
        headers: Mapping[str, str] | None = None,
        signed_path: str | None = None,
        query: str = "",
        keys: KeyPair | None = None,
        more: bytes = b"",
        close: bool = True,
    ) -> bytes:
        """A request up to its body."""
        now = datetime.datetime.now(datetime.UTC)
        signed = sign_headers(method, signed_path or target, query, {"host": self.host, **(headers or {})}, payload, keys or self.keys, now)
        lines = [f"{method} {target}{'?' if query else ''}{query} HTTP/1.1", *(f"{name}: {value}" for name, value in signed.items())]
        return "\r\n".join(lines).encode() + (b"\r\nconnection: close\r\n" if close else b"\r\n") + more + b"\r\n"

    async def send(self, request: bytes, timeout_s: float = 20.0) -> tuple[int, bytes]:
        """Status and body; the whole connection is read."""
        reader, writer = await asyncio.open_connection(*self.host.split(":"))
        try:
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), timeout_s)
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    async def ask(self, method: str, target: str, body: bytes = b"", **how: Any) -> tuple[int, str]:
        """Status and S3's code ("" where there is none)."""
        how.setdefault("more", b"content-length: %d\r\n" % len(body) if body or method == "PUT" else b"")
        status, answer = await self.send(self.head(method, target, **how) + body)
        assert SECRET not in answer
        code = re.search(rb"<Code>(\w+)</Code>", answer)
        return status, code[1].decode() if code else ""

    async def chunked(self, key: str, body: bytes, length: int | None, kind: str = UNSIGNED_TRAILER) -> tuple[int, str]:
        headers = {} if length is None else {"x-amz-decoded-content-length": str(length)}
        return await self.ask("PUT", f"/{self.volume}/{key}", body, payload=kind, headers={**headers, "content-encoding": "aws-chunked"})

    async def stored(self) -> list[str]:
        found = await asyncio.to_thread(client(self.emulator).list_objects_v2, Bucket=self.volume)
        return [entry["Key"] for entry in found.get("Contents", ())]

    def cut(self, request: bytes, *, reset: bool, reads: int = 0) -> None:
        """Send, read a little, and hang up."""
        host, port = self.host.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request)
            if reads:
                connection.recv(reads)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Emulator, Rest]]:
    config = EmulatorConfig(state_dir=str(tmp_path_factory.mktemp("hostile")), endpoints=(), images={"*": ImageConfig()}, rate_limits=False)
    async with Emulator(config) as emulator, aiohttp.ClientSession() as session:
        yield emulator, Rest(session, emulator)


@pytest_asyncio.fixture(loop_scope="module")
async def attacker(running: tuple[Emulator, Rest], caplog: pytest.LogCaptureFixture) -> AsyncIterator[Attacker]:
    """What it does is no error of the server's own."""
    emulator, rest = running
    volume = (await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-RO-1"}))["id"]
    assert emulator.s3 is not None
    await emulator.s3._signed("PUT", f"/{emulator.s3.bucket}/secret", SECRET)
    yield Attacker(emulator, volume)
    await rest.delete(f"/network-volumes/{volume}")
    assert [record.getMessage() for record in caplog.records if record.name == "aiohttp.server" and record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/{volume}/../{bucket}/secret", (400, "InvalidArgument")),
        ("/{volume}/%2e%2e/{bucket}/secret", (400, "InvalidArgument")),
        ("/{volume}/..%2F{bucket}%2fsecret", (400, "InvalidArgument")),
        ("/{volume}%2f..%2f{bucket}/secret", (400, "InvalidArgument")),
        ("/{volume}/..%5c{bucket}/secret", (400, "InvalidArgument")),
        ("/{volume}/a/./b", (400, "InvalidArgument")),
        ("/{volume}/..", (400, "InvalidArgument")),
        ("/{volume}/a%00b", (400, "InvalidArgument")),
        ("/{volume}//", (400, "InvalidArgument")),
        ("//{volume}/../{bucket}/secret", (404, "NoSuchBucket")),
        ("//{bucket}/secret", (404, "NoSuchBucket")),
        ("/{bucket}/secret", (404, "NoSuchBucket")),
        ("/{volume}./secret", (404, "NoSuchBucket")),
        ("/{volume}%00/secret", (404, "NoSuchBucket")),
        ("/../{bucket}/secret", (404, "NoSuchBucket")),
        ("/{volume}/%ff", (400, "InvalidURI")),
        ("/{volume}/%zz", (400, "InvalidURI")),
        ("/{volume}/%", (400, "InvalidURI")),
        ("/{volume}/a#b", (400, "InvalidURI")),
        ("http://{host}/{bucket}/secret", (400, "InvalidURI")),
    ],
)
async def test_no_path_leads_out_of_a_volume(attacker: Attacker, path: str, expected: tuple[int, str]) -> None:
    target = path.format(volume=attacker.volume, bucket=attacker.bucket, host=attacker.host)
    canonical = quote(unquote_to_bytes(target), safe="/-_.~")  # what AWS has signed
    for method in ("GET", "PUT"):
        assert await attacker.ask(method, target, b"x" if method == "PUT" else b"", signed_path=canonical) == expected
    assert await attacker.stored() == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/{bucket}/secret", (404, "NoSuchBucket")),
        ("{volume}/../{bucket}/secret", (400, "InvalidArgument")),
        ("{volume}%2F..%2F{bucket}%2Fsecret", (400, "InvalidArgument")),
        ("{volume}/%2e%2e/{bucket}/secret", (400, "InvalidArgument")),
        ("{volume}/..%5c..%5c{bucket}/secret", (400, "InvalidArgument")),
        ("//{volume}/../{bucket}/secret", (404, "NoSuchBucket")),
        ("arn:aws:s3:::{bucket}/secret", (404, "NoSuchBucket")),
        ("{volume}", (400, "InvalidArgument")),
        ("{volume}/", (400, "InvalidArgument")),
        ("%zz{volume}/k", (400, "InvalidURI")),
        ("{volume}/k?versionId=null", (501, "NotImplemented")),
    ],
)
async def test_no_copy_brings_in_what_is_not_on_a_volume(attacker: Attacker, source: str, expected: tuple[int, str]) -> None:
    given = source.format(volume=attacker.volume, bucket=attacker.bucket)
    assert await attacker.ask("PUT", f"/{attacker.volume}/copy", headers={"x-amz-copy-source": given}) == expected
    assert await attacker.stored() == []


async def test_whatever_can_be_a_file_name_is_a_key_and_goes_with_the_volume(attacker: Attacker) -> None:
    s3 = client(attacker.emulator)
    keys = [
        "line\nfeed",
        "\x01",
        "\ufffe",
        "q?x#y&z+w%;=@",
        "%2e%2e",
        "e\u0301 é 😀",
        "a/" * 100 + "b",
        "x" * 255,
        "&lt;<>\"'",
        "+ +",
        "...",
    ]
    for key in keys:
        await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key=key, Body=key.encode())
        found = await asyncio.to_thread(s3.get_object, Bucket=attacker.volume, Key=key)
        assert await asyncio.to_thread(found["Body"].read) == key.encode()
    assert sorted(await attacker.stored()) == sorted(keys)
    for key in ("x" * 256, "a/" * 2000):
        with pytest.raises(ClientError, match="KeyTooLong"):
            await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key=key, Body=b"x")


@pytest.mark.parametrize("method", ["PATCH", "OPTIONS", "TRACE", "PROPFIND"])
async def test_s3_has_five_methods(attacker: Attacker, method: str) -> None:
    assert await attacker.ask(method, f"/{attacker.volume}/k") == (405, "MethodNotAllowed")


async def test_bytes_that_are_no_text_are_an_error_of_the_client(attacker: Attacker) -> None:
    good = attacker.head("PUT", f"/{attacker.volume}/k", more=b"content-length: 0\r\n")
    for at, with_what in (
        (b"us-east-1", b"\xff"),
        (b"x-amz-content-sha256: UNSIGNED", b"x-amz-content-sha256: \xff"),
        (b"host", b"x-y: \xff\r\nhost"),
    ):
        assert at in good
        status, body = await attacker.send(good.replace(at, with_what, 1))
        assert (status, b"InvalidArgument" in body) == (400, True)
    assert await attacker.ask("GET", f"/{attacker.volume}", query="list-type=2&prefix=%FF") == (400, "InvalidURI")


async def test_what_is_not_signed_is_refused(attacker: Attacker) -> None:
    target = f"/{attacker.volume}/k"
    assert await attacker.ask("PUT", target, more=b"content-length: 0\r\nx-amz-meta-a: b\r\n") == (403, "AccessDenied")
    assert await attacker.ask("PUT", target, keys=KeyPair(attacker.keys.access, "wrong")) == (403, "SignatureDoesNotMatch")
    assert await attacker.ask("PUT", target, payload="junk") == (400, "InvalidArgument")
    other_day = attacker.head("GET", target).replace(b"/us-east-1", b"0/us-east-1", 1)
    assert (await attacker.send(other_day))[0] == 403
    moved = re.sub(rb"/\d{8}/us", b"/20200101/us", attacker.head("GET", target), count=1)
    assert (await attacker.send(moved))[0] == 400
    for digest, expected in (
        (hashlib.sha256(b"good").hexdigest(), (400, "XAmzContentSHA256Mismatch")),
        (hashlib.sha256(b"evil").hexdigest(), (200, "")),
    ):
        assert await attacker.stored() == []
        assert await attacker.ask("PUT", target, b"evil", payload=digest) == expected


async def test_a_body_is_as_long_as_it_is_said_to_be(attacker: Attacker) -> None:
    target, s3 = f"/{attacker.volume}/k", client(attacker.emulator)
    http_chunks = b"transfer-encoding: chunked\r\n"
    assert await attacker.ask("PUT", target, b"5\r\nhello\r\n0\r\n\r\n", more=http_chunks) == (411, "MissingContentLength")
    assert await attacker.chunked("k", b"5\r\nhello\r\n0\r\n\r\n", None) == (411, "MissingContentLength")
    for length in (0, 3, 50):
        assert await attacker.chunked("k", b"5\r\nhello\r\n0\r\n\r\n", length) == (400, "IncompleteBody")
    assert await attacker.chunked("k", b"5" + b"a" * 300_000 + b"\r\nhello\r\n0\r\n\r\n", 5) == (400, "IncompleteBody")
    assert await attacker.chunked("k", b"", 0) == (400, "IncompleteBody")
    assert await attacker.chunked("k", b"5\r\nhello\r\n0\r\n\r\n", 5, "STREAMING-NONSENSE") == (400, "InvalidArgument")
    digits = {"x-amz-decoded-content-length": "9" * 5000}
    assert await attacker.ask("PUT", target, b"x", payload=UNSIGNED_TRAILER, headers=digits) == (400, "InvalidArgument")
    assert await attacker.stored() == []
    # of a body that is not aws-chunked this header says nothing
    assert await attacker.ask("PUT", target, b"hello world", headers={"x-amz-decoded-content-length": "5"}) == (200, "")
    assert (await asyncio.to_thread(s3.head_object, Bucket=attacker.volume, Key="k"))["ContentLength"] == 11
    hidden = attacker.head("PUT", target, headers={"x-amz-decoded-content-length": "5"}, more=b"content-length: 500000000\r\n")
    reader, writer = await asyncio.open_connection(*attacker.host.split(":"))
    writer.write(hidden + b"x")
    assert (await asyncio.wait_for(reader.readline(), 20)).split()[1] == b"400"
    writer.close()


@pytest.mark.parametrize("header", ["ACL", "Tagging", "ServerSideEncryption", "WebsiteRedirectLocation", "GrantRead", "SSECustomerKey"])
async def test_headers_of_what_the_dialect_lacks_are_refused(attacker: Attacker, header: str) -> None:
    value = {"ACL": "public-read", "Tagging": "a=b", "ServerSideEncryption": "AES256", "SSECustomerKey": "0" * 32}.get(header, "/x")
    more = {"SSECustomerAlgorithm": "AES256"} if header == "SSECustomerKey" else {}
    with pytest.raises(ClientError) as caught:
        await asyncio.to_thread(client(attacker.emulator).put_object, Bucket=attacker.volume, Key="k", Body=b"x", **{header: value, **more})
    assert caught.value.response["Error"]["Code"] == "NotImplemented"


async def test_boto3_as_it_is_over_tls_sends_its_checksum_behind_the_body(attacker: Attacker) -> None:
    """It uses that mode for https only, so it is told that the volumes have it."""
    url = f"https://{attacker.host}"
    s3 = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=attacker.keys.access,
        aws_secret_access_key=attacker.keys.secret,
        region_name="EU-RO-1",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
    sent: list[dict[str, Any]] = []

    def over_http(request: Any, **_: Any) -> None:
        sent.append(dict(request.headers))
        request.url = request.url.replace("https://", "http://", 1)

    s3.meta.events.register("before-send.s3", over_http)
    body = os.urandom(3_000_000)
    await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key="k", Body=io.BytesIO(body))
    kind = sent[0]["X-Amz-Content-SHA256"]
    assert (kind.decode() if isinstance(kind, bytes) else kind) == UNSIGNED_TRAILER
    found = await asyncio.to_thread(s3.get_object, Bucket=attacker.volume, Key="k")
    assert await asyncio.to_thread(found["Body"].read) == body
    assert "ContentEncoding" not in found


async def test_what_is_compressed_is_stored_as_it_comes(attacker: Attacker) -> None:
    s3 = client(attacker.emulator)
    for body in (gzip.compress(b"hello" * 1000), b"no gzip at all"):
        await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key="k", Body=body, ContentEncoding="gzip")
        found = await asyncio.to_thread(s3.get_object, Bucket=attacker.volume, Key="k")
        assert await asyncio.to_thread(found["Body"].read) == body
        assert found["ContentEncoding"] == "gzip"


async def test_a_client_goes_on_after_a_put_that_was_too_large(attacker: Attacker, tmp_path: Path) -> None:
    """boto3 waits for leave to send the body; the refused one is never sent, and the next request is not taken for it."""
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 500_000_000)
    s3 = client(attacker.emulator, read_timeout=5, request_checksum_calculation="when_required")

    def put() -> None:
        with open(tmp_path / "large", "rb") as file:
            s3.put_object(Bucket=attacker.volume, Key="large", Body=file)

    with pytest.raises(ClientError, match="EntityTooLarge"):
        await asyncio.to_thread(put)
    await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key="small", Body=b"x")
    assert await attacker.stored() == ["small"]


async def test_clients_that_hang_up_leave_nothing(attacker: Attacker) -> None:
    s3 = client(attacker.emulator)
    await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key="large", Body=bytes(20_000_000))
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    put = attacker.head("PUT", f"/{attacker.volume}/cut", more=b"content-length: 1000000\r\n", close=False) + bytes(300_000)
    get = attacker.head("GET", f"/{attacker.volume}/large", close=False)
    for turn in range(20):
        await asyncio.to_thread(attacker.cut, put, reset=bool(turn % 2))
        await asyncio.to_thread(attacker.cut, get, reset=bool(turn % 2), reads=100)
    assert await attacker.stored() == ["large"]
    if before:
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 4, what="descriptors stay open")


async def test_slow_clients_do_not_keep_others_out(attacker: Attacker) -> None:
    s3 = client(attacker.emulator, read_timeout=20)
    await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key="large", Body=bytes(30_000_000))
    host, port = attacker.host.split(":")
    slow = []
    try:
        for _ in range(110):  # more than an HTTP client has connections by itself
            connection = socket.create_connection((host, int(port)))
            slow.append(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(attacker.head("GET", f"/{attacker.volume}/large", close=False))
        assert (await asyncio.to_thread(s3.head_object, Bucket=attacker.volume, Key="large"))["ContentLength"] == 30_000_000
    finally:
        for connection in slow:
            connection.close()


async def test_uploads_in_parts_that_are_not_right_are_refused(attacker: Attacker) -> None:
    s3, place = client(attacker.emulator), {"Bucket": attacker.volume, "Key": "k"}
    part = 5_242_880

    def work() -> list[str]:
        codes = []

        def code(call: Any, **given: Any) -> None:
            try:
                call(**given)
            except ClientError as error:
                codes.append(error.response["Error"]["Code"])
            else:
                codes.append("ok")

        def parts(*given: tuple[int, str]) -> dict[str, Any]:
            return {"Parts": [{"PartNumber": number, "ETag": tag} for number, tag in given]}

        upload = s3.create_multipart_upload(**place)["UploadId"]
        tags = [s3.upload_part(**place, UploadId=upload, PartNumber=n, Body=bytes(part if n == 1 else 1))["ETag"] for n in (1, 2)]
        for wrong in (parts((1, '"00"'), (2, tags[1])), parts((1, tags[0]), (9, tags[1])), parts((2, tags[1]), (1, tags[0]))):
            code(s3.complete_multipart_upload, **place, UploadId=upload, MultipartUpload=wrong)
        code(s3.complete_multipart_upload, Bucket=attacker.volume, Key="other", UploadId=upload, MultipartUpload=parts((1, tags[0])))
        code(s3.upload_part, **place, UploadId="../../x", PartNumber=1, Body=b"x")
        code(s3.abort_multipart_upload, **place, UploadId="..")
        code(s3.complete_multipart_upload, **place, UploadId=upload, MultipartUpload=parts((1, tags[0]), (2, tags[1])), IfNoneMatch="*")
        code(s3.complete_multipart_upload, **place, UploadId=upload, MultipartUpload=parts((1, tags[0]), (2, tags[1])))  # a lost answer
        gone = s3.create_multipart_upload(**place)["UploadId"]
        s3.upload_part(**place, UploadId=gone, PartNumber=1, Body=b"x")
        code(s3.abort_multipart_upload, **place, UploadId=gone)
        code(s3.upload_part, **place, UploadId=gone, PartNumber=1, Body=b"x")
        codes.append(str(s3.head_object(**place)["ContentLength"]))
        s3.create_multipart_upload(Bucket=attacker.volume, Key="never finished")
        return codes

    assert await asyncio.to_thread(work) == [
        "InvalidPart", "InvalidPart", "InvalidPartOrder", "NoSuchUpload", "InvalidRequest", "InvalidRequest",
        "ok", "ok", "ok", "NoSuchUpload", str(part + 1),
    ]  # fmt: skip


async def test_listings_are_paged_and_grouped(attacker: Attacker) -> None:
    s3 = client(attacker.emulator)
    keys = [f"l/{number:02d} +&<ü" for number in range(12)]

    def work() -> None:
        for key in (*keys, "m/a/1", "m/b/1", "m/c"):
            s3.put_object(Bucket=attacker.volume, Key=key, Body=b"x")
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = s3.list_objects_v2(Bucket=attacker.volume, Prefix="l/", MaxKeys=5, **more)
            found += [entry["Key"] for entry in page["Contents"]]
            if not page["IsTruncated"]:
                break
            more = {"ContinuationToken": page["NextContinuationToken"]}
        assert found == keys
        grouped = s3.list_objects_v2(Bucket=attacker.volume, Prefix="m/", Delimiter="/")
        assert [entry["Key"] for entry in grouped["Contents"]] == ["m/c"]
        assert [entry["Prefix"] for entry in grouped["CommonPrefixes"]] == ["m/a/", "m/b/"]
        (listed,) = [bucket for bucket in s3.list_buckets()["Buckets"] if bucket["Name"] == attacker.volume]
        assert abs(listed["CreationDate"].timestamp() - attacker.emulator.clock.time()) < 600  # aws s3 ls cannot do without

    await asyncio.to_thread(work)


async def test_answers_do_not_tell_what_is_behind_the_volume(attacker: Attacker) -> None:
    s3 = client(attacker.emulator)
    await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key="k", Body=b"x")
    head = await asyncio.to_thread(s3.head_object, Bucket=attacker.volume, Key="k")
    assert [name for name in head["ResponseMetadata"]["HTTPHeaders"] if "seaweed" in name] == []


async def test_storage_that_dies_in_the_middle_of_an_answer_ends_the_connection(attacker: Attacker) -> None:
    s3 = client(attacker.emulator)
    await asyncio.to_thread(s3.put_object, Bucket=attacker.volume, Key="large", Body=bytes(40_000_000))
    assert attacker.emulator.s3 is not None
    pid = attacker.emulator.s3.pid
    assert pid is not None
    host, port = attacker.host.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(attacker.head("GET", f"/{attacker.volume}/large", close=False))
        got = [await asyncio.to_thread(connection.recv, 100)]
        os.kill(pid, 9)

        def rest_of_it() -> None:
            try:
                while piece := connection.recv(1 << 20):
                    got.append(piece)
            except ConnectionResetError:
                pass  # as good as an end

        await asyncio.to_thread(rest_of_it)
    answer = b"".join(got)
    assert answer.count(b"HTTP/1.1") == 1
    assert len(answer) < 40_000_000

    def again() -> bool:
        try:
            return bool(s3.head_object(Bucket=attacker.volume, Key="large")["ContentLength"] == 40_000_000)
        except ClientError:
            return False

    for _ in range(300):
        if await asyncio.to_thread(again):
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the storage did not come back")


async def test_a_volume_that_cannot_be_emptied_is_a_volume_still(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = attacker.emulator
    async with aiohttp.ClientSession() as session:
        rest = Rest(session, emulator)

        async def never(name: str) -> None:
            raise EmulatorError("no")

        with monkeypatch.context() as patch:
            patch.setattr(emulator.s3, "drop_bucket", never)
            assert (await rest.ask("DELETE", f"/network-volumes/{attacker.volume}")).status == 500
            patch.setattr(emulator.s3, "make_bucket", never)
            made = await rest.ask("POST", "/network-volumes", {"name": "w", "size": 10, "dataCenter": "EU-RO-1"})
            assert made.status == 500
        assert [found["id"] for found in (await rest.get("/network-volumes"))["networkVolumes"]] == [attacker.volume]


async def test_a_volume_in_use_is_neither_deleted_nor_emptied(attacker: Attacker) -> None:
    await asyncio.to_thread(client(attacker.emulator).put_object, Bucket=attacker.volume, Key="k", Body=b"x")
    async with aiohttp.ClientSession() as session:
        rest = Rest(session, attacker.emulator)
        made = await rest.post("/serverless", endpoint(networkVolumes=[attacker.volume], workers={"max": 0}))
        answers = await asyncio.gather(*(rest.ask("DELETE", f"/network-volumes/{attacker.volume}") for _ in range(5)))
        assert {answer.status for answer in answers} == {400}
        assert await attacker.stored() == ["k"]
        await rest.delete(f"/serverless/{made['id']}")


@pytest.mark.parametrize("sent", [0, 300_000, 999_999, 1_000_000])
async def test_an_upload_under_way_does_not_bring_a_deleted_volume_back(running: tuple[Emulator, Rest], sent: int) -> None:
    emulator, rest = running
    volume = (await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-RO-1"}))["id"]
    attacker = Attacker(emulator, volume)
    reader, writer = await asyncio.open_connection(*attacker.host.split(":"))
    writer.write(attacker.head("PUT", f"/{volume}/k", more=b"content-length: 1000000\r\n") + bytes(sent))
    await writer.drain()
    await asyncio.sleep(0.1)
    await rest.delete(f"/network-volumes/{volume}")
    if sent < 1_000_000:
        writer.write(bytes(1_000_000 - sent))
    status = (await asyncio.wait_for(reader.readline(), 20)).split()[1]
    assert status == (b"200" if sent == 1_000_000 else b"404")
    writer.close()
    assert emulator.s3 is not None
    listed = await emulator.s3._call("GET", "/")
    assert listed is not None
    assert volume.encode() not in listed[1]


async def test_many_deletions_at_once_are_one(running: tuple[Emulator, Rest]) -> None:
    _, rest = running
    volume = (await rest.post("/network-volumes", {"name": "v", "size": 10, "dataCenter": "EU-RO-1"}))["id"]
    answers = await asyncio.gather(*(rest.ask("DELETE", f"/network-volumes/{volume}") for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [204] + [404] * 7


async def test_a_body_larger_than_any_declaration_is_not_kept(running: tuple[Emulator, Rest], monkeypatch: pytest.MonkeyPatch) -> None:
    _, rest = running
    monkeypatch.setattr(server, "BODY_LIMIT", 1000)
    answer = await rest.ask("POST", "/templates", raw=b'"' + b"x" * 1000 + b'"')
    assert answer.status == 413


async def test_bodies_that_cannot_be_read_are_an_error_of_the_client(running: tuple[Emulator, Rest]) -> None:
    emulator, rest = running
    made = await rest.post("/serverless", endpoint(workers={"max": 0}))
    root, worker = f"{emulator.root_url}/v2", {"Authorization": f"Bearer {emulator.worker_key}"}
    client_key = {"Authorization": f"Bearer {emulator.api_key}"}
    deep, no_text = b"[" * 100_000, b'"\xff"'
    job = await rest.run(made["id"])
    results = [f"{root}/{made['id']}/{operation}/w/{job}" for operation in ("job-done", "job-stream")]
    sent = [
        *((f"{root}{path}", client_key, body, {}) for path in ("/templates", f"/{made['id']}/run") for body in (deep, no_text)),
        *((f"{root}{path}", client_key, b"no gzip", {"Content-Encoding": "gzip"}) for path in ("/templates", f"/{made['id']}/run")),
        (f"{root}/{made['id']}/run", client_key, b'{"input":' + deep, {}),
        *((url, worker, b'{"output":' + body, {}) for url in results for body in (deep, no_text + b"}")),
    ]
    for url, key, body, headers in sent:
        async with rest.session.post(url, headers={**key, **headers}, data=body) as answer:
            assert (url, answer.status) == (url, 400)
    await rest.delete(f"/serverless/{made['id']}")
