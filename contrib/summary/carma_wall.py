# SPDX-License-Identifier: Apache-2.0
"""The kernel's part in keeping a user's files from a traced script.

carma_overlay answers Python's own functions. A C library or a child process
asks the kernel, so the kernel is told to refuse every write outside one folder.
Two means, both without privileges, both used where the kernel has them:

- a mount namespace, in which all mounts are read-only;
- Landlock (Linux 5.13), which knows folders and also covers what is mounted later.
"""

import contextlib
import ctypes
import os
import re
import signal
import struct
import time

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
# Options that a mount keeps; the kernel refuses to drop them in a user namespace.
OPTIONS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21,
           "nosymfollow": 256}
NO_NEW_PRIVS, DEATH_SIGNAL, CHILD_SUBREAPER = 38, 1, 36  # prctl
# Landlock: system calls, which have these numbers on every architecture, and rights by the ABI that brought them.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
WRITE_FILE, REFER, TRUNCATE = 1 << 1, 1 << 13, 1 << 14
CHANGES = WRITE_FILE | sum(1 << n for n in range(4, 13))  # removing and making of every kind
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts")
# File systems of the kernel's own, which keep no file of a user.
PSEUDO = frozenset(("proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "securityfs", "debugfs", "tracefs",
                    "pstore", "bpf", "binfmt_misc", "configfs", "efivarfs", "autofs", "nsfs", "rpc_pipefs",
                    "fusectl", "hugetlbfs", "selinuxfs"))

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source, target, kind=None, flags=0):
    text = [None if s is None else os.fsencode(s) for s in (source, target, kind)]
    call("mount", *text, ctypes.c_ulong(flags), None)


def dies_with_parent():
    libc.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def adopts_orphans():
    """Makes processes whose parent has ended children of this one, whatever session they are in."""
    libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children():
    """Ends all children, and theirs, which become children of this process one after the other."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
            for pid in f.read().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)  # the list may have left one out
        except ChildProcessError:
            return
        if not ended:
            time.sleep(0.01)


def is_root():
    """Whether this is root of the machine, not of a container's users."""
    with open("/proc/self/uid_map", encoding="ascii") as f:
        return os.geteuid() == 0 and f.read().split() == ["0", "0", "4294967295"]


def mounts():
    """Mount points, their types and the flags to keep, parents first."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            words = line.split(" ")
            at = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), words[4])
            flags = sum(OPTIONS.get(o, 0) for o in words[5].split(","))
            yield at, words[words.index("-") + 1], flags


def namespace(folder):
    """A mount namespace in which only folder and an own /dev/shm can be written."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 or libc.unshare(CLONE_NEWNS) != 0:
        call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as f:
                f.write(line)
    mount(None, "/", None, MS_REC | MS_SLAVE)  # file systems that are mounted on demand still appear
    mount(folder, folder, None, MS_BIND)
    shared_memory(os.path.join(folder, "shm"))
    for at, kind, flags in list(mounts()):
        if at in (folder, "/dev/shm"):
            continue
        try:
            mount(None, at, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
        except OSError:
            if kind not in PSEUDO and os.access(at, os.W_OK):
                raise


def shared_memory(old):
    """An own /dev/shm, for semaphores; what was there can be read, through links."""
    if not os.path.isdir("/dev/shm"):
        return
    os.mkdir(old)
    mount("/dev/shm", old, None, MS_BIND)
    mount("tmpfs", "/dev/shm", "tmpfs", OPTIONS["nosuid"] | OPTIONS["nodev"])
    for name in os.listdir(old):
        os.symlink(os.path.join(old, name), os.path.join("/dev/shm", name))


def landlock(writable):
    """Refuses all changes of files outside the folders, for this process and its children."""
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        raise OSError(ctypes.get_errno(), "this kernel has no Landlock")
    handled = CHANGES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("Q", handled)
    rules = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        for path, rights in [(p, handled) for p in writable] + [(p, WRITE_FILE | TRUNCATE) for p in DEVICES]:
            with contextlib.suppress(FileNotFoundError):
                at = os.open(path, os.O_PATH | os.O_CLOEXEC)
                if libc.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", rights & handled, at), 0) != 0:
                    raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
                os.close(at)
        call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
        if libc.syscall(RESTRICT_SELF, rules, 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    finally:
        os.close(rules)


def build(folder):
    """Builds what walls the kernel has around this process; returns their names."""
    have, writable = [], [folder]
    with contextlib.suppress(OSError):
        namespace(folder)
        have.append("namespace")
        writable.append("/dev/shm")
    with contextlib.suppress(OSError):
        landlock(writable)
        have.append("landlock")
    return have
