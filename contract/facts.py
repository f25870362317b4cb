"""contract: StackFacts, what a run needs to know of its stack, in one frozen model, and the loaders that fill it.

Loaders: the emulator's (the file that it writes), a file, and the outputs of the Pulumi stack (through the `pulumi` command, or from a
file that `pulumi stack output --json` wrote). The environment adds to all but the first. Secrets are apart (`StackSecrets`), so that facts
can be pinned in a plan and printed; a secret never is.

Environment (all optional where a facts file says it): RUNPOD_API_KEY (of one stack RUNPOD_API_KEY_STACK), RUNPOD_ENDPOINT_BASE_URL,
NIGHTBATCH_FACTS (a file), NIGHTBATCH_PROJECT (the folder of Pulumi.yaml; else the clone's root), NIGHTBATCH_S3_BUCKET,
NIGHTBATCH_S3_ENDPOINT_URL, NIGHTBATCH_S3_ACCESS_KEY_ID, NIGHTBATCH_S3_SECRET_ACCESS_KEY, and for keys of the worker that differ from the
client's NIGHTBATCH_WORKER_S3_ACCESS_KEY_ID, NIGHTBATCH_WORKER_S3_SECRET_ACCESS_KEY.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from contract import process
from contract.errors import EmulatorError, InfrastructureError, UsageError
from contract.models import VERSION, Count, Model, S3Config, Seconds, TaskKind, Usd, convert, decode, encode

API_URL: Final = "https://api.runpod.ai/v2"
"""RunPod's data plane (docs: serverless/endpoints/send-requests)."""
API_KEY_ENV: Final = "RUNPOD_API_KEY"
STATE_ENV: Final = "NIGHTBATCH_HOME"
PROJECT_ENV: Final = "NIGHTBATCH_PROJECT"
CLONE: Final = Path(__file__).resolve().parent.parent
PULUMI_S: Final = 60.0
"""Reading one output takes about a second; a state backend far away some more."""
DECLARED: Final = "declared.json"
OUTPUT: Final = "facts"
"""The output of the Pulumi program that is exactly StackFacts."""


class EndpointFacts(Model, frozen=True, kw_only=True):
    """One queue endpoint. `usd_per_second`: of one worker, all its GPUs; `shards_per_worker`: jobs that a worker runs at once."""

    name: str
    id: str
    model: str
    tasks: tuple[TaskKind, ...]
    gpu: str
    gpu_count: Annotated[int, msgspec.Meta(ge=1)] = 1
    usd_per_second: Usd
    workers_min: Count = 0
    workers_max: Count
    scaler: Literal["QUEUE_DELAY", "REQUEST_COUNT"] = "QUEUE_DELAY"
    scaler_value: float = 4
    shards_per_worker: Annotated[int, msgspec.Meta(ge=1)] = 2
    idle_timeout_s: Seconds = 5
    execution_timeout_s: Seconds = 600
    cold_start_s: Seconds = 60
    max_model_len: int | None = None
    image: str | None = None


class StoreFacts(Model, frozen=True, kw_only=True):
    """Where runs are kept: `s3://bucket/prefix/runs/RUN_ID`."""

    bucket: str
    endpoint_url: str
    prefix: str = ""

    @property
    def folder(self) -> str:
        """The prefix as keys begin with it: without a slash at either end."""
        return self.prefix.strip("/")


class StackFacts(Model, frozen=True, kw_only=True):
    """A stack as the pipeline sees it. Holds no secret. `endpoints` are the queue endpoints, which runs use; `balanced` the load-balancing
    ones, which no run uses: doctor, status and stop look after them (they have no tasks, and what is said of jobs means nothing there)."""

    version: int = VERSION
    stack: str
    api_url: str = API_URL
    store: StoreFacts
    endpoints: tuple[EndpointFacts, ...]
    balanced: tuple[EndpointFacts, ...] = ()

    @property
    def everything(self) -> tuple[EndpointFacts, ...]:
        """All endpoints that cost something."""
        return self.endpoints + self.balanced

    def endpoint_for(self, model: str, task: TaskKind) -> EndpointFacts:
        """The endpoint that serves `model` (by endpoint name or by model) for `task`. Raises UsageError that lists what there is."""
        fitting = [e for e in self.endpoints if model in (e.name, e.model) and task in e.tasks]
        if len(fitting) == 1:
            return fitting[0]
        have = ", ".join(f"{e.name} ({e.model}: {', '.join(e.tasks)})" for e in self.endpoints) or "none"
        problem = "no endpoint serves" if not fitting else "more than one endpoint serves"
        raise UsageError(f"{problem} model '{model}' for task '{task}' on stack '{self.stack}'.", fix=f"Endpoints there: {have}.")


@dataclass(frozen=True, repr=False)
class StackSecrets:
    """What opens the stack's doors. Never printed, pinned, logged or written by anything but the emulator's own state (mode 0600)."""

    api_key: str
    s3: S3Config
    worker_s3: S3Config

    def __repr__(self) -> str:
        return "StackSecrets(<hidden>)"

    @property
    def values(self) -> tuple[str, ...]:
        """Every secret string, for the redaction of messages and for the tests that search for them."""
        keys = (self.api_key, self.s3.accessSecret, self.worker_s3.accessSecret, self.s3.accessId, self.worker_s3.accessId)
        return tuple(dict.fromkeys(keys))


@dataclass(frozen=True)
class Stack:
    """Facts and secrets together, as a loader found them."""

    facts: StackFacts
    secrets: StackSecrets


class LocalFile(Model, frozen=True, kw_only=True):
    """facts.json in the emulator's state folder (mode 0600): the one place where facts and secrets stand together."""

    version: int = VERSION
    facts: StackFacts
    api_key: str
    s3: S3Config
    worker_s3: S3Config
    pid: int


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's local state is: $NIGHTBATCH_HOME, else $XDG_STATE_HOME/nightbatch, else ~/.local/state/nightbatch."""
    if home := environ.get(STATE_ENV):
        return Path(home)
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "nightbatch"


def local_facts_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the emulator that `nightbatch local up` started writes its facts."""
    return state_dir(environ) / "local" / "facts.json"


def load_stack(name: str, *, environ: Mapping[str, str] = os.environ, facts_file: Path | None = None) -> Stack:
    """The stack called `name`: from the file, where one is named; `local` from the emulator; others from the Pulumi project's outputs."""
    file = facts_file or (Path(environ["NIGHTBATCH_FACTS"]) if environ.get("NIGHTBATCH_FACTS") else None)
    if file is None and name == "local":
        return load_emulator(local_facts_path(environ))
    project = pulumi_project(environ) if file is None else None
    if project is not None:
        return load_pulumi(name, project, environ)
    return load_file(name, file, environ)


def load_emulator(path: Path) -> Stack:
    """Facts that a running emulator wrote. Raises EmulatorError when there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        raise EmulatorError("the local emulator is not running.", fix="Start it: nightbatch local up") from None
    local: LocalFile = decode(data, LocalFile, where=str(path))
    return Stack(_as_declared(local.facts, path.parent), StackSecrets(local.api_key, local.s3, local.worker_s3))


def write_declared(folder: Path, facts: StackFacts) -> None:
    """Beside the emulator's own facts, which tell what is live: what the Pulumi stack `local` declares (`local up --pulumi`)."""
    fresh = folder / f"{DECLARED}.{os.getpid()}"
    fresh.write_bytes(encode(facts))
    fresh.replace(folder / DECLARED)


def _as_declared(live: StackFacts, folder: Path) -> StackFacts:
    """The emulator's facts, with its endpoints as Pulumi declares them where it made them."""
    path = folder / DECLARED
    if not path.exists():
        return live
    facts: StackFacts = decode(path.read_bytes(), StackFacts, where=str(path))
    declared = {endpoint.id: endpoint for endpoint in facts.endpoints}
    endpoints = tuple(declared.get(endpoint.id, endpoint) for endpoint in live.endpoints)
    return msgspec.structs.replace(live, endpoints=endpoints, balanced=facts.balanced)


def load_file(name: str, path: Path | None, environ: Mapping[str, str]) -> Stack:
    """Facts from a JSON file, secrets from the environment. The file holds StackFacts, or all outputs of the Pulumi stack as
    `pulumi stack output --json` prints them. Every missing thing is named at once."""
    if path is None:
        raise UsageError(
            f"nothing is known of stack '{name}'.",
            fix="Name its facts file in NIGHTBATCH_FACTS (see docs/stacks.md), or use --stack local with `nightbatch local up`.",
        )
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror}).", where=str(path)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"not JSON ({error}).", where=str(path)) from None
    if isinstance(raw, dict) and isinstance(raw.get(OUTPUT), dict):
        raw = raw[OUTPUT]
    return stack_from(name, raw, environ, where=str(path))


def stack_from(name: str, raw: object, environ: Mapping[str, str], *, where: str) -> Stack:
    """Decoded StackFacts, with what the environment says of addresses put over them, and the environment's secrets."""
    if isinstance(raw, dict):
        store = raw.setdefault("store", {})
        if isinstance(store, dict):
            for key, variable in (("bucket", "NIGHTBATCH_S3_BUCKET"), ("endpoint_url", "NIGHTBATCH_S3_ENDPOINT_URL")):
                if environ.get(variable):
                    store[key] = environ[variable]
        if environ.get("RUNPOD_ENDPOINT_BASE_URL"):
            raw["api_url"] = environ["RUNPOD_ENDPOINT_BASE_URL"]
    facts: StackFacts = convert(raw, StackFacts, where=where)
    check_url(facts.api_url, "RUNPOD_ENDPOINT_BASE_URL, or `api_url` of the facts file")
    if facts.stack != name.rpartition("/")[2]:  # Pulumi's full name may have an organisation and the project before it
        raise UsageError(f"holds the facts of stack '{facts.stack}', not of '{name}'.", where=where)
    return Stack(facts, secrets_from(environ, facts.store, facts.stack))


# --- Pulumi's outputs ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """What a command came to. `returncode` None: it was stopped at its deadline."""

    returncode: int | None
    stdout: str
    stderr: str


RunCommand = Callable[[Sequence[str], Path, Mapping[str, str], float], Ran]
"""(argv, working folder, environment, seconds) -> Ran. Raises OSError when there is no such program."""


def pulumi_project(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of Pulumi.yaml: $NIGHTBATCH_PROJECT, else the clone's root, else None. Raises UsageError for a folder without one."""
    if named := environ.get(PROJECT_ENV):
        folder = Path(named).expanduser()
        if not (folder / "Pulumi.yaml").is_file():
            raise UsageError("holds no Pulumi.yaml.", where=f"{PROJECT_ENV}={named}", fix="Set it to the folder that does.")
        return folder
    return CLONE if (CLONE / "Pulumi.yaml").is_file() else None


def load_pulumi(
    name: str,
    project_dir: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    run: RunCommand | None = None,
    timeout_s: float = PULUMI_S,
) -> Stack:
    """Facts from the output `facts` of the Pulumi stack `name`, secrets from the environment.

    Runs `pulumi stack output facts --json --stack NAME` in `project_dir`; nothing is changed, no program and no plugin is started. Raises
    UsageError when the command, the stack, its output, a login or the passphrase is missing, InfrastructureError when Pulumi failed.
    """
    run = run or run_command
    where = f"Pulumi stack '{name}' in {project_dir}"
    program = pulumi_program(environ, run)
    if program is None:
        raise UsageError(
            f"nothing is known of stack '{name}': its facts are outputs of Pulumi, whose command is not on PATH.",
            fix="Put `pulumi` on PATH (scripts/pulumi-cli gets it), or name an exported file in NIGHTBATCH_FACTS: see docs/stacks.md.",
        )
    argv = (program, "stack", "output", OUTPUT, "--json", "--stack", name, "--non-interactive", "--color", "never")
    env = {**environ, "PULUMI_SKIP_UPDATE_CHECK": "1", "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "1"}
    try:
        ran = run(argv, project_dir, env, timeout_s)
    except OSError as error:
        raise InfrastructureError(f"`pulumi` cannot be run ({error.strerror}).", where=program) from None
    if ran.returncode != 0:
        raise _pulumi_error(name, ran, where, timeout_s)
    try:
        raw = msgspec.json.decode(ran.stdout)
    except msgspec.DecodeError:
        raise InfrastructureError("`pulumi stack output` did not print JSON.", where=where) from None
    return stack_from(name, raw, environ, where=f"{where}, output `{OUTPUT}`")


def pulumi_program(environ: Mapping[str, str], run: RunCommand | None = None) -> str | None:
    """The `pulumi` of PATH, else the one that scripts/pulumi-cli got before; None where there is none. Nothing is downloaded or built."""
    found = shutil.which("pulumi", path=environ.get("PATH", ""))
    script = CLONE / "scripts" / "pulumi-cli"
    if found is None and script.is_file():
        try:
            ran = (run or run_command)((sys.executable, str(script), "--check"), CLONE, environ, PULUMI_S)
        except OSError:
            return None
        if ran.returncode == 0 and ran.stdout.strip():
            found = shutil.which("pulumi", path=ran.stdout.strip())
    return found


def run_command(argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> Ran:
    """Run a program without a terminal; at the deadline it and what it started are killed: it only reads, so it has nothing to save."""
    ended = process.run(argv, cwd=cwd, env=env, timeout_s=timeout_s)
    return Ran(None, "", "") if ended.timed_out else Ran(ended.returncode, ended.stdout, ended.stderr)


def _pulumi_error(name: str, ran: Ran, where: str, timeout_s: float) -> UsageError | InfrastructureError:
    """Pulumi's own words (3.276), turned into what to do."""
    if ran.returncode is None:
        return InfrastructureError(
            f"`pulumi stack output` did not end within {timeout_s:g} s.", where=where, fix="Is its backend reachable?"
        )
    said = " ".join(line.removeprefix("error: ") for line in (ran.stderr or ran.stdout).splitlines() if line.strip())
    if "no stack named" in said or "not find stack" in said:
        return UsageError(
            f"nothing is known of stack '{name}': Pulumi has no stack of this name.",
            where=where,
            fix="`pulumi stack ls` lists those there are.",
        )
    if "does not have output" in said:
        return UsageError(
            f"nothing is known of stack '{name}': it has no facts yet.", where=where, fix=f"Run `pulumi up --stack {name}` first."
        )
    if "passphrase" in said:
        return UsageError("Pulumi needs the stack's passphrase.", where=where, fix="Set PULUMI_CONFIG_PASSPHRASE, or ..._PASSPHRASE_FILE.")
    if "pulumi login" in said or "PULUMI_ACCESS_TOKEN" in said or "logged in" in said:
        return UsageError("Pulumi is not logged in to its state backend.", where=where, fix="Set PULUMI_BACKEND_URL, or `pulumi login`.")
    return InfrastructureError(f"`pulumi stack output` failed (exit code {ran.returncode}): {said[:500] or 'no message'}", where=where)


def api_key_env(stack: str, environ: Mapping[str, str]) -> str:
    """The variable that holds the RunPod key of a stack: RUNPOD_API_KEY_STACK (its name in capitals, `_` for all but letters and digits)
    where that is set, so that stacks of several accounts can be looked at from one place; else RUNPOD_API_KEY."""
    own = f"{API_KEY_ENV}_{re.sub(r'[^A-Z0-9]', '_', stack.rpartition('/')[2].upper())}"
    return own if environ.get(own) else API_KEY_ENV


def secrets_from(environ: Mapping[str, str], store: StoreFacts, stack: str = "") -> StackSecrets:
    """API key and S3 keys from the environment. Raises UsageError naming every variable that is missing."""
    key = api_key_env(stack, environ)
    check_url(store.endpoint_url, "NIGHTBATCH_S3_ENDPOINT_URL, or `endpoint_url` of the facts file")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", store.bucket):
        raise UsageError(
            f"{store.bucket!r} is not the name of a bucket.",
            where="NIGHTBATCH_S3_BUCKET, or `bucket` of the facts file",
            fix="See docs/stacks.md.",
        )
    names = (key, "NIGHTBATCH_S3_ACCESS_KEY_ID", "NIGHTBATCH_S3_SECRET_ACCESS_KEY")
    missing = [n for n in names if not environ.get(n)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be set in the environment.", fix="See docs/stacks.md.")
    workers = ("NIGHTBATCH_WORKER_S3_ACCESS_KEY_ID", "NIGHTBATCH_WORKER_S3_SECRET_ACCESS_KEY")
    odd = [n for n in (*names, *workers) if not re.fullmatch(r"[!-~]*", environ.get(n, ""))]
    if odd:
        raise UsageError(
            f"{', '.join(odd)} holds a space, a line's end or another character that no key has.", fix="Was it copied whole, and no more?"
        )
    if environ.get("NIGHTBATCH_S3_SESSION_TOKEN") or environ["NIGHTBATCH_S3_ACCESS_KEY_ID"].startswith("ASIA"):
        raise UsageError("temporary S3 keys cannot be used: s3Config has no field for a session token.", fix="Make a permanent key.")

    def keys(prefix: str) -> S3Config:
        return S3Config(
            accessId=environ.get(f"{prefix}_ACCESS_KEY_ID") or environ["NIGHTBATCH_S3_ACCESS_KEY_ID"],
            accessSecret=environ.get(f"{prefix}_SECRET_ACCESS_KEY") or environ["NIGHTBATCH_S3_SECRET_ACCESS_KEY"],
            bucketName=store.bucket,
            endpointUrl=store.endpoint_url,
        )

    return StackSecrets(environ[key], keys("NIGHTBATCH_S3"), keys("NIGHTBATCH_WORKER_S3"))


def check_url(url: str, where: str) -> None:
    """Raises UsageError when `url` is no http address with a host."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and re.fullmatch(r"[!-~]+", url) is not None
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"'{url}' is not an address.", where=where, fix="It looks like https://host or http://127.0.0.1:8000.")
