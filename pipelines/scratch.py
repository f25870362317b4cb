"""pipelines: a folder for what is too large for memory, which goes away however its process ends. Touches the system's temporary folder.

Python removes a temporary folder when the process ends by itself. After kill -9 it stays, and may hold gigabytes of rows: then the next
command that needs such a folder removes it. Whose process still lives is told by a lock that the kernel gives back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final

_PREFIX: Final = "nightbatch-scratch-"
_LOCK: Final = "lock"
_YOUNG_S: Final = 60.0
"""A folder that is younger is left alone: its maker may not have its lock yet."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder of this process. Removes those that killed processes of this user left behind."""
    sweep()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, open(Path(name) / _LOCK, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def is_scratch(name: str) -> bool:
    """In a folder that `scratch_folder` made: it is gone when its process ends, so that no object that is kept names it."""
    return any(part.startswith(_PREFIX) for part in PurePath(name).parts[:-1])


def sweep(older_than_s: float = _YOUNG_S) -> None:
    """Remove the folders whose processes are gone. What cannot be removed stays: it is no business of the command that runs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            found = folder.lstat()
            if found.st_uid != os.getuid() or folder.is_symlink() or time.time() - found.st_mtime < older_than_s:
                continue
            with open(folder / _LOCK, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
