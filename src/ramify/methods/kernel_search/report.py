"""What a search came to, as a comment for a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.base.words import plural
from ramify.render.markdown import fenced, markdown

MOST_ROWS = 20


def comment(found: Mapping[str, Any], source: str, language: str) -> str:
    """Markdown of what `explain` found: the verdict, the fastest candidates, advice that was tried,
    and the new source to unfold."""
    order = sorted(found["tree"][1:], key=lambda one: -(one["speedup"] or 0))
    rows = [
        [one["number"], one["how"], "refused" if one["speedup"] is None else f"{one['speedup']:.2f}", f"of {one['parent']}"]
        for one in order[:MOST_ROWS]
    ]
    refused = sum(found["refused"].values())
    lines = [
        "### Is this kernel faster?",
        "",
        f"{found['why'] or 'The search has not ended'}. {plural(found['candidates'], 'candidate')}, {refused} refused.",
        "",
        *markdown(["candidate", "made by", "times as fast, lower bound", "made"], rows),
    ]
    if found["tools"]:
        tools = [[name, row["gained"], row["tried"]] for name, row in found["tools"].items()]
        lines += ["", *markdown(["advice of", "gained 1.5x", "tried"], tools)]
    if found["best"]:
        lines += [
            "",
            f"<details><summary>Source of candidate {found['best']}</summary>",
            "",
            fenced(source, language),
            "",
            "</details>",
        ]
    return "\n".join([*lines, "", "Made by `ramify kernel-search explain --out FILE.md`."]) + "\n"
