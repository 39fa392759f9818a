"""How runs, trees, attempts, forks and answers of `why` show themselves in a notebook: by the registered renderer, which lies
above everything that is shown and is loaded when a notebook asks."""

from __future__ import annotations

from ramify.base import registry


def html(value: object) -> str:
    """``value`` as HTML for the cell of a notebook: what ``_repr_html_`` returns."""
    text: str = registry.get("renderer", "notebook")(value)
    return text
