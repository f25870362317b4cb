"""Numbers for people, and foreign text that can do nothing."""

from __future__ import annotations

import pytest

from contract.words import duration, usd
from nights.report.text import percent, shortened, signed, size, unbroken, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NUL \x00", "NUL \\u0000"),
        ("\x1b[31m", "\\u001b[31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\ud800b", "a\\ud800b"),
        ("line\r\nline\ttab", "line\\u000d\nline\ttab"),
        ("\ufeffbom\u200b", "\\ufeffbom\\u200b"),
        ("e\u0301\u0302", "e\u0301\u0302"),
        ("e" + "\u0301" * 30, "e" + "\u0301" * 4 + "[+26 marks]"),
        ("\U0001f469\u200d\U0001f467 שלום", "\U0001f469\u200d\U0001f467 שלום"),
    ],
)
def test_what_a_browser_would_hide_or_obey_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown
    visible(text).encode()


def test_long_text_says_how_much_is_left_out() -> None:
    assert shortened("w" * 10_000, 20) == "w" * 20 + " … (9,980 more characters)"
    assert shortened("short") == "short"


def test_numbers_have_as_many_digits_as_tell_something() -> None:
    assert [usd(value) for value in (0, 0.00001, 0.0042, 3.214, 12345.6, -2)] == [
        "$0.0000", "$0.000010", "$0.0042", "$3.21", "$12,345.60", "-$2.00"
    ]  # fmt: skip
    assert [percent(part, 1000) for part in (0, 0.01, 5, 123, 999.999, 1000)] == [
        "0 %", "under 0.01 %", "0.50 %", "12 %", "99.99 %", "100 %"
    ]  # fmt: skip
    assert percent(1, 0) == "0 %"
    assert [duration(value) for value in (0.42, 59.4, 200, 7500, 180_000)] == ["0.4 s", "59 s", "3 min 20 s", "2 h 05 min", "2 d 02 h"]
    assert [size(value) for value in (512, 1_400_000, 9_000_000_000_000_000)] == ["512 bytes", "1.4 MB", "9,000.0 TB"]
    assert [signed(value, "3") for value in (3, -3, 0)] == ["+3", "−3", "±3"]


def test_a_number_stays_with_its_unit_and_words_do_not() -> None:
    assert unbroken("in 3 min 20 s, 12 % less, 5 shards") == "in 3\u00a0min\u00a020\u00a0s, 12\u00a0% less, 5 shards"
