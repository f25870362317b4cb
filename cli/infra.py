"""cli: `nightbatch preview` and `nightbatch drift`: run the Pulumi engine, print what it comes to. Calls infra.review."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output import emit, say
from cli.policy import program, session

if TYPE_CHECKING:
    from infra.review.engine import Project

KEY = "RUNPOD_API_KEY"


def project_here(environ: Mapping[str, str] = os.environ) -> Project:
    """The project's folder, and the environment that the engine runs in."""
    from infra.review import engine

    needs_pulumi()
    return engine.Project(engine.project_folder(environ), engine.pulumi_env(environ))


def needs_pulumi() -> None:
    """Refuse in one sentence where this Python, which Pulumi would run the program with, has no `pulumi`: it only submits."""
    from contract.errors import UsageError

    if importlib.util.find_spec("pulumi") is None:
        raise UsageError(
            "this installation only submits: it has no Python package `pulumi` to run the stack's program with.",
            fix=f"In a clone: NIGHTBATCH_ENV=client {program()} … once more. Else: pip install 'nightbatch[infra]'.",
        )


def preview(
    stacks: Sequence[str],
    *,
    out: Path | None = None,
    commit: str | None = None,
    refresh: bool | None = None,
    allow_destructive: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Preview the stacks (all that have a file, but `local`), and write one report. `refresh`: look for drift; unless said, with a key."""
    from contract.errors import UsageError
    from infra.review import preview as review
    from infra.review import previews

    if out is not None and (out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK)):
        raise UsageError("no report can be written there.", where=f"--out {out}", fix="Name a file in a folder that exists.")
    project = project_here(environ)
    key = environ.get(KEY)
    asked = previews.Asked(
        tuple(dict.fromkeys(stacks)) or previews.default_stacks(project.folder), refresh=bool(key) if refresh is None else refresh
    )
    found = previews.preview_all(project, asked, on_done=lambda stack: say(f"previewed {stack}"))
    if key:
        found = previews.with_nights(found, asyncio.run(previews.billed_nights(environ.get("RUNPOD_API_BASE_URL"), key)))
    reports = [review.understood(one, tuple(session.secrets)) for one in found]
    commit = commit or previews.commit_of(project.folder)
    code = review.exit_code(reports, allow_destructive=allow_destructive)
    text = session.clean(review.render(reports, commit=commit))
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if session.json_output:
        emit(review.record(reports, commit=commit, code=code))
    elif out is None:
        print(text, end="")
    else:
        print(review.headline(reports))
        print(f"the report is in {out}")
    return code


def drift(stack: str, *, environ: Mapping[str, str] = os.environ) -> int:
    """Compare what is live with what is declared: 0 the same, 1 drift."""
    from infra.review import drift as review

    found = review.look(project_here(environ), stack, tuple(session.secrets))
    if session.json_output:
        emit(review.record(found))
    else:
        for line in review.lines(found):
            print(session.clean(line))
    return found.exit_code
