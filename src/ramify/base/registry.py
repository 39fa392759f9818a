"""The registry of components: ``register(kind, name)`` on a class or function, ``get(kind, name)`` to find it.

Built-in components are registered like those of plug-ins, by the modules listed here; a module is imported only when a name of
its kind is looked up. Methods are the packages under ``ramify.methods``."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ramify.base import plugins
from ramify.base.errors import NeedsError, RamifyError, UserError, nearest
from ramify.base.extras import needed

#: Kinds of components, each with what a component of that kind is.
KINDS = {
    "env": "an environment that an agent acts in",
    "model": "continues a prefix of tokens or messages",
    "drafter": "proposes a model's next tokens, which it verifies",
    "judge": "says whether a text or a path is right, or how good it is",
    "credit": "assigns each sampled token its share in how the attempt ended",
    "sampling": "how an update of `ramify improve` spends its tokens",
    "searcher": "chooses what to expand",
    "loss": "a term of the training objective",
    "compactor": "shortens a context",
    "sandbox": "runs untrusted code",
    "middleware": "a model that wraps a model",
    "reader": "reads another tool's traces into a run",
    "writer": "writes a run for another tool",
    "player": "continues attempts in a method's run: which agent, in which environment",
    "disassembler": "reads kernels as compiled for a chip that need not be here",
    "backend": "workers that attempts are played on",
    "method": "a published method",
    "assertion": "an assertion for tests of components and runs",
    "renderer": "shows runs and results somewhere",
}

#: Kinds of which classes or functions are registered; of the others any record.
_CALLABLE = (
    "env", "model", "drafter", "judge", "credit", "sampling", "searcher", "loss", "compactor", "sandbox", "middleware",
    "player", "disassembler", "assertion", "renderer",
)  # fmt: skip

#: Where built-in components are defined: a module, or a package all of whose modules are read. A method names its own
#: (``COMPONENTS``).
_HOMES: dict[str, tuple[str, ...]] = {
    "env": ("ramify.env.builtin", "ramify.integrations.environments", "ramify.integrations.harnesses.commands"),
    "model": ("ramify.model",),
    "judge": ("ramify.score",),
    "credit": ("ramify.score.credit",),
    "sampling": ("ramify.jobs.sampling",),
    "searcher": ("ramify.rollout.search",),
    "loss": ("ramify.train.losses",),
    "compactor": ("ramify.rollout.compact",),
    "sandbox": ("ramify.sandbox",),
    "middleware": ("ramify.score.replies",),
    "backend": ("ramify.rollout.backends", "ramify.integrations.ray"),
    "reader": (
        "ramify.trace.formats",
        "ramify.integrations.formats",
        "ramify.integrations.inspect.calls",
        "ramify.integrations.inspect.logs",
        "ramify.integrations.trainers.trl",
        "ramify.integrations.trainers.verl",
    ),
    "writer": (
        "ramify.trace.formats",
        "ramify.integrations.formats",
        "ramify.integrations.inspect.logs",
        "ramify.integrations.trainers.trl",
        "ramify.integrations.trainers.verl",
    ),
    "assertion": ("ramify.integrations.pytest.assertions",),
    "renderer": ("ramify.web.notebook",),
}

_parts: dict[tuple[str, str], Any] = {}
_origins: dict[tuple[str, str], str] = {}
_lacking: dict[str, NeedsError] = {}
"""Kind -> what its components need that could not be loaded."""

T = TypeVar("T")


def register(kind: str, name: str) -> Callable[[T], T]:
    """Decorate a class or function (or call with any object) to make it known as ``name``.

    Raises UserError on an unknown kind, on an object that is not a class or function where the kind needs one, or when another
    component already has the name."""
    kind = known_kind(kind)
    if not isinstance(name, str) or not name or ":" in name or name != name.strip():
        raise UserError(f"{name!r} is not a name for a {kind}: a name is a text without ':' and without spaces around it")
    caller = str(sys._getframe(1).f_globals.get("__name__", ""))

    def keep(part: T) -> T:
        if kind in _CALLABLE and not callable(part):
            raise UserError(
                f"{kind} '{name}' is registered as {type(part).__name__}; a class or function is needed, which makes it"
            )
        if plugins.loading() and not caller.startswith(
            "ramify."
        ):  # built-in components come first, so that they keep their names
            for _ in _load_builtin(kind):
                pass
        origin = _origin(part, caller)
        if (kind, name) in _parts and _origins[kind, name] != origin:
            raise UserError(f"{kind} '{name}' is registered twice: by {_origins[kind, name]} and by {origin}")
        _parts[kind, name], _origins[kind, name] = part, origin
        return part

    return keep


def get(kind: str, name: str) -> Any:
    """The component registered as ``name``; a method's package for kind ``method``.

    Raises UserError with the nearest name, NeedsError where components of the kind need an extra and none has the name."""
    kind = known_kind(kind)
    if kind == "method" and name in builtin_methods():
        return importlib.import_module("ramify.methods." + name.replace("-", "_"))
    for _ in _load(kind):
        if (kind, name) in _parts:
            return _parts[kind, name]
    if kind in _lacking:
        raise _lacking[kind]
    raise UserError(f"unknown {kind} '{name}' ({nearest(name, names(kind))})")


def names(kind: str) -> list[str]:
    """Every known name of ``kind``, sorted."""
    kind = known_kind(kind)
    for _ in _load(kind):
        pass
    registered = {name for part_kind, name in _parts if part_kind == kind}
    return sorted(registered | set(builtin_methods() if kind == "method" else ()))


def lacking(kind: str) -> NeedsError | None:
    """What components of ``kind`` need that is not installed, for which :func:`names` leaves them out; None where nothing is."""
    names(kind)
    return _lacking.get(known_kind(kind))


def known_kind(kind: str) -> str:
    """The kind of that name, where there is one. Raises UserError with the nearest."""
    if kind not in KINDS:
        raise UserError(f"unknown kind of component '{kind}' ({nearest(kind, KINDS)})")
    return kind


def _load(kind: str) -> Iterator[None]:
    """Import the modules of ``kind`` one by one, plug-ins last, yielding before the first and after each."""
    yield
    yield from _load_builtin(kind)
    plugins.load()
    yield


def _load_builtin(kind: str) -> Iterator[None]:
    for home in homes(kind):
        if importlib.util.find_spec(home) is None:
            continue
        module = _import(kind, home)
        yield
        for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
            _import(kind, f"{home}.{info.name}")
            yield


def _import(kind: str, module: str) -> types.ModuleType | None:
    """A module of components; None where it needs an extra that is not installed: the other components are known all the same."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (needs := needed(error)) is None:
            raise
        _lacking[kind] = needs
        return None


def homes(kind: str) -> list[str]:
    """The modules, or packages all of whose modules are read, that register the built-in components of ``kind``."""
    modules = [*_HOMES.get(kind, ())]
    for slug in builtin_methods():
        package = "ramify.methods." + slug.replace("-", "_")
        parts: dict[str, tuple[str, ...]] = getattr(importlib.import_module(package), "COMPONENTS", {})
        modules += [f"{package}.{home}" for home in parts.get(kind, ())]
    return modules


def builtin_methods() -> list[str]:
    """Slugs of the packages under ``ramify.methods``, found by folder: listing them imports none."""
    spec = importlib.util.find_spec("ramify.methods")
    folders = (spec.submodule_search_locations if spec else None) or []
    return sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(folders) if info.ispkg)


def _origin(part: Any, caller: str) -> str:
    """Where a component comes from: its class or function, the functions a record holds, else who registered it."""
    if hasattr(part, "__qualname__"):
        return f"{part.__module__}.{part.__qualname__}"
    held = [getattr(part, field.name) for field in dataclasses.fields(part)] if dataclasses.is_dataclass(part) else []
    return ", ".join(_origin(value, caller) for value in held if callable(value)) or f"{caller}.{type(part).__qualname__}"


#: Kinds whose registered object is the component itself; for the others it is a class or function that makes one.
AS_THEY_ARE = ("loss", "middleware")


def make(kind: str, part: Any, argument: str | None = None) -> Any:
    """The component that a registered object stands for: what its class or function makes, from ``argument`` where one is given.

    Raises UserError where it cannot be made so.
    """
    if kind == "middleware" and argument is not None:
        return functools.partial(part, argument=argument)
    if kind in AS_THEY_ARE or not (isinstance(part, type) or (callable(part) and hasattr(part, "__qualname__"))):
        if argument is not None:
            raise UserError(f"this {kind} takes no argument, and was given '{argument}'")
        return part
    if argument is not None and not takes_text(part):
        raise UserError(f"the {kind} '{getattr(part, 'name', part.__qualname__)}' takes no argument, and was given '{argument}'")
    try:
        return part() if argument is None else part(argument)
    except RamifyError:
        raise
    except (Exception, SystemExit) as error:  # a third-party class may raise anything: that is why it cannot be made
        name = getattr(part, "__qualname__", str(part))
        how = "without an argument" if argument is None else f"with the argument '{argument}'"
        raise UserError(f"{kind} '{name}' cannot be made {how}: {type(error).__name__}: {error}") from error


def takes_text(make: Any) -> bool:
    """Whether the first parameter of a component's class or function can be the text after ``NAME:``."""
    try:
        first = next(iter(inspect.signature(make).parameters.values()), None)
    except ValueError:  # code that is not Python's need not say
        return True
    return first is not None and first.annotation in (str, "str", first.empty)


def named(kind: str, name: str) -> Any:
    """The component registered as ``name``, or as NAME with an argument for ``NAME:ARGUMENT``.
    Raises UserError with the nearest name."""
    plain, colon, argument = name.partition(":")
    return make(kind, get(kind, plain), argument if colon else None)
