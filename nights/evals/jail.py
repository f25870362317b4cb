"""nights/evals: the other side of `code`: shuts itself in, and runs one program there. A script of the standard library alone.

Started as `python -I -S -B jail.py SETUP JOB VERDICT STATUS` by the interpreter under the environment (no packages of ours are in it), with
an empty environment and nothing open but the standard three and these descriptors. It never imports the project: what runs here is hostile.

    launcher   reads SETUP, enters new namespaces (user, unless it is root; mount, network, process, IPC, host name)
      init     process 1 of the new process namespace: whatever is left of the program dies with it. Builds a root of its own: the
               interpreter and system libraries read-only, /dev/null, /dev/zero, /dev/urandom, and a small /tmp in memory
        child  drops to a user that owns nothing, sets its limits and the filter of system calls, becomes a fresh interpreter that
               reads JOB: first the code, then the tests, and writes the word that stands behind the tests to VERDICT when they passed

STATUS tells the parent what isolation there is, or why there is none.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
MS_NOATIME, MS_NODIRATIME, MS_RELATIME, ST_RELATIME = 1024, 2048, 1 << 21, 4096
MNT_DETACH, PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_DUMPABLE = 2, 1, 38, 22, 4
EPERM, ENOSYS = 1, 38
SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
"""What an interpreter needs beside its own folder. No /usr/bin: there is no shell to call."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

# Numbers of system calls: x86_64, aarch64 (None: not there).
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEVER: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "open_by_handle_at": (304, 265), "setsid": (112, 157), "setpgid": (109, 154), "pidfd_getfd": (438, 438),
    "fsopen": (430, 430), "open_tree": (428, 428), "move_mount": (429, 429), "mount_setattr": (442, 442),
}  # fmt: skip
"""`setsid`, `setpgid`: a process that left its group would outlive the kill of the group."""
ALONE: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "pidfd_send_signal": (424, 424), "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261), "setpriority": (141, 140),
}  # fmt: skip
"""Besides, where no namespace keeps the program from the other processes of this user."""
CLONE, CLONE3, CLONE_THREAD = (56, 220), (435, 435), 0x10000
NAMESPACES = NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | 0x2000000
"""With what `clone` would do what `unshare` may not. `clone3` says that it is not there, as on an old kernel: no filter sees its flags."""


class NoIsolation(Exception):
    """This machine does not let us; the message says what it refused."""


libc = ctypes.CDLL(None, use_errno=True)


def call(what: str, result: int) -> None:
    if result < 0:
        raise NoIsolation(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def c(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    call(f"mount {target}", libc.mount(c(source), c(target), c(kind), ctypes.c_ulong(flags), c(data)))


# --- namespaces ----------------------------------------------------------------------------------------------------------------------


def enter() -> bool:
    """New namespaces for the processes that come; whether this is the machine's root. Raises NoIsolation."""
    if sys.platform != "linux":
        raise NoIsolation("namespaces are Linux's")
    kinds = NEWNS | NEWNET | NEWPID | NEWIPC | NEWUTS
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and libc.unshare(kinds) == 0:
        return True
    call("unshare", libc.unshare(kinds | NEWUSER))
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"65534 {uid} 1"), ("gid_map", f"65534 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        raise NoIsolation(f"user namespace: {error.strerror}") from None
    return False


def bind(source: str, root: str) -> None:
    """Show `source` read-only at the same path under `root`; a link stays a link."""
    target = root + source
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    if source in DEVICES:
        return
    # A mount that came from outside keeps the restrictions that it had: the kernel refuses to lift them.
    had = os.statvfs(target).f_flag
    kept = had & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME) | (MS_RELATIME if had & ST_RELATIME else 0)
    mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept | MS_NOSUID | MS_NODEV)


def own_root(root: str, show: list[str], room: int) -> None:
    """Exchange the file system for one of our own. Raises NoIsolation."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
    try:
        for path in sorted({os.path.normpath(path) for path in (*show, *SYSTEM, *DEVICES)}):
            covered = any(path.startswith(f"{other.rstrip('/')}/") for other in show)
            if os.path.lexists(path) and not covered:
                bind(path, root)
        os.makedirs(f"{root}/tmp")
        mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={room},mode=1777,nr_inodes=4096")
        mount(None, root, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    except OSError as error:
        raise NoIsolation(f"own root: {error}") from None
    os.chdir(root)
    call("pivot_root", libc.syscall({"x86_64": 155, "aarch64": 41}[os.uname().machine], b".", b"."))
    call("umount", libc.umount2(b".", MNT_DETACH))
    os.chdir("/tmp")


def drop(uid: int) -> None:
    """From the machine's root to a user that owns nothing and that no other process has: limits count by user."""
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError:  # a container's root may have no such user
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


# --- limits --------------------------------------------------------------------------------------------------------------------------


def limit(limits: dict[str, int]) -> None:
    """Of the program and all that it starts, each for itself; a limit that is lower already stays."""
    for name, value, last in (
        (resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1),  # a signal that says what it is, and then one that cannot be ignored
        (resource.RLIMIT_AS, limits["memory"], limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file"], limits["file"]),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        hard = resource.getrlimit(name)[1]
        most = last if hard == resource.RLIM_INFINITY else min(last, hard)
        try:
            resource.setrlimit(name, (min(value, most), most))
        except (ValueError, OSError):
            if sys.platform == "linux":
                raise  # other systems do not have all of them


def filter_calls(*, alone: bool) -> None:
    """Refuse system calls from here on: no socket of any kind, no look into other processes. Raises NoIsolation."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in ARCHES:
        raise NoIsolation(f"a filter of system calls: not known for {machine}")
    column = 0 if machine == "x86_64" else 1
    refused = [numbers[column] for numbers in (*NEVER.values(), *(ALONE.values() if alone else ()))]

    def line(code: int, yes: int, no: int, k: int) -> bytes:
        return struct.pack("<HBBI", code, yes, no, k)

    load, equal, at_least, any_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | EPERM, 0x80000000
    code = [line(load, 0, 0, 4), line(equal, 1, 0, ARCHES[machine]), line(end, 0, 0, kill), line(load, 0, 0, 0)]
    if machine == "x86_64":
        code += [line(at_least, 0, 1, 0x40000000), line(end, 0, 0, refuse)]  # the x32 names of the same calls
    for number in refused:
        if number is not None:
            code += [line(equal, 0, 1, number), line(end, 0, 0, refuse)]
    code += [line(equal, 0, 1, CLONE3[column]), line(end, 0, 0, 0x00050000 | ENOSYS)]
    flags = [line(load, 0, 0, 16), line(any_bit, 0, 1, NAMESPACES), line(end, 0, 0, refuse)]
    if alone:
        flags += [line(any_bit, 1, 0, CLONE_THREAD), line(end, 0, 0, refuse)]
    code += [line(equal, 0, len(flags), CLONE[column]), *flags]
    code.append(line(end, 0, 0, allow))
    blob = b"".join(code)
    held = ctypes.create_string_buffer(blob, len(blob))

    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(code), ctypes.addressof(held))
    call("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    call("a filter of system calls", libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0))


# --- the program ---------------------------------------------------------------------------------------------------------------------

CHILD = r"""
import os, sys

def _nightbatch():
    job, verdict = int(sys.argv[1]), int(sys.argv[2])
    read, write, leave = os.read, os.write, os._exit
    os.set_inheritable(job, False)
    os.set_inheritable(verdict, False)
    sys.argv[:] = ["program"]

    def frame():
        def exactly(count):
            data = b""
            while len(data) < count:
                piece = read(job, count - len(data))
                if not piece:
                    leave(70)
                data += piece
            return data
        return exactly(int.from_bytes(exactly(8), "big"))

    space = {"__name__": "__main__", "__builtins__": __builtins__}

    def ended(stage, error):
        name = type(error).__name__
        try:
            text = str(error)[:300]
        except BaseException:
            text = ""
        number = 0
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in ("code.py", "tests.py"):
                number = trace.tb_lineno
                place = trace.tb_frame.f_code.co_filename
            trace = trace.tb_next
        where = "%s:%d" % (place, number) if number else ""
        said = "%s\n%s\n%s\n%s" % (stage, name, where, text.replace("\n", " "))
        write(verdict, said.encode("utf-8", "replace")[:2000])
        leave(1)

    code = frame().decode()
    try:
        exec(compile(code, "code.py", "exec"), space)
    except BaseException as error:
        ended("code", error)
    # Only now: a program that ends or reports itself while it is loaded has never seen the word.
    tests, word = frame().decode(), frame()
    try:
        exec(compile(tests, "tests.py", "exec"), space)
    except BaseException as error:
        ended("tests", error)
    write(verdict, word)
    leave(0)

_nightbatch()
"""


def program(setup: dict[str, Any], job: int, verdict: int, *, alone: bool, filtered: bool) -> None:
    """Become the interpreter that runs it. Returns never."""
    os.set_inheritable(job, True)
    os.set_inheritable(verdict, True)
    limit(setup["limits"])
    if filtered:
        filter_calls(alone=alone)
    os.execve(setup["python"], ["python", "-I", "-S", "-B", "-X", "utf8", "-c", CHILD, str(job), str(verdict)], {})


def reap(pid: int) -> int:
    """Wait for `pid`, and for every orphan that comes in between; its exit status as a shell's."""
    while True:
        found, status = os.wait()
        if found == pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def confined(setup: dict[str, Any], job: int, verdict: int, status: int) -> int:
    """In namespaces of its own. Raises NoIsolation before anything has run."""
    root = enter()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            own_root(setup["root"], setup["show"], setup["limits"]["file"])
            if root:
                drop(setup["uid"])
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user forgets it
            libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
            child = os.fork()
            if child == 0:
                say(status, {"isolation": "full"})
                program(setup, job, verdict, alone=False, filtered=True)
        except NoIsolation as error:
            os.write(told, str(error).encode())
            os._exit(71)
        except BaseException as error:
            os.write(told, repr(error).encode())
            os._exit(71)
        for handle in (told, job, verdict, status):
            os.close(handle)
        os._exit(reap(child))
    os.close(told)
    os.close(verdict)
    refused = b""
    while piece := os.read(ready, 1000):
        refused += piece
    code = reap(pid)
    if refused:
        raise NoIsolation(refused.decode(errors="replace"))
    return code


def unconfined(setup: dict[str, Any], job: int, verdict: int, status: int, *, filtered: bool) -> int:
    """As this user, among its files: without network where the filter works, with limits in any case."""
    os.chdir(setup["root"])
    pid = os.fork()
    if pid == 0:
        try:
            say(status, {"isolation": "network" if filtered else "limits"})
            program(setup, job, verdict, alone=True, filtered=filtered)
        except BaseException as error:
            say(status, {"refused": str(error)})
            os._exit(71)
    os.close(verdict)
    return reap(pid)


def say(status: int, what: dict[str, str]) -> None:
    os.write(status, json.dumps(what).encode() + b"\n")


def main() -> int:
    setup_fd, job, verdict, status = map(int, sys.argv[1:5])
    for handle in (job, verdict, status):
        os.set_inheritable(handle, False)
    with os.fdopen(setup_fd, "rb") as file:
        setup = json.loads(file.read())
    wanted = setup["isolation"]
    if wanted == "full":
        # Whether namespaces are to be had is found in a process that may spoil itself with half of them.
        try:
            return confined(setup, job, verdict, status)
        except NoIsolation as error:
            say(status, {"refused": str(error)})
            return 71
    return unconfined(setup, job, verdict, status, filtered=wanted == "network")


if __name__ == "__main__":
    os._exit(main())
