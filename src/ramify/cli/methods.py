"""Methods on the command line: found by folder, described without being imported, loaded when called."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import ramify.methods
from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.words import unwrapped
from ramify.kit import Verbs


def summary(slug: str) -> str:
    """First paragraph of a built-in method's docstring, read from its source so that nothing is imported."""
    source = Path(ramify.methods.__path__[0]) / slug.replace("-", "_") / "__init__.py"
    doc = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return unwrapped(doc).partition("\n")[0].removeprefix(f"{slug}: ")


_OF_JOBS = {
    "orchestrator": ("ramify.cli.serve", "orchestrator_app"),
    "world-model": ("ramify.cli.serve", "world_model_app"),
}
"""Verbs of a method that need a job or the server, which no method may import: their module and application."""


def method_app(slug: str) -> Verbs:
    """The method's verbs. Raises UserError for a method without verbs."""
    module = f"{registry.get('method', slug).__name__}.verbs"
    if importlib.util.find_spec(module) is not None:
        app = getattr(importlib.import_module(module), "app", None)
        if isinstance(app, Verbs):
            return _with_jobs(slug, app)
    raise UserError(f"the method '{slug}' has no verbs on the command line")


def _with_jobs(slug: str, app: Verbs) -> Verbs:
    if slug in _OF_JOBS:
        module, name = _OF_JOBS[slug]
        more = getattr(importlib.import_module(module), name)
        for verb in more:
            if verb not in app:
                app.command(more[verb])
    return app
