"""Methods on the command line: found by folder, described without being imported, loaded when called."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import ramify.methods
from ramify.base import registry
from ramify.base.errors import UserError


def summary(slug: str) -> str:
    """First line of a built-in method's docstring, read from its source so that nothing is imported."""
    source = Path(ramify.methods.__path__[0]) / slug.replace("-", "_") / "__init__.py"
    doc = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0].removeprefix(f"{slug}: ")


def method_app(slug: str) -> Any:
    """The typer application with the method's verbs. Raises UserError for a method without verbs."""
    package = registry.get("method", slug).__name__
    for module in ("verbs", "run"):
        if importlib.util.find_spec(f"{package}.{module}") is not None:
            app = getattr(importlib.import_module(f"{package}.{module}"), "app", None)
            if app is not None:
                return app
    raise UserError(f"the method '{slug}' has no verbs on the command line")
