"""worker: keeps credentials out of everything that is printed. Touches stdout and stderr only.

Jobs bring S3 keys; the SDK and botocore print what they like. A secret is registered before it is used, and every later write to stdout
or stderr has it replaced.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable
from typing import Final, TextIO

HIDDEN: Final = "<hidden>"
_SHORTEST: Final = 6
"""A shorter string is no secret worth the name, and replacing it would garble every line."""


class Redactor:
    """The secrets of this process."""

    def __init__(self) -> None:
        self._secrets: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def add(self, secrets: Iterable[str | None]) -> None:
        with self._lock:
            known = {*self._secrets, *(s for s in secrets if s and len(s) >= _SHORTEST)}
            # Longest first, so that a secret that contains another one goes as a whole.
            self._secrets = tuple(sorted(known, key=len, reverse=True))

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text


class CleanStream(io.TextIOBase):
    """A text stream that hides secrets and passes everything else on."""

    def __init__(self, stream: TextIO, redactor: Redactor) -> None:
        self._stream = stream
        self._redactor = redactor

    def write(self, text: str) -> int:
        self._stream.write(self._redactor.clean(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True


def install(redactor: Redactor) -> None:
    """From now on this process prints through the redactor."""
    sys.stdout = CleanStream(sys.stdout, redactor)
    sys.stderr = CleanStream(sys.stderr, redactor)
