"""The comment under a pull request, against stand-ins of GitHub's and GitLab's APIs on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from contract.errors import InfrastructureError, UsageError
from infra.review import comment
from infra.review.comment import COMMENT_LIMIT, Forge, Skipped, body_of, forge_from, main, post

TOKEN = "ghs_" + "t" * 36
MARK = "<!-- nightbatch:preview -->"


@dataclass
class Forgery:
    """A forge: comments in pages of at most `per_page`, and answers that are given instead of doing what was asked, one a request."""

    comments: list[dict[str, Any]] = field(default_factory=list)
    per_page: int = 100
    links: bool = True
    instead: dict[str, list[Callable[[], web.Response]]] = field(default_factory=dict)
    lost: int = 0
    """POSTs that are carried out but answered with 502."""
    foreign: set[int] = field(default_factory=set)
    """Comments that this token may not change."""
    calls: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    base: str = ""

    def app(self) -> web.Application:
        app = web.Application()
        github = "/repos/acme/batches/issues"
        app.router.add_get(f"{github}/7/comments", self.list)
        app.router.add_post(f"{github}/7/comments", self.create)
        app.router.add_patch(f"{github}/comments/{{id}}", self.change)
        gitlab = "/projects/42/merge_requests/7/notes"
        app.router.add_get(gitlab, self.list)
        app.router.add_post(gitlab, self.create)
        app.router.add_put(f"{gitlab}/{{id}}", self.change)
        return app

    def _first(self, request: web.Request) -> web.Response | None:
        self.calls.append(request.method)
        self.tokens.add(request.headers.get("Authorization") or request.headers.get("PRIVATE-TOKEN") or "")
        waiting = self.instead.get(request.method)
        return waiting.pop(0)() if waiting else None

    async def list(self, request: web.Request) -> web.Response:
        if (answer := self._first(request)) is not None:
            return answer
        size = min(int(request.query["per_page"]), self.per_page)
        page = int(request.query["page"])
        shown = self.comments[(page - 1) * size : page * size]
        more = page * size < len(self.comments)
        headers = {"Link": f'<{self.base}{request.path}?page={page + 1}>; rel="next"'} if more and self.links else {}
        return web.json_response(shown, headers=headers)

    async def create(self, request: web.Request) -> web.Response:
        if (answer := self._first(request)) is not None:
            return answer
        found = {"id": len(self.comments) + 1, "body": (await request.json())["body"]}
        self.comments.append(found)
        if self.lost:
            self.lost -= 1
            return web.Response(status=502, text="<html>bad gateway</html>")
        return web.json_response(found, status=201)

    async def change(self, request: web.Request) -> web.Response:
        if (answer := self._first(request)) is not None:
            return answer
        number = int(request.match_info["id"])
        if number in self.foreign:
            return web.json_response({"message": "Forbidden"}, status=403)
        found = next((one for one in self.comments if one["id"] == number), None)
        if found is None:
            return web.json_response({"message": "Not Found"}, status=404)
        found["body"] = (await request.json())["body"]
        return web.json_response(found)


@pytest.fixture
async def forgery(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Forgery]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    found = Forgery()
    async with TestServer(found.app()) as server:
        found.base = f"http://127.0.0.1:{server.port}"
        yield found


def github(forgery: Forgery, folder: Path, *, fork: bool = False, **more: str) -> dict[str, str]:
    """What a workflow of a pull request has in its environment."""
    event = folder / "event.json"
    repos = {
        "head": {"repo": {"full_name": "stranger/batches" if fork else "acme/batches"}},
        "base": {"repo": {"full_name": "acme/batches"}},
    }
    event.write_text(json.dumps({"number": 7, "pull_request": {"number": 7, **repos}}))
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_TOKEN": TOKEN,
        "GITHUB_REPOSITORY": "acme/batches",
        "GITHUB_API_URL": forgery.base,
        "GITHUB_EVENT_PATH": str(event),
        **more,
    }


def gitlab(forgery: Forgery, **more: str) -> dict[str, str]:
    return {
        "GITLAB_CI": "true",
        "GITLAB_TOKEN": "glpat-" + "t" * 20,
        "CI_API_V4_URL": forgery.base,
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "7",
        **more,
    }


class Slept:
    """Sleeps that take no time and are remembered."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.times.append(seconds)


async def posted(environ: dict[str, str], report: str = "## Report", sleep: Slept | None = None) -> str:
    forge = forge_from(environ)
    assert isinstance(forge, Forge)
    return await post(forge, body_of(report, "preview", forge.link), "preview", sleep=sleep or Slept())


async def test_the_first_report_makes_a_comment_and_the_next_one_updates_it(forgery: Forgery, tmp_path: Path) -> None:
    environ = github(forgery, tmp_path)
    assert await posted(environ, "one") == "created"
    assert await posted(environ, "two") == "updated"
    assert await posted(environ, "two") == "unchanged"
    (only,) = forgery.comments
    assert only["body"].splitlines()[0] == MARK
    assert "two" in only["body"]
    assert "one" not in only["body"]
    assert forgery.tokens == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("links", [True, False])
async def test_the_comment_is_found_beyond_the_first_page(forgery: Forgery, tmp_path: Path, links: bool) -> None:
    forgery.links = links
    forgery.comments = [{"id": n, "body": f"talk {n}"} for n in range(1, 251)]
    forgery.comments.append({"id": 251, "body": f"{MARK}\nold"})
    assert await posted(github(forgery, tmp_path), "new") == "updated"
    assert len(forgery.comments) == 251
    assert "new" in forgery.comments[-1]["body"]


async def test_a_server_with_smaller_pages_is_read_to_its_end(forgery: Forgery, tmp_path: Path) -> None:
    forgery.per_page = 30
    forgery.comments = [{"id": n, "body": "talk"} for n in range(1, 71)] + [{"id": 71, "body": f"{MARK}\nold"}]
    assert await posted(github(forgery, tmp_path)) == "updated"


async def test_a_comment_that_only_quotes_the_marker_is_left_alone(forgery: Forgery, tmp_path: Path) -> None:
    forgery.comments = [{"id": 1, "body": f"look: `{MARK}`"}]
    assert await posted(github(forgery, tmp_path)) == "created"
    assert forgery.comments[0]["body"] == f"look: `{MARK}`"


async def test_somebody_elses_comment_with_the_marker_does_not_stop_the_report(forgery: Forgery, tmp_path: Path) -> None:
    forgery.comments = [{"id": 1, "body": f"{MARK}\nforged"}]
    forgery.foreign = {1}
    assert await posted(github(forgery, tmp_path)) == "created"
    assert await posted(github(forgery, tmp_path), "later") == "updated"
    assert [one["id"] for one in forgery.comments] == [1, 2]


async def test_a_comment_that_was_deleted_meanwhile_is_made_anew(forgery: Forgery, tmp_path: Path) -> None:
    forgery.comments = [{"id": 1, "body": f"{MARK}\nold"}]
    forgery.instead = {"PATCH": [lambda: web.json_response({"message": "Not Found"}, status=404)]}
    assert await posted(github(forgery, tmp_path)) == "created"


async def test_502_and_429_are_tried_again_and_retry_after_is_kept(forgery: Forgery, tmp_path: Path) -> None:
    forgery.instead = {
        "GET": [lambda: web.Response(status=502), lambda: web.Response(status=429, headers={"Retry-After": "17"})],
        "POST": [lambda: web.json_response({"message": "secondary rate limit"}, status=403, headers={"Retry-After": "3"})],
    }
    slept = Slept()
    assert await posted(github(forgery, tmp_path), sleep=slept) == "created"
    assert slept.times[1:] == [17.0, 3.0]
    assert len(forgery.comments) == 1


async def test_a_comment_whose_answer_was_lost_is_not_made_twice(forgery: Forgery, tmp_path: Path) -> None:
    forgery.lost = 1
    assert await posted(github(forgery, tmp_path)) == "unchanged"
    assert len(forgery.comments) == 1


async def test_a_forge_that_stays_down_is_an_infrastructure_error_without_the_token(forgery: Forgery, tmp_path: Path) -> None:
    forgery.instead = {"GET": [lambda: web.Response(status=503)] * 50}
    slept = Slept()
    with pytest.raises(InfrastructureError) as caught:
        await posted(github(forgery, tmp_path), sleep=slept)
    assert "503" in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert len(slept.times) == comment.TRIES - 1


async def test_a_token_without_the_permission_says_which_one(forgery: Forgery, tmp_path: Path) -> None:
    forgery.instead = {"POST": [lambda: web.json_response({"message": "Resource not accessible by integration"}, status=403)]}
    with pytest.raises(InfrastructureError, match="pull-requests: write"):
        await posted(github(forgery, tmp_path))
    assert forgery.calls == ["GET", "POST"]


async def test_no_redirect_is_followed_with_the_token(forgery: Forgery, tmp_path: Path) -> None:
    forgery.instead = {"GET": [lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"})]}
    with pytest.raises(InfrastructureError, match="302"):
        await posted(github(forgery, tmp_path))


async def test_a_gitlab_note_is_made_found_and_updated(forgery: Forgery) -> None:
    forgery.comments = [{"id": n, "body": "talk"} for n in range(1, 131)]
    assert await posted(gitlab(forgery), "one") == "created"
    assert await posted(gitlab(forgery), "two") == "updated"
    assert len(forgery.comments) == 131
    assert "PUT" in forgery.calls


async def test_the_script_posts_a_file(forgery: Forgery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.md").write_text("## Report")
    environ = github(forgery, tmp_path, GITHUB_RUN_ID="99")
    code = await asyncio.to_thread(main, ["--report", str(tmp_path / "report.md")], environ)
    assert code == 0
    assert "created" in capsys.readouterr().out
    assert "https://github.com/acme/batches/actions/runs/99" in forgery.comments[0]["body"]


def test_a_fork_is_skipped_with_a_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = github(Forgery(), tmp_path, fork=True)
    del environ["GITHUB_TOKEN"]
    assert main(["--report", "nowhere.md"], environ) == 0
    assert "fork" in capsys.readouterr().out
    found = forge_from(gitlab(Forgery(), CI_MERGE_REQUEST_SOURCE_PROJECT_ID="9", CI_MERGE_REQUEST_PROJECT_ID="42"))
    assert isinstance(found, Skipped)


def test_a_fork_that_was_deleted_is_a_fork(tmp_path: Path) -> None:
    environ = github(Forgery(), tmp_path)
    event = {"pull_request": {"number": 7, "head": {"repo": None}, "base": {"repo": {"full_name": "acme/batches"}}}}
    (tmp_path / "event.json").write_text(json.dumps(event))
    assert isinstance(forge_from(environ), Skipped)


def test_a_push_has_nothing_to_comment_on(tmp_path: Path) -> None:
    environ = github(Forgery(), tmp_path)
    (tmp_path / "event.json").write_text(json.dumps({"ref": "refs/heads/main"}))
    assert isinstance(forge_from(environ), Skipped)
    assert isinstance(forge_from({"GITLAB_CI": "true"}), Skipped)


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = github(Forgery(), tmp_path)
    del environ["GITHUB_TOKEN"]
    assert main(["--report", "nowhere.md"], environ) == 2
    assert "GITHUB_TOKEN" in capsys.readouterr().err
    with pytest.raises(UsageError, match="https"):
        forge_from(github(Forgery(base="http://example.com"), tmp_path))
    assert main(["--report", str(tmp_path / "none.md")], github(Forgery(base="https://api.example.com"), tmp_path)) == 2


def test_a_report_that_is_too_long_is_cut_at_a_line_and_closed() -> None:
    report = "## Report\n\n<details><summary>x</summary>\n\n" + "| a row of the table |\n" * 5_000 + "\n</details>\n"
    body = body_of(report, "preview", "https://example.com/run")
    assert len(body) <= COMMENT_LIMIT
    assert body.count("<details>") == body.count("</details>") == 1
    assert "was cut" in body
    assert "https://example.com/run" in body
    assert body.splitlines()[0] == MARK


def test_a_key_may_not_end_the_marker() -> None:
    with pytest.raises(UsageError):
        comment.marker("x --> <b>")
