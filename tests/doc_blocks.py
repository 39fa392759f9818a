"""The fenced blocks of a page, and the calls of ramify in a shell block. Needs nothing but Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"(<!-- run -->\n+)?^( *)```(\w*)[^\n]*\n(.*?)^\2```", re.M | re.S)


def blocks(page: Path) -> Iterator[tuple[str, str, bool]]:
    """(language, text, whether it is to be run) of each fenced block."""
    for run, indent, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        yield language, re.sub(f"^{indent}", "", text, flags=re.M), bool(run)


def lines(text: str) -> Iterator[str]:
    """The command lines of a shell block, continued ones in one, without comments and prompts."""
    for line in text.replace("\\\n", " ").splitlines():
        if command := line.partition(" #")[0].strip().removeprefix("$ "):
            yield command


def calls(text: str) -> Iterator[list[str]]:
    """The words of each call of ramify in a shell block."""
    for line in lines(text):
        for part in re.split(r"\||&&|;", line):
            words = shlex.split(part, comments=True)
            while words and ("=" in words[0] and not words[0].startswith("-")):
                words = words[1:]  # NAME=value before the command
            if words and words[0].endswith("ramify"):
                yield words[1:]
