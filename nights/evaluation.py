"""nights: the night of an `eval` job: the suite's questions asked, answers scored, compared with the baseline, and the gate."""

from __future__ import annotations

from nights.night import Tonight


async def evaluate_suite(tonight: Tonight) -> None:
    raise NotImplementedError
