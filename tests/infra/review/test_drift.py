"""What is live and not as declared: read from a refreshed preview."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.errors import UsageError
from infra.review.drift import CHANGED_THERE, DELETED_THERE, NO_LONGER, NOT_DEPLOYED, Drift, differences, lines, look, record
from infra.review.engine import EngineError, Project
from infra.settings import Problem, SettingsError
from tests.infra.review.digests import ENDPOINT_INPUTS, VOLUME_INPUTS, digest, state, step, urn, with_


def moved(before: dict[str, Any], live: dict[str, Any], wanted: dict[str, Any], *paths: str) -> dict[str, Any]:
    old, now = state(before, id="4m7x2k9q"), state(live, id="4m7x2k9q")
    return digest(
        step("refresh", urn("embed"), old, old),
        step("update", urn("embed"), now, state(wanted, id="4m7x2k9q"), dict.fromkeys(paths, "update")),
    )


def test_a_console_edit_is_named_with_declared_and_live() -> None:
    live = with_(ENDPOINT_INPUTS, timeout=0)
    (one,) = differences(moved(ENDPOINT_INPUTS, live, ENDPOINT_INPUTS, "timeout"))
    assert (one.kind, one.name, one.id, one.property) == ("endpoint", "embed", "4m7x2k9q", "timeout")
    assert (one.declared, one.live, one.cause) == (600000, 0, CHANGED_THERE)


@pytest.mark.parametrize(("live", "days"), [(2, "3 days"), (0, "7 days")])
def test_the_idle_rules_cut_is_recognised(live: int, days: str) -> None:
    (one,) = differences(moved(ENDPOINT_INPUTS, with_(ENDPOINT_INPUTS, workers__max=live), ENDPOINT_INPUTS, "workers.max"))
    assert one.cause == f"RunPod's idle rule: no request for {days}"


@pytest.mark.parametrize(("declared", "live"), [(2, 2), (1, 2), (8, 3)])
def test_another_number_of_workers_is_not_the_idle_rule(declared: int, live: int) -> None:
    wanted = with_(ENDPOINT_INPUTS, workers__max=declared)
    found = differences(moved(wanted, with_(ENDPOINT_INPUTS, workers__max=live), wanted, "workers.max"))
    assert not any("idle" in one.cause for one in found)


def test_what_is_declared_and_not_deployed_is_no_console_edit() -> None:
    (one,) = differences(moved(ENDPOINT_INPUTS, ENDPOINT_INPUTS, with_(ENDPOINT_INPUTS, workers__max=9), "workers.max"))
    assert one.cause == NOT_DEPLOYED


def test_a_deletion_by_hand_is_named() -> None:
    old = state(ENDPOINT_INPUTS, id="4m7x2k9q")
    (one,) = differences(digest(step("refresh", urn("embed"), old), step("create", urn("embed"), None, state(ENDPOINT_INPUTS))))
    assert (one.cause, one.property, one.live) == (DELETED_THERE, "", None)
    assert "whether this API key is of the stack's account" in lines(Drift("prod", (one,), 1))[-1]


def test_what_is_live_and_no_longer_declared_is_named() -> None:
    old = state(VOLUME_INPUTS, id="v", kind="NetworkVolume")
    where = urn("models", "NetworkVolume")
    (one,) = differences(digest(step("refresh", where, old, old), step("delete", where, old)))
    assert one.cause == NO_LONGER


def test_secret_values_are_not_shown() -> None:
    before = with_(ENDPOINT_INPUTS, env__API_KEY="declared-value")
    live = with_(ENDPOINT_INPUTS, env__API_KEY="edited-value")
    found = Drift("prod", differences(moved(before, live, before, "env.API_KEY")), 1)
    text = "\n".join(lines(found)) + json.dumps(record(found))
    assert "env.API_KEY" in text
    assert "edited-value" not in text
    assert "declared-value" not in text


def test_no_drift_is_one_line() -> None:
    old = state(ENDPOINT_INPUTS, id="e")
    found = differences(digest(step("refresh", urn("embed"), old, old), step("same", urn("embed"), old, old)))
    assert found == ()
    assert lines(Drift("prod", found, 1)) == ["no drift on prod: 1 resources are as declared"]


# --- with a stand-in for the engine --------------------------------------------------------------------------------------------------


def engine(folder: Path, document: Any, code: int, stderr: str = "") -> Project:
    """A `pulumi` that prints the document and ends with the code; what it was asked is in folder/asked."""
    program = folder / "pulumi"
    (folder / "document").write_text(json.dumps(document) if document is not None else "")
    program.write_text(f"#!/bin/sh\necho \"$@\" > {folder}/asked\ncat {folder}/document\necho '{stderr}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return Project(folder, {"PATH": f"{folder}:/usr/bin:/bin"})


def test_drift_ends_with_1_and_says_how_to_mend(tmp_path: Path) -> None:
    document = moved(ENDPOINT_INPUTS, with_(ENDPOINT_INPUTS, workers__max=2), ENDPOINT_INPUTS, "workers.max")
    found = look(engine(tmp_path, document, 7), "prod")
    assert found.exit_code == 1
    assert lines(found)[-2].startswith("mend: pulumi up --refresh --run-program --stack prod")
    assert "nightbatch doctor prod --fix" in lines(found)[-1]
    asked = (tmp_path / "asked").read_text().split()
    assert {"preview", "--refresh", "--run-program", "--expect-no-changes", "--json"} <= set(asked)


def test_a_clean_stack_ends_with_0(tmp_path: Path) -> None:
    old = state(ENDPOINT_INPUTS, id="e")
    found = look(engine(tmp_path, digest(step("same", urn("embed"), old, old)), 0), "prod")
    assert (found.exit_code, found.looked_at) == (0, 1)


def test_changes_that_the_engine_counts_are_never_called_clean(tmp_path: Path) -> None:
    found = look(engine(tmp_path, {"steps": [], "changeSummary": {"update": 1}}, 7), "prod")
    assert found.exit_code == 1
    assert "1 update" in found.differences[0].cause


def test_a_stack_that_cannot_be_compared_is_an_error_not_drift(tmp_path: Path) -> None:
    document = digest(diagnostics=[("error", "GET /v2/serverless/e: RunPod answered 401: no such key")])
    with pytest.raises(EngineError) as caught:
        look(engine(tmp_path, document, 1), "prod")
    assert caught.value.exit_code == 3
    assert "401" in str(caught.value)


def test_no_answer_of_the_engine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the backend fell over"):
        look(engine(tmp_path, None, 255, "error: the backend fell over"), "prod")


def test_an_answer_of_another_form_is_not_called_clean(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"not of Pulumi's own form.*steps\[0\]"):
        look(engine(tmp_path, {"steps": ["?"]}, 0), "prod")


def test_a_stack_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stack prod: Pulumi knows no stack of this name.*pulumi stack init prod") as caught:
        look(engine(tmp_path, None, 6, "error: no stack named"), "prod")
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="local up --pulumi makes it"):
        look(engine(tmp_path, None, 6, "error: no stack named"), "local")


SETTINGS = str(SettingsError("infra/stacks/Pulumi.prod.yaml", [Problem("a", "must be set"), Problem("b", "is no number")]))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (f"error: {SETTINGS}", "Pulumi.prod.yaml: 2 settings are not usable:.*a: must be set.*b: is no number"),
        ("error: image-digest (mandatory): endpoint embed: not pinned. Pin it.", r"image-digest \(mandatory\): endpoint embed: not pinned"),
        ("error: runpodv2: an API key is needed. Set RUNPOD_API_KEY, or apiKey of the provider.", "an API key is needed"),
        ("error: passphrase must be set with PULUMI_CONFIG_PASSPHRASE", "passphrase must be set"),
    ],
)
def test_what_the_user_can_mend_is_a_usage_error_with_the_settings_own_words(tmp_path: Path, message: str, said: str) -> None:
    document = digest(diagnostics=[("error", message), ("error", "preview failed")])
    with pytest.raises(UsageError, match=f"(?s){said}.*Drift was not looked at") as caught:
        look(engine(tmp_path, document, 1), "prod")
    assert caught.value.exit_code == 2


def test_a_broken_rule_beside_a_runpod_that_fails_is_not_the_users_mistake(tmp_path: Path) -> None:
    messages = [("error", "image-digest (mandatory): endpoint embed: not pinned"), ("error", "GET /v2/serverless/e: RunPod answered 500")]
    with pytest.raises(EngineError):
        look(engine(tmp_path, digest(diagnostics=messages), 1), "prod")
