"""One self-contained page of tables and pictures: what a method reports, for a browser.
No script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramify.render.escape import escape

_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.6rem 0;display:block;overflow-x:auto}td,th{padding:.2rem .7rem;text-align:left;"
    "border-bottom:1px solid #8884}svg{max-width:100%;height:auto}"
)


def page(title: str, note: str, parts: Sequence[str]) -> str:
    """A whole document. ``parts`` are HTML already: texts in them went through :func:`ramify.render.escape.escape`."""
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
    )
    return f"{head}<body><h1>{escape(title)}</h1><p>{escape(note)}</p>{''.join(parts)}</body></html>"


def html_table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table under a heading, one column a key, in the order in which keys appear; floats with 3 significant digits."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in columns) + "</tr>" for row in rows)
    return (f"<h2>{escape(title)}</h2>" if title else "") + f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_cell, value)) + "]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
