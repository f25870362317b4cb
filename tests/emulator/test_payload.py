"""Bodies of S3 requests: nothing of a body goes on as a whole that is not what was said of it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import zlib

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from emulator.control.payload import UNSIGNED, ChunkSigner, Payload, S3Refusal
from emulator.s3 import signing_key

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
STAMP, SCOPE = "20130524T000000Z", "20130524/us-east-1/s3/aws4_request"
# the example in AWS's page about signatures of chunks
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
EXAMPLE = (
    (b"a" * 65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (b"a" * 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
)


async def passed_on(body: bytes, kind: str, length: int, trailer: str = "") -> bytes:
    content = aiohttp.StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 16, loop=asyncio.get_running_loop())
    content.feed_data(body)
    content.feed_eof()
    signer = ChunkSigner(signing_key(SECRET, SCOPE), STAMP, SCOPE, SEED)
    return b"".join([piece async for piece in Payload(content, kind, length, signer=signer, trailer=trailer)])


async def refused(body: bytes, kind: str, length: int, trailer: str = "") -> str:
    with pytest.raises(S3Refusal) as caught:
        await passed_on(body, kind, length, trailer)
    return caught.value.code


def signed_chunks(*chunks: tuple[bytes, str]) -> bytes:
    return b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (len(data), signature.encode(), data) for data, signature in chunks)


async def test_aws_own_example_of_signed_chunks_is_taken() -> None:
    assert await passed_on(signed_chunks(*EXAMPLE), SIGNED, 66560) == b"a" * 66560


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_chunk_with_a_wrong_signature_or_other_bytes_is_refused(at: int) -> None:
    wrong = [*EXAMPLE]
    wrong[at] = (EXAMPLE[at][0], "0" * 64)
    assert await refused(signed_chunks(*wrong), SIGNED, 66560) == "SignatureDoesNotMatch"
    body = signed_chunks(*EXAMPLE)
    assert await refused(body.replace(b"aaaa", b"aaab", 1), SIGNED, 66560) == "SignatureDoesNotMatch"
    assert await refused(body.replace(b";chunk-signature=" + EXAMPLE[at][1].encode(), b""), SIGNED, 66560) == "SignatureDoesNotMatch"


async def test_the_trailer_of_signed_chunks_is_signed_too() -> None:
    signer = signing_key(SECRET, SCOPE)
    chunks = signed_chunks(*EXAMPLE).removesuffix(b"\r\n")
    line = b"x-amz-checksum-crc32:" + base64.b64encode(zlib.crc32(b"a" * 66560).to_bytes(4))
    text = f"AWS4-HMAC-SHA256-TRAILER\n{STAMP}\n{SCOPE}\n{EXAMPLE[2][1]}\n" + hashlib.sha256(line + b"\n").hexdigest()
    signature = hmac.new(signer, text.encode(), hashlib.sha256).hexdigest().encode()
    good = chunks + line + b"\r\nx-amz-trailer-signature:" + signature + b"\r\n\r\n"
    assert await passed_on(good, SIGNED_TRAILER, 66560, "x-amz-checksum-crc32") == b"a" * 66560
    for bad in (chunks + line + b"\r\n\r\n", good.replace(signature, b"0" * 64)):
        assert await refused(bad, SIGNED_TRAILER, 66560, "x-amz-checksum-crc32") == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-checksum-crc32", zlib.crc32(b"hello").to_bytes(4)),
        ("x-amz-checksum-sha1", hashlib.sha1(b"hello").digest()),
        ("x-amz-checksum-sha256", hashlib.sha256(b"hello").digest()),
    ],
)
async def test_the_checksum_in_the_trailer_is_compared(name: str, value: bytes) -> None:
    body = b"5\r\nhello\r\n0\r\n%s:%s\r\n\r\n"
    assert await passed_on(body % (name.encode(), base64.b64encode(value)), TRAILER, 5, name) == b"hello"
    assert await refused(body % (name.encode(), base64.b64encode(bytes(len(value)))), TRAILER, 5, name) == "BadDigest"
    assert await refused(b"5\r\nhello\r\n0\r\n\r\n", TRAILER, 5, name) == "MalformedTrailerError"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"5\r\nhello\r\n",
        b"5\r\nhel",
        b"5\r\nhello\r\n0",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"1_0\r\nhello\r\n0\r\n\r\n",
        b"zz\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"fffffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
        b"5\r\nhello\r\n0\r\nno colon\r\n\r\n",
        b"5\r\nhello\r\n0\r\n" + b"".join(b"x-%d:1\r\n" % number for number in range(99)) + b"\r\n",
        b"6\r\nhello!\r\n0\r\n\r\n",
        b"4\r\nhell\r\n0\r\n\r\n",
    ],
)
async def test_a_malformed_or_cut_chunked_body_is_refused(body: bytes) -> None:
    assert await refused(body, TRAILER, 5) == "IncompleteBody"


async def test_a_plain_body_must_have_its_length_and_its_sha256() -> None:
    digest = hashlib.sha256(b"hello").hexdigest()
    assert await passed_on(b"hello", digest, 5) == await passed_on(b"hello", UNSIGNED, 5) == b"hello"
    assert await refused(b"jello", digest, 5) == "XAmzContentSHA256Mismatch"
    for length in (4, 6):
        assert await refused(b"hello", UNSIGNED, length) == "IncompleteBody"


async def test_what_is_refused_has_not_gone_on_as_a_whole() -> None:
    content = aiohttp.StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 20, loop=asyncio.get_running_loop())
    content.feed_data(b"a" * 200_000)
    content.feed_eof()
    payload = Payload(content, "0" * 64, 200_000, signer=ChunkSigner(b"", "", "", ""))
    went_on: list[bytes] = []

    async def send() -> None:
        async for piece in payload:
            went_on.append(piece)

    with pytest.raises(S3Refusal):
        await send()
    assert 0 < sum(map(len, went_on)) < 200_000
    assert payload.refusal is not None
