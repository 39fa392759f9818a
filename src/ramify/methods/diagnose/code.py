"""What a source file imports and defines: Python by its own syntax tree, other languages by tree-sitter where it is installed.

Everything else of the method is the same for every language.
"""

from __future__ import annotations

import ast
import importlib
import posixpath
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import PurePosixPath
from typing import Any

from ramify.methods.diagnose.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function, method or class and the lines it takes, both inclusive, from 1."""

    name: str
    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Import:
    """A module that is imported, as it is written; ``level`` counts the dots before it; ``names`` are what is taken out of it."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What one file says of itself."""

    imports: tuple[Import, ...] = ()
    symbols: tuple[Symbol, ...] = ()


GRAMMARS = {
    ".js": ("tree_sitter_javascript", "language"), ".jsx": ("tree_sitter_javascript", "language"),
    ".mjs": ("tree_sitter_javascript", "language"), ".cjs": ("tree_sitter_javascript", "language"),
    ".ts": ("tree_sitter_typescript", "language_typescript"), ".tsx": ("tree_sitter_typescript", "language_tsx"),
    ".go": ("tree_sitter_go", "language"), ".rs": ("tree_sitter_rust", "language"), ".java": ("tree_sitter_java", "language"),
}  # fmt: skip
"""End of a file's name -> the package with its grammar, and the function that gives it."""
_DEFINES = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "method_definition": "method",
    "class_declaration": "class",
    "method_declaration": "method",
    "constructor_declaration": "method",
    "function_item": "function",
    "struct_item": "class",
    "trait_item": "class",
    "interface_declaration": "class",
    "type_spec": "class",
}
_TESTS = re.compile(
    r"(^|/)(tests?|testing|\w*_tests?|tests?_\w+|\w*testcases?)/|(^|/)(test_|tests?\.|conftest)[^/]*$|_tests?\.\w+$"
)
_SCRIPTS = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs")


@cache
def parser(suffix: str) -> Any:
    """A tree-sitter parser for files that end so; None where there is none, or its package is not installed."""
    if suffix not in GRAMMARS:
        return None
    module, name = GRAMMARS[suffix]
    try:
        tree_sitter, grammar = importlib.import_module("tree_sitter"), importlib.import_module(module)
    except ImportError:
        return None
    return tree_sitter.Parser(tree_sitter.Language(getattr(grammar, name)()))


def unread(paths: Sequence[str]) -> list[str]:
    """Ends of names of ``paths`` whose imports could be told if the grammar was installed."""
    return sorted({suffix for path in paths if (suffix := PurePosixPath(path).suffix) in GRAMMARS and parser(suffix) is None})


@lru_cache(maxsize=4096)
def python_facts(text: str) -> Facts:
    """Imports and definitions of a Python file; nothing of one that does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Facts()
    imports: list[Import] = []
    symbols: list[Symbol] = []

    def visit(node: ast.AST, within: str, kind: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                imports.extend(Import(alias.name) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                imports.append(Import(child.module or "", tuple(alias.name for alias in child.names), child.level))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{within}.{child.name}" if within else child.name
                what = "class" if isinstance(child, ast.ClassDef) else "method" if kind == "class" else "function"
                start = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                symbols.append(Symbol(name, what, start, child.end_lineno or child.lineno))
                visit(child, name, what)
            elif isinstance(child, ast.stmt | ast.ExceptHandler):
                visit(child, within, kind)

    try:
        visit(tree, "", "")
    except RecursionError:
        return Facts()
    return Facts(tuple(imports), tuple(symbols))


def other_facts(text: str, suffix: str) -> Facts:
    """Imports and definitions of a file of another language; nothing where its grammar is not installed."""
    parses = parser(suffix)
    if parses is None:
        return Facts()
    imports: list[Import] = []
    symbols: list[Symbol] = []
    pending = [parses.parse(text.encode("utf-8", "replace")).root_node]
    while pending:
        node = pending.pop()
        if node.type in _DEFINES and (name := node.child_by_field_name("name")) is not None:
            symbols.append(Symbol(_text(name), _DEFINES[node.type], node.start_point[0] + 1, node.end_point[0] + 1))
        imports.extend(_imported(node, suffix))
        pending.extend(reversed(node.children))
    return Facts(tuple(imports), tuple(sorted(symbols, key=lambda one: (one.start, -one.end))))


def _text(node: Any) -> str:
    return str(node.text.decode("utf-8", "replace"))


def _imported(node: Any, suffix: str) -> Iterator[Import]:
    if suffix in _SCRIPTS:
        source = node.child_by_field_name("source") if node.type in ("import_statement", "export_statement") else None
        if node.type == "call_expression" and _text(node.children[0]) in ("require", "import"):
            source = next((one for one in node.children[1].children if one.type == "string"), None)
        if source is not None:
            yield Import(_text(source).strip("'\"`"))
    elif suffix == ".go" and node.type == "import_spec":
        yield Import(_text(node.child_by_field_name("path") or node).strip('"`'))
    elif suffix == ".java" and node.type == "import_declaration":
        yield Import(re.sub(r"^import\s+(static\s+)?|;|\s", "", _text(node)))
    elif suffix == ".rs" and node.type == "use_declaration":
        yield Import(re.sub(r"^(pub(\(\w+\))?\s+)?use\s+|;|\s|::\{.*", "", _text(node), flags=re.DOTALL))
    elif suffix == ".rs" and node.type == "mod_item" and not node.child_by_field_name("body"):
        yield Import("self::" + _text(node.child_by_field_name("name")))


class CodeMap:
    """Imports between the files of a snapshot, and what they define. Files are parsed when they are asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._facts: dict[str, Facts] = {}

    def facts(self, path: str) -> Facts:
        """Imports and definitions of one file."""
        if path not in self._facts:
            suffix, text = PurePosixPath(path).suffix, "\n".join(self.snapshot.lines(path))
            self._facts[path] = python_facts(text) if suffix in (".py", ".pyi") else other_facts(text, suffix)
        return self._facts[path]

    def symbol(self, path: str, start: int, end: int) -> Symbol | None:
        """The smallest definition that holds a span, else the first one inside it."""
        known = self.facts(path).symbols
        around = [one for one in known if one.start <= start and end <= one.end]
        within = [one for one in known if start <= one.start and one.end <= end]
        return min(reversed(around), key=lambda one: one.end - one.start) if around else next(iter(within), None)

    def readable(self, path: str) -> bool:
        """Whether imports of this file can be told."""
        suffix = PurePosixPath(path).suffix
        return suffix in (".py", ".pyi") or parser(suffix) is not None

    @cached_property
    def imports(self) -> Mapping[str, tuple[str, ...]]:
        """File -> the files it imports, sorted."""
        return {path: tuple(sorted(set(self._targets(path)) - {path})) for path in self.snapshot.paths}

    @cached_property
    def importers(self) -> Mapping[str, tuple[str, ...]]:
        """File -> the files that import it: the transpose of :attr:`imports`."""
        found: dict[str, list[str]] = {path: [] for path in self.snapshot.paths}
        for path, targets in self.imports.items():
            for target in targets:
                found[target].append(path)
        return {path: tuple(sorted(one)) for path, one in found.items()}

    @cached_property
    def _modules(self) -> dict[str, list[str]]:
        """Every tail of a Python file's dotted name -> the files that have it."""
        found: dict[str, list[str]] = {}
        for path in self.snapshot.paths:
            pure = PurePosixPath(path)
            if pure.suffix in (".py", ".pyi"):
                parts = pure.with_suffix("").parts
                parts = parts[:-1] if parts[-1] == "__init__" else parts
                for at in range(len(parts)):
                    found.setdefault(".".join(parts[at:]), []).append(path)
        return found

    def _targets(self, path: str) -> Iterator[str]:
        suffix = PurePosixPath(path).suffix
        for one in self.facts(path).imports:
            if suffix in (".py", ".pyi"):
                yield from self._python(path, one)
            else:
                yield from self._other(path, one.module, suffix)

    def _python(self, path: str, one: Import) -> Iterator[str]:
        if one.level:
            base = PurePosixPath(path).parent
            for _ in range(one.level - 1):
                base = base.parent
            stem = base / one.module.replace(".", "/") if one.module else base
            home = self._file(str(stem))
        else:
            home, stem = self._absolute(path, one.module), None
            if home is None and not one.names:  # `import a.b.c` where c is a name in a.b
                home = self._absolute(path, one.module.rpartition(".")[0])
        if home is not None:
            yield home
        folder = str(stem) if stem is not None else None
        for name in one.names:
            if folder is not None:
                below = self._file(f"{folder}/{name}" if folder != "." else name)
            else:
                below = self._absolute(path, f"{one.module}.{name}")
            if below is not None:
                yield below
            elif home is not None and home.endswith("__init__.py"):
                yield from self._handed_on(home, name)

    def _handed_on(self, home: str, name: str) -> Iterator[str]:
        """Where a package's ``__init__`` has a name from."""
        for one in self.facts(home).imports:
            if one.level and name in one.names:
                base = PurePosixPath(home).parent
                for _ in range(one.level - 1):
                    base = base.parent
                if (found := self._file(str(base / one.module.replace(".", "/")))) is not None:
                    yield found

    def _file(self, stem: str) -> str | None:
        stem = posixpath.normpath(stem)
        names = ("__init__.py",) if stem == "." else (f"{stem}.py", f"{stem}/__init__.py", f"{stem}.pyi")
        return next((name for name in names if name in self.snapshot), None)

    def _absolute(self, path: str, module: str) -> str | None:
        """The file of a dotted name: of several, the one that shares most folders with ``path``."""
        found = self._modules.get(module, ())
        return min(found, key=lambda one: (-_shared(one, path), len(one), one)) if found else None

    def _other(self, path: str, module: str, suffix: str) -> Iterator[str]:
        here = PurePosixPath(path).parent
        if suffix in _SCRIPTS:
            if module.startswith("."):
                stem = posixpath.normpath(str(here / module))
                bare = stem.removesuffix(".js")
                tries = [
                    stem,
                    *(f"{one}{end}" for one in (stem, bare) for end in _SCRIPTS),
                    *(f"{stem}/index{end}" for end in _SCRIPTS),
                ]
                yield from [one for one in tries if one in self.snapshot][:1]
        elif suffix == ".java":
            tail = module.replace(".", "/") + ".java"
            yield from [one for one in self.snapshot.paths if one == tail or one.endswith("/" + tail)][:1]
        elif suffix == ".go":
            for one in self.snapshot.paths:
                folder = str(PurePosixPath(one).parent)
                if one.endswith(".go") and not one.endswith("_test.go") and (module == folder or module.endswith("/" + folder)):
                    yield one
        elif suffix == ".rs":
            yield from self._rust(path, module)

    def _rust(self, path: str, module: str) -> Iterator[str]:
        parts, here = module.split("::"), PurePosixPath(path)
        root = here.parents[len(here.parts) - 2] if len(here.parts) > 1 else PurePosixPath(".")
        own = here.parent if here.stem in ("mod", "lib", "main") else here.parent / here.stem
        base = {"crate": root, "self": own, "super": own.parent}.get(parts[0])
        for end in range(len(parts), 1, -1) if base is not None else ():
            stem = str(base.joinpath(*parts[1:end])) if base is not None else ""
            if found := next((one for one in (f"{stem}.rs", f"{stem}/mod.rs") if one in self.snapshot), None):
                yield found
                return


def _shared(one: str, other: str) -> int:
    a, b = PurePosixPath(one).parts[:-1], PurePosixPath(other).parts[:-1]
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def is_test(path: str) -> bool:
    """Whether a path is that of a test, or of what helps tests."""
    return _TESTS.search(path) is not None


@dataclass(frozen=True, slots=True)
class TakenName:
    """A name that a test uses and has from ``module``: there it is ``name``, or the module itself where that is empty.

    ``off``: it is imported under a flag, a bare name or attribute as the condition, which is taken to be off unless it is set.
    """

    module: str
    level: int
    name: str
    off: bool = False


@lru_cache(maxsize=4096)
def taken_names(text: str, lines: tuple[int, ...]) -> tuple[TakenName, ...]:
    """What the functions at ``lines`` of a Python file, and what they use of the same file, take from other modules.

    Without lines, all that the file imports. Fixtures are used by the names of parameters, set-up and helpers of a class by
    standing in it. Empty where the text does not parse; in the order of the imports, flagged ones last.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    top = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    pending: list[ast.AST] = [
        node for node in top.values() if any(node.lineno <= line <= (node.end_lineno or node.lineno) for line in lines)
    ]
    used, done = set[str](), set[ast.AST]()
    while pending:
        node = pending.pop()
        if node in done:
            continue
        done.add(node)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
            n.arg for n in ast.walk(node) if isinstance(n, ast.arg)
        }
        used |= names
        pending += [top[name] for name in sorted(names & top.keys())]
    taken: list[TakenName] = []

    def visit(body: Sequence[ast.stmt], off: bool) -> None:
        for node in body:
            if isinstance(node, ast.ImportFrom):
                taken.extend(
                    TakenName(node.module or "", node.level, alias.name, off)
                    for alias in node.names
                    if not lines or (alias.asname or alias.name) in used or alias.name == "*"
                )
            elif isinstance(node, ast.Import):
                taken.extend(
                    TakenName(alias.name, 0, "", off)
                    for alias in node.names
                    if not lines or (alias.asname or alias.name.partition(".")[0]) in used
                )
            elif isinstance(node, ast.If):
                visit(node.body, off or isinstance(node.test, ast.Name | ast.Attribute))
                visit(node.orelse, off)
            elif isinstance(node, ast.Try):
                visit(node.body, off)
                visit([inner for handler in node.handlers for inner in handler.body], True)

    visit([*tree.body, *(inner for node in done for inner in getattr(node, "body", ()))], False)
    return tuple(sorted(dict.fromkeys(taken), key=lambda name: name.off))


def words(text: str) -> list[str]:
    """Words of a text or an identifier in lower case: ``HTTPError_code`` is http, error, code."""
    return [one.lower() for one in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", text)]


def identifiers(texts: Sequence[str]) -> set[str]:
    """Names of at least three letters in some texts."""
    return {name for text in texts for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]{2,}", text)}
