"""benchmarks: engine arguments and environment, the same for every side of a comparison. Pure but for reading os.environ.

Every argument that could differ by default between vLLM's entry points is said: run-batch and the library choose other batch sizes.
Prefix caching is off: a warm worker that sees the same rows three times would otherwise skip their prompts.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, CannotMeasure


@dataclass(frozen=True)
class Engine:
    """A model and how vLLM runs it. `model`: minilm, smollm2 or tiny (worker/models.py)."""

    model: str
    task: str
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 4096

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of vllm.EngineArgs, without the model."""
        return {
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "dtype": "float32",
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.3,
            "disable_log_stats": True,
        }

    def flags(self) -> list[str]:
        """The same, for a command line of vLLM."""
        flags = []
        for name, value in self.arguments().items():
            dashed = name.replace("_", "-")
            if isinstance(value, bool):
                flags.append(f"--{dashed}" if value else f"--no-{dashed}")
            else:
                flags += [f"--{dashed}", str(value)]
        return flags

    def worker_environment(self, threads: int) -> dict[str, str]:
        """The same, for this project's worker (worker/settings.py)."""
        return {
            **thread_environment(threads),
            "PYTHONPATH": str(ROOT),
            "NIGHTBATCH_MODEL": self.model,
            "NIGHTBATCH_TASK": self.task,
            "VLLM_EXTRA": json.dumps(self.arguments()),
        }


def thread_environment(threads: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`threads` OMP threads that are not bound to processors, no hub, and the user's caches."""
    cache = environ.get("NIGHTBATCH_CACHE") or str(Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightbatch")
    return {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(Path(cache) / "vllm"),
        "NIGHTBATCH_CACHE": cache,
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def model_folder(python: Path, model: str) -> Path:
    """The folder of a named model; made now if it has to be made, so that no measurement does it."""
    done = subprocess.run(
        [str(python), "-m", "worker.models", "resolve", model],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise CannotMeasure(f"the model {model} cannot be made: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return Path(done.stdout.strip().splitlines()[-1])
