"""nights/jobs: the files of schedulers, made from job files: GitHub Actions, GitLab, systemd timers, cron. Texts in, texts out; `write` and
`check` touch the project's folder.

A scheduler only wakes `nightbatch night JOB --if-due`, which decides by the job's own schedule: waking too often costs a look at the
bucket, and a night is begun once. So where a scheduler has no time zones, or leaves out nights when clocks change, it wakes at every offset
that the zone has. No file holds a secret: they name variables.
"""

from __future__ import annotations

import difflib
import errno
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim

from contract.errors import UsageError
from nights.jobs.files import JobFile
from nights.jobs.model import parse_span
from nights.jobs.schedule import Timing

Target = Literal["github", "gitlab", "systemd", "cron"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
MARK: Final = "by `nightbatch schedule write"
"""In the first line of every file that is made here; a file without it is somebody's own."""
PLACES: Final[dict[Target, tuple[str, str]]] = {
    "github": (".github/workflows", "night-*.yml"),
    "gitlab": (".gitlab", "nights.yml"),
    "systemd": ("deploy/systemd", "night-*.*"),
    "cron": ("deploy/cron", "nights.crontab"),
}
"""Target -> the folder, and the names of its files."""
FOLDER: Final = "/opt/nightbatch"
CHECKOUT: Final = "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2"
KEYS: Final = (
    "RUNPOD_API_KEY",
    "NIGHTBATCH_S3_ACCESS_KEY_ID",
    "NIGHTBATCH_S3_SECRET_ACCESS_KEY",
    "NIGHTBATCH_WORKER_S3_ACCESS_KEY_ID",
    "NIGHTBATCH_WORKER_S3_SECRET_ACCESS_KEY",
)
RUNNER_MINUTES: Final = 330
"""After this a hosted runner, which is stopped after 360 minutes, hands over."""
MOST_RUNNERS: Final = 8
MOST_BYTES: Final = 1 << 20
"""Of a file that is compared with one that is made."""
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_DAYS: Final = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")


@dataclass(frozen=True)
class How:
    """What the files need to know beside the jobs."""

    program: str = "nightbatch"
    """What is typed in the project's folder: `./nightbatch` in a clone."""
    folder: str = FOLDER
    """Where the project lies on the machine of systemd and cron."""
    today: date = date(2026, 1, 1)
    """A zone's offsets are those of the year that begins here."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"/[A-Za-z0-9._/-]*", self.folder):
            raise UsageError(
                "is not the full path of a folder, of plain characters.", where=f"--folder {self.folder}", fix=f"Such as {FOLDER}."
            )

    @property
    def installed(self) -> bool:
        """The program is installed by pip, and not a clone's own."""
        return not self.program.startswith("./")


@dataclass(frozen=True)
class Made:
    """One file: its path below the project's folder, and what is in it."""

    path: str
    text: str


@dataclass(frozen=True)
class Difference:
    """One file that is not as the job files say. `diff`: a unified diff, empty for one that should not be there."""

    path: str
    what: Literal["missing", "differs", "nothing makes it"]
    diff: str


def make(target: Target, jobs: Sequence[JobFile], how: How) -> tuple[tuple[Made, ...], tuple[str, ...]]:
    """The files of one scheduler, and what is worth saying. Raises UsageError for what it cannot take."""
    scheduled = [job for job in jobs if job.job.schedule is not None]
    notices = [f"{job.name} has no schedule, so nothing begins it by itself." for job in jobs if job.job.schedule is None]
    if target in ("github", "gitlab"):
        notices += [f"{job.name} runs on the local stack, which a hosted runner has not." for job in scheduled if job.job.stack == "local"]
        scheduled = [job for job in scheduled if job.job.stack != "local"]
        notices += [
            f"{job.name} writes {job.job.out} on a hosted runner, whose disk is gone afterwards; write it to s3://."
            for job in scheduled
            if job.job.out is not None and not job.job.out.startswith("s3://")
        ]
    if not scheduled:
        return (), tuple(notices)
    if target == "github":
        return tuple(_github(job, how) for job in scheduled), tuple(notices)
    if target == "systemd":
        return tuple(made for job in scheduled for made in _systemd(job, how)), tuple(notices)
    return ((_gitlab if target == "gitlab" else _crontab)(scheduled, how),), tuple(notices)


def _head(target: Target, source: str, how: How) -> str:
    folder = f" --folder {how.folder}" if target in ("systemd", "cron") and how.folder != FOLDER else ""
    return f"# Made from {source} {MARK} --for {target}{folder}`; do not edit: change the job file and write it again.\n"


# --- times ---------------------------------------------------------------------------------------------------------------------------


def offsets(zone: ZoneInfo, today: date) -> tuple[timedelta, ...]:
    """Every offset from UTC that the zone has in the year from then on, the largest first: with it a time of day comes first in UTC."""
    noon = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
    found = {(noon + timedelta(days=days)).astimezone(zone).utcoffset() or timedelta(0) for days in range(-1, 367)}
    return tuple(sorted(found, reverse=True))


@dataclass(frozen=True)
class Days:
    """Which days a cron expression means; None: every one. `weekdays`: 0 is Sunday."""

    days: tuple[int, ...] | None
    months: tuple[int, ...] | None
    weekdays: tuple[int, ...] | None

    @property
    def cron(self) -> str:
        """As three fields that every cron understands."""
        return " ".join("*" if one is None else ",".join(map(str, one)) for one in (self.days, self.months, self.weekdays))

    @property
    def calendar(self) -> str:
        """As systemd writes it, without the time of day."""
        month, day = (_two(self.months), _two(self.days))
        week = "" if self.weekdays is None else ",".join(_DAYS[one] for one in self.weekdays) + " "
        return f"{week}*-{month}-{day}"


EVERY_DAY: Final = Days(None, None, None)


def _two(values: tuple[int, ...] | None) -> str:
    return "*" if values is None else ",".join(f"{one:02}" for one in values)


def days_of(cron: str, shift: int = 0) -> tuple[Days, ...]:
    """The days of a schedule, `shift` days later: one set, or two of which either may hold. Where other programs would read them otherwise,
    or cannot say them, it is every day, and the job's own schedule decides."""
    sim = CronSim(cron, datetime(2026, 1, 1, tzinfo=UTC))
    texts = cron.split()[2:]
    weekdays = {one % 7 for one in sim.weekdays if isinstance(one, int)}
    if any(not isinstance(one, int) for one in sim.weekdays) or min(sim.days) < 0:
        return (EVERY_DAY,)  # the last day of a month, the second Monday
    days = None if texts[0] == "*" else tuple(sorted(sim.days))
    months = None if texts[1] == "*" else tuple(sorted(sim.months))
    week = None if texts[2] == "*" or len(weekdays) == 7 else tuple(sorted(weekdays))
    if shift:
        if days is not None or months is not None:
            return (EVERY_DAY,)
        return (Days(None, None, None if week is None else tuple(sorted((one + shift) % 7 for one in week))),)
    if days is not None and week is not None:
        return (EVERY_DAY,) if sim.day_and else (Days(days, months, None), Days(None, months, week))
    return (Days(days, months, week),)


@dataclass(frozen=True)
class Wake:
    """One time of day, in UTC, at which a scheduler without time zones looks. `shift`: days from the local date to UTC's."""

    hour: int
    minute: int
    shift: int
    why: str


def wakes(timing: Timing, today: date) -> tuple[Wake, ...]:
    """When to look, in UTC: at each offset that the zone has, and once an hour later, because hosted schedulers leave out runs."""
    minute, hour = (int(part) for part in timing.cron.split()[:2])
    local = timedelta(hours=hour, minutes=minute)
    moments = {local - offset: f"{hour:02}:{minute:02} at UTC{_signed(offset)}" for offset in offsets(timing.zone, today)}
    moments[max(moments) + timedelta(hours=1)] = "once more, for a run that was left out"
    found = []
    for moment, why in sorted(moments.items()):
        minutes = math.floor(moment / timedelta(minutes=1))
        found.append(Wake(minutes % 1440 // 60, minutes % 60, minutes // 1440, why))
    return tuple(found)


def _signed(offset: timedelta) -> str:
    minutes = int(offset / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _wake_crons(timing: Timing, today: date) -> dict[str, str]:
    """Cron expression in UTC -> why."""
    found: dict[str, str] = {}
    for wake in wakes(timing, today):
        for days in days_of(timing.cron, wake.shift):
            found.setdefault(f"{wake.minute} {wake.hour} {days.cron}", wake.why)
    return found


def runners(deadline: str | None) -> int:
    """How many runners one after another a night may need."""
    span = parse_span(deadline) if deadline is not None else timedelta(hours=24)
    if span is None:  # a time of day, which is within a day
        span = timedelta(hours=24)
    return max(1, min(MOST_RUNNERS, math.ceil(span / timedelta(minutes=RUNNER_MINUTES))))


def _due(job: JobFile) -> str:
    assert job.job.schedule is not None
    return f"{job.job.schedule.cron} in {job.job.schedule.timezone}"


def _source(job: JobFile) -> str:
    return f"{_plain(job.path.parent.name)}/{job.path.name}"


def _plain(folder: str) -> str:
    """A folder's name as a comment may hold it: a line break would end the comment, and what follows would be the scheduler's."""
    return re.sub(r"[^A-Za-z0-9._ -]", "?", folder)


def _scalar(text: str) -> str:
    """A text that YAML takes for a text: a stack may be called `1e5`, `true` or `null`."""
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", text) and text.lower() not in _WORDS else f'"{text}"'


# --- GitHub Actions ------------------------------------------------------------------------------------------------------------------


def _github(job: JobFile, how: How) -> Made:
    schedule = job.job.schedule
    assert schedule is not None
    if bad := [name for name in job.job.env_names if name.upper().startswith("GITHUB_")]:
        raise UsageError(
            f"{bad[0]} cannot be a secret of GitHub, whose own variables begin so.", where=job.where(), fix="Give it another name."
        )
    crons = "".join(f'    - cron: "{cron}" # {why}\n' for cron, why in _wake_crons(Timing.of(schedule), how.today).items())
    count = runners(job.job.deadline)
    names = ["night", *(f"night-{number}" for number in range(2, count + 1))]
    jobs = "\n".join(
        _github_job(job, how, name, names[index - 1] if index else None, last=index == count - 1) for index, name in enumerate(names)
    )
    text = (
        f"{_head('github', _source(job), how)}"
        f"# Due {_due(job)}. The times below are in UTC, and GitHub is late at times: `--if-due` decides by the job's own schedule.\n"
        f"name: night {job.name}\n"
        "\n"
        "on:\n"
        "  schedule:\n"
        f"{crons}"
        "  workflow_dispatch:\n"
        "    inputs:\n"
        "      date:\n"
        "        description: The night's date, such as 2026-11-30; empty for the one that is due\n"
        '        default: ""\n'
        "\n"
        "permissions: {}\n"
        "\n"
        "concurrency:\n"
        f"  group: night-{job.name}\n"
        "  cancel-in-progress: false\n"
        "\n"
        "jobs:\n"
        f"{jobs}"
    )
    return Made(f"{PLACES['github'][0]}/night-{job.name}.yml", text)


def _github_job(job: JobFile, how: How, name: str, before: str | None, *, last: bool) -> str:
    after = (
        "    # The runner before this one came to the end of its time; the same command goes on with the same night.\n"
        f"    needs: {before}\n"
        f"    if: needs.{before}.outputs.unfinished == 'true'\n"
        if before is not None
        else ""
    )
    outputs = "" if last else "    outputs:\n      unfinished: ${{ steps.night.outputs.unfinished }}\n"
    install = (
        "      - name: Install\n"
        "        run: |\n"
        '          python3 -m venv "$RUNNER_TEMP/nightbatch"\n'
        "          \"$RUNNER_TEMP/nightbatch/bin/pip\" install \"${NIGHTBATCH_INSTALL:-nightbatch[nights]}\"\n"
        '          echo "$RUNNER_TEMP/nightbatch/bin" >>"$GITHUB_PATH"\n'
        "        env: # a repository variable: where the package comes from, such as nightbatch[nights] @ git+https://…\n"
        "          NIGHTBATCH_INSTALL: ${{ vars.NIGHTBATCH_INSTALL }}\n"
        if how.installed
        else ""
    )
    keys = "".join(f"          {key}: ${{{{ secrets.{key} }}}}\n" for key in dict.fromkeys((*KEYS, *job.job.env_names)))
    hand_over = (
        '          case "$code" in\n'
        '            130 | 137) echo "unfinished=true" >>"$GITHUB_OUTPUT" ;; # the next job goes on\n'
        '            *) exit "$code" ;;\n'
        "          esac\n"
        if not last
        else '          exit "$code" # 130: not finished; the next run goes on\n'
    )
    return (
        f"  {name}:\n"
        f"{after}"
        "    runs-on: ubuntu-24.04\n"
        f"    timeout-minutes: {RUNNER_MINUTES + 25}\n"
        f"    environment: {_scalar(job.job.stack)}\n"
        "    permissions:\n"
        "      contents: read\n"
        f"{outputs}"
        "    steps:\n"
        f"      - uses: {CHECKOUT}\n"
        "        with:\n"
        "          persist-credentials: false\n"
        f"{install}"
        "      - name: The stack's facts\n"
        "        run: |\n"
        '          printf "%s" "$FACTS" >"$RUNNER_TEMP/facts.json"\n'
        '          echo "NIGHTBATCH_FACTS=$RUNNER_TEMP/facts.json" >>"$GITHUB_ENV"\n'
        "        if: vars.NIGHTBATCH_FACTS_JSON != ''\n"
        "        env:\n"
        "          FACTS: ${{ vars.NIGHTBATCH_FACTS_JSON }}\n"
        "      - name: Night\n"
        "        id: night\n"
        "        run: |\n"
        '          if [ -n "$DATE" ]; then set -- --date "$DATE"; else set -- --if-due; fi\n'
        "          code=0\n"
        f"          timeout --preserve-status --signal=INT --kill-after=10m {RUNNER_MINUTES}m \\\n"
        f'            {how.program} night {job.name} "$@" || code=$?\n'
        f"{hand_over}"
        "        env:\n"
        "          DATE: ${{ inputs.date }}\n"
        f"{keys}"
    )


# --- GitLab --------------------------------------------------------------------------------------------------------------------------


def _gitlab(jobs: Sequence[JobFile], how: How) -> Made:
    needed = sorted({*KEYS, *(name for job in jobs for name in job.job.env_names)})
    text = (
        f"{_head('gitlab', f'{_plain(jobs[0].path.parent.name)}/*.yaml', how)}"
        f"# In .gitlab-ci.yml:  include: [{{local: {PLACES['gitlab'][0]}/{PLACES['gitlab'][1]}}}]\n"
        "# GitLab keeps schedules outside of the repository; make them once, and again when one of these lines changes:\n"
        + "".join(
            f'#   glab schedule create --description "night {job.name}" --cron "{job.job.schedule.cron}"'
            f' --cronTimeZone "{job.job.schedule.timezone}" --ref main --variable "NIGHT:{job.name}"\n'
            for job in jobs
            if job.job.schedule is not None
        )
        + "# Masked variables of the project: NIGHTBATCH_FACTS (of type file), "
        + ", ".join(needed)
        + ".\n\n"
        ".night:\n"
        "  image: python:3.13\n"
        "  interruptible: false\n"
        f"  timeout: {RUNNER_MINUTES + 25} minutes # the runner's own limit must not be less\n"
        "  retry: # 130: the runner's time ended; the same command goes on with the same night\n"
        "    max: 2\n"
        "    exit_codes: [130, 137]\n"
        "  script:\n"
        + ("    - 'pip install \"${NIGHTBATCH_INSTALL:-nightbatch[nights]}\"'\n" if how.installed else "")
        + f'    - timeout --preserve-status --signal=INT --kill-after=10m {RUNNER_MINUTES}m {how.program} night "$NIGHT" --if-due\n'
    )
    for job in jobs:
        text += (
            f"\nnight-{job.name}: # {_due(job)}\n"
            "  extends: .night\n"
            "  rules:\n"
            f'    - if: $CI_PIPELINE_SOURCE =~ /^(schedule|web)$/ && $NIGHT == "{job.name}"\n'
            f"  environment: {{name: {_scalar(job.job.stack)}, action: access}}\n"
            f"  resource_group: night-{job.name}\n"
        )
    return Made(f"{PLACES['gitlab'][0]}/{PLACES['gitlab'][1]}", text)


# --- systemd -------------------------------------------------------------------------------------------------------------------------


def _systemd(job: JobFile, how: How) -> tuple[Made, Made]:
    schedule = job.job.schedule
    assert schedule is not None
    minute, hour = (int(part) for part in schedule.cron.split()[:2])
    lines = [f"OnCalendar={days.calendar} {hour:02}:{minute:02}:00 {schedule.timezone}\n" for days in days_of(schedule.cron)]
    if len(offsets(ZoneInfo(schedule.timezone), how.today)) > 1:
        lines.append("# systemd leaves out a time of day that does not exist when clocks go forward; this one exists then.\n")
        sets = days_of(schedule.cron, (hour + 1) // 24)
        lines += [f"OnCalendar={days.calendar} {(hour + 1) % 24:02}:{minute:02}:00 {schedule.timezone}\n" for days in sets]
    program = how.program if how.installed else f"{how.folder}/{how.program.removeprefix('./')}"
    service = (
        f"{_head('systemd', _source(job), how)}"
        "[Unit]\n"
        f"Description=Nightbatch: the night of {job.name}\n"
        "Wants=network-online.target\n"
        "After=network-online.target\n"
        "StartLimitIntervalSec=6h\n"
        "StartLimitBurst=6\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"WorkingDirectory={how.folder}\n"
        "# The stack's keys, NIGHTBATCH_FACTS, and what the job names: NAME=value lines, for the service's user alone.\n"
        f"EnvironmentFile=/etc/nightbatch/{job.job.stack}.env\n"
        f"ExecStart={program} night {job.name} --if-due\n"
        "# Ctrl-C: what is computed is kept, and the next start goes on.\n"
        "KillSignal=SIGINT\n"
        "TimeoutStopSec=10min\n"
        "# 1: finished, not as wanted; 2: input; 4: budget or deadline. Trying again would change none of them.\n"
        "Restart=on-failure\n"
        "RestartPreventExitStatus=1 2 4\n"
        "RestartSec=10min\n"
    )
    timer = (
        f"{_head('systemd', _source(job), how)}"
        "[Unit]\n"
        f"Description=Nightbatch: when the night of {job.name} is due\n"
        "\n"
        "[Timer]\n"
        f"{''.join(lines)}"
        f"Persistent={'true' if schedule.missed == 'run' else 'false'}\n"
        "AccuracySec=1min\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )
    base = f"{PLACES['systemd'][0]}/night-{job.name}"
    return Made(f"{base}.service", service), Made(f"{base}.timer", timer)


# --- cron ----------------------------------------------------------------------------------------------------------------------------


def _crontab(jobs: Sequence[JobFile], how: How) -> Made:
    text = (
        f"{_head('cron', f'{_plain(jobs[0].path.parent.name)}/*.yaml', how)}"
        "# Install: crontab FILE, or its lines into your own crontab.\n"
        "# Not every cron knows time zones (CRON_TZ is cronie's), and each has its own way with clocks that change. So cron looks every\n"
        "# hour, at the minute that the job is due in UTC, and `--if-due` decides: it costs one look at the bucket.\n"
        "# /etc/nightbatch/STACK.env holds the stack's keys, NIGHTBATCH_FACTS, and what the jobs name: NAME=value lines, for its user\n"
        "# alone.\n"
        "SHELL=/bin/sh\n"
    )
    for job in jobs:
        assert job.job.schedule is not None
        minute = int(job.job.schedule.cron.split()[0])
        minutes = sorted({int(minute - offset / timedelta(minutes=1)) % 60 for offset in offsets(job.job.zone, how.today)})
        text += (
            f"\n# {job.name}: due {_due(job)}\n"
            f"{','.join(map(str, minutes))} * * * * "
            f"cd {how.folder} && set -a && . /etc/nightbatch/{job.job.stack}.env && set +a && "
            f"{how.program} night {job.name} --if-due 2>&1 | logger -t night-{job.name}\n"
        )
    return Made(f"{PLACES['cron'][0]}/{PLACES['cron'][1]}", text)


# --- the project's folder ------------------------------------------------------------------------------------------------------------


def standing(target: Target, root: Path) -> tuple[str, ...]:
    """The files of a scheduler in the project that were made here, as paths below its folder."""
    folder, pattern = PLACES[target]
    return tuple(sorted(str(path.relative_to(root)) for path in (root / folder).glob(pattern) if _ours(path)))


def _text(path: Path, most: int = MOST_BYTES) -> str:
    """The beginning of a regular file; a pipe or a device in its place would be read for ever. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(most).decode("utf-8", "replace")


def _first_line(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return _text(path, 1000).partition("\n")[0]
    except OSError:
        return ""


def _ours(path: Path) -> bool:
    return MARK in _first_line(path)


def folder_of(root: Path) -> str | None:
    """The --folder that the files in the project were made with, so that it need not be said again."""
    for target in ("systemd", "cron"):
        for name in standing(target, root):
            found = re.search(r" --folder (/[A-Za-z0-9._/-]*)`", _first_line(root / name))
            if found is not None:
                return found[1]
    return None


def differences(target: Target, made: Sequence[Made], root: Path) -> tuple[Difference, ...]:
    """What of the project's files is not what the job files say."""
    found: list[Difference] = []
    for one in made:
        path = root / one.path
        try:
            there = _text(path)
        except FileNotFoundError:
            found.append(Difference(one.path, "missing", _diff("", one.text, one.path)))
            continue
        except OSError as error:
            raise UsageError(f"cannot be read ({error.strerror}).", where=str(path), fix="Move it away.") from None
        if there != one.text:
            found.append(Difference(one.path, "differs", _diff(there, one.text, one.path)))
    wanted = {one.path for one in made}
    found += [Difference(name, "nothing makes it", "") for name in standing(target, root) if name not in wanted]
    return tuple(sorted(found, key=lambda one: one.path))


def _diff(there: str, wanted: str, path: str) -> str:
    lines = difflib.unified_diff(
        there.splitlines(keepends=True), wanted.splitlines(keepends=True), f"{path}", f"{path} (as the job files say)", n=2
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def write(target: Target, made: Sequence[Made], root: Path) -> Iterator[tuple[str, Literal["wrote", "removed"]]]:
    """Make the project's files what the job files say, each whole or not at all. Raises UsageError before anything is changed where a file
    is not one of ours."""
    found = differences(target, made, root)
    texts = {one.path: one.text for one in made}
    for one in found:
        if one.what == "differs" and not _ours(root / one.path):
            raise UsageError("was not made by this command, and is not replaced.", where=one.path, fix="Move it away, or rename the job.")
    for one in found:
        path = root / one.path
        try:
            if one.what == "nothing makes it":
                path.unlink()
                yield one.path, "removed"
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, texts[one.path])
        except OSError as error:
            raise UsageError(f"cannot be written ({error.strerror}).", where=str(path), fix="May this folder be written to?") from None
        yield one.path, "wrote"


def _replace(path: Path, text: str) -> None:
    """The whole file or none; a link in its place is replaced, not followed. Raises OSError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
