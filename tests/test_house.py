"""Rules the whole package keeps, read from its syntax trees and from fresh interpreters."""

from __future__ import annotations

import ast
import graphlib
import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for folder in ("src/ramify", "experiments/ramify_experiments") for path in (ROOT / folder).rglob("*.py"))
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "_pickle", "copyreg"}
UNSAFE_CALLS = {"exec", "eval", "compile", "__import__"}


def dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "?", *reversed(parts)])


def unsafe(nodes: Iterable[ast.AST]) -> list[str]:
    """What in ``nodes`` could run code hidden in data: modules that unpickle, torch.load, exec, eval, numpy's allow_pickle."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in names if name.split(".")[0] in UNSAFE_MODULES]
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                found += [f"torch.{alias.name}" for alias in node.names if alias.name in ("load", "save")]
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            found += [name] * (name in UNSAFE_CALLS or name in ("torch.load", "torch.save", "builtins.exec", "builtins.eval"))
            switches = [k for k in node.keywords if k.arg in ("allow_pickle", "trust_remote_code")]
            found += [str(k.arg) for k in switches if not (isinstance(k.value, ast.Constant) and k.value.value is False)]
    return found


def imported(nodes: Iterable[ast.AST]) -> list[str]:
    """Names of modules, and what is taken out of modules near by; a function of another module may have the name of a file."""
    words = []
    for node in nodes:
        if isinstance(node, ast.Import):
            words += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            words += [node.module or "", *([alias.name for alias in node.names] if node.level else [])]
    return words


class Facts(NamedTuple):
    unsafe: list[str]
    imported: list[str]
    long: list[str]
    classes: list[str]


@cache
def facts(path: Path) -> Facts:
    """What the rules ask of a file. Its tree is not kept: all of them are half a million objects."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(module))
    long = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 80:
            long.append(f"{path.name}: {node.name}")
    classes = [node.name for node in module.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return Facts(unsafe(nodes), imported(nodes), long, classes)


def test_the_package_neither_unpickles_nor_evaluates() -> None:
    """Two files may run code, which exist inside a sandbox only (the next test: nothing of the host can import them)."""
    found = {str(path.relative_to(ROOT)): sorted(set(facts(path).unsafe)) for path in SOURCES}
    assert SOURCES
    assert {path: what for path, what in found.items() if what} == {
        "src/ramify/methods/theory_loop/inside/theory_box.py": ["compile", "exec"],
        "src/ramify/sandbox/inside/worker.py": ["compile", "eval", "exec"],
    }


def test_what_runs_inside_a_sandbox_is_no_part_of_the_host() -> None:
    inside = [ROOT / "src" / "ramify" / layer / "inside" for layer in ("sandbox", "methods/theory_loop")]
    inside.append(ROOT / "experiments" / "ramify_experiments" / "forensics" / "incidents" / "inside")
    assert not [path for folder in inside for path in folder.rglob("__init__.py")]
    names = {path.stem for folder in inside for path in folder.rglob("*.py")}
    assert {"worker", "judge_repo", "theory_box"} <= names
    for path in SOURCES:
        if set(inside) & set(path.parents):
            continue
        bad = [word for word in facts(path).imported if word in names or ".inside" in word]
        assert not bad, f"{path.name} imports {bad}"


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from dill import loads", "import torch\ntorch.load('x')", "from torch import load", "eval('1')",
     "exec(code)",
     "np.load(f, allow_pickle=True)", "AutoModel.from_pretrained(p, trust_remote_code=True)", "import joblib.numpy_pickle"],
)  # fmt: skip
def test_the_check_itself_sees_each_kind(line: str) -> None:
    assert unsafe(ast.walk(ast.parse(line)))


def loaded_by(statement: str) -> set[str]:
    """Top-level names of third-party packages a fresh interpreter has loaded after ``statement``."""
    code = (
        f"import sys; before = set(sys.modules); {statement}\n"
        "print(*{n.partition('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_ramify_loads_no_third_party_package() -> None:
    assert loaded_by("import ramify") == {"ramify"}


def test_the_command_line_starts_without_heavy_packages() -> None:
    heavy = {"torch", "transformers", "numpy", "scipy", "pyarrow", "pydantic", "networkx", "starlette", "jinja2"}
    assert not loaded_by("import ramify.cli.main") & heavy


def test_at_most_eleven_core_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert len(project["dependencies"]) <= 11


def test_functions_stay_short() -> None:
    assert [fault for path in SOURCES for fault in facts(path).long] == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A word of one class is not reused for another, so that a name alone finds its class."""
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in facts(path).classes:
            homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_examples_are_under_fifteen_lines() -> None:
    """Lines of code: the docstring, comments and blank lines explain and do not count."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        body = text.replace(ast.get_docstring(ast.parse(text), clean=False) or "\0", "", 1)
        lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("#") and line.strip('"')]
        assert len(lines) < 15, f"{path.name} has {len(lines)}"


KERNEL = ("trace", "stats", "render", "model", "sandbox", "engine", "env", "rollout", "train", "score")
ALONE = {
    "ramify.stats.checks": "what every reproduction reports, and the one verb that reports the same checks",
}
"""Kernel modules that only one method reaches all the same, each with its reason: at most three."""


def users() -> dict[str, set[str]]:
    """Who reaches each module of the package: a method's name where its package does,
    else ``others`` (verbs, jobs, doors, the public API).

    A module is used where it is imported or where a text names it, as conformance batteries,
    sandboxed programs and lazy names are.
    """
    modules = {}
    for path in sorted((ROOT / "src" / "ramify").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        if "inside" in parts:  # programs that are copied into a sandbox
            continue
        modules[".".join(parts).removesuffix(".__init__")] = path
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 400:
                words = set(re.findall(r"[a-z_]\w*(?:\.\w+)+", node.value))
                found |= words | ({f"ramify.{word}" for word in words} if name == "ramify" else set())
        graph[name] = found & modules.keys() - {name}

    def reached(starts: Iterable[str], past_methods: bool) -> set[str]:
        seen, todo = set[str](), list(starts)
        while todo:
            name = todo.pop()
            if name not in seen and (past_methods or not name.startswith("ramify.methods.")):
                seen.add(name)
                todo += graph[name]
        return seen

    found: dict[str, set[str]] = {name: set() for name in modules}
    for method in {name.split(".")[2] for name in modules if name.startswith("ramify.methods.")}:
        for name in reached([name for name in modules if name.startswith(f"ramify.methods.{method}")], True):
            found[name].add(method)
    above = ("ramify.cli", "ramify.web", "ramify.jobs", "ramify.integrations", "ramify.base")
    for name in reached([name for name in modules if name == "ramify" or name.startswith(above)], False):
        found[name].add("others")
    return found


def source_of(module: str) -> str:
    path = ROOT / "src" / Path(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_kernel_module_is_used_by_more_than_one_method() -> None:
    """What one method alone uses lives in its package; what nothing uses goes. A registered part is offered by name to a verb."""
    found = {name: who for name, who in users().items() if name.count(".") > 1 and name.split(".")[1] in KERNEL}
    lone = {name: who for name, who in found.items() if len(who) < 2 and who != {"others"} and "register(" not in source_of(name)}
    assert {name: who for name, who in lone.items() if name not in ALONE} == {}
    assert len(ALONE) <= 3
    assert set(ALONE) <= lone.keys(), "no longer alone"


def test_every_dependency_stands_in_the_notice() -> None:
    named = {line.split()[0] for line in (ROOT / "NOTICE").read_text().splitlines() if line.startswith("  ")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    assert {re.split(r"[\[<>=! ]", one)[0] for one in wanted} - {"ramify"} == named


def test_one_module_waits_for_coroutines() -> None:
    """What starts an event loop of its own dies where one runs already: in a notebook, in a handler of a web server."""
    starts = {"run", "Runner", "run_until_complete"}
    bare = []
    for path in sorted((ROOT / "src" / "ramify").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                own = node.attr == "run_until_complete" or (ast.unparse(node.value) == "asyncio" and node.attr in starts)
            else:
                own = isinstance(node, ast.ImportFrom) and node.module == "asyncio" and any(a.name in starts for a in node.names)
            if own:
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {place.partition(":")[0] for place in bare} == {"src/ramify/base/waiting.py"}, bare


def test_scripts_import_what_is_there() -> None:
    """Benchmarks and the scripts of the docs are run seldom: what they import from the package must exist."""
    missing = []
    for file in sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").glob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("ramify", "ramify_experiments"):
                module = importlib.import_module(str(node.module))
                names = [alias.name for alias in node.names]
                missing += [f"{file.name}: {node.module}.{name}" for name in names if not _there(module, name)]
    assert missing == []


def _there(module: types.ModuleType, name: str) -> bool:
    return hasattr(module, name) or importlib.util.find_spec(f"{module.__name__}.{name}") is not None


def test_test_files_outside_packages_have_names_of_their_own() -> None:
    """pytest imports them by their base name alone, so a whole run fails at collection where two share one."""
    seen: dict[str, Path] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if not (path.parent / "__init__.py").exists():
            assert path.name not in seen, f"{path} and {seen[path.name]} share a name"
            seen[path.name] = path


def test_no_module_imports_itself_in_a_circle() -> None:
    """Neither when it is loaded, nor later in a function, nor for types alone."""
    meant = ("ramify.methods.dspark.drafters", "ramify.methods.dspark.drafter_files")  # the file says why
    graph = grimp.build_graph("ramify", "ramify_experiments", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) - {module} for module in graph.modules}
    imports[meant[0]] = imports[meant[0]] - {meant[1]}
    order = list(graphlib.TopologicalSorter(imports).static_order())  # raises CycleError, which names them
    assert set(order) >= {"ramify.trace.db", "ramify.engine.core", "ramify_experiments.lab"}


def test_a_method_has_at_most_five_verbs() -> None:
    """``serve`` is the server's, which two methods put something behind."""
    for page in (ROOT / "docs" / "reference" / "verbs").glob("*.md"):  # test_docs.py holds it to the command line
        verbs = re.findall(rf"^## {page.stem} (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(set(verbs) - {"serve"}) <= 5, page.stem
