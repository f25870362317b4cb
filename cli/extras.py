"""cli: what an installation may lack, refused in one sentence before anything is begun. Looks for packages; imports none of them."""

from __future__ import annotations

import importlib.util

from cli.policy import program


def needs(extra: str, who: str, *packages: str) -> None:
    """Raises UsageError where this Python lacks one of the packages, as one that only submits does. `who`: `job files need`; a package
    whose module is called otherwise is written `module=package`."""
    from contract.errors import UsageError

    for one in packages:
        module, _, package = one.partition("=")
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"this installation only submits: it has no Python package `{package or module}`, which {who}.",
                fix=f"In a clone: NIGHTBATCH_ENV=client {program()} … once more. Else: pip install 'nightbatch[{extra}]'.",
            )


def needs_nights() -> None:
    """For whatever reads job files."""
    needs("nights", "job files need", "pydantic", "yaml", "cronsim")
