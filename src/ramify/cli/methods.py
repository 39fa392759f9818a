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


_OF_JOBS = {"tree-rollouts": ("ramify.cli.rollout", "tree_app")}
"""Verbs of a method that do a job, which no method may import: the module and the application that hold them."""


def _with_jobs(slug: str, app: Any) -> Any:
    if slug in _OF_JOBS:
        module, name = _OF_JOBS[slug]
        there = {command.callback for command in app.registered_commands}
        more = getattr(importlib.import_module(module), name).registered_commands
        app.registered_commands += [command for command in more if command.callback not in there]
    return app


def method_app(slug: str) -> Any:
    """The typer application with the method's verbs. Raises UserError for a method without verbs."""
    package = registry.get("method", slug).__name__
    for module in ("verbs", "run"):
        if importlib.util.find_spec(f"{package}.{module}") is not None:
            app = getattr(importlib.import_module(f"{package}.{module}"), "app", None)
            if app is not None:
                return _with_jobs(slug, app)
    raise UserError(f"the method '{slug}' has no verbs on the command line")
