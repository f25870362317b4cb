"""cli: `nightbatch preview` and `nightbatch drift`: run the Pulumi engine, print what it comes to. Calls infra.review."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.extras import needs
from cli.output import emit, say
from cli.policy import session

if TYPE_CHECKING:
    from infra.review.engine import Project

LOCAL = "local"


def project_here(environ: Mapping[str, str] = os.environ) -> Project:
    """The project's folder, and the environment that the engine runs in."""
    from infra.review import engine

    needs_pulumi()
    return engine.Project(engine.project_folder(environ), engine.pulumi_env(environ))


def project_of(stack: str, environ: Mapping[str, str] = os.environ, here: Project | None = None) -> Project:
    """The project that a stack is in: of `local` the one beside the state of `local up --pulumi`, where that made it. The program asks
    RunPod with the stack's own key, where there is one (contract.facts says which); one in Pulumi's config goes before it. `here`: what
    `project_here` gave, where that is known."""
    from dataclasses import replace

    from contract.facts import API_KEY_ENV, api_key_env

    if stack == LOCAL:
        from cli.local import local_project, state_path
        from emulator import local
        from infra.review import engine

        directory = local.local_dir(environ)
        if state_path(directory).exists():
            needs_pulumi()
            return local_project(directory, engine.project_folder(environ), engine.find_cli(environ))
    project = here or project_here(environ)
    own = environ.get(api_key_env(stack, environ))
    return replace(project, env={**project.env, API_KEY_ENV: own}) if own else project


def needs_pulumi() -> None:
    """Refuse in one sentence where this Python, which Pulumi would run the program with, has no `pulumi`: it only submits."""
    needs("infra", "the stack's program needs", "pulumi")


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
    from contract.facts import API_KEY_ENV
    from infra.review import preview as review
    from infra.review import previews

    if out is not None and (out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK)):
        raise UsageError("no report can be written there.", where=f"--out {out}", fix="Name a file in a folder that exists.")
    project = project_here(environ)
    names = tuple(dict.fromkeys(stacks)) or previews.default_stacks(project.folder)
    projects = {stack: project_of(stack, environ, project) for stack in names}
    keys = {stack: key for stack, of in projects.items() if (key := of.env.get(API_KEY_ENV))}
    asked = previews.Asked(names, refresh=frozenset(keys) if refresh is None else refresh)
    found = previews.preview_all(projects.__getitem__, asked, on_done=lambda stack: say(f"previewed {stack}"))
    nights: dict[str, float] = {}
    for key, base_url in {(key, projects[stack].env.get("RUNPOD_API_BASE_URL")): None for stack, key in keys.items()}:
        nights |= asyncio.run(previews.billed_nights(base_url, key))  # each account once
    found = previews.with_nights(found, nights)
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

    found = review.look(project_of(stack, environ), stack, tuple(session.secrets))
    if session.json_output:
        emit(review.record(found))
    else:
        for line in review.lines(found):
            print(session.clean(line))
    return found.exit_code
