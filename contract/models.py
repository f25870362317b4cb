"""contract: the job and every object of a run, as strict frozen models (DESIGN.md, The job contract; PROTOCOL.md, Objects). Pure.

An unknown version or field, a missing field or a wrong type is a ContractError whose one sentence names the field. Instants are the
store's (timezone-aware, UTC); durations are seconds unless the name says otherwise; money is US dollars.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from contract.errors import ContractError, Damaged

VERSION: Final = 1

Hex64 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
"""A sha256, or a sum of them mod 2^256, in hex."""
ExecutionId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
"""64 random bits in hex, drawn by the worker at each delivery."""
ShardId = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{5,}(\.[0-9]+)*$", max_length=120)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Usd = Annotated[float, msgspec.Meta(ge=0)]
RowRange = tuple[Count, Count]
"""Row indices [start, stop) in dataset order."""
TaskKind = Literal["generate", "embed"]
StoreMode = Literal["conditional", "last-writer"]
RunMode = Literal["run", "keep", "stop"]
"""control.json: `run`; `keep`: start nothing new, let running executions finish; `stop`: running executions keep pieces and end."""
Outcome = Literal["won", "lost", "already", "fenced", "mismatch", "expired", "credentials", "input_changed", "partial"]
"""How an execution ended (PROTOCOL.md, A worker's execution)."""


REFUSAL: Final = "refused: "
"""How the error of a job begins that a worker will never take, because the job itself is not as it must be: no client sends it again."""


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every model here."""


# --- the job -------------------------------------------------------------------------------------------------------------------------


class Source(Model, frozen=True, kw_only=True):
    """Where a shard's rows are.

    `uri`: an input object (`….jsonl.zst`), or a plain JSONL dataset that can be read in place; then `bytes` is the range [start, stop)
    of its lines. `rows`: their indices. `digest`: sha256 over the row digests in index order (contract.rows.InputDigest).
    """

    uri: str
    rows: RowRange
    bytes: tuple[Count, Count] | None = None
    count: Annotated[int, msgspec.Meta(ge=1)]
    digest: Hex64


class TaskSpec(Model, frozen=True, kw_only=True):
    """What is done to each row. `params` are default body fields that a row's own body overrides; for `embed` see worker/tasks."""

    kind: TaskKind
    model: Annotated[str, msgspec.Meta(min_length=1)]
    revision: str | None = None
    params: dict[str, Any] = {}


class ObjectRef(Model, frozen=True, kw_only=True):
    """One immutable object, as the one that wrote it saw it."""

    key: str
    size: Count
    sha256: Hex64
    etag: str


class PieceRef(Model, frozen=True, kw_only=True):
    """Finished rows of an earlier execution of the same shard."""

    key: str
    sha256: Hex64
    rows: Count


class JobInput(Model, frozen=True, kw_only=True):
    """`input` of `POST /run`. Carries no credentials: RunPod posts it back to the webhook."""

    version: int
    run: str
    plan: Hex64
    shard: ShardId
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    epoch: Count
    source: Source
    start_by: Instant
    deadline_s: Annotated[float, msgspec.Meta(gt=0)]
    pieces: tuple[PieceRef, ...] = ()
    task: TaskSpec


class S3Config(Model, frozen=True, kw_only=True):
    """`s3Config` of `POST /run`: RunPod passes it to the worker as it is. Field names are RunPod's."""

    accessId: str
    accessSecret: str
    bucketName: str
    endpointUrl: str

    def __repr__(self) -> str:
        return f"S3Config(bucketName={self.bucketName!r}, endpointUrl={self.endpointUrl!r}, accessId=<hidden>, accessSecret=<hidden>)"


class Policy(Model, frozen=True, kw_only=True):
    """`policy` of `POST /run`, in milliseconds (RunPod: executionTimeout 5 s to 7 days, ttl 10 s to 7 days)."""

    lowPriority: bool
    executionTimeout: Annotated[int, msgspec.Meta(ge=5_000, le=604_800_000)]
    ttl: Annotated[int, msgspec.Meta(ge=10_000, le=604_800_000)]


class JobRequest(Model, frozen=True, kw_only=True, omit_defaults=True):
    """The whole body of `POST /run`."""

    input: JobInput
    s3Config: S3Config
    policy: Policy
    webhook: str | None = None


class PhaseSeconds(Model, frozen=True, kw_only=True):
    """Where an execution's time went. `loading` is the engine's start, counted only by the first execution of its process."""

    loading: Seconds = 0.0
    reading: Seconds = 0.0
    computing: Seconds = 0.0
    writing: Seconds = 0.0


class Summary(Model, frozen=True, kw_only=True):
    """A worker's answer: a hint for the client, never the result."""

    version: int = VERSION
    outcome: Outcome
    plan: Hex64
    shard: ShardId
    attempt: int
    execution: ExecutionId
    ok: Count = 0
    failed: Count = 0
    tokens_in: Count = 0
    tokens_out: Count = 0
    seconds: PhaseSeconds = PhaseSeconds()
    peak_rss_bytes: Count = 0
    part: str | None = None
    etag: str | None = None
    versions: dict[str, str] = {}
    detail: str | None = None


# --- the objects of a run ------------------------------------------------------------------------------------------------------------


class FileFacts(Model, frozen=True, kw_only=True):
    """One file of the dataset as it was read. `name`: as the user gave it, or the key under its prefix."""

    name: str
    size: Count
    rows: Count


class DatasetFacts(Model, frozen=True, kw_only=True):
    """What the plan is a plan of. `digest`: sha256 over all row digests in index order; `skipped`: rows left out by preflight."""

    files: tuple[FileFacts, ...]
    format: str
    rows: Count
    skipped: Count = 0
    skipped_object: ObjectRef | None = None
    digest: Hex64


class RowOptions(Model, frozen=True, kw_only=True):
    """How rows were made from records; kept so that a later run of the same file can be compared with this plan."""

    prompt: str | None = None
    column: str | None = None
    messages_column: str | None = None
    id_column: str | None = None
    on_bad_row: Literal["fail", "skip"] = "fail"
    limit: int | None = None


class PinnedInfra(Model, frozen=True, kw_only=True):
    """The infrastructure that the plan counted on. A changed `image` in the middle of a run pauses it."""

    stack: str
    endpoint: str
    endpoint_id: str
    api_url: str
    model: str
    image: str | None = None
    gpu: str
    gpu_count: Annotated[int, msgspec.Meta(ge=1)] = 1
    usd_per_second: Usd
    scaler: Literal["QUEUE_DELAY", "REQUEST_COUNT"]
    scaler_value: float
    shards_per_worker: Annotated[int, msgspec.Meta(ge=1)]
    workers_max: Count
    execution_timeout_s: Seconds
    cold_start_s: Seconds


class StorePin(Model, frozen=True, kw_only=True):
    """The store of the run and what was proven of it. `mode` is never assumed and never downgraded."""

    bucket: str
    endpoint_url: str
    mode: StoreMode


class Range3(Model, frozen=True, kw_only=True):
    """Low, likely, high."""

    low: float
    likely: float
    high: float


class Estimate(Model, frozen=True, kw_only=True):
    """What the run is expected to take. Not part of the plan id."""

    workers: Count
    tokens_in: Count
    tokens_out: Count
    seconds: Range3
    usd: Range3
    basis: str


class ShardPlan(Model, frozen=True, kw_only=True):
    """One shard of the plan. `tokens`: estimated tokens in and out; `bytes`: of its row lines before compression."""

    shard: ShardId
    source: Source
    tokens: Count
    bytes: Count
    columns: ObjectRef | None = None


class OutputSpec(Model, frozen=True, kw_only=True):
    """What collect makes by default. `format` jsonl: OpenAI batch lines; parquet: original columns joined."""

    path: str | None
    format: Literal["jsonl", "parquet"]


class Plan(Model, frozen=True, kw_only=True):
    """plan.json: the immutable description of a run."""

    version: int = VERSION
    plan_id: Hex64
    run_id: str
    run: str
    created_at: Instant
    dataset: DatasetFacts
    rows: RowOptions
    task: TaskSpec
    store: StorePin
    infra: PinnedInfra
    shards: tuple[ShardPlan, ...]
    pace: Annotated[int, msgspec.Meta(ge=1)]
    max_attempts: Annotated[int, msgspec.Meta(ge=1)] = 5
    estimate: Estimate
    budget_usd: Usd | None = None
    output: OutputSpec


class Control(Model, frozen=True, kw_only=True):
    """control.json, the one mutable object: raised before `/cancel` is called."""

    version: int = VERSION
    plan: Hex64
    epoch: Count = 0
    mode: RunMode = "run"
    at: Instant
    by: str
    reason: str | None = None


class Intent(Model, frozen=True, kw_only=True):
    """Said before the `/run` call that it covers. `attempt` is drawn from the journal and never used twice."""

    attempt: Annotated[int, msgspec.Meta(ge=1)]
    shard: ShardId
    sent_at: Instant
    start_by: Instant
    ttl_s: Seconds
    execution_timeout_s: Seconds
    reserve_usd: Usd
    epoch: Count
    low_priority: bool


AttemptEnd = Literal["sent", "rejected", "unknown", "won", "lost", "dead", "expired"]


class AttemptNote(Model, frozen=True, kw_only=True):
    """What became of an attempt: a hint for whoever reads the journal, checked against commits before anything is paid again."""

    attempt: int
    client: str | None = None
    """Whose intent it was; None: the entry's own client's. On a last-writer store two clients may draw one number."""
    state: AttemptEnd
    job_id: str | None = None
    cause: str | None = None
    error: str | None = None
    """Why its job failed, in the worker's words, without secrets."""
    at: Instant


class JournalEntry(Model, frozen=True, kw_only=True):
    """journal/000017.json: at most 100 intents, and what became of earlier ones."""

    version: int = VERSION
    plan: Hex64
    number: Count
    client: str
    at: Instant
    intents: tuple[Intent, ...] = ()
    notes: tuple[AttemptNote, ...] = ()


class StartMarker(Model, frozen=True, kw_only=True):
    """starts/SHARD/EXEC.json: an execution began, so it costs. `load_s`: engine start, if this is the first execution of its process."""

    version: int = VERSION
    plan: Hex64
    shard: ShardId
    execution: ExecutionId
    attempt: int
    epoch: Count
    job_id: str
    worker_id: str
    image: str | None = None
    load_s: Seconds = 0.0
    at: Instant


class EndMarker(Model, frozen=True, kw_only=True):
    """ends/SHARD/EXEC.json: what the execution cost, also when it lost. `wall_s` excludes `load_s` of the start marker."""

    version: int = VERSION
    plan: Hex64
    shard: ShardId
    execution: ExecutionId
    attempt: int
    outcome: Outcome
    wall_s: Seconds
    seconds: PhaseSeconds
    ok: Count = 0
    failed: Count = 0
    tokens_in: Count = 0
    tokens_out: Count = 0
    peak_rss_bytes: Count = 0
    at: Instant


class PartCommit(Model, frozen=True, kw_only=True, tag="part", tag_field="kind"):
    """commits/SHARD.json: makes one execution's part the shard's result.

    `part` is None when no row succeeded, `errors` is None when none failed.
    """

    version: int = VERSION
    plan: Hex64
    shard: ShardId
    execution: ExecutionId
    attempt: int
    part: ObjectRef | None
    errors: ObjectRef | None
    ok: Count
    failed: Count
    tokens_in: Count
    tokens_out: Count
    input_digest: Hex64
    digest: Hex64
    """Shard digest (contract.rows.ShardDigest)."""
    image: str | None = None
    versions: dict[str, str] = {}
    at: Instant


class Child(Model, frozen=True, kw_only=True):
    """One child of a split: a contiguous run of its parent's rows."""

    shard: ShardId
    source: Source


class SplitCommit(Model, frozen=True, kw_only=True, tag="split", tag_field="kind"):
    """commits/SHARD.json: the shard's rows are now its children's."""

    version: int = VERSION
    plan: Hex64
    shard: ShardId
    children: Annotated[tuple[Child, ...], msgspec.Meta(min_length=2)]
    at: Instant


Commit = PartCommit | SplitCommit


class SealedNode(Model, frozen=True, kw_only=True):
    """A leaf as collect froze it."""

    shard: ShardId
    source: Source
    commit: PartCommit


class Seal(Model, frozen=True, kw_only=True):
    """seals/DIGEST.json: leaves in row order; they partition 0..rows-1. DIGEST is the sha256 of this object's bytes."""

    version: int = VERSION
    plan: Hex64
    rows: Count
    nodes: tuple[SealedNode, ...]


class SealPointer(Model, frozen=True, kw_only=True):
    """seal.json: the seal that everything reads through."""

    version: int = VERSION
    plan: Hex64
    seal: Hex64
    at: Instant


# --- encoding ------------------------------------------------------------------------------------------------------------------------

T = TypeVar("T")
_encoder: Final = msgspec.json.Encoder(order="deterministic")


def encode(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return _encoder.encode(value)


def decode(data: bytes, kind: type[T] | Any, *, where: str) -> Any:
    """Read a model strictly. Raises ContractError: one sentence that names the field (`where` says which object)."""
    try:
        value = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise ContractError(_sentence(str(error)), where=where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContractError(f"not JSON ({error}).", where=where) from None
    return _checked(value, where)


def decode_stored(data: bytes, kind: type[T] | Any, *, where: str) -> Any:
    """As `decode`, for an object of a run: that it cannot be read is not the user's input's fault. Raises Damaged."""
    try:
        return decode(data, kind, where=where)
    except ContractError as error:
        raise Damaged(
            f"this object of the run is damaged: {error.what}",
            where=where,
            fix=error.fix or "`nightbatch verify` says what else is; put the object back, or pay for a new run with --again NAME.",
        ) from None


def convert(value: Any, kind: type[T] | Any, *, where: str) -> Any:
    """As `decode`, for JSON that is already Python objects (a job's dict in the SDK)."""
    try:
        made = msgspec.convert(value, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise ContractError(_sentence(str(error)), where=where) from None
    return _checked(made, where)


def _checked(value: Any, where: str) -> Any:
    version = getattr(value, "version", VERSION)
    if version != VERSION:
        raise ContractError(
            f"`version` is {version}, and this Nightbatch reads version {VERSION}.",
            where=where,
            fix="Use the same Nightbatch on the client and in the worker image.",
        )
    return value


def _sentence(message: str) -> str:
    """msgspec says 'Expected `int`, got `str` - at `$.source.rows[0]`'; put the field first."""
    text, _, path = message.partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    text = text[:1].lower() + text[1:]
    return f"`{field}`: {text}." if field else f"{text}."
