"""tests/e2e: the whole house, driven from outside: the command line as a subprocess, the emulator in the background, its real S3 server,
workers on the unmodified SDK, and a look into every object that they leave."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow.parquet as pq

from contract.facts import Stack
from contract.keys import RunKeys, RunUri
from contract.lines import decompress_lines
from contract.models import Intent, JournalEntry, Plan, TaskKind, decode
from contract.store import S3Store
from emulator import Emulator, EmulatorConfig, EndpointConfig, local
from pipelines.pack import RULES
from tests.emulator.kit import processes_of
from worker.models import cache_root

ROOT = Path(__file__).resolve().parents[2]
CACHE = cache_root()
"""Environments and models are shared with the person who runs the tests: they are large, and the same for all."""
T = TypeVar("T")
PER_SHARD = RULES["generate"].few_rows
"""Rows of a shard, where a dataset of chat rows holds a multiple of them."""
PATIENCE_S = 60.0
EVERY = 1_000_000


def eventually(condition: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    """The condition's first true value. AssertionError when it does not come in time."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"in {timeout_s:.0f} s it did not come to this: {what}"
        time.sleep(0.05)


# --- the command line ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Started:
    """A command that runs. Its output goes to files, so that nothing waits for a reader."""

    def __init__(self, command: list[str], env: Mapping[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.out")))
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def said(self, timeout_s: float = PATIENCE_S) -> Said:
        """Wait for its end."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the command did not end in {timeout_s:.0f} s; it said: {self.err[-3000:]}") from None
        return Said(code, self._out.read_text(), self.err)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait(10)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)


# --- what steers the echo workers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """How many groups of rows may pass through the echo workers (tests/e2e/echo_worker.py), and how many have come."""

    folder: Path

    def allow(self, groups: int) -> None:
        """From now on so many groups in all may pass since `reset`."""
        fresh = self.folder / "allow.new"
        fresh.write_text(str(groups))
        fresh.replace(self.folder / "allow")

    def open(self) -> None:
        self.allow(EVERY)

    def reset(self, groups: int = EVERY) -> None:
        """Forget what has passed. Only while no job runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.allow(0)
        for ticket in self.folder.glob("ticket-*"):
            ticket.unlink()
        (self.folder / "jobs").unlink(missing_ok=True)
        self.allow(groups)

    @property
    def came(self) -> int:
        """Groups that have reached an engine."""
        return len(list(self.folder.glob("ticket-*")))

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """Jobs that workers were given: shard, webhook, id."""
        try:
            return [json.loads(line) for line in (self.folder / "jobs").read_text().splitlines()]
        except FileNotFoundError:
            return []


# --- the house -----------------------------------------------------------------------------------------------------------------------


def echo_endpoint(name: str, task: TaskKind, gate: Path, **settings: Any) -> EndpointConfig:
    """An endpoint whose workers echo. Its times are short: a worker is there at once, and a lost job comes back soon."""
    env = {
        "PYTHONPATH": str(ROOT),
        "NIGHTBATCH_MODEL": name,
        "NIGHTBATCH_TASK": task,
        "E2E_GATE": str(gate),
        **settings.pop("env", {}),
    }
    values: dict[str, Any] = {
        "workers_min": 1,
        "workers_max": 1,
        "idle_timeout_s": 30.0,
        "scaler_value": 0.5,
        "concurrency": 2,
        "execution_timeout_ms": 60_000,
        "cold_start_s": 2.0,
        "usd_per_s": 0.001,
        **settings,
    }
    return EndpointConfig(
        name=name, model=name, tasks=(task,), command=(sys.executable, "-P", "-m", "tests.e2e.echo_worker"), env=env, **values
    )


def config_of(home: Path, *endpoints: EndpointConfig, **settings: Any) -> EmulatorConfig:
    """An emulator for `--stack local` of a person whose NIGHTBATCH_HOME is `home`."""
    values: dict[str, Any] = {
        "tick_s": 0.1,
        "ping_interval_ms": 1000,
        "lost_after_s": 3.0,
        "long_poll_s": 3.0,
        "webhook_retries_s": (0.5, 0.5),
        "stop_grace_s": 5.0,
        **settings,
    }
    return EmulatorConfig(state_dir=str(home / "local"), endpoints=endpoints, **values)


@dataclass
class House:
    """One person's NIGHTBATCH_HOME with an emulator in it."""

    home: Path
    config: EmulatorConfig
    gate: Gate
    started: list[Started] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Runs of earlier tests."""
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    _store: S3Store | None = None

    @property
    def state(self) -> Path:
        return self.home / "local"

    # -- the emulator

    def up(self) -> None:
        local.up(self.config)

    def down(self) -> None:
        local.down(self.state)

    def kill(self) -> int:
        """kill -9 of the emulator; its pid."""
        pid = local.running(self.state)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: local.running(self.state) is None, "the emulator is gone", 10)
        return pid

    @property
    def stack(self) -> Stack:
        return local.stack(self.state)

    def worker_pids(self) -> list[int]:
        """Worker processes that are alive."""
        return [pid for pid, command in processes_of(self.state).items() if "echo_worker" in command or " -m worker" in command]

    # -- the command line

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "NIGHTBATCH_HOME": str(self.home), "HOME": str(self.home), "NIGHTBATCH_CACHE": str(CACHE), **more}

    def start(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Started:
        """Start a command of the command line."""
        command = [sys.executable, "-P", "-m", "cli", *(str(a) for a in arguments)]
        started = Started(command, self.environment() if env is None else env, self.home / "commands")
        self.started.append(started)
        return started

    def cli(self, *arguments: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = PATIENCE_S) -> Said:
        """Run a command of the command line to its end."""
        return self.start(*arguments, env=env).said(timeout_s)

    def ok(self, *arguments: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Run a command with --json that must end well; its object."""
        said = self.cli(*arguments, "--json", env=env, timeout_s=timeout_s)
        assert said.code == 0, f"exit code {said.code}: {said.out}\n{said.err[-3000:]}"
        return said.record

    def end_commands(self) -> None:
        """No command outlives its test."""
        for started in self.started:
            if started.process.poll() is None:
                started.kill()
        self.started.clear()

    def elsewhere(self, folder: Path) -> dict[str, str]:
        """The environment of another machine: no state at all, only S3's address, S3 keys and a RunPod key."""
        folder.mkdir()
        stack = self.stack
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH")}
        mark = {name: value for name, value in os.environ.items() if name == "NIGHTBATCH_TEST_SESSION"}
        return {
            **kept,
            **mark,
            "HOME": str(folder),
            "NIGHTBATCH_HOME": str(folder / "state"),
            "RUNPOD_API_KEY": stack.secrets.api_key,
            "NIGHTBATCH_S3_ENDPOINT_URL": stack.facts.store.endpoint_url,
            "NIGHTBATCH_S3_ACCESS_KEY_ID": stack.secrets.s3.accessId,
            "NIGHTBATCH_S3_SECRET_ACCESS_KEY": stack.secrets.s3.accessSecret,
        }

    # -- the bucket

    def with_store(self, work: Callable[[S3Store], Awaitable[T]]) -> T:
        """Do something with the bucket, with the client's keys. Address and keys stay the same over the emulator's restarts."""
        if self._store is None:
            self._store = S3Store(self.stack.secrets.s3)
        return self._runner.run(_await(work(self._store)))

    def close(self) -> None:
        if self._store is not None:
            self._runner.run(self._store.close())
            self._store = None
        self._runner.close()

    def committed(self, run: str) -> set[str]:
        """Shards that have a commit."""
        return {key.rsplit("/", 1)[-1].removesuffix(".json") for key in self.keys(RunUri.parse(run).keys.commits_prefix())}

    def keys(self, prefix: str = "") -> list[str]:
        async def work(store: S3Store) -> list[str]:
            return [head.key async for head in store.list(prefix)]

        return self.with_store(work)

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Every object under a prefix."""

        async def work(store: S3Store) -> dict[str, bytes]:
            return {head.key: (await store.get(head.key)).data async for head in store.list(prefix)}

        return self.with_store(work)

    def put(self, key: str, data: bytes) -> None:
        async def work(store: S3Store) -> None:
            await store.put(key, data)

        self.with_store(work)

    def runs(self) -> set[str]:
        """Addresses of all runs that are planned."""
        plans = [key for key in self.keys("runs/") if key.endswith("/plan.json")]
        return {f"s3://{self.config.bucket}/{key.removesuffix('/plan.json')}" for key in plans}

    def new_run(self) -> str:
        """The run that this test has planned."""
        (run,) = eventually(lambda: self.runs() - self.seen, "the run is planned")
        return run

    def new_run_named(self, part: str) -> str:
        """The run that is planned and has this in its name."""
        (run,) = eventually(lambda: {run for run in self.runs() if part in run}, "the run is planned")
        return run


class WatchedHouse(House):
    """A house whose emulator runs in a thread of the tests, so that a test can reach its seam for faults."""

    emulator: Emulator

    def up(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="emulator")
        self._thread.start()
        self.emulator = Emulator(self.config)
        self.in_emulator(self.emulator.start())

    def down(self) -> None:
        try:
            self.in_emulator(self.emulator.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def in_emulator(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @property
    def stack(self) -> Stack:
        return self.emulator.stack()


@dataclass(frozen=True)
class RunObjects:
    """All objects of one run, as they stand at one moment."""

    keys: RunKeys
    data: Mapping[str, bytes]

    @classmethod
    def of(cls, house: House, run: str) -> RunObjects:
        keys = RunUri.parse(run).keys
        return cls(keys, house.objects(keys.root + "/"))

    @property
    def plan(self) -> Plan:
        made: Plan = decode(self.data[self.keys.plan()], Plan, where="plan.json")
        return made

    def under(self, prefix: str) -> dict[str, bytes]:
        head = f"{self.keys.root}/{prefix}/"
        return {key[len(head) :]: data for key, data in self.data.items() if key.startswith(head)}

    @property
    def committed(self) -> set[str]:
        return {name.removesuffix(".json") for name in self.under("commits")}

    @property
    def executions(self) -> dict[str, int]:
        """Start markers by shard."""
        counts: dict[str, int] = {}
        for name in self.under("starts"):
            shard = name.split("/")[0]
            counts[shard] = counts.get(shard, 0) + 1
        return counts

    def outcomes(self) -> dict[str, list[str]]:
        """Outcomes of ended executions by shard."""
        found: dict[str, list[str]] = {}
        for name, data in self.under("ends").items():
            found.setdefault(name.split("/")[0], []).append(json.loads(data)["outcome"])
        return found

    @property
    def intents(self) -> list[Intent]:
        entries: list[JournalEntry] = [decode(data, JournalEntry, where=name) for name, data in sorted(self.under("journal").items())]
        return [intent for entry in entries for intent in entry.intents]


# --- secrets -------------------------------------------------------------------------------------------------------------------------

KEEPERS = ("identity.json", "facts.json", "identities.json", "state.sqlite")
"""Files of the emulator that hold keys, being RunPod, S3 and the stack's facts: all of mode 0600. Nobody else keeps one."""


def secrets_in(data: bytes, secrets: Iterable[str]) -> list[str]:
    """Which of them are there, also as base64 or escaped."""
    forms = {
        secret: (secret.encode(), secret[::-1].encode(), base64.b64encode(secret.encode()).rstrip(b"="), quote(secret, safe="").encode())
        for secret in secrets
    }
    return [secret for secret, shapes in forms.items() if any(shape in data for shape in shapes)]


def leaks_in_files(folder: Path, secrets: Iterable[str]) -> list[str]:
    """Files below a folder that hold a secret, the keepers left out; those that the keepers hold must be their owner's alone."""
    found, secrets = [], list(secrets)
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        if path.name.startswith(KEEPERS):
            if path.stat().st_mode & 0o077:
                found.append(f"{path} can be read by others")
            continue
        found += [f"{path}: {secret}" for secret in secrets_in(path.read_bytes(), secrets)]
    return found


def leaks_in_objects(house: House, secrets: Iterable[str]) -> list[str]:
    """Objects of the bucket that hold a secret, compressed or not."""
    found, secrets = [], list(secrets)
    for key, data in house.objects().items():
        shapes = [data]
        if key.endswith(".zst"):
            shapes.append(b"\n".join(decompress_lines(data, where=key)))
        elif key.endswith(".parquet"):
            table = pq.read_table(io.BytesIO(data))
            shapes.append(repr((table.schema.metadata, table.to_pylist())).encode())
        found += [f"s3 {key}: {secret}" for shape in shapes for secret in secrets_in(shape, secrets)]
    return found


def leaks_in_processes(secrets: Iterable[str]) -> list[str]:
    """Command lines on this machine that hold a secret: everybody can read those."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        found += [f"process {entry.name}: {secret}" for secret in secrets_in(command, secrets)]
    return found


# --- rows ----------------------------------------------------------------------------------------------------------------------------


def question_rows(path: Path, count: int, *, start: int = 0, text: str = "What is row {n} about, and why?") -> Path:
    """A dataset of batch lines for chat."""
    with path.open("w") as file:
        for n in range(start, start + count):
            body = {"messages": [{"role": "user", "content": text.format(n=n)}], "max_tokens": 8}
            line = {"custom_id": f"row-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def ids(path: Path) -> list[str]:
    return [line["custom_id"] for line in answers(path)]


@contextmanager
def standing(house: House) -> Iterator[House]:
    """The house with its emulator up; nothing of it is left afterwards."""
    try:
        house.gate.reset()
        house.up()
        yield house
    finally:
        house.gate.open()
        house.end_commands()
        house.close()
        house.down()
        eventually(lambda: not processes_of(house.home), "no process of the house is left", 20)


async def _await(work: Awaitable[T]) -> T:
    return await work
