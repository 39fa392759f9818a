"""The one function that makes a string safe inside HTML and SVG."""

from __future__ import annotations

import html
import json
import unicodedata


def escape(value: object) -> str:
    """``value`` as text that is inert between tags and inside quoted attributes, and valid XML.

    Markup characters become entities. Characters a reader cannot see and that change how others are read (controls, bidirectional
    overrides and other format characters, lone surrogates, private and unassigned ones) become a visible ``[U+202E]``.
    """
    return html.escape(visible(str(value)), quote=True)


def visible(text: str) -> str:
    """``text`` with the characters that a reader cannot see written out, as :func:`escape` shows them; markup stays as it is."""
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def data_block(value: object) -> str:
    """``value`` as JSON that is inert inside a ``<script type="application/json">``: ASCII, no markup characters, no NaN.

    Texts in it are data. Whoever shows them sets them as text, after :func:`visible`.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u0027":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _visible(char: str) -> str:
    if char in "\n\t" or (char >= " " and char < "\x7f"):
        return char
    return f"[U+{ord(char):04X}]" if unicodedata.category(char).startswith("C") else char
