"""Previews that no engine of Pulumi's would print: the report says what it could not read, and never breaks."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.review.changes import changes, hidden
from infra.review.digest import DEEP, DEEPEST, LONGEST, decoded, read
from infra.review.drift import differences
from infra.review.engine import Done, error_messages
from infra.review.preview import StackPreview, StackReport, exit_code, record, render, understood
from infra.review.previews import stack_preview, typical_nights, with_nights
from tests.infra.review.digests import ENDPOINT_INPUTS, digest, stack_step, state, step, urn, with_


def whole() -> dict[str, Any]:
    """A digest with something of everything in it."""
    new = with_(ENDPOINT_INPUTS, workers__max=9, env__A="b")
    return digest(
        stack_step({"endpoints": {"embed": {"id": "e1", "usd_per_hour_per_worker": 0.7, "gpuPools": ["AMPERE_24"], "gpuCount": 1}}}),
        step("refresh", urn("embed"), state(ENDPOINT_INPUTS, id="e1"), state(with_(ENDPOINT_INPUTS, workers__max=2), id="e1")),
        step("update", urn("embed"), state(ENDPOINT_INPUTS, id="e1"), state(new, id="e1"), {"workers.max": "update", "env.A": "add"}),
        step("replace", urn("other"), state(ENDPOINT_INPUTS, id="e2"), state(new), {"gpu.pools[0]": "update-replace"}, ["gpu"]),
        step("delete", urn("third"), state(ENDPOINT_INPUTS, id="e3")),
        step("create", urn("fourth"), None, state(ENDPOINT_INPUTS)),
        diagnostics=[("warning", "image-pinned (advisory): endpoint embed: not pinned"), ("error", "something is wrong")],
        config={"nightbatch:gpuPrices": '{"AMPERE_24": 0.5}'},
    )


def everything(document: Any) -> StackReport:
    """Everything that is made of a preview, once: nothing of it may raise, and all of it must be what a file and a forge take."""
    (preview,) = with_nights([StackPreview("prod", document)], {"e1": 1.0})
    report = understood(preview)
    text = render([report], commit="0123456789ab")
    assert len(text.encode()) <= 65_000
    json.dumps(record([report]), ensure_ascii=False).encode()
    assert exit_code([report]) in (0, 1, 3)
    read_as = read(document)
    differences(read_as.found)
    error_messages(read_as.found)
    return report


def nested(levels: int) -> Any:
    found: Any = "end"
    for level in range(levels):
        found = {"in": found} if level % 2 else [found]
    return found


# Each of them takes the place of each part of a digest in turn.
ODD: list[Any] = [
    None,
    True,
    -1,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\x00",
    "\ud800half",
    "\u202egnp.exe\u2066",
    "[9999999999999]",
    '["["["["[',
    [],
    [None],
    [[]],
    {},
    {"": {}},
    {"\x00": "\x00", "\ud800": "\udfff"},
    {"kind": 5},
    nested(DEEPEST * 2),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, the document itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in places(one, (*path, key)))]


def with_at(document: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    first, *rest = path
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[first] = with_at(copy[first], tuple(rest), odd)
    return copy


def without(document: Any, path: tuple[Any, ...]) -> Any:
    first, *rest = path
    copy = dict(document) if isinstance(document, dict) else list(document)
    if rest:
        copy[first] = without(copy[first], tuple(rest))
    else:
        del copy[first]
    return copy


def test_a_digest_of_pulumis_own_form_is_read_as_it_is() -> None:
    assert read(whole()).odd == ()
    assert everything(whole()).errors == ()
    assert len(changes(read(whole()).found)) == 4


def test_odd_values_at_every_place_never_break_a_report() -> None:
    document = whole()
    rng = random.Random(7)
    spots = places(document)
    for path in spots:
        for odd in rng.sample(ODD, 2):
            everything(with_at(document, path, odd))


def test_a_part_that_is_missing_never_breaks_a_report() -> None:
    document = whole()
    for path in places(document)[1:]:
        everything(without(document, path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=6), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=json_values, diagnostics=json_values, config=json_values)
def test_anything_at_all_in_place_of_a_digest_is_a_report(steps: Any, diagnostics: Any, config: Any) -> None:
    everything({"steps": steps, "diagnostics": diagnostics, "config": config, "changeSummary": config})
    everything({"steps": [{"op": "update", "urn": urn("a"), "oldState": steps, "newState": diagnostics, "detailedDiff": config}]})
    everything(steps)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([1, 2], "it is no object"),
        ({"steps": "none"}, "steps is no list"),
        ({"steps": [5]}, r"steps\[0\] is no object"),
        ({"steps": [{"op": "delete"}]}, r"steps\[0\] has no `op` or no `urn`"),
        ({"steps": [{"op": "delete", "urn": ["x"]}]}, r"steps\[0\]\.urn is no text"),
        ({"steps": [{"op": "delete", "urn": urn("a"), "oldState": "gone"}]}, r"steps\[0\]\.oldState is no object"),
        ({"diagnostics": {"error": 1}}, "diagnostics is no list"),
        ({"steps": [5] * 9}, "and 6 more"),
    ],
)
def test_what_could_not_be_read_is_said_and_fails_the_report(document: Any, said: str) -> None:
    """A step that is not understood may be the one that deletes a volume: such a preview is not passed."""
    report = understood(StackPreview("prod", document))
    assert report.failed
    assert re.search(f"not of Pulumi's own form.*{said}", " ".join(report.errors))
    assert exit_code([report]) == 3
    assert "Could not be previewed" in render([report])


def test_what_could_be_read_is_in_the_report_beside_what_could_not() -> None:
    document = whole()
    document["steps"].insert(0, "a step of tomorrow")
    report = everything(document)
    assert report.failed
    assert [change.name for change in report.destructive] == ["other", "third"]
    assert "Destroys something" in render([report])


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"steps":' * 50_000, "1" * 5_000, '{"a": 1' + "0" * 5_000 + "}", "NaN", "\x00", "", "null"]
)
def test_output_that_no_reader_can_take_is_a_failed_preview_without_a_traceback(text: str) -> None:
    done = Done(("preview",), 0, text, "", 1.0)
    report = understood(stack_preview("prod", done, refreshed=True))
    assert report.failed
    assert done.problem == ""
    assert Done(("preview",), 1, text, "error: it broke\n", 1.0).problem == "it broke"
    assert decoded(text) is None or text == "NaN"


def test_numbers_that_mean_nothing_are_told_and_are_in_no_sum() -> None:
    for most in (10**400, float("inf"), float("nan"), -4, "many", [3], True):
        inputs = with_(ENDPOINT_INPUTS, workers__max=most)
        report = everything(digest(step("create", urn("embed"), None, state(inputs))))
        assert report.after.unpriced == ("embed",)
        assert report.after.ceiling_per_hour == 0.0
    assert typical_nights([{"serverlessId": "e", "totalAmount": 10**400}, {"serverlessId": 5, "totalAmount": 1}]) == {}


def test_a_value_nested_without_end_is_cut_and_the_rest_is_kept() -> None:
    inputs = with_(ENDPOINT_INPUTS, env={"A": "b"}, extra=nested(500))
    report = everything(digest(step("create", urn("embed"), None, state(inputs))))
    text = json.dumps(record([report]))
    assert DEEP in text
    assert '"b"' in text


@pytest.mark.timeout(120)
def test_long_texts_take_no_longer_than_their_length() -> None:
    """Each of them makes a careless pattern look at the whole text again from every place of it."""
    for unit in ("eyJ-", "://a:", "basic  ", '["', "\n ", "-----BEGIN A PRIVATE KEY-----", "sk-", "a.", "`"):
        text = unit * (4 * LONGEST // len(unit))
        everything(digest(step("create", urn("embed"), None, state(with_(ENDPOINT_INPUTS, extra=text))), diagnostics=[("warning", text)]))
        everything(digest(step("update", urn("embed"), state(ENDPOINT_INPUTS), state(ENDPOINT_INPUTS), {text: "update"})))


def test_passwords_in_addresses_are_still_cut() -> None:
    assert hidden("see https://user:pa:ss@host/x and https://:only@host") == "see https://[secret]@host/x and https://[secret]@host"
