"""The in-process world of these tests does what the real one does: runs are planned, computed, collected and verified."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from contract.models import RowOptions
from contract.rows import RowError
from pipelines.plan import PlanRequest
from pipelines.work import Following
from tests.nights.kit import NightHouse
from tests.pipelines.planning import write_jsonl


async def test_a_run_in_one_process_is_whole_and_verified(tmp_path: Path) -> None:
    house = NightHouse(says=lambda text: RowError(code="bad", message="no") if "7" in text else f"said {text}")
    data = write_jsonl(tmp_path / "rows.jsonl", ({"id": f"r{n}", "text": f"text {n}"} for n in range(20)))
    request = PlanRequest(dataset=(str(data),), task="generate", model="smollm2", rows=RowOptions(column="text", id_column="id"))
    planned = await house.plan(request)
    finished = await house.complete(planned, Following(out=str(tmp_path / "out.jsonl")))
    assert finished.complete
    assert finished.judged is not None
    assert finished.judged.clean
    assert (finished.result.ok, finished.result.failed) == (18, 2)
    assert finished.exit_code == 1


async def test_embeddings_come_from_the_script(tmp_path: Path) -> None:
    house = NightHouse()
    data = write_jsonl(tmp_path / "rows.jsonl", ({"id": f"r{n}", "text": f"text {n}"} for n in range(5)))
    request = PlanRequest(dataset=(str(data),), task="embed", model="minilm", rows=RowOptions(column="text", id_column="id"))
    planned = await house.plan(request)
    finished = await house.complete(planned, Following(out=str(tmp_path / "out.parquet")))
    assert finished.exit_code == 0
    assert pq.read_table(tmp_path / "out.parquet").column("id").to_pylist() == [f"r{n}" for n in range(5)]
