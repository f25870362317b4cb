"""Previews -> one report: what comes first, what is shown, what is cut, what is never shown."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from infra.review import preview as review
from infra.review.changes import changes, leaves, parse_path, show_path
from infra.review.engine import Done
from infra.review.preview import StackPreview, exit_code, render, understood
from infra.review.previews import default_stacks, stack_preview, typical_nights, with_nights
from tests.infra.review.digests import ENDPOINT_INPUTS, VOLUME_INPUTS, digest, stack_step, state, step, urn, with_

DATA = Path(__file__).parent / "data"
AMPERE_24 = 0.00019 * 3600
ADA_24 = 0.00031 * 3600


def updated(diff: dict[str, str], stack: str = "prod", **new: Any) -> dict[str, Any]:
    return step(
        "update",
        urn("embed", stack=stack),
        state(ENDPOINT_INPUTS, id="4m7x2k9q"),
        state(with_(ENDPOINT_INPUTS, **new), id="4m7x2k9q"),
        diff,
    )


def replaced_endpoint() -> dict[str, Any]:
    new = with_(ENDPOINT_INPUTS, gpu=None, cpu=[{"id": "cpu3c", "vcpuCount": 2}])
    return step(
        "replace", urn("embed"), state(ENDPOINT_INPUTS, id="4m7x2k9q"), state(new), {"cpu": "add-replace", "gpu": "delete-replace"}, ["gpu"]
    )


def replaced_volume(**more: Any) -> dict[str, Any]:
    new = with_(VOLUME_INPUTS, dataCenter="US-KS-2")
    return step(
        "replace",
        urn("models", "NetworkVolume"),
        state(VOLUME_INPUTS, id="vol1", kind="NetworkVolume", **more),
        state(new, kind="NetworkVolume"),
        {"dataCenter": "update-replace"},
        ["dataCenter"],
    )


def same(stack: str = "dev", **new: Any) -> dict[str, Any]:
    found = with_(ENDPOINT_INPUTS, **new)
    return step("same", urn("embed", stack=stack), state(found, id="e1"), state(found, id="e1"))


def reports(*previews: StackPreview) -> list[review.StackReport]:
    return [understood(one) for one in previews]


def report(*steps: dict[str, Any], **more: Any) -> str:
    return render(reports(StackPreview("prod", digest(*steps), **more)), commit="0123456789ab")


# --- what is said --------------------------------------------------------------------------------------------------------------------


def test_what_destroys_something_comes_before_everything_else() -> None:
    text = render(
        reports(
            StackPreview("dev", digest(updated({"timeout": "update"}, stack="dev", timeout=1))),
            StackPreview("prod", digest(replaced_volume(), replaced_endpoint())),
        )
    )
    first = text.index("### Destroys something")
    assert first < text.index("| stack |") < text.index("<details>")
    assert text.index("<summary>prod") < text.index("<summary>dev")


def test_a_replaced_endpoint_is_a_new_id_and_url_and_names_what_forces_it() -> None:
    text = report(replaced_endpoint())
    assert "endpoint `embed` (`4m7x2k9q`) is **replaced** because of `gpu`" in text or "because of `cpu`, `gpu`" in text
    assert "a new id and URL" in text


def test_a_replaced_volume_is_lost_data_and_says_so() -> None:
    text = report(replaced_volume())
    assert "everything on the volume is lost** (100 GB)" in text
    assert "because of `dataCenter`" in text


def test_a_deleted_volume_is_lost_data_and_a_retained_one_is_not() -> None:
    gone = step("delete", urn("models", "NetworkVolume"), state(VOLUME_INPUTS, id="v", kind="NetworkVolume"))
    kept = step("delete", urn("models", "NetworkVolume"), state(VOLUME_INPUTS, id="v", kind="NetworkVolume", retainOnDelete=True))
    assert "is lost" in report(gone)
    assert "### Destroys" not in report(kept)
    assert "no longer managed" in report(kept)


def test_a_protected_resource_is_said_to_be_refused_by_up() -> None:
    assert "pulumi state unprotect" in report(replaced_volume(protect=True))


def test_the_steps_of_a_replacement_count_as_one_replacement() -> None:
    old, new = state(ENDPOINT_INPUTS, id="4m7x2k9q"), state(with_(ENDPOINT_INPUTS, type="LOAD_BALANCER"))
    steps = [
        step(op, urn("embed"), old, new, {"type": "update-replace"}, ["type"])
        for op in ("create-replacement", "replace", "delete-replaced")
    ]
    (change,) = changes(digest(*steps))
    assert change.op == "replace"
    assert change.id == "4m7x2k9q"
    assert [p.path for p in change.properties] == ["type"]


def test_no_changes_are_one_line_a_stack() -> None:
    text = render(reports(StackPreview("dev", digest(same())), StackPreview("prod", digest(same("prod")))))
    assert "**no changes in 2 stacks**" in text
    assert "<details>" not in text
    assert len([line for line in text.splitlines() if "no changes" in line and line.startswith("|")]) == 2


def test_a_property_is_shown_old_and_new() -> None:
    text = report(updated({"workers.max": "update", "env.NIGHTBATCH_MODEL": "update"}, workers__max=12, env__NIGHTBATCH_MODEL="e5"))
    assert "| `workers.max` | `8` | `12` |" in text
    assert "| `env.NIGHTBATCH_MODEL` | `minilm` | `e5` |" in text


def test_an_element_of_a_list_is_shown_with_the_whole_list() -> None:
    text = report(updated({"gpu.pools[0]": "update", "gpu.pools[1]": "delete"}, gpu__pools=["ADA_24"]))
    assert '| `gpu.pools` | `["AMPERE_24", "ADA_24"]` | `["ADA_24"]` |' in text


def test_without_a_detailed_diff_the_inputs_are_compared() -> None:
    change = updated({}, workers__max=2, flashboot="FLASHBOOT")
    change["detailedDiff"] = None
    text = report(change)
    assert "| `workers.max` | `8` | `2` |" in text
    assert "| `flashboot` | – | `FLASHBOOT` |" in text
    assert "`timeout`" not in text


def test_a_value_that_only_up_can_know_is_said_so() -> None:
    text = report(updated({"image": "update"}, image="04da6b54-80e4-46f7-96ec-b56ff0331ba9"))
    assert "known after up" in text
    assert "04da6b54" not in text


def test_a_new_image_says_how_it_reaches_workers_and_runs() -> None:
    assert "rolling release" in report(updated({"image": "update"}, image="x@sha256:" + "b" * 64))
    assert "strict release" in report(updated({"image": "update"}, image="x@sha256:" + "b" * 64, rollout="strict"))
    assert "rolling release" not in report(updated({"workers.max": "update"}, workers__max=9))


# --- money ---------------------------------------------------------------------------------------------------------------------------


def test_the_ceiling_counts_every_endpoint_at_its_dearest_pool() -> None:
    (found,) = reports(
        StackPreview(
            "prod",
            digest(
                updated({"workers.max": "update"}, workers__max=12),
                step("same", urn("generate"), state(with_(ENDPOINT_INPUTS, gpu__pools=["AMPERE_24"]), id="g")),
            ),
        )
    )
    assert found.before.ceiling_per_hour == pytest.approx(8 * ADA_24 + 8 * AMPERE_24)
    assert found.after.ceiling_per_hour == pytest.approx(12 * ADA_24 + 8 * AMPERE_24)
    assert "14.40 → 18.86 (+4.46)" in render([found])


def test_active_workers_cost_day_and_night() -> None:
    (found,) = reports(StackPreview("prod", digest(updated({"workers.min": "update"}, workers__min=1))))
    assert found.before.rest_per_day == 0
    assert found.after.rest_per_day == pytest.approx(24 * ADA_24)


def test_a_billed_night_is_as_many_worker_hours_at_another_price() -> None:
    preview = StackPreview("prod", digest(updated({"gpu.pools": "update"}, gpu__pools=["AMPERE_24"])), nights={"4m7x2k9q": 10.0})
    found = understood(preview)
    assert found.before.night == pytest.approx(10.0)
    assert found.after.night == pytest.approx(10.0 / ADA_24 * AMPERE_24)
    assert "RunPod's billing" in render([found])


def test_a_night_that_nobody_billed_is_called_an_assumption() -> None:
    found = understood(StackPreview("prod", digest(same("prod"))))
    assert found.after.night == pytest.approx(review.NIGHT_HOURS * ADA_24)
    assert "assumed" in render([found])


def test_a_deleted_endpoint_costs_nothing_afterwards() -> None:
    (found,) = reports(StackPreview("prod", digest(step("delete", urn("embed"), state(ENDPOINT_INPUTS, id="e")))))
    assert found.before.ceiling_per_hour > 0
    assert found.after == review.Cost()


def test_prices_of_the_stack_file_and_of_the_outputs_win() -> None:
    own = {"nightbatch:gpuPrices": json.dumps({"ADA_24": 2.0, "AMPERE_24": 1.0})}
    (found,) = reports(StackPreview("prod", digest(same("prod"), config=own)))
    assert found.after.ceiling_per_hour == pytest.approx(16.0)
    outputs = {"endpoints": {"embed": {"id": "e1", "usd_per_hour_per_worker": 3.0, "gpuPools": ["AMPERE_24", "ADA_24"], "gpuCount": 1}}}
    (found,) = reports(StackPreview("prod", digest(stack_step(outputs), same("prod"))))
    assert found.after.ceiling_per_hour == pytest.approx(24.0)


def test_an_endpoint_without_a_price_is_named_and_the_sum_is_called_a_floor() -> None:
    (found,) = reports(StackPreview("prod", digest(same("prod", gpu__pools=["NEW_POOL"]))))
    assert found.after.unpriced == ("embed",)
    text = render([found])
    assert "≥" in text
    assert "`embed`" in text


def test_a_typical_night_is_the_median_of_the_days_that_cost_something() -> None:
    days = [
        {"serverlessId": "e", "startTime": f"2026-11-{day:02}T00:00:00Z", "totalAmount": usd}
        for day, usd in ((1, 0), (2, 3), (3, 5), (4, 40))
    ]
    assert typical_nights(days) == {"e": 5.0}
    mine, other = with_nights([StackPreview("dev", digest(same())), StackPreview("prod", None)], {"e1": 2.0, "foreign": 9.0})
    assert mine.nights == {"e1": 2.0}
    assert other.nights == {}


# --- rules, errors, exit codes -------------------------------------------------------------------------------------------------------

BROKEN = (
    "infra/stacks/Pulumi.prod.yaml: 2 mandatory rules are not kept on stack 'prod':\n"
    "  image-digest (mandatory): endpoint embed: image is acme/worker:latest, which names another image every day. Pin it: nightbatch\n"
    "  worker-ceiling (mandatory): the stack: 30 workers at most (embed 30), over rules.maxWorkers = 10. Lower workers.peak or raise it. "
    "\nNothing was changed."
)
ADVICE = "gpu-pools (advisory): endpoint embed: ADA_24 is its only GPU pool. Add a second choice to gpu.pools."


def test_broken_rules_are_listed_with_resource_value_and_mend() -> None:
    found = understood(StackPreview("prod", digest(diagnostics=[("error", BROKEN), ("warning", ADVICE)]), ("failed",), 1))
    assert [f.rule for f in found.findings] == ["image-digest", "worker-ceiling", "gpu-pools"]
    assert [f.rule for f in found.broken_rules] == ["image-digest", "worker-ceiling"]
    text = render([found])
    assert "### Rules" in text
    assert "endpoint embed: image is acme/worker:latest" in text
    assert "2 mandatory rules broken" in text
    assert exit_code([found]) == 1


def test_advice_alone_fails_nothing() -> None:
    found = understood(StackPreview("prod", digest(same("prod"), diagnostics=[("warning", ADVICE)])))
    assert exit_code([found]) == 0
    assert "1 advice" in render([found])


def test_a_stack_that_failed_hides_no_other_stack() -> None:
    found = reports(
        StackPreview("dev", None, ("infra/stacks/Pulumi.dev.yaml: 1 setting is not usable",), 1),
        StackPreview("prod", digest(updated({"workers.max": "update"}, workers__max=9))),
    )
    text = render(found)
    assert "### Could not be previewed" in text
    assert "1 setting is not usable" in text
    assert "| `workers.max` | `8` | `9` |" in text
    assert exit_code(found) == 1


def test_an_unreachable_runpod_is_an_infrastructure_error() -> None:
    message = "GET /v2/serverless/e1: RunPod did not answer as it should: status 502. Try again."
    found = understood(StackPreview("prod", digest(diagnostics=[("error", message)]), (message,), 1))
    assert exit_code([found]) == 3


@pytest.mark.parametrize(
    "message",
    [
        "getting stack configuration: get stack secrets manager: incorrect passphrase",
        'read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): operation error S3: GetObject, get identity',
        'unable to open state directory "file:///nonexistent/dir": stat /nonexistent/dir: no such file or directory',
        "missing google credentials: unable to find gcp credentials: google: could not find default credentials.",
    ],
)
def test_a_state_backend_that_does_not_answer_is_an_infrastructure_error(message: str) -> None:
    found = understood(stack_preview("dev", Done(("preview",), 1, "", f"error: {message}", 1.0), refreshed=False))
    assert exit_code([found]) == 3


def test_a_stack_file_that_is_no_yaml_is_not_the_infrastructures_fault() -> None:
    said = "error: getting stack configuration: invalid YAML file: yaml: line 1: did not find expected key"
    assert exit_code([understood(stack_preview("dev", Done(("preview",), 1, "", said, 1.0), refreshed=False))]) == 1


def test_something_destroyed_asks_for_a_person_unless_it_is_allowed() -> None:
    found = reports(StackPreview("prod", digest(replaced_volume())))
    assert exit_code(found) == 1
    assert exit_code(found, allow_destructive=True) == 0


def test_a_replaced_template_or_a_deleted_credential_is_no_loss() -> None:
    gone = step("delete", urn("ghcr", "RegistryCredential"), state({"name": "ghcr"}, id="r", kind="RegistryCredential"))
    assert exit_code(reports(StackPreview("prod", digest(gone)))) == 0


def test_a_missing_stack_says_how_to_make_it() -> None:
    done = Done(("preview",), 6, "", "error: no stack named 'dev' found", 1.0)
    found = understood(stack_preview("dev", done, refreshed=False))
    assert "pulumi stack init dev" in found.errors[0]
    assert exit_code([found]) == 1


def test_a_preview_that_was_stopped_by_its_deadline_is_infrastructure() -> None:
    found = understood(stack_preview("dev", Done(("preview",), 130, "", "", 600.0, timed_out=True), refreshed=False))
    assert exit_code([found]) == 3


def test_a_traceback_is_shown_by_its_last_line() -> None:
    trace = "Traceback (most recent call last):\n  File \"/x/infra/__main__.py\", line 3\nKeyError: 'gpu'\n"
    found = understood(StackPreview("prod", digest(diagnostics=[("error", trace)]), ("failed",), 1))
    assert found.errors == ("KeyError: 'gpu'",)


# --- drift in a preview --------------------------------------------------------------------------------------------------------------


def refreshed(before: dict[str, Any], live: dict[str, Any], wanted: dict[str, Any], diff: dict[str, str]) -> list[dict[str, Any]]:
    old, now = state(before, id="e1"), state(live, id="e1")
    return [step("refresh", urn("embed"), old, old), step("update", urn("embed"), now, state(wanted, id="e1"), diff)]


def test_drift_and_a_changed_declaration_are_told_apart() -> None:
    live = with_(ENDPOINT_INPUTS, timeout=1000)
    wanted = with_(ENDPOINT_INPUTS, workers__max=10)
    found = understood(
        StackPreview(
            "prod", digest(*refreshed(ENDPOINT_INPUTS, live, wanted, {"timeout": "update", "workers.max": "update"})), refreshed=True
        )
    )
    text = render([found])
    drift = text[text.index("### Drift") : text.index("<details>")]
    assert "`timeout`: `600000` → `1000` live" in drift
    assert "workers.max" not in drift
    assert "| `workers.max` | `8` | `10` |" in text


def test_the_idle_rules_cut_is_named() -> None:
    live = with_(ENDPOINT_INPUTS, workers__max=2)
    text = report(*refreshed(ENDPOINT_INPUTS, live, ENDPOINT_INPUTS, {"workers.max": "update"}), refreshed=True)
    assert "RunPod's idle rule: no request for 3 days" in text


def vanished(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    live = state({"name": name}, id=name)
    return step("refresh", urn(name), live, None), step("create", urn(name), None, state({"name": name}, id=""))


def test_a_stack_of_which_nothing_is_left_asks_for_a_person_because_the_key_may_be_another_accounts() -> None:
    found = reports(StackPreview("prod", digest(*vanished("embed"), *vanished("chat")), refreshed=True))
    assert exit_code(found) == 1
    assert exit_code(found, allow_destructive=True) == 0
    assert "Is it the right account's key?" in render(found)


def test_one_of_several_that_was_deleted_by_hand_is_made_anew_without_asking() -> None:
    found = reports(StackPreview("prod", digest(*vanished("embed"), same("prod")), refreshed=True))
    assert exit_code(found) == 0
    assert "Nothing of it is there" not in render(found)


def test_what_was_deleted_by_hand_is_named_and_made_anew() -> None:
    old = state(ENDPOINT_INPUTS, id="e1")
    text = report(step("refresh", urn("embed"), old, old), step("create", urn("embed"), None, state(ENDPOINT_INPUTS)), refreshed=True)
    assert "endpoint `embed` was deleted on RunPod (it was `e1`)" in text
    assert "created again" in text


def test_drift_that_was_not_looked_at_is_not_called_none() -> None:
    assert "not looked at" in report(same("prod"))
    assert "| none |" in report(same("prod"), refreshed=True)


# --- safe to post --------------------------------------------------------------------------------------------------------------------

KEY = "rpa_" + "K" * 40


def test_no_secret_is_shown_whatever_pulumi_knows_of_it() -> None:
    change = updated(
        {"env.HF_TOKEN": "update", "env.DATABASE_PASSWORD": "add", "env.URL": "add", "env.PLAIN": "add", "env.MAX_TOKENS": "add"},
        env__HF_TOKEN="[secret]",
        env__DATABASE_PASSWORD="hunter2-hunter2",
        env__URL="https://me:hunter2-hunter2@example.com/",
        env__PLAIN=KEY,
        env__MAX_TOKENS="512",
    )
    errors = [("error", f"RunPod answered 401: Bearer {KEY} is not known"), ("warning", f"the key {KEY} is old")]
    found = understood(StackPreview("prod", digest(change, diagnostics=errors), ("failed",), 1), secrets=("another-secret-value",))
    text = render([found]) + json.dumps(review.record([found]))
    assert KEY not in text
    assert "hunter2" not in text
    assert "[secret] (another value)" in text
    assert "512" in text


def test_known_secrets_of_the_environment_are_cut_from_messages() -> None:
    found = understood(StackPreview("prod", None, ("it said topsecretvalue",), 1), secrets=("topsecretvalue",))
    assert "topsecretvalue" not in render([found])


def test_values_become_no_markdown_and_call_nobody() -> None:
    nasty = "a | b`c` <!-- nightbatch:preview --> @everyone\n# title <img src=x>"
    text = report(updated({"args": "add", "env.N": "add"}, args=nasty, env__N="``"))
    row = next(line for line in text.splitlines() if line.startswith("| `args`"))
    assert row.count("|") - row.count("\\|") == 4
    assert "``a \\| b`c` <!--" in row
    assert not any(line.startswith("# title") for line in text.splitlines())
    assert "| ``` `` ``` |" in text


def test_sentences_of_the_program_call_nobody() -> None:
    found = understood(StackPreview("prod", digest(same("prod"), diagnostics=[("warning", "ask @ops [now](http://x) <b> at $1 ($2)")])))
    text = render([found])
    assert "@ops" not in text
    assert "[now]" not in text
    assert "<b>" not in text
    assert "$" not in text


def test_the_same_previews_give_the_same_bytes_in_any_order() -> None:
    steps = [
        updated({"workers.max": "update", "timeout": "update"}, workers__max=3, timeout=5),
        replaced_volume(),
        *[step("create", urn(f"e{n}"), None, state(ENDPOINT_INPUTS)) for n in range(5)],
    ]
    said = [("warning", ADVICE), ("warning", "b"), ("warning", "a"), ("warning", "a")]
    texts = set()
    for seed in range(6):
        shuffled = random.Random(seed)
        document = digest(*shuffled.sample(steps, len(steps)), diagnostics=shuffled.sample(said, len(said)))
        document["duration"] = seed
        previews = [StackPreview("prod", document), StackPreview("dev", digest(same()))]
        texts.add(render(reports(*shuffled.sample(previews, 2)), commit="abc"))
    assert len(texts) == 1


def test_a_report_of_any_size_fits_and_keeps_its_summary() -> None:
    many = [
        StackPreview(
            f"team-{number:03}",
            digest(
                *[
                    step("create", urn(f"endpoint-{n}", stack=f"team-{number:03}"), None, state(with_(ENDPOINT_INPUTS, args="é" * 400)))
                    for n in range(30)
                ],
                step("delete", urn("models", "NetworkVolume"), state(VOLUME_INPUTS, id="v", kind="NetworkVolume")),
                diagnostics=[("warning", ADVICE)],
            ),
        )
        for number in range(60)
    ]
    text = render(reports(*many), commit="abc")
    assert len(text.encode()) <= review.LIMIT
    assert "1,800 created" in text or "1800 created" in text
    assert "more destructive changes" in text or text.count("is lost") == 60
    assert "| 🛑 team-059 |" in text
    assert "more lines" in text
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize("limit", [2_000, 5_000, 20_000])
def test_a_smaller_limit_is_kept_too(limit: int) -> None:
    steps = [step("delete", urn(f"v{n}", "NetworkVolume"), state(VOLUME_INPUTS, id="v", kind="NetworkVolume")) for n in range(200)]
    text = render(reports(StackPreview("prod", digest(*steps))), limit=limit)
    assert len(text.encode()) <= limit
    assert text.startswith("## Infrastructure preview")


def test_a_stack_that_fails_at_length_still_says_why_it_began_to() -> None:
    errors = [("error", f"{n:03} " + "it broke " * 500) for n in range(200)]
    found = [StackPreview(f"s{n}", digest(diagnostics=errors), ("failed",), 1) for n in range(8)]
    text = render(reports(*found), limit=20_000)
    assert "000 it broke" in text
    assert len(text.encode()) <= 20_000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=12), inner, max_size=4),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["workers", "gpu", "env", "size", "name", "x y", "a.b", "`|`"]), VALUES, max_size=5)
STATES = st.none() | st.fixed_dictionaries(
    {"custom": st.booleans()}, optional={"id": st.text(max_size=9), "inputs": OBJECTS, "outputs": OBJECTS}
)
STEPS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(
            ["create", "update", "replace", "delete", "refresh", "same", "import", "read", "discard", "create-replacement"]
        ),
        "urn": st.sampled_from([urn("a"), urn("b"), urn("v", "NetworkVolume"), urn("t", "Template"), "urn:odd", ""]),
        "oldState": STATES,
        "newState": STATES,
        "detailedDiff": st.none() | st.dictionaries(st.text(max_size=12), st.just({"kind": "update", "inputDiff": True}), max_size=4),
    }
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(STEPS, max_size=12),
    messages=st.lists(st.tuples(st.sampled_from(["error", "warning"]), st.text(max_size=60)), max_size=4),
)
def test_whatever_the_engine_says_there_is_a_report_that_fits(steps: list[dict[str, Any]], messages: list[tuple[str, str]]) -> None:
    found = reports(StackPreview("dev", {"steps": steps, "diagnostics": [{"severity": s, "message": m} for s, m in messages]}))
    text = render(found, commit="abc")
    assert text == render(
        reports(StackPreview("dev", {"steps": steps, "diagnostics": [{"severity": s, "message": m} for s, m in messages]})), commit="abc"
    )
    assert len(text.encode()) <= review.LIMIT
    assert text.count("<details>") == text.count("</details>")
    json.dumps(review.record(found))
    exit_code(found)


def test_paths_are_read_as_the_engine_writes_them() -> None:
    assert parse_path('env["A.B"].x[2]') == ("env", "A.B", "x", 2)
    assert show_path(("env", "A.B", "x", 2)) == 'env["A.B"].x[2]'
    assert dict(leaves({"a": {"b": 1, "c": None}, "d": [1]})) == {"a.b": 1, "d": [1]}


# --- stacks --------------------------------------------------------------------------------------------------------------------------


def test_all_declared_stacks_but_local_are_previewed(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: nightbatch\nstackConfigDir: infra/stacks\n")
    folder = tmp_path / "infra" / "stacks"
    folder.mkdir(parents=True)
    for name in ("prod", "dev", "local"):
        (folder / f"Pulumi.{name}.yaml").touch()
    assert default_stacks(tmp_path) == ("dev", "prod")


# --- kept reports of the real engine -------------------------------------------------------------------------------------------------

CASES = sorted(folder.name for folder in DATA.iterdir() if folder.is_dir()) if DATA.exists() else []


def kept(case: str) -> list[StackPreview]:
    """The previews of a case, as the engine printed them (see record.py)."""
    described = json.loads((DATA / case / "case.json").read_text())
    found = []
    for stack, one in described["stacks"].items():
        file = DATA / case / f"{stack}.json"
        done = Done(("preview",), one["exit_code"], file.read_text() if file.exists() else "", one.get("stderr", ""), 0.0)
        found.append(stack_preview(stack, done, refreshed=described["refreshed"]))
    return found


def test_no_real_report_holds_a_secret_that_its_stack_was_given() -> None:
    """Neither what Pulumi keeps secret, which its document does not hold, nor what stands in the stack file in clear, which it does."""
    assert "hf_abcdefg" not in (DATA / "fresh" / "dev.json").read_text()
    assert "hf_abcdefg" in (DATA / "secrets" / "dev.json").read_text()
    for file in DATA.rglob("report.md"):
        assert "hf_abcdefg" not in file.read_text(), file
    assert "hf_abcdefg" not in json.dumps(review.record(reports(*kept("secrets"))))


@pytest.mark.parametrize("case", CASES)
def test_a_kept_report_is_the_markdown_that_it_seems_to_be(case: str) -> None:
    """Read by a Markdown parser: every row has its table's cells, every value is code, and no HTML but the folding."""
    text = (DATA / case / "report.md").read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    html = [token.content.strip() for token in tokens if token.type == "html_block"]
    assert all(re.fullmatch(r"<details><summary>[^<]*</summary>|</details>", one) for one in html), html
    assert sum(one.startswith("<details>") for one in html) == sum(one == "</details>" for one in html)
    width = cells = 0
    for token in tokens:
        if token.type == "tr_close":
            width = width or cells
            assert cells == width, token
            cells = 0
        elif token.type in ("th_open", "td_open"):
            cells += 1
        elif token.type == "table_close":
            width = 0
        elif token.type == "inline":
            assert not [child for child in token.children or () if child.type in ("html_inline", "link_open", "image")], token.content


@pytest.mark.parametrize("case", CASES)
def test_a_real_preview_gives_the_kept_report(case: str) -> None:
    described = json.loads((DATA / case / "case.json").read_text())
    found = reports(*kept(case))
    assert render(found, commit=described["commit"]) == (DATA / case / "report.md").read_text()
    assert exit_code(found) == described["report_exit_code"]
