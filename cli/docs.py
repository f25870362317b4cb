"""cli: docs/cli.md, made from the command line's own help (`make docs`; a test keeps it current)."""

from __future__ import annotations

from typing import Any

import typer

from cli.app import app

WIDTH = 100
HEAD = """# The command line

Made from `nightbatch --help` by `make docs`; do not edit. In a clone, write `./nightbatch` instead of `nightbatch`.
"""


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    return f"{HEAD}\n{section(root, 'nightbatch')}"


def section(command: Any, path: str, level: int = 2) -> str:
    """One command and, below it, its own commands."""
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH, "help_option_names": ["-h", "--help"]}
    context = command.make_context(path, [], resilient_parsing=True, **settings)
    text = f"{'#' * min(level, 3)} {path}\n\n```\n{context.get_help().rstrip()}\n```\n"
    for name, child in getattr(command, "commands", {}).items():
        text += "\n" + section(child, f"{path} {name}", level + 1)
    return text


if __name__ == "__main__":
    print(page(), end="")
