"""REST v2: what it takes, what it refuses and in which words, without the official OpenAPI file."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.errors import UsageError
from emulator import DROP, PASS, Action, EmulatorConfig, EndpointConfig, ImageConfig, ManualClock, Message
from tests.emulator.control_kit import COUNT, DELAY, GPU, controlled, endpoint, settings


async def test_a_created_endpoint_has_every_default_that_was_observed(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (emulator, rest):
        made = await rest.post("/serverless", endpoint())
        assert re.fullmatch(r"[a-z0-9]{14}", made["id"])
        assert made["timeout"] == 0  # the schema says 300000
        assert made["flashboot"] == "OFF"
        assert made["workers"] == {"min": 0, "max": 3, "idleTimeout": 10}
        assert made["gpu"] == {"pools": ["ADA_24"], "count": 1, "allowedCudaVersions": [], "minCudaVersion": None}
        assert (made["env"], made["ports"], made["args"], made["registry"]) == ({}, [], "", None)
        assert made["requestUrls"]["status"] == f"{emulator.base_url}/{made['id']}/status/{{job_id}}"
        assert await rest.get(f"/serverless/{made['id']}") == made
        assert await rest.get("/serverless") == {"endpoints": [made]}


async def test_arguments_of_a_million_characters_hold_nobody_up(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/serverless", endpoint(args="x" * 1_000_000))
        assert len(made["args"]) == 1_000_000


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"gpu": None}, 400, "exactly one of gpu or cpu"),
        ({"cpu": [{"id": "cpu3c", "vcpuCount": 2}]}, 400, "not both"),
        ({"gpu": {**GPU, "allowedCudaVersions": ["12.8"], "minCudaVersion": "12.4"}}, 400, "mutually exclusive"),
        ({"gpu": {"pools": ["NO_SUCH"]}}, 400, "unknown GPU pool"),
        ({"gpu": {"pools": ["ADA_24"], "excludedTypes": ["NVIDIA L4"]}}, 400, "not a GPU type in one of the selected pools"),
        ({"gpu": {"pools": ["ADA_24"], "excludedTypes": [" NVIDIA GeForce RTX 4090 "]}}, 400, "leaves no GPU type"),
        ({"gpu": None, "cpu": [{"id": "cpu9", "vcpuCount": 2}]}, 400, "unknown CPU flavor"),
        ({"workers": {"min": 4}}, 400, "must not be above"),
        ({"dataCenterIds": ["MARS-1"]}, 400, "unknown data center"),
        ({"networkVolumes": ["nothing"]}, 400, "does not exist"),
        ({"registry": "nothing"}, 400, "does not exist"),
        ({"templateId": "nothing"}, 404, "not found"),
        ({"image": None}, 422, "$: missing property 'image'"),
        ({"model": "x"}, 422, "$: additional properties 'model' not allowed"),
        ({"type": "LOAD_BALANCER"}, 422, "$.scaling.type: value must be 'REQUEST_COUNT'"),
        ({"scaling": COUNT, "workers": {"idleTimeout": 5}}, 422, "$.workers.idleTimeout: not applicable"),
        ({"scaling": {"type": "QUEUE_DELAY", "queueDelay": 0.4}}, 422, "$.scaling.queueDelay: minimum: got 0.4, want 0.5"),
        ({"scaling": {"type": "QUEUE_DELAY", "queueDelay": 10**400}}, 422, "$.scaling.queueDelay: got number, want number"),
        ({"scaling": {**DELAY, "requestCount": 1}}, 422, "$.scaling: additional properties 'requestCount' not allowed"),
        ({"gpu": None, "cpu": [{"id": "cpu3c", "vcpuCount": 6}]}, 422, "$.cpu[0].vcpuCount: must be a power of two"),
        ({"gpu": None, "cpu": [{"id": "cpu3c", "vcpuCount": 2}] * 2}, 422, "$.cpu: items at 0 and 1 are equal"),
        ({"workers": {"idleTimeout": 3601}}, 422, "$.workers.idleTimeout: maximum: got 3601, want 3600"),
        ({"env": {"A": 1}}, 422, "$.env.A: got number, want string"),
        ({"gpu": {"pools": []}}, 422, "$.gpu.pools: minItems: got 0, want 1"),
        ({"name": ""}, 422, "$.name: minLength: got 0, want 1"),
    ],
)
async def test_a_body_that_cannot_be_is_refused_in_runpods_way(tmp_path: Path, fields: dict[str, Any], status: int, said: str) -> None:
    async with controlled(tmp_path) as (_, rest):
        answer = await rest.ask("POST", "/serverless", endpoint(**fields))
        assert answer.status == status, answer.body
        assert answer.headers["Content-Type"].startswith("application/problem+json")
        assert answer.body["status"] == status
        assert any(said in text for text in (answer.body["detail"], *answer.errors)), answer.body
        assert (await rest.get("/serverless")) == {"endpoints": []}


async def test_every_failing_field_is_named_at_once(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        answer = await rest.ask(
            "POST", "/serverless", endpoint(timeout="x", disk=0, workers={"max": -1, "more": 1}, scaling={"type": "MAGIC"}, extra=1)
        )
        assert answer.status == 422
        paths = {error.partition(":")[0] for error in answer.errors}
        assert paths == {"$", "$.timeout", "$.disk", "$.workers", "$.workers.max", "$.scaling.type"}


async def test_one_missing_field_makes_good_ones_look_wrong_as_observed(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        answer = await rest.ask("POST", "/serverless", endpoint(name=None, env={}))
        assert answer.errors == ["$: missing property 'name'", "$: additional properties 'type', 'scaling', 'gpu' not allowed"]


async def test_an_image_that_its_registry_does_not_have_is_refused(tmp_path: Path) -> None:
    async with controlled(tmp_path, images={"me/worker:1": ImageConfig()}) as (_, rest):
        made = await rest.post("/serverless", endpoint())
        answer = await rest.ask("PATCH", f"/serverless/{made['id']}", {"image": "me/worker:2"})
        assert answer.status == 422
        assert "was not found on its registry" in answer.errors[0]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"": "x"}, "a variable must have a name"),
        ({"A=B": "x"}, "'A=B' cannot be the name"),
        ({"=": "x"}, "'=' cannot be the name"),
        ({"A\0": "x"}, "'A\\x00' cannot be the name"),
        ({"A": "x\0y"}, "the value of 'A' cannot be"),
        ({"=" * 5_000: "x"}, "… cannot be the name"),
    ],
)
async def test_an_environment_that_no_container_can_have_is_refused_everywhere(tmp_path: Path, env: dict[str, str], says: str) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/serverless", endpoint(env={"A": "1"}))
        template = await rest.post("/templates", {"name": "t", "image": "me/worker:1"})
        asked = (
            ("POST", "/serverless", endpoint(name="other", env=env)),
            ("PATCH", f"/serverless/{made['id']}", {"env": env}),
            ("POST", "/templates", {"name": "u", "image": "me/worker:1", "env": env}),
            ("PATCH", f"/templates/{template['id']}", {"env": env}),
        )
        for method, path, body in asked:
            answer = await rest.ask(method, path, body)
            assert answer.status == 422, (method, path)
            assert answer.headers["Content-Type"].startswith("application/problem+json")
            (error,) = answer.errors
            assert error.startswith("$.env: ")
            assert says in error
            assert len(error) < 300
        assert (await rest.get(f"/serverless/{made['id']}"))["env"] == {"A": "1"}


async def test_every_environment_that_a_container_can_have_is_taken(tmp_path: Path) -> None:
    """RunPod's OpenAPI file allows any name: what is not impossible is not refused."""
    env = {"1A": "x", "a.b-c": "", "with space": "=", "ÄÖ": "\u2028", "A": "line\nline", " ": "x", "\t": "\x01", "x" * 1_000: "y" * 100_000}
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/serverless", endpoint(env=env))
        assert made["env"] == env
        # what is known of names is that the machine itself takes them
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", ""], env={**os.environ, **env}, check=True)


async def test_patch_changes_what_is_in_it_and_env_as_a_whole(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/serverless", endpoint(env={"A": "1", "B": "2"}, workers={"min": 1, "max": 4, "idleTimeout": 7}))
        path = f"/serverless/{made['id']}"
        after = await rest.patch(path, {"env": {"C": "3"}, "workers": {"max": 5}})
        assert after["env"] == {"C": "3"}
        assert after["workers"] == {"min": 1, "max": 5, "idleTimeout": 7}
        assert {**after, "env": made["env"], "workers": made["workers"]} == made
        assert await rest.patch(path, {}) == after
        answer = await rest.ask("PATCH", path, {"type": "LOAD_BALANCER"})
        assert (answer.status, answer.errors) == (422, ["$: additional properties 'type' not allowed"])
        assert (await rest.ask("PATCH", path, {"cpu": [{"id": "cpu3c", "vcpuCount": 2}]})).status == 400


async def test_gpu_pools_take_their_exclusions_with_them_and_cuda_limits_are_cleared_by_empty_values(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        gpu = {"pools": ["AMPERE_24"], "excludedTypes": ["NVIDIA L4"], "allowedCudaVersions": ["12.8"]}
        path = f"/serverless/{(await rest.post('/serverless', endpoint(gpu=gpu)))['id']}"
        assert (await rest.patch(path, {"gpu": {"count": 2}}))["gpu"]["excludedTypes"] == ["NVIDIA L4"]
        assert (await rest.ask("PATCH", path, {"gpu": {"minCudaVersion": "12.4"}})).status == 400
        after = (await rest.patch(path, {"gpu": {"minCudaVersion": "12.4", "allowedCudaVersions": []}}))["gpu"]
        assert (after["minCudaVersion"], after["allowedCudaVersions"]) == ("12.4", [])
        assert (await rest.patch(path, {"gpu": {"minCudaVersion": ""}}))["gpu"]["minCudaVersion"] is None
        after = (await rest.patch(path, {"gpu": {"pools": ["AMPERE_24", "ADA_24"]}}))["gpu"]
        assert "excludedTypes" not in after
        assert after["count"] == 2
        answer = await rest.ask("PATCH", path, {"gpu": {"excludedTypes": ["NVIDIA L4"]}})
        assert (answer.status, answer.errors) == (422, ["$.gpu: properties 'pools' required, if 'excludedTypes' exists"])


async def test_the_idle_timeout_hides_where_it_does_not_apply(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/serverless", endpoint(scaling=COUNT))
        assert made["workers"] == {"min": 0, "max": 3}
        path = f"/serverless/{made['id']}"
        answer = await rest.ask("PATCH", path, {"workers": {"idleTimeout": 5}})
        assert answer.status == 422
        assert (await rest.patch(path, {"workers": {"idleTimeout": 5}, "scaling": DELAY}))["workers"]["idleTimeout"] == 5
        balanced = await rest.post("/serverless", endpoint(type="LOAD_BALANCER", scaling=COUNT, env={"HEALTH_CHECK_PATH": "/ok"}))
        assert balanced["workers"]["idleTimeout"] == 10
        assert set(balanced["requestUrls"]) == {"base", "health"}
        assert balanced["requestUrls"]["health"].endswith("/ok")
        assert (await rest.ask("PATCH", f"/serverless/{balanced['id']}", {"scaling": DELAY})).status == 400


async def test_a_template_is_a_snapshot(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        fields = {"name": "t", "image": "me/worker:7", "env": {"A": "1", "B": "2"}, "disk": 30, "serverless": True}
        template = await rest.post("/templates", {**fields, "allowedCudaVersions": ["12.8"]})
        assert (template["startSsh"], template["startJupyter"], template["category"], template["mounts"]) == (True, True, "NVIDIA", {})
        made = await rest.post("/serverless", endpoint(templateId=template["id"], image=None, env={"B": "3"}, disk=40))
        assert (made["image"], made["env"], made["disk"]) == ("me/worker:7", {"A": "1", "B": "3"}, 40)
        assert made["gpu"]["allowedCudaVersions"] == ["12.8"]
        assert "templateId" not in made
        path = f"/templates/{template['id']}"
        assert (await rest.patch(path, {"image": "me/worker:8", "env": {"C": "9"}}))["image"] == "me/worker:8"
        assert await rest.get(f"/serverless/{made['id']}") == made
        applied = await rest.patch(f"/serverless/{made['id']}", {"templateId": template["id"], "env": {"D": "1"}})
        assert (applied["image"], applied["env"], applied["disk"]) == ("me/worker:8", {"C": "9", "D": "1"}, 30)
        await rest.delete(path)
        await rest.delete(path, 404)
        pod = await rest.post("/templates", {"name": "pod", "image": "x"})
        answer = await rest.ask("POST", "/serverless", endpoint(templateId=pod["id"]))
        assert (answer.status, "not a serverless template" in answer.errors[0]) == (422, True)


async def test_a_bound_template_cannot_be_deleted_and_goes_with_its_endpoint(tmp_path: Path) -> None:
    async with controlled(tmp_path, bind_templates=True) as (emulator, rest):
        template = await rest.post("/templates", {"name": "t", "image": "x", "serverless": True})
        made = await rest.post("/serverless", endpoint(templateId=template["id"]))
        assert "bound" in (await rest.delete(f"/templates/{template['id']}", 400))["detail"]
        await rest.delete(f"/serverless/{made['id']}")
        await rest.get(f"/templates/{template['id']}", 404)
        by_hand = await rest.post("/templates", {"name": "u", "image": "x"})
        other = await rest.post("/serverless", endpoint())
        emulator.account.bind_template(other["id"], by_hand["id"])
        await rest.delete(f"/templates/{by_hand['id']}", 400)


async def test_templates_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        answer = await rest.ask("POST", "/templates", {"name": "t", "image": "x", "mounts": {"persistent": {"size": 5, "path": "/w"}}})
        assert (answer.status, answer.errors) == (422, ["$.mounts.persistent.size: minimum: got 5, want 10"])
        answer = await rest.ask("POST", "/templates", {"name": "t", "image": "x", "mounts": {"network": []}, "category": "TPU"})
        assert len(answer.errors) == 2
        assert (await rest.ask("POST", "/templates", {"name": "t", "image": "x", "registry": "no"})).status == 400


async def test_a_volume_grows_and_neither_shrinks_nor_moves(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/network-volumes", {"name": "v", "size": 50, "dataCenter": "EU-RO-1"})
        assert made == {"id": made["id"], "name": "v", "size": 50, "dataCenter": "EU-RO-1", "type": "STANDARD"}
        path = f"/network-volumes/{made['id']}"
        assert (await rest.patch(path, {"size": 60}))["size"] == 60
        assert "cannot shrink" in (await rest.patch(path, {"size": 59}, 400))["detail"]
        assert (await rest.ask("PATCH", path, {"dataCenter": "US-KS-2"})).status == 422
        assert (await rest.ask("PATCH", path, {})).status == 422
        assert (await rest.ask("PATCH", path, {"size": 4097})).status == 422
        nowhere = await rest.post("/network-volumes", {"name": "v", "size": 50, "dataCenter": "US-TX-1"}, 400)
        assert "EU-RO-1" in nowhere["detail"]
        assert await rest.post("/network-volumes", {"name": "v", "size": 50, "dataCenter": "EU-RO-1", "type": "HIGH_PERFORMANCE"}, 400)
        fast = await rest.post("/network-volumes", {"name": "v", "size": 50, "dataCenter": "US-KS-2", "type": "HIGH_PERFORMANCE"})
        second = await rest.post("/network-volumes", {"name": "w", "size": 10, "dataCenter": "EU-RO-1"})
        both = await rest.post("/serverless", endpoint(networkVolumes=[made["id"], second["id"]]), 400)
        assert "EU-RO-1" in both["detail"]
        user = await rest.post("/serverless", endpoint(networkVolumes=[made["id"], fast["id"]]))
        await rest.delete(path, 400)
        await rest.delete(f"/serverless/{user['id']}")
        await rest.delete(path)
        assert [volume["id"] for volume in (await rest.get("/network-volumes"))["networkVolumes"]] == [fast["id"], second["id"]]


async def test_a_registry_credential_is_never_read_back(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/registries", {"name": "hub", "username": "me", "password": "s3cret-word"})
        assert set(made) == {"id", "name"}
        path = f"/registries/{made['id']}"
        assert await rest.get(path) == made
        assert (await rest.ask("PATCH", path, {"name": "x"})).headers["Allow"] == "GET, DELETE"
        template = await rest.post("/templates", {"name": "t", "image": "x", "registry": made["id"]})
        user = await rest.post("/serverless", endpoint(registry=made["id"]))
        await rest.delete(path, 400)
        await rest.patch(f"/serverless/{user['id']}", {"registry": None})
        await rest.delete(path)
        assert (await rest.get(f"/templates/{template['id']}"))["registry"] is None
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"s3cret-word" not in file.read_bytes(), file


async def test_delegations_of_ecr_are_kept_by_their_arn(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        made = await rest.post("/registries/delegations", {"resource": "arn:aws:ecr:us-east-2:123456789012:repository/me/worker"})
        assert (made["awsUser"], made["repository"], made["awsRegion"]) == ("123456789012", "me/worker", "us-east-2")
        assert (await rest.get("/registries/delegations"))["delegations"] == [made]
        await rest.delete(f"/registries/delegations/{made['id']}")
        await rest.post("/registries/delegations", {"resource": "arn:aws:s3:::x"}, 422)


async def test_keys_paths_methods_and_json(tmp_path: Path) -> None:
    async with controlled(tmp_path, read_only_api_key="look") as (emulator, rest):
        for key, status in (("", 401), ("wrong", 401), (emulator.worker_key, 403), ("look", 200), (emulator.api_key, 200)):
            assert (await rest.ask("GET", "/serverless", key=key)).status == status
        assert (await rest.ask("POST", "/serverless", endpoint(), key="look")).status == 403
        bare = {"Authorization": emulator.api_key}
        async with rest.session.get(f"{emulator.root_url}/v2/serverless", headers=bare) as refused:
            assert refused.status == 401
            assert "RateLimit" not in refused.headers
            assert refused.headers["x-request-id"]
        answer = await rest.ask("PUT", "/serverless", {})
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")
        for path in ("/serverless/", "/serverless/x/y", "/catalog", "/billing/pods", "/templates/x/y/z"):
            assert (await rest.ask("GET", path)).status == 404, path
        for raw in (b"", b"{", b"\xff", b'"\\ud800"'):
            assert (await rest.ask("POST", "/serverless", raw=raw)).status == 400, raw
        answer = await rest.ask("POST", "/serverless", [])
        assert (answer.status, answer.errors) == (422, ["$: got array, want object"])


async def test_the_minute_quota_ends_in_429_and_begins_anew(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0 + 40 - 1_700_000_000 % 60)
    async with controlled(tmp_path, clock=clock, rate_limits=True, rest_quotas={"minute": 3}) as (_, rest):
        for left in (2, 1, 0):
            answer = await rest.ask("GET", "/serverless")
            assert answer.headers["RateLimit"] == f'"minute";r={left};t=20'
            assert answer.headers["RateLimit-Policy"] == '"minute";q=3;w=60'
        answer = await rest.ask("GET", "/templates")
        assert (answer.status, answer.headers["Retry-After"]) == (429, "20")
        assert "minute" in answer.body["detail"]
        await clock.advance(20)
        await rest.get("/serverless")


async def test_the_worker_quota_is_a_sum_over_endpoints(tmp_path: Path) -> None:
    async with controlled(tmp_path, worker_quota=5) as (_, rest):
        first = await rest.post("/serverless", endpoint())
        refused = await rest.post("/serverless", endpoint(), 400)
        assert "quota (5)" in refused["detail"]
        await rest.post("/serverless", endpoint(workers={"max": 2}))
        await rest.patch(f"/serverless/{first['id']}", {"workers": {"max": 4}}, 400)
        await rest.patch(f"/serverless/{first['id']}", {"workers": {"max": 0}})


async def test_faults_pass_the_same_seam(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (emulator, rest):
        seen: list[tuple[str, str, str, int | None]] = []

        def watch(message: Message) -> Action:
            seen.append((message.kind, message.operation, message.endpoint, message.status))
            return PASS

        with emulator.seam.hook(watch):
            made = await rest.post("/serverless", endpoint())
            await rest.get(f"/serverless/{made['id']}/workers")
        assert seen == [
            ("request", "POST /v2/serverless", "", None),
            ("response", "POST /v2/serverless", "", 201),
            ("request", "GET /v2/serverless/{id}/workers", made["id"], None),
            ("response", "GET /v2/serverless/{id}/workers", made["id"], 200),
        ]
        with emulator.seam.hook(lambda message: Action(answer=429, retry_after_s=7)):
            assert (await rest.ask("GET", "/serverless")).headers["Retry-After"] == "7"
        lost = [DROP]
        with (
            emulator.seam.hook(lambda message: lost.pop() if message.kind == "response" and lost else PASS),
            pytest.raises(Exception, match=r"(?i)disconnected"),
        ):
            await rest.ask("POST", "/serverless", endpoint(name="lost"))
        assert [found["name"] for found in (await rest.get("/serverless"))["endpoints"]] == ["night", "lost"]


async def test_endpoints_of_the_configuration_are_seen_and_changed_but_not_deleted(tmp_path: Path) -> None:
    declared = EndpointConfig(name="minilm", workers_max=1, idle_timeout_s=60, env={"NIGHTBATCH_MODEL": "m"}, execution_timeout_ms=9000)
    async with controlled(tmp_path, endpoints=(declared,)) as (emulator, rest):
        (seen,) = (await rest.get("/serverless"))["endpoints"]
        assert (seen["id"], seen["name"], seen["timeout"]) == ("minilm", "minilm", 9000)
        assert seen["workers"] == {"min": 0, "max": 1, "idleTimeout": 60}
        assert seen["gpu"]["pools"] == ["AMPERE_24"]
        await rest.patch("/serverless/minilm", {"workers": {"max": 0}, "timeout": 5000})
        assert settings(emulator, "minilm").workers_max == 0
        assert settings(emulator, "minilm").execution_timeout_ms == 5000
        emulator.configure("minilm", workers_max=2)
        assert (await rest.get("/serverless/minilm"))["workers"]["max"] == 2
        await rest.patch("/serverless/minilm", {"name": "other"}, 403)
        await rest.delete("/serverless/minilm", 403)


async def test_the_configuration_is_the_truth_of_its_endpoints_at_the_next_start(tmp_path: Path) -> None:
    declared = EndpointConfig(name="a", id="a-id", workers_max=4)
    async with controlled(tmp_path, endpoints=(declared, EndpointConfig(name="b"))) as (_, rest):
        first = await rest.get("/serverless/a-id")
        assert first["name"] == "a"
        await rest.patch("/serverless/a-id", {"workers": {"max": 1}, "env": {"A": "1"}})
    async with controlled(tmp_path, endpoints=(declared,)) as (_, rest):
        (again,) = (await rest.get("/serverless"))["endpoints"]
        assert (again["workers"]["max"], again["env"], again["createdAt"]) == (4, {}, first["createdAt"])


async def test_without_the_control_plane_its_paths_are_nothing(tmp_path: Path) -> None:
    async with controlled(tmp_path, control=False, images={}, endpoints=(EndpointConfig(name="night"),)) as (_, rest):
        assert (await rest.ask("GET", "/serverless/x")).status == 404
        await rest.get("/night/health")


def test_the_words_of_rest_v2_are_no_endpoints() -> None:
    with pytest.raises(UsageError, match="cannot be called templates"):
        EmulatorConfig(state_dir="x", endpoints=(EndpointConfig(name="templates"),))
