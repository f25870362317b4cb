"""cli: the options that commands share, each said once. Imports Typer only."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "no_args_is_help": True,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
"""Settings of every Typer app: help is plain text."""


class Task(StrEnum):
    """What is done to each row."""

    generate = "generate"
    embed = "embed"


class OnBadRow(StrEnum):
    """What happens to the run when preflight finds rows that cannot be sent."""

    fail = "fail"
    skip = "skip"


Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="DATASET", help="JSONL (also .gz, .zst), CSV or Parquet: files, a folder, a glob, or s3://.", show_default=False
    ),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run id, or the run's s3:// address.", show_default=False)]
TaskOption = Annotated[Task, typer.Option("--task", help="What is done to each row.", show_default=False)]
Model = Annotated[
    str, typer.Option("--model", metavar="NAME", help="The endpoint's name on the stack, or the model that it serves.", show_default=False)
]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="NAME",
        envvar="NIGHTBATCH_STACK",
        help="Where it runs, see docs/stacks.md; local unless said.",
        show_default=False,
    ),
]
StackOfRun = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="NAME",
        envvar="NIGHTBATCH_STACK",
        help="Where it runs; unless said what an s3:// address tells, else local.",
        show_default=False,
    ),
]
Facts = Annotated[
    Path | None,
    typer.Option("--facts", metavar="FILE", envvar="NIGHTBATCH_FACTS", help="The stack's facts file.", show_default=False),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", metavar="FILE", help="The output, .jsonl or .parquet, here or on s3://; errors go beside it.", show_default=False
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option("--prompt", metavar="TEXT", help="Make a chat message of each row: 'Answer briefly: {question}'.", show_default=False),
]
Column = Annotated[
    str | None, typer.Option("--column", metavar="NAME", help="The column with the text (for embed: 'text').", show_default=False)
]
MessagesColumn = Annotated[
    str | None, typer.Option("--messages-column", metavar="NAME", help="The column with a list of chat messages.", show_default=False)
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id-column", metavar="NAME", help="The column that names each row; else ids are made.", show_default=False),
]
Param = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="KEY=VALUE",
        help="A field of bodies that do not set it themselves, such as top_p=0.9; repeatable.",
        show_default=False,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=1,
        metavar="N",
        help="Most new tokens of rows that set none themselves; short for --param max_tokens=N.",
        show_default=False,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature", min=0.0, metavar="T", help="Of rows that set none themselves; short for --param temperature=T.", show_default=False
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, metavar="N", help="Only the first N rows: a paid trial that prices the rest.", show_default=False),
]
Budget = Annotated[
    float | None, typer.Option("--budget", min=0.0, metavar="USD", help="Send nothing that could pass this sum.", show_default=False)
]
OnBad = Annotated[OnBadRow, typer.Option("--on-bad-row", help="fail: send nothing; skip: they appear in the errors file.")]
Pace = Annotated[
    int | None,
    typer.Option("--pace", min=1, metavar="N", help="Workers that the run keeps busy; else the plan decides.", show_default=False),
]
WebhookUrl = Annotated[
    str | None,
    typer.Option("--webhook-url", metavar="URL", help="A public address that forwards to this machine's receiver.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout at the end.")]
Partial = Annotated[bool, typer.Option("--partial", help="Collect what is there although the run is not complete.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and its price, send nothing.")]
LocalModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="[TASK:]NAME",
        help="Serve this model too (a hub name or a folder), such as embed:intfloat/e5-small; repeatable.",
        show_default=False,
    ),
]


class Dtype(StrEnum):
    """How embeddings are written to Parquet."""

    float32 = "float32"
    float16 = "float16"


DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="How embeddings are written to Parquet.")]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="SPAN",
        help="After this time from now, such as 6h or 45m, send nothing more and cancel queued jobs.",
        show_default=False,
    ),
]
Again = Annotated[
    str | None,
    typer.Option("--again", metavar="NAME", help="Pay for another run of the same plan; else the first one goes on.", show_default=False),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What the run id begins with; else the dataset's name.", show_default=False)
]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="REV", help="The model's revision; the worker must serve it.", show_default=False)
]
MixedImage = Annotated[bool, typer.Option("--allow-mixed-image", help="Go on although the endpoint's image is not the planned one.")]
StackName = Annotated[
    str | None,
    typer.Argument(metavar="[STACK]", envvar="NIGHTBATCH_STACK", help="Which stack; local unless said.", show_default=False),
]
StackToStop = Annotated[str, typer.Argument(metavar="STACK", help="Which stack; it must be named.", show_default=False)]
RunOrNone = Annotated[str | None, typer.Argument(metavar="RUN", help="A run id, or the run's s3:// address.", show_default=False)]
AllStacks = Annotated[bool, typer.Option("--all-stacks", help="Instead of a run: every stack's workers, queue and $/hour now.")]
Fix = Annotated[bool, typer.Option("--fix", help="Raise a cut workers.max back to what is declared; nothing else is changed.")]
Quota = Annotated[
    int | None,
    typer.Option("--quota", min=0, metavar="N", help="The account's worker quota (console; no API tells it).", show_default=False),
]
ProbedUrl = Annotated[
    str | None, typer.Option("--webhook-url", metavar="URL", help="Look whether this address answers, too.", show_default=False)
]
Night = Annotated[
    str | None, typer.Option("--night", metavar="SPAN", help="How long a night's jobs must live, such as 8h.", show_default=False)
]
Stacks = Annotated[
    list[str] | None,
    typer.Argument(metavar="STACK", help="The stacks; all that have a file, but local, unless said.", show_default=False),
]
OneStack = Annotated[str, typer.Argument(metavar="STACK", help="The stack.", show_default=False)]
ReportOut = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where the report goes; else to stdout.", show_default=False)]
Commit = Annotated[
    str | None, typer.Option("--commit", metavar="SHA", help="What the report calls the commit; else git's.", show_default=False)
]
Refresh = Annotated[
    bool | None,
    typer.Option(
        "--refresh/--no-refresh", help="Look at live state, too, and show drift; unless said, where a key is.", show_default=False
    ),
]
AllowDestructive = Annotated[
    bool, typer.Option("--allow-destructive", help="What would destroy something is reported, and is no reason to end with 1.")
]
ByPulumi = Annotated[bool, typer.Option("--pulumi", help="Make its endpoints by a real `pulumi up` of the stack `local`.")]
RunOrJob = Annotated[
    str | None, typer.Argument(metavar="RUN|JOB", help="A run's id or s3:// address, or a job: its latest night.", show_default=False)
]
Date = Annotated[str | None, typer.Option("--date", metavar="DATE", help="The job's night of this date, 2026-11-30.", show_default=False)]
PageOut = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Where the page goes; with --index a folder.", show_default=False)
]
NoRows = Annotated[bool, typer.Option("--no-rows", help="Leave row content out: ids and messages of failed rows, workers' words.")]
StoreReport = Annotated[bool, typer.Option("--store", help="Keep the page beside the run, or the night's record, as well.")]
Billed = Annotated[bool, typer.Option("--billed", help="Ask RunPod what it billed in the run's hours, beside plan and estimate.")]
Index = Annotated[bool, typer.Option("--index", help="Instead of one: all of the stack's nights and runs, each with its page.")]
Last = Annotated[int | None, typer.Option("--last", min=1, metavar="N", help="The index has so many; else 200.", show_default=False)]


class Accept(StrEnum):
    """What a person says after a night that stopped and asked."""

    shrink = "shrink"
    schema = "schema"
    writer = "writer"


class Canary(StrEnum):
    """When a space's canary is asked."""

    new = "new"
    always = "always"


Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's name, or its file.", show_default=False)]
NightDate = Annotated[
    str | None,
    typer.Option("--date", metavar="DATE", help="The night's date, as 2026-11-30; else the latest that is due.", show_default=False),
]
IfDue = Annotated[bool, typer.Option("--if-due", help="Only if the schedule says that it is time; else say so and end with 0.")]
NightDryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be computed and what it would cost; do nothing.")]
AcceptOption = Annotated[
    list[Accept] | None,
    typer.Option("--accept", help="The dataset shrank, its columns changed, the space was another job's: so be it.", show_default=False),
]
NoDeadline = Annotated[bool, typer.Option("--no-deadline", help="Go on although the night's deadline has passed.")]
Redo = Annotated[
    bool, typer.Option("--redo", help="Do a night that is done once more: what was mended since is computed, nothing is paid twice.")
]
CanaryOption = Annotated[
    Canary, typer.Option("--canary", help="Embed a space's kept rows again when there are new rows, or always.", show_default=True)
]
JobsFolder = Annotated[Path, typer.Option("--jobs", metavar="FOLDER", envvar="NIGHTBATCH_JOBS", help="Where the job files are.")]
StackOfJob = Annotated[
    str | None, typer.Option("--stack", metavar="NAME", help="Another stack than the job's own, for a trial.", show_default=False)
]
ShardOfLogs = Annotated[
    str | None, typer.Option("--shard", metavar="SHARD", help="Only this shard and its children, such as 00042.", show_default=False)
]
RowOfLogs = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Only the row with this id, and the shards that held it.", show_default=False)
]
ErrorsOfLogs = Annotated[bool, typer.Option("--errors", help="Only what went wrong, and each failed row by itself.")]
