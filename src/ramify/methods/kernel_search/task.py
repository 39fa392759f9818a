"""A kernel as a task: its source, what it takes and returns, shapes and inputs to try it on,
and the reference it is compared with.

A line of comment in the source says what its signature does not, and clauses are apart by ";"::

    // ramify: n = 1000000, 1001, 1; x[n] in -4..4; y[n]; flops 2*n; bytes 12*n

``NAME = v, ...`` are the values of a scalar (first the one that is timed), ``[in|out|inout] NAME[COUNT]`` an array with its
number of elements, ``in LOW..HIGH`` the range of its inputs, ``fixed`` an array that is never shifted (sorted positions, for
example), ``flops`` and ``bytes`` the work and the compulsory traffic, ``flags`` the compiler's, ``knob NAME = a, b`` a macro and
its values, ``threads N``, ``varies`` a kernel whose results may differ from run to run, ``tolerance T``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.files import read_small
from ramify.base.ids import json_hash
from ramify.base.seeds import generator

MATH = (
    "acos", "asin", "atan", "atan2", "cos", "sin", "tan", "cosh", "sinh", "tanh", "exp", "exp2", "expm1", "log", "log2",
    "log10", "log1p", "pow", "sqrt", "cbrt", "hypot", "erf", "erfc", "ceil", "floor", "round", "trunc", "rint", "nearbyint",
    "fabs", "fmax", "fmin", "fmod", "fma", "copysign", "lround",
)  # fmt: skip
"""Functions of math.h that have a version for float, by the name of the one for double."""
FLAGS = ("-O3", "-march=native")
TYPES = {
    "float": "f",
    "double": "d",
    "int": "i",
    "int32_t": "i",
    "long": "l",
    "int64_t": "l",
    "size_t": "l",
    "unsigned char": "b",
    "uint8_t": "b",
    "f32": "f",
    "f64": "d",
    "i32": "i",
    "i64": "l",
    "u8": "b",
}
DTYPES: dict[str, np.dtype[Any]] = {
    "f": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "i": np.dtype(np.int32),
    "l": np.dtype(np.int64),
    "b": np.dtype(np.uint8),
}
RESULT = "result"
"""Name of what the function returns."""
_NOTE = re.compile(r"^\s*(?://|#|\*|/\*)\s*ramify:(.*?)(?:\*/)?\s*$", re.M)
_ARRAY = re.compile(
    r"^(?:(in|out|inout)\s+)?(\w+)\s*\[([^\]]*)\](?:\s+(f32|f64|i32|i64|u8))?(?:\s+in\s+(\S+?)\.\.(\S+))?(\s+fixed)?$"
)
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}


@dataclass(frozen=True, slots=True)
class Array:
    """An array argument, or what the function returns (``result``)."""

    name: str
    type: str
    """f, d, i, l or b, see TYPES."""
    role: int
    """1: input, 2: output, 3: changed in place."""
    count: str
    """Number of elements as an expression in the scalars; of a Python kernel the shape, with commas."""
    low: str = ""
    high: str = ""
    fixed: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return DTYPES[self.type]

    def beyond(self, windows: int) -> int:
        """Elements that its pool has more than a call reads."""
        return 0 if self.fixed else 64 * (windows - 1) // self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class InputSet:
    """Inputs to try a kernel on: one shape, values of one kind."""

    name: str
    scalars: Mapping[str, float]
    inputs: Mapping[str, np.ndarray]
    """Array name -> 1-d pool, longer than the count by ``windows`` lines of 64 bytes where it is shifted. Of a KernelBench
    problem none: they are made in the sandbox, as long."""
    windows: int


@dataclass(frozen=True)
class KernelTask:
    """What is made faster. Make one with :func:`read_task`, or the ``from_...`` functions of this module."""

    name: str
    kind: str
    """c, numba, torch, python, triton or kernelbench."""
    source: str
    symbol: str
    order: tuple[str, ...]
    """Names of the arguments as the function takes them."""
    scalars: Mapping[str, tuple[float, ...]]
    """Scalar arguments: the value that is timed first, then those of the other shapes."""
    scalar_types: Mapping[str, str]
    arrays: tuple[Array, ...]
    flags: tuple[str, ...] = FLAGS
    knobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flops: str = ""
    bytes: str = ""
    threads: int = 1
    varies: bool = False
    tolerance: float = 1e-5
    reference: Callable[..., Any] | None = None
    """Your own reference: called with the arguments by name, returns the outputs by name (or the only one).
    Without it the source itself, in double precision."""
    path: str = ""
    problem: Mapping[str, Any] | None = None
    """Of a KernelBench problem what it says of itself; its inputs are made in the sandbox."""

    @property
    def identity(self) -> str:
        """Hash of all that decides what a candidate is compared with."""
        return json_hash(
            {
                "source": self.source,
                "symbol": self.symbol,
                "flags": list(self.flags),
                "threads": self.threads,
                "tolerance": self.tolerance,
            }
        )

    @property
    def main(self) -> dict[str, float]:
        """The scalars that are timed."""
        return {name: values[0] for name, values in self.scalars.items()}

    def counts(self, scalars: Mapping[str, float]) -> dict[str, int]:
        """Elements of each array for these scalars."""
        return {
            array.name: int(np.prod([max(0, int(evaluate(part, scalars))) for part in array.count.split(",") if part.strip()]))
            for array in self.arrays
        }

    def work(self, scalars: Mapping[str, float] | None = None) -> tuple[float | None, float | None]:
        """(flops, compulsory bytes) of a call; None where nothing says how many.
        Undeclared bytes: inputs read once, outputs written once."""
        at = scalars or self.main
        flops = float(evaluate(self.flops, at)) if self.flops else None
        if self.bytes:
            return flops, float(evaluate(self.bytes, at))
        counts = self.counts(at)
        moved = sum(counts[array.name] * array.dtype.itemsize * (2 if array.role == 3 else 1) for array in self.arrays)
        return flops, float(moved)

    def shapes(self) -> list[tuple[str, dict[str, float]]]:
        """The timed shape, those that the source lists, and where it lists none an odd small one and one of size 1."""
        shapes = [("main", self.main)]
        more = max((len(values) for values in self.scalars.values()), default=1)
        for i in range(1, more):
            shapes.append((f"shape {i + 1}", {name: values[min(i, len(values) - 1)] for name, values in self.scalars.items()}))
        if more == 1 and any(kind == "i" or kind == "l" for kind in self.scalar_types.values()):
            for name, size in (("odd", 37), ("one", 1)):
                shapes.append(
                    (
                        name,
                        {
                            key: value[0] if self.scalar_types[key] == "f" else float(min(value[0], size))
                            for key, value in self.scalars.items()
                        },
                    )
                )
        return shapes

    def input_sets(self, seed: int) -> list[InputSet]:
        """The main shape first; then other shapes, zeros, denormals and large values. ``seed`` is never seen by a candidate."""
        if self.problem is not None:
            return [
                InputSet(name, {}, {}, 1024 if name == "main" else 4) for name in ("main", "again", "zeros", "denormals", "large")
            ]
        shapes = self.shapes()
        sets = [self._draw("main", shapes[0][1], "normal", seed, 1024)]
        small = shapes[-2][1] if len(shapes) > 2 else shapes[-1][1]
        for name, scalars in shapes[1:]:
            sets.append(self._draw(name, scalars, "normal", seed, 4))
        for kind in ("zeros", "denormals", "large", "equal"):
            sets.append(self._draw(kind, small, kind, seed, 4))
        return sets

    def _draw(self, name: str, scalars: Mapping[str, float], kind: str, seed: int, windows: int) -> InputSet:
        counts, inputs = self.counts(scalars), {}
        for array in self.arrays:
            if array.role & 1:
                size = counts[array.name] + array.beyond(windows)
                inputs[array.name] = self._values(array, size, kind, generator(seed, "inputs", name, kind, array.name), scalars)
        return InputSet(name, dict(scalars), inputs, windows)

    def _values(self, array: Array, n: int, kind: str, rng: np.random.Generator, scalars: Mapping[str, float]) -> np.ndarray:
        low, high = (float(evaluate(end, scalars)) if end else None for end in (array.low, array.high))
        if array.type in "ilb":
            bottom, top = int(low or 0), int(high if high is not None else 255 if array.type == "b" else 1000)
            same = kind in ("zeros", "equal")
            values = np.full(n, bottom) if same else rng.integers(bottom, max(bottom, top) + 1, n)
        else:
            bounded = low is not None and high is not None
            values = rng.standard_normal(n) if low is None or high is None else rng.uniform(low, high, n)
            if kind == "zeros":
                values = np.zeros(n) if not bounded else np.clip(np.zeros(n), low, high)
            elif kind == "equal":
                values = np.full(n, float(values[0]) if n else 0.0)
            elif kind == "denormals":
                values = np.clip(values * 1e-39, low, high) if bounded else values * 1e-39
            elif kind == "large" and not bounded:
                values = values * 100.0
        return np.ascontiguousarray(values, dtype=array.dtype)


def evaluate(text: str, names: Mapping[str, float]) -> float:
    """The value of an arithmetic expression in ``names``. Raises UserError on anything else."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise UserError(f"'{text.strip()}' is not a number of {', '.join(names) or 'no scalar'}: {error}") from None


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise UserError(f"'{name}' is not a scalar of the kernel ({nearest(name, names)})")
            value = names[name]
            return int(value) if float(value).is_integer() else value
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            left, right = _value(node.left, names), _value(node.right, names)
            if isinstance(op, ast.Pow) and (abs(right) > 64 or abs(left) > 1e9):
                raise ValueError("a power beyond reason")
            return float(_OPERATORS[type(op)](left, right)) if isinstance(op, ast.Div) else _OPERATORS[type(op)](left, right)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, names)
    raise ValueError("only numbers, scalars and + - * / // % ** are known")


# -- reading -------------------------------------------------------------------------------------------------------------------


def read_source(path: Path) -> str:
    """The text of a source file. Raises UserError where it cannot be read as text."""
    try:
        return read_small(path, "the kernel").decode()
    except UnicodeDecodeError as error:
        raise UserError(f"the kernel {path} is not text: {error}") from None


def from_c(source: str, symbol: str = "", path: str = "kernel.c", reference: Callable[..., Any] | None = None) -> KernelTask:
    """A C function. Its signature is read from the source. Raises UserError as :func:`read_task`."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: re.sub(r"[^\n]", " ", match[0]), source, flags=re.S)
    heads = list(
        re.finditer(r"^[ \t]*((?:static |inline |const )*[A-Za-z_][\w ]*?)[ \t\n]+\**(\w+)\s*\(([^()]*)\)\s*\{", code, re.M)
    )
    heads = [
        candidate
        for candidate in heads
        if candidate[2] not in ("if", "for", "while", "switch", "main") and "static" not in candidate[1]
    ]
    names = [candidate[2] for candidate in heads]
    if not names:
        raise UserError(f"{path} defines no function that is not static")
    if not symbol and len(names) > 1:
        raise UserError(f"{path} defines {', '.join(names)}: name one, as {path}:{names[0]}")
    symbol = symbol or names[0]
    if symbol not in names:
        raise UserError(f"{path} defines no function '{symbol}' ({nearest(symbol, names)})")
    head = heads[names.index(symbol)]
    order: list[str] = []
    arrays: dict[str, Array] = {}
    scalars: dict[str, str] = {}
    for text in [] if head[3].strip() in ("", "void") else head[3].split(","):
        match = re.match(
            r"^\s*(const\s+)?((?:unsigned\s+)?\w+)\s*(?:const\s*)?(\*?)\s*(?:restrict|__restrict__|__restrict)?\s*(\w+)\s*(\[\s*\w*\s*\])?\s*$",
            text,
        )
        if match is None or match[2] not in TYPES:
            line = source[: head.start()].count("\n") + 1
            raise UserError(
                f"{path}:{line}: the argument '{text.strip()}' of {symbol} is none of the known types "
                f"({', '.join(sorted(set(TYPES) - {'f32', 'f64', 'i32', 'i64', 'u8'}))}, or a pointer to one)"
            )
        name, kind = match[4], TYPES[match[2]]
        order.append(name)
        if match[3] or match[5]:
            arrays[name] = Array(name, kind, 1 if match[1] else 2, "")
        else:
            scalars[name] = kind if kind in "ilb" else "f"
    returned = head[1].replace("inline", "").strip()
    if returned != "void":
        if returned not in TYPES:
            raise UserError(
                f"{path}: {symbol} returns '{returned}', which is none of the known types ({', '.join(sorted(TYPES))})"
            )
        arrays[RESULT] = Array(RESULT, TYPES[returned], 2, "1")
    return _noted(
        KernelTask(symbol, "c", source, symbol, tuple(order), {}, scalars, tuple(arrays.values()), reference=reference, path=path)
    )


def from_python(
    source: str, symbol: str = "", path: str = "kernel.py", reference: Callable[..., Any] | None = None
) -> KernelTask:
    """A Python function: Numba, torch, NumPy or Triton, whichever its file imports. The file is parsed, never imported here."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    noted = [name for name in functions if not name.startswith("_")]
    if not symbol and len(noted) != 1:
        raise UserError(f"{path} defines {', '.join(noted) or 'no function'}: name one, as {path}:FUNCTION")
    symbol = symbol or noted[0]
    if symbol not in functions:
        raise UserError(f"{path} defines no function '{symbol}' ({nearest(symbol, functions)})")
    imported = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names} | {
        str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }
    kind = next((name for name in ("triton", "numba", "torch") if name in imported), "python")
    order = tuple(node.arg for node in functions[symbol].args.args)
    task = KernelTask(symbol, kind, source, symbol, order, {}, {}, (), reference=reference, path=path)
    return _noted(task) if kind != "triton" or _NOTE.search(source) else task


def _noted(task: KernelTask) -> KernelTask:
    """The task with what the note in its source says. Raises UserError naming the line and the clause."""
    arrays = {array.name: array for array in task.arrays}
    values: dict[str, tuple[float, ...]] = {}
    more: dict[str, Any] = {"knobs": {}}
    for clause, where in notes_of(task.source, task.path):
        _clause(task, clause, where, arrays, values, more)
    types = dict(task.scalar_types)
    for name in task.order:
        if name not in arrays and name not in values:
            known = "its values" if name in types or task.kind == "c" else "its values, or its count if it is an array"
            raise UserError(f"{task.path}: the argument '{name}' of {task.symbol} lacks {known}: // ramify: {name} = 1000")
        if name in values and task.kind != "c":
            types[name] = "l" if all(float(array).is_integer() for array in values[name]) else "f"
    for name in values:
        if name not in task.order:
            raise UserError(f"{task.path}: '{name}' is not an argument of {task.symbol} ({nearest(name, task.order)})")
    plain = {name: numbers[0] for name, numbers in values.items()}
    only = [name for name, kind in types.items() if kind in "il"]
    for name, array in arrays.items():
        if not array.count:
            if len(only) != 1:
                raise UserError(
                    f"{task.path}: how many elements the array '{name}' of {task.symbol} has is not said: // ramify: {name}[n]"
                )
            arrays[name] = replace(array, count=only[0])
        for part in arrays[name].count.split(","):
            evaluate(part, plain)
    if not any(array.role & 2 for array in arrays.values()):
        raise UserError(f"{task.path}: {task.symbol} has no output: // ramify: out y[n], or result[n] for what it returns")
    placed = [arrays[name] for name in task.order if name in arrays] + ([arrays[RESULT]] if RESULT in arrays else [])
    scalars = {name: values[name] for name in task.order if name in values}
    for text in ("flops", "bytes"):
        if more.get(text):
            evaluate(more[text], plain)
    return replace(task, arrays=tuple(placed), scalars=scalars, scalar_types={name: types[name] for name in scalars}, **more)


def notes_of(source: str, path: str) -> list[tuple[str, str]]:
    """Every clause of a source's notes, with the file and line it stands in."""
    return [
        (clause, f"{path}:{source[: note.start(1)].count(chr(10)) + 1}")
        for note in _NOTE.finditer(source)
        for clause in filter(None, (part.strip() for part in note[1].split(";")))
    ]


def _clause(
    task: KernelTask,
    clause: str,
    where: str,
    arrays: dict[str, Array],
    values: dict[str, tuple[float, ...]],
    more: dict[str, Any],
) -> None:
    word, _, rest = clause.partition(" ")
    if word in ("flops", "bytes"):
        more[word] = rest.strip()
    elif word == "flags":
        more["flags"] = tuple(rest.split())
    elif word == "varies" and not rest:
        more["varies"] = True
    elif word in ("threads", "tolerance"):
        number = evaluate(rest, {})
        if number <= 0:
            raise UserError(f"{where}: {word} is a positive number, not '{rest}'")
        more[word] = int(number) if word == "threads" else float(number)
    elif word == "knob" and "=" in rest:
        name, _, given = rest.partition("=")
        options = tuple(option.strip() for option in given.split(","))
        if not re.fullmatch(r"\w+", name.strip()) or not all(re.fullmatch(r"[\w.+-]+", option) for option in options):
            raise UserError(f"{where}: '{clause}' is not a knob: knob NAME = 1, 2, 4")
        more["knobs"][name.strip()] = options
    elif match := _ARRAY.match(clause):
        role, name, count, kind, low, high, fixed = match.groups()
        if name != RESULT and name not in task.order:
            raise UserError(f"{where}: '{name}' is not an argument of {task.symbol} ({nearest(name, [*task.order, RESULT])})")
        old = arrays.get(name)
        number = {"in": 1, "out": 2, "inout": 3}.get(role or "", old.role if old else 2 if name == RESULT else 1)
        if task.kind == "c" and old is None:
            raise UserError(f"{where}: '{name}' is not an array of {task.symbol}")
        arrays[name] = Array(name, old.type if old else TYPES[kind or "f32"], number, count, low or "", high or "", bool(fixed))
    elif match := re.match(r"^(\w+)\s*=\s*([^=]+)$", clause):
        values[match[1]] = tuple(float(evaluate(option, {})) for option in match[2].split(","))
    else:
        raise UserError(
            f"{where}: the clause '{clause}' says nothing known: NAME = 1000, NAME[n], flops, bytes, flags, knob, threads, "
            "tolerance, varies"
        )


def scalar_values(task: KernelTask, scalars: Mapping[str, float]) -> list[str]:
    """The scalars as a worker reads them, in order of the arguments."""
    return [repr(float(scalars[name])) for name in task.scalars]


def window_of(seed: int, call: int, windows: int) -> int:
    """Bytes by which the inputs of call number ``call`` of a batch are shifted; as worker.c and worker.py have it.

    Of ``windows`` (a power of two) calls in a row no two are shifted alike.
    """
    return (seed + call * (seed >> 9 | 1)) % windows * 64


def turned(pool: bytes, item: int, turn: int) -> bytes:
    """A pool of elements of ``item`` bytes with its blocks, 64 at most, in the order of this turn;
    as supervisor.py has it. Turn 0 is the pool."""
    size = max(1, -(-len(pool) // item // 64)) * item
    blocks = [pool[at : at + size] for at in range(0, len(pool), size)]
    order = sorted(range(len(blocks)), key=lambda i: sha256(f"{turn} {i}".encode()).digest()) if turn else range(len(blocks))
    return b"".join(blocks[i] for i in order)


def wide_source(source: str) -> str:
    """C source in which every float is a double: the macros come after its includes, whose own declarations stay as they are."""
    macros = (
        "".join(f"#define {name}f {name}\n" for name in MATH)
        + "#define float double\n#undef FLT_MAX\n#define FLT_MAX 1.7976931348623157e308\n"
    )
    ends = [include.end() for include in re.finditer(r"^[ \t]*#[ \t]*include[^\n]*\n", source, re.M)]
    at = ends[-1] if ends else 0
    return source[:at] + macros + source[at:]
