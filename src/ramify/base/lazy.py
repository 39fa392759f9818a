"""Names of a package that load on first use, so that importing the package loads nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ramify.base.extras import told


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: ``homes`` says which of its modules each public name is in, or names another in full."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        with told():
            return getattr(importlib.import_module(home if home.startswith("ramify.") else f"{package}.{home}"), name)

    return load


def public(method: str, names: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """``__all__`` and ``__getattr__`` of a method's package:
    its ``NEEDS``, and the public ``names`` of each module, apart by spaces."""
    homes = {name: module for module, listed in names.items() for name in listed.split()}
    return ["NEEDS", *homes], loader(method, homes)
