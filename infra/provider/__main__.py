"""infra/provider: `python -m infra.provider`, the same as the console script pulumi-resource-runpodv2."""

from __future__ import annotations

from infra.provider.server import main

if __name__ == "__main__":
    main()
