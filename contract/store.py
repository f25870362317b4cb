"""contract: S3 behind one small protocol, and the only place that knows boto3 and the dialects of S3.

`Store` has the primitives. What the protocol builds on them (first write wins, on both kinds of store) is `put_first`, and it is the same
code over the real store and over `contract.memory.MemoryStore`. Instants are the store's own (its Date header), never this machine's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from contract.errors import AccessDenied, AlreadyExists, NoSuchBucket, NotFound, StoreError, StoreUnavailable
from contract.models import ObjectRef, S3Config, StoreMode

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

log = logging.getLogger("nightbatch.store")
T = TypeVar("T")
CHUNK: Final = 1 << 20
PART_BYTES: Final = 64 << 20
"""Multipart part size: RunPod's volumes take at most 500 MB a part or a put."""
FIRST_WRITE_TRIES: Final = 6


@dataclass(frozen=True)
class Head:
    """What is known of an object without reading it. `etag` is as the store gave it, quotes removed."""

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class Blob:
    """A whole small object."""

    data: bytes
    etag: str


class Store(Protocol):
    """One bucket. Every method may raise AccessDenied or StoreUnavailable; after StoreUnavailable a write may or may not have happened."""

    bucket: str
    endpoint_url: str
    mode: StoreMode
    """Proven by `probe_mode`, pinned in the plan."""

    async def get(self, key: str) -> Blob:
        """The whole object. Raises NotFound."""

    async def head(self, key: str) -> Head | None:
        """None where there is no such object."""

    async def put(self, key: str, data: bytes | Path) -> str:
        """Write, replacing whatever is there; returns the etag. A Path is streamed (multipart where large)."""

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """PUT If-None-Match: *. Raises AlreadyExists. Only on a conditional store."""

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """PUT If-Match. Raises AlreadyExists when the object is another one by now. Only on a conditional store."""

    def read(self, key: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Stream bytes [start, stop) in chunks. Raises NotFound."""

    def list(self, prefix: str) -> AsyncIterator[Head]:
        """Every object under the prefix, in key order."""

    async def delete(self, key: str) -> None:
        """Only gc calls this."""

    def now(self) -> datetime:
        """The store's clock: its last Date header plus the monotonic time since."""

    async def close(self) -> None:
        """Release connections and threads."""


class FolderStore(Store, Protocol):
    """A store that can tell what stands directly under a prefix without listing everything below it."""

    def folders(self, prefix: str) -> AsyncIterator[str]:
        """Names directly under the prefix (which ends in /) that have something below them."""


async def put_first(store: Store, key: str, data: bytes) -> bytes:
    """Write `data` unless something stands at `key`; return what stands there afterwards: equal to `data` means that this write won.

    After a 412, 409 or a lost answer the object is read: one's own bytes mean that the write had worked, absent means write again. `data`
    must be unique to its writer (an execution id, a client's name). On a last-writer store the object is looked at before and re-read
    after.
    """
    last: StoreError | None = None
    for _ in range(FIRST_WRITE_TRIES):
        try:
            if store.mode == "conditional":
                await store.put_if_absent(key, data)
                return data
            standing = await get_or_none(store, key)
            if standing is None:
                await store.put(key, data)
            else:
                return standing.data
        except (AlreadyExists, StoreUnavailable) as error:
            last = error
        standing = await get_or_none(store, key)
        if standing is not None:
            return standing.data
    raise last or StoreUnavailable("an object that was written is not there.", where=f"s3://{store.bucket}/{key}")


async def get_or_none(store: Store, key: str) -> Blob | None:
    """As `get`, None where there is no such object."""
    try:
        return await store.get(key)
    except NotFound:
        return None


async def put_object(store: Store, key: str, data: bytes | Path) -> ObjectRef:
    """Write a data object and describe it: size and sha256 of what was sent, etag as the store gave it."""
    if isinstance(data, Path):
        size, digest = await asyncio.to_thread(_file_digest, data)
    else:
        size, digest = len(data), hashlib.sha256(data).hexdigest()
    etag = await store.put(key, data)
    return ObjectRef(key=key, size=size, sha256=digest, etag=etag)


def _file_digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


async def probe_mode(store: Store, prefix: str) -> StoreMode:
    """Prove whether the store has If-None-Match: of two writes to one key the second must fail with 412 and change nothing (rclone, s3rver
    and RunPod's volume API accept the header and ignore it, so that accepting it proves nothing). The key is always the same, so that
    probes do not pile up; one that an earlier probe left only makes the first write fail as well."""
    key = f"{prefix.strip('/')}/probe/if-none-match".lstrip("/")
    last = secrets.token_hex(8).encode()
    for data in (secrets.token_hex(8).encode(), last):
        try:
            await store.put_if_absent(key, data)
            refused = False
        except AlreadyExists:
            refused = True
        except (StoreUnavailable, AccessDenied):
            raise
        except StoreError:
            return "last-writer"  # NotImplemented and its kin: a store that refuses the header
    return "conditional" if refused and (await store.get(key)).data != last else "last-writer"


def region_of(endpoint_url: str) -> str:
    """The region that the endpoint's dialect implies: `s3Config` has no field for it.

    RunPod volumes: https://s3api-eu-ro-1.runpod.io -> EU-RO-1 (storage/s3-api.mdx). AWS: https://s3.eu-west-1.amazonaws.com -> eu-west-1.
    Cloudflare R2 -> auto. Everything else, SeaweedFS and MinIO among them, takes any region: us-east-1.
    """
    host = re.sub(r"^https?://", "", endpoint_url).split("/")[0].split(":")[0].lower()
    if match := re.fullmatch(r"s3api-([a-z0-9-]+)\.runpod\.io", host):
        return match[1].upper()
    if match := re.search(r"(?:^|\.)s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com", host):
        return match[1]
    if host.endswith(".r2.cloudflarestorage.com"):
        return "auto"
    if match := re.search(r"(?:^|\.)s3\.([a-z0-9-]+)\.(?:backblazeb2|wasabisys|digitaloceanspaces)\.com", host):
        return match[1]
    return "us-east-1"


@dataclass
class StoreClock:
    """The store's instants, carried between answers by this machine's monotonic clock."""

    monotonic: Callable[[], float] = time.monotonic
    _date: datetime | None = field(default=None, init=False)
    _at: float = field(default=0.0, init=False)

    def saw(self, date_header: str | None) -> None:
        if not date_header:
            return
        try:
            date = parsedate_to_datetime(date_header)
        except ValueError:
            return
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        # A Date header has whole seconds: never step back over what was already said.
        if self._date is None or date > self.now() or (self.now() - date) > timedelta(seconds=2):
            self._date, self._at = date, self.monotonic()

    def now(self) -> datetime:
        if self._date is None:
            return datetime.now(UTC)
        return self._date + timedelta(seconds=self.monotonic() - self._at)


class S3Store:
    """A bucket of any S3, through boto3 in threads (path-style, checksums only where required, ten tries: RunPod's docs ask for them)."""

    def __init__(
        self,
        keys: S3Config,
        *,
        mode: StoreMode = "last-writer",
        threads: int = 8,
        timeout_s: float = 60.0,
        max_attempts: int = 10,
    ) -> None:
        self.bucket = keys.bucketName
        self.endpoint_url = keys.endpointUrl
        self.mode = mode
        self._keys = keys
        self._threads = threads
        self._timeout_s = timeout_s
        self._max_attempts = max_attempts
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="s3")
        self._clock = StoreClock()
        self._client_: S3Client | None = None

    def __repr__(self) -> str:
        return f"S3Store({self.endpoint_url}, bucket={self.bucket!r}, mode={self.mode!r})"

    @property
    def _client(self) -> S3Client:
        if self._client_ is None:
            import boto3
            from botocore.config import Config

            config = Config(
                region_name=region_of(self.endpoint_url),
                s3={"addressing_style": "path"},
                signature_version="s3v4",
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"mode": "standard", "total_max_attempts": self._max_attempts},
                connect_timeout=min(10.0, self._timeout_s),
                read_timeout=self._timeout_s,
                max_pool_connections=self._threads + 2,
            )
            session = boto3.session.Session(aws_access_key_id=self._keys.accessId, aws_secret_access_key=self._keys.accessSecret)
            client = session.client("s3", endpoint_url=self.endpoint_url, config=config)
            client.meta.events.register("after-call.s3", self._after_call)
            self._client_ = client
        return self._client_

    def _after_call(self, http_response: Any = None, **_: Any) -> None:
        if http_response is not None:
            self._clock.saw(http_response.headers.get("date") or http_response.headers.get("Date"))

    async def _call(self, what: str, key: str, function: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        where = f"s3://{self.bucket}/{key}"
        try:
            return await loop.run_in_executor(self._pool, function)
        except StoreError:
            raise
        except Exception as error:  # botocore has no common base of ClientError and its connection errors
            raise _translate(error, what, where, self.endpoint_url) from None

    async def get(self, key: str) -> Blob:
        def work() -> Blob:
            answer = self._client.get_object(Bucket=self.bucket, Key=key)
            return Blob(answer["Body"].read(), answer["ETag"].strip('"'))

        return await self._call("get", key, work)

    async def head(self, key: str) -> Head | None:
        def work() -> Head:
            answer = self._client.head_object(Bucket=self.bucket, Key=key)
            return Head(key, answer["ContentLength"], answer["ETag"].strip('"'))

        try:
            return await self._call("head", key, work)
        except NotFound:
            return None

    async def put(self, key: str, data: bytes | Path) -> str:
        if isinstance(data, Path) and data.stat().st_size > PART_BYTES:
            return await self._call("put", key, lambda: self._multipart(key, data))

        def work() -> str:
            body = data.read_bytes() if isinstance(data, Path) else data
            return self._client.put_object(Bucket=self.bucket, Key=key, Body=body)["ETag"].strip('"')

        return await self._call("put", key, work)

    def _multipart(self, key: str, path: Path) -> str:
        client = self._client
        upload = client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        try:
            parts: list[Any] = []
            with path.open("rb") as file:
                while chunk := file.read(PART_BYTES):
                    number = len(parts) + 1
                    etag = client.upload_part(Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=chunk)["ETag"]
                    parts.append({"ETag": etag, "PartNumber": number})
            done = client.complete_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
            return done["ETag"].strip('"')
        except BaseException:
            try:
                client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
            except Exception as error:  # the first error is the one to tell of; parts without an upload cost space until the bucket's rule
                log.warning("a broken multipart upload of %s could not be aborted (%s)", key, type(error).__name__)
            raise

    async def put_if_absent(self, key: str, data: bytes) -> str:
        return await self._call(
            "conditional put",
            key,
            lambda: self._client.put_object(Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*")["ETag"].strip('"'),
        )

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return await self._call(
            "conditional put",
            key,
            lambda: self._client.put_object(Bucket=self.bucket, Key=key, Body=data, IfMatch=f'"{etag}"')["ETag"].strip('"'),
        )

    async def read(self, key: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        if stop is not None and stop <= start:
            return

        def begin() -> Any:
            if start == 0 and stop is None:
                return self._client.get_object(Bucket=self.bucket, Key=key)["Body"]
            span = f"bytes={start}-{'' if stop is None else stop - 1}"
            return self._client.get_object(Bucket=self.bucket, Key=key, Range=span)["Body"]

        body = await self._call("read", key, begin)
        try:
            while True:
                chunk: bytes = await self._call("read", key, lambda: body.read(CHUNK))
                if not chunk:
                    return
                yield chunk
        finally:
            body.close()

    async def list(self, prefix: str) -> AsyncIterator[Head]:
        token: str | None = None
        while True:

            def page(token: str | None = token) -> Any:
                more: dict[str, Any] = {"ContinuationToken": token} if token else {}
                return self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **more)

            answer = await self._call("list", prefix, page)
            for item in answer.get("Contents", ()):
                if not item["Key"].endswith("/"):  # RunPod's volumes list empty directories
                    yield Head(item["Key"], item["Size"], item["ETag"].strip('"'))
            following = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
            if following is None:
                return
            if following == token:
                raise StoreUnavailable("the store repeats one page of a listing for ever.", where=f"s3://{self.bucket}/{prefix}")
            token = following

    async def folders(self, prefix: str) -> AsyncIterator[str]:
        token: str | None = None
        while True:

            def page(token: str | None = token) -> Any:
                more: dict[str, Any] = {"ContinuationToken": token} if token else {}
                return self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, Delimiter="/", **more)

            answer = await self._call("list", prefix, page)
            for item in answer.get("CommonPrefixes", ()):
                yield item["Prefix"][len(prefix) :].rstrip("/")
            following = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
            if following is None:
                return
            if following == token:
                raise StoreUnavailable("the store repeats one page of a listing for ever.", where=f"s3://{self.bucket}/{prefix}")
            token = following

    async def delete(self, key: str) -> None:
        await self._call("delete", key, lambda: self._client.delete_object(Bucket=self.bucket, Key=key))

    def now(self) -> datetime:
        return self._clock.now()

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client_ is not None:
            self._client_.close()
            self._client_ = None


_DENIED: Final = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403", "401"})
_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_EXISTS: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})


def _translate(error: Exception, what: str, where: str, endpoint_url: str) -> StoreError:
    """botocore's errors -> ours. Messages of botocore name buckets and codes, never secrets."""
    from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
        if code == "NoSuchBucket":
            return NoSuchBucket("there is no such bucket.", where=where, fix=f"Create it at {endpoint_url}, or name another.")
        if code in _ABSENT or status == 404:
            return NotFound("there is no such object.", where=where)
        if code in _EXISTS or status in (409, 412):
            return AlreadyExists(f"the object is there already ({code}).", where=where)
        if code in _DENIED or status in (401, 403):
            return AccessDenied(f"{what} was refused ({code}).", where=where, fix="Check the S3 keys and that they may use this bucket.")
        if code == "NotImplemented" or status == 501:
            return StoreError(f"the store does not know this kind of {what} ({code}).", where=where)
        if status >= 500 or code in ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable") or status == 429:
            return StoreUnavailable(f"{what} failed after retries ({code or status}).", where=where, fix="Try again later.")
        return StoreError(f"{what} failed ({code or status}).", where=where)
    if isinstance(error, ParamValidationError):
        return StoreError("is not an address that a store can have.", where=where, fix="Check the bucket's name and the key.")
    if isinstance(error, (BotoCoreError, OSError)):
        return StoreUnavailable(
            f"{what} got no answer from {endpoint_url} ({type(error).__name__}).", where=where, fix="Is the store reachable?"
        )
    from urllib3.exceptions import HTTPError

    if isinstance(error, HTTPError):
        return StoreUnavailable(f"{what} broke off ({type(error).__name__}).", where=where, fix="Try again later.")
    raise error
