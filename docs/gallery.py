"""Write docs/gallery.md, every picture of the pages with what it shows and where it stands: python docs/gallery.py."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "gallery.md"
HEAD = """# Every picture

Written by `python docs/gallery.py`. Pictures of results are drawn from the committed figures under `repro/` by the scripts beside
these pages (`docs/*_pictures.py`); the line under each leads to the page that explains it.
"""


def page() -> str:
    """The whole page: pictures in the order of the pages, each once."""
    parts, seen = [HEAD], set()
    for path in sorted(DOCS.rglob("*.md")):
        if path == PAGE:
            continue
        text = path.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        for shows, target in re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text):
            picture = (path.parent / target).resolve().relative_to(DOCS)
            if picture not in seen:
                seen.add(picture)
                parts.append(f"![{shows}]({picture})\n\n{shows} ([{title}]({path.relative_to(DOCS)}))\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
