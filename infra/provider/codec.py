"""infra/provider: the engine's values (protobuf structs with signatures) to plain dicts and back. Needs protobuf only.

Secrets are kept apart as the set of their paths, so that everything between works on plain values and nothing is forgotten on the way back.
The signatures are part of Pulumi's protocol (pulumi.runtime.rpc has the same ones; a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf import struct_pb2

from infra.provider.resources.fields import UNKNOWN

SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"
OUTPUT: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
REFERENCE: Final = "5cf8f73096256a8f31e491e813e4eb8e"
UNKNOWN_TEXT: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
Path = tuple[str | int, ...]
Paths = frozenset[Path]
NONE: Final[Paths] = frozenset()


def decode(struct: struct_pb2.Struct) -> tuple[dict[str, Any], Paths]:
    """Plain values, and where secrets stand."""
    secrets: set[Path] = set()
    return {name: _decode(value, (name,), secrets) for name, value in struct.fields.items()}, frozenset(secrets)


def _decode(value: struct_pb2.Value, path: Path, secrets: set[Path]) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "string_value":
        return UNKNOWN if value.string_value == UNKNOWN_TEXT else value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "list_value":
        return [_decode(item, (*path, i), secrets) for i, item in enumerate(value.list_value.values)]
    if kind == "struct_value":
        fields = value.struct_value.fields
        signature = fields[SIGNATURE].string_value if SIGNATURE in fields else ""
        if signature == SECRET:
            secrets.add(path)
            return _decode(fields["value"], path, secrets)
        if signature == OUTPUT:
            if "secret" in fields and fields["secret"].bool_value:
                secrets.add(path)
            return _decode(fields["value"], path, secrets) if "value" in fields else UNKNOWN
        if signature == REFERENCE:
            return _decode(fields["id"], path, secrets) if "id" in fields and fields["id"].string_value else UNKNOWN
        return {name: _decode(item, (*path, name), secrets) for name, item in fields.items()}
    return None


def encode(values: Mapping[str, Any], secrets: Iterable[Path] = ()) -> struct_pb2.Struct:
    """The struct of plain values, with what stands at a secret path wrapped as one."""
    paths = frozenset(secrets)
    return struct_pb2.Struct(fields={name: _encode(value, (name,), paths) for name, value in values.items()})


def _encode(value: Any, path: Path, secrets: Paths) -> struct_pb2.Value:
    if path in secrets:
        inner = _plain(value, path, NONE)
        fields = {SIGNATURE: struct_pb2.Value(string_value=SECRET), "value": inner}
        return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
    return _plain(value, path, secrets)


def _plain(value: Any, path: Path, secrets: Paths) -> struct_pb2.Value:
    if value is None:
        return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    if value is UNKNOWN:
        return struct_pb2.Value(string_value=UNKNOWN_TEXT)
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, int | float):
        return struct_pb2.Value(number_value=float(value))
    if isinstance(value, str):
        return struct_pb2.Value(string_value=value)
    if isinstance(value, Mapping):
        fields = {name: _encode(item, (*path, name), secrets) for name, item in value.items()}
        return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
    if isinstance(value, list | tuple):
        items = [_encode(item, (*path, i), secrets) for i, item in enumerate(value)]
        return struct_pb2.Value(list_value=struct_pb2.ListValue(values=items))
    raise TypeError(f"{'.'.join(map(str, path))} is a {type(value).__name__}, which the engine has no value for")


def secret_texts(values: Any, secrets: Paths, path: Path = ()) -> set[str]:
    """Every string that stands at or under a secret path, to keep it out of messages."""
    inside = any(path[: len(p)] == p for p in secrets) if path else False
    if isinstance(values, str):
        return {values} if inside else set()
    if isinstance(values, Mapping):
        return set().union(*(secret_texts(v, secrets, (*path, k)) for k, v in values.items()))
    if isinstance(values, list | tuple):
        return set().union(*(secret_texts(v, secrets, (*path, i)) for i, v in enumerate(values)))
    return set()


def covers(secrets: Paths, path: Path) -> bool:
    """Whether a path is secret itself or stands inside of one that is."""
    return any(path[: len(p)] == p for p in secrets)
