"""emulator: what survives its own restart: jobs, webhooks that are still to be sent, what workers cost. One SQLite file.

May touch: one file in the state directory, through one connection (apsw, which carries a SQLite without the WAL-reset bug). Changes are
collected and written in one transaction some milliseconds later; `durable()` waits for that, and the server answers only then, so a job
whose /run was answered is still there after kill -9. Power loss is not guarded against (synchronous=NORMAL): this is a development tool.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from contract.errors import EmulatorError
from emulator.jobs import Job

FORMAT: Final = 1
BATCH_S: Final = 0.004
"""Real seconds for which changes are collected."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bodies (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS webhooks (id TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS workers (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (id TEXT PRIMARY KEY, kind TEXT NOT NULL, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS hours (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (endpoint TEXT PRIMARY KEY, completed INTEGER, failed INTEGER, retried INTEGER) WITHOUT ROWID;
"""


class Webhook(msgspec.Struct, frozen=True):
    """One webhook that is still to be delivered. `due_at`: when the next attempt is made; `attempt`: its number, from 1."""

    id: str
    """Of this webhook, not of the job: a job that is retried has two."""
    job: str
    endpoint: str
    url: str
    body: bytes
    attempt: int
    due_at: float


class WorkerBill(msgspec.Struct, frozen=True):
    """What one worker has cost so far."""

    worker: str
    endpoint: str
    startup_s: float
    execution_s: float
    idle_s: float
    usd_per_s: float | None = None
    gpus: int | None = None
    """Price and GPUs when it started; None: those of the endpoint as it is (state of earlier versions)."""


class State:
    """The file. All methods are called from the event loop's thread."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # requests carry s3Config: only the owner may read them, and what is deleted is overwritten
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            self._db = apsw.Connection(str(path))
            for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON"):
                self._db.execute(f"PRAGMA {pragma}").fetchall()
            self._db.execute("BEGIN EXCLUSIVE; COMMIT")
            self._db.execute(_SCHEMA)
        except apsw.BusyError:
            raise EmulatorError(
                "Another emulator uses this state directory.", where=str(path.parent), fix="Stop it, or choose another state directory."
            ) from None
        except apsw.NotADBError:
            raise EmulatorError(
                "The emulator's state file is not a SQLite file.", where=str(path), fix="Delete it to begin anew."
            ) from None
        found = self._db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if found is None:
            self._db.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
        elif found[0] != str(FORMAT):
            raise EmulatorError(
                f"The emulator's state has format {found[0]}, this version reads {FORMAT}.",
                where=str(path),
                fix="Delete the state directory to begin anew.",
            )
        self._job_encoder = msgspec.msgpack.Encoder()
        self._jobs: dict[str, Job | None] = {}
        self._stored_bodies: set[str] = set()
        self._rows: dict[tuple[str, str], tuple[Any, ...] | None] = {}
        self._flush_handle: asyncio.TimerHandle | None = None
        self._written: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    # --- reading, at the start ------------------------------------------------------------------------------------

    def jobs(self) -> Iterator[Job]:
        decoder = msgspec.msgpack.Decoder(Job)
        for job_id, record, body in self._db.execute("SELECT id, record, body FROM jobs JOIN bodies USING (id)"):
            self._stored_bodies.add(job_id)
            yield _with_body(decoder.decode(record), body)

    def webhooks(self) -> list[Webhook]:
        decoder = msgspec.msgpack.Decoder(Webhook)
        return [decoder.decode(record) for (record,) in self._db.execute("SELECT record FROM webhooks")]

    def workers(self) -> list[WorkerBill]:
        decoder = msgspec.msgpack.Decoder(WorkerBill)
        return [decoder.decode(record) for (record,) in self._db.execute("SELECT record FROM workers")]

    def counters(self) -> dict[str, tuple[int, int, int]]:
        rows = self._db.execute("SELECT endpoint, completed, failed, retried FROM counters")
        return {endpoint: (completed, failed, retried) for endpoint, completed, failed, retried in rows}

    def records(self) -> list[tuple[str, bytes]]:
        """Kind and record (MessagePack) of everything that the control plane keeps."""
        return [(kind, record) for kind, record in self._db.execute("SELECT kind, record FROM records ORDER BY rowid")]

    def hours(self) -> list[bytes]:
        """What endpoints have cost by the hour (MessagePack)."""
        return [record for (record,) in self._db.execute("SELECT record FROM hours")]

    # --- writing --------------------------------------------------------------------------------------------------

    def job_saved(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._schedule()

    def job_deleted(self, job_id: str) -> None:
        self._jobs[job_id] = None
        self._schedule()

    def webhook_saved(self, webhook: Webhook) -> None:
        self._put("webhooks", webhook.id, (webhook.id, msgspec.msgpack.encode(webhook)))

    def webhook_deleted(self, webhook_id: str) -> None:
        self._put("webhooks", webhook_id, None)

    def worker_saved(self, bill: WorkerBill) -> None:
        self._put("workers", bill.worker, (bill.worker, msgspec.msgpack.encode(bill)))

    def counters_saved(self, endpoint: str, completed: int, failed: int, retried: int) -> None:
        self._put("counters", endpoint, (endpoint, completed, failed, retried))

    def record_saved(self, kind: str, record_id: str, record: bytes) -> None:
        key = f"{kind}/{record_id}"
        self._put("records", key, (key, kind, record))

    def record_deleted(self, kind: str, record_id: str) -> None:
        self._put("records", f"{kind}/{record_id}", None)

    def hour_saved(self, key: str, record: bytes) -> None:
        self._put("hours", key, (key, record))

    async def durable(self) -> None:
        """Return when everything that was saved before is written. Raises EmulatorError if it could not be."""
        if self._failure is not None:
            raise EmulatorError(f"The emulator's state cannot be written: {self._failure}.")
        if self._written is not None:
            await asyncio.shield(self._written)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._flush()
        self._db.close()

    def _put(self, table: str, key: str, row: tuple[Any, ...] | None) -> None:
        self._rows[table, key] = row
        self._schedule()

    def _schedule(self) -> None:
        if self._flush_handle is None:
            loop = asyncio.get_running_loop()
            self._written = loop.create_future()
            # nobody need wait for a write: then its failure is told by the next durable()
            self._written.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._flush_handle = loop.call_later(BATCH_S, self._flush)

    def _flush(self) -> None:
        if self._flush_handle is None:
            return
        self._flush_handle.cancel()
        self._flush_handle = None
        written, self._written = self._written, None
        jobs, self._jobs = self._jobs, {}
        rows, self._rows = self._rows, {}
        try:
            with self._db:
                self._write_jobs(jobs)
                for (table, key), row in rows.items():
                    if row is None:
                        self._db.execute(f"DELETE FROM {table} WHERE id = ?", (key,))
                    else:
                        marks = ",".join("?" * len(row))
                        self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)
        except apsw.Error as error:
            self._failure = error
            if written is not None:
                written.set_exception(EmulatorError(f"The emulator's state cannot be written: {error}."))
            return
        if written is not None and not written.done():
            written.set_result(None)

    def _write_jobs(self, jobs: dict[str, Job | None]) -> None:
        gone = [(job_id,) for job_id, job in jobs.items() if job is None and job_id in self._stored_bodies]
        live = [job for job in jobs.values() if job is not None]
        new = [(job.id, job.body) for job in live if job.id not in self._stored_bodies]
        if new:
            self._db.executemany("INSERT OR REPLACE INTO bodies VALUES (?, ?)", new)
            self._stored_bodies.update(job_id for job_id, _ in new)
        if live:
            encode = self._job_encoder.encode
            self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?)", [(job.id, encode(_with_body(job, b""))) for job in live])
        if gone:
            self._db.executemany("DELETE FROM jobs WHERE id = ?", gone)
            self._db.executemany("DELETE FROM bodies WHERE id = ?", gone)
            self._stored_bodies.difference_update(job_id for (job_id,) in gone)


def _with_body(job: Job, body: bytes) -> Job:
    """A job's record is written without its request, which is written once, beside it."""
    return dataclasses.replace(job, body=body)
