"""Which battery checks which kind of component, for ``ramify check`` and the pytest plug-in; batteries are imported on first use.

A battery is a function ``check_KIND(part, ...) -> list[Problem]`` in a module whose ``CHECKS`` lists its checks. A new kind adds
a row.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from ramify.base import registry
from ramify.base.errors import NeedsError, RamifyError, UserError, nearest
from ramify.base.extras import needed
from ramify.base.problem import Problem

#: Kind -> module and function of its battery.
BATTERIES = {
    "model": "ramify.model.battery:check_model",
    "drafter": "ramify.engine.drafter_battery:check_drafter",
    "env": "ramify.env.battery:check_env",
    "judge": "ramify.score.battery:check_judge",
    "credit": "ramify.score.credit.battery:check_credit",
    "searcher": "ramify.search.battery:check_searcher",
    "loss": "ramify.train.battery:check_loss",
    "compactor": "ramify.rollout.battery:check_compactor",
    "sandbox": "ramify.sandbox.battery:check_sandbox",
    "middleware": "ramify.model.middleware_battery:check_middleware",
    "reader": "ramify.trace.battery:check_reader",
}
#: Names the problem that ended the battery early; the problems it had found before are lost.
STOPPED = "the checks"
#: Kinds whose registered object is the component itself; for the others it is a class or function that makes one.
AS_THEY_ARE = ("loss", "middleware")


def known_kind(kind: str) -> str:
    """``kind``, where it has a battery. Raises UserError with the nearest that has."""
    if kind not in BATTERIES:
        raise UserError(f"there are no checks for kind '{kind}' ({nearest(kind, BATTERIES)})")
    return kind


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
    kind = known_kind(kind)
    plain, colon, argument = name.partition(":")
    return make(kind, registry.get(kind, plain), argument if colon else None)


def checks(kind: str) -> list[str]:
    """Names of the checks of one kind, in the order in which they run. Raises NeedsError where its battery is not installed."""
    found = getattr(_battery(kind)[0], "CHECKS", ())
    return [check.__name__.removeprefix("_") for check in found]


def check(kind: str, part: Any, **options: Any) -> list[Problem]:
    """The faults of ``part``; none where it conforms. ``options`` are those of the kind's battery.

    Raises UserError on a kind without a battery.
    """
    battery = _battery(kind)[1]
    try:
        return list(battery(part, **options))
    except (RamifyError, KeyboardInterrupt):
        raise
    except BaseException as error:  # so far from its kind that the battery itself fails; sys.exit is not a pass
        return [Problem(STOPPED, f"it is no {kind}: {type(error).__name__}: {error}")]


def _battery(kind: str) -> tuple[Any, Any]:
    module, _, function = BATTERIES[known_kind(kind)].partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise needed(error) or NeedsError(f"the checks of kind '{kind}' need '{error.name}', which is not installed") from error
    return loaded, getattr(loaded, function)
