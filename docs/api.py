"""Write the pages of the Python reference, docs/reference/api.md and one for each method: python docs/api.py.

They name what is public; mkdocstrings fills in signatures and docstrings when the site is built.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import ramify
import ramify.stats
from ramify.base import registry
from ramify.base.words import unwrapped

PAGE = Path(__file__).with_name("reference") / "api.md"
HEAD = """# Python

Written by `python docs/api.py`; signatures and texts are those of the code (`mkdocs serve`). Names of `ramify` itself load on
first use, so `import ramify` is cheap. What is not listed here is not public and may change.
"""
KERNEL = {
    "Runs: read and write": ("ramify.trace.db.Run", "ramify.trace.tree.Tree", "ramify.trace.path.Path", "ramify.trace.view.View"),
    "What a run holds": tuple(
        f"ramify.trace.node.{name}" for name in ("Node", "Context", "Score", "Annotation", "TokenValues", "Finding")
    ),
    "Models": ("ramify.model.protocol.Model", "ramify.model.endpoint.HttpModel", "ramify.model.function.model_of"),
    "Environments": ("ramify.env.protocol.Environment", "ramify.env.protocol.Env", "ramify.env.protocol.environment_of"),
    "Continuations, forks and potentials": (
        "ramify.rollout.sampler.Sampler",
        "ramify.rollout.fork.fork",
        "ramify.rollout.potential.potential",
        "ramify.rollout.potential.Forks",
        "ramify.rollout.potential.ForkEnd",
    ),
    "Judges": ("ramify.score.judge.Judge", "ramify.score.judge.find_judge"),
    "Tests of agents": ("ramify.testing.steps.recorded_step", "ramify.testing.steps.RecordedStep"),
    "Statistics of agents' runs": tuple(f"{getattr(ramify.stats, name).__module__}.{name}" for name in ramify.stats._NAMES),
    "Credit": ("ramify.score.credit.protocol.CreditRule", "ramify.score.credit.protocol.CreditGroup"),
    "Running what is not trusted": tuple(
        f"ramify.sandbox.{home}"
        for home in ("find.find_sandbox", "protocol.Command", "protocol.Limits", "protocol.Outcome", "protocol.Sandbox")
    ),
}


def public(package: str) -> list[str]:
    """Full names of what a method's package exports."""
    module = importlib.import_module(package)
    found = []
    for name in module.__all__:
        value = getattr(module, name)
        home = getattr(value, "__module__", None)
        if home and home.startswith("ramify.") and hasattr(importlib.import_module(home), name):
            found.append(f"{home}.{name}")
    return found


def pages() -> dict[Path, str]:
    """The page of the kernel and one for each method."""
    top = [f"{getattr(ramify, name).__module__}.{name}" for name in ramify._NAMES]
    parts = [HEAD, *(f"## {title}\n\n{_directives(names)}" for title, names in {"ramify": top, **KERNEL}.items())]
    methods = []
    found = {}
    for slug in registry.builtin_methods():
        package = f"ramify.methods.{slug.replace('-', '_')}"
        summary = unwrapped(importlib.import_module(package).__doc__ or "").partition("\n")[0]
        found[PAGE.with_name("python") / f"{slug}.md"] = f"# {package}\n\n{summary}\n\n{_directives(public(package))}"
        methods.append(f"- [{package}](python/{slug}.md)")
    parts.append("## Methods\n\n" + "\n".join(methods) + "\n")
    return {PAGE: "\n".join(parts)} | found


def _directives(names: list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"::: {name}" for name in names) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE} and {len(pages()) - 1} pages beside it")
