# tests/pipelines: planning against a real S3 server, with the client's and the worker's own keys.
from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contract.facts import Stack, StackFacts, StackSecrets, StoreFacts
from contract.lines import read_lines
from contract.models import Plan, RowOptions, decode
from contract.rows import InputDigest, row_digest
from contract.store import S3Store
from emulator.s3 import KeyPair, SeaweedS3
from pipelines.plan import PlannedRun, PlanRequest, plan_run
from tests.pipelines.planning import EMBED, GENERATE, embed_line, write_jsonl

pytestmark = pytest.mark.slow
BUCKET = "planning"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> SeaweedS3:
    client, worker = (KeyPair(secrets.token_hex(8), secrets.token_hex(16)) for _ in range(2))
    return SeaweedS3(tmp_path_factory.mktemp("s3"), BUCKET, client, worker)


@pytest.fixture
async def stack(server: SeaweedS3) -> AsyncIterator[Stack]:
    await server.start()
    try:
        yield Stack(
            StackFacts(stack="test", store=StoreFacts(bucket=BUCKET, endpoint_url=server.endpoint_url), endpoints=(EMBED, GENERATE)),
            StackSecrets("key", server.client_config, server.worker_config),
        )
    finally:
        await server.stop()


async def plan(stack: Stack, *dataset: str, rows: RowOptions | None = None) -> PlannedRun:
    store, worker = S3Store(stack.secrets.s3), S3Store(stack.secrets.worker_s3)
    try:
        request = PlanRequest(dataset=dataset, task="embed", model="minilm", rows=rows or RowOptions())
        return await plan_run(request, stack, store, worker)
    finally:
        await store.close()
        await worker.close()


async def lines_of(store: S3Store, planned: Plan) -> list[bytes]:
    """As a worker reads them, each shard's digest proven."""
    found: list[bytes] = []
    for shard in planned.shards:
        source = shard.source
        key = source.uri.removeprefix(f"s3://{BUCKET}/")
        digest = InputDigest()
        chunks = store.read(key, *(source.bytes or (0, None)))
        async for line in read_lines(chunks, where=key, compressed=key.endswith(".zst")):
            digest.add(row_digest(len(found), json.loads(line)["custom_id"], line))
            found.append(line)
        assert digest.hexdigest() == source.digest
    return found


async def test_datasets_in_a_real_bucket_in_place_copied_and_as_tables(stack: Stack, tmp_path: Path) -> None:
    rows = [embed_line(f"r{i}", f"text {i}") for i in range(3000)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    odd = "data/a+b = c #1/é 50%.jsonl"
    pq.write_table(pa.table({"text": [f"t{i}" for i in range(500)], "n": range(500)}), tmp_path / "t.parquet")
    worker = S3Store(stack.secrets.worker_s3)
    client = S3Store(stack.secrets.s3)
    try:
        await client.put("data/rows.jsonl", path)
        await client.put(odd, path)
        await client.put("tables/t.parquet", tmp_path / "t.parquet")

        in_place = await plan(stack, f"s3://{BUCKET}/data/rows.jsonl")
        assert in_place.plan.store.mode == "conditional"
        assert in_place.plan.shards[1].source.bytes is not None
        assert await lines_of(worker, in_place.plan) == path.read_bytes().splitlines()

        copied = await plan(stack, f"s3://{BUCKET}/{odd}")
        assert copied.plan.shards[1].source.bytes is None
        assert copied.plan.plan_id == in_place.plan.plan_id
        assert await lines_of(worker, copied.plan) == path.read_bytes().splitlines()

        both = await plan(stack, str(path))
        assert both.plan.plan_id == in_place.plan.plan_id

        table = await plan(stack, f"s3://{BUCKET}/tables/*.parquet")
        assert len(await lines_of(worker, table.plan)) == 500
        assert all(shard.columns is not None for shard in table.plan.shards)
        stored = decode((await worker.get(table.uri.keys.plan())).data, Plan, where="plan")
        assert stored == table.plan

        again = await plan(stack, f"s3://{BUCKET}/tables/t.parquet")
        assert again.plan.plan_id == table.plan.plan_id
    finally:
        await worker.close()
        await client.close()
