"""infra/review: the one place that builds the environment of the Pulumi engine and knows its commands; contract/process.py runs them.

May touch: processes, and the folders that are named to it. No import of pulumi: what it drives is the command line. Used by preview, drift,
`nightbatch local up --pulumi` and the tests.

Every run has a deadline. Whatever it started ends with it. A first interrupt lets Pulumi write down what it has done; then everything is
killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contract import process
from contract.errors import InfrastructureError, UsageError
from contract.process import LEFT_S as LEFT_S
from contract.process import session_members as session_members
from infra.review.digest import decoded, read

ROOT: Final = Path(__file__).resolve().parents[2]
PLUGIN: Final = "pulumi-resource-runpodv2"
PREVIEW_S: Final = 600.0
"""Deadline of what changes nothing: previews, refreshes that only look, outputs."""
CHANGE_S: Final = 3600.0
"""Deadline of up, refresh, destroy and import; a strict rollout waits for running jobs."""
GRACE_S: Final = 20.0
"""From the interrupt, on which Pulumi finishes what it is doing and saves its state, to the end of everything."""
CHANGED: Final = 7
"""Exit code of `--expect-no-changes` when there are changes (measured with 3.276; 1 and others are errors)."""
STACK_NOT_FOUND: Final = 6
"""Exit code where the state backend knows no such stack."""
SECRET_NAMES: Final = re.compile(r"KEY|SECRET|TOKEN|PASSPHRASE|PASSWORD")
HIDDEN: Final = "[hidden]"


class EngineError(InfrastructureError):
    """The Pulumi engine could not be run, or it failed. `done` holds the run where there was one."""

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None, done: Done | None = None) -> None:
        super().__init__(what, where=where, fix=fix)
        self.done = done


@dataclass(frozen=True)
class Done:
    """One run of the `pulumi` command. Secrets of its environment are hidden in `stdout` and `stderr`."""

    args: tuple[str, ...]
    returncode: int
    """The command's own; 128 + signal if one ended it."""
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def changed(self) -> bool:
        """`--expect-no-changes` met changes."""
        return self.returncode == CHANGED

    def json(self) -> Any:
        """What was printed, as JSON. Raises EngineError."""
        try:
            return json.loads(self.stdout)
        except (ValueError, RecursionError):
            raise EngineError(f"`pulumi {' '.join(self.args[:2])}` did not print JSON. {self.problem}".strip(), done=self) from None

    @property
    def problem(self) -> str:
        """What went wrong, in Pulumi's own words without its decoration; empty when nothing did."""
        if self.ok:
            return ""
        lines = _problems(self.stdout) or _problems(self.stderr) or [line for line in self.stderr.splitlines() if line.strip()][-3:]
        return " / ".join(dict.fromkeys(line.strip() for line in lines))[:2000]

    def expect(self, *, where: str | None = None) -> Done:
        """Itself. Raises EngineError, with Pulumi's own words, when it failed."""
        if self.ok:
            return self
        command = f"`pulumi {' '.join(self.args[:1])}`"
        if self.timed_out:
            raise EngineError(
                f"{command} was stopped after {self.seconds:.0f} s.",
                where=where,
                fix="What it had done is recorded; look with `pulumi preview --refresh`, then try again.",
                done=self,
            )
        fix = None
        if "currently locked" in self.stderr + self.stdout:
            fix = "Nobody else is at work on it? Then `pulumi cancel` frees it."
        elif "incorrect passphrase" in self.stderr + self.stdout or "passphrase must be set" in self.stderr + self.stdout:
            fix = "Set PULUMI_CONFIG_PASSPHRASE (or PULUMI_CONFIG_PASSPHRASE_FILE) to the stack's passphrase."
        raise EngineError(
            f"{command} failed (exit code {self.returncode}): {self.problem or 'no message'}", where=where, fix=fix, done=self
        )


@dataclass(frozen=True)
class Preview:
    """One `pulumi preview --json`. `digest` is Pulumi's PreviewDigest (steps, diagnostics, changeSummary, …), brought into form; None if it
    printed none. `odd`: what of it could not be read, in a sentence."""

    stack: str
    digest: Mapping[str, Any] | None
    done: Done
    odd: str | None = None

    @property
    def failed(self) -> bool:
        return not (self.done.ok or self.done.changed) or self.digest is None

    @property
    def changes(self) -> dict[str, int]:
        """Resources by what would be done with them, without `same`."""
        return {op: count for op, count in ((self.digest or {}).get("changeSummary") or {}).items() if op != "same" and count}

    @property
    def errors(self) -> tuple[str, ...]:
        """Why the preview failed; empty when it did not."""
        if not self.failed:
            return ()
        return tuple(error_messages(self.digest or {})) or (self.done.problem or "the preview failed without a message",)


# --- the environment ------------------------------------------------------------------------------------------------------------


def find_cli(environ: Mapping[str, str] | None = None, *, build: bool = False) -> Path:
    """The folder of the `pulumi` program: PATH's, or the one that scripts/pulumi-cli has put into the cache.

    `build`: have it installed or built if it is not there (minutes, with progress on stderr). Raises EngineError that says how to get it.
    """
    environ = os.environ if environ is None else environ
    script = ROOT / "scripts" / "pulumi-cli"
    if script.exists():
        command = [sys.executable, str(script), *(() if build else ("--check",))]
        answer = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if build else subprocess.DEVNULL,
            text=True,
        )
        if answer.returncode == 0:
            return Path(answer.stdout.strip())
        how = "scripts/pulumi-cli installs or builds it"
    else:
        found = shutil.which("pulumi", path=environ.get("PATH"))
        if found is not None:
            return Path(found).parent
        how = "see https://www.pulumi.com/docs/install"
    raise EngineError("The Pulumi CLI is not on this machine.", fix=f"Put `pulumi` on PATH, or get it: {how}.")


def provider_folder() -> Path:
    """The folder that holds the provider's executable: this Python's own where Nightbatch is installed, else the clone's."""
    for folder in (Path(sys.executable).parent, ROOT / "infra" / "provider" / "bin", ROOT / "infra" / "bin"):
        if os.access(folder / PLUGIN, os.X_OK):
            return folder
    raise EngineError(
        f"There is no {PLUGIN} beside {sys.executable} or in infra/provider/bin.", fix="Install Nightbatch again, or use a whole clone."
    )


def pulumi_env(
    environ: Mapping[str, str] | None = None,
    *,
    cli: Path | None = None,
    backend: str | Path | None = None,
    passphrase: str | None = None,
    home: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of every run of the engine.

    The user's own, with this Python, the provider's executable and the CLI (`cli`, else `find_cli`) first on PATH. Nothing in it asks the
    internet for updates or plugins. `backend`: where state is kept, a URL or a folder (made if missing); without it PULUMI_BACKEND_URL or
    Pulumi.yaml decide. `passphrase` and `home`: PULUMI_CONFIG_PASSPHRASE and PULUMI_HOME. `extra` comes last and wins.
    """
    env = dict(os.environ if environ is None else environ)
    folders = [Path(sys.executable).parent, provider_folder(), cli if cli is not None else find_cli(env)]
    env["PATH"] = os.pathsep.join([*dict.fromkeys(map(str, folders)), env.get("PATH", os.defpath)])
    env.pop("PYTHONHOME", None)
    if sys.prefix != sys.base_prefix:
        env["VIRTUAL_ENV"] = sys.prefix
    if (ROOT / "pyproject.toml").exists():  # a clone: its rooms are found through PYTHONPATH, as scripts/env.sh has it
        paths = [str(ROOT), *env.get("PYTHONPATH", "").split(os.pathsep)]
        env["PYTHONPATH"] = os.pathsep.join(path for path in dict.fromkeys(paths) if path)
    env["PULUMI_SKIP_UPDATE_CHECK"] = "1"
    env["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] = "1"
    if backend is not None:
        if isinstance(backend, Path):
            backend.mkdir(parents=True, exist_ok=True)  # Pulumi does not make it
            backend = f"file://{backend.resolve()}"
        env["PULUMI_BACKEND_URL"] = backend
    if passphrase is not None:
        env["PULUMI_CONFIG_PASSPHRASE"] = passphrase
        env.pop("PULUMI_CONFIG_PASSPHRASE_FILE", None)
    if home is not None:
        env["PULUMI_HOME"] = str(home)
    return {**env, **(extra or {})}


def project_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of Pulumi.yaml: NIGHTBATCH_PROJECT, else the clone's root. Raises UsageError when there is none."""
    named = (os.environ if environ is None else environ).get("NIGHTBATCH_PROJECT")
    folder = Path(named).expanduser() if named else ROOT
    if not (folder / "Pulumi.yaml").is_file():
        where = "NIGHTBATCH_PROJECT" if named else str(folder)
        raise UsageError(f"{folder} holds no Pulumi.yaml.", where=where, fix="Set NIGHTBATCH_PROJECT to the folder that does.")
    return folder


# --- one run --------------------------------------------------------------------------------------------------------------------


def run(
    args: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float = PREVIEW_S,
    on_line: Callable[[str], None] | None = None,
    on_start: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Done:
    """Run `pulumi ARGS` in `cwd` (a project's folder) with `env` (see `pulumi_env`), without a terminal and without questions.

    A failure is a result, not an exception (`Done.expect` makes it one). `on_line` is told every line as it comes, `on_start` the process.
    May be called from several threads at once. Raises EngineError when there is no pulumi on `env`'s PATH.
    """
    program = shutil.which("pulumi", path=env.get("PATH"))
    if program is None:
        raise EngineError("There is no `pulumi` on PATH.", fix="scripts/pulumi-cli prints the folder to put there.")
    ended = process.run(
        [program, *args, "--non-interactive", "--color", "never"],
        cwd=cwd,
        env=env,
        timeout_s=timeout_s,
        grace_s=GRACE_S,
        left_s=LEFT_S,
        hider=lambda: _hider(env),
        on_line=on_line,
        on_start=on_start,
    )
    return Done(tuple(args), ended.returncode, ended.stdout, ended.stderr, ended.seconds, ended.timed_out)


def _hider(env: Mapping[str, str]) -> Callable[[str], str]:
    """Replaces the values of the environment's secrets. Short values are left: they would hit innocent text, and no key is that short."""
    values = sorted(
        {v for n, v in env.items() if SECRET_NAMES.search(n) and len(v) >= 8 and not Path(v).is_absolute()}, key=len, reverse=True
    )
    if not values:
        return lambda text: text
    pattern = re.compile("|".join(map(re.escape, values)))
    return lambda text: pattern.sub(HIDDEN, text)


_ERROR = re.compile(r"^\s*(?:error|Error|fatal):\s*(.+)$")


def _problems(text: str) -> list[str]:
    """The error messages in what pulumi printed: of the JSON digest's diagnostics, or its `error: …` lines."""
    digest = decoded(text)
    if digest is None:
        return [found.group(1) for line in text.splitlines() if (found := _ERROR.match(line)) and not _echo(found.group(1))]
    return error_messages(read(digest).found)


def error_messages(digest: Mapping[str, Any]) -> list[str]:
    """The error messages of a preview's digest, without the engine's own `error: ` before them and without those that say nothing."""
    said = [str(d.get("message") or "") for d in digest.get("diagnostics") or () if d.get("severity") == "error"]
    return [text for text in (message.strip().removeprefix("error: ").strip() for message in said) if text and not _echo(text)]


ECHOES: Final = (
    "update failed",
    "preview failed",
    "an unhandled error occurred: update failed",
    "Resource monitor has terminated, shutting down",
)
"""Pulumi ends every failure with sentences that say no more than that it failed."""


def _echo(message: str) -> bool:
    return message.strip() in ECHOES


# --- what Nightbatch asks of a stack --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """A Pulumi project's folder with the environment to run it in."""

    folder: Path
    env: Mapping[str, str]

    def run(self, *args: str, timeout_s: float = PREVIEW_S, on_line: Callable[[str], None] | None = None) -> Done:
        """Any command, in the project's folder; see `run`."""
        return run(args, cwd=self.folder, env=self.env, timeout_s=timeout_s, on_line=on_line)

    def stacks(self) -> tuple[str, ...]:
        """Names of the stacks that the state backend knows of this project. Raises EngineError."""
        listed = self.run("stack", "ls", "--json").expect(where=str(self.folder)).json()
        return tuple(entry["name"].rsplit("/", 1)[-1] for entry in listed)

    def ensure_stack(self, stack: str) -> None:
        """Make the stack in the state backend if it is not there. Raises EngineError."""
        done = self.run("stack", "init", stack, "--no-select")
        if not done.ok and "already exists" not in done.stderr + done.stdout:
            done.expect(where=f"stack {stack}")

    def preview(self, stack: str, *args: str, refresh: bool = False, timeout_s: float = PREVIEW_S) -> Preview:
        """What `up` would do. `refresh`: look at live state first (needs a key). A preview that failed is a result, too."""
        extra = ("--refresh", "--run-program") if refresh else ()
        done = self.run("preview", "--json", "--stack", stack, *extra, *args, timeout_s=timeout_s)
        document = decoded(done.stdout)
        digest = read(document if isinstance(document, dict) else None)
        return Preview(stack, digest.found if isinstance(document, dict) else None, done, digest.problem)

    def up(self, stack: str, *args: str, timeout_s: float = CHANGE_S, on_line: Callable[[str], None] | None = None) -> Done:
        """Make live what is declared. A failure is a result (`Done.expect`)."""
        return self.run("up", "--yes", "--skip-preview", "--stack", stack, *args, timeout_s=timeout_s, on_line=on_line)

    def destroy(self, stack: str, *args: str, timeout_s: float = CHANGE_S) -> Done:
        """Delete everything of the stack that is not protected."""
        return self.run("destroy", "--yes", "--skip-preview", "--stack", stack, *args, timeout_s=timeout_s)

    def refresh(self, stack: str, *args: str, timeout_s: float = CHANGE_S) -> Done:
        """Write into the state what is live."""
        return self.run("refresh", "--yes", "--skip-preview", "--stack", stack, *args, timeout_s=timeout_s)

    def drifted(self, stack: str, *args: str, timeout_s: float = PREVIEW_S) -> Done:
        """Compare live and recorded and change neither; `Done.changed` says that they differ."""
        return self.run("refresh", "--preview-only", "--expect-no-changes", "--stack", stack, *args, timeout_s=timeout_s)

    def cancel(self, stack: str) -> Done:
        """Free a stack whose last update was killed."""
        return self.run("cancel", "--yes", stack)

    def outputs(self, stack: str) -> dict[str, Any]:
        """The stack's outputs, secrets hidden. Raises EngineError."""
        outputs: dict[str, Any] = self.run("stack", "output", "--json", "--stack", stack).expect(where=f"stack {stack}").json()
        return outputs

    def state(self, stack: str) -> dict[str, Any]:
        """The stack's whole state as Pulumi keeps it, secrets encrypted. Raises EngineError."""
        exported: dict[str, Any] = self.run("stack", "export", "--stack", stack).expect(where=f"stack {stack}").json()
        return exported
