# scripts: runs the checks one after another and says how each went. Starts processes; touches no file itself.
"""Style, types and tests, in the order of how soon they speak.

    scripts/check                  everything (make test)
    scripts/check --fast           style, types and the tests that take seconds (make test-fast)
    scripts/check --only lint      one step: lint, types, fast, slow, infrastructure or heavy
    scripts/check tests/contract   everything, but only these tests; further arguments go to pytest

Every step runs even when an earlier one failed, and the exit status is 1 if any did. The last line counts the tests of all steps.
The infrastructure step drives the real Pulumi engine: scripts/pulumi-cli finds, installs or builds it first, and a skipped test fails it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("contract", "worker", "pipelines", "nights", "emulator", "cli", "infra", "benchmarks", "tests", "scripts", "examples")
STEPS = ("lint", "types", "fast", "slow", "infrastructure", "heavy")
# Two processes where tests wait or compute on one core; one after another where they load engines, which want both.
SELECTIONS = {
    "fast": ("not slow and not pulumi and not engine and not e2e", ["-n", "2", "--dist", "loadfile"]),
    "slow": ("slow and not pulumi and not engine and not e2e", ["-n", "2", "--dist", "load"]),
    "infrastructure": ("pulumi and not engine", ["-n", "2", "--dist", "loadfile"]),
    "heavy": ("engine or (e2e and not pulumi)", []),
}
FIRST = {"infrastructure": ("the Pulumi CLI", "scripts/pulumi-cli"), "heavy": ("the worker environment", "scripts/worker-env")}
NO_TESTS = 5  # pytest's exit status when a selection is empty


def with_python_files() -> list[str]:
    return [room for room in ROOMS if any((ROOT / room).rglob("*.py"))]


def say(text: str) -> None:
    print(text, flush=True)


def run(command: list[str]) -> int:
    """Run in the foreground. Ctrl-C reaches the child too; it is waited for, and then everything ends."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    interrupted = False
    while True:
        try:
            status = process.wait()
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    return status


def count(report: Path) -> Counter[str]:
    """Tests of one junit file by what became of them; empty when pytest did not come to write it."""
    counts: Counter[str] = Counter()
    if report.exists():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            # A module that cannot be collected is reported by every step, also by those that would not have selected it.
            whole = sum(1 for found in suite.iter("skipped") if found.get("message") == "collection skipped")
            counts.update(passed=total - skipped - failed, failed=failed, skipped=skipped - whole, modules_skipped=whole)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Style, types and tests.")
    parser.add_argument("--fast", action="store_true", help="only style, types and the tests that take seconds")
    parser.add_argument("--only", choices=STEPS, help="only this step")
    options, rest = parser.parse_known_args()
    steps: tuple[str, ...] = STEPS
    if options.fast:
        steps = ("lint", "types", "fast")
    if options.only:
        steps = (options.only,)

    python, failed, counts = sys.executable, [], Counter[str]()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    with tempfile.TemporaryDirectory(prefix="nightbatch-check-") as scratch:
        for step in steps:
            say(f"\n=== {step}")
            began = time.monotonic()
            if step == "lint":
                status = run([python, "-m", "ruff", "check", *with_python_files()])
            elif step == "types":
                status = run([python, "-m", "mypy", *with_python_files()])
            else:
                if step in FIRST:
                    what, script = FIRST[step]
                    say(f"building {what} first, if it is not there yet (minutes the first time)")
                    if run([python, script]) != 0:
                        failed.append(what)
                        continue
                expression, arguments = SELECTIONS[step]
                report = Path(scratch) / f"{step}.xml"
                status = run([python, "-m", "pytest", "-m", expression, *arguments, f"--junit-xml={report}", "--durations=5", *rest])
                counted = count(report)
                counts += counted
                if step == "infrastructure" and status == 0 and counted["skipped"]:
                    say("a test of the real Pulumi engine was skipped; none may be")
                    status = 1
                if status == NO_TESTS:
                    say(f"no {step} tests in this selection")
                    status = 0
            say(f"=== {step}: {'ok' if status == 0 else f'FAILED (exit {status})'} in {time.monotonic() - began:.0f} s")
            if status != 0:
                failed.append(step)
    tested = counts["passed"] + counts["failed"] + counts["skipped"]
    if failed:
        say(f"\nfailed: {', '.join(failed)}")
    if tested:
        say(f"\n{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    elif set(steps) & set(SELECTIONS):
        say("\nno test ran: the selection is empty")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        say("\ninterrupted")
        raise SystemExit(130) from None
