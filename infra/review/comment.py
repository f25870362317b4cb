"""infra/review: puts a report under a pull request (GitHub) or merge request (GitLab), as one comment that is updated in place.

    python -m infra.review.comment --report report.md

The comment is found again by a marker, an HTML comment in its first line. Talks to the forge's API and nothing else; needs aiohttp.

GitHub: GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_EVENT_PATH (or --number), GITHUB_API_URL where it is not github.com.
GitLab: GITLAB_TOKEN (a project access token with scope `api`: the job's own token may not write notes), CI_API_V4_URL, CI_PROJECT_ID,
CI_MERGE_REQUEST_IID. A request from a fork is skipped with one line and exit code 0: its workflow has no token, and must have none.

A forge's answers are not believed: they are read up to a size, within a time and for so many pages, no redirect is followed with the token,
and what has another shape than documented is one sentence and exit code 3.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp

from contract.errors import InfrastructureError, NightbatchError, UsageError
from contract.net import LOOPBACK, retry_after
from infra.review.changes import at, hidden
from infra.review.digest import LONGEST, clean, decoded

COMMENT_LIMIT: Final = 65_536
"""Characters that GitHub takes in a comment ("Body is too long (maximum is 65536 characters)"); GitLab takes a million."""
PER_PAGE: Final = 100
MOST_PAGES: Final = 200
MOST_MARKED: Final = 20
"""Comments with the marker that are tried: anybody may write one, and only one is ours."""
MOST_ANSWER: Final = 64 << 20
"""Bytes of an answer: a hundred of GitHub's longest comments, each of their characters escaped, are fewer."""
DEADLINE_S: Final = 900.0
"""For all of it, waits included."""
TRIES: Final = 6
LONGEST_WAIT_S: Final = 60.0
TIMEOUT: Final = aiohttp.ClientTimeout(total=30, connect=10)
RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
CUT: Final = "\n\n*This report was cut: it is longer than a comment may be. The whole of it is in the log of the run.*\n"


@dataclass(frozen=True)
class Forge:
    """Where the comments of one request are. `items`: the list's URL; an item's is `item` + its id; `write`: the method for a change."""

    name: str
    items: str
    item: str
    write: str
    headers: Mapping[str, str]
    link: str | None = None


@dataclass(frozen=True)
class Skipped:
    """Nothing is posted, and that is as it should be."""

    reason: str


class _Again(Exception):
    """The forge did not do it this time. `after_s`: what it asked to wait."""

    def __init__(self, what: str, after_s: float | None = None) -> None:
        super().__init__(what)
        self.after_s = after_s


Sleep = Callable[[float], Awaitable[None]]


def marker(key: str) -> str:
    """The first line of the comment, by which it is found again."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", key):
        raise UsageError(f"{key!r} is not a key.", where="--key", fix="Use letters, digits, dots, dashes.")
    return f"<!-- nightbatch:{key} -->"


def body_of(report: str, key: str, link: str | None = None, limit: int = COMMENT_LIMIT) -> str:
    """The comment: marker, report, where the run's log is. Never longer than `limit` characters; the report's end is what is cut."""
    head = marker(key) + "\n"
    foot = f"\n[The run that made this report]({link})\n" if link else ""
    room = limit - len(head) - len(foot)
    text = report.strip() + "\n"
    if len(text) > room:
        kept = text[: room - len(CUT) - len("\n</details>")]
        kept = kept[: kept.rfind("\n")] if "\n" in kept else kept
        opened = kept.count("<details>") > kept.count("</details>")
        text = kept + ("\n</details>" if opened else "") + CUT
    return head + text + foot


def forge_from(environ: Mapping[str, str], number: int | None = None) -> Forge | Skipped:
    """Which request this is, from what GitHub Actions or GitLab CI say of themselves. Raises UsageError naming what is missing."""
    if environ.get("GITLAB_CI") and not environ.get("GITHUB_ACTIONS"):
        return _gitlab(environ, number)
    return _github(environ, number)


def _github(environ: Mapping[str, str], number: int | None) -> Forge | Skipped:
    event: Any = {}
    if path := environ.get("GITHUB_EVENT_PATH"):
        try:
            event = decoded(Path(path).read_bytes())
        except OSError as error:
            raise UsageError(f"the event file cannot be read ({error.strerror}).", where="GITHUB_EVENT_PATH") from None
    if not isinstance(event, dict):
        raise UsageError("the event file holds no object.", where="GITHUB_EVENT_PATH")
    pull = event.get("pull_request")
    if isinstance(pull, dict):
        head, base = (at(pull, (side, "repo", "full_name")) for side in ("head", "base"))
        if not isinstance(head, str) or head != base:  # without a name, too: a fork that was deleted has none
            return Skipped("this pull request comes from a fork, whose workflow has no token and no key: nothing is posted.")
        number = number or pull.get("number")
    number = number or event.get("number")
    if number is None:
        return Skipped("this is no pull request: there is nothing to comment on.")
    request = _request(number, "GITHUB_EVENT_PATH")
    _need(environ, "GITHUB_TOKEN", "GITHUB_REPOSITORY")
    repository = environ["GITHUB_REPOSITORY"]
    if not re.fullmatch(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", repository):
        raise UsageError(f"{repository!r} is not owner/name.", where="GITHUB_REPOSITORY")
    base_url = _checked(environ.get("GITHUB_API_URL") or "https://api.github.com", "GITHUB_API_URL")
    link = None
    if environ.get("GITHUB_RUN_ID"):
        link = f"{environ.get('GITHUB_SERVER_URL') or 'https://github.com'}/{repository}/actions/runs/{environ['GITHUB_RUN_ID']}"
    return Forge(
        name="GitHub",
        items=f"{base_url}/repos/{repository}/issues/{request}/comments",
        item=f"{base_url}/repos/{repository}/issues/comments/",
        write="PATCH",
        headers={
            "Authorization": f"Bearer {environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "nightbatch",
        },
        link=link,
    )


def _gitlab(environ: Mapping[str, str], number: int | None) -> Forge | Skipped:
    if number is None and not environ.get("CI_MERGE_REQUEST_IID"):
        return Skipped("this is no merge request pipeline: there is nothing to comment on.")
    source, target = environ.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID"), environ.get("CI_MERGE_REQUEST_PROJECT_ID")
    if source and target and source != target:
        return Skipped("this merge request comes from a fork, whose pipeline has no token and no key: nothing is posted.")
    _need(environ, "GITLAB_TOKEN", "CI_API_V4_URL", "CI_PROJECT_ID")
    base_url = _checked(environ["CI_API_V4_URL"], "CI_API_V4_URL")
    request = _request(number or environ["CI_MERGE_REQUEST_IID"], "CI_MERGE_REQUEST_IID")
    notes = f"{base_url}/projects/{quote(environ['CI_PROJECT_ID'], safe='')}/merge_requests/{request}/notes"
    return Forge(
        name="GitLab",
        items=notes,
        item=notes + "/",
        write="PUT",
        headers={"PRIVATE-TOKEN": environ["GITLAB_TOKEN"], "User-Agent": "nightbatch"},
        link=environ.get("CI_JOB_URL"),
    )


def _need(environ: Mapping[str, str], *names: str) -> None:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be set in the environment.", fix="See docs/review.md.")
    odd = [name for name in names if not re.fullmatch(r"[!-~]+", environ[name])]
    if odd:
        raise UsageError(
            f"{', '.join(odd)} holds a space, a line's end or another character that it cannot have.", fix="See docs/review.md."
        )


def _request(number: Any, where: str) -> int:
    """The request's number, from wherever somebody says it."""
    if isinstance(number, bool) or not re.fullmatch(r"[1-9][0-9]{0,14}", str(number)):
        raise UsageError(f"{str(number)[:80]!r} is no number of a request.", where=where, fix="Say it with --number.")
    return int(number)


def _checked(url: str, where: str) -> str:
    """An address that a token may be sent to."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 and parts.username is None and re.fullmatch(r"[!-~]+", url) else None
    except ValueError:
        parts, host = urlsplit(""), None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)):
        raise UsageError(f"{hidden(url)!r} is no https address.", where=where)
    return url.rstrip("/")


async def post(forge: Forge, body: str, key: str, *, sleep: Sleep = asyncio.sleep, deadline_s: float = DEADLINE_S) -> str:
    """Create or update the comment; returns "created", "updated" or "unchanged". An answer that was lost is not taken for a refusal: the
    comment is looked for again before another one would be made. Raises InfrastructureError after several tries, or at the deadline."""
    proxied = urlsplit(forge.items).hostname not in LOOPBACK
    try:
        async with (
            asyncio.timeout(deadline_s),
            aiohttp.ClientSession(
                headers=dict(forge.headers), timeout=TIMEOUT, trust_env=proxied, cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
        ):
            for turn in range(1, TRIES + 1):
                try:
                    return await _upsert(session, forge, body, marker(key))
                except _Again as again:
                    if turn == TRIES:
                        raise InfrastructureError(
                            f"the comment could not be written: {again} ({TRIES} tries).", where=forge.name, fix="Run the job again."
                        ) from None
                    await sleep(min(again.after_s if again.after_s is not None else 2.0**turn, LONGEST_WAIT_S))
    except TimeoutError:
        raise InfrastructureError(
            f"the comment could not be written within {deadline_s:g} s.", where=forge.name, fix="Run the job again."
        ) from None
    raise AssertionError("unreachable")


async def _upsert(session: aiohttp.ClientSession, forge: Forge, body: str, mark: str) -> str:
    for number, text in (await _marked(session, forge, mark))[:MOST_MARKED]:
        if text.strip().replace("\r\n", "\n") == body.strip():
            return "unchanged"
        status, _, _ = await _call(session, forge.write, forge.item + str(number), {"body": body}, passing=(403, 404, 410))
        if status < 400:
            return "updated"
        # Somebody else's comment that quotes the marker, or one that was deleted meanwhile.
    _, _, made = await _call(session, "POST", forge.items, {"body": body})
    _id_of(made, forge)
    return "created"


async def _marked(session: aiohttp.ClientSession, forge: Forge, mark: str) -> list[tuple[int, str]]:
    """The comments that begin with the marker, oldest first, on all pages."""
    found: list[tuple[int, str]] = []
    seen: set[int] = set()
    for page in range(1, MOST_PAGES + 1):
        _, headers, items = await _call(session, "GET", f"{forge.items}?per_page={PER_PAGE}&page={page}", None)
        if not isinstance(items, list):
            raise InfrastructureError("the list of comments is no list.", where=forge.name)
        known = len(seen)
        for item in items:
            number = _id_of(item, forge)
            body = item.get("body")
            if number not in seen and isinstance(body, str) and body.lstrip().startswith(mark):
                found.append((number, body))
            seen.add(number)
        more = 'rel="next"' in headers.get("Link", "") or headers.get("X-Next-Page", "").isdigit()
        if not items or (not more and len(items) < PER_PAGE):
            return sorted(found)
        if len(seen) == known:
            raise InfrastructureError("its list of comments gives the same ones again and again.", where=forge.name)
    raise InfrastructureError(f"its list of comments does not end after {MOST_PAGES} pages.", where=forge.name)


def _id_of(comment: Any, forge: Forge) -> int:
    """A comment's number, which it is changed by."""
    number = comment.get("id") if isinstance(comment, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1 << 63:
        raise InfrastructureError("answered with a comment that has no number.", where=forge.name)
    return number


async def _call(
    session: aiohttp.ClientSession, method: str, url: str, payload: Any, passing: Sequence[int] = ()
) -> tuple[int, Mapping[str, str], Any]:
    where = f"{method} {urlsplit(url).path}"
    try:
        async with session.request(method, url, json=payload, allow_redirects=False) as answer:
            data = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > MOST_ANSWER:
                    raise InfrastructureError("the answer is longer than any of a forge's own.", where=where)
            text, status, headers = data.decode(errors="replace"), answer.status, answer.headers
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _Again(f"{where}: no answer ({type(error).__name__})") from None
    limited = status == 403 and ("Retry-After" in headers or headers.get("X-RateLimit-Remaining") == "0")
    if status in RETRIED or limited:
        raise _Again(f"{where}: {status}", retry_after(headers.get("Retry-After")))
    if status in passing:
        return status, headers, None
    if not 200 <= status < 300:
        said = _message(text, session.headers)
        fix = {
            401: "Is the token still valid?",
            403: "The token needs the permission to write comments (GitHub: `permissions: pull-requests: write`).",
            404: "Does the token see this repository and this request?",
        }.get(status)
        raise InfrastructureError(f"refused with {status}{f' ({said})' if said else ''}.", where=where, fix=fix)
    if not text or status == 204:
        return status, headers, None
    found = decoded(text)
    if found is None:
        raise _Again(f"{where}: the answer is not JSON")
    return status, headers, found


def _message(text: str, sent: Mapping[str, str]) -> str:
    """The forge's own word on a refusal, on one line, without the token if it says that, too."""
    found = decoded(text)
    said = found.get("message") or found.get("error") if isinstance(found, dict) else None
    if not said:
        return ""
    tokens = [value.removeprefix("Bearer ") for name, value in sent.items() if name.lower() in ("authorization", "private-token")]
    words = "".join(letter if letter.isprintable() else " " for letter in str(clean(said))[:LONGEST])
    return hidden(" ".join(words.split()), tokens)[:200]


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """The script's entry: 0 posted or skipped, 2 something is missing, 3 the forge did not take it."""
    parser = argparse.ArgumentParser(prog="python -m infra.review.comment", description="Post a report as one comment, updated in place.")
    parser.add_argument("--report", type=Path, required=True, help="the Markdown file")
    parser.add_argument("--key", default="preview", help="one comment a key (default: preview)")
    parser.add_argument("--number", type=int, help="the pull or merge request, where the event does not say it")
    asked = parser.parse_args(arguments)
    try:
        forge = forge_from(environ, asked.number)
        if isinstance(forge, Skipped):
            print(f"nightbatch: {forge.reason}")
            return 0
        try:
            report = asked.report.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"cannot be read ({error.strerror}).", where=str(asked.report)) from None
        done = asyncio.run(post(forge, body_of(report, asked.key, forge.link), asked.key))
    except NightbatchError as error:
        print(f"nightbatch: {error}", file=sys.stderr)
        return error.exit_code
    print(f"nightbatch: the comment was {done}." if done != "unchanged" else "nightbatch: the comment says this already.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
