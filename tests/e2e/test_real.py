"""The main job with nothing replaced: the command line as a subprocess, the local stack, the unmodified runpod SDK in the workers, real
vLLM on the CPU, a real S3 server; and kill -9 of each of them in the middle of a run."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from cli.local import with_models
from emulator import local
from tests.e2e.house import (
    CACHE,
    ROOT,
    Gate,
    House,
    RunObjects,
    Started,
    answers,
    eventually,
    ids,
    leaks_in_files,
    leaks_in_objects,
    leaks_in_processes,
    standing,
)
from tests.emulator.kit import processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

TEXTS = ROOT / "examples" / "texts.jsonl"
QUESTIONS = ROOT / "examples" / "questions.csv"
PROMPT = "Answer briefly: {question}"
ENVIRONMENT = {"NIGHTBATCH_CACHE": str(CACHE), "OMP_NUM_THREADS": "1"}
"""Of workers. One thread: an engine that shares its cores with the rest of the house must not spin for a second one."""
LONG_S = 240.0
"""An engine starts in 10 to 20 s on two free cores, and in a minute where they are shared."""
KEYS = {
    "run", "state", "rows", "ok", "failed", "shards", "attempts", "out", "errors", "seconds", "worker_seconds", "usd_planned",
    "usd_estimated",
}  # fmt: skip
"""Of the object that --json prints, as documented."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, worker_python: Path) -> Iterator[House]:
    """What `nightbatch local up --model tiny` starts, but that it sooner notices a worker that is lost."""
    home = tmp_path_factory.mktemp("real")
    made = local.default_config(home / "local", worker_python=worker_python, code=ROOT, worker_env=ENVIRONMENT)
    config = msgspec.structs.replace(with_models(made, ["tiny"]), lost_after_s=6.0, ping_interval_ms=1000)
    with standing(House(home, config, Gate(home / "gate"))) as house:
        yield house


@pytest.fixture
def house(real: House) -> Iterator[House]:
    real.seen = real.runs()
    try:
        yield real
    finally:
        real.end_commands()


def texts(count: int) -> list[dict[str, str]]:
    return [json.loads(line) for line in TEXTS.read_text().splitlines()[:count]]


def embed(rows: Path, out: Path, *more: str) -> tuple[str | Path, ...]:
    return ("run", rows, "--task", "embed", "--model", "minilm", "--column", "text", "--id-column", "id", "--out", out, *more)


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True)) / math.sqrt(sum(a * a for a in left) * sum(b * b for b in right))


MEAN_POOLING = """
import json, sys, torch
from transformers import AutoModel, AutoTokenizer
from worker.models import resolve
folder = resolve("minilm")
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
with torch.no_grad():
    for text in json.load(sys.stdin):
        batch = tokenizer([text], return_tensors="pt")
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
        print(json.dumps(((hidden * mask).sum(1) / mask.sum(1))[0].tolist()))
"""


def test_embeddings_come_back_in_order_with_their_columns_and_are_the_models_own(house: House, worker_python: Path, tmp_path: Path) -> None:
    out, given = tmp_path / "texts.parquet", texts(300)
    said = house.cli(*embed(TEXTS, out, "--limit", "300", "--json"), timeout_s=LONG_S)
    assert said.code == 0, said.err
    record = said.record
    assert record.keys() >= KEYS
    assert (record["state"], record["rows"], record["ok"], record["failed"]) == ("complete", 300, 300, 0)
    assert record["verified"] is True
    assert record["usd_estimated"] > 0
    assert 0 < record["worker_seconds"] <= record["seconds"] + 1
    assert record["whole"]["rows"] == 2400, "a trial prices the rest"
    assert said.out.count("\n") == 1, "one JSON object alone on stdout"
    assert "computing: " in said.err
    assert "\x1b" not in said.err, "plain lines in a pipe"
    table = pq.read_table(out)
    assert table["id"].to_pylist() == [row["id"] for row in given]
    assert table["text"].to_pylist() == [row["text"] for row in given]
    assert table["word"].to_pylist() == [row["word"] for row in given]
    assert str(table.schema.field("embedding").type).startswith("fixed_size_list<")
    assert table.schema.field("embedding").type.list_size == 384
    assert Path(record["errors"]).read_bytes() == b""
    chosen = range(0, 300, 43)
    asked = json.dumps([given[n]["text"] for n in chosen])
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NIGHTBATCH_CACHE": str(CACHE)}
    done = subprocess.run([worker_python, "-c", MEAN_POOLING], input=asked, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    vectors: list[Any] = table["embedding"].to_pylist()
    for n, expected in zip(chosen, map(json.loads, done.stdout.splitlines()), strict=True):
        assert cosine(vectors[n], expected) >= 0.9999
    assert house.cli("verify", record["run"], "--out", out, "--inputs").code == 0


def test_answers_equal_run_batch_row_by_row(house: House, worker_python: Path, tmp_path: Path) -> None:
    """Greedy, float32, the same model: 32 questions through the whole pipeline and through `vllm run-batch`."""
    out, count = tmp_path / "answers.jsonl", 32
    record = house.ok(
        "run", QUESTIONS, "--task", "generate", "--model", "smollm2", "--prompt", PROMPT, "--id-column", "id", "--max-tokens", "16",
        "--temperature", "0", "--limit", str(count), "--out", out, timeout_s=LONG_S,
    )  # fmt: skip
    assert (record["ok"], record["failed"], record["verified"]) == (count, 0, True)
    with QUESTIONS.open(newline="") as file:
        asked = list(csv.DictReader(file))[:count]
    assert ids(out) == [row["id"] for row in asked]
    with (tmp_path / "batch.jsonl").open("w") as file:
        for row in asked:
            body = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": PROMPT.format(question=row["question"])}],
                "max_tokens": 16,
                "temperature": 0,
            }
            file.write(json.dumps({"custom_id": row["id"], "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    theirs = run_batch(worker_python, tmp_path / "batch.jsonl", tmp_path / "theirs.jsonl")
    for mine, row in zip(answers(out), asked, strict=True):
        left, right = mine["response"]["body"], theirs[row["id"]]
        assert left["choices"][0]["message"]["content"] == right["choices"][0]["message"]["content"], row["id"]
        assert left["choices"][0]["finish_reason"] == right["choices"][0]["finish_reason"]
        assert left["usage"] == {name: right["usage"][name] for name in left["usage"]}
        assert left["choices"][0]["message"]["content"].strip()


def run_batch(python: Path, rows: Path, out: Path) -> dict[str, dict[str, Any]]:
    """custom_id -> response body of `vllm run-batch`."""
    env = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CACHE_ROOT": str(CACHE / "vllm"), "PYTHONPATH": "",
    }  # fmt: skip
    command = [
        str(python), "-m", "vllm.entrypoints.openai.run_batch", "-i", str(rows), "-o", str(out), "--model", str(CACHE / "models/smollm2-1"),
        "--served-model-name", "smollm2", "--enforce-eager", "--dtype", "float32", "--no-enable-chunked-prefill",
        "--gpu-memory-utilization", "0.3", "--max-model-len", "1024",
    ]  # fmt: skip
    done = subprocess.run(command, env=env, cwd=rows.parent, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr[-3000:]
    found = answers(out)
    assert all(line["error"] is None for line in found)
    return {line["custom_id"]: line["response"]["body"] for line in found}


def test_bad_rows_fail_alone_with_their_reasons(house: House, tmp_path: Path) -> None:
    """What only the worker can tell: a row too long for the model, and fields that take a closer look. Others are found before sending."""

    def line(ident: str, content: str, **body: Any) -> str:
        made = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **body}
        return json.dumps({"custom_id": ident, "method": "POST", "url": "/v1/chat/completions", "body": made})

    rows, out = tmp_path / "mixed.jsonl", tmp_path / "mixed-out.jsonl"
    good = [f"good-{n}" for n in range(36)]
    lines = [line(ident, f"Say hello number {n}") for n, ident in enumerate(good)]
    lines[5:5] = [line("long", "word " * 4000)]
    lines[12:12] = [line("stop", "Stop where?", stop=5)]
    lines[20:20] = [line("xml", "In XML", response_format={"type": "xml"})]
    lines[30:30] = [line("bias", "Too much", logit_bias={"5": 200})]
    rows.write_text("\n".join(lines) + "\n")
    said = house.cli("run", rows, "--task", "generate", "--model", "tiny", "--out", out, "--json", timeout_s=LONG_S)
    assert said.code == 1, said.err
    record = said.record
    assert (record["state"], record["ok"], record["failed"], record["verified"]) == ("complete", 36, 4, True)
    assert ids(out) == good
    errors = {error["custom_id"]: error["error"] for error in answers(Path(record["errors"]))}
    assert list(errors) == ["long", "stop", "xml", "bias"], "in input order"
    assert {ident: error["code"] for ident, error in errors.items()} == {
        "long": "context_length_exceeded", "stop": "wrong_type", "xml": "unsupported_field", "bias": "invalid_parameter",
    }  # fmt: skip
    for ident, param in (("stop", "stop"), ("xml", "response_format"), ("bias", "logit_bias")):
        assert errors[ident]["param"] == param
        assert f"`{param}" in errors[ident]["message"]
    assert "nightbatch: 4 of 40 rows failed" in said.err


# --- kill -9 in the middle of a real run ----------------------------------------------------------------------------------------------


def begin(house: House, out: Path, name: str) -> tuple[Started, str]:
    """Embedding all texts, killed by nobody yet, with two shards committed and more to come."""
    started = house.start(*embed(TEXTS, out, "--name", name, "--json"))
    run = house.new_run()
    eventually(lambda: len(house.committed(run)) >= 2, f"two shards are committed; {started.err}", LONG_S)
    return started, run


def check(house: House, run: str, out: Path, done: set[str], record: dict[str, Any]) -> None:
    """All rows once and in order; what was done before is not computed again."""
    assert (record["state"], record["ok"], record["verified"]) == ("complete", 2400, True)
    assert pq.read_table(out)["id"].to_pylist() == [row["id"] for row in texts(2400)]
    found = RunObjects.of(house, run)
    assert len(found.committed) == record["shards"] > len(done)
    assert all(found.executions[shard] == 1 for shard in done)
    assert all(outcomes.count("won") == 1 for outcomes in found.outcomes().values())
    again = sum(found.executions.values()) - len(found.committed)
    assert again <= 2, "at most the two shards in flight are computed again"


def test_a_client_killed_in_the_middle_is_resumed_from_another_machine(house: House, tmp_path: Path) -> None:
    out = tmp_path / "client.parquet"
    started, run = begin(house, out, "client")
    started.kill()
    done = house.committed(run)
    assert not out.exists()
    record = house.ok("resume", run, "--out", out, env=house.elsewhere(tmp_path / "elsewhere"), timeout_s=LONG_S)
    check(house, run, out, done, record)
    assert record["attempts"] == record["executions"] == record["shards"], "the jobs that were out finished without their client"


def test_a_worker_killed_in_the_middle_is_replaced(house: House, tmp_path: Path) -> None:
    out = tmp_path / "worker.parquet"
    started, run = begin(house, out, "worker")
    done = house.committed(run)
    for pid in house.worker_pids():
        os.kill(pid, signal.SIGKILL)
    said = started.said(LONG_S)
    assert said.code == 0, said.err
    check(house, run, out, done, said.record)


def test_an_emulator_killed_in_the_middle_comes_back_and_the_run_goes_on(house: House, tmp_path: Path) -> None:
    out = tmp_path / "emulator.parquet"
    started, run = begin(house, out, "emulator")
    done = house.committed(run)
    house.kill()
    eventually(lambda: not processes_of(house.state), "its workers and its S3 server have ended with it", 20)
    house.up()
    said = started.said(LONG_S)
    assert said.code == 0, said.err
    check(house, run, out, done, said.record)


def test_no_secret_is_in_what_real_workers_and_runs_leave_behind(house: House, tmp_path: Path) -> None:
    record = house.ok(*embed(TEXTS, tmp_path / "few.parquet", "--limit", "20"), timeout_s=LONG_S)
    assert record["verified"] is True
    identity = json.loads((house.state / "identity.json").read_text())
    secrets = {*house.stack.secrets.values, identity["worker_key"]}
    assert len(secrets) == 6
    assert leaks_in_processes(secrets) == []
    assert leaks_in_objects(house, secrets) == []
    assert leaks_in_files(tmp_path, secrets) == []
    assert list((house.state / "logs" / "minilm").glob("*.log"))
    assert leaks_in_files(house.home, secrets) == []
