"""Nights through the command line: a schedule's jobs over real processes, a real S3 server and real Lance tables; workers that echo."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.house import PER_SHARD, House, eventually, question_rows
from tests.pipelines.planning import write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FIRST, SECOND = "2026-03-10", "2026-03-11"


class Project:
    """A repository with job files, and the calls of its scheduler."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house, self.folder = house, folder
        (folder / "jobs").mkdir()
        (folder / "suites").mkdir()

    def job(self, name: str, **given: Any) -> None:
        (self.folder / "jobs" / f"{name}.yaml").write_text(json.dumps({"version": 1, "stack": "local", **given}))

    def rows(self, texts: dict[str, str]) -> None:
        write_jsonl(self.folder / "rows.jsonl", ({"id": name, "text": text} for name, text in texts.items()))

    @property
    def jobs(self) -> tuple[str, str]:
        return ("--jobs", str(self.folder / "jobs"))

    def night(self, job: str, date: str = FIRST, *more: str, code: int = 0) -> dict[str, Any]:
        said = self.house.cli("night", job, "--date", date, *self.jobs, *more, "--json")
        assert said.code == code, f"{said.code}: {said.out}\n{said.err[-2000:]}"
        return said.record


@pytest.fixture
def project(house: House, tmp_path: Path) -> Project:
    return Project(house, tmp_path)


def test_a_space_over_two_nights_is_read_back_whole(project: Project) -> None:
    project.job("docs", kind="embed", dataset="rows.jsonl", model="vec", id_column="id", column="text", space={"name": "docs"})
    texts = {f"r{n}": f"text {n}" for n in range(30)}
    project.rows(texts)
    looked = project.night("docs", FIRST, "--dry-run")
    assert (looked["added"], looked["to_compute"]) == (30, 30)
    first = project.night("docs")
    assert (first["state"], first["sent"], first["space"]["rows"]) == ("done", 30, 30)
    jobs = len(project.house.gate.jobs)
    assert project.night("docs")["repeated"]
    nothing = project.night("docs", SECOND)
    assert (nothing["sent"], nothing["usd_estimated"]) == (0, 0)
    assert len(project.house.gate.jobs) == jobs
    texts["r1"] = "another text"
    del texts["r2"]
    project.rows(texts)
    third = project.night("docs", "2026-03-12")
    space = third["space"]
    assert (space["added"], space["changed"], space["removed"], space["rows"]) == (0, 1, 1, 29)
    assert third["space"]["canary"]["passed"]
    listed = project.house.ok("jobs", *project.jobs)["jobs"]
    assert listed[0]["last"]["date"] == "2026-03-12"
    page = project.folder / "page.html"
    project.house.ok("report", "docs", "--date", "2026-03-12", "--out", page, "--stack", "local")
    assert "docs" in page.read_text()


def test_two_schedulers_at_once_do_a_night_once(project: Project) -> None:
    question_rows(project.folder / "rows.jsonl", 2 * PER_SHARD, text="Two schedulers ask of row {n}.")
    project.job("twice", kind="generate", dataset="rows.jsonl", model="echo", out="out-{date}.jsonl")
    project.house.gate.reset(0)
    first = project.house.start("night", "twice", "--date", FIRST, *project.jobs, "--json")
    eventually(lambda: project.house.gate.came >= 1, f"a shard has reached the engine; {first.err}")
    second = project.house.cli("night", "twice", "--date", FIRST, *project.jobs, "--json")
    assert second.code == 3
    assert "is being done by" in second.err
    project.house.gate.open()
    done = first.said()
    assert (done.code, done.record["state"], done.record["sent"]) == (0, "done", 2 * PER_SHARD)
    assert len(project.house.gate.jobs) == len({job["id"] for job in project.house.gate.jobs})


def test_a_killed_night_is_taken_over_and_pays_nothing_twice(project: Project) -> None:
    question_rows(project.folder / "rows.jsonl", 4 * PER_SHARD, text="A killed night asks of row {n}.")
    project.job("killed", kind="generate", dataset="rows.jsonl", model="echo", out="out-{date}.jsonl")
    project.house.gate.reset(2)
    first = project.house.start("night", "killed", "--date", FIRST, *project.jobs, "--json")
    run = eventually(lambda: next(iter(project.house.runs() - project.house.seen), None), "the run is there")
    address = f"s3://{project.house.stack.facts.store.bucket}/runs/{run}" if not run.startswith("s3://") else run
    eventually(lambda: len(project.house.committed(address)) >= 2, f"two shards are committed; {first.err}")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    done_before = project.house.committed(address)
    project.house.gate.open()
    said = project.house.cli("night", "killed", "--date", FIRST, *project.jobs, "--json")
    assert said.code == 0, said.err[-2000:]
    assert said.record["state"] == "done"
    assert done_before <= project.house.committed(address)
    assert len((project.folder / f"out-{FIRST}.jsonl").read_text().splitlines()) == 4 * PER_SHARD


def test_an_evaluation_gates_and_its_result_is_listed(project: Project) -> None:
    questions = ({"id": f"q{n}", "question": f"say {n}", "answer": f"say {n}"} for n in range(6))
    write_jsonl(project.folder / "suites" / "q.jsonl", questions)
    suite = {
        "version": 1, "dataset": "q.jsonl", "id_column": "id", "column": "question", "target_column": "answer",
        "scorers": [{"kind": "regex", "pattern": "(?s)(.*)"}],
    }  # fmt: skip
    (project.folder / "suites" / "echoes.yaml").write_text(json.dumps(suite))
    project.job("echoes", kind="eval", suite="suites/echoes.yaml", model="echo", gate={"min_score": 0.99})
    record = project.night("echoes", code=0)
    assert (record["state"], record["evaluation"]["rows"], record["evaluation"]["score"]) == ("done", 6, 1.0)
    project.job("echoes", kind="eval", suite="suites/echoes.yaml", model="echo", gate={"min_score": 1.01})
    failed = project.night("echoes", SECOND, code=1)
    assert (failed["state"], failed["evaluation"]["gate"]) == ("done", "failed")
    shown = project.house.ok("eval", "show", "echoes/latest", "--stack", "local")
    assert failed["evaluation"]["result"] in json.dumps(shown)


def test_mistakes_of_job_files_are_all_told_at_once_with_their_lines(project: Project) -> None:
    (project.folder / "jobs" / "bad.yaml").write_text("version: 1\nkind: embedd\ndataset: rows.jsonl\nmodel: vec\npaze: 3\n")
    said = project.house.cli("night", "bad", *project.jobs)
    assert said.code == 2
    assert "bad.yaml:2: kind" in said.err
    assert "bad.yaml:5: paze" in said.err
    assert "pace" in said.err
    assert "Traceback" not in said.err
    assert project.house.cli("jobs", *project.jobs).code == 2


def test_a_night_that_is_not_due_is_told_and_ends_well(project: Project) -> None:
    schedule = {"cron": "0 2 29 2 *", "timezone": "UTC"}
    project.job("rare", kind="generate", dataset="rows.jsonl", model="echo", out="out.jsonl", schedule={**schedule, "max_delay": "1h"})
    said = project.house.cli("night", "rare", "--if-due", *project.jobs)
    assert said.code == 0
    assert "was missed" in said.out or "No night is due" in said.out
