# tests/worker: fixtures for the fast tests: a store in memory, an engine that echoes, and executions over them.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contract.keys import RunKeys
from contract.lines import decompress_lines
from contract.memory import MemoryStore, Objects
from contract.models import Commit, JobInput, PartCommit, Summary, TaskSpec, decode
from contract.rows import ErrorLine, PartLine, RowError, ShardDigest
from worker.engine.fake import FakeEngine
from worker.execution import Identity, PiecePolicy, Stop, World, execute
from worker.sample import SHARD, SampleRow, sample_job, sample_rows

KEYS = RunKeys("runs/sample")


@dataclass
class ManualClock:
    """Time passes when a test says so."""

    at: float = 100.0

    def monotonic(self) -> float:
        return self.at


@dataclass
class Rig:
    """One bucket with one run of one shard, and executions over it."""

    folder: Path
    objects: Objects = field(default_factory=Objects)
    store: MemoryStore = field(init=False)
    engine: FakeEngine = field(default_factory=FakeEngine)
    clock: ManualClock = field(default_factory=ManualClock)
    stop: Stop = field(default_factory=Stop)
    pieces: PiecePolicy = field(default_factory=PiecePolicy)
    executions: int = 0

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.objects, bucket="bucket")

    async def job(
        self, rows: Sequence[SampleRow] | int = 8, *, kind: str = "generate", params: dict[str, object] | None = None
    ) -> JobInput:
        self.engine.kind = "embed" if kind == "embed" else "generate"
        task = TaskSpec(kind=self.engine.kind, model="fake", params=params or {})
        return await sample_job(self.store, task, sample_rows(self.engine.kind, rows) if isinstance(rows, int) else rows)

    async def execute(self, job: JobInput, *, engine: FakeEngine | None = None, store: MemoryStore | None = None) -> Summary:
        self.executions += 1
        number = self.executions
        folder = self.folder / str(number)
        folder.mkdir()
        world = World(
            store=store or self.store,
            engine=engine or self.engine,
            clock=self.clock,
            folder=folder,
            identity=Identity("worker-1", "image-1", {"fake": "1"}),
            new_execution=lambda: f"{number:016x}",
            pieces=self.pieces,
        )
        try:
            return await execute(job, "job-1", world, self.stop)
        finally:
            assert list(folder.iterdir()) == [], "an execution leaves no file behind"

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.objects.data if key.startswith(f"{KEYS.root}/{prefix}"))

    def commit(self) -> PartCommit:
        commit = decode(self.objects.data[KEYS.commit(SHARD)], Commit, where="commit")
        assert isinstance(commit, PartCommit)
        return commit

    def answers(self) -> dict[int, PartLine]:
        part = self.commit().part
        return {} if part is None else {line.index: line for line in lines(self.objects.data[part.key], PartLine)}

    def failures(self) -> dict[int, RowError]:
        errors = self.commit().errors
        if errors is None:
            return {}
        return {line.index: decode(bytes(line.error), RowError, where="error") for line in lines(self.objects.data[errors.key], ErrorLine)}

    def recomputed(self) -> str:
        """The shard digest, from what is stored."""
        digest, commit = ShardDigest(), self.commit()
        for line in self.answers().values():
            digest.add(line.index, bytes.fromhex(line.row), True, bytes(line.response))
        if commit.errors is not None:
            for failed in lines(self.objects.data[commit.errors.key], ErrorLine):
                digest.add(failed.index, bytes.fromhex(failed.row), False, bytes(failed.error))
        return digest.hexdigest()


def lines(data: bytes, kind: type) -> list:  # type: ignore[type-arg]
    return [decode(line, kind, where="object") for line in decompress_lines(data, where="object")]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)
