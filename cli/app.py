"""cli: the commands. Each parses, calls one function of cli.work or cli.local, which import the other rooms, and ends with its exit code.

`nightbatch --help` must stay under 0.3 s, so nothing here imports another room, and the help is plain text.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli import options as o
from cli.policy import ended, guarded

PLAIN = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "no_args_is_help": True,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}

app = typer.Typer(
    name="nightbatch",
    help="Nightly batch inference on RunPod Serverless: every row accounted for, every dollar planned.",
    epilog="Exit codes: 0 all well; 1 finished, something is not as wanted; 2 input error; 3 infrastructure; 4 budget or deadline; "
    "130 interrupted.",
    **PLAIN,  # type: ignore[arg-type]
)
local = typer.Typer(name="local", help="RunPod's stand-in and a real S3 server on this machine.", **PLAIN)  # type: ignore[arg-type]
app.add_typer(local)


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
    where = work.Where(stack, facts)
    if dry_run:
        return work.show_plan(where, asked, store=False)
    how = work.Following(
        out=out,
        budget_usd=budget,
        pace=pace,
        deadline=deadline,
        webhook_url=webhook_url,
        partial=partial,
        dtype=dtype.value,
        allow_mixed_image=allow_mixed_image,
    )
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

    how = work.Following(budget_usd=budget, pace=pace, deadline=deadline, webhook_url=webhook_url, allow_mixed_image=allow_mixed_image)
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

    how = work.Following(
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
def status(run: o.Run, stack: o.StackOfRun = None, facts: o.Facts = None, json_output: o.Json = False) -> int:
    """Say how far a run is, what it has cost and what is missing, from storage."""
    from cli import work

    return work.status(work.Where(stack, facts), run)


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

    return work.collect(work.Where(stack, facts), run, work.Following(out=out, dtype=dtype.value, partial=partial))


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


@app.command("version", short_help="Which Nightbatch this is.")
@guarded
def version(json_output: o.Json = False) -> int:
    """Say which Nightbatch this is, and which Python it runs on."""
    from cli import work

    return work.version()


@local.command("up", short_help="Start it in the background.")
@guarded
def local_up(models: o.LocalModels = None, json_output: o.Json = False) -> int:
    """Start the emulator and its S3 server in the background; ready when this command returns."""
    from cli import local as machine

    return machine.up(models or [])


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


def main() -> None:
    """The console script."""
    sys.exit(ended(lambda: app(prog_name="nightbatch")))
