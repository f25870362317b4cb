"""What keeps secrets out of texts: also where they come back quoted, on one line, or cut off."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.provider.hide import CUT, HIDDEN, hider, one_line

PRIVATE_KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEA\n-----END KEY-----\n"


@pytest.mark.parametrize(
    "text",
    [
        PRIVATE_KEY,
        repr(PRIVATE_KEY),
        json.dumps({"env": {"KEY": PRIVATE_KEY}}),
        one_line(f"env.KEY: {PRIVATE_KEY} is odd", 600),
        "the second line, BAQEFAASCBKcwggSjAgEA, is odd",
    ],
)
def test_a_secret_of_several_lines_is_hidden_however_it_is_shown(text: str) -> None:
    hidden = hider([PRIVATE_KEY])(text)
    assert "BAQEFA" not in hidden
    assert HIDDEN in hidden


@given(secret=st.text(min_size=4, max_size=40), before=st.text(max_size=20))
def test_no_form_of_a_secret_passes(secret: str, before: str) -> None:
    hide = hider([secret], "*")
    for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]):
        assert form not in hide(f"{before}{form}.")


@given(cut=st.integers(10, 60))
def test_the_beginning_of_a_secret_where_a_text_was_cut_is_hidden(cut: int) -> None:
    text = one_line("the value 0123456789abcdefghijklmnopqrstuvwxyz is refused", cut)
    hidden = hider(["0123456789abcdefghijklmnopqrstuvwxyz"])(f"RunPod answered 422: {text} Try again.")
    assert "0123" not in hidden
    assert hidden.endswith(f"{CUT} Try again.") == (cut < 57)


def test_longer_secrets_are_hidden_first_and_short_ones_not_at_all() -> None:
    assert hider(["abcd", "abcdefgh", "xyz", ""])("abcdefgh abcd xyz") == f"{HIDDEN} {HIDDEN} xyz"
