"""pipelines: a dataset and a task -> the immutable plan of a run, with its rows in S3. Touches the dataset, and S3 through a store.

The same inputs give the same plan id and the same run id, so that the same command, typed twice, finds its run and never pays twice:
the run id is made of the dataset's name, the task and the first eight characters of the plan id, and holds no date. `again` makes another
run of the same plan on purpose. What stands in a plan id: row digests, task, model, revision, parameters, shard boundaries, the store's
mode (PROTOCOL.md, Identities); not pace, prices, output or anything else that may differ when the rows to compute are the same.

The dataset is read twice: once to check it and to find the shards, once to send the rows; the second reading must give the same digests. A
plain JSONL dataset of batch lines that lies in the stack's own bucket is read where it is, by byte ranges, and not copied.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import zstandard

from contract.errors import DatasetError, PlanMismatch, UsageError
from contract.facts import EndpointFacts, Stack
from contract.keys import RunUri, shard_name
from contract.lines import LEVEL
from contract.models import (
    DatasetFacts,
    Estimate,
    FileFacts,
    ObjectRef,
    OutputSpec,
    PinnedInfra,
    Plan,
    RowOptions,
    ShardPlan,
    Source,
    StoreMode,
    StorePin,
    TaskKind,
    TaskSpec,
    decode_stored,
    encode,
)
from contract.net import on_this_machine
from contract.params import COMPLETION_MAX_TOKENS, check_params
from contract.rows import CompletionUrl, InputDigest, row_digest
from contract.store import S3Store, Store, get_or_none, probe_mode, put_first, put_object
from pipelines.collect import check_output
from pipelines.dataset import DataFile, Reader, Row, find_files, open_reader
from pipelines.dataset import streams as dataset_streams
from pipelines.dataset.rows import check_ways
from pipelines.outputs import Dtype, check_dtype, is_s3, layout_of, output_names
from pipelines.pack import CONTEXT_ASSUMED, RULES, TOKENS_OUT, pack, row_tokens
from pipelines.preflight import Scan, preflight
from pipelines.prices import Throughput, Work, choose_pace, estimate, output_tokens, reference, worker_seconds
from pipelines.scratch import is_scratch, scratch_folder

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from pipelines.table import Kind, TableWriter

UPLOADS: Final = 4
"""Shards that are sent to S3 at once."""
_TICK_S: Final = 0.25
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_IN_PLACE_KEY: Final = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
"""Keys that every reader of `s3://bucket/key` reads alike; datasets under other keys are copied."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What the user asks for. `model`: an endpoint's name, or the model that it serves."""

    dataset: tuple[str, ...]
    task: TaskKind
    model: str
    revision: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    rows: RowOptions = field(default_factory=RowOptions)
    out: str | None = None
    output_format: Literal["jsonl", "parquet"] | None = None
    """None: from the ending of `out`; without one Parquet for embed and JSONL for generate."""
    pace: int | None = None
    max_attempts: int = 5
    budget_usd: float | None = None
    again: str | None = None
    """A name for another run of the same plan, paid again."""
    name: str | None = None
    """What the run id begins with, instead of the dataset's name."""
    rows_per_shard: int | None = None
    keep_columns: bool = True
    """Keep the original columns of tables in S3, so that a table output can be made on any machine."""
    list_bad_rows_to: Path | None = None


@dataclass(frozen=True)
class PlanEvent:
    """Progress, at most four a second and one at each step's end. `done`, `total`: bytes read (`check`, `again`), shards (`upload`)."""

    step: Literal["check", "again", "upload"]
    done: int
    total: int


Events = Callable[[PlanEvent], None]


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and what is worth saying about it."""

    plan: Plan
    uri: RunUri
    existing: bool
    """The run was planned before, and nothing was sent again."""
    notices: tuple[str, ...] = ()
    rest_rows: int = 0
    """Rows after the limit, which the plan leaves out."""
    whole: Estimate | None = None
    """What all rows would take, when the plan has a limit."""
    uploaded_bytes: int = 0


async def plan_run(
    request: PlanRequest,
    stack: Stack,
    store: Store,
    worker_store: Store,
    events: Events | None = None,
    *,
    throughput: Throughput | None = None,
    open_bucket: Callable[[str], Store] | None = None,
    dry_run: bool = False,
) -> PlannedRun:
    """Check, cut, price and (unless `dry_run`) store a run. `store` has the client's keys, `worker_store` the worker's.

    `throughput`: what runs of the past showed; it changes prices and pace, never shards. Sets the proven mode on both stores.
    Raises DatasetError (bad rows, no rows, a dataset that changed), UsageError, PlanMismatch, StoreError.
    """
    facts = stack.facts
    endpoint = facts.endpoint_for(request.model, request.task)
    check_request(request)
    opened: list[Store] = []

    def bucket(name: str) -> Store:
        if name == store.bucket:
            return store
        if open_bucket is not None:
            return open_bucket(name)
        opened.append(S3Store(msgspec.structs.replace(stack.secrets.s3, bucketName=name)))
        return opened[-1]

    try:
        files = await find_files(request.dataset, bucket)
        _check_out(request, files)
        async with _Thread(events) as thread:
            total = sum(file.size for file in files)
            models = tuple(dict.fromkeys((endpoint.model, request.model, endpoint.name)))
            reader = await thread.run(lambda: open_reader(files, request.task, request.rows, models, thread.source))
            in_place = reader.batch and all(
                f.format == "jsonl" and not f.compression and f.store is store and f.key and _IN_PLACE_KEY.fullmatch(f.key) for f in files
            )
            columns = request.keep_columns and not reader.batch
            thread.step("check", total)
            scan, watch = await thread.run(
                lambda: preflight(
                    reader,
                    on_bad_row=request.rows.on_bad_row,
                    limit=request.rows.limit,
                    columns=columns,
                    in_place=in_place,
                    list_to=request.list_bad_rows_to,
                    again=lambda: thread.step("again", total),
                )
            )
            try:
                return await _plan(request, stack, endpoint, store, worker_store, reader, scan, watch, thread, throughput, bucket, dry_run)
            finally:
                scan.close()
    finally:
        for other in opened:
            await other.close()


def _check_out(request: PlanRequest, files: Sequence[DataFile]) -> None:
    """Refuse an output that is a file of the dataset, or that the same command would take for one. Raises UsageError."""
    if request.out is None:
        return
    where, fix = f"--out {request.out}", "Name another place."
    names = output_names(request.out)
    if not is_s3(names.out):
        outputs = {os.path.realpath(name) for name in (names.out, names.errors, names.seal)}
        if any(file.path is not None and os.path.realpath(file.path) in outputs for file in files):
            raise UsageError("this is a file of the dataset, which would be replaced.", where=where, fix=fix)
        folder = os.path.dirname(os.path.realpath(names.out))
        inside = [name for name in request.dataset if os.path.isdir(name) and f"{folder}/".startswith(f"{os.path.realpath(name)}/")]
    else:
        if any(file.name in (names.out, names.errors, names.seal) for file in files):
            raise UsageError("this is a file of the dataset, which would be replaced.", where=where, fix=fix)
        inside = [name for name in request.dataset if name.startswith("s3://") and names.out.startswith(name.rstrip("/") + "/")]
    if inside:
        raise UsageError(f"this lies in {inside[0]}, and would be read as data the next time.", where=where, fix=fix)


def check_request(request: PlanRequest, *, dtype: Dtype = "float32") -> None:
    """All that can be told of a request by itself, before a stack is asked or a row is read. Raises UsageError."""
    for option, value in (("--again", request.again), ("--name", request.name)):
        if value is not None and not _NAME.fullmatch(value):
            raise UsageError(f"{option} {value!r} is not a name.", fix="Use up to 40 small letters, digits and hyphens.")
    if request.budget_usd is not None and not 0 <= request.budget_usd < float("inf"):
        raise UsageError("--budget must be a sum in dollars.")
    check_ways(request.rows, request.task)
    check_dtype(request.task, output_names(request.out).format if request.out is not None else _format(request), dtype)
    if request.rows.limit is not None and request.rows.limit < 1:
        raise UsageError("--limit must be at least 1.")
    if request.pace is not None and request.pace < 1:
        raise UsageError("--pace must be at least 1.")
    if request.rows_per_shard is not None and request.rows_per_shard < 1:
        raise UsageError("the rows of a shard must be at least 1.")
    check_params(request.task, request.params)
    try:
        encode(request.params)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        raise UsageError("the task's parameters cannot be written as JSON.") from None


async def _plan(
    request: PlanRequest,
    stack: Stack,
    endpoint: EndpointFacts,
    store: Store,
    worker_store: Store,
    reader: Reader,
    scan: Scan,
    watch: frozenset[int],
    thread: _Thread,
    throughput: Throughput | None,
    bucket: Callable[[str], Store],
    dry_run: bool,
) -> PlannedRun:
    facts = stack.facts
    prefix = facts.store.folder
    root = f"{prefix}/runs" if prefix else "runs"
    mode = await probe_mode(worker_store, root)
    store.mode = worker_store.mode = mode
    task = TaskSpec(kind=request.task, model=endpoint.model, revision=request.revision, params=request.params)
    implied = COMPLETION_MAX_TOKENS if reader.lines is not None and reader.lines.url == CompletionUrl else None
    context = endpoint.max_model_len
    cut = await thread.run(lambda: cut_shards(scan, task, rows_per_shard=request.rows_per_shard, implied=implied, context=context))
    plan_id = plan_id_of(scan.digest, task, [(s.start, s.stop) for s in cut.shards], mode)
    run_id = run_id_of(request.name or _slug(request.dataset), request.task, plan_id, request.again)
    uri = RunUri.parse(f"s3://{store.bucket}/{root}/{run_id}")
    emulated = on_this_machine(facts.api_url)
    speed = throughput or reference(endpoint, request.task, emulated=emulated)
    work = cut.work
    pace = request.pace or choose_pace(work, worker_seconds(work, speed, endpoint, emulated=emulated).likely, endpoint)
    whole = None
    if scan.rest_rows:
        whole = _whole(scan, cut, speed, endpoint, request.pace, emulated)
    notices = [
        *_notices(reader, scan, whole),
        *_limits(reader, cut, task, context),
        *_renames(request, reader),
        *([] if endpoint.workers_max else [f"endpoint {endpoint.name} allows no worker now."]),
    ]
    draft = Plan(
        plan_id=plan_id,
        run_id=run_id,
        run=str(uri),
        created_at=store.now(),
        dataset=DatasetFacts(
            files=tuple(
                FileFacts(name=Path(file.name).name if is_scratch(file.name) else file.name, size=file.size, rows=stop - start)
                for file, start, stop in zip(reader.files, scan.starts, [*scan.starts[1:], scan.rows], strict=True)
            ),
            format="batch" if reader.batch else reader.format,
            rows=scan.rows,
            skipped=scan.skipped,
            digest=scan.digest,
        ),
        rows=reader.options,
        task=task,
        store=StorePin(bucket=store.bucket, endpoint_url=store.endpoint_url, mode=mode),
        infra=pin(facts.stack, facts.api_url, endpoint),
        shards=_shard_plans(scan, cut, reader, uri),
        pace=pace,
        max_attempts=request.max_attempts,
        estimate=estimate(work, speed, endpoint, pace, emulated=emulated),
        budget_usd=request.budget_usd,
        output=OutputSpec(path=None if request.out is None or is_scratch(request.out) else request.out, format=_format(request)),
    )

    if request.out is not None:  # a name that is made of the run's is its own
        notices += await check_output(store, uri.keys, draft, output_names(request.out), open_store=bucket)

    def done(plan: Plan, existing: bool, sent: int = 0) -> PlannedRun:
        return PlannedRun(plan, uri, existing, tuple(notices), scan.rest_rows, whole, sent)

    standing = await get_or_none(store, uri.keys.plan())
    if standing is not None:
        there: Plan = decode_stored(standing.data, Plan, where=f"s3://{store.bucket}/{uri.keys.plan()}")
        _same_run(there, draft)
        await _same_columns(store, there, draft, scan, thread)
        notices += _differences(there, draft, request)
        return done(there, existing=True)
    if dry_run:
        return done(draft, existing=False)
    plan, sent = await _send(store, reader, scan, watch, draft, uri, thread, columns=request.keep_columns and not reader.batch)
    data = await put_first(store, uri.keys.plan(), encode(plan))
    there = decode_stored(data, Plan, where=f"s3://{store.bucket}/{uri.keys.plan()}")
    _same_run(there, plan)
    return done(there, existing=data != encode(plan), sent=sent)


# --- identities ----------------------------------------------------------------------------------------------------------------------


def plan_id_of(digest: str, task: TaskSpec, boundaries: Sequence[tuple[int, int]], mode: StoreMode) -> str:
    """sha256 over row digests (as the digest over them), task, model, revision, parameters, shard boundaries and the store's mode."""
    return hashlib.sha256(encode(["nightbatch plan 1", digest, task, [list(b) for b in boundaries], mode])).hexdigest()


def run_id_of(slug: str, task: TaskKind, plan_id: str, again: str | None = None) -> str:
    """`reviews-embed-1a2b3c4d`, or `reviews-embed-tuesday-1a2b3c4d` for another run of the same plan."""
    return "-".join([slug, task, *([again] if again else []), plan_id[:8]])


def _slug(named: Sequence[str]) -> str:
    """The dataset's name in small letters, digits and hyphens: file name without endings, or the folder's, prefix's or glob's stem."""
    parts = [part for part in re.sub(r"^s3://", "", named[0]).split("/") if part and not re.search(r"[*?\[\]]", part) and part.strip(".")]
    stem = re.sub(r"\.(jsonl|ndjson|json|csv|tsv|parquet|pq|gz|gzip|zst|zstd)\b", "", (parts or ["dataset"])[-1].lower())
    slug = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-")
    return slug or "dataset"


def pin(stack: str, api_url: str, endpoint: EndpointFacts) -> PinnedInfra:
    """The infrastructure that a plan counts on."""
    return PinnedInfra(
        stack=stack,
        endpoint=endpoint.name,
        endpoint_id=endpoint.id,
        api_url=api_url,
        model=endpoint.model,
        image=endpoint.image,
        gpu=endpoint.gpu,
        gpu_count=endpoint.gpu_count,
        usd_per_second=endpoint.usd_per_second,
        scaler=endpoint.scaler,
        scaler_value=endpoint.scaler_value,
        shards_per_worker=endpoint.shards_per_worker,
        workers_max=endpoint.workers_max,
        execution_timeout_s=endpoint.execution_timeout_s,
        cold_start_s=endpoint.cold_start_s,
    )


def compare(plan: Plan, other: Plan) -> tuple[str, ...]:
    """What of dataset, task, model, parameters, shards and store differs between a run's plan and another, one sentence each."""
    found: list[str] = []

    def differ(what: str, was: Any, now: Any) -> None:
        if was != now:
            found.append(f"{what} was {was} in the plan, and is {now} now.")

    if plan.dataset.digest != other.dataset.digest:
        if plan.dataset.rows != other.dataset.rows:
            found.append(f"The dataset had {plan.dataset.rows:,} rows in the plan, and has {other.dataset.rows:,} now.")
        else:
            found.append(f"The dataset's {plan.dataset.rows:,} rows are not the same ones as in the plan.")
        for name in ("prompt", "column", "messages_column", "id_column", "limit", "on_bad_row"):
            differ(f"--{name.replace('_', '-')}", getattr(plan.rows, name), getattr(other.rows, name))
    differ("The task", plan.task.kind, other.task.kind)
    differ("The model", plan.task.model, other.task.model)
    differ("The model's revision", plan.task.revision, other.task.revision)
    for name in sorted({*plan.task.params, *other.task.params}):
        differ(f"Parameter `{name}`", plan.task.params.get(name, "not set"), other.task.params.get(name, "not set"))
    if not found and [s.source.rows for s in plan.shards] != [s.source.rows for s in other.shards]:
        found.append(f"The rows were cut into {len(plan.shards)} shards in the plan, and into {len(other.shards)} others now.")
    differ("The store's kind", plan.store.mode, other.store.mode)
    return tuple(found)


def _same_run(there: Plan, made: Plan) -> None:
    if there.plan_id == made.plan_id:
        return
    what = " ".join(compare(there, made)) or "It was planned by another version of Nightbatch."
    raise PlanMismatch(f"the run exists and has another plan. {what}", where=there.run, fix="Use --again NAME for a run of its own.")


def _differences(there: Plan, draft: Plan, request: PlanRequest) -> list[str]:
    """What the request asked for and the existing plan says otherwise, though the rows to compute are the same."""
    out = []
    if request.pace is not None and there.pace != draft.pace:
        out.append(f"this run was planned before, with a pace of {there.pace}, which stays.")
    if there.infra.endpoint_id != draft.infra.endpoint_id:
        out.append(f"this run was planned for endpoint {there.infra.endpoint} ({there.infra.endpoint_id}), which stays.")
    if there.max_attempts != draft.max_attempts:
        out.append(f"this run was planned with at most {there.max_attempts} attempts a shard, which stays.")
    return out


async def _same_columns(store: Store, there: Plan, draft: Plan, scan: Scan, thread: _Thread) -> None:
    """Equal rows may come from tables whose other columns differ; a table output would join the wrong ones without a word."""
    reference_ = there.shards[0].columns
    if scan.columns_mark is None:
        return
    if reference_ is None:
        if draft.output.format == "parquet":
            raise PlanMismatch(
                "the run exists, and was planned without keeping the original columns, which a Parquet output joins.",
                where=there.run,
                fix="Collect it as JSONL, or use --again NAME for a run of its own (which is paid again).",
            )
        return
    blob = await store.get(reference_.key)

    def kept() -> str | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from pipelines.table import FINGERPRINT

        metadata = pq.read_schema(pa.BufferReader(blob.data)).metadata or {}
        value: bytes | None = metadata.get(FINGERPRINT)
        return value.decode() if value else None

    if await thread.run(kept) != scan.columns_mark:
        raise PlanMismatch(
            "the run exists for the same rows, but other columns of the table have changed since, and its output would join the old ones.",
            where=there.run,
            fix="Use --again NAME for a run of its own (which is paid again), or collect the run as it is.",
        )


# --- shards --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CutShard:
    """One shard before it has a place. `span`: its bytes in its file, if it is read in place."""

    start: int
    stop: int
    tokens_in: int
    limits_out: int
    bytes: int
    span: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Cut:
    """All shards, and what they add up to."""

    shards: tuple[CutShard, ...]
    work: Work
    open_rows: int = 0
    """Rows whose output nothing limits but the model's context."""


def cut_shards(
    scan: Scan, task: TaskSpec, *, rows_per_shard: int | None = None, implied: int | None = None, context: int | None = None
) -> Cut:
    """Where shards begin and end: a function of the rows, the task and `rows_per_shard` alone; and what they add up to.

    `implied`: the limit that rows without one have by their url; `context`: the model's length in tokens, None where no fact says it. Both
    move the estimate, and no boundary.
    """
    import numpy as np

    rules = RULES[task.kind]
    lengths = np.frombuffer(scan.lengths, dtype=np.uint32)
    tokens_in = row_tokens(scan.lengths, scan.sample.milli_tokens_per_byte)
    limits: NDArray[np.int64] = np.zeros(len(lengths), dtype=np.int64)
    usual = most = limits
    open_rows = 0
    if task.kind == "generate":
        limits = np.frombuffer(scan.most, dtype=np.uint32).astype(np.int64)
        unsaid = limits == 0
        told = told_limit(task)
        limits[unsaid] = told or TOKENS_OUT
        usual = most = limits
        if told is None and implied is not None:
            usual = most = np.where(unsaid, implied, limits)
        elif told is None:
            open_rows = int(unsaid.sum())
            longest = np.maximum((context or CONTEXT_ASSUMED) - tokens_in, 1)
            most = np.where(unsaid, longest, limits)
            usual = np.where(unsaid, np.minimum(TOKENS_OUT, longest), limits)
    shards = pack(tokens_in, limits, lengths, rules, rows_per_shard=rows_per_shard)
    spans: list[tuple[int, int, int] | None] = [None] * len(shards)
    if scan.offsets is not None:
        # A shard has one source, so that shards of several files begin where files do. Many small files are better copied.
        apart = pack(tokens_in, limits, lengths, rules, breaks=scan.starts, rows_per_shard=rows_per_shard)
        if len(apart) <= 2 * len(shards) + 1:
            shards = apart
            spans = list(_spans(scan, lengths, shards))
    made = tuple(
        CutShard(a, b, int(tokens_in[a:b].sum()), int(limits[a:b].sum()), int(lengths[a:b].sum(dtype=np.int64)), span)
        for (a, b), span in zip(shards, spans, strict=True)
    )
    low, likely, _ = output_tokens(int(usual.sum()))
    work = Work(len(made), scan.rows, sum(s.tokens_in for s in made), low, likely, int(most.sum()))
    return Cut(made, work, open_rows)


def _spans(scan: Scan, lengths: NDArray[np.uint32], shards: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    assert scan.offsets is not None
    place = 0
    for start, stop in shards:
        while place + 1 < len(scan.starts) and scan.starts[place + 1] <= start:
            place += 1
        yield place, scan.offsets[start], scan.offsets[stop - 1] + int(lengths[stop - 1])


def told_limit(task: TaskSpec) -> int | None:
    """The output limit of rows that say none themselves, as the task's parameters have it."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = task.params.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return min(value, 1 << 31)
    return None


def _shard_plans(scan: Scan, cut: Cut, reader: Reader, uri: RunUri) -> tuple[ShardPlan, ...]:
    made = []
    for number, shard in enumerate(cut.shards):
        name = shard_name(number)
        where, span = f"s3://{uri.bucket}/{uri.keys.input(name)}", None
        if shard.span is not None:
            place, begin, end = shard.span
            where, span = f"s3://{uri.bucket}/{reader.files[place].key}", (begin, end)
        rows = (shard.start, shard.stop)
        source = Source(uri=where, rows=rows, bytes=span, count=shard.stop - shard.start, digest=scan.digests.of(*rows))
        out = shard.limits_out * 3 // 5
        made.append(ShardPlan(shard=name, source=source, tokens=shard.tokens_in + out, bytes=shard.bytes))
    return tuple(made)


def _whole(scan: Scan, cut: Cut, speed: Throughput, endpoint: EndpointFacts, pace: int | None, emulated: bool) -> Estimate:
    """The estimate of all rows, from those before the limit and the bytes of the others."""
    size = sum(s.bytes for s in cut.shards)
    share = (size + scan.rest_bytes) / size
    work = Work(
        shards=max(1, round(cut.work.shards * share)) if cut.work.shards > 1 else max(1, round((scan.rows + scan.rest_rows) / 512)),
        rows=scan.rows + scan.rest_rows,
        tokens_in=round(cut.work.tokens_in * share),
        out_low=round(cut.work.out_low * (scan.rows + scan.rest_rows) / scan.rows),
        out_likely=round(cut.work.out_likely * (scan.rows + scan.rest_rows) / scan.rows),
        out_high=round(cut.work.out_high * (scan.rows + scan.rest_rows) / scan.rows),
    )
    wanted = pace or choose_pace(work, worker_seconds(work, speed, endpoint, emulated=emulated).likely, endpoint)
    return estimate(work, speed, endpoint, wanted, emulated=emulated)


def _notices(reader: Reader, scan: Scan, whole: Estimate | None) -> Iterator[str]:
    if reader.other_models:
        names = ", ".join(f"{name!r} ({count:,})" for name, count in reader.other_models.most_common(3))
        yield f"{_rows(reader.other_models.total(), 'names')} another model, {names}; the run's model, {reader.models[0]!r}, answers all."
    if scan.skipped:
        many = f"{scan.skipped:,} bad rows are" if scan.skipped != 1 else "1 bad row is"
        yield f"{many} left out ({scan.bad.summary()}) and will stand in the errors file."
    if scan.bad.total > scan.skipped:
        more = scan.bad.total - scan.skipped
        yield f"{more:,} more bad rows follow after the limit." if more != 1 else "1 more bad row follows after the limit."
    if whole is not None:
        yield (
            f"this is a trial of {scan.rows:,} rows of {scan.rows + scan.rest_rows:,}; all of them would take about "
            f"{whole.seconds.likely:,.0f} s and ${whole.usd.likely:,.4f} (${whole.usd.low:,.4f} to ${whole.usd.high:,.4f})."
        )


def _limits(reader: Reader, cut: Cut, task: TaskSpec, context: int | None) -> Iterator[str]:
    """What a price rests on that nobody said, and parameters that rows do not follow because they have their own."""
    if cut.open_rows:
        most = f"all of the model's {context:,}" if context else f"{CONTEXT_ASSUMED:,} (the stack does not say the model's length)"
        yield (
            f"{_rows(cut.open_rows, 'sets')} no output limit: up to {TOKENS_OUT} tokens of answer are assumed for the likely price, "
            f"and for the high one {most}, less the row's own. Give --max-tokens."
        )
    given = reader.lines.fields if reader.lines is not None else {}
    both = ("max_tokens", "max_completion_tokens")
    for name, value in task.params.items():
        # One limit of answers stands for the other, in a row as in the parameters.
        fields = both if name in both else (name,)
        if value is not None and (own := max(given.get(one, 0) for one in fields)):
            named = next(one for one in fields if given.get(one, 0) == own)
            itself = "itself" if own == 1 else "themselves"
            them = "it" if own == 1 else "them"
            yield f"{_rows(own, 'sets')} {named} {itself}; {name}={_short(value)} of this command does not change {them}."


def _rows(count: int, verb: str) -> str:
    """`1 row sets`, `2,000 rows set`."""
    return f"1 row {verb}" if count == 1 else f"{count:,} rows {verb.removesuffix('s')}"


def _short(value: Any) -> str:
    text = encode(value).decode()
    return text if len(text) <= 40 else text[:39] + "…"


def _renames(request: PlanRequest, reader: Reader) -> Iterator[str]:
    """Columns that a table output will call otherwise, said before it is paid for."""
    if reader.batch or not request.keep_columns or _format(request) != "parquet":
        return
    for old, new in layout_of(request.task, reader.columns, id_column=reader.options.id_column).renamed.items():
        keep = " (--id-column id would keep it)" if old == "id" else ""
        yield f"column `{old}` will be `{new}` in the output, because `{old}` is a column of results there{keep}."


def _format(request: PlanRequest) -> Literal["jsonl", "parquet"]:
    if request.output_format is not None:
        return request.output_format
    if request.out is not None:
        name = request.out.lower()
        if name.endswith((".parquet", ".pq")):
            return "parquet"
        if name.endswith((".jsonl", ".ndjson")):
            return "jsonl"
        raise UsageError(f"the output {request.out!r} must end in .jsonl or .parquet.")
    return "parquet" if request.task == "embed" else "jsonl"


# --- the second reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sending:
    number: int
    data: bytes | None
    table: Path | None


async def _send(
    store: Store, reader: Reader, scan: Scan, watch: frozenset[int], plan: Plan, uri: RunUri, thread: _Thread, *, columns: bool
) -> tuple[Plan, int]:
    """Send input objects, columns and skipped rows; the plan with references to them, and the bytes sent."""
    sent = 0
    skipped: ObjectRef | None = None
    if scan.skipped:
        data = scan.bad.compressed()
        skipped = await put_object(store, uri.keys.skipped(), data)
        sent += len(data)
    tables: dict[int, ObjectRef] = {}
    copied = plan.shards[0].source.bytes is None
    if copied or columns:
        thread.step("upload", len(plan.shards))
        queue: asyncio.Queue[_Sending | None] = asyncio.Queue(maxsize=2)
        with scratch_folder() as folder:

            async def produce() -> None:
                await thread.run(lambda: _replay(reader, scan, watch, plan, folder, columns, thread, queue))
                for _ in range(UPLOADS):
                    await queue.put(None)

            async def upload() -> None:
                nonlocal sent
                while (item := await queue.get()) is not None:
                    shard = plan.shards[item.number]
                    if item.data is not None:
                        await store.put(uri.keys.input(shard.shard), item.data)
                        sent += len(item.data)
                    if item.table is not None:
                        tables[item.number] = await put_object(store, uri.keys.columns(shard.shard), item.table)
                        sent += tables[item.number].size
                        item.table.unlink()
                    thread.advance(1)

            await _all([produce(), *(upload() for _ in range(UPLOADS))], thread)
    shards = tuple(msgspec.structs.replace(s, columns=tables.get(n)) for n, s in enumerate(plan.shards))
    dataset = msgspec.structs.replace(plan.dataset, skipped_object=skipped)
    return msgspec.structs.replace(plan, shards=shards, dataset=dataset), sent


async def _all(coroutines: Sequence[Any], thread: _Thread) -> None:
    """All of them, or the first error, and none is left running."""
    tasks = [asyncio.ensure_future(c) for c in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        if any(not task.done() for task in tasks):
            await thread.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _replay(
    reader: Reader,
    scan: Scan,
    watch: frozenset[int],
    plan: Plan,
    folder: Path,
    columns: bool,
    thread: _Thread,
    queue: asyncio.Queue[_Sending | None],
) -> None:
    """In the thread: read the rows again, prove that they are the same, hand over shard after shard."""
    schema, kinds = _schema(reader, scan) if columns else (None, None)
    with closing(reader.rows(lambda *_: None, watch=watch, records=columns)) as rows:
        _pack_rows(rows, reader, scan, plan, folder, schema, kinds, thread, queue)


def _pack_rows(
    rows: Iterator[Row],
    reader: Reader,
    scan: Scan,
    plan: Plan,
    folder: Path,
    schema: pa.Schema | None,
    kinds: dict[str, Kind] | None,
    thread: _Thread,
    queue: asyncio.Queue[_Sending | None],
) -> None:
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    index = 0
    for number, shard in enumerate(plan.shards):
        digest = InputDigest()
        packer = compressor.compressobj()
        pieces: list[bytes] = []
        table: TableWriter | None = None
        if schema is not None:
            from pipelines.table import TableWriter

            table = TableWriter(folder / f"{shard.shard}.parquet", schema, kinds, scan.columns_mark)
        try:
            for _ in range(shard.source.count):
                row = next(rows, None)
                if row is None:
                    break
                digest.add(row_digest(index, row[3], row[4]))
                if piece := packer.compress(row[4] + b"\n"):
                    pieces.append(piece)
                if table is not None:
                    table.add(row[6])
                index += 1
            if digest.hexdigest() != shard.source.digest:
                raise DatasetError(
                    f"the dataset changed while it was planned (rows {shard.source.rows[0]:,} to {shard.source.rows[1] - 1:,}).",
                    where=reader.files[0].name if len(reader.files) == 1 else None,
                    fix="Nothing was sent to RunPod; run the command again when nobody writes to it.",
                )
            pieces.append(packer.flush())
            path = table.close() if table is not None else None
        except BaseException:
            if table is not None:
                table.abandon()
            raise
        thread.hand(queue, _Sending(number, b"".join(pieces) if shard.source.bytes is None else None, path))


def _schema(reader: Reader, scan: Scan) -> tuple[pa.Schema, dict[str, Kind] | None]:
    from pipelines.dataset.records import open_parquet
    from pipelines.table import json_schema, unify

    if reader.format == "csv":
        texts: dict[str, Kind] = dict.fromkeys(reader.columns, "str")
        return json_schema(texts), texts
    if reader.format == "jsonl":
        assert scan.kinds is not None
        kinds: dict[str, Kind] | None = scan.kinds.columns()
        return json_schema(kinds), kinds
    schemas = []
    for file in reader.files:
        with reader.source.seekable(file) as handle:
            schemas.append((file.name, open_parquet(handle, file.name).schema_arrow))
    return unify(schemas), {}


class _Thread:
    """Runs the reading of rows beside the event loop, so that uploads and progress go on; stops it when the caller is cancelled."""

    def __init__(self, events: Events | None) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._running: asyncio.Future[Any] | None = None
        self._step: Literal["check", "again", "upload"] = "check"
        self._done = self._total = 0
        self._said = 0.0
        self.source = dataset_streams.Source(self._loop, self._stop, self._read)

    async def __aenter__(self) -> _Thread:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def run(self, work: Callable[[], Any]) -> Any:
        """`work` in a thread. When this is cancelled the thread is stopped and waited for."""
        self._running = self._loop.run_in_executor(None, work)
        try:
            return await asyncio.shield(self._running)
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the thread at its next chunk or shard."""
        if self._running is not None and not self._running.done():
            self._stop.set()
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.exception()  # it is Interrupted, and the caller has the reason

    def hand(self, queue: asyncio.Queue[_Sending | None], item: _Sending) -> None:
        """From the thread: put into a bounded queue of the loop, waiting for room."""
        putting = asyncio.run_coroutine_threadsafe(queue.put(item), self._loop)
        while True:
            try:
                putting.result(timeout=0.2)
                return
            except TimeoutError:
                try:
                    self.source.check()
                except BaseException:
                    putting.cancel()
                    raise

    def step(self, name: Literal["check", "again", "upload"], total: int) -> None:
        """A new step begins."""
        self._step, self._done, self._total, self._said = name, 0, total, 0.0
        self._tell()

    def advance(self, count: int) -> None:
        """On the loop."""
        self._done += count
        self._tell()

    def _read(self, count: int) -> None:
        """In the thread: bytes of files that were read. Uploading counts shards instead."""
        if self._total and self._step != "upload":  # not the look at the beginning
            self._done += count
            if time.monotonic() - self._said >= _TICK_S or self._done >= self._total:
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        now = time.monotonic()
        if self._events is not None and (now - self._said >= _TICK_S or self._done >= self._total):
            self._said = now
            self._events(PlanEvent(self._step, min(self._done, self._total), self._total))
