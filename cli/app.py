"""cli: the commands. Each parses, calls one function of cli.work or cli.local, which import the other rooms, and ends with its exit code.

`nightbatch --help` must stay under 0.3 s, so nothing here imports another room, and the help is plain text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from cli import options as o
from cli import schedules, space
from cli.evals import evaluations
from cli.policy import begin, ended, explain, guarded, program, say_interrupted

app = typer.Typer(
    name="nightbatch",
    help="Nightly batch inference on RunPod Serverless: every row accounted for, every dollar planned.",
    epilog="Exit codes: 0 all well; 1 finished, something is not as wanted; 2 input error; 3 infrastructure; 4 budget or deadline; "
    "130 interrupted.",
    **o.PLAIN,
)
local = typer.Typer(name="local", help="RunPod's stand-in and a real S3 server on this machine.", **o.PLAIN)
app.add_typer(local)
image = typer.Typer(name="image", help="Container images of a stack.", **o.PLAIN)
app.add_typer(image)
app.add_typer(evaluations)
app.add_typer(schedules.app)
app.add_typer(space.app)


@app.command("run", short_help="Dataset in, output file out: all steps in order.")
@guarded
def run(
    paths: o.Paths,
    task: o.TaskOption,
    model: o.Model,
    out: o.Out = None,
    stack: o.Stack = None,
    facts: o.Facts = None,
    prompt: o.Prompt = None,
    column: o.Column = None,
    messages_column: o.MessagesColumn = None,
    id_column: o.IdColumn = None,
    param: o.Param = None,
    max_tokens: o.MaxTokens = None,
    temperature: o.Temperature = None,
    revision: o.Revision = None,
    limit: o.Limit = None,
    budget: o.Budget = None,
    on_bad_row: o.OnBad = o.OnBadRow.fail,
    pace: o.Pace = None,
    again: o.Again = None,
    name: o.Name = None,
    deadline: o.Deadline = None,
    webhook_url: o.WebhookUrl = None,
    allow_mixed_image: o.MixedImage = False,
    dtype: o.DtypeOption = o.Dtype.float32,
    partial: o.Partial = False,
    dry_run: o.DryRun = False,
    json_output: o.Json = False,
) -> int:
    """Plan, submit, follow, collect and verify: a dataset in, an output file out. The same command again goes on where it stopped."""
    from cli import work

    asked = work.Asked(
        paths=tuple(paths),
        task=task.value,
        model=model,
        revision=revision,
        out=out,
        prompt=prompt,
        column=column,
        messages_column=messages_column,
        id_column=id_column,
        params=work.parse_params(param or [], max_tokens=max_tokens, temperature=temperature),
        limit=limit,
        budget_usd=budget,
        on_bad_row=on_bad_row.value,
        pace=pace,
        again=again,
        name=name,
    )
    how = work.following(
        out=out,
        budget_usd=budget,
        pace=pace,
        deadline=deadline,
        webhook_url=webhook_url,
        partial=partial,
        dtype=dtype.value,
        allow_mixed_image=allow_mixed_image,
    )
    where = work.Where(stack, facts)
    if dry_run:
        return work.show_plan(where, asked, how, store=False)
    return work.run(where, asked, how)


@app.command("plan", short_help="Check, cut and price a dataset; send nothing.")
@guarded
def plan(
    paths: o.Paths,
    task: o.TaskOption,
    model: o.Model,
    out: o.Out = None,
    stack: o.Stack = None,
    facts: o.Facts = None,
    prompt: o.Prompt = None,
    column: o.Column = None,
    messages_column: o.MessagesColumn = None,
    id_column: o.IdColumn = None,
    param: o.Param = None,
    max_tokens: o.MaxTokens = None,
    temperature: o.Temperature = None,
    revision: o.Revision = None,
    limit: o.Limit = None,
    budget: o.Budget = None,
    on_bad_row: o.OnBad = o.OnBadRow.fail,
    pace: o.Pace = None,
    again: o.Again = None,
    name: o.Name = None,
    json_output: o.Json = False,
) -> int:
    """Read and check a dataset, cut it into shards, price it and store the plan with its rows. Sends no job: `submit` does."""
    from cli import work

    asked = work.Asked(
        paths=tuple(paths),
        task=task.value,
        model=model,
        revision=revision,
        out=out,
        prompt=prompt,
        column=column,
        messages_column=messages_column,
        id_column=id_column,
        params=work.parse_params(param or [], max_tokens=max_tokens, temperature=temperature),
        limit=limit,
        budget_usd=budget,
        on_bad_row=on_bad_row.value,
        pace=pace,
        again=again,
        name=name,
    )
    return work.show_plan(work.Where(stack, facts), asked, store=True)


@app.command("submit", short_help="Send a planned run and follow it.")
@guarded
def submit(
    run: o.Run,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    budget: o.Budget = None,
    pace: o.Pace = None,
    deadline: o.Deadline = None,
    webhook_url: o.WebhookUrl = None,
    allow_mixed_image: o.MixedImage = False,
    json_output: o.Json = False,
) -> int:
    """Send a planned run's jobs and follow them until every shard is done. Does not collect: `collect` does."""
    from cli import work

    how = work.following(budget_usd=budget, pace=pace, deadline=deadline, webhook_url=webhook_url, allow_mixed_image=allow_mixed_image)
    return work.submit(work.Where(stack, facts), run, how)


@app.command("resume", short_help="Go on with an interrupted run.")
@guarded
def resume(
    run: o.Run,
    out: o.Out = None,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    budget: o.Budget = None,
    pace: o.Pace = None,
    deadline: o.Deadline = None,
    webhook_url: o.WebhookUrl = None,
    allow_mixed_image: o.MixedImage = False,
    dtype: o.DtypeOption = o.Dtype.float32,
    partial: o.Partial = False,
    json_output: o.Json = False,
) -> int:
    """Go on with a run that was interrupted, from any machine: send what is missing, follow, collect, verify."""
    from cli import work

    how = work.following(
        out=out,
        budget_usd=budget,
        pace=pace,
        deadline=deadline,
        webhook_url=webhook_url,
        partial=partial,
        dtype=dtype.value,
        allow_mixed_image=allow_mixed_image,
    )
    return work.resume(work.Where(stack, facts), run, how)


@app.command("status", short_help="How far, what it cost, what is missing.")
@guarded
def status(
    run: o.RunOrNone = None,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    all_stacks: o.AllStacks = False,
    json_output: o.Json = False,
) -> int:
    """Say how far a run is, what it has cost and what is missing, from storage; or, of all stacks, what is up and what it costs."""
    from cli import operate, work

    if all_stacks == (run is not None):
        raise typer.BadParameter("Name one run, or say --all-stacks.", param_hint="RUN")
    return operate.all_stacks(facts) if run is None else work.status(work.Where(stack, facts), run)


@app.command("collect", short_help="Seal a run and write its output.")
@guarded
def collect(
    run: o.Run,
    out: o.Out = None,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    dtype: o.DtypeOption = o.Dtype.float32,
    partial: o.Partial = False,
    json_output: o.Json = False,
) -> int:
    """Seal a complete run and write its output and errors files, in input order."""
    from cli import work

    return work.collect(work.Where(stack, facts), run, work.following(out=out, dtype=dtype.value, partial=partial))


@app.command("verify", short_help="Prove that every row has one result.")
@guarded
def verify(
    run: o.Run,
    out: o.Out = None,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    inputs: Annotated[bool, typer.Option("--inputs", help="Read the input rows again too, and check their digests.")] = False,
    json_output: o.Json = False,
) -> int:
    """Prove from storage that every row has one result, and that the output file is what was sealed."""
    from cli import work

    return work.verify(work.Where(stack, facts), run, out, inputs=inputs)


@app.command("cancel", short_help="Stop a run; what is finished is kept.")
@guarded
def cancel(
    run: o.Run,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    stop: Annotated[bool, typer.Option("--stop", help="End running jobs too; what they have finished is kept.")] = False,
    json_output: o.Json = False,
) -> int:
    """Start no more of a run's jobs and let running ones finish. `resume` goes on from there."""
    from cli import work

    return work.cancel(work.Where(stack, facts), run, stop=stop)


@app.command("runs", short_help="List the stack's runs.")
@guarded
def runs(stack: o.Stack = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """List the stack's runs, newest first."""
    from cli import work

    return work.runs(work.Where(stack, facts))


@app.command("logs", short_help="What the workers and the client said of a run.")
@guarded
def logs(
    run: o.Run,
    shard: o.ShardOfLogs = None,
    row_id: o.RowOfLogs = None,
    errors: o.ErrorsOfLogs = False,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Tell from storage, in order of time, what was sent, begun, ended, committed and told to stop; of one shard or row, if asked."""
    from cli import logs as said
    from cli.work import Where

    return said.logs(Where(stack, facts), run, shard=shard, row_id=row_id, errors=errors)


@app.command("night", short_help="Do a job's night: only once, and go on where it stopped.")
@guarded
def night(
    job: o.Job,
    date: o.NightDate = None,
    if_due: o.IfDue = False,
    dry_run: o.NightDryRun = False,
    accept: o.AcceptOption = None,
    no_deadline: o.NoDeadline = False,
    redo: o.Redo = False,
    canary: o.CanaryOption = o.Canary.new,
    jobs_folder: o.JobsFolder = Path("jobs"),
    stack: o.StackOfJob = None,
    facts: o.Facts = None,
    budget: o.Budget = None,
    pace: o.Pace = None,
    webhook_url: o.WebhookUrl = None,
    allow_mixed_image: o.MixedImage = False,
    json_output: o.Json = False,
) -> int:
    """Do one night of a job file. The same night again is told, or gone on with, and never paid twice; two at once do it once."""
    from cli import night as nights
    from cli.work import Where

    call = nights.call_of(
        accept=frozenset(one.value for one in accept or []),
        no_deadline=no_deadline,
        redo=redo,
        canary_always=canary is o.Canary.always,
        budget_usd=budget,
        pace=pace,
        webhook_url=webhook_url,
        allow_mixed_image=allow_mixed_image,
    )
    asked = nights.NightAsked(job=job, folder=jobs_folder, where=Where(stack, facts), date=date, if_due=if_due, dry_run=dry_run)
    return nights.night(asked, call)


@app.command("jobs", short_help="List jobs: last night, cost, next due.")
@guarded
def jobs(
    jobs_folder: o.JobsFolder = Path("jobs"), stack: o.StackOfJob = None, facts: o.Facts = None, json_output: o.Json = False
) -> int:
    """List the job files of a folder with how their last night ended, what did not start, and when the next one is due."""
    from cli import night as nights
    from cli.work import Where

    return nights.jobs(jobs_folder, Where(stack, facts))


@app.command("doctor", short_help="What is wrong with a stack, why, and what to do.")
@guarded
def doctor(
    stack: o.StackName = None,
    facts: o.Facts = None,
    fix: o.Fix = False,
    quota: o.Quota = None,
    webhook_url: o.ProbedUrl = None,
    night: o.Night = None,
    json_output: o.Json = False,
) -> int:
    """Compare what is live with what is declared: workers, image, timeouts, queue, bucket. Each finding has evidence, cause and mend."""
    from cli import operate, work

    return operate.doctor(work.Where(stack, facts), operate.Looking(fix, quota, webhook_url, night))


@app.command("stop", short_help="Kill switch: no workers, own jobs cancelled.")
@guarded
def stop(stack: o.StackToStop, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Set workers.max of a stack's endpoints to 0 and cancel its runs' jobs by their ids. No queue is purged: others may use it too."""
    from cli import operate, work

    return operate.stop(work.Where(stack, facts))


@app.command("start", short_help="Undo a stop.")
@guarded
def start(stack: o.StackToStop, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Give a stopped stack's endpoints the workers that they had."""
    from cli import operate, work

    return operate.start(work.Where(stack, facts))


@app.command("estimate", short_help="How many workers a load needs, and their price.")
@guarded
def estimate(
    requests_per_minute: Annotated[float, typer.Option("--requests-per-minute", "-r", metavar="N", help="On average.", show_default=False)],
    seconds: Annotated[float, typer.Option("--seconds", "-s", metavar="S", help="That one request takes on a worker.", show_default=False)],
    peak: Annotated[
        float | None, typer.Option("--peak", metavar="N", help="Requests a minute at the busiest; else the average.", show_default=False)
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, metavar="N", help="Requests that a worker computes at once.")] = 1,
    pool: Annotated[str | None, typer.Option("--pool", metavar="POOL", help="Price of this GPU pool.", show_default=False)] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, metavar="N", help="GPUs of one worker.")] = 1,
    usd_per_hour: Annotated[
        float | None, typer.Option("--usd-per-hour", min=0.0, metavar="USD", help="Price of one worker, instead.", show_default=False)
    ] = None,
    json_output: o.Json = False,
) -> int:
    """Say how many active workers a load needs (requests/min x seconds / 60), and which maximum (20 % above peak)."""
    from cli import operate

    return operate.estimate(operate.Load(requests_per_minute, seconds, peak, concurrency, usd_per_hour, pool, gpus))


@image.command("pin", short_help="Write a tag's digest into the stack file.")
@guarded
def image_pin(
    tag: Annotated[
        str | None, typer.Argument(metavar="[TAG]", help="A tag, or a whole reference; else the tags in the file.", show_default=False)
    ] = None,
    stack: o.Stack = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", metavar="NAME", help="Only this endpoint.", show_default=False)] = None,
    json_output: o.Json = False,
) -> int:
    """Ask the registry which digest a tag has now, and write it into the stack file: the same image on every worker, for ever."""
    from cli import operate, work

    return operate.pin_image(work.Where(stack), tag, endpoint)


@app.command("report", short_help="One HTML page of a run or a night, or an index.")
@guarded
def report(
    name: o.RunOrJob = None,
    date: o.Date = None,
    out: o.PageOut = None,
    no_rows: o.NoRows = False,
    store: o.StoreReport = False,
    billed: o.Billed = False,
    index: o.Index = False,
    last: o.Last = None,
    stack: o.StackOfRun = None,
    facts: o.Facts = None,
    json_output: o.Json = False,
) -> int:
    """Write one self-contained HTML page: what a run or a night came to, what it cost, what failed; or an index over all of them."""
    from cli import reports, work

    asked = reports.Reporting(name, date=date, out=out, rows=not no_rows, store=store, billed=billed, index=index, last=last)
    return reports.report(work.Where(stack, facts), asked)


@app.command("version", short_help="Which Nightbatch this is.")
@guarded
def version(json_output: o.Json = False) -> int:
    """Say which Nightbatch this is, and which Python it runs on."""
    from cli import work

    return work.version()


@app.command("preview", short_help="What `pulumi up` would do, as one report.")
@guarded
def preview(
    stacks: o.Stacks = None,
    out: o.ReportOut = None,
    commit: o.Commit = None,
    refresh: o.Refresh = None,
    allow_destructive: o.AllowDestructive = False,
    json_output: o.Json = False,
) -> int:
    """Preview stacks with Pulumi and write one Markdown report: what would be destroyed first, then money, rules, drift, every property."""
    from cli import infra

    return infra.preview(stacks or [], out=out, commit=commit, refresh=refresh, allow_destructive=allow_destructive)


@app.command("drift", short_help="Is live what is declared?")
@guarded
def drift(stack: o.OneStack, json_output: o.Json = False) -> int:
    """Compare what is live on RunPod with what the stack declares. Changes nothing. Ends with 0 the same, 1 drift, 3 not comparable."""
    from cli import infra

    return infra.drift(stack)


@app.command("schema", short_help="The JSON schema of job files, for editors.")
@guarded
def schema(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where it goes; else to stdout.", show_default=False)] = None,
    json_output: o.Json = False,
) -> int:
    """Print the JSON schema of job files, by which editors complete and check them; docs/jobs.md says how."""
    return schedules.schema(out)


@local.command("up", short_help="Start it in the background.")
@guarded
def local_up(models: o.LocalModels = None, pulumi: o.ByPulumi = False, json_output: o.Json = False) -> int:
    """Start the emulator and its S3 server in the background; ready when this command returns."""
    from cli import local as machine

    return machine.up(models or [], pulumi=pulumi)


@local.command("down", short_help="Stop it and all that it started.")
@guarded
def local_down(json_output: o.Json = False) -> int:
    """Stop them and everything that they started. The objects stay for the next `up`."""
    from cli import local as machine

    return machine.down()


@local.command("status", short_help="What runs, and where.")
@guarded
def local_status(json_output: o.Json = False) -> int:
    """Say what runs on this machine: endpoints, workers, queues, addresses."""
    from cli import local as machine

    return machine.status()


def invoked() -> int:
    """Run the command that the arguments name; what to exit with. What the parser refuses is said as everything else is."""
    try:
        code = app(prog_name="nightbatch", standalone_mode=False)
    except TyperException as error:
        message = getattr(error, "format_message", None)
        said = message() if message is not None else str(error)
        context = getattr(error, "ctx", None)
        if context is not None and said == context.get_help():  # a command that was named alone shows its help
            getattr(error, "show", lambda: None)()
            return 2
        return misused(said, context.command_path if context is not None else "nightbatch")
    except typer.Abort:
        return say_interrupted()
    return code if isinstance(code, int) else 0


def misused(said: str, command: str) -> int:
    """The parser's words in ours: `nightbatch: --limit: it must be at least 1. See: nightbatch run -h`."""
    from contract.errors import UsageError

    begin(json_output="--json" in sys.argv)
    words = " ".join(said.split())
    found = re.fullmatch(r"Invalid value for '?([^':]+)'?: (.*)", words)
    where, what = (found[1], found[2]) if found else (None, words)
    what = re.sub(r"^Value error, ", "", what).replace("Input should be greater than or equal to", "it must be at least")
    what = what.replace("Input should be", "it must be").rstrip(".")
    return explain(UsageError(f"{what[:1].lower()}{what[1:]}.", where=where, fix=f"See: {command.replace('nightbatch', program(), 1)} -h"))


def main() -> None:
    """The console script."""
    sys.exit(ended(lambda: sys.exit(invoked())))
