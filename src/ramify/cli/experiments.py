"""Reproductions and cases of methods, found by entry point: they come in a separate distribution, or a third party's.

Groups: ``ramify.experiments`` (what ``ramify repro`` and ``ramify check method`` call, of ``ramify-experiments`` alone),
``ramify.reproductions``, ``ramify.real_reproductions`` and ``ramify.cases`` (of any distribution; the name is the method's slug).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.extras import needed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def command(name: str) -> Any:
    """The function that runs a verb. Raises NeedsError where its distribution is not installed."""
    there = found("experiments")
    if name not in there:
        raise NeedsError(
            "reproductions and cases are in the distribution ramify-experiments, which is not installed: "
            "pip install ./experiments in a checkout of ramify"
        )
    return there[name].load()


def found(group: str) -> dict[str, EntryPoint]:
    """Entry points of the group ``ramify.GROUP`` by name, sorted; none is imported. Raises UserError where two have one name."""
    from importlib.metadata import entry_points

    entries = {(entry.name, entry.value): entry for entry in entry_points(group=f"ramify.{group}")}
    by_name: dict[str, EntryPoint] = {}
    for name, value in sorted(entries):
        if name in by_name:
            raise UserError(f"two distributions bring {group} of '{name}': {by_name[name].value} and {value}; uninstall one")
        by_name[name] = entries[name, value]
    return by_name


def chosen(group: str, name: str) -> list[str]:
    """``name``, or every name of the group for ``all``. Raises UserError with the nearest name where there is none."""
    known = list(found(group))
    if name != "all" and name not in known:
        raise UserError(f"no {group.removesuffix('s').replace('_', ' ')} '{name}' ({nearest(name, ['all', *known])})")
    return known if name == "all" else [name]


def load(group: str, name: str) -> Any:
    """What the entry point ``name`` of a group names.

    Raises NeedsError where it needs an extra, UserError where it cannot be imported.
    """
    entry = found(group)[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise needed(error) or UserError(
            f"the entry point {name} = {entry.value!r} of ramify.{group} cannot be loaded: {error}"
        ) from error
