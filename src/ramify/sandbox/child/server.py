"""The sandbox server: started once per host process, it leaves the host's file system and privileges and forks one box per
request.

It is a small program with one thread, started by exec: the host interpreter, with its threads and memory, never forks itself, and
a box inherits nothing of it. The server is process 1 of a process namespace of its own:
when it ends, the kernel ends every box with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from typing import Any

from ramify.sandbox.child import box, kernel

_TOP = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ETC_FOLDERS = ("alternatives", "ssl/certs", "pki/tls/certs", "fonts", "ld.so.conf.d")
_ETC_FILES = ("ld.so.cache", "ld.so.conf", "localtime", "resolv.conf", "services", "protocols", "mime.types", "ssl/openssl.cnf")
_ETC_TEXT = {
    "passwd": "root:x:0:0:root:/:/bin/false\nnobody:x:65534:65534:nobody:/box/work:/bin/sh\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def main(descriptor: int, config: str) -> None:
    """Serve requests on socket ``descriptor``; ``config`` is the JSON object `ramify.sandbox.launch` writes."""
    server = socket.socket(fileno=descriptor)
    options = json.loads(config)
    os.umask(0o022)
    if not options["namespaces"]:
        base = tempfile.mkdtemp(prefix=f"ramify-sandbox-{os.getppid()}-")  # whose it is
        try:
            _serve(server, {**options, "base": base})
        finally:
            shutil.rmtree(base, ignore_errors=True)
        return
    try:
        _own_namespaces()
    except OSError as error:
        _send(server, {"failed": str(error)})
        return
    child = os.fork()
    if child:
        server.close()
        os.waitpid(child, 0)
        return
    try:
        _new_root(options)
        _become_nobody()
        kernel.die_with_parent()  # last: a change of user forgets it
    except OSError as error:
        _send(server, {"failed": str(error)})
        os._exit(1)
    _serve(server, options)
    os._exit(0)


def _send(server: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        server.send(json.dumps(message).encode())


def _own_namespaces() -> None:
    """Fresh mount and process namespaces: as root directly, else inside a user namespace of our own."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID
    if os.geteuid() == 0:
        try:
            kernel.unshare(flags)
            return
        except PermissionError:  # root of a container without the right to
            pass
    kernel.map_to_nobody(flags)


def _new_root(options: dict[str, Any]) -> None:
    """Leave the host's file system: a small read-only root with the system's programs, Python and nothing else of the host."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    trees = _copies(options)  # taken before anything covers their sources
    kernel.mount("ramify", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4m,nr_inodes=2000,mode=755")
    os.chdir("/tmp")
    for folder in ("proc", "dev/shm", "etc", "tmp", "box", "ramify", "var"):
        os.makedirs(folder)
    os.symlink("/tmp", "var/tmp")
    for name in _ETC_FILES:
        with contextlib.suppress(OSError), open(f"/etc/{name}", "rb") as source:
            _write(f"etc/{name}", source.read(1 << 20))
    for name, text in _ETC_TEXT.items():
        _write(f"etc/{name}", text.encode())
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{target}", f"dev/{name}")
    for path in _TOP:
        if os.path.islink(path):
            os.symlink(os.readlink(path), path[1:])
    python = {sys.base_prefix, sys.prefix, sys.exec_prefix}  # holds no doors, and is read all the time
    given = {shown for path in options["readable"] if path not in python for shown in (path, os.path.realpath(path))}
    for target, tree in trees:
        kernel.move_mount(tree, _mount_point(target))
        if target in given:
            _cover(target)
    # before the old root goes: a user may mount /proc only where one is seen in full
    kernel.mount("proc", "proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.pivot_root("/tmp")
    read_only = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY
    kernel.mount("none", "/", None, read_only | kernel.MS_NOSUID | kernel.MS_NODEV)


def _copies(options: dict[str, Any]) -> list[tuple[str, int]]:
    """(place in the new root, detached read-only mount) of everything shown from the host, parents before children."""
    wanted = {path: path for path in _TOP if os.path.isdir(path) and not os.path.islink(path)}
    for path in options["readable"]:
        for target in {path, os.path.realpath(path)}:
            if not any(target == shown or target.startswith(shown + "/") for shown in wanted):
                wanted[target] = path
    wanted |= {f"/etc/{name}": f"/etc/{name}" for name in _ETC_FOLDERS if os.path.isdir(f"/etc/{name}")}
    wanted["/ramify"] = options["inside"]
    trees = []
    for target, source in sorted(wanted.items()):
        tree = kernel.open_tree(os.path.realpath(source))
        kernel.restrict(tree, kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV)
        trees.append((target, tree))
    for name in _DEVICES:
        if not stat.S_ISCHR(os.stat(f"/dev/{name}").st_mode):
            continue
        tree = kernel.open_tree(f"/dev/{name}")
        kernel.restrict(tree, kernel.MS_NOSUID | kernel.MS_NOEXEC)
        trees.append((f"/dev/{name}", tree))
    return trees


def _cover(folder: str) -> None:
    """Put a read-only overlay over a folder shown from the host: the files are the host's, but a socket or pipe in it leads
    nowhere, and a lock is not a lock of the host's file. Left out where the kernel refuses,
    and where more is mounted below, which it would hide."""
    with open("/proc/self/mountinfo") as mounts:
        below = any(line.split()[4].startswith(f"/tmp{folder}/") for line in mounts)
    if below or not os.path.isdir(folder[1:]):
        return
    os.chdir(folder[1:])
    with contextlib.suppress(OSError):
        kernel.mount("ramify", ".", "overlay", kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV, "lowerdir=.:/tmp/box")
    os.chdir("/tmp")


def _mount_point(target: str) -> str:
    path = target.lstrip("/")
    if target.startswith("/dev/"):
        _write(path, b"")
    else:
        with contextlib.suppress(FileExistsError):
            os.makedirs(path)
    return path


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def _become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(*(kernel.NOBODY,) * 3)
        os.setresuid(*(kernel.NOBODY,) * 3)
        kernel.own_proc_files(True)  # a box writes its own user map there


def _serve(server: socket.socket, options: dict[str, Any]) -> None:
    """Fork a box for each request until the host closes the socket."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended boxes are reaped by the kernel
    program = kernel.filter_program()
    _send(server, {"ready": True})
    while True:
        data, handles, _, _ = socket.recv_fds(server, 65536, 4)
        if not data:
            return
        try:
            child = os.fork()
        except OSError:  # too many processes on this machine: the host sees this box end, the others live on
            child = -1
        if child == 0:
            server.close()
            try:
                box.serve(json.loads(data), socket.socket(fileno=handles[0]), options, program)
            except BaseException as error:
                print(f"sandbox: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                os._exit(0)
        for handle in handles:
            os.close(handle)
