"""Which code a result comes from: every module that a function's module reaches by imports, with the data files in its folder.

Imports are read, not run: those of functions count, those for type checkers do not. A name that a package offers lazily leads to
the module that has it, a lookup in the registry to the modules that register such a component, and a text that names a module
(one that is loaded by name, or started with ``-m``) to that module. Followed are the modules of ramify, of these experiments,
and of the package that the function itself is in.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from ramify.base.ids import stable_hash
from ramify.base.registry import KINDS, homes

OWN = ("ramify", "ramify_experiments")
_NAME = re.compile(r"[a-z_]\w*(\.\w+)+(:\w+)?")


@cache
def code_of(*modules: str) -> str:
    """Hash of the code, and of the data files in its folders (weights, too), that ``modules`` reach;
    equal for equal code wherever it lies."""
    tops = frozenset([*OWN, *(module.partition(".")[0] for module in modules)])
    parts: list[str | bytes] = []
    for name in sorted(reached(modules, tops)):
        for file in files(name):
            parts += [name, file.name, file.read_bytes()]
    return stable_hash(*parts)


def reached(modules: tuple[str, ...], tops: frozenset[str]) -> set[str]:
    """Names of the modules in the packages ``tops`` that ``modules`` reach by imports,
    themselves and their parents among them."""
    seen: set[str] = set()
    todo = list(modules)
    while todo:
        name = todo.pop()
        if name in seen or name.partition(".")[0] not in tops or source(name) is None:
            continue
        seen.add(name)
        todo += [name.rpartition(".")[0], *_leads_to(name)]
    return seen


@cache
def source(module: str) -> Path | None:
    """The file of a module, which is not imported; None where there is none."""
    top, *rest = module.split(".")
    file = _top(top)
    if file is None or (rest and file.name != "__init__.py"):
        return None
    whole = file.parent.joinpath(*rest)
    found = file if not rest else whole / "__init__.py" if (whole / "__init__.py").is_file() else whole.with_suffix(".py")
    return found if found.is_file() else None


def _top(name: str) -> Path | None:
    """The file of a module or package that is in none."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is not None:
        return Path(loaded)
    try:
        spec = importlib.util.find_spec(name) if name else None
    except ValueError:  # made by hand
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def files(module: str) -> Iterator[Path]:
    """A module's file; of a package also the data in its folder, and in folders there that are no packages (programs that run
    in a sandbox, pages); of a module that names ramify's assets those."""
    file = source(module)
    assert file is not None
    yield file
    if file.name == "__init__.py":
        yield from _data(file.parent)
    if module.startswith("ramify.") and '"assets"' in file.read_text(encoding="utf-8"):
        yield from _data(Path(sys.modules["ramify"].__path__[0]) / "assets")


def _data(folder: Path) -> Iterator[Path]:
    package = (folder / "__init__.py").is_file()
    for one in sorted(folder.iterdir()):
        if one.is_file() and not (package and one.suffix == ".py"):
            yield one
        elif one.is_dir() and one.name not in ("__pycache__", "assets") and not (one / "__init__.py").is_file():
            yield from _data(one)


@lru_cache(maxsize=16)  # all trees are half a million objects
def _tree(module: str) -> ast.Module:
    file = source(module)
    assert file is not None
    return ast.parse(file.read_bytes())


def _for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def _leads_to(module: str) -> frozenset[str]:
    return imports(_tree(module), module)


def imports(tree: ast.Module, module: str = "") -> frozenset[str]:
    """What the program ``tree`` imports, anywhere in it; ``module``: its own name, where it has one."""
    out: set[str] = set()
    bound: dict[str, str] = {}
    attributes: list[tuple[str, str]] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        children = list(ast.iter_child_nodes(node))
        if _for_checkers(node):
            assert isinstance(node, ast.If)
            children = [*node.orelse]
        elif isinstance(node, ast.Import):
            out.update(alias.name for alias in node.names)
            bound.update((a.asname, a.name) if a.asname else (top := a.name.partition(".")[0], top) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = _absolute(module, node)
            out.add(whole)
            for alias in node.names:
                out.update((f"{whole}.{alias.name}", _lazily(whole).get(alias.name, "")))
                bound[alias.asname or alias.name] = f"{whole}.{alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            attributes.append((node.value.id, node.attr))
        elif isinstance(node, ast.Call):
            out |= _registered(_looked_up(node))
        elif isinstance(node, ast.Dict):  # a table of modules: what is looked up in it leads on, not the table
            children = [one for one in children if not isinstance(one, ast.Constant | ast.Tuple)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            out.add(node.value.partition(":")[0])
        todo += children
    out.update(_lazily(bound[name]).get(attribute, "") for name, attribute in attributes if name in bound)
    return frozenset(out)


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that ``from MODULE import`` names, in ``module``."""
    if not node.level:
        return node.module or ""
    file, parts = source(module), module.split(".")
    up = node.level - (file is not None and file.name == "__init__.py")
    return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


@cache
def _lazily(package: str) -> dict[str, str]:
    """Name -> module of what a package offers without importing it: what it declares for type checkers."""
    if package.partition(".")[0] not in OWN or source(package) is None:
        return {}
    imports = [line for node in _tree(package).body if _for_checkers(node) for line in ast.iter_child_nodes(node)]
    return {a.asname or a.name: line.module or "" for line in imports if isinstance(line, ast.ImportFrom) for a in line.names}


def _looked_up(call: ast.Call) -> str:
    """The kind of component that ``registry.get(KIND, ...)`` or ``registry.names(KIND)`` looks up,
    "*" where a variable says it, else ""."""
    where = call.func
    if not isinstance(where, ast.Attribute) or where.attr not in ("get", "names") or not call.args:
        return ""
    if not isinstance(where.value, ast.Name) or where.value.id != "registry":
        return ""
    kind = call.args[0]
    return str(kind.value) if isinstance(kind, ast.Constant) else "*"


@cache
def _registered(kind: str) -> frozenset[str]:
    """Modules of ramify that register a component of ``kind``, "*" of any."""
    named = [home for one in KINDS if kind in ("*", one) for home in homes(one)]
    modules = [module for home in named for module in (home, *_inside(home))]
    wanted = re.compile(r"register\(\"" + ("" if kind == "*" else re.escape(kind) + '"'))
    files = {module: source(module) for module in modules}
    return frozenset(module for module, file in files.items() if file and wanted.search(file.read_text(encoding="utf-8")))


def _inside(package: str) -> list[str]:
    file = source(package)
    if file is None or file.name != "__init__.py":
        return []
    return [f"{package}.{one.stem}" for one in file.parent.glob("*.py") if one.name != "__init__.py"]
