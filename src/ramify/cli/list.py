"""``ramify list``: the kinds of components, the names of one kind, or the description of one."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from ramify.base import registry
from ramify.base.errors import UserError, nearest
from ramify.base.words import unwrapped
from ramify.cli.methods import summary
from ramify.kit import Json, Verbs, argument

app = Verbs("list")


@app.itself()
def list_(
    what: Annotated[
        str | None, argument(metavar="[KIND or NAME]", help="A kind of component, or the name of one component.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List components. Without an argument: their kinds, and the methods."""
    from ramify.render import terminal

    if what is None:
        methods = {slug: summary(slug) for slug in registry.builtin_methods()}
        text = terminal.table(["kind", "what it is"], list(registry.KINDS.items()))
        text += "\n\n" + terminal.table(["method", "what it does"], list(methods.items()))
        text += "\n\nramify list KIND names the components of one kind; ramify list NAME describes one."
        terminal.emit({"kinds": registry.KINDS, "methods": methods}, as_json, text)
    elif what in registry.KINDS:
        parts = {name: _first_line(registry.get(what, name)) for name in registry.names(what)}
        if not parts and (lacking := registry.lacking(what)) is not None:
            raise lacking
        text = terminal.table([what, "what it is"], list(parts.items())) if parts else f"no {what} is known"
        terminal.emit({"kind": what, "names": parts}, as_json, text)
    else:
        found = [_describe(kind, what) for kind in registry.KINDS if what in registry.names(kind)]
        if not found:
            known = [*registry.KINDS, *(name for kind in registry.KINDS for name in registry.names(kind))]
            needs = {str(lacking) for kind in registry.KINDS if (lacking := registry.lacking(kind)) is not None}
            raise UserError("; ".join([f"there is no component '{what}' ({nearest(what, known)})", *sorted(needs)]))
        text = "\n\n".join(f"{part['kind']} {part['name']} ({part['where']})\n\n{part['text']}" for part in found)
        terminal.emit({"name": what, "parts": found}, as_json, text)


def _first_line(part: Any) -> str:
    return unwrapped(getattr(part, "help", None) or inspect.getdoc(part) or "").partition("\n")[0]


def _describe(kind: str, name: str) -> dict[str, str]:
    part = registry.get(kind, name)
    if inspect.ismodule(part):
        where = part.__name__
    else:
        described = part if hasattr(part, "__qualname__") else type(part)
        where = f"{described.__module__}.{described.__qualname__}"
    return {"kind": kind, "name": name, "where": where, "text": inspect.getdoc(part) or ""}
