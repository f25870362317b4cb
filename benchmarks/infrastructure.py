"""benchmarks: the infrastructure with the real Pulumi engine, against the emulator's REST v2: what the provider itself takes, and what the
engine with it makes of a machine of two cores.

- Provider start: from the spawn of the plugin's executable to the line with its port, as the engine waits for it; bytecode compiled.
- Its share of a preview of ten endpoints: processor seconds of the plugin's process from start to end, while the engine previews them all
  as new, and again when they are there. A wrapper of the plugin notes them (benchmarks/watched_provider.py); seconds in which at least one
  of the engine's calls was with the provider are given, too.
- `up` of ten endpoints: from the first to the last request that reaches REST v2, against a script that sends the same requests, as many at
  once as the engine does (8 on two cores) and each as soon as what it depends on is answered: prices, because rules decide with them
  whether anything is made; the list, which shows what an interrupted `up` has left; ten creates. Every sample has an emulator of its own,
  whose answers take ANSWER_S. Without that, and without the order, the numbers are given, too.
- `nightbatch preview` of four stacks against four `pulumi preview`, one after another.

The project is this repository's own program, in a temporary folder with stack files of the benchmark.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import ROOT, CannotMeasure, Line, Options, Result, Sample, median_seconds, say, stopwatch, wait_for_quiet
from emulator import Emulator, EmulatorConfig, ImageConfig
from emulator.faults import PASS, Action, Message
from infra.review.engine import PLUGIN, Done, EngineError, Project, find_cli, pulumi_env

ENDPOINTS: Final = 10
AT_ONCE: Final = ", answers at once"
STACKS: Final = ("one", "two", "three", "four")
START_REPS: Final = 11
START_TARGET_S: Final = 1.0
SHARE_TARGET_S: Final = 1.0
UP_TARGET: Final = 1.5
PREVIEWS_TARGET: Final = 1.0
ANSWER_S: Final = 0.25
"""How long REST v2 takes for each answer. The emulator's own 1 ms would measure Pulumi's bookkeeping alone: in the time of the script's
twelve requests the engine does not even get through the registration of ten resources. RunPod publishes no figure; this is a round trip
over an ocean with a new connection, or a database behind a nearer one."""
PORT_S: Final = 30.0
SCRIPT_S: Final = 60.0
PASSPHRASE: Final = "only of this benchmark"
KEPT_ENV: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "NIGHTBATCH_CACHE", "NIGHTBATCH_PULUMI")
Call = list[Any]
"""[method, path, body], as watched_provider notes them and peers/rest_calls.py sends them."""


def measure(options: Options) -> Result:
    """All four. Raises CannotMeasure where pulumi is missing, or an engine's run fails."""
    if importlib.util.find_spec("pulumi") is None:
        raise CannotMeasure("this Python has no pulumi; scripts/bench has.")
    try:
        cli = find_cli(build=True)
        return _measure(options, cli)
    except EngineError as error:
        raise CannotMeasure(str(error)) from error


def _measure(options: Options, cli: Path) -> Result:
    samples: dict[str, list[Sample]] = {}

    def took(name: str, sample: Sample) -> None:
        samples.setdefault(name, []).append(sample)
        say(f"  {name}: {sample.seconds:.3f} s")

    def quiet() -> None:
        if options.wait_quiet_s:
            wait_for_quiet(options.wait_quiet_s)

    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as scratch:
        folder = Path(scratch)
        provider = ROOT / "infra" / "provider" / "bin" / PLUGIN
        environment = pulumi_env(_base(), cli=cli)
        start(provider, environment)  # compiles the bytecode
        quiet()
        for _ in range(3 if options.quick else START_REPS):
            took("provider: spawn to port", start(provider, environment))

        with cloud(folder / "first") as first:
            watched = Estate(folder / "watched", cli, first, ("one",), watch=True)
            calls: list[Call] = []
            for rep in range(options.reps):
                quiet()
                for name, sample in watched.shares("one", "new").items():
                    took(name, sample)
                if rep == 0:
                    calls = watched.calls_of_up("one")
        with cloud(folder / "second") as second:
            watched = Estate(folder / "there", cli, second, ("one",), watch=True)
            watched.up("one")
            for _ in range(options.reps):
                quiet()
                for name, sample in watched.shares("one", "unchanged").items():
                    took(name, sample)

        parallel, pulumi = engine_parallel(watched.project), version(watched.project)
        ups = (("", ANSWER_S), (AT_ONCE, 0.0))
        file = folder / "steps.json"
        for rep in range(options.reps):
            for suffix, answer_s in ups:
                quiet()
                name = f"{rep}-{answer_s}"
                with cloud(folder / f"up-{name}", answer_s) as at:
                    took(f"up{suffix}", Estate(folder / f"site-{name}", cli, at, ("one",)).up("one"))
                with cloud(folder / f"script-{name}", answer_s) as at:
                    took(f"script{suffix}", script(file, in_order(calls), parallel, at))
            with cloud(folder / f"heedless-{rep}", ANSWER_S) as at:
                took("script without order", script(file, [calls], parallel, at))

        with cloud(folder / "last") as last:
            estate = Estate(folder / "four", cli, last, STACKS)
            for _ in range(options.reps):
                quiet()
                took("one after another", estate.one_by_one())
                took("nightbatch preview", estate.nightbatch_preview())

    median = {name: median_seconds(group) for name, group in samples.items()}
    n, four = ENDPOINTS, len(STACKS)
    what, up, late = f"preview of {n}", f"up of {n} endpoints", f", answers after {ANSWER_S} s"

    def ratio(name: str, one: str, other: str, limit: float | None = None) -> Line:
        return Line(name, median[one] / median[other], "x", None if limit is None else "<=", limit)

    lines = (
        Line("provider: spawn to port", median["provider: spawn to port"], "s", "<", START_TARGET_S),
        Line(f"{what} new endpoints: processor time of the provider", median["new: processor"], "s", "<", SHARE_TARGET_S),
        Line(f"{what} new endpoints: calls at the provider", median["new: in calls"], "s"),
        Line(f"{what} unchanged endpoints: processor time of the provider", median["unchanged: processor"], "s", "<", SHARE_TARGET_S),
        Line(f"{what} unchanged endpoints: calls at the provider", median["unchanged: in calls"], "s"),
        Line(f"{up}{late}: first to last request", median["up"], "s"),
        Line(f"script{late}: the same {len(calls)} requests, {parallel} at once", median["script"], "s"),
        ratio(f"{up} / script{late}", "up", "script", UP_TARGET),
        ratio(f"{up} / script that heeds no order{late}", "up", "script without order"),
        Line(f"{up}{AT_ONCE}: first to last request", median[f"up{AT_ONCE}"], "s"),
        Line(f"script{AT_ONCE}", median[f"script{AT_ONCE}"], "s"),
        ratio(f"{up} / script{AT_ONCE}", f"up{AT_ONCE}", f"script{AT_ONCE}"),
        Line(f"{four} stacks: pulumi preview one after another", median["one after another"], "s"),
        Line(f"{four} stacks: nightbatch preview", median["nightbatch preview"], "s"),
        ratio(f"{four} stacks: nightbatch preview / one after another", "nightbatch preview", "one after another", PREVIEWS_TARGET),
    )
    settings = {"endpoints": n, "stacks": four, "parallel": parallel, "pulumi": pulumi, "requests": len(calls), "answer_s": ANSWER_S}
    notes = (f"Answers of REST v2 take {ANSWER_S} s, except where it says otherwise. Processor times hold the provider's start.",)
    return Result("infrastructure", lines, {name: tuple(group) for name, group in samples.items()}, settings, notes)


# --- provider start ------------------------------------------------------------------------------------------------------------------


def start(provider: Path, environment: Mapping[str, str]) -> Sample:
    """From the spawn of the plugin to its port; it is ended afterwards. Raises CannotMeasure when there is no port in time."""
    with stopwatch() as watch:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(provider), "127.0.0.1:1"], env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        stopper = threading.Timer(PORT_S, process.kill)
        stopper.start()
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            seconds = time.perf_counter() - began
        finally:
            stopper.cancel()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
    if not line.strip().isdigit():
        raise CannotMeasure(f"the provider said {line!r} instead of its port.")
    return watch.sample(1, seconds)


# --- the cloud -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cloud:
    """REST v2 on this machine, and when requests reached it."""

    url: str
    key: str
    arrivals: list[float]

    def span(self) -> float:
        """Seconds from the first request to the last since `arrivals` was cleared."""
        if len(self.arrivals) < 2:
            raise CannotMeasure(f"{len(self.arrivals)} requests reached REST v2.")
        return self.arrivals[-1] - self.arrivals[0]


@contextmanager
def cloud(folder: Path, answer_s: float = 0.0) -> Iterator[Cloud]:
    """A new emulator in a thread of its own, whose answers take `answer_s` longer than they do. It limits no rates."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="emulator")
    thread.start()
    arrivals: list[float] = []
    late = Action(delay_s=answer_s)

    def hook(message: Message) -> Action:
        if message.kind == "request":
            arrivals.append(time.perf_counter())
        return late if message.kind == "response" and answer_s else PASS

    config = EmulatorConfig(
        state_dir=str(folder), endpoints=(), s3=False, rate_limits=False, worker_quota=10_000, images={"*": ImageConfig()}
    )
    emulator = Emulator(config)

    def within(work: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(work(), loop).result(60)

    try:
        within(emulator.start)
        try:
            with emulator.seam.hook(hook):
                yield Cloud(emulator.root_url, emulator.api_key, arrivals)
        finally:
            within(emulator.stop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


# --- the project ---------------------------------------------------------------------------------------------------------------------


class Estate:
    """The project in a folder of its own, with a file backend and stacks of ten endpoints each. `watch`: its plugin is the watched one."""

    def __init__(self, folder: Path, cli: Path, at: Cloud, stacks: Sequence[str], *, watch: bool = False) -> None:
        self.at, self._cli = at, cli
        self._project = folder / "project"
        self._notes = folder / "notes"
        self._notes.mkdir(parents=True)
        files = self._project / "infra" / "stacks"
        files.mkdir(parents=True)
        for path in (ROOT / "infra").iterdir():
            if path.name not in ("stacks", "__pycache__"):
                (self._project / "infra" / path.name).symlink_to(path)
        plugin = self._wrapper(folder / "plugin") if watch else ROOT / "infra" / "provider" / "bin"
        text = (ROOT / "Pulumi.yaml").read_text(encoding="utf-8")
        own, found = re.subn(r"(?m)^(\s+path:\s*)infra/provider/bin$", rf"\g<1>{plugin}", text)
        if found != 1:
            raise CannotMeasure("Pulumi.yaml does not name the provider's folder any more.")
        (self._project / "Pulumi.yaml").write_text(own, encoding="utf-8")
        self._env = self._environment(folder)
        for stack in stacks:
            (files / f"Pulumi.{stack}.yaml").write_text(json.dumps(stack_file()))  # JSON is YAML
            self.project.ensure_stack(stack)

    def _wrapper(self, folder: Path) -> Path:
        folder.mkdir()
        command = shlex.join([sys.executable, "-P", "-m", "benchmarks.watched_provider"])
        script = folder / PLUGIN
        script.write_text(f'#!/bin/sh\nexec {command} {shlex.quote(str(self._notes))}/$$.json "$@"\n')
        script.chmod(0o755)
        return folder

    def _environment(self, folder: Path) -> dict[str, str]:
        extra = {"RUNPOD_API_BASE_URL": self.at.url}
        return pulumi_env(_base(), cli=self._cli, backend=folder / "state", passphrase=PASSPHRASE, home=folder / "pulumi-home", extra=extra)

    @property
    def project(self) -> Project:
        """Without a key: previews need none."""
        return Project(self._project, self._env)

    def up(self, stack: str) -> Sample:
        """From the first request to the last."""
        self.at.arrivals.clear()
        with stopwatch() as watch:
            _worked(Project(self._project, {**self._env, "RUNPOD_API_KEY": self.at.key}).up(stack))
        return watch.sample(len(self.at.arrivals), self.at.span())

    def calls_of_up(self, stack: str) -> list[Call]:
        """The requests of an `up`, in their order."""
        self._clear()
        self.up(stack)
        return [call for noted in self._noted() for call in noted["rest"]]

    def shares(self, stack: str, what: str) -> dict[str, Sample]:
        """One watched preview: processor seconds of the plugin, and seconds with at least one call in it."""
        self._clear()
        with stopwatch() as watch:
            _worked(self.project.preview(stack).done)
        noted = self._noted()
        calls = [(begin, end) for one in noted for _, begin, end in one["calls"]]
        return {
            f"{what}: processor": watch.sample(len(calls), sum(one["cpu"] for one in noted)),
            f"{what}: in calls": watch.sample(len(calls), covered(calls)),
            f"{what}: whole preview": watch.sample(ENDPOINTS),
        }

    def one_by_one(self) -> Sample:
        """`pulumi preview --json` of each stack, one after another."""
        with stopwatch() as watch:
            for stack in STACKS:
                _worked(self.project.run("preview", "--json", "--show-sames", "--stack", stack))
        return watch.sample(len(STACKS))

    def nightbatch_preview(self) -> Sample:
        """The command of the CLI on all of them, its own start and the report included."""
        report = self._notes / "report.md"
        with stopwatch() as watch:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "cli", "preview", *STACKS, "--out", str(report)],
                cwd=self._project,
                env={**self._env, "NIGHTBATCH_PROJECT": str(self._project)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        if done.returncode != 0 or not all(stack in report.read_text(encoding="utf-8") for stack in STACKS):
            raise CannotMeasure(f"nightbatch preview ended with {done.returncode}: {(done.stderr + done.stdout)[-600:]}")
        return watch.sample(len(STACKS))

    def _clear(self) -> None:
        for path in self._notes.glob("*.json"):
            path.unlink()

    def _noted(self) -> list[dict[str, Any]]:
        noted = [json.loads(path.read_text()) for path in self._notes.glob("*.json")]
        if not any(one["calls"] for one in noted):
            raise CannotMeasure("the watched provider has noted nothing.")
        return noted


def _worked(done: Done) -> None:
    done.expect(where="a preview or an up of the benchmark")


def _base() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in KEPT_ENV}


def stack_file() -> dict[str, Any]:
    """Ten endpoints as a stack file has them, and the ceilings that they need."""
    digest = "registry.example.com/nightbatch-worker@sha256:" + "1" * 64
    endpoints = [
        {
            "name": f"model-{number}",
            "model": f"acme/model-{number}",
            "tasks": ["embed"],
            "image": digest,
            "gpu": {"pools": ["AMPERE_24", "ADA_24"]},
            "workers": {"peak": 2},
            "executionTimeout": 600,
        }
        for number in range(ENDPOINTS)
    ]
    store = {"bucket": "our-batches", "endpointUrl": "https://s3.eu-west-1.amazonaws.com", "prefix": "nightbatch"}
    rules = {"maxWorkers": 10 * ENDPOINTS, "maxUsdPerHour": 100 * ENDPOINTS}
    settings = {"store": store, "rules": rules, "endpoints": endpoints}
    return {"config": {f"nightbatch:{key}": value for key, value in settings.items()}}


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def engine_parallel(project: Project) -> int:
    """How many operations the engine has under way at once unless told otherwise; its own help says it."""
    said = project.run("up", "--help").stdout
    found = re.search(r"--parallel\b.*\(default (\d+)\)", said)
    if found is None:
        raise CannotMeasure("`pulumi up --help` does not say how much it does at once.")
    return int(found[1])


def version(project: Project) -> str:
    """Of the pulumi command."""
    return project.run("version").stdout.strip().removeprefix("v")


# --- the script ----------------------------------------------------------------------------------------------------------------------


def in_order(calls: Sequence[Call]) -> list[list[Call]]:
    """As steps: each read is one, because what follows it depends on it; what is made is made at once."""
    steps: list[list[Call]] = []
    for call in calls:
        if steps and call[0] == steps[-1][0][0] == "POST":
            steps[-1].append(call)
        else:
            steps.append([call])
    return steps


def script(file: Path, steps: Sequence[Sequence[Call]], at_once: int, at: Cloud) -> Sample:
    """peers/rest_calls.py sends them all; from the first request to the last. What it loads is not counted."""
    file.write_text(json.dumps(steps))
    at.arrivals.clear()
    with stopwatch() as watch:
        process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "benchmarks" / "peers" / "rest_calls.py"), str(file), str(at_once)],
            env={**_base(), "RUNPOD_API_BASE_URL": at.url, "RUNPOD_API_KEY": at.key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stopper = threading.Timer(SCRIPT_S, process.kill)
        stopper.start()
        try:
            assert process.stdout is not None
            process.stdout.readline()
            _, errors = process.communicate("go\n")
        finally:
            stopper.cancel()
            process.kill()
    wanted = sum(map(len, steps))
    if process.returncode != 0 or len(at.arrivals) != wanted:
        raise CannotMeasure(f"the script sent {len(at.arrivals)} of {wanted} requests: {errors[-400:]}")
    return watch.sample(wanted, at.span())
