"""tests: RunPod's REST v2 as the documents describe it, small enough to read: a pure model, and a server around it with faults on demand.

The emulator's control plane is the thorough one; this one can be cut, delayed and asked what it saw, call by call.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Json = dict[str, Any]
KEY = "rp-key-never-shown"


class Problem(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


# --- the model -----------------------------------------------------------------------------------------------------------------------


def create_endpoint(body: Mapping[str, Any], endpoint_id: str, template: Mapping[str, Any] | None = None) -> Json:
    """POST /v2/serverless, by the OpenAPI file and the quirks of RunPod's migration notes."""
    if ("gpu" in body) == ("cpu" in body):
        raise Problem(400, "exactly one of gpu, cpu")
    if "image" not in body and template is None:
        raise Problem(422, "$: missing property 'image'")
    source = {**(template or {}), **body}
    env = {**((template or {}).get("env") or {}), **body.get("env", {})}
    workers = {"min": 0, "max": 3, **body.get("workers", {})}
    if body["type"] == "QUEUE" and body["scaling"]["type"] == "REQUEST_COUNT":
        if "idleTimeout" in workers:
            raise Problem(422, "idleTimeout is not applicable")
    else:
        workers.setdefault("idleTimeout", 10)
    live: Json = {
        "id": endpoint_id,
        "name": body["name"],
        "type": body["type"],
        "image": source["image"],
        "args": source.get("args", ""),
        "disk": source.get("disk", 20),
        "env": env,
        "ports": list(source.get("ports", [])),
        "registry": source.get("registry"),
        "workers": workers,
        "scaling": dict(body["scaling"]),
        "dataCenterIds": list(body.get("dataCenterIds", [])),
        "networkVolumes": list(body.get("networkVolumes", [])),
        "timeout": body.get("timeout", 0),
        "flashboot": body.get("flashboot", "OFF"),
        "createdAt": "2026-11-30T00:00:00Z",
        "requestUrls": {"run": f"https://api.example/v2/{endpoint_id}/run"},
        "gpu": None,
    }
    if "gpu" in body:
        gpu = {"count": 1, "allowedCudaVersions": (template or {}).get("allowedCudaVersions", []), "minCudaVersion": None, **body["gpu"]}
        live["gpu"] = gpu
        check_cuda(gpu)
    else:
        live["cpu"] = [{**item, "memory": item["vcpuCount"] * 2} for item in body["cpu"]]
    return live


def check_cuda(gpu: Mapping[str, Any]) -> None:
    if gpu.get("allowedCudaVersions") and gpu.get("minCudaVersion"):
        raise Problem(400, "allowedCudaVersions and minCudaVersion exclude each other")


def patch_endpoint(live: Mapping[str, Any], body: Mapping[str, Any], template: Mapping[str, Any] | None = None) -> Json:
    """PATCH /v2/serverless/{id}: only what is in the body changes; env and cpu whole, pools and exclusions as one selection."""
    result: Json = copy.deepcopy(dict(live))
    if "type" in body:
        raise Problem(422, "$: additional properties 'type' not allowed")
    if ("gpu" in body and result.get("gpu") is None) or ("cpu" in body and "cpu" not in result):
        raise Problem(400, "the compute family cannot be changed")
    if template is not None:
        content = {k: template[k] for k in ("image", "args", "disk", "ports", "env", "registry") if k in template}
        body = {**content, **body, "env": {**content.get("env", {}), **body.get("env", {})}}
    for name, value in body.items():
        if name == "gpu":
            change = dict(value)
            if "excludedTypes" in change and "pools" not in change:
                raise Problem(422, "excludedTypes requires pools")
            if "pools" in change and "excludedTypes" not in change:
                result["gpu"].pop("excludedTypes", None)
            if change.get("minCudaVersion") == "":
                change["minCudaVersion"] = None
            result["gpu"].update(change)
            check_cuda(result["gpu"])
        elif name == "workers":
            result["workers"].update(value)
        elif name == "cpu":
            result["cpu"] = [{**item, "memory": item["vcpuCount"] * 2} for item in value]
        elif name != "templateId":
            result[name] = copy.deepcopy(value)
    if result["type"] == "QUEUE" and result["scaling"]["type"] == "REQUEST_COUNT":
        if "idleTimeout" in body.get("workers", {}):
            raise Problem(422, "idleTimeout is not applicable")
        result["workers"].pop("idleTimeout", None)
    else:
        result["workers"].setdefault("idleTimeout", 10)
    return result


def create_template(body: Mapping[str, Any], template_id: str) -> Json:
    defaults = {"args": "", "disk": 20, "env": {}, "ports": [], "registry": None, "allowedCudaVersions": [], "category": "NVIDIA"}
    flags = {"mounts": {}, "public": False, "serverless": False, "startJupyter": True, "startSsh": True}
    return {**defaults, **flags, **copy.deepcopy(dict(body)), "id": template_id}


# --- the server ----------------------------------------------------------------------------------------------------------------------

Effect = Literal["before", "after"]


@dataclass
class Fault:
    """What happens to the next `times` matching requests: `status` answers, `cut` closes the connection, `hang` never answers.
    `when`: before or after the request was carried out."""

    method: str
    path: str
    do: Literal["status", "cut", "hang"] = "status"
    status: int = 500
    when: Effect = "before"
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    detail: str = "as the test asked"


@dataclass
class Cloud:
    """One account."""

    things: dict[str, dict[str, Json]] = field(
        default_factory=lambda: {"serverless": {}, "templates": {}, "network-volumes": {}, "registries": {}}
    )
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    """method, path, body of every request that arrived."""
    running: dict[str, int] = field(default_factory=dict)
    """Running jobs of an endpoint."""
    bound: dict[str, int] = field(default_factory=dict)
    """How often the deletion of a template is refused."""
    on_request: Callable[[str, str, Any], None] | None = None
    ids: Any = field(default_factory=lambda: itertools.count(1))
    base_url: str = ""
    _runner: web.AppRunner | None = None

    @property
    def endpoints(self) -> dict[str, Json]:
        return self.things["serverless"]

    def bodies(self, method: str) -> list[Any]:
        return [body for m, _, body in self.seen if m == method]

    def counted(self, method: str, path: str = "") -> int:
        return sum(1 for m, p, _ in self.seen if m == method and path in p)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.base_url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.seen.append((request.method, request.path, body))
        if self.on_request is not None:
            self.on_request(request.method, request.path, body)
        fault = next((f for f in self.faults if f.times > 0 and f.method == request.method and re.fullmatch(f.path, request.path)), None)
        if fault is not None:
            fault.times -= 1
        answer: web.StreamResponse | None = None
        if fault is None or fault.when == "after":
            answer = self._answer(request, body)
        if fault is None:
            assert answer is not None
            return answer
        if fault.do == "status":
            problem = {"title": "Fault", "status": fault.status, "detail": fault.detail}
            return web.json_response(problem, status=fault.status, headers=fault.headers, content_type="application/problem+json")
        if fault.do == "cut":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits so long")

    def _answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        try:
            if request.headers.get("Authorization") != f"Bearer {KEY}":
                raise Problem(401, "invalid API key")
            status, result = self.carry_out(request.method, request.path, body)
        except Problem as problem:
            document = {"title": "Problem", "status": problem.status, "detail": problem.detail}
            return web.json_response(document, status=problem.status, content_type="application/problem+json")
        return web.Response(status=status) if result is None else web.json_response(result, status=status)

    def carry_out(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """One request on the model."""
        _, version, collection, *rest = path.split("/")
        if version != "v2":
            raise Problem(404, "no such route")
        if collection == "catalog":
            return 200, CATALOG[rest[0]]
        things = self.things.get(collection)
        if things is None:
            raise Problem(404, "no such route")
        if method == "GET" and not rest:
            name = {"serverless": "endpoints", "templates": "templates", "network-volumes": "networkVolumes", "registries": "registries"}
            return 200, {name[collection]: list(things.values())}
        if method == "POST" and not rest:
            thing_id = f"{collection[:3]}{next(self.ids)}"
            things[thing_id] = self._create(collection, thing_id, body)
            return 201, things[thing_id]
        if rest[0] not in things:
            raise Problem(404, f"{rest[0]} not found")
        if method == "GET" and rest[1:] == ["workers"]:
            running = self.running.get(rest[0], 0)
            summary = {"running": running, "idle": 0, "initializing": 0, "throttled": 0, "unhealthy": 0, "total": running}
            return 200, {"workers": [], "summary": summary}
        if method == "GET":
            return 200, things[rest[0]]
        if method == "PATCH":
            things[rest[0]] = self._patch(collection, things[rest[0]], body)
            return 200, things[rest[0]]
        if self.bound.get(rest[0], 0) > 0:
            self.bound[rest[0]] -= 1
            raise Problem(400, "template is in use")
        del things[rest[0]]
        return 204, None

    def _template(self, body: Mapping[str, Any]) -> Json | None:
        if "templateId" not in body:
            return None
        if body["templateId"] not in self.things["templates"]:
            raise Problem(404, "template not found")
        return self.things["templates"][body["templateId"]]

    def _create(self, collection: str, thing_id: str, body: Json) -> Json:
        if collection == "serverless":
            return create_endpoint(body, thing_id, self._template(body))
        if collection == "templates":
            return create_template(body, thing_id)
        if collection == "network-volumes":
            return {"type": "STANDARD", **body, "id": thing_id}
        return {"id": thing_id, "name": body["name"]}

    def _patch(self, collection: str, live: Json, body: Json) -> Json:
        if collection == "serverless":
            return patch_endpoint(live, body, self._template(body))
        if collection == "registries":
            raise Problem(405, "no PATCH")
        if collection == "network-volumes" and body.get("size", live["size"]) < live["size"]:
            raise Problem(400, "a volume cannot shrink")
        return {**live, **body}


CATALOG: dict[str, Json] = {
    "gpus": {
        "gpus": [
            {
                "id": "NVIDIA GeForce RTX 4090",
                "name": "RTX 4090",
                "pool": "ADA_24",
                "manufacturer": "NVIDIA",
                "memory": 24,
                "secure": True,
                "community": True,
                "price": {"secure": 0.69, "community": 0.34, "serverless": 1.12},
                "maxCount": {"secure": 8, "community": 4},
                "newerThanTheProvider": 1,
            }
        ]
    },
    "cpus": {
        "cpus": [
            {
                "id": "cpu5c",
                "name": "Compute-Optimized",
                "group": "Gen 5",
                "vcpu": {"min": 2, "max": 32},
                "ramGbPerVcpu": 2,
                "price": {"securePerVcpu": 0.04, "serverlessPerVcpu": 0.03},
            }
        ]
    },
    "datacenters": {
        "dataCenters": [
            {
                "id": "EU-RO-1",
                "name": "EU Romania 1",
                "region": "EUROPE",
                "networkVolumeTypes": ["STANDARD"],
                "compliance": [],
                "globalNetwork": True,
            }
        ]
    },
}
