"""infra/provider: keeps secrets out of texts that leave the provider. Pure.

A secret seldom comes back as it was: an answer's words are put on one line and cut, an exception shows the `repr` of a value, a validator
its JSON. Each of these is looked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

HIDDEN: Final = "[secret]"
CUT: Final = "…"
"""Stands where a text was cut off, so that the beginning of a secret before it can be told."""
SHORTEST: Final = 4
"""Characters. A shorter secret stands in every other word."""
LINE: Final = 8
"""Characters of a line of a secret with several lines that is looked for by itself."""


def hider(secrets: Iterable[str], word: str = HIDDEN) -> Callable[[str], str]:
    """A function that puts `word` in place of every secret in a text."""
    forms = sorted({form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST}, key=len, reverse=True)

    def hide(text: str) -> str:
        for form in forms:
            text = text.replace(form, word)
        end = text.find(CUT)
        while end >= 0:
            for form in forms:
                length = next((n for n in range(min(len(form), end), SHORTEST - 1, -1) if text.endswith(form[:n], 0, end)), 0)
                if length:
                    text = text[: end - length] + word + text[end:]
                    end += len(word) - length
                    break
            end = text.find(CUT, end + 1)
        return text

    return hide


def one_line(text: str, most: int) -> str:
    """Somebody else's words, as a message may hold them: on one line, and at most so many characters before the mark of a cut."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most] + CUT


def _forms(secret: str) -> set[str]:
    whole = {secret, secret.strip(), " ".join(secret.split())}
    quoted = {form for text in whole for form in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])}
    lines = [line.strip() for line in secret.splitlines()]
    return whole | quoted | ({line for line in lines if len(line) >= LINE} if len(lines) > 1 else set())
