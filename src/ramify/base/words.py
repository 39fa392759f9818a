"""Numbers in sentences, and sentences in lines."""

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
    """``text`` with every paragraph on one line; paragraphs with indented lines or items of a list stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        paragraph if re.search(r"^(\s|[-*|] )", paragraph, re.MULTILINE) else " ".join(paragraph.split())
        for paragraph in paragraphs
    )
