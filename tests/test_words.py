"""One word for one thing, the one that the field uses: phrases that help texts and public docstrings must not fall back to.

A pattern forbids one sense of a word, so it is a phrase wherever the word alone has honest uses ("place in memory", "ask the
user").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KERNEL = (
    *(
        "base", "cli", "engine", "env", "integrations", "jobs", "model", "render", "rollout", "sandbox", "score", "testing",
    ),
    *("stats", "trace", "train", "web", "kit.py"),
)  # fmt: skip
#: What is held to the words: folders with Python or Markdown, and files.
METHODS = (
    *("cliffs", "crosscoder", "diagnose", "dspark", "early_decision", "earned_code_memory", "forensics", "governance"),
    *(
        "graph_credit",
        "implicit_advantage",
        "judge_evolution",
        "kernel_search",
        "maze_recovery",
        "orchestrator",
        "theory_loop",
        "tree_rollouts",
        "verify_or_ship",
    ),
    *("graph_credit", "implicit_advantage", "judge_evolution", "maze_recovery", "tree_rollouts", "verify_or_ship"),
    "world_model",
)
HELD = (
    *(f"src/ramify/{name}" for name in KERNEL),
    *(f"src/ramify/methods/{name}" for name in METHODS),
    *(f"docs/methods/{name.replace('_', '-')}.md" for name in METHODS),
    *("README.md", "AGENTS.md", "docs/index.md", "docs/quickstart.md", "docs/concepts.md", "docs/improve.md", "docs/howto"),
    *("docs/records.md", "docs/contributing.md", "docs/performance.md", "docs/threat-model.md", "docs/papers.md"),
)
#: A method's sentence on what it found is its verdict; elsewhere the word means a score.
KERNEL_ONLY = "score (in the kernel)"

#: What is not written -> what is written instead.
WORDS = {
    r"\b(samples?|path|training|conversation)? ?goes on (n times|without)\b|\bgo on sampling\b": "continue, resume",
    r"\b(a|the) bill\b": "cost estimate",
    r"\bin front of\b": "before",
    r"\bbehind (it|its|each|every|the|token|``\?``)\b": "after (of a position); an explanation is not behind a number either",
    r"\bin (the )?place of\b|\btakes? the place of\b": "instead of, replaces",
    r"\bat a (named )?boundary\b|\ba boundary failed\b": "infrastructure failure",
    r"\bstrangers?\b": "third-party, untrusted",
    r"\bplace keys?\b|\bkeyed by (its |their )?place\b|\btogether with its place\b": "sample key, derived from the position in "
    "the tree",
    r"\bof one's own\b": "of your own",
    r"\b(no|a|the|its|their|whose) verdicts?\b(?! of a method)": "score (in the kernel)",
    r"\b(a|the|two|other|same) draws?\b|\bdraws (for|or)\b": "sample, completion",
    r"\b(kinds? of|built-in|bad|own) parts?\b|\bone door\b|\bthe doors? of\b|\bdoors of\b": "component; integration",
    r"\bcount(s)? neither way\b": "not counted",
    r"\bmixed groups?\b": "group with mixed outcomes",
    r"\bnothing is tried twice\b": "requests are not retried",
    r"\bwhat comes out\b|\bwhat came out\b": "the output, the result",
    r"\bas it was begun\b|\bcontinues? with an interrupted\b": "continue an interrupted run",
    r"\bcannot tell\b": "cannot determine, does not report",
    r"\b(is|are|was) told (of|by|from|to)\b": "is called with, is detected from, is notified",
    r"\bthe law of\b|\bexactly the target's law\b": "distribution",
}


def texts(path: Path) -> Iterator[tuple[str, str]]:
    """(file:line, text) of a module's docstrings, those under its fields too, and of its help texts; each paragraph of a page."""
    if path.suffix == ".md":
        line = 1
        for text in re.split(r"\n\n", path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(ROOT)}:{line}", text
            line += text.count("\n") + 2
        return
    found = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(found):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value.value
        elif isinstance(node, ast.keyword) and node.arg == "help":
            parts = [
                part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            yield f"{path.relative_to(ROOT)}:{node.value.lineno}", " ".join(parts)


def faults(where: str, text: str) -> list[str]:
    """The forbidden phrases in a text, each with the right word."""
    plain = " ".join(text.split())
    method = where.startswith(("src/ramify/methods/", "docs/"))
    words = ((pattern, right) for pattern, right in WORDS.items() if not (method and right == KERNEL_ONLY))
    found = ((re.search(pattern, plain, re.IGNORECASE), right) for pattern, right in words)
    return [f"{where}: '{hit[0].strip()}' (write: {right})" for hit, right in found if hit]


@pytest.mark.parametrize("held", HELD)
def test_the_fields_words_are_used(held: str) -> None:
    home = ROOT / held
    files = [home] if home.is_file() else sorted([*home.rglob("*.py"), *home.rglob("*.md")])
    assert files
    wrong = [fault for file in files for where, text in texts(file) for fault in faults(where, text)]
    assert not wrong, "\n".join(wrong)


def test_every_pattern_finds_its_phrase() -> None:
    old = (
        "A stranger's part; its verdict is drawn at a boundary, in front of the bill, in place of a draw behind the place key "
        "of one's own."
    )
    found = faults("here", old)
    for word in (
        "stranger",
        "verdict",
        "boundary",
        "in front of",
        "bill",
        "in place of",
        "draw",
        "behind",
        "place key",
        "one's own",
    ):
        assert any(word in fault.lower() for fault in found), word
    assert not faults("here", "The model is placed on a device; environments of third parties are untrusted; a figure is drawn.")


#: What hides the meaning, and how often it is still there. Lower the number where you have mended some.
HABITS = {
    "locals called one": 1078,
    "locals called found": 658,
    "locals called own": 240,
    "locals called made": 223,
    "'is no' for 'is not a'": 25,
}


def test_habits_are_counted_down() -> None:
    counts = dict.fromkeys(HABITS, 0)
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        counts["'is no' for 'is not a'"] += len(re.findall(r"(?<!there )\bis no (?!longer\b)\w", text))
        for node in ast.walk(ast.parse(text)):
            bound = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
            name = node.arg if isinstance(node, ast.arg) else bound
            if f"locals called {name}" in counts:
                counts[f"locals called {name}"] += 1
    more = {habit: f"{n}, at most {HABITS[habit]}" for habit, n in counts.items() if n > HABITS[habit]}
    assert not more
