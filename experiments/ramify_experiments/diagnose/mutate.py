"""Eight ways in which a function goes wrong, and the edits that could put it right: the mutants of section 7, on syntax trees.

A mutant is one edit of a correct function; a repair agent enumerates the edits of a faulty one by the same operators, so the edit
that undoes a mutation is among them, but for missing guards whose test is none of those that are tried.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence

OPERATORS = (
    "comparison",
    "off-by-one",
    "wrong variable",
    "missing guard",
    "swapped arguments",
    "wrong default",
    "dropped return",
    "wrong constant",
)
_SIGNS: tuple[type[ast.cmpop], ...] = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
CONSTANTS = tuple(range(10))
"""What is tried in the place of a constant or a default."""
Change = tuple[Callable[[], object], Callable[[], object]]
"""An edit in place, and what takes it back."""


def mutants(function: ast.FunctionDef, operator: str) -> Iterator[ast.FunctionDef]:
    """Every fault that ``operator`` makes of a correct function, a copy each."""
    if operator == "missing guard":
        for at, statement in enumerate(function.body):
            if _guard(statement):
                new = copy.deepcopy(function)
                new.body.pop(at)
                yield new
    elif operator == "dropped return":
        last = function.body[-1]
        if isinstance(last, ast.Return) and last.value is not None:
            new = copy.deepcopy(function)
            new.body[-1] = ast.copy_location(ast.Expr(copy.deepcopy(last.value)), last)
            yield new
    else:
        for do, undo in _changes(function, operator):
            do()
            new = copy.deepcopy(function)
            undo()
            yield new


def repairs(function: ast.FunctionDef, operators: Sequence[str] = OPERATORS) -> Iterator[str]:
    """Every edit by ``operators``, in their order: yields the operator while ``function`` has the edit, and takes it back."""
    for operator in operators:
        changes = (
            _additions(function, operator) if operator in ("missing guard", "dropped return") else _changes(function, operator)
        )
        for do, undo in changes:
            do()
            try:
                yield operator
            finally:
                undo()


def _guard(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and len(statement.body) == 1
        and isinstance(statement.body[0], ast.Return | ast.Raise)
    )


def _additions(function: ast.FunctionDef, operator: str) -> Iterator[Change]:
    body = function.body
    if operator == "dropped return":
        last = body[-1]
        if isinstance(last, ast.Expr) and len(body) > 1:
            yield lambda: body.__setitem__(-1, ast.Return(last.value)), lambda: body.__setitem__(-1, last)
        return
    spot = 1 if ast.get_docstring(function) is not None else 0
    for name in _parameters(function):
        for test in (f"not {name}", f"{name} <= 0"):
            for value in range(4):
                (guard,) = ast.parse(f"if {test}:\n    return {value}").body
                yield lambda guard=guard: body.insert(spot, guard), lambda: body.pop(spot)  # type: ignore[misc]


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [one.arg for one in function.args.args if one.arg not in ("self", "cls")]


def _changes(function: ast.FunctionDef, operator: str) -> Iterator[Change]:
    names = [
        *_parameters(function),
        *dict.fromkeys(n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)),
    ]
    for node in list(ast.walk(function)):
        yield from _of_node(node, operator, names)


def _set(node: object, name: str, value: object) -> Change:
    old = getattr(node, name)
    return lambda: setattr(node, name, value), lambda: setattr(node, name, old)


def _of_node(node: ast.AST, operator: str, names: Sequence[str]) -> Iterator[Change]:
    whole = isinstance(node, ast.Constant) and type(node.value) is int
    if operator == "comparison" and isinstance(node, ast.Compare) and type(node.ops[0]) in _SIGNS:
        for sign in _SIGNS:
            if sign is not type(node.ops[0]):
                yield _set(node, "ops", [sign(), *node.ops[1:]])
    elif operator == "off-by-one" and whole:
        for step in (1, -1):
            yield _set(node, "value", node.value + step)  # type: ignore[attr-defined]
    elif operator == "wrong constant" and whole and node.value in CONSTANTS:  # type: ignore[attr-defined]
        for value in CONSTANTS:
            if abs(value - node.value) > 1:  # type: ignore[attr-defined]
                yield _set(node, "value", value)
    elif operator == "wrong variable" and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        for name in names:
            if name != node.id:
                yield _set(node, "id", name)
    elif operator == "swapped arguments" and isinstance(node, ast.Call):
        for at in range(len(node.args) - 1):
            yield _set(node, "args", [*node.args[:at], node.args[at + 1], node.args[at], *node.args[at + 2 :]])
    elif operator == "wrong default" and isinstance(node, ast.arguments):
        for at, default in enumerate(node.defaults):
            if isinstance(default, ast.Constant) and type(default.value) is int:
                for value in CONSTANTS:
                    if value != default.value:
                        yield _set(
                            node,
                            "defaults",
                            [*node.defaults[:at], ast.copy_location(ast.Constant(value), default), *node.defaults[at + 1 :]],
                        )
