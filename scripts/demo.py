# scripts: the demonstration. Starts the command line as a person would; writes below out/demo; leaves no process behind.
"""Nightbatch on this machine: real text, real vLLM on the CPU, the unmodified RunPod SDK worker, a real S3 server. No GPU, no account.

    scripts/demo            embed 2,400 definitions, then answer 208 questions (make demo)
    scripts/demo --quick    the same with 200 and 20 rows

The local stack of this demonstration has a folder of its own and is stopped at the end, also when this script is killed; one that you
started yourself is not touched.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "demo"
PROMPT = "Answer briefly: {question}"
NEW_TOKENS = 24
STOP_SECONDS = 60
# Ends the local stack when its standard input ends: when this script has finished, or was killed in whatever way. On it the script tells
# which command it is running (a process id, 0 when that has ended), so that a killed script leaves no command behind either.
KEEPER = """
import os, signal, subprocess, sys
told = [line.strip() for line in sys.stdin.buffer if line.endswith(b"\\n")]
if told and int(told[-1]):
    try:
        os.kill(int(told[-1]), signal.SIGTERM)
    except ProcessLookupError:
        pass
sys.exit(subprocess.run([sys.executable, "-P", "-m", "cli", "local", "down"], stdout=subprocess.DEVNULL).returncode)
"""


class Failed(Exception):
    """One sentence; what the command itself said is on the screen already."""


def say(text: str = "") -> None:
    print(text, flush=True)


def heading(text: str) -> None:
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}")


def show(arguments: Sequence[str]) -> None:
    say("$ ./nightbatch " + " ".join(f"'{part}'" if " " in part else part for part in arguments))


class LocalStack:
    """The emulator and its S3 server, from `local up` to `local down`, and the commands in between."""

    def __enter__(self) -> LocalStack:
        self._keeper = subprocess.Popen([sys.executable, "-c", KEEPER], cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
        try:
            by_pulumi, why = pulumi()
            say(why)
            self.nightbatch("local", "up", *(("--pulumi",) if by_pulumi else ()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def nightbatch(self, *arguments: str) -> float:
        """Run one command as a person would; all that it says goes to the screen. The seconds that it took."""
        show(arguments)
        began = time.monotonic()
        self._run(arguments, None)
        return time.monotonic() - began

    def record(self, *arguments: str, silent: bool = False) -> dict[str, Any]:
        """Run one command with --json; its progress goes to the screen, its one object comes back."""
        arguments = (*arguments, "--json")
        if not silent:
            show(arguments)
        return cast(dict[str, Any], json.loads(self._run(arguments, subprocess.PIPE)))

    def _run(self, arguments: Sequence[str], stdout: int | None) -> str:
        command = [sys.executable, "-P", "-m", "cli", *arguments]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stdout, text=True) as process:
            self._tell(process.pid)
            try:
                out = process.communicate()[0] or ""
            except BaseException:  # from a terminal the command has had the same signal; otherwise it has not
                process.terminate()
                raise
        self._tell(0)
        if process.returncode == 130:  # the command had the Ctrl-C before this process did
            raise KeyboardInterrupt
        if process.returncode != 0:
            raise Failed(f"`nightbatch {arguments[0]}` ended with exit code {process.returncode}.\n{out.strip()}".rstrip())
        return out

    def _tell(self, pid: int) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(b"%d\n" % pid)
        self._keeper.stdin.flush()

    def __exit__(self, *_: object) -> None:
        heading("7. Stop everything")
        show(["local", "down"])
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        while True:  # it ends by itself; another Ctrl-C does not make that quicker
            try:
                if self._keeper.wait(timeout=STOP_SECONDS) != 0:
                    raise Failed("the local stack could not be stopped.")
                return
            except KeyboardInterrupt:
                continue
            except subprocess.TimeoutExpired:
                raise Failed(f"the local stack did not stop within {STOP_SECONDS} s (process {self._keeper.pid} waits for it).") from None


def inputs(quick: bool) -> tuple[Path, Path, tuple[str, ...], tuple[str, ...]]:
    """The two example files and their limits."""
    limits = (("--limit", "200"), ("--limit", "20")) if quick else ((), ())
    return ROOT / "examples/texts.jsonl", ROOT / "examples/questions.csv", *limits


def worker_environment() -> None:
    """Build the worker's environment, with its own progress on the screen."""
    if os.environ.get("NIGHTBATCH_WORKER_PYTHON"):
        say(f"the one of {os.environ['NIGHTBATCH_WORKER_PYTHON']}")
        return
    command = [sys.executable, "scripts/worker-env"]
    if subprocess.run([*command, "--check"], cwd=ROOT, capture_output=True).returncode == 0:
        say("the worker environment (vLLM on CPU) is there")
        return
    say("building the worker environment: vLLM, PyTorch and two small models. Minutes the first time, never again for this lock.")
    began = time.monotonic()
    if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != 0:
        raise Failed("the worker environment could not be built; the message is above.")
    say(f"built in {time.monotonic() - began:.0f} s")


def pulumi() -> tuple[bool, str]:
    """Whether a real `pulumi up` can make the local stack (the CLI is there; nothing is built here), and a sentence."""
    command = [sys.executable, "scripts/pulumi-cli", "--check"]
    there = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if there.returncode != 0:
        return False, "the Pulumi CLI is not here (scripts/pulumi-cli gets it), so the emulator makes its endpoints itself"
    if importlib.util.find_spec("pulumi") is None:
        return False, "this Python has no pulumi package, so the emulator makes its endpoints itself"
    return True, f"a real `pulumi up` ({there.stdout.strip()}) makes the local stack from infra/stacks/Pulumi.local.yaml"


def relative(name: str | None) -> str:
    """A path as a person in this folder would type it."""
    if not name:
        return "none"
    path = Path(name)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else name


def table(runs: list[tuple[str, dict[str, Any]]], seconds_in_all: list[float], price: float) -> list[str]:
    """The summary, one column a run. `seconds_in_all`: of the commands that computed them."""

    def number(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if isinstance(value, float) else str(value)

    def seconds(key: str) -> list[str]:
        return [f"{run['phases'][key]:.1f}" for _, run in runs]

    rows = [
        ("rows", [number(run["rows"]) for _, run in runs]),
        ("ok", [number(run["ok"]) for _, run in runs]),
        ("failed", [number(run["failed"]) for _, run in runs]),
        ("tokens in", [number(run["tokens_in"]) for _, run in runs]),
        ("tokens out", [number(run["tokens_out"]) for _, run in runs]),
        ("shards (attempts)", [f"{run['shards']} ({run['attempts']})" for _, run in runs]),
        ("seconds in all", [f"{took:.1f}" for took in seconds_in_all]),
        ("  engine loading", seconds("loading")),
        ("  reading rows", seconds("reading")),
        ("  computing", seconds("computing")),
        ("  writing results", seconds("writing")),
        ("worker seconds", [f"{run['worker_seconds']:.1f}" for _, run in runs]),
        ("dollars, planned", [f"{run['usd_planned']:.5f}" for _, run in runs]),
        ("dollars, estimated", [f"{run['usd_estimated']:.5f}" for _, run in runs]),
    ]
    width = max(14, *(len(name) + 2 for name, _ in runs))
    lines = [" " * 20 + "".join(f"{name:>{width}}" for name, _ in runs)]
    lines += [f"{label:<20}" + "".join(f"{cell:>{width}}" for cell in cells) for label, cells in rows]
    lines.append("(phases are summed over jobs, of which a worker runs two at once)")
    return [*lines, f"(dollars at the local stack's declared price of ${price:.5f} a worker and second; this machine billed you nothing)"]


def run_all(quick: bool) -> None:
    began = time.monotonic()
    texts, questions, few_texts, few_questions = inputs(quick)
    heading("1. The worker's environment")
    worker_environment()
    installed = time.monotonic()

    heading("2. RunPod's stand-in and an S3 server, on this machine")
    with LocalStack() as local:
        status = local.record("local", "status", silent=True)
        price = max(endpoint["usd_per_second"] for endpoint in status["endpoints"])
        embed = (
            "run", relative(str(texts)), "--task", "embed", "--model", "minilm", "--column", "text", "--id-column", "id",
            *few_texts, "--stack", "local", "--out", relative(str(OUT / "texts.parquet")),
        )  # fmt: skip
        generate = (
            "run", relative(str(questions)), "--task", "generate", "--model", "smollm2", "--prompt", PROMPT, "--id-column", "id",
            "--max-tokens", str(NEW_TOKENS), *few_questions, "--stack", "local", "--out", relative(str(OUT / "answers.jsonl")),
        )  # fmt: skip
        heading("3. Embed: one vector a definition")
        took = [local.nightbatch(*embed)]
        heading("4. Generate: one answer a question")
        took.append(local.nightbatch(*generate))
        heading("5. The same commands again: they find their runs, and nothing is computed or paid twice (--json: for the summary below)")
        vectors, answers = local.record(*embed), local.record(*generate)
        heading("6. Verify, from storage alone")
        for run in (vectors, answers):
            local.nightbatch("verify", run["run"], "--stack", "local", "--out", relative(run["out"]))

    heading("Summary")
    for line in table([("embed", vectors), ("generate", answers)], took, price):
        say(line)
    say(
        f"\ndone in {time.monotonic() - installed:.0f} s"
        + (f", after {installed - began:.0f} s of installing" if installed - began > 5 else "")
    )
    say("\nThe outputs:")
    for name, run in (("vectors", vectors), ("answers", answers)):
        say(f"  {name:<8} {relative(run['out'])}   failed rows: {relative(run['errors'])}")
    say("\nType next:")
    say("  head -3 out/demo/answers.jsonl")
    say("  ./nightbatch local up")
    say("  ./nightbatch run examples/chat-batch.jsonl --task generate --model smollm2 --stack local --out out/chat.jsonl")
    say("  ./nightbatch local down")


def keep_logs(state: Path) -> Path:
    """Copy the logs out of the folder that goes away."""
    kept = OUT / "logs"
    shutil.rmtree(kept, ignore_errors=True)
    for log in state.rglob("*.log"):
        target = kept / log.relative_to(state)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, target)
    return kept


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description="Nightbatch on this machine.")
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    os.environ["NIGHTBATCH_PROGRAM"] = "./nightbatch"
    say("Nightbatch embeds 2,400 definitions and answers 208 questions with real vLLM on this machine's CPU, through RunPod's")
    say("job protocol and a real S3 server, proves that every row came back, and says what that costs at the local stack's declared price.")
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nightbatch-demo-") as state:
        os.environ["NIGHTBATCH_HOME"] = state
        try:
            run_all(options.quick)
        except Failed as failed:
            say(f"\nThe demonstration stopped: {failed}")
            say(f"The logs are in {relative(str(keep_logs(Path(state))))}.")
            return 1
        except KeyboardInterrupt:
            say("\ninterrupted; nothing is left running.")
            return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
