"""Job files: what is found, what is wrong with them, all at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from contract.errors import BadFiles, UsageError
from nights.jobs.files import find_job, load_jobs, read_job, read_jobs
from nights.jobs.reader import LARGEST

GOOD = """\
version: 1
kind: embed
dataset: data/reviews.parquet
model: minilm
id_column: id
column: text
space: {name: reviews}
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Put a job file into jobs/ of a project, which is the working folder."""
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path)

    def put(text: str | bytes, name: str = "reviews.yaml") -> Path:
        path = Path("jobs") / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


def wrong(path: Path) -> list[str]:
    """What is said of one file, without its name."""
    job, mistakes = read_job(path)
    assert job is None
    return [str(mistake).removeprefix(f"{path}:") for mistake in mistakes]


# --- what is read --------------------------------------------------------------------------------------------------------------------


def test_a_job_is_called_like_its_file(write: Write) -> None:
    write(GOOD)
    write(GOOD.replace("name: reviews", "name: other"), "other-reviews.yml")
    assert [one.name for one in load_jobs(Path("jobs"))] == ["other-reviews", "reviews"]


def test_what_looks_like_text_is_text(write: Write) -> None:
    """Where YAML 1.1 reads 06:30 as 390, `no` as false, `on` as true and 2026-01-01 as a day."""
    job = find_job(Path("jobs"), str(write(
        "version: 1\nkind: generate\ndataset: [no, 2026-01-01.csv, 06:30]\nmodel: on\nprompt: 'a {b}'\nout: o.jsonl\n"
        "deadline: 06:30\nlimit: 010\nparams: {stop: [y, off], seed: -3, temperature: 1e-1, top_p: .5}\n"
        "notify: [{kind: slack, on: success, url_env: NO}]\n"
    ))).job  # fmt: skip
    assert job.dataset == ("no", "2026-01-01.csv", "06:30")
    assert (job.model, job.deadline, job.limit) == ("on", "06:30", 10)
    assert job.params == {"stop": ["y", "off"], "seed": -3, "temperature": 0.1, "top_p": 0.5}
    assert job.notify[0].on == ("success",)


def test_a_byte_order_mark_and_windows_lines_are_fine(write: Write) -> None:
    assert read_job(write(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()))[0] is not None


def test_hidden_files_and_other_endings_are_no_jobs(write: Write) -> None:
    for name in (".reviews.yaml", "_base.yaml", "README.md", "reviews.yaml.orig"):
        write("nonsense: [", name)
    write(GOOD)
    assert [one.name for one in load_jobs(Path("jobs"))] == ["reviews"]


def test_paths_begin_at_the_folder_that_holds_jobs(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        GOOD.replace("data/reviews.parquet", "['data/{date}/*.parquet', 's3://b/{job}/', /abs.csv]")
        + "out: out/{job}-{date}-{run}.parquet\n"
    )
    path = write(text)
    here = find_job(Path("jobs"), "reviews")
    assert here.dataset("2026-01-02") == ("data/2026-01-02/*.parquet", "s3://b/reviews/", "/abs.csv")
    assert here.out("2026-01-02", "r-1") == "out/reviews-2026-01-02-r-1.parquet"
    monkeypatch.chdir("/")
    there = find_job(tmp_path / "jobs", "reviews")
    assert there.dataset("2026-01-02")[0] == str(tmp_path / "data/2026-01-02/*.parquet")
    assert there.dataset("2026-01-02")[1] == "s3://b/reviews/"
    by_path = find_job(Path("nowhere"), str(tmp_path / path))
    assert by_path == there


def test_a_job_file_outside_of_jobs_has_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "reviews.yaml").write_text(GOOD)
    assert find_job(tmp_path, "reviews").dataset("2026-01-02") == (str(tmp_path / "data/reviews.parquet"),)


def test_a_key_has_a_line(write: Write) -> None:
    write(GOOD)
    job = find_job(Path("jobs"), "reviews")
    assert job.where("space", "name") == "jobs/reviews.yaml:7"
    assert job.where("notify", 3) == "jobs/reviews.yaml:1"


# --- what is wrong -------------------------------------------------------------------------------------------------------------------


def test_every_mistake_of_every_file_is_told_at_once_with_file_line_and_key(write: Write) -> None:
    write(
        "version: 1.0\n"
        "kind: embedd\n"
        "datset: x\n"
        "model: 3\n"
        "limit: yes\n"
        "limit: 5\n"
        "canary: {rows: many, cosine_min: 4}\n"
        "notify:\n"
        "  - kind: email\n"
        "    on: [succes]\n"
        "schedule:\n"
        "  cron: 30 2 * *\n"
        "  timezone: Mars/Olympus\n",
        "a.yaml",
    )
    write("version: 1\nkind: eval\nmodel: m\n", "b.yaml")
    write(GOOD)
    with pytest.raises(BadFiles) as raised:
        load_jobs(Path("jobs"))
    assert raised.value.exit_code == 2
    assert str(raised.value) == "15 mistakes in 2 job files, nothing was begun. docs/jobs.md lists every key."
    assert raised.value.problems == (
        "jobs/a.yaml:1: version: is 1.0; write `version: 1`",
        "jobs/a.yaml:2: kind: is 'embedd'; it must be embed, generate or eval (did you mean embed?)",
        "jobs/a.yaml:3: datset: there is no such key; did you mean `dataset`?",
        "jobs/a.yaml:4: model: is 3, a number (put it in quotes if it is meant as text); it must be text",
        "jobs/a.yaml:5: limit: is 'yes', which is text; it must be a whole number",
        "jobs/a.yaml:6: limit: is there twice, first on line 5; keep one",
        "jobs/a.yaml:7: canary.cosine_min: is 4; it must be at most 1",
        "jobs/a.yaml:7: canary.rows: is 'many', which is text; it must be a whole number",
        "jobs/a.yaml:9: notify[0].from: is missing: the sender's address",
        "jobs/a.yaml:9: notify[0].host: is missing: the SMTP server",
        "jobs/a.yaml:9: notify[0].to: is missing: who gets it: one address or several",
        "jobs/a.yaml:10: notify[0].on[0]: is 'succes'; it must be success, failure, deadline_near, deadline_missed, budget, gate, canary, "
        "asking, not_started or rows_failed (did you mean success?)",
        "jobs/a.yaml:12: schedule.cron: '30 2 * *' has 4 fields; cron has 5: minute, hour, day of month, month, day of week",
        "jobs/a.yaml:13: schedule.timezone: 'Mars/Olympus' is no time zone that this machine knows; write an IANA name such as "
        "Europe/Berlin or UTC",
        "jobs/b.yaml:1: suite: is missing; kind eval needs the path of a suite's file",
    )


def test_what_keys_need_of_each_other_is_told_beside_what_is_wrong_by_itself(write: Write) -> None:
    found = wrong(
        write("version: 1\nkind: embed\nmodel: m\ndataset: [a.csv, -]\nspace: {name: s}\nparams: {dimensions: 4, foo: 1}\nlimit: 0\n")
    )
    assert found == [
        "1: id_column: is missing; a space needs it, because its rows are told apart by it from night to night",
        "4: dataset[1]: is standard input, which a night has not; name a file",
        "6: params.dimensions: belongs to the space, because its rows depend on it; write it as space.dimensions",
        "6: params.foo: `foo` is not a parameter for kind embed. There are: add_special_tokens, dimensions, encoding_format, "
        "truncate_prompt_tokens, truncation_side",
        "7: limit: is 0; it must be at least 1",
    ]


def test_a_key_that_is_wrong_is_not_called_missing_too(write: Write) -> None:
    assert wrong(write(GOOD.replace("id_column: id", "id_column: 7"))) == [
        "5: id_column: is 7, a number (put it in quotes if it is meant as text); it must be text"
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GOOD.replace("name: reviews", "name: Reviews") + "canary: {rows: 3}\n", "7: space.name: is 'Reviews'"),
        (GOOD.replace("space: {name: reviews}", "out: 7"), "7: out: is 7"),
        (GOOD.replace("column: text", "column: 7").replace("reviews}", "reviews, prefix: 'q: '}"), "6: column: is 7"),
        ("version: 1\nkind: eval\nmodel: m\nsuite: s.yaml\nbaseline: A B\ngate: {max_regression: 0.1}\n", "5: baseline: is 'A B'"),
    ],
)
def test_a_key_that_is_wrong_is_not_missed_by_another_one(write: Write, text: str, line: str) -> None:
    (said,) = wrong(write(text))
    assert said.startswith(line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "1: the file is empty"),
        (b"# nothing\n", "1: the file is empty"),
        (b"hello\n", "1: must be a mapping of keys, such as `kind: embed`"),
        (b"- a\n", "1: must be a mapping of keys, such as `kind: embed`"),
        (b"version: 1\n\tkind: embed\n", "2: is indented with a tab; YAML is indented with spaces"),
        (b"version: 1\nspace:\n\t name: s\n", "3: is indented with a tab; YAML is indented with spaces"),
        (b"a: 1\nb: \xff\n", "2: is not UTF-8; save the file in that encoding"),
        ("a: 1\n".encode("utf-16"), "1: is not UTF-8; save the file in that encoding"),
        (b"a: 1\nb: \x07\n", "2: holds a control character, which YAML does not allow"),
        (b"a: &x [1]\n", "1: holds an anchor (&name), which is not supported; put text that begins with & in quotes"),
        (
            b"a: 1\nb: *x\n",
            "2: holds an alias (*name), which is not supported; write the value out, or put text that begins with * in quotes",
        ),
        (b"schedule:\n  cron: * 2 * * *\n", "2: is not YAML (a value begins with * or &); put it in quotes"),
        (
            b"a: !!python/object/apply:os.system [id]\n",
            "1: holds a tag (!name), which is not supported; put text that begins with ! in quotes",
        ),
        (b"a: 1\n---\nb: 2\n", "2: holds a second document (---); one file is one document"),
        (b"a: b: c\n", "1: is not YAML (mapping values are not allowed here); put text that holds a colon and a space in quotes"),
        (b"a: 1\nb\nc: 1\n", "3: is not YAML (could not find expected ':'); a key is followed by a colon and a space"),
        (
            b"a: [x/{date}.csv, b]\n",
            "1: is not YAML (expected ',' or ']', but got '{'); put text that holds a brace, a bracket or a comma in quotes",
        ),
        (b"a: @x\n", "1: is not YAML (found character '@' that cannot start any token); put the text in quotes"),
        (b"[" * 5000, "1: is nested deeper than 30 levels"),
        (b"a: {" * 40, "1: is nested deeper than 30 levels"),
        (b"# " + b"x" * LARGEST, "1: is larger than 256 kB; rows belong into a dataset"),
    ],
)
def test_what_is_not_plain_yaml_is_one_sentence(write: Write, text: bytes, said: str) -> None:
    assert wrong(write(text)) == [said]


def test_an_alias_bomb_costs_nothing(write: Write) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    began = time.process_time()
    assert len(wrong(write("\n".join(lines)))) == 1
    assert time.process_time() - began < 5


def test_numbers_that_nothing_can_hold_are_told(write: Write) -> None:
    found = wrong(write(GOOD + f"budget_usd: 1e999\nlimit: {'9' * 5000}\npace: {'9' * 30}\n"))
    assert found[0] == "8: budget_usd: is a number that is too large to be kept"
    assert found[1] == "9: limit: is a number that is too large to be kept"
    assert found[2] == "10: pace: is 999999999999999999999999999999; it must be at most 10,000"


def test_keys_that_are_no_words_are_told(write: Write) -> None:
    found = wrong(write(GOOD + "1: a\n? [x, y]\n: b\ntrue: c\n"))
    assert [one.split(";")[0] for one in found] == [
        "8: 1: there is no such key", "9: has a key that is not a word", "11: true: there is no such key"
    ]  # fmt: skip


def test_a_pipe_a_folder_and_a_file_that_may_not_be_read_are_told_and_not_waited_for(write: Write, tmp_path: Path) -> None:
    os.mkfifo("jobs/pipe.yaml")
    Path("jobs/folder.yaml").mkdir()
    Path("jobs/gone.yaml").symlink_to(tmp_path / "nowhere")
    _, mistakes = read_jobs(Path("jobs"))
    assert [str(one) for one in mistakes] == [
        "jobs/folder.yaml:1: cannot be read (Is a directory)",
        "jobs/gone.yaml:1: cannot be read (No such file or directory)",
        "jobs/pipe.yaml:1: is not a regular file",
    ]


def test_a_name_that_is_no_job_name_is_told(write: Write) -> None:
    assert wrong(write(GOOD, "My Job.yaml")) == [
        "1: the file's name is the job's, and 'My Job' is none; use up to 40 small letters, digits and hyphens"
    ]
    assert wrong(write(GOOD + "name: other\n")) == [
        "8: name: is 'other', and the file is called reviews.yaml; leave it out, or rename one of them"
    ]


def test_a_secret_in_the_place_of_a_variables_name_is_never_shown(write: Write) -> None:
    secret = "https://hooks.example/services/T0/B0/hunter2"
    found = wrong(write(
        GOOD + f"notify:\n- {{kind: slack, url_env: {secret}}}\n- {{kind: webhook, url: 'ftp://u:hunter2@h'}}\n"
        "- {kind: webhook, url: 'https://h/x?token=hunter2', password: hunter2}\n"
    ))  # fmt: skip
    assert len(found) == 4
    assert "hunter2" not in "".join(found)
    assert (
        found[0]
        == "9: notify[0].url_env: is not one; write the name of an environment variable, such as SLACK_WEBHOOK_URL, never the secret itself"
    )
    assert found[2].startswith("11: notify[2].password: there is no such key; ")


def test_two_files_of_one_job_and_two_jobs_of_one_space_or_output_are_told(write: Write) -> None:
    write(GOOD + "out: out/x.parquet\n")
    write(GOOD.replace("reviews}", "again}"), "reviews.yml")
    write(GOOD, "twin.yaml")
    write(GOOD.replace("reviews}", "third}") + "out: out/x.parquet\n", "zebra.yaml")
    write(GOOD + "stack: prod\n", "elsewhere.yaml")
    jobs, mistakes = read_jobs(Path("jobs"))
    assert len(jobs) == 5
    assert [str(one) for one in mistakes] == [
        "jobs/reviews.yml:1: is the job `reviews`, and so is jobs/reviews.yaml; keep one of them",
        "jobs/twin.yaml:7: space.name: is the space of jobs/reviews.yaml, too; one job writes to a space",
        "jobs/zebra.yaml:8: out: is the output of jobs/reviews.yaml, too; put {job} into it",
    ]


# --- finding one ---------------------------------------------------------------------------------------------------------------------


def test_a_mistake_in_another_file_is_no_reason_not_to_find_a_job(write: Write) -> None:
    write("kind: [", "broken.yaml")
    write(GOOD)
    assert find_job(Path("jobs"), "reviews").name == "reviews"
    with pytest.raises(BadFiles):
        find_job(Path("jobs"), "broken")


def test_a_job_that_is_not_there_is_told_with_those_that_are_near(write: Write) -> None:
    write(GOOD)
    write(GOOD, "answers.yaml")
    with pytest.raises(UsageError, match=r"jobs: there is no job `reveiws`. Did you mean reviews\?"):
        find_job(Path("jobs"), "reveiws")
    with pytest.raises(UsageError, match=r"There are: answers, reviews\."):
        find_job(Path("jobs"), "x")
    with pytest.raises(UsageError, match="there is no such job file"):
        find_job(Path("jobs"), "jobs/x.yaml")


def test_a_folder_without_jobs_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^jobs: there are no job files here \(No such file or directory\)\. Go to the folder"):
        load_jobs(Path("jobs"))
    Path("jobs").mkdir()
    assert load_jobs(Path("jobs")) == ()
    with pytest.raises(UsageError, match="The folder has no job file"):
        find_job(Path("jobs"), "x")


# --- whatever is in a file -----------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["version", "name", "kind", "dataset", "model", "out", "space", "canary", "gate", "suite", "notify", "schedule", "params", "prompt",
     "column", "deadline", "cron", "url_env", "to", "from", "rows", "min_score", "tokens", "truncate", "on", "x", ""]
)  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=5),
    st.sampled_from(["embed", "generate", "eval", "a.csv", "o.jsonl", "6h", "30 2 * * *", "webhook", "email", "success", "{date}", "{x}"]),
)  # fmt: skip
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=25)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.dictionaries(KEYS, TREES, max_size=10))
@example(data={"kind": "embed", "params": {"n": 10**4000, "seed": 10**29}, "limit": 10**4000, "pace": 10**29})
def test_whatever_data_a_file_holds_is_judged_and_every_mistake_is_one_line(data: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    job, mistakes = read_job(path)
    assert (job is None) == bool(mistakes)
    assert all("\n" not in str(mistake) for mistake in mistakes)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.one_of(st.binary(max_size=60), st.text("abc:-[]{}#&*!|>'\"%@`,? \n\t\\~<=01.", max_size=60).map(str.encode)))
def test_whatever_bytes_a_file_holds_are_read_or_refused_in_a_sentence(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(raw)
    job, mistakes = read_job(path)
    assert job is None
    assert mistakes
    assert all("\n" not in str(mistake) for mistake in mistakes)


def test_a_receiver_that_is_wrong_hides_nothing_of_the_next(write: Write) -> None:
    notify = "notify:\n  - {kind: webhook, url: 'ftp://x'}\n  - {kind: webhook}\n  - {kind: email, host: h, from: a@b.c, to: []}\n"
    said = wrong(write(GOOD + notify))
    assert [one.partition(" ")[0] for one in said] == ["9:", "10:", "11:"]
    assert "notify[1]: a webhook needs either `url` or `url_env`" in said[1]
    assert "notify[2].to: names nobody" in said[2]
    assert wrong(write(GOOD + "notify: [nobody]\n"))
