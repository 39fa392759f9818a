"""Numbers in sentences."""

from __future__ import annotations


def plural(n: int, noun: str) -> str:
    """``n`` with its noun: "1 tree", "3 trees", "2 replies", "2 leaves"."""
    if n == 1:
        return f"1 {noun}"
    for end, many in (("eaf", "eaves"), ("ay", "ays"), ("y", "ies")):
        if noun.endswith(end):
            return f"{n} {noun.removesuffix(end)}{many}"
    return f"{n} {noun}s"
