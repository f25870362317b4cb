"""contract: StackFacts, what a run needs to know of its stack, in one frozen model, and the loaders that fill it.

Loaders: the emulator's (the file that it writes), and a file or the environment. Pulumi outputs become the third. Secrets are apart
(`StackSecrets`), so that facts can be pinned in a plan and printed; a secret never is.

Environment (all optional where a facts file says it): RUNPOD_API_KEY, RUNPOD_ENDPOINT_BASE_URL, NIGHTBATCH_FACTS (a file),
NIGHTBATCH_S3_BUCKET, NIGHTBATCH_S3_ENDPOINT_URL, NIGHTBATCH_S3_ACCESS_KEY_ID, NIGHTBATCH_S3_SECRET_ACCESS_KEY, and for keys of the worker
that differ from the client's NIGHTBATCH_WORKER_S3_ACCESS_KEY_ID, NIGHTBATCH_WORKER_S3_SECRET_ACCESS_KEY.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from contract.errors import EmulatorError, UsageError
from contract.models import VERSION, Count, Model, S3Config, Seconds, TaskKind, Usd, convert, decode

API_URL: Final = "https://api.runpod.ai/v2"
"""RunPod's data plane (docs: serverless/endpoints/send-requests)."""
STATE_ENV: Final = "NIGHTBATCH_HOME"


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


class StackFacts(Model, frozen=True, kw_only=True):
    """A stack as the pipeline sees it. Holds no secret."""

    version: int = VERSION
    stack: str
    api_url: str = API_URL
    store: StoreFacts
    endpoints: tuple[EndpointFacts, ...]

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
    """The stack called `name`. `local` is the emulator's unless a file is named; others come from a file and the environment."""
    file = facts_file or (Path(environ["NIGHTBATCH_FACTS"]) if environ.get("NIGHTBATCH_FACTS") else None)
    if file is None and name == "local":
        return load_emulator(local_facts_path(environ))
    return load_file(name, file, environ)


def load_emulator(path: Path) -> Stack:
    """Facts that a running emulator wrote. Raises EmulatorError when there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        raise EmulatorError("the local emulator is not running.", fix="Start it: nightbatch local up") from None
    local: LocalFile = decode(data, LocalFile, where=str(path))
    return Stack(local.facts, StackSecrets(local.api_key, local.s3, local.worker_s3))


def load_file(name: str, path: Path | None, environ: Mapping[str, str]) -> Stack:
    """Facts from a JSON file (or only the environment), secrets from the environment. Every missing thing is named at once."""
    if path is None:
        raise UsageError(
            f"nothing is known of stack '{name}'.",
            fix="Name its facts file in NIGHTBATCH_FACTS (see docs/stacks.md), or use --stack local with `nightbatch local up`.",
        )
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror}).", where=str(path)) from None
    except msgspec.DecodeError as error:
        raise UsageError(f"not JSON ({error}).", where=str(path)) from None
    if isinstance(raw, dict):
        store = raw.setdefault("store", {})
        if isinstance(store, dict):
            for key, variable in (("bucket", "NIGHTBATCH_S3_BUCKET"), ("endpoint_url", "NIGHTBATCH_S3_ENDPOINT_URL")):
                if environ.get(variable):
                    store[key] = environ[variable]
        if environ.get("RUNPOD_ENDPOINT_BASE_URL"):
            raw["api_url"] = environ["RUNPOD_ENDPOINT_BASE_URL"]
    facts: StackFacts = convert(raw, StackFacts, where=str(path))
    check_url(facts.api_url, "RUNPOD_ENDPOINT_BASE_URL, or `api_url` of the facts file")
    if facts.stack != name:
        raise UsageError(f"holds the facts of stack '{facts.stack}', not of '{name}'.", where=str(path))
    return Stack(facts, secrets_from(environ, facts.store))


def secrets_from(environ: Mapping[str, str], store: StoreFacts) -> StackSecrets:
    """API key and S3 keys from the environment. Raises UsageError naming every variable that is missing."""
    check_url(store.endpoint_url, "NIGHTBATCH_S3_ENDPOINT_URL, or `endpoint_url` of the facts file")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", store.bucket):
        raise UsageError(
            f"{store.bucket!r} is not the name of a bucket.",
            where="NIGHTBATCH_S3_BUCKET, or `bucket` of the facts file",
            fix="See docs/stacks.md.",
        )
    names = ("RUNPOD_API_KEY", "NIGHTBATCH_S3_ACCESS_KEY_ID", "NIGHTBATCH_S3_SECRET_ACCESS_KEY")
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

    return StackSecrets(environ["RUNPOD_API_KEY"], keys("NIGHTBATCH_S3"), keys("NIGHTBATCH_WORKER_S3"))


def check_url(url: str, where: str) -> None:
    """Raises UsageError when `url` is no http address with a host."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and re.fullmatch(r"[!-~]+", url) is not None
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"'{url}' is not an address.", where=where, fix="It looks like https://host or http://127.0.0.1:8000.")
