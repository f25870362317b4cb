"""contract: where each object of a run lives in S3 (PROTOCOL.md, Objects). Pure.

Keys stay under 400 characters, use [A-Za-z0-9._=/-] only, and have no empty segment and no backslash: SeaweedFS folds `//` and `\\`,
RunPod's volumes treat a key as a file path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from contract.errors import UsageError

SHARD_WIDTH: Final = 5
MAX_KEY: Final = 400
_SAFE: Final = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*\Z")


def shard_name(number: int) -> str:
    """`42` -> `00042`: the name of a shard that the plan cut."""
    return f"{number:0{SHARD_WIDTH}d}"


def child_names(shard: str, count: int) -> tuple[str, ...]:
    """`00042`, 2 -> `00042.0`, `00042.1`: the children that a split makes."""
    return tuple(f"{shard}.{i}" for i in range(count))


@dataclass(frozen=True)
class RunUri:
    """`s3://bucket/prefix/runs/RUN_ID`: the whole address of a run."""

    bucket: str
    path: str

    @classmethod
    def parse(cls, uri: str) -> RunUri:
        """Read `s3://bucket/path`; a trailing slash is dropped. Raises UsageError."""
        match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,62})/(.+?)/*", uri)
        if not match or not _SAFE.match(match[2]) or {".", ".."} & set(match[2].split("/")) or len(match[2]) > MAX_KEY - 120:
            raise UsageError(f"'{uri}' is not the address of a run.", fix="It looks like s3://bucket/runs/RUN_ID.")
        return cls(match[1], match[2])

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.path}"

    @property
    def run_id(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def keys(self) -> RunKeys:
        return RunKeys(self.path)


@dataclass(frozen=True)
class RunKeys:
    """Keys of one run; `root` is the run's path inside its bucket, without slashes at the ends."""

    root: str

    def plan(self) -> str:
        return f"{self.root}/plan.json"

    def skipped(self) -> str:
        """Rows that preflight left out with `--on-bad-row skip`."""
        return f"{self.root}/skipped.jsonl.zst"

    def journal_prefix(self) -> str:
        return f"{self.root}/journal/"

    def journal(self, number: int, client: str | None = None) -> str:
        """Entry `number`; on a last-writer store the writing client's name is part of the key, so that no entry is overwritten."""
        return f"{self.root}/journal/{number:06d}{f'-{client}' if client else ''}.json"

    def control(self) -> str:
        return f"{self.root}/control.json"

    def input(self, shard: str) -> str:
        return f"{self.root}/input/{shard}.jsonl.zst"

    def columns(self, shard: str) -> str:
        """The original columns of a shard's rows, kept for the join into a table output."""
        return f"{self.root}/columns/{shard}.parquet"

    def start(self, shard: str, execution: str) -> str:
        return f"{self.root}/starts/{shard}/{execution}.json"

    def starts_prefix(self, shard: str | None = None) -> str:
        return f"{self.root}/starts/{shard}/" if shard else f"{self.root}/starts/"

    def end(self, shard: str, execution: str) -> str:
        return f"{self.root}/ends/{shard}/{execution}.json"

    def ends_prefix(self, shard: str | None = None) -> str:
        return f"{self.root}/ends/{shard}/" if shard else f"{self.root}/ends/"

    def piece(self, shard: str, execution: str, number: int, suffix: str) -> str:
        return f"{self.root}/pieces/{shard}/{execution}/{number:04d}.{suffix}"

    def part(self, shard: str, execution: str, suffix: str) -> str:
        """`suffix`: `jsonl.zst` for generate, `parquet` for embed."""
        return f"{self.root}/parts/{shard}/{execution}.{suffix}"

    def errors(self, shard: str, execution: str) -> str:
        return f"{self.root}/errors/{shard}/{execution}.jsonl.zst"

    def commit(self, shard: str) -> str:
        return f"{self.root}/commits/{shard}.json"

    def commits_prefix(self) -> str:
        return f"{self.root}/commits/"

    def seal_object(self, digest: str) -> str:
        return f"{self.root}/seals/{digest}.json"

    def seal(self) -> str:
        return f"{self.root}/seal.json"

    def summary(self) -> str:
        return f"{self.root}/summary.json"
