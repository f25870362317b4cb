"""REST v2 against the official OpenAPI file: whatever a client sends, every answer of these paths is one that the file describes."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
)

from emulator import Emulator, EmulatorConfig, ImageConfig, Script
from tests.emulator.control_kit import COUNT, GPU, endpoint
from tests.emulator.kit import echo

SPEC = Path(os.environ.get("REST_V2_OPENAPI") or Path(__file__).parents[3] / "shared" / "reference" / "runpod-rest-v2.openapi.json")
OURS = ("/v2/serverless", "/v2/templates", "/v2/network-volumes", "/v2/registries", "/v2/catalog/", "/v2/billing/serverless")
GENERATE = [HypothesisPhase.explicit, HypothesisPhase.generate]
"""Without shrinking: a failing request is printed whole, and the emulator has changed meanwhile."""
CHECKS = [not_a_server_error, content_type_conformance, response_headers_conformance, response_schema_conformance]

if not SPEC.exists():
    pytest.skip("the official OpenAPI file is not here; REST_V2_OPENAPI names it", allow_module_level=True)
RAW = json.loads(SPEC.read_text())
for url in RAW["components"]["schemas"]["QueueBasedRequestUrls"]["properties"].values():
    del url["format"]  # the file's own examples hold `{job_id}`, which no URI may
SCHEMA = schemathesis.openapi.from_dict(RAW)
OPERATIONS = {
    f"{made.method.upper()} {made.path}": made for found in SCHEMA.get_all_operations() if isinstance(found, Ok) for made in [found.ok()]
}
OPERATIONS = {name: made for name, made in OPERATIONS.items() if made.path.startswith(OURS)}


class House:
    """An emulator in a thread of its own, with something of everything in it."""

    def __init__(self, directory: Path) -> None:
        config = EmulatorConfig(
            state_dir=str(directory), endpoints=(), images={"*": ImageConfig()}, s3=False, rate_limits=False, worker_quota=10**9
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> Emulator:
            emulator = Emulator(config, scripted={"*": Script(echo)})
            await emulator.start()
            return emulator

        self.emulator = asyncio.run_coroutine_threadsafe(make(), self._loop).result(30)
        self.url = self.emulator.root_url
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {self.emulator.api_key}"
        self.ids: dict[str, list[str]] = {}
        self.refill()

    def refill(self) -> None:
        """Whatever was deleted is there again."""
        bodies: dict[str, list[dict[str, Any]]] = {
            "serverless": [
                endpoint(),
                endpoint(gpu=None, cpu=[{"id": "cpu3c", "vcpuCount": 2}]),
                endpoint(type="LOAD_BALANCER", scaling=COUNT),
            ],
            "templates": [{"name": "t", "image": "x", "serverless": True}],
            "network-volumes": [{"name": "v", "size": 10, "dataCenter": "EU-RO-1"}],
            "registries": [{"name": "r", "username": "u", "password": "p"}],
            "registries/delegations": [{"resource": "arn:aws:ecr:us-east-2:123456789012:repository/a/b"}],
        }
        for kind, wanted in bodies.items():
            found = self.ask("GET", f"/v2/{kind}").json()
            (listed,) = found.values()
            missing = wanted[len(listed) :] if len(listed) < len(wanted) else []
            for body in missing:
                assert self.ask("POST", f"/v2/{kind}", body).status_code == 201
            self.ids[kind] = [item["id"] for item in next(iter(self.ask("GET", f"/v2/{kind}").json().values()))]

    def ask(self, method: str, path: str, body: Any = None) -> requests.Response:
        return self.session.request(method, self.url + path, json=body, timeout=10)

    def close(self) -> None:
        self.session.close()
        asyncio.run_coroutine_threadsafe(self.emulator.stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"))
    yield made
    made.close()


def requests_of(house: House, operation: Any, mode: GenerationMode, checks: list[Any], examples: int) -> None:
    """Send generated requests, half of them to things that exist, and check the answers."""
    kind = operation.path.removeprefix("/v2/").partition("/{")[0]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=GENERATE,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans(), which=st.integers(0, 9))
    def one(case: Any, known: bool, which: int) -> None:
        if known and "id" in (case.path_parameters or {}) and house.ids.get(kind):
            case.path_parameters["id"] = house.ids[kind][which % len(house.ids[kind])]
        response = case.call(base_url=house.url, session=house.session, timeout=10)
        case.validate_response(response, checks=checks)
        if response.status_code == 204:
            house.refill()

    one()
    house.refill()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_one_that_the_file_describes(house: House, name: str) -> None:
    requests_of(house, OPERATIONS[name], GenerationMode.POSITIVE, CHECKS, 20)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name.startswith(("POST", "PATCH"))])
def test_a_body_that_the_file_does_not_allow_is_refused(house: House, name: str) -> None:
    requests_of(house, OPERATIONS[name], GenerationMode.NEGATIVE, [*CHECKS, negative_data_rejection], 40)


def tame(body: dict[str, Any], is_cpu: bool) -> dict[str, Any]:
    """What is valid by the file, and only refers to what there is: then RunPod has no reason left to refuse it."""
    body = {name: value for name, value in body.items() if name not in ("templateId", "registry", "networkVolumes", "gpu", "cpu")}
    workers = dict(body.get("workers", {}))
    if workers:
        counts = body.get("type", "QUEUE") == "QUEUE" and body.get("scaling", {}).get("type") == "REQUEST_COUNT"
        if counts:
            workers.pop("idleTimeout", None)
        body["workers"] = {name: min(value, 1000) for name, value in workers.items() if name != "min"}
    if "dataCenterIds" in body:
        body["dataCenterIds"] = ["EU-RO-1", "US-KS-2"][: len(body["dataCenterIds"])]
    for name in ("timeout", "disk"):
        if name in body:
            body[name] = min(abs(body[name]), 10**9)
    if "scaling" in body:  # the file has no upper bound, and no server has whole numbers without one
        body["scaling"] = {name: value if isinstance(value, str) else min(value, 10**9) for name, value in body["scaling"].items()}
    if "image" in body:
        body["image"] = body["image"] or "x"
    if "env" in body:  # the file takes any name, and no container does
        body["env"] = {name: value for name, value in body["env"].items() if name and "=" not in name and "\0" not in name + value}
    body |= {"cpu": [{"id": "cpu5c", "vcpuCount": 8}]} if is_cpu else {"gpu": GPU}
    return body


def same(asked: Any, shown: Any) -> bool:
    """Whether everything that was asked for is in the answer."""
    if isinstance(asked, dict) and isinstance(shown, dict):
        return all(name in shown and same(value, shown[name]) for name, value in asked.items())
    if isinstance(asked, list) and isinstance(shown, list):
        return len(asked) == len(shown) and all(same(one, other) for one, other in zip(asked, shown, strict=True))
    return bool(asked == shown)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, phases=GENERATE, suppress_health_check=list(HealthCheck))
@given(
    made=OPERATIONS["POST /v2/serverless"].as_strategy(), change=OPERATIONS["PATCH /v2/serverless/{id}"].as_strategy(), is_cpu=st.booleans()
)
def test_what_was_asked_for_is_what_is_shown(house: House, made: Any, change: Any, is_cpu: bool) -> None:
    body = tame(made.body, is_cpu)
    body.setdefault("image", "x")
    created = house.ask("POST", "/v2/serverless", body)
    assert created.status_code == 201, (body, created.text)
    shown = created.json()
    assert same(body, shown), (body, shown)
    patch = tame(change.body, is_cpu)
    if shown["type"] == "LOAD_BALANCER" or shown["scaling"]["type"] == "REQUEST_COUNT":
        patch.pop("scaling", None)
        patch.get("workers", {}).pop("idleTimeout", None)
    changed = house.ask("PATCH", f"/v2/serverless/{shown['id']}", patch)
    assert changed.status_code == 200, (patch, changed.text)
    assert same(patch, changed.json()), (patch, changed.json())
    assert same({name: value for name, value in shown.items() if name not in patch}, changed.json()) or "scaling" in patch
    assert house.ask("GET", f"/v2/serverless/{shown['id']}").json() == changed.json()
    assert house.ask("DELETE", f"/v2/serverless/{shown['id']}").status_code == 204
