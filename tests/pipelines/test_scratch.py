"""pipelines: scratch folders, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pipelines.scratch import is_scratch, scratch_folder, sweep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def folders(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("nightbatch-scratch-*"))


def killed_in_its_folder(tmp_path: Path) -> None:
    code = "import time\nfrom pipelines.scratch import scratch_folder\nwith scratch_folder() as f:\n    (f / 'rows').write_text('x')\n"
    code += "    print(f, flush=True)\n    time.sleep(60)\n"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert Path(process.stdout.readline().strip()).is_dir()
        process.send_signal(signal.SIGKILL)


def test_a_scratch_folder_is_gone_when_its_work_is_done(tmp_path: Path) -> None:
    with scratch_folder() as folder:
        (folder / "rows").write_text("x")
        assert folder in folders(tmp_path)
    assert folders(tmp_path) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    killed_in_its_folder(tmp_path)
    (left,) = folders(tmp_path)
    os.utime(left, (time.time() - 3600,) * 2)
    with scratch_folder():
        assert left not in folders(tmp_path)


def test_a_young_folder_and_that_of_a_living_process_stay(tmp_path: Path) -> None:
    killed_in_its_folder(tmp_path)
    (young,) = folders(tmp_path)
    with scratch_folder() as living:
        os.utime(living, (time.time() - 3600,) * 2)
        sweep()
        assert folders(tmp_path) == sorted([living, young])


def test_folders_that_only_look_like_ours_stay(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "lock").write_bytes(b"")
    link = tmp_path / "nightbatch-scratch-link"
    link.symlink_to(other)
    unlocked = tmp_path / "nightbatch-scratch-without-lock"
    unlocked.mkdir()
    os.utime(unlocked, (time.time() - 3600,) * 2)
    sweep(older_than_s=-1)
    assert link.is_symlink()
    assert other.is_dir()
    assert unlocked.is_dir()


def test_a_name_in_a_scratch_folder_is_told_from_any_other() -> None:
    with scratch_folder() as folder:
        assert is_scratch(str(folder / "rows.jsonl"))
    for name in ("rows.jsonl", "/data/rows.jsonl", "s3://bucket/rows.jsonl", "nightbatch-scratch-notes.jsonl"):
        assert not is_scratch(name)
