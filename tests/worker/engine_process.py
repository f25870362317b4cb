# tests/worker: runs in the worker's own environment: shards through the real handler and real vLLM, over stores in memory.
"""stdin: {"shards": [[{id, url, body}, …], …], "cancel": [rows], "deadly": [rows], "reference": bool}; stdout's last line: what came of it.

All shards run at once. Then `cancel` is cancelled once its first rows are kept, and its first row runs again. `deadly` is to kill
the engine. `reference`: also embed with transformers, mean-pooled.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from typing import Any

import msgspec

from contract.lines import decompress_lines
from contract.memory import MemoryStore
from contract.models import Commit, PartCommit, S3Config, TaskSpec, decode
from worker.engine.base import EngineDied
from worker.engine.launch import launch
from worker.execution import Identity, PiecePolicy
from worker.handler import Worker
from worker.models import resolve
from worker.redact import Redactor
from worker.sample import SampleRow, as_input, sample_job
from worker.settings import Settings


async def main(order: dict[str, Any]) -> dict[str, Any]:
    settings = Settings.from_env(os.environ)
    engine = launch(settings)
    stores: dict[str, MemoryStore] = {}
    left: list[int] = []
    gone = asyncio.Event()

    def leave(code: int) -> None:
        left.append(code)
        gone.set()

    def make_store(keys: S3Config) -> MemoryStore:
        return stores[keys.bucketName]

    worker = Worker(
        settings,
        engine,
        identity=Identity("w"),
        redactor=Redactor(),
        leave=leave,
        make_store=make_store,
        control_s=3600.0,
        pieces=PiecePolicy(seconds=0.0, share=0.01),
    )

    async def run(bucket: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        store = stores.setdefault(bucket, MemoryStore(bucket=bucket))
        made = await sample_job(store, TaskSpec(kind=settings.kind, model=settings.served_name), [SampleRow(**row) for row in rows])
        keys = {"accessId": "key-id", "accessSecret": "key-secret", "bucketName": bucket, "endpointUrl": "memory:"}
        return await worker.handle({"id": bucket, "input": as_input(made), "s3Config": keys})

    started = time.monotonic()
    summaries = await asyncio.gather(*(run(f"shard-{n}", rows) for n, rows in enumerate(order["shards"])))
    found: dict[str, Any] = {
        "summaries": summaries,
        "seconds": time.monotonic() - started,
        "info": {"dtype": engine.info.dtype, "max_model_len": engine.info.max_model_len, "load_s": engine.info.load_s},
        "shards": [results(stores[f"shard-{n}"]) for n in range(len(order["shards"]))],
    }
    if order.get("reference"):
        texts = [row["body"]["input"] for rows in order["shards"] for row in rows]
        found["reference"] = reference(resolve(settings.model), texts)
    if order.get("cancel"):
        kept = asyncio.Event()

        async def note(op: str, key: str) -> None:
            if "/pieces/" in key:
                kept.set()

        stores["cancel"] = MemoryStore(bucket="cancel", after=note)
        task = asyncio.ensure_future(run("cancel", order["cancel"]))
        await asyncio.wait_for(kept.wait(), 120)
        task.cancel()
        await asyncio.wait([task])
        data = stores["cancel"].objects.data
        ends = [msgspec.json.decode(value) for key, value in data.items() if "/ends/" in key]
        found["cancel"] = {
            "cancelled": task.cancelled(),
            "ends": ends,
            "keys": sorted(data),
            "again": await run("again", order["cancel"][:1]),
        }
    if order.get("deadly"):
        answer = await asyncio.ensure_future(run("deadly", order["deadly"]))
        async with asyncio.timeout(30):
            await gone.wait()
        after = None
        try:
            async for _ in engine.submit([]):
                pass
        except EngineDied as error:
            after = str(error)
        keys = sorted(stores["deadly"].objects.data)
        found["death"] = {"answer": answer, "left": left, "keys": keys, "after": after}
    else:
        await asyncio.to_thread(engine.close)
    return found


def results(store: MemoryStore) -> dict[str, Any]:
    """id -> response body, or vector; and the errors."""
    data = store.objects.data
    commit = decode(data["runs/sample/commits/00000.json"], Commit, where="commit")
    assert isinstance(commit, PartCommit)
    answers: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    if commit.part is not None and commit.part.key.endswith(".parquet"):
        import pyarrow.parquet as pq

        table = pq.read_table(io.BytesIO(data[commit.part.key]))
        answers = {str(row["id"]): row["embedding"] for row in table.select(["id", "embedding"]).to_pylist()}
    elif commit.part is not None:
        for line in decompress_lines(data[commit.part.key], where="part"):
            value = msgspec.json.decode(line)
            answers[value["id"]] = value["response"]
    if commit.errors is not None:
        for line in decompress_lines(data[commit.errors.key], where="errors"):
            value = msgspec.json.decode(line)
            errors[value["id"]] = value["error"]
    return {"answers": answers, "errors": errors}


def reference(folder: str, texts: list[str]) -> list[list[float]]:
    """The model's own way: mean of the last hidden states over the tokens, then length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    made = []
    with torch.no_grad():
        for text in texts:
            batch = tokenizer([text], return_tensors="pt", truncation=True, max_length=256)
            hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            made.append(torch.nn.functional.normalize(mean, dim=1)[0].tolist())
    return made


if __name__ == "__main__":
    outcome = asyncio.run(main(json.load(sys.stdin)))
    print("\n" + json.dumps(outcome), flush=True)
    # A dead engine's threads and processes would be waited for in vain.
    os._exit(0)
