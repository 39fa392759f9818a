"""ramify: branch a language-model agent's run at any token, see which step had which consequence, and use that.

Importing ramify loads no third-party package; names load on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

#: Public names and the modules they load from.
_NAMES: dict[str, str] = {
    "improve": "ramify.jobs.improve",
    "resume": "ramify.jobs.improve",
    "ImproveConfig": "ramify.jobs.improve",
    "play": "ramify.jobs.play",
    "fork_run": "ramify.jobs.play",
    "Run": "ramify.trace.db",
    "ScriptedModel": "ramify.model.scripted",
    "LocalModel": "ramify.engine.local",
    "Sampling": "ramify.model.protocol",
    "Task": "ramify.env.protocol",
    "Observation": "ramify.env.protocol",
    "Panel": "ramify.env.protocol",
    "StateGraph": "ramify.methods.graph_credit",
    "TreeSampler": "ramify.methods.tree_rollouts",
    "BudgetAllocator": "ramify.methods.tree_rollouts",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'ramify' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
