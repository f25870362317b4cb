# tests/nights/evals: the example suites with a real small model: real vLLM on the CPU, the local stack, the command line. The scores are
# low, and equal what is computed here from the runs' own output files in another way, by code that shares nothing with the scorers.
from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from math import comb
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cli.local import with_models
from contract.store import S3Store
from emulator import local
from nights.evals.results import Results
from nights.evals.samples import EvalResult
from tests.e2e.house import CACHE, ROOT, Gate, House, answers, standing

pytestmark = [pytest.mark.engine, pytest.mark.e2e, pytest.mark.timeout(400)]

SUITES = ROOT / "examples" / "suites"
ENVIRONMENT = {"NIGHTBATCH_CACHE": str(CACHE), "OMP_NUM_THREADS": "1"}
LONG_S = 300.0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, worker_python: Path) -> Iterator[House]:
    """The local stack with the one small model that answers questions."""
    home = tmp_path_factory.mktemp("evals")
    made = local.default_config(home / "local", worker_python=worker_python, code=ROOT, worker_env=ENVIRONMENT)
    config = msgspec.structs.replace(with_models(made, ["smollm2"]), lost_after_s=20.0)
    with standing(House(home, config, Gate(home / "gate"))) as found:
        try:
            yield found
        finally:
            found.end_commands()


def smaller(folder: Path, name: str, **changes: Any) -> Path:
    """An example suite over its first questions, with shorter answers."""
    keys = yaml.safe_load((SUITES / f"{name}.yaml").read_text())
    keys["dataset"] = str(SUITES / keys["dataset"])
    for key, value in changes.items():
        keys[key] = {**keys[key], **value} if isinstance(keys.get(key), dict) else value
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


def evaluated(house: House, suite: Path) -> EvalResult:
    """Run `nightbatch eval run`, and read what it kept."""
    said = house.cli("eval", "run", suite, "--model", "smollm2", "--json", timeout_s=LONG_S)
    assert said.code == 0, said.err[-3000:]

    async def read() -> EvalResult:
        store = S3Store(house.stack.secrets.s3)
        try:
            results = Results(store, house.stack.facts.store.prefix.strip("/"))
            named = await results.find("latest", suite=suite.stem)
            assert named.result is not None
            return await results.get(suite.stem, named.result)
        finally:
            await store.close()

    return asyncio.run(read())


def output(house: House, run: str | None, folder: Path) -> dict[str, list[tuple[str, str]]]:
    """id -> texts and finish reasons, from the run's own output, collected again."""
    assert run is not None
    out = folder / f"{run.rpartition('/')[2]}.jsonl"
    house.ok("collect", run, "--out", out)
    assert out.with_name(out.name.replace(".jsonl", ".errors.jsonl")).read_text() == ""
    return {
        line["custom_id"]: [
            (choice["message"]["content"], choice["finish_reason"])
            for choice in sorted(line["response"]["body"]["choices"], key=lambda one: int(one["index"]))
        ]
        for line in answers(out)
    }


def questions(name: str, count: int) -> list[dict[str, Any]]:
    path = SUITES / "data" / name
    text = gzip.decompress(path.read_bytes()).decode() if name.endswith(".gz") else path.read_text()
    return [json.loads(line) for line in text.splitlines()[:count]]


def test_arithmetic_and_its_judge_score_as_an_independent_count_does(house: House, tmp_path: Path) -> None:
    """Graded twice: by the last number, and by the same small model, which is a poor judge: most of its verdicts cannot be read."""
    rows = questions("gsm8k.jsonl", 36)[20:]
    count = len(rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = smaller(
        tmp_path,
        "arithmetic",
        dataset="rows.jsonl",
        prompt="{question}\n\nAnswer in one short sentence.",
        sampling={"max_tokens": 48, "stop": ["\n"]},
        scorers=[{"kind": "numeric"}, {"kind": "model_graded"}],
        judge={"model": "smollm2", "sampling": {"max_tokens": 32}},
    )
    result = evaluated(house, suite)
    said, verdicts = output(house, result.header.run, tmp_path), output(house, result.header.judge_run, tmp_path)
    right = cut = 0
    for row in rows:
        ((text, reason),) = said[row["id"]]
        if reason == "length":
            cut += 1
            continue
        numbers = re.findall(r"\d[\d,]*(?:\.\d+)?", text)
        right += bool(numbers) and float(numbers[-1].replace(",", "")) == float(row["answer"])
    header = result.header
    assert header.metrics["numeric"] == pytest.approx(right / count)
    assert 0 < header.metrics["numeric"] <= 0.5, "a model of 135 million parameters"
    assert cut, "some answers are too long"
    assert header.counts["cut"] == cut
    assert sum(header.counts.values()) == len(result.samples) == count
    assert [sample.answer for sample in result.samples] == [said[row["id"]][0][0] for row in rows]
    # The judge: one row for each answer that came whole, and a verdict that is a line of its own.
    assert set(verdicts) == {f"0:{ident}" for ident, ((text, reason),) in said.items() if reason != "length" and text.strip()}
    grades = {}
    for ident, ((text, reason),) in verdicts.items():
        last = [line.strip(" *_.#>") for line in text.splitlines() if re.fullmatch(r"[\s*_#>]*GRADE[\s*_]*:.*", line, re.IGNORECASE)]
        grades[ident] = None if reason == "length" or not last else {"c": 1, "i": 0}.get(last[-1].partition(":")[2].strip(" *_").lower())
    assert header.metrics["model_graded"] == pytest.approx(sum(grade or 0 for grade in grades.values()) / count)
    told = header.details["judge"]
    assert told["unparsed"] + told["cut"] == sum(grade is None for grade in grades.values())
    assert told["ok"] == sum(grade is not None for grade in grades.values())


def test_multiple_choice_scores_as_an_independent_count_does(house: House, tmp_path: Path) -> None:
    count = 12
    result = evaluated(house, smaller(tmp_path, "truthfulness", limit=count, sampling={"max_tokens": 32}))
    said = output(house, result.header.run, tmp_path)
    right = 0
    for row, sample in zip(questions("truthfulqa.jsonl", count), result.samples, strict=True):
        ((text, reason),) = said[row["id"]]
        letters = "ABCDEFGHIJ"[: len(row["choices"])]
        # Said at its beginning (`B.`, `(B)`, `B`), or after "answer is"; else by the words of one choice alone.
        begins = re.match(rf"[\s*(]*([{letters}])(?:[).:*]|\s*$)", text)
        after = re.findall(rf"answer(?: is|:)[\s*:(]*([{letters}])\b", text, re.IGNORECASE)
        named = [n for n, choice in enumerate(row["choices"]) if choice.lower().strip(" .") in " ".join(text.lower().split())]
        found = after[-1] if after else begins[1] if begins else letters[named[0]] if len(named) == 1 else None
        scored = reason != "length" and found == letters[row["answer"]]
        assert sample.scores["choice"] == scored, (text, found, row)
        right += scored
    assert result.header.metrics["choice"] == pytest.approx(right / count)
    assert 0 < result.header.metrics["choice"] <= 0.75
    assert result.header.binary


def test_code_scores_as_an_independent_execution_does(house: House, tmp_path: Path) -> None:
    """pass@1 and pass@2 of two draws, against a plain interpreter for each program and the estimate written out. Functions that add two
    numbers or count letters are within the model's reach."""
    rows = [
        row
        for row in questions("humaneval.jsonl.gz", 164)
        if row["task_id"] in ("HumanEval/2", "HumanEval/23", "HumanEval/53", "HumanEval/28")
    ]
    count = len(rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = yaml.safe_load((SUITES / "code.yaml").read_text())["scorers"][0]
    suite = smaller(tmp_path, "code", dataset="rows.jsonl", draws=2, sampling={"max_tokens": 100}, scorers=[{**code, "k": [1, 2]}])
    result = evaluated(house, suite)
    said = output(house, result.header.run, tmp_path)
    passed: list[list[bool]] = []
    for row in rows:
        draws = []
        for text, reason in said[row["task_id"]]:
            blocks = text.split("```")
            taken = (
                re.sub(r"\A(python)?\n", "", blocks[-2] if len(blocks) > 2 and len(blocks) % 2 else blocks[1]) if len(blocks) > 1 else text
            )
            program = f"{row['prompt']}\n    pass\n{taken}\n{row['test']}\ncheck({row['entry_point']})\nprint('through')\n"
            done = None
            if reason != "length":
                command = [sys.executable, "-I", "-c", program]
                try:
                    done = subprocess.run(command, capture_output=True, env={}, cwd=tmp_path, timeout=10, stdin=subprocess.DEVNULL)
                except subprocess.TimeoutExpired:
                    done = None
            draws.append(done is not None and done.returncode == 0 and done.stdout.endswith(b"through\n"))
        passed.append(draws)
    header = result.header
    assert [sample.scores["pass@1"] for sample in result.samples] == [float(one) for draws in passed for one in draws]
    for k in (1, 2):
        expected = sum(1 - comb(2 - sum(draws), k) / comb(2, k) for draws in passed) / count
        assert header.metrics[f"pass@{k}"] == pytest.approx(expected)
    assert 0 < header.metrics["pass@1"] < 1
    assert len(result.samples) == 2 * count
    assert header.counts["cut"] == sum(reason == "length" for draws in said.values() for _, reason in draws)
