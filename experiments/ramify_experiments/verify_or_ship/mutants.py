"""Candidates made of real packages: modules of mpmath and networkx with bugs put in, judged by the packages' own test suites.

The verifier is every test of the module, run in the sandbox with the module replaced; critics are the compiler's syntax check, a
public fifth of the tests, and mypy. What a rewrite does is made up (undo one bug, add one, do nothing), since no language model
is at hand here; the programs, the tests and the type checker are real.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.methods.verify_or_ship.calibration import CandidateAttempt, CodeCandidate
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Command, Limits

MODULES: Mapping[str, tuple[str, ...]] = {
    "mpmath.matrices.linalg": ("mpmath.tests.test_linalg",),
    "mpmath.matrices.matrices": ("mpmath.tests.test_matrices",),
    "mpmath.libmp.libmpi": ("mpmath.tests.test_interval",),
    "mpmath.matrices.eigen": ("mpmath.tests.test_eigen",),
    "mpmath.calculus.optimization": ("mpmath.tests.test_rootfinding",),
    **{
        f"networkx.algorithms.{path}": (
            f"networkx.algorithms.{path.rpartition('.')[0] + '.' if '.' in path else ''}tests.test_{path.rpartition('.')[2]}",
        )
        for path in (
            *("dag", "euler", "core", "dominating", "bridges", "chains", "boundary", "cuts", "covering", "tournament"),
            *("graphical", "voronoi", "wiener", "bipartite.basic", "tree.recognition", "shortest_paths.unweighted"),
        )
    },
}
"""Module that is mutated -> modules of its tests."""
PUBLIC, UNDO, ADD = 0.2, 0.45, 0.12
MUTATIONS = (0.3, 0.3, 0.25, 0.15)
_LIMITS = Limits(seconds=60, memory_bytes=1024 * MIB)
_INSIDE = Path(__file__).parent / "inside" / "run_tests.py"
_COMPARE = {
    "Lt": "<=",
    "LtE": "<",
    "Gt": ">=",
    "GtE": ">",
    "Eq": "!=",
    "NotEq": "==",
    "In": "not in",
    "NotIn": "in",
    "Is": "is not",
    "IsNot": "is",
}
_ARITHMETIC = {"Add": "-", "Sub": "+", "Mult": "+", "FloorDiv": "*", "Div": "*", "Mod": "//"}


def needs() -> None:
    """Raise NeedsError where a package is missing that is mutated, tested or checked with."""
    for name in ("mypy", "pytest", "mpmath", "networkx"):
        if importlib.util.find_spec(name) is None:
            raise NeedsError(f"real candidates need the package '{name}': pip install \"ramify[dev]\"")


def source_of(module: str) -> str:
    """A module's source as it is installed, found without running it."""
    top, *inner = module.split(".")
    spec = importlib.util.find_spec(top)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent.joinpath(*inner).with_suffix(".py")).read_text(encoding="utf-8")


Edit = tuple[int, int, str]


def _edits(source: str) -> dict[str, list[Edit]]:
    """Single bugs that can be put into the bodies of functions, by kind: (from, to, text) in characters."""
    starts = np.cumsum([0, *(len(line) for line in source.splitlines(keepends=True))])

    def at(line: int, column: int) -> int:
        return int(starts[line - 1]) + column

    found: dict[str, list[Edit]] = {}
    for function in [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]:
        for statement in function.body[1:] if ast.get_docstring(function) else function.body:
            for node in ast.walk(statement):
                for edit in _of_node(node, source, at):
                    kind = "slip" if isinstance(node, ast.Attribute | ast.Name) else type(node).__name__
                    found.setdefault(kind, []).append(edit)
    return {kind: sorted(dict.fromkeys(edits)) for kind, edits in sorted(found.items())}


def _of_node(node: ast.AST, source: str, at: Any) -> list[Edit]:
    def between(left: ast.expr, right: ast.expr, new: str) -> list[Edit]:
        """The operator between two operands, where nothing but it stands there."""
        a, b = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
        old = source[a:b]
        return [(a, b, f" {new} ")] if old.strip() and not set(old) & set("()#\n\\") else []

    if isinstance(node, ast.Compare) and len(node.ops) == 1 and (new := _COMPARE.get(type(node.ops[0]).__name__)):
        return between(node.left, node.comparators[0], new)
    if isinstance(node, ast.BinOp) and (new := _ARITHMETIC.get(type(node.op).__name__)):
        return between(node.left, node.right, new)
    if isinstance(node, ast.BoolOp):
        return between(node.values[0], node.values[1], "or" if isinstance(node.op, ast.And) else "and")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        end = at(node.end_lineno, node.end_col_offset)
        return [(at(node.lineno, node.col_offset), end, str(node.value + 1))]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [(at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), str(not node.value))]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [(at(node.lineno, node.col_offset), at(node.operand.lineno, node.operand.col_offset), "")]
    if isinstance(node, ast.Return) and node.value is not None:
        return [(at(node.value.lineno, node.value.col_offset), at(node.value.end_lineno, node.value.end_col_offset), "None")]
    if isinstance(node, ast.Attribute) and len(node.attr) > 3:  # a slip of the pen
        end = at(node.end_lineno, node.end_col_offset)
        return [(end - 1, end, "")]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and len(node.id) > 2:
        end = at(node.end_lineno, node.end_col_offset)
        return [(end - 1, end, "")]
    return []


def _written(source: str, edits: Sequence[Edit], lost: bool) -> str:
    for start, end, new in sorted(edits, reverse=True):
        source = source[:start] + new + source[end:]
    return source.replace(":\n", "\n", 1) if lost else source


def drafts(module: str, seed: int, instance: int, steps: int) -> list[str]:
    """The texts of one attempt: a first candidate with 0 to 3 bugs (one in twenty does not parse), then rewrites."""
    source = source_of(module)
    known = _edits(source)
    rng = generator(seed, "verify-or-ship", "mutants", module, instance)

    def added(edits: list[Edit]) -> list[Edit]:
        kind = list(known)[int(rng.integers(len(known)))]
        free = [one for one in known[kind] if all(one[1] <= e[0] or one[0] >= e[1] for e in edits)]
        return [*edits, free[int(rng.integers(len(free)))]] if free else edits

    edits: list[Edit] = []
    for _ in range(int(rng.choice(len(MUTATIONS), p=MUTATIONS))):
        edits = added(edits)
    lost, texts = bool(rng.random() < 0.05), []
    for step in range(steps):
        if step:
            luck = float(rng.random())
            if luck < UNDO:
                lost, edits = (False, edits) if lost else (False, edits[:-1])
            elif luck < UNDO + ADD:
                edits = added(edits)
        texts.append(_written(source, edits, lost))
    return texts


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def judged(module: str, texts: Sequence[str]) -> dict[str, CodeCandidate]:
    """Each different text with what verifier and critics say.
    Raises InfrastructureError where the original itself cannot be tested."""
    needs()
    spec = [importlib.util.find_spec(name) for name in ("mypy", "mpmath", "networkx", "pytest")]
    folders = sorted({str(Path(one.origin).parents[1]) for one in spec if one is not None and one.origin is not None})
    sandbox = find_sandbox(readable=folders)
    original = source_of(module)
    every = list(dict.fromkeys([original, *texts]))
    runner = _INSIDE.read_text(encoding="utf-8")
    argv = ["python", "run_tests.py", module, *MODULES[module]]
    commands = [Command(argv, {"run_tests.py": runner, "candidate.py": text}, limits=_LIMITS) for text in every]
    done = wait_for(sandbox.run_many(commands, at_once=1))
    results = [_results(one.text) for one in done]
    able = sorted(name for name, passed in results[0].items() if passed)
    if len(able) < 2:
        raise InfrastructureError("sandbox", f"the tests of {module} do not run: {done[0].reason}, {done[0].error_text[-300:]}")
    order = generator(0, "verify-or-ship", "public", module).permutation(len(able))
    public = [able[int(i)] for i in order[: max(1, round(PUBLIC * len(able)))]]
    types = _types(sandbox, every)
    found = {}
    for i, text in enumerate(every):
        passed = {name: results[i].get(name, False) for name in able}
        checks = {"syntax": _parses(text), "tests": all(passed[name] for name in public), "types": types[i]}
        found[text] = CodeCandidate(all(passed.values()), checks, text)
    return found


def _results(text: str) -> dict[str, bool]:
    lines = text.strip().splitlines()
    try:
        return dict(json.loads(lines[-1])) if lines else {}
    except ValueError:
        return {}


def _types(sandbox: Any, texts: Sequence[str]) -> list[bool]:
    """Whether mypy finds no more than in the original, the first of ``texts``; what does not parse is not asked about."""
    able = [i for i, text in enumerate(texts) if _parses(text)]
    files = {f"c{i}.py": texts[i] for i in able}
    argv = [
        "python",
        "-m",
        "mypy",
        "--check-untyped-defs",
        "--follow-imports=skip",
        "--ignore-missing-imports",
        "--cache-dir=cache",
        *files,
    ]
    done = wait_for(sandbox.run(argv, files=files, limits=Limits(seconds=600, memory_bytes=2048 * MIB)))
    if done.code not in (0, 1):
        raise InfrastructureError("sandbox", f"mypy did not run: {done.reason}, {done.error_text[-300:]}")
    counts = dict.fromkeys(able, 0)
    for found in re.finditer(r"^c(\d+)\.py:.*: error:", done.text, re.MULTILINE):
        counts[int(found[1])] += 1
    return [i in counts and counts[i] <= counts[0] for i in range(len(texts))]


def of_module(module: str, seed: int, instances: Sequence[int], steps: int = 3) -> list[dict[str, Any]]:
    """The attempts at mutants of one module, as JSON: what an experiment keeps as a cell."""
    texts = {instance: drafts(module, seed, instance, steps) for instance in instances}
    known = judged(module, [text for own in texts.values() for text in own])
    names = {text: f"{i:x}" for i, text in enumerate(known)}
    return [
        {
            "instance": f"{module} {instance}",
            "candidates": [
                {"right": known[text].right, "checks": dict(known[text].checks), "text": f"{module} {names[text]}"}
                for text in own
            ],
        }
        for instance, own in texts.items()
    ]


def read_back(cells: Sequence[Sequence[Mapping[str, Any]]]) -> list[CandidateAttempt]:
    """Attempts from what :func:`of_module` returned."""
    return [
        CandidateAttempt(one["instance"], tuple(CodeCandidate(c["right"], c["checks"], c["text"]) for c in one["candidates"]))
        for cell in cells
        for one in cell
    ]
