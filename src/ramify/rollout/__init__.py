"""Grow a tree: run, fork, scan, replay. Called, the package is :func:`ramify.jobs.play.rollout`, whose name it shares."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """Python puts a package in the place of its parent's function of that name; ``ramify.rollout(...)`` must work all the same."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return importlib.import_module("ramify.jobs.play").rollout(*args, **options)


sys.modules[__name__].__class__ = _Package
