"""infra: the Pulumi program. Reads the stack's settings, holds them to the rules, declares the platform, exports what others need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pulumi

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # Pulumi runs this file with infra/ as its folder
    sys.path.insert(0, str(ROOT))

from contract.errors import NightbatchError  # noqa: E402
from infra import rules  # noqa: E402
from infra.components import BatchPlatform  # noqa: E402
from infra.inputs import catalog, config_values, secret_values  # noqa: E402
from infra.settings import PROJECT, parse, prices  # noqa: E402


def main() -> None:
    """The program. Raises pulumi.RunError, which Pulumi prints without a traceback."""
    stack = pulumi.get_stack()
    try:
        secrets = secret_values(stack)
        settings = parse(config_values(stack), stack, secrets=secrets.keys(), environ=os.environ)
        table = prices(settings, catalog())
        findings = rules.check(settings, table)
        rules.enforce(settings, findings)
    except NightbatchError as error:
        raise pulumi.RunError(str(error)) from None
    for finding in rules.advisory(findings):
        pulumi.log.warn(str(finding))
    platform = BatchPlatform(PROJECT, settings, table, secrets=secrets)
    pulumi.export("facts", platform.facts)
    pulumi.export("endpoints", platform.endpoint_outputs)
    pulumi.export("volumes", platform.volume_outputs)
    pulumi.export("limits", platform.limits)


if __name__ == "__main__":
    main()
