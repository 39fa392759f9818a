"""Plug-ins: an installed package names a module in its entry-point group ``ramify``; importing that module registers parts.

``RAMIFY_PLUGINS`` set and empty turns all plug-ins off. A plug-in that fails to load is remembered, never fatal; what it prints
while it loads goes to standard error, so that it cannot spoil a result on standard output.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramify.base.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # which takes time to load, so it waits until plug-ins are wanted

GROUP = "ramify"
VARIABLE = "RAMIFY_PLUGINS"
PATIENCE = 5.0
"""Seconds after which a plug-in that is still loading is named."""


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plug-in that could not be loaded, and why."""

    name: str
    module: str
    reason: str


_failures: list[PluginFailure] = []
_loaded = False
_loading = False


def load() -> list[PluginFailure]:
    """Import every plug-in once and return those that failed."""
    global _loaded, _loading
    if _loaded or off():
        return list(_failures)
    _loaded = _loading = True
    try:
        for entry in found():
            reason = _load(entry)
            if reason:
                _failures.append(PluginFailure(entry.name, entry.value, reason))
    finally:
        _loading = False
    return list(_failures)


def off() -> bool:
    """Whether plug-ins are turned off."""
    return os.environ.get(VARIABLE) == ""


def loading() -> bool:
    """Whether a plug-in is being imported at this moment."""
    return _loading


def found() -> list[EntryPoint]:
    """The plug-ins that are installed, sorted; none is imported."""
    from importlib.metadata import entry_points

    entries = {(entry.name, entry.value): entry for entry in entry_points(group=GROUP)}
    return [entries[key] for key in sorted(entries)]


def _load(entry: EntryPoint) -> str:
    """Import one plug-in. Returns why it failed, or ""."""
    late = threading.Timer(PATIENCE, _name_late, (entry,))
    late.daemon = True
    late.start()
    try:
        with redirect_stdout(sys.stderr):
            loaded = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a stranger's module may do anything, sys.exit too: it is reported, not raised
        return f"{type(error).__name__}: {error}".rstrip(": ")
    finally:
        late.cancel()
    if not isinstance(loaded, types.ModuleType):
        return f"it names {type(loaded).__name__} '{entry.value}' where a module is expected, the one that registers the parts"
    return ""


def _name_late(entry: EntryPoint) -> None:
    sys.stderr.write(f"ramify: the plug-in {entry.name!a} ({entry.value!a}) is still loading; {VARIABLE}= turns plug-ins off\n")
    sys.stderr.flush()


def find_attribute(spec: str) -> Any:
    """What ``module:attribute`` names. Raises UserError where there is no such thing."""
    module, _, attribute = spec.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except Exception as error:  # a module of the user's own may raise anything
        raise UserError(f"'{spec}' names nothing that can be imported: {type(error).__name__}: {error}") from error
    return value
