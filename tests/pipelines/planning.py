# tests/pipelines: what the planning tests share: a stack over a store in memory, and small datasets.
from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from contract.errors import BadRow, DatasetError
from contract.facts import EndpointFacts, Stack, StackFacts, StackSecrets, StoreFacts
from contract.lines import decompress_lines
from contract.memory import MemoryStore, Objects
from contract.models import Plan, RowOptions, S3Config, StoreMode, TaskKind
from contract.rows import InputDigest, row_digest
from pipelines.dataset import Reader, find_files, open_reader
from pipelines.dataset.reader import Row
from pipelines.dataset.rows import RowProblem
from pipelines.plan import PlannedRun, PlanRequest, plan_run

EMBED = EndpointFacts(
    name="minilm",
    id="ep-embed",
    model="all-minilm-l6-v2",
    tasks=("embed",),
    gpu="NVIDIA RTX A5000",
    usd_per_second=0.00019,
    workers_max=3,
)
GENERATE = EndpointFacts(
    name="smollm2",
    id="ep-generate",
    model="SmolLM2-135M-Instruct",
    tasks=("generate",),
    gpu="NVIDIA RTX A5000",
    usd_per_second=0.00019,
    workers_max=3,
)


def stack_of(*endpoints: EndpointFacts, bucket: str = "memory", prefix: str = "") -> Stack:
    keys = S3Config(accessId="AKIATESTKEYID", accessSecret="a-secret-to-search-for", bucketName=bucket, endpointUrl="http://127.0.0.1:1")
    facts = StackFacts(
        stack="test",
        store=StoreFacts(bucket=bucket, endpoint_url="http://127.0.0.1:1", prefix=prefix),
        endpoints=endpoints or (EMBED, GENERATE),
    )
    return Stack(facts, StackSecrets("rpa_key-to-search-for", keys, keys))


@dataclass
class House:
    """A stack and its bucket, in memory; `buckets` are others that a dataset may lie in."""

    objects: Objects = field(default_factory=Objects)
    dialect: StoreMode = "conditional"
    stack: Stack = field(default_factory=stack_of)
    buckets: dict[str, Objects] = field(default_factory=dict)

    def store(self) -> MemoryStore:
        return MemoryStore(self.objects, mode="last-writer", dialect=self.dialect)

    async def plan(self, *dataset: str | Path, task: TaskKind = "embed", model: str | None = None, **more: Any) -> PlannedRun:
        rows = more.pop("rows", RowOptions())
        call = {name: more.pop(name) for name in ("events", "throughput", "dry_run") if name in more}
        request = PlanRequest(
            dataset=tuple(map(str, dataset)), task=task, model=model or {"embed": "minilm", "generate": "smollm2"}[task], rows=rows, **more
        )
        return await plan_run(request, self.stack, self.store(), self.store(), open_bucket=self.open, **call)

    def open(self, bucket: str) -> MemoryStore:
        return MemoryStore(self.buckets[bucket], bucket=bucket)

    def keys(self, prefix: str) -> list[str]:
        return sorted(k for k in self.objects.data if k.startswith(prefix))

    def lines(self, plan: Plan) -> list[bytes]:
        """The rows as the worker finds them, their digests proven."""
        found: list[bytes] = []
        whole = InputDigest()
        for shard in plan.shards:
            source = shard.source
            data = self.objects.data[source.uri.removeprefix("s3://memory/")]
            if source.bytes is not None:
                lines = [line for line in data[slice(*source.bytes)].split(b"\n") if line]
            else:
                lines = list(decompress_lines(data, where=source.uri))
            digest = InputDigest()
            for index, line in zip(range(*source.rows), lines, strict=True):
                made = row_digest(index, json.loads(line)["custom_id"], line)
                digest.add(made)
                whole.add(made)
            assert digest.hexdigest() == source.digest
            assert source.count == len(lines)
            found += lines
        assert whole.hexdigest() == plan.dataset.digest
        return found


def chat_line(custom_id: str, text: str = "Say hello.", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": text}], **body},
    }


def embed_line(custom_id: str, text: str = "A small text.", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": {"input": text, **body}}


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@dataclass
class Reading:
    rows: list[Row]
    bad: list[tuple[str, int, str]]
    reasons: list[str]

    @property
    def ids(self) -> list[str]:
        return [row[3] for row in self.rows]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(row[4])["body"] for row in self.rows]

    @property
    def at(self) -> list[int]:
        return [row[1] for row in self.rows]

    @property
    def texts(self) -> list[str]:
        return [body["input"] if "input" in body else body["messages"][-1]["content"] for body in self.bodies]


def reader_of(named: Path | str | Sequence[Path | str], task: TaskKind = "embed", model: str = "m", **options: Any) -> Reader:
    names = [str(n) for n in ([named] if isinstance(named, Path | str) else named)]
    files = asyncio.run(find_files(names, lambda bucket: MemoryStore(bucket=bucket)))
    return open_reader(files, task, RowOptions(**options), (model,))


def read(named: Path | str | Sequence[Path | str], task: TaskKind = "embed", model: str = "m", **options: Any) -> Reading:
    """Every row and every bad row of a dataset, by file name and line."""
    reader = reader_of(named, task, model, **options)
    bad: list[tuple[str, int, str]] = []
    reasons: list[str] = []

    def on_bad(place: int, line: int, problem: RowProblem) -> None:
        bad.append((Path(reader.files[place].name).name, line, problem.code))
        reasons.append(problem.reason)

    return Reading(list(reader.rows(on_bad)), bad, reasons)


def codes(error: DatasetError) -> list[tuple[int, str]]:
    return [(row.line, row.code) for row in error.bad_rows]


def first(error: DatasetError) -> BadRow:
    return error.bad_rows[0]
