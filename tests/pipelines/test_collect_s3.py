# tests/pipelines: seal, collect and verify over a real S3 server.
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from contract.errors import VerifyFailed
from contract.store import S3Store, get_or_none
from emulator.s3 import KeyPair, SeaweedS3
from pipelines.collect import collect
from pipelines.verify import verify
from tests.pipelines.runs import make_run

pytestmark = pytest.mark.asyncio(loop_scope="module")
COLUMNS = pa.table({"question": [f"q{i}" for i in range(8)]})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SeaweedS3]:
    weed = SeaweedS3(
        tmp_path_factory.mktemp("s3"), "nightbatch", KeyPair("client-id", "client-secret"), KeyPair("worker-id", "worker-secret")
    )
    await weed.start()
    try:
        yield weed
    finally:
        await weed.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def store(server: SeaweedS3) -> AsyncIterator[S3Store]:
    made = S3Store(server.client_config, mode="conditional", timeout_s=20)
    yield made
    await made.close()


@pytest.mark.parametrize(("kind", "suffix"), [("generate", "jsonl"), ("embed", "parquet")])
async def test_a_run_in_s3_is_collected_and_verified(kind: Any, suffix: str, store: S3Store, tmp_path: Path) -> None:
    run = await make_run(kind, store=store, splits=(1,), shuffle=4, columns=COLUMNS, prefix=kind)
    out = str(tmp_path / f"rows.{suffix}")
    collected = await collect(store, run.keys, run.plan, out)
    report = await verify(store, run.keys, run.plan, out, inputs=True)
    assert report.findings == ()
    assert report.seal == collected.seal
    there = f"s3://{store.bucket}/outputs/{kind}.{suffix}"
    await collect(store, run.keys, run.plan, there)
    assert (await verify(store, run.keys, run.plan, there)).clean
    blob = await get_or_none(store, f"outputs/{kind}.{suffix}")
    assert blob is not None
    assert blob.data == Path(out).read_bytes()


async def test_collectors_at_once_agree_on_one_seal_and_leave_one_file(store: S3Store, tmp_path: Path) -> None:
    run = await make_run("embed", store=store, prefix="many")
    results = await asyncio.gather(*(collect(store, run.keys, run.plan, str(tmp_path / f"{n % 2}.parquet")) for n in range(4)))
    assert len({result.seal for result in results}) == 1
    assert pq.read_table(tmp_path / "0.parquet").equals(pq.read_table(tmp_path / "1.parquet"))
    assert len(list(tmp_path.iterdir())) == 6


async def test_an_object_that_is_gone_or_replaced_is_named(store: S3Store, tmp_path: Path) -> None:
    run = await make_run("generate", store=store, prefix="gone")
    out = tmp_path / "rows.jsonl"
    await collect(store, run.keys, run.plan, str(out))
    first, second = run.commits["00000"].part, run.commits["00001"].part
    assert first is not None
    assert second is not None
    await store.delete(first.key)
    await store.put(second.key, b"x" * second.size)
    report = await verify(store, run.keys, run.plan, str(out))
    text = "\n".join(report.lines())
    assert f"{first.key}, shard 00000: the object is gone" in text
    assert f"{second.key}, shard 00001: the object's sha256" in text
    with pytest.raises(VerifyFailed, match="gone"):
        await collect(store, run.keys, run.plan, str(tmp_path / "again.jsonl"))
    assert not (tmp_path / "again.jsonl").exists()
