"""Runs the functions of generated repositories: their syntax trees as closures, so that no text is ever executed.

Covers what :mod:`ramify_experiments.diagnose.corpus` writes: whole numbers and lists of them, arithmetic, comparisons, calls, if,
for over a range, return. Everything else is refused when it is compiled.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

Env = dict[str, Any]
Function = Callable[..., Any]
_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
_COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_BUILTIN: dict[str, Function] = {"len": len, "min": min, "max": max, "abs": abs, "sum": sum}
_LONGEST = 200
"""Most rounds of one loop: a mutant may ask for more."""


class _ReturnError(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Machine:
    """Functions by name. ``seen`` holds the names of those that were called."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self.functions = {name: self.compile(node) for name, node in functions.items()}
        self.seen: set[str] = set()

    def outcome(self, name: str, arguments: list[Any]) -> Any:
        """What a call comes to: its value, or the name of what it raises."""
        try:
            return self.functions[name](*[list(one) if isinstance(one, list) else one for one in arguments])
        except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError, RecursionError, MemoryError) as error:
            return type(error).__name__

    def compile(self, node: ast.FunctionDef) -> Function:
        """A function as a closure. Raises ValueError on what it does not cover."""
        names = [one.arg for one in node.args.args]
        defaults = [ast.literal_eval(one) for one in node.args.defaults]
        first = len(names) - len(defaults)
        body, name = self._block(node.body), node.name

        def run(*given: Any) -> Any:
            self.seen.add(name)
            if not first <= len(given) <= len(names):
                raise TypeError(name)
            env = dict(zip(names, [*given, *defaults[len(given) - first :]], strict=True))
            try:
                body(env)
            except _ReturnError as ended:
                return ended.value
            return None

        return run

    def _block(self, statements: list[ast.stmt]) -> Callable[[Env], None]:
        steps = [self._statement(one) for one in statements]

        def run(env: Env) -> None:
            for step in steps:
                step(env)

        return run

    def _statement(self, node: ast.stmt) -> Callable[[Env], None]:
        if isinstance(node, ast.Return):
            value = self._expr(node.value) if node.value is not None else lambda env: None

            def give(env: Env) -> None:
                raise _ReturnError(value(env))

            return give
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, made = node.targets[0].id, self._expr(node.value)
            return lambda env: env.__setitem__(name, made(env))
        if isinstance(node, ast.Expr):
            made = self._expr(node.value)
            return lambda env: made(env) and None
        if isinstance(node, ast.If):
            test, then, other = self._expr(node.test), self._block(node.body), self._block(node.orelse)
            return lambda env: then(env) if test(env) else other(env)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call):
            target, ends, body = node.target.id, [self._expr(one) for one in node.iter.args], self._block(node.body)

            def loop(env: Env) -> None:
                for at in range(*[end(env) for end in ends])[:_LONGEST]:
                    env[target] = at
                    body(env)

            return loop
        raise ValueError(f"no {type(node).__name__} in generated code")

    def _expr(self, node: ast.expr) -> Callable[[Env], Any]:
        if isinstance(node, ast.Constant):
            value = node.value
            return lambda env: value
        if isinstance(node, ast.Name):
            name = node.id

            def look(env: Env) -> Any:
                if name not in env:
                    raise ValueError(name)  # a name that is not bound yet
                return env[name]

            return look
        if isinstance(node, ast.BinOp):
            do, a, b = _BINARY[type(node.op)], self._expr(node.left), self._expr(node.right)
            return lambda env: do(a(env), b(env))
        if isinstance(node, ast.Compare):
            test, a, b = _COMPARE[type(node.ops[0])], self._expr(node.left), self._expr(node.comparators[0])
            return lambda env: test(a(env), b(env))
        if isinstance(node, ast.UnaryOp):
            one = self._expr(node.operand)
            return (lambda env: not one(env)) if isinstance(node.op, ast.Not) else (lambda env: -one(env))
        if isinstance(node, ast.Subscript):
            held, at = self._expr(node.value), self._expr(node.slice)
            return lambda env: held(env)[at(env)]
        if isinstance(node, ast.List):
            parts = [self._expr(one) for one in node.elts]
            return lambda env: [part(env) for part in parts]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called, given = node.func.id, [self._expr(one) for one in node.args]
            if called in _BUILTIN:
                builtin = _BUILTIN[called]
                return lambda env: builtin(*[one(env) for one in given])
            return lambda env: self.functions[called](*[one(env) for one in given])
        raise ValueError(f"no {type(node).__name__} in generated code")
