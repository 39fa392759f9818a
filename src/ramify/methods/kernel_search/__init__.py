"""kernel-search: why is this kernel slow, what should be changed, and which of many changes is faster and still right?

Paper: Optimizing CUDA like a Human: Micro-Profiling Tools as Expert Surrogates for LLM-Based GPU Kernel Optimization (KernelPro),
arXiv 2606.26453. Needs gcc for kernels in C; no hardware counters, no accelerator and no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none; a proposer that is a model answers messages."""

COMPONENTS = {"judge": ("plugins",), "assertion": ("plugins",)}
"""What the method registers, and in which of its modules."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.kernel_search.algorithm import KernelSearchConfig as KernelSearchConfig
    from ramify.methods.kernel_search.diagnosis import diagnose as diagnose
    from ramify.methods.kernel_search.loop import search as search
    from ramify.methods.kernel_search.named import read_task as read_task
    from ramify.methods.kernel_search.wall import Wall as Wall
else:
    __all__, __getattr__ = declared(__name__, __file__)
