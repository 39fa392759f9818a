"""The one function that makes a string safe inside HTML and SVG."""

from __future__ import annotations

import html
import unicodedata


def escape(value: object) -> str:
    """``value`` as text that is inert between tags and inside quoted attributes, and valid XML.

    Markup characters become entities. Characters a reader cannot see and that change how others are read (controls, bidirectional
    overrides and other format characters, lone surrogates, private and unassigned ones) become a visible ``[U+202E]``.
    """
    return html.escape("".join(map(_visible, str(value))), quote=True)


def _visible(char: str) -> str:
    if char in "\n\t" or (char >= " " and char < "\x7f"):
        return char
    return f"[U+{ord(char):04X}]" if unicodedata.category(char).startswith("C") else char
