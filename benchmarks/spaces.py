"""benchmarks: embedding spaces: the night's client over 1,000,000 rows of which 1 % changed, and the table formats that were compared.

    python -m benchmarks.spaces [--rows 1000000] [--keep]          the night: difference, plan, apply, on a real S3 server
    python -m benchmarks.spaces --formats PYTHON [--rows …]        Delta Lake against Lance, in an environment that has deltalake, pylance,
                                                                   pyarrow, duckdb and polars

Vectors have 384 random numbers. Each step runs in a fresh process, whose peak memory counts, Python and libraries included. The goals are
the night's: less than 60 s and less than 400 MB for all that the client does beside the run itself, and only rows that changed are sent.
What the comparison of formats said, and why it is Lance: docs/spaces.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import ROOT, CannotMeasure, Line, Options, Result, Sample, say, stopwatch, told

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 1_000_000
DIMENSIONS: Final = 384
GOAL_S: Final = 60
GOAL_IDLE_S: Final = 20
GOAL_RSS_MB: Final = 400
BATCH: Final = 8192
NIGHTS: Final = (("first night", None, "2026-01-01"), ("1 % changed", 7, "2026-01-02"), ("nothing new", 7, "2026-01-03"))
FORMAT_STEPS: Final = ("create", "ids", "night", "ids", "compact", "prune", "duckdb", "polars")


def peak_rss_mb() -> float:
    """The most memory that this process had (Linux)."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


def changed_ids(rows: int, night: int) -> tuple[list[str], list[str], list[str]]:
    """Ids that change, leave and come in a night: 1 % at random, 0.1 % and 0.1 %."""
    import numpy as np

    rng = np.random.default_rng(night)
    picked = rng.choice(rows, rows // 100 + rows // 1000, replace=False)
    changed, left = picked[: rows // 100], picked[rows // 100 :]
    return [f"row-{n:09d}" for n in changed], [f"row-{n:09d}" for n in left], [f"new-{night}-{n:09d}" for n in range(rows // 1000)]


# --- formats: run by another Python, which has the peers and nothing of this project's needs ------------------------------------------


def vectors(ids: list[str], seed: int, mark: pa.DataType) -> pa.RecordBatch:
    """Rows of a table."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((len(ids), DIMENSIONS), dtype=np.float32)
    prints = pa.array([rng.bytes(32) for _ in ids], mark)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), DIMENSIONS)
    columns: list[Any] = [pa.array(ids), prints, lists]
    return pa.RecordBatch.from_arrays(columns, names=["id", "fingerprint", "embedding"])


def all_vectors(rows: int, mark: pa.DataType) -> pa.RecordBatchReader:
    """The whole table, a batch at a time."""
    import pyarrow as pa

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, BATCH):
            yield vectors([f"row-{n:09d}" for n in range(start, min(rows, start + BATCH))], start, mark)

    return pa.RecordBatchReader.from_batches(vectors(["x"], 0, mark).schema, batches())


def lance_step(step: str, uri: str, options: dict[str, str] | None, rows: int) -> Any:
    """Lance: deletion files over rows that changed or left, new rows in a file of their own, one commit."""
    import lance
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    mark = pa.binary(32)
    if step == "create":
        lance.write_dataset(all_vectors(rows, mark), uri, storage_options=options, max_rows_per_file=1 << 18)
        return rows
    there = lance.dataset(uri, storage_options=options)
    how: dict[str, Any] = {"batch_readahead": 2, "fragment_readahead": 1, "io_buffer_size": 64 << 20}
    if step == "ids":
        return sum(batch.num_rows for batch in there.scanner(columns=["id", "fingerprint"], **how).to_batches())
    if step == "night":
        from lance.fragment import write_fragments

        changed, left, new = changed_ids(rows, 7)
        gone = pa.array(changed + left)
        addresses = np.concatenate(
            [
                batch["_rowaddr"].filter(pc.is_in(batch["id"], gone)).to_numpy()
                for batch in there.scanner(columns=["id"], with_row_address=True, **how).to_batches()
            ]
        )
        kept, empty = [], []
        for fragment in there.get_fragments():
            offsets = addresses[(addresses >> 32) == fragment.fragment_id] & 0xFFFFFFFF
            after = fragment.delete_rows(offsets.tolist()) if len(offsets) else fragment.metadata
            if after is None:
                empty.append(fragment.fragment_id)
            else:
                kept.append(after)
        fresh = write_fragments(pa.Table.from_batches([vectors(changed + new, 99, mark)]), there)
        update = lance.LanceOperation.Update(removed_fragment_ids=empty, updated_fragments=kept, new_fragments=fresh)
        done = lance.LanceDataset.commit(there, lance.Transaction(there.version, update), max_retries=0, storage_options=options)
        return done.count_rows()
    if step == "compact":
        return str(there.optimize.compact_files(target_rows_per_fragment=1 << 18, num_threads=1, batch_size=1024))
    if step == "prune":
        from datetime import timedelta

        return int(there.cleanup_old_versions(older_than=timedelta(0)).old_versions)
    return read_step(step, there)


def delta_step(step: str, uri: str, options: dict[str, str] | None, rows: int) -> Any:
    """Delta Lake: one MERGE, which writes every file with a changed row again."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder, write_deltalake

    mark = pa.binary()
    if step == "create":
        write_deltalake(uri, all_vectors(rows, mark), storage_options=options)
        return rows
    there = DeltaTable(uri, storage_options=options)
    if step == "ids":
        return sum(batch.num_rows for batch in QueryBuilder().register("t", there).execute("select id, fingerprint from t"))
    if step == "night":
        changed, left, new = changed_ids(rows, 7)
        source = vectors(changed + new + left, 99, mark)
        ops: Any = pa.array(["put"] * (len(changed) + len(new)) + ["drop"] * len(left))
        named = {name: f"s.{name}" for name in ("id", "fingerprint", "embedding")}
        merge = there.merge(source.append_column("op", ops), "t.id = s.id", source_alias="s", target_alias="t", max_spill_size=200 << 20)
        merge.when_matched_delete("s.op = 'drop'").when_matched_update(named).when_not_matched_insert(named).execute()
        return there.count()
    if step == "compact":
        return str(there.optimize.compact()["numFilesRemoved"])
    if step == "prune":
        return len(there.vacuum(0, enforce_retention_duration=False, dry_run=False))
    return read_step(step, there.to_pyarrow_dataset())


def two_step(step: str, uri: str, options: dict[str, str] | None, rows: int) -> Any:
    """Delta Lake with vectors by fingerprint, only ever added, and a second table that says who is in: two commits, and readers join."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    mark = pa.binary()
    if step == "create":
        write_deltalake(f"{uri}/vectors", all_vectors(rows, mark), storage_options=options)
    elif step == "night":
        changed, left, new = changed_ids(rows, 7)
        fresh = vectors(changed + new, 99, mark)
        write_deltalake(f"{uri}/vectors", pa.Table.from_batches([fresh]), mode="append", storage_options=options)
        wanted = set(left)
        members = DeltaTable(f"{uri}/vectors", storage_options=options).to_pyarrow_table(columns=["id", "fingerprint"])
        mask: Any = pa.array([one not in wanted for one in members["id"].to_pylist()])
        write_deltalake(f"{uri}/members", members.filter(mask), mode="overwrite", storage_options=options)
    return None


def read_step(step: str, there: Any) -> Any:
    """Others read the whole table."""
    if step == "duckdb":
        import duckdb

        return duckdb.sql("select count(*), round(sum(embedding[1]), 3) from there").fetchall()[0]
    import polars as pl

    return pl.scan_pyarrow_dataset(there).select("id").collect().height


def format_child(name: str, step: str, uri: str, rows: int) -> dict[str, Any]:
    """One step in this process."""
    options = json.loads(os.environ.get("SPACES_OPTIONS", "null"))
    began = time.perf_counter()
    said = {"lance": lance_step, "delta": delta_step, "delta, two tables": two_step}[name](step, uri, options, rows)
    return {"seconds": time.perf_counter() - began, "rss": peak_rss_mb(), "said": said}


def folder_size(path: Path) -> int:
    """Bytes of all files below it."""
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())


def measure_formats(python: str, rows: int) -> Result:
    """Delta Lake against Lance, on a folder and on the S3 server."""
    lines: list[Line] = []
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as name:
        folder = Path(name)
        for kind in ("lance", "delta", "delta, two tables"):
            place = folder / kind.replace(" ", "-").replace(",", "")
            steps = FORMAT_STEPS if kind != "delta, two tables" else ("create", "night")
            for number, step in enumerate(steps):
                before = folder_size(place) if place.exists() else 0
                got = _child([python], ["--format-child", kind, step, str(place), str(rows)])
                got["bytes"] = folder_size(place) - before
                found[f"{kind} {number} {step}"] = got
                say(f"  {kind}: {step}: {got['seconds']:.1f} s, {got['rss']:.0f} MB of memory, {got['bytes'] / 1e6:+.1f} MB, {got['said']}")
            night = found[f"{kind} {steps.index('night')} night"]
            lines += [
                Line(f"{kind}: 1 % changed", night["seconds"], "s"),
                Line(f"{kind}: 1 % changed, memory", night["rss"], "MB"),
                Line(f"{kind}: 1 % changed, written", night["bytes"] / 1e6, "MB"),
            ]
            shutil.rmtree(place, ignore_errors=True)
        asyncio.run(_formats_on_s3(python, rows, folder, lines, found))
    return Result("table_formats", tuple(lines), {}, {"rows": rows, "dimensions": DIMENSIONS, "processes": found})


async def _formats_on_s3(python: str, rows: int, folder: Path, lines: list[Line], found: dict[str, Any]) -> None:
    from nights.spaces.table import home_of

    server, store = await _server(folder / "s3")
    options = json.dumps(home_of(store, "", server.client_config).options)
    try:
        for kind in ("lance", "delta"):
            for step in ("create", "night"):
                uri = f"s3://nightbatch/formats/{kind}"
                got = await asyncio.to_thread(_child, [python], ["--format-child", kind, step, uri, str(rows)], {"SPACES_OPTIONS": options})
                found[f"{kind} on S3: {step}"] = got
                say(f"  {kind} on S3: {step}: {got['seconds']:.1f} s, {got['rss']:.0f} MB of memory")
            lines.append(Line(f"{kind} on S3: 1 % changed", got["seconds"], "s"))
    finally:
        await store.close()
        await server.stop()


async def _server(folder: Path) -> tuple[Any, Any]:
    from contract.store import S3Store
    from emulator.s3 import KeyPair, SeaweedS3

    folder.mkdir(parents=True)
    server = SeaweedS3(folder, "nightbatch", KeyPair("client-id", "client-secret"), KeyPair("worker-id", "worker-secret"))
    await server.start()
    return server, S3Store(server.client_config)


def _child(python: list[str], arguments: list[str], extra: dict[str, str] | None = None) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(extra or {})}
    command = [*python, "-m", "benchmarks.spaces", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise CannotMeasure(f"{' '.join(arguments[:3])} failed; the message is above.")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# --- the night -----------------------------------------------------------------------------------------------------------------------


def write_dataset(path: Path, rows: int, night: int | None) -> None:
    """Records of about 200 bytes. `night`: with its changes."""
    changed, left, new = changed_ids(rows, night) if night is not None else ([], [], [])
    others, gone = set(changed), set(left)
    filler = "the quick brown fox jumps over the lazy dog and goes on for a while " * 2
    with path.open("w", buffering=1 << 20) as file:
        for number in range(rows):
            ident = f"row-{number:09d}"
            if ident not in gone:
                file.write(f'{{"id":"{ident}","text":"{"changed " if ident in others else ""}{number} {filler}"}}\n')
        for ident in new:
            file.write(f'{{"id":"{ident}","text":"{ident} {filler}"}}\n')


def write_output(path: Path, lines: Path) -> int:
    """What collect would write of a run over these lines: random vectors."""
    import io

    import zstandard

    writer: Any = None
    ids: list[str] = []
    count = 0
    with lines.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
        for line in io.TextIOWrapper(plain, encoding="utf-8"):
            ids.append(json.loads(line)["custom_id"])
            if len(ids) == BATCH:
                writer, count, ids = _group(path, writer, ids, count), count + len(ids), []
    if ids:
        writer, count = _group(path, writer, ids, count), count + len(ids)
    writer.close()
    return count


def _group(path: Path, writer: Any, ids: list[str], start: int) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch = vectors(ids, start, pa.binary(32))
    index: Any = pa.array(range(start, start + len(ids)), pa.int64())
    columns: list[Any] = [batch.column("id"), batch.column("embedding"), index]
    made = pa.Table.from_arrays(columns, names=["id", "embedding", "row_index"])
    if writer is None:
        options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
        writer = pq.ParquetWriter(path, made.schema, compression="zstd", **options)
    writer.write_table(made)
    return writer


async def night_child(step: str, folder: Path, config: dict[str, str], date: str) -> dict[str, Any]:
    """`plan`: difference and plan of the dataset in `folder`. `apply`: difference again and the run's output into the table."""
    from contract.facts import EndpointFacts, Stack, StackFacts, StackSecrets, StoreFacts
    from contract.models import RowOptions, S3Config
    from contract.store import S3Store
    from nights.spaces.fingerprint import Parameters
    from nights.spaces.table import home_of, open_space, snapshots
    from nights.spaces.update import apply, difference
    from pipelines.dataset import find_files, open_reader
    from pipelines.plan import PlanRequest, plan_run

    s3 = S3Config(**config)
    store = S3Store(s3)
    endpoint = EndpointFacts(
        name="minilm", id="ep", model="minilm", tasks=("embed",), gpu="NVIDIA RTX A5000", usd_per_second=0.00019, workers_max=3
    )
    facts = StackFacts(stack="bench", store=StoreFacts(bucket=s3.bucketName, endpoint_url=s3.endpointUrl), endpoints=(endpoint,))
    stack = Stack(facts, StackSecrets("key", s3, s3))
    began = time.perf_counter()
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    space = await open_space(home_of(store, "", s3), "bench", Parameters(model="minilm"))
    files = await find_files([str(folder / "data.jsonl")], lambda _: store)
    reader = open_reader(files, "embed", RowOptions(column="text", id_column="id"), ("minilm",))
    found = await difference(space, reader, work)
    compared = time.perf_counter() - began
    answer: dict[str, Any] = {
        "rows": found.rows, "added": found.added, "changed": found.changed, "removed": found.removed, "unchanged": found.unchanged,
        "difference": compared, "sent": 0,
    }  # fmt: skip
    if found.path is not None:
        request = PlanRequest(dataset=(str(found.path),), task="embed", model="minilm", out=str(folder / "out.parquet"), name="bench")
        planned = await plan_run(request, stack, store, store, dry_run=found.added > 100_000)
        answer["sent"] = planned.plan.dataset.rows
        answer["planned"] = time.perf_counter() - began - compared
    spent = 0.0
    if step == "apply":
        if found.path is not None and not (folder / "out.parquet").exists():
            at = time.perf_counter()
            _child([sys.executable], ["--output-child", str(folder / "out.parquet"), str(found.path)])
            spent = time.perf_counter() - at
        finished: Any = None
        if found.path is not None:
            names = SimpleNamespace(out=str(folder / "out.parquet"), format="parquet")
            finished = SimpleNamespace(
                plan=planned.plan,
                complete=True,
                collected=SimpleNamespace(names=names),
                judged=None,
                result=SimpleNamespace(usd_estimated=0.0),
            )
        at = time.perf_counter()
        done = await apply(space, found, finished, work, job="bench", night=date)
        answer["apply"] = time.perf_counter() - at
        answer["written"] = done.bytes_written
        answer["version"] = done.version
        answer["table_rows"] = done.rows
    answer["seconds"] = time.perf_counter() - began - spent
    answer["rss"] = peak_rss_mb()
    if step == "apply":
        answer["snapshots"] = len(snapshots(space))
    await store.close()
    return answer


def measure(options: Options, *, rows: int | None = None) -> Result:
    """The client's part of three nights: the first, one with 1 % changed, one with nothing new."""
    import msgspec

    rows = rows if rows is not None else 20_000 if options.quick else ROWS
    lines: list[Line] = []
    samples: dict[str, list[Sample]] = {}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nightbatch-bench-") as name:
        folder = Path(name)

        async def nights() -> None:
            server, store = await _server(folder / "s3")
            await store.close()
            config = json.dumps(msgspec.structs.asdict(server.client_config))
            try:
                for title, night, date in NIGHTS:
                    write_dataset(folder / "data.jsonl", rows, night)
                    if title != "nothing new":
                        (folder / "out.parquet").unlink(missing_ok=True)
                    with stopwatch() as watch:
                        got = await asyncio.to_thread(
                            _child, [sys.executable], ["--night-child", "apply", str(folder), date], {"SPACES_S3": config}
                        )
                    found[title] = got
                    samples.setdefault(title, []).append(Sample(got["seconds"], rows, watch.foreign))
                    say(f"  {title}: {got}")
            finally:
                await server.stop()

        asyncio.run(nights())
    first, night, idle = found["first night"], found["1 % changed"], found["nothing new"]
    lines += [
        Line(f"first night, {rows:,} rows: client without the run", first["seconds"], "s"),
        Line("first night: memory", first["rss"], "MB"),
        Line(f"1 % of {rows:,} rows changed: client without the run", night["seconds"], "s", "<", GOAL_S),
        Line("1 % changed: memory", night["rss"], "MB", "<", GOAL_RSS_MB),
        Line("1 % changed: rows sent", night["sent"], "rows", "<=", rows // 100 + rows // 1000),
        Line("1 % changed: written to the space", night["written"] / 1e6, "MB"),
        Line("nothing new: client", idle["seconds"], "s", "<", GOAL_IDLE_S),
        Line("nothing new: memory", idle["rss"], "MB", "<", GOAL_RSS_MB),
        Line("nothing new: rows sent", idle["sent"], "rows", "<=", 0),
    ]
    return Result("spaces", tuple(lines), {name: tuple(group) for name, group in samples.items()}, {"rows": rows, "processes": found})


def main(argv: list[str]) -> int:
    """See above."""
    if argv[:1] == ["--format-child"]:
        print(json.dumps(format_child(argv[1], argv[2], argv[3], int(argv[4]))), flush=True)
        os._exit(0)  # threads of the two libraries at once have ended this process with an abort when Python took it down
    if argv[:1] == ["--night-child"]:
        print(json.dumps(asyncio.run(night_child(argv[1], Path(argv[2]), json.loads(os.environ["SPACES_S3"]), argv[3]))))
        return 0
    if argv[:1] == ["--output-child"]:
        print(json.dumps({"rows": write_output(Path(argv[1]), Path(argv[2]))}))
        return 0
    parser = argparse.ArgumentParser(prog="benchmarks.spaces", description="Embedding spaces, and table formats.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--formats", metavar="PYTHON", help="compare formats with this Python instead")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/")
    given = parser.parse_args(argv)
    result = measure_formats(given.formats, given.rows) if given.formats else measure(Options(), rows=given.rows)
    return told(result, kept=given.keep)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
