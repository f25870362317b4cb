"""tests of infra.images: from tags to digests at a registry on this machine, and into a stack file of which nothing else changes."""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from contract.errors import UsageError
from infra import images
from infra.images import (
    HOST_ENV,
    PASSWORD_ENV,
    USERNAME_ENV,
    Credentials,
    ImageNotFound,
    Pinned,
    Reference,
    RegistryError,
    RegistryRefused,
    images_of,
    pin,
    resolve,
)

USER, PASSWORD = "robot", "hunter2-secret"
UNBOUND = {USERNAME_ENV: USER, PASSWORD_ENV: PASSWORD}
BODY = b'{"schemaVersion": 2}'


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class Registry:
    """A registry with the images that it is told of. `auth`: none, token, or basic; `fault`: a status that every manifest answers."""

    def __init__(self) -> None:
        self.images = {("team/worker", "v1"): digest("v1"), ("team/worker", "v2"): digest("v2"), ("team/worker", "latest"): digest("new")}
        self.auth = "none"
        self.realm: str | None = None
        self.challenge: str | None = None
        self.token_body: bytes | None = None
        self.fault = 0
        self.header: str | None = None
        self.no_header = False
        self.asked: list[tuple[str, str]] = []
        self.scopes: list[str] = []
        self.tokens: list[str] = []
        app = web.Application()
        app.router.add_route("*", "/v2/{name:.+}/manifests/{tag}", self.manifest)
        app.router.add_get("/token", self.token)
        self.server = TestServer(app, host="127.0.0.1")

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The environment of somebody who may read from this registry."""
        return {**UNBOUND, HOST_ENV: self.host}

    async def manifest(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.headers.get("Authorization", "")))
        assert "application/vnd.oci.image.index.v1+json" in request.headers["Accept"]
        given = request.headers.get("Authorization", "")
        if self.challenge is not None:
            return web.Response(status=401, headers={"WWW-Authenticate": self.challenge})
        if self.auth == "token" and given != "Bearer good-token":
            realm = self.realm or f"http://{self.host}/token"
            return web.Response(
                status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="here",scope="repository:x:pull"'}
            )
        if self.auth == "basic" and given != f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}":
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="here"'})
        if self.fault:
            return web.Response(status=self.fault)
        found = self.images.get((request.match_info["name"], request.match_info["tag"]))
        if found is None:
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        headers = {} if self.no_header else {"Docker-Content-Digest": self.header or found}
        return web.Response(body=BODY, headers=headers)

    async def token(self, request: web.Request) -> web.Response:
        self.scopes.append(request.query["scope"])
        self.tokens.append(request.headers.get("Authorization", ""))
        assert request.query["service"] == "here"
        given = request.headers.get("Authorization")
        if given != f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}":
            return web.Response(status=401)
        if self.token_body is not None:
            return web.Response(body=self.token_body, content_type="application/json")
        return web.json_response({"token": "good-token"})


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    found = Registry()
    await found.server.start_server()
    yield found
    await found.server.close()


# --- resolving -----------------------------------------------------------------------------------------------------------------------


async def test_a_tag_becomes_the_digest_that_it_has_now(registry: Registry) -> None:
    found = await resolve(f"{registry.host}/team/worker:v1", environ={})
    assert (found.tag, found.digest, found.pinned) == ("v1", digest("v1"), f"{registry.host}/team/worker@{digest('v1')}")
    assert registry.asked == [("HEAD", "")]
    assert (await resolve(f"{registry.host}/team/worker", environ={})).digest == digest("new")


async def test_a_private_registry_is_asked_with_a_token_for_this_repository(registry: Registry) -> None:
    registry.auth = "token"
    assert (await resolve(f"{registry.host}/team/worker:v2", environ=registry.credentials)).digest == digest("v2")
    assert registry.asked[-1] == ("HEAD", "Bearer good-token")
    assert registry.scopes == ["repository:x:pull"]


async def test_a_registry_with_plain_passwords_works_too(registry: Registry) -> None:
    registry.auth = "basic"
    assert (await resolve(f"{registry.host}/team/worker:v2", environ=registry.credentials)).digest == digest("v2")


@pytest.mark.parametrize("auth", ["token", "basic"])
async def test_missing_and_wrong_credentials_are_told_without_showing_them(auth: str, registry: Registry) -> None:
    registry.auth = auth
    with pytest.raises(RegistryRefused, match=f"wants credentials.*Set {USERNAME_ENV}, {PASSWORD_ENV} and {HOST_ENV}=127"):
        await resolve(f"{registry.host}/team/worker:v1", environ={})
    with pytest.raises(RegistryRefused, match="does not accept these credentials") as caught:
        await resolve(f"{registry.host}/team/worker:v1", environ={**registry.credentials, PASSWORD_ENV: "wrong-password"})
    assert "wrong-password" not in str(caught.value)


async def test_credentials_go_to_no_token_service_without_https(registry: Registry) -> None:
    registry.auth, registry.realm = "token", "http://elsewhere.example.com/token"
    with pytest.raises(RegistryError, match="without https"):
        await resolve(f"{registry.host}/team/worker:v1", environ=registry.credentials)


# --- registries that lie -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["token", "basic"])
@pytest.mark.parametrize("bound", [None, "registry.example.com", "docker.io", "127.0.0.1", "127.0.0.1:1"])
async def test_a_registry_that_a_stack_file_names_learns_no_password_of_another(auth: str, bound: str | None, registry: Registry) -> None:
    """Whoever may change a stack file could name a registry of their own, which only has to ask."""
    registry.auth = auth
    environ = UNBOUND | ({HOST_ENV: bound} if bound else {})
    with pytest.raises(RegistryRefused) as caught:
        await resolve(f"{registry.host}/team/worker:v1", environ=environ)
    assert f"set {HOST_ENV}={registry.host}" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert {given for _, given in registry.asked} == {""}
    assert all("Basic" not in given for given in registry.tokens)


async def test_an_open_image_of_another_registry_needs_no_change_of_the_environment(registry: Registry) -> None:
    found = await resolve(f"{registry.host}/team/worker:v1", environ={**UNBOUND, HOST_ENV: "registry.example.com"})
    assert found.digest == digest("v1")
    assert (await resolve(f"{registry.host}/team/worker:v1", environ=UNBOUND)).digest == digest("v1")
    assert {given for _, given in registry.asked} == {""}


@pytest.mark.parametrize("written", ["docker.io", "index.docker.io", "DOCKER.IO", "registry-1.docker.io", "registry-1.docker.io:443"])
def test_a_registry_is_one_however_it_is_written(written: str) -> None:
    bound = Credentials.of({**UNBOUND, HOST_ENV: written})
    assert bound is not None
    assert bound.host == Reference.parse("team/worker").registry
    assert PASSWORD not in repr(bound)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({**UNBOUND, HOST_ENV: "https://registry.example.com/"}, "is not a registry's host"),
        ({**UNBOUND, HOST_ENV: "user@registry.example.com"}, "is not a registry's host"),
        ({USERNAME_ENV: USER, HOST_ENV: "registry.example.com"}, f"{PASSWORD_ENV} must be set"),
        ({PASSWORD_ENV: PASSWORD}, f"{USERNAME_ENV} must be set"),
    ],
)
async def test_half_of_the_credentials_is_a_usage_error(environ: dict[str, str], says: str, registry: Registry) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        await resolve(f"{registry.host}/team/worker:v1", environ=environ)
    assert PASSWORD not in str(caught.value)
    assert registry.asked == []


@pytest.mark.parametrize(
    "realm",
    [
        "https://[", "https://", "https:///token", "http://[::1", "https://evil.example.com@127.0.0.1/token", "https://127.0.0.1:99999/token",
        "https://a:b:c/token", "https://a\\@b/token", "//token", "file:///etc/passwd", "token", "https://h\u00e9/token",
        "https://" + "a" * 4000,
    ],
)  # fmt: skip
async def test_a_token_service_whose_address_is_none_is_a_clear_error(realm: str, registry: Registry) -> None:
    registry.challenge = f'Bearer realm="{realm}",service="here"'
    with pytest.raises(RegistryError, match="names a token service"):
        await resolve(f"{registry.host}/team/worker:v1", environ=registry.credentials)
    assert registry.tokens == []


@pytest.mark.parametrize("challenge", ["", "Bearer", "Negotiate abc", 'Bearer service="x"', 'Bearer realm=""', "\u00e9", ", ,,"])
async def test_a_challenge_that_is_none_is_a_clear_error(challenge: str, registry: Registry) -> None:
    registry.challenge = challenge
    with pytest.raises(RegistryError, match="in a way that is not known"):
        await resolve(f"{registry.host}/team/worker:v1", environ=registry.credentials)


def test_a_remote_registry_may_not_send_the_client_to_this_machine() -> None:
    asking = images._Asking(Reference.parse("registry.example.com/worker"), "v1", None)
    for realm in ("https://127.0.0.1/token", "https://localhost/token", "https://[::1]/token", "http://127.0.0.1/token"):
        with pytest.raises(RegistryError, match="token service"):
            asking._check_realm(realm)
    asking._check_realm("https://auth.example.com:8443/token?account=x")


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"5", b"{}", b'"token"', b'{"token": 5}', b'{"token": null}', b'{"token": ""}', b'{"token": "two words"}',
     b'{"token": "a\\r\\nX-Evil: 1"}', b'{"token": "\\ud800"}', b"[" * 100_000, b'{"token": ' + b"9" * 5000 + b"}", b"\xff\xfe",
     b'{"token": "' + b"t" * 300_000 + b'"}'],
)  # fmt: skip
async def test_a_token_service_that_gives_no_token_is_a_clear_error(body: bytes, registry: Registry) -> None:
    registry.auth, registry.token_body = "token", body
    with pytest.raises(RegistryError, match="gave no token"):
        await resolve(f"{registry.host}/team/worker:v1", environ=registry.credentials)


async def test_a_token_without_end_is_not_read_to_its_end(registry: Registry) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while sent < 1 << 30:
                await answer.write(b" " * (1 << 16))
                sent += 1 << 16
        except ConnectionError:
            pass
        return answer

    app = web.Application()
    app.router.add_get("/token", endless)
    async with TestServer(app, host="127.0.0.1") as service:
        registry.challenge = f'Bearer realm="http://127.0.0.1:{service.port}/token",service="here"'
        with pytest.raises(RegistryError, match="gave no token"):
            await resolve(f"{registry.host}/team/worker:v1", environ=registry.credentials)
    assert sent < 64 << 20


async def test_a_host_that_no_name_service_takes_is_a_clear_error() -> None:
    for name in ("a..b:80/x", f"{'a' * 70}.example:1/x", "-.-/x", "127.0.0.1:99999/x"):
        with pytest.raises((RegistryError, UsageError)):
            await resolve(name, environ={}, timeout_s=5)


async def test_a_registry_that_names_no_digest_is_asked_for_the_manifest_itself(registry: Registry) -> None:
    registry.no_header = True
    found = await resolve(f"{registry.host}/team/worker:v1", environ={})
    assert found.digest == f"sha256:{hashlib.sha256(BODY).hexdigest()}"
    assert [method for method, _ in registry.asked] == ["HEAD", "GET"]


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [(404, ImageNotFound, "no image"), (403, RegistryRefused, "wants credentials"), (429, RegistryError, "too many"),
     (500, RegistryError, "answered 500"), (302, RegistryError, "answered 302")],
)  # fmt: skip
async def test_every_other_answer_is_a_clear_error(fault: int, kind: type[Exception], says: str, registry: Registry) -> None:
    registry.fault = fault
    with pytest.raises(kind, match=says):
        await resolve(f"{registry.host}/team/worker:v1", environ={})


async def test_a_digest_that_is_none_is_refused(registry: Registry) -> None:
    registry.header = "sha256:abc"
    with pytest.raises(RegistryError, match="a digest that is none"):
        await resolve(f"{registry.host}/team/worker:v1", environ={})


async def test_a_registry_that_is_not_there_or_silent_is_named(registry: Registry) -> None:
    host = registry.host
    await registry.server.close()
    with pytest.raises(RegistryError, match=f"{host}: cannot be reached"):
        await resolve(f"{host}/team/worker:v1", environ={})


@pytest.mark.parametrize(
    ("text", "registry_host", "path", "tag"),
    [
        ("worker", "registry-1.docker.io", "library/worker", None),
        ("team/worker:v1", "registry-1.docker.io", "team/worker", "v1"),
        ("docker.io/team/worker", "registry-1.docker.io", "team/worker", None),
        ("docker.io/worker", "registry-1.docker.io", "library/worker", None),
        ("localhost:5000/worker:v1", "localhost:5000", "worker", "v1"),
        ("registry.example.com/a/b/c:1.2_x-y", "registry.example.com", "a/b/c", "1.2_x-y"),
    ],
)
def test_a_reference_is_taken_apart_as_docker_does(text: str, registry_host: str, path: str, tag: str | None) -> None:
    found = Reference.parse(text)
    assert (found.registry, found.path, found.tag, found.digest) == (registry_host, path, tag, None)
    assert str(found) == text
    pinned = Reference.parse(f"{text}@{digest('x')}")
    assert (pinned.path, pinned.tag, pinned.digest) == (path, tag, digest("x"))


@pytest.mark.parametrize("text", ["", "a b", "Team/Worker", "worker@sha256:12", "worker:", "http://x/worker", "a//b", "worker:v1@v2"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the name of an image"):
        Reference.parse(text)


# --- the stack file ------------------------------------------------------------------------------------------------------------------

FILE = """\
# our stack; do not reorder
encryptionsalt: v1:abc=
config:
  nightbatch:endpoints:
    # the small one
    - name: minilm
      image:   {host}/team/worker:v1   # tag: old
      env: {{A: "1"}} # keep
    - {{name: qwen, image: "{host}/team/worker:v1", workers: {{peak: 3}}}}
    - name: web
      image: '{host}/other/web:v9' # not ours

  runpodv2:apiKey:
    secure: v1:xyz
"""


def file(folder: Path, registry: Registry, text: str = FILE) -> Path:
    path = folder / "Pulumi.dev.yaml"
    path.write_text(text.format(host=registry.host))
    return path


async def test_a_tag_is_pinned_and_nothing_else_of_the_file_changes(registry: Registry, tmp_path: Path) -> None:
    path = file(tmp_path, registry)
    before = path.read_text()
    done = await pin(path, "v2", endpoint="minilm", environ={})
    new = f"{registry.host}/team/worker@{digest('v2')}"
    assert done == (Pinned("minilm", f"{registry.host}/team/worker:v1", new, "v2", True),)
    assert path.read_text() == before.replace(f"{registry.host}/team/worker:v1   # tag: old", f"{new}  # tag: v2")


async def test_all_endpoints_of_a_repository_are_pinned_at_once(registry: Registry, tmp_path: Path) -> None:
    path = file(tmp_path, registry)
    before = path.read_text()
    done = await pin(path, f"{registry.host}/team/worker:v2", environ={})
    new = f"{registry.host}/team/worker@{digest('v2')}"
    assert [(pinned.endpoint, pinned.after) for pinned in done] == [("minilm", new), ("qwen", new)]
    assert path.read_text() == before.replace(f"{registry.host}/team/worker:v1   # tag: old", f"{new}  # tag: v2").replace(
        f'"{registry.host}/team/worker:v1"', f'"{new}"'
    )
    assert len(registry.asked) == 1  # one tag, one question


async def test_pinning_twice_changes_nothing_and_says_so(registry: Registry, tmp_path: Path) -> None:
    path = file(tmp_path, registry)
    await pin(path, "v2", endpoint="minilm", environ={})
    text, written = path.read_bytes(), path.stat().st_mtime_ns
    (again,) = await pin(path, "v2", endpoint="minilm", environ={})
    assert not again.changed
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (text, written)


async def test_without_a_tag_what_is_not_pinned_yet_is_pinned_by_its_own(registry: Registry, tmp_path: Path) -> None:
    registry.images["other/web", "v9"] = digest("v9")
    path = file(tmp_path, registry)
    await pin(path, "v2", endpoint="qwen", environ={})
    done = await pin(path, environ={})
    assert [(pinned.endpoint, pinned.tag) for pinned in done] == [("minilm", "v1"), ("web", "v9")]
    assert f"'{registry.host}/other/web@{digest('v9')}' # not ours" in path.read_text()
    assert await pin(path, environ={}) == ()


async def test_another_repository_needs_the_endpoints_name(registry: Registry, tmp_path: Path) -> None:
    registry.images["new/worker", "v1"] = digest("n")
    path = file(tmp_path, registry)
    with pytest.raises(UsageError, match="no endpoint's image is from the repository"):
        await pin(path, f"{registry.host}/new/worker:v1", environ={})
    (done,) = await pin(path, f"{registry.host}/new/worker:v1", endpoint="web", environ={})
    assert done.after == f"{registry.host}/new/worker@{digest('n')}"


async def test_one_tag_that_is_missing_leaves_the_file_as_it_was(registry: Registry, tmp_path: Path) -> None:
    path = file(tmp_path, registry)
    before = path.read_bytes()
    with pytest.raises(ImageNotFound, match=r"no image 127\.0\.0\.1:\d+/other/web:v2"):
        await pin(path, "v2", environ={})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


async def test_line_ends_and_permissions_stay(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    text = FILE.format(host=registry.host).replace("\n", "\r\n")
    path.write_bytes(text.encode())
    path.chmod(0o640)
    await pin(path, "v2", endpoint="minilm", environ={})
    after = path.read_bytes()
    assert after.count(b"\r\n") == after.count(b"\n") == text.count("\n")
    assert path.stat().st_mode & 0o777 == 0o640


async def test_an_image_that_two_endpoints_share_by_an_alias_is_changed_for_both_or_not_at_all(registry: Registry, tmp_path: Path) -> None:
    text = "config:\n  nightbatch:endpoints:\n    - {{name: a, image: &it {host}/team/worker:v1}}\n    - {{name: b, image: *it}}\n"
    path = file(tmp_path, registry, text)
    before = path.read_text()
    with pytest.raises(UsageError, match="without changing more than its images"):
        await pin(path, "v2", endpoint="a", environ={})
    assert path.read_text() == before
    assert len(await pin(path, "v2", environ={})) == 2
    assert path.read_text() == before.replace(":v1", f"@{digest('v2')}")


@pytest.mark.parametrize(
    "text",
    [
        "config:\n  nightbatch:endpoints:\n    - image: >-\n        {host}/team/worker:v1\n      name: a\n",
        "config:\n  nightbatch:endpoints:\n    - name: a\n      image: |-\n        {host}/team/worker:v1\n",
        "config:\n  nightbatch:endpoints: [{{name: a, image: {host}/team/worker:v1}}]",
        "config:\n  nightbatch:endpoints:\n    - name: a\n      image: {host}/team/worker:v1",
        "config:\n  nightbatch:endpoints:\n    - image:\n        {host}/team/worker:v1\n      name: a\n",
        "config:\n  nightbatch:endpoints:\n    - {{? name : a, ? image : !!str {host}/team/worker:v1 }}\n",
    ],
)
async def test_however_the_image_is_written_the_rest_says_the_same_or_the_file_stays(text: str, registry: Registry, tmp_path: Path) -> None:
    path = file(tmp_path, registry, text)
    before = path.read_text()
    try:
        await pin(path, "v2", environ={})
    except UsageError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "without changing more than its images" in refused
        assert path.read_text() == before
    else:
        image = f"{registry.host}/team/worker@{digest('v2')}"
        assert yaml.safe_load(path.read_text()) == {"config": {"nightbatch:endpoints": [{"name": "a", "image": image}]}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("config: [", "is not YAML"),
        ("config: {}\n", "has no list nightbatch:endpoints"),
        ("config: {nightbatch:endpoints: {secure: x}}\n", "has no list nightbatch:endpoints"),
        ("config: {nightbatch:endpoints: [{name: a}]}\n", r"endpoints\[0\]: must have a name and an image"),
        ("", "has no list"),
    ],
)
async def test_what_is_no_stack_file_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        await pin(path, "v1", environ={})


async def test_a_missing_file_endpoint_or_a_digest_instead_of_a_tag_is_named(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        await pin(tmp_path / "none.yaml", "v1", environ={})
    path = file(tmp_path, registry)
    with pytest.raises(UsageError, match=r"has no endpoint 'mini'.*minilm, qwen, web"):
        await pin(path, "v1", endpoint="mini", environ={})
    with pytest.raises(UsageError, match="is a digest already"):
        await pin(path, f"{registry.host}/team/worker@{digest('x')}", environ={})


async def test_a_folder_that_cannot_be_written_is_named(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(tmp_path, registry)
    before = path.read_bytes()

    def refused(**_: Any) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with pytest.raises(UsageError, match=r"cannot be written .Permission denied"):
        await pin(path, "v2", endpoint="minilm", environ={})
    assert path.read_bytes() == before


def test_images_are_found_where_they_stand() -> None:
    text = FILE.format(host="h")
    found: Any = images_of(text, "f")
    assert [(spot.endpoint, text[spot.start : spot.end]) for spot in found] == [
        ("minilm", "h/team/worker:v1"), ("qwen", '"h/team/worker:v1"'), ("web", "'h/other/web:v9'"),
    ]  # fmt: skip
