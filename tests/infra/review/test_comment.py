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


# --- forges that lie -----------------------------------------------------------------------------------------------------------------


def answering(body: bytes | str, status: int = 200, **headers: str) -> Callable[[], web.Response]:
    data = body.encode() if isinstance(body, str) else body
    return lambda: web.Response(body=data, status=status, content_type="application/json", headers=headers)


async def refused(environ: dict[str, str], capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the script says where it ends with 3: one line, without the token."""
    report = folder / "report.md"
    report.write_text("## Report")

    async def at_once(seconds: float) -> None:
        pass

    real = comment.post
    monkeypatch.setattr(comment, "post", lambda forge, body, key: real(forge, body, key, sleep=at_once))
    assert await asyncio.to_thread(main, ["--report", str(report)], environ) == 3
    said = capsys.readouterr().err
    assert said.startswith("nightbatch: ")
    assert said.count("\n") == 1
    assert said[:-1].isprintable()
    assert "Traceback" not in said
    assert TOKEN not in said
    return said


DEEP = "[" * 200_000
HUGE = '[{"id": ' + "9" * 6_000 + "}]"
LISTS = [
    ("", "is no list"), ("null", "not JSON"), ("{}", "is no list"), ('"comments"', "is no list"), ("5", "is no list"), ("[5]", "no number"),
    ("[null]", "no number"), ("[[]]", "no number"), ('[{"body": "x"}]', "no number"), ('[{"id": "1"}]', "no number"),
    ('[{"id": null}]', "no number"), ('[{"id": true}]', "no number"), ('[{"id": -1}]', "no number"), ('[{"id": 1.5}]', "no number"),
    ('[{"id": 1e400}]', "no number"), ('[{"id": NaN}]', "no number"), (HUGE, "not JSON"), (DEEP, "not JSON"),
    (DEEP.replace("[", '{"a":'), "not JSON"),
    (f'[{{"id": {1 << 70}}}]', "no number"), ("<html>welcome</html>", "not JSON"), (b"\xff\xfe\x00", "not JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "said"), LISTS)
async def test_a_list_of_comments_that_is_none_ends_with_3_and_writes_nothing(
    forgery: Forgery, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, body: bytes | str, said: str
) -> None:
    forgery.instead = {"GET": [answering(body)] * comment.TRIES}
    assert said in await refused(github(forgery, tmp_path), capsys, tmp_path, monkeypatch)
    assert set(forgery.calls) == {"GET"}


async def test_comments_with_odd_bodies_are_somebody_elses(forgery: Forgery, tmp_path: Path) -> None:
    odd = '[{"id": 1}, {"id": 2, "body": null}, {"id": 3, "body": ["' + MARK + '"]}, {"id": 4, "body": "\\ud800\\u0000"}]'
    forgery.instead = {"GET": [answering(odd)]}
    assert await posted(github(forgery, tmp_path)) == "created"


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("body", ["", "[]", "{}", '{"id": "x"}', "5"])
async def test_a_comment_without_a_number_was_not_made(
    forgery: Forgery, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, method: str, body: str
) -> None:
    forgery.instead = {method: [answering(body)]}
    if method == "PATCH":
        forgery.comments = [{"id": 1, "body": f"{MARK}\nold"}]
        assert await posted(github(forgery, tmp_path)) == "updated"  # its status says it
    else:
        assert "no number" in await refused(github(forgery, tmp_path), capsys, tmp_path, monkeypatch)


@pytest.mark.parametrize("same", [True, False])
async def test_pages_without_end_are_not_read_for_ever(
    forgery: Forgery, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    pages = 0

    def page() -> web.Response:
        nonlocal pages
        pages += 1
        first = 1 if same else pages * 100
        return web.json_response([{"id": first + n, "body": "talk"} for n in range(100)], headers={"Link": '<x>; rel="next"'})

    forgery.instead = {"GET": [page] * 1_000}
    monkeypatch.setattr(comment, "MOST_PAGES", 20)
    said = await refused(github(forgery, tmp_path), capsys, tmp_path, monkeypatch)
    assert ("again and again" if same else "does not end after 20 pages") in said
    assert pages == (2 if same else 20)


async def test_no_more_than_a_few_forged_markers_are_tried(forgery: Forgery, tmp_path: Path) -> None:
    """Anybody may write comments that begin with the marker."""
    forgery.comments = [{"id": n, "body": f"{MARK}\nforged"} for n in range(1, 101)]
    forgery.foreign = set(range(1, 101))
    assert await posted(github(forgery, tmp_path)) == "created"
    assert forgery.calls.count("PATCH") == comment.MOST_MARKED


async def test_an_answer_without_end_is_not_read_to_its_end(
    forgery: Forgery, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comment, "MOST_ANSWER", 1 << 20)
    forgery.instead = {"GET": [answering(b"[" + b" " * (8 << 20))]}
    assert "longer than any" in await refused(github(forgery, tmp_path), capsys, tmp_path, monkeypatch)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_redirect_to_another_host_learns_no_token(
    forgery: Forgery,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    method: str,
) -> None:
    met: list[str] = []

    async def stranger(request: web.Request) -> web.Response:
        met.append(request.headers.get("Authorization", ""))
        return web.json_response([])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stranger)
    async with TestServer(app, host="127.0.0.1") as other:
        forgery.instead = {method: [answering("", status, Location=f"http://localhost:{other.port}/x")]}
        assert str(status) in await refused(github(forgery, tmp_path), capsys, tmp_path, monkeypatch)
    assert met == []


@pytest.mark.parametrize(
    "message",
    ['{"message": "no: ' + TOKEN + '"}', '{"message": "two\\nlines\\u001b[2J"}', '{"message": {"deep": ' + "[" * 100 + "]" * 100 + "}}",
     '{"message": "' + "x" * 100_000 + '"}', '{"message": "\\ud800"}', DEEP, "[]", '{"error": 5}'],
)  # fmt: skip
async def test_a_refusal_is_one_line_whatever_the_forge_says_in_it(
    forgery: Forgery, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    forgery.instead = {"GET": [answering(message, 422)]}
    said = await refused(github(forgery, tmp_path), capsys, tmp_path, monkeypatch)
    assert "refused with 422" in said
    assert len(said) < 500


async def test_waits_and_answers_together_have_a_deadline(forgery: Forgery, tmp_path: Path) -> None:
    forgery.instead = {"GET": [lambda: web.Response(status=503, headers={"Retry-After": "1e999"})] * 50}
    forge = forge_from(github(forgery, tmp_path))
    assert isinstance(forge, Forge)
    with pytest.raises(InfrastructureError, match=r"within 0\.2 s"):
        await post(forge, body_of("x", "preview"), "preview", deadline_s=0.2)


@pytest.mark.parametrize("value", ["nan", "-5", "1e999", "soon", "Thu, 99 Foo", "\u0665"])
async def test_a_retry_after_that_is_none_is_a_wait_that_ends(forgery: Forgery, tmp_path: Path, value: str) -> None:
    forgery.instead = {"GET": [lambda: web.Response(status=429, headers={"Retry-After": value})]}
    slept = Slept()
    assert await posted(github(forgery, tmp_path), sleep=slept) == "created"
    assert all(0 <= seconds <= comment.LONGEST_WAIT_S for seconds in slept.times)


@pytest.mark.parametrize("event", ["[" * 100_000, "", "\x00", "5", "null"])
def test_an_event_file_that_is_none_is_a_usage_error(tmp_path: Path, event: str, capsys: pytest.CaptureFixture[str]) -> None:
    environ = github(Forgery(base="https://api.example.com"), tmp_path)
    (tmp_path / "event.json").write_text(event)
    assert main(["--report", "x"], environ) == 2
    assert "GITHUB_EVENT_PATH" in capsys.readouterr().err


@pytest.mark.parametrize(
    "pull", [{}, {"head": 5}, {"head": []}, {"head": {"repo": "x"}, "base": {"repo": "x"}}, {"head": {"repo": {"full_name": 5}}}]
)
def test_a_pull_request_that_does_not_say_where_it_is_from_is_taken_for_a_forks(tmp_path: Path, pull: Any) -> None:
    environ = github(Forgery(base="https://api.example.com"), tmp_path)
    (tmp_path / "event.json").write_text(json.dumps({"number": 7, "pull_request": pull}))
    assert isinstance(forge_from(environ), Skipped)


@pytest.mark.parametrize("number", ["x", "7; rm", "-7", "1" * 40, "\u0667"])
def test_a_number_that_is_none_is_a_usage_error(tmp_path: Path, number: str) -> None:
    with pytest.raises(UsageError, match="is no number of a request"):
        forge_from(gitlab(Forgery(base="https://api.example.com"), CI_MERGE_REQUEST_IID=number))
    environ = github(Forgery(base="https://api.example.com"), tmp_path)
    (tmp_path / "event.json").write_text(json.dumps({"number": number}))
    with pytest.raises(UsageError, match="is no number of a request"):
        forge_from(environ)


@pytest.mark.parametrize("url", ["https://[", "https://u:secret-pass@h/x", "https://h:99999/", "ftp://h", "https://a b/", "https://"])
def test_an_address_that_is_none_is_a_usage_error_without_what_is_secret_in_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="is no https address") as caught:
        forge_from(github(Forgery(base=url), tmp_path))
    assert "secret-pass" not in str(caught.value)


def test_a_token_with_a_lines_end_is_a_usage_error_that_does_not_show_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="GITHUB_TOKEN holds") as caught:
        forge_from({**github(Forgery(base="https://api.example.com"), tmp_path), "GITHUB_TOKEN": TOKEN + "\nX: 1"})
    assert TOKEN not in str(caught.value)


async def test_a_report_that_is_no_utf8_is_posted_all_the_same(forgery: Forgery, tmp_path: Path) -> None:
    (tmp_path / "report.md").write_bytes(b"## Report \xff\xfe")
    assert await asyncio.to_thread(main, ["--report", str(tmp_path / "report.md")], github(forgery, tmp_path)) == 0
    assert "## Report" in forgery.comments[0]["body"]
