"""emulator: worker processes with the environment that RunPod gives them, so that the unmodified `runpod` SDK runs in them.

May touch: processes under the guard, log files and home directories below the state directory. Variables and URL templates as the SDK
1.12 reads them: `$ID` and `$RUNPOD_POD_ID` are its own tokens, a template must already hold a `?`, and job-stop is derived from job-take.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus

from emulator.config import EndpointConfig
from emulator.processes import GuardedProcess
from emulator.workers import WorkerHandle

_INHERITED: Final = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE")
"""All that a worker gets of the emulator's own environment. A container would get nothing; without these programs do not start well."""


def worker_environment(
    endpoint: EndpointConfig, worker: str, *, base_url: str, key: str, home: Path, ping_interval_ms: int
) -> dict[str, str]:
    """Exactly what a worker process sees. The endpoint's own `env` goes before what is inherited, the platform's goes before both."""
    plane = f"{base_url}/{endpoint.endpoint_id}"
    gpu = f"?gpu={quote_plus(endpoint.gpu)}"
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    platform = {
        "RUNPOD_POD_ID": worker,
        "RUNPOD_POD_HOSTNAME": worker,
        "RUNPOD_ENDPOINT_ID": endpoint.endpoint_id,
        "RUNPOD_AI_API_KEY": key,
        "RUNPOD_PING_INTERVAL": str(ping_interval_ms),
        "RUNPOD_WEBHOOK_GET_JOB": f"{plane}/job-take/$ID{gpu}",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{plane}/job-done/$RUNPOD_POD_ID/$ID{gpu}",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{plane}/job-stream/$RUNPOD_POD_ID/$ID{gpu}",
        "RUNPOD_WEBHOOK_PING": f"{plane}/ping/$RUNPOD_POD_ID{gpu}",
        # the SDK's own checks want a GPU and a way to 8.8.8.8, and end the worker if there is none
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "RUNPOD_SKIP_GPU_CHECK": "true",
    }
    if endpoint.compute == "GPU":
        platform["RUNPOD_GPU_COUNT"] = str(endpoint.gpu_count)
    if endpoint.data_center is not None:
        platform["RUNPOD_DC_ID"] = endpoint.data_center
    if endpoint.network_volume is not None:
        platform["RUNPOD_VOLUME_ID"] = endpoint.network_volume
    # an empty home: the SDK would take keys from ~/.runpod before the one above
    defaults = {"HOME": str(home), "RUNPOD_DEBUG_LEVEL": "INFO", "PYTHONUNBUFFERED": "1"}
    return {**inherited, **defaults, **endpoint.env, **platform}


class ProcessLauncher:
    """Starts `EndpointConfig.command`. Logs: `logs/ENDPOINT/WORKER.log` in the state directory."""

    def __init__(self, state_dir: Path, base_url: str, key: str, *, ping_interval_ms: int, grace_s: float) -> None:
        self._state_dir = state_dir
        self._base_url = base_url
        self._key = key
        self._ping_interval_ms = ping_interval_ms
        self._grace_s = grace_s

    def log_path(self, endpoint: EndpointConfig, worker: str) -> Path:
        return self._state_dir / "logs" / endpoint.name / f"{worker}.log"

    async def launch(self, endpoint: EndpointConfig, worker: str) -> WorkerHandle:
        home = self._state_dir / "homes" / endpoint.name
        home.mkdir(parents=True, exist_ok=True)
        env: Mapping[str, str] = worker_environment(
            endpoint, worker, base_url=self._base_url, key=self._key, home=home, ping_interval_ms=self._ping_interval_ms
        )
        cwd = Path(endpoint.cwd) if endpoint.cwd is not None else home
        return await GuardedProcess.start(endpoint.command, env=env, cwd=cwd, log=self.log_path(endpoint, worker), grace_s=self._grace_s)
