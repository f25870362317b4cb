"""emulator: `python -m emulator --config FILE [--state-dir DIR]` runs it until SIGTERM or SIGINT.

May touch: what emulator.py may. Lines on standard output that begin with "progress: " are for the person who waits; the rest is its log.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from contract.errors import NightbatchError, UsageError
from emulator import local
from emulator.config import EmulatorConfig, read_config
from emulator.emulator import Emulator


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m emulator", description="RunPod and S3 on this machine, until it is told to stop.")
    parser.add_argument("--config", type=Path, required=True, help="a JSON file with the fields of EmulatorConfig")
    parser.add_argument("--state-dir", type=Path, help="where it keeps its state; goes before the configuration's state_dir")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    try:
        config = _config(options.config, options.state_dir)
        local.hold(Path(config.state_dir))
        asyncio.run(_run(config))
    except NightbatchError as error:
        print(f"emulator: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _config(path: Path, directory: Path | None) -> EmulatorConfig:
    try:
        config = read_config(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"The configuration cannot be read: {error.strerror}.", where=str(path)) from None
    return config if directory is None else msgspec.structs.replace(config, state_dir=str(directory))


async def _run(config: EmulatorConfig) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    waiting = asyncio.create_task(asked.wait())
    emulator = Emulator(config, progress=_say)
    starting = asyncio.create_task(emulator.start())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        waiting.cancel()
        return
    try:
        starting.result()
        ends: set[asyncio.Future[Any]] = {waiting, emulator.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        _say("stopping")
    finally:
        waiting.cancel()
        await emulator.stop()
    if emulator.failed.done():
        emulator.failed.result()


def _say(text: str) -> None:
    print(f"{local.PROGRESS}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
