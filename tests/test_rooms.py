"""The rooms import `contract` and nothing else of each other; heavy libraries stay where they belong (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("contract", "worker", "pipelines", "emulator", "nights", "infra")
MAY_IMPORT = {"nights": {"contract", "pipelines"}}
ONLY_IN = {
    "vllm": ("worker/engine",),
    "boto3": ("contract/store.py",),
    "botocore": ("contract/store.py",),
    "pulumi": ("infra",),
    "grpc": ("infra/provider/server.py",),
    "google": ("infra/provider/server.py", "infra/provider/codec.py"),
    "runpod": ("worker",),
    "typer": ("cli",),
    "lance": ("nights/spaces",),
    "scipy": ("nights/evals",),
    "jinja2": ("nights/report",),
    "pydantic": ("nights",),
}


def imports(path: Path) -> set[str]:
    """Every module that the file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = MAY_IMPORT.get(room, {"contract"}) | {room}
    foreign = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(room)
        for module in imports(path)
        if module.split(".")[0] in (*ROOMS, "cli", "tests") and module.split(".")[0] not in allowed
    }
    assert not foreign


@pytest.mark.parametrize(("library", "places"), ONLY_IN.items())
def test_a_heavy_library_stays_in_its_place(library: str, places: tuple[str, ...]) -> None:
    strangers = {
        str(path.relative_to(ROOT))
        for room in (*ROOMS, "cli")
        for path in sources(room)
        if any(module.split(".")[0] == library for module in imports(path)) and not str(path.relative_to(ROOT)).startswith(places)
    }
    assert not strangers


def test_what_works_without_pulumi_does_not_import_it() -> None:
    """doctor, drift and stop reach RunPod with the provider's client on a machine that has no Pulumi."""
    with_pulumi = {"infra/provider/server.py", "infra/provider/sdk.py", "infra/provider/__main__.py"}
    plain = [path for path in sources("infra/provider") if str(path.relative_to(ROOT)) not in with_pulumi]
    assert plain
    assert not [path for path in plain if any(module.split(".")[0] == "pulumi" for module in imports(path))]


def test_every_source_file_says_first_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for room in (*ROOMS, "cli")
        for path in sources(room)
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent
