"""The few Linux calls that Python 3.11 lacks, by ctypes, and the system-call filter (seccomp).

Sources: man 2 unshare, mount_setattr, move_mount, pivot_root, seccomp; linux/audit.h and the kernel's system-call tables.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

NOBODY = 65534
CLONE_NEWTIME, CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x80, 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 1 << 18
MS_REMOUNT, MNT_DETACH = 32, 2

_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 24, 36, 38
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE, _OPEN_TREE_CLONE, _CLOEXEC = -100, 0x1000, 0x8000, 1, 0o2000000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_PIVOT_ROOT, _PERF_EVENT_OPEN = {"x86_64": 155, "aarch64": 41}, {"x86_64": 298, "aarch64": 241}

_libc = ctypes.CDLL(None, use_errno=True)


def _done(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` (CLONE_NEW*) for fresh ones."""
    _done(_libc.unshare(flags), f"unshare {flags:#x}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    _done(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), f"mount {kind or source} on {target}")


def umount(target: str) -> None:
    """Detach what is mounted on ``target``; it goes when nothing uses it."""
    _done(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def open_tree(path: str) -> int:
    """A detached copy of the mounts at ``path`` and below, as a file descriptor for `move_mount`."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _AT_RECURSIVE | _CLOEXEC)
    return _done(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), f"open_tree {path}")


def restrict(tree: int, flags: int) -> None:
    """Set the MS_* ``flags`` (read-only, no set-uid, no devices, no programs) on the mount ``tree`` and all below it."""
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    call = _libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes)))
    _done(call, "mount_setattr")


def move_mount(tree: int, target: str) -> None:
    """Attach what `open_tree` copied at ``target``, and close it."""
    _done(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), ctypes.c_uint(4)), f"move_mount {target}")
    os.close(tree)


def pivot_root(new: str) -> None:
    """Make the mount at ``new`` the root directory and let the old root go."""
    os.chdir(new)
    _done(_libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    umount(".")
    os.chdir("/")


def _prctl(option: int, value: int, *more: int) -> int:
    words = [ctypes.c_ulong(word) for word in (value, *more, *(0,) * (3 - len(more)))]
    return int(_libc.prctl(option, *words))


def die_with_parent() -> None:
    """SIGKILL this process when its parent ends."""
    _done(_prctl(_PDEATHSIG, 9), "prctl PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _done(_prctl(_SUBREAPER, 1), "prctl SUBREAPER")


def own_proc_files(yes: bool) -> None:
    """Whether /proc/self belongs to this user (dumpable) or to root; when not, no equal may read or trace this process."""
    _done(_prctl(_DUMPABLE, int(yes)), "prctl DUMPABLE")


def drop_privileges() -> None:
    """No capability can come back through exec, and no set-uid program raises anything."""
    for capability in range(64):
        _prctl(_CAPBSET_DROP, capability)  # fails where it was never held: as good as dropped
    _done(_prctl(_NO_NEW_PRIVS, 1), "prctl NO_NEW_PRIVS")


class TaskClock:
    """Processor time of this process and of all it starts from now on, of those too that ended and nobody waited for.

    A software counter of the kernel (perf_event_open(2), task clock, inherited). Raises OSError where it may not be used: by
    ``kernel.perf_event_paranoid`` above 2, or under another filter.
    """

    def __init__(self) -> None:
        counted = struct.pack(
            "<IIQ24xQ80x", 1, 128, 1, 1 << 1 | 1 << 5 | 1 << 6
        )  # inherited; not the kernel's own, nor a hypervisor's
        number = _PERF_EVENT_OPEN.get(platform.machine(), -1)
        self._handle = _done(_libc.syscall(number, counted, 0, -1, -1, ctypes.c_ulong(8)), "perf_event_open")

    def seconds(self) -> float:
        """So far."""
        (nanoseconds,) = struct.unpack("<Q", os.read(self._handle, 8))
        return float(nanoseconds) / 1e9


# --- the filter -----------------------------------------------------------------------------------------------------------------

# What is allowed: every call of the lists below (they end with Linux 5.17) but those named as refused or absent, which are the
# ones that the container engines' default profile keeps for itself and a few more. A call that is newer than the lists is
# answered ENOSYS.

#: Last number of the old part of the lists on (x86_64, aarch64); first and last of the part that all architectures share.
_OLD, _SHARED = (334, 294), (424, 450)
#: System calls refused with EPERM: numbers on (x86_64, aarch64); -1 where there is none.
_REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "personality": (135, 92),
    "uselib": (134, -1),
    "ustat": (136, -1),
    "sysfs": (139, -1),
    "_sysctl": (156, -1),
    "create_module": (174, -1),
    "get_kernel_syms": (177, -1),
    "query_module": (178, -1),
    "nfsservctl": (180, 42),
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy_home_node": (450, 450),
}
#: Answered ENOSYS, so that programs fall back: memory no limit counts, flags a filter cannot read, a second door to every call.
_ABSENT = {"clone3": (435, 435), "memfd_create": (319, 279), "memfd_secret": (447, 447), "io_uring_setup": (425, 425),
           "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0)}  # fmt: skip
_CLONE, _SOCKET, _SOCKETPAIR, _IOCTL = (56, 220), (41, 198), (53, 199), (16, 29)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink: no packet, vsock, crypto or bluetooth sockets
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into somebody's terminal
_NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


def filter_program() -> bytes:
    """The filter as BPF instructions for this machine; empty where the architecture has no table here."""
    if platform.machine() not in _ARCHITECTURES:
        return b""
    column, audit = _ARCHITECTURES[platform.machine()]
    code: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if column == 0:  # x86_64: the x32 numbers are a second door to the same calls
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for table, errno in ((_REFUSED, _EPERM), (_ABSENT, _ENOSYS)):
        for numbers in table.values():
            if numbers[column] >= 0:
                code += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERROR | errno)]
    code += [(_AT_LEAST, 0, 3, _OLD[column] + 1), (_AT_LEAST, 0, 1, _SHARED[0]), (_AT_LEAST, 0, 1, _SHARED[1] + 1)]
    code.append((_RETURN, 0, 0, _ERROR | _ENOSYS))
    words: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _ERROR | _EPERM)]
    code += [(_EQUAL, 0, len(words) + 1, _CLONE[column]), *words, (_RETURN, 0, 0, _ALLOW)]
    pair: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, 16), (_EQUAL, 1, 0, 1), (_RETURN, 0, 0, _ERROR | _EAFNOSUPPORT)]
    code += [(_EQUAL, 0, len(pair) + 1, _SOCKETPAIR[column]), *pair, (_RETURN, 0, 0, _ALLOW)]
    words = [(_LOAD, 0, 0, 16), *((_EQUAL, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES))]
    code += [
        (_EQUAL, 0, len(words) + 2, _SOCKET[column]),
        *words,
        (_RETURN, 0, 0, _ERROR | _EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    words = [(_LOAD, 0, 0, 24), *((_EQUAL, len(_TERMINAL) - i, 0, request) for i, request in enumerate(_TERMINAL))]
    code += [(_EQUAL, 0, len(words) + 2, _IOCTL[column]), *words, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | _EPERM)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install_filter(program: bytes) -> None:
    """Put ``program`` on this process and all it starts; needs no-new-privileges. An empty one is not a filter."""
    if program:
        buffer = ctypes.create_string_buffer(program, len(program))
        header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
        _done(_prctl(_SECCOMP, 2, ctypes.addressof(header)), "seccomp")


def map_to_nobody(flags: int) -> None:
    """Enter a user namespace in which this process's user is 65534 (nobody), with the other namespaces of ``flags``."""
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
