# tests/contract: addresses and headers that several clients read.
from __future__ import annotations

from contract.net import on_this_machine, retry_after

MIDNIGHT = 1795996800.0
"""2026-11-30 00:00:00 UTC."""


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after("7") == 7
    assert retry_after("Mon, 30 Nov 2026 00:00:10 GMT", now=MIDNIGHT) == 10
    assert retry_after("Sun, 29 Nov 2026 23:59:00 GMT", now=MIDNIGHT) == 0
    assert retry_after("-3") == 0
    assert [retry_after(text) for text in (None, "soon", "nan", "")] == [None] * 4
    assert retry_after(f"Mon, {'9' * 20} Jan 2020 00:00:00 GMT") is None


def test_loopback_is_this_machine_and_nothing_that_only_looks_like_it() -> None:
    for url in ("http://127.0.0.1:8000/v2", "http://localhost", "http://[::1]:80/", "http://LOCALHOST:1"):
        assert on_this_machine(url), url
    for url in ("https://api.runpod.ai/v2", "http://localhost.example", "http://a.example/127.0.0.1", "http://127.0.0.1@a.example", ""):
        assert not on_this_machine(url), url
