"""Plug-ins: an installed package names a module in its entry-point group ``ramify``; importing that module registers components.
Also finds components of the user's that no package registers, by ``MODULE:ATTRIBUTE`` or ``FILE.py:ATTRIBUTE``.

``RAMIFY_PLUGINS`` set and empty turns all plug-ins off. A plug-in that fails to load is remembered, never fatal; what it prints
while it loads goes to standard error, so that it cannot spoil a result on standard output.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.base.errors import NeedsError, RamifyError, UserError, nearest
from ramify.base.extras import needed
from ramify.base.ids import stable_hash

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # which takes time to load, so it waits until plug-ins are wanted

GROUP = "ramify"
OWN = "_own_"  # how the names of modules begin that are files of the user's
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


def whose(error: BaseException) -> str:
    """Whose code raised ``error``, in words: a plug-in's or the user's; "" where it is neither's."""
    from importlib.metadata import entry_points

    every = entry_points()
    groups = [group for group in every.groups if group == GROUP or group.startswith("ramify.")]
    packages = {entry.module.partition(".")[0] for group in groups for entry in every.select(group=group)}
    named, frame = "", error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if module.startswith(OWN):
            named = f"your own {frame.tb_frame.f_code.co_filename}"
        elif top == "ramify":
            named = ""
        elif top in packages and top != "ramify_experiments":
            named = f"the plug-in '{top}'"
        frame = frame.tb_next
    return named


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
    except BaseException as error:  # a third-party module may do anything, sys.exit too: it is reported, not raised
        return f"{type(error).__name__}: {error}".rstrip(": ")
    finally:
        late.cancel()
    if not isinstance(loaded, types.ModuleType):
        return (
            f"it names {type(loaded).__name__} '{entry.value}' where a module is expected, the one that registers the components"
        )
    return ""


def _name_late(entry: EntryPoint) -> None:
    sys.stderr.write(f"ramify: the plug-in {entry.name!a} ({entry.value!a}) is still loading; {VARIABLE}= turns plug-ins off\n")
    sys.stderr.flush()


def own_path(spec: str) -> tuple[str, str] | None:
    """How a text names a component of the user's: its prefix, and the path for :func:`find_attribute`; None where it names no
    such component.

    ``factory:PATH`` is what the callable at PATH returns, ``python:PATH`` the object itself,
    as is ``FILE.py:ATTRIBUTE`` (prefix "").
    """
    word, colon, rest = spec.partition(":")
    if colon and word in ("factory", "python"):
        return word, rest
    return ("", spec) if colon and word.endswith(".py") else None


def find_attribute(spec: str, missing: str = "") -> Any:
    """What ``MODULE:ATTRIBUTE`` or ``FILE.py:ATTRIBUTE`` names (dots allowed in the attribute);
    the current folder is searched last.

    Raises UserError where there is no such attribute (``missing`` where there is no module of that name), NeedsError where it
    imports a package that is not installed."""
    module, colon, attribute = spec.rpartition(":")
    if not colon or not module or not attribute:
        raise UserError(f"'{spec}' is not MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE")
    try:
        value: Any = _load_file(Path(module)) if module.endswith(".py") else _load_module(module)
    except RamifyError:
        raise
    except ModuleNotFoundError as error:
        if module == error.name or module.startswith(f"{error.name}."):
            raise UserError(missing or f"'{spec}' names nothing that can be imported: {error}") from error
        raise needed(error) or NeedsError(f"{module} needs '{error.name}', which is not installed") from error
    except (Exception, SystemExit) as error:  # code of the user's own: what it raises is what is wrong with it
        raise UserError(f"'{spec}' names nothing that can be imported: {type(error).__name__}: {error}") from error
    for name in attribute.split("."):
        if not hasattr(value, name):
            known = [known for known in getattr(value, "__dict__", ()) if not known.startswith("_")]
            raise UserError(f"'{spec}' names nothing that can be imported: there is no '{name}' ({nearest(name, known)})")
        value = getattr(value, name)
    return value


def _load_module(name: str) -> types.ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def _load_file(file: Path) -> types.ModuleType:
    """The module in a file; loaded once, so that every caller gets the same objects."""
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    name = f"{OWN}{file.stem}_{stable_hash(str(file.resolve()), file.read_bytes().hex())[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where dataclasses look for the module of a class
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def own_component(
    spec: str, kind: type, has: str, adapt: Callable[[str, Callable[..., Any]], Any] = lambda spec, function: None
) -> Any:
    """The component of the user's that ``spec`` names, or what it makes when it is a class or function.

    ``adapt`` makes a component of a plain function, None where it cannot. Raises UserError on what fails or does not follow the
    protocol ``kind``."""
    named = find_attribute((own_path(spec) or ("", spec))[1])
    if not isinstance(named, type) and _fits(spec, named, kind):
        return named
    word = kind.__name__.lower()
    if not callable(named):
        raise UserError(f"{spec} is a {type(named).__name__}, which is no {word}: one has {has}")
    component = None if isinstance(named, type) else adapt(spec, named)
    if component is None:
        if not takes(named, 0):
            raise UserError(f"{spec} cannot be called without arguments, and is no {word}: one has {has}")
        component = called(spec, named)
        if not _fits(spec, component, kind):
            raise UserError(f"{spec} returned a {type(component).__name__}, which is no {word}: one has {has}")
    return component


def _fits(spec: str, thing: Any, kind: type) -> bool:
    """Whether it has the members of the protocol. Properties are not read where it can be told without (as from Python 3.12 on):
    those of an endpoint are requests."""
    named = {
        name for base in kind.__mro__[:-1] for name in (*vars(base), *getattr(base, "__annotations__", ())) if name[0] != "_"
    }
    missing = object()
    if named and all(inspect.getattr_static(thing, name, missing) is not missing for name in named):
        return True
    try:
        return isinstance(thing, kind)
    except Exception as error:  # a property of a third-party object may raise anything
        raise UserError(f"{spec} failed: {type(error).__name__}: {error}") from error


def own_function(spec: str, *arguments: str) -> Callable[..., Any]:
    """The user's own function that ``spec`` names (see :func:`own_path`), to be called with ``arguments``, which are their names.

    It is the function or callable object itself, or what a class or a function without arguments makes. Raises UserError where
    there is no such thing, or it cannot be called so.
    """
    word, path = own_path(spec) or ("", spec)
    what = find_attribute(path)
    named = ", ".join(arguments)
    if not callable(what):
        raise UserError(f"{spec} is a {type(what).__name__}, which cannot be called with ({named})")
    if isinstance(what, type) or not takes(what, len(arguments)) or (word == "factory" and takes(what, 0)):
        if not takes(what, 0):
            raise UserError(f"{spec} cannot be called with ({named})")
        what = called(spec, what)
        if not callable(what) or not takes(what, len(arguments)):
            raise UserError(f"{spec} returned a {type(what).__name__}, which cannot be called with ({named})")
    function: Callable[..., Any] = what
    return function


def called(spec: str, make: Callable[[], Any]) -> Any:
    """What the user's own callable returns. Raises UserError naming ``spec`` where it fails."""
    try:
        return make()
    except RamifyError:
        raise
    except (Exception, SystemExit) as error:  # code of the user's own may raise anything
        raise UserError(f"{spec} failed: {type(error).__name__}: {error}") from error


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a callable takes this many arguments; True where its signature is unknown."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # code that is not Python's need not say
        return True
    return True


def source_of(function: Callable[..., Any]) -> str:
    """The source of a user's function, "" where there is none; it shows whether the function has changed."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""
