"""cli: `nightbatch local`: the emulator with this project's own workers, in the background. Calls emulator.local, prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.infra import needs_pulumi
from cli.output import emit, say
from cli.policy import program, session
from contract.errors import UsageError

if TYPE_CHECKING:
    from emulator.config import EmulatorConfig, EndpointConfig
    from emulator.local import LocalStatus
    from infra.review.engine import Project

ROOT = Path(__file__).resolve().parent.parent
LOCAL = "local"
STACK_FILE = "infra/stacks/Pulumi.local.yaml"
FORGET = "delete the state folder ($NIGHTBATCH_HOME/local) to start anew"
NAMED = {"minilm": "embed", "smollm2": "generate"}
"""The models that every local stack serves; more come through --model."""


def up(models: Sequence[str] = (), *, pulumi: bool = False) -> int:
    """Start it, or say that it runs. Everything that a worker would need minutes for is done here, before it could be billed."""
    from emulator import local

    needs_server()
    directory = local.local_dir()
    if pulumi:
        return up_by_pulumi(directory, models)
    by_pulumi = state_path(directory).exists()
    if by_pulumi and models:
        raise UsageError(f"this local stack was made by Pulumi, from {STACK_FILE}.", where="--model", fix=f"Declare it there, or {FORGET}.")
    if local.running(directory) is None:
        python = worker_python()
        config = with_models(local.default_config(directory, worker_python=python, code=ROOT, worker_env=worker_environment()), models)
        for endpoint in config.endpoints:
            prepare(python, endpoint.model)
        config = without_endpoints(config) if by_pulumi else config  # REST v2's own survive the emulator's restart
    else:
        config = local.default_config(directory, worker_python=sys.executable, code=ROOT)
    status = local.up(config, on_progress=say)
    have = {(found.name, found.model) for found in local.stack(directory).facts.endpoints}
    lacking = [model for model in models if not any(parse_model(model)[0] in pair for pair in have)]
    if lacking:
        raise UsageError(
            f"the local stack runs already, without {', '.join(lacking)}.", fix=f"Stop it ({program()} local down), then start it again."
        )
    return show(status)


def up_by_pulumi(directory: Path, models: Sequence[str]) -> int:
    """Start it with no endpoint, and let a real `pulumi up` of the stack `local` make them through the emulator's REST v2."""
    from contract.facts import StackFacts, write_declared
    from contract.models import convert
    from emulator import local
    from infra.review import engine

    needs_pulumi()
    if models:
        raise UsageError(f"with --pulumi the models are those of {STACK_FILE}.", where="--model", fix="Leave one of the two out.")
    source, cli = engine.project_folder(), engine.find_cli()  # before anything is started
    if local.running(directory) is None:
        python = worker_python()
        for model in NAMED:
            prepare(python, model)
        config = local.default_config(directory, worker_python=python, code=ROOT, worker_env=worker_environment())
    else:
        config = local.default_config(directory, worker_python=sys.executable, code=ROOT)
        if not state_path(directory).exists():
            raise UsageError(
                "the local stack runs already, and Pulumi did not make it.", fix=f"Stop it ({program()} local down), then start it again."
            )
    status = local.up(without_endpoints(config), on_progress=say)
    project = local_project(directory, source, cli)
    say(f"pulumi up of stack local ({cli})")
    project.ensure_stack(LOCAL)
    project.up(LOCAL, "--refresh", "--suppress-outputs", on_line=lambda line: say(f"  {line}") if line.strip() else None).expect(
        where="stack local"
    )
    facts: StackFacts = convert(project.outputs(LOCAL)["facts"], StackFacts, where="outputs of stack local")
    write_declared(directory, facts)
    return show(local.status(directory) if status.state == "running" else status, by_pulumi=True)


def local_project(directory: Path, source: Path, cli: Path) -> Project:
    """The project of a running local stack that `up --pulumi` made: its program and stack file as they are in `source` now, its state in
    the state folder. Raises EmulatorError where the stack does not run."""
    from emulator import local
    from infra.review import engine

    stack = local.stack(directory)
    session.hide(stack.secrets.values)
    api_url = stack.facts.api_url
    env = engine.pulumi_env(
        {name: value for name, value in os.environ.items() if not name.startswith(("PULUMI_", "RUNPOD_", "NIGHTBATCH_S3_"))},
        cli=cli,
        backend=state_path(directory),
        passphrase="local",  # the state holds nothing but throw-away keys of this emulator
        home=directory / "pulumi-home",
        extra={
            "RUNPOD_API_KEY": stack.secrets.api_key,
            "RUNPOD_API_BASE_URL": api_url.removesuffix("/v2"),
            "RUNPOD_ENDPOINT_BASE_URL": api_url,
            "NIGHTBATCH_S3_BUCKET": stack.facts.store.bucket,
            "NIGHTBATCH_S3_ENDPOINT_URL": stack.facts.store.endpoint_url,
        },
    )
    return engine.Project(copy_project(source, directory / "project"), env)


def needs_server() -> None:
    """Refuse, before gigabytes are installed for a worker, where this installation has no S3 server: it only submits."""
    from contract.errors import EmulatorError
    from emulator.s3 import find_weed

    try:
        find_weed()
    except EmulatorError:
        raise UsageError(
            "this installation only submits: it has no S3 server for a local stack.",
            fix=f"In a clone: NIGHTBATCH_ENV=client {program()} local up. Else: pip install 'nightbatch[emulator]'.",
        ) from None


def without_endpoints(config: EmulatorConfig) -> EmulatorConfig:
    """The same workers, whatever image is named, and no endpoint: those come through REST v2."""
    import msgspec

    return msgspec.structs.replace(config, endpoints=())


def copy_project(source: Path, folder: Path) -> Path:
    """A project of its own beside the state, whose program is the clone's: Pulumi writes a stack's salt into its stack file, and a clone
    must not change because somebody starts the local stack. What an earlier one wrote is kept.

    The program is linked, not copied, so its own links are looked at: one that leads out of the project, or around in it, is a UsageError.
    Nothing is ever written through a link that is in the way."""
    source = source.resolve()
    stay_inside(source, "Pulumi.yaml", STACK_FILE, "infra")
    infra, stacks = folder / "infra", folder / "infra" / "stacks"
    for made in (folder, infra, stacks):
        if made.is_symlink():
            made.unlink()
        made.mkdir(parents=True, exist_ok=True)
    write_anew(folder / "Pulumi.yaml", (source / "Pulumi.yaml").read_bytes())
    wanted = {path.name: path.resolve() for path in (source / "infra").iterdir() if path.name not in ("stacks", "__pycache__")}
    for there in infra.iterdir():
        if there.is_symlink() and (there.name not in wanted or there.readlink() != wanted[there.name]):
            there.unlink()  # of another clone, or of a file that is no more
    for name, target in wanted.items():
        link = infra / name
        if not link.is_symlink():
            if link.exists():
                raise UsageError("is in the way of a link to the program.", where=str(link), fix="Move it away: it is not Nightbatch's.")
            link.symlink_to(target)
    file = stacks / Path(STACK_FILE).name
    kept = file.read_text().splitlines() if file.is_file() and not file.is_symlink() else []
    salt = [line for line in kept if line.startswith("encryptionsalt:")]
    write_anew(file, ("\n".join([(source / STACK_FILE).read_text().rstrip("\n"), *salt]) + "\n").encode())
    return folder


def stay_inside(project: Path, *names: str) -> None:
    """Raises UsageError where one of these files and folders of a project, or a link below one, leads out of the project or back above
    itself. `project` is resolved already."""

    def check(path: Path) -> None:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a loop, before Python 3.13
            raise UsageError("is a link that leads nowhere.", where=str(path), fix="Remove it, or put there what it should be.") from None
        if not target.is_relative_to(project):
            raise UsageError(
                f"is a link out of the project, to {target}.", where=str(path), fix="Copy there what it leads to: a project is one folder."
            )
        if path.is_symlink() and path.parent.resolve().is_relative_to(target):
            raise UsageError(
                "is a link to a folder that it is in itself.", where=str(path), fix="Remove it: whoever follows it never ends."
            )

    for name in names:
        check(project / name)
        for folder, folders, files in os.walk(project / name):  # which does not go into linked folders
            folders[:] = [one for one in folders if one != "__pycache__"]
            for entry in (*folders, *files):
                if (path := Path(folder) / entry).is_symlink():
                    check(path)


def write_anew(path: Path, data: bytes) -> None:
    """The file with this content, in the place of whatever was there: a link there is replaced, not followed."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.write_bytes(data)
    fresh.replace(path)


def state_path(directory: Path) -> Path:
    """Pulumi's state of the local stack; where it is, the local stack's endpoints are Pulumi's."""
    return directory / "pulumi"


def down() -> int:
    """Stop it, and say whether there was one."""
    from emulator import local

    stopped = local.down(local.local_dir(), on_progress=say)
    if session.json_output:
        emit({"state": "stopped", "was_running": stopped})
    else:
        print("stopped" if stopped else "the local stack was not running")
    return 0


def status() -> int:
    """What runs."""
    from emulator import local

    return show(local.status(local.local_dir()))


def show(status: LocalStatus, *, by_pulumi: bool = False) -> int:
    """Print a status, with the endpoints' models and prices where the stack is up. Always 0: a stopped stack is no error."""
    import msgspec

    from emulator import local

    record: dict[str, Any] = msgspec.to_builtins(status)
    if status.state == "running":
        facts = {endpoint.id: endpoint for endpoint in local.stack(local.local_dir()).facts.endpoints}
        for endpoint in record["endpoints"]:
            found = facts[endpoint["id"]]
            endpoint |= {"name": found.name, "model": found.model, "tasks": list(found.tasks), "usd_per_second": found.usd_per_second}
        record["endpoints"] = sorted(record["endpoints"], key=lambda one: str(one["name"]))  # Pulumi makes them in any order
    if by_pulumi:
        record["made_by"] = "pulumi"
    if session.json_output:
        emit(record)
        return 0
    if status.state != "running":
        print(f"the local stack is {status.state}" + ("" if status.state == "starting" else f"; start it with: {program()} local up"))
        return 0
    print(f"the local stack is running (process {status.pid}{', endpoints made by pulumi up' if by_pulumi else ''})")
    print(f"  RunPod   {status.api_url}")
    print(f"  S3       {status.s3_url}, bucket {status.bucket}")
    print(f"  log      {status.log}; each worker's own: {Path(status.directory) / local.LOGS}/ENDPOINT/WORKER.log")
    for endpoint in record["endpoints"]:
        workers = ", ".join(f"{count} {state}" for state, count in sorted(endpoint["workers"].items())) or "no workers"
        print(
            f"  {endpoint['name']:<8} {', '.join(endpoint['tasks'])} with {endpoint['model']}: {workers}; {endpoint['queued']} queued, "
            f"{endpoint['in_progress']} running, {endpoint['completed']} done, {endpoint['failed']} failed; "
            f"{endpoint['billed_s']} s billed, ${endpoint['usd']:.5f}"
        )
    return 0


def last_words(endpoint: str, directory: Path | None = None) -> tuple[str, Path] | None:
    """Of the last worker of an endpoint that ended before it asked for work: the last line of its log, and the log. None: there is none."""
    from emulator import local

    directory = directory or local.local_dir()
    died = re.compile(rf"worker (\S+) of {re.escape(endpoint)} is unhealthy: (.*)")
    found: re.Match[str] | None = None
    try:
        for line in (directory / local.LOG).read_text(errors="replace").splitlines():
            found = died.search(line) or found
        if found is None:
            return None
        log = directory / local.LOGS / endpoint / f"{found[1]}.log"
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:  # no log, nothing to tell
        return None
    return (lines[-1] if lines else found[2]), log


# --- workers and models --------------------------------------------------------------------------------------------------------------


def worker_python(environ: Mapping[str, str] = os.environ) -> Path:
    """The Python that has vLLM: NIGHTBATCH_WORKER_PYTHON, else the one that scripts/worker-env builds and prints."""
    from contract.errors import InfrastructureError, UsageError

    if named := environ.get("NIGHTBATCH_WORKER_PYTHON"):
        if not os.access(named, os.X_OK):
            raise UsageError("is not a program.", where=f"NIGHTBATCH_WORKER_PYTHON={named}")
        return Path(named)
    script = ROOT / "scripts" / "worker-env"
    if not script.exists():
        raise UsageError(
            "the local stack needs the worker's environment, which this installation cannot build.",
            fix="Use a clone of the project, or name a Python that has vLLM in NIGHTBATCH_WORKER_PYTHON.",
        )
    done = subprocess.run([sys.executable, str(script)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise InfrastructureError("the worker's environment could not be built.", where="scripts/worker-env", fix="Its message is above.")
    return Path(done.stdout.strip())


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Where environments and models are kept: the same folder as the scripts use."""
    base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightbatch"
    return Path(environ["NIGHTBATCH_CACHE"]) if environ.get("NIGHTBATCH_CACHE") else base


def worker_environment() -> dict[str, str]:
    """What workers of the local stack need beside their model: the shared caches, since their home is an empty folder. Without its variable
    PyTorch leaves a folder in the system's temporary folder."""
    folder = cache().absolute()
    return {
        "NIGHTBATCH_CACHE": str(folder),
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
    }


def prepare(python: Path, model: str) -> None:
    """Make the model's folder now if it has to be made, so that no worker does it on the clock."""

    with subprocess.Popen(
        [str(python), "-m", "worker.models", "resolve", model],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        last = "no message"
        for line in process.stderr:
            last = line.strip() or last
            if line.startswith("worker: "):  # such as "making the model folder"; what libraries say stays out
                say(line.removeprefix("worker: ").rstrip())
    if process.returncode != 0:
        raise UsageError(f"the model cannot be used ({last}).", where=f"--model {model}")


def parse_model(text: str) -> tuple[str, str]:
    """`NAME` or `TASK:NAME` as (model, task). A model that is not one of ours generates unless it is said to embed."""
    task, colon, name = text.partition(":")
    if colon and task in ("generate", "embed"):
        return name, task
    return text, NAMED.get(text, "generate")


def with_models(config: EmulatorConfig, models: Sequence[str]) -> EmulatorConfig:
    """The configuration with an endpoint more for each model: a hub name or a folder."""
    import msgspec

    endpoints = list(config.endpoints)
    for text in models:
        model, task = parse_model(text)
        model = str(Path(model).expanduser().resolve()) if Path(model).expanduser().is_dir() else model
        if any(model in (endpoint.name, endpoint.model) for endpoint in endpoints):
            continue
        like = config.endpoints[0]
        added: EndpointConfig = msgspec.structs.replace(
            like,
            name=endpoint_name(model, {endpoint.name for endpoint in endpoints}),
            model=model,
            tasks=(task,),
            env={**like.env, "NIGHTBATCH_MODEL": model, "NIGHTBATCH_TASK": task},
        )
        endpoints.append(added)
    return msgspec.structs.replace(config, endpoints=tuple(endpoints))


def endpoint_name(model: str, taken: set[str]) -> str:
    """A short name of what an endpoint may be called, made from the last part of the model's name."""
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-_").lower()[:48] or "model"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name
