"""infra: from an image's tag to its digest at the registry, and into the stack file. Needs aiohttp and PyYAML; no pulumi, no docker.

    resolve   asks the registry (OCI distribution API: manifest HEAD, token dance) which digest a tag has now
    pin       resolves and writes `repository@sha256:…` into a stack file; nothing else of the file changes, comments included

A private registry's credentials come from the environment: NIGHTBATCH_REGISTRY_USERNAME, NIGHTBATCH_REGISTRY_PASSWORD (often a token that
may read packages) and NIGHTBATCH_REGISTRY, the host that they are for. They go to that host alone, and to the token service that it names,
over https (http on loopback only): a stack file names registries, and whoever may change one must not learn a password by it. An image of
another registry is asked for without them. What a registry answers is bounded, and nothing of it is followed to another place.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import yaml

from contract.errors import InfrastructureError, UsageError
from contract.net import LOOPBACK
from infra.review.digest import decoded
from infra.settings import PROJECT

HOST_ENV: Final = "NIGHTBATCH_REGISTRY"
USERNAME_ENV: Final = "NIGHTBATCH_REGISTRY_USERNAME"
PASSWORD_ENV: Final = "NIGHTBATCH_REGISTRY_PASSWORD"
DOCKER_HUB: Final = "registry-1.docker.io"
TIMEOUT_S: Final = 30.0
MOST_BYTES: Final = 4 << 20
"""A manifest is a few KB; the distribution specification has clients refuse more than 4 MB."""
MOST_TOKEN_BYTES: Final = 256 << 10
"""A token service's answer: a token of a few KB, sometimes twice."""
LONGEST_URL: Final = 2_000
ACCEPT: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class ImageNotFound(UsageError):
    """The registry has no such image, or does not show it."""


class RegistryRefused(UsageError):
    """The registry wants credentials, or other ones."""


class RegistryError(InfrastructureError):
    """The registry did not answer, or not as a registry does."""


@dataclass(frozen=True)
class Reference:
    """An image reference taken apart. `repository` as it was written (`org/image` for Docker Hub), without tag and digest."""

    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """`[registry/]name[:tag][@sha256:…]`. Raises UsageError."""
        found = re.fullmatch(r"(?P<name>[^@]+?)(:(?P<tag>[A-Za-z0-9_][\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?", text)
        if found is None or not re.fullmatch(r"([A-Za-z0-9.\-]+(:[0-9]{1,5})?/)?[a-z0-9._\-]+(/[a-z0-9._\-]+)*", found["name"]):
            raise UsageError(f"{text!r} is not the name of an image.", fix="It looks like registry.example.com/nightbatch-worker:v1.")
        return cls(found["name"], found["tag"], found["digest"])

    @property
    def registry(self) -> str:
        """Host and port of the registry's API."""
        first, slash, _ = self.repository.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return _api_host(first)
        return DOCKER_HUB

    @property
    def path(self) -> str:
        """The repository's name at the registry."""
        first, slash, rest = self.repository.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            name = rest
        else:
            name = self.repository
        return f"library/{name}" if self.registry == DOCKER_HUB and "/" not in name else name

    def __str__(self) -> str:
        return f"{self.repository}{':' + self.tag if self.tag else ''}{'@' + self.digest if self.digest else ''}"


@dataclass(frozen=True)
class Resolved:
    """What a registry says that a tag is now."""

    repository: str
    tag: str
    digest: str

    @property
    def pinned(self) -> str:
        """`repository@sha256:…`, as a stack file should have it."""
        return f"{self.repository}@{self.digest}"


async def resolve(
    image: str, *, environ: Mapping[str, str] | None = None, session: aiohttp.ClientSession | None = None, timeout_s: float = TIMEOUT_S
) -> Resolved:
    """The digest that `image` (a reference with a tag; `latest` without one) has at its registry now.

    Raises UsageError (not a reference), ImageNotFound, RegistryRefused, RegistryError.
    """
    reference = Reference.parse(image)
    tag = reference.tag or "latest"
    environ = os.environ if environ is None else environ
    asking = _Asking(reference, tag, Credentials.of(environ))
    here = _host(reference.registry) in LOOPBACK  # no proxy has to do with that
    try:
        async with asyncio.timeout(timeout_s):
            if session is not None:
                digest = await asking.digest(session)
            else:
                async with aiohttp.ClientSession(trust_env=not here, cookie_jar=aiohttp.DummyCookieJar()) as own:
                    digest = await asking.digest(own)
    except TimeoutError:
        raise RegistryError(f"no answer within {timeout_s:g} s.", where=reference.registry, fix="Try again.") from None
    except (aiohttp.ClientError, OSError, UnicodeError) as error:  # the last: a host that no name service takes
        raise RegistryError(f"cannot be reached ({type(error).__name__}).", where=reference.registry, fix="Is the name right?") from None
    return Resolved(reference.repository, tag, digest)


@dataclass(frozen=True, repr=False)
class Credentials:
    """What the environment has for one registry. `host`: whose they are; None: nobody said, so they go nowhere."""

    username: str
    password: str
    host: str | None

    def __repr__(self) -> str:
        return "Credentials(<hidden>)"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Credentials | None:
        """Those of the environment, if there are any. Raises UsageError for half of them, and for a host that is none."""
        username, password, host = (environ.get(name) or None for name in (USERNAME_ENV, PASSWORD_ENV, HOST_ENV))
        if host is not None and not re.fullmatch(r"[A-Za-z0-9.\-]+(:[0-9]{1,5})?", host):
            raise UsageError(f"{host!r} is not a registry's host.", where=HOST_ENV, fix="It looks like registry.example.com.")
        if username is None and password is None:
            return None
        if username is None or password is None:
            raise UsageError(
                f"{USERNAME_ENV if username is None else PASSWORD_ENV} must be set, too.", fix=f"Or unset both, and {HOST_ENV}."
            )
        return cls(username, password, None if host is None else _api_host(host))

    @property
    def basic(self) -> str:
        """The header's value."""
        return f"Basic {base64.b64encode(f'{self.username}:{self.password}'.encode(errors='surrogateescape')).decode()}"


class _Asking:
    """One question to one registry."""

    def __init__(self, reference: Reference, tag: str, credentials: Credentials | None) -> None:
        self._image = f"{reference.repository}:{tag}"
        self._registry = reference.registry
        scheme = "http" if _host(self._registry) in LOOPBACK else "https"
        self._url = f"{scheme}://{self._registry}/v2/{reference.path}/manifests/{tag}"
        self._scope = f"repository:{reference.path}:pull"
        self._credentials = credentials
        mine = credentials is not None and credentials.host == self._registry
        self._basic = credentials.basic if credentials is not None and mine else None

    async def digest(self, session: aiohttp.ClientSession) -> str:
        status, headers = await self._head(session, None)
        if status == 401:
            authorization = await self._authorization(session, headers.get("WWW-Authenticate", ""))
            status, headers = await self._head(session, authorization)
        else:
            authorization = None
        self._check(status)
        digest = headers.get("Docker-Content-Digest", "")
        if not digest:  # the header is optional: then the digest is that of the bytes
            digest = await self._hashed(session, authorization)
        if not DIGEST.fullmatch(digest):
            raise RegistryError(f"answered with a digest that is none for {self._image}.", where=self._registry)
        return digest

    async def _head(self, session: aiohttp.ClientSession, authorization: str | None) -> tuple[int, Mapping[str, str]]:
        async with session.head(self._url, headers=_headers(authorization), allow_redirects=False) as answer:
            return answer.status, answer.headers.copy()

    async def _hashed(self, session: aiohttp.ClientSession, authorization: str | None) -> str:
        async with session.get(self._url, headers=_headers(authorization), allow_redirects=False) as answer:
            self._check(answer.status)
            body = await _read_most(answer, MOST_BYTES)
        if body is None:
            raise RegistryError(f"the manifest of {self._image} is over 4 MB.", where=self._registry)
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    async def _authorization(self, session: aiohttp.ClientSession, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            if self._basic is None:
                raise self._refused()
            return self._basic
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = fields.get("realm", "")
        if scheme.lower() != "bearer" or not realm:
            raise RegistryError("asks for credentials in a way that is not known here.", where=self._registry)
        self._check_realm(realm)
        query = {"scope": fields.get("scope") or self._scope}
        if "service" in fields:
            query["service"] = fields["service"]
        async with session.get(realm, params=query, headers=_headers(self._basic), allow_redirects=False) as answer:
            if answer.status in (400, 401, 403):
                raise self._refused()
            if answer.status != 200:
                raise RegistryError(f"its token service answered {answer.status}.", where=self._registry, fix="Try again.")
            body = await _read_most(answer, MOST_TOKEN_BYTES)
        found = None if body is None else decoded(body)
        token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else None
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise RegistryError("its token service gave no token.", where=self._registry)
        return f"Bearer {token}"

    def _check_realm(self, realm: str) -> None:
        """A token service that may be asked: over https, or on this machine where the registry is, too. Raises RegistryError."""
        try:
            if len(realm) > LONGEST_URL or not re.fullmatch(r"[!-~]+", realm):
                raise ValueError
            parts = urlsplit(realm)
            scheme, host = parts.scheme, parts.hostname or ""
            # So plain that no reader of it can see another host or a port that there is not.
            if not re.fullmatch(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", parts.netloc) or (parts.port or 1) > 65535:
                raise ValueError
        except ValueError:
            raise RegistryError("names a token service whose address is none.", where=self._registry) from None
        here = _host(self._registry) in LOOPBACK
        if scheme != "https" and not (scheme == "http" and host in LOOPBACK and here):
            raise RegistryError(f"names a token service without https ({host}).", where=self._registry)
        if host in LOOPBACK and not here:
            raise RegistryError("names this machine as its token service.", where=self._registry)

    def _check(self, status: int) -> None:
        if status == 200:
            return
        if status == 404:
            raise ImageNotFound(f"the registry has no image {self._image}.", where=self._registry, fix="Was it pushed? Is the tag right?")
        if status in (401, 403):
            raise self._refused()
        why = "too many requests: wait, or sign in" if status == 429 else f"answered {status}"
        raise RegistryError(f"{why}.", where=self._registry, fix="Try again later.")

    def _refused(self) -> RegistryRefused:
        given, whose = "wants credentials", self._credentials
        fix = f"Set {USERNAME_ENV}, {PASSWORD_ENV} and {HOST_ENV}={self._registry}."
        if self._basic:
            given, fix = "does not accept these credentials", f"Set other ones in {USERNAME_ENV} and {PASSWORD_ENV}."
        elif whose is not None:
            bound = "do not say which registry they are for" if whose.host is None else f"are for {whose.host} alone"
            fix = f"Those in {USERNAME_ENV} {bound}: if they may be given to {self._registry}, set {HOST_ENV}={self._registry}."
        return RegistryRefused(f"the registry {given} for {self._image}, or there is no such image.", where=self._registry, fix=fix)


def _headers(authorization: str | None) -> dict[str, str]:
    return {"Accept": ACCEPT} | ({"Authorization": authorization} if authorization else {})


async def _read_most(answer: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body, or None where it is longer than `most` bytes."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


def _api_host(host: str) -> str:
    """The host of a registry's API, in one spelling, however somebody wrote it."""
    host = host.lower()
    return DOCKER_HUB if host in ("docker.io", "index.docker.io", DOCKER_HUB) else host.removesuffix(":443")


def _host(registry: str) -> str:
    return urlsplit(f"//{registry}").hostname or ""


# --- the stack file ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pinned:
    """One endpoint whose image was pinned. `changed` False: the file had this digest already."""

    endpoint: str
    before: str
    after: str
    tag: str
    changed: bool


async def pin(
    stack_file: Path,
    tag: str | None = None,
    *,
    endpoint: str | None = None,
    environ: Mapping[str, str] | None = None,
    session: aiohttp.ClientSession | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[Pinned, ...]:
    """Write digests into a stack file's images; what it did, endpoint by endpoint.

    `tag`: a tag (`v1.2`) of the repository that each endpoint's image is from, or a whole reference (`registry.example.com/worker:v1.2`),
    which with `endpoint` may come from another repository. None: the tag that the file has, for images that are not pinned yet. `endpoint`:
    only this one; else all of the stack (with a whole reference: all of that repository). Every tag is resolved before the file is touched.
    Raises UsageError, ImageNotFound, RegistryRefused, RegistryError.
    """
    text = _read(stack_file)
    spots = images_of(text, str(stack_file))
    if endpoint is not None:
        if all(spot.endpoint != endpoint for spot in spots):
            have = ", ".join(spot.endpoint for spot in spots) or "none"
            raise UsageError(f"has no endpoint {endpoint!r}.", where=str(stack_file), fix=f"Endpoints there: {have}.")
        spots = tuple(spot for spot in spots if spot.endpoint == endpoint)
    wanted: dict[str, Reference] = {}
    for spot in spots:
        reference = _wanted(spot, tag, alone=endpoint is not None)
        if reference is not None:
            wanted[spot.endpoint] = reference
    if not wanted:
        if tag is None:
            return ()
        raise UsageError(f"no endpoint's image is from the repository of {tag!r}.", where=str(stack_file), fix="Name the endpoint.")
    names = sorted({str(reference) for reference in wanted.values()})
    found = dict(
        zip(
            names,
            await asyncio.gather(*(resolve(name, environ=environ, session=session, timeout_s=timeout_s) for name in names)),
            strict=True,
        )
    )
    done = []
    edits: dict[tuple[int, int], tuple[Spot, Resolved]] = {}
    for spot in spots:
        if spot.endpoint not in wanted:
            continue
        resolved = found[str(wanted[spot.endpoint])]
        edits[spot.start, spot.end] = (spot, resolved)
        done.append(Pinned(spot.endpoint, spot.image, resolved.pinned, resolved.tag, spot.image != resolved.pinned))
    changed = text
    for (_start, _end), (spot, resolved) in sorted(edits.items(), reverse=True):
        changed = replace_image(changed, spot, resolved)
    if changed != text:
        _prove(text, changed, {pinned.endpoint: pinned.after for pinned in done}, str(stack_file))
        _write(stack_file, changed)
    return tuple(done)


@dataclass(frozen=True)
class Spot:
    """Where in a stack file's text an endpoint's image stands: [start, end) in characters; `style` is the quote, if there is one."""

    endpoint: str
    image: str
    start: int
    end: int
    style: str


def images_of(text: str, where: str) -> tuple[Spot, ...]:
    """The images of a stack file's endpoints. Raises UsageError when it is no stack file."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"is not YAML ({str(error).splitlines()[0]}).", where=where) from None
    except RecursionError:
        raise UsageError("is not YAML that can be read (nested too deep).", where=where) from None
    endpoints = _child(_child(root, "config"), f"{PROJECT}:endpoints")
    if not isinstance(endpoints, yaml.SequenceNode):
        raise UsageError(f"has no list {PROJECT}:endpoints.", where=where, fix="Is it a stack file? See docs/infrastructure.md.")
    found = []
    for number, node in enumerate(endpoints.value):
        name, image = _child(node, "name"), _child(node, "image")
        if not isinstance(name, yaml.ScalarNode) or not isinstance(image, yaml.ScalarNode):
            raise UsageError("must have a name and an image.", where=f"{where}: {PROJECT}:endpoints[{number}]")
        style = image.style if image.style in ("'", '"') else ""
        start, end = image.start_mark.index, image.end_mark.index
        anchor = re.match(r"([&!]\S+\s+)*", text[start:end])
        assert anchor is not None
        start += len(anchor[0])  # an anchor before the text stays
        found.append(Spot(str(name.value), str(image.value), start, end, style))
    return tuple(found)


def replace_image(text: str, spot: Spot, resolved: Resolved) -> str:
    """The text with this one scalar replaced. The tag is kept as a comment (`# tag: v1`) where the rest of the line is free for one."""
    value = f"{spot.style}{resolved.pinned}{spot.style}"
    end = text.find("\n", spot.end)
    rest = text[spot.end : len(text) if end < 0 else end]
    line = rest.rstrip("\r")
    if re.fullmatch(r"\s*(# tag: \S+)?\s*", line):
        return f"{text[: spot.start]}{value}  # tag: {resolved.tag}{rest[len(line) :]}{text[spot.end + len(rest) :]}"
    return f"{text[: spot.start]}{value}{text[spot.end :]}"


def _wanted(spot: Spot, tag: str | None, *, alone: bool) -> Reference | None:
    have = Reference.parse(spot.image)
    if tag is None:
        return None if have.digest else Reference(have.repository, have.tag or "latest")
    if "/" not in tag and ":" not in tag and "@" not in tag:
        return Reference.parse(f"{have.repository}:{tag}")
    asked = Reference.parse(tag)
    if asked.digest is not None:
        raise UsageError(f"{tag} is a digest already.", fix="Write it into the stack file, or name a tag.")
    if alone or asked.repository == have.repository:
        return Reference(asked.repository, asked.tag or "latest")
    return None


def _child(node: Any, key: str) -> Any:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if isinstance(name, yaml.ScalarNode) and name.value == key), None)


def _prove(before: str, after: str, images: Mapping[str, str], where: str) -> None:
    """The new text says the same as the old one in all but these images."""
    old = yaml.safe_load(before)
    try:
        new = yaml.safe_load(after)
    except yaml.YAMLError:
        new = None
    key = f"{PROJECT}:endpoints"
    for endpoint in (old or {}).get("config", {}).get(key, []):
        if endpoint["name"] in images:
            endpoint["image"] = images[endpoint["name"]]
    if old != new:
        raise UsageError("could not be edited without changing more than its images.", where=where, fix="Write the digest by hand.")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror}).", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text.", where=str(path)) from None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, with the file's own permissions."""
    target = path.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        draft = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode("utf-8"))
            draft.chmod(target.stat().st_mode & 0o777)
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror}).", where=str(path)) from None
