"""contract: how money, time and counts are said to people, the same everywhere. Pure."""

from __future__ import annotations


def usd(value: float) -> str:
    """Dollars with as many digits as tell something: $12.34, $0.0042."""
    if value < 0:
        return f"-{usd(-value)}"
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}" if value >= 0.0001 or value == 0 else f"${value:.6f}"


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """1.2 s, 45 s, 3 min 20 s, 2 h 05 min, 3 d 04 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"
