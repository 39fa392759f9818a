"""judge-evolution: may I replace my judge, and which scores does that erase? And agents that improve while their judge does.

Paper: The Red Queen Gödel Machine: Co-Evolving Agents and Their Evaluators, arXiv 2606.26294. Needs a run with scores, or a judge
and an anchor of labelled items; the search also needs a workspace whose programs run in the sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none; a judge or an editor that is a model answers messages."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.judge_evolution.evolution import evolve as evolve
    from ramify.methods.judge_evolution.ledger import board as board
    from ramify.methods.judge_evolution.ledger import check as check
    from ramify.methods.judge_evolution.ledger import promote as promote
    from ramify.methods.judge_evolution.ledger import rescore as rescore
else:
    __all__, __getattr__ = declared(__name__, __file__)
