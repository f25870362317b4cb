"""Records previews of the real engine as kept cases: data/CASE/{STACK.json, case.json, report.md}. Run by hand when the engine, the
provider or the report changes, and read the reports before committing them:

    python -m tests.infra.review.record [CASE...]

The project itself (its program, its stack files, its provider) against the emulator, in temporary folders. Nothing outside is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.review import engine
from infra.review.engine import Project, pulumi_env
from infra.review.preview import exit_code, render, understood
from infra.review.previews import stack_preview
from tests.infra.engine.kit import KEPT_ENV, PASSPHRASE, PROGRAM, Cloud, cloud_of
from tests.infra.engine.kit import endpoint as kit_endpoint

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).parent / "data"
COMMIT = "0123456789ab"
SECRET = "hf_abcdefghijklmnopqrstuvwxyz"
DAY_S = 86_400.0
DIGEST = "registry.example.com/nightbatch-worker@sha256:"
Json = dict[str, Any]


class Estate:
    """A copy of the project with stack files of its own, a state backend, and the emulator as RunPod."""

    def __init__(self, folder: Path, cloud: Cloud, cli: Path) -> None:
        self.folder, self.cloud, self.cli = folder / "project", cloud, cli
        (self.folder / "infra" / "stacks").mkdir(parents=True)
        shutil.copy(ROOT / "Pulumi.yaml", self.folder)
        for path in (ROOT / "infra").iterdir():
            if path.name not in ("stacks", "__pycache__"):
                (self.folder / "infra" / path.name).symlink_to(path)
        self.home = folder

    def project(self, *, key: bool = True) -> Project:
        base = {name: value for name, value in os.environ.items() if name in KEPT_ENV}
        extra = {"RUNPOD_API_BASE_URL": self.cloud.url, **({"RUNPOD_API_KEY": self.cloud.key} if key else {})}
        return Project(
            self.folder,
            pulumi_env(base, cli=self.cli, backend=self.home / "state", passphrase=PASSPHRASE, home=self.home / "pulumi-home", extra=extra),
        )

    def write(self, stack: str, **settings: Any) -> None:
        """A stack file. Secrets that were set stay, and so does the salt of the passphrase."""
        file = self.folder / "infra" / "stacks" / f"Pulumi.{stack}.yaml"
        found: Json = (yaml.safe_load(file.read_text()) if file.exists() else None) or {}
        kept = {key: value for key, value in (found.get("config") or {}).items() if key == "nightbatch:secrets"}
        found["config"] = {f"nightbatch:{key}": value for key, value in settings.items()} | kept
        file.write_text(yaml.safe_dump(found, sort_keys=False))

    def secret(self, stack: str, name: str, value: str) -> None:
        self.project().run("config", "set", "--secret", "--path", f"nightbatch:secrets.{name}", value, "--stack", stack).expect()

    def up(self, stack: str) -> None:
        self.project().ensure_stack(stack)
        self.project().up(stack).expect()

    def endpoint(self, part: str) -> Json:
        """The live endpoint whose name has this in it."""
        (found,) = [one for name, one in self.cloud.live("serverless").items() if part in name]
        return found


@contextlib.contextmanager
def estate(cli: Path) -> Iterator[Estate]:
    """An estate that ends with everything it started."""
    with tempfile.TemporaryDirectory(prefix="nightbatch-record-") as scratch:
        cloud = cloud_of(Path(scratch) / "cloud", idle_rule=True)
        try:
            yield Estate(Path(scratch), cloud, cli)
        finally:
            cloud.close()


def endpoint(name: str, **more: Any) -> Json:
    """An endpoint of a stack file."""
    return {
        "name": name,
        "model": f"acme/{name}",
        "tasks": ["embed"],
        "image": DIGEST + "1" * 64,
        "gpu": {"pools": ["AMPERE_24", "ADA_24"]},
        "workers": {"peak": 5},
        "executionTimeout": 600,
        **more,
    }


STORE = {"bucket": "our-batches", "endpointUrl": "https://s3.eu-west-1.amazonaws.com", "prefix": "nightbatch"}
RULES = {"maxWorkers": 20, "maxUsdPerHour": 40}
VOLUME = {"name": "models", "size": 100, "dataCenter": "EU-RO-1"}
BASE: Json = {"store": STORE, "rules": RULES, "endpoints": [endpoint("minilm")]}


def changed(home: Estate) -> tuple[tuple[str, ...], bool]:
    """dev updated, prod replaced (endpoint and volume) and updated, staging as it is."""
    for stack in ("dev", "staging"):
        home.write(stack, **BASE)
        home.up(stack)
    volumes = [{**VOLUME, "protect": False}]
    prod = {**BASE, "rules": {**RULES, "levels": {"volume-protection": "advisory"}}, "volumes": volumes}
    both = [endpoint("minilm", protect=False), endpoint("judge", type="LOAD_BALANCER", tasks=[], model=None, protect=False)]
    home.write("prod", **{**prod, "endpoints": both})
    home.up("prod")
    home.write(
        "dev",
        **{
            **BASE,
            "endpoints": [endpoint("minilm", image=DIGEST + "2" * 64, workers={"peak": 8}, env={"LOG_LEVEL": "debug"}), endpoint("qwen")],
        },
    )
    moved = [endpoint("minilm", gpu={"pools": ["ADA_24", "AMPERE_48"]}, workers={"peak": 6, "min": 1}, protect=False)]
    moved.append(endpoint("judge", protect=False))
    home.write("prod", **{**prod, "volumes": [{**volumes[0], "dataCenter": "US-KS-2"}], "endpoints": moved})
    return ("dev", "prod", "staging"), False


def unchanged(home: Estate) -> tuple[tuple[str, ...], bool]:
    """Three stacks as they are, looked at live."""
    for stack in ("dev", "prod", "staging"):
        home.write(stack, **BASE)
        home.up(stack)
    return ("dev", "prod", "staging"), True


def fresh(home: Estate) -> tuple[tuple[str, ...], bool]:
    """A stack that is not there yet, with a secret and a volume."""
    home.write("dev", **{**BASE, "volumes": [VOLUME], "store": {"volume": "models"}})
    home.project().ensure_stack("dev")
    home.secret("dev", "HF_TOKEN", SECRET)
    home.write(
        "dev", **{**BASE, "volumes": [VOLUME], "store": {"volume": "models"}, "endpoints": [endpoint("minilm", secretEnv=["HF_TOKEN"])]}
    )
    return ("dev",), False


def broken(home: Estate) -> tuple[tuple[str, ...], bool]:
    """Rules that are not kept, settings that cannot be used, a stack that the backend does not know."""
    home.write("dev", **{**BASE, "endpoints": [endpoint("minilm", image="acme/worker:latest", workers={"peak": 30})]})
    home.write("staging", **{**BASE, "endpoints": [endpoint("minilm", gpu={"pool": "ADA_24"}, workers={"peak": -1})]})
    home.write("prod", **BASE)
    for stack in ("dev", "staging"):
        home.project().ensure_stack(stack)
    return ("dev", "prod", "staging"), False


def drifted(home: Estate) -> tuple[tuple[str, ...], bool]:
    """A console edit, the idle rule's cut, a deletion by hand, and a declaration that is ahead of the last up."""
    home.write("dev", **{**BASE, "endpoints": [endpoint("minilm"), endpoint("qwen"), endpoint("judge")]})
    home.up("dev")
    home.cloud.rest("PATCH", f"serverless/{home.endpoint('qwen')['id']}", {"timeout": 1000})
    home.cloud.rest("DELETE", f"serverless/{home.endpoint('judge')['id']}")
    home.cloud.leap(3.5 * DAY_S)
    home.cloud.until_live(home.endpoint("minilm")["name"], lambda one: one["workers"]["max"] == 2, "the idle rule")
    home.write("dev", **{**BASE, "endpoints": [endpoint("minilm"), endpoint("qwen", idleTimeout=30), endpoint("judge")]})
    return ("dev",), True


def replaced(home: Estate) -> tuple[tuple[str, ...], bool]:
    """An endpoint from GPUs to processors, which REST v2 cannot do in place: of a program of one's own, the project has no such setting."""
    project = home.folder / "infra" / "__main__.py"
    project.unlink()
    shutil.copy(PROGRAM / "__main__.py", project)
    declared = home.folder / "infra" / "declared.json"
    home.write("dev")
    declared.write_text(json.dumps({"items": [kit_endpoint("judge"), kit_endpoint("minilm")], "exports": {}}))
    home.up("dev")
    on_cpu = kit_endpoint("judge", drop=("gpu",), cpu=[{"id": "cpu3c", "vcpuCount": 2}])
    declared.write_text(json.dumps({"items": [on_cpu, kit_endpoint("minilm")], "exports": {}}))
    return ("dev",), False


def secrets(home: Estate) -> tuple[tuple[str, ...], bool]:
    """New values of a secret variable and of a registry's password, and a variable in clear that looks like a key."""
    stack = {**BASE, "registry": {"name": "ghcr", "username": "robot", "passwordSecret": "REGISTRY_PASSWORD"}}
    home.write("dev", **BASE)
    home.project().ensure_stack("dev")
    home.secret("dev", "HF_TOKEN", SECRET)
    home.secret("dev", "REGISTRY_PASSWORD", SECRET)
    home.write("dev", **{**stack, "endpoints": [endpoint("minilm", secretEnv=["HF_TOKEN"])]})
    home.up("dev")
    home.secret("dev", "HF_TOKEN", f"{SECRET}2")
    home.secret("dev", "REGISTRY_PASSWORD", f"{SECRET}2")
    clear = {"SERVICE_API_KEY": f"{SECRET}3", "WEBHOOK": f"https://me:{SECRET}@example.com", "MAX_TOKENS": "512"}
    home.write("dev", **{**stack, "endpoints": [endpoint("minilm", secretEnv=["HF_TOKEN"], env=clear)]})
    return ("dev",), False


def protected(home: Estate) -> tuple[tuple[str, ...], bool]:
    """A production volume that would move to another data center."""
    home.write("prod", **{**BASE, "volumes": [VOLUME]})
    home.up("prod")
    home.write("prod", **{**BASE, "volumes": [{**VOLUME, "dataCenter": "US-KS-2"}]})
    return ("prod",), False


CASES: Mapping[str, Callable[[Estate], tuple[tuple[str, ...], bool]]] = {
    "changed": changed,
    "unchanged": unchanged,
    "fresh": fresh,
    "broken": broken,
    "drifted": drifted,
    "replaced": replaced,
    "protected": protected,
    "secrets": secrets,
}


def record(case: str, cli: Path) -> None:
    """Make the case's world, preview it, keep what the engine said and the report."""
    with estate(cli) as home:
        stacks, refresh = CASES[case](home)
        folder = DATA / case
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        described: Json = {"commit": COMMIT, "refreshed": refresh, "stacks": {}}
        project = home.project(key=refresh)
        reports = []
        for stack in stacks:
            args = ("preview", "--json", "--show-sames", "--stack", stack, *(("--refresh", "--run-program") if refresh else ()))
            done = project.run(*args)
            text = slim(steady(done.stdout, home))
            if text:
                (folder / f"{stack}.json").write_text(text)
            described["stacks"][stack] = {"exit_code": done.returncode, "stderr": steady(done.stderr, home)}
            reports.append(
                understood(
                    stack_preview(stack, engine.Done(args, done.returncode, text, steady(done.stderr, home), 0.0), refreshed=refresh)
                )
            )
        described["report_exit_code"] = exit_code(reports)
        (folder / "case.json").write_text(json.dumps(described, indent=1) + "\n")
        (folder / "report.md").write_text(render(reports, commit=COMMIT))


def slim(text: str) -> str:
    """The document without where in the program a resource is: folders of this machine, and three quarters of its size."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items() if key not in ("sourcePosition", "stackTrace")}
        return [without(inner) for inner in value] if isinstance(value, list) else value

    return json.dumps(without(json.loads(text)), indent=1) + "\n" if text.strip() else ""


def steady(text: str, home: Estate) -> str:
    """Without what is of this machine and this moment: folders, ports, times."""
    text = text.replace(str(home.home.resolve()), "/project").replace(str(home.home), "/project").replace(str(ROOT), "/nightbatch")
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", text)
    text = re.sub(r'"(created|modified|createdAt)": "[^"]*"', r'"\1": "2026-11-30T00:00:00Z"', text)
    return re.sub(r'"duration": \d+', '"duration": 0', text)


if __name__ == "__main__":
    from infra.review.engine import find_cli

    for name in sys.argv[1:] or CASES:
        print(f"recording {name}", flush=True)
        record(name, find_cli())
