"""infra/provider: the registry credential, as pure functions over plain dicts. Touches nothing.

Sources: the OpenAPI file's CreateRegistryRequest and Registry. REST v2 cannot change one and never returns user name and password: every
change replaces it, and an existing one cannot be imported, because nobody could say what to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.provider.resources.fields import Change, Failure, Field, Json, Kind, body_of, check_fields, diff_fields

FIELDS: Final = (
    Field("name", "string", "The credential's name.", required=True, min_items=1, replaces=True),
    Field("username", "string", "User name at the registry.", required=True, min_items=1, replaces=True, echoed=False),
    Field("password", "string", "Password or token at the registry.", required=True, min_items=1, replaces=True, secret=True, echoed=False),
)


def check(values: Mapping[str, Any]) -> tuple[Json, list[Failure]]:
    return check_fields(FIELDS, values, "", "RegistryCredential")


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Change]:
    return diff_fields(FIELDS, old, new)


def create_body(inputs: Mapping[str, Any], _marker: str) -> Json:
    return body_of(FIELDS, inputs)


def patch_body(_old: Mapping[str, Any], _new: Mapping[str, Any], _marker: str) -> Json:
    return {}


def from_live(live: Mapping[str, Any], old: Mapping[str, Any] | None) -> Json:
    """The name as it is; user name and password as declared, because RunPod never says them."""
    return {**{k: v for k, v in (old or {}).items() if k in ("username", "password")}, "name": live.get("name", "")}


def outputs(live: Mapping[str, Any], inputs: Mapping[str, Any]) -> Json:
    return from_live(live, inputs)


def preview_outputs(new: Mapping[str, Any], _old: Mapping[str, Any] | None, _old_outputs: Mapping[str, Any] | None) -> Json:
    return dict(new)


REGISTRY_CREDENTIAL: Final = Kind(
    token="runpodv2:index:RegistryCredential",
    title="RegistryCredential",
    doc="User name and password for a private image registry. Every change replaces it; an existing one cannot be imported.",
    inputs=FIELDS,
    computed=(),
    path="/v2/registries",
    calls="registry",
    list_call="list_registries",
    check=check,
    diff=diff,
    create_body=create_body,
    patch_body=patch_body,
    from_live=from_live,
    outputs=outputs,
    preview_outputs=preview_outputs,
    secret_inputs=("password",),
    importable=False,
    why_not_importable=(
        "a registry credential cannot be imported: RunPod never returns its user name and password. "
        "Declare it anew, point the endpoints at the new one, then delete the old one in the console."
    ),
)
