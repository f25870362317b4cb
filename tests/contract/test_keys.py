"""tests of contract.keys: addresses that every dialect of S3 keeps as they are."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import UsageError
from contract.keys import MAX_KEY, RunKeys, RunUri, child_names, shard_name

GIVEN = {
    "shard": "00042.0.1",
    "execution": "0123456789abcdef",
    "number": 17,
    "client": "c0ffee",
    "suffix": "jsonl.zst",
    "digest": "ab" * 32,
}


def every_key(keys: RunKeys) -> dict[str, str]:
    made: dict[str, str] = {}
    for name, method in inspect.getmembers(keys, inspect.ismethod):
        if not name.startswith("_"):
            made[name] = method(**{p: GIVEN[p] for p in inspect.signature(method).parameters})
    return made


def test_every_key_is_one_that_every_store_keeps() -> None:
    made = every_key(RunKeys("a/prefix/runs/20260102-abcdef01"))
    assert len(made) > 15
    for key in made.values():
        assert key.startswith("a/prefix/runs/20260102-abcdef01/")
        assert re.fullmatch(r"[A-Za-z0-9._=/-]+", key)
        assert "//" not in key
        assert len(key) < MAX_KEY


def test_no_two_objects_share_a_key() -> None:
    keys = RunKeys("runs/r")
    made = every_key(keys)
    # the prefix of a shard's starts is not an object
    objects = {name: key for name, key in made.items() if not name.endswith("_prefix")}
    assert len(set(objects.values())) == len(objects)


def test_a_prefix_holds_its_objects_and_no_others() -> None:
    keys = RunKeys("runs/r")
    assert keys.start("00042", "e").startswith(keys.starts_prefix("00042"))
    assert keys.start("00042.0", "e").startswith(keys.starts_prefix())
    assert not keys.start("00042.0", "e").startswith(keys.starts_prefix("00042"))
    assert keys.end("00042", "e").startswith(keys.ends_prefix("00042"))
    assert keys.commit("00042.1").startswith(keys.commits_prefix())
    assert keys.journal(3).startswith(keys.journal_prefix())


def test_on_a_last_writer_store_two_clients_write_two_journal_entries() -> None:
    keys = RunKeys("runs/r")
    assert keys.journal(17) == "runs/r/journal/000017.json"
    assert keys.journal(17, "a") != keys.journal(17, "b")
    assert sorted([keys.journal(100), keys.journal(9, "x"), keys.journal(11)]) == [
        keys.journal(9, "x"),
        keys.journal(11),
        keys.journal(100),
    ]


@pytest.mark.parametrize(
    ("text", "bucket", "path"),
    [
        ("s3://bucket/runs/R", "bucket", "runs/R"),
        ("s3://bucket/runs/R/", "bucket", "runs/R"),
        ("s3://my.bucket-1/a/b/runs/20260102-ab", "my.bucket-1", "a/b/runs/20260102-ab"),
    ],
)
def test_the_address_of_a_run_is_read(text: str, bucket: str, path: str) -> None:
    uri = RunUri.parse(text)
    assert (uri.bucket, uri.path) == (bucket, path)
    assert str(uri) == text.rstrip("/")
    assert RunUri.parse(str(uri)) == uri
    assert uri.run_id == path.rsplit("/", 1)[-1]
    assert uri.keys.plan() == f"{path}/plan.json"


@pytest.mark.parametrize(
    "text",
    [
        "", "runs/R", "s3://", "s3://bucket", "s3://bucket/", "s3://b/runs/R", "http://bucket/runs/R", "s3://Bucket/runs/R",
        "s3://bucket//runs/R", "s3://bucket/runs//R", "s3://bucket/runs\\R", "s3://bucket/runs/ü", "s3://bucket/runs/a b",
        "s3://bucket/runs/R\n", "s3://bucket/" + "r" * 400, "s3://bucket/runs/../R", "s3://bucket/./R",
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_run_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="s3://bucket/runs/RUN_ID"):
        RunUri.parse(text)


@given(st.text(max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        uri = RunUri.parse("s3://bucket/" + text)
    except UsageError:
        return
    assert all(re.fullmatch(r"[A-Za-z0-9._=/-]+", key) and "//" not in key for key in every_key(uri.keys).values())


def test_names_of_shards_sort_as_their_rows_do() -> None:
    assert [shard_name(n) for n in (0, 42, 99999)] == ["00000", "00042", "99999"]
    assert child_names("00042", 3) == ("00042.0", "00042.1", "00042.2")
    assert shard_name(123456) == "123456"
