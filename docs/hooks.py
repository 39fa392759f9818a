"""What mkdocs does beside its plug-ins: references of docstrings (``:func:`~a.b``` ) become the name alone."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """The page with each reference as the code it names; a leading ``~`` hides what comes before the last dot, as in Sphinx."""
    html = re.sub(r":(?:py:)?[a-z]+:<code>~(?:\w+\.)*(\w+)</code>", r"<code>\1</code>", html)
    return re.sub(r":(?:py:)?[a-z]+:<code>([\w.]+)</code>", r"<code>\1</code>", html)
