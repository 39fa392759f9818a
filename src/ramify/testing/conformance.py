"""Which battery checks which kind of component, for ``ramify check`` and the pytest plug-in; batteries are imported on first use.

A battery is a function ``check_KIND(part, ...) -> list[Problem]`` in a module whose ``CHECKS`` lists its checks. A new kind adds
a row.
"""

from __future__ import annotations

import importlib
from typing import Any

from ramify.base.errors import NeedsError, RamifyError, UserError, nearest
from ramify.base.extras import needed
from ramify.base.problem import Problem

#: Kind -> module and function of its battery.
BATTERIES = {
    "model": "ramify.testing.model:check_model",
    "drafter": "ramify.testing.drafter:check_drafter",
    "env": "ramify.testing.env:check_env",
    "judge": "ramify.testing.judge:check_judge",
    "credit": "ramify.testing.credit:check_credit",
    "searcher": "ramify.testing.searcher:check_searcher",
    "loss": "ramify.testing.loss:check_loss",
    "compactor": "ramify.testing.compactor:check_compactor",
    "sandbox": "ramify.testing.sandbox:check_sandbox",
    "middleware": "ramify.testing.middleware:check_middleware",
    "reader": "ramify.testing.reader:check_reader",
}
#: Names the problem that ended the battery early; the problems it had found before are lost.
STOPPED = "the checks"


def known_kind(kind: str) -> str:
    """``kind``, where it has a battery. Raises UserError with the nearest that has."""
    if kind not in BATTERIES:
        raise UserError(f"there are no checks for kind '{kind}' ({nearest(kind, BATTERIES)})")
    return kind


def checks(kind: str) -> list[str]:
    """Names of the checks of one kind, in the order in which they run. Raises NeedsError where its battery is not installed."""
    battery = getattr(_battery(kind)[0], "CHECKS", ())
    return [check.__name__.removeprefix("_") for check in battery]


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
