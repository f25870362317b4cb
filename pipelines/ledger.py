"""pipelines: the ledger: a local SQLite record of runs, attempts, webhooks and costs. Touches one file under the user's state folder.

A cache, never the truth: what is read from it only prices the next plan by what past runs took. Deleting it, also in the middle of a run,
loses nothing but that and the list of runs that this machine has seen. APSW carries its own SQLite: the one in many Pythons (3.7.0 to
3.51.2) has the WAL-reset bug, which two connections can meet. WAL with synchronous=FULL; not for network file systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import apsw

from contract.errors import InfrastructureError
from contract.facts import state_dir
from pipelines.prices import Past

FIXED_SQLITE: Final = 3_051_003
"""First SQLite version without the WAL-reset bug (sqlite.org/wal.html)."""
MIGRATIONS: Final = (
    """
    CREATE TABLE runs (uri TEXT PRIMARY KEY, run_id TEXT NOT NULL, stack TEXT NOT NULL, state TEXT NOT NULL, rows INTEGER NOT NULL,
                       ok INTEGER NOT NULL, failed INTEGER NOT NULL, created_at TEXT NOT NULL, seen_at TEXT NOT NULL) STRICT;
    CREATE TABLE attempts (uri TEXT NOT NULL, client TEXT NOT NULL, attempt INTEGER NOT NULL, shard TEXT NOT NULL, state TEXT NOT NULL,
                           cause TEXT, job_id TEXT, low_priority INTEGER NOT NULL, sent_at TEXT NOT NULL, changed_at TEXT NOT NULL,
                           PRIMARY KEY (uri, client, attempt)) STRICT, WITHOUT ROWID;
    CREATE TABLE webhooks (uri TEXT NOT NULL, shard TEXT NOT NULL, attempt INTEGER NOT NULL, first_at TEXT NOT NULL, times INTEGER NOT NULL,
                           PRIMARY KEY (uri, shard, attempt)) STRICT, WITHOUT ROWID;
    CREATE TABLE costs (uri TEXT PRIMARY KEY, worker_seconds REAL NOT NULL, usd_estimated REAL NOT NULL, usd_reserved REAL NOT NULL,
                        at TEXT NOT NULL) STRICT;
    """,
    """
    CREATE TABLE speeds (uri TEXT PRIMARY KEY, endpoint_id TEXT NOT NULL, task TEXT NOT NULL, model TEXT NOT NULL,
                         executions INTEGER NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, computing_s REAL NOT NULL,
                         at TEXT NOT NULL) STRICT;
    CREATE INDEX speeds_of ON speeds (endpoint_id, task, model, at);
    """,
)
"""In order; a ledger's user_version says how many it has. Never changed once released, only added to."""


@dataclass(frozen=True)
class LedgerRun:
    """A run that this machine has worked on."""

    uri: str
    run_id: str
    stack: str
    state: str
    rows: int
    ok: int
    failed: int
    created_at: datetime
    seen_at: datetime


@dataclass(frozen=True)
class LedgerAttempt:
    """An attempt as this machine last saw it."""

    client: str
    attempt: int
    shard: str
    state: str
    cause: str | None
    job_id: str | None
    low_priority: bool
    sent_at: datetime


@dataclass(frozen=True)
class LedgerNote:
    """One thing that this machine saw of an attempt: its last state, or (`state` None) its webhook, which came `times`."""

    at: datetime
    shard: str
    attempt: int
    state: str | None = None
    cause: str | None = None
    job_id: str | None = None
    times: int = 0


class Ledger:
    """Open with `Ledger.open()`; every method is one short transaction. Raises InfrastructureError where the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(5000)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._migrate()
        except (apsw.Error, OSError) as error:
            raise InfrastructureError(
                f"the ledger cannot be used ({error}).", where=str(path), fix="It is only a cache: delete the file and go on."
            ) from None

    @classmethod
    def open(cls, environ: Mapping[str, str] | None = None) -> Ledger:
        """The user's ledger."""
        return cls((state_dir() if environ is None else state_dir(environ)) / "ledger.sqlite3")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def _migrate(self) -> None:
        if apsw.SQLITE_VERSION_NUMBER < FIXED_SQLITE:
            raise InfrastructureError(f"SQLite {apsw.sqlite_lib_version()} has the WAL-reset bug.", fix="Install a newer apsw.")
        if int(self._db.pragma("user_version")) == len(MIGRATIONS):
            return
        # IMMEDIATE: a transaction that begins by reading cannot wait for another writer once it comes to write.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            version = int(self._db.pragma("user_version"))
            if version > len(MIGRATIONS):
                raise InfrastructureError(
                    "the ledger was written by a newer Nightbatch.",
                    where=str(self.path),
                    fix="It is only a cache: delete the file and go on.",
                )
            for step in MIGRATIONS[version:]:
                self._db.execute(step)
            self._db.pragma("user_version", len(MIGRATIONS))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def run(self, uri: str, *, run_id: str, stack: str, state: str, rows: int, ok: int, failed: int, created_at: datetime) -> None:
        """This machine works on a run, and how it stands."""
        self._write(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uri) DO UPDATE SET state = excluded.state, "
            "rows = excluded.rows, ok = excluded.ok, failed = excluded.failed, seen_at = excluded.seen_at",
            [(uri, run_id, stack, state, rows, ok, failed, _text(created_at), _text(datetime.now(UTC)))],
        )

    def attempts(self, uri: str, changed: Iterable[LedgerAttempt], at: datetime) -> None:
        """Attempts as they stand now."""
        self._write(
            "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uri, client, attempt) DO UPDATE SET "
            "state = excluded.state, cause = excluded.cause, job_id = excluded.job_id, changed_at = excluded.changed_at",
            [
                (uri, a.client, a.attempt, a.shard, a.state, a.cause, a.job_id, int(a.low_priority), _text(a.sent_at), _text(at))
                for a in changed
            ],
        )

    def webhook(self, uri: str, shard: str, attempt: int, at: datetime) -> None:
        """A webhook came; a doubled one is counted."""
        self._write(
            "INSERT INTO webhooks VALUES (?, ?, ?, ?, 1) ON CONFLICT (uri, shard, attempt) DO UPDATE SET times = times + 1",
            [(uri, shard, attempt, _text(at))],
        )

    def cost(self, uri: str, *, worker_seconds: float, usd_estimated: float, usd_reserved: float, at: datetime) -> None:
        """What the run has cost so far, by markers and price."""
        self._write(
            "INSERT INTO costs VALUES (?, ?, ?, ?, ?) ON CONFLICT (uri) DO UPDATE SET worker_seconds = excluded.worker_seconds, "
            "usd_estimated = excluded.usd_estimated, usd_reserved = excluded.usd_reserved, at = excluded.at",
            [(uri, worker_seconds, usd_estimated, usd_reserved, _text(at))],
        )

    def speed(self, uri: str, past: Past, *, endpoint_id: str, task: str, model: str, at: datetime) -> None:
        """What a complete run took."""
        self._write(
            "INSERT OR REPLACE INTO speeds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(uri, endpoint_id, task, model, past.executions, past.tokens_in, past.tokens_out, past.computing_s, _text(at))],
        )

    def past(self, endpoint_id: str, task: str, model: str, *, last: int = 5) -> tuple[Past, ...]:
        """What the last complete runs of this endpoint, task and model took."""
        rows = self._read(
            "SELECT executions, tokens_in, tokens_out, computing_s FROM speeds WHERE endpoint_id = ? AND task = ? AND model = ? "
            "ORDER BY at DESC LIMIT ?",
            (endpoint_id, task, model, last),
        )
        return tuple(Past(*row) for row in rows)

    def runs(self) -> tuple[LedgerRun, ...]:
        """Runs that this machine has worked on, the latest first."""
        rows = self._read(
            "SELECT uri, run_id, stack, state, rows, ok, failed, created_at, seen_at FROM runs ORDER BY created_at DESC, uri", ()
        )
        return tuple(
            LedgerRun(
                row[0], row[1], row[2], row[3], row[4], row[5], row[6], datetime.fromisoformat(row[7]), datetime.fromisoformat(row[8])
            )
            for row in rows
        )

    def attempts_of(self, uri: str) -> tuple[LedgerAttempt, ...]:
        """What is recorded of a run's attempts."""
        rows = self._read(
            "SELECT client, attempt, shard, state, cause, job_id, low_priority, sent_at FROM attempts WHERE uri = ? "
            "ORDER BY attempt, client",
            (uri,),
        )
        return tuple(
            LedgerAttempt(row[0], row[1], row[2], row[3], row[4], row[5], bool(row[6]), datetime.fromisoformat(row[7])) for row in rows
        )

    def webhooks_of(self, uri: str) -> int:
        """How many different webhooks of a run came."""
        return int(self._read("SELECT count(*) FROM webhooks WHERE uri = ?", (uri,))[0][0])

    def notes_of(self, uri: str) -> tuple[LedgerNote, ...]:
        """What this machine saw of a run's attempts, and when."""
        attempts = self._read("SELECT changed_at, shard, attempt, state, cause, job_id FROM attempts WHERE uri = ?", (uri,))
        webhooks = self._read("SELECT first_at, shard, attempt, times FROM webhooks WHERE uri = ?", (uri,))
        return (
            *(LedgerNote(datetime.fromisoformat(row[0]), *row[1:]) for row in attempts),
            *(LedgerNote(datetime.fromisoformat(row[0]), row[1], row[2], times=row[3]) for row in webhooks),
        )

    def _write(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        if not rows:
            return
        try:
            with self._db:
                self._db.executemany(statement, rows)
        except apsw.Error as error:
            raise InfrastructureError(
                f"the ledger cannot be written ({error}).", where=str(self.path), fix="It is only a cache: delete the file and go on."
            ) from None

    def _read(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            return list(self._db.execute(statement, values))
        except apsw.Error as error:
            raise InfrastructureError(
                f"the ledger cannot be read ({error}).", where=str(self.path), fix="It is only a cache: delete the file and go on."
            ) from None


def _text(instant: datetime) -> str:
    return instant.isoformat()
