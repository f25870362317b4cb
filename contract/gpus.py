"""contract: RunPod's serverless GPU pools, as far as they are known without asking. Data.

Sources: RunPod's references/gpu-types and its table of serverless prices, on PRICES_DATE. Not a closed list: pools come and go, and the
catalog of REST v2 is what counts where it can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PRICES_DATE: Final = "2026-08-20"
"""When RunPod's page of serverless prices said what follows."""


@dataclass(frozen=True)
class Pool:
    """A serverless GPU pool: one of its cards, and the flex price of one GPU in dollars a second (None: not on the page)."""

    card: str
    usd_per_second: float | None


POOLS: Final[Mapping[str, Pool]] = {
    "AMPERE_16": Pool("NVIDIA RTX A4000", 0.00016),
    "AMPERE_24": Pool("NVIDIA RTX A5000", 0.00019),
    "ADA_24": Pool("NVIDIA GeForce RTX 4090", 0.00031),
    "ADA_32_PRO": Pool("NVIDIA GeForce RTX 5090", None),
    "AMPERE_48": Pool("NVIDIA RTX A6000", 0.00034),
    "ADA_48_PRO": Pool("NVIDIA L40S", 0.00053),
    "AMPERE_80": Pool("NVIDIA A100 80GB PCIe", 0.00076),
    "ADA_80_PRO": Pool("NVIDIA H100 80GB HBM3", 0.00116),
    "BLACKWELL_96": Pool("NVIDIA RTX PRO 6000 Blackwell Server Edition", 0.00111),
    "HOPPER_141": Pool("NVIDIA H200", 0.00155),
    "BLACKWELL_180": Pool("NVIDIA B200", 0.00240),
}


def usd_per_second() -> dict[str, float]:
    """The flex price of one GPU by pool, of those that the page has."""
    return {name: pool.usd_per_second for name, pool in POOLS.items() if pool.usd_per_second is not None}


def usd_per_hour() -> dict[str, float]:
    """The same an hour."""
    return {name: price * 3600 for name, price in usd_per_second().items()}
