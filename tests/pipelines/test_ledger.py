# tests/pipelines: the ledger keeps what it is told, survives its process, and is only a cache.
from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from contract.errors import InfrastructureError
from pipelines.ledger import FIXED_SQLITE, MIGRATIONS, Ledger, LedgerAttempt
from pipelines.prices import Past
from tests.contract.world import START

URI = "s3://bucket/runs/r"


def attempt(number: int, state: str = "sent") -> LedgerAttempt:
    return LedgerAttempt("aa", number, "00000", state, None, f"job-{number}", True, START)


def add_run(ledger: Ledger, uri: str = URI, state: str = "running", ok: int = 0) -> None:
    ledger.run(uri, run_id=uri[-1], stack="local", state=state, rows=10, ok=ok, failed=0, created_at=START)


def test_runs_attempts_webhooks_and_costs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.sqlite3"
    with Ledger(path) as ledger:
        add_run(ledger)
        add_run(ledger, state="complete", ok=10)
        ledger.attempts(URI, [attempt(1), attempt(2)], START)
        ledger.attempts(URI, [attempt(2, "won")], START + timedelta(seconds=5))
        for _ in range(2):
            ledger.webhook(URI, "00000", 1, START)
        ledger.cost(URI, worker_seconds=1.5, usd_estimated=0.1, usd_reserved=0.2, at=START)
    with Ledger(path) as ledger:
        (run,) = ledger.runs()
        assert (run.state, run.ok, run.created_at) == ("complete", 10, START)
        assert [a.state for a in ledger.attempts_of(URI)] == ["sent", "won"]
        assert ledger.attempts_of(URI)[0] == attempt(1)
        assert ledger.webhooks_of(URI) == 1


def test_what_past_runs_took_is_told_by_endpoint_task_and_model_the_latest_first(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite3") as ledger:
        for number in range(7):
            past = Past(number + 1, 1000, 100, 2.5)
            at = START + timedelta(days=number)
            ledger.speed(f"{URI}{number}", past, endpoint_id="ep", task="embed", model="m", at=at)
        ledger.speed(f"{URI}6", Past(70, 1000, 100, 2.5), endpoint_id="ep", task="embed", model="m", at=START + timedelta(days=9))
        ledger.speed("s3://bucket/runs/x", Past(1, 1, 1, 1.0), endpoint_id="ep", task="embed", model="other", at=START)
        assert [past.executions for past in ledger.past("ep", "embed", "m", last=3)] == [70, 6, 5]
        assert ledger.past("ep", "generate", "m") == ()


def test_a_ledger_of_the_first_version_is_taken_along(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    db = apsw.Connection(str(path))
    db.execute(MIGRATIONS[0])
    db.pragma("user_version", 1)
    db.close()
    with Ledger(path) as ledger:
        add_run(ledger)
        assert ledger.past("ep", "embed", "m") == ()
        assert len(ledger.runs()) == 1


def test_a_ledger_is_migrated_from_nothing_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    Ledger(path).close()
    db = apsw.Connection(str(path))
    assert db.pragma("user_version") == len(MIGRATIONS)
    db.close()
    Ledger(path).close()


def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    Ledger(path).close()
    code = (
        "import sys; from pathlib import Path; from pipelines.ledger import Ledger; from tests.pipelines.test_ledger import *\n"
        "with Ledger(Path(sys.argv[1])) as ledger:\n"
        "    for n in range(50): ledger.attempts(sys.argv[2], [attempt(n + 1)], START)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), f"s3://bucket/runs/{n}"]) for n in range(2)]
    assert [w.wait(timeout=60) for w in writers] == [0, 0]
    with Ledger(path) as ledger:
        assert [len(ledger.attempts_of(f"s3://bucket/runs/{n}")) for n in range(2)] == [50, 50]


def test_what_was_written_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.pipelines.test_ledger import *\n"
        "ledger = Ledger(Path(sys.argv[1])); add_run(ledger); ledger.attempts(URI, [attempt(1)], START)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=60).returncode == -9
    with Ledger(path) as ledger:
        assert len(ledger.runs()) == len(ledger.attempts_of(URI)) == 1


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(InfrastructureError, match="delete the file"):
        Ledger(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="ledger"):
        Ledger(tmp_path / "file" / "ledger.sqlite3")


def test_the_users_ledger_is_in_the_state_folder(tmp_path: Path) -> None:
    with Ledger.open({"NIGHTBATCH_HOME": str(tmp_path)}) as ledger:
        assert ledger.path == tmp_path / "ledger.sqlite3"


def test_sqlite_is_one_without_the_wal_reset_bug() -> None:
    assert apsw.SQLITE_VERSION_NUMBER >= FIXED_SQLITE
