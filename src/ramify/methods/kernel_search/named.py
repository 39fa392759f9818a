"""Kernels by name: FILE:FUNCTION, or a problem of KernelBench."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.methods.kernel_search import kernelbench
from ramify.methods.kernel_search.task import KernelTask, from_c, from_python, read_source


def read_task(
    spec: str,
    reference: Callable[..., Any] | None = None,
    sizes: Mapping[str, float] | None = None,
    allow_unsandboxed: bool = False,
) -> KernelTask:
    """The task that ``FILE:FUNCTION`` names (``FILE`` where it has one function only),
    or a KernelBench problem with ``sizes`` for its constants.

    Raises UserError naming file, line and clause.
    """
    problem = kernelbench.find_problem(spec)
    if problem is not None and problem.suffix == ".py" and kernelbench.is_problem(read_source(problem)):
        if reference is not None:
            raise UserError(f"--ref: {problem} is a KernelBench problem, which is its own reference")
        return kernelbench.from_kernelbench(problem, sizes, allow_unsandboxed=allow_unsandboxed)
    if sizes:
        raise UserError(f"--size: {spec} is not a KernelBench problem; a kernel's sizes stand in its comment, # ramify: n = 1000")
    file, colon, symbol = spec.rpartition(":")
    path = Path(file if colon else spec)
    if not path.is_file():
        raise UserError(f"there is no kernel {path}: a kernel is named FILE.c:FUNCTION or FILE.py:FUNCTION")
    source = read_source(path)
    make = from_c if path.suffix == ".c" else from_python
    return make(source, symbol if colon else "", path=str(path), reference=reference)
