"""Names of a package that load on first use, so that importing the package loads nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def declared(package: str, file: str) -> tuple[list[str], Callable[[str], Any]]:
    """The public names of a package whose source is ``file``, and its ``__getattr__``.

    The names are those that the source imports as themselves, ``from MODULE import NAME as NAME``, under ``TYPE_CHECKING``: they
    stand there once, where type checkers and editors see them, and load on first use.
    """
    with open(file, encoding="utf-8") as source:
        words = [line.split() for line in source if line.startswith("    from ")]
    homes = {named[5]: named[1] for named in words if named[2::2] == ["import", "as"] and named[3] == named[5]}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from ramify.base.extras import told  # importing a package loads nothing more

        with told():
            return getattr(importlib.import_module(homes[name]), name)

    return list(homes), load
