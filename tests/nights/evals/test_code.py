# tests/nights/evals: generated code is shut in: what it may not do, that it ends, and that only its tests say that it passed.
from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.errors import InfrastructureError, Interrupted
from nights.evals import code
from nights.evals.code import Isolation, Limits, Program, Ran, run_program, run_programs, take_code

SQUARE = "def square(x):\n    return x * x\n"
TESTS = "assert square(3) == 9\n"
SHORT = Limits(seconds=2, wall_s=4)
pytestmark = pytest.mark.slow
LEVELS: tuple[Isolation, ...] = ("full", "network", "limits")


@functools.cache
def impossible(isolation: Isolation) -> str | None:
    """Why this machine cannot shut a program in so: plain containers, and kernels that let nobody but root make namespaces."""
    try:
        run_program(Program("", ""), SHORT, isolation=isolation)
    except InfrastructureError as error:
        return str(error)
    return None


def ran(source: str, tests: str = TESTS, *, isolation: Isolation = "full", limits: Limits = SHORT) -> Ran:
    if (why := impossible(isolation)) is not None:
        pytest.skip(why)
    return run_program(Program(source, tests), limits, isolation=isolation)


def anothers(pid: int) -> bool:
    """Whether it belongs to another process of the same test run: it descends from our parent, and not from us."""
    while pid > 1 and pid != os.getpid():
        if pid == os.getppid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


def jails() -> set[int]:
    """Processes of this machine that have to do with generated code, but for those of tests that run beside this one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if (str(code.JAIL).encode() in line or b"_nightbatch()" in line) and not anothers(int(entry.name)):
                found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = jails()
    yield
    until = time.monotonic() + 5
    while (left := jails() - before) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, "a program outlived its execution"


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_right_program_passes(isolation: Isolation) -> None:
    found = ran(SQUARE, isolation=isolation)
    assert found.passed
    assert found.isolation == isolation


def test_a_wrong_program_fails_and_says_which_line_of_the_tests() -> None:
    found = ran("def square(x):\n    return x + x\n", "assert square(2) == 4\nassert square(3) == 9, 'of three'\n")
    assert (found.verdict, found.reason) == ("failed", "AssertionError: of three (tests.py:2)")


def test_a_program_that_cannot_be_loaded_is_an_error_of_its_own() -> None:
    assert ran("def square(x:\n").verdict == "error"
    assert "SyntaxError" in ran("def square(x:\n").reason
    assert ran("square = undefined\n").reason == "NameError: name 'undefined' is not defined (code.py:1)"
    assert ran("\ud800 = 1\n").verdict == "error"
    assert ran("import numpy\n").reason.startswith("ModuleNotFoundError"), "the standard library alone"


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_program_is_not_thrown_by_ordinary_python(isolation: Isolation) -> None:
    source = (
        "from __future__ import annotations\nimport dataclasses, typing, math, random, re, threading\n"
        "@dataclasses.dataclass\nclass Box:\n    value: typing.Any\n"
        "def square(x):\n    print('thinking')\n    t = threading.Thread(target=lambda: None)\n    t.start()\n    t.join()\n"
        "    return Box(x).value ** 2\n"
    )  # fmt: skip
    assert ran(source, isolation=isolation).passed
    assert ran("x = '" + "a" * 300_000 + "'\n" + SQUARE, isolation=isolation).passed, "longer than a pipe holds"
    assert ran(SQUARE, "print('of the tests')\n" + TESTS + "t = 'é ü \\n'\n").passed


# --- claiming to have passed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.exit(0)\n",
        "import os\nos._exit(0)\n",
        "raise SystemExit\n",
        "def square(x):\n    import sys\n    sys.exit(0)\n",
        "def square(x):\n    import os\n    os._exit(0)\n",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nos._exit(0)\n",
        "print('passed', flush=True)\nprint('OK', flush=True)\nimport os\nos._exit(0)\n",
        # The word is drawn for each program, and comes only after the code was loaded.
        "import os\nfor fd in range(3, 30):\n    try:\n        os.write(fd, b'0' * 32)\n    except OSError:\n        pass\nos._exit(0)\n",
        "import atexit, os\natexit.register(lambda: os._exit(0))\nraise SystemExit(0)\n",
        "import builtins\nbuiltins.AssertionError = type('Quiet', (BaseException,), {})\ndef square(x):\n    return 0\n",
        "import sys\nsys.modules['__main__'].__dict__.clear()\ndef square(x):\n    return 0\n",
        "import shutil, os\nshutil.rmtree('.', ignore_errors=True)\ndef square(x):\n    return 0\n",
    ],
)
def test_no_end_and_no_text_of_its_own_counts_as_passed(source: str, isolation: Isolation) -> None:
    found = ran(source, isolation=isolation)
    assert not found.passed
    assert found.reason


def test_deleting_all_that_it_can_reach_does_not_hide_the_tests() -> None:
    source = (
        "import os\nfor top in ('/tmp', '.', '/etc', '/dev'):\n  for folder, _, files in os.walk(top):\n"
        "    for name in files:\n      try:\n        os.remove(os.path.join(folder, name))\n      except OSError:\n        pass\n"
    )
    assert ran(source + SQUARE).passed
    assert ran(source + "def square(x):\n    return 1\n").verdict == "failed"
    assert Path(sys.executable).exists()


# --- resources -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize(
    "source",
    ["while True:\n    pass\n", "import time\ntime.sleep(600)\n", "import signal\nsignal.pause()\n"],
    ids=["spins", "sleeps", "pauses"],
)
def test_a_program_that_does_not_end_is_ended(source: str, isolation: Isolation) -> None:
    began = time.monotonic()
    found = ran(source, isolation=isolation, limits=Limits(seconds=1, wall_s=2))
    assert found.verdict in ("timeout", "killed")
    assert time.monotonic() - began < 20


def test_computing_too_long_is_told_from_waiting_too_long() -> None:
    found = ran("while True:\n    pass\n", limits=Limits(seconds=1, wall_s=30))
    assert (found.verdict, found.reason) == ("timeout", "it computed for 1 s, and was killed")
    found = ran("import time\ntime.sleep(60)\n", limits=Limits(seconds=1, wall_s=1))
    assert (found.verdict, found.reason) == ("timeout", "it did not end in 1 s, and was killed")
    deaf = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass\n"
    assert ran(deaf, limits=Limits(seconds=1, wall_s=30)).verdict == "killed"
    assert Limits(seconds=10).clock_s == 40


def test_a_program_that_does_not_end_in_its_tests_is_ended() -> None:
    assert ran("def square(x):\n    while True:\n        pass\n", limits=Limits(seconds=1, wall_s=2)).verdict == "timeout"


@pytest.mark.parametrize("isolation", ["full", "network"])
def test_a_fork_bomb_is_bounded_and_killed(isolation: Isolation) -> None:
    """Every process that it makes lives in the jail; none is left, which the fixture asserts."""
    source = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    assert ran(source, isolation=isolation, limits=Limits(seconds=1, wall_s=2)).verdict in ("timeout", "killed")
    count = (
        "import os\nmade = 0\ntry:\n  while made < 500:\n    if os.fork() == 0:\n      import time; time.sleep(60)\n    made += 1\n"
        "except OSError:\n  pass\n"
    )
    assert ran(count, f"assert made < {SHORT.processes}, made\n", isolation=isolation).passed


@pytest.mark.parametrize("isolation", LEVELS)
def test_endless_output_is_cut_off(isolation: Isolation) -> None:
    found = ran("while True:\n    print('x' * 1000)\n", isolation=isolation)
    assert found.verdict == "output"
    assert len(found.output) <= 64 << 10


def test_output_within_the_limit_is_no_fault() -> None:
    found = ran(SQUARE + "print('x' * 1000, flush=True)\n")
    assert found.passed
    assert found.output == "x" * 1000 + "\n"


@pytest.mark.parametrize("isolation", LEVELS)
def test_memory_is_bounded(isolation: Isolation) -> None:
    assert ran("x = bytearray(3 << 30)\n", isolation=isolation).reason.startswith("MemoryError")
    assert ran("x = []\nwhile True:\n    x.append(bytes(1 << 20))\n", isolation=isolation).verdict in ("error", "killed")


@pytest.mark.parametrize("isolation", LEVELS)
def test_files_are_bounded(isolation: Isolation) -> None:
    source = "with open('big', 'wb') as f:\n    while True:\n        f.write(bytes(1 << 20))\n"
    assert ran(source, isolation=isolation).verdict in ("error", "killed")


def test_many_small_files_are_bounded_too() -> None:
    source = "n = 0\ntry:\n  while n < 100:\n    open(f'f{n}', 'wb').write(bytes(1 << 20))\n    n += 1\nexcept OSError:\n  pass\n"
    assert ran(source, "assert n < 20, n\n").passed


# --- what it can reach ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["network", "limits"])
def test_where_it_can_read_secrets_its_error_carries_none_out(isolation: Isolation, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("TheSecret")
    reading = f"secret = open({str(tmp_path / 'secret')!r}).read()\n"
    for error in ("ValueError(secret)", "type(secret, (Exception,), {})()", "KeyError(secret)"):
        found = ran(reading + f"raise {error}\n", isolation=isolation)
        assert "TheSecret" not in found.reason
        assert found.reason.endswith("(code.py:2)")
    own = "class Error(Exception):\n    pass\nraise Error('x')\n"
    assert ran(own, isolation=isolation).reason == "an exception of its own (code.py:3)"


@pytest.mark.parametrize("isolation", LEVELS)
def test_it_has_an_empty_environment(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "a-secret-key")
    tests = "import os\nassert not set(os.environ) - {'LC_CTYPE'}, os.environ\n"
    assert ran("", tests, isolation=isolation).passed


def test_it_cannot_read_the_environment_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "a-secret-key")
    source = (
        "import glob, os\nfound = []\nfor name in glob.glob('/proc/*/environ') + [f'/proc/{os.getppid()}/environ', '/proc/1/environ']:\n"
        "  try:\n    found.append(open(name, 'rb').read())\n  except OSError:\n    pass\n"
    )
    assert ran(source, "assert not [x for x in found if x], found\n").passed


def test_it_sees_no_file_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    home = str(Path.home())
    tests = (
        f"import os\nassert not os.path.exists({str(secret)!r})\nassert not os.path.exists({__file__!r})\n"
        f"assert not os.path.exists('/etc/passwd')\nassert not os.path.exists('/../etc/passwd')\nassert not os.path.exists('/proc/1')\n"
        f"assert not os.path.exists({home + '/.ssh'!r})\nassert os.listdir('/tmp') == []\n"
    )
    assert ran("", tests).passed


def test_it_writes_nowhere_but_in_its_own_folder(tmp_path: Path) -> None:
    for place in (tmp_path / "x", Path("/usr/lib/nightbatch-x"), Path(sys.base_prefix) / "nightbatch-x", Path("/nightbatch-x")):
        assert ran(f"open({str(place)!r}, 'w')\n").reason.startswith(("OSError", "FileNotFoundError", "PermissionError"))
        assert not place.exists()
    assert ran("open('/tmp/mine', 'w').write('x')\n" + SQUARE).passed
    assert not Path("/tmp/mine").exists(), "its /tmp is another one"


@pytest.mark.parametrize("isolation", ["full", "network"])
def test_it_has_no_network(isolation: Isolation) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        for source in (
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)\n",
            "import socket\nsocket.socket(socket.AF_UNIX)\n",
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n",
            f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}', timeout=1)\n",
        ):
            assert ran(source, isolation=isolation).verdict == "error"
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()


def test_it_cannot_leave_its_jail_by_system_calls() -> None:
    """unshare, mount and chroot are refused; it is nobody, and cannot become anybody."""
    source = (
        "import ctypes, os, platform\nlibc = ctypes.CDLL(None, use_errno=True)\nfound = {}\n"
        "found['user namespace'] = libc.unshare(0x10000000)\nfound['mount'] = libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)\n"
        "found['ptrace'] = libc.ptrace(16, 1, 0, 0)\n"
        "clone = {'x86_64': 56, 'aarch64': 220}[platform.machine()]\n"
        "found['clone'] = libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0)\n"
        "if not found['clone']:\n  os._exit(0)\n"
        "for name, do in {'chroot': lambda: os.chroot('/tmp'), 'setuid': lambda: os.setuid(0), 'setsid': os.setsid}.items():\n"
        "  try:\n    do()\n    found[name] = 0\n  except OSError:\n    found[name] = -1\n"
    )
    assert ran(source, "assert set(found.values()) == {-1}, found\nassert os.getuid() != 0\n").passed


@pytest.mark.parametrize("isolation", ["full", "network"])
def test_it_cannot_end_other_processes(isolation: Isolation) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        pids = f"({other.pid}, {os.getpid()}, os.getppid(), 1, -1)"
        source = f"import os\nfor pid in {pids}:\n  try:\n    os.kill(pid, 9)\n  except OSError:\n    pass\n"
        ran(source + SQUARE, isolation=isolation)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_it_leaves_running_ends_with_it() -> None:
    source = "import os, time\nif os.fork() == 0:\n    time.sleep(300)\n"
    assert ran(source + SQUARE).passed


# --- the parent ----------------------------------------------------------------------------------------------------------------------


def test_its_folder_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for isolation in LEVELS:
        ran("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a', 0o500)\n" + SQUARE, isolation=isolation)
    assert list(tmp_path.iterdir()) == []


def test_descriptors_do_not_leak() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for source in (SQUARE, "while True: print('x' * 1000)\n", "import os\nos._exit(3)\n"):
        ran(source)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_machine_that_cannot_shut_it_in_says_so_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A launcher whose system has no namespaces: nothing weaker is used in its place."""
    broken = tmp_path / "jail.py"
    broken.write_text(
        code.JAIL.read_text().replace("def enter() -> bool:\n", "def enter() -> bool:\n    raise NoIsolation('unshare: no')\n")
    )
    monkeypatch.setattr(code, "JAIL", broken)
    mark = tmp_path / "ran"
    with pytest.raises(InfrastructureError, match=r"cannot shut generated code in \(unshare: no\).*isolation: network"):
        run_programs([Program(f"open({str(mark)!r}, 'w')", "")] * 3, SHORT)
    assert not mark.exists()
    assert ran(SQUARE, isolation="network").passed


def test_limits_too_small_for_an_interpreter_are_not_taken_for_wrong_answers() -> None:
    with pytest.raises(InfrastructureError, match="not even an empty program can run"):
        run_programs([Program(SQUARE, TESTS)], Limits(memory_mb=4))


def test_many_run_beside_each_other_in_order() -> None:
    programs = [Program(SQUARE, f"assert square(3) == {9 if n % 2 else 8}\n") for n in range(12)]
    seen: list[tuple[int, int]] = []
    found = run_programs(programs, SHORT, progress=lambda done, total: seen.append((done, total)))
    assert [one.passed for one in found] == [bool(n % 2) for n in range(12)]
    assert seen == [(n + 1, 12) for n in range(12)]


def test_programs_that_run_are_ended_when_they_are_to_stop() -> None:
    stop = threading.Event()
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        stop.set()

    long = Limits(seconds=300)
    programs = [Program(SQUARE, TESTS), *[Program("while True:\n    pass\n", "")] * 6]
    with pytest.raises(Interrupted):
        run_programs(programs, long, progress=progress, stop=stop)
    assert seen == [1]


def test_it_is_shut_in_for_an_ordinary_user_as_for_root() -> None:
    """As nobody, in a user namespace of its own; the same where the tests run as an ordinary user anyway."""
    python = code.base_python()[0]
    if os.geteuid() == 0 and not all(folder.stat().st_mode & 1 for folder in Path(python).parents):
        python = "/usr/bin/python3"  # root's own is where nobody may look
    program = (
        "import json, os, sys\nif os.geteuid() == 0:\n    os.setgroups([])\n    os.setresgid(65534, 65534, 65534)\n"
        "    os.setresuid(65534, 65534, 65534)\n"
        "exec(sys.stdin.read())\n"
    )
    body = (
        "import types\nerrors = types.ModuleType('contract.errors')\n"
        "for name in ('InfrastructureError', 'Interrupted'):\n    setattr(errors, name, type(name, (Exception,), {}))\n"
        "jail = types.ModuleType('nights.evals.jail')\njail.__file__ = JAIL\n"
        "for name in ('contract', 'nights', 'nights.evals'):\n    sys.modules[name] = types.ModuleType(name)\n"
        "sys.modules['contract.errors'], sys.modules['nights.evals.jail'] = errors, jail\nsys.modules['nights.evals'].jail = jail\n"
        "module = types.ModuleType('code_under_test')\nsys.modules['code_under_test'] = module\nexec(SOURCE, module.__dict__)\n"
        "tests = 'import os\\nassert square(3) == 9\\nassert os.getuid() == 65534\\nassert not os.path.exists(\"/etc/passwd\")\\n'\n"
        "print(module.run_program(module.Program(SQUARE, tests), module.Limits(seconds=5)).verdict)\n"
        "print(module.run_program(module.Program('import os\\nwhile True: os.fork()', ''), module.Limits(seconds=1)).verdict)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = Path(folder) / "jail.py"
        copy.write_text(code.JAIL.read_text())
        given = f"JAIL, SOURCE, SQUARE = {str(copy)!r}, {Path(code.__file__).read_text()!r}, {SQUARE!r}\n" + body
        done = subprocess.run([python, "-I", "-S", "-c", program], input=given, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["passed", "error"]


# --- the code of an answer -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("def f(): pass", "def f(): pass"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python\nx = 1\n```\nor better\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nIt prints\n```\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1", "x = 1"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("```python title=a\nx = '`'\n```", "x = '`'\n"),
        ("", ""),
    ],
)
def test_the_code_of_an_answer(answer: str, expected: str) -> None:
    assert take_code(answer) == expected


def test_the_word_for_killed_names_the_signal() -> None:
    found = ran("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert found.verdict == "killed"
    assert signal.SIGSEGV.name in found.reason
