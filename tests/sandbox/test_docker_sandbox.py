from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tight import cut_off

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.sandbox.docker import DockerSandbox
from ramify.sandbox.protocol import Command, Limits, Outcome
from ramify.testing import check_sandbox

STANDIN = Path(__file__).with_name("standin_engine.py")


def test_the_words_that_make_a_container() -> None:
    limits = Limits(memory_bytes=100, disk_bytes=10, files=7, processes=5, file_bytes=9, cpu_seconds=1.5)
    words = DockerSandbox("image:1", readable=["/data"]).run_arguments("name", Command(["true"], limits=limits))
    text = " ".join(words)
    assert words[:2] == ["docker", "run"]
    assert words[-2:] == ["image:1", "cat"]
    for expected in (
        "--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges",
        "--user 65534:65534", "--pids-limit 9",
        "--memory 130 --memory-swap 130", "--ulimit core=0", "--ulimit fsize=9", "--ulimit cpu=2", "--pull never",
        "--rm", "--init",
        "--tmpfs /box/work:rw,exec,nosuid,nodev,mode=1777,size=10,nr_inodes=7",
        "--mount type=bind,source=/data,target=/data,readonly",
    ):  # fmt: skip
        assert expected in text
    assert text.count("type=bind") == text.count(",readonly")
    assert "--privileged" not in text
    assert "--network bridge" in " ".join(DockerSandbox().run_arguments("n", Command(["true"], network=True)))


def test_the_words_that_run_a_command() -> None:
    words = DockerSandbox().exec_arguments(
        "name", Command(["python", "a b"], env={"A": "b"}, folder="sub", clock=5.0), channel=True
    )
    assert words[-3:] == ["name", "python", "a b"]
    assert words[words.index("--workdir") + 1] == "/box/work/sub"
    given = {words[i + 1] for i, word in enumerate(words) if word == "--env"}
    assert {"A=b", "RAMIFY_CLOCK=5.0", "RAMIFY_HOST_FD=0,1", "PYTHONPATH=/ramify/clock:/ramify"} <= given
    assert not any(word.startswith(("VIRTUAL_ENV", "USER")) for word in given)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(NeedsError, match="not installed"):
        asyncio.run(DockerSandbox(engine="no-such-engine").run(["true"]))
    engine = tmp_path / "silent"
    engine.write_text("#!/bin/sh\necho cannot connect >&2\nexit 1\n")
    engine.chmod(0o755)
    with pytest.raises(NeedsError, match="cannot connect"):
        asyncio.run(DockerSandbox(engine=str(engine)).run(["true"]))


def test_tools_of_a_command_are_refused() -> None:
    with pytest.raises(NeedsError, match="session"):
        asyncio.run(DockerSandbox().run(["true"], tools={"f": abs}))


def test_the_battery_on_a_real_engine() -> None:
    sandbox = DockerSandbox()
    try:
        sandbox.check()
    except NeedsError as error:
        pytest.skip(f"{error}: THE DOCKER SANDBOX IS NOT TESTED ON A REAL ENGINE")
    assert check_sandbox(sandbox, seconds=6.0) == []


# --- with a stand-in for the engine ---------------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerSandbox]:
    if os.getuid() != 0 or not Path("/usr/bin/python3").exists() or not all(map(shutil.which, ("unshare", "nsenter", "setpriv"))):
        pytest.skip("the stand-in engine needs root, unshare and /usr/bin/python3: THE DOCKER SANDBOX'S CALLS ARE NOT TESTED")
    monkeypatch.setenv("STANDIN", str(tmp_path))
    yield DockerSandbox("present", engine=str(STANDIN))
    assert list(tmp_path.iterdir()) == []  # every container is gone


def run(sandbox: DockerSandbox, argv: list[str], **fields: object) -> Outcome:
    return asyncio.run(sandbox.run(argv, **fields))


def test_a_command_in_a_container(docker: DockerSandbox) -> None:
    done = run(
        docker,
        ["sh", "-c", "cat; cat in/a; pwd; ./tool; echo b > out; ln -s /etc/passwd link; exit 3"],
        stdin="stdin\n",
        files={"in/a": b"file\n", "tool": "#!/bin/sh\necho tool\n"},
        returns=["out", "link"],
    )
    assert (done.reason, done.code) == ("exit", 3)
    assert done.text == "stdin\nfile\n/box/work\ntool\n"
    assert (done.files, done.refused) == ({"out": b"b\n"}, {"link": "a link"})


@pytest.mark.slow
def test_limits_of_time_and_output_in_a_container(docker: DockerSandbox) -> None:
    stays = ["sh", "-c", "echo here; setsid sleep 600 & sleep 600"]
    late = cut_off(lambda seconds: run(docker, stays, limits=Limits(seconds=seconds)), 1.0)
    assert (late.reason, late.code, late.text) == ("timeout", None, "here\n")
    flood = run(docker, ["sh", "-c", "yes"], limits=Limits(seconds=60.0, output_bytes=1 << 16))
    assert (flood.reason, len(flood.stdout)) == ("output", 1 << 16)
    assert run(docker, ["sh", "-c", "kill -9 $$"]).signal == 9
    with pytest.raises(InfrastructureError, match="No space left"):
        run(docker, ["true"], files={"f": bytes(2 << 20)}, limits=Limits(disk_bytes=1 << 20))


@pytest.mark.slow
def test_a_session_in_a_container(docker: DockerSandbox) -> None:
    async def play() -> None:
        async with docker.session(files={"given": "g"}, tools={"double": lambda x: 2 * x}) as session:
            assert (await session.execute("x = 20\nprint('said')\nx + 1")).value == 21
            assert (await session.execute("import ramify_host\nramify_host.call('double', {'x': x})")).value == 40
            assert (await session.execute("ramify_host.call('triple', {})")).reason == "error"
            assert (await session.execute("import os; os.write(1, b'noise'); open('f', 'w').write('made'); 1")).value == 1
            assert await session.read("*") == {"given": b"g", "f": b"made"}
            assert (await session.run(["cat", "f"])).text == "made"
            died = await session.execute("os._exit(4)")
            assert (died.reason, died.value) == ("exit", None)
            assert "NameError" in (await session.execute("x")).error
            stuck = await session.execute("while True: pass", seconds=0.5)
            assert stuck.reason == "timeout"

    asyncio.run(play())


@pytest.mark.slow
def test_a_cancelled_command_leaves_no_container(docker: DockerSandbox) -> None:
    async def play() -> None:
        for wait in (0.05, 0.4, 0.8):
            task = asyncio.create_task(docker.run(["sleep", "600"]))
            await asyncio.sleep(wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(play())


def test_an_image_that_is_missing(docker: DockerSandbox) -> None:
    with pytest.raises(NeedsError, match="no image 'absent'"):
        run(DockerSandbox("absent", engine=docker.engine), ["true"])
