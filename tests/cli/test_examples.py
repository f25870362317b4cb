"""The example rows: real, licensed, as their provenance says, and small."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_every_data_file_is_the_one_whose_provenance_is_written_down() -> None:
    table = dict(re.findall(r"\| `([^`]+)` \|[^|]*\| `([0-9a-f]{64})` \|", (EXAMPLES / "PROVENANCE.md").read_text()))
    data = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".jsonl", ".csv", ".parquet"}}
    assert set(table) == data
    for name, digest in table.items():
        assert hashlib.sha256((EXAMPLES / name).read_bytes()).hexdigest() == digest


def test_every_licence_that_the_provenance_names_is_there() -> None:
    named = set(re.findall(r"`(LICENSE-[^`]+)`", (EXAMPLES / "PROVENANCE.md").read_text()))
    assert len(named) == 3
    for name in named:
        assert len((EXAMPLES / name).read_text()) > 1000


def test_there_are_enough_short_and_different_rows() -> None:
    texts = [json.loads(line) for line in (EXAMPLES / "texts.jsonl").read_text().splitlines()]
    assert len(texts) >= 2000
    assert len({row["id"] for row in texts}) == len({row["text"] for row in texts}) == len(texts)
    assert max(len(row["text"]) for row in texts) <= 200
    with (EXAMPLES / "questions.csv").open(newline="") as file:
        questions = list(csv.DictReader(file))
    assert len(questions) >= 200
    assert len({row["id"] for row in questions}) == len({row["question"] for row in questions}) == len(questions)
    assert max(len(row["question"]) for row in questions) <= 140


def test_the_folder_stays_small() -> None:
    assert sum(path.stat().st_size for path in EXAMPLES.iterdir() if path.is_file()) < 1_000_000
