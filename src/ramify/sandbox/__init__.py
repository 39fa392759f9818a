"""Running code nobody trusts. Start with `find_sandbox`; names load on first use."""

from __future__ import annotations

from ramify.base.lazy import loader

_NAMES = {
    "find_sandbox": "find",
    "ProcessSandbox": "process",
    "DockerSandbox": "docker",
    "strength": "process",
    "check_sandbox": "battery",
    **dict.fromkeys(("Command", "Limits", "Outcome", "Reply", "Sandbox", "Session"), "protocol"),
}

__getattr__ = loader(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
