"""Edits of kernels by name: where transforms of C and of torch are registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ramify.base.errors import UserError
from ramify.methods.kernel_search.task import KernelTask
from ramify.methods.kernel_search.wall import Code

Edit = Callable[[Code, KernelTask], Iterator[Code]]
TRANSFORMS: dict[str, Edit] = {}
"""For C."""
TORCH_TRANSFORMS: dict[str, Edit] = {}
"""For torch; ramify.methods.kernel_search.torch_edits has them."""


def transform(name: str, into: dict[str, Edit] = TRANSFORMS) -> Callable[[Edit], Edit]:
    """Register an edit under ``name``, for C or ``into`` TORCH_TRANSFORMS. Raises UserError where the name is taken."""

    def register(edit: Edit) -> Edit:
        if name in into:
            raise UserError(f"there is a transform '{name}' already")
        into[name] = edit
        return edit

    return register
