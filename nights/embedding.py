"""nights: the night of an `embed` job: its space brought up to date, or a run over the whole dataset where it keeps none."""

from __future__ import annotations

from nights.night import Tonight, generate


async def embed(tonight: Tonight) -> None:
    """Only rows that are new or changed are computed; readers of the space see the old version until the new one is whole."""
    await generate(tonight)
