"""scripts/pulumi-cli, with programs in place of pulumi and go that say how they were called: fast, and without building anything."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = "scripts/pulumi-cli"
GO = """\
#!/bin/sh
echo "$*" >>"$CALLS"
case $1 in
  version) echo "go version go1.26.8 linux/amd64" ;;
  build)
    [ -z "$BROKEN" ] || { echo "link: out of memory" >&2; exit 1; }
    sleep 0.2
    while [ "$1" != "-o" ]; do shift; done
    printf '#!/bin/sh\\necho v3.276.0\\n' >"$2"; chmod 755 "$2" ;;
  list) mkdir -p "$CALLS.d/python/cmd"; echo exec >"$CALLS.d/python/cmd/pulumi-language-python-exec"; echo "$CALLS.d" ;;
esac
"""


class Machine:
    """An empty home, a PATH of our own, and the repository's script."""

    def __init__(self, folder: Path, repo: Path) -> None:
        self.bin, self.home, self.calls = folder / "bin", folder / "home", folder / "calls"
        self.bin.mkdir()
        self.home.mkdir()
        self.repo = repo
        self.cache = self.home / ".cache" / "nightbatch"

    def program(self, name: str, text: str, folder: Path | None = None) -> None:
        path = (folder or self.bin) / name
        path.write_text(text)
        path.chmod(0o755)

    def pulumi(self, version: str, *, host: bool = True) -> None:
        self.program("pulumi", f"#!/bin/sh\necho {version}\n")
        if host:
            for name in ("pulumi-language-python", "pulumi-language-python-exec"):
                self.program(name, "#!/bin/sh\nexit 2\n")

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home), "CALLS": str(self.calls), **env}
        command = [sys.executable, str(self.repo / SCRIPT), *arguments]
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err


@pytest.fixture
def machine(tmp_path: Path, repo: Path) -> Machine:
    return Machine(tmp_path, repo)


def test_a_pulumi_on_path_is_used(machine: Machine) -> None:
    machine.pulumi("v3.244.0")
    assert machine.run() == (0, str(machine.bin), "")
    assert machine.run("--check") == (0, str(machine.bin), "")
    assert not machine.cache.exists()


@pytest.mark.parametrize(
    ("version", "host", "why"),
    [
        ("v3.152.0", True, "its pulumi is 3.152.0, and 3.180.0 or later of 3.x is needed"),
        ("v4.0.0", True, "its pulumi is 4.0.0"),
        ("what?", True, "its pulumi does not run"),
        ("v3.276.0", False, "there is no pulumi-language-python beside its pulumi"),
    ],
)
def test_a_pulumi_that_cannot_be_used_is_named_with_the_reason(machine: Machine, version: str, host: bool, why: str) -> None:
    machine.pulumi(version, host=host)
    code, out, err = machine.run("--check")
    assert (code, out) == (1, "")
    assert f"the CLI in {machine.bin} is not used: {why}" in err
    code, _, err = machine.run(NIGHTBATCH_PULUMI="path")
    assert code == 3
    assert why in err


INSTALL = """\
#!/bin/sh
while [ $# -gt 0 ]; do case $1 in --install-root) root=$2 ;; --version) version=$2 ;; --no-edit-path) quiet=1 ;; esac; shift; done
[ -n "$quiet" ] || echo PATH= >>"$HOME/.profile"
mkdir -p "$root/bin" "$HOME/.pulumi"
printf '#!/bin/sh\\necho v%s\\n' "$version" >"$root/bin/pulumi"
for name in pulumi-language-python pulumi-language-python-exec; do printf '#!/bin/sh\\n' >"$root/bin/$name"; done
chmod 755 "$root"/bin/*
"""


@pytest.fixture
def site() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server and what it serves."""
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(pages.get(self.path, b""))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", pages
        finally:
            server.shutdown()
            thread.join()


def with_installer_at(machine: Machine, url: str) -> None:
    """The script in a clone of its own, in which the installer has this address."""
    text = (machine.repo / SCRIPT).read_text()
    assert text.count("https://get.pulumi.com") == 1
    clone = machine.bin.parent / "clone"
    (clone / "scripts").mkdir(parents=True)
    machine.program("pulumi-cli", text.replace("https://get.pulumi.com", url), clone / "scripts")
    (clone / "tools").symlink_to(machine.repo / "tools")
    machine.repo = clone


def test_the_official_installer_is_asked_where_it_can_be_reached_and_writes_into_the_cache(
    machine: Machine, site: tuple[str, dict[str, bytes]]
) -> None:
    url, pages = site
    pages["/"] = INSTALL.encode()
    with_installer_at(machine, f"{url}/")
    code, out, err = machine.run()
    assert code == 0, err
    assert subprocess.run([f"{out}/pulumi"], capture_output=True, text=True).stdout == "v3.276.0\n"
    assert sorted(path.name for path in machine.home.iterdir()) == [".cache"]
    assert machine.run() == (0, out, "")


def test_where_the_installers_address_answers_with_something_else_it_is_built(machine: Machine, site: tuple[str, dict[str, bytes]]) -> None:
    url, pages = site
    pages["/"] = b"<html>Please sign in to this network.</html>"
    machine.program("go", GO)
    with_installer_at(machine, f"{url}/")
    code, _, err = machine.run()
    assert code == 0, err
    assert "what answered at the installer's address is not the installer" in err
    assert machine.calls.read_text().count("build ") == 2


def test_it_is_built_from_its_modules_once_and_nothing_else_is_left(machine: Machine) -> None:
    machine.program("go", GO)
    code, out, err = machine.run(NIGHTBATCH_PULUMI="modules")
    assert code == 0, err
    assert "building the Pulumi CLI from its Go modules: ten to twenty minutes on two cores, once" in err
    folder = Path(out)
    assert folder.parent.parent == machine.cache
    assert {path.name for path in folder.iterdir()} == {"pulumi", "pulumi-language-python", "pulumi-language-python-exec"}
    assert all(os.access(path, os.X_OK) for path in folder.iterdir())
    assert {path.name for path in machine.cache.iterdir()} == {folder.parent.name, f"{folder.parent.name}.lock"}
    assert sorted(path.name for path in machine.home.iterdir()) == [".cache"]
    calls = machine.calls.read_text()
    assert calls.count("build ") == 2
    assert machine.run("--check") == (0, out, "")
    assert machine.run(NIGHTBATCH_PULUMI="modules") == (0, out, "")
    assert machine.calls.read_text() == calls


def test_two_at_once_build_once(machine: Machine) -> None:
    machine.program("go", GO)
    both = [machine.start(NIGHTBATCH_PULUMI="modules") for _ in range(2)]
    outs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outs[0] == outs[1]
    assert machine.calls.read_text().count("build ") == 2


def test_a_failed_build_says_what_failed_and_leaves_nothing_that_looks_whole(machine: Machine) -> None:
    machine.program("go", GO)
    code, out, err = machine.run(NIGHTBATCH_PULUMI="modules", BROKEN="1")
    assert (code, out) == (3, "")
    assert "link: out of memory" in err
    assert machine.run("--check")[0] == 1
    assert machine.run(NIGHTBATCH_PULUMI="modules")[0] == 0


def test_a_machine_without_go_is_told_what_to_install(machine: Machine) -> None:
    text = (machine.repo / SCRIPT).read_text().replace("/usr/local/go/bin/go", "/nowhere/go")  # this machine may well have one there
    other = machine.home / "scripts"
    other.mkdir()
    machine.program("pulumi-cli", text, other)
    (machine.home / "tools").symlink_to(machine.repo / "tools")
    machine.repo = machine.home
    code, out, err = machine.run(NIGHTBATCH_PULUMI="modules")
    assert (code, out) == (3, "")
    assert "Go 1.26.6 or later is needed" in err
    assert "https://go.dev/doc/install" in err


def test_a_wrong_wish_and_a_wrong_argument_are_usage_errors(machine: Machine) -> None:
    code, _, err = machine.run(NIGHTBATCH_PULUMI="conda")
    assert (code, "it must be path, installer or modules" in err) == (3, True)
    code, _, err = machine.run("--build")
    assert (code, "scripts/pulumi-cli" in err) == (2, True)
