"""Theories as programs: what a theory is, the notation of its parameters, its file,
and what can be said of its source without running it.

A theory's source is untrusted: it is parsed here and runs in the sandbox only (:mod:`ramify.methods.theory_loop.bench`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.ids import canonical_json, stable_hash
from ramify.methods.theory_loop.domain import Design, TheoryError

ALLOWED = ("math", "numpy", "pandas", "scipy")
"""What theories and metrics may import."""
SAMPLE = "def policy(probs):\n    return int(np.random.choice(len(probs), p=np.asarray(probs) / np.sum(probs)))\n"
"""The canonical policy: choose in proportion to the probabilities."""
FORBIDDEN = frozenset(
    "breakpoint compile delattr eval exec globals input locals open setattr vars __import__ __builtins__".split()
)
MOST_CODE = 20_000


@dataclass(frozen=True)
class Theory:
    """A theory of how subjects choose: prose, program, and the ranges from which its parameters are drawn. Nothing is fitted."""

    description: str
    parameters: Mapping[str, str]
    code: str
    """Module source with ``predict(parameters, state, history)``, and optionally ``policy(probs)`` and
    ``predict_all(parameters, option_a, option_b, validities)``: the same for many subjects and pairs at once."""
    rationale: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What its maker keeps of it (the grammar: family and ranges; ``limits``: what it is said to be at an end of its ranges)."""

    @cached_property
    def hash(self) -> str:
        """Of what can change its choices."""
        return stable_hash("theory", canonical_json(dict(self.parameters)), self.code)

    @cached_property
    def tree(self) -> ast.Module:
        """Its parsed source. Raises TheoryError."""
        return checked_source(self.code, ("predict",))

    @cached_property
    def reads_history(self) -> bool:
        """Whether ``predict`` names its third argument: where it does not, a choice depends on the pair alone."""
        predict = _functions(self.tree)["predict"]
        name = [*predict.args.posonlyargs, *predict.args.args][2].arg
        return any(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in ast.walk(self.tree)
        )

    @cached_property
    def samples(self) -> bool:
        """Whether its policy is the canonical one."""
        own = _functions(self.tree).get("policy")
        return own is None or ast.dump(own) == _CANONICAL

    @property
    def limits(self) -> dict[str, str]:
        """What its prose says that can be tested: values of its parameters -> the theory that it then chooses as."""
        return dict(self.about.get("limits", {}))

    def at(self, limit: str) -> Theory:
        """The theory with some parameters set: ``"gamma=0"``, or several with commas between. Raises TheoryError."""
        fixed = dict(self.parameters)
        for part in limit.split(","):
            name, _, text = (word.strip() for word in part.partition("="))
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if name not in fixed or not math.isfinite(value):
                raise TheoryError("parameters", f"the limit {limit!r:.60} does not set a parameter of the theory to a number")
            fixed[name] = f"[({text}, {text})] * n_features" if "*" in fixed[name] else f"[{text}, {text}]"
        return replace(self, parameters=fixed)

    def file(self) -> str:
        """Its source as a file that :func:`read_theory` reads."""
        prose = self.description.replace("\\", "\\\\").replace('"""', "'''")
        tables = [("PARAMETERS", self.parameters), *([("LIMITS", self.limits)] if self.limits else [])]
        texts = [
            f"{head} = {{\n{''.join(f'    {name!r}: {text!r},{chr(10)}' for name, text in rows.items())}}}"
            for head, rows in tables
        ]
        return "\n\n".join([f'"""{prose}"""', *texts, self.code])

    def draw(self, n: int, design: Design, rng: np.random.Generator) -> dict[str, Any]:
        """One value per parameter for each of ``n`` subjects, uniformly:
        name -> (n,) or (n, cues) numbers. Raises TheoryError."""
        return {name: draw(text, name, n, design, rng) for name, text in self.parameters.items()}


def checked_source(code: str, functions: Sequence[str]) -> ast.Module:
    """The parsed source. Raises TheoryError where it does not parse, lacks one of ``functions``,
    imports what it may not, or keeps state."""
    if not isinstance(code, str) or len(code) > MOST_CODE:
        raise TheoryError("code", f"the source is a text of at most {MOST_CODE} characters")
    try:
        tree = ast.parse(code)
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise TheoryError(
            "code", f"the source does not parse{f', line {line}' if line else ''}: {error.__class__.__name__}: {str(error)[:200]}"
        ) from None
    for node in nodes:
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if module.split(".")[0] not in ALLOWED:
                raise TheoryError("code", f"line {node.lineno} imports '{module}'; {', '.join(ALLOWED)} are allowed")  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and node.id in FORBIDDEN:
            raise TheoryError("code", f"line {node.lineno} uses '{node.id}', which no theory needs")
        if isinstance(node, ast.Global | ast.Nonlocal):
            raise TheoryError("code", f"line {node.lineno} keeps state between calls; earlier choices are in history")
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            raise TheoryError("code", f"line {node.lineno} uses '{node.attr}', which no theory needs")
    found = _functions(tree)
    arity = {"predict": 3, "policy": 1, "metric": 1, "predict_all": 4}
    for name in functions:
        if name not in found:
            raise TheoryError("code", f"the source defines no function {name}({', '.join('...' for _ in range(arity[name]))})")
    for name, function in found.items():
        if name in arity and len([*function.args.posonlyargs, *function.args.args]) != arity[name]:
            raise TheoryError("code", f"{name} takes {arity[name]} arguments, and this one has another number")
    return tree


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


_CANONICAL = ast.dump(ast.parse(SAMPLE).body[0])


# -- the notation of parameters -------------------------------------------------------------------------------------------------


def draw(text: str, name: str, n: int, design: Design, rng: np.random.Generator) -> Any:
    """``n`` values of a parameter: ``"[lo, hi]"``, ``"{a, b}"``, ``"[(lo, hi)] * n_features"``,
    or the name of a variable of the design.

    Raises TheoryError on any other notation.
    """
    cues = len(design.validities)
    variables: dict[str, Any] = {"validities": list(design.validities), "n_features": cues, "rating_max": design.rating_max}
    if text.strip() in variables:
        return [variables[text.strip()]] * n
    try:
        node = ast.parse(text.strip(), mode="eval").body
        match node:
            case ast.List(elts=[low, high]) if not isinstance(low, ast.Tuple):
                ends = _interval(low, high, name, text)
                return rng.uniform(*ends, n).tolist()
            case ast.Set(elts=members) if members:
                values = [ast.literal_eval(one) for one in members]
                if not all(isinstance(v, bool | int | float | str) for v in values):
                    raise ValueError("members are numbers or texts")
                return [values[i] for i in rng.integers(0, len(values), n)]
            case ast.BinOp(left=ast.List(elts=[ast.Tuple(elts=[low, high])]), op=ast.Mult(), right=right):
                times = variables.get(right.id) if isinstance(right, ast.Name) else ast.literal_eval(right)
                if not isinstance(times, int) or not 1 <= times <= 100:
                    raise ValueError("a vector has as many members as n_features, or a number of them")
                return rng.uniform(*_interval(low, high, name, text), (n, times)).tolist()
    except TheoryError:
        raise
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise TheoryError("parameters", f"parameter '{name}' is {text!r:.60}: {str(error)[:100]}") from None
    raise TheoryError(
        "parameters",
        f'parameter \'{name}\' is {text!r:.60}; write "[lo, hi]", "{{a, b}}", "[(lo, hi)] * n_features" or validities',
    )


def _interval(low: ast.expr, high: ast.expr, name: str, text: str) -> tuple[float, float]:
    ends = [ast.literal_eval(one) for one in (low, high)]
    if (
        not all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in ends)
        or ends[0] > ends[1]
    ):
        raise TheoryError(
            "parameters", f"parameter '{name}' is {text!r:.60}: an interval has two finite numbers, the lower first"
        )
    return float(ends[0]), float(ends[1])


# -- files ----------------------------------------------------------------------------------------------------------------------


def read_theory(path: Path) -> Theory:
    """The theory in a file: Python (docstring, ``PARAMETERS``, ``LIMITS``,
    functions) or YAML (description, parameters, limits, predict, policy).

    Nothing of it is run. Raises UserError naming the file and what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the theory {path}: {reason(error)}") from None
    try:
        theory = _from_python(text) if path.suffix == ".py" else _from_yaml(text)
        check_theory(theory)
    except TheoryError as error:
        raise UserError(f"{path}: {error}") from None
    return theory


def check_theory(theory: Theory) -> None:
    """Raises TheoryError on source or parameters that are none. Runs nothing."""
    if not theory.parameters.keys() <= {name for name in theory.parameters if isinstance(name, str) and name.isidentifier()}:
        raise TheoryError("parameters", "names of parameters are identifiers")
    design = Design((0.9, 0.6), ((0, 1),), ((1, 0),))
    theory.draw(1, design, np.random.default_rng(0))
    for limit in theory.limits:
        theory.at(limit)
    assert theory.tree is not None  # parsed, or refused


def _from_python(text: str) -> Theory:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TheoryError(
            "code", f"line {getattr(error, 'lineno', 1)} does not parse: {' '.join(str(error).split())[:200]}"
        ) from None
    tables: dict[str, Any] = {"PARAMETERS": None, "LIMITS": {}}
    left: list[ast.stmt] = []
    for i, node in enumerate(tree.body):
        if i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            left.append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (name := node.targets[0].id) in tables:
            try:
                tables[name] = ast.literal_eval(node.value)
            except ValueError:
                raise TheoryError("parameters", f"line {node.lineno}: {name} is a table of texts, written out") from None
            left.append(node)
    lines = text.splitlines(keepends=True)
    for node in reversed(left):
        del lines[node.lineno - 1 : node.end_lineno]
    return _made(ast.get_docstring(tree) or "", tables["PARAMETERS"], tables["LIMITS"], "".join(lines).strip() + "\n", "")


def _from_yaml(text: str) -> Theory:
    import yaml  # type: ignore[import-untyped]

    try:
        record = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TheoryError("code", f"no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(record, dict):
        raise TheoryError("code", "a theory in YAML is a table of description, parameters, predict and policy")
    return theory_from(record)


def theory_from(record: Mapping[str, Any]) -> Theory:
    """A theory from description, parameters, limits, predict and policy,
    as YAML files and models write it. Raises TheoryError."""
    for name in ("description", "predict"):
        if not isinstance(record.get(name), str) or not record[name].strip():
            raise TheoryError("reply" if name == "description" else "code", f"the theory has no text '{name}'")
    policy = record.get("policy") or ""
    if not isinstance(policy, str):
        raise TheoryError("code", "'policy' is source text")
    code = record["predict"].strip() + "\n" + (f"\n{policy.strip()}\n" if policy.strip() else "")
    limits = record.get("limits") or {}
    return _made(record["description"], record.get("parameters", {}), limits, code, str(record.get("rationale") or ""))


def _made(description: str, parameters: Any, limits: Any, code: str, rationale: str) -> Theory:
    if not _texts(parameters):
        raise TheoryError("parameters", 'parameters (PARAMETERS in Python) are a table of names and texts such as "[0, 1]"')
    if not _texts(limits):
        raise TheoryError("parameters", 'limits (LIMITS in Python) are a table of texts such as "gamma=0": "tallying"')
    return Theory(description.strip()[:4000], parameters, code, rationale[:4000], {"limits": limits} if limits else {})


def _texts(table: Any) -> bool:
    return isinstance(table, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in table.items())
