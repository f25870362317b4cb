"""infra/review: puts a report under a pull request (GitHub) or merge request (GitLab), as one comment that is updated in place.

    python -m infra.review.comment --report report.md

The comment is found again by a marker, an HTML comment in its first line. Talks to the forge's API and nothing else; needs aiohttp.

GitHub: GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_EVENT_PATH (or --number), GITHUB_API_URL where it is not github.com.
GitLab: GITLAB_TOKEN (a project access token with scope `api`: the job's own token may not write notes), CI_API_V4_URL, CI_PROJECT_ID,
CI_MERGE_REQUEST_IID. A request from a fork is skipped with one line and exit code 0: its workflow has no token, and must have none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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
from contract.net import LOOPBACK

COMMENT_LIMIT: Final = 65_536
"""Characters that GitHub takes in a comment ("Body is too long (maximum is 65536 characters)"); GitLab takes a million."""
PER_PAGE: Final = 100
MOST_PAGES: Final = 200
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
            event = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"the event file cannot be read ({error}).", where="GITHUB_EVENT_PATH") from None
    if not isinstance(event, dict):
        raise UsageError("the event file holds no object.", where="GITHUB_EVENT_PATH")
    pull = event.get("pull_request")
    if isinstance(pull, dict):
        head, base = ((pull.get(side) or {}).get("repo") or {} for side in ("head", "base"))
        if head.get("full_name") != base.get("full_name"):
            return Skipped("this pull request comes from a fork, whose workflow has no token and no key: nothing is posted.")
        number = number or pull.get("number")
    number = number or event.get("number")
    if number is None:
        return Skipped("this is no pull request: there is nothing to comment on.")
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
        items=f"{base_url}/repos/{repository}/issues/{int(number)}/comments",
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
    request = int(number or environ["CI_MERGE_REQUEST_IID"])
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


def _checked(url: str, where: str) -> str:
    """An address that a token may be sent to."""
    parts = urlsplit(url)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)):
        raise UsageError(f"{url!r} is no https address.", where=where)
    return url.rstrip("/")


async def post(forge: Forge, body: str, key: str, *, sleep: Sleep = asyncio.sleep) -> str:
    """Create or update the comment; returns "created", "updated" or "unchanged". An answer that was lost is not taken for a refusal: the
    comment is looked for again before another one would be made. Raises InfrastructureError after several tries."""
    async with aiohttp.ClientSession(headers=dict(forge.headers), timeout=TIMEOUT, trust_env=True) as session:
        for turn in range(1, TRIES + 1):
            try:
                return await _upsert(session, forge, body, marker(key))
            except _Again as again:
                if turn == TRIES:
                    raise InfrastructureError(
                        f"the comment could not be written: {again} ({TRIES} tries).", where=forge.name, fix="Run the job again."
                    ) from None
                await sleep(min(again.after_s if again.after_s is not None else 2.0**turn, LONGEST_WAIT_S))
    raise AssertionError("unreachable")


async def _upsert(session: aiohttp.ClientSession, forge: Forge, body: str, mark: str) -> str:
    for number, text in await _marked(session, forge, mark):
        if text.strip().replace("\r\n", "\n") == body.strip():
            return "unchanged"
        status, _, _ = await _call(session, forge.write, forge.item + str(number), {"body": body}, passing=(403, 404, 410))
        if status < 400:
            return "updated"
        # Somebody else's comment that quotes the marker, or one that was deleted meanwhile.
    await _call(session, "POST", forge.items, {"body": body})
    return "created"


async def _marked(session: aiohttp.ClientSession, forge: Forge, mark: str) -> list[tuple[int, str]]:
    """The comments that begin with the marker, oldest first, on all pages."""
    found: list[tuple[int, str]] = []
    for page in range(1, MOST_PAGES + 1):
        _, headers, items = await _call(session, "GET", f"{forge.items}?per_page={PER_PAGE}&page={page}", None)
        if not isinstance(items, list):
            raise InfrastructureError("the list of comments is no list.", where=forge.name)
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("body"), str) and item["body"].lstrip().startswith(mark):
                found.append((int(item["id"]), item["body"]))
        more = 'rel="next"' in headers.get("Link", "") or headers.get("X-Next-Page", "").isdigit()
        if not items or (not more and len(items) < PER_PAGE):
            return sorted(found)
    return sorted(found)


async def _call(
    session: aiohttp.ClientSession, method: str, url: str, payload: Any, passing: Sequence[int] = ()
) -> tuple[int, Mapping[str, str], Any]:
    where = f"{method} {urlsplit(url).path}"
    try:
        async with session.request(method, url, json=payload, allow_redirects=False) as answer:
            text = await answer.text(errors="replace")
            status, headers = answer.status, answer.headers
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _Again(f"{where}: no answer ({type(error).__name__})") from None
    limited = status == 403 and ("Retry-After" in headers or headers.get("X-RateLimit-Remaining") == "0")
    if status in RETRIED or limited:
        raise _Again(f"{where}: {status}", _seconds(headers.get("Retry-After")))
    if status in passing:
        return status, headers, None
    if not 200 <= status < 300:
        said = _message(text)
        fix = {
            401: "Is the token still valid?",
            403: "The token needs the permission to write comments (GitHub: `permissions: pull-requests: write`).",
            404: "Does the token see this repository and this request?",
        }.get(status)
        raise InfrastructureError(f"refused with {status}{f' ({said})' if said else ''}.", where=where, fix=fix)
    try:
        return status, headers, json.loads(text) if text else None
    except ValueError:
        raise _Again(f"{where}: the answer is not JSON") from None


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None


def _message(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    said = found.get("message") or found.get("error") if isinstance(found, dict) else None
    return str(said)[:200] if said else ""


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
            report = asked.report.read_text(encoding="utf-8")
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
