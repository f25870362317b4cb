"""tests of contract.store: the same behaviour over a store in memory, of both kinds, and over a real S3 server."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError, EndpointConnectionError, IncompleteReadError
from hypothesis import given
from hypothesis import strategies as st

from contract import store as store_module
from contract.errors import AccessDenied, AlreadyExists, NotFound, StoreError, StoreUnavailable
from contract.memory import MemoryStore, Objects
from contract.models import S3Config
from contract.store import (
    FIRST_WRITE_TRIES,
    FolderStore,
    S3Store,
    Store,
    StoreClock,
    get_or_none,
    probe_mode,
    put_first,
    put_object,
    region_of,
)
from emulator.s3 import KeyPair, SeaweedS3

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def weed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SeaweedS3]:
    server = SeaweedS3(
        tmp_path_factory.mktemp("s3"), "nightbatch", KeyPair("client-id", "client-secret"), KeyPair("worker-id", "worker-secret")
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture(params=["memory", "last-writer", "weed"])
def store(request: pytest.FixtureRequest) -> Store:
    """Every test has keys of its own (`at`), so that one server serves all."""
    if request.param == "weed":
        return weed_store(request)
    return MemoryStore(mode="conditional" if request.param == "memory" else "last-writer")


@pytest.fixture(params=["memory", "weed"])
def conditional(request: pytest.FixtureRequest) -> Store:
    return weed_store(request) if request.param == "weed" else MemoryStore()


def weed_store(request: pytest.FixtureRequest, **options: Any) -> S3Store:
    server: SeaweedS3 = request.getfixturevalue("weed")
    made = S3Store(server.client_config, mode="conditional", timeout_s=20, **options)

    def end() -> None:
        asyncio.run(made.close())

    request.addfinalizer(end)
    return made


@pytest.fixture
def at() -> str:
    return f"t/{secrets.token_hex(6)}"


async def content(store: Store, key: str, *span: int) -> bytes:
    return b"".join([chunk async for chunk in store.read(key, *span)])


async def names(store: Store, prefix: str) -> list[str]:
    return [head.key async for head in store.list(prefix)]


# --- the primitives ----------------------------------------------------------------------------------------------------------------------


async def test_what_was_put_is_got_with_one_etag_everywhere(store: Store, at: str) -> None:
    data = os.urandom(3000)
    etag = await store.put(f"{at}/a", data)
    blob, head = await store.get(f"{at}/a"), await store.head(f"{at}/a")
    assert blob.data == data
    assert head is not None
    listed = [found async for found in store.list(f"{at}/")]
    assert {etag, blob.etag, head.etag, listed[0].etag} == {etag}
    assert (head.key, head.size) == (listed[0].key, listed[0].size) == (f"{at}/a", 3000)
    assert '"' not in etag


async def test_a_second_put_replaces(store: Store, at: str) -> None:
    await store.put(f"{at}/a", b"one")
    await store.put(f"{at}/a", b"two")
    assert (await store.get(f"{at}/a")).data == b"two"


async def test_what_is_not_there_is_not_found(store: Store, at: str) -> None:
    with pytest.raises(NotFound):
        await store.get(f"{at}/a")
    with pytest.raises(NotFound):
        await content(store, f"{at}/a")
    assert await store.head(f"{at}/a") is None
    assert await get_or_none(store, f"{at}/a") is None
    assert await names(store, f"{at}/") == []
    await store.delete(f"{at}/a")


async def test_what_was_deleted_is_gone(store: Store, at: str) -> None:
    await store.put(f"{at}/a", b"x")
    await store.delete(f"{at}/a")
    assert await store.head(f"{at}/a") is None


async def test_an_empty_object_is_an_object(store: Store, at: str) -> None:
    await store.put(f"{at}/a", b"")
    assert (await store.get(f"{at}/a")).data == b""
    assert await content(store, f"{at}/a") == b""
    head = await store.head(f"{at}/a")
    assert head is not None
    assert head.size == 0


@pytest.mark.parametrize("span", [(0, 5), (5, 6), (2999, 3000), (1000,), (0, 3000), (0, 99999), (7, 7), (9, 3)])
async def test_a_range_is_what_a_slice_is(store: Store, at: str, span: tuple[int, ...]) -> None:
    data = os.urandom(3000)
    await store.put(f"{at}/a", data)
    wanted = data[span[0] :] if len(span) == 1 else data[slice(*span)]
    assert await content(store, f"{at}/a", *span) == wanted


async def test_a_large_object_is_read_in_chunks(store: Store, at: str, tmp_path: Path) -> None:
    data = os.urandom(5 << 20)
    (tmp_path / "file").write_bytes(data)
    await store.put(f"{at}/a", tmp_path / "file")
    chunks = [chunk async for chunk in store.read(f"{at}/a")]
    assert len(chunks) > 1
    assert b"".join(chunks) == data


async def test_reading_may_stop_in_the_middle(store: Store, at: str) -> None:
    await store.put(f"{at}/a", os.urandom(4 << 20))
    reading: Any = store.read(f"{at}/a")
    assert len(await anext(reading)) > 0
    await reading.aclose()
    assert (await store.get(f"{at}/a")).data


async def test_a_file_larger_than_a_part_goes_in_several(
    request: pytest.FixtureRequest, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", 5 << 20)
    data = os.urandom(11 << 20)
    (tmp_path / "file").write_bytes(data)
    store = weed_store(request)
    etag = await store.put(f"{at}/a", tmp_path / "file")
    blob = await store.get(f"{at}/a")
    assert (hashlib.sha256(blob.data).digest(), blob.etag) == (hashlib.sha256(data).digest(), etag)


async def test_a_listing_has_every_key_under_its_prefix_in_order_over_many_pages(store: Store, at: str) -> None:
    gate = asyncio.Semaphore(16)

    async def put(number: int) -> None:
        async with gate:
            await store.put(f"{at}/in/{number:05d}", b"x")

    await asyncio.gather(*(put(number) for number in range(1005)), store.put(f"{at}/inn", b"x"), store.put(f"{at}/out/1", b"x"))
    assert await names(store, f"{at}/in/") == [f"{at}/in/{number:05d}" for number in range(1005)]


async def test_a_described_object_has_size_sha256_and_etag(store: Store, at: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    for data in (b"abc", tmp_path / "file"):
        ref = await put_object(store, f"{at}/a", data)
        assert (ref.key, ref.size, ref.sha256) == (f"{at}/a", 3, hashlib.sha256(b"abc").hexdigest())
        assert ref.etag == (await store.get(f"{at}/a")).etag


# --- conditional writes ----------------------------------------------------------------------------------------------------------------


async def test_only_the_first_conditional_put_succeeds(conditional: Store, at: str) -> None:
    await conditional.put_if_absent(f"{at}/a", b"first")
    with pytest.raises(AlreadyExists):
        await conditional.put_if_absent(f"{at}/a", b"second")
    assert (await conditional.get(f"{at}/a")).data == b"first"


async def test_a_matching_put_needs_the_etag_that_is_there(conditional: Store, at: str) -> None:
    first = await conditional.put(f"{at}/a", b"first")
    second = await conditional.put_if_match(f"{at}/a", b"second", first)
    with pytest.raises(AlreadyExists):
        await conditional.put_if_match(f"{at}/a", b"third", first)
    assert (await conditional.get(f"{at}/a")) == store_module.Blob(b"second", second)
    with pytest.raises(StoreError):
        await conditional.put_if_match(f"{at}/none", b"x", first)


async def test_the_first_write_wins_and_everybody_learns_which_it_was(store: Store, at: str) -> None:
    assert await put_first(store, f"{at}/a", b"first") == b"first"
    assert await put_first(store, f"{at}/a", b"second") == b"first"
    assert (await store.get(f"{at}/a")).data == b"first"


async def test_of_many_first_writes_at_once_one_wins(conditional: Store, at: str) -> None:
    wrote = [bytes([number]) for number in range(8)]
    assert len(set(await asyncio.gather(*(put_first(conditional, f"{at}/a", data) for data in wrote)))) == 1


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_a_first_write_whose_answer_was_lost_has_still_won(mode: Any) -> None:
    lost: list[str] = []

    async def lose(op: str, key: str) -> None:
        if op.startswith("put") and not lost:
            lost.append(op)
            raise StoreUnavailable("no answer")

    objects = Objects()
    assert await put_first(MemoryStore(objects, mode=mode, after=lose), "a", b"mine") == b"mine"
    assert lost
    assert objects.writes == {"a": 1}


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_a_first_write_that_never_arrived_is_written_again(mode: Any) -> None:
    lost: list[str] = []

    async def lose(op: str, key: str) -> None:
        if op.startswith("put") and len(lost) < 2:
            lost.append(op)
            raise StoreUnavailable("no answer")

    objects = Objects()
    assert await put_first(MemoryStore(objects, mode=mode, hook=lose), "a", b"mine") == b"mine"
    assert objects.writes == {"a": 1}


async def test_a_first_write_to_a_store_that_is_away_gives_up() -> None:
    tries: list[str] = []

    async def away(op: str, key: str) -> None:
        if op.startswith("put"):
            tries.append(op)
            raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        await put_first(MemoryStore(hook=away), "a", b"mine")
    assert len(tries) == FIRST_WRITE_TRIES


async def test_a_loser_of_a_lost_answer_reads_who_won() -> None:
    objects = Objects()

    async def other_first(op: str, key: str) -> None:
        if op == "put_if_absent" and not objects.data:
            objects.write("a", b"other")

    assert await put_first(MemoryStore(objects, hook=other_first), "a", b"mine") == b"other"


async def test_the_mode_of_a_store_is_proven_and_not_believed(request: pytest.FixtureRequest, at: str) -> None:
    assert await probe_mode(MemoryStore(), at) == "conditional"
    assert await probe_mode(MemoryStore(mode="conditional", dialect="last-writer"), at) == "last-writer"
    assert await probe_mode(weed_store(request), at) == "conditional"
    assert await probe_mode(weed_store(request), at) == "conditional", "also where an earlier probe left its object"

    class Refusing(MemoryStore):
        async def put_if_absent(self, key: str, data: bytes) -> str:
            raise store_module._translate(answer("NotImplemented", 501), "conditional put", key, "http://x")

    class Away(MemoryStore):
        async def put_if_absent(self, key: str, data: bytes) -> str:
            raise StoreUnavailable("no answer")

    class Lying(MemoryStore):
        """Answers 412 to the second write, and had replaced the object all the same."""

        async def put_if_absent(self, key: str, data: bytes) -> str:
            there = key in self.objects.data
            self.objects.write(key, data)
            if there:
                raise AlreadyExists("412")
            return ""

    assert await probe_mode(Refusing(), at) == "last-writer"
    assert await probe_mode(Lying(), at) == "last-writer"
    with pytest.raises(StoreUnavailable):
        await probe_mode(Away(), at)


async def test_probes_leave_one_object_however_many_there_are() -> None:
    objects = Objects()
    for _ in range(3):
        assert await probe_mode(MemoryStore(objects), "runs") == "conditional"
    assert len(objects.data) == 1


# --- what goes wrong -------------------------------------------------------------------------------------------------------------------


def keys(endpoint: str, *, bucket: str = "nightbatch", secret: str = "client-secret") -> S3Config:
    return S3Config(accessId="client-id", accessSecret=secret, bucketName=bucket, endpointUrl=endpoint)


async def test_wrong_keys_and_a_missing_bucket_are_said_without_the_secret(weed: SeaweedS3) -> None:
    wrong = S3Store(keys(weed.endpoint_url, secret="a-wrong-secret"), max_attempts=1)
    missing = S3Store(keys(weed.endpoint_url, bucket="not-there"), max_attempts=1)
    try:
        with pytest.raises(AccessDenied) as denied:
            await wrong.put("t/a", b"x")
        with pytest.raises(StoreError, match="no such bucket") as absent:
            await missing.put("t/a", b"x")
        assert weed.endpoint_url in str(absent.value)
        for text in (str(denied.value), repr(denied.value), repr(wrong)):
            assert "a-wrong-secret" not in text
    finally:
        await wrong.close()
        await missing.close()


async def test_a_worker_may_not_leave_its_bucket(weed: SeaweedS3) -> None:
    worker = S3Store(weed.worker_config, max_attempts=1)
    config = weed.worker_config
    outside = S3Store(
        S3Config(accessId=config.accessId, accessSecret=config.accessSecret, bucketName="other", endpointUrl=config.endpointUrl)
    )
    try:
        await worker.put("t/worker", b"x")
        with pytest.raises(StoreError):
            await outside.put("t/worker", b"x")
    finally:
        await worker.close()
        await outside.close()


async def test_nobody_listening_is_unavailable_and_names_the_endpoint() -> None:
    store = S3Store(keys("http://127.0.0.1:9"), max_attempts=1, timeout_s=2)
    try:
        with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:9"):
            await store.get("a")
    finally:
        await store.close()


def answer(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("NoSuchKey", 404), NotFound),
        (answer("404", 404), NotFound),
        (answer("PreconditionFailed", 412), AlreadyExists),
        (answer("ConditionalRequestConflict", 409), AlreadyExists),
        (answer("InvalidAccessKeyId", 403), AccessDenied),
        (answer("SlowDown", 503), StoreUnavailable),
        (answer("InternalError", 500), StoreUnavailable),
        (answer("TooManyRequests", 429), StoreUnavailable),
        (answer("NotImplemented", 501), StoreError),
        (answer("EntityTooLarge", 400), StoreError),
        (EndpointConnectionError(endpoint_url="http://x"), StoreUnavailable),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreUnavailable),
        (ConnectionResetError("reset"), StoreUnavailable),
    ],
)
async def test_every_answer_of_s3_has_its_error(error: Exception, kind: type[Exception]) -> None:
    made = store_module._translate(error, "put", "s3://b/k", "http://x")
    assert type(made) is kind
    assert "s3://b/k" in str(made)


async def test_an_error_that_is_not_the_stores_is_not_dressed_up_as_one() -> None:
    with pytest.raises(ZeroDivisionError):
        store_module._translate(ZeroDivisionError(), "put", "s3://b/k", "http://x")


class Pages:
    """A client whose listing has been made up."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self.pages = list(pages)

    def list_objects_v2(self, **_: Any) -> dict[str, Any]:
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]

    def close(self) -> None:
        return None


def item(key: str) -> dict[str, Any]:
    return {"Key": key, "Size": 1, "ETag": '"e"'}


async def test_folders_are_told_without_what_is_below_them(store: Store, at: str) -> None:
    for key in ("a/plan.json", "a/deep/er", "b/plan.json", "file"):
        await store.put(f"{at}/{key}", b"x")
    folders: FolderStore = store  # type: ignore[assignment]
    assert [name async for name in folders.folders(f"{at}/")] == ["a", "b"]
    assert [name async for name in folders.folders(f"{at}/none/")] == []


@pytest.fixture
def paged() -> Iterator[S3Store]:
    store = S3Store(keys("http://127.0.0.1:9"))
    yield store
    asyncio.run(store.close())


async def test_directories_that_a_file_system_lists_are_left_out(paged: S3Store) -> None:
    paged._client_ = Pages({"Contents": [item("a/"), item("a/b")], "IsTruncated": False})  # type: ignore[assignment]
    assert await names(paged, "a") == ["a/b"]


async def test_a_listing_that_repeats_one_page_for_ever_is_refused(paged: S3Store) -> None:
    paged._client_ = Pages({"Contents": [item("a")], "IsTruncated": True, "NextContinuationToken": "t"})  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable, match="for ever"):
        await names(paged, "a")


# --- time and place ----------------------------------------------------------------------------------------------------------------------


async def test_the_stores_clock_is_its_date_header(request: pytest.FixtureRequest, at: str) -> None:
    store = weed_store(request)
    await store.put(f"{at}/a", b"x")
    assert abs(store.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert store.now().tzinfo is not None


async def test_the_clock_runs_on_between_answers_and_never_steps_back_over_a_second() -> None:
    passed = [100.0]
    clock = StoreClock(monotonic=lambda: passed[0])
    clock.saw("Mon, 05 Jan 2026 10:00:00 GMT")
    assert clock.now() == datetime(2026, 1, 5, 10, 0, 0, tzinfo=UTC)
    passed[0] += 0.9
    clock.saw("Mon, 05 Jan 2026 10:00:00 GMT")
    assert clock.now() == datetime(2026, 1, 5, 10, 0, 0, 900_000, tzinfo=UTC)
    clock.saw("rubbish")
    clock.saw(None)
    passed[0] += 60
    assert clock.now() == datetime(2026, 1, 5, 10, 1, 0, 900_000, tzinfo=UTC)
    clock.saw("Mon, 05 Jan 2026 09:00:00 GMT")  # it was this machine that ran ahead
    assert clock.now() == datetime(2026, 1, 5, 9, 0, 0, tzinfo=UTC)


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), min_size=1, max_size=30))
async def test_the_clock_never_goes_back_while_the_store_tells_the_time(steps: list[tuple[float, bool]]) -> None:
    passed = [0.0]
    began = datetime(2026, 1, 5, tzinfo=UTC)
    clock = StoreClock(monotonic=lambda: passed[0])
    clock.saw(began.strftime("%a, %d %b %Y %H:%M:%S GMT"))
    last = clock.now()
    for seconds, told in steps:
        passed[0] += seconds
        if told:
            clock.saw((began + timedelta(seconds=passed[0])).strftime("%a, %d %b %Y %H:%M:%S GMT"))
        assert clock.now() >= last
        last = clock.now()


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("https://s3api-eu-ro-1.runpod.io", "EU-RO-1"),
        ("https://s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://s3.dualstack.us-west-2.amazonaws.com/", "us-west-2"),
        ("https://s3.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://abc.r2.cloudflarestorage.com", "auto"),
        ("https://s3.us-west-004.backblazeb2.com", "us-west-004"),
        ("https://s3.eu-central-1.wasabisys.com", "eu-central-1"),
        ("http://127.0.0.1:8333", "us-east-1"),
        ("https://minio.example.org", "us-east-1"),
    ],
)
async def test_the_region_comes_from_the_endpoint(endpoint: str, region: str) -> None:
    assert region_of(endpoint) == region
