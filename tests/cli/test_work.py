"""What the commands hand on, what they print, and the exit code of every way in which a run can end."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from cli import policy, work
from cli.app import app
from cli.output import say
from cli.progress import Lines, Quiet
from cli.report import Report, plan_lines, plan_record, report_lines, report_record
from contract.errors import UsageError
from contract.facts import EndpointFacts, Stack, StackFacts, StackSecrets, StoreFacts
from contract.keys import RunUri
from contract.models import (
    DatasetFacts,
    Estimate,
    FileFacts,
    OutputSpec,
    PhaseSeconds,
    PinnedInfra,
    Plan,
    Range3,
    RowOptions,
    S3Config,
    ShardPlan,
    Source,
    StorePin,
    TaskSpec,
)
from contract.protocol import Health, budget_needed, rules_for
from contract.words import usd
from pipelines.collect import Collected, Failure
from pipelines.follow import DriveResult, Ended
from pipelines.follow import Progress as FollowProgress
from pipelines.outputs import output_names
from pipelines.plan import PlannedRun
from pipelines.work import Finished

DIGEST = "0" * 64
S3 = S3Config(accessId="access", accessSecret="secret", bucketName="bucket", endpointUrl="http://127.0.0.1:1")
STACK = Stack(
    StackFacts(stack="local", store=StoreFacts(bucket="bucket", endpoint_url="http://127.0.0.1:1", prefix="team/a"), endpoints=()),
    StackSecrets("api-key", S3, S3),
)


def plan(rows: int = 100) -> Plan:
    return Plan(
        plan_id=DIGEST,
        run_id="rows-embed-00000000",
        run="s3://bucket/runs/rows-embed-00000000",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        dataset=DatasetFacts(files=(FileFacts(name="rows.jsonl", size=1000, rows=rows),), format="jsonl", rows=rows, digest=DIGEST),
        rows=RowOptions(column="text"),
        task=TaskSpec(kind="embed", model="minilm"),
        store=StorePin(bucket="bucket", endpoint_url="http://127.0.0.1:1", mode="conditional"),
        infra=PinnedInfra(
            stack="local",
            endpoint="minilm",
            endpoint_id="minilm",
            api_url="http://127.0.0.1:2/v2",
            model="minilm",
            gpu="AMPERE_24",
            usd_per_second=0.0002,
            scaler="QUEUE_DELAY",
            scaler_value=4,
            shards_per_worker=2,
            workers_max=1,
            execution_timeout_s=600,
            cold_start_s=60,
        ),
        shards=(
            ShardPlan(shard="00000", source=Source(uri="s3://bucket/x", rows=(0, rows), count=rows, digest=DIGEST), tokens=10, bytes=10),
        ),
        pace=1,
        estimate=Estimate(
            workers=1,
            tokens_in=1000,
            tokens_out=0,
            seconds=Range3(low=10, likely=20, high=400),
            usd=Range3(low=0.001, likely=0.0042, high=12.5),
            basis="a guess",
        ),
        output=OutputSpec(path="out.parquet", format="parquet"),
    )


def result(**changes: Any) -> DriveResult:
    values: dict[str, Any] = {
        "run": "s3://bucket/runs/rows-embed-00000000",
        "state": "complete",
        "cause": "complete",
        "reason": "every shard is committed.",
        "rows": 100,
        "ok": 100,
        "failed": 0,
        "shards": 1,
        "shards_done": 1,
        "attempts": 1,
        "executions": 1,
        "seconds": PhaseSeconds(loading=20.0, reading=0.1, computing=8.0, writing=0.2),
        "worker_seconds": 30.0,
        "usd_estimated": 0.006,
        "usd_reserved": 0.0,
        "tokens_in": 1000,
        "tokens_out": 0,
        "elapsed_s": 40.0,
    }
    return DriveResult(**{**values, **changes})


def collected(**changes: Any) -> Collected:
    values: dict[str, Any] = {
        "names": output_names("out.parquet"),
        "seal": DIGEST,
        "rows": 100,
        "ok": 100,
        "failed": 0,
        "skipped": 0,
        "missing": (),
        "failures": (),
        "renamed": {},
        "seconds": 0.5,
    }
    return Collected(**{**values, **changes})


def report(found: DriveResult, files: Collected | None = None, *, rest_rows: int = 0) -> Report:
    return Report(Finished(plan(), found, files, None, 41.5), rest_rows=rest_rows)


# --- parameters ----------------------------------------------------------------------------------------------------------------------


def test_a_parameter_is_json_or_else_text() -> None:
    found = work.parse_params(["top_p=0.9", 'stop=["a"]', "seed=7", "name=plain text", "flag=true", "eq=a=b", "empty="])
    assert found == {"top_p": 0.9, "stop": ["a"], "seed": 7, "name": "plain text", "flag": True, "eq": "a=b", "empty": ""}


def test_the_short_options_are_parameters_too() -> None:
    assert work.parse_params([], max_tokens=24, temperature=0.0) == {"max_tokens": 24, "temperature": 0.0}


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["top_p"], {}, "--param top_p: is not KEY=VALUE"),
        (["=1"], {}, "--param =1: is not KEY=VALUE"),
        (["a=1", "a=2"], {}, "`a` is given twice"),
        (["max_tokens=1"], {"max_tokens": 2}, "--max-tokens: `max_tokens` is given twice"),
        (["x=NaN"], {}, "not a number that JSON knows"),
        (["x=1e999"], {}, "not a number that JSON knows"),
    ],
)
def test_a_parameter_that_cannot_be_meant_is_refused(texts: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        work.parse_params(texts, **options)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("45m", 2700), ("6h", 21600), ("1.5d", 129600)])
def test_a_deadline_is_a_span_from_now(text: str, seconds: float) -> None:
    assert work.parse_span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "6", "h", "-1h", "0m", "soon", "1e400d", "nanh"])
def test_a_deadline_that_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time span"):
        work.parse_span(text)
    with pytest.raises(UsageError, match="is not a time span"):
        work.following(deadline=text)


# --- addresses and stacks ------------------------------------------------------------------------------------------------------------


def test_a_run_is_named_by_its_id_or_its_address() -> None:
    assert work.address(STACK, "rows-embed-1") == "s3://bucket/team/a/runs/rows-embed-1"
    assert work.address(STACK, "s3://other/runs/x/") == "s3://other/runs/x"
    with pytest.raises(UsageError):
        work.address(STACK, "no such name!")


async def test_an_address_without_the_stores_own_is_not_guessed_at() -> None:
    environ = {"NIGHTBATCH_S3_ACCESS_KEY_ID": "a", "NIGHTBATCH_S3_SECRET_ACCESS_KEY": "b", "RUNPOD_API_KEY": "c"}
    with pytest.raises(UsageError, match="NIGHTBATCH_S3_ENDPOINT_URL must be set"):
        await work.find_stack(work.Where(), "s3://bucket/runs/x", environ)


def test_what_to_type_next_names_the_stack_as_the_user_did() -> None:
    assert work.Where().options == ""
    assert work.Where("prod").options == " --stack prod"
    assert work.Where("prod", Path("my facts.json")).options == " --stack prod --facts 'my facts.json'"


def asked(model: str) -> work.Asked:
    return work.Asked(paths=("rows.jsonl",), task="embed", model=model)


def test_a_model_folder_may_be_named_as_seen_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    endpoint = EndpointFacts(
        name="mine", id="1", model=str((tmp_path / "model").resolve()), tasks=("embed",), gpu="x", usd_per_second=0, workers_max=1
    )
    stack = Stack(msgspec.structs.replace(STACK.facts, endpoints=(endpoint,)), STACK.secrets)
    assert work.served_model(stack, asked("./model")) == endpoint.model
    assert work.served_model(stack, asked("mine")) == "mine"


def test_a_model_that_the_local_stack_does_not_serve_can_be_started() -> None:
    with pytest.raises(UsageError, match=r"does not serve model 'org/e5'. It serves none. To start it .* local up --model embed:org/e5"):
        work.served_model(STACK, asked("org/e5"))


def test_a_mistyped_model_is_answered_with_the_one_that_was_meant() -> None:
    endpoint = EndpointFacts(name="smollm2", id="1", model="SmolLM2", tasks=("generate",), gpu="x", usd_per_second=0, workers_max=1)
    stack = Stack(msgspec.structs.replace(STACK.facts, endpoints=(endpoint,)), STACK.secrets)
    with pytest.raises(UsageError, match=r"'smolm2'. Did you mean smollm2\? It serves smollm2 \(SmolLM2: generate\)") as caught:
        work.served_model(stack, asked("smolm2"))
    assert "up --model TASK:NAME" in str(caught.value), "no advice to serve the typo"


def test_what_a_dying_worker_of_this_machine_said_last_is_shown_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cli.local.last_words", lambda endpoint: (f"no such model for {endpoint}", tmp_path / "w.log"))
    seen: list[Any] = []
    stream = io.StringIO()
    show = work.on_dying_workers(STACK, "tiny", Lines(stream), seen.append)
    for unhealthy in (0, 1, 1):
        show(follow_progress(Health(unhealthy=unhealthy)))
    assert len(seen) == 3
    assert stream.getvalue().count("no such model for tiny") == 1
    elsewhere = Stack(msgspec.structs.replace(STACK.facts, stack="prod"), STACK.secrets)
    assert work.on_dying_workers(elsewhere, "tiny", Lines(stream), show) is show


def follow_progress(workers: Health) -> FollowProgress:
    return FollowProgress(
        rows=1,
        ok=0,
        failed=0,
        shards={},
        attempts=1,
        workers=workers,
        worker_seconds=0.0,
        usd_estimated=0.0,
        usd_reserved=0.0,
        elapsed_s=1.0,
    )


def test_one_is_one_and_not_more() -> None:
    lines = "\n".join(report_lines(report(result(), collected(ok=1, failed=1))))
    assert "done in 1 attempt\n" in lines
    assert "out.parquet (1 row)" in lines
    assert "(1 row)" in lines
    assert "(100 rows)" in "\n".join(report_lines(report(result(), collected())))


# --- options -------------------------------------------------------------------------------------------------------------------------

WRONG_OPTIONS = (
    ["--deadline", "soon"], ["--webhook-url", "nonsense"], ["--param", 'stop=["a"'], ["--param", "top_p=7"], ["--param", "foo=1"],
    ["--dtype", "float16"], ["--out", "/nowhere/at/all.jsonl"], ["--out", "answers.txt"], ["--again", "No Name"], ["--prompt", "x {"],
    ["--column", "a", "--messages-column", "b"], ["--budget", "inf"],
)  # fmt: skip


NOT_OF_PLAN = ("--deadline", "--webhook-url", "--dtype")


@pytest.mark.parametrize(
    ("mode", "options"),
    [(mode, one) for mode in ("run", "run --dry-run", "plan") for one in WRONG_OPTIONS if mode != "plan" or one[0] not in NOT_OF_PLAN],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_a_wrong_option_is_refused_first_in_every_mode(mode: str, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_late(*_: object) -> None:
        raise AssertionError("the stack was asked")

    monkeypatch.setattr(work, "find_stack", too_late)
    command = [*mode.split(), "rows.jsonl", "--task", "generate", "--model", "m", *options]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2
    assert "nightbatch: " in found.stderr
    assert options[0] in found.stderr or options[1] in found.stderr


def test_right_options_pass_the_first_check_and_the_stack_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def asked_for(*_: object) -> None:
        raise UsageError("the stack was asked.")

    monkeypatch.setattr(work, "find_stack", asked_for)
    monkeypatch.chdir(tmp_path)
    options = ["--out", "a.parquet", "--dtype", "float16", "--deadline", "6h", "--webhook-url", "https://a.example", "--budget", "1"]
    found = CliRunner().invoke(app, ["run", "rows.jsonl", "--task", "embed", "--model", "m", *options, "--dry-run"])
    assert found.stderr == "nightbatch: the stack was asked.\n"


# --- reports -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "files", "code"),
    [
        (result(), collected(), 0),
        (result(failed=2, ok=98), collected(failed=2, ok=98), 1),
        (result(failed=2, ok=98), None, 1),
        (result(state="stopped", cause="budget", reason="no more money."), None, 4),
        (result(state="stopped", cause="deadline", reason="time is up."), None, 4),
        (result(state="stopped", cause="cancelled", reason="somebody cancelled it."), None, 1),
        (result(state="paused", cause="credentials", reason="the keys."), None, 3),
        (result(state="stalled", cause="no_workers", reason="no workers."), None, 3),
        (result(state="failed", cause="attempts", reason="one shard failed."), None, 3),
    ],
    ids=["complete", "failed rows", "failed rows, not collected", "budget", "deadline", "cancelled", "paused", "stalled", "failed"],
)
def test_every_end_of_a_run_has_its_exit_code_and_says_why(found: DriveResult, files: Collected | None, code: int) -> None:
    made = report(found, files)
    assert made.exit_code == code
    assert bool(made.sentence) == bool(code)
    record = report_record(made)
    assert record["state"] == found.state
    if found.state != "complete":
        assert record["reason"] == found.reason
        run = made.plan.run_id
        rest = f"next: nightbatch collect {run} --partial, for the shards that are done"
        assert report_lines(made)[-1] == (rest if found.state == "failed" else f"next: nightbatch resume {run}")


def test_the_record_has_the_promised_keys() -> None:
    promised = "run state rows ok failed shards attempts out errors seconds worker_seconds usd_planned usd_estimated".split()  # noqa: SIM905
    record = report_record(report(result(), collected()))
    assert set(promised) <= set(record)
    assert (record["out"], record["errors"]) == ("out.parquet", "out.errors.jsonl")
    assert (record["usd_planned"], record["usd_estimated"], record["worker_seconds"]) == (0.0042, 0.006, 30.0)


def test_a_trial_prices_the_rest_at_its_own_speed_with_one_engine_start() -> None:
    made = report(result(), collected(), rest_rows=900)
    assert made.whole is not None
    rows, seconds, dollars = made.whole
    assert (rows, seconds) == (1000, 20.0 + 10.0 * 10)
    assert dollars == pytest.approx(120.0 * 0.0002)
    assert report_record(made)["whole"] == {"rows": 1000, "worker_seconds": 120.0, "usd": pytest.approx(0.024)}
    assert report(result(state="stopped", cause="budget"), rest_rows=900).whole is None


def test_failures_are_summed_up_by_code_with_an_example() -> None:
    files = collected(failed=3, ok=97, failures=(Failure("too_long", 3, "row-7", "the prompt has 900 tokens"),))
    lines = report_lines(report(result(ok=97, failed=3), files))
    assert "           3 x too_long, such as row-7: the prompt has 900 tokens" in lines


def test_a_plan_says_low_likely_and_high() -> None:
    planned = PlannedRun(plan(), RunUri.parse("s3://bucket/runs/rows-embed-00000000"), existing=False, notices=("a notice.",), rest_rows=5)
    text = "\n".join(plan_lines(planned))
    assert "20 s (10 s to 6 min 40 s)" in text
    assert "$0.0042 ($0.0010 to $12.50)" in text
    record = plan_record(planned, stored=False)
    assert record["state"] == "dry-run"
    assert record["usd"] == {"low": 0.001, "likely": 0.0042, "high": 12.5}
    assert (record["rows_after_limit"], record["notices"]) == (5, ["a notice."])


@pytest.mark.parametrize(
    ("value", "text"), [(0, "$0.0000"), (0.000012, "$0.000012"), (0.000838, "$0.0008"), (0.0042, "$0.0042"), (1234.5, "$1,234.50")]
)
def test_dollars_have_as_many_digits_as_tell_something(value: float, text: str) -> None:
    assert usd(value) == text


def test_secrets_of_the_stack_are_cut_out_of_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    policy.begin(json_output=False)
    policy.session.hide(StackSecrets("rpa_0123456789", S3, S3).values)
    say("the key rpa_0123456789 was refused")
    assert capsys.readouterr().err == "the key <hidden> was refused\n"


# --- what a person needs to know of money and failures ----------------------------------------------------------------------------------


def planned_with(budget: float | None) -> PlannedRun:
    made = msgspec.structs.replace(plan(), budget_usd=budget)
    return PlannedRun(made, RunUri.parse("s3://bucket/runs/rows-embed-00000000"), existing=False, notices=(), rest_rows=0)


def test_a_budget_that_cannot_start_one_job_is_said_with_the_plan_and_the_one_that_can() -> None:
    reserve = rules_for(plan()).reserve_usd
    text = "\n".join(plan_lines(planned_with(reserve / 2)))
    assert f"cannot start one job: each reserves up to {usd(reserve)}" in text
    assert f"give at least {usd(budget_needed(rules_for(plan())))}" in text
    assert "cannot start" not in "\n".join(plan_lines(planned_with(reserve * 2)))
    assert plan_record(planned_with(None), stored=True)["usd_reserved_per_job"] == reserve


def test_the_budget_that_is_shown_is_the_one_in_force() -> None:
    text = "\n".join(plan_lines(planned_with(0.05), 1.0))
    assert "budget   $1.00 (of this command; the plan keeps $0.0500)" in text
    assert plan_record(planned_with(0.05), stored=True, budget=1.0)["budget_usd"] == 1.0
    assert "budget   $0.001000" not in "\n".join(plan_lines(planned_with(0.001)))
    assert "budget   $0.0010" in "\n".join(plan_lines(planned_with(0.001)))


def test_a_budgets_stop_says_which_budget_goes_on() -> None:
    made = report(result(state="stopped", cause="budget", reason="no more.", usd_needed=0.12))
    assert report_lines(made)[-1] == f"next: nightbatch resume {made.plan.run_id} --budget 0.12, or more"
    assert report_record(made)["usd_needed"] == 0.12


def test_a_refused_run_shows_the_workers_words_and_does_not_advise_to_try_again_as_it_is() -> None:
    made = report(
        result(state="failed", cause="refused", reason="the workers refuse it.", errors=(("00000", "`revision` is 'abc'."),), shards_done=0)
    )
    lines = report_lines(made)
    assert "  error    shard 00000: `revision` is 'abc'." in lines
    assert lines[-1].startswith("next: put that right")
    assert report_record(made)["job_errors"] == {"00000": "`revision` is 'abc'."}


def test_the_first_dead_attempt_says_why_and_the_next_do_not_repeat_it() -> None:
    notes: list[str] = []

    class Notes(Quiet):
        def note(self, text: str) -> None:
            notes.append(text)

    show = work.on_follow(Notes(), plan())
    for number in (1, 2):
        show(Ended("00000", number, "dead", "failed", "no memory"))
    assert notes == ["shard 00000: attempt 1 is dead (failed): no memory", "shard 00000: attempt 2 is dead (failed)"]


def test_a_cost_says_what_is_not_in_it() -> None:
    made = replace(report(result(workers=2)), idle_timeout_s=30.0)
    assert made.idle_usd == pytest.approx(2 * 30 * 0.0002)
    cost = next(line for line in report_lines(made) if line.startswith("  cost"))
    assert "(without idle time: $0.0120 more where 2 workers waited 30 s at the end)" in cost
    ended = result(state="stopped", cause="cancelled", usd_reserved=0.1, workers=0)
    stopped = replace(made, finished=replace(made.finished, result=ended))
    cost = next(line for line in report_lines(stopped) if line.startswith("  cost"))
    assert "at least $0.0060 estimated" in cost
    assert "up to $0.1000 more for jobs that are not known to be over" in cost


def test_rows_that_failed_in_a_run_that_is_not_collected_are_not_sought_in_a_file() -> None:
    assert "`collect` writes them" in report(result(failed=2, ok=98)).sentence
    assert "see the errors file" in report(result(failed=2, ok=98), collected(failed=2, ok=98)).sentence
