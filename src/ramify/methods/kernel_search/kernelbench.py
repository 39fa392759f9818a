"""KernelBench problems as tasks: a file with ``Model``, ``get_inputs`` and ``get_init_inputs``; candidates define ``ModelNew``.

The file is somebody else's code. Here it is parsed only; what it says of itself (shapes, work, operators) is asked in the
sandbox, and it is run there. Weights come from a seed set before the model is made, as KernelBench does,
so a candidate makes its parameters in the same order.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.waiting import wait_for
from ramify.methods.kernel_search.task import RESULT, Array, KernelTask, evaluate, notes_of, read_source
from ramify.methods.kernel_search.wall import INSIDE, packages
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits, Sandbox

LARGEST = 32 * MIB
"""Bytes of the inputs, and of the outputs, of one call: five sets of inputs lie beside each other in the sandbox's memory."""
TOLERANCE = 1e-4
"""KernelBench's for float32."""
WEIGHTS_SEED = 42
_NEEDED = ("get_inputs", "get_init_inputs")


def is_problem(source: str) -> bool:
    """Whether a Python file is a KernelBench problem, by its definitions."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    functions = {statement.name for statement in body if isinstance(statement, ast.FunctionDef)}
    return functions.issuperset(_NEEDED) and any(
        isinstance(statement, ast.ClassDef) and statement.name == "Model" for statement in body
    )


def find_problem(spec: str) -> Path | None:
    """The file that a path, or ``FOLDER/19`` for the one ``FOLDER/19_*.py``, names; None where it is none such."""
    path = Path(spec)
    if path.is_file():
        return path
    files = sorted(path.parent.glob(f"{path.name}_*.py")) if path.name.isdigit() else []
    return files[0] if len(files) == 1 else None


def from_kernelbench(
    path: Path | str, sizes: Mapping[str, float] | None = None, *, sandbox: Sandbox | None = None, allow_unsandboxed: bool = False
) -> KernelTask:
    """The KernelBench problem in a file as a task. ``sizes`` replaces constants of the file, such as ``{"batch_size": 16}``.

    A line ``# ramify: batch_size = 16; tolerance 1e-3; threads 2`` in the file says the same. Raises UserError naming the file
    and what is wrong in it (inputs too large for a processor, random outputs, no such constant),
    NeedsError where nothing isolates or torch is missing.
    """
    file = find_problem(str(path))
    if file is None:
        raise UserError(f"there is no KernelBench problem {path}: name its file, or FOLDER/NUMBER")
    source = read_source(file)
    if not is_problem(source):
        raise UserError(f"{file} is not a KernelBench problem: it defines no class Model, get_inputs and get_init_inputs")
    more: dict[str, Any] = {"tolerance": TOLERANCE}
    wanted: dict[str, float] = {}
    for clause, where in notes_of(source, str(file)):
        word, _, rest = clause.partition(" ")
        if word in ("tolerance", "threads"):
            number = evaluate(rest, {})
            if number <= 0:
                raise UserError(f"{where}: {word} is a positive number, not '{rest}'")
            more[word] = int(number) if word == "threads" else number
        elif match := re.match(r"^(\w+)\s*=\s*([^=]+)$", clause):
            wanted[match[1]] = evaluate(match[2], {})
        else:
            raise UserError(
                f"{where}: the clause '{clause}' says nothing known of a KernelBench problem: NAME = 16, tolerance, threads"
            )
    source = resized(source, {**wanted, **(sizes or {})}, str(file))
    box = sandbox or find_sandbox(None, allow_unsandboxed, readable=packages())
    problem = _asked(box, source, file, more.get("threads", 1))
    arrays = [
        Array(argument["name"], argument["type"], 1, ",".join(map(str, argument["shape"])) or "1", fixed=argument["fixed"])
        for argument in problem["arguments"]
        if "name" in argument
    ]
    for i, result in enumerate(problem["results"]):
        arrays.append(Array(RESULT + (str(i + 1) if i else ""), result["type"], 2, ",".join(map(str, result["shape"])) or "1"))
    order = tuple(argument["name"] for argument in problem["arguments"] if "name" in argument)
    return KernelTask(
        file.stem,
        "kernelbench",
        source,
        "ModelNew",
        order,
        {},
        {},
        tuple(arrays),
        flags=(),
        path=str(file),
        flops=str(problem["flops"]),
        bytes=str(problem["bytes"]),
        problem=problem,
        **more,
    )


def constants_of(source: str) -> dict[str, tuple[ast.expr, float]]:
    """Numbers that a file sets at its top level: name -> (where its value stands, the value).
    ``a = b = 2``, ``a, b = 2, 3`` and ``a = 2 * 8`` too."""
    constants: dict[str, tuple[ast.expr, float]] = {}
    for statement in ast.parse(source).body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            pairs = [(target, statement.value)] if isinstance(statement, ast.Assign) else []
            if isinstance(target, ast.Tuple) and isinstance(pairs[0][1], ast.Tuple):
                pairs = list(zip(target.elts, pairs[0][1].elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name) and value.lineno == value.end_lineno:
                    with contextlib.suppress(UserError):
                        constants[name.id] = value, evaluate(ast.unparse(value), {})
    return constants


def resized(source: str, sizes: Mapping[str, float], path: str) -> str:
    """The source with constants of its top level replaced. Raises UserError where it has none of that name."""
    known = constants_of(source)
    lines = source.encode().splitlines(keepends=True)
    spots: dict[tuple[int, int, int], tuple[str, str]] = {}
    for name, value in sizes.items():
        if name not in known:
            raise UserError(f"{path} sets no number '{name}' at its top level ({nearest(name, known)})")
        node, old = known[name]
        text = repr(int(value) if float(value).is_integer() and type(old) is int else value)
        spot = (node.lineno - 1, node.col_offset, node.end_col_offset or 0)
        other, before = spots.setdefault(spot, (name, text))
        if before != text:
            raise UserError(f"{path} sets '{other}' and '{name}' to one number: --size cannot make it {before} and {text}")
    for (line, begin, end), (_, text) in sorted(spots.items(), reverse=True):
        lines[line] = lines[line][:begin] + text.encode() + lines[line][end:]
    return b"".join(lines).decode()


def _asked(box: Sandbox, source: str, file: Path, threads: int) -> dict[str, Any]:
    """What the problem says of itself, run in the sandbox."""
    files = {"problem.py": (INSIDE / "problem.py").read_text(encoding="utf-8"), "reference.py": source}
    env = {"OMP_NUM_THREADS": str(threads), "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    limits = Limits(seconds=180, memory_bytes=6144 * MIB, processes=64, disk_bytes=64 * MIB)
    words = ["python", "problem.py", "reference.py", str(WEIGHTS_SEED), str(LARGEST)]
    outcome = wait_for(box.run(words, files=files, limits=limits, env=env))
    said = outcome.error_text.strip().splitlines()[-1:] or [f"the box ended by {outcome.reason}"]
    kind, _, why = said[0].partition(": ")
    if not outcome.ok:
        if "No module named 'torch'" in outcome.error_text:
            raise NeedsError("KernelBench problems are torch models, and torch is not installed")
        if kind == "large":
            raise UserError(
                f"{file}: its inputs take {int(why) / MIB:.0f} MiB, more than {LARGEST // MIB} MiB: {_smaller(source)}"
            )
        raise UserError(f"{file}: {why if kind == 'user' else said[0][:300]}")
    try:
        answer: dict[str, Any] = json.loads(outcome.text.splitlines()[-1])
    except (ValueError, IndexError):
        raise UserError(f"{file}: it printed something else than what it was asked") from None
    if not answer["same"]:
        raise UserError(
            f"{file}: two calls on the same inputs give different outputs, so nothing can be compared: is there a dropout?"
        )
    items = {"f": 4, "d": 8, "i": 4, "l": 8, "b": 1}
    out = 0
    for result in answer["results"]:
        size = items[result["type"]]
        for length in result["shape"]:
            size *= length
        out += size
    if out > LARGEST:
        raise UserError(f"{file}: its outputs take {out / MIB:.0f} MiB, more than {LARGEST // MIB} MiB: {_smaller(source)}")
    return answer | {"seed": WEIGHTS_SEED}


def _smaller(source: str) -> str:
    numbers = {name: value for name, (_, value) in constants_of(source).items() if type(value) is int}
    if not numbers:
        return "a problem of smaller sizes is needed on a processor"
    listed = ", ".join(f"{name} = {value}" for name, value in list(numbers.items())[:8])
    return f"make it smaller, as --size {max(numbers, key=lambda name: numbers[name])}=16 (its sizes are {listed})"
