"""tests of the engine: a cloud (the emulator in a thread, whose seam a test can reach) and sites (a Pulumi project of one's own, whose
program declares what the test says), driven by the real CLI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from emulator import Emulator, EmulatorConfig, ImageConfig, Script, ScriptedWorker
from emulator.clock import RealClock
from emulator.faults import PASS, Action, Message
from infra.review.engine import Done, Preview, Project, provider_folder, pulumi_env

T = TypeVar("T")
Json = dict[str, Any]
PROGRAM = Path(__file__).parent / "programs" / "declared"
PASSPHRASE = "correct horse battery staple"
IMAGE = "ghcr.io/nightbatch/worker@sha256:" + "a" * 64
NEXT_IMAGE = "ghcr.io/nightbatch/worker@sha256:" + "b" * 64
KEPT_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "NIGHTBATCH_CACHE", "NIGHTBATCH_PULUMI", "NIGHTBATCH_TEST_SESSION")


def eventually(condition: Callable[[], T | None], what: str, timeout_s: float = 30.0) -> T:
    """The condition's first true value. AssertionError when it does not come in time."""
    until = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, f"in {timeout_s:.0f} s it did not come to this: {what}"
        time.sleep(0.02)


def kill(*pids: int) -> None:
    """kill -9 of each that is still there: the end of one may have ended another."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class LeapClock(RealClock):
    """Real time that a test can move on by days: for RunPod's idle rule."""

    def __init__(self) -> None:
        super().__init__()
        self._leapt = 0.0

    def time(self) -> float:
        return super().time() + self._leapt

    def leap(self, seconds: float) -> None:
        self._leapt += seconds


class Gate:
    """The scripted workers' jobs pass through it; closed, they wait."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def work(self, job: Json, worker: ScriptedWorker) -> Json:
        while not self._open.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # it is opened in another thread
        return {"said": job["input"], "worker": worker.id}


class Refused(Exception):
    """REST v2 answered with an error."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


class Cloud:
    """The emulator, running in a thread of its own, and REST v2 by hand, as somebody in the console would use it."""

    LISTS: Mapping[str, str] = {
        "serverless": "endpoints", "templates": "templates", "network-volumes": "networkVolumes", "registries": "registries",
    }  # fmt: skip

    def __init__(self, config: EmulatorConfig, *, clock: LeapClock, gate: Gate, **given: Any) -> None:
        self.clock, self.gate = clock, gate
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="emulator")
        self._thread.start()
        self.emulator = Emulator(config, clock=clock, **given)
        self.within(self.emulator.start())

    def within(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something in the emulator's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        try:
            self.within(self.emulator.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    @property
    def url(self) -> str:
        """As RUNPOD_API_BASE_URL has it."""
        return self.emulator.base_url.removesuffix("/v2")

    @property
    def key(self) -> str:
        return self.emulator.api_key

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """One request of REST v2 (`path` without /v2). Raises Refused."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v2/{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode()) from None
        return json.loads(text) if text else None

    def live(self, kind: str) -> dict[str, Json]:
        """What there is, by name; a name that is there twice fails the test."""
        found: list[Json] = self.rest("GET", kind)[self.LISTS[kind]]
        names = [item["name"] for item in found]
        assert len(set(names)) == len(names), f"made twice: {names}"
        return {item["name"]: item for item in found}

    def until_live(self, name: str, condition: Callable[[Json], bool], what: str, timeout_s: float = 30.0) -> Json:
        """The endpoint of this name once it is so."""

        def look() -> Json | None:
            found = self.live("serverless").get(name)
            return found if found is not None and condition(found) else None

        return eventually(look, what, timeout_s)

    def leap(self, seconds: float) -> None:
        """Let the emulator's time move on at once."""
        self.clock.leap(seconds)

    def everything(self) -> dict[str, set[str]]:
        """Names of all that there is, by kind."""
        return {kind: set(self.live(kind)) for kind in self.LISTS}

    def clear(self) -> None:
        """Delete whatever a test has left."""
        for kind in ("serverless", "templates", "registries", "network-volumes"):
            for item in self.rest("GET", kind)[self.LISTS[kind]]:
                with contextlib.suppress(Refused):
                    self.rest("DELETE", f"{kind}/{item['id']}")

    @contextlib.contextmanager
    def hooked(self, hook: Callable[[Message], Action]) -> Iterator[None]:
        """A hook in the emulator's seam for faults, for a with block."""
        with self.emulator.seam.hook(hook):
            yield

    @contextlib.contextmanager
    def heard(self) -> Iterator[list[Message]]:
        """Every request and answer of a with block."""
        messages: list[Message] = []

        def listen(message: Message) -> Action:
            messages.append(message)
            return PASS

        with self.hooked(listen):
            yield messages


def cloud_of(folder: Path, **settings: Any) -> Cloud:
    """A cloud where every image exists and every worker passes its jobs through the gate. Its time can leap; it limits no rates."""
    gate = Gate()
    config = EmulatorConfig(
        state_dir=str(folder),
        endpoints=(),
        **{
            "s3": False,
            "rate_limits": False,
            "tick_s": 0.1,
            "long_poll_s": 2.0,
            "worker_quota": 1000,
            "images": {"*": ImageConfig()},
            **settings,
        },
    )
    return Cloud(config, clock=LeapClock(), gate=gate, scripted={"*": Script(gate.work)})


def item(kind: str, name: str, props: Mapping[str, Any] | None = None, **opts: Any) -> Json:
    """One declaration of a site's program."""
    return {"kind": kind, "name": name, "props": dict(props or {}), "opts": opts}


def endpoint(name: str, /, *, opts: Mapping[str, Any] | None = None, drop: tuple[str, ...] = (), **props: Any) -> Json:
    """A queue endpoint on a GPU with no worker at rest; `props` replace or add, `drop` leaves out."""
    given = {
        "name": name,
        "type": "QUEUE",
        "image": IMAGE,
        "gpu": {"pools": ["AMPERE_24", "ADA_24"], "count": 1},
        "workers": {"min": 0, "max": 1, "idleTimeout": 5},
        "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4},
        "timeout": 600_000,
        **props,
    }
    return item("Endpoint", name, {key: value for key, value in given.items() if key not in drop}, **(opts or {}))


def volume(name: str, /, *, opts: Mapping[str, Any] | None = None, **props: Any) -> Json:
    return item("NetworkVolume", name, {"name": name, "size": 20, "dataCenter": "EU-RO-1", **props}, **(opts or {}))


@dataclass
class Site:
    """A Pulumi project in a folder of its own, with a file backend and one stack."""

    folder: Path
    cloud: Cloud
    cli: Path
    stack: str = "dev"
    keyed: bool = True
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM / "__main__.py", self.folder)
        project = {
            "name": "declared",
            "runtime": "python",
            "plugins": {"providers": [{"name": "runpodv2", "path": str(provider_folder())}]},
        }
        (self.folder / "Pulumi.yaml").write_text(json.dumps(project))  # JSON is YAML
        self.declare()
        self.project.ensure_stack(self.stack)

    @property
    def project(self) -> Project:
        return Project(self.folder, self.env())

    def env(self, *, key: bool | None = None) -> dict[str, str]:
        """The environment of the engine. `key`: with the API key."""
        base = {name: value for name, value in os.environ.items() if name in KEPT_ENV}
        extra = {"RUNPOD_API_BASE_URL": self.cloud.url, **self.extra}
        if self.keyed if key is None else key:
            extra["RUNPOD_API_KEY"] = self.cloud.key
        return pulumi_env(
            base, cli=self.cli, backend=self.folder / "state", passphrase=PASSPHRASE, home=self.folder.parent / "pulumi-home", extra=extra
        )

    def declare(self, *items: Json, **exports: Any) -> None:
        """What the program declares from now on."""
        (self.folder / "declared.json").write_text(json.dumps({"items": items, "exports": exports}, indent=1))

    # -- the engine; each call takes about three seconds

    def preview(self, *args: str, refresh: bool = False, key: bool | None = None) -> Preview:
        return Project(self.folder, self.env(key=key)).preview(self.stack, *args, refresh=refresh)

    def up(self, *args: str) -> Done:
        """An `up` that must succeed."""
        done = self.project.up(self.stack, *args)
        assert done.ok, f"{done.stdout}\n{done.stderr}"
        return done

    def failing_up(self, *args: str) -> str:
        """An `up` that must fail; all that it said."""
        done = self.project.up(self.stack, *args)
        assert not done.ok, done.stdout
        assert not done.timed_out
        return done.stdout + done.stderr

    def clean(self, *, refresh: bool = False) -> None:
        """A preview that must find nothing to do."""
        preview = self.preview("--expect-no-changes", refresh=refresh)
        assert preview.done.ok, f"{preview.changes}\n{preview.done.stdout[-6000:]}\n{preview.done.stderr}"

    def destroy(self) -> None:
        done = self.project.destroy(self.stack)
        assert done.ok, f"{done.stdout}\n{done.stderr}"

    @property
    def resources(self) -> dict[str, Json]:
        """Resources of the state, by name, without the stack itself and providers."""
        state = self.project.state(self.stack)
        return {
            found["urn"].rsplit("::", 1)[-1]: found
            for found in state["deployment"].get("resources", ())
            if not found["type"].startswith("pulumi:")
        }

    def id(self, name: str) -> str:
        return str(self.resources[name]["id"])


def step_of(preview: Preview, name: str, *ops: str) -> Json:
    """The step of a preview that is about a resource (of these operations)."""
    assert preview.digest is not None, preview.done.stderr
    found = [s for s in preview.digest["steps"] if s["urn"].endswith(f"::{name}") and (not ops or s["op"] in ops)]
    assert len(found) == 1, f"{name}: {[s['op'] for s in found]} of {[(s['urn'], s['op']) for s in preview.digest['steps']]}"
    step: Json = found[0]
    return step


def ops_of(preview: Preview) -> dict[str, set[str]]:
    """Operations of a preview by resource, without `same`."""
    found: dict[str, set[str]] = {}
    for step in (preview.digest or {}).get("steps", ()):
        name = step["urn"].rsplit("::", 1)[-1]
        if step["op"] not in ("same", "refresh", "read") and "pulumi:" not in step["urn"].rsplit("::", 2)[-2]:
            found.setdefault(name, set()).add(step["op"])
    return found
