"""emulator: files that hold keys. May touch: the files that it is told."""

from __future__ import annotations

import os
from pathlib import Path


def remove_drafts(path: Path) -> None:
    """What `write_private` of a process that was killed has left of this file. No other may be writing it."""
    for draft in path.parent.glob(f"{path.name}.*.new"):
        draft.unlink(missing_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file in one step; only its owner may read it (mode 0600)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(fresh, path)
