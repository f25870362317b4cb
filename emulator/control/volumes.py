"""emulator: network volumes as RunPod's S3 API for volumes shows them: a proxy before the S3 server, where a volume's id is its bucket.

May touch: one listening port on loopback, and the S3 server. What RunPod's dialect lacks (storage/s3-api, August 2026) is lacking here: it
ignores conditional headers, refuses presigned URLs, DeleteObjects, single puts of 500 MB and more, and all of versioning, ACL, policy,
tagging and encryption. A request's signature (AWS Signature 4) is verified here and made anew for the S3 server, since what is taken away
was signed. Guesses: the statuses and codes of refusals, that 500 MB is decimal, that any region of a signature is taken.
"""

from __future__ import annotations

import datetime
import hmac
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web
from yarl import URL

from emulator.control.records import VolumeRecord
from emulator.faults import Message, Seam
from emulator.s3 import KeyPair, sign_headers, signature
from emulator.server import hang_up

PUT_LIMIT: Final = 500_000_000
"""Bytes; a single put must be smaller, a part may have as many."""
SKEW_S: Final = 3600.0
"""RunPod takes clocks that are up to an hour off."""
UNSUPPORTED: Final = frozenset(
    {
        "accelerate", "acl", "analytics", "cors", "delete", "encryption", "intelligent-tiering", "inventory", "legal-hold", "lifecycle",
        "location", "logging", "metrics", "notification", "object-lock", "ownershipControls", "policy", "policyStatus", "publicAccessBlock",
        "replication", "requestPayment", "restore", "retention", "select", "tagging", "torrent", "versioning", "versionId", "versions",
        "website", "attributes",
    }
)  # fmt: skip
_CONDITIONAL: Final = re.compile(r"if-(match|none-match|modified-since|unmodified-since)|x-amz-copy-source-if-.*")
_PASSED: Final = frozenset({"cache-control", "content-disposition", "content-language", "content-md5", "content-type", "expires", "range"})
_OWN: Final = frozenset({"x-amz-date", "x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer", "x-amz-security-token"})
_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "server", "date"})
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<access>[^/,\s]+)/(?P<scope>\d{8}/[^/,\s]+/s3/aws4_request)\s*,\s*"
    r"SignedHeaders=(?P<names>[a-z0-9;-]+)\s*,\s*Signature=(?P<signature>[0-9a-f]{64})"
)


class S3Refusal(Exception):
    """Becomes an S3 error in XML."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class VolumeProxy:
    """The S3 side of all volumes. `keys` open every volume; upstream requests are made with `own`, the S3 server's first identity."""

    def __init__(
        self,
        volumes: Callable[[], Mapping[str, VolumeRecord]],
        *,
        upstream: Callable[[], str],
        own: KeyPair,
        keys: tuple[KeyPair, ...],
        seam: Seam,
    ) -> None:
        self._volumes = volumes
        self._upstream = upstream
        self._own = own
        self._secrets = {pair.access: pair.secret for pair in keys}
        self._seam = seam
        self._session: aiohttp.ClientSession | None = None
        self.requests = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 62)
        app.router.add_route("*", "/{path:.*}", self._entry, expect_handler=self._expect)
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(auto_decompress=False, timeout=timeout) as session:
            self._session = session
            yield

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        """A body that would be refused for its size is not asked for."""
        try:
            self._check_size(request)
        except S3Refusal as refusal:
            return _error(request, refusal)
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    async def _entry(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        bucket, key = _parts(request)
        if self._seam.active:
            action = await self._seam.passing(Message("request", bucket, f"s3 {request.method}", job=key or None))
            if action.drop:
                return hang_up(request)
            if action.answer is not None:
                return _error(request, S3Refusal(action.answer, "SlowDown" if action.answer == 503 else "InternalError", "made by a fault"))
        try:
            return await self._handle(request, bucket, key)
        except S3Refusal as refusal:
            return _error(request, refusal)
        except aiohttp.ClientConnectionError:
            return _error(request, S3Refusal(502, "BadGateway", "the storage behind the volume does not answer"))

    async def _handle(self, request: web.Request, bucket: str, key: str) -> web.StreamResponse:
        if {"X-Amz-Signature", "X-Amz-Algorithm", "AWSAccessKeyId"} & set(request.query):
            raise S3Refusal(403, "AccessDenied", "presigned URLs are not supported")
        self._verify(request)
        if not bucket:
            if request.method != "GET":
                raise _unsupported(request.method)
            return self._list_buckets()
        refused = UNSUPPORTED & set(request.query)
        if refused:
            raise _unsupported("DeleteObjects" if "delete" in refused else sorted(refused)[0])
        if not key and request.method in ("PUT", "DELETE", "POST"):
            raise _unsupported(f"{request.method} of a bucket")
        if bucket not in self._volumes():
            raise S3Refusal(404, "NoSuchBucket", "the network volume does not exist")
        self._check_size(request)
        source = request.headers.get("x-amz-copy-source")
        if source is not None and unquote(source).lstrip("/").partition("/")[0] not in self._volumes():
            raise S3Refusal(404, "NoSuchBucket", "the network volume of the source does not exist")
        return await self._forward(request)

    # --- signatures -----------------------------------------------------------------------------------------------

    def _verify(self, request: web.Request) -> None:
        match = _AUTHORIZATION.fullmatch(request.headers.get("Authorization", "").strip())
        if match is None:
            raise S3Refusal(403, "AccessDenied", "the request is not signed with AWS Signature 4")
        secret = self._secrets.get(match["access"])
        if secret is None:
            raise S3Refusal(403, "InvalidAccessKeyId", "the access key does not exist")
        stamp = request.headers.get("x-amz-date", "")
        try:
            signed_at = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        except ValueError:
            raise S3Refusal(403, "AccessDenied", "x-amz-date is missing or malformed") from None
        if abs((datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()) > SKEW_S:
            raise S3Refusal(403, "RequestTimeTooSkewed", "the clocks differ by more than an hour")
        path, _, query = request.raw_path.partition("?")
        names = match["names"]
        headers = {name: ",".join(request.headers.getall(name, [])) for name in names.split(";")}
        payload = request.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        found = signature(request.method, path, _canonical(query), headers, names, payload, secret, stamp, match["scope"])
        if "host" not in names.split(";") or not hmac.compare_digest(found, match["signature"]):
            raise S3Refusal(403, "SignatureDoesNotMatch", "the signature does not match")

    # --- forwarding -----------------------------------------------------------------------------------------------

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        path, _, query = request.raw_path.partition("?")
        base = self._upstream()
        headers = {"host": base.partition("://")[2]}
        for name, value in request.headers.items():
            lower = name.lower()
            if (lower in _PASSED or lower.startswith("x-amz-")) and lower not in _OWN and not _CONDITIONAL.fullmatch(lower):
                headers[lower] = value
        encodings = [part.strip() for part in request.headers.get("content-encoding", "").split(",")]
        if kept := [part for part in encodings if part and part != "aws-chunked"]:
            headers["content-encoding"] = ", ".join(kept)
        payload = request.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        length = _length(request)
        body: AsyncIterator[bytes] | None = None
        if payload.startswith("STREAMING-"):
            payload, body = "UNSIGNED-PAYLOAD", _unchunked(request.content)
        elif length:
            body = request.content.iter_chunked(1 << 16)
        signed = sign_headers(request.method, path, _canonical(query), headers, payload, self._own, datetime.datetime.now(datetime.UTC))
        if request.method in ("PUT", "POST"):
            signed["content-length"] = str(length)
        signed["accept-encoding"] = "identity"
        url = URL(base + path + (f"?{_canonical(query)}" if query else ""), encoded=True)
        async with self._session.request(
            request.method, url, headers=signed, data=body if length else None, allow_redirects=False
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP:
                    response.headers.add(name, value)
            await response.prepare(request)
            if request.method != "HEAD":
                async for chunk in answer.content.iter_chunked(1 << 16):
                    await response.write(chunk)
            await response.write_eof()
            return response

    def _check_size(self, request: web.Request) -> None:
        if request.method != "PUT":
            return
        is_part = "partNumber" in request.query
        length = _length(request)
        if length > PUT_LIMIT or (length == PUT_LIMIT and not is_part):
            what = "a part may have 500 MB" if is_part else "a single put must be smaller than 500 MB: use a multipart upload"
            raise S3Refusal(400, "EntityTooLarge", what)

    def _list_buckets(self) -> web.Response:
        names = "".join(f"<Bucket><Name>{escape(name)}</Name></Bucket>" for name in self._volumes())
        return _xml(200, f"<ListAllMyBucketsResult><Buckets>{names}</Buckets></ListAllMyBucketsResult>")


def _parts(request: web.Request) -> tuple[str, str]:
    bucket, _, key = request.raw_path.partition("?")[0].lstrip("/").partition("/")
    return unquote(bucket), unquote(key)


def _length(request: web.Request) -> int:
    text = request.headers.get("x-amz-decoded-content-length") or request.headers.get("content-length") or "0"
    if not (text.isascii() and text.isdigit()):
        raise S3Refusal(400, "InvalidArgument", "the length of the body is not a number")
    return int(text)


def _canonical(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&") if part]
    encoded = sorted((quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")) for name, _, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)


async def _unchunked(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The bytes inside an aws-chunked body; signatures of chunks and trailers are passed over."""
    while True:
        size = int((await content.readuntil(b"\r\n")).split(b";")[0].strip() or b"0", 16)
        if size == 0:
            while await content.readany():
                pass
            return
        while size:
            chunk = await content.read(min(size, 1 << 16))
            if not chunk:
                return
            size -= len(chunk)
            yield chunk
        await content.readexactly(2)


def _unsupported(what: str) -> S3Refusal:
    return S3Refusal(501, "NotImplemented", f"{what} is not supported by network volumes")


def _error(request: web.Request, refusal: S3Refusal) -> web.Response:
    text = (
        f"<Error><Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message><Resource>{escape(request.path)}</Resource></Error>"
    )
    return _xml(refusal.status, text)


def _xml(status: int, text: str) -> web.Response:
    return web.Response(status=status, text='<?xml version="1.0" encoding="UTF-8"?>\n' + text, content_type="application/xml")
