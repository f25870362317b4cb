"""Schedulers' files: what is in them, that they wake every night, and that they are compared with the job files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import UsageError
from nights.jobs.files import JobFile, load_jobs
from nights.jobs.model import Job
from nights.jobs.schedule import Timing, due_between, look
from nights.jobs.schedulers import (
    CHECKOUT,
    KEYS,
    TARGETS,
    Days,
    How,
    Made,
    Target,
    days_of,
    differences,
    folder_of,
    make,
    offsets,
    runners,
    standing,
    wakes,
    write,
)

CLONE = Path(__file__).resolve().parents[3]
HOW = How(today=date(2026, 1, 1))
JOB = """\
version: 1
kind: generate
dataset: s3://data/{date}/*.csv
model: m
stack: prod
prompt: "{question}"
out: "s3://data/out/{job}-{date}.jsonl"
deadline: 6h
schedule: {cron: "30 2 * * *", timezone: Europe/Berlin}
notify:
  - {kind: slack, url_env: SLACK_WEBHOOK_URL}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one job, `answers`."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/answers.yaml").write_text(JOB)
    return tmp_path


def job(cron: str = "30 2 * * *", zone: str = "Europe/Berlin", **more: Any) -> JobFile:
    schedule = {"cron": cron, "timezone": zone, **more.pop("schedule", {})}
    base = {"name": "answers", "kind": "generate", "dataset": "s3://d/a.csv", "model": "m", "stack": "prod", "out": "s3://d/o.jsonl"}
    return JobFile(Path("jobs/answers.yaml"), Job.model_validate({**base, "schedule": schedule, **more}), Path())


def made(target: Target, *jobs: JobFile, how: How = HOW) -> dict[str, str]:
    return {one.path: one.text for one in make(target, jobs, how)[0]}


def workflow(text: str) -> dict[Any, Any]:
    found = yaml.safe_load(text)
    assert isinstance(found, dict)
    found["on"] = found.pop(True)  # as YAML 1.1 reads it
    return found


# --- GitHub Actions ------------------------------------------------------------------------------------------------------------------


def test_a_workflow_wakes_at_every_offset_of_the_zone_and_once_more(project: Path) -> None:
    files = made("github", *load_jobs(project / "jobs"))
    assert list(files) == [".github/workflows/night-answers.yml"]
    found = workflow(files[".github/workflows/night-answers.yml"])
    assert [one["cron"] for one in found["on"]["schedule"]] == ["30 0 * * *", "30 1 * * *", "30 2 * * *"]
    assert found["concurrency"] == {"group": "night-answers", "cancel-in-progress": False}
    assert found["permissions"] == {}
    assert "date" in found["on"]["workflow_dispatch"]["inputs"]


def test_a_workflow_hands_over_to_another_runner_before_its_time_ends(project: Path) -> None:
    found = workflow(made("github", *load_jobs(project / "jobs"))[".github/workflows/night-answers.yml"])
    assert list(found["jobs"]) == ["night", "night-2"]
    first, second = found["jobs"]["night"], found["jobs"]["night-2"]
    assert (second["needs"], second["if"]) == ("night", "needs.night.outputs.unfinished == 'true'")
    assert first["outputs"] == {"unfinished": "${{ steps.night.outputs.unfinished }}"}
    assert first["steps"][-1]["run"].count("--signal=INT") == 1
    assert first["timeout-minutes"] < 360


@pytest.mark.parametrize(
    ("deadline", "count"), [("5h", 1), ("6h", 2), ("11h", 2), ("12h", 3), ("06:30", 5), (None, 5), ("9d", 8), ("1m", 1)]
)
def test_there_are_as_many_runners_as_the_deadline_needs(deadline: str | None, count: int) -> None:
    assert runners(deadline) == count


@pytest.mark.parametrize(
    ("code", "outcome", "status"), [(0, "", 0), (1, "", 1), (4, "", 4), (130, "unfinished=true\n", 0), (137, "unfinished=true\n", 0)]
)
@pytest.mark.parametrize("last", [False, True])
def test_the_step_ends_as_the_night_does_and_hands_over_what_is_not_finished(
    project: Path, tmp_path: Path, code: int, outcome: str, status: int, last: bool
) -> None:
    found = workflow(made("github", *load_jobs(project / "jobs"))[".github/workflows/night-answers.yml"])
    step = found["jobs"]["night-2" if last else "night"]["steps"][-1]
    program = tmp_path / "bin/nightbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexit {code}\n')
    program.chmod(0o755)
    output = tmp_path / "output"
    output.touch()

    def run(chosen: str) -> int:
        env = {"PATH": f"{program.parent}:/usr/bin:/bin", "GITHUB_OUTPUT": str(output), "DATE": chosen}
        return subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env=env, timeout=30).returncode

    assert run("") == (code if last else status)
    assert output.read_text() == ("" if last else outcome)
    run("2026-11-30; touch owned")
    assert (tmp_path / "asked").read_text() == "night answers --if-due\nnight answers --date 2026-11-30; touch owned\n"
    assert not Path("owned").exists()


def test_a_step_that_is_out_of_time_is_interrupted_and_not_killed(project: Path, tmp_path: Path) -> None:
    found = workflow(made("github", *load_jobs(project / "jobs"))[".github/workflows/night-answers.yml"])
    step = found["jobs"]["night"]["steps"][-1]["run"].replace(" 330m ", " 0.3s ")
    program = tmp_path / "bin/nightbatch"
    program.parent.mkdir()
    program.write_text("#!/usr/bin/env bash\ntrap 'exit 130' INT\nfor i in {1..100}; do sleep 0.1; done\nexit 7\n")
    program.chmod(0o755)
    output = tmp_path / "output"
    env = {"PATH": f"{program.parent}:/usr/bin:/bin", "GITHUB_OUTPUT": str(output), "DATE": ""}
    assert subprocess.run(["bash", "-eo", "pipefail", "-c", step], env=env, timeout=30).returncode == 0
    assert output.read_text() == "unfinished=true\n"


def test_a_workflow_names_secrets_and_holds_none(project: Path) -> None:
    text = made("github", *load_jobs(project / "jobs"))[".github/workflows/night-answers.yml"]
    env = workflow(text)["jobs"]["night"]["steps"][-1]["env"]
    assert env == {"DATE": "${{ inputs.date }}"} | {name: f"${{{{ secrets.{name} }}}}" for name in (*KEYS, "SLACK_WEBHOOK_URL")}
    for target in TARGETS:
        for other in made(target, *load_jobs(project / "jobs")).values():
            assert not re.search(r"(KEY|SECRET|URL|PASSWORD)\s*=\s*['\"]?\w", other)


def test_actions_are_pinned_as_in_the_other_workflows(project: Path) -> None:
    pins: dict[str, set[str]] = {}
    for path in (CLONE / ".github/workflows").glob("*.yml"):
        for action, pin in re.findall(r"uses: ([\w./-]+)@(.+)", path.read_text()):
            pins.setdefault(action, set()).add(pin)
    name, _, pin = CHECKOUT.partition("@")
    assert pins[name] == {pin}
    for text in made("github", *load_jobs(project / "jobs")).values():
        assert set(re.findall(r"uses: (.+)", text)) == {CHECKOUT}


def test_a_clone_runs_its_own_program_and_installs_nothing(project: Path) -> None:
    clone = How(program="./nightbatch", today=HOW.today)
    text = made("github", *load_jobs(project / "jobs"), how=clone)[".github/workflows/night-answers.yml"]
    assert "./nightbatch night answers" in text
    assert "pip" not in text


def test_a_secret_that_github_would_refuse_is_told() -> None:
    with pytest.raises(UsageError, match="GITHUB_HOOK cannot be a secret of GitHub"):
        make("github", [job(notify=[{"kind": "slack", "url_env": "GITHUB_HOOK"}])], HOW)


def test_what_a_hosted_runner_cannot_do_is_said() -> None:
    files, notices = make("github", [job(stack="local"), job(out="out/o.jsonl")], HOW)
    assert len(files) == 1
    assert notices == (
        "answers runs on the local stack, which a hosted runner has not.",
        "answers writes out/o.jsonl on a hosted runner, whose disk is gone afterwards; write it to s3://.",
    )
    assert make("cron", [job(stack="local")], HOW)[1] == ()


# --- days and offsets ----------------------------------------------------------------------------------------------------------------


def test_offsets_are_those_of_the_year() -> None:
    assert offsets(ZoneInfo("Europe/Berlin"), date(2026, 6, 1)) == (timedelta(hours=2), timedelta(hours=1))
    assert offsets(ZoneInfo("Asia/Kolkata"), date(2026, 6, 1)) == (timedelta(hours=5, minutes=30),)
    assert offsets(ZoneInfo("Africa/Casablanca"), date(2026, 6, 1)) == (timedelta(hours=1), timedelta(0))


@pytest.mark.parametrize(
    ("cron", "shift", "found"),
    [
        ("0 2 * * *", 1, (Days(None, None, None),)),
        ("0 2 * * 1-5", 0, (Days(None, None, (1, 2, 3, 4, 5)),)),
        ("0 2 * * 7", 0, (Days(None, None, (0,)),)),
        ("0 2 * * sat", 1, (Days(None, None, (0,)),)),
        ("0 2 * * 0", -1, (Days(None, None, (6,)),)),
        ("0 2 1,15 */3 *", 0, (Days((1, 15), (1, 4, 7, 10), None),)),
        ("0 2 1 * *", 1, (Days(None, None, None),)),
        ("0 2 1 6 1", 0, (Days((1,), (6,), None), Days(None, (6,), (1,)))),
        ("0 2 */2 * 1", 0, (Days(None, None, None),)),
        ("0 2 L * *", 0, (Days(None, None, None),)),
        ("0 2 * * MON#2", 0, (Days(None, None, None),)),
    ],
)
def test_days_are_shifted_or_left_to_the_jobs_own_schedule(cron: str, shift: int, found: tuple[Days, ...]) -> None:
    assert days_of(cron, shift) == found


def ticks(crons: list[str], start: datetime, end: datetime) -> Iterator[datetime]:
    found: set[datetime] = set()
    for cron in crons:
        for tick in CronSim(cron, start):
            if tick > end:
                break
            found.add(tick)
    yield from sorted(found)


CRONS = st.builds(
    "{} {} {} {} {}".format, st.integers(0, 59), st.integers(0, 23),
    st.sampled_from(["*", "*", "1", "1,15", "*/2", "L"]), st.sampled_from(["*", "*", "3,10", "1-6"]),
    st.sampled_from(["*", "*", "1-5", "0", "7", "5#1"]),
)  # fmt: skip
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Kiritimati", "Etc/GMT+12",
     "Pacific/Chatham", "America/St_Johns", "Africa/Cairo", "America/Havana"]
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(cron=CRONS, zone=ZONES, target=st.sampled_from(["github", "cron"]), month=st.sampled_from([1, 3, 4, 9, 10]))
def test_every_night_is_begun_once_and_within_the_hour(cron: str, zone: str, target: Target, month: int) -> None:
    one = job(cron, zone)
    assert one.job.schedule is not None
    timing = Timing.of(one.job.schedule)
    start = datetime(2026, month, 10, tzinfo=UTC)
    nights = due_between(timing, start, start + timedelta(days=35), most=40)
    (text,) = made(target, one).values()
    crons = (
        [found["cron"] for found in workflow(text)["on"]["schedule"]]
        if target == "github"
        else re.findall(r"^(\S+ \* \* \* \*) ", text, re.M)
    )
    held: dict[str, datetime] = {}
    for night in nights:
        for tick in ticks(crons, night.due - timedelta(hours=2), night.due + timedelta(hours=2)):
            seen = look(timing, tick, held)
            if seen.state == "due" and seen.night == night:
                assert night.date.isoformat() not in held
                held[night.date.isoformat()] = tick
    for night in nights:
        assert timedelta(0) <= held[night.date.isoformat()] - night.due <= timedelta(hours=1, minutes=1)


def test_a_run_that_github_leaves_out_is_made_up_for_an_hour_later() -> None:
    """The last wake of a night is never its only one."""
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        timing = Timing("30 2 * * *", ZoneInfo(zone))
        moments = [timedelta(days=one.shift, hours=one.hour, minutes=one.minute) for one in wakes(timing, date(2026, 1, 1))]
        for night in due_between(timing, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 31, tzinfo=UTC), most=400):
            day = datetime(night.date.year, night.date.month, night.date.day, tzinfo=UTC)
            late = [day + moment for moment in moments if night.due <= day + moment <= night.due + timedelta(hours=3)]
            assert len(late) >= 2


# --- GitLab --------------------------------------------------------------------------------------------------------------------------


def test_gitlab_gets_one_job_for_each_and_the_commands_for_its_schedules(project: Path) -> None:
    (project / "jobs/other.yaml").write_text(JOB.replace("30 2", "0 4").replace("Europe/Berlin", "UTC"))
    ((path, text),) = made("gitlab", *load_jobs(project / "jobs")).items()
    found = yaml.safe_load(text)
    assert path == ".gitlab/nights.yml"
    assert list(found) == [".night", "night-answers", "night-other"]
    assert found["night-answers"]["rules"] == [{"if": '$CI_PIPELINE_SOURCE =~ /^(schedule|web)$/ && $NIGHT == "answers"'}]
    assert found["night-answers"]["resource_group"] == "night-answers"
    assert found[".night"]["retry"] == {"max": 2, "exit_codes": [130, 137]}
    assert found[".night"]["script"][-1].endswith('nightbatch night "$NIGHT" --if-due')
    assert '--cron "30 2 * * *" --cronTimeZone "Europe/Berlin" --ref main --variable "NIGHT:answers"' in text
    assert '--cron "0 4 * * *" --cronTimeZone "UTC" --ref main --variable "NIGHT:other"' in text


# --- systemd -------------------------------------------------------------------------------------------------------------------------

SYSTEMD = shutil.which("systemd-analyze")
with_systemd = pytest.mark.skipif(SYSTEMD is None, reason="no systemd-analyze here")
CALENDARS = ["30 2 * * *", "5 0 1,15 */3 *", "30 23 * * 1-5", "0 2 1 6 1", "0 2 L * *", "0 2 29 2 *"]


def calendars(text: str) -> list[str]:
    return re.findall(r"^OnCalendar=(.+)$", text, re.M)


@with_systemd
@pytest.mark.parametrize("cron", CALENDARS)
def test_systemd_takes_the_units(cron: str, tmp_path: Path) -> None:
    (tmp_path / "nightbatch").write_text("#!/bin/sh\n")
    (tmp_path / "nightbatch").chmod(0o755)
    files = made("systemd", job(cron), how=How(program="./nightbatch", folder=str(tmp_path), today=HOW.today))
    for path, text in files.items():
        (tmp_path / Path(path).name).write_text(text)
    units = [str(tmp_path / Path(path).name) for path in files]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    lines = calendars("".join(files.values()))
    done = subprocess.run(["systemd-analyze", "calendar", *lines], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Next elapse") == len(lines)


@with_systemd
@pytest.mark.parametrize("cron", ["30 2 * * *", "30 2 * * 0", "30 23 * * 6", "0 2 1 * 1"])
@pytest.mark.parametrize("base", ["2026-03-25", "2026-10-21"])
def test_systemd_begins_every_night_where_clocks_change(cron: str, base: str) -> None:
    one = job(cron)
    timing = Timing(cron, ZoneInfo("Europe/Berlin"))
    start = datetime.fromisoformat(f"{base}T12:00:00+00:00")
    lines = calendars(made("systemd", one)["deploy/systemd/night-answers.timer"])
    done = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=20", f"--base-time={base} 12:00:00 UTC", *lines],
        capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C"},
    )  # fmt: skip
    moments = {
        datetime.strptime(found, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) for found in re.findall(r"\w{3} (\S+ \S+) UTC", done.stdout)
    }
    held: dict[str, datetime] = {}
    for moment in sorted(moments):
        seen = look(timing, moment, held)
        if seen.state == "due":
            assert seen.night is not None
            held[seen.night.date.isoformat()] = moment
    nights = due_between(timing, start, start + timedelta(days=8))
    assert nights
    for night in nights:
        assert timedelta(0) <= held[night.date.isoformat()] - night.due <= timedelta(hours=1)


def test_the_second_look_of_a_timer_is_on_the_day_that_it_falls_on() -> None:
    timer = "deploy/systemd/night-answers.timer"
    assert calendars(made("systemd", job("30 23 * * 1-5"))[timer]) == [
        "Mon,Tue,Wed,Thu,Fri *-*-* 23:30:00 Europe/Berlin", "Tue,Wed,Thu,Fri,Sat *-*-* 00:30:00 Europe/Berlin"
    ]  # fmt: skip
    assert calendars(made("systemd", job("0 2 1,15 * *", "UTC"))[timer]) == ["*-*-01,15 02:00:00 UTC"]


def test_a_timer_makes_up_for_missed_nights_as_the_job_says() -> None:
    timer = "deploy/systemd/night-answers.timer"
    assert "Persistent=true\n" in made("systemd", job())[timer]
    assert "Persistent=false\n" in made("systemd", job(schedule={"missed": "skip"}))[timer]


def test_units_stand_where_the_project_lies_and_the_folder_is_remembered(project: Path) -> None:
    how = How(program="./nightbatch", folder="/srv/nights", today=HOW.today)
    list(write("systemd", make("systemd", load_jobs(project / "jobs"), how)[0], project))
    text = (project / "deploy/systemd/night-answers.service").read_text()
    assert "WorkingDirectory=/srv/nights\n" in text
    assert "ExecStart=/srv/nights/nightbatch night answers --if-due\n" in text
    assert "EnvironmentFile=/etc/nightbatch/prod.env\n" in text
    assert folder_of(project) == "/srv/nights"


@pytest.mark.parametrize("folder", ["relative", "/srv/a b", "/srv/$HOME", "/srv/%h", "/x;y", ""])
def test_a_folder_that_a_unit_or_a_crontab_would_read_otherwise_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="is not the full path of a folder"):
        How(folder=folder)


# --- cron ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "minutes"), [("Europe/Berlin", "30"), ("Asia/Kolkata", "0"), ("Pacific/Chatham", "45"), ("Australia/Lord_Howe", "0,30")]
)
def test_cron_looks_every_hour_at_the_minute_that_the_job_has_in_utc(zone: str, minutes: str) -> None:
    (text,) = made("cron", job(zone=zone)).values()
    line = text.splitlines()[-1]
    assert line.startswith(f"{minutes} * * * * cd /opt/nightbatch && ")
    assert line.endswith("nightbatch night answers --if-due 2>&1 | logger -t night-answers")
    assert "%" not in line  # which cron takes for the end of a line


# --- the project's folder ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wanted(project: Path) -> Callable[[Target], tuple[Made, ...]]:
    return lambda target: make(target, load_jobs(project / "jobs"), HOW)[0]


@pytest.mark.parametrize("target", TARGETS)
def test_files_are_written_once_checked_renewed_and_removed(
    target: Target, project: Path, wanted: Callable[[Target], tuple[Made, ...]]
) -> None:
    files = wanted(target)
    assert {one.what for one in differences(target, files, project)} == {"missing"}
    assert [what for _, what in write(target, files, project)] == ["wrote"] * len(files)
    assert differences(target, files, project) == ()
    assert list(write(target, files, project)) == []
    assert standing(target, project) == tuple(sorted(one.path for one in files))
    (project / "jobs/answers.yaml").write_text(JOB.replace("30 2", "45 2"))
    changed = differences(target, wanted(target), project)
    assert changed[-1].what == "differs"
    assert re.search(r"^-.*30.*\n(.*\n)*\+.*45", changed[-1].diff, re.M)
    (project / "jobs/answers.yaml").unlink()
    assert {one.what for one in differences(target, wanted(target), project)} == {"nothing makes it"}
    assert {what for _, what in write(target, wanted(target), project)} == {"removed"}
    assert standing(target, project) == ()


def test_a_file_that_somebody_else_made_is_neither_replaced_nor_removed(
    project: Path, wanted: Callable[[Target], tuple[Made, ...]]
) -> None:
    folder = project / ".github/workflows"
    folder.mkdir(parents=True)
    (folder / "night-answers.yml").write_text("name: mine\n")
    (folder / "night-other.yml").write_text("name: mine, too\n")
    assert [one.path for one in differences("github", wanted("github"), project)] == [".github/workflows/night-answers.yml"]
    with pytest.raises(UsageError, match="was not made by this command, and is not replaced"):
        list(write("github", wanted("github"), project))
    assert (folder / "night-answers.yml").read_text() == "name: mine\n"


def test_a_job_without_a_schedule_has_no_file() -> None:
    plain = JobFile(Path("jobs/answers.yaml"), job().job.model_copy(update={"schedule": None}), Path())
    for target in TARGETS:
        assert make(target, [plain], HOW) == ((), ("answers has no schedule, so nothing begins it by itself.",))


def test_made_files_are_the_same_every_time(project: Path) -> None:
    for target in TARGETS:
        one, two = (json.dumps(made(target, *load_jobs(project / "jobs"))) for _ in range(2))
        assert one == two


# --- what lies in the way ------------------------------------------------------------------------------------------------------------


def in_the_way(project: Path) -> Path:
    path = project / ".github/workflows/night-answers.yml"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("thing", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_refused_and_not_waited_for(project: Path, thing: str) -> None:
    path = in_the_way(project)
    put: dict[str, Callable[[], None]] = {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path.name),
    }
    put[thing]()
    made, _ = make("github", load_jobs(project / "jobs"), HOW)
    assert standing("github", project) == ()
    with pytest.raises(UsageError, match="cannot be read"):
        differences("github", made, project)
    with pytest.raises(UsageError, match="cannot be read"):
        list(write("github", made, project))


def test_a_link_is_replaced_and_what_it_points_at_stays_as_it_is(project: Path) -> None:
    path = in_the_way(project)
    made, _ = make("github", load_jobs(project / "jobs"), HOW)
    mine = project / "mine.yml"
    mine.write_text(made[0].text + "# mine\n")
    path.symlink_to(mine)
    assert list(write("github", made, project)) == [(made[0].path, "wrote")]
    assert not path.is_symlink()
    assert mine.read_text().endswith("# mine\n")


def test_a_folder_that_cannot_be_made_is_one_sentence_and_leaves_no_draft(project: Path) -> None:
    (project / ".github").symlink_to("/proc/self")
    made, _ = make("github", load_jobs(project / "jobs"), HOW)
    with pytest.raises(UsageError, match="cannot be written"):
        list(write("github", made, project))


@pytest.mark.parametrize("target", TARGETS)
def test_no_name_becomes_a_line_of_its_own_or_another_type(target: Target, tmp_path: Path) -> None:
    folder = tmp_path / "jobs\nrun: evil\n${{ secrets.X }}"
    folder.mkdir()
    for name, stack in (("null", "1e5"), ("1e3", "on"), ("a", "0x1f")):
        text = JOB.replace("stack: prod", f'stack: "{stack}"') + 'description: "${{ secrets.HIDDEN }} $(id) `id`"\n'
        (folder / f"{name}.yaml").write_text(text)
    made, _ = make(target, load_jobs(folder), HOW)
    for one in made:
        assert "evil" not in one.text.replace("run? evil", "")
        assert "HIDDEN" not in one.text
        assert "$(id)" not in one.text
        if target in ("github", "gitlab"):
            read = yaml.safe_load(one.text)
            jobs = read["jobs"].values() if target == "github" else [job for key, job in read.items() if key.startswith("night-")]
            environments = [job["environment"] for job in jobs]
            names = [place if target == "github" else place["name"] for place in environments]
            assert names
            assert all(isinstance(name, str) for name in names)
