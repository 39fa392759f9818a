"""What a page and a summary show of the results of a run: those it keeps, and the live view of the method that made it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.render.result import Section, from_data

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.node import KeptResult


def sections_of(run: Run) -> dict[str, tuple[Section, ...]]:
    """Sections by the verb they are of. A run of a method whose module ``views`` has ``sections(run)`` shows these, finished or
    not."""
    by_maker = {kept.maker: sections_of_kept(run, kept) for kept in run.results()}
    live = tuple(_live(run))
    return (
        {run.kind: live, **{maker: sections for maker, sections in by_maker.items() if maker != run.kind}} if live else by_maker
    )


def sections_of_kept(run: Run, kept: KeptResult) -> tuple[Section, ...]:
    """Sections of one result, and what its verb said on standard error."""
    return (*_sections(run, kept), *_caveats(kept))


def _sections(run: Run, kept: KeptResult) -> tuple[Section, ...]:
    """Those that are kept; of a damaged one what is wrong with it, so that the rest of the run is shown."""
    try:
        return from_data(kept.sections, f"{run.folder}, the result of {kept.maker}")
    except UserError as error:
        return (Section.of("", f"It cannot be shown: {error}."),)


def _caveats(kept: KeptResult) -> Iterable[Section]:
    """What its verb said on standard error."""
    caveats = kept.result.get("caveats")
    if isinstance(caveats, list) and caveats:
        yield Section.of(f"Before you trust {kept.maker}", "\n".join(map(str, caveats)))


def _live(run: Run) -> Iterable[Section]:
    slug, space, _ = run.kind.partition(" ")
    if not space:
        return ()
    try:
        package = registry.get("method", slug).__name__
    except UserError:
        return ()
    if importlib.util.find_spec(f"{package}.views") is None:
        return ()
    sections: Iterable[Section] = importlib.import_module(f"{package}.views").sections(run)
    return sections
