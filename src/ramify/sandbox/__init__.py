"""Running untrusted code. Start with `find_sandbox`; names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

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
    _NAMES, __getattr__ = declared(__name__, __file__)

    def __dir__():
        return sorted([*globals(), *_NAMES])
