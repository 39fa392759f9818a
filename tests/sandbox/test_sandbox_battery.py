"""The battery passes the real sandbox and catches each way of breaking it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from ramify.base.errors import NeedsError
from ramify.sandbox.docker import DockerSandbox
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Command, CommandRunner, Limits, Outcome
from ramify.testing import check_sandbox


def caught(sandbox: Any) -> set[str]:
    return {problem.check for problem in check_sandbox(sandbox, seconds=0.8)}


def test_the_process_sandbox_passes(sandbox: ProcessSandbox) -> None:
    assert check_sandbox(sandbox) == []


class Changed(ProcessSandbox):
    """The process sandbox, its commands or outcomes changed on the way."""

    def before(self, command: Command) -> Command:
        return command

    def after(self, command: Command, outcome: Outcome) -> Outcome:
        return outcome

    async def run_command(self, command: Command) -> Outcome:
        return self.after(command, await super().run_command(self.before(command)))


class Leaks(Changed):
    def before(self, command: Command) -> Command:
        return replace(command, env={**os.environ, **command.env})


class Connected(Changed):
    def before(self, command: Command) -> Command:
        return replace(command, network=True)


class Lax(Changed):
    """Limits that the caller did not set."""

    def before(self, command: Command) -> Command:
        return replace(
            command, limits=Limits(seconds=command.limits.seconds, memory_bytes=4 << 30, disk_bytes=1 << 30, processes=500)
        )


class Chatty(Changed):
    def before(self, command: Command) -> Command:
        return replace(command, limits=replace(command.limits, output_bytes=7 << 20, returned_bytes=1))


class Mistaken(Changed):
    """Says 'exit' and 0, whatever happened."""

    def after(self, command: Command, outcome: Outcome) -> Outcome:
        return replace(outcome, reason="exit", code=0, signal=None)


class Deaf(Changed):
    def before(self, command: Command) -> Command:
        return replace(command, stdin=b"", files={})


class Late(Changed):
    """Sound, on a machine too busy to start a program in a short time."""

    def before(self, command: Command) -> Command:
        return replace(command, argv=["sleep", "60"]) if command.limits.seconds < 1 else command


class Bare(Changed):
    """No namespaces at all."""

    def __init__(self) -> None:
        super().__init__(allow_unsandboxed=True, namespaces=False)


class Plain(CommandRunner):
    """A child process and nothing else, as is often done; sessions of the real one."""

    name = "plain"

    def session(self, **fields: Any) -> Any:
        return ProcessSandbox().session(**fields)

    async def run_command(self, command: Command) -> Outcome:
        argv = [sys.executable if command.argv[0] == "python" else command.argv[0], *command.argv[1:]]
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as child:
            stdin = command.stdin.encode() if isinstance(command.stdin, str) else command.stdin
            try:
                out, err = child.communicate(stdin, timeout=min(3.0, command.limits.seconds))
            except subprocess.TimeoutExpired:
                child.kill()
                return Outcome("timeout")
        return Outcome("exit" if child.returncode >= 0 else "signal", child.returncode, None, out, err)


class Forgetful(ProcessSandbox):
    """A session whose Python forgets."""

    def session(self, **fields: Any) -> Any:
        made = super().session(**fields)

        class Wrapped:
            async def __aenter__(self) -> Any:
                session = await made.__aenter__()
                ask = session._request

                async def fresh(request: Any, seconds: float | None) -> Any:
                    await session.close()
                    return await ask(request, seconds)

                session._request = fresh
                return session

            async def __aexit__(self, *error: object) -> None:
                await made.__aexit__(*error)

        return Wrapped()


@pytest.mark.parametrize(
    ("broken", "checks"),
    [
        (Leaks, {"environment"}),
        pytest.param(Connected, {"network"}, marks=pytest.mark.slow),
        pytest.param(Lax, {"resource_limits", "output_limit"}, marks=pytest.mark.slow),
        (Chatty, {"output_limit", "files"}),
        (Mistaken, {"runs", "time_limit", "output_limit"}),
        pytest.param(Deaf, {"runs", "files"}, marks=pytest.mark.slow),
        (Bare, {"host_files", "host_processes", "network"}),
        pytest.param(Late, set(), marks=pytest.mark.slow),
        pytest.param(Forgetful, {"sessions"}, marks=pytest.mark.slow),
    ],
)
def test_a_broken_sandbox_is_caught(sandbox: ProcessSandbox, broken: type, checks: set[str]) -> None:
    found = caught(broken())
    assert checks <= found
    if broken in (Leaks, Connected, Lax, Chatty, Late, Forgetful):
        assert found == checks


@pytest.mark.slow
def test_a_plain_child_process_is_caught(sandbox: ProcessSandbox, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it writes where it runs
    assert {"environment", "host_files", "network", "time_limit", "output_limit", "resource_limits", "files"} <= caught(Plain())


def test_something_else_altogether_is_problems_not_a_crash() -> None:
    assert len(caught(object())) == 11


def test_the_best_available_sandbox(sandbox: ProcessSandbox) -> None:
    assert isinstance(find_sandbox(), ProcessSandbox)
    assert isinstance(find_sandbox("docker"), DockerSandbox)
    with pytest.raises(NeedsError, match="--allow-unsandboxed"):
        find_sandbox("process", namespaces=False)
    assert find_sandbox("process", allow_unsandboxed=True, namespaces=False).name == "process"
