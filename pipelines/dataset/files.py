"""pipelines/dataset: what the user named -> the files that it means, in a fixed order. Touches the file system and S3 listings.

Order: arguments as given; inside a folder, a glob or a prefix by name, byte by byte (`part-10` before `part-2`), so that the same dataset
has the same rows in the same order on every machine. Folders are searched in depth; names that begin with `.` or `_` (`_SUCCESS`,
`.part.crc`) are not data. Formats are told from the name, then from the first bytes; one dataset has one format.
"""

from __future__ import annotations

import asyncio
import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from contract.errors import DatasetError, NoSuchBucket, NotFound
from contract.store import Store

Format = Literal["jsonl", "csv", "parquet"]
Compression = Literal["gz", "zst"]
OpenBucket = Callable[[str], Store]
"""Bucket name -> a store that reads it with the client's keys."""

_FORMATS: Final[dict[str, Format]] = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": "csv", "tsv": "csv", "parquet": "parquet", "pq": "parquet"
}  # fmt: skip
_COMPRESSIONS: Final[dict[str, Compression]] = {"gz": "gz", "gzip": "gz", "zst": "zst", "zstd": "zst"}
_WILD: Final = re.compile(r"[*?\[]")
_HEAD: Final = 4096
LOOKS: Final = 8
"""Files that are looked into at once."""
_READS: Final = "JSON lines (.jsonl), CSV (.csv, .tsv) and Parquet (.parquet) can be read; the first two also as .gz and .zst."


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset. `name`: as shown to the user; `path` or `store` and `key` say where it is; `size` in bytes as stored."""

    name: str
    size: int
    format: Format
    compression: Compression | None = None
    path: Path | None = None
    store: Store | None = None
    key: str | None = None


@dataclass(frozen=True)
class _Found:
    name: str
    size: int
    named: bool  # by the user, letter for letter: then it must be readable
    path: Path | None = None
    store: Store | None = None
    key: str | None = None

    @property
    def identity(self) -> str:
        return str(self.path.resolve()) if self.path else self.name


async def find_files(named: Sequence[str], open_bucket: OpenBucket) -> tuple[DataFile, ...]:
    """Every file that `named` means: files, folders, globs, `s3://` objects, prefixes and globs. Raises DatasetError."""
    if not named:
        raise DatasetError("no dataset is named.", fix="Name a file, a folder, a glob or an s3:// address.")
    found: list[_Found] = []
    for name in named:
        found.extend(await _in_s3(name, open_bucket) if name.startswith("s3://") else await asyncio.to_thread(_on_disk, name))
    seen: set[str] = set()
    for item in found:
        if item.identity in seen:
            raise DatasetError("is named twice, and its rows would be sent twice.", where=item.name, fix="Name each file once.")
        seen.add(item.identity)
    gate = asyncio.Semaphore(LOOKS)

    async def look(item: _Found) -> DataFile | None:
        async with gate:
            return await _classify(item)

    files: list[DataFile] = []
    for looked in await asyncio.gather(*map(look, found), return_exceptions=True):
        if isinstance(looked, BaseException):
            raise looked
        if looked is not None:
            files.append(looked)
    if not files:
        raise DatasetError("holds no file that can be read.", where=", ".join(named), fix=_READS)
    formats = sorted({file.format for file in files})
    if len(formats) > 1:
        examples = ", ".join(next(f.name for f in files if f.format == kind) for kind in formats)
        raise DatasetError(f"the dataset mixes {' and '.join(formats)} ({examples}).", fix="Run each format by itself.")
    return tuple(files)


def _on_disk(name: str) -> list[_Found]:
    if name == "-":
        raise DatasetError("a dataset is read twice, so it cannot come from standard input.", fix="Write it to a file first.")
    if not name.strip():  # an empty variable of a script; Path("") would be this folder, with all that is in it
        raise DatasetError("a dataset's name is empty.", fix="Name a file, a folder, a glob or an s3:// address.")
    path = Path(name)
    try:
        if path.is_dir():
            return [_Found(str(p), p.stat().st_size, False, path=p) for p in _walk(path)]
        if path.is_file():
            return [_Found(name, path.stat().st_size, True, path=path)]
        if path.exists():
            raise DatasetError("is not a regular file, and a dataset is read twice.", where=name, fix="Write it to a file first.")
    except OSError as error:
        raise DatasetError(f"cannot be read ({error.strerror}).", where=name) from None
    if _WILD.search(name):
        paths = sorted((Path(p) for p in glob.glob(name, recursive=True)), key=lambda p: str(p).encode(errors="surrogateescape"))
        files = [p for p in paths if p.is_file() and not p.name.startswith(("_", "."))]
        if not files:
            raise DatasetError("matches no file.", where=name)
        return [_Found(str(p), p.stat().st_size, False, path=p) for p in files]
    raise DatasetError("there is no such file.", where=name)


def _walk(folder: Path) -> list[Path]:
    hidden = ("_", ".")
    files = [p for p in folder.rglob("*") if p.is_file() and not any(part.startswith(hidden) for part in p.relative_to(folder).parts)]
    if not files:
        raise DatasetError("the folder is empty.", where=str(folder))
    return sorted(files, key=lambda p: str(p).encode(errors="surrogateescape"))


async def _in_s3(name: str, open_bucket: OpenBucket) -> list[_Found]:
    match = re.fullmatch(r"s3://([A-Za-z0-9._-]{1,255})(?:/(.*))?", name, re.DOTALL)
    if not match:
        raise DatasetError("is not an address in S3.", where=name, fix="It looks like s3://bucket/prefix/ or s3://bucket/file.jsonl.")
    bucket, key = match[1], match[2] or ""
    store = open_bucket(bucket)

    def at(found: str, size: int, named: bool = False) -> _Found:
        return _Found(f"s3://{bucket}/{found}", size, named, store=store, key=found)

    if key and not key.endswith("/"):
        head = await store.head(key)
        if head is not None:
            return [at(key, head.size, True)]
    wild = _WILD.search(key)
    prefix = key[: wild.start()] if wild else (key if not key or key.endswith("/") else key + "/")
    fits = _glob(key) if wild else None
    try:
        heads = [h async for h in store.list(prefix)]
    except NotFound:
        heads = []
    except NoSuchBucket as error:
        raise DatasetError(error.what, where=f"s3://{bucket}", fix=error.fix) from None
    # Not under the prefix's own hidden names: only what comes after it is judged.
    kept = [
        h for h in heads
        if not h.key.endswith("/")
        and (fits is None or fits.fullmatch(h.key))
        and not any(part.startswith(("_", ".")) for part in h.key[prefix.rfind("/") + 1 :].split("/"))
    ]  # fmt: skip
    if not kept:
        raise DatasetError("there is no such object or prefix." if not wild else "matches no object.", where=name)
    return [at(h.key, h.size) for h in sorted(kept, key=lambda h: h.key.encode())]


def _glob(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay inside a folder, `**` crosses folders, as in a shell."""
    out = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif pattern[at] == "?":
            out, at = out + "[^/]", at + 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out, at = out + (f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"), end + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    return re.compile(out, re.DOTALL)


async def _classify(item: _Found) -> DataFile | None:
    """The file with its format; None for one that was not named letter for letter and is no data."""
    parts = item.name.rsplit("/", 1)[-1].lower().split(".")[1:]
    compression = _COMPRESSIONS.get(parts[-1]) if parts else None
    if compression:
        parts.pop()
    format_ = _FORMATS.get(parts[-1]) if parts else None
    if format_ is None and not item.named:
        return None
    head = await _head(item)
    # The bytes know better than the name whether a file is compressed.
    compression = "gz" if head.startswith(b"\x1f\x8b") else "zst" if head.startswith(b"\x28\xb5\x2f\xfd") else None
    if head.startswith(b"PAR1"):
        format_ = "parquet"
    elif format_ == "parquet":
        raise DatasetError("is not a Parquet file.", where=item.name, fix="It may be damaged, or have the wrong name.")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if format_ is None and compression is None and start == b"{":
        format_ = "jsonl"
    if format_ is None and item.size == 0:
        format_ = "jsonl"
    if format_ is None:
        raise DatasetError("its format is not known from its name.", where=item.name, fix=_READS)
    if compression is None and format_ != "parquet" and _is_utf16(head):
        raise DatasetError("is UTF-16, and text must be UTF-8.", where=item.name, fix="Convert it: iconv -f UTF-16 -t UTF-8")
    if format_ == "jsonl" and compression is None and start == b"[" and _is_array(head):
        raise DatasetError(
            "is one JSON array, not one JSON object a line.", where=item.name, fix="Convert it: jq -c '.[]' FILE > FILE.jsonl"
        )
    return DataFile(item.name, item.size, format_, compression, path=item.path, store=item.store, key=item.key)


def _is_utf16(head: bytes) -> bool:
    """With its mark; or without, when every second byte of the beginning is zero, as in no text of UTF-8."""
    start = head[:64]
    one, other = start[::2], start[1::2]
    return start.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(start) >= 8 and (not any(one)) != (not any(other)))


def _is_array(head: bytes) -> bool:
    """A whole file that is an array begins with `[` and an object or a line's end; a bad row `[1]` does not."""
    rest = head.removeprefix(b"\xef\xbb\xbf").lstrip()[1:].lstrip(b" \t\r")
    return rest.startswith((b"\n", b"{"))


async def _head(item: _Found) -> bytes:
    if item.path is not None:
        path = item.path

        def read() -> bytes:
            try:
                with path.open("rb") as file:
                    return file.read(_HEAD)
            except OSError as error:
                raise DatasetError(f"cannot be read ({error.strerror}).", where=item.name) from None

        return await asyncio.to_thread(read)
    assert item.store is not None
    assert item.key is not None
    if item.size == 0:
        return b""
    data = b""
    async for chunk in item.store.read(item.key, 0, min(_HEAD, item.size)):
        data += chunk
    return data
