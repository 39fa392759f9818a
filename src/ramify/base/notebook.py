"""How runs, trees, attempts, forks and answers of `why` show themselves in a notebook.

The pages are made by :mod:`ramify.web`, above everything that is shown; it is loaded by name when a notebook asks.
"""

from __future__ import annotations

import importlib


def html(value: object) -> str:
    """``value`` as HTML for the cell of a notebook: what ``_repr_html_`` returns."""
    text: str = importlib.import_module("ramify.web.notebook").shown(value)
    return text
