# tests/cli: a terminal of a few lines, as far as the live view uses one: what a person would see of the bytes that were written.
from __future__ import annotations

import re
from dataclasses import dataclass, field

from rich.cells import cell_len

TOKEN = re.compile(r"\x1b\[(?P<args>[?0-9;]*)(?P<end>[A-Za-z])|(?P<char>.)", re.DOTALL)


@dataclass
class Screen:
    """Every line that was ever there, in `lines`; a line that is wider than the terminal goes on in the next one."""

    width: int = 100
    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    column: int = 0
    unknown: list[str] = field(default_factory=list)
    """What it does not know: a view must not need it, and no text may bring it."""
    styles: list[str] = field(default_factory=list)

    def feed(self, text: str) -> None:
        for found in TOKEN.finditer(text):
            if (char := found["char"]) is not None:
                self._put(char)
            elif found["end"] == "A":
                self.row = max(0, self.row - int(found["args"] or 1))
            elif found["end"] == "K" and found["args"] == "2":
                self.lines[self.row] = ""
            elif found["end"] == "m":
                self.styles.append(found["args"])
            elif found[0] not in ("\x1b[?25l", "\x1b[?25h"):
                self.unknown.append(found[0])

    def resize(self, width: int) -> None:
        """As most terminals do: lines that are too long are broken, and the cursor stays at its text."""
        before, self.width = self.width, width
        if width >= before:
            return
        fresh: list[str] = []
        for number, line in enumerate(self.lines):
            pieces = [line[at : at + width] for at in range(0, max(1, len(line)), width)]
            if number == self.row:
                row, column = len(fresh) + min(self.column // width, len(pieces) - 1), self.column % width
            fresh += pieces
        self.lines, self.row, self.column = fresh, row, column

    @property
    def text(self) -> list[str]:
        """What is there, without empty lines."""
        return [line.rstrip() for line in self.lines if line.strip()]

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.lines):
                self.lines.append("")
        elif char == "\x1b" or (char < " " and char != "\t"):
            self.unknown.append(char)
        else:
            if self.column + cell_len(char) > self.width:
                self._put("\n")
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += max(1, cell_len(char))
