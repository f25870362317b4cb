"""`nightbatch eval`: results as a person asks for them, over a real S3 server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cli.app import invoked
from cli.work import Where
from contract.store import S3Store
from emulator.s3 import KeyPair, SeaweedS3
from nights.evals.baseline import Baselines
from nights.evals.results import Results
from nights.evals.samples import EvalResult
from tests.nights.evals.worlds import result_of
from tests.nights.kit import NightHouse
from tests.pipelines.planning import stack_of

HOSTILE = "\x1b[2Jgone \u202e"
GOOD = result_of([1.0] * 40 + [0.0] * 10, made_with={"model": "smollm2", "image": "worker@sha256:1"})
BAD = result_of(
    [1.0] * 25 + [0.0] * 25,
    night=1,
    answers=[f"the answer is {HOSTILE} {index}" for index in range(50)],
    outcomes={30: "failed", 31: "cut"},
    made_with={"model": "smollm2", "image": "worker@sha256:2"},
    usd_estimated=0.25,
)
OTHER = result_of([1.0, 0.0], suite="code", night=2)
NEWER = result_of([1.0] * 52, night=3, dataset_digest="e" * 64, suite_digest="b" * 64)


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Ended]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedS3]:
    loop = asyncio.new_event_loop()
    made = SeaweedS3(
        tmp_path_factory.mktemp("s3"), "nightbatch", KeyPair("client-id", "client-secret"), KeyPair("worker-id", "worker-secret")
    )
    loop.run_until_complete(made.start())
    try:
        yield made
    finally:
        loop.run_until_complete(made.stop())
        loop.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")


@pytest.fixture
def kept(server: SeaweedS3, prefix: str) -> Callable[..., None]:
    """Keeps results under a prefix of the test's own."""

    def keep(*results: EvalResult) -> None:
        async def main() -> None:
            store = S3Store(server.client_config, mode="conditional", timeout_s=20)
            for one in results:
                await Results(store, prefix).put(one)
            await store.close()

        asyncio.run(main())

    return keep


@pytest.fixture
def nightbatch(server: SeaweedS3, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line in this process."""
    keys = server.client_config
    endpoint = {"name": "m", "id": "e", "model": "m", "tasks": ["generate"], "gpu": "cpu", "usd_per_second": 0.1, "workers_max": 1}
    facts = {
        "version": 1,
        "stack": "prod",
        "api_url": "http://127.0.0.1:9/v2",
        "store": {"bucket": "nightbatch", "endpoint_url": keys.endpointUrl, "prefix": prefix},
        "endpoints": [endpoint],
    }
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    for name, value in {
        "NIGHTBATCH_FACTS": str(tmp_path / "facts.json"),
        "NIGHTBATCH_STACK": "prod",
        "RUNPOD_API_KEY": "rpa_a_key_that_nobody_has",
        "NIGHTBATCH_S3_ACCESS_KEY_ID": keys.accessId,
        "NIGHTBATCH_S3_SECRET_ACCESS_KEY": keys.accessSecret,
        "COLUMNS": "100",
    }.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr("sys.argv", ["nightbatch", "eval", *arguments])
        code = invoked()
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        return Ended(code, out, err)

    return call


def test_a_stack_without_results_says_so(nightbatch: Call) -> None:
    assert nightbatch("list") == Ended(0, "no results of evaluations\n", "")
    assert nightbatch("baseline", "list").out == "no baselines\n"
    assert nightbatch("list", "--json").record == {"suites": []}
    ended = nightbatch("show", "latest")
    assert (ended.code, ended.out) == (2, "")
    assert "there are no results of evaluations" in ended.err


def test_suites_and_results_are_listed(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(GOOD, BAD, OTHER)
    lines = nightbatch("list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["arithmetic", "code"]
    assert "2 results  exact 0.5" in lines[0]
    assert [line.split()[0] for line in nightbatch("list", "arithmetic").out.splitlines()] == [BAD.header.result, GOOD.header.result]
    assert "48 ok, 1 failed, 1 cut" in nightbatch("list", "arithmetic").out
    assert nightbatch("list", "arithmetic", "--last", "1", "--json").record["results"][0]["result"] == BAD.header.result
    ended = nightbatch("list", "aritmetic")
    assert (ended.code, "Did you mean arithmetic?" in ended.err) == (2, True)


def test_a_result_is_shown_with_its_interval_and_what_it_was_made_with(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(GOOD)
    out = nightbatch("show", "arithmetic").out
    assert "exact  0.8  0.6696 to 0.8876 at 95 %  headline" in out
    assert "asked    50 questions: 50 ok" in out
    assert "\n  image: worker@sha256:1\n" in out
    assert "A difference of 0.2" in out
    record = nightbatch("show", GOOD.header.result, "--json", "--confidence", "0.9").record
    assert record["intervals"]["exact"]["confidence"] == 0.9
    assert (record["score"], record["questions"], record["suite_digest"]) == (0.8, 50, "a" * 64)
    assert nightbatch("show", "latest", "--confidence", "95").code == 2


def test_samples_of_a_result_are_shown_the_wrong_ones_first_and_harmless(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(BAD)
    out = nightbatch("show", "latest", "--samples", "3").out
    assert out.count("exact 0\n") == 3
    assert "\x1b" not in out
    assert "  answer " in out
    record = nightbatch("show", "latest", "--samples", "26", "--json").record
    assert [sample["scores"]["exact"] for sample in record["samples"]] == [0.0] * 25 + [1.0]
    assert "samples" not in nightbatch("show", "latest", "--json").record


def test_groups_and_metrics_of_the_whole_are_shown_apart(nightbatch: Call, kept: Callable[..., None]) -> None:
    samples = tuple(replace(one, group="hard" if one.index % 2 else "easy") for one in GOOD.samples)
    kept(EvalResult(replace(GOOD.header, metrics={"exact": 0.8, "lint": 0.3}), samples))
    out = nightbatch("show", "latest").out
    assert re.search(r"easy +0.8 .* group of 25", out)
    assert re.search(r"lint +0.3 +no interval: it is of the whole result", out)


def test_what_got_worse_is_shown_side_by_side_and_harmless(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(GOOD, BAD)
    ended = nightbatch("diff", "previous", "latest", "--limit", "2")
    assert ended.code == 0
    assert "0.8 -> 0.5, -0.3 (-0.4375 to -0.191 at 95 %), p < 0.001: not by chance" in ended.out
    assert "of 50 questions 15 got worse, 0 better, 35 stayed" in ended.out
    assert "changed: image: worker@sha256:1 -> worker@sha256:2" in ended.out
    assert ended.out.count("worse q000") == 2
    assert r"\x1b[2Jgone \u202e" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 100
    record = nightbatch("diff", "arithmetic/previous", "latest", "--limit", "1", "--json").record
    assert (record["worse"], record["comparison"]["up"], len(record["samples"])) == (15, 0, 1)
    assert record["samples"][0]["second"]["answer"] == f"the answer is {HOSTILE} 25"
    assert nightbatch("diff", "latest", "previous", "--which", "better", "--limit", "50").out.count("better q000") == 15


def test_results_of_different_suites_are_not_compared(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(GOOD, BAD, NEWER)
    ended = nightbatch("diff", "previous", "latest")
    assert ended.code == 2
    assert "not comparable: dataset: dddddddddddd -> eeeeeeeeeeee" in ended.err
    common = nightbatch("diff", "previous", "latest", "--common", "--which", "both", "--limit", "0")
    assert common.code == 0
    assert "left out: 2 only in the second" in common.out
    assert " p " not in common.out


def test_a_baseline_is_pinned_listed_replaced_and_forgotten(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(GOOD, BAD)
    assert (
        nightbatch("baseline", "set", "main", "previous", "--note", "release 1").out
        == f"baseline main of arithmetic is {GOOD.header.result}\n"
    )
    assert "release 1" in nightbatch("baseline", "list").out
    taken = nightbatch("baseline", "set", "main", "latest")
    assert (taken.code, "Add --replace" in taken.err) == (2, True)
    assert nightbatch("baseline", "set", "main", "latest", "--replace", "--json").record["former"] == GOOD.header.result
    assert "baseline main" in nightbatch("show", "main").out
    assert nightbatch("show", "man").err.strip().endswith("Did you mean arithmetic/main?")
    assert nightbatch("baseline", "rm", "main").code == 2
    assert nightbatch("baseline", "rm", "arithmetic/main").code == 0
    assert nightbatch("baseline", "list", "arithmetic").out == "no baselines\n"
    assert nightbatch("show", BAD.header.result).code == 0


def test_a_gate_ends_with_what_it_found_in_one_sentence(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(GOOD, BAD)
    nightbatch("baseline", "set", "main", "previous")
    failed = nightbatch("gate", "latest", "--baseline", "main", "--max-regression", "0.05")
    assert failed.code == 1
    assert failed.out.splitlines()[0] == (
        "The gate of arithmetic failed: exact 0.5 is 0.3 below baseline main (0.8), more than the 0.05 allowed, and not by chance "
        "(p < 0.001, 50 questions)."
    )
    assert "changed since the baseline: image: worker@sha256:1 -> worker@sha256:2" in failed.out
    passed = nightbatch("gate", "main", "--min-score", "0.8", "--json")
    assert (passed.code, passed.record["gate"], passed.record["exit_code"]) == (0, "passed", 0)
    assert nightbatch("gate", "latest", "--max-failed-percent", "3").code == 1
    assert nightbatch("gate", "previous", "--min-score", "0.7", "--strict").code == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "a gate without a limit passes everything"),
        (("--max-regression", "0.1"), "Name it: --baseline NAME"),
        (("--min-score", "nan"), "is no limit"),
        (("--min-score", "0.5", "--confidence", "2"), "is no confidence"),
        (("--max-regression", "0.1", "--baseline", "mian"), "there is no result or baseline mian"),
    ],
)
def test_a_gate_that_says_nothing_is_refused(nightbatch: Call, kept: Callable[..., None], options: tuple[str, ...], said: str) -> None:
    kept(GOOD)
    ended = nightbatch("gate", "latest", *options)
    assert (ended.code, said in ended.err) == (2, True)


def test_a_gate_whose_baseline_is_of_another_suite_is_not_passed(nightbatch: Call, kept: Callable[..., None]) -> None:
    kept(GOOD, NEWER)
    ended = nightbatch("gate", "latest", "--baseline", "previous", "--max-regression", "0.5")
    assert ended.code == 2
    assert "could not be judged: baseline previous is not comparable (dataset:" in ended.out


def test_history_says_what_changed_and_where_it_breaks(nightbatch: Call, kept: Callable[..., None]) -> None:
    back = result_of([1.0] * 30 + [0.0] * 20, night=4, made_with={"model": "smollm2", "image": "worker@sha256:2"})
    kept(GOOD, BAD, NEWER, back)
    nightbatch("baseline", "set", "main", GOOD.header.result)
    lines = nightbatch("history", "arithmetic").out.splitlines()
    assert lines[0].endswith("baseline main")
    assert "exact 0.5  (0.3664 to 0.6336)  -0.3" in lines[1]
    assert lines[2] == "    image: worker@sha256:1 -> worker@sha256:2"
    assert lines[3].startswith("--- not comparable with the one above: dataset: dddddddddddd -> eeeeeeeeeeee")
    assert f"(goes on from {BAD.header.result})" in "\n".join(lines)
    assert "+0.1" in next(line for line in lines if back.header.result in line)
    record = nightbatch("history", "arithmetic", "--json").record
    assert [one["series"] for one in record["results"]] == [1, 1, 2, 1]
    assert record["results"][1]["usd_estimated"] == 0.25
    assert nightbatch("history", "nothing").code == 2


def test_a_result_is_exported_for_another_viewer(nightbatch: Call, kept: Callable[..., None], tmp_path: Path) -> None:
    kept(BAD)
    out = tmp_path / "log.json"
    assert nightbatch("export", "latest", "--out", str(out)).code == 0
    assert len(json.loads(out.read_text())["samples"]) == 50
    assert nightbatch("export", "latest", "--to", "inspect", "--out", str(tmp_path / "x.eval")).code == 2
    assert nightbatch("export", "latest", "--to", "xml", "--out", str(out)).code == 2


def test_a_full_disk_leaves_no_half_log(
    nightbatch: Call, kept: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(BAD)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nights.evals.inspect_log.os.replace", full)
    ended = nightbatch("export", "latest", "--out", str(tmp_path / "log.json"))
    assert (ended.code, "could not be written (No space left on device)" in ended.err) == (3, True)
    assert [one.name for one in tmp_path.iterdir()] == ["facts.json"]


# --- evaluating ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> NightHouse:
    """A stack in this process, which answers 2 to every question until it is told otherwise."""
    made = NightHouse(says=lambda text: "2", stack=stack_of(prefix="team"))

    @asynccontextmanager
    async def announced(where: Where) -> AsyncIterator[NightHouse]:
        yield made

    @asynccontextmanager
    async def opened(where: Where) -> AsyncIterator[Baselines]:
        yield Baselines(Results(made.store, "team"))

    monkeypatch.setattr("cli.evals.announced", announced)
    monkeypatch.setattr("cli.evals.opened", opened)
    return made


def suite_file(folder: Path, **keys: Any) -> str:
    """Forty sums, of which ten are 2."""
    rows = [{"id": f"q{n}", "question": f"{n % 4}+1", "answer": n % 4 + 1} for n in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {"version": 1, "dataset": "rows.jsonl", "id_column": "id", "prompt": "{question}", "target_column": "answer", **keys}
    (folder / "sums.yaml").write_text(json.dumps({"scorers": [{"kind": "numeric"}], **made}))  # which is YAML, too
    return str(folder / "sums.yaml")


def test_a_suite_is_asked_scored_kept_and_asked_no_second_time(nightbatch: Call, house: NightHouse, tmp_path: Path) -> None:
    file = suite_file(tmp_path)
    first = nightbatch("run", file, "--model", "smollm2")
    assert first.code == 0
    assert "numeric  0.25  0.1419 to 0.4019 at 95 %  headline" in first.out
    asked = len(house.asked)
    again = nightbatch("run", file, "--model", "smollm2", "--json")
    assert (again.record["repeated"], again.record["score"], len(house.asked)) == (True, 0.25, asked)
    other = nightbatch("run", file, "--model", "smollm2", "--again", "two", "--json")
    assert (other.record["repeated"], len(house.asked)) == (False, 2 * asked)
    assert "2 results" in nightbatch("list").out


def test_a_price_is_told_without_asking_anything(nightbatch: Call, house: NightHouse, tmp_path: Path) -> None:
    before = dict(house.objects.data)
    ended = nightbatch("run", suite_file(tmp_path), "--model", "smollm2", "--dry-run")
    assert ended.code == 0
    assert ended.out.startswith("sums: 40 questions\n")
    assert house.asked == []
    assert {key for key in house.objects.data if "probe" not in key} == set(before)
    record = nightbatch("run", suite_file(tmp_path), "--model", "smollm2", "--dry-run", "--json").record
    assert (record["questions"], record["plan"]["state"]) == (40, "dry-run")


def test_an_evaluation_is_judged_at_once_where_limits_are_given(nightbatch: Call, house: NightHouse, tmp_path: Path) -> None:
    file = suite_file(tmp_path)
    assert nightbatch("run", file, "--model", "smollm2", "--min-score", "0.2").code == 0
    nightbatch("baseline", "set", "main", "sums/latest")
    house.says = lambda text: "no idea"
    ended = nightbatch("run", file, "--model", "smollm2", "--again", "b", "--baseline", "main", "--max-regression", "0.1", "--json")
    assert ended.code == 1
    assert ended.record["gate"]["gate"] == "failed"
    assert "numeric 0 is 0.25 below baseline main (0.25), more than the 0.1 allowed" in ended.record["gate"]["sentence"]
    assert ended.record["counts"] == {"ok": 0, "failed": 0, "cut": 0, "unparsed": 40}


def test_a_baseline_that_nothing_could_be_compared_with_is_refused_before_anything_is_paid(
    nightbatch: Call, house: NightHouse, tmp_path: Path
) -> None:
    nightbatch("run", suite_file(tmp_path), "--model", "smollm2")
    nightbatch("baseline", "set", "main", "sums/latest")
    asked = len(house.asked)
    file = suite_file(tmp_path, prompt="What is {question}?")
    ended = nightbatch("run", file, "--model", "smollm2", "--baseline", "main", "--max-regression", "0.1")
    assert (ended.code, len(house.asked)) == (2, asked)
    assert "baseline main is of this suite as it was before (prompt changed): nothing can be compared" in ended.err
    missing = nightbatch("run", file, "--model", "smollm2", "--baseline", "mian", "--min-score", "0.1")
    assert (missing.code, len(house.asked)) == (2, asked)


def test_a_suite_with_mistakes_names_them_all(nightbatch: Call, house: NightHouse, tmp_path: Path) -> None:
    ended = nightbatch("run", suite_file(tmp_path, limit=0, draws="many"), "--model", "smollm2")
    assert ended.code == 2
    assert "limit" in ended.err
    assert "draws" in ended.err
    assert house.asked == []


def test_an_evaluation_that_is_cut_by_its_deadline_says_how_to_go_on(nightbatch: Call, house: NightHouse, tmp_path: Path) -> None:
    house.cut = True
    ended = nightbatch("run", suite_file(tmp_path), "--model", "smollm2", "--deadline", "1h")
    assert ended.code == 4
    house.cut = False
    assert nightbatch("run", suite_file(tmp_path), "--model", "smollm2").code == 0


def test_without_scipy_it_is_said_what_to_install(nightbatch: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.extras.importlib.util.find_spec", lambda name: None)
    ended = nightbatch("list")
    assert (ended.code, "pip install 'nightbatch[nights]'" in ended.err) == (2, True)
