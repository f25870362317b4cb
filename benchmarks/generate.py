"""benchmarks: generate with SmolLM2-135M, prompts and answers of mixed lengths: the whole pipeline against `vllm run-batch`."""

from __future__ import annotations

from benchmarks.engines import Engine
from benchmarks.harness import Options, Result
from benchmarks.rows import chat_rows
from benchmarks.versus import Duel, fight

ENGINE = Engine("smollm2", "generate", max_model_len=512)
DUEL = Duel("generate", "generate", ENGINE, chat_rows, count=96, quick_count=24, targets={1: 0.9, 2: 0.9})


def measure(options: Options) -> Result:
    """Rows a second of both sides and their ratio."""
    return fight(DUEL, options)
