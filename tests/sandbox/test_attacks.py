"""What hostile code tries from inside, each test named after the attack; passing means contained."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tight import SHORT, cut_off

from ramify.base.errors import UserError
from ramify.sandbox.child.kernel import TaskClock
from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Outcome

Attack = Callable[..., Outcome]

# Try every call of a list and print those that worked.
TRY = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, call):
    try: result = call()
    except (OSError, RuntimeError): return
    if type(result) is not int or result >= 0: print("WORKED", name, result)
"""


def processes_named(marker: str) -> list[int]:
    """Host processes whose command line or environment names ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


# --- secrets --------------------------------------------------------------------------------------------------------------------


def test_secrets_in_the_environment(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-5510")
    found = attack(
        "import os, glob\n"
        "for path in ['/proc/self/environ', *glob.glob('/proc/[0-9]*/environ')]:\n"
        "    try: print(open(path).read())\n"
        "    except OSError: pass\n"
        "print(os.environ)"
    )
    assert found.ok
    assert "PATH" in found.text
    assert "canary" not in found.text
    assert "OPENAI" not in found.text


def test_reading_home_and_run_folders(attack: Attack, tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("canary-5511")
    paths = [
        "~/.ssh",
        "~/.bashrc",
        "~/.config",
        str(tmp_path),
        str(tmp_path / "run.db"),
        str(Path.home() / ".ssh"),
        os.getcwd(),
        "/home",
        "/var/log",
    ]
    found = attack(
        "import os, sys\n"
        f"for place in {paths!r}:\n"
        "    path = os.path.expanduser(place)\n"
        "    if os.path.isfile(path) or (os.path.isdir(path) and os.path.realpath(path) != os.getcwd() and os.listdir(path)):\n"
        "        print('FOUND', path, os.listdir(path) if os.path.isdir(path) else '')"
    )
    shown = {
        str(Path(prefix).relative_to(os.getcwd())).split("/")[0]
        for prefix in _prefixes()
        if Path(prefix).is_relative_to(os.getcwd())
    }
    left = [line for line in found.text.splitlines() if line != f"FOUND {os.getcwd()} {sorted(shown)!r}"]
    assert found.ok
    assert left == []


def _prefixes() -> set[str]:
    import sys

    return {sys.prefix, sys.base_prefix}


def test_reading_etc_shadow(attack: Attack) -> None:
    found = attack("import os; print(sorted(os.listdir('/etc')), open('/etc/passwd').read()); open('/etc/shadow')")
    assert "FileNotFoundError" in found.error_text
    assert "ssh" not in found.text
    assert found.text.count("\n") == 3  # root and nobody


def test_proc_of_the_parent(attack: Attack) -> None:
    found = attack(
        "import os\n"
        "print(sorted(p for p in os.listdir('/proc') if p.isdigit()))\n"
        "for name in ('environ', 'mem', 'maps', 'root', 'cwd', 'exe', 'fd', 'io', 'auxv', 'stack'):\n"
        "    try: print('READ', name, os.listdir(f'/proc/1/{name}') if name in ('root', 'fd') else open(f'/proc/1/{name}', "
        "'rb').read(1))\n"
        "    except OSError: pass\n"
        "os.getppid() == 1 or print('parent', os.getppid())"
    )
    assert found.text.strip() == "['1', '2']"


def test_inherited_descriptors(attack: Attack) -> None:
    secret = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        found = attack("import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2])")
    finally:
        os.close(secret)
    assert found.text.strip() in ("[]", "['/proc/2/fd']") or "FileNotFoundError" in found.error_text
    assert "hostname" not in found.text


# --- network --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server


def test_tcp_to_the_outside(attack: Attack) -> None:
    found = attack("import socket; socket.create_connection(('1.1.1.1', 53), 2)")
    assert "Network is unreachable" in found.error_text


def test_udp_to_the_outside(attack: Attack) -> None:
    found = attack("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))")
    assert "Network is unreachable" in found.error_text


def test_dns(attack: Attack) -> None:
    found = attack("import socket; socket.getaddrinfo('example.com', 80)")
    assert "gaierror" in found.error_text


@pytest.mark.parametrize("network", [False, "loopback"])
def test_a_service_on_the_hosts_loopback(attack: Attack, listener: socket.socket, network: Any) -> None:
    port = listener.getsockname()[1]
    found = attack(f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)", network=network)
    assert not found.ok
    assert "Network is unreachable" in found.error_text or (network and "Connection refused" in found.error_text)


def test_an_abstract_unix_socket_of_the_host(attack: Attack) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0ramify-attack-{os.getpid()}")
        server.listen()
        found = attack(f"import socket; socket.socket(socket.AF_UNIX).connect('\\0ramify-attack-{os.getpid()}')")
    assert "Connection refused" in found.error_text


def test_other_socket_families(attack: Attack) -> None:
    """vsock reaches a hypervisor, packet sockets the wire, alg the kernel's crypto."""
    code = TRY + "for family in (17, 38, 40, 31, 44): attempt(family, lambda: socket.socket(family, socket.SOCK_STREAM).fileno())"
    found = attack(code)
    assert found.ok
    assert found.text == ""


# --- exhaustion -----------------------------------------------------------------------------------------------------------------


def test_fork_bomb(attack: Attack) -> None:
    found = attack("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", limits=replace(SHORT, seconds=0.5))
    assert found.reason == "timeout"


def test_thread_bomb(attack: Attack) -> None:
    found = attack(
        "import threading, time\nfor _ in range(500): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    )
    assert "can't start new thread" in found.error_text


def test_memory_bomb(attack: Attack) -> None:
    found = attack("x = bytearray(1 << 40)")
    assert "MemoryError" in found.error_text
    found = attack("x = []\nwhile True: x.append(bytearray(1 << 20))")
    assert "MemoryError" in found.error_text


def test_memory_bomb_of_many_processes(attack: Attack) -> None:
    found = attack("import os, time\nfor _ in range(3): os.fork()\nx = bytes(os.urandom(1 << 20)) * 60\ntime.sleep(9)")
    assert found.reason == "memory"
    assert found.memory_bytes > 128 << 20


def test_shared_memory_bomb(attack: Attack) -> None:
    found = attack(
        "import mmap\nkept = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 24); m.write(b'x' * (1 << 24)); kept.append(m)"
    )
    assert found.reason == "memory"
    found = attack(
        TRY + "attempt('memfd', lambda: os.memfd_create('x'))\nattempt('shmget', lambda: libc.shmget(0, 1 << 20, 0o1600))"
    )
    assert found.ok
    assert found.text == ""


def test_shared_pages_that_were_given_back(attack: Attack) -> None:
    """They leave the resident size, not the memory."""
    code = (
        "import mmap, time\n"
        "block = mmap.mmap(-1, 512 << 20)\n"
        "for at in range(0, len(block), 16 << 20):\n"
        "    block[at : at + (16 << 20)] = bytes(16 << 20)\n"
        "    block.madvise(mmap.MADV_DONTNEED)\n"
        "    time.sleep(0.02)\n"
        "print('HELD'); time.sleep(30)"
    )
    found = attack(code)
    assert found.reason == "memory"
    assert "HELD" not in found.text


def test_memory_behind_a_first_thread_that_has_ended(attack: Attack) -> None:
    code = (
        "import ctypes, mmap, threading, time\n"
        "def hold():\n"
        "    time.sleep(0.3)\n"
        "    kept = mmap.mmap(-1, 512 << 20)\n"
        "    for at in range(0, 512 << 20, 16 << 20): kept[at : at + (16 << 20)] = bytes(16 << 20); time.sleep(0.02)\n"
        "    print('HELD', flush=True); time.sleep(30)\n"
        "threading.Thread(target=hold).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    found = attack(code)
    assert found.reason == "memory"
    assert "HELD" not in found.text


def test_memory_of_page_tables(attack: Attack) -> None:
    """One page touched in every 2 MiB of a large sparse mapping costs a page table each."""
    code = (
        "import mmap, time\n"
        "kept = []\n"
        "try:\n"
        "    for _ in range(1 << 10):\n"
        "        block = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)\n"
        "        kept.append(block)\n"
        "        for at in range(0, 4 << 30, 2 << 20): block[at]\n"
        "finally: print('MAPPED', len(kept) * 4, 'GiB', flush=True)"
    )
    found = attack(code)
    assert found.reason in ("memory", "exit", "signal")
    assert found.memory_bytes < SHORT.memory_bytes + (64 << 20)
    assert all(int(line.split()[1]) <= 8 for line in found.text.splitlines())  # 4 KiB of tables for 2 MiB: 16 MiB in all


def test_kernel_memory_of_semaphores_and_requests(attack: Attack) -> None:
    code = TRY + (
        "attempt('semget', lambda: libc.semget(0, 32000, 0o1600))\n"
        "ring = ctypes.c_ulong()\n"
        "attempt('io_setup', lambda: libc.syscall(206 if os.uname().machine == 'x86_64' else 0, 60000, ctypes.byref(ring)))\n"
        "count = 0\n"
        "while count < 100 and libc.inotify_init1(0) >= 0: count += 1\n"
        "print('WORKED inotify', count) if count > 8 else None"
    )
    found = attack(code)
    assert found.ok
    assert found.text == ""


def test_the_kernel_ends_the_command_first_when_memory_is_short(attack: Attack) -> None:
    assert attack("print(open('/proc/self/oom_score_adj').read())").text.split() == ["1000"]


def test_pairs_of_sockets_of_other_families(attack: Attack) -> None:
    found = attack(
        TRY + "attempt('vsock', lambda: socket.socketpair(40, socket.SOCK_STREAM)); socket.socketpair(); print('done')"
    )
    assert found.text == "done\n"


def test_system_calls_that_no_list_knows(attack: Attack) -> None:
    code = TRY + (
        "for number in [*range(337, 424), *range(451, 600), 2000, 1 << 20]:\n"
        "    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 38: print('KNOWN', number)\n"
        "print('done')"
    )
    found = attack(code)
    assert found.text == "done\n"


@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm", "/var/tmp"])
def test_disk_fill(attack: Attack, folder: str) -> None:
    found = attack(f"f = open('{folder}/x', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()")
    assert "No space left on device" in found.error_text


def test_one_huge_file(attack: Attack) -> None:
    found = attack(
        "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()", limits=replace(SHORT, file_bytes=1 << 20)
    )
    assert (found.reason, found.signal) == ("signal", signal.SIGXFSZ) or "File too large" in found.error_text


def test_many_small_files(attack: Attack) -> None:
    found = attack("n = 0\nwhile True:\n    open(f'f{n}', 'w').close(); n += 1; print(n)")
    assert "No space left on device" in found.error_text
    assert int(found.text.split()[-1]) <= 200


def test_a_gigabyte_of_output(attack: Attack) -> None:
    def flood() -> Outcome:
        return attack("import os\nwhile True: os.write(1, b'line\\n' * 100_000)", limits=replace(SHORT, output_bytes=4 << 20))

    flood()  # what a first one imports, starts and adds to the heap of a busy test process is not a part of the measure
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1])
    found = flood()
    with open("/proc/self/statm") as file:
        after = int(file.read().split()[1])
    assert found.reason == "output"
    assert len(found.stdout) == 4 << 20
    assert (after - before) * os.sysconf("SC_PAGE_SIZE") < 16 << 20


@pytest.mark.parametrize("stream", [1, 2])
def test_output_without_a_newline(attack: Attack, stream: int) -> None:
    found = attack(f"import os\nwhile True: os.write({stream}, b'x' * 4096)")
    assert found.reason == "output"
    assert len(found.stdout) + len(found.stderr) == 1 << 20


def test_many_open_files_and_pipes(attack: Attack) -> None:
    found = attack("import os\nkept = []\nwhile True: kept.append(os.pipe())")
    assert "Too many open files" in found.error_text


def test_raising_its_own_limits(attack: Attack) -> None:
    code = (
        "import resource as r\n"
        "for kind in (r.RLIMIT_DATA, r.RLIMIT_NPROC, r.RLIMIT_FSIZE, r.RLIMIT_NOFILE, r.RLIMIT_CORE):\n"
        "    try: r.setrlimit(kind, (r.RLIM_INFINITY, r.RLIM_INFINITY)); print('RAISED', kind)\n"
        "    except (ValueError, OSError): pass"
    )
    found = attack(code)
    assert found.ok
    assert found.text == ""


def test_burning_processor_time_in_many_processes(attack: Attack) -> None:
    found = attack("import os\nfor _ in range(3): os.fork()\nwhile True: pass", limits=replace(SHORT, cpu_seconds=0.3))
    assert found.reason == "cpu"


def counts() -> bool:
    """Whether the kernel lets a process count the time of what it starts."""
    try:
        TaskClock()
    except OSError:
        return False
    return True


ORPHANS = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "for _ in range(40):\n"
    "    if os.fork() == 0:\n"
    "        end = time.process_time() + 0.02\n"
    "        while time.process_time() < end: pass\n"
    "        os._exit(0)\n"
    "    try: os.waitpid(-1, 0)\n"  # until it has ended, which leaves no time of its behind
    "    except ChildProcessError: pass\n"
)


@pytest.mark.slow
def test_processor_time_of_children_that_nobody_waits_for(attack: Attack) -> None:
    found = attack(ORPHANS)
    assert found.ok
    assert found.cpu_seconds <= found.seconds * (os.cpu_count() or 1) + 0.1
    if counts():
        assert found.cpu_seconds >= 0.8
        assert attack(ORPHANS + ORPHANS, limits=replace(SHORT, cpu_seconds=0.8)).reason == "cpu"


# --- not ending -----------------------------------------------------------------------------------------------------------------


def test_sleeping_forever(attack: Attack) -> None:
    code = "import time; print('here', flush=True); time.sleep(1e6)"
    found = cut_off(lambda seconds: attack(code, limits=replace(SHORT, seconds=seconds)), 0.3)
    assert found.reason == "timeout"
    assert found.text == "here\n"


def test_ignoring_every_signal(attack: Attack) -> None:
    code = (
        "import signal, time\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: time.sleep(1)"
    )
    assert attack(code, limits=replace(SHORT, seconds=0.3)).reason == "timeout"


def test_stopping_itself(attack: Attack) -> None:
    assert attack("import os; os.kill(os.getpid(), 19)", limits=replace(SHORT, seconds=0.3)).reason == "timeout"


DAEMON = """
import os, sys, time
if os.fork(): {parent}
os.setsid()
if os.fork(): os._exit(0)
for n in (0, 1, 2):
    try: os.close(n)
    except OSError: pass
os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", "{marker}"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parent", "seconds", "reason"), [("time.sleep(0.1); os._exit(0)", 30.0, "exit"), ("time.sleep(99)", 1.0, "timeout")]
)
def test_escape_by_double_fork_and_setsid(attack: Attack, parent: str, seconds: float, reason: str) -> None:
    marker = f"ramify-daemon-{os.getpid()}-{len(parent)}"
    found = attack(DAEMON.format(marker=marker, parent=parent), limits=replace(SHORT, seconds=seconds))
    assert found.reason == reason
    assert processes_named(marker) == []


def test_a_child_that_keeps_the_output_open(attack: Attack) -> None:
    found = attack("import os, time\nif os.fork() == 0: time.sleep(600)\nprint('done', flush=True); os._exit(0)")
    assert (found.reason, found.text) == ("exit", "done\n")


def test_zombies_at_exit(attack: Attack) -> None:
    found = attack("import os\nfor _ in range(5):\n    if os.fork() == 0: os._exit(0)\nprint('done')")
    assert found.ok


# --- other processes ------------------------------------------------------------------------------------------------------------


def test_ptrace_of_the_parent(attack: Attack) -> None:
    code = TRY + (
        "attempt('attach', lambda: libc.ptrace(16, 1, 0, 0))\nattempt('seize', lambda: libc.ptrace(0x4206, 1, 0, 0))\n"
        "buffer = ctypes.create_string_buffer(8)\n"
        "attempt('readv', lambda: libc.process_vm_readv(1, ctypes.byref((ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)), 1, "
        "ctypes.byref((ctypes.c_void_p * 2)(0x400000, 8)), 1, 0))"
    )
    found = attack(code)
    assert found.ok
    assert found.text == ""


def test_signals_to_the_parent_and_to_all(attack: Attack) -> None:
    """Process 1 ignores what its own sends, and -1 names nobody outside: the command continues and this process lives."""
    host = os.getpid()
    found = attack(
        "import os, signal\n"
        f"for target in (1, os.getppid(), {host}, -{host}, -1):\n"
        "    for number in (9, 15, 19):\n"
        "        try: os.kill(target, number)\n"
        "        except OSError: pass\n"
        "print('alive')"
    )
    assert found.text == "alive\n"


def test_process_name_tricks(attack: Attack) -> None:
    """A name full of parentheses and numbers must not hide time from the count."""
    code = (
        "import ctypes, os\n"
        "ctypes.CDLL(None).prctl(15, b') R 0 0 0 0 0 0', 0, 0, 0)\n"
        "while True: pass"
    )  # fmt: skip
    assert attack(code, limits=replace(SHORT, cpu_seconds=0.3)).reason == "cpu"


def test_typing_into_the_hosts_terminal(attack: Attack) -> None:
    master, slave = os.openpty()
    try:
        code = (
            TRY + "import fcntl, termios\nfor fd in (0, 1, 2): attempt('TIOCSTI', lambda: fcntl.ioctl(fd, termios.TIOCSTI, b'x') "
            "and 0)\n"
        )
        found = attack(code + "attempt('tty', lambda: os.open('/dev/tty', os.O_RDWR))")
    finally:
        os.close(master)
        os.close(slave)
    assert found.ok
    assert found.text == ""


# --- escapes --------------------------------------------------------------------------------------------------------------------


def test_writing_to_the_system(attack: Attack) -> None:
    import sys

    paths = ["/", "/usr", "/usr/bin", "/etc", "/ramify", sys.prefix, sys.base_prefix, "/proc/sys/kernel", "/dev", "/box"]
    code = TRY + f"for place in {paths!r}:\n    attempt(place, lambda: os.open(place + '/planted', os.O_CREAT | os.O_WRONLY))\n"
    code += (
        "attempt('overwrite', lambda: os.open('/usr/bin/env', os.O_WRONLY))\nattempt('exe', lambda: os.open('/proc/self/exe', "
        "os.O_WRONLY))"
    )
    found = attack(code)
    assert found.ok
    assert [line for line in found.text.splitlines() if "/box" not in line] == []


def test_mount_chroot_and_namespace_escapes(attack: Attack) -> None:
    code = TRY + (
        "attempt('mount', lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))\n"
        "attempt('umount', lambda: libc.umount2(b'/proc', 2))\nattempt('chroot', lambda: libc.chroot(b'/tmp'))\n"
        "attempt('pivot', lambda: libc.syscall(155, b'.', b'.'))\n"
        "for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000): attempt('unshare', lambda: libc.unshare(flag))\n"
        "attempt('setns', lambda: libc.setns(os.open('/proc/1/ns/mnt', 0), 0))\nattempt('open_tree', lambda: libc.syscall(428, "
        "-100, b'/', 1))\n"
        "attempt('fsopen', lambda: libc.syscall(430, b'tmpfs', 0))\nattempt('clone3', lambda: libc.syscall(435, 0, 0))\n"
        "attempt('clone', lambda: libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0))\n"
        "attempt('handle', lambda: libc.open_by_handle_at(-100, None, 0))"
    )
    found = attack(code)
    assert found.ok
    assert found.text == ""


def test_climbing_out_of_the_root(attack: Attack) -> None:
    found = attack(
        "import os\nos.chdir('/' + '../' * 50)\nprint(os.path.exists('box'), os.path.exists('old_root'), os.path.exists('home'))"
    )
    assert found.text == "True False False\n"


def test_making_devices(attack: Attack) -> None:
    found = attack(
        TRY
        + "attempt('mem', lambda: os.mknod('mem', 0o20666, os.makedev(1, 1)))\nattempt('disk', lambda: os.mknod('d', 0o60666, "
        "65024))"
    )
    assert found.ok
    assert found.text == ""


def test_loading_kernel_modules(attack: Attack) -> None:
    code = TRY + (
        "attempt('init_module', lambda: libc.syscall(175, b'x', 1, b''))\nattempt('finit', lambda: libc.syscall(313, 0, b'', "
        "0))\n"
        "attempt('kexec', lambda: libc.syscall(246, 0, 0, 0, 0))\nattempt('bpf', lambda: libc.syscall(321, 0, 0, 0))\n"
        "attempt('perf', lambda: libc.syscall(298, 0, 0, -1, -1, 0))\nattempt('io_uring', lambda: libc.syscall(425, 8, "
        "ctypes.create_string_buffer(120)))\n"
        "attempt('userfaultfd', lambda: libc.syscall(323, 0))\nattempt('reboot', lambda: libc.reboot(0x1234567))"
    )
    found = attack(code)
    assert found.ok
    assert found.text == ""


def test_raw_memory_and_disks(attack: Attack) -> None:
    code = (
        TRY + "for name in ('/dev/mem', '/dev/kmem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/port', '/proc/kcore', "
        "'/proc/kmsg'):\n"
    )
    found = attack(
        code + "    attempt(name, lambda: os.open(name, os.O_RDONLY))\nattempt('sysrq', lambda: os.open('/proc/sysrq-trigger', "
        "os.O_WRONLY))"
    )
    assert found.ok
    assert found.text == ""


def test_set_uid_programs(attack: Attack) -> None:
    code = (
        "import os, shutil, subprocess\n"
        "shutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o6755)\n"
        "print(subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout.strip())\n"
        "for call in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0])):\n"
        "    try: call(); print('ROOT')\n"
        "    except OSError: pass\n"
        "print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])"
    )
    found = attack(code)
    assert found.text == "65534\n['NoNewPrivs:\\t1\\n']\n"


def test_kernel_keyrings(attack: Attack) -> None:
    found = attack(
        TRY
        + "attempt('add', lambda: libc.syscall(248, b'user', b'k', b'v', 1, -3))\nattempt('ctl', lambda: libc.syscall(250, 0, "
        "-3, 0))"
    )
    assert found.ok
    assert found.text == ""


def test_changing_the_clock(attack: Attack) -> None:
    """Setting the machine's clock fails, and no patch inside reaches the time that counts."""
    before = time.time()
    code = TRY + (
        "import time\n"
        "attempt('settime', lambda: time.clock_settime(time.CLOCK_REALTIME, 0) or 0)\n"
        "attempt('adjtimex', lambda: libc.adjtimex(ctypes.create_string_buffer(208)))\n"
        "time.perf_counter = time.monotonic = time.time = lambda: 0.0\n"
        "end = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass"
    )
    found = attack(code)
    assert found.ok
    assert found.text == ""
    assert found.seconds >= 0.3
    assert found.cpu_seconds >= 0.3
    assert abs(time.time() - before) < 60


def test_core_dumps(attack: Attack) -> None:
    found = attack("import os; os.abort()", returns=["*"])
    assert (found.reason, found.signal, found.files) == ("signal", signal.SIGABRT, {})


# --- files brought back ---------------------------------------------------------------------------------------------------------


def test_links_in_returned_files(attack: Attack) -> None:
    code = (
        "import os\n"
        "os.symlink('/etc/passwd', 'out.txt'); os.symlink('/proc/1/environ', 'env'); os.symlink('/', 'root'); os.symlink('.', "
        "'loop')\n"
        "os.mkdir('d'); os.symlink('../../../../etc', 'd/etc'); open('real', 'w').write('x')"
    )
    found = attack(code, returns=["*", "out.txt", "d/etc/passwd", "root/etc/passwd"])
    assert found.files == {"real": b"x"}
    assert found.refused == dict.fromkeys(("out.txt", "env", "root", "loop", "d/etc"), "a link")


def test_names_that_climb(attack: Attack) -> None:
    """Names come from a listing, never from the code: none climbs, whatever it is called; archives stay bytes."""
    code = (
        "import io, os, tarfile\n"
        "for name in (b'..\\\\evil', b'a\\nb', b'\\xff\\xfe', b'.. ', '\u202e'.encode()): open(name, 'w').close()\n"
        "os.makedirs('...'); open('.../x', 'w').close()\n"
        "with tarfile.open('a.tar', 'w') as tar: tar.addfile(tarfile.TarInfo('../../evil'), io.BytesIO())"
    )
    found = attack(code, returns=["*"])
    assert found.ok, found.error_text
    assert len(found.files) == 7
    assert not [path for path in found.files if path.startswith("/") or ".." in path.split("/")]
    assert not Path("../evil").exists()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\0b", "", "x" * 2000, "\ud800"])
def test_host_paths_that_climb(sandbox: ProcessSandbox, path: str) -> None:
    with pytest.raises(UserError):
        asyncio.run(sandbox.run(["true"], files={path: b"x"}))


def test_special_files_returned(attack: Attack) -> None:
    code = (
        "import os, socket\n"
        "os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('sock')\n"
        "open('sparse', 'w').truncate(10 << 20); open('dark', 'w').close(); os.chmod('dark', 0)"
    )
    found = attack(code, returns=["*"])
    assert set(found.files) == {"dark"}
    assert set(found.refused) == {"fifo", "sock", "sparse"}


def test_folders_too_deep_to_walk(attack: Attack) -> None:
    code = "import os\nfor _ in range(190): os.mkdir('d' * 200); os.chdir('d' * 200)\nopen('bottom', 'w').close()"
    found = attack(code, returns=["*"])
    assert found.reason == "exit"
    assert (found.files, found.refused) == ({}, {})


def test_hard_links_to_system_files(attack: Attack) -> None:
    code = (
        TRY + "attempt('usr', lambda: os.link('/usr/bin/env', 'env') or 0)\nattempt('proc', lambda: os.link('/proc/self/exe', "
        "'exe', follow_symlinks=True) or 0)"
    )
    found = attack(code, returns=["*"])
    assert found.text == ""
    assert found.files == {}


def test_changing_returned_files_from_a_child_that_stays(attack: Attack) -> None:
    code = (
        "import os\n"
        "open('out', 'w').write('x')\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        os.path.lexists('s') and os.unlink('s'); os.symlink('/etc/passwd', 's'); os.replace('s', 'out')\n"
    )
    found = attack(code, returns=["out"])
    assert found.reason == "exit"
    assert b"root" not in found.files.get("out", b"")


def test_poisoning_the_next_run(attack: Attack) -> None:
    code = (
        "import os, site, sys\n"
        "for folder in ('.', '/tmp', os.path.expanduser('~'), *sys.path, '/var/tmp', '/dev/shm'):\n"
        "    for name in ('sitecustomize.py', 'usercustomize.py', 'json.py', '__pycache__'):\n"
        "        try: open(os.path.join(folder, name), 'w').write('print(\"POISON\")')\n"
        "        except OSError: pass"
    )
    look = "import json, os; print(os.listdir('.'), os.listdir('/tmp'), os.listdir('/dev/shm'))"
    before = attack(look).text  # nothing, or the folder this Python is in
    attack(code)
    assert attack(look).text == before
    assert before.startswith("[] [")
    assert before.endswith("] []\n")


def test_a_link_planted_for_the_hosts_next_write(sandbox: ProcessSandbox) -> None:
    async def play() -> tuple[Any, Any]:
        async with sandbox.session(limits=SHORT) as session:
            await session.run(["python", "-S", "-c", "import os; os.symlink('/etc/passwd', 'a'); os.mkfifo('b')"])
            await session.write({"a": "mine", "b": "mine too"})
            return await session.read("*"), await session.run(["cat", "/etc/passwd"])

    files, passwd = asyncio.run(play())
    assert files == {"a": b"mine", "b": b"mine too"}
    assert passwd.text.startswith("root:x:0:0")


# --- host callbacks -------------------------------------------------------------------------------------------------------------

HOST = "import sys, os, json, struct, socket\nsys.path.insert(0, '/ramify')\nimport ramify_host as h\n"


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: int = 0) -> int:
        self.calls += 1
        return self.calls


def test_host_functions_that_were_not_listed(attack: Attack) -> None:
    tool = Counter()
    code = HOST + (
        "for name, args in (('add', {}), ('__class__', {}), ('__call__', {}), ('count.__globals__', {}), ('count', {'y': 1})):\n"
        "    try: print('WORKED', h.call(name, args))\n"
        "    except h.HostError as error: print(error)"
    )
    found = attack(code, tools={"count": tool})
    assert found.ok
    assert "WORKED" not in found.text
    assert tool.calls == 0
    assert found.text.splitlines()[-1] == "count failed (TypeError)"


def test_secrets_in_a_tools_error(attack: Attack) -> None:
    def tool() -> None:
        raise ValueError("canary-5512 at /home/user")

    found = attack(HOST + "h.call('tool')", tools={"tool": tool})
    assert "canary" not in found.error_text
    assert "tool failed (ValueError)" in found.error_text


@pytest.mark.parametrize(
    "frame",
    [
        "struct.pack('<I', 0xffffffff)",
        "struct.pack('<I', 200000) + b'[' * 200000",
        '(lambda d: struct.pack(\'<I\', len(d)) + d)(b\'{"tool": "count", "arguments": {"x": NaN}, "id": 1}\')',
        '(lambda d: struct.pack(\'<I\', len(d)) + d)(b\'{"tool": "count", "arguments": {"x": 1e999}, "id": 1}\')',
        '(lambda d: struct.pack(\'<I\', len(d)) + d)(b\'{"tool": "\\\\ud800", "arguments": {}, "id": 1}\')',
        '(lambda d: struct.pack(\'<I\', len(d)) + d)(b\'{"tool": [], "arguments": {}, "id": 1}\')',
        "(lambda d: struct.pack('<I', len(d)) + d)(b'{\"tool\": \"count\", \"arguments\": {}, \"id\": ' + b'9' * 5000 + b'}')",
        "(lambda d: struct.pack('<I', len(d)) + d)(b'\\xff\\xfe')",
        "(lambda d: struct.pack('<I', len(d)) + d)(b'[]')",
    ],
    ids=["huge", "deep", "nan", "infinite", "surrogate", "name", "number", "bytes", "list"],
)
def test_malformed_host_calls(attack: Attack, frame: str) -> None:
    tool = Counter()
    found = attack(HOST + f"s = socket.socket(fileno=3)\ns.sendall({frame})\nimport time; time.sleep(60)", tools={"count": tool})
    assert found.reason == "killed"
    assert found.detail
    assert tool.calls == 0


def test_a_flood_of_host_calls(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """More calls than allowed, sent without reading one answer, end the command; each was answered in order until then."""
    monkeypatch.setattr("ramify.sandbox.channel.MOST_CALLS", 50)
    tool = Counter()
    code = HOST + "d = json.dumps({'tool': 'count', 'arguments': {}, 'id': 1}).encode()\ns = socket.socket(fileno=3)\n"
    found = attack(code + "while True: s.sendall(struct.pack('<I', len(d)) + d)", tools={"count": tool})
    assert found.reason == "killed"
    assert tool.calls == 50


def test_replies_nobody_asked_for(sandbox: ProcessSandbox) -> None:
    """Code in a session's worker forges answers: to a later call, and twice to its own."""

    async def play() -> list[Any]:
        async with sandbox.session(limits=SHORT) as session:
            forged = await session.execute("import ramify_host as h\nh.send({'done': 99, 'value': 'forged'})")
            twice = await session.execute("import ramify_host as h\nh.send({'done': 2, 'value': 'mine'})\n'late'")
            return [forged, twice, await session.execute("1 + 1")]

    forged, twice, after = asyncio.run(play())
    assert (forged.reason, forged.value) == ("killed", None)
    assert twice.value == "mine"  # its own answer to its own call: it may say what it likes
    assert after.reason in ("killed", "done")
    assert after.value in (None, 2)


def test_a_worker_that_answers_with_other_types(sandbox: ProcessSandbox) -> None:
    async def play() -> Any:
        async with sandbox.session(limits=SHORT) as session:
            return await session.execute(
                "import ramify_host as h\nh.send({'done': 1, 'stdout': 7, 'text': {'a': 1}, 'error': None})"
            )

    reply = asyncio.run(play())
    assert (reply.stdout, reply.text, reply.error) == ("", "", "")


# --- what lies in a readable folder
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder shown to the sandbox with a socket somebody listens on, a pipe somebody reads, and a file."""
    tmp_path.chmod(0o755)  # what nobody may not read stays unreadable
    folder = tmp_path / "shared, with: odd \\ name"
    folder.mkdir()
    (folder / "file").write_text("text")
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    before = os.getcwd()
    os.chdir(folder)  # a socket's path has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("door")
        listener.listen()
        for name in ("door", "pipe", "file"):
            os.chmod(name, 0o777)  # else nobody's permissions already say no
        os.chdir(before)
        yield folder
    os.close(reader)


@pytest.mark.slow
def test_sockets_pipes_and_locks_of_a_readable_folder(shared: Path) -> None:
    code = TRY + (
        "import fcntl\n"
        f"os.chdir({str(shared)!r})\n"
        "print(open('file').read())\n"
        "attempt('socket', lambda: socket.socket(socket.AF_UNIX).connect('door') or 0)\n"
        "attempt('pipe', lambda: os.open('pipe', os.O_WRONLY | os.O_NONBLOCK))\n"
        "attempt('write', lambda: open('new', 'w') and 0)\n"
        "held = open('file')\n"
        "fcntl.flock(held, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(2)\n"
    )
    unlocked: list[bool] = []

    async def both() -> Outcome:
        running = asyncio.create_task(
            ProcessSandbox(readable=[shared]).run(["python", "-c", "import time\n" + code], limits=SHORT)
        )
        end = time.monotonic() + 60
        with (shared / "file").open() as file:
            while not running.done() and time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_UN)
                    unlocked.append(True)
                except BlockingIOError:
                    unlocked.append(False)
                await asyncio.sleep(0.05)
        return await running

    found = asyncio.run(both())
    assert found.ok, found.error_text
    assert found.text == "text\nheld\n"
    assert all(unlocked)
