"""earned-code-memory: give an agent a memory of text, and turn a procedure into a tested tool only once different requests need
it.

Paper: Metis: Bridging Text and Code Memory for Self-Evolving Agents, arXiv 2606.24151. Works with any agent: as middleware, as an
MCP server, or as a Python object. Needs no model where the rules of :mod:`ramify.methods.earned_code_memory.rules` do, else any
that answers messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none beyond answering messages."""
COMPONENTS = {"middleware": ("middleware",)}
"""Modules of this package that register parts, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.earned_code_memory.algorithm import MemoryConfig as MemoryConfig
    from ramify.methods.earned_code_memory.algorithm import break_even as break_even
    from ramify.methods.earned_code_memory.memory import Memory as Memory
    from ramify.methods.earned_code_memory.roles import RoleReply as RoleReply
    from ramify.methods.earned_code_memory.tools import ToolBox as ToolBox
else:
    __all__, __getattr__ = declared(__name__, __file__)
