"""orchestrator: is routing between my models worth it? Then a learned router,
or a composer of workflows, over any pool of models.

Papers: Sakana Fugu Technical Report, arXiv 2606.21228; TRINITY, arXiv 2512.04695; Conductor, arXiv 2512.04388. Workers are
endpoints, models on the local engine, or plain functions; the router's backbone and a composer that is trained are checkpoints
for the local engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none of a worker; training a composer needs ``train``,
a router reads hidden states of its own backbone."""
COMPONENTS = {"middleware": ("middleware",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.orchestrator.composer import Composer as Composer
    from ramify.methods.orchestrator.pool import ModelPool as ModelPool
    from ramify.methods.orchestrator.pool import PoolWorker as PoolWorker
    from ramify.methods.orchestrator.router import TurnRouter as TurnRouter
    from ramify.methods.orchestrator.table import collect as collect
else:
    __all__, __getattr__ = declared(__name__, __file__)
