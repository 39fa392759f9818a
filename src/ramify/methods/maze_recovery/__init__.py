"""maze-recovery: measure and teach recovery from wrong turns, which clean demonstrations cannot.

Paper: Provable Benefits of RLVR over SFT for Reasoning Models: Learning to Backtrack Efficiently, arXiv 2606.22938. Its theory in exact
numbers (``Maze``, ``train_exact``), an audit of anyone's traces (``audit_traces``), and training sets that keep recoveries (``build_sft``).
"""

from __future__ import annotations

from ramify.methods.maze_recovery.algorithm import train_exact
from ramify.methods.maze_recovery.audit import audit_traces
from ramify.methods.maze_recovery.build import build_sft
from ramify.methods.maze_recovery.star import Maze, TabularPolicy

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none, it reads finished traces."""

__all__ = ["NEEDS", "Maze", "TabularPolicy", "audit_traces", "build_sft", "train_exact"]
