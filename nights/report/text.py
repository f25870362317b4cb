"""nights/report: numbers, times and foreign text as a page shows them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from contract.words import counted

UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
"""What a browser would drop or obey instead of showing: control characters (but newline and tab), those that turn the direction of text,
marks of no width (but the joiners, which emoji and some scripts need), and halves of characters."""
_MARK: Final = "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
MARKS: Final = re.compile(f"({_MARK}{{4}})({_MARK}+)")
"""More marks on one letter than any language has: they would be drawn over the lines above and below."""
MOST_SHOWN: Final = 700
"""Characters of one foreign text."""


_MEASURE: Final = re.compile(r"\d (?:(?:s|min|h|d|bytes|kB|MB|GB|TB)\b|%)(?: \d\d (?:s|min|h)\b)?")


def unbroken(text: str) -> str:
    """A number stays on one line with its unit. For our own words only: foreign text is shown as it is."""
    return _MEASURE.sub(lambda found: found[0].replace(" ", "\u00a0"), text)


def visible(text: str) -> str:
    """`text` with everything that would not be seen written out: what is on the page is what is in the string, and nothing else."""
    shown = MARKS.sub(lambda found: f"{found[1]}[+{counted(len(found[2]), 'mark')}]", text)
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)


def shortened(text: str, most: int = MOST_SHOWN) -> str:
    """The first characters, and how many more there were."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def short(seconds: float) -> str:
    """A round duration beside an axis: 2 s, 5 min, 3 h."""
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h" if seconds < 86400 else f"{seconds / 86400:g} d"


def percent(part: float, whole: float) -> str:
    """`12 %`; `0.04 %` where it is little; nothing of nothing is 0 %."""
    if whole <= 0 or part <= 0:
        return "0 %"
    share = part * 100 / whole
    if share > 99 and part < whole:
        return f"{min(share, 99.99):.2f} %"
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %" if share >= 1 else f"{share:.2f} %" if share >= 0.01 else "under 0.01 %"


def size(number: int) -> str:
    """`512 bytes`, `1.4 MB`."""
    value = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def instant(at: datetime) -> str:
    """`2026-11-30 21:05:09 UTC`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(at: datetime) -> str:
    """`21:05`, in UTC."""
    return f"{at.astimezone(UTC):%H:%M}"


def measure(value: float) -> str:
    """A score or the like, in four digits."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"


def signed(value: float, shown: str) -> str:
    """`shown`, which is of the absolute value, with its sign."""
    return f"{'+' if value > 0 else '−' if value < 0 else '±'}{shown}"
