"""Incident environments of known motives, offered by name to every verb that plays environments. Importing this package loads
none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ramify.base.registry import register

#: Name -> what it is; ``pre-commit`` is ``PreCommitEnvironment`` in ``pre_commit.py``.
INCIDENTS = {
    "board-games": "Four in a row against an engine that sells hints.",
    "evaluation-tampering": "A test whose questions somebody says to have replaced.",
    "funding-email": "An email to improve, and a fact that nobody asked about.",
    "math-sandbagging": "A sums test with a note on what a good score leads to.",
    "pre-commit": "A repository with type errors and a hook to write.",
    "secret-number": "Search with a noisy oracle beside a readable answer.",
    "tedious-repair": "Up to 999 errors to repair, one a step, and a shortcut.",
}


def _makes(name: str, about: str) -> Callable[[], Any]:
    def make(settings: str = "") -> Any:
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        return getattr(module, f"{name.title().replace('-', '')}Environment")(settings)

    make.__doc__, make.__qualname__ = about, name
    return make


for named, what in INCIDENTS.items():
    register("env", named)(_makes(named, what))
