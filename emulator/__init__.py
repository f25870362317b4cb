"""emulator: RunPod on this machine, for `demo`, development and tests. Speaks the documented HTTP of the data plane and the worker plane
exactly enough that the `runpod` 1.12 SDK runs unmodified on both sides, with a real S3 server (SeaweedFS) beside it.

May touch: sockets on loopback, processes that it starts, its state directory. Imports contract and no other room.

    async with Emulator(EmulatorConfig(state_dir=..., endpoints=(EndpointConfig(name="minilm", command=...),))) as emulator:
        emulator.base_url, emulator.api_key, emulator.s3, emulator.endpoint("minilm"), emulator.stack()
"""

from __future__ import annotations

from emulator.billing import Bill
from emulator.clock import Clock, FastClock, ManualClock, RealClock
from emulator.config import EmulatorConfig, EndpointConfig, ImageConfig, read_config
from emulator.emulator import Emulator, EndpointView, WorkerView
from emulator.faults import DROP, PASS, Action, Message, Seam
from emulator.jobs import Status
from emulator.scripted import Script, ScriptedWorker
from emulator.workers import WorkerState

__all__ = [
    "DROP",
    "PASS",
    "Action",
    "Bill",
    "Clock",
    "Emulator",
    "EmulatorConfig",
    "EndpointConfig",
    "EndpointView",
    "FastClock",
    "ImageConfig",
    "ManualClock",
    "Message",
    "RealClock",
    "Script",
    "ScriptedWorker",
    "Seam",
    "Status",
    "WorkerState",
    "WorkerView",
    "read_config",
]
