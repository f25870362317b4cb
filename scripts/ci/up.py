# scripts: the `pulumi up` of a workflow, with the engine's environment and output as it comes. Changes the stack.
"""`pulumi up` on one stack, without questions: `python scripts/ci/up.py STACK`. Ends with 0, or with 3 and Pulumi's own words."""

from __future__ import annotations

import os
import sys

from contract.errors import NightbatchError
from infra.review import engine


def main(stack: str) -> int:
    """Live state is looked at first, so that what was changed by hand is set back, too."""
    try:
        project = engine.Project(engine.project_folder(os.environ), engine.pulumi_env(os.environ))
        project.up(stack, "--refresh", "--run-program", on_line=lambda line: print(line, flush=True)).expect(where=f"stack {stack}")
    except NightbatchError as error:
        print(f"nightbatch: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
