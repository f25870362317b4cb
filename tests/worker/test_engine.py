# tests/worker: real vLLM on CPU, in the worker's environment, with the engine in the worker's process (mode 0) and in its own (mode 1).
from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contract.rows import ChatUrl, CompletionUrl, EmbeddingUrl
from worker.handler import ENGINE_DEAD

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def row(ident: str, url: str, **body: Any) -> dict[str, Any]:
    return {"id": ident, "url": url, "body": {"model": "tiny", "temperature": 0.0, **body} if url != EmbeddingUrl else body}


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


CHAT = [
    *(row(f"chat-{n}", ChatUrl, messages=chat(f"What is {n} plus {n}? " * (1 + n % 5)), max_tokens=8 + n) for n in range(24)),
    row("system", ChatUrl, messages=[{"role": "system", "content": "be brief"}, *chat("hi")], max_completion_tokens=7),
    row("parts", ChatUrl, messages=[{"role": "user", "content": [{"type": "text", "text": t} for t in ("one", "two")]}], max_tokens=5),
    row("logprobs", ChatUrl, messages=chat("logs"), max_tokens=4, logprobs=True, top_logprobs=3),
    row("stop", ChatUrl, messages=chat("stop here"), max_tokens=40, stop=["e", "a", "o"]),
    row("stop-kept", ChatUrl, messages=chat("stop here"), max_tokens=40, stop=["e", "a", "o"], include_stop_str_in_output=True),
    row("bias", ChatUrl, messages=chat("bias"), max_tokens=3, logit_bias={"40": 100}),
    row("penalty", ChatUrl, messages=chat("again"), max_tokens=12, frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.2),
    row("ignore-eos", ChatUrl, messages=chat("go on"), max_tokens=9, ignore_eos=True, min_tokens=9),
    row("cut", ChatUrl, messages=chat("word " * 300), max_tokens=5, truncate_prompt_tokens=50),
    row("carry-on", ChatUrl, messages=[*chat("hi"), {"role": "assistant", "content": "Well"}], max_tokens=6, add_generation_prompt=False),
    row("allowed", ChatUrl, messages=chat("few"), max_tokens=6, allowed_token_ids=[40, 41, 42], bad_words=["!"]),
]
TEXT = [
    *(row(f"text-{n}", CompletionUrl, prompt=f"The quick brown fox number {n} " * (1 + n % 7), max_tokens=6 + n) for n in range(8)),
    row("default-limit", CompletionUrl, prompt="hello world", ignore_eos=True),
    row("text-logprobs", CompletionUrl, prompt="logs", max_tokens=4, logprobs=2, ignore_eos=True),
    row("tokens", CompletionUrl, prompt=[40, 41, 42], max_tokens=3, ignore_eos=True),
]
BAD = {
    "too-long": (row("too-long", CompletionUrl, prompt="a " * 5000), "context_length_exceeded"),
    "too-long-chat": (row("too-long-chat", ChatUrl, messages=chat("many words " * 400)), "context_length_exceeded"),
    "empty": (row("empty", CompletionUrl, prompt=""), "empty_prompt"),
    "oov": (row("oov", CompletionUrl, prompt=[1, 10**6]), "invalid_parameter"),
    "n-greedy": (row("n-greedy", CompletionUrl, prompt="x", n=2), "invalid_parameter"),
    "schema": (
        row("schema", ChatUrl, messages=chat("x"), structured_outputs={"regex": "(unclosed"}),
        "invalid_parameter",
    ),
    "tools": (row("tools", ChatUrl, messages=chat("x"), tools=[{"type": "function", "function": {"name": "f"}}]), "unsupported_field"),
}  # fmt: skip
SAMPLED = [
    row("n-3", CompletionUrl, prompt="three ways", temperature=1.0, n=3, seed=7, max_tokens=5),
    row("seeded-a", CompletionUrl, prompt="seed", temperature=1.0, seed=11, max_tokens=8),
    row("seeded-b", CompletionUrl, prompt="seed", temperature=1.0, seed=11, max_tokens=8),
    row("choice", CompletionUrl, prompt="yes or no?", structured_outputs={"choice": ["yes", "no"]}, max_tokens=8),
    row(
        "json-cut",
        ChatUrl,
        messages=chat("x"),
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        max_tokens=2,
    ),
]
CANCELLED = [
    *(row(f"soon-{n}", CompletionUrl, prompt=f"soon {n}", max_tokens=1) for n in range(8)),
    *(row(f"late-{n}", CompletionUrl, prompt=f"late {n}", max_tokens=480, ignore_eos=True) for n in range(8)),
]
DEADLY = [
    *(row(f"short-{n}", CompletionUrl, prompt=f"short {n}", max_tokens=1) for n in range(6)),
    row("long", CompletionUrl, prompt="long", max_tokens=64, ignore_eos=True),
    row("killer", CompletionUrl, prompt="kill", seed=666, temperature=1.0, max_tokens=64, ignore_eos=True),
]


def environment(mode: int, model: str, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "NIGHTBATCH_MODEL": model,
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(mode),
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
        **more,
    }


def in_worker(python: Path, repo: Path, order: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [str(python), "-m", "tests.worker.engine_process"],
        input=json.dumps(order),
        cwd=repo,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.fixture(scope="session")
def run_batch(worker_python: Path, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """id -> response body of `vllm run-batch` for the chat rows: it knows no /v1/completions."""
    folder = tmp_path_factory.mktemp("run-batch")
    lines = [json.dumps({"custom_id": r["id"], "method": "POST", "url": r["url"], "body": r["body"]}) for r in CHAT]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    resolved = subprocess.run(
        [str(worker_python), "-m", "worker.models", "resolve", "tiny"], cwd=repo, capture_output=True, text=True, timeout=300
    )
    env = environment(1, "tiny", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1")
    command = [
        str(worker_python),
        "-m",
        "vllm.entrypoints.openai.run_batch",
        "-i",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        resolved.stdout.strip(),
    ]
    command += ["--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32", "--no-enable-chunked-prefill"]
    command += ["--gpu-memory-utilization", "0.3", "--max-model-len", "512"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [line["error"] for line in found] == [None] * len(CHAT), [line for line in found if line["error"]]
    return {line["custom_id"]: line["response"]["body"] for line in found}


@pytest.fixture(scope="session", params=[0, 1], ids=["in-process", "own-process"])
def ours(request: pytest.FixtureRequest, worker_python: Path, repo: Path) -> dict[str, Any]:
    """Two shards at once, and then one that kills the engine."""
    everything = [*CHAT, *TEXT, *(bad for bad, _ in BAD.values()), *SAMPLED]
    order = {"shards": [everything[::2], everything[1::2]], "cancel": CANCELLED, "deadly": DEADLY}
    killer = json.dumps({"logits_processors": ["tests.worker.killer:Killer"], "max_model_len": 512})
    return in_worker(worker_python, repo, order, environment(request.param, "tiny", VLLM_EXTRA=killer))


def merged(found: dict[str, Any], name: str) -> dict[str, Any]:
    return {ident: value for shard in found["shards"] for ident, value in shard[name].items()}


def same_numbers(left: Any, right: Any) -> bool:
    """Equal, but for the last digits of numbers."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_numbers(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same_numbers, left, right))
    return bool(left == right)


def test_results_equal_run_batch_row_by_row(ours: dict[str, Any], run_batch: dict[str, Any]) -> None:
    answers = merged(ours, "answers")
    assert ours["info"]["dtype"] == "float32"
    for ident, theirs in run_batch.items():
        mine = answers[ident]
        assert (mine["object"], mine["model"], mine["usage"]) == (
            theirs["object"], theirs["model"], {name: theirs["usage"][name] for name in mine["usage"]},
        ), ident  # fmt: skip
        for left, right in zip(mine["choices"], theirs["choices"], strict=True):
            assert (left["index"], left["finish_reason"], left["stop_reason"]) == (
                right["index"],
                right["finish_reason"],
                right["stop_reason"],
            ), ident
            text = left["message"]["content"] if "message" in left else left["text"]
            assert text == (right["message"]["content"] if "message" in right else right["text"]), ident
            assert same_numbers(left["logprobs"], right["logprobs"]), (ident, left["logprobs"], right["logprobs"])


def test_every_bad_row_fails_alone_with_its_code(ours: dict[str, Any]) -> None:
    errors, answers = merged(ours, "errors"), merged(ours, "answers")
    expected = {ident: code for ident, (_, code) in BAD.items()} | {"json-cut": "schema_incomplete"}
    assert {ident: error["code"] for ident, error in errors.items()} == expected
    assert len(answers) == len(CHAT) + len(TEXT) + len(SAMPLED) - 1
    assert all(error["message"] and len(error["message"]) < 700 for error in errors.values())


def test_sampling_fields_do_what_they_say(ours: dict[str, Any]) -> None:
    answers = merged(ours, "answers")
    assert len(answers["n-3"]["choices"]) == 3
    assert len({choice["text"] for choice in answers["n-3"]["choices"]}) > 1
    assert answers["seeded-a"]["choices"][0]["text"] == answers["seeded-b"]["choices"][0]["text"]
    assert answers["choice"]["choices"][0]["text"] in ("yes", "no")


def test_completions_answer_with_openais_defaults(ours: dict[str, Any]) -> None:
    answers = merged(ours, "answers")
    assert answers["default-limit"]["usage"]["completion_tokens"] == 16
    assert answers["tokens"]["usage"] == {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}
    logprobs = answers["text-logprobs"]["choices"][0]["logprobs"]
    assert [len(logprobs[name]) for name in ("tokens", "token_logprobs", "text_offset")] == [4, 4, 4]
    assert all(max(top.values()) == chosen for top, chosen in zip(logprobs["top_logprobs"], logprobs["token_logprobs"], strict=True))


def test_the_summary_counts_what_was_computed(ours: dict[str, Any]) -> None:
    for summary in ours["summaries"]:
        assert summary["outcome"] == "won"
        assert summary["peak_rss_bytes"] > 100 << 20
    assert sum(s["ok"] + s["failed"] for s in ours["summaries"]) == len(CHAT) + len(TEXT) + len(BAD) + len(SAMPLED)
    counted = sum(answer["usage"]["completion_tokens"] for answer in merged(ours, "answers").values())
    assert 0 <= sum(s["tokens_out"] for s in ours["summaries"]) - counted <= 2, "the cut-off row's tokens were computed, too"


def test_a_dying_engine_keeps_finished_rows_and_ends_the_process(ours: dict[str, Any]) -> None:
    death = ours["death"]
    assert "died" in death["answer"]["error"]
    assert death["left"] == [ENGINE_DEAD]
    kinds = [key.split("/")[2] for key in death["keys"]]
    assert (kinds.count("ends"), kinds.count("commits")) == (1, 0)
    assert kinds.count("pieces") >= 1
    assert "died" in death["after"], "whoever comes later is told so, and does not hang"


def test_a_cancelled_shard_leaves_the_engine_between_steps_and_the_next_one_runs(ours: dict[str, Any]) -> None:
    cancelled = ours["cancel"]
    assert cancelled["cancelled"] is True
    assert [(end["outcome"], 8 <= end["ok"] < 16) for end in cancelled["ends"]] == [("partial", True)]
    assert not any("/commits/" in key or "/parts/" in key for key in cancelled["keys"])
    assert cancelled["again"]["outcome"] == "won"


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True)) / math.sqrt(sum(a * a for a in left) * sum(b * b for b in right))


def test_vectors_are_the_models_own_mean_pooling(worker_python: Path, repo: Path) -> None:
    texts = [f"Sentence number {n} speaks of {word}. " * (1 + n % 9) for n, word in enumerate(["rivers", "trains", "bread", "logic"] * 16)]
    rows = [row(f"row-{n}", EmbeddingUrl, input=text) for n, text in enumerate(texts)]
    found = in_worker(worker_python, repo, {"shards": [rows], "reference": True}, environment(0, "minilm"))
    answers = merged(found, "answers")
    assert len(answers) == len(texts)
    for n, expected in enumerate(found["reference"]):
        assert cosine(answers[f"row-{n}"], expected) >= 0.9999


def test_the_image_check_passes_in_the_workers_environment(worker_python: Path, repo: Path) -> None:
    done = subprocess.run([str(worker_python), "-m", "worker", "--check"], cwd=repo, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all is well"), done.stdout + done.stderr
    assert "FAIL" not in done.stdout
