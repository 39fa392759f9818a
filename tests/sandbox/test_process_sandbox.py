from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.sandbox import launch
from ramify.sandbox.process import ProcessSandbox, strength
from ramify.sandbox.protocol import Command, Limits, Outcome

Attack = Callable[..., Outcome]
ROOT = Path(__file__).resolve().parents[2]


def run(sandbox: ProcessSandbox, argv: list[str], **fields: Any) -> Outcome:
    return asyncio.run(sandbox.run(argv, **fields))


# --- one command ----------------------------------------------------------------------------------------------------------------


def test_a_command_gets_what_it_is_given_and_returns_what_is_asked(sandbox: ProcessSandbox) -> None:
    done = run(
        sandbox,
        ["sh", "-c", "cat; cat in/a.txt; pwd; echo $GIVEN >&2; ./tool; echo back > out.txt"],
        stdin="from stdin\n",
        files={"in/a.txt": "from file\n", "tool": "#!/bin/sh\necho from tool\n"},
        env={"GIVEN": "x y"},
        returns=["out.txt", "missing.txt"],
    )
    assert done.ok
    assert done.text == "from stdin\nfrom file\n/box/work\nfrom tool\n"
    assert done.error_text == "x y\n"
    assert done.files == {"out.txt": b"back\n"}
    assert (done.refused, done.detail) == ({}, "")


def test_python_is_found_however_it_was_started(sandbox: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/{os.path.relpath(sys.executable, tmp_path)}")  # as by ../.venv/bin/python
    done = run(sandbox, ["python", "-S", "-c", "print(2 + 2)"])
    assert (done.text, done.error_text) == ("4\n", "")


def test_the_python_inside_is_this_one_with_its_packages(sandbox: ProcessSandbox) -> None:
    done = run(sandbox, ["python", "-c", "import sys, numpy; print(sys.version); print(numpy.__version__)"])
    import numpy

    assert done.text == f"{sys.version}\n{numpy.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "reason", "code", "number"),
    [
        (["sh", "-c", "exit 3"], "exit", 3, None),
        (["nothing-of-this-name"], "exit", 127, None),
        (["/etc/passwd"], "exit", 126, None),
        (["sh", "-c", "kill -TERM $$"], "signal", None, 15),
        (["sh", "-c", "kill -KILL $$"], "signal", None, 9),
    ],
)
def test_how_it_ended(sandbox: ProcessSandbox, argv: list[str], reason: str, code: int | None, number: int | None) -> None:
    done = run(sandbox, argv)
    assert (done.reason, done.code, done.signal) == (reason, code, number)


def test_large_inputs(sandbox: ProcessSandbox) -> None:
    data = os.urandom(3 << 20)
    done = run(
        sandbox, ["sh", "-c", 'cmp f - && echo "$1" | wc -c', "sh", "x" * 120_000], stdin=data, files={"f": data}, returns=["f"]
    )
    assert done.text == "120001\n"
    assert done.files["f"] == data


def test_files_that_do_not_fit_are_an_error(sandbox: ProcessSandbox) -> None:
    with pytest.raises(InfrastructureError, match="No space left"):
        run(sandbox, ["true"], files={"f": bytes(2 << 20)}, limits=Limits(disk_bytes=1 << 20))
    with pytest.raises(InfrastructureError, match="Argument list too long"):
        run(sandbox, ["true", *["x" * 100_000] * 40])


def test_what_cannot_be_asked_for_is_one_sentence(sandbox: ProcessSandbox) -> None:
    for fields in (
        {"file": {}}, {"files": {"../x": b""}}, {"files": {"a": 1}}, {"network": "some"}, {"clock": math.nan},
        {"env": {"A=B": "c"}},
        {"env": {"A": "\0"}}, {"returns": "out"}, {"folder": "/"}, {"files": None}, {"limits": {"seconds": 1}},
        {"tools": {"f": 1}}, {"stdin": 1}, {"env": {"A": 1}},
    ):  # fmt: skip
        with pytest.raises(UserError):
            run(sandbox, ["true"], **fields)
    for argv in ("ls -la", [], [""], ["a\0b"], [1], ["\ud800"]):
        with pytest.raises(UserError):
            run(sandbox, argv)  # type: ignore[arg-type]
    for limits in ({"seconds": 0}, {"seconds": math.inf}, {"memory_bytes": 1.5}, {"files": True}, {"output_bytes": 9 << 20}):
        with pytest.raises(UserError, match="limit"):
            Limits(**limits)  # type: ignore[arg-type]


def test_a_batch_keeps_its_order(sandbox: ProcessSandbox) -> None:
    commands = [Command(["sh", "-c", f"sleep 0.0{9 - i}; echo {i}"]) for i in range(8)]
    done = asyncio.run(sandbox.run_many(commands, at_once=4))
    assert [outcome.text for outcome in done] == [f"{i}\n" for i in range(8)]
    assert asyncio.run(sandbox.run_many([])) == []


def test_many_threads_and_loops_at_once(sandbox: ProcessSandbox) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda i=i: found.append(run(sandbox, ["echo", str(i)]).text)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"{i}\n" for i in range(6)]


def test_loopback_inside_only(attack: Attack) -> None:
    code = (
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); s.accept()[0].sendall(b'x')\n"
        "print(c.recv(1))"
    )
    assert attack(code, network="loopback").text == "b'x'\n"
    assert "unreachable" in attack(code).error_text


def test_the_hosts_network_when_asked(attack: Attack) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        done = attack(f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 3)", network=True)
    assert done.ok


def test_further_folders_are_read_only(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    (tmp_path / "data.txt").write_text("shown")
    tmp_path.chmod(0o755)  # what nobody may not read stays unreadable
    shown = ProcessSandbox(readable=[tmp_path])
    done = run(shown, ["sh", "-c", f"cat {tmp_path}/data.txt; echo x > {tmp_path}/data.txt"])
    assert done.text == "shown"
    assert "Read-only file system" in done.error_text
    assert run(sandbox, ["cat", f"{tmp_path}/data.txt"]).text == ""


# --- clock ----------------------------------------------------------------------------------------------------------------------


def test_a_pinned_clock_repeats(sandbox: ProcessSandbox) -> None:
    code = (
        "import time, datetime, json\n"
        "a = time.time(); time.sleep(0.05); b = time.time()\n"
        "now = datetime.datetime.now()\n"
        "assert isinstance(now, datetime.datetime) and isinstance(datetime.datetime(2000, 1, 1), datetime.date)\n"
        "assert datetime.datetime.strptime('2001', '%Y').year == 2001 and now - datetime.timedelta(1) < now\n"
        "print(json.dumps([a, b, now.isoformat(), datetime.date.today().isoformat(), time.strftime('%F %T'), "
        "datetime.datetime.now(datetime.UTC).isoformat(), time.gmtime().tm_year, time.time_ns()]))\n"
        "assert time.monotonic() < 60, time.monotonic()"
    )
    first, second = (run(sandbox, ["python", "-c", code], clock=1e9) for _ in range(2))
    assert first.ok, first.error_text
    assert first.stdout == second.stdout
    seen = json.loads(first.text)
    assert seen[0] == pytest.approx(1e9, abs=1e-3)
    assert seen[1] - seen[0] == pytest.approx(0.05, abs=1e-5)
    assert seen[2].startswith("2001-09-09T01:46:40")
    assert seen[3:5] == ["2001-09-09", "2001-09-09 01:46:40"]
    assert run(sandbox, ["sh", "-c", "echo $SOURCE_DATE_EPOCH"], clock=1e9).text == "1000000000\n"


# --- sessions -------------------------------------------------------------------------------------------------------------------


def test_a_session_keeps_files_and_state(sandbox: ProcessSandbox) -> None:
    calls: list[int] = []

    async def look(n: int) -> dict[str, int]:
        calls.append(n)
        await asyncio.sleep(0)
        return {"n": n + 1}

    async def play() -> None:
        async with sandbox.session(files={"a.txt": "a"}, tools={"look": look}, env={"E": "e"}) as session:
            assert (await session.run(["sh", "-c", "cat a.txt; echo b > b.txt; echo $E"])).text == "ae\n"
            first = await session.execute("import os\nnames = sorted(os.listdir('.'))\nprint('said')\nnames")
            assert (first.value, first.stdout) == (["a.txt", "b.txt"], "said\n")
            assert (await session.execute("import ramify_host\nramify_host.call('look', {'n': 4})['n']")).value == 5
            assert (await session.execute("def f(x, *, y=1):\n    return {'sum': x + y}\nf")).text.startswith("<function f")
            assert (await session.call("f", 2, y=5)).value == {"sum": 7}
            assert "no function 'g'" in (await session.call("g")).error
            assert "line 1, in <module>\n    1/0" in (await session.execute("1/0")).error.replace("~^~", "")
            assert (await session.execute("object()")).value is None
            assert "SyntaxError" in (await session.execute("def")).error
            assert "SystemExit" in (await session.execute("raise SystemExit(3)")).error
            assert (await session.execute("names")).value == ["a.txt", "b.txt"]
            assert (
                await session.run(["python", "-c", "import ramify_host; print(ramify_host.call('look', {'n': 1}))"])
            ).text == "{'n': 2}\n"
            with pytest.raises(UserError, match="belongs to the session"):
                await session.run(["true"], network=True)

    asyncio.run(play())
    assert calls == [4, 1]


@pytest.mark.slow
def test_a_session_continues_after_a_dead_worker(sandbox: ProcessSandbox) -> None:
    async def play() -> None:
        limits = Limits(seconds=30.0, memory_bytes=200 << 20)
        async with sandbox.session(limits=limits) as session:
            await session.execute("open('kept', 'w').write('x'); x = 1")
            stuck = await session.execute("while True: pass", seconds=0.3)
            assert (stuck.reason, stuck.ok) == ("timeout", False)
            assert "NameError" in (await session.execute("x")).error
            assert (await session.execute("import os; os._exit(7)")).reason == "exit"
            assert (await session.execute("import os; os.kill(os.getpid(), 11)")).reason == "signal"
            shared = (
                "import mmap\nkept = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 24); m.write(b'x' * (1 << 24)); kept.append(m)"
            )
            assert (await session.execute(shared)).reason == "memory"
            flood = await session.execute("import os\nwhile True: os.write(1, b'x' * 65536)")
            assert flood.reason == "output"
            assert len(flood.stdout) == 1 << 20
            assert await session.read("kept") == {"kept": b"x"}
            assert (await session.run(["sleep", "60"], limits=Limits(seconds=0.2))).reason == "timeout"
            assert (await session.execute("1")).value == 1

    asyncio.run(play())


def test_commands_beside_one_another_in_a_session(sandbox: ProcessSandbox) -> None:
    async def play() -> list[Outcome]:
        async with sandbox.session() as session:
            await session.write({"gate": ""})
            return list(await asyncio.gather(*(session.run(["sh", "-c", f"echo {i} > f{i}; cat f{i}"]) for i in range(12))))

    assert [done.text for done in asyncio.run(play())] == [f"{i}\n" for i in range(12)]


def test_a_session_of_no_calls_and_one_that_raises(sandbox: ProcessSandbox) -> None:
    async def play(problem: bool) -> None:
        async with sandbox.session():
            if problem:
                raise ValueError("mine")

    asyncio.run(play(False))
    with pytest.raises(ValueError, match="mine"):
        asyncio.run(play(True))


def test_large_answers_and_outputs_of_a_session(sandbox: ProcessSandbox) -> None:
    async def play() -> None:
        async with sandbox.session(tools={"length": len, "size": lambda text: len(text)}) as session:
            most = await session.execute("print('\\0' * (1 << 21)); 'x' * 500_000")
            assert (most.ok, len(most.value)) == (True, 500_000)
            assert 0 < len(most.stdout) < 1 << 20
            assert (await session.execute("'x' * (1 << 21)")).value is None
            assert (await session.execute("print('\\ud800'); {1: float('nan')}")).reason in ("done", "killed")
            code = "import ramify_host\nramify_host.call('size', {'text': 'x' * %d})"
            assert (await session.execute(code % 1_000_000)).value == 1_000_000
            assert "a frame holds" in (await session.execute(code % (1 << 21))).error
            assert (await session.execute("1")).value == 1

    asyncio.run(play())


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 99, b"\x02\0\0\0[]", b"\x02\0\0\0{}x"])
def test_frames_of_files_that_make_no_sense(data: bytes) -> None:
    assert launch.unpack_returned(data) == ({}, {})
    for head in (
        {"path": "/etc/x", "size": 0},
        {"path": "../x", "size": 0},
        {"path": 1},
        {"path": "a", "size": -1},
        {"path": "a", "size": 9},
    ):
        frame = json.dumps(head).encode()
        assert launch.unpack_returned(len(frame).to_bytes(4, "little") + frame + data[:8]) == ({}, {})


# --- nothing is left ------------------------------------------------------------------------------------------------------------


def below(pid: int) -> list[int]:
    from ramify.sandbox.child.watch import descendants

    return descendants(pid)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mounted() -> list[str]:
    """What is mounted, but for what tests beside this one mount into their own folders."""
    return [line for line in Path("/proc/mounts").read_text().splitlines() if "/pytest-" not in line]


async def interrupted(sandbox: ProcessSandbox, number: int) -> None:
    """One run cancelled after a time that differs from run to run: before it starts, while it runs, while it ends."""
    code = (
        "import os, time\nos.fork(); os.setsid() if os.getpid() != os.getpgid(0) else None\nopen('/tmp/x', 'w').write('x' * "
        "1000)\ntime.sleep(0.02)"
    )
    task = asyncio.create_task(sandbox.run(["python", "-S", "-c", code], limits=Limits(seconds=3.0)))
    await asyncio.sleep((number * 7919 % 101) / 101 * 0.07)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("runs", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_nothing_is_left_after_interrupted_runs(sandbox: ProcessSandbox, runs: int) -> None:
    run(sandbox, ["true"])
    mounts, folders, descriptors = mounted(), set(os.listdir("/tmp")), open_descriptors()
    server = sandbox.server()._process.pid
    before = below(server)[:1]  # the server's own process 1

    async def play() -> None:
        gate = asyncio.Semaphore(4)

        async def one(number: int) -> None:
            async with gate:
                await interrupted(sandbox, number)

        await asyncio.gather(*(one(number) for number in range(runs)))

    asyncio.run(play())
    assert until(lambda: below(server) == before)
    assert mounted() == mounts
    assert {name for name in set(os.listdir("/tmp")) - folders if f"ramify-sandbox-{os.getpid()}-" in name} == set()
    assert open_descriptors() <= descriptors + 1
    assert run(sandbox, ["echo", "works"]).text == "works\n"


HOST = """
import asyncio, sys
from ramify.sandbox.process import ProcessSandbox
async def main():
    async with ProcessSandbox({options}).session() as session:
        task = asyncio.create_task(session.run(["python", "-S", "-c", "import time; time.sleep(600)", sys.argv[1]]))
        print("up", flush=True)
        await task
asyncio.run(main())
"""


@pytest.mark.parametrize("options", ["", "allow_unsandboxed=True, namespaces=False"])
def test_nothing_is_left_when_the_host_is_killed(sandbox: ProcessSandbox, options: str, tmp_path: Path) -> None:
    marker = f"ramify-orphan-{os.getpid()}-{len(options)}"
    code = HOST.replace("{options}", options)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code, marker], stdout=subprocess.PIPE, text=True, env=env) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "up\n"
        assert until(lambda: len(named(marker)) >= 2)
        host.send_signal(signal.SIGKILL)
    assert until(lambda: not named(marker) and not list(tmp_path.iterdir()))


def named(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.name != str(os.getpid()) and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


def test_a_server_that_died_is_replaced(sandbox: ProcessSandbox) -> None:
    first = sandbox.server()
    first._process.kill()
    first._process.wait()
    assert run(sandbox, ["echo", "again"]).text == "again\n"
    assert sandbox.server() is not first


def test_a_server_that_dies_under_a_command_is_a_boundary_error(sandbox: ProcessSandbox) -> None:
    marker = f"ramify-bereft-{os.getpid()}"

    async def play() -> None:
        task = asyncio.create_task(sandbox.run(["sh", "-c", f"sleep 600; echo {marker}"], limits=Limits(seconds=60.0)))
        while not named(marker):
            await asyncio.sleep(0.01)
        sandbox.server()._process.kill()
        await task

    with pytest.raises(InfrastructureError, match="without a report"):
        asyncio.run(play())


# --- where namespaces are forbidden ---------------------------------------------------------------------------------------------


def test_no_isolation_is_refused() -> None:
    with pytest.raises(NeedsError, match="--allow-unsandboxed") as caught:
        run(ProcessSandbox(namespaces=False), ["true"])
    assert caught.value.exit_code == 4


@pytest.mark.slow
def test_limits_hold_without_namespaces(tmp_path: Path) -> None:
    """Time, output, memory, processes and the hunt for escapees remain;
    the host's files do not stay hidden: what is said is true."""
    bare = ProcessSandbox(allow_unsandboxed=True, namespaces=False)
    assert not bare.isolates
    (tmp_path / "canary").write_text("canary")
    assert run(bare, ["cat", str(tmp_path / "canary")]).text == "canary"
    done = run(bare, ["sh", "-c", "cat in; pwd; echo x > out; env"], files={"in": "given "}, returns=["out"])
    assert done.text.startswith("given /")
    assert done.files == {"out": b"x\n"}
    assert "VIRTUAL_ENV" not in done.text
    assert not Path(done.text.split()[1]).exists()
    marker = f"ramify-bare-{os.getpid()}"
    escape = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        f"    os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(600)', '{marker}'])\ntime.sleep(600)"
    )
    assert run(bare, ["python", "-S", "-c", escape], limits=Limits(seconds=0.7)).reason == "timeout"
    assert named(marker) == []
    forks = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)"
    many = run(bare, ["python", "-S", "-c", forks], limits=Limits(processes=8))
    # the kernel's own limit spares root only: anyone else's ninth process does not start
    assert many.reason == "processes" or (os.getuid() != 0 and "BlockingIOError" in many.error_text)
    assert run(bare, ["sh", "-c", f"while :; do echo {'x' * 1000}; done"]).reason == "output"
    code = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    assert run(bare, ["python", "-S", "-c", code]).text == "-1\n"


INNER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Limits
bomb = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass"
bare = ProcessSandbox(allow_unsandboxed=True, namespaces=False)
done = asyncio.run(bare.run(["python", "-S", "-c", bomb], limits=Limits(seconds=1.0, processes=10)))
print(done.reason)
"""


@pytest.mark.slow
def test_a_fork_bomb_of_an_ordinary_user_without_namespaces(sandbox: ProcessSandbox) -> None:
    """Set off inside a sandbox that isolates, so that it cannot get loose even where this fails."""
    limits = Limits(seconds=60.0, processes=60)
    outer = ProcessSandbox(readable=[ROOT / "src"])
    done = run(outer, ["python", "-S", "-c", INNER, str(ROOT / "src")], limits=limits)
    assert done.text in ("timeout\n", "processes\n"), done.error_text


def test_a_session_without_namespaces() -> None:
    async def play() -> None:
        bare = ProcessSandbox(allow_unsandboxed=True, namespaces=False)
        async with bare.session(tools={"up": lambda x: x + 1}) as session:
            await session.write({"f": "x"})
            assert (await session.execute("import ramify_host; ramify_host.call('up', {'x': len(open('f').read())})")).value == 2

    asyncio.run(play())


def test_strength_is_measured(sandbox: ProcessSandbox) -> None:
    layers = strength()
    assert {name: layer.works for name, layer in layers.items() if name != "docker"} == dict.fromkeys(
        layers.keys() - {"docker"}, True
    )
    assert all(layer.means for layer in layers.values())


AS_USER = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from ramify.sandbox.process import ProcessSandbox, strength
try:
    done = asyncio.run(ProcessSandbox().run(["sh", "-c", "id -u; ls /; cat " + sys.argv[2]]))
    print(json.dumps([strength()["isolation"].works, done.text, done.error_text]))
except Exception as error:
    print(json.dumps([type(error).__name__, getattr(error, "exit_code", None), strength()["isolation"].works]))
"""


def as_user(prefix: list[str], script: str = AS_USER) -> list[Any]:
    """What ``script`` says when run by an ordinary user, with a copy of the package he can read.

    It is not below pytest's own folder, which any other pytest that starts closes to other users.
    """
    if os.getuid() != 0:
        pytest.skip("only root can become another user: THE SANDBOX OF ANOTHER USER IS NOT TESTED")
    python = next(
        (p for p in ("/usr/bin/python3", sys.executable) if as_ok([p, "-c", "import sys; assert sys.version_info >= (3, 11)"])),
        None,
    )
    if python is None or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("no Python 3.11 that others may run, or no setpriv: THE SANDBOX OF AN ORDINARY USER IS NOT TESTED")
    with tempfile.TemporaryDirectory() as folder:
        open_to_all, secret = Path(folder), Path(folder) / "mine.txt"
        open_to_all.chmod(0o755)
        shutil.copytree(ROOT / "src" / "ramify", open_to_all / "ramify", ignore=shutil.ignore_patterns("__pycache__", "assets"))
        secret.write_text("canary")
        os.chown(secret, 4321, 4321)
        user = ["setpriv", "--reuid", "4321", "--regid", "4321", "--clear-groups"]
        code = [python, "-c", script, folder, str(secret)]
        done = subprocess.run([*user, *prefix, *code], capture_output=True, text=True, cwd="/", env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def as_ok(words: list[str]) -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(["setpriv", "--reuid", "4321", "--clear-groups", *words], capture_output=True).returncode == 0
    return False


def test_an_ordinary_user_has_the_same_sandbox(sandbox: ProcessSandbox) -> None:
    isolated, out, err = as_user([])
    if isolated == "NeedsError":
        pytest.skip("ordinary users may not make namespaces here: THEIR SANDBOX IS NOT TESTED")
    assert isolated is True
    assert out.startswith("65534\n")
    assert "canary" not in out
    assert "No such file" in err


ATTACKS_AS_USER = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from ramify.sandbox.group import home
from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Limits
sandbox = ProcessSandbox()
def attack(code, **limits):
    limits = Limits(**{"seconds": 60.0, "memory_bytes": 128 << 20, "processes": 32, **limits})
    done = asyncio.run(sandbox.run(["python", "-S", "-c", code], limits=limits))
    return [done.reason, done.text, done.error_text[-300:]]
many = "import os, time\\nfor _ in range(3): os.fork()\\nx = bytes(os.urandom(1 << 20)) * 60\\ntime.sleep(50); print('HELD')"
alone = "x = []\\nwhile True: x.append(bytearray(1 << 20))"
shared = "import mmap\\nkept = []\\nwhile True:\\n    m = mmap.mmap(-1, 1 << 24); m.write(b'x' * (1 << 24)); kept.append(m)"
spin = "import os, signal\\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\\nif os.fork(): os.wait()\\nwhile True: pass"
forks = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass"
if sandbox.isolates:
    told = [home() is not None, attack(many), attack(alone), attack(shared)]
    told += [attack(spin, cpu_seconds=1), attack(forks, seconds=1.0)]
    print(json.dumps(told))
else:
    print("[]")
"""


@pytest.mark.slow
def test_memory_and_processor_time_of_an_ordinary_users_commands_are_bounded(sandbox: ProcessSandbox) -> None:
    """Without a control group: by sampling, by the address space of each process, and by the kernel's counts."""
    result = as_user([], ATTACKS_AS_USER)
    if not result:
        pytest.skip("ordinary users may not make namespaces here: THEIR LIMITS ARE NOT TESTED")
    _, many, alone, shared, spin, forks = result
    assert many[0] == "memory", many
    assert alone[0] == "memory" or "MemoryError" in alone[2], alone
    assert shared[0] == "memory", shared
    assert spin[0] == "cpu", spin
    assert forks[0] in ("timeout", "processes", "cpu"), forks


def test_an_ordinary_user_without_namespaces_is_refused(sandbox: ProcessSandbox) -> None:
    forbid = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    forbid += ['echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set -all --inh-caps -all "$@"', "sh"]
    assert as_user(forbid) == ["NeedsError", 4, False]


def test_importing_the_sandbox_starts_nothing() -> None:
    code = "import ramify.sandbox.process, ramify.sandbox.launch as launch; assert not launch._servers; print('idle')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "idle\n"
    assert launch.INSIDE.is_dir()
