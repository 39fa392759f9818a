"""Numbers in sentences, and docstrings as help shows them."""

from __future__ import annotations

import re


def plural(n: int, noun: str) -> str:
    """``n`` with its noun: "1 tree", "3 trees", "2 replies", "2 leaves"."""
    if n == 1:
        return f"1 {noun}"
    for end, many in (("eaf", "eaves"), ("ay", "ays"), ("y", "ies")):
        if noun.endswith(end):
            return f"{n} {noun.removesuffix(end)}{many}"
    return f"{n} {noun}s"


def unwrapped(text: str) -> str:
    """``text`` with each paragraph on one line, for whoever shows it at another width; indented lines and lists stay."""
    return re.sub(r"(?<=\S)\n(?=[^\s*-])", " ", text.strip())


def summary(text: str) -> str:
    """The first paragraph of a docstring, on one line."""
    return unwrapped(text).partition("\n")[0]
