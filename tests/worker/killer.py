# tests/worker: a logits processor that raises for one marked row: how an exception gets into an engine step. Runs inside vLLM.
from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

SEED = 666


class Killer(LogitsProcessor):  # type: ignore[misc]
    """Raises at the third step after a row with seed 666 has come."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._steps_left: int | None = None

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        return None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        for _, params, _, _ in batch_update.added if batch_update else ():
            if params.seed == SEED:
                self._steps_left = 3

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                raise RuntimeError("killed by the test")
        return logits
