"""Running code nobody trusts. Start with `find_sandbox`; names load on first use."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "find_sandbox": "find",
    "ProcessSandbox": "process",
    "DockerSandbox": "docker",
    "strength": "process",
    "check_sandbox": "battery",
    **dict.fromkeys(("Command", "Limits", "Outcome", "Reply", "Sandbox", "Session"), "protocol"),
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"ramify.sandbox.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'ramify.sandbox' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
