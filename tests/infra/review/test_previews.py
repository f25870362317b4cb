"""Running the previews: two at once and no more, in order, and none left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.review.engine import Project
from infra.review.previews import Asked, billed_nights, commit_of, preview_all
from tests.infra.engine.kit import cloud_of, endpoint

GATED = """#!/bin/bash
while [ $# -gt 0 ]; do if [ "$1" = --stack ]; then stack=$2; fi; shift; done
echo "start $stack" >> "{folder}/log"
read -r _ < "{folder}/gate-$stack"
echo "end $stack" >> "{folder}/log"
echo '{{"steps": [], "config": {{"stack": "'"$stack"'"}}}}'
"""


class Engine:
    """A `pulumi` that waits for the gate before it answers."""

    def __init__(self, folder: Path, stacks: tuple[str, ...]) -> None:
        for stack in stacks:
            os.mkfifo(folder / f"gate-{stack}")
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        (folder / "pulumi").write_text(GATED.format(folder=folder))
        (folder / "pulumi").chmod(0o755)
        self.project = Project(folder, {"PATH": f"{folder}:/usr/bin:/bin"})

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def until(self, count: int, word: str) -> None:
        """Until so many lines of the log begin with the word."""
        end = time.monotonic() + 30
        while sum(line.startswith(word) for line in self.lines()) < count:
            assert time.monotonic() < end, self.lines()
            time.sleep(0.01)

    def release(self, stack: str) -> None:
        """Let this one go on."""
        with (self.folder / f"gate-{stack}").open("w") as gate:
            gate.write("go\n")


def test_each_stack_is_previewed_in_its_own_project_and_looked_at_where_it_has_a_key(tmp_path: Path) -> None:
    """Stacks of several accounts, of which one has no key."""
    (tmp_path / "pulumi").write_text('#!/bin/sh\necho "{\\"config\\": {\\"asked\\": \\"$* with $RUNPOD_API_KEY\\"}}"\n')
    (tmp_path / "pulumi").chmod(0o755)
    keys = {"dev": "of-a", "prod": "of-b", "staging": ""}

    def project(stack: str) -> Project:
        return Project(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin", "RUNPOD_API_KEY": keys[stack]})

    found = preview_all(project, Asked(tuple(keys), refresh=frozenset({"dev", "prod"})))
    asked = {one.stack: (one.digest or {})["config"]["asked"] for one in found}
    assert {stack: ("--refresh" in words, words.rpartition(" with ")[2]) for stack, words in asked.items()} == {
        "dev": (True, "of-a"), "prod": (True, "of-b"), "staging": (False, "")
    }  # fmt: skip
    assert [one.refreshed for one in found] == [True, True, False]


def test_previews_run_two_at_once_and_come_back_in_order(tmp_path: Path) -> None:
    stacks = ("a", "b", "c", "d", "e")
    engine = Engine(tmp_path, stacks)
    found: list[str] = []
    runner = threading.Thread(
        target=lambda: found.extend((p.digest or {})["config"]["stack"] for p in preview_all(engine.project, Asked(stacks)))
    )
    runner.start()
    for done, stack in enumerate(stacks):
        engine.until(min(done + 2, len(stacks)), "start")
        engine.release(stack)
        engine.until(done + 1, "end")
    runner.join(30)
    assert tuple(found) == stacks
    running = most = 0
    for line in engine.lines():
        running += 1 if line.startswith("start") else -1
        most = max(most, running)
    assert most == 2


def test_an_interrupt_ends_the_previews_that_run_and_starts_no_other(tmp_path: Path) -> None:
    engine = Engine(tmp_path, ("a", "b", "c"))
    program = (
        "import pathlib\nfrom infra.review.engine import Project\nfrom infra.review.previews import Asked, preview_all\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "preview_all(Project(folder, {'PATH': f'{folder}:/usr/bin:/bin'}), Asked(('a', 'b', 'c')), grace_s=0.5)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, start_new_session=True)
    engine.until(2, "start")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, said
    assert engine.lines() == ["start a", "start b"] or engine.lines() == ["start b", "start a"]
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in command_of(pid)]


@pytest.mark.timeout(30)
def test_an_interrupt_while_the_previews_are_begun_ends_those_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path, ("a", "b", "c"))
    submit = ThreadPoolExecutor.submit

    def interrupted(pool: ThreadPoolExecutor, work: Callable[..., object], stack: str) -> Future[object]:
        if stack == "c":
            engine.until(2, "start")
            raise KeyboardInterrupt
        return submit(pool, work, stack)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        preview_all(engine.project, Asked(("a", "b", "c")), grace_s=0.5)
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in command_of(pid)]


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


async def test_a_night_is_read_from_runpods_billing_and_today_is_not_one(tmp_path: Path) -> None:
    cloud = await asyncio.to_thread(cloud_of, tmp_path)
    try:
        body = {key: value for key, value in endpoint("judge")["props"].items()}
        made = await asyncio.to_thread(cloud.rest, "POST", "serverless", body)
        await asyncio.to_thread(cloud.rest, "POST", f"{made['id']}/runsync", {"input": {"n": 1}})
        assert await billed_nights(cloud.url, cloud.key) == {}
        cloud.leap(86_400.0)
        (night,) = (await billed_nights(cloud.url, cloud.key)).values()
        assert 0 < night < 100
    finally:
        await asyncio.to_thread(cloud.close)


async def test_a_key_that_may_not_see_the_bill_leaves_nights_assumed(unused_tcp_port: int) -> None:
    """Nobody listens there: the report goes on without the bill."""
    assert await billed_nights(f"http://127.0.0.1:{unused_tcp_port}", "rpa_key", deadline_s=1.0) == {}


def test_a_folder_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path) is None
