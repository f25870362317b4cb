"""worker/engine: from settings to a running engine. Sets what vLLM reads from the environment, then imports it inside the engine.

The CPU defaults are measured (docs/worker.md): eager, because compiling gains nothing; no chunked prefill, because a seeded prompt that is
split over two steps kills the engine; a small share of memory, because the start-up check counts free memory that the page cache uses;
one GiB of key-value cache, because vLLM otherwise takes half of the machine; float32, so that batches do not change a greedy answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final

from worker.engine.thread import ThreadedEngine
from worker.models import cache_root, resolve
from worker.settings import Settings

ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TOKENIZERS_PARALLELISM": "true",
}
VOLUME: Final = Path("/runpod-volume")
"""Where RunPod mounts a network volume and its cached models (docs: serverless/endpoints/model-caching)."""
CPU_ARGS: Final[dict[str, Any]] = {
    "enforce_eager": True,
    "enable_chunked_prefill": False,
    "gpu_memory_utilization": 0.3,
    "dtype": "float32",
}


def launch(settings: Settings, environ: MutableMapping[str, str] = os.environ) -> ThreadedEngine:
    """Load the model and start its thread; takes seconds to minutes. Whatever vLLM raises while loading comes out."""
    started = time.monotonic()
    folder = resolve(settings.model, environ)
    use_volume(settings.model, environ)
    for name, value in ENVIRONMENT.items():
        environ.setdefault(name, value)
    # What vLLM learns of a model's class costs it a process of 8 s; kept with the other caches it is paid once, also under another HOME.
    environ.setdefault("VLLM_CACHE_ROOT", str(cache_root(environ) / "vllm"))
    from worker.engine.vllm_core import VllmCore, on_cpu

    if on_cpu():
        # On a processor the engine's own process takes cores from the engine: one process starts in half the time and runs faster.
        environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    arguments = {"model": folder, "use_tqdm_on_load": False, **(CPU_ARGS if on_cpu() else {}), **settings.engine_args}
    return ThreadedEngine(VllmCore(settings.kind, arguments, settings.served_name, started))


def use_volume(model: str, environ: MutableMapping[str, str], volume: Path = VOLUME) -> None:
    """Hub models from RunPod's volume, where there is one: a cached model is read without the hub, others are downloaded there once."""
    cache = volume / "huggingface-cache" / "hub"
    if not volume.is_dir():
        return
    environ.setdefault("HF_HUB_CACHE", str(cache))
    if (cache / f"models--{model.replace('/', '--')}" / "snapshots").is_dir():
        environ.setdefault("HF_HUB_OFFLINE", "1")
