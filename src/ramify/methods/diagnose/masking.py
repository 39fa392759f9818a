"""An issue without what gives the place away: paths, modules and the names of the repository (contamination control, section
4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

PATH, NAME = "[path]", "[project]"
_FRAME = re.compile(r"File \"[^\"\n]+\"")
_URL = re.compile(r"https?://\S+")
_FILE = re.compile(
    r"(?<![\w/.])(?:[A-Za-z]:)?[\w./\\-]*[\w-]+\.(?:pyi?|pyx|jsx?|mjs|cjs|tsx?|go|rs|java|kt|c|h|cc|cpp|hpp|cs|rb|php|toml|cfg|ini|ya?ml)\b(?::\d+)?"
)
_FOLDER = re.compile(r"(?<![\w/])(?:\.{0,2}/)?(?:[\w-]+/){2,}[\w.-]*")


def mask(issue: str, names: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The issue with paths and URLs replaced, and every one of ``names`` (a repository, its packages,
    modules such as ``a.b``); what was masked.

    Lines and the rest of the text stay as they are. A name is masked as a whole word, also at the head of a dotted name, upper
    and lower case alike.
    """
    masked: list[str] = []

    def put(by: str) -> Callable[[re.Match[str]], str]:
        def replace(found: re.Match[str]) -> str:
            masked.append(found[0])
            return by

        return replace

    text = _FRAME.sub(put(f'File "{PATH}"'), issue)
    for pattern in (_URL, _FILE, _FOLDER):
        text = pattern.sub(put(PATH), text)
    for name in sorted({one for one in names if one}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?:\.\w+)*(?!\w)", put(NAME), text, flags=re.IGNORECASE)
    return text, list(dict.fromkeys(one for one in masked if one not in (PATH, NAME)))
