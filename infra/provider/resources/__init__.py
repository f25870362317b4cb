"""infra/provider: the resources, one module each: tables of fields and pure functions over plain dicts. No pulumi, no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infra.provider.resources.endpoint import ENDPOINT
from infra.provider.resources.fields import Kind
from infra.provider.resources.network_volume import NETWORK_VOLUME
from infra.provider.resources.registry_credential import REGISTRY_CREDENTIAL
from infra.provider.resources.template import TEMPLATE

PACKAGE: Final = "runpodv2"
VERSION: Final = "0.1.0"
KINDS: Final[Mapping[str, Kind]] = {kind.token: kind for kind in (ENDPOINT, NETWORK_VOLUME, TEMPLATE, REGISTRY_CREDENTIAL)}
