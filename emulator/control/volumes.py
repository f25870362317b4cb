"""emulator: network volumes as RunPod's S3 API for volumes shows them: a proxy before the S3 server, where a volume's id is its bucket.

May touch: one listening port on loopback, and the S3 server. What RunPod's dialect lacks (storage/s3-api, August 2026) is lacking here: it
ignores conditional headers, refuses presigned URLs, DeleteObjects, single puts of 500 MB and more, and all of versioning, ACL, policy,
tagging and encryption. A request's signature (AWS Signature 4) is verified here and made anew for the S3 server, since what is taken away
was signed; its body is checked here (payload.py), because the S3 server does not look whether it is what was signed. Paths and copy sources
go on in the one form that was checked. Guesses: the statuses and codes of refusals, that 500 MB is decimal, that any region of a signature
is taken.
"""

from __future__ import annotations

import asyncio
import datetime
import hmac
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final
from urllib.parse import quote, unquote_to_bytes
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web
from yarl import URL

from emulator.control.payload import CHUNKED, PIECE, UNSIGNED, ChunkSigner, Payload, S3Refusal
from emulator.control.records import VolumeRecord, rfc3339
from emulator.faults import Message, Seam
from emulator.s3 import KeyPair, sign_headers, signature, signing_key
from emulator.server import hang_up

PUT_LIMIT: Final = 500_000_000
"""Bytes; a single put must be smaller, a part may have as many."""
SKEW_S: Final = 3600.0
"""RunPod takes clocks that are up to an hour off."""
CLOSE_TIMEOUT_S: Final = 30.0
"""How long the deletion of a volume waits for what is written to it."""
UNSUPPORTED: Final = frozenset(
    {
        "accelerate", "acl", "analytics", "cors", "delete", "encryption", "intelligent-tiering", "inventory", "legal-hold", "lifecycle",
        "location", "logging", "metrics", "notification", "object-lock", "ownershipControls", "policy", "policyStatus", "publicAccessBlock",
        "replication", "requestPayment", "restore", "retention", "select", "tagging", "torrent", "versioning", "versionId", "versions",
        "website", "attributes",
    }
)  # fmt: skip
METHODS: Final = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})
_UNSUPPORTED_HEADER: Final = re.compile(
    r"x-amz-(acl|grant-.*|tagging|(copy-source-)?server-side-encryption.*|object-lock-.*|bypass-governance-retention"
    r"|mfa|website-redirect-location|write-offset-bytes)"
)
_CONDITIONAL: Final = re.compile(r"if-(match|none-match|modified-since|unmodified-since)|x-amz-copy-source-if-.*")
_PASSED: Final = frozenset({"cache-control", "content-disposition", "content-language", "content-md5", "content-type", "expires", "range"})
_OWN: Final = frozenset({"x-amz-date", "x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer", "x-amz-security-token"})
_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "server", "date"})
_PAYLOAD: Final = re.compile(r"[0-9a-f]{64}")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_XMLNS: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<access>[^/,\s]+)/(?P<scope>\d{8}/[^/,\s]+/s3/aws4_request)\s*,\s*"
    r"SignedHeaders=(?P<names>[a-z0-9;-]+)\s*,\s*Signature=(?P<signature>[0-9a-f]{64})"
)


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
        self._writes: dict[str, dict[asyncio.Task[aiohttp.ClientResponse], Payload]] = {}
        self.requests = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 62)
        app.router.add_route("*", "/{path:[\\s\\S]*}", self._entry, expect_handler=self._expect)
        app.cleanup_ctx.append(self._connected)
        return app

    async def close(self, volume: str) -> None:
        """Return when nothing can be written to a volume any more, which is one no longer: a late write would make its bucket anew. Uploads
        that are under way end with NoSuchBucket."""
        writes = dict(self._writes.get(volume, ()))
        for task, body in writes.items():
            if not body.passed:
                body.refusal = _no_volume()
                task.cancel()
        if writes:
            await asyncio.wait(writes, timeout=CLOSE_TIMEOUT_S)

    async def _connected(self, app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        # as many as there are clients: with a limit, slow ones would keep all others out
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(auto_decompress=False, timeout=timeout, connector=connector) as session:
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
        try:
            path, bucket, key = _target(request)
            if self._seam.active:
                action = await self._seam.passing(Message("request", bucket, f"s3 {request.method}", job=key or None))
                if action.drop:
                    return hang_up(request)
                if action.answer is not None:
                    raise S3Refusal(action.answer, "SlowDown" if action.answer == 503 else "InternalError", "made by a fault")
            return await self._handle(request, path, bucket, key)
        except S3Refusal as refusal:
            return _error(request, refusal)

    async def _handle(self, request: web.Request, path: str, bucket: str, key: str) -> web.StreamResponse:
        if {"X-Amz-Signature", "X-Amz-Algorithm", "AWSAccessKeyId"} & set(request.query):
            raise S3Refusal(403, "AccessDenied", "presigned URLs are not supported")
        signer = self._verify(request, path)
        if request.method not in METHODS:
            raise S3Refusal(405, "MethodNotAllowed", "S3 has no such method")
        if path == "/":
            if request.method != "GET":
                raise _unsupported(f"{request.method} of all volumes")
            return self._list_buckets()
        refused = UNSUPPORTED & set(request.query)
        if refused:
            raise _unsupported("DeleteObjects" if "delete" in refused else sorted(refused)[0])
        for name in request.headers:
            if _UNSUPPORTED_HEADER.fullmatch(name.lower()):
                raise _unsupported(name.lower())
        if not key and request.method in ("PUT", "DELETE", "POST"):
            raise _unsupported(f"{request.method} of a bucket")
        if bucket not in self._volumes():
            raise _no_volume()
        _check_key(key)
        self._check_size(request)
        source = request.headers.get("x-amz-copy-source")
        return await self._forward(request, path, bucket, signer, None if source is None else self._copy_source(source))

    def _copy_source(self, text: str) -> str:
        """The header in the form that goes on."""
        place, asked, _ = text.partition("?")
        if asked:
            raise _unsupported("a version of the copy's source")
        path = _decoded(place).removeprefix("/")
        bucket, _, key = path.partition("/")
        if bucket not in self._volumes():
            raise S3Refusal(404, "NoSuchBucket", "the network volume of the source does not exist")
        if not key:
            raise S3Refusal(400, "InvalidArgument", "x-amz-copy-source must be a bucket and a key")
        _check_key(key)
        return quote(path, safe="/-_.~")

    # --- signatures -----------------------------------------------------------------------------------------------

    def _verify(self, request: web.Request, path: str) -> ChunkSigner:
        """Raises S3Refusal unless the request is signed; what checks the signatures of its chunks, if it has any."""
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
        scope, names = match["scope"], match["names"].split(";")
        if not stamp.startswith(scope[:8]):
            raise S3Refusal(400, "AuthorizationHeaderMalformed", "the date of the credential is not that of x-amz-date")
        # the signature holds these two, wherever they stand
        unsigned = {name.lower() for name in request.headers if name.lower().startswith("x-amz-")} - {"x-amz-date", "x-amz-content-sha256"}
        if unsigned := unsigned.difference(names):
            raise S3Refusal(403, "AccessDenied", f"there are headers that are not signed: {', '.join(sorted(unsigned))}")
        headers = {name: ",".join(request.headers.getall(name, [])) for name in names}
        query = _canonical(request.raw_path.partition("?")[2])
        found = signature(request.method, path, query, headers, match["names"], _payload(request), secret, stamp, scope)
        if "host" not in names or not hmac.compare_digest(found, match["signature"]):
            raise S3Refusal(403, "SignatureDoesNotMatch", "the signature does not match")
        return ChunkSigner(signing_key(secret, scope), stamp, scope, found)

    # --- forwarding -----------------------------------------------------------------------------------------------

    async def _forward(self, request: web.Request, path: str, bucket: str, signer: ChunkSigner, source: str | None) -> web.StreamResponse:
        base = self._upstream()
        query = _canonical(request.raw_path.partition("?")[2])
        headers = {"host": base.partition("://")[2]}
        for name in {name.lower() for name in request.headers}:
            if (name in _PASSED or name.startswith("x-amz-")) and name not in _OWN and not _CONDITIONAL.fullmatch(name):
                headers[name] = ",".join(request.headers.getall(name))
        if source is not None:
            headers["x-amz-copy-source"] = source
        encodings = [part.strip() for part in request.headers.get("content-encoding", "").split(",")]
        if kept := [part for part in encodings if part and part != "aws-chunked"]:
            headers["content-encoding"] = ", ".join(kept)
        kind = _payload(request)
        body = Payload(request.content, kind, _length(request), signer=signer, trailer=request.headers.get("x-amz-trailer", ""))
        if not body.length:
            async for _ in body:
                pass  # nothing comes, and that is checked
        now = datetime.datetime.now(datetime.UTC)
        signed = sign_headers(request.method, path, query, headers, UNSIGNED if kind in CHUNKED else kind, self._own, now)
        if request.method in ("PUT", "POST"):
            signed["content-length"] = str(body.length)
        signed["accept-encoding"] = "identity"
        url = URL(base + path + (f"?{query}" if query else ""), encoded=True)
        response: web.StreamResponse | None = None
        try:
            async with await self._sent(request.method, url, signed, body, bucket) as answer:
                response = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP and not name.lower().startswith("seaweed-"):
                        response.headers.add(name, value)
                await response.prepare(request)
                if request.method != "HEAD":
                    async for chunk in answer.content.iter_chunked(PIECE):
                        await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            if response is not None and response.prepared:
                return hang_up(request)  # a whole answer is no longer to be had: it must not look like one
            raise body.refusal or S3Refusal(502, "BadGateway", "the storage behind the volume does not answer") from None

    async def _sent(self, method: str, url: URL, headers: Mapping[str, str], body: Payload, bucket: str) -> aiohttp.ClientResponse:
        """The storage's answer to a request. One that writes may be ended by `close`."""
        if bucket not in self._volumes():
            raise _no_volume()  # it was deleted while the request was looked at
        if method in ("GET", "HEAD"):
            return await self._ask(method, url, headers, body)
        task = asyncio.get_running_loop().create_task(self._ask(method, url, headers, body))
        writes = self._writes.setdefault(bucket, {})
        writes[task] = body
        try:
            return await task
        except asyncio.CancelledError:
            if body.refusal is not None:
                raise body.refusal from None
            raise
        finally:
            del writes[task]
            if not writes:
                self._writes.pop(bucket, None)

    async def _ask(self, method: str, url: URL, headers: Mapping[str, str], body: Payload) -> aiohttp.ClientResponse:
        assert self._session is not None
        return await self._session.request(method, url, headers=headers, data=body if body.length else None, allow_redirects=False)

    def _check_size(self, request: web.Request) -> None:
        if request.method != "PUT":
            return
        is_part = {"partNumber", "uploadId"} <= set(request.query)
        length = _length(request)
        if length > PUT_LIMIT or (length == PUT_LIMIT and not is_part):
            what = "a part may have 500 MB" if is_part else "a single put must be smaller than 500 MB: use a multipart upload"
            raise S3Refusal(400, "EntityTooLarge", what)

    def _list_buckets(self) -> web.Response:
        buckets = "".join(
            f"<Bucket><Name>{escape(volume.id)}</Name><CreationDate>{rfc3339(volume.created_at)}</CreationDate></Bucket>"
            for volume in self._volumes().values()
        )
        owner = f"<Owner><ID>{escape(self._own.access)}</ID></Owner>"
        return _xml(200, f'<ListAllMyBucketsResult xmlns="{_XMLNS}">{owner}<Buckets>{buckets}</Buckets></ListAllMyBucketsResult>')


def _target(request: web.Request) -> tuple[str, str, str]:
    """Path (canonical, as AWS signs it), bucket and key. Raises S3Refusal."""
    try:
        "".join((request.raw_path, *request.headers.values())).encode()
    except UnicodeEncodeError:
        raise S3Refusal(400, "InvalidArgument", "the request holds bytes that are not UTF-8") from None
    raw = request.raw_path.partition("?")[0]
    if not raw.startswith("/") or "#" in raw:
        raise S3Refusal(400, "InvalidURI", "the path cannot be parsed")
    path = _decoded(raw)
    bucket, _, key = path[1:].partition("/")
    return quote(path, safe="/-_.~"), bucket, key


def _decoded(text: str) -> str:
    """Without its percent-encoding. Raises S3Refusal."""
    try:
        if _ESCAPE.search(text):
            raise ValueError
        return unquote_to_bytes(text).decode()
    except ValueError:
        raise S3Refusal(400, "InvalidURI", "the path or the query is not percent-encoded UTF-8") from None


def _check_key(key: str) -> None:
    """Keys are paths on the volume; none leads out of it. Raises S3Refusal."""
    if "\0" in key or {".", ".."} & set(key.replace("\\", "/").split("/")) or (key and not key.strip("/")):
        raise S3Refusal(400, "InvalidArgument", "the key is not a path on the volume")


def _payload(request: web.Request) -> str:
    kind = request.headers.get("x-amz-content-sha256", UNSIGNED)
    if kind != UNSIGNED and kind not in CHUNKED and not _PAYLOAD.fullmatch(kind):
        raise S3Refusal(400, "InvalidArgument", "x-amz-content-sha256 is neither a SHA-256 nor one of the values that it can have instead")
    return kind


def _length(request: web.Request) -> int:
    """Of what will be stored. Raises S3Refusal if nothing says it."""
    chunked = _payload(request) in CHUNKED
    text = request.headers.get("x-amz-decoded-content-length" if chunked else "content-length")
    if text is None:
        if chunked or request.body_exists:
            raise S3Refusal(411, "MissingContentLength", "the length of the body must be given")
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise S3Refusal(400, "InvalidArgument", "the length of the body is not a number")
    return int(text)


def _canonical(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&") if part]
    encoded = sorted((quote(_decoded(name), safe="-_.~"), quote(_decoded(value), safe="-_.~")) for name, _, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)


def _no_volume() -> S3Refusal:
    return S3Refusal(404, "NoSuchBucket", "the network volume does not exist")


def _unsupported(what: str) -> S3Refusal:
    return S3Refusal(501, "NotImplemented", f"{what} is not supported by network volumes")


def _error(request: web.Request, refusal: S3Refusal) -> web.Response:
    resource = escape(_NOT_XML.sub("\ufffd", request.path))
    text = f"<Error><Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message><Resource>{resource}</Resource></Error>"
    response = _xml(refusal.status, text)
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the rest of the body is on its way, or it is never sent: no further request can be told from it
    return response


def _xml(status: int, text: str) -> web.Response:
    return web.Response(status=status, text='<?xml version="1.0" encoding="UTF-8"?>\n' + text, content_type="application/xml")
