"""tests of contract.models: strict, frozen, and one sentence that names the field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import models
from contract.errors import ContractError
from contract.models import (
    Child,
    Commit,
    Control,
    JobInput,
    JobRequest,
    ObjectRef,
    PartCommit,
    Policy,
    S3Config,
    Seal,
    SealedNode,
    Source,
    SplitCommit,
    TaskSpec,
    convert,
    decode,
    encode,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEX = "ab" * 32
SOURCE = Source(uri="s3://b/k.jsonl.zst", rows=(0, 2), count=2, digest=HEX)
REF = ObjectRef(key="k", size=1, sha256=HEX, etag="e")
COMMIT = PartCommit(
    plan=HEX, shard="00042", execution="0123456789abcdef", attempt=1, part=REF, errors=None, ok=2, failed=0, tokens_in=1, tokens_out=2,
    input_digest=HEX, digest=HEX, at=AT,
)  # fmt: skip
JOB = JobInput(
    version=1, run="s3://b/runs/r", plan=HEX, shard="00042", attempt=1, epoch=0, source=SOURCE, start_by=AT, deadline_s=540.0,
    task=TaskSpec(kind="generate", model="m", params={"temperature": 0.0}),
)  # fmt: skip
KEYS = S3Config(accessId="key-id", accessSecret="key-secret", bucketName="b", endpointUrl="http://x")
REQUEST = JobRequest(input=JOB, s3Config=KEYS, policy=Policy(lowPriority=True, executionTimeout=600_000, ttl=3_600_000))
SPLIT = SplitCommit(
    plan=HEX,
    shard="00042",
    children=(
        Child(shard="00042.0", source=msgspec.structs.replace(SOURCE, rows=(0, 1), count=1)),
        Child(shard="00042.1", source=msgspec.structs.replace(SOURCE, rows=(1, 2), count=1)),
    ),
    at=AT,
)


def job(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(encode(REQUEST))
    for path, change in changes.items():
        place, *rest = path.split("__")
        holder = value
        while rest:
            holder, place = holder[place], rest.pop(0)
        if change is ...:
            del holder[place]
        else:
            holder[place] = change
    return value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (REQUEST, JobRequest),
        (JOB, JobInput),
        (COMMIT, Commit),
        (SPLIT, Commit),
        (Control(plan=HEX, at=AT, by="me"), Control),
        (Seal(plan=HEX, rows=2, nodes=(SealedNode(shard="00042", source=SOURCE, commit=COMMIT),)), Seal),
    ],
)
def test_what_is_written_is_read_again_and_written_the_same(value: Any, kind: Any) -> None:
    data = encode(value)
    assert decode(data, kind, where="x") == value
    assert encode(decode(data, kind, where="x")) == data
    assert convert(json.loads(data), kind, where="x") == value


def test_the_kind_of_a_commit_is_said_in_it() -> None:
    assert isinstance(decode(encode(SPLIT), Commit, where="x"), SplitCommit)
    assert isinstance(decode(encode(COMMIT), Commit, where="x"), PartCommit)
    with pytest.raises(ContractError, match="kind"):
        decode(encode(COMMIT).replace(b'"kind":"part"', b'"kind":"whole"'), Commit, where="x")


@given(st.permutations(["b", "a", "c"]))
def test_equal_values_give_equal_bytes_whatever_the_order_of_their_keys(order: list[str]) -> None:
    task = TaskSpec(kind="generate", model="m", params={name: {"y": 1, "x": 2} for name in order})
    wanted = TaskSpec(kind="generate", model="m", params={name: {"x": 2, "y": 1} for name in ("a", "b", "c")})
    assert encode(task) == encode(wanted)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"s3Config": ...}, ["s3Config"]),
        ({"s3Config__accessSecret": ...}, ["s3Config", "accessSecret"]),
        ({"input__shard": ...}, ["input", "shard"]),
        ({"input__attempt": "1"}, ["input.attempt", "int", "str"]),
        ({"input__attempt": True}, ["input.attempt"]),
        ({"input__attempt": 0}, ["input.attempt", ">= 1"]),
        ({"input__colour": "red"}, ["input", "colour"]),
        ({"input__source__rows": [0]}, ["input.source.rows"]),
        ({"input__source__rows": [-1, 2]}, ["input.source.rows", ">= 0"]),
        ({"input__source__digest": "xyz"}, ["input.source.digest"]),
        ({"input__shard": "42"}, ["input.shard"]),
        ({"input__shard": "00042.x"}, ["input.shard"]),
        ({"input__task__kind": "translate"}, ["input.task.kind", "translate"]),
        ({"input__task__model": ""}, ["input.task.model"]),
        ({"input__start_by": "2026-01-02T03:04:05"}, ["input.start_by", "timezone"]),
        ({"input__deadline_s": 0}, ["input.deadline_s"]),
        ({"policy__ttl": 1000}, ["policy.ttl", ">= 10000"]),
        ({"policy__ttl": 604_800_001}, ["policy.ttl"]),
        ({"policy__executionTimeout": 4_999}, ["policy.executionTimeout"]),
        ({"policy__lowPriority": 1}, ["policy.lowPriority", "bool"]),
        ({"hooks": []}, ["hooks"]),
    ],
)
def test_a_job_that_breaks_the_contract_is_told_the_field(changes: dict[str, Any], words: list[str]) -> None:
    value = job(**changes)
    data = json.dumps(value).encode()
    for read in (partial(convert, value), partial(decode, data)):
        with pytest.raises(ContractError) as caught:
            read(JobRequest, where="job")
        text = str(caught.value)
        assert all(word in text for word in words), text
        assert text.startswith("job: ")
        assert "\n" not in text


def test_another_version_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(ContractError, match=r"`version` is 2.*reads version 1.*same Nightbatch"):
        convert(job(input__version=2)["input"], JobInput, where="job")
    with pytest.raises(ContractError, match="`version`"):
        decode(encode(COMMIT).replace(b'"version":1', b'"version":9'), Commit, where="x")


@pytest.mark.parametrize("data", [b"", b"{", b"nonsense", b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000, b"null", b"[]", b"3"])
def test_what_is_not_such_an_object_is_a_contract_error(data: bytes) -> None:
    with pytest.raises(ContractError):
        decode(data, JobInput, where="x")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with pytest.raises(ContractError):
        decode(data, JobInput, where="x")


def test_credentials_are_never_printed() -> None:
    for text in (repr(KEYS), str(KEYS), f"{REQUEST}", repr([REQUEST])):
        assert "key-secret" not in text
        assert "key-id" not in text
    assert b"key-secret" in encode(REQUEST)
    assert b"key-" not in encode(REQUEST.input)


def test_models_are_frozen() -> None:
    with pytest.raises(AttributeError):
        JOB.attempt = 2  # type: ignore[misc]


def test_instants_of_other_zones_are_the_same_instants() -> None:
    there = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert decode(encode(Control(plan=HEX, at=there, by="me")), Control, where="x").at == AT


def test_every_model_refuses_fields_that_it_does_not_know() -> None:
    found = [value for value in vars(models).values() if isinstance(value, type) and issubclass(value, models.Model)]
    assert len(found) > 25
    for model in found:
        assert model.__struct_config__.forbid_unknown_fields, model
        assert model.__struct_config__.frozen, model
