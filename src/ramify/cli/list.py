"""``ramify list``: the kinds of components, the names of one kind, or the description of one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ramify.base import registry
from ramify.base.errors import UserError, nearest
from ramify.base.words import unwrapped
from ramify.cli.methods import summary
from ramify.kit import Verbs, argument
from ramify.render.result import Result, Section, table

app = Verbs("list")


@dataclass(frozen=True)
class KnownKinds(Result):
    """The kinds of components, and the methods, each with what it is."""

    kinds: Mapping[str, str]
    methods: Mapping[str, str]

    def sections(self) -> Iterable[Section]:
        """Both."""
        yield Section.of(
            "",
            table(("kind", "what it is"), self.kinds.items()),
            table(("method", "what it does"), self.methods.items()),
            "ramify list KIND names the components of one kind; ramify list NAME describes one.",
        )


@dataclass(frozen=True)
class KnownNames(Result):
    """The components of one kind, each with what it is."""

    kind: str
    names: Mapping[str, str]

    def sections(self) -> Iterable[Section]:
        """The names."""
        none = "" if self.names else f"no {self.kind} is known"
        yield Section.of("", table((self.kind, "what it is"), self.names.items()), none)


@dataclass(frozen=True)
class DescribedPart:
    """One component: where it is, and what it says of itself."""

    kind: str
    name: str
    where: str
    text: str


@dataclass(frozen=True)
class DescribedName(Result):
    """The components of one name."""

    name: str
    parts: tuple[DescribedPart, ...]

    def sections(self) -> Iterable[Section]:
        """Each with its text."""
        for part in self.parts:
            yield Section.of("", f"{part.kind} {part.name} ({part.where})", part.text)


@app.itself()
def list_(
    what: Annotated[
        str | None, argument(metavar="[KIND or NAME]", help="A kind of component, or the name of one component.")
    ] = None,
) -> KnownKinds | KnownNames | DescribedName:
    """List components. Without an argument: their kinds, and the methods."""
    if what is None:
        return KnownKinds(registry.KINDS, {slug: summary(slug) for slug in registry.builtin_methods()})
    if what in registry.KINDS:
        parts = {name: _first_line(registry.get(what, name)) for name in registry.names(what)}
        if not parts and (lacking := registry.lacking(what)) is not None:
            raise lacking
        return KnownNames(what, parts)
    described = tuple(_describe(kind, what) for kind in registry.KINDS if what in registry.names(kind))
    if not described:
        known = [*registry.KINDS, *(name for kind in registry.KINDS for name in registry.names(kind))]
        needs = {str(lacking) for kind in registry.KINDS if (lacking := registry.lacking(kind)) is not None}
        raise UserError("; ".join([f"there is no component '{what}' ({nearest(what, known)})", *sorted(needs)]))
    return DescribedName(what, described)


def _first_line(part: Any) -> str:
    return unwrapped(getattr(part, "help", None) or inspect.getdoc(part) or "").partition("\n")[0]


def _describe(kind: str, name: str) -> DescribedPart:
    part = registry.get(kind, name)
    if inspect.ismodule(part):
        where = part.__name__
    else:
        described = part if hasattr(part, "__qualname__") else type(part)
        where = f"{described.__module__}.{described.__qualname__}"
    return DescribedPart(kind, name, where, inspect.getdoc(part) or "")
