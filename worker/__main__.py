"""worker: `python -m worker` loads the model and serves RunPod's queue; `--check` tests everything that needs no model and exits."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from typing import Any

from contract.errors import NightbatchError
from worker.redact import Redactor, install


def main(arguments: list[str]) -> int:
    """Exit codes: 0 the queue was served until a signal came; 2 the environment is not usable; 3 the model could not be loaded; 70 the
    engine died."""
    redactor = Redactor()
    redactor.add(value for name, value in os.environ.items() if name.endswith(("API_KEY", "_SECRET", "_TOKEN", "SECRET_ACCESS_KEY")))
    install(redactor)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if arguments == ["--check"]:
        from worker.check import check

        return check()
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    return serve(redactor)


def serve(redactor: Redactor) -> int:
    from worker.settings import Settings

    # The SDK's own default is DEBUG, which prints a line for every poll.
    os.environ.setdefault("RUNPOD_DEBUG_LEVEL", "INFO")
    log = logging.getLogger("nightbatch.worker")
    try:
        settings = Settings.from_env(os.environ)
        from worker.engine.launch import launch

        log.info("loading %s for %s", settings.served_name, settings.kind)
        engine = launch(settings)
    except NightbatchError as error:
        log.critical("%s", error)
        return error.exit_code
    except Exception as error:  # whatever vLLM raises while it loads
        log.critical("the model could not be loaded: %s: %s", type(error).__name__, error, exc_info=error)
        return 3
    info = engine.info
    log.info("ready after %.1f s: %s, %d tokens, %s", info.load_s, info.model, info.max_model_len, info.dtype)

    import runpod

    from worker.execution import Identity
    from worker.handler import Worker

    identity = Identity(
        worker_id=os.environ.get("RUNPOD_POD_ID", "local"),
        image=settings.image,
        versions={**info.versions, "dtype": info.dtype, "runpod": str(runpod.__version__)},
    )
    worker = Worker(settings, engine, identity=identity, redactor=redactor, leave=leave)

    async def handler(job: dict[str, Any]) -> dict[str, Any]:
        return await worker.handle(job)

    runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda _: settings.concurrency})
    engine.close()
    return 0


def leave(code: int) -> None:
    """End at once: threads may hang in a dead engine. The SDK's ping process would outlive us and vouch for a worker that is gone."""
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
