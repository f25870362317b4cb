"""benchmarks: the rows that are measured, made from examples/ by position alone: the same rows on every machine and in every run.

Touches: reads examples/. Real text only (examples/PROVENANCE.md): prompts of very different lengths come from joining definitions.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
MAX_TOKENS: Final = (8, 16, 24, 32, 48)
"""New tokens that rows may have, in turn: lengths are mixed as in real work, and short answers leave the batch before long ones."""
JOINED: Final = (1, 2, 3, 5)
"""Definitions in one prompt, in turn: about 45 to 200 tokens with SmolLM2's tokenizer."""


def definitions() -> list[str]:
    """2,400 definitions of 60 to 200 characters (WordNet)."""
    with (EXAMPLES / "texts.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def questions() -> list[str]:
    """248 questions (FAQs of Python, SQLite and Perl)."""
    with (EXAMPLES / "questions.csv").open(encoding="utf-8", newline="") as file:
        return [row["question"] for row in csv.DictReader(file)]


def chat_rows(count: int, model: str) -> list[dict[str, Any]]:
    """`count` chat rows as OpenAI batch lines, greedy: a question, then a prompt of 1, 2, 3 or 5 definitions, and so on."""
    asked, defined = questions(), definitions()
    rows = []
    for number in range(count):
        if number % 2 == 0:
            prompt = f"Answer briefly: {asked[number // 2 % len(asked)]}"
        else:
            some = JOINED[number // 2 % len(JOINED)]
            texts = [defined[(number * 17 + step) % len(defined)] for step in range(some)]
            prompt = "Which words are defined here?\n" + "\n".join(f"- {text}" for text in texts)
        rows.append(_line(number, "/v1/chat/completions", {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": MAX_TOKENS[number % len(MAX_TOKENS)],
            "temperature": 0,
        }))  # fmt: skip
    return rows


def short_rows(count: int, model: str) -> list[dict[str, Any]]:
    """`count` completion rows for the tiny random Llama, whose tokens are single characters: the first 80 of a definition, no stop."""
    defined = definitions()
    return [
        _line(number, "/v1/completions", {
            "model": model,
            "prompt": defined[number % len(defined)][:80],
            "max_tokens": MAX_TOKENS[number % len(MAX_TOKENS)],
            "temperature": 0,
        })
        for number in range(count)
    ]  # fmt: skip


def embed_rows(count: int, model: str) -> list[dict[str, Any]]:
    """`count` embedding rows: one definition each, at most 64 tokens with MiniLM's tokenizer (checked by tests/benchmarks)."""
    defined = definitions()
    return [_line(number, "/v1/embeddings", {"model": model, "input": defined[number % len(defined)]}) for number in range(count)]


def _line(number: int, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": f"row-{number:05d}", "method": "POST", "url": url, "body": body}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write OpenAI batch lines."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path
