"""nights/jobs: what a job file may say, as frozen pydantic models whose descriptions are the JSON schema and docs/jobs.md. Pure.

A job is what one team wants done every night: a kind of work over a dataset, on a stack, within a deadline and a sum of dollars. What one
field may be is said by its type; what fields need of each other is said by `problems_of`, which works on plain data too, so that `files`
can tell every mistake of a file at once. Nothing here reads a file or a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from nights.record import EventKind, JobKind

VERSION: Final = 1
NAME_PATTERN: Final = r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$"
ENV_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
SPAN: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
WALL_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
PLACEHOLDERS: Final[Mapping[str, tuple[str, ...]]] = {"dataset": ("job", "date"), "out": ("job", "date", "run")}
"""Key -> what may stand in braces in its text."""
_SOME_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


# --- texts that mean something -------------------------------------------------------------------------------------------------------


def parse_span(text: str) -> timedelta | None:
    """`90s`, `45m`, `6h`, `2d`; None for anything else."""
    found = SPAN.fullmatch(text)
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None


def zone_of(name: str) -> ZoneInfo | None:
    """The IANA time zone of this name; None where this machine knows none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a folder of the database, a name with .. or a byte that no path may have
        return None


def cron_problem(text: str) -> str | None:
    """Why this is no cron expression of five fields, as a clause; None if it is one."""
    from cronsim import CronSim, CronSimError

    fields = text.split()
    if len(fields) != 5:
        return (
            f"'{text}' has {len(fields)} field{'' if len(fields) == 1 else 's'}; cron has 5: minute, hour, day of month, month, day of week"
        )
    if not all(re.fullmatch("[0-9]{1,2}", part) for part in fields[:2]):
        return f"'{text}' begins with {fields[0]} {fields[1]}; minute and hour must be one number each, because a date has one night"
    try:
        next(CronSim(text, _SOME_TIME))
    except CronSimError as error:
        return f"'{text}' is no cron expression ({str(error).rstrip('.').lower()})"
    except StopIteration:
        return f"'{text}' never comes"
    return None


_MAILBOX: Final = r"[^\s<>@,;:\"()\[\]\\]{1,64}@[^\s<>@,;:\"()\[\]\\]{1,255}"
ADDRESS: Final = re.compile(rf"{_MAILBOX}|[^<>@,;:\"()\[\]\\]{{1,200}}<{_MAILBOX}>")
"""One mail address, or a name and one. What else the standard allows (quotes, comments, groups) nobody writes, and libraries stumble."""


def _text(rule: re.Pattern[str], kind: str, message: str) -> AfterValidator:
    def check(value: str) -> str:
        if not rule.fullmatch(value):
            raise PydanticCustomError(kind, message)
        return value

    return AfterValidator(check)


def _zone(value: str) -> str:
    if zone_of(value) is None:
        raise PydanticCustomError("time_zone", "is no time zone that this machine knows; write an IANA name such as Europe/Berlin or UTC")
    return value


def _cron(value: str) -> str:
    if problem := cron_problem(value):
        raise PydanticCustomError("cron", "{problem}", {"problem": problem})
    return " ".join(value.split())


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        bad, parts = True, urlsplit("")
    if bad or any(c.isspace() for c in value):
        raise PydanticCustomError("url", "is no http:// or https:// address")
    if parts.username is not None or parts.query:
        raise PydanticCustomError(
            "url_secret", "holds a password or a query, which may be a secret; set it as a variable and name that in url_env"
        )
    return value


def _not_zero(value: int) -> int:
    if value == 0:
        raise PydanticCustomError(
            "zero", "is 0, which leaves nothing of a text; write a number of tokens, or -1 for all that the model reads"
        )
    return value


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
EnvName = Annotated[
    str,
    Field(pattern=ENV_PATTERN, max_length=200, json_schema_extra={"x-secret": True}),
]
"""The name of an environment variable that holds a secret, never the secret."""
Span = Annotated[
    str,
    Field(json_schema_extra={"pattern": f"^{SPAN.pattern}$"}),
    _text(SPAN, "span", "is no time span; write a whole number and s, m, h or d, such as 45m or 6h"),
]
Deadline = Annotated[
    str,
    Field(json_schema_extra={"pattern": f"^({SPAN.pattern}|{WALL_CLOCK.pattern})$"}),
    _text(
        re.compile(f"{SPAN.pattern}|{WALL_CLOCK.pattern}"),
        "deadline",
        "is neither a time span such as 6h nor a time of day such as 06:30",
    ),
]
TimeZone = Annotated[str, AfterValidator(_zone)]
Cron = Annotated[str, AfterValidator(_cron)]
Url = Annotated[str, Field(max_length=2000), AfterValidator(_url)]
Texts = Annotated[tuple[Text, ...], Field(strict=False), BeforeValidator(_one_or_many, json_schema_input_type=Text | list[Text])]
Events = Annotated[
    tuple[EventKind, ...], Field(strict=False), BeforeValidator(_one_or_many, json_schema_input_type=EventKind | list[EventKind])
]
BAD_NEWS: Final[tuple[EventKind, ...]] = (
    "failure", "deadline_near", "deadline_missed", "budget", "gate", "canary", "asking", "not_started", "rows_failed"
)  # fmt: skip


class Part(BaseModel):
    """Base of every model here: frozen, strict, and no key that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True, populate_by_name=True
    )


# --- the parts of a job --------------------------------------------------------------------------------------------------------------


class Truncate(Part):
    """What becomes of a text that is longer than the model reads. Without it such a row fails, and is counted as failed."""

    tokens: Annotated[int, Field(ge=-1, le=(1 << 31) - 1), AfterValidator(_not_zero)] = -1
    """Tokens that are kept; -1: as many as the model reads."""
    side: Literal["left", "right"] | None = None
    """The side that is cut off; else the one that the model's tokenizer says."""


class Space(Part):
    """The embedding space that the job keeps: only rows that are new or changed are computed. Whatever stands here, with the model and
    its revision, is part of each row's fingerprint: a change of it is another space, under another name."""

    name: Name
    """What the space is called; one job writes to it."""
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Dimensions of the vectors, for models that can give fewer than their own (Matryoshka); else the model's own."""
    normalize: bool = False
    """Scale every vector to length 1 before it is kept. Many models do so by themselves."""
    pooling: Literal["model", "cls", "mean", "last"] = "model"
    """How the endpoint pools tokens. A worker pools as the model's files say, and takes no order; say here what it does where the
    endpoint was told otherwise, so that its vectors are never mixed with others."""
    prefix: Annotated[str, Field(max_length=1000)] = ""
    """What is put before each row's text, such as `passage: `. Needs `column` or `prompt`."""
    truncate: Truncate | None = None
    """What becomes of a text that is too long; without it such a row fails."""


class Canary(Part):
    """A handful of rows that are embedded again before any new row, and compared with the vectors that were kept of them. A drift stops
    the night before the space is touched."""

    rows: Annotated[int, Field(ge=0, le=1000)] = 16
    """How many rows; 0: no canary."""
    cosine_min: Annotated[float, Field(ge=-1, le=1)] = 0.999
    """The least cosine similarity of a row's new vector to its kept one."""
    norm_tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The largest relative change of a vector's length."""
    always: bool = False
    """Also on a night that has no new row. It then costs a cold start."""


class Gate(Part):
    """When an evaluation is not good enough: the night then ends with exit code 1."""

    metric: Text | None = None
    """The metric that is judged; else the suite's headline metric."""
    min_score: float | None = None
    """The least score."""
    max_regression: Annotated[float, Field(ge=0)] | None = None
    """How much worse than the baseline it may be. Needs `baseline`."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """At which confidence a difference counts."""
    strict: bool = False
    """Turn the burden of proof round: the gate passes only where the intervals exclude a score below `min_score`, and a regression above
    `max_regression`."""
    max_failed_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """The most questions, in percent, that may have failed, been cut by length or not been readable. They count as wrong in the score in
    any case."""


class Shrink(Part):
    """A dataset that lost rows since the last good night."""

    max_percent: Annotated[float, Field(ge=0, le=100)] = 20.0
    """By how many percent it may shrink; at more the night stops before it computes or removes anything, and asks. 100: never."""


class Schedule(Part):
    """When the night begins. `nightbatch schedule write` makes the files of a scheduler from it."""

    cron: Cron
    """Five fields: minute, hour, day of month, month, day of week, as `30 2 * * *`. Minute and hour are one number each: a date has one
    night."""
    timezone: TimeZone = "UTC"
    """The IANA time zone that `cron`, the night's date and a `deadline` that is a time of day are in."""
    missed: Literal["run", "skip"] = "run"
    """A night that was due and did not begin: `run` does the latest one as soon as the job is looked at again, `skip` waits for the
    next."""
    max_delay: Span | None = None
    """How late a night may begin; after it the night is missed for good. Unless said, until the next one is due, and 2h with `missed:
    skip`."""
    ping_url_env: EnvName | None = None
    """The variable with the address of a dead man's switch that hears of each night."""


class _Notifier(Part):
    on: Events = BAD_NEWS
    """What is told. Everything but `success` unless said."""
    include_rows: bool = False
    """Put examples of failed rows into the message. Rows stay out of all messages unless this is true."""


class Webhook(_Notifier):
    """A JSON object sent with POST, signed where there is a secret to sign it with."""

    kind: Literal["webhook"]
    """`webhook`: any receiver of JSON."""
    url: Url | None = None
    """Where it goes, if the address is no secret."""
    url_env: EnvName | None = None
    """The variable that holds the address, if it is one."""
    secret_env: EnvName | None = None
    """The variable with the secret that the message is signed with, as the Standard Webhooks specification says."""


class Slack(_Notifier):
    """A message in the shape that Slack's incoming webhooks take."""

    kind: Literal["slack"]
    """`slack`: an incoming webhook of Slack, or of a chat that takes the same shape."""
    url_env: EnvName
    """The variable with the webhook's address, which is a secret."""


class Email(_Notifier):
    """A mail by SMTP."""

    kind: Literal["email"]
    """`email`: a mail by SMTP."""
    host: Text
    """The SMTP server."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Its port; else 587 for starttls, 465 for tls, 25 for none."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is protected. `none` is refused where there is a password."""
    username_env: EnvName | None = None
    """The variable with the user's name."""
    password_env: EnvName | None = None
    """The variable with the password."""
    sender: Annotated[str, Field(alias="from", min_length=3, max_length=320)]
    """The sender's address."""
    to: Texts
    """Who gets it: one address or several."""


Notifier = Annotated[Webhook | Slack | Email, Field(discriminator="kind")]


# --- the job -------------------------------------------------------------------------------------------------------------------------


class JobKeys(Part):
    """The keys of a job file, each by itself."""

    version: Literal[1] = 1
    """The version of this format."""
    name: Name
    """The job's name: the file's name without its ending. It need not be written; if it is, it must be the same."""
    description: Annotated[str, Field(max_length=2000)] = ""
    """What it is for, for people."""
    kind: JobKind
    """`embed` makes vectors, `generate` makes answers, `eval` makes answers and scores them."""
    dataset: Texts = ()
    """Files, folders, globs or `s3://` addresses, one or several; `{date}` is the night's date, `{job}` the job's name. Relative paths
    begin at the project's folder, which holds `jobs/`. Not for `eval`: the suite names it."""
    model: Text
    """The endpoint's name on the stack, or the model that it serves."""
    revision: Text | None = None
    """The model's revision; the worker must serve it."""
    stack: Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9])?$")] = "local"
    """Where it runs: the name of a stack."""
    id_column: Text | None = None
    """The column that names each row (`custom_id` where the rows are batch lines). A space needs it: rows are told apart by it from night
    to night."""
    column: Text | None = None
    """The column with the text. One of `column`, `prompt` and `messages_column`, or none where the rows are batch lines or have a column
    of a usual name."""
    prompt: Annotated[str, Field(min_length=1, max_length=200_000)] | None = None
    """A template that makes the text of each row: `Answer briefly: {question}`."""
    messages_column: Text | None = None
    """The column with a list of chat messages; for `generate`."""
    params: dict[str, Any] = {}
    """Fields of bodies that do not set them themselves, such as `max_tokens: 200`; docs/worker.md has all."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """Rows that cannot be sent: `fail` sends nothing, `skip` leaves them out and lists them in the errors file."""
    limit: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Only the first rows: a trial."""
    pace: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Workers that the run keeps busy; else the plan decides."""
    deadline: Deadline | None = None
    """When nothing more is sent and queued jobs are cancelled: a span after the night began (`6h`) or a time of day in the schedule's
    time zone (`06:30`). What is computed is kept, and the next call goes on."""
    budget_usd: Annotated[float, Field(ge=0)] | None = None
    """Send nothing that could pass this sum in a night."""
    out: Text | None = None
    """The output file, `.jsonl` or `.parquet`, here or on `s3://`; errors go beside it. `{date}`, `{job}` and `{run}` (the run's id) are
    filled in. `generate` needs it; `embed` needs it or a `space`."""
    dtype: Literal["float32", "float16"] = "float32"
    """How embeddings are written to a Parquet `out`."""
    space: Space | None = None
    """The embedding space that is kept; for `embed`."""
    canary: Canary = Canary()
    """How drift is noticed; for `embed` with a `space`."""
    suite: Text | None = None
    """The suite's file; `eval` needs it."""
    baseline: Name | None = None
    """The named result that this one is compared with; for `eval`."""
    gate: Gate | None = None
    """When the evaluation fails; for `eval`."""
    shrink: Shrink = Shrink()
    """What a dataset that lost rows does."""
    on_schema_change: Literal["ask", "allow"] = "ask"
    """Columns that were renamed, removed or changed their type since the last good night: `ask` stops before anything is computed,
    `allow` goes on and says so."""
    notify: Annotated[tuple[Notifier, ...], Field(strict=False)] = ()
    """Who hears of it."""
    schedule: Schedule | None = None
    """When it is due; without it only when a person says so."""


class Job(JobKeys):
    """One job: what is done every night, to which rows, on which stack, and who hears of it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = self.model_dump(mode="python", exclude_unset=True, by_alias=True)
        found = list(problems_of(given))
        if found:
            raise PydanticCustomError(
                "job", "{problems}", {"problems": "; ".join(f"{'.'.join(map(str, one.at)) or 'job'}: {one.what}" for one in found)}
            )
        return self

    @property
    def zone(self) -> ZoneInfo:
        """The schedule's time zone; UTC without a schedule."""
        return ZoneInfo(self.schedule.timezone if self.schedule is not None else "UTC")

    @property
    def env_names(self) -> tuple[str, ...]:
        """Every environment variable that the job names, sorted: what a scheduler must hand over."""
        names = {self.schedule.ping_url_env} if self.schedule is not None else set()
        for one in self.notify:
            names |= {value for key, value in one if key.endswith("_env")}
        return tuple(sorted(name for name in names if name))

    @property
    def body_params(self) -> dict[str, Any]:
        """`params`, and what the space says that workers take as fields of a body."""
        found = dict(self.params)
        if self.space is not None:
            if self.space.dimensions is not None:
                found["dimensions"] = self.space.dimensions
            if self.space.truncate is not None:
                found["truncate_prompt_tokens"] = self.space.truncate.tokens
                if self.space.truncate.side is not None:
                    found["truncation_side"] = self.space.truncate.side
        return found

    @property
    def row_prompt(self) -> str | None:
        """The template that makes a row's text, the space's prefix included; None where a column holds the text as it is."""
        if self.space is None or not self.space.prefix:
            return self.prompt
        prefix = self.space.prefix.replace("{", "{{").replace("}", "}}")
        return f"{prefix}{self.prompt if self.prompt is not None else '{' + (self.column or '') + '}'}"

    @property
    def row_column(self) -> str | None:
        """The column that holds the text; None where `row_prompt` makes it."""
        return None if self.row_prompt is not None else self.column


# --- what fields need of each other --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """What is wrong with the value at a path of keys and indices: one clause that says what is allowed."""

    at: tuple[str | int, ...]
    what: str
    lacks: tuple[str, ...] = ()
    """Other keys, any of which would mend it: nothing is wrong here where one of them is there and is wrong itself."""


_ONLY: Final[Mapping[str, tuple[JobKind, ...]]] = {
    "dataset": ("embed", "generate"),
    "id_column": ("embed", "generate"),
    "column": ("embed", "generate"),
    "prompt": ("embed", "generate"),
    "messages_column": ("generate",),
    "params": ("embed", "generate"),
    "dtype": ("embed",),
    "space": ("embed",),
    "canary": ("embed",),
    "suite": ("eval",),
    "baseline": ("eval",),
    "gate": ("eval",),
}
"""Key -> the kinds of job that may have it; keys that are not here fit every kind."""


def problems_of(given: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong between the keys of a job. `given`: those that were set, as plain data, each well-formed by itself; ones that are not
    are left out by the caller, and are not missed here."""
    kind = given.get("kind")
    for key, kinds in _ONLY.items():
        if kind is not None and kind not in kinds and given.get(key) is not None:
            why = "; the suite says it" if kind == "eval" and key in ("dataset", "id_column", "column", "prompt", "params") else ""
            yield Problem((key,), f"is for kind {' and '.join(kinds)}, and this job's kind is {kind}{why}")
    ways = [key for key in ("column", "prompt", "messages_column") if given.get(key) is not None]
    if len(ways) > 1:
        yield Problem((ways[1],), f"{' and '.join(f'`{way}`' for way in ways)} exclude each other; keep one of them")
    yield from _needed(kind, given)
    yield from _texts(given)
    yield from _params(kind, given)
    space = given.get("space")
    if kind == "embed" and isinstance(space, Mapping) and space.get("prefix") and not {"column", "prompt"} & {*ways}:
        yield Problem(("space", "prefix"), "needs `column` or `prompt`, so that it is known what it is put before", ("column", "prompt"))
    if isinstance(space, Mapping) and space.get("prefix") and re.search("[{}]", str(given.get("column") or "")):
        yield Problem(
            ("column",), "has a brace in its name, so that no prefix can be put before it; write a `prompt`, or rename the column"
        )
    if kind == "embed" and "canary" in given and given.get("space") is None:
        yield Problem(("canary",), "needs a `space`, whose vectors it is compared with", ("space",))
    if isinstance(gate := given.get("gate"), Mapping):
        if all(gate.get(key) is None for key in ("min_score", "max_regression", "max_failed_percent")):
            yield Problem(("gate",), "judges nothing; set `min_score`, `max_regression` or `max_failed_percent`")
        if gate.get("max_regression") is not None and given.get("baseline") is None:
            yield Problem(("gate", "max_regression"), "needs a `baseline` to be worse than", ("baseline",))
    if kind == "eval" and given.get("on_bad_row") == "skip":
        yield Problem(("on_bad_row",), "cannot be skip for kind eval: a row that is left out would be missing from the score")
    yield from _notifiers(given)


def _needed(kind: Any, given: Mapping[str, Any]) -> Iterator[Problem]:
    if kind in ("embed", "generate") and given.get("dataset") in (None, (), []):
        yield Problem(("dataset",), f"is missing; kind {kind} needs a file, a folder, a glob or an s3:// address")
    if kind == "eval" and given.get("suite") is None:
        yield Problem(("suite",), "is missing; kind eval needs the path of a suite's file")
    if kind == "generate" and given.get("out") is None:
        yield Problem(("out",), "is missing; kind generate needs a place for its output, such as out/{job}-{date}.jsonl")
    if kind == "embed" and given.get("out") is None and given.get("space") is None:
        yield Problem(("space",), "is missing, and so is `out`; kind embed needs one of them, or both", ("out",))
    if kind == "embed" and given.get("space") is not None and given.get("id_column") is None:
        yield Problem(("id_column",), "is missing; a space needs it, because its rows are told apart by it from night to night")


def _texts(given: Mapping[str, Any]) -> Iterator[Problem]:
    """Paths and templates."""
    from contract.errors import NightbatchError
    from contract.models import RowOptions
    from pipelines.dataset.rows import check_ways
    from pipelines.outputs import output_names

    datasets = given.get("dataset") or ()
    several = not isinstance(datasets, str)
    for index, name in enumerate(datasets if several else (datasets,)):
        at: tuple[str | int, ...] = ("dataset", index) if several else ("dataset",)
        if problem := _path_problem(name, "dataset"):
            yield Problem(at, problem)
        elif name.strip() == "-":
            yield Problem(at, "is standard input, which a night has not; name a file")
    if (out := given.get("out")) is not None:
        if problem := _path_problem(out, "out"):
            yield Problem(("out",), problem)
        else:
            try:
                names = output_names(out)
            except NightbatchError:
                yield Problem(("out",), "does not say which kind of file to write; end its name with .jsonl or .parquet")
            else:
                if given.get("dtype") == "float16" and names.format == "jsonl":
                    yield Problem(("dtype",), "cannot be float16 for a .jsonl output; write a .parquet file, or leave it out")
    if (suite := given.get("suite")) is not None and (problem := _path_problem(suite, "suite")):
        yield Problem(("suite",), problem)
    if (prompt := given.get("prompt")) is not None:
        try:
            check_ways(RowOptions(prompt=prompt), "generate")
        except NightbatchError as error:
            yield Problem(("prompt",), " ".join(part for part in (error.what, error.fix) if part).rstrip("."))


def _path_problem(text: str, key: str) -> str | None:
    allowed = PLACEHOLDERS.get(key, ())
    for found in re.finditer(r"\{([^{}]*)\}|[{}]", text):
        if found[1] is None or found[1] not in allowed:
            known = ", ".join(f"{{{name}}}" for name in allowed) or "no braces"
            return f"holds {found[0]}, which is not filled in; there may be {known}"
    if not text.strip():
        return "is empty"
    if "\0" in text or "\n" in text:
        return "holds a character that no path may have"
    scheme, mark, _ = text.partition("://")
    if mark and scheme != "s3":
        return f"is an address with {scheme}://; files here and s3:// addresses can be used"
    return None


def _params(kind: Any, given: Mapping[str, Any]) -> Iterator[Problem]:
    from contract.errors import UsageError
    from contract.params import check_params

    params = given.get("params")
    if kind not in ("embed", "generate") or not isinstance(params, Mapping):
        return
    for name, value in params.items():
        try:
            check_params(kind, {name: value})
        except UsageError as error:
            text = " ".join(part for part in (error.what, error.fix) if part).rstrip(".").replace("--task ", "kind ")
            yield Problem(("params", name), text)
    space = given.get("space")
    if isinstance(space, Mapping):
        for name, key in (("dimensions", "dimensions"), ("truncate_prompt_tokens", "truncate"), ("truncation_side", "truncate")):
            if name in params:
                yield Problem(("params", name), f"belongs to the space, because its rows depend on it; write it as space.{key}")


def _notifiers(given: Mapping[str, Any]) -> Iterator[Problem]:
    notify = given.get("notify")
    for index, one in enumerate(notify if isinstance(notify, list | tuple) else ()):
        if not isinstance(one, Mapping):
            continue
        if one.get("kind") == "webhook" and (one.get("url") is None) == (one.get("url_env") is None):
            yield Problem(("notify", index), "a webhook needs either `url` or `url_env`")
        if one.get("kind") == "email":
            if one.get("password_env") is not None and one.get("username_env") is None:
                yield Problem(("notify", index, "password_env"), "needs `username_env`, too")
            to = one.get("to")
            if to in ([], ()):
                yield Problem(("notify", index, "to"), "names nobody; write at least one address")
            for key, texts in (("from", (one.get("from"),)), ("to", to if isinstance(to, list | tuple) else (to,))):
                if any(isinstance(text, str) and not text.isprintable() for text in texts):
                    yield Problem(("notify", index, key), "holds a line break or another character that no mail address may have")
                elif any(isinstance(text, str) and not ADDRESS.fullmatch(text) for text in texts):
                    yield Problem(("notify", index, key), "is no mail address; write name@example.com, each address by itself")
            if one.get("password_env") is not None and one.get("security") == "none":
                yield Problem(("notify", index, "security"), "cannot be none where a password is sent; use starttls or tls")
