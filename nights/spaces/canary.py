"""nights/spaces: kept rows, embedded again before anything new is. Touches the store, the table, and a folder that the caller gives.

A space keeps a handful of rows, those whose ids have the least digests when its table is made: their lines, their vectors, and what they
were made with. Before a night computes anything it embeds these again, as a small run of its own, and compares. An image, a model or a
card that gives other vectors is found before one of them is in the table.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from contract.errors import NotAsWanted
from contract.models import VERSION, Count, Hex64, Instant, Model, decode_stored, encode
from contract.rows import InputDigest, row_digest
from contract.store import get_or_none, put_first
from nights.facts import facts_of_run
from nights.record import CanaryResult
from nights.spaces import table as tables
from nights.spaces.table import Space
from nights.spaces.update import Difference
from pipelines.outputs import is_s3
from pipelines.plan import PlanRequest
from pipelines.work import Finished

ROWS: Final = 16
FACTS: Final = ("image", "model", "revision", "dtype", "gpu", "vllm", "torch")
"""What vectors were made with, as far as it is known, in the order in which changes are told."""


class CanaryRow(Model, frozen=True, kw_only=True):
    """One kept row. `line`: as it was sent; `vector`: base64 of little-endian float32, as it stands in the table."""

    id: str
    line: str
    vector: str


class CanaryFile(Model, frozen=True, kw_only=True):
    """spaces/NAME/canary.json. `facts`: of the run that made the vectors (FACTS; what is not known is left out)."""

    version: int = VERSION
    space: Hex64
    rows: tuple[CanaryRow, ...]
    dimensions: Count
    facts: dict[str, str]
    run: str | None
    at: Instant


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What a drift is. `cosine_min`: of each row's new vector to its kept one; `norm_tolerance`: relative change of its length."""

    cosine_min: float = 0.999
    norm_tolerance: float = 0.01


# --- keeping -------------------------------------------------------------------------------------------------------------------------


def _key(space: Space) -> str:
    return f"{space.root}/canary.json"


async def read_canary(space: Space) -> CanaryFile | None:
    """The kept rows; None where there are none yet."""
    blob = await get_or_none(space.home.store, _key(space))
    if blob is None:
        return None
    kept: CanaryFile = decode_stored(blob.data, CanaryFile, where=f"s3://{space.home.store.bucket}/{_key(space)}")
    return kept if kept.space == space.file.digest else None


async def keep_canary(space: Space, difference: Difference, facts: Mapping[str, str], *, rows: int = ROWS, run: str | None = None) -> int:
    """After `apply`: choose rows of tonight's run if the space keeps none, with the vectors that stand in its table; how many it keeps now.
    Where the run had less than half as many rows, and the table more, a later night chooses: one row would tell little.

    They stay the same for the life of the space, also where their rows leave the dataset, until `forget_canary`.
    """
    standing = await read_canary(space)
    if standing is not None or rows == 0:
        return len(standing.rows) if standing is not None else 0
    made = await asyncio.to_thread(_choose, space, difference, rows)
    there = difference.unchanged + difference.to_compute
    if not made or len(made) < min(rows, there) / 2:
        return 0
    dimensions = len(base64.b64decode(made[0].vector)) // 4
    file = CanaryFile(
        space=space.file.digest, rows=made, dimensions=dimensions, facts=dict(facts), run=run, at=space.home.store.now()
    )  # fmt: skip
    await put_first(space.home.store, _key(space), encode(file))
    return len(made)


async def forget_canary(space: Space) -> None:
    """The next night keeps new rows: what a person says after a change that is meant (another card, another vLLM)."""
    await space.home.store.delete(_key(space))


def _choose(space: Space, difference: Difference, rows: int) -> tuple[CanaryRow, ...]:
    table = tables.dataset(space)
    wanted = {one.id: one for one in difference.candidates[: 2 * rows]}
    if table is None or not wanted:
        return ()
    names = ",".join("'" + name.replace("'", "''") + "'" for name in wanted)
    with tables.asked("reading the table", space.uri):
        found = table.to_table(columns=["id", "fingerprint", "embedding"], filter=f"id IN ({names})")
    vectors = {}
    for name, mark, vector in zip(
        found["id"].to_pylist(), found["fingerprint"].to_pylist(), found["embedding"].to_pylist(), strict=True
    ):  # a vector of another text is none of this line
        if wanted[name].fingerprint == mark:
            vectors[name] = np.asarray(vector, dtype="<f4").tobytes()
    chosen = [one for one in wanted.values() if one.id in vectors][:rows]
    return tuple(
        CanaryRow(id=one.id, line=one.line.decode(), vector=base64.b64encode(vectors[one.id]).decode()) for one in chosen
    )  # fmt: skip


# --- facts ---------------------------------------------------------------------------------------------------------------------------


def changed_facts(kept: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """`image: a -> b`, of what is known of both."""
    return tuple(f"{name}: {kept[name]} -> {now[name]}" for name in FACTS if name in kept and name in now and kept[name] != now[name])


# --- checking ------------------------------------------------------------------------------------------------------------------------


def canary_request(space: Space, kept: CanaryFile, folder: Path, *, model: str, night: str, out: str) -> PlanRequest:
    """A run over the kept rows, of this night. The same night asks for the same run, and does not pay twice for it."""
    path = folder / "canary.jsonl"
    path.write_bytes(b"".join(row.line.encode() + b"\n" for row in kept.rows))
    return PlanRequest(
        dataset=(str(path),), task="embed", model=model, revision=space.parameters.revision, params=space.parameters.task_params(),
        out=out, output_format="parquet", again=f"c{night}", name=f"{space.name[:32].rstrip('-')}-canary",
    )  # fmt: skip


async def judge_canary(space: Space, kept: CanaryFile, finished: Finished, thresholds: Thresholds) -> CanaryResult:
    """Compare a canary's run with what was kept. Raises NotAsWanted where there is no run to compare."""
    if not finished.complete or finished.collected is None:
        raise NotAsWanted("the canary did not come to its end.", where=finished.plan.run, fix=f"nightbatch resume {finished.plan.run}")
    if finished.plan.dataset.digest != _digest_of(kept):
        raise NotAsWanted("the run is not over the kept rows.", where=finished.plan.run)
    facts = await facts_of_run(space.home.store, finished.plan)
    out = finished.collected.names.out
    if is_s3(out):
        raise NotAsWanted("a canary's output is a local file.", where=out)
    new = await asyncio.to_thread(_read_vectors, Path(out), space.parameters.normalize)
    return compare(space.name, kept, new, changed_facts(kept.facts, facts), thresholds)


def _digest_of(kept: CanaryFile) -> str:
    digest = InputDigest()
    for index, row in enumerate(kept.rows):
        digest.add(row_digest(index, row.id, row.line.encode()))
    return digest.hexdigest()


def _read_vectors(path: Path, normalize: bool) -> dict[str, npt.NDArray[np.float64]]:
    found = pq.read_table(path, columns=["id", "embedding"])
    vectors = {
        name: np.asarray(vector, dtype=np.float64)
        for name, vector in zip(cast("list[str]", found["id"].to_pylist()), cast("list[Any]", found["embedding"].to_pylist()), strict=True)
    }
    return {name: _scaled(vector) for name, vector in vectors.items()} if normalize else vectors


def _scaled(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm else vector


def compare(
    space: str,
    kept: CanaryFile,
    new: Mapping[str, npt.NDArray[np.float64]],
    changed: tuple[str, ...],
    thresholds: Thresholds,
) -> CanaryResult:
    """The worst of each measure, and one sentence. Pure."""
    cosines: list[float] = []
    norms: list[float] = []
    sizes: set[int] = set()
    missing = 0
    for row in kept.rows:
        old = np.frombuffer(base64.b64decode(row.vector), dtype="<f4").astype(np.float64)
        vector = new.get(row.id)
        if vector is None:
            missing += 1
            continue
        sizes.add(len(vector))
        if len(vector) != len(old):
            continue
        length, before = float(np.linalg.norm(vector)), float(np.linalg.norm(old))
        product = length * before
        likeness = float(vector @ old) / product if product and np.isfinite(product) else 1.0 if length == before else -1.0
        cosines.append(likeness if np.isfinite(likeness) else -1.0)
        norms.append(abs(length - before) / before if before and np.isfinite(length) else 0.0 if length == before else 1.0)
    size = sizes.pop() if len(sizes) == 1 else min(sizes, default=0)
    cosine = min(cosines) if cosines else None
    norm = max(norms) if norms else None
    faults: list[str] = []
    if missing:
        faults.append(f"{missing} of {len(kept.rows)} kept rows failed")
    if sizes or (len(kept.rows) > missing and size != kept.dimensions):
        faults.append(f"vectors have {size} numbers instead of {kept.dimensions}")
    if cosine is not None and cosine < thresholds.cosine_min:
        faults.append(f"the least cosine is {cosine:.6f}, below {thresholds.cosine_min:g}")
    if norm is not None and norm > thresholds.norm_tolerance:
        faults.append(f"a length changed by {100 * norm:.2f} %, more than {100 * thresholds.norm_tolerance:g} %")
    why = f"changed since they were kept: {'; '.join(changed)}" if changed else "nothing that is known of changed since they were kept"
    if faults:
        sentence = f"the canary of space {space} found other vectors ({'; '.join(faults)}); {why}."
    else:
        sentence = f"{len(kept.rows)} kept rows came out as before (least cosine {cosine:.6f}){f'; {why}' if changed else ''}."
    return CanaryResult(
        rows=len(kept.rows), passed=not faults, cosine=cosine, norm=norm, dimensions=size, kept_dimensions=kept.dimensions, changed=changed,
        sentence=sentence,
    )  # fmt: skip
