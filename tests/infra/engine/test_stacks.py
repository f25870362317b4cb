"""The real engine: stacks and accounts side by side, and secrets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.review.engine import Done, Project
from tests.infra.engine.kit import PASSPHRASE, Cloud, Site, cloud_of, endpoint, item, volume

pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(300)]


@pytest.fixture
def other_cloud(tmp_path: Path) -> Iterator[Cloud]:
    """Another account."""
    cloud = cloud_of(tmp_path / "other-cloud")
    try:
        yield cloud
    finally:
        cloud.close()


def test_two_stacks_are_made_at_once_and_leave_each_other_alone(sites: Callable[..., Site], cloud: Cloud, tmp_path: Path) -> None:
    """One state backend, one project, one account, the same names everywhere: only the stack differs."""
    backend = tmp_path / "states"
    backend.mkdir()
    both = [
        sites(name, stack=name, extra={"PULUMI_BACKEND_URL": f"file://{backend}"}) for name in ("dev", "prod")
    ]  # fmt: skip
    for site in both:  # names need not be unique in RunPod
        site.declare(endpoint("gen"), volume("data"))
    found: dict[str, Done] = {}
    threads = [threading.Thread(target=lambda s=site: found.setdefault(s.stack, s.project.up(s.stack))) for site in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: done.ok for name, done in found.items()} == {"dev": True, "prod": True}, [d.stderr + d.stdout for d in found.values()]
    dev, prod = both
    assert dev.id("gen") != prod.id("gen")
    assert {found["id"] for found in cloud.rest("GET", "serverless")["endpoints"]} == {dev.id("gen"), prod.id("gen")}
    assert set(prod.project.stacks()) == {"dev", "prod"}
    prod.clean(refresh=True)
    dev.destroy()
    assert cloud.live("serverless")["gen"]["id"] == prod.id("gen")
    assert cloud.live("network-volumes")["data"]["id"] == prod.id("data")
    prod.clean(refresh=True)
    prod.destroy()


def test_one_program_works_in_two_accounts(site: Site, cloud: Cloud, other_cloud: Cloud) -> None:
    site.keyed = False
    site.extra["RUNPOD_API_BASE_URL"] = "http://127.0.0.1:9"  # nobody: each provider is told its own
    accounts = [
        item("Provider", name, {"baseUrl": there.url, "apiKey": {"$secret": there.key}})
        for name, there in (("one", cloud), ("two", other_cloud))
    ]
    site.declare(*accounts, endpoint("here", opts={"provider": "one"}), endpoint("there", opts={"provider": "two"}))
    assert not site.preview().failed
    done = site.up()
    assert set(cloud.live("serverless")) == {"here"}
    assert set(other_cloud.live("serverless")) == {"there"}
    site.clean(refresh=True)
    spilled = [key for key in (cloud.key, other_cloud.key) if key in done.stdout + done.stderr or key in kept(site)]
    assert spilled == []
    site.destroy()
    assert other_cloud.everything()["serverless"] == set()


def kept(site: Site) -> str:
    """All that the state backend has on disk, its history and backups included."""
    files = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert files
    return "\n".join(path.read_text(errors="replace") for path in files)


def test_secrets_are_in_no_state_diff_log_or_output(site: Site, cloud: Cloud) -> None:
    hidden = {"env": "sk-first-secret-value", "env again": "sk-second-secret-value", "password": "registry-password-value"}

    def declare(token: str) -> None:
        site.declare(
            item("RegistryCredential", "registry", {"name": "registry", "username": "me", "password": {"$secret": hidden["password"]}}),
            item("Template", "batch", {"name": "batch", "image": "a/b:1", "serverless": True, "env": {"T": {"$secret": token}}}),
            endpoint("gen", env={"PLAIN": "a plain value", "TOKEN": {"$secret": token}}, registry={"$id": "registry"}),
            env={"$out": ["gen", "env"]},
        )

    said = []

    def say(done: Done) -> Done:
        said.append(done.stdout + done.stderr)
        return done

    verbose = ("--diff", "--logtostderr", "-v=9", "--logflow")
    project = site.project
    declare(hidden["env"])
    say(site.preview(key=False).done)
    assert say(project.up("dev", *verbose)).ok
    declare(hidden["env again"])
    say(project.run("preview", "--stack", "dev", *verbose))
    say(site.preview(refresh=True).done)
    cloud.rest("PATCH", f"serverless/{cloud.live('serverless')['gen']['id']}", {"env": {"TOKEN": "changed by hand", "PLAIN": "x"}})
    say(project.run("preview", "--refresh", "--diff", "--stack", "dev"))
    say(project.refresh("dev", "--diff"))
    assert say(project.up("dev", *verbose)).ok
    say(project.run("stack", "output", "--json", "--stack", "dev"))
    say(project.run("stack", "export", "--stack", "dev"))
    cloud.rest("DELETE", f"serverless/{cloud.live('serverless')['gen']['id']}")
    declare("")
    say(project.up("dev", "--refresh", "--run-program"))
    assert cloud.live("serverless")["gen"]["env"]["PLAIN"] == "a plain value"

    secrets = [*hidden.values(), cloud.key, PASSPHRASE]
    places = {"what was said": "\n".join(said), "the state": kept(site)}
    assert [(place, secret) for place, text in places.items() for secret in secrets if secret in text] == []
    assert "a plain value" in places["the state"], "what is no secret can be read"
    exported = project.run("stack", "output", "--json", "--show-secrets", "--stack", "dev")
    assert "a plain value" in exported.stdout


def test_a_wrong_key_is_one_sentence(site: Site, cloud: Cloud) -> None:
    site.declare(endpoint("gen"))
    project = Project(site.folder, {**site.env(), "RUNPOD_API_KEY": "rpa_of_somebody_else_entirely"})
    done = project.up("dev")
    assert not done.ok
    said = done.stdout + done.stderr
    assert "401" in said or "key" in said
    assert "Traceback" not in said
    assert "rpa_of_somebody_else_entirely" not in said
    keyless = Project(site.folder, site.env(key=False)).up("dev")
    assert not keyless.ok
    assert "RUNPOD_API_KEY" in keyless.stdout + keyless.stderr
    assert cloud.everything()["serverless"] == set()
