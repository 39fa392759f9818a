"""ramify: branch a language-model agent's run at any token, see which step had which consequence, and use that.

Importing ramify loads no third-party package; names load on first use.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

#: Public names and the modules they load from.
_NAMES: dict[str, str] = {
    "improve": "jobs.improve",
    "resume": "jobs.improve",
    "ImproveConfig": "jobs.improve",
    "play": "jobs.play",
    "fork_run": "jobs.play",
    "Run": "trace.db",
    "ScriptedModel": "model.scripted",
    "LocalModel": "engine.local",
    "Sampling": "model.protocol",
    "Task": "env.protocol",
    "Observation": "env.protocol",
    "Panel": "env.protocol",
    "StateGraph": "methods.graph_credit",
    "TreeSampler": "methods.tree_rollouts",
    "BudgetAllocator": "methods.tree_rollouts",
}


def __getattr__(name: str) -> Any:
    from ramify.base.lazy import loader

    return loader(__name__, _NAMES)(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
