"""Running untrusted code. Start with `find_sandbox`; names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import loader

_NAMES = {
    "find_sandbox": "find",
    "ProcessSandbox": "process",
    "DockerSandbox": "docker",
    "strength": "process",
    **dict.fromkeys(("Command", "Limits", "Outcome", "SessionReply", "Sandbox", "Session"), "protocol"),
}

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.sandbox.docker import DockerSandbox as DockerSandbox
    from ramify.sandbox.find import find_sandbox as find_sandbox
    from ramify.sandbox.process import ProcessSandbox as ProcessSandbox
    from ramify.sandbox.process import strength as strength
    from ramify.sandbox.protocol import Command as Command
    from ramify.sandbox.protocol import Limits as Limits
    from ramify.sandbox.protocol import Outcome as Outcome
    from ramify.sandbox.protocol import Sandbox as Sandbox
    from ramify.sandbox.protocol import Session as Session
    from ramify.sandbox.protocol import SessionReply as SessionReply
else:
    __getattr__ = loader(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
