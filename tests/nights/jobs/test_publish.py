"""The schema and the reference page are the model's, and the examples are jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nights.jobs.files import load_jobs, read_job
from nights.jobs.model import Job
from nights.jobs.publish import PAGE, SCHEMA, page, schema, schema_text
from nights.jobs.reader import read_yaml

CLONE = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((CLONE / "examples/jobs").glob("*.yaml"))


def check(data: Any) -> list[str]:
    """What the schema says against it, down to the last branch of each choice."""
    found: list[str] = []
    stack = list(jsonschema.Draft202012Validator(schema()).iter_errors(data))
    while stack:
        error = stack.pop()
        found.append(error.message)
        stack += error.context or []
    return found


def test_the_schema_in_the_repository_is_the_models() -> None:
    assert (CLONE / SCHEMA).read_text(encoding="utf-8") == schema_text(), "run: make docs"
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_reference_page_is_the_models() -> None:
    text = (CLONE / PAGE).read_text(encoding="utf-8")
    assert text == page(text), "run: make docs"
    for name in Job.model_fields:
        assert f"| `{name}` |" in text


def test_links_of_the_page_lead_somewhere() -> None:
    text = (CLONE / PAGE).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) >= 5
    for link in links:
        assert (CLONE / "docs" / link).exists(), link


def test_the_jobs_of_the_page_can_be_read(tmp_path: Path) -> None:
    text = (CLONE / PAGE).read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n# jobs/(\S+)\n(.*?)```", text, re.S)
    assert blocks
    for name, block in blocks:
        (tmp_path / name).write_text(block)
        job, mistakes = read_job(tmp_path / name)
        assert job is not None, mistakes


def test_every_kind_has_an_example_that_is_a_job_without_mistakes() -> None:
    jobs = load_jobs(CLONE / "examples/jobs")
    assert {one.job.kind for one in jobs} == {"embed", "generate", "eval"}
    for one in jobs:
        assert one.job.description or one.job.schedule
        for name in one.dataset("2026-11-30"):
            assert (CLONE / "examples" / Path(name).name).exists()
        assert one.suite is None or one.suite.exists()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_the_schema_accepts_the_examples_and_the_editor_finds_it(path: Path) -> None:
    assert check(read_yaml(path).data) == []  # by YAML 1.2, as editors do
    first = path.read_text().splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert found is not None
    assert (path.parent / found[1]).resolve() == CLONE / SCHEMA


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"version": 1, "model": "m"}, "'kind' is a required property"),
        ({"version": 1, "kind": "eval", "model": "m"}, "'suite' is a required property"),
        ({"version": 1, "kind": "generate", "model": "m", "dataset": "a"}, "'out' is a required property"),
        ({"version": 1, "kind": "embed", "model": "m", "dataset": "a", "datset": 1}, "Additional properties are not allowed"),
        ({"version": 1, "kind": "embed", "model": "m", "dataset": "a", "deadline": "soon"}, "'soon' "),
        ({"version": 2, "kind": "embed", "model": "m", "dataset": "a"}, "1 was expected"),
        ({"version": 1, "kind": "embed", "model": "m", "dataset": "a", "notify": [{"kind": "slack", "url_env": "a b"}]}, "'a b'"),
    ],
)
def test_the_schema_refuses_what_the_model_refuses(data: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert any(said in message for message in check(data))
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(data))
    assert read_job(path)[0] is None


def test_names_of_a_job_are_those_of_its_file_so_that_the_schema_does_not_ask_for_one() -> None:
    assert "name" not in schema()["required"]
    assert "name" in schema()["properties"]
