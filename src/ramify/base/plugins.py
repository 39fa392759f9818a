"""Plug-ins: an installed package names a module in its entry-point group ``ramify``; importing that module registers parts.

``RAMIFY_PLUGINS`` set and empty turns all plug-ins off. A plug-in that fails to load is remembered, never fatal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

GROUP = "ramify"


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plug-in that could not be imported, and why."""

    name: str
    module: str
    reason: str


_failures: list[PluginFailure] = []
_loaded = False


def load() -> list[PluginFailure]:
    """Import every plug-in once and return those that failed."""
    global _loaded
    if _loaded or os.environ.get("RAMIFY_PLUGINS") == "":
        return list(_failures)
    _loaded = True
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        try:
            entry.load()
        except Exception as error:  # any failure of a stranger's module is reported, not raised
            _failures.append(PluginFailure(entry.name, entry.value, f"{type(error).__name__}: {error}"))
    return list(_failures)
