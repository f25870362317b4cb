"""`verify` and `collect` against a bucket that somebody has changed: a part with a missing, doubled or altered row, also where the commit
was made to fit, and output files that were changed afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from contract.lines import compress, decompress_lines
from contract.models import Commit, ObjectRef, PartCommit, decode, encode
from tests.e2e.house import PER_SHARD, House, RunObjects, question_rows

pytestmark = pytest.mark.slow

ROWS = 3 * PER_SHARD
SHARD = "00001"
Change = Callable[[list[bytes]], list[bytes]]


def missing(lines: list[bytes]) -> list[bytes]:
    return lines[:3] + lines[4:]


def doubled(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[3], *lines[4:]]


def altered(lines: list[bytes]) -> list[bytes]:
    assert b"echo" in lines[3]
    return [*lines[:3], lines[3].replace(b"echo", b"ECHO"), *lines[4:]]


def swapped(lines: list[bytes]) -> list[bytes]:
    """Two rows get each other's answers; every index is still there once."""
    left, right = json.loads(lines[3]), json.loads(lines[4])
    left["response"], right["response"] = right["response"], left["response"]
    return [*lines[:3], json.dumps(left).encode(), json.dumps(right).encode(), *lines[5:]]


CHANGES = [missing, doubled, altered, swapped]


@pytest.fixture(scope="module")
def sealed(echo_house: House, tmp_path_factory: pytest.TempPathFactory) -> tuple[House, str, Path]:
    """A run that is complete, collected and verified."""
    folder = tmp_path_factory.mktemp("sealed")
    rows, out = question_rows(folder / "sealed.jsonl", ROWS), folder / "out.jsonl"
    record = echo_house.ok("run", rows, "--task", "generate", "--model", "echo", "--out", out)
    assert record["verified"] is True
    return echo_house, record["run"], out


@pytest.fixture(scope="module")
def unsealed(echo_house: House, tmp_path_factory: pytest.TempPathFactory) -> tuple[House, str]:
    """A run whose shards are done and that nobody has collected."""
    rows = question_rows(tmp_path_factory.mktemp("unsealed") / "unsealed.jsonl", ROWS)
    run = echo_house.ok("plan", rows, "--task", "generate", "--model", "echo")["run"]
    assert echo_house.ok("submit", run)["state"] == "complete"
    return echo_house, run


@pytest.fixture
def restored(echo_house: House) -> Iterator[None]:
    """What a test changes in the bucket is put back."""
    before = echo_house.objects("runs/")
    yield
    for key, data in echo_house.objects("runs/").items():
        if key in before and before[key] != data:
            echo_house.put(key, before[key])


def part_of(house: House, run: str) -> tuple[RunObjects, PartCommit, ObjectRef]:
    found = RunObjects.of(house, run)
    commit = decode(found.data[found.keys.commit(SHARD)], Commit, where="commit")
    assert isinstance(commit, PartCommit)
    assert commit.part is not None
    return found, commit, commit.part


def tamper(house: House, run: str, change: Change, *, fit_commit: bool) -> None:
    """Change the shard's part; `fit_commit`: as a faulty worker would have written it, so that size and sha256 agree."""
    found, commit, part = part_of(house, run)
    lines = list(decompress_lines(found.data[part.key], where="part"))
    data = compress(b"".join(line + b"\n" for line in change(lines)))
    house.put(part.key, data)
    if fit_commit:
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        fitting = msgspec.structs.replace(part, size=len(data), sha256=hashlib.sha256(data).hexdigest(), etag=etag)
        house.put(found.keys.commit(SHARD), encode(msgspec.structs.replace(commit, part=fitting)))


def found_wrong(house: House, run: str, *more: str | Path) -> list[str]:
    said = house.cli("verify", run, *more, "--json")
    assert said.code == 1, said.out
    assert said.record["state"] == "wrong"
    assert "nightbatch: " in said.err
    return [str(line) for line in said.record["findings"]]


@pytest.mark.parametrize("change", [missing, altered], ids=lambda change: change.__name__)
@pytest.mark.usefixtures("restored")
def test_verify_finds_a_part_that_was_changed_after_its_seal(sealed: tuple[House, str, Path], change: Change) -> None:
    house, run, _ = sealed
    tamper(house, run, change, fit_commit=False)
    assert any(SHARD in finding for finding in found_wrong(house, run))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.usefixtures("restored")
def test_verify_finds_rows_that_are_wrong_although_the_commit_fits_the_part(unsealed: tuple[House, str], change: Change) -> None:
    house, run = unsealed
    tamper(house, run, change, fit_commit=True)
    findings = found_wrong(house, run)
    assert any(SHARD in finding for finding in findings)
    if change in (missing, doubled):
        assert any(str(PER_SHARD + 3) in finding for finding in findings), f"the row is named: {findings}"


@pytest.mark.usefixtures("restored")
def test_collect_writes_nothing_from_a_part_that_was_changed(unsealed: tuple[House, str], tmp_path: Path) -> None:
    house, run = unsealed
    tamper(house, run, altered, fit_commit=False)
    out = tmp_path / "out.jsonl"
    said = house.cli("collect", run, "--out", out, "--json")
    assert said.code == 1, said.out
    assert SHARD in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_verify_finds_an_output_file_that_was_changed(sealed: tuple[House, str, Path], change: Change, tmp_path: Path) -> None:
    house, run, out = sealed
    lines = out.read_bytes().splitlines()
    if change is altered:
        changed = [*lines[:3], lines[3].replace(b"echo", b"ECHO"), *lines[4:]]
    elif change is swapped:
        changed = [*lines[:3], lines[4], lines[3], *lines[5:]]
    else:
        changed = change(lines)
    for path in out.parent.glob("out*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / out.name).write_bytes(b"".join(line + b"\n" for line in changed))
    assert found_wrong(house, run, "--out", tmp_path / out.name)


def test_verify_is_content_with_what_was_not_changed(sealed: tuple[House, str, Path]) -> None:
    house, run, out = sealed
    record = house.ok("verify", run, "--out", out, "--inputs")
    assert (record["findings_total"], record["rows"]) == (0, ROWS)
    assert record["not_proven"], "it says what it cannot prove"
