"""Scripts under docs/ as modules: what a page's tables and pictures are made by."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[1] / "docs"


def doc_script(name: str) -> ModuleType:
    """The script ``docs/NAME.py``; what it imports from beside it is found."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))
