"""emulator: the account that the control plane manages: every operation of REST v2 on it, and what it does to the data plane.

May touch: other modules of this room; the data plane through `DataPlane`, what is kept through `Keeper`. Bodies come in as decoded JSON and
are checked here (bodies.py); answers go out as plain data. Raises Problem. All of it is synchronous but volumes, whose buckets take time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import msgspec

from contract.errors import NightbatchError, UsageError
from emulator.clock import Clock
from emulator.config import EmulatorConfig, EndpointConfig, ImageConfig
from emulator.control import bodies, endpoints, rules, views
from emulator.control.catalog import CATALOG, Catalog, Stock
from emulator.control.endpoints import References
from emulator.control.problem import Problem, conflict, invalid, not_found
from emulator.control.records import (
    ENDPOINT_ID_LENGTH,
    DelegationRecord,
    EndpointRecord,
    Record,
    RegistryRecord,
    TemplateRecord,
    VolumeRecord,
    new_id,
)
from emulator.workers import Fleet

log = logging.getLogger("nightbatch.emulator")
R = TypeVar("R", EndpointRecord, TemplateRecord, VolumeRecord, RegistryRecord, DelegationRecord)

AWAKE_SAVE_S: Final = 60.0
"""How exactly the time of an endpoint's last request is kept, in seconds of the clock."""
_ARN: Final = re.compile(r"arn:aws:ecr:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):repository/(?P<repository>\S+)")


class DataPlane(Protocol):
    """What the control plane may do to the data plane."""

    def open_endpoint(self, config: EndpointConfig, version: int) -> None:
        """Serve a new endpoint."""
        ...

    def change_endpoint(self, config: EndpointConfig, version: int) -> None:
        """New settings; a higher version is a rolling release."""
        ...

    def close_endpoint(self, endpoint: str) -> None:
        """Cancel its jobs, stop its workers, forget it."""
        ...

    def fleet(self, endpoint: str) -> Fleet | None:
        """Its workers; None if it has none (load-balancing endpoints)."""
        ...

    def last_request(self, endpoint: str) -> float | None:
        """When it last got a job, since this process runs."""
        ...

    async def make_bucket(self, volume: str) -> None: ...

    async def drop_bucket(self, volume: str) -> None: ...


class Keeper(Protocol):
    """Keeps records over restarts."""

    def record_saved(self, record: Record) -> None: ...

    def record_deleted(self, record: Record) -> None: ...


@dataclass(frozen=True, slots=True)
class Notice:
    """What RunPod would write an e-mail about."""

    at: float
    endpoint: str
    text: str


@dataclass
class _Tables:
    endpoint: dict[str, EndpointRecord] = field(default_factory=dict)
    template: dict[str, TemplateRecord] = field(default_factory=dict)
    volume: dict[str, VolumeRecord] = field(default_factory=dict)
    registry: dict[str, RegistryRecord] = field(default_factory=dict)
    delegation: dict[str, DelegationRecord] = field(default_factory=dict)


class Account:
    """One account. `start` opens what was kept; `tick` lets RunPod's own rules act."""

    def __init__(
        self,
        config: EmulatorConfig,
        plane: DataPlane,
        keeper: Keeper,
        clock: Clock,
        *,
        root: Callable[[], str],
        catalog: Catalog = CATALOG,
    ) -> None:
        self._config = config
        self._plane = plane
        self._keeper = keeper
        self._clock = clock
        self._root = root
        self.catalog = catalog
        self.stock: dict[str, Stock] = dict(config.stock)
        self.notices: deque[Notice] = deque(maxlen=100)
        self._tables = _Tables()
        self._at_work: set[asyncio.Task[None]] = set()

    # --- start, time, and what the emulator's own side does -------------------------------------------------------

    def start(self, kept: Iterable[Record]) -> None:
        """Open every endpoint: those of the configuration, and those that were made through REST before."""
        now = self._clock.time()
        stored: dict[str, EndpointRecord] = {}
        for record in kept:
            if isinstance(record, EndpointRecord):
                stored[record.id] = record
            else:
                self._table_of(record)[record.id] = record
        for declared in self._config.endpoints:
            before = stored.pop(declared.endpoint_id, None)
            if before is not None and not before.declared:
                raise UsageError(
                    f"The id {before.id} of an endpoint of the configuration is that of one made through REST.", fix="Give it another id."
                )
            record = endpoints.declared_record(declared, before, now)
            self._save(record)
            self._plane.open_endpoint(declared, record.version)
        for record in stored.values():
            if record.declared:
                self._keeper.record_deleted(record)  # it is no longer in the configuration
                continue
            self._tables.endpoint[record.id] = record
            if record.type == "QUEUE":
                self._plane.open_endpoint(self._settings(record, None), record.version)

    def tick(self, now: float) -> None:
        """The idle rule, and the scale-down of endpoints whose workers stay unhealthy."""
        for record in list(self._tables.endpoint.values()):
            used = self._plane.last_request(record.id)
            if used is not None and used - record.awake_at >= AWAKE_SAVE_S:
                record = msgspec.structs.replace(record, awake_at=used)
                self._save(record)
            idle_s = now - max(record.awake_at, used or 0.0)
            counted = self._config.idle_rule and record.type == "QUEUE"  # requests of load-balancing endpoints are not seen here
            left = rules.idle_cut(record.workers_max, idle_s) if counted else None
            if left is not None:
                self._cut(record, left, now, f"no request for {idle_s / rules.DAY_S:.1f} days: workers.max is {left} now")
                continue
            fleet = self._plane.fleet(record.id)
            failing = None if fleet is None else fleet.failing_since
            if rules.unhealthy_cut(record.workers_max, failing, now, self._config.unhealthy_scale_down_s):
                self._cut(record, 0, now, "its workers stayed unhealthy: workers.max is 0 now")

    def _cut(self, record: EndpointRecord, left: int, now: float, text: str) -> None:
        cut = msgspec.structs.replace(record, workers_max=left, workers_min=min(record.workers_min, left))
        self.notices.append(Notice(now, record.id, text))
        log.warning("endpoint %s (%s): %s", record.name, record.id, text)
        self._save(cut)
        self._apply(cut)

    def configured(self, config: EndpointConfig, version: int) -> None:
        """The emulator's own side has changed an endpoint's settings: REST shows it."""
        before = self._tables.endpoint.get(config.endpoint_id)
        if before is None:
            return
        after = endpoints.absorbed(before, config)
        if version != before.version:
            after = endpoints.released(before, after, self._clock.time())
            after = msgspec.structs.replace(after, version=version)
        self._save(after)

    def set_stock(self, name: str, level: Stock) -> None:
        """What a GPU pool or type has in stock from now on: price, GPU type and throttling of endpoints follow."""
        self.stock[name] = level
        for record in self._tables.endpoint.values():
            self._apply(record)

    @property
    def endpoints(self) -> Mapping[str, EndpointRecord]:
        return self._tables.endpoint

    @property
    def volumes(self) -> Mapping[str, VolumeRecord]:
        return self._tables.volume

    # --- endpoints ------------------------------------------------------------------------------------------------

    def list_endpoints(self) -> dict[str, Any]:
        return {"endpoints": [self._shown(record) for record in self._tables.endpoint.values()]}

    def get_endpoint(self, endpoint: str) -> dict[str, Any]:
        return self._shown(self._find(self._tables.endpoint, endpoint))

    def create_endpoint(self, body: Any) -> dict[str, Any]:
        given = bodies.create_endpoint(body)
        template = self._template_of(given)
        record = endpoints.created(given, template, self._references(), self._fresh_id(), self._clock.time())
        if template is not None and self._config.bind_templates and self._bound_to(template.id) is None:
            record = msgspec.structs.replace(record, template=template.id)
        self._check_quota(record, 0)
        self._save(record)
        if record.type == "QUEUE":
            self._plane.open_endpoint(self._settings(record, None), record.version)
        return self._shown(record)

    def update_endpoint(self, endpoint: str, body: Any) -> dict[str, Any]:
        record = self._find(self._tables.endpoint, endpoint)
        given = bodies.update_endpoint(body)
        if record.declared and "name" in given and given["name"] != record.name:
            raise Problem(403, "the name of an endpoint of the emulator's configuration stays as it is")
        after = endpoints.patched(record, given, self._template_of(given), self._references(), self._clock.time())
        self._check_quota(after, record.workers_max)
        self._save(after)
        self._apply(after)
        return self._shown(after)

    def delete_endpoint(self, endpoint: str) -> None:
        record = self._find(self._tables.endpoint, endpoint)
        if record.declared:
            raise Problem(403, "access denied: this endpoint belongs to the emulator's configuration, which would make it again")
        self._forget(record)
        if record.template is not None and (template := self._tables.template.get(record.template)) is not None:
            self._forget(template)
        self._plane.close_endpoint(record.id)

    def bind_template(self, endpoint: str, template: str) -> None:
        """Bind a template to an endpoint, as the console and the APIs before v2 did: for tests of what follows from it."""
        record = self._find(self._tables.endpoint, endpoint)
        self._save(msgspec.structs.replace(record, template=self._find(self._tables.template, template).id))

    def workers(self, endpoint: str) -> dict[str, Any]:
        record = self._find(self._tables.endpoint, endpoint)
        return views.workers(record, self._plane.fleet(record.id), self._clock.time())

    def releases(self, endpoint: str) -> dict[str, Any]:
        record = self._find(self._tables.endpoint, endpoint)
        return views.releases(record, self._plane.fleet(record.id))

    # --- templates ------------------------------------------------------------------------------------------------

    def list_templates(self) -> dict[str, Any]:
        return {"templates": [views.template(record) for record in self._tables.template.values()]}

    def get_template(self, template: str) -> dict[str, Any]:
        return views.template(self._find(self._tables.template, template))

    def create_template(self, body: Any) -> dict[str, Any]:
        given = bodies.create_template(body)
        record = TemplateRecord(id=self._fresh_id(short=True), **_template_fields(given))
        self._check_template(record)
        self._save(record)
        return views.template(record)

    def update_template(self, template: str, body: Any) -> dict[str, Any]:
        """Endpoints that were made from it do not change: they hold a copy."""
        record = self._find(self._tables.template, template)
        record = msgspec.structs.replace(record, **_template_fields(bodies.update_template(body)))
        self._check_template(record)
        self._save(record)
        return views.template(record)

    def delete_template(self, template: str) -> None:
        record = self._find(self._tables.template, template)
        bound = self._bound_to(record.id)
        if bound is not None:
            raise conflict(f"template is bound to serverless endpoint {bound.id!r}")
        self._forget(record)

    def public_templates(self, source: str | None) -> dict[str, Any]:
        """The public catalog: of this account's templates those that are public are seen under `community`."""
        if source not in (None, "official", "verified", "community"):
            raise invalid("source: must be official, verified or community")
        public = [record for record in self._tables.template.values() if record.public and source == "community"]
        return {"templates": [{**views.template(record), "registry": None} for record in public[:100]]}

    # --- network volumes ------------------------------------------------------------------------------------------

    def list_volumes(self) -> dict[str, Any]:
        return {"networkVolumes": [views.volume(record) for record in self._tables.volume.values()]}

    def get_volume(self, volume: str) -> dict[str, Any]:
        return views.volume(self._find(self._tables.volume, volume))

    async def create_volume(self, body: Any) -> dict[str, Any]:
        given = bodies.create_volume(body)
        center = self.catalog.data_center(given["dataCenter"])
        if center is None or not center.tiers:
            valid = ", ".join(found.id for found in self.catalog.data_centers if found.tiers)
            raise conflict(f"data center {given['dataCenter']!r} has no network volumes; there are: {valid}")
        tier = given.get("type", center.tiers[0])
        if tier not in center.tiers:
            raise conflict(f"data center {center.id} has no {tier} volumes")
        record = VolumeRecord(
            id=self._fresh_id(short=True),
            name=given["name"],
            size=given["size"],
            data_center=center.id,
            type=tier,
            created_at=self._clock.time(),
        )
        self._save(record)
        await self._in_full(self._make_bucket(record))
        return views.volume(record)

    async def _make_bucket(self, record: VolumeRecord) -> None:
        try:
            await self._plane.make_bucket(record.id)
        except NightbatchError:
            self._forget(record)  # its client is told that there is none
            raise

    def update_volume(self, volume: str, body: Any) -> dict[str, Any]:
        record = self._find(self._tables.volume, volume)
        given = bodies.update_volume(body)
        if given.get("size", record.size) < record.size:
            raise conflict(f"a network volume cannot shrink: it has {record.size} GB, asked for {given['size']}")
        record = msgspec.structs.replace(record, **given)
        self._save(record)
        return views.volume(record)

    async def delete_volume(self, volume: str) -> None:
        """Refused while an endpoint has it: RunPod's page says that its users must be detached first; the status is a guess."""
        record = self._find(self._tables.volume, volume)
        users = [endpoint.id for endpoint in self._tables.endpoint.values() if record.id in endpoint.network_volumes]
        if users:
            raise conflict(f"network volume is attached to serverless endpoint {users[0]!r}")
        del self._tables.volume[record.id]
        await self._in_full(self._drop_bucket(record))

    async def _drop_bucket(self, record: VolumeRecord) -> None:
        """What is kept of a volume goes last: one that was half empty when the emulator was killed is there, and can be deleted again."""
        try:
            await self._plane.drop_bucket(record.id)
        except NightbatchError:
            self._tables.volume[record.id] = record
            raise
        self._keeper.record_deleted(record)

    async def _in_full(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for it. It goes on when the client hangs up, as it would with RunPod; `close` ends it."""
        task = asyncio.get_running_loop().create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to hear of it
        await asyncio.shield(task)

    async def close(self) -> None:
        """End what is under way. A bucket that is being emptied stays a volume's."""
        tasks = list(self._at_work)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- registries -----------------------------------------------------------------------------------------------

    def list_registries(self) -> dict[str, Any]:
        return {"registries": [views.registry(record) for record in self._tables.registry.values()]}

    def get_registry(self, registry: str) -> dict[str, Any]:
        return views.registry(self._find(self._tables.registry, registry))

    def create_registry(self, body: Any) -> dict[str, Any]:
        given = bodies.create_registry(body)
        record = RegistryRecord(id=self._fresh_id(short=True), name=given["name"])
        self._save(record)
        return views.registry(record)

    def delete_registry(self, registry: str) -> None:
        """Refused while a worker's image is pulled with it (RunPod says: a pod); templates silently lose it."""
        record = self._find(self._tables.registry, registry)
        users = [endpoint.id for endpoint in self._tables.endpoint.values() if endpoint.registry == record.id]
        if users:
            raise conflict(f"registry credential is used by serverless endpoint {users[0]!r}")
        for template in list(self._tables.template.values()):
            if template.registry == record.id:
                self._save(msgspec.structs.replace(template, registry=None))
        self._forget(record)

    def list_delegations(self) -> dict[str, Any]:
        return {"delegations": [views.delegation(record) for record in self._tables.delegation.values()]}

    def create_delegation(self, body: Any) -> dict[str, Any]:
        given = bodies.create_delegation(body)
        match = _ARN.fullmatch(given["resource"])
        if match is None:
            raise invalid("$.resource: must be the ARN of an ECR repository")
        record = DelegationRecord(
            id=self._fresh_id(short=True),
            name=given.get("name"),
            aws_user=match["account"],
            repository=match["repository"],
            aws_region=match["region"],
            created_at=self._clock.time(),
        )
        self._save(record)
        return views.delegation(record)

    def delete_delegation(self, delegation: str) -> None:
        self._forget(self._find(self._tables.delegation, delegation))

    # --- inside ---------------------------------------------------------------------------------------------------

    def image(self, reference: str | None) -> ImageConfig | None:
        """What an image means on this machine; None if its registry does not have it."""
        images = self._config.images
        return images.get(reference or "") or images.get("*")

    def _image_exists(self, reference: str) -> bool:
        declared = {record.image for record in self._tables.endpoint.values() if record.declared}
        return bool(reference) and (self.image(reference) is not None or reference in declared)

    def _references(self) -> References:
        return References(self.catalog, self._tables.volume, self._tables.registry, self._image_exists)

    def _shown(self, record: EndpointRecord) -> dict[str, Any]:
        return views.endpoint(record, self._root(), self.catalog)

    def _settings(self, record: EndpointRecord, base: EndpointConfig | None) -> EndpointConfig:
        return endpoints.config_of(record, base, self.image(record.image), self.catalog, self._tables.volume, self.stock)

    def _apply(self, record: EndpointRecord) -> None:
        fleet = self._plane.fleet(record.id)
        if fleet is not None:
            self._plane.change_endpoint(self._settings(record, fleet.endpoint), record.version)

    def _template_of(self, given: Mapping[str, Any]) -> TemplateRecord | None:
        if "templateId" not in given:
            return None
        template = self._tables.template.get(given["templateId"])
        if template is None:
            raise not_found(f"template {given['templateId']!r} not found")
        return template

    def _bound_to(self, template: str) -> EndpointRecord | None:
        return next((record for record in self._tables.endpoint.values() if record.template == template), None)

    def _check_template(self, record: TemplateRecord) -> None:
        if record.registry is not None and record.registry not in self._tables.registry:
            raise conflict(f"registry {record.registry!r} does not exist")

    def _check_quota(self, record: EndpointRecord, before: int) -> None:
        """The account's workers: the sum of workers.max over its endpoints. RunPod's API neither tells the quota nor documents the answer;
        400 with the numbers is a guess. Lowering is always allowed."""
        others = sum(found.workers_max for found in self._tables.endpoint.values() if found.id != record.id)
        quota = self._config.worker_quota
        if record.workers_max > before and others + record.workers_max > quota:
            raise conflict(
                f"max workers across all endpoints must not exceed your workers quota ({quota}): "
                f"{others} are taken by other endpoints, {record.workers_max} asked for"
            )

    def _fresh_id(self, *, short: bool = False) -> str:
        return new_id() if short else new_id(ENDPOINT_ID_LENGTH)

    def _find(self, table: Mapping[str, R], record_id: str) -> R:
        record = table.get(record_id)
        if record is None:
            raise not_found()
        return record

    def _table_of(self, record: Record) -> dict[str, Any]:
        tables: dict[type[Record], dict[str, Any]] = {
            EndpointRecord: self._tables.endpoint,
            TemplateRecord: self._tables.template,
            VolumeRecord: self._tables.volume,
            RegistryRecord: self._tables.registry,
            DelegationRecord: self._tables.delegation,
        }
        return tables[type(record)]

    def _save(self, record: Record) -> None:
        self._table_of(record)[record.id] = record
        self._keeper.record_saved(record)

    def _forget(self, record: Record) -> None:
        self._table_of(record).pop(record.id, None)
        self._keeper.record_deleted(record)


_TEMPLATE_NAMES: Final = {
    "startSsh": "start_ssh",
    "startJupyter": "start_jupyter",
    "allowedCudaVersions": "allowed_cuda",
}


def _template_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """A body's fields under the record's names. `mounts: {}` leaves the mount as it is."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name == "mounts" and not value:
            continue
        fields[_TEMPLATE_NAMES.get(name, name)] = tuple(value) if isinstance(value, list) else value
    return fields
