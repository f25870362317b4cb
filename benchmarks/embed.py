"""benchmarks: embed with MiniLM, rows of at most 64 tokens: the whole pipeline against `vllm run-batch` embeddings."""

from __future__ import annotations

from benchmarks.engines import Engine
from benchmarks.harness import Options, Result
from benchmarks.rows import embed_rows
from benchmarks.versus import Duel, fight

ENGINE = Engine("minilm", "embed", max_model_len=256)
DUEL = Duel("embed", "embed", ENGINE, embed_rows, count=2400, quick_count=600, targets={2: 1.3})


def measure(options: Options) -> Result:
    """Rows a second of both sides and their ratio."""
    return fight(DUEL, options)
