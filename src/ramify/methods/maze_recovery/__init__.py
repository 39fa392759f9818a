"""maze-recovery: measure and teach recovery from wrong turns, which clean demonstrations cannot.

Paper: Provable Benefits of RLVR over SFT for Reasoning Models: Learning to Backtrack Efficiently, arXiv 2606.22938. Its theory in
exact numbers (``Maze``, ``train_exact``), an audit of anyone's traces (``audit_traces``),
and training sets that keep recoveries (``build_sft``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none, it reads finished traces."""

COMPONENTS = {"credit": ("rules",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.maze_recovery.algorithm import train_exact as train_exact
    from ramify.methods.maze_recovery.audit import audit_traces as audit_traces
    from ramify.methods.maze_recovery.build import build_sft as build_sft
    from ramify.methods.maze_recovery.star import Maze as Maze
    from ramify.methods.maze_recovery.star import TabularPolicy as TabularPolicy
else:
    __all__, __getattr__ = declared(__name__, __file__)
