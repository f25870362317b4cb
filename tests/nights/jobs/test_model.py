"""What a job may say: each key, and what keys need of each other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from contract.params import PARAMS
from nights.jobs.model import Job, JobKeys, parse_span, problems_of

EMBED: dict[str, Any] = {"name": "a", "kind": "embed", "dataset": "a.csv", "model": "m", "id_column": "id", "space": {"name": "s"}}
GENERATE: dict[str, Any] = {"name": "a", "kind": "generate", "dataset": ["a.csv", "b.csv"], "model": "m", "out": "o.jsonl"}
EVAL: dict[str, Any] = {"name": "a", "kind": "eval", "model": "m", "suite": "suites/a.yaml"}


def job(base: dict[str, Any], **more: Any) -> Job:
    return Job.model_validate({key: value for key, value in {**base, **more}.items() if value is not ...})


def refused(base: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        job(base, **more)
    return "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in raised.value.errors())


def test_the_least_that_a_job_says() -> None:
    for base in (EMBED, GENERATE, EVAL):
        assert job(base).kind == base["kind"]
    assert job(EMBED).dataset == ("a.csv",)
    assert job(GENERATE).dataset == ("a.csv", "b.csv")


@pytest.mark.parametrize(
    ("base", "more", "said"),
    [
        (EMBED, {"dataset": ...}, "dataset: is missing; kind embed needs a file, a folder, a glob or an s3:// address"),
        (EMBED, {"dataset": []}, "dataset: is missing"),
        (EMBED, {"space": ...}, "space: is missing, and so is `out`; kind embed needs one of them, or both"),
        (EMBED, {"id_column": ...}, "id_column: is missing; a space needs it"),
        (EMBED, {"messages_column": "m"}, "messages_column: is for kind generate, and this job's kind is embed"),
        (EMBED, {"space": {"name": "s", "prefix": "query: "}}, "space.prefix: needs `column` or `prompt`"),
        (EMBED, {"column": "a{b}", "space": {"name": "s", "prefix": "query: "}}, "column: has a brace in its name"),
        (EMBED, {"space": {"name": "s", "truncate": {"tokens": 0}}}, "is 0, which leaves nothing of a text"),
        (EMBED, {"params": {"dimensions": 3}}, "params.dimensions: belongs to the space"),
        (EMBED, {"params": {"truncate_prompt_tokens": 3}}, "write it as space.truncate"),
        (EMBED, {"params": {"temperature": 0}}, "params.temperature: `temperature` is not a parameter for kind embed"),
        (EMBED, {"space": ..., "out": "o.parquet", "canary": {"rows": 3}}, "canary: needs a `space`"),
        (EMBED, {"out": "o.jsonl", "dtype": "float16"}, "dtype: cannot be float16 for a .jsonl output"),
        (EMBED, {"gate": {"min_score": 1.0}}, "gate: is for kind eval, and this job's kind is embed"),
        (GENERATE, {"out": ...}, "out: is missing; kind generate needs a place for its output"),
        (GENERATE, {"out": "answers.txt"}, "out: does not say which kind of file to write"),
        (GENERATE, {"out": "o-{night}.jsonl"}, "out: holds {night}, which is not filled in; there may be {job}, {date}, {run}"),
        (GENERATE, {"out": "o-{.jsonl"}, "out: holds {, which is not filled in"),
        (GENERATE, {"dataset": "a-{run}.csv"}, "dataset.0: holds {run}, which is not filled in; there may be {job}, {date}"),
        (GENERATE, {"dataset": "https://host/a.csv"}, "dataset.0: is an address with https://; files here and s3:// addresses can be used"),
        (GENERATE, {"dataset": " "}, "dataset.0: is empty"),
        (GENERATE, {"prompt": "a {b", "column": "c"}, "prompt: `column` and `prompt` exclude each other; keep one of them"),
        (GENERATE, {"prompt": "a {b"}, "prompt: the prompt 'a {b' has a brace without a column name"),
        (GENERATE, {"space": {"name": "s"}}, "space: is for kind embed"),
        (GENERATE, {"params": {"top_p": 7}}, "params.top_p: 7 is out of bounds: it must be at least 0 and at most 1"),
        (GENERATE, {"params": {"messages": []}}, "params.messages: `messages` is each row's own"),
        (EVAL, {"suite": ...}, "suite: is missing; kind eval needs the path of a suite's file"),
        (EVAL, {"dataset": "a.csv"}, "dataset: is for kind embed and generate, and this job's kind is eval; the suite says it"),
        (EVAL, {"on_bad_row": "skip"}, "on_bad_row: cannot be skip for kind eval"),
        (EVAL, {"gate": {}}, "gate: judges nothing; set `min_score`, `max_regression` or `max_failed_percent`"),
        (EVAL, {"gate": {"max_regression": 0.1}}, "gate.max_regression: needs a `baseline` to be worse than"),
        (EVAL, {"notify": [{"kind": "webhook"}]}, "notify.0: a webhook needs either `url` or `url_env`"),
        (EVAL, {"notify": [{"kind": "email", "host": "h", "from": "a@b.c", "to": []}]}, "notify.0.to: names nobody"),
        (EVAL, {"notify": [{"kind": "email", "host": "h", "from": "a@b.c", "to": "x@y.z\nBcc: o@p.q"}]}, "notify.0.to: holds a line break"),
        (EVAL, {"notify": [{"kind": "email", "host": "h", "from": "a\n@b.c", "to": "x@y.z"}]}, "notify.0.from: holds a line break"),
        (EVAL, {"notify": [{"kind": "webhook", "url": "http://h", "url_env": "U"}]}, "notify.0: a webhook needs either"),
        (EVAL, {"notify": [{"kind": "email", "host": "h", "from": "a@b", "to": "c@d", "password_env": "P"}]}, "needs `username_env`, too"),
        (
            EVAL,
            {
                "notify": [
                    {"kind": "email", "host": "h", "from": "a@b", "to": "c@d", "username_env": "U", "password_env": "P", "security": "none"}
                ]
            },
            "notify.0.security: cannot be none where a password is sent",
        ),
    ],
)
def test_keys_that_do_not_fit_each_other_are_refused(base: dict[str, Any], more: dict[str, Any], said: str) -> None:
    assert said in refused(base, **more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"deadline": "6 hours"}, "is neither a time span such as 6h nor a time of day such as 06:30"),
        ({"deadline": "25:00"}, "is neither"),
        ({"deadline": "0h"}, "is neither"),
        ({"schedule": {"cron": "*/5 2 * * *"}}, "minute and hour must be one number each, because a date has one night"),
        ({"schedule": {"cron": "0 2 30 2 *"}}, "is no cron expression (bad day-of-month)"),
        ({"schedule": {"cron": "0 99 * * *"}}, "is no cron expression (bad hour)"),
        ({"schedule": {"cron": "0 2 * * *", "timezone": "../../etc/passwd"}}, "is no time zone"),
        ({"schedule": {"cron": "0 2 * * *", "timezone": ""}}, "is no time zone"),
        ({"schedule": {"cron": "0 2 * * *", "max_delay": "soon"}}, "is no time span"),
        ({"budget_usd": float("nan")}, "finite"),
        ({"budget_usd": -1}, "greater than or equal to 0"),
        ({"limit": True}, "valid integer"),
        ({"pace": "4"}, "valid integer"),
        ({"stack": "../prod"}, "should match pattern"),
        ({"notify": [{"kind": "webhook", "url": "file:///etc/passwd"}]}, "is no http:// or https:// address"),
        ({"notify": [{"kind": "webhook", "url": "https://user:pass@host/"}]}, "holds a password or a query"),
        ({"notify": [{"kind": "slack", "url_env": "not a name"}]}, "should match pattern"),
        ({"gate": {"min_score": 1.0, "confidence": 0.5}}, "greater than 0.5"),
        ({"verison": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(more: dict[str, Any], said: str) -> None:
    assert said in refused(EVAL, **more)


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        job(EMBED).model = "other"


def test_a_spaces_settings_become_what_workers_take() -> None:
    found = job(
        EMBED,
        column="text",
        params={"add_special_tokens": True},
        space={"name": "s", "prefix": "{q}: ", "dimensions": 128, "truncate": {"side": "left"}},
    )
    assert found.body_params == {
        "add_special_tokens": True, "dimensions": 128, "truncate_prompt_tokens": -1, "truncation_side": "left"
    }  # fmt: skip
    assert set(found.body_params) <= set(PARAMS["embed"])
    assert (found.row_prompt, found.row_column) == ("{{q}}: {text}", None)


def test_without_a_prefix_the_row_is_made_as_the_job_says() -> None:
    plain = job(EMBED, column="text")
    assert (plain.row_prompt, plain.row_column, plain.body_params) == (None, "text", {})
    asked = job(GENERATE, prompt="Answer: {q}")
    assert (asked.row_prompt, asked.row_column) == ("Answer: {q}", None)
    both = job(EMBED, prompt="{title} {text}", space={"name": "s", "prefix": "passage: "})
    assert both.row_prompt == "passage: {title} {text}"


def test_the_variables_that_a_job_needs_are_known() -> None:
    found = job(
        EVAL,
        schedule={"cron": "0 2 * * *", "ping_url_env": "PING"},
        notify=[
            {"kind": "slack", "url_env": "SLACK"},
            {"kind": "webhook", "url": "https://h/x", "secret_env": "SIGN"},
            {"kind": "email", "host": "h", "from": "a@b", "to": ["c@d"], "username_env": "USER_", "password_env": "PASS"},
        ],
    )
    assert found.env_names == ("PASS", "PING", "SIGN", "SLACK", "USER_")
    assert job(EVAL).env_names == ()


def test_unless_asked_for_success_is_not_told() -> None:
    found = job(EVAL, notify=[{"kind": "slack", "url_env": "S"}, {"kind": "slack", "url_env": "S", "on": "success"}])
    assert "success" not in found.notify[0].on
    assert len(found.notify[0].on) == 9
    assert found.notify[1].on == ("success",)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("45m", 2700), ("6h", 21600), ("2d", 172800)])
def test_spans(text: str, seconds: int) -> None:
    found = parse_span(text)
    assert found is not None
    assert found.total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "-6h", "6.5h", "06h", "6h ", "6H", "1e3h", "9999999d", "٦h"])
def test_what_is_no_span(text: str) -> None:
    assert parse_span(text) is None


def test_plain_data_of_any_shape_has_problems_and_no_exception() -> None:
    for given in ({}, {"kind": "embed", "space": None, "gate": None, "params": None, "notify": None}, {"kind": "eval", "dataset": None}):
        assert isinstance(list(problems_of(given)), list)


def test_every_key_says_what_it_is_for() -> None:
    def silent(schema: dict[str, Any], name: str) -> list[str]:
        return [f"{name}.{key}" for key, value in schema.get("properties", {}).items() if not value.get("description")]

    schema = JobKeys.model_json_schema()
    found = silent(schema, "job")
    for name, part in schema["$defs"].items():
        found += silent(part, name) + ([] if part.get("description") else [name])
    assert found == []
